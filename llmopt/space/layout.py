"""Layouts: the form in which the user gives and gets parameters.

A layout turns parameters (a dict, an array, nested dicts and tuples) into a flat list of
values and back. It knows names, shapes and types, but not which values are valid.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, TypeAlias

import numpy as np

from llmopt.errors import ParameterError, SpaceError, did_you_mean
from llmopt.space.dimensions import Dimension, Float, Int
from llmopt.space.values import ABSENT, Value, as_number, choice_from_json, choice_to_json
from llmopt.util.text import a_type, nfc


@dataclass(frozen=True)
class _Leaf:
    """One value: a Python scalar, or a NumPy scalar where there is a `dtype`."""

    dtype: str | None
    kind: ClassVar[str] = "value"
    root: ClassVar[str] = "params"

    def dtypes(self) -> list[str | None]:
        return [self.dtype]

    def read(self, params: Any, path: str, out: list[Value]) -> None:
        # Gymnasium takes True for the 1 of a Discrete; a plain Int does not.
        is_bool = self.dtype is not None and isinstance(params, bool | np.bool_)
        out.append(int(params) if is_bool else params)

    def build(self, values: Iterator[Value]) -> Any:
        value = next(values)
        return value if self.dtype is None else np.dtype(self.dtype).type(value)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "dtype": self.dtype}


@dataclass(frozen=True)
class _Array:
    """An array of values, in C order."""

    dtype: str
    shape: tuple[int, ...]
    kind: ClassVar[str] = "array"
    root: ClassVar[str] = "params"

    def dtypes(self) -> list[str | None]:
        return [self.dtype] * math.prod(self.shape)

    def read(self, params: Any, path: str, out: list[Value]) -> None:
        try:
            array = np.asarray(params)
        except (TypeError, ValueError):
            raise ParameterError(
                f"`{path}` is not an array; expected one of shape {self.shape}."
            ) from None
        if array.shape != self.shape:
            got = f"shape {array.shape}"
            if array.dtype == object:
                got = f"{type(params).__name__} of {got}"
            raise ParameterError(f"`{path}` has {got}; expected an array of shape {self.shape}.")
        if array.dtype == bool:
            if np.dtype(self.dtype).kind == "f":
                raise ParameterError(
                    f"`{path}` is an array of bool; expected numbers of type {self.dtype}."
                )
            array = array.astype(np.int8)
        out.extend(array.ravel().tolist())

    def build(self, values: Iterator[Value]) -> np.ndarray:
        flat = list(islice(values, math.prod(self.shape)))
        return np.array(flat, dtype=self.dtype).reshape(self.shape)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "dtype": self.dtype, "shape": list(self.shape)}


@dataclass(frozen=True)
class _Dict:
    """Named parts."""

    keys: tuple[Hashable, ...]
    parts: tuple[Layout, ...]
    optional: frozenset[Hashable] = frozenset()  # keys that need not be there: see `Space`
    kind: ClassVar[str] = "dict"
    root: ClassVar[str] = ""

    def dtypes(self) -> list[str | None]:
        return [d for part in self.parts for d in part.dtypes()]

    def read(self, params: Any, path: str, out: list[Value]) -> None:
        if not isinstance(params, Mapping):
            raise ParameterError(
                f"{_at(path)}got {a_type(params)}; expected a dict with the keys {list(self.keys)}."
            )
        composed = {nfc(key): key for key in self.keys if isinstance(key, str)}
        params = {
            composed.get(nfc(key), key) if isinstance(key, str) else key: value
            for key, value in params.items()
        }
        there = [key for key in self.keys if key in params]
        if len(there) < len(params) or not self.optional.issuperset({*self.keys} - {*there}):
            raise ParameterError(self._mismatch(params, path))
        for key, part in zip(self.keys, self.parts, strict=True):
            part.read(params.get(key, ABSENT), _join(path, key), out)

    def _mismatch(self, params: Mapping[Any, Any], path: str) -> str:
        unknown = [key for key in params if key not in self.keys]
        if unknown:
            hint = did_you_mean(str(unknown[0]), map(str, self.keys))
            return f"{_at(path)}unknown parameter {unknown[0]!r}; {hint}"
        needed = [key for key in self.keys if key not in self.optional]
        missing = ", ".join(repr(key) for key in needed if key not in params)
        return f"{_at(path)}missing {missing}; give a value for each parameter."

    def build(self, values: Iterator[Value]) -> dict[Hashable, Any]:
        pairs = zip(self.keys, self.parts, strict=True)
        built = {key: part.build(values) for key, part in pairs}
        return {key: value for key, value in built.items() if value is not ABSENT}

    def to_dict(self) -> dict[str, Any]:
        pairs = zip(self.keys, self.parts, strict=True)
        parts = [[choice_to_json(key), part.to_dict()] for key, part in pairs]
        optional = [choice_to_json(key) for key in self.keys if key in self.optional]
        own = {"kind": self.kind, "parts": parts}
        return {**own, "optional": optional} if optional else own


@dataclass(frozen=True)
class _Tuple:
    """Parts in order."""

    parts: tuple[Layout, ...]
    kind: ClassVar[str] = "tuple"
    root: ClassVar[str] = ""

    def dtypes(self) -> list[str | None]:
        return [d for part in self.parts for d in part.dtypes()]

    def read(self, params: Any, path: str, out: list[Value]) -> None:
        if not isinstance(params, tuple | list | np.ndarray) or getattr(params, "ndim", 1) == 0:
            raise ParameterError(
                f"{_at(path)}got {a_type(params)}; expected a tuple of {len(self.parts)} parts."
            )
        if len(params) != len(self.parts):
            raise ParameterError(
                f"{_at(path)}got {len(params)} parts; expected a tuple of {len(self.parts)}."
            )
        for i, (part, item) in enumerate(zip(self.parts, params, strict=True)):
            part.read(item, f"{path}[{i}]", out)

    def build(self, values: Iterator[Value]) -> tuple[Any, ...]:
        return tuple([part.build(values) for part in self.parts])

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "parts": [part.to_dict() for part in self.parts]}


Layout: TypeAlias = _Leaf | _Array | _Dict | _Tuple


def _at(path: str) -> str:
    return f"`{path}`: " if path else ""


def _join(path: str, key: Hashable) -> str:
    return f"{path}.{key}" if path else str(key)


def plain_layout(dimensions: Mapping[str, Dimension]) -> Layout:
    """A dict with a Python scalar under each name; anything else raises `SpaceError`."""
    for name, dimension in dimensions.items():
        if not isinstance(name, str):
            raise SpaceError(f"Space: the name {name!r} is not a string; use str({name!r}).")
        if is_gymnasium(dimension):
            raise SpaceError(
                f"Space: `{name}` is a Gymnasium space among plain dimensions; put them all "
                "in a gymnasium.spaces.Dict and pass that."
            )
        if not isinstance(dimension, Dimension):
            raise SpaceError(
                f"Space: `{name}`={dimension!r} is not a dimension; {_meant(dimension)}"
            )
    optional = frozenset(name for name, d in dimensions.items() if d.when is not None)
    return _Dict(tuple(dimensions), (_Leaf(None),) * len(dimensions), optional)


def _meant(given: Any) -> str:
    """Return the dimension that the user probably meant."""
    pair = isinstance(given, tuple | list) and len(given) == 2
    if pair and all(as_number(end) is not None for end in given):
        ends = f"({given[0]!r}, {given[1]!r})"
        return f"for a range write Float{ends}, or Int{ends} for whole numbers"
    if isinstance(given, tuple | list) and given:
        return f"for choices write Categorical({list(given)!r})"
    return "expected Float(low, high), Int(low, high) or Categorical(choices)."


def layout_from_dict(data: Mapping[str, Any]) -> Layout:
    """Rebuild a layout from its `to_dict`, or raise `SpaceError`."""
    kind = data["kind"]
    if kind == _Leaf.kind:
        return _Leaf(data["dtype"])
    if kind == _Array.kind:
        return _Array(data["dtype"], tuple(data["shape"]))
    if kind == _Dict.kind:
        keys = tuple(choice_from_json(key) for key, _ in data["parts"])
        parts = tuple(layout_from_dict(part) for _, part in data["parts"])
        return _Dict(keys, parts, frozenset(map(choice_from_json, data.get("optional", ()))))
    if kind == _Tuple.kind:
        return _Tuple(tuple(layout_from_dict(part) for part in data["parts"]))
    raise SpaceError(f"unknown layout {kind!r}; expected 'value', 'array', 'dict' or 'tuple'.")


def check_names(names: Iterable[str]) -> None:
    """Raise a `SpaceError` for names that a prompt cannot show or tell apart."""
    seen: set[str] = set()
    for name in names:
        if not name or name != name.strip() or not name.isprintable():
            raise SpaceError(
                f"the name {name!r} is empty or holds white space that a prompt cannot "
                "show; rename it."
            )
        if name in seen:
            raise SpaceError(f"two dimensions are named `{name}`; rename one of their keys.")
        seen.add(name)


# Gymnasium ----------------------------------------------------------------------------


def is_gymnasium(obj: object) -> bool:
    """Whether `obj` is a Gymnasium space; Gymnasium is not imported to find out."""
    # An object of a module that was never imported cannot exist.
    gymnasium = sys.modules.get("gymnasium")
    kind = getattr(gymnasium, "Space", None)
    return kind is not None and isinstance(obj, kind)


def read_gymnasium(space: Any, path: str, out: list[tuple[str, Dimension]]) -> Layout:
    """Append the named dimensions of a Gymnasium space to `out` and return its layout.

    `path` is where it is inside a larger one; empty for the outermost.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        named = space.spaces.items()
        parts = tuple(read_gymnasium(part, _join(path, key), out) for key, part in named)
        return _Dict(tuple(space.spaces), parts)
    if isinstance(space, spaces.Tuple):
        numbered = enumerate(space.spaces)
        return _Tuple(tuple(read_gymnasium(part, f"{path}[{i}]", out) for i, part in numbered))
    path = path or _Leaf.root
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        out.append((path, Int(start, start + int(space.n) - 1)))
        return _Leaf(np.dtype(space.dtype).name)
    if isinstance(space, spaces.MultiDiscrete):
        for index, name in _indexed(path, space.shape):
            start = int(space.start[index])
            out.append((name, Int(start, start + int(space.nvec[index]) - 1)))
    elif isinstance(space, spaces.MultiBinary):
        out.extend((name, Int(0, 1)) for _, name in _indexed(path, space.shape))
    elif isinstance(space, spaces.Box):
        out.extend(_read_box(space, path))
    else:
        raise SpaceError(
            f"{_at(path)}{a_type(space)} space cannot be searched; use Box, Discrete, "
            "MultiDiscrete, MultiBinary, or Dict and Tuple of these."
        )
    return _Array(np.dtype(space.dtype).name, tuple(space.shape))


