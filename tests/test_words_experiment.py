"""The experiment on words: recordings play again, systems behave, arms tell what they say."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from llmopt import LLMOptError, ReplayClient, ScriptedClient
from llmopt.benchmarks.engine.cell import read_lines
from llmopt.benchmarks.experiments import command, recordings, words
from llmopt.benchmarks.experiments.systems import Cascade, HeavyMountainCar, TwoZones
from llmopt.benchmarks.experiments.unseen import BusLine, Fermenter
from llmopt.cli import main

RECORDINGS = Path(words.__file__).parents[1] / "recordings"


@pytest.mark.parametrize("task", ["zones", "mountaincar"])
def test_a_recorded_search_of_a_strong_model_is_evaluated_again(task):
    lines = read_lines(words.RESULTS)
    told = next(x for x in lines if (x["task"], x["method"], x["seed"]) == (task, "words", 0))
    client = command.load(f"replay:{RECORDINGS / f'{task}-words-0.jsonl'}")
    with warnings.catch_warnings():  # the prompt has changed since, the search has not
        warnings.simplefilter("error", RuntimeWarning)
        found = words.run_model(task, "words", client, 0, told["evaluations"])
    np.testing.assert_allclose(found["curve"], told["curve"], rtol=1e-6)
    assert found["held_out"] == pytest.approx(told["held_out"], rel=1e-6)
    assert found["requests"] == told["requests"]


def test_every_recording_is_in_the_index_and_can_be_read():
    text = (RECORDINGS / "INDEX.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`([a-z]+-[a-z0-9-]+)`", text))
    for search, seeds in re.findall(r"^\| ([a-z-]+) \| ([\d, ]+) \|$", text, re.M):
        listed |= {f"{search}-{seed}" for seed in seeds.split(", ")}
    assert listed == set(recordings.names())
    assert len(listed) >= 205
    for name in ("hopper-words-3", "code-reach", "hpo-own-svm-names-0"):
        ReplayClient(recordings.recording(name)).check_ready()
    with pytest.raises(LLMOptError, match="hopper-words-3"):
        recordings.recording("hoper-words-3")


@pytest.mark.parametrize("system", [TwoZones, Cascade, HeavyMountainCar, Fermenter, BusLine])
def test_a_system_is_a_function_of_its_seed_and_ends(system):
    returns = []
    for _ in range(2):
        env, total, steps = system(), 0.0, 0
        env.reset(seed=3)
        ended = False
        while not ended:
            seen, reward, terminated, truncated, _ = env.step(np.full(env.action_space.shape, 0.4))
            assert np.all(np.isfinite(seen))
            total, steps, ended = total + reward, steps + 1, terminated or truncated
        returns.append((total, steps))
    assert returns[0] == returns[1]


ARMS = {
    "none": (False, False, False),
    "names": (True, False, False),
    "docs": (True, True, False),
    "words": (True, True, True),
    "shuffled": (True, True, True),
}


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_tells_what_it_says(arm):
    named, documented, seen = ARMS[arm]
    client = ScriptedClient(["Proposal: stop"])
    with words.make_search("zones", arm, client, 0) as search:
        search.run(30)
    (request,) = client.requests
    assert ("zone A" in request.text) == named
    assert ("delay of three steps" in request.text) == documented
    assert ("Mean return" in request.text) == seen


def test_a_recorded_run_replays_without_a_key(tmp_path, capsys):
    """The requests are the very ones that were recorded: a changed prompt is refused."""
    recording = RECORDINGS / "run-mountaincar.jsonl"
    command = ["run", "mountaincar", "--model", f"replay:{recording}", "--methods", "llm"]
    command += ["--iterations", "20", "--warmup", "5", "--episodes", "5", "--no-gif"]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    output = capsys.readouterr()
    assert "98.08 95.21 ±" in " ".join(output.out.split())
    assert "not among" not in output.err
    assert main([*command, "--seed", "1", "--out", str(tmp_path / "other")]) != 0
    assert "is not among its" in capsys.readouterr().err


@pytest.fixture
def small(monkeypatch):
    """Two starts, four held-out starts and three warm-up points."""
    for name, value in {"STARTS": 2, "HELD_OUT": 4, "WARMUP": 3}.items():
        monkeypatch.setattr(words, name, value)


def drawn(request):
    rng = np.random.default_rng(len(request.text))
    values = ", ".join(f"{v:.3f}" for v in rng.uniform(-1, 1, 10))
    return f"Start from: new\nProposal:\n{values}"


def test_the_shuffled_arm_tells_outcomes_of_other_points(small):
    with words.make_search("zones", "shuffled", "smollm2", 0) as search:
        seen = []
        for k in range(8):
            values = search.optimizer.space.sample(np.random.default_rng(k))
            params = search.optimizer.space.unflatten(values)
            seen.append(search.measure(params))
            search._tell(params, *seen[-1])
        told = [(t.reward, t.feedback) for t in search.optimizer.trials]
    true = [(outcome.mean, text) for outcome, text in seen]
    assert all(pair in true[: k + 1] for k, pair in enumerate(told))
    assert sum(a != b for a, b in zip(told, true, strict=True)) >= 4
