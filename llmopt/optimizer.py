"""Ask/tell optimization by a language model.

The contract, as a sequence of calls::

    optimizer = LLMOptimizer(space)        # no model is loaded and no key is read yet
    a = optimizer.ask()                    # warm-up points first, then the model's
    b, c = optimizer.ask(2)                # several points before any tell
    optimizer.tell(c, 1.5)                 # in any order
    optimizer.tell(a, 0.2, feedback="overshot the goal")
    optimizer.tell_failure(b, "diverged")  # the model is told; b is not proposed again
    optimizer.tell({"lr": 0.1}, 0.9)       # a point that was never asked: warm start
    optimizer.best.params, optimizer.usage

`ask` hands out points and learns nothing; only `tell` changes the history. With
``storage="run.jsonl"`` every paid reply and every told reward is on disk before the call
returns, and an optimizer made with the same arguments goes on where a killed one stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import math
import numbers
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, Unpack, overload

import numpy as np

from llmopt._version import __version__
from llmopt.arguments import MOST_POINTS, MOST_SEED, one_of, whole_number
from llmopt.client.base import Client, client_name
from llmopt.client.registry import get_client, one_model
from llmopt.errors import (
    FallbackWarning,
    LLMOptError,
    NoTrialsError,
    ParameterError,
    RewardError,
    SearchStopped,
    StorageError,
)
from llmopt.files import write_bytes_atomically
from llmopt.history import Direction, History, Kind, Params, Proposal, Trial, Usage, why_no_best
from llmopt.imports import (
    ImportedRow,
    Importer,
    ImportReport,
    Outcome,
    notes_on,
    read_source,
)
from llmopt.options import SearchArguments, SearchOptions
from llmopt.prompt import Prompt, check_prompt_for
from llmopt.search.cma import CMAEmitter, several_objectives
from llmopt.search.emitter import ModelEmitter, draw_fallbacks, draw_new
from llmopt.search.eventlog import Event, EventLog, line_of, read_events
from llmopt.search.joining import Joiner
from llmopt.search.locks import Lock, uninterrupted
from llmopt.search.meter import Draft, Limits, Meter
from llmopt.search.resume import (
    FORMAT,
    StoredPoints,
    as_written,
    check_same,
    record_request,
    record_spent,
    replay,
    start_of,
    stored_options,
)
from llmopt.search.scheduler import Scheduler, make_scheduler
from llmopt.search.state import SearchState
from llmopt.space import Dimension, Space
from llmopt.text import short
from llmopt.trackers.base import Bell, Search
from llmopt.views import TrialList, dataframe, plot, search_html

logger = logging.getLogger(__name__)

_DIRECTIONS = ("maximize", "minimize")
# Values, rewards (None: failed), feedback, violation, standard error, samples.
_Told = tuple[
    tuple[Any, ...], tuple[float, ...] | None, str, float, float | None, tuple[float, ...]
]


if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

    _Form = TypeVar("_Form", covariant=True)

    class GymnasiumSpace(Protocol[_Form]):
        """A `gymnasium.spaces` space, whose samples have the form of its points."""

        def sample(self) -> _Form: ...  # noqa: D102
        def contains(self, x: Any) -> bool: ...  # noqa: D102


class LLMOptimizer(Generic[Params]):
    """A black-box optimizer that asks a language model for the next point.

    Args:
        space: A `Space`, a mapping of names to `Float`, `Int` and `Categorical`, or any
            bounded `gymnasium.spaces` space. Parameters come back in the same form.
        client: A model string (see `llmopt.get_client`), a client object, or ``None`` for
            the embedded model, which needs no key. ``model=`` means the same.
        prompt: A shipped prompt's name (``"words"``, ``"props"``, ``"props-ab"``, ``"props-plus"``,
            ``"opro"``, ``"columns"``), a Jinja2 template's text or path, a prompt object, or
            ``"auto"`` for the one that suits the client.
        direction: ``"maximize"`` or ``"minimize"``; a sequence of them for several
            objectives, and then `tell` takes one number for each.
        seed: Seed of the one random generator; ``None`` draws one and records it.
        **options: See `SearchOptions`: ``model``, ``warmup``, ``start``, ``constraints``,
            ``description``, ``noisy``, ``partner``, ``max_cost``, ``storage`` and others.

    Raises:
        SpaceError: The space cannot be searched, or has choices and there is a `partner`.
        LLMOptError: The partner's package is not installed.
        TemplateError: The prompt's template is not valid.
        StorageError: `storage` cannot be used, or holds a run of another configuration.
        ModelNotFoundError: The model string names no known provider.

    Note:
        `ask` costs one model request for a batch when all goes well, up to `attempts`
        otherwise; `tell` costs none. Both may be called from several threads.
    """

    # One for each form of a space: a type checker then knows what `ask` and `best` hold.
    @overload
    def __init__(
        self: LLMOptimizer[dict[str, Any]],
        space: Mapping[str, Dimension],
        client: Client | str | None = None,
        prompt: str | Path | Prompt = "auto",
        direction: Direction | Sequence[Direction] = "maximize",
        seed: int | None = None,
        **options: Unpack[SearchArguments],
    ) -> None: ...
    @overload
    def __init__(
        self: LLMOptimizer[_Form],
        space: GymnasiumSpace[_Form],
        client: Client | str | None = None,
        prompt: str | Path | Prompt = "auto",
        direction: Direction | Sequence[Direction] = "maximize",
        seed: int | None = None,
        **options: Unpack[SearchArguments],
    ) -> None: ...
    @overload
    def __init__(
        self: LLMOptimizer[Any],
        space: Space,
        client: Client | str | None = None,
        prompt: str | Path | Prompt = "auto",
        direction: Direction | Sequence[Direction] = "maximize",
        seed: int | None = None,
        **options: Unpack[SearchArguments],
    ) -> None: ...
    def __init__(
        self,
        space: Any,
        client: Client | str | None = None,
        prompt: str | Path | Prompt = "auto",
        direction: Direction | Sequence[Direction] = "maximize",
        seed: int | None = None,
        **options: Unpack[SearchArguments],
    ) -> None:
        given = SearchOptions.of("LLMOptimizer", options)
        self.space = Space.of(space).constrained(given.constraints)
        self.directions = _directions(direction)
        self.batch_size = given.batch_size
        if seed is not None:
            seed = whole_number("seed", seed, 0, MOST_SEED)
        self._warmup_points: tuple[tuple[Any, ...], ...] | None = None
        if isinstance(given.warmup, Iterable):
            self._warmup_points = tuple(
                self._point_to_ask(p, f"warmup[{i}]: ") for i, p in enumerate(given.warmup)
            )
            self._n_warmup = len(self._warmup_points)
        else:
            self._n_warmup = given.warmup
        self.warmup_distribution = given.warmup_distribution
        self._start = self._start_points(given.start)
        self._task = given.task
        emitter = ModelEmitter(get_client(one_model(client, given.model)), prompt, **given.asking)
        self.seed = int(np.random.SeedSequence(seed).entropy)  # type: ignore[arg-type]
        self._seed_given = seed is not None
        self._state = self._new_state()
        self._partner = given.partner
        self._requests = given.requests
        self._emitter = self._make_emitter(emitter)
        self._log: EventLog | None = None
        self._ready = self._told_twice = False
        self._changing = Lock()  # held briefly: tell never waits for a model
        self._joiner = Joiner()
        self._bell: Bell | None = None
        if given.storage is not None:
            self._attach(given.storage, given.durable)
        if given.callbacks:
            self._bell = Bell(tuple(given.callbacks), self._search_info(given.storage))
            # Without a reference to this optimizer: one that is dropped closes its file at once.
            self._meter.observe = partial(self._bell.ring, "sent")
        if given.import_trials is not None:
            report = self.import_trials(given.import_trials)
            unread = any(row.reason for row in report.rows) or report.notes
            logger.log(logging.WARNING if unread else logging.INFO, "%s", report)

    def _point_to_ask(self, params: Any, where: str = "") -> tuple[Any, ...]:
        """Return a point that the user wants evaluated, flat.

        Raises:
            ParameterError: It is not in the space, or breaks a constraint.
        """
        try:
            values = self.space.flatten(params)
        except ParameterError as error:
            raise ParameterError(f"{where}{error}") from error
        if broken := self.space.broken(values):
            texts = ", ".join(f"{text} (by {amount:.3g})" for text, amount in broken.items())
            raise ParameterError(f"{where}the point {short(params)} breaks {texts}")
        return values

    def _start_points(self, start: Any) -> list[tuple[str, tuple[Any, ...]]]:
        if isinstance(start, StoredPoints):
            return [(words, self.space.from_json_values(v)) for words, v in start]
        if isinstance(start, Mapping):
            pairs = list(start.items())
        elif isinstance(start, Iterable) and not isinstance(start, str):
            pairs = [("", params) for params in start]
        else:
            pairs = [(start, None)]
        if not all(isinstance(words, str) for words, _ in pairs) or isinstance(start, str):
            raise ValueError(
                f"start={short(start)}: expected a list of points, or a mapping from words to "
                'points, such as {"the current setting": {...}}'
            )
        return [
            (w, self._point_to_ask(p, f"start[{w or i!r}]: ")) for i, (w, p) in enumerate(pairs)
        ]

    def _new_state(self) -> SearchState:
        state = SearchState(self.space, self.directions, self.seed)
        for words, values in self._start:
            state.apply(state.enqueue_event(values, words))
        return state

    def _make_emitter(self, model: ModelEmitter) -> ModelEmitter | Scheduler:
        emitter = make_scheduler(self._partner, model, self.seed, self._requests)
        if isinstance(emitter, Scheduler) and len(self.directions) > 1:
            raise ValueError(several_objectives(len(self.directions)))
        if self._partner is not None:
            CMAEmitter.check(self.space)
        return emitter

    @property
    def _model(self) -> ModelEmitter:
        emitter = self._emitter
        return emitter.model if isinstance(emitter, Scheduler) else emitter

    # -- asking ---------------------------------------------------------------------------

    @property
    def _meter(self) -> Meter:
        return self._model.meter

    @property
    def client(self) -> Client:
        """The model that is asked."""
        return self._model.client

    @property
    def prompt(self) -> Prompt:
        """The prompt in use."""
        return self._model.prompt

    @property
    def limits(self) -> Limits:
        """The caps on what may be spent; assign new ones to raise them."""
        return self._model.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._model.limits = limits

    @overload
    def ask(self, n: None = None) -> Params: ...
    @overload
    def ask(self, n: int) -> list[Params]: ...
    def ask(self, n: int | None = None) -> Params | list[Params]:
        """Return the next point to evaluate, or the next `n` of them.

        Warm-up points come first; then one model request asks for all the points wanted
        where the client can. Points never repeat while the space has untried ones.

        Args:
            n: How many points; ``None`` for a single one, not in a list.

        Returns:
            Parameters in the form the space was given in, or a list of `n` of them.

        Raises:
            BudgetExceededError: A cap on requests, tokens or cost is reached, unless
                ``on_error="fallback"``; or at the first call, if the cap on cost cannot be kept.
            ClientError: The model could not be asked, unless ``on_error="fallback"``; or at the
                first call, warm-up or not, if its key or file is missing.
            ImportError: The same, if its package is missing.
            PromptTooLongError: The prompt does not fit the model's context.
            SearchStopped: The model ended the search, with ``may_stop=True``.
            StorageError: The storage file could not be written; call again once it can.
        """
        points, warned = self._points(n)
        for text in warned:
            warnings.warn(text, FallbackWarning, stacklevel=2)
        return points

    def _points(self, n: int | None) -> tuple[Params | list[Params], list[str]]:
        """Return what `ask` does, and what it is to warn of at the caller's line."""
        count = 1 if n is None else whole_number("n", n, 1, MOST_POINTS)
        proposals, warned = self._serve(count)
        return self._in_form(proposals, n), warned

    def _in_form(self, proposals: list[Proposal], n: int | None) -> Params | list[Params]:
        points = [self.space.unflatten(p.values) for p in proposals]
        return points[0] if n is None else points

    def _check_ready(self) -> None:
        """Look, once, for what sure is to stop the first request: see `Meter.check_ready`."""
        if not self._ready:
            if self._model.options.on_error == "raise":
                self.limits.check(Usage())  # a cap of 0
            self._meter.check_ready(self._log)
            self._ready = True

    def _serve(
        self, n: int, given: Callable[[], int] | None = None
    ) -> tuple[list[Proposal], list[str]]:
        """Ask for `n` points; `given` says in the end how many of them are handed out."""
        if self._log is not None:
            self._log.check()  # before a lock is waited for, and before anything is paid for
        self._check_ready()  # before the first warm-up point is evaluated
        try:
            with self._meter.asking() as draft:
                proposals = self._ask(n, draft, given)
        except SearchStopped as stopped:
            if self._bell is not None:
                self._bell.reason = str(stopped)
            raise
        if self._bell is not None:
            for proposal in proposals:
                self._bell.ring("asked", proposal)
        return proposals, draft.warnings

    def _ask(self, n: int, draft: Draft, given: Callable[[], int] | None) -> list[Proposal]:
        state = self._state
        before = state.rng.bit_generator.state
        try:
            with self._changing:
                history = self._history()
                before_keys = set(state.keys)
                seen = set(before_keys)
                new = self._warm_up(n - len(state.ready), seen)
            wanted = n - len(state.ready) - len(new)
            if wanted > 0:
                wanted = max(wanted, self.batch_size)
                new += self._emitter.propose(self.space, history, state.rng, wanted, taken=seen)
                new += self._fill(n - len(state.ready) - len(new), seen, new, draft)
            with self._changing, uninterrupted():
                new = self._without_those_taken_meanwhile(new, n, before_keys)
                handed = n if given is None else given()
                self._record(state.ask_event(new, handed, self._meter.usage_with(draft)))
                self._meter.settle(draft)
                return state.pending[-handed:] if handed else []
        except BaseException:
            if not draft.settled:
                # The next call draws the same numbers, so it meets the replies already paid for.
                state.rng.bit_generator.state = before
            raise

    def _without_those_taken_meanwhile(
        self, new: list[Proposal], n: int, before: set[Any]
    ) -> list[Proposal]:
        """Leave out points that another thread enqueued or told while the model was asked.

        Args:
            new: The points of this ask.
            n: How many points are wanted, with those that are ready.
            before: Keys of all points when the ask began.
        """
        state = self._state
        taken = state.keys - before
        if not taken or self._model.options.noisy:
            return new
        listed = self._warmup_points is not None
        kept = [
            p
            for p in new
            if (listed and p.source == "warmup") or self.space.key(p.values) not in taken
        ]
        for proposal in new:
            if proposal not in kept:
                self._meter.count_proposal(proposal.source, -1)
        if (missing := n - len(state.ready) - len(kept)) > 0:
            seen = state.keys | {self.space.key(p.values) for p in kept}
            drawn = draw_fallbacks(self.space, seen, state.rng, missing)
            for proposal in drawn:
                self._meter.count_proposal(proposal.source)
            kept += drawn
        return kept

    def _fill(
        self, missing: int, seen: set[Any], new: list[Proposal], draft: Draft
    ) -> list[Proposal]:
        """Draw the points of an ask that the model ended after others of it."""
        if missing <= 0:
            return []
        taken = {*seen, *(self.space.key(p.values) for p in new)}
        draft.warnings.append(
            f"the model ended the search: {missing} of the points asked for "
            f"{'was' if missing == 1 else 'were'} drawn at random"
        )
        drawn = draw_fallbacks(self.space, taken, self._state.rng, missing)
        for proposal in drawn:
            self._meter.count_proposal(proposal.source)
        return drawn

    def _warm_up(self, n: int, seen: set[Any]) -> list[Proposal]:
        state = self._state
        known = len(state.trials) + len(state.pending) + len(state.ready)
        proposals: list[Proposal] = []
        while len(proposals) < n:
            if self._warmup_points is not None:
                if state.warmed + len(proposals) >= self._n_warmup:
                    break
                values = self._warmup_points[state.warmed + len(proposals)]
                seen.add(self.space.key(values))
            elif known + len(proposals) >= self._n_warmup:
                break
            else:
                normal = self.warmup_distribution == "normal"
                values = draw_new(self.space, seen, state.rng, normal=normal)
            proposals.append(Proposal(values, "warmup"))
            self._meter.count_proposal("warmup")
        return proposals

    def enqueue(self, params: Any, words: str = "") -> None:
        """Have a point handed out by the next `ask` that no earlier one is waiting for.

        Args:
            params: A point of the space.
            words: What the point is, for the model: ``"the current production setting"``. It is
                told once the point has been evaluated.

        Raises:
            ParameterError: The point is not in the space, or breaks a constraint.
            StorageError: The storage file could not be written. Nothing was queued.
        """
        if not isinstance(words, str):
            raise TypeError(f"words={words!r}: expected a string")
        values = self._point_to_ask(params)
        with self._changing:
            self._record(self._state.enqueue_event(values, words))

    def import_trials(
        self,
        source: Any,
        *,
        names: Mapping[str, str | None] | None = None,
        fill: Mapping[str, Any] | None = None,
        out_of_range: Literal["reject", "clip"] = "reject",
    ) -> ImportReport:
        """Take over trials of an earlier search; no model is asked.

        Trials that this search has already are left out, so that a script may call it each time.

        Args:
            source: A storage file, a CSV file, an Optuna study, another search, a DataFrame, or a
                list of dictionaries. The columns of a table are the parameters' names (with
                ``params_`` before them, as in `trials_dataframe`, or without), ``reward`` (or
                ``reward_0``, ...; ``value``), and if need be ``feedback``, ``stderr``,
                ``constraint_violation``.
            names: What parameters of the source are called here; ``None`` leaves one out, on
                whose value the reward does not depend.
            fill: Values of parameters that the source has not.
            out_of_range: Whether a row with a value outside its range is refused, or the value
                moved to the bound, though the reward was measured elsewhere.

        Returns:
            What became of each row; print it.

        Raises:
            ParameterError: The source is of a search in the other direction, or `names` or
                `fill` names no parameter.
            StorageError: A file cannot be read, or the storage not be written.
            TypeError: `source` is something else.
        """
        one_of("out_of_range", out_of_range, ("reject", "clip"))
        found = read_source(source, len(self.directions))
        if found.directions is not None and found.directions != self.directions:
            raise ParameterError(
                f"{found.title} is of a search with direction {found.directions}, and this one "
                f"has {self.directions}: their rewards do not compare"
            )
        importer = Importer(self.space, names, fill, out_of_range)
        rows: list[ImportedRow] = []
        with self._changing:
            known = Counter((self.space.key(t.values), t.rewards) for t in self._state.trials)
            told = []
            for number, row in enumerate(found.rows, start=1):
                try:
                    values, changed = importer.values_of(row, found.table)
                    params = self.space.unflatten(values)
                    one = self._read_told(params, row.reward, **row.words)
                except (LLMOptError, TypeError) as error:
                    rows.append(ImportedRow(number, "refused", str(error)))
                    continue
                key = self.space.key(one[0]), one[1]
                known[key] -= 1
                if known[key] >= 0:
                    rows.append(ImportedRow(number, "known"))
                    continue
                told.append(one)
                outcome: Outcome = "changed" if changed else "taken"
                rows.append(ImportedRow(number, outcome, ", ".join(changed)))
            for one in told:
                self._record(self._state.tell_event(*one, kind="imported"))
        notes = notes_on(found, self._task, self.space)
        return ImportReport(found.title, tuple(rows), tuple(notes))

    @property
    def imported(self) -> frozenset[int]:
        """Numbers of the trials that were imported, from 0."""
        with self._changing:
            return frozenset(t.number for t in self._state.trials if t.kind == "imported")

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
    ) -> Trial[Params]:
        """Record what a point scored.

        A point handed out by `ask` is matched by its values, whatever the order; any other
        valid point is recorded as the user's own. NaN, infinity and ``None`` count as a
        failed evaluation.

        Args:
            params: A point of the space, in the form the space was given in. Not kept.
            reward: A number, or one for each objective.
            feedback: Words about this point for prompts that show them.
            constraint_violation: Sum of the amounts by which constraints are violated; 0
                is feasible, and feasible points rank before the others. What linear
                constraints of the space are broken by is added.
            stderr: Standard error of the reward (of the first objective), for prompts that
                show it.
            samples: The numbers that the reward is the mean of, where every point is measured
                on the same seeded starts in the same order. Prompts then compare points
                start by start, and `stderr` is computed if it is not given.

        Returns:
            The recorded trial.

        Raises:
            ParameterError: The point is not in the space; the message names the parameter.
            RewardError: The reward is not a number, or not one for each objective; or
                `constraint_violation` or `stderr` is negative or not finite.
            StorageError: The storage file could not be written. Nothing was recorded.
        """
        return self._tell(
            *self._read_told(params, reward, feedback, constraint_violation, stderr, samples)
        )

    def tell_failure(self, params: Any, reason: str = "") -> Trial[Params]:
        """Record that a point could not be evaluated.

        The model is told so, and the point is not proposed again.

        Args:
            params: A point of the space.
            reason: Why, in words.

        Returns:
            The recorded trial.

        Raises:
            ParameterError: The point is not in the space.
            StorageError: The storage file could not be written. Nothing was recorded.
        """
        return self._tell(*self._read_failure(params, reason))

    def _read_told(
        self,
        params: Any,
        reward: Any,
        feedback: str = "",
        constraint_violation: float = 0.0,
        stderr: float | None = None,
        samples: Sequence[float] = (),
    ) -> _Told:
        """Check what `tell` was given, and return what `_tell` takes; nothing is recorded."""
        values = self.space.flatten(params)
        rewards, trouble = self._read_reward(reward)
        if not isinstance(feedback, str):
            raise TypeError(f"feedback={feedback!r}: expected a string")
        violation = _number(constraint_violation, "constraint_violation")
        if not 0 <= violation < math.inf:
            raise RewardError(f"constraint_violation={violation}: expected a number of 0 or more")
        violation += sum(self.space.broken(values).values())
        if trouble:
            feedback = f"{trouble}; {feedback}" if feedback else trouble
        if isinstance(samples, (str, numbers.Number)) or not isinstance(samples, Iterable):
            raise RewardError(
                f"samples={short(samples)}: expected a list of numbers, whose mean is the reward"
            )
        parts = tuple(_number(sample, "samples") for sample in samples)
        if not all(map(math.isfinite, parts)):
            raise RewardError(f"samples={list(parts)}: expected finite numbers")
        if stderr is None and len(parts) > 1:
            stderr = float(np.std(parts, ddof=1)) / math.sqrt(len(parts))
        if stderr is not None:
            stderr = _number(stderr, "stderr")
            if not 0 <= stderr < math.inf:
                raise RewardError(f"stderr={stderr}: expected a number of 0 or more")
        return values, rewards, feedback, violation, stderr, parts

    def _read_failure(self, params: Any, reason: str = "") -> _Told:
        return self.space.flatten(params), None, str(reason), 0.0, None, ()

    def _read_reward(self, reward: Any) -> tuple[tuple[float, ...] | None, str]:
        """Return the rewards, or ``None`` with the reason why the evaluation failed."""
        if reward is None:
            return None, "no reward"
        wanted = len(self.directions)
        rewards: tuple[float, ...]
        if wanted == 1:
            rewards = (_number(reward, "reward"),)
        else:
            try:
                rewards = tuple(_number(r, "reward") for r in reward)
            except TypeError:
                rewards = ()
            if len(rewards) != wanted:
                raise RewardError(
                    f"reward={reward!r}: expected {wanted} numbers, one for each objective"
                )
        if not all(math.isfinite(r) for r in rewards):
            return None, f"the reward was {reward}"
        return rewards, ""

    def _tell(
        self,
        values: tuple[Any, ...],
        rewards: tuple[float, ...] | None,
        feedback: str,
        violation: float,
        stderr: float | None,
        samples: tuple[float, ...],
        kind: Kind = "search",
    ) -> Trial[Params]:
        with self._changing:
            if rewards is not None and not samples:
                self._note_another_reward(values, rewards)
            self._record(
                self._state.tell_event(values, rewards, feedback, violation, stderr, samples, kind)
            )
            trial = self._state.trials[-1]
        if self._bell is not None:
            self._bell.ring("told", trial, self.history.best, self.usage)
        return trial

    def _note_another_reward(self, values: tuple[Any, ...], rewards: tuple[float, ...]) -> None:
        """Say once that a point was told before, with another reward."""
        asked = any(p.values == values for p in self._state.pending)
        if self._told_twice or asked or self._model.options.noisy:
            return
        if self.space.key(values) not in self._state.keys:
            return
        told = [t for t in self._state.trials if t.values == values and t.rewards is not None]
        if told and told[-1].rewards != rewards:
            self._told_twice = True
            logger.warning(
                "the point of trial %d was told again, with another reward (%s, before %s): it is "
                "one more trial. If a point gives another reward each time, say noisy=True",
                told[-1].number + 1,
                rewards[0] if len(rewards) == 1 else rewards,
                told[-1].reward,
            )

    # -- asynchronous form ----------------------------------------------------------------

    @overload
    async def aask(self, n: None = None) -> Params: ...
    @overload
    async def aask(self, n: int) -> list[Params]: ...
    async def aask(self, n: int | None = None) -> Params | list[Params]:
        """`ask` for loops that are asynchronous.

        Asks that begin together, or while another one is under way, are joined into one request
        for all their points, as ``ask(n)`` makes it. The points of an ask that was cancelled are
        handed out by the next one. Ctrl-C waits for no model.
        """
        count = 1 if n is None else whole_number("n", n, 1, MOST_POINTS)
        proposals, warned = await self._joiner.ask(
            count, self._serve, self._give_back, self._meter.lock
        )
        for text in warned:
            warnings.warn(text, FallbackWarning, stacklevel=2)
        return self._in_form(proposals, n)

    def _give_back(self, proposals: list[Proposal]) -> None:
        with self._changing:
            self._record(self._state.return_event(proposals))

    async def atell(
        self,
        params: Any,
        reward: Any,
        *,
        feedback: str = "",
        constraint_violation: float = 0.0,
        stderr: float | None = None,
        samples: Sequence[float] = (),
    ) -> Trial[Params]:
        """`tell` for loops that are asynchronous."""
        return await asyncio.to_thread(
            self.tell,
            params,
            reward,
            feedback=feedback,
            constraint_violation=constraint_violation,
            stderr=stderr,
            samples=samples,
        )

    # -- results --------------------------------------------------------------------------

    @property
    def history(self) -> History:
        """The trials, and the points handed out or queued, as an immutable snapshot.

        With ``noisy=True`` a point that was measured repeatedly is one trial with the mean.
        """
        with self._changing:
            return self._history()

    def _history(self) -> History:
        history = self._state.history()
        return history.merged(self.space.key) if self._model.options.noisy else history

    @property
    def trials(self) -> list[Trial[Params]]:
        """All trials in the order of telling (a copy)."""
        with self._changing:
            return TrialList(self._state.trials)

    @property
    def total(self) -> int | None:
        """Proposals planned in all, as the prompt says it; it may be changed during a search.

        Raises:
            ValueError: It is set to no whole number above 0.
        """
        return self._model.total

    @total.setter
    def total(self, value: int | None) -> None:
        self._model.total = None if value is None else whole_number("total", value, 1)

    @property
    def pending(self) -> list[Proposal]:
        """The points handed out and not told yet, oldest first (a copy).

        After a resume these are the points whose evaluation was cut off: evaluate them
        (``optimizer.space.unflatten(p.values)``) before asking for more.
        """
        with self._changing:
            return list(self._state.pending)

    @property
    def best(self) -> Trial[Params]:
        """The best trial so far; the first of equals.

        With several objectives one of the Pareto front (see ``history.pareto_front``). With
        ``noisy=True`` no lucky value: see `recommend`.

        Raises:
            NoTrialsError: There is no complete trial yet. ``history.best`` is ``None`` then.
        """
        history = self.history
        if history.best is None:
            raise NoTrialsError(why_no_best(history.trials))
        return history.best

    def recommend(self) -> Params:
        """Return the parameters to keep: those of `best`.

        With ``noisy=True`` that is the point whose mean less its standard error is the best, by
        the errors that were told and by how far repeated measurements of one point lie apart.
        Tell a point again to measure it better.

        Raises:
            NoTrialsError: There is no complete trial yet.
        """
        return self.best.params

    def trials_dataframe(self) -> pandas.DataFrame:
        """Return the trials as a pandas table, a row for each.

        Columns are ``number``, ``state``, ``reward`` (``reward_0``, ``reward_1``, ... for several
        objectives; missing for a failed trial), ``stderr``, ``constraint_violation``, a
        ``params_NAME`` for each parameter, ``source``, ``feedback``, ``explanation``,
        ``prompt_tokens``, ``completion_tokens`` and ``seconds``.

        Raises:
            ImportError: pandas is not installed.
        """
        return dataframe(self.trials, self.space.names, len(self.directions))

    def plot_history(self, ax: Axes | None = None) -> Axes:
        """Draw the reward of each trial, in the colour of its source, and the best so far.

        Args:
            ax: Matplotlib axes to draw on; ``None`` for a figure of its own.

        Returns:
            The axes; ``plot_history().figure.savefig("history.png")`` writes the picture.

        Raises:
            ImportError: Matplotlib is not installed.
            LLMOptError: The search has several objectives.
        """
        return plot(self.history, ax)

    @property
    def usage(self) -> Usage:
        """What was spent so far (a copy)."""
        return self._meter.usage

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self.space)} parameters, "
            f"client={client_name(self.client)!r}, prompt={self.prompt.name!r}, "
            f"{len(self._state.trials)} trials)"
        )

    def _facts(self) -> list[tuple[str, Any]]:
        best, usage = self.history.best, self.usage
        cost = "not known" if usage.cost is None else f"{usage.cost:.4f} US dollars"
        points = ", ".join(f"{count} {source}" for source, count in usage.proposals.items())
        return [
            ("best reward", "no complete trial yet" if best is None else best.reward),
            ("best parameters", "" if best is None else best.params),
            ("model", client_name(self.client)),
            ("prompt", self.prompt.name),
            ("trials", len(self.trials)),
            ("points handed out", points),
            ("requests", usage.requests),
            ("cost", cost),
        ]

    def _repr_html_(self) -> str:
        return search_html(type(self).__name__, self._facts(), self.trials)

    # -- saving and resuming --------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole state to a file, replacing it in one step.

        Args:
            path: The file. `load` reads it, and so does ``storage=``.

        Raises:
            StorageError: The file cannot be written; an older one is left as it was.
        """
        path = Path(path)
        if self._log is not None and self._log.is_at(path):
            raise StorageError(
                f"{path} is the storage of this optimizer and already holds all of its state: "
                "save to another path"
            )
        with self._meter.lock, self._changing:
            snapshot = self._state.snapshot_event(self._meter.usage, self._meter.paid)
        lines = line_of(self._start_event()) + line_of(snapshot)
        write_bytes_atomically(path, lines, durable=True)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        client: Client | str | None = None,
        **options: Any,
    ) -> LLMOptimizer[Any]:
        """Rebuild an optimizer from a file that `save` or ``storage=`` wrote.

        Args:
            path: The file. It is only read; nothing more is written to it.
            client: The model to go on with; no key is ever in the file.
            **options: Constructor arguments that the file does not hold (a prompt object,
                caps) or that are to be changed.

        Raises:
            StorageError: The file cannot be read or does not hold a run.
            TypeError: `options` name a storage, to which nothing would be written of what
                the file holds; or points to start with, which the file has.
        """
        if "start" in options:
            raise TypeError("load() has no start=: enqueue() further points once it is loaded")
        if "storage" in options:
            raise TypeError(
                "load() has no storage=: to go on in the file itself, make "
                "LLMOptimizer(space, ..., storage=path) with the arguments of the run; to go on "
                "in another file, save() to it and give that as storage="
            )
        events = list(read_events(path))
        start = start_of(events, path)
        client = get_client(one_model(client, options.pop("model", None)))
        with as_written(path, 1, start):
            merged = stored_options(start, options)
        if "prompt" not in options:
            check_prompt_for(merged["prompt"], client)
        # With no options of the caller's, what the constructor refuses is the file's.
        with contextlib.nullcontext() if options else as_written(path, 1, start):
            optimizer = cls(client=client, **merged)
        replay(events, optimizer._state, optimizer._meter, path)
        return optimizer

    def close(self) -> None:
        """Close the storage file, and tell callbacks. The optimizer can still be read."""
        if self._bell is not None:
            self._bell.end()
        if self._log is not None:
            with contextlib.suppress(StorageError):
                self._meter.flush()
            self._log.close()

    def _attach(self, path: str | os.PathLike[str], durable: bool) -> None:
        log = EventLog(path, durable=durable)
        try:
            if log.events:
                start = start_of(log.events, path)
                with as_written(path, 1, start):
                    check_same(start, self._start_event(), path, seed_given=self._seed_given)
                    self.seed = whole_number("seed", start["seed"], 0, MOST_SEED)
                self._emitter = self._make_emitter(self._model)
                self._state = self._new_state()
                replay(log.events, self._state, self._meter, path)
            else:
                log.begin(self._start_event())
        except BaseException:
            log.close()
            raise
        log.events = []
        self._log = log
        # Without a reference to this optimizer: one that is dropped closes its file at once.
        meter = self._meter
        meter.check, meter.record = log.check, partial(record_spent, log)
        meter.announce = partial(record_request, log)

    def _start_event(self) -> Event:
        points, asked = self._warmup_points, self._model.options
        start: Event = {
            "event": "start",
            "format": FORMAT,
            "llmopt": __version__,
            "space": self.space.to_dict(),
            "directions": list(self.directions),
            "prompt": self.prompt.to_dict(),
            "client": client_name(self.client),
            "seed": self.seed,
            "options": {
                "warmup": self._n_warmup,
                "warmup_points": None
                if points is None
                else [list(self.space.to_json_values(p)) for p in points],
                "warmup_distribution": self.warmup_distribution,
                "batch_size": self.batch_size,
                "total": self._model.total,
                "description": self._model.options.description,
                "attempts": self._model.options.attempts,
                "out_of_range": self._model.options.out_of_range,
                "partner": self._partner,
                "requests": self._requests,
            },
        }
        # What follows is left out where it says nothing, as in files of earlier versions.
        further = {
            "start": [[w, list(self.space.to_json_values(values))] for w, values in self._start],
            "may_stop": asked.may_stop,
            "on_error": self._model.options.on_error
            if self._model.options.on_error != "raise"
            else None,
            "max_requests": self.limits.max_requests,
            "max_tokens": self.limits.max_tokens,
            "max_cost": self.limits.max_cost,
        }
        start["options"] |= {k: v for k, v in further.items() if v not in (None, False, [], {})}
        start["options"] |= {"noisy": self._model.options.noisy, "task": self._task}
        return start

    def _search_info(self, storage: str | os.PathLike[str] | None) -> Search:
        start = self._start_event()
        settings = {k: start[k] for k in ("llmopt", "seed", "client", "space")}
        settings |= {"prompt": self.prompt.name, **start["options"]}
        name, place = "search", ""
        if storage is not None:
            name, place = Path(storage).stem, os.path.abspath(storage)
        return Search(name, self.space.names, self.directions, settings, place)

    def _record(self, event: Event) -> None:
        """Store an event, then let it change the state."""
        with uninterrupted():
            if self._log is not None:
                self._meter.flush()
                self._log.append(event)
            self._state.apply(event)

    # -- copies ---------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        with self._meter.lock, self._changing:
            # The file stays with the original; two writers would tear it.
            return {
                **self.__dict__,
                "_log": None,
                "_bell": None,
                "_stored_in": self._log and str(self._log.path),
                "_changing": Lock(),
                "_joiner": Joiner(),
                "_state": copy.deepcopy(self._state),
                "_emitter": copy.copy(self._emitter),
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        path = state.pop("_stored_in", None)
        self.__dict__.update(state)
        if path is not None:
            logger.warning(
                "this copy of an optimizer with storage=%s stores nothing: save() it, or give "
                "its results to the original",
                path,
            )


def _directions(direction: Any) -> tuple[Direction, ...]:
    many: tuple[Direction, ...]
    if isinstance(direction, Sequence) and not isinstance(direction, str):
        many = tuple(direction)
    else:
        many = (direction,)
    for one in many:
        if one not in _DIRECTIONS:
            raise ValueError(f"direction={one!r}: expected 'maximize' or 'minimize'")
    if not many:
        raise ValueError("direction=(): expected at least one of 'maximize' and 'minimize'")
    return many


def _number(value: Any, name: str) -> float:
    """Return a real scalar as a float.

    Raises:
        RewardError: It is not one. Booleans, strings and arrays with axes are not.
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (numbers.Real, np.number)):
        shape = f" of shape {value.shape}" if isinstance(value, np.ndarray) else ""
        raise RewardError(
            f"{name}={short(value)} is a {type(value).__name__}{shape}: expected a single real "
            "number (a failed evaluation is told with None, NaN or tell_failure)"
        )
    if isinstance(value, np.complexfloating):
        raise RewardError(f"{name}={value}: expected a real number, got a complex one")
    try:
        return float(value)
    except (OverflowError, TypeError) as error:
        raise RewardError(
            f"{name}={short(value)}: expected a number within a float's range ({error})"
        ) from error
