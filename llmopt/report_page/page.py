"""The page of a search: one self-contained HTML file.

The page is made of public data: the study that `to_optuna` returns, whose attributes hold the
words of model and user, and beside it usage and blocks of Python.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from llmopt._version import __version__
from llmopt.changes import NONE, Change
from llmopt.errors import StorageError
from llmopt.from_optuna import (
    ABOUT,
    PROPOSAL,
    calls_of,
    for_readers,
    mapping_of,
    note_of,
    number_of,
    parts_of,
    read_named,
    stderr_of,
    text_of,
    told_of,
    violated,
    violations_in_words,
)
from llmopt.history import Proposal, Usage, each_error
from llmopt.prompt.answer_parts import notes_of
from llmopt.report_page.figures import (
    LEAST_IMPORTANCE,
    figures_of,
    objectives_of,
    plotly_script,
)
from llmopt.space import Space
from llmopt.space.fixed import Fixed
from llmopt.to_optuna import PREFIX
from llmopt.util.files import check_folder, write_text_atomically
from llmopt.util.text import clean, cut, ended, short

if TYPE_CHECKING:
    from optuna import Study

_MOST_TRIALS = 500  # that are listed
_MOST_CHANGES = 200  # that are listed
_MOST_QUEUED = 100  # points that are listed, and parameters of each
_MOST_WORDS = 250_000  # characters of the words of trials, of the blocks, and of parameters, each
_LONGEST, _SHORTEST = 6000, 200  # characters of one text
SOURCES = {
    "llm": "the model",
    "warmup": "the warm-up",
    "fallback": "random, in place of the model",
    "drawn": "sampled by the prompt",
    "cma": "CMA-ES",
    "network": "the small network",
    "sampler": "a sampler of Optuna",
    "user": "the user",
}
"""Who proposes points, in words."""

_MARK = "\u27e6Plotly\u27e7"
_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
NO_RESULT = "no result"
"""The state of a point that waits for its result."""


def write_page(
    search: Any,
    path: str | os.PathLike[str] = "report.html",
    *,
    title: str = "",
    reference: Sequence[float] | Mapping[str, float] | None = None,
) -> Path:
    """Write the page of a search, and return its path.

    Args:
        search: An Optuna study, or a search with `to_optuna`.
        path: The file. An existing file is replaced.
        title: The page's title; by default the name of the study.
        reference: Reference point of the hypervolume of several objectives, a number for each.

    Raises:
        ImportError: Optuna or Plotly is not installed.
        StorageError: The file cannot be written.
        TypeError: `path` is no path.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"report({short(path)}): expected the path of a page, as 'report.html'")
    path = Path(path).expanduser()
    check_page(path)
    write_text_atomically(path, page(search, title=title, reference=reference))
    return path


def check_page(path: Path) -> None:
    """Raise an error unless a path ends in ``.html``."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise StorageError(
            f"cannot write {path}: a report is a page in HTML, so give a name that ends in .html"
        )
    check_folder(path)


def environment(package: str) -> Environment:
    """Return the environment of a page's template, which escapes all values."""
    made = Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["sha256"] = lambda text: base64.b64encode(
        hashlib.sha256(text.encode()).digest()
    ).decode()  # what a content security policy names a script by
    return made


