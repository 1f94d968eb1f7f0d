"""Optuna's Plotly figures of a study, as JSON that a page draws."""

from __future__ import annotations

import ast
import html
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from llmopt.errors import LLMOptError, needs
from llmopt.from_optuna import note_of, text_of, violated
from llmopt.to_optuna import frozen, study_of
from llmopt.util.text import clean, cut, short

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

_MOST = 450_000  # characters of all figures
_HOVERING = 300  # trials of a study whose points say more than their values
_MOST_SLICES = 12  # parameters
_MOST_TICKS = 10  # choices that a panel names, all of them
LEAST_IMPORTANCE = 20  # points: of fewer, chance decides which parameter seems important
_HEIGHT = 360  # pixels
_BLUES, _REDS = ["#b7cce3", "#1f78c8"], ["#f5c3a2", "#d8432a"]  # seen on light and on dark
_INFEASIBLE, _GREY = "#cccccc", "#8a929b"  # Optuna's grey, and one seen on light and on dark
_NUMBER = re.compile(r'"number": (\d+)')
_RED = re.compile(r"rgb\((\d+)")


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        name: Its kind, such as ``"history"``.
        title: What it shows.
        json: Its data and layout, in which no text is HTML.
        width: Pixels that it needs.
    """

    name: str
    title: str
    json: str
    width: int = 0


def plotly_script() -> str:
    """Return Plotly's script.

    Raises:
        ImportError: Plotly is not installed.
    """
    with needs("a report", "plotly", extra="report"):
        from plotly.offline import get_plotlyjs
    return str(get_plotlyjs())


def objectives_of(study: Study) -> tuple[str, ...]:
    """Return what the objectives are called."""
    if study.metric_names:
        return tuple(clean(name) for name in study.metric_names)
    several = len(study.directions) > 1
    return tuple(f"objective {i}" for i in range(1, len(study.directions) + 1)) if several else (
        "objective",
    )  # fmt: skip


def figures_of(
    study: Study,
    *,
    numbered: bool = True,
    reference: Sequence[float] | Mapping[str, float] | None = None,
    labels: Mapping[str, str] | None = None,
) -> list[Figure]:
    """Return the figures that a study has data for, at most 450,000 characters together.

    Args:
        study: The study.
        numbered: Whether trials are shown as ``#n`` from 1, as prompts name them.
        reference: Reference point of the hypervolume: a number for each objective.
        labels: What to call parameters in place of their names.

    Raises:
        LLMOptError: `reference` does not fit the objectives.
    """
    point = None if reference is None else _reference(study, reference)
    plain, left, figures = _plain(study, labels or {}), _MOST, []
    last = len(plain.get_trials(deepcopy=False)) - 1
    many = last >= _HOVERING
    listed = study.get_trials(deepcopy=False)
    points = [html.escape(cut(text_of(note_of(t.user_attrs, "points")), 60)) for t in listed]
    names = [f"#{n}{f' ({p})' * bool(p)}" for n, p in enumerate(points, start=1)]
    for name, title, draw in _kinds(plain, point):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # experimental parts of Optuna
                drawn = draw()
        except Exception:  # a figure is no part of the results: too few trials, no package
            continue
        columns = len(plain_names(plain)[:_MOST_SLICES]) if name in ("slice", "parallel") else 0
        text = _json(drawn, name, names if numbered else [], many, last)
        if len(text) <= left:
            figures.append(Figure(name, title, text, 560 if name == "pareto" else 130 * columns))
            left -= len(text)
    return figures


def _reference(study: Study, reference: Sequence[float] | Mapping[str, float]) -> list[float]:
    names = objectives_of(study)
    given = [reference[n] for n in names if n in reference] if isinstance(
        reference, Mapping
    ) else list(reference)  # fmt: skip
    if len(given) != len(names) or len(names) < 2:
        raise LLMOptError(
            f"reference={short(reference)}: expected a number for each objective of a search of "
            f"several: {', '.join(names)}"
        )
    return [float(value) for value in given]


def plain_names(study: Study) -> list[str]:
    """Return the names of all parameters, in the order in which trials have them."""
    return list(
        dict.fromkeys(name for trial in study.get_trials(deepcopy=False) for name in trial.params)
    )


def _kinds(
    study: Study, reference: list[float] | None
) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Yield the figures: name, title, and what draws it; the most useful first."""
    from optuna import visualization
    from optuna.importance import PedAnovaImportanceEvaluator

    draw: Any = visualization
    complete = sum(t.state.name == "COMPLETE" for t in study.get_trials(deepcopy=False))
    if not complete:
        return
    objectives, parameters = objectives_of(study), plain_names(study)[:_MOST_SLICES]
    targets: list[tuple[str, dict[str, Any]]] = [(objectives[0], {})]
    if len(objectives) > 1:
        targets = [(n, {"target": partial(_value, k)}) for k, n in enumerate(objectives)]
        if len(objectives) < 4:
            yield (
                "pareto",
                "Pareto front",
                lambda: draw.plot_pareto_front(
                    study, target_names=[html.escape(cut(n, 60)) for n in objectives]
                ),
            )
        if reference is not None:
            yield (
                "hypervolume",
                "Hypervolume",
                lambda: draw.plot_hypervolume_history(study, reference),
            )
    for name, target in targets:
        of, shown = (f" of {name}" if target else ""), {"target_name": html.escape(cut(name, 60))}
        yield (
            "history",
            f"History{of}",
            partial(draw.plot_optimization_history, study, **target, **shown),
        )
        if parameters:
            ways = {"params": parameters, **target, **shown}
            if complete >= LEAST_IMPORTANCE:
                own = dict(target)  # low values are good for the evaluator
                if target and study.directions[objectives.index(name)].name == "MAXIMIZE":
                    own["target"] = lambda trial, value=target["target"]: -value(trial)
                evaluator = PedAnovaImportanceEvaluator()
                importance = partial(draw.plot_param_importances, study, evaluator=evaluator)
                title = f"Importance of parameters{of}"
                yield "importance", title, partial(importance, **own, **shown)
            yield "slice", f"Each parameter{of}", partial(_slice, study, ways)
            if len(parameters) > 1:
                together = f"All parameters{of}"
                yield "parallel", together, partial(draw.plot_parallel_coordinate, study, **ways)


