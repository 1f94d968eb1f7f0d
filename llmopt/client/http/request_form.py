"""Schemas and cacheable prompts in the form that providers accept.

Blocks of whole lines, counted from the start, keep their boundaries as long as a prompt only grows;
the line that changes is in the last block, which is not cached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_BLOCK_CHARACTERS = 2000
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
_DATA = ("enum", "const", "default", "examples", "required")
WORTH_CACHING = 2 * _BLOCK_CHARACTERS
"""Minimum characters of a cached prompt (about 1,024 tokens)."""


def in_blocks(texts: Sequence[str]) -> tuple[list[list[dict[str, Any]]], list[dict[str, Any]]]:
    """Return texts as the protocols' blocks, and all blocks but the last."""
    parts = [[{"type": "text", "text": block} for block in blocks(text)] for text in texts]
    return parts, [block for blocks_of_one in parts for block in blocks_of_one][:-1]


def blocks(text: str, size: int = _BLOCK_CHARACTERS) -> list[str]:
    """Split after lines into blocks of at least `size` characters; appending keeps the split."""
    result: list[str] = []
    block = ""
    for line in text.splitlines(keepends=True):
        block += line
        if len(block) >= size and block.strip():
            result.append(block)
            block = ""
    if block.strip() or not result:
        result.append(block)
    else:
        result[-1] += block
    return result


def closed(schema: object) -> Any:
    """Return a JSON schema for strict modes: closed, all fields required, no lengths."""
    if isinstance(schema, list | tuple):
        return [closed(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    result: dict[str, Any] = {}
    for word, value in schema.items():
        if word in _NAMED_SCHEMAS and isinstance(value, Mapping):
            result[word] = {name: closed(inner) for name, inner in value.items()}
        elif word != "maxLength":
            result[word] = value if word in _DATA else closed(value)
    if result.get("type") == "object" and isinstance(result.get("properties", {}), dict):
        result.setdefault("additionalProperties", False)
        if result.get("properties"):
            result["required"] = list(result["properties"])
    return result


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` updated with `over`; nested mappings are merged recursively."""
    result = dict(base)
    for name, value in over.items():
        below = result.get(name)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[name] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result
