"""A search as a table, a picture and a page of a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from llmopt.errors import LLMOptError, needs
from llmopt.history import History, Trial
from llmopt.space.values import ABSENT
from llmopt.util.text import cut

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

SHOWN_TRIALS = 20
"""Trials that the page of a notebook shows: the latest of them."""

_COLOURS = {
    "llm": "#0072b2",
    "drawn": "#56b4e9",
    "fallback": "#d55e00",
    "warmup": "#999999",
    "cma": "#009e73",
    "refine": "#56b4e9",
    "finish": "#56b4e9",
    "network": "#e69f00",
    "sampler": "#009e73",
    "user": "#cc79a7",
}
_WORDS = 120  # characters of an explanation or a feedback in a cell


class TrialList(list[Trial[Any]]):
    """Trials in the order of telling; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        return trials_html(self)


def _rewards(trial: Trial[Any], objectives: int) -> dict[str, float | None]:
    given = trial.rewards or (None,) * objectives
    if objectives == 1:
        return {"reward": given[0]}
    return {f"reward_{i}": reward for i, reward in enumerate(given)}


def dataframe(
    trials: Sequence[Trial[Any]], names: Sequence[str], objectives: int
) -> pandas.DataFrame:
    """Return one row for each trial; see `LLMOptimizer.trials_dataframe`."""
    without = ". Without it, the same is in `optimizer.trials`"
    with needs("trials_dataframe()", "pandas", otherwise=without):
        import pandas
    rows = [
        {
            "number": trial.number,
            "state": trial.state,
            **_rewards(trial, objectives),
            "stderr": trial.stderr,
            "constraint_violation": trial.constraint_violation,
            **{
                f"params_{name}": None if v is ABSENT else v
                for name, v in zip(names, trial.values, strict=True)
            },
            "source": trial.source,
            "feedback": trial.feedback,
            "explanation": trial.explanation,
            "prompt_tokens": trial.prompt_tokens,
            "completion_tokens": trial.completion_tokens,
            "seconds": trial.seconds,
        }
        for trial in trials
    ]
    return pandas.DataFrame(rows)


def plot(history: History, ax: Axes | None = None) -> Axes:
    """Draw the reward of each trial and the best so far; see `LLMOptimizer.plot_history`."""
    if len(history.directions) > 1:
        raise LLMOptError(
            f"plot_history() draws one objective, and this search has {len(history.directions)}: "
            "draw the columns of trials_dataframe() against each other"
        )
    if ax is None:
        with needs("plot_history()", "matplotlib"):
            import matplotlib.pyplot as plt
        _, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    done = [t for t in history.complete if t.rewards]
    for source, colour in _COLOURS.items():
        points = [(t.number + 1, t.rewards[0]) for t in done if t.rewards and t.source == source]
        if points:
            numbers, rewards = zip(*points, strict=True)
            ax.scatter(numbers, rewards, s=16, color=colour, label=source)
    for number, trial in enumerate(history.failed):
        ax.axvline(trial.number + 1, color="#dddddd", zorder=0, label=None if number else "failed")
    if best := history.best_so_far:
        line = [t.rewards[0] for t in best if t.rewards]
        at = [t.number + 1 for t in done if t.constraint_violation <= 0]
        end = len(history.trials)
        ax.step([*at, end], [*line, line[-1]], where="post", color="black", label="best")
    ax.set_xlabel("trial")
    ax.set_ylabel("reward")
    if done or history.failed:
        ax.legend(frameon=False, fontsize="small")
    return ax


def _cell(value: Any) -> str:
    if isinstance(value, float):
        text = f"{value:.6g}"
    elif isinstance(value, dict):
        parts = (f"{k}: {v:.6g}" if isinstance(v, float) else f"{k}: {v}" for k, v in value.items())
        text = ", ".join(parts)
    elif isinstance(value, np.ndarray):
        text = np.array2string(value, precision=4, threshold=8, separator=", ")
    else:
        text = str(value)
    return escape(cut(text, _WORDS))


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    top = "".join(f"<th>{_cell(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{_cell(v)}</td>" for v in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def trials_html(trials: Sequence[Trial[Any]]) -> str:
    """Return the latest trials as a table. What models and users wrote is escaped."""
    shown = trials[-SHOWN_TRIALS:]
    words = [name for name in ("feedback", "explanation") if any(getattr(t, name) for t in shown)]
    rows = [
        (
            t.number,
            "failed" if t.reward is None else t.reward,
            t.params,
            t.source,
            *(getattr(t, name) for name in words),
        )
        for t in shown
    ]
    head = ("number", "reward", "params", "source", *words)
    cut = len(trials) - len(rows)
    note = f"<p>The latest {len(rows)} of {len(trials)} trials.</p>" if cut else ""
    return note + _table(head, rows)


def search_html(title: str, facts: Sequence[tuple[str, Any]], trials: Sequence[Trial[Any]]) -> str:
    """Return a search as a page of a notebook: facts, then its latest trials."""
    lines = "".join(f"<tr><th>{_cell(name)}</th><td>{_cell(v)}</td></tr>" for name, v in facts)
    return f"<p><b>{escape(title)}</b></p><table>{lines}</table>{trials_html(trials)}"
