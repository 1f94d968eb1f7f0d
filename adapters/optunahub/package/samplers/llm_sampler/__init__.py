"""LLMSampler for OptunaHub: the one of llmopt, installed by requirements.txt."""

from llmopt.adapters.optuna import LLMSampler


__all__ = ["LLMSampler"]
