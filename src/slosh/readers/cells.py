"""Cells in `.h5ad` files: one set for each value of an observation column, such as the patient.

The observations are read by anndata, the numbers straight from HDF5, in blocks of rows: a batch of sets is made dense,
never the whole matrix. Links to other files, and sizes beyond the memory, are refused.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix

from ..data.batching import batches_by_points
from ..data.checks import first_outside
from ..native.arrays import Array
from .files import File, Options, Piece, list_names, metadata_rows, single_values, to_builtin

VALUES_AT_ONCE = 1 << 24
"""Values of the matrix read in one go."""
HEAP = b"GCOL\1\0\0\0"
"""How a global heap of HDF5 begins, where the strings of attributes are."""
SCANNED_BYTES = 1 << 30
"""Where heaps are looked for: the start of a file, as large files would take long."""
LINK_BYTES = 16
"""A link in a group takes more bytes of the file than this."""
STRING_BYTES = 64
"""About what a string of HDF5 takes in memory."""
MAX_DEPTH = 32
"""Groups within groups, at most."""


def read_h5ad(file: File, options: Options) -> Iterator[Piece]:
    """Read sets of cells, in the order in which the values of `by` first appear."""
    import h5py

    _check_heaps(file)
    with h5py.File(file.path, "r") as store:
        for key in ("obs", "X" if options.obsm is None else "obsm"):
            if key not in store:
                raise file.error(f"has no {key!r}, so it is not an .h5ad file with cells in it")
        _check_inside(file, store)
        obs = _obs(file, store)
        _check_by(file, options.by, obs)
        if options.obsm is not None:
            file.check_names("obsm", [options.obsm], store["obsm"], argument="obsm")
        file.check_names("observation column", [options.weights_name], obs.columns, argument="weights")
        chosen = _chosen(file, options, store)
    return _pieces(file, options, obs, chosen)


def _pieces(file: File, options: Options, obs: Any, chosen: Array | None) -> Iterator[Piece]:
    import h5py

    order, offsets, ids, columns = _groups(obs, str(options.by))
    weights = None if options.weights_name is None else obs[options.weights_name].to_numpy(np.float64)
    with h5py.File(file.path, "r") as store:
        matrix = store["X"] if options.obsm is None else store["obsm"][options.obsm]
        table = Matrix(file, matrix, len(obs), chosen)
        sizes = np.diff(offsets)
        file.check_memory(f"the largest set of {matrix.name}", int(sizes.max(initial=0)) * table.dim * 4)
        for sets in batches_by_points(sizes, options.limit(table.dim)):
            cells = order[offsets[sets.start] : offsets[sets.stop]]
            metadata = metadata_rows(file, {name: values[sets] for name, values in columns.items()}, len(ids[sets]))
            part = None if weights is None else weights[cells]
            yield Piece(file, table.rows(cells), sizes[sets], part, ids[sets], metadata)


def _check_heaps(file: File) -> None:
    """Refuse a heap of strings that has a free block of no length: HDF5 (tried with 1.14) would loop for ever."""
    if not file.size:
        return
    with open(file.path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(HEAP, 0, SCANNED_BYTES)
        while start >= 0:
            end = min(start + int.from_bytes(data[start + 8 : start + 16], "little"), len(data))
            place = start + 16
            while place + 16 <= end:
                number, length = struct.unpack_from("<H6xQ", data, place)
                if number == length == 0:
                    raise file.error("a heap of its strings is damaged: refused")
                place += 16 + (length + 7) // 8 * 8 if number else length
            start = data.find(HEAP, max(start + 8, min(place, end)), SCANNED_BYTES)


def _check_inside(file: File, store: Any) -> None:
    """Refuse links to other files and data kept in other files."""
    import h5py

    stack, links = [("", store, 0)], 0
    while stack:
        path, group, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise file.error(f"{path[:80]} is nested too deeply: refused")
        links += len(group)
        if links * LINK_BYTES > file.size:
            raise file.error("its groups are part of each other, again and again: refused")
        for name in group:
            here, link = f"{path}/{name}", group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                raise file.error(f"{here} is a link to another file, {link.filename!r:.80}: refused")
            if not isinstance(link, h5py.HardLink):
                continue
            item = group.get(name)
            if isinstance(item, h5py.Group):
                stack.append((here, item, depth + 1))
            elif isinstance(item, h5py.Dataset) and (item.external or item.is_virtual):
                raise file.error(f"the values of {here} are in another file: refused")


def _obs(file: File, store: Any) -> Any:
    try:
        from anndata.io import read_elem
    except ImportError:  # before 0.11
        from anndata.experimental import read_elem
    _check_sizes(file, store["obs"])
    return read_elem(store["obs"])


def _check_sizes(file: File, item: Any, *, held: bool = True) -> None:
    """Refuse a dataset, or a group of them, that claims too much; `held` says that all of it will be in memory."""
    sizes = [0]

    def add(_: str, part: Any) -> None:
        if hasattr(part, "nbytes"):  # a Dataset, not a Group
            sizes.append(part.size * STRING_BYTES if part.dtype.kind == "O" else part.nbytes)

    add("", item)
    if hasattr(item, "visititems"):
        item.visititems(add)
    (file.check_memory if held else file.check_expansion)(item.name.removeprefix("/"), sum(sizes))


def _check_by(file: File, by: str | None, obs: Any) -> None:
    if by is None or by not in obs.columns:
        kinds = obs.dtypes.astype(str)
        names = [name for name in obs.columns if kinds[name] in ("category", "object", "bool", "str", "string")]
        problem = "no observation column is named" if by is None else f"no column {by!r}"
        listed = list_names(names or obs.columns)
        remedy = f"by= is the one whose values make the sets; those with categories are {listed}"
        raise file.error(problem, remedy, argument="by")
    missing = obs[by].isna().to_numpy()
    if missing.any():
        row = int(missing.argmax())
        what = f"{int(missing.sum())} cells have no {by!r}, the first in row {row}"
        raise file.error(what, "drop them, or give them a value", row=row, column=by)


def _chosen(file: File, options: Options, store: Any) -> Array | None:
    """Return which columns of X are the variables of `columns`; None means all."""
    if options.columns is None:
        return None
    if options.obsm is not None:
        what = f"columns= names variables of X, and obsm={options.obsm!r} has none"
        raise file.error(what, "give one of the two", argument="columns")
    index = store["var"][store["var"].attrs["_index"]]
    _check_sizes(file, index)
    names = (index["values"] if hasattr(index, "keys") else index).asstr()[:].tolist()  # a group: anndata 0.13
    file.check_names("variable", options.columns, names, argument="columns")
    place = {name: i for i, name in enumerate(names)}
    return np.array([place[name] for name in options.columns])


def _groups(obs: Any, by: str) -> tuple[Array, Array, list[str], dict[str, list[Any]]]:
    """Return rows in the order of their sets, offsets, ids, and the values of columns, None where a set has several."""
    import pandas as pd

    codes, keys = pd.factorize(obs[by])
    order = np.argsort(codes, kind="stable")
    offsets = np.concatenate(([0], np.cumsum(np.bincount(codes, minlength=len(keys)))))
    columns: dict[str, list[Any]] = {}
    for name in obs.columns:
        if name == by:
            continue
        first = obs[name].iloc[order[offsets[:-1]]].tolist()
        columns[str(name)] = single_values(pd.factorize(obs[name])[0][order], offsets[:-1], first)
    return order, offsets, [str(to_builtin(key)) for key in keys], columns


class Matrix:
    """The numbers of all cells, dense or sparse, read by rows."""

    def __init__(self, file: File, item: Any, n: int, chosen: Array | None) -> None:
        self._file, self._item, self._chosen = file, item, chosen
        self._rows = item  # what gives rows when it is sliced; not a sparse matrix that is read piece by piece
        self._indptr: Array | None = None
        _check_sizes(file, item, held=False)
        if hasattr(item, "dtype"):  # a Dataset, not a Group
            shape, self._dtype = item.shape, item.dtype
            if item.ndim != 2 or item.dtype.kind not in "fiub":
                raise file.error(f"{item.name} is {item.dtype} of shape {item.shape}, not numbers (cells, features)")
        else:
            kind = str(item.attrs.get("encoding-type", "a group"))
            if kind not in ("csr_matrix", "csc_matrix"):
                raise file.error(f"{item.name} is {kind}, not a dense or sparse matrix")
            shape, self._dtype = tuple(int(x) for x in item.attrs["shape"]), item["data"].dtype
            self._open_sparse(kind, shape)
        if shape[0] != n:
            raise file.error(f"{item.name} has {shape[0]} rows, obs has {n}")
        self._width = int(shape[1])
        self.dim = self._width if chosen is None else len(chosen)

    def _open_sparse(self, kind: str, shape: tuple[int, ...]) -> None:
        _check_sizes(self._file, self._item["indptr"])
        item, major = self._item, shape[0] if kind == "csr_matrix" else shape[1]
        indptr = np.asarray(item["indptr"][:], np.int64)
        stored = len(item["data"])
        ends = len(indptr) == major + 1 and indptr[0] == 0 and indptr[-1] == stored == len(item["indices"])
        if not ends or np.any(np.diff(indptr) < 0):
            raise self._file.error(f"the parts of the sparse {item.name} do not agree: it is damaged")
        if kind == "csr_matrix":
            self._indptr = indptr
        else:  # by columns: all of it is needed for one row
            self._file.check_memory(item.name, 3 * (item["data"].nbytes + item["indices"].nbytes))
            self._rows = csc_matrix((*self._stored(0, stored, shape[0]), indptr), shape).tocsr()

    def _stored(self, start: int, stop: int, most: int) -> tuple[Array, Array]:
        """Return values and indices of a sparse matrix; an index outside would be written outside."""
        data, indices = self._item["data"][start:stop], self._item["indices"][start:stop]
        if first_outside(indices, 0, most - 1) is not None:
            raise self._file.error(f"an index of the sparse {self._item.name} is out of range: it is damaged")
        return data, indices

    def rows(self, wanted: Array) -> Array:
        """Return those rows, dense. The file is read from the first of them to the last, in blocks."""
        self._file.check_memory(f"a batch of {self._item.name}", len(wanted) * self.dim * 4)
        out = np.empty((len(wanted), self.dim), self._dtype)
        order = np.argsort(wanted, kind="stable")
        ordered = wanted[order]
        done = 0
        while done < len(ordered):
            start = int(ordered[done])
            block, stop = self._block(start, int(ordered[-1]) + 1)
            last = int(np.searchsorted(ordered, stop))
            block = block[ordered[done:last] - start]
            block = block if self._chosen is None else block[:, self._chosen]
            out[order[done:last]] = block if isinstance(block, np.ndarray) else block.toarray()
            done = last
        return out

    def _block(self, start: int, most: int) -> tuple[Any, int]:
        """Return the rows from `start` on, up to row `most` or to VALUES_AT_ONCE values, and the row after them."""
        if self._indptr is None:
            stop = min(most, start + max(1, VALUES_AT_ONCE // max(1, self._width)))
            return self._rows[start:stop], stop
        stop = int(np.searchsorted(self._indptr, self._indptr[start] + VALUES_AT_ONCE, side="right")) - 1
        stop = min(most, max(stop, start + 1))
        a, b = int(self._indptr[start]), int(self._indptr[stop])
        parts = (*self._stored(a, b, self._width), self._indptr[start : stop + 1] - a)
        return csr_matrix(parts, (stop - start, self._width)), stop
