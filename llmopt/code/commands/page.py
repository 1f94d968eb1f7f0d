"""A page about a code run, made from its folder alone."""

from __future__ import annotations

import difflib
import json
import os
from pathlib import Path
from typing import Any

import jinja2

from llmopt.code.commands.runfolder import read_config
from llmopt.search.eventlog import read_events


def write_report(path: str | os.PathLike[str]) -> Path:
    """Write ``report.html`` into a run folder.

    It shows each candidate's score, how each new best differs from the best before it, the
    sources with explanation and feedback, what was not used and why, and the settings. What a
    model wrote is shown as text, never as HTML.

    Returns:
        The page's path.

    Raises:
        LLMOptError: The folder holds no run.
    """
    folder = Path(path)
    config = read_config(folder)
    candidates = [
        {
            **dict.fromkeys(("mean_return", "success_rate")),  # none where a kill came before
            **json.loads(file.read_text("utf-8")),
            "source": file.with_suffix(".py").read_text("utf-8"),
        }
        for file in sorted((folder / "candidates").glob("*.json"))
    ]
    events = (
        list(read_events(folder / "search.jsonl")) if (folder / "search.jsonl").exists() else []
    )
    held_out = folder / "held_out.json"
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("llmopt.code"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    page = environment.get_template("code_report.html.j2").render(
        config=config,
        candidates=candidates,
        best=_best(candidates),
        measured=any(c["mean_return"] is not None for c in candidates),
        diffs=_diffs(candidates),
        rejections=[e for e in events if e.get("event") == "reject"],
        replies=[e["reply"] for e in events if e.get("event") == "reply"],
        held_out=json.loads(held_out.read_text("utf-8")) if held_out.exists() else {},
    )
    target = folder / "report.html"
    target.write_text(page, encoding="utf-8")
    return target


def _best(candidates: list[dict[str, Any]]) -> dict[str, Any] | None:
    scored = [c for c in candidates if c["score"] is not None]
    return max(scored, key=lambda c: c["score"]) if scored else None


def _diffs(candidates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps from each best candidate to the next better one."""
    found: list[dict[str, Any]] = []
    best: dict[str, Any] | None = None
    for candidate in candidates:
        if candidate["score"] is None:
            continue
        if best is not None and candidate["score"] > best["score"]:
            lines = difflib.unified_diff(
                best["source"].splitlines(),
                candidate["source"].splitlines(),
                f"{best['number']:03d}.py",
                f"{candidate['number']:03d}.py",
                lineterm="",
            )
            found.append(
                {
                    "before": best,
                    "after": candidate,
                    "lines": [(_kind(line), line) for line in lines],
                }
            )
        if best is None or candidate["score"] > best["score"]:
            best = candidate
    return found


def _kind(line: str) -> str:
    if line.startswith(("+++", "---", "@@")):
        return "head"
    return {"+": "plus", "-": "minus"}.get(line[:1], "same")
