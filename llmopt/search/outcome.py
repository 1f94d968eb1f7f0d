"""The outcome of a search in words, for the person or agent that answers a ``folder:``."""

from __future__ import annotations

from typing import Any

from llmopt.client.base import Client
from llmopt.history import History, Trial
from llmopt.prompt.evidence import Evidence
from llmopt.space import Space
from llmopt.space.values import ABSENT
from llmopt.util.text import clean, cut

_MOST_RESULTS = 16  # of the last answer
_REASON = 1000  # characters


def inform(client: Client, text: str) -> None:
    """Give a client the outcome so far, if it takes it; see `llmopt.client.base.Client`."""
    getattr(client, "inform", lambda text: None)(text)


def informs(client: Client) -> bool:
    """Whether a client takes the outcome of a search."""
    return callable(getattr(client, "inform", None))


def conclude(client: Client, text: str, reason: str) -> None:
    """Give a client the outcome at the end of a search, and why it ended."""
    ended = f"Why it ended: {cut(' '.join(clean(reason).split()), _REASON)}\n" if reason else ""
    getattr(client, "conclude", lambda text: None)(ended + text)


def described(error: BaseException) -> str:
    """Return an exception that ended a search in words."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by Ctrl-C"
    return f"{type(error).__name__}: {error}".rstrip(": ")


def outcome(history: History, space: Space, recommended: int | None = None) -> str:
    """Return the results of the last answer, the best point and the recommended one.

    Args:
        history: All trials.
        space: Their space.
        recommended: Number from 1 of the trial to keep; ``None`` for the history's best.
    """
    if not history.trials:
        return ""
    shown = Evidence(history, space, space.names, history.trials)
    latest = shown.last_answer[-_MOST_RESULTS:] or [history.trials[-1]]
    lines = [
        f"Results of the last answer: {'; '.join(map(shown.result, latest))}",
        f"The latest: {shown.latest()}",
        f"Best first: {shown.ranking()}",
    ]
    if len(history.directions) > 1:
        return "\n".join(lines) + "\n"
    one = {trial.number: trial for trial in history.trials}
    lucky = min(history.complete, key=History((), (), history.directions).rank, default=None)
    kept = one.get((recommended or 0) - 1, history.best)
    if lucky is not None:
        lines.append(f"The best point: {_point(shown, lucky)}")
    if kept is not None and lucky is not None and kept.number != lucky.number:
        lines.append(f"The recommended point: {_point(shown, kept)}")
    return "\n".join(lines) + "\n"


def _point(shown: Evidence, trial: Trial[Any]) -> str:
    values = (
        f"{name}={shown.value(trial, i)}"
        for i, name in enumerate(shown.labels)
        if trial.values[i] is not ABSENT
    )
    return f"{shown.result(trial)}: {', '.join(values)}"
