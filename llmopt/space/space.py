"""Search spaces: the valid points, their form, and their text in prompts."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from llmopt.errors import ParameterError, SpaceError
from llmopt.space import forms
from llmopt.space.candidates import Candidates
from llmopt.space.constraints import Constraint, Forbidden, Limit, read_constraints, read_forbidden
from llmopt.space.dimensions import (
    Categorical,
    Dimension,
    dimension_from_dict,
    dimension_to_dict,
    only,
)
from llmopt.space.feasible import MOST_COUNTED, Feasible
from llmopt.space.foreign import is_configspace, read_configspace, read_dimension
from llmopt.space.numeric import MAX_DECIMALS
from llmopt.space.tables import dimensions_of, read_table
from llmopt.space.values import ABSENT, Value, stable_repr
from llmopt.space.when import When, settled
from llmopt.util.text import a_type, cut


class Space:
    """Named dimensions, and the form in which parameters are given and returned.

    Inside the library a point is *flat*: a tuple with one Python scalar for each dimension, in the
    order of `names`, and `ABSENT` for a parameter whose condition (`when`) does not hold. In the
    user's form (a dict, or that of a Gymnasium space) such a parameter is missing.

        >>> space = Space({"lr": Float(1e-5, 0.1, log=True), "layers": Int(1, 4)})
        >>> space.flatten({"layers": 2, "lr": 0.01})
        (0.01, 2)
        >>> space.unflatten((0.01, 2))
        {'lr': 0.01, 'layers': 2}

    Immutable. Names that are equal in composed Unicode (NFC) are the same name.

    Args:
        dimensions: A dimension for each name, in order. For other kinds of spaces see `of`.
        decimals: Decimals to show for every linear `Float`, 0 to 15; by default as many as resolve
            a hundredth of its range, or its steps. A dimension gets more if it needs more.
        constraints: Linear inequalities and equations over the parameters, such as
            ``"2 * a + b <= 40"`` or ``"0 <= a - b < 3"``. The prompt states them, no sampled point
            violates one. `flatten` accepts points that do.
        forbidden: Excluded combinations of values, in the form of a condition: ``{"kernel": "poly",
            "degree": (">", 3)}``.

    Attributes:
        names: Name of each dimension, all different.
        dimensions: The dimensions, in the same order.
        decimals: Decimals of each dimension; ``None`` for `Int`, `Categorical`, and a `Float` with
            significant digits.
        cardinality: Number of points; infinite with a continuous `Float`. Of more than 10,000,
            infeasible points and ones that differ in inactive parameters count, too.
        constraints: The constraints and forbidden combinations, as text.
        limits: The same, compiled.
        place: Position of each dimension, by its name.
        candidates: The only valid points (see `among`); ``None`` for all of the ranges.

    Raises:
        SpaceError: There is no dimension, a name is invalid, a value is not a dimension, or no
            feasible point was found.
    """

    candidates: Candidates | None = None
    unseen: Mapping[int, frozenset[Value]] = MappingProxyType({})  # choices without any trial

    def __init__(
        self,
        dimensions: Mapping[str, Dimension],
        *,
        decimals: int | None = None,
        constraints: str | Iterable[str] = (),
        forbidden: Iterable[Any] = (),
    ) -> None:
        if not isinstance(dimensions, Mapping) or is_configspace(dimensions):
            raise SpaceError(
                f"Space: got {a_type(dimensions)}; expected a dict such as "
                '{"lr": Float(1e-5, 0.1, log=True)}. '
                "For a Gymnasium space or a ConfigSpace call Space.of(space)."
            )
        named = [(name, read_dimension(name, given)) for name, given in dimensions.items()]
        optional = [name for name, one in named if one.when is not None]
        form = forms.plain(list(dimensions), optional)
        self._set_up(named, form, decimals, constraints, forbidden)

    @classmethod
    def of(cls, obj: Any, *, decimals: int | None = None) -> Space:
        """Return `obj` as a space.

        Args:
            obj: A `Space` (returned unchanged), a dict of dimensions or of Optuna's distributions,
                a ``ConfigSpace.ConfigurationSpace``, or a Gymnasium space: a `Box` with finite
                bounds, `Discrete`, `MultiDiscrete`, `MultiBinary`, or a `Dict` of these.
                `unflatten` then returns parameters that its ``contains`` accepts, and dimensions
                are named ``params[0,1]``, ``key`` and ``key[0]``.
            decimals: Of a Gymnasium space; see `Space`.

        Raises:
            SpaceError: It is none of these, or cannot be searched.
        """
        if isinstance(obj, Space):
            return obj
        if forms.is_gymnasium(obj):
            (form, named), made = forms.read_gymnasium(obj), cls.__new__(cls)
            made._set_up(named, form, decimals)
            return made
        if is_configspace(obj):
            dimensions, forbidden = read_configspace(obj)
            return cls(dimensions, forbidden=forbidden)
        if isinstance(obj, Mapping):
            return cls(obj)
        swapped = callable(obj) or isinstance(obj, str) or hasattr(obj, "complete")
        raise SpaceError(
            f"space={stable_repr(obj)}, {a_type(obj)}: expected a Space, a dict such as "
            '{"lr": Float(1e-5, 0.1, log=True)}, a gymnasium.spaces space or a ConfigSpace'
            + ("; the space precedes the client, and follows the function" if swapped else "")
        )

    @classmethod
    def among(
        cls,
        space: Any,
        table: Any,
        constraints: str | Iterable[str | Limit] = (),
        known: Space | None = None,
    ) -> Space:
        """Return a space whose only points are the rows of a table.

        Args:
            space: What `of` takes; or names of columns, or ``None`` for all of them: their
                dimensions follow from their values.
            table: A list of dicts, a DataFrame, the path of a CSV file, or a dict of columns. Its
                other columns are descriptors for the model. Parameters that have no
                column stay free.
            constraints: See `constrained`. Rows that break one are dropped.
            known: The space of an earlier table, whose dimensions do not change if those of this
                one would follow from its columns, and have the same names.

        Raises:
            SpaceError: The table cannot be read, is empty, lacks a value, or has a value that is
                not in the space or a row twice.
        """
        columns, names = read_table(table), None
        if space is None or isinstance(space, list | tuple):
            names = list(columns if space is None else space)
            if known is None or set(known.names) != set(names):
                known = None
            space = dimensions_of(columns, names) if known is None else known
        made = cls.of(space).whole.constrained(constraints)
        row = f"row of {Path(table).name}" if isinstance(table, str | PathLike) else Candidates.row
        try:
            made = made._with(Candidates(made, columns, row).admitted(made))
        except SpaceError as error:
            if known is None or names is None:
                raise
            cls.among(names, columns, constraints)  # whether the table is wrong by itself
            raise SpaceError(
                f"{str(error).rstrip('.')}. A search keeps the values of its first table: for "
                "others, begin a new file with `space`, which lists all of them, and import the "
                "trials of this one (import_trials, or `llmopt tell --import`)"
            ) from error
        if made._stock is not None:
            made._constrain(made.limits)  # again: its points are fewer
        return made

    @property
    def whole(self) -> Space:
        """The space without candidates."""
        return self if self.candidates is None else self._with(None)

    @property
    def bare(self) -> Space:
        """The parameters alone, without candidates, constraints and forbidden combinations."""
        made = self._with(None)
        made._constrain(())
        return made

    def outside(self, values: tuple[Value, ...], former: Collection[Any] = ()) -> str:
        """Say that a flat point is no candidate, and which is nearest; else nothing.

        A point whose key is one of the `former` need be none any more.
        """
        if self.candidates is None or self.key(values) in former:
            return ""
        return self.candidates.complaint(values)

    def _with(self, candidates: Candidates | None) -> Space:
        """Return a copy with other candidates."""
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.candidates = candidates
        made.cardinality = made._count()
        return made

    @property
    def rows(self) -> Candidates | None:
        """The candidates, if each of them is a whole point."""
        return self.candidates if self._stock is None else None

    @property
    def _stock(self) -> Candidates | None:
        """The candidates, if they are a table of some parameters alone."""
        table = self.candidates
        return table if table is not None and table.free else None

    def pinned(self, values: Mapping[int, Value], limits: Iterable[Any] = ()) -> Space:
        """Return the part in which parameters, by position, have one value, or `SpaceError`."""
        table = self.candidates
        made = self._with(None if table is None else table.having(values))
        if table is not self._stock:
            return made
        pairs = enumerate(self._by_name.items())
        made._by_name = {n: only(d, values[i]) if i in values else d for i, (n, d) in pairs}
        made.dimensions = tuple(made._by_name.values())
        made._constrain((*self.limits, *limits))
        return made

    def _set_up(
        self,
        named: Sequence[tuple[str, Dimension]],
        form: forms.Form,
        decimals: int | None,
        constraints: str | Iterable[str] = (),
        forbidden: Iterable[Any] = (),
    ) -> None:
        if not named:
            raise SpaceError("the space is empty; give it at least one dimension.")
        whole = isinstance(decimals, int | np.integer) and not isinstance(decimals, bool)
        if decimals is not None and not (whole and 0 <= decimals <= MAX_DECIMALS):
            raise SpaceError(
                f"decimals={decimals!r}; expected an integer from 0 to {MAX_DECIMALS}, or None"
            )
        self._form, self._asked_decimals = form, None if decimals is None else int(decimals)
        self.names = tuple(name for name, _ in named)
        forms.check_names(self.names)
        bound = {
            name: dimension.bound(name, dtype, self._asked_decimals)
            for (name, dimension), dtype in zip(named, form.dtypes(), strict=True)
        }
        conditions = settled(bound)
        self._by_name = {name: d.under(conditions.get(name)) for name, d in bound.items()}
        self.dimensions = dimensions = tuple(self._by_name.values())
        self.decimals = tuple(d.decimals for d in dimensions)
        self.place = {name: i for i, name in enumerate(self.names)}
        self._rules: dict[int, Any] = {self.place[n]: when for n, when in conditions.items()}
        free = [i for i in range(len(dimensions)) if i not in self._rules]
        self._order = (*free, *self._rules)
        self._choices = [(i, d) for i, d in enumerate(dimensions) if isinstance(d, Categorical)]
        self._log_at = np.array([i for i, d in enumerate(dimensions) if d.log], dtype=int)
        self._offset = np.array([d.offset for d in dimensions], dtype=float)
        # A fixed dimension has no extent: dividing by infinity encodes it as 0.
        self._span = np.array([d.span or math.inf for d in dimensions], dtype=float)
        combinations = read_forbidden(forbidden, self._by_name)
        self._constrain((*read_constraints(constraints, self.names), *combinations))

    def constrained(self, constraints: str | Iterable[str | Limit]) -> Space:
        """Return this space with further constraints; itself if there are none.

        Raises:
            SpaceError: A constraint is not linear, or no feasible point was found.
        """
        limits = read_constraints(constraints, self.names)
        if not limits:
            return self
        made, table = self._with(self._stock), self.candidates
        made._constrain((*self.limits, *limits))
        return made if table is None else made._with(table.admitted(made))

    def _constrain(self, limits: tuple[Limit, ...]) -> None:
        for limit, name in ((one, name) for one in limits for name, _ in one.factors):
            if isinstance(self._by_name[name], Categorical):
                text = f"constraint {limit.text!r}: `{name}` is a choice"
                raise SpaceError(f"{text}; only numbers can be constrained")
        self.limits = limits
        # Two inequalities of one text are one constraint to the user.
        self.constraints = tuple(dict.fromkeys(limit.text for limit in limits))
        self.cardinality = self._count()
        if limits:
            self._feasible = Feasible(self)

    def _count(self) -> float:
        if self.rows is not None:
            return self.rows.size
        table = self._stock
        free = [i for i in self.asked if table is None or i not in table.places]
        product = math.prod(float(self.dimensions[i].count) for i in free)
        product *= 1 if table is None else table.size
        if math.isinf(product) or not (self.conditional or self.limits):
            return product
        points = self._enumerate()
        return product if points is None else float(sum(map(self.admits, points)))

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
        own = self.names, self.dimensions, self._form, self._asked_decimals
        return *own, self.limits, self.candidates

    def __deepcopy__(self, memo: Any = None) -> Space:
        # Immutable; and copied choices might no longer equal the caller's.
        return self

    __copy__ = __deepcopy__

    def __repr__(self) -> str:
        shown = [f"{n!r}: {d!r}" for n, d in self._by_name.items()]
        if len(shown) > 6:
            shown[4:-1] = [f"... {len(shown) - 5} more ..."]
        extra = "" if self._asked_decimals is None else f", decimals={self._asked_decimals}"
        if self.constraints:
            extra += f", constraints={list(self.constraints)}"
        return f"Space({{{', '.join(shown)}}}{extra})"

    # Form ---------------------------------------------------------------------------

    def flatten(self, params: Any, *, measured: bool = False) -> tuple[Value, ...]:
        """Check parameters in the user's form and return them flat.

        A value that misses a bound or a step by a rounding error (a few units of float32) is moved
        onto it. Values of inactive parameters are ignored. Numbers that were `measured` may lie
        between two steps and beyond a bound: a dial may overshoot.

        Raises:
            ParameterError: A value, a shape, a type or a name does not belong to the space.
        """
        return self.check(self._form.read(params), measured)

    def unflatten(self, values: Sequence[Value]) -> Any:
        """Return an exact flat point in the user's form, as a new object.

        Raises:
            ParameterError: The number of values is wrong.
        """
        return self._form.build(iter(self._each(values)))

    def deviation(self, values: Sequence[Value], steps: bool = True) -> str:
        """Say which numbers of a flat point miss a bound, or a step if `steps`; else nothing."""
        found = []
        for dimension, value in zip(self.dimensions, values, strict=True):
            if value is ABSENT or isinstance(dimension, Categorical):
                continue
            if steps or not dimension.low <= value <= dimension.high:
                try:
                    dimension.check(value)
                except ParameterError as error:
                    found.append(str(error))
        return cut("; ".join(found), 1000)

    def labelled(self, values: Sequence[Value]) -> Any:
        """Return a flat point in the user's form with the names of choices; `flatten` reads it."""
        return self.with_names(self.unflatten(values))

    def with_names(self, params: Any) -> Any:
        """Return all or some valid parameters with the names of choices."""
        named = {self.names[i]: choice for i, choice in self._choices if choice.named}
        names = {name: named[name].format(params[name]) for name in named if name in params}
        return {**params, **names} if names else params

    def validate(self, params: Any) -> Any:
        """Check parameters as `flatten` does, and return an exact copy."""
        return self._form.build(iter(self.flatten(params)))

    def check(self, values: Sequence[Value], measured: bool = False) -> tuple[Value, ...]:
        """Check a flat point as `flatten` checks parameters, and return it in exact form.

        Raises:
            ParameterError: See `flatten`.
        """
        point = self._settle(self._each(values), lambda d, v: d.check(v, measured))
        absent = any(value is ABSENT for value in point)
        if lacking := self.missing(dict(enumerate(point))) if absent else ():
            name, needed = self.names[lacking[0]], self.condition(lacking[0])
            why = f", which a point has {needed}" if needed else ""
            raise ParameterError(f"missing {name!r}{why}; give a value for it.")
        return tuple(point)

    def named(self, values: Sequence[Value]) -> dict[str, Value]:
        """Return the parameters that a flat point has, by their names."""
        return {n: v for n, v in zip(self.names, values, strict=True) if v is not ABSENT}

    def part(self, chosen: Iterable[int]) -> Space:
        """Return the space of some parameters, without conditions and constraints."""
        return Space({self.names[i]: self.dimensions[i].under(None) for i in chosen})

    def _each(self, values: Sequence[Value]) -> Sequence[Value]:
        if len(values) != len(self.names):
            names = ", ".join(self.names[:6]) + (", ..." if len(self.names) > 6 else "")
            raise ParameterError(
                f"got {len(values)} values; expected {len(self.names)}, one for each of {names}."
            )
        return values

    # Conditions -----------------------------------------------------------------------

    @property
    def conditional(self) -> bool:
        """Whether a point may lack a parameter."""
        return bool(self._rules)

    @property
    def asked(self) -> Sequence[int]:
        """Positions of the parameters that an answer may give."""
        return range(len(self.names))

    def condition(self, index: int) -> str:
        """Say in words when a parameter is active; nothing if it always is."""
        if (rule := self._rules.get(index)) is None:
            return ""
        return str(rule.said(lambda name, value: self.format(self.place[name], value)))

    def active(self, index: int, values: Sequence[Value]) -> bool | None:
        """Whether the values of others make a parameter active; ``None`` if unknown."""
        if (rule := self._rules.get(index)) is None:
            return True

        def near(name: str) -> Value:  # of a measured value the nearest that can be proposed
            value = values[self.place[name]]
            if value is not ABSENT:
                with contextlib.suppress(ParameterError, OverflowError):
                    return self._by_name[name].clip(value)
            return value

        return bool(rule.active(near))

    def missing(self, point: Mapping[int, Value]) -> list[int]:
        """Return the positions of the values that a point, by positions, still needs."""
        values = self.conform([point.get(i, ABSENT) for i in range(len(self.names))])
        return [i for i, v in enumerate(values) if v is ABSENT and self.active(i, values)]

    def conform(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Return a flat point with the given values, without inactive ones."""
        return tuple(self._settle(values))

    def _settle(
        self, values: Sequence[Value], exact: Callable[[Dimension, Value], Value] | None = None
    ) -> list[Value]:
        """Return values in exact form, and `ABSENT` for what the point cannot have."""
        point = list(values)
        for i in self._rules if exact is None else self._order:
            if self.active(i, point) is False:
                point[i] = ABSENT
            elif exact is not None and point[i] is not ABSENT:
                point[i] = exact(self.dimensions[i], point[i])
        return point

    def points(self) -> list[tuple[Value, ...]]:
        """Return all feasible points of a finite space, each once."""
        if (table := self.rows) is not None:
            return [table[row] for row in range(table.size)]
        return [values for values in self._enumerate(None) or () if self.admits(values)]

    def _enumerate(self, most: int | None = MOST_COUNTED) -> list[tuple[Value, ...]] | None:
        """Return all points of a finite space; ``None`` if there are more than `most`."""
        table, empty = self._stock, [ABSENT] * len(self.names)
        points = [empty] if table is None else [table.put(i, empty) for i in range(table.size)]
        order = [i for i in self._order if table is None or i not in table.places]
        for i in order:
            longer = ([*p[:i], v, *p[i + 1 :]] for p in points for v in self._axis(i, p))
            points = list(itertools.islice(longer, None if most is None else most + 1))
            if most is not None and len(points) > most:
                return None
        return [tuple(point) for point in points]

    def _axis(self, index: int, point: Sequence[Value]) -> Iterable[Value]:
        if self.active(index, point) is False:
            return (ABSENT,)
        dimension = self.dimensions[index]
        return map(dimension.value, range(int(dimension.count)))

    # Sampling and constraints -----------------------------------------------------------

    def sample(self, rng: np.random.Generator) -> tuple[Value, ...]:
        """Sample a flat point that keeps the constraints, or a candidate.

        It is uniform, or log-uniform on a log scale, rounded to steps. If 1,000 points in a row
        break the constraints, it is found as `Feasible` describes.
        """
        if self.rows is not None:
            return self.rows.sample(rng)
        return self._feasible.sample(rng) if self.limits else self.draw(rng)

    def draw(self, rng: np.random.Generator) -> tuple[Value, ...]:
        """Sample a flat point, ignoring constraints."""
        units, table = rng.random(len(self.names)).tolist(), self._stock
        point = [d.draw(u) for d, u in zip(self.dimensions, units, strict=True)]
        if table is not None:
            point = table.put(int(rng.integers(table.size)), point)
        return self.conform(point)

    def broken(
        self, values: Sequence[Value], limits: Sequence[Limit] | None = None
    ) -> dict[str, float]:
        """Return which constraints (or which `limits`) a flat point violates, with the amounts."""
        limits = self.limits if limits is None else limits
        if not limits:
            return {}
        point = dict(zip(self.names, values, strict=True))
        amounts: dict[str, float] = {}
        for limit in limits:
            if amount := limit.amount(point):
                amounts[limit.text] = amounts.get(limit.text, 0.0) + amount
        return amounts

    def breach(self, values: Sequence[Value]) -> str:
        """Return in words which constraints a flat point violates, and by how much; or nothing."""
        forbidden = {limit.text for limit in self.limits if isinstance(limit, Forbidden)}
        each = self.broken(values).items()
        return ", ".join(t if t in forbidden else f"{t} (by {n:.3g})" for t, n in each)

    def violation(self, trial: Any) -> str:
        """Return how a trial violates constraints, in words: a combination has no amount."""
        total = trial.constraint_violation
        if not total > 0:
            return ""
        point = dict(zip(self.names, trial.values, strict=True))
        kinds = {type(limit) for limit in self.limits if limit.amount(point)}
        alone = kinds == {Forbidden} and not trial.measured_violation
        return (
            "has a forbidden combination" if alone else f"violates the constraints by {total:.3g}"
        )

    def admits(self, values: Sequence[Value]) -> bool:
        """Whether a flat point satisfies all constraints, and has a row of a table of some."""
        if self._stock is not None and not self._stock.has(values):
            return False
        return not self.broken(values)

    def clip(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Move each number to the nearest valid value, or raise `ParameterError` if none is."""
        return tuple(self._settle(self._each(values), lambda d, value: d.clip(value)))

    # Text ---------------------------------------------------------------------------

    def format(self, index: int, value: Value) -> str:
        """Return the text that shows a value of one dimension, and that its `parse` reads."""
        return repr(value) if value is ABSENT else self.dimensions[index].format(value)

    # Numbers ------------------------------------------------------------------------

    def encode(self, values: Sequence[Value]) -> np.ndarray:
        """Return a flat point as ``(len(self),)`` numbers in [0, 1].

        Numbers are scaled by their bounds, in log scale on a log dimension, and clipped; a choice
        is its index over the last index. A dimension with a single value gives 0, an inactive one
        0.5.

        Raises:
            ParameterError: The number of values is wrong, or a choice is unknown.
        """
        lacking = [i for i, value in enumerate(self._each(values)) if value is ABSENT]
        pairs = zip(self.dimensions, values, strict=True)
        present = [d.decode(0.5) if v is ABSENT else v for d, v in pairs]
        for i, choice in self._choices:
            present[i] = choice.code(present[i])
        numbers = np.array(present, dtype=float)
        if self._log_at.size:
            numbers[self._log_at] = np.log(numbers[self._log_at])
        with np.errstate(over="ignore"):  # a measured number may lie far beyond its bound
            numbers -= self._offset
            numbers /= self._span
        numbers[lacking] = 0.5
        return numbers.clip(0.0, 1.0, out=numbers)

    def decode(self, unit: Sequence[float] | np.ndarray) -> tuple[Value, ...]:
        """Return the valid flat point nearest to ``(len(self),)`` numbers, clipped to [0, 1].

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

    def steps(self, values: tuple[Value, ...]) -> np.ndarray:
        """Return ``(len(self),)`` how far the farther neighbour of each value is, encoded.

        It is 0 for a continuous, fixed or inactive dimension and for a choice, which has no steps.
        """
        values = self.clip(values)  # one that was measured may miss a step
        here, gaps = self.encode(values), np.zeros(len(self))
        for sign in (-1, 1):
            moved = [
                v if v is ABSENT or isinstance(d, Categorical) or not d.step else v + sign * d.step
                for v, d in zip(values, self.dimensions, strict=True)
            ]
            gaps = np.maximum(gaps, np.abs(self.encode(self.clip(moved)) - here))
        return gaps

    def key(self, values: Sequence[Value]) -> tuple[Hashable, ...]:
        """Return a hashable identity of an exact flat point; choices of two types differ."""
        self._each(values)
        if not (self._choices or self.conditional):
            return tuple(values)
        pairs = zip(self.dimensions, self.conform(values), strict=True)
        return tuple([v if v is ABSENT else d.key(v) for d, v in pairs])

    def tried(self, keys: Iterable[Hashable]) -> int:
        """Return how many keys are of points that can be proposed, without `deviation`."""
        if self.limits and self.cardinality <= MOST_COUNTED:
            there = set(keys)
            return sum(self.key(point) in there for point in self.points())
        table = self._stock
        return sum((table is None or k in table) and not self.deviation(k) for k in keys)  # type: ignore[arg-type]

    # Storage ------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable form; `from_dict` reads it.

        Choices other than ``None``, bool, int, float, str and tuples of these are written by their
        `repr`: this suffices to compare two spaces, but `from_dict` cannot rebuild such a choice.
        """
        texts = dict.fromkeys(c.text for c in self.limits if isinstance(c, Constraint))
        tests = [c.tests for c in self.limits if isinstance(c, Forbidden)]
        return {
            "dimensions": [dimension_to_dict(name, d) for name, d in self._by_name.items()],
            "form": self._form.to_dict(),
            "decimals": self._asked_decimals,
            **({"constraints": list(texts)} if texts else {}),
            **({"forbidden": When(tuple(tests)).to_json()} if tests else {}),
            **({"candidates": self.candidates.to_dict()} if self.candidates is not None else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Space:
        """Rebuild a space from the result of `to_dict`, or its JSON.

        Raises:
            SpaceError: The data is damaged, or contains a choice that cannot be rebuilt.
        """
        try:
            named = [(str(d["name"]), dimension_from_dict(d)) for d in data["dimensions"]]
            form = forms.Form.from_dict(data["form"])
            if len(form.dtypes()) != len(named):
                raise ValueError("form and dimensions differ")
            made = cls.__new__(cls)
            tests = When.from_json(data.get("forbidden", ())).alternatives
            made._set_up(named, form, data["decimals"], data.get("constraints", ()), tests)
            table = data.get("candidates")
            return made if table is None else made._with(Candidates.stored(table))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, SpaceError):
                raise
            raise SpaceError(
                f"the stored space is damaged ({type(error).__name__}: {error}); "
                "expected what Space.to_dict returns."
            ) from error

    def limits_of(self, data: Mapping[str, Any]) -> tuple[Limit, ...]:
        """Return the `limits` of a space with the same parameters, from its `to_dict`."""
        tests = When.from_json(data.get("forbidden", ())).alternatives
        texts = read_constraints(data.get("constraints", ()), self.names)
        return (*texts, *read_forbidden(tests, self._by_name))

    def to_json_values(self, values: Sequence[Value]) -> list[float | int | None]:
        """Return an exact flat point as JSON: of a choice its index, ``None`` if inactive."""
        pairs = zip(self.dimensions, self._each(values), strict=True)
        return [None if v is ABSENT else d.code(v) for d, v in pairs]

    def from_json_values(
        self, values: Sequence[float | int | None], measured: bool = False
    ) -> tuple[Value, ...]:
        """Return the flat point that `to_json_values` wrote, checked as a proposed one.

        Raises:
            ParameterError: See `flatten`, also of a point that was `measured`.
        """
        pairs = zip(self.dimensions, self._each(values), strict=True)
        return self.check([ABSENT if v is None else d.restore(v) for d, v in pairs], measured)
