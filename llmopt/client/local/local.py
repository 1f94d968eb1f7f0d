"""Any GGUF model in this process, through llama.cpp's own server (`xllamacpp`)."""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import os
import secrets
import time
import weakref
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from llmopt.client.base import Completion, FinishReason, Reply, Request, Style
from llmopt.client.local.gguf import GGUFHeader, read_header
from llmopt.client.local.network import draw_choices
from llmopt.client.local.server import (
    available_threads,
    import_xllamacpp,
    not_installed,
)
from llmopt.client.model_facts import ModelFacts, chat_prompt
from llmopt.client.prices import free
from llmopt.errors import ClientError, ModelNotFoundError
from llmopt.util.arguments import one_of
from llmopt.util.text import clean
from llmopt.util.threads import Lock

CONTEXT_TOKENS = 8192
"""Maximum context by default; the cache of a long context needs memory."""

MAX_TOKENS = 1024
"""Cap on an answer's tokens if the request has none: small models may never stop."""

_WHOLE_DISTRIBUTION = {"min_p": 0.0, "top_p": 1.0, "top_k": 0}

_ONLY_THESE = 100.0
"""A logit bias that excludes all tokens without it."""


class LocalClient:
    """A GGUF model file, run in this process by llama.cpp. Needs the extra `local`.

    The file is loaded at the first request and kept until `close`. A prefix shared with the
    earlier request is not processed again. Requests from several threads are answered one after
    another. Pickling and copying keep the settings and drop the loaded model, and a forked process
    loads its own.

    A seed repeats an answer only if the same part of the prompt is cached: llama.cpp's rounding
    depends on how much of a prompt it processes at a time. For answers that depend only on the
    seed, switch the cache off: ``sampling={"cache_prompt": False}``.

    docs/model-options.md lists the options.
    """

    columns = True
    local = True

    def __init__(
        self,
        path: str | os.PathLike[str] | Callable[[], Path],  # a function is called when needed
        *,
        # "auto" follows the request, but a model without a chat template continues plain text
        style: Literal["auto", "chat", "completion"] = "auto",
        threads: int | None = None,  # use 1 if several processes share the cores
        gpu_layers: int = 0,  # -1 for all; needs an `xllamacpp` with GPU support
        context_tokens: int | None = None,  # by default the file's, at most `CONTEXT_TOKENS`
        name: str | None = None,  # short name for tables and files, by default the file's
        default_prompt: str | None = None,  # the meaning of ``prompt="auto"``
        adapter: str | os.PathLike[str] | None = None,  # LoRA, for `Request.columns` only
        # llama.cpp's settings, such as {"top_k": 0}; a grammar switches its defaults off
        sampling: Mapping[str, Any] | None = None,
        thinking: bool = False,  # thoughts take thousands of tokens
        structured: bool | Literal["auto"] = "auto",  # points as JSON with a grammar
        header: GGUFHeader | None = None,  # if it is known before the file is downloaded
        verbose: bool = False,  # leave llama.cpp's log on standard error
    ) -> None:
        one_of("style", style, ("auto", "chat", "completion"))
        self.style = style
        self.threads = threads
        self.gpu_layers = gpu_layers
        self.verbose = verbose
        self.name = name or ("gguf" if callable(path) else f"gguf:{Path(path).stem}")
        self.adapter = None if adapter is None else Path(adapter)
        self.sampling = dict(sampling or {})
        self.thinking = thinking
        self.structured = structured
        if header is not None:
            self.header = header
        self._source = path
        self._context_tokens = context_tokens
        self._default_prompt = default_prompt
        self._start_without_server()

    def _start_without_server(self) -> None:
        self._lock = Lock()
        self._server: Any = None
        self._latest: tuple[Any, np.ndarray, int] = (None, np.zeros((0, 0)), 0)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        for name in ("_lock", "_server", "_latest"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_without_server()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, style={self.style!r})"

    @cached_property
    def path(self) -> Path:
        """The model file."""
        return Path(self._source() if callable(self._source) else self._source)

    @cached_property
    def header(self) -> GGUFHeader:
        """The header of the model file."""
        return read_header(self.path)

    @property
    def context_tokens(self) -> int:
        """Maximum tokens of prompt and completion together."""
        if self._context_tokens is not None:
            return self._context_tokens
        return min(self.header.context_tokens or CONTEXT_TOKENS, CONTEXT_TOKENS)

    @property
    def default_prompt(self) -> str:
        """The prompt that suits the model."""
        if self._default_prompt is not None:
            return self._default_prompt
        return chat_prompt(self.header.parameters) if self.header.chat else "props"

    def facts(self) -> ModelFacts:
        """Return the facts of the model without loading it."""
        chats = self._chats("chat")
        return ModelFacts(
            name=self.name,
            style="chat" if chats else "completion",
            chats=chats,
            context_tokens=self.context_tokens,
            default_prompt=self.default_prompt,
            columns=self.columns,
            grammar=True,
            schema=True,
            structured=chats and bool(self.structured),
            parameters=self.header.parameters,
            most_cost=free,
        )

    def check_ready(self) -> None:
        """Check the package and the model file; downloads nothing."""
        if importlib.util.find_spec("xllamacpp") is None:
            raise not_installed()
        if not callable(self._source):
            read_header(self.path)

    def _chats(self, style: Style) -> bool:
        """Whether a request of this style goes through the model's chat template."""
        if self.style == "auto":
            return style == "chat" and self.header.chat
        return self.style == "chat"

    def complete(self, request: Request) -> Reply:
        """Answer one request.

        Raises:
            ImportError: `xllamacpp` is not installed.
            ModelNotFoundError: The model file does not exist.
            ClientError: The model cannot be loaded, the prompt does not fit the context, or
                the grammar is invalid.
        """
        if request.columns:
            return self._complete_columns(request)
        start = time.perf_counter()
        body, chat = self._body(request)
        with self._lock:
            server = self._loaded()
            call = server.handle_chat_completions if chat else server.handle_completions
            answer = self._call(call, body)
        usage, choice = answer["usage"], answer["choices"][0]
        reason: FinishReason = "length" if choice["finish_reason"] == "length" else "stop"
        return Reply(
            (Completion(_text(choice, chat), reason),),
            model=self.name,
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
            completion_tokens=usage["completion_tokens"],
            seconds=time.perf_counter() - start,
            cost=0.0,
        )

    def _complete_columns(self, request: Request) -> Reply:
        """Answer by sampling a choice for each text from the model's probabilities."""
        start, asked = time.perf_counter(), (request.columns, request.choices)
        with self._lock:
            known, probabilities, tokens = self._latest
            if known != asked:  # points of one batch are drawn from the same probabilities
                probabilities, tokens = self._probabilities(request)
                self._latest = asked, probabilities, tokens
        return Reply(
            (Completion("".join(request.choices[k] for k in _draw(probabilities, request))),),
            model=self.name,
            prompt_tokens=tokens,
            completion_tokens=len(request.columns),
            seconds=time.perf_counter() - start,
            cost=0.0,
        )

    def _probabilities(self, request: Request) -> tuple[np.ndarray, int]:
        """Return an ``(n_columns, n_choices)`` array, and the tokens that were read."""
        body = {
            **_WHOLE_DISTRIBUTION,
            "max_tokens": 1,
            "temperature": 1.0,
            "logit_bias": [[text, _ONLY_THESE] for text in request.choices],
            "logprobs": len(request.choices),
            "post_sampling_probs": True,
            # The texts differ from their start, so a cache would not help.
            "cache_prompt": False,
            "seed": 0,
        }
        if self.adapter is not None:
            body["lora"] = [{"id": 0, "scale": 1.0}]
        answers = [
            self._call(self._loaded().handle_completions, {**body, "prompt": clean(text)})
            for text in request.columns
        ]
        tops = [a["choices"][0]["logprobs"]["content"][0]["top_probs"] for a in answers]
        by_text = [{item["token"]: item["prob"] for item in top} for top in tops]
        for text in request.choices:
            if text not in by_text[0]:
                raise ClientError(
                    f"{self.name}: {text!r} is not one token of this model, but a choice of a "
                    "column must be one token; use the prompt 'props'"
                )
        probabilities = np.array([[row.get(t, 0.0) for t in request.choices] for row in by_text])
        return probabilities, sum(answer["usage"]["prompt_tokens"] for answer in answers)

    def close(self) -> None:
        """Release the model's memory; the next request loads it again."""
        with self._lock:
            self._server = None

    def _forget_after_fork(self) -> None:
        # The fork copied the server but not its threads, for which its destructor would wait
        # forever: an additional reference prevents the destructor. A thread that no longer
        # exists may also hold the lock.
        if self._server is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._server))
        self._start_without_server()

    def _body(self, request: Request) -> tuple[dict[str, Any], bool]:
        """Return a request in llama.cpp's form, and whether it is a chat."""
        chat = self._chats(request.style)
        whole = _WHOLE_DISTRIBUTION if request.grammar is not None else {}
        body: dict[str, Any] = {"cache_prompt": True, **whole}
        if chat and self.header.thinks:
            body["chat_template_kwargs"] = {"enable_thinking": self.thinking}
        body |= self.sampling
        if chat:
            body["messages"] = [
                {"role": m.role, "content": clean(m.content)} for m in request.messages
            ]
        else:
            body["prompt"] = clean(request.text)
        body["max_tokens"] = MAX_TOKENS if request.max_tokens is None else request.max_tokens
        schema = request.json_schema if request.grammar is None else None
        optional = {
            "temperature": request.temperature,
            "stop": list(request.stop) or None,
            "grammar": request.grammar,
            "json_schema": None if schema is None else dict(schema),
            # llama.cpp's seeds have 32 bits, and the largest one means "random".
            "seed": None if request.seed is None else request.seed % (2**32 - 1),
        }
        return body | {name: v for name, v in optional.items() if v is not None}, chat

    def _call(
        self, call: Callable[[dict[str, Any]], dict[str, Any]], body: dict[str, Any]
    ) -> dict[str, Any]:
        """Send one call to llama.cpp."""
        try:
            answer = call(body)
        except RuntimeError as error:
            raise ClientError(f"{self.name}: llama.cpp rejected the request: {error}") from error
        if "error" in answer:
            raise self._error(answer["error"])
        return answer

    def _error(self, fault: Mapping[str, Any]) -> ClientError:
        message = str(fault.get("message", fault))
        if fault.get("type") == "exceed_context_size_error":
            message = (
                f"the prompt has {fault.get('n_prompt_tokens')} tokens and the context is "
                f"{self.context_tokens}; shorten the prompt"
            )
            trained = self.header.context_tokens
            if trained is None or trained > self.context_tokens:
                message += f" or give a larger context_tokens (the model allows {trained})"
        elif "grammar" in message:
            message += "; check Request.grammar (GBNF) or Request.json_schema"
        return ClientError(f"{self.name}: {message}", status=fault.get("code"))

    def _loaded(self) -> Any:
        """Return the server; load the model if necessary. Call with the lock held."""
        if self._server is None:
            self._server = self._load()
            _open_clients.add(self)
        return self._server

    def _load(self) -> Any:
        xllamacpp = import_xllamacpp()
        header = self.header
        params = xllamacpp.CommonParams()
        params.model.path = str(self.path)
        params.n_gpu_layers = self.gpu_layers
        params.n_parallel = 1
        if self.adapter is not None:
            if not self.adapter.is_file():
                raise ModelNotFoundError(
                    f"adapter={self.adapter} does not exist: give the path of an adapter"
                )
            params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(self.adapter), 0.0)]
            params.lora_init_without_apply = True
        params.n_ctx = self.context_tokens
        params.cache_ram_mib = 0
        params.fit_params = False
        params.warmup = False
        params.verbosity = 3 if self.verbose else 0
        # It listens though nobody asks it: on the loopback device, with a secret key.
        params.hostnames = ["127.0.0.1"]
        params.port = 0
        params.api_keys = [secrets.token_hex(16)]
        params.endpoint_slots = False
        params.ui = False
        threads = self.threads or available_threads()
        if threads:
            params.cpuparams.n_threads = threads
            params.cpuparams_batch.n_threads = threads
        params.endpoint_metrics = True
        try:
            server = xllamacpp.Server(params)
            # A server that is dropped before its loop runs waits forever. This call returns from
            # the loop.
            server.handle_metrics()
            return server
        except RuntimeError as error:
            cause = "the file is truncated or corrupt, or too large for the memory"
            if self.adapter is not None:
                cause += f", or {self.adapter} is not an adapter of this model"
            raise ClientError(
                f"llama.cpp could not load {self.path} (architecture {header.architecture!r}, "
                f"{header.parameters / 1e6:.0f}M weights): {cause}, or xllamacpp "
                f"{xllamacpp.__version__} is too old for it; verbose=True shows llama.cpp's log"
            ) from error


