"""Imports follow their source exactly, whatever happens there and here."""

from __future__ import annotations

import contextlib
import logging
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from llmopt import Float, Int, LLMOptimizer, ParameterError, RewardError, ScriptedClient
from llmopt.cli import main
from llmopt.origin import as_text, from_text, is_newer, new_identifier, origin_of

pytest.importorskip("pandas")
pytest.importorskip("optuna")

SPACE = {"x": Float(0.0, 10.0), "k": Int(0, 3)}
LIMITS = ["x + k <= 8"]
FORMS = ("file", "frame", "csv", "study")
DOING = ("tell", "fail", "correct", "withdraw", "restore", "undo")

places = st.fixed_dictionaries(
    {"x": st.sampled_from([1.0, 2.5, 9.0, 10.5]), "k": st.integers(0, 1)}
)
rewards = st.sampled_from([1.0, 2.0])
words = st.sampled_from(["", "brown", "a\nb", "no reward; 5"])
facts = st.fixed_dictionaries(
    {},
    optional={
        "feedback": words,
        "stderr": st.sampled_from([0.1, 0.2]),
        "constraint_violation": st.sampled_from([0.0, 0.5, 2.0]),
        "parts": st.dictionaries(st.sampled_from(["ee", "de"]), rewards, max_size=2),
    },
)
steps = st.tuples(st.sampled_from(DOING), st.integers(0, 9), places, rewards, facts, st.booleans())
imports = st.tuples(st.just("import"), st.sampled_from(FORMS))


@pytest.fixture(autouse=True)
def _no_warnings(caplog):
    caplog.set_level(logging.ERROR)


def made(path: Path, noisy: bool = False, **options: Any) -> LLMOptimizer[Any]:
    options = {
        "durable": False,
        "constraints": LIMITS,
        "seed": 1,
        "warmup": 9,
        "noisy": noisy,
        **options,
    }
    return LLMOptimizer(SPACE, ScriptedClient([]), "props", "minimize", storage=path, **options)


def undo(search: LLMOptimizer[Any], was: Any) -> None:
    """Record a trial again as it was."""
    now = search.trials[was.number]
    said = {"parts": {**dict.fromkeys((now.was or now).parts), **was.parts}}
    said |= {"feedback": was.feedback, "constraint_violation": was.measured_violation}
    said |= {"stderr": was.stderr} if was.rewards else {}
    reward = float("nan") if was.rewards is None else was.reward
    with contextlib.suppress(ParameterError):  # another trial has its point by now
        search.tell(was.params, reward, replaces=was.number, **said)


def do(search: LLMOptimizer[Any], what: str, at: int, point: Any, reward: float, said: Any) -> None:
    """Record something, if it fits the trials so far."""
    there = search.trials
    if what == "tell":
        search.tell({**point, "x": min(point["x"], 10.0)}, reward, **said)
    elif what == "fail":
        search.tell_failure({**point, "x": min(point["x"], 5.0)}, said.get("feedback", ""))
    elif there:
        trial = there[at % len(there)]
        gone = trial.state == "withdrawn"
        if what == "undo" and (trial.base or trial).state != "withdrawn":
            if not gone:
                search.withdraw(trial=trial.number)
            undo(search, trial.base or trial)
        if what == "withdraw" and not gone:
            search.withdraw(trial=trial.number, feedback=said.get("feedback", ""))
        elif (what == "correct" and not gone) or (what == "restore" and gone):
            others = [t.values for t in there if t.number != trial.number]
            if at % 2 or any(t == (point["x"], point["k"]) for t in others):
                point = trial.params
            if not said.get("parts"):  # they are removed
                said = {**said, "parts": dict.fromkeys((trial.was or trial).parts)}
            with contextlib.suppress(Exception if gone else RewardError):  # it changes nothing
                search.tell(
                    point, float("nan") if at == 7 else reward, replaces=trial.number, **said
                )


def source(search: LLMOptimizer[Any], form: str) -> Any:
    if form == "file" and search.trials:
        return search.storage
    if form == "study":
        return search.to_optuna()
    if form == "csv":
        path = search.storage.with_suffix(".csv")
        path.write_text(search.trials_dataframe().to_csv(index_label="trial"))
        return path
    return search.trials_dataframe()


