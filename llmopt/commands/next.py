"""``llmopt next DIR``: be the model behind ``folder:DIR``, one request at a time."""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import sys
import time
from pathlib import Path

from llmopt.client.folder import (
    ANSWER_BYTES,
    NO_REQUEST,
    OpenRequest,
    ended,
    hand_in,
    last_request,
    latest,
)
from llmopt.errors import LLMOptError, StorageError
from llmopt.events import CHANGES, Called, Failed, Replied
from llmopt.journal import read_events, read_started
from llmopt.reports import stored_search
from llmopt.service.live_requests import check_live, live_request
from llmopt.util.text import clean
from llmopt.views import outcome

ENDED, NOTHING_OPEN = 3, 4
"""Exit statuses: the search has ended; no request waits, or none came within ``--timeout``."""

_POLL_SECONDS = 0.2
_RESTART_SECONDS = 5.0  # that a search takes to start again
_QUIET_SECONDS = 10.0  # without a request until new results are printed
_SHORT_ANSWER = 2000  # tokens: a limit above this is not shown


def wait_for_request(
    folder: Path, timeout: float | None = None, rested: str | None = None
) -> OpenRequest | str | None:
    """Return a folder's next open request, what the search said at its end, or ``None`` in time.

    What a search `rested` with before this command is no end: it may be started again, within the
    time-out or, without one, within a few seconds; one that may go on is waited for.
    """
    began = checked = start = time.monotonic()
    deadline = None if timeout is None else began + timeout
    known = latest(folder)
    while True:
        if time.monotonic() - began > _QUIET_SECONDS and latest(folder) != known:
            known, began = latest(folder), time.monotonic()
            print(f"llmopt: results so far\n{clean(known or '')}", file=sys.stderr)
        now = time.monotonic()
        late = deadline is not None and now >= deadline
        said, found = ended(folder), live_request(folder)
        rests = said is not None and said.startswith(NO_REQUEST)
        if said is not None and not (rests and found is not None):
            patience = deadline or (math.inf if rests else start + _RESTART_SECONDS)
            if said != rested or now >= patience:
                return said
        elif found is not None:
            return found
        elif late:
            return _left(folder)
        elif deadline is None and now - checked > _RESTART_SECONDS:
            checked = now
            if left := _left(folder):
                time.sleep(_POLL_SECONDS)  # its process may just have taken the answer
                if _left(folder) == left and live_request(folder) is None:
                    return left
        time.sleep(_POLL_SECONDS)


def describe(found: OpenRequest) -> str:
    """Return one line on a request: its number, and what its answer must keep to."""
    request = found.request
    parts = [f"request {found.number}"]
    if not found.awaited:
        parts.append("no program waits for it: the one that asked was ended")
        parts.append("started again, it takes the answer (a worker of an Optuna study asks anew)")
    if since := _results_since(found):
        parts.append(f"results or changes recorded after it was written: {since}")
        parts.append("it may be answered nevertheless")
    if request.style == "completion":
        parts.append("the answer continues the text")
    if request.max_tokens is not None and request.max_tokens < _SHORT_ANSWER:
        parts.append(f"at most {request.max_tokens} tokens")
    if request.json_schema is not None or request.grammar is not None:
        form = "JSON schema" if request.json_schema is not None else "grammar"
        parts.append(f"the answer follows the {form} in {found.number:04d}.request.json")
    return "=== " + "; ".join(parts) + " ==="


def _left(folder: Path) -> str | None:
    """Say that the latest request is answered, and that the search that sent it was killed."""
    try:
        found = last_request(folder)
        if found is None or found.awaited or not found.storage:
            return None
        events = list(read_events(found.storage, links=False))
    except LLMOptError:  # a damaged request, or a storage that was moved away
        return None
    last = max((k for k, e in enumerate(events) if isinstance(e, Called)), default=None)
    if last is None or getattr(events[last], "digest", "") != found.request.digest():
        return None
    if any(isinstance(e, Replied | Failed) for e in events[last:]):
        return None
    return (
        f"{NO_REQUEST}: request {found.number} is answered, and the program that sent it was "
        f"ended. Start it again (`llmopt ask`, or your script): it takes the answer"
    )


