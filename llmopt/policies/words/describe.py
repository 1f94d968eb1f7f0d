"""Describe an environment: its docstring, spaces, limits and wrappers, and names for all numbers.

A model that knows the meaning of observations and actions can design a controller; with numbered
weights it searches blindly. `describe_environment` quotes the docstring, and adds facts of the
instance: arguments, step limit, scaling, physics.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from llmopt.policies.episode import STEP_CAP
from llmopt.policies.scaling import (
    NO_ARGUMENTS,
    acting_space,
    bounds_of,
    centre_and_size,
    stack,
    title_of,
    without_address,
)
from llmopt.policies.words.docstrings import docstring_of, quote, sections_of
from llmopt.policies.words.naming import Quantity, quantity_names
from llmopt.policies.words.physics import describe_physics
from llmopt.util.text import clean, cut

MAX_WORDS = 6000
"""Maximum characters of an environment's docstring, about 1,500 tokens."""

_LISTED = 120  # with more observed numbers, the ones without a meaning share one line

# Gymnasium wrappers that override `step` but change no reward and repeat no step.
_SAME_RETURN = {
    "TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "RecordEpisodeStatistics",
    "FrameStackObservation", "HumanRendering", "RenderCollection", "RecordVideo",
}  # fmt: skip
_MOST_ARGUMENTS, _MOST_ARGUMENT = 2000, 400  # characters of all arguments, and of one
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
    step_cap: int | None = None,
    more: Sequence[str] = (),
) -> EnvironmentWords:
    """Describe an environment in words.

    Args:
        env: The environment, with its wrappers. It is neither reset nor stepped.
        words: The user's own words, which come first.
        observations: Names of the observed numbers, in their order, as ``"name"`` or
            ``"name: meaning"``; for a ``Discrete`` observation one text on how the states
            are numbered. Empty to use the docstring's names.
        actions: Names of the actions or choices in the same form.
        step_cap: Maximum steps of an episode.
        more: Further lines, such as `probe_bounds` and `render_text` return.

    Raises:
        SpaceError: The number of observation names or of action names is wrong.
    """
    sections = sections_of(docstring_of(env))
    seen = quantity_names(env, sections, "observation", observations)
    done = quantity_names(env, sections, "action", actions)
    given = _arguments({} if env.spec is None else env.spec.kwargs)
    title = title_of(env)
    lines = [f"Environment: {title}{', made with ' * bool(given)}{', '.join(given)}."]
    tables = not all(q.meaning for q in (*seen, *done))  # else the lists below hold them
    lines += [quote(sections, MAX_WORDS, tables=tables, arguments=bool(given))]
    lines += _limits(env, step_cap)
    if isinstance(env.observation_space, spaces.Discrete):
        states, first = int(env.observation_space.n), int(env.observation_space.start)
        meaning = f": {seen[0].meaning}" if seen[0].meaning else ""
        lines += [f"Observed: one of {states} states, s{first} to s{first + states - 1}{meaning}."]
    else:
        lines += ["Observed:", *_listing(seen, env.observation_space)]
    lines += ["Actions:", *_listing(done, acting_space(env))]
    lines += describe_physics(env.unwrapped)
    names = [type(layer).__name__ for layer in stack(env)]
    wrappers = [name for name in names if name not in _SILENT]
    lines += [f"Wrapped, from the inside out, in: {', '.join(wrappers)}."] if wrappers else []
    lines += [*_scaled(env, seen), *more]
    text = "\n".join(line for line in (words.strip(), *lines) if line)
    return EnvironmentWords(title, seen, done, clean(text))


def _arguments(given: Mapping[str, Any]) -> list[str]:
    """List arguments and the entries of dictionaries: ``constants.gust=0.15``."""

    def flat(name: str, value: Any) -> list[str]:
        if isinstance(value, Mapping) and value:
            return [line for k, v in value.items() for line in flat(f"{name}.{k}", v)]
        value = value.item() if isinstance(value, np.generic) else value
        return [f"{name}={cut(without_address(value), _MOST_ARGUMENT)}"]

    lines = [x for k, v in given.items() if k not in NO_ARGUMENTS for x in flat(k, v)]
    ends = accumulate(len(line) + 2 for line in lines)
    shown = [line for line, end in zip(lines, ends, strict=True) if end <= _MOST_ARGUMENTS]
    left = len(lines) - len(shown)
    return [*shown, f"and {left} more"] if left else shown


def _limits(env: gym.Env[Any, Any], step_cap: int | None) -> list[str]:
    """Return lines on the length of an episode and of a step, and on solved returns."""
    lines, limit = [], _limit(env)
    if limit is not None and limit <= (step_cap or limit):
        lines += [f"An episode has at most {limit} steps."]
    elif step_cap is not None and not (limit is None and _may_truncate(env, step_cap)):
        lines += [f"An episode that does not end by itself is cut off after {step_cap} steps."]
    if (seconds := step_seconds(env)) is not None:
        lines += [f"A step is {seconds:.4g} s."]
    if (solved := solved_from(env, step_cap)) is not None:
        lines += [f"A mean return of {solved:g} counts as solved; more may be possible."]
    most = _limit(env, step_cap)
    if most is not None and title_of(env) in _ONE_A_STEP and _as_registered(env):
        lines += [f"A return of {most} is the most there can be ({most} steps): stop there."]
    return lines


def step_seconds(env: gym.Env[Any, Any]) -> float | None:
    """Return the simulated seconds of a step, the environment's ``dt`` or ``tau``."""
    for attribute in ("dt", "tau"):
        try:
            step = getattr(env.unwrapped, attribute, None)
        except Exception:
            step = None  # the property may need a reset
        if isinstance(step, float) and 0 < step < 1e6:
            return step
    return None


