"""A partner that searches numbers alone, in a space with choices and branches."""

from __future__ import annotations

from collections.abc import Hashable, Set
from dataclasses import replace

import numpy as np

from llmopt.history import History, Proposal, Trial
from llmopt.search.emitter import Emitter, keys_of
from llmopt.space import Categorical, Space
from llmopt.space.values import ABSENT


class BestBranch:
    """Lets an emitter search the numbers of the best trial's branch: its choices stay as they are.

    The emitter learns from the trials that share these choices. Where there are none, and no
    parameter is absent, it searches the whole space.

    Args:
        numbers: An emitter for spaces without choices.
    """

    def __init__(self, numbers: Emitter) -> None:
        self.numbers = numbers
        self._known: tuple[tuple[int, ...], dict[int, tuple[Trial, Trial]]] = (), {}

    def __getstate__(self) -> dict[str, Emitter]:
        return {"numbers": self.numbers}

    def __setstate__(self, state: dict[str, Emitter]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def propose(
        self,
        space: Space,
        history: History,
        rng: np.random.Generator,
        n: int = 1,
        *,
        taken: Set[Hashable] | None = None,
        notes: tuple[str, ...] = (),
    ) -> list[Proposal]:
        """Return at most `n` new points: see `Emitter.propose`."""
        best = history.best
        if best is None:
            return []
        asked = set(space.asked)
        free = tuple(
            i
            for i, (value, d) in enumerate(zip(best.values, space.dimensions, strict=True))
            if value is not ABSENT and not isinstance(d, Categorical) and i in asked
        )
        if len(free) == len(space):
            return self.numbers.propose(space, history, rng, n, taken=taken, notes=notes)
        if not free:
            return []
        base = space.settle(best.values)
        names = {space.names[i] for i in free}
        part = Space({space.names[i]: space.dimensions[i] for i in free})
        part = part.constrained([c for c in space._constraints if c.names <= names])
        trials = tuple(self._part(t, free) for t in history.trials if _same(t.values, base, free))
        pending = tuple(tuple(p[i] for i in free) for p in history.pending if _same(p, base, free))
        known = replace(history, trials=trials, pending=pending)
        seen = keys_of(space, history) if taken is None else taken
        found = []
        for proposal in self.numbers.propose(part, known, rng, n, notes=notes):
            values = list(base)
            for i, value in zip(free, proposal.values, strict=True):
                values[i] = value
            whole = space.settle(values)
            lacking = space.missing({i: v for i, v in enumerate(whole) if v is not ABSENT})
            if space.key(whole) not in seen and space.admits(whole) and not lacking:
                found.append(replace(proposal, values=whole))
        return found

    def _part(self, trial: Trial, free: tuple[int, ...]) -> Trial:
        """Return a trial of some of its values, the same object at every call."""
        if self._known[0] != free:
            self._known = free, {}
        known = self._known[1]
        if trial.number not in known or known[trial.number][0] is not trial:
            values = tuple(trial.values[i] for i in free)
            known[trial.number] = trial, replace(trial, values=values)
        return known[trial.number][1]


def _same(values: tuple[object, ...], base: tuple[object, ...], free: tuple[int, ...]) -> bool:
    """Whether a point agrees with another one in all that is not free, and has what is."""
    fixed = all(v == base[i] for i, v in enumerate(values) if i not in free)
    return fixed and all(values[i] is not ABSENT for i in free)
