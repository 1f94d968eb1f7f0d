"""Callbacks that follow a search while it runs, and trackers that write it elsewhere.

    optimizer = LLMOptimizer(space, model, callbacks=[MLflow("my search"), Log()])

`Callback` is the base class. `Log`, `MLflow`, `WeightsAndBiases` and `TensorBoard` are
callbacks; each imports its library when it is constructed.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence

from llmopt.errors import LLMOptError, did_you_mean
from llmopt.trackers.callback import Callback, Search
from llmopt.trackers.log import Log
from llmopt.trackers.mlflow import MLflow
from llmopt.trackers.tensorboard import TensorBoard
from llmopt.trackers.wandb import WeightsAndBiases

__all__ = [
    "Callback",
    "Log",
    "MLflow",
    "Search",
    "TensorBoard",
    "WeightsAndBiases",
    "add_track_argument",
    "callbacks_of",
]
# By name on the command line: the factory, and where it writes by default.
_TRACKERS: dict[str, tuple[Callable[..., Callback], str]] = {
    "log": (Log, ""),
    "mlflow": (MLflow, "llmopt"),
    "wandb": (WeightsAndBiases, "llmopt"),
    "tensorboard": (TensorBoard, "runs/tensorboard"),
}


def add_track_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--track``, whose values `callbacks_of` turns into callbacks."""
    parser.add_argument(
        "--track",
        metavar="NAME[:WHERE]",
        action="append",
        default=argparse.SUPPRESS,
        help="follow the searches with log, mlflow[:EXPERIMENT], wandb[:PROJECT] or "
        "tensorboard[:FOLDER]; may be repeated",
    )


def callbacks_of(names: Sequence[str]) -> tuple[Callback, ...]:
    """Return the callbacks that ``--track`` names."""
    return tuple(_made(*name.partition(":")[::2]) for name in names)


def _made(name: str, where: str) -> Callback:
    make, usual = _TRACKERS.get(name, (None, ""))
    if make is None or (where and not usual):
        said = f"--track {name}{where and ':' + where}: {did_you_mean(name, _TRACKERS)}"
        raise LLMOptError(said)
    if name == "log":  # on the command line the lines should be visible
        logging.basicConfig(level=logging.INFO, format="%(message)s")
    return make(where or usual) if usual else make()
