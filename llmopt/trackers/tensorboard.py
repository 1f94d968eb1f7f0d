"""A search as event files of TensorBoard, without TensorFlow or PyTorch."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

from llmopt.errors import needs
from llmopt.history import Trial
from llmopt.trackers.callback import Row, RunTracker, Search


class TensorBoard(RunTracker):
    """Writes each search into a separate folder: one step for every trial.

    Args:
        folder: Parent folder; ``tensorboard --logdir FOLDER`` shows it.
    """

    def __init__(self, folder: str | os.PathLike[str] = "runs/tensorboard") -> None:
        with needs("TensorBoard()", "tensorboard"):
            from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
            from tensorboard.plugins.text import metadata
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        super().__init__()
        self._event, self._summary, self._text = event_pb2.Event, summary_pb2.Summary, metadata
        self._tensor: Any = tensor_pb2.TensorProto
        self._string = types_pb2.DT_STRING
        self._writer: Any = EventFileWriter
        self._folder = Path(folder)
        self._used: set[str] = set()

    def _begin(self, search: Search, mark: str, resumed: bool) -> Any:
        name = "".join(c if c.isalnum() or c in "-_ " else "_" for c in search.name) or "search"
        folder = name
        for number in itertools.count(2):
            mine = resumed and (self._folder / folder / mark).exists()
            if mine or not (folder in self._used or (self._folder / folder).exists()):
                break
            folder = f"{name}-{number}"  # another search with the same name
        self._used.add(folder)
        writer = self._writer(str(self._folder / folder))
        if search.place:  # so that a resumed search finds it
            (self._folder / folder / mark).touch()
        return writer

    def _write(self, run: Any, trial: Trial, row: Row, best: Row) -> None:
        value, values = self._summary.Value, []
        for tag, what in row.items():
            if not isinstance(what, str):
                values.append(value(tag=tag, simple_value=float(what)))
            elif tag in ("explanation", "feedback"):
                tensor = self._tensor(dtype=self._string, string_val=[what.encode()])
                meta = self._text.create_summary_metadata(display_name=tag, description="")
                values.append(value(tag=f"{tag}/text_summary", tensor=tensor, metadata=meta))
        summary = self._summary(value=values)
        run.add_event(self._event(wall_time=time.time(), step=trial.number, summary=summary))
        run.flush()

    def _end(self, run: Any, reason: str) -> None:
        run.close()
