"""One proposal for a trial: who is asked, and the points of an answer that wait."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from optuna.study import Study
from optuna.trial import FrozenTrial

from llmopt.adapters.optuna.branches import BranchedSpace
from llmopt.adapters.optuna.history import StudyHistory, View, hints_of, space_trials
from llmopt.adapters.optuna.partner import SamplerPartner
from llmopt.adapters.optuna.records import (
    StudyLedger,
    annotate,
    current,
    note_drawn,
    publish,
    read_fixed,
    read_note,
    write_notes,
)
from llmopt.adapters.optuna.space import Known, StudySpace, logger
from llmopt.caps import Limits, checked
from llmopt.client.base import Client, client_name
from llmopt.errors import BudgetExceededError, LLMOptError, SearchStopped, is_permanent, warn_user
from llmopt.from_optuna import PREFIX, for_readers, named_in
from llmopt.history import Proposal, Usage
from llmopt.model_calls import ModelCalls, Scope
from llmopt.point_task import Asking
from llmopt.progress import waiting
from llmopt.prompt import Prompt
from llmopt.propose import Outcome
from llmopt.space.constraints import Limit
from llmopt.space.values import ABSENT
from llmopt.turns import Partner, fill, propose_in_turns
from llmopt.util.text import ended
from llmopt.util.threads import Lock
from llmopt.views import outcome

_CLASHES = 4  # points that other workers may take before this one takes a repeat
_YIELDED = (0.1, 0.4)  # seconds for later trials to give up a point that this one has taken, too


_FAULTS = {
    "out of range": "as a range has changed",
    "fixed otherwise": "as other values are set by now",
    "taken meanwhile": "as another worker took the point meanwhile",
}


class Ended(Exception):
    """The model ended the search, and ``study.optimize`` stops."""


@dataclass(frozen=True)
class Offer:
    """A point of an answer that no trial has taken yet."""

    proposal: Proposal
    params: Mapping[str, Any]  # in Optuna's form
    named: Mapping[str, int | None]  # see `named_in`
    cost: float | None = None
    model: str = ""
    stop: str = ""  # why the model ends the search, in place of a point


@dataclass(frozen=True)
class Need:
    """A trial that needs parameters."""

    study: Study
    trial: FrozenTrial
    trials: Sequence[FrozenTrial]  # of the study
    space: StudySpace
    given: Mapping[str, Any]  # parameters already set in the trial
    fixed: Mapping[str, Any]  # the ones of them that a sampler around this one sets in each trial
    needed: str = ""  # a parameter that it needs, whatever the others
    left_out: Collection[str] = ()  # parameters that are not asked for

    @property
    def special(self) -> bool:
        """Whether something is set in this trial that holds for no other one."""
        return self.given != self.fixed


class StudyModel(ModelCalls):
    """A model with the account of a study, and the points of its answers that wait."""

    journal: StudyLedger

    def __init__(self, client: Client, study: Study) -> None:
        super().__init__(client, StudyLedger(study))
        self.offers: deque[Offer] = deque()
        self.refused: list[str] = []  # why offers were not taken, for the next request
        self.reached: Limits | None = None  # the caps of which a warning said that they are reached


class Asker:
    """The part of `LLMSampler` that asks the model, with an account for each study."""

    batch_size: int
    hints: Sequence[str] | None
    _asking: Asking
    _client: Client
    _constraints: Sequence[Limit]
    _curves: bool
    _earlier: Usage  # of the sampler that this one is a copy of
    _end: tuple[str, str] | None  # why the model ended a search: for it, and for people
    _entropy: tuple[int, ...]
    _known: Known
    _limits: Limits
    _partners: Sequence[Partner]

    def _forget(self) -> None:
        """Drop what belongs to another process."""
        self._lock, self._process = Lock(), os.getpid()
        self._models: dict[Hashable, StudyModel] = {}
        self._latest: StudyModel | None = None
        self._reader: StudyHistory | None = None

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            state = {**self.__dict__, "_earlier": self.usage}
        for name in ("_lock", "_process", "_models", "_latest", "_reader"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    @property
    def client(self) -> Client:
        """The model."""
        return self._client

    @property
    def usage(self) -> Usage:
        """What this sampler object has spent, on all of its studies (a copy)."""
        usage = self._earlier.copy()
        for model in [*self._models.values()]:
            usage.add(model.usage)
        return usage

    @property
    def limits(self) -> Limits:
        """The caps of each study; assign new ones to change them."""
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._limits = checked(limits)

    @property
    def left(self) -> dict[str, float]:
        """The remaining budget of the latest study under each cap that is set."""
        return self.limits.left(Usage() if self._latest is None else self._latest.journal.spent)

    @property
    def prompt(self) -> Prompt:
        """The prompt in use."""
        return self._asking.prompt

    def _model(self, study: Study) -> StudyModel:
        """Return the model with the account of a study: by its storage and name."""
        if self._process != os.getpid():  # what the parent process asked for is its own
            self._forget()
        place = id(study._storage), study.study_name
        if (model := self._models.get(place)) is None:
            model = self._models.setdefault(place, StudyModel(self.client, study))
            about = {"model": client_name(self.client), "prompt": self.prompt.name}
            about |= {
                "seed": str(self._entropy[0]),
                "description": self._asking.options.description,
            }
            model.journal.describe(about)
        self._latest = model
        model.limits = self.limits
        return model

    def _space(self, trials: Sequence[FrozenTrial]) -> StudySpace:
        """Return the parameters of a study with these trials."""
        return StudySpace(space_trials(trials), self._known)

    def _reader_of(self, space: StudySpace) -> StudyHistory:
        if self._reader is None or self._reader.space.distributions != space.distributions:
            noisy = self._asking.options.noisy
            self._reader = StudyHistory(space, self._constraints, noisy, self._curves)
        self._reader.space = space  # its trials are the latest
        return self._reader

    def _propose(self, need: Need) -> dict[str, Any]:
        """Return the parameters that a trial needs, of the model, within the caps."""
        if not need.space.distributions.keys() - need.given.keys():
            return {}
        try:
            with self._lock:
                # Threads that began a trial before the end are stopped by it, too.
                if self._end and getattr(need.study, "_stop_flag", False):
                    self._stop(need)
                return self._take(need)
        except BaseException as error:
            self._queue_again(need)
            if not isinstance(error, LLMOptError):
                raise
            now = current(need.study, need.trial)
            drawn = now.params.keys() - read_fixed(now).keys()
            if not isinstance(error, SearchStopped) and drawn:
                if read_note(now, "source") is None:  # its values are not the model's
                    write_notes(need.study, need.trial, {"source": "fallback"})
            if isinstance(error, BudgetExceededError):
                self._conclude(str(error), self._outcome(need.study, need.trials))
            if getattr(error, "exhausted", False):  # what to do is in it, and nothing is to debug
                raise error.with_traceback(None) from None
            raise

    def _queue_again(self, need: Need) -> None:
        """Queue an enqueued point again, if its trial ends with none but its own parameters."""
        now, study = current(need.study, need.trial), getattr(need.study, "_study", need.study)
        if (fixed := read_fixed(now)) and now.params.keys() <= fixed.keys():
            attrs = {k: v for k, v in now.user_attrs.items() if not k.startswith(PREFIX)}
            study.enqueue_trial(dict(fixed), attrs)

    def _stop(self, need: Need) -> None:
        """End the study, and leave the trial to be pruned at its first suggestion."""
        assert self._end is not None
        shown = self._end[1]
        write_notes(need.study, need.trial, {"source": "stopped", "explanation": shown})
        try:
            need.study.stop()
        except RuntimeError:  # there is no such loop
            self._end = None
            raise SearchStopped(shown) from None
        raise Ended(shown)

    def _take(self, need: Need) -> dict[str, Any]:
        """Take a point for a trial, of an earlier answer or a new one, and publish it."""
        began, study, trial = time.monotonic(), need.study, need.trial
        model = self._model(study)
        ledger = model.journal
        may_stop = self._asking.options.may_stop
        if may_stop is None:  # where no loop can be stopped, a stop would end nothing
            may_stop = not need.special and _in_loop(study)
        offers = deque[Offer]() if need.special else model.offers
        if offers and offers[0].stop and not may_stop:
            offers.clear()
        for attempt in range(_CLASHES):
            space, reader = need.space, self._reader_of(need.space)
            view = reader.view(study, need.trials, trial.number)
            free = space.with_given(need.given, need.needed, self._constraints, need.left_out)
            while offers and (fault := self._fault(offers[0], need, view)):
                ledger.settle((), {fault: 1})
                point = ", ".join(f"{n} = {v!r}" for n, v in offers.popleft().params.items())
                model.refused.append(f"not used, {_FAULTS[fault]}: {point}")
            if not offers:
                rng = np.random.default_rng(
                    (*self._entropy, trial.number, len(need.given), attempt)
                )
                offers.extend(self._ask(need, view, free, rng, may_stop))
            offer = offers[0]
            if offer.stop:
                offers.clear()
                self._end = offer.stop, for_readers(offer.stop, offer.named)
                if _in_loop(study):
                    logger.info(f"{ended(self._end[1])} The study was stopped.")
                self._stop(need)
            before, key = view.taken, space.key(offer.params)
            publish(study, trial, space.codes(offer.params))
            repeats = self._asking.options.noisy or key in before
            if repeats or key not in self._view_of_rivals(need, reader, key).taken:
                break
            if attempt < _CLASHES - 1:
                publish(study, trial, {})
                trials = study.get_trials(deepcopy=False)
                need = replace(need, trials=trials, space=self._space(trials))
        try:
            wait = time.monotonic() - began
            annotate(study, trial, offer.proposal, offer.cost, offer.model, offer.named, wait)
            values = space.flatten(offer.params) or ()
            if new := [free.names[i] for i in free.missing(dict(enumerate(values)))]:
                note_drawn(study, trial, *new)  # they were not known when it was proposed
        except BaseException:  # the point waits for the next trial: it may be paid for
            with contextlib.suppress(Exception):
                publish(study, trial, {})
            raise
        offers.popleft()
        ledger.settle([offer.proposal.source], {})
        return dict(offer.params)

    def _view_of_rivals(self, need: Need, reader: StudyHistory, key: Hashable) -> View:
        """Return the study as it is once a point is published.

        Other workers may have taken the point while the model was asked. Of trials that take it at
        once, the earliest gets it: it waits for the others, which see it, to give it up.
        """
        for wait in (*_YIELDED, 0.0):
            trials = need.study.get_trials(deepcopy=False)
            view = reader.view(need.study, trials, need.trial.number)
            if view.taken.get(key, -1) < need.trial.number:
                break
            time.sleep(wait)
        return view

    def _fault(self, offer: Offer, need: Need, view: View) -> str:
        """Return why a trial cannot take a point of an earlier answer; nothing if it can."""
        if offer.stop:
            return ""
        if need.space.flatten(offer.params) is None:
            return "out of range"
        if any(offer.params.get(name, value) != value for name, value in need.fixed.items()):
            return "fixed otherwise"
        taken = not self._asking.options.noisy and need.space.key(offer.params) in view.taken
        return "taken meanwhile" if taken else ""

    def _ask(
        self,
        need: Need,
        view: View,
        free: BranchedSpace,
        rng: np.random.Generator,
        may_stop: bool,
    ) -> list[Offer]:
        """Return the points of an answer, and at its end the stop, if there is one."""
        study, trial, space = need.study, need.trial, need.space
        options = replace(self._asking.options, may_stop=may_stop)
        if need.special:
            options = replace(options, points=1)
        model = self._model(study)
        hints = hints_of(study, self.hints, need.given)
        notes = (*hints, *free.not_tried, *model.refused)
        model.refused.clear()
        asking = replace(self._asking, options=options, notes=notes)
        partners = [
            replace(p, trial=(study, trial, space), repeats=options.noisy)
            if isinstance(p, SamplerPartner)
            else p
            for p in self._partners
        ]
        # Parameters that are not asked for (`PartialFixedSampler` sets them) are not compared.
        keys: Iterable[Hashable] = view.taken
        if need.left_out:
            points = [*(t.values for t in view.history.trials), *view.history.pending]
            pairs = [list(zip(free.names, point, strict=True)) for point in points]
            keys = [free.key([ABSENT if n in need.left_out else v for n, v in p]) for p in pairs]
        seen = free.keys_within(keys)
        n = 1 if need.special else self.batch_size
        ledger = model.journal
        scope = Scope(model, ledger.state)
        try:
            with waiting():
                answer = propose_in_turns(asking, scope, partners, free, view.history, rng, n, seen)
        except LLMOptError as error:
            if is_permanent(error) or options.on_error == "raise":
                raise
            answer = Outcome(trouble=f"{type(error).__name__}: {error}", failed=True)
            fill(answer, asking, scope, free, rng, n, seen)
        ledger.settle((), answer.rejected, [run.number for run in scope.runs])
        if answer.error is not None and answer.failed:
            raise answer.error
        for text in answer.warnings:
            if not answer.capped or model.reached != model.limits:
                warn_user(text)
            if answer.capped:
                model.reached = model.limits
        asked = sum(p.source == "llm" for p in answer.proposals)
        costs = [reply.cost for reply in scope.replies if reply.cost is not None]
        share = sum(costs) / asked if asked and len(costs) == len(scope.replies) else None
        name = scope.replies[-1].model if scope.replies else ""
        offers = []
        for p in answer.proposals:
            named = named_in(p.explanation, view.numbers, trial.number)
            about = (share, name) if p.source == "llm" else ()
            offers.append(Offer(p, space.params(p.values), named, *about))
        if answer.stop is not None:
            why = answer.stop[0]
            named = named_in(why, view.numbers, trial.number)
            offers.append(Offer(Proposal((), "llm"), {}, named, stop=why))
        return offers

    def _outcome(self, study: Study, trials: Sequence[FrozenTrial]) -> str:
        """Return the outcome of a study with these trials in words."""
        space = self._space(trials)
        if not space:  # no trial has got parameters and a result
            return "No result yet.\n"
        with self._lock:
            history = self._reader_of(space).view(study, trials).history
        return outcome(history, space.space)

    def _conclude(self, why: str, words: str) -> None:
        """Say the end of a study to a model that takes it."""
        if callable(conclude := getattr(self.client, "conclude", None)):
            conclude(f"Why it ended: {why}\n{words}")


def _in_loop(study: Study) -> bool:
    """Whether ``study.optimize`` is running in this thread."""
    local = getattr(getattr(study, "_study", study), "_thread_local", None)
    return bool(getattr(local, "in_optimize_loop", False))
