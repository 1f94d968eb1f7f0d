"""Meta-World tasks with language feedback and target-pose actions.

Needs the extra `metaworld`, in a separate environment: Meta-World pins an
old MuJoCo. The expert is each task's scripted policy. All of them steer by a call of
Meta-World's ``move(from, to_xyz, p)``; a copy of the policy with that one call recorded gives
the target pose and the gain, in the same way for every task.
"""

from __future__ import annotations

import importlib
import types
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.code.language import LanguageFeedback, Verdict
from llmopt.errors import LLMOptError, did_you_mean, needs

INNER_STEPS = 20
"""Environment steps that one target pose may take, as in LLF-Bench (metaworld/wrapper.py)."""

MAX_TARGETS = 30
"""Target poses in one episode, as in LLF-Bench."""

CAMERA = "corner2"
"""The camera of pictures. It hangs upside down."""

REACHED = 1e-4
"""Distance in metres in each axis at which a target pose counts as reached (as LLF-Bench)."""

_NEAR = 0.02
_PROGRESS = 1e-3
"""Metres: at a pose; closer to it. A hand that stays where it is has made no good move."""

_SUCCESS = {
    "reach-v3": "the hand's tip is within 0.05 m of the goal, obs[36:39]",
    "push-v3": "the puck's centre is within 0.05 m of the goal, obs[36:39], on the table",
    "pick-place-v3": "the puck's centre is within 0.07 m of the goal, obs[36:39], in the air",
    "door-open-v3": "the door's handle has been pulled open until its x, obs[4], is within 0.08 m "
    "of the goal's x, obs[36]",
    "drawer-open-v3": "the drawer's handle, obs[4:7], is within 0.03 m of the goal, obs[36:39]",
    "button-press-v3": "the button's y, obs[5], is within 0.02 m of the goal's y, obs[37]: it is "
    "pushed in along y",
}

_INSTRUCTION = (
    "Control a Sawyer robot arm with a gripper to do the task {task}. Each action is a target: "
    "the x, y, z position that the hand shall move to, in metres, and the gripper's effort, "
    "from -1 (open) to 1 (close)."
)


def _metaworld() -> Any:
    own = " in a separate environment (it pins mujoco==3.3.0)"
    with needs("this task", "metaworld", extra="metaworld", otherwise=own):
        return importlib.import_module("metaworld")


def task_names() -> tuple[str, ...]:
    """Return the names of the tasks, such as ``"pick-place-v3"``."""
    return tuple(_metaworld().MT1.ENV_NAMES)


@lru_cache(maxsize=8)
def _benchmark(name: str, seed: int) -> Any:
    # It draws its 50 goals by making the environment, which takes a second.
    return _metaworld().MT1(name, seed=seed)


