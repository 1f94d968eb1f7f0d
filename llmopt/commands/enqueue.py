"""``llmopt enqueue FILE``: queue points, given as JSON, for the next `ask`."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence

from llmopt.commands.ask import add_file_arguments
from llmopt.errors import LLMOptError
from llmopt.service.search_file import open_file
from llmopt.service.search_json import enqueue
from llmopt.util.files import read_json
from llmopt.util.text import NUMBER, cut, short

_SHOWN = 100  # characters of the text of an option

NAME = re.compile(r"[pP#]\d+")
"""A name of a point: ``p4`` as `ask` printed it (perhaps misspelled), ``#4`` as prompts show it."""

_QUOTED = "quote the whole object in '…', and each name and text in it in \"…\""


def remedy_of(text: str, error: ValueError, usual: str = _QUOTED) -> str:
    """Return the remedy for a text that is no JSON, as the `error` says."""
    comma = re.search(r":\s*([+-]?\d+),(\d+)", text, re.ASCII)
    if comma:
        return f"write {comma[1]}.{comma[2]}"
    at = error.pos if isinstance(error, json.JSONDecodeError) else -1
    for found in re.finditer(rf"[:\[]\s*({NUMBER.pattern})(?=\s*[,}}\]])", text, NUMBER.flags):
        if found.start(1) <= at < found.end(1) and math.isfinite(float(found[1])):
            return (
                "JSON numbers have a digit before the point and after it, no + and no leading 0: "
                f"write {float(found[1])}"
            )
    return usual


def check_quoted(points: Sequence[str], texts: Mapping[str, str | None]) -> None:
    """Raise if the shell has split the text of an option, whose words are no points."""
    words = [p for p in points if not (re.search(r'[{}":=]', p) or NAME.fullmatch(p))]
    option = next((option for option, text in texts.items() if text), None)
    if option is not None and re.search(r"[^\W\d]", "".join(words)):
        whole = cut(" ".join([str(texts[option]), *words]), _SHOWN)
        raise LLMOptError(
            f"{short(words[0])} is no point. If it is part of the text of {option}, quote the "
            f'text: {option} "{whole}"'
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt enqueue``."""
    add_points(parser)
    parser.add_argument(
        "--words", default="", metavar="TEXT", help="what the points are, for the model"
    )


def add_points(parser: argparse.ArgumentParser, count: str = "+") -> None:
    """Add the arguments of a command on points."""
    add_file_arguments(parser)
    parser.add_argument(
        "point",
        metavar="JSON",
        nargs=count,
        help='parameters by name, all or some of them, such as {"temperature": 80}; or the name '
        "that `ask` printed, such as p4",
    )


def point_of(text: str) -> object:
    """Return a point of the command line."""
    if NAME.fullmatch(text):
        return text
    if re.fullmatch(r"\d+", text):
        raise LLMOptError(f"{text} is no point: expected its name, such as p{text}, or JSON")
    try:
        return read_json(text)
    except ValueError as error:
        said = f"is not valid JSON ({error}), nor the name of a point, such as p4: "
        said += remedy_of(text, error)
        if not re.search(r'[{}":]', text):
            said = "is no point: expected its name, such as p4, or its parameters, such as "
            said += """'{"temperature": 80}'"""
        raise LLMOptError(f"{text[:80]!r} {said}") from error


def main(args: argparse.Namespace) -> int:
    """Queue all points, or none where one is wrong, and print them as JSON."""
    check_quoted(args.point, {"--words": args.words})
    points = [point_of(text) for text in args.point]
    with contextlib.closing(open_file(args.file, wait=args.wait, asks=False)) as optimizer:
        for line in enqueue(optimizer, points, args.words):
            print(json.dumps(line), flush=True)
    return 0
