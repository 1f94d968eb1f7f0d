"""Searches driven over JSON: descriptions, `llmopt ask`, `tell`, `status`."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from llmopt import Categorical, Float, Int, LLMOptimizer, ScriptedClient, SpaceError
from llmopt.cli import main
from llmopt.errors import LLMOptError, RewardError
from llmopt.service.description import read_description, read_space
from llmopt.service.search_file import open_file

SPACE = {
    "x": {"type": "number", "minimum": -5, "maximum": 5},
    "k": {"type": "integer", "minimum": 0, "maximum": 9},
}


DESCRIBED = {"space": SPACE, "direction": "maximize", "warmup": 50, "seed": 0}


def write(folder, **keys):
    path = folder / "search.json"
    path.write_text(json.dumps(DESCRIBED | keys))
    return str(path)


def run(capsys, *arguments, status=0):
    assert main(list(arguments)) == status
    captured = capsys.readouterr()
    if status:
        return captured.err
    return [json.loads(line) for line in captured.out.splitlines()]


class TestDescription:
    def test_a_schema_is_a_space(self):
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "lr": {"type": "number", "minimum": 1e-5, "maximum": 0.1, "log": True},
                "drop": {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25},
                "k": {"type": "integer", "minimum": 1, "maximum": 9, "multipleOf": 2},
                "kind": {"enum": ["a", 3, None]},
                "flag": {"type": "boolean", "title": "on or off"},
            },
            "required": ["lr"],
        }
        space = read_space(schema)
        assert dict(zip(space.names, space.dimensions, strict=True)) == {
            "lr": Float(1e-5, 0.1, log=True),
            "drop": Float(0, 1, step=0.25),
            "k": Int(1, 9, step=2),
            "kind": Categorical(("a", 3, None)),
            "flag": Categorical((False, True)),
        }

    @pytest.mark.parametrize(
        "part",
        [
            {"type": "number"},
            {"type": "number", "minimum": True, "maximum": 1},
            {"type": "number", "minimum": math.nan, "maximum": 1},
            {"type": "number", "minimum": 2, "maximum": 1},
            {"type": "number", "minimum": 0, "maximum": 1, "log": True},
            {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
            {"type": "integer", "minimum": 0, "maximum": 10**400},
            {"type": "string"},
            {"enum": []},
            {"enum": [[1]]},
            {"enum": ["a" * 500]},
            {"enum": list(range(2000))},
            3,
        ],
    )
    def test_what_cannot_be_searched_is_refused_by_name(self, part):
        with pytest.raises(SpaceError, match="'x'"):
            read_space({"x": part})

    def test_an_option_of_the_search_among_the_parameters_is_refused_with_the_way_to_write_it(self):
        said = "'noisy': got 'True'; .*if it is an option of the search, write it before `space`"
        with pytest.raises(SpaceError, match=said):
            read_space({**SPACE, "noisy": True})

    @pytest.mark.parametrize("key", ["spaces", "storage", "prompt", "model", "callbacks"])
    def test_a_description_names_no_file_and_no_unknown_key(self, key):
        with pytest.raises(LLMOptError, match=key):
            read_description({**DESCRIBED, key: "/etc/passwd" if key == "prompt" else 3})

    def test_what_is_said_of_parameters_reaches_the_model(self):
        space = {**SPACE, "k": {**SPACE["k"], "description": "how many\nworkers"}}
        found = read_description({**DESCRIBED, "space": space, "description": "a server"})
        assert found["description"] == "a server\nk: how many workers"


class TestShell:
    def test_a_loop(self, tmp_path, capsys):
        file = write(tmp_path, start=[{"params": {"x": 1, "k": 2}, "words": "now"}])
        (first,) = run(capsys, "ask", file)
        about = {"source": "user", "explanation": "now"}
        assert first == {"point": "p1", "params": {"x": 1.0, "k": 2}, **about}
        told = {"params": first["params"], "reward": 2.5, "feedback": "slow", "stderr": 0.5}
        (trial,) = run(capsys, "tell", file, json.dumps(told))
        assert (trial["number"], trial["reward"], trial["feedback"]) == (1, 2.5, "slow")
        points = run(capsys, "ask", file, "-n", "3")
        assert len(points) == 3
        storage = str(tmp_path / "search.jsonl")
        assert run(capsys, "ask", storage, "--again", "-n", "2") == points[:2]
        failed = {"params": points[0]["params"], "failed": "out of memory"}
        (trial,) = run(capsys, "tell", storage, json.dumps(failed))
        assert (trial["state"], trial["feedback"]) == ("failed", "out of memory")
        assert main(["status", file]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["best"]["params"] == {"x": 1.0, "k": 2}
        assert found["trials"] == 2
        assert len(found["pending"]) == 2
        assert len(run(capsys, "status", file, "--trials")) == 2

    @pytest.mark.parametrize("named", [True, False])
    def test_the_best_of_several_objectives_is_that_of_each(self, tmp_path, capsys, named):
        goals = {"cost": "minimize", "gain": "maximize"}
        file = write(tmp_path, direction=goals if named else list(goals.values()))
        rewards = [[1.0, 2.0], [3.0, 9.0], [5.0, 4.0]]
        told = [
            {"params": {"x": k / 4, "k": 2}, "reward": reward} for k, reward in enumerate(rewards)
        ]
        told.append({"params": {"x": 1, "k": 1}, "reward": [0.0, 99.0], "constraint_violation": 1})
        run(capsys, "tell", file, *map(json.dumps, told))
        assert main(["status", file]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["pareto"] == ["#1", "#2"]
        assert found["directions"] == (goals if named else list(goals.values()))
        (latest,) = run(capsys, "tell", file, '{"params": {"x": 0, "k": 1}, "reward": [9, 1]}')
        assert latest["reward"] == ({"cost": 9.0, "gain": 1.0} if named else [9.0, 1.0])
        names = list(goals) if named else ["objective 1", "objective 2"]
        assert {name: t["number"] for name, t in found["best"].items()} == {
            names[0]: 1,
            names[1]: 2,
        }

    def test_a_search_that_python_began(self, tmp_path, capsys):
        path = tmp_path / "mine.jsonl"
        space = {"x": Float(-5.0, 5.0)}
        with_python = LLMOptimizer(space, ScriptedClient(["x: 1"]), warmup=2, storage=path)
        point = with_python.ask()
        with_python.close()
        assert "give --model" in run(capsys, "ask", str(path), status=2).lower()
        (trial,) = run(capsys, "tell", str(path), json.dumps({"params": point, "reward": 1}))
        assert trial["source"] == "warmup"
        (again,) = run(capsys, "ask", str(path), "--model", "smollm2")
        assert again["source"] == "warmup"

    @pytest.mark.parametrize("model", ["openai+http://evil.example/v1:m", "folder:/tmp/x"])
    def test_a_place_in_a_file_is_not_asked_unless_it_is_named(self, tmp_path, capsys, model):
        path = tmp_path / "theirs.jsonl"
        with LLMOptimizer({"x": Float(0, 1)}, ScriptedClient([]), storage=path, warmup=9) as begun:
            begun.ask()
        path.write_text(path.read_text().replace('"client":"scripted"', f'"client":"{model}"'))
        assert "asked only if you name it" in run(capsys, "ask", str(path), status=2)

    @pytest.mark.parametrize("wrong", ['{"params": {"x": 9, "k": 2}, "reward": 1}', "3", "{"])
    def test_of_several_results_one_that_is_wrong_keeps_all_out(self, tmp_path, capsys, wrong):
        file = write(tmp_path)
        good = '{"params": {"x": 1, "k": 2}, "reward": 1}'
        error = run(capsys, "tell", file, good, wrong, good, status=2)
        assert "result 2" in error
        assert "nothing was recorded" in error
        assert main(["status", file]) == 0
        assert json.loads(capsys.readouterr().out)["trials"] == 0
        assert len(run(capsys, "tell", file, good, good)) == 2

    def test_commands_at_the_same_time_wait_for_each_other(self, tmp_path):
        file = write(tmp_path)
        command = [sys.executable, "-m", "llmopt", "ask", file, "-n", "2"]
        jobs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
        lines = [line for job in jobs for line in job.communicate()[0].splitlines()]
        assert len({line for line in lines}) == 8

    def test_one_that_may_not_wait_says_who_is_in_the_way(self, tmp_path, capsys):
        file = write(tmp_path)
        run(capsys, "ask", file)
        holder = LLMOptimizer(
            read_space(SPACE), "smollm2", storage=tmp_path / "search.jsonl", warmup=50
        )
        said = run(capsys, "ask", file, "--wait", "0", status=2)
        assert "answer its request, end it" in said
        assert "or wait longer (--wait SECONDS)" in said
        holder.close()

    def test_one_that_waits_for_an_ask_says_so_and_how_to_end_it(self, tmp_path, capsys, caplog):
        file, mail = write(tmp_path, warmup=0, description="a plant"), tmp_path / "mail"
        command = [sys.executable, "-m", "llmopt", "ask", file, "--model", f"folder:{mail}"]
        run(capsys, "enqueue", file, '{"x": 1, "k": 2}', '{"x": 2, "k": 2}')
        assert main([*command[3:], "-n", "2"]) == 0
        assert not capsys.readouterr().err
        caplog.clear()
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as asking:
            assert asking.stderr is not None
            pending, waits = asking.stderr.readline(), asking.stderr.readline()
            assert pending == "llmopt: no result yet: p1, p2 (--again returns them)\n"
            assert "request 1 waits for its answer, without a time limit: llmopt next" in waits
            assert main([*command[3:], "--wait", "0.5"]) == 2
            asking.kill()
        assert "in use" in capsys.readouterr().err
        (said,) = caplog.messages  # once
        assert "in use by another program, perhaps an `llmopt ask`" in said

    @pytest.mark.parametrize("name", ["search.json", "search.jsonl"])
    def test_status_waits_for_nobody(self, tmp_path, capsys, monkeypatch, name):
        file = write(tmp_path)
        run(capsys, "tell", file, '{"params": {"x": 1, "k": 2}, "reward": 1}')
        monkeypatch.setattr("llmopt.service.search_file.time.sleep", pytest.fail)
        space, storage = read_space(SPACE), tmp_path / "search.jsonl"
        with LLMOptimizer(space, "smollm2", storage=storage, warmup=50, seed=0) as holder:
            before = storage.read_bytes()
            (shown,) = run(capsys, "status", str(tmp_path / name), "--trials")
            assert shown["reward"] == 1
            assert storage.read_bytes() == before
            holder.tell({"x": 2, "k": 2}, 3)
        assert main(["status", str(tmp_path / name)]) == 0
        assert json.loads(capsys.readouterr().out)["best"]["reward"] == 3

    def test_nothing_to_do_is_refused(self, tmp_path, capsys, monkeypatch):
        file = write(tmp_path)
        assert "at least 1" in run(capsys, "ask", file, "-n", "0", status=2)
        monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
        assert "no result was given" in run(capsys, "tell", file, status=2)
        assert not (tmp_path / "search.jsonl").exists()
        wrong = file.replace("search", "serach")
        assert f"{wrong} (did you mean {file}?)" in run(capsys, "status", wrong, status=2)

    def test_a_point_may_follow_the_options(self, tmp_path, capsys):
        file = write(tmp_path)
        run(capsys, "ask", file)
        assert run(capsys, "tell", file, "--reward", "3", "p1")[0]["reward"] == 3
        assert "no result of p2 was given: give the result as --reward 3.5" in run(
            capsys, "tell", file, "p2", "3.5", status=2
        )
        nan = '{"params": {"x": 1, "k": 2}, "reward": nan}'
        assert 'NaN is no JSON: give "failed": "why"' in run(capsys, "tell", file, nan, status=2)

    @pytest.mark.parametrize("compute", [True, False, "auto"])
    def test_a_description_says_whether_the_model_computes(self, tmp_path, capsys, compute):
        assert read_description(DESCRIBED | {"compute": compute})["compute"] is compute
        path = write(tmp_path, compute=compute, model="network")
        status = 2 if compute is True else 0  # of a model that writes no Python
        assert run(capsys, "ask", path, status=status)

    def test_an_unknown_key_lists_all_keys(self):
        with pytest.raises(LLMOptError, match=r"did you mean 'compute'.*'warmup'") as error:
            read_description(DESCRIBED | {"computes": False})
        assert "more" not in str(error.value)


class TestWhatASearchBeginsWith:
    def test_status_begins_none(self, tmp_path, capsys):
        file = write(tmp_path)
        assert main(["status", file]) == 0
        assert json.loads(capsys.readouterr().out)["trials"] == 0
        assert [p.name for p in tmp_path.iterdir()] == ["search.json"]

    @pytest.mark.parametrize("command", ["status", "tell", "ask"])
    def test_a_misspelt_model_begins_none(self, tmp_path, capsys, command):
        file = write(tmp_path, model="opnai:gpt")
        result = ['{"params": {"x": 1, "k": 2}, "reward": 1}'] if command == "tell" else []
        assert "opnai" in run(capsys, command, file, *result, status=2)
        assert [p.name for p in tmp_path.iterdir()] == ["search.json"]

    def test_an_option_is_of_the_model_that_is_described(self, tmp_path, capsys):
        pytest.importorskip("xllamacpp")
        file = write(tmp_path, model="gguf:nowhere.gguf")
        error = run(capsys, "ask", file, "--option", "threads=2", status=2)
        assert "nowhere.gguf" in error
        # A search that has begun goes on where its model cannot be had any more.
        file = write(tmp_path)
        run(capsys, "ask", file)
        write(tmp_path, model="opnai:gpt")
        run(capsys, "tell", file, '{"params": {"x": 1, "k": 2}, "reward": 1}')


def test_choices_appear_by_their_names_and_are_read_by_either(tmp_path, capsys):
    smiles = {"PPh3": "P(C1=CC=CC=C1)(C2=CC=CC=C2)C3=CC=CC=C3", "PMe3": "CP(C)C"}
    file = write(tmp_path, space={**SPACE, "ligand": {"enum": smiles}})
    (point,) = run(capsys, "ask", file, "--fixed", "ligand=PMe3")
    assert point["params"]["ligand"] == "PMe3"
    (trial,) = run(capsys, "tell", file, json.dumps({"params": point["params"], "reward": 1}))
    other = {**trial["params"], "ligand": smiles["PPh3"]}
    (again,) = run(capsys, "tell", file, json.dumps({"params": other, "reward": 2}))
    assert [trial["params"]["ligand"], again["params"]["ligand"]] == ["PMe3", "PPh3"]
    assert main(["status", file]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["pending"], status["best"]["params"]["ligand"]) == ([], "PPh3")
    with LLMOptimizer.load(tmp_path / "search.jsonl") as search:
        assert [t.params["ligand"] for t in search.trials] == [*reversed(smiles.values())]
        pytest.importorskip("optuna")
        assert search.to_optuna().trials[1].params["ligand"] == "PPh3"
        assert search.import_trials(search.to_optuna()).counts == {"known": 2}


def test_forbidden_combinations_are_data(tmp_path, capsys):
    forbidden = [{"k": {"<": 9}}, {"k": 9, "x": {">=": 0}}]
    points = run(capsys, "ask", write(tmp_path, forbidden=forbidden), "-n", "9")
    assert all(p["params"]["k"] == 9 and p["params"]["x"] < 0 for p in points)
    error = run(capsys, "ask", write(tmp_path, forbidden="k == 3"), status=2)
    assert "expected a list of at most 1000 combinations" in error
    error = run(capsys, "ask", write(tmp_path, forbidden=[{"q": 3}]), status=2)
    assert "forbidden" in error.replace(str(tmp_path), "")


class TestFilesOfSomebodyElse:
    @pytest.mark.parametrize("command", ["ask", "tell", "status"])
    @pytest.mark.parametrize("name", ["search.json", "search.toml", "search.jsonl"])
    def test_a_pipe_is_no_file(self, tmp_path, capsys, command, name):
        os.mkfifo(tmp_path / name)
        result = ['{"params": {"x": 1, "k": 2}, "reward": 1}'] if command == "tell" else []
        said = run(capsys, command, str(tmp_path / name), *result, status=2)
        assert "pipe" in said.replace(str(tmp_path), "")


def test_a_description_makes_no_folder(tmp_path):

    path, folder = tmp_path / "sent.json", tmp_path / "new" / "deeper"
    search = {
        "space": {"x": {"type": "number", "minimum": 0, "maximum": 1}},
        "direction": "maximize",
        "warmup": 0,
    }
    path.write_text(json.dumps({**search, "model": f"folder:{folder}?timeout=0.1"}))
    with pytest.raises(LLMOptError, match="asked only if you name it"):
        open_file(path)
    assert sorted(tmp_path.iterdir()) == [path]
    open_file(path, model=f"folder:{folder}").close()
    assert not folder.parent.exists()


def test_a_script_can_refuse_random_points(tmp_path, capsys, monkeypatch):
    model = ScriptedClient(["x: 1, k: 1", "no", "no idea", "nothing"])
    monkeypatch.setattr("llmopt.optimizer.get_client", lambda client: model)
    path = write(tmp_path, model="network", prompt="props", warmup=0, max_fallbacks=0)
    assert run(capsys, "ask", path)[0]["source"] == "llm"
    said = run(capsys, "ask", path, status=2)
    assert "gave too few points" in said
    assert "max_fallbacks=0" in said
    assert len(model.requests) == 4


def test_a_point_is_named_as_ask_printed_it(tmp_path, capsys):
    file = write(tmp_path, model="network")
    points = run(capsys, "ask", file, "-n", "4")
    assert [p["point"] for p in points] == ["p1", "p2", "p3", "p4"]
    words = ("--reward", "7.5", "--feedback", "clear", "--part", "yield=78.8", "--part", "side=1")
    (third,) = run(capsys, "tell", file, "p3", *words)
    assert third["parts"] == {"yield": 78.8, "side": 1}
    assert "NAME=NUMBER" in run(capsys, "tell", file, "p3", "--part", "side", status=2)
    assert (third["params"], third["reward"], third["number"]) == (points[2]["params"], 7.5, 1)
    (failed,) = run(capsys, "tell", file, '{"params": "p2", "failed": "the pump broke"}')
    assert (failed["point"], failed["state"]) == ("p2", "failed")
    (moved,) = run(capsys, "tell", file, '{"k": 0}', "--instead-of", "p4", "--reward", "1")
    assert (moved["params"], moved["instead_of"]) == (
        {**points[3]["params"], "k": 0},
        points[3]["params"],
    )
    again = run(capsys, "tell", file, "p4", "--reward", "2", status=2)
    assert "p4 has its result, trial 3, which was measured at another point" in again
    for point, number in (("p4", 3), ("p3", 1)):
        again = run(
            capsys, "tell", file, '{"k": 1}', "--instead-of", point, "--reward", "2", status=2
        )
        assert f"{point} has its result, trial {number}" in again
        assert f"with --replaces {number}; to record another one, give the parameters" in again
        assert again.endswith(f"in place of {point} without --instead-of\n")
    assert "no result of p2 was given: add --reward X" in run(
        capsys, "tell", file, "p2", "--feedback", "", status=2
    )
    (right,) = run(capsys, "tell", file, "--replaces", "1", "--reward", "8")
    assert (right["params"], right["reward"], right["corrected"]) == (third["params"], 8, 1)
    right = run(capsys, "tell", file, "--replaces", "1", "--reward", "8", "--part", "side=2")[0]
    assert right["parts"] == {"yield": 78.8, "side": 2}
    (right,) = run(capsys, "tell", file, "--replaces", "1", "--part", "side=3")  # the reward stays
    assert (right["reward"], right["parts"]) == (8, {"yield": 78.8, "side": 3})
    (other,) = run(capsys, "tell", file, '{"k": 7}', "--replaces", "1")
    assert (other["params"], other["reward"]) == ({**third["params"], "k": 7}, 8)
    run(capsys, "tell", file, "--replaces", "1", "--failed", "broke")
    (failed,) = run(capsys, "tell", file, '{"k": 5}', "--replaces", "1")
    assert (failed["state"], failed["feedback"], failed["params"]["k"]) == ("failed", "broke", 5)
    (failed,) = run(capsys, "tell", file, "--replaces", "1", "--feedback", "leaked")
    assert (failed["state"], failed["feedback"]) == ("failed", "leaked")
    said = run(capsys, "tell", file, "p3", "--failed", "broke", "--feedback", "red", status=2)
    assert 'got both "failed" and "feedback": a failed trial has one text' in said
    (other,) = run(capsys, "tell", file, '{"k": 9}', "--replaces", "1", "--reward", "9")
    assert other["params"] == {**third["params"], "k": 9}
    assert [p["point"] for p in run(capsys, "withdraw", file, "p1")] == ["p1"]
    assert open_file(file, reads=True).pending == []
    said = run(capsys, "tell", file, "p9", "--reward", "1", status=2)
    assert "there is no point 'p9' (`ask` did not return it)" in said
    assert "no result of p3 was given: add --reward X" in run(capsys, "tell", file, "p3", status=2)
    assert "such as p3" in run(capsys, "tell", file, "3", "--reward", "1", status=2)
    assert "no point was given" in run(capsys, "tell", file, "--reward", "1", status=2)
    assert "a number" in run(capsys, "tell", file, "p3", "--reward", "84;5", status=2)
    assert [p["point"] for p in run(capsys, "ask", file)] == ["p5"]  # after a resume, too


def test_a_line_of_ask_with_its_reward_is_a_result(tmp_path, capsys):
    file = write(tmp_path, model="network")
    asked = run(capsys, "ask", file, "-n", "4")
    (first,) = run(capsys, "tell", file, json.dumps({**asked[0], "reward": 1}))
    assert (first["point"], first["params"]) == ("p1", asked[0]["params"])
    (second,) = run(capsys, "tell", file, '{"point": "p2", "reward": 2}')
    assert (second["point"], second["params"]) == ("p2", asked[1]["params"])
    wrong = {**asked[2], "params": asked[3]["params"], "reward": 3}
    for params in (asked[3]["params"], {"k": 7}):
        said = run(capsys, "tell", file, json.dumps({**wrong, "params": params}), status=2)
        assert "point 'p3' is {" in said
        assert 'give "instead_of" in place of "point"' in said
    assert "there is no point 'p9'" in run(capsys, "tell", file, '{"point": "p9"}', status=2)
    assert [p.asked for p in open_file(file, reads=True).pending_proposals] == [3, 4]


def test_a_table_names_points_and_the_rewards_of_withdrawn_trials(tmp_path, capsys):
    pandas = pytest.importorskip("pandas")
    file = write(tmp_path, model="network")
    run(capsys, "ask", file, "-n", "2")
    for point in ("p2", "p1"):
        words = ("--reward", "7", "--part", "side=1", "--feedback", "brown")
        run(capsys, "tell", file, point, *words)
    (right,) = run(capsys, "tell", file, "--replaces", "1", "--part", "side=2")
    assert (right["corrected"], "old_reward" in right) == (1, False)  # the reward was right
    assert main(["withdraw", file, "--trial", "2"]) == 0
    capsys.readouterr()
    assert run(capsys, "status", file, "--trials")[1]["old_reward"] == 7
    assert main(["status", file, "--csv"]) == 0
    table = pandas.read_csv(io.StringIO(capsys.readouterr().out)).fillna(0)
    assert table[["trial", "point", "reward", "old_reward"]].values.tolist() == [
        [1, "p2", 7, 0],
        [2, "p1", 0, 7],
    ]
    assert "label" not in table  # where no points repeat, it is that of the trial
    assert table[["state", "old_parts", "old_feedback"]].values.tolist() == [
        ["complete", 0, 0],
        ["withdrawn", '{"side": 1.0}', "brown"],
    ]


def test_a_correction_removes_a_mistyped_part(tmp_path, capsys):
    file = write(tmp_path, model="network")
    words = ("--reward", "7", "--part", "desird=78", "--part", "side=1", "--part", "ee=9")
    run(capsys, "tell", file, '{"x": 1, "k": 2}', *words)
    said = run(capsys, "tell", file, "--replaces", "1", "--part", "desired=", status=2)
    assert "trial 1 has no part 'desired' to remove; did you mean 'desird'?" in said
    (right,) = run(
        capsys, "tell", file, "--replaces", "1", "--part", "desird=", "--part", "desired=78"
    )
    assert (right["parts"], right["reward"]) == ({"side": 1, "ee": 9, "desired": 78}, 7)
    assert right["corrected"] == 1
    (right,) = run(capsys, "tell", file, '{"replaces": 1, "parts": {"desired": null}}')
    assert (right["parts"], right["corrected"]) == ({"side": 1, "ee": 9}, 2)
    (right,) = run(capsys, "tell", file, "--replaces", "1", "--part", "yield=60")
    assert right["corrected"] == 2  # a part that was missing is no correction
    said = run(capsys, "tell", file, '{"x": 3, "k": 2}', "--reward", "1", "--part", "ee=", status=2)
    assert "--part ee=: expected NAME=NUMBER" in said
    said = run(capsys, "tell", file, "--replaces", "1", "--part", "ee=1,9", status=2)
    assert "--part ee=1,9: expected NAME=NUMBER: write 1.9" in said
    for wrong in ("1_0", "nan", "inf"):
        said = run(capsys, "tell", file, "--replaces", "1", "--part", f"ee={wrong}", status=2)
        assert f"--part ee={wrong}: expected NAME=NUMBER, such as yield=78.8; omit a part" in said
    said = run(capsys, "tell", file, '{"x": 3, "k": 2}', "--part", "ee=1", status=2)
    assert "was given: add --reward X, or --failed WHY" in said
    told = '{"params": {"x": 3, "k": 2}, "reward": 1, "parts": {"ee": null}}'
    assert "parts['ee']=None" in run(capsys, "tell", file, told, status=2)
    assert run(capsys, "status", file, "--trials") == [right]
    with open_file(file, asks=False) as search:
        trial = search.trials[0]
        trial = search.tell(trial.params, 7, replaces=0, parts={"ee": None, "side": None})
        assert trial.parts == {"yield": 60}


def test_a_correction_of_one_objective_keeps_the_others(tmp_path, capsys):
    direction = {"yield": "maximize", "cost": "minimize"}
    file = write(tmp_path, model="network", direction=direction)
    first = {"params": {"x": 1, "k": 2}, "reward": {"yield": 60, "cost": 5}, "stderr": 2}
    run(capsys, "tell", file, json.dumps(first))
    for correction in (
        ["--replaces", "1", "--reward", '{"cost": 4}'],
        ['{"replaces": 1, "cost": 3}'],
    ):
        (right,) = run(capsys, "tell", file, *correction)
    assert (right["reward"], right["stderr"]) == ({"yield": 60, "cost": 3}, {"yield": 2})
    said = run(capsys, "tell", file, "--replaces", "1", "--reward", '{"csot": 4}', status=2)
    assert "unknown: 'csot'" in said
    with open_file(file, asks=False) as search:
        trial = search.tell(search.trials[0].params, {"yield": 61}, replaces=0)
        assert trial.rewards == (61, 3)
        search.tell_failure({"x": 3, "k": 2}, "broke")
    said = run(capsys, "tell", file, "--replaces", "2", "--reward", '{"cost": 4}', status=2)
    assert "missing: 'yield'" in said


def test_a_correction_removes_feedback_or_says_that_it_changes_nothing(tmp_path, capsys):
    file = write(tmp_path, model="network")
    words = ("--reward", "7", "--part", "ee=9")
    for text in ('{"feedback": null, "replaces": 1}', '{"feedback": "", "replaces": 1}'):
        words = (*words, "--feedback", "brown")
        run(capsys, "tell", file, '{"x": 1, "k": 2}', *words)
        (right,) = run(capsys, "tell", file, text)
        assert (right["reward"], "feedback" in right) == (7, False)
        same = (text, '{"replaces": 1, "reward": 7}', '{"replaces": 1, "params": {"k": 2}}')
        for again in (*same, '{"replaces": 1, "parts": {"ee": 9}}', '{"replaces": 1}'):
            said = run(capsys, "tell", file, again, status=2)
            assert "--replaces 1 changes nothing in trial 1: give what was wrong" in said
        words = ("--replaces", "1")
    run(capsys, "tell", file, "--replaces", "1", "--failed", "broke")
    failed = open_file(file, reads=True).trials[0]
    said = run(capsys, "tell", file, "--replaces", "1", "--failed", "broke", status=2)
    assert "changes nothing" in said
    with open_file(file, asks=False) as search:
        with pytest.raises(RewardError, match="replaces=0 changes nothing"):
            search.tell({"x": 1, "k": 2}, None, feedback="broke", replaces=0)
        assert search.trials[0] == failed


def test_one_pending_point_does_not_take_the_place_of_another(tmp_path, capsys):
    file = write(tmp_path, model="network")
    run(capsys, "ask", file, "-n", "2")
    said = run(capsys, "tell", file, "p2", "--instead-of", "p1", "--reward", "80", status=2)
    assert "the point given is pending, too: record its result without" in said
    assert len(open_file(file, reads=True).pending) == 2


def test_tell_says_that_a_result_is_a_further_evaluation(tmp_path, capsys, caplog):
    file = write(tmp_path, model="network", noisy=True)
    (point,) = run(capsys, "ask", file)
    (first,) = run(capsys, "tell", file, point["point"], "--reward", "5")
    assert "warning" not in first
    assert main(["tell", file, point["point"], "--reward", "6"]) == 0
    shown = capsys.readouterr()
    second = json.loads(shown.out)
    assert "evaluation 2 of the point of trial 1 (#1)" in second["warning"]
    assert shown.err == f"llmopt: warning: {second['warning']}\n"
    remedy = "withdraw the new one (--trial 2), and tell the result with --replaces 1"
    assert remedy in second["warning"]
    assert main(["withdraw", file, "--trial", "2"]) == 0
    capsys.readouterr()
    (right,) = run(capsys, "tell", file, "--replaces", "1", "--reward", "6")
    assert (right["number"], right["reward"], "warning" in right) == (1, 6, False)
    assert not [r for r in caplog.records if "evaluation 2" in r.message]  # of own loops nothing


def test_the_best_of_repeated_points_has_its_number_in_prompts_and_report(tmp_path, capsys):
    file = write(tmp_path, model="network", noisy=True, direction="maximize")
    for x, reward in ((1, "70"), (1, "71"), (2, "90")):
        run(capsys, "tell", file, json.dumps({"x": x, "k": 2}), "--reward", reward)
    assert main(["status", file]) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert (best["number"], best["label"]) == (3, "#2")
    trials = run(capsys, "status", file, "--trials")
    assert [t["label"] for t in trials] == ["#1", "#1", "#2"]


def test_a_trial_is_also_named_by_its_point(tmp_path, capsys, caplog):
    file = write(tmp_path, model="network", noisy=True)
    first, second = run(capsys, "ask", file, "-n", "2")
    for point, reward in (("p1", "70"), ("p1", "71"), ("p2", "90")):
        (told,) = run(capsys, "tell", file, point, "--reward", reward)
    assert (told["number"], told["label"]) == (3, "#2")
    (right,) = run(capsys, "tell", file, "--replaces", "#2", "--reward", "80")
    assert (right["number"], right["label"], right["params"]) == (3, "#2", second["params"])
    (right,) = run(capsys, "tell", file, json.dumps({"replaces": "p2", "reward": 81}))
    assert (right["number"], right["old_reward"]) == (3, 80)
    said = run(capsys, "tell", file, "--replaces", "#1", "--reward", "8", status=2)
    assert "--replaces '#1': that point was measured 2 times; give the number" in said
    assert "of one of these trials: 1, 2" in said
    assert "--trial 'p1': that point was" in run(
        capsys, "withdraw", file, "--trial", "p1", status=2
    )
    for wrong in ("#9", "p9", "x"):
        said = run(capsys, "withdraw", file, "--trial", wrong, status=2)
        assert "of one of 3 trials, counted from 1, or the name of a point with a result" in said
    (moved,) = run(capsys, "tell", file, '{"k": 9}', "--replaces", "p2", "--reward", "80")
    assert (moved["params"]["k"], moved["old_params"]) == (9, second["params"])
    assert "trial 3 (#2) was corrected to another point" in caplog.text
    (gone,) = run(capsys, "withdraw", file, "--trial", "#2")
    assert (gone["number"], gone["label"], gone["params"]["k"]) == (3, "#2", 9)
    assert "old_label" not in gone
    (gone,) = run(capsys, "withdraw", file, "--trial", "2")
    assert (gone["label"], gone["old_label"], gone["params"]) == ("#3", "#1", first["params"])
    assert gone["old_reward"] == 71
    said = run(capsys, "withdraw", file, "--trial", "2", status=2)
    assert "trial 2 (#3) was withdrawn before: bring it back with --replaces '#3'" in said
    (right,) = run(capsys, "tell", file, "--replaces", "#1", "--reward", "72")
    assert right["number"] == 1  # the other one was withdrawn


def test_the_number_of_a_withdrawn_trial_is_not_taken_for_a_label(tmp_path, capsys):
    """`--replaces 3` for the #3 of a prompt gave its yield to a pump failure."""
    file = write(tmp_path, model="network", noisy=True)
    for x, reward in ((1, "70"), (1, "71"), (2, "broken"), (3, "80")):
        how = "--failed" if reward == "broken" else "--reward"
        run(capsys, "tell", file, json.dumps({"x": x, "k": 2}), how, reward)
    (wrong,) = run(capsys, "tell", file, "--replaces", "3", "--failed", "")
    assert wrong["warning"] == (
        "this corrected trial 3 (#2), feedback broken → none; '#3' is trial 4 (#3). If you meant "
        "'#3', change it back with --replaces 3, and give --replaces 4"
    )
    (gone,) = run(capsys, "withdraw", file, "--trial", "3")
    assert gone["label"] == "#2"
    assert gone["warning"] == (
        "this withdrew trial 3 (#2); '#3' is trial 4 (#3). If you meant '#3', bring it back by "
        "`tell` with --replaces '#2', and give --trial 4"
    )
    said = run(capsys, "tell", file, "--replaces", "3", "--reward", "81", status=2)
    assert "--replaces 3: trial 3 (#2) was withdrawn, and '#3' is trial 4 (#3): give '#2'" in said
    (right,) = run(capsys, "tell", file, "--replaces", "#3", "--reward", "81")
    assert (right["number"], right["old_reward"]) == (4, 80)
    assert "warning" not in right
    (back,) = run(capsys, "tell", file, "--replaces", "#2", "--reward", "60")
    assert back["warning"] == "trial 3 (#2) was withdrawn: it counts again"


