"""The one command of the experiments: it runs the searches that a file of results lacks.

    python -m llmopt.benchmarks.experiments.NAME --tasks T --methods M --seeds 0 1 --model MODEL
    python -m llmopt.benchmarks.experiments.NAME --again 10

A line of the results is one search, which is not run again. ``--again`` reruns a random sample of
the searches in the file, each with its own seed, and reports whether the values agree. Sums of
floats are rounded differently on different processors, so compare on the kind of machine that made
the lines.

With ``--record DIR`` a model's answers are kept, and ``--model replay:NAME`` replays them in order,
even if the wording of the prompt has changed since.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llmopt.benchmarks.engine.cell import Cell, Row, read_lines
from llmopt.benchmarks.engine.pool import load_model, run_pool
from llmopt.benchmarks.experiments.recordings import recording
from llmopt.client.base import Client
from llmopt.client.local.local import LocalClient
from llmopt.client.model_string import get_client
from llmopt.client.recordings import RecordClient, ReplayClient
from llmopt.errors import LLMOptError

_LEAST = {"seeds": 0, "evaluations": 1, "jobs": 1, "again": 1}


@dataclass(frozen=True)
class Experiment:
    """The tasks and methods of an experiment, and how one search is run."""

    tasks: Sequence[str]
    methods: Sequence[str]  # or arms
    results: Path
    run: Callable[..., Row]  # `run(cell, source=, record=)` runs a search and returns its line
    asks: Callable[[str], bool]  # whether a method asks the model of the command line
    trace: str  # field of a line, with every value of the search
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of the command's options
    options: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # of cells, with all values
    cell: Callable[..., Cell] = Cell.make
    # raises if a package is missing
    check: Callable[[Sequence[Cell]], None] = lambda cells: None
    # returns the cells to run, given the lines of the file
    missing: Callable[[Sequence[Cell], Sequence[Row]], Sequence[Cell]] = lambda cells, lines: cells
    summary: Callable[[Row], str] = lambda line: "done"

    def parser(self, doc: str | None) -> argparse.ArgumentParser:
        """Return the command's options."""
        parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
        add = parser.add_argument
        for name, values in {"tasks": self.tasks, "methods": self.methods, **self.options}.items():
            form: dict[str, Any] = {"type": type(values[0]), "choices": values}
            metavar, listed = name.upper().rstrip("S"), ", ".join(map(str, values))
            add(f"--{name}", nargs="+", metavar=metavar, help=listed, default=list(values), **form)
        add("--seeds", nargs="+", metavar="N", type=int, default=[0], help="of the searches")
        add("--evaluations", type=int, metavar="N", help="of each search")
        add("--model", default="", help="model string, for methods that ask one")
        add("--name", help="name of the model in the results (default: its string)")
        add("--record", type=Path, metavar="DIR", help="folder for the model's answers")
        add("--jobs", type=int, metavar="N", default=1, help="searches run at once")
        add("--out", type=Path, metavar="FILE", default=self.results, help="results")
        add("--again", type=int, metavar="N", help="rerun N searches of the file and compare")
        parser.set_defaults(**self.defaults)
        return parser

    def main(self, doc: str | None, argv: Sequence[str] | None = None) -> int:
        """Run the searches that the command line names.

        Returns:
            1 if a search failed or found other values than before, 2 after an error, else 0.
        """
        parser = self.parser(doc)
        args = parser.parse_args(argv)
        asked = [method for method in args.methods if self.asks(method)]
        if asked and not (args.model or args.again):
            parser.error(f"--model MODEL is missing: {', '.join(asked)} asks one")
        for name, least in _LEAST.items():
            given = getattr(args, name)
            for value in given if isinstance(given, list) else [given]:
                if value is not None and value < least:
                    parser.error(f"--{name} {value}: expected a whole number of at least {least}")
        try:
            return self._main(args)
        except LLMOptError as error:
            print(f"llmopt: {error}", file=sys.stderr)
            return 2

    def _main(self, args: argparse.Namespace) -> int:
        run = functools.partial(self.run, source=args.model, record=args.record)
        wanted = self._cells(args)
        lines = read_lines(args.out) if args.out.exists() else []
        if args.again is not None:
            return _again(run, [x for x in lines if Cell.of(x) in set(wanted)], self.trace, args)
        self.check(wanted)
        cells = self.missing(wanted, lines)
        return bool(run_pool(cells, run, args.out, jobs=args.jobs, summary=self.summary))

    def _cells(self, args: argparse.Namespace) -> list[Cell]:
        """Return the cells of all combinations, whole seeds first."""
        values = [getattr(args, name) for name in self.options]
        cells = []
        for seed, *chosen, task, method in itertools.product(
            args.seeds, *values, args.tasks, args.methods
        ):
            model = (args.name or args.model) if self.asks(method) else ""
            options = dict(zip(self.options, chosen, strict=True))
            cells.append(self.cell(task, method, seed, args.evaluations, model, **options))
        return cells


def _again(
    run: Callable[[Cell], Row], lines: Sequence[Row], trace: str, args: argparse.Namespace
) -> int:
    differ = 0
    for place in np.random.default_rng(0).permutation(len(lines))[: args.again].tolist():
        cell = Cell.of(lines[place])
        same = agree(lines[place][trace], run(cell)[trace])
        differ += not same
        print(f"{cell}: {'agrees' if same else 'DIFFERS'}", flush=True)
    return 1 if differ else 0


def agree(old: Sequence[Any], new: Sequence[Any]) -> bool:
    """Return whether two traces hold the same values, to the digits that a line keeps."""
    if len(old) != len(new):
        return False
    # A failed evaluation is None, which equals only itself.
    one, other = (np.array(each, dtype=float) for each in (new, old))
    return bool(np.allclose(one, other, rtol=1e-4, atol=1e-12, equal_nan=True))


@contextlib.contextmanager
def answering(cell: Cell, source: str = "", record: Path | None = None) -> Iterator[Client]:
    """Open the model of a search; with `record`, a folder, its answers are kept there."""
    with contextlib.ExitStack() as opened:
        client = load(source or cell.model)
        if not isinstance(client, LocalClient):  # which stays loaded for the next search
            opened.callback(getattr(client, "close", lambda: None))
        if record is not None:
            record.mkdir(parents=True, exist_ok=True)
            name = f"{cell.task}-{cell.method}-{cell.seed}.jsonl"
            client = RecordClient(client, record / name)
        yield client


def load(model: str) -> Client:
    """Return the client of a model string; a recording is replayed in order."""
    if model.startswith("replay:"):
        return ReplayClient(recording(model.removeprefix("replay:")), strict=False)
    if model == "smollm2" or model.startswith("gguf:"):
        return load_model(model, 1)
    return get_client(model)
