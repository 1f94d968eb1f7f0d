"""Policies as code: episodes, scores and feedback, with the score in trusted hands.

By default the environment runs here and the policy in its worker, one message a step. With
``replay=True`` the whole episode runs in the worker, against an environment of the worker's
own, and its actions are replayed here in an environment that the code cannot reach. Only
the replay counts. That is faster where a step is cheap. The code can look into its own
environment and plan in it, which foretells nothing where steps are not random and the
observation holds the whole state; an environment that draws random numbers in its steps is
refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.code.candidate import Candidate
from llmopt.code.checks import Function, Output
from llmopt.code.code_optimizer import CodeOptimizer
from llmopt.code.failure import CandidateError, NoCandidateError
from llmopt.code.tasks.language import LanguageFeedback
from llmopt.errors import LLMOptError

STEP_CAP = 1000
_MOMENTS = 6


@dataclass(frozen=True)
class Episode:
    """One episode.

    Attributes:
        seed: Seed of its start.
        total: Sum of rewards.
        length: Steps.
        success: What the environment says of success; ``None`` where it says nothing.
        feedback: What happened, in words.
        failure: Why the policy failed in it; empty if it did not.
    """

    seed: int
    total: float
    length: int
    success: bool | None
    feedback: str = ""
    failure: str = ""


@dataclass(frozen=True)
class PolicyScore:
    """Several episodes of one policy.

    Attributes:
        episodes: The episodes, in the order of their seeds.
    """

    episodes: tuple[Episode, ...]

    @property
    def mean_return(self) -> float:
        """Mean of the episodes' sums of rewards."""
        return math.fsum(e.total for e in self.episodes) / len(self.episodes)

    @property
    def mean_reward(self) -> float:
        """Mean reward of a step; unlike the return, it is not less for being done sooner."""
        return math.fsum(e.total for e in self.episodes) / max(
            sum(e.length for e in self.episodes), 1
        )

    @property
    def success_rate(self) -> float | None:
        """Share of successes, failures included; ``None`` where the environment does not say."""
        if all(e.success is None for e in self.episodes):
            return None
        known = [bool(e.success) for e in self.episodes if e.failure or e.success is not None]
        return sum(known) / len(known)

    @property
    def failure(self) -> str:
        """Why the policy failed, if it did in any episode."""
        return next((e.failure for e in self.episodes if e.failure), "")

    def feedback(self) -> str:
        """Sum up for the model; the worst episode is told in full."""
        worst = min(self.episodes, key=lambda e: (bool(e.success), e.total))
        rate = self.success_rate
        words = f"Mean return {self.mean_return:.3f} over {len(self.episodes)} episodes"
        if rate is not None:
            words += f"; success in {rate:.0%} of them"
        return f"{words}. {worst.feedback}".strip()


def policy_function(
    env: gym.Env[Any, Any],
    signature: str = "controller(obs)",
    doc: str = "",
    samples: int = 4,
    seed: int = 0,
) -> Function:
    """Describe the policy that an environment wants, with sample observations from it.

    Args:
        env: The environment; some random steps are made in it.
        signature: The function's.
        doc: What the observation holds.
        samples: Sample observations.
        seed: Seed of the samples.

    Raises:
        TypeError: The action space is neither a `Box` nor `Discrete`.
    """
    observation, _ = env.reset(seed=seed)
    env.action_space.seed(seed)
    seen = []
    for _ in range(samples):
        seen.append((np.array(observation),))
        for _ in range(3):
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                observation, _ = env.reset(seed=seed)
    space = env.observation_space
    note = f"obs: array of shape {space.shape}." if space.shape else ""
    return Function(
        signature, f"{doc}\n{note}".strip(), Output.from_space(env.action_space), tuple(seen)
    )


