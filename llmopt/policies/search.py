"""Search for a policy for any Gymnasium environment.

Example::

    from llmopt.policies import PolicySearch

    search = PolicySearch("Swimmer-v5", "openai:gpt-6-luna")
    search.run(50)
    print(search.best.reward, search.evaluate())
    search.save("swimmer.json")
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from llmopt.client.base import Client
from llmopt.client.model_facts import model_facts
from llmopt.client.model_string import get_client, one_model
from llmopt.errors import (
    HOPELESS,
    BudgetExceededError,
    NoTrialsError,
    SearchStopped,
    add_point,
    described,
)
from llmopt.evaluation_loop import INTERRUPTED, drive
from llmopt.history import Trial
from llmopt.optimizer import LLMOptimizer
from llmopt.options import Composed, SearchOptions
from llmopt.point_task import NUMBERS_FIRST
from llmopt.policies.environment import EnvLike, EnvMaker, Wrap, made_with, usual_sizes
from llmopt.policies.episode import step_cap
from llmopt.policies.episode_seeds import (
    FURTHER_STARTS,
    HELD_OUT_STARTS,
    MAX_STARTS,
    held_out_seeds,
    selection_seeds,
    start_seeds,
)
from llmopt.policies.evaluation import Evaluation, Evaluator
from llmopt.policies.finalists import choose
from llmopt.policies.linear import BoundPolicy, LinearPolicy
from llmopt.policies.parameters import BOX, EXTENDED, Box, PolicySpace
from llmopt.policies.picture import write_gif
from llmopt.policies.report import EpisodeStatistics
from llmopt.policies.saved import save_policy
from llmopt.policies.source import policy_source
from llmopt.policies.steps import describe_data, initial_states
from llmopt.policies.words.describe import EnvironmentWords
from llmopt.policies.words.task_words import describe_task
from llmopt.progress import Progress, say_kept, text_of_search
from llmopt.prompt import PromptCapabilities, prompt_for
from llmopt.resume_check import stored_options
from llmopt.util.arguments import (
    MOST_SEED,
    check_names,
    number,
    one_of,
    whole_number,
)
from llmopt.util.closing import Closing
from llmopt.util.text import cut
from llmopt.views import Views

logger = logging.getLogger(__name__)

_AS_GOOD = 0.05  # share of the best value by which a recommended policy may be worse
_RANDOM_FIRST = 30  # random policies before a numeric-only model is asked
_SHOWN_FIRST = 5  # random policies whose episodes a model that reads words sees first


class PolicySearch(Views, Closing):
    """A language model designs a linear policy for an environment, or a table of actions.

    The prompt describes the environment and the parameters; each score comes with a report on the
    policy's episodes. For ``Box`` observations the policy is linear (`LinearPolicy`); its
    parameters have names like ``torque<-angle`` and ``torque<-bias``. For ``Discrete`` observations
    and actions it is a table with one choice for each state, named by it: ``s0, s1, ...``.

    Args:
        env: ``"Swimmer-v5"``, ``"module:Env-v0"``, an ``EnvSpec`` with its wrappers, an
            environment made by ``gymnasium.make``, or a function that makes one.
        client: A model string, a client, or ``None`` for the embedded model. ``model=`` is an
            alias.
        prompt: See `llmopt.LLMOptimizer`.
        description: Your own words on the task, placed first in the prompt.
        starts: Number of seeded initial states of one evaluation, the same for every policy.
        bias: Whether each action has a bias term; ``None`` for yes, except in a table.
        box: Range of a weight: ±`box` times the scale of the action over the typical scale of the
            observation, which comes from bounds and from random policies (at most 3,000 steps
            before the search); or two factors, or two bounds per parameter. ``"auto"``: 10, or 100
            with a prompt that reads words and no partner, as a good weight may be large. Random
            points come from the inner part of the ranges.
        wrappers: Functions that wrap the environment, the innermost first, such as
            ``[gymnasium.wrappers.ClipAction]``.
        observations: Names of the observed numbers, as ``"name"`` or ``"name: meaning"``, in
            place of the docstring's; for a ``Discrete`` observation one text on how the states
            are numbered.
        actions: Names of the actions or choices in the same form.
        ceiling: The maximum possible mean return, if you know it: the model can end the search
            there.
        seed: Seed of the search and of its initial states.
        warmup: Random policies before the first request; see `llmopt.LLMOptimizer`.
            ``"auto"`` for 5 with a prompt that reads words, 30 for a numeric-only model, and 10
            otherwise, but at most half of the evaluations of `run` (or 5).
        max_steps: Maximum steps of an episode; ``None`` for the environment's own limit
            (`STEP_CAP` if it has none).
        storage: A file; a search with the same arguments and file resumes there.
        **options: Further arguments of `llmopt.LLMOptimizer`.

    Attributes:
        optimizer: The `llmopt.LLMOptimizer` behind it.
        policy: The form of the policies.
        words: The environment in words.
        description: The whole description of the task in the prompt.
        starts: Seeds of the selection set of initial states.
        bounds: The range ``(low, high)`` of each weight, by name; empty for a table of actions.

    Raises:
        LLMOptError: The environment cannot be made.
        SpaceError: Its spaces are not supported, or the number of names is wrong.
    """

    def __init__(
        self,
        env: EnvLike,
        client: Client | str | None = None,
        prompt: Any = "auto",
        *,
        description: str | None = "",
        starts: int = 10,
        bias: bool | None = None,
        box: Box | Literal["auto"] = "auto",
        wrappers: Sequence[Wrap] = (),
        observations: Sequence[str] = (),
        actions: Sequence[str] = (),
        ceiling: float | None = None,
        seed: int = 0,
        warmup: int | Sequence[Any] | Literal["auto"] = "auto",
        max_steps: int | None = None,
        storage: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        own = inspect.signature(PolicySearch).parameters
        others = [name for name in SearchOptions.names() if name != "seeded"]  # episodes replace it
        check_names("PolicySearch", options, (*own, *others))
        starts = whole_number("starts", starts, 1, MAX_STARTS)
        self.seed = seed = whole_number("seed", seed, 0, MOST_SEED)
        if max_steps is not None:
            max_steps = whole_number("max_steps", max_steps, 1)
        if ceiling is not None:
            number("ceiling", ceiling)
        self._make = EnvMaker(env, wrappers)
        self.starts = selection_seeds(seed, starts)
        with closing(self._make()) as made:
            if bias is None:
                bias = not isinstance(made.observation_space, spaces.Discrete)
            self.policy = LinearPolicy.for_env(made, bias, clip=True)
            identity = made_with(made)
            self._step_cap = step_cap(made, max_steps)
            if max_steps is None and (made.spec is None or not made.spec.max_episode_steps):
                logger.warning(
                    "%s states no limit of steps: an episode ends after %d at most; max_steps= "
                    "sets another limit",
                    self._make.title,
                    self._step_cap,
                )
        client = get_client(one_model(client, options.pop("model", None)))
        facts = model_facts(client)
        self._reads_words = bool(PromptCapabilities.of(prompt_for(prompt, facts)).changes)
        begun = stored_options(storage)
        usual = isinstance(box, str) and box == "auto"
        reach: Any = BOX if usual else box
        numbers_too = options.get("partner") or options.get("requests")  # scale steps by ranges
        extended = EXTENDED if usual and self._reads_words and not numbers_too else 1.0
        told = describe_task(
            self._make,
            self.policy,
            self.starts,
            self._step_cap,
            description=description or "",
            observations=observations,
            actions=actions,
            ceiling=ceiling,
            choices=self.policy.chooses,
            extended=extended > 1 and not self.policy.chooses,
        )
        self.words: EnvironmentWords = told.environment
        self.description = told.text
        self._inputs, self._outputs, self._scaled = told.inputs, told.outputs, told.scaled
        self._parameters = PolicySpace(
            self.policy,
            self._inputs,
            self._outputs,
            reach,
            measure=self._usual_sizes,
            stored=begun.get("space"),
            extended=extended,
        )
        self.bounds = self._parameters.bounds
        self._total: int | None = options.get("total")
        self._total_given = self._total is not None
        self._chosen: tuple[int, Trial[dict[str, Any]] | None] = (0, None)
        if options.get("may_stop") is None:
            options["may_stop"] = True
        self.stopped = ""
        self._wanted = 0
        self._data: Mapping[str, Any] | None = None  # steps of the latest evaluation
        self._random_first: tuple[int, int] | None = None  # minimum and maximum if "auto"
        if warmup == "auto":
            first = _RANDOM_FIRST if facts.columns else NUMBERS_FIRST
            first = _SHOWN_FIRST if self._reads_words else first
            warmup = most = int(begun.get("warmup", first))
            # Detect an environment that always fails before a request is paid for.
            numeric = facts.columns and not self._reads_words
            self._random_first = (1 if numeric else HOPELESS), most
        self.optimizer = LLMOptimizer(
            self._parameters.space,
            client,
            prompt,
            seed=seed,
            warmup=warmup,
            description=told.text if description else Composed(told.text),
            task={
                **(options.pop("task", None) or {}),
                "environment": self._make.title,
                **identity,
                **self._make.wrapped_in,
                "starts": starts,
                "seed": seed,
                "max_steps": self._step_cap,
                "box": np.asarray(reach, dtype=float).tolist(),
                **({"extended": extended} if extended > 1 else {}),
            },
            storage=storage,
            **options,
        )
        self._evaluator = Evaluator(self._make, self.policy, self._step_cap)
        if self._reads_words:  # its Python has the policy as a function, and the steps as data
            text, values, line = policy_source(self.policy)
            self.optimizer.equip(text, values, (line, *describe_data()))

    def _usual_sizes(self) -> np.ndarray | None:
        if self._scaled or isinstance(self.policy.observation_space, spaces.Discrete):
            return None
        return usual_sizes(self._make, self._step_cap)

    @property
    def ranges(self) -> str:
        """The searched parameters and their ranges, in one line."""
        return f"{self._make.title}: {self._parameters.describe(self._scaled)}"

    def __repr__(self) -> str:
        return f"<PolicySearch {self.ranges}; {len(self.optimizer.trials)} evaluations>"

    # -- searching ------------------------------------------------------------------------

    def run(
        self, evaluations: int, *, progress: bool | None = None
    ) -> Trial[dict[str, Any]] | None:
        """Search until `evaluations` policies have been evaluated in total, warm-up included.

        The search ends early if the model ends it, or if a cap on requests, tokens or cost is
        reached: `stopped` says why, and `left` how much of the budget remains. Ctrl-C ends it once
        the running evaluation has been recorded; a second one raises.

        Args:
            evaluations: Total evaluations, including the ones before this call.
            progress: Whether to show progress: a bar on a terminal and in a notebook, lines
                elsewhere; ``None`` for the bar only.

        Returns:
            The best trial, or ``None`` if every policy failed.

        Raises:
            ClientError: The request to the model failed.
            BrokenTaskError: The first five evaluations failed, and none before this call succeeded.
        """
        evaluations = self._wanted = whole_number("evaluations", evaluations, 1)
        one_of("progress", progress, (True, False, None))
        optimizer, batch = self.optimizer, self.optimizer.batch_size
        if self.stopped == INTERRUPTED:
            self.stopped = ""
        if not (self._total_given or self.stopped):
            self._total = None
        self._plan_warmup(evaluations)
        own = (t for t in optimizer.trials if t.kind != "imported")
        sound = any(t.state == "complete" for t in own)

        def ask(free: int, running: int) -> Sequence[Any]:
            spent = self._spent()
            if spent >= evaluations:
                return []
            if self._total is None or spent >= self._total:
                self._total = evaluations
            optimizer.total = self._total
            optimizer.batch_size = min(batch, evaluations - spent)
            try:
                with shown.waiting():
                    return optimizer.pending[:1] or [optimizer.ask()]
            except (BudgetExceededError, SearchStopped) as end:
                self.stopped = optimizer.stopped or str(end)
                return []

        def tell(params: Any, outcome: Any, error: Exception | None) -> tuple[str, str]:
            if error is not None:
                add_point(error, params, len(optimizer.trials))
                raise error
            trial = self._tell(params, *outcome)
            shown.step(text_of_search(trial, optimizer.history.best, optimizer.usage))
            return "" if trial.state == "complete" else cut(trial.feedback, 300), ""

        try:
            optimizer.check_ready()  # a resumed search may begin with a point returned earlier
            with Progress(evaluations, self._spent(), progress, unit="policies") as shown:
                if not optimizer.trials:
                    shown.tell(self.ranges)
                ended = drive(
                    ask, lambda p: (self.measure, p), tell, what=self._make.title, sound=sound
                )
                self.stopped = ended or self.stopped
                shown.end(self.stopped)
        finally:
            optimizer.batch_size = batch
            if sys.exc_info()[0] is KeyboardInterrupt or self.stopped == INTERRUPTED:
                say_kept(optimizer)
        return self.best if optimizer.history.best is not None else None

    def _plan_warmup(self, evaluations: int) -> None:
        """Set the number of random policies; log a warning if the model gets no evaluation."""
        optimizer = self.optimizer
        if self._random_first:
            least, most = self._random_first
            if optimizer.model_began:  # a file stores the maximum
                most = least = min(optimizer.n_warmup, len(optimizer.trials))
            optimizer.n_warmup = min(most, max(least, evaluations // 2))
        if not self._total_given:
            optimizer.check_asks(evaluations, given=self._random_first is None)

    def measure(self, params: Any, seeds: Sequence[int] | None = None) -> tuple[Evaluation, str]:
        """Evaluate a point on the selection set, and return a report on its episodes, too.

        Args:
            params: A point of the search's space. The result is not recorded.
            seeds: Seeds of other initial states.
        """
        steps = EpisodeStatistics(self.policy, self._inputs, self._outputs)
        flat = self._parameters.flat(params)
        outcome = self._evaluator.evaluate(flat, seeds or self.starts, watch=steps)
        self._data = steps.data(self.policy.bind(flat)) if self._reads_words else None
        return outcome, steps.text(outcome)

    def _tell(self, params: Any, outcome: Evaluation, text: str) -> Trial[dict[str, Any]]:
        optimizer = self.optimizer
        data, self._data = self._data or None, None
        if data and not any(t.data for t in optimizer.trials):
            data = {**data, "further": self._further()}
        if outcome.mean is None:
            reason = f"{outcome.failure}. {text}" if text else outcome.failure
            return optimizer.tell_failure(params, reason)
        samples = outcome.returns
        return optimizer.tell(params, outcome.mean, feedback=text, samples=samples, data=data)

    def _further(self) -> dict[str, np.ndarray]:
        """Return initial states for the model's Python, which neither search nor judgement uses."""
        self._evaluator.close()  # some environments allow one live instance
        with closing(self._make()) as made:
            return initial_states(made, start_seeds(self.seed, "further", FURTHER_STARTS))

    def _spent(self) -> int:
        return self.optimizer.evaluations

    def _recommended(self) -> Trial[dict[str, Any]] | None:
        """Return the recommended point if it is about as good as the best; else ``None``."""
        # Numbered as in the prompt: with `noisy` a re-evaluated point has one number.
        best, trials = self.optimizer.history.best, self.optimizer.history.trials
        point = self.optimizer.recommended_number
        if best is None or not best.rewards or point is None or not 0 < point <= len(trials):
            return None
        named = trials[point - 1]
        if not named.rewards or named.state != "complete":
            return None
        as_good = named.rewards[0] >= best.rewards[0] - _AS_GOOD * abs(best.rewards[0])
        return self.optimizer.history.recorded(named) if as_good else None

    def choose(self, finalists: int = 5, starts: int | None = None) -> Trial[dict[str, Any]]:
        """Choose the best policy on new initial states, and return its trial.

        The best of many policies on a few initial states was partly lucky. Until the search
        resumes, `best_policy`, `evaluate`, `save` and `gif` then use the chosen policy.

        Raises:
            NoTrialsError: No evaluation has succeeded yet.
        """
        finalists = whole_number("finalists", finalists, 1)
        starts = 2 * len(self.starts) if starts is None else starts
        self._check_evaluated()
        fresh = start_seeds(self.seed, "final", whole_number("starts", starts, 1, MAX_STARTS))
        history = self.optimizer.history
        trials = history.complete
        points = [self._parameters.flat(t.params) for t in trials]
        # Weight the mean as `size` returns: a trial may have been recorded without its returns.
        size = len(self.starts)
        known = [Evaluation((float(t.rewards[0]),) * size if t.rewards else (), ()) for t in trials]
        place, finals = choose(
            points, known, finalists, lambda i: self._evaluator.evaluate(points[i], fresh)
        )
        sound = place is not None and any(final.mean is not None for final in finals)
        chosen = history.recorded(trials[place or 0]) if sound else self.optimizer.best
        self._chosen = (len(self.optimizer.trials), chosen)
        return chosen

    def _check_evaluated(self) -> None:
        if not self.optimizer.trials:
            raise NoTrialsError("no policy has been evaluated yet: call run() first")

    @property
    def left(self) -> dict[str, float]:
        """The remaining budget of `run`; see `llmopt.SearchResult.left`."""
        evaluations = max(0, self._wanted - self._spent())
        return {"evaluations": evaluations, **self.optimizer.left}

    @property
    def best(self) -> Trial[dict[str, Any]]:
        """The best trial so far: its `params` and its `reward`.

        If the model ended the search, the trial it recommended, if that is within 5 % of the best
        one; after `choose`, the chosen one.

        Raises:
            NoTrialsError: No evaluation has succeeded yet.
        """
        self._check_evaluated()
        count, chosen = self._chosen
        if chosen is not None and count == len(self.optimizer.trials):
            return chosen
        return self._recommended() or self.optimizer.best

    @property
    def best_policy(self) -> BoundPolicy:
        """The best policy so far: call it, or its ``act``, with an observation.

        Raises:
            NoTrialsError: No evaluation has succeeded yet.
        """
        return self.policy_of(self.best.params)

    def make_env(self, render_mode: str | None = None) -> gym.Env[Any, Any]:
        """Make the environment in which the policies act, with its wrappers."""
        return self._make(render_mode)

    def policy_of(self, params: Mapping[str, Any]) -> BoundPolicy:
        """Return the policy of a point, for example ``search.optimizer.trials[3].params``."""
        bound = self.policy.bind(self._parameters.flat(params))
        return replace(bound, inputs=self._inputs, outputs=self._outputs)

    def evaluate(
        self, starts: int = HELD_OUT_STARTS, params: Mapping[str, Any] | None = None
    ) -> Evaluation:
        """Evaluate a policy on held-out initial states, which no search ever sees.

        Args:
            starts: Number of initial states.
            params: A point; ``None`` for the best one.

        Raises:
            NoTrialsError: There is no best policy yet.
        """
        starts = whole_number("starts", starts, 1, MAX_STARTS)
        policy = self.best_policy if params is None else self.policy_of(params)
        return self._evaluator.evaluate(policy.parameters, held_out_seeds(self.seed, starts))

    # -- files ----------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the best policy to a JSON file for `load_policy`.

        Wrappers are a part of the environment.

        Raises:
            NoTrialsError: There is no best policy yet.
            SpaceError: The environment has a space that JSON cannot represent.
            StorageError: The file cannot be written.
        """
        best = self.best
        save_policy(
            self.policy_of(best.params),
            path,
            environment=self._make.title,
            arguments=self._make.arguments,
            max_steps=self._step_cap,
            mean_return=best.reward,
        )

    def gif(self, path: str | os.PathLike[str]) -> Path:
        """Write one held-out episode of the best policy as an animated GIF, and return its path.

        Raises:
            LLMOptError: There is no best policy yet, a package is missing, or the environment
                renders no picture.
            StorageError: The file cannot be written.
        """
        seed = held_out_seeds(self.seed, 1)[0]
        self._evaluator.close()  # some environments allow one live instance
        write_gif(path, self._make, self._make.title, self.best_policy, seed, self._step_cap)
        return Path(path).expanduser()

    def close(self) -> None:
        """Close the environment and the storage file; results can still be read."""
        self._evaluator.close()
        best = self.best if self.optimizer.history.best is not None else None
        reason = self.stopped if self.left_by is None else described(self.left_by)
        if not reason and self.optimizer.trials and self._spent() >= self._wanted:
            reason = f"all {self._wanted} evaluations were made"
        kept = None if best is None else self.optimizer.history.place(best.number) + 1
        self.optimizer.conclude(reason, kept)
        self.optimizer.close()
