"""The one file format for arrays: safetensors, with a header of our own and a checksum in its metadata.

A kind ("slosh search", ...), a header for JSON and named arrays come in; one file, or the same as bytes, goes out. The
metadata of the file hold four strings: `kind`, `version`, `header` (JSON) and `crc32`, which covers the header and the
names, types, shapes and bytes of all arrays: safetensors itself has no checksum, and damage must be refused. Nothing in
a file is ever executed, and memory is taken only for what the file really holds.
"""

from __future__ import annotations

import io
import json
import math
import os
import stat
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors import numpy as safetensors_numpy

from ..errors import DamagedError, FormatError
from ..native.arrays import Array
from .atomic import not_a_file, replacing

VERSION = 2
"""The format version. Version 1 was a zip archive (slosh 0.1)."""
HEADER_LIMIT = 1 << 24
"""Bytes that names, shapes and metadata may take together."""

_VALUES = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
BROKEN = (SafetensorError, *_VALUES, RecursionError, MemoryError, EOFError)
"""What reading a damaged or hostile file may end with."""
_DTYPES = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4", "I32": "<i4",
    "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip


def pack(kind: str, header: dict[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """Return the file as bytes."""
    tensors, metadata = _prepared(kind, header, arrays)
    return safetensors_numpy.save(tensors, metadata)


def write(path: str | os.PathLike[str], kind: str, header: dict[str, Any], arrays: Mapping[str, Array]) -> None:
    """Write the file, atomically: an existing one is replaced whole or not at all."""
    tensors, metadata = _prepared(kind, header, arrays)
    with replacing(path) as stream:
        mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
        safetensors_numpy.save_file(tensors, stream.name, metadata)
        with open(stream.name, "rb+") as written:  # it may have put another file there, readable by its owner alone
            os.chmod(written.name, mode)
            os.fsync(written.fileno())


def unpack(content: bytes, kind: str, name: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return header and arrays of what `pack` packed.

    Raises FormatError if the content is something else or has another format version, and DamagedError if it fails its
    checks; both call it `name`.
    """
    n_header = _check_start(io.BytesIO(content[:64]), len(content), kind, name)
    try:
        metadata = json.loads(bytes(content[8 : 8 + n_header])).get("__metadata__")
        arrays = safetensors_numpy.load(bytes(content))
    except BROKEN as error:
        raise _damaged(name, error) from None
    return _checked(metadata, arrays, kind, name)


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return header and arrays of a file that `write` wrote; errors as for `unpack`, and OSError if it is not there."""
    name = os.fspath(path)
    with _opened(name) as stream:
        _check_start(stream, os.fstat(stream.fileno()).st_size, kind, name)
        try:
            with safe_open(name, framework="np") as file:
                metadata = file.metadata()
                arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except BROKEN as error:
            raise _damaged(name, error) from None
    return _checked(metadata, arrays, kind, name)


class MappedArrays(Mapping[str, Array]):
    """The arrays of a file, mapped into memory, which none is given out of before all fit the checksum.

    A file is read when an array is first asked for. If it is damaged, that and whatever is asked for later ends with a
    DamagedError. The arrays may be written to; the file stays as it is.
    """

    def __init__(self, name: str, header: str, crc: str, arrays: dict[str, Array]) -> None:
        self._name, self._header, self._crc, self._arrays = name, header, crc, arrays
        self._checked, self._lock = False, threading.Lock()
        self.damaged = False
        """Whether a check has failed."""

    def __getitem__(self, name: str) -> Array:
        if not self._checked:
            self._check()
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def _check(self) -> None:
        with self._lock:
            if not self._checked and not self.damaged:
                self.damaged = str(_checksum(self._header, self._arrays)) != self._crc
                self._checked = not self.damaged
        if self.damaged:
            raise _damaged(self._name, "its checksum is wrong")


def read_mapped(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], MappedArrays]:
    """Return the header and the arrays of a file that `write` wrote without reading the arrays; errors as for `read`.

    The header is checked together with the arrays: until one of them was asked for it may be damaged.
    """
    name = os.fspath(path)
    with _opened(name) as stream:
        size = os.fstat(stream.fileno()).st_size
        n_header = _check_start(stream, size, kind, name)
        try:
            stream.seek(8)
            entries = json.loads(stream.read(n_header))
            metadata = entries.pop("__metadata__")
            content = np.memmap(stream, np.uint8, "c", 8 + n_header) if size > 8 + n_header else np.empty(0, np.uint8)
            arrays = {key: _part(content.view(np.ndarray), **entry) for key, entry in entries.items()}
        except BROKEN as error:
            raise _damaged(name, error) from None
    _check_kind(metadata, kind, name)
    try:
        text, crc = str(metadata["header"]), str(metadata["crc32"])
        header = _parsed(text)
    except BROKEN as error:
        raise _damaged(name, error) from None
    return header, MappedArrays(name, text, crc, arrays)


def _part(content: Array, dtype: str, shape: list[int], data_offsets: list[int]) -> Array:
    """Return one array of a file of safetensors."""
    first, last = data_offsets
    number = np.dtype(_DTYPES[dtype])
    lengths = [int(length) for length in shape]
    fits = 0 <= first <= last <= len(content) and last - first == number.itemsize * math.prod(lengths)
    if not fits or min(lengths, default=0) < 0:
        raise ValueError("an array does not fit the file")
    part = content[first:last]
    aligned = part.ctypes.data % number.itemsize == 0
    found: Array = (part if aligned else part.copy()).view(number).reshape(lengths)
    return found


def _opened(name: str) -> IO[bytes]:
    """Open a plain file; refuse anything else without waiting for it."""
    if os.path.isdir(name):
        raise not_a_file(name)
    handle = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))  # of a pipe too
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FormatError(f"{name} is not a plain file", "give the path of a saved file", location=name)
    return open(handle, "rb")


