"""What all readers share: the file that is read, the options, the piece that comes out, and how a bad file is refused.

A reader takes a `File` and `Options` and yields `Piece`s: plain arrays with ids and metadata, not checked yet. An error
is a `ReaderError`, and its problem begins with the path of the file.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from ..data.dates import date_text
from ..data.text import format_bytes
from ..errors import MissingExtra, ReaderError, printable
from ..native.arrays import Array

MAX_BATCH_VALUES = 1 << 26
"""The most numbers in one batch, unless one set has more: with many features a batch has fewer points."""
MAX_EXPANSION = 100.0
"""How many times its size a file may take: measurements that are packed well take 5 to 20 times theirs."""
ALWAYS_ALLOWED = 1 << 28
"""Bytes that any file may take, however small it is."""


class File(NamedTuple):
    """A file: its path, its name below the source that was read, with forward slashes, and its extension in FORMATS.

    `max_expansion` is how many times its size it may take, unpacked, and so may each of its sets.
    `source` is the name of the folder that `name` counts from, if sets are to have it as their folder.
    """

    path: Path
    name: str
    suffix: str
    max_expansion: float = MAX_EXPANSION
    source: str = ""

    def __str__(self) -> str:
        return str(self.path)

    def error(self, what: str, remedy: str = "", **fields: Any) -> ReaderError:
        """Return the error that says `what` is wrong with this file."""
        return reader_error(self.path, what, remedy, **fields)

    def check_names(self, what: str, wanted: Iterable[str | None], known: Iterable[Any], **fields: Any) -> None:
        """Refuse a name that is not known to the file; `what` it is a name of, in words. None is passed over."""
        names = {str(name): None for name in known}
        for name in wanted:
            if name is not None and name not in names:
                fields |= {"column": name} if what == "column" else {}
                raise self.error(f"no {what} {name!r:.100}", f"there are {list_names(names)}", **fields)

    def check_expansion(self, what: str, size: float) -> None:
        """Refuse what claims more bytes than is in proportion to the file."""
        if not 0 <= size <= max(ALWAYS_ALLOWED, self.max_expansion * self.size):
            times = f"more than {self.max_expansion:g} times the {format_bytes(self.size)} of the file"
            remedy = "pass a larger max_expansion= if you trust it"
            raise self.error(f"{what} claims {format_bytes(size)}, {times}", remedy, argument="max_expansion")

    def check_memory(self, what: str, size: float) -> None:
        """Refuse to hold so many bytes, if they are out of proportion, or more than are free."""
        self.check_expansion(what, size)
        if size > free_memory():
            raise self.error(f"{what} claims {format_bytes(size)}, more than the memory that is free: refused")

    @property
    def stem(self) -> str:
        """The name without its extension."""
        path = PurePosixPath(self.name)
        return str(path.with_suffix("")) if path.suffix else self.name

    def numbered(self, first: int, n: int) -> list[str]:
        """Return ids for n sets that have no name, by their number in the file."""
        return [f"{self.stem}/{i}" for i in range(first, first + n)]

    @property
    def metadata(self) -> dict[str, Any]:
        """What every set of the file gets as metadata: the name of the file, and of its folder if it is in one."""
        path = PurePosixPath(self.name)
        folder = str(path.parent) if len(path.parts) > 1 else self.source
        return {"file": path.name} | ({"folder": folder} if folder else {})

    @property
    def size(self) -> int:
        """The number of bytes on disk."""
        return os.path.getsize(self.path)


@dataclass(frozen=True)
class Options:
    """The arguments of `read` that readers look at, checked."""

    id_column: str | None = None
    columns: list[str] | None = None
    weights: str | bool | None = None
    by: str | None = None
    obsm: str | None = None
    n_points: int = 1024
    random_state: int = 0
    batch_points: int = 1 << 22
    max_points: int | None = None
    unique_ids: bool = True

    def limit(self, dim: int) -> int:
        """Return how many points of `dim` features go into a batch."""
        return max(1, min(self.batch_points, MAX_BATCH_VALUES // max(dim, 1)))

    @property
    def weights_name(self) -> str | None:
        """The name that `weights` gives, if it is one."""
        return self.weights if isinstance(self.weights, str) else None


class Piece(NamedTuple):
    """Sets of one file: set i is the next sizes[i] rows of `points`."""

    file: File
    points: Array
    sizes: Array
    weights: Array | None
    ids: list[str]
    metadata: list[dict[str, Any]]

    @classmethod
    def one(cls, file: File, points: Array, weights: Array | None = None, **metadata: Any) -> Piece:
        """Return the piece of a file that is one set: its name is the id."""
        return cls(file, points, np.array([len(points)]), weights, [file.name], [file.metadata | metadata])


def extension(name: str) -> str:
    """Return the key of a file name in FORMATS: its extension in lower case; ".idx" for all names of IDX files."""
    low = name.lower()
    bare = low.removesuffix(".gz")
    if bare.endswith("-ubyte") or re.search(r"\.idx\d?$", bare):
        return ".idx"
    return os.path.splitext(low)[1]


def is_labels(name: str) -> bool:
    """Return whether this is the file of labels that lies beside IDX images."""
    return extension(name) == ".idx" and "labels" in name.lower()


class Library(NamedTuple):
    """A library, what is read with it, and the extra that installs it."""

    name: str
    what: str
    extra: str


class Format(NamedTuple):
    """How files of one extension are read.

    what : what such a file is, in words. read : checks the header when it is called, and yields pieces; whatever it
    raises over a bad file becomes a ReaderError. takes : the options that it looks at. library : what it needs.
    one_set : whether a file is one set, or most often is.
    """

    what: str
    read: Callable[[File, Options], Iterator[Piece]]
    takes: frozenset[str] = frozenset()
    library: Library | None = None
    one_set: bool = False


def list_names(names: Iterable[Any]) -> str:
    """Return names in words, 20 of them at most."""
    listed = [repr(str(name)) for name in names]
    return (", ".join(listed[:20]) + ", ..." * (len(listed) > 20)) or "none"


def reader_error(path: str | Path, what: str, remedy: str = "", **fields: Any) -> ReaderError:
    """Return the error that says `what` is wrong with a file or folder."""
    return ReaderError(f"{path}: {what}", remedy, location=str(path), what=what, **fields)


@contextlib.contextmanager
def reading(file: File, what: str) -> Iterator[None]:
    """Turn whatever a library raises over a bad file into a ReaderError that says `what` it is not, with its article.

    PanicException is what libraries written in Rust raise; it is not an Exception.
    """
    try:
        yield
    except (ReaderError, MissingExtra, FileNotFoundError, PermissionError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        said = " ".join(str(error).split()) or type(error).__name__
        rubbish = next((i for i, x in enumerate(said) if printable(x) != x), None)
        if rubbish is not None:
            said = f"{said[: rubbish + 20]} ..."
        looks = looks_like(file.path)
        # That it looks like what it is read as says nothing about why it cannot be.
        is_text = looks == "text" and file.suffix in (".csv", ".tsv", ".xyz", ".obj")
        other = "" if is_text or looks in what or looks.endswith(file.suffix) else f" (it looks like {looks})"
        raise file.error(f"not a readable {what.partition(' ')[2]}{other}: {said:.300}") from error


_STARTS = {
    b"\x93NUMPY": "a NumPy array",
    b"PK\x03\x04": "a zip archive, such as .npz",
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"FEA1": "Feather version 1",
    b"\x89HDF": "HDF5, such as .h5ad",
    b"LASF": "LAS",
    b"glTF": "GLB",
    b"ply": "PLY",
    b"OFF": "OFF",
    b"# .PCD": "PCD",
    b"VERSION .7": "PCD",
    b"solid": "STL",
    b"\x1f\x8b": "gzip",
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"%PDF": "PDF",
    b"\x80\x04": "a pickle, which is never read",
    b"\x80\x05": "a pickle, which is never read",
    b"version https://git-lfs": "a pointer of Git LFS, not the file: run git lfs pull",
    b"<!DOCTYPE html": "a web page",
    b"<html": "a web page",
}


def looks_like(path: Path) -> str:
    """Return what the first bytes of a file look like, in words."""
    try:
        with open(path, "rb") as stream:
            start = stream.read(512)
    except OSError:
        return "a file that cannot be opened"
    return data_looks_like(start)


def data_looks_like(start: bytes) -> str:
    """Return what the first bytes of something look like, in words."""
    if not start.strip():
        return "an empty file"
    for magic, what in _STARTS.items():
        if start.startswith(magic):
            return what
    if start[:2] == b"\0\0" and len(start) > 3 and start[2] in (8, 9, 11, 12, 13, 14) and 0 < start[3] < 5:
        return "IDX"
    if start.decode("utf-8", "ignore").strip() and not set(start) & set(range(9)):
        return "text"
    return "binary data"


# ---- what a header may claim


def free_memory() -> int:
    """Return about how many bytes of memory could be taken now; a terabyte where the system does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) * 1024
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 1 << 40


