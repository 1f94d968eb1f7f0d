"""An option is declared once, as a field: signatures, docstrings, files and pages follow it."""

import ast
import dataclasses
import inspect
import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from llmopt import loop
from llmopt.caps import Limits
from llmopt.code import code_optimizer
from llmopt.code.program_task import Writing
from llmopt.code.prompt import CodePrompt
from llmopt.options import (
    AskArguments,
    AskOptions,
    ComputeArguments,
    SearchArguments,
    SearchOptions,
    stored_names,
)
from llmopt.sandbox.sandbox import Sandbox
from llmopt.service import description

ROOT = Path(__file__).resolve().parents[1]


def fields(record):
    """Return the names of a record's own fields, in order."""
    inherited = {f.name for base in record.__mro__[1:-1] for f in dataclasses.fields(base)}
    return [f.name for f in dataclasses.fields(record) if f.name not in inherited]


def documented(record):
    """Return the names of the section `Attributes` of a docstring, in order."""
    text = inspect.getdoc(record).partition("Attributes:\n")[2].partition("\n\n")[0]
    return re.findall(r"^    (\w+): ", text, re.MULTILINE)


@pytest.mark.parametrize("record", [AskOptions, SearchOptions])
def test_the_docstring_documents_each_field(record):
    assert documented(record) == fields(record)


@pytest.mark.parametrize(
    ("arguments", "record"), [(AskArguments, AskOptions), (SearchArguments, SearchOptions)]
)
def test_the_arguments_of_signatures_are_the_fields(arguments, record):
    given, kept = get_type_hints(arguments), get_type_hints(record)
    assert given.keys() == kept.keys()
    for name, kind in kept.items():  # an argument may be of further types, which are converted
        assert {*(get_args(kind) or [kind])} <= {*(get_args(given[name]) or [given[name]])}, name


def test_the_arguments_of_minimize_are_its_options_and_those_of_a_search():
    tree = ast.parse(inspect.getsource(loop))
    (record,) = (
        n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == "LoopArguments"
    )
    own = {node.target.id for node in record.body if isinstance(node, ast.AnnAssign)}
    assert own == {*loop._OWN, "prompt", "seed"}
    for name in loop._OWN:
        assert f"``{name}``" in loop.minimize.__doc__


def test_the_options_of_a_code_search_are_those_of_its_parts():
    parts = (CodePrompt, Writing, Sandbox, Limits)
    known = {name for part in parts for name in inspect.signature(part).parameters}
    known |= {*ComputeArguments.__annotations__, "attempts"}  # of `AskOptions`
    assert {*ComputeArguments.__annotations__} < {*AskOptions.names()}
    names = code_optimizer.CodeOptions.__annotations__.keys()
    assert names - known == {"model"}
    for name in names:
        assert f"``{name}" in inspect.getdoc(code_optimizer.CodeOptimizer), name


def test_a_description_takes_what_a_file_may_hold():
    assert {*stored_names()} - {*description._KEYS} == {"seeded", "task"}
    others = {*description._KEYS} - {*SearchOptions.names()}
    assert others == {"space", "forbidden", "prompt", "direction", "seed"}


def test_a_page_names_each_option():
    text = "\n".join(page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md"))
    for name in SearchOptions.names():
        assert re.search(rf"`{name}`|\b{name}=", text), name
