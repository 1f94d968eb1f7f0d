"""Linear constraints over the parameters of a space, from text such as ``"2 * a + b <= 40"``."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from llmopt.errors import SpaceError, did_you_mean
from llmopt.space.values import ABSENT
from llmopt.space.when import Test, When, exact, read_tests
from llmopt.util.text import a_type, nfc, short

_MOST_TEXT = 2000  # characters of one constraint
_ROUNDING = 1e-9  # as a share of the terms, and as an amount if they are small
_ROUNDING_EQUAL = 1e-6  # the same for equations: 0.333333 three times is 1
_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*(?:\.\w+|\[\d+(?:,\d+)*\])*")
_EXAMPLE = 'expected a linear inequality over the parameters, such as "2 * a + b <= 40"'


@dataclass(frozen=True)
class Constraint:
    """``sum(factor * value) + constant <= 0``; ``< 0`` or ``== 0`` if the relation is another.

    Attributes:
        text: As the user wrote it.
        factors: Factor of each parameter that it names, by name.
        constant: The constant.
        relation: ``"<="``, ``"<"`` or ``"=="``.
    """

    text: str
    factors: tuple[tuple[str, float], ...]
    constant: float
    relation: str = "<="

    def amount(self, point: Mapping[str, Any]) -> float:
        """Return by how much a point breaks it; 0 if it does not, or lacks a parameter."""
        if any(point[name] is ABSENT for name, _ in self.factors):
            return 0.0
        terms = [factor * point[name] for name, factor in self.factors]
        total = math.fsum(terms) + self.constant
        size = 1.0 + abs(self.constant) + math.fsum(map(abs, terms))
        if self.relation == "==":
            return abs(total) if abs(total) > _ROUNDING_EQUAL * size else 0.0
        slack = _ROUNDING * size
        if self.relation == "<":
            return total + slack if total > -slack else 0.0
        return total if total > slack else 0.0

    @property
    def names(self) -> frozenset[str]:
        """The parameters that it names."""
        return frozenset(name for name, _ in self.factors)


@dataclass(frozen=True)
class Forbidden:
    """A combination of values that no point may have: `tests`, which must not all hold."""

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


Limit: TypeAlias = Constraint | Forbidden


def read_forbidden(combinations: Iterable[Any], dimensions: Mapping[str, Any]) -> list[Forbidden]:
    """Return combinations that no point may have, as dicts or as tests, in exact form."""
    if isinstance(combinations, str | Mapping) or not isinstance(combinations, Iterable):
        raise SpaceError(
            f"forbidden={short(combinations)}: got {a_type(combinations)}; expected a list of "
            'combinations, such as forbidden=[{"optimizer": "sgd", "layers": 3}]'
        )
    limits = []
    for given in combinations:
        tests = given if isinstance(given, tuple) else read_tests(given)
        (tests,) = exact("forbidden", When((tests,)), dimensions).alternatives
        texts = [t.words(lambda name, value: dimensions[name].format(value)) for t in tests]
        text = f"never {' and '.join(texts)}" + " together" * (len(texts) > 1)
        limits.append(Forbidden(text, tests))
    return limits


def read_constraints(
    texts: str | Iterable[str | Limit], names: Iterable[str] | None = None
) -> tuple[Limit, ...]:
    """Read constraints as a user writes them: ``"a <= 2 * b"``, ``"0 <= a - b < 3"``.

    A name of a parameter need not be a Python identifier. If the `names` are not known yet, they
    are words, with dots and indices.
    """
    if not isinstance(texts, Iterable):
        raise SpaceError(
            f"constraints={texts!r}, {a_type(texts)}: expected a text or a list; {_EXAMPLE}"
        )
    texts = [texts] if isinstance(texts, str) else list(texts)
    if names is None:
        names = {m[0] for text in texts if isinstance(text, str) for m in _NAME.finditer(text)}
    names, limits = list(names), list[Limit]()
    for text in texts:
        if isinstance(text, Constraint | Forbidden):
            limits.append(text)
        elif not isinstance(text, str) or len(text) > _MOST_TEXT:
            got = (
                f"{len(text)} characters" if isinstance(text, str) else f"{text!r}, {a_type(text)}"
            )
            raise SpaceError(f"constraints: got {got}; {_EXAMPLE}")
        else:
            try:
                limits += _read(" ".join(text.split()), names)
            except SpaceError as error:
                raise SpaceError(f"constraint {text[:200]!r}: {error}") from None
    return tuple(limits)


def _read(text: str, names: Sequence[str]) -> list[Constraint]:
    # Names may be anything ("params[0]", "layer size"): each becomes an identifier first.
    places = {nfc(name): f"_p{i}_" for i, name in enumerate(names)}
    pattern = "|".join(
        (r"(?<![\w.])" if re.match(r"\w", n) else "")
        + re.escape(n)
        + (r"(?!\w)" if re.search(r"\w$", n) else "")
        for n in sorted(places, key=len, reverse=True)
    )
    own = {f"_p{i}_": name for i, name in enumerate(names)}
    replaced = re.sub(pattern, lambda m: places[m[0]], nfc(text)) if names else text
    try:
        tree = ast.parse(replaced, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    if not isinstance(tree, ast.Compare):
        single = re.search(r"(?<![<>=!])=(?!=)", text)
        several = re.search(r"\b(?:if|when|unless|then|and|or|not)\b", text)
        raise SpaceError(
            "write == in place of =; " * bool(single)
            + _EXAMPLE
            + ". Exclude a combination of values with `forbidden`" * bool(several)
        )
    sides = [tree.left, *tree.comparators]
    relations: dict[type, str] = {ast.Lt: "<", ast.Gt: "<", ast.Eq: "=="}
    relations |= {ast.LtE: "<=", ast.GtE: "<="}
    constraints = []
    for left, operator, right in zip(sides, tree.ops, sides[1:], strict=False):
        if (relation := relations.get(type(operator))) is None:
            raise SpaceError(f"only <=, <, >=, > and == can be used; {_EXAMPLE}")
        if isinstance(operator, ast.Gt | ast.GtE):
            left, right = right, left
        factors, constant = _linear(ast.BinOp(left, ast.Sub(), right), own)
        terms = tuple((name, factor) for name, factor in factors.items() if factor)
        if not terms:
            raise SpaceError(f"it names no parameter; {did_you_mean(text, names)}")
        if not all(map(math.isfinite, (constant, *factors.values()))):
            raise SpaceError("its numbers must be finite")
        constraints.append(Constraint(text, terms, constant, relation))
    return constraints


def _linear(node: ast.expr, names: Mapping[str, str]) -> tuple[dict[str, float], float]:
    """Return the factor of each parameter in an expression, and the constant."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return {}, float(node.value) if abs(node.value) < 1e300 else math.inf
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise SpaceError(
                f"unknown parameter {node.id!r}; {did_you_mean(node.id, names.values())}"
            )
        return {names[node.id]: 1.0}, 0.0
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        node = ast.BinOp(
            ast.Constant(-1 if isinstance(node.op, ast.USub) else 1), ast.Mult(), node.operand
        )
    if isinstance(node, ast.BinOp):
        (left, a), (right, b) = _linear(node.left, names), _linear(node.right, names)
        if isinstance(node.op, ast.Add | ast.Sub):
            sign = 1.0 if isinstance(node.op, ast.Add) else -1.0
            summed = {n: left.get(n, 0.0) + sign * right.get(n, 0.0) for n in {**left, **right}}
            return summed, a + sign * b
        if isinstance(node.op, ast.Mult) and not (left and right):
            factors, scale = (right, a) if right else (left, b)
            return {n: scale * f for n, f in factors.items()}, a * b
        if isinstance(node.op, ast.Div) and not right:
            if b == 0:
                raise SpaceError("it divides by 0")
            return {n: f / b for n, f in left.items()}, a / b
    part = re.sub(r"_p\d+_", lambda m: names.get(m[0], m[0]), ast.unparse(node))
    raise SpaceError(
        f"`{part[:80]}` is not linear: only sums of parameters, each times a number, can be "
        f"constrained; {_EXAMPLE}"
    )
