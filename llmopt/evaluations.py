"""The results of evaluations: what `tell` accepts, checked before anything is recorded."""

from __future__ import annotations

import json
import math
import numbers
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias, TypedDict, get_args

import numpy as np

from llmopt.data import NO_DATA, TrialData
from llmopt.errors import ParameterError, RewardError
from llmopt.history import Direction, joined
from llmopt.space import Categorical, Space, Value
from llmopt.space.values import ABSENT, as_number
from llmopt.util.arguments import MOST_SEED, whole_number
from llmopt.util.caller import CALLER
from llmopt.util.text import a_type, clean, cut, describe_curve, short, written

_MOST_PARTS = 20  # of a reward
_MOST_NAME = 200  # characters of an objective's name, which each prompt has several times


Errors: TypeAlias = float | Sequence[float | None] | Mapping[str, float | None]
"""Standard errors: that of the first objective, or of each one, in their order or by name."""


@dataclass(frozen=True)
class Result:
    """The result of one evaluation; the attributes are those of `Trial`, `values` the point."""

    values: tuple[Value, ...]
    rewards: tuple[float, ...] | None
    feedback: str = ""
    violation: float = 0.0
    stderr: float | tuple[float | None, ...] | None = None
    samples: tuple[float, ...] = ()
    data: TrialData = NO_DATA
    seed: int | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    instead_of: tuple[Value, ...] | None = None
    replaces: int | None = None
    asked: int = 0  # which one of several equal pending points; 0 for the oldest
    origin: str = ""  # of an imported trial
    revisions: Mapping[str, int] = field(default_factory=dict)


def read_directions(direction: Any, name: str = "direction") -> tuple[Direction, ...]:
    """Return one direction for each objective."""
    many = isinstance(direction, Sequence) and not isinstance(direction, str)
    found: tuple[Direction, ...] = tuple(direction) if many else (direction,)
    for one in found:
        if one not in get_args(Direction):
            near = {"max": "maximize", "min": "minimize"}.get(str(one).lower()[:3], "")
            meant = f"; did you mean {near!r}?" if near else ""
            raise ValueError(f"{name}={short(direction)}: expected 'maximize' or 'minimize'{meant}")
    if not found:
        raise ValueError(f"{name}=(): expected at least one of 'maximize' and 'minimize'")
    return found


def objective_name(name: object) -> str:
    """Return a name as prompts show it, on one line; empty for what is no name."""
    return " ".join(clean(name).split()) if isinstance(name, str) else ""


def expected_by_name(rewards: Mapping[Any, Any], names: Sequence[str]) -> str:
    """Return what rewards by the names of the objectives should be; empty if they are that."""
    given = [objective_name(name) for name in rewards]
    if set(given) == set(names) and len(given) == len(names):
        return ""
    missing = [repr(name) for name in names if name not in given]
    unknown = [repr(name) for name in dict.fromkeys(given) if name not in names]
    wrong = f"; missing: {', '.join(missing)}" if missing else ""
    wrong += f"; unknown: {', '.join(unknown)}" if unknown else ""
    return f"expected one number for each objective: {', '.join(map(repr, names))}{wrong}"


def read_objectives(
    direction: Any, name: str = "direction"
) -> tuple[tuple[Direction, ...], tuple[str, ...]]:
    """Return one direction for each objective, and their names where a mapping gives them."""
    if not isinstance(direction, Mapping):
        return read_directions(direction, name), ()
    names = tuple(map(objective_name, direction))
    if not all(0 < len(n) <= _MOST_NAME for n in names) or len(set(names)) < len(names):
        raise ValueError(
            f"{name}={short(direction)}: expected a name of at most {_MOST_NAME} characters for "
            'each objective, such as {"cost": "minimize", "error": "minimize"}'
        )
    return read_directions(tuple(direction.values()), name), names


class TellArguments(TypedDict, total=False):
    """The arguments of `LLMOptimizer.tell` that are given by name."""

    feedback: str
    constraint_violation: float
    stderr: Errors | None
    samples: Sequence[float]
    curve: Sequence[float] | Sequence[tuple[float, float]]
    data: Mapping[str, Any] | None
    seed: int | None
    parts: Mapping[str, float | None]
    instead_of: Any
    replaces: int | None


