"""The web page of a benchmark: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import html
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmopt._version import __version__
from llmopt.benchmarks.methods.table import METHODS
from llmopt.benchmarks.report.charts import (
    Bar,
    Curve,
    heldout_bars,
    learning_curves,
    legend,
    number,
)
from llmopt.benchmarks.report.stats import (
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
    notes,
    quartiles,
    titles,
)
from llmopt.benchmarks.tasks.targets import TARGETS
from llmopt.errors import LLMOptError

_CURVES = 6  # methods drawn in colour; the others are grey
_SAID = 40  # explanations shown of one run
_SAMPLERS = {
    "llm-columns": "columns-gaussian",
    "llm-levels": "levels-uniform",
    "llm-pattern": "pattern-uniform",
}

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
    named = titles(grouped)
    model = first_model(grouped)
    always = _in_colour(grouped, model)
    sections = [
        _problem(key, runs, names[key], named[key], always) for key, runs in grouped.items()
    ]
    films = _films(grouped, gif) if gif else ""
    said = _explanations(grouped, named)
    links = ['<a href="#overall">Overall</a>'] if len(grouped) > 1 else []
    links += [f'<a href="#{names[key]}">{_escape(title)}</a>' for key, title in named.items()]
    links += ['<a href="#films">Best policies</a>'] if films else []
    links += ['<a href="#said">What the model said</a>'] if said else []
    known = "".join(f"<p>{_escape(note)}</p>" for note in notes(grouped))
    known = f'<div class="notes">{known}</div>' if known else ""
    seeds = sum(len(r.seeds) for runs in grouped.values() for r in runs.values())
    versions = sorted({f"{k} {v}" for line in lines for k, v in line["versions"].items()})
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>llmopt benchmark</title><style>{_STYLE}</style></head><body><main>"
        "<h1>llmopt benchmark</h1>"
        f"<p>{seeds:,} runs on {len(grouped)} {'problem' if len(grouped) == 1 else 'problems'}. "
        "A run's score is its <b>held-out return</b>: the mean return of its best policy on starts "
        "that no search saw. All methods of a problem have the same box, the same warm-up "
        "policies, the same number of evaluations and, for a seed, the same starts. Numbers are "
        "medians over seeds with the quartiles in brackets. “No model”: something else "
        "draws what the model's prompt allows; what a model adds is what it finds beyond that.</p>"
        + known
        + _key()
        + f"<nav>{''.join(links)}</nav>"
        + _overall(grouped)
        + "".join(sections)
        + films
        + said
        + f"<footer>Made by llmopt {__version__} from raw results written with "
        f"{_escape(', '.join(versions))}.</footer>"
        f"</main><script>{_SCRIPT}</script></body></html>\n"
    )


def _problem(
    key: ProblemKey, runs: Mapping[str, Runs], anchor: str, title: str, always: Sequence[str]
) -> str:
    line = any_line(runs)
    styles = _styles(runs, always)
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
        band = label in always  # more than a few would hide each other
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
        f"<p>{line['parameters']} parameters, {key.episodes} "
        f"{'episode' if key.episodes == 1 else 'episodes'} an evaluation, "
        f"{key.warmup} shared warm-up policies, {count} seeds, {key.heldout} held-out starts."
        + ("" if target is None else f" Target: {number(target)} on the selection starts.")
        + '</p><div class="pair"><figure><figcaption>Best mean return so far on the selection '
        "starts: median; for some, the quartiles as a band</figcaption>"
        + learning_curves(curves, key.warmup, f"Learning curves, {title}", "best mean return")
        + legend(shown)
        + "</figure><figure><figcaption>Held-out mean return of the best policy: a dot for each "
        "seed (◂ for those further left), the quartiles, the median</figcaption>"
        + heldout_bars(bars, f"Held-out scores, {title}")
        + "</figure></div>"
        + _table(*_without_failed([_row(own) for own in runs.values()]), _HINTS)
        + "</section>"
    )


def _in_colour(grouped: Grouped, model: str | None) -> tuple[str, ...]:
    """Choose the labels that have the same colour on every problem."""
    labels = {label: own for runs in grouped.values() for label, own in runs.items()}
    first = [] if model is None else [model]
    sampler = _SAMPLERS.get(labels[model].method if model else "", "levels-uniform")
    for method in (sampler, "cma", "random"):
        first += [label for label, own in labels.items() if own.method == method][:1]
    return tuple(first)


def _styles(runs: Mapping[str, Runs], always: Sequence[str]) -> dict[str, int]:
    """Choose what is drawn in colour: some methods always and in their own, then the best."""
    fixed = {label: always.index(label) for label in runs if label in always}
    rest = [label for label in runs if label not in fixed]
    rest.sort(key=lambda label: -float(np.median(runs[label].heldout)))
    styles = {**fixed, **dict(zip(rest, range(len(always), _CURVES), strict=False))}
    return {label: styles[label] for label in runs if label in styles}


def _without_failed(
    rows: list[list[_Value]],
) -> tuple[Sequence[tuple[str, bool]], list[list[_Value]]]:
    """Leave out the last column where nothing failed."""
    if any(row[-1].key for row in rows):
        return _HEAD, rows
    return _HEAD[:-1], [row[:-1] for row in rows]


@dataclass(frozen=True)
class _Value:
    """A table's cell: what is shown, and what it is sorted by."""

    text: str
    key: float | str
    strong: bool = False


