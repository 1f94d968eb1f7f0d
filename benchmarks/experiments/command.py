"""The one command of the experiments: it runs the searches that a file lacks, and makes their page.

    python -m llmopt.benchmarks.experiments.NAME --tasks T --methods M --seeds 0 1 --model MODEL
    python -m llmopt.benchmarks.experiments.NAME --table
    python -m llmopt.benchmarks.experiments.NAME --again 10

A line of the results is one search and is not run again; the page beside the file is made from it
alone. ``--again`` draws lines of the file at random, runs their searches again from their own
seeds, and says whether each value is still found. Floating-point sums differ between processors,
and a search carries a difference on: check on the kind of machine that made the lines.

With ``--record DIR`` a model's answers are kept, and ``--model replay:FILE`` plays them again, in
their order even where the wording of the prompt has changed since.
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
from llmopt.client.record_replay import RecordClient, ReplayClient
from llmopt.errors import LLMOptError
from llmopt.util.files import write_bytes_atomically

_LEAST = {"seeds": 0, "evaluations": 1, "jobs": 1, "again": 1}


@dataclass(frozen=True)
class Experiment:
    """What an experiment searches, and what it makes of the lines."""

    tasks: Sequence[str]
    methods: Sequence[str]  # or arms
    results: Path
    run: Callable[..., Row]  # `run(cell, source=, record=)` runs a search and returns its line
    page: Callable[[Sequence[Row]], str] | None  # makes the Markdown page, if it has one
    asks: Callable[[str], bool]  # whether a method asks the model of the command line
    trace: str  # field of a line, with every value of the search
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of the command's options
    options: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # of cells, with all values
    cell: Callable[..., Cell] = Cell.make
    # raises where a package is missing
    check: Callable[[Sequence[Cell]], None] = lambda cells: None
    # returns the cells to run of some, given the lines that there are
    missing: Callable[[Sequence[Cell], Sequence[Row]], Sequence[Cell]] = lambda cells, lines: cells
    summary: Callable[[Row], str] = lambda line: "done"
    draw: Callable[[Sequence[Row]], bytes | None] | None = None  # makes the picture, if it can be

    def parser(self, doc: str | None) -> argparse.ArgumentParser:
        """Return the command's options."""
        parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
        add = parser.add_argument
        for name, values in {"tasks": self.tasks, "methods": self.methods, **self.options}.items():
            kind, known = type(values[0]), ", ".join(map(str, values))
            form: dict[str, Any] = {"type": kind, "choices": values, "default": list(values)}
            add(f"--{name}", nargs="+", metavar=name.upper().rstrip("S"), help=known, **form)
        add("--seeds", nargs="+", metavar="N", type=int, default=[0], help="of the searches")
        add("--evaluations", type=int, metavar="N", help="of each search")
        add("--model", default="", help="model string, for methods that ask one")
        add("--name", help="what the results call the model (default: its string)")
        add("--record", type=Path, metavar="DIR", help="folder for the model's answers")
        add("--jobs", type=int, metavar="N", default=1, help="searches run at once")
        add("--out", type=Path, metavar="FILE", default=self.results, help="results")
        add("--table", action="store_true", help="run nothing: make the page")
        add("--again", type=int, metavar="N", help="run some searches of the file again")
        if self.draw is not None:
            add("--picture", type=Path, metavar="FILE", help="draw what was measured")
        parser.set_defaults(**self.defaults)
        return parser

    def main(self, doc: str | None, argv: Sequence[str] | None = None) -> int:
        """Run the searches that the command line names, and make page and picture.

        Returns 1 where a search failed, or found other values when it was run again, 2 after an
        error, else 0.
        """
        parser = self.parser(doc)
        args = parser.parse_args(argv)
        asked = [method for method in args.methods if self.asks(method)]
        if asked and not (args.model or args.table or args.again):
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
        if args.again is not None:
            return self._again(run, args)
        failures: Sequence[Any] = ()
        if not args.table:
            wanted = self._cells(args)
            self.check(wanted)
            lines = read_lines(args.out) if args.out.exists() else []
            cells = self.missing(wanted, lines)
            failures = run_pool(cells, run, args.out, jobs=args.jobs, summary=self.summary)
        if self.page is None:
            return 1 if failures else 0
        lines = read_lines(args.out)
        page = self.page(lines)
        args.out.with_suffix(".md").write_text(page.rstrip("\n") + "\n", encoding="utf-8")
        print(page)
        if self.draw is not None and args.picture and (picture := self.draw(lines)):
            write_bytes_atomically(args.picture, picture)
        return 1 if failures else 0

    def _again(self, run: Callable[[Cell], Row], args: argparse.Namespace) -> int:
        wanted = set(self._cells(args))
        lines = [line for line in read_lines(args.out) if Cell.of(line) in wanted]
        differ = 0
        for place in np.random.default_rng(0).permutation(len(lines))[: args.again].tolist():
            cell = Cell.of(lines[place])
            same = agree(lines[place][self.trace], run(cell)[self.trace])
            differ += not same
            print(f"{cell}: {'agrees' if same else 'DIFFERS'}", flush=True)
        return 1 if differ else 0

    def _cells(self, args: argparse.Namespace) -> list[Cell]:
        """Return the cells of all combinations, whole seeds first."""
        values = [getattr(args, name) for name in self.options]
        found = []
        for seed, *chosen, task, method in itertools.product(
            args.seeds, *values, args.tasks, args.methods
        ):
            model = (args.name or args.model) if self.asks(method) else ""
            options = dict(zip(self.options, chosen, strict=True))
            found.append(self.cell(task, method, seed, args.evaluations, model, **options))
        return found


def agree(old: Sequence[Any], new: Sequence[Any]) -> bool:
    """Return whether two traces hold the same values, to the digits that a line keeps."""
    if len(old) != len(new):
        return False
    # A failed evaluation is None, which is equal to itself alone.
    one, other = (np.array(each, dtype=float) for each in (new, old))
    return bool(np.allclose(one, other, rtol=1e-4, atol=1e-12, equal_nan=True))


@contextlib.contextmanager
def answering(cell: Cell, source: str = "", record: Path | None = None) -> Iterator[Client]:
    """Open the model that answers a search; its answers are kept in a folder, if there is one."""
    with contextlib.ExitStack() as opened:
        client = load(source or cell.model)
        if not isinstance(client, LocalClient):  # which stays loaded for the next search
            opened.callback(getattr(client, "close", lambda: None))
        if record is not None:
            record.mkdir(parents=True, exist_ok=True)
            client = RecordClient(client, kept_in(record, cell))
        yield client


def load(model: str) -> Client:
    """Return the client of a model string; a recording is played whatever it is asked."""
    if model.startswith("replay:"):
        return ReplayClient(recording(model.removeprefix("replay:")), strict=False)
    if model == "smollm2" or model.startswith("gguf:"):
        return load_model(model, 1)
    return get_client(model)


def kept_in(record: Path, cell: Cell) -> Path:
    """Return the file of a search's recording."""
    return record / f"{cell.task}-{cell.method}-{cell.seed}.jsonl"
