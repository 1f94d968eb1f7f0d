"""`folder:DIR` and ``llmopt next``: files in place of a model."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmopt import Float, LLMOptimizer, minimize
from llmopt.cli import main
from llmopt.client import Message, Reply, Request, get_client
from llmopt.client.folder import (
    ANSWER_BYTES,
    FolderClient,
    FolderError,
    hand_in,
    next_request,
    open_request,
)
from llmopt.client.model_facts import model_facts
from llmopt.errors import ClientError
from llmopt.service.live_requests import check_live, live_request
from llmopt.service.search_file import open_file


def ask(text: str = "hello", **fields: object) -> Request:
    return Request((Message("user", text),), **fields)  # type: ignore[arg-type]


def texts(reply: Reply) -> list[str]:
    return [c.text for c in reply.completions]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "mail"


def start(call: Callable[[], object]) -> Callable[[], object]:
    """Call in a thread; the returned function waits for the result."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()

    def result() -> object:
        thread.join(60)
        return results[0]

    return result


def wait_for(path: Path) -> None:
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"no {path}")


def kill_ask(command: list[str], number: int = 1) -> None:
    """Start an `llmopt ask` of folder:wm, and kill it while its request waits."""
    ask = subprocess.Popen(command)
    wait_for(Path(f"wm/{number:04d}.request.md"))
    while not open_request(Path("wm"), number).awaited:
        time.sleep(0.05)
    ask.kill()
    ask.wait()


class TestClient:
    def test_one_exchange(self, folder, capsys):
        client = get_client(f"folder:{folder}")
        assert not folder.exists()
        assert model_facts(client).style == "chat"
        assert model_facts(client).name == "folder:mail"
        request = ask("what is x?\n", max_tokens=7)
        result = start(lambda: client.complete(request))
        wait_for(folder / "0001.request.md")
        assert (folder / "0001.request.md").read_text() == "what is x?\n"
        data = json.loads((folder / "0001.request.json").read_text())
        assert data["number"] == 1
        assert data["digest"] == request.digest()
        assert Request.from_dict(data["request"]) == request
        (folder / "0001.answer.md").touch()  # somebody redirects output to it
        time.sleep(0.5)
        assert not (folder / "done").exists()
        (folder / "mine.txt").write_text("x = 3\n")
        (folder / "mine.txt").rename(folder / "0001.answer.md")
        reply = result()
        assert isinstance(reply, Reply)
        assert texts(reply) == ["x = 3\n"]
        assert (reply.model, reply.cost) == ("folder:mail", 0.0)  # free
        assert "request 1 waits" in capsys.readouterr().err
        client.close()  # type: ignore[attr-defined]
        assert "ended" in (folder / "done").read_text()
        assert sorted(p.name for p in folder.iterdir()) == [
            "0001.answer.md", "0001.request.json", "0001.request.md", "done",
        ]  # fmt: skip

    def test_next_prints_what_is_new_and_all_on_demand(self, folder, capsys):
        def request(*rows):
            head, log = "The task.\n" * 90, "".join(f"#{k} | row\n" for k in rows)
            return Request((Message("system", head), Message("user", f"# Log\n\n{log}\nGo on.")))

        first = FolderClient(folder)
        begun = start(lambda: first.complete(request(1, 2)))
        wait_for(folder / "0001.request.md")
        assert main(["next", str(folder)]) == 0
        assert "The task." in capsys.readouterr().out
        hand_in(folder, 1, b"x")
        begun()
        then = start(lambda: first.complete(request(1, 2, 3)))
        wait_for(folder / "0002.request.md")
        assert main(["next", str(folder)]) == 0
        out = capsys.readouterr().out
        assert "--all" in out
        assert out.partition("]\n\n")[2].strip() == "#2 | row\n#3 | row\n\nGo on."
        assert main(["next", str(folder), "--all"]) == 0
        whole = (folder / "0002.request.md").read_text()
        assert whole in capsys.readouterr().out
        assert whole.startswith("### system\n\nThe task.")
        hand_in(folder, 2, b"x")
        then()
        first.close()

    def test_resumes(self, folder):
        first = FolderClient(folder, timeout=0.3)
        for text in ("one", "two"):
            with pytest.raises(ClientError, match=r"no answer within 0.3 s.*--answer \d") as caught:
                first.complete(ask(text))
            assert not caught.value.retryable
        first.close()
        hand_in(folder, 2, b"2")
        again = FolderClient(folder, timeout=0.3)
        assert texts(again.complete(ask("two"))) == ["2"]
        assert not (folder / "done").exists()
        found = next_request(folder)
        assert found is not None
        assert (found.number, found.text) == (1, "one")
        # The same question a second time is a new one; in a new process it is not.
        hand_in(folder, 1, b"1")
        assert texts(again.complete(ask("one"))) == ["1"]
        with pytest.raises(ClientError, match="request 3"):
            again.complete(ask("one"))
        for twin in (copy.deepcopy(again), pickle.loads(pickle.dumps(again))):
            with pytest.raises(ClientError, match="request 3"):
                twin.complete(ask("one"))
        assert texts(FolderClient(folder, timeout=0.3).complete(ask("one"))) == ["1"]

    def test_a_request_with_another_seed_takes_the_answer_to_its_text(self, folder):
        first = FolderClient(folder, timeout=0.1)
        for _ in range(2):
            with pytest.raises(ClientError, match="request 1 in"):
                first.complete(ask("one", seed=1))
        hand_in(folder, 1, b"1")
        again = FolderClient(folder, timeout=0.3)
        assert texts(again.complete(ask("one", seed=2))) == ["1"]
        with pytest.raises(ClientError, match="request 2 in"):
            again.complete(ask("one", seed=3))  # each answer is used once by a client
        with pytest.raises(ClientError, match="request 3 in"):
            again.complete(ask("two", seed=2))  # the text has to be the same
        assert next_request(folder).number == 2
        assert texts(FolderClient(folder, timeout=0.3).complete(ask("one", seed=4))) == ["1"]

    def test_a_request_that_somebody_waits_for_is_nobody_elses(self, folder):
        result = start(lambda: FolderClient(folder).complete(ask("one", seed=1)))
        wait_for(folder / "0001.request.md")
        with pytest.raises(ClientError, match="request 2 in"):
            FolderClient(folder, timeout=0.1).complete(ask("one", seed=2))
        hand_in(folder, 1, b"1")
        assert texts(result()) == ["1"]

    def test_only_a_search_that_asked_marks_its_end(self, folder):
        folder.mkdir()
        LLMOptimizer(SPACE, FolderClient(folder)).close()
        FolderClient(folder).close()
        assert not (folder / "done").exists()
        (folder / "done").write_text("the search ended at noon; open requests: 0")
        with LLMOptimizer(SPACE, FolderClient(folder)):
            assert not (folder / "done").exists()  # at once, before any request
        assert "the program ended after" in (folder / "done").read_text()

    def test_odd_answers(self, folder):
        client = FolderClient(folder, timeout=10)
        folder.mkdir()
        for number, (answer, expected, reason) in enumerate(
            [
                (b"\xef\xbb\xbfone\r\n", "one\r\n", "stop"),
                (b"\xff", "\N{REPLACEMENT CHARACTER}", "stop"),
                (b"a" * (ANSWER_BYTES + 5), "a" * ANSWER_BYTES, "length"),
            ],
            start=1,
        ):
            (folder / f"{number:04d}.answer.md").write_bytes(answer)
            completion = client.complete(ask(f"{number}")).completions[0]
            assert (completion.text, completion.finish_reason) == (expected, reason)


