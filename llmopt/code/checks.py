"""Specify functions, and check a candidate against the specification before it is scored.

The checks run in the confined worker, in this order, until one fails: the source parses; it
defines the functions; it imports only permitted modules; it loads, and the functions accept the
arguments; each function, called on every sample input, returns a valid result, and the same result
after the source is reloaded.
"""

from __future__ import annotations

import ast
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from llmopt.sandbox.encoding import EncodingError, encode
from llmopt.sandbox.failure import CandidateError
from llmopt.sandbox.sandbox import Sandbox
from llmopt.util.text import cut

_INT_END = 2**63
_REWARD_MOST = 1e100  # sums of rewards must not overflow
MAX_COMPONENTS = 64
_LONGEST_NAME = 100
_USELESS = {
    "open": "files cannot be opened",
    "input": "nobody answers",
    "breakpoint": "nobody is there to debug",
}


@dataclass(frozen=True)
class Output:
    """The specification of a function's result.

    Attributes:
        kind: ``"float"``, ``"int"``, ``"bool"``, ``"reward"`` (a number, or a pair of it and
            a dict of named components) or ``"any"``.
        shape: Shape of the array; ``()`` for a single number.
        low: Minimum, a number or an array of that shape.
        high: Maximum, a number or an array of that shape.
        clip: Clip values to the bounds instead of rejecting them.
    """

    kind: Literal["float", "int", "bool", "reward", "any"] = "float"
    shape: tuple[int, ...] = ()
    low: Any = -math.inf
    high: Any = math.inf
    clip: bool = False

    @classmethod
    def from_space(cls, space: gym.Space[Any]) -> Output:
        """Return the specification of an action in a Gymnasium space.

        Numbers outside a `Box` are clipped to its bounds.

        Raises:
            TypeError: The space is neither a `Box` nor `Discrete`.
        """
        if isinstance(space, gym.spaces.Box):
            return cls("float", tuple(space.shape), space.low, space.high, clip=True)
        if isinstance(space, gym.spaces.Discrete):
            return cls("int", (), int(space.start), int(space.start + space.n - 1))
        raise TypeError(f"got the action space {space}; expected a Box or Discrete")

    def __str__(self) -> str:
        if self.kind == "any":
            return "any plain data"
        if self.kind == "reward":
            return "a finite number, or a pair of it and a dict of its named components"
        what = {"float": "finite number", "int": "integer", "bool": "bool"}[self.kind]
        if self.shape:
            text = f"array of shape {self.shape} of {what}s"
        else:
            text = what
        low, high = np.min(self.low), np.max(self.high)
        if self.kind != "bool" and (np.isfinite(low) or np.isfinite(high)):
            text += f" in [{low:g}, {high:g}]"
        return f"{'an' if text[0] in 'aeiou' else 'a'} {text}"

    def read(self, value: Any) -> Any:
        """Validate a value and convert it to the specified type.

        Args:
            value: Plain data, as received from a worker.

        Returns:
            A ``shape``-shaped array, or a float, int or bool; for ``"reward"`` a pair of a
            float and a dict of floats.

        Raises:
            CandidateError: The value does not match the specification.
        """
        if self.kind == "any":
            return value
        if self.kind == "reward":
            return _read_reward(value)
        array = _numbers(value)
        if array.shape != self.shape and array.size == math.prod(self.shape) <= 1:
            array = array.reshape(self.shape)  # accept [0.5] for 0.5 and vice versa
        if array.shape != self.shape:
            got = f"shape {array.shape}" if array.shape else "a single number"
            raise self._wrong(f"{got}")
        if (found := self._of_kind(array)) is None:
            raise self._wrong(_short(value))
        return found if self.shape else found.item()

    def _of_kind(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        """Return the array with the specified type and range, or ``None`` if it does not fit."""
        if self.kind == "bool":
            return array if array.dtype == bool else None
        if not np.isfinite(array).all():
            return None
        if self.kind == "int":
            if array.dtype.kind != "i" and not _whole(array):
                return None
            array = array.astype(np.int64)
        else:
            array = array.astype(np.float64)
        if self.clip:
            clipped: np.ndarray[Any, Any] = np.minimum(np.maximum(array, self.low), self.high)
            return clipped
        outside = (array < self.low).any() or (array > self.high).any()
        return None if outside else array

    def _wrong(self, got: str) -> CandidateError:
        return CandidateError(f"it returned {got}; expected {self}")


def _whole(array: np.ndarray[Any, Any]) -> bool:
    """Whether numbers can be cast to 64-bit integers without loss."""
    if array.dtype == bool or not np.array_equal(np.rint(array), array):
        return False
    # As Python numbers: NumPy would round the bound, or overflow silently.
    return not array.size or -_INT_END <= array.min().item() <= array.max().item() < _INT_END


def _holds_text(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_text, value))
    return isinstance(value, str)


# The first items alone: there may be millions of them, and this is the trusted process.
_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxlist, _BRIEF.maxtuple, _BRIEF.maxdict = 3, 20, 20, 10
_BRIEF.maxstring = _BRIEF.maxother = 1000


def _short(value: Any) -> str:
    return cut(_BRIEF.repr(value), 100)


def _numbers(value: Any) -> np.ndarray[Any, Any]:
    try:
        # NumPy would give every item the room of the longest text: gigabytes for one message.
        array = np.asarray(None if _holds_text(value) else value)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind not in "fiub":
        raise CandidateError(
            f"it returned {_short(value)}; expected numbers"
            + (" (does every path end in a return?)" if value is None else "")
        )
    return array


