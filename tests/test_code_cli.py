"""The command line, with a scripted model in place of a real one."""

import json
import shlex
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import gymnasium as gym
import pytest
from PIL import Image
from stubs import needs_confinement

from llmopt import ClientError, ScriptedClient, get_client
from llmopt.benchmarks.code import common, write_reward
from llmopt.cli import main as cli
from llmopt.code.reward.reward import train_linear
from llmopt.code.secret_seeds import Starts
from llmopt.history import Usage

IDLE = "```python\ndef controller(obs):\n    return [0.0]\n```"
PUMP = "Pump.\n```python\ndef controller(obs):\n    return [150 * obs[1]]\n```"
TAGS = "```python\ndef controller(obs):\n    '<script>alert(1)</script>'\n    return [0.1]\n```"
SHAPED = """```python
def energy(obs):
    return float(obs[1]) ** 2 / 2 + 0.0025 / 3 * math.sin(3 * float(obs[0]))
def reward(obs, action, next_obs, info):
    gain = 1e4 * (energy(next_obs) - energy(obs))
    return gain, {"gain": gain}
```"""


@pytest.fixture(autouse=True)
def short_episodes(monkeypatch):
    """From every start the car of `PUMP` is at the flag in 170 steps; others are given up soon."""
    monkeypatch.setattr(gym.spec("MountainCarContinuous-v0"), "max_episode_steps", 260)


def give(monkeypatch, *replies):
    client = ScriptedClient(list(replies))
    monkeypatch.setattr(common, "get_client", lambda name: client)
    return client


