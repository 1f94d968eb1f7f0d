"""What holds a file, a process or an environment, and is closed at the end of a ``with`` block."""

from __future__ import annotations

from typing import Self


class Closing:
    """The base of whatever has a `close`."""

    left_by: BaseException | None = None  # what the ``with`` block raised

    def close(self) -> None:
        """Release the resources."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.left_by = error
        try:
            self.close()
        finally:
            self.left_by = None  # its traceback holds on to frames
