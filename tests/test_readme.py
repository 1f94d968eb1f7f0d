"""The README's code runs as it stands, and its links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(python|bash)\n(.*?)```", README, re.DOTALL)
SNIPPETS = [code for language, code in BLOCKS if language == "python"]
COMMANDS = [
    line.split("#")[0].strip()
    for language, code in BLOCKS
    if language == "bash"
    for line in code.splitlines()
    if line.startswith("llmopt ")
]


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env={**os.environ, "COLUMNS": "100"}
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.embedded
@pytest.mark.parametrize("code", SNIPPETS, ids=lambda code: code.split("\n")[0])
def test_snippet_runs(code, tmp_path, embedded_client):
    needed = {"optuna", "nevergrad"} & set(re.findall(r"^import (\w+)", code, re.MULTILINE))
    for name in needed:
        pytest.importorskip(name)
    assert run([sys.executable, "-c", code], tmp_path).strip()


@pytest.mark.embedded
@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs(command, tmp_path, embedded_client):
    words = command.split()[1:]
    if words[0] == "run":
        words += ["--iterations", "2", "--episodes", "1", "--out", str(tmp_path / "run")]
    assert run([sys.executable, "-m", "llmopt", *words], tmp_path).strip()


def test_there_are_snippets_and_commands():
    assert len(SNIPPETS) >= 3
    assert len(COMMANDS) >= 3


LINKS = re.findall(r"\]\((?!http)([^)#]+)\)", re.sub(r"```.*?```", "", README, flags=re.DOTALL))


@pytest.mark.parametrize("target", sorted(set(LINKS)))
def test_link_leads_somewhere(target):
    assert (ROOT / target).exists()
