"""CMA-ES (Hansen 2016, arXiv 1604.00772) of the package `cma`, as a partner and with ask/tell.

The partner is a function of the history. It receives the evaluated points of all sources. A point
of the model is injected (Hansen 2011, arXiv 1110.4181): its step is cut to the length that
CMA-ES's own steps may have, which keeps the search in a trust region.
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Callable, Hashable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.random import Generator

from llmopt.errors import LLMOptError, SpaceError, install_hint
from llmopt.history import (
    FAILED,
    Direction,
    Follower,
    History,
    Proposal,
    Source,
    Trial,
    rank,
)
from llmopt.space import Space, Value
from llmopt.space.dimensions import Categorical
from llmopt.turns import several_objectives

_LARGEST = 1e300  # loss, so that worse ones still have finite numbers
_SIGMA = 1 / 6
_TRIES = 100
_PATIENCE = 10  # generations of failures


def _require_cma() -> None:
    if find_spec("cma") is None:
        raise LLMOptError(
            f"CMA-ES needs the package `cma`: {install_hint('bench')}, or leave CMA-ES out"
        )


def _strategy(
    mean: np.ndarray,
    sigma: float,
    bounds: tuple[float, float],
    randn: Callable[..., np.ndarray],
    **options: Any,
) -> Any:
    """Return the package's strategy, quiet, and with no draw from a global generator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of plotting packages that it misses on import
        import cma

    low, high = bounds
    return cma.CMAEvolutionStrategy(
        mean,
        sigma,
        {
            "bounds": [[low] * len(mean), [high] * len(mean)],
            # NaN keeps it from seeding NumPy's global generator, whose draws it replaces.
            "seed": math.nan,
            "randn": randn,
            "verbose": -9,
            "verb_log": 0,
            **options,
        },
    )


