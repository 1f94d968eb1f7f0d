"""Runs a command in an empty folder, and ends it with its children once the caller says so or ends.

``python command_guard.py FD COMMAND ...``: the caller holds the other end of the pipe FD, and the
kernel closes that end whatever kills the caller. The exit status is the command's, 128 plus the
signal that ended it, or 127 if it cannot be started. It imports nothing of llmopt, to start fast.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile

_POLL = 0.05  # seconds
_GRACE = 1.0  # seconds between SIGTERM and SIGKILL


def main(alive: int, command: list[str]) -> int:
    """Run a command in a folder and a process group of its own."""
    with tempfile.TemporaryDirectory(prefix="llmopt-", ignore_cleanup_errors=True) as folder:
        return _run(alive, command, folder)


def _run(alive: int, command: list[str], folder: str) -> int:
    try:
        process = subprocess.Popen(command, cwd=folder, start_new_session=True)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return 127
    while process.poll() is None and not select.select([alive], [], [], _POLL)[0]:
        pass
    if process.returncode is None:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    _signal(process.pid, signal.SIGKILL)  # and what it left in the background
    status = process.wait()
    return status if status >= 0 else 128 - status


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
