"""What stands between an environment and a policy, in a form that a policy's file can hold.

A wrapper that scales or flattens observations, or scales or clips actions, is arithmetic on one
array: it becomes a `Layer`, and a policy that was read from its file acts on the environment's own
numbers, as it did in the search. A wrapper that remembers, waits or repeats cannot travel so.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from llmopt.errors import SpaceError

MAX_SIZE = 10_000_000
"""Numbers of one observation or action in a file."""

# They end episodes, look on, or change rewards: a policy acts in the same way without them.
_ASIDE = {
    "TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics", "RecordVideo",
    "HumanRendering", "RenderCollection", "TransformReward", "ClipReward", "NormalizeReward",
}  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """One function of an observation, or of an action."""

    data: Mapping[str, Any]  # what it is, in JSON's types
    apply: Callable[[Any], Any]

    def __call__(self, value: Any) -> Any:
        """Return the observation, or the action, after this layer."""
        return self.apply(value)


def layers_of(env: gym.Env[Any, Any], count: int) -> tuple[tuple[Layer, ...], tuple[Layer, ...]]:
    """Return the `count` outermost wrappers of an environment as layers.

    First those that an observation passes, then those that an action passes, in this order.
    """
    observing: list[Layer] = []
    acting: list[Layer] = []
    for _ in range(count):
        if not isinstance(env, gym.Wrapper):
            break
        name, kind = type(env).__name__, type(env)
        own = kind is getattr(gym.wrappers, name, None)
        if own and name in _READ:
            watched, data = _READ[name](env)
            (observing if watched else acting).append(layer(data))
        elif not (own and name in _ASIDE):
            raise SpaceError(
                f"the wrapper {name} cannot travel in a policy's file: a file holds "
                f"{', '.join(sorted(_READ))}. Let the policy act in search.make_env(), or search "
                "without this wrapper"
            )
        env = env.env
    return tuple(observing[::-1]), tuple(acting)


def layer(data: Mapping[str, Any]) -> Layer:
    """Return the layer that its data describe."""
    kind = data["kind"]
    if kind == "flatten":
        space = space_from_dict(data["space"])
        return Layer(data, lambda seen: spaces.flatten(space, seen))
    if kind == "reshape":
        shape = _shape(data["shape"])
        return Layer(data, lambda seen: np.reshape(seen, shape))
    if kind == "dtype":
        dtype = _dtype(data["dtype"])
        return Layer(data, lambda seen: dtype.type(seen))
    if kind == "normalize":
        mean, variance = _array(data["mean"]), _array(data["variance"])
        size = np.sqrt(variance + float(data["epsilon"]))
        if not (size > 0).all():
            raise ValueError("a variance is not positive")
        return Layer(data, lambda seen: np.float32((seen - mean) / size))
    first, second = _array(data["first"]), _array(data["second"])
    if kind == "scale":
        return Layer(data, lambda seen: first * seen + second)
    if kind == "unscale":
        if not first.all():
            raise ValueError("a scale is 0")
        return Layer(data, lambda action: (action - second) / first)
    if kind == "clip":
        return Layer(data, lambda action: np.clip(action, first, second))
    raise ValueError(f"a layer of kind {kind!r}")


def _scale(low: Any, high: Any, box: spaces.Box) -> dict[str, Any]:
    """Return slope and constant by which Gymnasium maps a box to other bounds, to the last bit."""
    low, high = np.broadcast_to(low, box.shape), np.broadcast_to(high, box.shape)
    has_low, has_high = np.isfinite(low), np.isfinite(high)
    both = has_low & has_high
    wide = getattr(np, "float128", np.float64)
    slope, constant = np.ones(box.shape, box.dtype), np.zeros(box.shape, box.dtype)
    slope[both] = (high[both] - low[both]) / (
        box.high[both].astype(wide) - box.low[both].astype(wide)
    )
    constant[has_high] = high[has_high] - box.high[has_high]
    constant[has_low] = slope[has_low] * -box.low[has_low] + low[has_low]
    return {"first": _array_to_dict(slope), "second": _array_to_dict(constant)}


def _rescale(env: Any, kind: str, box: spaces.Box, low: str, high: str) -> dict[str, Any]:
    saved = env._saved_kwargs
    return {"kind": kind, **_scale(saved[low], saved[high], box)}


def _normalize(env: Any) -> dict[str, Any]:
    if env.update_running_mean:
        raise SpaceError(
            "the wrapper NormalizeObservation goes on to measure, so that a policy in it means "
            'something else at every step: name it in wrappers=["NormalizeObservation"], which '
            "freezes it"
        )
    mean, variance = _array_to_dict(env.obs_rms.mean), _array_to_dict(env.obs_rms.var)
    epsilon = float(env.epsilon)
    return {"kind": "normalize", "mean": mean, "variance": variance, "epsilon": epsilon}


def _clip(env: Any) -> dict[str, Any]:
    box = env.env.action_space
    return {"kind": "clip", "first": _array_to_dict(box.low), "second": _array_to_dict(box.high)}


# Wrapper -> whether it is of observations, and its data.
_READ: dict[str, Callable[[Any], tuple[bool, dict[str, Any]]]] = {
    "FlattenObservation": lambda env: (
        True,
        {"kind": "flatten", "space": space_to_dict(env.env.observation_space)},
    ),
    "ReshapeObservation": lambda env: (True, {"kind": "reshape", "shape": list(env.shape)}),
    "DtypeObservation": lambda env: (
        True,
        {"kind": "dtype", "dtype": str(np.dtype(env.observation_space.dtype))},
    ),
    "RescaleObservation": lambda env: (
        True,
        _rescale(env, "scale", env.env.observation_space, "min_obs", "max_obs"),
    ),
    "NormalizeObservation": lambda env: (True, _normalize(env)),
    "RescaleAction": lambda env: (
        False,
        _rescale(env, "unscale", env.env.action_space, "min_action", "max_action"),
    ),
    "ClipAction": lambda env: (False, _clip(env)),
}


# -- spaces and arrays in JSON ----------------------------------------------------------------


def space_to_dict(space: spaces.Space[Any]) -> dict[str, Any]:
    """Return a space in JSON's types."""
    if isinstance(space, spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.Box):
        return {
            "kind": "box",
            "shape": list(space.shape),
            "dtype": str(space.dtype),
            "low": _bounds(space.low),
            "high": _bounds(space.high),
        }
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "binary", "shape": list(space.shape)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "discretes", "n": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.Dict):
        return {"kind": "dict", "spaces": [[k, space_to_dict(v)] for k, v in space.items()]}
    if isinstance(space, spaces.Tuple):
        return {"kind": "tuple", "spaces": [space_to_dict(part) for part in space]}
    raise SpaceError(f"{space} cannot travel in a policy's file: it is no Box, Discrete, Dict, …")


