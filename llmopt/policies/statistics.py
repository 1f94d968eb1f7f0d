"""What a policy did in its episodes, in words that a controller can be designed from.

`EpisodeStatistics` watches one evaluation (`Evaluator.evaluate(..., watch=statistics)`, no
second rollout) and says, most useful first and within a budget of characters: returns,
lengths and ends of the episodes, what a start costs, the return's own parts, how the actions
were used, which observation passed which bound where an episode ended early, each observation in
the second half, what oscillates with what lag, and how the worst episode went.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

from llmopt.errors import SpaceError
from llmopt.policies.episode import Step
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.rollout import Evaluation
from llmopt.text import clean

MAX_FEEDBACK = 2600
"""Characters of one evaluation's feedback, about 1,100 tokens."""

_WATCHED = 400  # of larger observations (pictures) only rewards and actions are kept
_LISTED_EPISODES = 20
_MIN_STEPS = 16  # fewer steps show no oscillation
_PERIODIC = 0.4  # least autocorrelation one period later
_COHERENT = 0.5  # least agreement of a phase lag between episodes
_MIN_CORRELATED = 8  # with fewer episodes some observation always goes with the return
_CORRELATED = 0.8
_DIFFERENT = 0.05  # standard deviation of the returns, as a share of their mean size
_TRACED = 8  # steps of an episode that are shown
_ROOM_FOR_LAGS = 800  # characters of a text; a shorter one has none
_LEAST_PERIOD = 6  # steps; shorter ones are chattering
_LEAST_PEAKS = 3  # peaks of an oscillation that are shown in place of other steps
_GROUPS = 3  # ways in which episodes ended early
_NAME, _FACTS = 100, 100  # characters of a name in `info`, and names, that are noted
_PARTS = ("reward", "cost", "penalty", "bonus")  # names in `info` of parts of the reward
# and of what is summed already
_SO_FAR = re.compile(r"(?<![a-z])(cumul|accum|total|episod|return|sum(?![a-z]))")


@dataclass
class _Part:
    """A part of the reward as `info` names it: its sum over the episode, and its last value.

    `running` tells whether it was at every step what the rewards had summed up to by then.
    """

    sum: float = 0.0
    last: float = 0.0
    running: bool = True

    def add(self, value: float, total: float) -> None:
        self.sum, self.last = self.sum + value, value
        self.running &= math.isclose(value, total, rel_tol=1e-6, abs_tol=1e-9)


@dataclass
class _Episode:
    seen: list[Any] = field(default_factory=list)
    done: list[np.ndarray] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    total: float = 0.0
    parts: dict[str, _Part] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    touched: list[frozenset[str]] = field(default_factory=list)
    last: Any = None
    end: str = ""


@dataclass(frozen=True)
class _Wave:
    """A common oscillation: its reference, period, lags, and which signals have other periods."""

    reference: int
    period: float
    lags: dict[int, float]
    other: dict[int, float]

    def lag(self, index: int) -> str:
        """Return the lag of a signal in words, or its own period; empty where it has neither."""
        if index in self.lags:
            return f" {self.lags[index]:+.0f}°" if index != self.reference else " 0°"
        return f" period {_short(self.other[index])}" if index in self.other else ""


