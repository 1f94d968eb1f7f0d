"""What runs in the confined worker: blocks of Python in one namespace, and what they find there.

`llmopt.lab.laboratory` has a worker import this file before its confinement; nothing else does.
It may import only files beside it, and modules that the worker has imported.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import io
import math
import os
import pickle
import random
import re
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from llmopt.lab import pickles, pool, toolbox
from llmopt.packing import pack, unpack

_ALLOWED = ("poll", "ppoll", "clock_nanosleep")
_MOST_RAW = 160 << 20  # bytes of all variables before they are compressed
_SPARE = 2 << 20  # bytes of a snapshot beside the variables: sources, names
_MOST_NAMES = 150
_MOST_ROWS = 50  # of a list of points, each of which may be proposed as `NAME[i]`
_SAY, _AT_ONCE = 0.05, 5.0  # what is printed is sent each 0.05 s, but 100 lines at once
_SPARE_WORDS = 500  # characters of what is said beside it if the block is ended
_MOST_NAME = 80
_MOST_TEXT = 200  # characters of a text in the values of a variable
_NUMBERS = {
    kind for kind in np.sctypeDict.values() if issubclass(kind, (np.number, np.bool_, np.str_))
}
_USUAL = ("math", "random", "itertools", "functools", "collections", "time", "numpy", "scipy")

# Blocks are `__main__`: their classes and functions are pickled by value, and
# ``if __name__ == "__main__":`` runs.
_block = sys.modules["__main__"] = ModuleType("__main__")
_space: dict[str, Any] = vars(_block)
_tools = sys.modules["tools"] = ModuleType("tools")
_given: set[str] = set()  # names that no block made
_sources: dict[str, list[str]] = {}
_count = 0
_pool = pool.Pool(())
_say: Callable[[str], None] = lambda text: None  # noqa: E731


class Data(Mapping[int, Mapping[str, Any]]):
    """The arrays of each trial by the number that the prompt has for it, unpacked when used."""

    def __init__(self) -> None:
        self.packed: dict[int, bytes] = {}
        self._open: dict[int, Mapping[str, Any]] = {}

    def take(self, number: int, packed: bytes) -> None:
        """Take in the data of a trial."""
        self._open.pop(number, None)
        if packed:
            self.packed[number] = packed
        else:
            self.packed.pop(number, None)

    def __getitem__(self, number: int) -> Mapping[str, Any]:
        if number not in self.packed:
            known = ", ".join(map(str, sorted(self.packed))) or "none"
            raise KeyError(f"no data of #{number}; there are data of: {known}")
        if number not in self._open:
            self._open[number] = unpack(self.packed[number])
        return self._open[number]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.packed))

    def __len__(self) -> int:
        return len(self.packed)

    def __repr__(self) -> str:
        return f"data of {', '.join(f'#{number}' for number in self) or 'no point'}"


_data = Data()


# -- before confinement -----------------------------------------------------------------------


def prepare(
    confine: Any,
    paused: Callable[[], contextlib.AbstractContextManager[None]],
    say: Callable[[str], None],
    workers: int,
    memory: int,
    cpu: int,
    wall: int,
    numba: bool,
    cma: bool,
) -> tuple[str, ...]:
    """Fork the workers of the pool, and return the further system calls that this one needs."""
    global _pool, _say
    if numba:
        from llmopt.lab.warmup import warm_up

        warm_up()
    if cma:
        _import_cma()
    random.seed(0)
    np.random.seed(0)  # so that a search that is run again sees the same
    warnings.formatwarning = _warning

    def begin(parent: int) -> dict[str, Callable[..., Any]]:
        confine.die_with(parent)
        confine.set_limits(memory, cpu, wall)
        confine.confine(allowed=_ALLOWED)
        pickles.given.update(pmap=_serial, submit=_no_job, wait=_no_job)
        return {"take": _data.take, "equip": _equip, "take_objective": _load_objective}

    unpack(pack({"a": [0.0, "b"], "c": [[1], [2]]}))  # what Python loads when it is first needed
    builtins.open = io.open = _no_file
    os.getcwd = lambda: "/"  # numba and cma ask for it
    pickles.given["data"] = _data
    _pool = pool.fork(workers, begin)
    _pool.paused, _say = paused, say
    toolbox.pmap = _pool.pmap
    modules = {k: v for k, v in sys.modules.items() if k in _USUAL and v}
    mine: dict[str, Any] = {
        **modules,
        "np": np,
        "data": _data,
        "pmap": _pool.pmap,
        "submit": _pool.submit,
        "wait": _pool.wait,
        "report": pool.report,
        "cma": toolbox.cma,
        "fit": toolbox.fit,
    }
    _space.update(mine)
    _given.update(mine)
    pickles.given |= {name: mine[name] for name in ("pmap", "submit", "wait")}
    return _ALLOWED


def _import_cma() -> None:
    """Import the package cma without its plots, whose import takes longer and writes files."""
    hidden = {"matplotlib": None} if "matplotlib" not in sys.modules else {}
    sys.modules.update(hidden)  # type: ignore[arg-type]
    with contextlib.suppress(ImportError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it cannot plot
        importlib.import_module("cma")
    for name in hidden:
        del sys.modules[name]


def _warning(message: Any, category: type[Warning], *_: Any, **__: Any) -> str:
    return f"{category.__name__}: {message}\n"  # no path of this machine: a provider sees it


def _serial(function: Callable[[Any], Any], items: Any) -> list[Any]:
    return [function(item) for item in items]


def _no_job(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a job and a function of pmap cannot submit a job")


def _no_file(file: Any, *_: Any, **__: Any) -> Any:
    raise PermissionError(
        f"{str(file)[:100]!r} cannot be opened: there are no files here. Keep values in "
        "variables, which stay, and text in io.StringIO"
    )


# -- what the parent calls ----------------------------------------------------------------------


def take(packed: bytes, number: int) -> None:
    """Take in the data of a trial, here and in the other workers."""
    _data.take(number, packed)
    _pool.prepare("take", number, packed)


def take_objective(data: bytes) -> None:
    """Define the search's `objective`, here and in the other workers."""
    _pool.prepare("take_objective", data)
    _load_objective(data)
    _space["objective"] = pickles.given["objective"]
    _given.add("objective")


