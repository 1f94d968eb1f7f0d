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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.code.candidate import Candidate, standard_error
from llmopt.code.checks import Function, Output
from llmopt.code.code_optimizer import CodeOptimizer
from llmopt.code.failure import CandidateError, NoCandidateError
from llmopt.code.language import LanguageFeedback
from llmopt.errors import LLMOptError
from llmopt.policies.episode import Step
from llmopt.policies.rollout import Evaluation
from llmopt.policies.statistics import EpisodeStatistics

STEP_CAP = 1000
_BAD_MOMENTS = 4  # the first ones: what comes later follows from them
_COURSE = 5  # distances told of an episode


@dataclass(frozen=True)
class Moment:
    """One step of an episode, kept to be told.

    Attributes:
        seen: What was observed before it: the array, or words.
        action: What was done.
        reward: What it gave.
        said: Feedback in words; empty where the environment gives none.
        bad: Whether a teacher found fault with it.
    """

    seen: Any
    action: Any
    reward: float
    said: str = ""
    bad: bool = False

    def words(self, number: int) -> str:
        """Return the step as one line.

        Args:
            number: Of the step, from 0.
        """
        seen = self.seen if isinstance(self.seen, str) else f"obs={_brief(self.seen)}."
        reward = "" if self.said else f" Reward {self.reward:.4g}."
        done = f"Action {_brief(self.action)}.{reward}"
        return f"Step {number + 1}: {seen} {done} {self.said}".rstrip()


@dataclass(frozen=True)
class Episode:
    """One episode.

    Attributes:
        seed: Seed of its start.
        total: Sum of rewards.
        length: Steps.
        success: What the environment says of success; ``None`` where it says nothing.
        feedback: What happened, in words: a summary, and some steps.
        failure: Why the policy failed in it; empty if it did not.
        end: How it ended: ``"terminated"``, ``"step limit"`` or ``"failed"``.
        parts: The sums of the return's own parts, where the environment names them.
        course: Distance to success after each step, where the environment names one.
        last: The last reward.
    """

    seed: int
    total: float
    length: int
    success: bool | None
    feedback: str = ""
    failure: str = ""
    end: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)
    course: tuple[float, ...] = ()
    last: float = 0.0

    def account(self) -> str:
        """Return the episode as one line: return and its parts, steps, end, distances."""
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
        return f"- start {self.seed}: {', '.join(words)}"


