"""What type checkers make of a user's script; `.ci/typecheck` checks it, nothing runs it."""

from typing import Any, assert_type

import gymnasium
import numpy as np
from numpy.typing import NDArray

import llmopt
from llmopt.adapters.optuna import LLMSampler
from llmopt.benchmarks.run import RunConfig
from llmopt.policies import PolicySearch

optimizer = llmopt.LLMOptimizer({"x": llmopt.Float(0, 1)}, warmup=2)
assert_type(optimizer.ask(), dict[str, Any])
assert_type(optimizer.ask(2), list[dict[str, Any]])
best = optimizer.best
assert_type(best.params, dict[str, Any])
assert_type(best.reward, float | tuple[float, ...] | None)
assert_type(LLMSampler(model="smollm2"), LLMSampler)
assert_type(RunConfig("mountaincar").task, str)
assert_type(PolicySearch("Swimmer-v5", "openai:x").best, llmopt.Trial[dict[str, Any]])


def score(params: dict[str, Any]) -> tuple[float, str]:
    return params["x"], "as seen"


found = llmopt.minimize(score, {"x": llmopt.Float(0, 1)}, 20, model="smollm2", max_cost=1.0)
assert_type(found.best.params, dict[str, Any])
assert_type(found.trials, list[llmopt.Trial[dict[str, Any]]])
llmopt.LLMOptimizer({"x": llmopt.Float(0, 1)}, model="smollm2", noisy=True, may_stop=True)
box = gymnasium.spaces.Box(-1.0, 1.0, (2,))
assert_type(llmopt.maximize(lambda x: float(x[0]), box, 20).best.params, NDArray[np.float32])
