"""The state of a search as the sum of its events.

Everything that a search knows is `State`, and `reduce` is the only function that makes one: from
the state before an event and the event. A live call and the resume of a file take the same way,
so that a resumed search cannot differ from an uninterrupted one. Anything that is not a function of
state and replies (what a block of Python printed, the facts of a model, the number of workers)
is an event, too.

    state = reduce(state, Told([0.5], [1.25], feedback="overshot"))

An event holds plain JSON, as a line of `llmopt.journal.Journal` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count
from typing import Any, Protocol

import numpy as np

from llmopt.client.base import Reply
from llmopt.data import TrialData
from llmopt.events import (
    CHANGES,
    Asked,
    Called,
    Computed,
    Corrected,
    Event,
    Failed,
    Json,
    Queued,
    Replied,
    Started,
    Told,
    Withdrawn,
    check_amount,
)
from llmopt.history import (
    Direction,
    History,
    Proposal,
    Trial,
    Usage,
    each_error,
    is_source,
    joined,
    proposed,
    without_withdrawn,
)
from llmopt.origin import origin_of
from llmopt.repeats import Merged
from llmopt.space import Space
from llmopt.space.constraints import Limit
from llmopt.space.fixed import Fixed
from llmopt.util.arguments import whole_number

LIMITS = ("constraints", "forbidden")
"""The keys of a stored space that say which points are infeasible."""

_ROUNDING = 1e-9  # of a total violation

Stop = tuple[str, int | None]
"""Why the model ended a search, and the number from 1 of the trial that it recommends."""


class PointSpace(Protocol):
    """What the state needs of a space: `llmopt.space.Space`, or the programs of a code search."""

    def key(self, values: tuple[Any, ...]) -> Any:
        """Return what is equal for equal points."""

    def unflatten(self, values: tuple[Any, ...]) -> Any:
        """Return a point in the form of the user."""

    def to_json_values(self, values: tuple[Any, ...]) -> list[Any]:
        """Return a point as JSON."""

    def from_json_values(self, values: Sequence[Any], measured: bool = False) -> tuple[Any, ...]:
        """Return the point of a line, proposed or `measured`."""


@dataclass(frozen=True)
class PaidReply:
    """A reply that no ask has used yet."""

    number: int
    digest: str
    base: int
    reply: Reply


@dataclass(frozen=True)
class Run:
    """Code that was run for an ask."""

    number: int
    event: Computed


@dataclass(frozen=True)
class State:
    """Everything that a search knows. Immutable.

    Attributes:
        space: The points.
        directions: One for each objective.
        seed: Of all random numbers.
        seeded: Whether each evaluation has a seed.
        noisy: Whether repeated evaluations of a point give different rewards.
        metrics: Names of the objectives; empty if they have none.
        read_data: Returns the arrays that `Told.data` names.
        count: Number of events.
        changes: Number of `CHANGES` among them.
        started: The last `Started`.
        limits: The constraints and forbidden combinations that it names: they judge all trials.
        id: The identifier of the search; empty in older files.
        former: `key` of every point known when the candidates changed: it need be none of them.
        trials: In the order of recording.
        places: In a search that repeats points, the numbers from 0 of the points of each trial up
            to the last correction or withdrawal, or to the first repeats if points did not repeat
            before. So neither renumbers a point: that which it measures, and those that it was.
        unshown: The points of withdrawn measurements that no request has named yet.
        pending: Proposals that an ask returned, without a result, oldest first.
        dropped: The points that were withdrawn for a reason before they had a result, each with it.
        queue: Proposals that no ask has returned yet.
        partial: Points with some parameters that a later ask completes.
        returned: Every proposal that an ask returned: `Proposal.asked` is its number from 1.
        warmed: Number of warm-up points so far.
        usage: Requests, tokens and cost, without calls under way. Never changed in place.
        calls: Number of replies.
        paid: Replies that wait for an ask to use them.
        under_way: The calls of one request that nothing has ended: in doubt after a kill.
        unanswered: Whether the last call was given up before it was sent, and none followed.
        runs: Blocks of asks that settled, in order.
        open_runs: Code that was run since the last ask settled.
        computed: Number of runs so far.
        refused: An answer that cannot be used, and why, if no request has said so yet.
        since: Number of the last `runs` that led to it.
        barren: Number of asks that gave no point.
        fallbacks: Number of random points in the model's place since its last point.
        stop: The model's end of the search.
        advised: Number from 1 of the trial that it recommended last, and how many there were.
        rng: State of the bit generator; ``None`` for a new one.
    """

    space: PointSpace
    directions: tuple[Direction, ...] = ("maximize",)
    seed: int = 0
    seeded: bool = False
    noisy: bool = False
    metrics: tuple[str, ...] = ()
    read_data: Callable[[Json | None], TrialData] = TrialData.read
    count: int = 0
    changes: int = 0
    started: Started | None = None
    limits: tuple[Limit, ...] = ()
    id: str = ""
    former: frozenset[Any] = frozenset()
    trials: tuple[Trial[Any], ...] = ()
    places: tuple[tuple[int, ...], ...] = ()
    unshown: frozenset[int] = frozenset()
    pending: tuple[Proposal, ...] = ()
    dropped: tuple[tuple[tuple[Any, ...], str], ...] = ()
    queue: tuple[Proposal, ...] = ()
    partial: tuple[Fixed, ...] = ()
    returned: tuple[Proposal, ...] = ()
    warmed: int = 0
    usage: Usage = field(default_factory=Usage)
    calls: int = 0
    paid: tuple[PaidReply, ...] = ()
    under_way: tuple[Called, ...] = ()
    unanswered: bool = False
    runs: tuple[Run, ...] = ()
    open_runs: tuple[Run, ...] = ()
    computed: int = 0
    refused: tuple[str, ...] = ()
    since: int = 0
    barren: int = 0
    fallbacks: int = 0
    stop: Stop | None = None
    advised: tuple[int, int] | None = None
    rng: Json | None = None

    @property
    def generator(self) -> np.random.Generator:
        """A generator in the state after the last ask."""
        generator = np.random.default_rng(self.seed)
        if self.rng is not None:
            generator.bit_generator.state = self.rng
        return generator

    @property
    def spent(self) -> Usage:
        """`usage` with the calls under way, each at the most that it can cost."""
        usage = self.usage.copy()
        for call in self.under_way:
            _add_doubt(usage, call)
        return usage

    @property
    def sent(self) -> Usage:
        """`spent` while somebody waits for the calls under way; a free one counts once it ends."""
        spent, calls = self.spent, self.under_way
        return replace(
            spent,
            requests=spent.requests - sum(not call.doubt for call in calls),
            failed_requests=spent.failed_requests - len(calls),
            unpriced=spent.unpriced - sum(call.doubt for call in calls if call.most is None),
        )

    @property
    def interrupted(self) -> int | None:
        """Number of events that the last interrupted ask had seen; ``None`` if there is none."""
        if self.under_way:
            return self.under_way[0].base
        return self.paid[-1].base if self.paid else None

    @property
    def keys(self) -> set[Any]:
        """`key` of every point that was evaluated (or replaced by another), pending or queued."""
        key, trials = self.space.key, without_withdrawn(self.trials)
        points: Iterable[Trial[Any] | Proposal] = (*trials, *self.pending, *self.queue)
        replaced = [t.instead_of for t in trials if t.instead_of is not None]
        return {key(values) for values in (*(point.values for point in points), *replaced)}

    @property
    def repeats(self) -> bool:
        """Whether repeated evaluations of a point count as one trial with their mean."""
        return self.noisy or any(t.kind == "finalist" for t in self.trials)

    def history(self, merged: Merged | None = None) -> History:
        """Return trials and open points; `merged` merges repeats of a noisy search."""
        waiting = tuple([p.values for p in (*self.pending, *self.queue)])
        history = History(self.trials, waiting, self.directions, metrics=self.metrics)
        if self.dropped:
            known, key = self.keys, self.space.key
            dropped = tuple([pair for pair in self.dropped if key(pair[0]) not in known])
            history = replace(history, dropped=dropped)
        if not self.repeats:
            return history
        history = replace(history, places=self.places)
        return (merged or Merged(self.space.key)).of(history)

    def next_seed(self, values: tuple[Any, ...], taken: Sequence[int | None] = ()) -> int | None:
        """Return the seed of a point's next evaluation; ``None`` where there are no seeds.

        The first evaluations of all points have the same seed, the second ones another, and so on.

        Args:
            values: The point, flat.
            taken: Further seeds that are in use.
        """
        if not self.seeded:
            return None
        key = self.space.key(values)
        points: Iterable[Trial[Any] | Proposal] = (*self.trials, *self.pending)
        used = {*taken, *(p.seed for p in points if self.space.key(p.values) == key)}
        seeds = (int(np.random.SeedSequence([self.seed, k]).generate_state(1)[0]) for k in count())
        return next(seed for seed in seeds if seed not in used)

    def without(
        self,
        values: tuple[Any, ...],
        seed: int | None = None,
        *,
        latest: bool = False,
        asked: int = 0,
    ) -> tuple[Proposal | None, State]:
        """Return a point's pending proposal, and the state without it.

        It is the one that is `asked`, if that is not 0. One with `seed` comes first.
        """
        key = self.space.key(values)
        among = [(i, p) for i, p in enumerate(self.pending) if asked in (0, p.asked)]
        places = [i for i, p in among if self.space.key(p.values) == key]
        places = [i for i in places if seed is not None and self.pending[i].seed == seed] or places
        if not places:
            return None, self
        place = places[-1 if latest else 0]
        rest = self.pending[:place] + self.pending[place + 1 :]
        return self.pending[place], replace(self, pending=rest)


def proposal_to_json(proposal: Proposal, space: PointSpace) -> Json:
    """Return a proposal as an `Asked` event holds it."""
    usual = {f.name: f.default for f in fields(Proposal)}
    line = {k: v for k, v in vars(proposal).items() if v != usual[k]}
    return {**line, "values": space.to_json_values(proposal.values)}


def _proposal(line: Mapping[str, Any], space: PointSpace) -> Proposal:
    if not is_source(line["source"]):
        raise ValueError(f"source={line['source']!r}: expected a name, such as 'llm' or 'cma'")
    for name in ("prompt_tokens", "completion_tokens", "seconds"):
        check_amount(name, line.get(name, 0.0))
    return Proposal(**{**line, "values": space.from_json_values(line["values"])})


def _add_doubt(usage: Usage, call: Called) -> None:
    """Count a call of which nothing is known but that it was sent."""
    known = call.most is not None
    cost = call.most or (0.0 if call.priced else None)
    usage.add_failure(1, 0 if known else call.doubt, cost, int(known and call.doubt), call.tokens)


def reduce(state: State, event: Event) -> State:
    """Return the state after an event. Pure.

    Raises:
        LookupError: The event does not fit the state.
        TypeError: A value of the event has another type than expected.
        ValueError: A value of the event is out of its range.
    """
    changes = state.changes + isinstance(event, CHANGES)
    state = replace(state, count=state.count + 1, changes=changes)
    match event:
        case Started():
            return _started(state, event)
        case Called():
            if event.base >= state.count:  # a line before it was deleted
                raise ValueError(f"base={event.base}: only {state.count - 1} events are before it")
            return replace(state, under_way=(*state.under_way, event), unshown=frozenset())
        case Replied():
            return _replied(state, event)
        case Failed():
            usage = state.usage.copy()
            spent = event.requests, event.unpriced, event.cost, event.estimated
            usage.add_failure(*spent, event.prompt_tokens, event.seconds)
            return replace(state, usage=usage, under_way=(), unanswered=event.requests == 0)
        case Computed():
            return _computed(state, event)
        case Asked():
            return _asked(state, event)
        case Corrected():
            return _corrected(state, event)
        case Told():
            return _told(state, event)
        case Queued():
            return _queued(state, event)
        case Withdrawn():
            return _withdrawn(state, event)
    raise TypeError(f"{type(event).__name__} is no event of a search")


def _started(state: State, event: Started) -> State:
    there, now = ({} if e is None else e.identity.get("space", {}) for e in (state.started, event))
    same = all(there.get(k) == now.get(k) for k in LIMITS)
    if state.started is not None:
        may_stop = ["may_stop" in e.options for e in (state.started, event)]
        if there.get("candidates") != now.get("candidates"):
            state = replace(state, former=frozenset(state.keys), stop=None)
        if not same or may_stop == [True, False]:
            state = replace(state, stop=None)
    if event.id and not state.id:  # an older file may have trials by now
        encode = state.space.to_json_values
        trials = (
            t
            if t.origin
            else replace(t, origin=origin_of(event.id, n, encode(t.values), t.rewards))
            for n, t in enumerate(state.trials)
        )
        state = replace(state, id=event.id, trials=tuple(trials))
    noisy = bool(event.identity.get("options", {}).get("noisy"))
    state = replace(state if not noisy else _with_places(state), started=event, noisy=noisy)
    if not isinstance(state.space, Space) or same:
        return state
    state = replace(state, limits=state.space.limits_of(now))
    return replace(state, trials=tuple([_judged(state, trial) for trial in state.trials]))


def _with_places(state: State) -> State:
    """Return the state before points repeat: later answers name them by the numbers so far."""
    if state.repeats:
        return state
    first: dict[Any, int] = {}
    places = []
    for number, trial in enumerate(state.trials):
        complete = trial.state == "complete"
        home = first.setdefault(state.space.key(trial.values), number) if complete else number
        places.append((number,) if home == number else (home, number))
    return replace(state, places=tuple(places))


def _judged(state: State, trial: Trial[Any]) -> Trial[Any]:
    """Return a trial with the violation of the constraints that hold now."""
    total = trial.measured_violation + _broken(state, trial.values)
    if trial.rewards is None or total == trial.constraint_violation:
        return trial
    return replace(trial, constraint_violation=total)


def _broken(state: State, values: tuple[Any, ...]) -> float:
    """Return by how much a point violates the constraints that hold now."""
    if not state.limits:
        return 0.0
    assert isinstance(state.space, Space)
    return sum(state.space.broken(values, state.limits).values())


def _replied(state: State, event: Replied) -> State:
    reply, usage = Reply.from_dict(event.reply), state.usage.copy()
    usage.add_reply(reply)
    base = state.under_way[0].base if state.under_way else state.count - 1
    paid = (*state.paid, PaidReply(state.calls + 1, event.digest, base, reply))
    calls = state.calls + 1
    return replace(state, usage=usage, under_way=(), calls=calls, paid=paid, unanswered=False)


def _computed(state: State, event: Computed) -> State:
    usage, run = state.usage.copy(), Run(state.computed + 1, event)
    if event.block:
        usage.add_block(event.seconds, event.tokens)
    return replace(state, usage=usage, computed=run.number, open_runs=(*state.open_runs, run))


def _queued(state: State, event: Queued) -> State:
    point = queued_point(state, event)
    if isinstance(point, Fixed):
        return replace(state, stop=None, partial=(*state.partial, point))
    queue, users = list(state.queue), sum(p.source == "user" for p in state.queue)
    queue.insert(users, point)
    return replace(state, stop=None, queue=tuple(queue))


def queued_point(state: State, event: Queued) -> Proposal | Fixed:
    """Return the point that an event queues: the user's, until `ask` returns it."""
    if event.fixed:
        assert isinstance(state.space, Space)
        return Fixed.read(state.space, event.fixed, event.words)
    values = state.space.from_json_values(event.values)
    words = state.returned[event.asked - 1].explanation if event.asked else event.words
    return Proposal(values, "user", words, asked=event.asked)


