"""Plots of a search in Matplotlib, each on given axes or on its own figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from llmopt.errors import LLMOptError, needs
from llmopt.history import Trial
from llmopt.report.charts import MOST_PARAMETERS, outside
from llmopt.report.data import SearchData
from llmopt.report.hypervolume import Reference, given_reference, hypervolumes
from llmopt.report.importance import importance, left_out
from llmopt.report.scales import Scale, beyond, number_text
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
    "network": "#e69f00",
    "sampler": "#009e73",
    "user": "#cc79a7",
}
_RING, _FAILED = "#7a3db8", "#c8401a"
_BAR = [(-0.12, 0), (0.12, 0), (0.12, 1), (-0.12, 1), (-0.12, 0)]  # upwards from the frame
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
    _, ax = plt.subplots(figsize=(6.4, 3.9), layout="constrained")
    return ax


def _limit(axis: Any, scale: Scale, letter: str, room: float = 0.0) -> None:
    """Give axes the range that shows the search; a logarithmic one gets few and plain ticks.

    Args:
        axis: The axes.
        scale: The range.
        letter: ``"x"`` or ``"y"``.
        room: Room at both ends, as a share of the axis.
    """
    low, high = scale.low, scale.high
    if scale.log:
        getattr(axis, f"set_{letter}scale")("log")
        values = scale.tick_values(4)
        getattr(axis, f"set_{letter}ticks")(values, [number_text(v) for v in values])
        getattr(axis, f"set_{letter}ticks")([], minor=True)
        far = (high / low) ** room
        low, high = low / far, high * far
    else:
        far = (high / 2 - low / 2) * 2 * room
        low, high = low - far, high + far
    getattr(axis, f"set_{letter}lim")(low, high)


@dataclass(frozen=True)
class _Style:
    """The colours of the style that some axes were made in."""

    ink: tuple[float, float, float]
    paper: tuple[float, float, float]

    @classmethod
    def of(cls, ax: Axes) -> _Style:
        """Return the colours of texts and of what is behind the axes."""
        from matplotlib.colors import to_rgb, to_rgba

        paper: Any = ax.get_facecolor()
        if to_rgba(paper)[3] < 0.5:  # transparent axes show their figure
            paper = ax.figure.get_facecolor()
        return cls(to_rgb(ax.xaxis.label.get_color()), to_rgb(paper))

    @property
    def dark(self) -> bool:
        """Whether texts are brighter than what is behind them."""
        return sum(self.ink) > sum(self.paper)

    def faint(self, share: float) -> tuple[float, ...]:
        """Return a colour between the background and the texts."""
        return self.mixed(self.ink, self.paper, share)

    def seen(self, colour: str) -> tuple[float, ...]:
        """Return a colour that is bright enough on a dark background."""
        from matplotlib.colors import to_rgb

        return self.mixed((1.0, 1.0, 1.0), to_rgb(colour), 0.3 if self.dark else 0.0)

    @staticmethod
    def mixed(over: Sequence[float], under: Sequence[float], share: float) -> tuple[float, ...]:
        """Return a share of one colour over another one."""
        return tuple(share * a + (1 - share) * b for a, b in zip(over, under, strict=True))


def _failures(ax: Axes, places: Sequence[float]) -> None:
    """Mark failed trials at the lower frame of axes, by their places across."""
    if not places:
        return
    bar: Any = _BAR
    ax.scatter(
        places, [0.0] * len(places), s=80, marker=bar, color=_Style.of(ax).seen(_FAILED),
        linewidths=0, transform=ax.get_xaxis_transform(), clip_on=False, zorder=2.5, label="failed",
    )  # fmt: skip


def _columns(labels: Sequence[str], width: float) -> int:
    """Return how many columns a legend may have within some inches."""
    lengths = [max(map(len, label.splitlines())) for label in labels]
    for count in range(len(lengths), 1, -1):
        parts = [part.tolist() for part in np.array_split(lengths, count)]
        if sum(4.8 * max(part) + 34 for part in parts) <= 72 * width:
            return count
    return 1


def _neutral(legend: Any, ink: Any) -> None:
    """Give the signs in a legend one colour: trials of several colours have them."""
    for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
        said = text.get_text()
        if "beyond the axis" in said:
            handle.set(facecolor=ink, edgecolor=ink)
        elif said == "infeasible":
            handle.set(edgecolor=ink)


def _legend(ax: Axes) -> None:
    """Put a legend below axes, where it hides no data.

    Axes of a figure without a layout engine become lower by its height.
    """
    handles, labels = ax.get_legend_handles_labels()
    if not handles:
        return
    from matplotlib.transforms import ScaledTranslation

    figure: Any = ax.figure
    root: Any = ax.get_figure(root=True)
    again = ax.get_legend() is not None
    box = ax.get_position()
    columns = _columns(labels, box.width * figure.bbox.width / figure.dpi)
    ticks: Any = ax.xaxis.get_ticklabels()
    label: Any = ax.xaxis.label
    rows = 1 + label.get_text().count("\n")
    below = 12 + 1.3 * (
        rows * label.get_fontsize() + (ticks[0].get_fontsize() if ticks else 10)
    )  # points
    shift = ScaledTranslation(0, -below / 72, root.dpi_scale_trans)
    legend = ax.legend(
        loc="upper center", bbox_to_anchor=(0.5, 0.0), bbox_transform=ax.transAxes + shift,
        ncols=columns, frameon=False, fontsize="small", borderaxespad=0,
    )  # fmt: skip
    _neutral(legend, _Style.of(ax).faint(0.5))
    if figure.get_layout_engine() is None and not again:
        lines = sum(1 + text.count("\n") for text in labels) / columns
        room = (math.ceil(lines) * 13 + 8) / 72 * figure.dpi / figure.bbox.height
        ax.set_position(
            (box.x0, box.y0 + room, box.width, max(0.3 * box.height, box.height - room))
        )
        ax.set_in_layout(True)  # a layout may place it again


@dataclass
class _Marks:
    """The marks of trials on axes, with the signs of the page: see `charts.Marks`."""

    data: SearchData
    objectives: tuple[int, ...]  # up, or across and up
    size: float = 16.0
    grey: bool = False  # whether hollow marks are grey, not of their own colour
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
        x, y, style = self.x, self.y, _Style.of(ax)
        grey, ring = style.faint(0.5), style.seen(_RING)
        groups: dict[str, list[int]] = {}
        for i, (trial, across, up) in enumerate(trials):
            groups.setdefault(self._sign(trial, beyond(x, across, y, up)), []).append(i)
        for sign in sorted(groups, key=_SIGNS.index):
            chosen = groups[sign]
            edge = sign.partition(" ")[0]
            own = [colours[i] for i in chosen]
            hollow = sign == "infeasible" or sign.endswith("hollow")
            rim: Any = ring if sign == "ring" else grey if hollow and self.grey else own
            shape: Any = _EDGES.get(edge, "s" if sign == "infeasible" else "o")
            ax.scatter(
                [x.held(trials[i][1]) if x else trials[i][1] for i in chosen],
                [y.held(trials[i][2]) for i in chosen],
                s=self.size * _SIZES.get(sign, 5 if edge in _EDGES else 1),
                marker=shape,
                facecolors="none" if hollow else own,
                edgecolors=rim,
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
    style = _Style.of(ax)
    for source, colour in COLOURS.items():
        own = [
            (t, data.shown_number(t.number), t.rewards[0])
            for t in data.done
            if t.rewards and t.source == source
        ]
        marks.draw(ax, own, [style.seen(colour)] * len(own), source)
    _failures(ax, [data.shown_number(t.number) for t in data.history.failed])
    if best := data.best_so_far:
        numbers = [data.shown_number(number) for number, _ in best]
        values = [value for _, value in best]
        end = data.shown_number(max(t.number for t in data.trials))
        ax.step([*numbers, end], [*values, values[-1]], where="post", color=style.ink, label="best")
    if data.done:
        _limit(ax, marks.y, "y")
    ax.set_xlabel("trial")
    ax.set_ylabel(data.goal(0, _name(data.objectives[0])))
    _legend(ax)
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
    elif not figure.axes and hasattr(figure, "set_layout_engine"):
        figure.set_layout_engine("constrained")  # with room for the legend
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    marks = _Marks(data, (objective,), size=14, grey=True)
    for i, ax in enumerate(grid.flat):
        if i >= len(shown):
            ax.set_axis_off()
            continue
        _slice(ax, data, i, marks, objective)
        if i % columns == 0:
            ax.set_ylabel(_name(data.objectives[objective]))
    found = dict(
        pair[::-1] for ax in grid.flat for pair in zip(*ax.get_legend_handles_labels(), strict=True)
    )
    if found:
        with needs("plot_slices()", "matplotlib"):
            from matplotlib.layout_engine import ConstrainedLayoutEngine
        constrained = isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine)
        place: Any = "outside lower center" if constrained else "lower center"
        legend = figure.legend(
            handles=list(found.values()), frameon=False, fontsize="small", loc=place,
            ncols=_columns(list(found), figure.bbox.width / figure.dpi),
        )  # fmt: skip
        _neutral(legend, _Style.of(grid.flat[0]).faint(0.5))
    return figure


def _slice(ax: Axes, data: SearchData, index: int, marks: _Marks, objective: int) -> None:
    """Draw the results against one parameter, and the failed trials at the frame."""
    with needs("plot_slices()", "matplotlib"):
        from matplotlib import colormaps
    parameter, scale = data.parameters[index], data.parameters[index].scale

    def place(trial: Trial[Any]) -> float:
        if scale.choices:
            return (data.shares[trial.number][index] or 0) * len(scale.choices)
        return float(trial.params[parameter.name])

    known = [t for t in data.done if t.rewards and data.shares[t.number][index] is not None]
    if scale.choices:
        places = [k + 0.5 for k in range(len(scale.choices))]
        ax.set_xlim(0, len(places))
        ax.set_xticks(places, [_name(text)[:12] for text in scale.choices])
    else:
        _limit(ax, scale, "x", 0.04)
    colours, last = colormaps["Blues"], max([t.number for t in data.done] + [1])
    first, span = (0.85, -0.7) if _Style.of(ax).dark else (0.25, 0.75)  # later ones are stronger
    shades = [colours(first + span * t.number / last) for t in known]
    rows = [(t, place(t), t.rewards[objective]) for t in known if t.rewards]
    marks.draw(ax, rows, shades)
    lost = [t for t in data.history.failed if data.shares[t.number][index] is not None]
    _failures(ax, [place(t) for t in lost])
    if data.done:
        _limit(ax, marks.y, "y")
    ax.set_xlabel(_name(parameter.name), fontsize="small")


def importances(data: SearchData, ax: Axes | None = None, objective: int | str = 0) -> Axes:
    """Draw the importance of each parameter; see `llmopt.report.importance`."""
    objective = data.objective(objective)
    found = importance(data, objective)
    ax = _axes("plot_importance", ax)
    style = _Style.of(ax)
    names = list(next(iter(found.values())))[:20][::-1]
    height = 0.8 / len(found)
    for k, (kind, values) in enumerate(found.items()):
        places = [i - k * height for i in range(len(names))]
        strong = style.seen("#0072b2")
        colour = strong if k == 0 else style.mixed(strong, style.paper, 0.4)
        ax.barh(places, [values[n] for n in names], height * 0.9, color=colour, label=kind)
    ax.set_yticks(range(len(names)), [_name(name) for name in names])
    of = f" for {_name(data.objectives[objective])}" if len(data.directions) > 1 else ""
    skipped = left_out(data)
    note = _plain("\n" + fill(f"left out: {skipped}", 70)) if skipped else ""
    ax.set_xlabel(f"importance{of} (Optuna){note}")
    _legend(ax)
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
    marks = _Marks(data, (first, second), grey=True)
    places = [(t, t.rewards[first], t.rewards[second]) for t in data.done if t.rewards]
    marks.draw(ax, places, ["#6b9cc9"] * len(places), "trials")
    for k, letter in ((first, "x"), (second, "y")):
        getattr(ax, f"set_{letter}label")(data.goal(k, _name(data.objectives[k])))
        if data.done:
            _limit(ax, scales[k], letter)
    _legend(ax)
    return ax


def hypervolume(data: SearchData, reference: Reference = None, ax: Axes | None = None) -> Axes:
    """Draw the hypervolume of the Pareto front after each trial."""
    values = hypervolumes(data, reference)
    corner = ", ".join(f"{number:.4g}" for number in given_reference(data, reference))
    ax = _axes("plot_hypervolume", ax)
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    numbers = [data.shown_number(t.number) for t in data.done]
    colour = _Style.of(ax).seen(COLOURS["llm"])
    ax.step(numbers, values, where="post", color=colour, marker="o", markersize=3)
    ax.set_xlabel("trial")
    ax.set_ylabel(f"hypervolume, reference ({corner})")
    return ax
