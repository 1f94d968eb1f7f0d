"""A numeric optimizer beside the model, and the budget to whoever helps more.

Both are functions of the history. CMA-ES (Hansen 2016, arXiv 1604.00772) is told every point
that was evaluated, whoever proposed it: a point of the model is injected (Hansen 2011,
arXiv 1110.4181), its step cut to the length that CMA-ES's own steps may have, which keeps the
search in a trust region. The model in turn is shown the points of CMA-ES among its elites. A
bandit gives each its share of the next points by how often its last points entered the ten best.
"""

from __future__ import annotations

import math
import warnings
from bisect import insort
from collections.abc import Hashable, Sequence
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

from llmopt.errors import LLMOptError, SpaceError
from llmopt.history import History, Proposal, Trial
from llmopt.space import Space, Value
from llmopt.space.dimensions import Categorical
from llmopt.space.space import step_lengths

Partner = Literal["cma"]

_SIGMA = 1 / 6
_BEST, _MEMORY, _PRIOR, _POWER = 10, 0.97, 0.5, 3
_LEAST, _MOST = 0.15, 0.9  # of the shares of CMA-ES
_TRIES = 100
_LARGEST = 1e300  # so that worse ones still have finite numbers
_FAILED = (math.inf, math.inf)
_ARMS = {"llm": "llm", "fallback": "llm", "cma": "cma"}


