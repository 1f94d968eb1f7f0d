"""One proposal for a trial: who is asked, what was paid for already, and what others took."""

from __future__ import annotations

import contextlib
import difflib
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial

from llmopt.adapters.optuna.history import StudyHistory, View, hints, learned
from llmopt.adapters.optuna.ledger import StudySpending
from llmopt.adapters.optuna.mistakes import misplaced, unknown_names, unread
from llmopt.adapters.optuna.partner import SamplerPartner, for_choices
from llmopt.adapters.optuna.records import annotate, note_wait, publish, write_dashboard_note
from llmopt.adapters.optuna.space import Known, StudySpace, logger
from llmopt.client.base import client_name
from llmopt.errors import BudgetExceededError, SearchStopped, is_permanent, warn_user
from llmopt.history import Proposal
from llmopt.search.emitter import ModelEmitter
from llmopt.search.meter import Draft
from llmopt.search.partners.scheduler import Scheduler, make_scheduler
from llmopt.search.points import draw_new
from llmopt.search.views import outcome
from llmopt.space import Space
from llmopt.space.branches import BranchedSpace
from llmopt.space.constraints import Limit
from llmopt.space.values import ABSENT
from llmopt.util.text import cut

_CLASH_ROUNDS = 4
_CLASH_PAUSE = 5.0  # times as long as the storage took to write and read
_MOST_CHOICES = 12  # that no trial has had and that are named
_CHOICE_LENGTH = 80  # characters
_BEST_SINCE = 10  # trials since the best one, until it is said that it lies on the edge


@dataclass(frozen=True)
class _Offer:
    """A point that no trial has taken yet, with its parameters in Optuna's form; see `annotate`."""

    proposal: Proposal
    params: Mapping[str, Any]
    start: int | None = None
    cost: float | None = None
    model: str = ""


@dataclass(frozen=True)
class Begun:
    """A trial that needs parameters, with its study and all of the study's trials."""

    study: Study
    trial: FrozenTrial
    trials: Sequence[FrozenTrial]
    space: StudySpace
    given: Mapping[str, Any]  # parameters already set in the trial
    needed: str = ""  # a parameter that the trial needs, whatever the others
    left_out: Collection[str] = ()  # parameters that are not asked for


def _not_tried(space: BranchedSpace) -> tuple[str, ...]:
    """Say which choices no trial has had: what else belongs to them is not known yet."""
    choices = [
        f"{space.names[i]} = {text}"
        for i, values in sorted(space.unseen.items())
        for text in sorted(space.format(i, value) for value in values)
    ]
    if not choices:
        return ()
    shown = [cut(text, _CHOICE_LENGTH) for text in choices[:_MOST_CHOICES]]
    if more := len(choices) - len(shown):
        shown.append(f"{more} other choices")
    return (
        f"no trial has had {' or '.join(shown)} yet. With such a choice parameters that are "
        "listed may not apply (leave them out), and others may come that are not listed: their "
        "first values are random",
    )


