"""Prompts for a small model, each beside its ablations: functions to choose by, and to report.

Question: what does the model add to the frame and to the selection of elites? Protocol:
Zakharov, discus, sum of different powers and Styblinski-Tang in 3 and 10 dimensions on
[-5, 5], the optimum shifted by U(-3, 3) and, but for the last, rotated. These are functions to
choose strategies by: no other benchmark of this project reports them. `HELD_OUT` has eight more,
which `mixed_spaces` rotates. 20 uniform warm-up
points, shared by all methods of a seed, then 100 evaluations; the best value of all counts
(the optimum is 0). The variants:

- ``levels``, ``pattern``: the shipped prompts;
- ``... shuffled rewards``: the same, asked with the rewards of the history exchanged;
- ``... shuffled order``: the same, the elites listed in random order (under ``columns`` the slope
  still follows it);
- ``... uniform``, ``... Gaussian``: the same frame and grammar, drawn from with no model;
- ``levels, plain axes`` and ``levels, 20 elites``: one option changed, with the samplers;
- ``columns``: the prompt of the embedded model and its adapter, and the same drawn from by a
  small network that was trained on such lines (``columns, network``), by normal draws of 0.7
  standard deviations (``columns, narrow``), and by normal draws that lean along the slope which
  the prompt shows (``columns, slope``);
- ``hybrid``, ``columns + CMA-ES``: `levels` and `columns` beside CMA-ES, with the samplers.

Runtime: about 15 s for a cell of the model at 3 dimensions and 45 s at 10, on one core.

    python -m llmopt.benchmarks.experiments.strategies --seeds 2 --jobs 2

Each finished cell is a line of ``strategies.jsonl`` and
is not run again; the table ``strategies.md`` is made from that file alone (``--table-only``).
"""

from __future__ import annotations

import argparse
import functools
import itertools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llmopt._version import __version__
from llmopt.benchmarks.methods.grammar_clients import (
    GaussianGrammarClient,
    NarrowGrammarClient,
    NetworkClient,
    SlopeGrammarClient,
    UniformGrammarClient,
)
from llmopt.benchmarks.methods.model import ModelMethod, ShuffledRewards
from llmopt.benchmarks.methods.protocol import Method, Problem
from llmopt.benchmarks.methods.table import make_method
from llmopt.benchmarks.pool import cell_reader, run_pool
from llmopt.benchmarks.report.stats import paired_test, ranks
from llmopt.client.base import Client
from llmopt.client.registry import get_client
from llmopt.prompt import Prompt, get_prompt
from llmopt.search.eventlog import EventLog, read_events
from llmopt.search.scheduler import Partner

RESULTS = Path(__file__).parents[1] / "results"
DIMENSIONS = (3, 10)
WARMUP, BUDGET, BATCH = 20, 100, 4
SHIFT, BOUND = 3.0, 5.0
_STANG_AT, _STANG_LOW = 2.903534, 39.16616570


def _zakharov(z: np.ndarray) -> float:
    line = float((0.5 * np.arange(1, len(z) + 1) * z).sum())
    return float(z @ z) + line**2 + line**4


def _discus(z: np.ndarray) -> float:
    return float(100 * z[0] ** 2 + z[1:] @ z[1:])


def _powers(z: np.ndarray) -> float:
    return float((np.abs(z) ** np.linspace(2, 6, len(z))).sum())


def _styblinski_tang(z: np.ndarray) -> float:
    z = z - _STANG_AT
    return float((0.5 * (z**4 - 16 * z**2 + 5 * z)).sum()) + _STANG_LOW * len(z)


FUNCTIONS: Mapping[str, Callable[[np.ndarray], float]] = {
    "zakharov": _zakharov,
    "discus": _discus,
    "powers": _powers,
    "styblinski-tang": _styblinski_tang,
}


def _sphere(z: np.ndarray) -> float:
    return float(z @ z)


def _ellipsoid(z: np.ndarray) -> float:
    return float((10 ** np.linspace(0, 6, len(z)) * z**2).sum())


def _rosenbrock(z: np.ndarray) -> float:
    z = z + 1
    return float((100 * (z[1:] - z[:-1] ** 2) ** 2 + (1 - z[:-1]) ** 2).sum())


def _rastrigin(z: np.ndarray) -> float:
    return float((z**2 + 10 - 10 * np.cos(2 * np.pi * z)).sum())


