"""Nevergrad optimizers that ask a language model; importing this module registers them.

    import nevergrad as ng
    import llmopt.adapters.nevergrad as llm

    ng.optimizers.registry["LLM"](parametrization, budget=100).minimize(loss)
    llm.ParametrizedLLM(model="openai:gpt-6-luna", prompt="opro")(parametrization, budget=100)

`LLM` asks the embedded model, which needs no key. `ParametrizedLLM` takes the model, the prompt and
the caps; the registry's entry of this name has the defaults.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
from nevergrad import p
from nevergrad.common.errors import NevergradEarlyStopping
from nevergrad.optimization import base
from nevergrad.parametrization.utils import float_penalty

from llmopt.adapters.nevergrad.space import ParameterSpace
from llmopt.client.base import Client, client_name
from llmopt.client.model_string import get_client, one_model
from llmopt.errors import BudgetExceededError, RewardError, SearchStopped, warn_user
from llmopt.from_optuna import number_of
from llmopt.history import History, Proposal, Trial
from llmopt.lab.blocks import calculator_for
from llmopt.model_calls import Account, MemoryLedger, ModelCalls, Scope
from llmopt.options import AskArguments, AskOptions, Partners
from llmopt.partners import partners_of
from llmopt.point_task import asking_of
from llmopt.prompt import Prompt, get_prompt
from llmopt.prompt.describe import describe_params
from llmopt.propose import Outcome
from llmopt.repeats import Merged
from llmopt.space import Value
from llmopt.space.constraints import read_constraints
from llmopt.to_optuna import study_of, trials_of
from llmopt.turns import propose_in_turns
from llmopt.util.arguments import (
    MOST_AT_ONCE,
    MOST_POINTS,
    check_names,
    describe,
    whole_number,
    whole_or_auto,
)
from llmopt.util.text import a_type, cut, short
from llmopt.views import Views, outcome

if TYPE_CHECKING:
    from optuna import Study

# What Nevergrad makes of NaN, of infinity and of anything larger.
_TOO_LARGE = 5e20
# The best points that a working range must hold, and whose place may widen it.
_BEST = 3
_DRAWS = 100
_RANDOM = ("warmup", "fallback")  # sources of points that are sampled at random
# Refused points and unbounded numbers that the prompt names, at most.
_SHOWN_REFUSED, _SHOWN_NAMES = 5, 10
_LONGEST_NAME = 20  # characters of a description in the name of an optimizer


class _Stopped(SearchStopped, NevergradEarlyStopping):  # type: ignore[misc]
    """The model ended the search, which Nevergrad's `minimize` understands, too."""


