"""One episode of a policy: the one loop behind policies, code, rewards, pictures and benchmarks.

What goes wrong in an episode is a failure of the policy, never of the search: an exception of
the policy or of the environment, a reward that is not a finite number, a step that does not give
five values. Such an episode has no return, and a mean over it does not exist (`mean_or_none`): to
break off early must never pay.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium as gym

from llmopt.util.text import first_line

STEP_CAP = 1000
"""Environment steps an episode may take where the environment sets no limit of its own."""

TERMINATED, LIMIT, FAILED = "terminated", "step limit", "failed"
"""How an episode ends: by the environment, at a limit of steps, by a failure."""


class Step(NamedTuple):
    """One step of an episode, all that the environment gave."""

    episode: int  # number of the episode, from 0
    observation: Any  # what the policy saw
    action: Any  # what it did
    reward: float  # what this step gave; not finite where that ends the episode
    following: Any  # what was observed after it
    terminated: bool  # whether the environment ended the episode
    truncated: bool  # whether a limit ended it, the caller's own cap included
    info: Mapping[str, Any]  # the environment's further facts; empty where it gave no mapping
    env: gym.Env[Any, Any] | None = None  # the environment as it is after the step, to look at


Watcher = Callable[[Step], None]
"""Called at every step. It must copy what it keeps: environments reuse their arrays.

If it has a method ``begin(observation, env)``, that is called at the start of each episode.
"""


@dataclass(frozen=True)
class Episode:
    """What came of one episode."""

    seed: int
    total: float | None  # its return, the sum of its rewards; ``None`` for a failed episode
    length: int
    end: str  # `TERMINATED`, `LIMIT` or `FAILED`
    failure: str = ""  # why it has no return, in a line; empty for a sound episode
    error: Exception | None = field(default=None, repr=False, compare=False)
    by_policy: bool = False  # whether the policy raised it, and not the environment
    last: Any = field(default=None, repr=False, compare=False)
    info: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


def episode(
    env: gym.Env[Any, Any],
    act: Callable[[Any], Any],
    seed: int,
    cap: int,
    watch: Watcher | None = None,
    *,
    number: int = 0,
) -> Episode:
    """Run one episode from a seeded start, of at most `cap` steps.

    After an exception the environment may be in any state: make it anew. What `watch` raises is
    raised here, as it is no fault of the policy; it is told the episode's `number`.
    """
    total, length, end = 0.0, 0, LIMIT
    observation: Any = None
    info: Mapping[str, Any] = {}
    failure, acting = "", False
    error: Exception | None = None
    try:
        observation, given = env.reset(seed=seed)
        info = _facts(given)
    except Exception as fault:
        error = fault
    begin = getattr(watch, "begin", None)
    if begin is not None and error is None:
        begin(observation, env)
    while error is None and not failure and end == LIMIT and length < cap:
        try:
            acting = True
            action = act(observation)
            acting = False
            following, reward, terminated, truncated, given = env.step(action)
            value, ended, limited = float(reward), bool(terminated), bool(truncated)
        except Exception as fault:
            error = fault
            break
        info, length = _facts(given), length + 1
        if watch is not None:
            seen = (observation, action, value, following, ended, limited or length == cap)
            watch(Step(number, *seen, info, env))
        observation, total = following, total + value
        if not math.isfinite(value):
            failure = f"the reward of step {length} is {value}"
        elif ended:
            end = TERMINATED
        elif limited:
            break
    if error is not None:
        who = "policy" if acting else "environment"
        reason = first_line(error) or "no message"
        failure = f"the {who} raised {type(error).__name__}: {reason}"
    elif not failure and not math.isfinite(total):
        failure = f"the return is {total}"
    if failure:
        return Episode(seed, None, length, FAILED, failure, error, acting, observation, info)
    return Episode(seed, total, length, end, last=observation, info=info)


def random_steps(
    env: gym.Env[Any, Any], seed: int, start: int | None = None
) -> Iterator[tuple[Any, Any, Any, Mapping[str, Any]]]:
    """Yield, without end, what random actions see, do, see next, and are told of; copy it.

    `start` is the seed of the first start, `seed` that of the actions, and of the start by default.
    """
    observation, _ = env.reset(seed=seed if start is None else start)
    env.action_space.seed(seed)
    while True:
        action = env.action_space.sample()
        following, _, terminated, truncated, info = env.step(action)
        yield observation, action, following, _facts(info)
        observation = env.reset()[0] if terminated or truncated else following


def step_cap(env: gym.Env[Any, Any], most: int | None = None) -> int:
    """Return how many steps an episode may take: `most`, or the environment's own limit."""
    limit = env.spec.max_episode_steps if env.spec is not None else None
    return min((cap for cap in (most, limit) if cap is not None), default=STEP_CAP)


def mean_or_none(values: Iterable[float | None]) -> float | None:
    """Return the mean of some returns, or ``None`` for none or where one does not exist."""
    all_values = list(values)
    sound = [value for value in all_values if value is not None]
    return math.fsum(sound) / len(sound) if sound and len(sound) == len(all_values) else None


def standard_error(samples: Sequence[float]) -> float | None:
    """Return the standard error of a mean; ``None`` for fewer than two samples."""
    n = len(samples)
    return statistics.stdev(samples) / math.sqrt(n) if n > 1 else None


def _facts(info: Any) -> Mapping[str, Any]:
    return info if isinstance(info, Mapping) else {}