class Expert:
    """A task's scripted policy, asked for the pose that it steers to."""

    def __init__(self, name: str) -> None:
        policies = importlib.import_module("metaworld.policies")
        self._policy = policies.ENV_POLICY_MAP[name]()
        self._target: tuple[np.ndarray, float] | None = None
        original = type(self._policy).get_action
        names = {**original.__globals__, "move": self._record}
        self._act = types.FunctionType(
            original.__code__, names, original.__name__, original.__defaults__, original.__closure__
        )

    def _record(self, from_xyz: Any, to_xyz: Any, p: float) -> np.ndarray:
        # One policy names a height alone, which NumPy spreads over x, y and z.
        to_xyz = np.broadcast_to(np.asarray(to_xyz, dtype=np.float64), (3,))
        self._target = (to_xyz.copy(), float(p))
        return np.asarray(p * (to_xyz - np.asarray(from_xyz)))

    def parse(self, observation: np.ndarray) -> dict[str, Any]:
        """Return the named parts of an observation."""
        parts = self._policy._parse_obs(np.array(observation, dtype=np.float64))
        return {name: value for name, value in parts.items()}

    def target(self, observation: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the ``(4,)`` pose that it steers to (x, y, z in metres; effort), and its gain."""
        self._target = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # A copy: some policies change the observation that they are given.
            action = self._act(self._policy, np.array(observation, dtype=np.float64))
        recorded: Any = self._target  # set by the call above
        if recorded is None:
            raise LLMOptError(f"{type(self._policy).__name__} does not say where it steers to")
        pose, gain = recorded
        return np.append(pose, np.clip(action[3], -1.0, 1.0)), gain


class TargetPose(gym.Wrapper[Any, Any, Any, Any]):
    """Makes actions targets: ``(x, y, z, effort)``, reached by a P-controller.

    One step runs the environment until the hand is within `REACHED` of the target or for
    `INNER_STEPS` steps, and ends an episode at the first success. Its reward is that of the
    last inner step.
    """

    def __init__(
        self,
        name: str,
        seed: int = 0,
        held_out: bool = False,
        render_mode: str | None = None,
    ) -> None:
        metaworld = _metaworld()
        if name not in metaworld.MT1.ENV_NAMES:
            valid = did_you_mean(name, metaworld.MT1.ENV_NAMES)
            raise LLMOptError(f"unknown Meta-World task {name!r}: {valid}")
        # Odd and even seeds: no run's held-out goals are another run's training goals.
        benchmark = _benchmark(name, 2 * seed + held_out)
        drawn = {} if render_mode is None else {"render_mode": render_mode, "camera_name": CAMERA}
        env = benchmark.train_classes[name](**drawn)
        super().__init__(env)
        self.name, self.distance = name, "distance"
        self.metadata = {**env.metadata, "render_fps": 5}  # targets
        self.expert = Expert(name)
        self._tasks = list(benchmark.train_tasks)
        # number of goals, 50. `reset(seed=k)` takes goal `k`; from 50 on they begin again one
        # later, so that odd seeds alone reach every goal, and so do even ones
        self.goals = len(self._tasks)
        self._steps = 0
        env.max_path_length = MAX_TARGETS * INNER_STEPS + 1  # its own limit never comes first
        self._observation = np.zeros(39)
        low, high = env._HAND_SPACE.low, env._HAND_SPACE.high
        self.action_space = gym.spaces.Box(
            np.append(low, -1.0), np.append(high, 1.0), dtype=np.float64
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode with goal number `seed` (0 if not given)."""
        env: Any = self.env
        number = seed or 0
        env.set_task(self._tasks[(number + number // self.goals) % self.goals])
        observation, info = env.reset()
        self._observation, self._steps = np.array(observation, dtype=np.float64), 0
        return self._observation.copy(), {**info, "success": False}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Steer to a target."""
        target = np.clip(np.asarray(action, dtype=np.float64), *self._bounds())
        gain = self.expert.target(self._observation)[1]
        self._steps += 1
        for _ in range(INNER_STEPS):
            move = np.clip(gain * (target[:3] - self._observation[:3]), -1.0, 1.0)
            observation, value, _, _, info = self.env.step(
                np.append(move, target[3]).astype(np.float32)
            )
            self._observation = np.array(observation, dtype=np.float64)
            success = bool(info["success"])
            ended = self._steps >= MAX_TARGETS
            info = {**info, "success": success, **self._measured(info)}
            if success or np.abs(target[:3] - self._observation[:3]).max() < REACHED:
                break
        return self._observation.copy(), float(value), success, ended, info

    def render(self) -> Any:
        """Return a picture, the right way up and of half the size."""
        return np.asarray(self.env.render())[::-2, ::-2]

    def _measured(self, info: Mapping[str, Any]) -> dict[str, float]:
        """Return how far success is, where that is known."""
        if self.name == "door-open-v3":  # its own measure is always 0
            return {self.distance: abs(float(self._observation[4] - self._observation[36]))}
        far = float(info["obj_to_target"])
        return {self.distance: far} if far > 0 or info["success"] else {}

    def words(self) -> str:
        """Return what code has to know of an episode, in words: steps, limits, times, success."""
        inner = INNER_STEPS
        success = _SUCCESS.get(self.name, "Meta-World says so in the task's own terms")
        return (
            f"Success: {success}. The episode ends at once in success.\n"
            f"An episode has at most {MAX_TARGETS} calls. Each call sets a target and runs up "
            f"to {inner} steps of simulation in which a P-controller drives the hand towards it; "
            f"the call ends early where the hand is within {REACHED * 1000:g} mm of the target.\n"
            "The hand gains speed over about 5 steps to at most 1 cm a step in each axis, and "
            f"slows down near the target: a call of {inner} steps moves it at most about "
            f"{0.01 * max(inner - 4, 0.2 * inner):.2g} m in each axis, and a farther target needs "
            "several calls. The gripper opens or closes in about 15 steps, while the hand moves: "
            "to grasp, close it in one call with the hand at the object, and lift in the next.\n"
            "A target outside the limits is clipped to them. Reward is Meta-World's, 0 to 10 at "
            "the last step of a call. In the feedback a step is one call, and 'distance to "
            "success' is the distance named above, in metres."
        )

    def wanted(self, observation: np.ndarray) -> np.ndarray:
        """Return the action of the expert, ``(4,)``: its pose, as far as it is a valid action."""
        return np.asarray(np.clip(self.expert.target(observation)[0], *self._bounds()))

    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        space: Any = self.action_space
        return space.low, space.high


class MetaWorldTeacher:
    """Says of each target whether it brought the hand to where the expert wants it."""

    def __init__(self, env: TargetPose) -> None:
        self._env = env

    def instruction(self) -> str:
        """Return the task in words."""
        return _INSTRUCTION.format(task=self._env.name.removesuffix("-v3"))

    def describe(self, observation: Any) -> str:
        """Return the named parts of an observation and their values."""
        parts = self._env.expert.parse(np.asarray(observation))
        return "; ".join(
            f"{name} is {np.array2string(np.asarray(value), precision=3, suppress_small=True)}"
            for name, value in parts.items()
        )

    def judge(self, before: Any, action: Any, after: Any) -> Verdict:
        """Compare a move with the expert's.

        A move is good if the hand came closer to the pose that the expert wanted before it,
        or is there, or if it was the expert's own (which may press against something). The
        gripper gets a separate remark, as in LLF-Bench.
        """
        before, after = np.asarray(before), np.asarray(after)
        wanted = self._env.wanted(before)
        was = float(np.linalg.norm(wanted[:3] - before[:3]))
        now = float(np.linalg.norm(wanted[:3] - after[:3]))
        off = np.linalg.norm(wanted[:3] - np.asarray(action)[:3])
        good = bool(now < max(was - _PROGRESS, _NEAR) or off < _NEAR)
        close = bool(wanted[3] > 0)
        remark = f"You should {'close' if close else 'open'} the gripper."
        remarks = () if close == bool(action[3] > 0) else (remark,)
        return Verdict(good, remarks, _target_in_words(self._env.wanted(after)))

    def conclude(
        self, observations: Sequence[Any], rewards: Sequence[float], info: Mapping[str, Any]
    ) -> str:
        """Say whether the task was done, and when."""
        done = "The task was done" if info.get("success") else "The task was NOT done"
        last = f" (last reward {rewards[-1]:.2f} of 10)" if rewards else ""
        return f"{done} after {len(rewards)} moves{last}."


def _target_in_words(target: np.ndarray) -> str:
    x, y, z, effort = target
    grip = "close" if effort > 0 else "open"
    return f"move the hand to [{x:.3f}, {y:.3f}, {z:.3f}] and {grip} the gripper ({effort:+.1f})"


def make_env(name: str, seed: int = 0, held_out: bool = False) -> LanguageFeedback:
    """Make a Meta-World task with target-pose actions and language feedback."""
    env = TargetPose(name, seed, held_out)
    return LanguageFeedback(env, MetaWorldTeacher(env))
