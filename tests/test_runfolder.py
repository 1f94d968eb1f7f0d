from __future__ import annotations

import os

import numpy as np
import pytest

from llmopt.benchmarks.engine.contest import step_line
from llmopt.benchmarks.engine.records import Record
from llmopt.benchmarks.run.folder import RunFolder, read_config
from llmopt.benchmarks.run.published import (
    OVERALL_HEADER,
    OverallLog,
    load_warmup,
    rollout_text,
)
from llmopt.errors import LLMOptError, StorageError
from llmopt.policies.evaluation import Evaluation
from llmopt.policies.finalists import choose

CONFIG = {"run": {"task": "cartpole"}}


def record(index=0, method="llm", returns=(1.0, 2.0), **facts):
    lengths = facts.pop("lengths", None) or tuple(int(r) for r in returns)
    return Record(method, index, (0.5, -1.0, 2.25), tuple(returns), lengths, **facts)


# -- records ------------------------------------------------------------------------------


def test_records_come_back_as_they_were(tmp_path):
    rows = [
        record(0, "warmup", source="warmup"),
        record(0, explanation="it's\n“steep”", prompt_tokens=1.5, model_seconds=0.1 + 0.2),
        record(1, returns=(), failure="episode 0: boom"),
    ]
    with RunFolder.create(tmp_path / "run", CONFIG) as folder:
        for row in rows:
            folder.add(row)
        folder.add(record(1, round="heldout", feedback="It fell."))
        folder.add(record(0, round="final"))
    with RunFolder(tmp_path / "run") as folder:
        assert folder.records == {"warmup": rows[:1], "llm": rows[1:]}
        assert folder.heldout == {"llm": record(1, round="heldout", feedback="It fell.")}
        assert folder.finals == {"llm": [record(0, round="final")]}
        assert folder.config == CONFIG


def test_a_missing_line_is_noticed(tmp_path):
    with RunFolder.create(tmp_path, CONFIG) as folder:
        for i in range(3):
            folder.add(record(i))
    file = tmp_path / "trials.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text(lines[0] + lines[2])
    with pytest.raises(StorageError, match=r"point 2 of llm follows 1"):
        RunFolder(tmp_path)


def test_a_run_is_begun_in_an_empty_folder_only(tmp_path):
    RunFolder.create(tmp_path / "run", CONFIG).close()
    with pytest.raises(StorageError, match="already holds a run: give --resume"):
        RunFolder.create(tmp_path / "run", CONFIG)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StorageError, match="files of something else"):
        RunFolder.create(tmp_path, CONFIG)
    assert sorted(os.listdir(tmp_path)) == ["run", "thesis.tex"]


def test_two_processes_cannot_write_to_one_run(tmp_path):
    with RunFolder.create(tmp_path, CONFIG), pytest.raises(StorageError, match="in use"):
        RunFolder(tmp_path)


