"""What type checkers make of a user's script; `.ci/typecheck` checks it, nothing runs it."""

from typing import Any

from typing_extensions import assert_type

import llmopt
from llmopt.adapters.optuna import LLMSampler
from llmopt.benchmarks.run import RunConfig
from llmopt.policies import PolicySearch

optimizer = llmopt.LLMOptimizer({"x": llmopt.Float(0, 1)}, warmup=2)
assert_type(optimizer.ask(), dict[str, Any])
assert_type(optimizer.ask(2), list[dict[str, Any]])
best = optimizer.best
if best is not None:
    assert_type(best.params, dict[str, Any])
    assert_type(best.reward, float | tuple[float, ...] | None)
assert_type(LLMSampler(model="smollm2"), LLMSampler)
assert_type(RunConfig("mountaincar").task, str)
assert_type(PolicySearch("Swimmer-v5", "openai:x").best, llmopt.Trial[dict[str, Any]] | None)
