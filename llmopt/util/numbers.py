r"""Numbers as models write them, read exactly or not at all.

Read are plain decimals (``-0.25``), exponents (``3e-3``) and powers of ten (``10^-3``,
``10**-3``, ``3×10⁻³``, ``5·10^{-3}``, ``3 \times 10^{-3}``, also between ``$``), with Unicode
minus signs and blanks. Anything else is no number: ``1,024``, ``0,003``, ``50 %``, ``1/3``,
``2^10``, a range, a number with another unit than the one that is expected.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from llmopt.util.text import nfc

_MINUS = "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"
_BLANKS = "\t\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_UNSEEN = dict.fromkeys(map(ord, "\u200b\u200e\u2060\ufeff"))
_RAISED = str.maketrans("⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹", "-+0123456789")
_EXPONENT = re.compile("[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_TIMES = re.compile(r"\\times|\\cdot|[×·⋅∙]")
_NUMBER = re.compile(
    r"(?P<sign>[+-]?)(?:"
    r"(?P<plain>\d+\.?\d*|\.\d+)(?:[eE](?P<e>[+-]?\d{1,4}))?"
    r"|(?:(?P<factor>\d+\.?\d*|\.\d+) ?[x*] ?)?10(?:\^|\*\*) ?"
    r"(?:(?P<power>[+-]?\d{1,4})|\{ ?(?P<braced>[+-]?\d{1,4}) ?\}|\((?P<round>[+-]?\d{1,4})\))"
    r")",
    re.ASCII,
)
_LONGEST = 400  # characters of a number

PLAIN = str.maketrans(
    dict.fromkeys(_MINUS, "-")
    | dict.fromkeys(_BLANKS, " ")
    | {"\u00b5": "\u03bc"}  # micro sign
    | dict.fromkeys("\u00ba\u02da", "\u00b0")  # degree sign
)
"""Turns each sign into the plain one of those that look alike; a text keeps its length."""


_SPELLINGS = [
    frozenset(line.split())
    for line in (
        "°C degC degreesC celsius Celsius °Celsius degreesCelsius",
        "s sec second seconds",
        "min mins minute minutes",
        "h hr hrs hour hours",
        "mL ml",
        "mol% mol-% mole%",
        "eq eq. equiv equiv. equivalent equivalents",
    )
]


def spellings(unit: str) -> frozenset[str]:
    """Return the spellings of a unit, without blanks and raised signs; of a few, more than one."""
    signs = "".join(nfc(unit).translate(PLAIN).translate(_RAISED).split())
    return next((same for same in _SPELLINGS if signs in same), frozenset({signs}))


def without_unit(text: str, unit: str) -> str:
    """Return a text without the unit at its end; blanks, raised signs, look-alikes vary."""
    known = spellings(unit)
    known |= {"C"} if "°C" in known else set()  # which alone may be coulomb
    ends = "|".join(" *".join(map(re.escape, signs)) for signs in known)
    text = nfc(text).translate(PLAIN).strip()
    end = re.search(rf"({ends})\Z", text.translate(_RAISED))
    return text[: end.start()] if end else text


def read_number(text: str, *, whole: bool = False, unit: str = "") -> float | int | None:
    """Return the number that a text is; ``None`` if it is none, or not finite.

    Args:
        text: The whole text of a value; marks of Markdown and TeX around it are ignored.
        whole: Whether to return an `int` if the number is whole.
        unit: Text that may follow the number; blanks before and in it do not matter. It may have
            another spelling of the same unit.
    """
    if len(text) > _LONGEST:
        return None
    text = text.translate(_UNSEEN).translate(PLAIN).strip(" *_`")
    if text[:2] == r"\(" and text[-2:] == r"\)":
        text = text[2:-2]
    elif text[:1] == text[-1:] == "$" and len(text) > 1:
        text = text.strip("$")
    number = _TIMES.sub("*", _EXPONENT.sub(lambda m: "^" + m[0].translate(_RAISED), text.strip()))
    match = _NUMBER.fullmatch(" ".join(number.split()))
    if match is None:
        return read_number(without_unit(text, unit), whole=whole) if unit else None
    exponent = match["e"] or match["power"] or match["braced"] or match["round"] or "0"
    written = f"{match['sign']}{match['plain'] or match['factor'] or '1'}e{exponent}"
    value = float(written)
    if not math.isfinite(value):
        return None
    return int(Decimal(written)) if whole and value.is_integer() else value
