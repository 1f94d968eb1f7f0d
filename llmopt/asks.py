"""How a search asks: points from the queue, the warm-up, the model and its partners."""

from __future__ import annotations

import ast
import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy as np

from llmopt._version import __version__
from llmopt.client.base import PROMPT_VERSION, Completion
from llmopt.client.model_facts import model_facts
from llmopt.errors import (
    BudgetExceededError,
    ClientError,
    ParameterError,
    SearchStopped,
    described,
    warn_user,
)
from llmopt.events import Asked, Queued, Started, Withdrawn
from llmopt.history import Params, Proposal, without_withdrawn
from llmopt.journal import FORMAT
from llmopt.model_calls import Scope, Stale, warn_of_unused
from llmopt.options import options_to_store
from llmopt.point_task import Asking
from llmopt.points import left_out, lost_rows, place_of, point_to_ask, sample_new
from llmopt.prompt import Prompt
from llmopt.prompt.describe import describe_params
from llmopt.prompt.python_block import Computed as Block
from llmopt.propose import Outcome
from llmopt.results import Results
from llmopt.resume_check import split_options
from llmopt.space.fixed import Fixed
from llmopt.state import State, proposal_to_json, queued_point
from llmopt.turns import Partner, propose_in_turns
from llmopt.util.arguments import MOST_POINTS, whole_number
from llmopt.util.caller import CALLER
from llmopt.util.files import stamp_of
from llmopt.util.text import clean, counted, cut, ended, short
from llmopt.util.threads import Lock

logger = logging.getLogger(__name__)

_REASON = 1000  # characters of why a search ended
_CLOSED = "the program ended"


@dataclass
class _Draft:
    """The points of an ask that is not recorded yet.

    Attributes:
        asking: How the model is asked.
        scope: Its calls, and the state that it began from.
        rng: Its source of randomness.
        seen: Keys of the points not to propose again; grows.
        outcome: Its points.
        completed: The points with some parameters that got the others.
    """

    asking: Asking
    scope: Scope
    rng: np.random.Generator
    seen: set[Hashable]
    outcome: Outcome = field(default_factory=Outcome)
    completed: list[Fixed] = field(default_factory=list)


def _ended(why: str, point: int | None) -> SearchStopped:
    """Return the model's end of a search as an error that says what continues it."""
    also = "Corrected or withdrawn results and other candidates or limits also continue the search"
    return SearchStopped(f"{ended(why)} To go on, {CALLER.get().reopens}. {also}", point)


