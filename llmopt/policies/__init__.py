"""Policies for Gymnasium environments: search, evaluation, statistics, descriptions and files.

``PolicySearch("Swimmer-v5", "openai:gpt-6-luna").run(50)`` is a complete search; see
`docs/policies.md`.
"""

from llmopt.policies.environment import EnvMaker
from llmopt.policies.episode import Step
from llmopt.policies.episode_seeds import held_out_seeds, selection_seeds
from llmopt.policies.evaluation import Evaluation, Evaluator
from llmopt.policies.linear import BoundPolicy, LinearPolicy
from llmopt.policies.report import EpisodeStatistics
from llmopt.policies.saved import load_policy, save_policy
from llmopt.policies.search import PolicySearch
from llmopt.policies.words.describe import EnvironmentWords, describe_environment
from llmopt.policies.words.naming import Quantity

__all__ = [
    "BoundPolicy",
    "EnvMaker",
    "EnvironmentWords",
    "EpisodeStatistics",
    "Evaluation",
    "Evaluator",
    "LinearPolicy",
    "PolicySearch",
    "Quantity",
    "Step",
    "describe_environment",
    "held_out_seeds",
    "load_policy",
    "save_policy",
    "selection_seeds",
]