def _ackley(z: np.ndarray) -> float:
    size = np.sqrt(np.mean(z**2))
    return float(20 + np.e - 20 * np.exp(-0.2 * size) - np.exp(np.mean(np.cos(2 * np.pi * z))))


def _levy(z: np.ndarray) -> float:
    w = 1 + z / 4
    middle = ((w[:-1] - 1) ** 2 * (1 + 10 * np.sin(np.pi * w[:-1] + 1) ** 2)).sum()
    last = (w[-1] - 1) ** 2 * (1 + np.sin(2 * np.pi * w[-1]) ** 2)
    return float(np.sin(np.pi * w[0]) ** 2 + middle + last)


def _griewank(z: np.ndarray) -> float:
    z = 20 * z  # from [-5, 5] to a part of the usual [-600, 600] with slopes and ripples
    waves = np.cos(z / np.sqrt(np.arange(1, len(z) + 1))).prod()
    return float((z**2).sum() / 4000 - waves + 1)


_SCHWEFEL_AT, _SCHWEFEL_LOW = 420.968746, 418.9828872724338


def _schwefel(z: np.ndarray) -> float:
    z = 100 * z + _SCHWEFEL_AT
    # Beyond the usual box there are lower values: the walls of BBOB's version keep them out.
    inside = z.clip(-500, 500)
    walls = ((z - inside) ** 2).sum() / 100
    value = (_SCHWEFEL_LOW - inside * np.sin(np.sqrt(np.abs(inside)))).sum()
    return float(max(value, 0.0) + walls)


HELD_OUT: Mapping[str, Callable[[np.ndarray], float]] = {
    "sphere": _sphere,
    "ellipsoid": _ellipsoid,
    "rosenbrock": _rosenbrock,
    "rastrigin": _rastrigin,
    "ackley": _ackley,
    "levy": _levy,
    "griewank": _griewank,
    "schwefel": _schwefel,
}

ALL = {**FUNCTIONS, **HELD_OUT}


@dataclass(frozen=True)
class Variant:
    """A way to propose points.

    Attributes:
        prompt: A shipped prompt's name; empty for a method of `methods.METHODS`.
        options: Its options.
        sampler: ``""`` for the model, else a name of the samplers without one.
        shuffled: Whether the rewards are exchanged before the prompt is made.
        partner: See `LLMOptimizer`.
        method: Name of a method that asks no model.
    """

    prompt: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    sampler: str = ""
    shuffled: bool = False
    partner: Partner | None = None
    method: str = ""


_SAMPLERS: Mapping[str, Callable[[], Client]] = {
    "uniform": UniformGrammarClient,
    "gaussian": GaussianGrammarClient,
    "narrow": NarrowGrammarClient,
    "slope": SlopeGrammarClient,
    "network": NetworkClient,
}


def _with_samplers(
    name: str, prompt: str, partner: Partner | None = None, **options: Any
) -> dict[str, Variant]:
    return {
        name: Variant(prompt, options, partner=partner),
        f"{name}, uniform": Variant(prompt, options, "uniform", partner=partner),
        f"{name}, Gaussian": Variant(prompt, options, "gaussian", partner=partner),
    }


VARIANTS: Mapping[str, Variant] = {
    **_with_samplers("levels", "levels"),
    "levels, shuffled rewards": Variant("levels", shuffled=True),
    "levels, shuffled order": Variant("levels", {"order": "shuffled"}),
    **_with_samplers("pattern", "pattern"),
    **_with_samplers("levels, plain axes", "levels", frame="elites"),
    **_with_samplers("levels, 20 elites", "levels", best=20),
    **_with_samplers("hybrid", "levels", "cma"),
    **_with_samplers("columns", "columns"),
    "columns, network": Variant("columns", sampler="network"),
    "columns, narrow": Variant("columns", sampler="narrow"),
    "columns, slope": Variant("columns", sampler="slope"),
    "columns, shuffled order": Variant("columns", {"order": "shuffled"}),
    "columns, shuffled rewards": Variant("columns", shuffled=True),
    **_with_samplers("columns + CMA-ES", "columns", "cma"),
    "columns + CMA-ES, network": Variant("columns", sampler="network", partner="cma"),
    "CMA-ES": Variant(method="cma"),
    "Optuna TPE": Variant(method="optuna-tpe"),
    "random": Variant(method="random"),
}


