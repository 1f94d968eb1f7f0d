"""Samplers in a model's place: they answer from a request's grammar alone, with no model.

What a search with one of them finds is what the prompt's frame and the selection of elites
find by themselves; what a model adds is what it finds beyond that.
"""

from __future__ import annotations

import functools
import itertools
import re
from abc import ABC, abstractmethod

import numpy as np

from llmopt.client.base import Completion, Reply, Request
from llmopt.errors import ClientError

_RULE = re.compile(r"^(\w+) ::= (.*)$", re.MULTILINE)
_PART = re.compile(r'"(?P<text>[^"]*)"|\[(?P<first>\d)-(?P<last>\d)\]|(?P<name>\w+)')


@functools.lru_cache(maxsize=256)
def integer_choices(grammar: str) -> tuple[tuple[int, ...], ...]:
    """Return the integers that each place of a line may hold.

    Args:
        grammar: A grammar as the `pattern` prompt writes it: a rule ``root`` of rule names,
            commas and a line break, and rules that list integers digit by digit.

    Raises:
        ClientError: It is another kind of grammar.
    """
    rules = dict(_RULE.findall(grammar))
    places = [m["name"] for m in _PART.finditer(rules.get("root", "")) if m["name"]]
    if not places or any(name not in rules for name in places):
        raise ClientError(
            "a sampler without a model answers only the 'pattern' prompt in its completion "
            "style, whose grammar is a line of integers"
        )
    known = {name: _expand(rules[name]) for name in set(places)}
    return tuple(known[name] for name in places)


def _expand(rule: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for option in rule.split(" | "):
        digits = [
            [m["text"]]
            if m["text"] is not None
            else [str(d) for d in range(int(m["first"]), int(m["last"]) + 1)]
            for m in _PART.finditer(option)
        ]
        numbers += [int("".join(parts)) for parts in itertools.product(*digits)]
    return tuple(sorted(numbers))


class _GrammarClient(ABC):
    """Answers with one drawn line for each sample, seeded by the request."""

    default_prompt = "pattern"
    style = "completion"

    def complete(self, request: Request) -> Reply:
        """Answer one request.

        Raises:
            ClientError: The request has no grammar of integers.
        """
        choices = integer_choices(request.grammar or "")
        rng = np.random.default_rng(request.seed)
        lines = [
            ",".join(str(self._draw(rng, integers)) for integers in choices)
            for _ in range(request.n)
        ]
        return Reply(tuple(Completion(line) for line in lines), type(self).__name__, cost=0.0)

    @abstractmethod
    def _draw(self, rng: np.random.Generator, integers: tuple[int, ...]) -> int:
        """Draw one of the integers, which are sorted."""


class UniformGrammarClient(_GrammarClient):
    """Draws every integer that the grammar allows with equal chance."""

    name = "uniform-grammar"

    def _draw(self, rng: np.random.Generator, integers: tuple[int, ...]) -> int:
        return integers[int(rng.integers(len(integers)))]


class GaussianGrammarClient(_GrammarClient):
    """Draws integers from a normal distribution around the middle of what is allowed.

    Its standard deviation is a fifth of the range, which is one standard deviation of the
    elites where the range is the elites' frame (`PatternPrompt.spread` is 2.5): a plain
    estimation-of-distribution algorithm with independent parameters.
    """

    name = "gaussian-grammar"

    def _draw(self, rng: np.random.Generator, integers: tuple[int, ...]) -> int:
        last = len(integers) - 1
        place = rng.normal(last / 2, len(integers) / 5)
        return integers[min(max(round(place), 0), last)]