def _withdrawn(state: State, event: Withdrawn) -> State:
    if event.trial is not None:
        state = _without_trial(state, event.trial, event)
    if event.fixed:
        place = [p.to_json() for p in state.partial].index(dict(event.fixed))
        partial = state.partial[:place] + state.partial[place + 1 :]
        state = replace(state, partial=partial)
    for values in reversed(event.points):
        point = state.space.from_json_values(values)
        proposal, state = state.without(point, latest=event.queued, asked=event.asked)
        if proposal is not None and event.queued:
            state = replace(state, queue=(replace(proposal, seed=None), *state.queue))
        elif proposal is None and not event.queued:
            key = state.space.key(point)
            places = [i for i, p in enumerate(state.queue) if state.space.key(p.values) == key]
            if not places:
                raise ValueError("a point was withdrawn that is neither pending nor queued")
            queue = state.queue[: places[0]] + state.queue[places[0] + 1 :]
            state = replace(state, queue=queue)
        if event.feedback:
            state = replace(state, dropped=(*state.dropped, (point, event.feedback)))
    return state


def _without_trial(state: State, number: int, event: Withdrawn) -> State:
    """Return the state without the result of a trial, which keeps its number."""
    trial = state.trials[number]
    about: Json = {**proposed(trial), "seed": None, "kind": trial.kind, "params": trial.params}
    about["old_points"] = trial.old_points
    if event.values:
        values = state.space.from_json_values(event.values, measured=True)
        about |= {"values": values, "params": state.space.unflatten(values)}
        about["old_points"] += (trial.values,)
    about |= {"instead_of": trial.instead_of, "corrected": trial.corrected}
    about |= {"rewards": None, "old_rewards": _old_rewards(trial), "was": trial.was or trial}
    about |= {"feedback": event.feedback, **_identity(state, trial, event)}
    gone: Trial[Any] = Trial(number=number, state="withdrawn", **about)
    return replace(_with_other(state, gone), stop=None)


