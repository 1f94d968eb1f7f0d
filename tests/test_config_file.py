"""``--config FILE`` and ``--track`` of ``llmopt run`` and ``bench``."""

from __future__ import annotations

import json

import numpy as np

from llmopt import Completion, Reply, ScriptedClient
from llmopt.benchmarks.run import RunConfig, run
from llmopt.cli import main
from llmopt.trackers import Callback

RUN = """
task = "mountaincar"
iterations = 2
episodes = 1
warmup = 2
heldout = 2
finalists = 0
methods = ["random"]
gif = false
bias = true
box = [-3, 3.5]
max-requests = 50
"""


def write(tmp_path, text, name="options.toml"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


class TestConfig:
    def test_of_a_run_is_kept_in_its_folder(self, tmp_path, capsys):
        file, out = write(tmp_path, RUN), tmp_path / "run"
        assert main(["run", "--config", file, "--out", str(out), "--iterations", "3"]) == 0
        kept = json.loads((out / "config.json").read_text())["run"]
        assert (kept["task"], kept["iterations"], kept["box"]) == ("mountaincar", 3, [-3.0, 3.5])
        assert (kept["gif"], kept["bias"], kept["max_requests"]) == (False, True, 50)
        assert (out / "options.toml").read_text() == RUN


class Everything(Callback):
    def __init__(self):
        self.events = []

    def asked(self, search, proposal):
        self.events.append(("asked", search.name, proposal.source))

    def told(self, search, trial, best, usage):
        assert len(search.parameters) == len(trial.values) == 3
        assert best.reward >= trial.reward
        self.events.append(("told", search.name, trial.number))

    def ended(self, search, reason):
        self.events.append(("ended", search.name, reason))


def answers(request):
    rng = np.random.default_rng(request.seed)
    values = ", ".join(f"params[{i}]: {v:.1f}" for i, v in enumerate(rng.uniform(-3, 3, 3)))
    return Reply((Completion(values),), prompt_tokens=700)


CONFIG = RunConfig(
    "mountaincar",
    prompt="props",
    iterations=2,
    episodes=1,
    warmup=2,
    heldout=2,
    finalists=0,
    methods=("llm", "random"),
    gif=False,
    bias=True,
    batch=1,
)


class TestTrack:
    def test_a_run_tells_of_every_method(self, tmp_path):
        told = Everything()
        run(CONFIG, tmp_path / "r", client=ScriptedClient(answers), callbacks=[told])
        llm = [
            ("asked", "r-llm", "llm"),
            ("told", "r-llm", 0),
            ("asked", "r-llm", "llm"),
            ("told", "r-llm", 1),
            ("ended", "r-llm", ""),
        ]
        assert told.events[:5] == llm
        assert [e[:2] for e in told.events[5:]] == [
            *[("asked", "r-random"), ("told", "r-random")] * 2,
            ("ended", "r-random"),
        ]

    def test_what_was_before_a_resume_is_not_told_again(self, tmp_path):
        run(CONFIG, tmp_path / "r", client=ScriptedClient(answers))
        (tmp_path / "r" / "summary.json").unlink()
        told = Everything()
        run(CONFIG, tmp_path / "r", client=ScriptedClient(answers), resume=True, callbacks=[told])
        assert {e[0] for e in told.events} <= {"ended"}
