"""Describe the physics of a MuJoCo environment in a few lines, from its compiled model.

Unlike the docstring, the model is correct even if its file was altered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from llmopt.util.text import clean

MAX_PHYSICS = 4000
"""Maximum characters of the lines."""

_FREE, _BALL, _SLIDE, _HINGE = 0, 1, 2, 3  # of mjtJoint
_PLANE, _SPHERE, _CAPSULE, _CYLINDER = 0, 2, 3, 5  # of mjtGeom
_KINDS = {_FREE: "free", _BALL: "ball", _SLIDE: "slide", _HINGE: "hinge"}
_MOST_SEEN = 60  # with more observed numbers, their indices in the state are not listed
_JOINTS = "Joints, in the order of qpos and qvel, with axis and anchor in their body's frame: "
_BODIES = "Bodies in their parent's frame, with centre of mass and inertia about it in their own: "


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
        places = [names.get(float(v), ("other numbers", -1)) for v in seen]
        env.set_state(qpos, qvel * 1e6)
        largest = np.abs(np.ravel(env._get_obs()))[[kind == "qvel" for kind, _ in places]]
        env.set_state(*before)
    except Exception:
        return ""  # an environment without the expected methods
    if len(places) > _MOST_SEEN or all(place < 0 for _, place in places):
        return ""
    ranges: list[list[Any]] = []
    for kind, place in places:
        if ranges and ranges[-1][0] == kind and (place < 0 or place == ranges[-1][2]):
            ranges[-1][2] = place + 1
        else:
            ranges.append([kind, place, place + 1])
    items = [kind if start < 0 else f"{kind}[{start}:{end}]" for kind, start, end in ranges]
    clipped = len(largest) > 0 and np.ptp(largest) == 0 and largest[0] > 0
    limit = f"; qvel clipped to ±{largest[0]:g}" if clipped else ""
    return f"Observed, in this order: {', '.join(items)}{limit}."


def _lines(model: Any, skip: int) -> list[str]:
    sections: list[tuple[str, Iterable[str]]] = [
        ("", [_head(model, skip)]),
        (_JOINTS, _joints(model)),
        ("An action of 1 pushes, in the order of the actions: ", _motors(model)),
        (_BODIES, _bodies(model)),
        ("Geoms in their body's frame: ", _geoms(model)),
        ("", _contact(model)),
    ]
    lines: list[str] = []
    for head, items in sections:
        room = min(MAX_PHYSICS - sum(map(len, lines)), int(0.45 * MAX_PHYSICS))
        if not head:
            lines += [item for item in items if len(item) <= room]
            continue
        line, end = "", "."
        for item in items:
            if len(head) + len(line) + len(item) + 2 > room:
                end = "; …"
                break
            line += ("; " if line else "") + item
        lines += [f"{head}{line}{end}"] if line else []
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
        f"Physics, from the MuJoCo model: {step}, integrator {integrator}, "
        f"{cone} friction cone, {pull}."
    )


def _joints(model: Any) -> Iterable[str]:
    for i in range(model.njnt):
        kind, dof = int(model.jnt_type[i]), int(model.jnt_dofadr[i])
        item = f"{_joint(model, i)} {_KINDS[kind]} of {_body(model, int(model.jnt_bodyid[i]))}"
        if kind in (_SLIDE, _HINGE):
            item += f" axis {_vector(model.jnt_axis[i])}{_at(model.jnt_pos[i])}"
            low, high = (float(v) for v in model.jnt_range[i])
            unit = "m" if kind == _SLIDE else "rad"
            item += f" {low:.4g} to {high:.4g} {unit}" if model.jnt_limited[i] else ""
            rest = float(model.qpos0[int(model.jnt_qposadr[i])])
            item += f" zero at {rest:.4g}" if rest else ""
        extras = (
            ("damping", model.dof_damping[dof]),
            ("armature", model.dof_armature[dof]),
            ("spring", model.jnt_stiffness[i]),
            ("friction loss", model.dof_frictionloss[dof]),
        )
        yield item + "".join(f" {n} {float(v):.4g}" for n, v in extras if float(v))


def _motors(model: Any) -> Iterable[str]:
    # Unless all are motors, a list would not be in the order of the actions.
    for i in range(model.nu if all(_is_motor(model, i) for i in range(model.nu)) else 0):
        joint = int(model.actuator_trnid[i][0])
        force = float(model.actuator_gainprm[i][0])
        if model.actuator_forcelimited[i]:
            force = float(np.clip(force, *model.actuator_forcerange[i]))
        force *= float(model.actuator_gear[i][0])
        unit = "N" if int(model.jnt_type[joint]) == _SLIDE else "N m"
        yield f"{_joint(model, joint)} {force:.4g} {unit}"


def _is_motor(model: Any, i: int) -> bool:
    """Whether an actuator's force is its control times a constant, on a hinge or a slide."""
    # Zero is the fixed gain, no bias, the transmission to a joint, and no dynamics.
    kinds = model.actuator_gaintype, model.actuator_biastype, model.actuator_trntype
    if any(int(kind[i]) for kind in (*kinds, model.actuator_dyntype)):
        return False
    return int(model.jnt_type[model.actuator_trnid[i][0]]) in (_SLIDE, _HINGE)


