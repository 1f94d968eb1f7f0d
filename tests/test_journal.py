"""The journal and its state: one event a line, whatever interrupts the writing."""

from __future__ import annotations

import errno
import json
import os
import pickle
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmopt.journal
from llmopt import Float, LLMOptimizer, ScriptedClient, Space
from llmopt.client.base import Completion, Reply
from llmopt.data import TrialData
from llmopt.errors import StorageError, StorageInUseError
from llmopt.events import (
    Asked,
    Called,
    Computed,
    Corrected,
    Event,
    Failed,
    Queued,
    Replied,
    Started,
    Told,
    Withdrawn,
)
from llmopt.history import Proposal
from llmopt.journal import FORMAT, Journal, read_events, read_started
from llmopt.state import State, proposal_to_json, reduce

SPACE = Space.of({"x": Float(0, 1)})
REPLY = Reply((Completion("x: 0.5"),), "m", 100, 0, 10, cost=0.25).to_dict()


def proposal(x: float, source: str = "llm") -> dict:
    return proposal_to_json(Proposal((x,), source, "because"), SPACE)


EVENTS = [
    Called("d1", 1, 0.5),
    Replied("d1", REPLY),
    Computed("print(1)", {"output": "1"}, 2.0, 7),
    Asked([proposal(0.25), proposal(0.75, "warmup")], 1, [1], {"duplicate": 2}),
    Queued([0.125], "the present setting"),
    Called("d2", 5, 0.5),
    Failed(1, 1, 0.0, 0, "overloaded"),
    Told([0.25], [1.5], "good", stderr=0.1, samples=[1.0, 2.0]),
    Told([0.5], None, "it broke"),
    Asked((), 2),
    Withdrawn([[0.125]]),
    Asked((), 1, stop=["no further gain", 1], rng=np.random.default_rng(3).bit_generator.state),
]

LATER = [
    Withdrawn([[0.75]], queued=False),
    Told([0.126], [3.0], instead_of=[0.125], parts={"gain": 4.0, "loss": 1.0}),
    Corrected([0.5], [2.0], "it was switched off", number=1),
    Queued([], "a wish", {"x": 0.625}),
    Queued([0.875]),
    Asked([proposal(0.625)], 1, waiting=[0], completed=1),
]


def start() -> Started:
    return Started(FORMAT, {"space": SPACE.to_dict()}, {"total": 5}, {"prompts": 2})


def filled(path, events=EVENTS) -> Journal:
    journal = Journal(path, State(SPACE))
    journal.begin(start())
    for event in events:
        journal.append(event)
    return journal


def same(one: State, other: State) -> bool:
    names = [f.name for f in fields(State) if f.name != "read_data"]
    return all(getattr(one, name) == getattr(other, name) for name in names)


