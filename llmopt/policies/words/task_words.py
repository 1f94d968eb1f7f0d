"""The prompt's description of a policy search: the goal, the environment, the parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from llmopt.errors import warn_user
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.scaling import acting_space, bounds_of, centre_and_size, title_of
from llmopt.policies.words.describe import EnvironmentWords, describe_environment, probe_bounds

_MOST_INPUTS = 12  # with more observed numbers, initial states are not listed
_MOST_STARTS = 20
_ALIKE = 0.02  # numbers that differ by less, or by a smaller share of the bounds, are not listed
_MAX_PICTURE = 800  # maximum characters of an initial state rendered as text
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class TaskWords:
    """The description of a search for the prompt."""

    environment: EnvironmentWords
    inputs: tuple[str, ...]  # a name for each observed number; empty for a table
    outputs: tuple[str, ...]  # a name for each action or choice
    scaled: bool
    text: str


def describe_task(
    make: Callable[..., gym.Env[Any, Any]],
    policy: LinearPolicy,
    seeds: Sequence[int],
    step_cap: int,
    *,
    description: str = "",
    ceiling: float | None = None,
    choices: bool = False,
    extended: bool = False,
    **environment: Any,
) -> TaskWords:
    """Describe the goal of the search, the environment, and the meaning of the parameters.

    `extended` says that usual weights lie within a tenth of their ranges. Further arguments are
    those of `describe_environment`.
    """
    # One after the other: some environments allow one live instance.
    more = [] if policy.clips else [probe_bounds(make)]
    more.append(render_text(make, seeds[0]))
    env = make()
    try:
        told = describe_environment(
            env, words=description, step_cap=step_cap, more=more, **environment
        )
        scaled = centre_and_size(env) is not None
        clipped = acting_space(env) is not env.action_space
        seen = _first_seen(env, seeds)
        check_seeding(env, seeds[0])
    finally:
        env.close()
    table = isinstance(policy.observation_space, spaces.Discrete)
    inputs = () if table else tuple(q.name for q in told.observations)
    outputs = tuple(q.name for q in told.actions)
    meaning = describe_parameters(policy, choices=choices, scaled=scaled, clipped=clipped)
    if extended:
        meaning += (
            " The usual weights lie within a tenth of their ranges; a good one may lie beyond."
        )
    parts = [describe_goal(len(seeds), ceiling), told.text, meaning]
    if inputs:
        parts.append(describe_starts(seen, inputs, policy.observation_space))
    text = "\n\n".join(part for part in parts if part)
    return TaskWords(told, inputs, outputs, scaled, text)


def _first_seen(env: gym.Env[Any, Any], seeds: Sequence[int]) -> list[np.ndarray]:
    """Return the flat first observation of each initial state."""
    flat: Any = spaces.flatten
    try:
        seen = (env.reset(seed=seed)[0] for seed in seeds)
        return [np.asarray(flat(env.observation_space, s), float).ravel() for s in seen]
    except Exception:  # the first evaluation reports the fault
        return []


def check_seeding(env: gym.Env[Any, Any], seed: int) -> None:
    """Warn the user if two resets with one seed begin with different observations."""
    first, again = (_first_seen(env, [seed]) for _ in range(2))
    if first and again and not np.array_equal(first[0], again[0], equal_nan=True):
        warn_user(
            f"{title_of(env)}: two resets with seed={seed} returned different observations, so "
            "policies are not compared on the same initial states. In reset() call "
            "super().reset(seed=seed), and take all random numbers from self.np_random",
            UserWarning,
        )


def render_text(make: Callable[..., gym.Env[Any, Any]], seed: int) -> str:
    """Return an initial state as text, if the environment renders text; else empty."""
    try:
        with make() as env:
            if "ansi" not in env.metadata.get("render_modes", ()):
                return ""
        with make(render_mode="ansi") as env:
            env.reset(seed=seed)
            picture: Any = env.render()
    except Exception:
        return ""
    if not isinstance(picture, str) or len(picture) > _MAX_PICTURE:
        return ""
    lines = (line.rstrip() for line in _ANSI.sub("", picture).splitlines())
    return "\n".join(["An initial state, drawn:", *filter(None, lines)])


def describe_goal(starts: int, ceiling: float | None = None) -> str:
    """Describe the value of a policy, and the final evaluation of the best one."""
    over = f"the same {starts} random initial states" if starts > 1 else "one initial state"
    return (
        "A policy for the environment below is wanted. The value of a point is the mean return "
        f"(the sum of an episode's rewards; larger is better) over {over}. In the end the best "
        "policy is judged on held-out initial states, so that a gain on these alone is worth "
        "nothing. A policy fails on an initial state if its return there is far below the others, "
        "or if its episode ends early to its loss. A policy that fails or nearly fails on one of "
        "these states will fail on some held-out ones: widen the margin before you stop."
        + ("" if ceiling is None else f" A value of {ceiling:g} is the most there can be.")
    )


def describe_starts(
    starts: Sequence[np.ndarray], names: Sequence[str], space: spaces.Space[np.ndarray]
) -> str:
    """List the first observations of the initial states, for the numbers that differ.

    Empty if the initial states are similar, or too large to list.
    """
    if not 1 < len(starts) <= _MOST_STARTS or len(names) > _MOST_INPUTS:
        return ""
    rows = np.stack(starts)
    low, high = bounds_of(space)
    width = high - low if len(low) == rows.shape[1] else np.full(rows.shape[1], np.inf)
    least = np.where(np.isfinite(width) & (width < 1e30), _ALIKE * width, _ALIKE)
    shown = [i for i in range(rows.shape[1]) if np.ptp(rows[:, i]) > least[i]]
    listed = "; ".join(f"{names[i]} " + ", ".join(f"{x:.3g}" for x in rows[:, i]) for i in shown)
    head = f"Observed at the {len(rows)} initial states, in the order of the returns shown"
    return f"{head}: {listed}." if shown else ""


def describe_parameters(
    policy: LinearPolicy, *, choices: bool = False, scaled: bool = False, clipped: bool = False
) -> str:
    """Describe the meaning of parameters named by `LinearPolicy.names`.

    `choices`: each parameter is the action of one state instead. `clipped`: a wrapper clips an
    action before the environment receives it, even if the policy does not.
    """
    if choices:
        first = int(getattr(policy.observation_space, "start", 0))
        return f"Each parameter is the action taken in one state: s{first} that in state {first}."
    constant = ", plus `action<-bias`" if policy.bias else ""
    inner = (
        "the entry `action<-state` of its state"
        if isinstance(policy.observation_space, spaces.Discrete)
        else "the sum over all observed numbers of the weight `action<-observation` times the "
        f"number, {'scaled as said above' if scaled else 'in its own units'}"
    )
    if isinstance(policy.action_space, spaces.Discrete):
        return (
            f"The policy: each action has a score, {inner}{constant}. The action with the highest "
            "score is taken, so only differences between scores matter."
        )
    end = (
        "It is clipped to its bounds before the environment receives it, so that the part beyond "
        "has no effect and costs nothing."
        if clipped or policy.clips
        else "It is passed on as it is, also beyond its bounds."
    )
    return f"The policy: each action is {inner}{constant}. {end}"
