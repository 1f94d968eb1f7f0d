"""Record the episodes of one evaluation for the probes of a report."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

from llmopt.errors import SpaceError
from llmopt.policies.episode import LIMIT, TERMINATED, Step
from llmopt.policies.evaluation import Evaluation
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.words.physics import touching
from llmopt.util.arguments import finite
from llmopt.util.text import clean

_WATCHED = 400  # with larger observations (pictures), only rewards and actions are recorded
_NAME, _FACTS = 100, 100  # maximum characters of a name in `info`, and number of names, recorded
_PARTS = ("reward", "cost", "penalty", "bonus")  # parts of names in `info` of reward terms
_COSTS = ("cost", "penalty")
_FLAGS = ("is_success", "success")
SUCCESS, FAILURE = "success", "failure"
# and of running sums
_SO_FAR = re.compile(r"(?<![a-z])(cumul|accum|total|episod|return|sum(?![a-z]))")


@dataclass
class Part:
    """A reward term in `info`: its sum over the episode, and its last value.

    `running`: at every step so far, its value was the sum of the rewards up to that step.
    """

    sum: float = 0.0
    last: float = 0.0
    running: bool = True

    def add(self, value: float, total: float) -> None:
        """Record the value of a step; `total` is the return so far."""
        self.sum, self.last = self.sum + value, value
        self.running &= math.isclose(value, total, rel_tol=1e-6, abs_tol=1e-9)


@dataclass
class Track:
    """One episode."""

    seen: list[Any] = field(default_factory=list)  # empty for pictures
    done: list[np.ndarray] = field(default_factory=list)  # flat
    rewards: list[float] = field(default_factory=list)
    touched: list[frozenset[str]] = field(default_factory=list)
    parts: dict[str, Part] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)  # last values of other numbers of `info`
    last: Any = None  # the observation after the last step
    end: str = ""  # how the episode ended; empty if it has not
    total: float = 0.0  # the return so far

    def note(self, info: Mapping[str, Any]) -> None:
        """Record the numbers in an `info`, which may hold anything under any name."""
        for name, value in _named(info):
            is_part = any(p in name.lower() for p in _PARTS)
            for inner, part in _named(value) if is_part else ():
                self._add_part(inner, finite(part))
            if is_part:
                self._add_part(name, finite(value))
            elif (number := finite(value)) is not None and _room(self.facts, name):
                self.facts[name] = number

    @property
    def judged(self) -> str:
        """Whether the environment ended the episode in success or in failure; empty if unclear.

        A flag in `info` decides; else the last reward, compared with the earlier ones.
        """
        if self.end != TERMINATED:
            return ""
        flags = [self.facts[name] for name in _FLAGS if name in self.facts]
        if flags:
            return SUCCESS if flags[0] else FAILURE
        *before, last = self.rewards
        if len(before) < 2:
            return ""
        low, high, middle = min(before), max(before), float(np.median(before))
        beyond = 2 * (high - low)
        if last > high + beyond or (low == high == last < 0):
            return SUCCESS  # a final bonus, or a constant cost per step
        return FAILURE if last < low - beyond or middle > 0 else ""

    def _add_part(self, name: str, number: float | None) -> None:
        if number is not None and _room(self.parts, name):
            self.parts.setdefault(name, Part()).add(number, self.total)


class Recording:
    """The episodes of one evaluation; a `Watcher`."""

    def __init__(
        self,
        policy: LinearPolicy,
        observations: Sequence[str] = (),
        actions: Sequence[str] = (),
        *,
        contacts: bool = False,
    ) -> None:
        self.policy = policy
        self.table = isinstance(policy.observation_space, spaces.Discrete)  # of states
        self.inputs = list(observations) or [f"o{i}" for i in range(policy.n_inputs)]
        self.outputs = list(actions) or [f"a{j}" for j in range(policy.n_outputs)]
        wanted = (policy.n_inputs, policy.n_outputs)
        if (len(self.inputs), len(self.outputs)) != wanted:
            raise SpaceError(
                f"got names of {len(self.inputs)} observed numbers and {len(self.outputs)} "
                f"actions, expected {wanted[0]} and {wanted[1]}, or none"
            )
        self._contacts = contacts
        self._tracks: list[Track] = []
        self.evaluation = Evaluation((), ())  # the outcome, once it is known

    def __call__(self, step: Step) -> None:
        """Record one step."""
        while len(self._tracks) <= step.episode:
            self._tracks.append(Track())
        track = self._tracks[step.episode]
        if self.table or self.policy.n_inputs <= _WATCHED:
            track.seen.append(self._copy(step.observation))
            track.last = self._copy(step.following)
        track.done.append(np.array(step.action, dtype=np.float64).ravel())
        track.rewards.append(step.reward)
        track.total += step.reward
        if self._contacts and step.env is not None:
            track.touched.append(touching(step.env.unwrapped))
        track.end = TERMINATED if step.terminated else LIMIT if step.truncated else ""
        track.note(step.info)

    def _copy(self, observation: Any) -> Any:
        # Copy: an environment may write its next observation into the same array.
        if self.table:
            return int(observation)
        try:
            return np.array(observation, dtype=np.float64).ravel()
        except (TypeError, ValueError):  # not numbers: the policy reports the fault
            return np.full(self.policy.n_inputs, np.nan)

    @property
    def episodes(self) -> list[Track]:
        """The episodes with at least one step."""
        return [track for track in self._tracks if track.rewards]

    @property
    def shows_numbers(self) -> bool:
        """Whether observed numbers were recorded."""
        episodes = self.episodes
        return bool(not self.table and episodes and episodes[0].seen)

    @property
    def bodies(self) -> list[str]:
        """The names of all bodies that ever touched the ground."""
        return sorted({name for e in self.episodes for touched in e.touched for name in touched})

    def reward_parts(self) -> dict[str, np.ndarray]:
        """Return the terms of each episode's return by name; they sum to the return.

        A cost that `info` gives as a positive number is negated; "the rest" is the remainder.
        """
        totals = np.array([e.total for e in self.episodes])
        none = Part()
        named = {
            name: np.array([e.parts.get(name, none).sum for e in self.episodes])
            for name in kind_names(self.episodes, "parts")
            if not self.summed_already(name)
        }
        turned = {
            name: -sums if any(p in name.lower() for p in _COSTS) and sums.min() >= 0 else sums
            for name, sums in named.items()
        }
        for table in (named, turned):
            found = {n: sums for n, sums in table.items() if not _same(sums, totals)}
            if not found or _same(sum(found.values()), totals):
                return found
        return {**found, "the rest": totals - sum(found.values())}

    def summed_already(self, name: str) -> bool:
        """Whether a term is a running sum, so that only its last value counts."""
        parts = [e.parts[name] for e in self.episodes if name in e.parts]
        if is_sum(name):
            return True
        return all(p.running for p in parts) and any(p.sum != p.last for p in parts)


def _same(sums: Any, totals: np.ndarray) -> bool:
    return bool(np.allclose(sums, totals, rtol=1e-4, atol=1e-6 * (1 + np.abs(totals).max())))


def is_sum(name: str) -> bool:
    """Whether the name of a number in `info` indicates a running sum over the episode."""
    return _SO_FAR.search(name.lower()) is not None


def kind_names(tracks: Sequence[Track], kind: str) -> list[str]:
    """Return the names of all parts or facts, in the order of their first appearance."""
    return list(dict.fromkeys(name for track in tracks for name in getattr(track, kind)))


def _named(info: Any) -> list[tuple[str, Any]]:
    if not isinstance(info, Mapping):
        return []
    items = ((k, v) for k, v in info.items() if isinstance(k, str) and len(k) <= _NAME)
    return [(clean(" ".join(k.split())), v) for k, v in items]


def _room(noted: Mapping[str, Any], name: str) -> bool:
    return name in noted or len(noted) < _FACTS
