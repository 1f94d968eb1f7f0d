from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from llmopt.util.threads import DeadlineExceeded, at_once, within


def test_within():
    assert within(60, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(60, lambda: 1 / 0)
    hang = threading.Event()
    with pytest.raises(DeadlineExceeded):
        within(0.05, hang.wait)
    hang.set()


def test_at_once_keeps_the_order_and_the_limit():
    lock = threading.Lock()
    running, most = 0, 0

    def call(number):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01 * (number % 3))
        with lock:
            running -= 1
        return number**2

    assert at_once(call, range(20), 4) == [n**2 for n in range(20)]
    assert 1 < most <= 4
    assert at_once(call, [], 4) == []
    most = 0
    assert at_once(call, range(5), 1) == [0, 1, 4, 9, 16]
    assert most == 1


SCRIPT = """
import os, signal, sys, threading, time
from wire import Hang, WireServer
from llmopt.client.base import Message, Request
from llmopt.client.providers.openai import OpenAIClient

samples = int(sys.argv[1])
server = WireServer()
server.play(Hang())
client = OpenAIClient("m", base_url=server.url + "/v1", timeout=600)
client._learned.samples_per_call = 1

def interrupt():
    while len(server.seen) < min(samples, 8):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    client.complete(Request((Message("user", "hi"),), n=samples))
except KeyboardInterrupt:
    time.sleep(0.3)
    print("stopped", len(server.seen), flush=True)
"""


@pytest.mark.parametrize("samples", [1, 12])
def test_ctrl_c_waits_for_no_call(samples):
    # Without daemon threads this would last until the server gives up, or for ten minutes.
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(samples)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=os.path.dirname(__file__),
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
    )
    # Of twelve calls eight had begun, and no other began after the interruption.
    assert done.stdout == f"stopped {min(samples, 8)}\n"
    assert (done.returncode, done.stderr) == (0, "")
