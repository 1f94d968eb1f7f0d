"""One proposal for a trial: who is asked, what was paid for already, and what others took."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial

from llmopt.adapters.optuna.history import GroupHistory, View, hints, learned
from llmopt.adapters.optuna.ledger import Ledger
from llmopt.adapters.optuna.records import annotate, publish, write_dashboard_note
from llmopt.adapters.optuna.space import Distributions, ParameterGroup, decompose
from llmopt.adapters.words import warn
from llmopt.client.base import client_name
from llmopt.client.ready import is_permanent
from llmopt.errors import SearchStopped, SpaceError
from llmopt.history import Proposal
from llmopt.search.cma import CMAEmitter
from llmopt.search.emitter import Emitter, ModelEmitter, draw_new
from llmopt.search.scheduler import Partner, make_scheduler
from llmopt.space import Space
from llmopt.space.constraints import Constraint

# Below Optuna's own logger, so that its handler and `optuna.logging.set_verbosity` apply.
logger = optuna.logging.get_logger("optuna.llmopt")

_CLASH_ROUNDS = 4
_CLASH_PAUSE = 5.0  # times as long as the storage took to write and read
_GROUPS_KEPT = 64
_BEST_SINCE = 10  # trials since the best one, until it is said that it lies on the edge


@dataclass(frozen=True)
class _Offer:
    """A point that no trial has taken yet; see `annotate`."""

    proposal: Proposal
    start: int | None = None
    cost: float | None = None
    model: str = ""


@dataclass(frozen=True)
class _Group:
    """Parameters that are proposed together: their history, and who proposes them."""

    reader: GroupHistory
    emitter: Emitter


class Asker:
    """Proposes parameters for the trials of a study. Calls must not overlap.

    Args:
        model: Asks the model.
        partner: Who proposes beside it.
        constraints: Linear inequalities over the study's parameters.
        batch_size: Points asked for at a time.
        hints: Names of the study's user attributes that are shown; ``None`` for all.

    Attributes:
        notes: Whether to write notes for optuna-dashboard.
    """

    def __init__(
        self,
        model: ModelEmitter,
        partner: Partner | None,
        constraints: Sequence[Constraint],
        batch_size: int,
        hints: Sequence[str] | None,
    ) -> None:
        make_scheduler(partner, model, None)  # a wrong argument is told at once
        self._model, self._partner, self._constraints = model, partner, constraints
        self._batch_size, self._hints, self._total = batch_size, hints, model.total
        self.notes = False
        self._offers: dict[tuple[Any, ...], deque[_Offer]] = {}
        self._ledger = Ledger()
        self._forget()

    def _forget(self) -> None:
        """Drop what is rebuilt from the storage."""
        self._process = os.getpid()
        self._groups: dict[tuple[str, ...], _Group] = {}
        self._said: set[object] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_groups"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def propose(
        self,
        study: Study,
        trial: FrozenTrial,
        trials: Sequence[FrozenTrial],
        distributions: Distributions,
        given: Mapping[str, Any],
        entropy: tuple[int, ...],
    ) -> dict[str, Any]:
        """Propose a group of parameters for a trial, and let other workers see it.

        Args:
            study: The study.
            trial: The trial.
            trials: All trials of the study.
            distributions: The parameters to propose.
            given: What is already set in the trial.
            entropy: Seed of everything random, with the trial's number.

        Raises:
            LLMOptError: The model failed and ``on_error="raise"``; or with any, where it
                cannot be asked at all.
            SearchStopped: The model ended the search.
        """
        if self._process != os.getpid():
            # What the process asked for that this one was forked from is not its own.
            self._process = os.getpid()
            self._offers.clear()
        self._ledger.attach(self._model.meter, study)
        parameters = decompose(learned(trials))
        group = self._group(distributions)
        whole = group.reader.group.space
        context = {n: v for n, v in given.items() if n not in distributions}
        outside = {n: v for n, v in context.items() if n in parameters.latest}
        look = partial(
            group.reader.view,
            study,
            number=trial.number,
            context=outside,
            parameters=parameters,
        )
        place = (study.study_name, getattr(study, "_bracket_id", None), whole)
        offers = deque() if context else self._offers.setdefault(place, deque())
        view = look(trials)
        space = constrained(whole, self._constraints, context)
        self._say_ends(space, view)
        for round_ in range(_CLASH_ROUNDS + 1):
            rng = np.random.default_rng((*entropy, trial.number, len(context), round_))
            if round_ < _CLASH_ROUNDS:
                batch = 1 if context else self._batch_size
                notes = hints(study, self._hints, context)
                offer = self._next(offers, view, group, space, rng, batch, notes)
            else:
                trouble = "other workers took all the points that it gave"
                offer = _Offer(self._fall_back(space, view, rng, trouble))
            try:
                view, lost = self._take(study, trial, group.reader.group, offer, view, look, rng)
            except BaseException:
                offers.appendleft(offer)  # it is paid for: the next trial gets it
                with contextlib.suppress(Exception):
                    publish(study, trial, group.reader.group, {})
                raise
            if not lost:
                break
            self._discard(offer)
        if not offers:
            self._offers.pop(place, None)
        return group.reader.group.params(offer.proposal.values)

    def _take(
        self,
        study: Study,
        trial: FrozenTrial,
        group: ParameterGroup,
        offer: _Offer,
        before: View,
        look: Callable[[Sequence[FrozenTrial]], View],
        rng: np.random.Generator,
    ) -> tuple[View, bool]:
        """Write a point into a trial, unless another worker takes the same one meanwhile.

        A worker that asked at the same time did not see this trial's proposal, and this one did
        not see its. After both have written, at least one sees the other's. After a pause of
        random length, a few times what the storage takes, it looks again: if the other one has
        not given way, this one does.

        Returns:
            The study as it is now, and whether the point is lost.
        """
        key = group.space.key(offer.proposal.values)
        again = self._model.options.noisy or key in before.taken
        started = time.monotonic()
        publish(study, trial, group, group.params(offer.proposal.values))
        for pause in (0.0, rng.uniform(0, _CLASH_PAUSE)):
            time.sleep(pause * (time.monotonic() - started))
            view = look(study.get_trials(deepcopy=False))
            if again or key not in view.taken:
                paid = (offer.start, offer.cost, offer.model)
                annotate(study, trial, group.distributions, offer.proposal, *paid)
                if self.notes:
                    write_dashboard_note(study, trial)
                return view, False
        publish(study, trial, group, {})
        return view, True

    def _discard(self, offer: _Offer) -> None:
        """Count a paid point that another worker was quicker to take."""
        self._model.meter.count_proposal(offer.proposal.source, -1)
        self._model.meter.count_rejection("taken meanwhile")

    def _next(
        self,
        offers: deque[_Offer],
        view: View,
        group: _Group,
        space: Space,
        rng: np.random.Generator,
        n: int,
        notes: tuple[str, ...],
    ) -> _Offer:
        """Return the next point that is not taken, asking for more if none is left."""
        may_repeat = self._model.options.noisy or len(view.taken) >= space.cardinality
        while offers:
            offer = offers.popleft()
            if may_repeat or space.key(offer.proposal.values) not in view.taken:
                return offer
            self._discard(offer)
        # Of a group that not all trials have, nobody knows how many points are planned.
        self._model.total = self._total if view.whole else None
        with self._model.meter.asking() as draft:
            try:
                points = group.emitter.propose(
                    space, view.history, rng, n, taken=view.taken, notes=notes
                )
            except Exception as error:
                stopped = isinstance(error, SearchStopped) or is_permanent(error)
                if stopped or self._model.options.on_error == "raise":
                    raise
                points = [self._fall_back(space, view, rng, f"{type(error).__name__}: {error}")]
        replies = [reply for _, reply in draft.replies]
        costs = [reply.cost for reply in replies if reply.cost is not None]
        asked = sum(p.source == "llm" for p in points)
        share = sum(costs) / asked if asked and len(costs) == len(replies) else None
        model = replies[-1].model if replies else ""
        for p in points:
            paid = p.source == "llm"
            offers.append(
                _Offer(p, view.start_of(p.explanation), share, model) if paid else _Offer(p)
            )
        for text in draft.warnings:
            warn(text)
        return offers.popleft()

    def _fall_back(
        self, space: Space, view: View, rng: np.random.Generator, trouble: str
    ) -> Proposal:
        """Draw a point at random where `ModelEmitter` does not do it."""
        warn(
            f"a point was drawn at random, not proposed by {client_name(self._model.client)}: "
            f"{trouble}. It is counted in usage.fallbacks"
        )
        self._model.meter.count_proposal("fallback")
        return Proposal(draw_new(space, set(view.taken), rng), "fallback")

    def _group(self, distributions: Distributions) -> _Group:
        names = tuple(distributions)
        group = self._groups.get(names)
        if group is None or group.reader.group.distributions != distributions:
            if len(self._groups) >= _GROUPS_KEPT:
                self._groups.clear()
            own = ParameterGroup(distributions)
            reader = GroupHistory(own, self._constraints, self._model.options.noisy)
            group = self._groups[names] = _Group(reader, self._emitter(own.space))
        return group

    def _emitter(self, space: Space) -> Emitter:
        """Return who proposes the points of a group of parameters."""
        if self._partner is not None:
            try:
                CMAEmitter.check(space)
            except SpaceError as error:
                names = ", ".join(map(repr, space.names))
                self._say(names, f"The model alone proposes {names}: {error}.")
                return self._model
        return make_scheduler(self._partner, self._model, None)

    def _say_ends(self, space: Space, view: View) -> None:
        """Say where the best trial lies on the end of a range, and has for a while."""
        best, told = view.history.best, len(view.history.trials)
        if best is not None and told - best.number >= _BEST_SINCE:
            for end in space.on_bounds(best.values):
                self._say(
                    end,
                    f"The best of {told} trials lies on the edge of the space: {end}. A better "
                    "one may lie beyond: widen the range if you can.",
                )

    def _say(self, about: object, text: str) -> None:
        """Log a warning, once about each thing."""
        if about not in self._said:
            self._said.add(about)
            logger.warning(text)


def constrained(space: Space, constraints: Sequence[Constraint], given: Mapping[str, Any]) -> Space:
    """Return a group's space with the constraints on it, as what is already set leaves them.

    Raises:
        SpaceError: No point was found that keeps them, or one is over a choice.
    """
    own = [c for c in constraints if c.names & set(space.names)]
    own = [c for c in own if c.names <= {*space.names, *given}]
    try:
        return space.constrained([c.given(given) for c in own])
    except SpaceError as error:
        if not any(c.names & set(given) for c in own):
            raise
        logger.warning(f"What the trial already has breaks a constraint: {error}.")
        return space
