"""Make Gymnasium environments from an id, a spec, an environment or a function."""

from __future__ import annotations

import importlib
import inspect
import json
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import NormalizeObservation

from llmopt.errors import LLMOptError, install_hint
from llmopt.policies.episode import episode
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.scaling import NO_ARGUMENTS, Normal, stack, title_of, without_address
from llmopt.util.text import a_type, first_line, function_name

EnvLike: TypeAlias = str | EnvSpec | gym.Env[Any, Any] | Callable[..., gym.Env[Any, Any]]
"""A Gymnasium id, a spec with its wrappers, an environment that has one, or a function."""

Wrap: TypeAlias = Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]

_LONG = 2000  # characters of a list of numbers; of a longer one a digest is kept


class EnvMaker:
    """Makes copies of one environment.

    Args:
        env: The environment, in one of the forms of `EnvLike`.
        wrappers: Functions that wrap the environment, the innermost first.

    Raises:
        LLMOptError: They are something else.
    """

    def __init__(self, env: EnvLike, wrappers: Sequence[Wrap] = ()) -> None:
        if not (isinstance(wrappers, Sequence) and all(map(callable, wrappers))):
            raise LLMOptError(
                f"wrappers={wrappers!r}: expected a list of functions that wrap an environment, "
                "such as [gymnasium.wrappers.ClipAction]"
            )
        self._wraps = tuple(wrappers)
        if env is gym.Env:
            raise LLMOptError(
                "env=gymnasium.Env: got the base of all environments; expected one, such as "
                "'CartPole-v1', or a function or class that makes one"
            )
        if isinstance(env, gym.Env):
            if env.spec is None:
                raise LLMOptError(
                    f"got an environment that was not made by gymnasium.make ({type(env).__name__})"
                    ": pass a function that makes it, such as lambda: MyEnv()"
                )
            env = env.spec
        self._source = env
        if isinstance(env, EnvSpec):
            self.title = env.id
        elif isinstance(env, str):
            self.title = env.rpartition(":")[2]
        elif callable(env):
            self.title = function_name(env, "environment")
        else:
            raise LLMOptError(
                f"env={env!r}: expected a Gymnasium id, a spec, or a function that makes an "
                "environment"
            )

    @property
    def wrapped_in(self) -> dict[str, Any]:
        """The names of the wrappers, in JSON types."""
        names = [function_name(each, "wrapper") for each in self._wraps]
        return {"wrappers": names} if names else {}

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a spec, in JSON types; empty for an id or a function."""
        given = self._source.kwargs if isinstance(self._source, EnvSpec) else {}
        return {k: _plain(v) for k, v in given.items()}

    def __call__(self, render_mode: str | None = None) -> gym.Env[Any, Any]:
        """Make the environment."""
        source = self._source
        mode: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
        if isinstance(source, str | EnvSpec):
            env = make_gymnasium(source, **mode)
        else:
            try:
                env = source(**mode) if mode and _takes_mode(source) else source()
                if not isinstance(env, gym.Env):
                    raise TypeError(f"it returned {a_type(env)}, no gymnasium.Env")
            except Exception as error:
                raise _trouble(self.title, error) from error
            _silence_mujoco()
        for wrap in self._wraps:
            try:
                wrapped = wrap(env)
                if not isinstance(wrapped, gym.Env):
                    raise TypeError(f"it returned {a_type(wrapped)}, no gymnasium.Env")
            except Exception as error:
                env.close()
                raise LLMOptError(
                    f"the wrapper {function_name(wrap, 'wrapper')!r} does not fit {title_of(env)} "
                    f"({type(error).__name__}: {error}): observations are {env.observation_space}, "
                    f"actions {env.action_space}"
                ) from error
            env = wrapped
        return env


def made_with(env: gym.Env[Any, Any]) -> dict[str, Any]:
    """Return the arguments of an environment and of its wrappers, as far as they are recorded.

    The values are JSON; a long one is a digest. An environment that ``gymnasium.make`` did not
    make records none.
    """
    if env.spec is None:
        return {}
    given = {k: _plain(v) for k, v in env.spec.kwargs.items() if k not in NO_ARGUMENTS}
    layers = [{"wrapper": w.name, **(_plain(w.kwargs) or {})} for w in env.spec.additional_wrappers]
    return {**({"arguments": given} if given else {}), **({"layers": layers} if layers else {})}


def _plain(value: Any) -> Any:
    """Return a value in JSON types; what has none by its representation, without addresses."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        values = [_plain(v) for v in value]
        text = json.dumps(values)
        return values if len(text) <= _LONG else f"sha256 {sha256(text.encode()).hexdigest()}"
    if isinstance(value, bool | int | str | None) or (
        isinstance(value, float) and math.isfinite(value)
    ):
        return value
    return without_address(value)


