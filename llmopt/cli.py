"""The command line: a table of subcommands, each loaded only when it is called."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from llmopt._version import __version__


class Command(NamedTuple):
    """One subcommand."""

    module: str  # with ``add_arguments(parser)`` and ``main(args) -> int``
    help: str  # one line on what it does


COMMANDS = {
    "run": Command(
        "llmopt.benchmarks.run.command",
        "let a model search a task's policy, beside CMA-ES and random search",
    ),
    "bench": Command(
        "llmopt.benchmarks.bench.command",
        "run many searches of many methods, and keep the raw results",
    ),
    "report": Command("llmopt.commands.report", "make a web page of a search"),
    "models": Command(
        "llmopt.commands.models",
        "list which models can be asked from here, and what the others lack",
    ),
    "check": Command(
        "llmopt.commands.check", "send a model one tiny optimization prompt, and say what came back"
    ),
    "ask": Command("llmopt.commands.ask", "print the next points of a search in a file, as JSON"),
    "tell": Command(
        "llmopt.commands.tell", "record what points of a search in a file scored, given as JSON"
    ),
    "enqueue": Command(
        "llmopt.commands.enqueue", "queue your own points of a search in a file, given as JSON"
    ),
    "withdraw": Command(
        "llmopt.commands.withdraw", "drop points of a search in a file that have no result"
    ),
    "status": Command(
        "llmopt.commands.status",
        "print the best point of a search in a file, and what was spent, as JSON",
    ),
    "mcp": Command(
        "llmopt.commands.mcp", "serve searches to agents over the Model Context Protocol"
    ),
    "skill": Command(
        "llmopt.commands.skill", "print how a coding agent searches with llmopt, as a SKILL.md file"
    ),
    "next": Command(
        "llmopt.commands.next", "answer the requests of a search whose model is folder:DIR"
    ),
    "estimate": Command(
        "llmopt.commands.estimate", "estimate the requests, tokens and cost of a search before it"
    ),
    "code": Command(
        "llmopt.benchmarks.code.write_policy",
        "let a model write a policy as code, and improve it from feedback",
    ),
    "reward": Command(
        "llmopt.benchmarks.code.write_reward",
        "let a model write a reward function, and score the policies trained with it",
    ),
}


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line and name the nearest option."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments; an unknown option is an error that names the nearest one."""
        parsed, extra = self.parse_known_intermixed_args(args, namespace)
        wrong = next((a.partition("=")[0] for a in extra if a.startswith("-")), "")
        if wrong:
            self.error(f"unknown option {wrong!r}" + self._meant(wrong))
        if extra:
            self.error(f"unrecognized arguments: {' '.join(extra)}")
        return parsed

    def _meant(self, wrong: str) -> str:
        """Return the option that a wrong one stands for, as a question, or the commands with it."""
        own = [o for o in self._option_string_actions if o != "--help"]
        if near := difflib.get_close_matches(wrong, own, n=1, cutoff=0.6):
            return f": did you mean {near[0]}?"
        takers = []
        for name in COMMANDS:
            with contextlib.suppress(ImportError):
                if wrong in _load(name)[1]._option_string_actions:
                    takers.append(f"llmopt {name}")
        return f": it is an option of {', '.join(takers)}" if takers else ""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0 for success, 2 for an error that the message explains, 130 after
        Ctrl-C, 141 if the reader of the output went away.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Before anything imports a library of the benchmarks.
    from llmopt.errors import LLMOptError, install_hint
    from llmopt.util.caller import SHELL, called_by

    with warnings.catch_warnings(), called_by(SHELL):
        warnings.showwarning = _show_warning
        try:
            try:
                status = _dispatch(arguments)
            except SystemExit as stop:  # of argparse: help, version, a wrong option
                status = stop.code if isinstance(stop.code, int) else 0
            sys.stdout.flush()
            return status
        except LLMOptError as error:
            print(f"llmopt: error: {_one_line(error)}", file=sys.stderr)
            return 2
        except ImportError as error:
            if (error.name or "").partition(".")[0] == "llmopt":
                raise  # no extra is missing: this is a fault of ours
            known = "pip install" in str(error) or not isinstance(error, ModuleNotFoundError)
            remedy = "" if known else f": {install_hint('bench')}"
            print(f"llmopt: error: {_one_line(error)}{remedy}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("llmopt: stopped", file=sys.stderr)
            return 130
        except BrokenPipeError:
            # What is still buffered has no reader either; without this its flush at exit
            # would print a traceback.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141


def _load(name: str) -> tuple[Any, _Parser]:
    """Return the module of a subcommand, and its parser."""
    module = importlib.import_module(COMMANDS[name].module)
    parser = _Parser(prog=f"llmopt {name}", description=COMMANDS[name].help)
    module.add_arguments(parser)
    return module, parser


def _dispatch(arguments: list[str]) -> int:
    name = arguments[0] if arguments else ""
    if name in COMMANDS:
        module, parser = _load(name)
        if any(a.startswith("--config") for a in arguments):
            from llmopt.commands.shared import take_config

            take_config(parser, arguments[1:])
        return int(module.main(parser.parse_args(arguments[1:])))
    parser = _Parser(
        prog="llmopt",
        description="A large language model as a black-box optimizer.",
        epilog="commands:\n"
        + "".join(f"  {n:<10} {c.help}\n" for n, c in COMMANDS.items())
        + "\n'llmopt COMMAND --help' tells a command's options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"llmopt {__version__}")
    parser.add_argument("command", metavar="COMMAND", nargs="?", help="what to do (see below)")
    known, _ = parser.parse_known_args(arguments[:1])
    if known.command is not None:
        from llmopt.errors import did_you_mean

        parser.error(f"unknown command {known.command!r}: {did_you_mean(name, COMMANDS)}")
    if arguments:
        parser.error(f"unknown option {name!r}")
    parser.print_help()
    return 0


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    print(f"llmopt: warning: {_one_line(message)}", file=sys.stderr)


def _one_line(message: object) -> str:
    from llmopt.util.text import clean

    return clean(" ".join(str(message).split()))
