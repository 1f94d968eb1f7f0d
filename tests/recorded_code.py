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


def play(name, task, folder):
    """Run a recorded search again; return what it was worth, and what it was when recorded."""
    recording = RECORDINGS / f"{name}.jsonl"
    command = name.partition("-")[0]
    # The prompt says how many tries and starts there are: the same are to be given again.
    text = recording.read_text(encoding="utf-8")
    steps = re.search(r"This is try 1 of (\d+)", text)[1]
    starts = re.search(r"over (?:the same )?(\d+) random starts", text)[1]
    model = ["--model", f"replay:{recording}", "--steps", steps, "--episodes", starts, "--no-gif"]
    assert cli([command, task, *model, "--out", str(folder)]) == 0
    lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    before = next(x for x in lines if (x["command"], x["task"]) == (command, task))
    return json.loads((folder / "held_out.json").read_text(encoding="utf-8")), before
