"""``llmopt skill``: what a coding agent needs to know to search with llmopt, as a skill file."""

from __future__ import annotations

import argparse
from importlib import resources


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt skill``: it has none."""
    parser.epilog = "For example: llmopt skill > .claude/skills/llmopt/SKILL.md"


def main(args: argparse.Namespace) -> int:
    """Print the file."""
    text = resources.files("llmopt.commands").joinpath("SKILL.md").read_text(encoding="utf-8")
    print(text, end="")
    return 0
