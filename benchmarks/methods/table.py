"""Every method of the benchmark behind one ask/tell interface.

All methods meet the same problem in the same way: the same box, the same warm-up points with
their rewards, one proposal at a time, the same number of evaluations. What a method can take
of the warm-up it is given: the model's history and Optuna's and Nevergrad's take all points;
CMA-ES and ARS start from the best one; random search needs none.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, Protocol

import numpy as np
from gymnasium import spaces

from llmopt.benchmarks.methods.baselines import RandomSearch
from llmopt.benchmarks.methods.grammar_clients import (
    GaussianGrammarClient,
    NetworkClient,
    SlopeGrammarClient,
    UniformGrammarClient,
)
from llmopt.client.base import Client
from llmopt.client.registry import get_client
from llmopt.errors import FallbackWarning, LLMOptError, did_you_mean
from llmopt.history import Proposal, Trial, Usage
from llmopt.optimizer import LLMOptimizer
from llmopt.prompt import Prompt, Query, Situation, get_prompt
from llmopt.search.bandit import Partner
from llmopt.search.cma import CMA
from llmopt.search.follow import failure_gap
from llmopt.space import Space

OPTIMA = {
    "MountainCarContinuous-v0": 100.0,
    "Swimmer-v5": 360.0,
    "CartPole-v1": 500.0,
    "MountainCar-v0": -100.0,
    "Pendulum-v1": -150.0,
    "Acrobot-v1": -80.0,
    "InvertedPendulum-v5": 1000.0,
    "InvertedDoublePendulum-v5": 9350.0,
    "Reacher-v5": -4.0,
    "Hopper-v5": 3500.0,
    "Walker2d-v5": 4000.0,
    "HalfCheetah-v5": 5000.0,
    "FrozenLake-v1": 0.74,
    "CliffWalking-v1": -13.0,
}
"""About the best known return: told to the model by the published loop, and by nothing else."""


class Method(Protocol):
    """A search: ``ask``, ``tell`` (or ``tell_failure``), ``ask``, and so on.

    Everything random comes from the seed, so that telling the same rewards again leads to
    the same points (a model has to answer the same again for that).
    """

    def ask(self) -> np.ndarray:
        """Return the next ``(n,)`` point."""
        ...

    def tell(self, params: Any, reward: float) -> None:
        """Report the reward (larger is better) of the point asked last."""
        ...

    def tell_failure(self, params: Any, reason: str) -> None:
        """Report that the point asked last has no reward."""
        ...


@dataclass(frozen=True)
class Problem:
    """What a method is to solve.

    Attributes:
        low: Lower bound of every parameter.
        high: Upper bound of every parameter.
        n: Number of parameters.
        evaluations: Points that will be asked for.
        warmup: Points evaluated beforehand, each with its reward; ``None`` for a failed one.
        description: The task in words.
        optimum: About the best reward there is, for the one method that is told it.
    """

    low: float
    high: float
    n: int
    evaluations: int
    warmup: tuple[tuple[tuple[float, ...], float | None], ...] = ()
    description: str = ""
    optimum: float | None = None

    @property
    def start(self) -> tuple[float, ...] | None:
        """The best warm-up point, or ``None``."""
        scored = [(reward, params) for params, reward in self.warmup if reward is not None]
        return max(scored, key=lambda pair: pair[0])[1] if scored else None

    @property
    def rewards(self) -> list[float]:
        """The warm-up rewards that there are."""
        return [reward for _, reward in self.warmup if reward is not None]


# -- the model ----------------------------------------------------------------------------


class ModelMethod:
    """`LLMOptimizer` as a method, with the warm-up told beforehand.

    Args:
        problem: What to solve.
        client: The model.
        prompt: A prompt object or a shipped prompt's name.
        seed: Source of all randomness.
        batch_size: Points asked of the model in one request.
        partner: See `LLMOptimizer`.

    Attributes:
        last: The proposal asked last: its source, its explanation, its share of the costs.
    """

    def __init__(
        self,
        problem: Problem,
        client: Client,
        prompt: str | Prompt,
        seed: np.random.SeedSequence,
        batch_size: int = 1,
        partner: Partner | None = None,
    ) -> None:
        low, high = problem.low, problem.high
        box = spaces.Box(low, high, (problem.n,), dtype=np.float64)
        self._optimizer = LLMOptimizer(
            Space.from_gymnasium(box, decimals=decimals(low, high)),
            client,
            prompt,
            seed=int(seed.generate_state(1)[0]),
            warmup=0,
            total=len(problem.warmup) + problem.evaluations,
            description=problem.description,
            batch_size=batch_size,
            partner=partner,
        )
        for params, reward in problem.warmup:
            self._optimizer.tell(np.array(params), reward)
        self.last: Proposal | None = None

    @property
    def usage(self) -> Usage:
        """What the model has cost so far."""
        return self._optimizer.usage

    def ask(self) -> np.ndarray:
        """Return the next point; one model request for each batch."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)  # counted in every result
            params: np.ndarray = self._optimizer.ask()
        self.last = self._optimizer.pending[-1]
        return params

    def tell(self, params: Any, reward: float) -> None:
        """Report the reward."""
        self._optimizer.tell(params, reward)

    def tell_failure(self, params: Any, reason: str) -> None:
        """Report that there is no reward."""
        self._optimizer.tell_failure(params, reason)


