"""``command:...``: a program as the model, with a stand-in for it (``commands/model.py``)."""

from __future__ import annotations

import json
import os
import pickle
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmopt import Float, LLMOptimizer, Reply, ScriptedClient, maximize
from llmopt.cli import main
from llmopt.client import CommandClient, Message, Request, get_client
from llmopt.client.command import _PROVIDERS, _SHARED, COMMANDS, MOST_BYTES
from llmopt.client.http.retry import complete_with_retries
from llmopt.errors import (
    BudgetExceededError,
    ClientError,
    FallbackWarning,
    ModelNotFoundError,
    StorageError,
)
from llmopt.progress import waiting

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "tests" / "commands" / "model.py"
ASK = Request((Message("system", "You optimize."), Message("user", "x: 1")))
SPACE = {"x": Float(0, 1)}
SAYS = "import sys; print(sys.argv[1]); sys.exit(int(sys.argv[2]))"


def line(behaviour: str) -> str:
    return shlex.join([sys.executable, str(MODEL), behaviour])


def client(behaviour: str, **options: object) -> CommandClient:
    return CommandClient([sys.executable, str(MODEL), behaviour], **options)  # type: ignore[arg-type]


@pytest.fixture
def log(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "log"
    path.touch()
    monkeypatch.setenv("LLM_LOG", str(path))
    return path


def calls(log: Path) -> int:
    """Return how often the stand-in was started."""
    return sum(word.isdecimal() for word in log.read_text().splitlines())


def none_left(log: Path, seconds: float = 5.0) -> bool:
    """Whether each process that the stand-in noted has ended."""
    deadline = time.monotonic() + seconds
    left = [int(word) for word in log.read_text().split() if word.isdecimal()]
    assert left
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if Path(f"/proc/{pid}/stat").exists() and not _zombie(pid)]
        time.sleep(0.05)
    return not left


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_it_gets_the_messages_as_text_and_answers_without_colours():
    echo = client("echo").complete(ASK)
    assert echo.completions[0].text.strip() == "### system\n\nYou optimize.\n\n### user\n\nx: 1"
    bare = client("echo").complete(Request((Message("user", "hello"),)))
    assert bare.completions[0].text == "hello\n"
    plain = client("plain").complete(ASK)
    assert plain.completions[0].text.startswith("Lesson:")
    assert "\\x1b" not in plain.completions[0].text
    assert (plain.requests, plain.cost, plain.completions[0].finish_reason) == (1, None, "stop")
    assert client("plain", local=True).complete(ASK).cost == 0


def test_it_sees_an_empty_folder_and_no_key_of_others(monkeypatch):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "MY_TOKEN", "PYTHONPATH"):
        monkeypatch.setenv(name, "sk-planted-0123456789")
    (seen,) = client("environment").complete(ASK).completions
    assert seen.text.rstrip().endswith("[]")
    assert {"PATH", "HOME"} <= set(seen.text.split())
    assert not {"OPENAI_API_KEY", "ANTHROPIC_API_KEY", "MY_TOKEN"} & set(seen.text.split())
    assert "MY_TOKEN" in client("environment", variables="X, MY_TOKEN").environment()
    assert "ANTHROPIC_API_KEY" in CommandClient("claude -p").environment()
    assert "OPENAI_API_KEY" not in CommandClient("claude -p").environment()


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (
            "fails",
            r"exit status 3: cannot log in with \*\*\*\. Log in, .* answers: echo hi \| \S",
        ),
        ("empty", "answered nothing on standard output: quota used up"),
        ("killed", r"exit status 137 \(ended by signal 9\)"),
        ("noisy", f"wrote more than {MOST_BYTES:,} bytes, and"),
        ("endless", f"wrote more than {MOST_BYTES:,} bytes, and"),
        ("stuck", r"did not end within 1 s.* give it longer: 'command:.*\?timeout=2'"),
        ("stubborn", "did not end within 1 s"),
    ],
)
def test_what_goes_wrong_is_said_without_keys_and_leaves_nothing(behaviour, said, log, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "planted/0123456789")
    timeout = 1 if behaviour in ("stuck", "stubborn") else 60
    asked = client(behaviour, timeout=timeout, variables="LLM_LOG,OPENAI_API_KEY")
    with pytest.raises(ClientError, match=said) as caught:
        asked.complete(ASK)
    assert caught.value.retryable is (timeout > 1)  # one that hangs at first is not asked again
    assert caught.value.permanent is (timeout == 1)
    assert caught.value.unpriced == 1
    assert "planted" not in str(caught.value)
    assert none_left(log)


def test_an_answer_with_an_exit_status_is_none():
    asked = CommandClient([sys.executable, "-c", SAYS, "x: 1", "3"])
    with pytest.raises(ClientError, match=r"exit status 3: x: 1\."):
        asked.complete(ASK)


def test_the_page_lists_the_variables_that_a_program_gets():
    text = (ROOT / "docs/models.md").read_text().split("It gets these variables:")[1]
    lists = re.findall(r"`([\w*,]{20,})`", text.split("those of its provider")[0])
    names = [name.replace("*", "X") for name in ",".join(lists).split(",")]
    assert all(map(_SHARED.fullmatch, names))
    words = set(re.findall(r"[A-Z]\w+", _SHARED.pattern)) - {"FILE", "DIR"}
    assert not {word for word in words if not any(n.startswith(word) for n in names)}
    assert all(_SHARED.fullmatch(n.upper()) for n in names if n.endswith("_proxy"))


