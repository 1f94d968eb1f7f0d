from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import llmopt
from llmopt.cli import main

QUICK = ["--methods", "random", "--iterations", "3", "--episodes", "1", "--warmup", "2"]
QUICK += ["--heldout", "2", "--no-gif"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def errors(capsys):
    """The lines on standard error that are no progress bar."""
    text = capsys.readouterr().err.replace("\r", "\n")
    return [s for s in text.splitlines() if s.startswith("llmopt") or "Traceback" in s]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(capsys, arguments):
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "run " in out
    assert "CMA-ES" in out


def test_the_help_of_every_command_and_the_name_of_a_task_need_no_extra():
    extras = ("cma", "matplotlib", "mcp", "mujoco", "openai", "optuna", "pandas", "pygame", "scipy")
    code = (
        f"import sys; sys.modules |= dict.fromkeys({extras})\n"
        "from llmopt.cli import COMMANDS, main\n"
        "print([name for name in COMMANDS if main([name, '--help'])])\n"
        "main(['run', 'swimer']); main(['run', 'swimer', '--methods', 'random'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("\n[]\n")
    assert done.stderr.count("did you mean 'swimmer'") == 2


def test_each_module_is_imported_from_the_package_by_its_name():
    folder = Path(llmopt.__file__).parent
    names = sorted(
        {p.stem for p in folder.glob("[a-z]*.py")}
        | {p.parent.name for p in folder.glob("*/__init__.py")}
    )
    code = "\n".join(
        f"from llmopt import {name}; assert {name}.__name__ == 'llmopt.{name}'" for name in names
    )
    assert "from llmopt import space;" in code
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "cartpole", *QUICK, "--out", "/proc/run"], "/proc/run"),
        (["run", "cartpole", *QUICK, "--out", "file"], "file"),
        (["run", "cartpole", *QUICK, "--resume", "--out", "other"], "not a run folder"),
        (["run", "cartpole", *QUICK, "--out", "other"], "files of something else"),
    ],
)
def test_wrong_arguments_give_one_clear_line(tmp_path, capsys, arguments, message):
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("llmopt")
    assert not (tmp_path / "runs").exists()


def test_a_run_prints_a_table_and_where_its_files_are(tmp_path, capsys):
    assert main(["run", "cartpole", *QUICK]) == 0
    out, err = capsys.readouterr()
    folder = "runs/cartpole-baselines-none-seed0"
    assert f"writing to {folder}" in err
    assert "5/5" in err.replace("\r", "\n")  # the bar: two warm-up points and three of random's
    # Five evaluations of one episode, and five finalists on two fresh starts each.
    assert re.search(r"^random +[\d.]+ +[\d.]+ ± [\d.]+ +15 ", out, re.MULTILINE)
    for name in ("learning_curve.png", "trials.jsonl"):
        assert f"{folder}/{name}" in out
        assert (tmp_path / folder / name).stat().st_size > 0


def test_resume_needs_only_the_task_and_the_folder(tmp_path, capsys):
    assert main(["run", "cartpole", *QUICK, "--out", "r", "--seed", "5"]) == 0
    before = (tmp_path / "r" / "trials.jsonl").read_text()
    assert main(["run", "cartpole", "--resume", "--out", "r"]) == 0
    assert (tmp_path / "r" / "trials.jsonl").read_text() == before
    capsys.readouterr()
    assert main(["run", "cartpole", "--resume", "--out", "r", "--seed", "6"]) == 2
    assert errors(capsys) == [
        "llmopt: error: r holds a run with another configuration: seed (there 5, now 6). Give "
        "the same options to resume it, or another folder to start a new run"
    ]
    assert main(["run", "cartpole", *QUICK, "--out", "r"]) == 2
    assert "give --resume" in errors(capsys)[0]


def test_a_run_is_named_by_its_folder_alone_and_extended(tmp_path, capsys):
    assert main(["run", "cartpole", *QUICK, "--out", "r"]) == 0
    assert main(["run", "--resume", "r", "--iterations", "5"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "r" / "trials.jsonl").open()]
    assert sum((row["method"], row["round"]) == ("random", "search") for row in rows) == 5
    assert main(["run", "--resume", "r", "--iterations", "4"]) == 2
    assert "holds a run of 5 iterations: give as many or more" in errors(capsys)[-1]
    assert main(["run", "--resume", "r", "--out", "other"]) == 2
    assert "give the folder once" in errors(capsys)[-1]


def test_ctrl_c_in_a_process_keeps_everything_and_says_how_to_go_on(tmp_path):
    command = [sys.executable, "-m", "llmopt", "run", "cartpole", "--methods", "random"]
    command += ["--iterations", "100000", "--out", "r"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    trials = tmp_path / "r" / "trials.jsonl"
    while not (trials.exists() and trials.read_text().count("\n") > 25):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert err.rstrip().endswith("resume with: llmopt run cartpole --resume --out r")
    rows = [json.loads(line) for line in trials.read_text().splitlines()]
    assert [r["index"] for r in rows if r["method"] == "random"] == list(range(len(rows) - 20))


def test_a_reader_that_goes_away_is_no_traceback():
    # The pipe has no reader before the first byte is written.
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "llmopt", "run", "--help"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
    )
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 141
