"""The seeded initial states on which policies are compared and judged, a stream per purpose."""

from __future__ import annotations

import numpy as np

from llmopt.util.arguments import whole_number

HELD_OUT_STARTS = 100

FURTHER_STARTS = 200

MAX_STARTS = 1_000_000
"""Maximum initial states of one evaluation; a larger number is a typing error."""

# Each purpose has its own stream, so that it does not depend on how often another one is sampled.
# Policies are compared on "selection"; a point is tried on "check" before a search ends early; the
# finalists of a search are compared on "final"; no search ever sees "held-out".
# The model's Python may simulate from "further", on which no policy is compared or judged.
_STREAMS = {"selection": 0, "held-out": 1, "warmup": 2, "method": 3, "final": 4, "check": 5,
            "further": 6}  # fmt: skip


def stream(seed: int, purpose: str, *keys: int) -> np.random.SeedSequence:
    """Return the seed sequence of one purpose of a run, and of further keys (e.g. a method)."""
    return np.random.SeedSequence(seed, spawn_key=(_STREAMS[purpose], *keys))


def start_seeds(seed: int, purpose: str, count: int) -> tuple[int, ...]:
    """Return distinct seeds of the initial states of one purpose.

    Only held-out seeds are odd, so that no held-out initial state serves another purpose.
    """
    whole_number("starts", count, 0, MAX_STARTS)
    rng = np.random.default_rng(stream(seed, purpose))
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        drawn.setdefault(2 * int(rng.integers(2**30)) + (purpose == "held-out"))
    return tuple(drawn)


def selection_seeds(seed: int, episodes: int) -> tuple[int, ...]:
    """Return the seeds of the initial states on which a search compares policies.

    One fixed set for a run: every policy of every method gets the same initial states (common
    random numbers), so that two policies differ by their actions, not by luck. The held-out initial
    states reveal policies that are good only on the selection set.
    """
    return start_seeds(seed, "selection", episodes)


def held_out_seeds(seed: int, episodes: int = HELD_OUT_STARTS) -> tuple[int, ...]:
    """Return the seeds of held-out initial states, which no search ever sees."""
    return start_seeds(seed, "held-out", episodes)
