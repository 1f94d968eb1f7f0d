"""Who proposes the next points: the model and its partners, in turn.

Without a cap on requests they take turns, one to one. With `max_requests` the model proposes first,
and the partners propose the rest in turn. Each reads the results of all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

import numpy as np

from llmopt.history import History, Proposal, Source
from llmopt.model_calls import Scope
from llmopt.partners.cma import CMAPartner, several_objectives
from llmopt.partners.network import NetworkPartner
from llmopt.point_task import Asking, PointTask, fill
from llmopt.propose import Outcome, propose
from llmopt.space import Space
from llmopt.space.fixed import Fixed

MODEL_SOURCES = ("llm", "drawn", "fallback")
"""Sources of the points that a model was asked for."""

PARTNERS: dict[str, Callable[[int | None], Partner]] = {
    "cma": lambda seed: CMAPartner(seed),
    "network": lambda seed: NetworkPartner(),
}
"""The partners by name: a new one is a file beside this one, and a line here."""


class Partner(Protocol):
    """Proposes points beside a model.

    One that cannot search every space also has ``check(space)``, which raises `SpaceError`.
    """

    source: Source  # of its proposals

    def propose(
        self,
        space: Space,
        history: History,
        rng: np.random.Generator,
        n: int,
        seen: set[Hashable],
    ) -> list[Proposal]:
        """Return at most `n` new points, different from each other.

        Args:
            space: The search space.
            history: The evaluated and the pending points.
            rng: Source of all randomness; advanced.
            n: Points wanted.
            seen: Keys (`Space.key`) of the points not to propose again; left as it is.
        """


def partners_of(
    partner: Any, seed: int | None, space: Space | None = None, objectives: int = 1
) -> tuple[Partner, ...]:
    """Return the partners that ``partner=`` names.

    Raises:
        SpaceError: A partner cannot search the space.
        ValueError: A partner is unknown, is named twice, or there are several objectives.
    """
    if partner is None:
        return ()
    several = isinstance(partner, Iterable) and not isinstance(partner, str)
    given = tuple(partner) if several else (partner,)
    for one in given:
        if not (isinstance(one, str) and one in PARTNERS) and not callable(
            getattr(one, "propose", None)
        ):
            raise ValueError(
                f"partner={one!r}: expected {', '.join(map(repr, PARTNERS))}, a list of them, or "
                "None; in LLMSampler also a sampler of Optuna, such as TPESampler()"
            )
    partners = tuple(PARTNERS[one](seed) if isinstance(one, str) else one for one in given)
    if len({p.source for p in partners}) < len(partners):
        raise ValueError(f"partner={partner!r}: expected each partner once")
    if partners and objectives > 1:
        raise ValueError(several_objectives(objectives, repr(partner)))
    for one in partners:
        check = getattr(one, "check", None)
        if space is not None and check is not None:
            check(space)
    return partners


def propose_in_turns(
    asking: Asking,
    scope: Scope,
    partners: Sequence[Partner],
    space: Space,
    history: History,
    rng: np.random.Generator,
    n: int,
    seen: set[Hashable],
    *,
    waiting: Sequence[Source] = (),
    fixed: Fixed | None = None,
) -> Outcome:
    """Return `n` new points of the model and its partners, and random ones for those that fail.

    There are fewer if the model ended the search, or with an `Outcome.error`.

    Args:
        asking: How the model is asked.
        scope: The calls of this ask.
        partners: The partners, in the order of their turns; may be empty.
        space: The search space.
        history: The evaluated and the pending points.
        rng: Source of all randomness; advanced.
        n: Points wanted.
        seen: Keys of the points not to propose again; grows.
        waiting: Sources of the points that have no result yet.
        fixed: Values that the points keep.
    """
    first = bool(partners) and scope.limits.max_requests is not None

    def ask_model(history: History, n: int) -> Outcome:
        on_cap: Literal["raise", "return"] = "return" if first else "raise"
        task = PointTask(asking, space, history, seen, fixed)
        return propose(task, scope, rng, n, on_cap=on_cap)

    if not partners:
        outcome = ask_model(history, n)
        fill(outcome, asking, scope, space, rng, n, seen, fixed)
        return outcome
    if len(history.directions) > 1:
        raise ValueError(several_objectives(len(history.directions)))
    sources = [*(t.source for t in history.trials), *waiting]
    counts: Counter[Source] = Counter(_turns(sources, partners))
    wanted: Counter[Source] = Counter()
    outcome = Outcome()
    order: list[Source] = ["llm", *(p.source for p in partners)]
    if first:
        outcome = ask_model(history, n)
        order = order[1:]
    turns = n - len(outcome.proposals) if outcome.capped or not first else 0
    for _ in range(turns):
        turn = min(order, key=counts.__getitem__)  # the first of them, in a tie
        counts[turn] += 1
        wanted[turn] += 1
    for partner in partners:
        count = wanted[partner.source]
        if count:
            known = _with(history, outcome.proposals)
            proposals = partner.propose(space, known, rng, count, seen)
            if fixed is not None:
                proposals = _keeping(fixed, proposals, seen)
            seen.update(space.key(p.values) for p in proposals)
            outcome.proposals += proposals
            if len(proposals) < count:
                outcome.trouble = f"the partner {partner.source!r} had no new point"
    if wanted["llm"]:
        answer = ask_model(_with(history, outcome.proposals), wanted["llm"])
        outcome.proposals += answer.proposals
        outcome = replace(answer, proposals=outcome.proposals)
    fill(outcome, asking, scope, space, rng, n, seen, fixed)
    return outcome


def _keeping(fixed: Fixed, proposals: Sequence[Proposal], seen: set[Hashable]) -> list[Proposal]:
    """Return the proposals with fixed values that are then new points of the space."""
    kept: dict[Hashable, Proposal] = {}
    for proposal in proposals:
        values = fixed.apply(proposal.values)
        if values is not None and fixed.inside.candidates is not None:
            values = fixed.inside.candidates.nearest(values, seen)
        if values is not None and fixed.inside.admits(values):
            kept.setdefault(fixed.space.key(values), replace(proposal, values=values))
    return [proposal for key, proposal in kept.items() if key not in seen]


def _with(history: History, proposals: Sequence[Proposal]) -> History:
    return replace(history, pending=history.pending + tuple([p.values for p in proposals]))


def _turns(sources: Sequence[Source], partners: Sequence[Partner]) -> list[Source]:
    """Return whose turn each point was, for the points of the model and its partners."""
    own = {p.source for p in partners}
    turns: list[Source] = []
    for source in sources:
        if source in own:
            turns.append(source)
        elif source in MODEL_SOURCES:
            turns.append("llm")
    return turns
