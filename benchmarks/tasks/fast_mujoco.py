"""Gymnasium's MuJoCo tasks in batches, with returns equal to Gymnasium's to the last bit.

Observations, rewards and actions are computed for all episodes at a time; ``mj_step`` runs one
`MjData` for each episode. Several cores take a share of the episodes each, in processes of
their own (`llmopt.benchmarks.tasks.fast`): threads would wait for Python's lock after every step.

`mujoco.rollout` would need less Python, but it does not hand out the constraint solver's warm
start, which a policy needs from one step to the next. With zeros in its place
returns equal Gymnasium's only as long as no contact and no joint limit is active; in
Swimmer-v5, most policies of the box reach the limits, and their returns then differ in the
fourth digit (``experiments/rollout_speed.py`` counts them).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmopt.benchmarks.tasks.fast_control import Wrapped, linear
from llmopt.policies.linear import LinearPolicy

_LANES_AT_A_TIME = 64  # episodes, so that a batch of any size fits in memory


@dataclass
class Frame:
    """What a step made of `n` episodes.

    Attributes:
        qpos: ``(n, nq)`` positions.
        qvel: ``(n, nv)`` velocities.
        x_before: ``(n,)`` first position before the step.
        action: ``(n, nu)`` float32 actions.
        dt: Seconds of one step.
        extra: ``(n, m)`` what the task needs beyond these (see `Physics.extra`).
    """

    qpos: np.ndarray
    qvel: np.ndarray
    x_before: np.ndarray
    action: np.ndarray
    dt: float
    extra: np.ndarray

    @property
    def x_velocity(self) -> np.ndarray:
        """Mean speed along the first axis over the step."""
        speed: np.ndarray = (self.qpos[:, 0] - self.x_before) / self.dt
        return speed


@dataclass(frozen=True)
class Physics:
    """One task's observation, reward and end, as Gymnasium computes them.

    Attributes:
        observe: ``(n, n_inputs)`` observations of a frame.
        score: ``(n,)`` rewards of a frame, and whether each episode ended.
        extra: Reads further numbers from one `MjData` after a step, as a tuple.
    """

    observe: Callable[[Frame], np.ndarray]
    score: Callable[[Frame], tuple[np.ndarray, np.ndarray]]
    extra: Callable[[Any], tuple[float, ...]] | None = None


def _squares(action: np.ndarray) -> np.ndarray:
    total: np.ndarray = np.sum(np.square(action), axis=1)  # in float32, as Gymnasium does
    return total


def _never(frame: Frame) -> np.ndarray:
    return np.zeros(len(frame.qpos), dtype=bool)


def _swimmer(frame: Frame) -> tuple[np.ndarray, np.ndarray]:
    return frame.x_velocity - np.float32(1e-4) * _squares(frame.action), _never(frame)


def _half_cheetah(frame: Frame) -> tuple[np.ndarray, np.ndarray]:
    return frame.x_velocity - np.float32(0.1) * _squares(frame.action), _never(frame)


def _inverted_pendulum(frame: Frame) -> tuple[np.ndarray, np.ndarray]:
    seen = _positions_and_velocities(frame)
    fell = ~np.isfinite(seen).all(axis=1) | (np.abs(seen[:, 1]) > 0.2)
    return (~fell).astype(np.float64), fell


def _inverted_double_pendulum(frame: Frame) -> tuple[np.ndarray, np.ndarray]:
    x, y = frame.extra[:, 0], frame.extra[:, 1]
    fell = y <= 1
    # float_power rounds as the power of single numbers does; np.square does not always.
    distance = 0.01 * np.float_power(x, 2) + np.float_power(y - 2, 2)
    speed1, speed2 = frame.qvel[:, 1], frame.qvel[:, 2]
    speed = 1e-3 * np.float_power(speed1, 2) + 5e-3 * np.float_power(speed2, 2)
    return np.where(fell, 0.0, 10.0) - distance - speed, fell


def _inverted_double_pendulum_observation(frame: Frame) -> np.ndarray:
    return np.concatenate(
        [
            frame.qpos[:, :1],
            np.sin(frame.qpos[:, 1:]),
            np.cos(frame.qpos[:, 1:]),
            np.clip(frame.qvel, -10, 10),
            np.clip(frame.extra[:, 2:], -10, 10),
        ],
        axis=1,
    )


def _inverted_double_pendulum_extra(data: Any) -> tuple[float, ...]:
    x, _, y = data.site_xpos[0]
    return x, y, data.qfrc_constraint[0]


def _reacher(frame: Frame) -> tuple[np.ndarray, np.ndarray]:
    return -frame.extra[:, 3] - _squares(frame.action), _never(frame)


def _reacher_observation(frame: Frame) -> np.ndarray:
    angles = frame.qpos[:, :2]
    return np.concatenate(
        [np.cos(angles), np.sin(angles), frame.qpos[:, 2:], frame.qvel[:, :2], frame.extra[:, :2]],
        axis=1,
    )


def _reacher_extra(data: Any) -> tuple[float, ...]:
    gap = data.body("fingertip").xpos - data.body("target").xpos
    return (*gap.tolist(), float(np.linalg.norm(gap)))


def _hopper(frame: Frame) -> tuple[np.ndarray, np.ndarray]:
    z, angle = frame.qpos[:, 1], frame.qpos[:, 2]
    rest = np.concatenate([frame.qpos[:, 2:], frame.qvel], axis=1)
    healthy = ((-100 < rest) & (rest < 100)).all(axis=1)
    healthy &= (0.7 < z) & (z < np.inf) & (-0.2 < angle) & (angle < 0.2)
    return frame.x_velocity + healthy - np.float32(1e-3) * _squares(frame.action), ~healthy


def _walker(frame: Frame) -> tuple[np.ndarray, np.ndarray]:
    z, angle = frame.qpos[:, 1], frame.qpos[:, 2]
    healthy = (0.8 < z) & (z < 2.0) & (-1.0 < angle) & (angle < 1.0)
    return frame.x_velocity + healthy - np.float32(1e-3) * _squares(frame.action), ~healthy


def _positions_and_velocities(frame: Frame) -> np.ndarray:
    return np.concatenate([frame.qpos, frame.qvel], axis=1)


def _without_x_and_y(frame: Frame) -> np.ndarray:
    return np.concatenate([frame.qpos[:, 2:], frame.qvel], axis=1)


def _without_x(frame: Frame) -> np.ndarray:
    return np.concatenate([frame.qpos[:, 1:], frame.qvel], axis=1)


def _without_x_clipped(frame: Frame) -> np.ndarray:
    return np.concatenate([frame.qpos[:, 1:], np.clip(frame.qvel, -10, 10)], axis=1)


PHYSICS = {
    "Swimmer-v5": Physics(_without_x_and_y, _swimmer),
    "InvertedPendulum-v5": Physics(_positions_and_velocities, _inverted_pendulum),
    "InvertedDoublePendulum-v5": Physics(
        _inverted_double_pendulum_observation,
        _inverted_double_pendulum,
        _inverted_double_pendulum_extra,
    ),
    "Reacher-v5": Physics(_reacher_observation, _reacher, _reacher_extra),
    "Hopper-v5": Physics(_without_x_clipped, _hopper),
    "Walker2d-v5": Physics(_without_x_clipped, _walker),
    "HalfCheetah-v5": Physics(_without_x, _half_cheetah),
}
"""Gymnasium id -> how it observes and scores."""


class MujocoEngine:
    """Runs episodes of one MuJoCo task.

    Args:
        env_id: A key of `PHYSICS`.
        env: The environment, which is asked for the model and for the starts.
        policy: The policy.
        step_cap: Steps after which an episode ends.
    """

    name = "mj_step"
    lanes = 20

    def __init__(self, env_id: str, env: Any, policy: LinearPolicy, step_cap: int) -> None:
        self._physics = PHYSICS[env_id]
        self._env = env
        self._inner = env.unwrapped
        self._policy = policy
        self._cap = step_cap
        self._starts: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._batch = _Batch(self._inner, self._physics.extra)
        self._wrapped = Wrapped(env)

    def run(self, params: np.ndarray, seeds: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Run every policy from every start; see `ControlEngine.run`."""
        n, k = len(params), len(seeds)
        starts = [self._start(seed) for seed in seeds]
        weights, bias = self._policy.unpack(params)
        totals, lengths = np.zeros(n * k), np.full(n * k, self._cap)

        for at in range(0, n * k, _LANES_AT_A_TIME):
            lanes = np.arange(at, min(at + _LANES_AT_A_TIME, n * k))
            policies, begun = lanes // k, [starts[i] for i in lanes % k]
            totals[lanes], lengths[lanes] = self._episodes(weights[policies], bias[policies], begun)
        return totals.reshape(n, k), lengths.reshape(n, k)

    def _episodes(
        self,
        weights: np.ndarray,
        bias: np.ndarray,
        starts: Sequence[tuple[np.ndarray, np.ndarray]],
    ) -> tuple[np.ndarray, np.ndarray]:
        n, batch = len(starts), self._batch
        observed = np.array([observation for observation, _ in starts])
        x = batch.begin(np.array([state for _, state in starts]))
        lanes = np.arange(n)
        sums = np.zeros(n)
        totals, lengths = np.zeros(n), np.full(n, self._cap)
        dt = float(self._inner.dt)
        observe, score = self._physics.observe, self._physics.score
        # The warnings that stop a run of Gymnasium do not matter here: a lane that is not
        # finite is run again there.
        with np.errstate(all="ignore"):
            for step in range(1, self._cap + 1):
                action = (linear(observed, weights) + bias).astype(np.float32)
                action = self._wrapped.act(action)
                qpos, qvel, extra = batch.step(action)
                frame = Frame(qpos, qvel, x, action, dt, extra)
                rewards, ended = score(frame)
                observed = self._wrapped.observe(observe(frame))
                x = qpos[:, 0].copy()
                sums += rewards
                if ended.any():
                    over = lanes[ended]
                    totals[over], lengths[over] = sums[ended], step
                    going = ~ended
                    lanes, sums, x = lanes[going], sums[going], x[going]
                    weights, bias, observed = weights[going], bias[going], observed[going]
                    if not lanes.size:
                        return totals, lengths
                    batch.keep(going)
        totals[lanes] = sums
        return totals, lengths

    def _start(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the first observation and the whole state of the simulation."""
        if seed not in self._starts:
            if len(self._starts) >= 4096:
                self._starts.clear()
            observation, _ = self._env.reset(seed=seed)
            state = _get_state(self._inner.model, self._inner.data)
            self._starts[seed] = np.array(observation, dtype=np.float64), state
        return self._starts[seed]


def _get_state(model: Any, data: Any) -> np.ndarray:
    import mujoco

    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(model, kind))
    mujoco.mj_getState(model, data, state, kind)
    return state


class _Batch:
    """Steps several episodes, each in its own `MjData`."""

    def __init__(self, inner: Any, extra: Callable[[Any], tuple[float, ...]] | None) -> None:
        self._model, self._substeps = inner.model, int(inner.frame_skip)
        self._extra = extra
        self._spare: list[Any] = []

    def begin(self, states: np.ndarray) -> np.ndarray:
        import mujoco

        while len(self._spare) < len(states):
            self._spare.append(mujoco.MjData(self._model))
        self._step = mujoco.mj_step
        self._data = self._spare[: len(states)]
        for data, state in zip(self._data, states, strict=True):
            mujoco.mj_resetData(self._model, data)
            mujoco.mj_setState(self._model, data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
        self._view()
        return np.array([data.qpos[0] for data in self._data])

    def _view(self) -> None:
        self._controls = [data.ctrl for data in self._data]
        self._positions = [data.qpos for data in self._data]
        self._velocities = [data.qvel for data in self._data]
        self._none = np.empty((len(self._data), 0))

    def keep(self, going: np.ndarray) -> None:
        self._data = [data for data, on in zip(self._data, going, strict=True) if on]
        self._view()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        model, substeps, step = self._model, self._substeps, self._step
        for data, control, wanted in zip(self._data, self._controls, action, strict=True):
            control[:] = wanted
            step(model, data, substeps)
        extra = self._none
        if self._extra is not None:
            extra = np.array([self._extra(data) for data in self._data])
        return np.array(self._positions), np.array(self._velocities), extra
