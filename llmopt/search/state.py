"""The state of a search as the sum of its events.

A live call and a resumed file go through the same `SearchState.apply`, which is why a
resumed run cannot differ from an uninterrupted one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, get_args

import numpy as np

from llmopt._version import __version__
from llmopt.arguments import number, one_of, whole_number
from llmopt.client.base import Reply
from llmopt.errors import StorageError
from llmopt.history import Direction, History, Kind, Proposal, Source, State, Trial, Usage
from llmopt.search.eventlog import Event
from llmopt.space import Space, Value
from llmopt.text import short

_RARE = ("unpriced", "estimated")


class SearchState:
    """Everything a search knows.

    Args:
        space: The search space.
        directions: One direction for each objective.
        seed: Seed of the random generator.

    Attributes:
        trials: In the order of telling.
        pending: Handed out and not told, oldest first.
        ready: Produced and not handed out yet.
        keys: `Space.key` of every point in `trials`, `pending` and `ready`.
        warmed: Warm-up points produced so far.
        rng: The one source of randomness.
    """

    def __init__(self, space: Space, directions: tuple[Direction, ...], seed: int) -> None:
        self.space = space
        self.directions = directions
        self.trials: list[Trial] = []
        self.pending: list[Proposal] = []
        self.ready: deque[Proposal] = deque()
        self.keys: set[Any] = set()
        self.warmed = 0
        self.rng = np.random.default_rng(seed)

    def history(self) -> History:
        """Return the trials and the open points as an immutable snapshot."""
        open_points = tuple(p.values for p in (*self.pending, *self.ready))
        return History(tuple(self.trials), open_points, self.directions)

    # -- events ---------------------------------------------------------------------------

    def ask_event(self, new: list[Proposal], given: int, usage: Usage) -> Event:
        """Describe an ask: the points it produced, how many it handed out, and the counts."""
        return {
            "event": "ask",
            "new": [self._dump(p) for p in new],
            "given": given,
            "rng": self.rng.bit_generator.state,
            "proposals": usage.proposals,
            "rejected": usage.rejected,
        }

    def tell_event(
        self,
        values: tuple[Value, ...],
        rewards: tuple[float, ...] | None,
        feedback: str,
        violation: float,
        stderr: float | None = None,
        samples: tuple[float, ...] = (),
        kind: Kind = "search",
    ) -> Event:
        """Describe a tell; `rewards` is ``None`` for a failed evaluation."""
        event = {
            "event": "tell",
            "values": self.space.to_json_values(values),
            "rewards": rewards,
            "feedback": feedback,
            "violation": violation,
        }
        if stderr is not None:
            event["stderr"] = stderr
        if samples:
            event["samples"] = samples
        if kind != "search":
            event["kind"] = kind
        return event

    def snapshot_event(self, usage: Usage, paid: Sequence[tuple[str, Reply]]) -> Event:
        """Describe the whole state at once, with what was spent and what is paid for."""
        return {
            "event": "snapshot",
            "trials": [
                {
                    **{k: v for k, v in vars(t).items() if k != "params"},
                    "values": self.space.to_json_values(t.values),
                }
                for t in self.trials
            ],
            "pending": [self._dump(p) for p in self.pending],
            "ready": [self._dump(p) for p in self.ready],
            "paid": [[digest, reply.to_dict()] for digest, reply in paid],
            "warmed": self.warmed,
            "rng": self.rng.bit_generator.state,
            # as it was before there were any: versions of then read it
            "usage": {k: v for k, v in asdict(usage).items() if k not in _RARE or v},
        }

    def apply(self, event: Event) -> None:
        """Change the state by one event.

        Raises:
            StorageError: The event is of a kind that this version does not know.
        """
        handler = getattr(self, f"_on_{event['event']}", None)
        if handler is None:
            raise StorageError(
                f"unknown event {event['event']!r} in the storage file: it was written by a "
                f"newer llmopt than {__version__}, or by something else; upgrade llmopt"
            )
        handler(event)

    def _on_ask(self, event: Event) -> None:
        new = [self._load(p) for p in event["new"]]
        self.keys.update(self.space.key(p.values) for p in new)
        self.warmed += sum(p.source == "warmup" for p in new)
        queue = [*self.ready, *new]
        self.pending += queue[: event["given"]]
        self.ready = deque(queue[event["given"] :])
        self.rng.bit_generator.state = event["rng"]

    def enqueue_event(self, values: tuple[Value, ...], words: str) -> Event:
        """Describe that a point of the user's is to be handed out next, after others of theirs."""
        return {"event": "enqueue", "values": self.space.to_json_values(values), "words": words}

    def _on_enqueue(self, event: Event) -> None:
        values = self.space.from_json_values(event["values"])
        self.keys.add(self.space.key(values))
        own = sum(p.source == "user" for p in self.ready)
        self.ready.insert(own, Proposal(values, "user", event["words"]))

    def return_event(self, proposals: Sequence[Proposal]) -> Event:
        """Describe that points which were handed out are to be handed out anew."""
        values = [self.space.to_json_values(p.values) for p in proposals]
        return {"event": "return", "values": values}

    def _on_return(self, event: Event) -> None:
        for stored in reversed(event["values"]):
            key = self.space.key(self.space.from_json_values(stored))
            for i in reversed(range(len(self.pending))):
                if self.space.key(self.pending[i].values) == key:
                    self.ready.appendleft(self.pending.pop(i))
                    break

    _on_back = _on_return  # what it was called for a while

    def _on_tell(self, event: Event) -> None:
        values = self.space.from_json_values(event["values"])
        rewards = event["rewards"] and tuple(event["rewards"])
        key = self.space.key(values)
        proposal = Proposal(values, "user")
        for i, pending in enumerate(self.pending):
            if self.space.key(pending.values) == key:
                proposal = self.pending.pop(i)
                break
        self.keys.add(key)
        self._append(
            Trial(
                number=len(self.trials),
                params=self.space.unflatten(values),
                values=values,
                rewards=rewards,
                state="failed" if rewards is None else "complete",
                feedback=event["feedback"],
                source=proposal.source,
                explanation=proposal.explanation,
                prompt_tokens=proposal.prompt_tokens,
                completion_tokens=proposal.completion_tokens,
                seconds=proposal.seconds,
                constraint_violation=event["violation"],
                stderr=event.get("stderr"),
                samples=tuple(event.get("samples", ())),
                kind=event.get("kind", "search"),
                clipped=proposal.clipped,
            )
        )

    def _on_snapshot(self, event: Event) -> None:
        for stored in event["trials"]:
            values = self.space.from_json_values(stored["values"])
            rewards = stored["rewards"] and tuple(stored["rewards"])
            samples = tuple(stored.get("samples", ()))
            fields = {**stored, "values": values, "rewards": rewards, "samples": samples}
            self._append(Trial(params=self.space.unflatten(values), **fields))
        self.pending = [self._load(p) for p in event["pending"]]
        self.ready = deque(self._load(p) for p in event["ready"])
        self.warmed = whole_number("warmed", event["warmed"], 0)
        self.rng.bit_generator.state = event["rng"]
        points = [t.values for t in self.trials]
        points += [p.values for p in (*self.pending, *self.ready)]
        self.keys = {self.space.key(values) for values in points}

    def _append(self, trial: Trial) -> None:
        """Take a trial, which a file may give any content.

        Raises:
            ValueError: A number of it is none, or is out of its range.
        """
        if trial.number != len(self.trials):
            raise ValueError(f"trial {short(trial.number)} follows {len(self.trials)} others")
        one_of("state", trial.state, get_args(State))
        one_of("source", trial.source, get_args(Source))
        one_of("kind", trial.kind, get_args(Kind))
        if (trial.rewards is None) != (trial.state == "failed"):
            raise ValueError(f"a {trial.state} trial with rewards={short(trial.rewards)}")
        rewards = trial.rewards or ()
        if trial.rewards is not None and len(rewards) != len(self.directions):
            raise ValueError(f"{len(rewards)} rewards: expected {len(self.directions)}")
        for reward in (*rewards, *trial.samples):
            number("reward", reward)
        for name in ("constraint_violation", "prompt_tokens", "completion_tokens", "seconds"):
            number(name, getattr(trial, name), 0)
        number("stderr", trial.stderr or 0, 0)
        whole_number("evaluations", trial.evaluations, 1)
        self.trials.append(trial)

    def _dump(self, proposal: Proposal) -> dict[str, Any]:
        return {**vars(proposal), "values": self.space.to_json_values(proposal.values)}

    def _load(self, data: Mapping[str, Any]) -> Proposal:
        return Proposal(**{**data, "values": self.space.from_json_values(data["values"])})
