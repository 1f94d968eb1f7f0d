"""A command as the model: the request on its standard input, the answer on its standard output.

    optimizer = LLMOptimizer(space, "command:claude -p")
    optimizer = LLMOptimizer(space, CommandClient(["ollama", "run", "llama3.2"], local=True))

There is no shell: the text is split into arguments as a POSIX shell splits it. Each answer is a
process, in an empty temporary folder. It sees the variables of `_SHARED`, those of its provider
(`COMMANDS`) and those that `variables` names, so no other provider's key. It may be an agent with
tools: what it may read and do beyond its answer is up to its options.
"""

from __future__ import annotations

import difflib
import functools
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

from llmopt.client import command_guard
from llmopt.client.base import Completion, Reply, Request
from llmopt.client.command_notices import notice, replaces_answer
from llmopt.client.http.api_keys import Secret, hide, redact
from llmopt.client.payment import priced
from llmopt.client.prices import FREE, Price
from llmopt.errors import ClientError, ModelNotFoundError
from llmopt.util.arguments import number
from llmopt.util.text import clean, ended, short
from llmopt.util.threads import SEARCH_DEADLINE, WAIT_SHOWN

MOST_BYTES = 1_000_000
"""Maximum size of an answer, and of what a command may say on standard error."""

SIGN_SECONDS = 5.0, 30.0
"""Before the first answer and later, after which a wait is logged unless a caller shows it."""

_POLL_SECONDS, _GUARD_SECONDS = 0.1, 10.0  # the guard waits a second before it kills
_IN_A_ROW = 3  # equal failures of a program that did answer: more than a request and its repeat
_SAID_BYTES, _SAID_CHARACTERS = 20_000, 300  # the end of an output that an error reads and quotes
_SHARED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TERM|TZ|TMPDIR|LANG|LANGUAGE|LC_\w+|XDG_\w+|SSL_CERT_(FILE|DIR)"
    r"|NODE_EXTRA_CA_CERTS|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(?i:(https?|all|no)_proxy)"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_SHORTEST_SECRET = 8  # characters: a shorter value would blot out words
_SHELL = frozenset({"|", "||", "&", "&&", ";", "<", "<<", ">", ">>", "2>", "2>&1", "&>"})
# Programs that run another one, and what may stand before its name.
_RUNNERS = frozenset({"env", "ionice", "nice", "nohup", "setsid", "stdbuf", "time", "timeout"})
_BEFORE = re.compile(r"-.*|\w+=.*|\d+(\.\d+)?[smhd]?", re.DOTALL)
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


class Command(NamedTuple):
    """A program that is known to answer standard input."""

    model: str  # the model string that asks it without tools, as far as it can do without
    variables: str  # pattern of the environment variables of its own provider
    tools: str  # pattern of arguments with which it may do more than `model` may
    may: str  # what it may do then
    wrapped: str = r"(?!)"  # pattern of arguments with which its answer is a part of JSON


# What is not in the documentation of a program is not in its row.
COMMANDS = {
    # code.claude.com/docs/en/cli-reference: without built-in tools and without MCP servers.
    "claude": Command(
        'command:claude -p --tools "" --strict-mcp-config',
        r"ANTHROPIC_\w+|CLAUDE_\w+",
        r"^(?!.*--tools(=| '')( |$))|^(?!.*--strict-mcp-config)",
        "use its tools",
        r"--output-format[= ](stream-)?json",
    ),
    # developers.openai.com/codex/noninteractive: `codex exec` is read-only unless told otherwise.
    "codex": Command(
        "command:codex exec --skip-git-repo-check --sandbox read-only -",
        r"OPENAI_\w+|CODEX_\w+",
        r"(--sandbox|-s)[= ](workspace-write|danger-full-access)|--full-auto|--yolo"
        r"|--dangerously-bypass-approvals-and-sandbox",
        "edit files",
        r"--json\b",
    ),
    # geminicli.com/docs, policy engine and headless mode: without a terminal, it is denied every
    # tool for which it would ask.
    "gemini": Command(
        "command:gemini",
        r"GEMINI_\w+|GOOGLE_\w+",
        r"(^| )(-y|--yolo)\b|--approval-mode[= ](yolo|auto_edit)",
        "edit files without asking you",
        r"(--output-format|(^| )-o)[= ](stream-)?json",
    ),
    # llm.datasette.io/en/stable/tools.html
    "llm": Command(
        "command:llm", r"LLM_\w+", r"(^| )(-T|--tool|--functions)\b", "use the tools that it names"
    ),
    # `ollama run --help`
    "ollama": Command(
        "command:ollama run llama3.2",
        r"OLLAMA_\w+",
        r"--experimental\b",
        "use tools",
    ),
}
"""The known programs by name."""

