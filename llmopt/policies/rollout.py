"""Episodes on Gymnasium, the same for every method: seeds, evaluations, records of steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.arguments import whole_number
from llmopt.policies.episode import Watcher, episode
from llmopt.policies.linear import LinearPolicy
from llmopt.text import first_line

HELD_OUT_STARTS = 100

MAX_STARTS = 1_000_000
"""Starts of one evaluation at most: more is a slip of the pen."""

_MUCH = 0.05  # of the mean return, by which a fresh start is worse than all others

# Each purpose has its own stream, so that none depends on how much another one drew.
_STREAMS = {"selection": 0, "held-out": 1, "warmup": 2, "method": 3, "final": 4, "check": 5}


def stream(seed: int, purpose: str, *keys: int) -> np.random.SeedSequence:
    """Return the seed sequence of one purpose of a run.

    Args:
        seed: The run's seed.
        purpose: ``"selection"``, ``"held-out"``, ``"warmup"``, ``"method"``, ``"final"`` or
            ``"check"``.
        *keys: Further keys, such as a method's number.
    """
    return np.random.SeedSequence(seed, spawn_key=(_STREAMS[purpose], *keys))


def start_seeds(seed: int, purpose: str, count: int) -> tuple[int, ...]:
    """Return the seeds of the starts of one purpose.

    Args:
        seed: The run's seed.
        purpose: ``"selection"``, where policies are compared during a search; ``"check"``, where a
            point is tried before a search ends early; ``"final"``, where the best few of a search
            are compared; ``"held-out"``, which no search ever sees.
        count: Starts wanted.

    Returns:
        Distinct numbers, odd ones for held-out starts alone: by parity no start is both
        held-out and another, whatever the runs' seeds.
    """
    whole_number("starts", count, 0, MAX_STARTS)
    rng = np.random.default_rng(stream(seed, purpose))
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        drawn.setdefault(2 * int(rng.integers(2**30)) + (purpose == "held-out"))
    return tuple(drawn)


def selection_seeds(seed: int, episodes: int) -> tuple[int, ...]:
    """Return the seeds of the starts on which policies are compared during a search.

    They are one fixed set for a run: every policy of every method meets the same starts
    (common random numbers), so that two policies differ by what they do, not by luck.
    What is gained on these very starts alone shows on the held-out ones.
    """
    return start_seeds(seed, "selection", episodes)


def held_out_seeds(seed: int, episodes: int = HELD_OUT_STARTS) -> tuple[int, ...]:
    """Return the seeds of fresh starts, which no search ever sees."""
    return start_seeds(seed, "held-out", episodes)


def as_good(value: float, best: float) -> bool:
    """Whether a mean return is so near to the best one that another reason may decide."""
    return value >= best - _MUCH * abs(best)


def fails_elsewhere(here: Sequence[float], there: Sequence[float]) -> bool:
    """Whether returns on fresh starts hold one far below each return on the selection starts."""
    spread = max(max(here) - min(here), _MUCH * abs(math.fsum(here) / len(here)))
    return min(there) < min(here) - spread


@dataclass(frozen=True)
class Evaluation:
    """What came of the episodes of one policy.

    Attributes:
        returns: Sum of rewards of each finished episode.
        lengths: Environment steps of each.
        failure: Why the policy has no score; empty for a sound evaluation.
        seconds: Wall-clock seconds.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    failure: str = ""
    seconds: float = 0.0

    @property
    def mean(self) -> float | None:
        """Mean return, or ``None`` for a failed evaluation."""
        return (
            None
            if self.failure or not self.returns
            else math.fsum(self.returns) / len(self.returns)
        )

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean return, or ``None`` for fewer than two episodes."""
        n = len(self.returns)
        if self.failure or n < 2:
            return None
        return float(np.std(self.returns, ddof=1) / math.sqrt(n))

    def __str__(self) -> str:
        """Say mean, standard error, range and number of the returns, or what failed."""
        if self.mean is None:
            done = f" after {len(self.returns)} episodes" if self.returns else ""
            return f"no return{done}: {self.failure or 'no episode was run'}"
        error = self.standard_error
        if error is None:
            return f"return {self.mean:.5g} (one episode)"
        return (
            f"mean return {self.mean:.5g} ± {error:.3g} (standard error), from "
            f"{min(self.returns):.5g} to {max(self.returns):.5g}, n = {len(self.returns)}"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"


def _best_index(means: Sequence[float | None]) -> int | None:
    """Return the place of the largest mean, the first of equals; ``None`` if all failed."""
    sound = [i for i, mean in enumerate(means) if mean is not None]
    return max(sound, key=lambda i: (means[i], -i), default=None)


@dataclass(frozen=True)
class Final:
    """The last round of a search: one of its best few policies on fresh starts.

    Attributes:
        index: Place among the search's points, warm-up first.
        returns: Of the fresh starts.
        mean: Mean return over these and the selection starts; ``None`` if an episode failed.
    """

    index: int
    returns: tuple[float, ...]
    mean: float | None


def choose(
    points: Sequence[Any],
    outcomes: Sequence[Evaluation],
    count: int,
    evaluate: Callable[[int], Evaluation],
) -> tuple[int | None, list[Final]]:
    """Choose a search's policy: of the best few, the best on fresh starts, too.

    What was the best of many on a few starts was lucky on them. The finalists are evaluated
    on further starts, and the mean over all of a finalist's starts decides. Without finalists the
    best on the selection starts is chosen. Returns its place, ``None`` where no evaluation was
    sound, and the finalists, the best on the selection starts first.
    """
    means = [outcome.mean for outcome in outcomes]
    finals: list[Final] = []
    sound = [i for i, mean in enumerate(means) if mean is not None]
    order = sorted(sound, key=lambda i: (-(means[i] or 0.0), i))
    first: dict[tuple[float, ...], int] = {}
    for i in order:
        first.setdefault(tuple(map(float, points[i])), i)
    for index in list(first.values())[:count]:
        fresh = evaluate(index)
        both = (*outcomes[index].returns, *fresh.returns)
        finals.append(
            Final(index, fresh.returns, None if fresh.failure else math.fsum(both) / len(both))
        )
    best = _best_index([final.mean for final in finals])
    return (_best_index(means) if best is None else finals[best].index), finals


class Evaluator:
    """Runs episodes of policies in one environment that is kept from episode to episode.

    Args:
        make_env: Makes the environment.
        policy: The policy whose parameters are evaluated.
        step_cap: Environment steps after which an episode ends.
        env: An environment that was made already; it is taken over.

    Attributes:
        policy: The policy whose parameters are evaluated.
        step_cap: Environment steps after which an episode ends.
    """

    def __init__(
        self,
        make_env: Callable[[], gym.Env[Any, Any]],
        policy: LinearPolicy,
        step_cap: int,
        env: gym.Env[Any, Any] | None = None,
    ) -> None:
        self._make_env = make_env
        self.policy = policy
        self.step_cap = step_cap
        self._env = env

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the environment; the next evaluation makes a new one."""
        env, self._env = self._env, None
        if env is not None:
            try:
                env.close()
            except Exception:
                # It is thrown away in any case, and often because it is broken.
                return

    def evaluate(
        self, params: Any, seeds: Sequence[int], watch: Watcher | None = None
    ) -> Evaluation:
        """Run one episode from each start.

        An exception inside the environment and a reward that is not a finite number are
        the policy's failure, not the run's: they come back in `Evaluation.failure`.

        Args:
            params: ``(n_parameters,)`` array-like.
            seeds: Seed of each episode's start.
            watch: Called at every step with all that the environment gave; an
                `llmopt.policies.EpisodeStatistics`, say.

        Raises:
            ParameterError: The number of parameters is wrong.
        """
        bound = self.policy.bind(params)
        started = time.perf_counter()
        returns: list[float] = []
        lengths: list[int] = []
        failure = ""
        for number, seed in enumerate(seeds):
            if self._env is None:
                try:
                    self._env = self._make_env()
                except Exception as error:
                    failure = f"episode {number}: {first_line(error) or type(error).__name__}"
                    break
            made = episode(self._env, bound, seed, self.step_cap, watch, number=number)
            if made.total is None:
                failure = f"episode {number}: {made.failure}"
                if made.error is not None:
                    self.close()  # what raised may be left in any state
                break
            returns.append(made.total)
            lengths.append(made.length)
        return Evaluation(tuple(returns), tuple(lengths), failure, time.perf_counter() - started)
