"""Searches whose points are on record, so that a change of the code that moves one is seen.

Each case is a short search with fixed seeds and a model whose answers follow from the request
alone. What it handed out, asked and spent was written to ``tests/data/same_points`` by the code
before its modules were reorganised; `test_same_points.py` runs the cases again and compares.
The folder also holds files of stopped searches (`STOPPED`), which that older code wrote and any
later one must go on with.

To write the records anew, which is right only where a change of the points is meant::

    python tests/same_points.py            # all
    python tests/same_points.py prompts    # one group of `GROUPS`

Only names that users have are imported, so that modules may move.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt import (
    BudgetExceededError,
    Categorical,
    ClientError,
    Completion,
    FallbackWarning,
    Float,
    Int,
    LLMOptimizer,
    Reply,
    Request,
    ScriptedClient,
    get_client,
    get_prompt,
)

DATA = Path(__file__).parent / "data" / "same_points"
COLUMN = {"columns": True, "style": "completion", "default_prompt": "columns"}
Case = Callable[[], dict[str, Any]]

# -- spaces --------------------------------------------------------------------------------

BOX = {"x": Float(-5.0, 5.0), "y": Float(0.0, 1.0), "z": Float(-100.0, 20.0)}
TWO = {"a": Float(-6.0, 6.0), "b": Float(-6.0, 6.0)}
NUMBERS = {
    "lr": Float(1e-5, 1.0, log=True),
    "layers": Int(1, 30),
    "step": Float(0.0, 1.0, step=0.05),
    "fixed": Float(2.0, 2.0),
}
MIXED = {
    "lr": Float(1e-5, 1e-1, log=True),
    "layers": Int(1, 6),
    "width": Int(16, 256, step=16),
    "batch": Int(1, 1000, log=True),
    "momentum": Float(0.0, 1.0, step=0.05),
    "activation": Categorical(["relu", "tanh", "gelu"]),
    "bias": Categorical([True, False]),
}
DISCRETE = {"a": Int(0, 3), "b": Categorical(["u", "v", "w"]), "c": Categorical([True, False])}
GYM = gym.spaces.Dict(
    {
        "force": gym.spaces.Box(np.float32([-2, 0]), np.float32([2, 9]), dtype=np.float32),
        "gear": gym.spaces.Discrete(5, start=1),
        "switch": gym.spaces.MultiBinary(2),
        "pair": gym.spaces.Tuple([gym.spaces.MultiDiscrete([3, 4]), gym.spaces.Box(-1, 1, ())]),
    }
)
GYM_NAMES = ["force[0]", "force[1]", "gear", "pair[0][0]", "pair[0][1]", "pair[1]"]
GYM_NAMES += ["switch[0]", "switch[1]"]


# -- a model that needs none ---------------------------------------------------------------


def share(*parts: Any) -> float:
    """Return a number from 0 to 1 that follows from the parts alone, on every machine."""
    digest = hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()
    return int(digest[:13], 16) / 16**13


def pick(texts: Sequence[Any], *parts: Any) -> Any:
    return texts[int(share(*parts) * len(texts))]


def drawn(dimension: Any, *parts: Any) -> str:
    """Return a value of a dimension as a model might write it."""
    part = share(*parts)
    if isinstance(dimension, Categorical):
        return str(pick(dimension.choices, *parts))
    low, high = float(dimension.low), float(dimension.high)
    if dimension.log:
        value = math.exp(math.log(low) + part * (math.log(high) - math.log(low)))
        return f"{value:.3g}"
    value = low + part * (high - low)
    return str(round(value)) if isinstance(dimension, Int) else f"{value:.4f}"


def values_in_words(space: Mapping[str, Any], *parts: Any) -> dict[str, str]:
    return {name: drawn(dimension, *parts, name) for name, dimension in space.items()}


def named(space: Mapping[str, Any], *, faults: bool = True) -> Callable[..., Completion]:
    """Return a model that gives named values in one of several forms, and errs now and then."""

    def answer(request: Request, i: int) -> Completion:
        base = (request.text, request.seed, i)
        values = values_in_words(space, *base)
        mood = share(*base, "mood") if faults else 1.0
        if mood < 0.07:
            return Completion("I would rather not say.")
        if mood < 0.14:
            values[next(iter(values))] = "1e7"  # out of its range
        elif mood < 0.21:
            values = values_in_words(space, "the same point again and again")
        elif mood < 0.25:
            return Completion(f"{next(iter(values))}: ", "length")
        elif mood < 0.28:
            return Completion("", "refusal")
        line = ", ".join(f"{name}: {value}" for name, value in values.items())
        why = f"The digits {int(1000 * share(*base, 'why'))} told me so."
        if "Hypothesis:" in request.text:
            return Completion(f"Critique: none.\nHypothesis: {why}\nProposal:\n{line}")
        if mood > 0.9:
            return Completion(f"<think>Let me see. x: 0</think>\n{line}\n{why}")
        if mood > 0.8 and "fixed" not in space:
            return Completion("```json\n" + json.dumps(values) + "\n```\n" + why)
        return Completion(f"{line}\n{why}")

    return answer


def letters(n: int, last: str = "z", *, faults: bool = True) -> Callable[..., Completion]:
    """Return a model that continues lines of `n` letters, of which few are in any doubt."""
    known = "abcdefghijklmnopqrstuvwxyz"[: ord(last) - ord("a") + 1]

    def answer(request: Request, i: int) -> Completion:
        base = (request.text, request.seed, i)
        if request.columns:
            picked = (
                pick(request.choices, *base, text, j) for j, text in enumerate(request.columns)
            )
            return Completion("".join(picked))
        if faults and share(*base, "mood") < 0.1:
            return Completion(" and so on", "length")
        return Completion("".join(f" {pick(known, *base, j)}" for j in range(n)))

    return answer


class Stop(BaseException):
    """The process ends here."""


def model(
    answer: Callable[..., Completion],
    *,
    fails: Mapping[int, Exception | Stop] | None = None,
    cost: bool = True,
    **attributes: Any,
) -> ScriptedClient:
    """Return a client that answers by a function, and at some of its requests raises."""
    fails = fails or {}

    def reply(request: Request) -> Reply:
        error = fails.get(len(client.requests))
        if error is not None:
            raise error
        n = min(request.n, attributes.get("max_samples", request.n))
        if n > 2 and share(request.text, request.seed, "fewer") < 0.3:
            n -= 1
        completions = tuple(answer(request, i) for i in range(n))
        written = sum(len(c.text) // 4 + 1 for c in completions)
        return Reply(
            completions,
            "scripted-1",
            prompt_tokens=len(request.text) // 4,
            cached_tokens=len(request.text) // 8,
            completion_tokens=written,
            seconds=0.25,
            cost=written / 1024 if cost else None,
        )

    client = ScriptedClient(reply, name="scripted")
    for name, value in attributes.items():
        setattr(client, name, value)
    return client


# -- what is written down ------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return a JSON form that keeps the types of NumPy apart."""
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, np.generic):
        return [str(value.dtype), value.item()]
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


