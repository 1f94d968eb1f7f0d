"""Python that a model runs before it writes code: `CodeOptimizer(compute=True)`."""

import hashlib
import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stubs import needs_confinement

from llmopt import RecordClient, ReplayClient, ScriptedClient
from llmopt.benchmarks.code import common
from llmopt.cli import main
from llmopt.code import (
    CodeOptimizer,
    Function,
    Output,
    improve,
    improve_reward,
    policy_function,
    reward_function,
)
from llmopt.code.answer import read_answer
from llmopt.code.policy import CodeEpisode, PolicyScore
from llmopt.code.reward.reward import Training, training_data
from llmopt.code.secret_seeds import Starts
from llmopt.errors import ParseError
from llmopt.lab import blocks
from llmopt.lab.laboratory import Laboratory
from llmopt.policies.episode import episode
from llmopt.policies.steps import StepData
from llmopt.prompt.python_block import Computed
from llmopt.sandbox import confine
from llmopt.sandbox.failure import NoCandidateError, SandboxUnavailableError

pytestmark = needs_confinement
SAMPLES = ((np.array([1.0, 2.0]),), (np.array([0.0, -1.0]),))
FUNCTION = Function("f(x)", "Return one number.", Output(), SAMPLES)


def code(body):
    return f"Better.\n```python\ndef f(x):\n    {body}\n```"


def run(block):
    return f"Let me see.\n```run\n{block}\n```"


def make(*replies, **options):
    client = replies[0] if hasattr(replies[0], "complete") else ScriptedClient(list(replies))
    options = {"seed": 1, "compute": True, "compute_workers": 0, **options}
    return CodeOptimizer(FUNCTION, client=client, **options), client


def advance(optimizer, tries):
    for number in range(len(optimizer.trials) + 1, tries + 1):
        candidate = optimizer.ask()
        data = {"seen": [np.arange(4.0).reshape(2, 2) + number]}
        optimizer.tell(candidate, float(candidate(np.ones(2))), f"try {number}", data=data)
    return [trial.source for trial in optimizer.trials]


def test_a_block_finds_the_tries_and_their_data_and_can_call_their_code():
    block = (
        "print(scores[1:], feedback, data[2]['seen'][0][0])\n"
        "draft = 'import math\\ndef f(x): return math.pi'\n"
        "first, draft = candidate(sources[1]), candidate(draft)\n"
        "print([first(row) for row in data[1]['seen'][0]], round(draft(0), 3), draft.f(0) > 3)\n"
        "c = candidate('n = 0\\ndef f(x):\\n    global n\\n    n += 1\\n    return n')\n"
        "c(0)\nc(0)\nprint('state', c.__globals__['n'])"
    )
    optimizer, client = make(
        code("return x.sum()"), code("return 3.0"), run(block), run("print(first(2 * np.ones(2)))"),
        code("return 2 * x.sum()"),
    )  # fmt: skip
    with optimizer:
        assert advance(optimizer, 3)[-1].endswith("return 2 * x.sum()\n")
    first, _, third, fourth, fifth = (request.text for request in client.requests)
    assert "#How to compute\nIn place of the code you may answer with a block" in first
    assert "data of each try" not in first
    assert "data of each try, such as data[2]: seen: 1 arrays 2×2" in third
    assert "You computed" not in third
    assert "It printed:\n> [2. 3.] ['', 'try 1', 'try 2'] [2. 3.]\n> [" in fourth
    assert "] 3.142 True\n" in fourth
    assert "c.__globals__ is the dict of its global names" in first
    assert "> state 2\n" in fourth
    assert "19 more blocks" in fourth
    assert "Earlier block, no def; it printed:\n> [2. 3.]" in fifth
    assert "It printed:\n> 4.0" in fifth or "It printed:\n> np.float64(4.0)" in fifth
    assert client.requests[3].messages[0].role == "user"
    assert len(client.requests[4].messages) == 1
    usage = optimizer.usage
    assert (usage.blocks, usage.requests, usage.proposals) == (2, 5, {"llm": 3})
    assert usage.rejected == {}


def test_of_an_earlier_block_both_ends_are_shown():
    brief = Computed("x = 1", "first 0.125\n" + "y" * 5000 + "\nlast").brief
    assert "> first 0.125\n" in brief
    assert "characters not shown" in brief
    assert brief.endswith("> last")
    assert len(brief) < 2000


