"""Experiments that do not obey: what was measured misses a step, or lies beyond a bound."""

import json
import math

import pytest

from llmopt import Categorical, Float, Int, LLMOptimizer, ScriptedClient, Space
from llmopt.cli import main
from llmopt.errors import ParameterError, StorageError
from llmopt.finals import Finals
from llmopt.service.search_json import tell
from llmopt.views import on_bounds

SPACE = {
    "temp": Float(20, 80, step=5),
    "cycles": Int(1, 10),
    "acid": Float(1e-4, 1e-1, log=True),
    "base": Categorical(["KOH", "Et3N"]),
}
ANSWER = "temp: 80, cycles: 3, acid: 0.01, base: KOH"
SET = {"temp": 81.3, "cycles": 12, "acid": 0.25, "base": "KOH"}


def make(answers=(ANSWER,), space=SPACE, **options):
    client = ScriptedClient(list(answers), cycle=True)
    options = {"warmup": 0, "seed": 0, "prompt": "words", "compute": False, **options}
    return LLMOptimizer(space, client, **options)


def overshot(**options):
    """Return a search of which the first point could not be set."""
    optimizer = make(**options)
    optimizer.tell(SET, 5.0, instead_of=optimizer.ask())
    return optimizer


def test_a_point_in_place_of_an_asked_one_is_what_was_set(tmp_path, caplog):
    path = tmp_path / "s.jsonl"
    optimizer = overshot(storage=path)
    assert "`temp`=81.3 is outside [20.0, 80.0]" in caplog.text
    assert (optimizer.best.params, optimizer.best.source) == (SET, "llm")
    assert "trial 0: " in caplog.text
    assert "record the right point with replaces=0" in caplog.text  # as this argument takes it
    optimizer.tell({**SET, "temp": 81.4}, 6.0, replaces=0)
    optimizer.close()
    resumed = make(storage=path)
    assert resumed.best.params == {**SET, "temp": 81.4}
    assert resumed.best.instead_of == resumed.space.flatten(
        {**SET, "temp": 80, "cycles": 3, "acid": 0.01}
    )
    with pytest.raises(ParameterError):  # proposals obey
        resumed.enqueue({**SET, "temp": 81.4})
    with pytest.raises(ParameterError):
        resumed.ask(fixed={"temp": 81.4})


@pytest.mark.parametrize(
    "wrong", [{"cycles": 1.5}, {"acid": -1.0}, {"temp": math.inf}, {"base": "NaOH"}, {"temp": "8"}]
)
def test_a_value_of_another_kind_is_refused(wrong):
    optimizer = overshot()
    with pytest.raises(ParameterError):
        optimizer.tell({**SET, **wrong}, 1.0, replaces=0)


@pytest.mark.parametrize(
    "wrong", [{"temp": 814.0}, {"temp": -41.0}, {"cycles": 20}, {"acid": 110.0}]
)
def test_a_mistyped_number_far_beyond_its_bound_is_refused_and_uses_up_no_point(wrong):
    optimizer = make()
    point = optimizer.ask()
    with pytest.raises(ParameterError, match=r"is far outside \[.* may lie in .* Check it"):
        optimizer.tell({**SET, **wrong}, 5.0, instead_of=point)
    assert optimizer.pending == [point]
    optimizer.tell({**SET, "temp": 139.0, "cycles": 18, "acid": 90.0}, 5.0, instead_of=point)
    with pytest.raises(ParameterError, match="is far outside"):
        optimizer.tell({**SET, **wrong}, 5.0, replaces=0)