_TRIAL = ("rewards", "state", "source", "explanation", "feedback", "constraint_violation")
_SPENT = ("prompt_tokens", "completion_tokens", "seconds")
_USAGE = ("requests", "failed_requests", "prompt_tokens", "cached_tokens", "completion_tokens")
_USAGE += ("seconds", "cost", "proposals", "rejected")


def facts(thing: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: plain(getattr(thing, name)) for name in names}


def usage_of(thing: Any) -> dict[str, Any]:
    return facts(thing.usage, _USAGE)


def requests_of(client: ScriptedClient) -> dict[str, Any]:
    """Each request as digests of its text and of all, samples and seed; the last one in full."""
    brief = [
        [hashlib.sha256(r.text.encode()).hexdigest()[:12], r.digest()[:12], r.n, r.seed]
        for r in client.requests
    ]
    last = client.requests[-1].to_dict() if client.requests else None
    return {"requests": brief, "last_request": plain(last)}


def record_of(optimizer: LLMOptimizer) -> dict[str, Any]:
    return {
        "seed": optimizer.seed,
        "prompt": optimizer.prompt.name,
        "trials": [
            [plain(t.params), *facts(t, _TRIAL).values(), *facts(t, _SPENT).values()]
            for t in optimizer.trials
        ],
        "pending": [[plain(p.values), p.source, p.explanation] for p in optimizer.pending],
        "best": optimizer.history.best and optimizer.best.number,
        "pareto": [t.number for t in optimizer.history.pareto_front],
        "usage": usage_of(optimizer),
    }


# -- searches ------------------------------------------------------------------------------


def score(params: Any, objective: int = 0) -> float:
    """Return a reward for parameters of any form, rounded so that no last digit matters."""

    def part(value: Any) -> float:
        if isinstance(value, Mapping):
            return sum((k + 1) * part(v) for k, v in enumerate(value.values()))
        if isinstance(value, (list, tuple, np.ndarray)):
            return sum((k + 1) * part(v) for k, v in enumerate(np.ravel(value)))
        if isinstance(value, str):
            return float(len(value) + ord(value[0]) % 3)
        return (float(value) / (3 + objective) - 0.7) ** 2

    if isinstance(params, Mapping) and "pair" in params:  # a tuple of arrays of unequal shapes
        params = {**params, "pair": [float(np.sum(p)) for p in params["pair"]]}
    return round(-part(params), 6)


