"""What the shell and MCP read of a search and record in it, as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from llmopt.client.base import client_name
from llmopt.client.folder import is_answered, number_of
from llmopt.data import read_data_file
from llmopt.errors import LLMOptError, ParameterError, warn_user
from llmopt.evaluations import evaluated_point
from llmopt.events import Queued
from llmopt.history import Proposal, Trial, joined, without_withdrawn
from llmopt.optimizer import LLMOptimizer
from llmopt.packing import DataError
from llmopt.prompt.answer_parts import notes_of
from llmopt.service.search_file import AGENT
from llmopt.space.fixed import Fixed
from llmopt.util.caller import CALLER
from llmopt.util.text import ended, short, written

T = TypeVar("T")


def plain(value: Any) -> Any:
    """Return parameters in the form that JSON has: arrays and tuples as lists."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def _reasons(explanation: str) -> dict[str, str]:
    """Return why a point was proposed, as JSON, without the line that says nothing."""
    said = re.sub(r"(^|\n)Start from: new$", "", explanation)
    return {"explanation": said} if said else {}


def of_proposal(optimizer: LLMOptimizer[Any], proposal: Proposal) -> dict[str, Any]:
    """Return a pending point, as JSON; choices that have a name by it."""
    params = plain(optimizer.space.labelled(proposal.values))
    found = {"point": f"p{proposal.asked}", "params": params, "source": proposal.source}
    return found | _reasons(proposal.explanation)


def _queued(optimizer: LLMOptimizer[Any], point: Proposal | Fixed) -> dict[str, Any]:
    """Return a point that waits for a later ask, as JSON, and why the next one passes over it."""
    if isinstance(point, Proposal):
        found = {k: v for k, v in of_proposal(optimizer, point).items() if k != "point"}
    else:
        found = {"params": plain(optimizer.space.with_names(point.named())), "source": "user"}
        found |= _reasons(point.words)
    return found | ({"waits": why} if (why := optimizer.obstacle(point)) else {})


def _computed(number: float) -> float:
    """Return a number without its rounding error: a mean of 0.1 and 0.2 is 0.15."""
    return float(f"{number:.12g}")


def _errors(trial: Trial[Any], metrics: tuple[str, ...]) -> Any:
    """Return standard errors as JSON: of several objectives by their names, if any."""
    if not isinstance(trial.stderr, tuple) or not metrics:
        return plain(trial.stderr)
    known = zip(metrics, trial.stderr, strict=True)
    return {name: error for name, error in known if error is not None}


def of_trial(optimizer: LLMOptimizer[Any], trial: Trial[Any]) -> dict[str, Any]:
    """Return a trial as JSON, without empty fields; rewards by the names of objectives, if any."""
    space, metrics = optimizer.space, optimizer.metrics

    def by_name(rewards: tuple[float, ...] | None) -> Any:
        if rewards and metrics:
            return dict(zip(metrics, rewards, strict=True))
        return rewards[0] if rewards and len(rewards) == 1 else plain(rewards)

    if trial.evaluations > 1:
        means = tuple(map(_computed, trial.rewards or ()))
        parts = {name: _computed(value) for name, value in trial.parts.items()}
        errors = joined([error and _computed(error) for error in trial.errors])
        trial = replace(trial, rewards=means or None, parts=parts, stderr=errors)
    violation = trial.constraint_violation
    if trial.evaluations > 1 or violation != trial.measured_violation:
        violation = _computed(violation)
    old = () if len(trial.measurements) > 1 else trial.old_rewards
    old = old[:-1] if old[-1:] == (trial.rewards or (),) else old  # the reward was right
    former = trial.was.feedback if trial.was else ""
    found = {
        "number": trial.number + 1,  # in the order of recording
        "evaluations": trial.evaluations if trial.measurements else None,
        "measurements": [n + 1 for n in trial.measurements] if trial.evaluations > 1 else None,
        "point": f"p{trial.asked}" if trial.asked else None,
        "params": plain(space.labelled(trial.values)),
        "instead_of": trial.instead_of and plain(space.labelled(trial.instead_of)),
        "reward": by_name(trial.rewards),
        "state": trial.state,
        "source": trial.source,
        "stderr": _errors(trial, metrics),
        "constraint_violation": violation or None,
        "parts": dict(trial.parts) or None,
        "part_counts": dict(trial.part_counts) or None,
        "corrected": trial.corrected or None,
        "old_reward": by_name(old[-1] or None) if old else None,
        "old_rewards": [by_name(each or None) for each in old] if len(old) > 1 else None,
        "old_parts": (trial.was and dict(trial.was.parts)) or None,
        "old_feedback": (former != trial.feedback and former) or None,
        "feedback": trial.feedback or None,
        **_reasons(trial.explanation),
        "warning": optimizer.doubt(trial) or None,
    }
    return {k: v for k, v in found.items() if v is not None or k == "reward"}


