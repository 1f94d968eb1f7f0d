"""What happens in a search over code, one class for each kind of event, and the state they make.

A live call makes an event, writes its line and applies the event to the state; a resumed search
reads the line and applies the same. What requests cost is in lines of their own
(`llmopt.search.storage`).
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args

from llmopt.code.candidate import CodeTrial, Origin
from llmopt.errors import StorageError
from llmopt.search.events import Line
from llmopt.search.meter import Meter
from llmopt.search.spending import Books, text_of
from llmopt.search.storage import as_written, replay_lines
from llmopt.space import Space, Value
from llmopt.space.values import ABSENT
from llmopt.util.arguments import number, one_of, whole_number

logger = logging.getLogger(__name__)

FORMAT = 1
_LACKING = {"absent": True}  # stands for the value of a parameter that a point lacks
_MAY_CHANGE = ("objective", "model")
_TRIAL_FIELDS = frozenset(f.name for f in fields(CodeTrial))


@dataclass(frozen=True)
class Asked:
    """The candidates of one request, each as a trial without a score; none is lost alone."""

    trials: tuple[CodeTrial, ...]

    def line(self, space: Space | None) -> Line:  # noqa: D102
        return {"event": "ask", "candidates": [_of_trial(trial, space) for trial in self.trials]}


@dataclass(frozen=True)
class Refused:
    """An answer that was to become candidate `number`, why it was not used, and in a word."""

    number: int
    text: str
    reason: str
    kind: str

    def line(self, space: Space | None) -> Line:  # noqa: D102
        return {"event": "reject", **asdict(self)}


@dataclass(frozen=True)
class GaveUp:
    """An ask found no usable code."""

    def line(self, space: Space | None) -> Line:  # noqa: D102
        return {"event": "give_up"}


@dataclass(frozen=True)
class Told:
    """A candidate was scored, or failed."""

    trial: CodeTrial

    def line(self, space: Space | None) -> Line:  # noqa: D102
        return {"event": "tell", **_of_trial(self.trial, space)}


CodeEvent = Asked | Refused | GaveUp | Told


def read_event(line: Line, space: Space | None) -> CodeEvent:
    """Return the event of a line that is of no request."""
    rest = {name: value for name, value in line.items() if name != "event"}
    match line["event"]:
        case "ask":
            entries = rest["candidates"]
            return Asked(tuple(_trial({**entry, "reward": None}, space) for entry in entries))
        case "reject":
            texts = (rest["text"], rest["reason"], rest.get("kind", "unreadable"))
            return Refused(whole_number("number", rest["number"], 0), *map(text_of, texts))
        case "give_up" | "failure":  # what it was called for a while
            return GaveUp()
        case "tell":
            return Told(_trial(rest, space))
    raise LookupError(f"no event is called {line['event']!r}")


class CodeState:
    """Everything a code search knows; trials are in the order of telling.

    Attributes:
        asked: Candidates that were handed out and not told, by number.
        next: Number of the next candidate.
        failures: Asks that found no usable code.
        refusals: Answers that the ask under way, or the one that was cut off, did not use.
        rejected: All answers that were not used, by kind.
    """

    def __init__(self, space: Space | None = None) -> None:
        self.space = space
        self.trials: list[CodeTrial] = []
        self.asked: dict[int, CodeTrial] = {}
        self.next = 0
        self.failures = 0
        self.refusals: list[Refused] = []
        self.rejected: Counter[str] = Counter()

    def apply(self, event: CodeEvent) -> None:
        """Change the state by one event."""
        match event:
            case Refused():
                self.refusals.append(event)
                self.rejected[event.kind] += 1
            case Asked():
                for trial in event.trials:
                    if trial.number < self.next:
                        raise ValueError(f"candidate {trial.number} was asked before")
                    self.asked[trial.number] = trial
                    self.next = trial.number + 1
                self.refusals.clear()
            case GaveUp():
                self.failures += 1
                self.refusals.clear()
            case Told(trial):
                if any(t.number == trial.number for t in self.trials):
                    raise ValueError(f"candidate {trial.number} was told before")
                self.trials.append(trial)
                self.asked.pop(trial.number, None)
                self.next = max(self.next, trial.number + 1)


def check_start(start: Line, own: Line, seed: int | None, path: str | os.PathLike[str]) -> int:
    """Return the seed of a stored search, and say what it goes on with.

    `own` is the first event of the search that is to go on with it, with `seed`, or ``None`` for
    any.

    Raises:
        StorageError: It is no code search, or another one.
    """
    if start.get("event") != "start" or start.get("format") != FORMAT:
        raise StorageError(f"{path} is no code search: give another file")
    with as_written(path, 1, start):
        config, stored, stored_seed = own["config"], {**start["config"]}, int(start["seed"])
    differ = [k for k in dict.fromkeys((*config, *stored)) if stored.get(k) != config.get(k)]
    other = [k for k in differ if k not in _MAY_CHANGE]
    if seed is not None and seed != stored_seed:
        other.append("seed")
    if other:
        raise StorageError(
            f"{path} holds a search with another {', '.join(other)}: resume it with the arguments "
            "that it was made with, or give another file"
        )
    if differ:
        logger.warning("%s: goes on with another %s", path, ", ".join(differ))
    return stored_seed


def replay(
    lines: Sequence[Line], state: CodeState, meter: Meter, path: str | os.PathLike[str]
) -> None:
    """Bring a fresh state and its meter to where a search ended, or raise `StorageError`."""

    def apply(line: Line, books: Books) -> None:
        event = read_event(line, state.space)
        state.apply(event)
        if isinstance(event, Asked):
            asked = books.usage.proposals.get("llm", 0) + len(event.trials)
            books.asked(proposals={"llm": asked})
        elif isinstance(event, GaveUp):
            books.asked()

    replay_lines(lines, meter, path, apply)


def _of_trial(trial: CodeTrial, space: Space | None) -> Line:
    params = trial.params
    plain = None if space is None or params is None else list(map(_stored, space.flatten(params)))
    return {**asdict(trial), "params": plain}


def _stored(value: Value) -> Any:
    return _LACKING if value is ABSENT else value


def _trial(entry: Mapping[str, Any], space: Space | None) -> CodeTrial:
    if not _TRIAL_FIELDS.issuperset(entry):
        raise LookupError(f"no entries are called {sorted(set(entry) - _TRIAL_FIELDS)}")
    params = entry["params"]
    if params is not None:
        if space is None:
            raise ValueError("it has values, and the search has no space")
        params = space.unflatten([ABSENT if value == _LACKING else value for value in params])
    lists = {name: _numbers(entry.get(name, ())) for name in ("ties", "samples")}
    trial = CodeTrial(**{**entry, **lists, "params": params})
    for text in (trial.source, trial.feedback, trial.explanation, trial.fingerprint):
        text_of(text)
    whole_number("number", trial.number, 0)
    whole_number("parent", 0 if trial.parent is None else trial.parent, 0)
    if trial.reward is not None:
        number("the score", trial.reward)
    one_of("origin", trial.origin, get_args(Origin))
    return trial


def _numbers(values: Any) -> tuple[float, ...]:
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"{values!r} is no list of numbers")
    return tuple(number("a number", value) for value in values)
