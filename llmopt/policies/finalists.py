"""Choose which policy of a search to keep, by comparing the best ones on new initial states.

A search evaluates every policy on the same initial states; new ones reveal policies that are good
only on these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llmopt.policies.evaluation import Evaluation


def _best_index(means: Sequence[float | None]) -> int | None:
    """Return the index of the highest mean, the first of equals; ``None`` if all failed."""
    sound = [i for i, mean in enumerate(means) if mean is not None]
    return max(sound, key=lambda i: (means[i], -i), default=None)


@dataclass(frozen=True)
class Final:
    """One finalist: one of a search's best policies, evaluated on new initial states."""

    index: int  # index among the search's points, warm-up first
    returns: tuple[float, ...]
    mean: float | None  # over these and the selection set; ``None`` if an episode failed


def choose(
    points: Sequence[Any],
    outcomes: Sequence[Evaluation],
    count: int,
    evaluate: Callable[[int], Evaluation],
) -> tuple[int | None, list[Final]]:
    """Choose a search's policy among its best few.

    The best of many policies on a few initial states was partly lucky. The finalists are evaluated
    on further initial states; the highest mean over all states wins. Without finalists, the best on
    the selection set is chosen. Returns its index (``None`` if every evaluation failed) and the
    finalists, the best on the selection set first.
    """
    means = [outcome.mean for outcome in outcomes]
    finals: list[Final] = []
    sound = [i for i, mean in enumerate(means) if mean is not None]
    order = sorted(sound, key=lambda i: (-(means[i] or 0.0), i))
    first: dict[tuple[float, ...], int] = {}
    for i in order:
        first.setdefault(tuple(map(float, points[i])), i)
    for index in list(first.values())[:count]:
        fresh = evaluate(index)
        both = (*outcomes[index].returns, *fresh.returns)
        finals.append(
            Final(index, fresh.returns, None if fresh.failure else math.fsum(both) / len(both))
        )
    best = _best_index([final.mean for final in finals])
    return (_best_index(means) if best is None else finals[best].index), finals
