"""A search that spends and may be kept in a file, and the way from its file back to it.

`LLMOptimizer` and `CodeOptimizer` have events of their own. How an event is stored and applied,
what requests cost, the caps, and the end of the file are the same and stand here.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmopt.arguments import whole_number
from llmopt.client.base import Reply, amount
from llmopt.client.model_string import split_options
from llmopt.client.scripted import ScriptedClient
from llmopt.errors import StorageError
from llmopt.history import Trial, Usage
from llmopt.prompt import get_prompt, is_shipped
from llmopt.search.eventlog import Event, EventLog
from llmopt.search.events import Asked, Queued, Snapshot, read_event
from llmopt.search.locks import uninterrupted
from llmopt.search.meter import Journal, Meter, Metered, Spent
from llmopt.search.state import SearchState
from llmopt.space import Space
from llmopt.text import short

logger = logging.getLogger(__name__)

FORMAT = 1
_SHOWN = 3  # differences that one message names
_HINTS = {"description": " (a PolicySearch makes it of env, wrappers, starts and description)"}


class StoredSearch(Metered):
    """The base of a search that asks a model and may be kept in a file."""

    _log: EventLog | None = None
    _state: Any
    space: Any

    def _record(self, event: Any) -> None:
        """Store an event, then let it change the state."""
        with uninterrupted():
            if self._log is not None:
                if self._meter.unsaved:
                    self._meter.flush()
                self._log.append(event.line(self.space))
            self._state.apply(event)

    def _start_event(self) -> Event:
        """Return the first line of a storage file: what the search is."""
        raise NotImplementedError

    def _attach(
        self,
        path: str | os.PathLike[str],
        durable: bool,
        resume: Callable[[list[Event], Path], None],
    ) -> None:
        """Go on with the search in a file, or begin one there, and append to it from now on."""
        log = EventLog(path, durable=durable)
        try:
            if log.events:
                resume(log.events, log.path)
            else:
                log.begin(self._start_event())
        except BaseException:
            log.close()
            raise
        log.events = []
        self._log = log
        # Without a reference to this search: one that is dropped closes its file at once.
        self._meter.journal = _Spending(log)

    def close(self) -> None:
        """Close the storage file. What is known can still be read."""
        if self._log is not None:
            with contextlib.suppress(StorageError):  # it was told when it was to be written
                self._meter.flush()
            self._log.close()


class _Spending(Journal):
    """Stores in a search's file what its requests cost."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def check(self) -> None:
        self._log.check()

    def announce(self, spent: Spent) -> None:
        digest = spent.request.digest()
        self._log.append({"event": "request", "digest": digest, **_failures(spent, "failed")})

    def record(self, spent: Spent) -> None:
        if spent.reply is None:
            self._log.append({"event": "failure", **_failures(spent, "requests")})
        else:
            paid = {"digest": spent.request.digest(), "reply": spent.reply.to_dict()}
            self._log.append({"event": "reply", **paid, **_failures(spent, "failed")})


def _failures(spent: Spent, name: str) -> Event:
    rare = {"unpriced": spent.unpriced, "cost": spent.cost, "estimated": spent.estimated}
    return {name: spent.failed} | {k: v for k, v in rare.items() if v}


def _read_failures(event: Event, name: str) -> tuple[int, int, float, int]:
    """Return the arguments of `Usage.add_failure` that a line holds, the calls as `name`."""
    cost = amount(event.get("cost", 0.0))
    if cost is None:
        raise ValueError(f"cost={event['cost']!r}; expected US dollars, 0 or more")
    unpriced, estimated = (
        whole_number(rare, event.get(rare, 0), 0) for rare in ("unpriced", "estimated")
    )
    return whole_number(name, event[name], 0), unpriced, cost, estimated


_NOTHING = (0, 0, 0.0, 0)