def test_a_restored_trial_has_no_former_part_that_was_given_anew(tmp_path, capsys):
    file, parts = write(tmp_path, model="network"), ("--part", "dimer=2", "--part", "amine=1")
    run(capsys, "tell", file, '{"x": 1, "k": 2}', "--reward", "70", *parts)
    run(capsys, "withdraw", file, "--trial", "1")
    (back,) = run(capsys, "tell", file, "--replaces", "1", "--part", "dimer=2.5")
    assert back["warning"].endswith("it counts again, with its former part amine")


def test_a_mean_is_printed_without_its_rounding_error(tmp_path, capsys):
    file = write(tmp_path, model="network", noisy=True, direction="maximize")
    point, exact = '{"x": 1, "k": 2}', 0.1234567890123456
    for reward in ("0.1", "0.2", "0.3"):
        run(capsys, "tell", file, point, "--reward", reward, "--part", f"side={reward}")
    assert main(["status", file]) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert (best["reward"], best["parts"]) == (0.2, {"side": 0.2})
    assert best["stderr"] == float(f"{best['stderr']:.12g}") > 0.05
    told = {"params": {"x": 2, "k": 2}, "reward": exact, "stderr": exact}
    (trial,) = run(capsys, "tell", file, json.dumps(told | {"constraint_violation": exact}))
    assert {trial[name] for name in ("reward", "stderr", "constraint_violation")} == {exact}