@dataclass(frozen=True)
class PolicyScore:
    """Several episodes of one policy.

    Attributes:
        episodes: The episodes, in the order of their seeds.
        cap: Most steps of an episode.
        statistics: What the policy did in all of them, in words (gait, saturation, drift).
    """

    episodes: tuple[Episode, ...]
    cap: int = STEP_CAP
    statistics: str = ""

    @property
    def mean_return(self) -> float:
        """Mean of the episodes' sums of rewards."""
        return math.fsum(e.total for e in self.episodes) / len(self.episodes)

    @property
    def held_return(self) -> float:
        """Mean return where an episode that ended in success goes on at its last reward.

        A plain return is less for a success that came sooner.
        """
        held = (e.last * (self.cap - e.length) if e.success else 0.0 for e in self.episodes)
        return self.mean_return + math.fsum(held) / len(self.episodes)

    @property
    def mean_length(self) -> float:
        """Mean steps of an episode."""
        return sum(e.length for e in self.episodes) / len(self.episodes)

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

    def summary(self) -> str:
        """Return success, mean return and its standard error, and mean length in one line."""
        error = standard_error([e.total for e in self.episodes])
        spread = f" ± {error:.3g} (standard error)" if error is not None else ""
        rate = self.success_rate
        success = "" if rate is None else f"Success at {rate:.0%} of {len(self.episodes)} starts. "
        return (
            f"{success}Mean return {self.mean_return:.5g}{spread} over {len(self.episodes)} "
            f"starts, {self.mean_length:.4g} steps on average."
        )

    def feedback(self) -> str:
        """Sum up for the model: a line for each episode, statistics, and the worst one's steps."""
        worst = min(self.episodes, key=lambda e: (bool(e.success), e.total, -e.length))
        told = worst.feedback if worst.failure else ""
        if worst.feedback and not told:
            told = f"The worst episode (start {worst.seed}): {worst.feedback}"
        lines = [self.summary(), *(e.account() for e in self.episodes), self.statistics, told]
        return "\n".join(line for line in lines if line)


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
    watch: Callable[[Step], None] | None = None,
    number: int = 0,
) -> Episode:
    """Run one episode with the environment in this process.

    Args:
        act: The policy. A `CandidateError` of it ends the episode as a failure.
        env: The environment; with a `LanguageFeedback` around it, its words are kept. Its
            attribute ``distance``, if it has one, names the entry of ``info`` that says how
            far success is.
        seed: Seed of the start.
        cap: Largest number of steps.
        success: Judges success from the return and the last info, where the environment's
            own ``info["success"]`` does not.
        watch: Called at every step, such as an `EpisodeStatistics`.
        number: The episode's number for `watch`.
    """
    observation, info = env.reset(seed=seed)
    moments: list[Moment] = []
    parts: dict[str, float] = {}
    course: list[float] = []
    distance = _distance(env)
    failure, end = "", "step limit"
    for step in range(cap):
        before: Any = info.get("language", {}).get("observation") or np.array(observation)
        try:
            action = act(observation)
        except CandidateError as error:
            at = f"At start {seed}, in step {step + 1}, at obs={_brief(observation)}: "
            failure = at + error.feedback()
            end = "failed"
            break
        following, reward, terminated, truncated, info = env.step(_valid(action, env))
        truncated = truncated or step + 1 == cap
        if watch is not None:
            facts = {k: v for k, v in info.items() if k not in ("language", "verdict")}
            watch(Step(number, observation, action, float(reward), following, terminated,
                       truncated, facts))  # fmt: skip
        observation = following
        verdict = info.get("verdict")
        said = info["language"]["feedback"] if verdict is not None else ""
        bad = verdict is not None and (verdict.good is False or bool(verdict.remarks))
        moments.append(Moment(before, action, float(reward), said, bad))
        for name, part in reward_parts(info).items():
            parts[name] = parts.get(name, 0.0) + part
        if distance in info:
            course.append(float(info[distance]))
        if terminated or truncated:
            end = "terminated" if terminated else end
            break
    total = math.fsum(m.reward for m in moments)
    won = bool(info["success"]) if "success" in info else None
    if success is not None:
        won = success(total, info)
    if failure:
        won = False if won is not None else None
        return Episode(seed, total, len(moments), won, failure, failure, end)
    summary = info.get("language", {}).get("summary", "")
    if not summary and moments and isinstance(env, LanguageFeedback):
        summary = env.summary(info)
    last = moments[-1].reward if moments else 0.0
    return Episode(seed, total, len(moments), won, _tell(summary, moments), "", end, parts,
                   tuple(course), last)  # fmt: skip


def reward_parts(info: Mapping[str, Any]) -> dict[str, float]:
    """Return the parts of a step's reward that its info names, as MuJoCo's tasks do."""
    return {
        str(name): float(value)
        for name, value in info.items()
        if str(name).startswith("reward_") and isinstance(value, (int, float, np.number))
    }


def _distance(env: gym.Env[Any, Any]) -> str:
    try:
        return str(env.get_wrapper_attr("distance"))
    except AttributeError:
        return ""


def _valid(action: Any, env: gym.Env[Any, Any]) -> Any:
    space = env.action_space
    return np.asarray(action, dtype=space.dtype) if space.shape else action


def _brief(value: Any) -> str:
    return np.array2string(np.asarray(value), precision=3, suppress_small=True, max_line_width=400)