class Ledger:
    """What was spent, and which replies are paid for and not used, as the lines of a file tell it.

    A call of which a file holds no end may have been paid for: a kill came upon it.

    Args:
        meter: Takes over what was spent.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._lost = _NOTHING
        self.usage = Usage()
        self.paid: list[tuple[str, Reply]] = []

    def replay(
        self, lines: Sequence[Event], path: str | os.PathLike[str], apply: Callable[[Event], None]
    ) -> None:
        """Take in the lines of a file after its first one, and give the meter what they tell.

        Args:
            lines: All of the file.
            path: The file, for messages.
            apply: Takes in a line that is of no request.

        Raises:
            StorageError: A line is not as llmopt wrote it.
        """
        for number, line in enumerate(lines[1:], start=2):
            with as_written(path, number, line):
                if not self._take(line):
                    apply(line)
        self._settle()
        self._meter.restore(self.usage, self.paid)

    def _take(self, event: Event) -> bool:
        """Take in a line, if it is of a request; return whether it is."""
        kind = event["event"]
        if kind == "request":
            failed, unpriced, cost, estimated = _read_failures(event, "failed")
            if failed == 0:
                self._settle()
            self._lost = 1 + failed, self._meter.in_doubt + unpriced, cost, estimated
        elif kind == "reply":
            reply = Reply.from_dict(event["reply"])
            self.usage.add_failure(*_read_failures({"failed": 0, **event}, "failed"))
            self.usage.add_reply(reply)
            self.paid.append((text_of(event["digest"]), reply))
            self._lost = _NOTHING
        elif kind == "error" or (kind == "failure" and "requests" in event):
            # Earlier searches over code called it "error", and another event "failure".
            self.usage.add_failure(*_read_failures(event, "requests"))
            self._lost = _NOTHING
        else:
            return False
        return True

    def asked(self, **counts: Mapping[str, int]) -> None:
        """Note the end of an ask: the replies before it have come to it.

        Args:
            **counts: ``proposals`` and ``rejected``, where the end tells them.
        """
        if counts:
            self.usage = Usage.from_dict({**vars(self.usage), **counts})
        self.paid.clear()

    def begin_with(self, usage: Usage, paid: Sequence[tuple[str, Reply]]) -> None:
        """Begin anew with what a line tells of all before it."""
        self.usage, self.paid, self._lost = usage.copy(), list(paid), _NOTHING

    def _settle(self) -> None:
        self.usage.add_failure(*self._lost)
        self._lost = _NOTHING


def text_of(value: Any) -> str:
    """Return a text of a file, or raise `TypeError`."""
    if not isinstance(value, str):
        raise TypeError(f"{short(value)} is no text")
    return value


@contextlib.contextmanager
def as_written(path: str | os.PathLike[str], number: int, event: Event) -> Iterator[None]:
    """Turn what goes wrong with an event of a file into a `StorageError` that names it."""
    try:
        yield
    except StorageError as error:
        raise StorageError(f"{path}, event {number}: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise StorageError(
            f"{path}, event {number} ({short(event.get('event'))}): it is not as llmopt "
            f"wrote it ({type(error).__name__}: {error}). Restore the file from a copy, or go "
            "on with the events before it (each is a line), or move it away to start anew"
        ) from error


def start_of(events: Sequence[Event], path: str | os.PathLike[str]) -> Event:
    """Return the first event of a run, which says how the run was configured."""
    if not events or events[0].get("event") != "start":
        raise StorageError(
            f"{path} does not hold an llmopt run: expected a first line with "
            '{"event": "start", ...}; give the file that save() or storage= wrote'
        )
    if events[0].get("format") != FORMAT:
        raise StorageError(
            f"{path} has format {events[0].get('format')!r}, and this llmopt reads {FORMAT}: "
            "read it with the version that wrote it "
            f"({events[0].get('llmopt')}), or upgrade llmopt"
        )
    return events[0]


def _compared(there: Any, now: Any) -> str:
    """Return both values, of texts the first line that differs, from shortly before that on."""
    if isinstance(there, dict) and isinstance(now, dict):
        differ = [k for k in sorted({*there, *now}) if there.get(k) != now.get(k)]
        return "; ".join(f"{k}: {_compared(there.get(k), now.get(k))}" for k in differ[:_SHOWN])
    if isinstance(there, str) and isinstance(now, str):
        pairs = itertools.zip_longest(there.splitlines(), now.splitlines(), fillvalue="")
        there, now = next(((a, b) for a, b in pairs if a != b), (there, now))
        equal = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(there, now, strict=False))
        start = max(0, sum(1 for _ in equal) - 20)
        there, now = (("..." if start else "") + text[start:] for text in (there, now))
    return f"there {short(there)}, now {short(now)}"


def _space_differences(there: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Say in what two spaces differ, each written by `Space.to_dict`."""
    old, new = ({d["name"]: d for d in space["dimensions"]} for space in (there, now))
    found = []
    for where, names in (("there", set(old) - set(new)), ("now", set(new) - set(old))):
        if names:
            found.append(f"only {where}: {', '.join(sorted(names)[:5])}{' ...' * (len(names) > 5)}")
    for name in (name for name in old if name in new):
        keys = ["type"] if old[name]["type"] != new[name]["type"] else {*old[name], *new[name]}
        for key in sorted(keys):
            pair = old[name].get(key), new[name].get(key)
            if pair[0] != pair[1]:
                found.append(f"{name}: {key} ({_compared(*pair)})")
    if not found and list(old) != list(new):
        found.append(f"the order of the parameters ({_compared(list(old), list(new))})")
    if not found and there != now:
        keys = sorted({*there, *now} - {"dimensions"})
        pairs = [(key, there.get(key), now.get(key)) for key in keys]
        found += [f"space {key} ({_compared(a, b)})" for key, a, b in pairs if a != b]
    return found


