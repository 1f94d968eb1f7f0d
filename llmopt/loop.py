"""A whole search in one call: `minimize`, `maximize`, and `optimize` for several objectives.

    result = llmopt.minimize(f, {"x": llmopt.Float(-5, 5)}, 30)
    print(result.best.params, result.best.reward)

For your own loop, with `ask` and `tell`, see `LLMOptimizer`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NoReturn,
    SupportsFloat,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from llmopt.client.base import Client
from llmopt.data import Evaluation
from llmopt.errors import (
    BudgetExceededError,
    ClientError,
    FallbackWarning,
    NoTrialsError,
    RewardError,
    SearchStopped,
    add_point,
    described,
    is_permanent,
    warn_user,
)
from llmopt.evaluation_loop import INTERRUPTED, drive, workers_of
from llmopt.evaluations import Result, expected_by_name, read_objectives
from llmopt.finals import Finals
from llmopt.history import Direction, Kind, Params, Proposal, Trial, Usage
from llmopt.optimizer import LLMOptimizer
from llmopt.options import SearchArguments, SearchOptions
from llmopt.progress import Progress, say_kept, say_resumed, text_of_search
from llmopt.space import Dimension, Space
from llmopt.util.arguments import (
    check_function,
    check_names,
    number,
    numbers_in,
    one_of,
    whole_number,
)
from llmopt.util.process import ProcessEndedError, call_within
from llmopt.util.text import cut, ended, function_name, short
from llmopt.views import Views, on_bounds

Score: TypeAlias = SupportsFloat | tuple[SupportsFloat | None, str] | Evaluation | None
"""Return value of an objective: a number, a number and feedback in words, or an `Evaluation`."""

_SHOWN = 1000  # characters of a point in the text of a result
_OWN: dict[str, Any] = {
    "progress": None,
    "n_jobs": None,
    "executor": None,
    "timeout": None,
    "evaluation_timeout": None,
    "catch": (),
    "finalists": "auto",
}  # the options that `LLMOptimizer` does not have

_Call = TypeVar("_Call")

if TYPE_CHECKING:
    import pandas

    from llmopt.optimizer import GymnasiumSpace

    _Form = TypeVar("_Form")

    class LoopArguments(SearchArguments, total=False):
        """The keyword arguments of `minimize`."""

        prompt: Any
        seed: int | None
        progress: bool | None
        n_jobs: int | None
        executor: Executor | None
        timeout: float | None
        evaluation_timeout: float | None
        catch: type[Exception] | tuple[type[Exception], ...]
        finalists: int | Literal["auto"] | None


@dataclass(frozen=True)
class SearchResult(Views, Generic[Params]):
    """Result of `minimize`, `maximize` and `optimize`.

    Attributes:
        optimizer: The `LLMOptimizer` of the search; its storage is closed.
        stopped: Why the search ended before its last trial; empty if it did not.
        left: The remaining budget: ``"evaluations"``, and ``"requests"``, ``"tokens"`` and
            ``"cost"`` if they have caps.
        finals: Number of evaluations that repeated the best few points; see `minimize`.
    """

    optimizer: LLMOptimizer[Params]
    stopped: str = ""
    left: Mapping[str, float] = field(default_factory=dict)
    finals: int = 0

    @property
    def best(self) -> Trial[Params]:
        """The best trial: its `params` and its `reward`.

        `reward` is the function's return value: the smallest one for `minimize`.

        Raises:
            LLMOptError: The search has several objectives; see `pareto`.
            NoTrialsError: Every evaluation failed, or the search ended before the first one.
        """
        if self.stopped and not self.trials:
            raise NoTrialsError(
                f"there is no best trial: the search ended before the first one: {self.stopped}"
            )
        return self.optimizer.best

    @property
    def pareto(self) -> list[Trial[Params]]:
        """The Pareto front: trials that no other trial beats in all objectives."""
        return self.optimizer.pareto

    @property
    def trials(self) -> list[Trial[Params]]:
        """All trials in the order of evaluation."""
        return self.optimizer.trials

    @property
    def usage(self) -> Usage:
        """Requests, tokens and cost of the search, and the sources of its points."""
        return self.optimizer.usage

    def trials_dataframe(self) -> pandas.DataFrame:
        """Return the trials as a table; see `LLMOptimizer.trials_dataframe`."""
        return self.optimizer.trials_dataframe()

    def __repr__(self) -> str:
        optimizer, best = self.optimizer, self.optimizer.history.best
        if best is None:
            found = "no complete trial"
        elif len(optimizer.directions) > 1:
            found = f"{len(self.pareto)} on the Pareto front"
        else:
            found = f"best {best.reward} at {cut(str(best.params), _SHOWN)}"
            ends = cut("; ".join(on_bounds(optimizer.space, best.values)), _SHOWN)
            found += f" (on the edge of the space: {ends})" if ends else ""
        failed = sum(trial.state != "complete" for trial in self.trials)
        count = f"{len(self.trials)} trials" + (f", {failed} failed" if failed else "")
        parts = [count, found]
        if self.finals:
            parts.append(f"finals: {self.finals} evaluations measured the best points again")
        if self.stopped:
            parts.append(f"stopped: {self.stopped}")
            parts += [f"left: {count:g} {of}" for of, count in self.left.items()]
        return f"SearchResult({', '.join(parts)})"


@overload
def minimize(
    f: Callable[[dict[str, Any]], Score],
    space: Mapping[str, Dimension],
    n_trials: int,
    client: Client | str | None = None,
    **options: Unpack[LoopArguments],
) -> SearchResult[dict[str, Any]]: ...
@overload
def minimize(
    f: Callable[[_Form], Score],
    space: GymnasiumSpace[_Form],
    n_trials: int,
    client: Client | str | None = None,
    **options: Unpack[LoopArguments],
) -> SearchResult[_Form]: ...
@overload
def minimize(
    f: Callable[[Any], Score],
    space: Space | Sequence[str] | None = None,
    n_trials: int = ...,
    client: Client | str | None = None,
    **options: Unpack[LoopArguments],
) -> SearchResult[Any]: ...
def minimize(
    f: Callable[[Any], Score],
    space: Any = None,
    n_trials: int | None = None,
    client: Client | str | None = None,
    **options: Any,
) -> SearchResult[Any]:
    """Find the point at which a function is smallest.

    Args:
        f: The function. It gets a point in the form of the given space. It returns a number; a
            number and words, which the model reads; an `Evaluation`, which may also hold arrays; or
            ``None`` (NaN, infinity) for a failed evaluation.
        space: A mapping of names to `Float`, `Int` and `Categorical`, a `Space`, or a bounded
            ``gymnasium.spaces`` space; may be omitted with ``candidates=``.
        n_trials: Total number of evaluations. Those in `storage` count; imported ones
            (``import_trials=FILE``) do not.
        client: A model string such as ``"openai:NAME"``, a client object, or ``None`` for the
            embedded model, which needs no key. ``model=`` means the same.
        **options: Arguments of `LLMOptimizer`, and these:
            ``n_jobs``: number of parallel evaluations, in threads; -1 means one per processor.
            One request then asks for this number of points (see ``batch_size``).
            ``executor``: a ``concurrent.futures`` or Dask executor for the evaluations, instead of
            threads. It is not shut down. Requests are sent from this process.
            ``timeout``: seconds after which no further evaluation and no request begins. Running
            evaluations are completed and recorded. A running request is ended, and may be charged;
            only a model in this process and a client of your own finish their answer.
            ``evaluation_timeout``: seconds of one evaluation, each in its own process (on Linux a
            fork; elsewhere `f` must be importable). At the limit it is killed with all that it
            started, and the point counts as failed; so it does if the process crashes.
            ``callbacks``: see `llmopt.trackers.Callback`; one that raises `SearchStopped` ends the
            search.
            ``catch``: exceptions of `f` that count as a failed evaluation. The model reads their
            text. Any other exception ends the search and is raised.
            ``progress``: whether to show progress; ``None`` shows it only in a terminal or
            notebook. Elsewhere, ``True`` prints lines.
            ``seeded``: whether `f` is called as ``f(point, seed=...)``; see `SearchOptions`.
            ``finalists``: number of best points to evaluate twice more at the end (counted in
            `n_trials`); ``"auto"``, the default, means 2 or 3 for a noisy search of 20 or more
            evaluations, and otherwise 0.
            With ``storage=FILE``, the same call resumes an interrupted search. With the prompt
            ``"words"`` the model may end the search, unless ``may_stop=False``.

    Returns:
        The best trial, all trials and their cost. The search may end early at a cap (``max_cost``,
        ...), by Ctrl-C, or if the model ends it or fails after the first complete trial;
        `SearchResult.stopped` gives the reason, `SearchResult.left` the remaining budget.

    Raises:
        ClientError: The request failed, and no trial is complete yet; or, at any time, a retry
            cannot help (a rejected key, a missing model).
        KeyboardInterrupt: Ctrl-C was pressed again while evaluations were running.
        RewardError: `f` returned an invalid score; or, without `catch`, the first five evaluations
            failed.
        SpaceError: The space cannot be searched.
        StorageError: The storage cannot be used, or holds another search.
    """
    return _search("minimize", f, space, n_trials, client, "minimize", options)


def _typed_as(_: _Call) -> Callable[[Callable[..., Any]], _Call]:
    """Give a function the overloads of another one."""
    return lambda function: cast("_Call", function)


@_typed_as(minimize)
def maximize(
    f: Callable[[Any], Score],
    space: Any = None,
    n_trials: int | None = None,
    client: Client | str | None = None,
    **options: Any,
) -> SearchResult[Any]:
    """Maximize a function; everything else is as in `minimize`."""
    return _search("maximize", f, space, n_trials, client, "maximize", options)


def optimize(
    f: Callable[[Any], Any],
    space: Any,
    n_trials: int | None = None,
    client: Client | str | None = None,
    *,
    directions: Sequence[Direction] | Mapping[str, Direction] = (),
    **options: Any,
) -> SearchResult[Any]:
    """Find points that are good in several objectives; `SearchResult.pareto` holds them.

    Args:
        f: The function. It returns one number for each objective, ``(3.5, 0.2)``; these numbers and
            words, ``((3.5, 0.2), "it rattled")``; or ``None`` for a failure.
        space: As in `minimize`.
        n_trials: As in `minimize`.
        client: As in `minimize`.
        directions: ``"minimize"`` or ``"maximize"`` for each objective; or a mapping of their
            names, ``{"cost": "minimize", "error": "minimize"}``. Prompt and report show the names,
            and `f` may return a mapping of them to numbers.
        **options: As in `minimize`, without ``finalists``.
    """
    if isinstance(directions, str) or not directions:
        said = f"got directions={directions!r}: expected"
        if "direction" in options:
            said = "has no direction=: did you mean directions=? It expects"
        example = 'directions=["minimize", "maximize"]'
        raise TypeError(f"optimize() {said} one for each objective, such as {example}")
    read_objectives(directions, "directions")
    return _search("optimize", f, space, n_trials, client, directions, options)


def _search(
    call: str,
    f: Callable[[Any], Any],
    space: Any,
    n_trials: int | None,
    client: Client | str | None,
    direction: Direction | Sequence[Direction] | Mapping[str, Direction],
    options: dict[str, Any],
) -> SearchResult[Any]:
    check_function(f, bool(options.get("seeded")))
    for name in {"direction", "directions"} & options.keys():
        raise TypeError(
            f"{call}() has no {name}=: call minimize() or maximize(), or for several "
            'objectives optimize(f, space, n_trials, directions=["minimize", "maximize"])'
        )
    named = ("f", "space", "client", "prompt", "seed", "n_trials")
    check_names(call, options, (*SearchOptions.names(), *named, *_OWN))
    if n_trials is None:  # required: by its default a misspelt name is named above
        raise TypeError(f"{call}() needs n_trials, the total number of evaluations")
    n_trials = whole_number("n_trials", n_trials, 1)
    own = {name: options.pop(name, usual) for name, usual in _OWN.items()}
    one_of("progress", own["progress"], (True, False, None))
    _check_catch(own["catch"])
    workers, executor = workers_of(own["n_jobs"], own["executor"])
    if executor is not None:
        _check_sent(f, executor)
    timeout = own["timeout"]
    for name in ("timeout", "evaluation_timeout"):
        if own[name] is not None and number(name, own[name], unit="seconds") <= 0:
            raise ValueError(
                f"{name}={own[name]!r}: expected seconds above 0; omit it for no limit"
            )
    if options.get("may_stop") is None:
        options["may_stop"] = True
    several = not isinstance(direction, str) and len(direction) > 1
    finals = Finals(None if several and own["finalists"] == "auto" else own["finalists"], n_trials)
    if several and finals.most:
        raise ValueError(f"finalists={own['finalists']}: expected none with several objectives")
    noisy = options.get("noisy") or options.get("seeded")
    kept = finals.most if noisy or finals.asked_for else 0
    options = {"total": n_trials - kept, **options}
    optimizer: LLMOptimizer[Any] = LLMOptimizer(space, client, direction=direction, **options)
    if own["progress"] is not False:
        say_resumed(optimizer, n_trials)
    try:
        # A resumed search may first return a point that an earlier process asked for.
        optimizer.check_ready()
        with _Run(f, optimizer, n_trials, finals, own, workers) as run:
            reason = drive(
                run.ask, run.call, run.tell, what=_name(f), sound=run.sound,
                give_back=run.give_back, executor=executor, workers=workers, timeout=timeout,
            )  # fmt: skip
            run.end(reason)
        if reason == INTERRUPTED:
            say_kept(optimizer)
        optimizer.conclude(run.stopped or reason or f"all {n_trials} evaluations were made")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            say_kept(optimizer)
        optimizer.conclude(described(error))
        raise
    finally:
        optimizer.close()
    left = {"evaluations": float(max(0, run.n_trials - len(optimizer.trials))), **optimizer.left}
    repeated = sum(t.kind == "finalist" for t in optimizer.trials)
    stopped = (run.stopped or reason) if left["evaluations"] else ""
    return SearchResult(optimizer, stopped, left, repeated)


def _check_catch(catch: Any) -> None:
    classes = catch if isinstance(catch, tuple) else (catch,)
    if not all(isinstance(each, type) and issubclass(each, Exception) for each in classes):
        raise TypeError(
            f"catch={short(catch)}: expected a class of exceptions such as ValueError, or a tuple "
            "of them"
        )


def _check_sent(f: Any, executor: Executor) -> None:
    """Raise unless `f` can be sent to the processes of an executor."""
    from concurrent.futures import ProcessPoolExecutor

    if not isinstance(executor, ProcessPoolExecutor):
        return
    try:
        pickle.dumps(f)
    except Exception as error:
        raise TypeError(
            f"{_name(f)} cannot be sent to a process of the executor ({error}): define it at the "
            "top of a module, or take threads (n_jobs=)"
        ) from error


@dataclass(frozen=True)
class _Job:
    """A point to evaluate, flat."""

    values: tuple[Any, ...]
    kind: Kind = "search"
    proposal: Proposal | None = None  # one that is pending
    seed: int | None = None


class _Run:
    """One call of `minimize`: what `drive` asks, calls and tells."""

    def __init__(
        self,
        f: Callable[..., Any],
        optimizer: LLMOptimizer[Any],
        n_trials: int,
        finals: Finals,
        own: Mapping[str, Any],
        workers: int,
    ) -> None:
        self._f, self._optimizer, self._finals = f, optimizer, finals
        self._limit: float | None = own["evaluation_timeout"]
        self._catch: type[Exception] | tuple[type[Exception], ...] = own["catch"]
        self._batch, self._workers = optimizer.batch_size, workers
        imported, trials = optimizer.imported, optimizer.trials
        self.n_trials = n_trials + len(trials) - optimizer.evaluations
        self._left = self.n_trials - len(trials)  # points that no worker has yet
        # First what an interrupted search was about to evaluate.
        self._waiting = [_Job(p.values, "search", p, p.seed) for p in optimizer.pending_proposals]
        self.sound = any(t.state == "complete" for t in trials if t.number not in imported)
        self._progress = Progress(self.n_trials, len(trials), own["progress"])
        self._warnings: list[tuple[str, type[Warning]]] = []
        self.stopped, self._ended, self._failed = "", False, False

    def __enter__(self) -> _Run:
        self._progress.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._progress.__exit__(*raised)
        self._warn()

    def end(self, reason: str) -> None:
        """Show why the search ended before its last trial, if no warning says it."""
        if not self._failed:
            self._progress.end(self.stopped or reason)

    def ask(self, free: int, running: int) -> list[_Job]:
        """Return at most `free` points; none if a running one is waited for, or at the end."""
        free = min(free, self._left)
        jobs = self._next(free, running) if free > 0 and not self._ended else []
        self._left -= len(jobs)
        return jobs

    def _next(self, free: int, running: int) -> list[_Job]:
        optimizer, finals = self._optimizer, self._finals
        if not self._waiting and finals.due(optimizer, self._left, bool(self.stopped)):
            if running:  # the results tell which points are the best
                return []
            for t in finals.plan(optimizer):
                taken = [job.seed for job in self._waiting if job.values == t.values]
                seed = optimizer.next_seed(t.values, taken)
                self._waiting.append(_Job(t.values, "finalist", seed=seed))
        if self._waiting:
            jobs, self._waiting = self._waiting[:free], self._waiting[free:]
            return jobs
        if self.stopped:
            return []
        if self._left > finals.most:
            free = min(free, self._left - finals.most)
        if self._workers > 1:
            missing = self._left - len(optimizer.queued)
            optimizer.batch_size = max(self._batch, min(self._workers, missing))
        try:
            with self._progress.waiting():
                proposals, texts = self._ask_within_caps(free)
        except (SearchStopped, BudgetExceededError) as end:
            self.stopped = optimizer.stopped or str(end)
            return self._next(free, running)  # the finalists are left
        except ClientError as error:
            self._end_by(error)
            return []
        self._warnings += [(text, FallbackWarning) for text in texts]
        return [_Job(p.values, "search", p, p.seed) for p in proposals]

    def _ask_within_caps(self, n: int) -> tuple[list[Proposal], list[str]]:
        """Return `n` proposals; or one that was paid for, if a cap allows no more than these."""
        try:
            return self._optimizer.ask_proposals(n)
        except BudgetExceededError:
            if n == 1:
                raise
            return self._optimizer.ask_proposals(1)

    def _end_by(self, error: ClientError) -> None:
        """End the search with its result, or raise the model's error if there is none to keep."""
        optimizer, why = self._optimizer, str(error)
        if optimizer.history.best is None or (is_permanent(error) and not error.exhausted):
            raise error
        if optimizer.storage is not None:
            why = f"{ended(why)} Run the same again to go on from {optimizer.storage}"
        elif error.exhausted:
            why = f"{ended(why)} With storage=, a later run goes on from here"
        self.stopped, self._ended = f"{type(error).__name__}: {why}", True
        self._failed = True
        done = f"{len(optimizer.trials)} of {self.n_trials} trials"
        text = f"the search ends after {done}, since the model failed: {why}"
        self._warnings.append((text, RuntimeWarning))

    def call(self, job: _Job) -> tuple[Any, ...]:
        """Return the function and a copy of the point, which the function may change."""
        self._warn()
        f = self._f if job.seed is None else partial(self._f, seed=job.seed)
        point = self._optimizer.space.unflatten(job.values)
        return (f, point) if self._limit is None else (call_within, self._limit, f, point)

    def give_back(self, jobs: Sequence[_Job]) -> None:
        """Have points that did not begin returned by a later `ask`."""
        self._left += len(jobs)
        proposals = [job.proposal for job in jobs if job.proposal is not None]
        if proposals:
            self._optimizer.give_back(proposals)

    def tell(self, job: _Job, score: Any, error: Exception | None) -> tuple[str, str]:
        """Record what the function returned or raised; return why it failed, and a remedy."""
        optimizer = self._optimizer
        params = optimizer.space.unflatten(job.values)
        if error is None:
            result = self._read(params, score)
        elif isinstance(error, ProcessEndedError):
            result = optimizer.read_failure(params, str(error))
        elif isinstance(error, self._catch):
            result = optimizer.read_failure(params, f"{type(error).__name__}: {error}")
        else:
            add_point(error, params, len(optimizer.trials))
            if isinstance(error, BrokenExecutor):
                error.add_note(_CRASHED.format(type(error).__name__))
            raise error
        trial = optimizer.tell_as(replace(result, seed=job.seed), job.kind)
        self._progress.step(self._text(trial) if self._progress.shown else "")
        if (end := optimizer.stopped_by_callback) is not None:
            self.stopped, self._ended = str(end), True
        return "" if trial.state == "complete" else trial.feedback, _remedy(error, optimizer)

    def _text(self, trial: Trial[Any]) -> str:
        optimizer, history = self._optimizer, self._optimizer.history
        front = len(history.pareto_front) if len(optimizer.directions) > 1 else 0
        return text_of_search(trial, history.best, optimizer.usage, front, optimizer.metrics)

    def _read(self, params: Any, score: Any) -> Result:
        given, words = score, ""
        if isinstance(score, tuple) and len(score) == 2 and isinstance(score[1], str):
            given, words = score
        try:
            return self._optimizer.read_result(params, given, feedback=words)
        except RewardError as error:
            if not str(error).startswith("reward"):
                raise
            self._refuse(score, given.value if isinstance(given, Evaluation) else given, error)

    def _refuse(self, score: Any, rewards: Any, error: RewardError) -> NoReturn:
        """Raise an error that says what the function is to return."""
        count = len(self._optimizer.directions)
        expected = "expected a real number within a float's range, or (number, words)"
        remedy = "None and NaN stand for a failed evaluation"
        if count > 1:
            names, directions = self._optimizer.metrics, self._optimizer.directions
            wanted = dict(zip(names, directions, strict=True)) if names else list(directions)
            expected = f"expected {count} numbers, one for each of directions={wanted}, or "
            expected += "(numbers, words)"
            remedy = "None in place of all of them, and NaN for one, stand for a failed evaluation"
            if isinstance(rewards, Mapping) and names:
                expected = expected_by_name(rewards, names) or expected
        elif isinstance(rewards, Mapping) and rewards:
            remedy = "return one of its values"
        elif isinstance(rewards, str):
            remedy = "convert a text by float()"
        elif (several := numbers_in(rewards)) == 1:
            remedy = "return its only number, by item() or [0]"
        elif several:
            given = ", ".join(['"minimize"'] * several)
            remedy = (
                "several objectives are searched by llmopt.optimize(f, space, n_trials, "
                f"directions=[{given}])"
            )
        said = f"{_name(self._f)} returned {short(score)}: {expected}; {remedy}"
        raise RewardError(said) from error

    def _warn(self) -> None:
        """Warn at the caller's line, whichever thread asked."""
        pending, self._warnings = self._warnings, []
        for text, category in pending:
            warn_user(text, category)


_CRASHED = (
    "llmopt: this point ended its process. catch={} records such points as failed, and the search "
    "continues"
)


def _remedy(raised: Exception | None, optimizer: LLMOptimizer[Any]) -> str:
    """Return the remedy for a search in which every evaluation failed."""
    if raised is None:
        remedy = "Fix the function: is a return missing? None means a failed evaluation"
    else:
        name = type(raised).__name__
        remedy = (
            f"Fix the cause of the {name} in the function; if it marks bad points, begin with good "
            "ones, as start="
        )
    if optimizer.storage is None:
        return remedy
    return f"{remedy}. Then rerun the script to resume from {optimizer.storage}"


def _name(f: Callable[[Any], Score]) -> str:
    return function_name(f, "the objective")
