"""Text from outside, made fit for a terminal, a file and a server."""

from __future__ import annotations


def printable(text: object) -> str:
    """Return a text whose control characters, line breaks and tabs aside, are written out.

    What a server, a model or a file says could otherwise move the cursor, rename the window or
    hide a part of the line.
    """
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode()
        for c in str(text)
    )


def sendable(text: str) -> str:
    """Return a text with lone surrogates replaced, which no file holds and no server reads."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def short(value: object) -> str:
    """Return a value as text that fits into a message."""
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