class TestReduce:
    def test_every_event_survives_a_round_trip_through_its_line(self):
        for event in (start(), *EVENTS, *LATER):
            again = Event.read(json.loads(event.to_json()))
            assert again.to_json() == event.to_json()

    def test_state_is_the_sum_of_its_events(self):
        state = filled(None).state
        assert [t.values for t in state.trials] == [(0.25,), (0.5,)]
        assert state.trials[0].source == "llm"
        assert state.trials[0].explanation == "because"
        assert state.trials[1].state == "failed"
        # Returned: 0.25 and, after it was withdrawn, 0.125 again; 0.75 waits for no result yet.
        assert [p.values for p in state.pending] == [(0.75,), (0.125,)]
        assert state.queue == ()
        assert state.warmed == 1
        assert state.usage.requests == 2
        assert state.usage.unpriced == 1
        assert state.usage.cost == 0.25
        assert state.usage.proposals == {"llm": 1, "warmup": 1}
        assert state.usage.rejected == {"duplicate": 2}
        assert state.usage.blocks == 1
        assert [run.event.code for run in state.runs] == ["print(1)"]
        assert state.stop == ("no further gain", 1)
        assert state.generator.random() == np.random.default_rng(3).random()

    def test_points_that_were_not_evaluated_as_asked(self):
        state = filled(None, [*EVENTS, *LATER[:2]]).state
        assert state.pending == ()
        near, asked = state.trials[-1], Proposal((0.125,), "user", "the present setting")
        assert (near.values, near.instead_of) == ((0.126,), (0.125,))
        assert (near.source, near.explanation) == (asked.source, asked.explanation)
        assert near.parts == {"gain": 4.0, "loss": 1.0}
        assert state.stop is not None
        state = reduce(state, LATER[2])
        assert state.stop is None  # which may have followed from the mistake
        assert len(state.trials) == 3
        mended = state.trials[1]
        assert (mended.state, mended.rewards, mended.corrected) == ("complete", (2.0,), 1)
        assert (mended.number, mended.feedback) == (1, "it was switched off")
        wanted = filled(None, [*EVENTS, *LATER[:-1]]).state
        assert [str(fixed) for fixed in wanted.partial] == ["x = 0.625"]
        state = reduce(wanted, LATER[-1])
        assert state.partial == ()
        assert [p.values for p in state.pending] == [(0.625,)]
        assert [p.values for p in state.queue] == [(0.875,)]
        queued = reduce(state, Queued([0.3]))
        assert reduce(queued, Withdrawn([[0.3]], queued=False)).queue == state.queue

    def test_a_call_that_nothing_ended_counts_with_the_most_that_it_can_cost(self):
        state = filled(None, [*EVENTS[:2], Called("d2", 3, 0.5), Called("d2", 3, 0.5)]).state
        assert state.usage.requests == 1
        assert state.spent.requests == 3
        assert state.spent.cost == 1.25
        assert state.spent.unpriced == 0
        free = reduce(state, Called("d2", 3, 0.0, 0)).spent
        assert (free.cost, free.estimated) == (1.25, 2)
        assert reduce(state, Called("d2", 3)).spent.unpriced == 1

    def test_an_ask_closes_the_replies_that_it_did_not_use(self):
        state = filled(None, EVENTS[:3]).state
        assert [paid.base for paid in state.paid] == [1]
        assert reduce(state, Asked()).paid == ()

    def test_a_point_that_is_told_by_the_user_continues_a_search_that_the_model_ended(self):
        state = filled(None).state
        assert reduce(state, Told([0.75], [1.0])).stop is not None  # one that was pending
        assert reduce(state, Told([0.9], [1.0])).stop is None
        assert reduce(state, Queued([0.9])).stop is None

    @pytest.mark.parametrize(
        "event",
        [
            Told([0.5], [1.0, 2.0]),
            Told(["high"], [1.0]),
            Asked((), 1),
            Asked([{"values": [0.5], "source": "Nobody at all"}], 1),
            Asked(rng={"bit_generator": "MT19937"}),
            Replied("d", {"completions": [], "cost": -1.0}),
            Corrected([0.5], [1.0], number=0),
            Withdrawn([[0.5]], queued=False),
            Withdrawn(queued=False, fixed={"x": 0.5}),
            Withdrawn(queued=False, trial=0),
            Queued([], "a wish", {"y": 0.5}),
            Queued([], "a wish", {"x": 7.0}),
            Told([0.5], [1.0], instead_of=[0.25]),
        ],
    )
    def test_what_does_not_fit_is_refused_and_not_written(self, event, tmp_path):
        journal = filled(tmp_path / "s.jsonl", ())
        before = (tmp_path / "s.jsonl").exists() and (tmp_path / "s.jsonl").read_bytes()
        with pytest.raises((ValueError, TypeError, LookupError)):
            journal.append(event)
        after = (tmp_path / "s.jsonl").read_bytes()
        assert after in (before, start().to_json())

    @pytest.mark.parametrize(
        "line",
        [
            {"event": "told", "values": [0.5], "rewards": ["1.0"]},
            {"event": "told", "values": [0.5], "rewards": [1e400]},
            {"event": "told", "values": [0.5], "feedback": 3},
            {"event": "told", "values": [0.5], "violation": -1.0},
            {"event": "told", "values": [0.5], "kind": "other"},
            {"event": "told", "values": [0.5], "seed": -1},
            {"event": "told", "values": [0.5], "parts": {"gain": "4"}},
            {"event": "withdrawn", "points": [], "queued": 2},
            {"event": "told", "values": [0.5], "unknown": 1},
            {"event": "told"},
            {"event": "failed", "requests": -5},
            {"event": "failed", "cost": -1.0},
            {"event": "called", "digest": "d", "most": -1.0},
            {"event": "asked", "rejected": {"duplicate": -1}},
            {"event": "nothing"},
            {"no": "event"},
        ],
    )
    def test_a_line_that_would_lift_a_cap_or_is_no_event_is_refused(self, line):
        with pytest.raises((ValueError, TypeError, LookupError)):
            reduce(State(SPACE), Event.read(line))