def test_status_counts_the_trials_that_cannot_be_best(tmp_path, capsys):
    file = write(tmp_path, model="network", constraints=["x + k <= 5"])
    for k in range(3):
        run(capsys, "tell", file, f'{{"x": 4, "k": {k}}}', "--reward", str(k))
    run(capsys, "tell", file, '{"x": 1, "k": 1}', "--failed", "the pump broke")
    run(capsys, "withdraw", file, "--trial", "1")
    assert main(["status", file]) == 0
    found = json.loads(capsys.readouterr().out)
    counts = {"trials": 3, "failed": 1, "infeasible": 1, "withdrawn": 1}
    assert dict(list(found.items())[:4]) == counts
    assert found["best"]["params"] == {"x": 4, "k": 1}


def test_a_search_becomes_noisy_at_any_time(tmp_path, capsys, caplog):
    file, point = write(tmp_path, model="network"), '{"x": 1, "k": 2}'
    run(capsys, "tell", file, point, "--reward", "1")
    write(tmp_path, model="network", noisy=True)
    run(capsys, "tell", file, point, "--reward", "3")
    assert "from now on points may repeat" in caplog.text
    for name in (file, str(tmp_path / "search.jsonl")):  # the storage alone knows it, too
        assert main(["status", name]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["trials"], found["best"]["reward"]) == (2, 2)
    write(tmp_path, model="network")
    assert "becomes noisy at any time" in run(capsys, "ask", file, status=2)


