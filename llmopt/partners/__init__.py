"""Numeric methods beside a model: each proposes some of the points of a search."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from llmopt.partners.cma import CMAPartner
from llmopt.partners.network import NetworkPartner
from llmopt.space import Space
from llmopt.turns import Partner, several_objectives

PARTNERS: dict[str, Callable[[int | None], Partner]] = {
    "cma": lambda seed: CMAPartner(seed),
    "network": lambda seed: NetworkPartner(),
}
"""The partners by name: a new one is a file beside this one, and a line here."""


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
