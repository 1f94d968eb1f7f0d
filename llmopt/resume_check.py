"""From the file of a search back to it: its arguments, and what may differ when it resumes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from llmopt.client.base import Client
from llmopt.client.model_string import get_client, names_a_place
from llmopt.errors import LLMOptError, SpaceError, StorageError
from llmopt.events import Json, Started
from llmopt.history import Proposal
from llmopt.journal import Journal, read_started
from llmopt.options import SearchOptions, stored_names
from llmopt.points import StoredPoints
from llmopt.prompt import get_prompt, is_shipped
from llmopt.space import Space
from llmopt.state import LIMITS, State
from llmopt.util.caller import CALLER
from llmopt.util.text import difference, short

_SHOWN = 3  # differences that one message names
_HINTS = {
    "description": " (a PolicySearch makes it of env, wrappers, starts and description)",
    "noisy": " (a search becomes noisy at any time, and stays so)",
}
_CHANGING = {f.name for f in fields(SearchOptions) if f.metadata.get("changes")}


def split_options(options: Mapping[str, Any]) -> tuple[Json, Json]:
    """Return the stored options that a resumed search must share, and those that may change."""
    fixed = {name: value for name, value in options.items() if name not in _CHANGING}
    return fixed, {name: value for name, value in options.items() if name in _CHANGING}


def check_same(there: Started, now: Started, path: object, *, seed_given: bool) -> str:
    """Return what is new in a search that resumes; raise unless it means the same.

    Parameters, directions, task and beginning must be the same. How the model is asked may change,
    and so may units, the table of candidates, constraints and forbidden combinations, and a search
    may become noisy.

    Raises:
        StorageError: The search is another one; the message names the first differences.
    """
    differences: list[str] = []
    changes: list[str] = []
    one, other = ({**e.identity, **e.identity.get("options", {})} for e in (there, now))
    for name in sorted((one.keys() | other.keys()) - {"options"}):
        old, new = one.get(name), other.get(name)
        if old == new or name == "seed" or (name == "metrics" and None in (old, new)):
            continue
        if name == "noisy" and new:
            changes.append("noisy: from now on points may repeat, and count with their mean")
        elif name == "space" and old is not None and new is not None:
            tables = old.get("candidates"), new.get("candidates")
            if tables[0] != tables[1]:
                sizes = [f"{t['size']:,}" if t else "none" for t in tables]
                text = f"other candidates (there {sizes[0]}, now {sizes[1]})"
                (differences if None in tables else changes).append(text)
            for part in LIMITS:
                if (was := old.get(part, [])) != (limits := new.get(part, [])):
                    changes.append(f"other {part} (there {short(was)}, now {short(limits)})")
            units = [
                {d["name"]: d["unit"] for d in s["dimensions"] if "unit" in d} for s in (old, new)
            ]
            if units[0] != units[1]:
                changes.append(f"other units (there {short(units[0])}, now {short(units[1])})")
            differences += _space_differences(old, new)
        else:
            differences.append(f"{name} ({difference(old, new)}){_HINTS.get(name, '')}")
    if differences:
        more = f", and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise StorageError(
            f"{path}: the run has another configuration: {'; '.join(differences[:_SHOWN])}"
            f"{more}. Give the same configuration to continue that search, or another file to "
            f"start a new one; {CALLER.get().imports} then takes over the trials of this one"
        )
    changes += [
        f"another {'model' if name == 'client' else name} ({difference(old, new)})"
        for name, old, new in (
            (name, there.options.get(name), now.options.get(name))
            for name in sorted(there.options.keys() & now.options.keys() - {"total"})
        )
        if old != new and not (name == "may_stop" and new is None)
    ]
    seeds = there.identity.get("seed"), now.identity.get("seed")
    if seed_given and seeds[0] != seeds[1]:
        changes.append(f"another seed ({difference(*seeds)}), and keeps the stored one")
    return "; ".join(changes)


def _space_differences(there: Json, now: Json) -> list[str]:
    """Return in what two spaces differ beside what may change; both are of `Space.to_dict`."""
    changing = dict.fromkeys(("candidates", *LIMITS))
    there, now = ({**space, **changing} for space in (there, now))
    old, new = ({d["name"]: {**d, "unit": ""} for d in s["dimensions"]} for s in (there, now))
    texts = []
    for where, names in (("there", set(old) - set(new)), ("now", set(new) - set(old))):
        if names:
            texts.append(f"only {where}: {', '.join(sorted(names)[:5])}{' ...' * (len(names) > 5)}")
    both = [name for name in old if name in new and old[name] != new[name]]
    texts += [f"{name}: {difference(old[name], new[name])}" for name in both]
    there, now = {**there, "dimensions": [*old]}, {**now, "dimensions": [*new]}  # in their order
    if not texts and there != now:
        texts.append(difference(there, now))
    return texts


def started_there(storage: str | os.PathLike[str] | None) -> Started | None:
    """Return which search a storage file holds; ``None`` if it is missing or empty."""
    path = None if storage is None else Path(storage).expanduser()
    if path is None or not path.is_file() or path.stat().st_size == 0:
        return None
    return read_started(path)


def parameters_of(there: Started | None) -> Space | None:
    """Return the space of a stored search without its limits; ``None`` if it cannot be rebuilt."""
    try:
        data = {} if there is None else there.identity["space"]
        return Space.from_dict({**data, "constraints": (), "forbidden": (), "candidates": None})
    except (SpaceError, LookupError, TypeError):
        return None


def arguments_of(
    started: Started, given: Mapping[str, Any], path: str | os.PathLike[str]
) -> dict[str, Any]:
    """Return the arguments with which a stored search was made; `given` ones override them.

    Raises:
        StorageError: The file holds an option that llmopt does not store, or would bring a
            template.
        LookupError, TypeError, ValueError: An entry is missing or has another form.
    """
    identity = started.identity
    stored = {**identity["options"], **started.options}
    client, prompt = stored.pop("client", ""), stored.pop("prompt", "auto")
    foreign = sorted(map(str, stored.keys() - {*stored_names(), "warmup_points"}))
    if foreign:
        raise StorageError(
            f"{path}, line 1: {short(foreign[0])} is no option that a search stores. Remove it, or "
            "restore the file from a copy"
        )
    stored["space"] = given["space"] if "space" in given else Space.from_dict(identity["space"])
    points = stored.pop("warmup_points", None)
    if points is not None:
        stored["warmup"] = StoredPoints(("", values) for values in points)
    if "start" in stored:
        stored["start"] = StoredPoints((str(words), values) for words, values in stored["start"])
    directions = identity["directions"]
    stored["direction"] = directions[0] if len(directions) == 1 else directions
    if "metrics" in identity:
        stored["direction"] = dict(zip(identity["metrics"], directions, strict=True))
    stored["seed"] = identity["seed"]
    if "prompt" not in given:
        if not is_shipped(prompt):
            raise StorageError(
                f"{path}: the search has its own template, which a file may not provide, "
                "as an untrusted template could do harm. Pass the template again, as prompt="
            )
        stored["prompt"] = get_prompt(prompt)
    if "client" not in given:
        stored["client"] = client
    return {**stored, **given}


def stored_state(path: str | os.PathLike[str], *, links: bool = True) -> State:
    """Return the state of a stored search; no model is needed, and nothing is written.

    Raises:
        StorageError: The file cannot be read, or does not hold a search over points.
    """
    identity = read_started(path, links=links).identity
    try:
        if "functions" in identity:
            raise ValueError("it is of a search over code")
        space, options = Space.from_dict(identity["space"]), identity["options"]
        start = [(words, space.from_json_values(v)) for words, v in options.get("start", ())]
        first = State(
            space,
            tuple(identity["directions"]),
            identity["seed"],
            bool(options.get("seeded")),
            bool(options.get("noisy")),
            tuple(identity.get("metrics", ())),
            queue=tuple(Proposal(values, "user", words) for words, values in start),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(
            f"{path} holds no search over points, or its first line is damaged "
            f"({type(error).__name__}: {error})"
        ) from error
    return Journal.read(path, first).state


def stored_options(storage: str | os.PathLike[str] | None) -> Json:
    """Return the options and the space of a stored search; empty if it cannot be read."""
    try:
        started = started_there(storage)
    except StorageError:
        started = None  # the optimizer reports the fault of the file
    if started is None:
        return {}
    space = started.identity.get("space")
    return {**started.identity.get("options", {}), **started.options, "space": space}


def stored_client(name: object, path: str | os.PathLike[str]) -> Client:
    """Return the model that a file names.

    Raises:
        StorageError: A file may not choose it: it is a folder, a file, an address, a command, or
            unknown.
    """
    model = str(name)
    if not names_a_place(model):
        try:
            return get_client(model)
        except (LLMOptError, ValueError):
            pass
    raise StorageError(
        f"{path}: the search was made with the model {short(model)}, which a file cannot bring "
        'back. Give it again, as client="PROVIDER:NAME" or a client object'
    )
