"""The pictures of a report: drawings that stretch with the page, and texts that do not.

A chart is an SVG drawing of `SIZE` by `SIZE` units that a page stretches to its width. Lines and
dots keep their width (``non-scaling-stroke``), and texts are HTML that stands at a share of the
width and height, so that a chart is readable on a telephone, too. Dots are zero-length lines with
round caps: a few bytes each. `Marks` draws trials alike in all charts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup

from llmopt.history import Direction, Trial
from llmopt.report.data import Parameter, SearchData
from llmopt.report.hypervolume import hypervolumes, reference_of
from llmopt.report.scales import SIZE, Scale, beyond, number_text, robust_scale
from llmopt.util.text import cut

MOST_DOTS = 2000  # of one chart: the best are among them, the others evenly spread
MOST_PARAMETERS = 12  # with a separate chart
BINS = 5  # shades of a colour
_MOST_BEYOND = 400  # triangles of one chart
_MARK = 0.008  # half the width of the mark of a single value on its axis

Dot = tuple[float, float, int]
"""Shares of the width and the height, from the lower left, and a trial's number."""


@dataclass(frozen=True)
class Text:
    """A text within a chart."""

    x: float
    y: float
    text: str
    kind: str = ""


def thinned(numbers: Sequence[int], kept: Iterable[int], most: int = MOST_DOTS) -> set[int]:
    """Return about `most` trials: those to keep, and others evenly spaced."""
    if len(numbers) <= most:
        return set(numbers)
    step = -(-len(numbers) // most)
    return {*numbers[::step], *list(kept)[-most:]}


def _at(x: float, y: float) -> str:
    return f"{round(x * SIZE)} {round((1 - y) * SIZE)}"


def dots(points: Sequence[Dot], kind: str, mark: str = "h0") -> Markup:
    """Return dots, or other marks, that know their trials."""
    if not points:
        return Markup()
    path = "".join(f"M{_at(x, y)}{mark}" for x, y, _ in points)
    numbers = " ".join(str(number) for _, _, number in points)
    return Markup('<path class="dot {}" data-t="{}" d="{}"/>').format(kind, numbers, path)


@dataclass
class Marks:
    """The marks of trials in one chart; each sign means the same in every chart.

    A ring is the Pareto front, or the best trial; a hollow square is an infeasible trial; a
    triangle at the frame is a result beyond the axis, hollow if it is infeasible.
    """

    data: SearchData
    rings: list[Dot] = field(default_factory=list)
    plain: dict[str, list[Dot]] = field(default_factory=dict)  # by the class of their colour
    broken: dict[str, list[Dot]] = field(default_factory=dict)
    ringed: dict[str, list[Dot]] = field(default_factory=dict)
    triangles: list[tuple[Dot, str, str]] = field(default_factory=list)  # with edge and class

    def add(self, trial: Trial[Any], x: float, y: float, kind: str, edge: str = "") -> None:
        """Add a trial.

        Args:
            trial: The trial.
            x: Share of the width.
            y: Share of the height.
            kind: The class of its colour.
            edge: The edge of the chart that it lies beyond; see `scales.beyond`.
        """
        dot, broken = (x, y, trial.number), trial.number in self.data.infeasible
        if edge:
            self.triangles.append((dot, edge, f"{kind} hollow" if broken else kind))
            return
        ringed = trial.number in self.data.ringed
        if ringed:
            self.rings.append(dot)
        group = self.broken if broken else self.ringed if ringed else self.plain
        group.setdefault(kind, []).append(dot)

    @property
    def layers(self) -> list[Markup]:
        """The marks within the axes, from back to front."""
        holes = [dot for group in self.broken.values() for dot in group]
        return [
            *(dots(group, kind) for kind, group in self.plain.items()),
            dots(self.rings, "ring"),
            *(dots(group, f"{kind} broken") for kind, group in self.broken.items()),
            dots(holes, "hole"),
            *(dots(group, f"{kind} within") for kind, group in self.ringed.items()),
        ]

    @property
    def edges(self) -> Markup:
        """The triangles: SVG that is not stretched with the drawing."""
        shown = thinned(range(len(self.triangles)), [], _MOST_BEYOND)
        return Markup().join(
            Markup('<use href="#{}" class="{}" data-t="{}" x="{:.1f}%" y="{:.1f}%"/>').format(
                edge, kind, number, 100 * x, 100 - 100 * y
            )
            for i, ((x, y, number), edge, kind) in enumerate(self.triangles)
            if i in shown
        )


def lines(curves: Iterable[Sequence[tuple[float, float]]], kind: str) -> Markup:
    """Return lines through points."""
    path = "".join("M" + "L".join(_at(x, y) for x, y in curve) for curve in curves if curve)
    return Markup('<path class="line {}" d="{}"/>').format(kind, path) if path else Markup()


def steps(points: Sequence[tuple[float, float]], end: float = 1.0) -> list[tuple[float, float]]:
    """Return the corners of a line that keeps each height until the next point."""
    found: list[tuple[float, float]] = []
    for x, y in points:
        if found and found[-1][1] != y:
            found.append((x, found[-1][1]))
        if not found or found[-1][1] != y:
            found.append((x, y))
    return [*found, (end, found[-1][1])] if found else []


def stairs(
    points: Iterable[tuple[float, float]], across: Direction, up: Direction
) -> list[tuple[float, float]]:
    """Return the corners of the edge of what a Pareto front dominates."""
    worse_x, worse_y = (min if d == "maximize" else max for d in (across, up))
    found: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if found:
            found.append((worse_x(found[-1][0], x), worse_y(found[-1][1], y)))
        found.append((x, y))
    return found


def breakable(text: str) -> Markup:
    """Return a text that may be broken within a long name."""
    parts = re.split(r"(?<=[_\-./:])(?=[A-Za-z])|(?<=[a-z])(?=[A-Z])", text)
    return Markup("<wbr>").join(parts)


def chart(
    x: Scale,
    y: Scale,
    layers: Sequence[Markup],
    *,
    label: str,
    across: str,
    up: str = "",
    texts: Sequence[Text] = (),
    kind: str = "",
    edges: Markup | None = None,
) -> Markup:
    """Return a figure: axes, drawing, texts.

    Args:
        x: The horizontal axis.
        y: The vertical axis.
        layers: The marks, from back to front.
        label: What the chart shows, for who hears the page.
        across: What the horizontal axis shows.
        up: What the vertical axis shows.
        texts: Texts within the chart.
        kind: Class of the figure.
        edges: The marks of results beyond the axes; see `Marks`.
    """
    vertical = y.ticks(5)
    horizontal = x.ticks(4 if "small" in kind else 7)
    grid = "".join(f"M0 {round((1 - share) * SIZE)}H{SIZE}" for share, _ in vertical)
    room = 20 if "small" in kind else 26  # characters
    turned = "turned" if sum(len(text) for _, text in horizontal) > room and x.choices else ""
    parts = [
        Markup('<span class="y" style="top:{:.1f}%">{}</span>').format(100 - 100 * share, text)
        for share, text in vertical
    ]
    parts += [
        Markup('<span class="x" style="left:{:.1f}%">{}</span>').format(
            100 * share, cut(text, 12) if turned else text
        )
        for share, text in horizontal
    ]
    parts += [
        Markup('<span class="t {}" style="left:{:.1f}%;top:{:.1f}%">{}</span>').format(
            text.kind, 100 * text.x, 100 - 100 * text.y, breakable(text.text)
        )
        for text in texts
    ]
    return Markup(
        '<figure class="chart {} {}"><div class="up">{}</div><div class="plot">'
        '<svg viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<path class="grid" d="{}"/>{}</svg>{}{}</div><div class="across">{}</div></figure>'
    ).format(kind, turned, up, SIZE, SIZE, label, grid, Markup().join(layers),
             Markup('<svg class="edges">{}</svg>').format(edges) if edges else "",
             Markup().join(parts), breakable(across))  # fmt: skip


def trial_axis(data: SearchData, longest: int = 0) -> Scale:
    """Return the axis of the trials' numbers."""
    first = data.shown_number(0)
    last = first + max([t.number for t in data.trials] + [longest - 1, 1])
    margin = max(0.4, (last - first) * 0.012)
    return Scale(first - margin, last + margin, whole=True)


def outside(data: SearchData, objective: int) -> str:
    """State how many results are beyond the axis of an objective, and their range."""
    scale = data.scale(objective)
    out = [v for v in data.values(objective) if scale.side(v)]
    if not out:
        return ""
    low, high = min(out), max(out)
    span = number_text(low) + (f" to {number_text(high)}" if low < high else "")
    said = "1 result is" if len(out) == 1 else f"{len(out):,} results are"
    return f"{said} beyond the axis of {data.objectives[objective]}: {span}."


def history_chart(data: SearchData, objective: int = 0) -> tuple[Markup, str]:
    """Return the chart of all results and the best so far, and a note on it."""
    y, x = data.scale(objective), trial_axis(data)
    single = len(data.directions) == 1
    shown = thinned([t.number for t in data.done], sorted(data.leading))
    marks = Marks(data)
    for t in data.done:
        if t.number in shown and t.rewards:
            value = t.rewards[objective]
            place = x.share(data.shown_number(t.number)), y.share(value)
            marks.add(t, *place, f"s-{t.source}", beyond(None, 0.0, y, value))
    layers = marks.layers
    failed = [(x.share(data.shown_number(t.number)), 0.0, t.number) for t in data.history.failed]
    layers.insert(0, dots(failed[-MOST_DOTS:], "failed", "v-30"))
    texts = []
    if single and (best := data.best_so_far):
        inside = [(n, value) for n, value in best if not y.side(value)]
        points = [(x.share(data.shown_number(n)), y.share(value)) for n, value in inside]
        layers.append(lines([steps(points)], "best"))
        last = best[-1][1]
        texts.append(Text(1.0, y.share(last), f"best {number_text(last)}", "end"))
    name = data.objectives[objective]
    figure = chart(
        x, y, layers, label=f"{name} of each trial and the best so far", across="trial",
        up=data.goal(objective), texts=texts, kind="tall named" if texts else "tall",
        edges=marks.edges,
    )  # fmt: skip
    return figure, outside(data, objective)


def rivals_chart(data: SearchData) -> Markup:
    """Return the best so far of the search and of further methods on the same task."""
    best: list[tuple[str, np.ndarray]] = []
    own: list[float | None] = [t.rewards[0] if t.rewards else None for t in data.trials]
    for name, values in [("the model", own), *data.rivals.items()]:
        row = np.array([np.nan if v is None else v for v in values], dtype=float)
        fold = np.fmax if data.directions[0] == "maximize" else np.fmin
        best.append((name, fold.accumulate(row) if row.size else row))
    y = robust_scale([float(v) for _, row in best for v in row], data.directions[0])
    x = trial_axis(data, max(len(row) for _, row in best))
    layers, texts = [], []
    for i, (name, row) in enumerate(best):
        numbers = range(data.shown_number(0), data.shown_number(len(row)))
        pairs = zip(numbers, row, strict=True)
        points = [(x.share(k), y.share(v)) for k, v in pairs if np.isfinite(v)]
        layers.append(lines([steps(points)], f"c{i % 6}"))
        if points:
            text = f"{cut(name, 14)} {number_text(float(row[-1]), 4)}"
            texts.append(Text(1.0, points[-1][1], text, f"end c{i % 6}"))
    texts = _apart(texts)
    up = f"best {data.objectives[0]} so far"
    return chart(x, y, layers[::-1], label="best so far of each method", across="evaluation",
                 up=up, texts=texts, kind="tall named")  # fmt: skip


def _apart(texts: Sequence[Text], gap: float = 0.075) -> list[Text]:
    """Return texts at different heights, in their order of height, so that none hides another."""
    placed: list[Text] = []
    for text in sorted(texts, key=lambda text: text.y):
        y = max([text.y] + ([placed[-1].y + gap] if placed else []))
        placed.append(Text(text.x, y, text.text, text.kind))
    over = max([0.0] + [t.y - 1 for t in placed])
    return [Text(t.x, t.y - over, t.text, t.kind) for t in placed]


def shade_of(data: SearchData, objective: int = 0) -> dict[int, int]:
    """Return the shade of each complete trial by its rank, 0 for the worst fifth.

    With several objectives the Pareto front is strongest, and the other trials are weak.
    """
    if data.front:
        return {t.number: BINS - 1 if t.number in data.ringed else 0 for t in data.done}
    sign = 1 if data.directions[objective] == "maximize" else -1
    order = sorted(
        data.done,
        key=lambda t: (-t.constraint_violation, sign * (t.rewards or (0.0,))[objective]),
    )
    return {t.number: i * BINS // len(order) for i, t in enumerate(order)}


def parallel_chart(data: SearchData, chosen: Sequence[int]) -> Markup:
    """Return parallel coordinates of the objectives and some parameters, by their places."""
    names = [*data.objectives, *(data.parameters[i].name for i in chosen)]
    goals = [data.scale(k) for k in range(len(data.directions))]
    scales = [*goals, *(data.parameters[i].scale for i in chosen)]
    shades = shade_of(data)
    by_shade: dict[int, list[list[tuple[float, float]]]] = {}
    gaps: dict[int, list[list[tuple[float, float]]]] = {}
    last, marks = len(scales) - 1, Marks(data)
    shown = thinned([t.number for t in data.done], sorted(data.leading))
    for t in data.done:
        if t.number not in shown or not t.rewards:
            continue
        row = [goal.share(value) for goal, value in zip(goals, t.rewards, strict=True)]
        for i, (goal, value) in enumerate(zip(goals, t.rewards, strict=True)):
            edge = beyond(None, 0.0, goal, value)
            if edge or t.number in data.infeasible or t.number in data.ringed:
                marks.add(t, i / last, row[i], f"q{shades[t.number]}", edge)
        shares: list[float | None] = [*row, *(data.shares[t.number][i] for i in chosen)]
        runs = _runs([(i / last, share) for i, share in enumerate(shares)])
        by_shade.setdefault(shades[t.number], []).extend(runs)
        between = [[before[-1], after[0]] for before, after in pairwise(runs)]
        gaps.setdefault(shades[t.number], []).extend(between)
    layers = [
        layer
        for k in range(BINS)
        for layer in (lines(gaps.get(k, ()), f"gap q{k}"), lines(by_shade.get(k, ()), f"q{k}"))
    ]
    axes = "".join(f"M{round(i / last * SIZE)} 0V{SIZE}" for i in range(len(scales)))
    layers += [Markup('<path class="axis" d="{}"/>').format(axes), *marks.layers]
    texts = []
    for i, (name, scale) in enumerate(zip(names, scales, strict=True)):
        texts.append(Text(i / last, 1.0, cut(name, 34), "head"))
        texts += [Text(i / last, share, cut(text, 16), "tick") for share, text in scale.ticks(4)]
    figure = chart(
        Scale(0, 1, choices=("",)), Scale(0, 1, choices=("",)), layers,
        label="parameters of each trial, a line each", across="", texts=texts, kind="parallel",
        edges=marks.edges,
    )  # fmt: skip
    return Markup(
        '<p class="note hint" hidden>Scroll sideways to see all parameters.</p>'
        '<div class="scroll"><div style="min-width:{}px">{}</div></div>'
    ).format(min(90 * len(scales), 2000), figure)


def _runs(row: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """Return the parts of a line between the parameters that a trial lacks.

    A single value becomes a mark on its axis.
    """
    found: list[list[tuple[float, float]]] = [[]]
    for x, y in row:
        if y is None:
            found.append([])
        else:
            found[-1].append((x, y))
    return [run if len(run) > 1 else _mark(*run[0]) for run in found if run]


def _mark(x: float, y: float) -> list[tuple[float, float]]:
    return [(max(0.0, x - _MARK), y), (min(1.0, x + _MARK), y)]


def slice_chart(data: SearchData, index: int, objective: int = 0) -> Markup:
    """Return the results against one parameter; later trials are darker."""
    parameter: Parameter = data.parameters[index]
    y = data.scale(objective)
    shown = thinned([t.number for t in data.done], sorted(data.leading), MOST_DOTS // 2)
    marks = Marks(data)
    count = max(len(data.done), 1)
    # Choices are spread a little, so that equal ones do not hide each other.
    width = 0.2 / len(parameter.scale.choices) if parameter.scale.choices else 0.0
    shares = {
        number: place + width * ((number * 0.618034) % 1 - 0.5)
        for number, row in data.shares.items()
        if (place := row[index]) is not None
    }
    for rank, t in enumerate(data.done):
        share = shares.get(t.number)
        if t.number not in shown or share is None or not t.rewards:
            continue
        value = t.rewards[objective]
        kind = f"a{rank * BINS // count}"
        marks.add(t, share, y.share(value), kind, beyond(None, 0.0, y, value))
    lost = [(shares[t.number], 0.0, t.number) for t in data.history.failed if t.number in shares]
    layers = [dots(lost[-MOST_DOTS:], "failed", "v-55"), *marks.layers]
    name = cut(parameter.name, 60)
    goal = data.objectives[objective]
    return chart(parameter.scale, y, layers, label=f"{goal} against {name}", across=name,
                 up=goal, kind="small", edges=marks.edges)  # fmt: skip


def pareto_chart(data: SearchData, first: int, second: int) -> tuple[Markup, str]:
    """Return two objectives against each other, with the Pareto front, and a note on it."""
    x, y = data.scale(first), data.scale(second)
    front = {t.number for t in data.front}
    shown = thinned([t.number for t in data.done], sorted(front))
    marks = Marks(data)
    for t in data.done:
        if t.number in shown and t.rewards:
            across, up = t.rewards[first], t.rewards[second]
            marks.add(t, x.share(across), y.share(up), "a2", beyond(x, across, y, up))
    layers = marks.layers
    if len(data.directions) == 2:
        edge = stairs((p[:2] for p in marks.rings), *(data.directions[k] for k in (first, second)))
        layers.insert(0, lines([edge], "front"))
    names = [data.goal(k) for k in (first, second)]
    figure = chart(x, y, layers, label=f"{names[1]} against {names[0]}", across=names[0],
                   up=names[1], kind="tall", edges=marks.edges)  # fmt: skip
    return figure, f"{outside(data, first)} {outside(data, second)}".strip()


def volume_chart(data: SearchData) -> tuple[Markup, str]:
    """Return the hypervolume of the Pareto front after each trial, and what it refers to."""
    volumes = hypervolumes(data)
    x = trial_axis(data)
    y = Scale(0.0, max(volumes) * 1.06 or 1.0)
    pairs = zip(data.done, volumes, strict=True)
    points = [(x.share(data.shown_number(t.number)), y.share(v)) for t, v in pairs]
    places = zip(data.objectives, reference_of(data), strict=True)
    reference = ", ".join(f"{cut(name, 40)} {number_text(value, 4)}" for name, value in places)
    figure = chart(
        x, y, [lines([steps(points)], "best")], label="hypervolume after each trial",
        across="trial", up="hypervolume (larger is better)", kind="tall named",
        texts=[Text(1.0, points[-1][1], number_text(volumes[-1], 4), "end")],
    )  # fmt: skip
    return figure, (
        f"Of feasible trials only. The reference is {reference}: a tenth of the range beyond their "
        "worst results."
    )


def curves_chart(data: SearchData) -> Markup:
    """Return what trials reported on their way; the best are darker."""
    pairs = [pair for curve in data.curves.values() for pair in curve]
    y = robust_scale([value for _, value in pairs], data.directions[0])
    x = Scale(min(step for step, _ in pairs), max(step for step, _ in pairs))
    shades = shade_of(data)
    groups: dict[str, list[list[tuple[float, float]]]] = {}
    shown = thinned(sorted(data.curves), sorted(data.leading), 300)
    for number, curve in data.curves.items():
        if number in shown:
            kind = f"q{shades[number]}" if number in shades else "lost"
            groups.setdefault(kind, []).append([(x.share(s), y.share(v)) for s, v in curve[:500]])
    texts, best = [], []
    if data.best is not None and (own := data.curves.get(data.best.number)):
        best = [[(x.share(s), y.share(v)) for s, v in own]]
        label = f"#{data.shown_number(data.best.number)} (best)"
        texts.append(Text(1.0, best[0][-1][1], label, "end"))
    layers = [lines(groups[kind], kind) for kind in sorted(groups)]
    layers.append(lines(best, "best"))
    return chart(x, y, layers, label="what trials reported on their way", across="step",
                 up=data.objectives[0], texts=texts, kind="tall named")  # fmt: skip
