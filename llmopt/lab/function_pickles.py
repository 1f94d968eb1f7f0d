"""Pickles that carry the functions and classes of blocks, for confined workers alone.

A worker sends them to the workers beside it and into its snapshot. Only a confined process ever
loads one: loading a pickle runs whatever it says.

Only the standard library is imported, and nothing of llmopt that is not beside this file.
"""

from __future__ import annotations

import collections
import functools
import importlib
import io
import marshal
import pickle
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

BLOCK = "block"
"""The module that functions and classes of blocks say they are of."""

given: dict[str, Any] = {}
"""Objects that both sides have, by name: they are not pickled."""

sources: dict[str, str] = {}
"""The text of each class that a block defined, by its name."""

lost: dict[str, str] = {}
"""Why a global variable of a function could not be sent here, by its name."""

_target: dict[str, Any] = {}  # the namespace in which functions are rebuilt


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        # functions of blocks in what it pickled, and names of their classes
        self.met: list[types.FunctionType | str] = []

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, types.ModuleType):
            return "module", value.__name__
        for name, known in given.items():
            if value is known:
                return "given", name
        return None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType) and value.__globals__.get("__name__") == BLOCK:
            self.met.append(value)
            contents = _contents(value)
            made = marshal.dumps(value.__code__), value.__name__, len(contents)
            defaults = value.__defaults__, value.__kwdefaults__
            filled = value.__qualname__, *defaults, value.__dict__, contents
            return make, made, filled, None, None, fill
        if isinstance(value, type) and value.__module__ == BLOCK:
            return self._class(value)
        if isinstance(value, functools._lru_cache_wrapper):
            return _cached, (value.__wrapped__, value.cache_parameters())
        return NotImplemented

    def _class(self, value: type) -> tuple[Any, ...]:
        name, fields = value.__qualname__, getattr(value, "_fields", ())
        if (first := name.partition(".")[0]) in sources:
            self.met.append(first)
            return known_class, (name,)
        if value.__bases__ == (tuple,) and fields:
            return _named_tuple, (name, fields, getattr(value, "_field_defaults", {}))
        raise TypeError(
            f"the class {name.rpartition('.')[2]} is made inside a function, or without a class "
            "statement: define it at the top level of a block"
        )


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        kind, name = pid
        return given[name] if kind == "given" else importlib.import_module(name)


def make(code: bytes, name: str, cells: int) -> types.FunctionType:
    """Return a function of the target namespace, without what it closes over."""
    closure = tuple(types.CellType() for _ in range(cells))
    return types.FunctionType(marshal.loads(code), _target, name, None, closure)


def fill(function: types.FunctionType, state: tuple[Any, ...]) -> None:
    """Give a function its defaults and what it closes over, which may hold itself."""
    function.__qualname__, function.__defaults__, function.__kwdefaults__, named, contents = state
    function.__dict__.update(named)
    function.__module__ = BLOCK
    for cell, content in zip(function.__closure__ or (), contents, strict=True):
        if content:
            cell.cell_contents = content[0]


def known_class(name: str) -> Any:
    """Return a class of the target namespace, nested or not; define it again if it was deleted."""
    first, *inner = name.split(".")
    if first not in _target and first in sources:
        _define(sources[first], _target)
    return functools.reduce(getattr, inner, _target[first])


def _define(source: str, namespace: dict[str, Any]) -> None:
    exec(compile(source, "<class>", "exec", dont_inherit=True), namespace)


def _named_tuple(name: str, names: tuple[str, ...], defaults: Mapping[str, Any]) -> Any:
    found = _target.get(name)
    if getattr(found, "_fields", None) != names:
        make_class: Any = collections.namedtuple
        found = make_class(name, names, defaults=defaults.values(), module=BLOCK)
        _target.setdefault(name, found)
    return found


def _cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def dumps(value: Any) -> bytes:
    """Return the pickle of a value."""
    return _dumped(value)[0]


def _dumped(value: Any) -> tuple[bytes, list[types.FunctionType | str]]:
    """Return the pickle of a value, and the functions and classes of blocks in it."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    return file.getvalue(), pickler.met


def loads(data: bytes, namespace: dict[str, Any]) -> Any:
    """Return the value of a pickle; its functions see `namespace`. Never call this unconfined."""
    global _target
    _target = namespace
    return _Unpickler(io.BytesIO(data)).load()


# -- a function with all that it needs ----------------------------------------------------


def _named(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _named(part)


def _names(made: types.FunctionType | str) -> set[str]:
    """Return the global names that a function or class may look up, and a class's own name."""
    if isinstance(made, types.FunctionType):
        return set(_named(made.__code__))
    return {made, *_named(compile(sources[made], "<class>", "exec", dont_inherit=True))}


def has_source(name: str, value: Any) -> bool:
    """Whether a variable is a class that can be made again from its text."""
    try:
        own = isinstance(value, type) and value.__module__ == BLOCK and value.__qualname__ == name
    except BaseException:  # an object may raise anything when its attributes are read
        return False
    return own and name in sources


def _contents(function: types.FunctionType) -> list[tuple[Any, ...]]:
    """Return what each cell of a closure holds; nothing in place of an empty one."""
    contents: list[tuple[Any, ...]] = []
    for cell in function.__closure__ or ():
        try:
            contents.append((cell.cell_contents,))
        except ValueError:
            contents.append(())
    return contents


def packed(value: Any, space: Mapping[str, Any]) -> bytes:
    """Return the pickle of a value with all globals that its functions name.

    Raises:
        TypeError: It cannot be pickled.
    """
    try:
        whole, waiting = _dumped(value)
    except Exception as error:
        raise TypeError(f"this cannot be sent to another process: {error}") from None
    classes: dict[str, str] = {}
    values: dict[str, bytes] = {}
    trouble: dict[str, str] = {}
    while waiting:
        for name in _names(waiting.pop()) - {*classes, *values, *trouble}:
            if has_source(name, space.get(name)) or (name in sources and name not in space):
                classes[name] = sources[name]
                waiting.append(name)
            elif name in space and not name.startswith("__"):
                try:
                    values[name], met = _dumped(space[name])
                except Exception as error:  # it may never be used: then its name is missing there
                    trouble[name] = str(error)
                else:
                    waiting += met
    return pickle.dumps(([*classes.items()], values, whole, trouble))


def unpacked(data: bytes, namespace: dict[str, Any]) -> Any:
    """Unpack the result of `packed`, in a separate namespace."""
    classes, values, value, *trouble = pickle.loads(data)
    lost.update(*trouble)
    restore(classes, values, namespace)
    return loads(value, namespace)


def restore(
    classes: list[tuple[str, str]], values: Mapping[str, bytes], namespace: dict[str, Any]
) -> list[str]:
    """Make classes and values in a namespace; return the names of those that cannot be made.

    One may need another: what fails is tried again as long as anything is made.
    """
    left: dict[str, tuple[str, bytes]] = {name: (source, b"") for name, source in classes}
    left |= {name: ("", data) for name, data in values.items()}
    before = len(left) + 1
    while left and len(left) < before:
        before = len(left)
        for name, (source, data) in list(left.items()):
            try:
                if source and sources.get(name) == source and name in namespace:
                    pass  # it is the same class as before
                elif source:
                    _define(source, namespace)
                    sources[name] = source
                else:
                    namespace[name] = loads(data, namespace)
            except Exception:
                continue
            del left[name]
    return list(left)
