"""Plots of a search in Matplotlib, each on given axes or on its own figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llmopt.errors import LLMOptError, needs
from llmopt.history import OLD_SOURCES
from llmopt.report.charts import MOST_PARAMETERS
from llmopt.report.data import SearchData
from llmopt.report.importance import importance, quiet
from llmopt.report.scales import Scale
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


def _name(text: str) -> str:
    return cut(text, _NAME).replace("$", r"\$")  # no formula


def history(data: SearchData, ax: Axes | None = None) -> Axes:
    """Draw the result of each trial, in the colour of its source, and the best so far."""
    if len(data.directions) > 1:
        raise LLMOptError(
            f"plot_history() draws one objective, and this search has {len(data.directions)}: "
            "plot_pareto() draws them against each other"
        )
    ax = _axes("plot_history", ax)
    scale = data.scale()
    for source, colour in COLOURS.items():
        own = [t for t in data.done if t.rewards and t.source == source]
        if own:
            values = [scale.held(t.rewards[0]) for t in own if t.rewards]
            numbers = [data.shown_number(t.number) for t in own]
            ax.scatter(numbers, values, s=16, color=colour, label=source, clip_on=False)
    for place, trial in enumerate(data.history.failed):
        label = None if place else "failed"
        ax.axvline(data.shown_number(trial.number), color="#dddddd", zorder=0, label=label)
    if best := data.best_so_far:
        numbers = [data.shown_number(number) for number, _ in best]
        values = [value for _, value in best]
        end = data.shown_number(max(t.number for t in data.trials))
        ax.step([*numbers, end], [*values, values[-1]], where="post", color="black", label="best")
    if data.done:
        _limit(ax, scale, "y")
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
    scale = data.scale(objective)
    for i, ax in enumerate(grid.flat):
        if i >= len(shown):
            ax.set_axis_off()
            continue
        parameter = shown[i]
        known = [t for t in data.done if t.rewards and data.shares[t.number][i] is not None]
        if parameter.scale.choices:
            across = [(data.shares[t.number][i] or 0) * len(parameter.scale.choices) for t in known]
            places = [k + 0.5 for k in range(len(parameter.scale.choices))]
            ax.set_xticks(places, [_name(text)[:12] for text in parameter.scale.choices])
        else:
            across = [float(t.params[parameter.name]) for t in known]
            if parameter.scale.log:
                ax.set_xscale("log")
        up = [scale.held(t.rewards[objective]) for t in known if t.rewards]
        shades = [t.number for t in known]
        ax.scatter(across, up, s=14, c=shades, cmap="Blues", edgecolors="#8899aa", linewidths=0.3)
        if data.done:
            _limit(ax, scale, "y")
        ax.set_xlabel(_name(parameter.name))
        if i % columns == 0:
            ax.set_ylabel(_name(data.objectives[objective]))
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
    front = sorted((t.rewards for t in data.front if t.rewards), key=lambda r: r[first])
    scales = {k: data.scale(k) for k in (first, second)}
    feasible = [t.rewards for t in data.done if t.rewards and t.constraint_violation <= 0]
    broken = [t.rewards for t in data.done if t.rewards and t.constraint_violation > 0]
    if broken:
        across, up = ([scales[k].held(r[k]) for r in broken] for k in (first, second))
        ax.scatter(
            across, up, s=18, facecolors="none", edgecolors="#999999", label="infeasible",
            clip_on=False,
        )  # fmt: skip
    for rewards, size, colour, label in (
        (feasible, 14, "#9dbbd8", "trials"),
        (front, 30, "#d55e00", "Pareto front"),
    ):
        columns = [[scales[k].held(r[k]) for r in rewards] for k in (first, second)]
        ax.scatter(columns[0], columns[1], s=size, color=colour, label=label, clip_on=False)
    for k, letter in ((first, "x"), (second, "y")):
        goal = "larger" if data.directions[k] == "maximize" else "smaller"
        getattr(ax, f"set_{letter}label")(f"{_name(data.objectives[k])} ({goal} is better)")
        if data.done:
            _limit(ax, scales[k], letter)
    ax.legend(frameon=False, fontsize="small")
    return ax


def hypervolume(data: SearchData, reference: Sequence[float] | None = None) -> Axes:
    """Draw the hypervolume of the Pareto front after each trial, by Optuna."""
    if len(data.directions) == 1:
        raise LLMOptError(
            "plot_hypervolume() needs several objectives, and this search has one: "
            "plot_history() draws it"
        )
    if not data.done:
        raise LLMOptError("plot_hypervolume(): no trial has a result yet; continue the search")
    with needs("plot_hypervolume()", "optuna", extra="optuna"):
        import optuna
    with needs("plot_hypervolume()", "matplotlib"):
        import matplotlib.pyplot as plt
        from optuna.visualization.matplotlib import plot_hypervolume_history
    done = [t for t in data.done if t.rewards]
    feasible = [t.rewards for t in done if t.rewards and t.constraint_violation <= 0]
    rows = feasible or [t.rewards for t in done if t.rewards]
    worst = []
    for column, direction in zip(zip(*rows, strict=True), data.directions, strict=True):
        margin = 0.1 * (max(column) - min(column)) or 1.0
        worst.append(max(column) + margin if direction == "minimize" else min(column) - margin)
    with quiet(optuna):
        study = optuna.create_study(directions=list(data.directions))
        for t in done:  # an infeasible one adds no volume
            values = (reference or worst) if t.constraint_violation > 0 else t.rewards or ()
            study.add_trial(optuna.trial.create_trial(values=list(values)))
        with plt.rc_context():  # Optuna sets a style for all figures
            ax: Axes = plot_hypervolume_history(study, list(reference or worst))
    ax.set_title("")
    return ax
