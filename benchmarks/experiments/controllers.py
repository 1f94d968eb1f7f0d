"""Controllers tuned by hand, for the systems that have one.

Each was built from the task's published description, and its few gains were chosen from a small
grid by the mean return of 20 episodes with the seeds `TUNING`, which no search and no judgement
uses. Poles are balanced by an LQR of the linearized model. Most controllers are not linear
policies: they saturate, switch, divide by a flow. They say what an engineer would set beside
the search, not what the searched class of policies can reach.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.benchmarks.experiments import words
from llmopt.policies import EnvMaker

Controller = Callable[[np.ndarray], Any]
TUNING = tuple(range(2_000_000_000, 2_000_000_020))


def _zones(gain: float, cooler: float) -> Controller:
    """Proportional control of each zone, with the heat that it loses fed forward."""

    def act(o: np.ndarray) -> Any:
        outside, shift = o[2], cooler * o[3]
        first = gain * (o[0] - shift) - 0.020 * outside / 1.3
        second = gain * (o[1] - shift) - 0.035 * outside / 1.6
        return np.array([first, second])

    return act


def _cascade(near: float, far: float) -> Controller:
    """Flows that meet the demand and correct the next level, turned into valve openings."""

    def act(o: np.ndarray) -> Any:
        demand = o[3] + 0.05
        second = max(demand - far * o[2], 0.0)
        first = max(second - near * o[1], 0.0)
        pump = max(first - near * o[0], 0.0)
        one, two = (0.12 * math.sqrt(max(level + 1, 0.01)) for level in o[:2])
        return np.array([pump / 0.13, first / one, second / two])

    return act


def _along(gain: float, place: int) -> Controller:
    """Push in the direction of motion."""
    return lambda o: np.array([gain * o[place]])


def _push(scale: float) -> Controller:
    """Push a car with three settings in the direction of motion."""
    return lambda o: 2 if scale * o[1] >= 0 else 0


def _pole(position: float, speed: float) -> Controller:
    """Balance a pole by switching: PD control of the angle, with a little of the cart's."""
    return lambda o: int(o[2] + 0.3 * o[3] + position * o[0] + speed * o[1] > 0)


def _swing_up(pump: float, near: float) -> Controller:
    """Pump energy while far from upright, then balance with PD control."""

    def act(o: np.ndarray) -> Any:
        angle, speed = math.atan2(o[1], o[0]), o[2]
        if o[0] > near:
            return np.array([-12 * angle - 3 * speed])
        missing = 15 * (1 - o[0]) - speed**2 / 2  # m = l = 1, g = 10: energy by the inertia
        return np.array([pump * missing * np.sign(speed or 1.0)])

    return act


def _acrobot(elbow: float, shoulder: float) -> Controller:
    """Pump energy: the torque follows the joints' velocities."""
    return lambda o: 2 if elbow * o[5] + shoulder * o[4] > 0 else 0


def _reacher(gain: float, damping: float) -> Controller:
    """PD control of the fingertip through the transposed Jacobian of the two links."""

    def act(o: np.ndarray) -> Any:
        (c1, c2), (s1, s2) = o[:2], o[2:4]
        c12, s12 = c1 * c2 - s1 * s2, s1 * c2 + c1 * s2
        jacobian = np.array(
            [[-0.1 * s1 - 0.11 * s12, -0.11 * s12], [0.1 * c1 + 0.11 * c12, 0.11 * c12]]
        )
        return -gain * jacobian.T @ o[8:10] - damping * o[6:8]

    return act


def _balance(env_id: str, effort: float, still: float) -> Controller:
    """Balance poles on a cart with an LQR of the model, linearized where they stand."""
    gains = _lqr(env_id, effort, still)
    joints = 2 if env_id == "InvertedPendulum-v5" else 3

    def act(o: np.ndarray) -> Any:
        if joints == 2:
            return -gains @ o
        state = [o[0], math.atan2(o[1], o[3]), math.atan2(o[2], o[4]), *o[5:8]]
        return -gains @ np.array(state)

    return act


