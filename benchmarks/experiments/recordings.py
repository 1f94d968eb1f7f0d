"""The recordings of strong models: a few as files, the others in one archive.

Question: what did a model answer, of whom a page or a table tells?

Protocol: `benchmarks/recordings` holds the recordings that pages and tests name, and
``archive.tar.xz`` with all others; ``INDEX.md`` lists them. ``--model replay:NAME`` of the
experiments on words finds a recording by its name alone.

Command::

    python -m llmopt.benchmarks.experiments.recordings hopper-words-3      # prints its path
    python -m llmopt.benchmarks.experiments.recordings --add FOLDER        # keeps its recordings

Runtime: seconds.
"""

from __future__ import annotations

import argparse
import io
import tarfile
import tempfile
from pathlib import Path

from llmopt.client.record_replay import ReplayClient
from llmopt.errors import LLMOptError, did_you_mean
from llmopt.util.text import estimate_tokens

FOLDER = Path(__file__).resolve().parents[1] / "recordings"
ARCHIVE, INDEX = FOLDER / "archive.tar.xz", FOLDER / "INDEX.md"


def names() -> tuple[str, ...]:
    """Return the names of all recordings, in order."""
    found = {path.stem for path in FOLDER.glob("*.jsonl")}
    if ARCHIVE.exists():
        with tarfile.open(ARCHIVE) as archive:
            found |= {name.removesuffix(".jsonl") for name in archive.getnames()}
    return tuple(sorted(found))


def recording(name: str) -> Path:
    """Return the file of a recording, which is unpacked into a folder for temporary files."""
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
    with tarfile.open(ARCHIVE) as archive:
        unpacked.write_bytes(_read(archive, kept.name))
    return unpacked


def spent(path: Path) -> tuple[int, int]:
    """Return the tokens of a recording's requests and answers, estimated from their texts."""
    exchanges = ReplayClient(path).exchanges
    asked = sum(estimate_tokens(request.text) for request, _ in exchanges)
    return asked, sum(estimate_tokens(c.text) for _, reply in exchanges for c in reply.completions)


def add(folder: Path) -> list[str]:
    """Put a folder's files ``TASK-ARM-SEED.jsonl`` into the archive and its index."""
    with tarfile.open(ARCHIVE) as archive:
        kept = {m.name: _read(archive, m.name) for m in archive.getmembers()}
    new = {path.name: path.read_bytes() for path in sorted(folder.glob("*.jsonl"))}
    kept.update(new)
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for name in sorted(kept):
            about = tarfile.TarInfo(name)  # of no time and nobody: the same files, the same bytes
            about.size = len(kept[name])
            archive.addfile(about, io.BytesIO(kept[name]))
    seeds: dict[str, list[int]] = {}
    for name in kept:
        search, _, seed = name.removesuffix(".jsonl").rpartition("-")
        if seed.isdigit():  # others stand in the text
            seeds.setdefault(search, []).append(int(seed))
    rows = (
        f"| {search} | {', '.join(map(str, sorted(seeds[search])))} |" for search in sorted(seeds)
    )
    before, head, rest = INDEX.read_text(encoding="utf-8").partition("| --- | --- |\n")
    after = rest.partition("\n\n")[2]
    text = "\n".join([f"{before}{head}" + "\n".join(rows), "", after])
    INDEX.write_text(text, encoding="utf-8")
    return list(new)


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    packed = archive.extractfile(name)
    assert packed is not None
    return packed.read()


def main() -> None:
    """Print the path of a recording, or the names of all."""
    parser = argparse.ArgumentParser(description="the recordings of strong models")
    parser.add_argument("name", nargs="?", help="recording to unpack (default: list their names)")
    parser.add_argument("--add", type=Path, metavar="FOLDER", help="keep recordings of a folder")
    args = parser.parse_args()
    if args.add:
        print("\n".join(add(args.add)))
        return
    print(recording(args.name) if args.name else "\n".join(names()))


if __name__ == "__main__":
    main()
