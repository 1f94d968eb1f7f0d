"""``llmopt report``: a web page and Markdown tables, made of a benchmark's raw lines alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmopt.benchmarks.bench import Cell, read_results
from llmopt.benchmarks.charts import number
from llmopt.benchmarks.page import ReportError, page
from llmopt.benchmarks.pictures import choose_renderer, policy_gif
from llmopt.benchmarks.rollout import held_out_seeds
from llmopt.benchmarks.runfolder import write_text
from llmopt.benchmarks.stats import (
    Comparison,
    ProblemKey,
    Runs,
    compare,
    duels,
    first_model,
    format_interval,
    format_p,
    group,
    group_of,
    problem_title,
    quartiles,
)
from llmopt.errors import StorageError

BEGIN, END = "<!-- benchmark:begin -->", "<!-- benchmark:end -->"

Grouped = Mapping[ProblemKey, Mapping[str, Runs]]

# -- Markdown -----------------------------------------------------------------------------


def markdown(lines: Sequence[Mapping[str, Any]], source: str = "") -> str:
    """Make the tables for a README: one line for each problem, losses included.

    Args:
        lines: Raw lines.
        source: The files that the table comes from, named below it.
    """
    grouped = group(lines)
    if not grouped:
        raise ReportError("no finished cells: run llmopt bench first")
    model = first_model(grouped)
    head = ["problem", "seeds"]
    head += [f"{model}"] if model else []
    named = {"llm-shuffled": "shuffled rewards", "grammar-uniform": "no model, same grammar"}
    named |= {"cma": "CMA-ES", "random": "random search"}
    present = {own.method for runs in grouped.values() for own in runs.values()}
    named = {method: title for method, title in named.items() if method in present}
    head += [*named.values(), "best of the baselines", *(["model's place"] if model else [])]
    rows = [_markdown_row(head), _markdown_row(["---"] * len(head))]
    for key, runs in grouped.items():
        rows.append(_markdown_row(_markdown_cells(key, runs, model, list(named))))
    text = [
        "Mean return of each run's best policy on held-out starts: median over seeds "
        "[quartiles]. All methods have the same warm-up, evaluations and starts; the best "
        "of the line is bold.",
        "",
        *rows,
    ]
    text += _markdown_summary(grouped, model)
    if source:
        text += ["", f"Made by `llmopt report` from {source}."]
    return "\n".join(text) + "\n"


def _markdown_cells(
    key: ProblemKey, runs: Mapping[str, Runs], model: str | None, methods: Sequence[str]
) -> list[str]:
    medians = {label: float(np.median(own.heldout)) for label, own in runs.items()}
    top = max(medians.values())
    by_method = {own.method: label for label, own in runs.items()}

    def cell(label: str | None, *, name: bool = False) -> str:
        if label is None:
            return ""
        low, middle, high = quartiles(runs[label].heldout)
        shown = f"{number(middle)} [{number(low)}, {number(high)}]"
        shown = f"**{shown}**" if middle == top else shown
        return f"{shown} ({label})" if name else shown

    baselines = [label for label, own in runs.items() if group_of(own) == "baseline"]
    best = max(baselines, key=medians.__getitem__) if baselines else None
    counts = sorted({len(own.lines) for own in runs.values()})
    cells = [
        problem_title(key, runs),
        "–".join(str(c) for c in dict.fromkeys((counts[0], counts[-1]))),
    ]
    if model:
        cells.append(cell(model if model in runs else None))
    cells += [cell(by_method.get(method)) for method in methods]
    cells.append(cell(best, name=True))
    if model:
        place = 1 + sum(m > medians[model] for m in medians.values()) if model in runs else None
        cells.append("" if place is None else f"{place} of {len(medians)}")
    return cells


def _markdown_summary(grouped: Grouped, model: str | None) -> list[str]:
    text: list[str] = []
    if len(grouped) > 1:
        compared: Comparison = compare(grouped)
        labels = sorted(compared.mean_rank, key=compared.mean_rank.__getitem__)
        text += [
            "",
            f"Mean rank over {compared.instances} instances (problem and seed; 1 is best of "
            f"{len(labels)}), and the interquartile mean of normalized scores (0: random "
            "search, 1: the best median) with its 95 % interval:",
            "",
            _markdown_row(["method", "mean rank", "IQM"]),
            _markdown_row(["---"] * 3),
        ]
        for label in labels:
            low, high = compared.interval[label]
            text.append(
                _markdown_row(
                    [
                        label,
                        f"{compared.mean_rank[label]:.2f}",
                        format_interval(compared.iqm[label], low, high),
                    ]
                )
            )
    if model and len(grouped) > 1:
        text += [
            "",
            f"{model} against each other method, by seeds of problems (p: Wilcoxon signed-rank "
            "test, Holm's correction):",
            "",
            _markdown_row(["against", "wins", "ties", "losses", "p"]),
            _markdown_row(["---"] * 5),
        ]
        for d in duels(grouped, model):
            text.append(
                _markdown_row(
                    [d.label, str(d.wins), str(d.ties), str(d.losses), format_p(d.adjusted)]
                )
            )
    return text


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(c.replace('|', chr(92) + '|') for c in cells)} |"


def between_markers(text: str, table: str) -> str:
    """Put a table between the markers of a text, in place of what is there.

    Raises:
        ReportError: The text does not have the two markers, each once and in order.
    """
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in tail or END in head:
        raise ReportError(
            f"expected a line {BEGIN} and after it a line {END}, each once: add them where the "
            "table belongs"
        )
    return f"{head}{begin}\n{table}{end}{tail}"


# -- command line -------------------------------------------------------------------------


def render_best(line: Mapping[str, Any]) -> bytes | None:
    """Render one held-out episode of a run's best policy; ``None`` where that cannot be."""
    cell = Cell.of(dict(line))
    try:
        seed = held_out_seeds(cell.seed, 1)[0]
        return policy_gif(cell.get_task(), line["best_params"], seed)
    except Exception as error:
        # A picture is no part of the results: whatever a renderer raises, the page goes on.
        print(
            f"llmopt: no picture of {line['env_id']}: {type(error).__name__}: {error}",
            file=sys.stderr,
        )
        return None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt report``."""
    add = parser.add_argument
    add("results", nargs="+", type=Path, metavar="FILE", help="what llmopt bench wrote")
    add("--out", type=Path, default=Path("report.html"), metavar="FILE", help="the page")
    add("--markdown", type=Path, metavar="FILE", help="write the Markdown tables here, too")
    add(
        "--readme",
        type=Path,
        metavar="FILE",
        help=f"put the Markdown tables between {BEGIN} and {END} of this file",
    )
    add("--no-gif", dest="gif", action="store_false", help="do not render the best policies")


def main(args: argparse.Namespace) -> int:
    """Run the subcommand.

    Raises:
        LLMOptError: A file cannot be read or written, or holds no results.
    """
    choose_renderer()
    lines = read_results(*args.results)
    write_text(args.out, page(lines, gif=render_best if args.gif else None))
    written = [args.out]
    source = ", ".join(f"`{path.as_posix()}`" for path in args.results)
    if args.markdown:
        write_text(args.markdown, markdown(lines, source))
        written.append(args.markdown)
    if args.readme:
        try:
            text = args.readme.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(f"cannot read {args.readme}: {error}") from error
        write_text(args.readme, between_markers(text, markdown(lines, source)))
        written.append(args.readme)
    print("\n".join(map(str, written)))
    return 0
