"""The history of a search: trials, their order, and their cost."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias

import numpy as np

from llmopt.data import NO_DATA, TrialData
from llmopt.two_way import two_way
from llmopt.util.text import clean, short

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # which every type checker brings

    from llmopt.client.base import Reply
    from llmopt.space import Value

    Params = TypeVar("Params", default=Any)
else:
    from typing import TypeVar

    Params = TypeVar("Params")

FAILED = (math.inf, math.inf)
"""The rank of a trial that has no reward."""

Direction = Literal["maximize", "minimize"]
State = Literal["complete", "failed", "pruned", "withdrawn"]
Kind = Literal["search", "finalist", "imported"]
Source: TypeAlias = str
"""Who proposed a point: ``"warmup"``, ``"llm"``, ``"drawn"`` (from a model's distribution),
``"fallback"``, a partner's name, or ``"user"``."""

_SOURCE = re.compile("[a-z][a-z0-9_-]{0,31}")

RANDOM_SOURCES: tuple[Source, ...] = ("warmup", "fallback")
"""Sources of points that are sampled at random, or given before the first request."""


def is_source(value: Any) -> bool:
    """Return whether a value of a file can be the source of a point."""
    return isinstance(value, str) and _SOURCE.fullmatch(value) is not None


@dataclass(frozen=True)
class Proposal:
    """A point that `ask` returned and that has no result yet.

    Attributes:
        values: Flat values, one for each of the space's dimensions, in their order.
        source: ``"warmup"`` (sampled or given before the first request), ``"llm"``
            (read from a model's reply), ``"drawn"`` (sampled by the prompt from the best trials,
            without a model: see `ColumnsPrompt`), ``"fallback"`` (sampled at random because the
            model did not deliver); for a partner's point, ``"cma"`` (CMA-ES), ``"network"`` (the
            small network) or ``"sampler"`` (an Optuna sampler).
        explanation: The model's explanation, if there is one.
        prompt_tokens: This proposal's share of the prompt tokens of its requests.
        completion_tokens: Likewise for completion tokens.
        seconds: Likewise for the model's wall-clock seconds.
        clipped: Whether an out-of-range value was moved to its bound.
        seed: The seed to evaluate it with, in a search with ``seeded=True``.
        asked: Which point of all that `ask` returned it is, from 1; 0 for none yet.
    """

    values: tuple[Value, ...]
    source: Source
    explanation: str = ""
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0
    seconds: float = 0.0
    clipped: bool = False
    seed: int | None = None
    asked: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "explanation", clean(self.explanation))  # untrusted text

    def with_words(self, words: str) -> Proposal:
        """Return the proposal with what a user said of it before the model's explanation."""
        said = " ".join(words.split())  # on one line, so that no heading begins in it
        return replace(self, explanation=f"{said}\n{self.explanation}".rstrip()) if said else self


