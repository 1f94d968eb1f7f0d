"""A Nevergrad parametrization as a `Space`: names, ranges, and conversion of values.

Points are proposed as values, never in Nevergrad's standardized space, where bounds bounce,
a `Choice` has one random weight for each option and a `TransitionChoice` does not come back
as it went in. Each number of an `Array`, each `Scalar` and `Log` is one `Float` or `Int`,
each `Choice` one `Categorical`, under the name it has in the user's code.

A number without bounds gets a *working range*: the interval that the parametrization's own
three-sigma steps reach from its initial value. `ParameterSpace.widen` moves its open ends
outwards when the best points lie near or beyond them.
"""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from nevergrad import p
from nevergrad.parametrization import _datalayers
from nevergrad.parametrization.choice import BaseChoice
from nevergrad.parametrization.container import Container
from nevergrad.parametrization.data import Data

from llmopt.errors import SpaceError
from llmopt.space import Categorical, Dimension, Float, Int, Space, Value

# Log and sigma are multiplicative: three of Nevergrad's steps each way, as for its bounds.
_SIGMAS = 3.0
# Working ranges end where float arithmetic on them could overflow or lose whole numbers.
_LARGEST = 1e150
_LARGEST_INT = 2**53
_DRAWS = 100  # of a point that keeps the constraints
# How far an end that a transform cannot take is moved inwards, as a share of the range.
_PULLS = (0.0, 1e-12, 1e-9, 1e-6, 1e-3)
_LABEL_LENGTH = 60


@dataclass
class _Number:
    """One number: its range, and which ends of it are the user's own bounds."""

    name: str
    low: float
    high: float
    center: float
    integer: bool = False
    log: bool = False
    open_low: bool = False
    open_high: bool = False

    def dimension(self) -> Dimension:
        if self.integer:
            return Int(math.ceil(self.low), math.floor(self.high), log=self.log)
        return Float(self.low, self.high, log=self.log)

    def scale(self, value: float) -> float:
        return math.log(value) if self.log else value

    def unscale(self, value: float) -> float:
        return math.exp(min(value, 350.0)) if self.log else value


@dataclass
class _Leaf:
    """A part of the parametrization that holds values, and where it is."""

    path: tuple[Any, ...]  # keys that lead to it from the root

    def find(self, root: p.Parameter) -> Any:
        found: Any = root
        for key in self.path:
            found = found[key]
        return found


@dataclass
class _Numbers(_Leaf):
    """An `Array`, `Scalar` or `Log`."""

    numbers: list[_Number]
    shape: tuple[int, ...]
    scalar: bool

    @property
    def names(self) -> list[str]:
        return [n.name for n in self.numbers]

    def read(self, root: p.Parameter) -> list[Value]:
        found = np.asarray(self.find(root).value, dtype=float).ravel().tolist()
        return [
            round(v) if n.integer and math.isfinite(v) else v
            for n, v in zip(self.numbers, found, strict=True)
        ]

    def write(self, root: p.Parameter, values: Sequence[Value]) -> None:
        part = self.find(root)
        if not self._set(part, np.array(values, dtype=float)):
            # A transform of the user's may refuse values inside its bounds.
            self._set(part, np.array([n.center for n in self.numbers]))

    def holds(self, root: p.Parameter, values: np.ndarray) -> bool:
        """Whether the parametrization takes these values and gives the same ones back."""
        part = self.find(root)
        if not self._set(part, values):
            return False
        with np.errstate(all="ignore"):
            found = np.asarray(part.value, dtype=float).ravel()
            data = part.get_standardized_data(reference=part)
        return bool(np.isfinite(data).all() and np.allclose(found, values, rtol=1e-6, atol=1e-9))

    def _set(self, part: Any, values: np.ndarray) -> bool:
        value = float(values[0]) if self.scalar else values.reshape(self.shape)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                part.value = value
            except ValueError:
                return False
            return bool(
                np.isfinite(part._value).all()
                and np.isfinite(np.asarray(part.value, dtype=float)).all()
            )


@dataclass
class _Choices(_Leaf):
    """The options of a `Choice` or `TransitionChoice`, for each of its repetitions."""

    names: list[str]
    tokens: tuple[Hashable, ...]
    ordinal: Int | None

    def dimension(self) -> Dimension:
        return self.ordinal or Categorical(self.tokens)

    def read(self, root: p.Parameter) -> list[Value]:
        return [self.tokens[int(i)] for i in np.ravel(self.find(root).indices.value)]

    def write(self, root: p.Parameter, values: Sequence[Value]) -> None:
        # By position, not by value: two options may take the same value.
        self.find(root).indices.value = np.array([self.tokens.index(v) for v in values], dtype=int)


_AnyLeaf = _Numbers | _Choices


