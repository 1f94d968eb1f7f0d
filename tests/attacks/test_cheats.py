"""Cheating from within: programs that seek their score, functions that record, clocks that jump."""

import itertools
import json
import os
import threading
import time

import pytest
from stubs import needs_confinement

import llmopt
from llmopt import Float, LLMOptimizer, ScriptedClient
from llmopt.cli import main

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
    "huge output": "print('x' * 10**8)",
    "huge error": "raise RuntimeError('9' * 10**8)",
    "huge action": "return [1e308] * 10**5",
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
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_program_cannot_raise_its_score_nor_tell_of_this_machine(
    cheat, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("PLANTED_KEY", "sk-planted")
    prompts = []

    def answer(request):
        prompts.append(request.text)
        return program(CHEATS[cheat])

    out = tmp_path / "a-private-folder"
    from llmopt.benchmarks.code import common

    monkeypatch.setattr(common, "get_client", lambda *a, **k: ScriptedClient(answer))
    command = [
        "code",
        "cartpole",
        "--model",
        "m",
        "--steps",
        "2",
        "--episodes",
        "2",
        "--held-out",
        "2",
    ]
    main([*command, "--no-gif", "--call-seconds", "5", "--out", str(out)])
    assert len(prompts) >= 2
    scores = [json.loads(f.read_text())["score"] for f in (out / "candidates").glob("*.json")]
    assert all(s is None or s < 30 for s in scores)
    for text in (*prompts, *(f.read_text(errors="replace") for f in out.rglob("*.json*"))):
        assert "sk-planted" not in text
        assert len(text) < 300_000
    said = "".join(p.partition("RuntimeError")[2] for p in prompts)
    assert os.path.dirname(llmopt.__file__) not in said
    assert "a-private-folder" not in said


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
