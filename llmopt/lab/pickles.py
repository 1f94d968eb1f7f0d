"""Pickles that carry functions and classes of blocks, over cloudpickle.

A worker sends them to the workers beside it and into its snapshot. Only a confined process ever
loads one, since loading a pickle runs whatever it says.
"""

from __future__ import annotations

import functools
import io
import marshal
import pickle
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

given: dict[str, Any] = {}
"""Objects that every worker has, by name: a pickle holds their names alone."""

_SPACE = "the namespace of blocks"


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles functions of blocks with the globals that they name.

    With `space`, the namespace of blocks, they refer to that namespace instead.
    """

    def __init__(self, file: io.BytesIO, space: dict[str, Any] | None) -> None:
        super().__init__(file, protocol=5)
        self._names = {id(value): name for name, value in given.items()}
        self._space = space
        if space is not None:
            self._names[id(space)] = _SPACE
            self.globals_ref[id(space)] = space

    def persistent_id(self, value: Any) -> str | None:
        return self._names.get(id(value))

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, functools._lru_cache_wrapper):
            return _cached, (value.__wrapped__, value.cache_parameters())
        if isinstance(value, types.CodeType):  # cloudpickle drops the name of its block
            return marshal.loads, (marshal.dumps(value),)
        reduced = super().reducer_override(value)
        if isinstance(value, types.FunctionType) and value.__globals__ is self._space:
            reduced[2][1]["__globals__"] = {}
        return reduced


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, space: dict[str, Any] | None) -> None:
        super().__init__(file)
        self._space = space

    def persistent_load(self, name: Any) -> Any:
        return self._space if name == _SPACE else given[name]


def _cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def dumps(value: Any, space: dict[str, Any] | None = None) -> bytes:
    """Return the pickle of a value; functions refer to `space` if it is given.

    Raises:
        TypeError: It cannot be pickled.
    """
    file = io.BytesIO()
    try:
        _Pickler(file, space).dump(value)
    except Exception as error:
        raise TypeError(f"this cannot be sent to another process: {error}") from None
    return file.getvalue()


def dumps_by_value(function: Callable[..., Any]) -> bytes:
    """Return the pickle of a function of the user, with the functions of its module.

    Raises:
        TypeError: It cannot be pickled.
    """
    module = sys.modules.get(getattr(function, "__module__", None) or "__main__")
    ours = module is not None and module.__name__ not in (
        "__main__", *cloudpickle.list_registry_pickle_by_value()
    )  # fmt: skip
    try:
        if ours:
            cloudpickle.register_pickle_by_value(module)
        data: bytes = cloudpickle.dumps(function, protocol=5)
        return data
    except Exception as error:
        raise TypeError(
            f"compute_objective={function!r:.100} cannot be sent to the sandbox: {error}. Expected "
            "a function that opens no file and holds no connection"
        ) from None
    finally:
        if ours:
            cloudpickle.unregister_pickle_by_value(module)


def loads(data: bytes, space: dict[str, Any] | None = None) -> Any:
    """Return the value of a pickle. Never call this in a process that is not confined."""
    return _Unpickler(io.BytesIO(data), space).load()
