"""Which parameters matter, by the evaluators of Optuna, through a study made in memory."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from llmopt.errors import LLMOptError, needs
from llmopt.report.data import SearchData
from llmopt.report.scales import finite
from llmopt.space.values import stable_repr
from llmopt.util.text import cut

LEAST_TRIALS = 20
"""Complete trials below which an importance would be chance."""

_MOST_TRIALS = 1000  # that the evaluators are given, evenly spread
_MOST_FOR_TREES = 300  # that fANOVA is given: its trees take seconds
_SEED = 0
_NAME, _MOST_NAMES = 40, 8  # characters of a name, and names that are stated


def importance(data: SearchData, objective: int = 0) -> dict[str, dict[str, float]]:
    """Return the importance of each parameter, by evaluator and name.

    The first evaluator's order is that of the parameters: fANOVA's, or PED-ANOVA's where there is
    no fANOVA.

    ``"PED-ANOVA"`` says how far a parameter decides whether a point is among the best tenth;
    ``"fANOVA"``, where scikit-learn is installed, how much of the variance of all results it
    explains. `left_out` names the parameters that are skipped.

    Raises:
        ImportError: Optuna is not installed.
        LLMOptError: There are too few complete trials, or no parameter that varies.
    """
    with needs("the importance of parameters", "optuna", extra="optuna"):
        import optuna
    done = data.done
    if len(done) < LEAST_TRIALS:
        raise LLMOptError(
            f"{len(done)} complete trials are too few for importances: expected at least "
            f"{LEAST_TRIALS}; continue the search"
        )
    with quiet(optuna):
        study = _study(optuna, data, objective)
        names = {n for t in study.trials for n in t.params}
        if not names:
            raise LLMOptError("no parameter that all trials have varies: continue the search")
        of = optuna.importance
        found = {"PED-ANOVA": of.get_param_importances(
            study, evaluator=of.PedAnovaImportanceEvaluator()
        )}  # fmt: skip
        with contextlib.suppress(ImportError, RuntimeError, ValueError):
            study = _study(optuna, data, objective, _MOST_FOR_TREES)
            fanova = of.FanovaImportanceEvaluator(seed=_SEED)
            found["fANOVA"] = of.get_param_importances(study, evaluator=fanova)
    found = dict(reversed(found.items()))  # fANOVA first: of few trials PED-ANOVA sees a handful
    first = next(iter(found.values()))
    order = sorted(names, key=lambda name: -first.get(name, 0.0))
    return {
        kind: {n: float(np.nan_to_num(values.get(n, 0.0), posinf=1.0, neginf=0.0)) for n in order}
        for kind, values in found.items()
    }


def left_out(data: SearchData) -> str:
    """Return which parameters have no importance, and why; empty if all have one."""
    reasons: dict[str, list[str]] = {}
    for i, parameter in enumerate(data.parameters):
        column = [data.shares[t.number][i] for t in data.done]
        why = "only some trials have it" if None in column else "the same in all trials"
        if None in column or len(set(column)) < 2:
            reasons.setdefault(why, []).append(cut(parameter.name, _NAME))
    texts = []
    for why, names in reasons.items():
        more = f" and {len(names) - _MOST_NAMES} more" if names[_MOST_NAMES:] else ""
        why = why.replace("it", "them") if names[1:] else why
        texts.append(f"{', '.join(names[:_MOST_NAMES])}{more} ({why})")
    return "; ".join(texts)


@contextlib.contextmanager
def quiet(optuna: Any) -> Iterator[None]:
    """Keep Optuna's log and its notes on experimental classes out of a report."""
    logger = logging.getLogger("optuna")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def _study(optuna: Any, data: SearchData, objective: int, most: int = _MOST_TRIALS) -> Any:
    """Return the complete trials as a study of one objective, with the shared parameters.

    Numbers are places on their axes, so that a logarithmic parameter counts by its logarithm.
    """
    done = data.done
    step = max(1, -(-len(done) // most))
    done = done[::step]
    rows = [data.shares[t.number] for t in done]
    study = optuna.create_study(direction=data.directions[objective])
    columns: dict[str, tuple[Any, list[Any]]] = {}
    for i, parameter in enumerate(data.parameters):
        column = [row[i] for row in rows]
        if any(share is None for share in column) or len(set(column)) < 2:
            continue
        if parameter.scale.choices:
            texts = [stable_repr(t.params[parameter.name]) for t in done]
            kinds = tuple(dict.fromkeys(texts))
            columns[parameter.name] = optuna.distributions.CategoricalDistribution(kinds), texts
        else:
            columns[parameter.name] = optuna.distributions.FloatDistribution(0.0, 1.0), column
    values = finite([t.rewards[objective] if t.rewards else None for t in done])
    for i, value in enumerate(values):
        params = {name: column[i] for name, (_, column) in columns.items()}
        distributions = {name: one for name, (one, _) in columns.items()}
        trial = optuna.trial.create_trial(
            params=params, distributions=distributions, value=float(value)
        )
        study.add_trial(trial)
    return study
