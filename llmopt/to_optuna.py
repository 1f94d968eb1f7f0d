"""A search as an Optuna study in memory, for Optuna's figures, importances and Dashboard.

study = search.to_optuna()
optuna.visualization.plot_slice(study).show()
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmopt.changes import Change, chains_of
from llmopt.errors import needs
from llmopt.history import Direction, History, Proposal, Trial
from llmopt.origin import as_text
from llmopt.prompt.answer_parts import notes_of
from llmopt.space import Categorical, Float, Space
from llmopt.space.values import ABSENT
from llmopt.util.text import clean

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

PREFIX = "llmopt:"
"""Of the user attributes that llmopt writes."""

_STATES = {"complete": "COMPLETE", "failed": "FAIL", "pruned": "PRUNED", "withdrawn": "FAIL"}
_PLAIN = (bool, int, float, str, type(None))  # choices that every storage of Optuna takes


def study_of(
    name: str,
    directions: Sequence[Direction],
    metrics: Sequence[str],
    trials: Iterable[FrozenTrial],
    about: Mapping[str, Any],
    storage: Any = None,
) -> Study:
    """Return a study in memory.

    Args:
        name: What it is called.
        directions: One for each objective.
        metrics: Names of the objectives; none if they have none.
        trials: Its trials, in their order.
        about: User attributes of the study; those without a value are dropped.
        storage: An empty storage of Optuna; ``None`` for memory.
    """
    with _quiet() as optuna:
        study: Study = optuna.create_study(
            storage=storage, study_name=clean(name), directions=list(directions)
        )
        if metrics:
            study.set_metric_names([clean(metric) for metric in metrics])
        for key, value in about.items():
            if value not in (None, ""):
                study.set_user_attr(PREFIX + key, value)
        study.add_trials(list(trials))
    return study


def trials_of(
    space: Space,
    history: History,
    pending: Iterable[Proposal] = (),
    recorded: Sequence[Trial] = (),
    former: Collection[Any] = (),
    changes: Sequence[Change] = (),
) -> Iterator[FrozenTrial]:
    """Yield the trials of a history, then the points without a result as running trials.

    Args:
        space: Their space.
        history: The trials, perhaps merged.
        pending: The points without a result.
        recorded: The trials as they were recorded, one for each measurement.
        former: See `State.former`.
        changes: Those of trials and of the search.
    """
    distributions = {
        name: _distribution(d, [trial.values[i] for trial in history.trials])
        for i, (name, d) in enumerate(zip(space.names, space.dimensions, strict=True))
    }
    by_trial: dict[int | str, list[Change]] = {}
    for change in changes:
        by_trial.setdefault(change.of, []).append(change)
    limited = any(t.constraint_violation > 0 for t in history.trials)
    for trial in history.trials:
        measured = [recorded[number] for number in trial.measurements] if recorded else []
        measured = measured or [trial] * (trial.evaluations > 0)
        wrong = [one for one in measured if one.corrected]
        first = next(iter(wrong), trial)
        chains = [chains_of(by_trial.get(one.number, ())) for one in wrong]
        said = [text for _, texts in chains for text in texts]
        said += [trial.was.feedback] if trial.was and trial.was.feedback != trial.feedback else []
        yield frozen(
            trial.number,
            _STATES[trial.state],
            trial.rewards,
            _params(space, trial.values),
            distributions,
            {"total": trial.constraint_violation} if limited else None,
            **_notes(trial),
            feedback=trial.feedback,
            stderr=trial.stderr,
            evaluations=trial.evaluations if trial.evaluations != 1 else None,
            parts=dict((trial.was or trial).parts) or None,
            part_counts=dict(trial.part_counts) or None,
            old_feedback="\n".join(filter(None, said)),
            corrected=first.corrected or None,
            corrections=[line for line, _ in chains if line] or None,
            old_values=list(map(list, first.old_rewards)) or None,
            withdrawn=trial.state == "withdrawn" or None,
            instead_of=trial.instead_of and _params(space, trial.instead_of),
            measurements=_measurements(trial, recorded),
            violation=trial.measured_violation if limited else None,
            violated=space.violation(trial) or None,
            origin=as_text(trial.origin, trial.revisions),
            deviation=space.deviation(trial.values) or None,
            points=", ".join(f"p{one.asked}" for one in measured if one.asked),
            imported=sum(one.kind == "imported" for one in measured) or None,
            infeasible=sum(
                one.state == "complete" and one.constraint_violation > 0 for one in measured
            )
            or None,
            outside=(trial.state != "withdrawn" and bool(space.outside(trial.values, former)))
            or None,
        )
    for number, proposal in enumerate(pending, start=len(history.trials)):
        params, notes = _params(space, proposal.values), _notes(proposal)
        notes["label"] = notes["points"] = f"p{proposal.asked}"
        yield frozen(number, "RUNNING", None, params, distributions, None, **notes)


def _measurements(trial: Trial, recorded: Sequence[Trial]) -> list[str] | None:
    """Return each measurement of a point as a line, if it is not one of the same number."""
    if not recorded or trial.measurements in ((), (trial.number,)):
        return None
    lines: list[str] = []
    for one in (recorded[number] for number in trial.measurements):
        words = [", ".join(f"{v:.6g}" for v in one.rewards or ()), one.feedback]
        if lines:  # the reasons of the first one stand beside the point
            why = notes_of(one.explanation)
            named = {"hypothesis": why.hypothesis, "lesson": why.lesson}
            words += [f"{name}: {text}" for name, text in named.items() if text]
            words.append(" ".join(why.analysis.split()))
        told = "; ".join(text.removesuffix(".") for text in words if text)
        lines.append(f"trial {one.number + 1}: {told}")
    return lines


def _notes(point: Proposal | Trial) -> dict[str, Any]:
    amounts = ("prompt_tokens", "completion_tokens", "seconds")
    tokens = {name: getattr(point, name) or None for name in amounts}
    return {"source": point.source, "explanation": point.explanation, **tokens}


def frozen(
    number: int,
    state: str,
    values: Sequence[float] | None,
    params: Mapping[str, Any],
    distributions: Mapping[str, BaseDistribution],
    constraints: Mapping[str, float] | None,
    **notes: Any,
) -> FrozenTrial:
    """Return a trial of Optuna, labelled ``#n`` from 1 as prompts name it, unless `notes` do.

    Args:
        number: Its number, from 0.
        state: The name of its state.
        values: A number for each objective; ``None`` without a result.
        params: The parameters that it has.
        distributions: Of all parameters.
        constraints: Violations by name, at most 0 if there is none.
        **notes: User attributes; those without a value are dropped.
    """
    import optuna

    done = state in ("COMPLETE", "PRUNED") and values is not None
    there = {PREFIX + k: v for k, v in notes.items() if v not in (None, "")}
    return optuna.trial.create_trial(
        state=optuna.trial.TrialState[state if done or state == "RUNNING" else "FAIL"],
        values=[float(v) for v in values] if done and values is not None else None,
        params=dict(params),
        distributions={name: distributions[name] for name in params},
        user_attrs={PREFIX + "label": f"#{number + 1}", **there},
        constraints=None if constraints is None else dict(constraints),
    )


def _distribution(dimension: Any, values: Iterable[Any]) -> BaseDistribution:
    """Return the range of a parameter, and of its measured values.

    A step is not stated, as Optuna takes no other values.
    """
    from optuna import distributions

    if isinstance(dimension, Categorical):
        return distributions.CategoricalDistribution(_choices(dimension))
    kind: Any = distributions.FloatDistribution
    if not isinstance(dimension, Float):
        kind = distributions.IntDistribution
    ends = [dimension.low, dimension.high, *(v for v in values if v is not ABSENT)]
    made: BaseDistribution = kind(min(ends), max(ends), log=dimension.log)
    return made


def _choices(dimension: Categorical) -> Sequence[Any]:
    """Return the choices, or their texts if they have names or a storage would not take one."""
    plain = not dimension.named and all(isinstance(c, _PLAIN) and c == c for c in dimension.choices)
    return list(dimension.choices if plain else dimension.labels)


def _params(space: Space, values: Sequence[Any]) -> dict[str, Any]:
    params = {}
    for name, dimension, value in zip(space.names, space.dimensions, values, strict=True):
        if value is ABSENT:
            continue
        if isinstance(dimension, Categorical):
            value = _choices(dimension)[dimension.code(value)]
        params[name] = value
    return params


@contextlib.contextmanager
def _quiet() -> Iterator[Any]:
    """Yield Optuna, which logs nothing meanwhile."""
    with needs("to_optuna()", "optuna", extra="report"):
        import optuna
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # metric names
            yield optuna
    finally:
        optuna.logging.set_verbosity(before)
