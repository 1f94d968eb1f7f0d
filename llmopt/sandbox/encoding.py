"""The values that cross between a worker and its parent: JSON, and arrays of numbers in it.

Nothing in it names a type to build or code to run, which is why it is not pickle. Tuples arrive as
lists. Whatever else arrives is an error, never an object.

Only the standard library and NumPy are imported, so that a worker can load this file
without llmopt.
"""

from __future__ import annotations

import json
import struct
import sys
from base64 import b64decode, b64encode
from typing import Any

import numpy as np

HEADER = struct.Struct("<IIB")
"""Payload length in bytes, sequence number, kind: in front of every message."""

MAX_DEPTH = 16

MOST_ITEMS = 200_000
"""Values of lists and dicts in one message, which has no more memory as JSON than as objects."""

_ITEMS = (b",", b"[", b"{")  # each item has one of these before it
_MOST_EMPTY = 10_000  # rows or columns of an array with nothing in it
_ARRAY = "\0array"  # the one key of an object that encodes an array
_DTYPES = ("<f8", "<f4", "<i8", "<i4", "|u1", "|b1", "<i2", "|i1", "<u2", "<u4", "<u8", "<f2")


class EncodingError(ValueError):
    """A value cannot be sent, or bytes are not a value."""


class TooLargeError(EncodingError):
    """A value has more items or bytes than one message may have."""


def encode(value: Any, most: int | None = None) -> bytes:
    """Return the bytes of a value.

    Args:
        value: Plain data and numeric arrays.
        most: The maximum number of bytes of its texts and arrays together.

    Raises:
        TooLargeError: It has more than `MOST_ITEMS` items, or more bytes than `most`. Nothing is
            converted before: to encode ten million items takes seconds.
        EncodingError: A type that is not sent.
    """
    _check(value, 0, [MOST_ITEMS, sys.maxsize if most is None else most])
    try:
        return _ENCODER.encode(value).encode()
    except EncodingError:
        raise
    except (TypeError, ValueError) as error:  # an integer of thousands of digits
        raise EncodingError(f"what cannot be sent: {error}") from None


def _check(value: Any, depth: int, left: list[int]) -> None:
    """Refuse what JSON would change in silence, and what the other side would not read.

    `left` has the items and the bytes that the value may still have.
    """
    if isinstance(value, str | np.ndarray):
        size = len(value) if isinstance(value, str) else value.nbytes
        if size > left[1]:
            raise TooLargeError(f"{size} bytes in one text or array; expected at most {left[1]}")
        left[1] -= size
    if not isinstance(value, list | tuple | dict):
        return
    left[0] -= len(value)
    if left[0] < 0:
        raise TooLargeError(
            f"{len(value)} items in one list or dict; expected at most {MOST_ITEMS} in all. Send "
            "numbers as an array"
        )
    if depth >= MAX_DEPTH:
        raise EncodingError(f"values nested more than {MAX_DEPTH} deep")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or key == _ARRAY:
                raise EncodingError(
                    f"the dict key {key!r:.50} of type {type(key).__name__}; expected a text such "
                    'as "name"'
                )
        value = value.values()
    for item in value:
        _check(item, depth + 1, left)


def _plain(value: Any) -> Any:
    """Return an array or a number of NumPy in JSON's types."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "fiub":
            raise EncodingError(f"an array of dtype {value.dtype}; expected numbers or bools")
        if value.dtype.str not in _DTYPES:
            little = value.dtype.newbyteorder("<")
            value = value.astype(little if little.str in _DTYPES else "<f8")
        return {_ARRAY: [value.dtype.str, value.shape, b64encode(value.tobytes()).decode()]}
    if isinstance(value, np.generic):
        # Not `item()`: that of a long double is a long double.
        return {"f": float, "i": int, "u": int, "b": bool}.get(value.dtype.kind, str)(value)
    raise EncodingError(
        f"a value of type {type(value).__name__}; expected None, bool, int, float, str, a numeric "
        "array, or a list, tuple or dict of these"
    )


_ENCODER = json.JSONEncoder(default=_plain, separators=(",", ":"))


def decode(data: bytes) -> Any:
    """Return the value of bytes that may have been made to do harm; else raise `EncodingError`.

    Memory stays in proportion to ``len(data)``, and below 100 MB for what one message may hold:
    items are counted before anything is made. Arrays are copies and can be written to.
    """
    items = sum(map(data.count, _ITEMS))
    if items > MOST_ITEMS:
        raise EncodingError(
            f"some {items} items, and {MOST_ITEMS} are the most: send numbers as an array"
        )
    try:
        text = data.decode("ascii")  # as `encode` writes it: others could unfold fourfold
        return _read(json.loads(text), 0)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise EncodingError(f"broken value: {error}") from None


def _read(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:  # JSON may hold half of a surrogate pair
            return value.encode("utf-8", "backslashreplace").decode()
        return value
    if not isinstance(value, list | dict):
        return value
    if depth >= MAX_DEPTH:
        raise ValueError(f"values nested more than {MAX_DEPTH} deep")
    if isinstance(value, list):
        return [_read(item, depth + 1) for item in value]
    if _ARRAY in value:
        return _array(*value.values())
    return {_read(key, depth): _read(item, depth + 1) for key, item in value.items()}


def _array(parts: Any) -> np.ndarray[Any, Any]:
    dtype, shape, text = parts
    if dtype not in _DTYPES:
        raise ValueError(f"an array of dtype {dtype!r:.20}")
    raw = b64decode(text, validate=True)
    if dtype == "|b1" and raw.strip(b"\x00\x01"):
        raise ValueError("a bool array that holds other bytes than 0 and 1")
    if not isinstance(shape, list) or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError("an array whose shape is not a list of sizes")
    if not raw and max(shape, default=0) > _MOST_EMPTY:  # nothing would bound a walk along it
        raise ValueError(f"an empty array of shape {shape!r:.50}")
    return np.frombuffer(raw, dtype).reshape(shape).copy()
