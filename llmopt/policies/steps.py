"""Record the steps of a policy's episodes as arrays, the data for the model's Python."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.packing import MOST_ARRAYS
from llmopt.policies.episode import LIMIT, TERMINATED, Step
from llmopt.policies.linear import BoundPolicy
from llmopt.util.text import clean

MAX_BYTES = 32 << 20
"""Maximum bytes of one policy's steps; of further episodes only rewards and ends are kept."""

_MOST_EPISODES = 1000  # of which anything is kept
_ENTRIES = 8  # arrays of each episode, those of `info` aside
_NAMES, _NAME = 100, 60  # maximum names of numbers in `info`, and characters of each
_RESET_SECONDS = 5.0
_NONE = np.zeros(0)
_STATES = ("qpos", "qvel")  # MuJoCo's
CUT = "cut off"
_SUM_SO_FAR = re.compile(r"(?<![a-z])(cumul|accum|total|episod|return|sum(?![a-z]))")


@dataclass(eq=False)
class Track:
    """One episode."""

    observations: list[np.ndarray]  # of the environment, one more than steps
    state: dict[str, np.ndarray]  # exact initial state
    actions: list[np.ndarray] = field(default_factory=list)  # as the environment received them
    rewards: list[float] = field(default_factory=list)
    info: dict[str, dict[int, Any]] = field(default_factory=dict)
    end: str = CUT

    @property
    def complete(self) -> bool:
        """Whether all its steps were kept, with observations of one shape."""
        shapes = set(map(np.shape, self.observations))
        return len(self.observations) == len(self.rewards) + 1 and len(shapes) == 1

    def forget(self) -> None:
        """Discard everything but rewards and end."""
        for kept in (self.observations, self.actions, self.info):
            kept.clear()


class StepData:
    """A `Watcher` that records the steps of one policy's episodes, up to `MAX_BYTES`."""

    def __init__(self, most: int = MAX_BYTES) -> None:
        self._most = most
        self._size = 0  # bytes
        self.tracks: list[Track] = []

    def begin(self, observation: Any, env: gym.Env[Any, Any] | None) -> None:
        """Record the initial state of an episode."""
        state = _state(env.unwrapped) if isinstance(env, gym.Env) else {}
        self.tracks.append(Track([_array(observation)], state))

    def __call__(self, step: Step) -> None:
        """Record one step; one after an end begins an episode."""
        if not self.tracks or self.tracks[-1].end != CUT:
            self.begin(step.observation, step.env)
        track = self.tracks[-1]
        if step.terminated or step.truncated:
            track.end = TERMINATED if step.terminated else LIMIT
        track.rewards.append(step.reward)
        if self._size > self._most:
            track.forget()
            return
        track.observations.append(_array(step.following))
        track.actions.append(_array(step.action))
        for name, value in list(step.info.items())[:_NAMES]:
            if isinstance(name, str) and _is_number(value):
                track.info.setdefault(name, {})[len(track.rewards) - 1] = value
        arrays = track.observations[-1], track.actions[-1]
        self._size += sum(array.nbytes for array in arrays) + 8 * (2 + len(step.info))

    def data(self, policy: BoundPolicy | None = None) -> dict[str, Any]:
        """Return the entries for ``tell(data=)``: lists with an array for each initial state.

        `policy` gives the outputs before any clipping; ``None`` for other than linear policies.
        """
        tracks = self.tracks[:_MOST_EPISODES]
        if not tracks:
            return {}
        full = [t for t in tracks if t.complete]
        none = np.zeros((0,))
        room = MOST_ARRAYS // len(tracks) - _ENTRIES  # for arrays of each episode
        names = [*dict.fromkeys(n for t in full for n in t.info)][:room]

        def each(read: Callable[[Track], Any]) -> list[np.ndarray]:
            return [np.asarray(read(t)) if t in full else none for t in tracks]

        def column(name: str) -> list[np.ndarray]:
            return each(lambda t: _column(t.info.get(name, {}), len(t.rewards)))

        entries: dict[str, Any] = {
            "observations": each(lambda t: np.stack(t.observations)),
            "actions": each(lambda t: np.array(t.actions)),
            "rewards": [np.array(t.rewards) for t in tracks],
            "info": {entry_name(n): column(n) for n in names},
            "ended": [t.end for t in tracks],
        }
        if policy is not None and not policy.policy.chooses:
            entries["proposed"] = each(lambda t: _proposed(policy, t.observations))
        for name in tracks[0].state:
            entries[f"initial_{name}"] = [t.state.get(name, none) for t in tracks]
        if len(full) < len(self.tracks):
            entries["note"] = (
                f"steps of {len(full)} of {len(self.tracks)} episodes are kept in full, within "
                f"{self._most >> 20} MiB; of the others only rewards and ends"
            )
        return {name: entry for name, entry in entries.items() if entry or name == "rewards"}


