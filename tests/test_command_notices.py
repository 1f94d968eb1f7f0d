"""What programs say in place of an answer, by their own lines."""

from __future__ import annotations

import pytest

from llmopt.client.command_notices import notice, replaces_answer

BUSY = """
API Error: Request timed out.
API Error: Connection error.
API Error: Unable to connect to API (ECONNREFUSED)
API Error: Unable to connect to API (ENOTFOUND)
API Error: Unable to connect to API (ETIMEDOUT)
API Error: 500 {"type":"error","error":{"type":"api_error","message":"Internal server error"}}
API Error: 502 Bad Gateway
API Error: 504 Gateway timeout
API Error: 529 {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}
API Error: Repeated 529 Overloaded errors
API Error: Request rejected (429) · this may be a temporary capacity issue
API Error: 429 {"type":"error","error":{"type":"rate_limit_error","message":"Number of requests"}}
API Error: Server is temporarily limiting requests (not your usage limit) · Rate limited
ERROR: stream disconnected before completion: error sending request for url (https://chatgpt.com/)
stream error: error sending request for url (https://api.openai.com/v1/responses); retrying 5/5
ERROR: stream disconnected before completion: response.failed event received
ERROR: unexpected status 503 Service Unavailable: upstream connect error, url: https://chatgpt.com
ERROR: exceeded retry limit, last status: 500 Internal Server Error
ERROR: exceeded retry limit, last status: 429 Too Many Requests, request id: 9c84b52ce87fbe62-SJC
API Error: 429 Too Many Requests
API Error: Request rejected (429) · Rate limited. Please try again later.
Error: Error code: 429 - {'error': {'message': "We're receiving too many requests at the moment."}}
[API Error: {"error":{"code":429,"message":"Resource exhausted","status":"Too Many Requests"}}]
Error: You exceeded your current quota, please check your plan. Please retry in 34.074824224s.
ERROR: We're currently experiencing high demand, which may cause temporary errors.
ERROR: Selected model is at capacity. Please try a different model.
Rate limit reached for gpt-5 on tokens per min (TPM): Limit 30000. Please try again in 1.2s.
[API Error: exception TypeError: fetch failed sending request]
[API Error: got status: UNAVAILABLE. {"error":{"code":503,"message":"The model is overloaded."}}]
[API Error: {"error":{"code":500,"message":"An internal error has occurred","status":"INTERNAL"}}]
[API Error: An internal error has occurred. Please retry or report it. (Status: INTERNAL)]
request to https://oauth2.googleapis.com/token failed, reason: getaddrinfo ENOTFOUND oauth2.google
FetchError: request failed, reason: getaddrinfo EAI_AGAIN cloudcode-pa.googleapis.com
You have exhausted your capacity on this model. Your quota will reset after 34s.
No capacity available for model gemini-2.5-pro on the server
{"error":{"code":429,"message":"Resource has been exhausted","status":"RESOURCE_EXHAUSTED"}}
Error: Error code: 529 - {'type': 'error', 'error': {'type': 'overloaded_error'}}
Error: [Errno -3] Temporary failure in name resolution
Error: Request timed out.
httpx.ConnectTimeout: _ssl.c:993: The handshake operation timed out
Error: pull model manifest: Get "https://registry.ollama.ai/v2/": dial tcp: lookup: no such host
Error: 503 Service Unavailable: server busy, please try again. maximum pending requests exceeded
Error: Get "https://ollama.com/api/tags": dial tcp 34.36.133.15:443: i/o timeout
"""

LIMIT = """
Claude AI usage limit reached|1764460800
5-hour limit reached ∙ resets 3pm
You've hit your limit · resets 3pm (UTC)
You've hit your session limit · resets 3:45pm
Opus weekly limit reached ∙ resets Oct 3, 9am
You're out of extra usage · resets 3pm
Credit balance is too low
API Error: 429 rate_limit_error: this may be a temporary capacity issue; resets in 3 hours
API Error: Request rejected (429): limit resets at 5pm
ERROR: You've hit your usage limit. Upgrade to Pro or try again in 3 days 4 hours 12 minutes.
ERROR: You've hit your usage limit. To get more access, try again at Oct 3rd, 2026 5:12 PM.
ERROR: You've hit your usage limit. Try again in 3 minutes; our servers are overloaded.
ERROR: Quota exceeded. Check your plan and billing details.
Quota exceeded for metric: free_tier_requests, per day, limit: 50. Please retry in 34.07s.
You exceeded your current quota, please check your plan. Please retry in 3407.5s.
Rate limit exceeded: 429 Too Many Requests: you've reached your weekly usage limit, please wait
Error: 429 Too Many Requests: you (name) have reached your session usage limit, upgrade for higher
Cloud Code Assist API error (429): Individual quota reached. Contact your administrator
Quota exceeded for quota metric 'Gemini 2.5 Pro Requests' and limit 'per day per user per tier'
[API Error: You have exhausted your daily quota on this model.]
You have exhausted your capacity on this model. Your quota will reset after 18h31m10s.
Error: Error code: 429 - {'error': {'message': 'You exceeded your current quota, please check'}}
Rate limit reached, please try again in 20m30s
Error: 429, retry-after: 7200
"""

