from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from llmopt.util.threads import DeadlineExceeded, within


def test_within():
    assert within(60, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(60, lambda: 1 / 0)
    hang = threading.Event()
    with pytest.raises(DeadlineExceeded):
        within(0.05, hang.wait)
    hang.set()


SCRIPT = """
import os, signal, sys, threading, time
from wire import Hang, WireServer
from llmopt.client.base import Message, Request
from llmopt.client.providers.openai import OpenAIClient

server = WireServer()
server.play(Hang())
client = OpenAIClient("m", base_url=server.url + "/v1", timeout=600)

def interrupt():
    while not server.seen:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    client.complete(Request((Message("user", "hi"),)))
except KeyboardInterrupt:
    time.sleep(0.3)
    print("stopped", len(server.seen), flush=True)
"""


def test_ctrl_c_waits_for_no_call():
    # Without daemon threads this would last until the server gives up, or for ten minutes.
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=os.path.dirname(__file__),
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
    )
    assert done.stdout == "stopped 1\n"
    assert (done.returncode, done.stderr) == (0, "")
