"""What a program says in place of an answer: a usage limit, a missing login, or an overload.

    notice("", "Error: Request timed out.")     # Notice("busy", "Error: Request timed out.")
    notice("5-hour limit reached: resets 3pm")  # Notice("limit", ...)

`_PATTERNS` is the only table of these words, from Claude Code, Codex, Gemini CLI, llm and ollama.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Kind = Literal["limit", "login", "busy"]

_LONG = (  # five minutes or more: a usage limit, not an overload
    r"((an|[1-9]\d*) ?h(ou)?(rs?)?|(a|[1-9]\d*) ?d(ays?)?|([5-9]|\d{2,}) ?m(in(ute)?s?)?"
    r"|([3-9]\d\d|\d{4,})(\.\d+)? ?s(ec(ond)?s?)?)(?![a-z])"
)
_CLOCK = (
    r"(\d\d?(:\d\d)? ?[ap]\.?m|\d\d?:\d\d|\d{4}-\d\d|tomorrow|midnight|(mon|tue|wed|thu|fri|sat|sun"
    r"|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6})\b"
)
_LATE = rf"\W{{0,3}}({_LONG}|{_CLOCK})"
_AT = r"\W{1,4}(in|after|at|on)\b"
_SOON = r"(shortly|later|(in|after)\W{1,3}(a (moment|minute|few)|\d+(\.\d+)? ?s|[1-4] ?m(in|\b)))"

# The first row with a match decides. A number alone may be a value of an answer.
_PATTERNS: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    (
        "busy",  # a quota per minute, as Gemini CLI reads it (its `googleQuotaErrors.ts`)
        (r"quota(?![\s\S]*(per.?day|daily))[\s\S]{0,600}?\bretry (in|after) \d\d?(\.\d+)?m?s\b",),
    ),
    (
        "limit",  # of a subscription, for hours
        (
            r"(usage|session|weekly|hour) limit( (reached|exceeded))?",
            r"(hit|reached|exhausted|exceeded) your [\w ]*(limit|quota)",
            r"quota (exceeded|reached)|insufficient_quota|credit balance is too low",
            r"out of (extra )?(usage|credits)",
            rf"(try again|retry){_AT}{_LATE}|retry.after\W{{1,4}}([3-9]\d\d|\d{{4,}})\b",
            r"\b(429\b|rate.?limit|limit reached|quota|capacity|too many requests)"
            rf"[\s\S]{{0,300}}?\bresets?({_AT})?{_LATE}",
        ),
    ),
    (
        "login",
        (
            r"run /?login|not logged in|log ?in required|token has expired",
            r"please (log|sign) in",
        ),
    ),
    (
        "busy",  # it ends within minutes, as an HTTP 503 does
        (
            r"overloaded|server busy|at capacity|(no|your) capacity|capacity issue|high demand",
            r"(temporarily|service) unavailable|resource.?exhausted",
            r"rate.?limit(_\w+|ed| (exceeded|reached))?\b",
            rf"(try again|retry|reset) {_SOON}",
            # An "internal error" alone is one of the program: google-gemini/gemini-cli names a
            # server's with "API Error" (its `errorParsing.ts`), others with a status.
            r"internal server error|API Error\b.{0,200}\binternal error|bad gateway|server_error",
            r"server had an error",
            # Codex and Claude Code name a usage limit in words. A bare 429 also comes while quota
            # is left: openai/codex issues 10550, 12782, 23304; anthropics/claude-code issue 69023.
            r"(error|status|code|HTTP)(/[\d.]+)?\W{0,3}(429|5(0[0234]|2[0249]))\b",
            r"too many requests",
            r"connection (was )?(reset|refused|lost|error|closed|aborted)|network error",
            r"\b(ECONN(RESET|REFUSED|ABORTED)|E(TIMEDOUT|NETUNREACH|HOSTUNREACH|PIPE))\b",
            r"\b(ENOTFOUND|EAI_AGAIN)\b|socket hang up",
            r"name resolution|name or service not known|no such host|could not resolve host",
            r"unable to connect|fetch failed|network is unreachable|premature close",
            r"(?<![a-z])(connect(ion)?|read|request|operation|gateway|handshake|i/o)"
            r"[ _-]?timed?[ _-]?out",
            r"stream (closed|disconnected) before completion|error sending request",
        ),
    ),
    ("limit", (r"limit reached",)),
)
_TABLE = [(kind, re.compile("|".join(rows), re.IGNORECASE)) for kind, rows in _PATTERNS]
# Of a limit that is not reached yet, or is none; or of a server here, which somebody has to start.
_WARNING = re.compile(
    r"(used \d\d?% of|approaching) (your )?[\w -]*?limit.*|not your usage limit"
    r"|^.*\b(127\.\d|localhost|::1).*refused.*|ECONNREFUSED (127\.|localhost|::1).*",
    re.IGNORECASE | re.MULTILINE,
)
_NO_ANSWER, _START = 300, 40  # most characters of a notice with exit status 0, and before its words
_END = 2000  # characters of an output in which an overload is looked for
_QUOTED = 300
# What follows the words of a notice, unlike those of a sentence about something else.
_AFTER = re.compile(
    r"\s*($|[.:;!|·∙•\[({)\]\"—–-]|,? ?(for (quota|this|your|model|gpt)\b|(resets?|try|please)\b))",
    re.IGNORECASE | re.MULTILINE,
)
_ERROR = re.compile(r"\W*(API )?Error\b", re.IGNORECASE)
# A value as an answer has it ("API Error: 429" is none), a point's number, or a question.
_ANSWER = re.compile(r"\b(?!error\b)[a-z_][\w.]*\s*[:=]\s*[\"'+\-.\d]|#\d|\?(\s|$)", re.IGNORECASE)


class Notice(NamedTuple):
    """Why a program does not answer."""

    kind: Kind
    line: str  # in which it says so


def notice(*outputs: str, request: str = "") -> Notice | None:
    """Return what the outputs of a failed program say, if it is known.

    Lines of the `request`, which some programs repeat, are ignored.
    """
    given = set(map(str.strip, request.splitlines()))
    kept = ["\n".join(x for x in text.splitlines() if x.strip() not in given) for text in outputs]
    whole = "\n".join(kept)
    ends = "\n".join(text[-_END:] for text in kept)
    read = _WARNING.sub(lambda warning: " " * len(warning.group()), whole)
    for kind, words in _TABLE:
        found = [m for m in words.finditer(read) if kind != "busy" or m.group() in ends]
        if found:
            return Notice(kind, _line(whole, found[-1]))
    return None


def replaces_answer(text: str) -> bool:
    """Whether an output with exit status 0 is a notice, and no answer of the model.

    The notice is short, begins with its words and is about the program: a model may also write of
    a limit or a connection.
    """
    text = text.strip()
    if len(text) > _NO_ANSWER or _ANSWER.search(text):
        return False
    matches = [*_WARNING.finditer(text), *(m for _, words in _TABLE for m in words.finditer(text))]
    return any(
        _ERROR.match(text) or (m.start() <= _START and _AFTER.match(text, m.end())) for m in matches
    )


def _line(text: str, match: re.Match[str]) -> str:
    """Return the line of a match, or the part of a long one around it."""
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    line, at = text[start : end if end >= 0 else None], match.start() - start
    first = max(0, min(at - _QUOTED // 3, len(line) - _QUOTED))
    last = first + _QUOTED
    return "…" * (first > 0) + " ".join(line[first:last].split()) + "…" * (last < len(line))
