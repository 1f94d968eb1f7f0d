from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sys
from collections import Counter
from dataclasses import replace
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from llmopt import ScriptedClient, get_client
from llmopt.benchmarks.engine.lines import LinesFile
from llmopt.benchmarks.methods import METHODS as METHOD_TABLE
from llmopt.benchmarks.methods import model as model_module
from llmopt.benchmarks.report.figures import learning_curve
from llmopt.benchmarks.run import METHODS, RunConfig, RunConfigError, command, contestants, run
from llmopt.benchmarks.run import session as run_module
from llmopt.benchmarks.run.folder import RunFolder
from llmopt.benchmarks.run.published import load_warmup
from llmopt.cli import main
from llmopt.errors import (
    FallbackWarning,
    LLMOptError,
)
from llmopt.policies.episode_seeds import held_out_seeds, selection_seeds, start_seeds
from llmopt.policies.picture import CAPTION

LINE = "llmopt-test/Line-v0"


class Line(gym.Env):
    """Four steps; the return is highest for weights 2 and 1 (a start moves it a little)."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = spaces.Box(-1, 1, (1,), dtype=np.float64)
    action_space = spaces.Box(-9, 9, (1,), dtype=np.float64)
    starts: ClassVar[list[int | None]] = []

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        type(self).starts.append(seed)
        self.left = 4
        self.state = self.np_random.uniform(-1, 1, 1)
        return self.state, {}

    def step(self, action):
        self.left -= 1
        error = float(action[0]) - (2.0 * self.state[0] + 1.0)
        return self.state, -(error**2), self.left == 0, False, {}

    def render(self):
        return np.full((40, 500, 3), 60 * self.left, dtype=np.uint8)


@pytest.fixture(autouse=True)
def no_curves(monkeypatch):
    # Drawing takes most of a small run's time, and one test is about it.
    monkeypatch.setattr(run_module, "learning_curve", lambda *_, **__: b"")


@pytest.fixture(autouse=True)
def line():
    gym.register(LINE, entry_point=Line)
    Line.starts.clear()
    yield
    del gym.registry[LINE]


def answer(request):
    """A model whose answer depends on the request alone, as a seeded one's does."""
    rng = np.random.default_rng(int(request.digest()[:12], 16))
    a, b = rng.uniform(-6, 6, 2).round(1)
    return f"params[0]: {a}, params[1]: {b}\nThe digits {int(rng.integers(1000))} told me so."


def model(script=answer):
    return ScriptedClient(script, name="oracle")


# The published form: raw observations, and the best on the selection starts is chosen.
CONFIG = RunConfig(
    LINE,
    prompt="props",
    iterations=4,
    episodes=2,
    warmup=3,
    heldout=5,
    gif=False,
    seed=1,
    wrappers=(),
    finalists=0,
)
# What the clock says.
TIMES = ("model_seconds", "evaluation_seconds", "cpu_seconds", "seconds")


def facts(path):
    """Everything a run wrote, apart from what the clock says."""
    rows = [json.loads(line) for line in (path / "trials.jsonl").read_text().splitlines()]
    found = {"trials.jsonl": [{k: v for k, v in row.items() if k not in TIMES} for row in rows]}
    summary = json.loads((path / "summary.json").read_text())
    found["summary"] = [{k: v for k, v in row.items() if k not in TIMES} for row in summary]
    for file in sorted(path.rglob("*.txt")):
        text = file.read_text()
        if file.name == "overall_log.txt":
            text = [re.sub(r"(, \d+\.\d{6}){2}", "", row) for row in text.splitlines()]
        if file.name != "summary.txt":
            found[str(file.relative_to(path))] = text
    return found


def check_facts(path, expected):
    """Check that a run that was cut off ended as another; the request that it was in counts."""
    found = facts(path)
    for row, other in zip(found["summary"], expected["summary"], strict=True):
        assert row["requests"] - other["requests"] in (0, 1)
        assert row["tokens"] >= other["tokens"]
        row |= {"requests": other["requests"], "tokens": other["tokens"]}
    assert found == expected


