"""Record the steps of a policy's episodes as arrays, the data for the model's Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.packing import MOST_ARRAYS
from llmopt.policies.episode import LIMIT, TERMINATED, Step
from llmopt.policies.linear import BoundPolicy
from llmopt.policies.wrapping import Kept, stack
from llmopt.util.text import clean

MAX_BYTES = 32 << 20
"""Maximum bytes of one policy's steps; of further episodes only rewards and ends are kept."""

_MOST_EPISODES = 1000  # of which anything is kept
_ENTRIES = 8  # arrays of each episode, those of `info` aside
_NAMES, _NAME = 100, 60  # maximum names of numbers in `info`, and characters of each
_STATES = ("qpos", "qvel")  # MuJoCo's
CUT = "cut off"


@dataclass(eq=False)
class _Track:
    observations: list[np.ndarray]  # of the base environment, one more than steps
    state: dict[str, np.ndarray]  # exact initial state
    seen: list[np.ndarray] = field(default_factory=list)  # by the policy
    actions: list[np.ndarray] = field(default_factory=list)  # as the environment received them
    rewards: list[float] = field(default_factory=list)
    info: dict[str, dict[int, Any]] = field(default_factory=dict)
    end: str = CUT

    def forget(self) -> None:
        """Discard everything but rewards and end."""
        for kept in (self.observations, self.seen, self.actions):
            kept.clear()
        self.info.clear()


class StepData:
    """A `Watcher` that records the steps of one policy's episodes, up to `MAX_BYTES`.

    `policy` gives the outputs before any clipping; ``None`` for other than linear policies.
    """

    def __init__(self, policy: BoundPolicy | None = None, most: int = MAX_BYTES) -> None:
        self._policy, self._most = policy, most
        self._tracks: list[_Track] = []
        self._size = 0  # bytes
        self._layer: Kept | None = None

    def begin(self, observation: Any, env: gym.Env[Any, Any]) -> None:
        """Record the initial state of an episode."""
        self._layer = next((layer for layer in stack(env) if isinstance(layer, Kept)), None)
        track = _Track([self._raw(observation)], _state(env.unwrapped))
        if self._layer is not None:
            track.seen.append(_array(observation))
        self._tracks.append(track)

    def __call__(self, step: Step) -> None:
        """Record one step."""
        track, layer = self._tracks[-1], self._layer
        if step.terminated or step.truncated:
            track.end = TERMINATED if step.terminated else LIMIT
        track.rewards.append(step.reward)
        if self._size > self._most:
            track.forget()
            return
        track.observations.append(self._raw(step.following))
        track.actions.append(_array(step.action if layer is None else layer.action))
        if layer is not None:
            track.seen.append(_array(step.following))
        for name, value in list(step.info.items())[:_NAMES]:
            if isinstance(name, str) and _is_number(value):
                track.info.setdefault(name, {})[len(track.rewards) - 1] = value
        arrays = (*track.observations[-1:], *track.actions[-1:], *track.seen[-1:])
        self._size += sum(array.nbytes for array in arrays) + 8 * (2 + len(step.info))

    def _raw(self, observation: Any) -> np.ndarray:
        """Return the environment's observation, or the policy's if that is not an array."""
        if self._layer is not None and (raw := _array(self._layer.observation)).size:
            return raw
        return _array(observation)

    def data(self) -> dict[str, Any]:
        """Return the entries for ``tell(data=)``: lists with an array for each initial state."""
        tracks = self._tracks[:_MOST_EPISODES]
        if not tracks:
            return {}
        full = [
            t
            for t in tracks
            if len(t.observations) == len(t.rewards) + 1
            and len(set(map(np.shape, t.observations))) == 1
        ]
        none = np.zeros((0,))
        room = MOST_ARRAYS // len(tracks) - _ENTRIES  # for arrays of each episode
        names = [*dict.fromkeys(n for t in full for n in t.info)][:room]

        def each(read: Callable[[_Track], Any]) -> list[np.ndarray]:
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
        bound = self._policy
        if bound is not None and not bound.policy.chooses:
            entries["proposed"] = each(lambda t: _proposed(bound, t.seen or t.observations))
        if any(t.seen for t in full):
            entries["scaled"] = each(lambda t: np.stack(t.seen))
        for name in tracks[0].state:
            entries[f"initial_{name}"] = [t.state.get(name, none) for t in tracks]
        if len(full) < len(self._tracks):
            entries["note"] = (
                f"steps of {len(full)} of {len(self._tracks)} episodes are kept in full, within "
                f"{self._most >> 20} MiB; of the others only rewards and ends"
            )
        return {name: entry for name, entry in entries.items() if entry or name == "rewards"}


