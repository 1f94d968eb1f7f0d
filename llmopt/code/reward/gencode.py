"""The interface of VIRAL's ``GenCode``, with a confined worker.

VIRAL (https://github.com/VIRAL-UCBL1/VIRAL) turns a model's answer into a reward function
with `GenCode`. This class has the same methods, so that code for VIRAL runs with a changed import.
The differences: the model's code never runs in this process, the number of repairs is bounded, and
the function is found by its signature.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.caps import Limits
from llmopt.client.base import Client, Completion, Message, Reply, Request
from llmopt.client.model_string import get_client
from llmopt.code.answer import read_answer
from llmopt.code.candidate import Candidate
from llmopt.code.checks import Function, Output
from llmopt.code.program import ProgramSpace
from llmopt.code.prompt import MAX_SENT_BACK
from llmopt.errors import ParseError
from llmopt.events import Asked
from llmopt.journal import Journal
from llmopt.model_calls import Account, ModelCalls, Scope
from llmopt.policies.episode import random_steps
from llmopt.sandbox.failure import CandidateError
from llmopt.sandbox.sandbox import Sandbox, WorkerLimits
from llmopt.state import State as JournalState
from llmopt.util.text import cut

logger = logging.getLogger(__name__)

_STEPS = 3
SIGNATURE = "reward_func(observations, is_success, is_failure)"


@dataclass(eq=False)
class State:
    """A reward function (a callable, and its source) with its results, as in VIRAL."""

    idx: int
    reward_func: Callable[..., Any] | None = None
    reward_func_str: str | None = None
    policy: Any = None
    performances: dict[str, Any] | None = None

    def set_policy(self, policy: Any) -> None:
        """Store the policy trained with this reward."""
        self.policy = policy

    def set_performances(self, performances: dict[str, Any]) -> None:
        """Store the policy's performances."""
        self.performances = performances


