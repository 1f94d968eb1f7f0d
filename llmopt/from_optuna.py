"""What the trials of an Optuna study say, for the adapter and `import_trials`, without Optuna."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llmopt.data import NO_DATA, TrialData
from llmopt.history import Usage, each_error, joined
from llmopt.packing import DataError
from llmopt.util.arguments import finite
from llmopt.util.text import clean, cut, describe_curve

MOST_TEXT = 20_000  # characters of one text out of a storage
_LONG = 10.0  # seconds of a trial that are worth a word
PREFIX = "llmopt:"
"""Of our attributes of a trial."""

CALL = PREFIX + "call:"
"""Of a study's system attributes, one for each call: what it took, by the names of `Usage`."""

ABOUT = PREFIX + "about"
"""System attribute of a study: model, prompt, seed and description of its latest sampler."""

PROPOSAL = PREFIX + "proposal"
"""System attribute of a trial: the point that it will evaluate, in the internal representation."""

NAMED = PREFIX + "named"
"""System attribute of a trial: what `named_in` gave for the model's words about it."""

# A point in a model's words, as prompts name it, and in the reason of an end in older studies.
_POINT = re.compile(
    r"(?:\b(?:points?|trials?|experiments?|rows?)\s+)?(?<![\w&#/])#(\d{1,5})\b(?!\.\d)"
    r"|(?<=, and recommends )point (\d{1,5})\b",
    re.IGNORECASE,
)

WAITED = PREFIX + "waited"
"""System attribute of a trial: the seconds that it waited for its parameters."""


def text_of(value: Any, most: int = MOST_TEXT) -> str:
    """Return what a storage holds as text, cut and clean; ``""`` for what has no JSON form."""
    if value is None:
        return ""
    if not isinstance(value, str):
        try:
            value = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            return ""
    return cut(clean(value), most)


def number_of(value: Any) -> float | None:
    """Return what a storage holds as a finite number, or ``None`` if it is none."""
    return None if isinstance(value, bool) else finite(value)


def amount_of(value: Any) -> float:
    """Return what a storage holds as a finite number of at least 0; else 0."""
    return max(number_of(value) or 0.0, 0.0)


def mapping_of(value: Any) -> Mapping[str, Any]:
    """Return what a storage holds as a mapping, empty if it is none."""
    return value if isinstance(value, Mapping) else {}


def note_of(attributes: Mapping[str, Any], name: str) -> Any:
    """Return one fact out of a trial's user attributes, or ``None``."""
    return attributes.get(PREFIX + name)


def calls_of(attributes: Mapping[str, Any]) -> Usage:
    """Return what the calls in a study's system attributes took."""
    usage = Usage()
    for key, entry in attributes.items():
        if key.startswith(CALL) and isinstance(entry, Mapping):
            took: dict[str, Any] = {name: int(amount_of(entry.get(name))) for name in _COUNTS}
            cost, seconds = entry.get("cost", 0.0), amount_of(entry.get("seconds"))
            cost = None if cost is None else amount_of(cost)
            usage.add(Usage(**took, seconds=seconds, cost=cost))
            for reason, count in mapping_of(entry.get("rejected")).items():
                number = usage.rejected.get(str(reason), 0) + int(amount_of(count))
                usage.rejected[str(reason)] = number
    return usage


_COUNTS = (
    "requests", "failed_requests", "prompt_tokens", "cached_tokens", "completion_tokens",
    "unpriced", "estimated",
)  # fmt: skip

AMOUNTS = ("prompt_tokens", "completion_tokens", "seconds")
"""What a proposal took of its requests, by the names of its fields and of its notes."""


def shares_of(note: Callable[[str], Any]) -> dict[str, Any]:
    """Return `AMOUNTS` and `clipped` of a proposal, given the function that returns its notes."""
    amounts: dict[str, Any] = {name: amount_of(note(name)) for name in AMOUNTS}
    return {**amounts, "clipped": note("clipped") is True}


def told_of(attributes: Mapping[str, Any], name: str) -> list[Any]:
    """Return what the objective left under a name, with and without our prefix."""
    found = [attributes.get(name), note_of(attributes, name)]
    return [value for value in found if value is not None]


def stderr_of(attributes: Mapping[str, Any], objectives: int) -> Any:
    """Return what the objective left as standard errors, as `Trial.stderr` has them."""
    for value in told_of(attributes, "stderr"):
        numbers = map(number_of, each_error(value, objectives))
        errors = [n if n is not None and n >= 0 else None for n in numbers]
        if len(errors) == objectives and (stderr := joined(errors)) is not None:
            return stderr
    return None


