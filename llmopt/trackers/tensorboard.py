"""A search as event files of TensorBoard, without TensorFlow or PyTorch."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from llmopt.history import Trial, Usage
from llmopt.trackers.base import Callback, Search, missing, numbers, words


class TensorBoard(Callback):
    """Writes each search into a folder of its own: one step for every trial.

    Args:
        folder: Where; ``tensorboard --logdir FOLDER`` shows it.

    Raises:
        ImportError: The package is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str] = "runs/tensorboard") -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
            from tensorboard.plugins.text import metadata
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ModuleNotFoundError as error:
            raise missing("tensorboard", "TensorBoard()") from error
        self._event, self._summary, self._text = event_pb2.Event, summary_pb2.Summary, metadata
        self._tensor: Any = tensor_pb2.TensorProto
        self._string = types_pb2.DT_STRING
        self._writer: Any = EventFileWriter
        self._folder = Path(folder)
        self._writers: dict[str, Any] = {}

    def told(self, search: Search, trial: Trial, best: Trial | None, usage: Usage) -> None:
        """Write a trial."""
        writer = self._writers.get(search.name)
        if writer is None:
            name = search.name.replace(os.sep, "_") or "search"
            writer = self._writers[search.name] = self._writer(str(self._folder / name))
        value = self._summary.Value
        values = [
            value(tag=tag, simple_value=number)
            for tag, number in numbers(search, trial, best, usage).items()
        ]
        for tag, text in words(trial).items():
            tensor = self._tensor(dtype=self._string, string_val=[text.encode()])
            meta = self._text.create_summary_metadata(display_name=tag, description="")
            values.append(value(tag=f"{tag}/text_summary", tensor=tensor, metadata=meta))
        writer.add_event(
            self._event(
                wall_time=time.time(), step=trial.number, summary=self._summary(value=values)
            )
        )
        writer.flush()

    def ended(self, search: Search, reason: str) -> None:
        """Close the file."""
        writer = self._writers.pop(search.name, None)
        if writer is not None:
            writer.close()
