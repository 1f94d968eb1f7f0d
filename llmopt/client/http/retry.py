"""The only retry loop: bounded, and driven by the attributes of the error."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from llmopt.client.base import Client, Reply, Request, client_name
from llmopt.errors import ClientError, SearchStopped
from llmopt.util.text import ended
from llmopt.util.threads import SEARCH_DEADLINE

BUSY_STATUS = frozenset({429, 503, 529})
_FIRST_WAIT = 1.0
_LONGEST_WAIT = 60.0
logger = logging.getLogger(__name__)


def complete_with_retries(
    client: Client,
    request: Request,
    *,
    most_calls: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
    rng: random.Random | None = None,
    on_failure: Callable[[ClientError], None] | None = None,
    call: Callable[[Request], Reply] | None = None,  # replaces the client's `complete`
) -> Reply:
    """Send a request, and retry while the error is retryable.

    Every attempt sends the same request object. The wait before attempt ``k + 1`` is sampled
    uniformly from ``[d/2, d]`` with ``d = min(60, 2**(k - 1))`` seconds, so that workers that
    failed together do not retry together. A longer `retry_after` of the error is honoured. If it
    exceeds a minute, or the remaining `patience` (300 seconds) for a busy provider, the loop ends:
    retrying earlier than the server allows is sure to fail.

    A busy provider (HTTP 429, 503, 529) charges nothing and recovers in minutes, so its rejections
    are limited by `patience`; all other failures by the client's `transport_attempts` (4). A call
    that may be charged without an answer (`ClientError.unpriced`) is repeated at most once. A
    request that the client has `adapted` to its model is repeated immediately.

    `most_calls` limits the calls. `on_failure` is called with every error, before any wait. Each
    error that is followed by a retry is logged, with the wait.

    Raises:
        ClientError: The error of the last attempt; its message states the number of attempts. An
            `exhausted` one is permanent once the patience is over.
        SearchStopped: The time of the search is over.
    """
    attempts = int(getattr(client, "transport_attempts", 4))
    patience = float(getattr(client, "patience", 300.0))
    jitter = rng if rng is not None else random.Random()
    attempt = failed = calls = given_up = 0
    deadline = SEARCH_DEADLINE.get()
    while True:
        if not deadline.left:
            raise SearchStopped(deadline.why)
        attempt += 1
        try:
            return client.complete(request) if call is None else call(request)
        except ClientError as error:
            busy = error.status in BUSY_STATUS
            failed += not (busy or error.adapted)
            calls += max(1, error.requests)
            given_up += error.unpriced > 0 or error.estimated > 0
            wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(attempt - 1, 60))
            wait *= 0.0 if error.adapted else jitter.uniform(0.5, 1.0)
            if error.retry_after is not None:
                wait = max(wait, error.retry_after)
            capped = error.retryable and most_calls is not None and calls >= most_calls
            too_long = wait > (patience if busy else _LONGEST_WAIT)
            final = not error.retryable or capped or failed >= attempts or given_up > 1 or too_long
            patience -= wait if busy else 0.0
            if not final and deadline.left:
                name, most = client_name(client), f", and for up to {patience:.0f} s more" * busy
                said = "%s: attempt %d failed: %s Trying again in %.0f s%s"
                logger.warning(said, name, attempt, ended(str(error)), wait, most)
            if on_failure is not None:
                on_failure(error)
            if final:
                if not deadline.left:  # which may have ended the call
                    raise SearchStopped(deadline.why) from error
                if attempt > 1 or capped:
                    said = error.args[0] if error.args else ""
                    note = f"{said} (gave up after {attempt} attempt{'s' * (attempt > 1)}"
                    note += ", since max_requests is reached: raise it to go on" * capped + ")"
                    if error.exhausted and too_long and not capped:
                        error.permanent = True
                        note += ". Wait until it is over"
                    error.args = (note.lstrip(), *error.args[1:])
                raise
            sleep(min(wait, deadline.left))