def decimals(low: float, high: float) -> int:
    """Decimals shown to a model: one for the published box, more for a narrower one."""
    return max(1, 2 - math.floor(math.log10(high - low)))


@dataclass
class ShuffledRewards:
    """A prompt in which the complete trials have changed their rewards at random.

    An ablation: a method that does as well with it does not use what the rewards say.

    Attributes:
        prompt: The prompt that is shown such a history.
    """

    prompt: Prompt

    @property
    def name(self) -> str:
        """The prompt's name, marked."""
        return f"{self.prompt.name}-shuffled"

    def prepare(self, situation: Situation) -> Query:
        """Make the question for one situation; see `Prompt.prepare`."""
        history = situation.history
        rng = np.random.default_rng([situation.seed, situation.iteration])
        order = iter(rng.permutation(len(history.complete)))
        rewards = [t.rewards for t in history.complete]
        trials: tuple[Trial, ...] = tuple(
            replace(t, rewards=rewards[next(order)]) if t.state == "complete" else t
            for t in history.trials
        )
        return self.prompt.prepare(replace(situation, history=replace(history, trials=trials)))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""
        return {"name": self.name, "prompt": self.prompt.to_dict()}


# -- the rivals ---------------------------------------------------------------------------


class BipopCMA(CMA):
    """CMA-ES with BIPOP restarts (Hansen 2009, GECCO workshop on BBOB, section 2).

    Where a run has converged, the next one has either the doubled population of the last
    large run, or a small population with a small step size: whichever has used up fewer
    evaluations so far.
    """

    def __init__(
        self,
        low: float,
        high: float,
        n: int,
        seed: int | np.random.SeedSequence = 0,
        start: Sequence[float] | np.ndarray | None = None,
    ) -> None:
        self._spent = {"large": 0, "small": 0}
        self._regime: Literal["large", "small"] = "large"
        super().__init__(low, high, n, seed, start)
        self._default = self._largest = int(self._strategy.popsize)

    def _restart(self, ended: Any) -> Any:
        self._spent[self._regime] += int(ended.countevals)
        sigma = (self._high - self._low) / 6
        if self._spent["large"] <= self._spent["small"]:
            self._regime = "large"
            self._largest *= 2
            return self._begin(sigma, self._largest)
        self._regime = "small"
        ratio = self._largest / self._default / 2
        popsize = math.floor(self._default * max(ratio, 1.0) ** (self._rng.random() ** 2))
        return self._begin(sigma * 10 ** (-2 * self._rng.random()), popsize)


