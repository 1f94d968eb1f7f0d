"""A search as a table, a study, a page and text."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmopt.changes import Change, changes_of
from llmopt.client.base import client_name
from llmopt.errors import needs
from llmopt.events import Corrected, Queued, Started, Withdrawn
from llmopt.history import History, Trial, each_error
from llmopt.journal import Journal
from llmopt.origin import as_text
from llmopt.prompt.log import Log
from llmopt.report_page.page import write_page
from llmopt.space import Categorical, Space, Value
from llmopt.space.values import ABSENT
from llmopt.to_optuna import study_of, trials_of

if TYPE_CHECKING:
    import pandas
    from optuna import Study

_ON_BOUND = 1e-3  # distance from an end, as a share of the range, that counts as on it
_SHOWN_ENDS = 4

_MOST_RESULTS = 16  # of the last answer in words


def dataframe(
    trials: Sequence[Trial[Any]], space: Space, rewards: Sequence[str]
) -> pandas.DataFrame:
    """Return one row for each trial; see `LLMOptimizer.trials_dataframe`."""
    without = ". Without it, the same is in `optimizer.trials`"
    with needs("trials_dataframe()", "pandas", otherwise=without):
        import pandas
    errors = ["stderr" + name.removeprefix("reward") for name in rewards]
    rows = [
        {
            "number": trial.number,
            "state": trial.state,
            **dict(zip(rewards, trial.rewards or (None,) * len(rewards), strict=True)),
            **{
                f"old_{name}": value
                for name, value in zip(rewards, _old_reward(trial), strict=False)
            },
            **dict(zip(errors, each_error(trial.stderr, len(errors)), strict=True)),
            **{f"parts_{name}": value for name, value in trial.parts.items()},
            "constraint_violation": trial.measured_violation,
            **({"total_violation": trial.constraint_violation} if space.limits else {}),
            **{
                f"params_{name}": None if v is ABSENT else v
                for name, v in zip(space.names, trial.values, strict=True)
            },
            **_instead_of(trial, space),
            "source": trial.source,
            "feedback": trial.feedback,
            "explanation": trial.explanation,
            "prompt_tokens": trial.prompt_tokens,
            "completion_tokens": trial.completion_tokens,
            "seconds": trial.seconds,
            **({} if trial.seed is None else {"seed": trial.seed}),
            **({"origin": as_text(trial.origin, trial.revisions)} if trial.origin else {}),
        }
        for trial in trials
    ]
    return pandas.DataFrame(rows)


def _old_reward(trial: Trial[Any]) -> tuple[float, ...]:
    """Return the rewards that a trial had before its last change, if they were others."""
    old = trial.old_rewards[-1:]
    return () if old in ((), (trial.rewards,)) else old[0]


def _instead_of(trial: Trial[Any], space: Space) -> dict[str, str]:
    """Return the cell, if any, by which `import_trials` knows what may lie beyond a bound."""
    asked = trial.instead_of
    if asked is None and not space.deviation(trial.values, steps=False):
        return {}
    return {"instead_of": json.dumps(space.named(asked) if asked else {}, default=str)}


class Views:
    """The report of a search, and the search as an Optuna study.

    Subclasses are a search, or hold one as ``optimizer``.
    """

    _journal: Journal
    _changes: tuple[int, tuple[Change, ...]] = (0, ())  # those of a number of events

    @property
    def wishes(self) -> frozenset[str]:
        """The user's words on points with some parameters, before those of who completed them."""
        queued = (e for e in self._journal.events() if isinstance(e, Queued) and e.fixed)
        return frozenset(" ".join(event.words.split()) for event in queued) - {""}

    @property
    def changes(self) -> tuple[Change, ...]:
        """The corrections and withdrawals, and the changes of the allowed points."""
        if self._changes[0] != (count := self._journal.state.count):
            later = islice(self._journal.events(), 1, None)
            some = any(isinstance(event, Started | Corrected | Withdrawn) for event in later)
            self._changes = count, tuple(changes_of(self._journal.steps())) if some else ()
        return self._changes[1]

    def to_optuna(self) -> Study:
        """Return the search as an Optuna study in memory.

        Repeated evaluations of a point are one trial with their mean, as in ``pareto``, and each is
        in ``llmopt:measurements``, with its number from 1; points
        without a result are running trials. The user attribute ``llmopt:label`` is the ``#n`` of
        prompts and reports, or the name of a point without a result, such as ``p3``;
        ``llmopt:source``, ``llmopt:explanation`` and ``llmopt:feedback`` hold
        who proposed the point, why, and what was seen. Violations are constraints.

            optuna.visualization.plot_pareto_front(search.to_optuna()).show()

        Raises:
            ImportError: Optuna is not installed.
        """
        if hasattr(self, "optimizer"):
            study: Study = self.optimizer.to_optuna()
            return study
        search: Any = self
        started = self._journal.state.started  # a file that is only read has its own model
        stored = started.options if started else {}
        prompt = stored.get("prompt")
        begun = (e for e in self._journal.events() if isinstance(e, Started))
        models = [name for event in begun if (name := str(event.options.get("client") or ""))]
        about = {
            "model": ", ".join(dict.fromkeys(models)) or client_name(search.client),
            "prompt": (prompt if isinstance(prompt, dict) else {}).get("name", search.prompt.name),
            "seed": str(search.seed),
            "constraints": "; ".join(limit.text for limit in search.space.limits),
            "description": search.description,
        }
        storage = search.storage
        return study_of(
            "search" if storage is None else storage.stem,
            search.directions,
            search.metrics,
            trials_of(
                search.space,
                search.history,
                search.pending_proposals,
                search.trials,
                self._journal.state.former,
                self.changes,
            ),
            about,
        )

    def report(
        self,
        path: str | os.PathLike[str] = "report.html",
        *,
        title: str = "",
        reference: Sequence[float] | Mapping[str, float] | None = None,
    ) -> Path:
        """Write the search as one self-contained HTML page, and return its path.

        Args:
            path: The file. An existing file is replaced.
            title: The page's title.
            reference: Reference point of the hypervolume of several objectives, a number for each.

        Raises:
            ImportError: Optuna or Plotly is not installed.
            StorageError: The file cannot be written.
        """
        return write_page(self, path, title=title, reference=reference)


