"""A whole search in one call: `minimize` and `maximize`.

    result = llmopt.minimize(f, {"x": llmopt.Float(-5, 5)}, 30)
    print(result.best.params, result.best.reward)

For a loop of your own, with `ask` and `tell`, see `LLMOptimizer`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    SupportsFloat,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from llmopt.client.base import Client
from llmopt.errors import (
    BudgetExceededError,
    ClientError,
    FailureWatch,
    FallbackWarning,
    RewardError,
    SearchStopped,
    is_permanent,
)
from llmopt.history import Direction, History, Kind, Params, Trial, Usage
from llmopt.optimizer import LLMOptimizer
from llmopt.search.options import SearchArguments, SearchOptions
from llmopt.search.partners.refine import FINISHES, Finish
from llmopt.search.views import search_html
from llmopt.space import Dimension, Space
from llmopt.util.arguments import check_names, one_of, whole_number
from llmopt.util.text import short

_REPEATS = 2  # times that a finalist is measured again
_MOST_FINALISTS, _TRIALS_OF_FINALIST = 3, 10  # at most so many, and one for so many trials

Score = SupportsFloat | None | tuple[SupportsFloat | None, str]
"""What a function returns: a number, or a number and words on what was seen."""

_Call = TypeVar("_Call")

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

    from llmopt.optimizer import GymnasiumSpace

    _Form = TypeVar("_Form")

    class LoopArguments(SearchArguments, total=False):
        """The arguments of `minimize` that are given by name."""

        prompt: Any
        seed: int | None
        progress: bool | None
        callback: Callable[[Trial[Any]], object] | None
        catch: type[Exception] | tuple[type[Exception], ...]
        finalists: int | Literal["auto"] | None
        finish: Literal["auto", "off"] | None


@dataclass(frozen=True)
class SearchResult(Generic[Params]):
    """What `minimize` and `maximize` found.

    Attributes:
        optimizer: The `LLMOptimizer` behind it; its storage is closed.
        stopped: Why the search ended before its last trial, or went on with its finish; empty if it
            did not.
        left: What is left of the budget: ``"evaluations"``, and of the caps that were set
            ``"requests"``, ``"tokens"`` and ``"cost"``.
        finals: Evaluations that measured the best few points again; see `minimize`.
    """

    optimizer: LLMOptimizer[Params]
    stopped: str = ""
    left: Mapping[str, float] = field(default_factory=dict)
    finals: int = 0

    @property
    def best(self) -> Trial[Params]:
        """The best trial: its `params` and its `reward`.

        `reward` is what the function returned: under `minimize` it is the smallest value.

        Raises:
            NoTrialsError: Every evaluation failed.
        """
        return self.optimizer.best

    @property
    def trials(self) -> list[Trial[Params]]:
        """All trials in the order of evaluation."""
        return self.optimizer.trials

    @property
    def usage(self) -> Usage:
        """Requests, tokens and cost of the search, and where its points came from."""
        return self.optimizer.usage

    @property
    def finish(self) -> Finish | None:
        """What small changes of the best point brought; ``None`` where there were none."""
        return self.optimizer.finish

    def trials_dataframe(self) -> pandas.DataFrame:
        """Return the trials as a table; see `LLMOptimizer.trials_dataframe`."""
        return self.optimizer.trials_dataframe()

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the trials; see `LLMOptimizer.plot_history`."""
        return self.optimizer.plot_history(ax)

    def __repr__(self) -> str:
        best = self.optimizer.history.best
        found = "no complete trial" if best is None else f"best {best.reward} at {best.params}"
        ends = self.optimizer.space.on_bounds(best.values) if best else ()
        found += f" (on the edge of the space: {'; '.join(ends)})" if ends else ""
        end = self._end()
        failed = sum(trial.state != "complete" for trial in self.trials)
        count = f"{len(self.trials)} trials" + (f", {failed} failed" if failed else "")
        return f"SearchResult({', '.join([count, found, *map(': '.join, end)])})"

    def _end(self) -> list[tuple[str, str]]:
        """Return how the search ended, in words."""
        found = []
        if self.finals:
            found.append(("finals", f"{self.finals} evaluations measured the best points again"))
        if self.finish:
            found.append(("finish", str(self.finish)))
        if self.stopped:
            found.append(("stopped", self.stopped))
            found.append(("left", ", ".join(f"{count:g} {of}" for of, count in self.left.items())))
        return found

    def _repr_html_(self) -> str:
        facts = [*self.optimizer._facts(), *self._end()]
        return search_html("SearchResult", facts, self.trials)


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
    space: Space,
    n_trials: int,
    client: Client | str | None = None,
    **options: Unpack[LoopArguments],
) -> SearchResult[Any]: ...
def minimize(
    f: Callable[[Any], Score],
    space: Any,
    n_trials: int | None = None,
    client: Client | str | None = None,
    **options: Any,
) -> SearchResult[Any]:
    """Search the point at which a function is smallest.

    Args:
        f: The function. It gets a point in the form in which the space was given, and returns a
            number; or a number and words on what was seen, which the model reads; or ``None``
            (NaN, infinity) for a failed evaluation.
        space: A mapping of names to `Float`, `Int` and `Categorical`, a `Space`, or a bounded
            ``gymnasium.spaces`` space.
        n_trials: Evaluations in all, those counted that `storage` already holds, and not those
            that were imported (``import_trials=FILE``).
        client: A model string such as ``"openai:NAME"``, a client object, or ``None`` for the
            embedded model, which needs no key. ``model=`` means the same.
        **options: Arguments of `LLMOptimizer`, and these: ``progress``: whether to show a progress
            bar (``None``: on a terminal only). ``callback``: called with each trial; if it returns
            ``True``, the search ends. ``catch``: exceptions of `f` that count as a failed
            evaluation, whose text the model is told; any other one ends the search and is raised.
            ``finalists``: how many of the best points are measured twice more at the end, among
            the `n_trials`; ``"auto"``, the default, for 2 or 3 where measurements are noisy and
            there are 20 or more, else none. ``finish``: where the model has ended the search, or a
            cap is reached, and evaluations are left, ``"auto"``, the default, goes on with small
            random changes of the best point, which cost no request: for one objective without
            noise, in spaces with numbers. They end by themselves once their steps have shrunk to
            nothing. ``"off"`` or ``None`` for none. ``storage=FILE`` lets a stopped search go on
            when it is called again. With the prompt ``"words"`` the model may end the search:
            ``may_stop=False`` turns it off.

    Returns:
        The best trial, all trials and what they cost. A reached cap (``max_cost``, ...), a model
        that ends the search, and a model that fails after the first complete trial end the
        search early: `SearchResult.stopped` then says why, and `SearchResult.left` what is left.

    Raises:
        ClientError: The model cannot be asked, and nothing was found yet; or with any trials,
            where no later request can mend it (a key that is refused, a model that is not there).
        RewardError: `f` returned something else than a score, or, without `catch`, no number in
            the first five evaluations.
        SpaceError: The space cannot be searched.
        StorageError: The storage cannot be used, or holds another search.
    """
    return _search(f, space, n_trials, client, "minimize", options)


