"""Ask/tell optimization by a language model.

The contract, as a sequence of calls::

    optimizer = LLMOptimizer(space)        # no model is loaded and no key is read yet
    a = optimizer.ask()                    # warm-up points first, then the model's
    b, c = optimizer.ask(2)                # several points before any tell
    optimizer.tell(c, 1.5)                 # in any order
    optimizer.tell(a, 0.2, feedback="overshot the goal")
    optimizer.tell_failure(b, "diverged")  # the prompt shows it; b is not proposed again
    optimizer.tell({"lr": 0.1}, 0.9)       # a point that was never asked: warm start
    optimizer.best.params, optimizer.usage

`ask` returns points and learns nothing; only `tell` changes the history. With
``storage="run.jsonl"`` every paid reply and every recorded reward is on disk before the call
returns, and an optimizer with the same arguments resumes a killed search.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, Unpack, overload

from llmopt._version import __version__
from llmopt.callbacks import Callbacks, Search, check_callbacks
from llmopt.client.base import PROMPT_VERSION, Client, client_name
from llmopt.client.model_facts import model_facts
from llmopt.client.model_string import get_client, one_model
from llmopt.data import Evaluation
from llmopt.errors import (
    BudgetExceededError,
    ParameterError,
    RewardError,
    SearchStopped,
    StorageError,
    warn_user,
)
from llmopt.evaluations import (
    Result,
    TellArguments,
    expected_by_name,
    objective_name,
    read_objectives,
)
from llmopt.evaluations import read_result as checked_result
from llmopt.history import Direction, History, Kind, Merged, Params, Proposal, Trial
from llmopt.imports import Importer, ImportReport, notes_on, read_source
from llmopt.journal import FORMAT, Journal, read_started
from llmopt.journaled import Journaled, Scope, Stale
from llmopt.lab.blocks import calculator_for as laboratory
from llmopt.options import SearchArguments, SearchOptions, options_to_store
from llmopt.partners import partners_of, propose_in_turns
from llmopt.point_task import asking_of, fill
from llmopt.points import (
    point_to_ask,
    sample_fallbacks,
    sample_new,
    start_points,
    warmup_points,
)
from llmopt.prompt import Prompt
from llmopt.prompt.python_block import Computed as Block
from llmopt.propose import Outcome
from llmopt.results import Results
from llmopt.resume import arguments_of, check_same, split_options, stored_client
from llmopt.space import Dimension, Space
from llmopt.space.fixed import Fixed
from llmopt.state import Asked, Corrected, Queued, Started, State, Told, Withdrawn, proposal_to_json
from llmopt.util.arguments import (
    MOST_POINTS,
    MOST_SEED,
    one_of,
    seed_or_fresh,
    whole_number,
)
from llmopt.util.closing import Closing
from llmopt.util.files import check_folder
from llmopt.util.text import clean, cut, short
from llmopt.util.threads import Lock
from llmopt.views import outcome

logger = logging.getLogger(__name__)

_REASON = 1000  # characters of why a search ended

if TYPE_CHECKING:
    _Form = TypeVar("_Form", covariant=True)

    class GymnasiumSpace(Protocol[_Form]):
        """A `gymnasium.spaces` space, whose samples have the form of its points."""

        def sample(self) -> _Form: ...  # noqa: D102
        def contains(self, x: Any) -> bool: ...  # noqa: D102


class LLMOptimizer(Results[Params], Closing):
    """A black-box optimizer that asks a language model for the next point.

    Args:
        space: A `Space`, a mapping of names to `Float`, `Int` and `Categorical`, or any
            bounded `gymnasium.spaces` space. Parameters come back in the same form. With
            ``candidates=`` also names of columns, or ``None`` for all of them.
        client: A model string (see `llmopt.get_client`), a client object, or ``None`` for
            the embedded model, which needs no key. ``model=`` means the same.
        prompt: A shipped prompt's name (``"words"``, ``"props"``, ``"props-ab"``, ``"props-plus"``,
            ``"opro"``, ``"columns"``), a Jinja2 template's text or path, a prompt object, or
            ``"auto"`` for the default of the client.
        direction: ``"maximize"`` or ``"minimize"``, or a sequence of these for several objectives;
            `tell` then takes one number for each. If a mapping names them, ``{"cost": "minimize",
            "error": "minimize"}``, `tell` also takes a mapping.
        seed: Seed of all random numbers; ``None`` chooses one and records it.
        **options: See `SearchOptions`: ``model``, ``warmup``, ``start``, ``constraints``,
            ``description``, ``noisy``, ``partner``, ``max_cost``, ``storage`` and others.

    Raises:
        SpaceError: The space cannot be searched, or is not one that the `partner` can search.
        LLMOptError: The partner's package is not installed.
        TemplateError: The prompt's template is not valid.
        StorageError: `storage` cannot be used, or holds a run of another configuration.
        ModelNotFoundError: The model string names no known provider.

    Note:
        `ask` sends one request for a batch, or up to `attempts` if samples are unusable; `tell`
        sends none. Both may be called from several threads.
    """

    # One for each form of a space: a type checker then knows what `ask` and `best` hold.
    @overload
    def __init__(
        self: LLMOptimizer[dict[str, Any]],
        space: Mapping[str, Dimension],
        client: Client | str | None = None,
        prompt: str | Path | Prompt = "auto",
        direction: Direction | Sequence[Direction] | Mapping[str, Direction] = "maximize",
        seed: int | None = None,
        **options: Unpack[SearchArguments],
    ) -> None: ...
    @overload
    def __init__(
        self: LLMOptimizer[_Form],
        space: GymnasiumSpace[_Form],
        client: Client | str | None = None,
        prompt: str | Path | Prompt = "auto",
        direction: Direction | Sequence[Direction] | Mapping[str, Direction] = "maximize",
        seed: int | None = None,
        **options: Unpack[SearchArguments],
    ) -> None: ...
    @overload
    def __init__(
        self: LLMOptimizer[Any],
        space: Space | Sequence[str] | None = None,
        client: Client | str | None = None,
        prompt: str | Path | Prompt = "auto",
        direction: Direction | Sequence[Direction] | Mapping[str, Direction] = "maximize",
        seed: int | None = None,
        **options: Unpack[SearchArguments],
    ) -> None: ...
    def __init__(
        self,
        space: Any = None,
        client: Client | str | None = None,
        prompt: str | Path | Prompt = "auto",
        direction: Direction | Sequence[Direction] | Mapping[str, Direction] = "maximize",
        seed: int | None = None,
        **options: Unpack[SearchArguments],
    ) -> None:
        given = SearchOptions.of("LLMOptimizer", options)
        if given.candidates is not None:
            self.space = Space.among(space, given.candidates, given.constraints)
        else:
            self.space = Space.of(space).constrained(given.constraints)
        self.directions, self.metrics = read_objectives(direction)
        self.seed, self._options = seed_or_fresh(seed), given
        self.batch_size = given.batch_size
        self._warmup_points = warmup_points(self.space, given.warmup)
        self._start = start_points(self.space, given.start)
        client = get_client(one_model(client, given.model))
        asking = asking_of(client, prompt, given, seeded=given.seeded)
        tool = laboratory(given, client, asking.prompt)
        self._asking = asking.with_tool(tool)
        self.n_warmup = len(self._warmup_points or ())
        if given.warmup == "auto":
            self.n_warmup = asking.start_up()
        elif isinstance(given.warmup, int):
            self.n_warmup = given.warmup
        self._partners = partners_of(given.partner, self.seed, self.space, len(self.directions))
        self._merged, self._merging = Merged(self.space.key), Lock()
        self._ask_lock = Lock()  # asks run one after another
        self._blocks: dict[int, Block] = {}  # by number: parsed once
        self._warned_of: set[bool] = set()  # of repeats with equal and with other rewards
        self._concluded = False
        self._journal = self._open(given, seed is not None)
        self._model = Journaled(client, self._journal, given.limits)
        if tool is not None:
            tool.folder = self._journal.arrays.folder
            if given.candidates is not None:
                self.equip("")
        if self.total is not None:
            self.check_asks(self.total, given=given.warmup != "auto")
        self._callbacks: Callbacks | None = None
        if callbacks := check_callbacks(given.callbacks):
            self._callbacks = Callbacks(callbacks, self._search_info(given.storage))
            # Without a reference to this optimizer: one that is dropped closes its file at once.
            self._model.observe = partial(self._callbacks.notify, "sent")
        if given.import_trials is not None:
            report = self.import_trials(given.import_trials)
            unread = any(row.reason for row in report.rows) or report.notes
            logger.log(logging.WARNING if unread else logging.INFO, "%s", report)

    def _open(self, given: SearchOptions, seed_given: bool) -> Journal:
        """Return the journal: of a stored search that resumes, or of a new one."""
        path = None if given.storage is None else Path(given.storage).expanduser()
        there = None
        if path is not None and path.is_file() and path.stat().st_size > 0:
            there = read_started(path)
            stored = there.identity.get("options", {})
            if given.warmup == "auto" and stored.get("warmup_points") is None:
                # It followed from how many points were planned then.
                self.n_warmup = whole_number("warmup", stored.get("warmup", self.n_warmup), 0)
            check_same(there, self.started(), path, seed_given=seed_given)
            self.seed = whole_number("seed", there.identity.get("seed"), 0, MOST_SEED)
        journal = Journal(path, self._first_state(), given.durable)
        now = self.started()
        if there is None or (there.options, there.facts) != (now.options, now.facts):
            journal.begin(now)
        return journal

    def _first_state(self) -> State:
        queue = tuple(Proposal(values, "user", words) for words, values in self._start)
        given = self._options
        return State(
            self.space, self.directions, self.seed, given.seeded, given.noisy, self.metrics,
            queue=queue,
        )  # fmt: skip

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
        return Started(FORMAT, identity, changing, about)

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

    # -- asking ---------------------------------------------------------------------------

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
            Parameters in the form of the given space, or a list of `n` of them.

        Raises:
            BudgetExceededError: A cap on requests, tokens or cost is reached, unless
                ``on_error="fallback"``; or, at the first call, `max_cost` is set and the cost is
                unknown.
            ClientError: The request failed, unless ``on_error="fallback"``; or, at the first call,
                the key or the model's file is missing.
            ImportError: At the first call, the model's package is missing.
            ParameterError: A name or a value of `fixed` is not of the space, or no point has them.
            PromptTooLongError: The prompt does not fit the model's context.
            SearchStopped: The model ended the search, with ``may_stop=True``.
            StorageError: The storage file could not be written; call again once it can.
        """
        count = 1 if n is None else whole_number("n", n, 1, MOST_POINTS)
        proposals, warned = self.propose(count, fixed)
        for text in warned:
            warn_user(text)
        points = [self.space.unflatten(p.values) for p in proposals]
        return points[0] if n is None else points

    def propose(
        self, n: int, fixed: Mapping[str, Any] | None = None
    ) -> tuple[list[Proposal], list[str]]:
        """Return `n` proposals with source and explanation, and texts of warnings; see `ask`."""
        kept = None if fixed is None else Fixed.of(self.space, fixed)
        self._journal.check()  # before a lock is waited for, and before anything is paid for
        self.check_ready()  # before the first warm-up point is evaluated
        if self._callbacks is not None and self._callbacks.stopped is not None:
            raise self._callbacks.stopped
        try:
            with self._ask_lock:
                self._journal.write_start()
                proposals, warned = self._propose(n, kept)
        except SearchStopped as stopped:
            if self._callbacks is not None:
                self._callbacks.reason = str(stopped)
            self.conclude(str(stopped))
            raise
        except BudgetExceededError as error:
            self.conclude(str(error))
            raise
        if self._callbacks is not None:
            for proposal in proposals:
                self._callbacks.notify("asked", proposal)
        return proposals, warned

    def _propose(self, n: int, fixed: Fixed | None) -> tuple[list[Proposal], list[str]]:
        """Make the points from the present state, or from that of an interrupted ask."""
        now = self._journal.state
        table = (self.space if fixed is None else fixed.inside).candidates
        if table is not None and not self._options.noisy:
            ready = table.left(now.keys)
            ready += sum(fixed is None or fixed.keeps(p.values) for p in now.queue)
            if not ready and fixed is not None:
                raise ParameterError(f"fixed: no candidate with {fixed} is left; give other values")
            if not ready:
                raise SearchStopped(
                    f"all {table.size:,} candidates were proposed: none is left to try"
                )
            n = min(n, ready)
        interrupted = now.interrupted
        base = self._note_facts(now).count if interrupted is None else interrupted
        try:
            made = self._make(n, base, fixed, repeats=interrupted is not None)
        except Stale:
            base = self._journal.state.count
            made = self._make(n, base, fixed, repeats=False)
        return self._settle(n, fixed, *made)

    def _note_facts(self, state: State) -> State:
        """Store the model's facts again if an answer changed them, such as a refused schema."""
        facts = model_facts(self.client)
        if state.started is None or facts.to_json() == self._asking.facts.to_json():
            return state
        self._asking = replace(self._asking, facts=facts)
        return self._journal.append(self.started())

    def _make(
        self, n: int, base: int, fixed: Fixed | None, *, repeats: bool
    ) -> tuple[State, int, Outcome, Scope, Any, list[str]]:
        """Return the new points of an ask that has seen `base` events, or repeats one that had."""
        state = self._journal.state_at(base)
        scope, rng, seen = self._model.scope(base, repeats=repeats), state.generator, state.keys
        warned: list[str] = []
        ready = sum(fixed is None or fixed.keeps(p.values) for p in state.queue)
        missing = max(0, n - ready)
        partial = () if fixed is not None else state.partial[:missing]
        kinds = [*partial, *[fixed] * (missing - len(partial))]
        outcome = Outcome(self._warm_up(state, kinds, rng, seen))
        made = len(outcome.proposals)
        if len(kinds) - made >= n and state.stop is not None:
            raise SearchStopped(*state.stop)
        if state.stop is not None:
            return state, min(made, len(partial)), outcome, scope, rng, warned
        single = partial[made:]
        for kind, count in [*((kind, 1) for kind in single), (fixed, missing - made - len(single))]:
            if count <= 0:
                continue
            wanted = count if kind is not None else max(count, self.batch_size)
            if self.space.candidates is not None and not self._options.noisy and kind is None:
                wanted = min(wanted, self.space.candidates.left(seen))
            waiting = tuple([p.values for p in outcome.proposals])
            history = self._history_of(state, base)
            history = replace(history, pending=history.pending + waiting)
            answer = self._ask_model(state, scope, history, rng, wanted, seen, kind)
            space, there = (self.space, seen) if kind is None else (kind.inside, kind.seen(seen))
            text = fill(answer, space, rng, wanted, there, client_name(self.client))
            seen |= there
            warned += [text] if text else []
            outcome.proposals += answer.proposals
            outcome.rejected += answer.rejected
            outcome.stop = answer.stop
        return state, len(partial), outcome, scope, rng, warned

    def _history_of(self, state: State, base: int) -> History:
        latest = base == self._journal.state.count
        with self._merging:
            return state.history(self._merged if latest else None)

    def _warm_up(
        self, state: State, kinds: Sequence[Fixed | None], rng: Any, seen: set[Any]
    ) -> list[Proposal]:
        """Return warm-up points: of a list, or random ones up to `n_warmup` in all.

        Args:
            state: The search so far.
            kinds: What each point wanted has to keep; given points may end before the last.
            rng: Source of randomness; advanced.
            seen: Keys of the points not to sample again; grows.
        """
        given = self._warmup_points
        begun = len(state.trials) + len(state.pending) + len(state.queue)
        begun = begun if given is None else state.warmed
        proposals = []
        for place, kind in zip(range(begun, self.n_warmup), kinds, strict=False):
            if given is None and kind is not None:
                values = sample_new(kind.inside, kind.seen(seen), rng)
            elif given is None:
                values = sample_new(self.space, seen, rng)
            elif kind is None or kind.keeps(given[place]):
                values = given[place]
            else:
                break
            seen.add(self.space.key(values))
            proposals.append(Proposal(values, "warmup"))
        return proposals

    def _ask_model(
        self,
        state: State,
        scope: Scope,
        history: History,
        rng: Any,
        n: int,
        seen: set[Any],
        fixed: Fixed | None,
    ) -> Outcome:
        """Return points of the model, or of the model and its partners."""
        asking = self._asking
        before = [self._block(run.number, run.event.result) for run in state.runs]
        if state.started is not None:  # on another machine a repeated ask states the same
            asking = asking.restored(state.started.facts)
        waiting = [p.source for p in (*state.pending, *state.queue)]
        return propose_in_turns(
            asking, scope, self._partners, self.space, history, rng, n, seen,
            before=before, waiting=waiting, fixed=fixed,
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
            self._block(run.number, run.event.result)
            for run in (*state.runs, *state.open_runs)
            if run.event.block
        )

    def _block(self, number: int, result: Mapping[str, Any]) -> Block:
        if number not in self._blocks:
            self._blocks[number] = Block.read(result)
        return self._blocks[number]

    def _settle(
        self,
        n: int,
        fixed: Fixed | None,
        base: State,
        completed: int,
        outcome: Outcome,
        scope: Scope,
        rng: Any,
        warned: list[str],
    ) -> tuple[list[Proposal], list[str]]:
        """Drop points that were recorded meanwhile, sample what is missing, and record the ask."""
        key, noisy = self.space.key, self._options.noisy
        with self._journal.lock:
            now, proposals = self._journal.state, outcome.proposals
            if now.count > base.count and not noisy:
                given = "warmup" if self._warmup_points is not None else ""
                tried = now.keys - base.keys
                proposals = [
                    p for p in proposals if p.source == given or key(p.values) not in tried
                ]
            drawn: dict[str, Any] = rng.bit_generator.state
            queue = enumerate(now.queue)
            waiting = [i for i, p in queue if fixed is not None and not fixed.keeps(p.values)]
            ready = len(now.queue) - len(waiting)
            missing = n - ready - len(proposals)
            ended = outcome.stop is not None and not proposals and not ready
            if missing > 0 and not ended:
                seen = now.keys | {key(p.values) for p in proposals}
                fewer = len(proposals) < len(outcome.proposals)
                why = "proposed what was recorded meanwhile" if fewer else "ended the search"
                warned.append(
                    f"the model {why}: {missing} of the points asked for "
                    f"{'was' if missing == 1 else 'were'} sampled at random"
                )
                space, seen = (
                    (self.space, seen) if fixed is None else (fixed.inside, fixed.seen(seen))
                )
                proposals = [*proposals, *sample_fallbacks(space, seen, rng, missing)]
            state = self._journal.append(
                Asked(
                    [proposal_to_json(p, self.space) for p in proposals],
                    0 if ended else n,
                    [run.number for run in scope.runs if run.event.block],
                    {reason: count for reason, count in outcome.rejected.items() if count > 0},
                    outcome.stop,
                    None if drawn == now.rng else drawn,
                    waiting,
                    completed,
                )
            )
        if ended:
            assert state.stop is not None
            raise SearchStopped(*state.stop)
        return list(state.pending[-n:]), warned

    def check_ready(self) -> None:
        """Check once for what would stop the first request; see `Journaled.check_ready`."""
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
        """
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

        Args:
            params: A point of the space; or some of its parameters, to which the model (during the
                warm-up a random sample) adds the others.
            words: Description of the point, such as ``"the current production setting"``. The
                prompt shows it after the evaluation, and of a point with some parameters before.

        Raises:
            ParameterError: The point is not in the space, or breaks a constraint.
            StorageError: The storage file could not be written. Nothing was queued.
        """
        if not isinstance(words, str):
            raise TypeError(f"words={words!r}: expected a string")
        try:
            event = Queued(self.space.to_json_values(point_to_ask(self.space, params)), words)
        except ParameterError:
            if not Fixed.some(self.space, params):
                raise
            event = Queued((), words, Fixed.of(self.space, params).to_json())
        self._journal.append(event)

    def withdraw(self, params: Any) -> None:
        """Drop a pending or queued point that you will not evaluate; a later `ask` may return it.

        Record a point that cannot be evaluated by `tell_failure`: the model then reads why.

        Args:
            params: The point.

        Raises:
            ParameterError: The point is not in the space, or neither pending nor queued.
            StorageError: The storage file could not be written. Nothing was withdrawn.
        """
        values, key = self.space.flatten(params), self.space.key
        with self._journal.lock:
            state = self._journal.state
            if key(values) not in {key(p.values) for p in (*state.pending, *state.queue)}:
                raise ParameterError(
                    f"withdraw({short(params)}): {_no_longer(state)} `pending` lists the points "
                    "without a result"
                )
            encoded = self.space.to_json_values(values)
            self._journal.append(Withdrawn([encoded], queued=False))

    def give_back(self, proposals: Sequence[Proposal]) -> None:
        """Hand back points, so that the next `ask` returns them again."""
        encode = self.space.to_json_values
        self._journal.append(Withdrawn([encode(p.values) for p in proposals]))

    def import_trials(
        self,
        source: Any,
        *,
        out_of_range: Literal["reject", "clip"] = "reject",
    ) -> ImportReport:
        """Import trials of an earlier search; no request is sent.

        Known trials are skipped, so a script may call this at each start.

        Args:
            source: A storage file, an Optuna study, or a table: a CSV file, a DataFrame, or a list
                of dictionaries. Parameters must have the names of this search. The columns of a
                table are the parameters' names (with or without the ``params_`` of
                `trials_dataframe`), ``reward`` or ``value`` (or ``reward_0``, ...), and optionally
                ``feedback``, ``stderr`` and ``constraint_violation``. A row with none of the
                reward columns is refused.
            out_of_range: ``"reject"`` refuses a row with a value outside its range, ``"clip"``
                moves the value to its bound, although the reward belongs to another point.

        Returns:
            The outcome of each row; print it.

        Raises:
            ParameterError: The source has the opposite direction.
            StorageError: A file cannot be read or is a database, or the storage cannot be written.
            TypeError: `source` is something else.
        """
        one_of("out_of_range", out_of_range, ("reject", "clip"))
        importer = Importer(self.space, out_of_range)
        other = read_source(source, self.directions, self.metrics)
        with self._journal.lock:  # not as one step: each of its trials is
            results, rows = importer.read(other, list(self._journal.state.trials), self.read_result)
            for result in results:
                self._record(result, "imported")
        return ImportReport(other.title, rows, notes_on(other, self._options.task, self.space))

    # -- telling --------------------------------------------------------------------------

    def tell(
        self,
        params: Any,
        reward: Any,
        *,
        feedback: str = "",
        constraint_violation: float = 0.0,
        stderr: float | None = None,
        samples: Sequence[float] = (),
        curve: Sequence[float] | Sequence[tuple[float, float]] = (),
        data: Mapping[str, Any] | None = None,
        seed: int | None = None,
        parts: Mapping[str, float] = MappingProxyType({}),
        instead_of: Any = None,
        replaces: int | None = None,
    ) -> Trial[Params]:
        """Record the reward of a point.

        A point that `ask` returned is matched by its values, in any order; any other
        valid point is recorded as the user's own. NaN, infinity and ``None`` count as a
        failed evaluation.

        Args:
            params: A point in the form of the given space; copied.
            reward: A number, or one for each objective, in their order or as a mapping from their
                names; or an `Evaluation`.
            feedback: Words about this point for prompts that show them.
            constraint_violation: Sum of the amounts by which constraints are violated; 0
                is feasible, and feasible points rank before the others. The amounts by which the
                point breaks the space's linear constraints are added.
            stderr: Standard error of the reward (of the first objective), for prompts that
                show it.
            samples: The numbers whose mean is the reward, if every point is evaluated with the same
                seeds in the same order. Prompts then compare points seed by seed, and `stderr` is
                computed if it is not given.
            curve: Intermediate values of the evaluation, or pairs of a step and a value. The prompt
                shows them, downsampled, in one line before `feedback`.
            data: Named arrays, lists of arrays, or mappings of these, such as the steps of a
                simulation. They stay on this machine: prompts show names and shapes, and the
                model's Python reads the arrays (see docs/compute.md).
            seed: The seed of the evaluation, if it differs from `seed_of`.
            parts: Named numbers that the reward is made of, ``{"yield": 78.8, "waste": 1.0}``. The
                prompt shows them beside it, and the model's Python has them as arrays.
            instead_of: The pending point that `params` was measured in place of, because a
                parameter could not be set exactly. It is no longer pending, and the model's reasons
                for it belong to this trial.
            replaces: Number from 0 (`Trial.number`) of a trial whose result was wrong, or was
                re-evaluated: it gets this point and this result in place of its own, and keeps who
                proposed it. Prompts, `best` and reports follow.

        Returns:
            The recorded trial.

        Raises:
            ParameterError: The point is not in the space; the message names the parameter. Or
                `instead_of` is not pending, or there is no trial `replaces`.
            RewardError: The reward is not a number, or not one for each objective; or
                `constraint_violation` or `stderr` is negative or not finite.
            DataError: An entry of `data` has an unsupported type, or the data are too large.
            StorageError: The storage file could not be written. Nothing was recorded.
        """
        return self.tell_as(
            self.read_result(
                params,
                reward,
                feedback=feedback,
                constraint_violation=constraint_violation,
                stderr=stderr,
                samples=samples,
                curve=curve,
                data=data,
                seed=seed,
                parts=parts,
                instead_of=instead_of,
                replaces=replaces,
            )
        )

    def tell_failure(self, params: Any, reason: str | BaseException = "") -> Trial[Params]:
        """Record that a point could not be evaluated.

        The prompt shows the failure, and the point is not proposed again.

        Args:
            params: A point of the space.
            reason: Why, in words.

        Returns:
            The recorded trial.

        Raises:
            ParameterError: The point is not in the space.
            StorageError: The storage file could not be written. Nothing was recorded.
        """
        return self.tell_as(self.read_failure(params, reason))

    def read_result(self, params: Any, reward: Any, **words: Any) -> Result:
        """Check a result, and return what `tell` would record; `tell_as` records it."""
        if isinstance(reward, Evaluation):
            reward, words = reward.value, reward.told_with(words)
        if isinstance(reward, Mapping) and self.metrics:
            if expected := expected_by_name(reward, self.metrics):
                raise RewardError(f"reward={short(reward)}: {expected}")
            given = {objective_name(name): value for name, value in reward.items()}
            rewards = [given[name] for name in self.metrics]
            reward = rewards if len(rewards) > 1 else rewards[0]
        first, count, names = self.directions[0], len(self.directions), self.metrics
        result = checked_result(
            self.space, count, params, reward, direction=first, names=names, **words
        )
        state = self._journal.state
        if result.instead_of is not None and state.without(result.instead_of)[0] is None:
            raise ParameterError(
                f"instead_of={short(words['instead_of'])}: {_no_longer(state, queued=False)} "
                "Without instead_of=, tell() records any point of the space"
            )
        if result.replaces is not None and result.replaces >= len(state.trials):
            raise ParameterError(
                f"replaces={result.replaces}: got {len(state.trials)} trials, numbered from 0; "
                "expected the number of the trial whose result was wrong"
            )
        return result

    def read_failure(self, params: Any, reason: str | BaseException = "") -> Result:
        """Check a failure, and return what `tell_failure` would record."""
        if isinstance(reason, BaseException):
            reason = described(reason)
        return Result(self.space.flatten(params), None, str(reason))

    def tell_as(self, result: Result, kind: Kind = "search") -> Trial[Params]:
        """Record a result that `read_result` or `read_failure` has checked, as one of a kind."""
        with self._journal.lock:
            if kind == "search" and not self._options.noisy and len(self._warned_of) < 2:
                self._warn_of_repeat(result)
            number = -1 if result.replaces is None else result.replaces
            trial = self._record(result, kind).trials[number]
        if self._callbacks is not None:
            self._callbacks.notify("told", trial, self.history.best, self.usage)
        self._inform()
        return trial

    def _record(self, result: Result, kind: Kind) -> State:
        """Store the data of a result, then its event."""
        with self._journal.lock:
            state, encode, kind_of = self._journal.state, self.space.to_json_values, Told
            number, again, more = len(state.trials), 0, dict[str, Any]()
            if result.replaces is not None:
                number, kind_of = result.replaces, Corrected
                before, more = state.trials[number], {"number": number}
                kind, again = before.kind, before.corrected + 1
            if result.instead_of is not None:
                more = {"instead_of": encode(result.instead_of)}
            return self._journal.append(
                kind_of(
                    encode(result.values),
                    result.rewards,
                    clean(result.feedback),
                    result.violation,
                    result.stderr,
                    result.samples,
                    kind,
                    self._journal.arrays.keep(result.data, number, again),  # before its event
                    result.seed,
                    parts=dict(result.parts),
                    **more,
                )
            )

    def _warn_of_repeat(self, result: Result) -> None:
        """Warn if a point is recorded again: once each for equal and for other rewards."""
        state = self._journal.state
        new = result.samples or result.replaces is not None or result.instead_of is not None
        if new or any(p.values == result.values for p in state.pending):
            return
        before = next(
            (t for t in reversed(state.trials) if t.values == result.values and t.rewards), None
        )
        if before is None or (result.rewards == before.rewards) in self._warned_of:
            return
        self._warned_of.add(result.rewards == before.rewards)
        if result.rewards is None:
            now = "as a failure"
        elif result.rewards == before.rewards:
            now = "with the same reward"
        else:
            rewards = result.rewards[0] if len(result.rewards) == 1 else result.rewards
            now = f"with another reward ({rewards}, before {before.reward})"
        logger.warning(
            "the point of trial %d was recorded again %s: it counts as another trial. If rewards "
            "are noisy, pass noisy=True",
            before.number,
            now,
        )

    # -- asynchronous form ----------------------------------------------------------------

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
        return await asyncio.to_thread(self.ask, n, fixed=fixed)

    async def atell(
        self, params: Any, reward: Any, **words: Unpack[TellArguments]
    ) -> Trial[Params]:
        """`tell` for asynchronous loops, with the same arguments."""
        return await asyncio.to_thread(self.tell, params, reward, **words)

    async def atell_failure(self, params: Any, reason: str = "") -> Trial[Params]:
        """`tell_failure` for asynchronous loops, with the same arguments."""
        return await asyncio.to_thread(self.tell_failure, params, reason)

    # -- the end --------------------------------------------------------------------------

    @property
    def stopped_by_callback(self) -> SearchStopped | None:
        """Why a callback ended the search, if one did."""
        return None if self._callbacks is None else self._callbacks.stopped

    def _inform(self) -> None:
        """Send the outcome so far to a client that accepts it."""
        if callable(inform := getattr(self.client, "inform", None)):
            inform(self._outcome())

    def conclude(self, reason: str = "", recommended: int | None = None) -> None:
        """Inform the client of the outcome of the search, and why it ended.

        Args:
            reason: Why it ended; empty for the search's own reason.
            recommended: Number from 1 of the trial to keep, if it is not the best one.
        """
        self._concluded = True
        if callable(end := getattr(self.client, "conclude", None)):
            why = cut(" ".join(clean(reason or self._why_it_ended()).split()), _REASON)
            end((f"Why it ended: {why}\n" if why else "") + self._outcome(recommended))

    def _outcome(self, recommended: int | None = None) -> str:
        stop = self._journal.state.stop
        point = None if stop is None else stop[1]
        return outcome(self.history, self.space, recommended or point)

    def _why_it_ended(self) -> str:
        if self.left_by is not None:
            return described(self.left_by)
        if said := str(self.stopped_by_callback or "") or self.stopped:
            return said
        try:
            self.limits.check(self.usage)
        except BudgetExceededError as error:
            return str(error)
        made = len(self.history.trials)
        if self.total is not None and made >= self.total:
            return f"all {self.total} planned evaluations were made"
        return f"the program closed the search after {made} evaluations"

    def close(self) -> None:
        """Close the storage file, and end the callbacks. The results can still be read."""
        if self._callbacks is not None:
            self._callbacks.end()
        if not self._concluded:
            self.conclude()
        self._journal.close()
        if self._asking.tool is not None:
            self._asking.tool.close()

    # -- files and copies -----------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole search to a file atomically.

        Args:
            path: The file. `load` reads it, and so does ``storage=``.

        Raises:
            StorageError: The file cannot be written; an existing file is unchanged.
        """
        path = Path(path).expanduser()
        if self._journal.is_at(path):
            raise StorageError(
                f"{path} is the storage of this optimizer and already holds all of its state: "
                "save to another path"
            )
        check_folder(path)
        with self._ask_lock, self._journal.lock:
            self._journal.save(path)
            if self._asking.tool is not None:
                self._asking.tool.export(Path(f"{path}.data"), len(self._journal.state.runs))

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], client: Client | str | None = None, **options: Any
    ) -> LLMOptimizer[Any]:
        """Rebuild an optimizer from a file that `save` or ``storage=`` wrote.

        Args:
            path: The file. It is only read, never written.
            client: The model for further requests; ``None`` for the one that the file names. The
                file never contains a key.
            **options: Constructor arguments that the file lacks (a prompt object, caps) or that you
                change.

        Raises:
            StorageError: The file cannot be read, does not hold a search, or names a model that a
                file cannot bring back.
            TypeError: `options` contain ``storage``, to which the trials of the file would not be
                copied, or ``start``, which the file already holds.
        """
        if "start" in options:
            raise TypeError("load() has no start=: enqueue() further points once it is loaded")
        if "storage" in options:
            raise TypeError(
                "load() has no storage=: to continue in the file itself, make "
                "LLMOptimizer(space, ..., storage=path) with the arguments of the search; to "
                "continue in another file, save() to it and give that as storage="
            )
        started = read_started(path)
        named = options.pop("model", None)
        if client is None and named is None:
            model: str | Client = stored_client(started.options.get("client"), path)
        else:
            model = one_model(client, named)
        try:
            arguments = arguments_of(started, {**options, "client": model}, path)
            optimizer = cls(**arguments)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if options:
                raise
            raise StorageError(
                f"{path}, line 1: it is not as llmopt wrote it ({type(error).__name__}: {error}). "
                "Restore the file from a copy"
            ) from error
        journal = Journal.read(path, optimizer._first_state())
        optimizer._journal = optimizer._model.journal = journal
        if (tool := optimizer._asking.tool) is not None:
            tool.read_from(Path(f"{path}.data"))
        return optimizer

    def _search_info(self, storage: str | os.PathLike[str] | None) -> Search:
        started = self.started()
        settings = {**started.identity, **started.identity["options"], **started.options}
        settings |= {"llmopt": __version__, "prompt": self.prompt.name}
        settings.pop("options")
        name, place = "search", ""
        if storage is not None:
            name, place = Path(storage).stem, os.path.abspath(storage)
        return Search(name, self.space.names, self.directions, settings, place)

    def __getstate__(self) -> dict[str, Any]:
        with self._ask_lock, self._journal.lock:
            journal = copy.copy(self._journal)  # the file stays with the original
            model = Journaled(self.client, journal, self.limits)
            own = {"_journal": journal, "_model": model, "_callbacks": None}
            gone = ("_ask_lock", "_merging")
            return {k: v for k, v in {**self.__dict__, **own}.items() if k not in gone}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._ask_lock, self._merging = Lock(), Lock()
        path = self._journal.path_read
        if path is not None:
            logger.warning(
                "this copy of an optimizer with storage=%s stores nothing: save() it, or give "
                "its results to the original",
                path,
            )


def _no_longer(state: State, queued: bool = True) -> str:
    """Say why a point is not among those that wait for a result."""
    where = "neither pending nor queued" if queued else "not pending"
    return (
        f"the point is {where}: ask() did not return it, it has a result, or it was withdrawn. "
        f"{len(state.pending)} points are pending."
    )


def described(error: BaseException) -> str:
    """Return an exception that ended a search or an evaluation in words."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by Ctrl-C"
    return f"{type(error).__name__}: {error}".rstrip(": ")