class ARS:
    """Augmented random search (Mania et al. 2018, arXiv 1803.07055, Algorithm 1, V1-t).

    The step sizes are shares of the box's width. Observations are not normalized (V2): a
    black box does not show them.

    Args:
        problem: What to solve. The search starts from the best warm-up point.
        seed: Source of all randomness.
        directions: Directions of one step, each evaluated both ways.
        top: Best directions that make the step.
        step: Step size α, as a share of the box's width.
        noise: Exploration ν, as a share of the box's width.
    """

    def __init__(
        self,
        problem: Problem,
        seed: np.random.SeedSequence,
        directions: int = 4,
        top: int = 2,
        step: float = 0.1,
        noise: float = 0.1,
    ) -> None:
        width = problem.high - problem.low
        self._low, self._high = problem.low, problem.high
        self._directions, self._top = directions, top
        self._step, self._noise = step * width, noise * width
        self._rng = np.random.default_rng(seed)
        middle = np.full(problem.n, (problem.low + problem.high) / 2)
        self._mean = middle if problem.start is None else np.array(problem.start)
        self._begin()

    def _begin(self) -> None:
        self._deltas = self._rng.standard_normal((self._directions, len(self._mean)))
        self._rewards: list[float | None] = []

    def ask(self) -> np.ndarray:
        """Return the next point: each direction forwards, then backwards."""
        number, backwards = divmod(len(self._rewards), 2)
        sign = -1 if backwards else 1
        point: np.ndarray = self._mean + sign * self._noise * self._deltas[number]
        return point.clip(self._low, self._high)

    def tell(self, params: Any, reward: float) -> None:
        """Report the reward; a full set of directions makes the step."""
        self._take(reward)

    def tell_failure(self, params: Any, reason: str) -> None:
        """Report that there is no reward: the direction is left out."""
        self._take(None)

    def _take(self, reward: float | None) -> None:
        self._rewards.append(reward)
        if len(self._rewards) < 2 * self._directions:
            return
        pairs = zip(self._rewards[::2], self._rewards[1::2], self._deltas, strict=True)
        sound = [(f, b, d) for f, b, d in pairs if f is not None and b is not None]
        used = sorted(sound, key=lambda pair: max(pair[0], pair[1]), reverse=True)[: self._top]
        deviation = float(np.std([r for f, b, _ in used for r in (f, b)])) if used else 0.0
        if deviation > 0:
            gradient = sum((f - b) * delta for f, b, delta in used)
            self._mean = self._mean + self._step / (len(used) * deviation) * gradient
            self._mean = self._mean.clip(self._low, self._high)
        self._begin()


class _Floor:
    """A reward for points that have none: below the worst one seen."""

    def __init__(self, rewards: Sequence[float]) -> None:
        self._worst = min(rewards, default=0.0)

    def see(self, reward: float) -> None:
        self._worst = min(self._worst, reward)

    @property
    def value(self) -> float:
        return self._worst - failure_gap(self._worst)


@contextlib.contextmanager
def _own_global_state(state: list[Any]) -> Iterator[None]:
    """Give a block its own state of NumPy's global generator, and leave others theirs."""
    outside = np.random.get_state()
    np.random.set_state(state[0])
    try:
        yield
    finally:
        state[0] = np.random.get_state()
        np.random.set_state(outside)