def numbered(optimizer: LLMOptimizer[Any], trials: Sequence[Trial[Any]]) -> list[dict[str, Any]]:
    """Return trials as JSON, with the number of its point in prompts and reports as ``label``.

    Where no points repeat, that is the trial's own number, and is left out.
    """
    history, found = optimizer.history, [of_trial(optimizer, trial) for trial in trials]
    if not history.noisy:
        return found
    return [one | {"label": history.label(t.number)} for one, t in zip(found, trials, strict=True)]


def status(optimizer: LLMOptimizer[Any]) -> dict[str, Any]:
    """Return where a search stands, as JSON."""
    waiting: dict[str, str] = {}
    usage, calls = optimizer.usage, optimizer.calls_under_way
    if calls:
        name = client_name(optimizer.client)
        said = f"a request to {name} waits for its answer"
        if not optimizer.calling:
            said = f"the process that sent a request to {name} has ended: the next ask repeats it"
        if name.startswith("folder:"):
            folder = Path(Path(name.removeprefix("folder:")).name)
            number = number_of(folder, calls[0].digest)
            if number is not None and is_answered(folder, number):
                said = f"request {number} to {name} is answered: run `llmopt ask` with the same "
                said += "options and candidates to take it"
                waiting["waiting"] = said
            else:
                there = "" if number is None else f" (number {number})"
                said += f"; `llmopt next {folder}` prints it{there}"
        elif not optimizer.calling:
            said += ", unless results or changes were recorded since"
        waiting.setdefault("waiting", said)
    elif optimizer.unanswered and client_name(optimizer.client) == AGENT:
        waiting["waiting"] = "a request waits for answer(); ask() shows it"
    trials = without_withdrawn(optimizer.trials)
    counts = {  # the first three are of these
        "imported": sum(trial.kind == "imported" for trial in trials),
        "failed": sum(trial.state == "failed" for trial in trials),
        "infeasible": sum(
            trial.state == "complete" and trial.constraint_violation > 0 for trial in trials
        ),
        "withdrawn": len(optimizer.trials) - len(trials),
    }
    spent = {k: _computed(v) if isinstance(v, float) else v for k, v in asdict(usage).items()}
    return {
        "trials": len(trials),
        **{state: count for state, count in counts.items() if count},
        "directions": dict(zip(optimizer.metrics, optimizer.directions, strict=True))
        if optimizer.metrics
        else list(optimizer.directions),
        **leaders(optimizer),
        **_recommended(optimizer),
        "pending": [of_proposal(optimizer, p) for p in optimizer.pending_proposals],
        "queued": [_queued(optimizer, point) for point in optimizer.queued_proposals],
        **waiting,
        **({"stopped": optimizer.stopped} if optimizer.stopped else {}),
        **({"advice": optimizer.advice} if optimizer.advice else {}),
        "usage": spent,
    }


