"""Policies as code: episodes, scores and feedback, computed outside the untrusted worker.

The environment runs in this process and the policy in its worker, one message per step. Code sees
only observations: no environment, no generator, no seed. An episode that fails has no return
(`llmopt.policies.episode`), and its policy has no score.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.code.candidate import Candidate, FirstCall
from llmopt.code.checks import Function, Output
from llmopt.code.code_optimizer import CodeOptimizer
from llmopt.code.language import LanguageFeedback, Verdict
from llmopt.code.loop import Score, search
from llmopt.errors import LLMOptError
from llmopt.policies.episode import (
    FAILED,
    STEP_CAP,
    Episode,
    Step,
    episode,
    mean_or_none,
    random_steps,
    standard_error,
)
from llmopt.policies.evaluation import Evaluation
from llmopt.policies.report import EpisodeStatistics
from llmopt.policies.steps import StepData, describe_code_data, is_sum
from llmopt.sandbox.failure import CandidateError
from llmopt.util.arguments import finite

_BAD_MOMENTS = 4  # the first ones: later ones follow from them
_SAMPLES = 4  # observations on which code is tested
_COURSE = 5  # distances reported of an episode


@dataclass(frozen=True)
class Moment:
    """A recorded step of an episode; `bad` if a teacher found fault with it."""

    seen: Any
    action: Any
    reward: float
    said: str = ""
    bad: bool = False

    def words(self, number: int) -> str:
        """Return the step as one line; its number is from 0."""
        seen = self.seen if isinstance(self.seen, str) else f"obs={_brief(self.seen)}."
        reward = "" if self.said else f" Reward {self.reward:.4g}."
        done = f"Action {_brief(self.action)}.{reward}"
        return f"Step {number + 1}: {seen} {done} {self.said}".rstrip()


@dataclass(frozen=True)
class CodeEpisode(Episode):
    """An episode of code, with its feedback.

    Attributes:
        number: Number of the initial state, from 1. The model sees this number, never the seed.
        success: Whether the environment reports success; ``None`` if it reports nothing.
        feedback: What happened, in words: a summary, and some steps.
        parts: The sums of the terms of the return, if the environment names them.
        course: Distance to success after each step, if the environment names one.
        reward: The last reward.
    """

    number: int = 1
    success: bool | None = None
    feedback: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)
    course: tuple[float, ...] = ()
    reward: float = 0.0

    @property
    def failed_in(self) -> int:
        """The step in which it failed, from 1."""
        return self.length + (self.error is not None)

    def account(self) -> str:
        """Return the episode as one line: return and its parts, steps, end, distances."""
        if self.total is None:
            return f"- start {self.number}: failed in step {self.failed_in}; no return"
        ending = {True: "success", False: "NO success", None: ""}[self.success]
        words = [f"return {self.total:.5g}", f"{self.length} steps", ending or self.end]
        if self.parts:
            parts = "; ".join(f"{name} {value:.5g}" for name, value in self.parts.items())
            words[0] += f" ({parts})"
        if self.course:
            least = int(np.argmin(self.course))
            at = sorted({*np.linspace(0, self.length - 1, _COURSE).round().astype(int), least})
            steps = ", ".join(f"{self.course[k]:.3g} (step {k + 1})" for k in at)
            words.append(f"distance to success: {steps}")
        return f"- start {self.number}: {', '.join(words)}"


@dataclass(frozen=True)
class PolicyScore:
    """Several episodes of one policy, in the order of their initial states.

    `cap` is the maximum steps of each; `statistics` describe all episodes in words (gait,
    saturation, drift), `data` hold their steps, for `CodeOptimizer.tell`, and `first_call` is
    that of the episode in which it took longest.
    """

    episodes: tuple[CodeEpisode, ...]
    cap: int = STEP_CAP
    statistics: str = ""
    data: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    first_call: FirstCall | None = field(default=None, compare=False)

    @property
    def mean_return(self) -> float | None:
        """Mean return; ``None`` if an episode failed."""
        return mean_or_none(e.total for e in self.episodes)

    @property
    def rank(self) -> float:
        """The mean return, for sorting; minus infinity if an episode failed."""
        return -math.inf if self.mean_return is None else self.mean_return

    @property
    def held_return(self) -> float | None:
        """Mean return, with the last reward repeated up to the cap after a success.

        A plain return would be lower for an earlier success.
        """
        mean = self.mean_return
        held = (e.reward * (self.cap - e.length) if e.success else 0.0 for e in self.episodes)
        return None if mean is None else mean + math.fsum(held) / len(self.episodes)

    @property
    def mean_length(self) -> float:
        """Mean steps of an episode."""
        return sum(e.length for e in self.episodes) / len(self.episodes)

    @property
    def success_rate(self) -> float | None:
        """Share of successes among all episodes, failed ones included; ``None`` if unknown."""
        if all(e.success is None for e in self.episodes):
            return None
        known = [bool(e.success) for e in self.episodes if e.failure or e.success is not None]
        return sum(known) / len(known)

    @property
    def returns(self) -> list[float]:
        """The return of each episode that did not fail."""
        return [e.total for e in self.episodes if e.total is not None]

    @property
    def failed(self) -> list[CodeEpisode]:
        """The episodes that failed."""
        return [e for e in self.episodes if e.failure]

    @property
    def failure(self) -> str:
        """Why the policy has no score; empty if no episode failed."""
        return next((e.failure for e in self.failed), "")

    def summary(self) -> str:
        """Return success, mean return and its standard error, and mean length in one line."""
        mean, n = self.mean_return, len(self.episodes)
        rate = self.success_rate
        success = "" if rate is None else f"Success at {rate:.0%} of {n} starts. "
        if mean is None:
            return f"{success}It failed at {len(self.failed)} of {n} starts, so it has no score."
        error = standard_error(self.returns)
        spread = f" ± {error:.3g} (standard error)" if error is not None else ""
        return (
            f"{success}Mean return {mean:.5g}{spread} over {n} starts, {self.mean_length:.4g} "
            "steps on average."
        )

    def feedback(self) -> str:
        """Return feedback: a line for each episode, statistics, and the worst episode's steps."""
        worst = min(
            self.episodes,
            key=lambda e: (e.total is not None, bool(e.success), e.total or 0.0, -e.length),
        )
        told = worst.feedback
        if told and not worst.failure:
            told = f"The worst episode (start {worst.number}): {told}"
        first = "" if self.first_call is None else self.first_call.words()
        accounts = (e.account() for e in self.episodes)
        lines = [self.summary(), first, *accounts, self.statistics, told]
        return "\n".join(line for line in lines if line)