class TestFile:
    def test_a_resume_gives_the_same_state_from_every_beginning_of_the_file(self, tmp_path):
        path = tmp_path / "s.jsonl"
        events = [*EVENTS, *LATER]
        filled(path, events).close()
        lines = path.read_bytes().splitlines(keepends=True)
        for count in range(1, len(lines)):
            for torn in (b"", lines[count][:-1]):
                path.write_bytes(b"".join(lines[:count]) + torn)
                journal = Journal(path, State(SPACE))
                assert same(journal.state, filled(None, events[: count - 1]).state) or count == 1
                for event in events[max(0, count - 1) :]:
                    journal.append(event)
                journal.close()
                assert path.read_bytes() == b"".join(lines)

    def test_a_full_disk_leaves_the_file_as_it_was(self, tmp_path, monkeypatch):
        path = tmp_path / "s.jsonl"
        journal = filled(path, EVENTS[:4])
        before, write = path.read_bytes(), os.write

        def full(handle, data):
            write(handle, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(StorageError, match="Nothing was recorded; free some space"):
            journal.append(EVENTS[4])
        assert path.read_bytes() == before
        monkeypatch.setattr(os, "write", write)
        assert len(journal.append(EVENTS[4]).queue) == 2

    def test_a_second_writer_is_refused(self, tmp_path):
        journal = filled(tmp_path / "s.jsonl")
        with pytest.raises(StorageInUseError, match=r"or process.*docs/workers\.md"):
            Journal(tmp_path / "s.jsonl", State(SPACE))
        journal.close()
        Journal(tmp_path / "s.jsonl", State(SPACE)).close()

    def test_of_two_that_open_a_new_file_at_once_the_second_leaves_it(self, tmp_path, monkeypatch):
        path, real, held = tmp_path / "s.jsonl", llmopt.journal.open_to_append, []

        def rival(opened):  # between making the file and locking it
            file = real(opened)
            if not held:
                held.append("")
                held[0] = Journal(path, State(SPACE))
            return file

        monkeypatch.setattr("llmopt.journal.open_to_append", rival)
        with pytest.raises(StorageInUseError):
            Journal(path, State(SPACE))
        held[0].check()
        held[0].close()
        path.unlink()
        held[0] = Journal(path, State(SPACE))

        def slow(opened):  # until the one that made the file has closed and removed it
            file = real(opened)
            held[0].close()
            return file

        monkeypatch.setattr("llmopt.journal.open_to_append", slow)
        with pytest.raises(StorageInUseError):
            Journal(path, State(SPACE))
        Journal(path, State(SPACE)).check()

    def test_a_file_that_was_removed_or_replaced_is_noticed(self, tmp_path):
        path = tmp_path / "s.jsonl"
        journal = filled(path)
        data = path.read_bytes()
        path.unlink()
        with pytest.raises(StorageError, match="removed it"):
            journal.append(Told([0.9], [1.0]))
        path.write_bytes(data)
        with pytest.raises(StorageError, match="replaced"):
            journal.check()

    def test_a_forked_child_writes_nothing_and_releases_the_lock(self, tmp_path):
        path = tmp_path / "s.jsonl"
        journal = filled(path)
        child = os.fork()
        if child == 0:
            try:
                journal.append(Told([0.9], [1.0]))
            except StorageError as error:
                os._exit(0 if "was forked from" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        journal.close()
        Journal(path, State(SPACE)).close()

    def test_an_empty_search_leaves_no_file(self, tmp_path):
        path = tmp_path / "s.jsonl"
        journal = Journal(path, State(SPACE))
        journal.begin(start())
        journal.close()
        assert not path.exists()

    @pytest.mark.parametrize(
        ("content", "match"),
        [
            (b'{"event":"start","format":1}\n', "not a storage file"),
            (b'{"event":"started","format":5,"identity":{}}\n', "format number 5"),
            (b'{"event":"started","identity":{}}\n', "no format number|format number"),
            (b"name,value\n1,2\n", "not a storage file"),
            (b"\x00\x01", "not a storage file"),
        ],
    )
    def test_another_kind_of_file_is_refused_and_left_alone(self, content, match, tmp_path):
        path = tmp_path / "s.jsonl"
        path.write_bytes(content)
        with pytest.raises(StorageError, match=match):
            Journal(path, State(SPACE))
        with pytest.raises(StorageError):
            read_started(path)
        assert path.read_bytes() == content

    def test_a_damaged_line_is_named_with_the_way_out(self, tmp_path):
        path = tmp_path / "s.jsonl"
        filled(path).close()
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines[:3], b'{"event":"told","values":["up"]}\n', *lines[3:]]))
        with pytest.raises(StorageError, match=r"line 4: it is damaged.*head -n 3"):
            Journal(path, State(SPACE))

    def test_a_deleted_line_is_noticed_if_the_model_was_asked_after_it(self, tmp_path):
        path = tmp_path / "s.jsonl"
        answers = ["x: 0.1", "no idea", "x: 0.2", "x: 0.3", "x: 0.4", "x: 0.5", "x: 0.6"]
        optimizer = LLMOptimizer(
            SPACE, ScriptedClient(answers), warmup=1, storage=path, compute=False, prompt="words"
        )
        optimizer.enqueue({"x": 0.9}, "a guess")
        optimizer.enqueue({"x": 0.8})
        for number in range(7):
            params = optimizer.ask()
            if number == 3:
                optimizer.withdraw(params)
            elif number == 4:
                optimizer.tell_failure(params, "it broke")
            else:
                optimizer.tell(params, params["x"])
        optimizer.tell({"x": 0.77}, 1.0)
        optimizer.tell(optimizer.trials[0].params, 2.0, replaces=0)
        optimizer.ask()
        optimizer.close()
        events = list(read_events(path))
        kinds = {type(event).__name__ for event in events}
        assert kinds >= {"Called", "Replied", "Asked", "Told", "Corrected", "Queued", "Withdrawn"}
        last = max(i for i, event in enumerate(events) if isinstance(event, Called))
        lines, noticed = path.read_bytes().splitlines(keepends=True), set()
        for number in range(len(lines)):
            path.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
            try:
                Journal(path, State(SPACE)).close()
            except StorageError:
                noticed.add(number)
        assert noticed == set(range(last))
        assert len(noticed) == len(lines) - 3  # the last call, its reply and its point

    def test_a_copy_keeps_its_events_in_memory(self, tmp_path):
        journal = filled(tmp_path / "s.jsonl")
        copy = pickle.loads(pickle.dumps(journal))
        assert same(copy.state, journal.state)
        copy.append(Told([0.9], [1.0]))
        assert len(journal.state.trials) + 1 == len(copy.state.trials)
        copy.save(tmp_path / "saved.jsonl")
        assert len(list(read_events(tmp_path / "saved.jsonl"))) == copy.state.count

    def test_data_of_a_trial_are_in_their_file_before_the_event(self, tmp_path):
        data = TrialData.of({"t": np.arange(3)})
        for path in (None, tmp_path / "s.jsonl"):
            journal = filled(path, ())
            journal.append(Told([0.5], [1.0], data=journal.arrays.keep(data, 0)))
            assert journal.state.trials[0].data["t"].tolist() == [0, 1, 2]
            journal.save(tmp_path / "saved.jsonl")
            saved = Journal.read(tmp_path / "saved.jsonl", State(SPACE))
            assert saved.state.trials[0].data["t"].tolist() == [0, 1, 2]
        journal.close()
        assert (tmp_path / "s.jsonl.data" / "000000.npz").exists()


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 12))
def test_any_bytes_behind_whole_lines_are_an_error_or_a_torn_line(noise, count):
    lines = [start().to_json(), *(event.to_json() for event in EVENTS)][: count + 1]
    journal = Journal(None, State(SPACE))
    journal._memory += b"".join(lines) + noise
    try:
        state = journal.state
    except StorageError:
        return
    assert state.count >= len(lines)


