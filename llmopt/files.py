"""Files that a reader never meets half written."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from llmopt.errors import StorageError


def write_text_atomically(path: Path, text: str) -> None:
    """Write a file in UTF-8 in one step, and make its folder.

    Args:
        path: The file; an older one is replaced.
        text: The content.

    Raises:
        StorageError: It could not be written; an older file is left as it was.
    """
    write_bytes_atomically(path, text.encode())


def write_bytes_atomically(path: Path, data: bytes) -> None:
    """Write a file in one step, as `write_text_atomically` does.

    Raises:
        StorageError: It could not be written; an older file is left as it was.
    """
    partial = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}. What was there before is intact; "
            "free some space, or give a folder that you may write to"
        ) from error