def _proposed(bound: BoundPolicy, seen: list[np.ndarray]) -> np.ndarray:
    rows = [bound.scores(row if row.size > 1 else row[0]) for row in seen[:-1]]
    return np.array(rows).reshape(len(rows), bound.policy.n_outputs)


def describe_data(scaled: bool) -> list[str]:
    """Return the prompt's lines on the entries of `StepData.data` for a linear policy."""
    seen = "in the units and order of the task"
    seen = f'{seen}; "scaled"[j]: as the policy sees them' if scaled else seen
    return [
        f'data[k]["observations"][j]: steps + 1 rows, of point k from initial state j, {seen}',
        'data[k]["actions"][j], ["rewards"][j], ["info"][name][j]: a row or number for each step; '
        '["proposed"][j]: the outputs of the policy before any clipping or choice',
        'data[k]["ended"][j]: how the episode ended; ["initial_..."][j]: its exact initial state',
    ]


def describe_code_data() -> list[str]:
    """Return the prompt's lines on the entries of `StepData.data` for a policy as code."""
    return [
        'data[k]["observations"][j]: steps + 1 rows, what try k got from initial state j, flat',
        'data[k]["actions"][j], ["rewards"][j], ["info"][name][j]: a row or number for each step; '
        "actions are what the try returned, within the bounds",
        'data[k]["ended"][j]: how the episode ended; ["initial_..."][j]: its exact initial state',
    ]


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
    found = {name: getattr(data, name, None) for name in _STATES}
    if not all(isinstance(value, np.ndarray) for value in found.values()):
        found = {"state": getattr(env, "state", None)}
    arrays = {name: _array(value) for name, value in found.items() if value is not None}
    return {name: value for name, value in arrays.items() if value.size}


def _is_number(value: Any) -> bool:
    """Whether an array of numbers can hold a value; a larger integer is rather a seed."""
    known = isinstance(value, int | float | np.number | np.bool_)
    return known and np.asarray(value).dtype.kind in "biufc"


def _column(values: Mapping[int, Any], length: int) -> np.ndarray:
    if len(values) == length:
        return np.array([values[k] for k in range(length)])
    return np.array([values.get(k, np.nan) for k in range(length)], dtype=float)


def entry_name(name: str) -> str:
    """Convert any name, such as one in `info`, to the name of an entry."""
    text = clean(" ".join(name.split()))
    text = "".join("_" if c in "/\\" or not c.isprintable() else c for c in text)[:_NAME].strip()
    return f"n{text}" if text.isdecimal() or text in ("", ".", "..") else text


class Together:
    """Passes each step to several watchers."""

    def __init__(self, *watchers: Any) -> None:
        self._watchers = watchers

    def begin(self, observation: Any, env: gym.Env[Any, Any]) -> None:
        """Call the watchers' `begin`, if they have one."""
        for watcher in self._watchers:
            if isinstance(watcher, StepData):
                watcher.begin(observation, env)

    def __call__(self, step: Step) -> None:
        """Call all watchers."""
        for watcher in self._watchers:
            watcher(step)
