"""Results that are recorded while an `ask` of another process waits for its model."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmopt import Float, ScriptedClient, Space
from llmopt.cli import main
from llmopt.client.folder import hand_in, open_requests
from llmopt.errors import StorageError, StorageInUseError
from llmopt.events import Asked, Called, Queued, Replied, Started, Told, Withdrawn
from llmopt.journal import FORMAT, Journal
from llmopt.resume_check import stored_state
from llmopt.service.mcp_tools import SearchFolder
from llmopt.service.search_file import open_described, open_file
from llmopt.state import State

DESCRIBED = {
    "space": {"x": {"type": "number", "minimum": -3, "maximum": 3}},
    "direction": "minimize",
    "model": "folder:wm",
    "prompt": "words",
    "warmup": 0,
    "start": [{"params": {"x": x}, "words": f"start {x}"} for x in (2, 3)],
}
ASK = [sys.executable, "-m", "llmopt", "ask", "s.json", "--model", "folder:wm"]
SPACE = Space.of({"x": Float(0, 1)})


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("s.json").write_text(json.dumps(DESCRIBED))


def run(capsys, *arguments, status=0):
    """Run a command that waits for nobody, and return what it prints."""
    waits = () if arguments[0] == "status" else ("--wait", "0")
    capsys.readouterr()
    assert main([arguments[0], "s.json", *arguments[1:], *waits]) == status
    return capsys.readouterr().err if status else capsys.readouterr().out


def is_lent():
    """Whether a request waits, of an `ask` that lends the file meanwhile."""
    waits = Path("wm").is_dir() and any(r.awaited for r in open_requests(Path("wm")))
    return waits and Path("s.jsonl.lock").exists()


@contextlib.contextmanager
def waiting_ask(*options, stderr=None):
    """Start an `llmopt ask`, and wait until its request waits for the answer."""
    how = {"stdout": subprocess.PIPE, "stderr": stderr, "text": True}
    with subprocess.Popen([*ASK, *options], **how) as ask:
        try:
            while ask.poll() is None and not is_lent():
                time.sleep(0.05)
            assert ask.poll() is None
            yield ask
        finally:
            ask.kill()


def answered(ask, text="x: 1", number=1):
    hand_in(Path("wm"), number, text.encode())
    out, _ = ask.communicate(timeout=60)
    assert ask.returncode == 0
    return [json.loads(line) for line in out.splitlines()]


def test_results_are_recorded_at_once_while_a_model_thinks(capsys):
    run(capsys, "ask", "-n", "2", "--model", "folder:wm")
    with waiting_ask() as ask:
        assert json.loads(run(capsys, "tell", "p2", "--reward", "5"))["number"] == 1
        run(capsys, "tell", "p2", "--replaces", "1", "--reward", "6")
        run(capsys, "withdraw", "p1")
        run(capsys, "enqueue", '{"x": 0.5}')
        run(capsys, "withdraw", '{"x": 0.5}')
        SearchFolder(".", ["folder:wm"], wait=0).tell("s", {"x": -1}, 7)
        assert not Path("wm/done").exists()  # which a search leaves that ends
        for model in "folder:wm", "folder:other":  # none but one asks
            assert "in use" in run(capsys, "ask", "--model", model, status=2)
        with pytest.raises(StorageInUseError):
            open_file("s.json", model="folder:wm")
        assert "number 1" in json.loads(run(capsys, "status"))["waiting"]
        (point,) = answered(ask)
    assert (point["point"], point["params"]) == ("p3", {"x": 1.0})
    told = json.loads(run(capsys, "status"))
    assert [point["params"]["x"] for point in told["pending"]] == [1.0]
    assert (told["trials"], told["best"]["reward"], told["usage"]["requests"]) == (2, 6, 1)
    assert sorted(p.name for p in Path().iterdir()) == ["s.json", "s.jsonl", "wm"]
    events = [line.split('"')[3] for line in Path("s.jsonl").read_text().splitlines()]
    assert "started" not in events[events.index("called") :]  # a result names no model
    assert len(list(Path("wm").glob("*.request.md"))) == 1


def test_a_point_that_is_measured_meanwhile_is_not_printed_again(capsys):
    run(capsys, "ask", "-n", "2", "--model", "folder:wm")
    with waiting_ask("--again", "-n", "3") as ask:
        run(capsys, "tell", "p1", "--reward", "5")
        run(capsys, "tell", '{"x": 1}', "--reward", "6")  # which the model proposes, too
        hand_in(Path("wm"), 1, b"x: 1")
        while not Path("wm/0002.request.md").exists():
            time.sleep(0.05)
        last, new = answered(ask, "x: 1.5", 2)
    assert last["point"] == "p2"
    assert (new["point"], new["source"], new["params"]) == ("p3", "llm", {"x": 1.5})
    assert "recorded as a trial meanwhile" in Path("wm/0002.request.md").read_text()


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ({"forbidden": [{"x": {">": 0.5}}]}, "p3, {'x': 1.0}, breaks never x > 0.5: withdraw it"),
        ({"constraints": ["x <= 0.75"]}, "p3, {'x': 1.0}, breaks x <= 0.75: withdraw it"),
        ({"constraints": ["x <= 1.75"]}, ""),
        ({"constraints": ["z <= 1"]}, "s.json changed while the model was asked, and cannot be"),
    ],
)
def test_a_point_that_breaks_a_limit_added_meanwhile_is_named(limit, said, capsys):
    run(capsys, "ask", "-n", "2", "--model", "folder:wm")
    with open("err", "w") as err, waiting_ask(stderr=err) as ask:
        Path("s.json").write_text(json.dumps(DESCRIBED | limit))
        answered(ask)
    assert said in (text := Path("err").read_text())
    assert bool(said) is ("warning" in text)


@pytest.mark.parametrize("seed", range(3))
def test_kills_of_the_one_that_waits_and_of_those_that_record(seed, capsys):
    rng, recorded = random.Random(seed), []
    run(capsys, "ask", "-n", "2", "--model", "folder:wm")
    for round in range(2):
        with waiting_ask() as ask:
            before = len(stored_state("s.jsonl").trials)
            tell = [sys.executable, "-m", "llmopt", "tell", "s.json", "--wait", "60"]
            points = [{"x": -(k + round / 4) / 500} for k in range(300)]
            lines = [json.dumps({"params": point, "reward": 1}) + "\n" for point in points]
            with subprocess.Popen(
                tell, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as telling:
                telling.stdin.write("".join(lines))
                telling.stdin.close()
                for _ in range(rng.randrange(1, 200)):
                    recorded.append(json.loads(telling.stdout.readline())["number"])
                if rng.random() < 0.5:  # of the two, either may be killed first
                    ask.kill()
                    ask.wait()
                telling.kill()
        after = stored_state("s.jsonl")
        assert len(after.trials) >= recorded[-1] > before
        assert len(after.under_way) == 1
    with waiting_ask() as ask:
        (point,) = answered(ask)
    assert point["params"] == {"x": 1.0}
    assert len(list(Path("wm").glob("*.request.md"))) == 1  # each ask repeated the same one
    status = json.loads(run(capsys, "status"))
    assert status["trials"] == len(after.trials)
    assert [p["point"] for p in status["pending"]] == ["p1", "p2", "p3"]
    assert not Path("s.jsonl.lock").exists()


def asking(meanwhile, **keys):
    """Ask once by a model that calls a function, and return the optimizer."""
    described = {**DESCRIBED, "start": [], "model": "", **keys}
    Path("s.json").write_text(json.dumps(described))

    def answer(request):
        meanwhile()
        return "x: 1"

    client = ScriptedClient([answer])
    optimizer = open_described(described, Path("s.jsonl"), Path(), client=client)
    with contextlib.closing(optimizer):
        optimizer.ask()
    return optimizer


def test_a_file_that_is_replaced_or_shortened_meanwhile_is_refused():
    def replaced():
        data = Path("s.jsonl").read_bytes()
        Path("s.jsonl").unlink()
        Path("s.jsonl").write_bytes(data)

    with pytest.raises(StorageError, match="replaced or shortened"):
        asking(replaced)
    with pytest.raises(StorageError, match="replaced or shortened"):
        asking(lambda: os.truncate("s.jsonl", 100))


EDITS = {
    "candidates": "stock.csv",
    "constraints": ["x <= 1"],
    "forbidden": [{"x": {">": 1}}],
    "space": {"x": {"type": "number", "minimum": -3, "maximum": 3, "unit": "h"}},
}


@pytest.mark.parametrize("edited", EDITS)
@pytest.mark.parametrize("model", ["folder:wm", "folder:other"])
def test_results_are_recorded_after_an_edit_while_a_model_thinks(edited, model, capsys, caplog):
    """As the search is stored; the edit applies from the next ask on."""
    stock, described = Path("stock.csv"), dict(DESCRIBED)
    if edited == "candidates":
        described |= {"candidates": "stock.csv"}
        stock.write_text("x\n1\n2\n3\n-1\n-2\n")
    Path("s.json").write_text(json.dumps(described))
    run(capsys, "ask", "-n", "2", "--model", "folder:wm")
    with waiting_ask() as ask:
        stock.write_text("x\n1\n2\n2.5\n-1\n-2\n")  # without p2
        Path("s.json").write_text(json.dumps({**described, "model": model, edited: EDITS[edited]}))
        for command in (
            ("tell", "p2", "--reward", "5"),
            ("tell", '{"x": -1}', "--reward", "7"),
            ("tell", "--replaces", "1", "--reward", "6"),
            ("withdraw", "p1"),
        ):
            caplog.clear()
            run(capsys, *command)
            (said,) = caplog.messages
            assert "applies from the next `llmopt ask` on" in said
        if edited == "candidates":
            caplog.clear()
            assert "wait for its points" in run(capsys, "enqueue", '{"x": 2.5}', status=2)
            assert len(caplog.messages) == 1
        else:
            run(capsys, "enqueue", '{"x": 2.5}')
        caplog.clear()
        assert main([*ASK[3:], "--wait", "1"]) == 2
        assert "in use" in "".join(caplog.messages)
        assert len(caplog.messages) == 1
        events = [line.split('"')[3] for line in Path("s.jsonl").read_text().splitlines()]
        assert "started" not in events[events.index("called") :]
        (point,) = answered(ask)
    assert point["params"] == {"x": 1.0 if edited == "candidates" else 2.5}
    caplog.clear()
    run(capsys, "tell", '{"x": 2}', "--reward", "2")
    assert "resumes with other" in caplog.text
    status = json.loads(run(capsys, "status"))
    assert (status["trials"], status["usage"]["requests"]) == (3, 1)


def test_a_folder_without_room_for_the_lock_keeps_the_file(capsys):
    Path("s.jsonl.lock").symlink_to("elsewhere")
    with pytest.raises(StorageInUseError):  # perhaps it is lent
        asking(lambda: None)
    Path("s.jsonl.lock").unlink()
    said = []

    def meanwhile():
        said.append(run(capsys, "tell", '{"x": 2}', "--reward", "2", status=2))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llmopt.journal._mark_of", lambda path: Path("no folder/lock"))
        asking(meanwhile)
    assert "in use" in said[0]


def test_an_interrupt_while_the_lock_is_taken_back_ends_the_writing(monkeypatch):
    def interrupted(file):
        raise KeyboardInterrupt

    journal = Journal("j.jsonl", State(SPACE))
    with pytest.raises(KeyboardInterrupt), journal.lent():
        monkeypatch.setattr("llmopt.journal.lock", interrupted)
    with pytest.raises(StorageError, match="is closed"):
        journal.append(Told([0.5], [1.0]))
    Journal("j.jsonl", State(SPACE)).close()


def test_a_forked_child_does_not_keep_the_search():
    journal = Journal("j.jsonl", State(SPACE))
    read, write = os.pipe()
    with journal.lent():
        child = os.fork()
        if child == 0:
            os.write(write, b".")
            signal.pause()
        try:
            os.read(read, 1)
            journal.leave()  # as a kill does
            Journal("j.jsonl", State(SPACE)).close()
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


STEPS = st.lists(st.sampled_from(["tell", "queue", "withdraw", "correct", "kill"]), max_size=8)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, killed=st.booleans())
def test_events_of_two_processes_add_up_to_one_state(steps, killed, tmp_path_factory):
    path = tmp_path_factory.mktemp("lent") / "s.jsonl"
    journal = Journal(path, State(SPACE))
    journal.begin(Started(FORMAT, {"space": SPACE.to_dict()}))
    journal.append(Queued([0.5], ""))
    journal.append(Asked((), 1))
    journal.append(Called("d", journal.state.count, 0.5))
    with journal.lent():
        for number, step in enumerate(steps, start=1):
            other = Journal(path, State(SPACE), beside=True)
            trials, queue = other.state.trials, other.state.queue
            if step == "tell":
                other.append(Told([number / 10], [1.0]))
            elif step == "queue":
                other.append(Queued([number / 10], ""))
            elif step == "withdraw" and queue:
                other.append(Withdrawn([list(queue[0].values)], queued=False))
            elif step == "correct" and trials:
                other.append(Withdrawn(queued=False, trial=0))
            elif step == "kill":
                with open(path, "ab") as file:
                    file.write(b'{"event":"told","val')
            other.close()
            with pytest.raises(StorageInUseError):
                Journal(path, State(SPACE))
        if killed:
            journal.leave()
    if killed:
        journal = Journal(path, State(SPACE))
        assert journal.state.interrupted == 3
    reply = {"completions": [{"text": "x: 0.5"}], "model": "m"}
    state = journal.append(Replied("d", reply))
    journal.close()
    assert state.paid[0].base == 3
    again = Journal.read(path, State(SPACE)).state
    assert (again.trials, again.pending, again.queue) == (state.trials, state.pending, state.queue)
    assert again.count == 5 + len(path.read_bytes().splitlines()) - 5
