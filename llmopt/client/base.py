"""The boundary between llmopt and a model: one method, three small records.

A client is anything with a ``complete(request) -> reply`` method. Everything before that
call (history, prompt) and after it (parsing, checks) is pure and needs no model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Protocol, runtime_checkable

from llmopt.util.text import clean, estimate_tokens, least_tokens

FinishReason = Literal["stop", "length", "filter", "refusal"]
Style = Literal["chat", "completion"]
_MOST_TOKENS = 10**12  # of one reply; more is no count

PROMPT_VERSION = 8
"""Version of the words of all shipped prompts: raise it with any change of them.

A recording carries the version that it was made with, and is played in order under another one.
"""


@dataclass(frozen=True)
class Message:
    """One message of a conversation.

    Attributes:
        role: ``"system"``, ``"user"`` or ``"assistant"``.
        content: Plain text.
    """

    role: Literal["system", "user", "assistant"]
    content: str

    def __post_init__(self) -> None:
        try:
            self.content.encode()
        except UnicodeEncodeError:  # of a lone surrogate, which no request can hold
            object.__setattr__(self, "content", clean(self.content))


@dataclass(frozen=True)
class Request:
    """Everything a model is asked, once. Immutable, so that a retry re-sends the same object.

    Attributes:
        messages: The conversation. For ``style="completion"`` exactly one user message,
            whose text the model continues with no chat template around it. A client
            that can only chat sends that text as a user message.
        n: Independent samples wanted. A client whose provider gives fewer at a time
            makes several calls itself.
        style: ``"chat"`` or ``"completion"``.
        temperature: Sampling temperature; ``None`` leaves the provider's default.
        max_tokens: Cap on the tokens of each sample's answer; ``None`` leaves the default. A
            client gives a model that thinks unseen more than that.
        stop: Strings that end a sample.
        seed: Sampling seed, for clients that have one; `n` samples differ all the same.
        grammar: GBNF grammar the answer must match; ignored where not supported.
        json_schema: JSON schema the answer must match; ignored where not supported.
        columns: Texts to be continued by one of `choices` each, in place of the messages: a
            sample is a choice for every text, in their order, joined. Only for clients with
            ``columns = True``.
        choices: What may continue each of `columns`: single tokens of the model.
    """

    messages: tuple[Message, ...]
    n: int = 1
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

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable form; `from_dict` reads it back."""
        data = asdict(self)
        if not self.columns:  # a request without them keeps the digest that it has always had
            del data["columns"], data["choices"]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Request:
        """Rebuild a request from `to_dict`'s result."""
        fields = dict(data)
        fields["messages"] = tuple(Message(**m) for m in fields["messages"])
        for name in ("stop", "columns", "choices"):
            fields[name] = tuple(fields.get(name, ()))
        return cls(**fields)

    def digest(self) -> str:
        """Return a SHA-256 hex digest of the whole request, equal for equal requests."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True)
class Completion:
    """One sample of a model's answer.

    Attributes:
        text: The answer, without the prompt.
        finish_reason: ``"stop"`` (complete), ``"length"`` (cut at `Request.max_tokens`),
            ``"filter"`` (withheld by the provider) or ``"refusal"`` (the model declined).
    """

    text: str
    finish_reason: FinishReason = "stop"


@dataclass(frozen=True)
class Reply:
    """A model's answer to one `Request`.

    Attributes:
        completions: Between 1 and ``request.n`` samples.
        model: The model that answered, as the provider names it.
        prompt_tokens: Prompt tokens, as the provider counts them, summed over the calls
            made; ``None`` if it did not tell.
        cached_tokens: Those of `prompt_tokens` that came from a prefix cache.
        completion_tokens: Completion tokens over all samples; ``None`` if it did not tell.
        seconds: Wall-clock seconds, retries and waiting included.
        cost: US dollars, or ``None`` where the price is not known.
        requests: Calls that the provider was sent.
        unpriced: Those of them that failed, may be charged for, and are not in `cost`.
        estimated: Those of them whose tokens and cost are estimates, since nobody told them.
        written_tokens: Those of `prompt_tokens` that were written to a prefix cache, where that is
            charged apart.
        written_long_tokens: Those of them that are kept there for an hour.
    """

    completions: tuple[Completion, ...]
    model: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    completion_tokens: int | None = None
    seconds: float = 0.0
    cost: float | None = None
    requests: int = 1
    unpriced: int = 0
    estimated: int = 0
    written_tokens: int = 0
    written_long_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens together, as far as they are known."""
        return (self.prompt_tokens or 0) + (self.completion_tokens or 0)

    def counted(self, request: Request) -> Reply:
        """Return this reply as it is counted.

        Tokens that nobody told, or that cannot be, are estimated, rather too high than too low:
        so are fewer than the text must have (`believed`). A cost that cannot be is unknown.

        Args:
            request: What it answers.
        """
        prompt, completion = whole(self.prompt_tokens), whole(self.completion_tokens)
        calls = max(1, whole(self.requests) or 0) if self.requests else 0
        if calls and (prompt or completion):  # else it used nothing, as a scripted answer
            prompt = believed(prompt, request.text)
            completion = believed(completion, *(c.text for c in self.completions))
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
            unpriced=whole(self.unpriced) or 0,
            estimated=min(estimated, calls),
            written_tokens=written,
            written_long_tokens=min(whole(self.written_long_tokens) or 0, written),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable form; `from_dict` reads it back."""
        left_out = [name for name in _MOSTLY_ZERO if not getattr(self, name)]
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Reply:
        """Rebuild a reply from `to_dict`'s result.

        Raises:
            LookupError: Something is missing.
            TypeError: Something is of another type.
            ValueError: A count, time or price is negative or not finite: it would lower what
                was spent.
        """
        values = dict(data)
        values["completions"] = tuple(Completion(**c) for c in values["completions"])
        reply = cls(**values)
        texts = [reply.model, *(t for c in reply.completions for t in (c.text, c.finish_reason))]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a text of the reply is no text")
        for name in _COUNTS:
            value = getattr(reply, name)
            unknown = value is None and name in ("cost", "prompt_tokens", "completion_tokens")
            if amount(value) is None and not unknown:
                raise ValueError(f"{name}={value!r}: expected a number of 0 or more")
        return reply


def amount(value: object) -> float | None:
    """Return a number of 0 or more, ``None`` for whatever is none."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if 0 <= value < 2**63 else None