class Nevergrad:
    """One of Nevergrad's optimizers, told all warm-up points.

    Args:
        optimizer: Its name in Nevergrad's registry.
        problem: What to solve.
        seed: Source of all randomness.
    """

    def __init__(self, optimizer: str, problem: Problem, seed: np.random.SeedSequence) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of optional packages that it misses on import
            import nevergrad as ng

        own, shared = (int(s) for s in seed.generate_state(2))
        # Some of Nevergrad's optimizers draw from NumPy's global generator as well.
        self._state = [np.random.RandomState(shared).get_state()]
        middle = np.full(problem.n, (problem.low + problem.high) / 2)
        start = middle if problem.start is None else np.array(problem.start)
        self._floor = _Floor(problem.rewards)
        self._asked: Any = None
        with self._quietly():
            space = ng.p.Array(init=start, lower=problem.low, upper=problem.high)
            space.random_state = np.random.RandomState(own)
            self._optimizer = ng.optimizers.registry[optimizer](space, budget=problem.evaluations)
            for params, reward in problem.warmup:
                point = space.spawn_child(new_value=np.array(params))
                with contextlib.suppress(ng.errors.TellNotAskedNotSupportedError):
                    loss = -(self._floor.value if reward is None else reward)
                    self._optimizer.tell(point, loss)

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        with _own_global_state(self._state), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield

    def ask(self) -> np.ndarray:
        """Return the next point."""
        with self._quietly():
            self._asked = self._optimizer.ask()
        return np.array(self._asked.value, dtype=np.float64)

    def tell(self, params: Any, reward: float) -> None:
        """Report the reward."""
        self._floor.see(reward)
        with self._quietly():
            self._optimizer.tell(self._asked, -reward)

    def tell_failure(self, params: Any, reason: str) -> None:
        """Report that there is no reward."""
        with self._quietly():
            self._optimizer.tell(self._asked, -self._floor.value)


class Optuna:
    """One of Optuna's samplers, its study begun with all warm-up points.

    Args:
        sampler: ``"TPE"``, ``"CmaEs"`` or ``"GP"``.
        problem: What to solve.
        seed: Source of all randomness.
    """

    def __init__(self, sampler: str, problem: Problem, seed: np.random.SeedSequence) -> None:
        import optuna

        self._names = [f"p{i}" for i in range(problem.n)]
        one = optuna.distributions.FloatDistribution(problem.low, problem.high)
        self._space: dict[str, Any] = dict.fromkeys(self._names, one)
        number = int(seed.generate_state(1)[0])
        self._made: Any
        with self._quietly():
            if sampler == "TPE":
                self._made = optuna.samplers.TPESampler(seed=number)
            elif sampler == "GP":
                self._made = optuna.samplers.GPSampler(seed=number)
            else:
                start = problem.start
                self._made = optuna.samplers.CmaEsSampler(
                    x0=None if start is None else dict(zip(self._names, start, strict=True)),
                    sigma0=(problem.high - problem.low) / 6,
                    seed=number,
                    warn_independent_sampling=False,
                )
            self._study = optuna.create_study(direction="maximize", sampler=self._made)
            for params, reward in problem.warmup:
                state = optuna.trial.TrialState
                self._study.add_trial(
                    optuna.trial.create_trial(
                        state=state.FAIL if reward is None else state.COMPLETE,
                        params=dict(zip(self._names, params, strict=True)),
                        distributions=self._space,
                        value=reward,
                    )
                )
        self._failed = optuna.trial.TrialState.FAIL
        self._trial: Any = None

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        import optuna

        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            optuna.logging.set_verbosity(before)

    def ask(self) -> np.ndarray:
        """Return the next point."""
        with self._quietly():
            self._trial = self._study.ask(self._space)
        return np.array([self._trial.params[name] for name in self._names])

    def tell(self, params: Any, reward: float) -> None:
        """Report the reward."""
        with self._quietly():
            self._study.tell(self._trial, reward)

    def tell_failure(self, params: Any, reason: str) -> None:
        """Report that there is no reward."""
        with self._quietly():
            self._study.tell(self._trial, state=self._failed)


# -- the table ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Asking:
    """How a model is asked.

    Attributes:
        client: The model, or ``None`` where there is none.
        batch_size: Points asked in one request.
        max_tokens: Cap on an answer; ``None`` for the prompt's own.
    """

    client: Client | None = None
    batch_size: int = 1
    max_tokens: int | None = None


