"""Cheating from within: programs that seek their score, functions that record, clocks that jump."""

import itertools
import json
import os
import threading
import time
import tracemalloc

import gymnasium as gym
import numpy as np
import pytest
from stubs import needs_confinement

import llmopt
from llmopt import Float, LLMOptimizer, ScriptedClient
from llmopt.cli import main
from llmopt.code.candidate import Candidate
from llmopt.code.code_optimizer import CodeOptimizer
from llmopt.code.policy import evaluate_policy, policy_function
from llmopt.code.reward.reward import improve_reward, reward_function
from llmopt.policies.linear import LinearPolicy

CHEATS = {
    "sys.argv and paths": "raise RuntimeError(repr(sys.argv) + repr(sys.orig_argv))",
    "environment": "raise RuntimeError(repr(dict(os.environ)))",
    "frames": (
        "f = sys._getframe()\n"
        "    while f: f.f_locals.update(reward=1e9, score=1e9, total=1e9); f = f.f_back"
    ),
    "monkeypatch": (
        "for m in list(sys.modules.values()):\n"
        "        for n in ('score', 'evaluate', 'run_episode', 'mean', 'sum'):\n"
        "            try: setattr(m, n, lambda *a, **k: 1e9)\n"
        "            except Exception: pass"
    ),
    "exit": "raise SystemExit(0)",
    "hard exit": "os._exit(0)",
    "files": "open('search.jsonl', 'a').write('{}')",
    "fork": "os.fork()",
    "huge output": "print('x' * 10**7)",
    "huge error": "raise RuntimeError('9' * 10**7)",
    "huge action": "return [1e308] * 10**5",
    "a million numbers": "return [0.0] * 10**6",
    "a million numbers, later": (
        "controller.n = getattr(controller, 'n', 0) + 1\n"
        "    if controller.n > 5: return [0.0] * 10**6"
    ),
    "other candidates": (
        "raise RuntimeError(repr([o for o in gc.get_objects() if 'reward' in str(o)[:99]]))"
    ),
}


def program(cheat):
    return (
        "```python\nimport numpy as np\nB = __builtins__\n"
        "imp = (B if isinstance(B, dict) else vars(B))['__import__']\n"
        "try: sys, os, gc = imp('sys'), imp('os'), imp('gc')\n"
        "except Exception: sys = os = gc = None\n"
        f"def controller(obs):\n    {cheat}\n    return 0\n```"
    )


@needs_confinement
def test_no_program_can_raise_its_score_nor_tell_of_this_machine(tmp_path, monkeypatch, capsys):
    """One search, in which each answer is another cheat, and each prompt shows what it did."""
    monkeypatch.setenv("PLANTED_KEY", "sk-planted")
    prompts = []

    def answer(request):
        cheat = list(CHEATS)[len(prompts) % len(CHEATS)]
        prompts.append(request.text)
        return program(CHEATS[cheat])

    out = tmp_path / "a-private-folder"
    from llmopt.benchmarks.code import common

    monkeypatch.setattr(common, "get_client", lambda *a, **k: ScriptedClient(answer))
    command = ["code", "cartpole", "--model", "m", "--episodes", "2", "--held-out", "2"]
    command += ["--steps", "6", "--no-gif", "--call-seconds", "5"]
    main([*command, "--out", str(out)])
    assert len(prompts) > len(CHEATS)  # the last cheat is shown, too
    scores = [json.loads(f.read_text())["score"] for f in (out / "candidates").glob("*.json")]
    assert all(s is None or s < 30 for s in scores)
    for text in (*prompts, *(f.read_text(errors="replace") for f in out.rglob("*.json*"))):
        assert "sk-planted" not in text
        assert len(text) < 300_000
    said = "".join(p.partition("RuntimeError")[2] for p in prompts)
    assert os.path.dirname(llmopt.__file__) not in said
    assert "a-private-folder" not in said


LARGE = ("[0.0] * 10**7", "np.zeros(10**7)", "'x' * 10**8", "[[0.0] * 1000] * 10**4")


