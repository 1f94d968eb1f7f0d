"""What a client has learnt about its model: rejected parameters and limits.

A parameter that an error's documented fields name is dropped, or halved if it is the cap. If they
name nothing, the request is sent without a schema, then without the other parameters, once per
client. Prose is shown but never parsed.
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
_MOST_CAPS = 3  # times that the cap of one request is lowered
_LEAST_CAP = 16
_LEAST_LIMIT = 256  # tokens; a smaller number is not a limit
_CONTEXT = (
    "loaded_context_length", "n_ctx", "context_window", "context_length", "max_context_length",
    "max_model_len", "max_input_tokens", "input_token_limit",
)  # fmt: skip
_ANSWER = ("max_completion_tokens", "max_output_tokens", "output_token_limit", "max_tokens")


@dataclass(frozen=True)
class Change:
    """A change to a rejected request before it is sent again."""

    without: frozenset[str] = frozenset()  # parameters to drop
    cap: int | None = None  # new cap on the answer's tokens; ``None`` keeps the old one
    named: bool = True  # whether the server named the parameter


class Learned:
    """What one client has learnt, over all its threads."""

    def __init__(self, samples_per_call: int) -> None:
        self.refused: frozenset[str] = frozenset()  # parameters that are no longer sent
        self.most_tokens: int | None = None  # the largest cap on an answer
        self.context_tokens: int | None = None  # prompt and answer together
        self.samples_per_call = samples_per_call
        self._tried = False
        self._lock = Lock()

    def read(self, entry: object) -> None:
        """Read the limits from documented fields of a server's description of the model."""
        self.context_tokens = _limit(entry, _CONTEXT) or self.context_tokens
        self.most_tokens = _limit(entry, _ANSWER) or self.most_tokens

    def change(
        self,
        fault: Fault,
        request: Request,
        sent: Collection[str],
        fields: Mapping[str, str],
        tried: Sequence[Change],
    ) -> Change | None:
        """Return how to send a request again, or ``None`` if that would not help.

        `sent` are the optional parameters before any change, `tried` the changes so far; `fields`
        maps field names in errors to parameters.
        """
        cap = next((c.cap for c in reversed(tried) if c.cap is not None), request.max_tokens)
        lowered = sum(c.cap is not None for c in tried)
        if cap is not None and cap > _LEAST_CAP and lowered < _MOST_CAPS:
            minute = fault.headers.get("x-ratelimit-limit-tokens", "")
            known = re.fullmatch(r"[0-9]{1,12}", minute)
            left = int(minute) - estimate_tokens(request.text) if known else 0
            if fault.status == 429 and _LEAST_CAP <= left < cap:
                # The cap counts against the tokens per minute, even if it is not used.
                return Change(cap=left)
        if fault.status not in (400, 422) or fault.code == "context_length_exceeded":
            return None
        named = _parameter(fault.parameter, sent, fields)
        if named in CAPS and fault.code != "unsupported_parameter":
            lowest = cap is None or cap <= _LEAST_CAP or lowered == _MOST_CAPS
            return None if cap is None or lowest else Change(cap=cap // 2)
        if "above" in fault.code or "below" in fault.code:
            return None  # the value is the user's own
        if named:
            change = Change(without=frozenset({named}))
            return None if change in tried else change
        if fault.parameter or self._tried:
            return None
        schemas = SCHEMA_FIELDS.intersection(sent)
        groups = (schemas, frozenset(sent) - schemas - CAPS - _STREAM)
        guesses = [Change(without=group, named=False) for group in groups if group]
        return next((guess for guess in guesses if guess not in tried), None)

    def keep(self, change: Change) -> frozenset[str]:
        """Remember a change that the server accepted; return the newly rejected parameters."""
        with self._lock:
            new = change.without - self.refused
            self.refused |= change.without
            if change.without & {"n", "candidate_count"}:
                self.samples_per_call = 1
            if change.cap is not None:
                self.most_tokens = change.cap
        return new

    def give_up(self) -> None:
        """Remember that the guesses failed, so that no later request pays for them."""
        self._tried = True


def _limit(node: object, names: Sequence[str], deepest: int = 12) -> int | None:
    """Return the first limit under one of these names, outermost first, or ``None``."""
    if isinstance(node, Mapping):
        numbers = (whole(node.get(name)) for name in names)
        found = next((n for n in numbers if n is not None and n >= _LEAST_LIMIT), None)
        if found is not None:
            return found
        node = list(node.values())
    inner = node if isinstance(node, list) and deepest else ()
    return next(filter(None, (_limit(item, names, deepest - 1) for item in inner)), None)


def _parameter(place: str, sent: Collection[str], fields: Mapping[str, str]) -> str:
    """Return the parameter to which a path such as ``messages[0].content`` belongs, or ``""``."""
    for part in re.findall(r"\w+", place):
        name = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", part).lower()
        name = fields.get(name, name)
        if name in CAPS or name in sent:
            return name
    return ""