class ParameterSpace:
    """Converts between a Nevergrad parametrization and the flat points of a `Space`.

    Args:
        parametrization: The parametrization. It is not changed or kept; its random state is not
            used.
        constraints: Linear inequalities over its parameters, under the names in `space`.

    Attributes:
        space: The search space, with the working ranges as they are now.
    """

    space: Space

    def __init__(self, parametrization: p.Parameter, constraints: str | Iterable[str] = ()) -> None:
        self._constraints = [constraints] if isinstance(constraints, str) else list(constraints)
        # A copy with a separate random state, so that the user's does not advance.
        self._reference = parametrization.copy()
        self._reference.random_state = np.random.RandomState(0)
        self._taken: set[str] = set()
        self._leaves: list[_AnyLeaf] = []
        self._walk(self._reference, (), "")
        self._make_space()

    @property
    def open_names(self) -> tuple[str, ...]:
        """Names of the numbers that have a working range."""
        numbers = (d for d in self._per_dimension() if isinstance(d, _Number))
        return tuple(n.name for n in numbers if n.open_low or n.open_high)

    @property
    def initial(self) -> tuple[Value, ...]:
        """The parametrization's own initial point."""
        return self.space.clip(self.read(self._reference))

    def read(self, candidate: p.Parameter) -> tuple[Value, ...]:
        """Return a candidate's flat values; those of unbounded numbers are unchanged."""
        return tuple(v for leaf in self._leaves for v in leaf.read(candidate))

    def spawn(self, parametrization: p.Parameter, values: Sequence[Value]) -> p.Parameter:
        """Return a child of the parametrization with the values of a flat point."""
        child = parametrization.spawn_child()
        rest = list(values)
        for leaf in self._leaves:
            size = len(leaf.names)
            leaf.write(child, rest[:size])
            del rest[:size]
        return child

    def moved(self, candidate: p.Parameter, values: Sequence[Value]) -> tuple[Value, ...] | None:
        """Return a candidate's values if they have changed, else ``None``."""
        found = self.read(candidate)
        same = [
            math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) if isinstance(a, float) else a == b
            for a, b in zip(found, values, strict=True)
        ]
        return None if all(same) else found

    def draw(self, rng: np.random.Generator) -> tuple[Value, ...]:
        """Sample a flat point: uniform within bounds, otherwise normal around the initial value.

        For a working range of init ± 3 sigma, Nevergrad samples in the same way.
        """
        both = [
            isinstance(d, _Number) and d.open_low and d.open_high for d in self._per_dimension()
        ]
        for _ in range(_DRAWS):
            unit = self.space.encode(self.space.sample(rng))
            normal = 0.5 + rng.standard_normal(len(self.space)) / (2 * _SIGMAS)
            values = self.space.decode(np.where(both, normal, unit).clip(0.0, 1.0))
            if self.space.admits(values):
                return values
        return self.space.sample(rng)

    def widen(self, best: Sequence[Sequence[Value]]) -> bool:
        """Move the open ends of working ranges outwards if the best points lie near them.

        Afterwards the ranges contain all of these points. If two or more lie in the outer tenth of
        a range, the range doubles on that side; a single one may lie there by chance. Ranges never
        shrink. Returns whether `space` changed.
        """
        changed = False
        for i, number in enumerate(self._per_dimension()):
            if not isinstance(number, _Number) or not (number.open_low or number.open_high):
                continue
            found = [number.scale(v[i]) for v in best if not number.log or v[i] > 0]
            found = [v for v in found if math.isfinite(v)]
            for upper in (False, True):
                if found and (number.open_high if upper else number.open_low):
                    changed |= self._widen_end(number, found, upper)
        if changed:
            self._make_space()
        return changed

    def _widen_end(self, number: _Number, found: list[float], upper: bool) -> bool:
        low, high = number.scale(number.low), number.scale(number.high)
        span, sign, end = high - low, (1 if upper else -1), (high if upper else low)
        farthest = max(sign * v for v in found)
        near = sum(sign * v > sign * end - 0.1 * span for v in found)
        if farthest > sign * end:
            moved = sign * farthest + sign * 0.1 * span
        elif near >= 2:
            moved = end + sign * span
        else:
            return False
        value = number.unscale(moved)
        if number.integer:
            value = float(math.ceil(value) if upper else math.floor(value))
        limit = _LARGEST_INT if number.integer else _LARGEST
        if abs(value) > limit or (number.log and value <= 0) or not self._takes(number, value):
            # The parametrization ends here, or numbers do.
            setattr(number, "open_high" if upper else "open_low", False)
            return False
        setattr(number, "high" if upper else "low", value)
        return True

    def _takes(self, number: _Number, value: float) -> bool:
        for leaf in self._leaves:
            if isinstance(leaf, _Numbers) and any(n is number for n in leaf.numbers):
                at = [value if n is number else n.center for n in leaf.numbers]
                return leaf.holds(self._reference.spawn_child(), np.array(at))
        return True

    def _per_dimension(self) -> list[_Number | _Choices]:
        found: list[_Number | _Choices] = []
        for leaf in self._leaves:
            if isinstance(leaf, _Choices):
                found += [leaf] * len(leaf.names)
            else:
                found += leaf.numbers
        return found

    def _make_space(self) -> None:
        names = (name for leaf in self._leaves for name in leaf.names)
        dimensions = {n: d.dimension() for n, d in zip(names, self._per_dimension(), strict=True)}
        self.space = Space(dimensions, constraints=self._constraints)

    # -- reading the parametrization ------------------------------------------------------

    def _walk(self, part: Any, path: tuple[Any, ...], name: str) -> None:
        if isinstance(part, p.Constant):
            return
        if isinstance(part, BaseChoice):
            self._add_choice(part, path, name or _given(part) or "params")
        elif isinstance(part, Data):
            self._leaves.append(self._read_data(part, path, name or _given(part) or "params"))
        elif isinstance(part, p.Instrumentation):
            for i, item in enumerate(part[0]):
                self._walk(item, (*path, 0, i), _given(item) or _under(name, f"args[{i}]"))
            for key, item in part[1].items():
                self._walk(item, (*path, 1, key), _under(name, str(key)))
        elif isinstance(part, p.Tuple):
            for i, item in enumerate(part):
                inside = f"{name or _given(part) or 'params'}[{i}]"
                self._walk(item, (*path, i), _given(item) or inside)
        elif isinstance(part, Container):
            for key, item in part._content.items():
                self._walk(item, (*path, key), _under(name or _given(part), str(key)))
        elif part.dimension:
            raise SpaceError(
                f"{name or _given(part) or 'params'}: {type(part).__name__} is no parameter type "
                "that a model can be asked for: expected Scalar, Log, Array, Choice or "
                "TransitionChoice, or Tuple, Dict or Instrumentation of these"
            )

    def _add_choice(self, part: Any, path: tuple[Any, ...], name: str) -> None:
        options = list(part.choices)
        tokens = _tokens(options)
        shape = () if part._repetitions is None else (part._repetitions,)
        ordinal = _ordinal(tokens) if isinstance(part, p.TransitionChoice) else None
        self._leaves.append(_Choices(path, self._indexed(name, shape), tokens, ordinal))
        for i, option in enumerate(options):
            self._walk(option, (*path, "choices", i), f"{name}.option{i}")

    def _read_data(self, part: Any, path: tuple[Any, ...], name: str) -> _Numbers:
        value = np.asarray(part.value, dtype=float)
        scalar = not isinstance(part.value, np.ndarray)
        shape = () if scalar else value.shape
        center = value.ravel()
        low, high = _bounds(part, center)
        reached = [center, *(_step(part, z, center) for z in (-_SIGMAS, _SIGMAS))]
        log = _is_log(part, low, center)
        numbers = []
        for i, one in enumerate(self._indexed(name, shape)):
            ends = float(low[i]), float(high[i])
            number = _Number(one, *ends, float(center[i]), bool(part.integer), log)
            number.open_low, number.open_high = (not math.isfinite(e) for e in ends)
            _set_range(number, [float(r[i]) for r in reached])
            numbers.append(number)
        leaf = _Numbers(path, numbers, shape, scalar)
        if not part.integer:
            for end, other in (("low", "high"), ("high", "low")):
                self._pull_in(leaf, end, other)
        return leaf

    def _pull_in(self, leaf: _Numbers, end: str, other: str) -> None:
        """Leave out what cannot be reached: tanh bounds, what lies below 0 for a square."""
        ends = np.array([getattr(n, end) for n in leaf.numbers])
        span = np.array([getattr(n, other) for n in leaf.numbers]) - ends
        for pull in _PULLS:
            pulled = ends + pull * span
            if leaf.holds(self._reference.spawn_child(), pulled):
                for number, value in zip(leaf.numbers, pulled.tolist(), strict=True):
                    setattr(number, end, value)
                return
        for number in leaf.numbers:
            if getattr(number, f"open_{end}"):
                setattr(number, end, number.center)
                setattr(number, f"open_{end}", False)

    def _indexed(self, name: str, shape: tuple[int, ...]) -> list[str]:
        """Return a name for each element, none of them used before."""
        clean = " ".join("".join(c if c.isprintable() else " " for c in name).split()) or "params"
        base, count = clean, 1
        while base in self._taken:
            count += 1
            base = f"{clean}_{count}"
        self._taken.add(base)
        return [
            f"{base}[{','.join(map(str, index))}]" if index else base
            for index in np.ndindex(*shape)
        ]


