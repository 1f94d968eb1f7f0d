"""Checks of what a caller passed: got, expected."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import numbers
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

import numpy as np

from llmopt.errors import did_you_mean
from llmopt.util.text import function_name, short

_MOST_SOURCE = 20_000  # characters of a function's source that is sent

MOST_AT_ONCE = 1000
"""Points, answers or repairs of one call: with more it would go on for hours."""

MOST_POINTS = 100_000
"""Points of one call that draws them without a model."""

# What an argument holds, and its names in the entry points of this library and of others.
_SAME = (
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
    ("evaluations at once are counted by", "n_jobs n_workers num_workers workers n_threads"),
    ("seconds are limited by", "timeout walltime_limit max_time time_limit time_budget_s"),
    ("points to begin with are", "start x0 initial_guess points_to_evaluate"),
    ("progress is shown by", "progress show_progress_bar verbose"),
    ("a list of callbacks is", "callbacks callback"),
    ("an interrupted search is kept in", "storage study_name load_if_exists checkpoint"),
)

_IN_CLIENT = "belongs to the model: give get_client({!r}, {}=...) as the client"
_IN_LOOP = (
    "belongs to llmopt.minimize(), maximize() and optimize(), and to study.optimize(). In your own "
    "loop ask(8) returns eight points to evaluate at once"
)
# Names that no entry point of a search has, and where they belong.
_ELSEWHERE = {
    **{name: _IN_LOOP for name in ("n_jobs", "executor", "n_workers", "workers")},
    **{
        name: _IN_CLIENT.format("openai:NAME", name)
        for name in ("api_key", "base_url", "effort", "retries")
    },
    "seeded": "belongs to LLMOptimizer, minimize(), maximize() and optimize(). Sample the seed in "
    "the objective, and give noisy=True",
    "direction": "belongs to the study, or to LLMOptimizer; else call minimize() or maximize()",
    "directions": 'is called direction in LLMOptimizer: direction=["minimize", "maximize"]; for a '
    "whole search call optimize()",
    "temperature": "belongs to the prompt: prompt=get_prompt('words', temperature=0.7)",
    "timeout": "belongs to llmopt.minimize(), and the time that a request may take to the model: "
    "get_client('openai:NAME', timeout=60)",
}

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
}

_Call = TypeVar("_Call", bound=Callable[..., Any])

_NEAR = 0.72  # how like a name has to be, from 0 to 1, to be meant

MOST_SEED = 2**128 - 1
MOST_COUNT = 2**63 - 1
"""So that it fits into a machine's integer."""


def check_function(f: Any, seeded: bool) -> None:
    """Raise unless `f` can be called with one point, and with ``seed=`` where it is `seeded`."""
    if not callable(f):
        raise TypeError(
            f"f={short(f)}: expected a function of a point; the function comes first, then the "
            "space: minimize(f, space, n_trials)"
        )
    name = function_name(f, "the objective")
    if inspect.iscoroutinefunction(f) or inspect.iscoroutinefunction(type(f).__call__):
        raise TypeError(
            f"{name} is an async function: give a plain one, such as "
            "lambda point: asyncio.run(f(point)), or await it in your own loop with "
            "LLMOptimizer.aask() and atell()"
        )
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):  # written in C
        return
    try:
        signature.bind(None, **({"seed": 0} if seeded else {}))
    except TypeError:
        wanted = (
            "a point and a seed, such as f(point, seed), since seeded=True" if seeded else
            'one argument, a point such as {"x": 1.0}. For f(x, y) give lambda point: f(**point)'
        )  # fmt: skip
        raise TypeError(f"{name}{signature}: expected a function of {wanted}") from None


def whole_number(name: str, value: Any, least: int, most: int = MOST_COUNT) -> int:
    """Return an argument's value as an ``int``."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or not least <= value <= most:
        bounded = most < MOST_COUNT or (whole and value > most)
        span = f"from {least} to {most:,}" if bounded else f"of at least {least}"
        raise ValueError(f"{name}={short(value)}: expected a whole number {span}")
    return int(value)


def seed_or_fresh(seed: Any) -> int:
    """Return a caller's seed, or a fresh one for ``None``."""
    if seed is not None:
        return whole_number("seed", seed, 0, MOST_SEED)
    return int(np.random.SeedSequence().entropy)  # type: ignore[arg-type]


def whole_or_auto(
    name: str, value: Any, least: int, most: int = MOST_COUNT
) -> int | Literal["auto"]:
    """Return a whole number as an ``int``, or ``"auto"``."""
    if isinstance(value, str) and value == "auto":
        return "auto"
    try:
        return whole_number(name, value, least, most)
    except ValueError as error:
        raise ValueError(f"{error}, or 'auto'") from None