def test_a_child_left_behind_ends(log):
    assert client("parent", variables="LLM_LOG").complete(ASK).completions[0].text
    assert none_left(log)


def test_a_wrong_command_is_refused(tmp_path, monkeypatch):
    for sign in ("|", ">", "&&", ";", "$HOME"):
        with pytest.raises(ValueError, match="Put the line in a script"):
            CommandClient(f"claude -p {sign} cat")
    assert CommandClient(["cut", "-d", "|"]).arguments[-1] == "|"
    with pytest.raises(ValueError, match="'B=1' is no name"):
        CommandClient("cat", variables="A,B=1")
    assert get_client("command:curl 'http://host/?x=a=b'").arguments[-1].endswith("b")  # type: ignore[attr-defined]
    for wrong in ("", "  ", "say 'this", [], ["a", 1]):
        with pytest.raises(ValueError, match="expected a command line"):
            CommandClient(wrong)  # type: ignore[arg-type]
    with pytest.raises(ModelNotFoundError, match="no program 'no-such-program' on PATH"):
        maximize(lambda p: 1.0, SPACE, 3, "command:no-such-program -p", seed=1)
    with pytest.raises(ValueError, match="timeout='abc': expected a finite number of seconds"):
        CommandClient("cat", timeout="abc")  # type: ignore[arg-type]
    script = tmp_path / "script"
    script.write_text("no shebang and no program")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ModelNotFoundError, match=r"script' is no program .*chmod \+x"):
        CommandClient("~/script").complete(ASK)
    with pytest.raises(ModelNotFoundError, match=r"is a folder; give the program in it$"):
        CommandClient(str(tmp_path)).complete(ASK)
    monkeypatch.setenv("PATH", str(tmp_path))  # where no claude is
    with pytest.raises(ModelNotFoundError, match="no program 'claude' on PATH; install it"):
        CommandClient("claude -p").complete(ASK)
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ModelNotFoundError, match=r"write '\./script'"):
        CommandClient("script").complete(ASK)
    with pytest.raises(ClientError, match="empty folder: give the full path of 'script'"):
        CommandClient([sys.executable, "script"]).complete(ASK)
    with pytest.raises(ClientError, match="cannot be started") as caught:
        CommandClient([str(script)]).complete(ASK)
    assert not caught.value.retryable


def test_a_model_string_names_it():
    named = get_client("command:claude -p --tools ''?timeout=5")
    assert isinstance(named, CommandClient)
    assert (named.arguments, named.timeout) == (["claude", "-p", "--tools", ""], 5.0)
    assert named.name == "command:claude -p --tools ''"
    assert pickle.loads(pickle.dumps(named)).arguments == named.arguments
    assert "hunter" not in CommandClient("x --key sk-hunter0123456789").name
    for name, command in COMMANDS.items():
        assert get_client(command.model).arguments[0] == name  # type: ignore[attr-defined]


def test_a_cap_on_cost_is_refused_and_one_on_requests_kept(log):
    with pytest.raises(BudgetExceededError, match="price is not known"):
        maximize(lambda p: 1.0, SPACE, 3, client("plain"), max_cost=1.0, warmup=0, seed=1)
    assert not log.read_text()
    capped = client("plain", variables="LLM_LOG")
    with LLMOptimizer(SPACE, capped, warmup=0, seed=1, max_requests=2, compute=False) as search:
        for _ in range(2):
            search.tell(search.ask(), 1.0)
        with pytest.raises(BudgetExceededError, match=r"raise the cap to continue$"):
            search.ask()  # nothing of a search without storage= is kept
        assert search.usage.requests == calls(log) == 2


def test_one_that_fails_three_times_in_a_row_after_an_answer_ends_the_study(log):
    asked = client("once", variables="LLM_LOG")
    asked.complete(ASK)
    for permanent in (False, False, True):
        with pytest.raises(ClientError, match="exit status 1") as caught:
            asked.complete(ASK)
        assert caught.value.permanent is permanent
    assert "failed so 3 times in a row" in str(caught.value)


def test_one_that_times_out_three_times_in_a_row_after_an_answer_ends_the_search(log, tmp_path):
    storage = tmp_path / "s.jsonl"
    asked = client("stuck_later", variables="LLM_LOG", timeout=1.5)
    said = r"did not end within 1\.5 s.*\?timeout=3'\. It failed so 3 times in a row"
    with pytest.warns() as warned:
        result = maximize(
            lambda p: 1.0, SPACE, 9, asked, warmup=0, on_error="fallback", storage=storage
        )
    assert calls(log) == 4  # an answer, a request with its repeat, and one more
    assert re.search(said, result.stopped)
    assert f"Run the same again to go on from {storage}" in str(warned[-1].message)


