"""The tasks, as a table of data: what is searched, in which box, and how it is said in words."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import gymnasium as gym

from llmopt.errors import LLMOptError, SpaceError
from llmopt.policies.environment import make_gymnasium, missing_environment
from llmopt.policies.episode import STEP_CAP, step_cap
from llmopt.policies.goal import describe_parameters
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.rollout import Evaluator
from llmopt.policies.wrapping import (
    CLIP,
    NORMALIZE,
    RESCALE,
    Normal,
    check_wrapper,
    measure_normal,
    usual_wrappers,
    wrap,
)
from llmopt.text import first_line

PUBLISHED_BOX = (-6.0, 6.0)
"""Bounds of every parameter in the published ProPS experiments (arXiv 2511.21928)."""

SCALED_BOX = (-2.0, 2.0)
"""Bounds of every parameter where what is observed is scaled to a size of about 1."""


class UnknownTaskError(LLMOptError, ValueError):
    """A task's name is neither an alias nor a Gymnasium id."""


@dataclass(frozen=True)
class Task:
    """One policy search problem: find the parameters of the largest mean return.

    Attributes:
        id: Versioned name. A change of anything below that changes a return changes it.
        env_id: Gymnasium id.
        alias: Short name for the command line; empty for none.
        bias: Whether the linear policy has a bias.
        box: Low and high bound of every parameter.
        max_steps: Environment steps an episode may take; ``None`` for the environment's
            own time limit (`STEP_CAP` where it has none).
        episodes: Starts of one evaluation, where nobody gives a number.
        description: The task in words, for prompts that carry a description.
        observes: What each observed number is; for a table, how its states are numbered.
        acts: What each action is.
        camera: MuJoCo camera for pictures; empty for the environment's own view.
        wrappers: What the environment is wrapped in, the innermost first (see
            `llmopt.policies.wrapping`); ``None`` for the usual ones of its spaces.
        normal: Mean and variance of a `NormalizeObservation`; ``None`` to measure them.
    """

    id: str
    env_id: str
    alias: str = ""
    bias: bool = True
    box: tuple[float, float] = PUBLISHED_BOX
    max_steps: int | None = None
    episodes: int = 5
    description: str = ""
    observes: tuple[str, ...] = ()
    acts: tuple[str, ...] = ()
    camera: str = ""
    wrappers: tuple[str, ...] | None = ()
    normal: Normal | None = None

    def make_env(self, **kwargs: Any) -> gym.Env[Any, Any]:
        """Make the environment in its wrappers; keyword arguments go to ``gymnasium.make``.

        Raises:
            LLMOptError: The environment cannot be made (a package is missing, say).
            WrapperError: A wrapper does not fit it.
        """
        env = make_gymnasium(self.env_id, **kwargs)
        try:
            wrappers = usual_wrappers(env) if self.wrappers is None else self.wrappers
            normal = self.normal
            if normal is None and NORMALIZE in wrappers:
                normal = _normal(self.env_id, wrappers, self.max_steps)
            return wrap(env, wrappers, normal)
        except BaseException:
            env.close()
            raise

    def policy(self, env: gym.Env[Any, Any]) -> LinearPolicy:
        """Return the policy whose parameters are searched.

        Raises:
            SpaceError: Its spaces are not supported, or it would be too large.
        """
        return LinearPolicy.for_env(env, self.bias)

    def words(self, policy: LinearPolicy) -> str:
        """Return the task and what the policy's parameters mean, in words.

        Args:
            policy: What `policy` returned.
        """
        lines = [self.description, ""] if self.description else []
        table = isinstance(policy.observation_space, gym.spaces.Discrete)
        for head, letter, names in (("Observed", "o", self.observes), ("Actions", "a", self.acts)):
            if names and table and letter == "o":
                lines.append(f"The states s0, s1, ...: {names[0]}.")
            elif names:
                listed = "; ".join(f"{letter}{i} = {name}" for i, name in enumerate(names))
                lines.append(f"{head}: {listed}.")
        lines.append(describe_parameters(policy))
        order = "state by state" if table else "observed number by observed number"
        last = ", and the constants last" if policy.bias else ""
        lines.append(f"The parameters come {order}, each with all actions{last}.")
        return "\n".join(lines)

    def step_cap(self, env: gym.Env[Any, Any]) -> int:
        """Environment steps after which an episode ends."""
        return step_cap(env, self.max_steps)

    def evaluator(self) -> Evaluator:
        """Return what runs episodes of this task.

        Raises:
            LLMOptError: The environment cannot be made.
            SpaceError: A linear policy cannot serve its spaces.
        """
        env = self.make_env()
        try:
            return Evaluator(self.make_env, self.policy(env), self.step_cap(env), env)
        except BaseException:
            env.close()
            raise