class Asker:
    """Proposes parameters for the trials of a study. Calls must not overlap.

    The arguments are those of `LLMSampler`; `known` is its `space`, `curves` its `intermediate`.
    """

    def __init__(
        self,
        model: ModelEmitter,
        partner: Any,
        constraints: Sequence[Limit],
        batch_size: int,
        hints: Sequence[str] | None,
        known: Known,
        curves: bool,
        notes: bool,
    ) -> None:
        self._model, self._constraints, self._points = model, constraints, model.points
        self._emitter = make_scheduler(partner, model, None)
        if isinstance(self._emitter, Scheduler):
            self._emitter.partners = tuple(map(for_choices, self._emitter.partners))
        self._batch_size, self._hints, self.known = batch_size, hints, known
        self._curves, self._notes = curves, notes
        self._offers: dict[object, deque[_Offer]] = {}
        self._ends: dict[object, SearchStopped] = {}
        self._left_out: dict[object, list[str]] = {}  # what points lacked that were not measured
        self._ledger = StudySpending()
        self._forget()

    def _forget(self) -> None:
        """Drop the fields that are rebuilt from the storage."""
        self._process = os.getpid()
        self._reader: StudyHistory | None = None
        self._said: set[object] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_reader"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def space(self, trials: Sequence[FrozenTrial]) -> StudySpace:
        """Return the parameters of a study with these trials."""
        return StudySpace(learned(trials), self.known)

    def compare(self, study: Study, suggested: Mapping[str, BaseDistribution]) -> None:
        """Say, once, where an objective suggests a parameter otherwise than `known` has it."""
        for name in self.known.distributions.keys() & suggested.keys():
            known, own = self.known.distributions[name], suggested[name]
            if known != own:
                self._say(
                    (study.study_name, name),
                    f"The objective suggests the parameter `{name}` from {own}, and `space=` of "
                    f"the sampler has {known}. The objective's range is used: values outside "
                    "are sampled again, and the model reads it once a trial with it is complete. "
                    "Declare the objective's range in `space=`.",
                )

    def read_mistakes(self, study: Study, trial: FrozenTrial, complete: bool) -> None:
        """Say, once, what a trial that ended has left or suggested and nothing reads."""
        found = list(unread(trial.user_attrs))
        if complete:
            found += misplaced(self.known, trial.params)
            once = study.study_name, "compared"
            if once not in self._said:
                self._said.add(once)
                self._compare_names(trial.params)
                found += () if self.known.names else unknown_names(self._constraints, trial.params)
        for name, text in found:
            self._say((study.study_name, "read", name), f"Trial {trial.number}: {text}.")

    def _compare_names(self, params: Mapping[str, Any]) -> None:
        """Say which parameters of `known` the first complete trial should have had and has not."""
        known = self.known
        absent = [
            name
            for name in known.distributions.keys() - params.keys()
            if (rule := known.when.get(name)) is None
            or rule.active(lambda parent: params.get(parent, ABSENT))
        ]
        if not absent:
            return
        new = params.keys() - known.distributions.keys()
        near = {name: difflib.get_close_matches(name, new, 1, 0.6) for name in absent}
        meant = [f"`{n}` (did you mean {at[0]!r}?)" if at else f"`{n}`" for n, at in near.items()]
        logger.warning(
            f"The objective did not suggest {', '.join(sorted(meant))} of `space=` of the sampler. "
            f"It suggested {', '.join(map(repr, sorted(params))) or 'nothing'}. Correct the name, "
            "or give a parameter that is not always suggested its condition with `when=`."
        )

    def propose(self, begun: Begun, entropy: tuple[int, ...], may_stop: bool) -> dict[str, Any]:
        """Propose the parameters of a trial, and let other workers see them.

        It raises what `LLMSampler.sample_relative` does.
        """
        began = time.monotonic()
        study, trial, space, given = begun.study, begun.trial, begun.space, begun.given
        if self._process != os.getpid():
            # What the process asked for that this one was forked from is not its own.
            self._process = os.getpid()
            for what in (self._offers, self._ends, self._left_out):
                what.clear()
        self._ledger.attach(self._model.meter, study)
        self._model.options = replace(self._model.options, may_stop=may_stop)
        # What is set in this trial holds for no other one.
        self._model.points = 1 if given else self._points
        reader = self._reader_of(space)
        for one in self._emitter.partners if isinstance(self._emitter, Scheduler) else ():
            if isinstance(one, SamplerPartner):
                one.attend(study, trial, space)
        look = partial(reader.view, study, number=trial.number)
        place = study.study_name, getattr(study, "_bracket_id", None)
        offers = self._offers.setdefault(place, deque())
        view = look(begun.trials)
        free = space.with_given(given, begun.needed, self._constraints, begun.left_out)
        self._say_ends(space.space, view)
        for round_ in range(_CLASH_ROUNDS + 1):
            rng = np.random.default_rng((*entropy, trial.number, len(given), round_))
            if round_ < _CLASH_ROUNDS:
                if given or not self._waiting(place, view, space, free):
                    self._ask(place, begun, view, free, rng)
                offer = offers.popleft()
            else:
                trouble = "other workers took all the points that it gave"
                drawn = self._fall_back(free, view, rng, trouble)
                offer = _Offer(drawn, space.params(drawn.values))
            try:
                view, lost = self._take(begun, offer, view, look, rng)
            except BaseException:
                offers.appendleft(offer)  # it is paid for: the next trial gets it
                with contextlib.suppress(Exception):
                    publish(study, trial, space, given)
                raise
            if not lost:
                break
            self._discard(offer)
        note_wait(study, trial, time.monotonic() - began)
        return dict(offer.params)

    def _reader_of(self, space: StudySpace) -> StudyHistory:
        if self._reader is None or self._reader.space.distributions != space.distributions:
            noisy = self._model.options.noisy
            self._reader = StudyHistory(space, self._constraints, noisy, self._curves)
        return self._reader

    def outcome(self, study: Study, trials: Sequence[FrozenTrial]) -> str:
        """Return the outcome of a study with these trials in words."""
        space = self.space(trials)
        return outcome(self._reader_of(space).view(study, trials, -1).history, space.space)

    def _take(
        self,
        begun: Begun,
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
        """
        study, trial, space = begun.study, begun.trial, begun.space
        key = space.key(offer.params)
        again = self._model.options.noisy or key in before.taken
        started = time.monotonic()
        publish(study, trial, space, offer.params)
        for pause in (0.0, rng.uniform(0, _CLASH_PAUSE)):
            time.sleep(pause * (time.monotonic() - started))
            view = look(study.get_trials(deepcopy=False))
            if again or key not in view.taken:
                annotate(study, trial, offer.proposal, offer.start, offer.cost, offer.model)
                if self._notes:
                    write_dashboard_note(study, trial)
                return view, False
        publish(study, trial, space, begun.given)
        return view, True

    def _discard(self, offer: _Offer, why: str = "taken meanwhile") -> None:
        """Count a paid point that no trial gets."""
        self._model.meter.count_proposal(offer.proposal.source, -1)
        self._model.meter.count_rejection(why)

    def _waiting(self, place: object, view: View, space: StudySpace, free: BranchedSpace) -> bool:
        """Whether a point waits that was paid for.

        Points are discarded that are taken by now, or that lack a parameter which the study has
        got since: the model then gives the whole point in the next request, if one can be sent.
        """
        offers = self._offers[place]
        while offers:
            key, values = space.key(offers[0].params), space.flatten(offers[0].params)
            lacking = values and free.missing(dict(enumerate(values)))
            if lacking and self._can_ask():
                if offers[0].proposal.source == "llm":
                    names = " and ".join(free.names[i] for i in lacking)
                    self._left_out.setdefault(place, []).append(names)
                self._discard(offers.popleft(), "incomplete")
            elif self._model.options.noisy or (key is not None and key not in view.taken):
                return True
            else:
                self._discard(offers.popleft())
        end = self._ends.pop(place, None)
        if end is not None and not self._left_out.get(place):  # it has seen all that it gave
            raise end
        return False

    def _can_ask(self) -> bool:
        """Whether no cap is reached: a part of a paid point is better than a random one."""
        meter = self._model.meter
        try:
            meter.limits.check(meter.journal.total(meter.usage))
        except BudgetExceededError:
            return False
        return True

    def _ask(
        self, place: object, begun: Begun, view: View, free: BranchedSpace, rng: np.random.Generator
    ) -> None:
        """Queue new points before the waiting ones; only one if the trial has parameters set."""
        n = 1 if begun.given else self._batch_size
        notes = (*hints(begun.study, self._hints, begun.given), *_not_tried(free))
        if lacked := self._left_out.pop(place, []):
            notes += (
                f"{len(lacked)} of the points that you gave before: not measured, as nobody knew "
                f"then that their choice has {'; '.join(dict.fromkeys(lacked))}. Give such a point "
                "anew, whole, if it is still of use",
            )

        def ask(draft: Draft) -> tuple[list[Proposal], Draft]:
            try:
                taken = free.keys_within(view.taken)
                new = self._emitter.propose(free, view.history, rng, n, taken=taken, notes=notes)
            except Exception as error:
                stopped = isinstance(error, SearchStopped) or is_permanent(error)
                if stopped or self._model.options.on_error == "raise":
                    raise
                new = [self._fall_back(free, view, rng, f"{type(error).__name__}: {error}")]
            return new, draft

        points, draft = self._model.meter.asking(ask)
        if draft.stop is not None:
            self._ends[place] = draft.stop
        replies = [reply for _, reply in draft.replies]
        costs = [reply.cost for reply in replies if reply.cost is not None]
        asked = sum(p.source == "llm" for p in points)
        share = sum(costs) / asked if asked and len(costs) == len(replies) else None
        model = replies[-1].model if replies else ""
        found = []
        for p in points:
            paid = (view.start_of(p.explanation), share, model) if p.source == "llm" else ()
            found.append(_Offer(p, begun.space.params(p.values), *paid))
        self._offers[place].extendleft(reversed(found))
        for text in draft.warnings:
            warn_user(text)

    def _fall_back(
        self, space: BranchedSpace, view: View, rng: np.random.Generator, trouble: str
    ) -> Proposal:
        """Draw a point at random where `ModelEmitter` does not do it."""
        warn_user(
            f"a point was sampled at random, not proposed by {client_name(self._model.client)}: "
            f"{trouble}. It is counted in usage.fallbacks"
        )
        self._model.meter.count_proposal("fallback")
        return Proposal(draw_new(space, space.keys_within(view.taken), rng), "fallback")

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
