"""Who proposes the next points: the model and its partners, in turn.

Without a cap on requests they take turns, one to one. With `max_requests` the model proposes first,
and the partners propose the rest in turn. Each reads the results of all others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Literal, Protocol

import numpy as np

from llmopt.client.base import client_name
from llmopt.errors import ClientError
from llmopt.history import History, Proposal, Source
from llmopt.model_calls import Scope
from llmopt.point_task import Asking, PointTask
from llmopt.points import sample_fallbacks
from llmopt.propose import Outcome, propose
from llmopt.space import Space
from llmopt.space.fixed import Fixed
from llmopt.state import State

_MUTE = 3  # unreadable answers that end a search: the first ones, or three that are the same
_UNREAD = frozenset({"unreadable", "truncated"})
# Words in which notices differ: identifiers and times, but no decimals.
_PASSING = re.compile(r"(?<![\w.])[\da-f][\da-f:-]{4,}(?![\w.])")

MODEL_SOURCES = ("llm", "drawn", "fallback")
"""Sources of the points that a model was asked for."""


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
    if outcome.capped:  # the partners continue
        outcome = replace(outcome, trouble="", capped=False, failed=False)
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
        answer.proposals[:0] = outcome.proposals
        outcome = replace(answer, trouble=answer.trouble or outcome.trouble)
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


def several_objectives(count: int, partner: str = "'cma'") -> str:
    """Return what to say where a partner, as it was written, is given several objectives."""
    return (
        f"partner={partner} searches one objective, and there are {count}: omit `partner`, or "
        "give one number that weighs them"
    )


def fill(
    outcome: Outcome,
    asking: Asking,
    scope: Scope,
    space: Space,
    rng: np.random.Generator,
    n: int,
    seen: set[Hashable],
    fixed: Fixed | None = None,
) -> None:
    """Add random points for the missing ones of `n`, with a warning; or say why there are none.

    A stop, an error after a point, or newer results leave nothing missing. There are no random
    points, and `Outcome.error` is a `ClientError`, if the model failed again after
    `AskOptions.max_fallbacks` of them, none of its first answers could be read, or three were the
    same unreadable text.

    Args:
        outcome: Of the model and its partners.
        asking: How the model was asked.
        scope: The calls of this ask.
        space: The search space.
        rng: Source of randomness; advanced.
        n: Points wanted.
        seen: Keys of the points not to propose again; grows.
        fixed: Values that the points keep.
    """
    missing = n - len(outcome.proposals)
    ended = outcome.stop is not None or outcome.error is not None or outcome.outdated
    if missing <= 0 or ended:
        return
    model, state, most = client_name(scope.client), scope.state, asking.options.max_fallbacks
    complaint = outcome.unread[-1][1] if outcome.unread else ""
    never = not {"llm", "drawn"} & state.usage.proposals.keys()
    if outcome.capped:
        outcome.warnings.append(
            "points are sampled at random from here on, and counted in usage.fallbacks: "
            f"{outcome.trouble}"
        )
    elif most is not None and state.fallbacks >= most and (outcome.failed or not most):
        said = "gave no point again" if most else "gave too few points"
        outcome.error = ClientError(
            f"{model} {said}: {outcome.trouble}. The last {state.fallbacks} points were sampled at "
            f"random in its place (max_fallbacks={most}; None continues at random). Every result "
            "is kept: repeat the call to ask again, once `llmopt check MODEL` prints a point",
            requests=0,
        )
        outcome.error.complaint = complaint
        return
    elif most is not None and _is_mute(outcome, state, never):
        said = "no answer of {} could be read yet" if never else "{} repeats what cannot be read"
        outcome.error = ClientError(
            f"{said.format(model)}: {outcome.trouble}. See that `llmopt check MODEL` prints a "
            "point, and repeat the call (max_fallbacks=None goes on at random)",
            requests=0,
        )
        outcome.error.complaint = complaint
        outcome.error.permanent = never  # a program that does something else
        return
    else:
        outcome.warnings.append(
            f"{missing} of the points asked for {'was' if missing == 1 else 'were'} sampled at "
            f"random, not proposed by {model}: {outcome.trouble}. They are counted in "
            f"usage.fallbacks ({state.usage.fallbacks + missing} so far)"
        )
    outcome.proposals += sample_fallbacks(space, seen, rng, missing, fixed)


def _is_mute(outcome: Outcome, state: State, never: bool) -> bool:
    """Whether no answer could be read, or the last ones are all the same, as a notice is.

    Args:
        outcome: Of the model.
        state: The search before.
        never: Whether the model never gave a point.
    """
    if not outcome.failed or not _UNREAD.issuperset(outcome.rejected):
        return False
    last = [_PASSING.sub("", raw) for raw, _ in outcome.unread[-_MUTE:]]
    unread = sum(outcome.rejected[kind] + state.usage.rejected.get(kind, 0) for kind in _UNREAD)
    return (never and unread >= _MUTE) or (len(last) == _MUTE and len(set(last)) == 1)