def _with_other(state: State, trial: Trial[Any]) -> State:
    """Return the state with another trial in place of that of the same number.

    Later answers name points by their numbers, so that no other point may get another number.
    """
    number, unshown = trial.number, state.unshown
    trials = (*state.trials[:number], trial, *state.trials[number + 1 :])
    if not state.repeats:
        return replace(state, trials=trials)
    points, key = state.history().trials, state.space.key
    places: dict[int, tuple[int, ...]]
    places = {n: (point.number,) for point in points for n in point.measurements}
    places |= {n: places[n] + more[1:] for n, more in enumerate(state.places)}
    place, *left = places.pop(number)
    home = None
    if trial.state == "complete":
        same = (n for n in places if trials[n].state == "complete")
        home = next(
            (places[n][0] for n in same if key(trials[n].values) == key(trial.values)), None
        )
    if place not in (first for first, *_ in places.values()):
        left = [place, *left]
    elif home is None and not left:
        left = [len(points)]
        unshown |= {len(points)}
    places[number] = tuple(left if home is None else [home, *(n for n in left if n != home)])
    firsts = {first for first, *_ in places.values()}
    while (last := max(map(max, places.values()))) in unshown - firsts:
        places = {n: tuple(p for p in each if p != last) for n, each in places.items()}
    kept = tuple(places[n] for n in range(len(trials)))
    return replace(state, trials=trials, places=kept, unshown=unshown)


