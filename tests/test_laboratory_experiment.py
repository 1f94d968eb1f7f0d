"""The experiment of the laboratory: its rivals meet the same initial states as the searches."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from llmopt.benchmarks.engine.cell import Cell
from llmopt.benchmarks.experiments import laboratory
from llmopt.policies.episode_seeds import held_out_seeds

WEIGHTS = [0.0] * 12


def play(folder: Path, *options: str, weights: list[float] = WEIGHTS) -> str:
    """Answer as a coding agent does: by the commands of TASK.md."""
    (folder / "weights.json").write_text(json.dumps(weights), encoding="utf-8")
    return subprocess.run(
        [sys.executable, "evaluate.py", "weights.json", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


def test_an_agent_measures_the_states_of_the_search_and_hands_in_a_policy(tmp_path):
    lines = []
    cell = Cell.make("dryer", "agent", 3, 2, "an agent")
    server = threading.Thread(
        target=lambda: lines.append(laboratory.run_cell(cell, str(tmp_path))), daemon=True
    )
    server.start()
    deadline = time.monotonic() + 60
    while not (tmp_path / "evaluate.py").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "expected 12 numbers within their ranges" in play(tmp_path, weights=[0.0] * 11)
    first = play(tmp_path)
    assert play(tmp_path).startswith(first.partition(";")[0])  # the same states each time
    assert "all 2 evaluations are used" in play(tmp_path)
    assert play(tmp_path, "--final") == "received\n"
    server.join(60)
    (line,) = lines
    with np.load(tmp_path / "steps-1.npz") as steps:
        total = [steps[f"rewards_{k}"].sum() for k in range(10)]
    assert np.mean(total) == pytest.approx(line["curve"][0], rel=1e-6)
    assert len(line["curve"]) == 2
    assert len(line["held_out_returns"]) == laboratory.HELD_OUT
    assert np.mean(line["held_out_returns"]) == pytest.approx(line["held_out"], rel=1e-6)


def test_cma_es_keeps_its_best_policy_and_judges_it_on_held_out_states():
    line = laboratory.run_cell(Cell.make("dryer", "cma", 3, 3, ""))
    assert line["best"] == max(line["curve"])
    assert len(line["curve"]) == 3
    assert len(line["params"]) == len(WEIGHTS)
    assert len(line["held_out_returns"]) == laboratory.HELD_OUT


def test_a_program_of_a_run_is_judged_on_the_states_of_the_other_methods(tmp_path, monkeypatch):
    monkeypatch.setattr(laboratory, "HELD_OUT", 2)
    task = "llmopt.benchmarks.experiments.unseen:Dryer-v0"
    (tmp_path / "candidates").mkdir()
    for number, score in enumerate((None, 2.0, 1.0), 1):
        file = tmp_path / "candidates" / f"{number:03d}.json"
        file.write_text(json.dumps({"score": score}))
        source = f"def controller(obs):\n    return [0.5, {0.1 * number}]\n"
        file.with_suffix(".py").write_text(source)
    (tmp_path / "config.json").write_text(json.dumps({"task": task, "call_seconds": 10.0}))
    (tmp_path / "starts.json").write_text("{}")
    (tmp_path / "search.jsonl").write_text('{"event": "started"}\n' + '{"event": "replied"}\n' * 3)
    line = laboratory.run_cell(Cell.make("dryer", "code", 1, 3, "a model"), str(tmp_path))
    returns = []
    for seed in held_out_seeds(1, 2):
        env = gym.make(task)
        env.reset(seed=seed)
        rewards, over = [], False
        while not over:
            _, reward, terminated, truncated, _ = env.step(np.array([0.5, 0.2]))
            rewards.append(reward)
            over = terminated or truncated
        returns.append(sum(rewards))
    assert line["held_out_returns"] == pytest.approx(returns, rel=1e-6)
    assert (line["requests"], line["best"], line["curve"]) == (3, 2.0, [None, 2.0, 1.0])