def _may_truncate(env: gym.Env[Any, Any], step_cap: int) -> bool:
    """Whether an environment may itself end an episode before the usual `STEP_CAP`.

    It does not if each ``return`` of its ``step`` has ``False`` as the fourth value.
    """
    if step_cap != STEP_CAP:
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(type(env.unwrapped).step)))
    except (OSError, TypeError, SyntaxError):
        return True
    returned = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    fourth = [v.elts[3] for v in returned if isinstance(v, ast.Tuple) and len(v.elts) == 5]
    never = all(isinstance(x, ast.Constant) and x.value is False for x in fourth)
    return not (never and fourth and len(fourth) == len(returned))


def solved_from(env: gym.Env[Any, Any], step_cap: int | None = None) -> float | None:
    """Return the mean return from which Gymnasium considers an environment solved.

    ``None`` if there is none, or if arguments, a wrapper or another step limit change the return.
    """
    spec = env.spec
    if spec is None or not _as_registered(env):
        return None
    limit = gym.registry[spec.id].max_episode_steps
    return spec.reward_threshold if _limit(env, step_cap) == limit else None


_ONE_A_STEP = ("CartPole-v0", "CartPole-v1", "InvertedPendulum-v5")  # and nothing else


def _as_registered(env: gym.Env[Any, Any]) -> bool:
    """Whether an environment has its registered arguments, and no wrapper may change a return."""
    spec = env.spec
    if spec is None or spec.id not in gym.registry:
        return False
    changed = {k: v for k, v in spec.kwargs.items() if k != "render_mode"}
    return changed == gym.registry[spec.id].kwargs and all(map(_keeps_return, stack(env)))


def _keeps_return(layer: gym.Wrapper[Any, Any, Any, Any]) -> bool:
    """Whether a wrapper leaves the rewards of every step unchanged."""
    kind = type(layer)
    if kind.__name__ in _SAME_RETURN and kind.__module__.startswith("gymnasium."):
        return True
    steps = (gym.Wrapper.step, gym.ObservationWrapper.step, gym.ActionWrapper.step)
    return kind.step in steps and not isinstance(layer, gym.RewardWrapper)


def _limit(env: gym.Env[Any, Any], step_cap: int | None = None) -> int | None:
    """Return the step limit of an episode: a wrapper's, or the caller's own cap."""
    limits = [step_cap, None if env.spec is None else env.spec.max_episode_steps]
    limits += [getattr(layer, "_max_episode_steps", None) for layer in stack(env)]
    return min((n for n in limits if isinstance(n, int)), default=None)


def _scaled(env: gym.Env[Any, Any], seen: Sequence[Quantity]) -> list[str]:
    """Return a line with centre and size of each scaled observation, in its own units."""
    scales = centre_and_size(env)
    if scales is None or len(scales[0]) != len(seen) or len(seen) > _LISTED:
        return []
    rows = zip(seen, *scales, strict=True)
    items = ", ".join(f"{q.name} ({centre + 0.0:.4g}, {size:.4g})" for q, centre, size in rows)
    return [
        "Each observed number is shown as (own - centre) / size, with (centre, size) in the units "
        f"of its description: {items}."
    ]


def _listing(quantities: Sequence[Quantity], space: spaces.Space[Any]) -> list[str]:
    """List quantities with their bounds; many without a meaning share one line."""
    low, high = bounds_of(space)
    bounded = len(low) == len(quantities)
    lines = []
    for i, q in enumerate(quantities):
        meaning = "" if q.meaning.lower().split() == q.name.split("_") else q.meaning
        bounds = ""
        if bounded and np.isfinite(low[i]) and abs(low[i]) < 1e30:
            bounds = f"at least {low[i]:.4g}"
            if np.isfinite(high[i]) and high[i] < 1e30:
                bounds = f"from {low[i]:.4g} to {high[i]:.4g}"
        said = ", ".join(part for part in (meaning, bounds) if part)
        lines.append(f"- {q.name}" + (f": {said}" if said else ""))
    bare = [q.name for q in quantities if not q.meaning]
    if len(bare) > 3 and (len(bare) > _LISTED or (len(bare) == len(quantities) and not bounded)):
        told = [line for line, q in zip(lines, quantities, strict=True) if q.meaning]
        return [*told, f"- {bare[0]}, {bare[1]}, ... {bare[-1]} ({len(bare)} numbers)"]
    return lines


def probe_bounds(make: Callable[[], gym.Env[Any, Any]]) -> str:
    """Return a sentence on how an environment treats an action outside its bounds.

    Takes a few steps from one seeded initial state. Empty if that shows nothing.
    """
    try:
        env = make()
    except Exception:
        return ""
    try:
        space = acting_space(env)
        if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            return ""
        outside = (3 * space.high - 2 * space.low).astype(space.dtype)

        def once(action: np.ndarray) -> tuple[list[float], float]:
            env.reset(seed=0)
            observation, reward, *_ = env.step(action.copy())
            return np.ravel(observation).astype(float).tolist(), float(reward)

        bound = once(space.high)
        if not np.isfinite(outside).all() or bound != once(space.high):
            return ""  # not reproducible from a seed: no comparison is possible
        try:
            beyond = once(outside)
        except Exception as error:
            return f"An action outside its bounds is an error ({type(error).__name__})."
    except Exception:
        return ""
    finally:
        env.close()
    if bound[0] != beyond[0]:
        return "An action outside its bounds acts with its full size; it is not clipped."
    if bound[1] != beyond[1]:
        return (
            "An action outside its bounds moves nothing more than the bound does, but the reward "
            "counts (charges) it unclipped."
        )
    return "An action outside its bounds acts, and is charged, as the bound."
