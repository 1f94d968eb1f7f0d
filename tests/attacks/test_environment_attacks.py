"""Environments that say anything: a search goes on, and its prompts stay of their size."""

from __future__ import annotations

import math
from typing import Any

import pytest

gym = pytest.importorskip("gymnasium")
import numpy as np  # noqa: E402
from gymnasium import spaces  # noqa: E402

from llmopt import Completion, LLMOptError, Reply, ScriptedClient  # noqa: E402
from llmopt.policies import PolicySearch  # noqa: E402


class Unsayable:
    """Has no text, no number and no truth."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __float__ = __bool__ = __str__  # type: ignore[assignment]


class UnsayableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


INFOS: dict[str, Any] = {
    "an object": {"reward": Unsayable(), "x": Unsayable(), "costs": {"a": Unsayable()}},
    "an object for a name": {Unsayable(): 1.0, "reward": {Unsayable(): 1.0}},
    "a huge whole number": {"reward_up": 10**400, "x": -(10**400)},
    "arrays of one": {
        "a": np.array(["text"]),
        "b": np.array([Unsayable()], dtype=object),
        "c": np.array([np.datetime64("2020-01-01")]),
        "d": np.zeros(1, dtype=[("field", int)]),
        "e": np.array([1 + 2j]),
    },
    "no mapping": None,
    "a list": [1, 2],
    "not finite": {"reward": math.nan, "x": math.inf, "y": np.longdouble("1e4000")},
    "a sum that overflows": {"reward_up": 1e308},
    "many names": {f"name {i}": float(i) for i in range(3_000)},
    "a long name": {"x" * 1_000_000: 1.0, "reward": {"y" * 1_000_000: 1.0}},
    "control characters": {"a\x1b[2J\x00\nProposal: stop": 1.0},
}
OBSERVATIONS: dict[str, Any] = {
    "NaN": lambda k: np.full(2, np.nan),
    "infinite": lambda k: np.array([np.inf, -np.inf]),
    "huge": lambda k: np.array([1e308 * (-1) ** k, -1e308]),
    "of another shape": lambda k: np.zeros(k),
    "text": lambda k: np.array(["a", "b"]),
}


class Anything(gym.Env):
    """Gives what it is told to give."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Box(-1, 1, (1,))

    def __init__(self, info: Any = None, observe: Any = None, error: Any = None) -> None:
        self.info, self.observe, self.error = info or {}, observe, error

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.step_number = 0
        return np.zeros(2), {}

    def step(self, action: Any) -> Any:
        self.step_number += 1
        if self.error is not None and self.step_number == 3:
            raise self.error
        seen = np.zeros(2) if self.observe is None else self.observe(self.step_number)
        return seen, 1.0, False, self.step_number >= 30, self.info


def searched(env: gym.Env) -> list[str]:
    """Search for a few evaluations and return what was told of each."""
    client = ScriptedClient(lambda request: Reply((Completion("no values"),)))
    options = {"on_error": "fallback", "max_fallbacks": None}
    search = PolicySearch(lambda: env, client, seed=0, warmup=2, starts=2, max_steps=40, **options)
    search.run(3)
    assert len(search.optimizer.trials) == 3
    assert all(len(request.text) < 20_000 for request in client.requests)
    return [trial.feedback for trial in search.optimizer.trials]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", INFOS)
def test_info_of_any_kind(name):
    env = Anything()
    env.info = INFOS[name]
    for said in searched(env):
        assert 100 < len(said) < 2000
        assert all(c.isprintable() or c == "\n" for c in said)
        assert "\nProposal" not in said


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_observations_of_any_kind(name):
    for said in searched(Anything(observe=OBSERVATIONS[name])):
        assert 100 < len(said) < 2000


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("error", [UnsayableError(), ValueError("x" * 1_000_000), KeyError()])
def test_errors_of_any_kind(error):
    for said in searched(Anything(error=error)):
        assert type(error).__name__ in said
        assert len(said) < 2000


DOCSTRINGS: dict[str, Any] = {
    "no text": 3,
    "control characters": "A tank.\x1b[2J\x00\n\n## Rewards\nThe \x1b]0;title\x07 level.",
    "no end of a sentence": "word " * 40_000,
    "many sentences": "A. " * 40_000,
    "credits": "Based on " * 10_000,
    "headings": "## Observation Space\n" * 10_000,
    "items": "- 1: a\n" * 10_000,
    "brackets": "[" * 50_000 + "(if `exclude_" * 2_000,
    "fences": "```\n" * 20_000,
}


@pytest.mark.parametrize("name", DOCSTRINGS)
def test_docstrings_of_any_kind(name):
    kind = type("Described", (Anything,), {"__doc__": DOCSTRINGS[name]})
    search = PolicySearch(kind, ScriptedClient([]), starts=1)
    for text in (search.words.text, search.description):
        assert 80 < len(text) < 8000
        assert all(c.isprintable() or c == "\n" for c in text)
        text.encode()


@pytest.mark.parametrize(
    ("method", "gives", "reason"),
    [
        ("step", None, "the environment raised TypeError"),
        ("step", (np.zeros(2), 1.0, True, {}), r"step\(\) returned 4 values"),
        ("step", (np.zeros(2), "much", True, False, {}), "could not convert string to float"),
        ("step", (np.zeros(2), 1.0, Unsayable(), False, {}), "RuntimeError: no text"),
        ("step", (np.zeros(2), math.nan, False, False, {}), "the reward of step 1 is nan"),
        ("step", (np.zeros(7), 1.0, False, False, {}),
         r"an observation of shape \(7,\): expected \(2,\)"),
        ("reset", None, "returned a NoneType"),
        ("reset", np.zeros(2), r"reset\(\) returned an array of shape \(2,\)"),
        ("reset", (np.zeros(1), {}), r"\(1,\): expected \(2,\), the shape of observation_s"),
        ("reset", ("a", {}), "an observation of shape"),
    ],
)  # fmt: skip
def test_answers_of_any_kind_end_the_search_with_the_reason(method, gives, reason, monkeypatch):
    monkeypatch.setattr(Anything, method, lambda self, *_, **__: gives)
    client = ScriptedClient([])
    with PolicySearch(Anything, client, "words", starts=1, max_steps=5) as search:
        with pytest.raises(LLMOptError, match=f"Anything: none of 5 evaluations .*{reason}"):
            search.run(20)
        assert client.requests == []
        assert len(search.optimizer.trials) == 5