class GenCode(Account):
    """Turns a model's answer into a reward function that is safe to call.

    Args:
        env: A Gymnasium id, or an object whose ``str()`` is one and which may have
            ``success_func(env, info) -> (is_success, is_failure)``, as in VIRAL.
        llm: A model string or an llmopt client; or an object with VIRAL's
            ``add_message(text)`` and ``generate_response(stream=...)``, which reports no tokens and
            no price. Used only for repairs.
        repairs: Maximum repair requests.
        signature: The requested function. Its name in the answer may differ.
        limits: Resource limits of the worker.
        allow_unsandboxed: Run the code even if it cannot be confined.
        max_requests: Cap on model requests, failed ones included.
        max_tokens: Cap on prompt and completion tokens together.
        max_cost: Cap in US dollars; needs a model with a known price.
    """

    def __init__(
        self,
        env: Any,
        llm: Any = None,
        *,
        repairs: int = 3,
        signature: str = SIGNATURE,
        limits: WorkerLimits | None = None,
        allow_unsandboxed: bool = False,
        max_requests: int | None = None,
        max_tokens: int | None = None,
        max_cost: float | None = None,
    ) -> None:
        self.current_index = 0
        self.llm: Any = get_client(llm) if isinstance(llm, str) else llm
        client: Client = self.llm if hasattr(self.llm, "complete") else _Chat(self.llm)
        caps = Limits(max_requests, max_tokens, max_cost)
        self._journal = Journal(None, JournalState(ProgramSpace()))
        self._model = ModelCalls(client, self._journal, caps)
        self.env_name = str(env)
        self.success_func = getattr(env, "success_func", None)
        self.response: str | None = None
        self.reward_func: Candidate | None = None
        self._repairs = repairs
        self._signature = signature
        self._make = partial(Sandbox, limits, allow_unsandboxed=allow_unsandboxed)

    def get(self, response: str) -> State:
        """Return a new state with the reward function of a model's answer.

        Raises:
            CandidateError: The answer and its repairs cannot be used.
            BudgetExceededError: A cap is reached.
        """
        self.response = response
        self.current_index += 1
        self.reward_func = self.get_runnable_function()
        return State(self.current_index, self.reward_func, self.response)

    def get_runnable_function(self, error: str | None = None) -> Candidate:
        """Clean, compile and test the answer; request repairs if that fails.

        Given `error`, the fault of the answer, request a repair first. Raises as `get`.
        """
        answer, left = self.response or "", self._repairs
        if error is not None:
            answer = self._ask_for_repair(answer, error) or answer
        while True:
            self.response = answer
            try:
                self.get_clean_response()
                return self.compile_reward_function()
            except (ParseError, CandidateError) as fault:
                reason = fault.feedback() if isinstance(fault, CandidateError) else str(fault)
                logger.warning("reward function %d: %s", self.current_index, reason)
                following = self._ask_for_repair(answer, reason) if left > 0 else None
                if following is None:
                    raise CandidateError(reason) from fault
            answer, left = following, left - 1

    def get_clean_response(self) -> None:
        """Extract the code from ``self.response``, or raise `ParseError`, a ``ValueError``."""
        self.response = read_answer(self.response or "").source

    def compile_reward_function(self) -> Candidate:
        """Load the code into a worker, which serves all calls, and test it on some steps.

        Raises:
            CandidateError: The code fails a check of `llmopt.code.checks.check`.
        """
        source, name = self.response or "", Function(self._signature).name
        with self._make() as sandbox:
            names = sandbox.analyse(source)["functions"]
        if names and name not in names:
            # VIRAL's prompts leave the name to the model: if no function has the requested
            # name, use the last one, since helpers precede it.
            name = names[-1]
        signature = f"{name}({self._signature.partition('(')[2]}"
        function = Function(signature, output=Output("reward"), samples=self._samples())
        candidate = _Reward(source, [function], self._make, number=self.current_index)
        try:
            candidate.check()
        except BaseException:
            candidate.close()
            raise
        return candidate

    def test_reward_function(
        self, reward_function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> None:
        """Call a reward once; raise `CandidateError` unless it returns a finite number."""
        logger.debug("reward function output: %s", reward_function(*args, **kwargs))

    def _samples(self) -> tuple[tuple[Any, ...], ...]:
        """Return some random steps, with the last one as a success and as a failure."""
        steps: list[tuple[Any, bool, bool]] = []
        with contextlib.closing(gym.make(self.env_name)) as env:
            for _, _, observation, info in itertools.islice(random_steps(env, 0), _STEPS):
                success: Any = (False, False)
                if self.success_func is not None:
                    success = self.success_func(env, {**info, "terminated": False})
                steps.append((np.array(observation), bool(success[0]), bool(success[1])))
        last, count = steps[-1][0], len(Function(self._signature).parameters)
        return tuple(s[:count] for s in (*steps, (last, True, False), (last, False, True)))

    def _ask_for_repair(self, answer: str, error: str) -> str | None:
        if self.llm is None:
            return None
        # `self.response` is only the code, if the answer contained any.
        request = Request(
            (
                Message("user", f"Write the Python function `def {self._signature}:`."),
                Message("assistant", cut(self.response or answer, MAX_SENT_BACK) or "(nothing)"),
                Message("user", f"{error}\nCorrect it and give the complete function again."),
            )
        )
        completions = Scope(self._model, self._journal.state).complete(request).completions
        self._journal.append(Asked())  # another request of the same text is another one
        return completions[0].text if completions else ""


class _Chat:
    """A client for VIRAL's chat object, which keeps the conversation itself."""

    name = "chat"

    def __init__(self, chat: Any) -> None:
        self._chat = chat

    def complete(self, request: Request) -> Reply:
        """Send only the last message: the chat has the earlier ones."""
        self._chat.add_message(request.messages[-1].content)
        answer = self._chat.generate_response(stream=True)
        show = getattr(self._chat, "print_Generator_and_return", None)
        if show is not None:
            text = str(show(answer))
        else:
            text = answer if isinstance(answer, str) else "".join(map(str, answer))
        return Reply((Completion(text),))


class _Reward(Candidate):
    """A reward that returns only the number, as VIRAL's callers expect."""

    def __call__(self, *args: Any, **kwargs: Any) -> float:
        return float(super().__call__(*args, **kwargs)[0])