def _bodies(model: Any) -> Iterable[str]:
    for i in range(1, model.nbody):
        mass, parent = float(model.body_mass[i]), int(model.body_parentid[i])
        if mass <= 0 and not model.body_dofnum[i]:
            continue
        on = f" on {_body(model, parent)}" if parent else ""
        place = f"{on}{_at(model.body_pos[i])}{_turned(model.body_quat[i])}"
        turn = _matrix(model.body_iquat[i])
        inertia = turn @ np.diag(model.body_inertia[i]) @ turn.T
        off, least = [inertia[0, 1], inertia[0, 2], inertia[1, 2]], 1e-6 * np.abs(inertia).max()
        text = f"{_body(model, i)}{place} {mass:.5g} kg{_at(model.body_ipos[i])}"
        text += f" inertia {_vector(np.diag(inertia))}"
        yield text + (f" xy, xz, yz {_vector(off)}" if np.abs(off).max() > least else "")


def _geoms(model: Any) -> Iterable[str]:
    import mujoco

    for i in range(model.ngeom):
        if not (model.geom_contype[i] or model.geom_conaffinity[i]):
            continue  # touches nothing
        kind, at, size = int(model.geom_type[i]), model.geom_pos[i], model.geom_size[i]
        name = mujoco.mjtGeom(kind).name.removeprefix("mjGEOM_").lower()
        text = f"{_body(model, int(model.geom_bodyid[i]))} {name}"
        if kind in (_CAPSULE, _CYLINDER):
            half = float(size[1]) * _matrix(model.geom_quat[i])[:, 2]
            ends = f"from {_vector(at - half)} to {_vector(at + half)}"
            text += f" radius {float(size[0]):.4g} {ends}"
        elif kind == _SPHERE:
            text += f" radius {float(size[0]):.4g} at {_vector(at)}"
        elif kind == _PLANE:
            text += f" through {_vector(at)}{_turned(model.geom_quat[i])}"
        else:
            text += f" half sizes {_vector(size)} at {_vector(at)}{_turned(model.geom_quat[i])}"
        yield f"{text} friction {float(model.geom_friction[i][0]):.4g}"


def _contact(model: Any) -> list[str]:
    """Describe the parameters of contacts and of stops, and which geoms can touch."""
    on = np.flatnonzero((model.geom_contype != 0) | (model.geom_conaffinity != 0))
    if not len(on):
        return []

    def values(prefix: str, names: Sequence[str], which: np.ndarray) -> str:
        tables = [(name, getattr(model, f"{prefix}_{name}")[which]) for name in names]
        return ", ".join(
            f"{name} {' or '.join(sorted({_numbers(np.atleast_1d(row)) for row in table}))}"
            for name, table in tables
        )

    contacts = values("geom", ("solref", "solimp", "condim", "margin"), on)
    text = f"Contacts (of two geoms the larger friction and condim count): {contacts}"
    limited = np.flatnonzero(model.jnt_limited)
    if len(limited):
        margin = ("margin",) if model.jnt_margin[limited].any() else ()
        text += f". Stops of joints: {values('jnt', ('solref', 'solimp', *margin), limited)}"
    moving = [int(i) for i in on if model.body_weldid[model.geom_bodyid[i]]]
    touch = "also" if any(_collide(model, a, b) for a in moving for b in moving) else "do not"
    return [f"{text}. Moving geoms {touch} touch each other."]


def _collide(model: Any, a: int, b: int) -> bool:
    one, other = int(model.geom_bodyid[a]), int(model.geom_bodyid[b])
    parents = model.body_parentid
    joined = one == other or other == int(parents[one]) or one == int(parents[other])
    return not joined and bool(int(model.geom_contype[a]) & int(model.geom_conaffinity[b]))


def _joint(model: Any, number: int) -> str:
    return _named(model.joint(number).name, f"joint {number}")


def _body(model: Any, number: int) -> str:
    return _named(model.body(number).name, f"body {number}")


def _named(name: str, unnamed: str) -> str:
    """Return a name in one line; `unnamed` if it is empty."""
    return clean(" ".join(name.split())) or unnamed


def _at(place: np.ndarray) -> str:
    return f" at {_vector(place)}" if np.abs(place).max() > 1e-9 else ""


def _vector(values: Any) -> str:
    return f"({_numbers(values, ', ')})"


def _numbers(values: Any, between: str = " ") -> str:
    return between.join(f"{0.0 if abs(float(v)) < 1e-9 else float(v):.5g}" for v in values)


def _matrix(quaternion: Any) -> np.ndarray:
    """Return the rotation matrix of a unit quaternion."""
    import mujoco

    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, np.asarray(quaternion, dtype=np.float64))
    return matrix.reshape(3, 3)


def _turned(quaternion: Any) -> str:
    return "" if abs(abs(float(quaternion[0])) - 1) < 1e-9 else f" quaternion {_vector(quaternion)}"
