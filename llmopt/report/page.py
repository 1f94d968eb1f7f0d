"""The page of a search: one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from llmopt._version import __version__
from llmopt.errors import LLMOptError, StorageError
from llmopt.history import Trial, Usage
from llmopt.report import charts
from llmopt.report.data import GIVEN, UNFINISHED, SearchData, value_text
from llmopt.report.importance import importance, left_out
from llmopt.report.scales import number_text
from llmopt.report.sources import read_search
from llmopt.util.files import check_folder, write_text_atomically
from llmopt.util.text import clean, cut, ended, short

_MOST_TRIALS = 1000  # that are listed one by one
_MOST_WORDS = 1_500_000  # characters of what was said, in all trials together
_LONGEST, _SHORTEST = 6000, 300  # characters of one text, as far as `_MOST_WORDS` allows
_MOST_CELLS = 60_000  # values of parameters, in all trials together
_SUMMARY = 6  # parameters in the line of a trial, which is as wide as the page leaves it
_REASON = 90  # characters of the reason of a failure there
_MANY, _MOST_OF_MANY = 4, 300  # objectives, and trials of so many, of which a hypervolume is drawn

SOURCES = {
    "llm": "the model",
    "warmup": "warm-up, before the first request",
    "fallback": "random, where the model did not deliver",
    "drawn": "sampled by the prompt",
    "cma": "CMA-ES",
    "network": "the small network",
    "sampler": "a sampler of Optuna",
    "user": "given by the user",
}
"""Who proposes points, in words: what the page says once of the names that its rows have."""

_PROPOSED = {
    "warmup": "a warm-up point",
    "fallback": "a random point where the model did not deliver",
    "drawn": "sampled by the prompt",
    "user": "given by the user",
}
"""How the others of `SOURCES` gave a point."""


def write_report(
    source: Any,
    path: str | os.PathLike[str] = "report.html",
    *,
    title: str = "",
    study_name: str | None = None,
) -> Path:
    """Write the report of a search as one HTML file, and return its path.

    Args:
        source: The search; see `llmopt.report.read_search`.
        path: The file. An existing file is replaced.
        title: The page's title; by default the name of the file, the study or the environment.
        study_name: Which study of an Optuna storage.

    Raises:
        StorageError: The search cannot be read, or the file cannot be written.
        TypeError: `source` is not a search.
    """
    path = Path(path).expanduser() if isinstance(path, str | os.PathLike) else _no_path(path)
    check_page(path)
    page = report_page(source, title=title, study_name=study_name)
    write_text_atomically(path, page)
    return path


def _no_path(path: object) -> NoReturn:
    raise TypeError(f"report({short(path)}): expected the path of a page, such as 'report.html'")


def check_page(path: Path) -> None:
    """Raise an error unless a path ends in ``.html``."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise StorageError(
            f"cannot write {path}: a report is a page in HTML, so give a name that ends in .html"
        )
    check_folder(path)


def report_page(source: Any, *, title: str = "", study_name: str | None = None) -> str:
    """Return the report of a search as HTML; see `write_report`."""
    data = read_search(source, study_name)
    if title:
        data = replace(data, title=clean(title))
    important, unknown = _importances(data)
    order = _order(data, important)
    listed = _listed(data)
    page = environment("llmopt.report").get_template("page.html.j2")
    return clean(
        page.render(
            data=data,
            title=cut(data.title, 120),
            version=__version__,
            summary=_summary(data),
            tiles=_tiles(data),
            best=_best(data),
            proposers=_proposers(data),
            history=[charts.history_chart(data, k) for k in _objectives(data)],
            signs=_signs(data),
            outside=[charts.outside(data, k) for k in range(len(data.directions))],
            rivals=charts.rivals_chart(data) if data.rivals and data.done else None,
            important=important,
            unknown=unknown,
            skipped=left_out(data) if important else "",
            parallel=charts.parallel_chart(data, order) if len(data.done) > 1 and order else None,
            slices=_slices(data, order),
            most_parameters=charts.MOST_PARAMETERS,
            fronts=_fronts(data),
            curves=charts.curves_chart(data) if data.curves else None,
            trials=_entries(data, listed),
            unfinished=UNFINISHED,
            listed=listed,
            ended=ending(data),
            spent=_spent(data.usage),
            value_text=value_text,
        )
    )


