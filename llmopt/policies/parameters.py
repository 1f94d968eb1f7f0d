"""Convert the parameters of a policy to a search space and back."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from llmopt.errors import ParameterError, SpaceError
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.scaling import bounds_of
from llmopt.space import Categorical, Float, Space
from llmopt.util.text import short

BOX = 10.0
"""Effect of a weight at its bound on an input of the usual size, in action ranges."""

EXTENDED = 10.0
"""Factor by which ranges are wider for a model that reads words."""

Box: TypeAlias = "float | tuple[float, float] | Sequence[tuple[float, float]]"
Range: TypeAlias = tuple[float, float]

_LEAST = 0.5  # minimum scale of an observed number, as a share of its declared bound


class WeightSpace(Space):
    """A space of weights whose random points are useful policies: their actions rarely saturate.

    A design may need one weight of several times the action's range. If all weights were sampled
    from such ranges, every random policy would saturate its actions.
    """

    _inner: Space

    @classmethod
    def of_ranges(
        cls, names: Sequence[str], ranges: Sequence[Range], share: float, extended: float = 1.0
    ) -> WeightSpace:
        """Return the space; random points are sampled from the inner `share` of each range.

        The number of decimals ignores the factor `extended`.
        """
        inner = {}
        for name, (low, high) in zip(names, ranges, strict=True):
            reach = share * max(abs(low), abs(high))
            ends = max(low, -reach), min(high, reach)
            inner[name] = Float(*(ends if ends[0] < ends[1] else (low, high)))
        least = min(max(abs(low), abs(high)) for low, high in ranges) / extended
        decimals = int(np.clip(2 - math.floor(math.log10(least)), 3, 12))
        outer = {name: Float(*ends) for name, ends in zip(names, ranges, strict=True)}
        space = cls(outer, decimals=decimals)
        space._inner = Space(inner)
        return space

    def draw(self, rng: np.random.Generator) -> tuple[Any, ...]:
        """Sample a flat point, ignoring the constraints."""
        return self._inner.draw(rng)


class PolicySpace:
    """The search space of a policy: a weight for each input and output, or an action per state.

    The range of a weight is `box` times the action's size over its input's size: the declared
    bound, or the measured size if that is smaller or no bound is declared. `box` may also be a pair
    of bounds for each weight. `extended` widens the ranges by a factor, but not the inner ranges of
    random points. A `stored` space keeps its ranges.
    """

    def __init__(
        self,
        policy: LinearPolicy,
        inputs: Sequence[str],
        outputs: Sequence[str],
        box: Box = BOX,
        *,
        measure: Callable[[], np.ndarray | None] = lambda: None,
        stored: Mapping[str, Any] | None = None,
        extended: float = 1.0,
    ) -> None:
        self._policy = policy
        (low, high), stated = _read_box(box, policy.n_parameters)
        self._box = low * extended, high * extended
        self.bounds: dict[str, Range] = {}  # of each weight by name; empty for a table
        if policy.chooses:
            first = int(getattr(policy.observation_space, "start", 0))
            self._actions = list(outputs) or [f"a{j}" for j in range(policy.n_outputs)]
            states = (f"s{first + i}" for i in range(policy.n_inputs))
            self.space = Space({name: Categorical(self._actions) for name in states})
            return
        names = policy.names(inputs, outputs)
        self._stated = stated or _stored_ranges(stored, names)
        ranges = self._stated or self._usual(measure)
        # The sum of this many equal parts has the size of one action.
        share = math.sqrt(3 / (policy.n_inputs + policy.bias)) / max(map(abs, self._box))
        share = 1.0 if stated else min(share, 1.0 / extended)
        self.space = WeightSpace.of_ranges(names, ranges, share, extended)
        self.bounds = dict(zip(names, ranges, strict=True))

    def _usual(self, measure: Callable[[], np.ndarray | None]) -> list[Range]:
        policy = self._policy
        rows, measured = _sizes(policy.observation_space, policy.n_inputs), measure()
        if measured is not None:
            rows = np.fmin(rows, np.fmax(measured, _LEAST * np.nan_to_num(rows)))
        rows = np.append(np.nan_to_num(rows, nan=1.0), np.ones(int(policy.bias)))
        columns = np.nan_to_num(_sizes(policy.action_space, policy.n_outputs), nan=1.0)
        low, high = self._box
        sizes = np.outer(1 / rows, columns).ravel().tolist()
        return [(_rounded(low * size), _rounded(high * size)) for size in sizes]

    def flat(self, params: Mapping[str, Any]) -> np.ndarray:
        """Convert a point to the flat parameters of the policy.

        Raises:
            ParameterError: It is no point of the space.
        """
        if not isinstance(params, Mapping) or set(params) != set(self.space.names):
            raise ParameterError(
                f"params={short(params)}: expected a value for each parameter by name, such as "
                f"{{{self.space.names[0]!r}: 0.5, ...}}: a trial's params, or "
                "dict(zip(search.optimizer.space.names, numbers))"
            )
        if not self._policy.chooses:
            return np.array([params[name] for name in self.space.names], dtype=np.float64)
        weights = np.zeros((self._policy.n_inputs, self._policy.n_outputs))
        for row, name in zip(weights, self.space.names, strict=True):
            row[self._actions.index(params[name])] = 1.0
        constants = np.zeros(self._policy.n_outputs if self._policy.bias else 0)
        return np.append(weights.ravel(), constants)

    def describe(self, scaled: bool) -> str:
        """Describe the searched parameters and their ranges in one line."""
        count = len(self.space)
        if self._policy.chooses:
            return f"the action in each of {count} states, one of {', '.join(self._actions)}"
        (low, high), (least, most) = max(self.bounds.values()), min(self.bounds.values())
        span = f"from {low:g} to {high:g}"
        if (low, high) != (least, most):
            span = f"in ranges from [{low:g}, {high:g}] to [{least:g}, {most:g}]"
        if not self._stated:
            low, high = self._box
            times = f"{high:g}" if low == -high else f"[{low:g}, {high:g}]"
            span += f" ({times} × size of the action / size of the observed number)"
        units = "scaled numbers" if scaled else "numbers in the environment's own units"
        return f"{count} weights of {units}, {span}"


def _read_box(box: Box, count: int) -> tuple[Range, list[Range] | None]:
    """Return a pair of factors, and the bounds of each weight if they are given."""
    try:
        pairs: Any = (-box, box) if isinstance(box, int | float) else box
        if isinstance(pairs[0], numbers.Real):
            low, high = map(float, pairs)
            if -1e300 < low < high < 1e300:
                return (low, high), None
        elif len(pairs) == count:
            ends = [(float(low), float(high)) for low, high in pairs]
            if all(-1e300 < low < high < 1e300 for low, high in ends):
                return (-1.0, 1.0), ends
    except (TypeError, ValueError, OverflowError, LookupError):
        pass
    raise SpaceError(
        f"box={short(box)}: expected a positive number, or two finite numbers, the lower first, "
        f"or such a pair for each of the {count} parameters"
    )


def _stored_ranges(stored: Mapping[str, Any] | None, names: Sequence[str]) -> list[Range] | None:
    """Return the ranges of a stored space; ``None`` if it does not have these weights."""
    try:
        rows = (stored or {})["dimensions"]
        if [row["name"] for row in rows] == list(names):
            return [(float(row["low"]), float(row["high"])) for row in rows]
    except (KeyError, TypeError, ValueError):
        pass  # the reader of the complete file reports the fault
    return None


def _sizes(space: spaces.Space[Any], count: int) -> np.ndarray:
    """Return the maximum magnitude of each number of a space; NaN if it has no bound."""
    size = np.broadcast_to(np.abs(bounds_of(space)).max(axis=0), count)
    return np.where(np.isfinite(size) & (size > 0) & (size < 1e30), size, np.nan)


def _rounded(value: float) -> float:
    """Return a bound with two significant digits."""
    return float(f"{value:.2g}")
