"""Two inequalities of additive combinatorics: step functions that lower a known upper bound.

Without a model the script replays recorded searches, without a key. The model was a frontier chat
model, answering in conversations, which remembered its earlier answers. The values are exact:
heights are taken as the rational numbers that they are, and a bound is rounded up.

    python inequalities.py                           # the recordings
    python inequalities.py overlap                   # one of them
    python inequalities.py overlap folder:overlap    # your own model: llmopt next overlap
"""

import math
import sys
from fractions import Fraction

import llmopt
from llmopt.benchmarks.experiments.recordings import recording

N = 600
HEIGHTS = {f"h{i}": llmopt.Float(0, 1) for i in range(N)}
AUTOCORRELATION = (
    "The first autocorrelation inequality. A step function f >= 0 on [-1/4, 1/4] has {n} steps of "
    "equal width with heights h0, h1, ...; its scale does not matter, and it is zero elsewhere. "
    "Minimize max over t of (f*f)(t), divided by the square of the integral of f: with S the sum "
    "of the heights, 2 * {n} * max_k sum_i h_i h_(k-i) / S^2, exactly. Each such value is an upper "
    "bound of the constant of the inequality; the lowest published one is 1.502862."
)
OVERLAP = (
    "Erdős' minimum overlap problem. A step function f on [0, 2] with values in [0, 1] and "
    "integral 1 has {n} steps of equal width. Its heights are s*h0, s*h1, ..., and the evaluation "
    "sets s = ({n}/2) / (h0 + h1 + ...), so that the integral is exactly 1; if s*h_i is above 1 "
    "for any i, the evaluation fails. Minimize the largest overlap over shifts k: "
    "max_k (2/{n}) * sum_i f_i (1 - f_(i+k)), over those i for which i and i+k are both steps, for "
    "k from -{n}+1 to {n}-1. Each such value is an upper bound of the constant of the problem; the "
    "lowest published one is 0.380868."
)


def whole_numbers(point):
    """Return the heights times one power of two, exactly."""
    ratios = [point[f"h{i}"].as_integer_ratio() for i in range(N)]
    power = max(bottom for _, bottom in ratios)
    return [top * (power // bottom) for top, bottom in ratios]


def convolution(a, b):
    """Return the convolution of two lists of whole numbers, none below 0, exactly.

    Each list becomes one number whose digits are far enough apart not to meet.
    """
    bits = (max(a) * max(b) * len(a)).bit_length() + 1
    width = -(-bits // 8)
    one, two = (
        int.from_bytes(b"".join(n.to_bytes(width, "little") for n in each), "little")
        for each in (a, b)
    )
    size = len(a) + len(b) - 1
    digits = (one * two).to_bytes(width * size + 1, "little")
    return [int.from_bytes(digits[i * width : (i + 1) * width], "little") for i in range(size)]


def rounded_up(bound):
    """Return the smallest float that is not below a fraction."""
    value = float(bound)
    return value if Fraction(value) >= bound else math.nextafter(value, math.inf)


def autocorrelation(point):
    """Return the upper bound that a step function gives for the autocorrelation constant."""
    heights = whole_numbers(point)
    if not any(heights):
        raise ValueError("all heights are 0")
    peak = max(convolution(heights, heights))
    return rounded_up(Fraction(2 * N * peak, sum(heights) ** 2))


def overlap(point):
    """Return the upper bound that a step function gives for the overlap constant."""
    heights = whole_numbers(point)
    total = sum(heights)
    if not total or (excess := Fraction(N * max(heights), 2 * total) - 1) > 0:
        raise ValueError(f"s*max(h) is 1 + {float(excess):.3g}" if total else "all heights are 0")
    # f_i = N h_i / (2 total): over the common denominator, f_i and 1 - f_i are whole numbers
    ones = [N * h for h in heights]
    zeros = [2 * total - f for f in ones]
    peak = max(convolution(ones, zeros[::-1]))
    return rounded_up(Fraction(2 * peak, N * (2 * total) ** 2))


PROBLEMS = {"autocorrelation": (autocorrelation, AUTOCORRELATION), "overlap": (overlap, OVERLAP)}


if __name__ == "__main__":
    for name in sys.argv[1:2] or PROBLEMS:
        evaluate, words = PROBLEMS[name]
        model = sys.argv[2] if len(sys.argv) > 2 else None
        model = model or llmopt.ReplayClient(recording(f"inequality-{name}"), strict=False)
        words = words.format(n=N)
        result = llmopt.minimize(evaluate, HEIGHTS, 12, model, description=words, seed=0)
        for trial in result.trials:
            print(f"{name}: {trial.reward} {trial.feedback}")
        print(result.stopped)
