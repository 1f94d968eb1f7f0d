"""The options of ``llmopt code`` and ``llmopt reward``, and what a run folder may hold of them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmopt.arguments import MOST_AT_ONCE
from llmopt.benchmarks.code.folder import CodeRun, read_starts
from llmopt.benchmarks.code.tasks import ALIASES
from llmopt.code.candidate import STRATEGIES
from llmopt.code.language import FEEDBACK_KINDS
from llmopt.code.reward.sb3 import ALGORITHMS
from llmopt.commands.shared import add_option_argument, take_options
from llmopt.errors import LLMOptError
from llmopt.files import read_text
from llmopt.text import short
from llmopt.trust import check_given

DEFAULTS: dict[str, Any] = {
    "steps": 10,
    "seed": 0,
    "strategy": "hill-climb",
    "samples": 4,
    "width": 3,
    "answer": "fenced",
    "hint": "",
    "initial": "",
    "repairs": 2,
    "temperature": None,
    "max_output_tokens": None,
    "call_seconds": 10.0,
    "held_out": 20,
    "max_requests": None,
    "max_tokens": None,
    "max_cost": None,
    "allow_unsandboxed": False,
    "record": None,
    "gif": True,
}
FREE = (
    *("steps", "max_requests", "max_tokens", "max_cost", "allow_unsandboxed", "held_out"),
    *("record", "gif"),
)
"""Settings that a resumed run may change."""
_COUNTS = ("steps", "samples", "width", "held_out", "episodes", "trainings")
_RANGES: dict[str, tuple[type, float, float]] = {
    **dict.fromkeys(_COUNTS, (int, 1, 100_000)),
    **dict.fromkeys(("max_output_tokens", "max_requests", "max_tokens"), (int, 1, 1e12)),
    "training": (int, 1, 1e10),
    "seed": (int, 0, 2**63),
    "repairs": (int, 0, MOST_AT_ONCE),
    "temperature": (float, 0, 100),
    "max_cost": (float, 0, 1e9),
    "call_seconds": (float, 0.001, 1e6),
}
"""Of each number that an option gives: its kind, the least and the most."""
_TEXTS = ("task", "model", "hint", "initial", "command")
_CHOICES = {
    "strategy": STRATEGIES,
    "answer": ("fenced", "json"),
    "trainer": ("linear", *ALGORITHMS),
    "gif": (True, False),
    "allow_unsandboxed": (True, False),
}


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the options of both commands. One that is not given is not in the namespace."""
    parser.argument_default = argparse.SUPPRESS
    add = parser.add_argument
    add(
        "task",
        metavar="TASK",
        help=f"{', '.join(ALIASES)}, metaworld:NAME-v3 (code only), or any Gymnasium id",
    )
    add("--model", metavar="M", help="model to ask; it has to be able to write code")
    add_option_argument(parser)
    add("--steps", type=int, metavar="N", help="candidates of the model in all (default: 10)")
    add("--seed", type=int, metavar="S", help="seed of everything random (default: 0)")
    add(
        "--strategy",
        choices=STRATEGIES,
        help="which try the next one improves (default: hill-climb)",
    )
    add("--samples", type=int, metavar="N", help="tries from one candidate in a round (default: 4)")
    add("--width", type=int, metavar="W", help="candidates that a beam keeps (default: 3)")
    add("--answer", choices=("fenced", "json"), help="form of the answer (default: fenced)")
    add("--hint", metavar="TEXT", help="advice for the model")
    add("--initial", metavar="FILE", help="Python source to begin from, scored first")
    add("--repairs", type=int, metavar="N", help="repairs of one answer (default: 2)")
    add("--temperature", type=float, metavar="T", help="sampling temperature")
    add(
        "--max-output-tokens",
        type=int,
        metavar="N",
        help="tokens of an answer, reasoning included (default: "
        "16000, a quarter of a short context)",
    )
    add("--call-seconds", type=float, metavar="S", help="limit of one call of code (default: 10)")
    add("--held-out", type=int, metavar="N", help="fresh starts for the last score (default: 20)")
    add("--no-gif", dest="gif", action="store_false", help="do not render the best policy")
    add(
        "--starts",
        metavar="PATH",
        help="run on the starts of another run folder or recording (its starts.json), to compare "
        "with it (default: drawn from a new secret)",
    )
    add("--out", metavar="DIR", help="run folder (default: a new one in runs/)")
    add("--resume", action="store_true", help="go on with the run in the folder --out")
    add(
        "--record",
        metavar="FILE",
        help="keep the model's requests and answers; the same command with --model replay:FILE "
        "plays them again",
    )
    add("--max-requests", type=int, metavar="N", help="stop after so many requests to the model")
    add("--max-tokens", type=int, metavar="N", help="stop after so many tokens")
    add("--max-cost", type=float, metavar="USD", help="stop after so many US dollars")
    add(
        "--allow-unsandboxed",
        action="store_true",
        help="run the model's code even where it cannot be confined",
    )