class Asks(Results[Params]):
    """The part of `LLMOptimizer` that makes points."""

    batch_size: int
    seed: int
    n_warmup: int
    _asking: Asking
    _ask_lock: Lock  # asks run one after another
    _concluded: bool
    _partners: tuple[Partner, ...]
    _id = ""  # the identifier of the search, once its journal is open
    _start: list[tuple[str, tuple[Any, ...]]]
    _warmup_points: tuple[tuple[Any, ...], ...] | None

    def started(self) -> Started:
        """Return the first event of a storage file, which says what search it is."""
        points, encode = self._warmup_points, self.space.to_json_values
        values = vars(self._options) | vars(self._options.limits)
        values |= {"warmup": self.n_warmup, "batch_size": self._options.batch_size}
        values["start"] = [[words, encode(point)] for words, point in self._start]
        fixed, changing = split_options(options_to_store(values))
        if points is not None:
            fixed["warmup_points"] = list(map(encode, points))
        identity = {
            "space": self.space.to_dict(),
            "directions": list(self.directions),
            "seed": self.seed,
            "options": fixed,
        }
        if self.metrics:
            identity["metrics"] = list(self.metrics)
        changing |= {"client": self._asking.facts.name, "prompt": self.prompt.to_dict()}
        about = {
            "llmopt": __version__,
            "prompts": PROMPT_VERSION,
            **self._asking.facts_to_store(),
        }
        return Started(FORMAT, identity, changing, about, self._id)

    @property
    def model_began(self) -> bool:
        """Whether the warm-up is over: the model, a partner or a fallback has proposed a point."""
        state, before = self._journal.state, ("warmup", "user")
        sources = [t.source for t in state.trials if t.kind != "imported"]
        sources += [p.source for p in (*state.pending, *state.queue)]
        return any(source not in before for source in sources)

    def check_asks(self, planned: int, *, given: bool) -> None:
        """Log a warning if the `planned` points are too few for the model to be asked."""
        if self.n_warmup >= planned > 0 and not self._partners and not self.model_began:
            logger.warning(
                "%s not less than the %d points planned: the model is never asked. %s more points",
                f"warmup={self.n_warmup} is"
                if given
                else f"the number of random points, {self.n_warmup}, is",
                planned,
                "Omit warmup, or plan" if given else "Plan",
            )

    @property
    def prompt(self) -> Prompt:  # type: ignore[override]
        """The prompt in use."""
        return self._asking.prompt

    @property
    def total(self) -> int | None:
        """Planned number of proposals, as stated in the prompt; may be changed during a search.

        Raises:
            ValueError: The new value is not a whole number above 0.
        """
        return self._asking.options.total

    @total.setter
    def total(self, value: int | None) -> None:
        total = None if value is None else whole_number("total", value, 1)
        options = replace(self._asking.options, total=total)
        self._asking = replace(self._asking, options=options)

    @overload
    def ask(self, n: None = None, *, fixed: Mapping[str, Any] | None = None) -> Params: ...
    @overload
    def ask(self, n: int, *, fixed: Mapping[str, Any] | None = None) -> list[Params]: ...
    def ask(
        self, n: int | None = None, *, fixed: Mapping[str, Any] | None = None
    ) -> Params | list[Params]:
        """Return the next point to evaluate, or the next `n` of them.

        Warm-up points come first; then one request asks for all `n` points if the client can return
        several. Points do not repeat while the space has untried ones, unless ``noisy=True``.

        Args:
            n: Number of points; ``None`` for a single point, not in a list.
            fixed: Values that these points keep, by name: ``{"temperature": 80}``. The prompt
                states them. Queued points with other values wait for a later ask.

        Returns:
            Parameters in the form of the given space, or a list of `n` of them: of fewer if no
            more candidates are left, or if the model ends the search.

        Raises:
            BudgetExceededError: A cap on requests, tokens or cost is reached before there are `n`
                points, unless ``on_error="fallback"``; later asks return those that were paid for.
                Or, at the first call, `max_cost` is set and the cost is unknown.
            ClientError: The request failed, unless ``on_error="fallback"``; or, at the first call,
                the key or the model's file is missing.
            ImportError: At the first call, the model's package is missing.
            ParameterError: A name or a value of `fixed` is not of the space, or no point has them.
            PromptTooLongError: The prompt does not fit the model's context.
            SearchStopped: The model ended the search, with ``may_stop=True``.
            StorageError: The storage file could not be written; call again once it can.
        """
        count = 1 if n is None else whole_number("n", n, 1, MOST_POINTS)
        proposals, warned = self.ask_proposals(count, fixed)
        for text in warned:
            warn_user(text)
        if self.stopped and len(proposals) < count:
            warn_user(f"{len(proposals)} of {count} points: {self.stopped}", UserWarning)
        points = [self.space.unflatten(p.values) for p in proposals]
        return points[0] if n is None else points

    def ask_proposals(
        self, n: int, fixed: Mapping[str, Any] | None = None
    ) -> tuple[list[Proposal], list[str]]:
        """Return proposals with source and explanation, and texts of warnings; see `ask`."""
        kept = None if fixed is None else Fixed.of(self.space, fixed)
        self._journal.check()  # before a lock is waited for, and before anything is paid for
        self.check_ready()  # before the first warm-up point is evaluated
        if self._callbacks is not None and self._callbacks.stopped is not None:
            raise self._callbacks.stopped
        for text in self.notices(n):  # before the model is waited for
            warn_user(text, UserWarning)
        stamp = stamp_of(self._options.candidates)
        try:
            with self._ask_lock:
                self._journal.write_start()
                proposals, warned = self._ask(n, kept)
        except SearchStopped as stopped:
            if self._callbacks is not None:
                self._callbacks.reason = self.stopped or str(stopped)
            self.conclude(self.stopped or str(stopped))
            raise
        except BudgetExceededError as error:
            self.conclude(str(error))
            raise
        except ClientError as error:  # what to do is in it, and nothing is to debug
            raise error.with_traceback(None) from error.__cause__
        if stamp != stamp_of(self._options.candidates):
            warned += lost_rows(self.space, self._options.candidates, proposals)
        if self._callbacks is not None:
            for proposal in proposals:
                self._callbacks.notify("asked", proposal)
        return proposals, warned

    def _ask(self, n: int, fixed: Fixed | None) -> tuple[list[Proposal], list[str]]:
        """Make the points from the present state, or from that of an interrupted ask."""
        now = self._journal.state
        ready = len(now.queue) - len(self._waiting(now, fixed))
        table = (self.space if fixed is None else fixed.inside).rows
        if table is not None and not self._options.noisy:
            left = table.left(now.keys) + ready
            if not left and fixed is not None:
                raise ParameterError(f"no {table.row} with {fixed} is left: give other values")
            if not left:
                failed = any(t.state == "failed" for t in now.trials)
                raise SearchStopped(
                    f"all {table.size:,} candidates were proposed: none is left to try"
                    + "; withdraw a failed trial to repeat its run" * failed
                )
            n = min(n, left)
        # Queued points wait for no answer; a later ask repeats the interrupted one.
        interrupted = None if ready >= n else now.interrupted
        base = self._note_facts(now).count if interrupted is None else interrupted
        try:
            draft = self._make(n, base, fixed, repeats=interrupted is not None)
        except Stale:
            if now.paid:
                same = now.changes == self._journal.state_at(base).changes
                warn_of_unused("an answer that was paid for", same)
            draft = self._make(n, self._note_facts(self._journal.state).count, fixed, repeats=False)
        proposals, warnings = self._settle(n, fixed, draft)
        if draft.outcome.outdated:  # the next prompt states the new results
            proposals, more = self._ask(n, fixed)
            warnings += more
        return proposals, warnings

    def _waiting(self, state: State, fixed: Fixed | None) -> list[int]:
        """Return the places of the queued points that are gone, or lack one of the fixed values."""
        return [
            i
            for i, p in enumerate(state.queue)
            if self.obstacle(p) or (fixed is not None and not fixed.keeps(p.values))
        ]

    def notices(self, n: int) -> list[str]:
        """Say which queued points an ask for `n` points passes over, and if no plan has so many."""
        ways = ["add its row"] * (self.space.candidates is not None)
        ways += ["lift the limit"] * bool(self.space.limits)
        texts = [
            f"a queued point waits: {why}. Withdraw it, or {' or '.join(ways)}"
            for why in map(self.obstacle, self.queued_proposals)
            if why
        ]
        made = self.evaluations + len(self.pending_proposals)
        if self.total is not None and n > (left := max(0, self.total - made)):
            texts.append(
                f"asked for {counted(n, 'point')}, and {left} of the planned {self.total} are "
                "left: raise `total` if you plan more"
            )
        return texts

    def obstacle(self, point: Proposal | Fixed) -> str:
        """Say that a queued point is not allowed, after the space has changed; else nothing."""
        if self.space.candidates is not None and not self.space.candidates.loaded:
            return ""
        if isinstance(point, Proposal):
            if broken := self.space.broken(point.values):
                return f"{short(self.space.labelled(point.values))} breaks {', '.join(broken)}"
            return self.space.outside(point.values)
        try:
            _ = point.inside
        except ParameterError:
            return point.missing
        return ""

    def _note_facts(self, state: State) -> State:
        """Store the model's facts again if an answer changed them, such as a refused schema."""
        facts = model_facts(self.client)
        if state.started is None or facts.to_json() == self._asking.facts.to_json():
            return state
        self._asking = replace(self._asking, facts=facts)
        return self._journal.append(self.started())

    def _make(self, n: int, base: int, fixed: Fixed | None, *, repeats: bool) -> _Draft:
        """Return the new points of an ask that has seen `base` events, or repeats one that had."""
        state, table, asking = self._journal.state_at(base), self.space.rows, self._asking
        if repeats and state.started is not None:  # on another machine it states the same
            asking = asking.restored(state.started.facts)
        scope = Scope(self._model, state, repeats)
        draft = _Draft(asking, scope, state.generator, state.keys)
        outcome = draft.outcome
        missing = max(0, n - len(state.queue) + len(self._waiting(state, fixed)))
        partial = () if fixed is not None else state.partial
        partial = tuple([point for point in partial if not self.obstacle(point)][:missing])
        kinds = [*partial, *[fixed] * (missing - len(partial))]
        self._warm_up(draft, kinds)
        made = len(outcome.proposals)
        draft.completed += partial[:made]
        if state.stop is not None and len(kinds) - made >= n:
            raise _ended(self.end_of(state.stop), state.stop[1])
        single = partial[made:]
        more = [*((kind, 1) for kind in single), (fixed, missing - made - len(single))]
        for kind, count in more if state.stop is None else []:
            if count <= 0:
                continue
            wanted = count if kind is not None else max(count, self.batch_size)
            if table is not None and not self._options.noisy and kind is None:
                wanted = min(wanted, table.left(draft.seen))
            answer = self._ask_model(draft, wanted, kind)
            words = "" if kind is None else kind.words
            outcome.proposals += [p.with_words(words) for p in answer.proposals]
            outcome.rejected += answer.rejected
            outcome.warnings += answer.warnings
            outcome.stop = answer.stop
            if kind is not None and kind in single and answer.proposals:
                draft.completed.append(kind)
            enough = len(outcome.proposals) >= missing
            if answer.error is not None and not (answer.capped and enough):
                self._settle(0, fixed, draft)  # a later ask returns what was paid for before it
                raise answer.error
            outcome.refused = answer.refused
            outcome.outdated = outcome.stop is None and not enough and scope.outdated
            if outcome.outdated:
                break
        return draft

    def _warm_up(self, draft: _Draft, kinds: Sequence[Fixed | None]) -> None:
        """Add warm-up points: of a list, or random ones up to `n_warmup` in all.

        Args:
            draft: The ask.
            kinds: What each point wanted has to keep; given points may end before the last.
        """
        given, state = self._warmup_points, draft.scope.state
        begun = state.warmed
        if given is None:
            made = len(without_withdrawn(state.trials))
            begun = made + len(state.pending) + len(state.queue)
        for place, kind in zip(range(begun, self.n_warmup), kinds, strict=False):
            gone = "" if given is None else self.obstacle(Proposal(given[place], "warmup"))
            if gone:
                draft.outcome.warnings.append(f"warmup[{place}]: {gone}. It is a random point now")
            if given is None or gone:
                values = sample_new(self.space, draft.seen, draft.rng, kind)
            elif kind is None or kind.keeps(given[place]):
                values = given[place]
                draft.seen.add(self.space.key(values))
            else:
                break
            words = "" if kind is None else kind.words
            draft.outcome.proposals.append(Proposal(values, "warmup").with_words(words))

    def _ask_model(self, draft: _Draft, n: int, fixed: Fixed | None) -> Outcome:
        """Return points of the model, or of the model and its partners."""
        asking, state = draft.asking, draft.scope.state
        latest = state.count == self._journal.state.count
        with self._merging:
            history = state.history(self._merged if latest else None)
        if asking.options.total is not None:  # prompts count a point once, its repeats included
            beside = sum(trial.unplanned for trial in state.trials)
            total = asking.options.total + beside + len(history.trials) - len(state.trials)
            asking = replace(asking, options=replace(asking.options, total=max(1, total)))
        made = draft.outcome.proposals
        ready = [p for p in state.queue if not self.obstacle(p)]
        waiting = (*state.pending, *ready, *made)
        asking = replace(asking, notes=(*asking.notes, *left_out(waiting)))
        pending = tuple([p.values for p in waiting])
        return propose_in_turns(
            asking, draft.scope, self._partners, self.space,
            replace(history, pending=pending), draft.rng, n, draft.seen,
            waiting=[p.source for p in (*state.pending, *state.queue)], fixed=fixed,
        )  # fmt: skip

    @property
    def description(self) -> str:
        """The task in words, as the model reads it."""
        return str(self._options.description or "")

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The model's blocks of Python so far: `code`, `output`, and `trials` at the time."""
        state = self._journal.state
        return tuple(
            Block.read(run.event.result)
            for run in (*state.runs, *state.open_runs)
            if run.event.block
        )

    def _untried(self, draft: _Draft) -> list[Proposal]:
        """Return the proposals of an ask whose points were not recorded since it began."""
        now, base, key = self._journal.state, draft.scope.state, self.space.key
        if now.count == base.count or self._options.noisy:
            return list(draft.outcome.proposals)
        given = "warmup" if self._warmup_points is not None else ""
        tried = now.keys - base.keys
        made = draft.outcome.proposals
        return [p for p in made if p.source == given or key(p.values) not in tried]

    def _settle(
        self, n: int, fixed: Fixed | None, draft: _Draft
    ) -> tuple[list[Proposal], list[str]]:
        """Drop points that were recorded meanwhile, and record the ask.

        If points are missing then, the ask is outdated: it returns none yet.
        """
        outcome = draft.outcome
        with self._journal.lock:
            now, proposals = self._journal.state, self._untried(draft)
            waiting = self._waiting(now, fixed) if n else []
            ready = len(now.queue) - len(waiting)
            stop = outcome.stop or now.stop
            lost = [p.values for p in outcome.proposals if p not in proposals]
            if lost and ready + len(proposals) < n and stop is None:
                outcome.outdated = True
                if draft.scope.replies and not proposals:
                    outcome.refused = self._refusal(draft, lost)
            drawn = dict(draft.rng.bit_generator.state)
            given = 0 if outcome.outdated else min(n, ready + len(proposals))
            completed, left = list[int](), list(draft.completed)
            for place, point in enumerate(now.partial):
                if point in left:
                    left.remove(point)
                    completed.append(place)
            passed = [i for i in range(max(completed, default=0)) if i not in completed]
            state = self._journal.append(
                Asked(
                    [proposal_to_json(p, self.space) for p in proposals],
                    given,
                    draft.scope.blocks,
                    +outcome.rejected,
                    outcome.stop,
                    None if drawn == now.generator.bit_generator.state else drawn,
                    [*(waiting if given else ()), *(len(now.queue) + place for place in passed)],
                    len(completed),
                    outcome.refused,
                )
            )
        if stop is not None and n > given == 0:
            raise _ended(self.end_of(stop), stop[1])
        return list(state.pending[len(state.pending) - given :]), outcome.warnings

    def _refusal(self, draft: _Draft, lost: Sequence[tuple[Any, ...]]) -> tuple[str, str]:
        """Return the last answer, and say that its points are trials by now."""
        answer = next(iter(draft.scope.replies[-1].completions), Completion("")).text
        points = "; ".join(describe_params(p, self.space, self.space.names) for p in lost)
        return answer, f"it was recorded as a trial meanwhile: {points}"

    def check_ready(self) -> None:
        """Check once for what would stop the first request; see `ModelCalls.check_ready`."""
        self._model.check_ready(capped=self._options.on_error == "raise" and not self._partners)

    def equip(
        self, source: str, values: Mapping[str, Any] | None = None, words: Sequence[str] = ()
    ) -> None:
        """Let the model's Python code call your functions; no effect if the model runs no Python.

        Args:
            source: Python source that runs in the confined worker. Blocks, `pmap` and jobs can call
                its public functions. It may import ``math`` and ``numpy``.
            values: Constants for `source`: numbers, strings, lists and numeric arrays.
            words: Lines for the prompt, one for each function or entry of a trial's `data`:
                ``"drag(v): the drag in N at v m/s"``.

        The functions are not stored: call this again after a resume.

        Raises:
            ValueError: `source` is no Python.
        """
        try:
            ast.parse(source)
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"equip(): expected Python source: {error}") from None
        if self._asking.tool is None:
            return
        values = dict(values or {})
        if self._options.candidates is not None and self.space.candidates is not None:
            before, columns, line = self.space.candidates.equipment()
            source, values, words = before + source, {**columns, **values}, (line, *words)
        self._asking.tool.equip(source, values)
        self._asking = replace(self._asking, tools=tuple(words))

    def enqueue(self, params: Any, words: str = "") -> None:
        """Queue a point for `ask`, after the points queued before it.

        A point that is queued or pending already, or has a result, is queued again, with a warning.

        Args:
            params: A point of the space; or some of its parameters, to which the model (during the
                warm-up a random sample) adds the others.
            words: Description of the point, such as ``"the current production setting"``. The
                prompt shows it after the evaluation, and of a point with some parameters before.

        Raises:
            ParameterError: The point is not in the space, or breaks a constraint.
            StorageError: The storage file could not be written. Nothing was queued.
        """
        self.enqueue_as(params, self.read_queued(params, words))

    def enqueue_as(self, params: Any, event: Queued) -> Proposal | Fixed:
        """Queue a point that `read_queued` has checked, and return it."""
        if not self.may_repeat and (there := place_of(self._journal.state, event)):
            logger.warning("%s %s: it is queued again", short(params), there)
        return queued_point(self._journal.append(event), event)

    def read_queued(self, params: Any, words: str = "", asked: int = 0) -> Queued:
        """Check a point, and return what `enqueue` would record.

        `asked` is `Proposal.asked` of a withdrawn proposal that it repeats; 0 for none.
        """
        if not isinstance(words, str):
            raise TypeError(f"words={words!r}: expected a string")
        try:
            values = self.space.to_json_values(point_to_ask(self.space, params))
            return Queued(values, words, asked=asked)
        except ParameterError:
            if not Fixed.some(self.space, params):
                raise
            return Queued((), words, Fixed.of(self.space, params).to_json())

    def withdraw(
        self,
        params: Any = None,
        *,
        trial: int | None = None,
        feedback: str = "",
        asked: int = 0,
    ) -> None:
        """Drop a point that you will not evaluate, or a trial that never happened.

        A later `ask` may return the point: withdraw a failed trial to repeat its run. Record a
        point that cannot be evaluated by `tell_failure`: the model then reads why.

        Args:
            params: A pending point, or one of `queued`. Some of its parameters are enough if no
                other one has these values.
            trial: Number from 0 (`Trial.number`) of a trial. It keeps this number, in the state
                ``"withdrawn"``; ``tell(..., replaces=trial)`` can give it another result.
            feedback: Why, in words, for prompts and reports; else why the trial failed, if it did.
            asked: `Proposal.asked` of the pending point, if several are equal; 0 for the oldest.

        Raises:
            ParameterError: The point is not in the space, or neither pending nor queued; or there
                is no such trial.
            StorageError: The storage file could not be written. Nothing was withdrawn.
        """
        if (params is None) is (trial is None):
            raise ParameterError("withdraw(): expected either a point or trial=")
        with self._journal.lock:
            event = self.read_withdrawn(params, trial, asked)
            why = clean(str(feedback)) or event.feedback
            self._journal.append(replace(event, feedback=why))

    def read_withdrawn(self, params: Any, trial: int | None = None, asked: int = 0) -> Withdrawn:
        """Check a point or a trial, and return what `withdraw` would record."""
        state = self._journal.state
        if trial is not None:
            number, count = whole_number("trial", trial, 0) + 1, len(state.trials)
            if number > count:
                raise ParameterError(
                    f"trial={trial}: expected the number of one of {count} trials, counted from 0"
                )
            before = state.trials[number - 1]
            if before.state == "withdrawn":
                caller, history = CALLER.get(), self.history
                back = caller.trial("replaces", number - 1)
                if history.noisy and caller.first_trial:  # its number may be the label of another
                    back = caller.argument("replaces", repr(history.label(number - 1)))
                name = self.named(number - 1)
                raise ParameterError(f"{name} was withdrawn before: bring it back with {back}")
            why = before.feedback if before.state == "failed" else ""
            return Withdrawn(queued=False, trial=number - 1, feedback=why)
        values: tuple[Any, ...] | None = None
        key = self.space.key
        if Fixed.some(self.space, params):
            fixed = Fixed.of(self.space.bare, params)  # it need not be allowed any more
            if any(fixed.values == p.values for p in state.partial):
                return Withdrawn(queued=False, fixed=fixed.to_json())
            same = [p.values for p in (*state.pending, *state.queue) if fixed.keeps(p.values)]
            part = [p for p in state.partial if fixed.values.items() <= p.values.items()]
            if len(same) + len(part) > 1:
                raise ParameterError(
                    f"withdraw({short(params)}): {len(same) + len(part)} points that wait for a "
                    "result have these values; give all parameters of one"
                )
            if part:
                return Withdrawn(queued=False, fixed=part[0].to_json())
            values = same[0] if same else None
        else:
            values = self.space.flatten(params)
        one = [p for p in state.pending if p.asked == asked]
        if asked and not one and not any(p.values == values for p in state.pending):
            asked = 0  # its point may be queued again
        waiting = {key(p.values) for p in (one if asked else (*state.pending, *state.queue))}
        if values is None or key(values) not in waiting:
            pending = [self.space.named(p.values) for p in state.pending]
            there = [
                CALLER.get().trial("trial", t.number)
                for t in without_withdrawn(state.trials)
                if values and key(t.values) == key(values)
            ]
            why = "the point is neither pending nor queued"
            if there:
                why = f"the point has a result: withdraw it with {' or '.join(there)}"
            raise ParameterError(
                f"withdraw({short(params)}): {why}. Pending: {short(pending)}. "
                f"Queued: {short(self.queued)}"
            )
        return Withdrawn([self.space.to_json_values(values)], queued=False, asked=asked)

    def give_back(self, proposals: Sequence[Proposal]) -> None:
        """Hand back points, so that the next `ask` returns them again."""
        encode = self.space.to_json_values
        self._journal.append(Withdrawn([encode(p.values) for p in proposals]))

    @overload
    async def aask(self, n: None = None, *, fixed: Mapping[str, Any] | None = None) -> Params: ...
    @overload
    async def aask(self, n: int, *, fixed: Mapping[str, Any] | None = None) -> list[Params]: ...
    async def aask(
        self, n: int | None = None, *, fixed: Mapping[str, Any] | None = None
    ) -> Params | list[Params]:
        """`ask` for asynchronous loops: ``asyncio.to_thread(optimizer.ask, n)``.

        Asks run one after another, so ask once for all points that you evaluate at the same time. A
        cancelled ask still completes in its thread: its requests count, and its points are in
        `pending`.
        """
        import asyncio

        return await asyncio.to_thread(self.ask, n, fixed=fixed)

    @property
    def stopped_by_callback(self) -> SearchStopped | None:
        """Why a callback ended the search, if one did."""
        return None if self._callbacks is None else self._callbacks.stopped

    def conclude(self, reason: str = "", recommended: int | None = None) -> None:
        """Inform the client of the outcome of the search, and why it ended.

        Args:
            reason: Why it ended; empty for the search's own reason.
            recommended: Number from 1 of the point to keep, as prompts show it, if it is not the
                best one.
        """
        self._concluded = True
        if callable(end := getattr(self.client, "conclude", None)):
            why = cut(" ".join(clean(reason or self._why_it_ended()).split()), _REASON)
            begin = "" if reason else self._may_go_on()
            end(f"{begin or 'Why it ended: '}{why}\n" * bool(why) + self._outcome(recommended))

    def _may_go_on(self) -> str:
        """Say that only the program ended, and not the search, if that is so."""
        closed = self.left_by is not None or self._why_it_ended().startswith(_CLOSED)
        file = self.storage
        return f"The search in {file.name} may go on: " if closed and file is not None else ""

    def _why_it_ended(self) -> str:
        if self.left_by is not None:
            return described(self.left_by)
        if said := str(self.stopped_by_callback or "") or self.stopped:
            return said
        try:
            self.limits.check(self.usage, 0.0 if self._model.local else None)
        except BudgetExceededError as error:
            return str(error)
        if self.total is not None and self.evaluations >= self.total:
            return f"all {self.total} planned evaluations were made"
        return f"{_CLOSED} after {self.evaluations} evaluations"
