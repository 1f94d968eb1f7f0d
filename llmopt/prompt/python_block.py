"""A block of Python in place of a point: how an answer gives one, what it finds and leaves.

A model that computes may answer with Python, which is run beside the search
(`llmopt.lab.blocks`). The next prompt shows what it printed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llmopt.data import TrialData
from llmopt.errors import StorageError
from llmopt.history import History
from llmopt.prompt.answer_parts import PROPOSAL
from llmopt.prompt.describe import quoted
from llmopt.prompt.kept_variables import Plain, plain_values
from llmopt.prompt.thoughts import cut_thoughts
from llmopt.space import Categorical, Space
from llmopt.space.values import ABSENT
from llmopt.util.arguments import number, whole_number
from llmopt.util.text import clean, cut

IN_A_ROW = 20
"""Blocks that a model may give before it has to propose a point; see `blocks_left`."""

MOST_OUTPUT = 6000
"""Characters of what a block printed, its traceback included, that the model sees."""

MOST_CODE = 40_000
"""Characters of a block."""

VIOLATION = "violation"
"""Name of the array of constraint violations, if a trial has one."""

MOST_FEEDBACK = 10_000
"""Characters of feedback that a block finds for each point."""

_MOST_DATA = 2000  # characters on names and shapes of data
_MOST_LISTED = 1500  # characters of the names of variables
_MOST_NAMES = 151  # variables
_MOST_NOTES, _MOST_NOTE = 10, 1200  # of one block, and characters of each
_MOST_NAME = 80  # characters of a variable's name and kind
_SHOWN_CODE, _LEAST_CODE = 8000, 2000
_NOTICE = 50  # characters that say how many blocks are not shown
_BRIEF_OUTPUT = 1600  # characters of what an earlier block printed, half of them from its end
_COMPILING = " (njit)"
_BLOCK = re.compile(
    r"^[ ]{0,3}```[ ]?(?:python3?|py)[ \t]*\n"
    r"(.*?)(?:^[ ]{0,3}```(?:[ \t]*|[ \t]+(?!py)[^\n`]*)$|\Z)",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)


_DEFINED = re.compile(r"^(?:(?:async )?def|class) .*?:(?=\s|$)", re.MULTILINE)


@dataclass(frozen=True)
class Computed:
    """A model's block of Python and its outcome, truncated and cleaned of control characters."""

    code: str  # the block
    output: str  # what it printed, and its traceback, cut
    variables: tuple[str, ...] = ()  # what stays for later blocks, as `"fit (function)"`
    trials: int = 0  # how many trials it saw
    lost: bool = False  # whether its process ended, and all variables with it
    seconds: float = 0.0  # how long it took
    failed: bool = False  # whether it raised or was ended
    tokens: int = 0  # of the request that gave it
    notes: tuple[str, ...] = ()  # what became of variables and data, one sentence each
    # values of the variables that can be a point; see `llmopt.prompt.kept_variables`
    values: Mapping[str, Plain] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        names = (" ".join(clean(n[:_MOST_NAME]).split()) for n in self.variables[:_MOST_NAMES])
        notes = (" ".join(clean(note).split()) for note in self.notes[:_MOST_NOTES])
        object.__setattr__(self, "output", clean(self.output[:MOST_OUTPUT])[:MOST_OUTPUT])
        object.__setattr__(self, "notes", tuple(cut(note, _MOST_NOTE) for note in notes))
        object.__setattr__(self, "variables", tuple(name[:_MOST_NAME] for name in names))

    def shown(self, code: int = _SHOWN_CODE) -> str:
        """Return at most `code` characters of the block, and its output, for a prompt.

        What ran to its end is kept in variables: of its code the beginning is enough.
        """
        code = code if self.failed else min(code, _LEAST_CODE)
        output = quoted(cut(self.output.strip(), MOST_OUTPUT)) or "> (nothing)"
        text = f"You computed:\n{quoted(cut(self.code, code))}\nIt printed:\n{output}"
        return "\n".join([text, *self.notes])

    @property
    def brief(self) -> str:
        """An earlier block as a prompt shows it: what it defined, and both ends of its output."""
        defined = "\n".join(_DEFINED.findall(self.code))[:_SHOWN_CODE]
        output, half = self.output.strip(), _BRIEF_OUTPUT // 2
        if (rest := len(output) - 2 * half) > 0:
            output = f"{output[:half]}\n... {rest} characters not shown ...\n{output[-half:]}"
        what = f"its def lines:\n{quoted(defined)}\nIt" if defined else "no def; it"
        return f"Earlier block, {what} printed:\n{quoted(output) or '> (nothing)'}"

    def line(self) -> dict[str, Any]:
        """Return the form in which a file keeps it."""
        return vars(self)

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> Computed:
        """Return what a file keeps."""
        texts = line["code"], line["output"], *line["variables"]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a block, its output or a variable is not a string")
        return cls(
            line["code"],
            line["output"],
            tuple(line["variables"]),
            whole_number("trials", line["trials"], 0),
            bool(line["lost"]),
            number("seconds", line.get("seconds", 0.0), 0.0),
            bool(line.get("failed", False)),
            whole_number("tokens", line.get("tokens", 0), 0),
            tuple(map(str, line.get("notes", ()))),
            plain_values(line.get("values", {})),
        )


