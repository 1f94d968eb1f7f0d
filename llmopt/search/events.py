"""What happens in a search, one class for each kind of event, and its line in a storage file.

A live call makes an event, writes its line and applies the event to the state; a resumed search
reads the line and applies the same. See `llmopt.search.state`.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, get_args

import numpy as np

from llmopt._version import __version__
from llmopt.client.base import Reply
from llmopt.data import NO_DATA, TrialData
from llmopt.errors import RewardError, StorageError
from llmopt.history import Direction, Kind, Proposal, Source, State, Trial, Usage
from llmopt.prompt.python_block import Computed
from llmopt.search.eventlog import Event
from llmopt.search.spend_log import Books
from llmopt.space import Space, Value
from llmopt.space.values import as_number
from llmopt.util.arguments import MOST_SEED, number, one_of, whole_number
from llmopt.util.text import a_type, clean, describe_curve, short

Point = tuple[Value, ...]
_MOST_NAME = 200  # characters of an objective's name, which each prompt has several times

Stop = tuple[str, int | None]
"""The arguments of `SearchStopped`."""


@dataclass(frozen=True)
class Asked:
    """Points were produced, and some of the ready ones returned."""

    new: Sequence[Proposal]  # in the order in which `ask` returns them
    given: int  # number of returned points, of the ready and the new ones
    rng: Mapping[str, Any]  # of the generator afterwards
    proposals: Mapping[str, int]  # all points so far, by source
    rejected: Mapping[str, int]  # all samples so far that were not used, by reason
    stop: Stop | None = None  # if the model ends the search after these points

    def line(self, space: Space) -> Event:  # noqa: D102
        line = {
            "event": "ask",
            "new": [_of_proposal(p, space) for p in self.new],
            "given": self.given,
            "rng": self.rng,
            "proposals": self.proposals,
            "rejected": self.rejected,
        }
        return line if self.stop is None else {**line, "stop": self.stop}

    @classmethod
    def read(cls, line: Event, space: Space) -> Asked:  # noqa: D102
        new = [_proposal(p, space) for p in line["new"]]
        counts = dict(line["proposals"]), dict(line["rejected"])
        return cls(new, line["given"], line["rng"], *counts, _stop(line))


@dataclass(frozen=True)
class Told:
    """A point was evaluated; the attributes are those of `Trial`, `values` the point, flat."""

    values: Point
    rewards: tuple[float, ...] | None
    feedback: str = ""
    violation: float = 0.0
    stderr: float | None = None
    samples: tuple[float, ...] = ()
    kind: Kind = "search"
    data: TrialData = NO_DATA
    seed: int | None = None

    def line(self, space: Space) -> Event:  # noqa: D102
        line: Event = {
            "event": "tell",
            "values": space.to_json_values(self.values),
            "rewards": self.rewards,
            "feedback": self.feedback,
            "violation": self.violation,
        }
        if self.stderr is not None:
            line["stderr"] = self.stderr
        if self.samples:
            line["samples"] = self.samples
        if self.data is not NO_DATA and self.data:
            line["data"] = self.data.line()
        if self.seed is not None:
            line["seed"] = self.seed
        return line if self.kind == "search" else {**line, "kind": self.kind}

    @classmethod
    def read(cls, line: Event, space: Space) -> Told:  # noqa: D102
        told = cls(
            space.from_json_values(line["values"]),
            line["rewards"] and tuple(line["rewards"]),
            line["feedback"],
            line["violation"],
            line.get("stderr"),
            tuple(line.get("samples", ())),
            line.get("kind", "search"),
            TrialData.read(line.get("data")),
            line.get("seed"),
        )
        _check(told.rewards, told.samples, told.violation, told.stderr, told.kind, told.seed)
        return told


@dataclass(frozen=True)
class Queued:
    """The user queued a point, which is returned after earlier queued ones."""

    values: Point
    words: str

    def line(self, space: Space) -> Event:  # noqa: D102
        values = space.to_json_values(self.values)
        return {"event": "enqueue", "values": values, "words": self.words}

    @classmethod
    def read(cls, line: Event, space: Space) -> Queued:  # noqa: D102
        return cls(space.from_json_values(line["values"]), line["words"])


@dataclass(frozen=True)
class Returned:
    """Points that `ask` returned wait for the next one: nobody evaluated them."""

    points: Sequence[Point]

    def line(self, space: Space) -> Event:  # noqa: D102
        return {"event": "return", "values": [space.to_json_values(p) for p in self.points]}

    @classmethod
    def read(cls, line: Event, space: Space) -> Returned:  # noqa: D102
        return cls([space.from_json_values(values) for values in line["values"]])


@dataclass(frozen=True)
class Snapshot:
    """The whole state at once: see `SearchState`, and `Books` for what was paid and spent."""

    trials: Sequence[Trial]
    pending: Sequence[Proposal]
    queue: Sequence[Proposal]
    warmed: int
    rng: Mapping[str, Any]
    books: Books
    stop: Stop | None = None

    def line(self, space: Space) -> Event:  # noqa: D102
        line: Event = {
            "event": "snapshot",
            "trials": [
                {
                    **{
                        k: v
                        for k, v in vars(t).items()
                        if k not in ("params", "data") and (k != "seed" or v is not None)
                    },
                    **({"data": t.data.line()} if t.data else {}),
                    "values": space.to_json_values(t.values),
                }
                for t in self.trials
            ],
            "pending": [_of_proposal(p, space) for p in self.pending],
            "ready": [_of_proposal(p, space) for p in self.queue],
            "paid": [[digest, reply.to_dict()] for digest, reply in self.books.paid],
            "warmed": self.warmed,
            "rng": self.rng,
            "usage": self.books.usage.to_dict(),
        }
        if self.books.computed:
            line["computed"] = [block.line() for block in self.books.computed]
            line["computed_open"] = self.books.computed_open
        return line if self.stop is None else {**line, "stop": self.stop}

    @classmethod
    def read(cls, line: Event, space: Space) -> Snapshot:  # noqa: D102
        trials: list[Trial] = []
        for stored in line["trials"]:
            values = space.from_json_values(stored["values"])
            found = {**stored, "values": values, "samples": tuple(stored.get("samples", ()))}
            found["rewards"] = stored["rewards"] and tuple(stored["rewards"])
            found["data"] = TrialData.read(stored.get("data"))
            trial = Trial(params=space.unflatten(values), **found)
            if trial.number != len(trials):
                raise ValueError(f"trial {short(trial.number)} follows {len(trials)} others")
            _check_trial(trial)
            trials.append(trial)
        books = Books(
            Usage.from_dict(line["usage"]),
            [(digest, Reply.from_dict(reply)) for digest, reply in line["paid"]],
            [Computed.read(block) for block in line.get("computed", ())],
            whole_number("computed_open", line.get("computed_open", 0), 0),
        )
        return cls(
            trials,
            [_proposal(p, space) for p in line["pending"]],
            [_proposal(p, space) for p in line["ready"]],
            whole_number("warmed", line["warmed"], 0),
            line["rng"],
            books,
            _stop(line),
        )


SearchEvent = Asked | Told | Queued | Returned | Snapshot

_KINDS: Mapping[str, type[SearchEvent]] = {
    "ask": Asked,
    "tell": Told,
    "enqueue": Queued,
    "return": Returned,
    "back": Returned,  # what it was called for a while
    "snapshot": Snapshot,
}


def read_event(line: Event, space: Space) -> SearchEvent:
    """Return the event of a line."""
    kind = _KINDS.get(line["event"])
    if kind is None:
        raise StorageError(
            f"unknown event {line['event']!r} in the storage file: it was written by a "
            f"newer llmopt than {__version__}, or by something else; upgrade llmopt"
        )
    return kind.read(line, space)


def _check_trial(trial: Trial) -> None:
    one_of("state", trial.state, get_args(State))
    one_of("source", trial.source, get_args(Source))
    if (trial.rewards is None) != (trial.state == "failed"):
        raise ValueError(f"a {trial.state} trial with rewards={short(trial.rewards)}")
    violation = trial.constraint_violation
    _check(trial.rewards, trial.samples, violation, trial.stderr, trial.kind, trial.seed)
    for name in ("prompt_tokens", "completion_tokens", "seconds"):
        number(name, getattr(trial, name), 0)
    whole_number("evaluations", trial.evaluations, 1)


def _check(rewards: Any, samples: Any, violation: Any, stderr: Any, kind: Any, seed: Any) -> None:
    """Raise where a file holds something else than numbers that can be."""
    one_of("kind", kind, get_args(Kind))
    for reward in (*(rewards or ()), *samples):
        number("reward", reward)
    number("constraint_violation", violation, 0)
    number("stderr", stderr or 0, 0)
    whole_number("seed", seed or 0, 0, MOST_SEED)


def _stop(line: Event) -> Stop | None:
    if line.get("stop") is None:
        return None
    why, point = line["stop"]
    return str(why), None if point is None else whole_number("point", point, 1)


def _of_proposal(proposal: Proposal, space: Space) -> Event:
    line = {**vars(proposal), "values": space.to_json_values(proposal.values)}
    return {k: v for k, v in line.items() if k != "seed" or v is not None}


def _proposal(line: Mapping[str, Any], space: Space) -> Proposal:
    whole_number("seed", line.get("seed") or 0, 0, MOST_SEED)
    return Proposal(**{**line, "values": space.from_json_values(line["values"])})


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
    stderr: float | None
    samples: Sequence[float]
    curve: Sequence[float] | Sequence[tuple[float, float]]
    data: Mapping[str, Any] | None
    seed: int | None


def read_told(
    space: Space,
    objectives: int,
    params: Any,
    reward: Any,
    *,
    feedback: str = "",
    constraint_violation: float = 0.0,
    stderr: float | None = None,
    samples: Sequence[float] = (),
    curve: Sequence[float] | Sequence[tuple[float, float]] = (),
    data: Mapping[str, Any] | None = None,
    seed: int | None = None,
    direction: Direction = "maximize",
    names: Sequence[str] = (),
) -> Told:
    """Check the arguments of `LLMOptimizer.tell` for a number of objectives, perhaps with names."""
    values = space.flatten(params)
    rewards, trouble = _rewards(reward, objectives, names)
    if not isinstance(feedback, str):
        raise TypeError(f"feedback={feedback!r}: expected a string")
    way = "" if isinstance(curve, tuple) and not curve else describe_curve(_curve(curve), direction)
    feedback = "; ".join(filter(None, [trouble, way, feedback]))
    violation = _amount(constraint_violation, "constraint_violation")
    if space.constraints:
        violation += sum(space.broken(values).values())
    if isinstance(samples, (str, numbers.Number)) or not isinstance(samples, Iterable):
        raise RewardError(
            f"samples={short(samples)}: expected a list of numbers, whose mean is the reward"
        )
    parts = tuple([_number(sample, "samples") for sample in samples])
    if not all(map(math.isfinite, parts)):
        raise RewardError(f"samples={list(parts)}: expected finite numbers")
    if (
        parts
        and rewards is not None
        and not math.isclose(
            np.mean(parts), rewards[0], rel_tol=1e-4, abs_tol=1e-4 * float(np.std(parts)) + 1e-12
        )
    ):
        raise RewardError(
            f"samples={short(list(parts))}: their mean is {np.mean(parts):.6g}, and the reward "
            f"{rewards[0]:.6g}; give the mean as the reward, or leave samples out"
        )
    if stderr is None and len(parts) > 1:
        stderr = float(np.std(parts, ddof=1)) / math.sqrt(len(parts))
    if stderr is not None:
        stderr = _amount(stderr, "stderr")
    if seed is not None:
        seed = whole_number("seed", seed, 0, MOST_SEED)
    kept = NO_DATA if data is None else TrialData.of(data)
    return Told(values, rewards, feedback, violation, stderr, parts, data=kept, seed=seed)


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
        return None, "no reward"
    if wanted == 1 and isinstance(reward, (tuple, list)) and len(reward) > 1:
        given = ", ".join(['"minimize"'] * len(reward))
        raise RewardError(
            f"reward={short(reward)}: expected a single real number; for {len(reward)} objectives "
            f"make the optimizer with direction=[{given}]"
        )
    if isinstance(reward, str):
        raise RewardError(
            f"reward={short(reward)}: expected a number, not a text; a failed evaluation is None, "
            'NaN or tell_failure(), and in JSON "failed"'
        )
    if wanted == 1:
        rewards: tuple[float, ...] = (_number(reward, "reward"),)
    else:
        parts = _each(reward)
        if len(parts) != wanted:
            raise RewardError(
                f"reward={reward!r}: expected {wanted} numbers, one for each objective"
            )
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


def _amount(value: Any, name: str) -> float:
    """Return a finite number of 0 or more."""
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
        f"{failed if name == 'reward' else ''}"
    )
