"""Linear constraints over the parameters of a space, from text such as ``"2 * a + b <= 40"``."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

from llmopt.errors import SpaceError, did_you_mean
from llmopt.space.values import ABSENT
from llmopt.space.when import Test
from llmopt.util.text import a_type

_MOST_TEXT = 2000  # characters of one constraint
_ROUNDING = 1e-9  # as a share of the terms, and as an amount where they are small
_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*(?:\.\w+|\[\d+(?:,\d+)*\])*")
_EXAMPLE = 'expected a linear inequality over the parameters, such as "2 * a + b <= 40"'
_LINEAR = "only sums of parameters, each times a number, can be constrained"


@dataclass(frozen=True)
class Constraint:
    """``sum(factor * value) + constant <= 0``, or ``< 0``.

    Attributes:
        text: As the user wrote it.
        factors: Factor of each parameter that it names, by name.
        constant: What is added.
        strict: Whether 0 breaks it.
    """

    text: str
    factors: tuple[tuple[str, float], ...]
    constant: float
    strict: bool = False

    def amount(self, point: Mapping[str, Any]) -> float:
        """Return by how much a point breaks it; 0 if it does not.

        Args:
            point: A number for each of the parameters that it names; where it lacks one, the
                constraint is kept.
        """
        if any(point[name] is ABSENT for name, _ in self.factors):
            return 0.0
        terms = [factor * point[name] for name, factor in self.factors]
        total = math.fsum(terms) + self.constant
        slack = _ROUNDING * (1.0 + abs(self.constant) + math.fsum(map(abs, terms)))
        if self.strict:
            return total + slack if total > -slack else 0.0
        return total if total > slack else 0.0

    @property
    def names(self) -> frozenset[str]:
        """The parameters that it names."""
        return frozenset(name for name, _ in self.factors)

    def given(self, known: Mapping[str, Any]) -> Constraint:
        """Return what it says of the other parameters where some are known."""
        found = [(n, f) for n, f in self.factors if n in known]
        if not found:
            return self
        shown = ", ".join(f"{n} = {known[n]:.6g}" for n, _ in found)
        return replace(
            self,
            text=f"{self.text} (with {shown})",
            factors=tuple((n, f) for n, f in self.factors if n not in known),
            constant=self.constant + math.fsum(f * known[n] for n, f in found),
        )


@dataclass(frozen=True)
class Forbidden:
    """A combination of values that no point may have.

    Attributes:
        text: What is forbidden, in words.
        tests: What the point must not meet all together; without any, nothing is forbidden.
    """

    text: str
    tests: tuple[Test, ...]
    factors: ClassVar[tuple[tuple[str, float], ...]] = ()

    def amount(self, point: Mapping[str, Any]) -> float:
        """Return 1 for a point that has the combination; else 0."""
        return float(bool(self.tests) and all(t.holds(point[t.name]) for t in self.tests))

    @property
    def names(self) -> frozenset[str]:
        """The parameters that it names."""
        return frozenset(test.name for test in self.tests)

    def given(self, known: Mapping[str, Any]) -> Forbidden:
        """Return what it says of the other parameters where some are known."""
        if not all(t.holds(known[t.name]) for t in self.tests if t.name in known):
            return replace(self, tests=())
        return replace(self, tests=tuple(t for t in self.tests if t.name not in known))


Limit: TypeAlias = Constraint | Forbidden


def read_constraints(
    texts: str | Iterable[str | Limit], names: Iterable[str] | None = None
) -> tuple[Limit, ...]:
    """Read constraints as a user writes them: ``"a <= 2 * b"``, ``"0 <= a - b < 3"``.

    A name of a parameter need not be a Python identifier. Where the `names` are not known yet, they
    are words, with dots and indices.
    """
    if not isinstance(texts, Iterable):
        raise SpaceError(
            f"constraints={texts!r}, {a_type(texts)}: expected a text or a list; {_EXAMPLE}"
        )
    texts = [texts] if isinstance(texts, str) else list(texts)
    if names is None:
        names = {m[0] for text in texts if isinstance(text, str) for m in _NAME.finditer(text)}
    names = list(names)
    found: list[Limit] = []
    for text in texts:
        if isinstance(text, Constraint | Forbidden):
            found.append(text)
            continue
        if not isinstance(text, str):
            raise SpaceError(f"constraints: got {text!r}, {a_type(text)}; {_EXAMPLE}")
        try:
            found += _read(" ".join(text.split()), names)
        except SpaceError as error:
            raise SpaceError(f"constraint {text[:200]!r}: {error}") from None
    return tuple(found)


def _read(text: str, names: Sequence[str]) -> list[Constraint]:
    if len(text) > _MOST_TEXT:
        raise SpaceError(f"it has {len(text)} characters; expected at most {_MOST_TEXT}")
    # Names may be anything ("params[0]", "layer size"): each becomes an identifier first.
    places = {f"_p{i}_": name for i, name in enumerate(names)}
    own = {name: place for place, name in places.items()}
    longest = sorted(names, key=len, reverse=True)
    pattern = "|".join(
        (r"(?<![\w.])" if n[:1].isalnum() or n[:1] == "_" else "")
        + re.escape(n)
        + (r"(?!\w)" if n[-1:].isalnum() or n[-1:] == "_" else "")
        for n in longest
    )
    replaced = re.sub(pattern, lambda m: own[m[0]], text)
    try:
        tree = ast.parse(replaced, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpaceError(_EXAMPLE) from None
    if not isinstance(tree, ast.Compare):
        raise SpaceError(_EXAMPLE)
    sides = [tree.left, *tree.comparators]
    made = []
    for left, relation, right in zip(sides, tree.ops, sides[1:], strict=False):
        if isinstance(relation, (ast.Gt, ast.GtE)):
            left, right = right, left
        elif not isinstance(relation, (ast.Lt, ast.LtE)):
            raise SpaceError(
                "only <=, <, >= and > can be used; for an equation such as a + b + c == 1, leave c "
                "out of the space, compute it as 1 - a - b, and keep a + b <= 1"
            )
        factors, constant = _linear(ast.BinOp(left, ast.Sub(), right), places)
        factors = {name: factor for name, factor in factors.items() if factor}
        if not factors:
            raise SpaceError(f"it names no parameter; {did_you_mean(text, names)}")
        if not all(map(math.isfinite, (constant, *factors.values()))):
            raise SpaceError("its numbers must be finite")
        strict = isinstance(relation, (ast.Lt, ast.Gt))
        made.append(Constraint(text, tuple(factors.items()), constant, strict))
    return made


_SIGNS: dict[type, Callable[[float, float], float]] = {ast.Add: operator.add, ast.Sub: operator.sub}


def _linear(node: ast.expr, places: Mapping[str, str]) -> tuple[dict[str, float], float]:
    """Return the factor of each parameter in an expression, and the constant."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        try:
            return {}, float(node.value)
        except OverflowError:
            raise SpaceError("its numbers must be finite") from None
    if isinstance(node, ast.Name):
        if node.id not in places:
            raise SpaceError(
                f"unknown parameter {node.id!r}; {did_you_mean(node.id, places.values())}"
            )
        return {places[node.id]: 1.0}, 0.0
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        factors, constant = _linear(node.operand, places)
        sign = -1.0 if isinstance(node.op, ast.USub) else 1.0
        return {n: sign * f for n, f in factors.items()}, sign * constant
    if isinstance(node, ast.BinOp):
        (left, a), (right, b) = _linear(node.left, places), _linear(node.right, places)
        if (combine := _SIGNS.get(type(node.op))) is not None:
            names = {**left, **right}
            summed = {n: combine(left.get(n, 0.0), right.get(n, 0.0)) for n in names}
            return summed, combine(a, b)
        if isinstance(node.op, ast.Mult) and not (left and right):
            factors, scale = (right, a) if right else (left, b)
            return {n: scale * f for n, f in factors.items()}, a * b
        if isinstance(node.op, ast.Div) and not right:
            if b == 0:
                raise SpaceError("it divides by 0")
            return {n: f / b for n, f in left.items()}, a / b
    part = re.sub(r"_p\d+_", lambda m: places.get(m[0], m[0]), ast.unparse(node))
    raise SpaceError(f"`{part[:80]}` is not linear: {_LINEAR}; {_EXAMPLE}")
