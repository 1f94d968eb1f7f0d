"""Describe what a policy did in its episodes, so that a model can design a better controller.

A report is a list of probes. Each reads the `Recording` of one evaluation and yields lines, or
none. `fit` joins them, the most useful first, within a budget of characters.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from gymnasium import spaces

from llmopt.policies.episode import TERMINATED
from llmopt.policies.evaluation import Evaluation
from llmopt.policies.line import (
    Topic,
    alike,
    counted,
    digits,
    figure,
    fit,
    scaled,
    short,
    span,
)
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.report.moments import gait, trace
from llmopt.policies.report.recording import FAILURE, SUCCESS, Recording, Track, kind_names
from llmopt.policies.wrapping import bounds_of
from llmopt.prompt.describe import FEEDBACK_CHARS

MAX_FEEDBACK = FEEDBACK_CHARS
"""Characters of one evaluation's feedback, about 1,100 tokens."""

_LISTED_EPISODES = 20
_DIFFERENT = 0.05  # standard deviation of the returns, as a share of their mean size
_GROUPS = 3  # ways in which episodes ended early
_LISTED_FACTS = 8
_SELDOM = 0.005  # a smaller share of steps at a bound is not reported
_PARTS = 3  # parts of the return that are listed for each episode

Probe = Callable[[Recording], Iterable[Topic]]
"""A function that reads a recording and yields lines of the report, or none."""


class EpisodeStatistics(Recording):
    """Watches the episodes of one evaluation and describes them, as feedback for a model.

    Args:
        policy: The policy that acts.
        observations: A short name for each observed number; ``o0, o1, ...`` if empty.
        actions: A short name for each action or choice; ``a0, a1, ...`` if empty.
        max_chars: Maximum characters of `text`.
        detail: Whether to report everything: no budget, and also each episode's start and end.
        contacts: Whether to report what touches the ground, and when (MuJoCo).

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
        detail: bool = False,
        contacts: bool = False,
    ) -> None:
        super().__init__(policy, observations, actions, contacts=contacts)
        self._most = math.inf if detail else max_chars
        self._detail = detail

    @np.errstate(over="ignore", invalid="ignore")  # report diverged numbers as they are
    def text(self, evaluation: Evaluation) -> str:
        """Return the statistics of an evaluation, a line for each subject.

        At most `max_chars` characters; empty if no step was recorded. Every line ends with a full
        stop, so that lines can be joined by spaces.
        """
        if not self.episodes:
            return ""
        self.evaluation = evaluation
        probes = (failure,) if evaluation.failure else PROBES
        if self._detail and not evaluation.failure:
            probes = (*PROBES, single_episodes)
        return fit((line for probe in probes for line in probe(self)), self._most)


# -- probes of every policy -------------------------------------------------------------------


def failure(rec: Recording) -> Iterator[Topic]:
    """Report where an evaluation failed, with the last observation and action."""
    last, returns = rec.episodes[-1], rec.evaluation.returns
    items = [f"after {counted(len(last.rewards), 'step')} of episode {len(rec.episodes) - 1}"]
    if returns:
        items.append(f"finished episodes returned {', '.join(digits(returns))}")
    items.append(f"last action: {_action(rec, last.done[-1])}")
    if last.seen:
        state = f"last state: s{last.seen[-1]}"
        items.append(state if rec.table else "last seen: " + _values(rec, last.seen[-1]))
    yield Topic("Failed", items)


def outcome(rec: Recording) -> Iterator[Topic]:
    """Report each episode's return, the terms of it that differ, its length and its end."""
    returns, episodes = rec.evaluation.returns, rec.episodes
    lengths = [len(e.rewards) for e in episodes]
    per_step = short(sum(returns) / sum(lengths)) + " a step"
    if len(returns) == 1:
        end = _end(episodes[0])
        yield Topic("", [f"Return {figure(returns[0])}, {per_step}; {lengths[0]} steps, {end}"])
        return
    mean = f"Mean return {figure(float(np.mean(returns)))} over {len(returns)} starts"
    items = [f"{mean}, {per_step}"]
    same = len(set(lengths)) == 1 and len({e.end for e in episodes}) == 1
    if same:
        items.append(f"each {lengths[0]} steps, {_end(episodes[0])}")
    if len(returns) > _LISTED_EPISODES:
        tenths = np.percentile(returns, [0, 25, 50, 75, 100])
        items.append("returns, least, quartiles, largest: " + ", ".join(map(figure, tenths)))
        if not same:
            ends = Counter(map(_end, episodes))
            items.append(", ".join(f"{n} × {end}" for end, n in ends.most_common()))
            items.append(f"{min(lengths)} to {max(lengths)} steps")
    else:
        differing, rest = _differing(rec)
        head = f"return ({', '.join(differing)}; the rest is {rest})" if rest else "returns"
        each = digits(returns)
        if differing:
            rows = zip(*(alike(sums) for sums in differing.values()), strict=True)
            each = [f"{r} ({', '.join(row)})" for r, row in zip(each, rows, strict=True)]
        if not same:
            kinds = ["limit" if e.end != TERMINATED else e.judged or "early" for e in episodes]
            early = Counter(k for k in kinds if k != "limit").most_common(1)
            usual = early[0][0] if early else "limit"
            marks = ["" if k == usual else f" ({k})" for k in kinds]
            each = [f"{r} in {n}{m}" for r, n, m in zip(each, lengths, marks, strict=True)]
            head += " in steps"
            head += f", {_early(usual.replace('early', ''))}" if early else ""
            head += " unless marked" if any(marks) else ""
        items.append(f"{head}: {', '.join(each)}")
    yield Topic("", items)


