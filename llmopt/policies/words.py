"""An environment in words: its own docstring, spaces, limits and wrappers, and names for all.

A model that knows the observations and actions by their meaning designs a controller; one
that sees numbered weights searches blindly. Gymnasium's environments describe themselves in
Markdown docstrings: tables or lists of observations and actions, sections on the reward, the
start and the end of an episode. `describe_environment` reads them, drops the rest, and adds
the facts that only the made environment knows: arguments, step limit, wrappers, and whether
an action outside its bounds is clipped and charged.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from llmopt.errors import SpaceError
from llmopt.policies.physics import describe_physics
from llmopt.policies.wrapping import acting_space, scaling
from llmopt.text import cut

MAX_WORDS = 6000
"""Characters that an environment's description may take, about 1,500 tokens."""

_MAX_NAME = 36  # characters
_LISTED = 120  # with more observed numbers than this the nameless ones are one line
_MAX_PICTURE = 800  # characters of a start drawn as text


@dataclass(frozen=True)
class Quantity:
    """One observed number, one number of an action, or one choice.

    Attributes:
        name: Short and without spaces, for the names of parameters: ``"front_tip_angle"``.
        meaning: What it is, in words; empty if not known.
    """

    name: str
    meaning: str = ""


@dataclass(frozen=True)
class EnvironmentWords:
    """What is known of an environment in words.

    Attributes:
        title: Its id, or its class.
        observations: One for each observed number; for a ``Discrete`` observation a single
            one that says how the states are numbered.
        actions: One for each number of an action, or for each choice.
        named: Whether the observations have names of their own, not just numbers.
        text: All of it for a prompt, some lines.
    """

    title: str
    observations: tuple[Quantity, ...]
    actions: tuple[Quantity, ...]
    named: bool
    text: str


def describe_environment(
    env: gym.Env[Any, Any],
    *,
    words: str = "",
    observations: Sequence[str] = (),
    actions: Sequence[str] = (),
    docstring: bool = True,
    threshold: bool = True,
    max_chars: int = MAX_WORDS,
    step_cap: int | None = None,
    picture: str = "",
    probe: Callable[[], gym.Env[Any, Any]] | None = None,
) -> EnvironmentWords:
    """Say in words what an environment is.

    Args:
        env: The environment, with its wrappers. It is neither reset nor stepped.
        words: The user's own words, which come first and are never cut.
        observations: Names of the observed numbers, in their order, as ``"name"`` or
            ``"name: meaning"``; for a ``Discrete`` observation one text on how the states
            are numbered. Empty for the docstring's.
        actions: Names of the actions or choices in the same form.
        docstring: Whether to take in the environment's own docstring. Names come from it in
            any case.
        threshold: Whether to tell the return from which Gymnasium takes the task for solved,
            where it states one and the environment has its registered arguments.
        max_chars: Characters that the text may take, above the user's words and the names.
        step_cap: Steps after which an episode is ended from outside, where the environment
            sets no limit.
        picture: The start drawn as text, as toy texts render it.
        probe: Makes a second environment, in which is tried what becomes of an action outside
            its bounds (a few steps from one seeded start). ``None`` where no such action
            reaches the environment.

    Raises:
        SpaceError: There is not one name for each observed number, or for each action.
    """
    doc = _docstring(env)
    sections = _sections(doc)
    seen = _names_of(env, sections, "observation", observations)
    done = _names_of(env, sections, "action", actions)
    spec = env.spec
    title = spec.id if spec is not None else type(env.unwrapped).__name__
    head = [f"Environment: {title}{_made_with(env)}."]
    head += _facts(env, step_cap)
    must = [*head, *(_threshold(env, step_cap) if threshold else [])]
    must += _ceiling(env, sections, step_cap)
    if isinstance(env.observation_space, spaces.Discrete):
        states = int(env.observation_space.n)
        first = int(env.observation_space.start)
        # The docstring's own section says it at full length.
        meaning = seen[0].meaning if observations or not docstring else ""
        must.append(
            f"Observed: one of {states} states, s{first} to s{first + states - 1}"
            + (f": {meaning}" if meaning else "")
            + "."
        )
    else:
        must += ["Observed:", *_listing(seen, env.observation_space, "o")]
    must += ["Actions:", *_listing(done, acting_space(env), "a")]
    if docstring:
        must += describe_physics(env.unwrapped)
    if probe is not None:
        must += _probe(probe)
    must += _wrappers(env)
    must += _scaled(env, seen)
    rest = _chosen(sections, doc, spec.kwargs if spec is not None else {}) if docstring else []
    text = _fit(words.strip(), must, rest, picture[:_MAX_PICTURE], max_chars)
    named = any(q.meaning or not re.fullmatch(r"o\d+", q.name) for q in seen)
    return EnvironmentWords(title, seen, done, named, text)


