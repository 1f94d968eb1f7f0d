"""Options that several commands have: ``--option NAME=VALUE`` and ``--config FILE``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmopt.client.model_string import OptionError, with_options
from llmopt.errors import LLMOptError, did_you_mean
from llmopt.util.files import read_text, read_toml


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--config``; `take_config` reads the file before the command line is parsed."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        default=argparse.SUPPRESS,
        help="TOML file with these options, by their long names; the command line goes before it",
    )


def take_config(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Make what a config file says the defaults of a parser, if one is named."""
    if "--config" not in parser._option_string_actions:
        return
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config", type=Path)
    path = first.parse_known_args(list(arguments))[0].config
    if path is None:
        return
    text = read_text(path)
    try:
        options = read_toml(text)
    except ValueError as error:
        raise LLMOptError(f"--config: {path} is not valid TOML: {error}") from error
    actions = {_name(a): a for a in parser._actions if a.dest not in ("help", "config")}
    for name, value in options.items():
        action = actions.get(name.replace("_", "-"))
        if action is None:
            raise LLMOptError(f"{path}: unknown option {name!r}; {did_you_mean(name, actions)}")
        try:
            found = _value(parser, action, value)
        except (argparse.ArgumentError, TypeError, ValueError) as error:
            said = error.message if isinstance(error, argparse.ArgumentError) else error
            raise LLMOptError(f"{path}: {name} = {value!r}: {said}") from None
        if any(
            str(v).startswith("command:") for v in (value if isinstance(value, list) else [value])
        ):
            raise LLMOptError(
                f"{path}: {name} = {value!r}: a command is run only if the command line names it"
            )
        if not action.option_strings:
            action.nargs = "?"
        parser.set_defaults(**{action.dest: found})


def _name(action: argparse.Action) -> str:
    """Return what an option is called in the file: its long name, without the dashes."""
    longest = max(action.option_strings, key=len, default="")
    return longest.removeprefix("--").removeprefix("no-") or action.dest.replace("_", "-")


def _value(parser: argparse.ArgumentParser, action: argparse.Action, value: Any) -> Any:
    """Return an option's value as the command line would give it."""
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        if not isinstance(value, bool):
            raise ValueError("expected true or false")
        return value
    appended = isinstance(action, argparse._AppendAction)
    if appended and isinstance(value, dict):
        value = [f"{k}={v}" for k, v in value.items()]
    several = appended or isinstance(action.nargs, int) or action.nargs in ("+", "*")
    if several and not isinstance(value, list):
        raise ValueError("expected a list")
    given = value if several else [value]
    if isinstance(action.nargs, int) and len(given) != action.nargs:
        raise ValueError(f"expected {action.nargs} values")
    kinds = str if action.type is None else (str, int, float)
    if any(isinstance(one, bool) or not isinstance(one, kinds) for one in given):
        raise ValueError(f"expected a text{' or a number' * (action.type is not None)}")
    texts = list(map(str, given))
    # argparse converts and checks it, as it does what stands on the command line.
    if appended:
        return [parser._get_values(action, [text]) for text in texts]
    return parser._get_values(action, texts)


def add_option_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--option``; `take_options` puts what it took into the model."""
    parser.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=argparse.SUPPRESS,
        help="option of the model's client, such as timeout=60 or effort=low; may be repeated "
        "(MODEL?NAME=VALUE means the same)",
    )


def add_packages_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--compute-packages``, which no file may decide: importing runs a package."""
    parser.add_argument(
        "--compute-packages",
        metavar="A,B",
        type=lambda text: tuple(filter(None, map(str.strip, text.split(",")))),
        default=argparse.SUPPRESS,
        help="further installed packages that the model's Python may import, such as "
        "casadi,mujoco; they are imported outside the sandbox, so you have to trust them",
    )


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what each command that begins a run has: seed, picture, recording, caps, ``--option``."""
    add = parser.add_argument
    add("--seed", type=int, metavar="S", help="seed of everything random (default: 0)")
    add("--no-gif", dest="gif", action="store_false", help="do not draw the best policy")
    add(
        "--record",
        metavar="FILE",
        help="keep the model's requests and answers; the same command with --model replay:FILE "
        "plays them again",
    )
    add("--max-requests", type=int, metavar="N", help="maximum number of requests to the model")
    add("--max-tokens", type=int, metavar="N", help="maximum number of tokens")
    add("--max-cost", type=float, metavar="USD", help="maximum cost in US dollars")
    add_option_argument(parser)


def take_options(given: dict[str, Any], default: str | None = None) -> None:
    """Put the options of ``--option`` into the model string of a command's arguments, by name."""
    options = given.pop("option", None)
    if not options:
        return
    model = given.get("model", default)
    if model is None:
        raise OptionError("--option is of the model that --model names: give --model, too")
    given["model"] = with_options(model, options)
