"""What a search has recorded: its trials, the points without a result, and the best of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from llmopt.errors import LLMOptError, NoTrialsError
from llmopt.events import Called
from llmopt.history import Direction, History, Params, Proposal, Trial, why_no_best
from llmopt.journal import Journal
from llmopt.repeats import Merged
from llmopt.space import Space
from llmopt.space.fixed import Fixed
from llmopt.state import Stop
from llmopt.util.caller import CALLER
from llmopt.util.text import counted
from llmopt.util.threads import Lock
from llmopt.views import dataframe

if TYPE_CHECKING:
    import pandas


class Record(Generic[Params]):
    """The part of `LLMOptimizer` that reads its journal."""

    space: Space
    directions: tuple[Direction, ...]
    metrics: tuple[str, ...]  # names of the objectives; none if they have none
    _journal: Journal
    _merged: Merged
    _merging: Lock

    @property
    def history(self) -> History:
        """The trials and the pending or queued points, as an immutable snapshot.

        With ``noisy=True``, and after finalists were re-evaluated, repeated evaluations of a point
        are one trial with their mean.
        """
        with self._merging:
            return self._journal.state.history(self._merged)

    @property
    def trials(self) -> list[Trial[Params]]:
        """All trials in the order of recording (a copy)."""
        return list(self._journal.state.trials)

    @property
    def imported(self) -> frozenset[int]:
        """Numbers from 0 of the imported trials whose points the search had not proposed."""
        return frozenset(t.number for t in self._journal.state.trials if t.imported)

    @property
    def evaluations(self) -> int:
        """Number of trials that count as planned: neither imported nor withdrawn."""
        return sum(not trial.unplanned for trial in self._journal.state.trials)

    def named(self, number: int) -> str:
        """Return what messages call a trial, given its number from 0.

        That is the caller's number, and where points repeat also the label of its point.
        """
        history, name = self.history, f"trial {CALLER.get().number(number)}"
        return f"{name} ({history.label(number)})" if history.noisy else name

    @property
    def stopped(self) -> str:
        """Why the model ended the search; empty if it did not."""
        stop = self._journal.state.stop
        return "" if stop is None else self.end_of(stop)

    def end_of(self, stop: Stop) -> str:
        """Return why the model ended a search, with the caller's name of the recommended point."""
        why, number = stop
        if number is None:
            return why
        name = self._name_of(number)
        return re.sub(r"(?<=, and recommends )(?:point |#)\d+\b", name, why, count=1)

    @property
    def advice(self) -> str:
        """What the model recommended as it ended the search, if the search continues since."""
        state = self._journal.state
        if state.stop is not None or state.advised is None:
            return ""
        number, count = state.advised
        said = f"the model recommended {self._name_of(number)} after {counted(count, 'trial')}"
        return f"{said}; results since: {len(state.trials) - count}"

    def _name_of(self, number: int) -> str:
        """Return the caller's name of a point, given its number from 1 in prompts."""
        points = (t for t in self.history.trials if t.number + 1 == number and t.asked)
        names = [f" (p{t.asked})" for t in points if CALLER.get().first_trial]
        return f"#{number}{''.join(names)}"

    @property
    def recommended_number(self) -> int | None:
        """Number from 1 of the trial that the model recommended as it ended the search."""
        stop = self._journal.state.stop
        return None if stop is None else stop[1]

    @property
    def may_repeat(self) -> bool:
        """Whether points may be evaluated again: ``noisy=True`` or ``seeded=True``."""
        return self._journal.state.noisy or self._journal.state.seeded

    @property
    def calls_under_way(self) -> tuple[Called, ...]:
        """The calls of a request that has no answer yet, or whose process was ended."""
        return self._journal.state.under_way

    @property
    def calling(self) -> bool:
        """Whether a process waits for `calls_under_way`, as far as locks can tell."""
        return self._journal.calling

    @property
    def unanswered(self) -> bool:
        """Whether a request has no answer yet, and a later ask repeats it."""
        return self._journal.state.unanswered or bool(self.calls_under_way)

    @property
    def pending(self) -> list[Params]:
        """The points that `ask` returned and that have no result yet, oldest first.

        After a resume these are the points whose evaluation was interrupted: evaluate them first.
        `pending_proposals` has their sources and explanations.
        """
        return [self.space.unflatten(p.values) for p in self.pending_proposals]

    @property
    def pending_proposals(self) -> list[Proposal]:
        """The proposals behind `pending`: source, explanation and tokens of each (a copy)."""
        return list(self._journal.state.pending)

    @property
    def returned_proposals(self) -> tuple[Proposal, ...]:
        """Every proposal that `ask` returned: `Proposal.asked` is its number from 1."""
        return self._journal.state.returned

    @property
    def queued(self) -> list[Any]:
        """The points that wait for a later `ask`, as `enqueue` took them and `withdraw` takes them.

        Those with some parameters are the last ones: a request completes each.
        """
        given = self.queued_proposals
        return [
            p.named() if isinstance(p, Fixed) else self.space.unflatten(p.values) for p in given
        ]

    @property
    def queued_proposals(self) -> list[Proposal | Fixed]:
        """What is behind `queued`: source and words of each point (a copy)."""
        return [*self._journal.state.queue, *self._journal.state.partial]

    def seed_of(self, params: Any) -> int:
        """Return the seed with which to evaluate a point, in a search with ``seeded=True``.

        If `ask` returned the point repeatedly, it is the seed of the oldest pending one;
        `pending_proposals` has all of them.

        Raises:
            ValueError: The search is not ``seeded``.
            ParameterError: The point is not in the space.
        """
        values, state = self.space.flatten(params), self._journal.state
        proposal, _ = state.without(values)
        seed = state.next_seed(values) if proposal is None else proposal.seed
        if seed is None:
            raise ValueError("seed_of(): this search has no seeds; give it seeded=True")
        return seed

    def next_seed(self, values: tuple[Any, ...], taken: Sequence[int | None]) -> int | None:
        """Return the seed of a flat point's next evaluation, skipping those `taken`."""
        return self._journal.state.next_seed(values, taken)

    @property
    def best(self) -> Trial[Params]:
        """The best trial so far; the earliest in a tie.

        With ``noisy=True`` it is chosen as in `recommend`, and its number is that of the first of
        its `measurements`.

        Raises:
            LLMOptError: The search has several objectives; see `pareto`.
            NoTrialsError: There is no complete trial yet. ``history.best`` is ``None`` then.
        """
        if len(self.directions) > 1:
            raise LLMOptError(
                f"a search of {len(self.directions)} objectives has no single best trial: take one "
                "of .pareto, the trials that no other trial beats in all objectives"
            )
        history = self.history
        if history.best is None:
            raise NoTrialsError(why_no_best(history.trials))
        return history.recorded(history.best)

    @property
    def pareto(self) -> list[Trial[Params]]:
        """The Pareto front: feasible trials that no other feasible trial beats in all objectives.

        With one objective: those that share the best reward.
        """
        history = self.history
        return [history.recorded(trial) for trial in history.pareto_front]

    def recommend(self) -> Params:
        """Return the parameters to keep: those of `best`.

        With ``noisy=True`` that is the point whose mean, made worse by one standard error, is best.
        The error is estimated from the recorded errors and from repeated evaluations of points.
        With ``seeded=True`` both are without the estimated effects of seeds; `Trial.reward` and
        the front of several objectives have plain means.
        Evaluate a point again, and tell the result, to reduce its error.

        Raises:
            LLMOptError: The search has several objectives; see `pareto`.
            NoTrialsError: There is no complete trial yet.
        """
        return self.best.params

    @property
    def storage(self) -> Path | None:
        """The search's storage file, if it has one."""
        return self._journal.path

    def trials_dataframe(self) -> pandas.DataFrame:
        """Return the trials as a pandas DataFrame, one row per trial.

        Columns are ``number``, ``state``, ``reward`` (for several objectives ``reward_NAME``, or
        ``reward_0`` for objective 1, ``reward_1`` for objective 2, ...; missing for a failed
        trial), ``stderr`` likewise, ``old_reward`` likewise if a trial had another one before it
        was corrected or withdrawn, ``constraint_violation`` (as `tell` takes it; in a space with
        constraints, ``total_violation`` adds theirs), a ``params_NAME`` for each parameter,
        ``parts_NAME`` if recorded, ``source``, ``feedback``, ``explanation``, ``prompt_tokens``,
        ``completion_tokens`` and ``seconds``; with ``seeded=True`` ``seed``. If a point was
        measured in place of another one or lies beyond a bound, there is also ``instead_of``: the
        point that was asked for, as JSON (``{}`` if it is not known). By ``origin``,
        `import_trials` recognizes the trial when it is imported again.

        Raises:
            ImportError: pandas is not installed.
        """
        count = len(self.directions)
        rewards = [f"reward_{name}" for name in self.metrics or range(count)]
        return dataframe(self.trials, self.space, rewards if count > 1 else ["reward"])