# Measured in random policies' episodes (`measure_normal`), and kept, as they are part of the task.
_CARE: dict[str, tuple[Any, ...]] = {
    "mountaincar": ((RESCALE, CLIP), None, (-1.0, 1.0)),
    "inverted-pendulum": (
        (NORMALIZE, "RescaleAction=-1,1", CLIP),
        ((-0.03384, -0.01511, -0.2068, 0.2088), (0.01207, 0.02359, 1.22, 6.0)),
    ),
    "inverted-double-pendulum": (
        (NORMALIZE, CLIP),
        (
            (0.01494, 0.01453, -0.00474, 0.8411, 0.8315, 0.07201, -0.1031, 0.01726, 0.0),
            (0.09644, 0.2545, 0.2756, 0.03782, 0.03291, 10.14, 31.0, 24.18, 1.0),
        ),
    ),
    "reacher": (
        (NORMALIZE, CLIP),
        (
            (0.1748, -0.3037, -0.00657, 0.09498, 0.005229, -0.004589, -5.873, 0.1121, 0.02117,
             0.0009341),
            (0.5119, 0.6927, 0.4575, 0.206, 0.01064, 0.00987, 3128.0, 112.4, 0.01833, 0.01454),
        ),
    ),
    "halfcheetah": (
        (NORMALIZE, CLIP),
        (
            (-0.2933, 1.99, -0.076, 0.0444, 0.01786, 0.0204, 0.06902, -0.09566, -0.04721, 0.02176,
             0.03803, 0.1293, -0.1815, -0.107, -0.06724, 0.1049, -0.01551),
            (0.04505, 8.594, 0.1928, 0.1625, 0.1906, 0.2761, 0.2975, 0.1692, 0.8822, 0.9344, 3.795,
             74.37, 87.42, 97.73, 95.18, 100.7, 65.87),
        ),
    ),
}  # fmt: skip
"""Alias -> wrappers, mean and variance of what is observed, and box, of the scaled tasks."""


@functools.lru_cache(maxsize=64)
def _normal(env_id: str, wrappers: tuple[str, ...], cap: int | None) -> Normal:
    return measure_normal(lambda: wrap(make_gymnasium(env_id), wrappers), cap or STEP_CAP)


