"""Tuning tasks that are trained for real: a trial takes a fraction of a second on one core.

Validation rows choose a setting, test rows judge it. Six of the tasks have data that are made here,
so that no model can have read about them. Their descriptions, in `studies.toml`, are true and
complete, and say much: a period, a band, which inputs count. Their `plain` words do not. A trial is
an Optuna trial, or anything with its methods `suggest_float`, `suggest_int`, `suggest_categorical`
and `report`. It may raise: the setting has then failed, as settings do.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from llmopt.benchmarks.tasks import trained
from llmopt.benchmarks.tasks.trained import Judged

_LEARN = "Smaller is better. Validation rows choose; unseen rows judge in the end. "


@dataclass(frozen=True)
class StudyTask:
    """A tuning task.

    Attributes:
        train: Suggests a setting by the trial, trains it on the data of a seed, and judges it.
        description: The task in words.
        default: The textbook's setting.
        known: Whether a model may know the data.
        needs: Packages beside scikit-learn.
        plain: The task in words that give nothing of the solution away, if `description` does.
    """

    train: Callable[[Any, int], Judged]
    description: str
    default: Mapping[str, Any]
    known: bool = True
    needs: tuple[str, ...] = ()
    plain: str = ""


def _read() -> dict[str, StudyTask]:
    text = files(__package__).joinpath("studies.toml").read_text(encoding="utf-8")
    return {
        name: StudyTask(
            getattr(trained, name),
            _LEARN + row["description"],
            row["default"],
            row.get("known", True),
            tuple(row.get("needs", ())),
            _LEARN + row["plain"] if "plain" in row else "",
        )
        for name, row in tomllib.loads(text).items()
    }


STUDIES = _read()
"""By name."""
