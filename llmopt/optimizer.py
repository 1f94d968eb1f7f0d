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

import copy
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack, overload

from llmopt._version import __version__
from llmopt.asks import Asks
from llmopt.callbacks import Callbacks, Search, check_callbacks
from llmopt.client.base import Client
from llmopt.client.model_string import get_client, one_model
from llmopt.errors import LLMOptError, StorageError
from llmopt.evaluations import (
    read_objectives,
)
from llmopt.events import Started
from llmopt.history import Direction, Params, Proposal
from llmopt.journal import Journal, read_started
from llmopt.lab.blocks import calculator_for as laboratory
from llmopt.model_calls import ModelCalls
from llmopt.options import SearchArguments, SearchOptions
from llmopt.origin import new_identifier
from llmopt.partners import partners_of
from llmopt.point_task import asking_of
from llmopt.points import (
    start_points,
    warmup_points,
)
from llmopt.prompt import Prompt, check_prompt_for
from llmopt.repeats import Merged
from llmopt.resume_check import (
    arguments_of,
    check_same,
    parameters_of,
    started_there,
    stored_client,
)
from llmopt.space import Dimension, Space
from llmopt.state import State
from llmopt.util.arguments import (
    MOST_SEED,
    seed_or_fresh,
    whole_number,
)
from llmopt.util.files import check_folder
from llmopt.util.text import counted
from llmopt.util.threads import Lock

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    _Form = TypeVar("_Form", covariant=True)

    class GymnasiumSpace(Protocol[_Form]):
        """A `gymnasium.spaces` space, whose samples have the form of its points."""

        def sample(self) -> _Form: ...  # noqa: D102
        def contains(self, x: Any) -> bool: ...  # noqa: D102


class LLMOptimizer(Asks[Params]):
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

    _asks = True  # else nobody asks the model, and nothing is said of how it is asked
    _lends = False  # whether others may record results in the storage during a request

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
        there = started_there(given.storage)
        if given.candidates is not None:
            known = parameters_of(there)
            self.space = Space.among(space, given.candidates, given.constraints, known)
        else:
            self.space = Space.of(space).constrained(given.constraints)
        self.directions, self.metrics = read_objectives(direction)
        self.seed, self._options = seed_or_fresh(seed), given
        self.batch_size = given.batch_size
        # Those of a stored search, which `check_same` compares, need not be allowed any more.
        whole = self.space if there is None else self.space.bare
        self._warmup_points = warmup_points(whole, given.warmup)
        self._start = start_points(whole, given.start)
        client = get_client(one_model(client, given.model))
        asking = asking_of(client, prompt, given, seeded=given.seeded, asks=self._asks)
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
        self._warned_of: set[bool] = set()
        self._concluded = False
        self._journal = self._open(given, there, seed is not None)
        self._model = ModelCalls(client, self._journal, given.limits)
        if self._lends:
            self._model.waiting = self._journal.lent
        if callable(begin := getattr(client, "begin", None)):
            begin(self._journal.path)
        if tool is not None:
            tool.folder = self._journal.arrays.folder
            if given.candidates is not None:
                self.equip("")
        if self.total is not None and self._asks:
            self.check_asks(self.total, given=given.warmup != "auto")
        self._callbacks: Callbacks | None = None
        if callbacks := check_callbacks(given.callbacks):
            self._callbacks = Callbacks(callbacks, self._search_info(given.storage))
            # Without a reference to this optimizer: one that is dropped closes its file at once.
            self._model.observe = partial(self._callbacks.notify, "sent")
        if given.import_trials is not None:
            report = self.record_trials(given.import_trials)
            unread = any(row.reason or row.outcome == "open" for row in report.rows) or report.notes
            logger.log(logging.WARNING if unread else logging.INFO, "%s", report)

    def _open(self, given: SearchOptions, there: Started | None, seed_given: bool) -> Journal:
        """Return the journal: of a stored search that resumes, or of a new one."""
        path, changes = None if given.storage is None else Path(given.storage).expanduser(), ""
        if there is not None:
            stored = there.identity.get("options", {})
            if given.warmup == "auto" and stored.get("warmup_points") is None:
                # It followed from how many points were planned then.
                self.n_warmup = whole_number("warmup", stored.get("warmup", self.n_warmup), 0)
            changes = check_same(there, self.started(), path, seed_given=seed_given)
            self.seed = whole_number("seed", there.identity.get("seed"), 0, MOST_SEED)
        # An ask that waits has read this space: beside it, no other one is written.
        space = there and there.identity["space"]
        beside = not self._asks and space == self.started().identity["space"]
        journal = Journal(path, self._first_state(), given.durable, beside)
        if changes:  # not while another one has the file: it may be tried again
            logger.warning("%s: resumes with %s", path, changes)
        self._begin(journal, there)
        return journal

    def _begin(self, journal: Journal, there: Started | None) -> None:
        """Have a journal say what search this is, unless its last event of this kind does."""
        self._id = journal.state.id or new_identifier()
        now = self.started()
        identity = {**(there or now).identity, **{k: now.identity[k] for k in ("space", "options")}}
        if there is not None and there.identity != identity:
            # At once: with it, points so far need not be allowed any more, or have their means.
            there = replace(there, identity=identity)
            before, after = journal.state.trials, journal.append(there).trials
            broken = [
                {t.number for t in each if t.constraint_violation > 0} for each in (before, after)
            ]
            if broken[0] != broken[1]:
                logger.warning(
                    "%s: the other constraints make %s infeasible, and %d feasible",
                    journal.path or journal.path_read,
                    counted(len(broken[1] - broken[0]), "trial"),
                    len(broken[0] - broken[1]),
                )
        others = there is not None and self._asks and there.facts != now.facts
        if there is None or others or there.options != now.options:
            journal.begin(now)
        elif not journal.state.id:  # an older file
            journal.begin(replace(there, id=self._id))

    def _first_state(self) -> State:
        queue = tuple(Proposal(values, "user", words) for words, values in self._start)
        given = self._options
        return State(
            self.space, self.directions, self.seed, given.seeded, given.noisy, self.metrics,
            queue=queue,
        )  # fmt: skip

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
            model = get_client(one_model(client, named))
        try:
            arguments = arguments_of(started, {**options, "client": model}, path)
            if not isinstance(model, str) and "prompt" not in options:
                try:
                    check_prompt_for(arguments["prompt"], model)
                except ValueError as error:
                    why, remedy = str(error).rpartition(": ")[0], 'prompt="auto", or another model'
                    raise LLMOptError(f"{path}: {why}: give {remedy}") from error
            optimizer = cls(**arguments)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if options:
                raise
            raise StorageError(
                f"{path}, line 1: it is not as llmopt wrote it ({type(error).__name__}: {error}). "
                "Restore the file from a copy"
            ) from error
        journal = Journal.read(path, optimizer._first_state())
        optimizer._begin(journal, started)
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
            model = ModelCalls(self.client, journal, self.limits)
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


class Asker(LLMOptimizer[Any]):
    """A search that is opened for one ask, while whose model thinks others may record results."""

    _lends = True


class Recorder(LLMOptimizer[Any]):
    """A search that is opened only to record or to read results."""

    _asks = False
