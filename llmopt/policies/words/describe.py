"""Describe an environment: its docstring, spaces, limits and wrappers, and names for all numbers.

A model that knows the meaning of observations and actions can design a controller; with numbered
weights it searches blindly. `describe_environment` reads the docstring (`docstrings`) and adds
facts of the instance: arguments, step limit, wrappers, physics, and whether an action outside its
bounds is clipped and penalized.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from llmopt.errors import warn_user
from llmopt.policies.episode import FAILED, TERMINATED, episode
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.words.docstrings import (
    chosen,
    clean_markdown,
    docstring_of,
    sections_of,
)
from llmopt.policies.words.naming import Quantity, quantity_names
from llmopt.policies.words.physics import describe_physics
from llmopt.policies.wrapping import acting_space, bounds_of, scaling, stack, title_of
from llmopt.util.text import clean, cut

MAX_WORDS = 6000
"""Maximum characters of an environment's description, about 1,500 tokens."""

_LISTED = 120  # with more observed numbers, numbers without a meaning share one line
_MAX_PICTURE = 800  # maximum characters of an initial state rendered as text

# Gymnasium wrappers that override `step` but change no reward and repeat no step.
_SAME_RETURN = {
    "TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics",
    "FrameStackObservation", "HumanRendering", "RenderCollection", "RecordVideo",
}  # fmt: skip
_NO_ARGUMENTS = ("render_mode", "max_episode_steps")  # of an environment itself
_SILENT = {"TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics"}


@dataclass(frozen=True)
class EnvironmentWords:
    """The description of an environment."""

    title: str  # id or class of the environment
    # one for each observed number; for a ``Discrete`` observation a single one that explains
    # the numbering of the states
    observations: tuple[Quantity, ...]
    actions: tuple[Quantity, ...]  # one for each number of an action, or for each choice
    text: str  # the complete description for a prompt


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
    ends: str | None = None,
    picture: str = "",
    probe: Callable[[], gym.Env[Any, Any]] | None = None,
) -> EnvironmentWords:
    """Describe an environment in words.

    Args:
        env: The environment, with its wrappers. It is neither reset nor stepped.
        words: The user's own words, which come first and are never cut.
        observations: Names of the observed numbers, in their order, as ``"name"`` or
            ``"name: meaning"``; for a ``Discrete`` observation one text on how the states
            are numbered. Empty to use the docstring's names.
        actions: Names of the actions or choices in the same form.
        docstring: Whether to include the environment's docstring. Names come from it in any case.
        threshold: Whether to state the return at which Gymnasium considers the task solved, if
            there is one and the environment has its registered arguments.
        max_chars: Maximum characters of the text, beyond the user's words and the names.
        step_cap: Maximum steps of an episode if the environment sets no limit.
        ends: How episodes end, in place of the sentence about `step_cap`: see `how_episodes_end`.
        picture: The initial state as text, as toy-text environments render it.
        probe: Makes a second environment, to test an action outside its bounds (a few steps from
            one seeded initial state). ``None`` if no such action reaches the environment.

    Raises:
        SpaceError: The number of observation names or of action names is wrong.
    """
    doc = docstring_of(env)
    sections = sections_of(doc)
    seen = quantity_names(env, sections, "observation", observations)
    done = quantity_names(env, sections, "action", actions)
    spec = env.spec
    title = title_of(env)
    made_with = {} if spec is None else spec.kwargs
    given = [f"{k}={_brief(v)}" for k, v in made_with.items() if k not in _NO_ARGUMENTS]
    head = f"Environment: {title}{', made with ' * bool(given)}{', '.join(given)}."
    must = [head, *_facts(env, step_cap, ends)]
    if threshold and (solved := solved_from(env, step_cap)) is not None:
        must += [f"A mean return of {solved:g} counts as solved; more may be possible."]
    must += _ceiling(env, step_cap)
    if isinstance(env.observation_space, spaces.Discrete):
        states = int(env.observation_space.n)
        first = int(env.observation_space.start)
        # The docstring has a complete section on it.
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
    discrete = isinstance(acting_space(env), spaces.Discrete)
    rest = chosen(sections, doc, made_with, discrete=discrete) if docstring else []
    text = clean(_fit(words.strip(), must, rest, picture[:_MAX_PICTURE], max_chars))
    return EnvironmentWords(title, seen, done, text)


def _brief(value: Any) -> str:
    text = " ".join(repr(value).split())
    # The address in an object's default representation changes from run to run.
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", text)
    return cut(text, 80)


def _facts(env: gym.Env[Any, Any], step_cap: int | None, ends: str | None) -> list[str]:
    facts = []
    limit = _limit(env)
    if limit is not None and limit <= (step_cap or limit):
        facts.append(f"An episode has at most {limit} steps.")
    elif ends is not None:
        facts += [ends] if ends else []
    elif step_cap is not None:
        facts.append(f"An episode is cut off after {step_cap} steps.")
    for attribute in ("dt", "tau"):
        try:
            step = getattr(env.unwrapped, attribute, None)
        except Exception:
            step = None  # the property may need a reset
        if isinstance(step, float) and 0 < step < 1e6:
            facts.append(f"A step is {step:.4g} s.")
            break
    return facts


