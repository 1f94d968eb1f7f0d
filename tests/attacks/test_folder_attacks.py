"""Run folders that somebody else wrote: going on with one asks and reads what the user names."""

from __future__ import annotations

import json
import os
import shutil
import sys
import types

import pytest
from stubs import needs_confinement
from wire import Say, WireServer

from llmopt import ScriptedClient
from llmopt.benchmarks.code import common
from llmopt.cli import main as cli
from llmopt.client.model_string import names_a_place

QUICK = ("--iterations", "1", "--episodes", "1", "--warmup", "1", "--heldout", "1", "--no-gif")
PUMP = "```python\ndef controller(obs):\n    return [40 * obs[1]]\n```"
REWARD = "```python\ndef reward(obs, action, next_obs, info):\n    return 1.0\n```"


def answers(patch, *texts):
    """Let the model of code runs answer with these texts."""
    patch.setattr(common, "get_client", lambda name: ScriptedClient(list(texts)))


def begin(patch, command, folder):
    """Run a command to write code to its end, with one step, and no picture."""
    answers(patch, PUMP if command == "code" else REWARD)
    args = ["--steps", "1", "--episodes", "1", "--held-out", "1", "--model", "m", "--no-gif"]
    args += ["--training", "2"] if command == "reward" else []
    assert cli([command, "mountaincar", *args, "--out", str(folder)]) == 0


@pytest.fixture
def listener(monkeypatch):
    """An address that notes what comes in; with a key that must not go there."""
    server = WireServer()
    server.play(Say({}, 400))
    monkeypatch.setenv("LLMOPT_API_KEY", "sk-not-for-strangers")
    yield f"openai+{server.url}/v1:m", server.seen
    server.close()


def changed(folder, **settings):
    """Change settings in a folder's config.json, as its sender may."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    (config["run"] if "run" in config else config).update(settings)
    file.write_text(json.dumps(config))


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sent") / "run"
    assert cli(["run", "cartpole", *QUICK, "--methods", "random", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def sent(run_folder, tmp_path):
    return shutil.copytree(run_folder, tmp_path / "run")


def test_a_run_asks_no_address_that_its_folder_names(sent, listener, capsys):
    address, seen = listener
    changed(sent, model=address, methods=["random", "llm"])
    resume = ["run", "cartpole", "--resume", "--out", str(sent)]
    assert cli(resume) == 2
    assert f"Give --model {address}" in capsys.readouterr().err
    assert seen == []
    assert cli([*resume, "--model", address]) == 2  # it was asked, and answers nothing useful
    assert len(seen) >= 1
    assert f"--model {address}" in capsys.readouterr().err  # in the advice on how to go on


@pytest.mark.parametrize("model", ["gguf:/etc/passwd", "folder:.", "replay:/etc/passwd", "GGUF/x"])
def test_a_run_reads_no_model_file_that_its_folder_names(sent, model, capsys):
    changed(sent, model=model, methods=["llm"])
    assert cli(["run", "cartpole", "--resume", "--out", str(sent)]) == 2
    assert "Give --model" in capsys.readouterr().err


@pytest.mark.parametrize(
    "prompt", ["/etc/passwd", "../secret.j2", "notes.txt", "{{ evidence }} write it"]
)
def test_a_run_reads_no_template_that_its_folder_names(sent, prompt, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("secret")
    changed(sent, prompt=prompt, methods=["llm"], model="smollm2")
    assert cli(["run", "cartpole", "--resume", "--out", str(sent)]) == 2
    assert "Give --prompt" in capsys.readouterr().err


def test_a_run_reads_no_warm_up_that_its_folder_names(sent, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "warmup_rollout_0.txt").write_text("1\n")
    changed(sent, warmup=str(other))
    # With its own points the run needs no other folder.
    assert cli(["run", "cartpole", "--resume", "--out", str(sent)]) == 0


def test_a_run_writes_no_recording_that_its_folder_names(sent, tmp_path, capsys):
    changed(sent, record=str(tmp_path / "taken.jsonl"), methods=["llm"], model="smollm2")
    assert cli(["run", "cartpole", "--resume", "--out", str(sent)]) == 2
    assert "Give --record" in capsys.readouterr().err
    assert not (tmp_path / "taken.jsonl").exists()


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that must not be imported; returns whether it was."""
    (tmp_path / "evil_module.py").write_text("import os; os.environ['EVIL_RAN'] = 'yes'")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("EVIL_RAN", "")
    yield lambda: os.environ["EVIL_RAN"] == "yes"
    sys.modules.pop("evil_module", None)


