"""The header of a GGUF model file: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.

The package `gguf` reads it as well, but keeps every token: 11 seconds for 49,000 of them.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmopt.errors import ClientError, ModelNotFoundError
from llmopt.util.files import open_file

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?"}
_SCALARS |= {10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GGUFHeader:
    """The facts in the header of a model file."""

    architecture: str  # llama.cpp's name, such as "llama"
    context_tokens: int | None  # maximum context of its training, if stated
    chat: bool  # whether the file has a chat template
    parameters: int  # weights; of a split model those of this part
    thinks: bool = False  # whether the template can switch thinking on and off


def read_header(path: str | os.PathLike[str]) -> GGUFHeader:
    """Read the header of a model or of its first part; check tensor offsets."""
    path = Path(path)
    metadata, parameters = _read(path)
    architecture = str(metadata.get("general.architecture", "unknown"))
    context = metadata.get(f"{architecture}.context_length")
    template = metadata.get("tokenizer.chat_template")
    return GGUFHeader(
        architecture=architecture,
        context_tokens=context if isinstance(context, int) and context > 0 else None,
        chat=template is not None,
        parameters=parameters,
        thinks="thinking" in str(template),
    )


def _read(path: Path) -> tuple[dict[str, Any], int]:
    """Return the metadata and the number of weights of one file."""
    try:
        with open_file(path) as file:
            magic = file.read(4)
            if magic != b"GGUF":
                raise ClientError(
                    f"{path} is not a GGUF file (it starts with {magic!r}, not b'GGUF'); give "
                    "the path of a .gguf model"
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(data)
    except FileNotFoundError:
        raise ModelNotFoundError(
            f"there is no model file {path} (working directory: {Path.cwd()}); give the path "
            "of a .gguf file"
        ) from None
    except OSError as error:
        raise ModelNotFoundError(f"cannot read the model file {path}: {error.strerror}") from error
    except (struct.error, ValueError, OverflowError) as error:
        raise ClientError(
            f"the model file {path} ({path.stat().st_size} bytes) is truncated or corrupt: "
            f"{error}; fetch it again"
        ) from error


def _parse(data: mmap.mmap) -> tuple[dict[str, Any], int]:
    reader = _Reader(data)
    version = reader.scalar("<I")
    if not 2 <= version <= 3:
        raise ValueError(f"GGUF version {version}, expected 2 or 3")
    n_tensors = reader.scalar("<Q")
    n_entries = reader.scalar("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(n_entries):
        key = reader.string()
        metadata[key] = reader.value(reader.scalar("<I"))
    parameters = 0
    last = 0
    for _ in range(n_tensors):
        reader.string()
        n_dimensions = reader.scalar("<I")
        if n_dimensions > 8:
            raise ValueError(f"a tensor of {n_dimensions} dimensions")
        parameters += math.prod(reader.scalar("<Q") for _ in range(n_dimensions))
        reader.scalar("<I")
        last = max(last, reader.scalar("<Q"))
    # The end of the last tensor is left to llama.cpp, which knows the size of each type.
    if n_tensors and reader.offset + last >= len(data):
        raise ValueError(f"its last tensor starts at byte {reader.offset + last}")
    return metadata, parameters


class _Reader:
    """A cursor over a GGUF header; ``struct.error`` or ``ValueError`` past the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.offset = 4

    def scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.data, self.offset)
        self.offset += struct.calcsize(form)
        return value

    def skip(self, size: int) -> None:
        self.offset += size
        if self.offset > len(self.data):
            raise ValueError(f"an entry of its header ends at byte {self.offset}")

    def string(self) -> str:
        length = self.scalar("<Q")
        start = self.offset
        self.skip(length)
        return self.data[start : self.offset].decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        """Read one value; arrays (token lists) are skipped and returned as ``None``."""
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise ValueError(f"metadata type {kind} at byte {self.offset}")
        item = self.scalar("<I")
        count = self.scalar("<Q")
        if item in _SCALARS:
            self.skip(count * struct.calcsize(_SCALARS[item]))
        elif item == _STRING:
            for _ in range(count):
                self.skip(self.scalar("<Q"))
        else:
            for _ in range(count):
                self.value(item)
        return None
