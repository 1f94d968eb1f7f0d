"""Pickles that carry the functions and classes of blocks, for confined workers alone.

A worker sends them to the workers beside it and into its snapshot. Only a confined process ever
loads one: loading a pickle runs whatever it says.

Only the standard library is imported, and nothing of llmopt that is not beside this file.
"""

from __future__ import annotations

import functools
import importlib
import io
import marshal
import pickle
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

BLOCK = "block"
"""The module that functions and classes of blocks say they are of."""

given: dict[str, Any] = {}
"""Objects that both sides have, by name: they are not pickled."""

sources: dict[str, str] = {}
"""The text of each class that a block defined, by its name."""

_MOST_PARTS = 100  # of a list, in which functions and objects of blocks are looked for
_target: dict[str, Any] = {}  # the namespace in which functions are rebuilt


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, types.ModuleType):
            return "module", value.__name__
        for name, known in given.items():
            if value is known:
                return "given", name
        return None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType) and value.__globals__.get("__name__") == BLOCK:
            contents = _contents(value)
            made = marshal.dumps(value.__code__), value.__name__, len(contents)
            defaults = value.__defaults__, value.__kwdefaults__
            filled = value.__qualname__, *defaults, value.__dict__, contents
            return make, made, filled, None, None, fill
        if isinstance(value, type) and value.__module__ == BLOCK:
            return known_class, (value.__name__,)
        if isinstance(value, functools._lru_cache_wrapper):
            return _cached, (value.__wrapped__, value.cache_parameters())
        return NotImplemented


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
    """Return a class of the target namespace."""
    return _target[name]


def _cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def dumps(value: Any) -> bytes:
    """Return the pickle of a value."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(value)
    return file.getvalue()


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


def _codes(value: Any) -> Iterator[types.CodeType]:
    """Yield the code that a function or class of a block, or what holds one, runs."""
    if isinstance(value, types.FunctionType) and value.__globals__.get("__name__") == BLOCK:
        yield value.__code__
    elif isinstance(value, type) and value.__module__ == BLOCK and value.__name__ in sources:
        yield compile(sources[value.__name__], "<class>", "exec", dont_inherit=True)
    for part in _parts(value):
        yield from _codes(part)


def _parts(value: Any) -> Sequence[Any]:
    """Return what a value holds or calls that may be of a block."""
    match value:
        case functools.partial():
            return (value.func, *value.args, *value.keywords.values())
        case types.MethodType():
            return value.__func__, type(value.__self__)
        case functools._lru_cache_wrapper():
            return (value.__wrapped__,)
        case types.FunctionType():
            own = value.__globals__.get("__name__") == BLOCK
            return [content for cell in _contents(value) for content in cell] if own else ()
        case type():
            return ()
        case list() | tuple():
            return value[:_MOST_PARTS]
        case dict():
            return list(value.values())[:_MOST_PARTS]
    return (type(value),) if type(value).__module__ == BLOCK else ()


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
    needed: dict[str, Any] = {}
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if isinstance(current, (list, tuple)):
            waiting += current[:_MOST_PARTS]
        for code in _codes(current):
            for name in _named(code):
                if name in space and name not in needed and not name.startswith("__"):
                    needed[name] = space[name]
                    waiting.append(space[name])
        own = type(current)
        if own.__module__ == BLOCK and own.__name__ not in needed and own.__name__ in space:
            needed[own.__name__] = own
            waiting.append(own)
    classes, values = [], {}
    for name, found in needed.items():
        if isinstance(found, type) and found.__module__ == BLOCK:
            classes.append((name, sources.get(name, "")))
            continue
        try:
            values[name] = dumps(found)
        except Exception:  # it may never be used: then its name is missing, and says so
            continue
    try:
        return pickle.dumps((classes, values, dumps(value)))
    except Exception as error:
        raise TypeError(f"this cannot be sent to another process: {error}") from None


def unpacked(data: bytes, namespace: dict[str, Any]) -> Any:
    """Unpack the result of `packed`, in a separate namespace."""
    classes, values, value = pickle.loads(data)
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
                    exec(compile(source, "<class>", "exec", dont_inherit=True), namespace)
                    sources[name] = source
                else:
                    namespace[name] = loads(data, namespace)
            except Exception:
                continue
            del left[name]
    return list(left)
