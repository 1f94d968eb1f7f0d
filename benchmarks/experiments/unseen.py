"""Two systems that were written after the prompt was fixed for the searches that they judge.

`Fermenter` and `BusLine` exist nowhere else. Nobody who worked on the prompt saw them before, and
nothing in them was changed after the first search. Their weights have no textbook answer.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from llmopt.benchmarks.experiments.systems import Plant


class Fermenter(Plant):
    """A fed-batch fermenter over 30 hours, 150 steps of 12 minutes.

    Yeast grows on sugar and oxygen and makes an enzyme, which is the product. Yeast that grows
    slowly makes more of the enzyme than yeast that grows fast, and it changes over within about
    two hours. Much sugar slows growth, and sugar that is taken up faster than 0.25 g per g of
    yeast and hour turns to acid, which slows growth and is eaten again only when sugar is scarce.
    The stirrer brings oxygen into the broth; the more yeast, the more oxygen it takes. Fed
    sugar solution fills the vessel; when the vessel is full, nothing more can be fed. The sugar
    is measured with a delay of two steps, and no sensor shows more than its largest value.
    Batches differ in what they start with, and the yeast is up to 15 percent faster or slower
    than usual.

    ## Observation Space

    | Num | Observation                                                    | Min | Max |
    | --- | -------------------------------------------------------------- | --- | --- |
    | 0   | yeast, in 10 g per litre                                       | 0   | 8   |
    | 1   | sugar two steps ago, in 10 g per litre                         | 0   | 8   |
    | 2   | dissolved oxygen, share of saturation                          | 0   | 1   |
    | 3   | acid, in 10 g per litre                                        | 0   | 4   |
    | 4   | filling of the vessel, share of its volume                     | 0   | 1   |
    | 5   | time, share of the 30 hours                                    | 0   | 1   |

    ## Action Space

    | Num | Action                                               | Min | Max |
    | --- | ---------------------------------------------------- | --- | --- |
    | 0   | feed pump, share of its largest flow (0.4 litres an hour) | 0 | 1 |
    | 1   | stirrer, share of its largest speed                  | 0   | 1   |

    Actions are clipped to their bounds, before they are charged, too.

    ## Rewards

    Each step earns 1 for each gram of enzyme made in it. It costs 0.15 times the cube of the
    stirrer's share, and 0.02 for each gram of sugar fed. At the end, each gram of sugar or acid
    left in the broth costs 0.05.

    ## Episode Truncation

    The batch ends after 150 steps.
    """

    HOURS, STEPS, VESSEL = 0.2, 150, 10.0

    def __init__(self) -> None:
        super().__init__([0, 0, 0, 0, 0, 0], [8, 8, 1, 4, 1, 1], 2)

    def _seen(self) -> np.ndarray:
        yeast, sugar, acid = (x / 10 for x in (self.yeast, self.late[0], self.acid))
        filled, time = self.litres / self.VESSEL, self.t / self.STEPS
        seen = np.array([yeast, sugar, self.oxygen, acid, filled, time], np.float32)
        return np.minimum(seen, self.observation_space.high)  # type: ignore[attr-defined]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        draw = self.np_random.uniform
        self.yeast, self.sugar, self.speed = draw(1, 4), draw(3, 18), draw(0.85, 1.15)
        self.acid, self.oxygen, self.litres = 0.0, 0.9, draw(4.5, 6.0)
        self.maker, self.t = 0.2, 0
        self.late = [self.sugar] * 3
        return self._seen(), {}

    def _advance(self, feed: float, stirrer: float, hours: float) -> float:
        """Let a short time pass and return the grams of enzyme that were made."""
        breathing = self.oxygen / (0.08 + self.oxygen)
        uptake = 0.9 * self.speed * self.sugar / (0.5 + self.sugar + self.sugar**2 / 40)
        burnt = min(uptake, 0.25 + 0.35 * breathing) * breathing
        spilled = max(uptake - max(burnt, 0.25), 0.0)
        eaten = 0.12 * self.acid / (1 + self.acid) * breathing * max(0.0, 1 - uptake / 0.3)
        growth = (0.5 * burnt + 0.35 * eaten) / (1 + (self.acid / 8) ** 2)
        self.maker += hours / 2 * (1 / (1 + (growth / 0.1) ** 2) - self.maker)
        made = 0.012 * self.maker * burnt / (0.05 + burnt) * self.yeast * self.litres * hours
        demand = 0.09 * (burnt + 1.5 * eaten) * self.yeast
        supply = 0.15 + 3.2 * stirrer**1.5
        steady = supply / (supply + demand / max(self.oxygen, 0.02) * 0.5)
        self.oxygen += (1 - math.exp(-40 * hours)) * (steady - self.oxygen)
        poured = min(0.4 * feed * hours, self.VESSEL - self.litres)
        share = self.litres / (self.litres + poured)
        kept = max(self.sugar - hours * uptake * self.yeast, 0.0)
        self.sugar = kept * share + 500 * (1 - share)
        self.acid = max(self.acid + hours * (0.5 * spilled - eaten) * self.yeast, 0.0) * share
        self.yeast = self.yeast * (1 + hours * (growth - 0.01)) * share
        self.litres += poured
        return float(made)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        feed, stirrer = (float(a) for a in np.clip(np.asarray(action, float), 0, 1))
        before, parts = self.litres, 12
        made = sum(self._advance(feed, stirrer, self.HOURS / parts) for _ in range(parts))
        self.late = [*self.late[1:], self.sugar]
        self.t += 1
        ended = self.t >= self.STEPS
        left = 0.05 * (self.sugar + self.acid) * self.litres if ended else 0.0
        rewards = {
            "reward_enzyme": made,
            "reward_stirrer": -0.15 * stirrer**3,
            "reward_sugar": -0.02 * 500 * (self.litres - before) - left,
        }
        return self._seen(), float(sum(rewards.values())), False, ended, rewards


class BusLine(Plant):
    """A ring line of a city bus with six buses and twelve stops, over three hours.

    The ring is 9 km long, and its stops lie 750 m apart. Passengers come to each stop at random,
    to some stops three times as often as to others, and most of them around the middle of the
    three hours. A bus stands at a stop for 10 seconds and 3 for each passenger who gets on, so a
    late bus meets more passengers and gets later, and the bus behind it catches up. A bus holds
    70 passengers. Each passenger rides for two to six stops. Traffic slows every bus at random.
    Buses may overtake. A step is the arrival of a bus at one of the four stops with a dispatcher
    (every third one), who tells this bus how long to wait there after boarding, and how fast to
    drive until the next dispatcher.

    ## Observation Space

    | Num | Observation                                                       | Min | Max |
    | --- | ----------------------------------------------------------------- | --- | --- |
    | 0   | gap to the bus ahead, in even gaps (1.5 km), minus 1              | -1  | 5   |
    | 1   | gap to the bus behind, in even gaps (1.5 km), minus 1             | -1  | 5   |
    | 2   | passengers on the bus, share of its places                        | 0   | 1   |
    | 3   | passengers who wait at this stop, divided by 20                   | 0   | 5   |
    | 4   | passengers who wait at the next stop, divided by 20               | 0   | 5   |

    ## Action Space

    | Num | Action                                                            | Min | Max |
    | --- | ----------------------------------------------------------------- | --- | --- |
    | 0   | how long the bus waits, share of 3 minutes                        | 0   | 1   |
    | 1   | how fast it drives, from 0 for 70 to 1 for 115 percent of usual   | 0   | 1   |

    Actions are clipped to their bounds, before they are charged, too.

    ## Rewards

    Since the last step, each minute of a passenger at a stop has cost 0.01, each minute of a
    passenger on a bus 0.005, and each minute of a bus 0.02 times the cube of its speed as a share
    of the usual one, while it drives.

    ## Episode Truncation

    An episode ends after three hours, or 500 steps.
    """

    STOPS, BUSES, BETWEEN, PLACES, TICK, HOURS = 12, 6, 750.0, 70, 5.0, 3.0

    def __init__(self) -> None:
        super().__init__([-1, -1, 0, 0, 0], [5, 5, 1, 5, 5], 2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        rng, ring = self.np_random, self.STOPS * self.BETWEEN
        self.rates = rng.permutation(np.repeat([0.4, 0.8, 1.2], 4)) / 60  # passengers a second
        self.waiting = np.zeros(self.STOPS, int)
        # Of each bus: metres driven in all, seconds that it stands still, speed, riders by stop.
        even = np.arange(self.BUSES) * ring / self.BUSES
        self.place = even + rng.uniform(0, 600, self.BUSES)
        self.still, self.speed = np.zeros(self.BUSES), np.ones(self.BUSES)
        self.riders = np.zeros((self.BUSES, self.STOPS), int)
        self.next_stop = np.ceil(self.place / self.BETWEEN).astype(int)
        self.traffic = np.ones(self.BUSES)
        self.clock, self.t, self.asked = 0.0, 0, [0]
        self.parts = np.zeros(3)
        self._drive()
        return self._seen(), {}

    def _seen(self) -> np.ndarray:
        bus, ring = self.asked[0], self.STOPS * self.BETWEEN
        others = np.delete(self.place, bus)
        even = ring / self.BUSES
        ahead = ((others - self.place[bus]) % ring).min() / even - 1
        behind = ((self.place[bus] - others) % ring).min() / even - 1
        here = (self.next_stop[bus] - 1) % self.STOPS
        queues = self.waiting[[here, (here + 1) % self.STOPS]] / 20
        aboard = self.riders[bus].sum() / self.PLACES
        seen = np.array([ahead, behind, aboard, *queues], np.float32)
        return np.minimum(seen, self.observation_space.high)  # type: ignore[attr-defined]

    def _arrive(self, bus: int) -> None:
        """Let passengers off and on, at the stop that a bus has come to."""
        stop = self.next_stop[bus] % self.STOPS
        self.riders[bus, stop] = 0
        boards = min(int(self.waiting[stop]), self.PLACES - int(self.riders[bus].sum()))
        self.waiting[stop] -= boards
        rides = self.np_random.integers(2, 7, boards)
        np.add.at(self.riders[bus], (stop + rides) % self.STOPS, 1)
        self.still[bus] = 10.0 + 3.0 * boards
        self.next_stop[bus] += 1
        if stop % 3 == 0:
            self.asked.append(bus)

    def _drive(self) -> None:
        """Let time pass until a bus comes to a dispatcher, or the three hours are over."""
        self.asked = self.asked[1:]
        while not self.asked and self.clock < self.HOURS * 3600:
            share = self.clock / (self.HOURS * 3600)
            self.waiting += self.np_random.poisson(
                self.rates * (0.5 + math.sin(math.pi * share)) * self.TICK
            )
            noise = 0.05 * self.np_random.normal(size=self.BUSES)
            self.traffic = np.clip(1 + 0.98 * (self.traffic - 1) + noise, 0.5, 1.1)
            driving = self.still <= 0
            self.still -= self.TICK
            self.place += driving * 8.0 * self.speed * self.traffic * self.TICK
            minutes = self.TICK / 60
            self.parts -= [
                0.01 * minutes * self.waiting.sum(),
                0.005 * minutes * self.riders.sum(),
                0.02 * minutes * (driving * self.speed**3).sum(),
            ]
            for bus in np.flatnonzero(self.place >= self.next_stop * self.BETWEEN):
                self.place[bus] = self.next_stop[bus] * self.BETWEEN
                self._arrive(int(bus))
            self.clock += self.TICK

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        wait, speed = (float(a) for a in np.clip(np.asarray(action, float), 0, 1))
        bus = self.asked[0]
        self.still[bus] += 180 * wait
        self.speed[bus] = 0.7 + 0.45 * speed
        self.parts[:] = 0.0
        self._drive()
        self.asked = self.asked or [bus]
        self.t += 1
        ended = self.clock >= self.HOURS * 3600 or self.t >= 500
        names = ("reward_stops", "reward_ride", "reward_driving")
        info = dict(zip(names, map(float, self.parts), strict=True))
        return self._seen(), float(self.parts.sum()), False, ended, info
