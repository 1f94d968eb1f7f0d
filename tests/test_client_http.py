from __future__ import annotations

import pytest

from llmopt.client.base import Message, Request
from llmopt.client.http.api_keys import redact
from llmopt.client.http.faults import Fault, parse_duration, parse_retry_after
from llmopt.client.http.refusals import Learned


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"retry-after": "99999999999999999999"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after-ms": "inf", "retry-after": "7"}, 7.0),
    ],
)
def test_retry_after(headers, seconds):
    assert parse_retry_after(headers) == seconds


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [("13.5s", 13.5), ("0s", 0.0), ("1.2.3s", None), ("٣s", None), ("9" * 400 + "s", None)],
)
def test_durations(duration, seconds):
    assert parse_duration(duration) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-proj-abc***********wxyz. You can",
        "Authorization: Bearer abcdef0123456789",
        "GET /v1/models?key=AIzaSyA0123456789abcdefghijk&alt=json",
        "gsk_0123 and gsk-0123456789",
        "the key my+very/own key",
        "quoted my%2Bvery%2Fown",
    ],
)
def test_redaction(text):
    hidden = redact(text, ["my+very/own"])
    for piece in ("wxyz", "abcdef0123456789", "AIzaSy", "gsk-0123456789", "my+very", "my%2Bvery"):
        assert piece not in hidden
    assert "***" in hidden


def after(sent, *faults, cap=8000, least=1000, fields=None):
    """What is left out, and the cap, after faults with these documented fields."""
    request = Request((Message("user", "hello"),), max_tokens=cap)
    learned = Learned("m")
    for fault in faults:
        offered, caps = set(sent) - learned.without, (learned.cap(cap, request), least)
        fault = Fault("status", **{"status": 400, **fault})
        if not learned.change(fault, "", learned.guess, offered, caps, fields or {}):
            return None
    return set(learned.without), learned.cap(cap, request)


TEMPERATURE, TOKENS = {"parameter": "temperature"}, {"parameter": "max_tokens"}


@pytest.mark.defect(14)
@pytest.mark.parametrize(
    ("sent", "faults", "left"),
    [
        (["stop", "seed"], [{"parameter": "stop"}], ({"stop"}, 8000)),
        (["seed"], [{"parameter": "body.seed"}], ({"seed"}, 8000)),
        (["response_json_schema"], [{"parameter": "responseJsonSchema"}],
         ({"response_json_schema"}, 8000)),
        (["key"], [{"parameter": "messages[0].content[0].mark"}], ({"key"}, 8000)),
        ([], [TOKENS], (set(), 4000)),
        ([], [TOKENS] * 3, (set(), 1000)),
        ([], [TOKENS] * 6, None),
        ([], [{"parameter": "generationConfig.maxOutputTokens"}], (set(), 4000)),
        (["max_tokens"], [TOKENS | {"code": "unsupported_parameter"}], ({"max_tokens"}, 8000)),
        (["temperature"], [TEMPERATURE, TEMPERATURE], None),
        (["temperature"], [{"parameter": "messages[3].role"}], None),
        (["temperature"], [{"status": 500}], None),
        # Refusals that name something add up.
        (["temperature"], [TOKENS, TEMPERATURE], ({"temperature"}, 4000)),
        (["temperature", "stop"], [TEMPERATURE, TOKENS, {"parameter": "stop"}],
         ({"temperature", "stop"}, 4000)),
        # One that names nothing is met by one guess after the other.
        (["stop", "schema"], [{}], ({"schema"}, 8000)),
        (["stop", "schema"], [{}] * 2, ({"stop"}, 8000)),
        (["stop", "schema"], [{}] * 3, (set(), 1000)),
        (["stop", "schema"], [{}] * 4, None),
        (["stream"], [{}], (set(), 1000)),
        (["stop"], [{}, TOKENS], ({"stop"}, 4000)),
    ],
)  # fmt: skip
def test_what_is_changed_after_refusals(sent, faults, left):
    assert after(sent, *faults, fields={"mark": "key"}) == left


def test_limits_are_read_where_a_list_says_them():
    learned = Learned("m")
    learned.read({"id": "m", "context_window": "big", "max_completion_tokens": True})
    assert (learned.context_tokens, learned.most_tokens) == (None, None)
    learned.read({"context_length": 131072, "top_provider": {"max_completion_tokens": 16384}})
    assert (learned.context_tokens, learned.most_tokens) == (131072, 16384)
