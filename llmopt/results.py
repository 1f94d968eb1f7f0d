"""The results of a search: how they are checked, recorded and imported."""

from __future__ import annotations

import difflib
import logging
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Unpack

from llmopt.callbacks import Callbacks
from llmopt.client.base import client_name
from llmopt.data import Evaluation
from llmopt.errors import ParameterError, RewardError, described, did_you_mean
from llmopt.evaluations import (
    Errors,
    Result,
    TellArguments,
    evaluated_point,
    expected_by_name,
    objective_name,
    part_name,
    refuse_far,
)
from llmopt.evaluations import read_result as checked_result
from llmopt.events import Asked, Corrected, Told, Withdrawn
from llmopt.history import Kind, Params, Trial, each_error, joined, without_withdrawn
from llmopt.imports import ImportReport, doubt_of, notes_on, read_rows
from llmopt.model_calls import Account
from llmopt.options import SearchOptions
from llmopt.other_search import read_source
from llmopt.prompt import Prompt
from llmopt.record import Record
from llmopt.state import State
from llmopt.util.arguments import whole_number
from llmopt.util.caller import CALLER
from llmopt.util.closing import Closing
from llmopt.util.text import clean, short
from llmopt.views import Views, outcome

logger = logging.getLogger(__name__)

_SIMILAR = 0.75  # of the names of two parts of which one may be misspelled, from 0 to 1


