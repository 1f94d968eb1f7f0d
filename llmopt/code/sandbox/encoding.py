"""The format in which values cross the pipe to a worker and back: data only, read strictly.

Nothing in it names a type to build or code to run, which is why it is not pickle. A value is
``None``, a bool, a 64-bit integer, a float, a text, a numeric array, or a list, tuple or
text-keyed dict of these. Whatever else arrives is an error, never an object.

Only the standard library and NumPy are imported, so that a worker can load this file
without llmopt.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

HEADER = struct.Struct("<IIB")
"""Payload length in bytes, sequence number, kind: in front of every message."""

MAX_DEPTH = 16
MAX_DIMENSIONS = 8

_DTYPES = tuple(
    np.dtype(d)
    for d in ("<f8", "<f4", "<i8", "<i4", "|u1", "|b1", "<i2", "|i1", "<u2", "<u4", "<u8", "<f2")
)
_DTYPE_CODES = {d: i for i, d in enumerate(_DTYPES)}
_COUNT = struct.Struct("<I")
_INT = struct.Struct("<q")
_FLOAT = struct.Struct("<d")


class EncodingError(ValueError):
    """A value cannot be sent, or bytes are not a value."""


def encode(value: Any) -> bytes:
    """Return the bytes of a value; `EncodingError` for a type that is not sent."""
    parts: list[bytes] = []
    _write(value, parts.append, 0)
    return b"".join(parts)


def _write(value: Any, put: Any, depth: int) -> None:
    kind = type(value)
    if kind is float:
        put(b"d" + _FLOAT.pack(value))
    elif kind is np.ndarray:
        _write_array(value, put)
    elif value is None:
        put(b"N")
    elif kind is bool:
        put(b"T" if value else b"F")
    elif kind is int:
        try:
            put(b"i" + _INT.pack(value))
        except struct.error:
            raise EncodingError(
                f"an integer of {value.bit_length()} bits; 64 is the most"
            ) from None
    elif kind is str:
        text = value.encode("utf-8", "backslashreplace")
        put(b"s" + _COUNT.pack(len(text)) + text)
    elif depth >= MAX_DEPTH:
        raise EncodingError(f"values nested more than {MAX_DEPTH} deep")
    elif kind is list or kind is tuple:
        put((b"l" if kind is list else b"t") + _COUNT.pack(len(value)))
        for item in value:
            _write(item, put, depth + 1)
    elif kind is dict:
        put(b"m" + _COUNT.pack(len(value)))
        for key, item in value.items():
            if type(key) is not str:
                raise EncodingError(f"a dict key of type {type(key).__name__}; expected str")
            _write(key, put, depth + 1)
            _write(item, put, depth + 1)
    elif isinstance(value, np.generic):
        # Not `item()`: that of a long double is a long double.
        plain = {"f": float, "i": int, "u": int, "b": bool}.get(value.dtype.kind, str)
        _write(plain(value), put, depth)
    elif isinstance(value, (bool, int, float, str, list, tuple, dict, np.ndarray)):
        _write(_plain(value), put, depth)  # a subclass, such as a named tuple
    else:
        raise EncodingError(
            f"a value of type {kind.__name__}; expected None, bool, int, float, str, a numeric "
            "array, or a list, tuple or dict of these"
        )


def _plain(value: Any) -> Any:
    base: Any
    for base in (bool, int, float, str, list, tuple, dict):
        if isinstance(value, base):
            return base(value)
    return np.array(value)


def _write_array(value: np.ndarray[Any, Any], put: Any) -> None:
    code = _DTYPE_CODES.get(value.dtype)
    if code is None:
        if value.dtype.kind not in "fiub":
            raise EncodingError(f"an array of dtype {value.dtype}; expected numbers or bools")
        little = value.dtype.newbyteorder("<")
        value = value.astype(little if little in _DTYPE_CODES else "<f8")
        code = _DTYPE_CODES[value.dtype]
    if value.ndim > MAX_DIMENSIONS:
        raise EncodingError(f"an array of {value.ndim} dimensions; {MAX_DIMENSIONS} is the most")
    put(b"a" + bytes((code, value.ndim)) + struct.pack(f"<{value.ndim}I", *value.shape))
    put(value.tobytes())


def decode(data: bytes) -> Any:
    """Return the value of bytes that may have been made to do harm; else raise `EncodingError`.

    Memory stays in proportion to ``len(data)``. Arrays are copies and can be written to.
    """
    try:
        value, end = _read(data, 0, 0)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, EncodingError):
            raise
        raise EncodingError(f"broken value: {error}") from None
    if end != len(data):
        raise EncodingError(f"{len(data) - end} bytes after the value")
    return value


def _read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    tag = data[at]
    at += 1
    if tag == 0x64:  # d
        return _FLOAT.unpack_from(data, at)[0], at + 8
    if tag == 0x61:  # a
        return _read_array(data, at)
    if tag == 0x4E:  # N
        return None, at
    if tag == 0x54 or tag == 0x46:  # T, F
        return tag == 0x54, at
    if tag == 0x69:  # i
        return _INT.unpack_from(data, at)[0], at + 8
    if tag not in b"sltm":
        raise EncodingError(f"unknown tag {tag}")
    (count,) = _COUNT.unpack_from(data, at)
    at += 4
    if count > len(data) - at:  # every item takes a byte at least
        raise EncodingError(f"{count} items announced, {len(data) - at} bytes left")
    if tag == 0x73:  # s
        return data[at : at + count].decode(), at + count
    if depth >= MAX_DEPTH:
        raise EncodingError(f"values nested more than {MAX_DEPTH} deep")
    if tag == 0x6D:  # m
        mapping: dict[str, Any] = {}
        for _ in range(count):
            key, at = _read(data, at, depth + 1)
            if type(key) is not str:
                raise EncodingError("a dict key that is not a text")
            mapping[key], at = _read(data, at, depth + 1)
        return mapping, at
    items = []
    for _ in range(count):
        item, at = _read(data, at, depth + 1)
        items.append(item)
    return (items if tag == 0x6C else tuple(items)), at


def _read_array(data: bytes, at: int) -> tuple[np.ndarray[Any, Any], int]:
    code, ndim = data[at], data[at + 1]
    at += 2
    if code >= len(_DTYPES) or ndim > MAX_DIMENSIONS:
        raise EncodingError(f"an array of dtype code {code} and {ndim} dimensions")
    shape = struct.unpack_from(f"<{ndim}I", data, at)
    at += 4 * ndim
    dtype = _DTYPES[code]
    size = dtype.itemsize
    for length in shape:
        size *= length
    if size > len(data) - at:
        raise EncodingError(f"an array of {size} bytes announced, {len(data) - at} left")
    raw = data[at : at + size]
    if code == 5 and raw.strip(b"\x00\x01"):
        raise EncodingError("a bool array that holds other bytes than 0 and 1")
    return np.frombuffer(raw, dtype).reshape(shape).copy(), at + size
