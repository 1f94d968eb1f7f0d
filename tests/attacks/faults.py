"""Makes the n-th operation that changes a file fail, or kills the process there.

    with Faults(folder, at=7, how="full"):
        ...                      # the 7th change of a file in the folder, and all after it, fail

Changes are counted, in order: opening for writing, writing, truncating, forcing to the disk,
renaming, linking, removing, and making folders. `how` is one of `KILLS` or `FAILURES`.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KILLS = ("kill before", "kill after", "kill torn")
FAILURES = ("once", "full", "short", "broken")
_CHANGES = ("replace", "rename", "unlink", "remove", "mkdir", "link", "symlink", "truncate")


class _File:
    """A file whose changes are counted."""

    def __init__(self, faults: Faults, file: Any) -> None:
        self._faults, self._file = faults, file
        faults.descriptors.add(file.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)

    def write(self, data: Any) -> Any:
        def half() -> None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        return self._faults.step("write", lambda: self._file.write(data), half)

    def truncate(self, size: int | None = None) -> Any:
        return self._faults.step("truncate", lambda: self._file.truncate(size))

    def close(self) -> None:
        if not self._file.closed:
            self._faults.descriptors.discard(self._file.fileno())
        self._file.close()


class Faults:
    """See the module.

    Attributes:
        count: Changes seen so far.
        names: How often each kind of them was seen.
        hit: What was hit; empty where the n-th change never came.
    """

    def __init__(self, folder: str | os.PathLike[str], at: int, how: str) -> None:
        assert how in (*KILLS, *FAILURES)
        self.folder, self.at, self.how = os.path.realpath(folder), at, how
        self.count, self.hit = 0, ""
        self.names = Counter[str]()
        self.descriptors: set[int] = set()
        self._kept: list[tuple[Any, str, Any]] = []

    def step(
        self, name: str, change: Callable[[], Any], half: Callable[[], None] = lambda: None
    ) -> Any:
        self.count += 1
        self.names[name] += 1
        here = self.count == self.at
        if here:
            self.hit = name
        if here and self.how in KILLS:
            if self.how == "kill after":
                change()
            elif self.how == "kill torn":
                half()
            os.kill(os.getpid(), signal.SIGKILL)
        if (here or (self.how == "full" and self.count > self.at)) and self.how in FAILURES:
            if self.how == "short":
                half()
            number = errno.EIO if self.how == "broken" else errno.ENOSPC
            raise OSError(number, os.strerror(number))
        return change()

    def inside(self, path: Any) -> bool:
        if isinstance(path, int):
            return path in self.descriptors
        path = os.path.realpath(Path(os.fsdecode(path)).parent)
        return path == self.folder or path.startswith(self.folder + os.sep)

    def _patch(self, module: Any, name: str, new: Callable[..., Any]) -> None:
        self._kept.append((module, name, getattr(module, name)))
        setattr(module, name, new)

    def __enter__(self) -> Faults:
        plain = io.open

        def counted(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            if isinstance(file, int) or not set(mode) & set("wax+") or not self.inside(file):
                return plain(file, mode, *args, **options)
            made = self.step("open", lambda: plain(file, mode, *args, **options))
            return _File(self, made)

        self._patch(io, "open", counted)
        self._patch(builtins, "open", counted)
        for name in (*_CHANGES, "fsync"):
            old = getattr(os, name)

            def change(*args: Any, _old: Any = old, _name: str = name, **options: Any) -> Any:
                places = [a for a in args[:2] if isinstance(a, (str, bytes, int, os.PathLike))]
                if not any(map(self.inside, places)):
                    return _old(*args, **options)
                return self.step(_name, lambda: _old(*args, **options))

            self._patch(os, name, change)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for module, name, old in reversed(self._kept):
            setattr(module, name, old)
        self._kept.clear()


def killed(play: Callable[[], Any], folder: Path, at: int, how: str) -> bool:
    """Play in a process of its own that a change may kill; return whether one did."""
    child = os.fork()
    if not child:
        code = 1
        try:
            with Faults(folder, at, how):
                play()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"{how} at change {at}"
    return os.WIFSIGNALED(status)
