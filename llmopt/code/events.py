"""The events of a search over code, one class for each kind, and the resulting state.

A live call makes an event, writes its line and applies the event to the state; a resumed search
reads the line and applies the same event. The costs of requests have separate lines
(`llmopt.search.spend_log`).
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

from llmopt.code.candidate import CodeTrial, Origin
from llmopt.data import TrialData
from llmopt.errors import StorageError
from llmopt.search.eventlog import Event, as_written
from llmopt.search.spend_log import Books, checked_text
from llmopt.space import Space
from llmopt.space.values import ABSENT
from llmopt.util.arguments import number, one_of, whole_number

logger = logging.getLogger(__name__)

FORMAT = 1
_LACKING = {"absent": True}  # marks a parameter without a value
_MAY_CHANGE = ("objective", "model")
_TRIAL_FIELDS = frozenset(f.name for f in fields(CodeTrial))


@dataclass(frozen=True)
class Written:
    """The candidates of one request, each as a trial without a score, stored together."""

    trials: tuple[CodeTrial, ...]

    def line(self, space: Space | None) -> Event:  # noqa: D102
        return {"event": "ask", "candidates": [_of_trial(trial, space) for trial in self.trials]}


@dataclass(frozen=True)
class Refused:
    """A rejected answer for candidate `number`, with the reason and its kind."""

    number: int
    text: str
    reason: str
    kind: str

    def line(self, space: Space | None) -> Event:  # noqa: D102
        return {"event": "reject", **asdict(self)}


@dataclass(frozen=True)
class GaveUp:
    """A call of `ask` found no usable code."""

    def line(self, space: Space | None) -> Event:  # noqa: D102
        return {"event": "give_up"}


@dataclass(frozen=True)
class Scored:
    """A candidate was scored, or failed."""

    trial: CodeTrial

    def line(self, space: Space | None) -> Event:  # noqa: D102
        return {"event": "tell", **_of_trial(self.trial, space)}


CodeEvent = Written | Refused | GaveUp | Scored


def read_event(line: Event, space: Space | None) -> CodeEvent:
    """Return the event of a line that is not about a request."""
    rest = {name: value for name, value in line.items() if name != "event"}
    match line["event"]:
        case "ask":
            entries = rest["candidates"]
            return Written(tuple(_trial({**entry, "reward": None}, space) for entry in entries))
        case "reject":
            texts = (rest["text"], rest["reason"], rest.get("kind", "unreadable"))
            return Refused(whole_number("number", rest["number"], 0), *map(checked_text, texts))
        case "give_up":
            return GaveUp()
        case "tell":
            return Scored(_trial(rest, space))
    raise LookupError(f"no event is called {line['event']!r}")


class CodeState:
    """The state of a code search; trials are in the order of `tell`.

    Attributes:
        asked: Candidates that await their result, by number.
        next: Number of the next candidate.
        failures: Calls of `ask` that found no usable code.
        refusals: Answers rejected by the current or an interrupted `ask`.
        rejected: Number of all rejected answers, by kind.
        folder: Folder of the data files that events name.
    """

    def __init__(self, space: Space | None = None) -> None:
        self.space = space
        self.folder: Path | None = None
        self.trials: list[CodeTrial] = []
        self.asked: dict[int, CodeTrial] = {}
        self.next = 0
        self.failures = 0
        self.refusals: list[Refused] = []
        self.rejected: Counter[str] = Counter()

    def apply(self, event: CodeEvent) -> None:
        """Apply one event to the state."""
        match event:
            case Refused():
                self.refusals.append(event)
                self.rejected[event.kind] += 1
            case Written():
                for trial in event.trials:
                    if trial.number < self.next:
                        raise ValueError(f"candidate {trial.number} was asked before")
                    self.asked[trial.number] = trial
                    self.next = trial.number + 1
                self.refusals.clear()
            case GaveUp():
                self.failures += 1
                self.refusals.clear()
            case Scored(trial):
                if any(t.number == trial.number for t in self.trials):
                    raise ValueError(f"candidate {trial.number} was recorded before")
                if trial.data:
                    trial = replace(trial, data=trial.data.within(self.folder))
                self.trials.append(trial)
                self.asked.pop(trial.number, None)
                self.next = max(self.next, trial.number + 1)

    def replay(self, line: Event, books: Books) -> None:
        """Apply the event of a line of a file."""
        event = read_event(line, self.space)
        self.apply(event)
        if isinstance(event, Written):
            asked = books.usage.proposals.get("llm", 0) + len(event.trials)
            books.asked(proposals={"llm": asked})
        elif isinstance(event, GaveUp):
            books.asked()


def check_start(start: Event, own: Event, seed: int | None, path: str | os.PathLike[str]) -> int:
    """Return the seed of a stored search, and log which arguments changed.

    `own` is the first event of the search to resume with `seed`; ``None`` accepts any seed.

    Raises:
        StorageError: The file is not of a code search, or of another one.
    """
    if start.get("event") != "start" or start.get("format") != FORMAT:
        raise StorageError(f"{path} contains no code search: pass another file")
    with as_written(path, 1, start):
        config, stored, stored_seed = own["config"], {**start["config"]}, int(start["seed"])
    differ = [k for k in dict.fromkeys((*config, *stored)) if stored.get(k) != config.get(k)]
    other = [k for k in differ if k not in _MAY_CHANGE]
    if seed is not None and seed != stored_seed:
        other.append("seed")
    if other:
        raise StorageError(
            f"{path} contains a search with another {', '.join(other)}: resume it with its "
            "original arguments, or pass another file"
        )
    if differ:
        logger.warning("%s: resumes with another %s", path, ", ".join(differ))
    return stored_seed


def _of_trial(trial: CodeTrial, space: Space | None) -> Event:
    plain = None
    if space is not None and trial.params is not None:
        plain = [_LACKING if v is ABSENT else v for v in space.flatten(trial.params)]
    line = {**vars(trial), "params": plain}
    if data := line.pop("data"):
        line["data"] = data.line()
    return line


def _trial(entry: Mapping[str, Any], space: Space | None) -> CodeTrial:
    if not _TRIAL_FIELDS.issuperset(entry):
        raise LookupError(f"no entries are called {sorted(set(entry) - _TRIAL_FIELDS)}")
    params = entry["params"]
    if params is not None:
        if space is None:
            raise ValueError("it has values, and the search has no space")
        params = space.unflatten([ABSENT if value == _LACKING else value for value in params])
    lists = {name: _numbers(entry.get(name, ())) for name in ("ties", "samples")}
    data = TrialData.read(entry.get("data"))
    trial = CodeTrial(**{**entry, **lists, "params": params, "data": data})
    for text in (trial.source, trial.feedback, trial.explanation, trial.fingerprint):
        checked_text(text)
    whole_number("number", trial.number, 0)
    whole_number("parent", 0 if trial.parent is None else trial.parent, 0)
    if trial.reward is not None:
        number("the score", trial.reward)
    one_of("origin", trial.origin, get_args(Origin))
    return trial


def _numbers(values: Any) -> tuple[float, ...]:
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"{values!r} is not a list of numbers")
    return tuple(number("a number", value) for value in values)
