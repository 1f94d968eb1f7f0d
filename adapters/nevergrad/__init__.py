"""Nevergrad optimizers that ask a language model: importing this registers them."""

from llmopt.errors import needs

with needs("llmopt.adapters.nevergrad", "nevergrad", extra="nevergrad"):
    from llmopt.adapters.nevergrad.optimizer import LLM, ParametrizedLLM

__all__ = ["LLM", "ParametrizedLLM"]
