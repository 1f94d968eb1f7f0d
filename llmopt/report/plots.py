"""Plots of a search in Matplotlib, each on given axes or on its own figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llmopt.errors import LLMOptError, needs
from llmopt.history import OLD_SOURCES, Trial
from llmopt.report.charts import MOST_PARAMETERS, outside
from llmopt.report.data import SearchData
from llmopt.report.hypervolume import Reference, hypervolumes
from llmopt.report.importance import importance
from llmopt.report.scales import Scale, beyond
from llmopt.util.text import cut, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "llm": "#0072b2",
    "drawn": "#56b4e9",
    "fallback": "#d55e00",
    "warmup": "#999999",
    "cma": "#009e73",
    **dict.fromkeys(OLD_SOURCES, "#56b4e9"),
    "network": "#e69f00",
    "sampler": "#009e73",
    "user": "#cc79a7",
}
_RING, _GREY = "#d55e00", "#777777"
_EDGES = {  # triangles whose tip is at the place, so that they lie within the frame
    "up": [(0, 0), (-0.6, -1), (0.6, -1), (0, 0)],
    "down": [(0, 0), (-0.6, 1), (0.6, 1), (0, 0)],
    "left": [(0, 0), (1, -0.6), (1, 0.6), (0, 0)],
    "right": [(0, 0), (-1, -0.6), (-1, 0.6), (0, 0)],
}
_SIZES = {"ring": 1.4, "infeasible": 1.1}
_SIGNS = ("", *_EDGES, *(f"{edge} hollow" for edge in _EDGES), "infeasible", "ring")
_COLUMNS = 4  # of slices beside each other
_NAME = 40  # characters of a parameter's name


def _axes(call: str, ax: Axes | None) -> Axes:
    if ax is not None:
        if not hasattr(ax, "scatter"):
            raise TypeError(
                f"{call}(ax={short(ax)}): expected Matplotlib axes, such as plt.gca(), or nothing"
            )
        return ax
    with needs(f"{call}()", "matplotlib"):
        import matplotlib.pyplot as plt
    _, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    return ax


def _limit(axis: Any, scale: Scale, letter: str) -> None:
    """Give axes the range that shows the search."""
    if scale.log:
        getattr(axis, f"set_{letter}scale")("log")
    getattr(axis, f"set_{letter}lim")(scale.low, scale.high)


@dataclass
class _Marks:
    """The marks of trials on axes, with the signs of the page: see `charts.Marks`."""

    data: SearchData
    objectives: tuple[int, ...]  # up, or across and up
    size: float = 16.0
    hollow: str = ""  # the colour of hollow marks, if it is not their own
    named: set[str] = field(default_factory=set)  # what the legend has

    @property
    def y(self) -> Scale:
        """The axis that goes up."""
        return self.data.scale(self.objectives[-1])

    @property
    def x(self) -> Scale | None:
        """The axis across, if an objective is on it."""
        return self.data.scale(self.objectives[0]) if self.objectives[1:] else None

    def draw(
        self,
        ax: Axes,
        trials: Sequence[tuple[Trial[Any], float, float]],
        colours: Sequence[Any],
        label: str | None = None,
    ) -> None:
        """Draw trials at places, each in its colour; `label` names those without a sign."""
        x, y = self.x, self.y
        groups: dict[str, list[int]] = {}
        for i, (trial, across, up) in enumerate(trials):
            groups.setdefault(self._sign(trial, beyond(x, across, y, up)), []).append(i)
        for sign in sorted(groups, key=_SIGNS.index):
            chosen = groups[sign]
            edge = sign.partition(" ")[0]
            own = [colours[i] for i in chosen]
            hollow = sign == "infeasible" or sign.endswith("hollow")
            ax.scatter(
                [x.held(trials[i][1]) if x else trials[i][1] for i in chosen],
                [y.held(trials[i][2]) for i in chosen],
                s=self.size * _SIZES.get(sign, 5 if edge in _EDGES else 1),
                marker=_EDGES.get(edge, "s" if sign == "infeasible" else "o"),
                facecolors="none" if hollow else own,
                edgecolors=_RING if sign == "ring" else (hollow and self.hollow) or own,
                linewidths=1.8 if sign == "ring" else 1.0 if hollow else 0.3,
                label=self._label(sign, label),
                clip_on=False,
                zorder=3 if sign == "ring" else 2,
            )

    def _sign(self, trial: Trial[Any], edge: str) -> str:
        broken = trial.number in self.data.infeasible
        if edge:
            return f"{edge} hollow" if broken else edge
        if broken:
            return "infeasible"
        return "ring" if trial.number in self.data.ringed else ""

    def _label(self, sign: str, plain: str | None) -> str | None:
        """Return what the legend says of a sign, once."""
        ring = "Pareto front" if self.data.front else "the best"
        out = [outside(self.data, k).rstrip(".") for k in self.objectives]
        beyond_it = _plain("\n".join(filter(None, out)))
        label = {"": plain, "ring": ring, "infeasible": sign}.get(sign, beyond_it)
        if label is None or label in self.named:
            return None
        self.named.add(label)
        return label


def _plain(text: str) -> str:
    return text.replace("$", r"\$")  # no formula


def _name(text: str) -> str:
    return _plain(cut(text, _NAME))


def history(data: SearchData, ax: Axes | None = None) -> Axes:
    """Draw the result of each trial, in the colour of its source, and the best so far."""
    if len(data.directions) > 1:
        raise LLMOptError(
            f"plot_history() draws one objective, and this search has {len(data.directions)}: "
            "plot_pareto() draws them against each other"
        )
    ax = _axes("plot_history", ax)
    marks = _Marks(data, (0,), named={"the best"})  # the line names it
    for source, colour in COLOURS.items():
        own = [
            (t, data.shown_number(t.number), t.rewards[0])
            for t in data.done
            if t.rewards and t.source == source
        ]
        marks.draw(ax, own, [colour] * len(own), source)
    for place, trial in enumerate(data.history.failed):
        label = None if place else "failed"
        ax.axvline(data.shown_number(trial.number), color="#dddddd", zorder=0, label=label)
    if best := data.best_so_far:
        numbers = [data.shown_number(number) for number, _ in best]
        values = [value for _, value in best]
        end = data.shown_number(max(t.number for t in data.trials))
        ax.step([*numbers, end], [*values, values[-1]], where="post", color="black", label="best")
    if data.done:
        _limit(ax, marks.y, "y")
    ax.set_xlabel("trial")
    ax.set_ylabel(_name(data.objectives[0]))
    if data.done or data.history.failed:
        ax.legend(frameon=False, fontsize="small")
    return ax


def slices(data: SearchData, figure: Figure | None = None, objective: int | str = 0) -> Figure:
    """Draw the results against each parameter, later trials darker."""
    objective = data.objective(objective)
    shown = data.parameters[:MOST_PARAMETERS]
    columns = min(_COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    if figure is None:
        with needs("plot_slices()", "matplotlib"):
            import matplotlib.pyplot as plt
        size = 2.6 * columns + 0.4, 2.3 * rows + 0.3
        figure = plt.figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    marks = _Marks(data, (objective,), size=14, hollow=_GREY)
    with needs("plot_slices()", "matplotlib"):
        from matplotlib import colormaps
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    colours = colormaps["Blues"]
    last = max([t.number for t in data.done] + [1])
    for i, ax in enumerate(grid.flat):
        if i >= len(shown):
            ax.set_axis_off()
            continue
        parameter = shown[i]
        known = [t for t in data.done if t.rewards and data.shares[t.number][i] is not None]
        if parameter.scale.choices:
            across = [(data.shares[t.number][i] or 0) * len(parameter.scale.choices) for t in known]
            places = [k + 0.5 for k in range(len(parameter.scale.choices))]
            ax.set_xlim(0, len(places))
            ax.set_xticks(places, [_name(text)[:12] for text in parameter.scale.choices])
        else:
            across = [float(t.params[parameter.name]) for t in known]
            if parameter.scale.log:
                ax.set_xscale("log")
        up = [t.rewards[objective] for t in known if t.rewards]
        shades = [colours(0.25 + 0.75 * t.number / last) for t in known]
        marks.draw(ax, list(zip(known, across, up, strict=True)), shades)
        if data.done:
            _limit(ax, marks.y, "y")
        ax.set_xlabel(_name(parameter.name), fontsize="small")
        if i % columns == 0:
            ax.set_ylabel(_name(data.objectives[objective]))
    handles = [h for ax in grid.flat for h in ax.get_legend_handles_labels()[0]]
    if handles:
        constrained = isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine)
        place = "outside lower center" if constrained else "lower center"
        figure.legend(handles=handles, frameon=False, fontsize="small", loc=place, ncols=3)
    return figure


def importances(data: SearchData, ax: Axes | None = None, objective: int | str = 0) -> Axes:
    """Draw the importance of each parameter; see `llmopt.report.importance`."""
    objective = data.objective(objective)
    found = importance(data, objective)
    ax = _axes("plot_importance", ax)
    names = list(next(iter(found.values())))[:20][::-1]
    height = 0.8 / len(found)
    for k, (kind, values) in enumerate(found.items()):
        places = [i - k * height for i in range(len(names))]
        colour = "#0072b2" if k == 0 else "#9dbbd8"
        ax.barh(places, [values[n] for n in names], height * 0.9, color=colour, label=kind)
    ax.set_yticks(range(len(names)), [_name(name) for name in names])
    of = f" for {_name(data.objectives[objective])}" if len(data.directions) > 1 else ""
    ax.set_xlabel(f"importance{of} (Optuna)")
    ax.legend(frameon=False, fontsize="small")
    return ax


def pareto(
    data: SearchData, ax: Axes | None = None, objectives: Sequence[int | str] = (0, 1)
) -> Axes:
    """Draw two objectives against each other, and the trials that nothing dominates."""
    if len(data.directions) == 1:
        raise LLMOptError(
            "plot_pareto() draws two objectives, and this search has one: plot_history() draws it"
        )
    if isinstance(objectives, str) or len({*objectives}) != 2:
        raise LLMOptError(
            f"objectives={short(objectives)}: expected two objectives, such as "
            f"{data.objectives[:2]!r}"
        )
    first, second = (data.objective(k, "objectives") for k in objectives)
    ax = _axes("plot_pareto", ax)
    scales = {k: data.scale(k) for k in (first, second)}
    marks = _Marks(data, (first, second), hollow=_GREY)
    places = [(t, t.rewards[first], t.rewards[second]) for t in data.done if t.rewards]
    marks.draw(ax, places, ["#6b9cc9"] * len(places), "trials")
    for k, letter in ((first, "x"), (second, "y")):
        goal = "larger" if data.directions[k] == "maximize" else "smaller"
        getattr(ax, f"set_{letter}label")(f"{_name(data.objectives[k])} ({goal} is better)")
        if data.done:
            _limit(ax, scales[k], letter)
    if data.done:
        ax.legend(frameon=False, fontsize="small")
    return ax


def hypervolume(data: SearchData, reference: Reference = None, ax: Axes | None = None) -> Axes:
    """Draw the hypervolume of the Pareto front after each trial."""
    values = hypervolumes(data, reference)
    ax = _axes("plot_hypervolume", ax)
    numbers = [data.shown_number(t.number) for t in data.done]
    ax.step(numbers, values, where="post", color=COLOURS["llm"], marker="o", markersize=3)
    ax.set_xlabel("trial")
    ax.set_ylabel("hypervolume")
    return ax
