"""Short names for observations and actions: the user's, the docstring's, or numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from llmopt.errors import SpaceError
from llmopt.policies.scaling import stack
from llmopt.policies.words.docstrings import Section, find, meanings, numbered
from llmopt.util.text import counted

_MAX_NAME = 36  # characters
_MOST_WORDS = 3  # before the colon of "swing rate: angular velocity of the rope"


@dataclass(frozen=True)
class Quantity:
    """One observed number, one number of an action, or one choice."""

    name: str  # short and without spaces, for the names of parameters: ``"front_tip_angle"``
    meaning: str = ""  # the meaning in words; empty if unknown


# Wrappers that do not change the meaning of observed numbers or actions.
_SAME = {
    "RescaleObservation", "NormalizeObservation", "DtypeObservation", "ClipObservation",
    "FlattenObservation", "ReshapeObservation", "ClipAction", "RescaleAction", "StickyAction",
    "DiscretizeAction",
}  # fmt: skip


def quantity_names(
    env: gym.Env[Any, Any], sections: Sequence[Section], kind: str, given: Sequence[str]
) -> tuple[Quantity, ...]:
    """Return names of observed numbers or actions: the user's, the docstring's or numbers."""
    watched = kind == "observation"
    space = env.observation_space if watched else env.action_space
    table = watched and isinstance(space, spaces.Discrete)
    count = 1 if table else count_of(space)
    if given:
        if isinstance(given, str) or len(given) != count:
            got = counted(1 if isinstance(given, str) else len(given), "name")
            raise SpaceError(
                f"{kind}s={given!r}: got {got}, "
                f"expected {'one text on how the states are numbered' if table else count}"
            )
        return (Quantity("s", given[0]),) if table else _quantities(given, kind[0], own=True)
    if table:
        return (Quantity("s"),)
    inner = env.unwrapped.observation_space if watched else env.unwrapped.action_space
    texts = meanings(find(sections, kind), count_of(inner))
    if watched and not texts:
        texts = _structured(env, find(sections, kind), count_of(inner))
    if watched and isinstance(inner, spaces.Dict):
        sizes = ((key, int(spaces.flatdim(part))) for key, part in inner.spaces.items())
        texts = [f"{k}{i if n > 1 else ''}:" for k, n in sizes for i in range(n)]
    if len(texts) != count or not all(_keeps(layer, watched) for layer in stack(env)):
        texts = [""] * count
    return _quantities(texts, kind[0])


def _structured(env: gym.Env[Any, Any], text: str, count: int) -> list[str]:
    """Return meanings if MuJoCo's own table covers the first numbers only."""
    structure = getattr(env.unwrapped, "observation_structure", None)
    rows, _ = numbered(text)
    if not isinstance(structure, dict) or not structure.get("skipped_qpos"):
        return []
    parts = [(str(k), int(v)) for k, v in structure.items() if k != "skipped_qpos"]
    first = sum(n for k, n in parts if k in ("qpos", "qvel"))
    if sum(n for _, n in parts) != count or sorted(rows) != list(range(first)):
        return []
    more = [f"{k}{i}:" for k, n in parts if k not in ("qpos", "qvel") for i in range(n)]
    return [rows[i] for i in range(first)] + more


def _keeps(layer: gym.Wrapper[Any, Any, Any, Any], watched: bool) -> bool:
    """Whether a wrapper keeps the meaning of the observed numbers, or of the actions."""
    if type(layer).__name__ in _SAME and type(layer).__module__.startswith("gymnasium."):
        return True
    before = layer.env.observation_space if watched else layer.env.action_space
    after = layer.observation_space if watched else layer.action_space
    changes = gym.ObservationWrapper if watched else gym.ActionWrapper
    return not isinstance(layer, changes) and count_of(after) == count_of(before)