def _prepared(
    kind: str, header: dict[str, Any], arrays: Mapping[str, Array]
) -> tuple[dict[str, Array], dict[str, str]]:
    if sys.byteorder != "little":  # pragma: no cover
        raise NotImplementedError("files are little-endian")
    tensors = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    text = json.dumps(header, default=_to_builtin)
    metadata = {"kind": kind, "version": str(VERSION), "header": text, "crc32": str(_checksum(text, tensors))}
    size = len(json.dumps(metadata)) + 256 * len(tensors) + sum(len(name) for name in tensors)
    if size > HEADER_LIMIT:
        raise ValueError(f"a header of {size} bytes is too large to be saved")
    return tensors, metadata


def _to_builtin(x: Any) -> Any:
    """Return a NumPy number as one that JSON takes."""
    if isinstance(x, np.generic):
        return x.item()
    raise TypeError(f"{x!r} cannot be saved")


def _checksum(header: str, arrays: dict[str, Array]) -> int:
    crc = zlib.crc32(header.encode())
    for name in sorted(arrays):
        array = arrays[name]
        crc = zlib.crc32(f"{name} {array.dtype.str} {array.shape}".encode(), crc)
        if array.size:
            crc = zlib.crc32(memoryview(array.reshape(-1).view(np.uint8)), crc)  # type: ignore[arg-type]
    return crc


def _check_start(stream: IO[bytes], size: int, kind: str, name: str) -> int:
    """Look at the first bytes: refuse what is no such file at all, and headers that claim too much."""
    start = stream.read(9)
    if start[:2] == b"PK":
        problem = f"{name} was written by slosh 0.1, in format version 1; this slosh reads version {VERSION}"
        remedy = "build it again from its vectors, and save it"
        raise FormatError(problem, remedy, location=name, found=1, supported=VERSION)
    if len(start) < 9 or start[8:9] != b"{":
        raise _foreign(name, kind)
    n_header = int.from_bytes(start[:8], "little")
    if n_header > min(size - 8, HEADER_LIMIT):
        raise _damaged(name, f"it claims a header of {n_header} bytes and has {size}")
    return n_header


def _checked(metadata: Any, arrays: dict[str, Array], kind: str, name: str) -> tuple[dict[str, Any], dict[str, Array]]:
    _check_kind(metadata, kind, name)
    try:
        text = metadata["header"]
        if str(_checksum(text, arrays)) != metadata["crc32"]:
            raise ValueError("its checksum is wrong")
        return _parsed(text), arrays
    except BROKEN as error:
        raise _damaged(name, error) from None


def _parsed(text: str) -> dict[str, Any]:
    header = json.loads(text)
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    return header


def _check_kind(metadata: Any, kind: str, name: str) -> None:
    """Refuse a file of another kind, or of another version."""
    if not isinstance(metadata, dict) or metadata.get("kind") != kind:
        raise _foreign(name, kind)
    version = metadata.get("version")
    if version != str(VERSION):
        found = int(version) if isinstance(version, str) and version.isdecimal() and len(version) < 9 else None
        problem = f"{name} has the format version {version!s:.20}; this slosh reads version {VERSION}"
        remedy = "load it with the slosh that wrote it, or build it again"
        raise FormatError(problem, remedy, location=name, found=found, supported=VERSION)


def _foreign(name: str, kind: str) -> FormatError:
    return FormatError(f"{name} is not a file of the kind {kind!r}", "give a file that slosh saved", location=name)


def _damaged(name: str, why: object) -> DamagedError:
    problem = f"{name} is cut short or damaged ({why!s:.200})"
    return DamagedError(problem, "restore it from a copy, or build it again", location=name)
