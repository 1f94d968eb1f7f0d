"""The web page of a benchmark: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmopt._version import __version__
from llmopt.benchmarks.charts import Bar, Curve, heldout_bars, learning_curves, legend, number
from llmopt.benchmarks.methods import METHODS
from llmopt.benchmarks.stats import (
    TARGETS,
    ProblemKey,
    Runs,
    any_line,
    compare,
    duels,
    first_model,
    format_interval,
    format_p,
    group,
    group_of,
    problem_title,
    quartiles,
)
from llmopt.errors import LLMOptError

_CURVES = 6  # methods drawn in colour; the others are grey
_SAID = 40  # explanations shown of one run
_ALWAYS = ("llm-pattern", "grammar-uniform", "cma", "random")

Gif = Callable[[Mapping[str, Any]], bytes | None]
Grouped = Mapping[ProblemKey, Mapping[str, Runs]]


class ReportError(LLMOptError, ValueError):
    """A report cannot be made of what was given."""


def page(lines: Sequence[Mapping[str, Any]], *, gif: Gif | None = None) -> str:
    """Make the whole page.

    Args:
        lines: Raw lines of one or more result files.
        gif: Renders the best point of a raw line; ``None`` leaves the pictures out.

    Returns:
        One HTML file that needs nothing else.

    Raises:
        ReportError: There are no lines.
    """
    grouped = group(lines)
    if not grouped:
        raise ReportError("no finished cells: run llmopt bench first")
    names = {key: f"p{i}" for i, key in enumerate(grouped)}
    sections = [_problem(key, runs, names[key]) for key, runs in grouped.items()]
    films = _films(grouped, gif) if gif else ""
    said = _explanations(grouped)
    links = ['<a href="#overall">Overall</a>'] if len(grouped) > 1 else []
    links += [
        f'<a href="#{names[key]}">{_escape(problem_title(key, runs))}</a>'
        for key, runs in grouped.items()
    ]
    links += ['<a href="#films">Best policies</a>'] if films else []
    links += ['<a href="#said">What the model said</a>'] if said else []
    seeds = sum(len(r.seeds) for runs in grouped.values() for r in runs.values())
    versions = sorted({f"{k} {v}" for line in lines for k, v in line["versions"].items()})
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>llmopt benchmark</title><style>{_STYLE}</style></head><body><main>"
        "<h1>llmopt benchmark</h1>"
        f"<p>{seeds:,} runs on {len(grouped)} problems. A run's score is the mean return of its "
        "best policy on starts that no search saw. All methods of a problem have the same box, "
        "the same warm-up policies, the same number of evaluations and, for a seed, the same "
        "starts. Numbers are medians over seeds with the quartiles in brackets. “No model” draws "
        "at random among the integers that the pattern prompt allows: what a model adds is what it "
        "finds beyond that.</p>"
        f"<nav>{''.join(links)}</nav>"
        + _overall(grouped)
        + "".join(sections)
        + films
        + said
        + f"<footer>Made by llmopt {__version__} from raw results written with "
        f"{_escape(', '.join(versions))}.</footer>"
        f"</main><script>{_SCRIPT}</script></body></html>\n"
    )


def _problem(key: ProblemKey, runs: Mapping[str, Runs], anchor: str) -> str:
    title = problem_title(key, runs)
    line = any_line(runs)
    styles = _styles(runs)
    curves = []
    for label, own in runs.items():
        # Until its first sound point a run counts as worse than all, and nothing lies between.
        missing = np.isnan(own.curves).any()
        low, middle, high = np.quantile(
            np.where(np.isnan(own.curves), -np.inf, own.curves),
            [0.25, 0.5, 0.75],
            axis=0,
            method="nearest" if missing else "linear",
        )
        band = own.method in _ALWAYS  # more than a few would hide each other
        curves.append(Curve(label, low, middle, high, styles.get(label), band))
    bars = [
        Bar(label, *quartiles(own.heldout), tuple(own.heldout.tolist()), styles.get(label))
        for label, own in runs.items()
    ]
    bars.sort(key=lambda b: -b.middle if math.isfinite(b.middle) else math.inf)
    shown: list[tuple[str, int | None]] = list(styles.items())
    if len(runs) > len(styles):
        shown.append(("other methods", None))
    target = TARGETS.get(line["env_id"])
    seeds = sorted({len(own.seeds) for own in runs.values()})
    count = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return (
        f'<section id="{anchor}"><h2>{_escape(title)}</h2>'
        f"<p>{line['parameters']} parameters, {key.episodes} episodes an evaluation, "
        f"{key.warmup} shared warm-up policies, {count} seeds."
        + ("" if target is None else f" Target: {number(target)} on the selection starts.")
        + '</p><div class="pair"><figure><figcaption>Best mean return so far on the selection '
        "starts: median; for some, the quartiles as a band</figcaption>"
        + learning_curves(curves, key.warmup, f"Learning curves, {title}", "best mean return")
        + legend(shown)
        + "</figure><figure><figcaption>Held-out mean return of the best policy: each seed, "
        "quartiles, median</figcaption>"
        + heldout_bars(bars, f"Held-out scores, {title}")
        + "</figure></div>"
        + _table(_HEAD, [_row(own) for own in runs.values()])
        + "</section>"
    )


def _styles(runs: Mapping[str, Runs]) -> dict[str, int]:
    """Choose what is drawn in colour: some methods always and in their own, then the best."""
    fixed = {label: _ALWAYS.index(o.method) for label, o in runs.items() if o.method in _ALWAYS}
    rest = [label for label in runs if label not in fixed]
    rest.sort(key=lambda label: -float(np.median(runs[label].heldout)))
    free = [i for i in range(_CURVES) if i >= len(_ALWAYS) or i not in fixed.values()]
    styles = {**fixed, **dict(zip(rest, sorted(free, reverse=True), strict=False))}
    return {label: styles[label] for label in runs if label in styles}


@dataclass(frozen=True)
class _Value:
    """A table's cell: what is shown, and what it is sorted by."""

    text: str
    key: float | str
    strong: bool = False


