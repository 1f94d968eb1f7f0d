"""Reward functions as code: train a policy with one, and evaluate the policy without it.

As in Eureka (arXiv 2310.12931) and VIRAL, the model writes a reward, a policy is trained with it,
and the model gets the course of each component over training in words. The score never comes from
the reward itself: it is the environment's own return, measured in a new environment (`judge`).

During training, environment and policy run in this process. The reward's worker gets all steps of
an episode in one message, without the environment's own reward.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.code.candidate import Candidate
from llmopt.code.checks import Function, Output, component_means
from llmopt.code.code_optimizer import CodeOptimizer
from llmopt.code.loop import Score, search
from llmopt.code.policy import CodeEpisode, PolicyScore
from llmopt.partners.cma import CMA
from llmopt.policies.environment import make_gymnasium
from llmopt.policies.episode import (
    STEP_CAP,
    TERMINATED,
    Episode,
    Step,
    Watcher,
    episode,
    mean_or_none,
    random_steps,
    standard_error,
)
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.steps import StepData, entry_name
from llmopt.sandbox.failure import CandidateError, EnvironmentFailure
from llmopt.util.text import cut, first_line

GOAL_TASKS = ("MountainCarContinuous-v0", "MountainCar-v0")
"""Tasks that terminate only at their goal: ``terminated`` means success."""

SIGNATURE = "reward(obs, action, next_obs, info)"
DOC = (
    "Return the reward of one step: a number, or better a pair (total, components) in which "
    "components is a dict that names the parts the total is made of."
)
CHECKPOINTS = 10
"""Number of points of a training's curves."""
FINALISTS = 4
"""Number of a training's best policies that are compared on all of its initial states."""
STARTS = 3
"""Number of a training's initial states; each policy is tried on one of them, in turn."""
_STARTS = 1_000_000  # the first seed: policies are judged on other ones
_BOX = (-3.0, 3.0)  # of every parameter, for scaled observations
_SCALING_STEPS = 1000  # random steps to measure the scale of observations
_HIDDEN = ("reward", "success", "episode", "timelimit")  # facts hidden from a reward
_COMPONENTS, _NAME = 12, 60  # maximum components reported, and characters of a name


@dataclass(frozen=True)
class Training:
    """A policy trained with a candidate's reward, and means at checkpoints of the training.

    Attributes:
        policy: Flat parameters of a linear policy, or a function of the observation.
        components: Mean per step of each component.
        returns: The environment's own mean return.
        lengths: Mean length of an episode.
        episodes: Number of episodes.
    """

    policy: tuple[float, ...] | Callable[[Any], Any]
    components: Mapping[str, tuple[float, ...]]
    returns: tuple[float, ...]
    lengths: tuple[float, ...]
    episodes: int


def reward_function(env: gym.Env[Any, Any], doc: str = "") -> Function:
    """Specify the reward function, with sample steps from an environment.

    `doc` describes observations and actions.
    """
    seen = tuple(seen_by_a_reward(*step) for step in itertools.islice(random_steps(env, 0), 6))
    return Function(SIGNATURE, f"{DOC}\n{doc}".strip(), Output("reward"), seen)


