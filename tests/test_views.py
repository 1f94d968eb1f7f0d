"""A search as a table and a page."""

from __future__ import annotations

import sys

import pytest

from llmopt import (
    Categorical,
    Evaluation,
    Float,
    LLMOptimizer,
    RewardError,
    ScriptedClient,
    optimize,
)
from llmopt.views import outcome

SPACE = {"x": Float(-5, 5), "kind": Categorical(["a", "b"])}
POINTS = [{"x": 1.0, "kind": "a"}, {"x": -2.5, "kind": "b"}, {"x": 0.0, "kind": "a"}]


def searched(**options):
    optimizer = LLMOptimizer(SPACE, ScriptedClient([]), warmup=POINTS, **options)
    for reward in (1.0, None, 3.0):
        optimizer.tell(optimizer.ask(), reward, feedback="<b>loud</b> & clear")
    return optimizer


@pytest.mark.parametrize(("rewards", "said"), [([2.0, None], "#2 (failed)"), ([2.0], "#1 (2)")])
def test_the_latest_point_is_compared_unless_it_has_no_result(rewards, said):
    optimizer = LLMOptimizer(SPACE, ScriptedClient([]), warmup=POINTS)
    for reward in rewards:
        optimizer.tell(optimizer.ask(), reward)
    assert f"The latest: {said}\n" in outcome(optimizer.history, optimizer.space)


def test_the_table_has_a_row_for_each_trial():
    pandas = pytest.importorskip("pandas")
    frame = searched().trials_dataframe()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["number"]) == [0, 1, 2]
    assert list(frame["params_x"]) == [1.0, -2.5, 0.0]
    assert list(frame["params_kind"]) == ["a", "b", "a"]
    assert list(frame["state"]) == ["complete", "failed", "complete"]
    assert frame["reward"].isna().tolist() == [False, True, False]
    assert set(frame["source"]) == {"warmup"}
    assert frame.loc[frame["reward"].idxmax(), "params_x"] == 0.0


def test_several_objectives_have_a_column_each():
    pytest.importorskip("pandas")
    optimizer = LLMOptimizer(SPACE, ScriptedClient([]), direction=["maximize", "minimize"])
    optimizer.tell(POINTS[0], (1.0, 2.0))
    optimizer.tell_failure(POINTS[1])
    frame = optimizer.trials_dataframe()
    assert frame["reward_0"].tolist()[0] == 1.0
    assert frame["reward_1"].isna().tolist() == [False, True]


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("pandas", LLMOptimizer.trials_dataframe),
        ("optuna", LLMOptimizer.to_optuna),
        ("plotly.offline", LLMOptimizer.report),
    ],
)
def test_a_missing_package_is_named(package, call, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match="pip install") as caught:
        call(searched())
    assert caught.value.__cause__ is None  # the message quotes it
    assert caught.value.__suppress_context__


NAMED = {"cost": "minimize", "yield": "maximize"}


def test_names_of_objectives_are_those_of_columns():
    pandas = pytest.importorskip("pandas")
    optimizer = LLMOptimizer(SPACE, ScriptedClient([]), direction=NAMED)
    for k, point in enumerate(POINTS[:2]):
        optimizer.tell(point, {"cost": 1.0 + k, "yield": 5.0 + k})
    frame = optimizer.trials_dataframe()
    assert frame["reward_cost"].tolist() == [1.0, 2.0]
    named = LLMOptimizer(SPACE, ScriptedClient([]), direction=NAMED)
    assert named.import_trials(pandas.DataFrame(frame)).counts == {"taken": 2}


def test_tell_takes_an_evaluation_and_says_which_name_is_wrong():
    optimizer = LLMOptimizer(SPACE, ScriptedClient([]), direction=NAMED)
    given = Evaluation((2.0, 6.0), "slow", {"a": [1.0]}, constraint_violation=0.5)
    trial = optimizer.tell(POINTS[0], given)
    assert (trial.rewards, trial.feedback, trial.constraint_violation) == ((2.0, 6.0), "slow", 0.5)
    assert list(trial.data) == ["a"]
    assert "constraints violated by 0.5" in repr(trial)
    assert optimizer.tell(POINTS[1], Evaluation((1.0, 5.0)), feedback="fast").feedback == "fast"
    assert optimizer.tell(POINTS[2], Evaluation({"yield": 1.0, "cost": 2.0})).rewards == (2.0, 1.0)
    with pytest.raises(RewardError, match="feedback= is given, and the Evaluation has it, too"):
        optimizer.tell(POINTS[0], given, feedback="fast")
    wrong = {"cost": 1.0, "yeild": 2.0}
    with pytest.raises(RewardError, match="missing: 'yield'; unknown: 'yeild'"):
        optimizer.tell(POINTS[0], wrong)
    for returned in (wrong, Evaluation(wrong)):
        with pytest.raises(RewardError, match=r"'yeild': 2\.0.*missing: 'yield'; unknown: 'yeild'"):
            optimize(lambda x, y=returned: y, SPACE, 3, ScriptedClient([]), directions=NAMED)


def test_progress_names_the_objectives(capfd):
    optimize(
        lambda x: (x["x"], 2.0), SPACE, 3, ScriptedClient([]),
        directions=NAMED, progress=True, warmup=POINTS,
    )  # fmt: skip
    assert "warmup cost 1 yield 2, 1 on the Pareto front" in capfd.readouterr().err


def test_a_home_folder_is_meant_by_its_sign(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with LLMOptimizer(SPACE, ScriptedClient([]), storage="~/s.jsonl") as optimizer:
        optimizer.tell(POINTS[0], 1.0, data={"a": [1.0]})
        assert optimizer.report("~/r.html") == tmp_path / "r.html"
        optimizer.save("~/copy.json")
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {"s.jsonl", "s.jsonl.data", "r.html", "copy.json"}
    assert "~" not in names
    with pytest.raises(TypeError, match="expected the path of a page"):
        optimizer.report(3)