def page(
    search: Any,
    *,
    title: str = "",
    reference: Sequence[float] | Mapping[str, float] | None = None,
) -> str:
    """Return the page of a search as HTML; see `write_page`."""
    plotly = plotly_script()
    study = search.to_optuna() if hasattr(search, "to_optuna") else search
    own = getattr(search, "optimizer", search)
    trials = [
        t for t in study.get_trials(deepcopy=False) if note_of(t.user_attrs, "source") != "stopped"
    ]
    numbered = any(PREFIX + "label" in t.user_attrs for t in trials)
    leading = _leading(own, study)
    usage = getattr(own, "usage", None) or _usage_of(study)
    wishes: Collection[str] = getattr(own, "wishes", ())
    labels = _labels(own)
    rows = list(_rows(study, trials, numbered, leading, wishes, labels))
    waiting, changes = getattr(own, "queued_proposals", ()), getattr(own, "changes", ())
    blocks = _placed(getattr(own, "blocks", ()), own, len(trials))
    unnamed = study.study_name.startswith("no-name-")
    storage = getattr(study, "_study", study)._storage
    facts = mapping_of(storage.get_study_system_attrs(study._study_id).get(ABOUT))
    facts = {**facts, **dict([*study.user_attrs.items()][:20])}
    about = {k.removeprefix(PREFIX): text_of(v) for k, v in facts.items()}
    description, outcome = about.pop("description", ""), about.pop("outcome", "")
    about.pop("ended", "")
    made = clean(
        environment(__package__)
        .get_template("page.html.j2")
        .render(
            title=cut(clean(title or ("Optuna study" if unnamed else study.study_name)), 120),
            version=__version__,
            summary=_summary(study, rows, trials, len(waiting)),
            outcome=outcome,
            ended=clean(_ended(search, own, study)),
            advice=clean(getattr(own, "advice", "")),
            figures=figures_of(study, numbered=numbered, reference=reference, labels=labels),
            objectives=objectives_of(study),
            rows=rows,
            changes=[_change(own, change, labels) for change in changes[-_MOST_CHANGES:]],
            more_changes=max(0, len(changes) - _MOST_CHANGES),
            queued=[_queued(own, point, labels) for point in waiting[:_MOST_QUEUED]],
            numbered=numbered,
            blocks=blocks,
            after=blocks.get(len(trials), ()),
            count=len(trials),
            few=LEAST_IMPORTANCE
            * (sum(_state_of(t) == "complete" for t in trials) < LEAST_IMPORTANCE),
            best=[row for row in rows if row["leads"]][:20],
            ranges=[*_ranges(study, own, labels), *_candidates(own)],
            usage=_spent(usage),
            sources=[(row, n) for row, n in Counter(filter(None, map(_who, trials))).most_common()],
            rejected=[(clean(reason), n) for reason, n in usage.rejected.items()],
            about=about,
            description=description,
            plotly=plotly,
            mark=_MARK,
        )
    )
    before, _, after = made.rpartition(_MARK)
    return before + plotly + after  # not cleaned: its hash is in the page's policy


def _leading(own: Any, study: Study) -> set[int]:
    """Return the numbers of the best trial, or of the Pareto front, as the search defines it."""
    if hasattr(own, "history"):
        history = own.history
        best = history.pareto_front if len(study.directions) > 1 else [history.best]
        return {t.number for t in best if t is not None}
    try:
        return {t.number for t in study.best_trials}
    except (ValueError, RuntimeError):  # none is complete
        return set()


def _usage_of(study: Study) -> Usage:
    """Return the calls that a study's storage holds."""
    storage = getattr(study, "_study", study)._storage
    return calls_of(storage.get_study_system_attrs(study._study_id))


def _source_of(trial: Any) -> str:
    """Return who proposed a trial's point; nothing as long as there is none."""
    source, fixed = text_of(note_of(trial.user_attrs, "source")), trial.system_attrs
    fixed = fixed["fixed_params"] if isinstance(fixed.get("fixed_params"), Mapping) else {}
    if trial.params and trial.params.keys() <= fixed.keys() and source in ("", "warmup"):
        return "user"
    if source == "fallback" and not (trial.params or mapping_of(trial.system_attrs.get(PROPOSAL))):
        return ""  # its request failed, and nothing was sampled
    return source or ("sampler" if trial.params else "")


def _who(trial: Any) -> str:
    """Return who proposed a trial's point, in words."""
    return SOURCES.get(source := _source_of(trial), source)


def _ended(search: Any, own: Any, study: Study) -> str:
    for each in (search, own):
        if said := getattr(each, "stopped", ""):
            return str(said)
    for trial in study.get_trials(deepcopy=False):
        if note_of(trial.user_attrs, "source") == "stopped":
            return for_readers(text_of(note_of(trial.user_attrs, "explanation")), {})
    return text_of(study.user_attrs.get(PREFIX + "ended"))