ANSWER = "Hypothesis: the middle.\nStart from: new\nProposal: x: {x}"
STOP = "Analysis: the rest is noise.\nStart from: #1\nProposal: stop"


def square(params: dict[str, float]) -> float:
    return abs(params["x"])


def by_hand(client: FolderClient) -> None:
    with (
        contextlib.suppress(ZeroDivisionError),
        LLMOptimizer(SPACE, client, direction="minimize", prompt="words", warmup=0) as optimizer,
    ):
        for _ in range(2):
            optimizer.tell(point := optimizer.ask(), square(point))
        raise ZeroDivisionError("of the caller")


SPACE = {"x": Float(-3, 3)}
SEARCHES: dict[str, Callable[[FolderClient], object]] = {
    "budget": lambda client: minimize(square, SPACE, 2, client, prompt="words", warmup=0),
    "stop": lambda client: minimize(square, SPACE, 9, client, prompt="words", warmup=0),
    "cap": lambda c: minimize(square, SPACE, 9, c, prompt="words", warmup=0, max_requests=2),
    "raised": lambda client: by_hand(client),
}
REASONS = {
    "stop": "ended the search",
    "cap": "max_requests=2",
    "raised": "ZeroDivisionError: of the caller",
}


class TestNext:
    @pytest.fixture
    def give(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
        """Set the standard input."""

        def give(data: bytes) -> None:
            stdin = SimpleNamespace(buffer=io.BytesIO(data), isatty=lambda: False)
            monkeypatch.setattr(sys, "stdin", stdin)

        return give

    def test_a_search_by_turns(self, folder, give, capsys):
        def search() -> list[str]:
            client = FolderClient(folder)
            answers = [texts(client.complete(ask(f"what is {k}?")))[0] for k in range(3)]
            client.close()
            return answers

        result = start(search)
        assert main(["next", str(folder)]) == 0
        for k in range(3):
            assert f"=== request {k + 1} ===\n\nwhat is {k}?\n" in capsys.readouterr().out
            give(f"it is {k}".encode())
            turn = ["next", str(folder), "--answer", f"{k + 1}", "--wait"]
            assert main(turn) == (0 if k < 2 else 3)
        assert "search ended" in capsys.readouterr().err
        assert result() == ["it is 0", "it is 1", "it is 2"]

    @pytest.mark.parametrize("how", sorted(SEARCHES))
    def test_every_search_says_its_outcome_and_why_it_ended(self, how, folder, give, capsys):
        result = start(lambda: SEARCHES[how](FolderClient(folder)))
        assert main(["next", str(folder)]) == 0
        for number in range(1, 5):
            stops = number > 2 and how == "stop"
            give((STOP if stops else ANSWER.format(x=2 / 10**number)).encode())
            status = main(
                ["next", str(folder), "--answer", f"{number}", "--wait", "--timeout", "60"]
            )
            if status:
                break
        assert status == 3
        result()
        said = capsys.readouterr().err
        assert REASONS.get(how, "2 ") in said.partition("Why it ended:")[2]
        assert "Results of the last answer: #" in said
        assert "The best point: #" in said
        assert "x=0.02" in said
        assert ("The recommended point: #1" in said) == (how == "stop")
        assert "Best first: " in (folder / "latest.md").read_text()

    def test_a_stored_search_that_was_closed_may_go_on(self, folder, tmp_path, give, capsys):
        def search(answered: bool) -> None:
            client = FolderClient(folder, timeout=None if answered else 0.2)
            options = {"prompt": "words", "warmup": 0, "storage": tmp_path / "s.jsonl", "seed": 0}
            with (
                contextlib.suppress(ClientError),
                LLMOptimizer(SPACE, client, **options) as optimizer,
            ):
                optimizer.tell(optimizer.ask(), 1.0)

        search(False)
        assert "in s.jsonl may go on: ClientError" in (folder / "done").read_text()
        assert main(["next", str(folder)]) == 0
        assert "request 1; no program waits for it: the one" in capsys.readouterr().out
        result = start(lambda: search(True))
        while not (request := next_request(folder)) or not request.awaited:
            time.sleep(0.05)
        assert main(["next", str(folder)]) == 0
        assert "=== request 1 ===" in capsys.readouterr().out
        give(ANSWER.format(x=1).encode())
        assert main(["next", str(folder), "--answer", "1", "--wait"]) == 4
        result()
        began = time.monotonic()
        assert main(["next", str(folder), "--timeout", "0.5"]) == 4
        assert time.monotonic() - began >= 0.5  # it could go on meanwhile
        said = capsys.readouterr().err
        assert "no request waits since" in said
        assert "The search in s.jsonl may go on: the program ended after 1" in said

    def test_a_file_in_place_of_the_folder_is_an_error_and_no_end(self, tmp_path, capsys):
        (tmp_path / "s.json").write_text("{}")
        assert main(["next", str(tmp_path / "s.json")]) == 2
        assert "s.json is a file: give the folder of folder:DIR" in capsys.readouterr().err

    def test_the_end_of_an_earlier_search_is_no_end_of_the_next(self, folder, capsys):
        folder.mkdir()
        (folder / "done").write_text("the search ended at noon; open requests: 0")

        def search() -> None:
            time.sleep(0.5)
            with contextlib.suppress(ClientError):
                LLMOptimizer(
                    SPACE, FolderClient(folder, timeout=30), prompt="words", warmup=0
                ).ask()

        result = start(search)
        assert main(["next", str(folder), "--wait"]) == 0
        assert "=== request 1 ===" in capsys.readouterr().out
        hand_in(folder, 1, ANSWER.format(x=1).encode())
        result()

    def test_an_answer_for_a_killed_ask(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        Path("s.json").write_text(
            '{"space": {"x": {"type": "number", "minimum": -3, "maximum": 3}}, "direction": '
            '"minimize", "model": "folder:wm", "warmup": 0, "prompt": "words"}'
        )
        command = [sys.executable, "-m", "llmopt", "ask", "s.json", "--model", "folder:wm"]
        kill_ask(command)
        assert main(["status", "s.json"]) == 0
        assert "`llmopt next wm` prints it (number 1)" in capsys.readouterr().out
        hand_in(Path("wm"), 1, ANSWER.format(x=1).encode())
        assert main(["status", "s.json"]) == 0
        assert (
            "request 1 to folder:wm is answered: run `llmopt ask` with the same"
            in capsys.readouterr().out
        )
        assert main(["next", "wm"]) == 4
        assert "request 1 is answered, and the program that" in capsys.readouterr().err
        assert main(["ask", "s.json", "--model", "folder:wm"]) == 0
        assert main(["tell", "s.json", "p1", "--reward", "7"]) == 0
        assert main(["next", "wm", "--timeout", "0.1"]) == 4
        assert "The latest: #1 (7)" in capsys.readouterr().err
        usage = open_file("s.json", asks=False, reads=True).usage
        assert (usage.requests, usage.failed_requests) == (1, 0)  # it was answered

    @pytest.mark.parametrize("change", ["-n 2", "stock", "told"])
    def test_an_answer_that_another_ask_does_not_use_is_named(self, change, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        stock = Path("stock.csv")
        stock.write_text(table := "x\n1\n2\n3\n")
        Path("s.json").write_text(
            '{"space": {"x": {"type": "number", "minimum": -3, "maximum": 3}}, "direction": '
            '"minimize", "warmup": 0, "prompt": "words", "candidates": "stock.csv"}'
        )
        ask = [sys.executable, "-m", "llmopt", "ask", "s.json", "--model", "folder:wm"]
        kill_ask(ask)
        hand_in(Path("wm"), 1, ANSWER.format(x=2).encode())
        other = [] if change == "stock" else ["-n", "2"]
        if change == "told":
            assert main(["tell", "s.json", '{"params": {"x": 1}, "reward": 1}']) == 0
        if change == "stock":
            stock.write_text(table + "-1\n")
        ask += ["--option", "timeout=0.2"]
        said = subprocess.run([*ask, *other], capture_output=True, text=True).stderr
        assert "answer 1 is not used: this ask differs from the one that was killed" in said
        assert "request 2 in wm got no answer within 0.2 s" in said
        assert ("end this ask and repeat that one" in said) is (change != "told")
        if change == "told":  # that ask would now send another request
            return
        stock.write_text(table)
        took = subprocess.run(ask, capture_output=True, text=True)
        assert json.loads(took.stdout)["params"] == {"x": 2}
        assert "not used" not in took.stderr

    def test_an_outdated_request_is_kept_until_its_files_are_removed(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        Path("s.json").write_text(
            '{"space": {"x": {"type": "number", "minimum": -3, "maximum": 3}}, "direction": '
            '"minimize", "warmup": 0, "prompt": "words"}'
        )
        ask = [sys.executable, "-m", "llmopt", "ask", "s.json", "--model", "folder:wm"]
        assert main(["tell", "s.json", '{"params": {"x": 1}, "reward": 96.5}']) == 0
        kill_ask(ask)
        assert main(["tell", "s.json", '{"params": {"x": 2}, "reward": 69.5}']) == 0
        assert main(["withdraw", "s.json", "--trial", "1"]) == 0
        short = [*ask, "--option", "timeout=0.2"]
        kill_ask(ask)
        assert "69.5" not in Path("wm/0001.request.md").read_text()
        for file in Path("wm").glob("0001.*"):
            file.unlink()
        said = subprocess.run(short, capture_output=True, text=True).stderr
        assert "interrupted ask" not in said
        text = Path("wm/0001.request.md").read_text()
        assert "69.5" in text
        assert "96.5" not in text

    @pytest.mark.parametrize("then", ["-n 3", "--fixed x=1", "--model", "nothing"])
    def test_only_a_request_that_a_search_uses_is_shown(
        self, then, tmp_path, monkeypatch, give, capsys
    ):
        monkeypatch.chdir(tmp_path)
        number = {"type": "number", "minimum": -3, "maximum": 3}
        file = {"space": {"x": number, "y": number}, "direction": "minimize", "warmup": 0}
        Path("s.json").write_text(json.dumps(file))

        def killed_ask(number, *options):
            command = [sys.executable, "-m", "llmopt", "ask", "s.json", "--model", "folder:wm"]
            kill_ask([*command, *options], number)

        def shown():
            status = main(["next", "wm", "--timeout", "0"])
            return status, capsys.readouterr().out.partition(";")[0]

        killed_ask(1)
        assert shown() == (0, "=== request 1")
        if then == "nothing":  # results that came meanwhile do not matter to the repeated ask
            assert main(["tell", "s.json", '{"params": {"x": 1, "y": 1}, "reward": 2}']) == 0
            capsys.readouterr()
            assert shown() == (0, "=== request 1")
            give(ANSWER.format(x="1\n y: 2").encode())
            assert main(["next", "wm", "--answer", "1"]) == 0
            return
        if then == "--model":
            assert main(["ask", "s.json", "--model", "network"]) == 0
            open_now, remedy = (4, ""), "No other request is open; `llmopt next wm` waits for one"
        else:
            killed_ask(2, *then.split())
            open_now, remedy = (0, "=== request 2"), "Answer request 2; `llmopt next wm` prints it"
        capsys.readouterr()
        assert shown() == open_now
        give(ANSWER.format(x=1).encode())
        assert main(["next", "wm", "--answer", "1"]) == 2
        assert "request 1 in wm was abandoned" in (said := capsys.readouterr().err)
        assert remedy in said
        assert not Path("wm/0001.answer.md").exists()
        if then == "--model":
            return
        assert main(["status", "s.json"]) == 0
        assert "prints it (number 2)" in capsys.readouterr().out
        killed_ask(1)  # the first ask again: its request is the open one, with its number
        assert shown() == (0, "=== request 1")

    def test_two_searches_in_one_folder_keep_their_requests(self, folder, tmp_path, capsys):
        def ask_nobody(name: str, n: int = 1) -> None:
            client, options = FolderClient(folder, timeout=0.1), {"prompt": "words", "warmup": 0}
            storage = name and tmp_path / f"{name}.jsonl"
            with (
                contextlib.suppress(ClientError),
                LLMOptimizer(SPACE, client, storage=storage or None, **options) as optimizer,
            ):
                optimizer.ask(n)

        ask_nobody("one")
        ask_nobody("two", 2)
        for number, name in ((1, "one"), (2, "two")):
            assert live_request(folder).number == number
            hand_in(folder, number, (ANSWER.format(x=1) + "\nProposal: x: 2").encode())
            ask_nobody(name, number)
        ask_nobody("", 3)  # a script or a worker without a file: only its latest request counts
        ask_nobody("", 4)
        assert live_request(folder).number == 4
        check_live(folder, 4)
        with pytest.raises(FolderError, match=r"request 3 in .* was abandoned.*Answer request 4"):
            check_live(folder, 3)

    def test_answers_that_are_refused(self, folder, give, capsys):
        with pytest.raises(ClientError, match="no answer"):
            FolderClient(folder, timeout=0.1).complete(ask())
        for answer, number, message in [
            (b" \n", 1, "is empty"),
            (b"a" * (ANSWER_BYTES + 1), 1, f"more than {ANSWER_BYTES:,} bytes"),
            (b"\xff", 1, "not UTF-8"),
            (b"x", 2, "there is no request 2"),
        ]:
            give(answer)
            assert main(["next", str(folder), "--answer", f"{number}"]) == 2
            assert message in capsys.readouterr().err
        give(b"x")
        assert main(["next", str(folder), "--answer", "1"]) == 0
        assert capsys.readouterr().out == "answer 1 taken\n"
        give(b"y")
        assert main(["next", str(folder), "--answer", "1"]) == 2
        assert "has an answer to request 1 already" in capsys.readouterr().err
        assert (folder / "0001.answer.md").read_text() == "x"

    def test_damaged_files(self, folder, capsys):
        folder.mkdir()
        (folder / "0001.request.md").write_text("x")
        for content in ("", "[]", '{"request": 3}'):
            (folder / "0001.request.json").write_text(content)
            assert main(["next", str(folder)]) == 2
            assert "0001.request.json cannot be read" in capsys.readouterr().err


def test_a_study_takes_the_answer_to_the_request_of_a_killed_trial(folder):
    optuna = pytest.importorskip("optuna")
    from llmopt.adapters.optuna import LLMSampler

    storage = optuna.storages.InMemoryStorage()

    def ask_for_a_trial():
        client = FolderClient(folder, timeout=0.3)
        sampler = LLMSampler(
            client, space=SPACE, description="a bowl", prompt="words", seed=0, on_error="raise"
        )
        study = optuna.create_study(
            study_name="s", storage=storage, sampler=sampler, load_if_exists=True
        )
        return study.ask().suggest_float("x", -3, 3)

    with pytest.raises(ClientError, match="request 1 in"):
        ask_for_a_trial()  # it stays RUNNING, as that of a killed worker does
    hand_in(folder, 1, ANSWER.format(x=2).encode())
    assert ask_for_a_trial() == 2
    assert len(list(folder.glob("*.request.md"))) == 1