def step(
    optimizer: LLMOptimizer, k: int, n: int | None, *, keep: int = 0, violations: bool = False
) -> list[Any]:
    """Ask once, then tell what is open, the latest first, but for `keep` points.

    Of every seven points one fails, in one of three ways; every third is told with words.
    """
    try:
        asked = optimizer.ask() if n is None else optimizer.ask(n)
    except (ClientError, BudgetExceededError) as error:
        return [type(error).__name__]
    for pending in optimizer.pending[keep:][::-1]:
        params, number = optimizer.space.unflatten(pending.values), len(optimizer.trials)
        objectives = len(optimizer.directions)
        reward: Any = score(params) if objectives == 1 else [score(params, j) for j in range(2)]
        if number % 7 == 5:
            way = number % 3
            if way == 0:
                optimizer.tell_failure(params, "it diverged")
            else:
                optimizer.tell(params, None if way == 1 else reward, feedback="odd")
            continue
        words = f"it stopped after {number} steps" if number % 3 == 1 else ""
        violation = max(0.0, round(-score(params) - 3.0, 3)) if violations else 0.0
        optimizer.tell(params, reward, feedback=words, constraint_violation=violation)
    return plain([asked] if n is None else asked)


def search(
    space: Any,
    client: ScriptedClient,
    prompt: Any = "props",
    *,
    asks: Sequence[int | None] = (None,) * 14,
    keep: Sequence[int] = (0,),
    violations: bool = False,
    told: Sequence[Any] = (),
    **options: Any,
) -> dict[str, Any]:
    """Run a search of ``len(asks)`` steps and return its record."""
    options = {"seed": 11, "warmup": 4, **options}
    optimizer = LLMOptimizer(space, client, prompt, **options)
    for params in told:
        optimizer.tell(params, score(params))
    asked = [
        step(optimizer, k, n, keep=keep[k % len(keep)], violations=violations)
        for k, n in enumerate(asks)
    ]
    record = record_of(optimizer)
    return {
        "asked": asked,
        **record,
        "trials": record["trials"][len(told) :],
        **requests_of(client),
    }


def gym_model(**options: Any) -> ScriptedClient:
    space = {
        name: Float(-1, 1) if name in ("force[0]", "pair[1]") else Int(0, 3) for name in GYM_NAMES
    }
    return model(named(space), **options)


UNEVEN = (None, 3, None, 1, 2, None, 4, None, None, 2)
DOWN = {3: ClientError("the server is down"), 4: ClientError("still"), 9: ClientError("again")}
OWN_TEMPLATE = (
    "Find {{ goal }}.\n{{ begin_user }}\n{% for line in lines %}\n{{ line }}\n{% endfor %}\n"
    "Best: {{ best.line if best is not none else 'none' }}. Now {{ iteration }}:\n{{ answer }}"
)


def prompts() -> dict[str, Case]:
    """Every shipped prompt over several spaces."""
    many = [values_in_words(BOX, "told", i) for i in range(118)]
    told = [{k: float(v) for k, v in params.items()} for params in many]
    return {
        "props box": lambda: search(BOX, model(named(BOX))),
        "props mixed": lambda: search(MIXED, model(named(MIXED)), description="A network."),
        "props discrete": lambda: search(DISCRETE, model(named(DISCRETE)), asks=UNEVEN * 2),
        "props gymnasium": lambda: search(GYM, gym_model(), asks=UNEVEN),
        "props-ab": lambda: search(TWO, model(named(TWO)), "props-ab", total=20),
        "props-plus": lambda: search(
            MIXED, model(named(MIXED)), "props-plus", description="A network.", total=14
        ),
        "opro box": lambda: search(BOX, model(named(BOX)), "opro", asks=UNEVEN * 2),
        "opro mixed": lambda: search(MIXED, model(named(MIXED)), "opro", direction="minimize"),
        "columns box": lambda: search(BOX, model(letters(3), **COLUMN), "auto", warmup=6),
        "columns batch": lambda: search(
            NUMBERS, model(letters(4), **COLUMN), "columns", batch_size=4, asks=UNEVEN * 2
        ),
        "columns mixed": lambda: search(MIXED, model(letters(7, "f"), **COLUMN), "columns"),
        "columns discrete": lambda: search(DISCRETE, model(letters(3, "d"), **COLUMN), "columns"),
        "columns gymnasium": lambda: search(GYM, model(letters(8, "e"), **COLUMN), "columns"),
        "columns widened": lambda: search(
            BOX, model(letters(3), **COLUMN), "columns", told=told, asks=(4, 4, 4)
        ),
        "own template": lambda: search(BOX, model(named(BOX)), OWN_TEMPLATE),
    }


