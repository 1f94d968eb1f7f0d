"""Nevergrad optimizers that ask a language model: importing this registers them."""

from llmopt.adapters.nevergrad.optimizer import LLM, ParametrizedLLM

__all__ = [
    "LLM",
    "ParametrizedLLM",
]
