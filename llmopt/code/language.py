"""A Gymnasium wrapper that describes each step in words, as LLF-Bench does.

After each step it returns the observation in words, the instruction, the reward, whether the
last move was good or bad, and an expert's suggestion (Cheng et al. 2023, LLF-Bench, arXiv
2312.06853, section 3). Each phrase has paraphrases, sampled by a separate generator, so that
wording and environment do not depend on each other's seed.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import gymnasium as gym
import numpy as np

from llmopt.util.arguments import one_of

FEEDBACK_KINDS = ("r", "hp", "hn", "fp")
"""Reward; hindsight positive (the move was good), negative (it was bad); future positive
(what to do next): LLF-Bench's names."""

PHRASES: dict[str, tuple[str, ...]] = {
    "reward": (
        "The reward of this step is {reward:.3g}.",
        "You got a reward of {reward:.3g}.",
        "This move earned {reward:.3g}.",
        "Reward received: {reward:.3g}.",
    ),
    "good": (
        "That was a good move: it goes where the expert would go.",
        "Well done, you are moving in the right direction.",
        "The last move was right.",
        "Good: this brings you closer to where you should be.",
    ),
    "bad": (
        "That was a bad move: it goes away from where the expert would go.",
        "You are moving in the wrong direction.",
        "The last move was wrong.",
        "Not good: this takes you away from where you should be.",
    ),
    "suggestion": (
        "Next, {suggestion}.",
        "The expert would now {suggestion}.",
        "What to do from here: {suggestion}.",
        "A better choice for the next step: {suggestion}.",
    ),
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


_CHARACTERS = frozenset(string.printable)


class LanguageFeedback(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Adds language to an environment.

    ``info["language"]`` of every step is a dict of texts: ``instruction`` (at the reset, else
    empty), ``observation`` and ``feedback`` (empty at the reset); at the last step it has a
    ``summary`` of the episode too. ``info["verdict"]`` is the teacher's `Verdict`.

    Args:
        env: The environment.
        teacher: What to say about it.
        feedback: Which of `FEEDBACK_KINDS` to give.
        paraphrase_seed: Seed of the wording; ``None`` always takes the first phrase.
        observation: ``"array"`` leaves observations as they are, for policies; ``"text"``
            returns the dict of texts in their place, as LLF-Bench does, and puts the
            observation itself into ``info["observation"]``.

    Raises:
        ValueError: A kind of feedback or of observation does not exist.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        teacher: Teacher,
        feedback: Sequence[str] = FEEDBACK_KINDS,
        paraphrase_seed: int | None = 0,
        observation: Literal["array", "text"] = "array",
    ) -> None:
        gym.utils.RecordConstructorArgs.__init__(
            self,
            _disable_deepcopy=True,
            teacher=teacher,
            feedback=feedback,
            paraphrase_seed=paraphrase_seed,
            observation=observation,
        )
        super().__init__(env)
        for kind in feedback:
            one_of("feedback", kind, FEEDBACK_KINDS)
        one_of("observation", observation, ("array", "text"))
        self.teacher = teacher
        self.feedback = tuple(feedback)
        self._as_text = observation == "text"
        self._paraphrase_seed = paraphrase_seed
        self._rng = None if paraphrase_seed is None else np.random.default_rng(paraphrase_seed)
        self._seen: list[Any] = []
        self._rewards: list[float] = []
        if self._as_text:
            text = gym.spaces.Text(max_length=100_000, min_length=0, charset=_CHARACTERS)
            self.observation_space = gym.spaces.Dict(
                {"instruction": text, "observation": text, "feedback": text}
            )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; the generator of the wording is not reset."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._seen, self._rewards = [observation], []
        language = {
            "instruction": self.teacher.instruction(),
            "observation": self.teacher.describe(observation),
            "feedback": "",
        }
        return self._out(observation, language, {**info, "verdict": Verdict()})

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
        out, info = self._out(observation, language, {**info, "verdict": verdict})
        return out, float(reward), terminated, truncated, info

    def reword(self, *key: int) -> None:
        """Reseed the wording from the paraphrase seed and non-negative numbers.

        A resumed search then repeats the same words; use, for example, the numbers of candidate and
        episode.
        """
        if self._paraphrase_seed is not None:
            self._rng = np.random.default_rng([self._paraphrase_seed, *key])

    def summary(self, info: Mapping[str, Any]) -> str:
        """Summarize the episode so far, for a caller that stops before its end."""
        return self.teacher.conclude(self._seen, self._rewards, info)

    def _out(
        self, observation: Any, language: dict[str, str], info: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        info["language"] = language
        if not self._as_text:
            return observation, info
        info["observation"] = observation
        return {k: language[k] for k in ("instruction", "observation", "feedback")}, info

    def _words(self, reward: float, verdict: Verdict) -> str:
        parts = []
        if "r" in self.feedback:
            parts.append(self._say("reward", reward=reward))
        if verdict.good is True and "hp" in self.feedback:
            parts.append(self._say("good"))
        if verdict.good is False and "hn" in self.feedback:
            parts.append(self._say("bad"))
        if "hp" in self.feedback or "hn" in self.feedback:
            parts += verdict.remarks
        if verdict.suggestion and "fp" in self.feedback:
            parts.append(self._say("suggestion", suggestion=verdict.suggestion))
        return " ".join(parts)

    def _say(self, key: str, **values: Any) -> str:
        phrases = PHRASES[key]
        index = 0 if self._rng is None else int(self._rng.integers(len(phrases)))
        return phrases[index].format(**values)
