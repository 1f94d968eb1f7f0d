"""Gymnasium wrappers by name, and the ones that an environment gets where nobody names any.

A wrapper is written as its class in `gymnasium.wrappers` (or ``module:Class``) with its
arguments: ``"ClipAction"``, ``"RescaleObservation=-1,1"``, ``"RepeatAction=4"``. They are put
around an environment from left to right, the innermost first.

`NormalizeObservation` is frozen: its mean and variance are given, or measured once, in seeded
episodes of random policies (`environment.measure_normal`). A policy then means the same in every
episode.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import WrapperSpec

from llmopt.errors import LLMOptError, SpaceError, did_you_mean

Env: TypeAlias = gym.Env[Any, Any]
Normal: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and variance of each observed number."""

NORMALIZE = "NormalizeObservation"
RESCALE = "RescaleObservation=-1,1"
CLIP = "ClipAction"

_WIDEST = 1e6  # bounds beyond it are no bounds


class WrapperError(LLMOptError, ValueError):
    """A wrapper is not written as one, or does not fit its environment."""


class Kept(gym.Wrapper[Any, Any, Any, Any]):
    """Remembers what an environment showed and received last, beneath the wrappers around it."""

    observation: Any = None
    action: Any = None

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the environment."""
        self.observation, info = self.env.reset(**options)
        return self.observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        self.action = action
        found = self.env.step(action)
        self.observation = found[0]
        return found


def wrap(env: Env, wrappers: Sequence[str], normal: Normal | None = None) -> Env:
    """Put wrappers around an environment, the first the innermost.

    With mean and variance in `normal` a `NormalizeObservation` is frozen; else it goes on to
    measure, as Gymnasium does.
    """
    for text in wrappers:
        name, _, rest = text.partition("=")
        kind = _kind(name)
        try:
            arguments: list[Any] = [_argument(a) for a in rest.split(",")] if rest else []
            if name == "RescaleObservation" and len(arguments) == 2:
                arguments = _bounds_to(env, *arguments)
            elif name == "RescaleAction":
                arguments = [np.float32(a) for a in arguments]
            env = kind(env, *arguments)
        except Exception as error:
            raise WrapperError(
                f"the wrapper {text!r} does not go around {title_of(env)} "
                f"({type(error).__name__}: {error}): observations are {env.observation_space}, "
                f"actions {env.action_space}"
            ) from error
        if name == NORMALIZE and normal is not None:
            mean, variance = (np.array(x, dtype=np.float64) for x in normal)
            if mean.shape != (env.observation_space.shape or ()):
                raise WrapperError(f"{title_of(env)}: means of {mean.shape} numbers do not fit it")
            measured: Any = env  # Gymnasium's NormalizeObservation
            measured.obs_rms.mean, measured.obs_rms.var = mean, variance
            measured.update_running_mean = False
    return env


def check_wrapper(text: str, also: Sequence[str] = ()) -> None:
    """Raise `WrapperError` unless a text names a wrapper; `also` are words it might have meant."""
    if not isinstance(text, str):
        raise WrapperError(f"wrapper {text!r}: expected a name, such as 'ClipAction'")
    _kind(text.partition("=")[0], also)


def of_numbers(text: str) -> bool:
    """Whether a wrapper is Gymnasium's own and takes numbers alone.

    Only such a wrapper is taken from a file, which may be somebody else's: another one may name a
    module to import, or a folder to write to (``RecordVideo``).
    """
    name, _, rest = text.partition("=")
    arguments = rest.split(",") if rest else []
    return ":" not in name and not any(isinstance(_argument(a), str) for a in arguments)


def _kind(name: str, also: Sequence[str] = ()) -> Callable[..., Env]:
    module, colon, attribute = name.rpartition(":")
    known = [n for n in dir(gym.wrappers) if n[0].isupper()]
    if not colon and name not in known:
        raise WrapperError(f"unknown wrapper {name!r}: {did_you_mean(name, [*also, *known])}")
    try:
        holder = importlib.import_module(module) if colon else gym.wrappers
        kind: Callable[..., Env] = getattr(holder, attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise WrapperError(f"wrapper {name!r}: it cannot be imported ({error})") from error
    return kind


def _argument(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip()


def _bounds_to(env: Env, low: float, high: float) -> list[Any]:
    """Return the new bounds of each observed number: those without bounds keep having none."""
    space = env.observation_space
    if not isinstance(space, spaces.Box):
        return [np.float64(low), np.float64(high)]
    bounded = np.isfinite(space.low) & np.isfinite(space.high)
    return [np.where(bounded, low, space.low), np.where(bounded, high, space.high)]


def title_of(env: Env) -> str:
    """Return the id of an environment, or its class."""
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


# -- the wrappers that an environment gets -------------------------------------------------


def stack(env: gym.Env[Any, Any]) -> list[gym.Wrapper[Any, Any, Any, Any]]:
    """Return the wrappers from the innermost on."""
    layers: list[gym.Wrapper[Any, Any, Any, Any]] = []
    while isinstance(env, gym.Wrapper):
        layers.append(env)
        env = env.env
    return layers[::-1]


def usual_wrappers(env: Env) -> tuple[str, ...]:
    """Return what an environment is wrapped in where nobody says in what.

    Observations that are no ``Box`` are flattened into one. They are scaled to [-1, 1] where
    every number has bounds, and else normalized. Actions are scaled to [-1, 1] and clipped
    before they act and are charged, where they have bounds.
    """
    found: list[str] = []
    seen = env.observation_space
    if not isinstance(seen, spaces.Box | spaces.Discrete):
        if not seen.is_np_flattenable:
            return ()  # what cannot be flattened is an error of the policy, which says so
        found.append("FlattenObservation")
        seen = spaces.flatten_space(seen)
    if isinstance(seen, spaces.Box):
        if not np.issubdtype(seen.dtype, np.floating):
            found.append("DtypeObservation=float32")
        low, high = seen.low.astype(float), seen.high.astype(float)
        if not ((low > -_WIDEST) & (high < _WIDEST) & (low < high)).all():
            found.append(NORMALIZE)
        elif not ((low == -1) & (high == 1)).all():
            found.append(RESCALE)
    acts = env.action_space
    if isinstance(acts, spaces.Box) and np.issubdtype(acts.dtype, np.floating):
        low, high = acts.low.astype(float), acts.high.astype(float)
        if ((low > -_WIDEST) & (high < _WIDEST) & (low < high)).all():
            if not ((low == -1) & (high == 1)).all():
                found.append("RescaleAction=-1,1")
            found.append(CLIP)
    return tuple(found)


def acting_space(env: Env) -> spaces.Space[Any]:
    """Return the space of the actions that an environment does not clip.

    A `ClipAction` calls every action a valid one; the bounds to which it clips are beneath.
    """
    inside = env
    while isinstance(inside, gym.Wrapper):
        if isinstance(inside, gym.wrappers.ClipAction):
            return inside.env.action_space
        if inside.action_space is not inside.env.action_space and (
            inside.action_space != inside.env.action_space
        ):
            break
        inside = inside.env
    return env.action_space


def bounds_of(space: spaces.Space[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of the numbers of a space, flat; infinite ones where it has none."""
    if not isinstance(space, spaces.Box):
        return np.full(1, -np.inf), np.full(1, np.inf)
    return np.ravel(space.low).astype(float), np.ravel(space.high).astype(float)


