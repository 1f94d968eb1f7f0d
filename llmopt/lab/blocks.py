"""Whether a model may compute, and the laboratory in which it does."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from llmopt.client.base import Client
from llmopt.client.model_facts import model_facts
from llmopt.errors import ClientError
from llmopt.lab.laboratory import Data, Laboratory
from llmopt.options import AskOptions
from llmopt.prompt import Prompt, PromptCapabilities
from llmopt.prompt.python_block import Computed
from llmopt.sandbox.confine import support
from llmopt.sandbox.failure import SandboxUnavailableError

logger = logging.getLogger(__name__)


def calculator_for(
    options: AskOptions, client: Client, prompt: Prompt | None = None
) -> Laboratory | None:
    """Return what runs a model's blocks, if `AskOptions.compute` asks for it.

    Raises:
        SandboxUnavailableError: A model's code cannot be confined here, and ``compute=True``.
    """
    if options.compute == "auto" and (why := why_not(client, prompt)):
        if why not in _said and getattr(client, "asked", True):  # else a search is only read
            _said.add(why)
            logger.info("compute='auto': the model does not compute in Python, since %s", why)
        return None
    if not options.compute:
        return None
    if _replays(client):  # states the facts of its recording
        tool = {"libraries": None, "memory": 1 << 30, **getattr(client, "tool", {})}
        workers = options.compute_workers or tool.get("workers")
        replayed = _OfRecording(options.compute_seconds, options.compute_total, workers)
        replayed.libraries = tool["libraries"] and tuple(tool["libraries"])
        replayed.memory = tool["memory"]
        replayed.cores = int(tool.get("cores", 0))
        return replayed
    if problems := support().problems:
        raise SandboxUnavailableError(
            f"compute=True: a model's Python cannot be confined here: {'; '.join(problems)}. "
            "Use Linux on x86-64 or aarch64, or leave compute out"
        )
    objective = b""
    if options.compute_objective is not None:
        from llmopt.lab.pickles import dumps_by_value

        objective = dumps_by_value(options.compute_objective)
    laboratory = Laboratory(
        options.compute_seconds,
        options.compute_total,
        options.compute_workers,
        options.compute_packages,
        objective,
    )
    if (record := getattr(client, "record_tool", None)) is not None:
        record(laboratory.facts.to_json())
    return laboratory


class _OfRecording(Laboratory):
    """The laboratory of a replay: it runs only blocks whose output the recording lacks."""

    def run(self, code: str, before: Sequence[Computed], data: Data, seconds: float) -> Computed:
        if problems := support().problems:
            raise ClientError(
                "the recording lacks the output of a block of Python, and none can be run here: "
                f"{'; '.join(problems)}. Replay it on Linux on x86-64 or aarch64, or restore the "
                "recording from a copy",
                requests=0,
            )
        return super().run(code, before, data, seconds)


_said: set[str] = set()


def _replays(client: Client) -> bool:
    return getattr(client, "replay_block", None) is not None


def why_not(client: Client, prompt: Prompt | None) -> str:
    """Return why a model may not compute; empty if it may. A search over code has no `prompt`."""
    facts = model_facts(client)
    if prompt is not None and not PromptCapabilities.of(prompt).computes:
        return f"the prompt {prompt.name!r} takes no Python"
    if not facts.chats:
        return f"{facts.name} is no chat model"
    if not getattr(client, "computes", True):
        return "its recording was made without it"
    problems = () if _replays(client) else support().problems
    return f"code cannot be confined here: {'; '.join(problems)}" if problems else ""