def environment(package: str) -> Environment:
    """Return the environment of a page's template, which escapes all values."""
    found = Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["sha256"] = _sha256
    found.filters["breakable"] = charts.breakable
    return found


def _sha256(text: str) -> str:
    """Return what a content security policy names a script by."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# -- the head of the page -------------------------------------------------------------------


def _objectives(data: SearchData) -> range:
    return range(len(data.directions) if data.done or data.history.failed else 0)


def _counted(count: int, one: str) -> str:
    return f"{count:,} {one}" + "s" * (count != 1)


def _summary(data: SearchData) -> str:
    """Return what came out, and why the search ended, in a few sentences."""
    count = data.count
    goal = " and ".join(
        f"{'the largest' if d == 'maximize' else 'the smallest'} {cut(name, 60)}"
        for name, d in zip(data.objectives, data.directions, strict=True)
    )
    said = f"{_counted(count, 'trial')} of {_counted(len(data.parameters), 'parameter')}, "
    said += f"in search of {goal}."
    if data.front:
        said += f" {_counted(len(data.front), 'trial')} on the Pareto front."
    elif data.none_feasible:
        said += " No trial is feasible yet."
    elif data.best is not None and data.best.rewards:
        best = data.best
        said += (
            f" The best is {number_text(data.best.rewards[0])} of #{data.shown_number(best.number)}"
        )
        who = f"proposed by {SOURCES.get(best.source, best.source)}"
        said += f", {_PROPOSED.get(best.source, who)}."
    elif count:
        said += " No trial gave a result."
    return said


def ending(data: SearchData) -> str:
    """Return why the search ended, if known."""
    count = len(data.unfinished)
    if data.ended:
        verb = "has" if count == 1 else "have"
        left = f" {_counted(count, 'point')} {verb} no result: see the trials." if count else ""
        return f"{ended(data.ended) if left else data.ended}{left}"
    if count:
        running = f"{_counted(count, 'point')} {'is' if count == 1 else 'are'} being evaluated"
        if data.resume:
            killed = "its process was killed" if count == 1 else "their process was killed"
            return f"No end is recorded: {running}, or {killed}. {data.resume}"
        return f"It has not: {running}."
    if data.planned is not None and len(data.trials) >= data.planned:
        return f"All planned trials were evaluated: {len(data.trials):,}."
    if data.planned is not None:
        return f"No end is recorded: {len(data.trials):,} of {data.planned:,} planned trials."
    return f"No end is recorded after {_counted(len(data.trials), 'trial')}."


def _signs(data: SearchData) -> dict[str, str]:
    """Return what the signs in the charts mean, by their classes: those that the search needs."""
    violating = f"infeasible, a constraint is violated ({len(data.infeasible):,})"
    objectives = range(len(data.directions))
    signs = {
        "ring": _ring(data, "on the Pareto front", "the best") if data.ringed else "",
        "broken": violating if data.infeasible else "",
        "beyond": "beyond the axis" if any(charts.outside(data, k) for k in objectives) else "",
        "failed": "failed" if data.history.failed else "",
    }
    return {sign: text for sign, text in signs.items() if text}


def _tiles(data: SearchData) -> list[tuple[str, str, str]]:
    """Return the few numbers at the head of the page: a name, a number, a remark."""
    usage, tiles = data.usage or Usage(), []
    if len(data.directions) == 1:
        best = data.best
        value = number_text(best.rewards[0]) if best is not None and best.rewards else "–"
        remark = f"#{data.shown_number(best.number)} of {data.count:,}" if best else "no result"
        remark += ", infeasible" if best and data.none_feasible else ""
        tiles.append((f"best {cut(data.objectives[0], 40)}", value, remark))
    else:
        tiles.append(("Pareto front", f"{len(data.front):,}", f"of {data.count:,} trials"))
    states: Counter[str] = Counter(t.state for t in data.trials)
    states[UNFINISHED] = len(data.unfinished)
    kinds = ("complete", "failed", "pruned", UNFINISHED)
    remark = ", ".join(f"{states[s]:,} {s}" for s in kinds if states[s])
    remark = remark if states["complete"] < data.count else "none failed"
    tiles.append(("trials", f"{data.count:,}", remark))
    if usage.requests:
        failed = f"{usage.failed_requests:,} failed" if usage.failed_requests else "to the model"
        tiles.append(("requests", f"{usage.requests:,}", failed))
    tokens = usage.prompt_tokens + usage.completion_tokens
    if tokens:
        remark = f"{usage.prompt_tokens:,} in, {usage.completion_tokens:,} out"
        tiles.append(("tokens", f"{tokens:,}", remark))
        cost = "not known" if usage.cost is None else f"${usage.cost:.4f}" if usage.cost else "free"
        remark = "a price is missing" if usage.cost is None else "by the price list"
        tiles.append(("cost", cost, remark if usage.cost != 0 else "or without a price"))
    if usage.proposals.get("llm") or usage.fallbacks:
        share = f"{100 * usage.fallback_share:.0f} %"
        tiles.append(("fallbacks", f"{usage.fallbacks:,}", f"{share} of the model's points"))
    return tiles


def _spent(usage: Usage | None) -> list[tuple[str, str]]:
    """Return what the search spent, a line for each fact."""
    if usage is None:
        return []
    rejected = ", ".join(f"{count:,} {reason}" for reason, count in usage.rejected.items())
    amounts = {
        "requests": usage.requests,
        "failed requests": usage.failed_requests,
        "requests with estimated tokens or cost": usage.estimated,
        "requests that may be charged and are not in the cost": usage.unpriced,
        "prompt tokens": usage.prompt_tokens,
        "of them from a cache": usage.cached_tokens,
        "answer tokens": usage.completion_tokens,
    }
    found = [(name, f"{amount:,}") for name, amount in amounts.items() if amount]
    if usage.seconds:
        found.append(("seconds waited for the model", f"{usage.seconds:,.0f}"))
    if usage.blocks:
        amount = f"{usage.blocks:,}, {usage.compute_seconds:,.0f} s, {usage.block_tokens:,} tokens"
        found.append(("blocks of Python", amount))
    if usage.cost or usage.cost is None:
        cost = "not known" if usage.cost is None else f"${usage.cost:.6f}"
        found.append(("cost", cost))
    return [*found, ("answers not used", clean(rejected))] if rejected else found


def _best(data: SearchData) -> list[tuple[str, str, str]]:
    """Return the parameters of the best trial: name, value, where it lies in its range."""
    if data.best is None:
        return []
    rows = []
    for parameter in data.parameters[:200]:
        if parameter.name not in data.best.params:
            continue
        share = parameter.share(data.best.params[parameter.name])
        edge = ""
        if share is not None and not parameter.scale.choices and not 0.001 < share < 0.999:
            edge = "the lowest value allowed" if share < 0.5 else "the highest value allowed"
        value = value_text(data.best.params[parameter.name])
        rows.append((cut(parameter.name, 80), value, edge or cut(parameter.range, 120)))
    return rows


def _proposers(data: SearchData) -> list[dict[str, Any]]:
    """Return a row for each source of points."""
    rows, points = [], (*data.trials, *data.unfinished)
    for source in dict.fromkeys([*SOURCES, *(t.source for t in points)]):
        own = [t for t in points if t.source == source]
        if not own:
            continue
        done = [t for t in own if t.state == "complete" and t.rewards]
        best = None if data.several else min(done, key=data.history.rank, default=None)
        improved = len({t.number for t in own} & data.leading)
        rows.append(
            {
                "source": source,
                "name": SOURCES.get(source, source),
                "points": len(own),
                "failed": sum(t.state == "failed" for t in own),
                "improved": improved,
                "best": number_text(best.rewards[0]) if best and best.rewards else "–",
            }
        )
    return rows


# -- parameters -----------------------------------------------------------------------------


def _importances(data: SearchData) -> tuple[list[dict[str, Any]], str]:
    """Return the importances of each objective, and why there are none."""
    if not data.parameters or not data.done:
        return [], ""
    found = []
    try:
        for k, name in enumerate(data.objectives):
            by_kind = importance(data, k)
            names = next(iter(by_kind.values()))
            rows = [(n, [(kind, v.get(n, 0.0)) for kind, v in by_kind.items()]) for n in names]
            found.append({"objective": name, "kinds": list(by_kind), "rows": rows[:20]})
    except (ImportError, LLMOptError, ValueError, RuntimeError) as error:
        return [], clean(error)
    return found, ""


def _order(data: SearchData, important: Sequence[dict[str, Any]]) -> list[int]:
    """Return the indices of the shown parameters, the most important first."""
    first = [name for name, _ in important[0]["rows"]] if important else []
    places = {p.name: i for i, p in enumerate(data.parameters)}
    order = [places[name] for name in first if name in places]
    order += [i for i in range(len(data.parameters)) if i not in set(order)]
    return order[: charts.MOST_PARAMETERS]


def _slices(data: SearchData, order: Sequence[int]) -> list[tuple[str, list[Markup]]]:
    names = data.objectives if data.done else ()
    return [(n, [charts.slice_chart(data, i, k) for i in order]) for k, n in enumerate(names)]


def _fronts(data: SearchData) -> list[tuple[Markup, str]]:
    pairs = list(combinations(range(len(data.directions)), 2))[:6]
    found = [charts.pareto_chart(data, *pair) for pair in pairs if data.done]
    small = len(data.directions) < _MANY or len(data.done) <= _MOST_OF_MANY
    return [*found, charts.volume_chart(data)] if data.front and small else found


# -- trials ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listed:
    """The listed trials, and the limits of their texts and values."""

    trials: tuple[Trial[Any], ...]
    words: int  # characters of one text
    cells: int  # parameters of one trial
    cut: bool  # whether a text is longer than that


def _listed(data: SearchData) -> Listed:
    numbers = [t.number for t in data.trials]
    most = _MOST_TRIALS if len(numbers) <= _MOST_TRIALS else _MOST_TRIALS * 9 // 10
    shown = charts.thinned(numbers, sorted(data.leading), most)
    trials = tuple(t for t in data.trials if t.number in shown)
    count = max(len(trials), 1)
    words = max(_SHORTEST, min(_LONGEST, _MOST_WORDS // count))
    long = any(len(t.feedback) > words or len(t.explanation) > words for t in trials)
    return Listed(trials, words, max(10, min(200, _MOST_CELLS // count)), long)


def _entries(data: SearchData, listed: Listed) -> list[dict[str, Any]]:
    """Return what the page shows of each trial that is listed."""
    places = {t.number: place for place, t in enumerate(data.history.ranked)}
    rows = sorted((*listed.trials, *data.unfinished), key=lambda t: t.number)
    return [
        {**_entry(data, t, listed), "rank": places.get(t.number, len(data.trials))} for t in rows
    ]


def _entry(data: SearchData, trial: Trial[Any], listed: Listed) -> dict[str, Any]:
    """Return what the page shows of one trial."""
    notes = data.notes(trial)
    start = data.start_of(notes)
    changed = _changes(trial, start)
    pairs = [(name, value_text(v)) for name, v in trial.params.items()]
    firsts = [(n, v) for n, v in pairs if n in changed] or pairs
    more = len(firsts) - _SUMMARY
    line = ", ".join(f"{cut(n, 24)} {cut(v, 24)}" for n, v in firsts[:_SUMMARY])
    line = f"{line}, {more} more" if more > 0 else line
    if trial.state == "failed" and (reason := trial.feedback.strip().partition("\n")[0]):
        line = f"{cut(reason, _REASON).rstrip('.')} – {line}"
    return {
        "number": trial.number,
        "label": _label(data, trial),
        "source": trial.source,
        "state": trial.state,
        "kind": trial.kind,
        "leading": trial.number in data.leading,
        "best": data.best is not None and data.best.number == trial.number,
        "tags": _tags(data, trial),
        "results": _results(data, trial),
        "line": line,
        "params": pairs[: listed.cells],
        "more": max(0, len(pairs) - listed.cells),
        "said": _said(data, trial, listed),
        "outcome": _outcome(data, trial, start),
        "feedback": cut(trial.feedback, listed.words),
        "changed": [(n, value_text(a), value_text(b)) for n, (a, b) in changed.items()][:20],
        "start": "" if start is None else f"#{data.shown_number(start.number)}",
    }


def _label(data: SearchData, trial: Trial[Any]) -> str:
    """Return the number of a trial; a point without a result has one in studies only."""
    if trial.state == UNFINISHED and data.numbered:
        return "–"
    return f"#{data.shown_number(trial.number)}"


def _tags(data: SearchData, trial: Trial[Any]) -> list[tuple[str, str]]:
    """Return the signs of a trial in the charts, with a word for each."""
    ring = _ring(data, "on the front", "best")
    signs = (("ring", ring, data.ringed), ("broken", "infeasible", data.infeasible))
    return [(sign, word) for sign, word, numbers in signs if trial.number in numbers]


def _ring(data: SearchData, front: str, best: str) -> str:
    """Return what a ring means: the Pareto front, the best, or what is nearest to feasible."""
    return front if data.several else "least violation" if data.none_feasible else best


def _results(data: SearchData, trial: Trial[Any]) -> list[tuple[str, str]]:
    """Return the rewards of a trial, each with the name of its objective."""
    values = [number_text(value) for value in trial.rewards or ()]
    return list(zip((cut(name, 24) for name in data.objectives), values, strict=False))


def _said(data: SearchData, trial: Trial[Any], listed: Listed) -> list[tuple[str, str]]:
    notes = data.notes(trial)
    said = [
        ("Lesson from the results before", notes.lesson),
        ("Words of the user" if trial.source in GIVEN else "Analysis", notes.analysis),
        ("Hypothesis", notes.hypothesis),
        ("Left out", notes.dropped),
    ]
    if data.start_of(notes) is None and notes.start is not None:
        start = f"#{notes.start}" if isinstance(notes.start, int) else notes.start
        said.append(("Start from", data.words(trial, start)))
    return [(name, cut(text, listed.words)) for name, text in said if text]


def _changes(trial: Trial[Any], start: Trial[Any] | None) -> dict[str, tuple[Any, Any]]:
    """Return what a trial changes of the one that the model started from."""
    if start is None:
        return {}
    names = dict.fromkeys([*trial.params, *start.params])
    pairs = {n: (start.params.get(n, "–"), trial.params.get(n, "–")) for n in names}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


def _outcome(data: SearchData, trial: Trial[Any], start: Trial[Any] | None) -> list[str]:
    """Return the outcome of a trial, in sentences."""
    if trial.state == UNFINISHED:
        return ["No result: the evaluation is running, was killed, or was never reported."]
    if trial.rewards is None:
        return ["The evaluation failed."]
    errors = f" ± {number_text(trial.stderr, 3)}" if trial.stderr else ""
    found = [
        f"{cut(name, 60)} {number_text(value, 8)}{errors * (k == 0)}"
        for k, (name, value) in enumerate(zip(data.objectives, trial.rewards, strict=False))
    ]
    if trial.state == "pruned":
        found[0] += " when it was pruned"
    if start is not None and start.rewards and len(data.directions) == 1:
        change = trial.rewards[0] - start.rewards[0]
        better = change > 0 if data.directions[0] == "maximize" else change < 0
        word = "the same as" if not change else "better than" if better else "worse than"
        size = f"{number_text(abs(change), 4)} " if change else ""
        found.append(f"{size}{word} #{data.shown_number(start.number)}, from which it was made")
    if trial.samples:
        low, high = min(trial.samples), max(trial.samples)
        found.append(
            f"{_counted(len(trial.samples), 'sample')} from {number_text(low)} to "
            f"{number_text(high)}"
        )
    if trial.constraint_violation > 0:
        found.append(f"constraints violated by {number_text(trial.constraint_violation)}")
    if trial.clipped:
        found.append("a value was proposed outside its range and moved into it")
    tokens = trial.prompt_tokens + trial.completion_tokens
    if tokens:
        found.append(f"{tokens:,.0f} tokens, {trial.seconds:.1f} s of the model")
    return found
