"""An evaluation that hangs or crashes is a failure, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import pytest

from llmopt import Int, minimize

SPACE = {"k": Int(0, 99)}


def options(**others):
    return {"client": "network", "seed": 0, "warmup": 6, "evaluation_timeout": 1.5, **others}


def children():
    """Return the processes that sleep as `hang` has them sleep."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return listed.stdout.count("sleep 87654")


def hang(point):
    if point["k"] % 2:
        subprocess.run(["sleep", "87654"], check=True)
    return point["k"]


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_a_hanging_evaluation_is_killed_with_all_that_it_started(n_jobs):
    trials = minimize(hang, SPACE, 6, n_jobs=n_jobs, **options()).trials
    assert {t.values[0] % 2 for t in trials} == {0, 1}
    for trial in trials:
        assert (trial.state == "failed") == trial.values[0] % 2
        if trial.state == "failed":
            assert trial.feedback == "it took longer than evaluation_timeout=1.5 seconds"
    assert children() == 0


def test_any_function_will_do_and_a_crash_is_a_failure():
    seen = []

    def f(point):
        seen.append(point)  # in its own process
        if point["k"] > 50:
            os._exit(3)
        return float(point["k"]), f"pid {os.getpid()}"

    trials = minimize(f, SPACE, 5, **options(evaluation_timeout=60)).trials
    assert seen == []
    assert {t.feedback for t in trials if t.state == "failed"} == {
        "its process ended with exit code 3"
    }
    pids = {t.feedback for t in trials if t.rewards}
    assert len(pids) == sum(t.rewards is not None for t in trials) > 0
    assert f"pid {os.getpid()}" not in pids


def test_what_the_function_raises_is_raised_here():
    def f(point):
        raise KeyError("a missing file")

    with pytest.raises(KeyError, match="a missing file") as raised:
        minimize(f, SPACE, 5, **options())
    assert any("in f\n" in note for note in raised.value.__notes__)
    with pytest.raises(RuntimeError, match="cannot be sent between processes"):
        minimize(lambda p: lambda: 1, SPACE, 5, **options())


def test_it_works_in_a_pool_of_processes():
    with ProcessPoolExecutor(2) as pool:
        trials = minimize(hang, SPACE, 4, executor=pool, **options()).trials
    assert len(trials) == 4
    assert children() == 0


def test_a_killed_search_leaves_no_evaluation_running(tmp_path):
    code = (
        "import time, llmopt\n"
        "def f(p):\n"
        "    open('started', 'w').close(); time.sleep(60); open('late', 'w').close()\n"
        "llmopt.minimize(f, {'k': llmopt.Int(0, 9)}, 3, 'network', evaluation_timeout=90)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=os.environ)
    while not (tmp_path / "started").exists():
        time.sleep(0.1)
    listed = ["pgrep", "-P", str(process.pid)]
    (child,) = subprocess.run(listed, capture_output=True, text=True).stdout.split()
    process.kill()
    process.wait()
    time.sleep(0.5)
    status = f"/proc/{child}/status"
    assert not os.path.exists(status) or "Z (zombie)" in open(status).read()
