"""Trials of an earlier search, taken over from a storage file, a study, a table or a search."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from llmopt import (
    Categorical,
    Float,
    Int,
    LLMOptimizer,
    ParameterError,
    RewardError,
    ScriptedClient,
    Space,
    StorageError,
    minimize,
)
from llmopt.cli import main
from llmopt.policies import PolicySearch

SPACE = {"lr": Float(0.0, 1.0), "layers": Int(1, 8), "act": Categorical(["relu", "tanh"])}
POINTS = [
    ({"lr": 0.1, "layers": 2, "act": "relu"}, 3.0),
    ({"lr": 0.9, "layers": 8, "act": "tanh"}, None),
    ({"lr": 0.5, "layers": 4, "act": "relu"}, 1.0),
]


def make(space=SPACE, direction="minimize", **options):
    options = {"seed": 1, "warmup": 2, **options}
    return LLMOptimizer(space, ScriptedClient([]), "props", direction, **options)


def stored(path, **options):
    with closing(make(storage=path, **options)) as optimizer:
        for point, reward in POINTS:
            optimizer.tell(point, reward, feedback="seen")
    return path


def table():
    return [{**point, "reward": reward} for point, reward in POINTS]


def as_csv(path):
    rows = ["params_lr,params_layers,params_act,reward,state,feedback"]
    for point, reward in POINTS:
        outcome = ",failed" if reward is None else f"{reward},complete"
        rows.append(f"{point['lr']},{point['layers']},{point['act']},{outcome},seen")
    path.write_text("\n".join(rows) + "\n")
    return path


def study():
    optuna = pytest.importorskip("optuna")
    made = optuna.create_study(direction="minimize")
    kinds = {
        "lr": optuna.distributions.FloatDistribution(0, 1),
        "layers": optuna.distributions.IntDistribution(1, 8),
        "act": optuna.distributions.CategoricalDistribution(["relu", "tanh"]),
    }
    for point, reward in POINTS:
        state = optuna.trial.TrialState[("COMPLETE", "FAIL")[reward is None]]
        trial = optuna.trial.create_trial(
            params=point, distributions=kinds, value=reward, state=state
        )
        made.add_trial(trial)
    return made


def frame():
    pytest.importorskip("pandas")
    optimizer = make()
    optimizer.import_trials(table())
    return optimizer.trials_dataframe()


@pytest.mark.parametrize("kind", ["storage", "saved", "csv", "study", "table", "frame"])
def test_every_source_gives_the_same_trials(kind, tmp_path):
    path = tmp_path / "old.jsonl"
    if kind == "saved":
        LLMOptimizer.load(stored(tmp_path / "x.jsonl"), ScriptedClient([])).save(path)
    source = {
        "storage": lambda: stored(path),
        "saved": lambda: path,
        "csv": lambda: as_csv(tmp_path / "old.csv"),
        "study": study,
        "table": table,
        "frame": frame,
    }[kind]()
    optimizer = make()
    report = optimizer.import_trials(source)
    assert report.counts == {"taken": 3}, str(report)
    assert [(t.params, t.reward) for t in optimizer.trials] == POINTS
    assert optimizer.best.params == POINTS[2][0]
    assert optimizer.imported == {0, 1, 2}
    assert optimizer.import_trials(source).counts == {"known": 3}
    assert len(optimizer.trials) == 3


def test_the_columns_of_several_objectives_have_one_form():
    def rows(*names):
        return [{"lr": 0.5, **dict(zip(names, (1.0, 2.0), strict=True))}]

    search = make({"lr": Float(0.0, 1.0)}, {"a": "minimize", "b": "maximize"}, noisy=True)
    mixed = search.import_trials(rows("reward_a", "b"))
    assert "there is a column 'reward_a', and none for 'reward_b'" in str(mixed)
    assert "rename its column to 'reward_a'" in str(search.import_trials([{"lr": 0.5}]))
    for names in (("a", "b"), ("reward_a", "reward_b"), ("reward_0", "reward_1")):
        report = search.import_trials(rows(*names))
        assert report.rows[0].outcome == ("taken" if "a" in names else "known")
        assert report.notes == ()


def test_rows_of_another_space_are_refused_and_each_is_reported(tmp_path, caplog):
    old = stored(tmp_path / "old.jsonl")
    report = make({"rate": Float(0.0, 1.0)}).import_trials(old)
    assert report.counts == {"refused": 3}
    assert "no row could be taken of" in caplog.text
    assert "row 1 refused: 'lr' is no parameter of the space" in str(report)

    space = {"lr": Float(0.0, 0.45), "layers": Int(2, 8, step=3), "act": Categorical(["relu"])}
    report = make(space).import_trials(old)
    assert [row.outcome for row in report.rows] == ["taken", "refused", "refused"]
    assert "row 2 refused: `lr`=0.9 is outside [0.0, 0.45]" in str(report)

    larger = make({**SPACE, "drop": Float(0.0, 0.5)})
    said = str(larger.import_trials(old))
    assert "no value for 'drop': export the trials (`llmopt status FILE --csv`" in said
    assert "no value for 'drop': add it to the table" in str(larger.import_trials(table()))
    assert larger.import_trials([{**row, "drop": 0.0} for row in table()]).taken == 3


@pytest.mark.parametrize("prefix", ["", "llmopt:"])
def test_what_an_objective_left_in_a_study_is_taken_with_its_trials(prefix):
    optuna = pytest.importorskip("optuna")

    def objective(trial):
        trial.set_user_attr(prefix + "feedback", "the third fold diverged")
        trial.set_user_attr(prefix + "stderr", 0.25)
        return trial.suggest_float("lr", 0, 1)

    source = optuna.create_study()
    source.enqueue_trial({"lr": 0.5})
    source.optimize(objective, 1)
    optimizer = make({"lr": Float(0.0, 1.0)})
    assert optimizer.import_trials(source).counts == {"taken": 1}
    (trial,) = optimizer.trials
    assert (trial.reward, trial.feedback, trial.stderr) == (0.5, "the third fold diverged", 0.25)


def test_the_other_direction_is_refused_and_another_task_is_said(tmp_path):
    old = stored(tmp_path / "old.jsonl", task={"data": "a"})
    with pytest.raises(ParameterError, match=r"direction \('minimize',\), and this one has"):
        make(direction="maximize").import_trials(old)
    report = make(task={"data": "b"}).import_trials(old)
    assert report.taken == 3
    assert "another task ({'data': 'a'}, here {'data': 'b'})" in str(report)


def test_another_unit_is_refused_and_a_lacking_one_is_said(tmp_path):
    def search(unit, **options):
        return make({"mill": Float(0.0, 150.0, unit=unit)}, **options)

    with search("min", storage=tmp_path / "old.jsonl") as old:
        old.tell({"mill": 30.0}, 1.0)
    hours, bare = search("h"), search("")
    with pytest.raises(ParameterError, match=r"'mill' is 'min' in .*, and 'h' here"):
        hours.import_trials(old.storage)
    assert not hours.trials
    assert hours.import_trials([{"mill": 0.5, "reward": 1.0}]).notes == ()
    said = "the unit of 'mill' is 'min' there, none here: numbers stay as they are"
    assert bare.import_trials(old.storage).notes == (said,)
    for same in ("min", "minutes"):
        assert search(same).import_trials(old.storage).notes == ()


def test_bad_rows_are_named_and_the_others_taken():
    rows = [
        {"lr": 0.1, "layers": 2, "act": "relu", "reward": "good"},
        {"lr": "x", "layers": 2, "act": "relu", "reward": 1.0},
        {"lr": True, "layers": 2, "act": "relu", "reward": 1.0},
        {"lr": 0.1, "layers": 2.5, "act": "relu", "reward": 1.0},
        {"lr": 0.1, "layers": 2, "act": "swish", "reward": 1.0},
        {"lr": float("nan"), "layers": 2, "act": "relu", "reward": 1.0},
        {"lr": 0.1, "layers": 2, "act": "relu", "reward": 1.0, "seconds": 3},
    ]
    report = make().import_trials(rows)
    assert [row.outcome for row in report.rows] == [
        *["refused"] * 6, "taken"
    ]  # fmt: skip
    assert "columns that are no parameters: seconds" in str(report)


def test_a_search_begins_with_them_and_evaluates_as_many_as_it_says(tmp_path):
    old = stored(tmp_path / "old.jsonl")
    evaluated = []

    def f(point):
        evaluated.append(point)
        return point["lr"]

    options = {"seed": 1, "warmup": 9, "import_trials": old, "storage": tmp_path / "new.jsonl"}
    for n, total in ((2, 2), (3, 3)):
        result = minimize(f, SPACE, n, ScriptedClient([]), **options)
        assert len(evaluated) == total
    assert [t.reward for t in result.trials[:3]] == [3.0, None, 1.0]
    assert len(result.trials) == 6
    result.optimizer.save(tmp_path / "saved.jsonl")
    loaded = LLMOptimizer.load(tmp_path / "saved.jsonl", ScriptedClient([]))
    assert loaded.imported == {0, 1, 2}


def test_imported_trials_do_not_hide_that_every_evaluation_fails():
    evaluated = []

    def broken(point):
        evaluated.append(point)

    with pytest.raises(RewardError, match=r"broken: none of 5 "):
        minimize(broken, SPACE, 20, ScriptedClient([]), warmup=30, import_trials=table())
    assert len(evaluated) == 5


def test_a_policy_search_begins_with_them(tmp_path):
    options = {"starts": 2, "warmup": 1, "seed": 0}
    with PolicySearch("CartPole-v1", ScriptedClient([]), **options) as first:
        first.run(1)
    with PolicySearch(
        "CartPole-v1",
        ScriptedClient([]),
        **{**options, "warmup": 2},
        import_trials=first.optimizer.trials_dataframe(),
    ) as second:
        assert len(second.optimizer.trials) == 1
        second.run(1)
        assert len(second.optimizer.trials) == 2


def test_the_shell_takes_them(tmp_path, capsys):
    described = tmp_path / "new.json"
    space = {
        "lr": {"type": "number", "minimum": 0, "maximum": 1},
        "layers": {"type": "integer", "minimum": 1, "maximum": 8},
        "act": {"enum": ["relu", "tanh"]},
    }
    described.write_text(json.dumps({"space": space, "direction": "minimize", "warmup": 9}))
    assert main(["tell", str(described), "--import", str(stored(tmp_path / "old.jsonl"))]) == 0
    shown = capsys.readouterr()
    assert "old.jsonl: 3 taken" in shown.err
    assert [json.loads(line)["number"] for line in shown.out.splitlines()] == [1, 2, 3]
    own = {"params": {**POINTS[0][0], "lr": 0.2}, "reward": 2}
    assert main(["tell", str(described), json.dumps(own)]) == 0
    capsys.readouterr()
    assert main(["status", str(described)]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert (counts["trials"], counts["imported"]) == (4, 3)
    (tmp_path / "other.csv").write_text("lr,layers,act,reward\n0.1,2,relu,1\n")
    for _ in range(2):
        assert main(["tell", str(described), "--import", str(tmp_path / "other.csv")]) == 0
        (tmp_path / "other.csv").write_text("lr,layers,act,reward\n0.1,2,relu,2\n")
    assert "withdraw the new one, and tell it with --replaces 5" in capsys.readouterr().err
    (tmp_path / "book.csv").write_text("lr,layer,act,Remarks,reward\n0.1,2,relu,brown,1\n")
    assert main(["tell", str(described), "--import", str(tmp_path / "book.csv")]) == 2
    shown = capsys.readouterr()
    assert "columns that are no parameters: layer, Remarks (a part" in shown.err
    assert "named parts_NAME)\ncolumn 'Remarks': name it" in shown.err
    assert "parameters without a column: layers" in shown.err
    assert not shown.out


class TestTables:
    def test_a_row_with_an_empty_reward_is_taken_once_it_is_measured(self, tmp_path):
        path, optimizer = tmp_path / "plan.csv", make()
        plan = "lr,layers,act,reward,feedback\n0.1,2,relu,3,\n0.2,2,relu,,NMR pending\n"
        path.write_text(plan)
        report = str(optimizer.import_trials(path))
        assert ": 1 taken, 1 open (no reward yet; if one failed, write failed in a" in report
        path.write_text(plan.replace("0.2,2,relu,", "0.2,2,relu,57"))
        assert str(optimizer.import_trials(path)).endswith(": 1 known, 1 taken")
        assert [t.reward for t in optimizer.trials] == [3.0, 57.0]
        path.write_text("lr,layers,act,reward,state\n0.8,2,relu,,failed\n")
        assert optimizer.import_trials(path).taken == 1

    def test_a_row_with_some_of_its_rewards_is_refused(self, tmp_path):
        pandas = pytest.importorskip("pandas")
        path = tmp_path / "plan.csv"
        rows = [{**POINTS[0][0], "lr": 0.1, "a": 1, "b": float("nan"), "feedback": "no b yet"}]
        rows += [{**rows[0], "lr": 0.2, "b": 2}, {**rows[0], "lr": 0.3, "state": "failed"}]
        frame = pandas.DataFrame(rows)
        frame.to_csv(path, index=False)
        for source in (path, frame, rows):
            pair = make(direction={"a": "minimize", "b": "maximize"})
            report = pair.import_trials(source)
            assert report.counts == {"refused": 2, "taken": 1}
            assert "each objective: 'a', 'b'; missing: 'b'" in report.rows[0].reason
            assert "its state is failed, and its reward 1" in report.rows[2].reason
        path.write_text("lr,layers,act,a,b\n0.1,2,relu,,\n")
        assert pair.import_trials(path).counts == {"open": 1}

    def test_an_empty_cell_of_a_frame_is_that_of_a_file(self, tmp_path, caplog):
        pandas = pytest.importorskip("pandas")
        path, nan = tmp_path / "plan.csv", float("nan")
        rows = [{**POINTS[0][0], "lr": n / 10, "reward": nan} for n in range(1, 5)]
        frame = pandas.DataFrame(rows).assign(state=[None, "failed", "complete", None])
        frame = frame.assign(feedback=[None, None, "", "pending"])
        frame.to_csv(path, index=False)
        for source in (path, frame, frame.convert_dtypes()):
            optimizer = make(import_trials=source)
            assert [t.params["lr"] for t in optimizer.trials] == [0.2]
            assert "2 open (no reward yet; " in caplog.text
            assert "1 taken, 1 refused" in caplog.text
            assert "its state is complete, and its reward empty" in caplog.text
            caplog.clear()
        assert make().import_trials(rows).taken == 4  # as `tell` reads NaN

    def test_a_table_of_a_spreadsheet_has_empty_rows_and_blanks(self, tmp_path):
        path, optimizer = tmp_path / "t.csv", make()
        path.write_text("lr,layers,act,reward,state\n0.1 ,2,relu ,3 ,\n,,,,\n0.2,2,relu,  , \n")
        assert optimizer.import_trials(path).counts == {"taken": 1, "open": 1}
        path.write_text("lr,layers,act,reward,state\n0.3,2,relu,,Failed \n0.4,2,relu,1,withdrawn\n")
        report = optimizer.import_trials(path)
        assert report.counts == {"taken": 1, "refused": 1}
        assert "its state is withdrawn, and its reward 1.0" in str(report)
        path.write_text("LR,layers,act,reward,State\n0.3,2,relu,,failed\n")
        assert "'LR': name it lr\ncolumn 'State': name it" in str(optimizer.import_trials(path))
        path.write_text("lr\tlayers\n0,1\t2\n")
        with pytest.raises(StorageError, match="the separator is"):
            optimizer.import_trials(path)

    def test_control_characters_of_a_header_reach_no_terminal(self, tmp_path, capsys, caplog):
        path = tmp_path / "t.csv"
        path.write_text("lr,layers,act,reward,\x1b[31mred\n0.1,2,relu,1,2\n")
        report = make().import_trials(path)
        assert report.taken == 1
        assert "\x1b" not in str(report) + caplog.text + capsys.readouterr().err

    @pytest.mark.parametrize(
        ("table", "named"),
        [
            (f"lr,layers,act,reward,note\n0.1,2,relu,1,{'x' * 200_000}\n", r"line \d+.*CSV"),
            ("lr,layers,act,reward,lr\n0.1,2,relu,1,0.9\n", "lr"),
        ],
        ids=["a cell that is too long", "a column twice"],
    )
    def test_a_table_that_cannot_be_read_is_an_error_in_words(self, tmp_path, table, named):
        path = tmp_path / "t.csv"
        path.write_text(table)
        with pytest.raises(StorageError, match=named):
            make().import_trials(path)


def test_a_text_as_reward_is_refused_with_what_a_table_has_instead(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text('lr,reward,state\n0.1,n.d.,\n0.2,n.d.,failed\n0.3,"1,5",\n0.4,5,Failed\n')
    optimizer = LLMOptimizer({"lr": Float(0, 1)}, "network", direction="minimize")
    rows = optimizer.import_trials(path).rows
    assert [row.outcome for row in rows] == ["refused", "taken", "refused", "refused"]
    assert rows[3].reason == "its state is failed, and its reward 5.0: change one of them"
    assert (
        "not a text; if the evaluation failed, write failed in a column `state`" in rows[0].reason
    )
    assert "None" not in rows[0].reason
    assert "write 1.5" in rows[2].reason


def test_a_row_without_a_column_of_rewards_is_refused():
    report = make().import_trials([{**point, "loss": reward} for point, reward in POINTS])
    assert report.counts == {"refused": 3}
    assert "no reward found; rename its column to 'reward'" in str(report)
    named = make(direction={"yield": "minimize"}).import_trials([POINTS[0][0]])
    assert "rename its column to 'reward' or 'yield'" in str(named)
    assert make().import_trials([{**POINTS[0][0], "state": "failed"}]).counts == {"taken": 1}


@pytest.mark.parametrize("kind", ["storage", "frame", "csv", "study"])
def test_a_violation_counts_once_whatever_the_source(kind, tmp_path, capsys):
    space = Space({"x": Float(0, 10), "y": Float(0, 10)}, constraints=["x + y <= 5"])
    with make(space, storage=tmp_path / "old.jsonl") as source:
        for y, measured in ((4.0, 0.0), (4.5, 2.0), (0.0, 0.5)):
            source.tell({"x": 4.0, "y": y}, 1.0, constraint_violation=measured)
        optimizer = make(space)
        optimizer.import_trials(given(kind, source, capsys))
        assert [t.constraint_violation for t in optimizer.trials] == [3.0, 5.5, 0.5]
        source.tell({"x": 4.0, "y": 4.0}, 2.0, replaces=0, constraint_violation=1.0)
        assert optimizer.import_trials(given(kind, source, capsys)).counts["corrected"] == 1
        assert optimizer.trials[0].constraint_violation == 4.0
    bad = [{"x": 4.0, "y": 4.0, "reward": 1.0, "constraint_violation": -1.0}]
    assert make(space).import_trials(bad).counts == {"refused": 1}


def test_several_rewards_are_read_from_a_table():
    optimizer = make({"lr": Float(0.0, 1.0)}, ("minimize", "maximize"))
    table = [{"lr": 0.1, "reward_0": 1.0, "reward_1": 2.0}]
    assert optimizer.import_trials(table).counts == {"taken": 1}
    assert optimizer.trials[0].rewards == (1.0, 2.0)


def test_a_named_objective_and_parts_are_read_from_a_table(tmp_path):
    path = tmp_path / "book.csv"
    path.write_text(
        "lr,parts_lr,yield,parts_desired,parts_waste\n0.1,0.7,78,80,2\n0.2,0.5,60,61,\n"
    )
    space = {"lr": Float(0.0, 1.0), "parts_lr": Float(0.0, 1.0)}
    optimizer = make(space, {"yield": "maximize"})
    row = {"lr": 1, "parts_lr": 0, "yield": 1, "parts": {"a": 3}}
    for source in (path, [row]):
        report = str(optimizer.import_trials(source))
        assert "refused" not in report
        assert "no parameters" not in report
    parts = [{"desired": 80.0, "waste": 2.0}, {"desired": 61.0}, {"a": 3.0}]
    assert [t.parts for t in optimizer.trials] == parts
    # The same table with a new column completes the trials that came from it; a failure stays.
    optimizer.tell_failure({"lr": 0.9, "parts_lr": 0}, "oven")
    path.write_text(
        "lr,parts_lr,yield,parts_desired,parts_ee,state\n0.1,0.7,78,80,,\n"
        "0.2,0.5,60,61,94,\n0.9,0,,1,,failed\n"
    )
    assert str(optimizer.import_trials(path)).endswith(": 2 known, 1 completed")
    parts[1]["ee"] = 94.0
    assert [t.parts for t in optimizer.trials] == [*parts, {}]
    assert not any(t.corrected or t.old_rewards for t in optimizer.trials)
    assert optimizer.trials[3].feedback == "oven"
    assert str(optimizer.import_trials(path)).endswith(": 3 known")
    assert optimizer.best.reward == 78


@pytest.mark.defect(8)
@pytest.mark.parametrize("source", ["rows", "csv", "frame"])
def test_a_missing_cell_is_the_choice_none(source, tmp_path):
    pandas = pytest.importorskip("pandas")
    rows = [{"d": None, "k": 1, "reward": 1.0}, {"d": 3, "k": 2, "reward": 2.0}]
    path = tmp_path / "rows.csv"
    path.write_text("d,k,reward\n,1,1.0\n3,2,2.0\n")
    sources = {
        "rows": rows,
        "csv": path,
        "frame": pandas.DataFrame(rows),
    }
    optimizer = make({"d": Categorical([None, 3]), "k": Int(1, 2)})
    report = optimizer.import_trials(sources[source])
    assert [row.outcome for row in report.rows] == ["taken", "taken"]
    assert [trial.params["d"] for trial in optimizer.trials] == [None, 3]


def test_a_column_that_a_table_lacks_is_no_choice():
    optimizer = make({"d": Categorical([None, 3]), "k": Int(1, 2)})
    report = optimizer.import_trials([{"k": 1, "reward": 1.0}])
    assert report.rows[0].outcome == "refused"


def test_the_reason_of_a_failure_does_not_grow_from_import_to_import(tmp_path):
    path = stored(tmp_path / "0.jsonl")
    for number in (1, 2):
        with closing(make(storage=tmp_path / f"{number}.jsonl")) as optimizer:
            optimizer.import_trials(path)
        path = optimizer.storage
    assert [t.feedback for t in optimizer.trials] == ["seen", "seen", "seen"]


def test_a_prompt_calls_imported_trials_so_and_states_the_reason_of_a_failure_alone():
    """They were "warm-up" in a search without one, with the reason "no reward; no sample"."""
    client = ScriptedClient(["Start from: new\nProposal: x: 0.5"])
    optimizer = LLMOptimizer({"x": Float(0, 1)}, client, "words", warmup=0)
    failed = {"x": 0.2, "reward": None, "feedback": "no sample", "state": "failed"}
    optimizer.import_trials([{"x": 0.1, "reward": 1.0}, failed])
    optimizer.ask()
    rows = ["#1 | 1 | 0.1 | imported", "#2 | failed | 0.2 | imported", "> no sample"]
    assert client.requests[0].text.partition("| from\n")[2].split("\n")[:3] == rows


def test_a_correction_follows_its_trial_to_the_search_that_imported_it(tmp_path):
    path, noisy = stored(tmp_path / "old.jsonl", noisy=True), make(noisy=True)
    assert noisy.import_trials(path).counts == {"taken": 3}
    with closing(make(storage=path, noisy=True)) as first:
        first.tell(POINTS[0][0], 2.5, replaces=0, feedback="read again", parts={"ee": 9})
        first.tell(POINTS[1][0], 7.0, replaces=1)
        first.tell(POINTS[0][0], 2.5)  # another measurement, and no correction
    report = noisy.import_trials(path)
    assert report.counts == {"corrected": 2, "known": 1, "taken": 1}
    assert "corrected: trial 0 (#1) had 3.0\nrow 2 corrected: trial 1 (#2) had failed" in str(
        report
    )
    assert [t.reward for t in noisy.trials] == [2.5, 7.0, 1.0, 2.5]
    assert noisy.trials[0].feedback == "read again"
    assert noisy.trials[0].parts == {"ee": 9}
    assert noisy.import_trials(path).counts == {"known": 4}


def test_an_import_does_not_undo_a_correction_made_here(tmp_path):
    path, optimizer = stored(tmp_path / "old.jsonl"), make()
    optimizer.import_trials(path)
    for source, second in ((path, 7.0), (table(), 8.0)):
        optimizer.tell(POINTS[0][0], second - 4.5, replaces=0)
        report = optimizer.import_trials(source)
        assert report.counts == {"known": 3}
        assert "row 1 known: it is trial 0, which was corrected" in str(report)
        optimizer.tell(POINTS[1][0], second, replaces=1)
        assert optimizer.import_trials(source).counts == {"known": 3}


def test_a_row_that_may_correct_a_trial_is_doubted():
    optimizer = make()
    optimizer.import_trials(table())
    report = optimizer.import_trials([{**POINTS[0][0], "reward": 2.5}])
    assert report.counts == {"taken": 1}
    assert "trial 0 has its point (reward: 3.0): this is another measurement" in str(report)
    assert "withdraw the new one, and tell it with replaces=0" in str(report)


def test_two_columns_of_rewards_are_refused():
    optimizer = make(direction={"score": "minimize"})
    report = optimizer.import_trials([{**POINTS[0][0], "score": 1.0, "reward": 2.0}])
    assert report.counts == {"refused": 1}
    assert "got columns 'score' and 'reward': keep one of them" in str(report)
    optimizer = make(direction={"lr": "minimize"})  # named as a parameter
    assert optimizer.import_trials(table()).counts == {"taken": 3}


def imported_from(path):
    """Return a source, and a search that has imported it."""
    optimizer = make()
    assert optimizer.import_trials(stored(path)).counts == {"taken": 3}
    return make(storage=path), optimizer


def as_frame(search):
    pytest.importorskip("pandas")
    return search.trials_dataframe()


def as_study(search):
    pytest.importorskip("optuna")
    return search.to_optuna()


def as_shell_table(search, capsys):
    pytest.importorskip("pandas")
    assert main(["status", str(search.storage), "--csv"]) == 0
    path = search.storage.with_suffix(".csv")
    path.write_text(capsys.readouterr().out)
    return path


def given(kind, search, capsys):
    """Return the trials of a search as a source of some kind."""
    if kind == "csv":
        return as_shell_table(search, capsys)
    return {"storage": lambda s: s.storage, "frame": as_frame, "study": as_study}[kind](search)


@pytest.mark.parametrize("kind", ["storage", "frame", "csv", "study"])
def test_a_withdrawn_trial_is_withdrawn_and_restored_where_it_was_imported(kind, tmp_path, capsys):
    def form(search):
        return given(kind, search, capsys)

    source, optimizer = imported_from(tmp_path / "old.jsonl")
    source.withdraw(trial=2, feedback="wrong bottle")
    assert optimizer.import_trials(form(source)).counts == {
        "known": 2,
        "withdrawn here": 1,
    }
    gone = optimizer.trials[2]
    assert (gone.state, gone.feedback, gone.kind) == ("withdrawn", "wrong bottle", "imported")
    assert optimizer.best.reward == 3.0
    source.tell(POINTS[2][0], 0.5, replaces=2)
    for source_says in ("restored", "known"):
        report = optimizer.import_trials(form(source))
        assert report.rows[2].outcome == source_says
        assert [t.reward for t in optimizer.trials] == [3.0, None, 0.5]
    assert optimizer.imported == {0, 1, 2}
    source.withdraw(trial=2)
    assert optimizer.import_trials(form(source)).counts == {
        "known": 2,
        "withdrawn here": 1,
    }
    events = optimizer._journal.state.count
    report = optimizer.import_trials(form(source))
    assert str(report).endswith(": 2 known, 1 withdrawn (not imported)")
    assert optimizer._journal.state.count == events
    source.tell(POINTS[2][0], 0.5)  # the same reward in another run is a new trial
    assert optimizer.import_trials(form(source)).counts["taken"] == 1
    assert optimizer.import_trials(form(source)).counts == {
        "known": 3,
        "withdrawn": 1,
    }
    source.close()


def test_a_withdrawn_failure_is_withdrawn_in_the_search_that_imported_it(tmp_path):
    source, optimizer = imported_from(tmp_path / "old.jsonl")
    with source:
        source.withdraw(trial=1)
        assert optimizer.import_trials(source.storage).counts == {"known": 2, "withdrawn here": 1}
        source.tell(POINTS[1][0], 7.0)
        assert optimizer.import_trials(source.storage).counts["taken"] == 1
    assert [t.state for t in optimizer.trials] == ["complete", "withdrawn", "complete", "complete"]


def test_an_import_undoes_nothing_that_was_corrected_or_withdrawn_here(tmp_path):
    source, optimizer = imported_from(tmp_path / "old.jsonl")
    optimizer.tell(POINTS[0][0], 2.5, replaces=0)
    optimizer.tell(POINTS[1][0], float("nan"), replaces=1, feedback="it burned; no reward; seen")
    optimizer.withdraw(trial=2)
    assert optimizer.import_trials(source.storage).counts == {"known": 3}
    report = str(optimizer.import_trials(source.storage))
    assert "row 3 known: it is trial 2, which was withdrawn" in report
    for number in range(3):
        source.withdraw(trial=number)
    report = optimizer.import_trials(source.storage)
    assert report.counts == {"known": 2, "withdrawn": 1}
    for number in (1, 2):
        said = f"it is trial {number - 1}, which was corrected here: if it is wrong"
        assert f"row {number} known: {said}, withdraw trial={number - 1}" in str(report)
    source.tell(POINTS[2][0], 1.0, replaces=2)
    assert optimizer.import_trials(source.storage).rows[2].outcome == "known"
    assert [t.state for t in optimizer.trials] == ["complete", "failed", "withdrawn"]
    source.close()


@pytest.mark.parametrize("kind", ["frame", "csv"])
def test_an_edit_of_an_exported_table_is_said(kind, tmp_path, capsys):
    source, optimizer = imported_from(tmp_path / "old.jsonl")
    with source:
        rows = given(kind, source, capsys)
    if kind == "csv":
        lines = rows.read_text().splitlines()
        cells = [lines[0].split(","), *(line.split(",") for line in lines[1:])]
        table = [dict(zip(cells[0], row, strict=True)) for row in cells[1:]]
    else:
        table = rows.to_dict("records")
    assert str(optimizer.import_trials(table)).endswith(": 3 known")
    table[0] |= {"reward": 55.0, "params_layers": 3, "feedback": "brown", "parts_ee": 2}
    table[1] |= {"state": "withdrawn"}
    table[2] |= {"state": "failed", "reward": ""}
    events = optimizer._journal.state.count
    assert str(optimizer.import_trials(table)).splitlines() == [
        "trials of the table: 3 known",
        "row 1 known: trial 0 differs: reward 55.0 there, 3.0 here; layers 3 there, 2 here; "
        "feedback 'brown' there, 'seen' here; parts_ee 2.0 there, none here. To take it over, "
        "tell it with replaces=0",
        "row 2 known: trial 1 still counts here: if it is wrong, withdraw trial=1",
        "row 3 known: trial 2 differs: reward failed there, 1.0 here. To take it over, tell it "
        "with replaces=2",
    ]
    table[0]["reward"] = "n/a"
    assert "row 1 known: reward='n/a'" in str(optimizer.import_trials(table))
    optimizer.withdraw(trial=2)
    assert "row 3 known: it is trial 2, which was withdrawn since: reward failed there" in str(
        optimizer.import_trials(table)
    )
    assert optimizer._journal.state.count == events + 1


def test_a_correction_of_words_or_parts_says_what_they_were(tmp_path):
    source, optimizer = imported_from(tmp_path / "old.jsonl")
    with source:
        source.tell(*POINTS[0], replaces=0, feedback="brown", parts={"ee": 2})
        report = str(optimizer.import_trials(source.storage))
        assert report.endswith("row 1 corrected: trial 0 had feedback 'seen', parts_ee none")


def test_a_trial_that_was_corrected_in_both_searches_counts_once(tmp_path):
    source, optimizer = imported_from(tmp_path / "old.jsonl")
    with source:
        for number, (point, _) in enumerate(POINTS):
            optimizer.tell(point, 2.5, replaces=number)
            source.tell(point, 2.0, replaces=number)
        optimizer.withdraw(trial=2)
        report = optimizer.import_trials(source.storage)
        assert report.counts == {"known": 3}
        for n, here in enumerate(("2.5", "2.5", "withdrawn"), 1):
            done = "corrected" if n < 3 else "withdrawn"
            said = f"it is trial {n - 1}, which was {done} here: reward 2.0 there, {here} here"
            assert f"row {n} known: {said}" in str(report)
    assert [t.reward for t in optimizer.trials] == [2.5, 2.5, None]


def test_an_import_does_not_repeat_a_correction_that_was_undone_here(tmp_path):
    source, optimizer = imported_from(tmp_path / "old.jsonl")
    with source:
        source.tell(POINTS[0][0], 2.0, replaces=0)
        assert optimizer.import_trials(source.storage).counts["corrected"] == 1
        optimizer.tell(*POINTS[0], replaces=0)
        assert optimizer.import_trials(source.storage).counts == {"known": 3}


def test_an_older_copy_of_a_withdrawn_trial_does_not_count_again(tmp_path):
    source, older = imported_from(tmp_path / "old.jsonl")
    copy = [{**POINTS[0][0], "reward": 3.0}]
    with source:
        source.tell(POINTS[0][0], 2.5, replaces=0)
        optimizer = make()
        optimizer.import_trials(source.storage)
        optimizer.import_trials(older.trials_dataframe())
        older.import_trials(source.storage)
        source.withdraw(trial=0)
        older.import_trials(source.storage)
    assert older.import_trials(copy).counts == {"known": 1}
    assert older.trials[0].state == "withdrawn"


def test_a_correction_here_is_followed_from_where_it_was_corrected_again(tmp_path):
    source, optimizer = imported_from(tmp_path / "old.jsonl")
    optimizer.tell(POINTS[0][0], 2.5, replaces=0)
    with source:
        assert source.import_trials(optimizer.trials_dataframe()).counts["corrected"] == 1
        source.tell(POINTS[0][0], 2.0, replaces=0)
        assert optimizer.import_trials(source.storage).counts["corrected"] == 1
        source.withdraw(trial=0)
        assert optimizer.import_trials(source.storage).counts["withdrawn here"] == 1


def test_another_failure_is_no_earlier_result_of_a_corrected_trial(tmp_path):
    source, optimizer = imported_from(tmp_path / "old.jsonl")
    with source:
        source.tell(POINTS[1][0], 7.0, replaces=1)
        optimizer.import_trials(source.storage)
        source.tell(POINTS[1][0], float("nan"))
        for outcome in ("taken", "known"):
            assert optimizer.import_trials(source.storage).rows[3].outcome == outcome
        source.tell(POINTS[1][0], float("nan"), replaces=1)
        source.tell(POINTS[1][0], 8.0, replaces=3)
        assert optimizer.import_trials(source.storage).counts == {"known": 2, "corrected": 2}
    assert [t.reward for t in optimizer.trials] == [3.0, None, 1.0, 8.0]


def test_a_trial_of_this_search_is_no_copy(tmp_path):
    path, optimizer = stored(tmp_path / "old.jsonl"), make()
    optimizer.tell(*POINTS[0])
    report = optimizer.import_trials(path)
    assert report.counts == {"taken": 3}
    assert "row 1 taken: trial 0 has its point (reward: 3.0): this is another" in str(report)
    with make(storage=path) as source:
        source.withdraw(trial=0)
    assert optimizer.import_trials(path).counts == {"known": 2, "withdrawn here": 1}
    assert optimizer.trials[0].reward == 3.0


def test_another_failure_is_no_copy_of_a_withdrawn_one(tmp_path):
    source, optimizer = imported_from(tmp_path / "old.jsonl")
    other = make()
    other.import_trials([{**POINTS[1][0], "state": "failed", "feedback": "it exploded"}])
    with source:
        source.withdraw(trial=1, feedback="the pump broke")
        assert other.import_trials(source.storage).counts == {"taken": 2, "withdrawn": 1}
        assert optimizer.import_trials(source.storage).counts == {"known": 2, "withdrawn here": 1}
    assert other.trials[0].state == "failed"
    assert optimizer.trials[1].feedback == "the pump broke"


def test_of_equal_trials_the_one_with_the_same_words_is_withdrawn(tmp_path):
    path, optimizer = tmp_path / "old.jsonl", make(noisy=True)
    with make(noisy=True, storage=path) as source:
        for words in ("brown", "green"):
            source.tell(*POINTS[0], feedback=words)
        optimizer.import_trials(path)
        source.withdraw(trial=0)
        assert optimizer.import_trials(path).counts == {"known": 1, "withdrawn here": 1}
    assert [t.state for t in optimizer.trials] == ["withdrawn", "complete"]


def test_a_correction_before_the_withdrawal_is_the_same_trial(tmp_path):
    source, optimizer = imported_from(tmp_path / "old.jsonl")
    with source:
        source.tell(POINTS[0][0], 2.5, replaces=0)
        source.withdraw(trial=0)
        assert optimizer.import_trials(source.storage).counts["withdrawn here"] == 1
        source.tell(POINTS[2][0], 0.5, replaces=2)
        assert optimizer.import_trials(source.storage).counts["corrected"] == 1
        source.withdraw(trial=2)
        assert optimizer.import_trials(source.storage).counts["withdrawn here"] == 1


@pytest.mark.parametrize("noisy", [False, True])
def test_a_point_to_start_with_is_not_asked_if_its_result_is_imported(noisy, tmp_path):
    other = {"lr": 0.2, "layers": 3, "act": "tanh"}
    start = [other, {**POINTS[2][0]}, {**POINTS[0][0]}]
    search = {"start": start, "noisy": noisy, "storage": tmp_path / "new.jsonl"}
    path = stored(tmp_path / "old.jsonl")
    with make(**search) as optimizer:
        optimizer.enqueue(POINTS[1][0], "an idea")
        report = str(optimizer.import_trials(path))
        left = [*start, POINTS[1][0]] if noisy else [other]
        assert optimizer.queued == left
        assert (
            "queued points that have a result now, and are not asked: [{" in report
        ) is not noisy
        assert optimizer.trials[1].explanation == ("" if noisy else "an idea")
        assert optimizer.import_trials(path).counts == {"known": 3}
        optimizer.enqueue(POINTS[2][0])  # once more
    with make(**search) as optimizer:
        assert optimizer.pending == []
        assert optimizer.imported == {0, 1, 2}
        optimizer.import_trials(path)
        assert optimizer.ask(len(left) + 1) == [*left, POINTS[2][0]]


@pytest.mark.parametrize(("prompt", "said"), [("props", " of 7. Propose"), ("words", "at most 7")])
def test_prompts_name_imported_points_apart_from_the_planned_ones(prompt, said):
    rows = [{"x": n / 9, "reward": float(n)} for n in range(4)]
    options = {"import_trials": rows, "prompt": prompt, "description": "d", "warmup": 0}
    clients = [ScriptedClient([f'{{"x": 0.{n}}}' for n in "3579"]) for _ in range(2)]
    minimize(lambda p: p["x"], {"x": Float(0, 1)}, 3, clients[0], **options)
    own = LLMOptimizer({"x": Float(0, 1)}, clients[1], direction="minimize", total=3, **options)
    for _ in range(3):
        own.tell(point := own.ask(), point["x"])
    for client in clients:
        texts = [request.messages[-1].content for request in client.requests]
        assert all(said in text and "\n4 of the 7 points were imported." in text for text in texts)
        assert not any("Running low" in text for text in texts)  # of fewer than five


@pytest.mark.parametrize(
    ("factor", "limits", "total"),
    [
        (1, ["lr + layers <= 3"], 2.0),  # the study's constraint is that of the search
        (2, ["lr + layers <= 3"], 5.0),
        (1, [], 2.0),
    ],
)
def test_a_constraint_of_a_study_and_of_the_search_counts_once(factor, limits, total):
    optuna = pytest.importorskip("optuna")
    made, old = optuna.create_study(direction="minimize"), study().trials[0]
    for layers in (2, 3, 4):
        values = [factor * (0.5 + layers - 3), layers - 3.5]  # the second one is measured
        made.add_trial(
            optuna.trial.create_trial(
                params={**old.params, "lr": 0.5, "layers": layers},
                distributions=old.distributions,
                value=float(layers),
                system_attrs={"constraints": values},
            )
        )
    optimizer = make(constraints=limits)
    said = str(optimizer.import_trials(made))
    assert [t.constraint_violation for t in optimizer.trials] == pytest.approx(
        [0.0, {2.0: 0.5, 5.0: 1.5}[total], total]
    )
    assert ("'0' of the study is 'lr + layers <= 3' here, and counts once" in said) == (
        bool(limits) and factor == 1
    )
    assert ("count beside" in said) == bool(limits)


def test_the_names_of_objectives_say_which_reward_is_which(tmp_path):
    pytest.importorskip("optuna")
    pytest.importorskip("pandas")
    kinds = {"yield": "maximize", "cost": "maximize"}
    there = make(direction=kinds, storage=tmp_path / "a.jsonl")
    there.tell(POINTS[0][0], {"yield": 5, "cost": 2}, stderr=0.1)
    for source in (there.storage, there.to_optuna(), there.trials_dataframe()):
        here = make(direction={"cost": "maximize", "yield": "maximize"})
        assert here.import_trials(source).taken == 1
        assert (here.trials[0].rewards, here.trials[0].stderr) == ((2.0, 5.0), (None, 0.1))
        assert here.import_trials(source).counts == {"known": 1}
    with pytest.raises(ParameterError, match="are 'yield', 'cost', and here 'yield', 'pr"):
        make(direction={"yield": "maximize", "price": "maximize"}).import_trials(there.storage)


def test_an_imported_result_of_an_asked_point_is_one_of_the_planned_ones():
    client = ScriptedClient([f'{{"lr": 0.{n}, "layers": 2, "act": "relu"}}' for n in "357"])
    optimizer = LLMOptimizer(SPACE, client, "props", "minimize", warmup=0, total=3)
    optimizer.import_trials([{**optimizer.ask(), "reward": 1.0}, {**POINTS[0][0], "reward": 2.0}])
    optimizer.ask()
    text = client.requests[-1].messages[-1].content
    assert "1 of the 4 points were imported." in text
    assert "iteration 3 of 4" in text
    assert optimizer.imported == {1}
