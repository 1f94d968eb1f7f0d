"""A search as JSON or TOML: the arguments of `LLMOptimizer`, and a JSON schema for the space.

{"space": {"lr": {"type": "number", "minimum": 1e-5, "maximum": 0.1, "log": true},
           "activation": {"enum": ["relu", "tanh"]}},
 "direction": "minimize", "model": "openai:gpt-6-luna",
 "start": [{"params": {"lr": 0.001, "activation": "relu"}, "words": "..."}]}

``"candidates": "table.csv"`` (or a list of points) can replace the space.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmopt.errors import LLMOptError, ParameterError, SpaceError, did_you_mean
from llmopt.options import stored_names
from llmopt.prompt import PROMPTS
from llmopt.space import Categorical, Dimension, Float, Int, Space
from llmopt.space.when import read_when
from llmopt.util.text import a_type, short

_MOST_PARAMETERS = 1000
_MOST_CHOICES = 1000
_MOST_NAME = 200  # characters
_MOST_NAMED = 10_000  # characters of a choice that has a name
_MOST_TEXT = 100_000
_MOST_START = 1000
_OTHERS = (
    "space",
    "candidates",
    "forbidden",
    "model",
    "prompt",
    "description",
    "start",
)  # read in their own ways
_PYTHON = ("seeded", "task")  # for functions in Python
_OPTIONS = (
    *("direction", "seed", "constraints", "compute"),
    *(name for name in stored_names() if name not in (*_OTHERS, *_PYTHON)),
)
_KEYS = (*_OTHERS, *_OPTIONS)
_WORDS = ("title", "description", "default", "examples", "$schema", "$id")
_IN_SCHEMA = {  # by the names that Python has for them
    "low lower min lb": "minimum",
    "high upper max ub": "maximum",
    "step q": "multipleOf",
    "choices values options": "enum",
}
_EXAMPLE = (
    'expected a JSON schema such as {"type": "number", "minimum": 0, "maximum": 1}, '
    '{"type": "integer", "minimum": 1, "maximum": 6} or {"enum": ["a", "b"]}'
)


def read_space(schema: Any, forbidden: Any = ()) -> Space:
    """Read a space from a JSON schema of an object, or from its ``properties`` alone.

    Beside numbers with bounds, ``"log"``, ``"multipleOf"`` and ``"unit"``, it takes booleans and an
    ``enum``, and for each parameter a condition, ``"when"``: see `llmopt.space.when`. `forbidden`
    combinations have the form of conditions.
    """
    if not isinstance(schema, Mapping):
        raise SpaceError(f"space: got {a_type(schema)}; {_EXAMPLE} for each name")
    properties = schema
    if isinstance(schema.get("properties"), Mapping) and schema.get("type", "object") == "object":
        properties = schema["properties"]
        valid = ("type", "properties", "required", "additionalProperties", *_WORDS)
        _no_others(schema, valid, "space")
    if len(properties) > _MOST_PARAMETERS:
        raise SpaceError(
            f"space: {len(properties)} parameters; expected at most {_MOST_PARAMETERS}"
        )
    parts = {_name(n): _conditional(n, part) for n, part in properties.items()}
    return Space(parts, forbidden=forbidden)


def _name(name: Any) -> str:
    if not isinstance(name, str) or len(name) > _MOST_NAME:
        raise SpaceError(
            f"space: a parameter's name is a text of at most {_MOST_NAME} characters, "
            f"got {str(name)[:50]!r}"
        )
    return name


def _conditional(name: str, part: Any) -> Dimension:
    """Return a dimension with its condition: ``{"optimizer": "sgd"}``, ``{"layers": {">": 2}}``."""
    if not isinstance(part, Mapping) or "when" not in part:
        return _dimension(name, part)
    dimension = _dimension(name, {key: value for key, value in part.items() if key != "when"})
    try:
        return dimension.under(read_when(part["when"]))
    except SpaceError as error:
        raise SpaceError(f"space, {name!r}: {error}") from None


def _dimension(name: str, part: Any) -> Dimension:
    where = f"space, {name!r}"
    if not isinstance(part, Mapping):
        option = "; if it is an option of the search, write it before `space`" * (name in _KEYS)
        raise SpaceError(f"{where}: got {str(part)[:50]!r}; {_EXAMPLE}{option}")
    kind = part.get("type")
    if "enum" in part or "const" in part:
        _no_others(part, ("type", "enum", "const", *_WORDS), where)
        choices = part.get("enum", [part.get("const")])
        if not isinstance(choices, list | dict) or not 0 < len(choices) <= _MOST_CHOICES:
            raise SpaceError(
                f"{where}: `enum` is a list of 1 to {_MOST_CHOICES} values, or an object of their "
                "names and values"
            )
        values = choices if isinstance(choices, list) else [*choices, *choices.values()]
        most = _MOST_NAME if isinstance(choices, list) else _MOST_NAMED
        if any(isinstance(c, (list, dict)) or len(str(c)) > most for c in values):
            raise SpaceError(
                f"{where}: a choice is a number, a text of at most {most} characters, true, "
                "false or null"
            )
        return Categorical(choices)
    if kind == "boolean":
        _no_others(part, ("type", *_WORDS), where)
        return Categorical((False, True))
    if kind not in ("number", "integer"):
        raise SpaceError(f"{where}: got {str(dict(part))[:100]}; {_EXAMPLE}")
    _no_others(part, ("type", "minimum", "maximum", "multipleOf", "log", "unit", *_WORDS), where)
    low: Any = part.get("minimum")
    high: Any = part.get("maximum")
    for bound in (low, high):
        if isinstance(bound, bool) or not isinstance(bound, (int, float)):
            raise SpaceError(f"{where}: `minimum` and `maximum` must be numbers; {_EXAMPLE}")
    ways = {"log": part.get("log", False), "unit": part.get("unit", "")}
    try:
        number = Int if kind == "integer" else Float
        return number(low, high, step=part.get("multipleOf"), **ways)
    except SpaceError as error:
        raise SpaceError(f"{where}: {error}") from None


def _no_others(part: Mapping[str, Any], valid: tuple[str, ...], where: str = "") -> None:
    for key in part:
        if key not in valid:
            said = f"{where and where + ': '}unknown key {key!r}"
            here = next((_IN_SCHEMA[n] for n in _IN_SCHEMA if key in n.split()), None)
            if here in valid:
                raise SpaceError(f"{said}; in a JSON schema it is {here!r}")
            raise SpaceError(f"{said}; {did_you_mean(str(key), valid, most=len(valid))}")


def _check_keys(data: Mapping[str, Any]) -> None:
    if "compute_packages" in data:
        raise LLMOptError(
            "compute_packages: no file may name packages, since to import one runs it. Give the "
            "option --compute-packages of llmopt ask or llmopt mcp"
        )
    _no_others(data, _KEYS)
    if "direction" not in data:
        raise LLMOptError(
            'there is no \'direction\': expected "minimize" or "maximize", with a name '
            '{"yield": "maximize"}, or several of these'
        )


def read_description(data: Any, folder: Path | None = None) -> dict[str, Any]:
    """Return the arguments of `LLMOptimizer` in a description.

    It may name one file, the table of candidates, which lies in the `folder` of the description.
    """
    if not isinstance(data, Mapping):
        raise LLMOptError(f"a search is described by an object, got {a_type(data)}")
    _check_keys(data)
    space, table = data.get("space"), data.get("candidates")
    if space is None and table is None:
        raise LLMOptError(f"there is no 'space'; {_EXAMPLE} for each parameter")
    arguments = {key: data[key] for key in _OPTIONS if key in data}
    arguments["space"] = _space(space, data.get("forbidden", []))
    if table is not None:
        arguments["candidates"] = _table(table, folder)
    for key in ("model", "prompt", "description"):
        text = data.get(key) or ""
        if not isinstance(text, str) or len(text) > _MOST_TEXT:
            raise LLMOptError(f"{key}: expected a text of at most {_MOST_TEXT} characters")
    if data.get("model"):
        arguments["client"] = data["model"]
    arguments["prompt"] = data.get("prompt") or "auto"
    if arguments["prompt"] not in (*PROMPTS, "auto"):
        raise LLMOptError(f"prompt={data['prompt']!r}: {did_you_mean(data['prompt'], PROMPTS)}")
    arguments["description"] = "\n".join(filter(None, [data.get("description", ""), *_said(space)]))
    arguments["warmup"] = data.get("warmup", "auto")
    if isinstance(arguments["warmup"], list):
        raise LLMOptError("warmup: expected a whole number; points to begin with go into 'start'")
    constraints = data.get("constraints", [])
    if not isinstance(constraints, (str, list)) or len(constraints) > _MOST_TEXT:
        raise LLMOptError(
            f"constraints: got {str(constraints)[:50]}, expected a list of linear inequalities"
        )
    if isinstance(constraints, list) and len(constraints) > _MOST_START:
        raise LLMOptError(f"constraints: expected at most {_MOST_START}")
    if "start" in data:
        arguments["start"] = _start(data["start"])
    return arguments


def _space(schema: Any, forbidden: Any) -> Space | list[Any] | None:
    """Return a space, or what names the columns of a table."""
    if not isinstance(forbidden, list) or len(forbidden) > _MOST_START:
        raise LLMOptError(
            f"forbidden={short(forbidden)}: expected a list of at most {_MOST_START} combinations, "
            'such as [{"ligand": "RuPhos", "base": "Et3N"}, {"layers": {">": 2}}]'
        )
    if schema is not None and not isinstance(schema, list):
        return read_space(schema, forbidden)
    if forbidden:
        raise LLMOptError("forbidden: the table of candidates lists what exists; drop rows from it")
    return schema


def _table(given: Any, folder: Path | None) -> Any:
    """Return a table of candidates as it is, or the path of its file."""
    if not isinstance(given, str):
        return given
    if folder is None or not re.fullmatch(r"[\w-][\w.-]*\.csv", given):
        raise LLMOptError(
            f"candidates={short(given)}: expected a list of points, or the name of a CSV file "
            'beside the description, of letters, digits, ".", "-" and "_", such as "table.csv"'
        )
    return folder / given


def _said(schema: Any) -> list[str]:
    """Return what the schema says of parameters in words, for the model."""
    properties = schema.get("properties", schema) if isinstance(schema, Mapping) else None
    pairs = properties.items() if isinstance(properties, Mapping) else ()
    found = [(n, p.get("description")) for n, p in pairs if isinstance(p, Mapping)]
    return [f"{name}: {' '.join(text.split())}" for name, text in found if isinstance(text, str)]


def _start(given: Any) -> list[Any] | dict[str, Any]:
    if not isinstance(given, list) or len(given) > _MOST_START:
        raise LLMOptError(f"start: expected a list of at most {_MOST_START} points")
    points: dict[str, Any] = {}
    for i, one in enumerate(given):
        if not isinstance(one, Mapping) or "params" not in one or set(one) - {"params", "words"}:
            raise ParameterError(f'start[{i}]: expected {{"params": {{...}}, "words": "..."}}')
        words = one.get("words", f"start point {i + 1}")
        if not isinstance(words, str) or words in points:
            raise ParameterError(f"start[{i}]: `words` is a text, different for each point")
        points[words] = one["params"]
    return points