def test_a_run_imports_no_task_that_its_folder_names(sent, evil, capsys):
    changed(sent, task="evil_module:Env-v0")
    assert cli(["run", "cartpole", "--resume", "--out", str(sent)]) == 2
    assert not evil()
    assert "another configuration" in capsys.readouterr().err
    assert cli(["run", "--resume", str(sent)]) == 2
    assert not evil()
    assert "Give the task" in capsys.readouterr().err


@pytest.mark.parametrize("wrapper", ["evil_module:Wrapper=3", "RecordVideo=videos"])
def test_a_run_uses_no_wrapper_of_its_folder_that_reaches_further(sent, evil, wrapper, capsys):
    changed(sent, wrappers=[wrapper])
    for resume in (
        ["run", "cartpole", "--resume", "--out", str(sent)],
        ["run", "--resume", str(sent)],
    ):
        assert cli(resume) == 2
        assert not evil()
        assert "expected none" in capsys.readouterr().err


@pytest.mark.parametrize(
    "forged",
    [
        {"task": "evil_module:Env-v0"},
        {"wrappers": ["evil_module:Wrap"]},
        {"wrappers": ["RecordVideo=videos"]},
    ],
)
def test_a_benchmark_imports_and_makes_nothing_that_its_results_name(
    forged, evil, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    # As if the package were there with which RecordVideo writes.
    video = types.SimpleNamespace(capped_cubic_video_schedule=lambda number: False)
    monkeypatch.setitem(sys.modules, "gymnasium.utils.save_video", video)
    results = tmp_path / "sent.jsonl"
    bench = (
        "bench --tasks cartpole --methods random --seeds 1 --iterations 1 --warmup 1 --heldout 1"
    )
    command = [*bench.split(), "--out", str(results)]
    assert cli(command) == 0
    line = json.loads(results.read_text())
    line["cell"].update(forged)
    results.write_text(json.dumps(line) + "\n")
    cli(command)  # it reads them, for what is done and for its table
    assert not evil()
    assert not (tmp_path / "videos").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"task": 5},
        {"model": None},
        {"prompt": ["a"]},
        {"record": 5},
        {"seed": "x"},
        {"methods": 7},
        {"methods": [[]]},
        {"box": "ab"},
        {"box": [1e999, {}]},
        {"episodes": -1},
        {"warmup": {}},
        {"extra": 1},
    ],
)
def test_settings_of_any_kind_are_refused_in_words(sent, settings, capsys):
    changed(sent, **settings)
    assert cli(["run", "cartpole", "--resume", "--out", str(sent)]) == 2
    assert capsys.readouterr().err.startswith("llmopt: ")


@pytest.fixture(scope="module")
def code_folders(tmp_path_factory):
    """Finished runs of both commands."""
    folders = {}
    for command in ("code", "reward"):
        folders[command] = tmp_path_factory.mktemp("sent") / command
        with pytest.MonkeyPatch.context() as patch:
            begin(patch, command, folders[command])
    return folders


