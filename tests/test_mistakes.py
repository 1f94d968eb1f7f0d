"""A newcomer's mistakes at four entry points: one message, nothing paid for, nothing lost.

Mistakes in the key and in the model's name are in ``test_ready.py``.

Every message says what was given, what was expected and what to do. A cell that is not there
cannot be made: an Optuna study has names, storage and failures of its own, `minimize` has no
wrappers, and the tasks of ``llmopt run`` are shipped.
"""

from __future__ import annotations

import re
import warnings

import gymnasium as gym
import pytest
from provider_contract import no_proxies, server
from wire import Say, openai_body

import llmopt
from llmopt import Float, ScriptedClient
from llmopt.cli import main
from llmopt.policies import PolicySearch

__all__ = ["no_proxies", "server"]

SPACE = {"rate": Float(0.0, 1.0), "width": Float(0.0, 1.0)}
ANSWER = (
    "Analysis: none.\nHypothesis: the middle.\nStart from: new\nProposal:\nrate: {}, width: 0.5"
)


class Entry:
    """An entry point, called with what a user would give; it counts what was evaluated."""

    def __init__(self, server, folder, capsys):
        self.model = f"openai+{server.url}/v1:m"
        self.folder, self.capsys = folder, capsys
        self.evaluated = 0

    def minimize(self, model=None, objective=None, space=SPACE, trials=8, **options):
        def counted(params):
            self.evaluated += 1
            return objective(params) if objective else params["rate"]

        llmopt.minimize(counted, space, trials, model or self.model, **options)

    def optuna(self, model=None, objective=None, trials=14, **options):
        optuna = pytest.importorskip("optuna")
        from llmopt.adapters.optuna import LLMSampler

        def counted(trial):
            rate = trial.suggest_float("rate", 0, 1)
            self.evaluated += 1
            return objective(rate) if objective else rate

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = LLMSampler(model or self.model, **options)
            optuna.create_study(sampler=sampler).optimize(counted, n_trials=trials)

    def policies(self, model=None, env="CartPole-v1", evaluations=8, **options):
        search = PolicySearch(env, model or self.model, starts=1, **options)
        try:
            search.run(evaluations)
        finally:
            self.evaluated += len(search.optimizer.trials)
            search.close()

    def run(self, *more, task="cartpole", model=None):
        """Run the command, and raise what it prints as an error."""
        small = ["--iterations", "3", "--warmup", "2", "--episodes", "1", "--heldout", "1"]
        where = [] if "--resume" in more else [*small, "--model", model or self.model, "--no-gif"]
        out = [] if "--out" in more else ["--out", "out"]
        status = main(["run", task, *where, *out, *more])
        said = self.capsys.readouterr().err
        if status:
            lines = [line for line in said.splitlines() if "error" in line]
            assert status == 2
            assert len(lines) == 1, said
            raise RuntimeError(lines[0])


