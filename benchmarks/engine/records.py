"""The evaluated points of a contest of methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmopt.errors import StorageError
from llmopt.policies.evaluation import Evaluation

WARMUP = "warmup"


@dataclass(frozen=True)
class Record:
    """One evaluated point: a line of ``trials.jsonl``."""

    method: str  # `"warmup"`, `"llm"` or a baseline's name
    index: int  # position among the method's own points, from 0
    params: tuple[float, ...]  # flat policy parameters
    returns: tuple[float, ...]  # return of each episode
    lengths: tuple[int, ...]  # steps of each episode; empty if they are unknown
    failure: str = ""  # why there is no score; empty for a sound evaluation
    source: str = ""  # who proposed it, such as `"llm"` or `"fallback"`
    explanation: str = ""  # of the model
    prompt_tokens: float = 0.0  # the point's share of its requests' prompt tokens
    completion_tokens: float = 0.0  # likewise for completion tokens
    model_seconds: float = 0.0  # likewise for the seconds spent waiting for the model
    evaluation_seconds: float = 0.0  # wall-clock seconds of the episodes
    cpu_seconds: float = 0.0  # processor seconds of proposing and evaluating
    round: str = "search"  # or, on other initial states, `"final"` and `"heldout"`
    feedback: str = ""  # the report of the episodes in a model's prompt

    @classmethod
    def of(
        cls, method: str, index: int, params: Iterable[float], outcome: Evaluation, **facts: Any
    ) -> Record:
        """Make the record of an evaluation."""
        fields = (outcome.returns, outcome.lengths, outcome.failure)
        point = tuple(map(float, params))
        return cls(method, index, point, *fields, evaluation_seconds=outcome.seconds, **facts)

    @property
    def evaluation(self) -> Evaluation:
        """The outcome of the episodes."""
        return Evaluation(self.returns, self.lengths, self.failure, self.evaluation_seconds)

    @property
    def mean(self) -> float | None:
        """Mean return, or ``None`` if the evaluation failed."""
        return self.evaluation.mean

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """Read a record from its JSON form."""
        try:
            fields = {
                **data,
                "params": tuple(float(x) for x in data["params"]),
                "returns": tuple(float(x) for x in data["returns"]),
                "lengths": tuple(int(x) for x in data["lengths"]),
            }
            record = cls(**fields)
            for text in (record.method, record.feedback):
                if not isinstance(text, str):
                    raise TypeError(f"{text!r}: expected a text")
            if record.round not in ("search", "final", "heldout"):
                raise ValueError(f"round {record.round!r}")
            return record
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise StorageError(
                f"a line of the run's records cannot be read ({error!r}): the file was written "
                "by another version of llmopt, or changed by something else"
            ) from error


class Records:
    """All records of a contest, in memory; `llmopt.benchmarks.run.folder` keeps them on disk."""

    keeps_steps = False  # whether `add` uses a point's steps

    def __init__(self) -> None:
        self.records: dict[str, list[Record]] = {}  # by method, in the order of their indices
        self.finals: dict[str, list[Record]] = {}  # the records of the last round, by method
        self.heldout: dict[str, Record] = {}  # the latest held-out record of each method

    def add(self, record: Record, steps: Sequence[str] = ()) -> None:
        """Keep an evaluated point in the list of its round."""
        if record.round == "heldout":
            self.heldout[record.method] = record
        else:
            of_round = self.finals if record.round == "final" else self.records
            of_round.setdefault(record.method, []).append(record)
