"""The parameters of a policy as a search space, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from llmopt.errors import SpaceError
from llmopt.policies.linear import LinearPolicy
from llmopt.space import Categorical, Float, Space
from llmopt.text import short


class PolicySpace:
    """What is searched for a policy: a weight for each pair, or an action for each state.

    Args:
        policy: The form of the policies.
        inputs: A name for each observed number; empty for ``o0, o1, ...``.
        outputs: A name for each action or choice; empty for ``a0, a1, ...``.
        box: Bound of every weight, or a pair of bounds, before it is widened by the sizes of
            action and observed number.

    Attributes:
        space: The search space.

    Raises:
        SpaceError: The bounds have no room between them.
    """

    def __init__(
        self,
        policy: LinearPolicy,
        inputs: Sequence[str],
        outputs: Sequence[str],
        box: float | tuple[float, float],
    ) -> None:
        self._policy = policy
        low, high = _pair(box)
        if self._policy.chooses:
            first = int(getattr(policy.observation_space, "start", 0))
            self._actions = list(outputs) or [f"a{j}" for j in range(policy.n_outputs)]
            states = (f"s{first + i}" for i in range(policy.n_inputs))
            self.space = Space({name: Categorical(self._actions) for name in states})
            return
        rows = np.append(_sizes(policy.observation_space, policy.n_inputs, most=1.0), 1.0)
        columns = np.ones(policy.n_outputs)
        if isinstance(policy.action_space, spaces.Box):
            columns = _sizes(policy.action_space, policy.n_outputs, least=1.0)
        sizes = np.outer(1 / rows[: policy.n_inputs + policy.bias], columns).ravel().tolist()
        names = policy.names(inputs, outputs)
        self._ranges = [(_rounded(low * size), _rounded(high * size)) for size in sizes]
        bounds = zip(names, self._ranges, strict=True)
        self.space = Space({name: Float(*ends) for name, ends in bounds}, decimals=3)

    def flat(self, params: Mapping[str, Any]) -> np.ndarray:
        """Return a point as the flat parameters of the policy."""
        if not self._policy.chooses:
            return np.array([params[name] for name in self.space.names], dtype=np.float64)
        weights = np.zeros((self._policy.n_inputs, self._policy.n_outputs))
        for row, name in zip(weights, self.space.names, strict=True):
            row[self._actions.index(params[name])] = 1.0
        constants = np.zeros(self._policy.n_outputs if self._policy.bias else 0)
        return np.append(weights.ravel(), constants)

    def describe(self, scaled: bool) -> str:
        """Say what is searched, and in which range, in a line.

        Args:
            scaled: Whether observed numbers are scaled.
        """
        count = len(self.space)
        if self._policy.chooses:
            return f"the action in each of {count} states, one of {', '.join(self._actions)}"
        (low, high), (least, most) = max(self._ranges), min(self._ranges)
        span = f"from {low:g} to {high:g}"
        if (low, high) != (least, most):
            span = f"in ranges from [{low:g}, {high:g}] to [{least:g}, {most:g}]"
        units = "scaled numbers" if scaled else "numbers in the environment's own units"
        return f"{count} weights of {units}, {span}"


def _pair(box: float | tuple[float, float]) -> tuple[float, float]:
    try:
        low, high = map(float, (-box, box) if isinstance(box, int | float) else box)
        if -1e300 < low < high < 1e300:
            return low, high
    except (TypeError, ValueError, OverflowError):
        pass
    raise SpaceError(
        f"box={short(box)}: expected a positive number, or two finite numbers, the lower first"
    )


def _sizes(
    space: spaces.Space[Any], count: int, *, least: float = 0.0, most: float = math.inf
) -> np.ndarray:
    """Return the largest size of each number of a space within limits, 1 where unbounded."""
    if not isinstance(space, spaces.Box):
        return np.ones(count)
    size = np.maximum(np.abs(space.low.astype(float)), np.abs(space.high.astype(float))).ravel()
    size = np.where(np.isfinite(size) & (size > 0) & (size < 1e30), size, 1.0)
    return np.clip(size, least, most)


def _rounded(value: float) -> float:
    """Return a bound in three significant digits."""
    return float(f"{value:.3g}")
