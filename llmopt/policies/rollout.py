"""Episodes on Gymnasium, the same for every method: seeds, evaluations, records of steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from llmopt.arguments import whole_number
from llmopt.policies.episode import Step, Watcher, episode
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.physics import touching
from llmopt.text import first_line

HELD_OUT_STARTS = 100

MAX_STARTS = 1_000_000
"""Starts of one evaluation at most: more is a slip of the pen."""

_MAX_LINE = 480  # characters; prompts cut feedback at 500

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


def selection_seeds(seed: int, episodes: int) -> tuple[int, ...]:
    """Return the seeds of the starts on which policies are compared during a search.

    They are one fixed set for a run: every policy of every method meets the same starts
    (common random numbers), so that two policies differ by what they do, not by luck.
    What is gained on these very starts alone shows on the held-out ones.

    Args:
        seed: The run's seed.
        episodes: Starts wanted.

    Returns:
        Distinct even numbers.
    """
    return _draw(stream(seed, "selection"), episodes, parity=0)


def final_seeds(seed: int, episodes: int) -> tuple[int, ...]:
    """Return the seeds of the starts on which the best few policies of a search are compared.

    They are fresh: none is a selection start of the same seed.

    Args:
        seed: The run's seed.
        episodes: Starts wanted.

    Returns:
        Distinct even numbers.
    """
    return _draw(stream(seed, "final"), episodes, parity=0)


def check_seeds(seed: int, episodes: int) -> tuple[int, ...]:
    """Return the seeds of the starts on which a point is tried before a search ends early.

    Args:
        seed: The run's seed.
        episodes: Starts wanted.

    Returns:
        Distinct even numbers.
    """
    return _draw(stream(seed, "check"), episodes, parity=0)


def as_good(value: float, best: float) -> bool:
    """Whether a mean return is so near to the best one that another reason may decide."""
    return value >= best - _MUCH * abs(best)


def fails_elsewhere(here: Sequence[float], there: Sequence[float]) -> bool:
    """Whether a policy does much worse on some fresh start than on each start it was chosen on.

    Args:
        here: Its returns on the selection starts.
        there: Its returns on fresh starts.
    """
    spread = max(max(here) - min(here), _MUCH * abs(math.fsum(here) / len(here)))
    return min(there) < min(here) - spread


def finalists(points: Sequence[Any], means: Sequence[float | None], count: int) -> list[int]:
    """Return the places of the best few distinct points, the best first.

    Args:
        points: Parameters of each.
        means: Mean return of each; ``None`` for a failed one.
        count: How many are wanted at most.
    """
    sound = [i for i, mean in enumerate(means) if mean is not None]
    order = sorted(sound, key=lambda i: (-(means[i] or 0.0), i))
    first: dict[tuple[float, ...], int] = {}
    for i in order:
        first.setdefault(tuple(map(float, points[i])), i)
    return list(first.values())[:count]


def held_out_seeds(seed: int, episodes: int = HELD_OUT_STARTS) -> tuple[int, ...]:
    """Return the seeds of fresh starts, which no search ever sees.

    Args:
        seed: The run's seed.
        episodes: Starts wanted.

    Returns:
        Distinct odd numbers: by parity no start is both selection and held-out, whatever
        the runs' seeds.
    """
    return _draw(stream(seed, "held-out"), episodes, parity=1)


def _draw(source: np.random.SeedSequence, count: int, parity: int) -> tuple[int, ...]:
    whole_number("starts", count, 0, MAX_STARTS)
    rng = np.random.default_rng(source)
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        drawn.setdefault(2 * int(rng.integers(2**30)) + parity)
    return tuple(drawn)


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


Recorder = Callable[[int, Any, Any, float], None]
"""Called with episode number, observation, action and reward of every step."""


class RolloutStatistics:
    """What a policy did in the episodes of one evaluation, as feedback for a model.

    A `Recorder`: give it to `Evaluator.evaluate`, then ask for its `line`. It sums up all
    episodes, and of single ones shows the median one only: shown its worst episode, a model
    tends to mend that one alone (R2PO, arXiv 2605.08315, on salience bias).

    Args:
        policy: The policy that acts.
    """

    def __init__(self, policy: LinearPolicy) -> None:
        self._policy = policy
        self._observations: list[np.ndarray] = []
        self._actions: list[np.ndarray] = []
        self._ends: list[int] = []

    def __call__(self, episode: int, observation: Any, action: Any, reward: float) -> None:
        """Note one step."""
        while len(self._ends) <= episode:
            self._ends.append(0)
        # Copies, as an environment may write its next observation into the same array.
        self._observations.append(np.array(observation, dtype=np.float64).ravel())
        self._actions.append(np.array(action, dtype=np.float64).ravel())
        self._ends[episode] = len(self._observations)

    def line(self, evaluation: Evaluation, step_cap: int | None = None) -> str:
        """Return the statistics in one line of at most 480 characters.

        Args:
            evaluation: What came of the episodes.
            step_cap: Steps after which an episode is ended from outside.

        Returns:
            Returns and lengths; the actions; mean, least and largest of each observed number
            (as many of them as there is room for); what the median episode saw last. The
            names ``o0, o1, ...`` and ``a0, a1, ...`` are those of `LinearPolicy.describe`.
            Empty for a failed evaluation.
        """
        if evaluation.mean is None or not self._observations:
            return ""
        seen, done = np.stack(self._observations), np.stack(self._actions)
        parts = [_spread(evaluation, step_cap), self._of_actions(done)]
        items = []
        if isinstance(self._policy.observation_space, spaces.Discrete):
            parts.append(self._of_states(seen[:, 0]))
        else:
            items = [
                f"o{i} {_short(c.mean())} [{_short(c.min())}, {_short(c.max())}]"
                for i, c in enumerate(seen.T)
            ]
        line = "; ".join(parts)
        shown = 0
        for item in items:
            more = f"{', ' if shown else '; seen, mean [min, max]: '}{item}"
            if len(line) + len(more) > _MAX_LINE - 5 * (shown + 1 < len(items)):
                line += ", …"
                break
            line, shown = line + more, shown + 1
        order = np.argsort(evaluation.returns, kind="stable")
        median = int(order[(len(order) - 1) // 2])
        last = ", ".join(_short(x) for x in seen[self._ends[median] - 1])
        which = "the median episode saw last" if len(order) > 1 else "saw last"
        end = f"; {which}: {last}"
        return line + end if len(line) + len(end) <= _MAX_LINE else line

    def _of_actions(self, done: np.ndarray) -> str:
        space = self._policy.action_space
        if isinstance(space, spaces.Discrete):
            share = np.bincount(done[:, 0].astype(int) - int(space.start), minlength=int(space.n))
            taken = [f"a{j} {s:.0%}" for j, s in enumerate(share / len(done)) if s]
            return "actions taken: " + ", ".join(taken[:8]) + (", …" if len(taken) > 8 else "")
        low = np.ravel(getattr(space, "low", -np.inf))
        high = np.ravel(getattr(space, "high", np.inf))
        outside = float(np.mean((done < low) | (done > high)))
        size = [f"a{j} {_short(x)}" for j, x in enumerate(np.abs(done).mean(axis=0))]
        shown = ", ".join(size[:8]) + (", …" if len(size) > 8 else "")
        return f"mean |action|: {shown}; out of range: {outside:.0%}"

    def _of_states(self, states: np.ndarray) -> str:
        values, counts = np.unique(states.astype(int), return_counts=True)
        top = np.argsort(-counts, kind="stable")[:5]
        most = ", ".join(f"{values[i]} ({counts[i] / len(states):.0%})" for i in top)
        return f"{len(values)} states seen, most often {most}"


def _spread(evaluation: Evaluation, step_cap: int | None) -> str:
    returns, lengths = evaluation.returns, evaluation.lengths
    capped = sum(n == step_cap for n in lengths)
    if len(returns) == 1:
        return f"{lengths[0]} steps{' (the limit)' if capped else ''}"
    text = (
        f"{len(returns)} episodes, min/median/max: return "
        f"{'/'.join(f'{f(returns):.5g}' for f in (min, np.median, max))}, steps "
        f"{'/'.join(f'{f(lengths):g}' for f in (min, np.median, max))}"
    )
    return text + (f", {capped} at the step limit" if capped else "")


def _short(number: Any) -> str:
    value = float(number)
    return "0" if abs(value) < 1e-6 else f"{value:.3g}"


class PolicyTask(Protocol):
    """What is evaluated: an environment and the policy whose parameters are searched."""

    def make_env(self) -> gym.Env[Any, Any]:
        """Make the environment."""

    def policy(self, env: gym.Env[Any, Any]) -> LinearPolicy:
        """Return the policy whose parameters are searched."""

    def step_cap(self, env: gym.Env[Any, Any]) -> int:
        """Return how many steps an episode may take."""


class Evaluator:
    """Runs episodes of one task in one environment that is kept from episode to episode.

    Args:
        task: What to run.

    Attributes:
        task: What is run.
        policy: The policy whose parameters are evaluated.
        step_cap: Environment steps after which an episode ends.

    Raises:
        LLMOptError: The environment cannot be made.
        SpaceError: A linear policy cannot serve its spaces.
    """

    def __init__(self, task: PolicyTask) -> None:
        self.task = task
        self._env: gym.Env[Any, Any] | None = task.make_env()
        try:
            self.policy: LinearPolicy = task.policy(self._env)
            self.step_cap = task.step_cap(self._env)
        except BaseException:
            self.close()
            raise

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

    @property
    def has_ground(self) -> bool:
        """Whether the environment has bodies that may touch the ground (MuJoCo's)."""
        return self._env is not None and hasattr(getattr(self._env.unwrapped, "data", None), "ncon")

    def touching(self) -> frozenset[str]:
        """Return what touches the ground now."""
        return touching(self._env.unwrapped) if self._env is not None else frozenset()

    def evaluate(
        self,
        params: Any,
        seeds: Sequence[int],
        record: Recorder | None = None,
        *,
        watch: Watcher | None = None,
    ) -> Evaluation:
        """Run one episode from each start.

        An exception inside the environment and a reward that is not a finite number are
        the policy's failure, not the run's: they come back in `Evaluation.failure`.

        Args:
            params: ``(n_parameters,)`` array-like.
            seeds: Seed of each episode's start.
            record: Called at every step.
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
                    self._env = self.task.make_env()
                except Exception as error:
                    failure = f"episode {number}: {first_line(error) or type(error).__name__}"
                    break
            made = episode(
                self._env, bound, seed, self.step_cap, _both(record, watch), number=number
            )
            if made.total is None:
                failure = f"episode {number}: {made.failure}"
                if made.error is not None:
                    self.close()  # what raised may be left in any state
                break
            returns.append(made.total)
            lengths.append(made.length)
        return Evaluation(tuple(returns), tuple(lengths), failure, time.perf_counter() - started)


def _both(record: Recorder | None, watch: Watcher | None) -> Watcher | None:
    """Return one watcher that also records."""
    if record is None:
        return watch

    def seen(step: Step) -> None:
        if watch is not None:
            watch(step)
        if math.isfinite(step.reward):
            record(step.episode, step.observation, step.action, step.reward)

    return seen


def evaluate_vector(
    envs: VectorEnv[Any, Any, Any],
    policy: LinearPolicy,
    params: Any,
    seeds: Sequence[int],
    step_cap: int | None = None,
) -> Evaluation:
    """Run one episode from each start, as many at a time as a vector environment holds.

    The returns are those of single environments where the vector's are independent, as those
    of ``gymnasium.make_vec`` are.

    Args:
        envs: The environments; left open.
        policy: The policy.
        params: ``(n_parameters,)`` array-like.
        seeds: Seed of each episode's start.
        step_cap: Steps after which an episode ends; ``None`` for the environments' own limit.

    Raises:
        ParameterError: The number of parameters is wrong.
    """
    flat = policy.bind(params).parameters
    started = time.perf_counter()
    n = envs.num_envs
    many = np.broadcast_to(flat, (n, len(flat)))
    returns: list[float] = []
    lengths: list[int] = []
    for first in range(0, len(seeds), n):
        chunk = [int(s) for s in seeds[first : first + n]]
        # All environments step together: the last chunk is filled up with starts not counted.
        starts: Any = chunk + chunk[:1] * (n - len(chunk))
        observations, _ = envs.reset(seed=starts)
        totals = [0.0] * len(chunk)
        steps = [0] * len(chunk)
        running = set(range(len(chunk)))
        while running:
            actions = policy.act_batch(many, observations)
            observations, rewards, terminated, truncated, _ = envs.step(actions)
            for i in sorted(running):
                reward = float(rewards[i])
                steps[i] += 1
                if not math.isfinite(reward):
                    failure = f"episode {first + i}: the reward of step {steps[i]} is {reward}"
                    seconds = time.perf_counter() - started
                    return Evaluation(tuple(returns), tuple(lengths), failure, seconds)
                totals[i] += reward
                if terminated[i] or truncated[i] or steps[i] == step_cap:
                    running.discard(i)
        returns += totals
        lengths += steps
    return Evaluation(tuple(returns), tuple(lengths), "", time.perf_counter() - started)