@needs_confinement
def test_a_code_run_asks_no_address_and_opens_no_sandbox(
    monkeypatch, listener, code_folders, tmp_path, capsys
):
    address, seen = listener
    folder = shutil.copytree(code_folders["code"], tmp_path / "run")
    resume = ["code", "mountaincar", "--steps", "2", "--resume", "--out", str(folder)]
    changed(folder, model=address)
    capsys.readouterr()
    assert cli(resume) == 2
    assert "Give --model" in capsys.readouterr().err
    assert seen == []
    # What waives the sandbox comes from the command line alone.
    changed(folder, model="m", allow_unsandboxed=True)
    waived = []

    def optimizer(*args, **options):
        waived.append(options["allow_unsandboxed"])
        raise KeyboardInterrupt

    answers(monkeypatch, PUMP)
    monkeypatch.setattr(common, "CodeOptimizer", optimizer)
    assert cli(resume) == 130
    assert "--allow-unsandboxed" not in capsys.readouterr().err
    assert cli([*resume, "--allow-unsandboxed"]) == 130
    assert waived == [False, True]


@needs_confinement
@pytest.mark.parametrize("command", ["code", "reward"])
def test_a_code_run_takes_no_recording_price_or_new_setting_from_its_folder(
    monkeypatch, code_folders, tmp_path, command, capsys
):
    folder = shutil.copytree(code_folders[command], tmp_path / "run")
    answers(monkeypatch)
    kept = (folder / "config.json").read_text()
    target = tmp_path / ".bashrc"
    target.write_text("# mine\n")
    resume = [command, "mountaincar", "--steps", "2", "--resume", "--out", str(folder)]
    for settings, words in (
        ({"record": str(target), "description": "$(date)"}, f"Give --record {target} again"),
        ({"model": 'm?price={"input":0,"output":0}'}, "Give --model 'm?price="),
        ({"hook": "evil.py"}, "Give --hook evil.py"),
        ({"task": "evil_module:Env-v0"}, "another task"),
    ):
        (folder / "config.json").write_text(kept)
        changed(folder, **settings)
        capsys.readouterr()
        assert cli(resume) == 2
        assert words in capsys.readouterr().err
    assert target.read_text() == "# mine\n"
    # What the user names, too, is taken.
    (folder / "config.json").write_text(kept)
    changed(folder, record=str(tmp_path / "said.jsonl"))
    assert cli([*resume, "--record", str(tmp_path / "said.jsonl")]) == 2  # the script has ended
    assert f"--record {tmp_path / 'said.jsonl'}" in capsys.readouterr().err  # in the advice


@needs_confinement
@pytest.mark.parametrize(
    ("command", "name", "values"),
    [
        ("code", "held_out", (10**30, -1, True, "9", 1.5)),
        ("code", "episodes", (0, 10**30, [])),
        ("code", "call_seconds", (10**400, "x", 1e999)),
        ("code", "attempts", (True, 10**9)),
        ("code", "feedback", (7, ["x"], [[]])),
        ("code", "description", (5, ["a"])),
        ("code", "seed", (-1, 10**400)),
        ("reward", "training", (0, "x", 10**30)),
        ("reward", "gif", (1, "yes")),
    ],
)
def test_settings_of_a_code_run_are_refused_in_words(
    code_folders, tmp_path, command, name, values, capsys, monkeypatch
):
    sent = shutil.copytree(code_folders[command], tmp_path / "run")
    answers(monkeypatch)
    for value in values:
        changed(sent, **{name: value})
        assert cli([command, "mountaincar", "--resume", "--out", str(sent)]) == 2
        err = capsys.readouterr().err
        assert f"--{name.replace('_', '-')} " in err
        assert len(err) < 600


@needs_confinement
def test_no_policy_is_read_from_a_sent_reward_run(code_folders, tmp_path, monkeypatch):
    sent = shutil.copytree(code_folders["reward"], tmp_path / "run")
    file = sent / "candidates" / "001.json"
    stored = json.loads(file.read_text())
    file.write_text(json.dumps({**stored, "policies": ["../evil.zip"]}))
    before = (sent / "held_out.json").read_text()
    (sent / "held_out.json").unlink()
    answers(monkeypatch)
    assert cli(["reward", "mountaincar", "--resume", "--out", str(sent)]) == 0
    assert (sent / "held_out.json").read_text() == before


