"""Optuna's distributions as an llmopt space, and parameters that occur together as groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial

from llmopt.errors import SpaceError
from llmopt.space import Categorical, Dimension, Float, Int, Space, Value

Distributions = dict[str, BaseDistribution]


def dimension(distribution: BaseDistribution) -> Dimension:
    """Return the llmopt dimension of a distribution.

    Raises:
        SpaceError: A model cannot be asked for it: its range is too wide for a float,
            two choices are the same, or its type is not known.
    """
    if isinstance(distribution, FloatDistribution):
        return Float(
            distribution.low, distribution.high, log=distribution.log, step=distribution.step
        )
    if isinstance(distribution, IntDistribution):
        return Int(
            distribution.low, distribution.high, log=distribution.log, step=distribution.step
        )
    if isinstance(distribution, CategoricalDistribution):
        return Categorical(tuple(_hashable(c) for c in distribution.choices))
    raise SpaceError(
        f"{type(distribution).__name__} is not known; expected a FloatDistribution, "
        "IntDistribution or CategoricalDistribution"
    )


def _hashable(choice: Any) -> Any:
    """Return the choice, or the text that stands for it where it cannot be hashed."""
    try:
        hash(choice)
    except TypeError:
        return repr(choice)
    return choice


def trouble_with(name: str, distribution: BaseDistribution) -> str:
    """Return why a model cannot be asked for this parameter; empty if it can."""
    try:
        Space({name: dimension(distribution)})
    except SpaceError as error:
        return str(error)
    return ""


class ParameterGroup:
    """Parameters that are proposed together, as a space.

    Args:
        distributions: Their distributions; `Space` has them in this order.
    """

    def __init__(self, distributions: Mapping[str, BaseDistribution]) -> None:
        self.distributions = dict(distributions)
        self.space = Space({n: dimension(d) for n, d in self.distributions.items()})

    def flatten(self, params: Mapping[str, Any]) -> tuple[Value, ...]:
        """Return a trial's parameters as a flat point.

        Raises:
            KeyError: The trial lacks a parameter.
            ValueError: A parameter is not in its (present) range or not among its choices.
        """
        values = []
        for (name, distribution), own in zip(
            self.distributions.items(), self.space.dimensions, strict=True
        ):
            value = params[name]
            if isinstance(own, Categorical):
                value = own.choices[int(distribution.to_internal_repr(value))]
            values.append(value)
        return self.space.check(values)

    def params(self, values: tuple[Value, ...]) -> dict[str, Any]:
        """Return a flat point as parameters in Optuna's form."""
        stored = self.space.to_json_values(values)
        return {
            name: d.to_external_repr(v) if isinstance(d, CategoricalDistribution) else v
            for (name, d), v in zip(self.distributions.items(), stored, strict=True)
        }


@dataclass(frozen=True)
class Decomposition:
    """The parameters of a study by their occurrence in its finished trials.

    Attributes:
        latest: Each parameter's distribution in the latest trial that has it, by name.
        shapes: The sets of names that occurred as one whole trial, single-valued
            parameters left out.
        base: Those that every trial has.
    """

    latest: Distributions
    shapes: frozenset[frozenset[str]]
    base: Distributions

    def group_of(self, name: str) -> Distributions:
        """Return the parameters that occur in the very trials in which this one does."""
        if name not in self.latest:
            return {}
        having = [shape for shape in self.shapes if name in shape]
        without = [shape for shape in self.shapes if name not in shape]
        together = frozenset.intersection(*having).difference(*without) if having else frozenset()
        return {n: d for n, d in self.latest.items() if n in together}


def decompose(trials: Iterable[FrozenTrial]) -> Decomposition:
    """Find which parameters occur together in finished trials.

    The result does not depend on the order in which a storage keeps a trial's parameters,
    which the gRPC proxy does not keep at all: names are sorted.

    Args:
        trials: Complete and pruned trials, by number.
    """
    latest: Distributions = {}
    raw_shapes: dict[frozenset[str], None] = {}
    for trial in trials:
        distributions = trial.distributions
        latest.update(distributions)
        raw_shapes[frozenset(distributions)] = None
    latest = {n: latest[n] for n in sorted(latest) if not latest[n].single()}
    shapes = frozenset(shape.intersection(latest) for shape in raw_shapes) - {frozenset()}
    common = frozenset.intersection(*shapes) if shapes else frozenset()
    return Decomposition(latest, shapes, {n: d for n, d in latest.items() if n in common})
