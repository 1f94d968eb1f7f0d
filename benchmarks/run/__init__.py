"""``llmopt run``: a model searches one task's policy, beside its rivals."""

from llmopt.benchmarks.run.config import DEFAULT_METHODS as METHODS
from llmopt.benchmarks.run.config import RunConfig, RunConfigError
from llmopt.benchmarks.run.outcome import MethodResult, RunResult
from llmopt.benchmarks.run.session import run

__all__ = ["METHODS", "MethodResult", "RunConfig", "RunConfigError", "RunResult", "run"]