def _typed_as(_: _Call) -> Callable[[Callable[..., Any]], _Call]:
    """Give a function the overloads of another one."""
    return lambda function: cast("_Call", function)


@_typed_as(minimize)
def maximize(
    f: Callable[[Any], Score],
    space: Any,
    n_trials: int | None = None,
    client: Client | str | None = None,
    **options: Any,
) -> SearchResult[Any]:
    """Search the point at which a function is largest; the rest is as in `minimize`."""
    return _search(f, space, n_trials, client, "maximize", options)


def _search(
    f: Callable[[Any], Score],
    space: Any,
    n_trials: int | None,
    client: Client | str | None,
    direction: Direction,
    options: dict[str, Any],
) -> SearchResult[Any]:
    from tqdm import tqdm

    if not callable(f):
        raise TypeError(f"f={f!r}: expected a function of a point")
    if "direction" in options:
        raise TypeError(f"{direction}() has no direction=: call minimize() or maximize()")
    own: dict[str, Any] = {"progress": None, "callback": None, "catch": ()}
    own |= {"finalists": "auto", "finish": "auto"}
    named = ("client", "prompt", "seed", "n_trials")
    check_names(direction, options, (*SearchOptions.names(), *named, *own))
    if n_trials is None:  # required: by its default a misspelt name is named above
        raise TypeError(f"{direction}() needs n_trials: how many points are evaluated in all")
    n_trials = whole_number("n_trials", n_trials, 1)
    own = {name: options.pop(name, usual) for name, usual in own.items()}
    one_of("finish", own["finish"], FINISHES)
    progress, callback, catch = own["progress"], own["callback"], own["catch"]
    if options.get("may_stop") is None:
        options["may_stop"] = True
    finals = Finals(own["finalists"], n_trials)
    kept = finals.most if options.get("noisy") or finals.asked_for else 0
    options = {"total": n_trials - kept, **options}
    optimizer: LLMOptimizer[Any] = LLMOptimizer(space, client, direction=direction, **options)
    optimizer._model.finishes = own["finish"] == "auto"
    stopped, over = "", False
    if progress is not False:
        say_where_it_goes_on(optimizer, n_trials)
    if imported := optimizer.imported:
        optimizer.total = optimizer.total and optimizer.total + len(imported)
        n_trials += len(imported)
    done = len(optimizer.trials)
    sound = any(t.state == "complete" for t in optimizer.trials if t.number not in imported)
    failures = FailureWatch(_name(f), sound)
    bar = tqdm(
        total=max(n_trials, done), initial=done, disable=None if progress is None else not progress
    )
    try:
        if own["finish"] == "auto":
            known = [p.source for p in optimizer.pending] + [t.source for t in optimizer.trials]
            if "finish" in known:  # the search was cut off there
                optimizer._finish()
        optimizer._check_ready()  # a stored search may begin with a point that it handed out before
        while (more := n_trials - len(optimizer.trials)) > 0:
            waiting = optimizer.pending  # cut off by a kill, in a search that goes on
            kind: Kind = "search"
            try:
                if waiting:
                    params = optimizer.space.unflatten(waiting[0].values)
                elif (final := finals.next(optimizer, more, over=over)) is not None:
                    params, kind = final.params, "finalist"
                elif over:
                    break
                else:
                    (proposal,), warned = optimizer._serve(1)
                    params = optimizer.space.unflatten(proposal.values)
                    for text in warned:
                        warnings.warn(text, FallbackWarning, stacklevel=3)
            except (SearchStopped, BudgetExceededError) as end:
                stopped = stopped or str(end)
                over = not (own["finish"] == "auto" and optimizer._finish())
                continue  # the finish, or the finalists, are left
            except ClientError as error:
                if optimizer.history.best is None or is_permanent(error):
                    raise
                stopped = f"{type(error).__name__}: {error}"
                warnings.warn(
                    f"the search ends after {len(optimizer.trials)} of {n_trials} trials, since "
                    f"the model failed: {error}",
                    RuntimeWarning,
                    stacklevel=3,
                )
                break
            trial, raised = _evaluate(optimizer, f, params, catch, kind)
            best = optimizer.history.best
            failure = "" if trial.state == "complete" else trial.feedback
            failures.see(failure, _remedy(raised, optimizer))
            if best is not None and best.rewards:
                bar.set_postfix_str(f"best {best.rewards[0]:.6g}", refresh=False)
            bar.update()
            if callback is not None and callback(trial) is True:
                stopped = "the callback ended the search"
                break
    except KeyboardInterrupt:
        bar.close()
        say_what_is_kept(optimizer)
        raise
    finally:
        bar.close()
        optimizer.close()
    trials = optimizer.trials
    left: dict[str, float] = {"evaluations": max(0, n_trials - len(trials))}
    left = {**left, **optimizer.limits.left(optimizer.usage)}
    return SearchResult(optimizer, stopped, left, sum(t.kind == "finalist" for t in trials))