def how_episodes_end(
    make: Callable[[], gym.Env[Any, Any]], policy: LinearPolicy, seed: int, step_cap: int
) -> str | None:
    """Return how the episodes of an environment without a known limit end, from one of them.

    Warns the user if it does not end by itself.

    Args:
        make: Makes the environment.
        policy: A policy for it, whose parameters are drawn at random.
        seed: Seed of the initial state.
        step_cap: Steps after which the caller ends an episode.

    Returns:
        ``None`` if the cap is what ends episodes, or a limit is known; a sentence on what else
        is known, or an empty string for nothing.
    """
    env = make()
    try:
        if _limit(env) is not None:
            return None
        title = title_of(env)
        weights = np.random.default_rng(0).normal(size=policy.n_parameters)
        seen = episode(env, policy.bind(weights), seed, step_cap)
    finally:
        env.close()
    if seen.end == FAILED:  # the first evaluation reports the fault
        return None
    if seen.length >= step_cap:
        warn_user(
            f"{title} has no limit of steps, and an episode did not end within {step_cap}: every "
            "episode is cut off there. Give max_steps= for another limit, or register the "
            "environment with max_episode_steps=",
            UserWarning,
        )
        return None
    if seen.end == TERMINATED:
        return f"An episode that does not end by itself is cut off after {step_cap} steps."
    return ""  # by an internal limit of the environment, which is unknown


def solved_from(env: gym.Env[Any, Any], step_cap: int | None = None) -> float | None:
    """Return the mean return from which Gymnasium considers an environment solved.

    ``None`` if there is none, or if arguments, a wrapper or another step limit change the return.
    """
    spec = env.spec
    if spec is None or not _as_registered(env):
        return None
    usual, limit = gym.registry[spec.id].max_episode_steps, _limit(env, step_cap)
    return spec.reward_threshold if limit == usual else None


def _as_registered(env: gym.Env[Any, Any]) -> bool:
    """Whether an environment has its registered arguments, and no wrapper may change a return."""
    spec = env.spec
    if spec is None or spec.id not in gym.registry:
        return False
    changed = {k: v for k, v in spec.kwargs.items() if k != "render_mode"}
    return changed == gym.registry[spec.id].kwargs and all(map(_keeps_return, stack(env)))


def _keeps_return(layer: gym.Wrapper[Any, Any, Any, Any]) -> bool:
    """Whether a wrapper leaves the rewards of every step unchanged."""
    if type(layer).__name__ in _SAME_RETURN and type(layer).__module__.startswith("gymnasium."):
        return True
    steps = (gym.Wrapper.step, gym.ObservationWrapper.step, gym.ActionWrapper.step)
    return type(layer).step in steps and not isinstance(layer, gym.RewardWrapper)


_ONE_A_STEP = ("CartPole-v0", "CartPole-v1", "InvertedPendulum-v5")  # and nothing else


def _ceiling(env: gym.Env[Any, Any], step_cap: int | None) -> list[str]:
    """Return a line on the maximum possible return, if it is known."""
    limit, spec = _limit(env, step_cap), env.spec
    if limit is None or spec is None or spec.id not in _ONE_A_STEP or not _as_registered(env):
        return []
    return [f"A return of {limit} is the most there can be ({limit} steps): stop there."]


def _limit(env: gym.Env[Any, Any], step_cap: int | None = None) -> int | None:
    """Return the step limit of an episode: a wrapper's, or the caller's own cap."""
    limits = [step_cap, None if env.spec is None else env.spec.max_episode_steps]
    for layer in stack(env):
        if type(layer).__name__ == "TimeLimit":
            limits.append(getattr(layer, "_max_episode_steps", None))
    return min((n for n in limits if isinstance(n, int)), default=None)


def _wrappers(env: gym.Env[Any, Any]) -> list[str]:
    """Describe the wrappers."""
    lines = []
    for layer in stack(env):
        kind = type(layer)
        if kind.__name__ in _SILENT:
            continue
        saved = getattr(layer, "_saved_kwargs", None) or {}
        options = ", ".join(f"{k}={_brief(v)}" for k, v in saved.items() if k != "env")
        line = f"- {kind.__name__}({options})"
        about = inspect.cleandoc(vars(kind).get("__doc__") or "").split("\n\n")[0]
        if about:
            line += f": {clean_markdown(about)[:300]}"
        lines.append(line)
    return ["Wrapped, from the inside out, in:", *lines] if lines else []


def _scaled(env: gym.Env[Any, Any], seen: Sequence[Quantity]) -> list[str]:
    """Return a line with centre and size of each scaled observation, in its own units."""
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
    """List quantities with their bounds; many without a meaning share one line."""
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
        meaning = ""  # the name is sufficient
    if bounds and bounds in meaning:
        bounds = ""
    said = meaning + (", " if meaning and bounds else "") + bounds
    return f"- {quantity.name}" + (f": {said}" if said else "")


def _bounds_of(space: spaces.Space[Any], count: int) -> list[str]:
    low, high = bounds_of(space)
    if len(low) != count:
        return [""] * count
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
    """Test how an environment treats an action outside its bounds."""
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
            return []  # not reproducible from a seed: no comparison is possible
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


def _fit(
    words: str, must: list[str], rest: list[tuple[str, str, int]], picture: str, most: int
) -> str:
    """Join the text; if room is short, keep sections of the lowest rank first."""
    if picture:
        rest = [*rest, ("A start, drawn", picture, 8)]
    shown: dict[int, str] = {}
    left = most
    for index in sorted(range(len(rest)), key=lambda i: (rest[i][2], i)):
        title, text, _ = rest[index]
        lines = "\n" in text
        block = f"{title}:" + ("\n" if lines else " ") + text
        if len(block) > left:
            block = _cut(block, left)
        if block:
            shown[index] = block
            left -= len(block) + 1
    told = [shown[i] for i in sorted(shown)]
    return "\n".join([*([words] if words else []), must[0], *told, *must[1:]])


def _cut(text: str, most: int) -> str:
    """Cut at the end of a sentence or line; empty if too little would remain."""
    if most < 120:
        return ""
    part = text[: most - 2]
    end = max(part.rfind(". "), part.rfind("\n"))
    return part[: end + 1].rstrip() + " …" if end > most // 3 else ""
