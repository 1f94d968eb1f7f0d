"""The interface between llmopt and a model: one method, three small records.

A client is anything with a ``complete(request) -> reply`` method. Everything before that
call (history, prompt) and after it (parsing, checks) is pure and needs no model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Protocol, runtime_checkable

from llmopt.util.text import clean, estimate_tokens

FinishReason = Literal["stop", "length", "filter", "refusal"]
Style = Literal["chat", "completion"]
_MOST_TOKENS = 10**12  # of one reply; a larger number is not a token count

PROMPT_VERSION = 16
"""Version of the wording of all shipped prompts: raise it with any change of them.

A recording stores its version; under another version it is replayed in order.
"""


@dataclass(frozen=True)
class Message:
    """One message of a conversation, in plain text."""

    role: Literal["system", "user", "assistant"]
    content: str

    def __post_init__(self) -> None:
        try:
            self.content.encode()
        except UnicodeEncodeError:  # a lone surrogate cannot be sent
            object.__setattr__(self, "content", clean(self.content))


@dataclass(frozen=True)
class Request:
    """One request to a model. Immutable, so that a retry sends the same object again.

    Attributes:
        messages: The conversation. For ``style="completion"`` exactly one user message,
            whose text the model continues with no chat template around it. A client
            that can only chat sends that text as a user message.
        style: ``"chat"`` or ``"completion"``.
        temperature: Sampling temperature; ``None`` leaves the provider's default.
        max_tokens: Cap on the tokens of the answer; ``None`` leaves the default. A client adds
            room for hidden reasoning.
        stop: Strings that end the answer.
        seed: Sampling seed, if the client supports one.
        grammar: GBNF grammar of the answer; ignored if not supported.
        json_schema: JSON schema of the answer; ignored if not supported.
        columns: Texts that replace the messages. The answer continues each text with one of
            `choices`; it is these choices, joined in order. Only for clients with
            ``columns = True``.
        choices: Possible continuations of each of `columns`: single tokens of the model.
    """

    messages: tuple[Message, ...]
    style: Style = "chat"
    temperature: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    grammar: str | None = None
    json_schema: Mapping[str, Any] | None = field(default=None, hash=False)
    columns: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All message texts joined with a blank line."""
        return "\n\n".join(m.content for m in self.messages)

    @property
    def transcript(self) -> str:
        """The messages as one text, each under ``### system`` and so on; one of a user bare."""
        if len(self.messages) == 1 and self.messages[0].role == "user":
            return self.messages[0].content
        return "\n\n".join(f"### {m.role}\n\n{m.content}" for m in self.messages)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable form; `from_dict` reads it back."""
        data = asdict(self)
        if not self.columns:
            del data["columns"], data["choices"]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Request:
        """Rebuild a request from `to_dict`'s result."""
        fields = dict(data)
        fields.pop("n", None)  # of recordings from when a request could ask for several answers
        fields["messages"] = tuple(Message(**m) for m in fields["messages"])
        for name in ("stop", "columns", "choices"):
            fields[name] = tuple(fields.get(name, ()))
        return cls(**fields)

    def digest(self) -> str:
        """Return a SHA-256 hex digest of the whole request, equal for equal requests."""
        digest: str | None = self.__dict__.get("_digest")  # a search needs it several times
        if digest is None:
            canonical = json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=True)
            digest = hashlib.sha256(canonical.encode()).hexdigest()
            object.__setattr__(self, "_digest", digest)
        return digest


@dataclass(frozen=True)
class Completion:
    """The text of a model's answer.

    Attributes:
        text: The answer, without the prompt.
        finish_reason: ``"stop"`` (complete), ``"length"`` (cut at `Request.max_tokens`),
            ``"filter"`` (withheld by the provider) or ``"refusal"`` (the model declined).
    """

    text: str
    finish_reason: FinishReason = "stop"