def test_a_point_that_nobody_asked_for_may_miss_a_step_and_no_bound(caplog):
    optimizer = make()
    own = {"temp": 77.5, "cycles": 3, "acid": 0.01, "base": "KOH"}
    optimizer.tell(own, 1.0)
    assert optimizer.best.params == own
    assert caplog.text.count("`temp`=77.5 is not a whole number of steps of 5.0") == 1
    with pytest.raises(ParameterError, match=r"80\.0\. If it was .* instead_of=; else .*wider"):
        optimizer.tell({**own, "temp": 81.3}, 1.0)
    report = optimizer.import_trials(
        [{**own, "temp": 33, "reward": 2.0}, {**own, "temp": 813, "reward": 9.0}]
    )
    assert report.counts == {"taken": 1, "refused": 1}
    assert "is not a whole number of steps" in report.rows[0].reason
    assert "`temp`=813 is outside" in report.rows[1].reason
    assert "If it was measured there, give the row a column `instead_of`" in report.rows[1].reason
    assert "nearest" not in report.rows[1].reason  # nobody is to falsify what was measured


def test_a_trial_beyond_a_bound_is_imported_from_another_search(tmp_path):
    path = tmp_path / "s.jsonl"
    first = overshot(storage=path)
    first.close()
    for source in (path, first.to_optuna()):
        optimizer = make()
        assert optimizer.import_trials(source).counts == {"taken": 1}
        assert optimizer.best.params == SET
        assert optimizer.import_trials(source).counts == {"known": 1}
        assert optimizer.best.instead_of == first.best.instead_of


@pytest.mark.parametrize("asked", ['{"temp": 80}', {"temp": 80}, '{"temp": 79}', "80", "{}", ""])
def test_a_table_says_what_was_asked_for(asked, tmp_path):
    path, row = tmp_path / "s.jsonl", {**SET, "temp": 75, "cycles": 3, "acid": 0.01}
    with make([ANSWER, ANSWER.replace("3", "4")], storage=path) as optimizer:
        pending = optimizer.ask()
        optimizer.import_trials([{**row, "reward": 1.0, "instead_of": asked}])
        optimizer.ask()
        assert "in place of your point" not in optimizer.client.requests[-1].text
    with make(storage=path) as optimizer:
        (trial,) = optimizer.trials
        found = trial.instead_of and optimizer.space.named(trial.instead_of)
        # No proposal is at 79, between two steps, and some text names no point.
        assert found == ({**row, "temp": 80.0} if "80}" in str(asked) else None)
        assert optimizer.pending[0] == pending == {**row, "temp": 80}  # it stays pending here


def test_the_table_of_a_search_gives_the_same_trials(tmp_path, capsys):
    pytest.importorskip("pandas")
    path = tmp_path / "s.jsonl"
    first = overshot(storage=path, may_stop=False)
    inside = {"temp": 40, "cycles": 3, "acid": 0.01, "base": "KOH"}
    for reward in (1.0, 2.0, 3.0):
        first.tell({**inside, "cycles": int(reward)}, reward)
    first.tell({**inside, "temp": 85}, 1.0, replaces=1)
    first.withdraw(trial=3)
    first.close()
    frame = first.trials_dataframe()
    asked = {**SET, "temp": 80, "cycles": 3, "acid": 0.01}
    assert json.loads(frame["instead_of"][0]) == asked
    assert frame["instead_of"][1:].fillna("").tolist() == ["{}", "", ""]
    assert main(["status", str(path), "--csv"]) == 0
    table = tmp_path / "table.csv"
    table.write_text(capsys.readouterr().out)
    for source in (table, frame, path, first.to_optuna()):
        second = make()
        assert second.import_trials(source).counts == {"taken": 3, "withdrawn": 1}
        assert [(t.params, t.reward) for t in second.trials] == [
            (t.params, t.reward) for t in first.trials[:3]
        ]
        assert str(second.import_trials(source)).endswith(": 3 known, 1 withdrawn (not imported)")
        assert second.import_trials(source).counts == {"known": 3, "withdrawn": 1}
        assert [t.instead_of for t in second.trials] == [second.space.flatten(asked), None, None]
    plain = {**inside, "temp": 85, "reward": 1.0}
    assert make().import_trials([plain]).counts == {"refused": 1}
    assert make().import_trials([{**plain, "instead_of": "80"}]).counts == {"taken": 1}