def seen_by_a_reward(
    observation: Any, action: Any, following: Any, info: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return the arguments of a reward for a step, as copies."""
    return np.array(observation), plain_action(action), np.array(following), visible(info)


def plain_action(action: Any) -> Any:
    """Return an action as a reward sees it: an int, or a copy of the array."""
    return np.asarray(action).item() if np.ndim(action) == 0 else np.array(action)


def visible(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of an info that a candidate may see: plain data without rewards."""
    return {
        str(name): value
        for name, value in info.items()
        if not _hidden(str(name))
        and isinstance(value, (bool, int, float, str, np.ndarray, np.number, np.bool_))
        and not (isinstance(value, np.ndarray) and value.dtype.kind not in "fiub")
    }


def _hidden(name: str) -> bool:
    return any(word in name.lower() for word in _HIDDEN)


def train_linear(
    candidate: Candidate,
    env: gym.Env[Any, Any],
    *,
    episodes: int = 200,
    seed: int = 0,
    cap: int = 1000,
) -> Training:
    """Train a linear policy by CMA-ES to maximize the sum of a candidate's rewards.

    The search scales observations to mean 0 and standard deviation 1, measured with random
    actions (Mania et al. 2018, ARS, section 3.2); the returned policy takes unscaled observations.

    Args:
        candidate: The reward.
        env: The environment; training never uses its own reward.
        episodes: Episodes of the search, one for each policy tried. Another
            ``FINALISTS * STARTS`` choose among the best of them.
        seed: Seed of the search and of the initial states.
        cap: Maximum steps of an episode.

    Raises:
        CandidateError: The reward failed.
        LLMOptError: The package `cma` is missing.
    """
    policy = LinearPolicy.for_env(env, clip=True)
    search = CMA(*_BOX, policy.n_parameters, seed)
    try:
        rescale = _rescaling(policy, env, seed)
    except Exception as error:
        reason = f"the environment raised {type(error).__name__}: {first_line(error)}"
        raise training_broke(reason) from error
    log: list[tuple[dict[str, float], float, int]] = []
    names: set[str] = set()  # of the components

    def total_of(params: np.ndarray, start: int) -> float:
        total, parts, true_return, length = _episode(
            candidate, env, policy.bind(rescale(params)), start_seed(seed) + start, cap, names
        )
        log.append((parts, true_return, length))
        return total

    tried: list[tuple[float, int, np.ndarray]] = []
    while len(tried) < episodes:
        params = search.ask()
        total = total_of(params, len(tried) % STARTS)
        search.tell(params, total)
        tried.append((total, len(tried), params))
    # One initial state may be lucky: compare the best policies on all of them.
    finalists = [params for _, _, params in sorted(tried, reverse=True)[:FINALISTS]]
    sums = [math.fsum(total_of(params, k) for k in range(STARTS)) for params in finalists]
    best = rescale(finalists[int(np.argmax(sums))])
    return summarise(tuple(float(p) for p in best), log)


def train_all(
    candidate: Candidate,
    env: gym.Env[Any, Any],
    train: Callable[..., Training],
    trainings: int,
    seed: int,
    **options: Any,
) -> list[Training]:
    """Train `trainings` policies under a reward, from `seed` on; `options` are for `train`.

    The code is loaded anew before each: what it kept in another training has no effect.
    """
    found = []
    for k in range(trainings):
        candidate.reset()
        found.append(train(candidate, env, seed=seed + k, **options))
    return found


def require_linear(env: gym.Env[Any, Any]) -> None:
    """Raise `LLMOptError` if `train_linear` does not support an environment, or lacks `cma`."""
    CMA(-1.0, 1.0, LinearPolicy.for_env(env).n_parameters)


def start_seed(seed: int) -> int:
    """Return the first seed of a training's initial states, which `judge` never uses."""
    return (_STARTS + 1000 * seed) % 2**32


def linear_words(env: gym.Env[Any, Any], episodes: int, cap: int) -> str:
    """Describe for the model what `train_linear` trains."""
    policy = LinearPolicy.for_env(env)
    if isinstance(env.observation_space, gym.spaces.Discrete):
        form = "a table that holds a preference for each action in each state"
    elif isinstance(env.action_space, gym.spaces.Discrete):
        form = (
            "linear: each action's score is a weighted sum of obs plus a constant, and the action "
            "of the highest score is taken"
        )
    else:
        form = (
            "linear: each action is a weighted sum of obs plus a constant, clipped to its bounds "
            "(no memory, no hidden layer)"
        )
    return (
        f"The policy is {form}; {policy.n_parameters} numbers in all. It is searched by CMA-ES, in "
        f"{episodes} episodes of at most {cap} steps, one for each policy that is tried; then the "
        f"{FINALISTS} best ones are compared on {STARTS} starts each. What counts is the sum of "
        "your reward over an episode, undiscounted; CMA-ES uses only which of the sums are "
        "larger, so that the scale of the reward does not matter, nor a constant where all "
        "episodes are equally long. An episode that ends sooner sums fewer steps. "
        f"Starts take turns: {STARTS} of them, which no policy is judged on."
    )


def summarise(
    policy: tuple[float, ...], log: Sequence[tuple[Mapping[str, float], float, int]]
) -> Training:
    """Summarize a training's episodes: means of components, true return, length."""
    groups = [g for g in np.array_split(np.arange(len(log)), CHECKPOINTS) if len(g)]
    names = dict.fromkeys(name for parts, _, _ in log for name in parts)
    return Training(
        policy,
        {n: tuple(fmean(log[k][0].get(n, 0.0) for k in g) for g in groups) for n in names},
        tuple(fmean(log[k][1] for k in g) for g in groups),
        tuple(fmean(log[k][2] for k in g) for g in groups),
        len(log),
    )


def _rescaling(
    policy: LinearPolicy, env: gym.Env[Any, Any], seed: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that converts parameters for scaled observations to unscaled ones."""
    if isinstance(env.observation_space, gym.spaces.Discrete):
        return lambda params: params
    seen: list[np.ndarray] = []
    steps = random_steps(env, seed, start_seed(seed))
    for before, _, after, _ in itertools.islice(steps, _SCALING_STEPS - 1):
        seen += [np.array(each).ravel() for each in ((after,) if seen else (before, after))]
    mean, deviation = np.mean(seen, axis=0), np.std(seen, axis=0) + 1e-8

    def rescale(params: np.ndarray) -> np.ndarray:
        weights, constant = policy.unpack(params)
        weights = weights / deviation[:, None]
        flat: np.ndarray = np.vstack([weights, constant - mean @ weights]).ravel()
        return flat

    return rescale


def _episode(
    candidate: Candidate,
    env: gym.Env[Any, Any],
    act: Callable[[Any], Any],
    seed: int,
    cap: int,
    known: set[str],
) -> tuple[float, dict[str, float], float, int]:
    """Run an episode; return the reward's sum, its components' means, the true return, length."""
    rows: list[tuple[Any, ...]] = []

    def watch(step: Step) -> None:
        rows.append(seen_by_a_reward(step.observation, step.action, step.following, step.info))

    made = episode(env, act, seed, cap, watch)
    if made.total is None:
        raise training_broke(made.failure)
    seen, actions, following, infos = zip(*rows, strict=True)
    columns = (np.array(seen), np.array(actions), np.array(following), list(infos))
    results = candidate.call_columns(candidate.functions[0].name, columns)
    total = math.fsum(reward for reward, _ in results)
    return total, component_means(results, known), made.total, made.length


def judge(
    env_id: str,
    policy: Sequence[float] | Callable[[Any], Any],
    seeds: Sequence[int],
    cap: int = STEP_CAP,
    watch: Watcher | None = None,
) -> PolicyScore:
    """Run a policy in a new environment, with an episode from each seed.

    `policy` is flat parameters of an `llmopt.policies.linear.LinearPolicy` with a bias, or a
    function of the observation. `watch` is called at every step.

    Raises:
        LLMOptError: The environment cannot be made.
    """
    with contextlib.closing(make_gymnasium(env_id)) as env:
        # Within the action space: some environments penalize clipped actions.
        linear = LinearPolicy.for_env(env, clip=True)
        act = policy if callable(policy) else linear.bind(policy)
        made = [episode(env, act, seed, cap, watch) for seed in seeds]
        each = tuple(CodeEpisode(**{**vars(e), "success": _success(env, e)}) for e in made)
    return PolicyScore(each, cap)


def _success(env: gym.Env[Any, Any], made: Episode) -> bool:
    """Whether the environment reports success, or its goal or threshold was reached."""
    if made.total is None:
        return False
    for name in ("success", "is_success"):
        if name in made.info:
            return bool(np.all(made.info[name]))
    if env.spec is not None and env.spec.id in GOAL_TASKS:
        return made.end == TERMINATED
    threshold = env.spec.reward_threshold if env.spec is not None else None
    return threshold is not None and made.total >= threshold


def training_broke(reason: str) -> EnvironmentFailure:
    """Return the failure of a reward with which no policy could be trained."""
    return EnvironmentFailure(f"training broke down: {reason}")


def reflect(trainings: Sequence[Training], judged: Sequence[PolicyScore]) -> str:
    """Describe the trainings with one reward, as Eureka's reward reflection does."""
    means = [score.rank for score in judged]
    error = standard_error(means)
    each = ", ".join(f"{mean:.5g}" for mean in means)
    spread = ""
    if error is not None:
        spread = f" ± {error:.3g} (standard error of {len(means)} trainings: {each})"
    rate = fmean(score.success_rate or 0.0 for score in judged)
    lines = [
        f"Judged by the environment itself: mean return {fmean(means):.5g}{spread}, "
        f"success in {rate:.0%} of the episodes."
    ]
    lines += [
        f"Training {number}, {training.episodes} episodes: the environment's own return "
        f"{_row(training.returns)}; length of an episode {_row(training.lengths)}."
        for number, training in enumerate(trainings, 1)
    ]
    at = sorted(range(len(means)), key=lambda k: means[k])[(len(means) - 1) // 2]
    told = trainings[at]
    which = f" in training {at + 1}, the median one" if len(means) > 1 else ""
    lines.append(
        f"Your components{which}, at {len(told.returns)} checkpoints over training (mean per step):"
    )
    lines += [
        f"- {cut(' '.join(name.split()), _NAME)}: {_row(values)}"
        for name, values in itertools.islice(told.components.items(), _COMPONENTS)
    ]
    if (more := len(told.components) - _COMPONENTS) > 0:
        lines.append(f"- {more} more components are not shown; name a few, and always the same.")
    lines += [
        f"The policy of training {number} at each start: {'; '.join(map(_told, score.episodes))}."
        for number, score in enumerate(judged, 1)
    ]
    lines.append(
        "If the own return does not follow the reward, the reward asks for something else. "
        "Rescale a component that outweighs the others; replace one that does not change."
    )
    return "\n".join(lines)


def training_data(
    trainings: Sequence[Training], judged: Sequence[PolicyScore], steps: StepData
) -> dict[str, Any]:
    """Return the curves of the trainings, and the steps by which their policies were judged.

    The environment's own rewards and its success flags are not among the steps.
    """
    seen = steps.data()
    info = {name: each for name, each in seen.get("info", {}).items() if not _hidden(name)}
    names = dict.fromkeys(name for training in trainings for name in training.components)
    entries = {
        "returns": [np.array(training.returns) for training in trainings],
        "lengths": [np.array(training.lengths) for training in trainings],
        "components": {
            entry_name(name): [np.array(t.components.get(name, ())) for t in trainings]
            for name in names
        },
        "judged": np.array([[e.total for e in score.episodes] for score in judged]),
        "observations": seen.get("observations"),
        "actions": seen.get("actions"),
        "info": info,
        "ended": seen.get("ended"),
    }
    return {name: entry for name, entry in entries.items() if name == "judged" or entry}


_DATA = (
    'data[k]["returns"][t - 1], ["lengths"][t - 1], ["components"][name][t - 1]: the curves of '
    'training t under try k, at its checkpoints; ["judged"][t - 1]: the return of its policy from '
    "each start",
    'data[k]["observations"][j] (steps + 1 rows), ["actions"][j], ["info"][name][j]: the steps by '
    'which its policies were judged, all starts of training 1, then of training 2; ["ended"][j]',
)


def _told(made: CodeEpisode) -> str:
    total = "failed" if made.total is None else f"{made.total:.4g}"
    return f"{total} in {made.length} steps{'' if made.success else ' (no success)'}"


def _row(values: Sequence[float]) -> str:
    return "[" + ", ".join(f"{v:.4g}" for v in values) + "]"


def improve_reward(
    optimizer: CodeOptimizer,
    env_id: str,
    steps: int,
    *,
    seeds: Sequence[int],
    episodes: int = 200,
    trainings: int = 1,
    train: Callable[..., Training] = train_linear,
    on_step: Callable[[int, Sequence[Training], Sequence[PolicyScore], str], None] | None = None,
    done: Callable[[float], bool] = lambda score: False,
    seed: int = 0,
    cap: int = 1000,
    **options: Any,
) -> bool:
    """Improve a reward: ask, train with it, judge without it, tell with a reflection.

    The score is the mean return of the policies; the share of successes breaks ties.

    The optimizer's initial code is scored first. If the optimizer has ``compute=True``, the model's
    Python finds the curves of each try's trainings, and the steps of their policies.

    Args:
        optimizer: The search; it may have been resumed.
        env_id: Gymnasium id.
        steps: Total candidates of the model, including the ones before a resume.
        seeds: Seeds of the initial states on which trained policies are judged.
        episodes: Episodes of each training.
        trainings: Trainings with each candidate, from different seeds; the score is the mean
            over their policies.
        train: Trains a policy; called as `train_linear`.
        on_step: Called with the candidate's number, its trainings and their scores (none if it
            failed) and words.
        done: Whether a score is good enough to stop.
        seed: Seed of the first training; further trainings use the next numbers.
        cap: Maximum steps of an episode.
        **options: For `train`.

    Returns:
        Whether a score was good enough to stop.

    Raises:
        CandidateError: The initial code does not pass the checks.
        BrokenTaskError: The environment failed under each of the first five candidates.
    """
    given = {"episodes": episodes, "cap": cap, **options}
    if optimizer.computes:
        optimizer.tools = *optimizer.tools, *_DATA
    with contextlib.closing(gym.make(env_id)) as env:

        def score(candidate: Candidate) -> Score:
            steps = StepData() if optimizer.computes else None
            try:
                made = train_all(candidate, env, train, trainings, seed, **given)
                candidate.close()
                judged = [judge(env_id, training.policy, seeds, cap, steps) for training in made]
                if mean_or_none(j.mean_return for j in judged) is None:
                    reason = next(j.failure for j in judged if j.failure)
                    words = f"a policy trained under it failed: {reason}"
                    raise EnvironmentFailure(words)
            except CandidateError as error:
                broken = isinstance(error, EnvironmentFailure)
                return Score(None, error.feedback(), broken=broken)
            means = [j.rank for j in judged]
            tie = fmean(j.success_rate or 0.0 for j in judged)
            data = {} if steps is None else training_data(made, judged, steps)
            words = reflect(made, judged)
            return Score(fmean(means), words, [tie], means, made=(made, judged), data=data)

        def watch(number: int, made: Any, words: str) -> None:
            if on_step is not None:
                trained, judged = made or ((), ())
                on_step(number, trained, judged, words)

        return search(optimizer, env, steps, score, watch, lambda o: done(o.reward or 0.0))