def _identity(state: State, trial: Trial[Any], event: Corrected | Withdrawn) -> Json:
    """Return the origin and the revisions of a trial that was changed, here or in its source."""
    if event.revisions:
        return {"origin": trial.origin, "revisions": dict(event.revisions)}
    here = {**trial.revisions, state.id: trial.revisions.get(state.id, 0) + 1}
    return {"origin": trial.origin, "revisions": here, "base": trial.base or trial}


def _old_rewards(trial: Trial[Any]) -> tuple[tuple[float, ...], ...]:
    """Return the rewards that a trial has had, if it gets others now."""
    now = (trial.rewards or (),)
    kept = trial.was is not None or now == trial.old_rewards[-1:]
    return trial.old_rewards if kept else trial.old_rewards + now


def _asked(state: State, event: Asked) -> State:
    new = [_proposal(line, state.space) for line in event.new]
    waiting = {i for i in event.waiting if i < len(state.queue)}
    passed = {i - len(state.queue) for i in event.waiting if i not in waiting}
    completed = [i for i in range(len(state.partial)) if i not in passed][: event.completed]
    ready = [*(p for i, p in enumerate(state.queue) if i not in waiting), *new]
    if event.given > len(ready):
        raise ValueError(f"{event.given} points were returned, and {len(ready)} were ready")
    given: list[Proposal] = []
    for proposal in ready[: event.given]:
        same = [
            p.seed for p in given if state.space.key(p.values) == state.space.key(proposal.values)
        ]
        seed = state.next_seed(proposal.values, same)
        source = state.returned[proposal.asked - 1].source if proposal.asked else proposal.source
        number = len(state.returned) + len(given) + 1
        given.append(replace(proposal, source=source, seed=seed, asked=number))
    usage, fallbacks = state.usage.copy(), state.fallbacks
    for proposal in new:
        usage.proposals[proposal.source] = usage.proposals.get(proposal.source, 0) + 1
        fallbacks = 0 if proposal.source in ("llm", "drawn") else fallbacks
        fallbacks += proposal.source == "fallback"
    for reason, times in event.rejected.items():
        usage.rejected[reason] = usage.rejected.get(reason, 0) + times
    if event.rng is not None:
        np.random.default_rng(0).bit_generator.state = event.rng  # what it refuses is not written
    asked_nobody = event.given > 0 and not new and event.rng is None
    refused, since = state.refused, state.since
    stop = _stop(event.stop)
    advised = stop and stop[1] and (stop[1], len(state.trials))
    if not asked_nobody:
        refused = tuple(event.refused)
        since = since + len(event.blocks) if refused else 0
    return replace(
        state,
        usage=usage,
        pending=(*state.pending, *given),
        returned=(*state.returned, *given),
        queue=(*(state.queue[i] for i in sorted(waiting)), *ready[event.given :]),
        partial=tuple([p for i, p in enumerate(state.partial) if i not in completed]),
        warmed=state.warmed + sum(p.source == "warmup" for p in new),
        unanswered=state.unanswered and asked_nobody,
        # Replies that were not used belong to an ask that took another way.
        paid=state.paid if asked_nobody else (),
        runs=state.runs + tuple(run for run in state.open_runs if run.number in event.blocks),
        open_runs=state.open_runs if asked_nobody else (),
        refused=refused,
        since=since,
        barren=state.barren + (not ready and event.stop is None and not event.refused),
        fallbacks=fallbacks,
        stop=stop or state.stop,
        advised=advised or state.advised,
        rng=event.rng or state.rng,
    )