def _draw(probabilities: np.ndarray, request: Request) -> np.ndarray:
    """Return ``(n_columns,)`` choices, sampled at the request's temperature."""
    temperature = 1.0 if request.temperature is None else request.temperature
    if not (probabilities.max(axis=1, initial=0.0) > 0).all():
        raise ClientError("llama.cpp returned no probability for any choice of a column")
    with np.errstate(divide="ignore"):
        scores = np.log(probabilities)
    scores -= scores.max(axis=1, keepdims=True)
    # The limit of low temperatures is the likeliest choice.
    weights = np.exp(scores / max(temperature, 1e-3))
    row: np.ndarray = draw_choices(np.random.default_rng(request.seed), weights, 1)[0]
    return row


def _text(choice: Mapping[str, Any], chat: bool) -> str:
    if not chat:
        return str(choice["text"])
    message = choice["message"]
    thoughts = message.get("reasoning_content") if choice["finish_reason"] != "length" else ""
    return message["content"] or thoughts or ""


_open_clients: weakref.WeakSet[LocalClient] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # llama.cpp's threads must end before the interpreter, or the process crashes. `close` waits
    # for a request that still runs in a daemon thread.
    for client in list(_open_clients):
        client.close()


def _forget_all_after_fork() -> None:
    for client in list(_open_clients):
        client._forget_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all_after_fork)