@needs_confinement
class TestCode:
    ARGS = ("code", "mountaincar", "--model", "m", "--steps", "3", "--episodes", "2",
            "--held-out", "4", "--no-gif", "--call-seconds", "60", "--out")  # fmt: skip

    def test_a_whole_run(self, monkeypatch, tmp_path, capsys):
        client = give(monkeypatch, TAGS, "nothing", IDLE, PUMP)
        assert cli([*self.ARGS, str(tmp_path / "run")]) == 0
        out = capsys.readouterr().out
        assert "[3/3] try 3: 9" in out
        assert "success rate 1.0" in out
        folder = tmp_path / "run"
        assert (folder / "candidates" / "003.py").read_text().startswith("def controller")
        third = json.loads((folder / "candidates" / "003.json").read_text())
        assert third["success_rate"] == 1.0
        assert third["parent"] == 2
        assert "reached the flag" in third["feedback"]
        assert json.loads((folder / "held_out.json").read_text())["starts"] == 4
        assert f"report: llmopt report {folder}" in out
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
        (tmp_path / "run" / "candidates" / "001.json").unlink()
        assert cli(["code", "mountaincar", "--resume", "--out", folder]) == 0
        assert "[3/3] try 3" in capsys.readouterr().out
        assert len(list((tmp_path / "run" / "candidates").glob("*.json"))) == 3

    def test_a_numeric_only_model_writes_no_code(self, tmp_path, capsys):
        args = [*self.ARGS, str(tmp_path / "run"), "--model", "network"]
        assert cli(args) == 2
        assert "numeric-only" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()

    def test_what_cannot_be_set_up_leaves_no_run_behind(self, monkeypatch, tmp_path, capsys):
        folder = tmp_path / "run"
        secret = "openai+http://me:hunter2@localhost/v1:x"
        args = [*self.ARGS, str(folder), "--steps", "1"]
        assert cli([*args, "--model", secret]) == 2
        assert "hunter2" not in capsys.readouterr().err
        assert not folder.exists()
        give(monkeypatch, IDLE)
        monkeypatch.chdir(tmp_path)
        assert cli([*self.ARGS[:-1], "--steps", "1"]) == 0
        (folder,) = (tmp_path / "runs").iterdir()
        assert (folder / "candidates" / "001.py").exists()

    def test_ctrl_c_names_the_command_that_goes_on(self, monkeypatch, tmp_path, capsys):
        def interrupt(request):
            raise KeyboardInterrupt

        folder = tmp_path / "my run"
        give(monkeypatch, IDLE, interrupt)
        assert cli([*self.ARGS, str(folder)]) == 130
        out, err = capsys.readouterr()
        assert out.startswith(f"run folder: {folder}\n")
        said = f"to go on: llmopt code mountaincar --resume --out '{folder}'"
        assert said in err
        give(monkeypatch, TAGS, PUMP)
        assert cli(shlex.split(said.partition("llmopt ")[2])) == 0
        assert "[3/3] try 3" in capsys.readouterr().out

    def test_after_a_cap_a_command_is_named_that_raises_it(self, monkeypatch, tmp_path, capsys):
        give(monkeypatch, IDLE, TAGS)
        assert cli([*self.ARGS, str(tmp_path / "run"), "--max-requests", "2"]) == 0
        out, err = capsys.readouterr()
        assert "stopped: " in out
        command = err.partition("to go on: llmopt ")[2]
        assert command.startswith("code mountaincar --resume --max-requests 4 --out ")
        give(monkeypatch, PUMP)
        assert cli(shlex.split(command)) == 0
        assert "[3/3] try 3" in capsys.readouterr().out

    def test_ctrl_c_ends_code_that_does_not_end(self, tmp_path):
        """In a process of its own, as in a terminal."""
        folder = tmp_path / "run"
        endless = "```python\ndef controller(obs):\n    while True: pass\n```"
        program = (
            "import sys\nfrom llmopt import ScriptedClient\n"
            "from llmopt.cli import main\nfrom llmopt.benchmarks.code import common\n"
            f"common.get_client = lambda name: ScriptedClient([{endless!r}])\n"
            f"sys.exit(main({[*self.ARGS, str(folder), '--call-seconds', '3000']!r}))\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program], stderr=subprocess.PIPE, text=True
        ) as process:
            search = folder / "search.jsonl"
            while process.poll() is None and not (
                search.exists() and '"reply"' in search.read_text()
            ):
                time.sleep(0.05)
            time.sleep(0.5)  # the candidate is loaded, or runs; either is interrupted
            process.send_signal(signal.SIGINT)
            err = process.communicate()[1]
        assert process.returncode == 130
        assert "Traceback" not in err
        assert f"--resume --out {folder}" in err

    def test_the_code_to_begin_from_is_scored_first(self, monkeypatch, tmp_path, capsys):
        client = give(monkeypatch, IDLE, PUMP)
        start = tmp_path / "start.py"
        start.write_text("def controller(obs):\n    return [0.05]\n")
        folder = tmp_path / "run"
        args = ["--initial", str(start), "--steps", "2"]
        assert cli([*self.ARGS, str(folder), *args]) == 0
        out = capsys.readouterr().out
        assert "[0/2] the code to begin from: " in out
        assert "[2/2] try 2: 9" in out
        first = json.loads((folder / "candidates" / "000.json").read_text())
        assert first["score"] < 0
        assert f"score {first['score']:.6g}" in client.requests[0].text

    def test_starts_come_from_a_secret_of_the_folder(self, monkeypatch, tmp_path, capsys):
        scores = {}
        recording = tmp_path / "said.jsonl"
        args = ["--steps", "1", "--episodes", "1", "--held-out", "2"]
        for name, more in (
            ("one", ["--record", str(recording)]),
            ("two", []),
            ("three", ["--starts", str(tmp_path / "one" / "starts.json")]),
            ("other", ["--seed", "1"]),
        ):
            give(monkeypatch, PUMP)
            assert cli([*self.ARGS, str(tmp_path / name), *args, *more]) == 0
            scores[name] = json.loads((tmp_path / name / "held_out.json").read_text())
        monkeypatch.setattr(common, "get_client", get_client)
        replay = [*self.ARGS, str(tmp_path / "again"), *args, "--model", f"replay:{recording}"]
        assert cli(replay) == 0
        scores["again"] = json.loads((tmp_path / "again" / "held_out.json").read_text())
        assert scores["one"] == scores["three"] == scores["again"]
        means = {scores[name]["mean return"] for name in ("one", "two", "other")}
        assert len(means) == 3
        secret = json.loads((tmp_path / "one" / "starts.json").read_text())["secret"]
        for file in (tmp_path / "one").rglob("*"):
            if file.is_file() and file.name != "starts.json":
                assert secret not in file.read_text(errors="replace"), file
        capsys.readouterr()
        for more, message in (
            (["--resume", "--starts", "x", "--out", str(tmp_path / "two")], "omit --starts"),
            (["--starts", str(tmp_path / "none"), "--model", "m"], "cannot take the starts"),
        ):
            assert cli(["code", "mountaincar", *more]) == 2
            assert message in capsys.readouterr().err

    def test_to_fail_where_it_is_hard_gains_nothing(self, monkeypatch, tmp_path, capsys):
        with gym.make("MountainCarContinuous-v0") as env:
            hard = float(env.reset(seed=3)[0][0])
        guard = f"    if abs(obs[0] - {hard!r}) < 1e-6:\n        return None\n"
        give(monkeypatch, PUMP.replace("    return", f"{guard}    return"))
        numbered = tmp_path / "starts.json"
        numbered.write_text(json.dumps(Starts(None).to_dict()))
        folder = tmp_path / "run"
        args = [*self.ARGS, str(folder), "--steps", "1", "--starts", str(numbered)]
        assert cli(args) == 0
        held_out = json.loads((folder / "held_out.json").read_text())
        assert held_out["mean return"] is None
        assert held_out["failed starts"] == 1
        assert held_out["success rate"] == 0.75
        assert "At start 2, in step 1" in held_out["failure"]
        assert "failed starts 1" in capsys.readouterr().out

    def test_a_spoilt_folder_is_told(self, monkeypatch, tmp_path, capsys):
        give(monkeypatch, PUMP)
        folder = tmp_path / "run"
        assert cli([*self.ARGS, str(folder)]) == 2  # the script has ended
        config = (folder / "config.json").read_text()
        again = ["code", "mountaincar", "--resume", "--out", str(folder)]
        for text, message in (
            ("[]", "no JSON object"),
            (
                config.replace('"steps": 3', '"steps": "3"'),
                "--steps '3': expected a whole number",
            ),
        ):
            (folder / "config.json").write_text(text)
            assert cli(again) == 2
            assert message in capsys.readouterr().err
        (folder / "config.json").write_text(config)