def check_points(file: File, first: int, sizes: Sequence[int] | Array, options: Options) -> None:
    """Refuse sets of more points than `max_points` allows; `first` is the number of the first of them in its file."""
    if options.max_points is None:
        return
    too_many = np.flatnonzero(np.asarray(sizes) > options.max_points)
    if len(too_many):
        number = first + int(too_many[0])
        what = f"set {number} has more than {options.max_points:,} points"
        raise file.error(what, "pass a larger max_points=", argument="max_points", set=number)


# ---- metadata and ids


def to_builtin(value: Any) -> Any:
    """Return a value that JSON can hold; None stands for missing."""
    if (date := date_text(value)) is not None:
        return date
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def metadata_rows(file: File, columns: Mapping[str, Sequence[Any]], n: int) -> list[dict[str, Any]]:
    """Return a dict for each of n sets: the values of the columns that are not missing, and the file.

    What a file has a column for is not said of the file, also where the value is missing.
    """
    of_file = {name: value for name, value in file.metadata.items() if name not in columns}
    result = [dict(of_file) for _ in range(n)]
    for name, values in columns.items():
        for one, value in zip(result, values, strict=True):
            if (kept := to_builtin(value)) is not None:
                one[name] = kept
    return result


def single_values(codes: Array, starts: Array, values: Sequence[Any]) -> list[Any]:
    """Return the value of each set whose elements all have one code, at least 0, and None for the others.

    codes : a number for each element, the same for the same value. starts : where the sets begin. values : one for
    each set, that of its first element.
    """
    low, high = np.minimum.reduceat(codes, starts), np.maximum.reduceat(codes, starts)
    return [value if kept else None for value, kept in zip(values, (low == high) & (low >= 0), strict=True)]


def to_ids(file: File, what: str, values: Sequence[Any], rows: Iterable[int] | None = None) -> list[str]:
    """Return ids as strings, from strings and whole numbers; `rows` are their rows in the file, 0, 1, ... if None."""
    ids = []
    for i, value in zip(range(len(values)) if rows is None else rows, values, strict=True):
        kept = to_builtin(value)
        if isinstance(kept, bool) or not isinstance(kept, str | int) or kept == "":
            remedy = "ids are strings or whole numbers, and none is missing"
            raise file.error(f"{what}, row {i} is {value!r:.60}", remedy, row=int(i))
        ids.append(str(kept))
    return ids
