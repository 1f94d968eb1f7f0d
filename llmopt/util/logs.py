"""The log of a program that has not set up logging."""

from __future__ import annotations

import logging
import sys

_LOGGER = logging.getLogger("llmopt")


class LastResort(logging.Handler):
    """Writes warnings to stderr as ``llmopt: MESSAGE`` in a program without handlers.

    Python's own handler of last resort does not say whose message it is.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        if not logging.getLogger().handlers and _LOGGER.handlers == [self]:
            print(f"llmopt: {self.format(record)}", file=sys.stderr)


def use_last_resort() -> None:
    """Add the handler."""
    _LOGGER.addHandler(LastResort(logging.WARNING))