def whole(value: object) -> int | None:
    """Return a count of calls or tokens, ``None`` for whatever cannot be one."""
    found = amount(value)
    return None if found is None or found >= _MOST_TOKENS else int(found)


def believed(tokens: int | None, *texts: str) -> int | None:
    """Return a count that somebody told, ``None`` where these texts must have more tokens."""
    return None if tokens is None or tokens < sum(map(least_tokens, texts)) else tokens


_MOSTLY_ZERO = ("unpriced", "estimated", "written_tokens", "written_long_tokens")
_COUNTS = tuple(f.name for f in fields(Reply) if f.name not in ("completions", "model"))


@runtime_checkable
class Client(Protocol):
    """Anything that answers a `Request`.

    `complete` is all that is needed. These attributes are read if they are there:

    - ``name`` (str): short model string for tables and files, never holding a secret;
    - ``default_prompt`` (str): what ``prompt="auto"`` means for this client
      (``"words"`` if the attribute is missing);
    - ``columns`` (bool): whether `Request.columns` are answered (no if missing);
    - ``max_samples`` (int): the largest useful ``Request.n`` (no limit if missing);
    - ``context_tokens`` (int | None): prompt and completion together; a server may tell it
      only at the first `complete`;
    - ``count_tokens(text) -> int``: the model's own tokenizer, for exact prompt budgets;
    - ``check_ready()``: raise `MissingKeyError`, `RefusedKeyError`, `ModelNotFoundError` or
      ``ImportError`` if a key, a model or a package is missing, at no cost; see
      `llmopt.client.base.check_ready`, which is called before the first evaluation;
    - ``local`` (bool): whether the model runs on one's own machine, so that a call that is cut off
      costs nothing (no if missing);
    - ``priced`` (bool): whether the cost of a reply is known beforehand or told with it. Where it
      is there and false, a cap on cost cannot be kept and is refused before anything is sent;
    - ``transport_attempts`` (int), ``patience`` (float, seconds): how long
      `llmopt.client.http.retry.complete_with_retries` goes on;
    - ``conclude(text)``: a search has ended; what came of it, in words;
    - ``close()``: release processes and memory.

    A client makes no network call, reads no key and loads no model when constructed:
    all of that waits for the first `complete`. It can be pickled and deep-copied.
    """

    def complete(self, request: Request) -> Reply:
        """Answer one request.

        Args:
            request: What to ask.

        Returns:
            At least one completion.

        Raises:
            ClientError: The model could not be asked; ``retryable`` says whether asking
                again may help.
        """
        ...


class Wrapper:
    """A client that passes requests on to another one, whose other attributes show through.

    Args:
        client: The other one.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.name = client_name(client)

    def __getattr__(self, attribute: str) -> Any:
        # While it is unpickled there is no `client` yet to ask.
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
    """Find out whether a client's key, model, server, file and package are there, at no cost.

    A hosted model and a server are asked once per client object, for a list of models or for this
    one; a provider without such a list, and a client without this method, are taken as ready.

    Raises:
        MissingKeyError: There is no API key.
        RefusedKeyError: The provider does not take the API key.
        ModelNotFoundError: There is no such model.
        ClientError: The server cannot be reached, or the address or the recording cannot be used.
        PriceError: The file that ``LLMOPT_PRICES`` names cannot be read.
        ImportError: The client's package is not installed.
    """
    own = getattr(client, "check_ready", None)
    if callable(own):
        own()
