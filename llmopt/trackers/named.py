"""Callbacks by name, for commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from llmopt.errors import LLMOptError, did_you_mean
from llmopt.trackers.base import Callback


def add_track_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--track``; `callbacks_of` makes callbacks of what it took."""
    parser.add_argument(
        "--track",
        metavar="NAME[:WHERE]",
        action="append",
        default=argparse.SUPPRESS,
        help="follow the searches with log, mlflow[:EXPERIMENT], wandb[:PROJECT], "
        "tensorboard[:FOLDER] or telemetry; may be repeated",
    )


def callbacks_of(names: Sequence[str]) -> tuple[Callback, ...]:
    """Return the callbacks that ``--track`` names.

    Raises:
        LLMOptError: There is none of that name.
        ImportError: Its library is not installed.
    """
    return tuple(_made(*name.partition(":")[::2]) for name in names)


def _made(name: str, where: str) -> Callback:
    import llmopt.trackers as trackers

    made: dict[str, Callable[[], Callback]] = {
        "log": trackers.Log,
        "mlflow": lambda: trackers.MLflow(where or "llmopt"),
        "wandb": lambda: trackers.WeightsAndBiases(where or "llmopt"),
        "tensorboard": lambda: trackers.TensorBoard(where or "runs/tensorboard"),
        "telemetry": trackers.Telemetry,
    }
    if name not in made or (where and name in ("log", "telemetry")):
        raise LLMOptError(f"--track {name}{where and ':' + where}: {did_you_mean(name, made)}")
    if name == "log":
        import logging

        # Whoever asks for lines on the command line wants to see them.
        logging.basicConfig(level=logging.INFO, format="%(message)s")
    return made[name]()
