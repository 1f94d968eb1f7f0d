"""A sampler in a model's place: it answers the prompt `columns` with no model.

What a search with it finds is what the prompt's frame and the selection of elites find by
themselves; what a model adds is what it finds beyond that.
"""

from __future__ import annotations

import numpy as np

from llmopt.client.base import Completion, Reply, Request
from llmopt.client.network import draw_rows


class GaussianGrammarClient:
    """A plain estimation-of-distribution algorithm with the elites' covariance: see `draw_rows`."""

    name = "gaussian-grammar"
    default_prompt = "columns"
    style = "completion"
    columns = True

    def complete(self, request: Request) -> Reply:
        """Answer one request."""
        rows = draw_rows(np.random.default_rng(request.seed), request)
        return Reply(tuple(map(Completion, rows)), type(self).__name__, 0, 0, 0, cost=0.0)