_PUBLISHED: tuple[Task, ...] = (
    Task(
        "MountainCarContinuous-v0/linear-v1",
        "MountainCarContinuous-v0",
        "mountaincar",
        episodes=20,  # as published; a start on five alone is soon learnt by heart
        description=(
            "A car in a valley between two hills. It observes its position and its velocity, "
            "and sets a force between -1 and 1. The engine is too weak to climb the right hill "
            "directly: the car has to swing back and forth to gather speed. Reaching the flag "
            "on the right hill gives 100; every step costs 0.1 times the squared action."
        ),
        observes=(
            "position of the car, from -1.2 to 0.6; the valley is at -0.52, the flag at 0.45",
            "velocity of the car, from -0.07 to 0.07",
        ),
        acts=("force",),
    ),
    Task(
        "Swimmer-v5/linear-v1",
        "Swimmer-v5",
        "swimmer",
        camera="track",  # its own view stands still, and the swimmer leaves it
        description=(
            "A three-link swimmer in a viscous fluid. It observes the angles of its links and "
            "the velocities of its tip and joints, and sets the torques of its two joints. The "
            "reward is its speed to the right less a small cost of the torques."
        ),
        observes=(
            "angle of the front link",
            "angle of the first joint",
            "angle of the second joint",
            "velocity of the front tip along x, to the right",
            "velocity of the front tip along y",
            "angular velocity of the front link",
            "angular velocity of the first joint",
            "angular velocity of the second joint",
        ),
        acts=(
            "torque on the first joint",
            "torque on the second joint",
        ),
    ),
    Task(
        "CartPole-v1/linear-v1",
        "CartPole-v1",
        "cartpole",
        description=(
            "A pole stands on a cart. The position and velocity of the cart and the angle and "
            "angular velocity of the pole are observed; the cart is pushed left or right. Every "
            "step that the pole stays up gives 1, at most 500."
        ),
        observes=(
            "position of the cart",
            "velocity of the cart",
            "angle of the pole, positive to the right",
            "angular velocity of the pole",
        ),
        acts=(
            "push left",
            "push right",
        ),
    ),
    Task(
        "MountainCar-v0/linear-v1",
        "MountainCar-v0",
        "mountaincar-discrete",
        description=(
            "A car in a valley between two hills. It observes its position and its velocity, "
            "and pushes left, not at all, or right. The engine is too weak to climb directly. "
            "Every step before the flag on the right hill costs 1, at most 200."
        ),
        observes=(
            "position of the car, from -1.2 to 0.6; the valley is at -0.52, the flag at 0.5",
            "velocity of the car, from -0.07 to 0.07",
        ),
        acts=(
            "push left",
            "do nothing",
            "push right",
        ),
    ),
    Task(
        "Pendulum-v1/linear-v1",
        "Pendulum-v1",
        "pendulum",
        description=(
            "A pendulum is to be swung up and held upright. The cosine and sine of its angle "
            "and its angular velocity are observed, and a torque between -2 and 2 is set. Every "
            "step costs the squared angle from upright and a little for speed and torque."
        ),
        observes=(
            "cosine of the angle from upright",
            "sine of the angle from upright",
            "angular velocity",
        ),
        acts=("torque",),
    ),
    Task(
        "Acrobot-v1/linear-v1",
        "Acrobot-v1",
        "acrobot",
        description=(
            "A two-link pendulum with a motor at the middle joint. The cosines and sines of "
            "both angles and their velocities are observed; the torque is -1, 0 or 1. Every "
            "step before the tip swings above the line costs 1, at most 500."
        ),
        observes=(
            "cosine of the first angle, which is 0 hanging down",
            "sine of the first angle",
            "cosine of the second angle, relative to the first link",
            "sine of the second angle",
            "angular velocity of the first joint",
            "angular velocity of the second joint",
        ),
        acts=(
            "torque -1 on the middle joint",
            "no torque",
            "torque 1 on the middle joint",
        ),
    ),
    Task(
        "InvertedPendulum-v5/linear-v1",
        "InvertedPendulum-v5",
        "inverted-pendulum",
        description=(
            "A pole stands on a cart on a rail. The position, the angle and both velocities are "
            "observed, and a force on the cart is set. Every step upright gives 1, at most 1000."
        ),
        observes=(
            "position of the cart",
            "angle of the pole",
            "velocity of the cart",
            "angular velocity of the pole",
        ),
        acts=("force on the cart",),
    ),
    Task(
        "InvertedDoublePendulum-v5/linear-v1",
        "InvertedDoublePendulum-v5",
        "inverted-double-pendulum",
        description=(
            "Two poles, one upon the other, stand on a cart. The position, the sines and "
            "cosines of the angles, the velocities and a constraint force are observed, and a "
            "force on the cart is set. Every step upright gives about 10."
        ),
        observes=(
            "position of the cart",
            "sine of the lower pole's angle",
            "sine of the angle between the poles",
            "cosine of the lower pole's angle",
            "cosine of the angle between the poles",
            "velocity of the cart",
            "angular velocity of the lower pole",
            "angular velocity of the joint between the poles",
            "constraint force on the cart",
        ),
        acts=("force on the cart",),
    ),
    Task(
        "Reacher-v5/linear-v1",
        "Reacher-v5",
        "reacher",
        description=(
            "A two-joint arm is to reach a random target. The cosines and sines of its angles, "
            "the target, the velocities and the distance are observed, and two torques are set. "
            "Every step costs the distance and the squared torques."
        ),
        observes=(
            "cosine of the first angle",
            "cosine of the second angle",
            "sine of the first angle",
            "sine of the second angle",
            "x of the target",
            "y of the target",
            "angular velocity of the first joint",
            "angular velocity of the second joint",
            "x of the fingertip less that of the target",
            "y of the fingertip less that of the target",
        ),
        acts=(
            "torque on the first joint",
            "torque on the second joint",
        ),
    ),
    Task(
        "Hopper-v5/linear-v1",
        "Hopper-v5",
        "hopper",
        description=(
            "A one-legged robot is to hop to the right without falling. The height, angles and "
            "velocities of its body and joints are observed, and three torques are set. Every "
            "step upright gives 1 plus the speed less a small cost of the torques."
        ),
        observes=(
            "height of the torso",
            "angle of the torso",
            "angle of the thigh joint",
            "angle of the leg joint",
            "angle of the foot joint",
            "velocity to the right",
            "upward velocity",
            "angular velocity of the torso",
            "angular velocity of the thigh joint",
            "angular velocity of the leg joint",
            "angular velocity of the foot joint",
        ),
        acts=(
            "torque on the thigh joint",
            "torque on the leg joint",
            "torque on the foot joint",
        ),
    ),
    Task(
        "Walker2d-v5/linear-v1",
        "Walker2d-v5",
        "walker2d",
        description=(
            "A two-legged robot in a plane is to walk to the right without falling. The height, "
            "angles and velocities are observed, and six torques are set. Every step upright "
            "gives 1 plus the speed less a small cost of the torques."
        ),
        observes=(
            "height of the torso",
            "angle of the torso",
            "angle of the right thigh",
            "angle of the right leg",
            "angle of the right foot",
            "angle of the left thigh",
            "angle of the left leg",
            "angle of the left foot",
            "velocity to the right",
            "upward velocity",
            "angular velocity of the torso",
            "angular velocity of the right thigh",
            "angular velocity of the right leg",
            "angular velocity of the right foot",
            "angular velocity of the left thigh",
            "angular velocity of the left leg",
            "angular velocity of the left foot",
        ),
        acts=(
            "torque on the right thigh",
            "torque on the right leg",
            "torque on the right foot",
            "torque on the left thigh",
            "torque on the left leg",
            "torque on the left foot",
        ),
    ),
    Task(
        "HalfCheetah-v5/linear-v1",
        "HalfCheetah-v5",
        "halfcheetah",
        description=(
            "A two-legged robot in a plane is to run to the right. The height, angles and "
            "velocities are observed, and six torques are set. The reward is the speed less a "
            "small cost of the torques."
        ),
        observes=(
            "height of the front tip",
            "angle of the front tip",
            "angle of the back thigh",
            "angle of the back shin",
            "angle of the back foot",
            "angle of the front thigh",
            "angle of the front shin",
            "angle of the front foot",
            "velocity to the right",
            "upward velocity",
            "angular velocity of the front tip",
            "angular velocity of the back thigh",
            "angular velocity of the back shin",
            "angular velocity of the back foot",
            "angular velocity of the front thigh",
            "angular velocity of the front shin",
            "angular velocity of the front foot",
        ),
        acts=(
            "torque on the back thigh",
            "torque on the back shin",
            "torque on the back foot",
            "torque on the front thigh",
            "torque on the front shin",
            "torque on the front foot",
        ),
    ),
    Task(
        "FrozenLake-v1/linear-v1",
        "FrozenLake-v1",
        "frozenlake",
        bias=False,
        description=(
            "A walk over a frozen lake, a grid of 4 x 4 fields with holes. The field is "
            "observed and one of four directions is chosen, but the ice is slippery. Reaching "
            "the goal gives 1. The parameters are a table: a preference for each direction on "
            "each field."
        ),
        observes=(
            "4 times the row plus the column, from the start at the upper left; the goal is 15",
        ),
        acts=(
            "left",
            "down",
            "right",
            "up",
        ),
    ),
    Task(
        "CliffWalking-v1/linear-v1",
        "CliffWalking-v1",
        "cliffwalking",
        bias=False,
        max_steps=200,
        description=(
            "A walk along a cliff, on a grid of 4 x 12 fields. The field is observed and one of "
            "four directions is chosen. Every step costs 1, a fall 100 and a new start. The "
            "parameters are a table: a preference for each direction on each field."
        ),
        observes=(
            "12 times the row plus the column, from the upper left; the start is 36, the goal "
            "47, the cliff lies between them",
        ),
        acts=(
            "up",
            "right",
            "down",
            "left",
        ),
    ),
)