def parts_of(attributes: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers that the objective left under ``parts``, by name."""
    found = [value for value in told_of(attributes, "parts") if isinstance(value, Mapping)]
    parts = {cut(clean(k), 200): number_of(v) for k, v in [*found[0].items()][:20]} if found else {}
    return {name: value for name, value in parts.items() if value is not None}


def named_in(words: str, numbers: Sequence[int], trial: int) -> dict[str, int | None]:
    """Return which trials the points are that a model names, where ``#k`` is not trial k - 1.

    Args:
        words: The model's words.
        numbers: The number in the study of each point of the prompt, in its order.
        trial: Number of the trial that the model was asked for.

    Returns:
        The numbers in the study by those of the prompt; ``None`` for a point of the same answer
        whose trial is not known yet.
    """
    alone = trial == len(numbers) and all(i == number for i, number in enumerate(numbers))
    found: dict[str, int | None] = {}
    for match in _POINT.finditer(words):
        place = int(match[1] or match[2]) - 1
        if 0 <= place < len(numbers):
            if numbers[place] != place:
                found[str(place + 1)] = numbers[place]
        elif not alone:
            found[str(place + 1)] = None
    return found


def read_named(system_attrs: Mapping[str, Any]) -> dict[str, int | None]:
    """Return what `named_in` gave for a trial, out of a storage, which may hold anything."""
    value = system_attrs.get(NAMED)
    pairs = value.items() if isinstance(value, Mapping) else ()
    return {str(k): n for k, n in pairs if n is None or type(n) is int}


def for_readers(words: str, named: Mapping[str, int | None]) -> str:
    """Return a model's words with the study's numbers: ``trial 0`` for ``#1``; see `named_in`."""

    def name(match: re.Match[str]) -> str:
        point = int(match[1] or match[2])
        number = named.get(str(point), point - 1)
        if number is None or number < 0:
            return f"point {point} of the prompt"
        return f"trial {number}"

    return _POINT.sub(name, words)


def curve_of(trial: Any, direction: str) -> str:
    """Return in one line what a trial reported, thinned; see `describe_curve`."""
    values = ((step, number_of(value)) for step, value in sorted(trial.intermediate_values.items()))
    curve = ((step, math.nan if value is None else value) for step, value in values)
    return describe_curve(curve, direction)


def data_of(trial: Any, curves: bool) -> TrialData:
    """Return the arrays that the objective left under ``data``, and what it reported."""
    found = [value for value in told_of(trial.user_attrs, "data") if isinstance(value, Mapping)]
    data = dict(found[0]) if found else {}
    if curves and trial.intermediate_values and "reported" not in data:
        steps = sorted(trial.intermediate_values.items())
        values = [number_of(value) for _, value in steps]
        known = [math.nan if value is None else value for value in values]
        data["reported"] = {"step": [step for step, _ in steps], "value": known}
    try:
        return TrialData.of(data)
    except DataError:  # a storage may hold anything
        return NO_DATA


def duration_of(trial: Any) -> str:
    """Say how long a trial took without its proposal, where that is long enough to tell."""
    try:
        seconds = trial.duration.total_seconds() if trial.duration else 0.0
    except TypeError:  # its clocks are in different zones
        return ""
    seconds -= number_of(trial.system_attrs.get(WAITED)) or 0.0
    return f"took {float(f'{seconds:.2g}'):.0f} s" if seconds >= _LONG else ""


def violated(trial: Any) -> dict[str, float]:
    """Return a trial's constraint values above 0, by name."""
    try:
        found = getattr(trial, "constraints", None)
    except (TypeError, ValueError, AttributeError):
        return {}  # others wrote them in a form that Optuna does not read
    if found is None:  # before Optuna 5, where samplers kept them in a system attribute
        listed = trial.system_attrs.get("constraints")
        listed = listed if isinstance(listed, (list, tuple)) else ()
        found = {str(i): c for i, c in enumerate(listed)}
    numbers = (int, float)  # NaN and infinity stay as they are: both are violations
    values = {str(name): float(c) for name, c in found.items() if isinstance(c, numbers)}
    return {name: c for name, c in values.items() if not c <= 0}


def violations_in_words(violated: Mapping[str, float]) -> str:
    """Return the constraint values above 0, as prompts and reports show them; empty for none."""
    shown = ", ".join(f"{name} = {amount:g}" for name, amount in violated.items())
    return f"constraints above 0: {shown}" if shown else ""


def violation_of(violated: Mapping[str, float]) -> float:
    """Return the sum of a trial's constraint values above 0."""
    return sum(math.inf if c != c else c for c in violated.values())
