"""The results of a search: trials, best and pending points, report and file."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from llmopt._version import __version__
from llmopt.callbacks import Search
from llmopt.client.base import client_name
from llmopt.data import data_file, folder_of
from llmopt.errors import LLMOptError, NoTrialsError, StorageError
from llmopt.history import Direction, History, Merged, Params, Proposal, Trial, why_no_best
from llmopt.prompt import Prompt
from llmopt.search.emitter import ModelEmitter
from llmopt.search.eventlog import Event, as_written, line_of
from llmopt.search.events import Point, Queued
from llmopt.search.meter import Meter
from llmopt.search.options import SearchOptions, options_to_store
from llmopt.search.partners.cma import several_objectives
from llmopt.search.partners.scheduler import Scheduler, make_scheduler
from llmopt.search.resume import FORMAT, check_same, start_of
from llmopt.search.session import StoredSession
from llmopt.search.state import SearchState
from llmopt.search.views import TrialList, Views, dataframe, outcome, search_html
from llmopt.space import Space
from llmopt.util.arguments import MOST_SEED, whole_number
from llmopt.util.files import check_folder, write_bytes_atomically
from llmopt.util.threads import Lock

if TYPE_CHECKING:
    import pandas

logger = logging.getLogger(__name__)

# Public to other modules of this package, not to its users.
_INTERNAL = frozenset(
    "check_asks conclude facts left_by meter model_began next_seed observe resume start_event "
    "stopped_by_callback".split()
)


class Results(Views, StoredSession, Generic[Params]):
    """The readable part of `LLMOptimizer`: its results, and how they are saved and copied."""

    space: Space
    directions: tuple[Direction, ...]
    metrics: tuple[str, ...]  # names of the objectives; none if they have none
    seed: int
    n_warmup: int
    batch_size: int
    _options: SearchOptions
    _seed_given: bool
    _warmup_points: tuple[Point, ...] | None
    _start: list[tuple[str, Point]]
    _state: SearchState
    _emitter: ModelEmitter | Scheduler
    _model: ModelEmitter
    _merged: Merged
    _changing: Lock  # held briefly: tell never waits for a model

    @property
    def model_began(self) -> bool:
        """Whether the warm-up is over: the model, a partner or a fallback has proposed a point."""
        state, before = self._state, ("warmup", "user")
        own = [t.source for t in state.trials if t.kind != "imported"]
        asked = [p.source for p in (*state.pending, *state.queue)]
        return any(source not in before for source in (*own, *asked))

    def check_asks(self, planned: int, *, given: bool) -> None:
        """Log a warning if the `planned` points are too few for the model to be asked."""
        if self.n_warmup >= planned > 0 and self._options.partner is None and not self.model_began:
            logger.warning(
                "%s not less than the %d points planned: the model is never asked. %s more points",
                f"warmup={self.n_warmup} is"
                if given
                else f"the number of random points, {self.n_warmup}, is",
                planned,
                "Omit warmup, or plan" if given else "Plan",
            )

    def _new_state(self) -> SearchState:
        state = SearchState(self.space, self.directions, self.seed, self.metrics)
        state.seeded = self._options.seeded
        for words, values in self._start:
            state.apply(Queued(values, words))
        return state

    def _make_emitter(self, model: ModelEmitter) -> ModelEmitter | Scheduler:
        given = self._options
        emitter = make_scheduler(given.partner, model, self.seed, self.space)
        if isinstance(emitter, Scheduler) and len(self.directions) > 1:
            raise ValueError(several_objectives(len(self.directions), repr(given.partner)))
        return emitter

    def _use(self, emitter: ModelEmitter | Scheduler) -> None:
        self._emitter = emitter
        self._model = emitter.model if isinstance(emitter, Scheduler) else emitter

    @property
    def meter(self) -> Meter:
        """Sends the requests and counts what they cost."""
        return self._model.meter

    def __dir__(self) -> list[str]:
        """Return the names for tab completion: without those that only this package calls."""
        return [name for name in super().__dir__() if name not in _INTERNAL]

    # -- results --------------------------------------------------------------------------

    @property
    def prompt(self) -> Prompt:
        """The prompt in use."""
        return self._model.prompt

    @property
    def imported(self) -> frozenset[int]:
        """Numbers of the trials that were imported, from 0."""
        with self._changing:
            return frozenset(t.number for t in self._state.trials if t.kind == "imported")

    @property
    def history(self) -> History:
        """The trials and the pending or queued points, as an immutable snapshot.

        With ``noisy=True``, and after finalists were re-evaluated, repeated evaluations of a point
        are one trial with their mean.
        """
        with self._changing:
            return self._history()

    def _history(self) -> History:
        history = self._state.history()
        again = self._model.options.noisy or self._state.measured_again
        return self._merged.of(history) if again else history

    @property
    def trials(self) -> list[Trial[Params]]:
        """All trials in the order of recording (a copy)."""
        with self._changing:
            return TrialList(self._state.trials)

    @property
    def stopped(self) -> str:
        """Why the model ended the search; empty if it did not."""
        with self._changing:
            return "" if self._state.stop is None else self._state.stop[0]

    @property
    def total(self) -> int | None:
        """Planned number of proposals, as stated in the prompt; may be changed during a search.

        Raises:
            ValueError: The new value is not a whole number above 0.
        """
        return self._model.total

    @total.setter
    def total(self, value: int | None) -> None:
        self._model.total = None if value is None else whole_number("total", value, 1)

    @property
    def pending(self) -> list[Params]:
        """The points that `ask` returned and that have no result yet, oldest first.

        After a resume these are the points whose evaluation was interrupted: evaluate them first.
        `pending_proposals` has their sources and explanations.
        """
        return [self.space.unflatten(p.values) for p in self.pending_proposals]

    @property
    def pending_proposals(self) -> list[Proposal]:
        """The proposals behind `pending`: source, explanation and tokens of each (a copy)."""
        with self._changing:
            return list(self._state.pending)

    def seed_of(self, params: Any) -> int:
        """Return the seed with which to evaluate a point, in a search with ``seeded=True``.

        If `ask` returned the point repeatedly, it is the seed of the oldest pending one;
        `pending_proposals` has all of them.

        Raises:
            ValueError: The search is not ``seeded``.
            ParameterError: The point is not in the space.
        """
        values = self.space.flatten(params)
        with self._changing:
            key, state = self.space.key(values), self._state
            asked = (p.seed for p in state.pending if self.space.key(p.values) == key)
            seed = next(asked, state.next_seed(values))
        if seed is None:
            raise ValueError("seed_of(): this search has no seeds; give it seeded=True")
        return seed

    def next_seed(self, values: tuple[Any, ...], taken: Sequence[int | None]) -> int | None:
        """Return the seed of a flat point's next evaluation, skipping those `taken`."""
        with self._changing:
            return self._state.next_seed(values, taken)

    @property
    def best(self) -> Trial[Params]:
        """The best trial so far; the earliest in a tie.

        With ``noisy=True`` it is chosen as in `recommend`.

        Raises:
            LLMOptError: The search has several objectives; see `pareto`.
            NoTrialsError: There is no complete trial yet. ``history.best`` is ``None`` then.
        """
        if len(self.directions) > 1:
            raise LLMOptError(
                f"a search of {len(self.directions)} objectives has no single best trial: take one "
                "of .pareto, the trials that no other trial beats in all objectives"
            )
        history = self.history
        if history.best is None:
            raise NoTrialsError(why_no_best(history.trials))
        return history.best

    @property
    def pareto(self) -> list[Trial[Params]]:
        """The Pareto front: feasible trials that no other feasible trial beats in all objectives.

        With one objective: those that share the best reward.
        """
        return TrialList(self.history.pareto_front)

    @property
    def queued(self) -> int:
        """Number of points that later asks return without a request."""
        return len(self._state.queue)

    def recommend(self) -> Params:
        """Return the parameters to keep: those of `best`.

        With ``noisy=True`` that is the point whose mean, made worse by one standard error, is best.
        The error is estimated from the recorded errors and from repeated evaluations of points.
        Evaluate a point again, and tell the result, to reduce its error.

        Raises:
            LLMOptError: The search has several objectives; see `pareto`.
            NoTrialsError: There is no complete trial yet.
        """
        return self.best.params

    def trials_dataframe(self) -> pandas.DataFrame:
        """Return the trials as a pandas DataFrame, one row per trial.

        Columns are ``number``, ``state``, ``reward`` (for several objectives ``reward_NAME``, or
        ``reward_0`` for objective 1, ``reward_1`` for objective 2, ...; missing for a failed
        trial), ``stderr``, ``constraint_violation``, a ``params_NAME`` for each parameter,
        ``source``, ``feedback``, ``explanation``, ``prompt_tokens``, ``completion_tokens`` and
        ``seconds``; with ``seeded=True`` ``seed``.

        Raises:
            ImportError: pandas is not installed.
        """
        count = len(self.directions)
        rewards = [f"reward_{name}" for name in self.metrics or range(count)]
        return dataframe(self.trials, self.space.names, rewards if count > 1 else ["reward"])

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self.space)} parameters, "
            f"client={client_name(self.client)!r}, prompt={self.prompt.name!r}, "
            f"{len(self._state.trials)} trials)"
        )

    def facts(self) -> list[tuple[str, Any]]:
        """Return names and values for the display of the search in a notebook."""
        usage = self.usage
        cost = "not known" if usage.cost is None else f"{usage.cost:.4f} US dollars"
        points = ", ".join(f"{count} {source}" for source, count in usage.proposals.items())
        return [
            *_best_facts(self.history),
            ("model", client_name(self.client)),
            ("prompt", self.prompt.name),
            ("trials", len(self.trials)),
            ("proposed points", points),
            ("requests", usage.requests),
            (
                "blocks of Python",
                f"{usage.blocks} in {usage.compute_seconds:.0f} s, {usage.block_tokens} tokens",
            ),
            ("cost", cost),
        ]

    def _repr_html_(self) -> str:
        return search_html(type(self).__name__, self.facts(), self.trials)

    # -- storage ----------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole state to a file atomically.

        Args:
            path: The file. `load` reads it, and so does ``storage=``.

        Raises:
            StorageError: The file cannot be written; an existing file is unchanged.
        """
        path = Path(path).expanduser()
        if self._log is not None and self._log.is_at(path):
            raise StorageError(
                f"{path} is the storage of this optimizer and already holds all of its state: "
                "save to another path"
            )
        check_folder(path)
        with self.meter.lock, self._changing:
            snapshot = self._state.snapshot(self.meter.books)
        folder = folder_of(path)
        trials = [replace(t, data=t.data.keep_in(data_file(folder, t.number))) if t.data else t
                  for t in snapshot.trials]  # fmt: skip
        snapshot = replace(snapshot, trials=trials)
        if self._model.calculator is not None:
            self._model.calculator.export(folder, len(snapshot.books.computed))
        lines = line_of(self.start_event()) + line_of(snapshot.line(self.space))
        write_bytes_atomically(path, lines, durable=True)

    def close(self) -> None:
        """Close the storage file, and end the callbacks. The results can still be read."""
        super().close()
        if self._model.calculator is not None:
            self._model.calculator.close()

    def _outcome(self, recommended: int | None = None) -> str:
        point = None if self._state.stop is None else self._state.stop[1]
        return outcome(self.history, self.space, recommended or point)

    def _planned_end(self) -> str:
        made = len(self.history.trials)
        if self.total is not None and made >= self.total:
            return f"all {self.total} planned evaluations were made"
        return f"the program closed the search after {made} evaluations"

    def _begin(self, start: Event, path: Path) -> None:
        start = start_of([start], path)
        with as_written(path, 1, start):
            if self._options.warmup == "auto" and start["options"]["warmup_points"] is None:
                # Nobody gave a number: it followed from how many points were planned then.
                self.n_warmup = whole_number("warmup", start["options"]["warmup"], 0)
            check_same(start, self.start_event(), path, seed_given=self._seed_given)
            self.seed = whole_number("seed", start["seed"], 0, MOST_SEED)
        self._use(self._make_emitter(self._model))
        self._state = self._new_state()

    def start_event(self) -> Event:
        """Return the first line of a storage file, which identifies the search."""
        points, encode = self._warmup_points, self.space.to_json_values
        now = vars(self._options) | vars(self._model.options) | vars(self.limits)
        now |= {"warmup": self.n_warmup, "batch_size": self.batch_size}
        now["start"] = [[words, encode(values)] for words, values in self._start]
        options = {"warmup_points": None if points is None else list(map(encode, points))}
        return {
            "event": "start",
            "format": FORMAT,
            "llmopt": __version__,
            "space": self.space.to_dict(),
            "directions": list(self.directions),
            **({"metrics": list(self.metrics)} if self.metrics else {}),
            "prompt": self.prompt.to_dict(),
            "client": client_name(self.client),
            "seed": self.seed,
            "options": options | options_to_store(now),
        }

    def _search_info(self, storage: str | os.PathLike[str] | None) -> Search:
        start = self.start_event()
        settings = {k: start[k] for k in ("llmopt", "seed", "client", "space")}
        settings |= {"prompt": self.prompt.name, **start["options"]}
        name, place = "search", ""
        if storage is not None:
            name, place = Path(storage).stem, os.path.abspath(storage)
        return Search(name, self.space.names, self.directions, settings, place)

    def __getstate__(self) -> dict[str, Any]:
        with self.meter.lock, self._changing:
            # The file stays with the original; two writers would tear it.
            return {
                **self.__dict__,
                "_log": None,
                "_callbacks": None,
                "_stored_in": self._log and str(self._log.path),
                "_changing": Lock(),
                "_state": copy.deepcopy(self._state),
                "_emitter": copy.copy(self._emitter),
                "_merged": copy.copy(self._merged),
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        path = state.pop("_stored_in", None)
        self.__dict__.update(state)
        self._use(self._emitter)  # a copy has its own account
        if path is not None:
            logger.warning(
                "this copy of an optimizer with storage=%s stores nothing: save() it, or give "
                "its results to the original",
                path,
            )


def _best_facts(history: History) -> list[tuple[str, Any]]:
    """Return the best point, or of several objectives the best reward of each."""
    if len(history.directions) == 1:
        best = history.best
        return [
            ("best reward", "no complete trial yet" if best is None else best.reward),
            ("best parameters", "" if best is None else best.params),
        ]
    leaders = [history.best_of(k) for k in range(len(history.directions))]
    return [
        ("trials on the Pareto front", len(history.pareto_front)),
        *(
            (f"best {name}", "no feasible trial yet" if t is None else (t.rewards or ())[k])
            for k, (name, t) in enumerate(zip(history.objectives, leaders, strict=True))
        ),
    ]
