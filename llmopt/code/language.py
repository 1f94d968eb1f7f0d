"""A Gymnasium wrapper that describes each step in words, as LLF-Bench does.

After each step it returns the observation in words, the instruction, the reward, whether the
last move was good or bad, and an expert's suggestion (Cheng et al. 2023, LLF-Bench, arXiv
2312.06853, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym

PHRASES = {
    "reward": "The reward of this step is {reward:.3g}.",
    "good": "That was a good move: it goes where the expert would go.",
    "bad": "That was a bad move: it goes away from where the expert would go.",
    "suggestion": "Next, {suggestion}.",
}


@dataclass(frozen=True)
class Verdict:
    """A teacher's judgement of one step.

    Attributes:
        good: Whether the move was good; ``None`` if the teacher cannot decide.
        remarks: Further faults of the move, or why it was bad.
        suggestion: What to do next, as an imperative phrase; empty for none.
    """

    good: bool | None = None
    remarks: tuple[str, ...] = ()
    suggestion: str = ""

    def __post_init__(self) -> None:
        # A comparison of arrays gives np.False_, which `is False` does not know.
        object.__setattr__(self, "good", None if self.good is None else bool(self.good))


class Teacher(Protocol):
    """The words and judgements of one environment, for the wrapper."""

    def instruction(self) -> str:
        """Return the task in words."""
        ...

    def describe(self, observation: Any) -> str:
        """Return an observation in words."""
        ...

    def judge(self, before: Any, action: Any, after: Any) -> Verdict:
        """Judge the step from one observation to the next."""
        ...

    def conclude(
        self, observations: Sequence[Any], rewards: Sequence[float], info: Mapping[str, Any]
    ) -> str:
        """Summarize a complete episode, as feedback on the policy."""
        ...


class LanguageFeedback(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Adds language to an environment.

    ``info["language"]`` of every step is a dict of texts: ``instruction`` (at the reset, else
    empty), ``observation`` and ``feedback`` (empty at the reset); at the last step it has a
    ``summary`` of the episode too. ``info["verdict"]`` is the teacher's `Verdict`.

    Args:
        env: The environment.
        teacher: What to say about it.
    """

    def __init__(self, env: gym.Env[Any, Any], teacher: Teacher) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, _disable_deepcopy=True, teacher=teacher)
        super().__init__(env)
        self.teacher = teacher
        self._seen: list[Any] = []
        self._rewards: list[float] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._seen, self._rewards = [observation], []
        language = {
            "instruction": self.teacher.instruction(),
            "observation": self.teacher.describe(observation),
            "feedback": "",
        }
        return observation, {**info, "verdict": Verdict(), "language": language}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Make one step and describe its outcome."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        verdict = self.teacher.judge(self._seen[-1], action, observation)
        self._seen.append(observation)
        self._rewards.append(float(reward))
        language = {
            "instruction": "",
            "observation": self.teacher.describe(observation),
            "feedback": self._words(float(reward), verdict),
        }
        if terminated or truncated:
            language["summary"] = self.teacher.conclude(self._seen, self._rewards, info)
        info = {**info, "verdict": verdict, "language": language}
        return observation, float(reward), terminated, truncated, info

    def summary(self, info: Mapping[str, Any]) -> str:
        """Summarize the episode so far, for a caller that stops before its end."""
        return self.teacher.conclude(self._seen, self._rewards, info)

    def _words(self, reward: float, verdict: Verdict) -> str:
        parts = [PHRASES["reward"].format(reward=reward)]
        if verdict.good is not None:
            parts.append(PHRASES["good" if verdict.good else "bad"])
        parts += verdict.remarks
        if verdict.suggestion:
            parts.append(PHRASES["suggestion"].format(suggestion=verdict.suggestion))
        return " ".join(parts)