@dataclass(frozen=True)
class Entry:
    """One method of the benchmark.

    Attributes:
        label: What tables and pictures call it; ``{model}`` stands for the model's name.
        make: Makes it of problem, seed and how a model is asked.
        group: ``"model"``, ``"ablation"`` or ``"baseline"``.
        needs: Packages it needs.
        asks_model: Whether it sends requests to the model.
        asked: The model's prompt, and its partner; an ablation has those of the method that it
            is one of.
    """

    label: str
    make: Callable[[Problem, np.random.SeedSequence, Asking], Method]
    group: Literal["model", "ablation", "baseline"]
    needs: tuple[str, ...] = ()
    asks_model: bool = False
    asked: tuple[str, Partner | None] = ("", None)


def _model(
    label: str,
    prompt: str,
    group: Literal["model", "ablation"] = "model",
    *,
    shuffled: bool = False,
    partner: Partner | None = None,
) -> Entry:
    def make(problem: Problem, seed: np.random.SeedSequence, asking: Asking) -> Method:
        made = get_prompt(prompt, max_tokens=asking.max_tokens)
        made = ShuffledRewards(made) if shuffled else made
        return ModelMethod(problem, _client_of(asking), made, seed, asking.batch_size, partner)

    return Entry(label, make, group, _packages(partner), asks_model=True, asked=(prompt, partner))


def _packages(partner: Partner | None) -> tuple[str, ...]:
    return (partner,) if partner else ()


def _client_of(asking: Asking) -> Client:
    if asking.client is None:
        raise LLMOptError("this method needs a model: give one with --model")
    return asking.client


def _published(problem: Problem, seed: np.random.SeedSequence, asking: Asking) -> Method:
    """Make the published loop: everything in the order of time, one proposal a request."""
    prompt = get_prompt(
        "props",
        history="all",
        order="time",
        optimum=problem.optimum,
        max_tokens=asking.max_tokens,
    )
    return ModelMethod(problem, _client_of(asking), prompt, seed, 1)


def _sampler(
    label: str,
    client_class: type[Any],
    prompt: str,
    partner: Partner | None = None,
) -> Entry:
    def make(problem: Problem, seed: np.random.SeedSequence, asking: Asking) -> Method:
        return ModelMethod(problem, client_class(), prompt, seed, asking.batch_size, partner)

    return Entry(label, make, "ablation", _packages(partner), asked=(prompt, partner))


def _baseline(
    label: str, make: Callable[[Problem, np.random.SeedSequence], Method], *needs: str
) -> Entry:
    return Entry(label, lambda problem, seed, asking: make(problem, seed), "baseline", needs)


def _nevergrad(name: str) -> Entry:
    return _baseline(f"Nevergrad {name}", partial(Nevergrad, name), "nevergrad")


def _optuna(name: str, *needs: str) -> Entry:
    return _baseline(f"Optuna {name}", partial(Optuna, name), "optuna", *needs)


def _cma(kind: type[CMA], problem: Problem, seed: np.random.SeedSequence) -> Method:
    return kind(problem.low, problem.high, problem.n, seed, problem.start)