_COLUMNS = (
    ("method", "who searched; “no model”: something else draws what the model's prompt allows"),
    (
        "held-out return",
        "mean return of the best policy on starts that no search saw, median over seeds "
        "[quartiles]: the score",
    ),
    (
        "selection return",
        "mean return of the same policy on the starts that chose it, which flatters it: for "
        "comparison only",
    ),
    ("target reached", "seeds whose best policy reached the target on the selection starts"),
    (
        "evaluations to target",
        "policies evaluated until then, warm-up included, median over seeds; “> N” where half of "
        "the seeds or more never did",
    ),
    ("episodes a run", "selection episodes, warm-up included, mean over seeds"),
    ("requests a run", "calls sent to the model, mean over seeds"),
    ("prompt tokens", "tokens sent to the model in a run, mean over seeds"),
    ("answer tokens", "tokens that the model wrote in a run, mean over seeds"),
    ("cost a run", "US dollars by list prices, mean over seeds; “unknown” where there is no price"),
    ("seconds proposing", "seconds of a run not spent in episodes, mean over seeds"),
    (
        "fallback",
        "share of the points that the model did not deliver and that were drawn at random in its "
        "place",
    ),
    ("failed", "evaluations of all seeds that had no return; shown where there are any"),
)
_HEAD = tuple((name, name != "method") for name, _ in _COLUMNS)
_HINTS = dict(_COLUMNS)


def _key() -> str:
    """Explain the columns, for readers whose pointer cannot rest on them."""
    words = "".join(f"<dt>{_escape(n)}</dt><dd>{_escape(hint)}</dd>" for n, hint in _COLUMNS)
    return (
        "<details><summary>What the columns mean</summary>"
        f"<dl>{words}</dl><p>A press on a column's head sorts by it.</p></details>"
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
    share = runs.fallback_share
    points = runs.problem.evaluations + runs.problem.warmup
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
        _Value(f"> {points:,}" if math.isinf(median) else f"{median:,.0f}", median)
        if has_target
        else none,
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
        _Value(f"{runs.total('failures'):,.0f}", runs.total("failures")),
    ]