@functools.cache
def _lqr(env_id: str, effort: float, still: float) -> np.ndarray:
    from scipy.linalg import solve_discrete_are

    env: Any = gym.make(env_id).unwrapped
    n = env.model.nv
    env.reset(seed=0)

    def after(state: np.ndarray, force: float) -> np.ndarray:
        env.set_state(state[:n].copy(), state[n:].copy())
        env.do_simulation(np.array([force]), env.frame_skip)
        return np.concatenate([env.data.qpos, env.data.qvel])

    rest, small = np.zeros(2 * n), 1e-4
    sides = [(rest + small * row, 0.0) for row in np.eye(2 * n)] + [(rest, small)]
    columns = [(after(x, u) - after(2 * rest - x, -u)) / (2 * small) for x, u in sides]
    whole, pushed = np.array(columns[:-1]).T, np.array(columns[-1:]).T
    env.close()
    weights = np.diag([1.0] * n + [still] * n)
    cost = effort * np.eye(1)
    p = solve_discrete_are(whole, pushed, weights, cost)
    gains: np.ndarray = np.linalg.solve(cost + pushed.T @ p @ pushed, pushed.T @ p @ whole)
    return gains


_POLES = {
    "pendulum-inverted": "InvertedPendulum-v5",
    "pendulum-double": "InvertedDoublePendulum-v5",
}
_FAMILIES: dict[str, tuple[Callable[..., Controller], Sequence[Sequence[float]]]] = {
    "zones": (_zones, ((0.1, 0.2, 0.4), (0.0, 0.5, 1.0))),
    "cascade": (_cascade, ((0.2, 0.4, 0.8), (0.2, 0.4, 0.8))),
    "heavy-car": (_along, ((25.0, 50.0, 100.0, 200.0), (1,))),
    "mountaincar": (_along, ((0.3, 0.5, 0.7, 0.9, 1.2), (1,))),
    "mountaincar-discrete": (_push, ((1.0,),)),
    "cartpole": (_pole, ((0.0, 0.05, 0.1), (0.0, 0.1, 0.2))),
    "pendulum": (_swing_up, ((0.2, 0.5, 2.0), (0.8, 0.9, 0.95))),
    "acrobot": (_acrobot, ((-1.0, 0.0, 1.0), (-1.0, 1.0))),
    "reacher": (_reacher, ((10.0, 20.0, 40.0), (0.05, 0.1, 0.2))),
    **{
        task: (functools.partial(_balance, env), ((0.1, 1.0, 10.0), (0.1, 1.0)))
        for task, env in _POLES.items()
    },
}
SYSTEMS = tuple(_FAMILIES)
"""Tasks of `words` that have a controller."""


@functools.cache
def tuned(task: str) -> tuple[tuple[float, ...], Controller]:
    """Return the gains of a task's controller, and the controller."""
    family, grid = _FAMILIES[task]
    make = EnvMaker(words.TASKS[task].env)
    choices = list(itertools.product(*grid))
    means = [np.mean(returns(make, family(*gains), TUNING)) for gains in choices]
    best = choices[int(np.argmax(means))]
    return best, family(*best)


def returns(make: EnvMaker, controller: Controller, seeds: Sequence[int]) -> list[float]:
    """Return a controller's return in an episode from each seed."""
    env, found = make(), []
    space = env.action_space
    for seed in seeds:
        (seen, _), total, over = env.reset(seed=int(seed)), 0.0, False
        while not over:
            action = controller(np.asarray(seen, dtype=float))
            if isinstance(space, gym.spaces.Box):
                action = np.clip(action, space.low, space.high).astype(space.dtype)
            seen, reward, ended, cut, _ = env.step(action)
            total, over = total + float(reward), ended or cut
        found.append(total)
    env.close()
    return found