def test_a_kill_at_any_moment_leaves_whole_lines(tmp_path):
    """A process that appends for ever is killed ten times; each time the next one resumes."""
    path = tmp_path / "s.jsonl"
    code = (
        "import sys, time\n"
        "from llmopt import Float, Space\n"
        "from llmopt.journal import FORMAT, Journal\n"
        "from llmopt.events import Started, Told\n"
        "from llmopt.state import State\n"
        "space = Space.of({'x': Float(0, 1)})\n"
        f"journal = Journal({str(path)!r}, State(space))\n"
        "journal.state.started or journal.begin(Started(FORMAT, {'space': space.to_dict()}))\n"
        "k = len(journal.state.trials)\n"
        "while True:\n"
        "    journal.append(Told([k % 1000 / 1000], [float(k)], 'w' * 500))\n"
        "    k += 1\n"
        "    print(k, flush=True)\n"
    )
    acknowledged = 0
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(20):
            acknowledged = int(process.stdout.readline())
        process.kill()
        process.communicate()
        trials = Journal.read(path, State(SPACE)).state.trials
        assert len(trials) >= acknowledged
        assert [t.rewards for t in trials] == [(float(k),) for k in range(len(trials))]


def test_another_thread_may_append_while_the_file_is_checked(tmp_path, monkeypatch):
    with LLMOptimizer({"x": Float(0, 1)}, ScriptedClient([]), storage=tmp_path / "a.jsonl") as one:
        one.enqueue({"x": 0.1})
        real = os.stat

        def slow(path, *args, **kwargs):
            status = real(path, *args, **kwargs)
            monkeypatch.setattr(os, "stat", real)
            one.enqueue({"x": 0.2})  # as another thread would, since no lock is held
            return status

        monkeypatch.setattr(os, "stat", slow)
        assert one.ask() == {"x": 0.1}
        assert len(one.queued) == 1


def test_a_file_system_without_locks_is_used_with_a_warning(tmp_path, monkeypatch, caplog):
    def no_locks(file):
        raise OSError("no locks")

    monkeypatch.setattr("llmopt.journal.try_lock", no_locks)
    with LLMOptimizer(
        {"x": Float(0, 1)}, ScriptedClient([]), storage=tmp_path / "s.jsonl"
    ) as optimizer:
        optimizer.tell({"x": 0.5}, 1.0)
    assert "the file system has no locks" in caplog.text
    assert len(Journal.read(tmp_path / "s.jsonl", optimizer._journal._start).state.trials) == 1
