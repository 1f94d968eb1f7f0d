"""Real reactions as tasks: an experiment is looked up in a table of a high-throughput screen.

The tables are in `reaction_data`, the words in `reactions.toml`. They are published, so that a chat
model may have read about them; it has certainly read chemistry.
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from statistics import mean
from typing import Any

from llmopt.space import Categorical, Space

_NEVER_RUN = "this combination was never run in the screen; choose another one"


@dataclass(frozen=True, eq=False)
class Reaction:
    """A screen of reactions.

    Attributes:
        name: Name of the task.
        description: The reaction and its conditions in words, without any result.
        doi: The papers that measured it.
        space: The choices of each parameter.
        table: Measured values of each combination of choices, one tuple for each repeat: the yield,
            or the yields of the desired and the undesired product, in percent.
    """

    name: str
    description: str
    doi: tuple[str, ...]
    space: Space
    table: Mapping[tuple[Any, ...], tuple[tuple[float, ...], ...]]

    def measure(self, values: tuple[Any, ...]) -> tuple[float | None, str]:
        """Return the value to maximize, in percent, and what else was measured, in words.

        A combination that was never run has no value. Repeats are averaged. Of two yields the value
        is d²/(d + u), with d the desired and u the undesired one.
        """
        repeats = self.table.get(values)
        if repeats is None:
            return None, _NEVER_RUN
        words = ""
        if len(repeats[0]) > 1:
            wanted, other = (mean(column) for column in zip(*repeats, strict=True))
            words = f"d {wanted:.1f} %, u {other:.1f} %"
        return mean(map(_selective, repeats)), words

    @functools.cached_property
    def best(self) -> float:
        """The largest value of the table."""
        return max(self.measure(values)[0] or 0.0 for values in self.table)


def _selective(yields: tuple[float, ...]) -> float:
    desired, undesired = yields[0], sum(yields[1:])
    return desired * desired / (desired + undesired) if desired else 0.0


def _unpacked(name: str) -> str:
    data = files(__package__).joinpath("reaction_data", f"{name}.gz").read_bytes()
    return gzip.decompress(data).decode("utf-8")


def _words() -> Mapping[str, Any]:
    return tomllib.loads(files(__package__).joinpath("reactions.toml").read_text(encoding="utf-8"))


@functools.cache
def get_reaction(name: str) -> Reaction:
    """Return a reaction of `REACTIONS`."""
    words = _words()[name]
    names, shown = words.get("names", {}), words.get("shown", ())
    choices: list[dict[str, Any]] = []  # the choice of each entry of the table, by parameter
    lines = [words["description"]]
    config = json.loads(_unpacked(f"{words['file']}.config.json"))
    for parameter, column in zip(words["parameters"], config["parameters"], strict=True):
        options = column["options"]
        if column["type"] != "categorical":
            options = sorted(options)
        own = {str(o): names.get(f"{parameter} {o}", names.get(o, o)) for o in options}
        choices.append(own)
        if parameter in shown:
            full = "; ".join(f"{short} = {long}" for long, short in own.items() if short != long)
            lines.append(f"{parameter}: {full}.")
    space = Space(
        {
            parameter: Categorical(list(own.values()))
            for parameter, own in zip(words["parameters"], choices, strict=True)
        }
    )
    table: dict[tuple[Any, ...], tuple[tuple[float, ...], ...]] = {}
    for row in csv.reader(io.StringIO(_unpacked(f"{words['file']}.csv"))):
        point = tuple(own[entry] for own, entry in zip(choices, row, strict=False))
        measured = tuple(map(float, row[len(choices) :]))
        table[point] = (*table.get(point, ()), measured)
    return Reaction(name, "\n".join(lines), tuple(words["doi"]), space, table)


REACTIONS = tuple(_words())
"""The names of the reactions, in the order of tables."""
