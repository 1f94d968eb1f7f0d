"""Many asks of each provider over a bad line: streams, structured answers, and a tenth of faults.

    nice python tests/attacks/provider_soak.py [ASKS]

For each of OpenAI, Anthropic and Gemini a loopback server speaks the provider's protocol through
the provider's own SDK. A tenth of all calls is answered with 429, 500, 529, a stream that is cut,
garbage, an empty body, or nothing; some answers are slow. Half-way the search is closed and goes
on from its file. Then everything is counted, on both sides of the line.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import wire

import llmopt.model_calls
from llmopt import Float, LLMOptimizer
from llmopt.client.http.retry import complete_with_retries
from llmopt.client.prices import Price
from llmopt.client.providers.anthropic import AnthropicClient
from llmopt.client.providers.gemini import GeminiClient
from llmopt.client.providers.openai import OpenAIClient
from llmopt.errors import ClientError

PROVIDERS: dict[str, tuple[Any, str, Any, Any]] = {
    "openai": (OpenAIClient, "/v1", wire.openai_body, wire.openai_error),
    "anthropic": (AnthropicClient, "", wire.anthropic_body, wire.anthropic_error),
    "gemini": (GeminiClient, "", wire.gemini_body, wire.gemini_error),
}
FAULTS = ("429", "500", "529", "cut stream", "garbage", "empty", "hang")
SPACE = {"x": Float(-5.0, 5.0), "y": Float(-5.0, 5.0)}


class BadLine:
    """Answers with a new point each time, in the provider's words, and fails now and then.

    Of the calls of an outage, by their numbers, it answers none.
    """

    def __init__(self, provider: str, share: float = 0.1, outage: range = range(0)) -> None:
        _, _, self.body, self.error = PROVIDERS[provider]
        self.random, self.share, self.lock = random.Random(7), share, threading.Lock()
        self.outage = outage
        self.counts: Counter[str] = Counter()

    def __call__(self, asked: Any) -> Any:
        with self.lock:
            self.counts["calls"] += 1
            self.counts["by a schema"] += '"additionalProperties": false' in json.dumps(asked)
            text = json.dumps(
                {
                    "explanation": "Why not: x = 0.",
                    "point": {name: round(self.random.uniform(-5, 5), 6) for name in SPACE},
                }
            )
            kind = "answered"
            if self.counts["calls"] in self.outage or self.random.random() < self.share:
                # A hang costs the client's whole timeout, so it is rare.
                kind = self.random.choices(FAULTS, [4] * (len(FAULTS) - 1) + [1])[0]
            elif self.random.random() < 0.02:
                kind = "slow"
            self.counts[kind] += 1
        if kind.isdigit():
            wait = {"Retry-After": "3"} if kind == "429" else {}
            return wire.Say(self.error("busy"), int(kind), wait)
        return {
            "cut stream": lambda: wire.Drip(self.body(text), ends=False),
            "garbage": lambda: wire.Say(b'{"choices": [{"mess'),
            "empty": lambda: wire.Say({}),
            "hang": wire.Hang,
            "slow": lambda: wire.Drip(self.body(text), pause=0.05),
            "answered": lambda: wire.Say(self.body(text)),
        }[kind]()


def soak(provider: str, asks: int, folder: Path) -> dict[str, Any]:
    """Run the load; return what it came to, having checked it.

    Raises:
        AssertionError: Something was lost, doubled, or not counted.
    """
    kind, path, _, _ = PROVIDERS[provider]
    server, line = wire.WireServer(), BadLine(provider)
    server.play(line)
    file = folder / f"{provider}.jsonl"
    waits: list[float] = []
    quick = partial(complete_with_retries, sleep=waits.append)
    kept = llmopt.model_calls.complete_with_retries
    llmopt.model_calls.complete_with_retries = quick  # type: ignore[assignment]

    def opened() -> LLMOptimizer[dict[str, float]]:
        client = kind(
            "m", base_url=server.url + path, api_key="k", timeout=2.0, structured=True,
            price=Price(1.0, 2.0, cached=1.0, written=1.0),
        )  # fmt: skip
        return LLMOptimizer(SPACE, client, "opro", seed=3, warmup=0, storage=file, noisy=True)

    started = time.monotonic()
    told, raised = [], 0
    try:
        optimizer = opened()
        for number in range(asks):
            if number == asks // 2:
                optimizer.close()
                optimizer = opened()
            while True:
                try:
                    point = optimizer.ask()
                    break
                except ClientError:
                    raised += 1
                    assert raised < asks // 10 + 5
            optimizer.tell(point, float(number))
            told.append(point)
        usage = optimizer.usage
        trials, pending = optimizer.trials, optimizer.pending
        optimizer.close()
        again = LLMOptimizer.load(file, optimizer.client)
    finally:
        llmopt.model_calls.complete_with_retries = kept
        server.close()
    counts = line.counts
    good = counts["answered"] + counts["slow"]
    failed = counts["calls"] - good
    assert [t.params for t in trials] == told, "a point was lost, changed or told twice"
    assert [t.reward for t in trials] == [float(n) for n in range(asks)]
    assert [t.number for t in trials] == list(range(asks))
    assert pending == []
    assert (again.trials, again.usage) == (trials, usage), "the file holds something else"
    assert usage.proposals == {"llm": asks}
    assert usage.rejected == {}, usage.rejected
    assert usage.requests == counts["calls"], "a call was lost or counted twice"
    assert counts["by a schema"] == counts["calls"], "a call went without the schema"
    # On a busy machine an answer may come too late: then it counts as failed.
    late = usage.failed_requests - failed
    assert late >= 0
    # One wait for each failure but those that ended an ask; Retry-After is kept to.
    assert len(waits) == usage.failed_requests - raised
    assert sum(w >= 3.0 for w in waits) >= counts["429"] - raised
    assert good - late == asks, "an answer was paid for and not used"
    # A call that may be charged counts with the estimated tokens of its prompt.
    more = usage.prompt_tokens - 100 * asks
    assert (more > 0) == (usage.estimated > 0)
    assert 0 <= more <= 5_000 * usage.estimated
    assert usage.cached_tokens == 60 * asks
    assert usage.completion_tokens == 7 * asks
    assert usage.cost is not None
    told = asks * (100 * 1.0 + 7 * 2.0) / 1e6
    # A call that was given up counts with the most that it may have cost.
    assert usage.cost >= told - 1e-9
    assert usage.estimated or abs(usage.cost - told) < 1e-9
    maybe_charged = counts["cut stream"] + counts["garbage"] + counts["empty"] + counts["hang"]
    assert usage.estimated == maybe_charged + late
    assert usage.unpriced == 0
    return {
        "provider": provider,
        "asks": asks,
        **{name: counts[name] for name in ("calls", "slow", *FAULTS)},
        "asks that failed and were made again": raised,
        "may be charged": usage.estimated,
        "seconds": round(time.monotonic() - started),
    }


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    for each in PROVIDERS:
        with tempfile.TemporaryDirectory() as place:
            number = int(sys.argv[1]) if sys.argv[1:] else 1000
            print(json.dumps(soak(each, number, Path(place))), flush=True)
