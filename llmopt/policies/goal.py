"""What is wanted of a policy, and what its parameters mean, in words for a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium import spaces

from llmopt.policies.linear import LinearPolicy

_MOST_INPUTS = 12  # observed numbers beyond which starts are not listed
_MOST_STARTS = 20
_ALIKE = 0.02  # starts that differ by less, or by this share of the bounds, are not listed


def describe_goal(starts: int, ceiling: float | None = None) -> str:
    """Say what the value of a policy is, and on what it is judged in the end.

    Args:
        starts: Seeded starts of one evaluation.
        ceiling: The largest value there can be, if it is known.
    """
    over = (
        f"the same {starts} random starts each time"
        if starts > 1
        else "one start, the same each time"
    )
    return (
        "A policy for the environment below is wanted. The value of a point is the mean return "
        f"(the sum of an episode's rewards; larger is better) over {over}. The best policy is "
        "judged in the end on fresh starts, so that what helps on these alone is worth nothing; "
        "a policy that fails on one start of these will fail there, too."
        + ("" if ceiling is None else f" A value of {ceiling:g} is the most there can be.")
    )


def describe_starts(
    starts: Sequence[np.ndarray], names: Sequence[str], space: spaces.Space[np.ndarray]
) -> str:
    """Say what is observed at each start, for the numbers in which the starts differ.

    Args:
        starts: What is observed first, flat, one for each start.
        names: A name for each observed number.
        space: The space of the observations.

    Returns:
        Some lines; nothing where the starts are alike or too much to list.
    """
    if not 1 < len(starts) <= _MOST_STARTS or len(names) > _MOST_INPUTS:
        return ""
    rows = np.stack([np.ravel(start).astype(float) for start in starts])
    width = np.full(rows.shape[1], np.inf)
    if isinstance(space, spaces.Box) and space.low.size == rows.shape[1]:
        width = np.ravel(space.high).astype(float) - np.ravel(space.low).astype(float)
    least = np.where(np.isfinite(width) & (width < 1e30), _ALIKE * width, _ALIKE)
    shown = [i for i in range(rows.shape[1]) if np.ptp(rows[:, i]) > least[i]]
    if not shown:
        return ""
    listed = "; ".join(f"{names[i]} " + ", ".join(f"{x:.3g}" for x in rows[:, i]) for i in shown)
    return f"Observed at the {len(rows)} starts, in the order of the returns shown: {listed}."


def describe_parameters(
    policy: LinearPolicy, *, choices: bool = False, scaled: bool = False, clipped: bool = False
) -> str:
    """Say what parameters mean that have the names of `LinearPolicy.names`.

    Args:
        policy: The form of the policies.
        choices: Whether each parameter is the action of one state instead.
        scaled: Whether observed numbers are scaled, and not in their own units.
        clipped: Whether a wrapper clips an action beyond its bounds before it acts and is charged,
            also where the policy itself does not.
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
        "It is then clipped to its bounds."
        if clipped or policy.clips
        else "It is passed on as it is, also beyond its bounds."
    )
    return f"The policy: each action is {inner}{constant}. {end}"
