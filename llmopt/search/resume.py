"""From the file of a stored search back to it: its options, what may change, its state."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

from llmopt.client.model_string import get_client, names_a_place
from llmopt.client.scripted import ScriptedClient
from llmopt.data import folder_of
from llmopt.errors import LLMOptError, StorageError
from llmopt.history import Trial
from llmopt.prompt import get_prompt, is_shipped
from llmopt.search.eventlog import Event, as_written
from llmopt.search.events import Queued
from llmopt.search.meter import Meter
from llmopt.search.options import SearchOptions, stored_names
from llmopt.search.points import StoredPoints
from llmopt.search.spend_log import Books
from llmopt.search.state import SearchState
from llmopt.space import Space
from llmopt.util.text import difference, short

logger = logging.getLogger(__name__)

FORMAT = 1
_SHOWN = 3  # differences that one message names
_HINTS = {"description": " (a PolicySearch makes it of env, wrappers, starts and description)"}


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


def _space_differences(there: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Say in what two spaces differ, each written by `Space.to_dict`."""
    old, new = ({d["name"]: d for d in space["dimensions"]} for space in (there, now))
    found = []
    for where, names in (("there", set(old) - set(new)), ("now", set(new) - set(old))):
        if names:
            found.append(f"only {where}: {', '.join(sorted(names)[:5])}{' ...' * (len(names) > 5)}")
    both = [name for name in old if name in new and old[name] != new[name]]
    found += [f"{name}: {difference(old[name], new[name])}" for name in both]
    if not found and there != now:
        found.append(difference({**there, "dimensions": [*old]}, {**now, "dimensions": [*new]}))
    return found


# What says how the model is asked: stored points mean the same whatever it is.
_MAY_CHANGE = ("client", "seed", "prompt")
# Of warm-up points, which are in the file; and what went.
_FORMER_OPTIONS = {"warmup_distribution", "requests", "numeric"}
_MAY_CHANGE_OPTIONS = {f.name for f in fields(SearchOptions) if f.metadata.get("changes")}


def check_same(start: Event, own: Event, path: str | os.PathLike[str], *, seed_given: bool) -> None:
    """Raise unless a stored search means the same to the optimizer that resumes it.

    The space, the directions, the task and how the search began must be the same. How the model
    is asked may change; that is said in one line.
    """
    there, now = start["options"], own["options"]
    pairs = [("directions", start["directions"], own["directions"])]
    if "metrics" in start and "metrics" in own:  # their order is that of the rewards
        pairs.append(("metrics", start["metrics"], own["metrics"]))
    names = {*there, *now} - _MAY_CHANGE_OPTIONS - _FORMER_OPTIONS
    if "task" in now and "task" not in there:  # an earlier version stored it in the description
        names = names - {"task"} | {"description"}
    if "noisy" not in there:  # of an earlier version, which did not say
        names -= {"noisy"}
    pairs += [(name, there.get(name), now.get(name)) for name in sorted(names)]
    found = [
        f"{name} ({difference(old, new)}){_HINTS.get(name, '')}"
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
    # The entry points set may_stop: None is what nobody gave.
    pairs += [
        (name, there.get(name), now.get(name))
        for name in changes
        if name in there and (name != "may_stop" or now.get(name) is not None)
    ]
    changed = [
        f"another {'model' if name == 'client' else name} ({difference(old, new)})"
        + (", and keeps the stored one" if name == "seed" else "")
        for name, old, new in pairs
        if old != new
    ]
    if changed:
        logger.warning("%s: resumes with %s", path, "; ".join(changed))


def stored_model(start: Event, path: str | os.PathLike[str]) -> str:
    """Return the model string of a stored run, if one can be made from the file alone.

    Raises:
        StorageError: It cannot, or it names an address, a file or a folder: those come from the
            caller, as a file must not decide where prompts go.
    """
    model = str(start.get("client", ""))
    try:
        get_client(model)
        if not names_a_place(model):
            return model
    except (LLMOptError, ValueError):
        pass
    raise StorageError(
        f"{path} was searched with the model {model!r}, which the file alone cannot restore: give "
        "it, or another one, as client="
    )


def stored_options(start: Event, options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that resume a stored run; `options` override its own."""
    stored = {k: v for k, v in start["options"].items() if k not in _FORMER_OPTIONS}
    foreign = sorted(map(str, stored.keys() - {*stored_names(), "warmup_points"}))
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
    if "metrics" in start:
        stored["direction"] = dict(zip(start["metrics"], directions, strict=True))
    stored["seed"] = start["seed"]
    if "prompt" not in options:
        if not is_shipped(start["prompt"]):
            raise StorageError(
                "the run was begun with its own template, which a file may not provide: "
                "an untrusted template could do harm. Pass the template again, as prompt="
            )
        stored["prompt"] = get_prompt(start["prompt"])
    return {**stored, **options}


class EventState(Protocol):
    """What a search knows, as the sum of its events."""

    folder: Path | None  # of the data files that events name

    def apply(self, event: Any, /) -> None:
        """Change by one event."""

    def replay(self, line: Event, books: Books, /) -> None:
        """Apply the event of a line, and give the books what it says of the requests before it."""


def replay(
    events: Sequence[Event], state: EventState, meter: Meter, path: str | os.PathLike[str]
) -> None:
    """Bring a fresh state and its meter to where a run ended."""
    books = Books()
    for number, line in enumerate(events[1:], start=2):
        with as_written(path, number, line):
            if not books.take(line, meter.in_doubt):
                state.replay(line, books)
    books.count_lost()
    meter.restore(books)


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
    state.folder = folder_of(path)
    replay(events, state, Meter(ScriptedClient([])), path)
    return space, state.trials