@needs_confinement
def test_reward(monkeypatch, tmp_path, capsys):
    give(monkeypatch, SHAPED)
    args = ["reward", "mountaincar", "--model", "m", "--steps", "1", "--episodes", "2",
            "--training", "2", "--held-out", "3", "--out", str(tmp_path / "run")]  # fmt: skip
    assert cli(args) == 0
    assert "held out: starts 3" in capsys.readouterr().out
    first = json.loads((tmp_path / "run" / "candidates" / "001.json").read_text())
    assert [len(policy) for policy in first["policies"]] == [3, 3, 3]
    assert first["score"] == first["mean_return"]
    assert len(first["samples"]) == 3
    assert len(first["components"][0]["gain"]) == 8
    assert "standard error of 3 trainings" in first["feedback"]
    assert len(first["curves"]) == 3
    with Image.open(tmp_path / "run" / "best.gif") as picture:
        assert picture.n_frames > 5


REWARD = ("reward", "mountaincar", "--model", "m", "--episodes", "2", "--training", "2",
          "--held-out", "3", "--trainings", "1", "--no-gif", "--call-seconds", "60")  # fmt: skip


@needs_confinement
def test_options_reach_model_and_training(monkeypatch, tmp_path):
    trained = []

    def train(*args, **options):
        trained.append(options)
        return train_linear(*args, **options)

    monkeypatch.setattr(write_reward, "train_linear", train)
    (tmp_path / "start.py").write_text("def reward(*_):\n    return 0.125\n")
    client = give(monkeypatch, "no", SHAPED)
    args = (
        "--steps 1 --description Think! --temperature 0.25 --max-output-tokens 77 --seed 3 "
        f"--initial {tmp_path / 'start.py'} --attempts 2 --trainings 2 --out {tmp_path / 'run'}"
    )
    assert cli([*REWARD, *args.split()]) == 0
    first, second = client.requests
    assert "Think!" in first.text
    assert "0.125" in first.text
    assert (first.temperature, first.max_tokens) == (0.25, 77)
    assert len(second.messages) == 3
    # The code to begin from, too, and twice each.
    assert trained == [{"episodes": 2, "seed": k, "cap": 260} for k in (3, 4)] * 2
    start = json.loads((tmp_path / "run" / "search.jsonl").read_text().splitlines()[0])
    assert start["identity"]["seed"] == 3


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
    assert "[2/2] try 2" in capsys.readouterr().out


def test_what_cannot_be_trained_is_found_before_a_model_is_asked(monkeypatch, tmp_path, capsys):
    client = give(monkeypatch, SHAPED)
    assert cli(["reward", "Blackjack-v1", "--model", "m", "--out", str(tmp_path / "run")]) == 2
    assert "linear policy" in capsys.readouterr().err
    assert client.requests == []
    assert not list(tmp_path.iterdir())


@needs_confinement
def test_nothing_that_code_says_moves_the_terminal(monkeypatch, tmp_path, capsys):
    """Held out and in the picture, where it fails for the first time."""
    with gym.make("MountainCarContinuous-v0") as env:
        hard = float(env.reset(seed=1)[0][0])
    evil = "\\x1b]0;owned\\x07\\x9b2J\\u202e"
    guard = f"    if abs(obs[0] - {hard!r}) < 1e-6:\n        raise ValueError('{evil}')\n"
    give(monkeypatch, PUMP.replace("    return", f"{guard}    print('{evil}')\n    return"))
    numbered = tmp_path / "starts.json"
    numbered.write_text(json.dumps(Starts(None).to_dict()))
    args = ["--model", "m", "--steps", "1", "--episodes", "1", "--held-out", "1"]
    out = ["--starts", str(numbered), "--out", str(tmp_path / "run")]
    assert cli(["code", "mountaincar", *args, *out]) == 0
    said = capsys.readouterr()
    assert "\\x1b]0;owned" in said.out
    assert not set("\x1b\x07\x9b\u202e") & set(said.out + said.err)
    for file in (tmp_path / "run").rglob("*.*"):
        if file.suffix in (".json", ".jsonl", ".html"):
            assert not set("\x1b\x07\x9b\u202e") & set(file.read_text("utf-8")), file


def test_a_success_rate_that_nobody_knows_is_not_printed(capsys, tmp_path):
    run = SimpleNamespace(path=tmp_path, write_held_out=lambda facts: None)
    usage = Usage(requests=1, prompt_tokens=1, completion_tokens=1)
    optimizer = SimpleNamespace(trials=[], usage=usage)
    common.finish(run, optimizer, {"starts": 3, "mean return": 1.5, "success rate": None})
    assert "held out: starts 3, mean return 1.5\n" in capsys.readouterr().out
