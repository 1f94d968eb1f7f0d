"""Policies in files: JSON with the spaces, the names and the parameters; nothing is executed."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from llmopt.errors import LLMOptError, StorageError
from llmopt.files import read_json_object, write_json_atomically
from llmopt.policies.linear import BoundPolicy, LinearPolicy

_FORMAT = "llmopt-policy-1"
_MAX_SIZE = 10_000_000  # numbers of one observation or action


def save_policy(policy: BoundPolicy, path: str | os.PathLike[str], **about: Any) -> None:
    """Write a policy to a JSON file, replacing it in one step.

    Args:
        policy: A `LinearPolicy` with its parameters.
        path: The file.
        **about: Further facts for readers of the file, in JSON's types: the environment, say.

    Raises:
        StorageError: The file cannot be written; an older one is left as it was.
        TypeError: `about` holds something that JSON does not.
    """
    form = policy.policy
    data = {
        "format": _FORMAT,
        **{key: value for key, value in about.items() if key != "format"},
        "kind": "linear",
        "bias": form.bias,
        "clip": form.clip,
        "observation_space": _space_to_dict(form.observation_space),
        "action_space": _space_to_dict(form.action_space),
        "inputs": list(policy.inputs),
        "outputs": list(policy.outputs),
        "parameters": policy.parameters.tolist(),
    }
    if not Path(path).parent.is_dir():  # a folder that is misspelt is not made
        raise StorageError(f"cannot write {path}: there is no folder {Path(path).parent}")
    write_json_atomically(Path(path), data, allow_nan=False)


def load_policy(path: str | os.PathLike[str]) -> BoundPolicy:
    """Read a policy that `save_policy` wrote.

    Args:
        path: The file. Nothing in it is executed.

    Returns:
        The policy: call it, or its ``act``, with an observation.

    Raises:
        StorageError: The file cannot be read, or holds no policy.
    """
    try:
        data = read_json_object(Path(path))
        if data.get("format") != _FORMAT:
            raise ValueError(f'expected "format": "{_FORMAT}"')
        form = LinearPolicy(
            _space_from_dict(data["observation_space"]),
            _space_from_dict(data["action_space"]),
            bias=bool(data["bias"]),
            clip=bool(data.get("clip", False)),
        )
        bound = form.bind([float(x) for x in data["parameters"]])
        if not np.isfinite(bound.parameters).all():
            raise ValueError("a parameter is not finite")
        inputs, outputs = (tuple(map(str, data[k])) for k in ("inputs", "outputs"))
        return replace(bound, inputs=inputs, outputs=outputs)
    except StorageError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError, LLMOptError) as error:
        raise StorageError(
            f"{path} holds no policy ({type(error).__name__}: {error}): give a file that "
            "PolicySearch.save or save_policy wrote"
        ) from error


def _space_to_dict(space: spaces.Space[Any]) -> dict[str, Any]:
    if isinstance(space, spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
    if not isinstance(space, spaces.Box):
        raise TypeError(f"{space}: only Box and Discrete spaces are written")
    return {
        "kind": "box",
        "shape": list(space.shape),
        "dtype": str(space.dtype),
        "low": _bounds(space.low),
        "high": _bounds(space.high),
    }


def _bounds(values: np.ndarray) -> Any:
    flat = [x if math.isfinite(x) else str(x) for x in np.ravel(values).astype(float).tolist()]
    return flat[0] if len(set(flat)) == 1 else flat


def _space_from_dict(data: dict[str, Any]) -> spaces.Space[Any]:
    if data["kind"] == "discrete":
        return spaces.Discrete(int(data["n"]), start=int(data["start"]))
    if data["kind"] != "box":
        raise ValueError(f"space of kind {data['kind']!r}: expected box or discrete")
    shape = tuple(int(n) for n in data["shape"])
    if any(n < 0 for n in shape) or math.prod(shape) > _MAX_SIZE:
        raise ValueError(f"a space of shape {shape}")
    dtype = np.dtype(str(data["dtype"]))
    if dtype.kind not in "fiub":
        raise ValueError(f"a space of numbers of type {dtype}")
    low, high = (
        np.broadcast_to(
            np.asarray([float(x) for x in b]).reshape(shape) if isinstance(b, list) else float(b),
            shape,
        )
        for b in (data["low"], data["high"])
    )
    return spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype=dtype.type)
