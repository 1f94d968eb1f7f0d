"""What a client has learnt about its model: rejected parameters and limits.

A parameter that an error's documented fields name is dropped, or halved if it is the cap on the
answer. If they name nothing, the request is sent once more without a schema, once without the other
optional parameters, and once with a lower cap; what helped is kept. Prose is shown, not parsed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llmopt.client.base import Request, whole
from llmopt.client.http.faults import Fault
from llmopt.util.text import estimate_tokens
from llmopt.util.threads import Lock

logger = logging.getLogger(__name__)

SCHEMA_FIELDS = frozenset({"schema", "response_format", "response_json_schema", "grammar"})
"""Parameters that prescribe the form of the answer."""
CAPS = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens"})
"""Parameters that cap the answer's tokens."""
ROOM = 16_384
"""Default tokens for hidden reasoning, in addition to those of the answer."""
_STREAM = frozenset({"stream", "stream_options"})
_LEAST_CAP = 16
_LEAST_LIMIT = 256  # tokens; a smaller number is not a limit
_CONTEXT = (
    "loaded_context_length", "n_ctx", "context_window", "context_length", "max_context_length",
    "max_model_len", "max_input_tokens", "inputTokenLimit",
)  # fmt: skip
_ANSWER = ("max_completion_tokens", "max_output_tokens", "outputTokenLimit", "max_tokens")


@dataclass(frozen=True)
class Guess:
    """A change that might satisfy a server whose refusal names nothing."""

    without: frozenset[str] = frozenset()
    cap: int | None = None


NO_GUESS = Guess()


class Learned:
    """What one client has learnt, over all its threads.

    Attributes:
        guess: The change that is being tried.
        context_tokens: Limit of prompt and answer together, if the server stated it.
        most_tokens: The largest cap on an answer, if it is limited.
    """

    def __init__(self, name: str) -> None:
        self.guess = NO_GUESS
        self.context_tokens: int | None = None
        self._name = name
        self._refused: frozenset[str] = frozenset()  # parameters that are no longer sent
        self.most_tokens: int | None = None
        self._guesses: list[Guess] | None = None  # left to try; ``None`` before the first
        self._lock = Lock()

    @property
    def without(self) -> frozenset[str]:
        """Parameters that are not sent."""
        return self._refused | self.guess.without

    def read(self, entry: object) -> None:
        """Read the limits from documented fields of a server's description of the model."""
        self.context_tokens = _limit(entry, _CONTEXT) or self.context_tokens
        self.most_tokens = _limit(entry, _ANSWER) or self.most_tokens

    def cap(self, wanted: int | None, request: Request) -> int | None:
        """Return the cap on an answer's tokens: within the limits, context less prompt included."""
        limits = (wanted, self.most_tokens, self.guess.cap)
        wanted = min(filter(None, limits), default=None)
        if wanted is None or self.context_tokens is None:
            return wanted
        # The estimate of the prompt is high: leave some room even if it exceeds the context.
        room = self.context_tokens - estimate_tokens(request.text)
        return max(_LEAST_CAP, min(wanted, max(room, self.context_tokens // 16)))

    def change(
        self,
        fault: Fault,
        said: str,
        guess: Guess,
        sent: Iterable[str],
        caps: tuple[int | None, int | None],
        fields: Mapping[str, str],
    ) -> bool:
        """Change the next requests after a fault; return whether repeating this one may help.

        Args:
            fault: Of the call.
            said: The server's message, for the log.
            guess: What was tried in the call.
            sent: The optional parameters of the call.
            caps: Its cap on the answer, and the cap without room for hidden reasoning.
            fields: The parameter for each field name that the provider uses in errors.
        """
        named = _parameter(fault.parameter, frozenset(sent) | CAPS, fields)
        if fault.status not in (400, 422) or (fault.parameter and not named):
            return False
        with self._lock:
            if guess != self.guess:  # another thread has changed it meanwhile
                return True
            if not named:
                return self._next_guess(frozenset(sent), caps)
            self._keep_guess(said)  # the server names something else now
            if named not in CAPS or fault.code == "unsupported_parameter":
                new = named not in self._refused
                self._refuse(frozenset({named}), "", said)
                return new
            cap = (caps[0] or 0) // 2
            if cap < _LEAST_LIMIT:
                return False
            self._lower(cap, said)
            return True

    def accept(self, guess: Guess, said: str) -> None:
        """Keep the change with which a call succeeded."""
        with self._lock:
            if guess == self.guess != NO_GUESS:
                self._keep_guess(said)

    def _keep_guess(self, said: str) -> None:
        self._refuse(self.guess.without, " or another one", said)
        if self.guess.cap is not None:
            self._lower(self.guess.cap, said)
        self.guess = NO_GUESS

    def _next_guess(self, sent: frozenset[str], caps: tuple[int | None, int | None]) -> bool:
        if self._guesses is None:
            schemas, (cap, least) = sent & SCHEMA_FIELDS, caps
            guesses = [Guess(schemas), Guess(sent - schemas - CAPS - _STREAM)]
            if cap is not None and least is not None and least < cap:
                guesses.append(Guess(cap=least))
            self._guesses = [guess for guess in guesses if guess != NO_GUESS]
        self.guess = self._guesses.pop(0) if self._guesses else NO_GUESS
        return self.guess != NO_GUESS

    def _refuse(self, parameters: frozenset[str], doubt: str, said: str) -> None:
        for parameter in sorted(parameters - self._refused):
            logger.warning(
                "%s rejects the parameter `%s`%s; it is no longer sent (%s)",
                self._name, parameter, doubt, said,
            )  # fmt: skip
        self._refused |= parameters

    def _lower(self, cap: int, said: str) -> None:
        self.most_tokens = min(cap, self.most_tokens or cap)
        logger.warning(
            "%s refused a longer answer; it gets at most %d tokens from now on (%s)",
            self._name, cap, said,
        )  # fmt: skip


def _parameter(place: str, sent: frozenset[str], fields: Mapping[str, str]) -> str:
    """Return the parameter to which a path such as ``generationConfig.topP`` belongs."""
    for part in re.findall(r"\w+", place):
        name = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", part).lower()
        name = fields.get(name, name)
        if name in sent:
            return name
    return ""


def _limit(node: object, names: Sequence[str], deepest: int = 12) -> int | None:
    """Return the first limit under one of these names, outermost first, or ``None``."""
    if isinstance(node, Mapping):
        numbers = (whole(node.get(name)) for name in names)
        limit = next((n for n in numbers if n is not None and n >= _LEAST_LIMIT), None)
        if limit is not None:
            return limit
        node = list(node.values())
    inner = node if isinstance(node, list) and deepest else ()
    return next(filter(None, (_limit(item, names, deepest - 1) for item in inner)), None)