def test_an_import_counts_withdrawn_trials_beside_refused_ones(tmp_path, capsys, caplog):
    path, file = tmp_path / "s.jsonl", tmp_path / "t.json"
    with make(storage=path) as optimizer:
        optimizer.tell(optimizer.ask(), 1.0)
        optimizer.withdraw(trial=0)
        optimizer.tell(optimizer.trials[0].params, 2.0)
    file.write_text('{"space": {"no": {"enum": [1]}}, "direction": "maximize", "model": "network"}')
    assert main(["tell", str(file), "--import", str(path)]) == 2
    said = f"{caplog.text}{capsys.readouterr().err}"
    assert "s.jsonl: 1 withdrawn (not imported), 1 refused\n" in said
    assert said.count("'temp' is no parameter of the space") == 1


def test_an_import_follows_what_its_source_withdrew_later(tmp_path):
    path, other = tmp_path / "s.jsonl", make()
    with make(storage=path) as optimizer:
        point = {"temp": 40, "cycles": 3, "acid": 0.01, "base": "KOH"}
        for reward in (1.0, 1.0, 2.0):
            optimizer.tell(point, reward)
        assert other.import_trials(path).counts == {"taken": 3}
        optimizer.withdraw(trial=2, feedback="wrong bottle")
        said = str(other.import_trials(path))
        assert said.endswith("2 known, 1 withdrawn here\nrow 3 withdrawn here: trial 2")
        assert [t.state for t in other.trials] == ["complete", "complete", "withdrawn"]
        assert other.trials[2].feedback == "wrong bottle"
        assert str(other.import_trials(path)).endswith("2 known, 1 withdrawn (not imported)")
        assert "trial #" not in str(make().import_trials(path))


def test_a_trial_that_was_corrected_to_a_number_beyond_a_bound_is_imported_too(tmp_path):
    path = tmp_path / "s.jsonl"
    first = overshot(storage=path)
    trial = first.tell(first.ask(), 1.0)
    first.tell({**SET, "temp": SET["temp"] + 1}, 1.0, replaces=trial.number)
    first.close()
    for source in (path, first.to_optuna()):
        optimizer = make()
        assert optimizer.import_trials(source).counts == {"taken": 2}


def test_a_file_may_not_propose_beyond_the_range(tmp_path):
    path = tmp_path / "s.jsonl"
    optimizer = make(storage=path)
    optimizer.ask()
    optimizer.close()
    path.write_text(path.read_text().replace('"values":[80.0,', '"values":[81.3,'))
    with pytest.raises(StorageError, match=r"81\.3"):
        make(storage=path)


def test_prompts_show_what_was_set_and_start_from_what_can_be():
    change = "Start from: #1\nProposal:\nbase: Et3N"
    optimizer = make([ANSWER, change])
    optimizer.tell(SET, 5.0, instead_of=optimizer.ask())
    assert optimizer.ask() == {"temp": 80, "cycles": 10, "acid": 0.1, "base": "Et3N"}
    (_, request) = optimizer.client.requests
    row = "#1 | 5 | 81.3 | 12 | 0.25 | KOH | new (measured in place of your point)"
    assert row in request.text


def test_all_points_of_a_small_space_are_found_beside_one_that_is_none():
    optimizer = LLMOptimizer({"t": Float(0, 30, step=10)}, "network", seed=0, warmup=1)
    for t in (1.0, 2.0, 12.0, 17.0):
        optimizer.tell({"t": t}, t)
    assert sorted(optimizer.ask()["t"] for _ in range(4)) == [0, 10, 20, 30]


