"""A Gymnasium environment of your own, described in words.

A pump keeps the level of a leaking tank. The docstring names the observations and the action:
`PolicySearch` hands these words to the model, and after each policy a report of its episodes.
Here a written client answers in place of a model, so that the example needs no key. It answers as
a model may: the first line holds the values, then follows a reason.

    python own_environment.py                 # the written answers
    python own_environment.py openai:NAME     # a model; its key is in the environment
"""

import sys
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import llmopt
from llmopt.policies import PolicySearch


class LeakingTank(gym.Env[np.ndarray, np.ndarray]):
    """A tank with a leak, filled by a pump. The level is to stay at 1 metre.

    ## Observation Space

    | Num | Observation                       | Min | Max |
    | --- | --------------------------------- | --- | --- |
    | 0   | error: 1 metre minus the level    | -1  | 1   |
    | 1   | leak: flow out, metres a step     | 0   | 0.2 |

    ## Action Space

    | Num | Action                         | Min | Max |
    | --- | ------------------------------ | --- | --- |
    | 0   | pump: flow in, metres a step   | 0   | 0.3 |

    ## Rewards

    Each step costs the squared error.

    ## Episode End

    An episode ends after 60 steps.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        self.observation_space = spaces.Box(
            np.array([-1, 0], np.float32), np.array([1, 0.2], np.float32)
        )
        self.action_space = spaces.Box(0.0, 0.3, (1,), np.float32)

    def _seen(self) -> np.ndarray:
        return np.array([1 - self.level, self.leak], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.level, self.leak = self.np_random.uniform(0.2, 1.8), self.np_random.uniform(0, 0.2)
        self.steps = 0
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        pump = float(np.clip(np.asarray(action).ravel()[0], 0, 0.3))
        self.level = float(np.clip(self.level + pump - self.leak, 0, 2))
        self.leak = float(np.clip(self.leak + self.np_random.normal(0, 0.01), 0, 0.2))
        self.steps += 1
        return self._seen(), -((1 - self.level) ** 2), False, self.steps >= 60, {}


WRITTEN = [
    "pump<-error: 0.3, pump<-leak: 0, pump<-bias: 0.1\nMore flow when the level is low.",
    "pump<-error: 0.3, pump<-leak: 1, pump<-bias: 0\nThe leak is observed: the pump replaces it.",
    "pump<-error: 1, pump<-leak: 1, pump<-bias: 0\nThe error should vanish faster.",
]


if __name__ == "__main__":
    names = [word for word in sys.argv[1:] if not word.startswith("--")]
    client = names[0] if names else llmopt.ScriptedClient(WRITTEN)
    evaluations = 20 if names else 3 + len(WRITTEN)
    with PolicySearch(LeakingTank, client, "words", warmup=3, seed=0) as search:
        print(search.words.text)
        search.run(evaluations, progress=True)
        print(f"best parameters: {search.best.params}")
        print(f"return on 100 fresh starts: {search.evaluate().mean:.3f}")
