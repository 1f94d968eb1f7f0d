"""``llmopt report``: the page of a search, or a page and tables of a benchmark's raw lines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmopt.benchmarks.bench.cells import read_results, task_of
from llmopt.benchmarks.engine.cell import Cell
from llmopt.benchmarks.extras import require_packages
from llmopt.benchmarks.report.figures import policy_gif
from llmopt.benchmarks.report.lines import group, notes
from llmopt.benchmarks.report.markdown import BEGIN, END, between_markers, markdown
from llmopt.benchmarks.report.page import page
from llmopt.benchmarks.tasks.table import reaches_further
from llmopt.errors import LLMOptError, StorageError
from llmopt.policies.episode_seeds import held_out_seeds
from llmopt.policies.picture import choose_renderer
from llmopt.report_page.page import check_page
from llmopt.reports import is_search, report
from llmopt.util.files import check_folder, read_text, write_text_atomically
from llmopt.util.text import clean


def render_best(line: Mapping[str, Any]) -> bytes | None:
    """Render one held-out episode of a run's best policy; ``None`` if that fails."""
    cell = Cell.of(line)
    try:
        if reaches_further(cell.task):
            raise StorageError(f"{cell.task!r} names a module; a report imports none")
        seed = held_out_seeds(cell.seed, 1)[0]
        return policy_gif(task_of(cell), line["best_params"], seed)
    except Exception as error:
        # A picture is no part of the results: whatever a renderer raises, the page is written.
        text = f"llmopt: no picture of {line['env_id']}: {type(error).__name__}: {error}"
        print(clean(text), file=sys.stderr)
        return None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt report``."""
    add = parser.add_argument
    add(
        "results",
        nargs="+",
        metavar="FILE",
        help="a search: a storage file, its description or a run folder; or the files of results "
        "that llmopt bench wrote",
    )
    add("--out", type=Path, default=Path("report.html"), metavar="FILE", help="the page")
    add("--title", default="", help="title of a search's page")
    add(
        "--reference",
        nargs="+",
        type=float,
        metavar="X",
        help="reference point of the hypervolume of several objectives, a number for each",
    )
    add("--markdown", type=Path, metavar="FILE", help="benchmark: write the Markdown tables here")
    add(
        "--readme",
        type=Path,
        metavar="FILE",
        help=f"benchmark: put the Markdown tables between {BEGIN} and {END} of this file",
    )
    add(
        "--no-gif",
        dest="gif",
        action="store_false",
        help="benchmark: do not render the best policies",
    )


def _report_search(args: argparse.Namespace) -> int:
    if len(args.results) > 1:
        raise LLMOptError(
            f"got {len(args.results)} files: the report of a search is made of one; run the "
            "command for each, with another --out"
        )
    if args.markdown or args.readme:
        raise LLMOptError("--markdown and --readme are of a benchmark's results: omit them")
    print(
        report(
            args.results[0],
            args.out,
            title=args.title,
            reference=args.reference,
        )
    )
    return 0


def main(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    if any(map(is_search, args.results)):
        return _report_search(args)
    args.results = list(map(Path, args.results))
    check_page(args.out)
    if args.markdown:
        check_folder(args.markdown)
    require_packages("a report", ["matplotlib", "scipy"])
    choose_renderer()
    lines = read_results(*args.results)
    source = ", ".join(f"`{path.as_posix()}`" for path in args.results)
    try:
        said = notes(group(lines))
        html = clean(page(lines, gif=render_best if args.gif else None))
        table = clean(markdown(lines, source)) if args.markdown or args.readme else ""
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if isinstance(error, LLMOptError):
            raise
        raise StorageError(
            f"{source} cannot be shown, since a line in it is not as llmopt bench wrote it "
            f"({type(error).__name__}: {str(error)[:200]}): restore it from a copy"
        ) from error
    for note in said:
        print(clean(f"llmopt: {note}"), file=sys.stderr)
    write_text_atomically(args.out, html)
    written = [args.out]
    if args.markdown:
        write_text_atomically(args.markdown, table)
        written.append(args.markdown)
    if args.readme:
        write_text_atomically(args.readme, between_markers(read_text(args.readme), table))
        written.append(args.readme)
    print("\n".join(map(str, written)))
    return 0
