"""The physics of a MuJoCo environment in a few lines, read from its compiled model.

The model is the truth also where its file was altered, which no docstring says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llmopt.util.text import clean

MAX_PHYSICS = 1400
"""Characters that the lines may take."""

_SLIDE, _HINGE = 2, 3  # of mjtJoint
_SPHERE, _CAPSULE, _CYLINDER = 2, 3, 5  # of mjtGeom
_NONE = 0  # of mjtBias, mjtGain (fixed) and mjtTrn (joint)


def describe_physics(env: Any) -> list[str]:
    """Return joints, motors and bodies of a MuJoCo model, a line for each kind.

    Nothing where an environment without its wrappers has no such model, or it cannot be read.
    """
    try:
        model = getattr(env, "model", None)
        if model is None or not hasattr(model, "jnt_range"):
            return []
        return _lines(model, int(getattr(env, "frame_skip", 1)))
    except Exception:
        return []  # some other thing of the same name


def touching(env: Any) -> frozenset[str]:
    """Return the bodies of a MuJoCo model that touch what does not move, such as the floor."""
    try:
        model, contact = env.model, env.data.contact
        if not env.data.ncon:
            return frozenset()
        owner = model.geom_bodyid
        pairs = zip(owner[contact.geom1].tolist(), owner[contact.geom2].tolist(), strict=True)
        # What has no joint on its way to the world is welded to it, such as a table.
        moves = (model.body_weldid != 0).tolist()
        bodies = {b for pair in pairs if moves[pair[0]] != moves[pair[1]] for b in pair if moves[b]}
        return frozenset(_name(model.body(b), "body", b) for b in bodies)
    except Exception:
        return frozenset()  # no MuJoCo


def _lines(model: Any, skip: int) -> list[str]:
    x, y, z = (float(g) for g in model.opt.gravity)
    pull = f"gravity {z:.4g} m/s²" if abs(x) + abs(y) < 0.01 else f"gravity ({x:g}, {y:g}, {z:g})"
    density, viscosity = float(model.opt.density), float(model.opt.viscosity)
    if density or viscosity:
        pull += f", a medium of density {density:.4g} and viscosity {viscosity:.3g}"
    step = f"{skip} × {float(model.opt.timestep):.4g} s a step"
    head = f"Physics, from the MuJoCo model: {step}, {pull}."
    moved = {int(model.actuator_trnid[i][0]) for i in range(model.nu) if _is_motor(model, i)}
    joints, more = [], []
    for i in range(model.njnt):
        kind, dof = int(model.jnt_type[i]), int(model.jnt_dofadr[i])
        if kind not in (_SLIDE, _HINGE):
            continue
        damping, spring = float(model.dof_damping[dof]), float(model.jnt_stiffness[i])
        limited = bool(model.jnt_limited[i])
        if not (limited or damping or spring or i in moved):
            continue
        low, high = (float(v) for v in model.jnt_range[i])
        unit = "m" if kind == _SLIDE else "rad"
        joints.append(
            _name(model.joint(i), "joint", i)
            + (f" {low:.3g} to {high:.3g} {unit}" if limited else " no stops")
        )
        extras = (("damping", damping), ("spring", spring), ("armature", model.dof_armature[dof]))
        more.append(" ".join(f"{name} {float(v):.3g}" for name, v in extras if v))
    same = len(set(more)) == 1
    items = [f"{j} ({m})" if m and not same else j for j, m in zip(joints, more, strict=True)]
    if same and more[0]:
        items.append(f"each {more[0]}")
    motors = []
    # Where one is no motor, a list of the others would not be in the order of the actions.
    for i in range(model.nu if all(_is_motor(model, i) for i in range(model.nu)) else 0):
        joint = int(model.actuator_trnid[i][0])
        force, (least, most) = float(model.actuator_gainprm[i][0]), model.actuator_forcerange[i]
        if model.actuator_forcelimited[i]:
            force = min(max(force, float(least)), float(most))
        force *= float(model.actuator_gear[i][0])
        unit = "N" if int(model.jnt_type[joint]) == _SLIDE else "N m"
        motors.append(f"{_name(model.joint(joint), 'joint', joint)} {force:.4g} {unit}")
    bodies = []
    for i in range(1, model.nbody):
        mass = float(model.body_mass[i])
        if mass > 0:
            bodies.append(f"{_name(model.body(i), 'body', i)} {mass:.3g} kg{_shape(model, i)}")
    return [
        head,
        *_fitted("Joints, with their stops: ", items),
        *_turns(model),
        *_fitted("An action of 1 pushes, in the order of the actions: ", motors),
        *_fitted("Bodies (capsules: length without the caps × radius): ", bodies),
    ]


def _turns(model: Any) -> list[str]:
    """Say which way the hinges turn, where all of them have the same axis of the world."""
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
    return texts if sum(map(len, texts)) <= MAX_PHYSICS // 3 else []


def _name(thing: Any, kind: str, number: int) -> str:
    """Return the name of a joint or body in one line; its number where it has none."""
    return clean(" ".join(thing.name.split())) or f"{kind} {number}"


def _is_motor(model: Any, i: int) -> bool:
    """Whether an actuator's force is its control times a constant, on a hinge or a slide."""
    kinds = model.actuator_gaintype[i], model.actuator_biastype[i], model.actuator_trntype[i]
    if any(int(kind) != _NONE for kind in kinds) or int(model.actuator_dyntype[i]) != _NONE:
        return False
    return int(model.jnt_type[model.actuator_trnid[i][0]]) in (_SLIDE, _HINGE)


def _shape(model: Any, body: int) -> str:
    sizes = []
    for i in range(model.ngeom):
        if int(model.geom_bodyid[i]) != body:
            continue
        radius, half = (float(v) for v in model.geom_size[i][:2])
        kind = int(model.geom_type[i])
        if kind in (_CAPSULE, _CYLINDER):
            sizes.append(f"{2 * half:.3g} × {radius:.3g} m")
        elif kind == _SPHERE:
            sizes.append(f"radius {radius:.3g} m")
    return f" ({', '.join(sizes)})" if 0 < len(sizes) <= 2 else ""


def _fitted(head: str, items: Sequence[str]) -> list[str]:
    """Return one line of as many items as there is room for."""
    line, room = "", MAX_PHYSICS // 3
    for item in items:
        if len(head) + len(line) + len(item) > room:
            return [f"{head}{line}; …"] if line else []
        line += ("; " if line else "") + item
    return [f"{head}{line}."] if line else []
