"""The small network as a partner: it samples points around the best ones of all sources."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import numpy as np

from llmopt.client.local.network import NetworkClient
from llmopt.history import History, Proposal, Source
from llmopt.journal import Journal
from llmopt.model_calls import ModelCalls, Scope
from llmopt.options import AskOptions
from llmopt.point_task import PointTask, asking_of
from llmopt.propose import propose
from llmopt.space import Space
from llmopt.state import State


class NetworkPartner:
    """Asks the small network with the prompt ``"columns"``; it is free, and counts no requests."""

    source: Source = "network"

    def __init__(self) -> None:
        self._client = NetworkClient()
        self._asking = asking_of(self._client, "columns", AskOptions())

    def propose(
        self,
        space: Space,
        history: History,
        rng: np.random.Generator,
        n: int,
        seen: set[Hashable],
    ) -> list[Proposal]:
        """Return at most `n` new points with source ``"network"``; see `Partner.propose`."""
        journal = Journal(None, State(space, history.directions))
        scope = Scope(ModelCalls(self._client, journal), journal.state)
        task = PointTask(self._asking, space, history, set(seen))
        outcome = propose(task, scope, rng, n)
        return [
            replace(p, source=self.source, explanation="", seconds=0.0)
            for p in outcome.proposals[:n]
        ]
