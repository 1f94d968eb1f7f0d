"""Runs blocks of Python one after another in one namespace.

`llmopt.compute.blocks` loads this text into a worker: it is not imported. It may import only
modules that the worker has imported before its confinement.
"""

from __future__ import annotations

import ast
import contextlib
import io
import random
import sys
from types import ModuleType
from typing import Any

import numpy as np

np.random.seed(0)  # so that a search that is played again sees the same
random.seed(0)
_block = sys.modules["block"] = ModuleType("block")  # a data class looks its module up
_space: dict[str, Any] = vars(_block)
_space.update({k: v for k, v in globals().items() if isinstance(v, ModuleType) and k[0] != "_"})
_given: set[str] = set()  # the data, which no block made
_sources: dict[str, list[str]] = {}


def run(code: str, data: dict[str, Any], most: int) -> tuple[str, list[str]]:
    """Return what a block printed, at most so many characters, and what it leaves."""
    _space.update(data)
    _given.update(data)
    printed, file = io.StringIO(), f"<block {len(_sources) + 1}>"
    _sources[file] = code.splitlines()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            tree = ast.parse(code, file)
            last = tree.body[-1] if tree.body else None
            shown = isinstance(last, ast.Expr)
            del tree.body[len(tree.body) - shown :]
            exec(compile(tree, file, "exec"), _space)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), file, "eval"), _space)
                if value is not None:
                    print(value if isinstance(value, str) else repr(value))
        except BaseException as error:  # sys.exit is the block's, too
            print(_trace(error))
    text = printed.getvalue()
    if len(text) > most:
        cut = f"\n[{len(text) - most} characters left out]\n"
        text = text[: most // 2] + cut + text[-(most // 2 - len(cut)) :]
    names = [n for n in _space if n not in _given and not n.startswith("_") and _own(_space[n])]
    return text, [f"{n} ({_kind(_space[n])})" for n in names]


def _own(value: Any) -> bool:
    """Whether a block made a value: a function that it imported can be imported again."""
    made = getattr(value, "__module__", "block") == "block" or not callable(value)
    return made and not isinstance(value, ModuleType)


def _trace(error: BaseException) -> str:
    steps, frame = ["Traceback:"], error.__traceback__
    while frame is not None:
        lines = _sources.get(frame.tb_frame.f_code.co_filename)
        if lines is not None and frame.tb_lineno <= len(lines):
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
    if isinstance(value, np.ndarray):
        return "array " + "×".join(map(str, value.shape))
    try:
        if isinstance(value, (int, float)):
            return f"{value:.6g}"
        return f"{kind} of {len(value)}" if isinstance(value, (list, tuple, dict, set)) else kind
    except Exception:  # an integer that no float can hold, say
        return kind
