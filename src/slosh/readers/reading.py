"""`read` turns a file, a folder or a pattern into batches of sets with ids and metadata.

Arguments are checked, files are listed and the first one is opened when it is called; the rest is read as the batches
are taken.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from numbers import Real
from typing import Any, Literal

import numpy as np

from ..data.checks import checked_count, checked_origin, checked_seed
from ..data.precision import Origin
from ..data.progress import ProgressBar
from ..errors import InputError, ReaderError, bad_value, import_extra
from .batches import Batch, check_alone, join
from .files import MAX_EXPANSION, File, Options, Piece, reading
from .formats import FORMATS
from .sources import READABLE, find


def read(
    source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    format: str | None = None,
    id_column: str | None = None,
    columns: str | Sequence[str] | None = None,
    weights: str | bool | None = None,
    by: str | None = None,
    obsm: str | None = None,
    n_points: int = 1024,
    random_state: int = 0,
    origin: Origin = None,
    batch_points: int = 1 << 22,
    on_error: Literal["raise", "skip"] = "raise",
    max_expansion: float = MAX_EXPANSION,
    max_points: int | None = None,
    unique_ids: bool = True,
    source_as_folder: bool = False,
    progress: bool = True,
) -> Iterator[Batch]:
    """Yield batches of sets, with ids and metadata, from files; `docs/files.md` says what each format gives.

    source        a file, a folder (all files of a known extension in it, and in its folders), a pattern such as
                  "clouds/*.off", or a list of these; a file that is named twice is read once
    format        an extension, such as "csv", to be used whatever the files are called
    id_column     tables: the column with the ids, which in long form says what set a row belongs to; .npz: an array
    columns       tables: the features, or the list column; .las and .pcd: the fields; .h5ad: the variables
    weights       tables: a column; .npz: an array; .h5ad: an observation column; IDX: "grey"; False: leave out those
                  that a file has
    by            .h5ad: the observation column whose values make the sets; tables: the same as id_column
    obsm          .h5ad: the key of an embedding to be taken in place of X
    n_points      points sampled over the surface of a mesh
    random_state  the seed of that sampling, 0 to 2**32 - 1; equal meshes get equal points, whatever they are called
    origin        subtracted from all coordinates, see `Sets`; "auto" is the median of the first batch
    batch_points  points in a batch, about; fewer with more than 16 features
    on_error      "skip" leaves out a file that is one set and cannot be read, with a warning that says why; "raise"
                  stops at it. A bad file of several sets always raises, and so do files that do not go together
    max_expansion how many times its size a file may take when it is unpacked, and so may each of its sets; 256 MB are
                  always allowed. It protects from files that are made to fill the memory; math.inf lifts it
    max_points    the most points of one set; a set with more is refused as soon as that is known. None is any number
    unique_ids    False: several sets may have one id, as in tables that each count from zero. An index needs an id for
                  each set
    source_as_folder
                  True: sets of a file that lies directly in its source have the name of that folder as `folder`, too

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(pathlib.Path(folder, "square.npy"), [[0, 0], [0, 1], [1, 0], [1, 1]])
    ...     next(read(folder))
    Batch(sets=Sets(1 set, d=2, sizes 4..4..4), ids=['square.npy'], metadata=[{'file': 'square.npy'}])
    """
    if on_error not in ("raise", "skip"):
        raise InputError(f"on_error={on_error!r:.80} is not known", 'give "raise" or "skip"', argument="on_error")
    if not (origin is None or (isinstance(origin, str) and origin == "auto")):
        checked_origin(origin, None)
    for name, value in {"id_column": id_column, "by": by, "obsm": obsm}.items():
        if value is not None and not isinstance(value, str):
            raise InputError(f"{name}={value!r:.80} must be a name", argument=name)
    if not (weights is None or weights is False or isinstance(weights, str)):
        problem = f"weights={weights!r:.80} must be a name, or False to leave out those that a file has"
        raise InputError(problem, argument="weights")
    counts = checked_count("n_points", n_points), checked_count("batch_points", batch_points)
    most = None if max_points is None else checked_count("max_points", max_points)
    seed = checked_seed(random_state)
    for name, given in {"unique_ids": unique_ids, "source_as_folder": source_as_folder}.items():
        if not isinstance(given, bool):
            raise bad_value(name, given, "give True or False")
    options = Options(id_column, _names(columns), weights, by, obsm, counts[0], seed, counts[1], most, unique_ids)
    if isinstance(max_expansion, bool) or not isinstance(max_expansion, Real) or not max_expansion > 0:
        raise bad_value("max_expansion", max_expansion, "give a number above 0")
    by_path: dict[str, File] = {}
    for file in find(source, _format(format)):
        known = file._replace(max_expansion=float(max_expansion), source=file.source if source_as_folder else "")
        by_path.setdefault(os.path.abspath(file.path), known)
    files = list(by_path.values())
    _check_used(options, files, on_error)
    _check_libraries(files)
    if on_error == "skip":
        opened = _readable(files, options, origin)
    else:
        opened = itertools.chain([_open(files[0], options)], (_open(file, options) for file in files[1:]))
    return join(_pieces(opened, files, progress), options, origin)


def _open(file: File, options: Options) -> Iterator[Piece]:
    """Return the pieces of a file; its header is read now."""
    form = FORMATS[file.suffix]
    with reading(file, form.what):
        pieces = form.read(file, options)

    def guarded() -> Iterator[Piece]:
        with reading(file, form.what):
            yield from pieces

    return guarded()


def _readable(files: list[File], options: Options, origin: Origin) -> Iterator[Iterable[Piece]]:
    """Yield the pieces of each file; none, and a warning, for a file that is one set and cannot be read."""
    skipped: list[str] = []
    for file in files:
        if not FORMATS[file.suffix].one_set:
            yield _open(file, options)
            continue
        pieces: Iterable[Piece] = ()
        try:
            rest = _open(file, options)
            start = list(itertools.islice(rest, 1))
            if start and start[0].ids == [file.name]:
                check_alone(start[0], origin)
            pieces = itertools.chain(start, rest)
        except (ReaderError, OSError) as error:
            skipped.append(str(error) if isinstance(error, ReaderError) else f"{file}: {error}")
            warnings.warn(f"left out {skipped[-1]}", UserWarning, stacklevel=4)
        yield pieces
    if len(skipped) == len(files):
        raise ReaderError(f"none of the {len(files)} files could be read, and all were left out; {skipped[0]}")


def _pieces(opened: Iterable[Iterable[Piece]], files: list[File], progress: bool) -> Iterator[Piece]:
    several = len(files) > 1
    unit, total = ("file", len(files)) if several else ("set", None)
    with ProgressBar(total=total, unit=unit, disable=None if progress else True, desc="read") as bar:
        for pieces in opened:
            for piece in pieces:
                yield piece
                bar.update(0 if several else len(piece.ids))
            bar.update(int(several))


def _format(format: str | None) -> str | None:
    if format is None:
        return None
    suffix = f".{format.lower().removeprefix('.')}" if isinstance(format, str) else ""
    if suffix not in FORMATS:
        raise InputError(f"format={format!r:.80} is not known", READABLE, argument="format")
    return suffix


def _names(columns: Any) -> list[str] | None:
    if columns is None:
        return None
    names = [columns] if isinstance(columns, str) else columns
    if not isinstance(names, Sequence | np.ndarray) or not len(names) or not all(isinstance(x, str) for x in names):
        raise InputError(f"columns must be a list of names, not {columns!r:.80}", argument="columns")
    if len(set(names)) < len(names):
        raise InputError(f"columns names one of them twice: {list(names)!r:.200}", argument="columns")
    return [str(name) for name in names]


def _check_used(options: Options, files: list[File], on_error: str) -> None:
    """Refuse an option that no file would look at."""
    names = ("id_column", "columns", "weights", "by", "obsm")
    given = [name for name in names if getattr(options, name) not in (None, False)]
    for name in given + ["on_error"] * (on_error == "skip"):
        suffixes = [x for x, form in FORMATS.items() if name in form.takes or (name == "on_error" and form.one_set)]
        if not any(file.suffix in suffixes for file in files):
            problem = f"{name}= says nothing about {files[0]}, which is {FORMATS[files[0].suffix].what}"
            raise InputError(problem, f"it is for {' '.join(suffixes)}", argument=name)


def _check_libraries(files: list[File]) -> None:
    """Import what the files are read with, or raise an error that names the extra."""
    for library, file in {FORMATS[file.suffix].library: file for file in reversed(files)}.items():
        if library is not None:
            import_extra(library.name, f"{file}: reading {library.what}", library.extra)