def test_an_objective_is_told_by_its_name(tmp_path, capsys):
    file = write(tmp_path, model="network", direction={"yield": "maximize"})
    point = {"params": {"x": 1, "k": 2}}
    (trial,) = run(capsys, "tell", file, json.dumps({**point, "yield": 41}))
    assert trial["reward"] == {"yield": 41}
    said = run(capsys, "tell", file, json.dumps({**point, "yield": 41, "reward": 1}), status=2)
    assert "give one of them" in said
    said = run(capsys, "tell", file, json.dumps({**point, "reward": "84,5"}), status=2)
    assert "write 84.5" in said


def test_a_single_reward_for_two_objectives_is_refused_with_the_form(tmp_path, capsys):
    file = write(tmp_path, model="network", direction={"yield": "maximize", "by": "minimize"})
    point, form = '{"x": 1, "k": 2}', """--reward '{"yield": 1, "by": 2}'"""
    assert f"such as {form}" in run(capsys, "tell", file, point, "--reward", "40", status=2)
    said = run(capsys, "tell", file, point, "--reward", "60, 4", status=2)
    assert """or for several objectives --reward '{"yield": 40, "ee": 90}'""" in said


def test_a_search_of_another_direction_names_the_command_that_imports(tmp_path, capsys):
    run(capsys, "ask", write(tmp_path, model="network"))
    file = write(tmp_path, model="network", direction="minimize")
    said = run(capsys, "ask", file, status=2)
    assert "`llmopt tell --import FILE` then takes over the trials" in said


