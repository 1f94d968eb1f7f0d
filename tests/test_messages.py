"""What a newcomer is told when something is wrong: what was got, what is expected, the remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import llmopt
from llmopt import (
    Completion,
    Float,
    Int,
    LLMOptimizer,
    ModelNotFoundError,
    ParameterError,
    Reply,
    RewardError,
    ScriptedClient,
    SpaceError,
    StorageError,
)
from llmopt.cli import main
from llmopt.code import CodeOptimizer
from llmopt.policies import LinearPolicy, PolicySearch

SPACE = {"lr": Float(0.0, 1.0), "k": Int(0, 9)}
POINT = {"lr": 0.5, "k": 3}


def make(space: Any = SPACE, client: Any = None, **options: Any) -> LLMOptimizer:
    return LLMOptimizer(space, client or ScriptedClient([]), **{"warmup": 0, "seed": 1, **options})


def told(kind: type[Exception], call: Callable[[], Any], *parts: str) -> str:
    """Check that a call raises `kind`, and that its message has all the parts."""
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    missing = [part for part in parts if part not in message]
    assert not missing, f"{missing} not in {message!r}"
    return message


@pytest.mark.parametrize(
    ("params", "parts"),
    [
        ({"lrr": 0.1, "k": 1}, ("'lrr'", "did you mean 'lr'?")),
        ({"lr": 0.1}, ("k",)),
        ({"lr": 4.2, "k": 1}, ("`lr`=4.2", "[0.0, 1.0]")),
        ({"lr": "0.1", "k": 1}, ("`lr`", "'0.1'")),
        ([0.1, 1], ("list", "dict", "'lr'")),
        (None, ("None", "dict")),
    ],
)
def test_wrong_parameters(params, parts):
    told(ParameterError, lambda: make().tell(params, 1.0), *parts)
    told(ParameterError, lambda: make().tell_failure(params), *parts)
    told(ParameterError, lambda: make(warmup=[POINT, params]), "warmup[1]", *parts)


def test_reward_beyond_a_float():
    told(RewardError, lambda: make().tell(POINT, 10**400), "a float's range")
    told(RewardError, lambda: make().tell(POINT, np.timedelta64(5, "s")), "timedelta64(5")


@pytest.mark.parametrize("reward", [1.0, (1.0,), (1.0, 2.0, 3.0), [], np.zeros(3)])
def test_wrong_number_of_rewards(reward):
    optimizer = make(direction=["maximize", "minimize"])
    told(RewardError, lambda: optimizer.tell(POINT, reward), "expected 2 numbers", "objective")


@pytest.mark.parametrize("violation", [-1.0, float("nan"), float("inf")])
def test_wrong_violation(violation):
    told(
        RewardError,
        lambda: make().tell(POINT, 1.0, constraint_violation=violation),
        f"constraint_violation={violation}",
        "0 or more",
    )


class TestModels:
    def test_client_that_gives_no_reply(self):
        class Careless:
            def complete(self, request):
                return "lr: 0.1, k: 2"

        optimizer = make(client=Careless())
        told(TypeError, optimizer.ask, "Careless", "returned a str", "expected a llmopt.Reply")


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("warm_up", "warmup"), ("max_request", "max_requests"), ("desciption", "description")],
)
@pytest.mark.parametrize(
    "call",
    [
        lambda **o: LLMOptimizer(SPACE, ScriptedClient([]), **o),
        lambda **o: llmopt.minimize(lambda p: 0.0, SPACE, 3, ScriptedClient([]), **o),
        lambda **o: llmopt.maximize(lambda p: 0.0, SPACE, 3, ScriptedClient([]), **o),
        lambda **o: PolicySearch("CartPole-v1", ScriptedClient([]), **o),
    ],
    ids=["LLMOptimizer", "minimize", "maximize", "PolicySearch"],
)
def test_a_misspelt_argument(call, wrong, near):
    text = told(TypeError, lambda: call(**{wrong: 3}), f"argument '{wrong}'")
    assert f"did you mean '{near}'? Valid: '{near}', " in text
    assert len(text) < 300


class TestFiles:
    def test_another_configuration(self, tmp_path):
        path = tmp_path / "run.jsonl"
        with make(storage=path) as optimizer:
            optimizer.tell(POINT, 1.0)
        for options, parts in (
            ({"direction": "minimize"}, ("directions (there ['maximize'], now ['minimize'])",)),
            ({"warmup": 3}, ("warmup (there 0, now 3)",)),
            ({"space": {"lr": Float(0.0, 2.0)}}, ("lr: high: there 1.0, now 2.0",)),
            ({"space": {"rate": Float(0.0, 1.0)}}, ("only there: k, lr", "only now: rate")),
            ({"space": {"lr": Int(0, 1)}}, ("type: there 'float', now 'int'",)),
        ):
            told(
                StorageError,
                lambda options=options: make(storage=path, **options),
                str(path),
                *parts,
                "same configuration",
                "another file",
            )

    @pytest.mark.parametrize(
        "content",
        ["my only line", "a line\n", '{"a": 1}', '{"a": 1}\n{"a": 2}', '{"event": 1}\n', "[1]\n"],
    )
    def test_a_file_that_is_not_ours_is_left_as_it_was(self, tmp_path, content):
        path = tmp_path / "mine.txt"
        path.write_text(content)
        said = told(StorageError, lambda: make(storage=path), str(path), "llmopt run", "give")
        assert "head -n" not in said
        assert path.read_text() == content

    @pytest.mark.parametrize(
        "line",
        ['{"event":"tell"}', '{"evnt":1}', '{"event":"tell","values":[9]}', '{"event":"ask"}'],
    )
    def test_altered_line_is_named(self, tmp_path, line):
        path = tmp_path / "run.jsonl"
        optimizer = make(storage=path, durable=False)
        optimizer.tell(POINT, 1.0)
        optimizer.close()
        with path.open("a") as file:
            file.write(line + "\n")
        for again in (
            lambda: make(storage=path, durable=False),
            lambda: LLMOptimizer.load(path, ScriptedClient([])),
        ):
            told(StorageError, again, str(path), "event 3", "Restore", "move it away")

    def test_event_of_a_newer_version(self, tmp_path):
        path = tmp_path / "run.jsonl"
        with make(storage=path) as optimizer:
            optimizer.tell(POINT, 1.0)
        with path.open("a") as file:
            file.write('{"event":"novel"}\n')
        told(StorageError, lambda: make(storage=path, durable=False), "'novel'", "newer", "upgrade")

    def test_format_of_a_newer_version(self, tmp_path):
        path = tmp_path / "run.jsonl"
        with make(storage=path) as optimizer:
            optimizer.tell(POINT, 1.0)
        start = json.loads(path.read_text().splitlines()[0])
        path.write_text(json.dumps({**start, "format": 99}) + "\n")
        told(StorageError, lambda: make(storage=path), "format 99", "upgrade")

    @pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
    def test_folder_without_permission(self, tmp_path):
        tmp_path.chmod(0o500)
        path = tmp_path / "run.jsonl"
        told(StorageError, lambda: make(storage=path), str(path), "Permission", "may write")
        told(StorageError, lambda: make().save(path), str(path), "Permission", "may write")

    def test_folder_in_place_of_a_file(self, tmp_path):
        told(StorageError, lambda: make(storage=tmp_path), str(tmp_path), "directory")
        told(StorageError, lambda: make().save(tmp_path), str(tmp_path), "directory")
        assert list(tmp_path.parent.glob(".*.part")) == []

    def test_saving_over_its_own_storage(self, tmp_path):
        path = tmp_path / "run.jsonl"
        optimizer = make(storage=path)
        told(StorageError, lambda: optimizer.save(path), str(path), "another path")
        optimizer.tell(POINT, 1.0)
        optimizer.close()
        assert len(make(storage=path).trials) == 1

    def test_loading_with_a_storage(self, tmp_path):
        path = tmp_path / "run.jsonl"
        make(storage=path).close()
        told(
            TypeError,
            lambda: LLMOptimizer.load(path, ScriptedClient([]), storage=path),
            "LLMOptimizer(space, ..., storage=path)",
            "save()",
        )


def raised(call: Callable[[], Any]) -> tuple[Exception, str]:
    """Return what a call raises, and its message with its notes."""
    with pytest.raises(Exception, match=r"\S") as caught:
        call()
    error = caught.value
    return error, "\n".join([str(error), *getattr(error, "__notes__", ())])


def one(point: Any) -> float:
    return 1.0


def search(f: Any = one, space: Any = SPACE, **options: Any) -> Any:
    return llmopt.minimize(f, space, 3, "network", seed=1, **options)


def policies() -> PolicySearch:
    return PolicySearch("CartPole-v1", "network", max_steps=5)


def conditional(test: Any) -> llmopt.Space:
    return llmopt.Space({"k": Int(0, 9), "x": Float(0, 1, when={"k": test})})


def search_several(f: Any, directions: Any) -> Any:
    return llmopt.optimize(f, SPACE, 3, "network", directions=directions)


@pytest.mark.parametrize(
    ("call", "kind", "parts"),
    [
        (lambda: search(SPACE, one), TypeError, ["function comes first"]),
        (lambda: LLMOptimizer("network", SPACE), SpaceError, ["a str", "precedes the client"]),
        (lambda: LLMOptimizer(ScriptedClient([]), SPACE), SpaceError, ["precedes the client"]),
        (lambda: make().tell(3, 1), ParameterError, ["an int", "dict"]),
        (lambda: search(constraints=3), SpaceError, ["constraints", "an int", "<="]),
        (lambda: llmopt.Space(SPACE, constraints=3), SpaceError, ["constraints", "an int"]),
        (lambda: llmopt.Space(SPACE, forbidden=3), SpaceError, ["forbidden", "an int"]),
        (lambda: search_several(one, ["minimise"] * 2), ValueError, ["directions=", "'minimize'"]),
        (lambda: search_several(one, ["minimize"] * 2), RewardError, ["directions="]),
        (lambda: search(lambda x: (x - 1) ** 2), TypeError, ["one dict", "point['lr']"]),
        (lambda: policies().policy_of([1, 2]), ParameterError, ["[1, 2]", "<-cart", "zip("]),
        (lambda: llmopt.Space(SPACE, forbidden={"k": 1}), SpaceError, ["a dict", "forbidden=[{"]),
        (lambda: conditional(">2"), SpaceError, ["'>2'", "{'k': (\">=\", 2)}"]),
        (lambda: conditional(("=>", 2)), SpaceError, ["'=>'", "{'k': (\">=\", 2)}"]),
        (lambda: make(start=POINT), ValueError, ["got one point", "start=[{'lr': 0.5, 'k': 3}]"]),
        (
            lambda: llmopt.get_client("http://a:8000/v1"),
            ModelNotFoundError,
            ["'openai+http://a:8000/v1:MODEL'"],
        ),
        (
            lambda: llmopt.get_client("https://api.openai.com/v1:gpt"),
            ModelNotFoundError,
            ["'openai+https://api.openai.com/v1:gpt'"],
        ),
        (lambda: setattr(make(), "limits", 3), TypeError, ["limits=3", "Limits(max_cost=0.5)"]),
        (lambda: make(durable="x"), ValueError, ["durable='x'", "True, False"]),
        (lambda: make().report("x.pdf"), StorageError, ["x.pdf", "HTML", "ends in .html"]),
        (
            lambda: make().report("no/ne/x.html"),
            StorageError,
            ["no folder", "make it first"],
        ),
        (
            lambda: make().save("no/ne/x.jsonl"),
            StorageError,
            ["no folder", "make it first"],
        ),
    ],
)
def test_a_wrong_call_names_its_remedy(call, kind, parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error, said = raised(call)
    assert isinstance(error, kind)
    assert all(part in said for part in parts), said


@pytest.mark.parametrize("options", [{}, {"n_jobs": 2}])
def test_what_an_objective_raises_names_the_trial_and_its_point(options):
    def f(point):
        raise ZeroDivisionError("division by zero")

    error, said = raised(lambda: search(f, {"x": Float(0.25, 0.25), "k": Int(1, 9)}, **options))
    assert isinstance(error, ZeroDivisionError)
    assert "trial 0" in said
    assert "'x': 0.25" in said


def test_storage_is_no_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///b.db", "postgresql://u:p@host/db"):
        for call in (
            lambda url=url: search(storage=url),
            lambda url=url: PolicySearch("CartPole-v1", "network", storage=url),
            lambda url=url: CodeOptimizer("def f(x)", client=ScriptedClient([]), storage=url),
        ):
            error, said = raised(call)
            assert isinstance(error, StorageError)
            assert all(part in said for part in (".jsonl", "LLMSampler"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("prompt", ["props", "words"])
def test_few_policies_leave_some_for_the_model(prompt):
    client = ScriptedClient(lambda request: Reply((Completion("no point"),)))
    with PolicySearch("CartPole-v1", client, prompt, starts=1, max_steps=9) as search:
        with pytest.warns(llmopt.FallbackWarning) as warned:
            search.run(6)
        random = [t.source for t in search.optimizer.trials].count("warmup")
    assert random == 5
    assert {w.filename for w in warned if w.category is llmopt.FallbackWarning} == {__file__}


def test_warnings_of_the_log_say_whose_they_are(tmp_path):
    code = (
        "import llmopt; f = lambda p: 1.0\n"
        "llmopt.minimize(f, {'x': llmopt.Float(0, 1)}, 2, 'network', description='words')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert done.stderr.startswith("llmopt: ")


def search_of(env: Any = "CartPole-v1", **options: Any) -> PolicySearch:
    return PolicySearch(env, ScriptedClient([]), starts=1, max_steps=9, **options)


def two(**options: Any) -> LLMOptimizer:
    return make(direction=["minimize", "minimize"], **options)


def bound_policy(env: str) -> Any:
    policy = search_of(env).policy
    return policy.bind(np.zeros(policy.n_parameters))


def nevergrad_optimizer(**options: Any) -> Any:
    ng, adapter = map(pytest.importorskip, ("nevergrad", "llmopt.adapters.nevergrad"))
    return adapter.ParametrizedLLM(client=ScriptedClient([]))(
        ng.p.Scalar(lower=0, upper=1), **options
    )


def recommend(*given: Any) -> Any:
    return pytest.importorskip("llmopt.adapters.optuna").LLMSampler.recommend(*given)


REFUSED = {
    "one of two objectives": (
        lambda: two().tell(POINT, (1, None)),
        RewardError,
        "reward[1]=None", "None as the whole reward, or call tell_failure()",
    ),
    "a named objective": (
        lambda: make(direction={"cost": "minimize", "error": "minimize"}).tell(POINT, (1, None)),
        RewardError,
        "reward['error']=None", "tell_failure()",
    ),
    "choose before run": (lambda: search_of().choose(), llmopt.NoTrialsError, "call run() first"),
    "observation": (
        lambda: bound_policy("CartPole-v1").act([1, 2]), ParameterError, "[1, 2]", "4 numbers",
    ),
    "state": (lambda: bound_policy("FrozenLake-v1").act(16), ParameterError, "from 0 to 15"),
    "state below": (lambda: bound_policy("FrozenLake-v1").act(-1), ParameterError, "0 to 15"),
    "for_env": (lambda: LinearPolicy.for_env(5), TypeError, "env=5", "gymnasium.make("),
    "budget": (lambda: nevergrad_optimizer(budget=0), ValueError, "budget=0: "),
    "recommend": (lambda: recommend(5), TypeError, "study=5", "optuna.create_study()"),
    "replies": (lambda: ScriptedClient(5), TypeError, "replies=5", "expected a list"),
    "a lone reply": (lambda: ScriptedClient("abc"), TypeError, "replies='abc'", "expected a list"),
    "key": (
        lambda: llmopt.get_client("openai:gpt-6-luna", api_key=5), TypeError, "api_key is an int",
    ),
    "value": (lambda: llmopt.Evaluation("x"), RewardError, "value='x'", "list of numbers", "None"),
    "import": (
        lambda: make(import_trials="none.csv"), StorageError, "none.csv", "of an existing file",
    ),
    "one name": (lambda: search_of(observations=["a"]), SpaceError, "got 1 name, expected 4"),
    "one reply": (
        lambda: make(client=ScriptedClient(["lr: 0.5, k: 3"]), on_error="raise").ask(2),
        llmopt.ClientError,
        "has 1 reply and",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_answered_with_its_remedy(mistake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, kind, *parts = REFUSED[mistake]
    told(kind, call, *parts)


@pytest.mark.parametrize(
    "given", [{"stderr": "x"}, {"constraint_violation": "x"}, {"samples": ["x"]}, {"curve": ["x"]}]
)
def test_only_a_reward_is_said_to_stand_for_a_failed_evaluation(given):
    message = told(RewardError, lambda: make().tell(POINT, 1.0, **given), *given, "'x'")
    assert "failed evaluation" not in message


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        (["report", "bad.jsonl"], ("bad.jsonl does not hold an llmopt run", "storage= wrote")),
        (["ask", "none.toml"], ("none.toml", "existing file", "space.x = {type")),
        (["status", "none.json"], ("none.json", "existing file", '{"space": {"x"')),
        (["run", "--config", "none.toml"], ("none.toml", "path of an existing file")),
    ],
)
def test_a_missing_file_or_a_foreign_one_in_a_shell(command, parts, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text("hello\n")
    assert main(command) == 2
    message = capsys.readouterr().err
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("motor:Motor-v1", ""), ("CartPole-v9", ""), ("Motor-v0", "MODULE:Motor-v0")],
)
def test_a_module_is_asked_for_only_where_it_could_help(name, remedy, tmp_path, monkeypatch):
    (tmp_path / "motor.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    message = told(llmopt.LLMOptError, lambda: search_of(name), "doesn't exist", remedy)
    assert ("MODULE" in message) == bool(remedy)


def test_the_bounds_of_a_policys_weights():
    box = [(float(-i - 1), float(i + 1)) for i in range(10)]
    search = search_of(box=box)
    assert search.bounds == dict(zip(search.optimizer.space.names, box, strict=True))
    assert search_of("FrozenLake-v1").bounds == {}


def test_a_missing_attribute_is_still_one():
    assert getattr(make(), "best_params", None) is None
    assert not hasattr(llmopt, "Integer")
    with pytest.raises(AttributeError, match=r"^module 'llmopt' has no attribute '__wrapped__'$"):
        llmopt.__wrapped__  # noqa: B018


def test_only_a_users_description_is_missed(caplog, monkeypatch):
    monkeypatch.setattr("llmopt.search.emitter._said_of", set())
    policies()
    assert "reads no description" not in caplog.text
    PolicySearch("CartPole-v1", "network", max_steps=5, description="Keep it up.")
    assert "reads no description" in caplog.text