@needs_confinement
@pytest.mark.parametrize("answer", LARGE)
def test_a_policy_that_answers_too_much_fails_once(answer):
    """Neither the worker converts such an answer nor does this process read it."""
    source = (
        "n = 0\ndef controller(obs):\n    global n\n    n += 1\n"
        f"    return 0 if n < 4 else {answer}\n"
    )
    with gym.make("CartPole-v1") as env, Candidate(source, [policy_function(env)]) as candidate:
        candidate(np.zeros(4))
        tracemalloc.start()
        try:
            score = evaluate_policy(candidate, env, range(10))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert [e.failed_in for e in score.episodes] == [4]
    assert any(word in score.failure for word in ("items", "bytes"))
    assert peak < 100e6


CAR, CAP, STARTS = "MountainCarContinuous-v0", 50, [2, 4]
JUDGED = {
    "the largest number": "return 1e100",
    "calls": "return float(n)",
    "the clock, after the checks": "return 0.0 if n < 40 else time.perf_counter()",
    "state": "kept.append(float(obs[0]))\n    return max(kept)",
    "10 MB printed": "if n % 50 == 0: print('x' * 10**7)\n    return 1.0",
    "frames": (
        "f = sys._getframe()\n"
        "    while f: f.f_locals.update(reward=1e9, total=1e9, value=1e9); f = f.f_back\n"
        "    return 1.0"
    ),
    "modules": (
        "for m in list(sys.modules.values()):\n"
        "        for a in ('fsum', 'fmean', 'judge', 'episode'):\n"
        "            if hasattr(m, a): setattr(m, a, lambda *b, **c: 1e9)\n"
        "    return 1.0"
    ),
}
FAILS = {
    "huge": "return 1e308",
    "infinite": "return float('inf')",
    "no number": "return float('nan')",
    "a whole number of 400 digits": "return 10**400",
    "infinite, later": "return 0.0 if n < 40 else -float('inf')",
    "a component, later": "return 0.0, {'a': 0.0 if n < 40 else float('nan')}",
    "the clock": "return time.perf_counter()",
    "an error, later": "return 1.0 if n < 40 else 1 / 0",
    "ten million numbers": "return [0.0] * 10**7",
    "the environment": (
        "found = [k for k in sys.modules if 'gym' in k or k.startswith('llmopt')]\n"
        "    found += [type(o) for o in gc.get_objects() if 'gym' in str(type(o).__module__)]\n"
        "    f = sys._getframe().f_back\n"
        "    while f: found += {'env', 'true_return', 'total'} & set(f.f_locals); f = f.f_back\n"
        "    raise RuntimeError(f'there are {found}, {[k for k in info if \"rew\" in k]}')"
    ),
}


def searched(body, **options):
    """Return a search whose model gives one reward, and what was said of its step."""
    source = (
        "B = __builtins__\nimp = (B if isinstance(B, dict) else vars(B))['__import__']\n"
        "sys, gc, time = imp('sys'), imp('gc'), imp('time')\nn, kept = 0, []\n"
        f"def reward(obs, action, next_obs, info):\n    global n\n    n += 1\n    {body}\n"
    )
    said = []
    with gym.make(CAR) as env:
        function = reward_function(env)
    client = ScriptedClient(lambda request: f"```python\n{source}```")
    with CodeOptimizer(function, client=client, seed=0, attempts=1) as optimizer:
        improve_reward(
            optimizer, CAR, 1, seeds=STARTS, cap=CAP, on_step=lambda *step: said.append(step),
            **{"episodes": 3, **options},
        )  # fmt: skip
    return optimizer, said[0]


