"""A search that is cut off after any line of its file ends as an uninterrupted one.

Searches of a dozen kinds, each cut after each line: the same points, the same file, and no reply
that was paid for is asked for again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from search_contract import Model
from stubs import needs_confinement
from test_search_contract import Tilt

from llmopt import (
    BudgetExceededError,
    Categorical,
    Completion,
    Float,
    Int,
    LLMOptimizer,
    Reply,
    ScriptedClient,
    SearchStopped,
    Space,
    minimize,
)
from llmopt.client.base import Request
from llmopt.client.local.network import NetworkClient
from llmopt.code import CodeOptimizer, Function, Output
from llmopt.events import Called, Event, Failed, Replied
from llmopt.journal import read_events
from llmopt.lab import blocks
from llmopt.lab.laboratory import Laboratory
from llmopt.policies import PolicySearch
from llmopt.prompt.python_block import Computed
from llmopt.sandbox.failure import NoCandidateError

XK = {"x": Float(-5.0, 5.0, step=0.1), "k": Int(0, 50)}
XY = {"x": Float(-5.0, 5.0), "y": Float(-5.0, 5.0)}
BRANCHES = {
    "kind": Categorical(["net", "tree"]),
    "rate": Float(0.0, 1.0, when={"kind": "net"}),
    "depth": Int(1, 9, when={"kind": "tree"}),
}


class Knowing(Model):
    """Answers by the whole request, so that any difference shows; some answers are unusable."""

    def __init__(self, space: Any, usable: float = 1.0, points: int = 0, stop: int = 0) -> None:
        self.space, self.usable, self.points, self.stop = Space(space), usable, points, stop
        super().__init__(self.answer)

    def point(self, rng: np.random.Generator) -> str:
        named = self.space.named(self.space.sample(rng))
        places = {name: self.space.names.index(name) for name in named}
        return ", ".join(f"{n}: {self.space.format(places[n], v)}" for n, v in named.items())

    def answer(self, request: Request) -> Reply:
        rng = np.random.default_rng(int(request.digest()[:12], 16))
        text = "\n\n".join(
            f"Hypothesis: h\nStart from: new\nProposal:\n{self.point(rng)}"
            for _ in range(max(1, self.points))
        )
        text = text if self.points else self.point(rng)
        text = text if rng.random() < self.usable else "no idea"
        if self.stop and len(self.requests) > 0 and f"#{self.stop} |" in request.text:
            text = "Analysis: flat.\nHypothesis: done\nStart from: #1\nProposal: stop"
        return Reply((Completion(text),), prompt_tokens=100, completion_tokens=10)


class Computing(Knowing):
    """Runs a block of Python before each point."""

    def answer(self, request: Request) -> Any:
        if "It printed:" in request.text:
            return super().answer(request)
        return f"Let me see.\n```python\nprint({request.digest()[:4]!r}, X.shape, count)\n```"


class Plain(Laboratory):
    """Runs blocks in this process."""

    def run(self, code: str, before: Any, data: Callable[[], Any], seconds: float) -> Computed:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, dict(data(), count=len(before)))
        return Computed(code, printed.getvalue(), (f"v{len(before)} (1)",), seconds=2.25)


def value_of(point: dict[str, Any]) -> float:
    return float(sum(v for v in point.values() if isinstance(v, (int, float))))


def go(optimizer: LLMOptimizer, trials: int, tell: Callable[..., Any] | None = None) -> None:
    """Evaluate what was cut off, then go on up to a number of trials."""

    def plain(point: dict[str, Any]) -> None:
        if int(10 * value_of(point)) % 7 == 0:
            optimizer.tell_failure(point, "divisible by seven")
        else:
            optimizer.tell(point, -abs(value_of(point) - 3), feedback="ok")

    tell = tell or plain
    for proposal in optimizer.pending_proposals:
        tell(optimizer.space.unflatten(proposal.values))
    with contextlib.suppress(SearchStopped, BudgetExceededError):
        while len(optimizer.trials) < trials:
            for point in optimizer.ask(min(2, trials - len(optimizer.trials))):
                tell(point)


@dataclasses.dataclass
class Case:
    """A kind of search: its model, and what runs it to its end in a file."""

    client: Callable[[], Any]
    run: Callable[[Any, Path], Any]

    @classmethod
    def of(cls, space: Any, client: Callable[[], Any], trials: int = 8, **options: Any) -> Case:
        def run(client: Any, path: Path) -> LLMOptimizer:
            made = {"prompt": "props", "warmup": 2, "seed": 5, "durable": False, **options}
            with LLMOptimizer(space, client, storage=path, **made) as optimizer:
                go(optimizer, trials)
            return optimizer

        return cls(client, run)


def two_losses(client: Any, path: Path) -> LLMOptimizer:
    options = {"warmup": 1, "seed": 5, "direction": ["maximize", "minimize"], "durable": False}
    with LLMOptimizer(XY, client, "props", storage=path, **options) as optimizer:

        def tell(point: dict[str, Any]) -> None:
            losses = (point["x"], float("nan") if point["y"] > 4 else point["y"])
            optimizer.tell(point, losses, constraint_violation=max(0.0, point["x"] - 2))

        go(optimizer, 8, tell)
    return optimizer


def noisy(client: Any, path: Path) -> LLMOptimizer:
    def f(point: dict[str, Any], seed: int) -> float:
        return point["x"] + np.random.default_rng(seed).normal()

    options = {"seeded": True, "finalists": 2, "prompt": "props", "warmup": 2, "seed": 5}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result = minimize(f, {"x": Float(0, 9)}, 10, client, storage=path, **options)
    result.optimizer.close()
    return result.optimizer


def disobedient(client: Any, path: Path) -> LLMOptimizer:
    """Points are withdrawn, missed and corrected."""
    options = {"prompt": "props", "warmup": 2, "seed": 5, "durable": False}
    with LLMOptimizer(XK, client, storage=path, **options) as optimizer:
        if optimizer._journal.state.count < 2:
            optimizer.enqueue({"k": 41}, "a wish")
        while len(optimizer.trials) < 8:
            number = len(optimizer.trials)
            if number > 4 and not optimizer.trials[2].corrected:
                optimizer.tell(optimizer.trials[2].params, 0.5, replaces=2, data={"t": [1.0]})
            if number > 5 and optimizer.trials[3].state != "withdrawn":
                optimizer.withdraw(trial=3)
            fixed = {"k": 20 + number} if number % 3 == 0 else None
            point = optimizer.pending[0] if optimizer.pending else optimizer.ask(fixed=fixed)
            if int(10 * value_of(point)) % 4 == 0:
                optimizer.withdraw(point)
                continue
            near = {**point, "k": min(50, point["k"] + number % 2)}
            asked = None if near == point else point
            loss = -abs(value_of(near) - 3)
            optimizer.tell(near, loss, instead_of=asked, parts={"k": near["k"]})
    return optimizer


def policies(client: Any, path: Path) -> LLMOptimizer:
    options = {"starts": 1, "max_steps": 2, "bias": False, "warmup": 2, "box": 5, "total": 8}
    with PolicySearch(Tilt, client, "props", storage=path, **options) as search:
        search.run(8)
    return search.optimizer


def code(client: Any, path: Path) -> CodeOptimizer:
    function = Function("f(x)", "One number.", Output(), ((np.array([1.0, 2.0]),),))
    options = {"seed": 3, "attempts": 2, "storage": path, "compute": True}
    with CodeOptimizer(function, client=client, **options) as optimizer:
        while len(optimizer.trials) < 2:
            with contextlib.suppress(NoCandidateError):
                candidate = optimizer.ask()
                score = candidate(np.ones(1))
                optimizer.tell(candidate, score, feedback="ok", data={"seen": [score]})
    return optimizer


class Writer(Model):
    """Gives each new request the next program, and a request sent before the same one."""

    TEXTS = ("no", "run", "return 1.0", "no", "run", "return x.foo", "return 2.0")
    given: dict[str, str]

    def __init__(self) -> None:
        super().__init__(self.answer)

    def answer(self, request: Request) -> str:
        number = Writer.given.setdefault(request.digest(), len(Writer.given))
        body = self.TEXTS[min(number, 6)]
        if body == "run":
            return "```run\nprint(scores, sorted(data), count)\n```"
        return body if body == "no" else f"```python\ndef f(x):\n    {body}\n```"


CASES = {
    "plain": Case.of(XK, lambda: Knowing(XK), trials=10, batch_size=2),
    "unusable answers": Case.of(XK, lambda: Knowing(XK, usable=0.6), attempts=2),
    "several points, and an end": Case.of(
        XK, lambda: Knowing(XK, points=3, stop=6), trials=12, prompt="words", warmup=0,
        description="a bowl", may_stop=True,
    ),
    "CMA-ES beside it, capped": Case.of(
        XY, lambda: Knowing(XY), partner="cma", max_requests=3, warmup=1
    ),
    "partners": Case.of(
        XY, lambda: Knowing(XY), trials=14, partner=["network", "cma"], batch_size=4
    ),
    "a cap": Case.of(XK, lambda: Knowing(XK), max_requests=2),
    "columns": Case.of(XY, NetworkClient, prompt="columns"),
    "objectives and violations": Case(lambda: Knowing(XY), two_losses),
    "points that are withdrawn, missed and corrected": Case(lambda: Knowing(XK), disobedient),
    "branches": Case.of(BRANCHES, lambda: Knowing(BRANCHES), constraints="rate <= 0.9"),
    "given points": Case.of(
        XK, lambda: Knowing(XK), warmup=[{"x": 1.0, "k": 1}, {"x": 2.0, "k": 2}],
        start={"the present one": {"x": 0.5, "k": 3}},
    ),
    "noisy, with finalists": Case(lambda: Knowing({"x": Float(0, 9)}), noisy),
    "policies": Case(
        lambda: Knowing({"a0<-o0": Float(-5, 5), "a0<-o1": Float(-5, 5)}), policies
    ),
    "code": Case(Writer, code),
    "blocks of Python": Case.of(
        XK, lambda: Computing(XK, points=1), prompt="words", compute=True, trials=4
    ),
}  # fmt: skip


def outcome(search: Any) -> list[Any]:
    if isinstance(search, CodeOptimizer):
        return [
            search.failures,
            *((t.source, t.reward, t.feedback, t.parent) for t in search.trials),
        ]
    return [(t.values, t.rewards, t.source, t.explanation, t.feedback) for t in search.trials]


def lines(path: Path) -> list[Event]:
    """Return the events of a file but for calls: one that was cut off is made once more."""
    return [event for event in read_events(path) if not isinstance(event, Called | Failed)]


@needs_confinement
@pytest.mark.filterwarnings("ignore::llmopt.FallbackWarning")
@pytest.mark.parametrize("name", CASES)
def test_it_ends_as_an_uninterrupted_one(name, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "Laboratory", Plain)
    case, Writer.given = CASES[name], {}
    client, path = case.client(), tmp_path / "whole.jsonl"
    whole = case.run(client, path)
    sent = len(getattr(client, "requests", ()))
    assert sent > 1 or name == "columns"
    rows = path.read_bytes().splitlines(keepends=True)
    assert len(rows) > 8
    cuts = [(number, 0) for number in range(1, len(rows))]
    if name == "plain":
        cuts += [(number, 7) for number in range(2, len(rows))]  # torn lines
    for number, torn in cuts:
        part, client = tmp_path / "part.jsonl", case.client()
        part.write_bytes(b"".join(rows[:number])[: -torn or None])
        kept = list(read_events(part))
        doubt = int(isinstance(kept[-1], Called))  # it may have been sent, and so counts
        if doubt and "cap" in name:
            continue
        resumed = case.run(client, part)
        cut = f"cut after line {number}"
        assert outcome(resumed) == outcome(whole), cut
        assert lines(part) == lines(path), cut
        usage = dataclasses.replace(
            whole.usage,
            requests=whole.usage.requests + doubt,
            failed_requests=doubt,
            unpriced=doubt * (name != "columns"),  # that model is free
            prompt_tokens=whole.usage.prompt_tokens + (kept[-1].tokens if doubt else 0),
        )
        assert resumed.usage == usage, cut
        if sent:
            paid = sum(isinstance(event, Replied) for event in kept)
            assert len(client.requests) == sent - paid, cut
        part.unlink()


def test_a_queued_point_waits_for_no_interrupted_request_and_loses_none_of_its_replies(tmp_path):
    answers = ["no idea", KeyboardInterrupt, "Start from: new\nProposal:\nx: 3"]
    sent = []

    class Killed(ScriptedClient):
        def complete(self, request):
            sent.append(request.digest())
            if answers[0] is KeyboardInterrupt:
                raise answers.pop(0)
            return Reply((Completion(answers.pop(0)),))

    made = {"prompt": "words", "warmup": 0, "storage": tmp_path / "s.jsonl"}
    with LLMOptimizer({"x": Float(0, 9)}, Killed([]), **made) as optimizer:
        with pytest.raises(KeyboardInterrupt):
            optimizer.ask()
        optimizer.enqueue({"x": 7.0})
        assert optimizer.ask() == {"x": 7.0}
        assert len(sent) == 2
    with LLMOptimizer({"x": Float(0, 9)}, Killed([]), **made) as optimizer:
        assert optimizer.ask() == {"x": 3.0}
    assert sent[2:] == [sent[1]]  # the answer that was paid for is there


def test_an_answer_near_a_cap_is_used_after_interrupted_calls_and_a_kill(tmp_path):
    class Interrupted(Knowing):
        def answer(self, request):
            raise KeyboardInterrupt

    made = {"prompt": "words", "description": "a bowl", "warmup": 0, "durable": False}
    made |= {"storage": tmp_path / "s.jsonl", "max_requests": 15, "seed": 5}
    for left in (15, 12, 9, 6, 3):  # the prompt states 3 and fewer
        for _ in range(2):
            with (
                LLMOptimizer(XK, Interrupted(XK), **made) as optimizer,
                pytest.raises(KeyboardInterrupt),
            ):
                optimizer.ask()
        with LLMOptimizer(XK, Knowing(XK, points=1), **made) as optimizer:
            point = optimizer.ask()
            assert optimizer.left["requests"] == left - 3
        rows = made["storage"].read_bytes().splitlines(keepends=True)
        assert b'"replied"' in rows[-2]
        made["storage"].write_bytes(b"".join(rows[:-1]))
        client = Knowing(XK)
        with LLMOptimizer(XK, client, **made) as optimizer:
            assert optimizer.ask() == point
            assert client.requests == []
            optimizer.tell(point, -value_of(point))


def test_of_two_interrupted_asks_the_later_one_is_repeated(tmp_path):
    answers = ["no idea", *[KeyboardInterrupt] * 3, "x: 3"]

    class Killed(Model):
        def complete(self, request):
            if answers[0] is KeyboardInterrupt:
                raise answers.pop(0)
            return Reply((Completion(answers.pop(0)),))

    made = {"prompt": "words", "warmup": 0, "storage": tmp_path / "s.jsonl", "max_requests": 5}
    for _ in range(3):
        with (
            LLMOptimizer({"x": Float(0, 9)}, Killed([]), description="a bowl", **made) as optimizer,
            pytest.raises(KeyboardInterrupt),
        ):
            optimizer.ask()
    made["description"] = "a bowl with a dent"  # another request, with the number of those left
    with LLMOptimizer({"x": Float(0, 9)}, Killed([]), **made) as optimizer:
        assert optimizer.ask() == {"x": 3.0}
    rows = made["storage"].read_bytes().splitlines(keepends=True)
    made["storage"].write_bytes(b"".join(rows[:-1]))
    with LLMOptimizer({"x": Float(0, 9)}, Killed([]), **made) as optimizer:
        assert optimizer.ask() == {"x": 3.0}