def content(trial: Any, form: str) -> Any:
    """Return what an import of a form takes over."""
    measured = (
        trial.values,
        trial.rewards,
        trial.stderr,
        trial.parts,
        round(trial.constraint_violation, 9) if trial.rewards else 0.0,
    )
    said = re.sub(r"\s+", " ", trial.feedback)
    return trial.state, said, trial.instead_of, measured, trial.revisions


@contextlib.contextmanager
def searches(*names: str, **options: Any) -> Iterator[list[LLMOptimizer[Any]]]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        there = [stack.enter_context(made(Path(folder) / f"{n}.jsonl", **options)) for n in names]
        there[0].tell({"x": 3.0, "k": 3}, 3.0)
        yield there


def check_copies(there: LLMOptimizer[Any], here: LLMOptimizer[Any], form: str) -> None:
    copies = {trial.origin: trial for trial in here.trials}
    assert len(copies) == len(here.trials)
    for trial in there.trials:
        copy = copies.get(trial.origin)
        if copy is None:
            assert trial.state == "withdrawn"
        elif set(copy.revisions) <= set(trial.revisions):
            assert content(copy, form) == content(trial, form)


def outcomes(there: LLMOptimizer[Any], here: LLMOptimizer[Any], form: str) -> list[str]:
    return [row.outcome for row in here.import_trials(source(there, form)).rows]


@pytest.mark.parametrize("form", FORMS)
class TestForms:
    def test_a_limit_of_the_space_counts_in_its_own_search_alone(self, form, tmp_path):
        with made(tmp_path / "a.jsonl") as a, made(tmp_path / "b.jsonl", constraints=()) as b:
            a.tell({"x": 10.0, "k": 0}, 1.0, constraint_violation=0.5)
            a.tell({"x": 10.0, "k": 1}, 2.0)
            assert outcomes(a, b, form) == ["taken", "taken"]
            assert [t.constraint_violation for t in a.trials] == [2.5, 3.0]
            assert [t.constraint_violation for t in b.trials] == [0.5, 0.0]
            assert b.best.reward == 2.0

    def test_a_corrected_point_is_the_same_trial(self, form):
        with searches("a", "b") as (a, b):
            a.tell_failure({"x": 1.0, "k": 1}, "the oven")
            assert outcomes(a, b, form) == ["taken"] * 2
            assert b.trials[1].feedback == "the oven"
            a.tell({"x": 2.0, "k": 3}, 4.0, replaces=0)
            a.tell({"x": 1.5, "k": 1}, float("nan"), replaces=1, feedback="the pump")
            assert outcomes(a, b, form) == ["corrected"] * 2
            assert [t.params for t in b.trials] == [{"x": 2.0, "k": 3}, {"x": 1.5, "k": 1}]
            a.tell({"x": 1.5, "k": 1}, 5.0, replaces=1)
            report = b.import_trials(source(a, form))
            assert [row.outcome for row in report.rows] == ["known", "corrected"]
            assert "row 2 corrected: trial 1 had failed" in str(report)
            assert [t.reward for t in b.trials] == [4.0, 5.0]

    def test_what_was_removed_there_is_removed_here(self, form):
        with searches("a", "b") as (a, b):
            point = {"x": 1.0, "k": 1}
            a.tell(point, 1.0, feedback="brown", parts={"ee": 2.0, "de": 3.0})
            outcomes(a, b, form)
            a.tell(point, 1.0, replaces=1, feedback="", parts={"ee": None})
            assert outcomes(a, b, form) == ["known", "corrected"]
            assert (b.trials[1].feedback, b.trials[1].parts) == ("", {"de": 3.0})
            a.tell(point, 1.0, replaces=1, parts={"dr": 4.0})
            assert outcomes(a, b, form) == ["known", "completed"]
            assert b.trials[1].parts == {"de": 3.0, "dr": 4.0}

    def test_a_trial_that_was_brought_back_counts_here_again(self, form):
        with searches("a", "b") as (a, b):
            outcomes(a, b, form)
            a.withdraw(trial=0, feedback="wrong flask")
            assert outcomes(a, b, form) == ["withdrawn here"]
            a.tell({"x": 3.0, "k": 3}, 3.0, replaces=0, feedback="back")
            assert outcomes(a, b, form) == ["restored"]
            assert (b.best.reward, b.best.feedback) == (3.0, "back")

    def test_a_correction_returns_to_the_search_that_measured(self, form):
        with searches("a", "b") as (a, b):
            outcomes(a, b, form)
            b.tell({"x": 3.0, "k": 3}, 2.0, replaces=0)
            assert outcomes(a, b, form) == ["known"]
            assert outcomes(b, a, form) == ["corrected"]
            a.tell({"x": 3.0, "k": 3}, 1.5, replaces=0)
            assert outcomes(a, b, form) == ["corrected"]
            for search in (a, b):
                search.tell({"x": 3.0, "k": 3}, 1.0, replaces=0)
            assert outcomes(a, b, form) == ["known"]

    def test_what_was_changed_here_and_changed_back_follows(self, form):
        with searches("a", "b", "c") as (a, b, c):
            assert outcomes(a, b, form) == outcomes(b, c, form) == ["taken"]
            b.withdraw(trial=0)
            outcomes(b, c, form)
            for reward in (2.5, 3.0):  # changed there and changed back, too
                a.tell({"x": 3.0, "k": 3}, reward, replaces=0)
            assert outcomes(a, b, form) == ["known"]
            b.tell({"x": 3.0, "k": 3}, 3.0, replaces=0)
            assert outcomes(c, b, form) == ["known"]  # an echo
            a.tell({"x": 3.0, "k": 3}, 2.0, replaces=0)
            assert outcomes(a, b, form) == ["corrected"]
            assert outcomes(b, c, form) == ["restored"]
            assert outcomes(b, a, form) == outcomes(c, a, form) == ["known"]
            assert outcomes(a, b, form) == outcomes(c, b, form) == ["known"]
            assert [search.best.reward for search in (a, b, c)] == [2.0] * 3
            a.withdraw(trial=0)
            assert outcomes(a, b, form) == ["withdrawn here"]
            assert outcomes(a, c, form) == ["withdrawn here"]


