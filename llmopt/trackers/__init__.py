"""What a search tells of itself while it runs, and callbacks that pass it on.

    optimizer = LLMOptimizer(space, model, callbacks=[MLflow("my search"), Log()])

`Callback` is the protocol. `Log`, `MLflow`, `WeightsAndBiases`, `TensorBoard` and `Telemetry`
are callbacks; each imports its library when it is made.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llmopt.errors import LLMOptError, did_you_mean
from llmopt.trackers.base import Callback, Search

if TYPE_CHECKING:
    from llmopt.trackers.log import Log
    from llmopt.trackers.mlflow import MLflow
    from llmopt.trackers.telemetry import Telemetry
    from llmopt.trackers.tensorboard import TensorBoard
    from llmopt.trackers.wandb import WeightsAndBiases

__all__ = [
    "Callback",
    "Log",
    "MLflow",
    "Search",
    "Telemetry",
    "TensorBoard",
    "WeightsAndBiases",
    "add_track_argument",
    "callbacks_of",
]
# By the module that holds it, which is its name on the command line: the class, and where it
# writes if nothing else is said; `None` where that cannot be said.
_TRACKERS: dict[str, tuple[str, str | None]] = {
    "log": ("Log", None),
    "mlflow": ("MLflow", "llmopt"),
    "wandb": ("WeightsAndBiases", "llmopt"),
    "tensorboard": ("TensorBoard", "runs/tensorboard"),
    "telemetry": ("Telemetry", None),
}


def __getattr__(name: str) -> Any:
    for module, (tracker, _) in _TRACKERS.items():
        if tracker == name:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
    """Return the callbacks that ``--track`` names."""
    return tuple(_made(*name.partition(":")[::2]) for name in names)


def _made(name: str, where: str) -> Callback:
    tracker, usual = _TRACKERS.get(name, ("", None))
    if not tracker or (where and usual is None):
        raise LLMOptError(f"--track {name}{where and ':' + where}: {did_you_mean(name, _TRACKERS)}")
    if name == "log":
        import logging

        # Whoever asks for lines on the command line wants to see them.
        logging.basicConfig(level=logging.INFO, format="%(message)s")
    made: type[Any] = __getattr__(tracker)
    callback: Callback = made() if usual is None else made(where or usual)
    return callback