def _with_care(
    task: Task,
    wrappers: tuple[str, ...],
    normal: Normal | None = None,
    box: tuple[float, float] = SCALED_BOX,
) -> Task:
    """Return a published task as it is searched where nobody asks for the published form."""
    seen = "scaled to [-1, 1]" if RESCALE in wrappers else "normalized: less its mean, over its sd"
    return replace(
        task,
        id=f"{task.env_id}/scaled-v1",
        box=box,
        description=f"{task.description} {_CLIPPED}" if CLIP in wrappers else task.description,
        observes=tuple(f"{text} ({seen})" for text in task.observes),
        wrappers=wrappers,
        normal=normal,
    )


_CLIPPED = "A force or torque beyond its bounds counts, and costs, as the bound."
_SCALED: dict[str, Task] = {
    task.alias: _with_care(task, *_CARE[task.alias]) for task in _PUBLISHED if task.alias in _CARE
}

TASKS: tuple[Task, ...] = (
    *(_SCALED.get(t.alias, t) for t in _PUBLISHED),
    *(replace(t, alias=f"{t.alias}-published") for t in _PUBLISHED if t.alias in _SCALED),
)
"""All tasks by name. Where scaling helps, the name alone is the scaled form."""


def get_task(
    name: str,
    *,
    bias: bool | None = None,
    box: tuple[float, float] | None = None,
    description: str | None = None,
    wrappers: Sequence[str] | None = None,
) -> Task:
    """Return a task by alias, task id or Gymnasium id.

    An environment that is not in the table gets the usual wrappers of its spaces.

    Args:
        name: ``"mountaincar"``, ``"Swimmer-v5"``, ``"Swimmer-v5/linear-v1"`` or any id that
            ``gymnasium.make`` takes (``"module:Id-v0"`` imports the module first).
        bias: Overrides whether the policy has a bias.
        box: Overrides the bounds of every parameter.
        description: Overrides the description in words.
        wrappers: What the environment is wrapped in instead, the innermost first (see
            `llmopt.policies.wrapping`); empty for the published form: nothing.

    Raises:
        UnknownTaskError: There is no such task; near names are listed.
        WrapperError: There is no such wrapper.
        SpaceError: The box is empty or not finite.
    """
    if box is not None and not (-1e300 < box[0] < box[1] < 1e300):
        raise SpaceError(
            f"the box is [{box[0]}, {box[1]}]; expected two finite numbers, the lower first"
        )
    task = next((t for t in TASKS if name in (t.alias, t.id, t.env_id)), None)
    if task is None:
        _check_id(name)
        task = Task(f"{name}/scaled-v1", name, box=SCALED_BOX, wrappers=None)
    if wrappers is not None and tuple(wrappers) != task.wrappers:
        task = _wrapped(task, tuple(wrappers))
    changes: dict[str, Any] = {}
    if bias is not None and bias != task.bias:
        changes["bias"] = bias
    if box is not None and tuple(box) != task.box:
        changes["box"] = (float(box[0]), float(box[1]))
    if changes:  # another problem, so another id
        changes["id"] = "/".join(
            [task.id]
            + ([] if "bias" not in changes else ["bias" if bias else "no-bias"])
            + ([] if "box" not in changes else ["box{:g},{:g}".format(*changes["box"])])
        )
    if description is not None:
        changes["description"] = description
    return replace(task, **changes) if changes else task