class EpisodeStatistics:
    """Watches the episodes of one evaluation and says what happened, as feedback for a model.

    Args:
        policy: The policy that acts.
        observations: A short name for each observed number; ``o0, o1, ...`` if empty.
        actions: A short name for each action or choice; ``a0, a1, ...`` if empty.
        max_chars: Characters of `text`.
        detail: Whether to say all: no budget, and each episode's start and end besides.
        touching: Called after each step: the names of what touches the ground then.

    Raises:
        SpaceError: There is not one name for each number.
    """

    def __init__(
        self,
        policy: LinearPolicy,
        observations: Sequence[str] = (),
        actions: Sequence[str] = (),
        *,
        max_chars: int = MAX_FEEDBACK,
        detail: bool = False,
        touching: Callable[[], frozenset[str]] | None = None,
    ) -> None:
        self._policy = policy
        self._table = isinstance(policy.observation_space, spaces.Discrete)
        self._inputs = list(observations) or [f"o{i}" for i in range(policy.n_inputs)]
        self._outputs = list(actions) or [f"a{j}" for j in range(policy.n_outputs)]
        wanted = (policy.n_inputs, policy.n_outputs)
        if (len(self._inputs), len(self._outputs)) != wanted:
            raise SpaceError(
                f"got names of {len(self._inputs)} observed numbers and {len(self._outputs)} "
                f"actions, expected {wanted[0]} and {wanted[1]}, or none"
            )
        self._max_chars = max_chars
        self._detail = detail
        self._touching = touching
        self._episodes: list[_Episode] = []

    def __call__(self, step: Step) -> None:
        """Note one step."""
        while len(self._episodes) <= step.episode:
            self._episodes.append(_Episode())
        episode = self._episodes[step.episode]
        if self._table or self._policy.n_inputs <= _WATCHED:
            episode.seen.append(self._copy(step.observation))
            episode.last = self._copy(step.following)
        episode.done.append(np.array(step.action, dtype=np.float64).ravel())
        episode.rewards.append(step.reward)
        episode.total += step.reward
        if self._touching is not None:
            episode.touched.append(self._touching())
        if step.terminated:
            episode.end = "terminated"
        elif step.truncated:
            episode.end = "step limit"
        _add_facts(episode, step.info)

    def _copy(self, observation: Any) -> Any:
        # A copy, as an environment may write its next observation into the same array.
        if self._table:
            return int(observation)
        try:
            return np.array(observation, dtype=np.float64).ravel()
        except (TypeError, ValueError):  # what is no number is the policy's trouble, not this one's
            return np.full(self._policy.n_inputs, np.nan)

    @np.errstate(over="ignore", invalid="ignore")  # what a policy blew up is told as it is
    def text(self, evaluation: Evaluation) -> str:
        """Return the statistics, a line for each subject.

        Args:
            evaluation: What came of the episodes that were watched.

        Returns:
            At most `max_chars` characters; empty where no step was watched. Every line ends
            with a full stop, so that they can be joined by spaces.
        """
        episodes = [e for e in self._episodes if e.rewards]
        if not episodes:
            return ""
        if evaluation.failure:
            return self._fit([self._failed(evaluation, episodes)])
        roomy = self._detail or self._max_chars >= _ROOM_FOR_LAGS
        wave = self._wave(episodes) if roomy and not self._table and episodes[0].seen else None
        lines = [
            _spread(evaluation, episodes),
            _quarters(episodes),
            _parts(episodes),
            self._actions(episodes, wave),
            self._contacts(episodes, wave),
        ]
        if self._table:
            lines += [self._ends_of_table(episodes), self._visited(episodes)]
        elif episodes[0].seen:
            lines += [
                *self._endings(evaluation, episodes),
                self._observations(episodes, wave),
                self._trace(evaluation, episodes, wave),
                self._goes_with(evaluation, episodes),
            ]
        if not self._table:
            lines.append(_facts(episodes))
        if self._detail and not self._table and episodes[0].seen:
            lines += [self._single(i, e) for i, e in enumerate(episodes)]
        return self._fit(lines)

    def _fit(self, lines: list[tuple[str, list[str]]]) -> str:
        """Join heads and their items; where room is short the last items are left out."""
        text = ""
        for head, items in lines:
            if not items:
                continue
            room = math.inf if self._detail else self._max_chars - len(text) - bool(text)
            line, shown = head, 0
            for item in items:
                more = f"{'; ' if shown else ' ' if head else ''}{item}"
                reserve = 1 if shown + 1 == len(items) else 4
                if len(line) + len(more) + reserve > room:
                    break
                line, shown = line + more, shown + 1
            if shown:
                line += "." if shown == len(items) else "; …"
                text += ("\n" if text else "") + line
        return text

    # -- the lines ------------------------------------------------------------------------

    def _failed(self, evaluation: Evaluation, episodes: list[_Episode]) -> tuple[str, list[str]]:
        last = episodes[-1]
        items = [f"after {_count(len(last.rewards), 'step')} of episode {len(episodes) - 1}"]
        items += [f"finished episodes returned {_listed(evaluation.returns)}"] * bool(
            evaluation.returns
        )
        items += [f"last action: {self._action(last.done[-1])}"]
        if last.seen and not self._table:
            items.append("last seen: " + self._values(last.seen[-1]))
        elif last.seen:
            items.append(f"last state: s{last.seen[-1]}")
        return "Failed", items

    def _actions(self, episodes: list[_Episode], wave: _Wave | None) -> tuple[str, list[str]]:
        space = self._policy.action_space
        done = np.concatenate([np.stack(e.done) for e in episodes])
        if isinstance(space, spaces.Discrete):
            taken = done[:, 0].astype(int) - int(space.start)
            share = np.bincount(taken, minlength=int(space.n)) / len(taken)
            items = [f"{self._outputs[j]} {s:.0%}" for j, s in enumerate(share) if s]
            runs = sum(1 + int(np.sum(np.diff(np.stack(e.done)[:, 0]) != 0)) for e in episodes)
            if not self._table and runs > len(episodes):
                items.append(f"the same for {_short(len(taken) / runs)} steps on average")
            return "Actions taken:", items
        low, high = self._limits()
        items = []
        for j, column in enumerate(done.T):
            item = f"{self._outputs[j]} {_short(column.mean())} ± {_short(column.std())}"
            under, over = float(np.mean(column <= low[j])), float(np.mean(column >= high[j]))
            if under + over > 0.005:
                item += f" ({under:.0%} low, {over:.0%} high"
                size = float(np.abs(column).max())
                if max(column.max() - high[j], low[j] - column.min()) > 0:
                    item += f", up to {_short(size)} in size"
                item += ")"
            items.append(item + (wave.lag(len(self._inputs) + j) if wave else ""))
        return "Actions, mean ± sd (share at or beyond each bound):", items

    def _contacts(self, episodes: list[_Episode], wave: _Wave | None) -> tuple[str, list[str]]:
        """Return for which share of the steps each body touched the ground, and when."""
        items = []
        for k, name in enumerate(_bodies(episodes)):
            late = [name in t for e in episodes for t in e.touched[len(e.touched) // 2 :]]
            lag = wave.lag(len(self._inputs) + len(self._outputs) + k) if wave else ""
            if np.mean(late) < 0.01:
                continue
            items.append(f"{name} {np.mean(late):.0%}" + (f" (middle at{lag})" if lag else ""))
        return "On the ground, share of the steps of the second half:", items

    def _limits(self) -> tuple[np.ndarray, np.ndarray]:
        space = self._policy.action_space
        if not isinstance(space, spaces.Box):
            return np.full(1, -np.inf), np.full(1, np.inf)
        return np.ravel(space.low).astype(float), np.ravel(space.high).astype(float)

    def _observations(self, episodes: list[_Episode], wave: _Wave | None) -> tuple[str, list[str]]:
        lasted = [e for e in episodes if e.end != "terminated"]
        which = "the episodes"
        if 0 < len(lasted) < len(episodes):
            which = f"the {_count(len(lasted), 'episode')} that lasted"
            episodes = lasted
        late = np.concatenate([_second_half(e.seen) for e in episodes])
        whole = np.concatenate([np.stack(e.seen) for e in episodes])
        items = []
        for i, (name, c, w) in enumerate(zip(self._inputs, late.T, whole.T, strict=True)):
            mean = _scaled(c.mean(), max(abs(c.mean()), c.std()))
            size = max(abs(w.min()), abs(w.max()))
            ends = f"[{_scaled(w.min(), size)}, {_scaled(w.max(), size)}]"
            items.append(
                f"{name} {mean} ± {_short(c.std())} {ends}" + (wave.lag(i) if wave else "")
            )
        head = f"Observed in {which}, mean ± sd of the second half [least, largest of all steps]"
        if wave is not None:
            head += (
                f" (lag in degrees behind {self._inputs[wave.reference]} in the oscillation of "
                f"{_short(wave.period)} steps; of actions above)"
            )
        return head + ":", items

    def _endings(
        self, evaluation: Evaluation, episodes: list[_Episode]
    ) -> list[tuple[str, list[str]]]:
        """Return a line for each way in which episodes ended early.

        An observation beyond all that was seen before the ends tells what an end is about. The
        one that tells it of most episodes comes first; of equals, the one whose last values lie
        closest together.
        """
        left = [k for k, e in enumerate(episodes) if e.end == "terminated"]
        if not left:
            return []
        ended = len(left)
        inside = np.concatenate([np.stack(e.seen) for e in episodes])
        low, high = inside.min(axis=0), inside.max(axis=0)
        width = np.maximum(high - low, 1e-12)
        last = {k: np.asarray(episodes[k].last, dtype=float) for k in left}
        lines: list[tuple[str, list[str]]] = []
        while left and len(lines) < _GROUPS:
            found: tuple[int, float, str, list[int]] = (0, 0.0, "", [])
            for i, name in enumerate(self._inputs):
                for side in (-1, 1):
                    bound = high[i] if side > 0 else low[i]
                    passed = [k for k in left if side * (last[k][i] - bound) > 0]
                    if not passed:
                        continue
                    ends = np.array([last[k][i] for k in passed])
                    rank = (len(passed), -float(np.ptp(ends) / width[i]))
                    if rank > found[:2]:
                        nearest = ends.min() if side > 0 else ends.max()
                        word = "above" if side > 0 else "below"
                        said = f"with {name} {word} all it was before ({_short(nearest)})"
                        found = (*rank, said, passed)
            group = found[3] or left
            lines.append(self._ending(evaluation, episodes, group, found[2], ended, not lines))
            left = [k for k in left if k not in group]
        return lines

    def _ending(
        self,
        evaluation: Evaluation,
        episodes: list[_Episode],
        group: list[int],
        said: str,
        ended: int,
        first: bool,
    ) -> tuple[str, list[str]]:
        """Return what the median one of some episodes that ended early saw before its end."""
        returns = sorted(evaluation.returns[k] for k in group)
        order = sorted(group, key=lambda k: len(episodes[k].rewards))
        lengths = [len(episodes[k].rewards) for k in order]
        episode = episodes[order[(len(order) - 1) // 2]]
        rows = [*episode.seen, episode.last]
        back = [*[b for b in (10, 3, 1) if b < len(rows)][:1], 0]
        change = np.ptp(np.stack(rows[-back[0] - 1 :]), axis=0) / (
            np.ptp(np.stack(rows), axis=0) + 1e-12
        )
        most = 12 if first else 5
        few = np.sort(np.argsort(-change, kind="stable")[:most])
        scale = np.abs(np.stack(rows)).max(axis=0)
        items = [
            f"{self._inputs[i]} " + ", ".join(_scaled(rows[-1 - b][i], scale[i]) for b in back)
            for i in few
        ]
        at = ", ".join(f"{b} steps before" if b else "at" for b in back)
        head = f"{len(group)} of {len(episodes)} ended early" + (f" {said}" if said else "")
        head += f", after {_span(lengths)} steps"
        if len(episodes) > 1:
            head += f", return {_span(returns)}"
        median = "" if len(group) == 1 else f" (the one of {len(rows) - 1} steps)"
        return f"{head}. Seen {at} the end{median}:", items

    def _wave(self, episodes: list[_Episode]) -> _Wave | None:
        """Return the strongest common period, and the lags of observations and actions."""
        low, high = self._limits()
        longest = max(len(e.rewards) for e in episodes)
        signals = []
        for e in episodes:
            if len(e.rewards) >= max(0.8 * longest, 2 * _MIN_STEPS):
                acts = np.clip(np.stack(e.done), low, high)
                rows = np.hstack([np.stack(e.seen), acts, _contact_rows(e, _bodies(episodes))])
                signals.append(_detrended(rows[len(rows) // 2 :]))
        if not signals:
            return None
        n_seen = len(self._inputs)
        periods = _periods([s[:, :n_seen] for s in signals])
        strong = sorted(
            (i for i, (p, r) in enumerate(periods) if p and r >= _PERIODIC),
            key=lambda i: -periods[i][1],
        )
        if not strong:
            return None
        # The period that most observations share, told by the one that keeps it best.
        first = max(
            strong, key=lambda i: sum(abs(periods[j][0] / periods[i][0] - 1) < 0.1 for j in strong)
        )
        period = periods[first][0]
        amplitude, lag, share, agree = _phases(signals, period, first)
        # Lags against the same signal for every policy, where it takes part.
        first = next((i for i in range(n_seen) if share[i] > 0.3 and amplitude[i] > 1e-6), first)
        amplitude, lag, share, agree = _phases(signals, period, first)
        lags = {
            i: float(lag[i])
            for i in range(len(lag))
            if share[i] > 0.2 and agree[i] > _COHERENT and amplitude[i] > 1e-6
        }
        if len(lags) < 2:
            return None  # nothing that goes with it
        other = {i: periods[i][0] for i in strong if abs(periods[i][0] / period - 1) >= 0.1}
        return _Wave(first, period, {**lags, first: 0.0}, other)

    def _trace(
        self, evaluation: Evaluation, episodes: list[_Episode], wave: _Wave | None
    ) -> tuple[str, list[str]]:
        """Return how the worst episode went, or a usual one where none is much worse.

        Of an oscillation the peaks of the reference are shown: a drift from one to the next
        tells what an episode runs into.
        """
        returns = np.array(evaluation.returns)
        differ = len(returns) > 1 and returns.std() > _DIFFERENT * np.abs(returns).mean()
        ranks = np.argsort(returns, kind="stable")
        number = int(ranks[0] if differ else ranks[(len(ranks) - 1) // 2])
        episode = episodes[number]
        names, rows = list(self._inputs), np.stack(episode.seen)
        steps, at = _traced(len(rows)), "at steps"
        if wave is not None:
            peaks = _peaks(rows[:, wave.reference], wave.period)
            if wave.period >= _LEAST_PERIOD and len(peaks) >= _LEAST_PEAKS:
                steps = _thinned(peaks)
                at = f"at peaks of {names[wave.reference]}, at steps"
        if len(steps) < 2:
            return "", []
        which = "the worst" if differ else "a usual"
        if len(returns) > 1:
            which += f" episode, number {number + 1} (return {_figure(returns[number])})"
        else:
            which = "the episode"
        if not isinstance(self._policy.action_space, spaces.Discrete):
            names, rows = names + self._outputs, np.hstack([rows, np.stack(episode.done)])
        scale = np.abs(rows).max(axis=0)
        items = [
            f"{n} " + ", ".join(_scaled(rows[k][i], scale[i]) for k in steps)
            for i, n in enumerate(names)
        ]
        return f"In {which}, {at} {', '.join(map(str, steps))}:", items

    def _goes_with(self, evaluation: Evaluation, episodes: list[_Episode]) -> tuple[str, list[str]]:
        """Return which starts and means tell good episodes from bad ones."""
        returns = np.array(evaluation.returns)
        if (
            len(returns) < _MIN_CORRELATED
            or len(returns) != len(episodes)
            or np.ptp(returns) < 1e-9
        ):
            return "", []
        if returns.std() < _DIFFERENT * np.abs(returns).mean():
            return "", []
        starts = np.stack([e.seen[0] for e in episodes])
        means = np.stack([_second_half(e.seen).mean(axis=0) for e in episodes])
        found = []
        for what, table in (("start", starts), ("mean", means)):
            for name, column in zip(self._inputs, table.T, strict=True):
                if column.std() > 1e-9:
                    r = float(np.corrcoef(column, returns)[0, 1])
                    if abs(r) >= _CORRELATED:
                        found.append((-round(abs(r), 2), f"{what} of {name} (r = {r:.2f})"))
        found.sort(key=lambda pair: pair[0])  # of equals the start, which no policy changes
        return "The return of an episode goes with:", [text for _, text in found[:2]]

    def _single(self, number: int, episode: _Episode) -> tuple[str, list[str]]:
        return f"Episode {number}:", [
            "start " + self._values(episode.seen[0]),
            "end " + self._values(episode.last),
        ]

    def _values(self, row: np.ndarray) -> str:
        return ", ".join(f"{n} {_short(x)}" for n, x in zip(self._inputs, row, strict=True))

    def _action(self, row: np.ndarray) -> str:
        space = self._policy.action_space
        if isinstance(space, spaces.Discrete):
            return self._outputs[int(row[0]) - int(space.start)]
        return ", ".join(f"{n} {_short(x)}" for n, x in zip(self._outputs, row, strict=True))

    # -- tables ---------------------------------------------------------------------------

    def _ends_of_table(self, episodes: list[_Episode]) -> tuple[str, list[str]]:
        ends = Counter(
            f"s{e.seen[-1]} {self._action(e.done[-1])} -> s{e.last} "
            f"({e.end or 'cut off'}, return {_short(sum(e.rewards))})"
            for e in episodes
        )
        return "Last steps:", [f"{n} × {text}" for text, n in ends.most_common()]

    def _visited(self, episodes: list[_Episode]) -> tuple[str, list[str]]:
        steps = Counter(
            (s, self._action(a)) for e in episodes for s, a in zip(e.seen, e.done, strict=True)
        )
        total = sum(steps.values())
        ranked = sorted(steps.items(), key=lambda item: (-item[1], item[0]))
        head = f"{len({s for s, _ in steps})} states visited (action there, share of the steps):"
        return head, [f"s{s} {a} {n / total:.0%}" for (s, a), n in ranked]


# -- of all episodes ----------------------------------------------------------------------


def _spread(evaluation: Evaluation, episodes: list[_Episode]) -> tuple[str, list[str]]:
    returns = evaluation.returns
    lengths = [len(e.rewards) for e in episodes]
    per_step = _short(sum(returns) / sum(lengths)) + " a step"
    if len(returns) == 1:
        end = episodes[0].end or "cut off"
        return "", [f"Return {_figure(returns[0])}, {per_step}; {lengths[0]} steps, {end}"]
    error = evaluation.standard_error
    items = [
        f"Mean return {_figure(float(np.mean(returns)))}"
        + (f" ± {_short(error)}" if error is not None else "")
        + f" (standard error, n = {len(returns)}), {per_step}"
    ]
    same = len(set(lengths)) == 1 and len({e.end for e in episodes}) == 1
    if same:
        items.append(f"each {lengths[0]} steps, {episodes[0].end or 'cut off'}")
    if len(returns) > _LISTED_EPISODES:
        tenths = np.percentile(returns, [0, 25, 50, 75, 100])
        items.append("returns, least, quartiles, largest: " + ", ".join(map(_figure, tenths)))
        ends = Counter(e.end or "cut off" for e in episodes)
        if not same:
            items.append(", ".join(f"{n} × {end}" for end, n in ends.most_common()))
            items.append(f"{min(lengths)} to {max(lengths)} steps")
    elif same:
        items.append(f"returns {_listed(returns)}")
    else:
        each = (
            f"{r} in {n}" + ("" if e.end == "terminated" else " (limit)")
            for r, n, e in zip(_digits(returns), lengths, episodes, strict=True)
        )
        note = "terminated unless marked" if any(e.end == "terminated" for e in episodes) else ""
        items.append(f"return in steps, {note}: {', '.join(each)}".replace(", :", ":"))
    return "", items


def _quarters(episodes: list[_Episode]) -> tuple[str, list[str]]:
    """Return the reward a step in each quarter of the episodes, which tells what a start costs."""
    long = [np.array(e.rewards) for e in episodes if len(e.rewards) >= 8]
    if not long:
        return "", []
    means = np.mean([[q.mean() for q in np.array_split(r, 4)] for r in long], axis=0)
    if np.ptp(means) <= 0.02 * np.abs(means).max():
        return "", []
    return "", ["Reward a step in each quarter of an episode " + ", ".join(map(_short, means))]


def _parts(episodes: list[_Episode]) -> tuple[str, list[str]]:
    keys = [k for k in _keys(episodes, "parts") if not _summed_already(episodes, k)]
    sums_of = {
        k: np.array([e.parts[k].sum if k in e.parts else 0.0 for e in episodes]) for k in keys
    }
    if len(keys) == 1 and math.isclose(sums_of[keys[0]].sum(), sum(e.total for e in episodes)):
        return "", []
    items = []
    for key, sums in sums_of.items():
        item = f"{key} {_figure(sums.mean())}"
        if np.ptp(sums) > _DIFFERENT * np.abs(sums).mean():
            item += f" [{_short(sums.min())}, {_short(sums.max())}]"
        items.append(item)
    return "Parts of it, sums over an episode, mean [least, largest]:", items


def _keys(episodes: list[_Episode], kind: str) -> list[str]:
    return list(dict.fromkeys(k for e in episodes for k in getattr(e, kind)))


def _summed_already(episodes: list[_Episode], key: str) -> bool:
    """Whether a part is a sum since the episode's start, so that its last value is what counts."""
    parts = [e.parts[key] for e in episodes if key in e.parts]
    if _SO_FAR.search(key.lower()):
        return True
    return all(p.running for p in parts) and any(p.sum != p.last for p in parts)


def _facts(episodes: list[_Episode]) -> tuple[str, list[str]]:
    summed = [k for k in _keys(episodes, "parts") if _summed_already(episodes, k)]
    lasts = [(k, [e.parts[k].last for e in episodes if k in e.parts]) for k in summed]
    for key in _keys(episodes, "facts"):
        lasts.append((key, [e.facts[key] for e in episodes if key in e.facts]))
    items = []
    for key, values in lasts[:8]:
        spread = f" [{_short(min(values))}, {_short(max(values))}]" if len(values) > 1 else ""
        items.append(f"{key} {_short(np.mean(values))}{spread}")
    return "At the end of the episodes, mean [least, largest]:", items


def _add_facts(episode: _Episode, info: Any) -> None:
    """Note the numbers of an environment's `info`, which may hold anything under any name."""
    for name, value in _named(info):
        is_part = any(p in name.lower() for p in _PARTS)
        for inner, part in _named(value) if is_part else ():
            _add_part(episode, inner, _number(part))
        if is_part:
            _add_part(episode, name, _number(value))
        elif (number := _number(value)) is not None and _room(episode.facts, name):
            episode.facts[name] = number


def _add_part(episode: _Episode, name: str, number: float | None) -> None:
    if number is not None and _room(episode.parts, name):
        episode.parts.setdefault(name, _Part()).add(number, episode.total)


def _room(noted: Mapping[str, Any], name: str) -> bool:
    return name in noted or len(noted) < _FACTS


def _named(info: Any) -> list[tuple[str, Any]]:
    if not isinstance(info, Mapping):
        return []
    items = ((k, v) for k, v in info.items() if isinstance(k, str) and len(k) <= _NAME)
    return [(clean(" ".join(k.split())), v) for k, v in items]


def _number(value: Any) -> float | None:
    """Return a finite number as a float; ``None`` for whatever else there is."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.ravel()[0]
    if isinstance(value, np.complexfloating) or not isinstance(
        value, bool | int | float | np.number | np.bool_
    ):
        return None
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):  # a whole number of 400 digits, a duration
        return None
    return number if math.isfinite(number) else None


# -- signals ------------------------------------------------------------------------------


def _second_half(rows: list[np.ndarray]) -> np.ndarray:
    return np.stack(rows[len(rows) // 2 :])


def _bodies(episodes: list[_Episode]) -> list[str]:
    """Return what ever touched the ground."""
    return sorted({name for e in episodes for touched in e.touched for name in touched})


def _contact_rows(episode: _Episode, bodies: list[str]) -> np.ndarray:
    """Return 1 for each step and body that touches the ground, else 0."""
    rows = np.zeros((len(episode.seen), len(bodies)))
    for row, touched in zip(rows, episode.touched, strict=False):
        row[:] = [name in touched for name in bodies]
    return rows


def _traced(length: int) -> list[int]:
    """Return steps that show how an episode went: a few of its start, then an even grid."""
    start = [k for k in (0, 3, 10) if k < length]
    grid = np.linspace(0, length - 1, _TRACED - len(start) + 2)[1:]
    return sorted({*start, *(int(k) for k in grid)})


def _peaks(column: np.ndarray, period: float) -> list[int]:
    """Return the steps at which a signal is the largest within half a period around them."""
    half = max(1, int(0.5 * period))
    found = []
    for k in range(1, len(column) - 1):
        around = column[max(0, k - half) : k + half + 1]
        if column[k] == around.max() and column[k] > column[k - 1]:
            found.append(k)
    return found


def _thinned(steps: list[int]) -> list[int]:
    """Return the first, the last three, and others evenly between them."""
    if len(steps) <= _TRACED:
        return steps
    places = {*np.linspace(0, len(steps) - 4, _TRACED - 3).astype(int).tolist()}
    return [steps[i] for i in sorted({*places, *range(len(steps) - 3, len(steps))})]


def _detrended(rows: np.ndarray) -> np.ndarray:
    """Take a straight line out of each column."""
    t = np.linspace(-1.0, 1.0, len(rows))
    rows = rows - rows.mean(axis=0)
    return np.asarray(rows - np.outer(t, t @ rows / (t @ t)))


def _periods(signals: list[np.ndarray]) -> list[tuple[float, float]]:
    """Return the period of each column in steps (0 for none) and the autocorrelation there.

    Args:
        signals: ``(steps, columns)`` arrays without trend, one for each episode.
    """
    lags = min(len(s) for s in signals) // 2
    total = np.zeros((lags, signals[0].shape[1]))
    for rows in signals:
        n = len(rows)
        spectrum = np.fft.rfft(rows, 2 * n, axis=0)
        raw = np.fft.irfft(np.abs(spectrum) ** 2, axis=0)[:lags]
        moving = raw[0] > n * 1e-12
        # Each lag's products are fewer by the lag: without this long periods look weak.
        total += np.where(moving, raw / np.where(moving, raw[0], 1.0), 0.0) * (
            n / (n - np.arange(lags))
        ).reshape(-1, 1)
    found = []
    for column in (total / len(signals)).T:
        below = np.flatnonzero(column < 0)
        if not len(below):
            found.append((0.0, 0.0))
            continue
        after = column[below[0] :]
        peak = float(after.max())
        at = int(np.flatnonzero(after >= 0.9 * peak)[0]) if peak > 0 else 0
        while peak > 0 and at + 1 < len(after) and after[at + 1] > after[at]:
            at += 1
        lag = int(below[0]) + at
        if peak <= 0 or not 1 < lag < lags - 1:
            found.append((0.0, 0.0))
            continue
        a, b, c = column[lag - 1 : lag + 2]
        bend = a - 2 * b + c
        offset = 0.5 * (a - c) / bend if bend < 0 else 0.0
        found.append((lag + float(np.clip(offset, -0.5, 0.5)), float(b)))
    return found


def _phases(
    signals: list[np.ndarray], period: float, reference: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return amplitude, lag in degrees, share of variance and agreement of each column.

    A lag is positive where the column comes later than the reference; the agreement between
    episodes is 1 where all have the same lag.
    """
    columns = signals[0].shape[1]
    cross = np.zeros(columns, dtype=complex)
    weight = np.zeros(columns)
    power, variance = np.zeros(columns), np.zeros(columns)
    for rows in signals:
        n = max(1, int(len(rows) // period)) * period
        rows = rows[: max(2, round(n))]
        wave = np.exp(-2j * np.pi * np.arange(len(rows)) / period)
        c = 2 * (wave @ rows) / len(rows)
        cross += c[reference] * np.conj(c)
        weight += np.abs(c[reference]) * np.abs(c)
        power += np.abs(c) ** 2 / 2
        variance += rows.var(axis=0)
    amplitude = np.sqrt(2 * power / len(signals))
    share = power / np.maximum(variance, 1e-300)
    agree = np.abs(cross) / np.maximum(weight, 1e-300)
    return amplitude, np.degrees(np.angle(cross)), share, agree


# -- numbers ------------------------------------------------------------------------------


def _short(number: Any) -> str:
    value = float(number)
    if abs(value) < 1e-6:
        return "0"
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def _scaled(number: Any, scale: float) -> str:
    """Return a number in three significant digits of the largest of its kind."""
    if not 1e-9 < scale < 1e3:
        return _short(number)
    text = f"{float(number):.{max(0, 2 - math.floor(math.log10(scale)))}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text


def _figure(number: Any) -> str:
    """Return a return: five digits, as the best ones differ late."""
    value = float(number)
    return "0" if abs(value) < 1e-9 else f"{value:.5g}"


def _span(values: Sequence[float]) -> str:
    """Return the least and the largest of sorted values."""
    low, high = _short(values[0]), _short(values[-1])
    return low if low == high else f"{low} to {high}"


def _listed(values: Sequence[float]) -> str:
    return ", ".join(_digits(values))


def _digits(values: Sequence[float]) -> list[str]:
    """Return numbers with four digits, or five where they lie close together."""
    close = len(values) > 0 and np.ptp(values) < 0.01 * np.abs(values).max()
    return [_figure(v) if close else ("0" if abs(v) < 1e-9 else f"{v:.4g}") for v in values]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