class _LLM(Views, Account, base.Optimizer):  # type: ignore[misc]
    """The optimizer behind `ParametrizedLLM`, which documents the arguments."""

    _num_ask: int
    _words: dict[str, tuple[str, float | None]]

    def __init__(
        self,
        parametrization: Any,
        budget: int | None = None,
        num_workers: int = 1,
        *,
        model: Client | str | None = None,
        client: Client | str | None = None,
        prompt: str | Path | Prompt = "auto",
        warmup: int | Literal["auto"] = "auto",
        batch_size: int = 1,
        partner: Partners = None,
        constraints: str | Iterable[str] = (),
        **options: Unpack[AskArguments],
    ) -> None:
        batch_size = whole_number("batch_size", batch_size, 1, MOST_AT_ONCE)
        if budget is not None:
            budget = whole_number("budget", budget, 1)
        start = whole_or_auto("warmup", warmup, 0, MOST_POINTS)
        if not isinstance(parametrization, p.Parameter | int | np.integer):
            raise TypeError(
                f"got {a_type(parametrization)}: expected a parametrization of Nevergrad, such as "
                "ng.p.Instrumentation(x=ng.p.Scalar(lower=0, upper=1)), or a number of variables"
            )
        super().__init__(parametrization, budget=budget, num_workers=num_workers)
        self._parameters = ParameterSpace(self.parametrization, constraints)
        options.setdefault("total", budget)
        client = get_client(one_model(client, model))
        given = AskOptions.of("ParametrizedLLM", options)
        asking = asking_of(client, prompt, given)
        tool = calculator_for(given, client, asking.prompt)
        self._asking = asking.with_tool(tool)
        self._ledger = MemoryLedger()
        self._model = ModelCalls(client, self._ledger, given.limits)
        self._partners = partners_of(partner, None, self._parameters.space)
        self._n_warmup = asking.start_up() if start == "auto" else start
        self._batch_size = batch_size
        self._trials: list[Trial] = []
        self._open: dict[str, Proposal] = {}  # asked, without a result, by candidate uid
        self._evaluated: dict[str, tuple[Value, ...]] = {}  # points by the uid of their candidates
        self._said: dict[str, str] = {}  # what suggested candidates are, by uid
        self._words = {}  # feedback and standard error of candidates without a result
        self._ready: deque[Proposal] = deque()
        self._end: SearchStopped | None = None  # what ends the search behind the points in `_ready`
        self._ended, self._violation, self._warned = "", 0.0, False
        # Points of the model or its partner that a cheap constraint refused.
        self._refused: list[tuple[Value, ...]] = []
        # Of the `ask` that is under way: candidates made, and whether a batch was fetched.
        self._made: dict[str, Proposal] = {}
        self._refilled = False

    # -- what the model sees ----------------------------------------------------------------

    @property
    def history(self) -> History:
        """The evaluated and the pending points, with losses to minimize."""
        points = (*self._open.values(), *self._ready)
        history = History(
            tuple(self._trials),
            tuple(proposal.values for proposal in points),
            ("minimize",) * max(1, self.num_objectives),
        )
        merged = Merged(self._parameters.space.key)
        return merged.of(history) if self._asking.options.noisy else history

    def to_optuna(self) -> Study:
        """Return the search as an Optuna study in memory; see `LLMOptimizer.to_optuna`."""
        history = self.history
        return study_of(
            "Nevergrad search",
            history.directions,
            (),
            trials_of(self._parameters.space, history, self._open.values(), self._trials),
            {
                "model": client_name(self.client),
                "prompt": self._asking.prompt.name,
                "description": self._asking.options.description,
                "ended": self._ended,
            },
        )

    def _notes(self) -> tuple[str, ...]:
        notes = []
        space = self._parameters.space
        names = self._parameters.open_names
        if names:
            whose = ", ".join(names[:_SHOWN_NAMES])
            if len(names) == len(space):
                whose = "all parameters"
            elif len(names) > _SHOWN_NAMES:
                whose += f" and {len(names) - _SHOWN_NAMES} more"
            notes.append(
                f"The ranges of {whose} are working ranges, not limits of the problem: they are "
                "widened when the best points reach their ends."
            )
        if self._refused:
            latest = self._refused[-_SHOWN_REFUSED:]
            shown = "; ".join(describe_params(values, space, space.names) for values in latest)
            notes.append(f"There is a constraint on the points, and these violate it: {shown}")
        return tuple(notes)

    # -- ask ----------------------------------------------------------------------------------

    def suggest_known(self, words: str, *args: Any, **kwargs: Any) -> None:
        """`suggest` a point, and say what it is, for the model.

        Args:
            words: ``"the current production setting"``, say. The prompt says so once the point
                has been evaluated.
            *args: As for `suggest`.
            **kwargs: As for `suggest`.

        Raises:
            TypeError: `words` is not a string.
        """
        if not isinstance(words, str):
            raise TypeError(f"words={words!r}: expected a string, and then the point")
        self.suggest(*args, **kwargs)
        self._said[self._suggestions[-1].uid] = words

    def ask(self) -> p.Parameter:
        """Return a point to evaluate.

        One request to the model fills as many calls as there are free workers, or
        `batch_size` if that is more. A point that violates a cheap constraint is refused, and the
        model is asked again within `attempts`; then random points are sampled until one satisfies
        it.

        Raises:
            BudgetExceededError: A cap on requests, tokens or cost is reached.
            ClientError: The model could not be asked, unless ``on_error="fallback"``.
            SearchStopped: The model ended the search, with ``may_stop=True``.
        """
        self._made, self._refilled = {}, False
        asked_before: int = self._num_ask
        try:
            candidate = super().ask()
        except BaseException:
            # Refused candidates count while Nevergrad looks for a valid one.
            self._num_ask = asked_before
            raise
        proposal = self._made.pop(candidate.uid, None)
        refused = [p.values for p in self._made.values() if p.source not in _RANDOM]
        if refused:
            self._refused += refused
            self._ledger.settle((), {"constraint": len(refused)})
        if proposal is None:
            proposal = Proposal(
                self._parameters.read(candidate), "user", self._said.pop(candidate.uid, "")
            )
        else:
            # A constraint that is a layer of the parametrization moves points by itself.
            moved = self._parameters.moved(candidate, proposal.values)
            self._ledger.settle([proposal.source], {})
            proposal = proposal if moved is None else replace(proposal, values=moved)
        self._open[candidate.uid] = proposal
        return candidate

    def _internal_ask_candidate(self) -> p.Parameter:
        if not self._ready and not self._refilled:
            self._refill()
            self._refilled = True
        if self._ready:
            proposal = self._ready.popleft()
        else:  # a cheap constraint refused every point of the batch
            rng = np.random.default_rng(self._rng.randint(2**32, dtype=np.uint32))
            proposal = Proposal(self._parameters.draw(rng), "fallback")
            if not self._warned:
                self._warned = True
                warn_user(
                    "a cheap constraint refused every point that the model proposed: points are "
                    "sampled at random until one satisfies it, and this one is counted in "
                    "usage.fallbacks. Where none does, Nevergrad takes a point of its own, whose "
                    "source is 'user'"
                )
        candidate = self._parameters.spawn(self.parametrization, proposal.values)
        self._made[candidate.uid] = proposal
        return candidate

    def _refill(self) -> None:
        """Fetch points: warm-up points first, then the model's."""
        self._model.check_ready()
        history = self.history
        self._parameters.widen([t.values for t in history.ranked[:_BEST]])
        state = self._rng.get_state()
        rng = np.random.default_rng(self._rng.randint(2**32, dtype=np.uint32))
        key = self._parameters.space.key
        seen: set[Hashable] = {key(t.values) for t in history.trials}
        seen |= {key(values) for values in (*history.pending, *self._refused)}
        wanted = self._wanted()
        missing = self._n_warmup - len(self._trials) - len(history.pending)
        if missing > 0:
            proposals = self._warm_up(min(wanted, missing), rng, seen)
            self._ready.extend(proposals)
            return
        try:
            if self._end is not None:
                raise self._end
            outcome = self._ask_model(history, rng, wanted, seen)
        except BaseException as error:
            # The same call later must give the same points.
            self._rng.set_state(state)
            if isinstance(error, (SearchStopped, BudgetExceededError)):
                self._ended = str(error)
                self._tell_model()
            if isinstance(error, SearchStopped):
                self._end = None
                raise _Stopped(str(error)) from None
            raise
        self._ready.extend(outcome.proposals)

    def _ask_model(
        self, history: History, rng: np.random.Generator, n: int, seen: set[Hashable]
    ) -> Outcome:
        """Return at least one point of the model or its partners, or raise at the end."""
        space, scope = self._parameters.space, Scope(self._model, self._ledger.state)
        asking = replace(self._asking, notes=self._notes(), refusal=self._refusal)
        waiting = [p.source for p in (*self._open.values(), *self._ready)]
        outcome = propose_in_turns(
            asking, scope, self._partners, space, history, rng, n, seen,
            waiting=waiting,
        )  # fmt: skip
        self._ledger.settle((), outcome.rejected, [run.number for run in scope.runs])
        if outcome.error is not None and outcome.failed:
            raise outcome.error
        for text in outcome.warnings:
            self._warned = True
            warn_user(text)
        if outcome.stop is not None:
            self._end = SearchStopped(*outcome.stop)
            if not outcome.proposals:
                raise self._end
        return outcome

    def _refusal(self, values: tuple[Value, ...]) -> str:
        """Return why a point of the model is not evaluated, if it violates a cheap constraint."""
        if not self._cheap_violation(self._parameters.spawn(self.parametrization, values)):
            return ""
        self._refused.append(values)
        return "this point violates the constraint on the points"

    def _wanted(self) -> int:
        wanted: int = max(self.num_workers - len(self._open), self._batch_size)
        if self.budget is not None:
            wanted = min(wanted, self.budget - self._num_ask)
        return max(wanted, 1)

    def _warm_up(self, n: int, rng: np.random.Generator, taken: set[Hashable]) -> list[Proposal]:
        """Return the parametrization's initial point first, then random ones."""
        space, found = self._parameters.space, []
        for _ in range(n):
            values = self._parameters.initial
            for _ in range(_DRAWS):
                candidate = self._parameters.spawn(self.parametrization, values)
                good = space.admits(values) and not self._cheap_violation(candidate)
                if good and space.key(values) not in taken:
                    break
                values = self._parameters.draw(rng)
            taken.add(space.key(values))
            found.append(Proposal(values, "warmup"))
        return found

    # -- tell ---------------------------------------------------------------------------------

    def tell_feedback(
        self, candidate: p.Parameter, feedback: str = "", *, stderr: float | None = None
    ) -> None:
        """Attach feedback to a candidate before its `tell`, for prompts that show it.

        Within `minimize`, a callback can call this:
        ``optimizer.register_callback("tell", lambda o, c, loss: o.tell_feedback(c, words(c)))``.
        A second call before `tell` replaces the feedback.

        Args:
            candidate: The candidate of the next `tell`.
            feedback: Words about it.
            stderr: Standard error of its loss (of the first loss, if several).

        Raises:
            TypeError: `feedback` is not a string.
            RewardError: `stderr` is not a finite number of at least 0.
        """
        if not isinstance(feedback, str):
            raise TypeError(f"feedback={feedback!r}: expected a string")
        if stderr is not None:
            given, stderr = stderr, number_of(np.asarray(stderr).tolist())
            if stderr is None or stderr < 0:
                raise RewardError(f"stderr={given!r}: expected a finite number of 0 or more")
        self._words[candidate.uid] = (feedback, stderr)

    def tell(
        self,
        candidate: p.Parameter,
        loss: Any,
        constraint_violation: Any = None,
        penalty_style: Any = None,
        *,
        feedback: str = "",
        stderr: float | None = None,
    ) -> None:
        """Record what a candidate scored, whether it was asked for or not.

        NaN, infinity and losses above 5e20 count as a failed evaluation for the model. A
        candidate that violates constraints ranks after all that satisfy them.

        Args:
            candidate: From `ask`, or a child of the parametrization.
            loss: A number, or one for each objective; smaller is better.
            constraint_violation: One number for each constraint; positive where violated.
            penalty_style: See `nevergrad.optimizers.base.Optimizer.tell`.
            feedback: See `tell_feedback`.
            stderr: See `tell_feedback`.
        """
        if feedback or stderr is not None:
            self.tell_feedback(candidate, feedback, stderr=stderr)
        if constraint_violation is not None:
            amounts = np.maximum(np.asarray(constraint_violation, dtype=float), 0.0)
            self._violation = float(np.sum(amounts))
        try:
            np.asarray(loss, dtype=float)
        except (TypeError, ValueError):
            raise RewardError(
                f"loss={short(loss)}: expected a number, or one for each objective; words go to "
                "tell_feedback(candidate, words)"
            ) from None
        try:
            super().tell(candidate, loss, constraint_violation, penalty_style)
        finally:
            self._violation = 0.0
        self._words.pop(candidate.uid, None)
        self._tell_model()

    def _internal_tell_candidate(self, candidate: p.Parameter, loss: float) -> None:
        space = self._parameters.space
        proposal = self._open.pop(candidate.uid, None)
        if proposal is None:
            # Not read again from standardized data, which are rounded: it would be another point.
            values = self._evaluated.get(candidate.uid) or self._parameters.read(candidate)
            proposal = Proposal(values, "user")
        self._evaluated[candidate.uid] = proposal.values
        if not all(np.isfinite(v) for v in proposal.values if isinstance(v, float)):
            return  # no range holds it, so no prompt can show it
        # `loss` holds penalties, and for several objectives it is a hypervolume.
        losses = [loss] if candidate.loss is None else candidate.losses.tolist()
        failed = not all(np.isfinite(v) and v < _TOO_LARGE for v in losses)
        words, stderr = self._words.get(candidate.uid, ("", None))
        remarks = ["the loss was not finite, or above 5e20" if failed else "", words]
        self._trials.append(
            Trial(
                number=len(self._trials),
                params=dict(zip(space.names, proposal.values, strict=True)),
                rewards=None if failed else tuple(losses),
                state="failed" if failed else "complete",
                feedback="; ".join(filter(None, remarks)),
                constraint_violation=self._violation
                + self._cheap_violation(candidate)
                + sum(space.broken(proposal.values).values()),
                stderr=None if failed else stderr,
                **vars(proposal),
            )
        )

    def _tell_model(self) -> None:
        """Give the outcome so far to a model that takes it, and at the end why the search ended."""
        words = outcome(self.history, self._parameters.space)
        if callable(inform := getattr(self.client, "inform", None)):
            inform(words)
        why = self._ended if not self._open else ""
        if self.budget is not None and self.num_tell >= self.budget:
            why = f"the budget of {self.budget} evaluations is used"
        if why and callable(conclude := getattr(self.client, "conclude", None)):
            conclude(f"Why it ended: {why}\n{words}")

    def recommend(self) -> p.Parameter:
        """Return the candidate to keep.

        With ``noisy=True`` it has the lowest mean loss plus standard error, estimated from
        repeated evaluations, and `loss` is this mean; otherwise it is Nevergrad's own choice.
        """
        best = self.history.best if self._asking.options.noisy else None
        if best is None or self.num_objectives > 1:
            return super().recommend()
        recommended = self._parameters.spawn(self.parametrization, best.values)
        recommended.loss = None if best.rewards is None else best.rewards[0]
        return recommended

    def _cheap_violation(self, candidate: p.Parameter) -> float:
        if candidate.can_skip_constraints() or candidate.satisfies_constraints():
            return 0.0
        checks = candidate._constraint_checkers
        amount = sum(float_penalty(check(candidate.value)) for check in checks)
        # A constraint on a part of the parametrization has no amount here.
        return float(amount) or 1.0