# What says how the model is asked: stored points mean the same whatever it is.
_MAY_CHANGE = ("client", "seed", "prompt")
_MAY_CHANGE_OPTIONS = frozenset(
    {"description", "batch_size", "attempts", "out_of_range", "on_error", "may_stop"}
    | {"points", "numeric"}
    | {"total", "max_requests", "max_tokens", "max_cost"}
)


def check_same(start: Event, own: Event, path: str | os.PathLike[str], *, seed_given: bool) -> None:
    """Raise unless what is stored means the same to the optimizer that is to go on with it.

    The space, the directions, the task and how the search began must be the same. How the model
    is asked may change; that is said in one line.

    Args:
        start: The run's first event.
        own: The first event that the optimizer would write.
        path: The file, for messages.
        seed_given: Whether the caller gave a seed.

    Raises:
        StorageError: They differ; the message says in what.
    """
    there, now = start["options"], own["options"]
    pairs = [("directions", start["directions"], own["directions"])]
    names = {*there, *now} - _MAY_CHANGE_OPTIONS
    if "task" in now and "task" not in there:  # an earlier version told it in the description
        names = names - {"task"} | {"description"}
    if "noisy" not in there:  # of an earlier version, which did not say
        names -= {"noisy"}
    pairs += [(name, there.get(name), now.get(name)) for name in sorted(names)]
    found = [
        f"{name} ({_compared(old, new)}){_HINTS.get(name, '')}"
        for name, old, new in pairs
        if old != new
    ]
    found += _space_differences(start["space"], own["space"])
    if found:
        more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise StorageError(
            f"the run has another configuration: {'; '.join(found[:_SHOWN])}{more}. "
            "Give the same configuration to go on with that run, or another file to start a new "
            "one; import_trials(FILE) then takes over the trials of this one"
        )
    pairs = [(name, start[name], own[name]) for name in _MAY_CHANGE if name != "seed" or seed_given]
    changes = sorted(_MAY_CHANGE_OPTIONS - {"total"})
    pairs += [(name, there.get(name), now.get(name)) for name in changes if name in there]
    changed = [
        f"another {'model' if name == 'client' else name} ({_compared(old, new)})"
        + (", of which the stored one stays" if name == "seed" else "")
        for name, old, new in pairs
        if old != new
    ]
    if changed:
        logger.warning("%s: goes on with %s", path, "; ".join(changed))


