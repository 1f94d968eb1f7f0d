"""The one check of what a user tells: numbers, words, and the point that they are of."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import numpy as np

from llmopt.errors import RewardError
from llmopt.history import Direction
from llmopt.search.events import Told
from llmopt.space import Space
from llmopt.text import short


def read_directions(direction: Any) -> tuple[Direction, ...]:
    """Return one direction for each objective.

    Raises:
        ValueError: There is none, or something else.
    """
    many = isinstance(direction, Sequence) and not isinstance(direction, str)
    found: tuple[Direction, ...] = tuple(direction) if many else (direction,)
    for one in found:
        if one not in get_args(Direction):
            raise ValueError(f"direction={one!r}: expected 'maximize' or 'minimize'")
    if not found:
        raise ValueError("direction=(): expected at least one of 'maximize' and 'minimize'")
    return found


def read_told(
    space: Space,
    objectives: int,
    params: Any,
    reward: Any,
    *,
    feedback: str = "",
    constraint_violation: float = 0.0,
    stderr: float | None = None,
    samples: Sequence[float] = (),
) -> Told:
    """Check what `LLMOptimizer.tell` was given; the arguments are its own.

    Args:
        space: The search space.
        objectives: How many numbers a reward has.
        params: See there, as all that follows.
        reward: See there.
        feedback: See there.
        constraint_violation: See there.
        stderr: See there.
        samples: See there.

    Raises:
        ParameterError: The point is not in the space.
        RewardError: A number is none, or cannot be what it stands for.
        TypeError: `feedback` is no text.
    """
    values = space.flatten(params)
    rewards, trouble = _rewards(reward, objectives)
    if not isinstance(feedback, str):
        raise TypeError(f"feedback={feedback!r}: expected a string")
    if trouble:
        feedback = f"{trouble}; {feedback}" if feedback else trouble
    violation = _amount(constraint_violation, "constraint_violation")
    if space.constraints:
        violation += sum(space.broken(values).values())
    if isinstance(samples, (str, numbers.Number)) or not isinstance(samples, Iterable):
        raise RewardError(
            f"samples={short(samples)}: expected a list of numbers, whose mean is the reward"
        )
    parts = tuple([_number(sample, "samples") for sample in samples])
    if not all(map(math.isfinite, parts)):
        raise RewardError(f"samples={list(parts)}: expected finite numbers")
    if stderr is None and len(parts) > 1:
        stderr = float(np.std(parts, ddof=1)) / math.sqrt(len(parts))
    if stderr is not None:
        stderr = _amount(stderr, "stderr")
    return Told(values, rewards, feedback, violation, stderr, parts)


def _rewards(reward: Any, wanted: int) -> tuple[tuple[float, ...] | None, str]:
    """Return the rewards, or ``None`` with the reason why the evaluation failed."""
    if reward is None:
        return None, "no reward"
    if wanted == 1:
        rewards: tuple[float, ...] = (_number(reward, "reward"),)
    else:
        try:
            rewards = tuple(_number(r, "reward") for r in reward)
        except TypeError:
            rewards = ()
        if len(rewards) != wanted:
            raise RewardError(
                f"reward={reward!r}: expected {wanted} numbers, one for each objective"
            )
    if not all(map(math.isfinite, rewards)):
        return None, f"the reward was {reward}"
    return rewards, ""


def _amount(value: Any, name: str) -> float:
    """Return a finite number of 0 or more.

    Raises:
        RewardError: It is none.
    """
    amount = _number(value, name)
    if not 0 <= amount < math.inf:
        raise RewardError(f"{name}={amount}: expected a number of 0 or more")
    return amount


def _number(value: Any, name: str) -> float:
    """Return a real scalar as a float.

    Raises:
        RewardError: It is not one. Booleans, strings and arrays with axes are not.
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (numbers.Real, np.number)):
        shape = f" of shape {value.shape}" if isinstance(value, np.ndarray) else ""
        raise RewardError(
            f"{name}={short(value)} is a {type(value).__name__}{shape}: expected a single real "
            "number (a failed evaluation is told with None, NaN or tell_failure)"
        )
    if isinstance(value, np.complexfloating):
        raise RewardError(f"{name}={value}: expected a real number, got a complex one")
    try:
        return float(value)
    except (OverflowError, TypeError) as error:
        raise RewardError(
            f"{name}={short(value)}: expected a number within a float's range ({error})"
        ) from error
