"""One episode of a policy: the loop behind policies, code, rewards, pictures and benchmarks.

A fault in an episode fails the policy, never the search: an exception of the policy or of the
environment, a reward that is not a finite number, a step that does not return five values. A failed
episode has no return, and no mean includes it (`mean_or_none`): a policy must not gain by crashing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from llmopt.util.text import a_type, first_line

STEP_CAP = 1000
"""Maximum steps of an episode if the environment sets no limit."""

TERMINATED, LIMIT, FAILED = "terminated", "step limit", "failed"
"""How an episode ends: terminated by the environment, at a step limit, or by a failure."""


class Step(NamedTuple):
    """One step of an episode, with everything that the environment returned."""

    episode: int  # number of the episode, from 0
    observation: Any  # what the policy saw
    action: Any  # what the policy returned
    reward: float  # reward of this step; not finite if that ended the episode
    following: Any  # the next observation
    terminated: bool  # whether the environment ended the episode
    truncated: bool  # whether a limit ended it, the caller's own cap included
    info: Mapping[str, Any]  # the environment's `info`; empty if it returned no mapping
    env: gym.Env[Any, Any] | None = None  # the environment after the step, to inspect


Watcher = Callable[[Step], None]
"""Called at every step. It must copy what it keeps: environments reuse their arrays.

A method ``begin(observation, env)``, if there is one, is called at the start of each episode.
"""


@dataclass(frozen=True)
class Episode:
    """Outcome of one episode."""

    seed: int
    total: float | None  # return, the sum of the rewards; ``None`` for a failed episode
    length: int
    end: str  # `TERMINATED`, `LIMIT` or `FAILED`
    failure: str = ""  # one line on why it has no return; empty if the episode succeeded
    error: Exception | None = field(default=None, repr=False, compare=False)
    by_policy: bool = False  # whether the policy, not the environment, raised the error
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
    """Run one episode of at most `cap` steps from a seeded initial state.

    After an exception the environment may be in any state: make a new one. An exception of `watch`
    is not the policy's fault and is raised. `watch` gets `number` as the step's ``episode``.
    """
    total, length, end = 0.0, 0, LIMIT
    observation: Any = None
    info: Mapping[str, Any] = {}
    failure, acting = "", False
    error: Exception | None = None
    try:
        observation, given = first_observation(env, env.reset(seed=seed))
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
            following, reward, terminated, truncated, given = _five(env.step(action))
            value, ended, limited = float(reward), bool(terminated), bool(truncated)
        except Exception as fault:
            said = _misshapen(env, observation, "an observation") * acting
            error, acting = (ValueError(said), False) if said else (fault, acting)
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


def first_observation(env: gym.Env[Any, Any], returned: Any) -> tuple[Any, Any]:
    """Return observation and ``info`` of a reset.

    Raises:
        ValueError: `reset` returned something else, or an observation of another shape than the
            environment's ``observation_space``.
    """
    if not isinstance(returned, tuple) or len(returned) != 2:
        kind = a_type(returned)
        if isinstance(returned, np.ndarray):
            kind = f"an array of shape {returned.shape}"
        raise ValueError(
            f"reset() returned {kind}: expected a pair, the observation and a dict: "
            "return observation, {}"
        )
    if said := _misshapen(env, returned[0], "reset() returned an observation"):
        raise ValueError(said)
    return returned


def _five(returned: Any) -> Any:
    """Return what a step returned if it has five values."""
    if isinstance(returned, tuple) and len(returned) != 5:
        raise ValueError(
            f"step() returned {len(returned)} values: expected five: observation, reward, "
            "terminated, truncated, info"
        )
    return returned


def _misshapen(env: gym.Env[Any, Any], observation: Any, what: str) -> str:
    """Return what is wrong with the size of an observation, or an empty string."""
    space = getattr(env, "observation_space", None)
    if not isinstance(space, gym.spaces.Box):
        return ""
    try:
        shape = np.shape(observation)
    except ValueError:  # of numbers and arrays
        return f"{what} is {a_type(observation)}: expected an array of shape {space.shape}"
    if math.prod(shape) == math.prod(space.shape):
        return ""
    return f"{what} of shape {shape}: expected {space.shape}, the shape of observation_space"


def random_steps(
    env: gym.Env[Any, Any], seed: int, start: int | None = None
) -> Iterator[tuple[Any, Any, Any, Mapping[str, Any]]]:
    """Yield observation, random action, next observation and ``info``, endlessly; copy them.

    `start` is the seed of the first reset, `seed` the seed of the actions; `start` defaults to it.
    """
    observation, _ = env.reset(seed=seed if start is None else start)
    env.action_space.seed(seed)
    while True:
        action = env.action_space.sample()
        following, _, terminated, truncated, info = env.step(action)
        yield observation, action, following, _facts(info)
        observation = env.reset()[0] if terminated or truncated else following


def step_cap(env: gym.Env[Any, Any], most: int | None = None) -> int:
    """Return the maximum steps of an episode: `most`, or the environment's own limit."""
    limit = env.spec.max_episode_steps if env.spec is not None else None
    return min((cap for cap in (most, limit) if cap is not None), default=STEP_CAP)


def mean_or_none(values: Iterable[float | None]) -> float | None:
    """Return the mean of some returns, or ``None`` if there are none or one is ``None``."""
    all_values = list(values)
    sound = [value for value in all_values if value is not None]
    return math.fsum(sound) / len(sound) if sound and len(sound) == len(all_values) else None


def standard_error(samples: Sequence[float]) -> float | None:
    """Return the standard error of a mean; ``None`` for fewer than two samples."""
    n = len(samples)
    return statistics.stdev(samples) / math.sqrt(n) if n > 1 else None


def _facts(info: Any) -> Mapping[str, Any]:
    return info if isinstance(info, Mapping) else {}