class Bandit:
    """How often the points of each arm were good of late.

    A point is good if it enters the best ten of all points told before it (the better half,
    where there are fewer than twenty). Older ones count less, by 3 % with each point of either
    arm. The shares are as the cubes of the rates of good points. The model gets a tenth at
    least. CMA-ES gets a little more: its points also adapt its distribution, which pays only
    later.
    """

    def __init__(self) -> None:
        self._top: list[tuple[float, float]] = []  # ranks of the best points, ascending
        self._told = 0
        self._good = {"llm": 0.0, "cma": 0.0}
        self._given = {"llm": 0.0, "cma": 0.0}

    def take(self, arm: str | None, rank: tuple[float, float]) -> None:
        """Count one point.

        Args:
            arm: ``"llm"``, ``"cma"``, or ``None`` for a point of neither.
            rank: See `_rank`; infinite for a failed point.
        """
        place = min(_BEST, self._told // 2)
        good = place > 0 and rank < self._top[place - 1]
        if rank < _FAILED:
            insort(self._top, rank)
            del self._top[_BEST:]
            self._told += 1
        if arm is None:
            return
        for counts in (self._good, self._given):
            for name in counts:
                counts[name] *= _MEMORY
        self._good[arm] += good
        self._given[arm] += 1

    @property
    def share(self) -> float:
        """Share of the next points that CMA-ES is to give."""
        model, cma = (
            ((self._good[arm] + _PRIOR) / (self._given[arm] + 4 * _PRIOR)) ** _POWER
            for arm in ("llm", "cma")
        )
        return min(max(cma / (model + cma), _LEAST), _MOST)


class CMAPartner:
    """CMA-ES as a function of the history, and its share of the points.

    It begins with the first point that was proposed, from the best point told before (the
    middle of the space, if there is none) with a sixth of each range as standard deviation.
    From then on every told point counts towards a generation. Where it has converged, it
    begins again from a random point.

    Args:
        space: The search space, with no `Categorical`.
        seed: Decides where it begins again.

    Raises:
        LLMOptError: The package `cma` is not installed.
        SpaceError: The space has choices.
    """

    def __init__(self, space: Space, seed: int) -> None:
        for name, dimension in zip(space.names, space.dimensions, strict=True):
            if isinstance(dimension, Categorical):
                raise SpaceError(
                    f"{name!r} is a choice, and partner='cma' searches numbers only: leave "
                    "`partner` out, or search this choice with another optimizer"
                )
        if find_spec("cma") is None:
            raise LLMOptError(
                "partner='cma' needs the package `cma`: pip install \"llmopt[bench]\", or leave "
                "`partner` out"
            )
        self.space = space
        self.seed = seed
        counts = np.array([d.count for d in space.dimensions])
        self._free = np.flatnonzero(counts > 1)
        # The package fails on a single dimension: a second one goes along, to no effect.
        self._size = max(2, len(self._free))
        # Less than a fifth of a step would draw the same value again and again.
        self._least = np.zeros(self._size)
        # On a logarithmic scale the first step is the widest.
        low = tuple(d.low for d in space.dimensions if not isinstance(d, Categorical))
        self._least[: len(self._free)] = 0.2 * step_lengths(space, low)[self._free]
        self._forget()

    def _forget(self) -> None:
        self._read = 0
        self._last: Trial | None = None
        self._bandit = Bandit()
        # Rank and place of the best point told before any was proposed.
        self._start: tuple[tuple[float, float], np.ndarray] | None = None
        self._begun = False
        self._strategy: Any = None
        self._points: list[np.ndarray] = []
        self._ranks: list[tuple[float, float]] = []
        self._rng = np.random.default_rng(0)

    def propose(
        self, history: History, rng: np.random.Generator, n: int, seen: set[Hashable]
    ) -> list[Proposal]:
        """Return CMA-ES's share of the next points; the model is to give the others.

        Args:
            history: What was tried, with one objective.
            rng: Source of all randomness; advanced.
            n: Points wanted of both together.
            seen: Keys (`Space.key`) of the points not to propose again; the new ones are
                added.

        Returns:
            At most `n` proposals with source ``"cma"``.
        """
        self._follow(history)
        wanted = math.floor(n * self._bandit.share + rng.random())
        if self._strategy is None and wanted:
            self._begin(self._start and self._start[1])
        found: list[Proposal] = []
        self._rng = rng
        # Only where a space is small does a point come again: the model then gives it.
        for _ in range(wanted + _TRIES if wanted else 0):
            if len(found) == wanted:
                break
            values = self._decode(self._strategy.ask(1)[0])
            key = self.space.key(values)
            if key not in seen:
                seen.add(key)
                found.append(Proposal(values, "cma"))
        return found

    # -- reading the history --------------------------------------------------------------

    def _follow(self, history: History) -> None:
        trials = history.trials
        known = self._read == 0 or (
            self._read <= len(trials) and trials[self._read - 1] is self._last
        )
        if not known:
            self._forget()
        sign = 1.0 if history.directions[0] == "minimize" else -1.0
        try:
            for trial in trials[self._read :]:
                self._take(trial, sign)
                self._last = trial
                self._read += 1
        except BaseException:  # an interrupt, say: half a trial may be known
            self._forget()
            raise

    def _take(self, trial: Trial, sign: float) -> None:
        rank = _rank(trial, sign)
        arm = _ARMS.get(trial.source)
        self._bandit.take(arm, rank)
        if arm is None and not self._begun:
            if rank < _FAILED and (self._start is None or rank < self._start[0]):
                self._start = rank, self._encode(trial)
                self._strategy = None
            return
        if self._strategy is None:
            self._begin(self._start and self._start[1])
        self._begun = True
        self._points.append(self._encode(trial))
        self._ranks.append(rank)
        if len(self._points) == self._strategy.popsize:
            self._learn()

    def _learn(self) -> None:
        # All points are to be treated alike, whether asked by this process or by a killed one.
        self._strategy.sent_solutions.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a flat fitness is no news in policy search
            self._strategy.tell(self._points, _losses(self._ranks))
            converged = bool(self._strategy.stop())
        self._points, self._ranks = [], []
        if converged:
            self._begin(np.random.default_rng([self.seed, self._read]).random(self._size))
        else:
            self._open()

    def _begin(self, mean: np.ndarray | None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of plotting packages that it misses on import
            import cma

        self._strategy = cma.CMAEvolutionStrategy(
            np.full(self._size, 0.5) if mean is None else mean,
            _SIGMA,
            {
                "bounds": [[0.0] * self._size, [1.0] * self._size],
                "minstd": self._least,
                # NaN keeps it from seeding NumPy's global generator, whose draws it replaces.
                "seed": math.nan,
                "randn": lambda *shape: self._rng.standard_normal(shape),
                "verbose": -9,
                "verb_log": 0,
            },
        )
        self._open()

    def _open(self) -> None:
        """Ask for a point that nobody gets: the package wants one before it is told any."""
        self._rng = np.random.default_rng(0)
        self._strategy.ask(1)

    # -- points ---------------------------------------------------------------------------

    def _encode(self, trial: Trial) -> np.ndarray:
        point = np.full(self._size, 0.5)
        point[: len(self._free)] = self.space.encode(trial.values)[self._free]
        return point

    def _decode(self, point: np.ndarray) -> tuple[Value, ...]:
        units = np.zeros(len(self.space))
        units[self._free] = point[: len(self._free)]
        return self.space.decode(units)

    def __getstate__(self) -> dict[str, Any]:
        # What was read from the history is read again: the package's state is not for pickling.
        return {"space": self.space, "seed": self.seed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def _rank(trial: Trial, sign: float) -> tuple[float, float]:
    """Return what orders trials, best first: violation, then loss."""
    if trial.state != "complete" or trial.rewards is None:
        return _FAILED
    loss = sign * trial.rewards[0]
    return trial.constraint_violation, min(max(loss, -_LARGEST), _LARGEST)


def _losses(ranks: Sequence[tuple[float, float]]) -> list[float]:
    """Return one number for each rank, in the same order: feasible, infeasible, failed."""
    worst = max((loss for violation, loss in ranks if violation == 0), default=0.0)
    step = max(1.0, abs(worst))
    return [
        loss
        if violation == 0
        else worst + step * (1 + (violation / (1 + violation) if violation < math.inf else 2))
        for violation, loss in ranks
    ]
