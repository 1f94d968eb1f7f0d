"""Save and load policies: JSON with spaces, scaling, names and parameters; no code is run."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from llmopt.errors import LLMOptError, SpaceError, StorageError
from llmopt.policies.linear import BoundPolicy, LinearPolicy
from llmopt.policies.scaling import Scaling
from llmopt.util.files import read_json_object, write_json_atomically

_FORMAT = "llmopt-policy-4"

MAX_SIZE = 10_000_000
"""Maximum numbers of one observation or action in a file."""

# Errors that malformed data may raise.
_UNREADABLE = (
    AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError, LLMOptError,
)  # fmt: skip


def save_policy(policy: BoundPolicy, path: str | os.PathLike[str], **about: Any) -> None:
    """Write a policy to a JSON file; an existing file is replaced atomically.

    Args:
        policy: A `LinearPolicy` with its parameters.
        path: The file.
        **about: Further facts for readers of the file, in JSON types, such as the environment.

    Raises:
        StorageError: The file cannot be written; an older one is unchanged.
        TypeError: `about` holds a value that JSON cannot represent.
    """
    form, scaling = policy.policy, policy.scaling
    own = form if scaling is None else scaling
    data = {
        "format": _FORMAT,
        **{key: value for key, value in about.items() if key != "format"},
        "kind": "linear",
        "bias": form.bias,
        "clip": form.clip,
        "observation_space": space_to_dict(own.observation_space),
        "action_space": space_to_dict(own.action_space),
        "scaled": scaling is not None,
        "normal": scaling and scaling.normal,
        "inputs": list(policy.inputs),
        "outputs": list(policy.outputs),
        "parameters": policy.parameters.tolist(),
    }
    file = Path(path).expanduser()
    if not file.parent.is_dir():  # never create a misspelt folder
        raise StorageError(f"cannot write {path}: there is no folder {file.parent}")
    write_json_atomically(file, data, allow_nan=False)


def load_policy(path: str | os.PathLike[str]) -> BoundPolicy:
    """Read a policy that `save_policy` wrote.

    Args:
        path: The file. Nothing in it is executed.

    Returns:
        The policy: call it, or its ``act``, with an observation of the environment. The policy
        includes the scaling of the search.

    Raises:
        StorageError: The file cannot be read, or contains no policy.
    """
    try:
        data = read_json_object(Path(path).expanduser(), links=True)
        if data.get("format") != _FORMAT:
            raise ValueError(f'expected "format": "{_FORMAT}"')
        own = [space_from_dict(data[f"{name}_space"]) for name in ("observation", "action")]
        scaling, bias, clip = None, bool(data["bias"]), bool(data["clip"])
        if data["scaled"]:
            normal = data["normal"] and tuple(tuple(map(float, row)) for row in data["normal"])
            scaling = Scaling(own[0], own[1], normal)
            form = LinearPolicy.for_env(scaling.env, bias, clip=clip)
        else:
            form = LinearPolicy(own[0], own[1], bias, clip)
        bound = form.bind([float(x) for x in data["parameters"]])
        if not np.isfinite(bound.parameters).all():
            raise ValueError("a parameter is not finite")
        inputs, outputs = (tuple(map(str, data[k])) for k in ("inputs", "outputs"))
        return replace(bound, inputs=inputs, outputs=outputs, scaling=scaling)
    except StorageError as error:
        raise StorageError(f"cannot read a policy: {error}") from error
    except _UNREADABLE as error:
        raise StorageError(
            f"{path} contains no policy ({type(error).__name__}: {error}): pass a file written by "
            "PolicySearch.save or save_policy"
        ) from error


def space_to_dict(space: spaces.Space[Any]) -> dict[str, Any]:
    """Return a space in JSON types."""
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
    raise SpaceError(f"{space} cannot be saved in a policy file: expected a Box or Discrete")


def space_from_dict(data: Mapping[str, Any]) -> spaces.Space[Any]:
    """Return the space that `data` describe."""
    kind = data["kind"]
    if kind == "discrete":
        return spaces.Discrete(_size(data["n"]), start=int(data["start"]))
    if kind != "box":
        raise ValueError(f"space of kind {kind!r}: expected box or discrete")
    shape, dtype = _shape(data["shape"]), np.dtype(str(data["dtype"]))
    if dtype.kind not in "fiub":
        raise ValueError(f"a space of numbers of type {dtype}")
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


def _bounds(values: np.ndarray) -> Any:
    """Return one number if all are equal, else a list; infinite numbers as text."""
    flat = [x if math.isfinite(x) else str(x) for x in np.ravel(values).astype(float).tolist()]
    return flat[0] if len(set(flat)) == 1 else flat


def _spread(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    if isinstance(values, list):
        return np.asarray([float(x) for x in values]).reshape(shape)
    return np.broadcast_to(float(values), shape)