def open_run(args: argparse.Namespace, command: str, defaults: Mapping[str, Any]) -> CodeRun:
    """Return the run that the arguments name. Nothing is written yet.

    Raises:
        LLMOptError: A number is too small, or the folder does not fit the arguments.
    """
    given = dict(vars(args))
    take_options(given)
    out, resume = given.pop("out", None), given.pop("resume", False)
    starts = given.pop("starts", None)
    given["command"] = command
    check_settings(given)
    if given.get("initial"):
        try:
            given["initial"] = read_text(given["initial"])
        except OSError as error:
            raise LLMOptError(
                f"cannot read --initial {given['initial']}: {error.strerror or error}"
            ) from error
    if resume and out is None:
        raise LLMOptError("--resume needs --out DIR, the folder of the run to go on with")
    if resume and starts is not None:
        raise LLMOptError("--resume goes on with the starts of the run: leave out --starts")
    if out is None:
        safe = "".join(c if c.isalnum() or c in "-._" else "-" for c in str(given["task"]))
        out = Path("runs") / f"{command}-{safe}-{time.strftime('%Y%m%d-%H%M%S')}"
    config = given if resume else {**DEFAULTS, **defaults, **given}
    run = CodeRun(out, config, resume=resume, free=FREE)
    run.config = {**DEFAULTS, **defaults, **run.config}
    run.given_starts = None if starts is None else read_starts(Path(starts))
    if resume:
        # A waiver of the sandbox is not even asked for: it is forgotten.
        run.config["allow_unsandboxed"] = given.get("allow_unsandboxed", False)
        check_given(run.path, run.config, given)
    check_settings(run.config)
    return run


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise if a setting, of the command line or of a folder, is of no use.

    Raises:
        LLMOptError: It is of another kind, too small or too large.
    """
    for name, value in settings.items():
        if value is None and DEFAULTS.get(name) is None:
            continue
        expected = _expected(name, value)
        if expected:
            option = f"--{name.replace('_', '-')}"
            raise LLMOptError(f"{option} {short(value)}: expected {expected}")


def _expected(name: str, value: Any) -> str:
    """Return what a setting should be, in words; empty where it is so."""
    if name in _RANGES:
        kind, least, most = _RANGES[name]
        sound = type(value) is int or (kind is float and type(value) is float)
        what = "a number" if kind is float else "a whole number"
        return (
            "" if sound and least <= value <= most else f"{what}, {least} or more, at most {most:g}"
        )
    if name in _TEXTS:
        return "" if isinstance(value, str) else "a text"
    if name in _CHOICES:
        valid = _CHOICES[name]
        sound = any(value == each and type(value) is type(each) for each in valid)
        return "" if sound else f"one of {', '.join(map(str, valid))}"
    if name == "feedback":
        sound = isinstance(value, list) and all(v in FEEDBACK_KINDS for v in value)
        return "" if sound else f"some of {', '.join(FEEDBACK_KINDS)}"
    return ""
