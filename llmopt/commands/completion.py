"""``llmopt completion SHELL``: the script with which a shell completes ``llmopt``."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from llmopt.errors import needs

_SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt completion``."""
    parser.add_argument("shell", choices=_SHELLS, help="which shell")


def main(args: argparse.Namespace) -> int:
    """Print the script."""
    with needs("llmopt completion", "shtab", extra="shell"):
        import shtab
    print(shtab.complete(whole_parser(), shell=args.shell))
    return 0


def whole_parser() -> argparse.ArgumentParser:
    """Return one parser for all commands, which are otherwise loaded one at a time."""
    from llmopt.cli import COMMANDS

    parser = argparse.ArgumentParser(prog="llmopt", add_help=True)
    parser.add_argument("--version", action="store_true", help="print the version")
    parts = parser.add_subparsers(dest="command")
    for name, command in COMMANDS.items():
        try:
            module: Any = importlib.import_module(command.module)
        except ImportError:  # of a command whose extra is not installed
            continue
        module.add_arguments(parts.add_parser(name, help=command.help))
    return parser