def quarters(rec: Recording) -> Iterator[Topic]:
    """Report the reward per step in each quarter of the episodes, which shows transients."""
    long = [np.array(e.rewards) for e in rec.episodes if len(e.rewards) >= 8]
    if not long:
        return
    means = np.mean([[q.mean() for q in np.array_split(r, 4)] for r in long], axis=0)
    if np.ptp(means) > 0.02 * np.abs(means).max():
        said = "Reward a step in each quarter of an episode " + ", ".join(map(short, means))
        yield Topic("", [said])


def parts(rec: Recording) -> Iterator[Topic]:
    """Report the terms of the mean return that `info` names."""
    items = [f"{name} {figure(sums.mean())}" for name, sums in rec.reward_parts().items()]
    yield Topic("The parts of the mean return:", items)


def _differing(rec: Recording) -> tuple[dict[str, np.ndarray], str]:
    """Return the terms in which the episodes' returns differ, and the name of the remaining one."""
    returns = np.array(rec.evaluation.returns)
    lengths = np.array([len(e.rewards) for e in rec.episodes])
    least = _DIFFERENT * max(np.ptp(returns), _DIFFERENT * np.abs(returns).mean())
    found = {
        name: sums
        for name, sums in rec.reward_parts().items()
        # A term that is constant per step follows from the length.
        if np.ptp(sums) > least and np.ptp(sums / lengths) > 1e-3 * np.abs(sums / lengths).max()
    }
    widest = sorted(found, key=lambda name: -float(np.ptp(found[name])))[: _PARTS + 1]
    if len(widest) < 2:
        return {}, ""  # the return shows the difference
    rest = widest[0] if len(found) == len(widest) else "of others, too"
    return {name: sums for name, sums in found.items() if name in widest[1:]}, rest


def facts(rec: Recording) -> Iterator[Topic]:
    """Report the other numbers in `info` at the end of the episodes."""
    if rec.table:
        return
    found: list[tuple[str, list[float]]] = []
    for name in kind_names(rec.episodes, "parts"):
        if rec.summed_already(name):
            found.append((name, [e.parts[name].last for e in rec.episodes if name in e.parts]))
    for name in kind_names(rec.episodes, "facts"):
        found.append((name, [e.facts[name] for e in rec.episodes if name in e.facts]))
    items = []
    for name, values in found[:_LISTED_FACTS]:
        spread = f" [{short(min(values))}, {short(max(values))}]" if np.ptp(values) else ""
        items.append(f"{name} {short(np.mean(values))}{spread}")
    yield Topic("At the end of the episodes, mean [least, largest]:", items)


