"""Named arrays as the bytes of one compressed ``.npz`` file, and back, with bounds on both ways.

``pack({"observations": [a, b], "info": {"speed": [c, d]}})`` has the members
``observations/0.npy``, ``observations/1.npy``, ``info/speed/0.npy`` and so on. No member is ever
read as a pickle.

Only the standard library and NumPy are imported, since a confined worker unpacks with this file.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

MOST_PACKED = 64 << 20
"""Bytes of one file."""

MOST_BYTES = 256 << 20
"""Bytes of all arrays in it."""

MOST_ARRAYS = 10_000

_FORMAT: Any = np.lib.format
_MOST_NAME = 60
_KINDS = "biufcUS"
_WHAT = "expected numbers, texts, arrays, lists of arrays, or a mapping of these"


class DataError(ValueError):
    """The data of an evaluation cannot be kept or read."""


def pack(data: Mapping[str, Any]) -> bytes:
    """Return the bytes of data.

    Raises:
        DataError: An entry is not one that can be kept, or all together are too large.
    """
    arrays = dict(_flat(data))
    total = sum(array.nbytes for array in arrays.values())
    if total > MOST_BYTES:
        largest = max(arrays, key=lambda name: arrays[name].nbytes)
        raise DataError(
            f"data: {total / 1e6:.0f} MB of arrays (the largest is {largest!r}), and "
            f"{MOST_BYTES / 1e6:.0f} MB are the most for one trial: keep fewer steps, or float32"
        )
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=4) as folder:
        for name, array in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy")  # of no date: equal data are equal bytes
            info.compress_type = zipfile.ZIP_DEFLATED
            with folder.open(info, "w", force_zip64=array.nbytes > 1 << 30) as member:
                _FORMAT.write_array(member, array, allow_pickle=False)
    packed = file.getvalue()
    if len(packed) > MOST_PACKED:
        raise DataError(
            f"data: {len(packed) / 1e6:.0f} MB compressed, and {MOST_PACKED / 1e6:.0f} MB are the "
            "most for one trial: keep fewer steps, or float32"
        )
    return packed


def _flat(data: Any, above: str = "", depth: int = 0) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of data with the names of their members."""
    where = f"data[{above!r}]" if above else "data"
    if not isinstance(data, Mapping):
        raise DataError(f"{where} is a {type(data).__name__}: expected a mapping of names")
    if not data:
        raise DataError(f"{where} is empty: leave it out")
    count = 0
    for name, value in data.items():
        if not _is_name(name):
            raise DataError(
                f"{where} has the name {str(name)!r:.80}: expected a text of 1 to {_MOST_NAME} "
                "characters, no digits alone, without '/' and control characters"
            )
        path = f"{above}/{name}" if above else name
        for each in _members(value, path, depth):
            count += 1
            if count > MOST_ARRAYS:
                raise DataError(f"{where} has more than {MOST_ARRAYS} arrays: put them together")
            yield each


def _members(value: Any, path: str, depth: int) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, Mapping):
        if depth:
            raise DataError(f"data[{path!r}] is nested more than one level deep")
        yield from _flat(value, path, 1)
    elif isinstance(value, (list, tuple)) and not _is_table_column(value):
        if not value:
            raise DataError(f"data[{path!r}] is an empty list: leave it out")
        for k, part in enumerate(value):
            yield f"{path}/{k}", _array(part, f"{path}/{k}")
    else:
        yield path, _array(value, path)


def _is_table_column(value: Any) -> bool:
    """Whether a list holds numbers or texts alone: one array, and no list of arrays."""
    return bool(value) and all(isinstance(v, (int, float, complex, str, np.generic)) for v in value)


def _array(value: Any, path: str) -> np.ndarray:
    try:
        found = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise DataError(f"data[{path!r}] is no array ({error}): {_WHAT}") from None
    if found.dtype.kind not in _KINDS or found.dtype.hasobject:
        raise DataError(f"data[{path!r}] has the type {found.dtype}: {_WHAT}")
    return np.ascontiguousarray(found) if found.ndim else found


def _is_name(name: Any) -> bool:
    return (
        isinstance(name, str)
        and 0 < len(name) <= _MOST_NAME
        and name.isprintable()
        and not set(name) & set("/\\")
        and not name.isdecimal()
        and name not in (".", "..")
        and name.strip() == name
    )