def _tell(summary: str, moments: Sequence[Moment]) -> str:
    """Tell an episode's summary and its start, first bad moments, middle and end, in order."""
    n = len(moments)
    shown = {k for k in (0, 1, n // 2, n // 2 + 1, n // 2 + 2, n - 2, n - 1) if 0 <= k < n}
    bad = [k for k, moment in enumerate(moments) if moment.bad and k not in shown]
    shown.update(bad[:_BAD_MOMENTS])
    return "\n".join([summary, *(moments[k].words(k) for k in sorted(shown))])


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
    statistics: Callable[[], EpisodeStatistics] | None = None,
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
        statistics: Makes what watches all steps and says what the policy did in them.

    Returns:
        The score. Without `every`, the first failure is its last episode.

    Raises:
        ValueError: There are no seeds.
        LLMOptError: With `replay`, the environment drew random numbers after its start: code
            could have foreseen them in the worker's environment.
    """
    function = name or candidate.functions[0].name
    episodes: list[Episode] = []
    watch = statistics() if statistics is not None else None
    for seed in seeds:
        if isinstance(env, LanguageFeedback):
            env.reword(candidate.number, seed)
        try:
            candidate.reset()
            if replay:
                actions = candidate.rollout(function, seed, cap)
                run = partial(_replay, actions)
            else:
                run = partial(run_episode, candidate.function(function))
            episodes.append(run(env, seed, cap, success, watch, len(episodes)))
        except CandidateError as error:
            words = error.feedback()
            episodes.append(Episode(seed, -math.inf, 0, None, words, words, "failed"))
        if episodes[-1].failure and not every:
            break
    if not episodes:
        raise ValueError("no seeds: expected one at least")
    told = ""
    if watch is not None and not any(e.failure for e in episodes):
        returns, lengths = (tuple(getattr(e, f) for e in episodes) for f in ("total", "length"))
        told = watch.text(Evaluation(returns, lengths))
    return PolicyScore(tuple(episodes), cap, told)


def _replay(
    actions: Sequence[Any],
    env: gym.Env[Any, Any],
    seed: int,
    cap: int,
    success: Callable[[float, dict[str, Any]], bool] | None,
    watch: Callable[[Step], None] | None,
    number: int,
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

    episode = run_episode(act, env, seed, cap, success, watch, number)
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
    measure: Callable[[PolicyScore], float | tuple[float, ...]] | None = None,
    samples: Callable[[PolicyScore], Sequence[float]] | None = None,
    done: Callable[[PolicyScore], bool] = lambda score: False,
    on_step: Callable[[int, PolicyScore | None, str], None] | None = None,
    **options: Any,
) -> bool:
    """Improve a policy over episodes: ask, run, tell with what happened in words.

    Args:
        optimizer: The search; it may have been resumed.
        env: The environment that counts.
        seeds: Starts on which candidates are compared.
        steps: Candidates of the model in all, resumed ones included.
        measure: The score that is told; of a tuple the first number, of which the others
            break ties. The mean return by default.
        samples: What the score is the mean of, in the order of `seeds`; by default the
            returns where `measure` is not given.
        done: Whether a score is good enough to stop.
        on_step: Called with the candidate's number, its score (``None`` where there was no
            candidate) and words.
        **options: For `evaluate_policy`.

    Code that the optimizer begins from is scored first.

    Returns:
        Whether a score was good enough to stop.

    Raises:
        CandidateError: The code to begin from does not pass the checks.
    """
    if measure is None:
        measure = _mean_return
        samples = samples or _returns
    optimizer.steps = steps
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
            told = measure(score)
            first, *ties = told if isinstance(told, tuple) else (told,)
            each = () if samples is None else samples(score)
            optimizer.tell(candidate, first, score.feedback(), ties=ties, samples=each)
        if on_step is not None:
            on_step(candidate.number, score, score.feedback())
        if not score.failure and done(score):
            return True
        candidate = None
    return False


def _mean_return(score: PolicyScore) -> float:
    return score.mean_return


def _returns(score: PolicyScore) -> list[float]:
    return [episode.total for episode in score.episodes]


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