def actions(rec: Recording) -> Iterator[Topic]:
    """Report the distribution of each action, and how often it was at a bound."""
    space = rec.policy.action_space
    done = np.concatenate([np.stack(e.done) for e in rec.episodes])
    if isinstance(space, spaces.Discrete):
        taken = done[:, 0].astype(int) - int(space.start)
        share = np.bincount(taken, minlength=int(space.n)) / len(taken)
        items = [f"{rec.outputs[j]} {s:.0%}" for j, s in enumerate(share) if s]
        runs = sum(1 + int(np.sum(np.diff(np.stack(e.done)[:, 0]) != 0)) for e in rec.episodes)
        if not rec.table and runs > len(rec.episodes):
            items.append(f"the same for {short(len(taken) / runs)} steps on average")
        yield Topic("Actions taken:", items)
        return
    low, high = bounds_of(space)
    items = []
    for j, column in enumerate(done.T):
        item = f"{rec.outputs[j]} {short(column.mean())} sd {short(column.std())}"
        under, over = float(np.mean(column <= low[j])), float(np.mean(column >= high[j]))
        if under + over > _SELDOM:
            item += f" ({under:.0%} low, {over:.0%} high"
            if max(column.max() - high[j], low[j] - column.min()) > 0:
                item += f", up to {short(np.abs(column).max())} in size"
            item += ")"
        items.append(item)
    yield Topic("Actions, mean and standard deviation sd (share at or beyond each bound):", items)


