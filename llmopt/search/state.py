"""The state of a search as the sum of its events.

A live call and a resumed file go through the same `SearchState.apply`, which is why a
resumed run cannot differ from an uninterrupted one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from llmopt.history import Direction, History, Proposal, Trial
from llmopt.search.events import Asked, Queued, Returned, SearchEvent, Snapshot, Stop, Told
from llmopt.search.meter import Books
from llmopt.space import Space


class SearchState:
    """Everything a search knows."""

    def __init__(self, space: Space, directions: tuple[Direction, ...], seed: int) -> None:
        self.space = space
        self.directions = directions
        self.trials: list[Trial] = []  # in the order of telling
        self.pending: list[Proposal] = []  # handed out and not told, oldest first
        self.queue: deque[Proposal] = deque()  # produced and not handed out yet
        self.keys: set[Any] = set()  # `Space.key` of every point in these three
        self.warmed = 0  # warm-up points produced so far
        # The end of the search, once the queue is empty; it is dropped when anybody else tells a
        # point.
        self.stop: Stop | None = None
        self.measured_again = False  # finalists were: points of `trials` then come repeatedly
        self.rng = np.random.default_rng(seed)  # the one source of randomness
        self.folder: Path | None = None  # where files of data are that events name

    def history(self) -> History:
        """Return the trials and the open points as an immutable snapshot."""
        open_points = tuple([p.values for p in (*self.pending, *self.queue)])
        return History(tuple(self.trials), open_points, self.directions)

    def snapshot(self, books: Books) -> Snapshot:
        """Return the event that holds all of the state, and what its meter knows."""
        points = tuple(self.trials), tuple(self.pending), tuple(self.queue)
        return Snapshot(*points, self.warmed, self.rng.bit_generator.state, books, self.stop)

    def apply(self, event: SearchEvent) -> None:
        """Change the state by one event."""
        match event:
            case Asked():
                self._asked(event)
            case Told():
                self._told(event)
            case Queued():
                self.stop = None
                self.keys.add(self.space.key(event.values))
                own = sum(p.source == "user" for p in self.queue)
                self.queue.insert(own, Proposal(event.values, "user", event.words))
            case Returned():
                for values in reversed(event.points):
                    if (found := self._take_pending(values)) is not None:
                        self.queue.appendleft(found)
            case Snapshot():
                for trial in event.trials:
                    if trial.rewards is not None and len(trial.rewards) != len(self.directions):
                        raise ValueError(f"trial {trial.number} has {len(trial.rewards)} rewards")
                kept = [t if not t.data else replace(t, data=t.data.within(self.folder))
                        for t in event.trials]  # fmt: skip
                self.trials, self.pending = kept, list(event.pending)
                self.queue, self.warmed = deque(event.queue), event.warmed
                self.rng.bit_generator.state, self.stop = event.rng, event.stop
                self.measured_again = any(t.kind == "finalist" for t in self.trials)
                points = [t.values for t in self.trials]
                points += [p.values for p in (*self.pending, *self.queue)]
                self.keys = {self.space.key(values) for values in points}

    def _asked(self, event: Asked) -> None:
        self.keys.update([self.space.key(p.values) for p in event.new])
        self.warmed += sum(p.source == "warmup" for p in event.new)
        ready = [*self.queue, *event.new]
        self.pending += ready[: event.given]
        self.queue = deque(ready[event.given :])
        self.stop = event.stop or self.stop
        self.rng.bit_generator.state = event.rng

    def _told(self, event: Told) -> None:
        if event.rewards is not None and len(event.rewards) != len(self.directions):
            raise ValueError(f"{len(event.rewards)} rewards: expected {len(self.directions)}")
        # A point is known where it is one of the user's that was never asked.
        asked = self._take_pending(event.values, last=False)
        self.measured_again |= event.kind == "finalist"
        if asked is None and event.kind == "finalist":  # who proposed it is known
            known = next((t for t in self.trials if t.values == event.values), None)
            asked = Proposal(event.values, known.source) if known else None
        if asked is None:
            asked, self.stop = Proposal(event.values, "user"), None
        self.keys.add(self.space.key(event.values))
        self.trials.append(
            Trial(
                number=len(self.trials),
                params=self.space.unflatten(event.values),
                rewards=event.rewards,
                state="failed" if event.rewards is None else "complete",
                feedback=event.feedback,
                constraint_violation=event.violation,
                stderr=event.stderr,
                samples=event.samples,
                kind=event.kind,
                data=event.data.within(self.folder),
                **{**vars(asked), "values": event.values},  # who proposed it, and what it cost
            )
        )

    def _take_pending(self, values: tuple[Any, ...], last: bool = True) -> Proposal | None:
        """Take the latest (or oldest) point with these values out of `pending`."""
        key = self.space.key(values)
        order = range(len(self.pending))
        for i in reversed(order) if last else order:
            if self.space.key(self.pending[i].values) == key:
                return self.pending.pop(i)
        return None