def unpack(packed: bytes) -> dict[str, Any]:
    """Return the data of bytes that anybody may have made.

    Raises:
        DataError: They are no such file, hold anything but plain arrays, or too much.
    """
    try:
        return _tree(packed)
    except DataError:
        raise
    except (
        zipfile.BadZipFile, zlib.error, ValueError, KeyError, OSError, EOFError, SyntaxError,
        NotImplementedError, RuntimeError, OverflowError, RecursionError, struct.error, TypeError,
    ) as error:  # fmt: skip
        raise DataError(f"it is no .npz file of plain arrays ({error})") from None


def _tree(packed: bytes) -> dict[str, Any]:
    if len(packed) > MOST_PACKED:
        raise DataError(f"{len(packed)} bytes, and {MOST_PACKED} are the most")
    # The directory at the end is read as a whole: its entries are counted before that.
    if packed.count(b"PK\x01\x02") > 2 * MOST_ARRAYS:
        raise DataError(f"more than {MOST_ARRAYS} arrays")
    tree: dict[str, Any] = {}
    with zipfile.ZipFile(io.BytesIO(packed)) as folder:
        members = folder.infolist()
        size = sum(member.file_size for member in members)
        if len(members) > MOST_ARRAYS or size > MOST_BYTES + 1000 * len(members):
            raise DataError(
                f"{len(members)} arrays of {size} bytes, and {MOST_ARRAYS} of {MOST_BYTES} bytes "
                "are the most"
            )
        for member in members:
            name = member.filename.removesuffix(".npy")
            parts = name.split("/")
            if len(parts) > 3 or not _is_name(parts[0]):
                raise DataError(f"a member {member.filename!r:.80} that is no entry")
            # What `pack` and NumPy write. Others take memory that their header names.
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DataError(f"a member of compression {member.compress_type}: expected deflate")
            with folder.open(member) as file:
                content = file.read(member.file_size + 1)
            at = tree
            for part in parts[:-1]:
                at = at.setdefault(part, {})
                if not isinstance(at, dict):
                    raise DataError(f"{part!r:.80} is an array and a folder")
            at[parts[-1]] = _plain_array(content)
    return {name: _listed(entry) for name, entry in tree.items()}


def _plain_array(content: bytes) -> np.ndarray:
    """Return the array of an ``.npy`` file."""
    file = io.BytesIO(content)
    try:
        array: np.ndarray = _FORMAT.read_array(file, allow_pickle=False)
    except MemoryError:
        raise DataError("an array whose header claims more than the file holds") from None
    if array.dtype.kind not in _KINDS or max(array.shape, default=0) > MOST_BYTES or file.read(1):
        raise DataError(f"an array of type {array.dtype} and shape {array.shape!s:.80}: {_WHAT}")
    return array


def _listed(entry: Any) -> Any:
    """Return a folder whose names count from 0 as a list."""
    if not isinstance(entry, dict):
        return entry
    names = sorted(entry, key=lambda n: (len(n), n))
    if all(name == str(k) for k, name in enumerate(names)):
        return [entry[name] for name in names]
    if any(name.isdecimal() for name in names):
        raise DataError("a list of arrays with gaps")
    return {name: _listed(part) for name, part in entry.items()}


def summary(data: Mapping[str, Any]) -> dict[str, str]:
    """Return what each entry is, in words: ``{"observations": "10 arrays (201 to 1001)×11"}``."""
    return {name: _words(entry) for name, entry in data.items()}


def _words(entry: Any) -> str:
    if isinstance(entry, Mapping):
        return "{" + ", ".join(f"{name}: {_words(part)}" for name, part in entry.items()) + "}"
    if isinstance(entry, list):
        shapes = [np.shape(part) for part in entry]
        if len({len(shape) for shape in shapes}) != 1:
            return f"{len(entry)} arrays"
        sides = [
            str(min(side)) if min(side) == max(side) else f"({min(side)} to {max(side)})"
            for side in zip(*shapes, strict=True)
        ]
        return f"{len(entry)} arrays {'×'.join(sides)}" if sides else f"{len(entry)} values"
    if not np.ndim(entry):
        return "a text" if np.asarray(entry).dtype.kind in "US" else "a number"
    return "×".join(map(str, np.shape(entry)))
