"""Numbers and differences of trials, in the digits that tell them apart."""

from __future__ import annotations

import math

from llmopt.history import Trial

_CERTAIN = 10.0  # standard errors beyond which the error of a difference tells nothing


def number(value: float, digits: int = 6) -> str:
    """Return a number with so many significant digits, never ``-0``."""
    return f"{value + 0.0:.{digits}g}"


def rough(error: float) -> str:
    """Return a standard error with two significant digits, or as a whole number."""
    return f"{error:.0f}" if 100 <= error < 1e6 else f"{error:.2g}"


def gain(trial: Trial, other: Trial) -> str:
    """Return how much better a trial's reward is, with the error of the paired difference.

    If both were measured on the same initial states, the difference is more precise than either.
    A difference of more than ten standard errors is shown without its error.
    """
    if trial.rewards is None or other.rewards is None:
        return "no comparison"
    text = signed(trial.rewards[0] - other.rewards[0])
    error = paired_error(trial, other)
    certain = error is None or abs(trial.rewards[0] - other.rewards[0]) > _CERTAIN * error
    return text if certain else f"{text} ± {rough(error or 0.0)}"


def paired_error(trial: Trial, other: Trial) -> float | None:
    """Return the standard error of a difference of two means, start by start.

    ``None`` where they were not measured once each on the same starts.
    """
    n = len(trial.samples)
    if n < 2 or n != len(other.samples) or trial.evaluations + other.evaluations > 2:
        return None
    if "check" in (trial.kind, other.kind):  # on other initial states
        return None
    pairs = [a - b for a, b in zip(trial.samples, other.samples, strict=True)]
    mean = sum(pairs) / n
    return math.sqrt(sum((p - mean) ** 2 for p in pairs) / (n - 1) / n)


def within_noise(trial: Trial, best: Trial) -> bool:
    """Whether a trial differs from another by less than two standard errors of the difference."""
    if trial.rewards is None or best.rewards is None or trial.state != "complete":
        return False
    error = paired_error(trial, best)
    if error is None:
        error = math.hypot(trial.stderr or 0.0, best.stderr or 0.0)
    return abs(trial.rewards[0] - best.rewards[0]) < 2 * error


def telling(value: float, other: float | None, least: int) -> int:
    """Return how many digits, at least `least` and at most 12, tell a value from another one."""
    gap = 0.0 if other is None else abs(value - other)
    if not 0 < gap < abs(value) < math.inf:
        return least
    return min(max(math.ceil(math.log10(abs(value) / gap)) + 2, least), 12)


def signed(value: float) -> str:
    """Return a difference with its sign."""
    return "no change" if value == 0 else f"{value:+.4g}"