def scaling(env: Env) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the centre and the size by which an environment's observations are scaled.

    What is observed is ``(own - centre) / size``; ``None`` where nothing is scaled.
    """
    kinds = gym.wrappers.RescaleObservation | gym.wrappers.NormalizeObservation
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
    """Return an observation after an environment's wrappers, the innermost first."""
    for layer in stack(env):
        if isinstance(layer, gym.ObservationWrapper):
            observation = layer.observation(observation)
    return observation


def done_through(env: Env, action: Any) -> Any:
    """Return an action before an environment's wrappers, the outermost first."""
    for layer in reversed(stack(env)):
        if isinstance(layer, gym.ActionWrapper):
            action = layer.action(action)
    return action


# -- wrappers that travel with a policy ------------------------------------------------------

_OBSERVING = {
    "FlattenObservation", "DtypeObservation", "RescaleObservation", "NormalizeObservation",
}  # fmt: skip
_ACTING = {"RescaleAction", "ClipAction"}
# They end episodes, look on, or change rewards: a policy acts in the same way without them.
_ASIDE = {
    "TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics", "RecordVideo",
    "HumanRendering", "RenderCollection", "TransformReward", "ClipReward", "NormalizeReward",
}  # fmt: skip


class _Shell(gym.Env[Any, Any]):
    """What a wrapper needs to know of an environment to do its arithmetic."""

    def __init__(self, seen: spaces.Space[Any], acts: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = seen, acts


@dataclass(frozen=True)
class Surroundings:
    """The wrappers between an environment of such spaces and a policy, without the environment.

    Only wrappers that are arithmetic on one array can be without it. With them a policy acts on the
    environment's own numbers, as it did in the search.
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    wrappers: tuple[str, ...]
    normal: Normal | None = None
    env: Env = field(init=False, repr=False, compare=False)  # one that only has the spaces

    def __post_init__(self) -> None:
        kept = tuple(text for text in self.wrappers if _name(text) not in _ASIDE)
        for text in kept:
            frozen = _name(text) != NORMALIZE or self.normal is not None
            if _name(text) not in _OBSERVING | _ACTING or not frozen:
                raise _cannot_travel(_name(text))
        if self.normal is not None and not all(
            math.isfinite(m) and v >= 0 for m, v in zip(*self.normal, strict=True)
        ):
            raise SpaceError(f"means and variances {self.normal}: expected finite numbers")
        env = wrap(_Shell(self.observation_space, self.action_space), kept, self.normal)
        object.__setattr__(self, "wrappers", kept)
        object.__setattr__(self, "env", env)


def _name(text: str) -> str:
    return text.partition("=")[0]


def text_of(wrapper: WrapperSpec) -> str:
    """Return a wrapper of a specification as it is written, or raise `SpaceError`."""
    own = wrapper.entry_point.startswith("gymnasium.wrappers.") and wrapper.name != NORMALIZE
    arguments = []
    for value in (wrapper.kwargs or {}).values() if own else ():
        if isinstance(value, type | np.dtype):
            arguments.append(np.dtype(value).name)
        elif np.issubdtype(np.asarray(value).dtype, np.number) and np.ptp(value) == 0:
            arguments.append(f"{np.ravel(value)[0]!s}")
        else:
            own = False
    if not own and wrapper.name not in _ASIDE:
        raise _cannot_travel(wrapper.name)
    return f"{wrapper.name}={','.join(arguments)}".rstrip("=")


def _cannot_travel(name: str) -> SpaceError:
    return SpaceError(
        f"the wrapper {name} cannot travel in a policy's file: a file holds "
        f"{', '.join(sorted(_OBSERVING | _ACTING))}, with numbers. Let the policy act in "
        "search.make_env(), or search without this wrapper"
    )