def policy_function(env: gym.Env[Any, Any], doc: str = "") -> Function:
    """Specify the policy of an environment, with sample observations.

    Args:
        env: The environment; some random steps are made in it.
        doc: What the observation holds.

    Raises:
        TypeError: The action space is neither a `Box` nor `Discrete`.
    """
    steps = itertools.islice(random_steps(env, 0), 0, 3 * _SAMPLES, 3)
    seen = tuple((np.array(observation),) for observation, *_ in steps)
    space = env.observation_space
    doc += f"\nobs: array of shape {space.shape}." if space.shape else ""
    return Function("controller(obs)", doc.strip(), Output.from_space(env.action_space), seen)


class _Story:
    """Watches an episode and records its feedback."""

    def __init__(self, env: gym.Env[Any, Any], watch: Callable[[Step], None] | None) -> None:
        self._env, self._watch = env, watch
        self._distance = _distance(env)
        self._words: Any = None  # the observation before the step, in words
        self.moments: list[Moment] = []
        self.parts: dict[str, float] = {}
        self.course: list[float] = []

    def begin(self, observation: Any, env: gym.Env[Any, Any]) -> None:
        """Pass the initial state on."""
        if (begin := getattr(self._watch, "begin", None)) is not None:
            begin(observation, env)

    def __call__(self, step: Step) -> None:
        info, language = step.info, _language(step.info)
        if self._words is None and isinstance(self._env, LanguageFeedback):
            self._words = self._env.teacher.describe(step.observation)
        before = self._words or np.array(step.observation)
        self._words = language.get("observation")
        if self._watch is not None:
            facts = {k: v for k, v in info.items() if k not in ("language", "verdict")}
            self._watch(step._replace(info=facts))
        verdict = info.get("verdict")
        said, bad = "", False
        if isinstance(verdict, Verdict):  # not another environment's entry of that name
            said = str(language.get("feedback", ""))
            bad = verdict.good is False or bool(verdict.remarks)
        self.moments.append(Moment(before, step.action, step.reward, said, bad))
        for name, part in reward_parts(info).items():
            self.parts[name] = self.parts.get(name, 0.0) + part
        if self._distance and isinstance(info.get(self._distance), (int, float, np.number)):
            self.course.append(float(info[self._distance]))

    def told(self, info: Mapping[str, Any]) -> str:
        """Return a summary, then the episode's first steps, first bad steps, middle and end."""
        summary = _language(info).get("summary", "")
        if not summary and self.moments and isinstance(self._env, LanguageFeedback):
            summary = self._env.summary(info)
        n = len(self.moments)
        shown = {k for k in (0, 1, n // 2, n // 2 + 1, n // 2 + 2, n - 2, n - 1) if 0 <= k < n}
        bad = [k for k, moment in enumerate(self.moments) if moment.bad and k not in shown]
        shown.update(bad[:_BAD_MOMENTS])
        return "\n".join([str(summary), *(self.moments[k].words(k) for k in sorted(shown))])


def _language(info: Mapping[str, Any]) -> Mapping[str, Any]:
    language = info.get("language")
    return language if isinstance(language, Mapping) else {}


class _Typed(gym.ActionWrapper[Any, Any, Any]):
    """Gives a policy's numbers the type of the environment's actions."""

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(**given)  # not every environment accepts `options`

    def action(self, action: Any) -> Any:
        space = self.env.action_space
        return np.asarray(action, dtype=space.dtype) if space.shape else action


def run_episode(
    act: Callable[[Any], Any],
    env: gym.Env[Any, Any],
    seed: int,
    cap: int = STEP_CAP,
    success: Callable[[float, dict[str, Any]], bool] | None = None,
    watch: Callable[[Step], None] | None = None,
    number: int = 1,
) -> CodeEpisode:
    """Run one episode with the environment in this process, and record its feedback.

    The words of a `LanguageFeedback` are recorded. An attribute ``distance`` of the environment
    names the entry of ``info`` with the distance to success. `success` decides from the return and
    the last info, in place of ``info["success"]``; `watch` is called at every step.

    Raises:
        LLMOptError: The machine, not the policy, failed: for example, a worker cannot start.
    """
    story = _Story(env, watch)
    made = episode(_Typed(env), act, seed, cap, story, number=number - 1)
    if isinstance(made.error, LLMOptError) and not isinstance(made.error, CandidateError):
        raise made.error
    won = _success(made.info)
    if made.total is not None and success is not None:
        won = bool(success(made.total, dict(made.info)))
    if made.total is None:
        at = "" if made.last is None else f", at obs={_brief(made.last)}"
        error = made.error
        why = error.feedback() if isinstance(error, CandidateError) else made.failure
        lost = False if won is not None or success is not None else None
        ended = CodeEpisode(**vars(made), number=number, success=lost)
        failure = f"At start {number}, in step {ended.failed_in}{at}: {why}"
        return replace(ended, failure=failure, feedback=failure)
    last = story.moments[-1].reward if story.moments else 0.0
    return CodeEpisode(
        **vars(made),
        number=number,
        success=won,
        feedback=story.told(made.info),
        parts=story.parts,
        course=tuple(story.course),
        reward=last,
    )


def _success(info: Mapping[str, Any]) -> bool | None:
    return bool(np.all(info["success"])) if "success" in info else None


def reward_parts(info: Mapping[str, Any]) -> dict[str, float]:
    """Return the terms of a step's reward in its info, as MuJoCo's tasks name them."""
    names = (k for k in info if isinstance(k, str) and k.startswith("reward_") and not is_sum(k))
    found = ((name, finite(info[name])) for name in names)
    return {name: value for name, value in found if value is not None}


def _distance(env: gym.Env[Any, Any]) -> str:
    try:
        return str(env.get_wrapper_attr("distance"))
    except AttributeError:
        return ""


def _brief(value: Any) -> str:
    return np.array2string(np.asarray(value), precision=3, suppress_small=True, max_line_width=400)


def evaluate_policy(
    candidate: Candidate,
    env: gym.Env[Any, Any],
    seeds: Iterable[int],
    *,
    cap: int = STEP_CAP,
    success: Callable[[float, dict[str, Any]], bool] | None = None,
    every: bool = False,
    statistics: Callable[[], EpisodeStatistics] | None = None,
    steps: bool = False,
) -> PolicyScore:
    """Score a policy; its code is reloaded for each episode.

    Args:
        candidate: The policy, its first function.
        env: The environment that determines the score.
        seeds: Seed of each episode. Use different ones to report than to select, and none that
            code could guess (`llmopt.code.secret_seeds.Starts`).
        cap: Maximum steps.
        success: See `run_episode`.
        every: Continue after a failure, to report on all initial states.
        statistics: Makes a watcher that describes all steps.
        steps: Whether the score has all steps as `data`.

    Returns:
        The score. Without `every`, the first failure is its last episode.

    Raises:
        ValueError: There are no seeds.
    """
    episodes: list[CodeEpisode] = []
    calls: list[FirstCall] = []
    report = statistics() if statistics is not None else None
    watch = report if report is not None else StepData() if steps else None
    for number, seed in enumerate(seeds, 1):
        try:
            candidate.reset()
        except CandidateError as error:
            words = error.feedback()
            lost = CodeEpisode(seed, None, 0, FAILED, words, error, True, number=number)
            episodes.append(replace(lost, feedback=words))
        else:
            episodes.append(run_episode(candidate, env, seed, cap, success, watch, number))
            calls += [] if candidate.first_call is None else [candidate.first_call]
        if episodes[-1].failure and not every:
            break
    if not episodes:
        raise ValueError("no seeds: expected at least one")
    longest = max(calls, key=lambda call: call.seconds, default=None)
    score = PolicyScore(tuple(episodes), cap, first_call=longest)
    if score.failure:
        return score
    if steps and watch is not None:
        score = replace(score, data=watch.data())
    if report is None:
        return score
    lengths = tuple(e.length for e in episodes)
    return replace(score, statistics=report.text(Evaluation(tuple(score.returns), lengths)))


def improve(
    optimizer: CodeOptimizer,
    env: gym.Env[Any, Any],
    seeds: Sequence[int],
    steps: int,
    *,
    measure: Callable[[PolicyScore], float | tuple[float, ...]] | None = None,
    samples: Callable[[PolicyScore], Sequence[float]] | None = None,
    done: Callable[[PolicyScore], bool] = lambda score: False,
    on_step: Callable[[int, PolicyScore | None, str], None] | None = None,
    **options: Any,
) -> bool:
    """Improve a policy over episodes: ask, run, tell with feedback.

    The optimizer's initial code is scored first. If the optimizer has ``compute=True``, the model's
    Python finds the steps of each try.

    Args:
        optimizer: The search; it may have been resumed.
        env: The environment that determines the score.
        seeds: Seeds of the initial states on which candidates are compared.
        steps: Total candidates of the model, including the ones before a resume.
        measure: Computes the score; in a tuple the numbers after the first break ties. The mean
            return by default.
        samples: The numbers whose mean is the score, in the order of `seeds`; by default the
            returns, unless `measure` is given.
        done: Whether a score is good enough to stop.
        on_step: Called with the candidate's number, its score (``None`` if there was no
            candidate) and words.
        **options: For `evaluate_policy`.

    Returns:
        Whether a score was good enough to stop.

    Raises:
        CandidateError: The initial code does not pass the checks.
        BrokenTaskError: The environment failed under each of the first five candidates.
    """
    if measure is None:
        samples = samples or (lambda score: score.returns)
    if optimizer.computes:
        options = {"steps": True, **options}
        optimizer.tools = *optimizer.tools, *describe_code_data()

    def score(candidate: Candidate) -> Score:
        made = evaluate_policy(candidate, env, seeds, **options)
        if made.failure:
            broken = not any(e.by_policy for e in made.failed)
            return Score(None, made.failure, broken=broken, made=made)
        told = made.mean_return if measure is None else measure(made)
        first, *ties = told if isinstance(told, tuple) else (told,)
        each = () if samples is None else samples(made)
        return Score(first, made.feedback(), ties, each, made=made, data=made.data)

    return search(optimizer, env, steps, score, on_step, lambda outcome: done(outcome.made))