LOGIN = """
Invalid API key · Please run /login
API Error: 401 OAuth token has expired · Please run /login. 503
Not logged in
Please sign in to continue
"""

NEITHER = """
API Error: 400 {"type":"error","error":{"type":"invalid_request_error"},"request_id":"req_503"}
API Error: Claude's response exceeded the 32000 output token maximum.
prompt is too long: 210000 tokens > 200000 maximum
error: unexpected argument '--foo' found
ERROR: The 'gpt-6' model is not supported when using Codex with a ChatGPT account.
tokens used: 1,503
Error: Unknown model: gpt-500
Error: No key found - add one using 'llm keys set openai' or set OPENAI_API_KEY
Error: model requires more system memory (8.4 GiB) than is available (4.9 GiB)
Error: pull model manifest: file does not exist
Error: Head "http://127.0.0.1:11434/": dial tcp 127.0.0.1:11434: connect: connection refused
connect ECONNREFUSED 127.0.0.1:8080
Usage: claude [options] [command] [prompt]
You've used 95% of your weekly limit · resets Oct 3
Approaching your 5-hour limit
(node:1) ExperimentalWarning: SQLite is an experimental feature
x: 503, rate: 429
panic: internal error in parser.js:33
error: internal error: entered unreachable code
Please try again. Maybe another model answers.
Segmentation fault (core dumped)
"""


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (x, k)
        for text, k in ((BUSY, "busy"), (LIMIT, "limit"), (LOGIN, "login"))
        for x in lines(text)
    ],
)
def test_a_known_line_is_found_and_quoted_beside_warnings(line, kind):
    noise = "(node:1) ExperimentalWarning: SQLite\nApproaching your 5-hour limit · resets 3pm\n"
    assert notice(line) == (kind, line)
    found = notice(f"{line}\n", f"{noise * 20}")
    assert found == (kind, line)
    assert notice(f"Trial 3: {line}", request=f"# Trials\n  Trial 3: {line}\nGo on.") is None


@pytest.mark.parametrize("line", lines(NEITHER))
def test_another_failure_is_none_of_them(line):
    assert notice(line) is None


def test_a_quota_per_minute_is_found_over_several_lines():
    said = "You exceeded your current quota.\n* Quota exceeded for metric: tokens, limit: 250000\n"
    found = notice(f"[API Error: {said}Suggested retry after 34.5s.]")
    assert found is not None
    assert found.kind == "busy"
    found = notice(f"[API Error: {said}")
    assert found is not None
    assert found.kind == "limit"


def test_an_overload_is_looked_for_at_the_end_and_a_limit_everywhere():
    later = "the model wrote a line of its answer\n" * 100
    assert notice(f"stream error: request timed out; retrying 1/5\n{later}") is None
    assert notice(f"5-hour limit reached\n{later}", "fetch failed") == (
        "limit",
        "5-hour limit reached",
    )
    long = notice(f"{'x' * 900} fetch failed {'y' * 900}")
    assert long is not None
    assert "fetch failed" in long.line
    assert len(long.line) < 310


def test_an_answer_about_a_limit_is_no_notice():
    for answer in (
        "The usage limit reached by the pump in #1 shows a leak, tell me more about it.",
        "The usage limit reached by the pump shows a leak, tell me more about it.",
        "In your description the connection was lost. Should I assume a leak?",
        "I would need to know more about the rate limit of the valve before I answer.",
        "Rate limit reached: x: 1",
        "The request timed out in the second trial, so that I would take a smaller step.",
        "Bad gateway settings may explain it; which gateway does the sensor use?",
        f"{'A word. ' * 40} usage limit reached",
    ):
        assert not replaces_answer(answer), answer
    for line in (
        "5-hour limit reached: resets 3pm",
        "The model is temporarily unavailable, try again in a moment.",
        "Claude usage limit reached. Your limit will reset at 3pm (Europe/Berlin).",
        "You've hit your limit · resets 3pm (UTC)",
        "API Error: Request timed out.",
        'API Error: 529 {"type":"error","error":{"type":"overloaded_error"}}',
        "[API Error: You have exhausted your daily quota on this model.]",
        "Invalid API key · Please run /login",
    ):
        assert replaces_answer(line), line