def test_each_point_to_queue_is_read_once(tmp_path, capsys, monkeypatch):
    read, read_queued = [], LLMOptimizer.read_queued

    def counted(self, params, words=""):
        read.append(params)
        return read_queued(self, params, words)

    monkeypatch.setattr(LLMOptimizer, "read_queued", counted)
    file, points = write(tmp_path, model="network"), [{"x": 1, "k": 2}, {"k": 3}]
    shown = run(capsys, "enqueue", file, *map(json.dumps, points), "--words", "mine")
    assert [point["params"] for point in shown] == read == points
    assert [point["explanation"] for point in shown] == ["mine", "mine"]


def test_a_point_that_is_queued_again_is_named(tmp_path, capsys, caplog):
    file, point = write(tmp_path, model="network"), json.dumps({"x": 1, "k": 2})
    run(capsys, "tell", file, point, "--reward", "1")
    assert main(["enqueue", file, point, '{"k": 3}']) == 0
    assert "is trial 1" in caplog.messages[-1]
    for queued in (point, '{"k": 3}'):
        assert main(["enqueue", file, queued]) == 0
        assert "is queued already: it is queued again" in caplog.messages[-1]
        assert main(["withdraw", file, queued]) == 0
    capsys.readouterr()
    said = run(capsys, "withdraw", file, '{"k": 4}', status=2)
    assert "neither pending nor queued" in said
    assert "Queued: [{'x': 1.0, 'k': 2}, {'k': 3}]" in said


def test_of_several_points_one_that_is_wrong_keeps_all_as_they_are(tmp_path, capsys):
    file = write(tmp_path, model="network")
    run(capsys, "ask", file, "-n", "2")
    said = run(capsys, "enqueue", file, '{"x": 1, "k": 2}', '{"x": 9, "k": 2}', status=2)
    assert "error: {'x': 9, 'k': 2}: `x`=9 is outside [-5.0, 5.0]" in said
    assert said.endswith("Nothing was queued\n")
    for command, done in (("enqueue", "queued"), ("withdraw", "withdrawn")):
        assert f"Nothing was {done}" in run(capsys, command, file, "p1", "p9", status=2)
    said = run(capsys, "withdraw", file, "p1", '{"x": 1, "k": 2}', status=2)
    assert said.startswith("llmopt: error: {'x': 1, 'k': 2}: the point is neither pending nor")
    assert "Nothing was withdrawn" in said
    optimizer = open_file(file, reads=True)
    assert (len(optimizer.queued), len(optimizer.pending)) == (0, 2)
    found = run(capsys, "enqueue", file, '{"x": 1, "k": 2}', '{"k": 3}', "--words", "mine")
    assert found == [
        {"params": {"x": 1.0, "k": 2}, "source": "user", "explanation": "mine"},
        {"params": {"k": 3}, "source": "user", "explanation": "mine"},
    ]
    found = run(capsys, "withdraw", file, "p2", '{"k": 3}')
    assert [(one.get("point"), one["state"]) for one in found] == [
        ("p2", "withdrawn"),
        (None, "withdrawn"),
    ]