@pytest.mark.parametrize("partner", [None, "cma"])
def test_numeric_methods_learn_from_it(partner):
    space = {name: SPACE[name] for name in ("temp", "cycles", "acid")}
    optimizer = LLMOptimizer(space, "network", partner=partner, warmup=1, seed=0)
    for number in range(12):
        asked = optimizer.ask()
        assert not optimizer.space.deviation(optimizer.space.flatten(asked))
        measured = {**asked, "temp": 81.3 + number / 10, "acid": 99.0}
        optimizer.tell(measured, float(number), instead_of=asked)
    values = optimizer.trials[-1].values
    assert list(optimizer.space.encode(values))[::2] == [1.0, 1.0]
    assert optimizer.space.steps(values)[0] == pytest.approx(1 / 12)
    assert not any("temp" in end for end in on_bounds(optimizer.space, values))


def test_it_is_not_measured_again_by_llmopt():
    optimizer = overshot(noisy=True)
    optimizer.tell({"temp": 20, "cycles": 1, "acid": 0.01, "base": "KOH"}, 1.0)
    planned = Finals(1, 10).plan(optimizer)
    assert {trial.params["temp"] for trial in planned} == {20}


def test_a_condition_is_judged_by_the_nearest_value_that_can_be_set():
    space = {"t": Float(0, 80, step=5), "hold": Int(1, 9, when={"t": (">=", 80)})}
    optimizer = make(["t: 80, hold: 4", "t: 75"], space)
    optimizer.tell({"t": 81.3, "hold": 4}, 1.0, instead_of=optimizer.ask())
    assert optimizer.best.params == {"t": 81.3, "hold": 4}
    assert optimizer.space.flatten({"t": 75}) == optimizer.space.flatten(optimizer.ask())
    equal = Space({"t": Int(0, 8), "hold": Int(1, 9, when={"t": 8})})
    assert equal.flatten({"t": 9, "hold": 4}, measured=True) == (9, 4)


def test_a_study_and_the_page_have_it():
    pytest.importorskip("plotly")
    optimizer = overshot()
    study = optimizer.to_optuna()
    assert study.best_params == SET
    assert study.trials[0].distributions["temp"].high == 81.3
    from llmopt.report_page.page import page

    shown = page(optimizer)
    assert "81.3" in shown
    assert "20 to 80, step 5<" in shown
    assert "is outside [20.0, 80.0]" in shown


def test_it_is_recorded_from_the_shell(tmp_path, capsys, caplog):
    file = tmp_path / "reaction.json"
    space = {
        "temp": {"type": "number", "minimum": 20, "maximum": 80, "multipleOf": 5},
        "eq": {"type": "integer", "minimum": 1, "maximum": 9},
    }
    file.write_text(json.dumps({"space": space, "direction": "maximize", "model": "network"}))

    def run(*words):
        code = main(list(map(str, words)))
        out, err = capsys.readouterr()
        return code, [json.loads(line) for line in out.splitlines()], err

    _, (asked,), _ = run("ask", file)
    _, (trial,), _ = run("tell", file, '{"temp": 81.3}', "--instead-of", "p1", "--reward", "7")
    assert trial["params"] == {**asked["params"], "temp": 81.3}
    assert "is outside [20.0, 80.0]" in trial["warning"]
    assert "record the right point with --replaces 1" in trial["warning"]
    assert trial["warning"] in caplog.messages
    _, (corrected,), _ = run("tell", file, "--replaces", "1", "--reward", "8")
    assert corrected["params"] == trial["params"]
    _, (shown,), _ = run("status", file, "--trials")
    assert shown["params"]["temp"] == 81.3
    _, (again,), _ = run("tell", file, json.dumps(trial["params"]), "--reward", "9")
    assert (again["params"], again["reward"]) == (trial["params"], 9)
    code, _, err = run("tell", file, '{"temp": 813, "eq": 1}', "--reward", "9")
    assert code == 2
    assert "give that as --instead-of" in err
    _, _, err = run("tell", file, '{"params": {}, "trial=1": 2}')
    assert "unknown key 'trial=1'" in err  # the user's own text