@dataclass(frozen=True)
class Reply:
    """A model's answer to one `Request`, from one call."""

    completions: tuple[Completion, ...]  # one answer
    model: str = ""  # the model that answered, as the provider names it
    prompt_tokens: int | None = None  # ``None`` if the provider did not report them
    cached_tokens: int = 0  # the part of `prompt_tokens` that a prefix cache served
    completion_tokens: int | None = None  # ``None`` if not reported
    seconds: float = 0.0  # wall-clock
    cost: float | None = None  # US dollars; ``None`` if the price is unknown
    requests: int = 1  # calls sent to the provider: 0 or 1
    estimated: int = 0  # calls whose tokens and cost are estimates
    written_tokens: int = 0  # the part of `prompt_tokens` written to a cache, if charged for
    written_long_tokens: int = 0  # the part of `written_tokens` that is kept for an hour

    @property
    def tokens(self) -> int:
        """Sum of the known prompt and completion tokens."""
        return (self.prompt_tokens or 0) + (self.completion_tokens or 0)

    def counted(self, request: Request) -> Reply:
        """Return a copy with checked counts.

        Missing and impossible token counts are estimated on the high side. An invalid cost becomes
        unknown.
        """
        prompt, completion = whole(self.prompt_tokens), whole(self.completion_tokens)
        calls = max(1, whole(self.requests) or 0) if self.requests else 0
        most = prompt or 0
        written = min(whole(self.written_tokens) or 0, most)
        estimated = whole(self.estimated) or 0
        if prompt is None or completion is None:
            estimated = max(estimated, calls)
        if prompt is None:
            prompt = calls * estimate_tokens(request.text)
        if completion is None:
            completion = sum(estimate_tokens(c.text) for c in self.completions)
        return replace(
            self,
            prompt_tokens=prompt,
            cached_tokens=min(whole(self.cached_tokens) or 0, most),
            completion_tokens=completion,
            seconds=amount(self.seconds) or 0.0,
            cost=amount(self.cost),
            requests=calls,
            estimated=min(estimated, calls),
            written_tokens=written,
            written_long_tokens=min(whole(self.written_long_tokens) or 0, written),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable form; `from_dict` reads it back."""
        return {k: v for k, v in asdict(self).items() if v or k not in _MOSTLY_ZERO}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Reply:
        """Rebuild a reply from `to_dict`'s result.

        Raises:
            LookupError, TypeError: A field is missing or has the wrong type.
            ValueError: A count, time or price is negative or not finite.
        """
        values = dict(data)
        values["completions"] = tuple(Completion(**c) for c in values["completions"])
        reply = cls(**values)
        texts = [reply.model, *(t for c in reply.completions for t in (c.text, c.finish_reason))]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a text field of the reply is not a string")
        for name in _COUNTS:
            value = getattr(reply, name)
            unknown = value is None and name in ("cost", "prompt_tokens", "completion_tokens")
            if amount(value) is None and not unknown:
                raise ValueError(f"{name}={value!r}: expected a number of 0 or more")
        return reply


def amount(value: object) -> float | None:
    """Return a number of 0 or more, or ``None`` for anything else."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if number and 0 <= value < 2**63 else None  # type: ignore[operator, return-value]


def whole(value: object) -> int | None:
    """Return a count of calls or tokens, or ``None`` if the value cannot be one."""
    number = amount(value)
    return None if number is None or number >= _MOST_TOKENS else int(number)


_MOSTLY_ZERO = ("estimated", "written_tokens", "written_long_tokens")
_COUNTS = tuple(f.name for f in fields(Reply) if f.name not in ("completions", "model"))


@runtime_checkable
class Client(Protocol):
    """Anything that answers a `Request`.

    Only `complete` is required. llmopt also reads these attributes if they exist:

    - ``name`` (str): short model string for tables and files, without secrets;
    - ``default_prompt`` (str): what ``prompt="auto"`` means for this client
      (``"words"`` if the attribute is missing);
    - ``columns`` (bool): whether it supports `Request.columns` (no if missing);
    - ``context_tokens`` (int | None): maximum tokens of prompt and completion; may be known only
      after the first `complete`;
    - ``check_ready()``: raise `MissingKeyError`, `RefusedKeyError`, `ModelNotFoundError` or
      ``ImportError`` if a key, a model or a package is missing; free of charge, and called
      before the first evaluation (see `llmopt.client.base.check_ready`);
    - ``local`` (bool): whether the model runs on the user's own machine, so that an interrupted
      call is free (no if missing);
    - ``priced`` (bool): whether the cost of a reply is known in advance or reported with it. If
      it is false, a cap on cost is rejected before anything is sent;
    - ``most_cost(request) -> float | None``: the most US dollars that a request can cost, ``None``
      if unknown;
    - ``transport_attempts`` (int), ``patience`` (float, seconds): how long
      `llmopt.client.http.retry.complete_with_retries` retries;
    - ``kept(digest) -> tuple[int, bool] | None``: the number of a request that waits for its answer
      even without a program, and whether it has one (``folder:``);
    - ``begin(storage)``: called as a search opens, with its storage file or ``None``;
    - ``inform(text)``: called after each result with the outcome so far in words;
    - ``conclude(text)``: called at the end of a search with its outcome and the reason in words,
      or why a stored search "may go on";
    - ``close()``: release processes and memory.

    The constructor makes no network call, reads no key and loads no model: all of this waits
    for the first `complete`. A client can be pickled and deep-copied.
    """

    def complete(self, request: Request) -> Reply:
        """Answer one request with one call.

        Raises:
            ClientError: The call failed; ``retryable`` says whether a retry may help.
        """
        ...


class Wrapper:
    """A client that forwards requests and all other attributes to another client."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.name = client_name(client)

    def __getattr__(self, attribute: str) -> Any:
        # During unpickling `client` does not exist yet.
        if attribute.startswith("__") or "client" not in self.__dict__:
            raise AttributeError(attribute)
        return getattr(self.client, attribute)

    def close(self) -> None:
        """Close the other client, if it can be."""
        getattr(self.client, "close", lambda: None)()


def client_name(client: Client) -> str:
    """Return a client's short name for tables and files."""
    return str(getattr(client, "name", type(client).__name__))


def check_ready(client: Client) -> None:
    """Check, free of charge, that a client's key, model, server, file and package exist.

    Asks a hosted model's provider once per client object for its models. A provider without such
    a list, and a client without the method `check_ready`, count as ready.

    Raises:
        ClientError: A key is missing (`MissingKeyError`) or rejected (`RefusedKeyError`), the model
            does not exist (`ModelNotFoundError`), the server cannot be reached, or the recording
            cannot be read.
        PriceError: The file that ``LLMOPT_PRICES`` names cannot be read.
        ImportError: The client's package is not installed.
    """
    check = getattr(client, "check_ready", None)
    if callable(check):
        check()
