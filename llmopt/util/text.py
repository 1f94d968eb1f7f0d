"""Untrusted text, made safe for a prompt, a file and a terminal."""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

_MOST_CHARACTERS = 500  # of an exception's line
_SHORT = 200
_KEYS = 3  # that differ, of those that one message names
_CURVE = 10  # values of a curve that are shown, about
_LETTERS = bytes(i if chr(i).isalpha() else 32 for i in range(128)) + b" " * 128
_SENTENCE = re.compile(
    r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bvs\.)(?<!\bcf\.)[ ]+"
)  # between two
_BLANKS = re.compile(r"[ \t]{2,}")
_UNUSUAL = re.compile(r"[^\n\t -~]")
_USUAL = b"\n\t" + bytes(range(32, 127))
_INVISIBLE = "\u00ad\u200b\u200c\u200d\u2060\ufeff"  # harmless, and parts of words and emojis


def clean(text: object) -> str:
    r"""Return a text in which control characters and lone surrogates are written out.

    The one cleaning of all text that a user, a model, a server, a file or an exception gives,
    before it goes to a model, a file or a terminal. A control character could move the cursor,
    hide a part of a line, or split a prompt; a lone surrogate fits in no file and no request.
    They become plain text, such as ``\x1b``. Line breaks and tabs stay; ``\r\n`` is a line break.
    """
    text = str(text)
    if not text.encode(errors="surrogatepass").translate(None, _USUAL):
        return text  # nearly every text: far quicker than the search below
    return _UNUSUAL.sub(_written_out, text.replace("\r\n", "\n"))


def _written_out(found: re.Match[str]) -> str:
    c = found[0]
    if c.isprintable() or c in _INVISIBLE or unicodedata.category(c) == "Zs":
        return c
    return c.encode("unicode_escape").decode()


def nfc(text: str) -> str:
    """Return a text with composed characters (Unicode NFC): names that look alike are equal."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def first_line(error: BaseException | str) -> str:
    """Return the first line of an error's text, clean and cut, even if its own method fails."""
    try:
        text = str(error).strip()
    except Exception:
        return "its message cannot be shown"
    return clean((text.splitlines() or [""])[0][:_MOST_CHARACTERS])


def cut(text: str, most: int) -> str:
    """Return a text of at most `most` characters, with a mark where it was cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


def ended(text: str) -> str:
    """Return a text that ends as a sentence does."""
    return text if not text or text.endswith((".", "!", "?", "…")) else f"{text}."


def cut_sentences(text: str, most: int, longest: int) -> str:
    """Return the whole sentences of a line that fit `most` characters.

    The first one is there in any case, at most `longest` characters of it.
    """
    if len(text) <= most:
        return text
    ends = [found.start() for found in _SENTENCE.finditer(text)]
    return cut(
        text[: max((e for e in ends if e <= most), default=min([*ends, len(text)]))], longest
    )


def shortened(message: str) -> str:
    """Return a message without the middle of long words, which it may repeat from its caller."""
    return cut(re.sub(r"(\S{60})\S{60,}(\S{20})", r"\1…\2", message), 4 * _MOST_CHARACTERS)


def short(value: object) -> str:
    """Return a value as text that fits into a message, even if its own method fails."""
    try:
        return cut(repr(value), _SHORT)
    except Exception:
        return f"<{type(value).__name__}>"


def function_name(function: object, unnamed: str) -> str:
    """Return the name of a function or of an object's class; `unnamed` for a lambda."""
    name = getattr(function, "__name__", "") or type(function).__name__
    return unnamed if name == "<lambda>" else str(name)


def a_type(value: object) -> str:
    """Return the name of a value's type behind its article: ``"an int"``."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def written(value: object) -> str:
    """Return the remedy for a number that was given as a text, perhaps with a decimal comma."""
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+([.,]\d+)?\s*", value, re.ASCII):
        return f": write {value.strip().replace(',', '.')}"
    if isinstance(value, str) and re.match(r"\s*[+-]?\d+(\.\d+)?\s*[^\d\s.,_]", value, re.ASCII):
        return ": write the number alone, without a unit"
    return ""


# A number as people and programs write it: ".63" of `bc`, "5.", "+0.5", "007".
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)


def counted(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: ``"1 name"``, ``"2 names"``."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def difference(old: Any, new: Any, names: tuple[str, str] = ("there", "now")) -> str:
    """Say in what two values differ, with a name for each.

    Of objects the first keys, of lists of them the first item, of texts the first line, from
    shortly before the difference on.
    """
    line = ""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [k for k in sorted({*old, *new}) if old.get(k) != new.get(k)]
        return "; ".join(f"{k}: {difference(old.get(k), new.get(k), names)}" for k in keys[:_KEYS])
    if isinstance(old, str) and isinstance(new, str):
        pairs = enumerate(itertools.zip_longest(old.splitlines(), new.splitlines(), fillvalue=""))
        number, (old, new) = next((p for p in pairs if p[1][0] != p[1][1]), (0, (old, new)))
        line = f"line {number + 1}, " if number else ""
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))
        start = max(0, sum(1 for _ in same) - 20)
        old, new = (("..." if start else "") + text[start:] for text in (old, new))
    elif all(isinstance(v, list | tuple) and v and isinstance(v[0], dict) for v in (old, new)):
        nothing: dict[str, Any] = {}
        items = enumerate(itertools.zip_longest(old, new, fillvalue=nothing), start=1)
        return next((f"{i}: {difference(a, b, names)}" for i, (a, b) in items if a != b), "")
    return f"{line}{names[0]} {short(old)}, {names[1]} {short(new)}"


def describe_curve(curve: Iterable[tuple[float, float]], direction: str) -> str:
    """Return the values of (step, value) pairs in one line, thinned: early ones lie closer."""
    pairs = list(curve)
    if len(pairs) < 2:
        return ""
    last = len(pairs) - 1
    places = {round(last ** (k / (_CURVE - 1))) for k in range(_CURVE)} | {0, last}
    shown = ", ".join(f"{pairs[i][0]:.10g}: {pairs[i][1]:.4g}" for i in sorted(places))
    finite = [(value, step) for step, value in pairs if math.isfinite(value)]
    best = ""
    if finite:
        value, step = (max if direction == "maximize" else min)(finite, key=lambda pair: pair[0])
        best = f" (best {value:.4g} at {step:.10g})"
    return f"curve {shown}{best}"


def estimate_tokens(text: str) -> int:
    """Over-estimate the tokens of a text for a model whose tokenizer is not at hand.

    One token for every three letters of a run of ASCII letters; none for a single space,
    which tokenizers join to what follows, one for a longer run; one for each digit,
    punctuation mark and line break; one for each UTF-8 byte of any other character.
    """
    data = text.encode(errors="replace")  # bytes take half of the time of a pattern over the text
    total = len(data) - sum([2 * len(run) // 3 for run in data.translate(_LETTERS).split()])
    runs = len(_BLANKS.findall(text)) if "  " in text or "\t" in text else 0
    return total - text.count(" ") - text.count("\t") + runs
