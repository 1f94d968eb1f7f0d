"""Optuna studies as `SearchData`; what they hold of a model is read without Optuna."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, get_args

from llmopt.history import Source, Trial, Usage
from llmopt.optuna_trials import (
    CONDITIONS,
    NAMED,
    amount_of,
    for_readers,
    json_of,
    note_of,
    number_of,
    read_named,
    shares_of,
    stderr_of,
    text_of,
    told_of,
    violated,
    violation_of,
    violations_in_words,
)
from llmopt.report.data import (
    Parameter,
    SearchData,
    choice_parameter,
    number_parameter,
    unfinished_point,
)
from llmopt.util.text import clean

_STATES: Mapping[str, Any] = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
_RESUME = (
    "To resume, run the same program again with the same storage. The trial of a killed process "
    "stays in the state RUNNING unless the storage has a heartbeat."
)
_HINTS = 10  # user attributes of a study that are shown


def of_study(study: Any) -> SearchData:
    """Return what a report shows of an Optuna study."""
    trials, unfinished, curves, named, ended, cost = [], [], {}, {}, "", 0.0
    usage = Usage()
    for frozen in study.get_trials(deepcopy=False):
        notes = frozen.user_attrs
        if note_of(notes, "source") == "stopped":
            ended = for_readers(text_of(note_of(notes, "explanation")), {})
            continue
        if frozen.state.name not in _STATES:
            if frozen.state.name == "RUNNING":
                unfinished.append(_running(frozen))
            continue
        trial = _trial(frozen, len(study.directions))
        usage.proposals[trial.source] = usage.proposals.get(trial.source, 0) + 1
        usage.prompt_tokens += round(trial.prompt_tokens)
        usage.completion_tokens += round(trial.completion_tokens)
        usage.seconds += trial.seconds
        cost += amount_of(note_of(notes, "cost"))
        if len(frozen.intermediate_values) > 1:
            pairs = ((s, number_of(v)) for s, v in sorted(frozen.intermediate_values.items()))
            curves[trial.number] = [(float(s), v) for s, v in pairs if v is not None]
        if others := read_named(json_of(frozen.system_attrs, NAMED)):
            named[trial.number] = others
        trials.append(trial)
    usage.cost = cost
    directions = tuple(d.name.lower() for d in study.directions)
    unnamed = study.study_name.startswith("no-name-")
    data = SearchData(
        title="Optuna study" if unnamed else clean(study.study_name),
        origin="an Optuna study",
        parameters=tuple(_parameters(study.get_trials(deepcopy=False), _conditions(study))),
        directions=directions,
        trials=tuple(trials),
        usage=usage,
        ended=ended,
        facts=tuple(_facts(study)),
        metrics=tuple(study.metric_names or ()),
        curves=curves,
        unfinished=tuple(unfinished),
        numbered=False,
        named=named,
        resume="" if type(study._storage).__name__ == "InMemoryStorage" else _RESUME,
    )
    return data.with_best()


def _running(frozen: Any) -> Trial[Any]:
    """Return a trial that runs, or was left running by a killed process."""
    began = frozen.datetime_start
    known = [f"Running since {began:%Y-%m-%d %H:%M:%S}." if began else ""]
    known.append(text_of(note_of(frozen.user_attrs, "error")))
    params = {clean(name): value for name, value in frozen.params.items()}
    said = text_of(note_of(frozen.user_attrs, "explanation"))
    return unfinished_point(
        frozen.number,
        params,
        source=_source(frozen),
        explanation=said,
        feedback="\n".join(filter(None, known)),
    )


def _source(frozen: Any) -> Any:
    source = note_of(frozen.user_attrs, "source")
    if source in get_args(Source):
        return source
    return "user" if "fixed_params" in frozen.system_attrs else "sampler"


def _trial(frozen: Any, objectives: int) -> Trial[Any]:
    notes, state = frozen.user_attrs, _STATES[frozen.state.name]
    values = frozen.values
    if state == "pruned":
        last = number_of(frozen.intermediate_values.get(frozen.last_step))
        values = None if last is None or objectives > 1 else [last]
    said = [*map(text_of, told_of(notes, "feedback")), text_of(note_of(notes, "error"))]
    if state == "failed":
        said.append(text_of(frozen.system_attrs.get("fail_reason")))
        said = said if any(said) else [_unstated(frozen)]
    broken = violated(frozen)
    said.append(violations_in_words({n: c for n, c in broken.items() if not n.isdecimal()}))
    return Trial(
        number=frozen.number,
        params={clean(name): value for name, value in frozen.params.items()},
        values=(),
        rewards=tuple(map(float, values)) if values and state != "failed" else None,
        state=state,
        feedback="\n".join(filter(None, said)),
        source=_source(frozen),
        explanation=text_of(note_of(notes, "explanation")),
        constraint_violation=violation_of(broken),
        stderr=stderr_of(notes),
        **shares_of(partial(note_of, notes)),
    )


def _unstated(frozen: Any) -> str:
    """Return what is known of a failure whose reason is not in the study."""
    last = frozen.intermediate_values.get(frozen.last_step)
    if last is not None and last != last:
        return "The value was nan."
    if note_of(frozen.user_attrs, "source"):  # `LLMSampler` keeps what the objective raised
        return "The value was nan, or the trial was told as failed."
    return "The value was nan, or the objective raised an error: Optuna keeps no reason."


def _conditions(study: Any) -> dict[str, str]:
    """Return when parameters are active, in words, as a sampler of llmopt kept it."""
    found = json_of(study._storage.get_study_system_attrs(study._study_id), CONDITIONS)
    pairs = found.items() if isinstance(found, Mapping) else ()
    return {name: clean(words) for name, words in pairs if isinstance(words, str)}


def _parameters(trials: Sequence[Any], conditions: Mapping[str, str]) -> Iterator[Parameter]:
    """Yield each parameter with the widest of its distributions."""
    found: dict[str, list[Any]] = {}
    for trial in trials:
        for name, distribution in trial.distributions.items():
            known = found.setdefault(name, [])
            if distribution not in known:
                known.append(distribution)
    for name, known in found.items():
        if all(hasattr(d, "choices") for d in known):
            choices = list(dict.fromkeys(c for d in known for c in d.choices))
            labels = [str(c) for c in choices]
            yield choice_parameter(name, choices, labels, conditions.get(name, ""))
            continue
        numbers = [d for d in known if hasattr(d, "low")]
        low, high = min(d.low for d in numbers), max(d.high for d in numbers)
        whole = all(type(d).__name__.startswith("Int") for d in numbers)
        log = any(d.log for d in numbers)
        yield number_parameter(name, low, high, log, whole, conditions.get(name, ""))


def _facts(study: Any) -> Iterator[tuple[str, str]]:
    models: dict[str, int] = {}
    for trial in study.get_trials(deepcopy=False):
        if model := text_of(note_of(trial.user_attrs, "model"), 80):
            models[model] = models.get(model, 0) + 1
    if models:
        yield "model", ", ".join(models)
    own = {k: v for k, v in study.user_attrs.items() if not k.startswith("llmopt:")}
    for name, value in list(own.items())[:_HINTS]:
        yield clean(name)[:80], text_of(value, 400)
