"""The command line, with a scripted model in place of a real one."""

import json
import sys
from types import SimpleNamespace

import pytest

from llmopt import ClientError, ScriptedClient
from llmopt.cli import main as cli
from llmopt.code import optimizer as optimizer_module
from llmopt.code.candidate import CodeTrial
from llmopt.code.commands import reward as run_reward
from llmopt.code.commands.common import say_step
from llmopt.code.commands.page import write_report
from llmopt.code.commands.runfolder import CodeRun
from llmopt.code.reward.reward import train_linear
from llmopt.code.sandbox.confine import support
from llmopt.code.tasks.table import find_task
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
        args = ["code", "mountaincar", "--resume", "--out", folder]
        assert cli([*args, "--episodes", "9"]) == 2  # scores would not compare
        assert "another episodes (2)" in capsys.readouterr().err
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

    def test_what_cannot_be_set_up_leaves_no_run_behind(self, monkeypatch, tmp_path, capsys):
        folder = tmp_path / "run"
        secret = "openai+http://me:hunter2@localhost/v1:x"
        args = ["code", "mountaincar", "--steps", "1", "--out", str(folder)]
        assert cli([*args, "--model", secret]) == 2
        assert "hunter2" not in capsys.readouterr().err
        assert [p for p in folder.rglob("*") if p.is_file()] == []
        give(monkeypatch, IDLE)
        assert cli([*args, "--model", "m"]) == 0

    def test_the_page_is_there_before_the_end(self, monkeypatch, tmp_path):
        give(monkeypatch, PUMP, ClientError("broke"))
        assert cli([*self.ARGS, str(tmp_path / "run")]) == 2
        assert "11.5 * obs[1]" in (tmp_path / "run" / "report.html").read_text()


@needs_confinement
def test_reward(monkeypatch, tmp_path, capsys):
    give(monkeypatch, SHAPED)
    args = ["reward", "mountaincar", "--model", "m", "--steps", "1", "--episodes", "2",
            "--training", "10", "--held-out", "3", "--out", str(tmp_path / "run")]  # fmt: skip
    assert cli(args) == 0
    assert "held out: starts 3" in capsys.readouterr().out
    first = json.loads((tmp_path / "run" / "candidates" / "000.json").read_text())
    assert len(first["policy"]) == 3
    assert first["score"] == first["success_rate"]
    assert len(first["components"]["gain"]) == 10
    assert "trained under this reward" in (tmp_path / "run" / "report.html").read_text()


REWARD = ("reward", "mountaincar", "--model", "m", "--episodes", "2", "--training", "10",
          "--held-out", "3")  # fmt: skip


@needs_confinement
def test_options_reach_model_and_training(monkeypatch, tmp_path):
    trained = []

    def train(*args, **options):
        trained.append(options)
        return train_linear(*args, **options)

    monkeypatch.setattr(run_reward, "train_linear", train)
    (tmp_path / "start.py").write_text("def reward(*_):\n    return 0.125\n")
    client = give(monkeypatch, "no", SHAPED)
    args = (
        "--steps 1 --hint Think! --answer json --temperature 0.25 --max-output-tokens 77 --seed 3 "
        f"--initial {tmp_path / 'start.py'} --repairs 1 --out {tmp_path / 'run'}"
    )
    assert cli([*REWARD, *args.split()]) == 0
    first, second = client.requests
    assert "Think!" in first.text
    assert "0.125" in first.text
    assert "JSON object" in first.text
    assert (first.temperature, first.max_tokens) == (0.25, 77)
    assert len(second.messages) == 3
    assert trained == [{"episodes": 10, "seed": 3}]
    start = json.loads((tmp_path / "run" / "search.jsonl").read_text().splitlines()[0])
    assert start["seed"] == "3"


@needs_confinement
def test_a_reward_run_ends_in_order_when_a_cap_is_reached(monkeypatch, tmp_path, capsys):
    client = give(monkeypatch, SHAPED, "never asked for")
    out = str(tmp_path / "run")
    assert cli([*REWARD, "--steps", "2", "--max-requests", "1", "--out", out]) == 0
    said = capsys.readouterr().out
    assert "stopped: 1 requests were sent" in said
    assert "held out: starts 3" in said
    assert len(client.requests) == 1
    give(monkeypatch, SHAPED.replace("return gain,", "return 2 * gain,"))
    assert cli(["reward", "mountaincar", "--resume", "--max-requests", "9", "--out", out]) == 0
    assert "[2/2] candidate 1" in capsys.readouterr().out