def run_episode(
    act: Callable[[Any], Any],
    env: gym.Env[Any, Any],
    seed: int,
    cap: int = STEP_CAP,
    success: Callable[[float, dict[str, Any]], bool] | None = None,
) -> Episode:
    """Run one episode with the environment in this process.

    Args:
        act: The policy. A `CandidateError` of it ends the episode as a failure.
        env: The environment; with a `LanguageFeedback` around it, its words are kept.
        seed: Seed of the start.
        cap: Largest number of steps.
        success: Judges success from the return and the last info, where the environment's
            own ``info["success"]`` does not.
    """
    observation, info = env.reset(seed=seed)
    rewards: list[float] = []
    story: list[tuple[str, str, bool]] = []
    failure = ""
    for _ in range(cap):
        before = info.get("language", {}).get("observation", "")
        try:
            action = act(observation)
        except CandidateError as error:
            failure = f"In step {len(rewards) + 1}, at {_place(observation, before)}: "
            failure += error.feedback()
            break
        observation, reward, terminated, truncated, info = env.step(_valid(action, env))
        rewards.append(float(reward))
        verdict = info.get("verdict")
        if verdict is not None:
            said = info["language"]["feedback"]
            wrong = verdict.good is False or bool(verdict.remarks)
            story.append((f"{before} You did {_brief(action)}.", said, wrong))
        if terminated or truncated:
            break
    total = math.fsum(rewards)
    won = bool(info["success"]) if "success" in info else None
    if success is not None:
        won = success(total, info)
    if failure:
        return Episode(
            seed, total, len(rewards), False if won is not None else None, failure, failure
        )
    summary = info.get("language", {}).get("summary", "")
    if not summary and rewards:
        summary = f"The return was {total:.3f} in {len(rewards)} steps."
        if isinstance(env, LanguageFeedback):
            summary = env.summary(info)
    return Episode(seed, total, len(rewards), won, _tell(summary, story), "")


def _valid(action: Any, env: gym.Env[Any, Any]) -> Any:
    space = env.action_space
    return np.asarray(action, dtype=space.dtype) if space.shape else action


def _place(observation: Any, words: str) -> str:
    return words or f"obs={np.array2string(np.asarray(observation), precision=4)}"


def _brief(action: Any) -> str:
    return np.array2string(np.asarray(action), precision=3, suppress_small=True)