MAIN = "columns"
RIVALS = (
    "columns, uniform",
    "columns, Gaussian",
    "columns, narrow",
    "columns, slope",
    "columns, network",
    "columns, shuffled order",
    "columns, shuffled rewards",
    "columns + CMA-ES",
    "CMA-ES",
    "Optuna TPE",
    "random",
)


@dataclass(frozen=True)
class StrategyCell:
    """One run: which variant, on which function, from which seed."""

    variant: str
    function: str
    dimension: int
    seed: int
    model: str = ""


def problem_of(cell: StrategyCell) -> tuple[Problem, Callable[[np.ndarray], float]]:
    """Return the problem, with its warm-up evaluated, and its reward."""
    place = list(ALL).index(cell.function)
    rng = np.random.default_rng([place, cell.dimension, cell.seed])
    shift = rng.uniform(-SHIFT, SHIFT, cell.dimension)
    rotation, _ = np.linalg.qr(rng.standard_normal((cell.dimension, cell.dimension)))
    if cell.function == "styblinski-tang" or cell.function in HELD_OUT:
        rotation = np.eye(cell.dimension)
    function = ALL[cell.function]

    def reward(x: np.ndarray) -> float:
        return -function(rotation @ (np.asarray(x, dtype=float) - shift))

    points = rng.uniform(-BOUND, BOUND, (WARMUP, cell.dimension)).round(2)
    warmup = tuple((tuple(p.tolist()), reward(p)) for p in points)
    return Problem(-BOUND, BOUND, cell.dimension, BUDGET, warmup), reward


def run_cell(cell: StrategyCell) -> dict[str, Any]:
    """Run one cell and return its line."""
    problem, reward = problem_of(cell)
    method = _make(cell, problem)
    rewards = []
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(BUDGET):
            point = method.ask()
            rewards.append(reward(point))
            method.tell(point, rewards[-1])
    line = {
        **asdict(cell),
        "best": max(*rewards, *problem.rewards),
        "rewards": [float(f"{r:.5g}") for r in rewards],
        "seconds": round(time.perf_counter() - start, 2),
        "llmopt": __version__,
    }
    if isinstance(method, ModelMethod) and cell.model:
        usage = method.usage
        line["tokens"] = [usage.prompt_tokens, usage.completion_tokens]
        line["fallback_share"] = usage.fallback_share
    return line


def _make(cell: StrategyCell, problem: Problem) -> Method:
    variant = VARIANTS[cell.variant]
    seed = np.random.SeedSequence([77, cell.seed])
    if variant.method:
        return make_method(variant.method, problem, seed)
    prompt: Prompt = get_prompt(variant.prompt, **variant.options)
    if variant.shuffled:
        prompt = ShuffledRewards(prompt)
    client: Client
    if variant.sampler:
        client = _SAMPLERS[variant.sampler]()
    else:
        client = model_client(cell.model)
    return ModelMethod(problem, client, prompt, seed, BATCH, variant.partner)


@functools.cache
def model_client(name: str) -> Client:
    """Return the model, loaded once for each process."""
    local = name == "smollm2" or name.startswith("gguf:")
    return get_client(name, **({"threads": 1} if local else {}))


