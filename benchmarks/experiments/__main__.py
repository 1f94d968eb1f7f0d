"""``python -m llmopt.benchmarks.experiments --check``: do the pages agree with the committed lines?

The tables of docs/results.md, the README and the archive are recomputed from the committed lines,
then the numbers in their text. Whatever needs more than the lines is named.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from llmopt.benchmarks.experiments import claims, findings

NOT_AGAIN = {
    "the answers of the frontier chat model": "conversations with no fixed version of a model; "
    "the recordings replay them (benchmarks/recordings/INDEX.md)",
    "words, rivals, design, hpo, weak_models (.jsonl)": "searches by earlier prompts, whose code "
    "is in commits that benchmarks/results/README.md names",
    "first_command.json": "made by `llmopt run swimmer`; CMA-ES gives 141 with the AVX2 "
    "kernels of OpenBLAS and 60 with those of AVX-512 (OPENBLAS_CORETYPE=Haswell, SkylakeX)",
}


def checks() -> Iterator[tuple[str, bool]]:
    """Yield each recomputed item, and whether it equals the committed one."""
    asked = findings.questions()
    pages = (findings.page, findings.readme, findings.archive)
    for path, make in zip((findings.PAGE, findings.README, findings.ARCHIVE), pages, strict=True):
        text = path.read_text(encoding="utf-8")
        yield f"the tables of {path.relative_to(findings.ROOT)}", make(asked, text) == text
    for page, text, made in claims.CLAIMS:
        said = text.format(*made())
        yield f"{page}: {said}", not claims.lacking(findings.ROOT / page, made())


def main(argv: list[str] | None = None) -> int:
    """Run the check; return 1 if something differs."""
    parser = argparse.ArgumentParser(description="the experiments: each module is a command")
    parser.add_argument("--check", action="store_true", help="recompute all figures of the pages")
    if not parser.parse_args(argv).check:
        parser.print_help()
        return 0
    differ = 0
    for what, same in checks():
        differ += not same
        print(f"{'agrees ' if same else 'DIFFERS'}  {what}", flush=True)
    for what, why in NOT_AGAIN.items():
        print(f"cannot be made again from lines: {what}: {why}")
    return 1 if differ else 0


if __name__ == "__main__":
    raise SystemExit(main())