@pytest.mark.parametrize("behaviour", ["limited", "notice"])
def test_a_usage_limit_ends_a_search_with_its_result_and_without_a_random_point(
    log, tmp_path, behaviour
):
    optuna = pytest.importorskip("optuna")
    from llmopt.adapters.optuna import LLMSampler

    def f(trial):
        x = trial.suggest_float("x", 0, 1)
        evaluated.append(x)
        return x

    evaluated, asked = [], client(behaviour, variables="LLM_LOG")
    sampler = LLMSampler(asked, n_startup_trials=0, space=SPACE, compute=False)
    study = optuna.create_study(sampler=sampler)
    said = r"limit reached.*Wait for its limit until"
    with pytest.raises(ClientError, match=said) as caught:
        study.optimize(f, 9)
    assert [t.user_attrs.get("llmopt:source") for t in study.trials] == ["llm", None]
    assert not any("client" in Path(entry.path).parts for entry in caught.traceback)
    assert (len(evaluated), calls(log)) == (1, 2)
    with pytest.raises(ClientError, match="limit reached") as caught:
        LLMOptimizer(SPACE, asked, warmup=0, compute=False).ask()
    assert len(caught.traceback) < 5  # nothing is to debug
    log.write_text("")
    with pytest.warns(RuntimeWarning, match="With storage=, a later run goes on from here"):
        result = maximize(lambda p: 1.0, SPACE, 9, client(behaviour, variables="LLM_LOG"), warmup=0)
    assert (len(result.trials), calls(log)) == (1, 2)
    assert "limit reached" in result.stopped
    for kind in ("once", behaviour):
        log.write_text("")
        with pytest.warns(RuntimeWarning, match="Run the same again to go on from .*jsonl") as told:
            maximize(
                lambda p: 1.0, SPACE, 9, client(kind, variables="LLM_LOG"),
                warmup=0, storage=tmp_path / f"{kind}.jsonl",
            )  # fmt: skip
        assert "storage=" not in str(told[-1].message)


@pytest.mark.parametrize("status", [0, 1])
def test_a_limit_with_an_exit_status_is_one_and_a_warning_of_it_none(status):
    for notice, limited in (
        ("You're out of extra usage · resets 3pm", True),
        ("You've used 95% of your weekly limit · resets Oct 3", False),
    ):
        asked = CommandClient([sys.executable, "-c", SAYS, notice, str(status)])
        with pytest.raises(ClientError) as caught:
            asked.complete(ASK)
        assert (caught.value.exhausted, caught.value.permanent) == (limited, limited)


def test_what_ended_a_program_is_quoted_beside_its_warnings():
    says = "import sys; print(sys.argv[1]); print(sys.argv[2], file=sys.stderr); sys.exit(1)"
    warns = "(node:1) ExperimentalWarning: SQLite is experimental"
    for said, quoted in (
        ("usage limit reached, resets at 5pm", "usage limit reached, resets at 5pm"),
        ("no such option", f"{warns} (standard output: no such option)"),
    ):
        with pytest.raises(ClientError) as caught:
            CommandClient([sys.executable, "-c", says, said, warns]).complete(ASK)
        assert caught.value.exhausted is (said == quoted)
        remedy = "Wait for its limit until" if said == quoted else "Log in, wait for its limit or"
        assert f"failed with exit status 1: {quoted}. {remedy}" in str(caught.value)


def test_a_request_that_the_program_repeats_is_no_notice():
    echo = "import sys; sys.stderr.write(sys.stdin.read()); sys.exit(1)"
    asked = CommandClient([sys.executable, "-c", echo])
    with pytest.raises(ClientError) as caught:
        asked.complete(Request((Message("user", "#1 failed: the usage limit of the valve\nx: 1"),)))
    assert not caught.value.exhausted


def test_a_usage_limit_is_said_once(log, capfd):
    model = client("limited", variables="LLM_LOG")
    with pytest.warns(RuntimeWarning, match="limit reached") as warned:
        maximize(lambda p: 1.0, SPACE, 9, model, warmup=0, progress=True)
    said = [str(one.message) for one in warned]
    assert (said[0].count("limit reached"), len(said)) == (1, 1)
    shown = capfd.readouterr().err
    assert "1/9 trials" in shown
    assert "limit reached" not in shown


def test_a_usage_limit_at_the_last_request_of_a_cap_is_named(log, caplog):
    asked = client("limited", variables="LLM_LOG")
    with pytest.warns(RuntimeWarning, match="limit reached"):
        result = maximize(lambda p: 1.0, SPACE, 9, asked, warmup=0, max_requests=2)
    assert (len(result.trials), calls(log)) == (1, 2)
    assert "limit reached" in result.stopped
    assert not any("attempt" in line for line in caplog.messages)  # there is no second one


def test_a_script_without_its_login_learns_how_it_gets_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("CLAUDE_CODE_OAUTH_TOKEN", "planted-0123456789")
    script = tmp_path / "ask.sh"
    script.write_text("#!/bin/sh\necho 'Invalid API key. Please run /login.'\n")
    script.chmod(0o755)
    with pytest.raises(ClientError) as caught:
        CommandClient([str(script)]).complete(ASK)
    assert "?variables=CLAUDE_CODE_OAUTH_TOKEN" in str(caught.value)
    assert "run /login. Log in" in str(caught.value)
    assert "planted" not in str(caught.value)


