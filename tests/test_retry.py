from __future__ import annotations

import random

import pytest

from llmopt.client import Message, Request, ScriptedClient, complete_with_retries
from llmopt.errors import ClientError, MissingKeyError

REQUEST = Request((Message("user", "hello"),))


class Waits(list[float]):
    """A `sleep` that only notes the time."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def busy(**fields: float) -> ClientError:
    return ClientError("busy", retryable=True, **fields)  # type: ignore[arg-type]


def test_first_answer_needs_no_wait():
    waits = Waits()
    reply = complete_with_retries(ScriptedClient(["a"]), REQUEST, sleep=waits)
    assert reply.completions[0].text == "a"
    assert waits == []


def test_asks_again_with_the_same_object():
    client = ScriptedClient([busy(), busy(), "a"])
    waits = Waits()
    reply = complete_with_retries(client, REQUEST, sleep=waits)
    assert reply.completions[0].text == "a"
    assert len(client.requests) == 3
    assert all(r is REQUEST for r in client.requests)
    assert len(waits) == 2


def test_back_off_doubles_within_its_bounds():
    seen = []
    for seed in range(50):
        waits = Waits()
        client = ScriptedClient([busy() for _ in range(7)] + ["a"])  # type: ignore[operator]
        complete_with_retries(
            client, REQUEST, attempts=8, base_delay=2.0, max_delay=20.0, sleep=waits,
            rng=random.Random(seed),
        )  # fmt: skip
        assert len(waits) == 7
        for wait, longest in zip(waits, [2.0, 4.0, 8.0, 16.0, 20.0, 20.0, 20.0], strict=True):
            assert longest / 2 <= wait <= longest
        seen.append(waits[0])
    assert len(set(seen)) == 50


def test_gives_up_and_says_how_often_it_tried():
    client = ScriptedClient([ClientError(f"busy {i}", retryable=True) for i in range(9)])
    with pytest.raises(ClientError, match=r"busy 2 \(gave up after 3 attempts\)"):
        complete_with_retries(client, REQUEST, attempts=3, sleep=Waits())
    assert len(client.requests) == 3


def test_a_final_error_is_raised_at_once_as_it_came():
    waits = Waits()
    client = ScriptedClient([MissingKeyError("set THE_KEY"), "never"])
    with pytest.raises(MissingKeyError) as caught:
        complete_with_retries(client, REQUEST, sleep=waits)
    assert str(caught.value) == "set THE_KEY"
    assert (len(client.requests), waits) == (1, [])


def test_other_exceptions_are_not_touched():
    client = ScriptedClient([KeyError("x"), "never"])
    with pytest.raises(KeyError):
        complete_with_retries(client, REQUEST, sleep=Waits())
    assert len(client.requests) == 1


def test_retry_after_is_the_least_wait():
    waits = Waits()
    client = ScriptedClient([busy(retry_after=17.0), busy(retry_after=0.0), "a"])
    complete_with_retries(client, REQUEST, sleep=waits)
    assert waits[0] == 17.0
    assert 1.0 <= waits[1] <= 2.0


def test_a_wait_beyond_the_limit_is_not_cut_short():
    waits = Waits()
    client = ScriptedClient([busy(retry_after=3600.0), "never"])
    with pytest.raises(ClientError) as caught:
        complete_with_retries(client, REQUEST, max_delay=60.0, sleep=waits)
    assert caught.value.retry_after == 3600.0
    assert (len(client.requests), waits) == (1, [])


def test_every_failure_is_reported_before_the_wait():
    events: list[object] = []
    errors = [busy(), busy(), busy()]
    with pytest.raises(ClientError) as caught:
        complete_with_retries(
            ScriptedClient(errors),
            REQUEST,
            attempts=3,
            sleep=lambda seconds: events.append("wait"),
            on_failure=lambda error, attempt: events.append((error, attempt)),
        )
    assert events == [(errors[0], 1), "wait", (errors[1], 2), "wait", (errors[2], 3)]
    assert caught.value is errors[2]


def test_same_jitter_from_the_same_generator():
    runs = []
    for _ in range(2):
        waits = Waits()
        client = ScriptedClient([busy(), busy(), "a"])
        complete_with_retries(client, REQUEST, sleep=waits, rng=random.Random(5))
        runs.append(list(waits))
    assert runs[0] == runs[1]


def test_attempts_must_be_positive():
    client = ScriptedClient(["a"])
    with pytest.raises(ValueError, match="attempts=0"):
        complete_with_retries(client, REQUEST, attempts=0)
    assert client.requests == []


def turned_down(status: int = 503, **fields: float) -> ClientError:
    return ClientError("busy", retryable=True, status=status, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("status", [429, 503, 529])
def test_a_busy_provider_is_waited_for_in_minutes(status):
    waits = Waits()
    client = ScriptedClient([turned_down(status) for _ in range(99)])
    with pytest.raises(ClientError):
        complete_with_retries(client, REQUEST, sleep=waits)
    assert 240 <= sum(waits) <= 300
    assert max(waits) <= 60


def test_a_busy_provider_says_itself_when_to_come_back():
    waits = Waits()
    client = ScriptedClient([turned_down(retry_after=200.0), "a"])
    assert complete_with_retries(client, REQUEST, sleep=waits).completions[0].text == "a"
    assert waits == [200.0]
    waits = Waits()
    client = ScriptedClient([turned_down(retry_after=200.0), turned_down(retry_after=101.0), "a"])
    with pytest.raises(ClientError):
        complete_with_retries(client, REQUEST, sleep=waits)
    assert waits == [200.0]


def test_the_client_says_how_long_to_go_on():
    client = ScriptedClient([turned_down() for _ in range(99)])
    client.patience = 20.0  # type: ignore[attr-defined]
    waits = Waits()
    with pytest.raises(ClientError):
        complete_with_retries(client, REQUEST, sleep=waits)
    assert sum(waits) <= 20
    client = ScriptedClient([busy() for _ in range(9)])
    client.transport_attempts = 2  # type: ignore[attr-defined]
    with pytest.raises(ClientError):
        complete_with_retries(client, REQUEST, sleep=Waits())
    assert len(client.requests) == 2


@pytest.mark.parametrize("bound", [{"most_calls": 3}, {"attempts": 3}])
def test_a_number_of_calls_bounds_the_patience(bound):
    client = ScriptedClient([turned_down() for _ in range(9)])
    with pytest.raises(ClientError):
        complete_with_retries(client, REQUEST, sleep=Waits(), **bound)  # type: ignore[arg-type]
    assert len(client.requests) == 3


def test_a_call_that_may_be_charged_is_made_twice_at_most():
    client = ScriptedClient([busy(unpriced=1), busy(), busy(unpriced=1), "a"])
    with pytest.raises(ClientError):
        complete_with_retries(client, REQUEST, sleep=Waits())
    assert len(client.requests) == 3