def imports(name: str, wrappers: Sequence[str] | None) -> bool:
    """Whether a task, or what it is wrapped in, names a module, which making it would run."""
    return any(":" in text.partition("=")[0] for text in (name, *(wrappers or ())))


def _wrapped(task: Task, wrappers: tuple[str, ...]) -> Task:
    """Return a task in other wrappers."""
    for each in wrappers:
        check_wrapper(each)
    raw = next((t for t in TASKS if t.env_id == task.env_id and not t.wrappers), None)
    if raw is None or task.wrappers is None:
        raw = Task(f"{task.env_id}/linear-v1", task.env_id)
    if not wrappers:
        return raw
    scaled = any(w.startswith((NORMALIZE, "RescaleObservation")) for w in wrappers)
    return replace(
        raw,
        id=f"{raw.id}/{'+'.join(wrappers)}",
        box=SCALED_BOX if scaled else raw.box,
        wrappers=wrappers,
    )


def _check_id(name: str) -> None:
    """Raise `UnknownTaskError` if Gymnasium does not know an id; say what is near."""
    module, colon, env_id = name.rpartition(":")
    if colon:  # as gymnasium.make does: the module registers its environments on import
        try:
            importlib.import_module(module)
        except (ImportError, ValueError) as error:
            raise UnknownTaskError(
                f"task {name!r}: cannot import the module {module!r} ({error}); for a module in "
                "this folder set PYTHONPATH=."
            ) from error
    try:
        gym.spec(env_id)
    except gym.error.Error as error:
        aliases = [t.alias for t in TASKS]
        lower = {known.lower(): known for known in [*gym.registry, *aliases]}
        near = [lower[n] for n in get_close_matches(name.lower(), lower, n=3, cutoff=0.6)]
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        if isinstance(error, gym.error.DeprecatedEnv | gym.error.VersionNotFound):
            hint = f"{_first_line(error)} "
        elif not near:
            hint = f"{missing_environment(name)}. "
        raise UnknownTaskError(
            f"unknown task {name!r}: {hint}Valid: {', '.join(sorted(aliases))}, and any "
            "Gymnasium id"
        ) from error


def _first_line(error: Exception) -> str:
    return first_line(error) or type(error).__name__