def test_a_script_that_fails_learns_which_variables_are_kept_from_it(monkeypatch):
    for name in [n for n in os.environ if n.startswith(("ANTHROPIC_", "CLAUDE_", "LLM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "planted-0123456789")  # it would pay
    monkeypatch.setenv("MINE", "1")

    def fails(status: int, **options: str) -> str:
        asked = CommandClient([sys.executable, "-c", SAYS, "no token", str(status)], **options)  # type: ignore[arg-type]
        with pytest.raises(ClientError) as caught:
            asked.complete(ASK)
        return str(caught.value)

    assert "variables" not in fails(1)
    monkeypatch.setenv("CLAUDE_CODE_OAUTH_TOKEN", "planted-9876543210")
    said = fails(1, variables="MINE")
    assert said.count("?variables=MINE,CLAUDE_CODE_OAUTH_TOKEN") == 1
    assert "planted" not in said
    assert "variables" not in fails(1, variables="CLAUDE_CODE_OAUTH_TOKEN")
    assert "variables" not in fails(127)  # it did not begin


def test_a_slow_command_gives_a_sign_of_life_once(monkeypatch, caplog, capfd):
    monkeypatch.setattr("llmopt.client.command.SIGN_SECONDS", (0.1, 60.0))
    asked = client("slow")
    for _ in range(2):  # later it is known to be slow
        asked.complete(ASK)
        assert caplog.text.count("has not answered for 0 s: waiting up to 600 s") == 1
    caplog.clear()
    with waiting(print):
        client("slow").complete(ASK)
    assert "has not answered" not in caplog.text


def test_no_request_outlasts_the_timeout_of_a_search(log, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("llmopt.client.command.SIGN_SECONDS", (0.1, 0.1))
    asked = client("stuck", variables="LLM_LOG")
    options = {"warmup": 2, "seed": 1, "storage": tmp_path / "s.jsonl"}
    for wait in (1.0, 0.5):
        began = time.monotonic()
        result = maximize(lambda p: 1.0, SPACE, 9, asked, timeout=wait, **options)
        assert time.monotonic() - began < 20
        assert result.stopped == f"timeout={wait:g} seconds are over"
        assert len(result.trials) == 2
    assert calls(log) == 2
    assert none_left(log)
    assert "has not answered for 0 s: waiting up to 1 s" in caplog.text
    result = maximize(lambda p: 1.0, SPACE, 3, client("plain", variables="LLM_LOG"), **options)
    assert not result.stopped
    assert [t.source for t in result.trials] == ["warmup", "warmup", "llm"]


def test_a_failed_call_is_repeated_once(log):
    with pytest.raises(ClientError, match="gave up after 2 attempts"):
        complete_with_retries(client("empty", variables="LLM_LOG"), ASK, sleep=lambda s: None)
    assert calls(log) == 2


@pytest.mark.parametrize(
    ("notice", "status"),
    [
        ('API Error: 529 {"type":"error","error":{"type":"overloaded_error"}}', 1),
        ("HTTP/1.1 503 Service Unavailable", 2),
        ("API Error: 429 Too Many Requests", 0),
        ("ERROR: exceeded retry limit, last status: 429 Too Many Requests, request id: 9c84", 1),
        ("The model is temporarily unavailable.", 0),
        ("Please try again in a moment", 0),
        ("API Error: Connection error.", 1),
        ("read ECONNRESET", 1),
        ("Rate limit exceeded. Try again in 20 seconds", 1),
        ("Rate limit exceeded. Try again in 1 minute", 0),
        ("API Error: Request timed out.", 1),
        ("getaddrinfo EAI_AGAIN api.anthropic.com", 1),
    ],
)
def test_a_short_overload_is_waited_out_with_growing_pauses(notice, status):
    asked, waits = CommandClient([sys.executable, "-c", SAYS, notice, str(status)]), []
    asked.patience = 8.0  # type: ignore[attr-defined]
    with pytest.raises(ClientError, match="gave up after") as caught:
        complete_with_retries(asked, ASK, sleep=waits.append)
    assert len(waits) > 2
    assert waits == sorted(waits)
    assert notice[:20] in str(caught.value)
    assert "Log in" not in str(caught.value)
    assert (caught.value.permanent, caught.value.unpriced) == (True, 0)
    assert CommandClient(["echo", f"{notice}\nx: 1"]).complete(ASK).completions


def test_an_overload_that_outlasts_all_patience_ends_a_study(log, monkeypatch):
    optuna = pytest.importorskip("optuna")
    from llmopt.adapters.optuna import LLMSampler

    monkeypatch.setattr("llmopt.client.http.retry._FIRST_WAIT", 0.01)
    asked = client("busy", variables="LLM_LOG")
    asked.patience = 0.05  # type: ignore[attr-defined]
    sampler = LLMSampler(asked, n_startup_trials=1, space=SPACE, compute=False)
    study = optuna.create_study(sampler=sampler)
    said = r"gave up after \d attempts\). Wait until it is over$"
    with pytest.raises(ClientError, match=said):
        study.optimize(lambda t: t.suggest_float("x", 0, 1), 9)
    assert [t.state.name for t in study.trials] == ["COMPLETE", "FAIL"]
    assert calls(log) < 9


@pytest.mark.parametrize("said", ["usage limit reached, servers are overloaded", "run /login: 503"])
def test_a_usage_limit_and_a_login_are_no_overload(said):
    asked = CommandClient([sys.executable, "-c", SAYS, said, "1"])
    with pytest.raises(ClientError, match=r"(Wait for its limit|Log in) until this") as caught:
        asked.complete(ASK)
    assert caught.value.status is None


def test_the_tries_of_an_overload_count_and_end_at_caps_and_in_time(log, monkeypatch):
    monkeypatch.setattr("llmopt.client.http.retry._FIRST_WAIT", 0.01)
    options = {"warmup": 1, "seed": 1, "compute": False}
    model = client("overloaded", variables="LLM_LOG")
    result = maximize(lambda p: 1.0, SPACE, 3, model, max_requests=6, **options)
    assert [t.source for t in result.trials] == ["warmup", "llm", "llm"]
    assert result.usage.requests == calls(log) == 6
    log.write_text("")
    model = client("busy", variables="LLM_LOG")
    with pytest.warns(RuntimeWarning, match="temporarily unavailable"):
        result = maximize(lambda p: 1.0, SPACE, 3, model, max_requests=4, **options)
    assert "(gave up after 4 attempts, since max_requests is reached: raise it" in result.stopped
    assert (len(result.trials), result.usage.requests, calls(log)) == (1, 4, 4)
    with pytest.raises(ClientError, match="since max_requests is reached") as caught:
        maximize(lambda p: 1.0, SPACE, 3, model, max_requests=2, **{**options, "warmup": 0})
    assert not any("client" in Path(entry.path).parts for entry in caught.traceback)
    result = maximize(lambda p: 1.0, SPACE, 3, model, timeout=1.0, **options)
    assert result.stopped == "timeout=1 seconds are over"


def test_a_file_that_somebody_sent_runs_no_command(tmp_path, capsys):
    trap = tmp_path / "trap"
    sent = f"command:touch {trap}"
    described = tmp_path / "sent.json"
    schema = {"x": {"type": "number", "minimum": 0, "maximum": 1}}
    described.write_text(
        json.dumps({"space": schema, "direction": "maximize", "warmup": 0, "model": sent})
    )
    assert main(["ask", str(described)]) == 2
    assert "asked only if you name it" in capsys.readouterr().err
    stored = tmp_path / "stored.jsonl"
    with LLMOptimizer(SPACE, sent, storage=stored, warmup=9) as begun:
        begun.ask()
    assert main(["ask", str(stored)]) == 2
    assert "asked only if you name it" in capsys.readouterr().err
    with pytest.raises(StorageError, match="Give it again"):
        LLMOptimizer.load(stored)
    for command in ("status", "tell"):
        point = ['{"params": {"x": 0.5}, "reward": 1}'] if command == "tell" else []
        assert main([command, str(described), *point]) == 0
    assert not trap.exists()
    assert main(["ask", str(described), "--model", f"command:{line('plain')}"]) == 0
    assert '"source": "llm"' in capsys.readouterr().out


_SEARCH = """
import sys
from llmopt import Float, maximize
done = maximize(lambda p: -(p["x"] - 0.3) ** 2, {"x": Float(0, 1)}, 5, sys.argv[1],
                seed=1, warmup=2, storage=sys.argv[2], compute=False)
print(done.usage.requests, [t.source for t in done.trials].count("llm"))
"""


def search(behaviour: str, storage: Path, script: str = _SEARCH) -> subprocess.Popen[str]:
    (tmp := storage.parent / "tmp").mkdir(exist_ok=True)
    command = [sys.executable, "-c", script, f"command:{line(behaviour)}?variables=LLM_LOG"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp)}
    return subprocess.Popen(
        [*command, str(storage)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("behaviour", ["slow", "flaky"])
def test_a_whole_search(behaviour, log, tmp_path):
    out, err = search(behaviour, tmp_path / "s.jsonl").communicate(timeout=60)
    requests, proposed = map(int, out.split())
    assert proposed == 3, err
    assert requests == calls(log)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_search_leaves_no_child_and_resumes(number, log, tmp_path):
    storage = tmp_path / "s.jsonl"
    begun = search("stubborn", storage)
    while "child" not in log.read_text():
        assert begun.poll() is None
        time.sleep(0.05)
    begun.send_signal(number)
    begun.communicate(timeout=30)
    assert none_left(log)
    assert not list((tmp_path / "tmp").iterdir())
    out, err = search("slow", storage).communicate(timeout=60)
    requests, proposed = map(int, out.split())
    assert proposed == 3, err
    assert requests == calls(log)  # the lost one counts


_INTERRUPTED = """
import json, sys
from llmopt import Float, LLMOptimizer
search = LLMOptimizer({"x": Float(0, 1)}, sys.argv[1], storage=sys.argv[2], warmup=0, compute=False)
try:
    search.ask()
finally:
    print(json.dumps(vars(search.usage)), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_running_and_an_interrupted_call_count_equally_everywhere(number, log, tmp_path):
    from llmopt.commands.status import open_file, status
    from llmopt.reports import open_search

    storage = tmp_path / "s.jsonl"
    with search("stubborn", storage, _INTERRUPTED) as begun:
        while "child" not in log.read_text():
            assert begun.poll() is None
            time.sleep(0.05)
        running = status(open_file(storage, asks=False, reads=True))
        begun.send_signal(number)
        out, _ = begun.communicate(timeout=30)
    assert running["waiting"].endswith("waits for its answer")
    sent = running["usage"]
    assert (sent["requests"], sent["failed_requests"], sent["unpriced"]) == (1, 0, 0)
    ended = status(open_file(storage, asks=False, reads=True))
    assert "has ended: the next ask repeats it" in ended["waiting"]
    usage = ended["usage"]
    assert (usage["requests"], usage["failed_requests"], usage["unpriced"]) == (1, 1, 1)
    assert usage["prompt_tokens"] == sent["prompt_tokens"] > 100
    assert vars(open_search(str(storage))[0].usage) == usage
    if number == signal.SIGINT:
        assert json.loads(out) == usage
    with LLMOptimizer.load(storage, client("plain"), compute=False) as resumed:
        assert vars(resumed.usage) == usage
        resumed.ask()
        assert resumed.usage.failed_requests == 1
        assert resumed.usage.prompt_tokens == 2 * usage["prompt_tokens"]


def test_a_failed_call_counts_the_tokens_of_its_prompt_and_its_seconds(log):
    said = "import sys, time; time.sleep(0.2); sys.exit(1)"
    for local, charged in ((False, 2), (True, 0)):
        failing = CommandClient([sys.executable, "-c", said], local=local)
        failing._answered = True
        with LLMOptimizer(SPACE, failing, warmup=0, compute=False, on_error="fallback") as search:
            with pytest.warns(FallbackWarning):
                search.ask()
            usage = search.usage
        assert (usage.requests, usage.failed_requests, usage.completion_tokens) == (2, 2, 0)
        assert usage.seconds > 0.4
        assert (usage.unpriced, bool(usage.prompt_tokens)) == (charged, not local)


def test_a_kill_between_two_requests_loses_no_reply(log, tmp_path):
    storage = tmp_path / "s.jsonl"
    begun = search("slow", storage)
    while calls(log) < 3:
        assert begun.poll() is None
        time.sleep(0.02)
    begun.kill()
    begun.communicate()
    paid = [json.loads(x) for x in storage.read_text().splitlines() if "Lesson" in x]
    out, _ = search("slow", storage).communicate(timeout=60)
    whole = storage.read_text()
    assert len(paid) == 2
    assert all(whole.count(json.dumps(x, separators=(",", ":"))[:200]) == 1 for x in paid)
    assert int(out.split()[0]) == calls(log) == 4  # one was under way


def test_models_lists_the_installed_ones_and_check_asks_one(tmp_path, monkeypatch, capsys):
    from llmopt.commands.models import survey

    (tmp_path / "llm").write_text("#!/bin/sh\n")
    (tmp_path / "llm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (row,) = (s for s in survey() if s.model == "command:COMMAND")
    assert row.ready
    assert "command:llm" in row.detail
    assert main(["check", f"command:{line('plain')}", "--prompt", "words"]) in (0, 1)
    out = capsys.readouterr().out
    assert "cost     unknown" in out
    assert "1 request" in out
    (tmp_path / "llm").write_text("#!/bin/sh\necho 'Please run login' >&2\nexit 1\n")
    assert main(["check", "command:llm"]) == 2
    error = capsys.readouterr().err
    assert "Please run login. Log in until this answers" in error
    assert "until this answers: echo hi | llm (" in error


def test_a_study_ends_at_once_with_a_program_that_never_answers_and_not_with_one_that_did(log):
    optuna = pytest.importorskip("optuna")
    from llmopt.adapters.optuna import LLMSampler

    def study(behaviour: str, trials: int) -> tuple[LLMSampler, optuna.Study]:
        asked = client(behaviour, variables="LLM_LOG,OPENAI_API_KEY")
        sampler = LLMSampler(asked, n_startup_trials=0, space=SPACE, compute=False)
        made = optuna.create_study(sampler=sampler)
        made.optimize(lambda t: t.suggest_float("x", 0, 1), n_trials=trials)
        return sampler, made

    for behaviour in ("fails", "empty"):
        log.write_text("")
        with pytest.raises(ClientError, match=r"exit status|answered nothing") as caught:
            study(behaviour, 9)
        assert calls(log) == 2
        assert "until this answers: echo hi | " in str(caught.value)
    with pytest.raises(ClientError, match="exit status"):  # beside a random start
        maximize(lambda p: 1.0, SPACE, 9, client("fails"), warmup=2, seed=1)
    log.write_text("")
    with pytest.warns(FallbackWarning, match="exit status 1"):
        sampler, made = study("once", 2)
    assert [t.user_attrs["llmopt:source"] for t in made.trials] == ["llm", "fallback"]
    assert (sampler.usage.failed_requests, sampler.usage.cost) == (2, None)


SAFE = """did you mean 'command:claude -p --tools "" --strict-mcp-config'?"""


def test_likely_mistakes_are_named_with_what_was_meant(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for model, said in (
        ('command:claude "x', "No closing quotation"),
        ("claude -p", SAFE),
        (
            "command claude -p",
            SAFE,
        ),
        ("command:cluade -p", "did you mean 'claude'?"),
    ):
        assert main(["check", model]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert "Traceback" not in error


def test_a_search_without_a_cap_says_so_once(caplog):
    client = CommandClient([sys.executable, "-c", "print('Proposal: x: 1')"])
    options = {"prompt": "words", "compute": False, "warmup": 0}
    maximize(lambda p: p["x"], {"x": Float(0, 2)}, 1, client, **options)
    assert caplog.text.count("no cap is set: max_requests=") == 1
    caplog.clear()
    maximize(lambda p: p["x"], {"x": Float(0, 2)}, 1, client, **options, max_requests=4)
    assert "no cap" not in caplog.text


def test_it_is_said_once_whether_a_program_gets_an_api_key(tmp_path, monkeypatch, caplog):
    for name, said in (
        ("claude", "gets ANTHROPIC_API_KEY of the environment, which may pay in place"),
        ("wrapper", "does not get ANTHROPIC_API_KEY of the environment, so that its own login"),
    ):
        (tmp_path / name).write_text("#!/bin/sh\necho x: 1\n")
        (tmp_path / name).chmod(0o755)
        monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
        asked = CommandClient([str(tmp_path / name)])
        asked.complete(ASK)
        assert "ANTHROPIC_API_KEY" not in caplog.text
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-planted-0123456789")
        asked.complete(ASK)
        asked.complete(ASK)
        assert caplog.text.count(said) == 1
        assert "planted" not in caplog.text
        caplog.clear()


def test_a_script_is_said_once_to_get_no_variable_of_its_account(tmp_path, monkeypatch, caplog):
    (tmp_path / "claude").symlink_to(sys.executable)
    for name in filter(_PROVIDERS.fullmatch, list(os.environ)):
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path))
    for program, noted in ((sys.executable, True), (str(tmp_path / "claude"), False)):
        asked = CommandClient([program, "-c", "print('Proposal: x')", "--tools="])
        asked.complete(ASK)
        asked.complete(ASK)
        assert caplog.text.count("does not get CLAUDE_CONFIG_DIR of the environment, so") == noted
        assert ("(?variables=CLAUDE_CONFIG_DIR passes" in caplog.text) is noted
        caplog.clear()


@pytest.mark.parametrize(
    ("notice", "limited"),
    [
        ("Quota exceeded for quota metric 'Gemini requests' and limit 'per day'", True),
        ("You're out of extra usage · resets 3pm", True),
        ("Rate limit exceeded. Try again in 20 minutes.", True),
        ("Rate limit reached, try again in 2 hours", True),
        ("You've used 95% of your weekly limit · resets Oct 3", False),
        ("Approaching your 5-hour limit", False),
        ("Your OAuth token has expired. Please obtain a new token", False),
        ("Login required: run `gemini auth`", False),
    ],
)
def test_a_notice_that_is_printed_as_an_answer_is_none(notice, limited):
    asked = CommandClient([sys.executable, "-c", "import sys; print(sys.argv[1])", notice])
    with pytest.raises(ClientError, match="gave no answer") as caught:
        asked.complete(ASK)
    assert caught.value.exhausted is limited
    assert CommandClient(["echo", f"{notice}\nx: 1"]).complete(ASK).completions


@pytest.mark.parametrize("most", [5, None])
def test_a_program_of_another_kind_ends_a_search_at_once_unless_it_may_go_on(most):
    asked = CommandClient([sys.executable, "-c", "print('Hi!\\nHow can I help? ' * 20)"])
    search = LLMOptimizer(SPACE, asked, warmup=0, seed=1, compute=False, max_fallbacks=most)
    if most is None:
        with pytest.warns(FallbackWarning) as warned:
            search.ask()
        said, after = str(warned[0].message), ". They are"
    else:
        with pytest.raises(ClientError) as caught:
            search.ask()
        assert caught.value.permanent
        said, after = str(caught.value), ". See that"
    assert search.usage.requests == 3
    quote = said.split("; it began ")[1].partition(after)[0]
    assert quote.startswith("'Hi! How can I help? Hi! How can")
    assert 190 < len(quote) <= 202


def test_check_counts_and_shows_the_attempts_of_an_overload(log, monkeypatch, capsys, caplog):
    monkeypatch.setattr("llmopt.client.http.retry._FIRST_WAIT", 0.01)
    main(["check", f"command:{line('overloaded')}?variables=LLM_LOG", "--prompt", "words"])
    assert "s in 3 requests" in capsys.readouterr().out
    assert calls(log) == 3
    assert [f"attempt {n} failed: " in caplog.text for n in (1, 2, 3)] == [True, True, False]


def test_a_variable_that_is_not_set_and_tools_that_are_on_are_named_once(tmp_path, caplog):
    (tmp_path / "claude").write_text("#!/bin/sh\necho x: 1\n")
    (tmp_path / "claude").chmod(0o755)

    def said(*arguments: str, **options: str) -> str:
        caplog.clear()
        asked = CommandClient([str(tmp_path / "claude"), *arguments], **options)  # type: ignore[arg-type]
        asked.complete(ASK)
        asked.complete(ASK)
        return caplog.text

    text = said("-p", "--tools", "", variables="HOME, FOO_SECRE")
    assert text.count("FOO_SECRE of variables= is not set") == 1
    assert ("HOME" in text, "its tools" in text) == (False, True)  # those of its MCP servers
    assert (
        said("-p", "--tools", "--strict-mcp-config").count("may use its tools. This prevents") == 1
    )
    assert not said("-p", "--tools=", "--strict-mcp-config", variables="HOME")


@pytest.mark.parametrize(
    ("command", "may"),
    [
        ("claude -p", "use its tools"),
        ('claude -p --tools "" --model opus', "use its tools"),
        ("codex exec --sandbox workspace-write -", "edit files"),
        ("codex exec -s=danger-full-access -", "edit files"),
        ("codex exec -", ""),  # read-only
        ("gemini --approval-mode=yolo", "edit files without asking you"),
        ("gemini -m gemini-3-pro-yolo", ""),
        ("llm -T llm_time", "use the tools that it names"),
        ("llm -t plain", ""),
        ("ollama run llama3.2 --experimental-yolo", "use tools"),
        ("nice -n 3 claude -p", "use its tools"),
        ("env -i A=/b/c claude -p", "use its tools"),
        ("timeout -k 5 60s nice claude -p", "use its tools"),
        ('nice -n 3 claude -p --tools "" --strict-mcp-config', ""),
        ("nice other claude -p", ""),  # an argument of another program
        ("bash -c 'claude -p'", ""),
        *((command.model.removeprefix("command:"), "") for command in COMMANDS.values()),
    ],
)
def test_what_a_known_program_may_do_is_said_with_the_options_that_prevent_it(
    command, may, tmp_path, monkeypatch, caplog
):
    for variable in filter(_PROVIDERS.fullmatch, list(os.environ)):
        monkeypatch.delenv(variable)
    first, _, options = command.partition(" ")
    (tmp_path / first).write_text("#!/bin/sh\necho x: 1\n")
    (tmp_path / first).chmod(0o755)
    CommandClient(f"{tmp_path / first} {options}").complete(ASK)
    said = f" may {may}. This prevents" if may else ""
    assert (" may use" in caplog.text or " may edit" in caplog.text) == bool(may)
    assert said in caplog.text
    name = first if first in COMMANDS else "claude"
    assert f"'{COMMANDS[name].model}'" in caplog.text or not may


@pytest.mark.parametrize(
    ("command", "hinted"),
    [
        ("codex", True),
        ("codex exec -", True),
        ("nice codex exec -", True),
        ("codex exec --skip-git-repo-check --sandbox read-only -m o3 -", False),
        ("llm -m o3", False),
    ],
)
def test_a_failed_check_shows_the_model_string_that_works(
    command, hinted, tmp_path, monkeypatch, capsys
):
    for name in ("codex", "llm"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'no trusted directory' >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert main(["check", f"command:{command}"]) == 2
    shown = f"mend its options (as in '{COMMANDS['codex'].model}') until this answers: echo hi |"
    assert (shown in capsys.readouterr().err) == hinted


def test_an_answer_within_json_is_refused_before_it_is_paid_for():
    for command in (
        "claude -p --output-format json",
        "/opt/claude -p --output-format=stream-json --verbose",
        "codex exec --json -",
        "gemini -o json",
    ):
        with pytest.raises(ValueError, match=r"only a part of the JSON .*; leave this option out"):
            CommandClient(command)
    for command in ("claude -p --output-format text", "gemini", "llm --json", "jq --json"):
        assert CommandClient(command).arguments


def test_a_long_request_shows_for_how_long_it_waits(monkeypatch, capfd):
    class Slow(ScriptedClient):
        def complete(self, request: Request) -> Reply:
            time.sleep(0.4)
            return super().complete(request)

    monkeypatch.setattr("llmopt.progress.WAIT_SECONDS", 0.1)
    for progress in (True, None):
        maximize(lambda p: 1.0, SPACE, 1, Slow(["x: 0.5"]), warmup=0, progress=progress)
        lines = capfd.readouterr().err.splitlines()
        waits = [line for line in lines if "0/1 trials, waiting for the model, 0 s" in line]
        assert bool(waits) is bool(progress)
        assert not any("1/1 trials, waiting" in line for line in lines)
    with waiting():
        time.sleep(0.3)
    assert capfd.readouterr().err == ""  # of a command, not on a terminal
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with waiting():
        time.sleep(0.3)
    shown = capfd.readouterr().err
    assert shown.startswith("llmopt: waiting for the model, 0 s\r")
    assert shown.endswith("\r\x1b[K")


def test_a_chat_model_without_a_description_is_named_once(monkeypatch, caplog):
    monkeypatch.setattr("llmopt.point_task._warned", set())
    LLMOptimizer(SPACE, "network")
    LLMOptimizer(SPACE, ScriptedClient([]), prompt="props")
    LLMOptimizer(SPACE, ScriptedClient([]), prompt="words", description="A bowl.")
    assert "sees only names and numbers" not in caplog.text
    for _ in range(2):
        LLMOptimizer(SPACE, ScriptedClient([]), prompt="words")
    assert caplog.text.count("sees only names and numbers") == 1
