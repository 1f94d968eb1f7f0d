"""Policies on Gymnasium environments: what they are, and what they score on seeded starts."""

from llmopt.policies.linear import LinearPolicy
from llmopt.policies.rollout import Evaluation, Evaluator, RolloutStatistics

__all__ = [
    "Evaluation",
    "Evaluator",
    "LinearPolicy",
    "RolloutStatistics",
]