def test_variables_and_programs_survive_to_the_next_ask_and_process(tmp_path):
    options = {"storage": tmp_path / "s.jsonl"}
    script = [code("return 1.0"), run("g = candidate(sources[1])\nw = 2"), code("return 2.0")]
    with make(*script, **options)[0] as optimizer:
        advance(optimizer, 2)
    again, client = make(run("print(g(0) + w)"), code("return 5.0"), **options)
    with again:
        advance(again, 3)
    assert "Your variables of before: g (Candidate), w (2)" in client.requests[0].text
    assert "It printed:\n> 3.0" in client.requests[1].text


def test_a_failed_check_can_be_looked_into():
    optimizer, client = make(
        code("return x.foo"), run("print(dir(np.ones(2))[0])"), code("return 1.0")
    )
    with optimizer:
        assert optimizer.ask()(np.ones(2)) == 1.0
    second, third = client.requests[1:]
    assert "To run Python before that, give it between ```run and ``` alone." in second.text
    assert [m.role for m in third.messages] == ["user", "assistant", "user"]
    assert third.messages[:2] == second.messages[:2]
    assert "AttributeError" in third.messages[2].content
    assert "It printed:\n> T\n" in third.messages[2].content


PROPOSED = "def f(x):\n    return 1\n"


@pytest.mark.parametrize(
    ("text", "block", "source"),
    [
        (run("print(1)"), "print(1)", ""),
        (run("def f(x):\n    return 1\nprint(f(1))"), "def f(x):\n    return 1\nprint(f(1))", ""),
        (code("return 1"), "", PROPOSED),
        ("```Python Run\nprint(1)\n```\nthen\n~~~run\nprint(2)\n~~~", "print(1)\nprint(2)", ""),
        ("```py run\r\nprint(1)\r\n", "print(1)", ""),
        # with the code, a block is not run, and is no part of the code
        (run("def g(): pass") + "\n" + code("return 1"), "", PROPOSED),
        (code("return 1") + "\n" + run("print(f(1))"), "", PROPOSED),
        (f"<think>{run('print(1)')}</think>{code('return 1')}", "", PROPOSED),
        (f"<think>{code('return 1')}</think>{run('print(1)')}", "print(1)", ""),
        (run("print('''```python\ndef f(x): return 2\n''')"), "print('''```python\ndef f(x): "
         "return 2\n''')", ""),
        (run("{1: 2}"), "{1: 2}", ""),
        ("```runner\nprint(1)\n```", "", None),
        ("```run\n\n```", "", None),
        (run("print('\x1b\ud800')"), r"print('\x1b\ud800')", ""),
        (run("1\n" * 50_000), ("1\n" * 20_000), ""),
    ],
)  # fmt: skip
def test_a_block_to_run_is_never_taken_for_code_nor_code_for_a_block(text, block, source):
    if source is None:
        with pytest.raises(ParseError, match="no code"):
            read_answer(text, computes=True)
        return
    answer = read_answer(text, computes=True)
    assert (answer.run, answer.source) == (block, source)


def test_it_is_off_by_default_and_answers_are_read_as_before():
    optimizer, client = make("```run\ndef f(x):\n    return 1.0\n```", compute=False)
    with optimizer:
        assert optimizer.ask()(np.ones(2)) == 1.0
    with CodeOptimizer(FUNCTION, client=ScriptedClient([]), seed=1) as usual:
        assert not usual.computes
    text = client.requests[0].text
    assert "compute" not in text
    assert "```run" not in text
    assert optimizer.usage.blocks == 0


def test_a_recording_is_played_again_without_running_a_block(tmp_path, monkeypatch):
    script = ScriptedClient([run("print(np.random.rand())"), code("return 1.0")])
    with make(RecordClient(script, tmp_path / "r.jsonl"))[0] as optimizer:
        wanted = advance(optimizer, 1)
    replay = ReplayClient(tmp_path / "r.jsonl")
    assert replay.computes
    optimizer, _ = make(replay, compute="auto")
    monkeypatch.setattr(Laboratory, "run", pytest.fail)
    with optimizer:
        assert advance(optimizer, 1) == wanted
    with make(
        RecordClient(ScriptedClient([code("return 1.0")]), tmp_path / "q.jsonl"), compute=False
    )[0] as usual:
        usual.ask()
    assert not ReplayClient(tmp_path / "q.jsonl").computes