def _table(
    head: Sequence[tuple[str, bool]],
    rows: Sequence[Sequence[_Value]],
    hints: Mapping[str, str] | None = None,
) -> str:
    def title(name: str) -> str:
        return f' title="{_escape(hints[name])}"' if hints and name in hints else ""

    cells = "".join(
        f'<th scope="col"{" class=n" if numeric else ""}{title(name)}>'
        f"<button>{_breakable(name)}</button></th>"
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
    named = titles(grouped)
    labels = sorted(compared.labels, key=compared.mean_rank.__getitem__)
    head = [("method", False), ("mean rank", True), ("IQM of normalized scores", True)]
    head += [(named[key], True) for key in compared.problems]
    rows = []
    for label in labels:
        low, high = compared.interval[label]
        row = [
            _Value(label, label.lower()),
            _Value(f"{compared.mean_rank[label]:.2f}", compared.mean_rank[label]),
            _Value(format_interval(compared.iqm[label], low, high), compared.iqm[label]),
        ]
        for key in compared.problems:
            rank = compared.rank_by_problem[label][key]
            row.append(_Value(f"{rank:.1f}", rank))
        rows.append(row)
    left = f" Methods left out: {', '.join(compared.absent)}." if compared.absent else ""
    if compared.dropped:
        left += f" Problems left out: {'; '.join(named[key] for key in compared.dropped)}."
    table = (
        "<h3>Ranks</h3>"
        f"<p>Mean rank of the {len(labels)} methods that took part in each of these problems, on "
        f"the {compared.instances} instances (problem and seed) that all of them have finished; 1 "
        "is best, and a problem with more seeds weighs more. Normalized scores: 0 is random "
        "search's median, 1 the best method's median, cut to −1 to 2; IQM is the mean of the "
        "middle half (interquartile mean), with a 95&nbsp;% bootstrap interval over seeds."
        f"{_escape(left)}</p>" + _table(head, rows)
        if len(labels) > 1
        else "<p>No ranks: no two methods have finished the same seed on all of the problems.</p>"
    )
    return f'<section id="overall"><h2>Overall</h2>{table}{_duels(grouped)}</section>'


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
        f"<p>How often {_escape(model)} was better (wins) or worse (losses) than the other method "
        "in pairs of runs from the same seed of the same problem, by held-out score. p: two-sided "
        "Wilcoxon signed-rank test of the differences, each problem's in units of its spread, as "
        "it is, and after Holm's correction for the number of rows.</p>" + _table(head, rows)
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
        "each environment, and of the model's best where that is another: the best of all runs, "
        "not a typical one.</p>"
        f'<div class="films">{"".join(figures)}</div></section>'
    )


