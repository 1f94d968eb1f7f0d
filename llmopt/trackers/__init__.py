"""What a search tells of itself while it runs, and callbacks that pass it on.

    optimizer = LLMOptimizer(space, model, callbacks=[MLflow("my search"), Log()])

`Callback` is the protocol. `Log`, `MLflow`, `WeightsAndBiases`, `TensorBoard` and `Telemetry`
are callbacks; each imports its library when it is made.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
]
_HOMES = {
    "Log": "log",
    "MLflow": "mlflow",
    "Telemetry": "telemetry",
    "TensorBoard": "tensorboard",
    "WeightsAndBiases": "wandb",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
