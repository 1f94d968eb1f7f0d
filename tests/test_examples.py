"""The scripts and the notebook in docs/examples run as they stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "docs" / "examples"
# Each script: its arguments, the packages without which it cannot run, and what it must print.
SCRIPTS = {
    "agent.py": ([], ["mcp"], r"best: \{.*'reward': (0\.\d|\d(\.\d+)?e-)"),
    "conditional.py": ([], [], r"best: \{'kernel': '\w+'.*error"),
    "capped.py": ([], [], r"cap 0\.02 dollars: 10 trials.*cap 0\.04 dollars: 14 trials"),
    "packing.py": ([], [], r"^2\.635983084917582, exactly feasible\n.*recommends #1"),
    "inequalities.py": (
        [],
        [],
        r"^autocorr\w+: 1\.5046569122248588 \n.*\noverlap: 0\.38090097590530614 \n",
    ),
    "parallel.py": (["--quick"], [], r"first: .*timeout=.*second: 40 evaluations.*best 0\.\d"),
    "pareto.py": ([], [], r"12 trials, \d+ on the Pareto front\n  .* kg, bends"),
    "hybrid.py": (["--quick"], ["cma", "xllamacpp"], r"model and CMA-ES.*'cma': "),
    "laboratory.py": (["--simulate", "--quick"], [], r"best yield [4-9]\d\.\d with"),
    "nevergrad_mixed.py": (
        ["--quick"],
        ["nevergrad", "xllamacpp"],
        r"LLM .*OnePlusOne .*RandomSearch ",
    ),
    "optuna_sklearn.py": (
        ["--quick"],
        ["optuna", "sklearn", "xllamacpp"],
        r"smallest error 0\.0.*support vectors.*'llm': ",
    ),
    "own_environment.py": ([], [], r"pump: flow in.*on 100 fresh starts: -0\.4\d"),
    "subscription.py": ([], [], r"best cup: extracted .* %, \w+ at \{.*\n8 cups, 8 requests"),
    "workers.py": ([], ["optuna"], r"1\d trials, 1\d different points.*'llm': "),
    "report.py": (["--quick"], [], r"12 trials.*reactor\.html"),
    "replay.py": ([], [], r"no further gain.*best policy: -26\.11"),
}


def run(*command: str, folder: Path) -> str:
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_the_first_example_of_the_readme_prints_what_it_shows(tmp_path):
    page = (EXAMPLES.parents[1] / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- kiln:begin -->\n```text\n(.*?)```", page, re.DOTALL)[1]
    command = ("-W", "error::RuntimeWarning", str(EXAMPLES / "kiln.py"))  # no reworded prompt
    assert run(*command, folder=tmp_path).startswith(shown)


def test_a_rival_of_the_first_example_is_as_far_as_the_readme_says(tmp_path):
    pytest.importorskip("cma")
    out = run(str(EXAMPLES / "kiln.py"), "cma", folder=tmp_path)
    errors = [float(e) for e in re.findall(r"([\d.]+) K", out)]
    page = (EXAMPLES.parents[1] / "README.md").read_text(encoding="utf-8")
    low, high = map(float, re.search(r"reaches (\d+) to (\d+) K after 200", page).groups())
    assert low <= min(errors) + 0.5
    assert max(errors) <= high + 0.5


@pytest.mark.embedded
@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_script_runs(name, tmp_path, embedded_client):
    arguments, packages, shown = SCRIPTS[name]
    for package in packages:
        pytest.importorskip(package)
    out = run(str(EXAMPLES / name), *arguments, folder=tmp_path)
    assert re.search(shown, out, re.DOTALL), out


@pytest.mark.embedded
@pytest.mark.parametrize("name", ["notebook.ipynb", "studies.ipynb"])
def test_a_notebook_runs_and_was_run(name, tmp_path, embedded_client):
    for package in ("pandas", "matplotlib", "optuna", "sklearn"):
        pytest.importorskip(package)
    notebook = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert any("image/png" in o.get("data", {}) for cell in cells for o in cell["outputs"])
    code = "\n".join("".join(cell["source"]) for cell in cells)
    if name == "notebook.ipynb":
        assert "maximize(score, space, 30," in code
        code = code.replace("maximize(score, space, 30,", "maximize(score, space, 9,")
    out = run("-c", code, folder=tmp_path)
    if name == "studies.ipynb":
        (found,) = re.findall(r"the model: validation ([\d.]+)", out)
        assert f"the model: validation {found}," in json.dumps(notebook)
        assert float(found) < 0.1
