from __future__ import annotations

import copy
import email.utils
import pickle
import threading

import pytest

from llmopt.client.http import (
    Fault,
    RateLimiter,
    Secret,
    merged,
    parse_duration,
    parse_retry_after,
    redact,
    refused_parameter,
)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after": email.utils.formatdate(1030, usegmt=True)}, 30.0),
        ({"retry-after": email.utils.formatdate(900, usegmt=True)}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "99999999999999999999"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after-ms": "inf", "retry-after": "7"}, 7.0),
        ({"retry-after": "Wed, 21 Oct 99999999999999999999 07:28:00 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 9999 07:28:00 GMT"}, None),
    ],
)
def test_retry_after(headers, seconds):
    assert parse_retry_after(headers, now=lambda: 1000.0) == seconds


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [("13.5s", 13.5), ("0s", 0.0), ("1.2.3s", None), ("٣s", None), ("9" * 400 + "s", None)],
)
def test_durations(duration, seconds):
    assert parse_duration(duration) == seconds


def test_options_are_merged_deeply():
    base = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert merged(base, {"a": {"c": {"f": 4}}, "e": {"g": 5}}) == {
        "a": {"b": 1, "c": {"d": 2, "f": 4}},
        "e": {"g": 5},
    }
    assert base["a"]["c"] == {"d": 2}


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


def test_redaction_leaves_ordinary_words():
    text = "task-oriented risk-0 model claude-3-5 is overloaded (gpt-4o-2024-08-06)"
    assert redact(text, [None, ""]) == text


@pytest.mark.parametrize(
    ("said", "sent", "refused"),
    [
        ("Unsupported parameter: 'stop' is not supported", ["stop", "seed"], "stop"),
        ("`temperature` is deprecated for this model.", ["temperature"], "temperature"),
        ("temperature may not be set; this is not allowed", ["temperature"], "temperature"),
        ("max_tokens is too large: 9000", ["max_tokens"], None),
        ("This model's maximum context length is 100 tokens", ["max_tokens", "n"], None),
        ("Unsupported image in messages", ["temperature", "n", "seed"], None),
        ("seed: Extra inputs are not permitted", ["seed", "stop"], "seed"),
        ('Unknown name "responseJsonSchema"', ["response_json_schema"], "response_json_schema"),
        ("'n' must be 1", ["n"], "n"),
        (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
            "'max_completion_tokens' instead.",
            ["max_tokens", "temperature"],
            "max_tokens",
        ),
        (
            "'max_completion_tokens' is not supported, use 'max_tokens'",
            ["max_completion_tokens"],
            "max_completion_tokens",
        ),
    ],
)
def test_which_parameter_is_refused(said, sent, refused):
    assert refused_parameter(Fault("status", said, status=400), sent) == refused
    assert refused_parameter(Fault("status", said, status=429), sent) is None


def test_rate_limiter_never_starts_more_in_any_minute():
    now = [0.0]
    starts: list[float] = []
    limiter = RateLimiter(3, clock=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s))
    for pause in (0, 1, 2, 0, 0, 40, 0, 0, 5, 90, 0, 0, 0):
        now[0] += pause
        limiter.wait()
        starts.append(now[0])
    assert starts[:3] == [0, 1, 3]
    assert starts[3] == 60
    for first, fourth in zip(starts, starts[3:], strict=False):
        assert fourth - first >= 60


def test_rate_limiter_among_threads_and_after_pickling():
    slept: list[float] = []
    limiter = RateLimiter(5, clock=lambda: 0.0, sleep=slept.append)
    threads = [threading.Thread(target=limiter.wait) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(slept) == [60.0] * 5 + [120.0] * 2
    fresh = pickle.loads(pickle.dumps(RateLimiter(5)))
    assert fresh.per_minute == 5
    fresh.wait()


def test_secret():
    secret = Secret("sk-planted")
    assert "planted" not in repr(secret) + str([secret])
    assert b"planted" not in pickle.dumps(secret)
    assert pickle.loads(pickle.dumps(secret)).reveal is None
    assert copy.deepcopy(secret).reveal == copy.copy(secret).reveal == "sk-planted"
