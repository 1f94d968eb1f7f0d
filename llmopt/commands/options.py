"""``--option NAME=VALUE``: every option of a client, for commands that take a model."""

from __future__ import annotations

import argparse


def add_option_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--option``; `llmopt.client.options.with_options` puts what it took into the model."""
    parser.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=argparse.SUPPRESS,
        help="option of the model's client, such as timeout=60 or effort=low; may be repeated "
        "(MODEL?NAME=VALUE means the same)",
    )
