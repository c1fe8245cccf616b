"""Saved searches: one file of plain arrays and a header, checked when it is read. Nothing in it is ever executed.

The file is a zip archive without compression: `header.json`, and one `.npy` member for each array. Every member carries
a checksum; a file that is cut short, damaged, of another kind or of another version is refused with a sentence.
"""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from ..data.checks import Array

KIND = "slosh search"
VERSION = 1
LONGEST_HEADER = 1 << 20


def write(path: str | os.PathLike[str], header: dict[str, Any], arrays: dict[str, Array]) -> None:
    """Writes to a new name and renames, so that there is always a whole file, the old or the new one."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target.parent} is no folder: make it first")
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder: give the name of a file")
    draft = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with open(draft, "wb") as stream:
            _write(stream, header, arrays)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)


def _write(stream: IO[bytes], header: dict[str, Any], arrays: dict[str, Array]) -> None:
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("header.json", json.dumps({"kind": KIND, "version": VERSION, **header}, default=_plain))
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, np.ascontiguousarray(array), allow_pickle=False)


def pack(header: dict[str, Any], arrays: dict[str, Array]) -> bytes:
    """The same file as bytes."""
    stream = io.BytesIO()
    _write(stream, header, arrays)
    return stream.getvalue()


def unpack(content: bytes, name: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """What `pack` packed; `name` is for the error."""
    return _read(io.BytesIO(content), name)


def _plain(x: Any) -> Any:
    """NumPy's numbers, for JSON."""
    if isinstance(x, np.generic):
        return x.item()
    raise TypeError(f"{x!r} cannot be saved")


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Header and arrays of a file that `write` wrote; ValueError if it is not one, or damaged."""
    with open(path, "rb") as stream:
        return _read(stream, os.fspath(path))


def _read(file: IO[bytes], name: str) -> tuple[dict[str, Any], dict[str, Array]]:
    try:
        with zipfile.ZipFile(file) as archive:
            header = _header(archive, name)
            arrays = {
                member.filename.removesuffix(".npy"): _array(archive, member)
                for member in archive.infolist()
                if member.filename != "header.json"
            }
        return header, arrays
    except _Refused as reason:
        raise ValueError(str(reason)) from None
    except zipfile.BadZipFile as error:
        file.seek(0)
        if file.read(2) == b"PK":
            raise ValueError(f"{name} is cut short or damaged ({error}): build the search again, and save it") from None
        raise ValueError(f"{name} is no saved search: it was not written by `save`") from None
    except (
        ValueError,
        EOFError,
        LookupError,
        ArithmeticError,
        RuntimeError,
        SyntaxError,
        TypeError,
        TokenError,
    ) as error:
        raise ValueError(f"{name} is damaged ({error}): build the search again, and save it") from None


class _Refused(Exception):
    """A whole file that is not for us."""


def _header(archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    if "header.json" not in archive.namelist() or archive.getinfo("header.json").file_size > LONGEST_HEADER:
        raise _Refused(f"{name} is no saved search: it was not written by `save`")
    header = json.loads(archive.read("header.json"))
    if not isinstance(header, dict) or header.get("kind") != KIND:
        raise _Refused(f"{name} is no saved search: it was not written by `save`")
    if header.get("version") != VERSION:
        raise _Refused(
            f"{name} has the format version {header.get('version')}; this slosh reads {VERSION}: "
            "load it with the slosh that wrote it, or build it again"
        )
    return header


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """A member as an array, its size checked against its header before memory is taken for it."""
    if member.compress_type != zipfile.ZIP_STORED or not member.filename.endswith(".npy"):
        raise ValueError(f"{member.filename} is not stored as an array")
    with archive.open(member) as stream:
        version = npy.read_magic(stream)
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if read_header is None:
            raise ValueError(f"{member.filename} has an unknown array format")
        shape, fortran, dtype = read_header(stream)
        if dtype.hasobject or dtype.names is not None or fortran:
            raise ValueError(f"{member.filename} holds no plain numbers")
        size = math.prod(shape) * dtype.itemsize
        if size != member.file_size - stream.tell():
            raise ValueError(f"{member.filename} claims {size} bytes and has {member.file_size - stream.tell()}")
        array = np.empty(shape, dtype)
        view = memoryview(array.reshape(-1).view(np.uint8)) if size else memoryview(b"")  # type: ignore[arg-type]
        done = 0
        while done < size:
            got = stream.readinto(view[done : done + (1 << 24)])  # type: ignore[attr-defined]
            if not got:
                raise EOFError(f"{member.filename} ends early")
            done += got
        if stream.read(1):  # reading past the end makes zipfile compare the checksum
            raise ValueError(f"{member.filename} is too long")
    return array