def count_of(space: spaces.Space[Any]) -> int:
    """Return how many numbers or choices a flat observation or action has."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    try:
        return int(spaces.flatdim(space))
    except (NotImplementedError, ValueError):
        return 0


def _quantities(texts: Sequence[str], letter: str, *, own: bool = False) -> tuple[Quantity, ...]:
    """Make distinct short names from ``"name: meaning"`` or from the meaning alone."""
    made: list[Quantity] = []
    for number, text in enumerate(texts):
        name, colon, meaning = text.partition(":")
        words = name.split()
        if (colon or own) and re.fullmatch(r"[\w.\[\]-]+", name.strip()):
            made.append(Quantity(name.strip(), meaning.strip()))
        elif colon and 1 < len(words) <= _MOST_WORDS and all(w.isidentifier() for w in words):
            made.append(Quantity("_".join(words).lower(), meaning.strip()))
        else:
            made.append(Quantity(slug(text) or f"{letter}{number}", text))
    if letter == "a" and not own:
        made = _without_common(made)
    often = Counter(q.name for q in made)
    used: Counter[str] = Counter()
    for i, q in enumerate(made):
        if often[q.name] > 1:
            used[q.name] += 1
            made[i] = replace(q, name=f"{q.name}_{used[q.name]}")
    if len({q.name for q in made}) < len(made):
        made = [replace(q, name=f"{q.name}_{letter}{i}") for i, q in enumerate(made)]
    return tuple(made)


def _without_common(quantities: list[Quantity]) -> list[Quantity]:
    """Drop the words that all names share, except for the last one: it names the kind."""
    words = [q.name.split("_") for q in quantities if q.meaning]
    if len(words) < 2 or len(words) < len(quantities):
        return quantities
    shared = set.intersection(*map(set, words))
    short = ["_".join([w for w in ws[:-1] if w not in shared] + ws[-1:]) for ws in words]
    if len(set(short)) < len(short) or any(re.match(r"(minus)?\d", name) for name in short):
        return quantities
    return [replace(q, name=name) for q, name in zip(quantities, short, strict=True)]


_SHORTER = (
    (r"\bangular velocity\b", "angvel"),
    (r"\bvelocity\b", "vel"),
    (r"\b([xyz])[- ](?:coordinate|axis|value|position)\b", r"\1"),
    (r"\b(?:along|around|in) the ([xyz])\b", r"\1"),
    (r"\bcosine\b", "cos"),
    (r"\bsine\b", "sin"),
    (r"\s-\s", " minus "),
    (r"\b(?:applied|acting) (?:on|at|to)\b", "of"),
    (r"\balong the .*$", ""),
    (r"\bbetween ([^|]*?) and (?:the )?([^|]*)$", r"of \1 \2"),
)
_DROPPED = {"the", "a", "an", "to", "and", "by", "with", "value", "its", "on", "at", "two", "apply"}


def slug(meaning: str) -> str:
    """Shorten a meaning to a name: ``"angle of the front tip"`` is ``front_tip_angle``."""
    text = meaning.partition(";")[0].lower()
    text = re.sub(r"\b(cos|sin)\((\w+)\)", r"\1 \2", re.sub(r"^\w = ", "", text))
    text = re.sub(r"\([^()]*\)", "", text).split(", ")[0]
    for pattern, short in _SHORTER:
        text = re.sub(pattern, short, text)
    parts = [re.findall(r"-?\d+(?:\.\d+)?|[a-z_']+\d*", p) for p in re.split(r"\bof\b", text)]
    ordered = [w.replace("'", "").replace("-", "minus") for p in reversed(parts) for w in p]
    kept = list(dict.fromkeys(w for w in ordered if w and w not in _DROPPED))
    if kept[-1:] == ["angvel"] and "angle" in kept:
        kept.remove("angle")
    while len("_".join(kept)) > _MAX_NAME and len(kept) > 2:
        # The last word names the kind of quantity, the earlier words its owner.
        kept.pop(len(kept) // 2)
    return "_".join(kept)[:_MAX_NAME]
