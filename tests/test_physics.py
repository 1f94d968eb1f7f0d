"""The physics of a MuJoCo environment in words, read from its compiled model."""

from __future__ import annotations

import re
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

from llmopt.policies.words.physics import describe_physics


def made(env_id):
    return gym.make(env_id, disable_env_checker=True)


def test_the_physics_of_mujoco_is_read_from_its_model():
    text = "\n".join(describe_physics(made("Hopper-v5").unwrapped))
    for said in (
        "4 × 0.002 s a step, integrator RK4, pyramidal friction cone, gravity -9.81 m/s².",
        "foot_joint hinge of foot axis (0, -1, 0) at (-0.13, 0, 0.1) -0.7854 to 0.7854 rad "
        "damping 1 armature 1.",
        "An action of 1 pushes, in the order of the actions: thigh_joint 200 N m; "
        "leg_joint 200 N m; foot_joint 200 N m.",
        "thigh on torso at (0, 0, -0.2) 4.0579 kg at (0, 0, -0.225) inertia (0.093299, 0.093299, ",
        "foot capsule radius 0.06 from (0.13, 0, 0.1) to (-0.26, 0, 0.1) friction 2.",
        "solref 0.02 1, solimp 0.8 0.8 0.01 0.5 2, condim 1 or 3, margin 0.001.",
        "Observed, in this order: qpos[1:6], qvel[0:6]; qvel clipped to ±10.",
        "Initial states: reset_noise_scale is 0.005.",
    ):
        assert said.replace("(0.093299, 0.093299, ", "(0.093299, 0.093299, ") in text
    swimmer = "\n".join(describe_physics(made("Swimmer-v5").unwrapped))
    assert "a medium of density 4000 and viscosity 0.1" in swimmer
    assert describe_physics(made("CartPole-v1").unwrapped) == []


V = r"\(([-\d., e]+)\)"


def rebuilt(lines):
    """MuJoCo's XML of a plane model, from its description alone."""
    head, joints, bodies, geoms, contact = (
        next(line for line in lines if line.startswith(start))
        for start in ("Physics", "Joints", "Bodies", "Geoms", "Contacts")
    )
    motors = next(line for line in lines if line.startswith("An action"))
    inside: dict[str, list[str]] = {"world": []}
    parents = {}

    def plain(vector):
        return vector.replace(",", "")

    for name, parent, at, mass, centre, inertia, off in re.findall(
        rf"(\w+)(?: on (\w+))?(?: at {V})? ([\d.]+) kg(?: at {V})? inertia {V}"
        rf"(?: xy, xz, yz {V})?",
        bodies,
    ):
        parents[name] = (parent or "world", plain(at or "0, 0, 0"))
        full = f"{plain(inertia)} {plain(off or '0, 0, 0')}"
        inside[name] = [
            f"<inertial mass='{mass}' pos='{plain(centre or '0, 0, 0')}' fullinertia='{full}'/>"
        ]
    ref, imp = re.search(r"solref ([\d. ]+), solimp ([\d. ]+), condim", contact).groups()
    stop, stop_imp = re.search(r"joints: solref ([\d. ]+), solimp ([\d. ]+)\.", contact).groups()
    for name, kind, body, rest in re.findall(r"(\w+) (hinge|slide) of (\w+) ([^;]+)", joints):
        found = {"axis": plain(re.search(rf"axis {V}", rest)[1])}
        found |= {"pos": plain(m[1])} if (m := re.search(rf" at {V}", rest)) else {}
        if m := re.search(r"([-\d.]+) to ([-\d.]+) (?:rad|m)", rest):
            found |= {"range": f"{m[1]} {m[2]}", "limited": "true"}
        for said, key in (("damping", "damping"), ("armature", "armature"), ("spring", "stiffness"),
                          ("zero at", "ref")):  # fmt: skip
            if m := re.search(rf"{said} ([-\d.]*\d)", rest):
                found[key] = m[1]
        text = " ".join(f"{key}='{value}'" for key, value in found.items())
        inside[body].append(
            f"<joint name='{name}' type='{kind}' solreflimit='{stop}' solimplimit='{stop_imp}' "
            f"{text}/>"
        )
    margin = re.search(r"margin ([\d.]+\d|0)", contact)[1]
    common = f"solref='{ref}' solimp='{imp}' condim='3' margin='{margin}' "
    also = "also touch" in contact
    for body, radius, start, end, friction in re.findall(
        rf"(\w+) capsule radius ([\d.]+) from {V} to {V} friction ([\d.]+\d|\d)", geoms
    ):
        inside[body].append(
            f"<geom type='capsule' size='{radius}' fromto='{plain(start)} {plain(end)}' {common} "
            f"friction='{friction} 0 0' contype='1' conaffinity='{int(also)}'/>"
        )
    friction = re.search(r"world plane [^;]*friction ([\d.]+\d|\d)", geoms)[1]
    inside["world"].append(
        f"<geom type='plane' size='40 40 40' {common} friction='{friction} 0 0'/>"
    )

    def element(name):
        below = (child for child, (parent, _) in parents.items() if parent == name)
        content = "".join(inside[name]) + "".join(map(element, below))
        at = "" if name == "world" else f"<body name='{name}' pos='{parents[name][1]}'>"
        return f"{at}{content}</body>" if at else content

    step = re.search(r"× ([\d.]+) s a step, integrator (\w+)", head)
    integrator = {"EULER": "Euler"}.get(step[2], step[2])
    gears = re.findall(r"(\w+) (\d+) N m", motors)
    actuators = "".join(f"<motor joint='{joint}' gear='{gear}'/>" for joint, gear in gears)
    return (
        f"<mujoco><compiler angle='radian' autolimits='false'/><option timestep='{step[1]}' "
        f"integrator='{integrator}'/><worldbody>{element('world')}</worldbody>"
        f"<actuator>{actuators}</actuator></mujoco>"
    )


