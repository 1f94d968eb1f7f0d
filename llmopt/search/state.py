"""The state of a search as the sum of its events.

A live call and a resumed file go through the same `SearchState.apply`, which is why a
resumed run cannot differ from an uninterrupted one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from llmopt.data import NO_DATA
from llmopt.history import Direction, History, Proposal, Trial
from llmopt.search.eventlog import Event
from llmopt.search.events import (
    Asked,
    Queued,
    Returned,
    SearchEvent,
    Snapshot,
    Stop,
    Told,
    read_event,
)
from llmopt.search.spend_log import Books
from llmopt.space import Space


class SearchState:
    """Everything a search knows."""

    def __init__(
        self,
        space: Space,
        directions: tuple[Direction, ...],
        seed: int,
        metrics: tuple[str, ...] = (),
    ) -> None:
        self.space = space
        self.directions, self.metrics = directions, metrics
        self.seed, self.seeded = seed, False
        self.trials: list[Trial] = []  # in the order of telling
        self.pending: list[Proposal] = []  # returned by `ask`, without a result, oldest first
        self.queue: deque[Proposal] = deque()  # produced and not returned yet
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
        return History(tuple(self.trials), open_points, self.directions, metrics=self.metrics)

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
                    if (found := self._take_pending(self.space.key(values))) is not None:
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

    def replay(self, line: Event, books: Books) -> None:
        """Apply the event of a line of a file."""
        event = read_event(line, self.space)
        self.apply(event)
        if isinstance(event, Asked):
            books.asked(proposals=event.proposals, rejected=event.rejected)
        elif isinstance(event, Snapshot):
            books.begin_with(event.books)

    def _asked(self, event: Asked) -> None:
        self.keys.update([self.space.key(p.values) for p in event.new])
        self.warmed += sum(p.source == "warmup" for p in event.new)
        ready = [*self.queue, *event.new]
        for proposal in ready[: event.given]:
            if self.seeded:
                proposal = replace(proposal, seed=self.next_seed(proposal.values))
            self.pending.append(proposal)
        self.queue = deque(ready[event.given :])
        self.stop = event.stop or self.stop
        self.rng.bit_generator.state = event.rng

    def next_seed(self, values: tuple[Any, ...], taken: Sequence[int | None] = ()) -> int | None:
        """Return the seed of the next evaluation of a point; ``None`` where there are no seeds.

        The first evaluation of every point has the same seed, the second another one, and so on.
        """
        if not self.seeded:
            return None
        key = self.space.key(values)
        both: Sequence[Trial | Proposal] = (*self.trials, *self.pending)
        used = {*taken, *(p.seed for p in both if self.space.key(p.values) == key)}
        drawn = (int(np.random.SeedSequence([self.seed, k]).generate_state(1)[0]) for k in count())
        return next(seed for seed in drawn if seed not in used)

    def _told(self, event: Told) -> None:
        if event.rewards is not None and len(event.rewards) != len(self.directions):
            raise ValueError(f"{len(event.rewards)} rewards: expected {len(self.directions)}")
        # A point is known where it is one of the user's that was never asked.
        key = self.space.key(event.values)
        asked = self._take_pending(key, last=False, seed=event.seed)
        self.measured_again |= event.kind == "finalist"
        if asked is None and event.kind == "finalist":  # who proposed it is known
            known = next((t for t in self.trials if t.values == event.values), None)
            asked = Proposal(event.values, known.source) if known else None
        if asked is None:
            asked, self.stop = Proposal(event.values, "user"), None
        self.keys.add(key)
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
                data=event.data if event.data is NO_DATA else event.data.within(self.folder),
                # who proposed it, and what it cost
                **{
                    **vars(asked),
                    "values": event.values,
                    "seed": asked.seed if event.seed is None else event.seed,
                },
            )
        )

    def recorded_before(self, told: Told) -> Trial | None:
        """Return the latest trial of a point that is recorded again without being asked."""
        if told.samples or self.space.key(told.values) not in self.keys:
            return None
        if any(p.values == told.values for p in self.pending):
            return None
        before = [t for t in self.trials if t.values == told.values and t.rewards]
        return before[-1] if before else None

    def _take_pending(
        self, key: tuple[Any, ...], last: bool = True, seed: int | None = None
    ) -> Proposal | None:
        """Take the latest (or oldest) point with this key out of `pending`.

        One that has the `seed` goes first.
        """
        found = [i for i, p in enumerate(self.pending) if self.space.key(p.values) == key]
        found = [i for i in found if seed is not None and self.pending[i].seed == seed] or found
        return self.pending.pop(found[-1 if last else 0]) if found else None
