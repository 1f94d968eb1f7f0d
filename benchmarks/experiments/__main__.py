"""``python -m llmopt.benchmarks.experiments --check``: are the pages what the committed lines give?

Each page of results is made again from its committed lines, then the tables of docs/results.md and
of the README, then the numbers in their text. What needs more than the lines is named.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator

from llmopt.benchmarks.engine.cell import read_lines
from llmopt.benchmarks.experiments import claims, findings

PAGES = ("design", "rivals", "studies", "words")
NOT_AGAIN = {
    "the answers of the frontier chat model": "conversations with no fixed version of a model; "
    "the recordings replay them (`--model replay:NAME`)",
    "failures, many_parameters, mixed_spaces, mountaincar_seeds, strategies, readable_answers, "
    "recheck, start_up, start_up_words, weak_models, parallel, policy_defaults, hpo (.jsonl), "
    "unseen_more.md, bbob.md": "their code is gone; benchmarks/results/README.md names its commit "
    "where a page is kept",
    "code.jsonl": "searches of programs by the frontier chat model; the recordings replay them",
    "seconds and overheads (*.json, columns of seconds)": "they depend on the machine",
    "first_command.json": "made by the README's first command; CMA-ES gives 141 with the AVX2 "
    "kernels of OpenBLAS and 60 with those of AVX-512 (OPENBLAS_CORETYPE=Haswell, SkylakeX)",
    "docs/images/results.png": "plotted by `findings`; its bytes depend on Matplotlib",
}


def checks() -> Iterator[tuple[str, bool]]:
    """Yield each recomputed item, and whether it equals the committed one."""
    for name in PAGES:
        experiment = importlib.import_module(f"llmopt.benchmarks.experiments.{name}").EXPERIMENT
        made = experiment.page(read_lines(experiment.results))
        kept = experiment.results.with_suffix(".md").read_text(encoding="utf-8")
        yield f"benchmarks/results/{name}.md", made.strip() == kept.strip()
    asked = findings.questions()
    for path, make in ((findings.PAGE, findings.page), (findings.README, findings.readme)):
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
