"""Linear policies: ``a = s W + b``, with a discrete action chosen by argmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from llmopt.errors import ParameterError, SpaceError

_SUPPORTED = (
    "supported are Box and Discrete observations with Box and Discrete actions; wrap the "
    "environment (gymnasium.wrappers has FlattenObservation and RescaleAction) to make one of them"
)


@dataclass(frozen=True)
class LinearPolicy:
    """A linear map from what is observed to what is done.

    A ``Box`` observation is flattened; a ``Discrete`` one is one-hot, so that the weights
    are a table with one row for each state. A ``Box`` action is the linear map's own
    output, never clipped here: an environment clips, and charges, as it sees fit. A
    ``Discrete`` action is the index of the largest output, the first of equals.

    The flat parameters are ``W`` row by row (for each observed number its weight on every
    action), then ``b``. This is the order of the published ProPS files.

    Attributes:
        observation_space: A ``Box`` or ``Discrete`` space.
        action_space: A ``Box`` or ``Discrete`` space.
        bias: Whether there is a ``b``.
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    bias: bool = True

    def __post_init__(self) -> None:
        for kind, space in (
            ("observations", self.observation_space),
            ("actions", self.action_space),
        ):
            if not isinstance(space, spaces.Box | spaces.Discrete):
                raise SpaceError(f"a linear policy cannot take {kind} from {space}: {_SUPPORTED}")

    @classmethod
    def for_env(
        cls,
        env_or_spaces: gym.Env[Any, Any] | tuple[spaces.Space[Any], spaces.Space[Any]],
        bias: bool = True,
    ) -> LinearPolicy:
        """Make the policy that fits an environment.

        Args:
            env_or_spaces: An environment, or its observation and action spaces.
            bias: Whether to add a constant to each output.

        Raises:
            SpaceError: The policy cannot serve these spaces; the message names those it can.
        """
        if isinstance(env_or_spaces, tuple):
            return cls(*env_or_spaces, bias=bias)
        return cls(env_or_spaces.observation_space, env_or_spaces.action_space, bias=bias)

    @property
    def n_inputs(self) -> int:
        """Numbers observed (states, for a ``Discrete`` observation)."""
        return _size(self.observation_space)

    @property
    def n_outputs(self) -> int:
        """Numbers computed (choices, for a ``Discrete`` action)."""
        return _size(self.action_space)

    @property
    def n_parameters(self) -> int:
        """Length of the flat parameter vector."""
        return (self.n_inputs + self.bias) * self.n_outputs

    def unpack(self, params: Any) -> tuple[np.ndarray, np.ndarray]:
        """Split flat parameters into weights and bias.

        Args:
            params: ``(n_parameters,)`` array-like, or a batch ``(n, n_parameters)``.

        Returns:
            ``W`` of shape ``(..., n_inputs, n_outputs)`` and ``b`` of shape
            ``(..., n_outputs)``, zero without a bias. Both are copies, in float64.

        Raises:
            ParameterError: The number of parameters is wrong.
        """
        flat = np.array(params, dtype=np.float64)
        if flat.ndim not in (1, 2) or flat.shape[-1] != self.n_parameters:
            raise ParameterError(
                f"got parameters of shape {flat.shape}, expected ({self.n_parameters},) or "
                f"(n, {self.n_parameters}): {self.n_inputs} inputs"
                f"{' and a bias' if self.bias else ''} for each of {self.n_outputs} outputs"
            )
        table = flat.reshape(*flat.shape[:-1], self.n_inputs + self.bias, self.n_outputs)
        if self.bias:
            return table[..., :-1, :], table[..., -1, :]
        return table, np.zeros((*flat.shape[:-1], self.n_outputs))

    def bind(self, params: Any) -> BoundPolicy:
        """Fix the parameters: the form that an episode uses.

        Args:
            params: ``(n_parameters,)`` array-like.

        Raises:
            ParameterError: The number of parameters is wrong.
        """
        weights, bias = self.unpack(params)
        if weights.ndim != 2:
            raise ParameterError("one policy has one parameter vector; for a batch call act_batch")
        return BoundPolicy(self, weights, bias)

    def act_batch(self, params: Any, observations: Any) -> np.ndarray:
        """Act for many policies at once, one observation each.

        Args:
            params: ``(n, n_parameters)`` array-like.
            observations: ``(n, *observation shape)`` array-like; ``(n,)`` integers for a
                ``Discrete`` observation.

        Returns:
            ``(n, *action shape)`` array in the action's dtype; ``(n,)`` integers for a
            ``Discrete`` action.

        Raises:
            ParameterError: The shapes do not fit.
        """
        weights, bias = self.unpack(np.atleast_2d(np.asarray(params, dtype=np.float64)))
        n = len(weights)
        seen = np.asarray(observations)
        if len(seen) != n:
            raise ParameterError(
                f"got {n} parameter vectors and {len(seen)} observations: expected one for each"
            )
        if isinstance(self.observation_space, spaces.Discrete):
            outputs = weights[np.arange(n), seen - self.observation_space.start] + bias
        else:
            rows = seen.reshape(n, -1).astype(np.float64)
            outputs = np.einsum("ni,nio->no", rows, weights) + bias
        if isinstance(self.action_space, spaces.Discrete):
            return np.asarray(outputs.argmax(axis=1) + self.action_space.start)
        return _to_box(outputs.reshape(n, *(self.action_space.shape or ())), self.action_space)


@dataclass(frozen=True, eq=False)
class BoundPolicy:
    """A linear policy with its parameters.

    Attributes:
        policy: The map's form.
        weights: ``(n_inputs, n_outputs)`` array.
        bias: ``(n_outputs,)`` array.
    """

    policy: LinearPolicy
    weights: np.ndarray
    bias: np.ndarray

    def __call__(self, observation: Any) -> Any:
        """Return the action for one observation, in the form that the environment takes."""
        seen, acts = self.policy.observation_space, self.policy.action_space
        if isinstance(seen, spaces.Discrete):
            outputs = self.weights[int(observation) - int(seen.start)] + self.bias
        else:
            outputs = np.ravel(observation) @ self.weights + self.bias
        if isinstance(acts, spaces.Discrete):
            return int(outputs.argmax()) + int(acts.start)
        return _to_box(outputs.reshape(acts.shape or ()), acts)


def _size(space: spaces.Space[Any]) -> int:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return int(np.prod(space.shape or ()))


def _to_box(values: np.ndarray, space: spaces.Space[Any]) -> np.ndarray:
    """Cast to the dtype of a ``Box``; only integers, which cannot hold the rest, are clipped."""
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer):
        values = np.clip(np.rint(values), space.low, space.high)
    return values.astype(space.dtype)
