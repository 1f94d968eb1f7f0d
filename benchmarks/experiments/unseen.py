"""Four systems that exist nowhere else, written by people who did not work on the prompt.

`Ferry` is pulled along a cable across a river whose current changes, `Dryer` moves grain through a
dryer with a delay, `ZoneGrower` grows a crystal from a molten zone, `Trawler` tows a net over a
hilly sea floor. The descriptions are true; what they leave out has to be read from the steps.
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


class ZoneGrower(gym.Env[np.ndarray, np.ndarray]):
    """A coil keeps a short zone molten between a rod above it and the crystal growing below it.

    The rod is fed down into the zone and melts there; the crystal is pulled down out of it and
    freezes at its upper end. Surface tension alone holds the melt. Where it bulges the crystal
    grows wider, where it is drawn in the crystal grows thinner. More heat moves both fronts away
    from the coil, so the zone gets taller. The rod is not equally thick everywhere. A camera
    watches the zone, and its pictures take a while to be worked out. A good crystal shows ridges on
    its side; they are what is left of its facets.

    ## Observation Space

    | Num | Observation                                                        | Min | Max |
    | --- | ------------------------------------------------------------------ | --- | --- |
    | 0   | diameter of the growing end minus 20 mm, in units of 5 mm, camera  | -4  | 4   |
    | 1   | height of the zone minus 18 mm, in units of 5 mm, camera           | -4  | 4   |
    | 2   | width of the ridges, share of their usual width, camera            | 0   | 1.5 |
    | 3   | brightness of the melt, 0 at its usual heat                        | -3  | 3   |
    | 4   | speed of the pull, share of its maximum of 8 mm/min                | 0   | 1   |
    | 5   | speed of the feed, share of its maximum of 8 mm/min                | 0   | 1   |

    ## Action Space

    | Num | Action                                          | Min | Max |
    | --- | ----------------------------------------------- | --- | --- |
    | 0   | power of the coil, share of its maximum         | 0   | 1   |
    | 1   | wanted speed of the pull, share of its maximum  | 0   | 1   |
    | 2   | wanted speed of the feed, share of its maximum  | 0   | 1   |

    ## Rewards

    Each step of 12 s earns 1.5 for every mm of crystal that freezes, times the quality of its
    structure between 0 and 1. It costs the square of the diameter's distance from 20 mm, in units
    of 4 mm, at most 1, times 0.4. If the zone spills or freezes through: minus 30.

    ## Episode End

    The episode ends when the melt spills, because the zone is too tall for its thinnest width or
    bulges too far, or when the zone freezes through. It is truncated after 300 steps.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    observation_space: spaces.Box

    def __init__(self) -> None:
        low, high = [-4, -4, 0, -3, 0, 0], [4, 4, 1.5, 3, 1, 1]
        self.observation_space = spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
        self.action_space = spaces.Box(0.0, 1.0, (3,), np.float32)

    def _seen(self) -> np.ndarray:
        noise = self.np_random.normal(size=3) * [0.15, 0.2, 0.03]
        self.pictures.append(np.array([self.wide, self.tall, self.quality]) + noise)
        wide, tall, ridges = self.pictures.pop(0)
        seen = [(wide - 20) / 5, (tall - 18) / 5, ridges, self.heat, self.pull / 8, self.feed / 8]
        box = self.observation_space
        return np.array(seen, np.float32).clip(box.low, box.high)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        draw = self.np_random.uniform
        self.wide, self.above, self.below = draw(14, 21), draw(7, 9), draw(7, 9)
        self.tall, self.heat, self.quality = self.above + self.below, draw(-0.2, 0.2), 1.0
        self.melt = self.wide**2 * self.tall * draw(0.97, 1.05)  # volume over pi / 4
        self.pull, self.feed, self.t = draw(1, 2), draw(1, 2), 0
        self.rod, self.limit = draw(18, 21), draw(2.9, 3.5)
        first = np.array([self.wide, self.tall, self.quality])
        self.pictures = [first.copy() for _ in range(4)]
        return self._seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        power, pull, feed = np.asarray(action, float).clip(0, 1).tolist()
        self.rod += 0.04 * (19.5 - self.rod) + 0.15 * float(self.np_random.normal())
        self.pull += 0.3 * (8 * pull - self.pull)
        self.feed += 0.3 * (8 * feed - self.feed)
        cold = (
            0.05 * (self.feed - 2) + 0.02 * (self.wide - 20) + 0.02 * float(self.np_random.normal())
        )
        self.heat += 0.12 * (4 * (power - 0.5) - self.heat) - 0.4 * cold
        above = 9 + 3 * self.heat - 0.7 * (self.feed - 2)  # where the fronts would come to rest
        below = 9 + 2.5 * self.heat + 0.5 * (self.pull - 2)
        up, down = 0.15 * (above - self.above), 0.15 * (below - self.below)
        self.above, self.below = self.above + up, self.below + down
        self.tall = max(1.0, self.above + self.below)
        grown = max(0.0, 0.2 * self.pull - down)  # mm in this step
        melted = max(0.0, 0.2 * self.feed + up)
        self.melt += self.rod**2 * melted - self.wide**2 * grown
        bulge = self.melt / (self.wide**2 * self.tall) - 1
        self.wide = min(40.0, max(4.0, self.wide + 2.5 * grown * math.tanh(2 * bulge)))
        over = 5 * grown - self.limit - 0.4 * self.heat  # mm/min beyond what the structure bears
        self.quality *= math.exp(-0.03 * max(0.0, over))
        self.quality += 0.02 * (1 - self.quality) * (over < -0.8)
        spilt = self.tall > 1.5 * self.wide * (1 + min(0.0, bulge)) or bulge > 0.6
        frozen, self.t = self.tall < 8 or self.melt < 500, self.t + 1
        off = min(1.0, ((self.wide - 20) / 4) ** 2)
        parts = {"reward_crystal": 1.5 * grown * self.quality, "reward_diameter": -0.4 * off}
        parts["reward_end"] = -30.0 if spilt or frozen else 0.0
        return self._seen(), float(sum(parts.values())), spilt or frozen, self.t >= 300, parts