def read_result(
    space: Space,
    objectives: int,
    params: Any,
    reward: Any,
    *,
    feedback: str = "",
    constraint_violation: float = 0.0,
    stderr: Errors | None = None,
    samples: Sequence[float] = (),
    curve: Sequence[float] | Sequence[tuple[float, float]] = (),
    data: Mapping[str, Any] | None = None,
    seed: int | None = None,
    parts: Mapping[str, float | None] = MappingProxyType({}),
    instead_of: Any = None,
    replaces: int | None = None,
    beyond: bool = False,
    direction: Direction = "maximize",
    names: Sequence[str] = (),
) -> Result:
    """Check the arguments of `LLMOptimizer.tell`, and return the result that they describe.

    A number may lie between two steps, and beyond its bound if it is `beyond`, or if the result
    names the point or the trial whose place it takes.
    """
    beyond = beyond or instead_of is not None or replaces is not None
    values = evaluated_point(space, params, beyond)
    rewards, trouble = _rewards(reward, objectives, names)
    if not isinstance(feedback, str):
        raise TypeError(f"feedback={feedback!r}: expected a string")
    way = "" if isinstance(curve, tuple) and not curve else describe_curve(_curve(curve), direction)
    trouble = "" if feedback.startswith(trouble) else trouble  # an import of what `tell` recorded
    trouble = "no reward" if reward is None and not feedback else trouble
    feedback = "; ".join(filter(None, [trouble, way, feedback]))
    violation = _amount(constraint_violation, "constraint_violation")
    if space.constraints:
        violation += sum(space.broken(values).values())
    if isinstance(samples, (str, numbers.Number)) or not isinstance(samples, Iterable):
        raise RewardError(
            f"samples={short(samples)}: expected a list of numbers, whose mean is the reward"
        )
    each = tuple([_number(sample, "samples") for sample in samples])
    if not all(map(math.isfinite, each)):
        raise RewardError(f"samples={list(each)}: expected finite numbers")
    if (
        each
        and rewards is not None
        and not math.isclose(
            np.mean(each), rewards[0], rel_tol=1e-4, abs_tol=1e-4 * float(np.std(each)) + 1e-12
        )
    ):
        raise RewardError(
            f"samples={short(list(each))}: their mean is {np.mean(each):.6g}, and the reward "
            f"{rewards[0]:.6g}; give the mean as the reward, or leave samples out"
        )
    if stderr is None and len(each) > 1:
        stderr = float(np.std(each, ddof=1)) / math.sqrt(len(each))
    errors = None if stderr is None else _errors(stderr, objectives, names)
    if seed is not None:
        seed = whole_number("seed", seed, 0, MOST_SEED)
    if replaces is not None:
        replaces = whole_number("replaces", replaces, 0)
    if replaces is not None and instead_of is not None:
        one, other = map(CALLER.get().argument, ("instead_of", "replaces"))
        raise RewardError(
            f"got {one} and {other}: give {other} alone, or withdraw the trial and record it anew"
        )
    return Result(
        values,
        rewards,
        feedback,
        violation,
        errors,
        each,
        data=NO_DATA if data is None else TrialData.of(data),
        seed=seed,
        parts=_parts(parts, names, replaces is not None),
        instead_of=None if instead_of is None else evaluated_point(space, instead_of, True),
        replaces=replaces,
    )


def evaluated_point(space: Space, params: Any, beyond: bool = False) -> tuple[Value, ...]:
    """Return the values of an evaluated point, or raise `ParameterError` with a remedy."""
    values = space.flatten(params, measured=True)
    if not beyond and (outside := space.deviation(values, steps=False)):
        raise ParameterError(
            f"{outside}. If it was measured in place of a pending point, give that as "
            f"{CALLER.get().argument('instead_of')}; else make a search with a wider range, and "
            "import the trials of this one"
        )
    return values


def refuse_far(space: Space, values: tuple[Value, ...]) -> None:
    """Raise `ParameterError` if a number lies so far beyond its bound that it must be mistyped.

    That is by more than the width of its range or, on a log scale, the factor of its bounds.
    """
    for name, dimension, value in zip(space.names, space.dimensions, values, strict=True):
        if isinstance(dimension, Categorical) or value is ABSENT or dimension.low == dimension.high:
            continue
        low, high = dimension.low, dimension.high
        if dimension.log:
            least, most = low / (high / low), high * (high / low)
        else:
            least, most = low - (high - low), high + (high - low)
        if not least <= value <= most:
            raise ParameterError(
                f"`{name}`={value!r} is far outside [{low!r}, {high!r}]: a measured value may lie "
                f"in [{least:.6g}, {most:.6g}]. Check it; if it is right, make a search with a "
                "wider range, and import the trials of this one"
            )


def part_name(name: object) -> str:
    """Return the name of a part of a reward as prompts show it; empty for what is no name."""
    return cut(objective_name(name), _MOST_NAME)


def _parts(parts: Any, objectives: Sequence[str], corrects: bool) -> dict[str, float]:
    """Return the named parts of a reward; those that are NaN or infinite are dropped.

    In a correction ``None`` removes a part: these are left out.
    """
    if not isinstance(parts, Mapping) or not all(objective_name(name) for name in parts):
        raise RewardError(
            f"parts={short(parts)}: expected a mapping of names to numbers, such as "
            '{"desired": 78.8, "undesired": 1.0}'
        )
    if len(parts) > _MOST_PARTS:
        raise RewardError(
            f"parts: got {len(parts)}, expected at most {_MOST_PARTS}, which every prompt shows; "
            "give further numbers as `data`"
        )
    named = {
        part_name(name): _number(value, f"parts[{name!r}]")
        for name, value in parts.items()
        if not (corrects and value is None)
    }
    if clash := named.keys() & set(objectives):
        raise RewardError(
            f"parts: {min(clash)!r} is an objective: give all objectives as the reward, "
            f"{', '.join(objectives)}"
        )
    return {name: value for name, value in named.items() if math.isfinite(value)}


