"""Search over code: policies and reward functions that a model writes.

A model's code runs in a worker process that confines itself first (`llmopt.sandbox.sandbox`).
"""

from llmopt.code.candidate import Candidate, CodeTrial
from llmopt.code.checks import Function, Output
from llmopt.code.code_optimizer import CodeOptimizer
from llmopt.code.language import LanguageFeedback
from llmopt.code.policy import evaluate_policy, improve, policy_function
from llmopt.code.reward.gencode import GenCode
from llmopt.code.reward.reward import improve_reward, reward_function, train_linear
from llmopt.sandbox.failure import (
    CandidateError,
    NoCandidateError,
    SandboxError,
    SandboxUnavailableError,
    UnsandboxedWarning,
)
from llmopt.sandbox.sandbox import Sandbox, WorkerLimits

__all__ = [
    "Candidate",
    "CandidateError",
    "CodeOptimizer",
    "CodeTrial",
    "Function",
    "GenCode",
    "LanguageFeedback",
    "NoCandidateError",
    "Output",
    "Sandbox",
    "SandboxError",
    "SandboxUnavailableError",
    "UnsandboxedWarning",
    "WorkerLimits",
    "evaluate_policy",
    "improve",
    "improve_reward",
    "policy_function",
    "reward_function",
    "train_linear",
]
