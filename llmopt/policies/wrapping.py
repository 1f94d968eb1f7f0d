"""Gymnasium wrappers by name, and the default wrappers of an environment.

A wrapper is written as its class in `gymnasium.wrappers` (or ``module:Class``) with its
arguments: ``"ClipAction"``, ``"RescaleObservation=-1,1"``, ``"RepeatAction=4"``. They are applied
from left to right, the innermost first.

`NormalizeObservation` is frozen: its mean and variance are given, or measured once, in seeded
episodes of random policies (`environment.measure_normal`), so that a policy acts the same in every
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

_WIDEST = 1e6  # larger bounds count as none


class WrapperError(LLMOptError, ValueError):
    """The text of a wrapper is invalid, or the wrapper does not fit its environment."""


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
    """Apply wrappers to an environment, the innermost first.

    Mean and variance in `normal` freeze a `NormalizeObservation`; else it keeps measuring, as in
    Gymnasium.
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
                f"the wrapper {text!r} does not fit {title_of(env)} "
                f"({type(error).__name__}: {error}): observations are {env.observation_space}, "
                f"actions {env.action_space}"
            ) from error
        if name == NORMALIZE and normal is not None:
            mean, variance = (np.array(x, dtype=np.float64) for x in normal)
            if mean.shape != (env.observation_space.shape or ()):
                raise WrapperError(f"{title_of(env)}: means of shape {mean.shape} do not fit it")
            measured: Any = env  # Gymnasium's NormalizeObservation
            measured.obs_rms.mean, measured.obs_rms.var = mean, variance
            measured.update_running_mean = False
    return env


def check_wrapper(text: str, also: Sequence[str] = ()) -> None:
    """Raise `WrapperError` unless a text names a wrapper; suggestions include words of `also`."""
    if not isinstance(text, str):
        raise WrapperError(f"wrapper {text!r}: expected a name, such as 'ClipAction'")
    _kind(text.partition("=")[0], also)


def of_numbers(text: str) -> bool:
    """Whether a wrapper is Gymnasium's own and has only numeric arguments.

    Only such a wrapper is read from a file, which is untrusted: another one may name a module to
    import, or a folder to write to (``RecordVideo``).
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
    """Return the new bounds of each observed number; unbounded numbers stay unbounded."""
    space = env.observation_space
    if not isinstance(space, spaces.Box):
        return [np.float64(low), np.float64(high)]
    bounded = np.isfinite(space.low) & np.isfinite(space.high)
    return [np.where(bounded, low, space.low), np.where(bounded, high, space.high)]


def title_of(env: Env) -> str:
    """Return the id of an environment, or its class."""
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


# -- the wrappers of an environment --------------------------------------------------------


def stack(env: gym.Env[Any, Any]) -> list[gym.Wrapper[Any, Any, Any, Any]]:
    """Return the wrappers, the innermost first."""
    layers: list[gym.Wrapper[Any, Any, Any, Any]] = []
    while isinstance(env, gym.Wrapper):
        layers.append(env)
        env = env.env
    return layers[::-1]


def usual_wrappers(env: Env) -> tuple[str, ...]:
    """Return the default wrappers of an environment.

    Observations that are not a ``Box`` are flattened into one. They are scaled to [-1, 1] if every
    number has bounds, else normalized. Bounded actions are scaled to [-1, 1] and clipped before the
    environment receives them.
    """
    found: list[str] = []
    seen = env.observation_space
    if not isinstance(seen, spaces.Box | spaces.Discrete):
        if not seen.is_np_flattenable:
            return ()  # the policy reports a space that cannot be flattened
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

    A `ClipAction` declares every action valid; the space beneath has the bounds.
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
    """Return the flat bounds of the numbers of a space; infinite if there are none."""
    if not isinstance(space, spaces.Box):
        return np.full(1, -np.inf), np.full(1, np.inf)
    return np.ravel(space.low).astype(float), np.ravel(space.high).astype(float)


def scaling(env: Env) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the centre and the size by which an environment's observations are scaled.

    An observation is ``(own - centre) / size``. Returns ``None`` if nothing is scaled.
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


# -- wrappers that are saved with a policy ---------------------------------------------------

_OBSERVING = {
    "FlattenObservation", "DtypeObservation", "RescaleObservation", "NormalizeObservation",
}  # fmt: skip
_ACTING = {"RescaleAction", "ClipAction"}
# They end episodes, only observe, or change rewards: a policy acts the same without them.
_ASIDE = {
    "TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics", "RecordVideo",
    "HumanRendering", "RenderCollection", "TransformReward", "ClipReward", "NormalizeReward",
}  # fmt: skip


class _Shell(gym.Env[Any, Any]):
    """An environment with spaces only: all that a wrapper needs for its arithmetic."""

    def __init__(self, seen: spaces.Space[Any], acts: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = seen, acts


@dataclass(frozen=True)
class Surroundings:
    """The wrappers between an environment and a policy, without the environment itself.

    Only wrappers that are arithmetic on one array are supported. With them a policy acts on the
    base environment's numbers, as in the search.
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


def wrapper_text(wrapper: WrapperSpec) -> str:
    """Return the text of a wrapper in a specification, or raise `SpaceError`."""
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
        f"the wrapper {name} cannot be saved in a policy file, only "
        f"{', '.join(sorted(_OBSERVING | _ACTING))} with numbers. Run the policy in "
        "search.make_env(), or search without this wrapper"
    )
