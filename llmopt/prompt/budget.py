"""Which trials a prompt shows, how many of them fit its token budget, and how a log is cut."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from llmopt.client.base import Message
from llmopt.client.model_facts import ModelFacts
from llmopt.errors import PromptTooLongError
from llmopt.history import RANDOM_SOURCES, History, Trial
from llmopt.prompt.situation import Complaint, check_counts
from llmopt.util.text import estimate_tokens

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


_MESSAGE_TOKENS = 8  # the marks that a chat template puts around one message
_FIRST_PROBE = 16  # entries from which the size of all of them is extrapolated

Part = TypeVar("Part")


@dataclass(frozen=True)
class TokenBudget:
    """How many tokens a prompt may have, how they are counted, and where the limit comes from."""

    limit: int | None
    count: Callable[[str], int]
    why: str = ""

    @classmethod
    def of(cls, model: ModelFacts, max_prompt_tokens: int | None, max_tokens: int) -> TokenBudget:
        """Take the smaller of the prompt's own limit and the context less the answer's tokens."""
        limit, why = max_prompt_tokens, f"max_prompt_tokens={max_prompt_tokens}"
        if model.context_tokens is not None:
            room = model.context_tokens - max_tokens
            if limit is None or room < limit:
                limit = room
                why = (
                    f"the model's context of {model.context_tokens} tokens less "
                    f"max_tokens={max_tokens} for the answer"
                )
        return cls(limit, model.count_tokens or estimate_tokens, why)

    def holds(self, text: str) -> bool:
        """Whether a text fits."""
        return self.limit is None or self.count(text) <= self.limit

    def size(self, messages: Sequence[Message], style: str) -> int:
        """Count the tokens of a prompt, the marks around its messages included."""
        marks = _MESSAGE_TOKENS * (len(messages) + 1) if style == "chat" else 1
        return marks + sum(self.count(m.content) for m in messages)


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

    `render` makes it with the first k of the `entries` and a complaint, which is dropped if it does
    not fit even alone; `size` counts its tokens. With `align` the number of entries left out is
    rounded up to a multiple of a power of two, about a tenth of those shown, so that the prompt's
    start stays the same over several proposals and prefix caches hit.

    Raises:
        PromptTooLongError: It does not fit even with no entries in it.
    """
    if budget.limit is None:
        return render(entries, complaint)
    for sent_back in (complaint, None) if complaint else (None,):

        def shown(k: int, sent_back: Complaint | None = sent_back) -> Part:
            return render(k, sent_back)

        part = fit_most(shown, size, budget.limit, entries, align=align)
        if part is not None:
            return part
    raise PromptTooLongError(
        f"prompt {name!r}: it needs {size(render(0, None))} tokens with no history in it, and "
        f"{budget.why} leaves {max(budget.limit, 0)}: raise the limit, lower max_tokens, shorten "
        "the description or template, or take a model with a longer context"
    )


def fit_most(
    render: Callable[[int], Part],
    size: Callable[[Part], int],
    limit: int,
    entries: int,
    *,
    align: bool = False,
) -> Part | None:
    """Return the prompt with the most entries that fits, or ``None`` if none does.

    Entries of one history are about equally long, so the number that fits is extrapolated
    from a few and then corrected. This takes a handful of renderings, none of them much
    longer than the limit. After eight corrections the search is a plain bisection. See `fit`.
    """
    kept = render(0)
    low, low_size = 0, size(kept)  # fits
    if low_size > limit:
        return None
    high, high_size = entries + 1, 0  # does not fit; its size is 0 while it is not known
    slope = 0.0
    probe = min(entries, _FIRST_PROBE)
    tries = 0
    while high - low > 1:
        part = render(probe)
        probe_size = size(part)
        slope = max((probe_size - low_size) / (probe - low), 1e-9)
        if probe_size <= limit:
            low, low_size, kept = probe, probe_size, part
        else:
            high, high_size = probe, probe_size
        if high_size:
            slope = max((high_size - low_size) / (high - low), 1e-9)
        tries += 1
        probe = low + int(min((limit - low_size) / slope, entries))
        if tries > 8 and high_size:
            probe = (low + high) // 2
        elif not high_size and probe > 0.9 * entries:
            probe = entries
        probe = min(max(probe, low + 1), high - 1)
    if align and 8 < low < entries:
        unit = 1 << max(0, (low // 10).bit_length() - 1)
        fewer = entries - -(-(entries - low) // unit) * unit
        if 0 < fewer < low:
            part = render(fewer)
            return part if size(part) <= limit else kept
    return kept


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
        self._trials = list(trials[: self._first])  # trials seen so far
        ranked = ((history.rank(t), t.number) for t in self._trials)
        self._top = heapq.nsmallest(_BEST, ranked)
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
        chosen: dict[int, tuple[Trial, bool]] = {}
        used = 0
        rows = [*turns, *top, *trials[: -_RECENT - 1 : -1]]
        best = [t for t in top[:1] if t.source not in RANDOM_SOURCES]
        room = sum(size(t, True) for t in best)
        for notes, wanted, most in (
            (True, best, budget * 0.3),  # all later points start from it
            (False, rows, budget * 0.45 + room),
            (True, turns, budget * 0.58),
        ):
            for trial in wanted:
                known = chosen.get(trial.number)
                more = size(trial, notes) - (size(*known) if known else 0)
                if (notes or not known) and used + more <= most:
                    chosen[trial.number] = (trial, notes)
                    used += more
        self.kept, self._used = [chosen[number] for number in sorted(chosen)], used


def _first_of(trials: Sequence[Trial]) -> int:
    """Return how many trials a log of these begins with, cut at once."""
    return max(0, len(trials) // _STEP - 1) * _STEP
