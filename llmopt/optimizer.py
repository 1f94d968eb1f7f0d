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
import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, Unpack, overload

from llmopt.callbacks import Callbacks
from llmopt.client.base import Client
from llmopt.client.model_string import get_client, one_model
from llmopt.data import Evaluation, folder_of
from llmopt.errors import RewardError, SearchStopped, warn_user
from llmopt.history import Direction, Kind, Merged, Params, Proposal, Trial
from llmopt.lab.blocks import let_compute
from llmopt.prompt import Prompt, check_prompt_for
from llmopt.search.emitter import ModelEmitter
from llmopt.search.eventlog import as_written, read_events
from llmopt.search.events import (
    Asked,
    Queued,
    Returned,
    TellArguments,
    Told,
    expected_by_name,
    objective_name,
    read_objectives,
    read_told,
)
from llmopt.search.imports import Importer, ImportReport, notes_on, read_source
from llmopt.search.meter import Draft
from llmopt.search.model_ask import SearchBatch
from llmopt.search.options import SearchArguments, SearchOptions
from llmopt.search.points import point_to_ask, start_points, warmup_points
from llmopt.search.results import Results
from llmopt.search.resume import start_of, stored_model, stored_options
from llmopt.search.session import described
from llmopt.space import Dimension, Space
from llmopt.util.arguments import (
    MOST_POINTS,
    one_of,
    seed_or_fresh,
    whole_number,
)
from llmopt.util.text import short
from llmopt.util.threads import Lock, uninterrupted

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    _Form = TypeVar("_Form", covariant=True)

    class GymnasiumSpace(Protocol[_Form]):
        """A `gymnasium.spaces` space, whose samples have the form of its points."""

        def sample(self) -> _Form: ...  # noqa: D102
        def contains(self, x: Any) -> bool: ...  # noqa: D102


