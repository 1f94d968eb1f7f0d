"""A search in Python's own logging."""

from __future__ import annotations

import logging

from llmopt.history import Proposal, Trial, Usage
from llmopt.search.spend_log import Spent
from llmopt.space.values import ABSENT
from llmopt.trackers.callback import Callback, Search
from llmopt.util.text import clean, cut

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
        self._say(search, f"asked ({proposal.source}) {_point(search, proposal.values)}")

    def told(self, search: Search, trial: Trial, best: Trial | None, usage: Usage) -> None:
        """Log a trial."""
        outcome = "failed" if trial.reward is None else f"reward {trial.reward}"
        said = f"; {cut(' '.join(trial.feedback.split()), _MOST)}" if trial.feedback else ""
        point = _point(search, trial.values)
        shown = None if best is None else best.reward
        self._say(
            search, f"trial {trial.number} ({trial.source}) {point}: {outcome}{said}; best {shown}"
        )

    def sent(self, search: Search, spent: Spent) -> None:
        """Log a request."""
        reply = spent.reply
        if reply is None:
            text = f"request failed after {spent.failed} calls: {spent.error}"
            self._logger.warning("%s: %s", search.name, clean(text))
            return
        tokens = (reply.prompt_tokens, reply.completion_tokens)
        counts = " + ".join("?" if n is None else str(n) for n in tokens)
        cost = "unknown" if reply.cost is None else f"${reply.cost:.6f}"
        model = reply.model or spent.client
        self._say(
            search, f"{model} answered in {reply.seconds:.1f} s: {counts} tokens, cost {cost}"
        )

    def ended(self, search: Search, reason: str) -> None:
        """Log the end."""
        self._say(search, f"ended{reason and f' ({reason})'}")

    def _say(self, search: Search, text: str) -> None:
        self._logger.log(self._level, "%s: %s", search.name, clean(text))


def _point(search: Search, values: tuple[object, ...]) -> str:
    pairs = zip(search.parameters, values, strict=True)
    return ", ".join(f"{n}={v!r}" for n, v in pairs if v is not ABSENT)