# -- the docstring ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Section:
    title: str
    body: str


def _docstring(env: gym.Env[Any, Any]) -> str:
    """Return the docstring of the environment's class, or of the nearest base that has one.

    A base class's docstring is used only if it has an Observation or Action heading.
    """
    kind = type(env.unwrapped)
    own = vars(kind).get("__doc__")
    if own:
        return inspect.cleandoc(own)
    for base in kind.__mro__[1:]:
        text = vars(base).get("__doc__") or ""
        if base is not gym.Env and re.search(r"^\s*#+ *(Observation|Action)", text, re.MULTILINE):
            return inspect.cleandoc(text)
    return ""


_FENCED = re.compile(r"^[ \t]*```.*?^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(
    r"^[ \t]*(#{1,6})[ \t]+(.+?)[ \t:]*#*$|^([A-Z][A-Za-z]*(?: [A-Za-z]+)?):[ \t]*$"
)


def _sections(doc: str) -> list[_Section]:
    """Split a docstring at its headings; deeper ones stay in the text of their section."""
    found: list[tuple[str, list[str]]] = [("", [])]
    for line in _FENCED.sub("", doc).splitlines():
        heading = _HEADING.match(line)
        if heading is None:
            found[-1][1].append(line)
        elif len(heading[1] or "") > 2:
            found[-1][1].append(f"{heading[2]}:")
        else:
            found.append(((heading[2] or heading[3]).strip(), []))
    return [_Section(title, "\n".join(lines).strip()) for title, lines in found]


def _find(sections: Sequence[_Section], *starts: str) -> str:
    """Return the text of all sections whose title starts with one of some words."""
    return "\n\n".join(s.body for s in sections if s.body and s.title.lower().startswith(starts))


# -- names --------------------------------------------------------------------------------

_NUMBER_HEADS = {"num", "num.", "number", "index", "idx", "no", "no.", "#", "id", ""}
_ITEM = re.compile(r"^\s*[-*]\s+`?(\d+)`?\s*[:=]\s*(.+?)\s*$")
_NAMED_ITEM = re.compile(r"^\s*(?:[-*]\s+)?`?([A-Za-z_]\w*)`?(?:\s*\([^)]*\))?:\s+(.+?)\s*$")


def _rows(text: str) -> tuple[dict[int, str], list[str]]:
    """Return the meanings that a section's first numbered table or list gives.

    Returns:
        Meanings by number, with units, and those of the rows marked as excluded.
    """
    rows: dict[int, str] = {}
    excluded: list[str] = []
    head: list[str] = []
    for line in text.splitlines():
        if not line.lstrip().startswith("|"):
            if rows:
                break
            head = []
            continue
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if not head:
            head = [c.lower() for c in cells]
        elif head[0] in _NUMBER_HEADS and len(cells) > 1 and len(head) > 1:
            units = [c for c, h in zip(cells, head, strict=False) if "unit" in h]
            unit = units[0] if units else ""
            inside = re.search(r"\(([^()]+)\)", unit)
            meaning = _plain(cells[1]) + (f" ({inside[1]})" if inside else "")
            if cells[0].isdigit():
                rows.setdefault(int(cells[0]), meaning)
            elif cells[0].lower() == "excluded":
                excluded.append(meaning)
    if not rows:
        for line in text.splitlines():
            item = _ITEM.match(line)
            if item is not None:
                if int(item[1]) in rows:
                    break  # a second list: of something else
                rows[int(item[1])] = _plain(item[2])
    return rows, excluded


