"""Every method of the benchmark behind one ask/tell interface.

All methods meet the same problem in the same way: the same box, the same warm-up points with
their rewards, one proposal at a time, the same number of evaluations. What a method can take
of the warm-up it is given: the model's history and Optuna's and Nevergrad's take all points;
CMA-ES and ARS start from the best one; random search has no start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from llmopt.benchmarks.extras import require_packages
from llmopt.benchmarks.methods.baselines import (
    ARS,
    CMA,
    BipopCMA,
    GaussianGrammarClient,
    RandomSearch,
)
from llmopt.benchmarks.methods.libraries import BayBE, Optuna
from llmopt.benchmarks.methods.model import ModelMethod
from llmopt.benchmarks.methods.protocol import Method, Problem
from llmopt.benchmarks.methods.turbo import Turbo
from llmopt.client.base import Client
from llmopt.client.local.network import NetworkClient
from llmopt.client.model_string import get_client
from llmopt.errors import LLMOptError, did_you_mean
from llmopt.prompt import Prompt, check_prompt_for, get_prompt

Group = Literal["model", "ablation", "baseline"]


@dataclass(frozen=True)
class Asking:
    """How a model is asked."""

    client: Client | None = None  # the model, or `None` where there is none
    batch_size: int = 1  # points asked in one request
    options: Mapping[str, Any] = field(default_factory=dict)  # of `ModelMethod`


@dataclass(frozen=True)
class MethodSpec:
    """One method of the benchmark."""

    label: str  # what tables and pictures call it; `{model}` is replaced by the model's name
    # makes it of problem, seed and how a model is asked
    make: Callable[[Problem, np.random.SeedSequence, Asking], Method]
    group: Group  # `"model"`, `"ablation"` or `"baseline"`
    needs: tuple[str, ...] = ()
    asks_model: bool = False  # whether it sends requests to the model
    prompt: str | Prompt | None = None  # of a model or of its stand-in


def prompt_spec(label: str, prompt: str | Prompt) -> MethodSpec:
    """Describe the model under a prompt."""

    def make(problem: Problem, seed: np.random.SeedSequence, asking: Asking) -> Method:
        return _model_method(problem, seed, asking, get_prompt(prompt))

    return MethodSpec(label, make, "model", (), True, prompt)


def _model_method(
    problem: Problem, seed: np.random.SeedSequence, asking: Asking, prompt: Prompt
) -> Method:
    if asking.client is None:
        raise LLMOptError("this method needs a model: give one with --model")
    try:
        check_prompt_for(prompt, asking.client)
    except ValueError as error:
        raise LLMOptError(str(error)) from error
    return ModelMethod(problem, asking.client, prompt, seed, asking.batch_size, **asking.options)


def _sampler(label: str, client_class: type[Any], prompt: str) -> MethodSpec:
    def make(problem: Problem, seed: np.random.SeedSequence, asking: Asking) -> Method:
        asked = replace(asking, client=client_class())
        return _model_method(problem, seed, asked, get_prompt(prompt))

    return MethodSpec(label, make, "ablation", (), False, prompt)


def _baseline(
    label: str, make: Callable[[Problem, np.random.SeedSequence], Method], *needs: str
) -> MethodSpec:
    return MethodSpec(label, lambda problem, seed, asking: make(problem, seed), "baseline", needs)


def _optuna(name: str, *needs: str) -> MethodSpec:
    return _baseline(f"Optuna {name}", partial(Optuna, name), "optuna", *needs)


def _cma(kind: type[CMA], problem: Problem, seed: np.random.SeedSequence) -> Method:
    return kind(problem.low, problem.high, problem.n, seed, problem.start)


METHODS: Mapping[str, MethodSpec] = {
    "llm-columns": prompt_spec("{model} (columns)", "columns"),
    "llm-words": prompt_spec("{model} (words)", "words"),
    "llm-props": prompt_spec("{model} (props)", "props"),
    "llm-props-ab": prompt_spec("{model} (props-ab)", "props-ab"),
    "llm-props-plus": prompt_spec("{model} (props-plus)", "props-plus"),
    "llm-opro": prompt_spec("{model} (opro)", "opro"),
    "columns-gaussian": _sampler(
        "Gaussian samples, without a model", GaussianGrammarClient, "columns"
    ),
    "columns-network": _sampler("small network", NetworkClient, "columns"),
    "cma": _baseline("CMA-ES", partial(_cma, CMA), "cma"),
    "cma-bipop": _baseline("CMA-ES (BIPOP)", partial(_cma, BipopCMA), "cma"),
    "optuna-tpe": _optuna("TPE"),
    "optuna-tpe-tuned": _optuna("TPE, tuned"),
    "optuna-gp": _optuna("GP", "torch", "scipy"),
    "baybe": _baseline("BayBE", BayBE, "baybe"),
    "turbo": _baseline("TuRBO", Turbo, "torch", "botorch"),
    "ars": _baseline("ARS", ARS),
    "random": _baseline("random search", RandomSearch),
}
"""Every method by its name, in the order of tables."""


def check_names(names: Sequence[str], *more: str) -> None:
    """Raise if a name is no method's."""
    valid = {*METHODS, *more}
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"method {name!r}: expected a name")
        parts = [part.strip() for part in name.split(",")]
        if len(parts) > 1 and valid.issuperset(parts):
            raise ValueError(
                f"methods {name!r}: give them with spaces between, without commas: "
                f"--methods {' '.join(parts)}"
            )
        if name not in valid:
            raise ValueError(f"unknown method {name!r}: {did_you_mean(name, valid)}")


def check_method(name: str) -> MethodSpec:
    """Return a method's entry in the table if it can run here."""
    spec = METHODS.get(name)
    if spec is None:
        raise LLMOptError(f"unknown method {name!r}: {did_you_mean(name, METHODS)}")
    require_packages(f"the method {name!r}", spec.needs)
    return spec


def make_method(
    name: str,
    problem: Problem,
    seed: np.random.SeedSequence,
    *,
    client: Client | str | None = None,
    batch_size: int = 1,
) -> Method:
    """Make a method by name."""
    spec = check_method(name)
    made = get_client(client) if isinstance(client, str) else client
    return spec.make(problem, seed, Asking(made, batch_size))
