"""One proposal for a trial: who is asked, and the points of an answer that wait."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial

from llmopt.adapters.optuna.branches import BranchedSpace
from llmopt.adapters.optuna.history import StudyHistory, View, hints, learned
from llmopt.adapters.optuna.ledger import StudyLedger
from llmopt.adapters.optuna.partner import SamplerPartner, for_choices
from llmopt.adapters.optuna.records import (
    annotate,
    current,
    note_wait,
    publish,
    read_note,
    write_notes,
)
from llmopt.adapters.optuna.space import Known, StudySpace, logger
from llmopt.caps import Limits
from llmopt.client.base import Client, client_name
from llmopt.errors import LLMOptError, SearchStopped, is_permanent, warn_user
from llmopt.history import Proposal, Usage
from llmopt.journaled import Journaled
from llmopt.optuna_trials import for_readers, named_in
from llmopt.partners import Partner, propose_in_turns
from llmopt.point_task import Asking, fill
from llmopt.prompt.python_block import Computed as Block
from llmopt.propose import Outcome
from llmopt.space import Space
from llmopt.space.constraints import Limit
from llmopt.space.values import ABSENT
from llmopt.util.text import cut
from llmopt.views import on_bounds, outcome

_MOST_CHOICES = 12  # that no trial has had and that are named
_CHOICE_LENGTH = 80  # characters
_CLASHES = 4  # points that other workers may take before this one takes a repeat
_BEST_SINCE = 10  # trials since the best one, until it is said that it lies on the edge


def _place(study: Study) -> Hashable:
    return id(study._storage), study.study_name


def _ledger(model: Journaled) -> StudyLedger:
    assert isinstance(model.journal, StudyLedger)
    return model.journal


class StudyStopped(SearchStopped):
    """The model ended the search; the message names trials by their numbers in the study.

    Attributes:
        said: The message with the numbers of the prompt, which the model reads.
    """

    def __init__(
        self, said: str, named: Mapping[str, int | None], point: int | None = None
    ) -> None:
        super().__init__(for_readers(said, named), point)
        self.said, self._named = said, named

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (self.said, self._named, self.point)


@dataclass(frozen=True)
class _Offer:
    """A point of an answer that no trial has taken yet, with its parameters in Optuna's form."""

    proposal: Proposal
    params: Mapping[str, Any]
    start: int | None = None  # number of the study's trial that it starts from
    cost: float | None = None
    model: str = ""
    stop: str = ""  # why the model ends the search, in place of a point
    named: Mapping[str, int | None] = field(default_factory=dict)  # of its words; see `named_in`


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