def _stop(stop: Sequence[Any] | None) -> Stop | None:
    if stop is None:
        return None
    why, point = stop
    return str(why), None if point is None else whole_number("stop", point, 1)


def _told(state: State, event: Told) -> State:
    if event.kind == "finalist":
        state = _with_places(state)
    values = state.space.from_json_values(event.values, measured=True)
    asked = state.space.from_json_values(event.instead_of) if event.instead_of else None
    imported = event.kind == "imported"  # its asked point is of the other search
    point = values if asked is None or imported else asked
    proposal, after = state.without(point, event.seed, asked=event.asked)
    stop = state.stop
    if proposal is None and asked is not None and not imported:
        raise ValueError("a point was measured in place of one that is not pending")
    if proposal is None and event.kind == "finalist":  # its first evaluation says who proposed it
        first = next((t for t in state.trials if t.values == values), None)
        proposal = Proposal(values, first.source) if first else None
    elif proposal is None and event.kind == "search":
        stop = None  # the user continues the search
        at = (t for t in reversed(state.trials) if values in (t.values, t.instead_of))
        last = next(at, None)  # if that was measured here, a repeat is the user's own
        if event.asked and all(t.asked != event.asked for t in state.trials):
            proposal = state.returned[event.asked - 1]  # it was withdrawn
        elif last is not None and _open(last) == values:
            proposal = Proposal(values, last.source, last.explanation)
    about = {**vars(proposal or Proposal(values, "user")), "values": values, "instead_of": asked}
    number = len(state.trials)
    own = origin_of(state.id, number, event.values, event.rewards)
    about |= {"origin": event.origin or own, "revisions": dict(event.revisions)}
    trial = _trial(state, event, number, **about)
    return replace(after, trials=(*state.trials, trial), stop=stop)


