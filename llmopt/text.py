"""Text from outside, made fit for a terminal, a file and a server."""

from __future__ import annotations

_MOST_CHARACTERS = 500  # of an exception's line


def printable(text: object) -> str:
    """Return a text whose control characters, line breaks and tabs aside, are written out.

    What a server, a model or a file says could otherwise move the cursor, rename the window or
    hide a part of the line.
    """
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode()
        for c in str(text)
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text, cut; it may be empty.

    The exception may be of somebody else's class, whose own method fails.
    """
    try:
        text = str(error).strip()
    except Exception:
        return "its message cannot be shown"
    return (text.splitlines() or [""])[0][:_MOST_CHARACTERS]


def sendable(text: str) -> str:
    """Return a text with lone surrogates replaced, which no file holds and no server reads."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def cut(text: str, most: int) -> str:
    """Return a text of at most so many characters, with a mark where it was cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


def short(value: object) -> str:
    """Return a value as text that fits into a message."""
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
