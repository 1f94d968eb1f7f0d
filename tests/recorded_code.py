"""Plays a recorded search over code again, for the tests of both environments."""

import json
import re
from pathlib import Path

from llmopt.cli import main as cli

ROOT = Path(__file__).resolve().parents[1]
RECORDINGS = ROOT / "benchmarks" / "recordings"
RESULTS = ROOT / "benchmarks" / "results" / "code.jsonl"


def recorded(*names):
    """Return those of the recordings that there are."""
    return [name for name in names if (RECORDINGS / f"{name}.jsonl").exists()]


def play(name, task, folder, requests):
    """Run the first requests of a recorded search again.

    Returns:
        The scores of its candidates now, and as many as they were when they were recorded.
    """
    recording = RECORDINGS / f"{name}.jsonl"
    command = name.partition("-")[0]
    # The prompt says how many tries and starts there are: the same are to be given again.
    text = recording.read_text(encoding="utf-8")
    steps = re.search(r"This is try 1 of (\d+)", text)[1]
    starts = re.search(r"over (?:the same )?(\d+) random starts", text)[1]
    options = f"--steps {steps} --episodes {starts} --max-requests {requests} --held-out 1 --no-gif"
    model = ["--model", f"replay:{recording}?strict=false", *options.split(), "--out", str(folder)]
    assert cli([command, task, *model]) == 0
    files = sorted((folder / "candidates").glob("*.json"))
    now = [json.loads(file.read_text(encoding="utf-8"))["score"] for file in files]
    lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    before = next(x for x in lines[::-1] if (x["command"], x["task"]) == (command, task))
    return now, [c["score"] for c in before["candidates"]][: len(now)]
