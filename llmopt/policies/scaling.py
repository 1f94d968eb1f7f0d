"""Scale the observations and actions of an environment to a size of about 1.

`llmopt run` searches scaled policies. Observations that are not a ``Box`` are flattened. They are
scaled to [-1, 1] if every number has bounds, else normalized by a mean and a variance that do not
change. Bounded actions are scaled to [-1, 1] and clipped before the environment receives them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import (
    ClipAction,
    DtypeObservation,
    FlattenObservation,
    NormalizeObservation,
    RescaleAction,
    RescaleObservation,
)

from llmopt.errors import SpaceError

Env: TypeAlias = gym.Env[Any, Any]
Normal: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and variance of each observed number."""

_WIDEST = 1e6  # larger bounds count as none

NO_ARGUMENTS = ("render_mode", "max_episode_steps")
"""Keyword arguments of ``gymnasium.make`` that do not change what an environment does."""


def scale(env: Env, normal: Normal | None = None) -> Env:
    """Wrap an environment in its scaling; without `normal`, a normalization keeps measuring."""
    seen = env.observation_space
    if not isinstance(seen, spaces.Box | spaces.Discrete) and seen.is_np_flattenable:
        env = FlattenObservation(env)
    seen, acts = env.observation_space, env.action_space
    if isinstance(seen, spaces.Box):
        if not np.issubdtype(seen.dtype, np.floating):
            env = DtypeObservation(env, "float32")
        inner: Any = env.observation_space
        if not _bounded(seen):
            env = NormalizeObservation(env)
            if normal is not None:
                _freeze(env, normal)
        elif not _is_unit(seen):
            env = RescaleObservation(env, np.full_like(inner.low, -1), np.full_like(inner.low, 1))
    if isinstance(acts, spaces.Box) and np.issubdtype(acts.dtype, np.floating) and _bounded(acts):
        if not _is_unit(acts):
            env = RescaleAction(env, np.float32(-1), np.float32(1))
        env = ClipAction(env)
    return env


def _bounded(space: spaces.Box) -> bool:
    low, high = space.low.astype(float), space.high.astype(float)
    return bool(((low > -_WIDEST) & (high < _WIDEST) & (low < high)).all())


def _is_unit(space: spaces.Box) -> bool:
    return bool(((space.low == -1) & (space.high == 1)).all())


def _freeze(layer: Any, normal: Normal) -> None:
    mean, variance = (np.array(numbers, dtype=np.float64) for numbers in normal)
    if mean.shape != (layer.observation_space.shape or ()):
        raise SpaceError(f"{title_of(layer)}: means of shape {mean.shape} do not fit it")
    layer.obs_rms.mean, layer.obs_rms.var = mean, variance
    layer.update_running_mean = False


def normalizes(env: Env) -> bool:
    """Whether the scaling of an environment needs a mean and a variance."""
    return any(isinstance(layer, NormalizeObservation) for layer in stack(scale(env)))


# -- the wrappers of an environment --------------------------------------------------------


def title_of(env: Env) -> str:
    """Return the id of an environment, or its class."""
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def without_address(value: Any) -> str:
    """Return a value's representation in one line, without addresses: they change in each run."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", " ".join(repr(value).split()))


def stack(env: Env) -> list[gym.Wrapper[Any, Any, Any, Any]]:
    """Return the wrappers, the innermost first."""
    layers: list[gym.Wrapper[Any, Any, Any, Any]] = []
    while isinstance(env, gym.Wrapper):
        layers.append(env)
        env = env.env
    return layers[::-1]


def acting_space(env: Env) -> spaces.Space[Any]:
    """Return the space of the actions that an environment does not clip.

    A `ClipAction` declares every action valid; the space beneath has the bounds.
    """
    inside = env
    while isinstance(inside, gym.Wrapper):
        if isinstance(inside, ClipAction):
            return inside.env.action_space
        if inside.action_space is not inside.env.action_space and (
            inside.action_space != inside.env.action_space
        ):
            break
        inside = inside.env
    return env.action_space


def bounds_of(space: spaces.Space[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the flat bounds of the numbers of a space; infinite if there are none."""
    if not isinstance(space, spaces.Box):
        return np.full(1, -np.inf), np.full(1, np.inf)
    return np.ravel(space.low).astype(float), np.ravel(space.high).astype(float)


def centre_and_size(env: Env) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the centre and the size by which an environment's observations are scaled.

    An observation is ``(own - centre) / size``. Returns ``None`` if nothing is scaled.
    """
    kinds = RescaleObservation | NormalizeObservation
    maps: list[Any] = [layer for layer in stack(env) if isinstance(layer, kinds)]
    if not maps:
        return None
    shape = env.observation_space.shape or ()
    zero, one = np.zeros(shape), np.ones(shape)
    for layer in maps:
        zero, one = layer.observation(zero), layer.observation(one)
    slope = np.asarray(one, dtype=np.float64) - zero
    size = np.divide(1.0, slope, out=np.ones(shape), where=slope != 0)
    return np.ravel(-zero * size), np.ravel(size)


def seen_through(env: Env, observation: Any) -> Any:
    """Apply an environment's wrappers to an observation, the innermost first."""
    for layer in stack(env):
        if isinstance(layer, gym.ObservationWrapper):
            observation = layer.observation(observation)
    return observation


def done_through(env: Env, action: Any) -> Any:
    """Apply an environment's wrappers to an action, the outermost first."""
    for layer in reversed(stack(env)):
        if isinstance(layer, gym.ActionWrapper):
            action = layer.action(action)
    return action


class _Shell(gym.Env[Any, Any]):
    """An environment with spaces only: all that a wrapper needs for its arithmetic."""

    def __init__(self, seen: spaces.Space[Any], acts: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = seen, acts


@dataclass(frozen=True)
class Scaling:
    """The scaling between an environment and a policy, without the environment itself.

    With it a policy acts on the environment's own numbers, as in the search.
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    normal: Normal | None = None
    env: Env = field(init=False, repr=False, compare=False)  # one that only has the spaces

    def __post_init__(self) -> None:
        shell = _Shell(self.observation_space, self.action_space)
        if self.normal is None and normalizes(shell):
            raise SpaceError("no means and variances: expected one for each observed number")
        if self.normal is not None and not all(
            math.isfinite(m) and v >= 0 for m, v in zip(*self.normal, strict=True)
        ):
            raise SpaceError(f"means and variances {self.normal}: expected finite numbers")
        object.__setattr__(self, "env", scale(shell, self.normal))