@pytest.mark.parametrize("content", [None, "{", "[]", '{"a": 1}'])
def test_a_folder_without_a_config_is_no_run(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(StorageError, match=r"config\.json"):
        read_config(tmp_path)


def test_the_choice_of_a_policy():
    def outcome(*returns, failure=""):
        return Evaluation(returns, (1,) * len(returns), failure)

    points = [(0.0,), (1.0,), (2.0,), (1.0,), (4.0,)]
    rows = [outcome(), outcome(3.0), outcome(3.0), outcome(5.0), outcome(9.0, failure="no")]
    assert choose(points, rows[:3], 0, lambda i: pytest.fail("nothing is run"))[0] == 1
    assert choose(points[:1], rows[:1], 0, outcome)[0] is None
    assert choose(points[:1], rows[:1], 3, outcome) == (None, [])
    # The lucky one falls back; a point that was tried twice is one finalist.
    fresh = {3: outcome(1.0, 1.0), 2: outcome(3.0, 3.6), 1: outcome(9.9)}
    best, finals = choose(points, rows, 2, fresh.__getitem__)
    assert best == 2
    assert [(f.index, f.mean) for f in finals] == [
        (3, pytest.approx(7 / 3)),
        (2, pytest.approx(3.2)),
    ]
    # A policy that fails on a fresh start is not chosen, unless all do.
    fresh[2] = outcome(3.0, failure="it broke")
    assert choose(points, rows, 2, fresh.__getitem__)[0] == 3
    fresh[3] = outcome(failure="it broke")
    assert choose(points, rows, 2, fresh.__getitem__)[0] == 3


# -- the published layout -----------------------------------------------------------------


def published_reader(path):
    """Read a rollout file as the published code's buffer does."""
    parameters, rewards = [], []
    lines = path.read_text().splitlines()
    for line in lines:
        if "parameter ends" in line:
            break
        parameters.append([float(x) for x in line.split(",")])
    for line in lines:
        if "Total reward" in line:
            rewards.append(float(line.split()[-1]))
    return np.array(parameters).reshape(-1), np.mean(rewards)


def test_overall_log_has_the_published_columns(tmp_path):
    warmup = [record(0, "warmup", cpu_seconds=1.0)]
    rows = [
        record(0, returns=(4.0, 6.0), cpu_seconds=0.5, model_seconds=2.0),
        record(1, returns=(), failure="x", cpu_seconds=0.25, model_seconds=1.0),
    ]
    log = OverallLog(tmp_path / "overall_log.txt", warmup, rows)
    log.add(record(2, returns=(0.1,), lengths=(7,)))
    text = (tmp_path / "overall_log.txt").read_text()
    assert text.splitlines() == [
        OVERALL_HEADER,
        "1, 1.500000, 2.000000, 4, 13, 5.0",
        "2, 1.750000, 3.000000, 4, 13, nan",
        "3, 1.750000, 3.000000, 5, 20, 0.1",
    ]
    assert OVERALL_HEADER == (
        "Iteration, CPU Time, API Time, Total Episodes, Total Steps, Total Reward"
    )
    table = np.genfromtxt(tmp_path / "overall_log.txt", delimiter=",", names=True)
    assert table["Total_Reward"][0] == 5.0


def test_rollout_file_is_read_by_the_published_reader(tmp_path):
    path = tmp_path / "training_rollout.txt"
    steps = [step_line(np.array([0.5, -1], dtype=np.float32), np.array([0.25]), -0.125)]
    path.write_text(rollout_text(record(), steps))
    params, reward = published_reader(path)
    np.testing.assert_array_equal(params, [0.5, -1.0, 2.25])
    assert reward == 1.5
    assert path.read_text() == (
        "0.5, -1.0, 2.25\nparameter ends\n\nstate | action | reward\n"
        "[0.5 -1] | [0.25] | -0.125\nTotal reward: 1.0\n"
        "0.5, -1.0, 2.25\nparameter ends\n\nstate | action | reward\nTotal reward: 2.0\n"
    )


# -- loading a warm-up folder -------------------------------------------------------------


def put(folder, text, number=0):
    folder.mkdir(exist_ok=True)
    (folder / f"warmup_rollout_{number}.txt").write_text(text)
    return folder


@pytest.mark.parametrize(
    "tail", ["", "Total reward: nan\n", "Total reward: 1\nTotal reward: inf\n"]
)
def test_points_without_a_usable_return_are_to_be_evaluated(tmp_path, tail):
    put(tmp_path, f"1, 2\nparameter ends\n{tail}")
    assert load_warmup(tmp_path, 2)[0].returns == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1, 2, 3\nparameter ends\n", "got 3 parameters, expected 2 finite numbers"),
        ("1, 2\n", "no end mark"),
        ("1, nan\nparameter ends\n", "finite"),
        ("1, x\nparameter ends\n", "comma-separated numbers"),
        ("1, 2\nparameter ends\nTotal reward: much\n", "and a number in each line"),
    ],
)
def test_a_file_that_does_not_fit_is_named(tmp_path, text, message):
    put(tmp_path, text, 7)
    with pytest.raises(LLMOptError, match=rf"warmup_rollout_7\.txt.*{message}"):
        load_warmup(tmp_path, 2)
