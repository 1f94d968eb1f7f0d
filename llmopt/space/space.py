"""Search spaces: the valid points, their form, and their text in prompts.

A `Space` is an ordered list of named scalar dimensions (`Float`, `Int`, `Categorical`) together
with the form of the user's parameters: a plain dict, or the form of a Gymnasium space (an array, an
integer, nested dicts and tuples). Inside the library a point is always *flat*: a tuple with one
Python scalar for each dimension, in order.

    >>> space = Space({"lr": Float(1e-5, 0.1, log=True), "layers": Int(1, 4)})
    >>> space.flatten({"layers": 2, "lr": 0.01})
    (0.01, 2)
    >>> space.unflatten((0.01, 2))
    {'lr': 0.01, 'layers': 2}

A dimension may have a condition (`when`). In a flat point, `ABSENT` is the value of a
parameter whose condition does not hold; parameters in the user's form lack it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from llmopt.errors import ParameterError, SpaceError
from llmopt.space.activity import Activity, settled
from llmopt.space.constraints import Constraint, Forbidden, Limit, read_constraints
from llmopt.space.dimensions import Categorical, Dimension, dimension_from_dict, dimension_to_dict
from llmopt.space.foreign import (
    is_configspace,
    is_distribution,
    read_configspace,
    read_distribution,
)
from llmopt.space.layout import (
    Layout,
    check_names,
    is_gymnasium,
    layout_from_dict,
    plain_layout,
    read_gymnasium,
)
from llmopt.space.moves import DRAWS, ends_of, find_anchor, mended, read_forbidden
from llmopt.space.numeric import read_decimals
from llmopt.space.values import ABSENT, Value, stable_repr
from llmopt.space.when import When, read_tests
from llmopt.util.text import a_type, short

_MOST_COUNTED = 10_000  # maximum size of a space whose feasible points are counted


class Space:
    """Named dimensions, and the form in which parameters are given and returned.

    Immutable. Methods that take ``values`` expect a flat point: one valid scalar for each
    dimension, in the order of `names`.

    The space sets each value's decimals. A linear `Float` has the fewest decimals that resolve a
    hundredth of its range (one decimal for [-6, 6]); with a step, it has the decimals of the
    step. A
    log `Float`, and a linear one of very large or very small magnitude, has three or more
    significant digits.

    Args:
        dimensions: A dimension for each name, in order. Parameters are plain dicts of
            Python scalars under the same names. For Gymnasium spaces see
            `from_gymnasium`.
        decimals: Decimals for every linear `Float` in place of the automatic ones, 0 to 15. A
            dimension gets more if its step needs more, or if its range would otherwise contain
            fewer than two numbers. Log dimensions, and ranges beyond 1e15, keep their significant
            digits.
        constraints: Linear inequalities over the parameters, such as ``"2 * a + b <= 40"`` or
            ``"0 <= a - b < 3"``. The prompt states them, and points that violate one are never
            sampled. `flatten` accepts points from the user that violate one.
        forbidden: Excluded combinations of values, in the form of a condition: ``{"kernel": "poly",
            "degree": (">", 3)}``.

    Attributes:
        names: Name of each dimension, all different.
        dimensions: The dimensions, in the same order.
        decimals: Decimals of each dimension; ``None`` for `Int`, `Categorical`, and a `Float` with
            significant digits.
        cardinality: Number of different points; infinite with a continuous `Float`. For a finite
            space of more than 10,000 points, the number includes infeasible points, and points
            that differ only in inactive parameters.
        constraints: The constraints, as text.
        limits: The constraints and the forbidden combinations, compiled.
        place: Position of each dimension, by its name.

    Raises:
        SpaceError: There is no dimension, a name is invalid, a value is not a dimension, or no
            feasible point was found.
    """

    constraints: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()

    def __init__(
        self,
        dimensions: Mapping[str, Dimension],
        *,
        decimals: int | None = None,
        constraints: str | Iterable[str] = (),
        forbidden: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        if is_configspace(dimensions):
            raise SpaceError("Space: for a ConfigSpace call Space.of(space).")
        if not isinstance(dimensions, Mapping):
            raise SpaceError(
                f"Space: got {a_type(dimensions)}; expected a dict such as "
                '{"lr": Float(1e-5, 0.1, log=True)}. '
                "For a Gymnasium space call Space.from_gymnasium(space)."
            )
        dimensions = {
            name: read_distribution(one) if is_distribution(one) else one
            for name, one in dimensions.items()
        }
        self._set_up(list(dimensions.items()), plain_layout(dimensions), decimals)
        limits = read_constraints(constraints, self.names)
        if isinstance(forbidden, str | Mapping) or not isinstance(forbidden, Iterable):
            raise SpaceError(
                f"forbidden={short(forbidden)}: got {a_type(forbidden)}; expected a list of "
                'combinations, such as forbidden=[{"optimizer": "sgd", "layers": 3}]'
            )
        self._constrain((*limits, *read_forbidden(map(read_tests, forbidden), self)))

    @classmethod
    def from_gymnasium(cls, space: Any, *, decimals: int | None = None) -> Space:
        """Return a space with the form of a Gymnasium space.

        `unflatten` returns parameters that ``space.contains`` accepts: for a `Box` an array of its
        shape and dtype, for a `Discrete` a NumPy integer, and so on. Dimensions are named
        ``params[0]``, ``params[0,1]`` (arrays), ``key``, ``key[0]``, ``key.sub`` (`Dict`)
        and ``[0]`` (`Tuple`). The Gymnasium space itself is not kept.

        Args:
            space: A `Box` with finite bounds, `Discrete`, `MultiDiscrete`, `MultiBinary`,
                or `Dict` and `Tuple` of these, arbitrarily nested.
            decimals: See `Space`.

        Raises:
            SpaceError: The space is of another type, not bounded, or empty.
        """
        if not is_gymnasium(space):
            raise SpaceError(
                f"got {stable_repr(space)}, {a_type(space)}; expected a space of "
                "gymnasium.spaces, such as Box(low=-1.0, high=1.0, shape=(3,))."
            )
        named: list[tuple[str, Dimension]] = []
        layout = read_gymnasium(space, "", named)
        made = cls.__new__(cls)
        made._set_up(named, layout, decimals)
        return made

    @classmethod
    def of(cls, obj: Any) -> Space:
        """Return `obj` as a space.

        Args:
            obj: A `Space` (returned unchanged), a dict of dimensions or of Optuna's distributions,
                a Gymnasium space, or a ``ConfigSpace.ConfigurationSpace``.

        Raises:
            SpaceError: It is none of these, or cannot be searched.
        """
        if isinstance(obj, Space):
            return obj
        if is_gymnasium(obj):
            return cls.from_gymnasium(obj)
        if is_configspace(obj):
            dimensions, constraints, forbidden = read_configspace(obj)
            made = cls(dimensions)
            made._constrain((*constraints, *read_forbidden(forbidden, made)))
            return made
        if isinstance(obj, Mapping):
            return cls(obj)
        swapped = callable(obj) or isinstance(obj, str) or hasattr(obj, "complete")
        raise SpaceError(
            f"space={stable_repr(obj)}, {a_type(obj)}: expected a Space, a dict such as "
            '{"lr": Float(1e-5, 0.1, log=True)}, a gymnasium.spaces space or a ConfigSpace'
            + ("; the space precedes the client, and follows the function" if swapped else "")
        )

    def _set_up(
        self, named: Sequence[tuple[str, Dimension]], layout: Layout, decimals: int | None
    ) -> None:
        if not named:
            raise SpaceError("the space is empty; give it at least one dimension.")
        self._layout = layout
        self._asked_decimals = read_decimals(decimals)
        self.names = tuple(name for name, _ in named)
        check_names(self.names)
        self.dimensions = dimensions = tuple(
            dimension.bound(name, dtype, self._asked_decimals)
            for (name, dimension), dtype in zip(named, layout.dtypes(), strict=True)
        )
        self.decimals = tuple(d.decimals for d in dimensions)
        self.place = {name: i for i, name in enumerate(self.names)}
        conditions = settled(dict(zip(self.names, dimensions, strict=True)))
        if conditions:
            self.dimensions = dimensions = tuple(
                d.under(conditions.get(n)) for n, d in zip(self.names, dimensions, strict=True)
            )
        rules = {self.place[name]: when for name, when in conditions.items()}
        self._activity = Activity(self.place, dimensions, rules)
        self._choices = [(i, d) for i, d in enumerate(dimensions) if isinstance(d, Categorical)]
        self._log_at = np.array([i for i, d in enumerate(dimensions) if d.log], dtype=int)
        self._offset = np.array([d.offset for d in dimensions], dtype=float)
        # A fixed dimension has no extent: dividing by infinity encodes it as 0.
        self._span = np.array([d.span or math.inf for d in dimensions], dtype=float)
        # `key` needs no look at each value where all are plain numbers of one type.
        narrow = {d.narrow for d in dimensions}
        self._uniform = not (self._choices or conditions) and len(narrow) == 1
        self._narrow = narrow.pop() if self._uniform else None
        self.cardinality = self._count()

    def constrained(self, constraints: str | Iterable[str | Limit]) -> Space:
        """Return this space with further constraints; itself if there are none.

        Raises:
            SpaceError: A constraint is not a linear inequality over the parameters, or no feasible
                point was found.
        """
        read = read_constraints(constraints, self.names)
        if not read:
            return self
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._constrain((*self.limits, *read))
        return made

    def _constrain(self, constraints: str | Iterable[str | Limit]) -> None:
        self.limits = read_constraints(constraints, self.names)
        if not self.limits:
            return
        # Two inequalities of one text are one constraint to the user.
        self.constraints = tuple(dict.fromkeys(c.text for c in self.limits))
        self.anchor = find_anchor(self)
        self.cardinality = self._count()

    def _count(self) -> float:
        product = math.prod(float(self.dimensions[i].count) for i in self.asked)
        if math.isinf(product) or not (self.conditional or self.limits):
            return product
        points = list(itertools.islice(self._activity.points(), _MOST_COUNTED + 1))
        return product if len(points) > _MOST_COUNTED else float(sum(map(self.admits, points)))

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Space):
            return NotImplemented
        return self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[object, ...]:
        own = self.names, self.dimensions, self._layout, self._asked_decimals
        return (*own, self.limits) if self.limits else own

    def __copy__(self) -> Space:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Space:
        # Immutable; and copied choices might no longer equal the caller's.
        return self

    def __repr__(self) -> str:
        shown = [f"{n!r}: {d!r}" for n, d in zip(self.names, self.dimensions, strict=True)]
        if len(shown) > 6:
            shown[4:-1] = [f"... {len(shown) - 5} more ..."]
        extra = "" if self._asked_decimals is None else f", decimals={self._asked_decimals}"
        if self.constraints:
            extra += f", constraints={list(self.constraints)}"
        return f"Space({{{', '.join(shown)}}}{extra})"

    # Form ---------------------------------------------------------------------------

    def flatten(self, params: Any) -> tuple[Value, ...]:
        """Check parameters in the user's form and return them flat.

        NumPy scalars, lists for arrays, integers for floats and whole floats for integers are
        accepted. A value that misses a bound or a step by a rounding error (a few units of float32)
        is moved onto it. The result shares nothing with `params`.

        Args:
            params: Parameters in the form of the given space.

        Returns:
            One Python scalar for each dimension.

        Raises:
            ParameterError: A value, a shape, a type or a name does not belong to the space.
        """
        values: list[Value] = []
        self._layout.read(params, self._layout.root, values)
        return self.check(values)

    def unflatten(self, values: Sequence[Value]) -> Any:
        """Return a flat point in the user's form, as a new object.

        Raises:
            ParameterError: A value does not belong to the space.
        """
        return self._layout.build(iter(self.check(values)))

    def validate(self, params: Any) -> Any:
        """Check parameters as `flatten` does, and return an exact copy."""
        return self._layout.build(iter(self.flatten(params)))

    def check(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Check a flat point as `flatten` checks parameters, and return it in exact form.

        Raises:
            ParameterError: See `flatten`.
        """
        if not self._activity.optional:
            return tuple([d.check(v) for d, v in self._pairs(values)])
        self._pairs(values)
        point = self._activity.settled(values, lambda dimension, value: dimension.check(value))
        if lacking := self.missing(dict(enumerate(point))):
            name, needed = self.names[lacking[0]], self.condition(lacking[0])
            why = f", which a point has {needed}" if needed else ""
            raise ParameterError(f"missing {name!r}{why}; give a value for it.")
        return tuple(point)

    # Conditions -----------------------------------------------------------------------

    unseen: Mapping[int, frozenset[Value]] = MappingProxyType({})  # see `BranchedSpace`

    @property
    def conditional(self) -> bool:
        """Whether a point may lack a parameter."""
        return bool(self._activity.optional)

    @property
    def asked(self) -> Sequence[int]:
        """Positions of the parameters that an answer may give."""
        return [i for i in range(len(self.names)) if i not in self._activity.fixed]

    def missing(self, point: Mapping[int, Value]) -> list[int]:
        """Return the positions of the values that a point, by positions, still needs."""
        return self._activity.missing(point)

    def condition(self, index: int) -> str:
        """Say in words when a parameter is active; nothing if it always is."""
        if (rule := self._activity.rules.get(index)) is not None:
            return rule.said(lambda name, value: self.format(self.place[name], value))
        return "not in every point" if index in self._activity.optional else ""

    def conform(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Return a flat point with the given values, without inactive ones."""
        return tuple(self._activity.settled(values)) if self._activity.settles else tuple(values)

    def named(self, values: Sequence[Value]) -> dict[str, Value]:
        """Return the parameters that a flat point has, by their names."""
        pairs = zip(self.names, values, strict=True)
        return {name: value for name, value in pairs if value is not ABSENT}

    def part(self, chosen: Iterable[int]) -> Space:
        """Return the space of some parameters, without conditions and constraints."""
        return Space({self.names[i]: self.dimensions[i].under(None) for i in chosen})

    def points(self) -> list[tuple[Value, ...]]:
        """Return all feasible points of a finite space, each once."""
        return [values for values in self._activity.points() if self.admits(values)]

    def _pairs(self, values: Sequence[Value]) -> Iterable[tuple[Dimension, Value]]:
        if len(values) != len(self.names):
            names = ", ".join(self.names[:6]) + (", ..." if len(self.names) > 6 else "")
            raise ParameterError(
                f"got {len(values)} values; expected {len(self.names)}, one for each of {names}."
            )
        return zip(self.dimensions, values, strict=True)

    # Sampling -----------------------------------------------------------------------

    def sample(self, rng: np.random.Generator) -> tuple[Value, ...]:
        """Sample a flat point: uniform, or log-uniform on a log scale, rounded to steps.

        The point satisfies the constraints: if 1,000 draws in a row do not, the last one is moved
        until it does.

        Args:
            rng: Random generator; without constraints, one number is used for each dimension.
        """
        if not self.limits:
            return self.draw(rng)
        for _ in range(DRAWS):
            values = self.draw(rng)
            if self.admits(values):
                return values
        return self.mend(values)

    def draw(self, rng: np.random.Generator) -> tuple[Value, ...]:
        """Sample a flat point, ignoring constraints."""
        units = rng.random(len(self.names)).tolist()
        drawn = [d.draw(u) for d, u in zip(self.dimensions, units, strict=True)]
        return self.conform(drawn)

    # Moving onto valid or shown values ------------------------------------------------

    def clip(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Move each number, which may be out of range, to the nearest valid value.

        Raises:
            ParameterError: A number is NaN or not a number, or a choice is unknown.
        """
        pairs = self._pairs(values)
        if not self._activity.settles:
            return tuple([d.clip(v) for d, v in pairs])
        return tuple(self._activity.settled(values, lambda dimension, v: dimension.clip(v)))

    def broken(self, values: Sequence[Value]) -> dict[str, float]:
        """Return the constraints that a flat point violates, and the amounts."""
        if not self.limits:
            return {}
        point = dict(zip(self.names, values, strict=True))
        amounts: dict[str, float] = {}
        for constraint in self.limits:
            if amount := constraint.amount(point):
                amounts[constraint.text] = amounts.get(constraint.text, 0.0) + amount
        return amounts

    def admits(self, values: Sequence[Value]) -> bool:
        """Whether a flat point satisfies all constraints."""
        if not self.limits:
            return True
        point = dict(zip(self.names, values, strict=True))
        return not any(constraint.amount(point) for constraint in self.limits)

    def mend(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Move a flat point, which may be out of range, to a near feasible one.

        It is projected onto the violated constraints. If rounding to steps makes it infeasible
        again, it is pulled towards a known feasible point. Choices, and parameters without
        constraints, do not change.
        """
        return mended(self, self.clip(values))

    # Text ---------------------------------------------------------------------------

    def format(self, index: int, value: Value) -> str:
        """Return the text that shows a valid value of one dimension in a prompt.

        `parse_value` reads the text. Near a bound the rounded text may lie beyond it. A choice that
        is a plain word is shown unchanged, any other by its `repr`.
        """
        return repr(value) if value is ABSENT else self.dimensions[index].format(value)

    def parse_value(self, index: int, text: str) -> Value:
        """Read the text of one value: a finite number, or a choice.

        Bounds and steps are not checked; see `clip` and `check`. Case, quotes and spaces of choices
        are ignored if only one choice matches.

        Raises:
            ParameterError: The text is not a finite number, or not one of the choices.
        """
        return self.dimensions[index].parse(text)

    # Numbers ------------------------------------------------------------------------

    def on_bounds(self, values: Sequence[Value]) -> tuple[str, ...]:
        """Return, in words, which numbers of a flat point lie at an end of their range.

        A better point may lie beyond that end. Ranges of fewer than five values are skipped,
        because a value may lie at an end by chance.
        """
        return ends_of(self, values)

    def encode(self, values: Sequence[Value]) -> np.ndarray:
        """Return a flat point as numbers in [0, 1].

        Numbers are scaled by their bounds, in log scale on a log dimension; a choice is its index
        over the last index. A dimension with a single value gives 0, an inactive one 0.5.

        Returns:
            ``(len(self),)`` float64 array.

        Raises:
            ParameterError: The number of values is wrong, or a choice is unknown.
        """
        lacking = [i for i, value in enumerate(values) if value is ABSENT]
        found = [d.decode(0.5) if v is ABSENT else v for d, v in self._pairs(values)]
        for i, choice in self._choices:
            found[i] = choice.code(found[i])
        numbers = np.array(found, dtype=float)
        if self._log_at.size:
            numbers[self._log_at] = np.log(numbers[self._log_at])
        numbers -= self._offset
        numbers /= self._span
        numbers[lacking] = 0.5
        return numbers.clip(0.0, 1.0, out=numbers)

    def decode(self, unit: Sequence[float] | np.ndarray) -> tuple[Value, ...]:
        """Return the valid flat point nearest to a point of the unit cube.

        Args:
            unit: ``(len(self),)`` numbers; numbers outside [0, 1] are clipped.

        Raises:
            ParameterError: The shape is wrong, or a number is NaN.
        """
        units = np.asarray(unit, dtype=float)
        if units.shape != (len(self.names),) or np.isnan(units).any():
            raise ParameterError(
                f"got {units.tolist()!r}; expected {len(self.names)} numbers in [0, 1]."
            )
        inside = units.clip(0.0, 1.0).tolist()
        return self.conform([d.decode(u) for d, u in zip(self.dimensions, inside, strict=True)])

    def key(self, values: Sequence[Value]) -> tuple[Hashable, ...]:
        """Return a hashable identity of a flat point, equal for equal points only.

        Choices are distinguished by type (``1`` is not ``True``); numbers are compared in the type
        of the user's array.

        Raises:
            ParameterError: The number of values is wrong, or a choice is unknown.
        """
        if not self._uniform:
            pairs = self._pairs(values)
            if self._activity.settles:
                pairs = zip(self.dimensions, self.conform(values), strict=True)
            return tuple([v if v is ABSENT else d.key(v) for d, v in pairs])
        self._pairs(values)
        if self._narrow is None:
            return tuple(values)
        return tuple(np.array(values, dtype=self._narrow).tolist())

    # Storage ------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable form; `from_dict` reads it back.

        Choices other than ``None``, bool, int, float, str and tuples of these are written by their
        `repr`, without memory addresses. This suffices to compare two spaces, but `from_dict`
        cannot rebuild such a choice.
        """
        texts = dict.fromkeys(c.text for c in self.limits if isinstance(c, Constraint))
        own = [When((c.tests,)) for c in self.limits if isinstance(c, Forbidden)]
        return {
            "dimensions": [
                dimension_to_dict(name, dimension)
                for name, dimension in zip(self.names, self.dimensions, strict=True)
            ],
            "layout": self._layout.to_dict(),
            "decimals": self._asked_decimals,
            # Left out where there are none, as in files of versions that knew of none.
            **({"constraints": list(texts)} if texts else {}),
            **({"forbidden": [when.to_json()[0] for when in own]} if own else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Space:
        """Rebuild a space from the result of `to_dict`, or its JSON.

        Raises:
            SpaceError: The data is damaged, or contains a choice that cannot be rebuilt.
        """
        try:
            named = [(str(d["name"]), dimension_from_dict(d)) for d in data["dimensions"]]
            layout = layout_from_dict(data["layout"])
            decimals = data["decimals"]
            if len(layout.dtypes()) != len(named):
                raise SpaceError("the stored space is damaged: layout and dimensions differ.")
            made = cls.__new__(cls)
            made._set_up(named, layout, decimals)
            tests = [When.from_json([one]).alternatives[0] for one in data.get("forbidden", ())]
            made._constrain((*data.get("constraints", ()), *read_forbidden(tests, made)))
            return made
        except (KeyError, TypeError, AttributeError) as error:
            raise SpaceError(
                f"the stored space is damaged ({type(error).__name__}: {error}); "
                "expected what Space.to_dict returns."
            ) from error

    def to_json_values(self, values: Sequence[Value]) -> list[float | int | None]:
        """Return a flat point in exact form (`check`) as JSON numbers: choices by their index.

        ``None`` marks an inactive parameter.
        """
        return [None if v is ABSENT else d.code(v) for d, v in self._pairs(values)]

    def from_json_values(self, values: Sequence[float | int | None]) -> tuple[Value, ...]:
        """Return the flat point that `to_json_values` wrote, or raise a `ParameterError`."""
        pairs = self._pairs(values)
        if not self.conditional:
            return tuple([d.restore(v) for d, v in pairs])
        return self.check([ABSENT if v is None else d.restore(v) for d, v in pairs])