def contacts(rec: Recording) -> Iterator[Topic]:
    """Report for which share of the steps each body touched the ground, and when."""
    items = []
    for name in rec.bodies:
        late = [name in t for e in rec.episodes for t in e.touched[len(e.touched) // 2 :]]
        if np.mean(late) >= 0.01:
            items.append(f"{name} {np.mean(late):.0%}")
    yield Topic("On the ground, share of the steps of the second half:", items)


# -- probes of tables -------------------------------------------------------------------------


def last_steps(rec: Recording) -> Iterator[Topic]:
    """Report the last state, action and end of the episodes of a table."""
    if rec.table:
        ends = Counter(
            f"s{e.seen[-1]} {_action(rec, e.done[-1])} -> s{e.last} "
            f"({_end(e)}, return {short(e.total)})"
            for e in rec.episodes
        )
        yield Topic("Last steps:", [f"{n} × {text}" for text, n in ends.most_common()])


def visited(rec: Recording) -> Iterator[Topic]:
    """Report the visited states with the actions taken there."""
    if rec.table:
        pairs = ((e.seen, e.done) for e in rec.episodes)
        steps = Counter((s, _action(rec, a)) for p in pairs for s, a in zip(*p, strict=True))
        total = sum(steps.values())
        ranked = sorted(steps.items(), key=lambda item: (-item[1], item[0]))
        count = len({s for s, _ in steps})
        head = f"{count} states visited (action there, share of the steps):"
        yield Topic(head, [f"s{s} {a} {n / total:.0%}" for (s, a), n in ranked])


# -- probes of observed numbers ---------------------------------------------------------------


def endings(rec: Recording) -> Iterator[Topic]:
    """Yield a line for each way in which episodes ended early.

    A last observation outside the range of all earlier ones explains an end. The observation that
    explains most episodes comes first; of equals, the one whose last values are closest together.
    """
    episodes = rec.episodes
    left = [k for k, e in enumerate(episodes) if e.end == TERMINATED]
    if not (rec.shows_numbers and left):
        return
    inside = np.concatenate([np.stack(e.seen) for e in episodes])
    order = (FAILURE, "", SUCCESS)
    for first in range(_GROUPS):
        if not left:
            return
        verdict = min((episodes[k].judged for k in left), key=order.index)
        same = [k for k in left if episodes[k].judged == verdict]
        said, group = _told_by(rec, same, inside)
        yield _ending(rec, group, said, 5 if first else 12)
        left = [k for k in left if k not in group]


def _told_by(rec: Recording, numbers: list[int], inside: np.ndarray) -> tuple[str, list[int]]:
    """Return words on the observation that explains an end, and its episodes (all if none)."""
    low, high = inside.min(axis=0), inside.max(axis=0)
    last = np.stack([np.asarray(rec.episodes[k].last, dtype=float) for k in numbers])
    best, said, group = (0, 0.0), "", numbers
    for i, name in enumerate(rec.inputs):
        for word, passed in (("below", last[:, i] < low[i]), ("above", last[:, i] > high[i])):
            ends = last[passed, i]
            if not len(ends):
                continue
            rank = (len(ends), -float(np.ptp(ends) / max(high[i] - low[i], 1e-12)))
            if rank > best:
                nearest = ends.min() if word == "above" else ends.max()
                said = f" with {name} {word} all it was before ({short(nearest)})"
                best, group = rank, [k for k, so in zip(numbers, passed, strict=True) if so]
    return said, group


def _ending(rec: Recording, group: list[int], said: str, most: int) -> Topic:
    """Report the last observations of the median of some episodes that ended early."""
    episodes = rec.episodes
    returns = sorted(rec.evaluation.returns[k] for k in group)
    order = sorted(group, key=lambda k: len(episodes[k].rewards))
    lengths = [len(episodes[k].rewards) for k in order]
    episode = episodes[order[(len(order) - 1) // 2]]
    rows = np.stack([*episode.seen, episode.last])
    back = [*[b for b in (10, 3, 1) if b < len(rows)][:1], 0]
    change = np.ptp(rows[-back[0] - 1 :], axis=0) / (np.ptp(rows, axis=0) + 1e-12)
    few = np.sort(np.argsort(-change, kind="stable")[:most])
    scale = np.abs(rows).max(axis=0)
    items = [
        f"{rec.inputs[i]} " + ", ".join(scaled(rows[-1 - b][i], scale[i]) for b in back)
        for i in few
    ]
    at = ", ".join(f"{b} steps before" if b else "at" for b in back)
    early = _early(episode.judged)
    head = f"{len(group)} of {len(episodes)} {early}{said}, after {span(lengths)} steps"
    if len(episodes) > 1:
        head += f", return {span(returns)}"
    median = "" if len(group) == 1 else f" (the one of {len(rows) - 1} steps)"
    return Topic(f"{head}. Seen {at} the end{median}:", items)


def observations(rec: Recording) -> Iterator[Topic]:
    """Report each observed number in the second half of the full episodes, or of all if none is."""
    if not rec.shows_numbers:
        return
    episodes, which = rec.episodes, ""
    lasted = [e for e in episodes if e.end != TERMINATED]
    if 0 < len(lasted) < len(episodes):
        episodes, which = lasted, f" in the {counted(len(lasted), 'episode')} that lasted"
    late = np.concatenate([np.stack(e.seen[len(e.seen) // 2 :]) for e in episodes])
    whole = np.concatenate([np.stack(e.seen) for e in episodes])
    low, high = bounds_of(rec.policy.observation_space)
    items = []
    for i, (name, c, w) in enumerate(zip(rec.inputs, late.T, whole.T, strict=True)):
        mean = scaled(c.mean(), max(abs(c.mean()), c.std()))
        size = max(abs(w.min()), abs(w.max()))
        ends = f"[{scaled(w.min(), size)}, {scaled(w.max(), size)}]"
        bounded = (w <= low[i]) | (w >= high[i])
        at = 0.0 if bounded.all() and np.ptp(w) else float(np.mean(bounded))  # 0 for a flag
        bound = f" ({at:.0%} at a bound)" if at > _SELDOM else ""
        items.append(f"{name} {mean} sd {short(c.std())} {ends}{bound}")
    head = f"Observed{which}, mean and standard deviation sd of the second half"
    yield Topic(f"{head} [range of all steps]:", items)


def single_episodes(rec: Recording) -> Iterator[Topic]:
    """Report start and end of each episode."""
    for number, e in enumerate(rec.episodes if rec.shows_numbers else ()):
        ends = ["start " + _values(rec, e.seen[0]), "end " + _values(rec, e.last)]
        yield Topic(f"Episode {number}:", ends)


PROBES: tuple[Probe, ...] = (
    outcome, quarters, parts, actions, contacts, last_steps, visited, endings, gait, observations,
    trace, facts,
)  # fmt: skip
"""The probes of a report, the most useful first."""


# -- words of steps ---------------------------------------------------------------------------


def _end(track: Track) -> str:
    judged = track.judged
    return f"{track.end} ({judged})" if judged else track.end or "cut off"


def _early(judged: str) -> str:
    return f"ended early ({judged})" if judged else "ended early"


def _values(rec: Recording, row: np.ndarray) -> str:
    return ", ".join(f"{n} {short(x)}" for n, x in zip(rec.inputs, row, strict=True))


def _action(rec: Recording, row: np.ndarray) -> str:
    space = rec.policy.action_space
    if isinstance(space, spaces.Discrete):
        return rec.outputs[int(row[0]) - int(space.start)]
    return ", ".join(f"{n} {short(x)}" for n, x in zip(rec.outputs, row, strict=True))
