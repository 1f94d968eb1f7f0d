"""Requests to the model as spans and metrics of OpenTelemetry.

Names follow its conventions for generative AI (``gen_ai.*``). The provider and the model are
told, and tokens and times; the texts only where that is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from llmopt.errors import needs
from llmopt.search.meter import Spent
from llmopt.trackers.callback import Callback, Search

# What the conventions call a provider where its name here is another.
_PROVIDERS = {
    "gemini": "gcp.gemini",
    "gemini-legacy": "gcp.gemini",
    "vertex": "gcp.vertex_ai",
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "mistral": "mistral_ai",
    "xai": "x_ai",
    "grok": "x_ai",
}


class Telemetry(Callback):
    """A span for every request, with the model, tokens and finish reasons, and two histograms.

    Needs the package `opentelemetry-api`; without an SDK that is set up, nothing is sent.

    Args:
        content: Whether the texts of requests and answers are put into the span, too.
        tracer_provider: In place of the global one.
        meter_provider: In place of the global one.
    """

    def __init__(
        self, *, content: bool = False, tracer_provider: Any = None, meter_provider: Any = None
    ) -> None:
        with needs("Telemetry()", "opentelemetry-api"):
            from opentelemetry import metrics, trace
        self._trace = trace
        self._content = content
        self._tracer = trace.get_tracer("llmopt", tracer_provider=tracer_provider)
        meter = metrics.get_meter("llmopt", meter_provider=meter_provider)
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", unit="{token}", description="Tokens of a request"
        )
        self._seconds = meter.create_histogram(
            "gen_ai.client.operation.duration", unit="s", description="Duration of a request"
        )

    def sent(self, search: Search, spent: Spent) -> None:
        """Make a span of a request that ended."""
        request, reply = spent.request, spent.reply
        provider, _, model = spent.client.partition(":")
        operation = "chat" if request.style == "chat" else "text_completion"
        common: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": _PROVIDERS.get(provider, provider),
            "gen_ai.request.model": model or provider,
        }
        told: dict[str, Any] = {
            "gen_ai.request.choice.count": request.n if request.n != 1 else None,
            "gen_ai.request.temperature": request.temperature,
            "gen_ai.request.max_tokens": request.max_tokens,
            "gen_ai.request.seed": request.seed,
            "llmopt.search": search.name,
        }
        if self._content:
            told["gen_ai.input.messages"] = _messages((m.role, m.content) for m in request.messages)
        outcome = dict(common)
        if reply is None:
            outcome["error.type"] = spent.error.partition(":")[0] or "_OTHER"
        else:
            tokens = {"input": reply.prompt_tokens or 0, "output": reply.completion_tokens or 0}
            for kind, count in tokens.items():
                told[f"gen_ai.usage.{kind}_tokens"] = count
                self._tokens.record(count, {**common, "gen_ai.token.type": kind})
            told |= {
                "gen_ai.response.model": reply.model or None,
                "gen_ai.usage.cache_read.input_tokens": reply.cached_tokens or None,
                "gen_ai.response.finish_reasons": [c.finish_reason for c in reply.completions],
                "llmopt.cost": reply.cost,
            }
            if self._content:
                texts = (("assistant", c.text) for c in reply.completions)
                told["gen_ai.output.messages"] = _messages(texts)
        self._seconds.record(spent.seconds, outcome)
        span = self._tracer.start_span(
            f"{operation} {common['gen_ai.request.model']}",
            kind=self._trace.SpanKind.CLIENT,
            attributes={k: v for k, v in {**outcome, **told}.items() if v is not None},
            start_time=int(spent.began * 1e9),
        )
        if reply is None:
            span.set_status(self._trace.StatusCode.ERROR, spent.error)
        span.end(end_time=int((spent.began + spent.seconds) * 1e9))


def _messages(said: Iterable[tuple[str, str]]) -> str:
    return json.dumps([{"role": r, "parts": [{"type": "text", "content": t}]} for r, t in said])