class Results(Record[Params], Views, Account, Closing, Generic[Params]):
    """The part of `LLMOptimizer` that records results."""

    prompt: Prompt
    _callbacks: Callbacks | None
    _options: SearchOptions
    _warned_of: set[bool]  # of repeats with equal and with other rewards

    def tell(
        self,
        params: Any,
        reward: Any,
        *,
        feedback: str | None = None,
        constraint_violation: float | None = None,
        stderr: Errors | None = None,
        samples: Sequence[float] | None = None,
        curve: Sequence[float] | Sequence[tuple[float, float]] | None = None,
        data: Mapping[str, Any] | None = None,
        seed: int | None = None,
        parts: Mapping[str, float | None] | None = None,
        instead_of: Any = None,
        replaces: int | None = None,
    ) -> Trial[Params]:
        """Record the reward of a point.

        A point that `ask` returned is matched by its values, in any order; any other
        valid point is recorded as the user's own, with a warning if it is none of the candidates or
        has a number between two steps. With `instead_of` or `replaces`, and in a
        point that was measured before, a number may also lie beyond its bound, with a warning:
        `best` may be such a point, and no proposal is one.
        NaN, infinity and ``None`` count as a failed evaluation.

        Args:
            params: A point in the form of the given space; copied.
            reward: A number, or one for each objective, in their order or as a mapping from their
                names; or an `Evaluation`.
            feedback: Words about this point for prompts that show them.
            constraint_violation: Sum of the amounts by which constraints are violated; 0
                is feasible, and feasible points rank before the others. The amounts by which the
                point breaks the space's linear constraints are added.
            stderr: Standard error of the reward, for prompts that show it. For several objectives
                one for each, in their order or by their names; a number is that of the first one.
            samples: The numbers whose mean is the reward, if every point is evaluated with the same
                seeds in the same order. Prompts then compare points seed by seed, and `stderr` is
                computed if it is not given.
            curve: Intermediate values of the evaluation, or pairs of a step and a value. The prompt
                shows them, downsampled, in one line before `feedback`.
            data: Named arrays, lists of arrays, or mappings of these, such as the steps of a
                simulation. They stay on this machine: prompts show names and shapes, and the
                model's Python reads the arrays (see docs/compute.md).
            seed: The seed of the evaluation, if it differs from `seed_of`.
            parts: Named numbers that the reward is made of, ``{"yield": 78.8, "waste": 1.0}``. The
                prompt shows them beside it, and the model's Python has them as arrays. With
                `replaces`, ``None`` removes a part.
            instead_of: The pending point that `params` was measured in place of, because a
                parameter could not be set exactly. It is no longer pending, and the model's reasons
                for it belong to this trial.
            replaces: Number from 0 (`Trial.number`) of a trial whose result was wrong, or was
                re-evaluated: it gets this point and this reward in place of its own. The point
                may not be that of another trial, unless points may be repeated and the reward is
                equal. If this point is pending, the trial is its result now, and the point that it
                was recorded for is pending again; else it keeps who proposed it. It keeps, as far
                as they are not given again, rewards of other names, `feedback` (unless it had
                failed; ``""`` removes it), each of `parts`, `constraint_violation`, `data` and
                `seed`; beside an equal reward also `stderr` and `samples`. ``None`` is no reward
                here: give NaN if the evaluation failed. Prompts, `best` and reports follow.

        Returns:
            The recorded trial.

        Raises:
            ParameterError: A value is of another kind, beyond its bound without `instead_of` and
                `replaces` at a new point, or far beyond it; the message names the parameter. Or
                `instead_of` is not pending, or `params` beside it is; there is no trial
                `replaces`, or another trial has the point.
            RewardError: The reward is not a number, or not one for each objective;
                `constraint_violation` or `stderr` is negative or not finite; or a correction
                changes nothing, or removes a part that the trial does not have.
            DataError: An entry of `data` has an unsupported type, or the data are too large.
            StorageError: The storage file could not be written. Nothing was recorded.
        """
        result = self.read_result(
            params,
            reward,
            feedback=feedback,
            constraint_violation=constraint_violation,
            stderr=stderr,
            samples=samples,
            curve=curve,
            data=data,
            seed=seed,
            parts=parts,
            instead_of=instead_of,
            replaces=replaces,
        )
        before = None if result.replaces is None else self.trials[result.replaces]
        before = (before and before.was) or before
        if reward is None and before is not None and before.rewards is not None:
            raise RewardError(
                f"reward=None with replaces={replaces}: give the reward, {before.reward} if it was "
                "right, or NaN if the evaluation failed"
            )
        self.check_change(result)
        return self.tell_as(result)

    def tell_failure(self, params: Any, reason: str | BaseException = "") -> Trial[Params]:
        """Record that a point could not be evaluated.

        The prompt shows the failure, and the point is not proposed again. If it failed for a
        reason outside of the point, ``withdraw(trial=...)`` takes the trial back for another run.

        Args:
            params: A point of the space.
            reason: Why, in words.

        Returns:
            The recorded trial.

        Raises:
            ParameterError: The point is not in the space.
            StorageError: The storage file could not be written. Nothing was recorded.
        """
        return self.tell_as(self.read_failure(params, reason))

    def read_result(self, params: Any, reward: Any, *, asked: int = 0, **words: Any) -> Result:
        """Check a result, and return what `tell` would record; `tell_as` records it.

        `asked` is `Proposal.asked` of the point that the caller named; 0 if it gave parameters.
        """
        words = {name: value for name, value in words.items() if value is not None}
        if isinstance(reward, Evaluation):
            reward, words = reward.value, reward.told_with(words)
        before, state = self._replaced(words.get("replaces")), self._journal.state
        if isinstance(reward, Mapping) and self.metrics:
            had = before and (before.was or before).rewards
            others = zip(self.metrics, had or (), strict=False)
            named = set(map(objective_name, reward))
            reward = {**{n: one for n, one in others if n not in named}, **reward}
            if expected := expected_by_name(reward, self.metrics):
                raise RewardError(f"reward={short(reward)}: {expected}")
            given = {objective_name(name): value for name, value in reward.items()}
            rewards = [given[name] for name in self.metrics]
            reward = rewards if len(rewards) > 1 else rewards[0]
        first, count, names = self.directions[0], len(self.directions), self.metrics
        if self._measured_before(params):
            words["beyond"] = True
        result = checked_result(
            self.space, count, params, reward, direction=first, names=names, **words
        )
        result = replace(result, asked=asked)
        if result.instead_of is not None:
            _check_place(state, result, words["instead_of"])
        if before is None or before.values != result.values:
            refuse_far(self.space, result.values)
        if before is None:
            return result
        caller, here, settled = CALLER.get(), self.named(before.number), self._settled(result)
        if settled and before.state == "withdrawn":
            raise ParameterError(
                f"{caller.trial('replaces', before.number)}: {here} was withdrawn, and the point "
                f"given is pending: record its result without {caller.argument('replaces')}"
            )
        key = self.space.key
        same = [t.number for t in state.trials if key(t.values) == key(result.values)]
        moved = self.may_repeat and result.rewards == before.rewards  # the point alone was wrong
        if moved or (asked and settled):  # the name says which evaluation it is
            same = []
        if same and before.number not in same and before.state != "withdrawn":
            remedy = "give " + " or ".join(caller.trial("replaces", n) for n in same)
            raise ParameterError(
                f"{caller.trial('replaces', before.number)}: {here} is {short(before.params)} with "
                f"reward {before.reward}, and the point given, "
                f"{short(self.space.labelled(result.values))}, is that of "
                f"{' or '.join(map(self.named, same))}: if {here} was measured there, withdraw "
                f"it, and record it anew; if {here} is right, {remedy}"
            )
        return self._corrected(result, before.was or before, words)

    def _replaced(self, number: Any) -> Trial[Any] | None:
        """Return the trial that a result replaces, if any."""
        trials = self._journal.state.trials
        if number is None:
            return None
        if (index := whole_number("replaces", number, 0)) >= len(trials):
            raise ParameterError(
                f"replaces={number}: got {len(trials)} trials, numbered from 0; expected the "
                "number of the trial whose result was wrong"
            )
        return trials[index]

    def check_change(self, result: Result) -> None:
        """Raise if a result corrects a trial, and changes nothing."""
        if result.replaces is None:
            return
        trial = self._journal.state.trials[result.replaces]
        names = ("values", "rewards", "stderr", "samples", "seed", "parts", "data")
        same = all(getattr(result, name) == getattr(trial, name) for name in names)
        same &= clean(result.feedback) == trial.feedback and not self._settled(result)
        same &= math.isclose(result.violation, trial.constraint_violation)
        if same and trial.state != "withdrawn":
            raise RewardError(
                f"{CALLER.get().trial('replaces', trial.number)} changes nothing in "
                f"{self.named(trial.number)}: give what was wrong: the point, reward, failed, "
                "feedback or parts"
            )

    def _corrected(self, result: Result, before: Trial[Any], given: Mapping[str, Any]) -> Result:
        """Return a corrected result with what the trial had, as far as it is not `given`."""
        kept: dict[str, Any] = {"data": before.data, "seed": before.seed}
        own = before.asked and self.returned_proposals[before.asked - 1].seed
        if own == before.seed and self._settled(result):  # the other point has its own
            del kept["seed"]
        kept["constraint_violation"] = before.measured_violation
        n = len(self.directions)
        now, then = (rewards or [None] * n for rewards in (result.rewards, before.rewards))
        equal = [a == b for a, b in zip(now, then, strict=True)]
        kept |= {"samples": before.samples} if equal[0] else {}
        if before.rewards is not None and not result.feedback:
            kept["feedback"] = before.feedback
        kept = {name: value for name, value in kept.items() if name not in given}
        old, new = (each_error(error, n) for error in (before.stderr, result.stderr))
        told = [error is not None and "stderr" in given for error in new]
        each = zip(equal, told, old, new, strict=True)
        kept["stderr"] = joined([o if same and not t else e for same, t, o, e in each])
        changed = given.get("parts")
        if changed or changed is None:
            kept["parts"] = {**before.parts, **result.parts}
        for name in [part_name(name) for name, value in (changed or {}).items() if value is None]:
            if kept["parts"].pop(name, None) is None:
                raise RewardError(
                    f"parts: {self.named(before.number)} has no part {name!r} to remove; "
                    f"{did_you_mean(name, before.parts)}"
                )
        kept["violation"] = result.violation + kept.pop("constraint_violation", 0.0)
        return replace(result, **kept)

    def _settled(self, result: Result) -> int:
        """Return which pending point has its result by a correction: `Proposal.asked`, or 0."""
        assert result.replaces is not None
        state, key = self._journal.state, self.space.key
        if not result.asked and key(state.trials[result.replaces].values) == key(result.values):
            return 0
        proposal, _ = state.without(result.values, result.seed, asked=result.asked)
        return 0 if proposal is None else proposal.asked

    def read_failure(self, params: Any, reason: str | BaseException = "") -> Result:
        """Check a failure, and return what `tell_failure` would record."""
        if isinstance(reason, BaseException):
            reason = described(reason)
        values = evaluated_point(self.space, params, self._measured_before(params))
        return Result(values, None, str(reason))

    def _measured_before(self, params: Any) -> bool:
        """Whether a point beyond a bound is that of a trial, so that it may be told again."""
        try:
            values = self.space.flatten(params, measured=True)
        except ParameterError:
            return False  # the caller reports it
        if not self.space.deviation(values, steps=False):
            return False
        key, trials = self.space.key, without_withdrawn(self._journal.state.trials)
        return key(values) in {key(t.values) for t in trials}

    def tell_as(self, result: Result, kind: Kind = "search") -> Trial[Params]:
        """Record a result that `read_result` or `read_failure` has checked, as one of a kind."""
        with self._journal.lock:
            if kind == "search":
                self._warn_of_repeat(result)
            number = -1 if result.replaces is None else result.replaces
            before = self._journal.state.trials[number] if number >= 0 else None
            name = self.named(number) if before is not None else ""
            trial = self._record(result, kind).trials[number]
        if before is not None and before.values != trial.values:
            was = self.space.labelled(before.values)
            said = f"{name} was corrected to another point: it was {was}"
            logger.warning("%s with reward %s", said, before.reward)
        if before is not None and before.asked not in (0, trial.asked):
            freed = self.returned_proposals[before.asked - 1].values
            logger.warning("pending again: %s", self.space.labelled(freed))
        if doubt := self.doubt(trial):
            logger.warning("%s", doubt)
        if self._callbacks is not None:
            history = self.history
            best = history.best and history.recorded(history.best)
            self._callbacks.notify("told", trial, best, self.usage)
        self._inform()
        return trial

    def _record(self, result: Result, kind: Kind) -> State:
        """Store the data of a result, then its event."""
        with self._journal.lock:
            state, encode, kind_of = self._journal.state, self.space.to_json_values, Told
            number, again, more = len(state.trials), 0, dict[str, Any]()
            asked = result.asked
            if result.replaces is not None:
                number, kind_of, asked = result.replaces, Corrected, self._settled(result)
                before, more = state.trials[number], {"number": number}
                again = before.corrected + 1
            if result.instead_of is not None:
                more |= {"instead_of": encode(result.instead_of)}
            return self._journal.append(
                kind_of(
                    encode(result.values),
                    result.rewards,
                    clean(result.feedback),
                    result.violation,
                    result.stderr,
                    result.samples,
                    kind,
                    self._journal.arrays.keep(result.data, number, again),  # before its event
                    result.seed,
                    parts=dict(result.parts),
                    asked=asked,
                    origin=result.origin,
                    revisions=dict(result.revisions),
                    **more,
                )
            )

    def doubt(self, trial: Trial[Any]) -> str:
        """Say why a trial's point could not have been proposed, or a part is misspelled, perhaps.

        Of a point that was measured in place of another one, only numbers beyond a bound are in
        doubt. A part is in doubt if no earlier trial has it, and they have one of a similar name.
        """
        if trial.state == "withdrawn":
            return ""
        moved, former = trial.instead_of is not None, self._journal.state.former
        wrong = doubt_of(self.space, trial.values, moved, former)
        right = CALLER.get().trial("replaces", trial.number)
        said = wrong and (
            f"{self.named(trial.number)}: {wrong}. It was recorded all the same; if "
            f"that is a mistake, record the right point with {right}"
        )
        return ". ".join(filter(None, [said, *self._doubts_of_parts(trial)]))

    def _doubts_of_parts(self, trial: Trial[Any]) -> Iterator[str]:
        """Yield, for each part that no earlier trial has, which similar name they have."""
        new, earlier = set(trial.parts), self._journal.state.trials[: trial.number]
        for before in earlier:
            if not new:
                return
            new -= before.parts.keys()
        names = {name for before in earlier for name in before.parts}
        caller = CALLER.get()
        right = caller.trial("replaces", trial.number)
        for name in sorted(new):
            for near in difflib.get_close_matches(name, names, n=1, cutoff=_SIMILAR):
                if near in trial.parts:  # then they are two parts
                    continue
                value = trial.parts[name]
                remedy = f"{right}, {caller.argument('parts', {near: value, name: None})}"
                if caller.options:
                    given = shlex.quote(f"{near}={value}"), shlex.quote(f"{name}=")
                    remedy = f"{right} --part {given[0]} --part {given[1]}"
                yield (
                    f"{self.named(trial.number)}: no earlier trial has a part {name!r}; did you "
                    f"mean {near!r}? Correct it with {remedy}"
                )

    def repeated(self, result: Result) -> Trial[Any] | None:
        """Return the withdrawn trial that a result corrects, or the last of a point told again."""
        state = self._journal.state
        if result.replaces is not None and state.trials[result.replaces].state == "withdrawn":
            return state.trials[result.replaces]
        new = result.samples or result.replaces is not None or result.instead_of is not None
        if new or any(p.values == result.values for p in state.pending):
            return None
        before = next((t for t in reversed(state.trials) if t.values == result.values), None)
        return None if before is None or before.state == "withdrawn" else before

    def repetition(self, result: Result, before: Trial[Any]) -> str:
        """Say that a result records the point of an earlier trial again; see `repeated`."""
        name, caller = self.named(before.number), CALLER.get()
        if before.state == "withdrawn":
            said, was = f"{name} was withdrawn: it counts again", before.was
            same = was.parts.items() & result.parts.items() if was else ()
            kept = [f"part {part}" for part, _ in sorted(same)]
            kept += ["feedback"] * bool(was and was.feedback and was.feedback == result.feedback)
            return said + f", with its former {', '.join(kept)}" * bool(kept)
        trials = self._journal.state.trials
        new = caller.trial("trial", len(trials))
        remedy = f"If it corrects that trial, withdraw the new one ({new}), and tell the result "
        remedy += f"with {caller.trial('replaces', before.number)}"
        if self._options.noisy:
            made = sum(t.values == result.values and t.state != "withdrawn" for t in trials)
            counts = "they count as one point with their mean reward"
            if None in (result.rewards, before.rewards):
                counts = "a failure does not count in the mean reward of a point"
            return f"this is evaluation {made + 1} of the point of {name}: {counts}. {remedy}"
        if result.rewards is None:
            now = "as a failure"
        elif result.rewards == before.rewards:
            now = "with the same reward"
        else:
            rewards = result.rewards[0] if len(result.rewards) == 1 else result.rewards
            earlier = "a failure" if before.rewards is None else before.reward
            now = f"with another reward ({rewards}, before {earlier})"
        return (
            f"the point of {name} was recorded again {now}: it counts as another trial. {remedy}. "
            "If rewards are noisy, set `noisy` to true"
        )

    def _warn_of_repeat(self, result: Result) -> None:
        """Warn of a repeat: of each failed point that has a reward now, else once for each kind."""
        before = self.repeated(result)
        if before is not None and before.state == "withdrawn":
            logger.warning("%s", self.repetition(result, before))
            return
        if self._options.noisy or before is None:
            return
        same = result.rewards == before.rewards
        if same not in self._warned_of or (before.state == "failed" and not same):
            self._warned_of.add(same)
            logger.warning("%s", self.repetition(result, before))

    def import_trials(self, source: Any) -> ImportReport:
        """Import trials of an earlier search; no request is sent.

        Known trials are skipped, so a script may call this at each start. A trial that came from
        another search of llmopt follows it: what was corrected, withdrawn or restored there since
        is recorded here, unless the trial was changed here, and not changed back. A row without the
        ``origin`` of its trial (a table of yours, another study, an older file) is known if a trial
        has its point and outcome, or had them when it was recorded; new parts are added. A
        queued point (``start=``) that gets its result so is not asked, unless points may be
        repeated.

        Args:
            source: A storage file, an Optuna study, or a table: a CSV file, a DataFrame, or a list
                of dictionaries. Parameters must have the names of this search. The columns of a
                table are the parameters' names (with or without the ``params_`` of
                `trials_dataframe`), ``reward`` (or ``reward_0``, ...), and optionally
                ``feedback``, ``stderr``, ``constraint_violation`` (as `tell` takes it) and
                ``parts_NAME`` for each part. An objective's own name can replace ``reward``. A row
                without a reward column, or with some of several rewards, is refused. One of a file
                or a DataFrame with an empty reward is skipped as not yet measured, unless its
                ``state`` is ``failed``. In a list, a reward of ``None`` or NaN has failed, as in
                `tell`. One with a text in ``instead_of`` may lie beyond bounds; as JSON
                it is the point that was asked for.

        Returns:
            The outcome of each row; print it.

        Raises:
            ParameterError: The source has another direction, other objectives or two columns of
                one name, or a parameter's unit differs.
            StorageError: A file cannot be read or is a database, or the storage cannot be written.
            TypeError: `source` is something else.
        """
        report = self.record_trials(source)
        if report.all_refused:
            logger.warning("no row could be taken of the %s", report)
        return report

    def record_trials(self, source: Any) -> ImportReport:
        """Import trials as `import_trials` does, and log nothing."""
        names = [n for n in self.metrics if len(self.metrics) > 1 or n not in self.space.place]
        other = read_source(source, self.directions, names)
        unasked = []
        with self._journal.lock:  # not as one step: each of its trials is
            state, check = self._journal.state, self.read_result
            found, rows = read_rows(self.space, other, state, check, self.named)
            for one in found:
                if isinstance(one, Withdrawn):
                    self._journal.append(one)
                    continue
                if one.replaces is None and self._take_from_queue(one.values):
                    unasked.append(self.space.labelled(one.values))
                self._record(one, "imported")
        notes = notes_on(other, self._options.task, self.space)
        if unasked:
            notes += (f"queued points that have a result now, and are not asked: {short(unasked)}",)
        return ImportReport(other.title, rows, notes)

    def _take_from_queue(self, values: tuple[Any, ...]) -> bool:
        """Return whether a queued point is pending now: the next result is of it and its words."""
        key, state = self.space.key, self._journal.state
        same = [i for i, p in enumerate(state.queue) if key(p.values) == key(values)]
        if self.may_repeat or not same or state.without(values)[0] is not None:
            return False
        others = [i for i in range(len(state.queue)) if i != same[0]]
        self._journal.append(Asked(given=1, waiting=others))
        return True

    async def atell(
        self, params: Any, reward: Any, **words: Unpack[TellArguments]
    ) -> Trial[Params]:
        """`tell` for asynchronous loops, with the same arguments."""
        import asyncio

        return await asyncio.to_thread(self.tell, params, reward, **words)

    async def atell_failure(self, params: Any, reason: str = "") -> Trial[Params]:
        """`tell_failure` for asynchronous loops, with the same arguments."""
        import asyncio

        return await asyncio.to_thread(self.tell_failure, params, reason)

    def _inform(self) -> None:
        """Send the outcome so far to a client that accepts it."""
        if callable(inform := getattr(self.client, "inform", None)):
            inform(self._outcome())

    def _outcome(self, recommended: int | None = None) -> str:
        stop = self._journal.state.stop
        point = None if stop is None else stop[1]
        return outcome(self.history, self.space, recommended or point)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self.space)} parameters, "
            f"client={client_name(self.client)!r}, prompt={self.prompt.name!r}, "
            f"{len(self._journal.state.trials)} trials)"
        )


def _check_place(state: State, result: Result, asked: Any) -> None:
    """Raise if a point cannot have been measured in place of the one that `ask` returned."""
    assert result.instead_of is not None
    argument = CALLER.get().argument
    named = argument("instead_of")
    if state.without(result.instead_of)[0] is None:
        raise ParameterError(
            f"{argument('instead_of', short(asked))}: the point is not pending: ask() did not "
            "return it, it has a result, or it was withdrawn. "
            f"{len(state.pending)} points are pending. "
            f"Without {named}, any point of the space is recorded"
        )
    if result.instead_of == result.values:
        raise ParameterError(f"{named} is the same point as the one given: leave it out")
    if state.without(result.values)[0] is not None:
        raise ParameterError(
            f"{named}: the point given is pending, too: record its result without {named}, and "
            "withdraw the other point if you will not evaluate it"
        )