def _read(text: str, count: int) -> list[str]:
    """Return one meaning for each of `count` quantities as a section gives them, or none."""
    rows, excluded = _rows(text)
    if rows and sorted(rows) == list(range(len(rows))):
        listed = [rows[i] for i in range(len(rows))]
        if len(listed) == count:
            return listed
        if excluded and len(excluded) + len(listed) == count:
            return excluded + listed
    if count == 1:
        said = re.search(r"\brepresent(?:s|ing)\s+(?:the\s+)?([^.|]+)", text)
        if said is not None:
            return [" ".join(_plain(said[1]).split())]
    named = [m for m in map(_NAMED_ITEM.match, text.splitlines()) if m]
    if len(named) == count:
        return [f"{m[1]}: {_plain(m[2])}" for m in named]
    return []


def _structured(env: gym.Env[Any, Any], text: str, count: int) -> list[str]:
    """Return meanings where MuJoCo's own table covers the first numbers only."""
    structure = getattr(env.unwrapped, "observation_structure", None)
    rows, _ = _rows(text)
    if not isinstance(structure, dict) or not structure.get("skipped_qpos"):
        return []
    parts = [(str(k), int(v)) for k, v in structure.items() if k != "skipped_qpos"]
    first = sum(n for k, n in parts if k in ("qpos", "qvel"))
    if sum(n for _, n in parts) != count or sorted(rows) != list(range(first)):
        return []
    more = [f"{k}{i}:" for k, n in parts if k not in ("qpos", "qvel") for i in range(n)]
    return [rows[i] for i in range(first)] + more


# Wrappers after which each observed number, or action, still means the same.
_SAME_OBSERVATION = {
    "RescaleObservation", "NormalizeObservation", "DtypeObservation", "ClipObservation",
    "FlattenObservation", "ReshapeObservation",
}  # fmt: skip
_SAME_ACTION = {"ClipAction", "RescaleAction", "StickyAction", "DiscretizeAction"}
# Gymnasium's wrappers with a step of their own that changes no reward and repeats no step.
_SAME_RETURN = {
    "TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics",
    "FrameStackObservation", "HumanRendering", "RenderCollection", "RecordVideo",
}  # fmt: skip
_SILENT = {"TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics"}


def _stack(env: gym.Env[Any, Any]) -> list[gym.Wrapper[Any, Any, Any, Any]]:
    """Return the wrappers from the innermost on."""
    layers: list[gym.Wrapper[Any, Any, Any, Any]] = []
    while isinstance(env, gym.Wrapper):
        layers.append(env)
        env = env.env
    return layers[::-1]


def _names_of(
    env: gym.Env[Any, Any], sections: list[_Section], kind: str, given: Sequence[str]
) -> tuple[Quantity, ...]:
    """Return the names of what is observed, or done: the user's, the docstring's or numbers."""
    watched = kind == "observation"
    space = env.observation_space if watched else env.action_space
    table = watched and isinstance(space, spaces.Discrete)
    count = 1 if table else _count(space)
    if given:
        if isinstance(given, str) or len(given) != count:
            raise SpaceError(
                f"{kind}s={given!r}: got {1 if isinstance(given, str) else len(given)} names, "
                f"expected {'one text on how the states are numbered' if table else count}"
            )
        if table:
            return (Quantity("s", given[0]),)
        return _quantities(given, kind[0], own=True)
    text = _find(sections, kind, f"{kind}s")
    if table:
        same = env.unwrapped.observation_space == space
        return (Quantity("s", _numbering(text) if same else ""),)
    inner = env.unwrapped.observation_space if watched else env.unwrapped.action_space
    found = _read(text, _count(inner))
    if watched and not found:
        found = _structured(env, text, _count(inner))
    if watched and isinstance(inner, spaces.Dict):
        found = _keys(inner)
    for layer in _stack(env):
        found = _through(layer, found, kind)
    if len(found) != count:
        found = []
    return _quantities(found or [""] * count, kind[0])


