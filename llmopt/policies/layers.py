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

_OBSERVING = {
    "FlattenObservation", "ReshapeObservation", "DtypeObservation", "RescaleObservation",
    "NormalizeObservation",
}  # fmt: skip
_ACTING = {"RescaleAction", "ClipAction"}
# They end episodes, look on, or change rewards: a policy acts in the same way without them.
_ASIDE = {
    "TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics", "RecordVideo",
    "HumanRendering", "RenderCollection", "TransformReward", "ClipReward", "NormalizeReward",
}  # fmt: skip


class _Shell(gym.Env[Any, Any]):
    """What a wrapper needs to know of an environment to do its arithmetic."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.observation_space = self.action_space = space


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
        if own and name in _OBSERVING:
            observing.append(layer(_to_dict(env, env.env.observation_space)))
        elif own and name in _ACTING:
            acting.append(layer(_to_dict(env, env.env.action_space)))
        elif not (own and name in _ASIDE):
            raise SpaceError(
                f"the wrapper {name} cannot travel in a policy's file: a file holds "
                f"{', '.join(sorted(_OBSERVING | _ACTING))}. Let the policy act in "
                "search.make_env(), or search without this wrapper"
            )
        env = env.env
    return tuple(observing[::-1]), tuple(acting)


def _to_dict(wrapper: Any, space: spaces.Space[Any]) -> dict[str, Any]:
    """Return one of Gymnasium's wrappers around what has such a space, in JSON's types."""
    arguments = {k: v for k, v in wrapper._saved_kwargs.items() if k != "env"}
    for key, value in arguments.items():
        if key == "dtype":
            arguments[key] = str(np.dtype(value))
        elif key != "shape":
            arguments[key] = _array_to_dict(value)
    data = {
        "wrapper": type(wrapper).__name__,
        "arguments": arguments,
        "space": space_to_dict(space),
    }
    if isinstance(wrapper, gym.wrappers.NormalizeObservation):
        if wrapper.update_running_mean:
            raise SpaceError(
                "the wrapper NormalizeObservation goes on to measure, so that a policy in it means "
                'something else at every step: name it in wrappers=["NormalizeObservation"], which '
                "freezes it"
            )
        data["mean"] = _array_to_dict(wrapper.obs_rms.mean)
        data["variance"] = _array_to_dict(wrapper.obs_rms.var)
    return data


def layer(data: Mapping[str, Any]) -> Layer:
    """Return the layer that its data describe, with the wrapper's own arithmetic."""
    name, space = str(data["wrapper"]), space_from_dict(data["space"])
    if name not in _OBSERVING | _ACTING:
        raise ValueError(f"a layer of wrapper {name!r}")
    read: dict[str, Callable[[Any], Any]] = {"dtype": _dtype, "shape": _shape}
    arguments = {str(k): (read.get(k) or _array)(v) for k, v in data["arguments"].items()}
    try:
        wrapper = getattr(gym.wrappers, name)(_Shell(space), **arguments)
    except Exception as error:  # Gymnasium has its own classes, and assertions
        raise ValueError(f"{name}: {error}") from error
    if name == "NormalizeObservation":
        wrapper.obs_rms.mean, wrapper.obs_rms.var = _array(data["mean"]), _array(data["variance"])
        wrapper.update_running_mean = False
        if not (wrapper.obs_rms.var + wrapper.epsilon > 0).all():
            raise ValueError("a variance is not positive")
    return Layer(data, wrapper.observation if name in _OBSERVING else wrapper.action)


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


def _array(data: Mapping[str, Any]) -> Any:
    shape, dtype = _shape(data["shape"]), _dtype(data["dtype"])
    values = _spread(data["values"], shape).astype(dtype)
    if np.isnan(values).any():
        raise ValueError("a number of a layer is not a number")
    return values[()]  # what has no shape is a scalar
