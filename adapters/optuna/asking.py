"""One proposal for a trial: who is asked, what was paid for already, and what others took."""

from __future__ import annotations

import contextlib
import difflib
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial

from llmopt.adapters.optuna.history import StudyHistory, View, hints, learned, source_of
from llmopt.adapters.optuna.ledger import StudySpending
from llmopt.adapters.optuna.mistakes import misplaced, unknown_names, unread
from llmopt.adapters.optuna.partner import SamplerPartner, for_choices
from llmopt.adapters.optuna.records import (
    annotate,
    keep_rest,
    note_took,
    note_wait,
    publish,
    read_took,
    write_dashboard_note,
)
from llmopt.adapters.optuna.space import Known, StudySpace, logger
from llmopt.client.base import client_name
from llmopt.errors import BudgetExceededError, SearchStopped, is_permanent, warn_user
from llmopt.history import Proposal
from llmopt.search.emitter import ModelEmitter
from llmopt.search.meter import Draft
from llmopt.search.optuna_trials import (
    AMOUNTS,
    for_readers,
    named_in,
    number_of,
    read_named,
    shares_of,
    text_of,
)
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
    """A point that no trial has taken yet, with its parameters in Optuna's form; see `annotate`."""

    proposal: Proposal
    params: Mapping[str, Any]
    start: int | None = None
    cost: float | None = None
    model: str = ""
    ref: str = ""  # of a point that the study keeps; see `keep_rest`
    stop: str = ""  # why the model ends the search, in place of a point
    named: Mapping[str, int | None] = field(default_factory=dict)  # of its words; see `named_in`

    @classmethod
    def restored(cls, kept: Mapping[str, Any], space: StudySpace) -> _Offer:
        """Return what `stored` gave; it has no parameters if it has no place in the space."""
        words = [text_of(kept.get(name)) for name in ("explanation", "model", "stop")]
        start = kept.get("start")
        source = source_of(kept.get("source"))
        return cls(
            Proposal((), source, words[0], **shares_of(kept.get)),
            space.restored(kept.get("params")),
            start if type(start) is int else None,
            number_of(kept.get("cost")),
            *(words[1], kept["ref"], words[2], read_named(kept.get("named"))),
        )

    def stored(self, space: StudySpace) -> dict[str, Any]:
        """Return it as JSON."""
        facts = ("source", "explanation", "clipped", *AMOUNTS)
        known = {n: getattr(self.proposal, n) for n in facts}
        known |= {n: getattr(self, n) for n in ("start", "cost", "model", "stop")}
        known |= {"named": self.named} if self.named else {}
        return known | {"params": space.stored(self.params)}


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
            self._offers.clear()
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
        gone = dict.fromkeys(read_took(trial), True)
        clashes = 0
        while True:
            rng = np.random.default_rng((*entropy, trial.number, len(given), clashes))
            offer, lacked = (None, []) if given else self._next(place, begun, view, free, gone)
            if offer is None and clashes < _CLASH_ROUNDS:
                self._ask(place, begun, view, free, rng, lacked)
                offer = offers.popleft()
            elif offer is None:
                trouble = "other workers took all the points that it gave"
                drawn = self._fall_back(free, view, rng, trouble)
                offer = _Offer(drawn, space.params(drawn.values))
            try:
                view, lost = self._take(begun, offer, view, look, rng, gone)
            except BaseException:
                # It is paid for: the next trial gets it.
                if not offer.ref:
                    offers.appendleft(offer)
                with contextlib.suppress(Exception):
                    self._give_way(begun, offer, gone)
                raise
            if not lost:
                break
            if not offer.ref:  # a kept point is not lost: another trial has it
                self._discard(offer)
                clashes += 1
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
        gone: dict[str, bool],
    ) -> tuple[View, bool]:
        """Write a point into a trial, unless another worker takes the same one meanwhile.

        A worker that asked at the same time did not see this trial's proposal, and this one did
        not see its. After both have written, at least one sees the other's. After a pause of
        random length, a few times what the storage takes, it looks again: if the other one has
        not given way, this one does. Of those that take the same kept point, only the earliest
        trial looks again.
        """
        study, trial, space = begun.study, begun.trial, begun.space
        key = space.key(offer.params)
        again = self._model.options.noisy or key in before.taken
        started = time.monotonic()
        if gone:
            note_took(study, trial, gone)
        publish(study, trial, space, offer.params)
        for pause in (0.0, rng.uniform(0, _CLASH_PAUSE)):
            time.sleep(pause * (time.monotonic() - started))
            view = look(study.get_trials(deepcopy=False))
            if (again or key not in view.taken) and offer.ref not in view.took:
                paid = offer.start, offer.cost, offer.model, offer.named
                annotate(study, trial, offer.proposal, *paid)
                if self._notes:
                    write_dashboard_note(study, trial)
                if offer.ref:
                    self._model.meter.count_proposal(offer.proposal.source)
                return view, False
            if view.took.get(offer.ref, trial.number) < trial.number:
                break
        self._give_way(begun, offer, gone)
        return view, True

    def _give_way(self, begun: Begun, offer: _Offer, gone: dict[str, bool]) -> None:
        """Leave a point to another trial."""
        publish(begun.study, begun.trial, begun.space, begun.given)
        if offer.ref:
            gone[offer.ref] = False
            note_took(begun.study, begun.trial, gone)

    def _discard(self, offer: _Offer, why: str = "taken meanwhile") -> None:
        """Count a paid point that no trial gets; a kept one counts as a proposal once taken."""
        if not offer.ref:
            self._model.meter.count_proposal(offer.proposal.source, -1)
        self._model.meter.count_rejection(why)

    def _next(
        self, place: object, begun: Begun, view: View, free: BranchedSpace, gone: dict[str, bool]
    ) -> tuple[_Offer | None, list[str]]:
        """Return the next point that was paid for and waits, or what the points that wait lack.

        Points are discarded that are taken by now. Those that lack a parameter which the study has
        got since wait until no other does: the model then gives the whole point in the next
        request, if one can be sent. What is returned or discarded joins `gone`.
        """
        space, options, lacked = begun.space, self._model.options, []
        kept = [_Offer.restored(p, space) for p in view.rest if p["ref"] not in gone]
        waiting = [*self._offers[place], *kept]
        incomplete = []
        for offer in sorted(waiting, key=lambda offer: bool(offer.stop)):  # the end comes last
            key, values = space.key(offer.params), space.flatten(offer.params)
            lacking = values and free.missing(dict(enumerate(values)))
            if lacking and self._can_ask():
                incomplete.append(offer)
                if offer.proposal.source == "llm":
                    lacked.append(" and ".join(free.names[i] for i in lacking))
                continue
            self._leave(place, offer, gone)
            if offer.stop and options.may_stop and not lacked:  # it has seen all that it gave
                note_took(begun.study, begun.trial, gone)
                raise StudyStopped(offer.stop, offer.named)
            if not offer.stop and (options.noisy or (key is not None and key not in view.taken)):
                return offer, []
            if not offer.stop:
                self._discard(offer)
        for offer in incomplete:
            self._leave(place, offer, gone)
            self._discard(offer, "incomplete")
        return None, lacked

    def _leave(self, place: object, offer: _Offer, gone: dict[str, bool]) -> None:
        """Let a point wait no more."""
        if offer.ref:
            gone[offer.ref] = True
        else:
            self._offers[place].remove(offer)

    def _can_ask(self) -> bool:
        """Whether no cap is reached: a part of a paid point is better than a random one."""
        try:
            self._model.limits.check(self._model.meter.counted)
        except BudgetExceededError:
            return False
        return True

    def _ask(
        self,
        place: object,
        begun: Begun,
        view: View,
        free: BranchedSpace,
        rng: np.random.Generator,
        lacked: Sequence[str],
    ) -> None:
        """Queue a new point before the waiting ones, and let the study keep the others.

        `lacked` says what discarded points lacked. If the trial has parameters set, one point is
        asked for.
        """
        n = 1 if begun.given else self._batch_size
        notes = (*hints(begun.study, self._hints, begun.given), *_not_tried(free))
        if lacked:
            notes += (
                f"{len(lacked)} of the points that you gave before: not measured, as nobody knew "
                f"then that their choice has {'; '.join(dict.fromkeys(lacked))}. Give such a point "
                "anew, whole, if it is still of use",
            )

        named = partial(named_in, numbers=view.numbers, trial=begun.trial.number)

        def ask(_: Draft) -> list[Proposal]:
            try:
                taken = free.keys_within(view.taken)
                return self._emitter.propose(free, view.history, rng, n, taken=taken, notes=notes)
            except SearchStopped as end:
                raise StudyStopped(str(end), named(str(end)), end.point) from None
            except Exception as error:
                if is_permanent(error) or self._model.options.on_error == "raise":
                    raise
                return [self._fall_back(free, view, rng, f"{type(error).__name__}: {error}")]

        points, draft = self._model.meter.asking(ask)
        replies = [reply for _, reply in draft.replies]
        costs = [reply.cost for reply in replies if reply.cost is not None]
        asked = sum(p.source == "llm" for p in points)
        share = sum(costs) / asked if asked and len(costs) == len(replies) else None
        model = replies[-1].model if replies else ""
        found = []
        for p in points:
            paid = (view.start_of(p.explanation), share, model) if p.source == "llm" else ()
            offer = _Offer(p, begun.space.params(p.values), *paid)
            found.append(replace(offer, named=named(p.explanation)))
        if draft.stop is not None:
            end = str(draft.stop)
            found.append(_Offer(Proposal((), "llm"), {}, stop=end, named=named(end)))
        offers = self._offers[place]
        offers.extendleft(reversed(found))
        for text in draft.warnings:
            warn_user(text)
        rest = found[1:]
        if rest and not begun.given:
            keep_rest(begun.study, begun.trial, [one.stored(begun.space) for one in rest])
            for one in rest:  # in the study from now on
                del offers[1]
                self._model.meter.count_proposal(one.proposal.source, -(not one.stop))

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
        if best is None or len(view.history.directions) > 1:
            return  # an end of a Pareto front always lies there
        if told - best.number >= _BEST_SINCE:
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
