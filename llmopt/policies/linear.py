"""Linear policies: ``a = s W + b``, with a discrete action chosen by argmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from llmopt.errors import ParameterError, SpaceError
from llmopt.policies.scaling import Scaling, acting_space, done_through, seen_through, title_of
from llmopt.util.text import counted, short

MAX_PARAMETERS = 10_000
"""Larger policies are rejected: they do not fit into a prompt."""

_SUPPORTED = (
    "supported are Box and Discrete observations with Box and Discrete actions; wrap the "
    "environment (gymnasium.wrappers has FlattenObservation and RescaleAction) to make one of them"
)


@dataclass(frozen=True)
class LinearPolicy:
    """A linear map from observations to actions.

    A ``Box`` observation is flattened; a ``Discrete`` one is one-hot, so that the weights
    are a table with one row for each state. A ``Box`` action is the output of the map, clipped to
    its bounds only with `clip`: an environment may clip actions itself, or penalize them. A
    ``Discrete`` action is the index of the highest output (the first in a tie).

    The flat parameters are ``W`` row by row (for each observed number its weight on every
    action), then ``b``: the order of the published ProPS files.
    """

    observation_space: spaces.Space[Any]  # a ``Box`` or ``Discrete``
    action_space: spaces.Space[Any]  # a ``Box`` or ``Discrete``
    bias: bool = True  # whether the map has a ``b``
    clip: bool = False  # whether a ``Box`` action is clipped to its bounds

    def __post_init__(self) -> None:
        for kind in ("observation", "action"):
            space = getattr(self, f"{kind}_space")
            if not isinstance(space, spaces.Box | spaces.Discrete):
                raise SpaceError(f"a linear policy cannot take {kind}s from {space}: {_SUPPORTED}")

    @classmethod
    def for_env(
        cls, env: gym.Env[Any, Any], bias: bool = True, *, clip: bool = False
    ) -> LinearPolicy:
        """Make the policy that fits an environment.

        If a `ClipAction` wraps the environment, the policy has the bounds to which it clips.

        Raises:
            SpaceError: The spaces are not supported (the message names the supported ones), or
                the policy would have more than `MAX_PARAMETERS` parameters.
            TypeError: `env` is no environment.
        """
        if not hasattr(env, "observation_space"):
            raise TypeError(
                f"env={short(env)}: expected an environment, such as gymnasium.make('CartPole-v1')"
            )
        policy = cls(env.observation_space, acting_space(env), bias, clip)
        if policy.n_parameters > MAX_PARAMETERS:
            raise SpaceError(
                f"{title_of(env)}: a linear policy has {policy.n_parameters} parameters, expected "
                f"at most {MAX_PARAMETERS}; wrap the environment to observe fewer numbers"
            )
        return policy

    @property
    def n_inputs(self) -> int:
        """Number of observed numbers (of states, for a ``Discrete`` observation)."""
        return _size(self.observation_space)

    @property
    def n_outputs(self) -> int:
        """Number of outputs (of choices, for a ``Discrete`` action)."""
        return _size(self.action_space)

    @property
    def n_parameters(self) -> int:
        """Length of the flat parameter vector."""
        return (self.n_inputs + self.bias) * self.n_outputs

    @property
    def clips(self) -> bool:
        """Whether no action beyond a finite bound reaches the environment."""
        acts = self.action_space
        if not isinstance(acts, spaces.Box):
            return True
        whole = np.issubdtype(acts.dtype, np.integer)
        return whole or (self.clip and bool(acts.bounded_below.any() or acts.bounded_above.any()))

    @property
    def chooses(self) -> bool:
        """Whether the policy is a table with one choice for each state."""
        both = (self.observation_space, self.action_space)
        return all(isinstance(space, spaces.Discrete) for space in both)

    def unpack(self, params: Any) -> tuple[np.ndarray, np.ndarray]:
        """Split ``(n_parameters,)`` flat parameters into copies of weights and bias.

        Returns:
            ``W`` of shape ``(n_inputs, n_outputs)`` and ``b`` of shape ``(n_outputs,)``, zero
            without a bias.

        Raises:
            ParameterError: The number of parameters is wrong.
        """
        flat = np.array(params, dtype=np.float64)
        if flat.shape != (self.n_parameters,):
            raise ParameterError(
                f"got parameters of shape {flat.shape}, expected ({self.n_parameters},): "
                f"{self.n_inputs} inputs{' and a bias' if self.bias else ''} for each of "
                f"{self.n_outputs} outputs"
            )
        table = flat.reshape(-1, self.n_outputs)
        return (table[:-1], table[-1]) if self.bias else (table, np.zeros(self.n_outputs))

    def bind(self, params: Any) -> BoundPolicy:
        """Return the policy with parameters, as `unpack` takes them, ready to act in episodes."""
        return BoundPolicy(self, *self.unpack(params))

    def names(self, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> tuple[str, ...]:
        """Name each flat parameter by its output and input: ``"torque<-angle"``.

        Args:
            inputs: A short name for each observed number; ``o0, o1, ...`` if empty. States
                of a ``Discrete`` observation are ``s0, s1, ...`` in any case.
            outputs: A short name for each action; ``a0, a1, ...`` if empty.

        Raises:
            SpaceError: The number of names is wrong.
        """
        table = isinstance(self.observation_space, spaces.Discrete)
        start = int(getattr(self.observation_space, "start", 0))
        rows = [f"s{start + i}" if table else f"o{i}" for i in range(self.n_inputs)]
        columns = [f"a{j}" for j in range(self.n_outputs)]
        for kind, given, own in (("inputs", inputs, rows), ("outputs", outputs, columns)):
            if given and not (table and kind == "inputs"):
                if len(given) != len(own):
                    got = counted(len(given), "name")
                    raise SpaceError(f"got {got} of {kind}, expected {len(own)}")
                own[:] = given
        rows += ["bias"] if self.bias else []
        return tuple(f"{column}<-{row}" for row in rows for column in columns)


@dataclass(frozen=True, eq=False)
class BoundPolicy:
    """A linear policy with its parameters."""

    policy: LinearPolicy
    weights: np.ndarray  # ``(n_inputs, n_outputs)``
    bias: np.ndarray  # ``(n_outputs,)``
    inputs: tuple[str, ...] = ()  # names of the observed numbers; empty if they have none
    outputs: tuple[str, ...] = ()  # names of the actions; empty if they have none
    scaling: Scaling | None = None  # applied to observations before the map, to actions after it

    @property
    def parameters(self) -> np.ndarray:
        """The flat parameters, ``(n_parameters,)`` (a copy)."""
        rows = [self.weights, self.bias[None]] if self.policy.bias else [self.weights]
        return np.asarray(np.concatenate(rows).ravel())

    def act(self, observation: Any) -> Any:
        """Return the action for one observation, in the form that the environment takes."""
        if self.scaling is None:
            return self._act(observation)
        env = self.scaling.env
        return done_through(env, self._act(seen_through(env, observation)))

    __call__ = act

    def scores(self, observation: Any) -> np.ndarray:
        """Return the ``(n_outputs,)`` outputs of the map, before clipping or argmax.

        Raises:
            ParameterError: It is no observation of the environment.
        """
        seen = self.policy.observation_space
        try:
            if not isinstance(seen, spaces.Discrete):
                return np.asarray(np.ravel(observation) @ self.weights + self.bias)
            expected = f"a whole number from {seen.start} to {seen.start + seen.n - 1}"
            state = int(observation) - int(seen.start)
            if 0 <= state < seen.n:
                return np.asarray(self.weights[state] + self.bias)
        except (TypeError, ValueError):
            if not isinstance(seen, spaces.Discrete):
                expected = f"{counted(_size(seen), 'number')}, an array of shape {seen.shape}"
        raise ParameterError(
            f"observation={short(observation)}: expected {expected}, as the environment's reset() "
            "and step() return it"
        )

    def _act(self, observation: Any) -> Any:
        outputs, acts = self.scores(observation), self.policy.action_space
        if np.isnan(outputs).any():
            raise ParameterError(f"observation={short(observation)}: it has NaN; expected numbers")
        if not isinstance(acts, spaces.Box):
            return int(outputs.argmax()) + int(getattr(acts, "start", 0))
        values = outputs.reshape(acts.shape)
        whole = np.issubdtype(acts.dtype, np.integer)  # always clipped, as a cast could overflow
        values = np.rint(values) if whole else values
        values = np.clip(values, acts.low, acts.high) if whole or self.policy.clip else values
        return values.astype(acts.dtype)


def _size(space: spaces.Space[Any]) -> int:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return int(np.prod(space.shape or ()))