@pytest.mark.parametrize("env_id", ["Hopper-v5", "HalfCheetah-v5", "Walker2d-v5"])
def test_a_simulation_can_be_built_from_the_description_alone(env_id):
    """It falls onto the floor, pushes with its motors, and agrees with the environment."""
    mujoco = pytest.importorskip("mujoco")
    env = made(env_id)
    env.reset(seed=0)
    base = env.unwrapped
    lines = describe_physics(base)
    assert sum(map(len, lines)) < 4000
    model = mujoco.MjModel.from_xml_string(rebuilt(lines))
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = base.data.qpos, base.data.qvel
    rng, touched = np.random.default_rng(1), False
    for _ in range(40):
        action = rng.uniform(-0.5, 0.5, model.nu)
        env.step(action.astype(np.float32))
        touched |= base.data.ncon > 0
        data.ctrl[:] = action.astype(np.float32)
        mujoco.mj_step(model, data, nstep=base.frame_skip)
    assert touched
    assert data.qpos == pytest.approx(base.data.qpos, abs=5e-3)
    assert data.qvel == pytest.approx(base.data.qvel, abs=0.2)


def test_altered_physics_are_told_as_they_are():
    env = made("HalfCheetah-v5")
    model = env.unwrapped.model
    model.actuator_gear[0, 0] = 77.0
    model.body_mass[1] = 12.5
    model.jnt_range[3] = (-0.1, 0.2)
    model.opt.gravity[2] = -3.7
    model.jnt_margin[3] = 0.03
    env.unwrapped._reset_noise_scale = 0.25
    text = "\n".join(describe_physics(env.unwrapped))
    for told in (
        "bthigh 77 N m",
        "torso at (0, 0, 0.7) 12.5 kg",
        "axis (0, 1, 0) -0.1 to 0.2 rad",
        "gravity -3.7 m/s²",
        "Stops of joints: solref 0.02 1, solimp 0 0.8 0.03 0.5 2, margin 0 or 0.03.",
        "reset_noise_scale is 0.25.",
    ):
        assert told in text


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
    assert "b 4.1888 kg" in text
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
    assert "q r slide of a b axis (0, 0, 1) damping 1; joint 1 hinge of body 2 " in lines[1]
    assert "a b at (0, 0, 0.05) 4.1888 kg" in lines[2]
