"""The command line, with a scripted model in place of a real one."""

import json

import pytest

from llmopt import ClientError, ScriptedClient
from llmopt.cli import main as cli
from llmopt.code import optimizer as optimizer_module
from llmopt.code.candidate import CodeTrial
from llmopt.code.confine import support
from llmopt.code.page import write_report
from llmopt.code.runfolder import CodeRun
from llmopt.code.tasks import find_task
from llmopt.errors import LLMOptError

needs_confinement = pytest.mark.skipif(
    bool(support().problems), reason="; ".join(support().problems) or "-"
)
IDLE = "```python\ndef controller(obs):\n    return [0.0]\n```"
PUMP = "Pump.\n```python\ndef controller(obs):\n    return [11.5 * obs[1]]\n```"
TAGS = "```python\ndef controller(obs):\n    '<script>alert(1)</script>'\n    return [0.1]\n```"
SHAPED = """```python
def energy(obs):
    return float(obs[1]) ** 2 / 2 + 0.0025 / 3 * math.sin(3 * float(obs[0]))
def reward(obs, action, next_obs, info):
    gain = 1e4 * (energy(next_obs) - energy(obs))
    return gain, {"gain": gain}
```"""


def give(monkeypatch, *replies):
    client = ScriptedClient(list(replies))
    monkeypatch.setattr(optimizer_module, "get_client", lambda name: client)
    return client


@needs_confinement
class TestCode:
    ARGS = ("code", "mountaincar", "--model", "m", "--steps", "3", "--episodes", "2",
            "--held-out", "4", "--out")  # fmt: skip

    def test_a_whole_run(self, monkeypatch, tmp_path, capsys):
        client = give(monkeypatch, TAGS, "nothing", IDLE, PUMP)
        assert cli([*self.ARGS, str(tmp_path / "run")]) == 0
        out = capsys.readouterr().out
        assert "[3/3] candidate 2: 9" in out
        assert "success rate 1.0" in out
        folder = tmp_path / "run"
        assert (folder / "candidates" / "002.py").read_text().startswith("def controller")
        third = json.loads((folder / "candidates" / "002.json").read_text())
        assert third["success_rate"] == 1.0
        assert third["parent"] == 1
        assert "reached the flag" in third["feedback"]
        assert json.loads((folder / "held_out.json").read_text())["starts"] == 4
        page = (folder / "report.html").read_text()
        for part in ("+    return [11.5 * obs[1]]", "-    return [0.0]", "no code", "Pump."):
            assert part.replace("+", "+") in page
        assert "<script>" not in page
        assert "&lt;script&gt;" in page
        assert "flag at position 0.45" in client.requests[0].text

    def test_a_run_is_resumed(self, monkeypatch, tmp_path, capsys):
        give(monkeypatch, IDLE, ClientError("the connection broke"))
        folder = str(tmp_path / "run")
        assert cli([*self.ARGS, folder]) == 2
        assert "connection broke" in capsys.readouterr().err
        give(monkeypatch, TAGS, PUMP)
        assert cli([*self.ARGS, folder]) == 2
        assert "--resume" in capsys.readouterr().err
        assert cli(["code", "mountaincar", "--resume", "--out", folder, "--seed", "5"]) == 2
        assert "seed" in capsys.readouterr().err
        (tmp_path / "run" / "candidates" / "000.json").unlink()
        assert cli(["code", "mountaincar", "--resume", "--out", folder]) == 0
        assert "[3/3] candidate 2" in capsys.readouterr().out
        assert len(list((tmp_path / "run" / "candidates").glob("*.json"))) == 3

    def test_a_model_that_never_delivers(self, monkeypatch, tmp_path, capsys):
        give(monkeypatch, *["nothing"] * 30)
        assert cli([*self.ARGS, str(tmp_path / "run"), "--repairs", "0"]) == 0
        out = capsys.readouterr().out
        assert out.count("] no usable code") == 3
        assert "no candidate was scored" in out
        assert (tmp_path / "run" / "report.html").exists()


@needs_confinement
def test_reward(monkeypatch, tmp_path, capsys):
    give(monkeypatch, SHAPED)
    args = ["reward", "mountaincar", "--model", "m", "--steps", "1", "--episodes", "2",
            "--training", "10", "--held-out", "3", "--out", str(tmp_path / "run")]  # fmt: skip
    assert cli(args) == 0
    assert "held out: starts 3" in capsys.readouterr().out
    first = json.loads((tmp_path / "run" / "candidates" / "000.json").read_text())
    assert len(first["policy"]) == 3
    assert len(first["components"]["gain"]) == 10
    assert "trained under this reward" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("code", "NoSuch-v0"), "unknown task 'NoSuch-v0'"),
        (("code", "mountaincar", "--steps", "0"), "--steps 0"),
        (("code", "mountaincar", "--resume"), "--out"),
        (("reward", "metaworld:reach-v3"), "Gymnasium"),
    ],
)
def test_errors_are_one_line(args, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli(list(args)) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_the_page_is_made_from_the_folder_alone(tmp_path):
    run = CodeRun(tmp_path / "run", {"command": "code", "task": "t", "model": "m"})
    for number, score in enumerate([1.0, None, 0.5, 3.0]):
        run.write_candidate(CodeTrial(number, f"x = {number}\n", None, score, "words"), {})
    page = write_report(run.path).read_text()
    assert page.count("<h3>") == 1
    assert "0 (1) to 3 (3)" in page
    assert "-x = 0" in page
    with pytest.raises(LLMOptError, match="no run"):
        write_report(tmp_path)


def test_a_score_prefers_success_to_return():
    from llmopt.code.policy import Episode, PolicyScore
    from llmopt.code.tasks import CodeTask

    task = CodeTask("t", "t", "", "", lambda held_out: None, measure="success")
    lucky = PolicyScore((Episode(0, 1.0, 1, True), Episode(1, 1.0, 1, False)))
    rich = PolicyScore((Episode(0, 1e9, 1, False), Episode(1, 1e9, 1, False)))
    assert task.score(lucky) > task.score(rich)
    assert find_task("mountaincar").score(rich) == 1e9