def _load_objective(data: bytes) -> None:
    pickles.given["objective"] = pickles.loads(data)


def equip(source: str, values: dict[str, Any]) -> None:
    """Define the search's own functions, here and in the other workers."""
    _pool.prepare("equip", source, values)
    names = _equip(source, values)
    _space.update(names)
    _given.update(names)


def _equip(source: str, values: dict[str, Any]) -> dict[str, Any]:
    space = vars(_tools)
    space.update(values, np=np, numpy=np, math=sys.modules["math"])
    before = set(space)
    exec(compile(source, "<tools>", "exec", dont_inherit=True), space)
    return {
        name: value
        for name, value in space.items()
        if name not in before and callable(value) and name[0] != "_"
        and getattr(value, "__module__", "") == "tools"
    }  # fmt: skip


def run(
    code: str, given: dict[str, Any], most: int, most_values: int
) -> tuple[str, list[str], bool, dict[str, Any]]:
    """Run a block.

    Returns:
        The printed text (at most `most` characters), the variables it left, whether it failed, and
        the values of the variables that can be a point (at most `most_values` in all).
    """
    global _count
    _count += 1
    _space.update(given)
    _given.update(given)
    printed, file, failed = _Output(most), f"<block {_count}>", False
    _sources[file] = code.splitlines()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            tree = ast.parse(code, file)
            last = tree.body[-1] if tree.body else None
            shown = isinstance(last, ast.Expr)
            del tree.body[len(tree.body) - shown :]
            exec(compile(tree, file, "exec", dont_inherit=True), _space)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), file, "eval"), _space)
                if value is not None:
                    print(value if isinstance(value, str) else repr(value))
        except BaseException as error:  # sys.exit is the block's, too
            failed = True
            print(_trace(error))
    _pool.look()
    names = [n for n in _space if n not in _given and not n.startswith("_") and _own(_space[n])]
    named = [f"{n[:_MOST_NAME]} ({_kind(_space[n])})"[:_MOST_NAME] for n in names[-_MOST_NAMES:]]
    if len(names) > _MOST_NAMES:
        named.insert(0, f"{len(names) - _MOST_NAMES} earlier ones that are not listed")
    # If not all fit: first the variables that the block names, then the latest.
    names.sort(key=set(re.findall(r"\w+", code)).__contains__)
    return printed.kept(), named, failed, _points(names, given.get("names", ()), most_values)


