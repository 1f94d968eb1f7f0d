"""The options of ``llmopt code`` and ``llmopt reward``, and what a run folder may hold of them."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmopt.benchmarks.code.folder import CodeRun, read_starts
from llmopt.benchmarks.code.tasks import ALIASES
from llmopt.benchmarks.engine.folder_settings import check_given
from llmopt.commands.shared import add_run_arguments, take_options
from llmopt.errors import LLMOptError
from llmopt.util.files import read_text
from llmopt.util.text import short


@dataclass(frozen=True)
class _Option:
    """A setting of a run: its default, the type of its values, and what they may be."""

    default: Any
    kind: type
    help: str = ""  # what it is, in words; empty for one that every command has
    range: tuple[Any, ...] = ()  # least and most of a number, or else all values
    free: bool = False  # whether a resumed run may change it
    command: str = ""  # which of the two commands has it; both by default
    metavar: str = "N"

    def expected(self, value: Any) -> str:
        """Return what a value should be, in words; empty where it is so."""
        if value is None and self.default is None:
            return ""
        valid = self.range or ((True, False) if self.kind is bool else ())
        if self.kind in (int, float):
            sound = type(value) is int or type(value) is self.kind
            sound = sound and valid[0] <= value <= valid[1]
            what = "a number" if self.kind is float else "a whole number"
            most = "" if valid[1] == math.inf else f", at most {valid[1]:g}"
            words = f"{what}, {valid[0]} or more{most}"
        elif valid:
            sound = any(value == each and type(value) is type(each) for each in valid)
            words = f"one of {', '.join(map(str, valid))}"
        else:
            sound, words = isinstance(value, str), "a text"
        return "" if sound else words


_TEXT = _Option("", str)
_COUNT, _MANY = (1, 100_000), (1, 1e12)
_OPTIONS = {
    "task": _TEXT,
    "model": _TEXT,
    "command": _TEXT,
    "steps": _Option(10, int, "candidates of the model in all", _COUNT, free=True),
    "description": _Option("", str, "what you know of the task", metavar="TEXT"),
    "initial": _Option("", str, "Python source to begin from, scored first", metavar="FILE"),
    "attempts": _Option(6, int, "requests for one candidate whose answers are unusable", _COUNT),
    "temperature": _Option(None, float, "sampling temperature", (0, 100), metavar="T"),
    "max_output_tokens": _Option(
        None,
        int,
        "tokens of an answer, reasoning included (default: 16000, a quarter of a short context)",
        _MANY,
    ),
    "call_seconds": _Option(10.0, float, "limit of one call of code", (0.001, 1e6), metavar="S"),
    "held_out": _Option(20, int, "held-out initial states of the final score", _COUNT, free=True),
    "episodes": _Option(10, int, "starts that candidates are compared on", _COUNT, metavar="K"),
    "training": _Option(200, int, "episodes of a training", (1, 1e10), command="reward"),
    "trainings": _Option(
        3,
        int,
        "trainings under each reward, from different seeds, whose mean counts",
        _COUNT,
        command="reward",
    ),
    "compute": _Option(False, bool, free=True),
    "seed": _Option(0, int, range=(0, 2**63)),
    "max_requests": _Option(None, int, range=_MANY, free=True),
    "max_tokens": _Option(None, int, range=_MANY, free=True),
    "max_cost": _Option(None, float, range=(0, math.inf), free=True),
    "record": _Option(None, str, free=True),
    "gif": _Option(True, bool, free=True),
    "allow_unsandboxed": _Option(False, bool, free=True),
}


def defaults(command: str) -> dict[str, Any]:
    """Return the settings of a run where none are given."""
    return {
        name: option.default
        for name, option in _OPTIONS.items()
        if option is not _TEXT and option.command in ("", command)
    }


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Add the options of a command. One that is not given is not in the namespace."""
    parser.argument_default = argparse.SUPPRESS
    add = parser.add_argument
    add(
        "task",
        metavar="TASK",
        help=f"{', '.join(ALIASES)}, metaworld:NAME-v3 (code only), or any Gymnasium id",
    )
    add("--model", metavar="M", help="model to ask; it has to be able to write code")
    for name, option in _OPTIONS.items():
        if not option.help or option.command not in ("", command):
            continue
        form: dict[str, Any] = {"type": option.kind, "metavar": option.metavar}
        known = "" if option.default in (None, "") else option.default
        words = f"{option.help} (default: {known})" if known else option.help
        add(f"--{name.replace('_', '-')}", help=words, **form)
    add(
        "--starts",
        metavar="PATH",
        help="run on the starts of another run folder or recording (its starts.json), to compare "
        "with it (default: from a new secret seed)",
    )
    add(
        "--compute",
        action="store_true",
        help="let the model run Python, confined, on what was recorded before it writes code",
    )
    add("--out", metavar="DIR", help="run folder (default: a new one in runs/)")
    add("--resume", action="store_true", help="go on with the run in the folder --out")
    add(
        "--allow-unsandboxed",
        action="store_true",
        help="run the model's code even where it cannot be confined",
    )
    add_run_arguments(parser)


def open_run(args: argparse.Namespace, command: str) -> CodeRun:
    """Return the run that the arguments name. Nothing is written yet."""
    given = dict(vars(args))
    take_options(given)
    out, resume = given.pop("out", None), given.pop("resume", False)
    starts = given.pop("starts", None)
    given["command"] = command
    check_settings(given)
    if given.get("initial"):
        given["initial"] = read_text(given["initial"])
    if resume and out is None:
        raise LLMOptError("--resume needs --out DIR, the folder of the run to go on with")
    if resume and starts is not None:
        raise LLMOptError("--resume keeps the initial states of the run: omit --starts")
    if out is None:
        safe = "".join(c if c.isalnum() or c in "-._" else "-" for c in str(given["task"]))
        out = Path("runs") / f"{command}-{safe}-{time.strftime('%Y%m%d-%H%M%S')}"
    config = given if resume else {**defaults(command), **given}
    free = tuple(name for name, option in _OPTIONS.items() if option.free)
    run = CodeRun(out, config, resume=resume, free=free)
    run.config = {**defaults(command), **run.config}
    run.given_starts = None if starts is None else read_starts(Path(starts))
    if resume:
        # A waiver of the sandbox is not even asked for: it is forgotten.
        run.config["allow_unsandboxed"] = given.get("allow_unsandboxed", False)
        check_given(run.path, run.config, given)
    check_settings(run.config)
    return run


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise if a setting, of the command line or of a folder, is of no use."""
    for name, value in settings.items():
        if name in _OPTIONS and (expected := _OPTIONS[name].expected(value)):
            raise LLMOptError(f"--{name.replace('_', '-')} {short(value)}: expected {expected}")
