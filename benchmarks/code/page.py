"""A page about a code run, made from its folder alone."""

from __future__ import annotations

import base64
import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from llmopt.benchmarks.code.folder import read_config
from llmopt.code.answer import encodable, read_answer
from llmopt.code.prompt import MAX_SENT_BACK
from llmopt.errors import ParseError, StorageError
from llmopt.journal import read_events
from llmopt.policies.episode import standard_error
from llmopt.state import Computed, Replied
from llmopt.util.files import (
    read_bytes,
    read_json_object,
    read_text,
    refuse_links,
    write_text_atomically,
)
from llmopt.util.text import cut


def write_report(path: str | os.PathLike[str]) -> Path:
    """Write ``report.html`` into a run folder, and return its path.

    It shows each candidate's score, how each new best differs from the best before it, the
    sources with explanation and feedback, refused answers with reasons, and the settings. The
    words of a model are shown as text, never as HTML.
    """
    folder = Path(path)
    refuse_links(folder)
    config = read_config(folder)
    candidates = [_read_candidate(file) for file in sorted((folder / "candidates").glob("*.json"))]
    log = folder / "search.jsonl"
    events = list(read_events(log, links=False)) if log.exists() else []
    held_out = folder / "held_out.json"
    judged = read_json_object(held_out) if held_out.exists() else {}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("llmopt.benchmarks.code", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    try:
        page = environment.get_template("page.html.j2").render(
            config=config,
            candidates=[_drawn(candidate) for candidate in candidates],
            best=_best(candidates, judged.get("try")),
            picture=_picture(folder / "best.gif"),
            measured=any(c["mean_return"] is not None for c in candidates),
            diffs=_diffs(candidates),
            rejections=_rejections(events, bool(config.get("compute"))),
            blocks=[e.result for e in events if isinstance(e, Computed) and e.block],
            replies=[e.reply for e in events if isinstance(e, Replied)],
            held_out=judged,
        )
    except (
        jinja2.TemplateError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
    ) as error:
        raise StorageError(
            f"{folder} cannot be shown, since a file in it is not as llmopt wrote it "
            f"({type(error).__name__}: {str(error)[:200]}): restore it from a copy"
        ) from error
    target = folder / "report.html"
    write_text_atomically(target, encodable(page))
    return target


def _rejections(events: Sequence[Any], computes: bool) -> list[dict[str, str]]:
    """Return the answers that were sent back: unreadable ones, and code that failed a check."""
    refused = []
    for event in events:
        if isinstance(event, Computed) and not event.block and "error" in event.result:
            refused.append({"text": event.code, "reason": str(event.result["error"])})
        completions = event.reply["completions"] if isinstance(event, Replied) else ()
        for text in (str(completion["text"]) for completion in completions):
            try:
                read_answer(text, computes=computes, may_stop=True)
            except ParseError as error:
                refused.append({"text": cut(text, MAX_SENT_BACK), "reason": str(error)})
    return refused


def _picture(file: Path) -> str:
    """Return a GIF as a data URI, so that the page is one file; empty if there is none."""
    try:
        data = read_bytes(file, links=False)
    except OSError:
        return ""
    return "data:image/gif;base64," + base64.b64encode(data).decode()


_WIDTH, _HEIGHT = 360, 120  # of a drawing, in pixels


def _drawing(curves: Any) -> list[str]:
    """Return learning curves as the points of polylines, all on one scale."""
    rows = [[float(v) for v in row] for row in curves or [] if len(row) > 1]
    if not rows:
        return []
    low, high = min(map(min, rows)), max(map(max, rows))
    span = (high - low) or 1.0
    return [
        " ".join(
            f"{_WIDTH * k / (len(row) - 1):.1f},{_HEIGHT - _HEIGHT * (v - low) / span:.1f}"
            for k, v in enumerate(row)
        )
        for row in rows
    ]


def _read_candidate(file: Path) -> dict[str, Any]:
    measures = read_json_object(file)
    missing = {"number", "score", "parent", "explanation", "feedback"} - set(measures)
    if missing:
        raise StorageError(f"cannot read {file}: it lacks {', '.join(sorted(missing))}")
    try:
        source = read_text(file.with_suffix(".py"), links=False)
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {file.with_suffix('.py')}: {error}") from error
    none = dict.fromkeys(("mean_return", "success_rate"))  # where a kill came before them
    return {**none, **measures, "source": source}


def _drawn(candidate: dict[str, Any]) -> dict[str, Any]:
    """Return a candidate with the spread of its score and its learning curves."""
    curves = candidate.get("curves") or []
    return {
        **candidate,
        "spread": standard_error([float(v) for v in candidate.get("samples") or ()]),
        "lines": _drawing(curves),
        "ends": ", ".join(f"{float(row[-1]):.4g}" for row in curves),
    }


def _best(candidates: list[dict[str, Any]], recommended: Any) -> dict[str, Any] | None:
    """Return the candidate that was recommended, by default the one with the best score."""
    scored = [c for c in candidates if c["score"] is not None]
    scored = [c for c in scored if c["number"] == recommended] or scored
    return max(scored, key=_rank) if scored else None


def _rank(candidate: dict[str, Any]) -> tuple[float, ...]:
    """Return what candidates are compared by, the score first."""
    return (candidate["score"], *candidate.get("ties", ()))


def _diffs(candidates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps from each best candidate to the next better one."""
    steps: list[dict[str, Any]] = []
    best: dict[str, Any] | None = None
    for candidate in candidates:
        if candidate["score"] is None:
            continue
        if best is not None and _rank(candidate) > _rank(best):
            lines = difflib.unified_diff(
                best["source"].splitlines(),
                candidate["source"].splitlines(),
                f"{best['number']:03d}.py",
                f"{candidate['number']:03d}.py",
                lineterm="",
            )
            steps.append(
                {
                    "before": best,
                    "after": candidate,
                    "lines": [(_kind(line), line) for line in lines],
                }
            )
        if best is None or _rank(candidate) > _rank(best):
            best = candidate
    return steps


def _kind(line: str) -> str:
    if line.startswith(("+++", "---", "@@")):
        return "head"
    return {"+": "plus", "-": "minus"}.get(line[:1], "same")