def make_gymnasium(env: str | EnvSpec, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make a registered Gymnasium environment."""
    try:
        if isinstance(env, str):
            # The checker takes a third of the time and warns in every episode about actions out
            # of bounds, which linear policies emit by design.
            kwargs = {"disable_env_checker": True, **kwargs}
        # Before making it: MuJoCo warns about Gymnasium's own files as it reads them.
        _silence_mujoco(gym.registry.get(env) if isinstance(env, str) else env)
        with warnings.catch_warnings():  # who renders reports an environment that cannot
            warnings.filterwarnings("ignore", ".*initialised with render_mode", UserWarning)
            made: gym.Env[Any, Any] = gym.make(env, **kwargs)
    except Exception as error:
        module, _, title = (env if isinstance(env, str) else env.id).rpartition(":")
        raise _trouble(title, error, module) from error
    _silence_mujoco()  # again: making the environment may have imported MuJoCo
    return made


def missing_environment(name: str) -> str:
    """Return how to name an environment that Gymnasium does not know, or what to install."""
    if name.startswith("ALE/"):
        return f"install its package (pip install ale-py) and name it ale_py:{name}"
    return f"name your own environment MODULE:{name}; importing MODULE must register it"


def _trouble(title: str, error: Exception, module: str = "") -> LLMOptError:
    """Return the error to raise if an environment cannot be made; `module` is to register it."""
    line = first_line(error) or type(error).__name__
    if isinstance(error, gym.error.DependencyNotInstalled):
        text = f"{title} needs a package that is not installed ({line})"
        if "box2d" in str(error).lower():
            return LLMOptError(f'{text}: pip install "gymnasium[box2d]"')
        return LLMOptError(f"{text}: {install_hint('bench')} installs MuJoCo and pygame")
    if isinstance(error, gym.error.UnregisteredEnv):
        # If a module was imported, or another version exists, no other import would help.
        hopeless = module or isinstance(error, gym.error.VersionNotFound | gym.error.DeprecatedEnv)
        line = line.rstrip(".") + ("" if hopeless else f"; {missing_environment(title)}")
    elif not isinstance(error, gym.error.Error):
        line = f"{type(error).__name__}: {line}"
    return LLMOptError(f"{title} cannot be made: {line}")


def _silence_mujoco(spec: EnvSpec | None = None) -> None:
    """Keep MuJoCo from writing MUJOCO_LOG.TXT if a policy makes its simulation unstable.

    The episode's return shows the instability, too.
    """
    if spec is not None and "mujoco" in str(spec.entry_point):
        with suppress(ImportError):  # reported when the environment is made
            importlib.import_module("mujoco")
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None and getattr(mujoco, "get_mju_user_warning", lambda: None)() is None:
        mujoco.set_mju_user_warning(lambda *_: None)


def _takes_mode(make: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.name == "render_mode" or p.kind is p.VAR_KEYWORD for p in parameters)


def measure_normal(
    make: Callable[[], gym.Env[Any, Any]],
    cap: int | None = None,
    *,
    episodes: int = 20,
    steps: int = 10_000,
) -> Normal:
    """Measure mean and variance of each observed number, in seeded episodes of random policies.

    The policies are linear in observations normalized by the earlier episodes, with weights of
    standard deviation 1, like a search's first policies. Returns four significant digits; a
    constant number gets variance 1. No episode begins after `steps` environment steps.
    """
    env = make()
    title = title_of(env)
    try:
        running: Any = next(w for w in stack(env) if isinstance(w, NormalizeObservation))
        policy, rng = LinearPolicy.for_env(env, clip=True), np.random.default_rng(0)
        taken = 0
        for number in range(episodes):
            act = policy.bind(rng.normal(size=policy.n_parameters))
            outcome = episode(env, act, number, min(cap or steps, steps))
            taken += outcome.length
            if outcome.error is not None:
                raise outcome.error
            if taken >= steps:
                break
        mean, variance = running.obs_rms.mean, running.obs_rms.var
    except LLMOptError:
        raise
    except Exception as error:
        raise LLMOptError(
            f"{title}: its observations cannot be normalized: an episode raised "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error
    finally:
        env.close()
    if not (np.isfinite(mean).all() and np.isfinite(variance).all()):
        raise LLMOptError(f"{title}: observations must be finite numbers to be normalized")
    # For a constant number the variance is only the remainder of Gymnasium's initial guess.
    variance = np.where(variance * taken < 1e-3 * (1.0 + mean**2), 1.0, variance)
    means, variances = ([float(f"{x:.4g}") for x in np.ravel(v)] for v in (mean, variance))
    return tuple(means), tuple(variances)


def usual_sizes(make: Callable[[], gym.Env[Any, Any]], cap: int) -> np.ndarray | None:
    """Measure each observed number's root mean square, in a few episodes of random policies.

    It is 1 for a number that is always 0. Returns ``None`` if an episode failed.
    """
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            mean, variance = measure_normal(
                lambda: NormalizeObservation(make()), cap, episodes=10, steps=3000
            )
    except (LLMOptError, AssertionError):  # the first evaluation reports the fault
        return None
    return np.sqrt(np.square(mean) + variance)
