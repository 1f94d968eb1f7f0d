"""The one retry loop: how often a request is sent, and how long is waited between."""

from __future__ import annotations

import random

import pytest

from llmopt.client import Message, Request, ScriptedClient, complete_with_retries
from llmopt.errors import ClientError, MissingKeyError

REQUEST = Request((Message("user", "hello"),))


def busy(**fields: float) -> ClientError:
    return ClientError("busy", retryable=True, **fields)  # type: ignore[arg-type]


def turned_down(status: int = 503, **fields: float) -> ClientError:
    return busy(status=status, **fields)


def asked(client, **options):
    """Return what came of a request, an answer or an error, and the waits before."""
    waits: list[float] = []
    try:
        reply = complete_with_retries(client, REQUEST, sleep=waits.append, **options)
    except Exception as error:
        return error, waits
    return reply.completions[0].text, waits


@pytest.mark.parametrize(
    ("script", "options", "came", "requests", "waits"),
    [
        (["a"], {}, "a", 1, []),
        ([busy(), busy(), "a"], {}, "a", 3, [(0.5, 1), (1, 2)]),
        ([busy()] * 9, {"most_calls": 3}, ClientError, 3, [(0.5, 1), (1, 2)]),
        # A final error is raised at once as it came, and so is any other one.
        ([MissingKeyError("set THE_KEY"), "never"], {}, MissingKeyError, 1, []),
        ([KeyError("x"), "never"], {}, KeyError, 1, []),
        # What the server asks for is the least wait, and is not cut short.
        ([busy(retry_after=17.0), busy(retry_after=0.0), "a"], {}, "a", 3, [(17, 17), (1, 2)]),
        ([busy(retry_after=3600.0), "never"], {}, ClientError, 1, []),
        # A busy provider says itself when to come back, and is waited for in minutes.
        ([turned_down(retry_after=200.0), "a"], {}, "a", 2, [(200, 200)]),
        ([turned_down(retry_after=s) for s in (200.0, 101.0)], {}, ClientError, 2, [(200, 200)]),
        # A number of calls bounds the patience.
        ([turned_down()] * 9, {"most_calls": 3}, ClientError, 3, [(0.5, 1), (1, 2)]),
        # A call that may be charged is made twice at most.
        ([busy(unpriced=1), busy(), busy(unpriced=1), "a"], {}, ClientError, 3, [(0.5, 1), (1, 2)]),
    ],
)
def test_what_is_asked_again_and_when(script, options, came, requests, waits):
    client = ScriptedClient(script)
    found, waited = asked(client, **options)
    assert found == came if isinstance(came, str) else type(found) is came
    assert len(client.requests) == requests
    assert all(request is REQUEST for request in client.requests)
    assert len(waited) == len(waits)
    for wait, (least, most) in zip(waited, waits, strict=True):
        assert least <= wait <= most


def test_back_off_doubles_within_its_bounds_by_the_generator():
    seen = []
    for seed in [*range(50), 49]:
        client = ScriptedClient([busy()] * 8 + ["a"])  # type: ignore[list-item]
        client.transport_attempts = 9  # type: ignore[attr-defined]
        _, waits = asked(client, rng=random.Random(seed))
        for wait, longest in zip(waits, [1, 2, 4, 8, 16, 32, 60, 60], strict=True):
            assert longest / 2 <= wait <= longest
        seen.append(waits)
    assert len({waits[0] for waits in seen}) == 50
    assert seen[-1] == seen[-2]


def test_every_failure_is_reported_before_the_wait_and_its_length_is_logged(caplog):
    events: list[object] = []
    errors = [busy(), busy(), busy()]
    with pytest.raises(ClientError) as caught:
        complete_with_retries(
            ScriptedClient(errors),
            REQUEST,
            most_calls=3,
            sleep=lambda seconds: events.append("wait"),
            on_failure=events.append,
        )
    assert events == [errors[0], "wait", errors[1], "wait", errors[2]]
    assert caught.value is errors[2]
    assert [m.partition(" failed: ")[0][-9:] for m in caplog.messages] == ["attempt 1", "attempt 2"]
    assert all("busy. Trying again in " in message for message in caplog.messages)
    caplog.clear()
    _, waits = asked(ScriptedClient([turned_down()] * 99))
    for number, message in enumerate(caplog.messages):
        left = 300 - sum(waits[: number + 1])
        assert message.endswith(f"in {waits[number]:.0f} s, and for up to {left:.0f} s more")
    assert len(caplog.messages) == len(waits)


@pytest.mark.parametrize("status", [429, 503, 529])
def test_a_busy_provider_is_waited_for_in_minutes(status):
    _, waits = asked(ScriptedClient([turned_down(status)] * 99))
    assert 240 <= sum(waits) <= 300
    assert max(waits) <= 60


def test_the_client_says_how_long_to_go_on():
    client = ScriptedClient([turned_down()] * 99)
    client.patience = 20.0  # type: ignore[attr-defined]
    assert sum(asked(client)[1]) <= 20
    client = ScriptedClient([busy()] * 9)
    client.transport_attempts = 2  # type: ignore[attr-defined]
    asked(client)
    assert len(client.requests) == 2
