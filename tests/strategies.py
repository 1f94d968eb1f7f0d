"""Hypothesis strategies that several test files share."""

import os
from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from llmopt.space import Categorical, Float, Int, Space


def examples(count: int, **options: Any) -> settings:
    """Return how often a property is tried: ``LLMOPT_EXAMPLES`` times `count` in `.ci/sweeps`."""
    times = int(os.environ.get("LLMOPT_EXAMPLES", "1"))
    return settings(max_examples=count * times, deadline=None, **options)


shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=3)
units = st.sampled_from(["", "°C", "h", "mol %", "µL", "eq.", "mol·L⁻¹", "m²"])
words = st.text("abcXYZ _09", min_size=1, max_size=5).map(str.strip).filter(bool)


@st.composite
def floats_dimensions(draw):
    kind = draw(st.sampled_from(["linear", "log", "step", "fixed"]))
    if kind == "log":
        low, high = sorted(draw(st.tuples(*[st.floats(1e-12, 1e12)] * 2)))
        return Float(low, high, log=True)
    bounds = st.one_of(st.floats(-1e12, 1e12), st.floats(-10, 10), st.integers(-20, 20))
    low, high = sorted(draw(st.tuples(bounds, bounds)))
    if kind == "fixed":
        return Float(low, low)
    if kind == "step":
        steps = draw(st.integers(1, 1000))
        step = draw(st.sampled_from([0.001, 0.1, 0.25, 1 / 3, 2.0, 7.5]))
        low = draw(st.sampled_from([-3.3, -1.0, 0.0, 0.1, 5.0]))
        return Float(low, low + steps * step, step=step)
    return Float(low, high, unit=draw(units))


@st.composite
def int_dimensions(draw):
    if draw(st.booleans()):
        low, high = sorted(draw(st.tuples(*[st.integers(1, 10**9)] * 2)))
        return Int(low, high, log=True)
    low, high = sorted(draw(st.tuples(*[st.integers(-(2**63), 2**63)] * 2)))
    step = draw(st.integers(1, 7))
    return Int(low, high - (high - low) % step, step=step, unit=draw(units))


hashables = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(allow_nan=True),
    st.text(max_size=6),
    st.tuples(st.integers(0, 2), st.text(max_size=2)),
)


@st.composite
def categorical_dimensions(draw):
    return Categorical(
        draw(
            st.lists(
                hashables,
                min_size=1,
                max_size=6,
                unique_by=lambda c: (type(c), repr(c) if c else str(bool(c))),
            )
        )
    )


dimensions = st.one_of(floats_dimensions(), int_dimensions(), categorical_dimensions())
plain_spaces = st.builds(
    Space,
    st.dictionaries(words, dimensions, min_size=1, max_size=5),
    decimals=st.sampled_from([None, 0, 1, 3]),
)


@st.composite
def boxes(draw):
    dtype = np.dtype(draw(st.sampled_from(["f2", "f4", "f8", "i1", "u1", "i8", "u8", "i4", "?"])))
    shape = draw(shapes)
    if dtype.kind == "f":
        width = 8 * dtype.itemsize
        scale = 256 if width == 16 else draw(st.sampled_from([1.0, 256.0, 2.0**40]))
        elements = st.floats(-scale, scale, width=width, allow_subnormal=False)
    elif dtype.kind == "b":
        elements = st.booleans()
    else:
        info = np.iinfo(dtype)
        # Gymnasium itself cannot sample a Box that reaches beyond 2**63 - 2.
        elements = st.integers(int(info.min), min(int(info.max), 2**63 - 2))
    first = draw(hnp.arrays(dtype, shape, elements=elements))
    second = draw(hnp.arrays(dtype, shape, elements=elements))
    low, high = np.minimum(first, second), np.maximum(first, second)
    return spaces.Box(np.asarray(low, dtype), np.asarray(high, dtype), shape, dtype)


discretes = st.builds(
    lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-9, 9)
)


@st.composite
def multi_discretes(draw):
    shape = draw(hnp.array_shapes(max_dims=2, max_side=3))
    nvec = draw(hnp.arrays(np.int64, shape, elements=st.integers(1, 9)))
    start = draw(hnp.arrays(np.int64, shape, elements=st.integers(-9, 9)))
    return spaces.MultiDiscrete(nvec, start=start)


multi_binaries = st.builds(
    lambda shape: spaces.MultiBinary(list(shape)), hnp.array_shapes(max_dims=3, max_side=3)
)
leaves = st.one_of(boxes(), discretes, multi_discretes(), multi_binaries)
keys = st.text("abc", min_size=1, max_size=3)
gymnasium_spaces = st.one_of(
    leaves,
    st.dictionaries(keys, leaves, min_size=1, max_size=3).map(spaces.Dict),
)
any_spaces = st.one_of(plain_spaces, gymnasium_spaces.map(Space.of))
seeds = st.integers(0, 2**32 - 1)


@st.composite
def conditional_spaces(draw):
    dimensions = {}
    for i in range(draw(st.integers(1, 7))):
        when = None
        if dimensions and draw(st.booleans()):
            alternatives = []
            for _ in range(draw(st.integers(1, 2))):
                names = draw(st.sets(st.sampled_from(sorted(dimensions)), min_size=1, max_size=2))
                alternatives.append({n: draw(_tests(dimensions[n])) for n in sorted(names)})
            when = alternatives
        kind = draw(st.sampled_from("ifc"))
        if kind == "i":
            dimension = Int(1, draw(st.integers(2, 9)), log=draw(st.booleans()), when=when)
        elif kind == "f":
            dimension = Float(-1, 1, step=draw(st.sampled_from([None, 0.25])), when=when)
        else:
            dimension = Categorical(["a", "b", None, 2.5][: draw(st.integers(1, 4))], when=when)
        dimensions[f"p{i}"] = dimension
    order = draw(st.permutations(sorted(dimensions)))
    return Space({name: dimensions[name] for name in order})


def _tests(dimension):
    if isinstance(dimension, Categorical):
        return st.lists(st.sampled_from(dimension.choices), min_size=1, max_size=2)
    low, high = dimension.low, dimension.high
    signs = st.sampled_from([(">", low), ("<", high), (">=", high), ("<=", low), ("!=", low)])
    return signs
