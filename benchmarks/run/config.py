"""The configuration of ``llmopt run``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from llmopt.benchmarks.engine.options import MOST_POINTS, RANGES, check_ranges
from llmopt.benchmarks.engine.search import FINALISTS
from llmopt.benchmarks.extras import package_versions
from llmopt.benchmarks.methods.table import check_names
from llmopt.benchmarks.tasks.table import Task, get_task
from llmopt.errors import LLMOptError, StorageError

DEFAULT_METHODS = ("llm", "cma", "random")
# Options that a resumed run may change, since they change no result.
_MINOR = (
    "compute_packages",
    "gif",
    "max_requests",
    "max_tokens",
    "max_cost",
    "record",
    "iterations",
)


class RunConfigError(LLMOptError, ValueError):
    """A run has options that are not valid."""


@dataclass(frozen=True)
class RunConfig:
    """The options of a run; equal configurations give equal runs."""

    task: str  # alias, task id or Gymnasium id
    model: str = "smollm2"  # model string (see `llmopt.get_client`)
    prompt: str = "auto"  # a shipped one's name, a template's text or path, or `"auto"`; of `"llm"`
    iterations: int = 40  # evaluations of each method after the warm-up
    episodes: int | None = None  # episodes of one evaluation; `None` for the task's own number
    seed: int = 0  # of everything random
    warmup: int | str = 20  # shared points: how many to sample, or a folder in the published layout
    bias: bool | None = None  # whether the policy has a bias; `None` for the task's own choice
    box: tuple[float, float] | None = None  # bounds of every parameter; `None` for the task's own
    # in the order in which they run: `"llm"` for the model under `prompt`, and keys of
    # `llmopt.benchmarks.methods.METHODS`
    methods: tuple[str, ...] = DEFAULT_METHODS
    description: str | None = None  # the task in words; `None` for the task's own
    heldout: int = 100  # held-out initial states that score each method's best policy
    gif: bool = True  # draw the model's best policy, or the best of all without one
    max_requests: int | None = None  # calls after which the run stops, failed ones included
    max_tokens: int | None = None  # prompt and completion tokens after which it stops
    max_cost: float | None = None  # US dollars; needs a model whose price is known
    batch: int | None = None  # points of a request; `None`: 4 under `columns`, else 1
    record: str | None = None  # file for the model's requests and answers
    wrappers: tuple[str, ...] | None = None  # empty for no scaling, `None` for the task's own
    finalists: int = FINALISTS  # the best few, compared on other initial states; 0 for none
    compute: bool | Literal["auto"] = "auto"  # whether `"llm"` may compute before it proposes
    compute_packages: tuple[str, ...] = ()  # that its blocks may import

    def __post_init__(self) -> None:
        optional = {f.name for f in fields(self) if f.default is None}
        given = {n: v for n, v in vars(self).items() if v is not None or n not in optional}
        check_ranges(given, {n: r for n, r in RANGES.items() if n in given}, RunConfigError)
        if not isinstance(self.warmup, str) and not (
            isinstance(self.warmup, int) and 0 <= self.warmup <= MOST_POINTS
        ):
            raise RunConfigError(
                f"warmup={self.warmup}: expected 0 to {MOST_POINTS:,} points, or a folder of them"
            )
        for name in ("max_requests", "max_tokens", "max_cost"):
            cap = getattr(self, name)
            least = 0 if name == "max_cost" else 1  # a model may be free
            if cap is not None and not cap >= least:  # not a number is refused too
                raise RunConfigError(
                    f"{name}={cap!r}: expected {least} or more"
                    + ("" if least == 0 else "; to ask no model, omit it from --methods")
                )
        if not self.methods or len(set(self.methods)) < len(self.methods):
            raise RunConfigError(
                f"methods={' '.join(self.methods) or '()'}: expected one or more, each once, such "
                f"as {', '.join(DEFAULT_METHODS)}"
            )
        if self.wrappers:
            raise RunConfigError(f"wrappers={self.wrappers}: expected none; wrap the environment")
        try:
            check_names(self.methods, "llm")
        except ValueError as error:
            raise RunConfigError(str(error)) from None

    def get_task(self) -> Task:
        """Return the task that is searched."""
        return get_task(
            self.task,
            bias=self.bias,
            box=self.box,
            description=self.description,
            wrappers=self.wrappers,
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunConfig:
        """Rebuild a configuration from its JSON form."""
        try:
            known = dict(data)
            known["methods"] = tuple(known["methods"])
            known["compute_packages"] = tuple(map(str, known["compute_packages"]))
            known["box"] = known["box"] and (float(known["box"][0]), float(known["box"][1]))
            wrappers = known["wrappers"]
            known["wrappers"] = None if wrappers is None else tuple(map(str, wrappers))
            for name in ("task", "model", "prompt"):
                if not isinstance(known.get(name, ""), str):
                    raise TypeError(f"{name} is not a string")
            if not isinstance(known.get("record"), (str, type(None))):
                raise TypeError("record is not a string")
            return cls(**known)
        except RunConfigError as error:
            raise StorageError(
                f"the run's config.json is not as it was written ({error}): restore it, or start "
                "a new run"
            ) from error
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise StorageError(
                f"the run's config.json was written by another version of llmopt, or changed by "
                f"something else ({error!r}): start a new run"
            ) from error


def check_same(config: RunConfig, stored: Mapping[str, Any], path: Path) -> None:
    """Raise if a configuration is not that of the run in a folder; it may have more iterations."""
    before = RunConfig.from_dict(stored["run"])
    if config.iterations < before.iterations:
        raise RunConfigError(
            f"{path} holds a run of {before.iterations} iterations: give as many or more to resume "
            f"it, not {config.iterations}"
        )
    there, now = asdict(before), asdict(config)
    changed = [
        f"{name} (there {there[name]!r}, now {now[name]!r})"
        for name in there
        if name not in _MINOR and there[name] != now[name]
    ]
    if changed:
        raise RunConfigError(
            f"{path} holds a run with another configuration: {', '.join(changed)}. Give the same "
            "options to resume it, or another folder to start a new run"
        )
    old, new = stored.get("versions", {}), package_versions()
    moved = [f"{k} {old[k]} -> {new.get(k, 'none')}" for k in old if old[k] != new.get(k)]
    if moved:
        warnings.warn(
            f"{path} was begun with other versions ({', '.join(moved)}): what follows may differ "
            "from an uninterrupted run",
            stacklevel=2,
        )
