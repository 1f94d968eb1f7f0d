"""Describe the physics of a MuJoCo environment in a few lines, from its compiled model.

Unlike the docstring, the model is correct even if its file was altered.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from llmopt.util.text import clean

MAX_PHYSICS = 4000
"""Maximum characters of the lines."""

_FREE, _BALL, _SLIDE, _HINGE = 0, 1, 2, 3  # of mjtJoint
_PLANE, _SPHERE, _CAPSULE, _CYLINDER = 0, 2, 3, 5  # of mjtGeom
_MOST_SEEN = 60  # with more observed numbers, their indices in the state are not listed
_JOINTS = "Joints, in the order of qpos and qvel, with axis and anchor in their body's frame: "
_BODIES = "Bodies in their parent's frame, with centre of mass and inertia about it in their own: "
_NONE = 0  # of mjtBias, mjtGain (fixed) and mjtTrn (joint)


def describe_physics(env: Any) -> list[str]:
    """Return the facts a simulation needs: joints, motors, bodies, geoms, contacts.

    Empty if the unwrapped environment has no MuJoCo model, or it cannot be read.
    """
    try:
        model = getattr(env, "model", None)
        if model is None or not hasattr(model, "jnt_range"):
            return []
        seen = observed_state(env)
        lines = _lines(model, int(getattr(env, "frame_skip", 1)))
        noise = getattr(env, "_reset_noise_scale", None)
        if isinstance(noise, int | float):  # the docstring has its name alone
            lines.append(f"Initial states: reset_noise_scale is {noise:.4g}.")
        return [*lines, *([seen] if seen else [])]
    except Exception:
        return []  # an attribute of the same name that is no MuJoCo model


def touching(env: Any) -> frozenset[str]:
    """Return the bodies of a MuJoCo model that touch a fixed object, such as the floor."""
    try:
        model, contact = env.model, env.data.contact
        if not env.data.ncon:
            return frozenset()
        owner = model.geom_bodyid
        pairs = zip(owner[contact.geom1].tolist(), owner[contact.geom2].tolist(), strict=True)
        # A body without a joint between it and the world is fixed, such as a table.
        moves = (model.body_weldid != 0).tolist()
        bodies = {b for pair in pairs if moves[pair[0]] != moves[pair[1]] for b in pair if moves[b]}
        return frozenset(_name(model.body(b), "body", b) for b in bodies)
    except Exception:
        return frozenset()  # no MuJoCo


def observed_state(env: Any) -> str:
    """List the observed entries of qpos and qvel, in their order; empty if there are none.

    `env` has no wrappers; its state is restored.
    """
    try:
        model, data = env.model, env.data
        before = data.qpos.copy(), data.qvel.copy()
        rng = np.random.default_rng(0)
        qpos = np.array(model.qpos0) + rng.uniform(-0.1, 0.1, model.nq)
        qvel = rng.uniform(-0.1, 0.1, model.nv)
        env.set_state(qpos, qvel)
        seen = np.ravel(env._get_obs()).astype(float)
        names = {float(v): ("qpos", i) for i, v in enumerate(data.qpos)}
        names |= {float(v): ("qvel", i) for i, v in enumerate(data.qvel)}
        found = [names.get(float(v)) for v in seen]
        if len(found) > _MOST_SEEN or not any(found):
            return ""
        env.set_state(qpos, qvel * 1e6)
        largest = np.abs(np.ravel(env._get_obs()))[
            [f is not None and f[0] == "qvel" for f in found]
        ]
        limit = float(largest.max()) if len(largest) and np.ptp(largest) == 0 else 0.0
        env.set_state(*before)
    except Exception:
        return ""  # an environment without the expected methods
    ranges: list[list[Any]] = []
    for entry in found:
        kind, place = entry or ("other numbers", -1)
        last = ranges[-1] if ranges else None
        if last and last[0] == kind and (entry is None or place == last[2]):
            last[2] = place + 1
        else:
            ranges.append([kind, place, place + 1])
    items = [kind if start < 0 else f"{kind}[{start}:{end}]" for kind, start, end in ranges]
    clipped = f"; qvel clipped to ±{limit:g}" if limit else ""
    return f"Observed, in this order: {', '.join(items)}{clipped}."


def _lines(model: Any, skip: int) -> list[str]:
    sections = [
        ("", [_head(model, skip)]),
        (_JOINTS, _joints(model)),
        ("", _turns(model)),
        ("An action of 1 pushes, in the order of the actions: ", _motors(model)),
        (_BODIES, _bodies(model)),
        ("Geoms in their body's frame: ", _geoms(model)),
        ("", _contact(model)),
    ]
    lines: list[str] = []
    for head, items in sections:
        room = min(MAX_PHYSICS - sum(map(len, lines)), int(0.45 * MAX_PHYSICS))
        lines += _fitted(head, items, room) if head else [i for i in items if len(i) <= room]
    return lines


def _head(model: Any, skip: int) -> str:
    import mujoco

    x, y, z = (float(g) for g in model.opt.gravity)
    pull = f"gravity {z:.4g} m/s²" if abs(x) + abs(y) < 0.01 else f"gravity ({x:g}, {y:g}, {z:g})"
    density, viscosity = float(model.opt.density), float(model.opt.viscosity)
    if density or viscosity:
        pull += f", a medium of density {density:.4g} and viscosity {viscosity:.3g}"
    step = f"{skip} × {float(model.opt.timestep):.4g} s a step"
    integrator = mujoco.mjtIntegrator(model.opt.integrator).name.removeprefix("mjINT_")
    cone = mujoco.mjtCone(model.opt.cone).name.removeprefix("mjCONE_").lower()
    return (
        f"Physics, from the MuJoCo model: {step}, integrator {integrator}, {cone} friction cone, "
        f"{pull}."
    )


def _joints(model: Any) -> list[str]:
    items = []
    kinds = {_FREE: "free", _BALL: "ball", _SLIDE: "slide", _HINGE: "hinge"}
    for i in range(model.njnt):
        kind, dof = int(model.jnt_type[i]), int(model.jnt_dofadr[i])
        body = _name(model.body(int(model.jnt_bodyid[i])), "body", int(model.jnt_bodyid[i]))
        item = f"{_name(model.joint(i), 'joint', i)} {kinds[kind]} of {body}"
        if kind in (_SLIDE, _HINGE):
            item += f" axis {_vector(model.jnt_axis[i])}"
            item += f" at {_vector(model.jnt_pos[i])}" if model.jnt_pos[i].any() else ""
            unit = "m" if kind == _SLIDE else "rad"
            low, high = (float(v) for v in model.jnt_range[i])
            item += f" {low:.4g} to {high:.4g} {unit}" if model.jnt_limited[i] else ""
            rest = float(model.qpos0[int(model.jnt_qposadr[i])])
            item += f" zero at {rest:.4g}" if rest else ""
        extras = (
            ("damping", model.dof_damping[dof]),
            ("armature", model.dof_armature[dof]),
            ("spring", model.jnt_stiffness[i]),
            ("friction loss", model.dof_frictionloss[dof]),
        )
        items.append(item + "".join(f" {n} {float(v):.4g}" for n, v in extras if float(v)))
    return items


def _motors(model: Any) -> list[str]:
    motors = []
    # Unless all are motors, a list would not be in the order of the actions.
    for i in range(model.nu if all(_is_motor(model, i) for i in range(model.nu)) else 0):
        joint = int(model.actuator_trnid[i][0])
        force, (least, most) = float(model.actuator_gainprm[i][0]), model.actuator_forcerange[i]
        if model.actuator_forcelimited[i]:
            force = min(max(force, float(least)), float(most))
        force *= float(model.actuator_gear[i][0])
        unit = "N" if int(model.jnt_type[joint]) == _SLIDE else "N m"
        motors.append(f"{_name(model.joint(joint), 'joint', joint)} {force:.4g} {unit}")
    return motors


def _bodies(model: Any) -> list[str]:
    bodies = []
    for i in range(1, model.nbody):
        mass, parent = float(model.body_mass[i]), int(model.body_parentid[i])
        if mass <= 0 and not model.body_dofnum[i]:
            continue
        at = f" on {_name(model.body(parent), 'body', parent)}" if parent else ""
        at += f" at {_vector(model.body_pos[i])}" if model.body_pos[i].any() else ""
        at += _turned(model.body_quat[i])
        inertia = _matrix(model.body_iquat[i])
        inertia = inertia @ np.diag(model.body_inertia[i]) @ inertia.T
        off = [inertia[0, 1], inertia[0, 2], inertia[1, 2]]
        text = f"{_name(model.body(i), 'body', i)}{at} {mass:.5g} kg"
        text += (
            f" at {_vector(model.body_ipos[i])}" if np.abs(model.body_ipos[i]).max() > 1e-9 else ""
        )
        text += f" inertia {_vector(np.diag(inertia))}"
        if np.abs(off).max() > 1e-6 * np.abs(inertia).max():
            text += f" xy, xz, yz {_vector(off)}"
        bodies.append(text)
    return bodies


def _geoms(model: Any) -> list[str]:
    import mujoco

    items = []
    for i in range(model.ngeom):
        body, kind = int(model.geom_bodyid[i]), int(model.geom_type[i])
        if not (model.geom_contype[i] or model.geom_conaffinity[i]):
            continue  # it touches nothing, and the masses are listed with the bodies
        name = mujoco.mjtGeom(kind).name.removeprefix("mjGEOM_").lower()
        size, at = model.geom_size[i], model.geom_pos[i]
        text = f"{_name(model.body(body), 'body', body)} {name}"
        if kind in (_CAPSULE, _CYLINDER):
            half = float(size[1]) * _matrix(model.geom_quat[i])[:, 2]
            text += (
                f" radius {float(size[0]):.4g} from {_vector(at - half)} to {_vector(at + half)}"
            )
        elif kind == _SPHERE:
            text += f" radius {float(size[0]):.4g} at {_vector(at)}"
        elif kind == _PLANE:
            text += f" through {_vector(at)}{_turned(model.geom_quat[i])}"
        else:
            text += f" half sizes {_vector(size)} at {_vector(at)}{_turned(model.geom_quat[i])}"
        items.append(f"{text} friction {float(model.geom_friction[i][0]):.4g}")
    return items


def _contact(model: Any) -> list[str]:
    """Describe the parameters of contacts and of stops, and which geoms can touch."""
    on = np.flatnonzero((model.geom_contype != 0) | (model.geom_conaffinity != 0))
    if not len(on):
        return []
    parts = [
        f"{name} {' or '.join(sorted({_numbers(np.atleast_1d(values[i])) for i in on}))}"
        for name, values in (
            ("solref", model.geom_solref),
            ("solimp", model.geom_solimp),
            ("condim", model.geom_condim),
            ("margin", model.geom_margin),
        )
    ]
    limited = np.flatnonzero(model.jnt_limited)
    stops = [
        f"{name} {' or '.join(sorted({_numbers(np.atleast_1d(values[i])) for i in limited}))}"
        for name, values in (
            ("solref", model.jnt_solref),
            ("solimp", model.jnt_solimp),
            ("margin", model.jnt_margin),
        )
        if name != "margin" or values[limited].any()
    ]
    counts = f"the larger friction and condim{' and the sum of the margins' * _adds_margins()}"
    text = f"Contacts (of two geoms {counts} count): {', '.join(parts)}"
    text += f". Stops of joints: {', '.join(stops)}" if len(limited) else ""
    moving = [int(i) for i in on if model.body_weldid[model.geom_bodyid[i]]]
    return [
        f"{text}. Moving geoms {'also' if _collide(model, moving) else 'do not'} touch each other."
    ]


@cache
def _adds_margins() -> bool:
    """Whether this version of MuJoCo adds the margins of two geoms; else the larger applies."""
    import mujoco

    ball = '<geom type="sphere" size="1" margin="0.1"/>'
    two = f'<body>{ball}<freejoint/></body><body pos="2 0 0">{ball}<freejoint/></body>'
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{two}</worldbody></mujoco>")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return bool(data.ncon and data.contact[0].includemargin > 0.15)


def _collide(model: Any, geoms: Sequence[int]) -> bool:
    for a in geoms:
        for b in geoms:
            one, other = int(model.geom_bodyid[a]), int(model.geom_bodyid[b])
            joined = one == other or other == int(model.body_parentid[one])
            joined = joined or one == int(model.body_parentid[other])
            if not joined and int(model.geom_contype[a]) & int(model.geom_conaffinity[b]):
                return True
    return False


def _turns(model: Any) -> list[str]:
    """Describe which way the hinges turn, if all have the same axis in the world frame."""
    import mujoco

    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    hinges = [i for i in range(model.njnt) if int(model.jnt_type[i]) == _HINGE]
    if not hinges or any(int(kind) not in (_SLIDE, _HINGE) for kind in model.jnt_type):
        return []
    axis = int(np.abs(data.xaxis[hinges[0]]).argmax())
    if (np.abs(data.xaxis[hinges, axis]) < 0.999).any():
        return []
    # A right-handed turn about x takes z to -y, one about y takes z to x, one about z x to y.
    start, end, sign = (("z", "y", -1), ("z", "x", 1), ("x", "y", 1))[axis]
    texts = []
    for way in (1, -1):
        names = [_name(model.joint(i), "joint", i) for i in hinges if way * data.xaxis[i, axis] > 0]
        if not names:
            continue
        which = "every hinge" if len(names) == len(hinges) else ", ".join(names)
        there, back = ("+", "-") if way * sign > 0 else ("-", "+")
        text = f"A positive angle of {which} turns +{start} towards {there}{end}"
        if start == "z":
            text += f": what stands up leans to {there}{end}, what hangs down swings to {back}{end}"
        texts.append(f"{text}.")
    return texts if sum(map(len, texts)) <= MAX_PHYSICS // 8 else []


def _name(thing: Any, kind: str, number: int) -> str:
    """Return the name of a joint or body in one line; its number if it has no name."""
    return clean(" ".join(thing.name.split())) or f"{kind} {number}"


def _is_motor(model: Any, i: int) -> bool:
    """Whether an actuator's force is its control times a constant, on a hinge or a slide."""
    kinds = model.actuator_gaintype[i], model.actuator_biastype[i], model.actuator_trntype[i]
    if any(int(kind) != _NONE for kind in kinds) or int(model.actuator_dyntype[i]) != _NONE:
        return False
    return int(model.jnt_type[model.actuator_trnid[i][0]]) in (_SLIDE, _HINGE)


def _vector(values: Any) -> str:
    return f"({_numbers(values, ', ')})"


def _numbers(values: Any, between: str = " ") -> str:
    return between.join(f"{0.0 if abs(float(v)) < 1e-9 else float(v):.5g}" for v in values)


def _matrix(quaternion: Any) -> np.ndarray:
    """Return the rotation matrix of a unit quaternion."""
    w, x, y, z = (float(v) for v in quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def _turned(quaternion: Any) -> str:
    return "" if abs(abs(float(quaternion[0])) - 1) < 1e-9 else f" quaternion {_vector(quaternion)}"


def _fitted(head: str, items: Sequence[str], room: int) -> list[str]:
    """Return one line with as many items as fit."""
    line = ""
    for item in items:
        if len(head) + len(line) + len(item) + 2 > room:
            return [f"{head}{line}; …"] if line else []
        line += ("; " if line else "") + item
    return [f"{head}{line}."] if line else []