def space_from_dict(data: Mapping[str, Any]) -> spaces.Space[Any]:
    """Return the space that its data describe."""
    kind = data["kind"]
    if kind == "discrete":
        return spaces.Discrete(_size(data["n"]), start=int(data["start"]))
    if kind == "binary":
        return spaces.MultiBinary(_shape(data["shape"]))
    if kind == "discretes":
        counts = np.asarray(data["n"], dtype=np.int64)
        _size(int(counts.sum()))
        return spaces.MultiDiscrete(counts, start=np.asarray(data["start"], dtype=np.int64))
    if kind == "dict":
        # An ordered one: Gymnasium sorts the keys of any other.
        return spaces.Dict(OrderedDict((str(k), space_from_dict(s)) for k, s in data["spaces"]))
    if kind == "tuple":
        return spaces.Tuple([space_from_dict(part) for part in data["spaces"]])
    if kind != "box":
        raise ValueError(f"space of kind {kind!r}: expected box or discrete")
    shape, dtype = _shape(data["shape"]), _dtype(data["dtype"])
    low, high = (_spread(data[name], shape) for name in ("low", "high"))
    return spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype=dtype.type)


def _size(number: Any) -> int:
    if not 0 < int(number) <= MAX_SIZE:
        raise ValueError(f"a space of {number} numbers")
    return int(number)


def _shape(numbers: Any) -> tuple[int, ...]:
    shape = tuple(int(n) for n in numbers)
    if any(n < 0 for n in shape) or math.prod(shape) > MAX_SIZE:
        raise ValueError(f"a space of shape {shape}")
    return shape


def _dtype(name: Any) -> np.dtype[Any]:
    dtype = np.dtype(str(name))
    if dtype.kind not in "fiub":
        raise ValueError(f"a space of numbers of type {dtype}")
    return dtype


def _bounds(values: np.ndarray) -> Any:
    """Return one number where all are equal, else a list; what is infinite as text."""
    flat = [x if math.isfinite(x) else str(x) for x in np.ravel(values).astype(float).tolist()]
    return flat[0] if len(set(flat)) == 1 else flat


def _spread(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    if isinstance(values, list):
        return np.asarray([float(x) for x in values]).reshape(shape)
    return np.broadcast_to(float(values), shape)


def _array_to_dict(values: Any) -> dict[str, Any]:
    array = np.asarray(values)
    return {"shape": list(array.shape), "dtype": str(array.dtype), "values": _bounds(array)}


def _array(data: Mapping[str, Any]) -> np.ndarray:
    shape, dtype = _shape(data["shape"]), _dtype(data["dtype"])
    values = _spread(data["values"], shape).astype(dtype)
    if np.isnan(values).any():
        raise ValueError("a number of a layer is not a number")
    return values
