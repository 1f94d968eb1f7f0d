"""The small network as a partner: it samples points around the best ones of all sources."""

from __future__ import annotations

from dataclasses import replace

from numpy.random import Generator

from llmopt.client.local.network import NetworkClient
from llmopt.history import History, Proposal, Source
from llmopt.search.emitter import ModelEmitter
from llmopt.search.model_ask import Taken
from llmopt.space import Space


class NetworkEmitter:
    """Asks the small network with the prompt `columns`, on a separate account."""

    source: Source = "network"

    def __init__(self) -> None:
        self._network = ModelEmitter(NetworkClient(), "columns")

    def propose(
        self, space: Space, history: History, rng: Generator, n: int = 1, *, taken: Taken = None
    ) -> list[Proposal]:
        """Return at most `n` new points with source ``"network"``: see `PartnerEmitter.propose`."""
        # In a separate ask: points that it lacks are dropped without a warning.
        found, _ = self._network.meter.asking(
            lambda _: self._network.propose(space, history, rng, n, taken=taken)
        )
        return [
            replace(p, source=self.source, explanation="", seconds=0.0)
            for p in found
            if p.source != "fallback"
        ]