_HEAD = (
    ("method", False),
    ("held-out return", True),
    ("selection return", True),
    ("target reached", True),
    ("evaluations to target", True),
    ("episodes a run", True),
    ("requests a run", True),
    ("prompt tokens", True),
    ("answer tokens", True),
    ("cost a run", True),
    ("seconds proposing", True),
    ("fallback", True),
)


def _row(runs: Runs) -> list[_Value]:
    low, middle, high = quartiles(runs.heldout)
    first, selection, third = quartiles(
        [
            -math.inf if line["selection"] is None else line["selection"]
            for line in runs.lines.values()
        ]
    )
    reached = [t for t in runs.to_target if math.isfinite(t)]
    has_target = not any(math.isnan(t) for t in runs.to_target)
    median = float(np.median(runs.to_target)) if has_target else math.nan
    entry = METHODS.get(runs.method)
    asks = entry is not None and entry.asks_model
    cost = runs.cost
    share = runs.fallback_share if asks else None
    none = _Value("–", math.inf)

    def model(value: float) -> _Value:
        return _Value(f"{value:,.0f}", value) if asks else _Value("–", 0.0)

    return [
        _Value(runs.label, runs.label.lower()),
        _Value(f"{number(middle)} [{number(low)}, {number(high)}]", middle),
        _Value(f"{number(selection)} [{number(first)}, {number(third)}]", selection),
        _Value(f"{len(reached)} of {len(runs.lines)}", len(reached) / len(runs.lines))
        if has_target
        else none,
        _Value("never" if math.isinf(median) else f"{median:,.0f}", median) if has_target else none,
        _Value(f"{runs.mean('episodes'):,.0f}", runs.mean("episodes")),
        model(runs.mean("usage", "requests")),
        model(runs.mean("usage", "prompt_tokens")),
        model(runs.mean("usage", "completion_tokens")),
        _Value("–", 0.0)
        if not asks
        else _Value("unknown", math.inf)
        if cost is None
        else _Value(
            "free" if cost == 0 else f"${cost / len(runs.lines):.4f}", cost / len(runs.lines)
        ),
        _Value(number(runs.mean("seconds", "proposing")), runs.mean("seconds", "proposing")),
        none if share is None else _Value(f"{100 * share:.1f} %", share),
    ]


