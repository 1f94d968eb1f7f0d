"""Show observations and actions at some steps: at a gait's contacts, else mostly early steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from gymnasium import spaces

from llmopt.policies.episode import TERMINATED
from llmopt.policies.line import Topic, counted, figure, scaled, short
from llmopt.policies.report.gait import Stance, chosen, lengths, stances
from llmopt.policies.report.recording import Recording

_DIFFERENT = 0.05  # standard deviation of the returns, as a share of their mean size
_TRACED, _TRACED_EACH = 8, 4  # steps shown of a single episode, and of each of two
_STANCES, _BODIES = 4, 2  # shown of a gait: the bodies that touch down most often
_TOUCHDOWNS = 2  # minimum of a gait


def gait(rec: Recording) -> Iterator[Topic]:
    """Yield observations and actions at each touchdown and lift-off of the bodies.

    Shows a median episode, and also the worst one if only some episodes end early.
    """
    if not rec.shows_numbers:
        return
    ends = {e.end == TERMINATED for e in rec.episodes}
    found = []
    for number in _starts(rec, worst_too=len(ends) > 1):
        touched = rec.episodes[number].touched
        every = [(stances([body in now for now in touched]), body) for body in rec.bodies]
        every.sort(key=lambda pair: -len(pair[0]))
        for hops, body in every[:_BODIES]:
            if sum(hop.down is not None for hop in hops) >= _TOUCHDOWNS:
                found.append((number, body, hops))
    median = _starts(rec)[0]
    if all(number != median for number, *_ in found):
        return
    forms = []
    for count in range(max(1, _STANCES // len(found)), 0, -1):
        parts: list[tuple[int, list[Stance]]] = []
        titles, before = [], ""
        for number, body, hops in found:
            shown = chosen(hops, count) if number == median else hops[-max(1, count - 1) :]
            at = ", ".join("/".join("-" if k is None else str(k) for k in hop) for hop in shown)
            head = "" if body == before else f"{body} touches down/leaves at steps "
            start = "it" if parts and parts[-1][0] == number else _start(rec, number)
            down, up = map(short, lengths(hops))
            typical = f", {counted(len(hops), 'stance')}, median steps down {down}, up {up}"
            titles.append(f"{head}{at} of {start}{typical if number == median else ''}")
            parts.append((number, shown))
            before = body
        head, items, _ = _moments(rec, parts, titles, near=False)
        seen = len(rec.inputs)  # if room is short, drop the last observations, not the actions
        forms.append(Topic(head, [*items[seen:], *items[:seen]]))
    yield forms[0]._replace(shorter=forms[1:])


def trace(rec: Recording) -> Iterator[Topic]:
    """Yield steps of the worst and a median episode; only the median if the returns are similar.

    Yields nothing for a gait: `gait` reports it by its contacts.
    """
    if not rec.shows_numbers or any(gait(rec)):
        return
    returns = np.array(rec.evaluation.returns)
    differ = len(returns) > 1 and returns.std() > _DIFFERENT * np.abs(returns).mean()
    numbers = _starts(rec, worst_too=bool(differ))
    count = _TRACED if len(numbers) == 1 else _TRACED_EACH
    shown: list[tuple[int, list[tuple[int]]]] = []
    titles: list[str] = []
    before = ""
    for number in numbers:
        steps = _grid(len(rec.episodes[number].seen), count)
        if len(steps) > 1:
            at = f"steps {', '.join(map(str, steps))} of "
            titles.append(("" if at == before else at) + _start(rec, number))
            shown.append((number, [(step,) for step in steps]))
            before = at
    if shown:
        line = _moments(rec, shown, titles, near=True)
        yield line._replace(head=f"At {line.head}")


def _starts(rec: Recording, *, worst_too: bool = False) -> list[int]:
    """Return the number of a median episode, with `worst_too` after that of the worst one."""
    ranks = np.argsort(np.array(rec.evaluation.returns), kind="stable").tolist()
    median = ranks[(len(ranks) - 1) // 2]
    return list(dict.fromkeys([ranks[0], median])) if worst_too else [median]


def _start(rec: Recording, number: int) -> str:
    returns = rec.evaluation.returns
    which = "a median one" if number == _starts(rec)[0] else "the worst one"
    start = f"start {number + 1}, {which} ({figure(returns[number])})"
    return start if len(returns) > 1 else "it"


def _moments(
    rec: Recording,
    parts: Sequence[tuple[int, Sequence[tuple[int | None, ...]]]],
    titles: Sequence[str],
    *,
    near: bool,
) -> Topic:
    """Return observations and actions at some steps, possibly grouped, of some episodes.

    The largest value of all steps sets the decimals; with `near` the largest value shown, and
    numbers near 0 have at least two digits.
    """
    tables = []
    for number, _ in parts:
        episode = rec.episodes[number]
        rows = np.stack(episode.seen)
        if not isinstance(rec.policy.action_space, spaces.Discrete):
            rows = np.hstack([rows, np.stack(episode.done)])
        tables.append(rows)
    shown = [
        [[None if k is None else rows[k] for k in group] for group in groups]
        for rows, (_, groups) in zip(tables, parts, strict=True)
    ]
    if near:
        tables = [np.stack([row for g in part for row in g if row is not None]) for part in shown]
    scale = np.max([np.abs(rows).max(axis=0) for rows in tables], axis=0)
    items = []
    for i, name in enumerate([*rec.inputs, *rec.outputs][: len(scale)]):
        courses = []
        for part in shown:
            texts = [
                ["-" if row is None else scaled(row[i], scale[i], near=near) for row in group]
                for group in part
            ]
            values = [text for group in texts for text in group if text != "-"]
            always = f"always {values[0]}" if len(values) > 1 and len({*values}) == 1 else ""
            courses.append(always or ", ".join("/".join(group) for group in texts))
        items.append(f"{name} {' | '.join(courses)}")
    return Topic(f"{' | '.join(titles)}:", items)


def _grid(length: int, count: int) -> list[int]:
    """Return steps to show of an episode, dense at its beginning, which decides the outcome."""
    grid = np.geomspace(min(3, length), length, count) - 1
    return sorted({*grid.round().astype(int).tolist()})
