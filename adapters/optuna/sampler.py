"""A language model as an Optuna sampler.

    study = optuna.create_study(sampler=LLMSampler(model="openai:gpt-6-luna", description="..."))
    study.optimize(objective, n_trials=50)

The study keeps the results: the sampler reads its trials before every proposal, so that a study
resumes in another process, and several workers can share it. Each worker writes its proposal into
the running trial, so that no other worker repeats it.
"""

from __future__ import annotations

import contextlib
import inspect
import zlib
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
from optuna import TrialPruned
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from llmopt.adapters.optuna.asking import Asker, Ended, Need
from llmopt.adapters.optuna.fixed import fixed_around, refuse_probe
from llmopt.adapters.optuna.history import is_learned, known_params, learned, recommended
from llmopt.adapters.optuna.partner import SamplerPartner, read_partners
from llmopt.adapters.optuna.records import (
    current,
    note_drawn,
    raised_in_objective,
    read_drawn,
    read_fixed,
    read_note,
    read_proposal,
    write_notes,
)
from llmopt.adapters.optuna.space import Known, StudySpace, logger, read_space, trouble_with
from llmopt.client.base import Client, client_name
from llmopt.client.model_string import get_client, one_model
from llmopt.errors import did_you_mean
from llmopt.history import Usage
from llmopt.lab.blocks import calculator_for
from llmopt.options import AskArguments, AskOptions, Partners
from llmopt.point_task import NUMBERS_FIRST, asking_of
from llmopt.prompt import Prompt
from llmopt.space import Dimension, Space
from llmopt.space.constraints import read_constraints
from llmopt.turns import several_objectives
from llmopt.util.arguments import (
    MOST_AT_ONCE,
    check_names,
    seed_or_fresh,
    whole_number,
    whole_or_auto,
)

__all__ = ["LLMSampler"]

_DRAWS = 100  # of a parameter's value that keeps the constraints
_MANY_FAILED = 3  # trials at the beginning of a study, of which a warning tells

_DIRECTION = (
    "give it to optuna.create_study, such as "
    'optuna.create_study(direction="maximize", sampler=sampler)'
)
# What users of Optuna look for here
_ELSEWHERE = {
    "direction": _DIRECTION,
    "directions": _DIRECTION,
    "constraints_func": (
        'call trial.set_constraint("memory", used - limit) in the objective (in Optuna 4.8 '
        'trial.set_system_attr("constraints", [used - limit])); a value above 0 violates it'
    ),
    "n_trials": "give it to study.optimize, such as study.optimize(objective, n_trials=50)",
}