def _through(layer: gym.Wrapper[Any, Any, Any, Any], found: list[str], kind: str) -> list[str]:
    """Return the meanings after a wrapper: kept, extended, replaced by its own, or unknown."""
    name = type(layer).__name__
    own = type(layer).__module__.partition(".")[0] != "gymnasium"
    watched = kind == "observation"
    before = layer.env.observation_space if watched else layer.env.action_space
    after = layer.observation_space if watched else layer.action_space
    doc = vars(type(layer)).get("__doc__")
    if own and doc:
        stated = _read(_find(_sections(inspect.cleandoc(doc)), kind), _count(after))
        if stated:
            return stated
    if watched and name == "FrameStackObservation" and after.shape and found:
        n = after.shape[0]
        return [
            f"{_slug(m)}_back{n - 1 - k}: {m}, {n - 1 - k} steps before" if k < n - 1 else m
            for k in range(n)
            for m in found
        ]
    if watched and name == "TimeAwareObservation" and _count(after) == _count(before) + 1:
        return [*found, "time since the start of the episode"] if found else []
    changes = gym.ObservationWrapper if watched else gym.ActionWrapper
    known = _SAME_OBSERVATION if watched else _SAME_ACTION
    if not own and name in known and _count(after) == _count(before):
        return found
    if isinstance(layer, changes) or _count(after) != _count(before):
        return []
    return found


def _keys(space: spaces.Dict) -> list[str]:
    """Name the numbers of a flattened dictionary by their keys."""
    found: list[str] = []
    for key, part in space.spaces.items():
        n = int(spaces.flatdim(part))
        found += [f"{key}:"] if n == 1 else [f"{key}{i}:" for i in range(n)]
    return found


def _count(space: spaces.Space[Any]) -> int:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    try:
        return int(spaces.flatdim(space))
    except (NotImplementedError, ValueError):
        return 0


def _numbering(text: str) -> str:
    """Return the sentences that say how states are numbered."""
    prose = _clean(text)
    sentences = re.split(r"(?<=[.:])\s+(?=[A-Z`(])", prose.replace("\n", " "))
    said = " ".join(s for s in sentences if re.search(r"\w\s*[*+]\s*\w|position", s))
    return said[:400].rstrip(".")


def _quantities(texts: Sequence[str], letter: str, *, own: bool = False) -> tuple[Quantity, ...]:
    """Make distinct short names of ``"name: meaning"`` or of the meaning alone.

    Args:
        texts: One text for each; empty where nothing is known.
        letter: What the names of nameless ones begin with.
        own: Whether the user gave them: single words are then names, kept as they are.
    """
    made: list[Quantity] = []
    for number, text in enumerate(texts):
        name, colon, meaning = text.partition(":")
        if (colon or own) and re.fullmatch(r"\s*[\w.\[\]-]+\s*", name):
            made.append(Quantity(name.strip(), meaning.strip()))
        elif text:
            made.append(Quantity(_slug(text) or f"{letter}{number}", text))
        else:
            made.append(Quantity(f"{letter}{number}"))
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
    """Drop the words that all names share but their last one: it says of what kind they are."""
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
    (r"\b(\w+) of the angle\b", r"\1 of angle"),
    (r"\s-\s", " minus "),
    (r"\b(?:applied|acting) (?:on|at|to)\b", "of"),
    (r"\balong the .*$", ""),
    (r"\bbetween ([^|]*?) and (?:the )?([^|]*)$", r"of \1 \2"),
    (r"\b\w = (?=(?:cos|sin)\()", ""),
)
_DROPPED = {"the", "a", "an", "to", "and", "by", "with", "value", "its", "on", "at", "two", "apply"}


