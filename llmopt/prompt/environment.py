"""Where templates are rendered: Jinja2's sandbox, with the objects that a template may see.

A template cannot reach an object of the program. Its loops and the text that it builds are not
limited, so a template is still to be read before it is used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Renders prompts.

    `shown` holds the classes whose objects templates get, each with the attributes and methods that
    they may use: these return only text, numbers and lists of them.
    """

    def __init__(self, loader: jinja2.BaseLoader, shown: Mapping[type, Collection[str]]) -> None:
        super().__init__(
            loader=loader,
            undefined=jinja2.StrictUndefined,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._shown = shown

    def render(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        """Return a template's text."""
        # Not `template.render`, which would rewrite the traceback that names the line.
        return "".join(template.root_render_func(template.new_context(variables)))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether an attribute may be read."""
        allowed = self._shown.get(type(obj))
        return (allowed is None or attr in allowed) and super().is_safe_attribute(obj, attr, value)