def ways() -> dict[str, Case]:
    """The ways of asking and telling, and what goes wrong."""
    return {
        "batches": lambda: search(
            MIXED, model(named(MIXED)), batch_size=3, asks=UNEVEN * 2, keep=(2, 0, 1)
        ),
        "few samples at a time": lambda: search(
            BOX, model(named(BOX), max_samples=2), asks=(5, None, 6, 3), keep=(3, 1)
        ),
        "failures raised": lambda: search(
            BOX, model(named(BOX), fails=DOWN), asks=UNEVEN * 2, keep=(1,)
        ),
        "failures drawn": lambda: search(
            MIXED, model(named(MIXED), fails=DOWN), on_error="fallback", asks=UNEVEN * 2
        ),
        "a retry": lambda: search(
            BOX, model(named(BOX), fails={2: ClientError("busy", retryable=True)}), asks=(6, 2)
        ),
        "caps": lambda: search(BOX, model(named(BOX)), max_requests=5, keep=(1, 0)),
        "caps with random points": lambda: search(
            BOX, model(named(BOX)), max_tokens=2500, on_error="fallback"
        ),
        "price unknown": lambda: search(BOX, model(named(BOX), cost=False)),
        "rejected ranges": lambda: search(
            MIXED, model(named(MIXED)), out_of_range="reject", attempts=2, asks=UNEVEN * 2
        ),
        "nothing readable": lambda: search(
            BOX, model(lambda request, i: Completion("no idea")), attempts=2, asks=UNEVEN
        ),
        "an exhausted space": lambda: search(
            DISCRETE, model(named(DISCRETE)), warmup=0, asks=(8, 8, 7, 3)
        ),
        "several objectives": lambda: search(
            BOX, model(named(BOX)), direction=["maximize", "minimize"], asks=UNEVEN * 2
        ),
        "several objectives, columns": lambda: search(
            MIXED, model(letters(7, "f"), **COLUMN), "columns", direction=["minimize", "minimize"]
        ),
        "constraints": lambda: search(BOX, model(named(BOX)), "opro", violations=True),
        "constraints, columns": lambda: search(
            BOX, model(letters(3), **COLUMN), "columns", violations=True
        ),
        "given warm-up": lambda: search(
            DISCRETE,
            model(named(DISCRETE)),
            warmup=[{"a": 1, "b": "v", "c": False}, {"a": 3, "b": "u", "c": True}],
        ),
        "normal warm-up": lambda: search(
            TWO, model(named(TWO)), warmup=8, warmup_distribution="normal"
        ),
        "points of the user": lambda: search(
            TWO, model(named(TWO)), told=[{"a": 1.0, "b": 2.0}, {"a": -3.5, "b": 0.25}]
        ),
        "the best of the history": lambda: search(
            BOX, model(named(BOX)), get_prompt("props", history="best", best=4)
        ),
        "a token budget": lambda: search(
            MIXED, model(named(MIXED)), get_prompt("props", max_prompt_tokens=1100), asks=(6,) * 4
        ),
        "a small context": lambda: search(
            BOX,
            model(named(BOX), context_tokens=1500, count_tokens=lambda text: len(text) // 3),
            get_prompt("opro", max_tokens=900),
            asks=(6,) * 4,
        ),
        "another seed": lambda: search(BOX, model(named(BOX)), seed=2**40 + 1),
    }


def partner() -> dict[str, Case]:
    """CMA-ES beside the model."""
    cma = {"partner": "cma", "seed": 5}
    return {
        "props": lambda: search(BOX, model(named(BOX)), **cma, asks=(None,) * 40),
        "columns": lambda: search(
            BOX, model(letters(3), **COLUMN), "columns", **cma, batch_size=4, asks=(None,) * 44
        ),
        "numbers, in batches": lambda: search(
            NUMBERS, model(named(NUMBERS)), "opro", **cma, asks=UNEVEN * 2, keep=(1, 0)
        ),
    }


def embedded() -> dict[str, Case]:
    """The embedded model, in one thread."""

    def case(**options: Any) -> dict[str, Any]:
        client = get_client("smollm2", threads=1)
        try:
            box = gym.spaces.Box(-6.0, 6.0, (3,), dtype=np.float64)
            optimizer = LLMOptimizer(box, client, seed=0, **options)
            asked = []
            while len(optimizer.trials) < 18:
                point = optimizer.ask()
                asked.append(point.tolist())
                optimizer.tell(point, round(-float(((point - 1.0) ** 2).sum()), 6))
            usage = facts(optimizer.usage, [n for n in _USAGE if n != "seconds"])
            return {"prompt": optimizer.prompt.name, "asked": asked, "usage": usage}
        finally:
            client.close()

    return {
        "one by one": case,
        "in batches": lambda: case(batch_size=4),
    }


# -- Optuna and Nevergrad ------------------------------------------------------------------


def optuna_objective(trial: Any) -> float:
    lr = trial.suggest_float("lr", 1e-4, 1.0, log=True)
    layers = trial.suggest_int("layers", 1, 5)
    kind = trial.suggest_categorical("kind", ["tree", "net"])
    value = (math.log10(lr) + 2) ** 2 + (layers - 2) ** 2
    if kind == "net":
        value += abs(trial.suggest_float("momentum", 0.0, 1.0) - 0.5)
        trial.set_user_attr("llmopt:feedback", f"slow after {layers} epochs")
    else:
        value += trial.suggest_int("depth", 2, 12, step=2) / 7
    return round(value, 6)


OPTUNA_SPACE = {
    "lr": Float(1e-4, 1.0, log=True),
    "layers": Int(1, 5),
    "kind": Categorical(["tree", "net"]),
    "momentum": Float(0.0, 1.0),
    "depth": Int(2, 12, step=2),
}


def optuna_study(
    n: int, *, storage: Any = None, prompt: str = "props", fails: Any = None, **options: Any
) -> dict[str, Any]:
    """Run a study until it has `n` trials."""
    import optuna

    from llmopt.adapters.optuna import LLMSampler

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    client = model(named(OPTUNA_SPACE), fails=fails)
    sampler = LLMSampler(client, prompt=prompt, seed=3, n_startup_trials=4, **options)
    study = optuna.create_study(
        storage=storage,
        study_name="same points",
        sampler=sampler,
        direction="minimize",
        load_if_exists=True,
    )
    study.optimize(optuna_objective, n_trials=n - len(study.trials))
    trials = [
        {
            "params": t.params,
            "values": t.values,
            "attributes": {k: v for k, v in t.user_attrs.items() if k.startswith("llmopt:")},
        }
        for t in study.trials
    ]
    return {"trials": trials, "usage": usage_of(sampler), **requests_of(client)}


def optuna_journal(path: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(path)))