@pytest.mark.parametrize(("dtype", "most"), [("int8", 127), ("float32", 3.4e38)])
def test_a_number_that_the_type_of_an_array_cannot_hold_is_refused(dtype, most):
    spaces = pytest.importorskip("gymnasium.spaces")
    space = Space.of(spaces.Box(0, 10, (1,), dtype))
    (value,) = space.flatten([most], measured=True)
    assert space.unflatten((value,)) == [value]
    for wrong in (2 * most, -3 * most):
        with pytest.raises(ParameterError, match=r"`params\[0\]`=.* is outside"):
            space.flatten([wrong], measured=True)


def test_a_pending_point_is_not_measured_instead_of_another_one():
    optimizer = LLMOptimizer({"x": Float(0, 1)}, "network", seed=0)
    first, second = optimizer.ask(2)
    with pytest.raises(ParameterError, match="the point given is pending, too: record its result"):
        optimizer.tell(second, 1.0, instead_of=first)
    assert optimizer.pending == [first, second]
    optimizer.tell(second, 1.0)
    optimizer.tell({"x": 0.5}, 1.0, instead_of=first)


def test_a_correction_of_a_withdrawn_trial_says_so(caplog):
    for noisy in (False, True):
        optimizer = overshot(noisy=noisy)
        optimizer.withdraw(trial=0)
        caplog.clear()
        (told,) = tell(optimizer, [{"replaces": 1, "reward": 5.0}])
        assert told["state"] == "complete"
        for said in (told["warning"], caplog.text):
            assert f"{'0 (#1)' if noisy else '0'} was withdrawn: it counts again" in said
            assert "former" not in said


def test_a_correction_of_a_withdrawn_trial_brings_back_what_it_had(tmp_path, caplog):
    path = tmp_path / "s.jsonl"
    with make(storage=path) as optimizer:
        words = {"feedback": "brown", "parts": {"yield": 5.0, "waste": 1.0}, "data": {"t": [1.0]}}
        before = optimizer.tell(optimizer.ask(), 5.0, **words)
        optimizer.withdraw(trial=0, feedback="wrong bottle")
        (gone,) = optimizer.trials
        assert (gone.reward, gone.parts, gone.was) == (None, {}, before)
        told = optimizer.tell(gone.params, 6.0, replaces=0, parts={"waste": None})
        assert (told.reward, told.parts, told.feedback) == (6.0, {"yield": 5.0}, "brown")
        assert told.data["t"].tolist() == [1.0]
        assert "0 was withdrawn: it counts again, with its former part yield, feedback" in (
            caplog.text
        )
        optimizer.withdraw(trial=0)
    with make(storage=path) as optimizer:
        (told,) = tell(optimizer, [{"replaces": 1}])  # it was right after all
        assert (told["reward"], told["parts"], told["feedback"]) == (6.0, {"yield": 5.0}, "brown")


def test_a_point_is_not_measured_in_place_of_itself():
    optimizer = make()
    point = optimizer.ask()
    with pytest.raises(ParameterError, match="the same point"):
        optimizer.tell(point, 5.0, instead_of=point)
    assert optimizer.pending == [point]


@pytest.mark.parametrize("noisy", [False, True])
def test_a_point_beyond_a_bound_is_measured_again(noisy, tmp_path):
    path = tmp_path / "s.jsonl"
    with overshot(noisy=noisy, storage=path) as optimizer:
        optimizer.tell(SET, 6.0)
        optimizer.tell_failure(SET, "the pump broke")
        (told,) = tell(optimizer, [{"params": SET, "reward": 7.0}])
        assert (told["params"], told["state"]) == (SET, "complete")
        with pytest.raises(ParameterError, match=r"`temp`=81\.4 is outside"):
            optimizer.tell({**SET, "temp": 81.4}, 6.0)
        for number in range(4):
            optimizer.withdraw(trial=number)
        with pytest.raises(ParameterError, match=r"`temp`=81\.3 is outside"):
            optimizer.tell(SET, 6.0)  # it was a mistake
    with make(noisy=noisy, storage=path) as optimizer:
        assert len(optimizer.trials) == 4
