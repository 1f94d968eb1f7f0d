"""Describe what a policy did in its episodes, so that a model can design a better controller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from gymnasium import spaces

from llmopt.errors import SpaceError
from llmopt.policies.episode import TERMINATED
from llmopt.policies.evaluation import Evaluation
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.scaling import bounds_of
from llmopt.policies.steps import StepData, Track, is_sum
from llmopt.prompt.describe import FEEDBACK_CHARS
from llmopt.util.text import clean

MAX_FEEDBACK = FEEDBACK_CHARS
"""Characters of one evaluation's feedback, about 1,100 tokens."""

_LISTED_EPISODES = 20
_MOST_INPUTS = 400  # with more observed numbers (pictures), only rewards and actions are reported
_SHOWN_STEPS = 8  # of a trajectory
_SELDOM = 0.005  # a smaller share of steps at a bound is not reported
_TERMS = ("reward", "cost", "penalty", "bonus")  # parts of names in `info` of reward terms
_COSTS = ("cost", "penalty")
_SUCCESS = ("is_success", "success")  # flags in `info`


class EpisodeStatistics(StepData):
    """Watches the episodes of one evaluation and describes them, as feedback for a model.

    Args:
        policy: The policy that acts.
        observations: A short name for each observed number; ``o0, o1, ...`` if empty.
        actions: A short name for each action or choice; ``a0, a1, ...`` if empty.
        max_chars: Maximum characters of `text`.

    Raises:
        SpaceError: The number of names is wrong.
    """

    def __init__(
        self,
        policy: LinearPolicy,
        observations: Sequence[str] = (),
        actions: Sequence[str] = (),
        *,
        max_chars: int = MAX_FEEDBACK,
    ) -> None:
        super().__init__()
        self.policy = policy
        self.max_chars = max_chars
        self.inputs = list(observations) or [f"o{i}" for i in range(policy.n_inputs)]
        self.outputs = list(actions) or [f"a{j}" for j in range(policy.n_outputs)]
        wanted = (policy.n_inputs, policy.n_outputs)
        if (len(self.inputs), len(self.outputs)) != wanted:
            raise SpaceError(
                f"got names of {len(self.inputs)} observed numbers and {len(self.outputs)} "
                f"actions, expected {wanted[0]} and {wanted[1]}, or none"
            )

    @np.errstate(all="ignore")  # report diverged numbers as they are
    def text(self, evaluation: Evaluation) -> str:
        """Return a report on an evaluation, a line for each subject.

        At most `max_chars` characters; empty if no step was recorded. Every line ends with a full
        stop, so that lines can be joined by spaces.
        """
        tracks = [track for track in self.tracks if track.rewards]
        if not tracks:
            return ""
        if evaluation.failure:
            lines = [self._failure(tracks, evaluation)]
        else:
            lines = [*self._outcome(tracks, evaluation), *self._steps(tracks)]
        text = ""
        for line in lines:
            room = self.max_chars - len(text) - 1
            if len(line) > room:
                line = line[: max(room - 2, 0)].rpartition("; ")[0]
                line += "; …" if line else ""
            text += ("\n" if text and line else "") + line
        return text[: self.max_chars]

    def _failure(self, tracks: list[Track], evaluation: Evaluation) -> str:
        """Report where an evaluation failed, with the last observation and action."""
        last = tracks[-1]
        said = f"Failed after {len(last.rewards)} steps of episode {len(tracks) - 1}"
        if evaluation.returns:
            said += f"; finished episodes returned {', '.join(map(_number, evaluation.returns))}"
        if last.actions and last.observations:
            said += f"; last action: {self._action(last.actions[-1])}"
            if len(self.inputs) <= _MOST_INPUTS:
                said += f"; last seen: {self._observation(last.observations[-2])}"
        return f"{said}."

    def _outcome(self, tracks: list[Track], evaluation: Evaluation) -> Iterator[str]:
        """Report each episode's return, length and end, and the terms of the return."""
        lengths, ends = [len(t.rewards) for t in tracks], [_end(t) for t in tracks]
        returns = [_number(r, 5) for r in evaluation.returns]
        mean = _number(evaluation.mean or 0.0, 5)
        rate = _number(sum(evaluation.returns) / sum(lengths))
        line = f"Mean return {mean} over {len(returns)} initial states, {rate} a step"
        if len(returns) > _LISTED_EPISODES:
            quartiles = map(_number, np.percentile(evaluation.returns, [0, 25, 50, 75, 100]))
            counts = ", ".join(f"{c} × {end}" for end, c in Counter(ends).most_common())
            line += f"; returns, minimum, quartiles, maximum: {', '.join(quartiles)}; {counts}"
        elif len({*zip(lengths, ends, strict=True)}) == 1:
            line += f"; each {lengths[0]} steps, {ends[0]}; returns: {', '.join(returns)}"
        else:
            rows = zip(returns, lengths, ends, strict=True)
            line += "; " + ", ".join(f"{r} in {k} steps ({end})" for r, k, end in rows)
        yield f"{line}."
        terms = [f"{name} {_number(v, 5)}" for name, v in _terms(tracks).items()]
        if terms:
            yield f"The parts of the mean return: {'; '.join(terms)}."

    def _steps(self, tracks: list[Track]) -> Iterator[str]:
        """Report actions, ends, observations and a trajectory of the recorded episodes."""
        full = [t for t in tracks if t.complete]
        if not full:
            return
        yield self._actions(np.concatenate([np.stack(t.actions) for t in full]))
        if isinstance(self.policy.observation_space, spaces.Discrete):
            pairs = (pair for t in full for pair in zip(t.observations, t.actions, strict=False))
            counts = Counter(f"s{seen[0]} {self._action(action)}" for seen, action in pairs)
            items = [f"{pair} {c / counts.total():.0%}" for pair, c in counts.most_common()]
            last = Counter(f"s{t.observations[-2][0]} -> s{t.observations[-1][0]}" for t in full)
            yield f"Last steps: {'; '.join(f'{c} × {step}' for step, c in last.most_common())}."
            yield f"States visited (action there, share of the steps): {'; '.join(items)}."
            return
        if len(self.inputs) > _MOST_INPUTS:
            return
        early = sorted((t for t in full if t.end == TERMINATED), key=lambda t: len(t.rewards))
        if early:
            yield self._early(early, len(full))
        rows = np.concatenate([np.stack(t.observations) for t in full])
        items = [
            f"{name} [{_number(c.min())}, {_number(c.max())}] mean {_number(c.mean())}"
            for name, c in zip(self.inputs, rows.T, strict=True)
        ]
        yield f"Observed, [minimum, maximum] and mean of all steps: {'; '.join(items)}."
        yield self._trajectory(full)

    def _actions(self, taken: np.ndarray) -> str:
        """Report the distribution of each action, and how often it was at a bound."""
        space = self.policy.action_space
        if isinstance(space, spaces.Discrete):
            counts = Counter(map(self._action, taken)).most_common()
            return f"Actions: {'; '.join(f'{a} {c / len(taken):.0%}' for a, c in counts)}."
        low, high = bounds_of(space)
        items = []
        for name, column, least, most in zip(self.outputs, taken.T, low, high, strict=True):
            item = f"{name} {_number(column.mean())} sd {_number(column.std())}"
            under, over = np.mean(column <= least), np.mean(column >= most)
            item += f" ({under:.0%} low, {over:.0%} high)" if under + over > _SELDOM else ""
            items.append(item)
        head = "Actions, mean and standard deviation sd (share at or beyond each bound)"
        return f"{head}: {'; '.join(items)}."

    def _early(self, tracks: list[Track], count: int) -> str:
        """Report the last observations of the median of the episodes that ended early."""
        track, lengths = tracks[(len(tracks) - 1) // 2], [len(t.rewards) for t in tracks]
        back = min(10, len(track.rewards))
        ends = zip(self.inputs, track.observations[-1 - back], track.observations[-1], strict=True)
        items = [f"{name} {_number(before)}, {_number(last)}" for name, before, last in ends]
        return (
            f"{len(tracks)} of {count} ended early, after {lengths[0]} to {lengths[-1]} steps. "
            f"Observed {back} steps before the end and at the end of the one of "
            f"{len(track.rewards)} steps: {'; '.join(items)}."
        )

    def _trajectory(self, full: list[Track]) -> str:
        """Report some steps of the episode of the median return, dense at its beginning."""
        track = sorted(full, key=lambda t: sum(t.rewards))[(len(full) - 1) // 2]
        length = len(track.rewards)
        grid = np.geomspace(min(3, length), length, _SHOWN_STEPS).round().astype(int) - 1
        steps = sorted({*grid.tolist()})
        rows, names = [np.stack(track.observations)[steps]], self.inputs
        if isinstance(self.policy.action_space, spaces.Box):
            rows, names = [*rows, np.stack(track.actions)[steps]], names + self.outputs
        columns = zip(names, np.hstack(rows).T, strict=True)
        items = [f"{name} {', '.join(map(_number, column))}" for name, column in columns]
        head = f"Steps {', '.join(map(str, steps))} of an episode of the median return"
        return f"{head}: {'; '.join(items)}."

    def _observation(self, row: np.ndarray) -> str:
        if isinstance(self.policy.observation_space, spaces.Discrete):
            return f"s{row[0]}"
        return ", ".join(f"{n} {_number(x)}" for n, x in zip(self.inputs, row, strict=False))

    def _action(self, row: np.ndarray) -> str:
        space = self.policy.action_space
        if isinstance(space, spaces.Discrete):
            return self.outputs[int(row[0]) - int(space.start)]
        return ", ".join(f"{n} {_number(x)}" for n, x in zip(self.outputs, row, strict=False))


def _number(value: float, digits: int = 3) -> str:
    """Return a number with some significant digits."""
    if abs(value) < 1e-6:
        return "0"
    whole = 10 ** (digits - 1) <= abs(value) < 1e6
    return f"{value:.0f}" if whole else f"{value:.{digits}g}"


def _end(track: Track) -> str:
    """Return how an episode ended, and whether in success if `info` has a flag."""
    flags = [track.info[name] for name in _SUCCESS if name in track.info]
    success = flags[0].get(len(track.rewards) - 1) if flags else None
    early = "ended early" if track.end == TERMINATED else track.end
    return early + ("" if success is None else ", success" if success else ", no success")


def _terms(tracks: list[Track]) -> dict[str, float]:
    """Return the terms of the mean return that `info` names; they sum to it.

    A cost that `info` gives as a positive number is negated; "the rest" is the remainder.
    """
    totals = np.array([sum(t.rewards) for t in tracks])
    names = dict.fromkeys(n for t in tracks for n in t.info)
    named = {
        clean(" ".join(name.split()))[:100]: np.array(
            [sum(map(float, t.info.get(name, {}).values())) for t in tracks]
        )
        for name in names
        if any(term in name.lower() for term in _TERMS) and not is_sum(name)
    }
    turned = {
        name: -sums if any(cost in name.lower() for cost in _COSTS) and sums.min() >= 0 else sums
        for name, sums in named.items()
    }
    terms: dict[str, np.ndarray] = {}
    for table in (named, turned):
        terms = {name: sums for name, sums in table.items() if not _same(sums, totals)}
        if not terms or _same(sum(terms.values()), totals):
            break
    else:
        terms["the rest"] = totals - sum(terms.values())
    return {name: float(sums.mean()) for name, sums in terms.items()}


def _same(sums: object, totals: np.ndarray) -> bool:
    tolerance = 1e-6 * (1 + np.abs(totals).max())
    return bool(np.allclose(np.asarray(sums), totals, rtol=1e-4, atol=tolerance))
