"""Code as the thing searched: policies and reward functions that a model writes.

A model's code runs in a worker process that confines itself first (`llmopt.code.sandbox.sandbox`).
Everything here is imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmopt.code.candidate import Candidate, CodeTrial, Strategy
    from llmopt.code.checks import Function, Output
    from llmopt.code.code_optimizer import CodeOptimizer
    from llmopt.code.failure import (
        CandidateError,
        NoCandidateError,
        SandboxError,
        SandboxUnavailableError,
        UnsandboxedWarning,
    )
    from llmopt.code.language import LanguageFeedback
    from llmopt.code.policy import evaluate_policy, improve, policy_function
    from llmopt.code.reward.gencode import GenCode
    from llmopt.code.reward.reward import improve_reward, reward_function, train_linear
    from llmopt.code.sandbox.sandbox import Limits, Sandbox, WorkerLimits

_HOMES = {
    "candidate": "Candidate CodeTrial Strategy",
    "checks": "Function Output",
    "failure": "CandidateError NoCandidateError SandboxError SandboxUnavailableError "
    "UnsandboxedWarning",
    "reward.gencode": "GenCode",
    "language": "LanguageFeedback",
    "code_optimizer": "CodeOptimizer",
    "policy": "evaluate_policy improve policy_function",
    "reward.reward": "improve_reward reward_function train_linear",
    "sandbox.sandbox": "Limits Sandbox WorkerLimits",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Candidate",
    "CandidateError",
    "CodeOptimizer",
    "CodeTrial",
    "Function",
    "GenCode",
    "LanguageFeedback",
    "Limits",
    "NoCandidateError",
    "Output",
    "Sandbox",
    "SandboxError",
    "SandboxUnavailableError",
    "Strategy",
    "UnsandboxedWarning",
    "WorkerLimits",
    "evaluate_policy",
    "improve",
    "improve_reward",
    "policy_function",
    "reward_function",
    "train_linear",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
