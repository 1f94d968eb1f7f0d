"""The events of a search, each a line of its journal.

An event holds plain JSON: the class is its kind. `llmopt.state.reduce` says what it changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, get_args

from llmopt.history import Kind
from llmopt.origin import is_origin
from llmopt.util.arguments import MOST_SEED, number, one_of, whole_number
from llmopt.util.text import short

Json = dict[str, Any]


class Event:
    """A line of a journal: the class is its kind, and the fields are its JSON."""

    kinds: ClassVar[dict[str, type[Event]]] = {}

    def __init_subclass__(cls) -> None:
        Event.kinds[cls.__name__.lower()] = cls

    def to_json(self) -> bytes:
        """Return the line, without fields that have their default."""
        line: Json = {"event": type(self).__name__.lower()}
        for each in fields(self):  # type: ignore[arg-type, unused-ignore]
            value, usual = getattr(self, each.name), each.default
            empty = (each.default_factory is not MISSING or usual == ()) and not value
            if not empty and (usual is MISSING or value != usual):
                line[each.name] = value
        return json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"

    @staticmethod
    def read(line: Mapping[str, Any]) -> Event:
        """Return the event of a parsed line.

        Raises:
            LookupError: A field is missing.
            TypeError: A field is unknown or of another type.
            ValueError: It is an unknown kind of event, or a number is out of its range.
        """
        given = dict(line)
        kind = Event.kinds.get(given.pop("event", None))
        if kind is None:
            raise ValueError(f"unknown event {short(line.get('event'))}")
        for name, value in given.items():
            if name in _CHECKS:
                _CHECKS[name](name, value)
        return kind(**given)


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name}={short(value)}: expected a string")


def _texts(name: str, value: Any) -> None:
    for each in value:
        _text(name, each)


def _count(name: str, value: Any) -> None:
    whole_number(name, value, 0, 10**15)


def check_amount(name: str, value: Any) -> None:
    """Raise if a value is neither ``None`` nor a number from 0 on."""
    if value is not None:
        number(name, value, 0.0)


def _amounts(name: str, value: Any) -> None:
    for each in value if isinstance(value, (list, tuple)) else [value]:
        check_amount(name, each)


def _numbers(name: str, value: Any) -> None:
    for each in value or ():
        number(name, each)


def _mapping(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{name}={short(value)}: expected an object")


def _parts(name: str, value: Any) -> None:
    _mapping(name, value)
    _numbers(name, value.values())


def _tally(name: str, value: Any) -> None:
    _mapping(name, value)
    for each in value.values():
        whole_number(name, each, 0, 10**15)


def _origin(name: str, value: Any) -> None:
    if not isinstance(value, str) or not (value == "" or is_origin(value)):
        raise ValueError(f"{name}={short(value)}: expected an origin")


def _seed(name: str, value: Any) -> None:
    whole_number(name, value or 0, 0, MOST_SEED)


_CHECKS: dict[str, Callable[[str, Any], None]] = {
    **dict.fromkeys(("digest", "error", "feedback", "words", "code", "state", "id"), _text),
    **dict.fromkeys(
        "base doubt requests unpriced estimated prompt_tokens given number completed trial".split(),
        _count,
    ),
    **dict.fromkeys(("most", "cost", "violation", "seconds", "tokens"), check_amount),
    "stderr": _amounts,
    **dict.fromkeys(("rewards", "samples", "ties"), _numbers),
    "refused": _texts,
    **dict.fromkeys(("identity", "facts", "reply", "result", "rng", "data", "fixed"), _mapping),
    **dict.fromkeys(("rejected", "revisions"), _tally),
    "origin": _origin,
    "parts": _parts,
    "seed": _seed,
    "kind": lambda name, value: one_of(name, value, get_args(Kind)),
    **dict.fromkeys(("queued", "priced"), lambda name, value: one_of(name, value, (True, False))),
}


@dataclass(frozen=True)
class Started(Event):
    """Which search this is, and who takes part; again whenever that changes."""

    format: int
    identity: Json  # space, directions, seed, task; candidates, limits and noisy may change
    options: Json = field(default_factory=dict)  # may change in a resumed search
    facts: Json = field(default_factory=dict)  # of the model, the prompts and the workers
    id: str = ""  # the identifier of the search; empty in older files


@dataclass(frozen=True)
class Called(Event):
    """A call is about to be sent to the provider, and may be charged from now on."""

    digest: str  # of its request
    base: int = 0  # number of events that its ask had seen: a repeated ask starts from there
    most: float | None = None  # dollars that it can cost at most; ``None`` if not known
    doubt: int = 1  # what it adds to `Usage.unpriced` if nothing ends it; 0 for a free call
    tokens: int = 0  # of its prompt, estimated, which count if nothing ends it
    priced: bool = True  # whether its cost will be known


@dataclass(frozen=True)
class Replied(Event):
    """The calls of a request gave its reply."""

    digest: str
    reply: Json


@dataclass(frozen=True)
class Failed(Event):
    """The calls of a request ended without a reply; the numbers are those of `ClientError`."""

    requests: int = 0
    unpriced: int = 0
    cost: float | None = 0.0  # ``None`` if it may be charged and has no known price
    estimated: int = 0
    error: str = ""
    prompt_tokens: int = 0  # estimated, of a call that may be charged
    seconds: float = 0.0


@dataclass(frozen=True)
class Computed(Event):
    """Code of an answer was run: a block of Python, or the check of a program."""

    code: str
    result: Json
    seconds: float = 0.0
    tokens: int = 0  # of the request that was answered by a block
    block: bool = True


@dataclass(frozen=True)
class Asked(Event):
    """An ask settled: points were made, and the first ones of those that waited returned."""

    new: Sequence[Json] = ()  # proposals, in their order
    given: int = 0  # number of returned points, of the queue and then of `new`
    blocks: Sequence[int] = ()  # the blocks that led to them, by number
    rejected: Mapping[str, int] = field(default_factory=dict)  # samples that were not used
    stop: Sequence[Any] | None = None
    rng: Json | None = None  # of the bit generator afterwards; ``None`` if it did not move
    waiting: Sequence[int] = ()  # places of the queued points that were passed over, first of the
    # whole points, then of those with some parameters
    completed: int = 0  # points with some parameters that got the others
    refused: Sequence[str] = ()  # the last answer, and why it cannot be used: the next request,
    # which states newer results, says so


@dataclass(frozen=True)
class Told(Event):
    """A point was evaluated."""

    values: Sequence[Any]
    rewards: Sequence[float] | None = None
    feedback: str = ""
    violation: float = 0.0
    stderr: float | Sequence[float | None] | None = None  # in older files of the first objective
    samples: Sequence[float] = ()
    kind: str = "search"  # of its trial
    data: Json | None = None  # file and digest of its arrays, which were written before
    seed: int | None = None
    ties: Sequence[float] = ()  # a code search breaks ties by them
    parts: Mapping[str, float] = field(default_factory=dict)  # of the reward, by name
    instead_of: Sequence[Any] = ()  # the point (pending, if not imported) whose place it took
    asked: int = 0  # which proposal, if several equal ones are pending, or it was withdrawn
    origin: str = ""  # of an imported trial, if its source says it
    revisions: Mapping[str, int] = field(default_factory=dict)  # likewise


@dataclass(frozen=True)
class Corrected(Told):
    """The result of a trial was wrong, and is this one; who proposed the point stays.

    If the trial is the result of another pending point, that is `asked`, and its own point is
    pending again. With `revisions`, it is a copy that follows its source, and `instead_of` is that
    of the source.
    """

    number: int = 0  # of the trial, from 0


@dataclass(frozen=True)
class Queued(Event):
    """The user wants a point to be evaluated."""

    values: Sequence[Any]
    words: str = ""
    fixed: Json = field(default_factory=dict)  # values of some parameters by name, without `values`
    asked: int = 0  # which proposal it repeats, with its source and explanation; 0 for none


@dataclass(frozen=True)
class Withdrawn(Event):
    """Pending points that nobody evaluates go back to the front of the queue, or are dropped."""

    points: Sequence[Sequence[Any]] = ()
    queued: bool = True  # else they are dropped, and queued points are, too
    fixed: Json = field(default_factory=dict)  # a queued point with some parameters is dropped
    trial: int | None = None  # a trial, from 0, which never happened
    feedback: str = ""  # why
    kind: str = "search"  # "imported" if the trial was withdrawn in its source
    asked: int = 0  # which one of several equal pending points; 0 for the oldest
    values: Sequence[Any] = ()  # the trial's point, if it is another one in its source
    revisions: Mapping[str, int] = field(default_factory=dict)  # of the trial in its source


CHANGES = Told, Queued, Withdrawn
"""Events that change what a request states."""
