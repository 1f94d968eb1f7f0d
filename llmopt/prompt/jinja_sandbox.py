"""Where templates are rendered: Jinja2's sandbox, made narrower.

A template sees text, numbers and lists of them, and calls what is listed here. It can neither
reach an object of the program nor loop for ever: the turns of its loops are counted. A filter over
a long value spends no turn, and the text that a template may build is not limited, so a template
is still to be read before it is used.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import BlockReference, LoopContext, Macro, TemplateReference, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace

MOST_TURNS = 1_000_000
"""Turns of all loops of one rendering together, its calls and the numbers of its ranges."""

_MOST_REPEATED = 100_000  # characters or items that "*" may make
_CALL = 10  # turns that a call or an include counts as
_MOST_BITS = 10_000  # of a product of whole numbers
_PLAIN = (str, int, float, bool, tuple, list, dict, type(None))
_OF_TEMPLATES = (
    BlockReference, Cycler, Joiner, LoopContext, Macro, Namespace, TemplateReference, Undefined,
)  # fmt: skip
# These make text of any length.
_NO_METHODS = ("center", "expandtabs", "format_map", "ljust", "rjust", "zfill")
_WIDE = re.compile(r"\d{4}|[%][^%a-zA-Z]*\*|\{[^}]*\{")  # a width that is, or may be, large
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "groupby", "int",
    "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject",
    "rejectattr", "replace", "reverse", "round", "select", "selectattr", "sort", "string", "sum",
    "title", "tojson", "trim", "truncate", "unique", "upper", "wordcount", "wordwrap",
)  # fmt: skip


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Renders prompts.

    `shown` holds classes, beside plain ones, whose objects templates get, each with the attributes
    and methods that they may use: they return only text, numbers and lists of them.
    """

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, loader: jinja2.BaseLoader, shown: Mapping[type, Collection[str]]) -> None:
        super().__init__(
            loader=loader,
            undefined=jinja2.StrictUndefined,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._shown = shown
        self._turns = threading.local()
        self.filters = {name: self.filters[name] for name in _FILTERS} | {
            "_turns": self._counted,
            "format": self._format,
        }
        allowed = ("cycler", "dict", "joiner", "namespace")
        self.globals = {name: self.globals[name] for name in allowed} | {"range": self._range}

    def render(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        """Return a template's text."""
        self._turns.left = MOST_TURNS
        # Not `template.render`, which would rewrite the traceback that names the line.
        return "".join(template.root_render_func(template.new_context(variables)))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether an attribute may be read."""
        if type(obj) in self._shown:
            return attr in self._shown[type(obj)]
        known = type(obj) in _PLAIN or isinstance(obj, _OF_TEMPLATES)
        return known and super().is_safe_attribute(obj, attr, value)

    def is_safe_callable(self, obj: Any) -> bool:
        """Whether something may be called."""
        if isinstance(obj, _OF_TEMPLATES) or obj in (dict, Cycler, Joiner, Namespace, self._range):
            return True
        name = getattr(obj, "__name__", "")
        owner = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)  # Jinja wraps `format`
        if isinstance(owner, str) and name == "format":
            return not _WIDE.search(owner)
        if type(owner) in _PLAIN:
            return owner is not None and name not in _NO_METHODS
        return isinstance(owner, _OF_TEMPLATES) or name in self._shown.get(type(owner), ())

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute what could take for ever, or all memory."""
        if operator == "**" and (abs(left) > 1000 or abs(right) > 100):
            raise SecurityError("a power of large numbers")
        if operator == "%" and isinstance(left, str) and _WIDE.search(left):
            raise SecurityError(f"{left!r} has a width that is not fixed, or of more than 3 digits")
        if operator == "*" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() + right.bit_length() > _MOST_BITS:
                raise SecurityError("a product of large numbers")
        for one, other in ((left, right), (right, left)):
            if operator == "*" and isinstance(one, Sequence) and len(one) * other > _MOST_REPEATED:
                raise SecurityError(f"more than {_MOST_REPEATED:,} repeated characters")
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            if loop.recursive:
                raise jinja2.TemplateSyntaxError("a recursive loop", loop.lineno, name)
            loop.iter = nodes.Filter(loop.iter, "_turns", [], [], None, None, lineno=loop.lineno)
        return tree

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call something; it counts as turns, as macros may call each other."""
        self._spend(_CALL)
        return super().call(context, obj, *args, **kwargs)

    def _load_template(self, name: str, globals: Any) -> jinja2.Template:
        if hasattr(self._turns, "left"):  # an include of a rendering, which may be its own
            self._spend(_CALL)
        return super()._load_template(name, globals)

    def _spend(self, turns: int) -> None:
        self._turns.left -= turns
        if self._turns.left < 0:
            raise SecurityError(f"its loops take more than {MOST_TURNS:,} turns")

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._spend(1)
            yield item

    def _format(self, text: str, *args: Any) -> Any:
        return self.call_binop(None, "%", text, args)

    def _range(self, *args: int) -> range:
        numbers = range(*args)
        self._spend(len(numbers))
        return numbers