class LLMOptimizer(Results[Params]):
    """A black-box optimizer that asks a language model for the next point.

    Args:
        space: A `Space`, a mapping of names to `Float`, `Int` and `Categorical`, or any
            bounded `gymnasium.spaces` space. Parameters come back in the same form.
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
        space: Space,
        client: Client | str | None = None,
        prompt: str | Path | Prompt = "auto",
        direction: Direction | Sequence[Direction] | Mapping[str, Direction] = "maximize",
        seed: int | None = None,
        **options: Unpack[SearchArguments],
    ) -> None: ...
    def __init__(
        self,
        space: Any,
        client: Client | str | None = None,
        prompt: str | Path | Prompt = "auto",
        direction: Direction | Sequence[Direction] | Mapping[str, Direction] = "maximize",
        seed: int | None = None,
        **options: Unpack[SearchArguments],
    ) -> None:
        given = SearchOptions.of("LLMOptimizer", options)
        self.space = Space.of(space).constrained(given.constraints)
        self.directions, self.metrics = read_objectives(direction)
        self.seed = seed_or_fresh(seed)
        self.batch_size, self._options, self._seed_given = given.batch_size, given, seed is not None
        self._warmup_points = warmup_points(self.space, given.warmup)
        self._start = start_points(self.space, given.start)
        model = get_client(one_model(client, given.model))
        emitter = ModelEmitter(model, prompt, **given.asking)
        self.n_warmup = len(self._warmup_points or ())
        if given.warmup == "auto":
            self.n_warmup = emitter.start_up()
        elif isinstance(given.warmup, int):
            self.n_warmup = given.warmup
        self._changing, self._merged = Lock(), Merged(self.space.key)
        self._state = self._new_state()
        emitter.seeded = given.seeded
        self._use(self._make_emitter(let_compute(emitter)))
        if emitter.total is not None:
            self.check_asks(emitter.total, given=given.warmup != "auto")
        self._told_twice: set[bool] = set()  # with equal and with other rewards
        if given.storage is not None:
            self._attach(given.storage, given.durable)
            if self._model.calculator is not None:
                self._model.calculator.folder = self._state.folder
        if given.callbacks:
            self._callbacks = Callbacks(tuple(given.callbacks), self._search_info(given.storage))
            # Without a reference to this optimizer: one that is dropped closes its file at once.
            self.meter.observe = partial(self._callbacks.notify, "sent")
        if given.import_trials is not None:
            report = self.import_trials(given.import_trials)
            unread = any(row.reason for row in report.rows) or report.notes
            logger.log(logging.WARNING if unread else logging.INFO, "%s", report)

    # -- asking ---------------------------------------------------------------------------

    @overload
    def ask(self, n: None = None) -> Params: ...
    @overload
    def ask(self, n: int) -> list[Params]: ...
    def ask(self, n: int | None = None) -> Params | list[Params]:
        """Return the next point to evaluate, or the next `n` of them.

        Warm-up points come first; then one request asks for all `n` points if the client can return
        several. Points do not repeat while the space has untried ones, unless ``noisy=True``.

        Args:
            n: Number of points; ``None`` for a single point, not in a list.

        Returns:
            Parameters in the form of the given space, or a list of `n` of them.

        Raises:
            BudgetExceededError: A cap on requests, tokens or cost is reached, unless
                ``on_error="fallback"``; or, at the first call, `max_cost` is set and the cost is
                unknown.
            ClientError: The request failed, unless ``on_error="fallback"``; or, at the first call,
                the key or the model's file is missing.
            ImportError: At the first call, the model's package is missing.
            PromptTooLongError: The prompt does not fit the model's context.
            SearchStopped: The model ended the search, with ``may_stop=True``.
            StorageError: The storage file could not be written; call again once it can.
        """
        count = 1 if n is None else whole_number("n", n, 1, MOST_POINTS)
        proposals, warned = self.propose(count)
        for text in warned:
            warn_user(text)
        points = [self.space.unflatten(p.values) for p in proposals]
        return points[0] if n is None else points

    def propose(self, n: int) -> tuple[list[Proposal], list[str]]:
        """Return `n` proposals with source and explanation, and texts of warnings; see `ask`."""
        if self._log is not None:
            self._log.check()  # before a lock is waited for, and before anything is paid for
        self.check_ready()  # before the first warm-up point is evaluated
        if self._callbacks is not None and self._callbacks.stopped is not None:
            raise self._callbacks.stopped
        try:
            proposals, draft = self.meter.asking(lambda draft: self._ask(n, draft))
        except SearchStopped as stopped:
            if self._callbacks is not None:
                self._callbacks.reason = str(stopped)
            raise
        if self._callbacks is not None:
            for proposal in proposals:
                self._callbacks.notify("asked", proposal)
        return proposals, draft.warnings

    def _ask(self, n: int, draft: Draft) -> list[Proposal]:
        state = self._state
        with self._changing:
            batch = SearchBatch(state, self._history(), n)
            batch.warm_up(self._warmup_points, self.n_warmup)
        if batch.missing >= n and state.stop is not None:
            raise SearchStopped(*state.stop)
        elif batch.missing and state.stop is None:
            wanted = max(batch.missing, self.batch_size)
            try:
                batch.found += self._emitter.propose(
                    self.space, batch.history, batch.rng, wanted, taken=batch.seen
                )
            except SearchStopped as end:
                with uninterrupted(), self._changing:
                    self._record_asked(batch, 0, draft, end)
                raise
        with uninterrupted(), self._changing:
            self._complete(batch, draft)
            self._record_asked(batch, n, draft, draft.stop)
            return state.pending[-n:]

    def _complete(self, batch: SearchBatch, draft: Draft) -> None:
        """Leave out what came meanwhile, and draw what is missing."""
        # A list of warm-up points is gone through one by one, whatever they are.
        fixed = "warmup" if self._warmup_points is not None else ""
        meanwhile = batch.settle(fixed, repeats=self._model.options.noisy)
        if batch.missing:
            missing = batch.draw_missing()
            why = "proposed what was recorded meanwhile" if meanwhile else "ended the search"
            draft.warnings.append(
                f"the model {why}: {len(missing)} of the points asked "
                f"for {'was' if len(missing) == 1 else 'were'} sampled at random"
            )

    def _record_asked(
        self, batch: SearchBatch, given: int, draft: Draft, end: SearchStopped | None
    ) -> None:
        """Record what an ask gave, and whether the model ended the search with it."""
        draft.points = batch.found
        usage = self.meter.usage_with(draft)
        stop = None if end is None else (str(end), end.point)
        drawn = batch.rng.bit_generator.state
        self._record(Asked(batch.found, given, drawn, usage.proposals, usage.rejected, stop))
        self.meter.commit(draft)

    def check_ready(self) -> None:
        """Check once for what would stop the first request (see `Meter.check_ready`)."""
        self.meter.check_ready(capped=self._model.options.on_error == "raise")

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
        if self._model.calculator is not None:
            self._model.calculator.equip(source, values or {})
            self._model.tools = tuple(words)

    def enqueue(self, params: Any, words: str = "") -> None:
        """Queue a point for `ask`, after the points queued before it.

        Args:
            params: A point of the space.
            words: Description of the point, such as ``"the current production setting"``. The
                prompt shows it after the evaluation.

        Raises:
            ParameterError: The point is not in the space, or breaks a constraint.
            StorageError: The storage file could not be written. Nothing was queued.
        """
        if not isinstance(words, str):
            raise TypeError(f"words={words!r}: expected a string")
        values = point_to_ask(self.space, params)
        with uninterrupted(), self._changing:
            self._record(Queued(values, words))

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
        found = read_source(source, self.directions, self.metrics)
        with self._changing:  # not as a whole: each of its trials is
            told, rows = importer.read(found, self._state.trials, self.read_result)
            for one in told:
                self._record(replace(one, kind="imported"))
        return ImportReport(found.title, rows, notes_on(found, self._options.task, self.space))

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

        Returns:
            The recorded trial.

        Raises:
            ParameterError: The point is not in the space; the message names the parameter.
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

    def read_result(self, params: Any, reward: Any, **words: Any) -> Told:
        """Check a result, and return what `tell` would record; `tell_as` records it."""
        if isinstance(reward, Evaluation):
            reward, words = reward.value, reward.told_with(words)
        if isinstance(reward, Mapping) and self.metrics:
            if expected := expected_by_name(reward, self.metrics):
                raise RewardError(f"reward={short(reward)}: {expected}")
            given = {objective_name(name): value for name, value in reward.items()}
            rewards = [given[name] for name in self.metrics]
            reward = rewards if len(rewards) > 1 else rewards[0]
        first, count, called = self.directions[0], len(self.directions), self.metrics
        return read_told(self.space, count, params, reward, direction=first, names=called, **words)

    def read_failure(self, params: Any, reason: str | BaseException = "") -> Told:
        """Check a failure, and return what `tell_failure` would record."""
        if isinstance(reason, BaseException):
            reason = described(reason)
        return Told(self.space.flatten(params), None, str(reason))

    def tell_as(self, told: Told, kind: Kind = "search") -> Trial[Params]:
        """Record a result that `read_result` or `read_failure` has checked, as one of a kind."""
        with uninterrupted(), self._changing:
            once = kind == "search" and not self._model.options.noisy
            if once and len(self._told_twice) < 2 and (before := self._state.recorded_before(told)):
                self._warn_of(told, before)
            if told.data:
                told = replace(told, data=self._stored(told.data, len(self._state.trials)))
            self._record(told if kind == "search" else replace(told, kind=kind))
            trial = self._state.trials[-1]
        if self._callbacks is not None:
            self._callbacks.notify("told", trial, self.history.best, self.usage)
        self._inform()
        return trial

    def _warn_of(self, told: Told, before: Trial) -> None:
        """Warn if a point is recorded again: once each for equal and for other rewards."""
        if (told.rewards == before.rewards) in self._told_twice:
            return
        self._told_twice.add(told.rewards == before.rewards)
        if told.rewards is None:
            now = "as a failure"
        elif told.rewards == before.rewards:
            now = "with the same reward"
        else:
            rewards = told.rewards[0] if len(told.rewards) == 1 else told.rewards
            now = f"with another reward ({rewards}, before {before.reward})"
        logger.warning(
            "the point of trial %d was recorded again %s: it counts as another trial. If rewards "
            "are noisy, pass noisy=True",
            before.number,
            now,
        )

    # -- asynchronous form ----------------------------------------------------------------

    @overload
    async def aask(self, n: None = None) -> Params: ...
    @overload
    async def aask(self, n: int) -> list[Params]: ...
    async def aask(self, n: int | None = None) -> Params | list[Params]:
        """`ask` for asynchronous loops: ``asyncio.to_thread(optimizer.ask, n)``.

        Asks run one after another, so ask once for all points that you evaluate at the same time. A
        cancelled ask still completes in its thread: its requests count, and its points are in
        `pending`.
        """
        return await asyncio.to_thread(self.ask, n)

    def give_back(self, proposals: list[Proposal]) -> None:
        """Hand back points, so that the next `ask` returns them again."""
        with uninterrupted(), self._changing:
            self._record(Returned([p.values for p in proposals]))

    async def atell(
        self, params: Any, reward: Any, **words: Unpack[TellArguments]
    ) -> Trial[Params]:
        """`tell` for asynchronous loops, with the same arguments."""
        return await asyncio.to_thread(self.tell, params, reward, **words)

    async def atell_failure(self, params: Any, reason: str = "") -> Trial[Params]:
        """`tell_failure` for asynchronous loops, with the same arguments."""
        return await asyncio.to_thread(self.tell_failure, params, reason)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], client: Client | str | None = None, **options: Any
    ) -> LLMOptimizer[Any]:
        """Rebuild an optimizer from a file that `save` or ``storage=`` wrote.

        Args:
            path: The file. It is only read, never written.
            client: The model for further requests, by default the stored one; the file never
                contains a key.
            **options: Constructor arguments that the file lacks (a prompt object, caps) or that you
                change.

        Raises:
            StorageError: The file cannot be read or does not hold a run.
            TypeError: `options` contain ``storage``, to which the trials of the file would not be
                copied, or ``start``, which the file already holds.
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
        model = options.pop("model", None)
        if client is None and model is None:
            model = stored_model(start, path)
        client = get_client(one_model(client, model))
        with as_written(path, 1, start):
            merged = stored_options(start, options)
        if "prompt" not in options:
            check_prompt_for(merged["prompt"], client)
        # With no options of the caller's, what the constructor refuses is the file's.
        with contextlib.nullcontext() if options else as_written(path, 1, start):
            optimizer = cls(client=client, **merged)
        optimizer.resume(events, path)
        if optimizer._model.calculator is not None:
            optimizer._model.calculator.read_from(folder_of(path))
        return optimizer
