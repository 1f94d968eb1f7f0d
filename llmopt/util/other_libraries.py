"""Names that other libraries have for what is here, so that an error can say what to type."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

NEAR = 0.72
"""How like an argument's name has to be, from 0 to 1, to be meant."""

# What an argument holds, and its names in the entry points of this library and of others.
_SAME = tuple(
    (about, names.split())
    for about, names in (
        (
            "start-up trials are counted by",
            "n_startup_trials warmup n_initial_points n_random_starts n_initial init_points",
        ),
        (
            "trials are counted by",
            "n_trials total evaluations trials max_evals n_calls n_iter n_iterations iterations "
            "max_iter maxiter maxfun max_evaluations num_samples budget",
        ),
        ("the seed is", "seed random_state rng rstate random_seed"),
        (
            "evaluations at once are counted by",
            "n_jobs n_workers num_workers max_workers workers n_threads parallel processes",
        ),
        ("points of a request are counted by", "batch_size batch"),
        ("seconds are limited by", "timeout walltime_limit max_time time_limit time_budget_s"),
        ("US dollars are limited by", "max_cost budget_usd max_budget cost_limit"),
        ("points to begin with are", "start x0 initial_guess points_to_evaluate init initial"),
        ("progress is shown by", "progress show_progress_bar verbose"),
        ("a list of callbacks is", "callbacks callback"),
        (
            "a search is kept in, and resumed from, the file of",
            "storage study_name load_if_exists checkpoint resume output_directory",
        ),
        ("the task in words is", "description instructions task_description"),
        ("a template of your own is", "prompt prompt_template system system_prompt template"),
        (
            "calls of a request that fails are counted by",
            "transport_attempts retries n_retries max_retries num_retries",
        ),
        # Of policies.
        ("the steps of an episode are limited by", "max_steps max_episode_steps episode_length"),
        ("episodes of an evaluation are counted by", "starts episodes n_episodes n_eval_episodes"),
        # Of `tell`.
        ("a result, of either direction, is", "reward value values loss score cost objective"),
        # Of dimensions.
        ("the lower bound is", "low lower min minimum lb"),
        ("the upper bound is", "high upper max maximum ub"),
        ("the distance of neighbouring values is", "step q quantum multipleOf"),
        ("the values of a choice are", "choices values options categories sequence enum"),
        ("a condition is", "when condition conditions active_if"),
    )
)

_IN_CLIENT = "belongs to the model: give get_client('openai:NAME', {}=...) as the client"
_IN_LOOP = (
    "belongs to llmopt.minimize(), maximize() and optimize(), and to study.optimize(). In your own "
    "loop ask(8) returns eight points to evaluate at once"
)
# Names that no entry point of a search has, and where they belong.
_ELSEWHERE = {
    **{name: _IN_LOOP for name in ("n_jobs", "executor", "n_workers", "workers")},
    **{name: _IN_CLIENT.format(name) for name in ("api_key", "base_url", "effort")},
    **{
        name: _IN_CLIENT.format("transport_attempts")
        for name in ("retries", "n_retries", "max_retries", "num_retries")
    },
    "seeded": "belongs to LLMOptimizer, minimize(), maximize() and optimize(). Sample the seed in "
    "the objective, and give noisy=True",
    "direction": "belongs to the study, or to LLMOptimizer; else call minimize() or maximize()",
    "directions": 'is called direction in LLMOptimizer: direction=["minimize", "maximize"]; for a '
    "whole search call optimize()",
    "temperature": "belongs to the prompt: prompt=get_prompt('words', temperature=0.7)",
    "timeout": "belongs to llmopt.minimize(), and the time that a request may take to the model: "
    "get_client('openai:NAME', timeout=60)",
    "eval_timeout": "is for the objective: let it raise an error when it takes too long, and name "
    "the error's class in catch=, so that the trial fails and the search continues",
    "sampler": "belongs to optuna.create_study(): sampler=LLMSampler('openai:NAME'), from "
    "llmopt.adapters.optuna. Here client= names the model, and partner= who else proposes",
    "pruner": "belongs to optuna.create_study(), with LLMSampler of llmopt.adapters.optuna as the "
    "sampler",
    "bounds": "belongs to the space: {'x': llmopt.Float(0, 1)}",
    "default": "belongs to the search: start=[{...}] with a value for each parameter",
    "conditions": "belongs to the dimensions: Float(0, 1, when={'kind': 'a'})",
}
_OF_CLIENTS = tuple(name for name, text in _ELSEWHERE.items() if "get_client" in text)

