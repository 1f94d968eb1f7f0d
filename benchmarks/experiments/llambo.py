"""LLAMBO, the sampler of OptunaHub that asks a chat model, to compare with `LLMSampler`.

LLAMBO (Liu et al. 2024, arXiv 2402.03921) asks a model for candidates that would reach a target
value, asks whether each is in the best quarter, and evaluates the likeliest. The package samples
categorical and conditional parameters at random. Its prompts, parser and selection are unchanged.
Only the transport differs: the requests go to a client of llmopt, and independent requests run
concurrently.

Needs the extra ``llambo``. `optunahub` loads the package from its registry.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from importlib import metadata
from typing import Any

from llmopt.client.base import Client, Message, Request
from llmopt.errors import LLMOptError
from llmopt.history import Usage
from llmopt.util.threads import Lock

COMMIT = "ee680199100edbd95e0000eb20696c3ec5505973"
"""The registry's commit, of August 2026."""

NEEDS = ("optunahub", "langchain", "nest_asyncio", "pandas", "tiktoken", "transformers", "openai")
_BELOW = {"langchain": 1, "pandas": 3}
"""Major versions with which LLAMBO fails, or samples every point at random without an error."""

_UNLIMITED = 10**6  # requests a minute
_SYSTEM = "You are an AI assistant that helps people find information."
"""The system message of LLAMBO's requests."""


def llambo_sampler(client: Client, description: str, seed: int) -> Any:
    """Return LLAMBO with its default settings and `client` as its model.

    The sampler's ``usage`` counts requests, tokens, and the trials by the source of their numeric
    parameters: ``"llm"``, or ``"fallback"`` if LLAMBO sampled a random point. Its
    ``rejected`` counts the errors that LLAMBO printed.

    Raises:
        LLMOptError: A package has a version with which LLAMBO does not work.
    """
    for name, major in _BELOW.items():
        with contextlib.suppress(metadata.PackageNotFoundError):
            if int(metadata.version(name).partition(".")[0]) >= major:
                raise LLMOptError(
                    f"LLAMBO does not work with {name} {metadata.version(name)}: "
                    f'pip install "{name}<{major}"'
                )
    os.environ.setdefault("OPTUNAHUB_NO_ANALYTICS", "1")
    import optunahub

    package = optunahub.load_module("samplers/llambo", ref=COMMIT)
    usage, lock = Usage(), Lock()

    def answer(prompt: str) -> str:
        request = Request((Message("system", _SYSTEM), Message("user", prompt)))
        reply = client.complete(request).counted(request)
        with lock:
            usage.add_reply(reply)
        return reply.completions[0].text

    async def acquire(self: Any, prompt: str) -> tuple[str, float]:
        return await asyncio.to_thread(answer, prompt), 0.0

    async def judge(
        self: Any, template: Any, query: Any, place: int
    ) -> tuple[int, str, float, int]:
        return place, await asyncio.to_thread(answer, template.format(Q=query["Q"])), 0.0, 0

    class Sampler(package.LLAMBOSampler):  # type: ignore[misc, name-defined]
        def sample_relative(self, *args: Any) -> dict[str, Any]:
            with contextlib.redirect_stdout(io.StringIO()) as printed:  # every prompt, every error
                found: dict[str, Any] = super().sample_relative(*args)
            for line in printed.getvalue().splitlines():
                if line.startswith("Error"):
                    usage.rejected[line] = usage.rejected.get(line, 0) + 1
            return found

        def _sample_parameters(self) -> dict[str, Any]:
            found: dict[str, Any] = super()._sample_parameters()
            source = "llm" if found else "fallback"
            usage.proposals[source] = usage.proposals.get(source, 0) + 1
            return found

    inner = package.llambo
    inner.llm.OpenAI_interface.__init__ = lambda self, *_, **__: None
    inner.acquisition_function.LLM_ACQ._async_generate = acquire
    inner.generative_sm.LLMGenerativeSM._async_generate = judge
    sampler = Sampler(description, seed=seed, max_requests_per_minute=_UNLIMITED)
    sampler.usage = usage
    return sampler
