"""Systems of this project: one written for it, and a known one that was changed.

`TwoZones` exists nowhere else. The physics and the wiring of `HeavyMountainCar` differ from those
of the known task of a similar name.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Plant(gym.Env[np.ndarray, np.ndarray]):
    """What the systems have in common: named observations, actions between 0 and 1."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, low: Sequence[float], high: Sequence[float], actions: int) -> None:
        bounds = (np.array(low, np.float32), np.array(high, np.float32))
        self.observation_space = spaces.Box(*bounds)
        self.action_space = spaces.Box(0.0, 1.0, (actions,), np.float32)
        self.t = 0


class TwoZones(Plant):
    """Heating of two zones of a building over one day, 96 steps of a quarter of an hour.

    Zone A is heated at once, zone B with a delay of three steps (45 minutes). The zones lose
    heat to the outside, B faster than A, and exchange heat with each other. The outside
    temperature swings by 4 degrees over the day around a mean that differs from day to day;
    electricity costs more from 7 to 10 and from 17 to 20 o'clock.

    ## Observation Space

    | Num | Observation                                                    | Min | Max |
    | --- | -------------------------------------------------------------- | --- | --- |
    | 0   | error of zone A: 21 degrees minus its temperature              | -30 | 30  |
    | 1   | error of zone B: 21 degrees minus its temperature              | -30 | 30  |
    | 2   | outside temperature minus 21 degrees                           | -30 | 30  |
    | 3   | electricity price, 0.2 or 0.9                                  | 0   | 1   |

    ## Action Space

    | Num | Action                        | Min | Max |
    | --- | ----------------------------- | --- | --- |
    | 0   | heater of zone A, share of full power | 0 | 1 |
    | 1   | heater of zone B, share of full power | 0 | 1 |

    Actions are clipped to their bounds, before they are charged, too.

    ## Rewards

    Each step costs 0.05 times the squared error of each zone, and 0.6 times the price times the
    sum of both heaters.

    ## Episode Truncation

    The day ends after 96 steps.
    """

    def __init__(self) -> None:
        super().__init__([-30, -30, -30, 0], [30, 30, 30, 1], 2)

    def _weather(self) -> None:
        hour = self.t / 4
        self.out = self.mean + 4 * math.sin(2 * math.pi * (hour - 9) / 24)
        dear = 7 <= hour % 24 < 10 or 17 <= hour % 24 < 20
        self.price = 0.9 if dear else 0.2

    def _seen(self) -> np.ndarray:
        return np.array([21 - self.a, 21 - self.b, self.out - 21, self.price], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        draw = self.np_random.uniform
        self.mean, self.a, self.b = draw(-12, 12), draw(12, 24), draw(12, 24)
        self.queue, self.t = deque([0.0] * 3), 0
        self._weather()
        return self._seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        first, second = np.clip(np.asarray(action, float), 0, 1)
        self.queue.append(float(second))
        late = self.queue.popleft()
        da = 0.020 * (self.out - self.a) + 0.03 * (self.b - self.a) + 1.3 * first
        db = 0.035 * (self.out - self.b) + 0.03 * (self.a - self.b) + 1.6 * late
        self.a, self.b, self.t = self.a + da, self.b + db, self.t + 1
        comfort = -0.05 * (21 - self.a) ** 2 - 0.05 * (21 - self.b) ** 2
        energy = -0.6 * self.price * (first + second)
        self._weather()
        info = {"reward_comfort": float(comfort), "reward_energy": float(energy)}
        return self._seen(), float(comfort + energy), False, self.t >= 96, info


class HeavyMountainCar(Plant):
    """A heavy car in a valley with two hills, drag in the air, and an engine that lags.

    The car is too heavy to climb the right hill from rest. The engine follows its setting with
    a lag: it closes a fifth of the gap in each step. The car's motor is mounted backwards, so a
    positive setting pushes to the left.

    ## Observation Space

    | Num | Observation                                             | Min   | Max  |
    | --- | ------------------------------------------------------- | ----- | ---- |
    | 0   | force of the engine on the car, positive to the right   | -1    | 1    |
    | 1   | speed of the car, positive to the left                  | -0.08 | 0.08 |
    | 2   | distance to the flag; the valley is at 1.0              | -0.1  | 1.8  |

    ## Action Space

    | Num | Action                                            | Min | Max |
    | --- | ------------------------------------------------- | --- | --- |
    | 0   | setting of the engine, positive pushes to the left | -1 | 1 |

    Actions are clipped to their bounds, before they are charged, too.

    ## Rewards

    Reaching the flag gives 100. Each step costs 0.1 times the squared setting, and 0.05.

    ## Episode End

    The episode ends at the flag, and is cut after 600 steps.
    """

    def __init__(self) -> None:
        super().__init__([-1, -0.08, -0.1], [1, 0.08, 1.8], 1)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def _seen(self) -> np.ndarray:
        return np.array([self.force, -self.speed, 0.5 - self.place], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.speed = float(self.np_random.uniform(-0.65, -0.35)), 0.0
        self.force, self.t = 0.0, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        setting = float(np.clip(np.ravel(action)[0], -1, 1))
        self.force += 0.2 * (-setting - self.force)
        pull = -0.0029 * math.cos(3 * self.place)
        self.speed += 0.0014 * self.force + pull - 0.4 * self.speed * abs(self.speed)
        self.place += self.speed
        if self.place < -1.3:
            self.place, self.speed = -1.3, 0.0
        self.t += 1
        there = self.place >= 0.5
        reward = (100.0 if there else 0.0) - 0.1 * setting**2 - 0.05
        return self._seen(), reward, there, self.t >= 600, {}


gym.register("TwoZones-v0", f"{__name__}:TwoZones", max_episode_steps=96)
gym.register("HeavyMountainCar-v0", f"{__name__}:HeavyMountainCar", max_episode_steps=600)
