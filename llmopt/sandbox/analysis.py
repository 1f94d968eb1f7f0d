"""What a piece of source holds, read from its syntax tree and without running it.

Parsing is the first thing that untrusted text can crash, so it happens in the confined
worker too. Only the standard library is imported, so that a worker can load this file
without llmopt.

None of this is a security boundary: it turns mistakes into words that a model can act on.
"""

from __future__ import annotations

import ast
import hashlib
from typing import Any

_FILE = "<candidate>"
_DYNAMIC = ("eval", "exec", "compile", "open", "input", "__import__", "breakpoint")


def analyse(source: str) -> dict[str, Any]:
    """Describe a source as plain data.

    ``error`` is ``None`` or has ``message``, ``line`` and ``text``. ``functions`` are the names of
    the top-level ones. ``imports``, wherever they stand, and ``builtins`` (`open`, `eval` and the
    like) are pairs of name and line. ``fingerprint`` is equal for sources that differ in comments,
    layout, docstrings, type hints and the names of variables only.
    """
    found: dict[str, Any] = {
        "error": None, "functions": [], "imports": [], "builtins": [], "fingerprint": ""
    }  # fmt: skip
    try:
        tree = ast.parse(source, _FILE)
        # Finds what parsing alone does not, such as `return` outside a function.
        compile(tree, _FILE, "exec", dont_inherit=True)
    except SyntaxError as error:
        lines = source.splitlines()
        line = error.lineno or 0
        text = lines[line - 1] if 0 < line <= len(lines) else ""
        found["error"] = {"message": error.msg or "invalid syntax", "line": line, "text": text}
        return found
    except (ValueError, MemoryError, RecursionError) as error:
        message = f"{str(error) or type(error).__name__}: it cannot be parsed"
        found["error"] = {"message": message, "line": 0, "text": ""}
        return found
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found["functions"] = [node.name for node in tree.body if isinstance(node, kinds)]
    bound = _bound(tree)
    for part in ast.walk(tree):
        if isinstance(part, ast.Import):
            found["imports"] += [(alias.name, part.lineno) for alias in part.names]
        elif isinstance(part, ast.ImportFrom):
            found["imports"].append(("." * part.level + (part.module or ""), part.lineno))
        elif isinstance(part, ast.Name) and part.id in _DYNAMIC and part.id not in bound:
            found["builtins"].append((part.id, part.lineno))
    found["fingerprint"] = _fingerprint(tree, source)
    return found


def _fingerprint(tree: ast.Module, source: str) -> str:
    for part in ast.walk(tree):
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
            body = part.body
            if (
                body
                and isinstance(body[0], ast.Expr)
                and isinstance(body[0].value, ast.Constant)
                and isinstance(body[0].value.value, str)
            ):
                part.body = body[1:] or [ast.Pass()]
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
            part.returns = None
        elif isinstance(part, ast.arg):
            part.annotation = None
    _rename(tree)
    try:
        text = ast.dump(tree)
    except RecursionError:
        text = hashlib.sha256(source.encode("utf-8", "backslashreplace")).hexdigest()
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def _bound(tree: ast.Module) -> set[str]:
    """Return the names of the variables that the source binds, in any scope."""
    return {
        part.arg if isinstance(part, ast.arg) else part.id
        for part in ast.walk(tree)
        if isinstance(part, ast.arg)
        or (isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store))
    }


def _rename(tree: ast.Module) -> None:
    """Number the variables that the source binds in the order in which it names them."""
    bound = _bound(tree)
    numbers: dict[str, str] = {}
    for part in ast.walk(tree):
        if isinstance(part, ast.Name) and part.id in bound:
            part.id = numbers.setdefault(part.id, f"v{len(numbers)}")
        elif isinstance(part, (ast.arg, ast.keyword)) and part.arg in bound:
            part.arg = numbers.setdefault(part.arg, f"v{len(numbers)}")
