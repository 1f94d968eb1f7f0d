"""A search over code as an Optuna study and as a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from llmopt.client.base import client_name
from llmopt.code.candidate import CodeTrial
from llmopt.history import Direction
from llmopt.optuna_study import frozen, study_of
from llmopt.views import Views

if TYPE_CHECKING:
    from optuna import Study


class CodeViews(Views):
    """The report of a `CodeOptimizer`, and its candidates as trials of Optuna."""

    def to_optuna(self) -> Study:
        """Return the search as an Optuna study in memory, a trial for each recorded candidate.

        The user attributes ``llmopt:code``, ``llmopt:explanation`` and ``llmopt:feedback`` hold
        the source, the model's words and the outcome; the label ``#n`` has the candidate's number.

        Raises:
            ImportError: Optuna is not installed.
        """
        search: Any = self
        names = [function.name for function in search.functions]
        return study_of_code(names, client_name(search.client), search.direction, search.trials)


def study_of_code(
    names: Sequence[str], model: str, direction: Direction, trials: Iterable[CodeTrial]
) -> Study:
    """Return a study of the candidates of a search; see `CodeViews.to_optuna`."""
    frozen_trials = [
        frozen(
            trial.number - 1,  # labels begin at #1
            "FAIL" if trial.reward is None else "COMPLETE",
            None if trial.reward is None else [trial.reward],
            {},
            {},
            None,
            source=trial.origin,
            code=trial.source,
            explanation=trial.explanation,
            feedback=trial.feedback,
        )
        for trial in trials
    ]
    about = {"model": model, "functions": ", ".join(names)}
    return study_of(names[0], [direction], (), frozen_trials, about)
