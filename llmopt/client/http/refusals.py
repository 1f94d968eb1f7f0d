"""What a client has learnt about its model: rejected parameters and limits.

A parameter that an error's documented fields name is dropped, or halved if it is the cap on the
answer; such changes add up. If they name nothing, the request is sent once more without a schema,
once without the other optional parameters, and once with a lower cap. Prose is shown, not parsed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from llmopt.client.base import Request, whole
from llmopt.client.http.faults import Fault
from llmopt.util.text import estimate_tokens
from llmopt.util.threads import Lock

SCHEMA_FIELDS = frozenset({"schema", "response_format", "response_json_schema", "grammar"})
"""Parameters that prescribe the form of the answer."""
CAPS = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens"})
"""Parameters that cap the answer's tokens."""
ROOM = 16_384
"""Default tokens for hidden reasoning, in addition to those of the answer."""
_STREAM = frozenset({"stream", "stream_options"})
_LARGEST_CUT = 8  # of the cap of one request
_LEAST_CAP = 16
_LEAST_LIMIT = 256  # tokens; a smaller number is not a limit
_CONTEXT = (
    "loaded_context_length", "n_ctx", "context_window", "context_length", "max_context_length",
    "max_model_len", "max_input_tokens", "inputTokenLimit",
)  # fmt: skip
_ANSWER = ("max_completion_tokens", "max_output_tokens", "outputTokenLimit", "max_tokens")


class Learned:
    """What one client has learnt, over all its threads."""

    def __init__(self, samples_per_call: int) -> None:
        self.refused: frozenset[str] = frozenset()  # parameters that are no longer sent
        self.most_tokens: int | None = None  # the largest cap on an answer
        self.context_tokens: int | None = None  # prompt and answer together
        self.samples_per_call = samples_per_call
        self.guesses = True  # whether unnamed refusals are still worth a guess
        self._lock = Lock()

    def read(self, entry: object) -> None:
        """Read the limits from documented fields of a server's description of the model."""
        self.context_tokens = _limit(entry, _CONTEXT) or self.context_tokens
        self.most_tokens = _limit(entry, _ANSWER) or self.most_tokens

    def cap(self, wanted: int | None, request: Request) -> int | None:
        """Return the cap on an answer's tokens: within the limits, context less prompt included."""
        if wanted is None or self.most_tokens is not None:
            wanted = min(filter(None, (wanted, self.most_tokens)), default=None)
        if wanted is None or self.context_tokens is None:
            return wanted
        # The estimate of the prompt is high: leave some room even if it exceeds the context.
        room = self.context_tokens - estimate_tokens(request.text)
        return max(_LEAST_CAP, min(wanted, max(room, self.context_tokens // 16)))

    def keep(self, parameters: Collection[str], cap: int | None = None) -> frozenset[str]:
        """Remember what a server rejects; return the newly rejected parameters."""
        with self._lock:
            new = frozenset(parameters) - self.refused
            self.refused |= new
            if new & {"n", "candidate_count"}:
                self.samples_per_call = 1
            if cap is not None:
                self.most_tokens = min(cap, self.most_tokens or cap)
        return new


@dataclass(frozen=True)
class Guess:
    """A change that might satisfy a server whose refusal names nothing."""

    without: frozenset[str] = frozenset()
    cap: int | None = None


class Refusals:
    """The changes to one request after its refusals.

    Args:
        learned: What its client has learnt.
        request: The request, with its cap.
        least: The cap without room for hidden reasoning.
        offered: Its optional parameters before any change.
        fields: The parameter for each field name that the provider uses in errors.
    """

    def __init__(
        self,
        learned: Learned,
        request: Request,
        least: int | None,
        offered: Collection[str],
        fields: Mapping[str, str],
    ) -> None:
        self.without: frozenset[str] = frozenset()
        self.guessed: frozenset[str] = frozenset()  # parameters of `without` that were guesses
        cap = self.cap = self._first_cap = request.max_tokens
        self._prompt_tokens = estimate_tokens(request.text)
        self.guess = Guess()  # the latest one, if no name came after it
        self._offered, self._fields = frozenset(offered), fields
        schemas = SCHEMA_FIELDS & self._offered
        guesses = [Guess(schemas), Guess(self._offered - schemas - CAPS - _STREAM)]
        if None not in (cap, least) and least < cap and learned.most_tokens is None:  # type: ignore[operator]
            guesses.append(Guess(cap=least))
        self._guesses = guesses if learned.guesses else []

    @property
    def lowered(self) -> int | None:
        """The cap, if it was lowered."""
        return None if self.cap == self._first_cap else self.cap

    def change(self, fault: Fault) -> bool:
        """Change the request after a fault; return whether sending it again may help."""
        named = self._parameter(fault.parameter)
        range_error = "above" in fault.code or "below" in fault.code  # the user's own value
        minute = fault.headers.get("x-ratelimit-limit-tokens", "")
        if fault.status == 429 and re.fullmatch(r"[0-9]{1,12}", minute):
            # The cap counts against the tokens per minute, even if it is not used.
            return self._lower(int(minute) - self._prompt_tokens)
        if fault.code == "context_length_exceeded":
            self._guesses = [guess for guess in self._guesses if guess.cap]
        elif fault.status not in (400, 422) or (fault.parameter and not named):
            return False
        if not named:
            return self._next_guess()
        self.without |= self.guess.without  # the server now names something else
        self.guessed |= self.guess.without
        self.cap, self.guess = self.guess.cap or self.cap, Guess()
        if named in CAPS and fault.code != "unsupported_parameter":
            return self._lower((self.cap or 0) // 2)
        again = named in self.without
        self.without |= {named}
        return not again and not range_error

    def _lower(self, cap: int) -> bool:
        least = max(_LEAST_CAP, (self._first_cap or 0) // _LARGEST_CUT)
        if self.cap is None or not least <= cap < self.cap:
            return False
        self.cap = cap
        return True

    def _next_guess(self) -> bool:
        while self._guesses:
            guess = self._guesses.pop(0)
            self.guess = Guess(guess.without - self.without, guess.cap)
            if self.guess != Guess() and (guess.cap is None or guess.cap < (self.cap or 0)):
                return True
        self.guess = Guess()
        return False

    def _parameter(self, place: str) -> str:
        """Return the parameter to which a path such as ``messages[0].content`` belongs."""
        for part in re.findall(r"\w+", place):
            name = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", part).lower()
            name = self._fields.get(name, name)
            if name in CAPS or name in self._offered:
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
