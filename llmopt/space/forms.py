"""Forms: how the user gives and gets parameters.

A form turns parameters (a dict, an array, nested dicts and tuples) into a flat list of values and
back. It knows names, shapes and types, but not which values are valid.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from llmopt.errors import ParameterError, SpaceError, did_you_mean
from llmopt.space.dimensions import Dimension, Float, Int
from llmopt.space.values import ABSENT, Value, choice_from_json, choice_to_json
from llmopt.util.text import a_type, nfc

ROOT = "params"  # name of parameters that are a single value or array


@dataclass(frozen=True)
class Form:
    """A scalar, an array in C order, or a dict or tuple of parts.

    Attributes:
        kind: ``"value"``, ``"array"``, ``"dict"`` or ``"tuple"``.
        dtype: NumPy type of a scalar or an array; ``None`` for a Python scalar.
        shape: Shape of an array.
        keys: Keys of a dict.
        parts: Forms of the parts of a dict or tuple.
        optional: Keys that a dict need not have.
    """

    kind: str
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    keys: tuple[Hashable, ...] = ()
    parts: tuple[Form, ...] = ()
    optional: frozenset[Hashable] = frozenset()

    def dtypes(self) -> list[str | None]:
        """Return the type of each flat value."""
        if self.kind in ("value", "array"):
            return [self.dtype] * math.prod(self.shape)
        return [dtype for part in self.parts for dtype in part.dtypes()]

    def read(self, params: Any, path: str = "") -> list[Value]:
        """Return parameters as flat values, or raise `ParameterError`."""
        at = f"`{path}`: " if path else ""
        if self.kind == "value":
            # Gymnasium takes True for the 1 of a Discrete; a plain Int does not.
            is_bool = self.dtype is not None and isinstance(params, bool | np.bool_)
            return [int(params) if is_bool else params]
        if self.kind == "array":
            return self._read_array(params, path or ROOT)
        if self.kind == "tuple":
            if not isinstance(params, tuple | list | np.ndarray) or getattr(params, "ndim", 1) == 0:
                raise ParameterError(
                    f"{at}got {a_type(params)}; expected a tuple of {len(self.parts)} parts."
                )
            if len(params) != len(self.parts):
                raise ParameterError(
                    f"{at}got {len(params)} parts; expected a tuple of {len(self.parts)}."
                )
            numbered = enumerate(zip(self.parts, params, strict=True))
            return [v for i, (part, item) in numbered for v in part.read(item, f"{path}[{i}]")]
        if not isinstance(params, Mapping):
            raise ParameterError(
                f"{at}got {a_type(params)}; expected a dict with the keys {list(self.keys)}."
            )
        given = {nfc(k) if isinstance(k, str) else k: value for k, value in params.items()}
        keys = [nfc(key) if isinstance(key, str) else key for key in self.keys]
        for name in given.keys() - set(keys):
            valid = did_you_mean(str(name), map(str, self.keys))
            raise ParameterError(f"{at}unknown parameter {name!r}; {valid}")
        if missing := [k for k, own in zip(self.keys, keys, strict=True) if own not in given]:
            if needed := [repr(key) for key in missing if key not in self.optional]:
                names = ", ".join(needed)
                raise ParameterError(f"{at}missing {names}; give a value for each parameter.")
        values: list[Value] = []
        for key, own, part in zip(self.keys, keys, self.parts, strict=True):
            values += part.read(given.get(own, ABSENT), join(path, key))
        return values

    def _read_array(self, params: Any, path: str) -> list[Value]:
        try:
            array = np.asarray(params)
        except (TypeError, ValueError):
            array = np.array(None)
        expected = f"expected an array of shape {self.shape} of {self.dtype}."
        if array.shape != self.shape or array.dtype == object:
            of = f"{a_type(params)} of shape" if array.dtype == object else "shape"
            raise ParameterError(f"`{path}` has {of} {array.shape}; {expected}")
        if array.dtype == bool:
            if np.dtype(self.dtype).kind == "f":
                raise ParameterError(f"`{path}` is an array of bool; {expected}")
            array = array.astype(np.int8)
        flat: list[Value] = array.ravel().tolist()
        return flat

    def build(self, values: Iterator[Value]) -> Any:
        """Return the parameters of flat values, as new objects."""
        if self.kind == "value":
            value = next(values)
            return value if self.dtype is None else np.dtype(self.dtype).type(value)
        if self.kind == "array":
            flat = list(islice(values, math.prod(self.shape)))
            return np.array(flat, dtype=self.dtype).reshape(self.shape)
        built = [part.build(values) for part in self.parts]
        if self.kind == "tuple":
            return tuple(built)
        pairs = zip(self.keys, built, strict=True)
        return {key: value for key, value in pairs if value is not ABSENT}

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form; `from_dict` reads it."""
        data: dict[str, Any] = {"kind": self.kind}
        if self.kind in ("value", "array"):
            data["dtype"] = self.dtype
        if self.kind == "array":
            data["shape"] = list(self.shape)
        if self.kind == "tuple":
            data["parts"] = [part.to_dict() for part in self.parts]
        if self.kind == "dict":
            pairs = zip(self.keys, self.parts, strict=True)
            data["parts"] = [[choice_to_json(key), part.to_dict()] for key, part in pairs]
        if self.optional:
            data["optional"] = [choice_to_json(k) for k in self.keys if k in self.optional]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Form:
        """Return the form that `to_dict` wrote, or raise `SpaceError`."""
        kind, parts = data["kind"], data.get("parts", ())
        if kind not in ("value", "array", "dict", "tuple"):
            raise SpaceError(
                f"unknown layout {kind!r}; expected 'value', 'array', 'dict' or 'tuple'."
            )
        keys = tuple(choice_from_json(key) for key, _ in parts) if kind == "dict" else ()
        forms = tuple(cls.from_dict(part[1] if kind == "dict" else part) for part in parts)
        optional = frozenset(map(choice_from_json, data.get("optional", ())))
        return cls(kind, data.get("dtype"), tuple(data.get("shape", ())), keys, forms, optional)