class Trawler(gym.Env[np.ndarray, np.ndarray]):
    """A ship tows a net over a hilly sea floor, on a long warp that a winch hauls in and pays out.

    The net hangs far behind the ship: the longer the warp and the slower the tow, the deeper it
    sinks. It follows the ship's speed and the length of the warp with a lag. The fish stand close
    to the floor and come in schools; a slow net they outswim. The net may touch the floor, and
    slides over it. Some of the ground is sand and some is rock. Rock tears the meshes, and fish
    slip out through the tears. The fuller the net, the harder it pulls.

    ## Observation Space

    | Num | Observation                                                       | Min | Max |
    | --- | ----------------------------------------------------------------- | --- | --- |
    | 0   | height of the net above the floor, in units of 10 m               | 0   | 10  |
    | 1   | vertical velocity of the net, upwards, in m/s                     | -3  | 3   |
    | 2   | depth of the sea at the ship minus depth of the net, in tens of m | -10 | 10  |
    | 3   | length of the warp minus 300 m, in units of 100 m                 | -2  | 3   |
    | 4   | speed of the ship minus 1.5 m/s, in m/s                           | -2  | 2   |
    | 5   | pull on the warp, share of what it bears                          | 0   | 1.5 |
    | 6   | fish passing the mouth of the net, share of a dense school        | 0   | 2   |

    ## Action Space

    | Num | Action                                                    | Min | Max |
    | --- | --------------------------------------------------------- | --- | --- |
    | 0   | throttle, share of the engine's power                     | 0   | 1   |
    | 1   | speed of the winch, positive pays out, share of 1.5 m/s   | -1  | 1   |

    ## Rewards

    Each step of 4 s earns 2 for every unit of fish that stays in the net, and costs 0.15 times the
    throttle and 0.05 times the square of the winch's speed. A parted warp costs 40.

    ## Episode End

    The episode ends when the warp parts under a pull above what it bears. It is truncated after
    350 steps.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    observation_space: spaces.Box

    def __init__(self) -> None:
        low, high = [0, -3, -10, -2, -2, 0, 0], [10, 3, 10, 3, 2, 1.5, 2]
        self.observation_space = spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
        self.action_space = spaces.Box(np.array([0, -1], np.float32), np.array([1, 1], np.float32))

    def _floor(self, x: float) -> tuple[float, float]:
        """Depth of the sea at x, and how much the floor rises there per metre."""
        depth, rise = self.deep, 0.0
        for size, wave, phase in self.hills:
            depth += size * math.sin(wave * x + phase)
            rise -= size * wave * math.cos(wave * x + phase)
        return depth, rise

    def _seen(self) -> np.ndarray:
        high = self._floor(self.x - self.behind)[0] - self.net
        ahead = self._floor(self.x)[0] - self.net
        seen = [high / 10, self.sink, ahead / 10, (self.warp - 300) / 100, self.v - 1.5]
        box = self.observation_space
        return np.array([*seen, self.load, self.fish], np.float32).clip(box.low, box.high)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        draw = self.np_random.uniform
        self.deep, self.rocky = draw(105, 135), draw(0, 6.28)
        waves = [draw(0.0025, 0.004), draw(0.006, 0.009), draw(0.012, 0.018)]
        sizes = [draw(8, 14), draw(3, 7), draw(1, 2)]
        self.hills = [(s, w, draw(0, 6.28)) for s, w in zip(sizes, waves, strict=True)]
        self.x, self.v, self.warp, self.sink = 0.0, draw(1, 1.6), draw(180, 260), 0.0
        self.net, self.load, self.fish, self.school = draw(60, 80), 0.3, 0.0, draw(0.3, 0.8)
        self.behind = math.sqrt(self.warp**2 - self.net**2)
        self.tear, self.full, self.t = 0.0, 0.0, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        throttle, winch = np.asarray(action, float).clip([0, -1], 1).tolist()
        self.school += 0.05 * (0.5 - self.school) + 0.08 * float(self.np_random.normal())
        self.school = min(1.0, max(0.1, self.school))
        swell, before, touch = 0.06 * float(self.np_random.normal()), self.net, 0.0
        for _ in range(4):  # steps of 1 s
            self.warp = min(600.0, max(120.0, self.warp + 1.5 * winch))
            flow = max(0.0, self.v - 0.8 * winch * (120 < self.warp < 600))  # at the net
            rest = self.warp / math.sqrt(1 + (1.0 * flow**2) ** 2)  # depth at which it would hang
            self.net += 0.05 * (min(rest, 0.9 * self.warp) - self.net) + swell
            self.net = min(max(5.0, self.net), 0.98 * self.warp)
            self.behind = math.sqrt(self.warp**2 - self.net**2)
            depth, rise = self._floor(self.x - self.behind)
            press, rock = max(0.0, self.net - depth), 0.0
            if press > 0:
                self.net = depth
                patch = math.sin(0.011 * (self.x - self.behind) + self.rocky)
                rock = max(0.0, patch) + 4 * max(0.0, rise)
                touch += 0.25 * (0.3 + press) * flow * rock
            self.load = 0.14 * flow**2 * (1 - 0.5 * self.tear) + 0.04 * self.full
            self.load += 0.12 * press * (0.3 + rock)
            push = 0.9 * throttle - 0.05 * self.v**2 - 0.9 * self.load
            self.v = max(0.0, self.v + 0.12 * push)
            self.x += self.v
        self.sink = (before - self.net) / 4
        self.tear = 1 - (1 - self.tear) * math.exp(-0.08 * touch)
        high = max(0.0, self._floor(self.x - self.behind)[0] - self.net)
        self.fish = self.school * math.exp(-high / 5) * max(0.0, flow - 0.6)
        kept = self.fish * (1 - self.tear) ** 1.5
        self.full, parted, self.t = self.full + 0.02 * kept, self.load > 1, self.t + 1
        parts = {"reward_fish": 2 * kept, "reward_engine": -0.15 * throttle}
        parts |= {"reward_winch": -0.05 * winch**2, "reward_warp": -40.0 if parted else 0.0}
        return self._seen(), float(sum(parts.values())), parted, self.t >= 350, parts


gym.register("Ferry-v0", f"{__name__}:Ferry", max_episode_steps=240)
gym.register("Dryer-v0", f"{__name__}:Dryer", max_episode_steps=300)
gym.register("ZoneGrower-v0", f"{__name__}:ZoneGrower", max_episode_steps=300)
gym.register("Trawler-v0", f"{__name__}:Trawler", max_episode_steps=350)
