"""``llmopt mcp``: searches for agents, over the Model Context Protocol on standard input."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

from llmopt._version import __version__
from llmopt.errors import LLMOptError, install_hint
from llmopt.service.mcp_tools import AGENT, Desk

_INSTRUCTIONS = f"""\
Black-box optimization by ask and tell. create_search() describes what is searched; then repeat:
ask() for a point, evaluate it, tell() what it scored, with feedback in words where you have any.
If the search's model is {AGENT!r}, you are the model: ask() may return a `request` (messages) in
place of a point. Answer it in the form that it asks for with answer(), which returns the point.
Searches are kept in files: status() shows one of earlier, and its pending points come first."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt mcp``."""
    parser.add_argument(
        "--folder",
        metavar="DIR",
        default="searches",
        help="where searches are kept; nothing outside is read or written (default: searches)",
    )
    parser.add_argument(
        "--model",
        metavar="M",
        action="append",
        help="model that agents may have asked, the first one by default; may be repeated "
        f"(default: smollm2, the embedded one; {AGENT!r}, the agent itself, is always there)",
    )
    parser.add_argument("--max-requests", type=int, metavar="N", help="cap on each search")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="cap on each search")
    parser.add_argument("--max-cost", type=float, metavar="USD", help="cap on each search")


def main(args: argparse.Namespace) -> int:
    """Serve on standard input and output until it is closed."""
    caps = {name: getattr(args, name) for name in ("max_requests", "max_tokens", "max_cost")}
    make_server(Desk(args.folder, args.model or ("smollm2",), caps)).run()
    return 0


def make_server(desk: Desk) -> Any:
    """Return a server of the official SDK; `ImportError` without the package `mcp` of version 2."""
    try:
        from mcp.server.mcpserver import Image, MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ModuleNotFoundError as error:
        raise ImportError(
            f"llmopt mcp needs the package mcp, version 2 or newer: {install_hint('mcp')}",
            name="mcp",
        ) from error

    server = MCPServer("llmopt", instructions=_INSTRUCTIONS, version=__version__)

    def tool(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def told(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except (LLMOptError, ImportError) as error:
                raise ToolError(str(error)) from None

        server.tool()(told)
        return told

    for method in (
        desk.list_searches,
        desk.ask,
        desk.answer,
        desk.enqueue,
        desk.status,
        desk.trials,
    ):
        tool(method)

    @tool
    def create_search(
        name: str,
        space: dict[str, Any],
        direction: str = "maximize",
        model: str | None = None,
        description: str = "",
        constraints: list[str] | None = None,
        start: list[dict[str, Any]] | None = None,
        options: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Begin a search, or go on with one that was begun with the same arguments.

        Args:
            name: Letters, digits, - and _.
            space: A JSON schema for each parameter: {"lr": {"type": "number", "minimum": 1e-5,
                "maximum": 0.1, "log": true}, "layers": {"type": "integer", "minimum": 1,
                "maximum": 6}, "act": {"enum": ["relu", "tanh"]}}.
            direction: "maximize" or "minimize".
            model: Who proposes points: a model that the server allows, or "agent" for yourself.
            description: The task in words, for the model.
            constraints: Linear inequalities such as "2 * a + b <= 40".
            start: Known points: [{"params": {...}, "words": "the current setting"}].
            options: Further ones: seed, warmup (random points first), partner ("cma", "network",
                "refine"), prompt, noisy, may_stop, points, numeric, total, out_of_range,
                batch_size, max_cost.
        """
        given = {
            "space": space,
            "direction": direction,
            "model": model,
            "description": description,
            "constraints": constraints,
            "start": start,
        }
        clash = set(given) & set(options or {})
        if clash:
            raise LLMOptError(f"options: {', '.join(sorted(clash))} is an argument of its own")
        kept = {k: v for k, v in given.items() if v is not None}
        return desk.create(name, {**kept, **(options or {})})

    @tool
    def tell(
        name: str,
        params: dict[str, Any],
        reward: float | list[float] | None = None,
        failed: str | None = None,
        feedback: str | None = None,
        stderr: float | None = None,
        constraint_violation: float | None = None,
    ) -> dict[str, Any]:
        """Record what a point scored, or why it failed. Points that were never asked may be told.

        Args:
            name: The search.
            params: The point.
            reward: Its score; one number for each objective.
            failed: Why it could not be evaluated, in place of a reward.
            feedback: What was seen, in words, for the model.
            stderr: Standard error of the reward.
            constraint_violation: By how much measured limits were broken.
        """
        told = {
            "params": params,
            "reward": reward,
            "failed": failed,
            "feedback": feedback,
            "stderr": stderr,
            "constraint_violation": constraint_violation,
        }
        return desk.tell(name, told)

    @tool
    def plot(name: str) -> Any:
        """Get a picture of the rewards and of the best so far."""
        return Image(data=desk.plot(name), format="png")

    return server
