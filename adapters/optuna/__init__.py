"""A language model as an Optuna sampler."""

from llmopt.adapters.optuna.sampler import LLMSampler

__all__ = [
    "LLMSampler",
]
