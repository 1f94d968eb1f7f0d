"""Forms: how the user gives and gets parameters.

A form turns parameters (a dict, an array, a dict of arrays) into a flat list of values and back. It
knows names, shapes and types, but not which values are valid.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from llmopt.errors import ParameterError, SpaceError, did_you_mean
from llmopt.space.dimensions import Dimension, Float, Int
from llmopt.space.values import ABSENT, Value
from llmopt.util.text import a_type, nfc

ROOT = "params"  # name of parameters that are a single value or array


@dataclass(frozen=True)
class Leaf:
    """A scalar, or an array in C order.

    Attributes:
        dtype: NumPy type; ``None`` for a Python scalar.
        shape: Shape of an array; ``None`` for a scalar.
    """

    dtype: str | None = None
    shape: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """The number of its values."""
        return math.prod(self.shape or ())

    def read(self, params: Any, path: str) -> list[Value]:
        """Return its values, or raise `ParameterError`."""
        if self.shape is None:
            # Gymnasium takes True for the 1 of a Discrete; a plain Int does not.
            is_bool = self.dtype is not None and isinstance(params, bool | np.bool_)
            return [int(params) if is_bool else params]
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
        """Return its scalar or array, as a new object."""
        if self.shape is not None:
            return np.array(list(islice(values, self.size)), self.dtype).reshape(self.shape)
        value = next(values)
        return value if self.dtype is None else np.dtype(self.dtype).type(value)


@dataclass(frozen=True)
class Form:
    """A leaf, or a dict of leaves.

    Attributes:
        kind: ``"leaf"`` or ``"dict"``.
        leaves: The leaves.
        keys: Keys of a dict.
        optional: Keys that a dict need not have.
    """

    kind: str
    leaves: tuple[Leaf, ...]
    keys: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    def dtypes(self) -> list[str | None]:
        """Return the type of each flat value."""
        return [leaf.dtype for leaf in self.leaves for _ in range(leaf.size)]

    def read(self, params: Any) -> list[Value]:
        """Return parameters as flat values, or raise `ParameterError`."""
        if self.kind == "leaf":
            return self.leaves[0].read(params, ROOT)
        if not isinstance(params, Mapping):
            raise ParameterError(
                f"got {a_type(params)}; expected a dict with the keys {list(self.keys)}."
            )
        given = {nfc(k) if isinstance(k, str) else k: value for k, value in params.items()}
        own = list(map(nfc, self.keys))
        for name in given.keys() - set(own):
            raise ParameterError(
                f"unknown parameter {name!r}; {did_you_mean(str(name), self.keys)}"
            )
        lacking = [k for k, n in zip(self.keys, own, strict=True) if n not in given]
        if needed := [repr(key) for key in lacking if key not in self.optional]:
            raise ParameterError(f"missing {', '.join(needed)}; give a value for each parameter.")
        named = zip(self.leaves, own, strict=True)
        return [v for leaf, key in named for v in leaf.read(given.get(key, ABSENT), key)]

    def build(self, values: Iterator[Value]) -> Any:
        """Return the parameters of flat values, as new objects."""
        built = [leaf.build(values) for leaf in self.leaves]
        if self.kind == "leaf":
            return built[0]
        pairs = zip(self.keys, built, strict=True)
        return {key: value for key, value in pairs if value is not ABSENT}

    def to_dict(self) -> dict[str, Any]:
        """Return the form as JSON; `from_dict` reads it."""
        shapes = [None if leaf.shape is None else list(leaf.shape) for leaf in self.leaves]
        lists = {"keys": list(self.keys), "optional": list(self.optional), "shapes": shapes}
        return {"kind": self.kind, "dtypes": [leaf.dtype for leaf in self.leaves], **lists}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Form:
        """Return the form that `to_dict` wrote."""
        shapes = [None if shape is None else tuple(shape) for shape in data["shapes"]]
        leaves = map(Leaf, data["dtypes"], shapes)
        return cls(data["kind"], tuple(leaves), tuple(data["keys"]), tuple(data["optional"]))


def plain(names: Sequence[str], optional: Iterable[str]) -> Form:
    """Return the form of a dict with a Python scalar under each name."""
    return Form("dict", (Leaf(),) * len(names), tuple(names), tuple(optional))


# Names --------------------------------------------------------------------------------


def check_names(names: Iterable[str]) -> None:
    """Raise a `SpaceError` for names that a prompt cannot show or tell apart."""
    seen: set[str] = set()
    for name in names:
        if not isinstance(name, str):
            raise SpaceError(f"Space: the name {name!r} is not a string; use str({name!r}).")
        if not name or name != name.strip() or not name.isprintable():
            raise SpaceError(
                f"the name {name!r} is empty or holds white space that a prompt cannot "
                "show; rename it."
            )
        if nfc(name) in seen:
            raise SpaceError(f"two dimensions are named `{name}`; rename one of their keys.")
        seen.add(nfc(name))


# Gymnasium ----------------------------------------------------------------------------


def is_gymnasium(obj: object) -> bool:
    """Whether `obj` is a Gymnasium space; Gymnasium is not imported to find out."""
    kind = getattr(sys.modules.get("gymnasium"), "Space", None)
    return kind is not None and isinstance(obj, kind)


def read_gymnasium(space: Any) -> tuple[Form, list[tuple[str, Dimension]]]:
    """Return the form of a Gymnasium space and its named dimensions."""
    from gymnasium import spaces

    named: list[tuple[str, Dimension]] = []
    if isinstance(space, spaces.Dict):
        keys = tuple(space.spaces)
        if unnamed := [key for key in keys if not isinstance(key, str)]:
            raise SpaceError(f"the key {unnamed[0]!r} of a Dict is not a string; use one")
        leaves = [_leaf(part, key, named) for key, part in space.spaces.items()]
        return Form("dict", tuple(leaves), keys), named
    return Form("leaf", (_leaf(space, ROOT, named),)), named


def _leaf(space: Any, path: str, out: list[tuple[str, Dimension]]) -> Leaf:
    """Append the named dimensions of a part of a Gymnasium space to `out`, and return its form."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        out.append((path, Int(space.start, int(space.start) + int(space.n) - 1)))
        return Leaf(np.dtype(space.dtype).name)
    if isinstance(space, spaces.MultiDiscrete):
        lows, highs = space.start, space.start + space.nvec - 1
    elif isinstance(space, spaces.MultiBinary):
        lows, highs = np.zeros(space.shape, int), np.ones(space.shape, int)
    elif isinstance(space, spaces.Box):
        lows, highs = space.low, space.high
    else:
        raise SpaceError(
            f"`{path}`: {a_type(space)} space cannot be searched; use Box, Discrete, "
            "MultiDiscrete, MultiBinary, or a Dict of these."
        )
    for index in np.ndindex(*space.shape):
        name = f"{path}[{','.join(map(str, index))}]" if index else path
        out.append((name, _of_bounds(space, name, index, lows[index], highs[index])))
    return Leaf(np.dtype(space.dtype).name, tuple(space.shape))


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
