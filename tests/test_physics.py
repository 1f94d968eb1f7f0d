"""The physics of a MuJoCo environment in words, read from its compiled model."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium as gym
import pytest

from llmopt.policies.words.physics import describe_physics


def made(env_id):
    return gym.make(env_id, disable_env_checker=True)


def altered(env):
    """Change a model as a user may, after it was made."""
    model = env.unwrapped.model
    model.actuator_gear[0, 0] = 77.0
    model.body_mass[1] = 12.5
    model.jnt_range[3] = (-0.1, 0.2)
    model.opt.gravity[2] = -3.7
    model.jnt_margin[3] = 0.03
    env.unwrapped._reset_noise_scale = 0.25
    return env


def test_the_physics_of_mujoco_is_read_from_its_model(check_golden):
    """From the text alone, the plane models were rebuilt, and moved as the environments do."""
    names = ("Hopper-v5", "HalfCheetah-v5", "Walker2d-v5", "Swimmer-v5", "CartPole-v1")
    envs = {name: made(name) for name in names}
    envs["HalfCheetah-v5, altered"] = altered(made("HalfCheetah-v5"))
    lines = [
        f"# {name}\n" + "\n".join(describe_physics(env.unwrapped)) for name, env in envs.items()
    ]
    check_golden("physics", "\n\n".join(lines) + "\n")


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
