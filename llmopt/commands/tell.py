"""``llmopt tell FILE``: record what points scored, given as JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import re
import sys
from collections.abc import Iterator

from llmopt.commands.ask import add_file_arguments
from llmopt.commands.enqueue import NAME, check_quoted, point_of, remedy_of
from llmopt.errors import LLMOptError
from llmopt.service.search_file import open_file
from llmopt.service.search_json import numbered, tell
from llmopt.util.files import read_json
from llmopt.util.text import NUMBER, counted, written

_ADD = "add --reward X, or --failed WHY"
_OPTIONS = (
    ("--reward", "X", "what the point scored"),
    ("--failed", "WHY", "why it could not be evaluated"),
    ("--feedback", "TEXT", "what was seen, in words"),
    ("--instead-of", "POINT", "the asked point that was to be measured; omit what is equal"),
    (
        "--replaces",
        "N",
        "number of the trial whose result was wrong, or the name of its point, such as p12; omit "
        "what was right",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt tell``."""
    add_file_arguments(parser)
    parser.add_argument(
        "result",
        metavar="JSON",
        nargs="*",
        help='{"params": {...}, "reward": 0.5, "feedback": "..."} or {"params": {...}, "failed": '
        '"why"}; one a line from standard input if not given. With the options, the point alone: '
        "its parameters, or the name that `ask` printed, such as p4",
    )
    parser.add_argument(
        "--import",
        dest="source",
        metavar="SOURCE",
        help="record the trials of another storage file, or of a table (.csv), before any others; "
        "exit status 2 if a row was refused (the others are recorded)",
    )
    for name, metavar, text in _OPTIONS:
        parser.add_argument(name, metavar=metavar, help=text)
    parser.add_argument(
        "--part",
        metavar="NAME=X",
        action="append",
        default=[],
        help="a number beside the reward; with --replaces, NAME= removes one",
    )


def main(args: argparse.Namespace) -> int:
    """Record all results, or none where one is wrong, and print their trials as JSON.

    Of an import, the rows that are not refused are recorded.
    """
    # Read before the search is opened: nobody is kept waiting meanwhile.
    by_option = _given(args) or args.part
    results = [_of_options(args)] if by_option else list(_results(args))
    if not results and not args.source:
        raise LLMOptError(
            "no result was given: expected one JSON object a line on standard input, or as an "
            f'argument: llmopt tell {args.file} \'{{"params": {{...}}, "reward": 0.5}}\''
        )
    refused = 0
    optimizer = open_file(args.file, wait=args.wait, asks=False)
    with contextlib.closing(optimizer):
        if args.source:
            report, before = optimizer.record_trials(args.source), len(optimizer.trials)
            print(report, file=sys.stderr)
            if report.all_refused:
                raise LLMOptError(f"no row of {args.source} could be taken; nothing was recorded")
            refused = report.counts.get("refused", 0)
            for line in numbered(optimizer, optimizer.trials[before - report.taken :]):
                print(json.dumps(line), flush=True)
        for line in tell(optimizer, results):
            print(json.dumps(line), flush=True)
    if refused:
        raise LLMOptError(
            f"refused {refused} of {counted(len(report.rows), 'row')} of {args.source}, and "
            "recorded the others: follow the reasons above, and repeat the import"
        )
    return 0


def _given(args: argparse.Namespace) -> dict[str, str]:
    names = [name[2:].replace("-", "_") for name, _, _ in _OPTIONS]
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def _of_options(args: argparse.Namespace) -> dict[str, object]:
    """Return the result that options give."""
    check_quoted(args.result, {"--feedback": args.feedback, "--failed": args.failed})
    points = [point_of(text) for text in args.result]
    if len(points) > 1:
        raise LLMOptError(f"got {len(points)} points: with options, give one")
    if not points and args.replaces is None:
        raise LLMOptError(
            "no point was given: name it, such as p4, or give its parameters as JSON; `llmopt "
            "status` lists the pending ones"
        )
    result: dict[str, object] = {"params": points[0]} if points else {}
    for name, text in _given(args).items():
        result[name] = text
        if name == "instead_of":
            result[name] = point_of(text)
        elif name == "reward":
            result[name] = _reward(text)
        elif name == "replaces":
            with contextlib.suppress(ValueError):  # else the search says what it expects
                result[name] = read_json(text)
    if args.part:
        result["parts"] = dict(_part(text, args.replaces is not None) for text in args.part)
    if not result.keys() & {"reward", "failed", "replaces"}:
        raise LLMOptError(_no_result(args.result[0], _ADD))
    return result


def _no_result(point: str, remedy: str) -> str:
    recorded = f"; if its result is recorded, add to it with --replaces {point}"
    return f"no result of {point} was given: {remedy}{recorded * bool(NAME.fullmatch(point))}"


def _reward(text: str) -> object:
    """Return a finite number, or what else JSON says, such as several rewards."""
    if NUMBER.fullmatch(text.strip()) and math.isfinite(float(text)):
        return float(text)
    with contextlib.suppress(ValueError):
        value = read_json(text)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return value
    several = """, or for several objectives --reward '{"yield": 40, "ee": 90}'"""
    several *= re.search(r"[,:{\[\s]", text.strip()) is not None
    raise LLMOptError(
        f"--reward {text}: expected a number{written(text) or several}; if the evaluation failed, "
        "give --failed WHY in place of --reward"
    )


def _part(text: str, corrects: bool) -> tuple[str, float | None]:
    name, equals, value = text.partition("=")
    if NUMBER.fullmatch(value.strip()) and math.isfinite(float(value)):
        return name, float(value)
    if corrects and equals and not value:
        return name, None
    remedy = written(value) or ", such as yield=78.8; omit a part that was not measured"
    raise LLMOptError(f"--part {text}: expected NAME=NUMBER{remedy}")


def _results(args: argparse.Namespace) -> Iterator[object]:
    lines = args.result or ([] if args.source else [line for line in sys.stdin if line.strip()])
    for number, line in enumerate(lines, start=1):
        try:
            yield read_json(line)
        except ValueError as error:
            if NAME.fullmatch(line.strip()):
                after = lines[number].strip() if number < len(lines) else ""
                remedy = _ADD
                if re.fullmatch(r"[-+]?[.\d][-+.\de]*", after):
                    remedy = f"give the result as --reward {after}"
                raise LLMOptError(_no_result(line.strip(), remedy)) from error
            nan = re.search(r":\s*nan\b", line, re.IGNORECASE)
            if nan:
                remedy = 'NaN is no JSON: give "failed": "why"'
            elif not args.result:
                usual = 'each line is one whole object, with its names and texts in "…"'
                remedy = remedy_of(line, error, usual)
            elif line.lstrip().startswith("{"):
                remedy = remedy_of(line, error)
            else:
                file = line[:80].removeprefix("@")
                remedy = f"{remedy_of(line, error)}; a file is read with < {file}"
            raise LLMOptError(
                f"result {number} is not valid JSON ({error}): {remedy}; nothing was recorded"
            ) from error