def _given(part: Any) -> str:
    """Return the name that the user gave with `set_name`, if any."""
    return getattr(part, "_name", None) or ""


def _under(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _bounds(part: Any, center: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the user's bounds of each element, infinite where there are none."""
    shape = np.shape(part.value)
    ends = [
        np.full(center.shape, fill)
        if bound is None
        else np.broadcast_to(np.asarray(bound, dtype=float), shape or (1,)).ravel().copy()
        for bound, fill in zip(part.bounds, (-math.inf, math.inf), strict=True)
    ]
    low, high = (_neat(np.minimum(*ends)), _neat(np.maximum(*ends)))
    # A decreasing transform (`-scalar`) turns a lower bound into an upper one; Nevergrad
    # still reports it as lower. Where the values lie tells.
    probes = np.array([center, _step(part, -1.0, center), _step(part, 1.0, center)])
    flip_low = np.isfinite(low) & np.isinf(high) & (probes.min(0) < low)
    flip_high = np.isfinite(high) & np.isinf(low) & (probes.max(0) > high)
    new_low = np.where(flip_low, -math.inf, np.where(flip_high, high, low))
    new_high = np.where(flip_high, math.inf, np.where(flip_low, low, high))
    return new_low, new_high


def _neat(values: np.ndarray) -> np.ndarray:
    """Undo the rounding of a bound that went through a logarithm and back."""
    rounded = np.array([float(f"{v:.12g}") for v in values])
    return np.where(np.isclose(rounded, values, rtol=1e-14, atol=0.0), rounded, values)


def _step(part: Any, z: float, center: np.ndarray) -> np.ndarray:
    """Return the values that lie `z` of Nevergrad's steps from the initial ones."""
    child = part.spawn_child()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            child.set_standardized_data(np.full(part.dimension, z))
            found = np.asarray(child.value, dtype=float).ravel()
        except (ValueError, OverflowError):
            return center
    return np.where(np.isfinite(found), found, center)


def _is_log(part: Any, low: np.ndarray, center: np.ndarray) -> bool:
    """Whether values are exponentials of the mutated number, without an offset."""
    kinds = [type(layer) for layer in part._layers]
    if _datalayers.Exponent not in kinds or _datalayers.Add in kinds:
        return False
    least = 1.0 if part.integer else 0.0
    bounded = np.isfinite(low)
    return bool((center > 0).all() and (low[bounded] >= least).all() and (center >= least).all())


def _set_range(number: _Number, reached: list[float]) -> None:
    """Fill in the open ends of a range, and keep both ends in order."""
    center = number.center
    if number.open_low:
        number.low = min(reached)
        if number.low >= center:
            number.low = center / 8 if number.log else center - max(1.0, abs(center))
    if number.open_high:
        number.high = max(reached)
        if number.high <= center:
            number.high = center * 8 if number.log else center + max(1.0, abs(center))
    if number.integer:
        low, high = math.ceil(number.low), math.floor(number.high)
        if number.log:
            low = max(low, 1)
        if low > high:
            low = high = round(center)
        number.low, number.high = float(low), float(high)


def _tokens(options: Iterable[Any]) -> tuple[Hashable, ...]:
    """Return each option's value in the space: the option if it is plain, else a text."""
    found: list[Hashable] = []
    for i, option in enumerate(options):
        plain = not isinstance(option, p.Parameter) or isinstance(option, p.Constant)
        value = option.value if isinstance(option, p.Constant) else option
        value = value.item() if isinstance(value, np.generic) else value
        found.append((value if _is_plain(value) else _label(value)) if plain else f"option{i}")
    # Options that compare equal (1 and True, or the same text twice) must be distinguished.
    if len(set(found)) == len(found):
        return tuple(found)
    labels: list[Hashable] = []
    for token in found:
        text = token if isinstance(token, str) else repr(token)
        label, count = text, 1
        while label in labels:
            count += 1
            label = f"{text}#{count}"
        labels.append(label)
    return tuple(labels)


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or (type(value) in (bool, int, float, str) and value == value)


def _label(value: Any) -> str:
    """Return a short text for an option, the same in every run."""
    name = getattr(value, "__name__", None)
    text = name if isinstance(name, str) else re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
    text = " ".join(text.split())
    return text if len(text) <= _LABEL_LENGTH else text[: _LABEL_LENGTH - 3] + "..."


def _ordinal(tokens: tuple[Hashable, ...]) -> Int | None:
    """Return the integers that ordered options are, if they are equally spaced ones."""
    if len(tokens) < 2 or not all(type(t) is int for t in tokens):
        return None
    numbers = cast("tuple[int, ...]", tokens)
    step = numbers[1] - numbers[0]
    even = all(b - a == step for a, b in itertools.pairwise(numbers))
    return Int(numbers[0], numbers[-1], step=step) if even and step > 0 else None