def make_table(lines: Sequence[dict[str, Any]], command: str) -> str:
    """Return the Markdown table.

    Ranks are taken among all variants on the instances that every one of them has finished.
    The paired test of a variant is against the model's variant of the same prompt and options,
    over the instances of both.
    """
    best = {(_key(line), line["variant"]): line["best"] for line in lines}
    variants = [v for v in VARIANTS if any(v == line["variant"] for line in lines)]
    keys = sorted({key for key, _ in best})
    shared = [key for key in keys if all((key, v) in best for v in variants)]
    places = np.array([ranks([best[key, v] for v in variants]) for key in shared])
    problems = sorted({key[:2] for key in keys}, key=lambda p: (p[1], p[0]))
    head = ["variant", "runs", "mean rank", *(f"{f} {d}" for f, d in problems)]
    head += ["s a proposal", "tokens a proposal", "worse than its model's in", "p"]
    text = [
        f"# Strategies on {len({f for f, _ in problems})} functions",
        "",
        f"Best of {WARMUP} + {BUDGET} evaluations (the optimum is 0), median over seeds. Ranks: "
        f"over the {len(shared)} instances that every variant has finished. The last columns: "
        "each ablation against the model's own variant, over the instances of both (Wilcoxon's "
        "signed-rank test on the logarithms of their values, two-sided).",
        "",
        f"```\n{command}\n```",
        "",
        f"| {' | '.join(head)} |",
        f"| {' | '.join(['---'] * len(head))} |",
    ]
    for place, variant in enumerate(variants):
        own = [line for line in lines if line["variant"] == variant]
        row = [variant, str(len(own)), f"{places[:, place].mean():.2f}" if shared else ""]
        for problem in problems:
            found = [line["best"] for line in own if _key(line)[:2] == problem]
            row.append(f"{np.median(found):.3g}" if found else "")
        asked = bool(own[0]["model"])
        row.append(f"{np.mean([line['seconds'] for line in own]) / BUDGET:.2f}" if asked else "")
        row.append(
            f"{np.mean([sum(line['tokens']) for line in own]) / BUDGET:.0f}" if asked else ""
        )
        row += _duel(best, keys, _model_variant(variant), variant)
        text.append(f"| {' | '.join(row)} |")
    return "\n".join([*text, *_by_function(best, keys, variants), ""])


def _by_function(
    best: Mapping[tuple[Any, str], float], keys: Sequence[Any], variants: Sequence[str]
) -> list[str]:
    """Return the table of `columns` against its rivals, each function by itself."""
    rivals = [v for v in variants if v in RIVALS]
    if MAIN not in variants or not rivals:
        return []
    text = [
        "",
        f"## `{MAIN}` against the others, function by function",
        "",
        "Instances in which it is better, of those of both; the p value of the same test.",
        "",
        f"| function | {' | '.join(rivals)} |",
        f"|{' --- |' * (len(rivals) + 1)}",
    ]
    for function in dict.fromkeys(key[0] for key in keys):
        own = [key for key in keys if key[0] == function]
        duels = [_duel(best, own, MAIN, rival) for rival in rivals]
        cells = [f"{better}, {p}" if better else "" for better, p in duels]
        text.append(f"| {function} | {' | '.join(cells)} |")
    return text


def _model_variant(variant: str) -> str:
    base, _, last = variant.rpartition(", ")
    ablation = last.lower() in _SAMPLERS or last.startswith("shuffled")
    return base if ablation else variant


def _duel(
    best: Mapping[tuple[Any, str], float], keys: Sequence[Any], model: str, ablation: str
) -> list[str]:
    both = [k for k in keys if (k, model) in best and (k, ablation) in best]
    if model == ablation or not both:
        return ["", ""]
    # Values differ by orders of magnitude: compare their logarithms.
    gains = [np.log(-best[k, ablation] + 1e-12) - np.log(-best[k, model] + 1e-12) for k in both]
    return [f"{sum(g > 0 for g in gains)} of {len(both)}", f"{paired_test(gains):.2g}"]


def _key(line: Mapping[str, Any]) -> tuple[str, int, int]:
    return line["function"], line["dimension"], line["seed"]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--dimensions", nargs="+", type=int, default=list(DIMENSIONS))
    parser.add_argument("--seeds", type=int, default=2, help="instances of each function")
    parser.add_argument("--model", default="smollm2", help="model string")
    parser.add_argument("--jobs", type=int, default=1, help="cells run at once")
    parser.add_argument("--results", type=Path, default=RESULTS / "strategies.jsonl")
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    args = parser.parse_args(argv)
    if not args.table_only:
        grid = itertools.product(range(args.seeds), args.dimensions, FUNCTIONS, args.variants)
        wanted = []
        for seed, dimension, function, name in grid:
            variant = VARIANTS[name]
            asked = args.model if variant.prompt and not variant.sampler else ""
            wanted.append(StrategyCell(name, function, dimension, seed, asked))
        run_pool(
            wanted, run_cell, EventLog(args.results), cell_reader(StrategyCell), jobs=args.jobs
        )
    command = "python -m llmopt.benchmarks.experiments.strategies --jobs 2"
    table = args.results.with_suffix(".md")
    table.write_text(make_table(list(read_events(args.results)), command), encoding="utf-8")
    print(f"wrote {table}")


if __name__ == "__main__":
    main()