# What other searches take, and the way to it of the libraries that keep the trials themselves.
_MADE = "belongs to the optimizer: ParametrizedLLM(...)(parametrization, budget=100, num_workers=4)"
_OF_STUDY = "belongs to the study: optuna.create_study(sampler=..., {})"
_OF_ADAPTERS: Mapping[str, Mapping[str, str]] = {
    "LLMSampler": {
        "storage": _OF_STUDY.format('storage="sqlite:///study.db"'),
        "direction": _OF_STUDY.format('direction="minimize"'),
        "directions": _OF_STUDY.format('directions=["minimize", "maximize"]'),
        "start": "belongs to the study: study.enqueue_trial({...}), before study.optimize",
        "callbacks": "belongs to the study: study.optimize(objective, callbacks=[...])",
        "import_trials": "belongs to the study: study.add_trials(other_study.trials)",
        "constraints_func": "is trial.set_constraint(name, amount) in the objective, or in Optuna "
        '4.8 trial.set_system_attr("constraints", [amount]); above 0 is a violation. For linear '
        "inequalities of parameters give constraints=",
    },
    "ParametrizedLLM": {
        "seed": "belongs to the parametrization: parametrization.random_state.seed(3)",
        "storage": 'is optimizer.dump("search.pkl"), and ParametrizedLLM().load("search.pkl")',
        "start": "is optimizer.suggest(...), or suggest_known(words, ...), before the first ask",
        "callbacks": 'is optimizer.register_callback("tell", callback)',
        "import_trials": "is optimizer.tell(parametrization.spawn_child(new_value=...), loss)",
        "direction": "is not needed: Nevergrad minimizes. Return the negative of what is to grow",
        "directions": "is not needed: optimizer.tell(candidate, [0.5, 3.0]) takes several losses",
        **dict.fromkeys(("budget", "num_workers", "n_jobs"), _MADE),
    },
    "PolicySearch": dict.fromkeys(
        ("direction", "directions"),
        "is not needed: a policy search maximizes the mean return of an episode. To minimize a "
        "cost, let the environment's reward be the negative cost",
    ),
}

# Attributes of results and optimizers.
_OF_RESULTS = {
    **dict.fromkeys("best_params best_point best_config x xopt argmin".split(), "best.params"),
    **dict.fromkeys("best_value best_reward best_score best_loss fun fmin".split(), "best.reward"),
    **dict.fromkeys(("best_trial", "recommend"), "best"),
    **dict.fromkeys(("best_trials", "pareto_front"), "pareto"),
}
_CALLS = {
    **dict.fromkeys(
        ("minimize", "optimize", "run"),
        "call llmopt.minimize(f, space, n_trials), or ask() and tell() in your own loop",
    ),
    "maximize": "call llmopt.maximize(f, space, n_trials), or ask() and tell() in your own loop",
    "learn": "call run(evaluations)",
}