def _read_reward(value: Any) -> tuple[float, dict[str, float]]:
    components: Any = {}
    if isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[1], dict):
        value, components = value
    longest = max(map(len, components), default=0)
    if len(components) > MAX_COMPONENTS or longest > _LONGEST_NAME:
        raise CandidateError(
            f"it returned {len(components)} components, the longest name of {longest} characters; "
            f"expected at most {MAX_COMPONENTS}, and names of at most {_LONGEST_NAME}"
        )
    return _read_number(value), {name: _read_number(v) for name, v in components.items()}


def component_means(
    results: Sequence[tuple[float, Mapping[str, float]]], known: set[str]
) -> dict[str, float]:
    """Return the mean per step of a reward, as ``"total"``, and of each of its components.

    Adds new names of components to `known`. More than `MAX_COMPONENTS` raise `CandidateError`:
    new names at every step would fill the memory of this process.
    """
    sums: dict[str, list[float]] = {"total": [reward for reward, _ in results]}
    for _, parts in results:
        known.update(parts)
        if len(known) > MAX_COMPONENTS:
            raise CandidateError(
                f"it named more than {MAX_COMPONENTS} different components in the course of its "
                "training; name a few, and always the same"
            )
        for name, value in parts.items():  # not a set, whose order differs between processes
            if name != "total":
                sums.setdefault(name, []).append(value)
    return {name: math.fsum(values) / len(results) for name, values in sums.items()}


def _read_number(value: Any) -> float:
    # A reward is read at every step of training: the common case avoids arrays.
    number = value if type(value) is float else float(_NUMBER.read(value))
    if not -_REWARD_MOST <= number <= _REWARD_MOST:
        raise CandidateError(
            f"it returned {number!r}; expected a finite number of at most {_REWARD_MOST:g} in size"
        )
    return number


_NUMBER = Output()


@dataclass(frozen=True)
class Function:
    """The specification of one function to write.

    Attributes:
        signature: For example ``"controller(obs)"``; defaults and type hints are allowed.
        doc: What it does, its inputs and its result.
        output: The specification of its result.
        samples: Argument tuples of the test calls; give at least two.
        name: The function's name.
        parameters: The names of its positional parameters.
    """

    signature: str
    doc: str = ""
    output: Output = field(default_factory=lambda: Output("any"))
    samples: tuple[tuple[Any, ...], ...] = ()
    name: str = field(init=False)
    parameters: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        text = self.signature.strip().removeprefix("def ").rstrip(": ")
        try:
            node = ast.parse(f"def {text}:\n    pass").body[0]
        except SyntaxError:
            node = None
        if not isinstance(node, ast.FunctionDef):
            raise ValueError(
                f"signature {self.signature!r}; expected a function's, such as 'controller(obs)'"
            )
        object.__setattr__(self, "signature", text)
        object.__setattr__(self, "name", node.name)
        object.__setattr__(self, "parameters", tuple(a.arg for a in node.args.args))
        object.__setattr__(self, "samples", tuple(tuple(s) for s in self.samples))
        for k, sample in enumerate(self.samples, 1):
            try:
                encode(sample)
            except EncodingError as error:  # before any request
                raise ValueError(f"sample input {k} of {self.name}: {error}") from None


def check(sandbox: Sandbox, source: str, functions: Sequence[Function]) -> str:
    """Check a source, leave it loaded in the sandbox, and return its fingerprint.

    Raises:
        CandidateError: A check failed; the message is for the model.
    """
    found = inspect_source(sandbox, source, functions)
    sandbox.load(source, wanted={f.name: (len(f.parameters), f.signature) for f in functions})
    first = [_trial(sandbox, function) for function in functions]
    if any(function.samples for function in functions):
        sandbox.load(source)
        for function, results in zip(functions, first, strict=True):
            for k, (before, after) in enumerate(
                zip(results, _trial(sandbox, function), strict=True)
            ):
                if encode(before) != encode(after):
                    raise CandidateError(
                        f"{function.name} is not deterministic: on sample input {k + 1} it "
                        f"returned {_short(before)}, then {_short(after)} after a fresh start. "
                        "Use no randomness and no clock"
                    )
        sandbox.load(source)
    return found


def inspect_source(sandbox: Sandbox, source: str, functions: Sequence[Function]) -> str:
    """Run the checks that do not execute the source; return its fingerprint."""
    found = sandbox.analyse(source)
    problem = found["error"]
    if problem is not None:
        line = problem["line"]
        where = f" (line {line}: {problem['text'].strip()})" if line else ""
        raise CandidateError(f"SyntaxError: {problem['message']}{where}", "syntax", line=line)
    for function in functions:
        if function.name not in found["functions"]:
            names = ", ".join(found["functions"]) or "none"
            raise CandidateError(
                f"the function {function.name} is missing; functions found: {names}. Define "
                f"`def {function.signature}:` at the top level"
            )
    allowed = {name.partition(".")[0] for name in sandbox.imports}
    for name, line in found["imports"]:
        if name.partition(".")[0] not in allowed | {"__future__", "typing"}:
            raise CandidateError(
                f"line {line} imports {name!r}; only {', '.join(sorted(allowed))} can be imported",
                line=line,
            )
    for name, line in found["builtins"]:
        reason = _USELESS.get(name, "code must stand in the source")
        raise CandidateError(f"line {line} uses {name}(): {reason}", line=line)
    return str(found["fingerprint"])


def _trial(sandbox: Sandbox, function: Function) -> list[Any]:
    results = []
    for k, sample in enumerate(function.samples):
        try:
            results.append(function.output.read(sandbox.call(function.name, *sample)))
        except CandidateError as error:
            shown = ", ".join(
                f"{n}={_short(v)}" for n, v in zip(function.parameters, sample, strict=False)
            )
            raise CandidateError(
                f"{function.name} fails on sample input {k + 1} ({shown}): {error}",
                error.kind,
                line=error.line,
                trace=error.trace,
                printed=error.printed,
            ) from error
    return results
