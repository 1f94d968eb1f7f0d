"""Pages and tables made of files that somebody else wrote: no markup, no link out, no raw error."""

from __future__ import annotations

import json
import math
import random
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gymnasium")
sys.path.insert(0, str(Path(__file__).parent.parent))
from test_file_attacks import places, put
from test_report import results

from llmopt.benchmarks.report.figures import learning_curve
from llmopt.benchmarks.report.markdown import markdown
from llmopt.benchmarks.report.page import page
from llmopt.cli import main as cli

MARKUP = '"><script>alert(1)</script><img src=http://evil.org/x onerror=a()>'
HANDLER = "' onload='x' \" onmouseover=\"y"
LINK = "[a](http://evil.org) ![b](http://evil.org/b.png)\n\n# Title\n<!-- benchmark:end -->"
ESCAPES = "\x1b[2J\x1b]0;title\x07\x00\ud800\u202e"
VALUES: tuple[Any, ...] = (
    *(MARKUP, HANDLER, ESCAPES, None, -1, 10**400, 1e308, math.nan, -math.inf, True),
    *([], {}, [[]], {"a": 1}),
)


def where(value: Any) -> list[tuple[Any, ...]]:
    """Return where something can be put into a JSON value, of long lists at two places."""
    return list(places(value, most=2))[1:]


class Seen(HTMLParser):
    """The tags and attributes of a page, and where it leads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.marks: set[Any] = set()
        self.leads: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.marks |= {(tag, name) for name, _ in attrs} | {tag}
        self.leads |= {value or "" for name, value in attrs if name in ("href", "src")}


def is_whole(text: str, known: set[Any]) -> bool:
    seen = Seen(text)
    return seen.marks <= known and all(
        lead.startswith(("#", "data:image/gif;base64,", "data:image/png;base64,"))
        for lead in seen.leads
    )


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    monkeypatch.setattr("llmopt.benchmarks.report.page.comparison", lambda *_: b"\x89PNG\r\n")


LINES = results(("CartPole-v1",), seeds=2)


def test_no_text_of_a_result_becomes_markup():
    known = Seen(page(results(seeds=2))).marks
    shown = 0
    for path in where(LINES[0]):
        for value in (MARKUP, HANDLER):
            try:
                text = page([put(LINES[0], path, value), *LINES[1:]])
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
                continue  # a place for numbers: `llmopt report` says so, see below
            shown += "alert(1)" in text or "onload" in text
            assert is_whole(text, known), path
    assert shown > 5


def test_the_page_runs_no_script_but_its_own():
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page(LINES))
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; ")
    scripts = [part for part in policy[1].split("; ") if part.startswith("script-src")]
    assert len(scripts) == 1
    assert "unsafe" not in scripts[0]


@pytest.mark.parametrize("value", [MARKUP, LINK])
def test_no_name_in_a_result_becomes_a_tag_or_a_link_of_the_markdown(value):
    lines = [{**line, "model": value and f"{value}{line['model']}"} for line in LINES]
    lines += [{**line, "env_id": value, "task": value} for line in LINES[:1]]
    text = markdown(lines)
    assert "<" not in text
    assert "](" not in text
    assert "\n# Title" not in text


def test_damaged_results_are_errors_in_words(tmp_path, capsys):
    pairs = [(path, value) for path in where(LINES[0]) for value in VALUES]
    file, out = tmp_path / "sent.jsonl", tmp_path / "page.html"
    refused = 0
    for path, value in random.Random(0).sample(pairs, 60):
        lines = [put(LINES[0], path, value), *LINES[1:]]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        arguments = ["report", str(file), "--no-gif", "--out", str(out)]
        status = cli([*arguments, "--markdown", str(tmp_path / "table.md")])
        refused += status == 2
        assert status in (0, 2), (path, value)
        said = capsys.readouterr()
        assert all(c.isprintable() or c == "\n" for c in said.err + said.out), (path, value)
    assert refused > 10


def test_missing_keys_of_results_are_errors_in_words(tmp_path, capsys):
    file = tmp_path / "sent.jsonl"
    for key in LINES[0]:
        lines = [{k: v for k, v in LINES[0].items() if k != key}, *LINES[1:]]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        out = str(tmp_path / "page.html")
        assert cli(["report", str(file), "--no-gif", "--out", out]) in (0, 2), key
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["$\\frac{$", "$x^$", "\ud800", "a\x00b", "x" * 5000, MARKUP])
def test_a_picture_takes_any_name(name):
    picture = learning_curve({name: [1.0, 2.0]}, warmup=1, title=name, episodes=1)
    assert picture.startswith(b"\x89PNG")
