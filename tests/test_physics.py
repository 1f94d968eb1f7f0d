"""The physics of a MuJoCo environment in words, read from its compiled model."""

from __future__ import annotations

import re
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

from llmopt.policies import describe_environment
from llmopt.policies.words.physics import describe_physics, touching


def made(env_id):
    return gym.make(env_id, disable_env_checker=True)


def test_the_physics_of_mujoco_is_read_from_its_model():
    assert describe_physics(made("Hopper-v5").unwrapped) == [
        "Physics, from the MuJoCo model: 4 × 0.002 s a step, gravity -9.81 m/s².",
        "Joints, with their stops: thigh_joint -2.62 to 0 rad; leg_joint -2.62 to 0 rad; "
        "foot_joint -0.785 to 0.785 rad; each damping 1 armature 1.",
        "A positive angle of rooty turns +z towards +x: what stands up leans to +x, what hangs "
        "down swings to -x.",
        "A positive angle of thigh_joint, leg_joint, foot_joint turns +z towards -x: what stands "
        "up leans to -x, what hangs down swings to +x.",
        "An action of 1 pushes, in the order of the actions: thigh_joint 200 N m; "
        "leg_joint 200 N m; foot_joint 200 N m.",
        "Bodies (capsules: length without the caps × radius): torso 3.67 kg (0.4 × 0.05 m); "
        "thigh 4.06 kg (0.45 × 0.05 m); leg 2.78 kg (0.5 × 0.04 m); foot 5.32 kg (0.39 × 0.06 m).",
    ]
    swimmer = "\n".join(describe_physics(made("Swimmer-v5").unwrapped))
    assert "a medium of density 4000 and viscosity 0.1" in swimmer
    assert describe_physics(made("CartPole-v1").unwrapped) == []
    names_alone = describe_environment(made("Hopper-v5"), docstring=False)
    assert "Physics" not in names_alone.text


@pytest.mark.parametrize(
    "env_id", ["Hopper-v5", "HalfCheetah-v5", "Swimmer-v5", "InvertedPendulum-v5", "Reacher-v5"]
)
def test_the_model_is_told_which_way_its_hinges_turn(env_id):
    """Each hinge is turned a little, and a point of the world fixed to its body is followed."""
    mujoco = pytest.importorskip("mujoco")
    model = made(env_id).unwrapped.model
    told = [line for line in describe_physics(made(env_id).unwrapped) if "positive" in line]
    data = mujoco.MjData(model)
    axes = {"x": 0, "y": 1, "z": 2}
    for joint in range(model.njnt):
        if model.jnt_type[joint] != 3:
            continue
        name = model.joint(joint).name
        (line,) = (t for t in told if "every hinge" in t or f"{name}," in t or f"{name} " in t)
        start, way, end = re.search(r"turns \+(.) towards (.)(.)", line).groups()
        point = np.zeros(3)
        point[axes[start]] = 1.0
        data.qpos[:] = model.qpos0
        mujoco.mj_forward(model, data)
        body = model.jnt_bodyid[joint]
        local = data.xmat[body].reshape(3, 3).T @ point
        data.qpos[model.jnt_qposadr[joint]] += 0.1
        mujoco.mj_forward(model, data)
        moved = data.xmat[body].reshape(3, 3) @ local - point
        assert moved[axes[end]] * {"+": 1, "-": -1}[way] == pytest.approx(np.sin(0.1))


def test_altered_physics_are_told_as_they_are():
    env = made("HalfCheetah-v5")
    model = env.unwrapped.model
    model.actuator_gear[0, 0] = 77.0
    model.body_mass[1] = 12.5
    model.jnt_range[3] = (-0.1, 0.2)
    model.opt.gravity[2] = -3.7
    text = "\n".join(describe_physics(env.unwrapped))
    for told in ("bthigh 77 N m", "torso 12.5 kg", "bthigh -0.1 to 0.2 rad", "gravity -3.7 m/s²"):
        assert told in text


def test_what_touches_the_ground_is_known_after_a_step():
    env = made("Walker2d-v5")
    env.reset(seed=0)
    seen = set()
    for _ in range(30):
        env.step(np.zeros(6))
        seen |= touching(env.unwrapped)
    assert seen
    assert seen <= {"foot", "foot_left"}
    assert touching(made("CartPole-v1").unwrapped) == frozenset()


def compiled(xml):
    """A model of MuJoCo after one step, in place of an environment."""
    mujoco = pytest.importorskip("mujoco")
    model = mujoco.MjModel.from_xml_string(f"<mujoco>{xml}</mujoco>")
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data)
    return SimpleNamespace(model=model, data=data, frame_skip=1)


SWING = "<geom size='.1' pos='1 0 0'/>"


@pytest.mark.parametrize(
    ("joint", "actuators", "said"),
    [
        ("<joint name='q'/>", "<position joint='q'/>", None),
        ("<joint name='q'/>", "<motor joint='q'/><position joint='q'/>", None),
        ("<freejoint name='q'/>", "<motor joint='q' gear='0 0 1 0 0 0'/>", None),
        ("<joint name='q' type='ball'/>", "<motor joint='q' gear='0 0 1'/>", None),
        ("<joint name='q'/>", "<motor joint='q' gear='5'/>", "q 5 N m."),
        (
            "<joint name='q'/>",
            "<motor joint='q' gear='5' forcelimited='true' forcerange='-0.5 0.5'/>",
            "q 2.5 N m.",
        ),
    ],
)
def test_what_an_action_pushes_is_said_where_it_is_known(joint, actuators, said):
    env = compiled(
        f"<worldbody><body name='b'>{joint}{SWING}</body></worldbody>"
        f"<actuator>{actuators}</actuator>"
    )
    text = "\n".join(describe_physics(env))
    assert "b 4.19 kg" in text
    if said is None:
        assert "pushes" not in text
    else:
        assert f"An action of 1 pushes, in the order of the actions: {said}" in text


def test_names_of_a_model_stay_in_their_line():
    env = compiled(
        "<worldbody><geom type='plane' size='9 9 1'/><body name='a&#10;b' pos='0 0 .05'>"
        "<joint name='q&#10;&#13;r' type='slide' axis='0 0 1' damping='1'/><geom size='.1'/></body>"
        "<body pos='5 0 9'><joint damping='2'/><geom size='.1' pos='1 0 0'/></body></worldbody>"
    )
    lines = describe_physics(env)
    assert not any("\n" in line or "\r" in line for line in lines)
    assert "q r no stops (damping 1); joint 1 no stops (damping 2)." in lines[1]
    assert lines[2] == "A positive angle of every hinge turns +x towards +y."
    assert "a b 4.19 kg" in lines[3]
    assert touching(env) == {"a b"}


def test_what_stands_on_a_table_touches_the_ground():
    env = compiled(
        "<worldbody><body name='table'><geom type='box' size='1 1 .1'/></body>"
        "<body name='ball' pos='0 0 .15'><freejoint/><geom size='.1'/></body></worldbody>"
    )
    assert touching(env) == {"ball"}