def test_what_cannot_compute_is_said_before_anything_is_paid_for(monkeypatch):
    with pytest.raises(ValueError, match="compute_seconds=0"):
        make("", compute_seconds=0)
    none = confine.Support(0, False, ("seccomp needs Linux, this is darwin",))
    monkeypatch.setattr(blocks, "support", lambda: none)
    with pytest.raises(SandboxUnavailableError, match=r"compute=True: .* leave compute out"):
        make("", allow_unsandboxed=True)
    assert not make("", compute="auto", allow_unsandboxed=True)[0].computes


def test_what_a_block_prints_is_cut_to_a_short_context():
    client = ScriptedClient([run("print('z' * 9000)"), code("return 1.0")])
    client.context_tokens = 4000
    optimizer, _ = make(client, max_output_tokens=500)
    with optimizer:
        optimizer.ask()
    assert 0 < client.requests[1].text.count("z") < 6000


def test_no_usable_code_ends_the_ask_and_keeps_its_blocks():
    optimizer, client = make(run("print(7)"), "no", "no", code("return 1.0"), attempts=2)
    with optimizer:
        with pytest.raises(NoCandidateError):
            optimizer.ask()
        optimizer.ask()
    assert "It printed:\n> 7" in client.requests[2].text  # the second attempt
    assert "It printed" not in client.requests[3].text
    assert optimizer.usage.blocks == 1


class Drift(gym.Env):
    """Three steps; what is observed drifts by a random number, and the reward is the action."""

    observation_space = spaces.Box(-9, 9, (2,))
    action_space = spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.k, self.seen = 0, self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.seen, {}

    def step(self, action):
        self.k, self.seen = self.k + 1, self.seen + np.float32(self.np_random.uniform())
        info = {"k": self.k, "reward_own": 0.25, "success": self.k == 3}
        return self.seen, float(action[0]), self.k == 3, False, info


def policy(body):
    return f"```python\ndef controller(obs):\n    return [{body}]\n```"


def test_the_steps_of_a_policy_as_code_are_found(tmp_path):
    look = run(
        "d = data[1]\nagain = candidate(sources[1])\n"
        "print([(o.shape, a.shape) for o, a in zip(d['observations'], d['actions'])], d['ended'])\n"
        "print(all(again(o)[0] == a[0] for j in (0, 1)\n"
        "          for o, a in zip(d['observations'][j], d['actions'][j])))\n"
        "print(sorted(d), d['info']['k'][1], sum(map(sum, d['rewards'])) / 2 - scores[1])"
    )
    client = ScriptedClient([policy("0.5 * obs[0]"), look, policy("1.0")])
    options = {"compute": True, "compute_workers": 0, "storage": tmp_path / "s.jsonl", "seed": 0}
    with CodeOptimizer(policy_function(Drift()), client=client, **options) as optimizer:
        improve(optimizer, Drift(), [3, 5], 2)
        assert len(optimizer.tools) == 3
        assert list(optimizer.trials[1].data) == list(optimizer.trials[0].data)
    printed = client.requests[2].text
    assert "> [((4, 2), (3, 1)), ((4, 2), (3, 1))] ['terminated' 'terminated']\n> True\n" in printed
    assert "> ['actions', 'ended', 'info', 'observations', 'rewards'] [1 2 3] 0.0" in printed
    assert 'data[k]["observations"][j]: steps + 1 rows, what try k got' in client.requests[0].text
    assert "observations: 2 arrays 4×2" in client.requests[1].text


def test_no_steps_are_kept_for_a_model_that_does_not_compute():
    client = ScriptedClient([policy("1.0")])
    with CodeOptimizer(policy_function(Drift()), client=client, seed=0) as optimizer:
        improve(optimizer, Drift(), [3], 1)
        assert not optimizer.trials[0].data
        assert optimizer.tools == ()