@pytest.mark.parametrize("command", [["ask"], ["status"], ["tell", "p1", "--reward", "1"]])
def test_a_folder_is_no_search(tmp_path, capsys, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    for folder in (".", "/", ".."):
        said = run(capsys, command[0], folder, *command[1:], status=2)
        assert f"cannot read {folder}: it is a folder: give a regular file" in said


def test_of_equal_points_the_named_one_is_withdrawn(tmp_path, capsys, caplog):
    file, point = write(tmp_path, model="network", noisy=True), '{"x": 1, "k": 2}'
    run(capsys, "enqueue", file, point, "--words", "first")
    run(capsys, "enqueue", file, point, "--words", "second")
    assert main(["enqueue", file, point]) == 0
    capsys.readouterr()
    run(capsys, "ask", file, "-n", "3")
    said = run(capsys, "withdraw", file, "p2", "p2", status=2)
    assert "'p2' was given twice. Nothing was withdrawn" in said
    (gone,) = run(capsys, "withdraw", file, "p2")
    assert (gone["point"], gone["explanation"]) == ("p2", "second")
    assert [p.asked for p in open_file(file, reads=True).pending_proposals] == [1, 3]
    run(capsys, "tell", file, "p1", "--reward", "1")
    said = run(capsys, "withdraw", file, "p1", status=2)  # p3 is equal
    assert "the point has a result: withdraw it with --trial 1" in said
    assert [p.asked for p in open_file(file, reads=True).pending_proposals] == [3]


def test_a_result_is_that_of_the_named_one_of_equal_points(tmp_path, capsys):
    file, point = write(tmp_path, model="network", noisy=True), '{"x": 1, "k": 2}'
    for words in ("first", "second", "third"):
        run(capsys, "enqueue", file, point, "--words", words)
    run(capsys, "ask", file, "-n", "3")
    told = run(capsys, "tell", file, "p2", "--reward", "1")
    told += run(capsys, "tell", file, '{"k": 3}', "--instead-of", "p3", "--reward", "2")
    assert [(t["point"], t["explanation"]) for t in told] == [("p2", "second"), ("p3", "third")]
    run(capsys, "tell", file, "p2", "--reward", "2")  # measured again
    run(capsys, "tell", file, "--replaces", "p3", "--reward", "3")
    optimizer = open_file(file, reads=True)
    assert [p.asked for p in optimizer.pending_proposals] == [1]
    assert [t.asked for t in optimizer.trials] == [2, 3, 0]


def test_a_point_that_was_queued_again_is_withdrawn_by_its_name(tmp_path, capsys):
    file = write(tmp_path, model="network", noisy=True)
    run(capsys, "ask", file)
    (trial,) = run(capsys, "tell", file, "p1", "--reward", "1")
    for name in ("p1", "#1"):
        assert run(capsys, "enqueue", file, name)[0]["params"] == trial["params"]
        (gone,) = run(capsys, "withdraw", file, name)
        assert (gone["params"], gone["state"]) == (trial["params"], "withdrawn")
    assert open_file(file, reads=True).queued == []
    assert "the point has a result" in run(capsys, "withdraw", file, "p1", status=2)


def test_a_point_is_named_as_in_prompts(tmp_path, capsys):
    file = write(tmp_path, model="network", noisy=True)
    run(capsys, "ask", file, "-n", "2")
    for name, reward in (("p2", "1"), ("p1", "2")):
        run(capsys, "tell", file, name, "--reward", reward)
    (again,) = run(capsys, "tell", file, "#1", "--reward", "3")
    trials = open_file(file, reads=True).trials
    assert trials[2].values == trials[0].values != trials[1].values
    assert (again["label"], trials[2].asked) == ("#1", 0)
    run(capsys, "tell", file, '{"params": "#2", "reward": 4}')
    assert open_file(file, reads=True).trials[3].values == trials[1].values
    assert "there is no point 'P2'" in run(capsys, "enqueue", file, "P2", status=2)
    said = run(capsys, "tell", file, "P2", "--reward", "1", status=2)
    assert "there is no point 'P2' (did you mean p2?): expected" in said
    assert "there is no point '#3'" in run(capsys, "tell", file, "#3", "--reward", "1", status=2)


def test_a_trial_that_was_withdrawn_before_is_brought_back_with_replaces(tmp_path, capsys):
    file = write(tmp_path, model="network")
    run(capsys, "tell", file, '{"x": 1, "k": 1}', "--reward", "1")
    assert main(["withdraw", file, "--trial", "1"]) == 0
    capsys.readouterr()
    said = run(capsys, "withdraw", file, "--trial", "1", status=2)
    assert said.endswith("was withdrawn before: bring it back with --replaces 1\n")
    (back,) = run(capsys, "tell", file, "--replaces", "1")
    assert back["reward"] == 1


def test_a_point_and_a_trial_are_not_withdrawn_together(tmp_path, capsys):
    file = write(tmp_path, model="network")
    for point in run(capsys, "ask", file, "-n", "2")[:1]:
        run(capsys, "tell", file, point["point"], "--reward", "1")
    said = run(capsys, "withdraw", file, "p2", "--trial", "1", status=2)
    assert "got both 'p2' and trial 1: give one" in said
    assert main(["status", file]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["trials"], [p["point"] for p in found["pending"]]) == (1, ["p2"])


def test_a_withdrawal_that_is_refused_names_the_trials_of_the_point(tmp_path, capsys):
    file = write(tmp_path, model="network", direction="maximize")
    run(capsys, "ask", file)
    for point, reward in (('{"x": 1, "k": 1}', "1"), ("p1", "2"), ("p1", "3"), ("p1", "4")):
        (trial,) = run(capsys, "tell", file, point, "--reward", reward)
    assert "withdraw the new one (--trial 4), and tell the result with" in trial["warning"]
    assert "If rewards are noisy, set `noisy` to true" in trial["warning"]
    assert main(["withdraw", file, "--trial", "3"]) == 0
    capsys.readouterr()
    said = run(capsys, "withdraw", file, "p1", status=2)
    assert "error: 'p1': the point has a result: withdraw it with --trial 2 or --trial 4" in said


def test_a_reward_that_is_no_number_is_refused_with_the_way_to_record_a_failure(tmp_path, capsys):
    file, point = write(tmp_path, model="network"), '{"x": 1, "k": 1}'
    for text in ("nan", "NaN", "None", "abc", "Infinity", "1e999", "1_0", "0x10", "."):
        said = run(capsys, "tell", file, point, "--reward", text, status=2)
        assert f"--reward {text}: expected a number" in said
        assert "; if the evaluation failed, give --failed" in said
    assert "write 84.5" in run(capsys, "tell", file, point, "--reward", "84,5", status=2)
    for reward in ('"NaN"', "[1, null]", '{"yield": null}'):
        told = f'{{"params": {point}, "reward": {reward}}}'
        assert 'failed, give "failed" with the' in run(capsys, "tell", file, told, status=2)
    (trial,) = run(capsys, "tell", file, point, "--failed", "the pump broke")
    assert (trial["state"], trial["feedback"]) == ("failed", "the pump broke")


@pytest.mark.parametrize(
    ("text", "value"), [(".63", 0.63), ("-.5", -0.5), ("5.", 5), ("+0.5", 0.5), ("007", 7)]
)
def test_a_reward_is_a_number_as_programs_print_it(tmp_path, capsys, text, value):
    file, point = write(tmp_path, model="network"), '{"x": 1, "k": 1}'
    (trial,) = run(capsys, "tell", file, point, f"--reward={text}")
    assert trial["reward"] == value
    said = run(capsys, "tell", file, f'{{"params": {point}, "reward": {text}}}', status=2)
    assert "JSON numbers have a digit before the point and after it" in said
    assert f"write {float(value)}; nothing was recorded" in said
    assert f"write {float(value)}" in run(capsys, "enqueue", file, f'{{"x": {text}}}', status=2)


def test_what_is_no_json_is_refused_with_a_remedy(tmp_path, capsys, monkeypatch):
    file = write(tmp_path, model="network")
    quoted = "quote the whole object in '…', and each name and text in it in \"…\""
    for text in (
        "{'params': {'x': 1}}",
        "{params: {x: 1}}",
        '{"params": {"x": 1}',
        "{1: 2}",
        '{"x": 1.2.3}',
    ):
        assert quoted in run(capsys, "tell", file, text, status=2)
        assert quoted in run(capsys, "enqueue", file, text, status=2)
    for text in ("%", "x=1", "x"):
        said = run(capsys, "tell", file, "p1", "--reward", "1", text, status=2)
        assert f"'{text}' is no point: expected its name, such as p4, or its parameters" in said
    for text in ("@r.json", "r.json"):
        assert "a file is read with < r.json" in run(capsys, "tell", file, text, status=2)
    monkeypatch.setattr("sys.stdin", io.StringIO('{\n"params": {}}\n'))
    assert "each line is one whole object" in run(capsys, "tell", file, status=2)


def test_a_request_that_waits_is_no_failure(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path, warmup=0)
    ask = [sys.executable, "-m", "llmopt", "ask", file, "--model", "folder:mail"]
    with subprocess.Popen(ask, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        assert main(["next", "mail", "--timeout", "60"]) == 0
        capsys.readouterr()
        assert main(["status", file]) == 0
        process.kill()
    found = json.loads(capsys.readouterr().out)
    assert "a request to folder:mail waits" in found["waiting"]
    assert "`llmopt next mail` prints it (number 1)" in found["waiting"]
    run(capsys, "tell", file, '{"x": 1, "k": 2}', "--reward", "1")
    assert main(["next", "mail", "--timeout", "0"]) == 0
    assert (
        "results or changes recorded after it was written: 1; it may be" in capsys.readouterr().out
    )
    usage = found["usage"]
    assert (usage["failed_requests"], usage["unpriced"], usage["cost"]) == (0, 0, 0.0)


def test_a_running_request_is_sent_and_has_not_failed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path, warmup=0)
    model = "command:sh -c 'touch begun; sleep 60'"
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where its folder is
    ask = [sys.executable, "-m", "llmopt", "ask", file, "--model", model]
    with subprocess.Popen(ask, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not list(tmp_path.glob("*/begun")):
            assert process.poll() is None
            time.sleep(0.05)
        assert main(["status", file]) == 0
        process.kill()
    usage = json.loads(capsys.readouterr().out)["usage"]
    assert (usage["requests"], usage["failed_requests"], usage["unpriced"]) == (1, 0, 0)


def test_a_search_says_why_it_gives_fewer_points_and_that_it_ended(tmp_path, capsys, monkeypatch):
    rows = [{"x": 1.0, "k": 2}, {"x": 2.0, "k": 3}]
    file = write(tmp_path, model="network", candidates=rows)
    assert main(["ask", file, "-n", "3"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert "2 of 3 points: no further point of the space is left" in err
    monkeypatch.setattr(LLMOptimizer, "stopped", "nothing more to gain")
    assert main(["status", file]) == 0
    assert json.loads(capsys.readouterr().out)["stopped"] == "nothing more to gain"


def test_a_search_has_a_direction(tmp_path, capsys):
    file = tmp_path / "search.json"
    file.write_text(json.dumps({"space": SPACE, "model": "network"}))
    assert "there is no 'direction'" in run(capsys, "ask", str(file), status=2)
    assert [path.name for path in tmp_path.iterdir()] == ["search.json"]


@pytest.mark.parametrize("text", ['{"space": {"x": {"maximum": 0,5}}}', "x = { maximum = 0,5 }"])
def test_a_decimal_comma_in_a_description_is_named(text, tmp_path, capsys):
    file = tmp_path / ("search.json" if text[0] == "{" else "search.toml")
    file.write_text(text)
    assert run(capsys, "ask", str(file), status=2).endswith(": write 0.5\n")


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_table_with_another_separator_is_named(separator, tmp_path, capsys):
    (tmp_path / "table.csv").write_text("x;k;reward\n1,5;2;3\n".replace(";", separator))
    file = write(tmp_path, model="network")
    said = run(capsys, "tell", file, "--import", str(tmp_path / "table.csv"), status=2)
    assert f"the separator is {separator!r}" in said


def test_an_import_with_refused_rows_fails_and_records_the_others(tmp_path, capsys):
    table = tmp_path / "table.csv"
    table.write_text("x,k,reward\n1,2,3\n2,3,abc\n")
    file = write(tmp_path, model="network")
    point = '{"params": {"x": 4, "k": 4}, "reward": 5}'
    assert main(["tell", file, point, "--import", str(table)]) == 2
    shown = capsys.readouterr()
    assert [json.loads(line)["reward"] for line in shown.out.splitlines()] == [3, 5]
    assert "1 taken, 1 refused\nrow 2 refused:" in shown.err
    assert "refused 1 of 2 rows of" in shown.err
    table.write_text("x,k,reward\n1,2,3\n2,3,4\n")
    assert [trial["reward"] for trial in run(capsys, "tell", file, "--import", str(table))] == [4]


def test_a_report_lists_the_candidates_and_marks_other_points(tmp_path, capsys):
    pytest.importorskip("plotly")
    (tmp_path / "stock.csv").write_text("x\n1\n2\n")
    file = write(tmp_path, model="network", candidates="stock.csv")
    run(capsys, "tell", file, '{"x": 4, "k": 2}', "--reward", "1")
    for name in (file, str(tmp_path / "search.jsonl")):
        assert "nearest:" in run(capsys, "status", name, "--trials")[0]["warning"]
        page = tmp_path / "page.html"
        assert main(["report", name, "--out", str(page)]) == 0
        capsys.readouterr()
        assert "x: one of these values: 1.0, 2.0" in page.read_text()
        assert "not a candidate" in page.read_text()
    run(capsys, "ask", file)
    (moved,) = run(capsys, "tell", file, '{"x": 4.5}', "--instead-of", "p1", "--reward", "1")
    assert moved["params"]["x"] == 4.5
    (tmp_path / "stock.csv").unlink()
    assert main(["report", str(tmp_path / "search.jsonl"), "--out", str(page)]) == 0
    assert "2 rows of a table" in page.read_text()


def test_results_leave_as_a_table_with_pooled_errors_and_former_rewards(tmp_path, capsys):
    pytest.importorskip("pandas")
    file = write(tmp_path, model="network", noisy=True, direction="maximize")
    for x, reward in ((1, "70"), (1, "70.1"), (2, "60"), (2, "64")):
        run(capsys, "tell", file, json.dumps({"x": x, "k": 2}), "--reward", reward)
    (right,) = run(capsys, "tell", file, "--replaces", "3", "--reward", "62")
    assert (right["reward"], right["old_reward"]) == (62, 60)
    assert main(["status", file]) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert (best["number"], best["measurements"], best["label"]) == (1, [1, 2], "#1")
    pooled = math.sqrt((0.1**2 / 2 + 2**2 / 2) / 2 / 2)  # of both points, 2 repeats each
    assert best["stderr"] == pytest.approx(pooled)
    assert main(["status", file, "--csv"]) == 0
    table = tmp_path / "search.csv"
    table.write_text(capsys.readouterr().out)
    (tmp_path / "other").mkdir()
    other = write(tmp_path / "other", model="network", noisy=True, direction="maximize")
    assert len(run(capsys, "tell", other, "--import", str(table))) == 4
    # Trials count as everywhere in the shell, and the search knows its own table.
    assert [row.split(",")[0] for row in table.read_text().split()] == ["trial", *"1234"]
    labels = [row.split(",")[1] for row in table.read_text().split()]
    assert labels == ["label", "#1", "#1", "#2", "#2"]
    assert main(["tell", file, "--import", str(table)]) == 0
    assert capsys.readouterr().err == f"trials of {table}: 4 known\n"
    # A table beside a description is not its search.
    assert "search.csv" in run(capsys, "status", str(table), status=2)
    assert "without a unit" in run(
        capsys, "tell", file, '{"x": 3, "k": 2}', "--reward", "3 %", status=2
    )


def test_results_and_points_may_have_the_unit_of_a_parameter(tmp_path, capsys, caplog):
    heat = {"type": "number", "minimum": 20, "maximum": 80, "unit": "°C"}
    hours = {"type": "integer", "minimum": 1, "maximum": 48}
    file = write(tmp_path, model="network", space={"heat": heat, "time": hours})

    def params(*words):
        return run(capsys, words[0], file, *words[1:])[0]["params"]

    assert params("ask", "--fixed", "heat=50 °C")["heat"] == 50
    measured = {"heat": "81.5 °C", "time": 2}
    assert (
        params("tell", json.dumps(measured), "--instead-of", "p1", "--reward", "1")["heat"] == 81.5
    )
    assert params("tell", '{"heat": "75°C"}', "--replaces", "1")["heat"] == 75
    assert params("enqueue", '{"heat": "40 º C"}') == {"heat": 40}
    assert params("withdraw", '{"heat": "40 °C"}') == {"heat": 40}
    table = tmp_path / "table.csv"
    table.write_text("heat,time,reward\n30 °C,3,2\n31,3,2\n304 K,3,2\n", encoding="utf-8")
    assert main(["tell", file, "--import", str(table)]) == 2
    done = capsys.readouterr()
    assert [json.loads(line)["params"]["heat"] for line in done.out.splitlines()] == [30, 31]
    both = r"`heat`: cannot read '304 K'; expected a number in [20.0, 80.0] °C."
    assert f"row 3 refused: {both}" in done.err
    for words in (
        ("ask", "--fixed", "heat=304 K"),
        ("enqueue", '{"heat": "304 K"}'),
        ("tell", '{"heat": "304 K", "time": 2}', "--reward", "1"),
    ):
        assert both in run(capsys, words[0], file, *words[1:], status=2)
    assert main(["status", file]) == 0
    assert json.loads(capsys.readouterr().out)["best"]["params"]["heat"] == 30
    # It is no part of what the search is.
    caplog.clear()
    write(tmp_path, model="network", space={"heat": heat, "time": hours | {"unit": "h"}})
    assert params("ask", "--fixed", "time=7 h")["time"] == 7
    assert (
        "resumes with other units (there {'heat': '°C'}, now {'heat': '°C', 'time'" in caplog.text
    )
    with LLMOptimizer.load(tmp_path / "search.jsonl") as search:
        assert [d.unit for d in search.space.dimensions] == ["°C", "h"]
    write(tmp_path, model="network", space={"heat": heat, "time": hours | {"maximum": 24}})
    assert "another configuration: time: " in run(capsys, "ask", file, status=2)


@pytest.mark.parametrize("direction", [{"ee": "maximize"}, {"ee": "maximize", "cost": "minimize"}])
def test_a_table_has_the_names_of_choices_and_former_rewards_as_numbers(
    direction, tmp_path, capsys
):
    pandas = pytest.importorskip("pandas")
    names = {"PMe3": "CP(C)C", "1": "[H]", "none": None, "a, b": "C"}
    space = {"ligand": {"enum": names}, "x": SPACE["x"]}
    file = write(tmp_path, model="network", space=space, direction=direction)
    run(capsys, "ask", file)
    for number, name in enumerate([*names, "PMe3"]):
        rewards = dict.fromkeys(direction, number)
        point = {"ligand": name, "x": number / 7}
        told = {"params": point, "reward": rewards}
        if name == "1":
            told["instead_of"] = "p1"
        run(capsys, "tell", file, json.dumps(told))
    run(capsys, "tell", file, json.dumps({"replaces": 1, "reward": dict.fromkeys(direction, 9)}))
    assert main(["status", file, "--csv"]) == 0
    table = tmp_path / "search.csv"
    table.write_text(capsys.readouterr().out)
    read = pandas.read_csv(table, dtype=str, keep_default_na=False)
    assert read["params_ligand"].tolist() == [*names, "PMe3"]
    assert json.loads(read["instead_of"][1])["ligand"] in names
    olds = [column for column in read if column.startswith("old_reward")]
    assert olds == (["old_reward"] if len(direction) == 1 else ["old_reward_ee", "old_reward_cost"])
    assert read[olds].values.tolist() == [["0.0"] * len(olds), *[[""] * len(olds)] * 4]
    before = open_file(file, reads=True).trials
    (tmp_path / "other").mkdir()
    other = write(tmp_path / "other", model="network", space=space, direction=direction)
    assert len(run(capsys, "tell", other, "--import", str(table))) == 5
    after = open_file(other, reads=True).trials
    assert [(t.values, t.rewards, t.instead_of) for t in after] == [
        (t.values, t.rewards, t.instead_of) for t in before
    ]


def test_status_names_the_number_with_which_a_doubtful_trial_is_corrected(tmp_path, capsys):
    space = {"x": {"type": "number", "minimum": 0, "maximum": 10, "multipleOf": 1}}
    file = write(tmp_path, model="network", space=space)
    told = run(capsys, "tell", file, '{"params": {"x": 2.5}, "reward": 1}')
    (shown,) = run(capsys, "status", file, "--trials")
    for trial in (told[0], shown):
        assert trial["warning"].endswith("with --replaces 1")


def test_a_part_with_a_similar_name_to_that_of_earlier_trials_is_doubted(tmp_path, capsys, caplog):
    file = write(tmp_path, model="network")

    def told(x, *names):
        parts = [word for name in names for word in ("--part", f"{name}=2.4")]
        (trial,) = run(capsys, "tell", file, f'{{"x": {x}, "k": 1}}', "--reward", "1", *parts)
        return trial.get("warning")

    assert [told(1, "impurity"), told(2, "colour")] == [None, None]
    said = told(3, "impurty")
    assert said == (
        "trial 3: no earlier trial has a part 'impurty'; did you mean 'impurity'? "
        "Correct it with --replaces 3 --part impurity=2.4 --part impurty="
    )
    assert caplog.messages[-1] == said
    assert [told(4, "impurty"), told(5, "impurity", "impurity2")] == [None, None]  # said; new
    run(capsys, "tell", file, *said.partition("with ")[2].split())
    trial = open_file(file, reads=True).trials[2]
    assert dict(trial.parts) == {"impurity": 2.4}
    optimizer = open_file(file, reads=True)
    assert optimizer.doubt(trial) == ""
    doubt = optimizer.doubt(replace(trial, parts={"color": 1.0}))
    assert doubt.endswith("Correct it with replaces=2, parts={'colour': 1.0, 'color': None}")


def test_messages_of_the_shell_name_its_options_and_say_what_counts(tmp_path, capsys):
    file = write(tmp_path, model="network", noisy=True)
    run(capsys, "ask", file)
    said = run(capsys, "tell", file, '{"x": 9, "k": 1}', "--reward", "1", status=2)
    assert "give that as --instead-of; else" in said
    point = '{"x": 1, "k": 1}'
    run(capsys, "tell", file, point, "--reward", "1")
    (broke,) = run(capsys, "tell", file, point, "--failed", "broke")
    assert "trial 1 (#1): a failure does not count in the mean reward" in broke["warning"]
    file = write(tmp_path, model="network", space={"k": SPACE["k"]}, noisy=True)
    said = run(capsys, "ask", file, status=2)
    assert "`llmopt tell --import FILE` then takes over" in said
    candidates = [{"base": "FOO"}]
    (tmp_path / "other").mkdir()
    space = {"base": {"enum": ["KOH", "CsF"]}}
    file = write(tmp_path / "other", model="network", space=space, candidates=candidates)
    assert "Valid: 'CsF', 'KOH'. If it is right" in run(capsys, "ask", file, status=2)


def test_an_explanation_has_no_line_that_says_nothing(tmp_path, capsys):
    file = tmp_path / "s.jsonl"
    answer = "Hypothesis: warm\nStart from: new\nProposal: x: 0.5, k: 3"
    space = {"x": Float(0, 1), "k": Int(1, 9)}
    with LLMOptimizer(space, ScriptedClient([answer]), "words", warmup=0, storage=file) as search:
        search.tell(search.ask(), 1.0)
    (trial,) = run(capsys, "status", str(file), "--trials")
    assert trial["explanation"] == "Hypothesis: warm"


def test_a_part_may_not_bear_the_name_of_an_objective(tmp_path, capsys):
    file = write(tmp_path, model="network", direction={"yield": "maximize", "side": "minimize"})
    (point,) = run(capsys, "ask", file)
    told = json.dumps({"params": point["params"], "reward": {"yield": 70, "side": 7}})
    run(capsys, "tell", file, told)
    said = run(capsys, "tell", file, "--replaces", "1", "--part", "side=6", status=2)
    assert "'side' is an objective" in said


def test_only_ask_says_how_the_model_is_asked(tmp_path, capsys, caplog, monkeypatch):
    monkeypatch.setattr("llmopt.point_task._warned", set())
    file = write(tmp_path, model="network", description="a pump", total=4, warmup=5)
    run(capsys, "tell", file, '{"x": 1, "k": 2}', "--reward", "7")
    for words in (["status"], ["status", "--trials"], ["enqueue", '{"k": 3}']):
        assert main([words[0], file, *words[1:]]) == 0
    assert main(["withdraw", file, "--trial", "1"]) == 0
    capsys.readouterr()
    assert caplog.text == ""
    run(capsys, "ask", file)
    assert caplog.text.count("asks for numbers alone") == 1
    assert caplog.text.count("the model is never asked") == 1


@pytest.mark.parametrize("noisy", [False, True])
def test_a_warning_is_printed_once(noisy, tmp_path, capsys, caplog):
    file = write(tmp_path, model="network", noisy=noisy)

    def said(*words):
        caplog.clear()
        main(list(words))
        return f"{caplog.text}{capsys.readouterr().err}"

    point = '{"x": 1, "k": 2}'
    said("tell", file, point, "--reward", "7")
    first = "the point of trial 1 (#1)" if noisy else "the point of trial 1"
    assert said("tell", file, point, "--reward", "7").count(first) == 1
    said("withdraw", file, "--trial", "1")
    again = said("tell", file, "--replaces", "1", "--reward", "8")
    name = "1 (#2)" if noisy else "1"  # prompts show it apart from the other measurement
    assert again.count(f"trial {name} was withdrawn") == 1
    seeded = str(tmp_path / "seeded.jsonl")
    LLMOptimizer({"x": Float(0, 1)}, "network", seeded=True, storage=seeded).tell({"x": 0.5}, 7)
    assert said("tell", seeded, '{"x": 0.5}', "--reward", "8").count("of trial 1 (#1)") == 1
    table = tmp_path / "t.csv"
    table.write_text("x,k,reward\n99,1,3\n")
    assert said("tell", file, "--import", str(table)).count("`x`=99 is outside") == 1