def shown_blocks(computed: Sequence[Computed], room: float = math.inf) -> list[str]:
    """Return the blocks since the last point for a prompt: the latest in full, if it fits.

    Beyond `room` characters the oldest are dropped, then the latest is cut.
    """
    if not computed:
        return []
    *earlier, latest = computed
    room -= _NOTICE * bool(earlier)
    text = latest.shown()
    if len(text) > room:
        code = min(len(latest.code), _SHOWN_CODE) - len(text) + int(room)
        text = latest.shown(max(_LEAST_CODE, code))
    shown, room = [text], room - len(text)
    while earlier and len(brief := earlier[-1].brief) <= room:
        room -= len(brief)
        shown.append(brief)
        earlier.pop()
    if earlier:
        shown.append(f"{len(earlier)} earlier block{'s' * (len(earlier) > 1)} not shown for room.")
    return shown[::-1]


def blocks_left(computed: Sequence[Computed], most: int) -> int:
    """Return how many blocks may follow in a row: as many may fail as may run to their end."""
    failed = sum(block.failed for block in computed)
    return min(most - len(computed) + failed, 2 * most - len(computed))


def listed(variables: Sequence[str]) -> str:
    """Return the variables that blocks left, as prompts list them."""
    return cut(", ".join(variables), _MOST_LISTED)