class Hopeless(gym.Env):
    """An environment of a user's that fails as `problem` says."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,))
    action_space = gym.spaces.Box(-1.0, 1.0, (1,))
    problem = "NaN"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.low, {}

    def step(self, action):
        if self.problem == "exception":
            raise RuntimeError("the motor is not connected")
        return self.observation_space.low, float("nan"), False, False, {}


class Unplugged(Hopeless):
    problem = "exception"


def fails(_):
    raise RuntimeError("the motor is not connected")


def nan(_):
    return float("nan")


def stored(entry, again):
    """Begin a search in a file, and go on with it as `again` does."""
    path = entry.folder / "s.jsonl"
    client = ScriptedClient(lambda request: ANSWER.format(0.001 * (request.seed % 999)))
    entry.minimize(client, storage=path, trials=3)
    before = path.read_bytes()
    entry.evaluated = 0
    try:
        again(path)
    finally:
        assert path.read_bytes() == before


def policies_again(entry):
    path = entry.folder / "s.jsonl"
    zero = ScriptedClient([])
    with PolicySearch("CartPole-v1", zero, starts=1, warmup=3, storage=path) as search:
        search.run(2)
    before = path.read_bytes()
    try:
        entry.policies(zero, env="Acrobot-v1", warmup=3, storage=path)
    finally:
        assert path.read_bytes() == before


def run_again(entry):
    zero = ["--methods", "random"]
    entry.run(*zero)
    before = {p: p.read_bytes() for p in entry.folder.rglob("*.json*")}
    try:
        entry.run(*zero, "--resume", task="pendulum")
    finally:
        assert {p: p.read_bytes() for p in before} == before


NAN = ("nan|not finite|number",)
MOTOR = ("the motor is not connected",)
NO_FOLDER = ("cannot|Not a directory|not a folder",)

# What goes wrong, at which entry point; what the message has; how many evaluations at most.
MISTAKES = {
    ("parameter", "minimize"): (
        lambda e: e.minimize(start={"mine": {"rat": 0.1, "width": 0.2}}),
        ("rat", "rate"),
        0,
    ),
    ("parameter", "policies"): (lambda e: e.policies(env="CartPol-v1"), ("CartPol", "CartPole"), 0),
    ("parameter", "run"): (lambda e: e.run(task="cartpol"), ("cartpol", "did you mean"), 0),
    ("another's name", "optuna"): (
        lambda e: e.optuna(warmup=3),
        ("start-up trials are counted by 'n_startup_trials'$",),
        0,
    ),
    ("option", "optuna"): (lambda e: e.optuna(n_startup=3), ("n_startup", "did you mean"), 0),
    ("option", "policies"): (lambda e: e.policies(warm_up=3), ("warm_up", "did you mean"), 0),
    ("option", "run"): (lambda e: e.run("--methods", "rndom"), ("rndom", "did you mean"), 0),
    ("seed", "optuna"): (lambda e: e.optuna(seed="a"), ("seed='a'", "whole number"), 0),
    ("wrapper", "policies"): (
        lambda e: e.policies(wrappers="ususal"),
        ("ususal", "expected 'usual'"),
        0,
    ),
    ("nan", "policies"): (lambda e: e.policies(ScriptedClient([]), Hopeless), NAN, 5),
    ("exception", "optuna"): (lambda e: e.optuna(ScriptedClient([]), fails), MOTOR, 5),
    ("exception", "policies"): (lambda e: e.policies(ScriptedClient([]), Unplugged), MOTOR, 5),
    ("another space", "minimize"): (
        lambda e: stored(
            e,
            lambda path: e.minimize(
                ScriptedClient([]), space={**SPACE, "rate": Float(0, 2)}, storage=path
            ),
        ),
        ("rate", "high|range", "import_trials|another file"),
        0,
    ),
    ("another space", "policies"): (policies_again, ("CartPole|only there|task", "another"), 0),
    ("another space", "run"): (run_again, ("cartpole", "pendulum"), 0),
    ("folder", "minimize"): (
        lambda e: e.minimize(storage=e.folder / "file" / "s.jsonl"),
        NO_FOLDER,
        0,
    ),
    ("folder", "policies"): (
        lambda e: e.policies(storage=e.folder / "file" / "s.jsonl"),
        NO_FOLDER,
        0,
    ),
    ("folder", "run"): (lambda e: e.run("--out", str(e.folder / "file" / "out")), NO_FOLDER, 0),
}


@pytest.mark.parametrize(("mistake", "entry"), MISTAKES)
def test_a_mistake_is_one_message_and_costs_nothing(
    mistake, entry, server, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    server.play(Say(openai_body(ANSWER.format(0.5))))
    listed = Say({"data": [{"id": "m"}]})
    server.lists = lambda path: listed if path.endswith("/models") else Say({}, 404)
    call, words, most = MISTAKES[mistake, entry]
    tried = Entry(server, tmp_path, capsys)
    warnings.simplefilter("ignore")
    with pytest.raises(Exception, match=r"\S") as caught:
        call(tried)
    said = str(caught.value)
    assert all(re.search(word, said) for word in words), said
    assert "Traceback" not in said
    assert tried.evaluated <= most
    assert server.seen == []  # no request that costs
    assert (tmp_path / "file").read_text() == "mine"
