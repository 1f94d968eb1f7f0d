"""The code of README and docs runs as it stands, and their links lead somewhere.

A block that begins with ```` ```python ```` is run. The blocks of a page share their names, those
of the README do not. One that begins with ```` ```py ```` needs something that is not here (a
database, a cluster, an account): it is only compiled. A hosted model is a server on the loopback
device.
"""

from __future__ import annotations

import json
import os
import pkgutil
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from wire import Say, WireServer

from llmopt.cli import COMMANDS as COMMANDS_OF_THE_CLI

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
_BESIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
_RESULTS = (
    "benchmarks/results/README.md",
    "benchmarks/results/archive.md",
    "tests/attacks/README.md",
)
WRITTEN = [*(ROOT / n for n in (*_BESIDE, *_RESULTS)), *PAGES]
_BLOCK = re.compile(r"^```(python|py|bash)\n(.*?)^```", re.DOTALL | re.MULTILINE)
README = _BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
SNIPPETS = [code for language, code in README if language == "python"]
COMMANDS = [
    line.split("#")[0].strip()
    for language, code in README
    if language == "bash"
    for line in code.splitlines()
    if line.startswith("llmopt ")
]

# What a page takes for given, and how its searches are cut short.
PRELUDES = {
    "nevergrad.md": """
def evaluate(value):
    return 1.0, "it hummed"
""",
    "optuna.md": """
import numpy as np
from optuna.distributions import FloatDistribution
def train(trial, fold):
    return trial.suggest_float("x", 0, 1) + fold
def evaluate_all(points):
    return [sum(point.values()) for point in points]
model, distributions = "openai:gpt-6-luna", {"x": FloatDistribution(0, 1)}
""",
}
SHORTER = {
    "index.md": [("n_trials=15", "n_trials=8")],
    "loop.md": [("score, space, 12", "score, space, 8")],
    "report.md": [("space, 30, storage", "space, 8, storage")],
    "optuna.md": [("n_trials=50", "n_trials=12"), ("< 80", "< 16")],
    "nevergrad.md": [("budget=60", "budget=12")],
    "policies.md": [
        ('storage="swimmer.jsonl"', "starts=1, max_steps=100"),
        ("run(30,", "run(7,"),
        ("search.evaluate()", "search.evaluate(2)"),
        ('\nsearch.gif("swimmer.gif")', ""),  # software rendering takes seconds
    ],
}
NEEDS = {
    "loop.md": ["matplotlib", "pandas"],
    "nevergrad.md": ["nevergrad"],
    "optuna.md": ["optuna"],
    "policies.md": ["mujoco", "PIL"],
}


def runnable(page: Path) -> str:
    """Return the code of a page; its first block has to run without the page's prelude."""
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    code = [code for language, code in blocks if language == "python"]
    return "\n\n".join([*code[:1], PRELUDES.get(page.name, ""), *code[1:]]).strip()


def answer_to(prompt: str) -> str:
    """Return what a model might answer: code, or a random point within the ranges it was told."""
    if "controller(obs" in prompt:
        gain = random.random()
        return f"A guess.\n```python\ndef controller(obs):\n    return [{gain} * obs[1]]\n```"
    ranges, each = {}, "from 0 to 1"
    for name, what in re.findall(r"^- (.+?): ((?:each )?(?:an? |one of).*)$", prompt, re.MULTILINE):
        ranges[name] = what
        each = what if what.startswith("each") else each
    names = re.findall(r"([^\s,][^,\n]*?): <value>", prompt)

    def value(name: str) -> str:
        what = ranges.get(name, each)
        if "one of" in what:
            return random.choice(what.split("one of ")[1].split(", "))
        low, high = (float(x) for x in re.findall(r"(?:from|to) (-?[\d.e-]+)", what)[:2])
        whole = "integer" in what
        return str(random.randint(int(low), int(high)) if whole else random.uniform(low, high))

    line = ", ".join(f"{name}: {value(name)}" for name in names)
    return f"Lesson: none\nHypothesis: a guess.\nStart from: new\nProposal:\n{line}"


def _say(body: dict) -> Say:
    text = answer_to("\n".join(str(message["content"]) for message in body["messages"]))
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}
    return Say(
        {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [choice | {"finish_reason": "stop"}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18},
        }
    )