HUNT = """
import gc, hashlib, os, re, sys
held = {"mine": 1234567890123456789}
found, texts = set(), []
def look(value):
    if isinstance(value, int) and value.bit_length() < 200:
        found.add(str(value))
    elif isinstance(value, (str, bytes)):
        texts.append(value if isinstance(value, str) else value.decode("latin-1"))
for thing in gc.get_objects():
    for part in gc.get_referents(thing):
        look(part)
for text in texts:
    found.update(re.findall(r"\\d{4,}|[0-9a-f]{30,32}", text))
digests = {hashlib.sha256(text.encode()).hexdigest() for text in found}
known = [k for k, wanted in enumerate(WANTED) if wanted in digests]
print("KNOWN", known)
for path in PATHS:
    try:
        print("READ", len(open(path).read()))
    except Exception as error:
        print(type(error).__name__)
other = "llmopt[.](?!lab|packing|sandbox)|gymnasium"
print("MODULES", [n for n in sys.modules if re.match(other, n)])
print("ENVIRONMENT", "PLANTED_KEY" in os.environ)
print("DATA", sorted(data[1]), sorted(data[1]["components"]))
print(data[1]["returns"][1].shape, data[1]["judged"].shape, data[1]["observations"][3].shape)
first = candidate(sources[1])
rows = data[1]["observations"][3]
print(first(rows[0], data[1]["actions"][3][0], rows[1], {})[1])
"""
REWARD = """```python
def reward(obs, action, next_obs, info):
    gain = float(next_obs[0] - obs[0])
    return gain, {"gain": gain, "a/b": 1.0}
```"""


def test_a_block_finds_no_secret_of_a_reward_search(tmp_path, monkeypatch):
    """Neither the seeds of any initial state, nor the environment and its own rewards."""
    pytest.importorskip("cma")
    starts = Starts.draw(0)
    secrets = [starts.secret, f"{starts.secret:x}", *starts.selection(2), *starts.held_out(2)]
    wanted = [hashlib.sha256(str(v).encode()).hexdigest() for v in (1234567890123456789, *secrets)]
    (tmp_path / "starts.json").write_text(json.dumps(starts.to_dict()))
    monkeypatch.setenv("PLANTED_KEY", str(starts.secret))
    paths = [str(tmp_path / "starts.json"), "starts.json", "/proc/self/maps", "/proc/1/environ"]
    hunt = HUNT.replace("WANTED", repr(wanted)).replace("PATHS", repr(paths))
    client = ScriptedClient([REWARD, run(hunt), REWARD.replace("1.0", "2.0")])
    with gym.make("MountainCarContinuous-v0") as env:
        function = reward_function(env)
    options = {"compute": True, "compute_workers": 0, "storage": tmp_path / "s.jsonl", "seed": 0}
    with CodeOptimizer(function, client=client, **options) as optimizer:
        improve_reward(
            optimizer, "MountainCarContinuous-v0", 2, seeds=starts.selection(2), episodes=3,
            trainings=2, cap=9,
        )  # fmt: skip
        printed = optimizer.blocks[0].output.splitlines()
    assert printed[0] == "KNOWN [0]"  # the one that it made itself
    assert printed[1:5] == [*["PermissionError"] * 4]
    assert printed[5:7] == ["MODULES []", "ENVIRONMENT False"]
    entries = "['actions', 'components', 'ended', 'judged', 'lengths', 'observations', 'returns']"
    assert printed[7] == f"DATA {entries} ['a_b', 'gain', 'total']"
    assert printed[8] == "(10,) (2, 2) (10, 2)"
    assert "'gain'" in printed[9]


def test_a_reward_search_keeps_no_reward_of_the_environment():
    steps = StepData()
    made = [episode(Drift(), lambda obs: obs[:1], seed, 9, steps) for seed in (1, 2)]
    judged = PolicyScore(tuple(CodeEpisode(**vars(e)) for e in made))
    training = Training((0.0,), {"gain": (1.0, 2.0)}, (3.0, 4.0), (3.0, 3.0), 2)
    data = training_data([training], [judged], steps)
    assert list(data["info"]) == ["k"]
    assert not {"rewards", "initial_state"} & set(data)
    assert data["judged"].tolist() == [[e.total for e in made]]
    assert data["components"]["gain"][0].tolist() == [1.0, 2.0]
    assert [len(rows) for rows in data["observations"]] == [4, 4]


def test_the_commands_let_a_model_compute(tmp_path, monkeypatch, capsys):
    script = [run("print(6 * 7)"), policy("40 * obs[1]")]
    client = ScriptedClient(script)
    monkeypatch.setattr(common, "get_client", lambda name: client)
    fixed = "--steps 1 --episodes 1 --held-out 1 --no-gif --call-seconds 60"
    command = ["code", "mountaincar", "--model", "m", *fixed.split()]
    assert main([*command, "--compute", "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "1 blocks of Python in 0 s" in out
    assert "It printed:\n> 42\n" in client.requests[1].text
    resume = ["code", "mountaincar", "--resume", "--out", str(tmp_path / "run")]
    assert main([*resume, "--model", "m"]) == 2
    assert "--compute again" in capsys.readouterr().err
    assert main([*resume, "--model", "m", "--compute"]) == 0
