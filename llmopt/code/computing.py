"""What a model finds and reads if it may run Python before it writes code (``compute=True``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llmopt.code.candidate import CodeTrial
from llmopt.options import AskOptions
from llmopt.prompt.describe import quoted
from llmopt.prompt.python_block import (
    MOST_FEEDBACK,
    ToolFacts,
    data_words,
    laboratory_variables,
    listed,
    shown_blocks,
)
from llmopt.propose import Round

CANDIDATE = '''
class Candidate:
    """The functions of a source; a call runs the first one. `__globals__` holds its state."""

    __module__ = "__main__"  # what is listed with the variables of blocks

    def __init__(self, source):
        self._source = source
        space = self.__globals__ = {name.partition(".")[0]: __import__(name) for name in IMPORTS}
        space.update({"np": np, "__name__": "candidate"})
        exec(compile(source, "<candidate>", "exec", dont_inherit=True), space)
        self.__dict__.update({name: space[name] for name in NAMES if name in space})

    def __call__(self, *args, **kwargs):
        return getattr(self, NAMES[0])(*args, **kwargs)

    def __reduce__(self):
        return candidate, (self._source,)


def candidate(source):
    return Candidate(source)
'''
"""The source of ``candidate(source)``, for `Laboratory.equip` with ``NAMES`` and ``IMPORTS``."""


def data_of(trials: Sequence[CodeTrial]) -> dict[str, Any]:
    """Return what a block finds of the tries, each at its number."""
    known = {trial.number: trial for trial in trials}
    every = [known.get(number) for number in range(max(known, default=0) + 1)]
    scores = [np.nan if t is None or t.reward is None else t.reward for t in every]
    return {
        "sources": ["" if t is None else t.source for t in every],
        "scores": np.array(scores, dtype=float),
        "feedback": ["" if t is None else t.feedback[:MOST_FEEDBACK] for t in every],
        "data": {number: trial.data for number, trial in known.items() if trial.data},
    }


def variables_of(
    round: Round,
    options: AskOptions,
    facts: ToolFacts,
    trials: Sequence[CodeTrial],
    tools: Sequence[str],
) -> dict[str, Any]:
    """Return the variables of a prompt on computing."""
    data = {trial.number: trial.data for trial in trials}
    limits = options.compute_seconds, options.compute_blocks
    return {
        "blocks": round.blocks,
        "data": quoted(data_words(data, len(trials), ("try", "tries"))),
        "remembered": listed(_variables(round)),
        **laboratory_variables(*limits, round.seconds, facts, tools),
    }


def _variables(round: Round) -> tuple[str, ...]:
    blocks = (*round.before, *round.runs)
    return blocks[-1].variables if blocks else ()


def words_after(round: Round) -> tuple[list[str], str]:
    """Return the texts of the blocks of this ask, and how to answer now."""
    left, names = round.blocks, listed(_variables(round))
    may = (
        f"Before the code you may compute in {left} more block{'s' if left > 1 else ''}, and "
        f"{round.seconds:.0f} s are left for all blocks. Answer"
        if left
        else "No further Python now: give the code"
    )
    variables = f"Your variables of before: {names}\n\n" if names else ""
    return shown_blocks(round.runs), f"{variables}{may} in the form given above."