@needs_confinement
@pytest.mark.parametrize(
    "data",
    [
        *("[]", "{}", "x" * 99, None),
        *(f'{{"secret": {text}, "seed": 0, "words": 4}}' for text in ("5", "null", '"x"')),
    ],
)
def test_starts_of_a_sent_run_are_starts(code_folders, tmp_path, data, capsys, monkeypatch):
    """Neither a file without a secret, nor none at all, leads to starts that can be planned on."""
    sent = shutil.copytree(code_folders["code"], tmp_path / "run")
    (sent / "starts.json").unlink()
    if data is not None:
        (sent / "starts.json").write_text(data)
    answers(monkeypatch)
    assert cli(["code", "mountaincar", "--resume", "--out", str(sent)]) == 2
    assert "starts" in capsys.readouterr().err.replace(str(tmp_path), "")


@needs_confinement
@pytest.mark.parametrize("kind", ["link", "dangling link", "link to a folder", "pipe"])
@pytest.mark.parametrize("command", ["code", "reward"])
def test_a_code_run_follows_no_link_and_opens_no_pipe(
    code_folders, tmp_path, command, kind, capsys, monkeypatch
):
    """Each file of a sent folder, and the folder of candidates, may be something else."""
    outside = tmp_path / "outside"
    names = sorted(p.relative_to(code_folders[command]) for p in code_folders[command].rglob("*"))
    assert len(names) >= 7
    answers(monkeypatch)
    for name in names:
        sent = shutil.copytree(code_folders[command], tmp_path / "run")
        shutil.copytree(code_folders[command], outside)
        known = {p: p.read_bytes() for p in outside.rglob("*") if p.is_file()}
        place = sent / name
        shutil.rmtree(place) if place.is_dir() else place.unlink()
        if kind == "pipe":
            os.mkfifo(place)
        else:
            target = {"link": outside / name, "dangling link": outside / "new"}
            place.symlink_to(target.get(kind, outside))
        resume = ["--steps", "2", "--resume", "--out", str(sent)]
        assert cli([command, "mountaincar", *resume]) == 2
        assert f"{place} is " in capsys.readouterr().err
        assert {p: p.read_bytes() for p in outside.rglob("*") if p.is_file()} == known
        shutil.rmtree(sent)
        shutil.rmtree(outside)


@needs_confinement
@pytest.mark.parametrize("command", ["code", "reward"])
def test_a_link_that_appears_during_a_code_run_is_not_written_through(
    tmp_path, command, capsys, monkeypatch
):
    """The folder of candidates is new, or was given away, when the first one is written."""
    outside, out = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()

    def answer(request):
        (out / "candidates").symlink_to(outside)
        return PUMP if command == "code" else REWARD

    monkeypatch.setattr(common, "get_client", lambda name: ScriptedClient(answer))
    args = ["--steps", "1", "--episodes", "1", "--held-out", "1", "--model", "m", "--no-gif"]
    args += ["--training", "2"] if command == "reward" else []
    assert cli([command, "mountaincar", *args, "--out", str(out)]) == 2
    assert f"{out / 'candidates'} is a link" in capsys.readouterr().err
    assert list(outside.iterdir()) == []


def test_what_names_a_place():
    for model in ("openai+http://h/v1:m", "openai+https:x", "gguf/x", "folder:d", "replay:f"):
        assert names_a_place(model)
    for option in (
        "base_url=h.org/v1",
        "base_url=https%3A//h",
        "adapter=/a",
        "timeout=6&adapter=a",
        'price={"input":0,"output":0}',
    ):
        assert names_a_place(f"smollm2?{option}")
    for model in (
        "smollm2",
        "openai:gpt-6-luna",
        "openrouter:meta/llama",
        "ollama:qwen:7b",
        "m:x?effort=low",
    ):
        assert not names_a_place(model)
