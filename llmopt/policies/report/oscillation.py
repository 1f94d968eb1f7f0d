"""What oscillates in the signals of some episodes: common period, phase lags, peaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_MIN_STEPS = 16  # fewer steps show no oscillation
_PERIODIC = 0.4  # least autocorrelation one period later
_DOMINANT = 0.4  # least share of the reference's variance that oscillates
_PERIODS = 2.5  # least periods in the second half of an episode
_COHERENT = 0.5  # least agreement of a phase lag between episodes


@dataclass(frozen=True)
class Wave:
    """A common oscillation."""

    reference: int  # the signal behind which the lags are told
    period: float  # in steps
    lags: dict[int, float]  # lag in degrees of each signal that takes part
    other: dict[int, float]  # the own period of each signal that has another one


def common_wave(episodes: Sequence[np.ndarray], observed: int) -> Wave | None:
    """Return the strongest common period, and the lags of all signals in it, if there is one.

    Each of `episodes` is a ``(steps, signals)`` array; the first `observed` signals may give the
    period.
    """
    longest = max(len(rows) for rows in episodes)
    least = max(0.8 * longest, 2 * _MIN_STEPS)
    signals = [detrended(rows[len(rows) // 2 :]) for rows in episodes if len(rows) >= least]
    if not signals:
        return None
    periods = _periods([s[:, :observed] for s in signals])
    strong = sorted(
        (i for i, (p, r) in enumerate(periods) if p and r >= _PERIODIC),
        key=lambda i: -periods[i][1],
    )
    if not strong:
        return None
    # The period that most observations share, told by the one that keeps it best.
    first = max(
        strong, key=lambda i: sum(abs(periods[j][0] / periods[i][0] - 1) < 0.1 for j in strong)
    )
    period = periods[first][0]
    amplitude, _, share, _ = _phases(signals, period, first)
    # Lags against the same signal for every policy, where it takes part.
    first = next((i for i in range(observed) if share[i] > 0.3 and amplitude[i] > 1e-6), first)
    amplitude, lag, share, agree = _phases(signals, period, first)
    if share[first] < _DOMINANT or not _lasts([s[:, first] for s in signals], period):
        return None
    lags = {
        i: float(lag[i])
        for i in range(len(lag))
        if share[i] > 0.2 and agree[i] > _COHERENT and amplitude[i] > 1e-6
    }
    if len(lags) < 2:
        return None
    other = {i: periods[i][0] for i in strong if abs(periods[i][0] / period - 1) >= 0.1}
    return Wave(first, period, {**lags, first: 0.0}, other)


def _lasts(columns: list[np.ndarray], period: float) -> bool:
    """Whether an oscillation goes on: a few periods, and not dying away as what settles does."""
    if min(map(len, columns)) < _PERIODS * period:
        return False
    halves = [[half.std() for half in np.array_split(column, 2)] for column in columns]
    before, after = np.mean(halves, axis=0)
    return bool(after >= 0.5 * before)


def peaks(column: np.ndarray, period: float) -> list[int]:
    """Return the steps at which a signal is the largest within half a period around them."""
    half = max(1, int(0.5 * period))
    found = []
    for k in range(1, len(column) - 1):
        around = column[max(0, k - half) : k + half + 1]
        if column[k] == around.max() and column[k] > column[k - 1]:
            found.append(k)
    return found


def detrended(rows: np.ndarray) -> np.ndarray:
    """Take a straight line out of each column."""
    t = np.linspace(-1.0, 1.0, len(rows))
    rows = rows - rows.mean(axis=0)
    return np.asarray(rows - np.outer(t, t @ rows / (t @ t)))


def _periods(signals: list[np.ndarray]) -> list[tuple[float, float]]:
    """Return the period of each column in steps (0 for none) and the autocorrelation there."""
    lags = min(len(s) for s in signals) // 2
    total = np.zeros((lags, signals[0].shape[1]))
    for rows in signals:
        n = len(rows)
        spectrum = np.fft.rfft(rows, 2 * n, axis=0)
        raw = np.fft.irfft(np.abs(spectrum) ** 2, axis=0)[:lags]
        moving = raw[0] > n * 1e-12
        # Each lag's products are fewer by the lag: without this long periods look weak.
        total += np.where(moving, raw / np.where(moving, raw[0], 1.0), 0.0) * (
            n / (n - np.arange(lags))
        ).reshape(-1, 1)
    found = []
    for column in (total / len(signals)).T:
        below = np.flatnonzero(column < 0)
        if not len(below):
            found.append((0.0, 0.0))
            continue
        after = column[below[0] :]
        peak = float(after.max())
        at = int(np.flatnonzero(after >= 0.9 * peak)[0]) if peak > 0 else 0
        while peak > 0 and at + 1 < len(after) and after[at + 1] > after[at]:
            at += 1
        lag = int(below[0]) + at
        if peak <= 0 or not 1 < lag < lags - 1:
            found.append((0.0, 0.0))
            continue
        a, b, c = column[lag - 1 : lag + 2]
        bend = a - 2 * b + c
        offset = 0.5 * (a - c) / bend if bend < 0 else 0.0
        found.append((lag + float(np.clip(offset, -0.5, 0.5)), float(b)))
    return found


def _phases(
    signals: list[np.ndarray], period: float, reference: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return amplitude, lag in degrees, share of variance and agreement of each column.

    A lag is positive where the column comes later than the reference; the agreement between
    episodes is 1 where all have the same lag.
    """
    columns = signals[0].shape[1]
    cross = np.zeros(columns, dtype=complex)
    weight = np.zeros(columns)
    power, variance = np.zeros(columns), np.zeros(columns)
    for rows in signals:
        n = max(1, int(len(rows) // period)) * period
        rows = rows[: max(2, round(n))]
        wave = np.exp(-2j * np.pi * np.arange(len(rows)) / period)
        c = 2 * (wave @ rows) / len(rows)
        cross += c[reference] * np.conj(c)
        weight += np.abs(c[reference]) * np.abs(c)
        power += np.abs(c) ** 2 / 2
        variance += rows.var(axis=0)
    amplitude = np.sqrt(2 * power / len(signals))
    share = power / np.maximum(variance, 1e-300)
    agree = np.abs(cross) / np.maximum(weight, 1e-300)
    return amplitude, np.degrees(np.angle(cross)), share, agree
