"""Checks of the options that prompts share."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


def check_option(name: str, value: object, valid: tuple[object, ...]) -> None:
    """Raise unless an option has one of its valid values."""
    if value not in valid:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(repr, valid))}")


def check_positive(name: str, value: int | None, what: str = "tokens") -> None:
    """Raise unless an option is ``None`` or a positive integer."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{name}={value!r}: expected a number of {what}, 1 or more, or None")


def check_count(name: str, value: int) -> None:
    """Raise unless an option is a number of trials."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name}={value!r}: expected a number of trials, 0 or more")


def changed_options(prompt: Any, **usual: Any) -> dict[str, Any]:
    """Return the options of a prompt that differ from the usual ones.

    Args:
        prompt: A prompt whose class is a dataclass.
        **usual: Values that stand in for the defaults of the class.
    """
    defaults = {f.name: f.default for f in fields(prompt) if f.init and f.compare} | usual
    defaults.pop("name", None)
    options = {name: getattr(prompt, name) for name in defaults}
    if "history" in options:
        options["history"] = prompt.selection.keep
    return {name: value for name, value in options.items() if value != defaults[name]}
