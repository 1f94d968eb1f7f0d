"""`llmopt.Proposer`: the emitter that asks a model, under the name that users import."""

from __future__ import annotations

from llmopt.search.emitter import ModelEmitter as Proposer
from llmopt.search.emitter import draw_new
from llmopt.search.meter import Limits

__all__ = ["Limits", "Proposer", "draw_new"]