def _points(names: Sequence[str], parameters: Sequence[str], most: int) -> dict[str, Any]:
    """Return the plain values of variables that can be a point, the last first, then of rows.

    Only exact types are read, so that no code of the block runs.
    """
    found: dict[str, Any] = {}
    whole = [(name, _space[name]) for name in reversed(names)]
    rows = [
        (f"{name}[{i}]", row)
        for name, value in whole
        if type(value) in (list, tuple) or (type(value) is np.ndarray and value.ndim == 2)
        for i, row in enumerate(value[:_MOST_ROWS])
    ]
    for name, value in (*whole, *rows):
        kind = type(value)
        if kind is dict:
            fits = all(type(key) is str and len(key) <= _MOST_TEXT for key in value)
            fits = (
                fits and len(value) <= len(parameters) and any(map(value.__contains__, parameters))
            )
        elif kind is np.ndarray:
            fits = value.shape == (len(parameters),) and value.dtype.kind in "fiubUO"
        else:
            fits = kind in (list, tuple) and len(value) == len(parameters)
        if not fits:
            continue
        try:
            plain = [_plain(item) for item in (value.values() if kind is dict else value)]
        except TypeError:
            continue
        # What is longer than a number counts as more: all must fit into one message.
        most -= len(plain) + sum(
            len(ascii(i)) // 30 for i in (*plain, *(value if kind is dict else ()))
        )
        if most < 0:
            break
        found[name] = dict(zip(value, plain, strict=True)) if kind is dict else plain
    return found


def _plain(item: Any) -> Any:
    if type(item) in _NUMBERS:
        item = item.item()
    kind = type(item)
    if kind is float:
        return item if math.isfinite(item) else str(item)
    if kind is int and abs(item) < 10**300:
        return item
    if item is None or kind is bool or (kind is str and len(item) <= _MOST_TEXT):
        return item
    raise TypeError


class _Output(io.TextIOBase):
    """What a block prints: its beginning and its end, however much it is."""

    def __init__(self, most: int) -> None:
        self._half = most // 2 - 40
        self._head, self._tail, self._length = "", "", 0
        self._next = 0.0  # when it may be sent, for the case that the block is ended

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        text = str(text)
        self._length += len(text)
        room = self._half - len(self._head)
        self._head += text[:room] if room > 0 else ""
        rest = text[max(0, room) :]
        if len(rest) + len(self._tail) > 4 * self._half:
            self._tail = (self._tail + rest[-self._half :])[-self._half :]
        else:
            self._tail += rest
        now = time.monotonic()
        if text.endswith("\n") and now > self._next:
            self._next = max(self._next, now - _AT_ONCE) + _SAY
            _say(self.kept(spare=_SPARE_WORDS))
        return len(text)

    def kept(self, spare: int = 0) -> str:
        """Return it, cut in the middle, with room for `spare` more characters."""
        half = self._half - spare
        left = self._length - len(self._head) - half
        if left <= 0:
            return self._head + self._tail
        return f"{self._head}\n[{left} characters are not shown]\n{self._tail[-half:]}"


def snapshot(most: int) -> bytes:
    """Return all variables, functions and jobs, compressed; what cannot be kept is named.

    If they have more than `most` bytes, the largest ones are dropped: see `left_out`.
    """
    values, lost = {}, []
    for name, value in _space.items():
        if name in _given or name.startswith("__"):
            continue
        try:
            values[name] = pickles.dumps(value, _space)
        except BaseException:  # a block's ``__reduce__`` may raise SystemExit, say
            lost.append(name)
    _left_out[:] = _fit(values, most)
    lost += _left_out
    drawn = random.getstate(), np.random.get_state()
    whole = sys.version_info[:2], _count, values, lost, drawn, _sources
    return zlib.compress(pickle.dumps(whole, protocol=5), 1)


