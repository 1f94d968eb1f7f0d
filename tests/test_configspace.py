"""ConfigSpace objects and Optuna's distributions as spaces: the same points are valid in both."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from llmopt import Categorical, Float, Int, LLMOptimizer, ScriptedClient, Space
from llmopt.adapters.optuna import LLMSampler
from llmopt.errors import SpaceError

C = pytest.importorskip("ConfigSpace")
# Names, ranges and conditions as the packages named in the file publish them.
PUBLISHED = json.loads(
    (Path(__file__).parent / "data" / "published_spaces.json").read_text(encoding="utf-8")
)


def hyperparameter(name, part):
    match part["type"]:
        case "float":
            return C.UniformFloatHyperparameter(name, *part["range"], log=part["log"])
        case "int":
            return C.UniformIntegerHyperparameter(name, *part["range"], log=part["log"])
        case "choice":
            default = part.get("default", part["values"][0])
            return C.CategoricalHyperparameter(name, part["values"], default_value=default)
        case "ordinal":
            return C.OrdinalHyperparameter(name, part["values"])
    return C.Constant(name, part["value"])


def published(name):
    data, space = PUBLISHED[name], C.ConfigurationSpace(seed=0)
    space.add([hyperparameter(n, part) for n, part in data["parameters"].items()])
    for child, parent, relation, value in data.get("conditions", ()):
        kind = C.EqualsCondition if relation == "==" else C.InCondition
        space.add(kind(space[child], space[parent], value))
    for clause in data.get("forbidden", ()):
        parts = [C.ForbiddenEqualsClause(space[n], value) for n, value in clause.items()]
        space.add(C.ForbiddenAndConjunction(*parts))
    return space


def both_ways(theirs, count=1000):
    """Assert that random points of each are valid in the other."""
    ours, rng = Space.of(theirs), np.random.default_rng(0)
    for _ in range(count):
        C.Configuration(theirs, values=ours.unflatten(ours.sample(rng)))
    for configuration in theirs.sample_configuration(count):
        values = ours.flatten(dict(configuration))
        assert ours.admits(values)
        assert set(ours.unflatten(values)) == set(configuration)
    assert Space.from_dict(json.loads(json.dumps(ours.to_dict()))) == ours
    return ours


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_published_space_loads(name):
    both_ways(published(name))


def test_every_kind_of_part_is_read():
    space = C.ConfigurationSpace(seed=0)
    a = C.CategoricalHyperparameter("a", ["x", "y", "z"], weights=[1, 2, 3])
    n = C.UniformIntegerHyperparameter("n", 1, 100, log=True)
    f = C.UniformFloatHyperparameter("f", 1e-5, 1, log=True)
    o = C.OrdinalHyperparameter("o", ["lo", "mid", "hi"])
    k = C.Constant("k", 3)
    g = C.NormalFloatHyperparameter("g", mu=0, sigma=1, lower=-3, upper=3)
    b = C.BetaIntegerHyperparameter("b", alpha=2, beta=3, lower=1, upper=9)
    space.add([a, n, f, o, k, g, b])
    space.add(
        [
            C.EqualsCondition(n, a, "x"),
            C.AndConjunction(C.GreaterThanCondition(f, n, 10), C.InCondition(f, a, ["x", "y"])),
            C.OrConjunction(C.LessThanCondition(g, o, "hi"), C.NotEqualsCondition(g, a, "z")),
            C.EqualsCondition(b, k, 3),
        ]
    )
    space.add(
        [
            C.ForbiddenAndConjunction(
                C.ForbiddenEqualsClause(a, "y"), C.ForbiddenInClause(o, ["lo"])
            ),
        ]
    )
    ours = both_ways(space)
    dimensions = dict(zip(ours.names, ours.dimensions, strict=True))
    assert dimensions["n"] == Int(1, 100, log=True, when={"a": "x"})
    assert dimensions["f"] == Float(1e-5, 1, log=True, when={"n": (">", 10), "a": ["x", "y"]})
    assert dimensions["g"].when == Float(0, 1, when=[{"o": ["lo", "mid"]}, {"a": ("!=", "z")}]).when
    assert dimensions["k"] == Categorical([3])
    assert ours.constraints == ("never a = y and o = lo together",)


def test_what_has_no_counterpart_is_refused_by_name():
    space = C.ConfigurationSpace({"a": ["x", "y"], "b": ["x", "y"], "c": (0.0, 1.0)})
    space.add(C.EqualsCondition(space["b"], space["a"], "x"))
    space.add(C.NotEqualsCondition(space["c"], space["b"], "y"))
    with pytest.raises(SpaceError, match=r"condition c \| b != 'y'.*InCondition"):
        Space.of(space)
    space = C.ConfigurationSpace({"p": (0.0, 1.0), "q": (0.0, 0.5)})
    space.add(C.ForbiddenLessThanRelation(space["p"], space["q"]))
    with pytest.raises(SpaceError, match=r"p < q.*leave the clause out, and give constraints="):
        Space.of(space)
    with pytest.raises(SpaceError, match=r"Space\.of"):
        Space(space)


def test_a_search_takes_optunas_distributions():
    distributions = {
        "lr": FloatDistribution(1e-5, 0.1, log=True),
        "drop": FloatDistribution(0, 0.5, step=0.1),
        "layers": IntDistribution(1, 4),
        "act": CategoricalDistribution(["relu", "tanh"]),
    }
    expected = Space(
        {
            "lr": Float(1e-5, 0.1, log=True),
            "drop": Float(0, 0.5, step=0.1),
            "layers": Int(1, 4),
            "act": Categorical(["relu", "tanh"]),
        }
    )
    assert Space.of(distributions) == Space(distributions) == expected


def declared(space):
    client = ScriptedClient(
        [
            "Start from: new\nProposal:\nopt: adam, layers: 3, width: 20",
            "Start from: #1\nProposal:\nopt: sgd, momentum: 0.3",
            "Start from: #2\nProposal:\nlayers: 1",
        ]
    )
    return client, LLMSampler(client, space=space, prompt="words", n_startup_trials=0, seed=0)


def test_an_optuna_study_with_declared_conditions_repeats_no_request():
    client, sampler = declared(
        {
            "opt": Categorical(["sgd", "adam"]),
            "momentum": Float(0, 0.9, when={"opt": "sgd"}),
            "layers": IntDistribution(1, 4),
            "width": Int(8, 64, log=True, when={"layers": (">", 2)}),
        }
    )
    study = optuna.create_study(sampler=sampler)

    def objective(trial):
        value = 0.0
        if trial.suggest_categorical("opt", ["sgd", "adam"]) == "sgd":
            value += trial.suggest_float("momentum", 0, 0.9)
        if trial.suggest_int("layers", 1, 4) > 2:
            value += trial.suggest_int("width", 8, 64, log=True)
        return value

    study.optimize(objective, n_trials=3)
    assert [t.params for t in study.trials] == [
        {"opt": "adam", "layers": 3, "width": 20},
        {"opt": "sgd", "momentum": 0.3, "layers": 3, "width": 20},
        {"opt": "sgd", "momentum": 0.3, "layers": 1},
    ]
    assert sampler.usage.requests == 3
    assert sampler.usage.rejected == {}
    texts = ["\n".join(m.content for m in r.messages) for r in client.requests]
    assert all("only with opt = sgd" in text for text in texts)
    assert not any("no trial has had" in text for text in texts)


@pytest.mark.defect(21)
def test_cma_searches_beside_a_constant():
    theirs = C.ConfigurationSpace({"x": (0.0, 1.0), "y": (0.0, 1.0), "version": "v1"})
    optimizer = LLMOptimizer(theirs, "network", partner="cma", warmup=2, seed=0)
    for _ in range(8):
        point = optimizer.ask()
        assert point["version"] == "v1"
        optimizer.tell(point, point["x"])
    assert "cma" in {trial.source for trial in optimizer.trials}
