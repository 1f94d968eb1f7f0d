"""Samplers in a model's place: they answer from a request's grammar alone, with no model.

What a search with one of them finds is what the prompt's frame and the selection of elites
find by themselves; what a model adds is what it finds beyond that.
"""

from __future__ import annotations

import functools
import itertools
import re

import numpy as np

from llmopt.benchmarks.experiments.columns_data import NETWORK, Lines, Network
from llmopt.client.base import Completion, Reply, Request
from llmopt.client.local import draw_choices
from llmopt.errors import ClientError
from llmopt.prompt.columns import ELITES, read_line

_RULE = re.compile(r"^(\w+) ::= (.*)$", re.MULTILINE)
_PART = re.compile(r'"(?P<text>[^"]*)"|\[(?P<first>\w)-(?P<last>\w)\]|(?P<name>\w+)')


@functools.lru_cache(maxsize=256)
def line_parts(grammar: str) -> tuple[tuple[str, ...], ...]:
    """Return what each part of a line may be, from the lowest to the highest.

    Args:
        grammar: A grammar as the prompt `columns` writes it: a rule ``root`` of rule names,
            separators and a line break, and rules that list letters.

    Returns:
        For a separator one text, and for the place of a number or letter all of them.

    Raises:
        ClientError: It is another kind of grammar.
    """
    rules = dict(_RULE.findall(grammar))
    parts = [m for m in _PART.finditer(rules.get("root", "")) if m["text"] != r"\n"]
    names = {m["name"] for m in parts if m["name"]}
    if not names or not names <= set(rules):
        raise ClientError(
            "a sampler without a model answers only the prompt 'columns', whose grammar is a line "
            "of letters"
        )
    known = {name: _expand(rules[name]) for name in names}
    return tuple(known[m["name"]] if m["name"] else (m["text"],) for m in parts)


def _expand(rule: str) -> tuple[str, ...]:
    texts: list[str] = []
    for option in rule.split(" | "):
        characters = [
            [m["text"]]
            if m["text"] is not None
            else [chr(c) for c in range(ord(m["first"]), ord(m["last"]) + 1)]
            for m in _PART.finditer(option)
        ]
        texts += ["".join(chosen) for chosen in itertools.product(*characters)]
    return tuple(sorted(texts, key=lambda text: (len(text), text)))


class GaussianGrammarClient:
    """Draws levels from a normal distribution around the middle of what a grammar allows.

    Its standard deviation is a fifth of the range, which is one standard deviation of the
    elites where the range is the elites' frame (`ColumnsPrompt.spread` is 2.5): a plain
    estimation-of-distribution algorithm with the elites' covariance. It answers with one line for
    each sample, seeded by the request.
    """

    name = "gaussian-grammar"
    default_prompt = "columns"
    style = "completion"
    columns = True

    def complete(self, request: Request) -> Reply:
        """Answer one request.

        Raises:
            ClientError: The request has no grammar of letters.
        """
        parts = line_parts(request.grammar or "")
        rng = np.random.default_rng(request.seed)
        lines = [
            "".join(texts[_level(rng, len(texts)) if len(texts) > 1 else 0] for texts in parts)
            for _ in range(request.n)
        ]
        return Reply(
            tuple(Completion(line) for line in lines), type(self).__name__, 0, 0, 0, cost=0.0
        )


def _level(rng: np.random.Generator, count: int) -> int:
    """Draw one of `count` levels, from 0."""
    return min(max(round(rng.normal((count - 1) / 2, count / 5)), 0), count - 1)


class NetworkClient:
    """Draws each parameter's level from a small network that reads the lines of `columns`.

    The network (`llmopt.benchmarks.experiments.columns_data.Network`) has 80,000 weights and was
    trained on lines like those of the model's adapter: what it finds as well, needs no language
    model.
    """

    name = "small-network"
    default_prompt = "columns"
    style = "completion"
    columns = True

    def complete(self, request: Request) -> Reply:
        """Answer one request.

        Raises:
            ClientError: The request has neither lines of letters nor a grammar.
        """
        if not request.columns:  # so few trials that the prompt shows no lines yet
            return GaussianGrammarClient().complete(request)
        dimensions, leading, rows = zip(*map(read_line, request.columns), strict=True)
        levels = np.array(rows)[:, :ELITES]
        # Fewer trials than it was trained on: the last one stands for those that are missing.
        levels = np.pad(levels, ((0, 0), (0, ELITES - levels.shape[1])), mode="edge")
        lines = Lines(levels, np.array(leading), np.array(dimensions))
        temperature = 1.0 if request.temperature is None else request.temperature
        probabilities = _network(temperature)(lines)
        drawn = draw_choices(np.random.default_rng(request.seed), probabilities, request.n)
        return _reply(request, drawn, self.name)


def _reply(request: Request, rows: np.ndarray, model: str) -> Reply:
    """Return the reply of ``(request.n, n)`` choices drawn for a request's columns."""
    texts = ("".join(request.choices[k] for k in row) for row in rows)
    return Reply(tuple(Completion(text) for text in texts), model, 0, 0, 0, cost=0.0)


@functools.cache
def _network(temperature: float) -> Network:
    return Network.load(NETWORK, temperature)