def _slice(study: Study, ways: Mapping[str, Any]) -> Any:
    """Return Optuna's figure of each parameter, in which panels of choices omit infeasible trials.

    They are added, as in the other panels, and choices lose the quotes of their `repr`.
    """
    from optuna.visualization import plot_slice

    figure, read = plot_slice(study, **ways), ways.get("target", lambda trial: trial.value)
    broken = [t for t in study.get_trials(deepcopy=False) if t.values and violated(t)]
    panels = [t for t in figure.data if t.name == "Feasible Trial"]
    for name, trace in zip(sorted(ways["params"]), panels, strict=True):
        place = trace.xaxis or "x"
        axis = figure.layout[f"xaxis{place[1:]}"]
        if axis.type != "category":
            continue
        axis.categoryarray = [ast.literal_eval(choice) for choice in axis.categoryarray]
        trace.x = [ast.literal_eval(choice) for choice in trace.x]
        if len(axis.categoryarray) <= _MOST_TICKS:
            axis.dtick = 1  # else a narrow panel names every second one
        if any(t.name == "Infeasible Trial" and (t.xaxis or "x") == place for t in figure.data):
            continue
        there = [t for t in broken if name in t.params]
        figure.add_scatter(
            x=[t.params[name] for t in there],
            y=[read(t) for t in there],
            xaxis=place,
            yaxis=trace.yaxis,
            mode="markers",
            name="Infeasible Trial",
            marker_color=_INFEASIBLE,
        )
    return figure


def _value(objective: int, trial: Any) -> float:
    return float(trial.values[objective])