def _summary(
    study: Study, rows: Sequence[Mapping[str, Any]], trials: Sequence[Any], queued: int
) -> str:
    goals = [
        f"{cut(name, 60)} ({d.name.lower().removesuffix('e')}ed)"
        for name, d in zip(objectives_of(study), study.directions, strict=True)
    ]
    # As `status` counts them: each measurement of a point, and those that happened.
    states, broken = Counter[str](), 0
    for trial in trials:
        n, wrong = (note_of(trial.user_attrs, name) for name in ("evaluations", "infeasible"))
        states[_state_of(trial)] += n if isinstance(n, int) else 1
        if _state_of(trial) == "complete":
            broken += wrong if isinstance(wrong, int) else bool(violated(trial))
    note = {"complete": f" ({broken:,} infeasible)" if broken else ""}
    each = {state: f"{n:,} {state}{note.get(state, '')}" for state, n in states.items() if n}
    beside = [each.pop(state) for state in ("withdrawn", NO_RESULT) if state in each]
    done = [t for t in trials if _state_of(t) in each]
    count = sum(states[state] for state in each)
    points = f" of {len(done):,} points" if count != len(done) else ""
    imported = int(sum(number_of(note_of(t.user_attrs, "imported")) or 0 for t in done))
    points += f" ({imported:,} imported)" if imported else ""
    text = f"{' and '.join(goals)}. {count:,} trial{'s' * (count != 1)}{points}: "
    text += ", ".join(each.values()) or "none yet"
    beside = [text.replace(NO_RESULT, "without a result") for text in beside]
    beside += [f"{queued:,} queued"] if queued else []
    text += f" (not counted: {', '.join(beside)})." if beside else "."
    leads = [row for row in rows if row["leads"]]
    if len(study.directions) > 1:
        return f"{text} {len(leads)} on the Pareto front."
    if not leads:
        return text
    who = f" by {leads[0]['who']}" if leads[0]["who"] else ""
    return f"{text} The best is {leads[0]['label']} with {leads[0]['values'][0]}{who}."


def _state_of(trial: Any) -> str:
    if note_of(trial.user_attrs, "withdrawn"):
        return "withdrawn"
    return _STATES.get(trial.state.name, NO_RESULT)


