"""Policies in files: JSON with spaces, scaling, names and parameters; nothing is executed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from llmopt.errors import LLMOptError, StorageError
from llmopt.files import read_json_object, write_json_atomically
from llmopt.policies.layers import layer, space_from_dict, space_to_dict
from llmopt.policies.linear import BoundPolicy, LinearPolicy

_FORMAT = "llmopt-policy-2"


# What comes of data that are of another form than `save_policy` writes.
_UNREADABLE = (
    AttributeError,
    KeyError,
    TypeError,
    ValueError,
    OverflowError,
    RecursionError,
    LLMOptError,
)


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
        "observation_space": space_to_dict(form.observation_space),
        "action_space": space_to_dict(form.action_space),
        "observing": [dict(each.data) for each in policy.observing],
        "acting": [dict(each.data) for each in policy.acting],
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
        The policy: call it, or its ``act``, with what the environment itself shows. The scaling
        of the wrappers that the policy was searched in is inside.

    Raises:
        StorageError: The file cannot be read, or holds no policy.
    """
    try:
        data = read_json_object(Path(path), links=True)
        if data.get("format") != _FORMAT:
            raise ValueError(f'expected "format": "{_FORMAT}"')
        form = LinearPolicy(
            space_from_dict(data["observation_space"]),
            space_from_dict(data["action_space"]),
            bias=bool(data["bias"]),
            clip=bool(data.get("clip", False)),
        )
        bound = form.bind([float(x) for x in data["parameters"]])
        if not np.isfinite(bound.parameters).all():
            raise ValueError("a parameter is not finite")
        inputs, outputs = (tuple(map(str, data[k])) for k in ("inputs", "outputs"))
        observing, acting = (tuple(map(layer, data[k])) for k in ("observing", "acting"))
        return replace(bound, inputs=inputs, outputs=outputs, observing=observing, acting=acting)
    except StorageError as error:
        raise StorageError(f"no policy was read: {error}") from error
    except _UNREADABLE as error:
        raise StorageError(
            f"{path} holds no policy ({type(error).__name__}: {error}): give a file that "
            "PolicySearch.save or save_policy wrote"
        ) from error
