"""A policy as Python source for the confined worker, bit-identical to `BoundPolicy`."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from llmopt.policies.linear import LinearPolicy


def policy_source(policy: LinearPolicy) -> tuple[str, dict[str, Any], str]:
    """Return the source of ``policy(weights, observation)``, its constants, and a line about it.

    ``weights`` is a row of ``X``; the action is the one that the environment receives.
    """
    constants: dict[str, Any] = {}
    lines = _act(policy, constants)
    body = "\n".join(f"    {line}" for line in [*lines, "return action"])
    text = f"import numpy as np\ndef policy(weights, observation):\n{body}"
    table = isinstance(policy.observation_space, spaces.Discrete)
    words = (
        "policy(weights, observation): the action that the search's own policy takes for "
        f"{'a state' if table else 'one observation'}, exactly; weights as in a row of X"
    )
    return text, constants, words


def _act(policy: LinearPolicy, constants: dict[str, Any]) -> list[str]:
    """Return the source lines of `BoundPolicy` without its scaling."""
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
    if not isinstance(acts, spaces.Box):
        return [*lines, f"action = int(outputs.argmax()) + {first}"]
    lines += [f"action = outputs.reshape({tuple(acts.shape)})"]
    whole = np.issubdtype(acts.dtype, np.integer)
    lines += ["action = np.rint(action)"] if whole else []
    if whole or policy.clip:
        constants |= {"low": acts.low, "high": acts.high}
        lines += ["action = np.clip(action, low, high)"]
    return [*lines, f"action = action.astype({np.dtype(acts.dtype).name!r})"]