# All that a file may say of a search: no file, no model and nothing that runs.
_STORED_OPTIONS = _MAY_CHANGE_OPTIONS | frozenset(
    {"warmup", "warmup_points", "warmup_distribution", "start", "partner", "requests", "noisy"}
    | {"task"}
)

# Providers whose model strings hold an address, a file or a folder in place of a model's name.
_PLACES = frozenset({"openai+http", "openai+https", "gguf", "folder", "replay"})
# Options of a client, behind a model's name, that hold none, nor what a request costs: a price of
# 0 would lift a cap.
_HARMLESS = frozenset(
    {"cache", "concurrency", "effort", "patience", "reasoning_tokens"}
    | {"requests_per_minute", "thinking", "threads", "timeout", "transport_attempts"}
)


def names_a_place(model: str) -> bool:
    """Whether a model string holds an address, a file or a folder.

    Where it comes from a file, whoever wrote the file chose the place: prompts and keys are not
    to go there, and nothing there is to be read, before the user gave the string, too.
    """
    bare, options = split_options(model)
    return (
        "://" in model
        or re.split("[:/]", bare, maxsplit=1)[0].lower() in _PLACES
        or not _HARMLESS.issuperset(options)
    )


class StoredPoints(list[tuple[str, list[Any]]]):
    """Points to start with as a file has them: words, which may repeat, and stored values."""


def stored_options(start: Event, options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with which a stored run goes on; `options` go before its own."""
    stored = dict(start["options"])
    foreign = sorted(map(str, stored.keys() - _STORED_OPTIONS))
    if foreign:
        raise StorageError(
            f"it is not as llmopt wrote it: {short(foreign[0])} is no option that a run stores. "
            "Take it out, or restore the file from a copy"
        )
    stored["space"] = options["space"] if "space" in options else Space.from_dict(start["space"])
    points = stored.pop("warmup_points")
    if points is not None:
        space = Space.of(stored["space"])
        stored["warmup"] = [space.unflatten(space.from_json_values(v)) for v in points]
    if "start" in stored:
        stored["start"] = StoredPoints((str(words), values) for words, values in stored["start"])
    directions = start["directions"]
    stored["direction"] = directions[0] if len(directions) == 1 else directions
    stored["seed"] = start["seed"]
    if "prompt" not in options:
        if not is_shipped(start["prompt"]):
            raise StorageError(
                "the run was begun with a template of its own, which a file may not bring along: "
                "whoever wrote the file chose what it does. Give the template again, as prompt="
            )
        stored["prompt"] = get_prompt(start["prompt"])
    return {**stored, **options}


def replay(
    events: Sequence[Event], state: SearchState, meter: Meter, path: str | os.PathLike[str]
) -> None:
    """Bring a fresh state and its meter to where a run ended.

    Args:
        events: All events of the run, the first one included.
        state: Changed.
        meter: Changed.
        path: The file, for messages.

    Raises:
        StorageError: An event is not as llmopt wrote it.
    """
    ledger = Ledger(meter)

    def take(line: Event) -> None:
        event = read_event(line, state.space)
        state.apply(event)
        if isinstance(event, Asked):
            ledger.asked(proposals=event.proposals, rejected=event.rejected)
        elif isinstance(event, Snapshot):
            ledger.begin_with(event.usage, event.paid)

    ledger.replay(events, path, take)


def stored_trials(
    events: Sequence[Event], path: str | os.PathLike[str]
) -> tuple[Space, list[Trial]]:
    """Return the space and the trials of a stored run."""
    start = start_of(events, path)
    with as_written(path, 1, start):
        space = Space.from_dict(start["space"])
        state = SearchState(space, tuple(start["directions"]), start["seed"])
        for words, values in start["options"].get("start", ()):
            state.apply(Queued(space.from_json_values(values), words))
    replay(events, state, Meter(ScriptedClient([])), path)
    return space, state.trials
