"""Charts as HTML with SVG in it, for a page: learning curves with bands, held-out bars."""

from __future__ import annotations

import html
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Okabe and Ito's colours, told apart by every kind of colour vision.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#9aa0a6"
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 5", "1 4")
_FONT = 'font-family="system-ui, sans-serif" font-size="13"'


@dataclass(frozen=True)
class Curve:
    """One method's learning curve.

    Attributes:
        label: The method.
        low: ``(n,)`` lower quartile over seeds at each point.
        middle: ``(n,)`` median.
        high: ``(n,)`` upper quartile.
        style: Place in the palette, or ``None`` for a thin grey line.
        band: Whether the quartiles are drawn, too.
    """

    label: str
    low: np.ndarray
    middle: np.ndarray
    high: np.ndarray
    style: int | None
    band: bool = True


@dataclass(frozen=True)
class Bar:
    """One method's held-out score: quartiles over seeds, and each seed.

    Attributes:
        label: The method.
        low: Lower quartile.
        middle: Median.
        high: Upper quartile.
        points: Score of each seed.
        style: Place in the palette, or ``None`` for grey.
    """

    label: str
    low: float
    middle: float
    high: float
    points: tuple[float, ...]
    style: int | None


def color(style: int | None) -> str:
    """Return the colour of a place in the palette."""
    return GREY if style is None else COLORS[style % len(COLORS)]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers from `low` to `high`."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low]
    raw = span / count
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def number(value: float) -> str:
    """Return a number for an axis or a table, as short as it can be read."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞" if value < 0 else "–"
    size = abs(value)
    decimals = 0 if size >= 1000 else 1 if size >= 100 else 2
    text = f"{value:,.{decimals}f}"
    if decimals:
        text = text.rstrip("0").rstrip(".")
    return (text if float(text.replace(",", "")) else "0").replace("-", "−")


def learning_curves(curves: Sequence[Curve], warmup: int, title: str, ylabel: str) -> str:
    """Draw medians with bands of the quartiles against the number of evaluated points.

    The vertical axis shows what happens after the warm-up; what lies below is cut off.
    """
    width, height, left, right, top, bottom = 600, 340, 88, 22, 12, 52
    longest = max((len(c.middle) for c in curves), default=1)
    seen = [
        v[np.isfinite(v)]
        for c in curves
        for v in (c.low[max(warmup - 1, 0) :], c.high[max(warmup - 1, 0) :])
    ]
    values = np.concatenate(seen) if seen else np.zeros(1)
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    # One method that begins far below the others must not flatten all that matters.
    if values.size and high > low:
        low = max(low, float(np.quantile(values, 0.02)) - 0.05 * (high - low))
    pad = 0.04 * (high - low) or 1.0
    low, high = low - pad, high + pad

    def x(i: float) -> float:
        return left + (i - 1) / max(longest - 1, 1) * (width - left - right)

    def y(v: float) -> float:
        return height - bottom - (v - low) / (high - low) * (height - top - bottom)

    out = [_open(width, height, title)]
    clip = f"clip{zlib.crc32(title.encode())}"
    box = f'x="{left}" y="{top}" width="{width - left - right}" height="{height - top - bottom}"'
    out.append(f'<clipPath id="{clip}"><rect {box}/></clipPath>')
    if warmup > 1:
        out.append(
            f'<rect x="{left}" y="{top}" width="{x(warmup) - left:.1f}" '
            f'height="{height - top - bottom}" fill="#eef0f2" class="shade"/>'
            f'<text x="{left + 4}" y="{top + 17}" opacity="0.7">warm-up</text>'
        )
    for tick in ticks(low, high):
        out.append(
            f'<line x1="{left}" x2="{width - right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" '
            f'stroke="#e3e6e8" class="grid"/><text x="{left - 7}" y="{y(tick) + 4:.1f}" '
            f'text-anchor="end">{number(tick)}</text>'
        )
    for tick in ticks(1, longest, 6):
        if tick >= 1 and tick == int(tick):  # evaluations are counted
            out.append(
                f'<text x="{x(tick):.1f}" y="{height - bottom + 18}" '
                f'text-anchor="middle">{number(tick)}</text>'
            )
    out.append(
        f'<text x="{(left + width - right) / 2}" y="{height - 8}" text-anchor="middle">'
        f"evaluated policies</text>"
        f'<text transform="translate(14 {(height - bottom + top) / 2}) rotate(-90)" '
        f'text-anchor="middle">{html.escape(ylabel)}</text>'
        f'<g clip-path="url(#{clip})">'
    )
    # The grey ones first, so that they lie below.
    for curve in sorted(curves, key=lambda c: c.style is not None):
        at = [i for i in range(len(curve.middle)) if np.isfinite(curve.middle[i])]
        if not at:
            continue
        hue = color(curve.style)
        name = f"<title>{html.escape(curve.label)}</title>"
        if curve.style is not None and curve.band:
            upper = [(x(i + 1), y(curve.high[i])) for i in at]
            lower = [(x(i + 1), y(curve.low[i])) for i in reversed(at)]
            out.append(f'<polygon points="{_points(upper + lower)}" fill="{hue}" opacity="0.14"/>')
        dash = _DASHES[curve.style % len(_DASHES)] if curve.style is not None else ""
        stroke = 2.2 if curve.style is not None else 1
        out.append(
            f'<polyline points="{_points([(x(i + 1), y(curve.middle[i])) for i in at])}" '
            f'fill="none" stroke="{hue}" stroke-width="{stroke}"'
            + (f' stroke-dasharray="{dash}"' if dash else "")
            + f">{name}</polyline>"
        )
    out.append("</g></svg>")
    return "".join(out)


def legend(items: Sequence[tuple[str, int | None]]) -> str:
    """Return a legend in HTML that wraps where the page is narrow."""
    parts = []
    for label, style in items:
        dash = _DASHES[style % len(_DASHES)] if style is not None else ""
        line = (
            f'<svg width="30" height="10" aria-hidden="true"><line x1="1" x2="29" y1="5" y2="5" '
            f'stroke="{color(style)}" stroke-width="{2.2 if style is not None else 1}"'
            + (f' stroke-dasharray="{dash}"' if dash else "")
            + "/></svg>"
        )
        parts.append(f"<span>{line} {html.escape(label)}</span>")
    return f'<div class="legend">{"".join(parts)}</div>'


def heldout_bars(bars: Sequence[Bar], title: str) -> str:
    """Draw each method's median, its quartiles and its seeds, best above.

    Each row is a label, which wraps where it has to, and a picture as wide as there is room.
    What lies beyond the picture is drawn as a small triangle at its edge: a few very bad
    runs must not flatten all that matters.

    Args:
        bars: In the order in which they are drawn.
        title: For readers that see no picture.
    """
    low, high = _bar_range(bars)

    def x(value: float) -> float:
        return 100 * (min(max(value, low), high) - low) / (high - low)

    marks = [(x(tick), number(tick)) for tick in ticks(low, high, 4)]
    lines = "".join(
        f'<line x1="{at:.2f}%" x2="{at:.2f}%" y1="0" y2="24" stroke="#e3e6e8" class="grid"/>'
        for at, _ in marks
    )
    rows = [f'<div class="bars" role="img" aria-label="{html.escape(title, quote=True)}">']
    for bar in bars:
        fill = color(bar.style)
        label = html.escape(bar.label)
        name = f"<b>{label}</b>" if bar.style is not None else label
        rows.append(
            f'<span>{name}</span><svg height="24" {_FONT} aria-hidden="true">{lines}<g>'
            f"<title>{label}: {number(bar.middle)} [{number(bar.low)}, {number(bar.high)}]</title>"
        )
        if bar.high >= low:
            rows.append(
                f'<rect x="{x(bar.low):.2f}%" y="5" width="{x(bar.high) - x(bar.low):.2f}%" '
                f'height="14" fill="{fill}" opacity="0.35"/>'
            )
        rows += [
            f'<circle cx="{x(p):.2f}%" cy="12" r="2.4" fill="{fill}" opacity="0.8"/>'
            for p in bar.points
            if low <= p <= high
        ]
        if any(p < low for p in bar.points):
            rows.append(f'<polygon points="0,12 6,8 6,16" fill="{fill}"/>')
        if bar.middle >= low:
            rows.append(
                f'<rect x="{x(bar.middle):.2f}%" y="3" width="3" height="18" fill="{fill}" '
                'transform="translate(-1.5)" stroke="white" stroke-width="0.8"/>'
            )
        rows.append("</g></svg>")
    axis = "".join(
        f'<text x="{at:.2f}%" y="14" text-anchor="middle">{text}</text>' for at, text in marks
    )
    rows.append(f'<span></span><svg height="20" {_FONT} aria-hidden="true">{axis}</svg></div>')
    return "".join(rows)


def _bar_range(bars: Sequence[Bar]) -> tuple[float, float]:
    """Return what the axis shows: all, but little of what lies far below most medians."""
    points = [v for b in bars for v in (*b.points, b.low, b.high) if math.isfinite(v)] or [0.0]
    middles = [b.middle for b in bars if math.isfinite(b.middle)] or points
    low, high = min(points), max(points)
    span = high - float(np.median(middles))
    if span > 0:
        # A median is worth more room than a single seed.
        low = max(low, min(high - 4 * span, max(min(middles), high - 10 * span)))
    pad = 0.05 * (high - low) or 1.0
    return low - pad, high + pad


def _open(width: float, height: float, title: str) -> str:
    return (
        f'<svg class="curves" viewBox="0 0 {width} {height}" role="img" {_FONT} fill="#2b2f33" '
        f'xmlns="http://www.w3.org/2000/svg" aria-label="{html.escape(title, quote=True)}">'
    )


def _points(points: Sequence[tuple[float, float]]) -> str:
    # A step far below the picture would only make the file larger.
    return " ".join(f"{a:.1f},{min(max(b, -9999), 9999):.1f}" for a, b in points)