@dataclass(frozen=True)
class Trial(Generic[Params]):
    """One evaluated point; the type `Params` of `params` is the form of the given space.

    Attributes:
        number: Position in the history, counted from 0, in the order of recording.
            `trials_dataframe` shows it; prompts and reports count from 1. In a `History` that
            merges repeats, the position of the point.
        params: The parameters in the form the space was given in.
        values: The parameters as flat values, one per dimension of the space.
        rewards: One number for each objective; ``None`` for a failed trial. For a pruned
            trial, the last reported value.
        state: ``"complete"``, ``"failed"``, ``"pruned"``, or ``"withdrawn"``: it never happened.
        feedback: Words that came with the reward; for a failed or withdrawn trial, the reason.
        source: See `Proposal`; ``"user"`` for a point that `ask` did not return, or not again after
            it was measured. A finalist has the source of its point.
        explanation: The model's explanation of the point.
        prompt_tokens: Share of the prompt tokens of the requests behind this point.
        completion_tokens: Likewise for completion tokens.
        seconds: Likewise for the model's wall-clock seconds.
        constraint_violation: Total constraint violation, by the constraints that hold now; 0 means
            feasible.
        stderr: Standard error of the reward, if known: of one measurement the recorded one, of a
            repeated point the estimate of `History.errors`. For several objectives a tuple.
        evaluations: Number of evaluations of the point; `rewards` is their mean. 0 of a number that
            was withdrawn, and whose measurement is that of another point now.
        samples: The numbers whose mean is the reward, if recorded: one for each seeded initial
            state, in the same order for every point.
        kind: ``"search"``; ``"finalist"`` for a re-evaluation of a best point at the end of a
            noisy search; ``"imported"`` for a trial of an earlier search.
        clipped: Whether an out-of-range value was moved to its bound.
        data: Named arrays that the evaluation recorded: a mapping that is read on first use, empty
            if there are none. A repeated point has the arrays of its last evaluation.
        seed: The recorded seed of its evaluation; ``None`` for a repeated point.
        ties: Numbers that break ties between equal scores of programs; see `CodeOptimizer.tell`.
        parts: Named parts of the reward, or other numbers beside it, if recorded. Those of a
            repeated point are means over the measurements that have them.
        part_counts: Of a repeated point, the number of measurements with each part that others
            lack.
        instead_of: Flat values of the asked point that it was measured in place of, if any.
        corrected: How often its result was replaced; see `LLMOptimizer.tell`.
        revised: Whether a correction changed its rewards or that it failed, and not only its words,
            parts or point.
        old_rewards: The rewards before each correction, oldest first, and before it was withdrawn;
            ``()`` where it had failed.
        old_points: Its flat values before each correction to another point, oldest first.
        asked: See `Proposal`.
        was: Of a withdrawn trial, what was recorded of it; a correction keeps of it what it would
            have kept otherwise.
        measured_violation: The part of `constraint_violation` that its evaluation reported.
        origin: Which trial of which search it is; see `llmopt.origin`. Empty in searches of older
            files, and for a mean of several trials.
        revisions: How often it was corrected, withdrawn or restored, by search.
        base: Of a trial that was changed here, what it was when it was recorded or last imported.
        measurements: Of a point in a search that repeats points, the numbers from 0 of its trials:
            those of `LLMOptimizer.trials`, ``replaces=`` and ``withdraw(trial=)``.
    """

    number: int
    params: Params = field(compare=False)  # `values` says the same, and arrays do not compare
    values: tuple[Value, ...]
    rewards: tuple[float, ...] | None
    state: State = "complete"
    feedback: str = ""
    source: Source = "user"
    explanation: str = ""
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0
    seconds: float = 0.0
    constraint_violation: float = 0.0
    stderr: float | tuple[float | None, ...] | None = None
    evaluations: int = 1
    samples: tuple[float, ...] = ()
    kind: Kind = "search"
    clipped: bool = False
    data: TrialData = NO_DATA
    seed: int | None = None
    ties: tuple[float, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict, hash=False)
    part_counts: Mapping[str, int] = field(default_factory=dict, hash=False)
    instead_of: tuple[Value, ...] | None = None
    corrected: int = 0
    revised: bool = False
    old_rewards: tuple[tuple[float, ...], ...] = ()
    old_points: tuple[tuple[Value, ...], ...] = ()
    asked: int = field(default=0, compare=False)
    was: Trial[Params] | None = None
    measured_violation: float = 0.0
    origin: str = field(default="", compare=False)
    revisions: Mapping[str, int] = field(default_factory=dict, compare=False)
    base: Trial[Params] | None = field(default=None, compare=False, repr=False)
    measurements: tuple[int, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        found = self.rewards if self.rewards is None or len(self.rewards) > 1 else self.rewards[0]
        state = f"reward {found}" if self.state == "complete" else self.state
        if self.constraint_violation > 0:
            state += f", constraints violated by {self.constraint_violation:g}"
        return f"Trial({self.number}, {short(self.params)}, {state}, {self.source})"

    def __post_init__(self) -> None:
        for name in ("feedback", "explanation"):  # untrusted text, from any file
            object.__setattr__(self, name, clean(getattr(self, name)))

    @property
    def imported(self) -> bool:
        """Whether it was imported, and the search had not proposed its point."""
        return self.kind == "imported" and self.source == "user"

    @property
    def unplanned(self) -> bool:
        """Whether it is none of the planned evaluations: imported or withdrawn."""
        return self.imported or self.state == "withdrawn"

    @property
    def errors(self) -> tuple[float | None, ...]:
        """The standard error of each reward, ``None`` where it is not known."""
        return each_error(self.stderr, len(self.rewards or (0,)))

    @property
    def reward(self) -> float | tuple[float, ...] | None:
        """The recorded reward: a number, a tuple of them, or ``None`` if failed."""
        if self.rewards is None:
            return None
        return self.rewards[0] if len(self.rewards) == 1 else self.rewards


def each_error(stderr: Any, objectives: int) -> tuple[float | None, ...]:
    """Return the standard error of each objective; a number is that of the first one."""
    if isinstance(stderr, (list, tuple)):
        return tuple(stderr)
    return (stderr, *[None] * (objectives - 1))


def joined(errors: Sequence[float | None]) -> float | tuple[float | None, ...] | None:
    """Return the standard errors of all objectives as `Trial.stderr` has them."""
    if all(error is None for error in errors):
        return None
    return errors[0] if len(errors) == 1 else tuple(errors)


def proposed(trial: Trial) -> dict[str, Any]:
    """Return who proposed a trial, and what was said of it: the fields of its `Proposal`."""
    return {f.name: getattr(trial, f.name) for f in fields(Proposal)}


def rank(trial: Trial, direction: Direction) -> tuple[float, float]:
    """Return the sort key of a single evaluation, lowest first: violation, then loss.

    The first objective counts, and a failed trial comes last.
    """
    if trial.state != "complete" or trial.rewards is None:
        return FAILED
    reward = trial.rewards[0]
    return trial.constraint_violation, reward if direction == "minimize" else -reward


def without_withdrawn(trials: Iterable[Trial[Params]]) -> list[Trial[Params]]:
    """Return the trials that happened, in their order."""
    return [trial for trial in trials if trial.state != "withdrawn"]


@dataclass(frozen=True)
class History:
    """The trials and the pending points. Immutable.

    Attributes:
        trials: Every trial, in the order of recording.
        pending: Flat values of the points without a result yet.
        dropped: Likewise of the points that were withdrawn for a reason before they had a result,
            each with the reason; but not if they are in the history again.
        directions: One direction for each objective.
        noisy: Whether repeating a point may give another reward; `rank` then takes the spread into
            account. True for a `merged` history.
        metrics: The names of the objectives; empty if unknown.
        places: See `State.places`.
        measured: Of a `merged` history, the measurements, by number.
    """

    trials: tuple[Trial, ...] = ()
    pending: tuple[tuple[Value, ...], ...] = ()
    directions: tuple[Direction, ...] = ("maximize",)
    noisy: bool = False
    metrics: tuple[str, ...] = ()
    places: tuple[tuple[int, ...], ...] = ()
    dropped: tuple[tuple[tuple[Value, ...], str], ...] = ()
    measured: tuple[Trial, ...] = field(default=(), repr=False, compare=False)

    @cached_property
    def complete(self) -> tuple[Trial, ...]:
        """The trials with rewards that count for ranking, in the order of telling."""
        return tuple([t for t in self.trials if t.state == "complete"])  # a list is quicker

    @cached_property
    def failed(self) -> tuple[Trial, ...]:
        """The trials that have no usable reward, in the order of telling."""
        return tuple(t for t in self.trials if t.state == "failed")

    def rank(self, trial: Trial) -> tuple[float, float]:
        """Return the sort key of trials, lowest first: violation, then loss.

        This is the only order of trials with one objective: `best`, `ranked` and all displays
        follow it. If evaluations are `noisy`, the loss is the mean plus its standard error, so that
        a lucky value does not win. The standard error is the recorded one, or an estimate from the
        repeats of all points: a point that was evaluated once needs a larger lead than one that was
        evaluated often. If points share seeds, the loss is without the `seed_effect`.
        """
        violation, loss = rank(trial, self.directions[0])
        if not self.noisy:
            return violation, loss
        effect = self.seed_effect(trial)
        loss -= effect if self.directions[0] == "minimize" else -effect
        error = self.errors(trial)[0]
        return violation, loss + (self.deviation if error is None else error)

    def better(self, trial: Trial, than: Trial | None) -> bool:
        """Whether a trial ranks before another one; every complete trial ranks before ``None``."""
        return trial.state == "complete" and (than is None or self.rank(trial) < self.rank(than))

    def errors(self, trial: Trial) -> tuple[float | None, ...]:
        """Return the standard error of each of a trial's rewards.

        That of a single measurement is the recorded one. That of the mean of `n` repeats is
        ``deviation / sqrt(n)``, from the repeats of all points, as two repeats may agree by chance.
        ``None`` if it is not known, also if all repeats were equal.
        """
        if trial.evaluations < 2:
            return trial.errors
        return tuple([d / math.sqrt(trial.evaluations) or None for d in self.deviations])

    def recorded(self, trial: Trial[Params]) -> Trial[Params]:
        """Return one of `trials` under the number of its first measurement."""
        return replace(trial, number=trial.measurements[0]) if trial.measurements else trial

    @cached_property
    def _ranks(self) -> list[tuple[float, float]]:
        """The `rank` of each complete trial."""
        done = self.complete
        if self.noisy:
            return [self.rank(t) for t in done]
        sign = 1.0 if self.directions[0] == "minimize" else -1.0  # a call for each is slow
        return [
            (t.constraint_violation, sign * t.rewards[0]) if t.rewards else FAILED for t in done
        ]

    @cached_property
    def _fits(self) -> list[tuple[dict[Any, float], float | None]]:
        """The effects of seeds on each reward, and the deviation that they leave.

        Only a repeat changes them: measurements after the last one are not fitted.
        """
        if not self.measured:
            return [({}, None)] * len(self.directions)
        repeats = (t.measurements for t in self.complete if len(t.measurements) > 1)
        last = max(map(max, repeats), default=-1)
        each = [(t.number, self.measured[n]) for t in self.complete for n in t.measurements]
        told = [(k, m.seed, m.rewards) for k, m in each if m.rewards and m.number <= last]
        objectives = range(len(self.directions))
        return [two_way([(k, seed, rewards[i]) for k, seed, rewards in told]) for i in objectives]

    @property
    def seed_effects(self) -> Mapping[int | None, float]:
        """How much larger the first reward is with each seed; empty if points share just one."""
        return self._fits[0][0]

    def seed_effect(self, trial: Trial) -> float:
        """Return the mean of `seed_effects` over the measurements of a trial."""
        effects = self.seed_effects
        if not effects:
            return 0.0
        seeds = [self.measured[n].seed for n in trial.measurements] or [trial.seed]
        return sum(effects.get(seed, 0.0) for seed in seeds) / len(seeds)

    @cached_property
    def deviations(self) -> tuple[float, ...]:
        """Standard deviation of one measurement in each objective, from all repeats together.

        It is 0 if there are none, and does not contain the effects of seeds.
        """
        counts = np.array([t.evaluations for t in self.complete], dtype=float)
        free, found = float((counts - 1).sum()), list[float]()
        for i, (_, rest) in enumerate(self._fits):
            if rest is None:
                told = np.array([t.errors[i] or 0.0 for t in self.complete])
                square = float(((counts - 1) * counts * told**2).sum())
                rest = math.sqrt(square / free) if free else 0.0
            found.append(rest)
        return tuple(found)

    @property
    def deviation(self) -> float:
        """The first of `deviations`."""
        return self.deviations[0]

    @cached_property
    def ranked(self) -> tuple[Trial, ...]:
        """Complete trials, best first; ties keep the order of telling.

        Feasible trials come before infeasible ones, which go by their violation. With one
        objective the order is that of `rank`. With several: by non-dominated front, then by
        crowding distance (Deb et al. 2002, NSGA-II, sections III.A and III.B).
        """
        done = self.complete
        if len(self.directions) == 1 or not done:
            ranks = self._ranks
            return tuple([done[i] for i in sorted(range(len(done)), key=ranks.__getitem__)])
        gains = self._gains(done)
        violation = np.array([t.constraint_violation for t in done])
        # An infeasible trial dominates none of the feasible ones (section VI.A there).
        feasible = violation <= 0.0
        fronts, crowding = np.zeros(len(done), dtype=int), np.zeros(len(done))
        fronts[feasible], crowding[feasible] = _nondominated(gains[feasible])
        return tuple(done[i] for i in np.lexsort((-crowding, fronts, violation)))

    def __iter__(self) -> Iterator[Trial]:
        return iter(self.trials)

    @cached_property
    def pareto_front(self) -> tuple[Trial, ...]:
        """The feasible trials that no other feasible trial dominates.

        With one objective: those that share the best reward.
        """
        done = tuple(t for t in self.complete if t.constraint_violation <= 0.0)
        if not done:
            return ()
        fronts, _ = _nondominated(self._gains(done))
        return tuple(t for t, front in zip(done, fronts, strict=True) if front == 0)

    @cached_property
    def best(self) -> Trial | None:
        """The best trial, or ``None`` before the first complete one; see `rank`.

        With several objectives it is one of the Pareto front.
        """
        if len(self.directions) > 1:
            return self.ranked[0] if self.ranked else None
        places = range(len(self.complete))
        best = min(places, key=self._ranks.__getitem__, default=None)
        return None if best is None else self.complete[best]

    @property
    def latest(self) -> Trial | None:
        """The one of `trials` that was measured last; ``None`` if all were withdrawn."""
        done = without_withdrawn(self.trials)
        return max(done, key=lambda t: (t.measurements or (t.number,))[-1], default=None)

    def label(self, number: int) -> str:
        """Return the ``#n`` that prompts and reports show for the point of a trial.

        Args:
            number: The trial's number from 0 in the order of recording.
        """
        return f"#{self.place(number) + 1}"

    def place(self, number: int) -> int:
        """Return the number from 0 of the point of a trial, given the trial's number from 0."""
        return self._points.get(number, number)

    @cached_property
    def _points(self) -> dict[int, int]:
        """The number of the point of each trial, where points repeat."""
        return {number: point.number for point in self.trials for number in point.measurements}

    @property
    def objectives(self) -> tuple[str, ...]:
        """What readers call the objectives: their names, or ``reward``, or ``objective 1``, ..."""
        count = len(self.directions)
        if len(self.metrics) == count:
            return self.metrics
        return ("reward",) if count == 1 else tuple(f"objective {i + 1}" for i in range(count))

    def best_of(self, objective: int) -> Trial | None:
        """Return the best feasible trial of one objective alone; ``None`` if there is none."""
        sign = 1 if self.directions[objective] == "minimize" else -1
        feasible = [t for t in self.complete if t.rewards and t.constraint_violation <= 0]
        return min(feasible, key=lambda t: sign * (t.rewards or ())[objective], default=None)

    def _gains(self, trials: Sequence[Trial]) -> np.ndarray:
        """Rewards as a ``(len(trials), n_objectives)`` array in which larger is better."""
        signs = np.array([1.0 if d == "maximize" else -1.0 for d in self.directions])
        rewards = np.array([t.rewards for t in trials], dtype=float)
        return np.asarray(rewards * signs)


def _nondominated(gains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Front of each row of gains (0 is best), and its crowding distance in it."""
    fronts = _fronts(gains)
    crowding = np.zeros(len(gains))
    if not fronts.size:
        return fronts, crowding
    by_front = np.argsort(fronts, kind="stable")
    for members in np.split(by_front, np.flatnonzero(np.diff(fronts[by_front])) + 1):
        for column in gains[members].T:
            order = np.argsort(column, kind="stable")
            spread = column[order[-1]] - column[order[0]]
            crowding[members[order[[0, -1]]]] = math.inf
            if spread > 0 and members.size > 2:
                gaps = (column[order[2:]] - column[order[:-2]]) / spread
                crowding[members[order[1:-1]]] += gaps
    return fronts, crowding


def _fronts(gains: np.ndarray) -> np.ndarray:
    """Non-dominated front of each row; memory is linear in the rows.

    Time is ``O(n log n)`` with one or two objectives, and otherwise a scan of the rows
    before it for each row.
    """
    # Sorted and without repeats, a row is dominated by just those earlier ones that lose
    # no more in any objective.
    losses, origin = np.unique(-gains, axis=0, return_inverse=True)
    fronts = np.zeros(len(losses), dtype=int)
    if losses.shape[1] <= 2:
        least: list[float] = []  # the smallest last loss in each front, ascending
        for row, loss in enumerate(losses[:, -1].tolist()):
            fronts[row] = bisect_right(least, loss)
            least[fronts[row] : fronts[row] + 1] = [loss]
    else:
        columns = np.ascontiguousarray(losses.T)
        for row in range(1, len(losses)):
            dominating = (columns[:, :row] <= columns[:, row, None]).all(axis=0)
            fronts[row] = np.max(fronts[:row], where=dominating, initial=-1) + 1
    result: np.ndarray = fronts[origin.reshape(-1)]
    return result


class Follower:
    """A function of the history that reads each trial once.

    A subclass defines `_add`, which learns from one trial, and may extend `_reset`. A history
    that does not extend the previous one is read from its beginning (in a noisy search a trial
    changes if its point is re-evaluated). So is a copy's: it keeps only the class's arguments.
    """

    def __init__(self) -> None:
        self._reset()

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _reset(self) -> None:
        self._known: list[Trial] = []  # trials read so far

    def _add(self, trial: Trial, history: History) -> None:
        raise NotImplementedError

    def _update(self, history: History) -> None:
        if self._known != list(history.trials[: len(self._known)]):
            self._reset()
        try:
            for trial in history.trials[len(self._known) :]:
                self._add(trial, history)
                self._known.append(trial)
        except BaseException:  # an interrupt, say: half a trial may be known
            self._reset()
            raise


@dataclass
class Usage:
    """The cost of a search so far.

    Attributes:
        requests: Calls sent to the model, failed ones included.
        failed_requests: The part of `requests` that ended in an error.
        prompt_tokens: The provider's count; estimated if it reports none.
        cached_tokens: The part of `prompt_tokens` that a prefix cache served.
        completion_tokens: Counted like `prompt_tokens`.
        seconds: Wall-clock seconds spent waiting for the model.
        cost: US dollars; ``None`` once any reply had no known price.
        unpriced: Number of abandoned requests that may be charged and are not in `cost`; of their
            tokens, `prompt_tokens` has an estimate of the prompt's.
        estimated: Number of requests with estimated tokens or cost: the provider did not report
            them, or the call was abandoned and counts with its maximum cost.
        proposals: Number of points that the search proposed, by source, with or without a result;
            the user's points (`start=`, `enqueue`, recorded without `ask`) do not count.
        rejected: Samples that were not used, by reason (``"unreadable"``,
            ``"duplicate"``, ``"out of range"``, …).
        blocks: Number of the model's blocks of Python; see `llmopt.lab`.
        compute_seconds: Seconds in which these blocks ran.
        block_tokens: Tokens of the requests that were answered by a block.
    """

    requests: int = 0
    failed_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    cost: float | None = 0.0
    unpriced: int = 0
    estimated: int = 0
    proposals: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    blocks: int = 0
    compute_seconds: float = 0.0
    block_tokens: int = 0

    @property
    def fallbacks(self) -> int:
        """Number of random points that replace points of the model."""
        return self.proposals.get("fallback", 0)

    @property
    def fallback_share(self) -> float:
        """Fallbacks as a share of the points requested of the model; 0 before the first request."""
        asked = self.fallbacks + self.proposals.get("llm", 0)
        return self.fallbacks / asked if asked else 0.0

    def copy(self) -> Usage:
        """Return an independent copy."""
        return replace(self, proposals=dict(self.proposals), rejected=dict(self.rejected))

    def add(self, other: Usage) -> None:
        """Count the usage of another account."""
        for name, amount in vars(other).items():
            mine = getattr(self, name)
            if isinstance(amount, dict):
                for key, count in amount.items():
                    mine[key] = mine.get(key, 0) + count
            else:
                known = mine is not None and amount is not None
                setattr(self, name, mine + amount if known else None)

    def add_reply(self, reply: Reply) -> None:
        """Count one reply of the model."""
        self.requests += reply.requests
        self.estimated += reply.estimated
        self.prompt_tokens += reply.prompt_tokens or 0
        self.cached_tokens += reply.cached_tokens
        self.completion_tokens += reply.completion_tokens or 0
        self.seconds += reply.seconds
        known = self.cost is not None and reply.cost is not None
        self.cost = self.cost + reply.cost if known else None  # type: ignore[operator]

    def add_block(self, seconds: float, tokens: int = 0) -> None:
        """Count one block of Python."""
        self.blocks += 1
        self.compute_seconds += seconds
        self.block_tokens += tokens

    def add_failure(
        self,
        requests: int = 1,
        unpriced: int = 0,
        cost: float | None = 0.0,
        estimated: int = 0,
        prompt_tokens: int = 0,
        seconds: float = 0.0,
    ) -> None:
        """Count requests that ended in an error; the first arguments are those of `ClientError`."""
        self.prompt_tokens += prompt_tokens
        self.seconds += seconds
        self.unpriced += unpriced
        self.estimated += estimated
        self.cost = None if self.cost is None or cost is None else self.cost + cost
        self.requests += requests
        self.failed_requests += requests


def why_no_best(trials: Sequence[Any]) -> str:
    """Return the reason why no trial is the best, and the remedy."""
    if not trials:
        return (
            "there is no best trial yet: no trial was recorded. Evaluate the point of ask(), "
            "and tell() its reward"
        )
    words = trials[-1].feedback
    return (
        f"there is no best trial yet: all {len(trials)} trials failed"
        + (f", the last one with: {short(words)}" if words else "")
        + ". Fix the evaluation; optimizer.trials holds the reason of each"
    )
