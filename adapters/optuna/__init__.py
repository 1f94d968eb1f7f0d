"""A language model as an Optuna sampler."""

from llmopt.errors import needs

with needs("llmopt.adapters.optuna", "optuna", extra="optuna"):
    from llmopt.adapters.optuna.sampler import LLMSampler

__all__ = ["LLMSampler"]