def leaders(optimizer: LLMOptimizer[Any]) -> dict[str, Any]:
    """Return ``best``, as JSON: a trial, or the best feasible trial of each objective by name.

    With several objectives, ``pareto`` names the points on the Pareto front, as prompts do.
    """
    history = optimizer.history
    if len(history.directions) == 1:
        return {"best": _merged(optimizer, history.best)}
    each = enumerate(history.objectives)
    best = {name: _merged(optimizer, history.best_of(k)) for k, name in each}
    return {"pareto": [f"#{t.number + 1}" for t in history.pareto_front], "best": best}


def _merged(optimizer: LLMOptimizer[Any], trial: Trial[Any] | None) -> dict[str, Any] | None:
    """Return a trial of the history, in which repeats of a point are one, as JSON."""
    if trial is None:
        return None
    found = of_trial(optimizer, optimizer.history.recorded(trial))
    gone = optimizer.space.outside(trial.instead_of or trial.values)
    if gone and "warning" not in found:
        found["warning"] = gone
    # Prompts and reports count points, and `number` counts trials.
    return found | ({"label": f"#{trial.number + 1}"} if trial.measurements else {})


def _recommended(optimizer: LLMOptimizer[Any]) -> dict[str, Any]:
    """Return ``recommended``, as JSON: the trial that the model named as it ended the search."""
    number = optimizer.recommended_number
    named = (t for t in optimizer.history.trials if t.number + 1 == number)
    trial = _merged(optimizer, next(named, None))
    return {} if trial is None else {"recommended": trial}


def point_named(optimizer: LLMOptimizer[Any], given: Any, gone: bool = False) -> Any:
    """Return the point of a name, and all else as it is; see `_named`."""
    if not isinstance(given, str):
        return given
    return optimizer.space.unflatten(_named(optimizer, given, gone).values)


def _named(optimizer: LLMOptimizer[Any], given: str, gone: bool) -> Proposal | Trial[Any]:
    """Return the proposal or the trial of a name.

    `ask` printed a name such as ``"p4"``, and prompts show one such as ``"#4"``. A point that was
    withdrawn before it had a result has a name only if it may be `gone`.
    """
    returned = optimizer.returned_proposals
    points: list[Any] = [*optimizer.trials, *(returned if gone else optimizer.pending_proposals)]
    named: dict[str, Proposal | Trial[Any]]
    named = {f"p{p.asked}": returned[p.asked - 1] for p in points if p.asked}
    trials, label = without_withdrawn(optimizer.trials), optimizer.history.label
    named |= {label(t.number): t for t in trials}
    if given not in named:
        pending = [f"p{p.asked}" for p in optimizer.pending_proposals]
        why = "`ask` did not return it"
        if (near := given.lower()) in named:
            why = f"did you mean {near}?"
        elif any(f"p{p.asked}" == near for p in returned):
            why = "it was withdrawn; `enqueue` runs it again"
        raise LLMOptError(
            f"there is no point {short(given)} ({why}): expected the name that `llmopt ask` "
            f"printed, or the parameters. Pending: {', '.join(pending) or 'none'}"
        )
    return named[given]


def _asked(name: Any) -> int:
    """Return the number of the name that `ask` printed, and 0 for all else."""
    return int(name[1:]) if isinstance(name, str) and name.startswith("p") else 0


def _withdrawn(optimizer: LLMOptimizer[Any], given: Any) -> int:
    """Return the number of a named proposal that was withdrawn, with no result; else 0.

    It is 0, too, if an equal point has a result, or is pending or queued.
    """
    key, trials = optimizer.space.key, without_withdrawn(optimizer.trials)
    if not (asked := _asked(given)) or any(t.asked == asked for t in trials):
        return 0
    known = {key(v) for v in (*(t.values for t in trials), *optimizer.history.pending)}
    return asked * (key(optimizer.returned_proposals[asked - 1].values) not in known)


