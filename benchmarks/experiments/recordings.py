"""The recordings of strong models: a few as files, the others in one archive.

Question: what did a model answer, of whom a page or a table tells?

Protocol: `benchmarks/recordings` holds the recordings that pages and tests name, and
``archive.tar.xz`` with all others; ``INDEX.md`` lists them. ``--model replay:NAME`` of the
experiments on words finds a recording by its name alone.

Command::

    python -m llmopt.benchmarks.experiments.recordings hopper-words-3      # prints its path

Runtime: seconds.
"""

from __future__ import annotations

import argparse
import shutil
import tarfile
import tempfile
from pathlib import Path

from llmopt.client.recording import ReplayClient
from llmopt.errors import LLMOptError, did_you_mean
from llmopt.text import estimate_tokens

FOLDER = Path(__file__).resolve().parents[1] / "recordings"
ARCHIVE = FOLDER / "archive.tar.xz"


def names() -> tuple[str, ...]:
    """Return the names of all recordings, in order."""
    found = {path.stem for path in FOLDER.glob("*.jsonl")}
    if ARCHIVE.exists():
        with tarfile.open(ARCHIVE) as archive:
            found |= {name.removesuffix(".jsonl") for name in archive.getnames()}
    return tuple(sorted(found))


def recording(name: str) -> Path:
    """Return the file of a recording, which is unpacked into a folder for temporary files.

    Args:
        name: Its name, such as ``"hopper-words-3"``; or the path of any file.

    Raises:
        LLMOptError: There is none.
    """
    path = Path(name)
    if path.exists():
        return path
    name = path.name.removesuffix(".jsonl")
    kept = FOLDER / f"{name}.jsonl"
    if kept.exists():
        return kept
    if name not in names():
        raise LLMOptError(f"there is no recording {name!r}; {did_you_mean(name, names())}")
    unpacked = Path(tempfile.mkdtemp(prefix="llmopt-recording-")) / kept.name
    with tarfile.open(ARCHIVE) as archive, unpacked.open("wb") as file:
        packed = archive.extractfile(kept.name)
        assert packed is not None
        shutil.copyfileobj(packed, file)
    return unpacked


def spent(path: Path) -> tuple[int, int]:
    """Return the tokens of a recording's requests and answers, estimated from their texts."""
    exchanges = ReplayClient(path).exchanges
    asked = sum(estimate_tokens(request.text) for request, _ in exchanges)
    return asked, sum(estimate_tokens(c.text) for _, reply in exchanges for c in reply.completions)


def main() -> None:
    """Print the path of a recording, or the names of all."""
    parser = argparse.ArgumentParser(description="the recordings of strong models")
    parser.add_argument("name", nargs="?", help="recording to unpack (default: list their names)")
    args = parser.parse_args()
    print(recording(args.name) if args.name else "\n".join(names()))


if __name__ == "__main__":
    main()
