"""`candidates=`: a table of the only points that exist."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import re
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples
from stubs import needs_confinement

import llmopt
from llmopt import (
    Categorical,
    Completion,
    Float,
    Int,
    LLMOptimizer,
    Reply,
    ScriptedClient,
    SearchStopped,
    Space,
)
from llmopt.cli import main
from llmopt.errors import FallbackWarning, LLMOptError, ParameterError, SpaceError, StorageError
from llmopt.finals import Finals
from llmopt.points import what_is_known
from llmopt.service.mcp_tools import SearchFolder

LIGANDS = ("XPhos", "SPhos", "PPh3")
ROWS = [
    {"ligand": ligand, "T": t, "conc": conc, "pKa": 5.5 + k + t / 100}
    for k, ligand in enumerate(LIGANDS)
    for t in (30, 45, 60, 90)
    for conc in (0.057, 0.1, 0.22, 0.3104)
][:-3]
NAMES = ["ligand", "T", "conc"]
POINTS = [{name: row[name] for name in NAMES} for row in ROWS]
NUMBERS = [{"T": t, "conc": c} for t in (30, 45, 60, 90) for c in np.geomspace(0.01, 20, 5)]


def proposal(**values):
    pairs = ", ".join(f"{name}: {value}" for name, value in values.items())
    return f"Analysis: none.\nHypothesis: h.\nStart from: new\nProposal:\n{pairs}"


def chat(*answers, **options):
    answers = answers or (proposal(ligand="XPhos", T=47, conc=0.1),)
    options = {"warmup": 0, "seed": 1, "compute": False, "candidates": ROWS, **options}
    space = options.pop("space", NAMES)
    return LLMOptimizer(space, ScriptedClient(answers * 99), "words", **options)


def all_of(optimizer, n=1):
    """Ask until the search ends, and return all points."""
    points = []
    with contextlib.suppress(SearchStopped), warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        while len(points) < 200:
            for point in optimizer.ask(n):
                points.append(point)
                optimizer.tell(point, float(len(points) % 7))
    return points


def unique(points):
    return {json.dumps(point, sort_keys=True) for point in points}


@pytest.mark.parametrize(
    ("client", "options"),
    [
        ("network", {}),
        ("network", {"warmup": 5, "batch_size": 3}),
        (ScriptedClient(["nothing"] * 999), {"prompt": "words", "attempts": 1}),
        (ScriptedClient([proposal(T=44, conc=0.4)] * 999), {"prompt": "props", "attempts": 2}),
        ("network", {"partner": "network"}),
        ("network", {"partner": "cma"}),
    ],
    ids=["columns", "warm-up and batches", "fallback", "props", "partner network", "partner cma"],
)
def test_every_proposal_is_a_row_and_none_comes_twice(client, options):
    rows = NUMBERS if options.get("partner") == "cma" or "props" in options.values() else POINTS
    options = {"seed": 3, "compute": False, "max_fallbacks": None, **options}
    optimizer = LLMOptimizer(None, client, candidates=rows, **options)
    points = all_of(optimizer, n=4)
    assert len(points) == len(rows)
    assert unique(points) == unique(rows)
    with pytest.raises(SearchStopped, match=f"all {len(rows)} candidates were proposed"):
        optimizer.ask()


@examples(60)
@given(st.data())
def test_any_answer_gives_a_row_or_a_complaint_that_names_the_nearest(data):
    """Only values that read as those of a row, to the digits shown, are one."""
    t, conc = data.draw(st.integers(30, 90)), data.draw(st.floats(0.057, 0.3104))
    ligand = data.draw(st.sampled_from(LIGANDS))
    optimizer = chat(proposal(ligand=ligand, T=t, conc=f"{conc:.3f}"), attempts=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        point = optimizer.ask()
    assert point in POINTS
    exists = any(
        (p["ligand"], p["T"], f"{p['conc']:.3f}") == (ligand, t, f"{conc:.3f}") for p in POINTS
    )
    assert optimizer.usage.rejected.get("candidate", 0) == (not exists)
    if exists:
        assert (point["ligand"], point["T"]) == (ligand, t)


def test_a_near_miss_is_answered_with_the_row_of_most_equal_columns():
    miss, hit = proposal(ligand="SPhos", T=47, conc=0.1), proposal(ligand="SPhos", T=45, conc=0.31)
    optimizer = chat(miss, hit)
    assert optimizer.ask() == {"ligand": "SPhos", "T": 45, "conc": 0.3104}  # by its digits
    complaint = optimizer.client.requests[-1].messages[-1].content
    assert "the nearest one is ligand: SPhos, T: 45, conc: 0.100" in complaint


def test_equal_columns_count_before_the_distance():
    rows = [{"a": 0, "b": 0, "c": 0}, {"a": 10, "b": 9, "c": 9}, {"a": 2, "b": 1, "c": 1}]
    table = LLMOptimizer(candidates=rows, client="smollm2").space.candidates
    assert table.nearest((10, 0, 1)) != (10, 9, 9)  # each row has one equal column
    assert table.nearest((10, 1, 1), equal_first=True) == (2, 1, 1)
    assert table.nearest((10, 5, 4)) == (10, 9, 9)  # one equal column before a smaller distance
    assert table.nearest((10, 2, 2), equal_first=False) == (2, 1, 1)


def test_a_doubt_names_the_row_that_keeps_the_first_columns():
    pairs = [("XPhos", "dioxane"), ("PCy3", "toluene")]
    rows = [{"ligand": ligand, "solvent": solvent} for ligand, solvent in pairs]
    table = LLMOptimizer(candidates=rows, client="smollm2").space.candidates
    assert "nearest: {'ligand': 'PCy3', 'solvent': 'toluene'}" in table.complaint(
        ("PCy3", "dioxane")
    )
    assert table.nearest(("PCy3", "dioxane")) == ("XPhos", "dioxane")  # as proposals have it


def test_points_of_the_user_are_rows_and_other_results_are_recorded_with_a_warning(caplog):
    optimizer = chat(start=[POINTS[3]])
    assert optimizer.ask() == POINTS[3]
    optimizer.tell({"ligand": "XPhos", "T": 33, "conc": 0.2}, 1.0)  # measured before
    assert "trial 0: " in caplog.text
    assert "nearest: {'ligand': 'XPhos', 'T': 30, 'conc': 0.22}" in caplog.text
    caplog.clear()
    optimizer.tell({**POINTS[3], "T": 31}, 1.0, instead_of=POINTS[3])
    optimizer.tell(POINTS[5], 1.0)
    assert not caplog.records
    report = optimizer.import_trials(
        [{**POINTS[6], "reward": 1}, {**POINTS[7], "T": 44, "reward": 1}]
    )
    assert report.counts == {"taken": 2}
    assert "row 2 taken: {'ligand': 'XPhos', 'T': 44" in str(report)
    assert "row 1" not in str(report)
    with pytest.raises(ParameterError, match=r"is no candidate; nearest: .*45"):
        optimizer.enqueue({"ligand": "XPhos", "T": 44, "conc": 0.1})
    with pytest.raises(ParameterError, match=r"warmup\[0\]"):
        chat(warmup=[{"ligand": "XPhos", "T": 44, "conc": 0.1}])


def test_a_row_in_whose_place_another_point_was_measured_is_spent():
    optimizer = LLMOptimizer(None, "network", candidates=POINTS[:2], warmup=2)
    for point in optimizer.ask(2):
        optimizer.tell({**point, "conc": 0.08}, 1.0, instead_of=point)
    with pytest.raises(SearchStopped, match="all 2 candidates"):
        optimizer.ask()


def test_fixed_values_leave_the_rows_that_have_them():
    optimizer = LLMOptimizer(None, "network", candidates=POINTS, warmup=0, seed=1)
    points = []
    for n in (3, 30):
        for point in optimizer.ask(n, fixed={"ligand": "PPh3", "T": 45}):
            points.append(point)
            optimizer.tell(point, 1.0)
    assert len(points) == 4
    assert unique(points) == unique(p for p in POINTS if (p["ligand"], p["T"]) == ("PPh3", 45))
    with pytest.raises(ParameterError, match="no candidate with ligand = PPh3, T = 45 is left"):
        optimizer.ask(fixed={"ligand": "PPh3", "T": 45})
    with pytest.raises(
        ParameterError, match="no candidate has T = 44: add one, or give other values"
    ):
        optimizer.ask(fixed={"T": 44})


def test_fewer_points_than_asked_for_are_returned_at_the_end():
    optimizer = LLMOptimizer(None, "network", candidates=POINTS[:3], warmup=2)
    assert len(optimizer.ask(2)) == 2
    assert len(optimizer.ask(5)) == 1
    result = llmopt.minimize(lambda p: p["T"], None, 50, "network", candidates=POINTS[:9])
    assert len(result.trials) == 9
    assert "all 9 candidates were proposed" in result.stopped


def test_noisy_searches_repeat_rows():
    optimizer = LLMOptimizer(None, "network", candidates=POINTS[:3], noisy=True)
    assert len(all_of(optimizer, 2)) == 200


def test_prompts_state_what_exists():
    def words(rows, space=NAMES):
        optimizer = LLMOptimizer(space, "network", candidates=rows)
        return "\n".join(what_is_known(optimizer.space, optimizer.history))

    text = words(ROWS)
    assert "- T: 30, 45, 60, 90\n- conc: 0.057, 0.100, 0.220, 0.310\nBut not these 3:" in text
    assert "- ligand: PPh3, T: 90, conc: 0.100" in text
    assert "Only these 5 points exist:\n- ligand: XPhos, T: 30, conc: 0.057" in words(ROWS[:5])
    rng = np.random.default_rng(0)
    text = words({"a": rng.integers(9, size=500), "b": rng.random(500)}, None)
    assert "Only 500 points exist" in text
    assert "- b: 500 values" in text
    space = {"a": Int(0, 1), "b": Int(0, 999), "free": Float(0, 1)}
    text = words({"a": [0, 1] * 300, "b": list(range(600))}, space)
    assert text.startswith("Only 600 combinations of a, b exist, the rows of a table, 50% of")
    assert "b: 600 values" in text
    assert words({"b": [1, 5]}, space) == "b: one of these values: 1, 5"


def test_the_table_may_be_dicts_a_frame_columns_or_a_file(tmp_path):
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame(POINTS).to_csv(tmp_path / "table.csv", index=False)
    columns = {name: [row[name] for row in POINTS] for name in NAMES}
    tables = [POINTS, pandas.DataFrame(POINTS), columns, tmp_path / "table.csv"]
    spaces = [Space.among(None, table) for table in tables]
    assert len(set(spaces)) == 1
    ligand = Categorical(LIGANDS)
    assert spaces[0].dimensions == (ligand, Int(30, 90), Float(0.057, 0.3104))
    assert Space.among(None, {"x": [1e-6, 2.5]}).dimensions[0] == Float(1e-6, 2.5, log=True)
    wider = Space.among({"ligand": ligand, "T": Float(0, 99), "conc": Float(0, 1)}, tables[-1])
    assert wider.points() == [tuple(point.values()) for point in POINTS]


def test_conditions_and_constraints_hold_for_rows():
    space = Space({"kind": Categorical(["a", "b"]), "x": Float(0, 1, when={"kind": "a"})})
    table = [{"kind": "b"}, {"kind": "a", "x": 0.25}, {"kind": "a", "x": 0.5}]
    optimizer = LLMOptimizer(space, "network", candidates=table)
    assert unique(all_of(optimizer)) == unique(table)
    for space, table in ((None, POINTS), (Space.among(None, POINTS), None)):
        optimizer = LLMOptimizer(space, "network", candidates=table, constraints=["T <= 45"])
        assert unique(all_of(optimizer, 5)) == unique(p for p in POINTS if p["T"] <= 45)


@pytest.mark.parametrize(
    ("table", "space", "message"),
    [
        ([], None, "the table is empty"),
        (POINTS, [*NAMES, "Temp"], "there is no column `Temp`"),
        ([*POINTS, POINTS[4]], None, "row 46 repeats row 5"),
        (
            POINTS,
            {"ligand": Categorical(["XPhos", "SPhos"])},
            "row 33: .*cannot read 'PPh3'.* add it to the choices .* a new one",
        ),
        (POINTS, {"T": Int(30, 60)}, r"row 13: `T`=90.* is outside \[30, 60\]"),
        ([*POINTS, {"ligand": "XPhos", "T": 1}], None, "row 46: there is no `conc`"),
        ({"a": [1], "b": [1, 2]}, None, "columns of different lengths"),
        ("table.txt", None, "expected the path of a CSV file"),
        (3, None, "expected a list of dicts"),
        (POINTS, None, "no row keeps the constraints"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(table, space, message):
    constraints = ["46 <= T", "T <= 59"] if "constraints" in message else []
    with pytest.raises(SpaceError, match=message):
        Space.among(space, table, constraints)


def test_parameters_without_a_column_stay_free(tmp_path, caplog):
    choices = {"PPh3": "P(c1)", "PMe3": "CP(C)C", "XPhos": "CC(C)"}
    space = {
        "T": Float(30, 90),
        "ligand": Categorical(choices),
        "base": Categorical(["KOH", "Et3N"]),
        "n": Float(1, 9),
        "water": Float(0, 1, when={"base": "KOH"}),
    }
    rows = [("PPh3", "KOH", 2), ("PPh3", "KOH", 3), ("PMe3", "Et3N", 5), ("PMe3", "KOH", 5)]
    table = [dict(zip(("ligand", "base", "n"), row, strict=True)) for row in rows]
    miss = proposal(T=40, ligand="PMe3", base="Et3N", n=4)
    hit = proposal(T=40.5, ligand="PMe3", base="Et3N", n=5)
    options = {"space": space, "candidates": table, "storage": tmp_path / "s.jsonl"}
    with chat(miss, hit, **options) as optimizer:
        point = {"T": 40.5, "ligand": "CP(C)C", "base": "Et3N", "n": 5}
        assert optimizer.ask() == point
        line = "(PPh3, KOH, 2.00 or 3.00), (PMe3, Et3N, 5.00), (PMe3, KOH, 5.00)"
        text = f"ligand, base, n: one of these combinations: {line}"
        assert text in optimizer.client.requests[0].text
        assert optimizer.usage.rejected == {"candidate": 1}
        trial = optimizer.tell({**point, "n": 4}, 1.0)
        assert trial.constraint_violation == 0
        assert re.search(r"'n': 4.0} is no candidate; nearest: .*5.0}", caplog.text)
        with pytest.raises(ParameterError, match=r"is no candidate; nearest: .*PMe3"):
            optimizer.enqueue({**point, "n": 2})
        fixed = optimizer.ask(fixed={"base": "KOH", "ligand": "PMe3"})
        assert (fixed["base"], fixed["n"]) == ("KOH", 5)
        rng = np.random.default_rng(0)
        points = [optimizer.space.labelled(optimizer.space.sample(rng)) for _ in range(99)]
    assert {(p["ligand"], p["base"], p["n"]) for p in points} == set(rows)
    assert all(("water" in p) == (p["base"] == "KOH") for p in points)
    assert len({p["T"] for p in points}) > 90
    for again in ({"candidates": table}, {}):
        with LLMOptimizer.load(tmp_path / "s.jsonl", ScriptedClient([]), **again) as loaded:
            assert loaded.space == optimizer.space
    with pytest.raises(SpaceError, match="so `n` may have no condition"):
        chat(space={**space, "n": Float(1, 9, when={"base": "KOH"})}, candidates=table)
    with pytest.raises(SpaceError, match="no column `ligands`; did you mean 'ligand'"):
        chat(space={"ligands": space["ligand"], "base": space["base"]}, candidates=table)


@pytest.mark.parametrize("client", ["network", ScriptedClient(["nothing"] * 999)])
def test_all_points_of_a_table_beside_free_parameters_are_tried(client):
    """Constraints may relate columns and free parameters."""
    space = {"a": Int(0, 30), "b": Categorical(["x", "y"]), "free": Int(0, 3)}
    table = [{"a": 30, "b": "x"}, {"a": 2, "b": "y"}, {"a": 29, "b": "y"}]
    options = {"warmup": 2, "attempts": 1, "max_fallbacks": None, "constraints": ["a + free <= 31"]}
    optimizer = LLMOptimizer(space, client, prompt="auto", candidates=table, **options)
    rows = [{**row, "free": k} for row in table for k in range(4) if row["a"] + k <= 31]
    assert optimizer.space.cardinality == len(rows) == 9
    points = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        for _ in range(9):
            points.append(optimizer.ask())
            optimizer.tell(points[-1], 1.0)
    assert unique(points) == unique(rows)


class TestStorage:
    def test_a_search_resumes_with_a_table_of_the_same_parameters(self, tmp_path):
        path = tmp_path / "s.jsonl"

        def asked(table, **options):
            options = {"seed": 5, "storage": path, "space": NAMES, **options}
            space = options.pop("space")
            with LLMOptimizer(space, "network", candidates=table, **options) as optimizer:
                points = optimizer.ask(2)
                for point in points:
                    optimizer.tell(point, 1.0)
                return points

        first = asked(ROWS)
        assert path.stat().st_size < 6000  # not the table
        with LLMOptimizer(NAMES, "network", seed=5, candidates=ROWS) as whole:
            other = [whole.ask(2)]
            for point in other[0]:
                whole.tell(point, 1.0)
            assert [first, asked(ROWS)] == [*other, whole.ask(2)]
        for changed in (ROWS[:-1], [*ROWS[:-1], {**ROWS[-1], "conc": 0.2}], ROWS[::-1]):
            asked(changed)
        with pytest.raises(StorageError, match=r"other candidates \(there 45, now none"):
            asked(None, space={"T": Int(30, 90)})
        with pytest.raises(StorageError, match="only now: pKa"):
            asked(ROWS, space=[*NAMES, "pKa"])
        for empty in ([], {name: [] for name in ROWS[0]}):
            with pytest.raises(SpaceError, match="the table is empty"):
                asked(empty)

    def test_a_loaded_search_needs_the_table_to_ask_but_not_to_read(self, tmp_path):
        path = tmp_path / "s.jsonl"
        with LLMOptimizer(NAMES, "network", candidates=ROWS, storage=path) as optimizer:
            optimizer.tell(optimizer.ask(), 1.0)
        loaded = LLMOptimizer.load(path)
        assert len(loaded.trials) == 1
        with pytest.raises(SpaceError, match="give the table again, as candidates="):
            loaded.ask()
        assert LLMOptimizer.load(path, candidates=ROWS).ask() in POINTS


class TestOtherTable:
    """A reagent runs out, or a new bottle arrives: a resumed search takes another table."""

    def resumed(self, path, table, client="network", **options):
        options = {"space": NAMES, "seed": 5, **options}
        space = options.pop("space")
        return LLMOptimizer(space, client, storage=path, candidates=table, **options)

    @pytest.mark.parametrize("space", [NAMES, None])
    @pytest.mark.parametrize("options", [{}, {"partner": "network"}, {"batch_size": 3}])
    def test_rows_that_are_gone_are_not_proposed(self, tmp_path, caplog, space, options):
        """The choices and bounds that followed from the first table stay."""
        path, table = tmp_path / "s.jsonl", POINTS if space is None else ROWS
        options |= {"space": space, "warmup": 3}
        with self.resumed(path, table, **options) as optimizer:
            for point in optimizer.ask(5):
                optimizer.tell(point, 1.0)
            first, trials = optimizer.space, optimizer.trials
            pending = optimizer.ask(2)
        kept = [row for row in table if row["ligand"] != "XPhos" and row["T"] != 90]
        with self.resumed(path, kept, **options) as optimizer:
            assert f"resumes with other candidates (there 45, now {len(kept)})" in caplog.text
            assert optimizer.space.whole == first.whole
            assert optimizer.trials == trials
            assert optimizer.pending == pending
            for point in pending:
                optimizer.tell(point, 2.0)
            before = [trial.params for trial in optimizer.trials]
            points = all_of(optimizer, 2)
            left = [{n: row[n] for n in NAMES} for row in kept]
            left = [point for point in left if point not in before]
            assert unique(points) == unique(left)
            assert len(points) == len(left)
            count = len(optimizer.trials)
        caplog.clear()
        assert not LLMOptimizer.load(path, candidates=kept).trials == []
        loaded = LLMOptimizer.load(path)
        assert (loaded.space.candidates.size, len(loaded.trials)) == (len(kept), count)
        with self.resumed(path, kept, **options) as optimizer:  # its file has this table now
            assert "resumes with" not in caplog.text
        with self.resumed(path, table, **options) as optimizer:  # and rows may come back
            assert unique([*before, *points, *all_of(optimizer)]) == unique(POINTS)

    def test_rows_are_added_where_the_space_has_their_values(self, tmp_path):
        path = tmp_path / "s.jsonl"
        with self.resumed(path, ROWS[:-3]) as optimizer:
            optimizer.tell(optimizer.ask(), 1.0)
        with self.resumed(path, ROWS) as optimizer:
            assert optimizer.space.cardinality == 45
            assert len(all_of(optimizer)) == 44
        for new in ({**ROWS[0], "ligand": "dppf"}, {**ROWS[0], "T": 120}):
            with pytest.raises(SpaceError, match=r"row 46: .*begin a new file with `space`"):
                self.resumed(path, [*ROWS, new])
        with pytest.raises(SpaceError, match=r"row 46 repeats row 1.* one row for each point$"):
            self.resumed(path, [*ROWS, ROWS[0]])
        with self.resumed(path, ROWS) as optimizer:
            assert len(optimizer.trials) == 45

    def test_queued_points_wait_until_their_row_is_back(self, tmp_path):
        path, gone = tmp_path / "s.jsonl", POINTS[0]
        with self.resumed(path, ROWS, start={"now": POINTS[1]}) as optimizer:
            optimizer.enqueue(gone)
            optimizer.enqueue({"ligand": "XPhos", "T": 45})
            optimizer.enqueue({"ligand": "PPh3"})
        kept = [row for row in ROWS if row["ligand"] != "XPhos"]
        with self.resumed(path, kept, start={"now": POINTS[1]}) as optimizer:
            with pytest.warns(UserWarning, match="a queued point waits") as said:
                points = optimizer.ask(2)
            assert points[0]["ligand"] == "PPh3"  # completed, though another one waits
            assert points[1]["ligand"] != "XPhos"
            assert len([w for w in said if "waits" in str(w.message)]) == 3
            assert "no candidate has ligand = XPhos, T = 45" in "".join(
                str(w.message) for w in said
            )
            assert optimizer.queued[:2] == [POINTS[1], gone]
            with pytest.raises(ParameterError, match="is no candidate"):
                optimizer.enqueue(gone)
            with pytest.raises(ParameterError, match="no candidate has"):
                optimizer.ask(fixed={"ligand": "XPhos"})
            optimizer.withdraw({"ligand": "XPhos", "T": 45})
            with pytest.warns(UserWarning, match="a queued point waits"):
                optimizer.ask()
            assert LLMOptimizer.load(path).queued == [POINTS[1], gone]
        with self.resumed(path, ROWS, start={"now": POINTS[1]}) as optimizer:
            assert optimizer.ask(2) == [POINTS[1], gone]

    def test_a_queued_point_that_waits_is_not_being_measured(self, tmp_path):
        path, (asked, gone, new) = tmp_path / "s.jsonl", (POINTS[0], POINTS[1], POINTS[-1])
        answer = "\n".join(f"{name}: {value}" for name, value in new.items())
        client, options = ScriptedClient([answer]), {"warmup": 0, "start": [asked, gone]}
        with self.resumed(path, ROWS, **options) as optimizer:
            assert optimizer.ask() == asked
        kept = [row for row, point in zip(ROWS, POINTS, strict=True) if point != gone]
        with self.resumed(path, kept, client, prompt="words", **options) as optimizer:
            with pytest.warns(UserWarning, match="a queued point waits"):
                assert optimizer.ask() == new
        prompt = str(client.requests[0].messages)
        assert ("Being measured now" in prompt, optimizer.queued) == (True, [gone])
        text = prompt.split("Being measured now, do not propose:\\n")[1].split("\\n\\n")[0]
        assert "\\n" not in text, text

    def test_a_point_of_a_list_to_warm_up_with_is_replaced(self, tmp_path):
        path, warmup = tmp_path / "s.jsonl", POINTS[:3]
        with self.resumed(path, ROWS, warmup=warmup) as optimizer:
            assert optimizer.ask() == POINTS[0]
        with self.resumed(path, [ROWS[0], *ROWS[2:]], warmup=warmup) as optimizer:
            with pytest.warns(FallbackWarning, match=r"warmup\[1\]: .*It is a random point now"):
                points = optimizer.ask(2)
            assert points[0] in POINTS[2:]
            assert points[1] == POINTS[2]
        assert len(LLMOptimizer.load(path).pending) == 3

    def test_old_trials_are_no_mistakes(self, tmp_path):
        """A point is in doubt only if it was none when its result was recorded."""
        path = tmp_path / "s.jsonl"
        with self.resumed(path, ROWS) as optimizer:
            pending = optimizer.ask()
            optimizer.tell(POINTS[0] if pending != POINTS[0] else POINTS[1], 1.0)
        done = [pending, optimizer.trials[0].params]
        kept = [row for row in ROWS if {n: row[n] for n in NAMES} not in done]
        loaded = LLMOptimizer.load(path, candidates=kept)
        assert loaded.doubt(loaded.trials[0]) == ""
        with self.resumed(path, kept) as optimizer:
            assert optimizer.doubt(optimizer.trials[0]) == ""
            trial = optimizer.tell(pending, 1.0)
            assert [optimizer.doubt(t) for t in optimizer.trials] == ["", ""]
            assert optimizer.tell(done[1], 3.0, replaces=0).reward == 3.0
            assert optimizer.doubt(optimizer.trials[0]) == ""
            wrong = {**POINTS[5], "T": 46}
            assert "is no candidate" in optimizer.doubt(
                optimizer.tell(wrong, 1.0, replaces=trial.number)
            )
            study = optimizer.to_optuna()
            assert [t.user_attrs.get("llmopt:outside") for t in study.trials] == [None, True]

    @pytest.mark.parametrize("prompt", ["words", "props", "Name {{ labels }}."])
    @pytest.mark.parametrize("ended", [KeyboardInterrupt, "after its answer"])
    def test_an_ask_that_was_killed_is_made_within_the_new_table(self, tmp_path, prompt, ended):
        """Its answer names a row that is gone."""
        path = tmp_path / "s.jsonl"
        answers = [proposal(ligand=ligand, T=60, conc=0.1) for ligand in LIGANDS[:2]]
        if prompt != "words":
            answers = [text.rpartition("\n")[2] for text in answers]

        def client(*texts):
            return ScriptedClient(texts, name="model", default_prompt="props")

        def answer(*_):
            raise KeyboardInterrupt

        first = client(*answers[:1]) if ended == "after its answer" else client()
        if ended is KeyboardInterrupt:
            first = ScriptedClient(answer, name="model", default_prompt="props")
        options = {"prompt": prompt, "warmup": 1, "compute": False}
        optimizer = self.resumed(path, ROWS, first, **options)
        optimizer.tell(optimizer.ask(), 1.0)
        with pytest.MonkeyPatch.context() as patch:
            if ended == "after its answer":
                patch.setattr(optimizer, "_settle", answer)
            with pytest.raises(KeyboardInterrupt):
                optimizer.ask()
        optimizer.close()
        kept = [row for row in ROWS if row["ligand"] != "XPhos"]
        with self.resumed(path, kept, client(*answers * 9), **options) as optimizer:
            point = optimizer.ask()
            assert point["ligand"] != "XPhos"
            assert point in POINTS
            assert not optimizer.unanswered

    def test_rows_of_a_table_beside_free_parameters_may_go(self, tmp_path):
        path, space = tmp_path / "s.jsonl", {"base": Categorical(["a", "b", "c"]), "n": Int(0, 2)}
        table = [{"base": base} for base in "abc"]
        options = {"space": space, "warmup": 0, "prompt": "props"}
        with self.resumed(path, table, ScriptedClient([]), **options) as optimizer:
            for n in range(3):
                optimizer.tell({"base": "a", "n": n}, 1.0)
        points = [{"base": base, "n": n} for base in "bc" for n in range(3)]
        client = ScriptedClient([f"base: {p['base']}, n: {p['n']}" for p in points])
        with self.resumed(path, table[1:], client, **options) as optimizer:
            for point in points:  # the model is asked for the last ones, too
                assert optimizer.ask() == point
                optimizer.tell(point, 1.0)
            assert optimizer.usage.fallbacks == 0
            with pytest.warns(FallbackWarning, match="every point of the space was already tried"):
                assert optimizer.ask() in points

    def test_a_point_that_is_gone_is_not_measured_again(self, tmp_path):
        path = tmp_path / "s.jsonl"
        options = {"noisy": True, "warmup": 2}
        with self.resumed(path, ROWS, **options) as optimizer:
            for reward, point in enumerate(POINTS[:8]):
                optimizer.tell(point, reward)
        with self.resumed(path, [*ROWS[:6], ROWS[9]], **options) as optimizer:
            planned = Finals(2, 20).plan(optimizer)
            assert [trial.number for trial in planned] == [5, 4, 5, 4]

    def test_constraints_hold_beside_another_table_and_may_change(self, tmp_path, caplog):
        path, limit = tmp_path / "s.jsonl", ["T + conc <= 61"]
        with self.resumed(path, ROWS, constraints=limit) as optimizer:
            optimizer.tell(optimizer.ask(), 1.0)
        with self.resumed(path, ROWS[8:], constraints=limit) as optimizer:
            assert all(point["T"] <= 60 for point in all_of(optimizer))
        with self.resumed(path, ROWS, constraints=["T + conc <= 50"]) as optimizer:
            assert "constraints (there ['T + conc <= 61'], now ['T + conc <= 50'])" in caplog.text
            assert all(point["T"] + point["conc"] <= 50 for point in all_of(optimizer))


def test_the_prompt_shows_descriptors_of_choices_if_the_model_does_not_compute():
    rows = [
        {"ligand": ligand, "T": T, "cone": cone, "bits": [T], "cost": T * k, "lab": "A", "s": code}
        for k, (ligand, cone, code) in enumerate(
            [("PPh3", 145.0, "c1ccccc1P"), ("XPhos", 256.5, ""), ("SPhos", math.nan, "C" * 2001)]
        )
        for T in (40, 50)
    ]  # fmt: skip
    optimizer = chat(proposal(ligand="XPhos", T=50), candidates=rows, space=["ligand", "T"])
    optimizer.ask()
    (line,) = re.findall("Descriptors.*", optimizer.client.requests[0].text)
    assert line == "Descriptors of ligand: PPh3 (cone 145), XPhos (cone 256.5)"


@needs_confinement
def test_blocks_of_python_read_rows_and_descriptors():
    code = "print(sorted(candidates()), candidates('pKa').max(), candidates('ligand')[-1])"
    block = f"Analysis: let me see.\n\n```python\n{code}\n```"
    optimizer = chat(block, proposal(ligand="XPhos", T=30, conc=0.1), compute=True)
    assert optimizer.ask() in POINTS
    assert optimizer.blocks[0].output.strip() == "['T', 'conc', 'ligand', 'pKa'] 8.4 2.0"
    text = "".join(message.content for message in optimizer.client.requests[0].messages)
    assert "conc, pKa (a descriptor, no parameter); candidates() returns" in text
    assert "Descriptors of" not in text
    optimizer.close()


@pytest.mark.parametrize("row", ["XPhos,50", "PPh3,40"])
def test_a_point_whose_row_is_deleted_while_the_model_is_asked_is_named(tmp_path, row):
    file, rows = tmp_path / "stock.csv", ["ligand,T", "PPh3,40", "PPh3,50", "XPhos,40", "XPhos,50"]

    def delete(_):
        file.write_text("\n".join(line for line in rows if line != row))
        return Reply((Completion(proposal(ligand="XPhos", T=50)),))

    file.write_text("\n".join(rows))
    optimizer = LLMOptimizer(
        None, ScriptedClient([delete]), "words", warmup=0, compute=False, candidates=file
    )
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert optimizer.ask() == {"ligand": "XPhos", "T": 50}
    said = "p1, {'ligand': 'XPhos', 'T': 50}, is no row of stock.csv any more: withdraw it"
    assert [said in str(w.message) for w in warned] == [True] * (row == "XPhos,50")


def test_a_description_names_a_table_beside_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text("base,T\nKOH,30\nK3PO4,45\n")
    (tmp_path / "s.toml").write_text(
        'candidates = "table.csv"\ndirection = "maximize"\nmodel = "network"\nseed = 1\n'
    )
    assert main(["ask", "s.toml", "-n", "2"]) == 0
    lines = [json.loads(line)["params"] for line in capsys.readouterr().out.splitlines()]
    assert unique(lines) == unique([{"base": "KOH", "T": 30}, {"base": "K3PO4", "T": 45}])
    searches = SearchFolder(tmp_path, ("network",))
    searches.create_search("mine", None, "maximize", candidates="table.csv")
    point = searches.ask("mine")["points"][0]["params"]
    assert point in lines
    assert "warning" not in searches.tell("mine", point, 1.0)["trial"]
    assert "nearest:" in searches.tell("mine", {"base": "KOH", "T": 40}, 1.0)["trial"]["warning"]
    assert searches.withdraw("mine", trial=2)["state"] == "withdrawn"
    searches.create_search(
        "other",
        {"T": {"type": "integer", "minimum": 0, "maximum": 9}},
        "maximize",
        candidates=[{"T": 3}],
    )
    assert searches.ask("other")["points"][0]["params"] == {"T": 3}
    with pytest.raises(LLMOptError, match="the name of a CSV file beside"):
        searches.create_search("third", None, "maximize", candidates="../table.csv")


@pytest.mark.parametrize("wrong", ["FOO,30\n", "KOH,x\n", "KOH,30\n", None])
def test_results_are_recorded_while_the_table_is_wrong(
    wrong, tmp_path, monkeypatch, capsys, caplog
):
    monkeypatch.chdir(tmp_path)
    stock, table = tmp_path / "stock.csv", "base,T\nKOH,30\nEt3N,30\nEt3N,45\n"
    stock.write_text(table)
    (tmp_path / "s.toml").write_text(
        'candidates = "stock.csv"\ndirection = "maximize"\nmodel = "network"\n'
        '[space]\nbase = {enum = ["KOH", "Et3N"]}\n'
        'T = {type = "number", minimum = 20, maximum = 80}\n'
    )
    assert main(["ask", "s.toml", "-n", "3"]) == 0
    stock.unlink() if wrong is None else stock.write_text(table + wrong)
    said = "candidates" if wrong else "stock.csv"
    for command in (
        ["tell", "s.toml", "p1", "--reward", "1"],
        ["tell", "s.toml", "p2", "--reward", "2"],
        ["tell", "s.toml", "--replaces", "1", "--reward", "3"],
        ["withdraw", "s.toml", "p3"],
        ["withdraw", "s.toml", "--trial", "2"],
        ["status", "s.toml"],
        ["status", "s.toml", "--trials"],
    ):
        caplog.clear()
        assert main(command) == 0, command
        (warning,) = caplog.messages
        assert "without its candidates" in warning
        assert said in warning
    assert main(["ask", "s.toml"]) == 2
    assert said in capsys.readouterr().err
    for point in ('{"base": "KOH", "T": 31}', '{"base": "KOH"}'):  # or a part of one
        assert main(["enqueue", "s.toml", point]) == 2
        assert "compared with the candidates, whose table is not loaded" in capsys.readouterr().err
    stock.write_text(table)
    assert main(["ask", "s.toml"]) == 0
    capsys.readouterr()
    assert main(["status", "s.toml"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["trials"], found["best"]["reward"], len(found["pending"])) == (1, 3, 1)


def test_a_row_is_deleted_between_two_commands(tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.chdir(tmp_path)
    table = [f"{base},{t}\n" for base in ("KOH", "K3PO4", "Et3N") for t in (30, 45)]
    stock, start = tmp_path / "stock.csv", '{params = {base = "KOH", T = 30}, words = "now"}'
    stock.write_text("base,T\n" + "".join(table))
    (tmp_path / "s.toml").write_text(
        f'candidates = "stock.csv"\ndirection = "maximize"\nmodel = "network"\nstart = [{start}]\n'
    )

    def run(*command, status=0):
        assert main(list(command)) == status
        out, err = capsys.readouterr()
        whole = command[0] == "status"
        return [json.loads(text) for text in ([out] if whole else out.splitlines())], err

    assert run("ask", "s.toml")[0][0]["params"] == {"base": "KOH", "T": 30}
    run("tell", "s.toml", "p1", "--reward", "1")
    run("enqueue", "s.toml", '{"base": "KOH", "T": 45}')
    stock.write_text("base,T\n" + "".join(table[2:]))
    (found,), err = run("status", "s.toml")
    assert (found["trials"], err) == (1, "")
    said = "error: no row of stock.csv has base = KOH: add one, or give other values"
    assert said in run("enqueue", "s.toml", '{"base": "KOH"}', status=2)[1]
    assert said in run("ask", "s.toml", "--fixed", "base=KOH", status=2)[1]
    assert "--fixed 'bse': did you mean" in run("ask", "s.toml", "--fixed", "bse=1", status=2)[1]
    assert found["best"]["warning"].startswith("{'base': 'KOH', 'T': 30} is no row of stock.csv; ")
    points, err = run("ask", "s.toml", "-n", "9")
    assert "resumes with other candidates (there 6, now 4)" in caplog.text
    assert "a queued point waits: {'base': 'KOH', 'T': 45} is no row of stock.csv" in err
    assert "4 of 9 points: no further point of the space is left" in err
    assert unique(p["params"] for p in points) == unique(
        {"base": base, "T": t} for base in ("K3PO4", "Et3N") for t in (30, 45)
    )
    stock.write_text("base,T\n" + "".join(table[2:3]))
    told, err = run("tell", "s.toml", "p3", "--reward", "2")
    assert (told[0]["number"], "warning" in told[0]) == (2, False)
    assert "resumes with other candidates (there 4, now 1)" in caplog.text
    stock.write_text("base,T\nCs2CO3,30\n")
    assert "begin a new file with `space`" in run("ask", "s.toml", status=2)[1]
    caplog.clear()
    run("tell", "s.toml", "p4", "--failed", "")
    assert "begin a new file with `space`" in caplog.messages[0]
    stock.write_text("base,T\n")
    assert "the table is empty" in run("ask", "s.toml", status=2)[1]
    for gone in ("s.toml", "stock.csv"):
        (tmp_path / gone).unlink()
    (found,), err = run("status", "s.jsonl")
    assert (found["trials"], len(found["pending"]), len(found["queued"]), err) == (3, 2, 1, "")
    if importlib.util.find_spec("plotly"):
        assert main(["report", "s.jsonl"]) == 0
        page = (tmp_path / "s.html").read_text()
        assert "1 rows of a table" in page
        assert "not a candidate" not in page


def test_an_agent_gives_other_candidates_to_a_search(tmp_path):
    searches = SearchFolder(tmp_path, ("network",))
    rows = [{"base": base, "T": t} for base in ("KOH", "Et3N") for t in (30, 45)]
    searches.create_search("mine", None, "maximize", candidates=rows)
    point = searches.ask("mine")["points"][0]["params"]
    kept = [row for row in rows if row["base"] != point["base"]]
    assert searches.create_search("mine", None, "maximize", candidates=kept)["trials"] == 0
    assert "warning" not in searches.tell("mine", point, 1.0)["trial"]
    assert unique(p["params"] for p in searches.ask("mine", 9)["points"]) == unique(kept)
    assert "none is left to try" in searches.ask("mine")["next"]
    with pytest.raises(SpaceError, match="begin a new file with `space`"):
        searches.create_search("mine", None, "maximize", candidates=[{"base": "KOH", "T": 60}])
    with pytest.raises(LLMOptError, match="with other direction, candidates"):
        searches.create_search("mine", None, "minimize", candidates=rows)
    assert json.loads((tmp_path / "mine.json").read_text())["candidates"] == kept


def test_an_agent_records_results_while_the_table_is_wrong(tmp_path):
    searches, stock = SearchFolder(tmp_path, ("network",)), tmp_path / "stock.csv"
    stock.write_text("base,T\nKOH,30\nEt3N,30\nEt3N,45\n")
    space = {"base": {"enum": ["KOH", "Et3N"]}}
    space["T"] = {"type": "number", "minimum": 20, "maximum": 80}
    searches.create_search("mine", space, "maximize", candidates="stock.csv")
    searches.ask("mine", 2)
    stock.write_text("base,T\nFOO,30\n")
    assert searches.tell("mine", "p1", 1.0)["trial"]["reward"] == 1
    assert searches.withdraw("mine", "p2")["state"] == "withdrawn"
    assert searches.status("mine")["trials"] == 1
    with pytest.raises(LLMOptError, match="candidates, row 1"):
        searches.ask("mine")
