"""A stand-in for a program such as ``claude -p``: ``model.py BEHAVIOUR`` answers standard input.

Each start appends its process to the file that ``LLM_LOG`` names, if there is one.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import IO

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def answer(text: str) -> str:
    count = len(re.findall(r"^# ?\d|x: ", text, re.MULTILINE))
    lines = "Lesson: none", "Hypothesis: a guess.", "Start from: new", "Proposal:"
    return "\n".join([*lines, f"x: {count % 97 / 97:.4f}"])


def note(word: object) -> None:
    if "LLM_LOG" in os.environ:
        with open(os.environ["LLM_LOG"], "a") as log:
            log.write(f"{word}\n")


def starts() -> int:
    with open(os.environ["LLM_LOG"]) as log:
        return len(log.readlines())


def stubborn(text: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent(text)
    time.sleep(600)


def parent(text: str) -> None:
    note(f"child {subprocess.Popen(SLEEP).pid}")


def fails(text: str) -> None:
    print("\x1b[31mcannot log in\x1b[0m with", os.environ["OPENAI_API_KEY"], file=sys.stderr)
    sys.exit(3)


def flaky(text: str) -> None:
    if starts() % 3 == 2:
        sys.exit(1)


def once(text: str) -> None:
    if starts() > 1:
        sys.exit(1)


def stuck_later(text: str) -> None:
    if starts() > 1:
        time.sleep(600)


def limited(text: str) -> None:
    if starts() > 1:
        echo("Claude AI usage limit reached|1764460800", 1)


def overloaded(text: str) -> None:
    """Fail twice of three times, then answer."""
    if starts() % 3:
        echo('API Error: 529 {"type":"error","error":{"type":"overloaded_error"}}', 1)


def busy(text: str) -> None:
    echo("The model is temporarily unavailable, try again in a moment.")


def notice(text: str) -> None:
    """Exit with 0, as `claude -p | tee log` does."""
    if starts() > 1:
        print("5-hour limit reached: resets 3pm")
        sys.exit(0)


def empty(text: str) -> None:
    print("quota used up", file=sys.stderr)
    sys.exit(0)


def endless(text: str, file: IO[str] = sys.stdout) -> None:
    while True:
        print("x" * 1000, file=file)


def echo(text: str, status: int = 0) -> None:
    print(text)
    sys.exit(status)


def environment(text: str) -> None:
    echo(f"{' '.join(os.environ)} {os.listdir('.')}")


BEHAVIOURS: dict[str, Callable[[str], object]] = {
    "plain": lambda text: None,
    "slow": lambda text: time.sleep(0.3),
    "stuck": lambda text: time.sleep(600),
    "killed": lambda text: os.kill(os.getpid(), signal.SIGKILL),
    "noisy": lambda text: endless(text, sys.stderr),
    **{
        f.__name__: f
        for f in (
            stubborn,
            parent,
            fails,
            flaky,
            once,
            stuck_later,
            limited,
            overloaded,
            busy,
            notice,
            empty,
            endless,
            echo,
            environment,
        )
    },
}

if __name__ == "__main__":
    request = sys.stdin.read()
    note(os.getpid())
    BEHAVIOURS[sys.argv[1]](request)
    print("\x1b[1mthinking\x1b[0m", file=sys.stderr)
    print(f"\x1b[32m{answer(request)}\x1b[0m")
