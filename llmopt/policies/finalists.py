"""Which policy of a search to keep: what held-out initial states say of the best ones.

The initial states of a search are the same for every policy, so that policies differ by what they
do. What is gained on these very states alone shows on others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llmopt.policies.evaluation import Evaluation


def _best_index(means: Sequence[float | None]) -> int | None:
    """Return the place of the largest mean, the first of equals; ``None`` if all failed."""
    sound = [i for i, mean in enumerate(means) if mean is not None]
    return max(sound, key=lambda i: (means[i], -i), default=None)


@dataclass(frozen=True)
class Final:
    """The last round of a search: one of its best few policies on fresh starts."""

    index: int  # place among the search's points, warm-up first
    returns: tuple[float, ...]
    mean: float | None  # of these and the selection starts; ``None`` if an episode failed


def choose(
    points: Sequence[Any],
    outcomes: Sequence[Evaluation],
    count: int,
    evaluate: Callable[[int], Evaluation],
) -> tuple[int | None, list[Final]]:
    """Choose a search's policy: of the best few, the best on fresh starts, too.

    What was the best of many on a few starts was lucky on them. The finalists are evaluated
    on further starts, and the mean over all of a finalist's starts decides. Without finalists the
    best on the selection starts is chosen. Returns its place, ``None`` where no evaluation was
    sound, and the finalists, the best on the selection starts first.
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