def optuna_cases() -> dict[str, Case]:
    """Optuna's sampler."""
    return {
        "conditional": lambda: optuna_study(15),
        "opro, in batches": lambda: optuna_study(15, prompt="opro", batch_size=3),
        "failing": lambda: optuna_study(15, fails=DOWN, out_of_range="reject"),
    }


def nevergrad_search(parametrization: Any, space: Any, **options: Any) -> dict[str, Any]:
    from llmopt.adapters.nevergrad import ParametrizedLLM

    workers = options.pop("workers", 1)
    client = model(named(space), fails=options.pop("fails", None))
    parametrization.random_state.seed(7)
    optimizer = ParametrizedLLM(model=client, warmup=4, **options)(
        parametrization, budget=15, num_workers=workers
    )
    asked: list[Any] = []
    while len(asked) < 15:
        candidates = [optimizer.ask() for _ in range(workers)]
        for candidate in reversed(candidates):
            asked.append(plain(candidate.value))
            value = candidate.value
            optimizer.tell(candidate, -score(value if isinstance(value, dict) else [value]))
    best = plain(optimizer.provide_recommendation().value)
    return {"asked": asked, "best": best, "usage": usage_of(optimizer), **requests_of(client)}


def nevergrad_cases() -> dict[str, Case]:
    """Nevergrad's optimizer."""
    import nevergrad as ng

    def array() -> Any:
        return ng.p.Array(shape=(3,)).set_bounds(-5, 5)

    def mixed() -> Any:
        return ng.p.Dict(
            lr=ng.p.Log(lower=1e-4, upper=1.0),
            k=ng.p.Scalar(lower=0, upper=9).set_integer_casting(),
            free=ng.p.Scalar(init=1.0),
            kind=ng.p.Choice(["u", "v"]),
        )

    one = {f"params[{i}]": Float(-5, 5) for i in range(3)}
    names = {
        "lr": Float(1e-4, 1.0, log=True),
        "k": Int(0, 9),
        "free": Float(-3, 3),
        "kind": Categorical(["u", "v"]),
    }
    return {
        "array": lambda: nevergrad_search(array(), one),
        "mixed": lambda: nevergrad_search(mixed(), names, prompt="opro"),
        "three workers": lambda: nevergrad_search(array(), one, workers=3, batch_size=3),
        "failing": lambda: nevergrad_search(array(), one, fails=DOWN, on_error="fallback"),
    }


# -- code ----------------------------------------------------------------------------------

BODIES = ("return {k} * x.sum()", "return float(x[0]) - {k}", "return {k}.0", "return x.foo + {k}")


