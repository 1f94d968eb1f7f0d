"""Values that a sampler around this one sets in every trial, such as `PartialFixedSampler`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from copy import copy
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, PartialFixedSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from llmopt import from_optuna as stored

_PROBE = stored.PREFIX + "probe"  # a system attribute of a trial that no storage has


class _NotFixedError(Exception):
    """A value is not set by a sampler around this one."""


def refuse_probe(trial: FrozenTrial) -> None:
    """Raise an error if a sampler is asked only because the ones around it set no value."""
    if _PROBE in trial.system_attrs:
        raise _NotFixedError


def fixed_around(
    inner: BaseSampler,
    study: Study,
    trial: FrozenTrial,
    distributions: Mapping[str, BaseDistribution],
) -> dict[str, Any]:
    """Return the values that Optuna's `PartialFixedSampler` around a sampler sets, by name.

    It says them to nobody before the trial suggests them. So it is asked for each parameter, with
    a copy of the trial for which `refuse_probe` ends the call where it comes to the inner sampler.

    Args:
        inner: The sampler; it calls `refuse_probe` first in `sample_independent`.
        study: The study.
        trial: A running trial.
        distributions: The known parameters.
    """
    outer = study.sampler
    if outer is inner or not isinstance(outer, PartialFixedSampler):
        return {}
    probe, fixed = copy(trial), dict[str, Any]()
    probe.system_attrs = {**trial.system_attrs, _PROBE: True}
    for name, distribution in distributions.items():
        # A choice that the distribution lacks is an error of the trial itself.
        with contextlib.suppress(_NotFixedError, ValueError):
            fixed[name] = outer.sample_independent(study, probe, name, distribution)
    return fixed
