"""``--option NAME=VALUE``: every option of a client, for commands that take a model."""

from __future__ import annotations

import argparse
from typing import Any

from llmopt.client.options import OptionError, with_options


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


def take_options(given: dict[str, Any], default: str | None = None) -> None:
    """Put the options of ``--option`` into the model string of a command's arguments.

    Args:
        given: The arguments by name; ``option`` is taken out.
        default: The model where none was given.

    Raises:
        OptionError: One of them is not written ``name=value``, or there is no model.
    """
    options = given.pop("option", None)
    if not options:
        return
    model = given.get("model", default)
    if model is None:
        raise OptionError("--option is of the model that --model names: give --model, too")
    given["model"] = with_options(model, options)