def _rows(
    study: Study,
    trials: Sequence[Any],
    numbered: bool,
    leading: set[int],
    wishes: Collection[str],
    labels: Mapping[str, str],
) -> Iterator[dict[str, Any]]:
    """Yield the listed trials: the best and the latest, if there are very many."""
    latest = {t.number for t in trials[-_MOST_TRIALS:]}
    latest |= leading
    listed = [(i, t) for i, t in enumerate(trials) if t.number in latest]
    words = min(_LONGEST, max(_SHORTEST, _MOST_WORDS // max(1, 3 * len(listed))))
    params = max(1, _MOST_WORDS // max(1, 60 * len(listed)))  # in a trial
    distributions = {n: d for t in trials for n, d in t.distributions.items()}
    for position, trial in listed:
        attrs, state, source = trial.user_attrs, _state_of(trial), _source_of(trial)
        named = read_named(trial.system_attrs)
        explanation, wish = text_of(note_of(attrs, "explanation")), ""
        if explanation.partition("\n")[0] in wishes and source != "user":
            wish, _, explanation = explanation.partition("\n")
        notes = notes_of(explanation)
        start = f"#{notes.start}" if isinstance(notes.start, int) else ""
        wish, analysis = (notes.analysis, "") if source == "user" else (wish, notes.analysis)
        said = {
            "Hypothesis": notes.hypothesis,
            "Lesson": notes.lesson,
            "The user's words": wish,
            "Analysis": analysis,
            "Left out": notes.dropped,
        }
        once = {" ".join(text.split()): name for name, text in reversed(said.items())}
        broken = violated(trial)
        each = note_of(attrs, "measurements")
        each = list(map(text_of, each)) if isinstance(each, list) else []
        facts = each if len(each) > 1 else [*map(text_of, told_of(attrs, "feedback"))]
        facts = [*facts, text_of(note_of(attrs, "error"))]
        facts += [text_of(trial.system_attrs.get("fail_reason"))] if state == "failed" else []
        breach = text_of(note_of(attrs, "violated"))
        breach = f"It {breach}" if breach else violations_in_words(broken)
        facts += [text_of(note_of(attrs, "deviation")), breach]
        waits = state == NO_RESULT
        if waits and trial.datetime_start and not numbered:
            facts.append(f"Running since {trial.datetime_start:%Y-%m-%d %H:%M:%S}.")
        facts = [*filter(None, facts)]
        if len(facts) > 1:
            facts = [*map(ended, facts)]  # the summary shows them on one line
        values = [f"{v:.6g}" for v in trial.values or ()] if state != "failed" else []
        before, chains = note_of(attrs, "old_values"), note_of(attrs, "corrections")
        old = list(map(_numbers, before)) if isinstance(before, list) else []
        change = ": " + "; ".join(map(text_of, chains)) if isinstance(chains, list) else ""
        asked, n = note_of(attrs, "instead_of"), len(study.directions)
        errors = each_error(stderr_of(attrs, n), n)
        for i, error in enumerate(errors if values else ()):
            if error and note_of(attrs, "evaluations"):  # a mean, to two digits of its error
                values[i] = f"{round(trial.values[i], 1 - math.floor(math.log10(error))):.6g}"
        asked = asked.items() if isinstance(asked, dict) else ()
        asked = [(n, v) for n, v in asked if n not in trial.params or trial.params[n] != v]
        point = trial.params or _proposed(trial, distributions)
        feedback = cut("\n".join(facts), words)
        label = f"#{trial.number + 1}" if numbered else f"trial {trial.number}"
        points = text_of(note_of(attrs, "points"), 200)
        yield {
            "number": trial.number,
            "position": position,
            "label": label if not points else points if waits else f"{label} ({points})",
            "points": points,
            "state": state,
            "leads": trial.number in leading,
            "values": (old or [[]])[-1] if state == "withdrawn" else values,
            "errors": ["" if error is None else f"± {error:.2g}" for error in errors],
            "parts": _parts(attrs),
            "corrected": bool(note_of(attrs, "corrected")) * cut(f"corrected{change}", 400),
            "imported": bool(note_of(attrs, "imported")),
            "outside": note_of(attrs, "outside") is True,
            "instead_of": [_shown(labels.get(n, n), v) for n, v in asked[:params]],
            "evaluations": note_of(attrs, "evaluations") or 1,
            "measurements": ", ".join(line.partition(":")[0] for line in each),
            "infeasible": bool(broken),
            "source": source,
            "who": _who(trial),
            "said": [
                (name, cut(text if numbered else for_readers(text, named), words))
                for name, text in said.items()
                if text and once[" ".join(text.split())] == name
            ],
            "start": start if numbered else for_readers(start, named),
            "params": [
                _shown(labels.get(n, n), v) for n, v in itertools.islice(point.items(), params)
            ],
            "more": max(0, len(point) - params),
            "feedback": feedback,
            "seen": "" if state == "withdrawn" or any(said.values()) else feedback,
            "old_feedback": cut(text_of(note_of(attrs, "old_feedback")), words),
            "code": cut(text_of(note_of(attrs, "code")), 2 * words),
        }


def _queued(own: Any, point: Proposal | Fixed, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return a point that waits for a later `ask`, and why the next one passes over it."""
    if isinstance(point, Fixed):
        source, words, given = "user", point.words, point.named()
    else:
        source, words, given = point.source, point.explanation, own.space.named(point.values)
    given, notes = own.space.with_names(given), notes_of(words)
    return {
        "who": SOURCES.get(source, source),
        "words": cut(notes.hypothesis or notes.analysis, _LONGEST),
        "params": [_shown(labels.get(n, n), v) for n, v in [*given.items()][:_MOST_QUEUED]],
        "waits": cut(own.obstacle(point), _LONGEST),
    }


def _change(own: Any, change: Change, labels: Mapping[str, str]) -> tuple[str, str]:
    """Return what was changed, and from what to what."""
    of = change.of
    if isinstance(of, int):
        label, asked = own.history.label(of), own.trials[of].asked
        names = [f"p{asked}"] if asked else []
        names += [f"trial {of + 1}"] if label != f"#{of + 1}" else []
        of = f"{label} ({', '.join(names)})" if names else label

    texts = []
    for kind, name, *pair in change.fields:
        name = labels.get(name, name) if kind == "parameter" else name
        marks = "“{}”" if kind == "feedback" else "{}"
        shown = [t if t == NONE else marks.format(cut(" ".join(t.split()), 120)) for t in pair]
        texts.append(f"{name} {' → '.join(shown)}".lstrip())
    words = " ".join(change.words.split())
    return of, cut(clean("; ".join(filter(None, [", ".join(texts), words])) or "corrected"), 600)


def _parts(attrs: Mapping[str, Any]) -> str:
    """Return the numbers beside a reward, as prompts show them."""
    of, counts = note_of(attrs, "evaluations"), mapping_of(note_of(attrs, "part_counts"))
    some = {k: f" ({n} of {of})" for k, n in counts.items() if isinstance(n, int)}
    return ", ".join(f"{k} {v:.6g}{some.get(k, '')}" for k, v in parts_of(attrs).items())


def _numbers(given: Any) -> list[str]:
    """Return the numbers of a list, as the page shows them."""
    listed = given if isinstance(given, list) else []
    return [f"{v:.6g}" for v in map(number_of, listed) if v is not None]


def _proposed(trial: Any, distributions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the point that a trial was to evaluate which ended before its first suggestion."""
    point: dict[str, Any] = {}
    for name, code in mapping_of(trial.system_attrs.get(PROPOSAL)).items():
        with contextlib.suppress(KeyError, ValueError, TypeError, IndexError):
            point[name] = distributions[name].to_external_repr(code)
    return point


def _shown(name: str, value: Any) -> tuple[str, str]:
    """Return a parameter and its value as text."""
    text = f"{value:.6g}" if isinstance(value, float) else cut(clean(value), 200)
    return cut(clean(name), 80), text


def _placed(blocks: Sequence[Any], own: Any, count: int) -> dict[int, list[dict[str, Any]]]:
    """Return the model's blocks of Python by the position of the trial that they precede."""
    trials = list(getattr(own, "trials", ()))
    merged = len(trials) > count
    most = min(_LONGEST, max(_SHORTEST, _MOST_WORDS // max(1, 2 * len(blocks))))
    placed: dict[int, list[dict[str, Any]]] = {}
    for block in blocks:
        led = block.trials
        while led < len(trials) and _is_given(trials[led]):
            led += 1
        before = trials[:led]
        keys = {t.values if t.state == "complete" else t.number for t in before} if merged else ()
        place = min(len(keys) if merged else len(before), count)
        text = {"code": cut(block.code.strip(), most), "output": cut(block.output.strip(), most)}
        facts = {"seconds": f"{block.seconds:.1f} s", "failed": block.failed}
        placed.setdefault(place, []).append({**text, **facts})
    return placed


def _is_given(trial: Any) -> bool:
    """Whether a trial was recorded without being asked for."""
    kind, source = getattr(trial, "kind", ""), getattr(trial, "origin", trial.source)
    return kind == "imported" or source == "user"


def _labels(own: Any) -> dict[str, str]:
    """Return the names of the parameters that have a unit, with it, unless the name says it."""
    units = {n: getattr(d, "unit", "") for n, d in _dimensions(own).items()}

    def said(name: str, unit: str) -> bool:
        return re.search(rf"(?<![^\W_]){re.escape(unit)}(?![^\W_])", name) is not None

    return {n: f"{n} ({unit})" for n, unit in units.items() if unit and not said(n, unit)}


def _dimensions(own: Any) -> dict[str, Any]:
    """Return the parameters of a search, by name; nothing of an Optuna study."""
    space = getattr(own, "space", None)
    pairs = zip(space.names, space.dimensions, strict=True) if isinstance(space, Space) else ()
    return dict(pairs)


def _ranges(study: Study, own: Any, labels: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the parameters with their ranges, as the last trial that has them states them.

    Those of a search hold for its proposals: a measured value may lie beyond.
    """
    trials = study.get_trials(deepcopy=False)
    given: dict[str, Any] = {n: d for t in trials for n, d in t.distributions.items()}
    proposed = _dimensions(own)
    if given.keys() <= proposed.keys():  # else its study has other names
        given = proposed
    ranges = []
    for i, (name, d) in enumerate(given.items()):
        if hasattr(d, "choices"):
            text = "one of " + ", ".join(map(str, getattr(d, "labels", d.choices)))
        else:
            text = f"{d.low:.6g} to {d.high:.6g}"
            whole = type(d).__name__.startswith("Int")
            if d.step and not (whole and d.step == 1):
                text += f", step {d.step:.6g}"
            text += ", whole numbers" * (whole and d.step == 1) + ", log scale" * d.log
        when = own.space.condition(i) if given is proposed else ""
        ranges.append((labels.get(name, name), text + f", {when}" * bool(when)))
    return [(cut(clean(n), 80), cut(clean(text), 200)) for n, text in ranges[:200]]


def _candidates(own: Any) -> list[tuple[str, str]]:
    """Return the table of the points that exist in words, if a search has one."""
    table = getattr(getattr(own, "space", None), "candidates", None)
    if table is None:
        return []
    there = "columns" in vars(table)
    text = table.words(own.space.names) if there else f"{table.size:,} rows of a table"
    return [("candidates", cut(clean(text), _LONGEST))]


def _spent(usage: Usage) -> list[tuple[str, str]]:
    """Return what the search spent, a line for each fact."""
    amounts = {
        "requests": usage.requests,
        "failed requests": usage.failed_requests,
        "requests with estimated tokens or cost": usage.estimated,
        "requests that may be charged and are not in the cost": usage.unpriced,
        "prompt tokens": usage.prompt_tokens,
        "prompt tokens from a cache": usage.cached_tokens,
        "completion tokens": usage.completion_tokens,
        "seconds waited for the model": round(usage.seconds),
        "blocks of Python": usage.blocks,
        "seconds of Python": round(usage.compute_seconds),
    }
    rows = [(name, f"{amount:,}") for name, amount in amounts.items() if amount]
    if usage.requests or usage.cost is None or usage.cost:
        rows.append(("cost", "not known" if usage.cost is None else f"${usage.cost:.4f}"))
    return rows
