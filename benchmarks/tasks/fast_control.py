"""Gymnasium's classic control tasks as NumPy batches: every lane is one episode.

Each step function repeats Gymnasium's own arithmetic, its order and its precision included:
what is float32 there for one car is float32 here for all of them. Python numbers stay
Python numbers, which NumPy rounds to the precision of what they meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces, wrappers

from llmopt.policies.linear import LinearPolicy

State = tuple[np.ndarray, ...]
"""One ``(n_lanes,)`` array for each number of the state."""

Step = Callable[[State, np.ndarray], tuple[State, np.ndarray, np.ndarray]]
"""From states and actions to states, rewards and whether each episode ended."""


class Wrapped:
    """What an environment's wrappers make of a batch of observations, and of actions.

    Args:
        env: An environment for which `can_batch` holds.
    """

    def __init__(self, env: Any) -> None:
        layers = list(_layers(env))
        scaling = (wrappers.RescaleObservation, wrappers.NormalizeObservation)
        self._maps = [x.observation for x in layers if isinstance(x, scaling)]
        acting = (wrappers.RescaleAction, wrappers.ClipAction)
        self._acts = [x.action for x in layers[::-1] if isinstance(x, acting)]

    @staticmethod
    def can_batch(env: Any) -> bool:
        """Whether all wrappers do with each row of a batch what they do with a single one."""
        frozen = all(not getattr(x, "update_running_mean", False) for x in _layers(env))
        return frozen and all(type(x) in _ROW_BY_ROW for x in _layers(env))

    def observe(self, observed: np.ndarray) -> np.ndarray:
        """Return ``(n, n_inputs)`` observations as the policy sees them."""
        for each in self._maps:
            observed = each(observed)
        return observed

    def act(self, actions: np.ndarray) -> np.ndarray:
        """Return ``(n, n_outputs)`` actions as they act."""
        for each in self._acts:
            actions = each(actions)
        return actions


_ROW_BY_ROW = (
    wrappers.RescaleObservation, wrappers.NormalizeObservation, wrappers.RescaleAction,
    wrappers.ClipAction, wrappers.TimeLimit, wrappers.OrderEnforcing, wrappers.PassiveEnvChecker,
)  # fmt: skip


def _layers(env: Any) -> Iterator[Any]:
    """Yield the wrappers of an environment, the innermost first."""
    if isinstance(env, gym.Wrapper):
        yield from _layers(env.env)
        yield env


class ControlEngine:
    """Runs episodes of one classic control task, all at the same time.

    Args:
        env_id: A key of `CONTROL`.
        env: The environment, which is asked for the starts.
        policy: The policy.
        step_cap: Steps after which an episode ends.
    """

    def __init__(self, env_id: str, env: Any, policy: LinearPolicy, step_cap: int) -> None:
        self._step, self._observe = CONTROL[env_id]
        self._env = env
        self._policy = policy
        self._cap = step_cap
        self._starts: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._wrapped = Wrapped(env)

    def run(self, params: np.ndarray, seeds: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Run every policy from every start.

        Args:
            params: ``(n, n_parameters)`` array.
            seeds: Seeds of `k` starts.

        Returns:
            Returns and lengths, ``(n, k)`` each. A return that is not finite means that
            something went wrong in that episode.
        """
        n, k = len(params), len(seeds)
        starts = [self._start(seed) for seed in seeds]
        states = np.tile(np.array([s for s, _ in starts]).T, n)  # lanes: policy by policy
        observed = np.tile(np.array([o for _, o in starts]), (n, 1))
        weights, bias = self._policy.unpack(params)
        totals, lengths = np.zeros(n * k), np.full(n * k, self._cap)
        with np.errstate(all="ignore"):
            self._episodes(
                tuple(states), observed, weights.repeat(k, 0), bias.repeat(k, 0), totals, lengths
            )
        return totals.reshape(n, k), lengths.reshape(n, k)

    def _episodes(
        self,
        state: State,
        observed: np.ndarray,
        weights: np.ndarray,
        bias: np.ndarray,
        totals: np.ndarray,
        lengths: np.ndarray,
    ) -> None:
        lanes = np.arange(len(totals))
        sums = totals.copy()
        discrete = isinstance(self._policy.action_space, spaces.Discrete)
        for step in range(1, self._cap + 1):
            outputs = linear(observed, weights) + bias
            if discrete:
                actions = outputs.argmax(axis=1)
            else:
                actions = self._wrapped.act(outputs.astype(np.float32))[:, 0]
            state, rewards, ended = self._step(state, actions)
            sums += rewards
            if ended.any():
                over = lanes[ended]
                totals[over], lengths[over] = sums[ended], step
                going = ~ended
                lanes, sums = lanes[going], sums[going]
                weights, bias = weights[going], bias[going]
                state = tuple(s[going] for s in state)
                if not lanes.size:
                    return
            observed = self._wrapped.observe(self._observe(state))
        totals[lanes] = sums

    def _start(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        if seed not in self._starts:
            if len(self._starts) >= 4096:
                self._starts.clear()
            observation, _ = self._env.reset(seed=seed)
            self._starts[seed] = np.array(self._env.unwrapped.state), np.array(observation)
        return self._starts[seed]


def linear(observed: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return each lane's observation times its weights.

    One vector-matrix product for each lane, which BLAS rounds as it does for a single one.

    Args:
        observed: ``(n, n_inputs)`` array.
        weights: ``(n, n_inputs, n_outputs)`` array.
    """
    product: np.ndarray = (observed.astype(np.float64)[:, None] @ weights)[:, 0]
    return product


def _as_float32(state: State) -> np.ndarray:
    table = np.empty((len(state[0]), len(state)), dtype=np.float32)
    for i, column in enumerate(state):
        table[:, i] = column
    return table


def _between(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Clip as `np.clip` does, at a third of its cost for a small batch."""
    inside: np.ndarray = np.minimum(np.maximum(values, low), high)
    return inside


def _mountain_car_continuous(
    state: State, actions: np.ndarray
) -> tuple[State, np.ndarray, np.ndarray]:
    position, velocity = state
    real = velocity.dtype
    gravity = 0.0025 * np.cos((3 * position).astype(np.float64, copy=False))
    # Gymnasium's force is a float32 number inside the bounds and a Python number at them,
    # which makes the sum double.
    single = actions * np.float32(0.0015) - gravity.astype(np.float32)
    double = np.copysign(0.0015, actions, dtype=np.float64) - gravity
    push = np.where(
        np.abs(actions) > 1, double.astype(real, copy=False), single.astype(real, copy=False)
    )
    velocity = _between(velocity + push, -0.07, 0.07)
    position = _between(position + velocity, -1.2, 0.6)
    velocity[(position == real.type(-1.2)) & (velocity < 0)] = 0
    reached = (position >= real.type(0.45)) & (velocity >= 0)
    rewards = np.square(actions, dtype=np.float64) * -0.1
    if reached.any():
        rewards[reached] += 100.0
    if real == np.float64:
        # The first step is double, for Gymnasium's start is; from then on its state is float32.
        position, velocity = position.astype(np.float32), velocity.astype(np.float32)
    return (position, velocity), rewards, reached


def _mountain_car(state: State, actions: np.ndarray) -> tuple[State, np.ndarray, np.ndarray]:
    position, velocity = state
    velocity = velocity + ((actions - 1) * 0.001 + np.cos(3 * position) * -0.0025)
    velocity = _between(velocity, -0.07, 0.07)
    position = _between(position + velocity, -1.2, 0.6)
    velocity[(position == -1.2) & (velocity < 0)] = 0
    reached = (position >= 0.5) & (velocity >= 0)
    return (position, velocity), np.full(len(position), -1.0), reached


def _cart_pole(state: State, actions: np.ndarray) -> tuple[State, np.ndarray, np.ndarray]:
    x, x_dot, theta, theta_dot = state
    force = np.where(actions == 1, 10.0, -10.0)
    total_mass, pole_mass_length = 0.1 + 1.0, 0.1 * 0.5
    cosine, sine = np.cos(theta), np.sin(theta)
    temp = (force + pole_mass_length * np.square(theta_dot) * sine) / total_mass
    theta_acc = (9.8 * sine - cosine * temp) / (
        0.5 * (4.0 / 3.0 - 0.1 * np.square(cosine) / total_mass)
    )
    x_acc = temp - pole_mass_length * theta_acc * cosine / total_mass
    x = x + 0.02 * x_dot
    x_dot = x_dot + 0.02 * x_acc
    theta = theta + 0.02 * theta_dot
    theta_dot = theta_dot + 0.02 * theta_acc
    limit = 12 * 2 * math.pi / 360
    fell = (x < -2.4) | (x > 2.4) | (theta < -limit) | (theta > limit)
    return (x, x_dot, theta, theta_dot), np.ones(len(x)), fell


def _pendulum(state: State, actions: np.ndarray) -> tuple[State, np.ndarray, np.ndarray]:
    theta, speed = state
    torque = _between(actions, -2.0, 2.0)
    angle = ((theta + np.pi) % (2 * np.pi)) - np.pi
    # float_power rounds as the power of single numbers does; np.square does not always.
    costs = (
        np.float_power(angle, 2)
        + 0.1 * np.float_power(speed, 2)
        + np.float32(0.001) * np.float_power(torque, 2).astype(np.float32)
    )
    speed = speed + (3 * 10.0 / 2.0 * np.sin(theta) + np.float32(3.0) * torque) * 0.05
    speed = _between(speed, -8, 8)
    theta = theta + speed * 0.05
    return (theta, speed), -costs, np.zeros(len(theta), dtype=bool)


def _pendulum_observation(state: State) -> np.ndarray:
    theta, speed = state
    return _as_float32((np.cos(theta), np.sin(theta), speed))


def _acrobot(state: State, actions: np.ndarray) -> tuple[State, np.ndarray, np.ndarray]:
    torque = actions - 1.0
    start = np.array(state, dtype=np.float64)
    dt = 0.2
    k1 = _acrobot_slope(start, torque)
    k2 = _acrobot_slope(start + dt / 2.0 * k1, torque)
    k3 = _acrobot_slope(start + dt / 2.0 * k2, torque)
    k4 = _acrobot_slope(start + dt * k3, torque)
    after = start + dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
    for angle in after[:2]:
        while (above := angle > np.pi).any():
            angle[above] -= 2 * np.pi
        while (below := angle < -np.pi).any():
            angle[below] += 2 * np.pi
    after[2] = _between(after[2], -4 * np.pi, 4 * np.pi)
    after[3] = _between(after[3], -9 * np.pi, 9 * np.pi)
    up = -np.cos(after[0]) - np.cos(after[1] + after[0]) > 1.0
    return tuple(after), np.where(up, 0.0, -1.0), up


def _acrobot_slope(state: np.ndarray, torque: np.ndarray) -> np.ndarray:
    """Time derivative of the two-link pendulum, all lengths and masses 1, centres at 0.5."""
    theta1, theta2, speed1, speed2 = state
    g = 9.8
    cosine, sine = np.cos(theta2), np.sin(theta2)
    d1 = 1.0 * 0.5**2 + 1.0 * (1.0**2 + 0.5**2 + 2 * 1.0 * 0.5 * cosine) + 1.0 + 1.0
    d2 = 1.0 * (0.5**2 + 1.0 * 0.5 * cosine) + 1.0
    phi2 = 1.0 * 0.5 * g * np.cos(theta1 + theta2 - np.pi / 2.0)
    phi1 = (
        -1.0 * 1.0 * 0.5 * np.float_power(speed2, 2) * sine
        - 2 * 1.0 * 1.0 * 0.5 * speed2 * speed1 * sine
        + (1.0 * 0.5 + 1.0 * 1.0) * g * np.cos(theta1 - np.pi / 2)
        + phi2
    )
    acceleration2 = (
        torque + d2 / d1 * phi1 - 1.0 * 1.0 * 0.5 * np.float_power(speed1, 2) * sine - phi2
    ) / (1.0 * 0.5**2 + 1.0 - np.float_power(d2, 2) / d1)
    acceleration1 = -(d2 * acceleration2 + phi1) / d1
    return np.array((speed1, speed2, acceleration1, acceleration2))


def _acrobot_observation(state: State) -> np.ndarray:
    theta1, theta2, speed1, speed2 = state
    return _as_float32(
        (np.cos(theta1), np.sin(theta1), np.cos(theta2), np.sin(theta2), speed1, speed2)
    )


CONTROL: dict[str, tuple[Step, Callable[[State], np.ndarray]]] = {
    "MountainCarContinuous-v0": (_mountain_car_continuous, _as_float32),
    "MountainCar-v0": (_mountain_car, _as_float32),
    "CartPole-v1": (_cart_pole, _as_float32),
    "Pendulum-v1": (_pendulum, _pendulum_observation),
    "Acrobot-v1": (_acrobot, _acrobot_observation),
}
"""Gymnasium id -> its step, and what is observed of a state."""