def test_the_shell_carries_the_origin(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    space = "[space]\nx = { type = 'number', minimum = 0, maximum = 9, unit = '°C' }\n"
    for name in "ab":
        Path(f"{name}.toml").write_text(f"model = 'network'\ndirection = 'maximize'\n{space}")
    for options in (["--reward", "61"], ["--replaces", "1", "--reward", "62.9"]):
        point = '{"x": 6}' if "--replaces" in options else '{"x": 5}'
        assert main(["tell", "a.toml", point, *options]) == 0
        capsys.readouterr()
        assert main(["status", "a.toml", "--csv"]) == 0
        Path("a1.csv").write_text(capsys.readouterr().out)
        assert main(["tell", "b.toml", "--import", "a1.csv"]) == 0
    said = capsys.readouterr().err
    assert "row 1 corrected: trial 1 had 61.0 at {'x': 5.0}" in said
    assert main(["tell", "b.toml", "--import", "a.jsonl"]) == 0
    assert ": 1 known" in capsys.readouterr().err


def test_copies_of_a_file_continue_with_other_trials(tmp_path):
    with searches("a", "b") as (a, b):
        a.save(tmp_path / "copy.jsonl")
        a.tell({"x": 1.0, "k": 1}, 1.0)
        with made(tmp_path / "copy.jsonl") as copy:
            copy.tell({"x": 2.0, "k": 1}, 2.0)
            assert outcomes(a, b, "file") == ["taken", "taken"]
            assert outcomes(copy, b, "file") == ["known", "taken"]
            assert outcomes(b, copy, "file") == ["known", "taken", "known"]


def test_a_table_without_origins_is_known_whatever_was_changed_here():
    rows = [{"x": x, "k": 0, "reward": x} for x in (1.0, 1.0, 2.0, 3.0)]
    with searches("a", "b") as (a, b):
        a.import_trials(rows)
        a.tell({"x": 1.5, "k": 0}, 1.5, replaces=1)
        a.withdraw(trial=4)
        for search in (a, b):  # a trial keeps the origin that it got here
            search.import_trials(a.storage)
            report = search.import_trials(rows[:3])
            assert report.counts == {"known": 3}
            assert "it is trial 1, which was corrected" in str(report) or search is b
        assert a.import_trials(rows).counts == {"known": 4}
        assert b.import_trials(rows).counts == {"known": 3, "taken": 1}


def test_a_search_of_an_older_file_is_followed_once_it_has_an_identifier(tmp_path):
    with searches("a", "b") as (a, b):
        path = tmp_path / "old.jsonl"
        lines = a.storage.read_text()
        path.write_text(re.sub(r',"id":"\w+"', "", lines))
        assert path.read_text() != lines
        assert b.import_trials(path).counts == {"taken": 1}
        assert b.import_trials(path).counts == {"known": 1}
        with made(path) as old:
            old.tell({"x": 1.0, "k": 1}, 1.0)
            assert outcomes(old, b, "file") == ["known", "taken"]
            old.tell({"x": 1.0, "k": 1}, 1.5, replaces=1)
            assert outcomes(old, b, "file") == ["known", "corrected"]
        with made(path, batch_size=2) as old:  # another event of the search keeps the identifier
            old.withdraw(trial=1)
            assert outcomes(old, b, "file") == ["known", "withdrawn here"]


@examples(60)
@given(st.booleans(), st.lists(st.one_of(steps, imports), max_size=14), st.sampled_from(FORMS))
def test_copies_follow_their_source_through_a_chain(noisy, events, last):
    """A is imported by B, and B by C; nothing is changed in B and C."""
    if noisy:  # a study has the means of repeats
        last = "file" if last == "study" else last
        events = [e for e in events if e[0] != "import" or e[1] != "study"]
    with searches("a", "b", "c", noisy=noisy) as (a, b, c):
        for event in [*events, ("import", last)]:
            if event[0] != "import":
                do(a, *event[:5])
                continue
            for there, here in ((a, b), (b, c)):
                report = here.import_trials(source(there, event[1]))
                assert "refused" not in report.counts, str(report)
                check_copies(there, here, event[1])
                before = here._journal.state.count
                report = here.import_trials(source(there, event[1]))
                assert " differs: " not in str(report)
                again = report.counts
                assert again.keys() <= {"known", "withdrawn"}
                assert here._journal.state.count == before
                assert there.import_trials(source(here, event[1])).counts.keys() <= {
                    "known",
                    "withdrawn",
                }


@examples(60)
@given(st.lists(st.one_of(steps, imports), max_size=16))
def test_what_was_changed_here_stays(events):
    """A and B change, and B imports A; the last element of a step says where it happens."""
    with searches("a", "b") as (a, b):
        b.import_trials(a.storage)
        last = b.trials  # as they were recorded or last imported
        for event in events:
            if event[0] != "import":
                do(b if event[5] else a, *event[:5])
                last += b.trials[len(last) :]
                continue
            before = b.trials
            b.import_trials(source(a, event[1]))
            there = {trial.origin: content(trial, event[1])[:-1] for trial in a.trials}
            for number, (trial, was) in enumerate(zip(before, last, strict=True)):
                same = content(trial, "")[:-1] == content(was, "")[:-1]
                if not (same and trial.feedback == was.feedback) or trial.origin not in there:
                    assert b.trials[number] == trial
                else:
                    assert content(b.trials[number], event[1])[:-1] == there[trial.origin]
                    last[number] = b.trials[number]
            last += b.trials[len(last) :]
            check_copies(a, b, event[1])
            assert b.import_trials(source(a, event[1])).counts.keys() <= {"known", "withdrawn"}


@given(st.dictionaries(st.sampled_from("abc"), st.integers(1, 3)), st.integers(0, 99))
@examples(50)
def test_the_cell_of_an_origin_is_read_as_it_was_written(revisions, number):
    origin = origin_of(new_identifier(), number, [1.5, "x"], [2.0])
    assert from_text(as_text(origin, revisions)) == (origin, revisions)
    for wrong in ("", "lab 2", origin.upper(), f"{origin};a", None, 3):
        assert from_text(wrong) is None
    more = {**revisions, "d": 1}
    assert is_newer(more, revisions)
    assert not is_newer(revisions, more)
    assert not is_newer(revisions, revisions)