@pytest.fixture
def hosted() -> Iterator[WireServer]:
    """A server that speaks OpenAI's protocol and answers every prompt with a point."""
    server = WireServer()
    server.play(_say)
    yield server
    server.close()


def run(command: list[str], folder: Path, **variables: str) -> str:
    environment = {**os.environ, "COLUMNS": "100", "MPLBACKEND": "Agg", **variables}
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        environment.pop(name, None)
        environment.pop(name.lower(), None)
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def execute(code: str, folder: Path, server: WireServer) -> str:
    prices = folder / "prices.json"  # those of OpenAI hold at its own address only
    models = re.findall(r'"(openai:[\w.-]+)"', code)
    prices.write_text(json.dumps({name: {"input": 1.0, "output": 4.0} for name in models}))
    account = {"OPENAI_API_KEY": "sk-of-nobody", "OPENAI_BASE_URL": f"{server.url}/v1"}
    return run([sys.executable, "-c", code], folder, LLMOPT_PRICES=str(prices), **account)


@pytest.mark.embedded
@pytest.mark.parametrize("code", SNIPPETS, ids=lambda code: code.split("\n")[0])
def test_snippet_of_the_readme_runs(code, tmp_path, embedded_client, hosted):
    for name in {"optuna", "nevergrad"} & set(re.findall(r"^import (\w+)", code, re.MULTILINE)):
        pytest.importorskip(name)
    code = code.replace("budget=20", "budget=10")  # five of the small model's points, not 15
    assert execute(code, tmp_path, hosted).strip()


