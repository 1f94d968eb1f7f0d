"""The small network: 80,000 weights for the prompt `columns`, with only NumPy.

The weights are part of the package, and were trained on the same lines as the embedded model's
adapter (`llmopt.benchmarks.experiments.train_columns`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase

import numpy as np

from llmopt.client.base import Completion, Reply, Request
from llmopt.client.model_facts import ModelFacts
from llmopt.client.prices import free
from llmopt.errors import ClientError

NETWORK = Path(__file__).with_name("network.npz")
"""Weights of `Network`, part of the package."""

LEVELS = len(ascii_lowercase)

_RULE = re.compile(r"^(\w+) ::= (.*)$", re.MULTILINE)
_RANGE = re.compile(r"\[([a-z])-([a-z])\]")


class Network:
    """Two hidden layers that read a line as numbers; a `temperature` above 1 spreads."""

    def __init__(self, weights: Mapping[str, np.ndarray], temperature: float = 1.0) -> None:
        self._weights = [(weights[f"w{i}"], weights[f"b{i}"]) for i in range(3)]
        self._temperature = max(temperature, 1e-3)  # its limit is the likeliest level

    @classmethod
    def load(cls, path: Path = NETWORK, temperature: float = 1.0) -> Network:
        """Read the weights from an ``.npz`` file."""
        with np.load(path) as stored:
            return cls({k: stored[k].astype(np.float64) for k in stored.files}, temperature)

    def __call__(
        self, levels: np.ndarray, leading: np.ndarray, dimensions: np.ndarray
    ) -> np.ndarray:
        """Return the ``(count, LEVELS)`` probabilities that each level is good.

        `levels` has shape ``(count, 20)``: the best points, best first. `leading` states for each
        line whether its axis is the slope, and `dimensions` its search's number of parameters.
        """
        x = features(levels, leading, dimensions)
        for weight, bias in self._weights[:-1]:
            x = np.maximum(x @ weight.T + bias, 0)
        weight, bias = self._weights[-1]
        scores = (x @ weight.T + bias) / self._temperature
        powers = np.exp(scores - scores.max(1, keepdims=True))
        probabilities: np.ndarray = powers / powers.sum(1, keepdims=True)
        return probabilities

    @property
    def points(self) -> int:
        """The number of best points that it reads."""
        return int(self._weights[0][0].shape[1]) - 2


def features(levels: np.ndarray, leading: np.ndarray, dimensions: np.ndarray) -> np.ndarray:
    """Return the ``(count, points + 2)`` numbers that the network reads."""
    scaled = (np.asarray(levels, dtype=float) - (LEVELS - 1) / 2) / 6
    return np.column_stack([scaled, leading, np.log(dimensions) - 1.5])


class NetworkClient:
    """Draws each parameter's level from the small network, or at random before the first lines."""

    name = "network"
    without_tokens = "which has no tokens; free, on this machine"
    columns = True
    local = True

    def facts(self) -> ModelFacts:
        """Return the model's facts."""
        return ModelFacts(
            name=self.name,
            style="completion",
            chats=False,
            default_prompt="columns",
            columns=True,
            grammar=False,
            parameters=78_106,
            reads_text=False,
            most_cost=free,
        )

    def complete(self, request: Request) -> Reply:
        """Answer one request, which must have lines of letters or a grammar of them."""
        rng = np.random.default_rng(request.seed)
        if not request.columns:
            return Reply((Completion(draw_row(rng, request)),), self.name, 0, 0, 0, cost=0.0)
        network = _network(1.0 if request.temperature is None else request.temperature)
        dimensions, leading, lines = zip(*map(read_line, request.columns), strict=True)
        levels = np.array(lines)[:, : network.points]
        # Fewer trials than it was trained on: the last one replaces the missing ones.
        missing = network.points - levels.shape[1]
        levels = np.pad(levels, ((0, 0), (0, missing)), mode="edge")
        weights = network(levels, np.array(leading), np.array(dimensions))
        text = "".join(request.choices[k] for k in draw_choices(rng, weights, 1)[0])
        return Reply((Completion(text),), self.name, 0, 0, 0, cost=0.0)


@functools.cache
def _network(temperature: float) -> Network:
    return Network.load(NETWORK, temperature)


def draw_choices(rng: np.random.Generator, weights: np.ndarray, count: int) -> np.ndarray:
    """Sample ``(count, n)`` choices, each column by its row of ``(n, n_choices)`` weights."""
    sums = weights.cumsum(axis=1)
    drawn: np.ndarray = (rng.random((count, len(sums), 1)) * sums[:, -1:] >= sums).sum(axis=-1)
    return drawn.clip(0, weights.shape[1] - 1)


def draw_row(rng: np.random.Generator, request: Request) -> str:
    """Sample a row of letters from a normal distribution around the middle of a grammar's range.

    Its standard deviation is a fifth of the range, which is one standard deviation of the best
    trials if the range is their frame (`ColumnsPrompt.spread` is 2.5).
    """
    ranges = letter_ranges(request.grammar or "")
    return "".join(f" {ascii_lowercase[_level(rng, *r)]}" for r in ranges)


def _level(rng: np.random.Generator, first: int, last: int) -> int:
    if first == last:
        return first
    count = last - first + 1
    return first + min(max(round(rng.normal((count - 1) / 2, count / 5)), 0), count - 1)


def letter_ranges(grammar: str) -> list[tuple[int, int]]:
    """Return the lowest and highest level of each place of a row, by the grammar of `columns`."""
    rules = dict(_RULE.findall(grammar))
    names = re.findall(r"\w+", rules.get("root", "").replace(r"\n", ""))
    found = [_RANGE.fullmatch(rules.get(name, "")) for name in names]
    if not found or None in found:
        raise ClientError(
            "a numeric-only model answers only the prompt 'columns': take this prompt, or a chat "
            "model"
        )
    place = ascii_lowercase.index
    return [(place(m[1]), place(m[2])) for m in found if m]


def read_line(line: str) -> tuple[int, bool, list[int]]:
    """Return the arguments with which `llmopt.prompt.columns.columns.write_line` wrote a line."""
    head, *letters = line.split(" ")
    n = ascii_uppercase.index(head.upper()) + 1
    return n, head.islower(), [ascii_lowercase.index(letter) for letter in letters]