def _refreshed(folder: Path, text: str) -> str:
    """Return an outcome with the results that its search has recorded since."""
    try:
        found = last_request(folder)
        if found is None or not found.storage:
            return text
        read_started(found.storage, links=False)  # the folder may be somebody else's
        with contextlib.closing(stored_search(Path(found.storage))) as search:
            now = outcome(search.history, search.space, search.recommended_number)
    except (LLMOptError, OSError, LookupError, TypeError, ValueError):
        return text  # moved away, on another machine, or a search for code
    stale = any(s.startswith("The latest: ") and s not in text for s in now.splitlines())
    head = re.sub(r" after \d+ evaluations", "", text.partition("Results of the last answer: ")[0])
    return f"{head.rstrip()}\n{now}".lstrip() if stale else text


def _results_since(found: OpenRequest) -> int:
    """Return how many results or changes a search recorded after it made a request."""
    if not found.storage:
        return 0
    try:
        events = list(read_events(found.storage, links=False))
    except StorageError:  # moved away, or on another machine
        return 0
    digest = found.request.digest()
    calls = (e.base for e in events if isinstance(e, Called) and e.digest == digest)
    return sum(isinstance(e, CHANGES) for e in events[min(calls, default=len(events)) :])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt next``."""
    parser.add_argument("folder", metavar="DIR", type=Path, help="the folder of folder:DIR")
    parser.add_argument(
        "--answer",
        metavar="K",
        type=int,
        help="submit the answer to request K, read from standard input",
    )
    parser.add_argument(
        "--wait",
        action="store_true",
        help="wait for the next request (after --answer) and print it",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="print the whole request, not only what it adds to the one that was answered last",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=float,
        help="seconds to wait for a request (default: for ever); 0 looks once",
    )
    parser.epilog = (
        "Prints the next open request, waiting for it if need be. One turn of the loop is "
        "`llmopt next DIR --answer K --wait < answer.txt`. Exit status: 0 a request was printed "
        f"or an answer taken, {ENDED} the search has ended, {NOTHING_OPEN} no request waits, or "
        "came in time."
    )


def main(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    if args.folder.is_file():
        raise LLMOptError(f"{args.folder} is a file: give the folder of folder:DIR")
    rested = ended(args.folder) if args.wait or args.timeout is not None else None
    if args.answer is not None:
        check_live(args.folder, args.answer)
        if sys.stdin.isatty():
            print("llmopt: type the answer and end it with Ctrl-D", file=sys.stderr)
        hand_in(args.folder, args.answer, sys.stdin.buffer.read(ANSWER_BYTES + 1))
        if not args.wait:
            print(f"answer {args.answer} taken")
            return 0
    if not args.folder.exists():
        said = f"waiting for requests in {args.folder} (the folder does not exist yet)"
        print(f"llmopt: {clean(said)}", file=sys.stderr)
    found = wait_for_request(args.folder, args.timeout, rested)
    if found is None:
        said = f"no open request in {args.folder} within {args.timeout:g} s"
        results = _refreshed(args.folder, latest(args.folder) or "")
        print(f"llmopt: {said}\n{clean(results)}".rstrip(), file=sys.stderr)
        return NOTHING_OPEN
    if isinstance(found, str):
        print(f"llmopt: {clean(_refreshed(args.folder, found))}", file=sys.stderr)
        return NOTHING_OPEN if found.startswith(NO_REQUEST) else ENDED
    text = found.text if args.all else found.new
    print(f"{describe(found)}\n\n{clean(text)}", flush=True)
    print(
        f"\nllmopt: submit the answer with: llmopt next {args.folder} --answer {found.number} "
        "--wait < answer.txt",
        file=sys.stderr,
    )
    return 0
