"""A search that is killed while blocks of Python and their jobs run."""

import os
import signal
import subprocess
import sys
import time

import pytest

from llmopt.sandbox.confine import support

pytestmark = pytest.mark.skipif(bool(support().problems), reason="code cannot be confined here")

SEARCH = '''
import pathlib
import llmopt

FIRST = """```python
def slow(n):
    import time
    time.sleep(n)
    return n
job = submit(slow, 4)
kept = 0.25
print("begun")
import time
time.sleep(2)
```"""
SECOND = """```python
print(job.wait(60), job.result, kept)
```"""
LAST = "Hypothesis: h.\\nStart from: new\\nProposal: x: 0.5"

class Paid:
    name = "paid"

    def complete(self, request):
        calls = pathlib.Path("calls")
        before = len(calls.read_text().split()) if calls.exists() else 0
        calls.write_text("call " * (before + 1))
        return llmopt.Reply((llmopt.Completion([FIRST, SECOND, LAST][before]),), model=self.name)

options = {"warmup": 0, "seed": 0, "compute": True, "compute_workers": 1, "description": "d"}
space = {"x": llmopt.Float(0, 1)}
with llmopt.LLMOptimizer(space, Paid(), "words", storage="run.jsonl", **options) as search:
    print(search.ask()["x"], search.usage.requests, search.usage.blocks)
'''


def run(folder, *, kill_after=None):
    """Run the search; kill it a second after a number of calls, or return its output."""
    child = subprocess.Popen(
        [sys.executable, "search.py"], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    calls = folder / "calls"
    if kill_after is None:
        return child.communicate(timeout=120)[0]
    ends = time.monotonic() + 60
    while len(calls.read_text().split()) < kill_after if calls.exists() else True:
        assert child.poll() is None
        assert time.monotonic() < ends
        time.sleep(0.05)
    time.sleep(1)
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    return ""


def test_a_search_killed_while_blocks_and_jobs_run_pays_for_no_answer_twice(tmp_path):
    (tmp_path / "search.py").write_text(SEARCH)
    run(tmp_path, kill_after=1)  # within the first block
    run(tmp_path, kill_after=2)  # within the second, which waits for the job
    assert run(tmp_path).split() == ["0.5", "3", "2"]
    assert len((tmp_path / "calls").read_text().split()) == 3