def coder(request: Request, i: int) -> Completion:
    """Write a function with one constant, which is at fault now and then."""
    base = (request.text, request.seed, i)
    if share(*base, "mood") < 0.15:
        return Completion("I would rather not.")
    body = pick(BODIES, *base, "body").format(k=int(50 * share(*base, "k")))
    return Completion(f"Because of {share(*base):.3f}.\n```python\ndef f(x):\n    {body}\n```")


def code_search(client: ScriptedClient, steps: int, **options: Any) -> dict[str, Any]:
    """Search for code until `steps` candidates have a score."""
    from llmopt.code import CodeOptimizer, Function, NoCandidateError, Output

    samples = ((np.array([1.0, 2.0]),), (np.array([0.0, -1.0]),))
    function = Function("f(x)", "Return one number.", Output(), samples)
    asked: list[Any] = []
    with CodeOptimizer(function, client=client, seed=4, objective="Be large.", **options) as found:
        while len(found.trials) < steps:
            try:
                candidate = found.ask()
            except NoCandidateError as error:
                asked.append(["no candidate", len(error.tries)])
                continue
            value = round(candidate(np.array([3.0, 5.0])), 6)
            asked.append([candidate.number, candidate.source, candidate.parent, value])
            if candidate.number == 2:
                found.tell_failure(candidate, "it was too slow")
            else:
                found.tell(candidate, value, feedback=f"{value} is not enough")
        trials = [[t.number, t.source, t.reward, t.explanation] for t in found.trials]
        best = found.best and found.best.number
        return {
            "asked": asked,
            "trials": trials,
            "best": best,
            "usage": usage_of(found),
            **requests_of(client),
        }


def code() -> dict[str, Case]:
    """Code in place of numbers."""
    return {
        "hill-climb": lambda: code_search(model(coder), 6),
        "beam": lambda: code_search(model(coder), 5, strategy="beam", answer="json"),
    }


# -- the command line ----------------------------------------------------------------------