def _slug(meaning: str) -> str:
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
        # The last word says what kind of quantity it is, the ones before it whose.
        kept.pop(len(kept) // 2)
    return "_".join(kept)[:_MAX_NAME]


# -- the made environment ------------------------------------------------------------------


def _made_with(env: gym.Env[Any, Any]) -> str:
    kwargs = {} if env.spec is None else env.spec.kwargs
    shown = {k: v for k, v in kwargs.items() if k not in ("render_mode", "max_episode_steps")}
    if not shown:
        return ""
    return ", made with " + ", ".join(f"{k}={_brief(v)}" for k, v in shown.items())


def _brief(value: Any) -> str:
    text = " ".join(repr(value).split())
    # The address in the default form of an object changes from run to run.
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", text)
    return cut(text, 80)


def _facts(env: gym.Env[Any, Any], step_cap: int | None) -> list[str]:
    facts = []
    limit = _limit(env)
    if limit is not None and limit <= (step_cap or limit):
        facts.append(f"An episode has at most {limit} steps.")
    elif step_cap is not None:
        facts.append(f"An episode that has not ended by then is cut off after {step_cap} steps.")
    for attribute in ("dt", "tau"):
        try:
            step = getattr(env.unwrapped, attribute, None)
        except Exception:
            step = None  # a property of an environment that was not reset
        if isinstance(step, float) and 0 < step < 1e6:
            facts.append(f"A step is {step:.4g} s.")
            break
    return facts


def solved_from(env: gym.Env[Any, Any], step_cap: int | None = None) -> float | None:
    """Return the mean return from which Gymnasium takes an environment for solved, if it says so.

    Args:
        env: The environment, with its wrappers.
        step_cap: Steps after which an episode is ended from outside.

    Returns:
        ``None``, too, where arguments, a wrapper or another limit of steps change what the return
        is.
    """
    spec = env.spec
    if spec is None or not _as_registered(env):
        return None
    usual, limit = gym.registry[spec.id].max_episode_steps, _limit(env, step_cap)
    return spec.reward_threshold if limit == usual else None


def _threshold(env: gym.Env[Any, Any], step_cap: int | None) -> list[str]:
    solved = solved_from(env, step_cap)
    if solved is None:
        return []
    return [f"A mean return of {solved:g} counts as solved; more may be possible."]


def _as_registered(env: gym.Env[Any, Any]) -> bool:
    """Whether an environment has its registered arguments and no wrapper may change a return."""
    spec = env.spec
    if spec is None or spec.id not in gym.registry:
        return False
    changed = {k: v for k, v in spec.kwargs.items() if k != "render_mode"}
    return changed == gym.registry[spec.id].kwargs and all(map(_keeps_return, _stack(env)))


def _keeps_return(layer: gym.Wrapper[Any, Any, Any, Any]) -> bool:
    """Whether an episode in a wrapper has the rewards, step by step, of one without it."""
    if type(layer).__name__ in _SAME_RETURN and type(layer).__module__.startswith("gymnasium."):
        return True
    steps = (gym.Wrapper.step, gym.ObservationWrapper.step, gym.ActionWrapper.step)
    return type(layer).step in steps and not isinstance(layer, gym.RewardWrapper)


_EACH_STEP = re.compile(
    r"reward of `?\+?(\d+(?:\.\d+)?)`? (?:is )?(?:given|awarded|received|obtained) "
    r"(?:for|at|in|on) (?:each|every) (?:time)?step",
    re.IGNORECASE,
)


def _ceiling(
    env: gym.Env[Any, Any], sections: Sequence[_Section], step_cap: int | None
) -> list[str]:
    """Say the largest return there can be, where every step earns the same and nothing else does.

    Only of Gymnasium's own environments, whose descriptions were read for it: a description of
    somebody else may name a bonus in any place and in any words.
    """
    limit = _limit(env, step_cap)
    if limit is None or not type(env.unwrapped).__module__.startswith("gymnasium.envs."):
        return []
    text = _find(sections, "reward")
    said = [s for s in re.split(r"(?<=\.)\s+", text) if not s.lstrip().startswith("If `")]
    found = [m for m in map(_EACH_STEP.search, said) if m]
    if len(found) != 1 or not _as_registered(env):
        return []
    if re.search(r"reward\s*=|cost|penal|minus", " ".join(said)):
        return []
    most = float(found[0][1]) * limit
    return [f"A return of {most:g} is the most there can be ({limit} steps): stop there."]


def _limit(env: gym.Env[Any, Any], step_cap: int | None = None) -> int | None:
    """Return the steps after which a wrapper, or the caller's own cap, ends an episode."""
    limits = [step_cap, None if env.spec is None else env.spec.max_episode_steps]
    for layer in _stack(env):
        if type(layer).__name__ == "TimeLimit":
            limits.append(getattr(layer, "_max_episode_steps", None))
    return min((n for n in limits if isinstance(n, int)), default=None)


def _wrappers(env: gym.Env[Any, Any]) -> list[str]:
    """Say which wrappers the actions and observations pass through."""
    lines = []
    for layer in _stack(env):
        kind = type(layer)
        if kind.__name__ in _SILENT:
            continue
        saved = getattr(layer, "_saved_kwargs", None) or {}
        options = ", ".join(f"{k}={_brief(v)}" for k, v in saved.items() if k != "env")
        line = f"- {kind.__name__}({options})"
        about = inspect.cleandoc(vars(kind).get("__doc__") or "").split("\n\n")[0]
        if about:
            line += f": {_clean(about)[:300]}"
        lines.append(line)
    return ["Wrapped, from the inside out, in:", *lines] if lines else []


def _scaled(env: gym.Env[Any, Any], seen: Sequence[Quantity]) -> list[str]:
    """Say by how much each observed number is scaled, so that it can be read in its own units."""
    scales = scaling(env)
    if scales is None or len(scales[0]) != len(seen) or len(seen) > _LISTED:
        return []
    items = (
        f"{q.name} ({centre:.4g}, {size:.4g})"
        for q, centre, size in zip(seen, *scales, strict=True)
    )
    return [
        "Each observed number is shown as (own - centre) / size, with (centre, size) in the units "
        f"of its description: {', '.join(items)}."
    ]


def _listing(quantities: Sequence[Quantity], space: spaces.Space[Any], letter: str) -> list[str]:
    """List quantities with their bounds; many without a meaning are one line."""
    bounds = _bounds_of(space, len(quantities))
    known = [i for i, q in enumerate(quantities) if q.meaning]
    if (len(known) < len(quantities) and len(quantities) > _LISTED) or not any(
        q.meaning or bounds[i] or not re.fullmatch(rf"{letter}\d+", q.name)
        for i, q in enumerate(quantities)
    ):
        lines = [_item(quantities[i], bounds[i]) for i in known]
        names = [q.name for q in quantities if not q.meaning]
        if len(names) > 3:
            return [*lines, f"- {names[0]}, {names[1]}, ... {names[-1]} ({len(names)} numbers)"]
        return [*lines, *(f"- {n}" for n in names)]
    return [_item(q, b) for q, b in zip(quantities, bounds, strict=True)]


def _item(quantity: Quantity, bounds: str) -> str:
    meaning = quantity.meaning
    if meaning.lower().split() == quantity.name.split("_"):
        meaning = ""  # the name says it all
    if bounds and bounds in meaning:
        bounds = ""
    said = meaning + (", " if meaning and bounds else "") + bounds
    return f"- {quantity.name}" + (f": {said}" if said else "")


def _bounds_of(space: spaces.Space[Any], count: int) -> list[str]:
    if not isinstance(space, spaces.Box) or int(np.prod(space.shape or (1,))) != count:
        return [""] * count
    low, high = np.ravel(space.low).astype(float), np.ravel(space.high).astype(float)
    texts = []
    for a, b in zip(low, high, strict=True):
        if np.isfinite(a) and np.isfinite(b) and max(abs(a), abs(b)) < 1e30:
            texts.append(f"from {a:.4g} to {b:.4g}")
        elif np.isfinite(a) and abs(a) < 1e30:
            texts.append(f"at least {a:.4g}")
        else:
            texts.append("")
    return texts


def _probe(make: Callable[[], gym.Env[Any, Any]]) -> list[str]:
    """Try what an environment does with an action outside its bounds."""
    try:
        env = make()
    except Exception:
        return []
    try:
        space = acting_space(env)
        if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            return []
        if not np.isfinite([space.low, space.high]).all():
            return []
        inside = space.high
        outside = (space.high + 2 * (space.high - space.low)).astype(space.dtype)

        def once(action: Any) -> tuple[Any, float]:
            env.reset(seed=0)
            observation, reward, *_ = env.step(action.copy())
            return np.array(observation, dtype=float), float(reward)

        first, again = once(inside), once(inside)
        if not (np.array_equal(first[0], again[0]) and first[1] == again[1]):
            return []  # not the same from the same seed, so nothing can be told apart
        try:
            beyond = once(outside)
        except Exception as error:
            return [f"An action outside its bounds is an error ({type(error).__name__})."]
    except Exception:
        return []
    finally:
        env.close()
    if not np.array_equal(first[0], beyond[0]):
        return ["An action outside its bounds acts with its full size; it is not clipped."]
    if first[1] != beyond[1]:
        return [
            "An action outside its bounds moves nothing more than the bound does, but the "
            "reward counts (charges) it unclipped."
        ]
    return ["An action outside its bounds acts, and is charged, as the bound."]


# -- the text -----------------------------------------------------------------------------

_SKIPPED = ("version", "reference", "credit", "citation", "vectorized", "rendering", "information",
            "installation", "attributes", "methods")  # fmt: skip


def _chosen(
    sections: list[_Section], doc: str, kwargs: dict[str, Any]
) -> list[tuple[str, str, int]]:
    """Return titles, texts and ranks (the lower, the sooner kept) of sections to show."""
    chosen: list[tuple[str, str, int]] = []
    if len(sections) == 1:  # no headings: all of it is the description
        return [("Description", _clean(sections[0].body), 0)] if doc else []
    for section in sections:
        title = section.title.lower()
        if not title:
            title, section = "description", replace(section, title="Description")
        text = _clean(section.body)
        if not text or title.startswith(_SKIPPED):
            continue
        if title.startswith("argument"):
            text = _arguments(section.body, kwargs)
            rank = 9
        elif title.startswith(("observation", "action")):
            text = _notes(text)
            rank = 4
        elif title.startswith("reward"):
            rank = 1
        elif "end" in title.split() or title.startswith(("termin", "trunc", "episode")):
            rank = 2
        elif title == "description":
            rank = 3
        elif "dynamics" in title:
            rank = 5
        elif title.startswith("start"):
            rank = 6
        else:
            rank = 7
        if text and chosen and chosen[-1][0] == section.title:
            chosen[-1] = (section.title, f"{chosen[-1][1]}\n{text}", rank)
        elif text:
            chosen.append((section.title, text, rank))
    return chosen


def _notes(text: str) -> str:
    """Drop from the text around a table all that the list of names says, or that is advice."""
    kept = []
    for line in text.splitlines():
        if line.startswith("- ") and re.match(r"- (?:`?\d+`?\s*[:=]|\w+ \(\d+ elements?)", line):
            continue
        sentences = re.split(r"(?<=[.:])\s+(?=[A-Z`])", line)
        useful = [
            s
            for s in sentences
            if not re.search(
                r"ndarray|elements? (?:are|correspond)|following parts|by default\b|during "
                r"construction|(?:is|be) an? `?Box|shape is|regardless of|returned as an|"
                r"discrete determ",
                s,
                re.IGNORECASE,
            )
        ]
        if useful:
            kept.append(" ".join(useful))
    return "\n".join(kept)


def _arguments(body: str, kwargs: dict[str, Any]) -> str:
    """Return what is said of arguments: all of a list; of a table the rows that were given."""
    rows = []
    for line in body.splitlines():
        if line.lstrip().startswith("|"):
            cells = [c.strip().strip("`") for c in line.strip().strip("|").split("|")]
            if cells[0] in kwargs:
                rows.append(f"- {cells[0]}: {_plain(cells[-1])}")
    if rows:
        return "\n".join(rows)
    items = re.split(r"^\s*\*\s+", body, flags=re.MULTILINE)[1:]
    return "\n".join(f"- {_clean(item)}".replace("\n", " ") for item in items)


def _fit(
    words: str, must: list[str], rest: list[tuple[str, str, int]], picture: str, most: int
) -> str:
    """Put the text together, sections of the lowest rank first where room is short."""
    if picture:
        rest = [*rest, ("A start, drawn", picture, 8)]
    shown: dict[int, str] = {}
    left = most
    for index in sorted(range(len(rest)), key=lambda i: (rest[i][2], i)):
        title, text, _ = rest[index]
        lines = "\n" in text
        block = f"{title or 'Description'}:" + ("\n" if lines else " ") + text
        if len(block) > left:
            block = _cut(block, left)
        if block:
            shown[index] = block
            left -= len(block) + 1
    told = [shown[i] for i in sorted(shown)]
    return "\n".join([*([words] if words else []), must[0], *told, *must[1:]])


def _cut(text: str, most: int) -> str:
    """Cut at the end of a sentence or line; nothing where too little would be left."""
    if most < 120:
        return ""
    part = text[: most - 2]
    end = max(part.rfind(". "), part.rfind("\n"))
    return part[: end + 1].rstrip() + " …" if end > most // 3 else ""


_MARKUP: tuple[tuple[str, str], ...] = (
    (r"!\[[^\]]*\]\([^)]*\)", ""),
    (r"\[([^\]\[]+)\]\([^)\s]*\)", r"\1"),
    (r"<sub>(.*?)</sub>", r"_\1"),
    (r"<sup>(.*?)</sup>", r"^\1"),
    (r"</?\w+/?>", ""),
    (r"\*\*\*|\*\*", ""),
    (r"(?<![\w*])\*(?=\S)(.+?)(?<=\S)\*(?![\w*])", r"\1"),
    (r"\(`?(observation\[[^\]]*\])`?\s+if\s+`?exclude[^)]*\)", r"(\1)"),
    (r"\s*\(if\s+`exclude_[^)]*\)", ""),
    (r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"\1/\2"),
    (r"\\times", "*"),
    (r"\\infty", "inf"),
    (r"\\\|", "|"),
    (r"\\(?:mathcal|text|textit|mathrm)\{([^{}]*)\}", r"\1"),
    (r"\\(?:left|right)\b", ""),
    (r"\\_", "_"),
    (r"\$+", ""),
    (r"([_^])\{([^{}]*)\}", r"\1\2"),
    (r"`", ""),
    (r"[ \t]+", " "),
)


# History, credits and advertising in descriptions.
_SENTENCE = re.compile(
    r"(?:^|(?<=[.:] ))(?=[A-Z]|info )[^.]*?(?:described in|described by|"
    r"based on the (?:work|environment)|"
    r"independent state and control variables|MDP first appeared|two versions\b|"
    r"of the mountain car domain|This version is|[Pp]ixel art|"
    r"contains the individual reward terms|reward threshold|possible to pass a custom)"
    r"(?:[^.]|\.(?=\S))*(?:\. |$)"
)


def _plain(text: str) -> str:
    """Return Markdown as plain text."""
    for pattern, replacement in _MARKUP:
        text = re.sub(pattern, replacement, text)
    return text.strip()


def _clean(text: str) -> str:
    """Return a section as plain text without tables and code: a line for each paragraph or item."""
    lines: list[str] = []
    fresh = True
    for raw in _FENCED.sub("", text).splitlines():
        line = raw.strip()
        if not line or line.startswith(("|", ":name:", ">>>")):
            fresh = True
            continue
        item = re.match(r"(?:[-*]|\d+\.)\s", line)
        if lines and not fresh and not item:
            lines[-1] += f" {line}"
        else:
            lines.append(re.sub(r"^\*\s", "- ", line))
        fresh = False
    said = (_SENTENCE.sub("", _plain(line) + " ").strip() for line in lines)
    return "\n".join(s for s in said if s)
