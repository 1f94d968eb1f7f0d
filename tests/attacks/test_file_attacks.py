"""Changed and cut files: the same data, or an error in llmopt's words that says how to go on.

The gate takes a hundred flips of each file, and `.ci/sweeps` takes ``LLMOPT_FLIPS``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from llmopt import Float, LLMOptimizer, ScriptedClient
from llmopt.benchmarks.run.config import RunConfig
from llmopt.benchmarks.run.folder import RunFolder, read_config
from llmopt.cli import main
from llmopt.client.folder import next_request
from llmopt.client.local.gguf import read_header
from llmopt.client.prices import get_price
from llmopt.client.recordings import RecordClient, ReplayClient
from llmopt.code.program import Program, ProgramSpace
from llmopt.errors import LLMOptError
from llmopt.events import Asked, Called, Replied, Started, Told
from llmopt.history import Proposal
from llmopt.journal import FORMAT, Journal
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.saved import load_policy, save_policy
from llmopt.policies.scaling import Scaling
from llmopt.prompt import get_prompt
from llmopt.state import State, proposal_to_json

FLIPS = int(os.environ.get("LLMOPT_FLIPS", "100"))
SPACE = {"x": Float(-5, 5)}


def answer(request):
    return f"x: {np.random.default_rng(request.seed).uniform(-5, 5):.6f}\nCloser."


def run_file(folder, *, save, durable=True):
    path = folder / "run.jsonl"
    with_storage = {"storage": path, "durable": durable}
    optimizer = LLMOptimizer(SPACE, ScriptedClient(answer), "props", seed=1, warmup=1,
                             **with_storage)  # fmt: skip
    for _ in range(5):
        point = optimizer.ask()
        optimizer.tell(point, point["x"], feedback="good")
    optimizer.ask(2)
    optimizer.close()
    if save:
        path = folder / "saved.json"
        optimizer.save(path)

    def read(path):
        again = LLMOptimizer.load(path, ScriptedClient([]))
        state = again._journal.state.rng
        return again.trials, again.pending, again.usage, again.directions, again.seed, state

    return path, read


def journal(folder):
    path, space = folder / "code.jsonl", ProgramSpace()
    book = Journal(path, State(space), durable=True)
    book.begin(Started(FORMAT, {"functions": [], "seed": 3}))
    for number in range(4):
        reply = {"completions": [{"text": f"def f{number}", "finish_reason": "stop"}]}
        book.append(Called(f"d{number}", number))
        book.append(Replied(f"d{number}", reply))
        program = Program(number, f"def f(x): return {number}", f"{number}")
        proposal = Proposal(program.values, "llm")
        book.append(Asked([proposal_to_json(proposal, space)], 1))
        book.append(Told(space.to_json_values(program.values), [0.5 + number]))
    book.close()

    def read(path):
        state = Journal.read(path, State(space)).state
        return [space.trial(t) for t in state.trials], state.usage

    return path, read


def attack(path: Path, read, *, numbered: bool) -> dict[str, int]:
    """Flip bits and cut; return how often it was read as it was, or refused."""
    whole = path.read_bytes()
    expected = read(path)
    rng = np.random.default_rng(0)
    seen = {"same": 0, "refused": 0, "shorter": 0, "changed": 0}

    def look(data: bytes, cut: bool, where: str) -> None:
        path.write_bytes(data)
        try:
            found = read(path)
        except LLMOptError as error:
            text = str(error)
            assert path.name in text or str(path.parent) in text, (where, text)
            if numbered and not cut:
                words = ("line", "event", "format", "not hold", "missing", "own template")
                assert any(word in text for word in words), (where, text)
            seen["refused"] += 1
            return
        same = found == expected
        # What is cut off is gone: the run goes on from there.
        seen["same" if same else "shorter" if cut else "changed"] += 1

    for _ in range(FLIPS):
        data = bytearray(whole)
        at, bit = int(rng.integers(len(data) - 1)), int(rng.integers(8))
        data[at] ^= 1 << bit
        look(bytes(data), False, f"bit {bit} of byte {at}")
    for size in sorted(set(rng.integers(0, len(whole), FLIPS // 3).tolist())):
        look(whole[:size], True, f"cut to {size}")
    path.write_bytes(whole)
    return seen


HOSTILE = [
    *(10**400, -(10**400), 10**30, 2**63, -1, 0.5, math.nan, math.inf, True, None),
    *([], {}, [[]], [None], {"a": 1}, {"x": []}, [10**400], "", "x", "nan", "\ud800", "9" * 400),
]


def places(value, at=(), most=None):
    """Yield where each value within a value is, of a list at its first `most` places."""
    yield at
    inner = value if isinstance(value, dict | list) else ()
    for key in inner if isinstance(value, dict) else range(len(inner))[:most]:
        yield from places(value[key], (*at, key), most)


def put(value, at, new):
    """Return a value with another one in a place of it; `HOSTILE` itself stands for none."""
    if not at:
        return new
    value = json.loads(json.dumps(value))
    inner = value
    for key in at[:-1]:
        inner = inner[key]
    if new is HOSTILE:
        del inner[at[-1]]
    else:
        inner[at[-1]] = new
    return value


def of_lines(whole: bytes) -> bool:
    """Whether each line of a file is a JSON value."""
    with contextlib.suppress(ValueError):
        return all(json.loads(line) is not None for line in whole.splitlines())
    return False


def replace_values(path: Path, read) -> None:
    """Put values of other kinds into a file: read, or refused."""
    whole = path.read_bytes()
    read(path)
    lines = whole.splitlines() if of_lines(whole) else [whole]
    rng = np.random.default_rng(0)
    every = [
        (number, at, new)
        for number, line in enumerate(lines)
        for at in places(json.loads(line))
        for new in [*HOSTILE, *[HOSTILE] * bool(at)]
    ]
    for pick in rng.permutation(len(every))[:FLIPS]:
        number, at, new = every[pick]
        changed = json.dumps(put(json.loads(lines[number]), at, new)).encode()
        data = [*lines[:number], changed, *lines[number + 1 :]]
        path.write_bytes(b"\n".join(data) + b"\n")
        with contextlib.suppress(LLMOptError):
            read(path)
    path.write_bytes(whole)


@pytest.mark.parametrize("kind", ["storage", "saved", "journal", "recording", "policy", "run"])
def test_a_value_of_another_kind_is_refused_in_our_words(tmp_path, kind):
    if kind in ("storage", "saved"):
        path, _ = run_file(tmp_path, save=kind == "saved")

        def read(path):
            search = LLMOptimizer.load(path, ScriptedClient(answer))
            assert repr(search)
            search.ask()
    elif kind == "journal":
        path, read = journal(tmp_path)
    elif kind == "recording":
        path = recording(tmp_path)

        def read(path):
            search = LLMOptimizer(SPACE, ReplayClient(path), "props", seed=1, warmup=1)
            search.tell(search.ask(), 1.0)
            search.ask()
    elif kind == "policy":
        path, read = policy_file(tmp_path), load_policy
    else:
        read = made_run(tmp_path)
        path = tmp_path / "r" / "trials.jsonl"
        replace_values(tmp_path / "r" / "config.json", read)
    replace_values(path, read)


def made_run(folder):
    from llmopt.benchmarks.run import run

    config = RunConfig("cartpole", iterations=2, episodes=1, warmup=1, heldout=1, gif=False,
                       methods=("random",))  # fmt: skip
    run(config, folder / "r")

    def read(path):
        RunConfig.from_dict(read_config(folder / "r")["run"])
        with RunFolder(folder / "r") as opened:
            return opened.records, opened.heldout

    return read


def recording(folder):
    path = folder / "r.jsonl"
    client = RecordClient(ScriptedClient(answer), path)
    optimizer = LLMOptimizer(SPACE, client, "props", seed=1, warmup=1)
    for _ in range(4):
        optimizer.tell(optimizer.ask(), 1.0)
    return path


def policy_file(folder):
    path = folder / "policy.json"
    with gym.make("InvertedPendulum-v5") as env:
        spaces = env.observation_space, env.action_space
    scaling = Scaling(*spaces, ((0.0,) * 4, (1.0,) * 4))
    form = LinearPolicy.for_env(scaling.env)
    bound = form.bind(np.linspace(-1, 1, form.n_parameters))
    save_policy(replace(bound, scaling=scaling), path)
    return path


@pytest.mark.parametrize(
    "kind", ["storage", "saved", "plain", "journal", "recording", "policy", "run"]
)
def test_a_flipped_bit_or_a_cut_is_noticed(tmp_path, kind):
    if kind == "run":
        read = made_run(tmp_path)
        for name in ("config.json", "trials.jsonl"):
            attack(tmp_path / "r" / name, read, numbered=name == "trials.jsonl")
        return
    if kind == "recording":
        path = recording(tmp_path)

        def read(path):
            return [reply for *_, reply in ReplayClient(path)._read().exchanges]
    elif kind == "policy":
        path = policy_file(tmp_path)

        def read(path):
            return load_policy(path).parameters.tolist()
    elif kind == "journal":
        path, read = journal(tmp_path)
    else:
        path, read = run_file(tmp_path, save=kind == "saved", durable=kind != "plain")
    seen = attack(path, read, numbered=kind not in ("journal", "policy"))
    assert seen["refused"] > FLIPS // 2 or kind in ("recording", "policy")


READERS = {
    "replay": lambda p: ReplayClient(p).check_ready(),
    "load": lambda p: LLMOptimizer.load(p, ScriptedClient([])),
    "storage": lambda p: LLMOptimizer(SPACE, ScriptedClient([]), storage=p),
    "policy": load_policy,
    "template": lambda p: get_prompt(p),
    "gguf": lambda p: read_header(p),
    "report": lambda p: main(["report", str(p), "--out", str(p.with_name("page.html"))]),
    "config": lambda p: main(["run", "cartpole", "--config", str(p)]),
    "code folder": lambda p: main(["report", str(p.parent), "--out", str(p.with_name("o.html"))]),
    "run folder": lambda p: RunFolder(p.parent),
    "next": lambda p: next_request(p.parent),
    "ask": lambda p: main(["ask", str(p)]),
    "prices": lambda p: get_price("openai:mine"),
}
"""Whatever reads a file that somebody names, and what the file is called there."""
NAMES = {
    "template": "t.j2",
    "gguf": "m.gguf",
    "config": "c.toml",
    "code folder": "search.jsonl",
    "run folder": "config.json",
    "next": "0001.request.md",
}


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_hangs_no_reader(tmp_path, reader, kind, monkeypatch, capsys):
    name = NAMES.get(reader, "f.jsonl")
    path = tmp_path / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    if reader == "prices":
        monkeypatch.setenv("LLMOPT_PRICES", str(path))
    try:
        assert READERS[reader](path) == 2  # of a command, which has printed it
    except LLMOptError as error:
        said = str(error)
    else:
        said = capsys.readouterr().err
    words = ("pipe", "device", "folder", "link", "directory", "file")
    assert any(word in said.replace(str(tmp_path), "") for word in words), said
