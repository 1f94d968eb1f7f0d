"""Tables between two markers of a page."""

from __future__ import annotations


def between_markers(text: str, table: str, begin: str, end: str) -> str:
    """Replace the text between two markers by a table.

    Raises:
        ValueError: The page does not have both markers, each once.
    """
    head, *more = text.split(begin)
    _, *tail = "".join(more).split(end)
    if len(more) != 1 or len(tail) != 1:
        raise ValueError(f"expected a line {begin} and after it a line {end}, each once")
    return f"{head}{begin}\n{table}{end}{tail[0]}"
