"""Which trials a prompt shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llmopt.history import History, Trial
from llmopt.prompt.situation import check_counts

Keep = Literal["all", "last", "best", "best+last"]
_KINDS = ("all", "last", "best", "best+last")


@dataclass(frozen=True)
class Selection:
    """Which trials a prompt shows, before its token budget.

    Failed and pruned trials count as worse than every complete one.

    Attributes:
        keep: ``"all"``; ``"last"`` (the `last` latest); ``"best"`` (the `best` best);
            ``"best+last"`` (both, without repeats).
        best: How many of the best.
        last: How many of the latest.
    """

    keep: Keep = "all"
    best: int = 20
    last: int = 20

    def __post_init__(self) -> None:
        if self.keep not in _KINDS:
            raise ValueError(f"history={self.keep!r}: expected one of {', '.join(_KINDS)}")
        check_counts(self, best=0, last=0)

    @classmethod
    def of(cls, history: Keep | Selection, best: int, last: int) -> Selection:
        """Return the selection that the options of a prompt name."""
        return history if isinstance(history, Selection) else cls(history, best=best, last=last)

    def pick(self, history: History) -> list[Trial]:
        """Return the trials to show, the first to keep first.

        For ``"all"`` and ``"last"`` that is the latest first; for ``"best"``, the best
        first; for ``"best+last"``, the best and the latest by turns.
        """
        latest = list(reversed(history.trials))
        if self.keep == "all":
            return latest
        if self.keep == "last":
            return latest[: self.last]
        best = ranked(history)[: self.best]
        if self.keep == "best":
            return best
        latest = latest[: self.last]
        turns = [t for pair in zip(best, latest, strict=False) for t in pair]
        shared = min(len(best), len(latest))
        turns += best[shared:] + latest[shared:]
        return list({id(t): t for t in turns}.values())


def ranked(history: History) -> list[Trial]:
    """Return the trials best first; then pruned, then failed ones, the latest first."""
    order = list(history.ranked)
    for state in ("pruned", "failed"):
        order += [t for t in reversed(history.trials) if t.state == state]
    return order