METHODS: Mapping[str, Entry] = {
    "llm-columns": _model("{model} (columns)", "columns"),
    "llm-levels": _model("{model} (levels)", "levels"),
    "llm-hybrid": _model("{model} (columns, with CMA-ES)", "columns", partner="cma"),
    "llm-pattern": _model("{model} (pattern)", "pattern"),
    "llm-props": _model("{model} (props)", "props"),
    "llm-props-ab": _model("{model} (props-ab)", "props-ab"),
    "llm-props-plus": _model("{model} (props-plus)", "props-plus"),
    "llm-props-critic": _model("{model} (props-critic)", "props-critic"),
    "llm-opro": _model("{model} (opro)", "opro"),
    "llm-published": Entry(
        "{model} (published, told the optimum)", _published, "model", asks_model=True
    ),
    "llm-shuffled": _model(
        "{model} (levels, shuffled rewards)", "levels", "ablation", shuffled=True
    ),
    "llm-columns-shuffled": _model(
        "{model} (columns, shuffled rewards)", "columns", "ablation", shuffled=True
    ),
    "columns-uniform": _sampler("no model (columns, uniform)", UniformGrammarClient, "columns"),
    "columns-gaussian": _sampler("no model (columns, Gaussian)", GaussianGrammarClient, "columns"),
    "columns-slope": _sampler("no model (columns, along the slope)", SlopeGrammarClient, "columns"),
    "columns-network": _sampler("no model (columns, small network)", NetworkClient, "columns"),
    "levels-uniform": _sampler("no model (levels, uniform)", UniformGrammarClient, "levels"),
    "levels-gaussian": _sampler("no model (levels, Gaussian)", GaussianGrammarClient, "levels"),
    "hybrid-uniform": _sampler(
        "no model (columns, uniform, with CMA-ES)", UniformGrammarClient, "columns", "cma"
    ),
    "hybrid-gaussian": _sampler(
        "no model (columns, Gaussian, with CMA-ES)", GaussianGrammarClient, "columns", "cma"
    ),
    "pattern-uniform": _sampler("no model (pattern, uniform)", UniformGrammarClient, "pattern"),
    "pattern-gaussian": _sampler("no model (pattern, Gaussian)", GaussianGrammarClient, "pattern"),
    "cma": _baseline("CMA-ES", partial(_cma, CMA), "cma"),
    "cma-bipop": _baseline("CMA-ES (BIPOP)", partial(_cma, BipopCMA), "cma"),
    "ng-cma": _nevergrad("CMA"),
    "ng-ngopt": _nevergrad("NGOpt"),
    "ng-oneplusone": _nevergrad("OnePlusOne"),
    "ng-de": _nevergrad("DE"),
    "ng-pso": _nevergrad("PSO"),
    "optuna-tpe": _optuna("TPE"),
    "optuna-cmaes": _optuna("CmaEs", "cmaes"),
    "optuna-gp": _optuna("GP", "torch", "scipy"),
    "ars": _baseline("ARS", ARS),
    "random": _baseline(
        "random search",
        lambda problem, seed: RandomSearch(problem.low, problem.high, problem.n, seed),
    ),
}
"""Every method by its name, in the order of tables."""


def check_method(name: str) -> Entry:
    """Return a method's entry if it can run here.

    Raises:
        LLMOptError: There is no such method, or a package is missing.
    """
    entry = METHODS.get(name)
    if entry is None:
        raise LLMOptError(f"unknown method {name!r}: {did_you_mean(name, METHODS)}")
    missing = [package for package in entry.needs if find_spec(package) is None]
    if missing:
        raise LLMOptError(
            f"the method {name!r} needs {' and '.join(missing)}, not installed here: "
            f"pip install {' '.join(missing)}, or leave the method out"
        )
    return entry


def make_method(
    name: str,
    problem: Problem,
    seed: np.random.SeedSequence,
    *,
    client: Client | str | None = None,
    batch_size: int = 1,
    max_tokens: int | None = None,
) -> Method:
    """Make a method by name.

    Args:
        name: A key of `METHODS`.
        problem: What to solve.
        seed: Source of all randomness.
        client: The model, for the methods that ask one.
        batch_size: Points asked of a model in one request.
        max_tokens: Cap on a model's answer; ``None`` for the prompt's own.

    Raises:
        LLMOptError: There is no such method, a package is missing, or a model is.
    """
    entry = check_method(name)
    made = get_client(client) if isinstance(client, str) else client
    return entry.make(problem, seed, Asking(made, batch_size, max_tokens))
