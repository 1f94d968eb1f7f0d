"""``llmopt ask FILE``: the next points of a search, as JSON lines."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path

from llmopt.commands.shared import add_option_argument, add_packages_argument
from llmopt.errors import LLMOptError, warn_user
from llmopt.progress import waiting
from llmopt.service.search_file import breaking, description_of, open_file
from llmopt.service.search_json import of_proposal
from llmopt.util.files import read_json
from llmopt.util.text import cut

_WAIT = 600.0
_SHOWN = 100  # characters of the names of pending points


def add_file_argument(parser: argparse.ArgumentParser) -> None:
    """Add what `ask`, `tell` and `status` have in common."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="description of the search (.json or .toml), or its storage (.jsonl)",
    )


def add_file_arguments(parser: argparse.ArgumentParser, wait: float = 30.0) -> None:
    """Add what `ask` and `tell`, which write to the file, have in common."""
    add_file_argument(parser)
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=float,
        default=wait,
        help="how long to wait for another program that has the search open, not for a model "
        f"(default: {wait:g})",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt ask``."""
    add_file_arguments(parser, _WAIT)
    parser.add_argument("-n", type=int, metavar="N", help="how many points (default: 1)")
    parser.add_argument(
        "--fixed",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="value that these points keep; may be repeated",
    )
    parser.add_argument("--model", metavar="M", help="model to ask, in place of the one named")
    parser.add_argument(
        "--again",
        action="store_true",
        help="first return points that were asked for and have no result",
    )
    add_option_argument(parser)
    add_packages_argument(parser)


def _pair(text: str) -> tuple[str, object]:
    """Return the name and the value of ``NAME=VALUE``; a value that is no JSON is a text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise LLMOptError(f"--fixed {text}: expected NAME=VALUE, such as --fixed temperature=80")
    try:
        return name, read_json(value)
    except ValueError:
        return name, value


def main(args: argparse.Namespace) -> int:
    """Print one JSON object for each point: ``params``, ``source`` and ``explanation``."""
    wanted = 1 if args.n is None else args.n
    if wanted < 1:
        raise LLMOptError(f"-n {wanted}: expected a whole number of at least 1")
    fixed = dict(map(_pair, args.fixed)) or None
    optimizer = open_file(
        args.file,
        model=args.model,
        options=getattr(args, "option", ()),
        packages=getattr(args, "compute_packages", ()),
        wait=args.wait,
    )
    with contextlib.closing(optimizer):
        pending = optimizer.pending_proposals
        if pending and not args.again:
            names = cut(", ".join(f"p{p.asked}" for p in pending), _SHOWN)
            print(f"llmopt: no result yet: {names} (--again returns them)", file=sys.stderr)
        points = pending[:wanted] if args.again else []
        for point in points:
            if why := optimizer.obstacle(point):
                warn_user(f"p{point.asked}: {why}. Withdraw it, and ask again")
        if wanted > len(points):
            with waiting():
                new, warnings = optimizer.ask_proposals(wanted - len(points), fixed)
            if (described := description_of(Path(args.file))) is not None:
                warnings += breaking(optimizer, described, new)
            for text in warnings:
                warn_user(text)
            # Others may have got a result meanwhile.
            points = [p for p in points if p in optimizer.pending_proposals] + new
        for proposal in points:
            print(json.dumps(of_proposal(optimizer, proposal)), flush=True)
        if len(points) < wanted:
            why = optimizer.stopped or "no further point of the space is left"
            print(f"llmopt: {len(points)} of {wanted} points: {why}", file=sys.stderr)
    return 0