def outcome(history: History, space: Space, recommended: int | None = None) -> str:
    """Return the results of the last answer, the best point and, if another, the recommended one.

    Args:
        history: All trials.
        space: Their space.
        recommended: Number from 1 of the point to keep, as prompts show it, if there is one.
    """
    if history.latest is None:
        return ""
    log = Log().read(history, space, space.names)
    latest = log.last_answer[-_MOST_RESULTS:] or [history.latest]
    lines = [
        f"Results of the last answer: {'; '.join(_result(log, t) for t in latest)}",
        f"The latest: {log.latest()}",
        f"Best first: {log.ranking()}",
    ]
    if len(history.directions) > 1:
        return "\n".join(lines) + "\n"
    kept = next((t for t in history.complete if t.number + 1 == recommended), None)
    if history.best is not None:
        lines.append(f"The best point: {_point(log, history.best)}")
    if kept is not None and kept is not history.best:
        lines.append(f"The recommended point: {_point(log, kept)}")
    return "\n".join(lines) + "\n"


def _result(log: Log, trial: Trial[Any]) -> str:
    """Return a trial's number with its values of f, or that it failed."""
    return f"#{trial.number + 1} ({', '.join(log.score(trial, None))})"


def _point(log: Log, trial: Trial[Any]) -> str:
    values = (
        f"{name}={log.value(trial, i)}"
        for i, name in enumerate(log.labels)
        if trial.values[i] is not ABSENT
    )
    return f"{_result(log, trial)}: {', '.join(values)}"


def on_bounds(space: Space, values: Sequence[Value]) -> tuple[str, ...]:
    """Return, in words, which numbers of a flat point lie at an end of their range.

    A better point may lie beyond that end. Ranges of fewer than five values are skipped,
    because a value may lie at an end by chance.
    """
    ends = []
    for i, (unit, d) in enumerate(zip(space.encode(values), space.dimensions, strict=True)):
        end = "lowest" if unit < _ON_BOUND else "highest" if unit > 1 - _ON_BOUND else ""
        fixed = isinstance(d, Categorical) or d.count < 5 or d.clip(values[i]) != values[i]
        if end and not fixed:
            ends.append(f"{space.names[i]} = {d.format(values[i])}, the {end} value allowed")
    more = len(ends) - _SHOWN_ENDS
    return (*ends[:_SHOWN_ENDS], *([f"and {more} more"] if more > 0 else []))
