"""A policy as Python source for the confined worker, bit-identical to `BoundPolicy`."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import (
    ClipAction,
    DtypeObservation,
    NormalizeObservation,
    RescaleAction,
    RescaleObservation,
)

from llmopt.policies.linear import LinearPolicy
from llmopt.policies.wrapping import Surroundings, stack


def policy_source(
    policy: LinearPolicy, around: Surroundings | None = None
) -> tuple[str, dict[str, Any], str]:
    """Return the source of ``policy(weights, observation)``, its constants, and a line about it.

    ``weights`` is a row of ``X``, ``observation`` the base environment's, before the wrappers
    `around`; the action is the one that the base environment receives.
    """
    constants: dict[str, Any] = {}
    lines = [*_seen(around, constants), *_act(policy, constants), *_done(around, constants)]
    text = "\n".join(
        [
            "import numpy as np",
            "def policy(weights, observation):",
            *(f"    {line}" for line in lines),
            "    return action",
        ]
    )
    table = isinstance(policy.observation_space, spaces.Discrete)
    takes = "a state" if policy.chooses or table else "one observation"
    words = (
        f"policy(weights, observation): the action that the search's own policy takes for {takes}, "
        "exactly; weights as in a row of X"
    )
    return text, constants, words


def _act(policy: LinearPolicy, constants: dict[str, Any]) -> list[str]:
    """Return the source lines of `BoundPolicy` without its wrappers."""
    seen, acts = policy.observation_space, policy.action_space
    first = int(getattr(acts, "start", 0))
    if policy.chooses:  # a row of X holds the index of each state's choice
        at = int(getattr(seen, "start", 0))
        return [f"action = int(weights[int(observation) - {at}]) + {first}"]
    lines = [f"w = np.array(weights, dtype=np.float64).reshape(-1, {policy.n_outputs})"]
    lines += ["w, b = w[:-1], w[-1]"] if policy.bias else [f"b = np.zeros({policy.n_outputs})"]
    if isinstance(seen, spaces.Discrete):
        lines += [f"outputs = w[int(observation) - {int(seen.start)}] + b"]
    else:
        lines += ["outputs = np.ravel(observation) @ w + b"]
    if isinstance(acts, spaces.Discrete):
        return [*lines, f"action = int(outputs.argmax()) + {first}"]
    assert isinstance(acts, spaces.Box)
    lines += [f"action = outputs.reshape({tuple(acts.shape)})"]
    whole = np.issubdtype(acts.dtype, np.integer)
    lines += ["action = np.rint(action)"] if whole else []
    if whole or policy.clip:
        constants |= {"low": acts.low, "high": acts.high}
        lines += ["action = np.clip(action, low, high)"]
    return [*lines, f"action = action.astype({np.dtype(acts.dtype).name!r})"]


def _seen(around: Surroundings | None, constants: dict[str, Any]) -> list[str]:
    """Return the source lines of the wrappers of observations, the innermost first."""
    lines: list[str] = []
    if around is None or not isinstance(around.observation_space, spaces.Box | spaces.Discrete):
        return lines  # an observation that is no array is recorded as the policy sees it
    for k, layer in enumerate(stack(around.env)):
        if isinstance(layer, NormalizeObservation):
            constants |= {f"mean{k}": layer.obs_rms.mean, f"var{k}": layer.obs_rms.var}
            scaled = f"(observation - mean{k}) / np.sqrt(var{k} + {layer.epsilon!r})"
            lines += [f"observation = np.float32({scaled})"]
        elif isinstance(layer, RescaleObservation):
            slope, offset = _line(layer.func)
            constants |= {f"slope{k}": slope, f"offset{k}": offset}
            lines += [f"observation = slope{k} * observation + offset{k}"]
        elif isinstance(layer, DtypeObservation):
            name = np.dtype(layer.observation_space.dtype).name
            lines += [f"observation = np.asarray(observation, dtype={name!r})"]
    return lines


def _done(around: Surroundings | None, constants: dict[str, Any]) -> list[str]:
    """Return the source lines of the wrappers of actions, the outermost first."""
    lines = []
    for k, layer in reversed(list(enumerate(stack(around.env) if around else ()))):
        if isinstance(layer, ClipAction):
            space: Any = layer.env.action_space
            constants |= {f"least{k}": space.low, f"most{k}": space.high}
            lines += [f"action = np.clip(action, least{k}, most{k})"]
        elif isinstance(layer, RescaleAction):
            slope, offset = _line(layer.func)
            constants |= {f"factor{k}": slope, f"shift{k}": offset}
            lines += [f"action = (action - shift{k}) / factor{k}"]
    return lines


def _line(function: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return slope and offset of a Gymnasium wrapper that rescales."""
    inside = inspect.getclosurevars(function).nonlocals
    return inside["gradient"], inside["intercept"]