@needs_confinement
def test_a_code_run_ends_in_order_when_a_cap_is_reached(monkeypatch, tmp_path, capsys):
    client = give(monkeypatch, IDLE, "never asked for")
    out = tmp_path / "run"
    options = ["--model", "m", "--steps", "3", "--episodes", "1", "--held-out", "2"]
    assert cli(["code", "mountaincar", *options, "--max-requests", "1", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "stopped: 1 requests were sent" in said
    assert "held out: starts 2" in said
    assert len(client.requests) == 1
    assert (out / "held_out.json").is_file()


@needs_confinement
def test_a_resumed_reward_run_asks_for_nothing_it_has(monkeypatch, tmp_path, capsys):
    """Killed after the score was stored, and before the policy was."""
    out = tmp_path / "run"
    give(monkeypatch, SHAPED)
    assert cli([*REWARD, "--steps", "1", "--out", str(out)]) == 0
    before = json.loads((out / "held_out.json").read_text())
    for file in (*(out / "candidates").iterdir(), out / "held_out.json", out / "report.html"):
        file.unlink()
    client = give(monkeypatch)
    assert cli(["reward", "mountaincar", "--resume", "--out", str(out)]) == 0
    assert client.requests == []
    assert json.loads((out / "held_out.json").read_text()) == before
    assert (out / "candidates" / "000.py").read_text().startswith("def energy")
    assert (out / "report.html").exists()


def test_what_cannot_be_trained_is_found_before_a_model_is_asked(monkeypatch, tmp_path, capsys):
    client = give(monkeypatch, SHAPED)
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)  # as if it were not installed
    for k, (args, message) in enumerate(
        [
            (("mountaincar", "--trainer", "PPO"), 'pip install "llmopt[sb3]"'),
            (("Blackjack-v1",), "linear policy"),
        ]
    ):
        assert cli(["reward", *args, "--model", "m", "--out", str(tmp_path / str(k))]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert len(err.strip().splitlines()) == 1
    assert client.requests == []
    assert not list(tmp_path.rglob("*.json*"))


@needs_confinement
def test_reward_by_stable_baselines3(monkeypatch, tmp_path, capsys):
    pytest.importorskip("stable_baselines3")
    client = give(monkeypatch, SHAPED)
    out = tmp_path / "run"
    args = ["--steps", "1", "--training", "3", "--seed", "1"]
    assert cli([*REWARD, *args, "--trainer", "DQN", "--out", str(out)]) == 2
    assert "take one of PPO, A2C, SAC, TD3" in capsys.readouterr().err
    assert client.requests == []
    assert cli([*REWARD, *args, "--trainer", "PPO", "--out", str(out)]) == 0
    assert "[1/1] candidate 0" in capsys.readouterr().out
    first = json.loads((out / "candidates" / "000.json").read_text())
    assert first["policy"] == "PPO-000.zip"
    assert (out / "PPO-000.zip").exists()
    assert set(first["components"]) == {"total", "gain"}
    assert json.loads((out / "config.json").read_text())["trainer"] == "PPO"
    # The policy is found in the folder, wherever that was moved to, and not trained again.
    (out / "held_out.json").unlink()
    moved = out.rename(tmp_path / "moved")
    stamp = (moved / "PPO-000.zip").stat().st_mtime_ns
    assert cli(["reward", "mountaincar", "--resume", "--out", str(moved)]) == 0
    assert json.loads((moved / "held_out.json").read_text())["starts"] == 3
    assert (moved / "PPO-000.zip").stat().st_mtime_ns == stamp


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("code", "mountaincar", "--repairs", "-1"), "--repairs -1"),
        (("code", "mountaincar", "--call-seconds", "nan"), "--call-seconds nan"),
        (("code", "mountaincar", "--temperature", "inf"), "--temperature inf"),
        (("reward", "mountaincar", "--seed", "-1"), "--seed -1"),
        (("code", "mountaincar", "--max-requests", "0"), "--max-requests 0"),
        (("code", "mountaincar", "--strategy", "climb"), "hill-climb"),
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
    run.begin()
    for number, score in enumerate([1.0, None, 0.5, 3.0]):
        run.write_candidate(CodeTrial(number, f"x = {number}\n", None, score, "words"), {})
    page = write_report(run.path).read_text()
    assert page.count("<h3>") == 1
    assert "0 (1) to 3 (3)" in page
    assert "-x = 0" in page
    assert "<th>return</th>" not in page  # no candidate has one
    assert 'name="viewport"' in page


def test_a_step_is_printed_as_plain_text(tmp_path, capsys):
    """A model's words may hold what a terminal would obey, and what it cannot show."""
    run = CodeRun(tmp_path / "run", {"command": "code", "task": "t", "model": "m", "steps": 2})
    run.begin()
    search = SimpleNamespace(trials=[], failures=1, best=None)
    say_step(run, search, -1, "\x1b[2J red\nand \ud800 é")
    assert capsys.readouterr().out == "[1/2] no usable code: ?[2J red and ? é\n"


def test_the_page_shows_what_was_measured(tmp_path):
    run = CodeRun(tmp_path / "run", {"command": "code", "task": "t", "model": "m", "hint": ""})
    run.begin()
    assert "No candidate was scored yet" in write_report(run.path).read_text()
    measures = {"mean_return": 12.5, "success_rate": 0.25}
    run.write_candidate(CodeTrial(0, "x = 0\n", None, 0.25), measures)
    run.write_candidate(CodeTrial(1, "x = 1\n", None, 0.5), {})  # a kill came before the rest
    page = write_report(run.path).read_text()
    assert '<td class="fit">12.5</td>' in page
    assert '<td class="fit">25%</td>' in page
    assert '<td class="fit">hint</td>' not in page


def test_the_page_needs_a_run(tmp_path):
    with pytest.raises(LLMOptError, match="no run"):
        write_report(tmp_path)


def test_a_score_prefers_success_to_return():
    from llmopt.code.policy import Episode, PolicyScore
    from llmopt.code.tasks.table import CodeTask

    task = CodeTask("t", "t", "", "", lambda held_out: None, measure="success")
    lucky = PolicyScore((Episode(0, 1.0, 1, True), Episode(1, 1.0, 1, False)))
    rich = PolicyScore((Episode(0, 1e9, 1, False), Episode(1, 1e9, 1, False)))
    assert task.score(lucky) > task.score(rich)
    assert find_task("mountaincar").score(rich) == 1e9