def initial_states(env: gym.Env[Any, Any], seeds: Iterable[int]) -> dict[str, np.ndarray]:
    """Return the first observations of seeds, a row for each, and the exact states if readable.

    It ends after some seconds, with fewer rows: some environments take long to reset.
    """
    steps, ends = StepData(), time.monotonic() + _RESET_SECONDS
    for seed in seeds:
        steps.begin(env.reset(seed=seed)[0], env)
        if time.monotonic() > ends:
            break
    columns = {"observations": [t.observations[0] for t in steps.tracks]}
    columns |= {n: [t.state.get(n, _NONE) for t in steps.tracks] for n in steps.tracks[0].state}
    return {n: np.array(c) for n, c in columns.items() if len(set(map(np.shape, c))) == 1}


def _proposed(bound: BoundPolicy, seen: list[np.ndarray]) -> np.ndarray:
    rows = [bound.scores(row if row.size > 1 else row[0]) for row in seen[:-1]]
    return np.array(rows).reshape(len(rows), bound.policy.n_outputs)


_DATA = (
    'data[k]["observations"][j]: steps + 1 rows, {observations}',
    'data[k]["actions"][j], ["rewards"][j], ["info"][name][j]: a row or number for each step; '
    "{actions}",
    'data[k]["ended"][j]: how the episode ended; ["initial_..."][j]: its exact initial state',
)


_FURTHER = (
    'data[k]["further"], of the first evaluated point alone: up to 200 further initial states, a '
    'row each: ["observations"] and the exact states; no policy is scored on them'
)


def describe_data() -> list[str]:
    """Return the prompt's lines on the entries of `StepData.data` for a linear policy."""
    seen = "of point k from initial state j, in the units and order of the task"
    done = '["proposed"][j]: the outputs of the policy before any clipping or choice'
    return [*(line.format(observations=seen, actions=done) for line in _DATA), _FURTHER]


def describe_code_data() -> list[str]:
    """Return the prompt's lines on the entries of `StepData.data` for a policy as code."""
    seen = "what try k got from start j + 1, flat"
    done = "actions are what the try returned, within the bounds"
    return [line.format(observations=seen, actions=done) for line in _DATA]


def _array(value: Any) -> np.ndarray:
    """Return a flat copy with the environment's own precision."""
    try:
        array = np.array(value).ravel()
    except ValueError:  # of a mapping or a ragged list
        array = np.array([], dtype=object)
    return array if array.dtype.kind in "biuf" else np.zeros(0)


def _state(env: Any) -> dict[str, np.ndarray]:
    """Return an environment's exact state if it can be read: MuJoCo's, or its `state`."""
    data = getattr(env, "data", None)
    values = {name: getattr(data, name, None) for name in _STATES}
    if not all(isinstance(value, np.ndarray) for value in values.values()):
        values = {"state": getattr(env, "state", None)}
    arrays = {name: _array(value) for name, value in values.items() if value is not None}
    return {name: value for name, value in arrays.items() if value.size}


def _is_number(value: Any) -> bool:
    """Whether an array of numbers can hold a value; a larger integer is rather a seed."""
    if not isinstance(value, int | float | np.number | np.bool_):
        return False
    return np.asarray(value).dtype.kind in "biufc"


def _column(values: Mapping[int, Any], length: int) -> np.ndarray:
    if len(values) == length:
        return np.array([values[k] for k in range(length)])
    return np.array([values.get(k, np.nan) for k in range(length)], dtype=float)


def entry_name(name: str) -> str:
    """Convert any name, such as one in `info`, to the name of an entry."""
    text = clean(" ".join(name.split()))
    text = "".join("_" if c in "/\\" or not c.isprintable() else c for c in text)[:_NAME].strip()
    return f"n{text}" if text.isdecimal() or text in ("", ".", "..") else text


def is_sum(name: str) -> bool:
    """Whether the name of a number in `info` indicates a running sum over the episode."""
    return _SUM_SO_FAR.search(name.lower()) is not None