def number(name: str, value: Any, least: float = -math.inf) -> float:
    """Return a value, of a file say, as a finite ``float``."""
    real = isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)
    if not real or not max(least, -sys.float_info.max) <= value <= sys.float_info.max:
        span = f" of at least {least:g}" if math.isfinite(least) else ""
        raise ValueError(f"{name}={short(value)}: expected a finite number{span}")
    return float(value)


def finite(value: Any) -> float | None:
    """Return a finite number as a float; ``None`` for whatever else there is."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.ravel()[0]
    if isinstance(value, np.complexfloating) or not isinstance(
        value, bool | int | float | np.number | np.bool_
    ):
        return None
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):  # a whole number of 400 digits, a duration
        return None
    return number if math.isfinite(number) else None


def one_of(name: str, value: Any, valid: Sequence[Any]) -> None:
    """Raise unless an argument has one of the values that it may have."""
    if value not in valid:
        raise ValueError(f"{name}={short(value)}: expected one of {', '.join(map(repr, valid))}")


def check_names(call: str, given: Iterable[str], valid: Iterable[str]) -> None:
    """Raise a `TypeError` if a call was given an argument by a name that it does not have."""
    names = list(valid)
    for name in given:
        if name not in names:
            elsewhere = _OF_ADAPTERS.get(call, {})
            call = call if call.endswith(")") else f"{call}()"
            remedy = f"{name!r} {elsewhere[name]}" if name in elsewhere else ""
            remedy = remedy or _called_here(name, names) or did_you_mean(name, names, _NEAR)
            raise TypeError(f"{call} has no argument {name!r}; {remedy}")


def checked_call(example: str) -> Callable[[_Call], _Call]:
    """Have a function name the arguments that it lacks or does not have; see `check_names`.

    `example` is a call, for the message.
    """

    def checked(function: _Call) -> _Call:
        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            try:
                return function(*args, **named)
            except TypeError:  # binding takes as long as a whole `tell`, so only now
                signature = inspect.signature(function)
                try:
                    signature.bind(*args, **named)
                except TypeError as error:
                    name = function.__name__
                    check_names(name, named, [n for n in signature.parameters if n != "self"])
                    raise TypeError(f"{name}(): {error}; write {example}") from None
                raise

        return cast("_Call", call)

    return checked


def _called_here(name: str, valid: Sequence[str]) -> str:
    """Return which name an argument has here, or where it belongs, if it is known elsewhere."""
    for about, names in _SAME:
        same = names.split()
        here = next((n for n in same if n in valid), None)
        if name in same and here:
            return f"here {about} {here!r}"
    if name not in _ELSEWHERE and difflib.get_close_matches(name, valid, 1, _NEAR):
        return ""
    near = difflib.get_close_matches(name, _ELSEWHERE, 1, 0.8)
    return f"{near[0]!r} {_ELSEWHERE[near[0]]}" if near else ""


def describe(description: str | Callable[..., Any] | None) -> str:
    """Return a description in words: the text itself, or the source of a function.

    Args:
        description: The task in words; or the objective, whose source (with its docstring)
            the model is then shown. A lambda, a ``functools.partial``, a method or an object
            with ``__call__`` may be given. Of bound arguments the names are shown, never
            the values. ``None`` for no description.

    Raises:
        ValueError: It is neither, or its source cannot be had.
    """
    if description is None or isinstance(description, str):
        return description or ""
    if not callable(description):
        raise ValueError(
            f"description={short(description)}: expected a string, or the objective function, "
            "whose source the model is then shown"
        )
    function: Any = description
    bound: list[str] = []
    while isinstance(function, functools.partial):
        positional = list(_parameter_names(function.func))[: len(function.args)]
        bound = [*positional, *function.keywords, *bound]
        function = function.func
    if not (inspect.isroutine(function) or inspect.isclass(function)):
        function = type(function)  # an object with __call__: all of its class
    try:
        source = textwrap.dedent(inspect.getsource(function)).strip()
    except (OSError, TypeError, SyntaxError) as error:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise ValueError(
            f"description={name}: its source cannot be read ({error}). Describe the task in "
            "words, or define the function in a file"
        ) from error
    if len(source) > _MOST_SOURCE:
        raise ValueError(
            f"description={function.__qualname__}: its source has {len(source)} characters, "
            f"expected at most {_MOST_SOURCE}. Describe the task in words"
        )
    given = f"\n(given beforehand: {', '.join(dict.fromkeys(bound))})" if bound else ""
    return f"f is computed by this Python code:\n\n{source}{given}"


def _parameter_names(function: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()
