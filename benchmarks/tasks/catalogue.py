"""The tasks by name: which environment, in which box, and how it is said in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmopt.benchmarks.tasks.task import SCALED_BOX, Task
from llmopt.policies.wrapping import CLIP, NORMALIZE, RESCALE, Normal

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


def _each(names: str) -> tuple[str, ...]:
    return tuple(names.split("; "))


def _published(env_id: str, alias: str, target: float, **form: Any) -> Task:
    return Task(f"{env_id}/linear-v1", env_id, alias, target=target, **form)


_PUBLISHED: tuple[Task, ...] = (
    _published(
        "MountainCarContinuous-v0",
        "mountaincar",
        90.0,
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
    _published(
        "Swimmer-v5",
        "swimmer",
        300.0,
        camera="track",  # its own view stands still, and the swimmer leaves it
        description=(
            "A three-link swimmer in a viscous fluid. It observes the angles of its links and "
            "the velocities of its tip and joints, and sets the torques of its two joints. The "
            "reward is its speed to the right less a small cost of the torques."
        ),
        observes=_each(
            "angle of the front link; angle of the first joint; angle of the second joint; "
            "velocity of the front tip along x, to the right; velocity of the front tip along "
            "y; angular velocity of the front link; angular velocity of the first joint; "
            "angular velocity of the second joint"
        ),
        acts=("torque on the first joint", "torque on the second joint"),
    ),
    _published(
        "CartPole-v1",
        "cartpole",
        475.0,
        description=(
            "A pole stands on a cart. The position and velocity of the cart and the angle and "
            "angular velocity of the pole are observed; the cart is pushed left or right. Every "
            "step that the pole stays up gives 1, at most 500."
        ),
        observes=_each(
            "position of the cart; velocity of the cart; angle of the pole, positive to the "
            "right; angular velocity of the pole"
        ),
        acts=("push left", "push right"),
    ),
    _published(
        "MountainCar-v0",
        "mountaincar-discrete",
        -110.0,
        description=(
            "A car in a valley between two hills. It observes its position and its velocity, "
            "and pushes left, not at all, or right. The engine is too weak to climb directly. "
            "Every step before the flag on the right hill costs 1, at most 200."
        ),
        observes=(
            "position of the car, from -1.2 to 0.6; the valley is at -0.52, the flag at 0.5",
            "velocity of the car, from -0.07 to 0.07",
        ),
        acts=_each("push left; do nothing; push right"),
    ),
    _published(
        "Pendulum-v1",
        "pendulum",
        -300.0,
        description=(
            "A pendulum is to be swung up and held upright. The cosine and sine of its angle "
            "and its angular velocity are observed, and a torque between -2 and 2 is set. Every "
            "step costs the squared angle from upright and a little for speed and torque."
        ),
        observes=_each(
            "cosine of the angle from upright; sine of the angle from upright; angular velocity"
        ),
        acts=("torque",),
    ),
    _published(
        "Acrobot-v1",
        "acrobot",
        -100.0,
        description=(
            "A two-link pendulum with a motor at the middle joint. The cosines and sines of "
            "both angles and their velocities are observed; the torque is -1, 0 or 1. Every "
            "step before the tip swings above the line costs 1, at most 500."
        ),
        observes=_each(
            "cosine of the first angle, which is 0 hanging down; sine of the first angle; "
            "cosine of the second angle, relative to the first link; sine of the second angle; "
            "angular velocity of the first joint; angular velocity of the second joint"
        ),
        acts=_each("torque -1 on the middle joint; no torque; torque 1 on the middle joint"),
    ),
    _published(
        "InvertedPendulum-v5",
        "inverted-pendulum",
        950.0,
        description=(
            "A pole stands on a cart on a rail. The position, the angle and both velocities are "
            "observed, and a force on the cart is set. Every step upright gives 1, at most 1000."
        ),
        observes=_each(
            "position of the cart; angle of the pole; velocity of the cart; angular velocity of "
            "the pole"
        ),
        acts=("force on the cart",),
    ),
    _published(
        "InvertedDoublePendulum-v5",
        "inverted-double-pendulum",
        9100.0,
        description=(
            "Two poles, one upon the other, stand on a cart. The position, the sines and "
            "cosines of the angles, the velocities and a constraint force are observed, and a "
            "force on the cart is set. Every step upright gives about 10."
        ),
        observes=_each(
            "position of the cart; sine of the lower pole's angle; sine of the angle between "
            "the poles; cosine of the lower pole's angle; cosine of the angle between the "
            "poles; velocity of the cart; angular velocity of the lower pole; angular velocity "
            "of the joint between the poles; constraint force on the cart"
        ),
        acts=("force on the cart",),
    ),
    _published(
        "Reacher-v5",
        "reacher",
        -6.0,
        description=(
            "A two-joint arm is to reach a random target. The cosines and sines of its angles, "
            "the target, the velocities and the distance are observed, and two torques are set. "
            "Every step costs the distance and the squared torques."
        ),
        observes=_each(
            "cosine of the first angle; cosine of the second angle; sine of the first angle; "
            "sine of the second angle; x of the target; y of the target; angular velocity of "
            "the first joint; angular velocity of the second joint; x of the fingertip less "
            "that of the target; y of the fingertip less that of the target"
        ),
        acts=("torque on the first joint", "torque on the second joint"),
    ),
    _published(
        "Hopper-v5",
        "hopper",
        1000.0,
        description=(
            "A one-legged robot is to hop to the right without falling. The height, angles and "
            "velocities of its body and joints are observed, and three torques are set. Every "
            "step upright gives 1 plus the speed less a small cost of the torques."
        ),
        observes=_each(
            "height of the torso; angle of the torso; angle of the thigh joint; angle of the "
            "leg joint; angle of the foot joint; velocity to the right; upward velocity; "
            "angular velocity of the torso; angular velocity of the thigh joint; angular "
            "velocity of the leg joint; angular velocity of the foot joint"
        ),
        acts=_each("torque on the thigh joint; torque on the leg joint; torque on the foot joint"),
    ),
    _published(
        "Walker2d-v5",
        "walker2d",
        1000.0,
        description=(
            "A two-legged robot in a plane is to walk to the right without falling. The height, "
            "angles and velocities are observed, and six torques are set. Every step upright "
            "gives 1 plus the speed less a small cost of the torques."
        ),
        observes=_each(
            "height of the torso; angle of the torso; angle of the right thigh; angle of the "
            "right leg; angle of the right foot; angle of the left thigh; angle of the left "
            "leg; angle of the left foot; velocity to the right; upward velocity; angular "
            "velocity of the torso; angular velocity of the right thigh; angular velocity of "
            "the right leg; angular velocity of the right foot; angular velocity of the left "
            "thigh; angular velocity of the left leg; angular velocity of the left foot"
        ),
        acts=_each(
            "torque on the right thigh; torque on the right leg; torque on the right foot; "
            "torque on the left thigh; torque on the left leg; torque on the left foot"
        ),
    ),
    _published(
        "HalfCheetah-v5",
        "halfcheetah",
        2000.0,
        description=(
            "A two-legged robot in a plane is to run to the right. The height, angles and "
            "velocities are observed, and six torques are set. The reward is the speed less a "
            "small cost of the torques."
        ),
        observes=_each(
            "height of the front tip; angle of the front tip; angle of the back thigh; angle of "
            "the back shin; angle of the back foot; angle of the front thigh; angle of the "
            "front shin; angle of the front foot; velocity to the right; upward velocity; "
            "angular velocity of the front tip; angular velocity of the back thigh; angular "
            "velocity of the back shin; angular velocity of the back foot; angular velocity of "
            "the front thigh; angular velocity of the front shin; angular velocity of the front "
            "foot"
        ),
        acts=_each(
            "torque on the back thigh; torque on the back shin; torque on the back foot; torque "
            "on the front thigh; torque on the front shin; torque on the front foot"
        ),
    ),
    _published(
        "FrozenLake-v1",
        "frozenlake",
        0.7,
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
        acts=_each("left; down; right; up"),
    ),
    _published(
        "CliffWalking-v1",
        "cliffwalking",
        -13.0,
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
        acts=_each("up; right; down; left"),
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
