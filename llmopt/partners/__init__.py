"""Numeric methods beside a model: each proposes some of the points of a search."""

from __future__ import annotations

from llmopt.partners.turns import Partner as Partner
from llmopt.partners.turns import partners_of as partners_of
from llmopt.partners.turns import propose_in_turns as propose_in_turns
