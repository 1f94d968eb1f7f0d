"""Spaces with numbers and categories: `columns` beside its ablations, `levels`, TPE, random search.

Question: what does the prompt `columns` find where some parameters are categorical, whose choices
it draws as the best trials have them? Protocol: the eight held-out functions of `strategies`,
shifted and rotated, of 3 numbers with one category of 4 choices and of 5 numbers with two
categories of 2 and 3. A choice multiplies the value by a factor, moves the optimum, and may add to
the value: one combination of choices holds the optimum, which is 0 but for a millionth of the
usual value. 20 warm-up points, shared by all methods of a seed, then 80 evaluations; the best value
counts. ``--set choosing`` has the four functions to choose by, which no table reports: the shape of
the draws was chosen by these, with the small network in the model's place, in other shapes.

Runtime: about 12 s for a cell of the model, on one core.

    python -m llmopt.benchmarks.experiments.mixed_spaces --jobs 2

Each finished cell is a line of ``mixed_spaces.jsonl`` and is not run again; the table
``mixed_spaces.md`` is made from that file alone (``--table-only``). The functions to choose by have
files of their own: no table mixes them with those that are reported.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from llmopt._version import __version__
from llmopt.benchmarks.experiments.strategies import (
    ALL,
    BOUND,
    FUNCTIONS,
    HELD_OUT,
    SHIFT,
    model_client,
)
from llmopt.benchmarks.methods.grammar_clients import (
    GaussianGrammarClient,
    NetworkClient,
    UniformGrammarClient,
)
from llmopt.benchmarks.methods.model import ShuffledRewards
from llmopt.benchmarks.pool import cell_reader, run_pool
from llmopt.benchmarks.report.stats import paired_test, ranks
from llmopt.client.base import Client
from llmopt.optimizer import LLMOptimizer
from llmopt.prompt import get_prompt
from llmopt.search.eventlog import EventLog, read_events
from llmopt.space import Categorical, Float, Space

RESULTS = Path(__file__).parents[1] / "results"
COMMAND = "python -m llmopt.benchmarks.experiments.mixed_spaces --jobs 2"
SHAPES = ((3, (4,)), (5, (2, 3)))
"""Numbers, and the choices of each category."""

SETS = {
    "held-out": (tuple(HELD_OUT), "mixed_spaces"),
    "choosing": (tuple(FUNCTIONS), "mixed_spaces_choosing"),
}
"""Names of functions, and of their results."""

WARMUP, BUDGET, BATCH = 20, 80, 4
Params = dict[str, Any]


@dataclass(frozen=True)
class MixedCell:
    """One run: which variant, on which function of which shape, from which seed."""

    variant: str
    function: str
    shape: int
    seed: int
    model: str = ""


def problem_of(cell: MixedCell) -> tuple[Space, Callable[[Params], float], list[Params]]:
    """Return the space, the value to be minimized, and the warm-up points."""
    n, counts = SHAPES[cell.shape]
    place = list(ALL).index(cell.function)
    rng = np.random.default_rng([41, place, cell.shape, cell.seed])
    shift = rng.uniform(-SHIFT, SHIFT, n)
    rotation, _ = np.linalg.qr(rng.standard_normal((n, n)))
    function = ALL[cell.function]
    usual = float(np.median([function(z) for z in rng.uniform(-BOUND, BOUND, (50, n)) - shift]))
    factors = [rng.normal(0, 1, k) for k in counts]
    added = [rng.random(k) * rng.choice([0, 0.02, 0.2]) for k in counts]
    moves = [rng.normal(0, 1, (k, n)) * rng.choice([0, 0.3, 1.0]) for k in counts]
    best = [int(np.argmin(f)) for f in factors]
    numbers = {f"x{i}": Float(-BOUND, BOUND) for i in range(n)}
    kinds = {f"c{j}": Categorical([f"k{q}" for q in range(k)]) for j, k in enumerate(counts)}
    space = Space({**numbers, **kinds})

    def value(params: Params) -> float:
        z = np.array([params[name] for name in numbers]) - shift
        factor, more = 1.0, 0.0
        for j, name in enumerate(kinds):
            choice = kinds[name].choices.index(params[name])
            z = z - (moves[j][choice] - moves[j][best[j]])
            factor *= float(np.exp(factors[j][choice] - factors[j][best[j]]))
            more += usual * float(added[j][choice]) * (choice != best[j])
        return (function(rotation @ z) + 1e-6 * usual) * factor + more

    warmup = [space.unflatten(space.sample(rng)) for _ in range(WARMUP)]
    return space, value, warmup


@dataclass(frozen=True)
class Variant:
    """A way to propose points.

    Attributes:
        prompt: A shipped prompt's name; empty for a sampler of Optuna.
        sampler: Stands in for the model; ``None`` for the model itself.
        shuffled: Whether the rewards are exchanged before the prompt is made.
        optuna: Makes a sampler from a seed.
    """

    prompt: str = ""
    sampler: Callable[[], Client] | None = None
    shuffled: bool = False
    optuna: Callable[[int], optuna.samplers.BaseSampler] | None = None


VARIANTS: Mapping[str, Variant] = {
    "columns": Variant("columns"),
    "columns, shuffled rewards": Variant("columns", shuffled=True),
    "columns, network": Variant("columns", NetworkClient),
    "columns, Gaussian": Variant("columns", GaussianGrammarClient),
    "columns, uniform": Variant("columns", UniformGrammarClient),
    "levels": Variant("levels"),
    "levels, Gaussian": Variant("levels", GaussianGrammarClient),
    "levels, uniform": Variant("levels", UniformGrammarClient),
    "Optuna TPE": Variant(optuna=lambda seed: optuna.samplers.TPESampler(seed=seed)),
    "random": Variant(optuna=lambda seed: optuna.samplers.RandomSampler(seed=seed)),
}
MAIN = "columns"


def run_cell(cell: MixedCell) -> dict[str, Any]:
    """Run one cell and return its line."""
    space, value, warmup = problem_of(cell)
    variant = VARIANTS[cell.variant]
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = _run_optuna if variant.optuna else _run_prompt
        values, more = run(cell, space, value, warmup)
    return {
        **asdict(cell),
        "best": min(values),
        "values": [float(f"{v:.5g}") for v in values],
        "seconds": round(time.perf_counter() - start, 2),
        **more,
        "llmopt": __version__,
    }


def _run_prompt(
    cell: MixedCell, space: Space, value: Callable[[Params], float], warmup: Sequence[Params]
) -> tuple[list[float], dict[str, Any]]:
    variant = VARIANTS[cell.variant]
    prompt = get_prompt(variant.prompt)
    client = variant.sampler() if variant.sampler else model_client(cell.model)
    optimizer = LLMOptimizer(
        space,
        client,
        ShuffledRewards(prompt) if variant.shuffled else prompt,
        warmup=0,
        batch_size=BATCH,
        seed=cell.seed,
    )
    values = [value(params) for params in warmup]
    for params, found in zip(warmup, values, strict=True):
        optimizer.tell(params, -found)
    for _ in range(BUDGET):
        params = optimizer.ask()
        values.append(value(params))
        optimizer.tell(params, -values[-1])
    usage = optimizer.usage
    if variant.sampler:
        return values, {}
    tokens = [usage.prompt_tokens, usage.completion_tokens]
    return values, {"tokens": tokens, "fallback_share": usage.fallback_share}


def _run_optuna(
    cell: MixedCell, space: Space, value: Callable[[Params], float], warmup: Sequence[Params]
) -> tuple[list[float], dict[str, Any]]:
    make = VARIANTS[cell.variant].optuna
    assert make is not None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=make(cell.seed))
    for params in warmup:
        study.enqueue_trial(params)

    def objective(trial: optuna.Trial) -> float:
        params: Params = {}
        for name, dimension in zip(space.names, space.dimensions, strict=True):
            if isinstance(dimension, Categorical):
                choices: Any = dimension.choices  # Optuna's types do not allow any hashable
                params[name] = trial.suggest_categorical(name, choices)
            else:
                params[name] = trial.suggest_float(name, dimension.low, dimension.high)
        return value(params)

    study.optimize(objective, n_trials=WARMUP + BUDGET)
    return [float(t.value) for t in study.trials if t.value is not None], {}


def make_table(lines: Sequence[dict[str, Any]]) -> str:
    """Return the Markdown table."""
    best = {(_key(line), line["variant"]): line["best"] for line in lines}
    variants = [v for v in VARIANTS if any(v == line["variant"] for line in lines)]
    keys = sorted({key for key, _ in best})
    shared = [key for key in keys if all((key, v) in best for v in variants)]
    places = np.array([ranks([-best[key, v] for v in variants]) for key in shared])
    shapes = [f"{n} numbers and categories of {' and '.join(map(str, c))}" for n, c in SHAPES]
    text = [
        f"# Numbers and categories: {len({key[0] for key in keys})} functions",
        "",
        f"Best of {WARMUP} + {BUDGET} evaluations. Ranks: over the {len(shared)} instances that "
        f"every variant has finished. The other columns: in how many instances `{MAIN}` is better, "
        "and the p value of Wilcoxon's signed-rank test on the logarithms (two-sided).",
        "",
        f"```\n{COMMAND}\n```",
        "",
        f"| variant | runs | mean rank | all | p | {' | '.join(shapes)} | fallback |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for place, variant in enumerate(variants):
        own = [line for line in lines if line["variant"] == variant]
        row = [variant, str(len(own)), f"{places[:, place].mean():.2f}" if shared else ""]
        row += _duel(best, keys, variant)
        for shape in range(len(SHAPES)):
            row.append(_duel(best, [key for key in keys if key[1] == shape], variant)[0])
        asked = [line["fallback_share"] for line in own if "fallback_share" in line]
        row.append(f"{np.mean(asked):.1%}" if asked else "")
        text.append(f"| {' | '.join(row)} |")
    return "\n".join([*text, ""])


def _duel(best: Mapping[tuple[Any, str], float], keys: Sequence[Any], rival: str) -> list[str]:
    both = [key for key in keys if (key, MAIN) in best and (key, rival) in best]
    if rival == MAIN or not both:
        return ["", ""]
    gains = [float(np.log(best[key, rival]) - np.log(best[key, MAIN])) for key in both]
    return [f"{sum(g > 0 for g in gains)} of {len(both)}", f"{paired_test(gains):.2g}"]


def _key(line: Mapping[str, Any]) -> tuple[str, int, int]:
    return line["function"], line["shape"], line["seed"]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--set", default="held-out", choices=SETS, help="of functions")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=4, help="instances of each function and shape")
    parser.add_argument("--model", default="smollm2", help="model string")
    parser.add_argument("--jobs", type=int, default=1, help="cells run at once")
    parser.add_argument("--results", type=Path, help="those of the set")
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    args = parser.parse_args(argv)
    functions, file = SETS[args.set]
    args.results = args.results or RESULTS / f"{file}.jsonl"
    if not args.table_only:
        wanted = []
        for seed, shape, function, name in itertools.product(
            range(args.seeds), range(len(SHAPES)), functions, args.variants
        ):
            variant = VARIANTS[name]
            asked = args.model if variant.prompt and not variant.sampler else ""
            wanted.append(MixedCell(name, function, shape, seed, asked))
        run_pool(wanted, run_cell, EventLog(args.results), cell_reader(MixedCell), jobs=args.jobs)
    table = args.results.with_suffix(".md")
    table.write_text(make_table(list(read_events(args.results))), encoding="utf-8")
    print(f"wrote {table}")


if __name__ == "__main__":
    main()