def _tell(strategy: Any, points: Sequence[np.ndarray], losses: Sequence[float]) -> bool:
    """Tell a generation, and return whether the strategy has converged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a flat fitness is no news in policy search
        strategy.tell(points, losses)
        return bool(strategy.stop())


def rank_of(trial: Trial, direction: Direction) -> tuple[float, float]:
    """Return `rank` with finite losses of complete trials."""
    found = rank(trial, direction)
    return (found[0], min(max(found[1], -_LARGEST), _LARGEST)) if found < FAILED else FAILED


def failure_gap(worst: float) -> float:
    """Return the distance of a failed point from the worst known value.

    It is small, because a huge value would distort models of the values.
    """
    return max(1.0, abs(worst))


class CMAPartner(Follower):
    """CMA-ES as a function of the history.

    The first proposal starts it, at the best point recorded until then (the middle of the space, if
    there is none), with a sixth of each range as standard deviation.
    From then on every recorded point counts towards a generation. Once converged, it
    begins again from a random point.

    A failed point ranks last in its generation. A quarter of a generation may have
    failed; failures beyond that are not counted, since they would stand among the points that
    the mean moves to. Where nothing but failures came for ten generations, it begins again.

    `seed` decides where it begins again; ``None`` takes the first trial for it, so that processes
    that share a history agree.
    """

    source: Source = "cma"

    def __init__(self, seed: int | None) -> None:
        _require_cma()
        self.seed = seed
        self._space: Any = None  # that of the last `propose`
        super().__init__()

    @staticmethod
    def check(space: Space) -> None:
        """Raise if CMA-ES cannot search a space."""
        if space.conditional:
            name = next(n for i, n in enumerate(space.names) if space.condition(i))
            raise SpaceError(
                f"{name!r} is not in every point, and partner='cma' searches a fixed set of "
                "numbers: leave `partner` out, or take partner='network'"
            )
        for name, dimension in zip(space.names, space.dimensions, strict=True):
            if isinstance(dimension, Categorical) and dimension.count > 1:
                raise SpaceError(
                    f"{name!r} is a choice, and partner='cma' searches numbers only: leave "
                    "`partner` out, or search this choice with another optimizer"
                )

    def _enter(self, space: Space) -> None:
        """Search another space from now on."""
        if space is self._space or space == self._space:
            return
        self.check(space)
        counts = np.array([d.count for d in space.dimensions])
        self._free = np.flatnonzero(counts > 1)
        # The package fails on a single dimension: a second one goes along, to no effect.
        self._size = max(2, len(self._free))
        # Less than a fifth of a step would draw the same value again and again.
        self._least = np.zeros(self._size)
        # On a logarithmic scale the first step is the widest.
        low = tuple(d.decode(0.0) for d in space.dimensions)
        self._least[: len(self._free)] = 0.2 * space.steps(low)[self._free]
        self._space = space
        self._reset()

    def _reset(self) -> None:
        super()._reset()
        # Rank and place of the best point recorded before its first proposal.
        self._start: tuple[tuple[float, float], np.ndarray] | None = None
        self._begun = False
        self._first = self._missed = 0
        self._strategy: Any = None
        self._points: list[np.ndarray] = []
        self._ranks: list[tuple[float, float]] = []
        self._rng = np.random.default_rng(0)

    def propose(
        self, space: Space, history: History, rng: Generator, n: int, seen: set[Hashable]
    ) -> list[Proposal]:
        """Return at most `n` new points with source ``"cma"``; see `Partner.propose`.

        There are fewer where a small space, or one with constraints, has few new points near
        the mean.
        """
        if len(history.directions) > 1:
            raise ValueError(several_objectives(len(history.directions)))
        self._enter(space)
        self._update(history)
        if self._strategy is None:
            self._begin(self._start and self._start[1])
        tried = set(seen)
        proposals: list[Proposal] = []
        self._rng = rng
        for _ in range(n + _TRIES):
            if len(proposals) == n:
                break
            values = self._decode(self._strategy.ask(1)[0])
            if space.candidates is not None:
                values = space.candidates.nearest(values, tried, equal_first=False)
            key = space.key(values)
            if key not in tried and space.admits(values):
                tried.add(key)
                proposals.append(Proposal(values, "cma"))
        return proposals

    # -- reading the history --------------------------------------------------------------

    def _add(self, trial: Trial, history: History) -> None:
        rank = rank_of(trial, history.directions[0])
        if not self._known:
            self._first = zlib.crc32(repr(trial.values).encode())
        if trial.state == "withdrawn":
            return
        if trial.source in ("user", "warmup") and not self._begun:
            if rank < FAILED and (self._start is None or rank < self._start[0]):
                self._start = rank, self._encode(trial)
                self._strategy = None
            return
        if self._strategy is None:
            self._begin(self._start and self._start[1])
        self._begun = True
        self._missed = self._missed + 1 if rank == FAILED else 0
        if self._missed >= _PATIENCE * self._strategy.popsize:
            self._begin_again()
            return
        if rank == FAILED and self._ranks.count(FAILED) >= self._strategy.popsize // 4:
            return
        self._points.append(self._encode(trial))
        self._ranks.append(rank)
        if len(self._points) == self._strategy.popsize:
            self._learn()

    def _learn(self) -> None:
        # Treat all points in the same way, whether this process or a killed one asked them.
        self._strategy.sent_solutions.clear()
        converged = _tell(self._strategy, self._points, losses_of(self._ranks))
        self._points, self._ranks = [], []
        if converged:
            self._begin_again()
        else:
            self._open()

    def _begin_again(self) -> None:
        self._points, self._ranks, self._missed = [], [], 0
        seed = self._first if self.seed is None else self.seed
        self._begin(np.random.default_rng([seed, len(self._known)]).random(self._size))

    def _begin(self, mean: np.ndarray | None) -> None:
        self._strategy = _strategy(
            np.full(self._size, 0.5) if mean is None else mean,
            _SIGMA,
            (0.0, 1.0),
            lambda *shape: self._rng.standard_normal(shape),
            minstd=self._least,
        )
        self._open()

    def _open(self) -> None:
        """Ask the package for one point, and drop it: it takes no rewards before it was asked."""
        self._rng = np.random.default_rng(0)
        self._strategy.ask(1)

    # -- points ---------------------------------------------------------------------------

    def _encode(self, trial: Trial) -> np.ndarray:
        point = np.full(self._size, 0.5)
        point[: len(self._free)] = self._space.encode(trial.values)[self._free]
        return point

    def _decode(self, point: np.ndarray) -> tuple[Value, ...]:
        units = np.zeros(len(self._space))
        units[self._free] = point[: len(self._free)]
        values: tuple[Value, ...] = self._space.decode(units)
        return values

    def __getstate__(self) -> dict[str, Any]:
        # What was read from the history is read again: the package's state is not for pickling.
        return {"seed": self.seed}


def losses_of(ranks: Sequence[tuple[float, float]]) -> list[float]:
    """Return one number for each rank, in the same order: feasible, infeasible, failed."""
    worst = max((loss for violation, loss in ranks if violation == 0), default=0.0)
    gap = failure_gap(worst)
    return [
        loss
        if violation == 0
        else worst + gap * (1 + (violation / (1 + violation) if violation < math.inf else 2))
        for violation, loss in ranks
    ]


class CMA:
    """CMA-ES of the `cma` package, given the negative reward.

    The first mean is the best warm-up point, the first standard deviation a sixth of the
    box's width (2 for the published box), the population size the package's default. Where
    the package says that it has converged, it starts again from a uniform point of the box
    with a fresh step size, so that it can use its whole budget. A point without a reward
    counts as worse than all others of its generation.
    """

    def __init__(
        self,
        low: float,
        high: float,
        n: int,
        seed: int | np.random.SeedSequence = 0,
        start: Sequence[float] | np.ndarray | None = None,
    ) -> None:
        _require_cma()
        self._low, self._high, self._n = low, high, n
        # The package fails on a single dimension: a second one goes along, to no effect.
        self._dimensions = max(n, 2)
        self._rng = np.random.default_rng(seed)
        self._mean = np.full(self._dimensions, (low + high) / 2)
        if start is not None:
            self._mean[:n] = np.clip(start, low, high)
        self._generation: list[np.ndarray] = []
        self._rewards: list[float | None] = []
        self._strategy = self._begin()

    def _begin(self, sigma: float | None = None, popsize: int | None = None) -> Any:
        return _strategy(
            self._mean,
            (self._high - self._low) / 6 if sigma is None else sigma,
            (self._low, self._high),
            lambda *shape: self._rng.standard_normal(shape),
            **({} if popsize is None else {"popsize": popsize}),
        )

    def ask(self) -> np.ndarray:
        """Return the next ``(n,)`` point of the generation."""
        if not self._generation:
            self._generation = [np.array(x) for x in self._strategy.ask()]
            self._rewards = []
        point: np.ndarray = self._generation[len(self._rewards)][: self._n].copy()
        return point

    def tell(self, params: Any, reward: float) -> None:
        """Report the reward; a full generation updates the distribution."""
        self._take(reward)

    def tell_failure(self, params: Any, reason: str) -> None:
        """Report that there is no reward."""
        self._take(None)

    def _take(self, reward: float | None) -> None:
        if not self._generation:
            raise LLMOptError("tell without a point asked: call ask first, then tell its reward")
        self._rewards.append(reward)
        if len(self._rewards) < len(self._generation):
            return
        known = [r for r in self._rewards if r is not None]
        worst = min(known, default=0.0)
        floor = worst - failure_gap(worst)
        losses = [-(floor if r is None else r) for r in self._rewards]
        converged = _tell(self._strategy, self._generation, losses)
        self._generation = []
        if converged:
            self._mean = self._rng.uniform(self._low, self._high, self._dimensions)
            self._strategy = self._restart(self._strategy)

    def _restart(self, ended: Any) -> Any:
        """Return the strategy that follows one that has converged."""
        return self._begin()
