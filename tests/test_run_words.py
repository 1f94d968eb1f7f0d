"""`llmopt run` with words: names, errors and statistics, an end by the model, a recording."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import llmopt
from llmopt import ReplayClient, ScriptedClient
from llmopt.benchmarks.run import RunConfig, contestants, run
from llmopt.benchmarks.run import session as session_module
from llmopt.benchmarks.tasks.table import get_task
from llmopt.cli import main
from llmopt.client.model_facts import ModelFacts
from llmopt.errors import ClientError

pytest.importorskip("matplotlib")

STOP = "Analysis: enough.\nHypothesis: none.\nStart from: #1\nProposal: stop"
OPTIONS = ["--iterations", "4", "--episodes", "2", "--warmup", "2", "--heldout", "3", "--no-gif"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session_module, "learning_curve", lambda *_, **__: b"")


def config(**changes):
    known = {
        "prompt": "words", "methods": ("llm",), "iterations": 4, "episodes": 2, "warmup": 2,
        "heldout": 3, "gif": False,
    }  # fmt: skip
    return RunConfig("mountaincar", **{**known, **changes})


def point(request):
    """An answer that depends on the request alone."""
    a, b, c = np.random.default_rng(int(request.digest()[:12], 16)).uniform(-1, 1, 3)
    values = f"force<-car_position: {a:.3f}, force<-car_vel: {b:.3f}, force<-bias: {c:.3f}"
    return f"Lesson: none\nHypothesis: h.\nStart from: new\nProposal:\n{values}"


def rows(path):
    lines = (Path(path) / "trials.jsonl").read_text().splitlines()
    found = (r for r in map(json.loads, lines) if r["round"] == "search")
    return [(r["method"], r["params"], r["returns"]) for r in found]


class Closing(ScriptedClient):
    """Counts how often it was closed."""

    closed = 0

    def close(self):
        self.closed += 1


def use(monkeypatch, client):
    monkeypatch.setattr(contestants, "get_client", lambda model: client)


# -- what the model is told ---------------------------------------------------------------


def test_words_are_given_with_names_errors_and_statistics():
    client = ScriptedClient(point)
    run(config(methods=("llm", "random")), "r", client=client)
    text = client.requests[-1].text
    assert "the same 2 random initial states" in text
    assert "judged on held-out initial states" in text
    assert "A car in a valley between two hills" in text
    assert "An episode has at most 999 steps." in text
    assert "# | f | force<-car_position | force<-car_vel | force<-bias | from" in text
    assert len(re.findall(r"^#\d+ \| -?[\d.]+ ± [\d.e-]+ \|", text, re.MULTILINE)) == 5
    assert text.count("Mean return ") >= 3
    assert "params[0]" not in text
    told = map(json.loads, Path("r/trials.jsonl").read_text().splitlines())
    assert {t["method"] for t in told if t["feedback"]} == {"warmup", "llm"}  # none of a baseline
    decimals = [p for method, params, _ in rows("r") for p in params if method == "llm"]
    assert any(round(p, 1) != p for p in decimals)


def test_statistics_are_not_given_to_the_published_prompts():
    client = ScriptedClient(["force<-car_vel: 1, params[1]: 2, params[0]: 3"], cycle=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(config(iterations=1, prompt="props"), "props", client=client)
    assert "Mean return " not in client.requests[-1].text
    assert "Mean return" not in Path("props", "trials.jsonl").read_text()


# -- the model ends the search ------------------------------------------------------------


def test_a_model_may_end_the_search(capsys):
    client = ScriptedClient(lambda r: STOP if len(client.requests) == 3 else point(r))
    result = run(config(methods=("llm", "random")), "r", client=client, progress=True)
    assert [r[0] for r in rows("r")] == ["warmup"] * 2 + ["llm"] * 2 + ["random"] * 4
    assert result.methods[0].heldout is not None
    for text in (
        result.methods[0].stopped,
        result.table,
        Path("r/summary.json").read_text(),
        json.loads(Path("r/stopped.json").read_text())["llm"],
        capsys.readouterr().err,
    ):
        assert "expects no further gain" in text
    again = ScriptedClient([])  # it is not asked again
    after = run(config(methods=("llm", "random")), "r", client=again, resume=True)
    assert not again.requests
    assert after.table == result.table
    assert after.methods[0].requests == 3


# -- recordings ---------------------------------------------------------------------------


def test_a_recording_is_replayed_by_the_same_command(monkeypatch, capsys):
    client = Closing(lambda r: STOP if len(client.requests) == 4 else point(r), name="m")
    command = ["run", "mountaincar", *OPTIONS, "--methods", "llm", "random", "--prompt", "words"]
    with monkeypatch.context() as patch:
        use(patch, client)
        assert main([*command, "--out", "a", "--record", "rec.jsonl"]) == 0
    assert client.closed == 1
    assert len(Path("rec.jsonl").read_text().splitlines()) == 5
    assert main([*command, "--out", "b", "--model", "replay:rec.jsonl"]) == 0
    assert rows("a") == rows("b")
    capsys.readouterr()
    # Other starts, so another request: refused, with the first difference.
    assert main([*command, "--out", "c", "--model", "replay:rec.jsonl", "--episodes", "3"]) == 2
    error = capsys.readouterr().err
    assert "is not among its 4 recorded ones" in error
    recorded, asked = error.split("recorded '...")[1].split("asked '...")
    assert "the same 2 random initial states" in recorded
    assert "the same 3 random initial states" in asked
    # The folder of a recorded run goes on to record; a new run does not mix its answers in.
    with monkeypatch.context() as patch:
        use(patch, ScriptedClient(point))
        assert main([*command, "--out", "d", "--record", "rec.jsonl"]) == 2
        assert main([*command, "--out", "d", "--record", "no/rec.jsonl"]) == 2
        assert main([*command, "--out", "d", "--record", "."]) == 2
    error = capsys.readouterr().err
    assert "holds a recording already" in error
    assert "does not exist" in error
    assert "--record: . is a folder: give the name of a new file" in error
    assert not Path("d").exists()


def test_a_recording_grows_when_its_run_goes_on():
    def cut(request):
        if len(client.requests) == 3:
            raise ClientError("down")
        return point(request)

    client = ScriptedClient(cut)
    with pytest.raises(ClientError):
        run(config(record="rec.jsonl"), "r", client=client)
    run(config(record="rec.jsonl"), "r", client=ScriptedClient(point), resume=True)
    run(config(), "again", client=ReplayClient("rec.jsonl"))
    assert rows("r") == rows("again")


# -- before and while it runs -------------------------------------------------------------


class Small(ScriptedClient):
    def facts(self):
        return ModelFacts("small", default_prompt="columns", parameters=135_000_000)


def test_a_model_too_small_for_words_is_told_of_first():
    client = Small(lambda r: pytest.fail("asked before the warning"))
    match = r"135 million weights.*--prompt columns suits it"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=match):
            run(config(), "r", client=client)
    assert not Path("r").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(config(prompt="props", methods=("random",), iterations=0), "r", client=client)


def test_resume_needs_the_folder_of_a_run(capsys):
    assert main(["run", "cartpole", *OPTIONS, "--methods", "random", "--seed", "1"]) == 0
    stopped = Path("runs/cartpole-baselines-none-seed1")
    (stopped / "summary.json").unlink()
    capsys.readouterr()
    assert main(["run", "cartpole", "--resume"]) == 2
    assert "--resume DIR" in capsys.readouterr().err
    assert main(["run", "--resume", str(stopped)]) == 0
    assert (stopped / "summary.json").exists()


# -- environments that cannot be searched -------------------------------------------------


@pytest.mark.parametrize(
    ("task", "prompt", "message"),
    [
        ("Line-v0", "props", "name your own environment MODULE:Line-v0"),
        ("ALE/Pong-v5", "props", "(pip install ale-py) and name it ale_py:ALE/Pong-v5"),
        ("Humanoid-v5", "props", "too many parameters for a linear policy, 5,933"),
        ("Humanoid-v5", "columns", "too many parameters for a linear policy, 5,933"),
    ],
)
def test_what_cannot_be_searched_says_what_can_be_done(capsys, task, prompt, message):
    if task.startswith("Human"):
        pytest.importorskip("mujoco")
    answered = ScriptedClient(point)
    answered.context_tokens = 8192
    with pytest.MonkeyPatch.context() as patch:
        use(patch, answered)
        assert main(["run", task, *OPTIONS, "--prompt", prompt]) == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


def test_an_unstable_simulation_leaves_no_log():
    pytest.importorskip("mujoco")
    env = get_task("hopper").make_env()
    env.reset(seed=0)
    env.unwrapped.data.qvel[:] = 1e12
    env.step(np.zeros(3))
    env.close()
    assert not list(Path().iterdir())


def test_the_report_of_a_run_has_its_warm_up_seed_and_recommended_policies(tmp_path):
    pytest.importorskip("plotly")
    options = {"methods": ("llm", "random"), "prompt": "props", "seed": 1, "finalists": 0}
    answers = ScriptedClient(lambda request: "params[0]: 0.5, params[1]: 0.5, params[2]: 0.5")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run(config(**options), tmp_path / "out", client=answers)
    page = llmopt.report(tmp_path / "out", tmp_path / "page.html").read_text(encoding="utf-8")
    for row in ("the warm-up</td><td>2<", "seed</td><td>1<", "force&lt;-car_vel</td><td>-1 to 1<"):
        assert row in page
    assert f"random {result.methods[1].heldout:.6g} ± " in page
    assert "by the user" not in page


def test_a_program_that_says_nothing_readable_ends_a_run(capsys):
    program = Path("cats").absolute()
    program.write_text("#!/bin/sh\ncat >/dev/null\necho cats\necho x >> ${0%/*}/log\n")
    program.chmod(0o755)
    model = ["--methods", "llm", "--model", f"command:{program}", "--no-compute", "--out", "r"]
    assert main(["run", "mountaincar", *OPTIONS, *model]) == 2
    assert "could be read yet" in capsys.readouterr().err
    assert len(Path("log").read_text().split()) == 3