@pytest.mark.embedded
@pytest.mark.parametrize(
    "page", [p for p in PAGES if runnable(p)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_snippets_of_a_page_run(page, tmp_path, embedded_client, hosted):
    for package in NEEDS.get(page.name, []):
        pytest.importorskip(package)
    code = runnable(page)
    for whole, part in SHORTER.get(page.name, []):
        assert whole in code, f"{page.name} has no {whole!r} any more: mend SHORTER"
        code = code.replace(whole, part)
    shown = execute(code, tmp_path, hosted)
    # Each of its answers was read; the stand-in knows nothing of constraints.
    unread = [line for line in shown.splitlines() if "not proposed by openai" in line]
    assert not [line for line in unread if "this point breaks" not in line]
    if page.name in ("optuna.md", "nevergrad.md", "policies.md", "code.md"):
        assert hosted.seen


@pytest.mark.parametrize(
    "page",
    [p for p in WRITTEN if "```py" in p.read_text(encoding="utf-8")],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_snippet_is_python_and_marked(page):
    text = page.read_text(encoding="utf-8")
    for language, code in _BLOCK.findall(text):
        if language != "bash":
            compile(code, str(page), "exec", flags=0x2000)  # with a top-level await
    fences = re.findall(r"^```(.+)$", text, re.MULTILINE)
    assert not {f for f in fences if f.startswith("py") and f not in ("py", "python")}


def test_the_skill_for_agents_is_short_and_its_examples_run(tmp_path):
    skill = run([sys.executable, "-m", "llmopt", "skill"], tmp_path)
    head, name, about, tail = skill.splitlines()[:4]
    assert (head, name, tail) == ("---", "name: llmopt", "---")
    assert about.startswith("description: ")
    assert len(about) < 1000
    assert skill.count("\n") <= 120
    assert "llmopt ask NAME.json --model folder:NAME-mail > point.json &" in skill
    (code,) = re.findall(r"^```python\n(.*?)^```", skill, re.DOTALL | re.MULTILINE)
    (search,) = re.findall(r"^```json\n(.*?)^```", skill, re.DOTALL | re.MULTILINE)
    assert "max_requests" in json.loads(search)
    assert all(said in code for said in ("max_requests=", '"command:', "result.stopped"))
    (tmp_path / "search.py").write_text(code)
    (tmp_path / "other.py").write_text(code)
    simulate = tmp_path / "simulate"
    simulate.write_text('#!/bin/sh\necho "rate $1, size $2, seed $3: $2"\n[ "$2" -lt 60 ]\n')
    simulate.chmod(0o755)
    shown = run([sys.executable, "search.py", "network"], tmp_path)
    assert re.search(r"^\{'rate': .*, 'size': \d\}", shown)
    labels = re.findall(r"^#\d+ ", shown, re.MULTILINE)
    assert len(labels) == 40 > len(set(labels))  # repeats of a point share its label
    before = (tmp_path / "search.jsonl").read_bytes()
    run([sys.executable, "other.py", "network"], tmp_path)  # a file of its own
    assert (tmp_path / "search.jsonl").read_bytes() == before
    (tmp_path / "third.json").write_text(search)
    ask = [sys.executable, "-m", "llmopt", "ask", "third.json"]
    refused = subprocess.run(ask, capture_output=True, text=True, cwd=tmp_path)
    assert refused.returncode == 2  # without --model no other model is asked in place of the agent
    assert "asked only if you name it" in refused.stderr
    asked = run([*ask, "--model", "folder:NAME-mail"], tmp_path)
    assert '"source": "user"' in asked


@pytest.mark.parametrize("model", ["network", "folder:mail"])
def test_the_loop_of_the_shell_ends_at_the_first_ask_or_tell_that_fails(model, tmp_path):
    page = (ROOT / "docs" / "shell.md").read_text(encoding="utf-8")
    search = re.findall(r"^```toml\n(direction.*?)^```", page, re.DOTALL | re.MULTILINE)[0]
    (loop,) = re.findall(r"^```bash\n(for .*?)^```", page, re.DOTALL | re.MULTILINE)
    search = re.sub(r"model = .*", f'model = "{model}"', search).replace("max_cost = 1.0", "")
    (tmp_path / "search.toml").write_text(search)
    jq = "import json, sys\nfor x in sys.stdin: print(json.dumps(json.loads(x)['params']))"
    for name, script in (
        ("llmopt", f'echo $1 >> log; exec {sys.executable} -m llmopt "$@"'),
        ("jq", f'exec {sys.executable} -c "{jq}"'),  # which ends with 0 on no input, as jq 1.6
        ("build.sh", "echo >> builds; [ $(wc -l < builds) -lt 3 ] && echo 7 || echo 7 s"),
    ):
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", loop], cwd=tmp_path, env={**os.environ, "PATH": path})
    run_commands = (tmp_path / "log").read_text().split()
    tried = ["ask", "tell"] * 3 if model == "network" else ["ask"]
    assert run_commands == [*tried, "status"]


@pytest.mark.embedded
@pytest.mark.parametrize("command", COMMANDS)
def test_command_of_the_readme_runs(command, tmp_path, embedded_client):
    words = command.split()[1:]
    if words[0] == "run":
        words += ["--iterations", "2", "--episodes", "1", "--out", str(tmp_path / "run")]
    assert run([sys.executable, "-m", "llmopt", *words], tmp_path).strip()


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading))
        found.add(words.strip().lower().replace(" ", "-"))
    return found


def links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"(?<!`)`[^`\n]+`", "code", text)
    return re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", text)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in links(page):
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name}: {link}"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{page.name}: {link}"


def test_each_page_of_the_site_has_a_line_of_its_own_in_the_navigation():
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nested = re.findall(r"^ {6}- .+: (\S*(?:README|index)\.md)$", site, re.MULTILINE)
    # The theme would take such a page for the heading of its section and hide its own title.
    assert not nested or "navigation.indexes" not in site


NAMES = sorted(
    name
    for page in (ROOT / "docs" / "api").glob("*.md")
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_api_pages_name_is_there(name):
    assert pkgutil.resolve_name(name) is not None


def test_the_page_of_commands_shows_every_option(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import hooks

    shown = hooks.commands()
    assert re.findall(r"^## llmopt (\S+)$", shown, re.MULTILINE) == list(COMMANDS_OF_THE_CLI)
    for option in ("--iterations N", "--answer", "--max-cost USD", "--wait"):
        assert f"`{option}" in shown


def test_troubleshooting_quotes_messages_that_there_are():
    source = "".join(
        re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
        for folder in ("llmopt", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    )
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    quoted = [text for row in rows for text in re.findall(r"`([^`]+)`", row)]
    assert len(quoted) > 10
    assert [text for text in quoted if text not in source] == []