@pytest.fixture
def reference(tmp_path):
    run(CONFIG, tmp_path / "reference", client=model())
    return facts(tmp_path / "reference")


# -- equal terms --------------------------------------------------------------------------


def test_a_run_judges_its_methods_on_equal_terms_and_leaves_the_published_folder(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    path = tmp_path / "r"
    result = run(CONFIG, path, client=model())
    assert [r.method for r in result.methods] == list(METHODS)
    assert {r.episodes for r in result.methods} == {(3 + 4) * 2}
    with RunFolder(path) as folder:
        records, heldout = folder.records, folder.heldout
    assert {m: len(rows) for m, rows in records.items()} == {
        "warmup": 3, "llm": 4, "cma": 4, "random": 4,
    }  # fmt: skip
    # The model and CMA-ES did start from these very points.
    trials = [json.loads(s) for s in (path / "optimizer.jsonl").read_text().splitlines()]
    told = [e["values"] for e in trials if e["event"] == "told"]
    assert told[:3] == [list(r.params) for r in records["warmup"]]
    # Each start is met once for each evaluation, and the held-out ones once for each method.
    seeds = Line.starts
    assert [seeds.count(s) for s in selection_seeds(1, 2)] == [3 + 3 * 4] * 2
    assert [seeds.count(s) for s in held_out_seeds(1, 5)] == [3] * 5
    assert len(seeds) == 2 * 15 + 15
    for row in result.methods:
        best = max([*records["warmup"], *records[row.method]], key=lambda r: r.mean)
        assert (row.selection, row.params) == (best.mean, best.params)
        judged = heldout[row.method]
        assert judged.params == best.params
        assert row.heldout == pytest.approx(np.mean(judged.returns))
        assert len(judged.returns) == 5

    names = {p.name for p in path.iterdir()}
    assert names >= {"trials.jsonl", "config.json", "overall_log.txt", "warmup", "evaluations"}
    assert len(names) < 15
    assert {p.name for p in (path / "evaluations" / "episode_3").iterdir()} == {
        "parameters.txt",
        "parameters_reasoning.txt",
        "training_rollout.txt",
    }
    assert len(list((path / "evaluations").iterdir())) == 4
    rows = np.genfromtxt(path / "overall_log.txt", delimiter=",", skip_header=1)
    expected = [[1, 2, 3, 4], [8, 10, 12, 14], [32, 40, 48, 56], [r.mean for r in records["llm"]]]
    assert rows[:, [0, 3, 4, 5]].T.tolist() == expected
    rollout = (path / "evaluations" / "episode_0" / "training_rollout.txt").read_text()
    assert rollout.count("Total reward:") == 2
    assert rollout.count(" | ") == 2 * 2 + 4 * 2

    text = (path / "config.json").read_text()
    config = json.loads(text)
    assert (config["model"], config["prompt"]) == ("oracle", "props")
    assert config["task"]["parameters"] == 2
    assert {"python", "llmopt", "gymnasium", "numpy"} <= set(config["versions"])
    for secret in ("sk-secret", str(tmp_path), os.path.expanduser("~") + "/"):
        assert secret not in text


def test_sources_tokens_and_explanations_are_recorded(tmp_path):
    answers = ["no numbers here"] * 3 + [answer] * 3
    with pytest.warns(FallbackWarning):
        result = run(CONFIG, tmp_path / "r", client=model(answers))
    with RunFolder(tmp_path / "r") as folder:
        rows = folder.records["llm"]
    assert [r.source for r in rows] == ["fallback", "llm", "llm", "llm"]
    assert "told me so" in rows[1].explanation
    assert result.methods[0].fallback_share == 0.25
    assert result.methods[0].requests == 6
    assert "25.0 %" in result.table
    assert result.methods[1].fallback_share is None


# -- files --------------------------------------------------------------------------------


def test_pictures_are_pictures(tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.setattr(run_module, "learning_curve", learning_curve)
    config = replace(CONFIG, gif=True, methods=("cma", "random"))
    run(config, tmp_path / "r")
    with Image.open(tmp_path / "r" / "learning_curve.png") as curve:
        assert curve.format == "PNG"
        assert curve.width > 600
    with Image.open(tmp_path / "r" / "policy.gif") as gif:
        assert gif.format == "GIF"
        assert gif.size == (320, 26 + CAPTION)
        assert gif.n_frames == 5  # the start and four steps


@pytest.mark.parametrize("best", ["the model", "the baseline"])
def test_the_gif_shows_the_policy_of_the_model(best, tmp_path, monkeypatch, capsys):
    drawn = []

    def draw(task, params, seed, caption=""):
        drawn.append((tuple(params), caption))
        return b"GIF"

    monkeypatch.setattr(run_module, "policy_gif", draw)
    weights = "params[0]: 2, params[1]: 1" if best == "the model" else "params[0]: 6, params[1]: -6"
    client = ScriptedClient(lambda request: weights, name="oracle")
    config = replace(CONFIG, gif=True, warmup=0, iterations=1, methods=("llm", "random"))
    result = run(config, tmp_path / "r", client=client)
    llm, other = result.methods
    assert result.best == (llm if best == "the model" else other)
    assert result.drawn == llm
    assert drawn == [(llm.params, f"{llm.label}: {llm.heldout:.2f} on held-out initial states")]
    monkeypatch.setattr(command, "run", lambda *_, **__: result)
    assert main(["run", LINE]) == 0
    line = next(row for row in capsys.readouterr().out.splitlines() if "policy.gif" in row)
    note = "" if best == "the model" else "; random is ahead on the starts that choose"
    assert line.endswith(f"(the policy of {llm.label}{note})")


@pytest.mark.parametrize("curves", [{}, {"a": []}, {"a": [None, None]}, {"a": [1.0]}])
@pytest.mark.parametrize("warmup", [0, 1])
def test_learning_curve_of_next_to_nothing(curves, warmup):
    picture = learning_curve(curves, warmup=warmup, title="t", episodes=1, heldout={"a": None})
    assert picture.startswith(b"\x89PNG")


# -- the choice of a policy ------------------------------------------------------------------


def test_the_best_few_are_compared_on_fresh_starts_before_one_is_chosen(tmp_path):
    config = replace(CONFIG, finalists=3)
    result = run(config, tmp_path / "r", client=model())
    fresh = start_seeds(1, "final", 4)
    assert not set(fresh) & {*selection_seeds(1, 2), *held_out_seeds(1, 5)}
    assert [Line.starts.count(s) for s in fresh] == [3 * 3] * 4
    assert {r.episodes for r in result.methods} == {7 * 2 + 3 * 4}  # equal, and counted
    assert "chosen on 6" in result.table
    with RunFolder(tmp_path / "r") as folder:
        for row in result.methods:
            records = [*folder.records["warmup"], *folder.records[row.method]]
            finals = folder.finals[row.method]
            best = sorted({r.params: r.mean for r in records}.items(), key=lambda x: -x[1])[:3]
            assert [f.params for f in finals] == [params for params, _ in best]
            means = {
                f.params: np.mean(
                    [*f.returns, *next(r for r in records if r.params == f.params).returns]
                )
                for f in finals
            }
            assert row.params == max(means, key=means.get)
            assert row.final == pytest.approx(max(means.values()))
            assert folder.heldout[row.method].params == row.params


# -- more evaluations ------------------------------------------------------------------------


def test_a_finished_run_is_given_more_evaluations(tmp_path):
    run(CONFIG, tmp_path / "r", client=model())
    longer = replace(CONFIG, iterations=6)
    client = model()
    result = run(longer, tmp_path / "r", client=client, resume=True)
    assert len(client.requests) == 2  # the first four are paid for
    assert {r.episodes for r in result.methods} == {(3 + 6) * 2}
    whole = run(longer, tmp_path / "whole", client=model())
    for a, b in zip(result.methods, whole.methods, strict=True):
        if a.method != "llm":  # the prompt told the model another number of iterations
            assert (a.params, a.heldout) == (b.params, b.heldout)
    stored = json.loads((tmp_path / "r" / "config.json").read_text())
    assert (stored["run"]["iterations"], stored["planned"]) == (6, 4)
    with pytest.raises(LLMOptError, match="6 iterations: give as many or more"):
        run(CONFIG, tmp_path / "r", client=model(), resume=True)


# -- warm-up folders ----------------------------------------------------------------------


def test_a_loaded_warmup_is_not_evaluated_again(tmp_path):
    run(CONFIG, tmp_path / "first", client=model())
    Line.starts.clear()
    config = replace(CONFIG, warmup=str(tmp_path / "first" / "warmup"))
    result = run(config, tmp_path / "second", client=model())
    assert len(Line.starts) == 3 * 4 * 2 + 3 * 5
    assert {r.episodes for r in result.methods} == {8}
    before, after = (
        [(r.params, r.returns) for r in RunFolder(tmp_path / name).records["warmup"]]
        for name in ("first", "second")
    )
    assert before == after
    # The same warm-up, starts and seeds: all that follows is the same too.
    first, second = (
        [(r["method"], r["params"], r["returns"]) for r in facts(tmp_path / n)["trials.jsonl"]]
        for n in ("first", "second")
    )
    assert first == second
    # The points were copied: the first run's folder can go.
    assert load_warmup(tmp_path / "second", 2) == load_warmup(tmp_path / "first", 2)


# -- failures -----------------------------------------------------------------------------


def test_failed_evaluations_are_told_and_counted(tmp_path, monkeypatch):
    step = Line.step

    def faulty(self, action):
        if action[0] > 0:
            raise RuntimeError("burst")
        return step(self, action)

    monkeypatch.setattr(Line, "step", faulty)
    client = model()
    result = run(CONFIG, tmp_path / "r", client=client)
    with RunFolder(tmp_path / "r") as folder:
        rows = [r for rows in folder.records.values() for r in rows]
    failed = [r for r in rows if r.failure]
    assert failed
    assert all("RuntimeError: burst" in r.failure for r in failed)
    assert all(r.mean is not None for r in rows if not r.failure)
    assert "Failed evaluations" in result.table
    text = (tmp_path / "r" / "overall_log.txt").read_text()
    assert ("nan" in text) == any(r.failure for r in rows if r.method == "llm")


@pytest.mark.parametrize("warmup", [8, 0])
def test_an_environment_that_always_fails_ends_the_run_after_five_with_the_reason(
    tmp_path, monkeypatch, warmup
):
    def broken(self, action):
        raise RuntimeError("no such joint")

    monkeypatch.setattr(Line, "step", broken)
    config = replace(CONFIG, warmup=warmup)
    client = model()
    with pytest.raises(LLMOptError, match=f"{LINE}: none of 5 .*RuntimeError: no such joint"):
        run(config, tmp_path / "r", client=client)
    assert len(client.requests) <= (0 if warmup else 5)
    monkeypatch.undo()
    result = run(config, tmp_path / "r", client=client, resume=True)  # the environment is mended
    assert result.best is not None


# -- resuming -----------------------------------------------------------------------------


def test_a_finished_run_is_not_run_again(tmp_path, reference):
    run(CONFIG, tmp_path / "r", client=model())
    Line.starts.clear()
    client = model([])
    result = run(CONFIG, tmp_path / "r", client=client, resume=True)
    assert Line.starts == []
    assert client.requests == []
    assert result.methods[0].requests == 4
    assert facts(tmp_path / "r") == reference


def kill_at(nth, path):
    """Run in a child process that is killed at its nth write; return how the child ended."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    calls = iter(range(1, 10_000))

    def die_at(when):
        if next(calls) == nth:
            when()
            os.kill(os.getpid(), signal.SIGKILL)

    append, replace = LinesFile.append, os.replace

    def dying_append(self, event):
        line = json.dumps(event).encode()
        die_at(lambda: None)
        die_at(lambda: self._file.write(line[: len(line) // 2]))
        append(self, event)

    def dying_replace(source, target):
        die_at(lambda: None)
        replace(source, target)

    try:
        LinesFile.append, os.replace = dying_append, dying_replace
        run(CONFIG, path, client=model())
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.sweep)])
def test_a_kill_at_any_moment_and_a_resume_equal_an_uninterrupted_run(
    tmp_path, monkeypatch, reference, stride
):
    monkeypatch.setattr(sys, "stderr", open(os.devnull, "w"))
    killed = 0
    for nth in range(1, 400, stride):
        path = tmp_path / str(nth)
        status = kill_at(nth, path)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        killed += 1
        run(CONFIG, path, client=model(), resume=True)
        check_facts(path, reference)
    assert killed > 60 / stride  # writes of the run; those of the search have tests of their own


@pytest.mark.embedded
def test_the_embedded_model_gives_the_same_run_when_resumed(tmp_path, monkeypatch, embedded_client):
    # What a loaded model has in its cache must not matter: llama.cpp would round otherwise.
    def one_thread(model):
        return get_client(model, threads=1)  # tests share the cores with other work

    monkeypatch.setattr(contestants, "get_client", one_thread)
    options = {"prompt": "auto", "methods": ("llm",), "iterations": 3}
    config = replace(CONFIG, **options)
    run(config, tmp_path / "whole")
    tell, calls = model_module.LLMOptimizer.tell, itertools.count()

    def interrupted(self, *told, **words):
        if next(calls) == 4:
            raise KeyboardInterrupt
        return tell(self, *told, **words)

    with monkeypatch.context() as patch:
        patch.setattr(model_module.LLMOptimizer, "tell", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "cut")
    result = run(config, tmp_path / "cut", resume=True)
    assert facts(tmp_path / "cut") == facts(tmp_path / "whole")
    assert result.methods[0].label == "smollm2 (columns)"
    assert result.methods[0].fallback_share == 0.0


# -- every method of the benchmark --------------------------------------------------------

SEVERAL = ("llm", "llm-opro", "columns-gaussian", "columns-network", "ars", "cma-bipop")


def test_a_run_takes_every_method_of_the_benchmark(tmp_path):
    config = replace(CONFIG, methods=SEVERAL)
    result = run(config, tmp_path / "r", client=model())
    assert [r.method for r in result.methods] == list(SEVERAL)
    assert [r.label for r in result.methods[:3]] == [
        "oracle (props)",
        "oracle (opro)",
        "columns-gaussian",
    ]
    assert [r.requests for r in result.methods] == [4, 4, 0, 0, 0, 0]
    home = tmp_path / "r" / "baselines"
    assert (
        home / "llm-opro" / "evaluations" / "episode_3" / "parameters_reasoning.txt"
    ).read_text()
    assert (home / "columns-gaussian" / "optimizer.jsonl").exists()
    assert not (home / "ars" / "optimizer.jsonl").exists()
    assert RunConfig(LINE, methods=(*METHOD_TABLE,)).methods == tuple(METHOD_TABLE)


def test_several_methods_with_a_model_go_on_after_any_interruption(tmp_path):
    config = replace(CONFIG, methods=SEVERAL, batch=2)
    run(config, tmp_path / "whole", client=model())
    whole = facts(tmp_path / "whole")
    for sent in (1, 3):

        def interrupt(request):
            raise KeyboardInterrupt

        path = tmp_path / str(sent)
        with pytest.raises(KeyboardInterrupt):
            run(config, path, client=model([answer] * sent * 2 + [interrupt]))
        run(config, path, client=model(), resume=True)
        check_facts(path, whole)


def test_caps_hold_for_all_methods_together(tmp_path):
    options = {"methods": ("llm", "llm-opro"), "max_requests": 6}
    config = replace(CONFIG, **options)
    client = model()
    result = run(config, tmp_path / "r", client=client)
    assert len(client.requests) == 6
    assert sum(r.requests for r in result.methods) == 6
    for r in result.methods:
        capped = len(RunFolder(tmp_path / "r").records[r.method]) < CONFIG.iterations
        assert ("max_requests=" in r.stopped) == capped
        assert r.heldout is not None
    assert "max_requests=" in str(result.capped)
    whole = run(replace(config, max_requests=99), tmp_path / "r", client=client, resume=True)
    assert [r.stopped for r in whole.methods] == ["", ""]


def test_a_cap_within_a_batch_leaves_no_point_unevaluated(tmp_path):
    limits = {"iterations": 12, "batch": 4, "max_requests": 6}
    config = replace(CONFIG, model="network", prompt="auto", methods=("llm",), **limits)
    result = run(config, tmp_path / "r")
    sources = Counter(r.source for r in RunFolder(tmp_path / "r").records["llm"])
    assert result.methods[0].requests == 6 == sources["llm"]
    assert "max_requests=6" in result.methods[0].stopped


# -- wrong calls --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterations": -1}, "iterations=-1: expected a whole number from 0 to 10,000,000"),
        ({"iterations": 10**30}, "expected a whole number from 0 to 10,000,000"),
        ({"heldout": 10**30}, "heldout="),
        ({"warmup": 10**30}, "expected 0 to 10,000,000 points"),
        ({"max_requests": 0}, "max_requests=0: expected 1 or more; to ask no model, omit it"),
        ({"max_tokens": 0}, "max_tokens=0: expected 1 or more"),
        ({"iterations": 2.5}, "iterations=2.5"),
        ({"episodes": 0}, "episodes=0: expected a whole number from 1 to 100,000"),
        ({"seed": -1}, "seed=-1"),
        ({"heldout": 0}, "heldout=0"),
        ({"warmup": -3}, "warmup=-3"),
        ({"methods": ()}, "methods=(): expected one or more, each once, such as llm, cma, random"),
        ({"methods": ("cma", "cma")}, "methods=cma cma: expected one or more, each once"),
        ({"methods": ("random,cma",)}, "without commas: --methods random cma"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(RunConfigError, match=re.escape(message)):
        RunConfig("mountaincar", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "Blackjack-v1", "wrappers": ()}, "supported are Box and Discrete"),
        ({"model": "smolm2"}, "did you mean 'smollm2'"),
        ({"prompt": "probs"}, "'props'"),
        ({"box": (1.0, -1.0)}, "two finite numbers"),
        ({"warmup": "nowhere"}, "neither a number nor a folder"),
        ({"prompt": "props-plus", "description": ""}, "description"),
    ],
)
def test_what_does_not_exist_is_an_error_before_anything_is_written(tmp_path, options, message):
    with pytest.raises(LLMOptError, match=re.escape(message)):
        run(replace(CONFIG, **options), tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_an_environment_of_a_module_of_the_users(tmp_path, monkeypatch, capsys):
    from llmopt.cli import main

    (tmp_path / "my_envs.py").write_text(
        "import gymnasium as gym\n"
        "gym.register('Pole-v7', entry_point='gymnasium.envs.classic_control:CartPoleEnv',\n"
        "             max_episode_steps=9)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    options = "--methods random --iterations 1 --warmup 1 --episodes 1 --no-gif --out".split()
    assert main(["run", "my_envs:Pole-v7", *options, str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    assert "10 weights, each from -2 to 2, of observations and actions, scaled" in said.err
    again = f"run --resume {tmp_path / 'run'} my_envs:Pole-v7 --iterations 5   (resumes this"
    assert again in said.out
    assert "llmopt run MODULE:ENV-ID   (" in said.out
    assert "chat model" not in said.out
    assert main(["run", "no_such_module:Pole-v7", *options, str(tmp_path / "other")]) != 0
    assert "PYTHONPATH=." in capsys.readouterr().err
