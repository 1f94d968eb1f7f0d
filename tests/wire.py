"""A loopback HTTP server that does to a client what real ones do, and worse.

It speaks the wire protocols of the providers; nothing of an SDK is replaced.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Seen:
    """One request as it came in."""

    path: str
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Say:
    """Answer with a body (JSON unless it is bytes) and a status."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"


@dataclass(frozen=True)
class Drip:
    """Answer with a body in a stream of events, with a pause before each; maybe never the end."""

    body: Any
    pause: float = 0.0
    ends: bool = True


@dataclass(frozen=True)
class Hang:
    """Take the request and say nothing until the server is closed."""


@dataclass(frozen=True)
class Trickle:
    """Begin a body, and send blanks for ever, a few in a second."""

    pause: float = 0.05


@dataclass(frozen=True)
class Cut:
    """Promise a body, send a part of it, and cut the connection."""


Fixed = Say | Drip | Hang | Trickle | Cut
Behaviour = Fixed | Callable[[Any], Fixed]


class WireServer:
    """Serves scripted behaviours in order; the last one is repeated."""

    def __init__(self) -> None:
        self.script: list[Behaviour] = []
        self.seen: list[Seen] = []
        self.lists: Behaviour | None = Say({"error": {"message": "no such page"}}, 404)
        """What to answer where a list of models is asked for; ``None`` for the script's next.

        A function is called with the path.
        """
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                server._answer(self)

            def do_GET(self) -> None:
                server._answer(self)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 128  # a busy machine accepts late

        self._http = Server(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def play(self, *behaviours: Behaviour) -> None:
        """Set what to do from now on."""
        self.script = list(behaviours)
        self.seen = []

    def close(self) -> None:
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        raw = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        body = json.loads(raw) if raw else None
        headers = {k.lower(): v for k, v in handler.headers.items()}
        aside = handler.command == "GET" and "/models" in handler.path and self.lists is not None
        with self._lock:
            if aside:
                behaviour = self.lists
            else:
                self.seen.append(Seen(handler.path, headers, body))
                behaviour = self.script.pop(0) if len(self.script) > 1 else self.script[0]
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            if callable(behaviour):
                behaviour = behaviour(handler.path) if aside else behaviour(body)
            if isinstance(behaviour, Hang):
                self._closing.wait(100)
                return
            if isinstance(behaviour, Trickle):
                self._trickle(handler, behaviour.pause)
                return
            if isinstance(behaviour, Cut):
                handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
                handler.wfile.write(b'Content-Length: 5000\r\n\r\n{"choices": [')
                handler.wfile.flush()
                handler.connection.shutdown(socket.SHUT_RDWR)
                handler.close_connection = True
                return
            events = None
            if isinstance(behaviour, Drip) or (
                behaviour.status == 200 and isinstance(behaviour.body, dict)
            ):
                events = _events(handler.path, body, behaviour.body)
            if events is not None:
                self._stream(handler, events, behaviour)
                return
            assert isinstance(behaviour, Say)
            said = behaviour
            data = said.body if isinstance(said.body, bytes) else json.dumps(said.body).encode()
            handler.send_response(said.status)
            handler.send_header("Content-Type", said.content_type)
            handler.send_header("Content-Length", str(len(data)))
            for name, value in said.headers.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(data)
        finally:
            with self._lock:
                self._at_once -= 1

    def _stream(
        self, handler: BaseHTTPRequestHandler, events: list[str], behaviour: Say | Drip
    ) -> None:
        ends = getattr(behaviour, "ends", True)
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        if ends:
            handler.send_header("Transfer-Encoding", "chunked")
        for name, value in getattr(behaviour, "headers", {}).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.close_connection = not ends
        pause = getattr(behaviour, "pause", 0.0)
        pieces = [event.encode() for event in events]
        if not ends:  # the body is over when the connection is
            pieces = pieces[: len(pieces) // 2]
        elif not pause:
            pieces = [b"".join(pieces)]
        try:
            for piece in pieces:
                if self._closing.wait(pause):
                    return
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if ends else piece)
                handler.wfile.flush()
            if ends:
                handler.wfile.write(b"0\r\n\r\n")
        except OSError:
            handler.close_connection = True

    def _trickle(self, handler: BaseHTTPRequestHandler, pause: float) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", "5000")
        handler.end_headers()
        handler.close_connection = True
        for _ in range(200):
            if self._closing.wait(pause):
                return
            try:
                handler.wfile.write(b" ")
                handler.wfile.flush()
            except OSError:
                return


# How each provider says in a stream of events what it would say at once.


def _events(path: str, request: Any, body: Any) -> list[str] | None:
    """The events of a body, or ``None`` if no stream was asked for or the body is broken."""
    streams = isinstance(request, dict) and request.get("stream") is True
    try:
        if "streamGenerateContent" in path:
            return _gemini_events(body)
        if streams and path.endswith("/messages"):
            return _anthropic_events(body)
        if streams and path.endswith("/completions"):
            usage = bool(request.get("stream_options", {}).get("include_usage"))
            return _openai_events(body, usage)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        pass
    return None


def _halves(text: Any) -> list[Any]:
    return [text[: len(text) // 2], text[len(text) // 2 :]] if isinstance(text, str) else [text]


def _openai_events(body: dict[str, Any], include_usage: bool) -> list[str]:
    chunks: list[Any] = []
    if "error" in body:
        chunks.append(body)
    elif not body["choices"]:
        return None  # type: ignore[return-value]
    common = {k: v for k, v in body.items() if k not in ("choices", "usage", "error")}
    for choice in body.get("choices", ()):
        index = choice["index"]
        if "message" in choice:
            message = choice["message"]
            pieces: list[Any] = [{"delta": {"role": "assistant", "content": ""}}]
            pieces += [{"delta": {"content": t}} for t in _halves(message.get("content"))]
            if message.get("refusal") is not None:
                pieces.append({"delta": {"refusal": message["refusal"]}})
            last: dict[str, Any] = {"delta": {}}
        else:
            pieces, last = [{"text": text} for text in _halves(choice["text"])], {"text": ""}
        pieces.append({**last, "finish_reason": choice["finish_reason"]})
        chunks += [
            {**common, "choices": [{"index": index, "finish_reason": None, **p}]} for p in pieces
        ]
    if include_usage and "usage" in body:
        chunks.append({**common, "choices": [], "usage": body["usage"]})
    return [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"]


def _anthropic_events(body: dict[str, Any]) -> list[str]:
    events: list[Any]
    if body.get("type") == "error":
        events = [body]
    else:
        usage = dict(body["usage"])
        output = usage.pop("output_tokens")
        start = {**body, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
        events = [{"type": "message_start", "message": start}, {"type": "ping"}]
        for index, block in enumerate(body["content"]):
            text = block["type"] == "text"
            opened = {**block, "text": ""} if text else block
            events.append({"type": "content_block_start", "index": index, "content_block": opened})
            for piece in _halves(block["text"]) if text else ():
                delta = {"type": "text_delta", "text": piece}
                events.append({"type": "content_block_delta", "index": index, "delta": delta})
            events.append({"type": "content_block_stop", "index": index})
        delta = {"stop_reason": body["stop_reason"], "stop_sequence": body["stop_sequence"]}
        events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": output}})
        events.append({"type": "message_stop"})
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]


def _gemini_events(body: dict[str, Any]) -> list[str]:
    chunks: list[Any] = []
    common = {k: v for k, v in body.items() if k != "candidates"}
    for candidate in body.get("candidates", ()):
        for part in candidate.get("content", {}).get("parts", ()):
            for piece in _halves(part["text"]):
                content = {"role": "model", "parts": [{**part, "text": piece}]}
                chunks.append({"candidates": [{"index": candidate["index"], "content": content}]})
        ending = {k: v for k, v in candidate.items() if k != "content"}
        chunks.append({"candidates": [ending], **common})
    return [f"data: {json.dumps(chunk)}\r\n\r\n" for chunk in chunks or [body]]


# What each provider's success and error bodies look like.


THOUSAND = {
    "prompt_tokens": 1000,
    "completion_tokens": 7,
    "total_tokens": 1007,
    "prompt_tokens_details": {"cached_tokens": 60},
}
"""Usage that a whole prompt of a search may have."""


def openai_body(
    *texts: str, finish: str = "stop", refusal: str | None = None, usage: Any = None, **more: Any
) -> dict[str, Any]:
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": more.pop("model", "m-answered"),
        "choices": [
            {
                "index": i,
                "finish_reason": finish,
                "message": {"role": "assistant", "content": text or None, "refusal": refusal},
            }
            for i, text in enumerate(texts)
        ],
        "usage": usage
        or {
            "prompt_tokens": 100,
            "completion_tokens": 7,
            "total_tokens": 107,
            "prompt_tokens_details": {"cached_tokens": 60},
        },
        **more,
    }


def openai_error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", **more}}


def gemini_body(*texts: str, finish: str = "STOP", **more: Any) -> dict[str, Any]:
    return {
        "candidates": [
            {
                "index": i,
                "finishReason": finish,
                "content": {"role": "model", "parts": [{"text": text}] if text else []},
            }
            for i, text in enumerate(texts)
        ],
        "usageMetadata": {
            "promptTokenCount": 100,
            "cachedContentTokenCount": 60,
            "candidatesTokenCount": 7,
            "totalTokenCount": 107,
        },
        **more,
    }


def gemini_error(message: str, code: int = 400, **more: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": "SOME_STATUS", **more}}


def anthropic_body(text: str, finish: str = "end_turn") -> dict[str, Any]:
    return {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "m-answered",
        "content": [{"type": "text", "text": text}] if text else [],
        "stop_reason": finish,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 30,
            "cache_read_input_tokens": 60,
            "cache_creation_input_tokens": 10,
            "output_tokens": 7,
        },
    }


def anthropic_error(message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}
