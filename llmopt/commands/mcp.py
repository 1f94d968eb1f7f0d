"""``llmopt mcp``: searches for agents, over the Model Context Protocol on standard input."""

from __future__ import annotations

import argparse
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

from llmopt._version import __version__
from llmopt.commands.shared import add_packages_argument
from llmopt.errors import LLMOptError, did_you_mean, needs
from llmopt.service.mcp_tools import SearchFolder
from llmopt.service.search_file import AGENT
from llmopt.util.caller import MCP, called_by
from llmopt.util.text import short, shortened

_INSTRUCTIONS = f"""\
Black-box optimization by ask and tell. create_search() describes the problem; then repeat:
ask() for a point, evaluate it, tell() what it scored, with feedback in words where you have any.
If the search's model is {AGENT!r}, you are the model: ask() may return a `request` (messages) in
place of a point. Answer it in the form that it asks for with answer() and its `id`: it returns the
point.
Searches are kept in files: status() shows one of earlier, and its pending points come first."""


_NUMBERS = (
    "n", "last", "trial", "replaces", "reward", "stderr", "constraint_violation", "parts",
)  # fmt: skip


def _kind_of(annotation: str) -> str:
    """Return an annotation in the words of JSON."""
    kinds = {"dict[str, Any]": "an object", "str": "a text", "list[str]": "a list of texts"}
    kinds |= {"list[dict[str, Any]]": "a list of objects", "dict[str, str]": "an object of texts"}
    parts = annotation.removesuffix(" | None").split(" | ")
    return " or ".join(kinds.get(part, part) for part in parts)


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
    add_packages_argument(parser)


def main(args: argparse.Namespace) -> int:
    """Serve on standard input and output until it is closed."""
    caps = {name: getattr(args, name) for name in ("max_requests", "max_tokens", "max_cost")}
    packages = getattr(args, "compute_packages", ())
    searches = SearchFolder(args.folder, args.model or ("smollm2",), caps, packages=packages)
    make_server(searches).run()
    return 0


def make_server(searches: SearchFolder) -> Any:
    """Return a server of the official SDK; `ImportError` without the package `mcp` of version 2."""
    with needs("llmopt mcp", "mcp>=2", extra="mcp"):
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from pydantic import SkipValidation, ValidationError

    class Server(MCPServer):  # which alone would drop arguments of other names
        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            if name not in methods:
                raise ToolError(shortened(f"unknown tool {name!r}; {did_you_mean(name, methods)}"))
            valid = inspect.signature(methods[name]).parameters
            for unknown in [key for key in arguments if key not in valid]:
                said = f"{name}: unknown argument {unknown!r}; {did_you_mean(unknown, valid)}"
                raise ToolError(shortened(said))
            try:
                return await super().call_tool(name, arguments, context)
            except ToolError as error:
                if not isinstance(error.__cause__, ValidationError):
                    raise
                key = str(error.__cause__.errors()[0]["loc"][0])
                got = f"{key}={short(arguments[key])}" if key in arguments else f"{key} is missing"
                said = f"{name}: {got}; expected {_kind_of(valid[key].annotation)}"
                raise ToolError(shortened(said)) from None

    methods: dict[str, Callable[..., Any]] = {}
    server = Server("llmopt", instructions=_INSTRUCTIONS, version=__version__)

    def tool(function: Callable[..., Any]) -> None:
        @functools.wraps(function)
        def told(*args: Any, **kwargs: Any) -> Any:
            try:
                with called_by(MCP):
                    return function(*args, **kwargs)
            except (LLMOptError, ImportError, ValueError) as error:
                raise ToolError(shortened(str(error))) from None

        # The SDK would turn True into 1.0 and "8" into 8.0: the search itself checks numbers.
        signature = inspect.signature(function, eval_str=True)
        told.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[
                p.replace(annotation=Annotated[p.annotation, SkipValidation])
                if p.name in _NUMBERS
                else p
                for p in signature.parameters.values()
            ]
        )
        methods[function.__name__] = function
        server.tool()(told)

    for method in (
        searches.create_search,
        searches.list_searches,
        searches.ask,
        searches.answer,
        searches.tell,
        searches.enqueue,
        searches.withdraw,
        searches.status,
        searches.trials,
    ):
        tool(method)
    return server