class LLMSampler(Asker, BaseSampler):
    """Asks a language model for the next trial's parameters.

    Even in a conditional search space a trial takes at most one request, with the values of the
    branch that the model chooses; a second one follows only if the trial needs further values.

    The user attributes of a trial record its origin: ``llmopt:source`` (``"warmup"``, ``"llm"``,
    ``"fallback"`` or a partner's), ``llmopt:explanation``, ``llmopt:model``, its tokens, seconds
    and cost, ``llmopt:clipped`` (a value was moved to its bound), and ``llmopt:error``, the
    exception of its objective. An objective can set the user attributes ``feedback``, words for the
    model, and ``stderr``, the standard error of its value.

    Args:
        model: A model string (see `llmopt.get_client`), a client object, or ``None`` for
            the embedded model, which needs no key. ``client=`` means the same.
        prompt: A prompt object, a shipped prompt's name, a template's text or path, or ``"auto"``
            for the default of the model.
        n_startup_trials: Number of complete and pruned trials, sampled by `independent_sampler`,
            before the model is first asked. ``"auto"``: 0 with the prompt ``"words"``
            and a description (without `space`, the first trial is still random), 1 with ``"words"``
            alone. With other prompts 10 (5 to 10 if `total` is below 100 and no Optuna sampler is a
            partner), but at most half of `total`.
        seed: Seed of all random numbers. Those of a trial depend only on the seed and the trial's
            number: workers with equal seeds sample different values.
        independent_sampler: Samples the parameters that are not requested of the model; by default
            uniformly.
        warn_independent_sampling: Whether to log a warning if the model does not propose a
            parameter that earlier trials had.
        batch_size: Proposals per request. Above 1, one request serves several calls of
            ``study.ask()``: this is cheaper, but the later ones do not know the results of the
            earlier ones.
        hints: Names of the study's user attributes shown to the model; ``None`` for all.
        space: The known parameters, as a mapping of names to distributions or dimensions, a `Space`
            or a ConfigSpace; else the first trial reveals them. Dimensions may have conditions
            (``when=``); the objective suggests only active parameters.
        intermediate: Whether the model sees the reported values and the duration of a trial.
        partner: Numeric method that proposes some of the trials of one objective: ``"cma"`` for
            CMA-ES (needs the package `cma`; it searches the numbers of the best branch),
            ``"network"`` for the small network, an Optuna sampler (``TPESampler()``), or a list of
            them. Each learns from all trials, and they take turns. With ``max_requests`` the model
            proposes first, and then the partner proposes the rest.
        constraints: Linear inequalities over parameters, such as ``"2 * a + b <= 40"``. The prompt
            states them, and only points that satisfy them are proposed; an enqueued point that
            violates one ranks after all feasible ones. See `llmopt.Space`.
        **options: See `llmopt.options.AskOptions`. Here ``on_error="fallback"`` is the default:
            ``"raise"`` fails the trial, and ends ``study.optimize`` unless its ``catch`` names the
            error. If the model ends the search, the sampler calls ``study.stop()`` and prunes the
            current trial; in your own loop this needs ``may_stop=True``, and ``study.ask()`` raises
            `SearchStopped`. Caps apply to the study: its storage records the spending of all
            workers and runs. Each worker may exceed a cap by one request.
            ``sampler.limits = Limits(max_cost=2.0)`` sets other caps, and ``sampler.left`` says
            what remains.

    Raises:
        ModelNotFoundError: The model string names no known provider.
        TemplateError: The prompt's template is not valid.
        LLMOptError: The partner's package is not installed.
        SpaceError: `space` contains something other than parameters.
        ValueError: A number is out of range, or the partner is unknown.

    Note:
        Threads that share a sampler (``n_jobs``) send requests one after another; worker processes
        send them in parallel. A sampler can be pickled and deep-copied if its client can.
    """

    def __init__(
        self,
        model: str | Client | None = None,
        *,
        client: str | Client | None = None,
        prompt: str | Path | Prompt = "auto",
        n_startup_trials: int | Literal["auto"] = "auto",
        seed: int | None = None,
        independent_sampler: BaseSampler | None = None,
        warn_independent_sampling: bool = True,
        batch_size: int = 1,
        hints: Sequence[str] | None = None,
        space: Mapping[str, BaseDistribution | Dimension] | Space | None = None,
        intermediate: bool = True,
        partner: Partners | BaseSampler | Sequence[str | BaseSampler] = None,
        constraints: str | Iterable[str] = (),
        **options: Unpack[AskArguments],
    ) -> None:
        for name, where in _ELSEWHERE.items():
            if name in options:
                raise TypeError(f"LLMSampler() has no {name}: {where}")
        own = inspect.signature(LLMSampler).parameters
        check_names("LLMSampler", options, (*own, *AskOptions.names()))
        if isinstance(hints, str):
            raise ValueError(f"hints={hints!r}: expected a list of names, such as [{hints!r}]")
        self.batch_size = whole_number("batch_size", batch_size, 1, MOST_AT_ONCE)
        self.hints = None if hints is None else tuple(hints)
        self._warn_independent, self._curves = warn_independent_sampling, intermediate
        self._independent_sampler = independent_sampler
        options.setdefault("on_error", "fallback")
        self._client = get_client(one_model(client, model))
        given = AskOptions.of("LLMSampler", options)
        asking = asking_of(self._client, prompt, given)
        tool = calculator_for(given, self._client, asking.prompt)
        self._partner, self._partners = partner, read_partners(partner)
        self._others = [p.sampler for p in self._partners if isinstance(p, SamplerPartner)]
        # A sampler of Optuna's draws its own start-up at random beside the model, and explores.
        alone = not self._others
        self._others += [independent_sampler] if independent_sampler is not None else []
        self._entropy = (seed_or_fresh(seed),)
        self._known = Known({}) if space is None else read_space(space)
        limits = read_constraints(constraints, self._known.names or None)
        self._constraints = limits + self._known.constraints
        self._asking = replace(asking.with_tool(tool), explores=alone)
        self._limits = given.limits
        start = whole_or_auto("n_startup_trials", n_startup_trials, 0)
        if start == "auto":
            start = self._asking.start_up(*[] if alone else [NUMBERS_FIRST])
        self.n_startup_trials = start
        self._end: tuple[str, str] | None = None  # why the model ended a search: for it, for people
        self._compared = False  # `space=` with what a trial has
        self._warned_of_failures = False
        self._earlier = Usage()  # of the sampler that this one is a copy of
        self._forget()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(client={client_name(self.client)!r}, "
            f"prompt={self.prompt.name!r})"
        )

    # -- the interface of an Optuna sampler -------------------------------------------------

    @staticmethod
    def recommend(study: Study) -> FrozenTrial:
        """Return the trial to keep from a study with noisy values.

        ``study.best_trial`` is the trial with the best single value, which may be luck. Here trials
        with equal parameters count as one with their mean. The point wins whose mean, made worse by
        one standard error, is best. The error is
        the user attribute ``stderr``, or is estimated from repeats. Without both, the result is the
        best trial.

        Args:
            study: A study of one objective. Infeasible trials are skipped if there are feasible
                ones.

        Raises:
            ValueError: No trial is complete.
        """
        maximize = study.direction == StudyDirection.MAXIMIZE
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return recommended(trials, "maximize" if maximize else "minimize")

    def reseed_rng(self) -> None:
        """Choose a new seed. Optuna calls this before every trial if ``n_jobs`` is not 1."""
        with self._lock:
            self._entropy = (seed_or_fresh(None),)
        for sampler in self._others:
            sampler.reseed_rng()

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Check that requests can succeed, and pass the call on to the independent sampler.

        Raises:
            ClientError: The key, the model or the server is missing; see
                `llmopt.client.base.check_ready`.
            ImportError: The provider's package is not installed.
            ValueError: There is a `partner`, and the study has several objectives.
        """
        try:
            if self._partners and len(study.directions) > 1:
                one = isinstance(self._partner, BaseSampler)
                shown = f"{type(self._partner).__name__}()" if one else repr(self._partner)
                raise ValueError(several_objectives(len(study.directions), shown))
            self._model(study).check_ready()
            for sampler in self._others:
                sampler.before_trial(study, trial)
        except BaseException:
            with contextlib.suppress(Exception):  # the next `ask` takes it again
                study._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
            raise

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Record the reason of a failure, and pass the call on to the independent sampler.

        Results are read from the storage.
        """
        if state == TrialState.COMPLETE and not self._compared:
            self._compared = True
            self._check_constraints(trial)
            if said := self._known.unlike(trial.distributions):
                logger.warning(
                    f"`space=` is unlike the parameters of Trial#{trial.number}: {said}. The model "
                    "proposes by `space=` until a trial has ended, then by the trials: name the "
                    "same parameters and ranges in both. If only some trials have a parameter, "
                    "give a `Space` whose dimension has the condition, such as "
                    'Float(0, 1, when={"optimizer": "sgd"}).'
                )
        if state == TrialState.FAIL and (reason := raised_in_objective()):
            write_notes(study, trial, {"error": reason})
        for sampler in self._others:
            sampler.after_trial(study, trial, state, values)
        if callable(inform := getattr(self.client, "inform", None)):
            # Optuna stores the result after this call, and says no sampler of the end.
            new = copy(current(study, trial))
            new.state, new.values = state, None if values is None else list(values)
            new.datetime_complete = datetime.now()
            trials = [new if t.number == new.number else t for t in study.get_trials(False)]
            words, total = self._outcome(study, trials), self._asking.options.total
            inform(words)
            if self._end and getattr(study, "_stop_flag", False):
                self._conclude(self._end[0], words)
            elif total is not None and sum(t.state.is_finished() for t in trials) >= total:
                self._conclude(f"all {total} planned trials were made", words)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the parameters that all complete and pruned trials have."""
        space = StudySpace(learned(study.get_trials(deepcopy=False)), Known({}))
        return {n: space.distributions[n] for n in space.base}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Ask the model for the parameters of `search_space`.

        Returns nothing during start-up, and no enqueued parameters: the prompt states them as
        already set.

        Raises:
            LLMOptError: The model failed and ``on_error="raise"``; or the failure is permanent.
            SearchStopped: The model ended the search, and no ``study.optimize`` is running.
        """
        self._model(study).check_ready()
        trials = study.get_trials(deepcopy=False)
        space = self._space(trials)
        fixed = fixed_around(self, study, trial, {**space.distributions, **search_space})
        given = {**fixed, **read_fixed(trial), **trial.params}
        if not self._asks(trials) or not (space or learned(trials)):
            self._warn_of_failures(trials)
            if not trials[1:] and self.n_startup_trials > 1:
                logger.info(
                    f"The first {self.n_startup_trials} trials are sampled at random; then the "
                    "model is asked. `total=` or `n_startup_trials=` makes this fewer."
                )
            with self._lock:
                self._model(study).journal.settle(["warmup"], {})
            write_notes(study, trial, {"source": "warmup"})
            return self._draw_together(trial, search_space, given)
        # A sampler of another kind around this one may take some away, too.
        left_out = set(space.base) - search_space.keys() - fixed.keys() if learned(trials) else ()
        try:
            params = self._propose(Need(study, trial, trials, space, given, fixed, "", left_out))
        except Ended:
            return {}
        return {n: v for n, v in params.items() if n in search_space and n not in given}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Sample one parameter that was not proposed with the others.

        If earlier trials had it only under some condition, the model proposes it and the parameters
        that depend on it; otherwise the independent sampler samples it.

        Raises:
            LLMOptError: As in `sample_relative`.
            TrialPruned: The model ended the search.
        """
        refuse_probe(trial)
        now, trials = current(study, trial), study.get_trials(deepcopy=False)
        source = read_note(now, "source")
        if source == "stopped":
            raise TrialPruned("the model ended the search")
        if source != "warmup" and self._asks(trials):
            try:
                value, why = self._sample_branch(study, now, trials, param_name, param_distribution)
            except Ended as end:
                raise TrialPruned(str(end)) from None
            if not why:
                return value
            before = any(param_name in t.params for t in learned(trials))
            names = self._known.names
            if stranger := bool(names) and param_name not in names and not before:
                why = f"`space=` has {', '.join(map(repr, names[:5]))} alone"
            if self._warn_independent and (before or stranger):
                drawer = type(self._independent_sampler or RandomSampler()).__name__
                logger.warning(
                    f"The parameter `{param_name}` in Trial#{trial.number} is sampled "
                    f"independently using `{drawer}` instead of `{type(self).__name__}`: {why}. "
                    "`warn_independent_sampling=False` turns this warning off."
                )
            note_drawn(study, trial, param_name)
        return self._draw(study, trial, param_name, param_distribution)

    def _sample_branch(
        self,
        study: Study,
        trial: FrozenTrial,
        trials: Sequence[FrozenTrial],
        name: str,
        distribution: BaseDistribution,
    ) -> tuple[Any, str]:
        """Return the model's value for a parameter, or why there is none."""
        known = any(name in t.params for t in learned(trials))
        codes = read_proposal(trial)
        if name not in codes:
            space = self._space(trials)
            if name not in space.distributions:
                trouble = trouble_with(name, distribution)
                return None, f"a model cannot be asked for it ({trouble})" if known else "it is new"
            if name in read_drawn(trial):
                return None, "it was not known yet when the model proposed this point"
            fixed = fixed_around(self, study, trial, space.distributions)
            given = {**fixed, **known_params(trial, space)}
            self._propose(Need(study, trial, trials, space, given, fixed, needed=name))
            codes = read_proposal(current(study, trial))
        with contextlib.suppress(KeyError, ValueError, TypeError, IndexError):
            code = codes[name]
            designed = self._known.distributions.get(name, distribution)
            if designed != distribution and not known:  # it was proposed as `space=` has it
                code = distribution.to_internal_repr(designed.to_external_repr(code))
            if distribution._contains(code):
                return distribution.to_external_repr(code), ""
        return (
            None,
            "its range changes from trial to trial, so that the value proposed is not in it",
        )

    def _warn_of_failures(self, trials: Sequence[FrozenTrial]) -> None:
        """Warn once if failures alone keep the model from being asked."""
        failed = sum(t.state == TrialState.FAIL for t in trials)
        if self._warned_of_failures or failed < _MANY_FAILED or learned(trials):
            return
        self._warned_of_failures, wanted = True, max(1, self.n_startup_trials)
        trials_wanted = f"{wanted} complete or pruned trial{'s' * (wanted > 1)}"
        logger.warning(
            f"All {failed} finished trials failed. The model is first asked after {trials_wanted}; "
            "until then parameters are sampled at random. To ask it at once, pass "
            "`n_startup_trials=0` and `space=`: then it also sees the failed trials."
        )

    def _check_constraints(self, trial: FrozenTrial) -> None:
        """Warn of constraints over parameters that neither `space=` nor the first trial has."""
        there = {*self._known.names, *trial.distributions}
        for limit in self._constraints:
            for name in sorted(limit.names - there):
                logger.warning(
                    f"The constraint {limit.text!r} has no effect on Trial#{trial.number}, which "
                    f"has no parameter {name!r}: {did_you_mean(name, there)}. If other trials have "
                    "it, ignore this warning; with `space=`, names are checked at once."
                )

    # -- random values ----------------------------------------------------------------------

    def _asks(self, trials: Sequence[FrozenTrial]) -> bool:
        """Whether start-up is over."""
        return sum(map(is_learned, trials)) >= self.n_startup_trials

    def _draw_together(
        self,
        trial: FrozenTrial,
        search_space: Mapping[str, BaseDistribution],
        given: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Draw a start-up trial's parameters so that they keep the constraints there are."""
        own = {n: d for n, d in search_space.items() if n not in given}
        space = StudySpace([], Known(own))
        if not self._constraints or self._independent_sampler is not None or not space:
            return {}
        rng = np.random.default_rng((*self._entropy, trial.number))
        free = space.with_given(given, constraints=self._constraints)
        return space.params(free.sample(rng))

    def _draw(
        self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        if self._independent_sampler is not None:
            return self._independent_sampler.sample_independent(study, trial, name, distribution)
        own = [c for c in self._constraints if name in c.names <= {*trial.params, name}]
        words = (*self._entropy, trial.number, zlib.crc32(name.encode()))
        seeds = np.random.SeedSequence(words).generate_state(_DRAWS if own else 1)
        for seed in seeds.tolist():
            sampler = RandomSampler(seed=seed)
            value = sampler.sample_independent(study, trial, name, distribution)
            if not any(c.amount({**trial.params, name: value}) for c in own):
                break
        return value