def join(path: str, key: Hashable) -> str:
    """Return the path of a part of a dict."""
    return f"{path}.{key}" if path else str(key)


def plain(names: Sequence[str], optional: Iterable[str]) -> Form:
    """Return the form of a dict with a Python scalar under each name."""
    parts = (Form("value"),) * len(names)
    return Form("dict", keys=tuple(names), parts=parts, optional=frozenset(optional))


# Gymnasium ----------------------------------------------------------------------------


def is_gymnasium(obj: object) -> bool:
    """Whether `obj` is a Gymnasium space; Gymnasium is not imported to find out."""
    kind = getattr(sys.modules.get("gymnasium"), "Space", None)
    return kind is not None and isinstance(obj, kind)


def read_gymnasium(space: Any, path: str, out: list[tuple[str, Dimension]]) -> Form:
    """Append the named dimensions of a Gymnasium space to `out` and return its form.

    `path` is its place in a larger space; empty for the outermost.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        keys = tuple(space.spaces)
        parts = tuple(read_gymnasium(space[key], join(path, key), out) for key in keys)
        return Form("dict", keys=keys, parts=parts)
    if isinstance(space, spaces.Tuple):
        inner = enumerate(space.spaces)
        return Form("tuple", parts=tuple(read_gymnasium(s, f"{path}[{i}]", out) for i, s in inner))
    path = path or ROOT
    if isinstance(space, spaces.Discrete):
        out.append((path, Int(space.start, int(space.start) + int(space.n) - 1)))
        return Form("value", np.dtype(space.dtype).name)
    if isinstance(space, spaces.MultiDiscrete):
        lows, highs = space.start, space.start + space.nvec - 1
    elif isinstance(space, spaces.MultiBinary):
        lows, highs = np.zeros(space.shape, int), np.ones(space.shape, int)
    elif isinstance(space, spaces.Box):
        lows, highs = space.low, space.high
    else:
        raise SpaceError(
            f"`{path}`: {a_type(space)} space cannot be searched; use Box, Discrete, "
            "MultiDiscrete, MultiBinary, or Dict and Tuple of these."
        )
    for index in np.ndindex(*space.shape):
        name = f"{path}[{','.join(map(str, index))}]" if index else path
        out.append((name, _of_bounds(space, name, index, lows[index], highs[index])))
    return Form("array", np.dtype(space.dtype).name, tuple(space.shape))


def _of_bounds(space: Any, name: str, index: tuple[int, ...], low: Any, high: Any) -> Dimension:
    """Return the dimension of one number of an array."""
    # An integer Box replaces infinity by the limits of its type.
    open_low = not getattr(space, "bounded_below", np.ones(space.shape, bool))[index]
    open_high = not getattr(space, "bounded_above", np.ones(space.shape, bool))[index]
    if open_low or open_high or not np.isfinite(low) or not np.isfinite(high):
        ends = f"[{-np.inf if open_low else low}, {np.inf if open_high else high}]"
        raise SpaceError(
            f"the Box has no finite bounds for `{name}` in {ends}; a search needs a finite range: "
            f"give the Box finite low and high, as in Box(low=-1.0, high=1.0, shape={space.shape})."
        )
    if space.dtype.kind != "f":
        return Int(int(low), int(high))
    # A long double that no float64 holds: the next float64 inside the bounds.
    least, most = float(low), float(high)
    least = math.nextafter(least, math.inf) if least < low else least
    most = math.nextafter(most, -math.inf) if most > high else most
    try:
        return Float(least, most)
    except SpaceError as error:
        raise SpaceError(f"`{name}`: {error}") from None
