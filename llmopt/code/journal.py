"""The state of a code search as the sum of its events, and how they are read back.

Events: ``start`` (what was asked for), ``reply`` (paid, with its request's digest),
``request`` (about to be sent), ``error`` (requests that ended in one), ``reject`` (an answer that
was not used), ``ask`` (candidates of one request), ``failure`` (an ask that found none),
``tell``. A live call and a resumed file go through the same `CodeState.apply`.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from llmopt.arguments import number, whole_number
from llmopt.code.candidate import Candidate, CodeTrial
from llmopt.errors import StorageError
from llmopt.search.eventlog import Event
from llmopt.search.meter import Meter
from llmopt.search.stored import Ledger, as_written, text_of
from llmopt.space import Space

logger = logging.getLogger(__name__)

FAILURE = "error"  # the event of requests without a reply; "failure" is an ask that found nothing
MAY_CHANGE = ("objective", "model")
_FORMAT = 1
_TRIAL_FIELDS = frozenset(f.name for f in fields(CodeTrial))


@dataclass(frozen=True)
class Refusal:
    """An answer that was not used.

    Attributes:
        number: Number of the candidate that it was to become.
        text: The answer, as it was sent back.
        reason: What was wrong with it, in words for the model.
        kind: A word for that.
    """

    number: int
    text: str
    reason: str
    kind: str


class CodeState:
    """Everything a code search knows.

    Args:
        space: Values beside the code, if any.

    Attributes:
        trials: In the order of telling.
        asked: Candidates that were handed out and not told, by number; each a trial without
            a score.
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
        self.refusals: list[Refusal] = []
        self.rejected: Counter[str] = Counter()

    def ask_event(self, candidates: Sequence[Candidate]) -> Event:
        """Describe candidates of one ask: one event, so that none is there without the rest."""
        names = ("number", "source", "explanation", "parent", "fingerprint")
        entries = [
            {**{name: getattr(c, name) for name in names}, "params": self._plain(c.params)}
            for c in candidates
        ]
        return {"event": "ask", "candidates": entries}

    def tell_event(self, trial: CodeTrial) -> Event:
        """Describe a score or a failure."""
        return {"event": "tell", **asdict(trial), "params": self._plain(trial.params)}

    def apply(self, event: Event) -> None:
        """Change the state by one event.

        Raises:
            LookupError: The event lacks something, or is of an unknown kind.
            TypeError: Something in it is of another type.
            ValueError: Something in it has a value that it cannot have.
        """
        kind = event["event"]
        if kind == "reject":
            refusal = Refusal(
                whole_number("number", event["number"], 0),
                text_of(event["text"]),
                text_of(event["reason"]),
                text_of(event.get("kind", "unreadable")),
            )
            self.refusals.append(refusal)
            self.rejected[refusal.kind] += 1
        elif kind == "ask":
            for entry in event["candidates"]:
                trial = self._trial({**entry, "reward": None})
                if trial.number < self.next:
                    raise ValueError(f"candidate {trial.number} was asked before")
                self.asked[trial.number] = trial
                self.next = trial.number + 1
            self.refusals.clear()
        elif kind == "failure":
            self.failures += 1
            self.refusals.clear()
        elif kind == "tell":
            trial = self._trial({k: v for k, v in event.items() if k != "event"})
            if any(t.number == trial.number for t in self.trials):
                raise ValueError(f"candidate {trial.number} was told before")
            self.trials.append(trial)
            self.asked.pop(trial.number, None)
            self.next = max(self.next, trial.number + 1)
        else:
            raise LookupError(f"no event is called {kind!r}")

    def _plain(self, params: Any) -> Any:
        return None if self.space is None or params is None else list(self.space.flatten(params))

    def _trial(self, entry: Mapping[str, Any]) -> CodeTrial:
        if not _TRIAL_FIELDS.issuperset(entry):
            raise LookupError(f"no entries are called {sorted(set(entry) - _TRIAL_FIELDS)}")
        params = entry["params"]
        if params is not None:
            if self.space is None:
                raise ValueError("it has values, and the search has no space")
            params = self.space.unflatten(params)
        lists = {name: _numbers(entry.get(name, ())) for name in ("ties", "samples")}
        trial = CodeTrial(**{**entry, **lists, "params": params})
        for text in (trial.source, trial.feedback, trial.explanation, trial.fingerprint):
            text_of(text)
        whole_number("number", trial.number, 0)
        whole_number("parent", 0 if trial.parent is None else trial.parent, 0)
        if trial.reward is not None:
            number("the score", trial.reward)
        if trial.origin not in ("llm", "user"):
            raise ValueError(f"origin {trial.origin!r}: expected 'llm' or 'user'")
        return trial


def start_event(config: Mapping[str, Any], seed: int) -> Event:
    """Return the first event of a search: what must be the same for it to go on."""
    return {"event": "start", "format": _FORMAT, "config": dict(config), "seed": str(seed)}


def check_start(
    start: Event, config: Mapping[str, Any], seed: int | None, path: str | os.PathLike[str]
) -> int:
    """Return the seed of a stored search, and say what it goes on with.

    Args:
        start: Its first event.
        config: What it is to go on with; of `MAY_CHANGE` anything.
        seed: The seed that it must have; ``None`` for any.
        path: The file, for messages.

    Raises:
        StorageError: It is no code search, or another one.
    """
    if start.get("event") != "start" or start.get("format") != _FORMAT:
        raise StorageError(f"{path} is no code search: give another file")
    with as_written(path, 1, start):
        stored, stored_seed = {**start["config"]}, int(start["seed"])
    differ = [k for k in dict.fromkeys((*config, *stored)) if stored.get(k) != config.get(k)]
    other = [k for k in differ if k not in MAY_CHANGE]
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
    events: Sequence[Event], state: CodeState, meter: Meter, path: str | os.PathLike[str]
) -> None:
    """Bring a fresh state and its meter to where a search ended.

    Raises:
        StorageError: An event is not as llmopt wrote it.
    """
    ledger = Ledger(meter, FAILURE)
    for line, event in enumerate(events[1:], start=2):
        with as_written(path, line, event):
            if ledger.take(event):
                continue
            state.apply(event)
            if event["event"] == "ask":
                asked = ledger.usage.proposals.get("llm", 0) + len(event["candidates"])
                ledger.usage.proposals["llm"] = asked
            if event["event"] in ("ask", "failure"):
                ledger.asked()
    ledger.close()


def _numbers(values: Any) -> tuple[float, ...]:
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"{values!r} is no list of numbers")
    return tuple(number("a number", value) for value in values)