@dataclass
class Asker:
    """Proposes parameters for the trials of a study. Calls must not overlap.

    Attributes:
        client: The model.
        asking: How it is asked.
        limits: The caps of each study.
        partners: Propose beside the model.
        constraints: Linear inequalities over the parameters.
        batch_size: Proposals per request.
        hints: Names of the study's user attributes for the model; ``None`` for all.
        known: The parameters that the user names beforehand.
        curves: Whether the model sees reported values.
        earlier: What the sampler had spent of which this one is a copy.
    """

    client: Client
    asking: Asking
    limits: Limits
    partners: Sequence[Partner]
    constraints: Sequence[Limit]
    batch_size: int
    hints: Sequence[str] | None
    known: Known
    curves: bool
    earlier: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        self.partners = tuple(map(for_choices, self.partners))
        self._forget()

    def _forget(self) -> None:
        """Drop what belongs to this process."""
        self._process = os.getpid()
        self._offers: dict[Hashable, deque[_Offer]] = {}
        self._models: dict[Hashable, Journaled] = {}
        self._reader: StudyHistory | None = None
        self._warned: set[object] = set()

    def __getstate__(self) -> dict[str, Any]:
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**state, "earlier": self.usage}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def space(self, trials: Sequence[FrozenTrial]) -> StudySpace:
        """Return the parameters of a study with these trials."""
        return StudySpace(learned(trials), self.known)

    # -- money ----------------------------------------------------------------------------

    @property
    def usage(self) -> Usage:
        """What this object has spent on all of its studies."""
        usage = self.earlier.copy()
        for model in self._models.values():
            usage.add(model.usage)
        return usage

    @property
    def left(self) -> dict[str, float]:
        """The remaining budget of the latest study."""
        spent = [model.journal.spent for model in self._models.values()][-1:]
        return self.limits.left(spent[0] if spent else Usage())

    def model(self, study: Study) -> Journaled:
        """Return the model with the account of a study: by its storage and name."""
        if self._process != os.getpid():  # what the parent process asked for is its own
            self._forget()
        place = _place(study)
        model = self._models.pop(place, None)
        if model is None:
            model = Journaled(self.client, StudyLedger(study, capped=False))
        model.limits = self.limits
        ledger = _ledger(model)
        ledger.capped = ledger.capped or self.limits != Limits()
        self._models[place] = model
        return model

    # -- one proposal ---------------------------------------------------------------------

    def compare(self, study: Study, suggested: Mapping[str, BaseDistribution]) -> None:
        """Log, once, where an objective suggests a parameter otherwise than `known` has it."""
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

    def propose(self, begun: Begun, entropy: tuple[int, ...], may_stop: bool) -> dict[str, Any]:
        """Propose the parameters of a trial, and let other workers see them.

        Raises:
            LLMOptError: See `LLMSampler.sample_relative`.
            StudyStopped: The model ends the search.
        """
        began = time.monotonic()
        study, trial, space, given = begun.study, begun.trial, begun.space, begun.given
        if read_note(current(study, trial), "source") is None:
            write_notes(study, trial, {"source": "llm"})  # so it is shown while the model thinks
        model, reader = self.model(study), self._reader_of(space)
        for one in self.partners:
            if isinstance(one, SamplerPartner):
                one.attend(study, trial, space)
        view = reader.view(study, begun.trials, trial.number)
        free = space.with_given(given, begun.needed, self.constraints, begun.left_out)
        self._say_ends(space.space, view)
        # What is set in this trial holds for no other one.
        offers = deque() if given else self._offers.setdefault(_place(study), deque())
        for attempt in range(_CLASHES):
            rng = np.random.default_rng((*entropy, trial.number, len(given), attempt))
            self._drop(offers, model, begun, view, free, may_stop)
            if not offers:
                offers.extend(self._ask(begun, model, view, free, rng, may_stop))
            offer = offers[0]
            if offer.stop:
                offers.clear()
                raise StudyStopped(offer.stop, offer.named)
            key, taken = space.key(offer.params), view.taken
            rivals: frozenset[Hashable] = frozenset()
            if attempt:  # what was published while the model was asked
                rivals = self._taken(begun, reader)
            publish(study, trial, space, offer.params)
            view = reader.view(study, study.get_trials(deepcopy=False), trial.number)
            # Of workers that publish the same point at once again, the first trial keeps it.
            rivals |= self._taken(begun, reader, trial.number) if attempt else view.taken
            if self.asking.options.noisy or key in taken or key not in rivals:
                break  # else another worker took it while the model was asked
        try:
            annotate(
                study, trial, offer.proposal, offer.start, offer.cost, offer.model, offer.named
            )
            note_wait(study, trial, time.monotonic() - began)
        except BaseException:  # the point waits for the next trial: it may be paid for
            with contextlib.suppress(Exception):
                publish(study, trial, space, {})
            raise
        offers.popleft()
        _ledger(model).settle([offer.proposal.source], {})
        return dict(offer.params)

    @staticmethod
    def _taken(begun: Begun, reader: StudyHistory, before: float = math.inf) -> frozenset[Hashable]:
        """Return the points of finished trials, and of the others before a number."""
        trials = begun.study.get_trials(deepcopy=False)
        shown = [t for t in trials if t.state.is_finished() or t.number < before]
        return reader.view(begun.study, shown, begun.trial.number).taken

    def _drop(
        self,
        offers: deque[_Offer],
        model: Journaled,
        begun: Begun,
        view: View,
        free: BranchedSpace,
        may_stop: bool,
    ) -> None:
        """Drop the next points that wait, until one is new and lacks no value."""
        space, noisy = begun.space, self.asking.options.noisy
        while offers:
            offer = offers[0]
            values = space.flatten(offer.params)
            if offer.stop:
                if may_stop:
                    return
            elif values is None or free.missing(dict(enumerate(values))):
                _ledger(model).settle((), {"incomplete": 1})
            elif not noisy and space.key(offer.params) in view.taken:
                _ledger(model).settle((), {"taken meanwhile": 1})
            else:
                return
            offers.popleft()

    def _ask(
        self,
        begun: Begun,
        model: Journaled,
        view: View,
        free: BranchedSpace,
        rng: np.random.Generator,
        may_stop: bool,
    ) -> list[_Offer]:
        """Return the points of an answer, and at its end the stop, if there is one."""
        options = replace(self.asking.options, may_stop=may_stop)
        if begun.given:
            options = replace(options, points=1)
        notes = (*hints(begun.study, self.hints, begun.given), *_not_tried(free))
        asking = replace(self.asking, options=options, notes=notes)
        seen = free.keys_within(self._compared(begun, view, free))
        n = 1 if begun.given else self.batch_size
        ledger = _ledger(model)
        blocks = [Block.read(run.event.result) for run in ledger.state.runs]
        scope = model.scope(ledger.state.count)
        try:
            answer = propose_in_turns(
                asking, scope, self.partners, free, view.history, rng, n, seen, before=blocks
            )
        except LLMOptError as error:
            if is_permanent(error) or options.on_error == "raise":
                raise
            answer = Outcome(trouble=f"{type(error).__name__}: {error}")
        if text := fill(answer, free, rng, n, seen, client_name(self.client)):
            warn_user(text)
        ledger.settle((), answer.rejected, [run.number for run in scope.runs])
        offers = self._offered(begun, view, answer, scope.replies)
        if answer.stop is not None:
            why = answer.stop[0]
            named = named_in(why, view.numbers, begun.trial.number)
            offers.append(_Offer(Proposal((), "llm"), {}, stop=why, named=named))
        return offers

    def _compared(self, begun: Begun, view: View, free: BranchedSpace) -> set[Hashable]:
        """Return the keys of the points that a new one may not equal.

        Parameters that are not asked for (`PartialFixedSampler` sets them) are not compared.
        """
        if not begun.left_out:
            return set(view.taken)
        fixed = {i for i, name in enumerate(free.names) if name in begun.left_out}
        points = [*(t.values for t in view.history.trials), *view.history.pending]
        return {
            free.key(tuple(ABSENT if i in fixed else v for i, v in enumerate(values)))
            for values in points
        }

    def _offered(
        self, begun: Begun, view: View, answer: Outcome, replies: Sequence[Any]
    ) -> list[_Offer]:
        costs = [reply.cost for reply in replies if reply.cost is not None]
        asked = sum(p.source == "llm" for p in answer.proposals)
        share = sum(costs) / asked if asked and len(costs) == len(replies) else None
        model = replies[-1].model if replies else ""
        offers = []
        for p in answer.proposals:
            named = named_in(p.explanation, view.numbers, begun.trial.number)
            offer = _Offer(p, begun.space.params(p.values), named=named)
            if p.source == "llm":
                offer = replace(offer, start=view.start_of(p.explanation), cost=share, model=model)
            offers.append(offer)
        return offers

    def _reader_of(self, space: StudySpace) -> StudyHistory:
        if self._reader is None or self._reader.space.distributions != space.distributions:
            noisy = self.asking.options.noisy
            self._reader = StudyHistory(space, self.constraints, noisy, self.curves)
        return self._reader

    def outcome(self, study: Study, trials: Sequence[FrozenTrial]) -> str:
        """Return the outcome of a study with these trials in words."""
        space = self.space(trials)
        return outcome(self._reader_of(space).view(study, trials, -1).history, space.space)

    def _say_ends(self, space: Space, view: View) -> None:
        """Say where the best trial lies on the end of a range, and has for a while."""
        best, told = view.history.best, len(view.history.trials)
        if best is None or len(view.history.directions) > 1:
            return  # an end of a Pareto front always lies there
        if told - best.number >= _BEST_SINCE:
            for end in on_bounds(space, best.values):
                self._say(
                    end,
                    f"The best of {told} trials lies on the edge of the space: {end}. A better "
                    "one may lie beyond: widen the range if you can.",
                )

    def _say(self, about: object, text: str) -> None:
        """Log a warning, once about each thing."""
        if about not in self._warned:
            self._warned.add(about)
            logger.warning(text)
