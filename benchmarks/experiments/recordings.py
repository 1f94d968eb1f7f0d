"""The recordings of strong models: a few as files, the others in one archive.

`benchmarks/recordings` holds the recordings that pages and tests name, and ``archive.tar.xz`` all
others; ``INDEX.md`` lists them. ``--model replay:NAME`` of an experiment finds a recording by its
name.

    python -m llmopt.benchmarks.experiments.recordings hopper-words-3  # prints its path
"""

from __future__ import annotations

import argparse
import tarfile
import tempfile
from pathlib import Path

from llmopt.errors import LLMOptError, did_you_mean

FOLDER = Path(__file__).resolve().parents[1] / "recordings"
ARCHIVE = FOLDER / "archive.tar.xz"


def names() -> tuple[str, ...]:
    """Return the names of all recordings, in order."""
    files = {path.name for path in FOLDER.glob("*.jsonl")}
    with tarfile.open(ARCHIVE) as archive:
        files |= set(archive.getnames())
    return tuple(sorted(n.removesuffix(".jsonl") for n in files if n.endswith(".jsonl")))


def recording(name: str) -> Path:
    """Return the file of a recording, unpacked into a temporary folder if it is in the archive.

    Raises:
        LLMOptError: There is neither a file nor a recording of this name.
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
    folder = tempfile.mkdtemp(prefix="llmopt-recording-")
    with tarfile.open(ARCHIVE) as archive:
        for member in archive.getmembers():
            if member.name.startswith(kept.name):  # a recorded code search has its starts beside it
                archive.extract(member, folder, filter="data")
    return Path(folder) / kept.name


def main() -> None:
    """Print the path of a recording, or the names of all."""
    parser = argparse.ArgumentParser(description="the recordings of strong models")
    parser.add_argument("name", nargs="?", help="recording to unpack (default: list their names)")
    args = parser.parse_args()
    print(recording(args.name) if args.name else "\n".join(names()))


if __name__ == "__main__":
    main()