def _table(head: Sequence[tuple[str, bool]], rows: Sequence[Sequence[_Value]]) -> str:
    cells = "".join(
        f'<th scope="col"{" class=n" if numeric else ""}><button>{_escape(name)}</button></th>'
        for name, numeric in head
    )
    body = []
    for row in rows:
        line = []
        for value, (_, numeric) in zip(row, head, strict=True):
            key = value.key
            if isinstance(key, float) and not math.isfinite(key):
                key = 1e300 if key > 0 else -1e300 if key < 0 else 0.0
            shown = _escape(value.text)
            shown = f"<b>{shown}</b>" if value.strong else shown
            kind = " class=n" if numeric else ""
            line.append(f'<td{kind} data-v="{_escape(str(key))}">{shown}</td>')
        body.append(f"<tr>{''.join(line)}</tr>")
    return (
        f'<div class="wide"><table><thead><tr>{cells}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _overall(grouped: Grouped) -> str:
    if len(grouped) < 2:
        return ""
    compared = compare(grouped)
    labels = list(compared.mean_rank)
    if not labels:
        return ""
    labels.sort(key=compared.mean_rank.__getitem__)
    head = [("method", False), ("mean rank", True), ("IQM of normalized scores", True)]
    head += [(problem_title(key, grouped[key]), True) for key in compared.problems]
    rows = []
    for label in labels:
        low, high = compared.interval[label]
        row = [
            _Value(label, label.lower()),
            _Value(f"{compared.mean_rank[label]:.2f}", compared.mean_rank[label]),
            _Value(format_interval(compared.iqm[label], low, high), compared.iqm[label]),
        ]
        for key in compared.problems:
            rank = compared.rank_by_problem[label].get(key, math.nan)
            row.append(_Value("–" if math.isnan(rank) else f"{rank:.1f}", rank))
        rows.append(row)
    return (
        '<section id="overall"><h2>Overall</h2>'
        f"<p>Ranks of the {len(labels)} methods that took part in every problem, on "
        f"{compared.instances} instances (problem and seed); 1 is best. Normalized scores: 0 is "
        "random search's median, 1 the best method's median; IQM is the mean of the middle half, "
        "with a 95&nbsp;% bootstrap interval.</p>"
        + _table(head, rows)
        + _duels(grouped)
        + "</section>"
    )


def _duels(grouped: Grouped) -> str:
    model = first_model(grouped)
    if model is None:
        return ""
    rows = [
        [
            _Value(d.label, d.label.lower()),
            _Value(str(d.wins), d.wins),
            _Value(str(d.ties), d.ties),
            _Value(str(d.losses), d.losses),
            _Value(format_p(d.p), d.p),
            _Value(format_p(d.adjusted), d.adjusted),
        ]
        for d in duels(grouped, model)
    ]
    head = [("against", False), *((n, True) for n in ("wins", "ties", "losses", "p", "p (Holm)"))]
    return (
        f"<h3>{_escape(model)}: wins and losses</h3>"
        "<p>Pairs of runs from the same seed of the same problem, by held-out score; two-sided "
        "Wilcoxon signed-rank test of the differences, each problem's in units of its spread.</p>"
        + _table(head, rows)
    )


def _films(grouped: Grouped, gif: Gif) -> str:
    """Show the best policy of each task, and the model's own where it is another."""
    shown: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    best: dict[tuple[str, str], tuple[float, str, Mapping[str, Any]]] = {}
    for runs in grouped.values():
        for own in runs.values():
            kinds = ["any"] + (["model"] if group_of(own) == "model" else [])
            for line in own.lines.values():
                if line["heldout"] is None:
                    continue
                for kind in kinds:
                    at = best.get((line["env_id"], kind))
                    if at is None or line["heldout"] > at[0]:
                        best[line["env_id"], kind] = (line["heldout"], own.label, line)
    for (env_id, _), (_, label, line) in best.items():
        known = shown.setdefault(env_id, [])
        if all(line is not other for _, other in known):
            known.append((label, line))
    figures = []
    for env_id, chosen in shown.items():
        for label, line in chosen:
            picture = gif(line)
            if picture is None:
                continue
            data = base64.b64encode(picture).decode()
            text = f"{env_id}: {label}, held-out {number(line['heldout'])}"
            figures.append(
                f'<figure><img loading="lazy" alt="{_escape(text)}" '
                f'src="data:image/gif;base64,{data}"><figcaption>{_escape(text)}</figcaption></figure>'
            )
    if not figures:
        return ""
    return (
        '<section id="films"><h2>Best policies</h2><p>One held-out episode of the best policy of '
        "each environment, and of the model's best where that is another.</p>"
        f'<div class="films">{"".join(figures)}</div></section>'
    )


def _explanations(grouped: Grouped) -> str:
    parts = []
    for key, runs in grouped.items():
        for label, own in runs.items():
            said = [(s, line) for s, line in sorted(own.lines.items()) if line["explanations"]]
            if not said:
                continue
            seed, line = said[0]
            notes = line["explanations"]
            step = max(1, -(-len(notes) // _SAID))
            items = "".join(
                f"<li><b>{index + 1}</b> ({_return_of(line, index)}) {_escape(text)}</li>"
                for index, text in notes[::step]
            )
            title = _escape(problem_title(key, runs))
            parts.append(
                f"<details><summary>{_escape(label)}, {title}, seed {seed}: "
                f"{len(notes)} explanations</summary><ol class=said>{items}</ol></details>"
            )
    if not parts:
        return ""
    return (
        '<section id="said"><h2>What the model said</h2><p>The model\'s own words with its '
        "proposals over one run: the number of the proposal, its mean return, the "
        f"explanation (at most {_SAID} of a run, evenly spread).</p>{''.join(parts)}</section>"
    )


def _return_of(line: Mapping[str, Any], index: int) -> str:
    mean = line["means"][line["cell"]["warmup"] + index]
    return "failed" if mean is None else number(mean)


def _escape(text: str) -> str:
    return html.escape(text, quote=True)


_STYLE = """
:root{color-scheme:light}
*{box-sizing:border-box}
body{margin:0;background:#f6f7f8;color:#22262a;font:15px/1.5 system-ui,sans-serif}
main{max-width:1360px;margin:0 auto;padding:20px 16px 48px}
h1{font-size:26px;margin:8px 0}h2{font-size:19px;margin:0 0 6px}h3{font-size:16px;margin:20px 0 4px}
p{margin:4px 0 12px;max-width:80ch;color:#4a5056}
nav{display:flex;flex-wrap:wrap;gap:6px;margin:12px 0 20px}
nav a{background:#fff;border:1px solid #d9dde1;border-radius:14px;padding:2px 11px;font-size:13px}
a{color:#0b5cad;text-decoration:none}a:hover{text-decoration:underline}
section{background:#fff;border:1px solid #e1e4e7;border-radius:8px;padding:16px 18px;
margin:0 0 20px}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:8px 24px}
figure{margin:0;min-width:0}figcaption{font-size:13px;color:#5b6269;margin:2px 0 4px}
svg{display:block;width:100%;height:auto;max-width:640px}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:13px;margin:4px 0 8px}
.legend svg{display:inline-block;width:30px;vertical-align:middle}
.wide{overflow-x:auto;margin:12px 0 2px}
table{border-collapse:collapse;font-size:13px;min-width:100%}
th,td{padding:4px 8px;text-align:left;border-bottom:1px solid #eceef0;white-space:nowrap}
th{border-bottom:2px solid #cfd4d8;vertical-align:bottom;white-space:normal;min-width:70px}
th:first-child{min-width:170px}
th:first-child,td:first-child{position:sticky;left:0;background:#fff}
.n{text-align:right;font-variant-numeric:tabular-nums}
tbody tr:hover td{background:#f1f6fb}
th button{all:unset;cursor:pointer;font-weight:600}
th button:hover,th button:focus-visible{color:#0b5cad;text-decoration:underline}
th[aria-sort=ascending] button:after{content:" ▲";font-size:9px}
th[aria-sort=descending] button:after{content:" ▼";font-size:9px}
.films{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,250px),1fr));gap:18px}
.films img{width:100%;max-width:320px;border:1px solid #e1e4e7;border-radius:4px;display:block}
details{margin:6px 0}summary{cursor:pointer;font-weight:600}
.said{list-style:none;padding:0;margin:6px 0;font-size:13px}
.said li{padding:4px 0;border-bottom:1px solid #eceef0;overflow-wrap:anywhere}
footer{color:#6b7178;font-size:13px}
@media(max-width:600px){section{padding:12px 10px}main{padding:12px 8px 32px}
th:first-child,td:first-child{max-width:150px;min-width:120px;white-space:normal}}
"""

_SCRIPT = """
document.querySelectorAll("th button").forEach(function(button){
  button.addEventListener("click",function(){
    var th=button.parentNode,row=th.parentNode,body=row.parentNode.parentNode.tBodies[0];
    var index=Array.prototype.indexOf.call(row.cells,th);
    var numeric=th.classList.contains("n");
    var up=th.hasAttribute("aria-sort")?th.getAttribute("aria-sort")!=="ascending":!numeric;
    Array.prototype.forEach.call(row.cells,function(c){c.removeAttribute("aria-sort")});
    th.setAttribute("aria-sort",up?"ascending":"descending");
    Array.prototype.slice.call(body.rows).sort(function(a,b){
      var x=a.cells[index].dataset.v,y=b.cells[index].dataset.v;
      var d=numeric?x-y:x.localeCompare(y);
      return up?d:-d;
    }).forEach(function(tr){body.appendChild(tr)});
  });
});
"""