def _curve(curve: Any) -> list[tuple[float, float]]:
    """Return what was reported as pairs of a step and a value."""
    if isinstance(curve, (str, numbers.Number)) or not isinstance(curve, Iterable):
        raise RewardError(
            f"curve={short(curve)}: expected a list of numbers, or of pairs of a step and a number"
        )
    pairs = []
    for step, value in enumerate(curve):
        if isinstance(value, (tuple, list)) and len(value) == 2:
            pairs.append((_number(value[0], "curve"), _number(value[1], "curve")))
        else:
            pairs.append((float(step), _number(value, "curve")))
    return pairs


def _rewards(
    reward: Any, wanted: int, names: Sequence[str] = ()
) -> tuple[tuple[float, ...] | None, str]:
    """Return the rewards, or ``None`` with the reason why the evaluation failed."""
    if reward is None:
        return None, ""
    if wanted == 1 and isinstance(reward, (tuple, list)) and len(reward) > 1:
        if any(isinstance(each, str) for each in reward):
            raise RewardError(
                f"reward={short(reward)}: expected a single real number; give words as feedback="
            )
        given = ", ".join(['"minimize"'] * len(reward))
        raise RewardError(
            f"reward={short(reward)}: expected a single real number; for {len(reward)} objectives "
            f"make the optimizer with direction=[{given}]"
        )
    if isinstance(reward, str):
        raise RewardError(
            f"reward={short(reward)}: expected a number, not a text{written(reward)}; a failed "
            'evaluation is None, NaN or tell_failure(), and in JSON "failed"'
        )
    if wanted == 1:
        rewards: tuple[float, ...] = (_number(reward, "reward"),)
    else:
        parts = _each(reward)
        if len(parts) != wanted:
            said = f"reward={reward!r}: expected {wanted} numbers, one for each objective"
            form = json.dumps({n: k for k, n in enumerate(names, start=1)}, ensure_ascii=False)
            form = shlex.quote(form) if CALLER.get().options else form
            said += f", such as {CALLER.get().argument('reward', form)}" * bool(names)
            raise RewardError(said)
        rewards = tuple(map(_objective, parts, names or range(wanted)))
    if not all(map(math.isfinite, rewards)):
        return None, f"the reward was {reward}"
    return rewards, ""


def _each(reward: Any) -> tuple[Any, ...]:
    """Return the parts of a reward; none where it has no parts."""
    try:
        return tuple(reward)
    except TypeError:
        return ()


def _objective(value: Any, objective: str | int) -> float:
    """Return the reward of one of several objectives, given by its name or index."""
    try:
        return _number(value, f"reward[{objective!r}]")
    except RewardError as error:
        raise RewardError(
            f"{error}. If the evaluation failed, give None as the whole reward, or call "
            "tell_failure()"
        ) from None


def _errors(given: Any, objectives: int, names: Sequence[str]) -> Any:
    """Return standard errors as `Trial.stderr` has them."""
    if isinstance(given, Mapping) and names:
        if missing := [name for name in given if name not in names]:
            raise RewardError(
                f"stderr: got {missing[0]!r}, expected names of objectives: "
                f"{', '.join(map(repr, names))}"
            )
        each = [given.get(name) for name in names]
    elif objectives > 1 and isinstance(given, (list, tuple)):
        each = list(given)
    else:
        each = [given, *[None] * (objectives - 1)]
    if len(each) != objectives:
        raise RewardError(
            f"stderr={short(given)}: expected {objectives} numbers, one for each objective"
        )
    return joined([None if error is None else _amount(error, "stderr") for error in each])


def _amount(value: Any, name: str) -> float:
    """Return a finite number of 0 or more."""
    if isinstance(value, (list, tuple)):
        raise RewardError(f"{name}={short(value)}: expected one number")
    amount = _number(value, name)
    if not 0 <= amount < math.inf:
        raise RewardError(f"{name}={amount}: expected a number of 0 or more")
    return amount


def _number(value: Any, name: str) -> float:
    """Return a real scalar as a float. Booleans, strings and arrays with axes are none."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    try:
        if isinstance(value, np.floating) and value.dtype.itemsize < 8:
            return float(str(value))  # 0.215, and not the 0.2149999961 that float32 makes of it
        if (number := as_number(value)) is not None:
            return float(number)
    except OverflowError as error:
        raise RewardError(
            f"{name}={short(value)}: expected a number within a float's range ({error})"
        ) from error
    shape = f" of shape {value.shape}" if isinstance(value, np.ndarray) else ""
    failed = " (record a failed evaluation with None, NaN or tell_failure)"
    raise RewardError(
        f"{name}={short(value)} is {a_type(value)}{shape}: expected a single real number"
        f"{written(value)}{failed if name == 'reward' else ''}"
    )