# Attributes of the module.
_HOMES = {
    "LLMSampler": "llmopt.adapters.optuna",
    "PolicySearch": "llmopt.policies",
    "LinearPolicy": "llmopt.policies",
    "load_policy": "llmopt.policies",
    "CodeOptimizer": "llmopt.code",
    "Limits": "llmopt.search.limits",
    "write_report": "llmopt.report",
}
_OF_MODULE = {
    **dict.fromkeys("Integer IntDistribution RandInt randint".split(), "llmopt.Int(1, 6)"),
    **dict.fromkeys(
        "Real Uniform FloatDistribution UniformFloat uniform".split(), "llmopt.Float(0, 1)"
    ),
    **dict.fromkeys("LogUniform loguniform Log".split(), "llmopt.Float(1e-5, 0.1, log=True)"),
    **dict.fromkeys(
        "Choice Choices CategoricalDistribution choice".split(), "llmopt.Categorical(['a', 'b'])"
    ),
    **dict.fromkeys("Bool Boolean".split(), "llmopt.Categorical([False, True])"),
    "Constant": "the value in your objective, or llmopt.Categorical([value])",
    **dict.fromkeys(
        "create_study fmin fmin2 gp_minimize Study".split(),
        "llmopt.minimize(f, space, n_trials); for an Optuna study give LLMSampler, from "
        "llmopt.adapters.optuna, to optuna.create_study()",
    ),
    **dict.fromkeys("Optimizer BayesianOptimization".split(), "llmopt.LLMOptimizer(space)"),
}


def called_here(name: str, valid: Iterable[str]) -> tuple[str, str] | None:
    """Return what an argument of another library holds, and which of the valid names holds it."""
    valid = list(valid)
    for about, names in _SAME:
        here = next((n for n in names if n in valid), None)
        if name in names and here:
            return about, here
    return None


def argument_hint(name: str, valid: Sequence[str], *, call: str = "") -> str:
    """Return which name an argument has here, or where it belongs, if it is known elsewhere.

    Args:
        name: What a call was given.
        valid: The names that it has.
        call: The call, as its message names it.
    """
    if name in _OF_ADAPTERS.get(call, {}):
        return f"{name!r} {_OF_ADAPTERS[call][name]}"
    if found := called_here(name, valid):
        return f"here {found[0]} {found[1]!r}"
    if name not in _ELSEWHERE and difflib.get_close_matches(name, valid, 1, NEAR):
        return ""
    near = difflib.get_close_matches(name, _ELSEWHERE, 1, 0.8)
    if not near or (call.startswith("get_client(") and near[0] in _OF_CLIENTS):
        return ""
    return f"{near[0]!r} {_ELSEWHERE[near[0]]}"


def module_hint(name: str, valid: Iterable[str]) -> str:
    """Return what to type for an attribute that ``llmopt`` does not have, or an empty string."""
    if name in _HOMES:
        return f"from {_HOMES[name]} import {name}"
    if name in _OF_MODULE:
        return f"write {_OF_MODULE[name]}"
    near = difflib.get_close_matches(name, list(valid), 1, NEAR)
    return f"did you mean {near[0]!r}?" if near else ""


_OF_TRIALS = {
    **dict.fromkeys("value loss score cost result objective".split(), "reward"),
    **dict.fromkeys("param parameters config point x kwargs".split(), "params"),
    **dict.fromkeys("user_attrs attributes info".split(), "feedback, or .data"),
    **dict.fromkeys("status".split(), "state"),
}


def attribute_hint(of: object, name: str, hints: Mapping[str, str]) -> None:
    """Raise an `AttributeError` that says what a missing attribute is called here, if known."""
    if name in hints:
        raise AttributeError(
            f"{type(of).__name__} has no attribute {name!r}: {hints[name]}", name=name, obj=of
        )


class HintedTrial:
    """Has an error about a missing attribute say what a trial calls it here."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            attribute_hint(self, name, {n: f"write .{here}" for n, here in _OF_TRIALS.items()})
            return object.__getattribute__(self, name)


class Hinted:
    """Has an error about a missing attribute say what the attribute is called here."""

    if not TYPE_CHECKING:  # to a type checker a missing attribute is one

        def __getattr__(self, name: str) -> Any:
            hints: Mapping[str, str] = {
                **{n: f"write .{here}" for n, here in _OF_RESULTS.items()},
                **_CALLS,
            }
            inner = self.__dict__.get("optimizer")  # of a PolicySearch
            lacks = not (name.startswith("_") or hasattr(type(self), name))
            if lacks and hasattr(type(inner), name):
                hints = {name: f"write .optimizer.{name}"} | {**hints}
            attribute_hint(self, name, hints)
            return object.__getattribute__(self, name)  # raises what a property raised