def tell(optimizer: LLMOptimizer[Any], results: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Tell results, all of them or none, and yield the trial of each, as JSON, once recorded."""
    read = []
    for number, told in enumerate(results, start=1):
        try:
            read.append(_read(optimizer, _by_name(optimizer, told)))
        except (LLMOptError, TypeError, DataError) as error:
            if len(results) == 1:
                raise LLMOptError(str(error)) from error
            raise LLMOptError(f"result {number}: {error}; nothing was recorded") from error
    key, trials = optimizer.space.key, optimizer.trials
    points = [key(one.instead_of or one.values) for one in read]
    corrected = [one.replaces for one in read if one.replaces is not None]
    alone = [
        point
        for point, one in zip(points, read, strict=True)
        if one.instead_of is not None
        or (one.replaces is not None and (one.asked or trials[one.replaces].values != one.values))
    ]
    if len({*corrected}) < len(corrected) or any(points.count(point) > 1 for point in alone):
        raise LLMOptError(
            "two results are of the same point or trial, and one of them is a correction or has "
            '"instead_of": tell them one by one; nothing was recorded'
        )
    mistaken = [_of_label(optimizer, told.get("replaces")) for told in results]
    for one, others in zip(read, mistaken, strict=True):
        before = optimizer.repeated(one)
        repeat = "" if before is None else optimizer.repetition(one, before)
        logged = not optimizer.history.noisy or (before and before.state == "withdrawn")
        if repeat and not logged:
            warn_user(repeat, UserWarning)
        was = None if one.replaces is None else optimizer.trials[one.replaces]
        now = optimizer.tell_as(one)
        (trial,) = numbered(optimizer, [now])
        if was is not None and was.values != one.values:
            trial["old_params"] = plain(optimizer.space.labelled(was.values))
        if was is not None and was.asked not in (0, now.asked):
            trial["pending_again"] = f"p{was.asked}"
        mixed = ""
        if others:
            changed = [
                f"{name} {old} → {new}" for _, name, old, new in optimizer.changes[-1].fields
            ]
            did = ", ".join([f"corrected {optimizer.named(now.number)}", *changed])
            back = CALLER.get().trial("replaces", now.number)
            mixed = _mixed_up(optimizer, "replaces", did, f"change it back with {back}", others)
        warnings = [text for text in (trial.get("warning"), repeat, mixed) if text]
        yield trial | ({"warning": " ".join(warnings)} if warnings else {})


def enqueue(
    optimizer: LLMOptimizer[Any], points: Sequence[Any], words: str = ""
) -> list[dict[str, Any]]:
    """Queue points, all of them or none, and return them as JSON."""

    def check(given: Any, point: Any) -> Queued:
        if not words and (asked := _withdrawn(optimizer, given)):
            return optimizer.read_queued(point, asked=asked)
        return optimizer.read_queued(point, words or _said(optimizer, given))

    read = _each(optimizer, points, check, "queued", gone=True)
    queued = [optimizer.enqueue_as(point, event) for point, event in read]
    return [_queued(optimizer, point) for point in queued]


def _said(optimizer: LLMOptimizer[Any], given: Any) -> str:
    """Return the words of a point that is repeated by its name: what it was to show."""
    if not isinstance(given, str):
        return ""
    notes = notes_of(_named(optimizer, given, gone=True).explanation)
    said = f"Hypothesis: {notes.hypothesis}" if notes.hypothesis else notes.analysis
    return f"run again. {said.removeprefix('run again. ')}" if said else ""


def _each(
    optimizer: LLMOptimizer[Any],
    points: Sequence[Any],
    check: Callable[[Any, Any], T],
    done: str,
    gone: bool = False,
) -> list[tuple[Any, T]]:
    """Check all points before the first one is recorded; errors name them as they were given.

    The arguments of `check` are a point as it was given, and the point itself.
    """
    found = []
    for given in points:
        try:
            point = point_named(optimizer, given, gone)
            found.append((point, check(given, point)))
        except LLMOptError as error:
            said, several = str(error), len(points) > 1
            if isinstance(error, ParameterError):  # it may begin with the call in Python
                own = said.removeprefix(f"withdraw({short(point)}): ")
                said = f"{short(given)}: {own}" if several or own != said else said
            raise LLMOptError(f"{ended(said)} Nothing was {done}" if several else said) from error
    return found


def withdraw(
    optimizer: LLMOptimizer[Any], points: Sequence[Any], trial: Any, feedback: str
) -> list[dict[str, Any]]:
    """Drop points, all of them or none, or a trial by its number from 1; return them as JSON."""
    if trial is not None and points:
        raise LLMOptError(f"got both {short(points[0])} and trial {short(trial)}: give one")
    if trial is None and not points:
        raise LLMOptError("expected a point, or as `trial` the number of a trial")
    if trial is not None:
        number, others = _from_zero(optimizer, "trial", trial), _of_label(optimizer, trial)
        (before,) = numbered(optimizer, [optimizer.trials[number]])
        did = f"withdrew {optimizer.named(number)}"
        optimizer.withdraw(trial=number, feedback=feedback)
        (after,) = numbered(optimizer, [optimizer.trials[number]])
        moved = before.get("label") != after.get("label")
        after |= {"old_label": before["label"]} if moved else {}
        if others:
            back = CALLER.get().argument("replaces", repr(after["label"]))
            undo = f"bring it back by `tell` with {back}"
            after["warning"] = _mixed_up(optimizer, "trial", did, undo, others)
        return [after]
    twice = [name for name in points if isinstance(name, str) and points.count(name) > 1]
    if twice:
        raise LLMOptError(f"{short(twice[0])} was given twice. Nothing was withdrawn")
    found = []

    def check(given: Any, point: Any) -> int:
        # An equal point has another name.
        return optimizer.read_withdrawn(point, asked=_asked(given)).asked

    for point, asked in _each(optimizer, points, check, "withdrawn"):
        pending, queued = optimizer.pending_proposals, optimizer.queued_proposals
        optimizer.withdraw(point, asked=asked, feedback=feedback)
        left = [*optimizer.pending_proposals, *optimizer.queued_proposals]
        gone = [of_proposal(optimizer, p) for p in _missing(pending, left)]
        gone += [_queued(optimizer, p) for p in _missing(queued, left)]
        why = {"feedback": feedback} if feedback else {}
        found += [line | {"state": "withdrawn"} | why for line in gone]
    return found


def _missing(before: Sequence[T], after: Sequence[Any]) -> list[T]:
    """Return the objects of a list that another one lacks; equal ones are not the same."""
    there = set(map(id, after))
    return [one for one in before if id(one) not in there]


def _of_label(optimizer: LLMOptimizer[Any], given: Any) -> list[int]:
    """Return the numbers of the trials of point ``#N``, if trial N was given and is not of it."""
    label, trials = optimizer.history.label, optimizer.trials
    if type(given) is not int or not 1 <= given <= len(trials) or label(given - 1) == f"#{given}":
        return []
    return [t.number for t in without_withdrawn(trials) if label(t.number) == f"#{given}"]


def _mixed_up(
    optimizer: LLMOptimizer[Any], name: str, did: str, undo: str, others: Sequence[int]
) -> str:
    """Warn that the changed trial N is not of point ``#N``, and return the warning."""
    label = optimizer.history.label(others[0])
    live = " and ".join(map(optimizer.named, others))
    right = " or ".join(CALLER.get().trial(name, number) for number in others)
    text = f"this {did}; '{label}' is {live}. If you meant '{label}', {undo}, and give {right}"
    warn_user(text, UserWarning)
    return text


def _from_zero(optimizer: LLMOptimizer[Any], name: str, value: Any) -> int:
    """Return the number from 0 of a trial, which counts from 1 here.

    It may also be named by its point: ``"#16"`` as in prompts, or ``"p12"`` as `ask` printed it.
    """
    trials, count = optimizer.trials, len(optimizer.trials)
    given = CALLER.get().argument(name, short(value))
    labels = [optimizer.history.label(t.number) for t in trials]
    if type(value) is int and 1 <= value <= count:
        gone = name == "replaces" and trials[value - 1].state == "withdrawn"
        others = _of_label(optimizer, value)
        if gone and others:
            live = " and ".join(map(optimizer.named, others))
            raise LLMOptError(
                f"{given}: {optimizer.named(value - 1)} was withdrawn, and '#{value}' is {live}: "
                f"give '{labels[value - 1]}' to restore the former, or '#{value}' to correct the "
                "latter"
            )
        return value - 1
    named, key = [t for t in trials if t.asked and f"p{t.asked}" == value], optimizer.space.key
    # Trials without a name may be repeats that were told by this one.
    points = [key(t.values) for t in named]
    named += [t for t in trials if not t.asked and key(t.values) in points]
    named += [t for t in trials if labels[t.number] == value]
    there = without_withdrawn(named) or named
    if len(there) > 1:
        numbers = ", ".join(str(t.number + 1) for t in there)
        raise LLMOptError(
            f"{given}: that point was measured {len(there)} times; give the number "
            f"of one of these trials: {numbers}"
        )
    if not there:
        raise LLMOptError(
            f"{given}: expected the number of one of {count} trials, counted from 1, or the name "
            "of a point with a result, such as p3"
        )
    return there[0].number


def _read(optimizer: LLMOptimizer[Any], told: Any) -> Any:
    known = ("feedback", "stderr", "samples", "constraint_violation", "data", "parts",
             "instead_of", "replaces")  # fmt: skip
    if not isinstance(told, Mapping) or not {"params", "replaces"} & told.keys():
        raise LLMOptError('expected an object such as {"params": {...}, "reward": 0.5}')
    own = {"params", "reward", "failed", "source", "explanation", *known, *optimizer.space.names}
    if by_name := {k: told[k] for k in optimizer.metrics if k in told and k not in own}:
        if told.get("reward") is not None:
            raise LLMOptError(f'got "reward" and {", ".join(map(repr, by_name))}: give one of them')
        told = {k: v for k, v in told.items() if k not in by_name} | {"reward": by_name}
    for key in told:
        if key not in ("params", "reward", "failed", "source", "explanation", *known):
            raise LLMOptError(f"unknown key {key!r}: expected reward, failed, {', '.join(known)}")
    _check_failed(told)
    if "replaces" in told and told.get("feedback", "") is None:
        told = {**told, "feedback": ""}  # a correction removes it
    others = {k: told[k] for k in known if told.get(k) is not None}
    place, named = told.get("instead_of"), told.get("params")
    gone = not {"instead_of", "replaces"} & others.keys()  # it may have been evaluated after all
    params = _completed(optimizer, point_named(optimizer, named or {}, gone), others)
    asked = _asked(place or named)  # an equal point has another name
    trial = next((t for t in optimizer.trials if asked and t.asked == asked), None)
    if trial is not None and trial.state != "withdrawn":
        _check_open(optimizer, trial, others)
    elif asked not in [p.asked for p in optimizer.pending_proposals]:
        asked = 0 if trial else _withdrawn(optimizer, named)  # its point may be queued again
    if told.get("reward") is None and "failed" not in told and "replaces" in others:
        told = _with_outcome(told, others, optimizer.trials[others["replaces"]])
    if "failed" not in told and "reward" not in told:
        raise LLMOptError('give "reward", or "failed" with the reason in words')
    _check_reward(told.get("reward"))
    if isinstance(others.get("data"), str):  # a file
        others["data"] = read_data_file(others["data"])
    result = optimizer.read_result(params, told.get("reward"), asked=asked, **others)
    result = replace(result, feedback=str(told["failed"] or "")) if "failed" in told else result
    optimizer.check_change(result)
    return result


def _check_open(optimizer: LLMOptimizer[Any], trial: Trial[Any], others: Mapping[str, Any]) -> None:
    """Raise if a result of a trial's asked point is neither a repeat nor a correction of it."""
    key, caller = optimizer.space.key, CALLER.get()
    moved = key(trial.values) != key(optimizer.returned_proposals[trial.asked - 1].values)
    place, replaces = others.get("instead_of"), others.get("replaces")
    if replaces != trial.number and (moved or replaces is not None or place is not None):
        where = ", which was measured at another point" * moved
        without = f" without {caller.argument('instead_of')}" * (place is not None)
        raise LLMOptError(
            f"p{trial.asked} has its result, {optimizer.named(trial.number)}{where}: correct it "
            f"with {caller.trial('replaces', trial.number)}; to record another one, give the "
            f"parameters in place of p{trial.asked}{without}"
        )


def _with_outcome(told: Any, others: Mapping[str, Any], trial: Trial[Any]) -> dict[str, Any]:
    """Return a correction with the outcome of its trial, which was right."""
    before = trial.was or trial
    failed = {"failed": others.get("feedback", before.feedback)} if before.reward is None else {}
    return {**told, "reward": before.reward, **failed}


def _by_name(optimizer: LLMOptimizer[Any], told: Any) -> Any:
    """Return a result with the name of its point as `params`; `ask` prints it as `point`."""
    if not isinstance(told, Mapping) or "point" not in told or "point" in optimizer.metrics:
        return told
    name, rest = told["point"], {key: value for key, value in told.items() if key != "point"}
    point, space = point_named(optimizer, name, gone=True), optimizer.space
    given = rest.get("params") or point
    try:
        same = space.key(evaluated_point(space, given, beyond=True)) == space.key(
            evaluated_point(space, point, beyond=True)
        )
    except ParameterError:  # it gives some of the parameters
        same = False
    if not same:
        raise LLMOptError(
            f"point {short(name)} is {short(point)}, and params are {short(given)}: leave out "
            f'"params", or, if another point was measured, give "instead_of" in place of "point"'
        )
    return {**rest, "params": name}


def _check_failed(told: Mapping[str, Any]) -> None:
    """Raise if a failure has a reward, or a second text."""
    if told.get("failed") is not None and told.get("reward") is not None:
        raise LLMOptError(
            f'got both "reward" ({short(told["reward"])}) and "failed" ({short(told["failed"])}): '
            'give "reward" if the point was evaluated, or "failed" if it has no result'
        )
    if told.get("failed") and told.get("feedback"):
        raise LLMOptError(
            'got both "failed" and "feedback": a failed trial has one text: give "failed" with the '
            "reason and all that was seen"
        )


def _check_reward(reward: Any) -> None:
    """Raise if JSON has a text, or of several rewards a null, in place of a number."""
    several = isinstance(reward, (list, Mapping))
    values = [*reward.values()] if isinstance(reward, Mapping) else reward if several else [reward]
    texts = [value for value in values if isinstance(value, str)]
    if texts or (several and None in values):
        kind = f"a text{written(texts[0])}" if texts else "null"
        raise LLMOptError(
            f"reward={short(reward)}: expected a number, not {kind}; "
            'if the evaluation failed, give "failed" with the reason in words, and no "reward"'
        )


def _completed(optimizer: LLMOptimizer[Any], params: Any, others: dict[str, Any]) -> Any:
    """Return a point with what it omits of the asked point or the trial that `others` name."""
    space, base = optimizer.space, None
    if "replaces" in others:
        others["replaces"] = _from_zero(optimizer, "replaces", others["replaces"])
        base = optimizer.trials[others["replaces"]].values
    if "instead_of" in others:
        others["instead_of"] = point_named(optimizer, others["instead_of"])
        base = space.flatten(others["instead_of"])
    if base is not None and params == {}:
        return space.unflatten(base)
    if base is None or not Fixed.some(space, params):
        return params
    given = {space.place[name]: value for name, value in params.items()}  # of no candidate, perhaps
    given = {i: space.dimensions[i].check(value, measured=True) for i, value in given.items()}
    values = Fixed(space, given).apply(base)
    return params if values is None else space.unflatten(values)