class _Handler(BaseHTTPRequestHandler):
    """A server that speaks as much of OpenAI's protocol as a run needs."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = "\n\n".join(m["content"] for m in body["messages"])
        line = next(x for x in text.splitlines() if "<value>" in x)
        names = [part.rsplit(": ", 1)[0] for part in line.split(", ")]
        base = (text, body.get("seed"))
        values = [f"{name}: {12 * share(*base, name) - 6:.2f}" for name in names]
        said = ", ".join(values) + "\nIt looked good."
        answer = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": "oracle",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": said},
                }
            ],
            "usage": {"prompt_tokens": len(text) // 4, "completion_tokens": 9, "total_tokens": 0},
        }
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


@contextlib.contextmanager
def server() -> Iterator[dict[str, str]]:
    """Serve a model on this machine, and yield the environment that leads ``openai:`` to it."""
    served = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{served.server_port}/v1"
        yield {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}
    finally:
        served.shutdown()
        served.server_close()
        thread.join()


def command(*args: str | Path, **environment: str) -> int:
    """Run ``llmopt ARGS`` and return its exit status."""
    return subprocess.run(
        [sys.executable, "-m", "llmopt", *map(str, args)],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=300,
    ).returncode


_CLOCK = ("model_seconds", "evaluation_seconds", "cpu_seconds", "seconds", "crc")
RUN = ("run", "cartpole", "--model", "openai:oracle", "--prompt", "props", "--iterations", "7",
       "--episodes", "2", "--warmup", "3", "--heldout", "3", "--seed", "1", "--no-gif",
       "--finalists", "0", "--batch", "1")  # fmt: skip


def read_lines(path: Path) -> list[Any]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in _CLOCK} for row in rows]


def run_facts(path: Path) -> dict[str, Any]:
    """What a run folder holds, but for what the clock says."""
    found = {name: read_lines(path / name) for name in ("trials.jsonl", "heldout.jsonl")}
    # What the policy of zeros returns is no part of a search.
    found["heldout.jsonl"] = [r for r in found["heldout.jsonl"] if r["method"] != "zero"]
    return found


def whole_run(folder: Path) -> dict[str, Any]:
    with server() as environment:
        status = command(*RUN, "--out", folder / "run", **environment)
    return {"status": status, **run_facts(folder / "run")}


BENCH = ("bench", "--tasks", "cartpole", "--seeds", "1", "--evaluations", "8", "--episodes", "1",
         "--warmup", "6", "--heldout", "2", "--batch", "4", "--finalists", "0",
         "--methods")  # fmt: skip
BENCHED = ("columns-gaussian", "columns-network", "cma", "cma-bipop", "ars", "random",
           "optuna-tpe")  # fmt: skip
_CELL = ("cell", "parameters", "means", "best_params", "heldout_returns", "steps", "sources")


def benchmark(folder: Path) -> dict[str, Any]:
    status = command(*BENCH, *BENCHED, "--out", folder / "bench.jsonl")
    rows = [json.loads(line) for line in (folder / "bench.jsonl").read_text().splitlines()]
    for row in rows:  # options that are younger than the stored rows
        row["cell"] = {k: v for k, v in row["cell"].items() if k not in ("wrappers", "finalists")}
    return {"status": status, "rows": [{name: row[name] for name in _CELL} for row in rows]}


def in_folder(act: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return act(Path(folder))


def commands() -> dict[str, Case]:
    """The command line."""
    return {
        "run": lambda: in_folder(whole_run),
        "bench": lambda: in_folder(benchmark),
    }


# -- stopped searches ----------------------------------------------------------------------
#
# Each is a file, or folder, that a search left behind when it was stopped, and what the same
# search gave when it was not.

STEPS = 12


class Stopped:
    """A search of `STEPS` steps that stops after some of them.

    Args:
        space: The space.
        answer: The model.
        prompt: The prompt.
        after: Steps after which it stops; ``None`` if it stops within one.
        fails: What the model raises, by the number of the request.
        **options: Arguments of `LLMOptimizer`.
    """

    def __init__(
        self,
        space: Any,
        answer: Callable[..., Completion],
        prompt: Any = "props",
        *,
        after: int | None = None,
        fails: Mapping[int, Exception | Stop] | None = None,
        attributes: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.space, self.answer, self.prompt, self.after = space, answer, prompt, after
        self.fails, self.attributes = fails or {}, attributes or {}
        self.options = {"seed": 23, "warmup": 4, **options}

    def client(self, *, stops: bool = False, fails: bool = True) -> ScriptedClient:
        raised = {
            k: e for k, e in self.fails.items() if fails and (stops or not isinstance(e, Stop))
        }
        return model(self.answer, fails=raised, **self.attributes)

    def make(self, client: ScriptedClient, storage: Path | None = None) -> LLMOptimizer:
        return LLMOptimizer(self.space, client, self.prompt, storage=storage, **self.options)

    def steps(self, optimizer: LLMOptimizer, first: int, last: int = STEPS) -> list[Any]:
        return [
            step(optimizer, k, UNEVEN[k % len(UNEVEN)], keep=(2, 1, 0)[k % 3])
            for k in range(first, last)
        ]

    def whole(self) -> tuple[dict[str, Any], ScriptedClient]:
        """Run without a stop."""
        client = self.client()
        optimizer = self.make(client)
        asked = self.steps(optimizer, 0)
        return {"asked": asked, **record_of(optimizer)}, client

    def stop(self, path: Path) -> tuple[int, int]:
        """Run until the stop; return the steps done and the requests answered."""
        client = self.client(stops=True)
        optimizer = self.make(client, path)
        done = 0
        try:
            while done != self.after:
                self.steps(optimizer, done, done + 1)
                done += 1
        except Stop:
            return done, len(client.requests) - 1
        finally:
            optimizer.close()
        return done, len(client.requests)

    def rest(self, path: Path, done: int, *, load: bool = False) -> dict[str, Any]:
        """Go on from the file; return what was asked from there on, and the whole record."""
        client = self.client(fails=False)
        optimizer = LLMOptimizer.load(path, client) if load else self.make(client, path)
        asked = self.steps(optimizer, done)
        optimizer.close()
        record = {"asked": asked, **record_of(optimizer)}
        return {**record, "requests": requests_of(client)["requests"]}


STOPPED = {
    "pending": Stopped(MIXED, named(MIXED), after=6, fails={2: DOWN[3]}, batch_size=3),
    "failure-last": Stopped(BOX, named(BOX), "opro", after=7, fails={6: DOWN[3]}),
    "paid": Stopped(BOX, named(BOX), fails={6: Stop()}),
    "paid-batch": Stopped(MIXED, named(MIXED), fails={4: Stop()}, batch_size=4),
    "columns": Stopped(
        BOX,
        letters(3),
        "columns",
        after=7,
        attributes=COLUMN,
        batch_size=4,
        direction="minimize",
    ),
    "partner": Stopped(
        NUMBERS,
        letters(4),
        "columns",
        after=7,
        attributes=COLUMN,
        batch_size=4,
        partner="cma",
        total=30,
    ),
    "gymnasium": Stopped(
        GYM,
        named({n: Float(-1, 1) if n[0] == "f" else Int(0, 3) for n in GYM_NAMES}),
        "props-plus",
        after=6,
        description="A car.",
        out_of_range="reject",
    ),
    "objectives": Stopped(
        DISCRETE,
        named(DISCRETE),
        get_prompt("opro", best=6),
        after=5,
        direction=["minimize", "maximize"],
        warmup=[{"a": 1, "b": "v", "c": False}, {"a": 3, "b": "u", "c": True}],
    ),
}


def write_stopped(folder: Path) -> dict[str, Any]:
    """Write the file of each stopped search, and return what follows it."""
    records = {}
    for name, stopped in STOPPED.items():
        path = folder / f"{name}.jsonl"
        path.unlink(missing_ok=True)
        record, client = stopped.whole()
        done, sent = stopped.stop(path)
        requests = requests_of(client)["requests"][sent:]
        asked = record["asked"][done:]
        records[name] = {"done": done, "rest": {**record, "asked": asked, "requests": requests}}
        events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
        print(f"  {name}: {done} steps, {len(events)} events, the last {events[-3:]}")
    return records


def write_saved(folder: Path) -> None:
    """Write what `LLMOptimizer.save` makes of a stopped search."""
    for name in ("pending", "paid"):
        client = STOPPED[name].client()
        optimizer = LLMOptimizer.load(folder / f"{name}.jsonl", client)
        optimizer.save(folder / f"{name}-saved.jsonl")


CODE_STOP = 5
CODE_STEPS = 5
OPTUNA_STOP = 9
OPTUNA_STEPS = 15


def write_code(path: Path) -> dict[str, Any]:
    """Write the file of a code search that ends in a reply which no candidate came of."""
    path.unlink(missing_ok=True)
    record = code_search(model(coder), CODE_STEPS)
    with contextlib.suppress(Stop):
        code_search(model(coder, fails={CODE_STOP: Stop()}), CODE_STEPS, storage=path)
    lines = path.read_text().splitlines(keepends=True)
    while '"event":"reply"' not in lines[-1].replace(" ", ""):
        lines.pop()
    path.write_text("".join(lines))
    return record


def write_run(folder: Path) -> None:
    """Write the folder of an ``llmopt run`` that its cap on requests stopped."""
    shutil.rmtree(folder, ignore_errors=True)
    with server() as environment:
        status = command(*RUN, "--out", folder, "--max-requests", "3", **environment)
    print(f"  run: stopped with status {status}")


def rest_of_run(folder: Path) -> dict[str, Any]:
    with server() as environment:
        status = command(
            "run", "cartpole", "--resume", "--out", folder, "--max-requests", "99", **environment
        )
    return {"status": status, **run_facts(folder)}


# -- the records ---------------------------------------------------------------------------

GROUPS: dict[str, Callable[[], dict[str, Case]]] = {
    "prompts": prompts,
    "ways": ways,
    "partner": partner,
    "optuna": optuna_cases,
    "nevergrad": nevergrad_cases,
    "code": code,
    "commands": commands,
    "embedded": embedded,
}


def in_json(value: Any) -> Any:
    """Return what is left of a value after it was written as JSON and read."""
    return json.loads(json.dumps(value))


def write(name: str, records: Mapping[str, Any]) -> None:
    """Write one file of records, one line for each part of a case."""
    cases = []
    for case, record in records.items():
        parts = (f"  {json.dumps(k)}: {_lines(v)}" for k, v in record.items())
        cases.append(f"{json.dumps(case)}: {{\n" + ",\n".join(parts) + "\n}")
    text = "{\n" + ",\n".join(cases) + "\n}\n"
    assert json.loads(text) == in_json(records)
    (DATA / f"{name}.json").write_text(text, encoding="utf-8")


def _lines(value: Any) -> str:
    if isinstance(value, (list, tuple)) and len(value) > 1:
        return "[\n    " + ",\n    ".join(map(_short, value)) + "]"
    return _short(value)


def _short(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def read(name: str) -> dict[str, Any]:
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


def write_storage() -> None:
    """Write the files of stopped searches, and what follows each."""
    folder = DATA / "stopped"
    folder.mkdir(exist_ok=True)
    write("stopped", write_stopped(folder))
    write_saved(folder)
    write("stopped_code", {"code": write_code(folder / "code.jsonl")})
    journal = folder / "optuna.log"
    journal.unlink(missing_ok=True)
    optuna_study(OPTUNA_STOP, storage=optuna_journal(journal))
    write("stopped_optuna", {"conditional": optuna_study(OPTUNA_STEPS)})
    write_run(folder / "run")
    write("stopped_run", {"run": in_folder(whole_run)})


def main(names: Sequence[str]) -> None:
    """Write the named groups of records, or all."""
    DATA.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        for name in names or (*GROUPS, "stopped"):
            print(name)
            if name == "stopped":
                write_storage()
            else:
                write(name, {case: make() for case, make in GROUPS[name]().items()})


if __name__ == "__main__":
    main(sys.argv[1:])