def _open(trial: Trial[Any]) -> tuple[Any, ...] | None:
    """Return a point that was proposed for a trial and has no result, if there is one."""
    return trial.instead_of if trial.state == "complete" else trial.instead_of or trial.values


def _result(trial: Trial[Any]) -> tuple[Any, ...]:
    measured = trial.rewards, trial.constraint_violation, trial.stderr, trial.samples
    return trial.values, *measured, trial.feedback, trial.data.digest


def _corrected(state: State, event: Corrected) -> State:
    before = state.trials[event.number]
    values = state.space.from_json_values(event.values, measured=True)
    about = proposed(before) | {"instead_of": before.instead_of}
    if event.asked:
        proposal, state = state.without(values, asked=event.asked)
        if proposal is None:
            raise ValueError("a result was moved to a point that is not pending")
        about = {**vars(proposal), "instead_of": None}
        if before.asked:
            pending = (*state.pending, state.returned[before.asked - 1])
            state = replace(state, pending=tuple(sorted(pending, key=lambda p: p.asked)))
    about |= {"values": values, "corrected": before.corrected + 1}
    about |= {"old_rewards": _old_rewards(before), **_identity(state, before, event)}
    if event.revisions:
        asked = event.instead_of
        about["instead_of"] = state.space.from_json_values(asked) if asked else None
    trial = _trial(state, event, event.number, **about)
    moved = trial.values != before.values
    trial = replace(trial, old_points=before.old_points + (before.values,) * moved)
    was, first = before.was or before, next(iter(trial.old_rewards), None)
    kept = trial.rewards == was.rewards
    revised = was.revised if kept else (trial.rewards or ()) != first
    trial = replace(trial, kind=before.kind, revised=revised)
    same = _result(trial) == _result(was)
    if same and was.parts.items() <= trial.parts.items():  # got parts: nothing was wrong
        trial = replace(trial, corrected=was.corrected, old_rewards=before.old_rewards)
    # The end may have followed from the mistake, if more than words and parts were wrong.
    kept = _result(replace(trial, feedback=before.feedback)) == _result(before)
    return replace(_with_other(state, trial), stop=state.stop if kept else None)


def _trial(state: State, event: Told, number: int, **about: Any) -> Trial[Any]:
    rewards = None if event.rewards is None else tuple(map(float, event.rewards))
    if rewards is not None and len(rewards) != len(state.directions):
        raise ValueError(f"{len(rewards)} rewards: expected {len(state.directions)}")
    errors = each_error(event.stderr, len(state.directions))
    if len(errors) != len(state.directions):
        raise ValueError(f"{len(errors)} standard errors: expected {len(state.directions)}")
    about["seed"] = about["seed"] if event.seed is None else event.seed
    measured = event.violation - _broken(state, about["values"])
    return Trial(
        number=number,
        params=state.space.unflatten(about["values"]),
        rewards=rewards,
        state="failed" if rewards is None else "complete",
        feedback=event.feedback,
        constraint_violation=event.violation,
        measured_violation=measured if measured > _ROUNDING * event.violation else 0.0,
        stderr=joined(errors),
        samples=tuple(event.samples),
        kind=event.kind,  # type: ignore[arg-type]
        data=state.read_data(event.data),
        ties=tuple(event.ties),
        parts=dict(event.parts),
        **about,
    )