@dataclass(frozen=True)
class ToolFacts:
    """What a prompt states of the process that runs a model's Python.

    They are in the journal: on another machine a repeated request states the same.

    Attributes:
        workers: Processes for `pmap` and jobs.
        libraries: What blocks may import beside NumPy; ``None`` if a recording does not say.
        memory: Bytes that all blocks together may take.
        cores: Of the machine; 0 if a recording does not say.
    """

    workers: int = 1
    libraries: tuple[str, ...] | None = None
    memory: int = 1 << 30
    cores: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON."""
        return {**vars(self), "libraries": self.libraries and list(self.libraries)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> ToolFacts:
        """Return facts that `to_json` gave."""
        try:
            libraries = stored["libraries"]
            return cls(
                int(stored["workers"]),
                None if libraries is None else tuple(map(str, libraries)),
                int(stored["memory"]),
                int(stored.get("cores", 0)),
            )
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise StorageError(
                f"the file does not hold the facts of the laboratory ({error!r}): restore it from "
                "a copy"
            ) from error


def laboratory_variables(
    seconds: float,
    in_a_row: int,
    seconds_left: float,
    facts: ToolFacts,
    tools: Sequence[str],
) -> dict[str, Any]:
    """Return the variables of ``_laboratory.j2``, and the seconds that are left.

    Args:
        seconds: What a block may take.
        in_a_row: Blocks in a row.
        seconds_left: What all further blocks may take.
        facts: Of the process that runs the blocks.
        tools: Lines on further functions.
    """
    libraries = facts.libraries
    also = ", SciPy and scikit-learn where they are installed"
    if libraries is not None:
        also = "".join(f", {name}{_COMPILING * (name == 'numba')}" for name in libraries)
    return {
        "libraries": also,
        "has_cma": libraries is None or "cma" in libraries,
        "has_scipy": libraries is None or "SciPy" in libraries,
        "compute_seconds": f"{seconds:g}",
        "compute_blocks": in_a_row,
        "seconds_left": f"{seconds_left:.0f}",
        "workers": facts.workers,
        "cores": facts.cores,
        "memory": f"{facts.memory / (1 << 30):.3g} GB",
        "tools": [quoted(line, headings_alone=True) for line in tools],
        "most_output": MOST_OUTPUT,
    }


def data_words(
    data: Mapping[int, TrialData],
    total: int,
    of: tuple[str, str] = ("point", "points"),
    parts: Iterable[str] = (),
    violated: bool = False,
) -> str:
    """Return what blocks find of the data of trials, in words; nothing if there are none.

    Args:
        data: By the number of the trial.
        total: Number of trials.
        of: What a trial is called.
        parts: Names of the parts of f.
        violated: Whether a trial violates constraints.
    """
    having = {number: each for number, each in data.items() if each}
    names = ", ".join(f'parts["{name}"]' for name in parts)
    named = f"arrays of the parts of f: {names}" if names else ""
    if violated:
        named = "\n".join(
            filter(None, [named, f"array {VIOLATION}: by how much constraints break"])
        )
    if not having:
        return clean(named)
    last = max(having)
    shown = "; ".join(f"{name}: {words}" for name, words in having[last].words.items())
    some = f"each {of[0]}" if len(having) == total else f"{len(having)} {of[1]}"
    words = "\n".join(filter(None, [named, f"data of {some}, such as data[{last}]: {shown}"]))
    return cut(clean(words), _MOST_DATA)


def code_in(text: str) -> str:
    """Return the Python of an answer that gives no point; else nothing."""
    answer = cut_thoughts(clean(text))
    blocks = [block.strip() for block in _BLOCK.findall(answer)]
    rest = _BLOCK.sub("", answer)
    if not any(blocks) or PROPOSAL.search(rest):
        return ""
    return "\n".join(blocks)[:MOST_CODE]


def bare(code: str) -> str:
    """Return the Python of a separate field, without a fence around it."""
    return code_in(code) or clean(code).strip()[:MOST_CODE]


def data_of(
    space: Space, history: History, labels: Sequence[str], trials: int | None = None
) -> dict[str, Any]:
    """Return what a block finds of a search, or of its first `trials` trials."""
    shown = history.trials[:trials]
    f = np.full((len(shown), len(history.directions)), math.nan)
    points = np.full((len(shown), len(space)), math.nan)
    for row, trial in enumerate(shown):
        if trial.rewards is not None and trial.state != "failed":
            f[row] = trial.rewards
        for i, (dimension, value) in enumerate(zip(space.dimensions, trial.values, strict=True)):
            if value is not ABSENT:
                points[row, i] = dimension.code(value)
    violation = np.array([t.constraint_violation for t in shown], dtype=np.float64)
    ends = [
        (0.0, len(d.choices) - 1.0) if isinstance(d, Categorical) else (float(d.low), float(d.high))
        for d in space.dimensions
    ]
    return {
        "X": points,
        "f": f[:, 0] if f.shape[1] == 1 else f,
        "names": list(labels),
        "low": np.array([low for low, _ in ends]),
        "high": np.array([high for _, high in ends]),
        "feedback": [t.feedback[:MOST_FEEDBACK] for t in shown],
        "parts": {
            name: np.array([t.parts.get(name, math.nan) for t in shown])
            for name in dict.fromkeys(name for t in shown for name in t.parts)
        },
        "data": {k: t.data for k, t in enumerate(shown, start=1) if t.data},
        **({VIOLATION: violation} if violation.any() else {}),
    }
