"""What holds a file, a process or an environment, and is closed at the end of a ``with`` block."""

from __future__ import annotations

from typing import Self


class Closing:
    """The base of whatever has a `close`."""

    def close(self) -> None:
        """Give back what is held."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
