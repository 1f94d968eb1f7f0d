"""The one retry loop: bounded, and driven by what the error says of itself."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from llmopt.client.base import Client, Reply, Request
from llmopt.errors import ClientError


def complete_with_retries(
    client: Client,
    request: Request,
    *,
    attempts: int = 4,
    base_delay: float = 1.0,
    max_delay: float = 60.0,
    sleep: Callable[[float], None] = time.sleep,
    rng: random.Random | None = None,
    on_failure: Callable[[ClientError, int], None] | None = None,
) -> Reply:
    """Ask a client, and ask again while its error says that this may help.

    Every attempt sends the same request object. The wait before attempt ``k + 1`` is drawn
    uniformly from ``[d/2, d]`` with ``d = min(max_delay, base_delay * 2**(k - 1))``, so that
    workers that failed together do not come back together. A longer `retry_after` of the
    error is honoured; one beyond `max_delay` ends the loop, since coming back earlier than
    the server allows is sure to fail.

    Args:
        client: The client to ask.
        request: What to ask.
        attempts: Largest number of calls, at least 1.
        base_delay: Seconds before the second attempt.
        max_delay: Longest wait between two attempts, in seconds.
        sleep: Waits for a number of seconds.
        rng: Source of the jitter; a fresh one by default.
        on_failure: Called with every error and the number of its attempt, from 1, before
            any wait: to count failed requests.

    Returns:
        The reply of the first attempt that succeeded.

    Raises:
        ClientError: The error of the last attempt, whose message then says how many
            there were.
        ValueError: `attempts` is below 1.
    """
    if attempts < 1:
        raise ValueError(f"attempts={attempts}; expected at least 1")
    jitter = rng if rng is not None else random.Random()
    attempt = 0
    while True:
        attempt += 1
        try:
            return client.complete(request)
        except ClientError as error:
            if on_failure is not None:
                on_failure(error, attempt)
            wait = min(max_delay, base_delay * 2 ** (attempt - 1)) * jitter.uniform(0.5, 1.0)
            if error.retry_after is not None:
                wait = max(wait, error.retry_after)
            if attempt == attempts or not error.retryable or wait > max_delay:
                if attempt > 1:
                    _say_attempts(error, attempt)
                raise
            sleep(wait)


def _say_attempts(error: ClientError, attempts: int) -> None:
    """Note in an error how often its request was sent."""
    note = f"(gave up after {attempts} attempts)"
    # `add_note` is shown only in tracebacks, and exists only from Python 3.11.
    error.args = (f"{error.args[0] if error.args else ''} {note}".lstrip(), *error.args[1:])