_PROVIDERS = re.compile("|".join(command.variables for command in COMMANDS.values()))
logger = logging.getLogger(__name__)
_log_once = functools.cache(logger.warning)


class CommandClient:
    """Asks a command: one process for each answer, which gets the request as plain text.

    The command and its children end with the answer, after `timeout`, with Ctrl-C, and if this
    process is killed. What it costs is unknown, so that `max_cost` is refused.

    Args:
        command: The command line, or its arguments.
        timeout: Seconds that one answer may take.
        variables: Names of further environment variables that it needs, with commas.
        local: Whether its answers are free, as those of a model on this machine.

    Raises:
        ValueError: The command is empty, has an open quotation mark or needs a shell, `timeout` is
            not above 0, or `variables` has what is no name.
    """

    transport_attempts = 2

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        timeout: float = 600.0,
        variables: str = "",
        local: bool = False,
    ) -> None:
        try:
            arguments = shlex.split(command) if isinstance(command, str) else list(command)
        except ValueError as error:
            raise ValueError(f"command={command!r}: {error}; expected a command line") from None
        if not arguments or not all(isinstance(a, str) and "\0" not in a for a in arguments):
            raise ValueError(
                f"command={short(command)}: expected a command line such as 'claude -p', or its "
                "arguments as a list of texts"
            )
        if number("timeout", timeout, unit="seconds") <= 0:
            raise ValueError(f"timeout={timeout}: expected seconds above 0")
        signs = _SHELL.intersection(arguments) | {a for a in arguments if a.startswith("$")}
        if isinstance(command, str) and signs:
            raise ValueError(
                f"command={short(command)}: no shell runs it, so that {' '.join(sorted(signs))} "
                "would go to the program as arguments; expected one program with its arguments. "
                "Put the line in a script (#!/bin/sh, chmod +x), and give its path"
            )
        arguments[0] = os.path.expanduser(arguments[0])
        self.arguments = arguments
        if (known := self._known) and (found := re.search(known.wrapped, self._options)):
            raise ValueError(
                f"command={short(command)}: with {found[0].strip()}, its answer is only a part of "
                "the JSON that it prints; leave this option out, so that it prints the answer alone"
            )
        wrong = [n for n in variables.split(",") if not re.fullmatch(r"\s*\w*\s*", n)]
        if wrong:
            raise ValueError(
                f"variables={variables!r}: {wrong[0]!r} is no name; expected names of environment "
                "variables with commas between them, without values"
            )
        self.timeout, self.variables = timeout, variables
        self.local = self.priced = local
        line = command if isinstance(command, str) else shlex.join(arguments)
        self.name = f"command:{redact(line)}"
        self._answered = False  # whether it ever did
        self._failures: list[str] = []  # since its last answer

    def __repr__(self) -> str:
        return f"CommandClient({self.name.removeprefix('command:')!r})"

    def current_price(self) -> Price | None:
        """Return the price of a token: 0 of a local model, else unknown."""
        return FREE if self.local else None

    def environment(self) -> dict[str, str]:
        """Return the variables that the command sees."""
        names, more = re.compile(known.variables if (known := self._known) else r"(?!)"), self._more
        return {
            name: value
            for name, value in os.environ.items()
            if _SHARED.fullmatch(name) or names.fullmatch(name) or name in more
        }

    @property
    def _known(self) -> Command | None:
        return COMMANDS.get(Path(self.arguments[0]).name)

    @property
    def _run(self) -> tuple[Command | None, str]:
        """The known program that runs, perhaps behind ``nice -n 5`` and the like; its options."""
        words, at = self.arguments, 0
        while at + 1 < len(words) and (
            Path(words[at]).name in _RUNNERS or (at and _BEFORE.fullmatch(words[at]))
        ):
            at += 1
        return COMMANDS.get(Path(words[at]).name), shlex.join(words[at + 1 :])

    @property
    def _options(self) -> str:
        return shlex.join(self.arguments[1:])

    @property
    def _more(self) -> list[str]:
        return self.variables.replace(",", " ").split()

    def check_ready(self) -> None:
        """Raise `ModelNotFoundError` if there is no such program."""
        if os.name != "posix":
            raise ClientError(f"{self.name}: commands are asked on Linux and macOS only")
        self._program()

    def _variables_hint(self, login: bool) -> str:
        """Say how an unknown program gets variables of providers, if any is kept from it."""
        if self._known:
            return ""
        hidden = self._kept_back()
        names = [*filter(None, [self.variables]), *hidden] if hidden else ["NAME", "NAME"]
        text = f". It gets variables of its login only by ?variables={','.join(names)}"
        return text if login or hidden else ""

    def _kept_back(self) -> list[str]:
        """Return the variables of providers that the program does not get, without API keys."""
        hidden = sorted(filter(_PROVIDERS.fullmatch, os.environ.keys() - self.environment().keys()))
        return [name for name in hidden if not name.endswith("_API_KEY")]  # a key would pay

    def _note_use(self) -> None:
        """Log once which variables are not set or passed on, and which tools and keys it has."""
        unset = [n for n in self._more if n not in os.environ]
        if unset:
            _log_once(f"{self.name}: {' and '.join(unset)} of variables= is not set")
        known, options = self._run
        if known and re.search(known.tools, options):
            quotes = " (mind the quotes)" * ('"' in known.model)
            _log_once(f"{self.name} may {known.may}. This prevents it{quotes}: '{known.model}'")
        keys = [n for n in sorted(os.environ) if n.endswith("_API_KEY") and _PROVIDERS.fullmatch(n)]
        seen = self.environment()
        if self._known:
            verb, keys = "gets", [name for name in keys if name in seen]
            text = "which may pay in place of its own login: unset it to use a subscription"
        else:
            verb, keys = "does not get", [name for name in keys if name not in seen]
            text = "so that its own login is used (?variables=NAME passes a variable on)"
            if hidden := self._kept_back():
                _log_once(
                    f"{self.name} does not get {' and '.join(hidden)} of the environment, so that "
                    f"it may use another account (?variables={','.join(hidden)} passes them on)"
                )
        if keys:
            _log_once(f"{self.name} {verb} {' and '.join(keys)} of the environment, {text}")

    def _program(self) -> str:
        program = shutil.which(self.arguments[0], path=self.environment().get("PATH"))
        if program is None:
            first = self.arguments[0]
            close = difflib.get_close_matches(first, COMMANDS, n=1)
            near = f"did you mean {close[0]!r}? Else " if close and first not in COMMANDS else ""
            if os.path.isfile(first) and os.access(first, os.X_OK):
                fault = f"{first!r} is not on PATH; for the one in this folder write './{first}'"
            elif os.path.isdir(first):
                fault = f"{first!r} is a folder; give the program in it"
            elif os.path.exists(first):
                fault = f"{first!r} is no program that may be executed; `chmod +x` makes it one"
            elif "=" in first:
                fault = f"{first!r} is no program; ?variables=NAME passes a variable on"
            else:
                fault = (
                    f"there is no program {first!r}{' on PATH' * ('/' not in first)}; {near}install"
                    " it, or give its path. `llmopt models` lists the known ones that are installed"
                )
            raise ModelNotFoundError(f"{self.name}: {fault}", requests=0)
        return os.path.abspath(program)  # it runs in another folder

    def complete(self, request: Request) -> Reply:
        """Run the command.

        Raises:
            ClientError: The command is missing, failed, took too long or said nothing. The error is
                permanent if it never answered and took too long or failed twice in the same way,
                if it failed in the same way three times in a row, or if it names a usage limit.
                If it names an overload, its status is 503, for which retries are patient; one that
                outlasts them is permanent.
        """
        program, start = self._program(), time.monotonic()
        self._note_use()
        completion = self._answer(program, request.transcript)
        reply = Reply((completion,), self.name, seconds=time.monotonic() - start)
        return priced(reply, request, self.current_price(), False, Secret())

    def _answer(self, program: str, text: str) -> Completion:
        reached = None
        with (
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as answer,
            tempfile.TemporaryFile() as errors,
        ):
            given.write(text.encode(errors="replace"))
            given.seek(0)
            alive, end = os.pipe()
            guard = [sys.executable, "-I", "-S", command_guard.__file__, str(alive)]
            began, silent = time.monotonic(), not WAIT_SHOWN.get()
            limit = min(self.timeout, SEARCH_DEADLINE.get().left)
            process = subprocess.Popen(
                [*guard, program, *self.arguments[1:]],
                stdin=given,
                stdout=answer,
                stderr=errors,
                env=self.environment(),
                pass_fds=[alive],
                start_new_session=True,  # Ctrl-C is for this process alone
            )
            try:
                while reached is None and not _ended(process, _POLL_SECONDS):
                    if max(_size(answer), _size(errors)) > MOST_BYTES:
                        reached = "length"
                    elif (waited := time.monotonic() - began) >= limit:
                        reached = "time"
                    elif silent and waited >= SIGN_SECONDS[self._answered]:
                        silent = False
                        said = "%s has not answered for %.0f s: waiting up to %.0f s"
                        logger.warning(said, self.name, waited, limit)
            finally:
                os.write(end, b"end")  # a forked process may hold this end open
                os.close(end)
                os.close(alive)
                _ended(process, _GUARD_SECONDS)
            said = self._read(answer, 0, MOST_BYTES)
            problem = self._problem(reached, process.returncode, said, limit)
            if problem:
                ends = [self._read_end(file) for file in (answer, errors)]
                raise self._failure(problem, reached, process.returncode, ends, text)
        self._answered, self._failures = True, []
        return Completion(hide(clean(said), _secrets()))

    def _failure(
        self, problem: str, reached: str | None, status: int | None, ends: list[str], request: str
    ) -> ClientError:
        """Return the error of a run without an answer, by the ends of its outputs."""
        ends = [redact(end, _secrets()) for end in ends]
        found = notice(*ends, request=request) if reached is None else None
        limited, login = (found is not None and found.kind == kind for kind in ("limit", "login"))
        first = "Wait for its limit" if limited else "Log in"
        if found is None:
            first = "Log in, wait for its limit or mend its options"
            known = self._run[0]
            if known and not set(shlex.split(known.model)[1:]) <= set(self.arguments):
                first += f" (as in '{known.model}')"
        quote = _quoted(*ends) if found is None else found.line
        told = f"{self.name} {problem}{': ' * bool(quote)}{quote}"
        if found is not None and found.kind == "busy":
            error = ClientError(told, retryable=True, status=503)
            error.exhausted = True  # if it outlasts all patience
            return error
        unstarted = status in (126, 127) and reached is None
        self._failures.append(problem)
        # One that hangs before its first answer perhaps waits for somebody.
        most = _IN_A_ROW if self._answered else 1 if reached == "time" else 2
        again = self._failures[-most:] == [problem] * most
        if again and self._answered and not limited:
            told = f"{ended(told)} It failed so {most} times in a row, so no more requests"
            told += " are sent"
        here = [a for a in self.arguments[1:] if not os.path.isabs(a) and os.path.exists(a)]
        if here:
            told = f"{ended(told)} It runs in an empty folder: give the full path of "
            told += repr(here[0])
        elif reached is None:
            told = f"{ended(told)} {first} until this answers: echo hi | "
            told += self.name.removeprefix("command:")
        if login or (reached is None and status and not unstarted):
            told += self._variables_hint(login)
        passing = limited or (again and self._answered)
        error = ClientError(
            told,
            retryable=not (unstarted or again or limited),
            unpriced=int(not self.local and not unstarted),
        )
        # Such as a program that is not logged in.
        error.permanent, error.exhausted = unstarted or again or limited, passing
        return error

    def _problem(self, reached: str | None, status: int | None, said: str, limit: float) -> str:
        """Return why there is no answer; empty if there is one."""
        if reached == "time" and limit < self.timeout:
            return f"was ended after {limit:.0f} s: {SEARCH_DEADLINE.get().why}"
        if reached == "time":
            return (
                f"did not end within {self.timeout:g} s, and was ended. If it is merely slow, give "
                f"it longer: '{self.name}?timeout={2 * self.timeout:g}'"
            )
        if reached:
            return f"wrote more than {MOST_BYTES:,} bytes, and was ended"
        if status:
            signal = f" (ended by signal {status - 128})" if status > 128 else ""
            return f"failed with exit status {status}{signal}"
        if not said.strip():
            return "answered nothing on standard output"
        return "gave no answer" if replaces_answer(said) else ""

    def _read_end(self, file: IO[bytes]) -> str:
        return self._read(file, max(0, _size(file) - _SAID_BYTES), _SAID_BYTES)

    @staticmethod
    def _read(file: IO[bytes], start: int, most: int) -> str:
        """Return text of a file without colours; a word that `start` cuts is left out."""
        file.seek(start)
        text = file.read(most).decode(errors="replace")
        return _ESCAPES.sub("", text.partition(" ")[2] if start else text)


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _quoted(said: str, told: str) -> str:
    """Return the ends of standard output and standard error, as an error quotes them."""
    both = bool(said.strip() and told.strip())
    most, texts = _SAID_CHARACTERS // (1 + both), []
    for text in (" ".join(told.split()), " ".join(said.split())):
        texts.append("…" * (len(text) > most) + text[-most:])
    return texts[0] + " (standard output: " * both + texts[1] + ")" * both


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _secrets() -> list[str]:
    """Return the values in the environment that may be secrets, longest first."""
    found = {v for n, v in os.environ.items() if _SECRET.search(n) and len(v) >= _SHORTEST_SECRET}
    return sorted(found, key=len, reverse=True)