def _plain(study: Study, labels: Mapping[str, str]) -> Study:
    """Return a copy without attributes, in whose names and choices nothing is HTML."""
    from optuna.distributions import CategoricalDistribution
    from optuna.storages import InMemoryStorage

    class Shared(InMemoryStorage):
        """A storage whose trials nobody changes: figures would copy them for each parameter."""

        def get_all_trials(self, study_id: int, deepcopy: bool = True, states: Any = None) -> Any:
            return super().get_all_trials(study_id, deepcopy=False, states=states)

    names: dict[str, str] = {}
    choices: dict[BaseDistribution, tuple[BaseDistribution, dict[str, str]]] = {}

    def texts(values: Sequence[Any], most: int) -> list[str]:
        shown = [html.escape(cut(clean(v), most)) for v in values]
        return [t if shown.count(t) == 1 else f"{t} ({i})" for i, t in enumerate(shown, start=1)]

    every = plain_names(study)
    names = dict(zip(every, texts([labels.get(n, n) for n in every], 40), strict=True))
    trials = []
    listed, waiting = study.get_trials(deepcopy=False), ("RUNNING", "WAITING")
    while listed and listed[-1].state.name in waiting:  # axes and colours end with the results
        listed = listed[:-1]
    for trial in listed:
        params, distributions = {}, {}
        for name, value in trial.params.items():
            distribution = trial.distributions[name]
            if isinstance(distribution, CategoricalDistribution):
                if distribution not in choices:
                    shown = texts(distribution.choices, 30)
                    mapped = dict(zip(map(repr, distribution.choices), shown, strict=False))
                    choices[distribution] = CategoricalDistribution(shown), mapped
                distribution, mapped = choices[distribution]
                value = mapped[repr(value)]
            params[names[name]], distributions[names[name]] = value, distribution
        values, state = trial.values, trial.state.name
        state = "FAIL" if state in waiting else state
        broken = {html.escape(cut(n, 40)): c for n, c in trial.constraints.items()} or None
        trials.append(frozen(trial.number, state, values, params, distributions, broken))
        trials[-1].user_attrs.clear()
    directions: Any = [d.name.lower() for d in study.directions]
    shown = [html.escape(cut(name, 60)) for name in study.metric_names or ()]
    return study_of("figures", directions, shown, trials, {}, Shared())


def _json(figure: Any, name: str, names: Sequence[str], many: bool, last: int) -> str:
    """Return a figure for the page, whose style sheet gives texts and lines their colours.

    Trials have the `names`, and numbers from 1, if there are any.
    """
    numbered = bool(names)
    figure.update_layout(
        title=None,
        template="none",
        autosize=True,
        height=_HEIGHT,
        width=None,
        margin={"l": 60, "r": 20, "t": 30, "b": 60},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "y": 1.12, "x": 0},
        coloraxis={"colorscale": _BLUES},
        hoverlabel={"bgcolor": "#fff", "font": {"color": "#111"}},
    )
    figure.update_yaxes(automargin=True, title_standoff=10)
    if name == "importance":  # its heading says what it shows
        figure.update_layout(xaxis_title=None, yaxis_title=None)
    if name == "slice":  # columns of 130 pixels
        figure.update_xaxes(automargin=True, title_standoff=10, title_font_size=11)
        figure.for_each_xaxis(lambda axis: axis.title.update(text=cut(axis.title.text or "", 20)))
    grey = [t for t in figure.data if t.marker.color == _INFEASIBLE and t.x]
    for trace in grey:
        trace.marker.update(color=_GREY, symbol="circle-open")
        trace.update(name="Infeasible", showlegend=trace is grey[0])
    for trace in figure.data:
        if many and trace.type == "scatter":
            trace.update(text=None, hovertemplate=None)
        elif numbered and trace.type in ("scatter", "scatter3d") and trace.text is not None:
            texts = trace.text if isinstance(trace.text, tuple | list) else [trace.text]
            trace.text = [
                _NUMBER.sub(lambda m: f'"trial": "{names[int(m[1])]}"', str(t)) for t in texts
            ]
        if numbered and name in ("history", "hypervolume") and trace.x is not None:
            trace.x = [x + 1 for x in trace.x]
        if name == "parallel":
            trace.update(line_color=_visible(trace.line.color), opacity=0.8)
            if (scale := trace.marker.colorscale) is not None:
                trace.marker.colorscale = [[at, _visible(colour)] for at, colour in scale]
        if name in ("slice", "pareto") and trace.marker.colorscale is not None:
            trace.marker.color = [number + numbered for number in trace.marker.color]
            if name == "slice":  # one scale for all columns, as there is one bar
                trace.marker.update(cauto=False, cmin=int(numbered), cmax=last + numbered)
            red = trace.marker.colorbar.title.text == "Best Trial"
            trace.marker.colorscale = _REDS if red else _BLUES
    # No text of it ends the element that holds it.
    return str(figure.to_json()).replace("<", "\\u003c")


def _visible(colour: str | None) -> str | None:
    """Return the colour of `_BLUES` for one of Optuna's scale, which begins with white."""
    red = _RED.match(colour or "")
    if red is None:
        return colour and _GREY
    share = (247 - int(red[1])) / (247 - 8)  # its ends are rgb(247,251,255) and rgb(8,48,107)
    ends = zip(*(bytes.fromhex(end[1:]) for end in _BLUES), strict=True)
    return f"rgb({','.join(str(round(a + share * (b - a))) for a, b in ends)})"