@needs_confinement
@pytest.mark.parametrize("cheat", JUDGED)
def test_a_reward_cannot_change_the_measure_that_it_is_judged_by(cheat):
    optimizer, (_, (training,), (judged,), _) = searched(JUDGED[cheat])
    [trial] = optimizer.trials
    policy = LinearPolicy.for_env(env := gym.make(CAR), clip=True).bind(training.policy)
    totals = []
    for start in STARTS:
        observation, _ = env.reset(seed=start)
        totals.append(0.0)
        for _ in range(CAP):
            observation, own, *_ = env.step(policy(observation))
            totals[-1] += own
    assert judged.returns == pytest.approx(totals)
    assert trial.reward == pytest.approx(sum(totals) / 2)
    assert all(-0.1 * CAP <= own <= 0 for own in training.returns)
    assert len(trial.feedback) < 10_000


@needs_confinement
@pytest.mark.parametrize("cheat", FAILS)
def test_a_reward_that_is_no_reward_fails_in_words(cheat):
    optimizer, (_, trained, judged, words) = searched(FAILS[cheat])
    assert not trained
    assert not judged
    assert [t.reward for t in optimizer.trials] in ([], [None])
    assert 20 < len(words) < 10_000
    if cheat == "the environment":
        assert "there are [], []" in words


@needs_confinement
def test_a_reward_that_changes_its_arguments_changes_nothing_else():
    value = "v = float(next_obs[0] - obs[0])\n    "
    change = "obs[:] = 1e9\n    next_obs[:] = action[:] = 0\n    info['success'] = 1\n    "
    honest, (_, (kept,), _, _) = searched(f"{value}return v")
    cheated, (_, (changed,), _, _) = searched(f"{value}{change}return v")
    assert changed == kept
    assert cheated.trials[0].reward == honest.trials[0].reward


@pytest.mark.parametrize("workers", [1, 4])
def test_a_function_that_records_by_itself(workers):
    """An objective may hold the optimizer's twin or call `minimize` again: nothing hangs."""
    space = {"x": Float(-1, 1)}
    client = ScriptedClient(lambda r: "Start from: new\nProposal: x: 0.5")
    other = LLMOptimizer(space, ScriptedClient([]), warmup=100, seed=1)

    def inner(point):
        other.tell(other.ask(), point["x"])
        llmopt.minimize(lambda p: p["x"] ** 2, space, 2, "network", warmup=2, progress=False)
        return point["x"] ** 2

    result = llmopt.minimize(inner, space, 8, client, warmup=8, n_jobs=workers, progress=False)
    assert len(result.trials) == 8
    assert len(other.trials) == 8


@pytest.mark.parametrize("workers", [1, 4])
def test_a_function_that_records_on_its_own_search(workers, monkeypatch):
    made = []
    kept = LLMOptimizer.__init__
    monkeypatch.setattr(
        LLMOptimizer, "__init__", lambda s, *a, **k: (kept(s, *a, **k), made.append(s))[0]
    )

    def forward(point):
        made[0].tell({"x": point["x"] / 2}, 0.0)  # a point nobody asked for
        made[0].tell(point, 1.0)  # its own, before it returns
        return point["x"] ** 2

    space = {"x": Float(-1, 1)}
    result = llmopt.minimize(
        forward, space, 6, "network", warmup=6, n_jobs=workers, progress=False, seed=0
    )
    assert sum(t.source == "user" for t in result.trials) >= 6
    assert threading.active_count() < 50


def test_jumping_clocks_end_no_search_and_lengthen_no_limit(monkeypatch):
    """The system clock is set back and forth by years: limits follow the monotonic one."""
    jumps = itertools.cycle([0.0, -1e9, 2e9, -5.0, 1e12])
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + next(jumps))
    space = {"x": Float(-1, 1)}
    result = llmopt.minimize(
        lambda p: p["x"] ** 2, space, 12, "network", warmup=4, timeout=3600, progress=False
    )
    assert len(result.trials) == 12
    began = time.monotonic()
    late = llmopt.minimize(
        lambda p: time.sleep(0.05) or p["x"] ** 2, space, 10**4, "network", warmup=10**4,
        timeout=0.3, progress=False,
    )  # fmt: skip
    assert "timeout" in late.stopped
    assert time.monotonic() - began < 60
    assert all(t.seconds >= 0 for t in result.trials)