def left_out() -> list[str]:
    """Return the variables that the latest snapshot had no room for."""
    return [f"{n[:_MOST_NAME]} ({_kind(_space[n])})" for n in _left_out if n in _space]


_left_out: list[str] = []


def _fit(values: dict[str, bytes], most: int) -> list[str]:
    """Remove the largest entries of a snapshot that would be too large, and return their names."""
    if sum(map(len, values.values())) < most - _SPARE:
        return []
    # Only then: to compress everything twice takes a second.
    sizes = {name: len(zlib.compress(data, 1)) for name, data in values.items()}
    dropped, room, raw_room = [], most - _SPARE, _MOST_RAW
    for name in sorted(sizes, key=sizes.__getitem__):
        if sizes[name] > room or len(values[name]) > raw_room:
            del values[name]
            dropped.append(name)
            continue
        room -= sizes[name]
        raw_room -= len(values[name])
    return dropped


def restore(stored: bytes) -> list[str]:
    """Restore the variables of a `snapshot`; return the names of the lost ones."""
    global _count
    # Not more than it may have held: a small file can unfold to a large one.
    raw = zlib.decompressobj().decompress(stored, _MOST_RAW + (16 << 20))
    version, count, values, lost, drawn, sources = pickle.loads(raw)
    if version != sys.version_info[:2]:  # code of functions is of one version
        return ["all of them: they are of another version of Python"]
    _count = count
    _sources.update(sources)
    for name, data in values.items():
        try:
            _space[name] = pickles.loads(data, _space)
        except Exception:
            lost.append(name)
    random.setstate(drawn[0])
    np.random.set_state(drawn[1])
    for job in _jobs():
        job.start(_pool)
    _pool.look()
    return [name for name in lost if not name.startswith("_")]


def _jobs() -> list[pool.Job]:
    jobs: dict[int, pool.Job] = {}
    for value in list(_space.values()):
        parts = value if isinstance(value, (list, tuple)) else [value]
        parts = list(value.values()) if isinstance(value, dict) else parts
        jobs |= {id(part): part for part in parts if isinstance(part, pool.Job)}
    return list(jobs.values())


def workers() -> int:
    """Return how many workers of the pool are left."""
    _pool.look()
    return len(_pool.alive)


# -- words --------------------------------------------------------------------------------------


def _own(value: Any) -> bool:
    """Whether a block made a value: a function that it imported can be imported again."""
    try:
        made = getattr(value, "__module__", "__main__") == "__main__" or not callable(value)
        return made and not isinstance(value, ModuleType)
    except BaseException:  # an object may raise anything when its attributes are read
        return True


def _trace(error: BaseException) -> str:
    steps, frame = ["Traceback:"], error.__traceback__
    while frame is not None:
        lines = _sources.get(frame.tb_frame.f_code.co_filename)
        if lines is not None and frame.tb_lineno is not None and frame.tb_lineno <= len(lines):
            name = frame.tb_frame.f_code.co_name
            line = lines[frame.tb_lineno - 1].strip()
            steps.append(f"  line {frame.tb_lineno}, in {name}: {line}")
        frame = frame.tb_next
    if isinstance(error, SyntaxError):
        steps.append(f"  line {error.lineno}: {(error.text or '').strip()}")
    try:
        said = str(error)
    except Exception:
        said = "(its message cannot be shown)"
    return "\n".join([*steps, f"{type(error).__name__}: {said}"])


def _kind(value: Any) -> str:
    kind = type(value).__name__
    try:
        if isinstance(value, pool.Job):
            return _of_job(value)
        if isinstance(value, np.ndarray):
            return "array " + "×".join(map(str, value.shape))
        if isinstance(value, (int, float)):
            return f"{value:.6g}"
        return f"{kind} of {len(value)}" if isinstance(value, (list, tuple, dict, set)) else kind
    except BaseException:  # an integer that no float can hold, say
        return kind


def _of_job(job: pool.Job) -> str:
    text = job.state
    best = job.best
    if isinstance(best, tuple) and len(best) == 2 and isinstance(best[1], float):
        text += f", best {best[1]:.6g}"
    return f"job, {text}"
