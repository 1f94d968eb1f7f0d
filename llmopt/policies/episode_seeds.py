"""The seeded starts on which policies are compared and judged, a stream for each purpose."""

from __future__ import annotations

import numpy as np

from llmopt.util.arguments import whole_number

HELD_OUT_STARTS = 100

MAX_STARTS = 1_000_000
"""Starts of one evaluation at most: more is a slip of the pen."""

# Each purpose has its own stream, so that none depends on how much another one drew. Policies are
# compared on "selection"; a point is tried on "check" before a search ends early; the best few of
# a search are compared on "final"; no search ever sees "held-out".
_STREAMS = {"selection": 0, "held-out": 1, "warmup": 2, "method": 3, "final": 4, "check": 5}


def stream(seed: int, purpose: str, *keys: int) -> np.random.SeedSequence:
    """Return the seed sequence of one purpose of a run, and of further keys (a method, say)."""
    return np.random.SeedSequence(seed, spawn_key=(_STREAMS[purpose], *keys))


def start_seeds(seed: int, purpose: str, count: int) -> tuple[int, ...]:
    """Return distinct seeds of the starts of one purpose.

    They are odd for held-out starts alone: by parity no start is both held-out and another.
    """
    whole_number("starts", count, 0, MAX_STARTS)
    rng = np.random.default_rng(stream(seed, purpose))
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        drawn.setdefault(2 * int(rng.integers(2**30)) + (purpose == "held-out"))
    return tuple(drawn)


def selection_seeds(seed: int, episodes: int) -> tuple[int, ...]:
    """Return the seeds of the starts on which policies are compared during a search.

    They are one fixed set for a run: every policy of every method meets the same starts
    (common random numbers), so that two policies differ by what they do, not by luck.
    What is gained on these very starts alone shows on the held-out ones.
    """
    return start_seeds(seed, "selection", episodes)


def held_out_seeds(seed: int, episodes: int = HELD_OUT_STARTS) -> tuple[int, ...]:
    """Return the seeds of fresh starts, which no search ever sees."""
    return start_seeds(seed, "held-out", episodes)