def _tell(summary: str, story: Sequence[tuple[str, str, bool]]) -> str:
    """Tell the start of an episode and its bad moments, in their order."""
    first = list(range(min(2, len(story))))
    bad = [k for k, (_, _, wrong) in enumerate(story) if wrong and k not in first]
    room = _MOMENTS - len(first)
    spread = bad if len(bad) <= room else [bad[len(bad) * i // room] for i in range(room)]
    lines = [f"Step {k + 1}: {story[k][0]} {story[k][1]}" for k in sorted({*first, *spread})]
    return "\n".join([summary, *lines])


def evaluate_policy(
    candidate: Candidate,
    env: gym.Env[Any, Any],
    seeds: Iterable[int],
    *,
    cap: int = STEP_CAP,
    replay: bool = False,
    success: Callable[[float, dict[str, Any]], bool] | None = None,
    name: str | None = None,
    every: bool = False,
) -> PolicyScore:
    """Score a policy; its code is loaded anew for each episode.

    The words of a `LanguageFeedback` depend on the candidate's number and the start alone.

    Args:
        candidate: The policy.
        env: The environment that counts.
        seeds: Seed of each episode's start. Use other ones to report than to select.
        cap: Largest number of steps.
        replay: Run the episode in the worker and replay its actions here. The candidate's
            worker must have an environment (``rollout_env``). Code can see all of that one's
            state and plan in it: not for environments that hide some of their state.
        success: See `run_episode`.
        name: Which of several functions; the first by default.
        every: Go on after a failure, so that a report is on all of the starts.

    Returns:
        The score. Without `every`, the first failure is its last episode.

    Raises:
        ValueError: There are no seeds.
        LLMOptError: With `replay`, the environment drew random numbers after its start: code
            could have foreseen them in the worker's environment.
    """
    function = name or candidate.functions[0].name
    episodes = []
    for seed in seeds:
        if isinstance(env, LanguageFeedback):
            env.reword(candidate.number, seed)
        try:
            candidate.reset()
            if replay:
                actions = candidate.rollout(function, seed, cap)
                episodes.append(_replay(actions, env, seed, cap, success))
            else:
                act = candidate.function(function)
                episodes.append(run_episode(act, env, seed, cap, success))
        except CandidateError as error:
            words = error.feedback()
            episodes.append(Episode(seed, -math.inf, 0, None, words, words))
        if episodes[-1].failure and not every:
            break
    if not episodes:
        raise ValueError("no seeds: expected one at least")
    return PolicyScore(tuple(episodes))


def _replay(
    actions: Sequence[Any],
    env: gym.Env[Any, Any],
    seed: int,
    cap: int,
    success: Callable[[float, dict[str, Any]], bool] | None,
) -> Episode:
    """Run an episode with actions that were chosen in another environment, started alike."""
    left = iter(actions)
    started: Any = None

    def act(_: Any) -> Any:
        nonlocal started
        if started is None:
            started = _randomness(env)
        try:
            return next(left)
        except StopIteration:
            raise CandidateError("the episode went on after the last action", "protocol") from None

    episode = run_episode(act, env, seed, cap, success)
    if started is not None and _randomness(env) != started:
        raise LLMOptError(
            f"{env} drew random numbers after its start, which code could have foreseen in its "
            "worker's copy; expected steps that are not random. Use replay=False"
        )
    return episode


def _randomness(env: gym.Env[Any, Any]) -> str:
    """Return the state of an environment's generator as a text."""
    generator: Any = env.unwrapped.np_random
    if not isinstance(generator, np.random.Generator):
        raise LLMOptError(
            f"the np_random of {env} is a {type(generator).__name__}; expected a "
            "numpy.random.Generator, which shows whether steps are random. Use replay=False"
        )
    return repr(generator.bit_generator.state)


def improve(
    optimizer: CodeOptimizer,
    env: gym.Env[Any, Any],
    seeds: Sequence[int],
    steps: int,
    *,
    measure: Callable[[PolicyScore], float] = lambda score: score.mean_return,
    done: Callable[[PolicyScore], bool] = lambda score: False,
    on_step: Callable[[int, PolicyScore | None, str], None] | None = None,
    **options: Any,
) -> None:
    """Improve a policy over episodes: ask, run, tell with what happened in words.

    Args:
        optimizer: The search; it may have been resumed.
        env: The environment that counts.
        seeds: Starts on which candidates are compared.
        steps: Candidates of the model in all, resumed ones included.
        measure: The score that is told.
        done: Whether a score is good enough to stop.
        on_step: Called with the candidate's number, its score (``None`` where there was no
            candidate) and words.
        **options: For `evaluate_policy`.

    Code that the optimizer begins from is scored first.

    Raises:
        CandidateError: The code to begin from does not pass the checks.
    """
    candidate = optimizer.ask_initial()
    while candidate is not None or optimizer.tried < steps:
        try:
            candidate = candidate or optimizer.ask()
        except NoCandidateError as error:
            if on_step is not None:
                on_step(-1, None, str(error))
            continue
        score = evaluate_policy(candidate, env, seeds, **options)
        if score.failure:
            optimizer.tell_failure(candidate, score.failure)
        else:
            optimizer.tell(candidate, measure(score), score.feedback())
        if on_step is not None:
            on_step(candidate.number, score, score.feedback())
        if not score.failure and done(score):
            return
        candidate = None


def improve_within_episode(
    optimizer: CodeOptimizer,
    env: gym.Env[Any, Any],
    seed: int,
    *,
    steps: int = 5,
    cap: int = STEP_CAP,
) -> Episode:
    """Improve a policy while one episode goes on: each candidate acts for some steps.

    The score of a candidate is its mean reward over its own steps. Candidates act in
    different places, so that the latest is to be trusted more than the best.

    Args:
        optimizer: The search.
        env: The environment that counts.
        seed: Seed of the start.
        steps: Steps for one candidate; a failing one is replaced at once.
        cap: Largest number of steps of the episode, and of candidates.

    Returns:
        The episode as it went, under all of the candidates.

    Raises:
        NoCandidateError: The model wrote nothing usable; the episode is lost, and what was
            told before stays in `optimizer`.
    """
    observation, info = env.reset(seed=seed)
    rewards: list[float] = []
    ended, asked = False, 0
    while not ended and len(rewards) < cap and asked < cap:
        candidate = optimizer.ask()
        asked += 1
        gained: list[float] = []
        story: list[str] = []
        failure: CandidateError | None = None
        while not ended and len(gained) < steps and len(rewards) + len(gained) < cap:
            try:
                action = candidate(observation)
            except CandidateError as error:
                failure = error
                break
            observation, reward, terminated, truncated, info = env.step(_valid(action, env))
            gained.append(float(reward))
            language = info.get("language", {})
            story.append(
                f"You did {_brief(action)}. {language.get('feedback', '')} "
                f"{language.get('observation', '')}".strip()
            )
            ended = terminated or truncated
        rewards += gained
        if failure is not None:
            optimizer.tell_failure(candidate, failure)
        else:
            optimizer.tell(candidate, math.fsum(gained) / len(gained), "\n".join(story))
    won = bool(info["success"]) if "success" in info else None
    return Episode(seed, math.fsum(rewards), len(rewards), won)
