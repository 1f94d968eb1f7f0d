"""Two systems that exist nowhere else, written by somebody who did not work on the prompt.

`Ferry` is pulled along a cable across a river whose current changes, `Dryer` moves grain through a
dryer with a delay. The descriptions are true; what they leave out has to be read from the steps.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Ferry(gym.Env[np.ndarray, np.ndarray]):
    """A ferry hangs on a pulley that runs along a cable across a river, and sails by its rudder.

    The current flows at right angles to the cable. Turned against it, the hull is pushed sideways
    along the cable, like a kite. The crossing is 80 metres wide, from the middle of the river -40
    to 40 metres; the current is fastest in the middle and at both banks a quarter of that. A winch
    turns the hull; near the far bank it should arrive slowly. Gusts push the ferry along the cable.

    ## Observation Space

    | Num | Observation                                                    | Min | Max |
    | --- | -------------------------------------------------------------- | --- | --- |
    | 0   | distance left to the far berth, in units of 80 metres          | -1  | 2   |
    | 1   | velocity towards the far berth, in units of 2 m/s              | -4  | 4   |
    | 2   | angle of the hull to the current, rad                          | -1.2 | 1.2 |
    | 3   | turn rate of the hull, rad/s                                   | -2  | 2   |
    | 4   | speed of the current at the ferry, in units of 2 m/s           | 0   | 2   |

    ## Action Space

    | Num | Action                                          | Min | Max |
    | --- | ----------------------------------------------- | --- | --- |
    | 0   | torque of the winch, share of its maximum       | -1  | 1   |
    | 1   | brake of the pulley, share of its maximum       | 0   | 1   |

    ## Rewards

    Each step of half a second costs 0.02, plus 0.01 times the square of the torque. Touching the
    far berth ends the episode: 20, less 8 times the square of the velocity in m/s beyond 0.3 m/s.
    Drifting 8 metres behind the start costs 10 and ends the episode.

    ## Episode Truncation

    After 240 steps.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        low, high = [-1, -4, -1.2, -2, 0], [2, 4, 1.2, 2, 2]
        self.observation_space = spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
        self.action_space = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 1], np.float32))

    def _current(self) -> float:
        return self.fastest * (0.25 + 0.75 * max(0.0, 1 - (self.x / 40) ** 2))

    def _seen(self) -> np.ndarray:
        seen = [(40 - self.x) / 80, self.v / 2, self.angle, self.rate, self._current() / 2]
        return np.array(seen, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        draw = self.np_random.uniform
        self.fastest, self.x, self.v = draw(1.2, 2.6), -40 + draw(0, 4), 0.0
        self.angle, self.rate, self.gust, self.t = draw(-0.3, 0.3), 0.0, 0.0, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        torque, brake = np.clip(np.asarray(action, float), [-1, 0], [1, 1])
        self.gust = 0.9 * self.gust + 0.02 * float(self.np_random.normal())
        for _ in range(5):  # steps of 0.1 s
            flow = self._current()
            lift = 0.06 * flow**2 * math.sin(2 * self.angle)
            drag = 0.05 * self.v * abs(self.v) + (0.02 + 0.25 * brake) * self.v
            self.v += 0.1 * (lift + self.gust - drag)
            turn = 0.5 * torque - 0.12 * flow**2 * math.sin(self.angle) - 0.9 * self.rate
            self.rate += 0.1 * turn
            self.angle = float(np.clip(self.angle + 0.1 * self.rate, -1.2, 1.2))
            self.x += 0.1 * self.v
        self.t += 1
        reward, landed, lost = -0.02 - 0.01 * torque**2, self.x >= 40, self.x < -48
        if landed:
            reward += 20 - 8 * max(0.0, self.v - 0.3) ** 2
        if lost:
            reward -= 10
        return self._seen(), float(reward), landed or lost, self.t >= 240, {}


class Dryer(gym.Env[np.ndarray, np.ndarray]):
    """A belt dryer: six zones of hot air dry wet grain, which should leave at 14 percent.

    The belt moves the grain from zone to zone. In each zone water leaves at a rate that grows with
    the temperature of the air and with the moisture above what the air allows. The burner heats the
    air with a lag. The moisture of the arriving grain drifts and sometimes jumps, as trucks change.

    ## Observation Space

    | Num | Observation                                               | Min | Max |
    | --- | --------------------------------------------------------- | --- | --- |
    | 0   | moisture of the arriving grain minus 22 percent, in tens  | -2  | 2   |
    | 1   | moisture in the third zone minus 18 percent, in tens      | -2  | 2   |
    | 2   | moisture of the leaving grain minus 14 percent, in tens   | -2  | 2   |
    | 3   | temperature of the air minus 80 degrees, in tens          | -7  | 7   |
    | 4   | speed of the belt, share of its maximum                   | 0   | 1   |

    ## Action Space

    | Num | Action                                    | Min | Max |
    | --- | ----------------------------------------- | --- | --- |
    | 0   | burner, share of its power                | 0   | 1   |
    | 1   | wanted speed of the belt, share of its maximum | 0 | 1 |

    ## Rewards

    For each step of a minute, with the belt's speed s: 1.0 s for the grain, minus 0.3 times the
    burner, minus s times 0.25 times the square of the leaving moisture's distance from 14 percent
    where it is wetter, and 0.06 times that square where it is drier. Above 120 degrees the grain
    is scorched: minus 2.

    ## Episode Truncation

    After 300 steps.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        low, high = [-2, -2, -2, -7, 0], [2, 2, 2, 7, 1]
        self.observation_space = spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
        self.action_space = spaces.Box(0.0, 1.0, (2,), np.float32)

    def _seen(self) -> np.ndarray:
        seen = [(self.arriving - 22) / 10, (self.zones[2] - 18) / 10, (self.zones[5] - 14) / 10]
        return np.array([*seen, (self.air - 80) / 10, self.speed], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        draw = self.np_random.uniform
        self.arriving, self.air, self.speed, self.t = draw(18, 26), draw(60, 90), 0.4, 0
        self.zones = np.linspace(self.arriving, 15, 6)
        return self._seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        burner, wanted = np.clip(np.asarray(action, float), 0, 1)
        if self.np_random.uniform() < 0.02:
            self.arriving = float(self.np_random.uniform(18, 26))
        self.arriving += 0.1 * float(self.np_random.normal())
        self.arriving = float(np.clip(self.arriving, 15, 30))
        self.speed += 0.3 * (wanted - self.speed)
        load = float(np.mean(self.zones)) - 8
        self.air += 6.0 * burner - 0.035 * (self.air - 20) - 0.02 * load
        floor = 10 - 0.04 * (self.air - 80)
        pace = 0.035 * math.exp(0.022 * (self.air - 80))
        self.zones = self.zones - pace * (self.zones - floor)
        before = np.concatenate([[self.arriving], self.zones[:-1]])
        self.zones = self.zones + 0.45 * self.speed * (before - self.zones)
        off = float(self.zones[5]) - 14
        cost = self.speed * (0.25 * max(off, 0) ** 2 + 0.06 * min(off, 0) ** 2)
        scorched = 2.0 if self.air > 120 else 0.0
        self.t += 1
        reward = 1.0 * self.speed - 0.3 * burner - cost - scorched
        info = {"reward_grain": self.speed, "cost_moisture": cost, "cost_scorched": scorched}
        return self._seen(), float(reward), False, self.t >= 300, info


gym.register("Ferry-v0", f"{__name__}:Ferry", max_episode_steps=240)
gym.register("Dryer-v0", f"{__name__}:Dryer", max_episode_steps=300)