def _evaluate(
    optimizer: LLMOptimizer[Any],
    f: Callable[[Any], Score],
    params: Any,
    catch: type[Exception] | tuple[type[Exception], ...],
    kind: Kind,
) -> tuple[Trial[Any], Exception | None]:
    """Return the trial of a point, and what the function raised."""
    try:
        score = f(optimizer.space.validate(params))  # a copy: f may change it
    except catch as error:
        failure = optimizer._read_failure(params, f"{type(error).__name__}: {error}")
        return optimizer._tell(failure, kind), error
    words = ""
    if isinstance(score, tuple) and len(score) == 2 and isinstance(score[1], str):
        score, words = score
    try:
        return optimizer._tell(optimizer._read_told(params, score, feedback=words), kind), None
    except RewardError as error:
        raise RewardError(
            f"{_name(f)} returned {short(score)}: expected a real number within a float's range, "
            "or (number, words); None and NaN stand for a failed evaluation"
        ) from error


class Finals:
    """The last evaluations of a noisy search, which measure its best few points again.

    The best of many single measurements is a lucky one. With each repeat the noise is known
    better, and `History.rank` takes the point whose mean is good beyond it.
    """

    def __init__(self, finalists: int | Literal["auto"] | None, n_trials: int) -> None:
        self.asked_for = finalists != "auto"
        if finalists == "auto":
            self._count = min(_MOST_FINALISTS, n_trials // _TRIALS_OF_FINALIST)
            self._count = self._count if self._count > 1 else 0
            return
        self._count = whole_number("finalists", 0 if finalists is None else finalists, 0)
        if 2 * _REPEATS * self._count > n_trials:
            raise ValueError(
                f"finalists={finalists}: measured {_REPEATS} times more each, they take more than "
                f"half of {n_trials} evaluations. Expected at most {n_trials // (2 * _REPEATS)}"
            )

    @property
    def most(self) -> int:
        """Evaluations that they take."""
        return _REPEATS * self._count

    def next(self, optimizer: LLMOptimizer[Any], left: int, over: bool) -> Trial[Any] | None:
        """Return the point that is to be measured again now, or ``None`` if none is.

        `left` counts evaluations; `over` says whether the search itself has ended before.
        """
        trials = optimizer.trials
        since = next(
            (i for i, t in enumerate(reversed(trials)) if t.kind != "finalist"), len(trials)
        )
        if since >= self.most or (since == 0 and left > self.most and not over):
            return None
        if not (since or self.asked_for or _is_noisy(optimizer)):
            return None
        before = History(tuple(trials[: len(trials) - since]), (), optimizer.directions)
        best = before.merged(optimizer.space.key).ranked[: self._count]
        return best[since % len(best)] if best else None


def _is_noisy(optimizer: LLMOptimizer[Any]) -> bool:
    """Whether measuring a point again gives another reward, as far as is known."""
    history = optimizer.history
    return history.noisy or any(t.stderr for t in history.complete)


def _remedy(raised: Exception | None, optimizer: LLMOptimizer[Any]) -> str:
    """Say what to do after an evaluation that failed, where all others failed, too."""
    if raised is None:
        remedy = "Mend the function: is a return missing? None stands for a failed evaluation"
    else:
        remedy = f"Mend the cause of the {type(raised).__name__} in the function"
    if optimizer._log is None:
        return remedy
    return f"{remedy}. Then run the script again: the search goes on from {optimizer._log.path}"


def _name(f: Callable[[Any], Score]) -> str:
    return getattr(f, "__name__", "") or type(f).__name__


def say_where_it_goes_on(optimizer: LLMOptimizer[Any], total: int) -> None:
    """Print how far a stored search of `total` evaluations is, if it goes on."""
    done, best = len(optimizer.trials) - len(optimizer.imported), optimizer.history.best
    if optimizer._log is not None and done:
        found = "no result yet" if best is None else f"best {best.reward}"
        print(
            f"llmopt: {optimizer._log.path} holds {done} of {max(total, done)} "
            f"trials, {found}: going on from there",
            file=sys.stderr,
        )


def say_what_is_kept(optimizer: LLMOptimizer[Any]) -> None:
    """Print, after Ctrl-C, where a search is kept and how it goes on, if it has a storage."""
    if optimizer._log is not None:
        print(
            f"llmopt: stopped; everything so far is kept in {optimizer._log.path}: run the script "
            "again to go on",
            file=sys.stderr,
        )