def _indexed(path: str, shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], str]]:
    """Each index of an array and the name of the value there."""
    for index in np.ndindex(*shape):
        yield index, f"{path}[{','.join(map(str, index))}]" if index else path


def _read_box(box: Any, path: str) -> Iterator[tuple[str, Dimension]]:
    bounded = box.bounded_below & box.bounded_above & np.isfinite(box.low) & np.isfinite(box.high)
    if not bounded.all():
        # An integer Box replaces infinity by the limits of its type: show what was asked for.
        lows = np.where(box.bounded_below, box.low, -np.inf)
        highs = np.where(box.bounded_above, box.high, np.inf)
        open_ = [
            f"`{name}` in [{lows[index]}, {highs[index]}]"
            for index, name in _indexed(path, box.shape)
            if not bounded[index]
        ]
        more = f" and {len(open_) - 3} more" if len(open_) > 3 else ""
        raise SpaceError(
            f"the Box has no finite bounds for {', '.join(open_[:3])}{more}; a search needs a "
            "finite range: give the Box finite low and high, "
            f"as in Box(low=-1.0, high=1.0, shape={box.shape})."
        )
    for index, name in _indexed(path, box.shape):
        if box.dtype.kind != "f":
            yield name, Int(int(box.low[index]), int(box.high[index]))
            continue
        low, high = float(box.low[index]), float(box.high[index])
        # A long double that no float64 holds: the next float64 inside the bounds.
        if low < box.low[index]:
            low = math.nextafter(low, math.inf)
        if high > box.high[index]:
            high = math.nextafter(high, -math.inf)
        try:
            dimension = Float(low, high)
        except SpaceError as error:
            raise SpaceError(f"`{name}`: {error}") from None
        yield name, dimension
