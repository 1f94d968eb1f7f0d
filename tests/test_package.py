"""What is installed, and how heavy it is to import."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import llmopt
from llmopt.errors import install_hint

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("llmopt", "adapters", "benchmarks")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    source = tmp_path_factory.mktemp("source")
    ignore = shutil.ignore_patterns("__pycache__", "results")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, ignore=ignore)
    for name in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    out = source / "dist"
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_llmopt_is_the_only_top_level_name(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"llmopt"}


def test_every_module_and_data_file_is_in_the_wheel(wheel):
    packed = set(wheel.namelist())
    for folder in FOLDERS:
        home = "llmopt" if folder == "llmopt" else f"llmopt/{folder}"
        for path in (ROOT / folder).rglob("*"):
            relative = path.relative_to(ROOT / folder)
            # One goes to that registry, the other runs from a checkout.
            if {"optunahub", "experiments"} & set(relative.parts):
                continue
            named = path.name in ("py.typed", "SKILL.md")
            if path.suffix in (".py", ".j2", ".toml", ".gguf", ".npz") or named:
                assert f"{home}/{relative.as_posix()}" in packed


def run_python(code: str) -> str:
    env = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_pulls_in_no_sdk_and_no_simulator():
    heavy = (
        "httpx",
        "openai",
        "anthropic",
        "google.genai",
        "google.generativeai",
        "xllamacpp",
        "torch",
        "mujoco",
        "optuna",
        "nevergrad",
        "cma",
        "matplotlib",
        "PIL",
        "pygame",
        "scipy",
        "gymnasium",
        # Of Python itself: most programs need none of them.
        "asyncio",
        "concurrent.futures.process",
        "importlib.metadata",
        "multiprocessing",
        "tomllib",
    )
    code = (
        "import sys, llmopt, llmopt.commands.ask\n"
        "llmopt.LLMOptimizer({'x': llmopt.Float(0, 1)}, llmopt.ScriptedClient([]))\n"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    assert run_python(code).strip() == "[]"


@pytest.mark.defect(33)
@pytest.mark.parametrize("inside", [False, True])
def test_scripts_beside_and_inside_a_checkout_import_all_of_it(inside, tmp_path):
    """A folder named llmopt beside the script is no package, and adapters lie beside llmopt/."""
    checkout = tmp_path / "llmopt"
    checkout.symlink_to(ROOT)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "llmopt.pth").write_text(f"{ROOT}\n")
    code = (
        f"import site; site.addsitedir({str(tmp_path / 'site')!r})\n"
        "from llmopt import Float; import llmopt.adapters.optuna, llmopt.benchmarks as b\n"
        "print(b.__file__)"
    )
    where = checkout if inside else tmp_path
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=where)
    assert done.stdout.strip() == str(ROOT / "benchmarks" / "__init__.py"), done.stderr


@pytest.mark.defect(33)
def test_an_editable_install_is_a_path_file():
    """An import hook would let a folder named llmopt beside the script win."""
    assert "[editable_wheel]\nmode = compat" in (ROOT / "setup.cfg").read_text(encoding="utf-8")


@pytest.mark.parametrize("library", ["optuna", "nevergrad"])
def test_a_missing_library_names_its_extra(library):
    code = (
        f"import sys; sys.modules['{library}'] = None\n"
        "from llmopt.errors import install_hint\n"
        f"try:\n    import llmopt.adapters.{library}\n"
        f"except ImportError as error:\n    print(error, install_hint({library!r}) in str(error))"
    )
    assert run_python(code).endswith("True\n")


def test_version_and_day_agree():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(r"^## \[(.+?)\](?: - (\S+))?$", changelog, re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    day = re.search(r"^date-released: (\S+)$", citation, re.MULTILINE)
    assert f"\nversion: {llmopt.__version__}\n" in citation
    assert heading
    if heading[1] != "Unreleased":
        assert heading[1] == llmopt.__version__
        assert day
        assert day[1] == heading[2]


class TestInstallHint:
    def test_it_names_the_packages_of_the_extra(self):
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for name in ("lab", "nevergrad", "bench"):
            packages = extras["optional-dependencies"][name]
            assert install_hint(name) == "pip install " + " ".join(f'"{p}"' for p in packages)
        assert install_hint("optuna,report").count('"optuna>=') == 2

    def test_no_other_message_and_no_page_says_it_its_own_way(self):
        places = [p for d in ("llmopt", "adapters", "benchmarks") for p in (ROOT / d).rglob("*.py")]
        places += [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        told = re.compile(r'pip install [^\n]*"llmopt\[')
        found = {p.name for p in places if told.search(p.read_text(encoding="utf-8"))}
        assert found == set()
