"""Which trials a prompt shows, how many of them fit its token budget, and how a log is cut."""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from llmopt.client.base import Message
from llmopt.client.model_facts import ModelFacts
from llmopt.errors import PromptTooLongError
from llmopt.history import RANDOM_SOURCES, History, Trial
from llmopt.prompt.situation import Complaint
from llmopt.util.text import estimate_tokens

Keep = Literal["all", "last", "best"]
KEEP = ("all", "last", "best")


def pick(history: History, keep: Keep, best: int, last: int) -> list[Trial]:
    """Return the trials to show, the first to keep first.

    Failed and pruned trials count as worse than every complete one.

    Args:
        history: All trials.
        keep: ``"all"`` or ``"last"``: the latest first; ``"best"``: the best first.
        best: How many of the best.
        last: How many of the latest.
    """
    if keep == "best":
        return ranked(history)[:best]
    latest = list(reversed(history.trials))
    return latest if keep == "all" else latest[:last]


def ranked(history: History) -> list[Trial]:
    """Return the trials best first; then pruned, then failed ones, the latest first."""
    latest = history.trials[::-1]
    others = [t for state in ("pruned", "failed") for t in latest if t.state == state]
    return [*history.ranked, *others]


_MESSAGE_TOKENS = 8  # the marks that a chat template puts around one message

Part = TypeVar("Part")


@dataclass(frozen=True)
class TokenBudget:
    """How many tokens a prompt may have, and where the limit comes from."""

    limit: int | None
    why: str = ""

    @classmethod
    def of(cls, model: ModelFacts, max_prompt_tokens: int | None, max_tokens: int) -> TokenBudget:
        """Take the smaller of the prompt's own limit and the context less the answer's tokens."""
        limit, why = max_prompt_tokens, f"max_prompt_tokens={max_prompt_tokens}"
        context = model.context_tokens
        if context is not None and (limit is None or context - max_tokens < limit):
            limit = context - max_tokens
            why = f"the model's context of {context} tokens less max_tokens={max_tokens} for "
            why += "the answer"
        return cls(limit, why)

    def holds(self, text: str) -> bool:
        """Whether a text fits."""
        return self.limit is None or estimate_tokens(text) <= self.limit

    def size(self, messages: Sequence[Message], style: str) -> int:
        """Count the tokens of a prompt, the marks around its messages included."""
        marks = _MESSAGE_TOKENS * (len(messages) + 1) if style == "chat" else 1
        return marks + sum(estimate_tokens(m.content) for m in messages)


def fit(
    name: str,
    render: Callable[[int, Complaint | None], Part],
    size: Callable[[Part], int],
    budget: TokenBudget,
    entries: int,
    complaint: Complaint | None = None,
    *,
    align: bool = False,
) -> Part:
    """Return the prompt with the most entries that fits its budget.

    Args:
        name: The prompt's name, for the error.
        render: Makes the prompt with the first k entries and a complaint.
        size: Counts the tokens of a prompt.
        budget: The limit.
        entries: The most entries.
        complaint: It is dropped if it does not fit even alone.
        align: Round the number of entries left out up to a multiple of a power of two, about a
            tenth of those shown: the prompt's start stays the same over several proposals, and
            prefix caches hit.

    Raises:
        PromptTooLongError: It does not fit even with no entries in it.
    """
    limit = budget.limit
    part = render(entries, complaint)
    if limit is None or size(part) <= limit:
        return part
    for again in (complaint, None) if complaint else (None,):
        sizes = range(entries + 1)
        most = bisect_right(sizes, limit, key=lambda k: size(render(k, again))) - 1
        if most < 0:
            continue
        if align and most > 8:
            unit = 1 << max(0, (most // 10).bit_length() - 1)
            aligned = entries - -(-(entries - most) // unit) * unit
            most = aligned if aligned > 0 else most
        return render(most, again)
    raise PromptTooLongError(
        f"prompt {name!r}: it needs {size(render(0, None))} tokens with no history in it, and "
        f"{budget.why} leaves {max(limit, 0)}: raise the limit, lower max_tokens, shorten "
        "the description or template, or take a model with a longer context"
    )


_STEP = 128  # minimum number of trials between two layouts of the log
_BEST, _BEST_FULL, _LATEST = 12, 4, 3  # trials that stay when others are dropped
_RECENT = 48  # latest trials whose rows stay, if there is room

Size = Callable[[Trial, bool], int]
"""Returns the tokens of a trial's entry, with its notes or with one line of them."""


class LogBudget:
    """The trials that fit a log of limited tokens, which grows from one prompt to the next.

    Attributes:
        kept: The trials of the log in order of time, and whether each has its notes.
    """

    def __init__(self, trials: Sequence[Trial], budget: int, history: History) -> None:
        self._budget = budget
        self._first = _first_of(trials)
        self._trials = list(trials[: self._first])  # read so far
        self._top = heapq.nsmallest(_BEST, ((history.rank(t), t.number) for t in self._trials))
        self.kept: list[tuple[Trial, bool]] = []
        self._used = budget + 1 if self._trials else 0  # tokens

    def precedes(self, trials: Sequence[Trial]) -> bool:
        """Whether this is the log of some of the trials, to which the others can be added."""
        seen = self._trials
        return self._first == _first_of(trials) and seen == trials[: len(seen)]

    def extend(self, trials: Sequence[Trial], history: History, size: Size) -> None:
        """Add the trials that are new; cut the log whenever it exceeds its budget."""
        if self._used > self._budget:
            self._shorten(history, size)
        for trial in trials[len(self._trials) :]:
            self._trials.append(trial)
            insort(self._top, (history.rank(trial), trial.number))
            del self._top[_BEST:]
            self.kept.append((trial, True))
            self._used += size(trial, True)
            if self._used > self._budget:
                self._shorten(history, size)

    def _shorten(self, history: History, size: Size) -> None:
        """Cut the log to about two thirds of its budget."""
        trials, budget = self._trials, self._budget
        if len(history.directions) > 1:
            top = list(replace(history, trials=tuple(trials)).ranked[:_BEST])
        else:
            top = [history.trials[number] for _, number in self._top]
        top = [t for t in top if t.state == "complete"]
        latest = trials[: -_LATEST - 1 : -1]
        turns = [t for i in range(_BEST_FULL) for t in (*latest[i : i + 1], *top[i : i + 1])]
        rows = [*turns, *top, *trials[: -_RECENT - 1 : -1]]
        best = [t for t in top[:1] if t.source not in RANDOM_SOURCES]
        room = sum(size(t, True) for t in best)
        chosen: dict[int, tuple[Trial, bool]] = {}
        used = 0
        for notes, wanted, most in (
            (True, best, budget * 0.3),  # all later points start from it
            (False, rows, budget * 0.45 + room),
            (True, turns, budget * 0.58),
        ):
            for trial in wanted:
                before = chosen.get(trial.number)
                more = size(trial, notes) - (size(*before) if before else 0)
                if (notes or not before) and used + more <= most:
                    chosen[trial.number] = (trial, notes)
                    used += more
        self.kept, self._used = [chosen[number] for number in sorted(chosen)], used


def _first_of(trials: Sequence[Trial]) -> int:
    """Return how many trials a log of these begins with, cut at once."""
    return max(0, len(trials) // _STEP - 1) * _STEP