def _explanations(grouped: Grouped, named: Mapping[ProblemKey, str]) -> str:
    parts = []
    silent: dict[str, None] = {}
    for key, runs in grouped.items():
        for label, own in runs.items():
            said = [(s, line) for s, line in sorted(own.lines.items()) if line["explanations"]]
            if not said:
                if group_of(own) == "model":
                    silent[label] = None
                continue
            seed, line = said[0]
            texts = line["explanations"]
            step = max(1, -(-len(texts) // _SAID))
            items = "".join(
                f"<li><b>{index + 1}</b> ({_return_of(line, index)}) {_escape(text)}</li>"
                for index, text in texts[::step]
            )
            parts.append(
                f"<details><summary>{_escape(label)}, {_escape(named[key])}, seed {seed}: "
                f"{len(texts)} explanations</summary><ol class=said>{items}</ol></details>"
            )
    if not parts and not silent:
        return ""
    text = (
        "<p>The model's own words with its proposals over one run: the number of the proposal, "
        f"its mean return, the explanation (at most {_SAID} of a run, evenly spread).</p>"
        if parts
        else ""
    )
    if silent:
        text += (
            f"<p>{_escape(', '.join(silent))}: no words on {'some' if parts else 'any'} of the "
            "problems. A prompt that asks for numbers alone gets numbers alone.</p>"
        )
    return f'<section id="said"><h2>What the model said</h2>{text}{"".join(parts)}</section>'


def _return_of(line: Mapping[str, Any], index: int) -> str:
    mean = line["means"][line["cell"]["warmup"] + index]
    return "failed" if mean is None else number(mean)


def _breakable(text: str) -> str:
    """Return text that may be broken within a long name, such as an environment's."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "<wbr>", _escape(text))


def _escape(text: str) -> str:
    return html.escape(text, quote=True)


_STYLE = """
:root{color-scheme:light dark;--page:#f6f7f8;--card:#fff;--ink:#22262a;--soft:#4a5056;
--faint:#666c73;--line:#e1e4e7;--strong:#cfd4d8;--link:#0b5cad;--hover:#f1f6fb;--shade:#eef0f2;
--note:#fff6e0;--edge:#e8cf8f}
@media(prefers-color-scheme:dark){:root{--page:#15181b;--card:#1d2125;--ink:#e4e7ea;--soft:#b9bfc5;
--faint:#9aa1a8;--line:#32383e;--strong:#4a5259;--link:#79b8f3;--hover:#27303a;--shade:#282d32;
--note:#332b17;--edge:#6b5a2a}
figure svg,.legend svg{filter:brightness(1.3)}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif;
-webkit-text-size-adjust:100%}
main{max-width:1360px;margin:0 auto;padding:20px 16px 48px}
h1{font-size:26px;margin:8px 0}h2{font-size:19px;margin:0 0 6px}h3{font-size:16px;margin:20px 0 4px}
p{margin:4px 0 12px;max-width:88ch;color:var(--soft);overflow-wrap:break-word}
nav{display:flex;flex-wrap:wrap;gap:6px;margin:12px 0 20px}
nav a{background:var(--card);border:1px solid var(--strong);border-radius:14px;padding:2px 11px;
font-size:13px}
a{color:var(--link);text-decoration:none}a:hover{text-decoration:underline}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:16px 18px;
margin:0 0 20px}
.notes{background:var(--note);border:1px solid var(--edge);border-radius:8px;padding:8px 14px;
margin:0 0 12px;font-size:13px}
.notes p{margin:4px 0;max-width:none}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;font-size:13px;margin:6px 0}
dt{font-weight:600}dd{margin:0;color:var(--soft)}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:8px 24px}
figure{margin:0;min-width:0}figcaption{font-size:13px;color:var(--faint);margin:2px 0 4px}
svg{display:block;width:100%;height:auto;max-width:580px}
svg text{fill:var(--ink)}.grid{stroke:var(--line)}.shade{fill:var(--shade)}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:13px;margin:4px 0 8px}
.legend svg{display:inline-block;width:30px;vertical-align:middle}
.wide{overflow-x:auto;margin:12px 0 2px}
table{border-collapse:collapse;font-size:13px;min-width:100%}
th,td{padding:4px 8px;text-align:left;border-bottom:1px solid var(--line);white-space:nowrap}
th{border-bottom:2px solid var(--strong);vertical-align:bottom;white-space:normal;min-width:70px}
th:first-child{min-width:196px}
td:first-child{max-width:200px;white-space:normal}
th:first-child,td:first-child{position:sticky;left:0;background:var(--card)}
.n{text-align:right;font-variant-numeric:tabular-nums}
tbody tr:hover td{background:var(--hover)}
th button{all:unset;cursor:pointer;font-weight:600}
th button:hover,th button:focus-visible{color:var(--link);text-decoration:underline}
th[aria-sort=ascending] button:after{content:" ▲";font-size:9px}
th[aria-sort=descending] button:after{content:" ▼";font-size:9px}
.films{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,250px),1fr));gap:18px}
.films img{width:100%;max-width:320px;border:1px solid var(--line);border-radius:4px;display:block}
details{margin:6px 0}summary{cursor:pointer;font-weight:600}
.said{list-style:none;padding:0;margin:6px 0;font-size:13px}
.said li{padding:4px 0;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
footer{color:var(--faint);font-size:13px}
@media(min-width:700px){svg text{font-size:11px}}
@media(max-width:600px){section{padding:12px 10px}main{padding:12px 8px 32px}
dl{grid-template-columns:1fr}dd{margin:0 0 6px}
th:first-child,td:first-child{max-width:130px;min-width:110px;white-space:normal}}
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
