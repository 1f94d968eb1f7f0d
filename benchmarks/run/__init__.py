"""``llmopt run``: a model searches one task's policy, beside its rivals."""

from llmopt.benchmarks.run.main import (
    METHODS,
    MethodResult,
    RunConfig,
    RunConfigError,
    RunResult,
    run,
)

__all__ = [
    "METHODS",
    "MethodResult",
    "RunConfig",
    "RunConfigError",
    "RunResult",
    "run",
]
