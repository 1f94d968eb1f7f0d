"""A search in Python's own logging."""

from __future__ import annotations

import logging

from llmopt.history import Proposal, Trial, Usage
from llmopt.search.meter import Spent
from llmopt.text import clean, cut
from llmopt.trackers.base import Callback, Search

_MOST = 200  # characters of words


class Log(Callback):
    """Logs a line for everything that happens, under the logger ``llmopt.search``.

    Args:
        level: The level of the lines; requests that failed are warnings.
        logger: Another logger.
    """

    def __init__(self, level: int = logging.INFO, logger: logging.Logger | None = None) -> None:
        self._level = level
        self._logger = logger or logging.getLogger("llmopt.search")

    def asked(self, search: Search, proposal: Proposal) -> None:
        """Log a point."""
        self._logger.log(
            self._level,
            "%s: asked (%s) %s",
            search.name,
            proposal.source,
            _point(search, proposal.values),
        )

    def told(self, search: Search, trial: Trial, best: Trial | None, usage: Usage) -> None:
        """Log a trial."""
        outcome = "failed" if trial.reward is None else f"reward {trial.reward}"
        words = f"; {_short(trial.feedback)}" if trial.feedback else ""
        self._logger.log(
            self._level,
            "%s: trial %d (%s) %s: %s%s; best %s",
            search.name,
            trial.number,
            trial.source,
            _point(search, trial.values),
            outcome,
            words,
            None if best is None else best.reward,
        )

    def sent(self, search: Search, spent: Spent) -> None:
        """Log a request."""
        if spent.reply is None:
            self._logger.warning(
                "%s: request failed after %d calls: %s", search.name, spent.failed, spent.error
            )
            return
        reply = spent.reply
        self._logger.log(
            self._level,
            "%s: %s answered in %.1f s: %d + %d tokens, cost %s",
            search.name,
            reply.model or spent.client,
            reply.seconds,
            reply.prompt_tokens,
            reply.completion_tokens,
            "unknown" if reply.cost is None else f"${reply.cost:.6f}",
        )

    def ended(self, search: Search, reason: str) -> None:
        """Log the end."""
        self._logger.log(self._level, "%s: ended%s", search.name, reason and f" ({reason})")


def _point(search: Search, values: tuple[object, ...]) -> str:
    return ", ".join(f"{n}={v!r}" for n, v in zip(search.parameters, values, strict=True))


def _short(text: str) -> str:
    return cut(clean(" ".join(text.split())), _MOST)