class ParametrizedLLM(base.ConfiguredOptimizer):  # type: ignore[misc]
    """An optimizer for Nevergrad that asks a language model for the next points.

    Creating a configuration or an optimizer sends nothing, reads no key and loads no model. The
    first `ask` checks key, package and file; the first `ask` after the warm-up sends a request.

    Args:
        model: A model string (see `llmopt.get_client`), a client object, or ``None`` for
            the embedded model. ``client=`` means the same. Optimizers made with a client
            object share it.
        prompt: A shipped prompt's name, a template's text or path, a prompt object, or
            ``"auto"`` for the one that suits the model.
        warmup: Points before the first request: the parametrization's initial point, then random
            ones. Points recorded without `ask` count. For ``"auto"`` see
            `llmopt.options.SearchOptions`.
        batch_size: Points per request; more if more workers are free. Above 1, one request serves
            several calls of `ask`; the later points do not know the results of the earlier ones.
        partner: Numeric method that proposes some points; see `llmopt.LLMOptimizer`.
        constraints: Linear inequalities over the parameters, such as ``"2 * a + b <= 40"`` or
            ``"params[0] <= params[1]"``. The prompt states them, only points that satisfy them are
            proposed, and a recorded point that violates one ranks after all feasible ones. For
            nonlinear constraints use Nevergrad's ``register_cheap_constraint``.
        **options: See `llmopt.options.AskOptions`: ``description``, ``attempts``,
            ``out_of_range``, ``on_error``, ``noisy``, ``may_stop`` and the caps. ``total`` is the
            budget unless you set it. After an error with ``on_error="raise"``, the default, call
            `minimize` again to continue. If the model ends the search (``may_stop=True``),
            `minimize` returns its recommendation, and `ask` raises `SearchStopped`.

    Raises:
        ModelNotFoundError: The model string names no known provider.
        TemplateError: The prompt's template is not valid.
    """

    def __init__(
        self,
        model: Client | str | None = None,
        *,
        client: Client | str | None = None,
        prompt: str | Path | Prompt = "auto",
        warmup: int | Literal["auto"] = "auto",
        batch_size: int = 1,
        partner: Partners = None,
        constraints: str | Iterable[str] = (),
        **options: Unpack[AskArguments],
    ) -> None:
        if named := {"direction", "directions"} & options.keys():
            raise TypeError(
                f"ParametrizedLLM() has no argument {min(named)!r}: Nevergrad minimizes. To "
                "maximize a value, return its negative"
            )
        own = inspect.signature(ParametrizedLLM).parameters
        check_names("ParametrizedLLM", options, (*own, *AskOptions.names()))
        if client is not None:
            model, client = one_model(client, model), None
        config = {k: v for k, v in locals().items() if k in own}
        read_constraints(constraints)
        # Nevergrad tries it on its own parametrization, which has other names.
        super().__init__(_LLM, {**config, "constraints": ()})
        self._config["constraints"] = constraints
        # Nevergrad would name it after the arguments' `repr`, which may show a key.
        usual = {k: p.default for k, p in own.items()} | vars(AskOptions())
        shown = {k: v for k, v in self.config().items() if v != usual[k]}
        if "model" in shown:
            shown["model"] = client_name(get_client(shown["model"]))
        if "prompt" in shown:
            shown["prompt"] = get_prompt(shown["prompt"]).name
        if "description" in shown:
            shown["description"] = cut(describe(shown["description"]), _LONGEST_NAME)
        self.name = f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in shown.items())})"

    def config(self) -> dict[str, Any]:
        """Return the arguments of the configuration, by name."""
        return {
            **{k: v for k, v in self._config.items() if k != "options"},
            **self._config["options"],
        }


def _register(name: str) -> ParametrizedLLM:
    # A reload of this module comes here again, and a second registration raises.
    if type(base.registry.get(name)).__module__ == __name__:
        base.registry.unregister(name)
    configured: ParametrizedLLM = ParametrizedLLM().set_name(name, register=True)
    return configured


LLM = _register("LLM")
_register("ParametrizedLLM")
