"""The way out of other libraries: tensors, Arrow columns and tables in, numpy arrays out.

Nothing here knows `Sets`; `sets.py` joins what comes out. None of the other libraries is imported before one of its
objects was given.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from .checks import Array, as_array, check_numeric, library_of, locate, tensor_array

# ---- torch


def jagged_arrays(tensor: Any) -> tuple[Array, Array] | None:
    """(P, d) points and (n,) sizes of a jagged nested tensor without gaps; None for other nested tensors."""
    if str(tensor.layout) != "torch.jagged" or tensor.lengths() is not None or getattr(tensor, "_ragged_idx", 1) != 1:
        return None
    return tensor_array(tensor.values(), "the nested tensor"), np.diff(tensor.offsets().cpu().numpy())


# ---- Arrow


def import_arrow() -> Any:
    """pyarrow, or an ImportError that names the extra."""
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError('Arrow columns need pyarrow: pip install "slosh[tables]"') from error
    return pyarrow


def arrow_vectors(column: Any) -> tuple[list[Array], Array, int | None]:
    """Of an Arrow column of lists of vectors: parts (P_c, d), the sizes of all sets, and d, None without any vector."""
    column = _arrow_column(column)
    parts: list[Array] = []
    sizes: list[Array] = [np.empty(0, np.int64)]
    dim: int | None = None
    for first, chunk in _chunks(column):
        lengths, vectors = _open(chunk, column)
        starts = np.concatenate(([0], np.cumsum(lengths)))
        if (row := _first_null(chunk)) is not None:
            raise _null(f"set {first + row}")
        if (row := _first_null(vectors)) is not None:
            raise _null(locate(row, starts, first))
        widths, values = _open(vectors, column)
        sizes.append(lengths)
        if not len(widths):
            dim = getattr(vectors.type, "list_size", dim)
            continue
        if dim is None:
            dim = int(widths[0])
        if dim == 0:
            raise ValueError(f"{locate(0, starts, first)} has 0 features; vectors must have at least one")
        if (odd := np.flatnonzero(widths != dim)).size:
            i = int(np.searchsorted(starts, odd[0], side="right")) - 1
            raise ValueError(
                f"set {first + i}: row {odd[0] - starts[i]} has {widths[odd[0]]} numbers, the others have {dim}; "
                "give all rows the same features"
            )
        if (row := _first_null(values)) is not None:
            raise _null(f"{locate(row // dim, starts, first)}, feature {row % dim}")
        parts.append(_numbers(values, column).reshape(-1, dim))
    return parts, np.concatenate(sizes), dim


def arrow_scalars(column: Any) -> tuple[Array, Array]:
    """All values, and the length of each row, of an Arrow column of lists of numbers."""
    column = _arrow_column(column)
    parts: list[Array] = [np.empty(0, np.float32)]
    sizes: list[Array] = [np.empty(0, np.int64)]
    for first, chunk in _chunks(column):
        lengths, values = _open(chunk, column)
        starts = np.concatenate(([0], np.cumsum(lengths)))
        if (row := _first_null(chunk)) is not None:
            raise _null(f"weights: set {first + row}")
        if (row := _first_null(values)) is not None:
            raise _null(f"weights: {locate(row, starts, first)}")
        parts.append(_numbers(values, column))
        sizes.append(lengths)
    return np.concatenate(parts), np.concatenate(sizes)


def arrow_lists(offsets: Array, points: Array) -> Any:
    """LargeListArray of FixedSizeList over the memory of offsets and points."""
    pa = import_arrow()
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(points.reshape(-1)), points.shape[1])
    return pa.LargeListArray.from_arrays(pa.array(offsets), vectors)


def _arrow_column(column: Any) -> Any:
    pa = import_arrow()
    if library_of(column) == "polars" and hasattr(column, "to_arrow"):
        column = column.to_arrow()
    elif library_of(column) != "pyarrow" and hasattr(column, "__arrow_array__"):
        column = column.__arrow_array__()
    if not isinstance(column, pa.Array | pa.ChunkedArray):
        raise ValueError(f"not an Arrow column but a {type(column).__name__}: pass an Array or a ChunkedArray")
    return column


def _chunks(column: Any) -> Iterator[tuple[int, Any]]:
    pa = import_arrow()
    first = 0
    chunks = column.chunks or [pa.array([], column.type)] if isinstance(column, pa.ChunkedArray) else [column]
    for chunk in chunks:
        yield first, chunk
        first += len(chunk)


def _open(array: Any, column: Any) -> tuple[Array, Any]:
    """The length of each list, and the values of all of them.

    `values` of a sliced array are those of the whole: the slice is cut out here.
    """
    pa = import_arrow()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_fixed_size_list(array.type):
        size = int(array.type.list_size)
        # Broadcast, not filled: there may be as many lists as points.
        lengths = np.broadcast_to(np.int64(size), (len(array),))
        return lengths, array.values.slice(array.offset * size, len(array) * size)
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        offsets = array.offsets.to_numpy()
        start, stop = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
        return np.diff(offsets).astype(np.int64), array.values.slice(start, stop - start)
    raise _not_lists(column)


def _not_lists(column: Any) -> ValueError:
    return ValueError(
        f"cannot read sets from a column of type {column.type}: points are list<fixed_size_list<float>[d]> or "
        "list<list<float>>, one row a set, and weights are list<float>; scalars are vectors of length 1"
    )


def _first_null(array: Any) -> int | None:
    return int(np.argmax(array.is_null().to_numpy(zero_copy_only=False))) if array.null_count else None


def _null(where: str) -> ValueError:
    return ValueError(f"{where} is null: drop it, or put a value in its place")


def _numbers(values: Any, column: Any) -> Array:
    types = import_arrow().types
    if not (types.is_floating(values.type) or types.is_integer(values.type) or types.is_boolean(values.type)):
        raise _not_lists(column)
    return np.asarray(values.to_numpy(zero_copy_only=False))


# ---- tables of pandas and polars


def group_arrays(frame: Any, by: Any, columns: Any, weights: Any) -> tuple[Array, Array, Array | None, list[Any]]:
    """(P, d) points in the order of their sets, (n,) sizes, (P,) weights, and n keys, of a table in long form."""
    library = library_of(frame)
    if library == "pandas":
        codes, keys, used, numeric, column = _pandas_groups(frame, by)
    elif library == "polars":
        codes, keys, used, numeric, column = _polars_groups(frame, by)
    else:
        raise ValueError(f"from_groups takes a pandas or polars DataFrame, not a {type(frame).__name__}")
    if columns is None:
        columns = [name for name in numeric if name not in used and name != weights]
    elif isinstance(columns, str) or not isinstance(columns, Sequence):
        raise ValueError(f"columns must be a list of column names, not {columns!r:.80}")
    if not len(columns):
        raise ValueError("no numeric columns are left for the features: name them with columns=[...]")
    features = [column(name) for name in columns]
    for name, x in zip(columns, features, strict=True):
        check_numeric(x, f"column {name!r}")
    points = np.empty((len(codes), len(features)), np.result_type(*(x.dtype for x in features)))
    ordered: Any = slice(None)
    if np.any(codes[1:] < codes[:-1]):
        small = codes.astype(np.min_scalar_type(len(keys)))  # numpy sorts 16-bit numbers by radix, ten times as fast
        ordered = np.argsort(small, kind="stable")
    for k, x in enumerate(features):
        points[:, k] = x[ordered]
    return points, np.bincount(codes), None if weights is None else column(weights)[ordered], keys


# The number of each row's group, the keys, the names of the key columns and of the numeric ones, and a way to read one.
_Groups: TypeAlias = tuple[Array, list[Any], list[Any], list[Any], Callable[[Any], Array]]


def _pandas_groups(frame: Any, by: Any) -> _Groups:
    import pandas as pd

    is_number, is_bool = pd.api.types.is_numeric_dtype, pd.api.types.is_bool_dtype
    grouped = None
    if hasattr(frame, "ngroup"):
        grouped, frame = frame, frame.obj
        if by is not None:
            raise ValueError("this table is grouped already: pass by=None")
        by = grouped.keys
    if not isinstance(frame, pd.DataFrame):
        raise ValueError(f"from_groups takes a DataFrame, not a {type(frame).__name__}")
    selection = getattr(grouped, "_selection", None)  # df.groupby("k")[["x", "y"]]
    if selection is None:
        numeric = [name for name, dtype in frame.dtypes.items() if is_number(dtype) and not is_bool(dtype)]
    else:
        numeric = list(selection)

    def column(name: Any) -> Array:
        _known_columns([name], list(frame.columns))
        series = frame[name]
        _refuse_null(series.isna().to_numpy(), f"column {name!r}")
        if not is_number(series.dtype):
            raise ValueError(f"column {name!r} is of dtype {series.dtype}, not numbers; leave it out of columns")
        array = series.to_numpy()
        return np.asarray(array if array.dtype.kind != "O" else array.astype(np.float64))

    names = by if isinstance(by, list) else [by]
    plain = all(isinstance(name, str | int | tuple) for name in names)
    if grouped is not None and not (plain and all(name in frame.columns for name in names)):
        # Grouped by a level, a function or an array: pandas numbers the groups; those without rows have no number.
        groups = grouped.ngroup().to_numpy()
        _refuse_null(~(groups >= 0), "the group key")  # -1 or NaN
        codes, order = pd.factorize(groups)
        all_keys = [key for key, rows in grouped if len(rows)]
        return codes, [all_keys[i] for i in order], [], numeric, column
    if by is None:
        raise ValueError("by is missing: name the column that says which set a row belongs to")
    _known_columns(names, list(frame.columns))
    codes = np.empty(0, np.int64)
    for name in names:
        _refuse_null(frame[name].isna().to_numpy(), f"column {name!r}")
        # One column after the other, numbered anew each time: the numbers stay below n * n.
        part, unique = pd.factorize(frame[name])
        codes = part if name is names[0] else pd.factorize(codes * len(unique) + part)[0]
    first = _first_rows(codes)
    keys = [frame[name].iloc[first].tolist() for name in names]
    return codes, list(zip(*keys, strict=True)) if isinstance(by, list) else keys[0], names, numeric, column


def _polars_groups(frame: Any, by: Any) -> _Groups:
    import polars as pl

    if not isinstance(frame, pl.DataFrame):
        if not hasattr(frame, "df") or not hasattr(frame, "by"):
            raise ValueError(
                f"from_groups takes a DataFrame or its group_by, not a {type(frame).__name__}; collect() a lazy one"
            )
        if by is not None:
            raise ValueError("this table is grouped already: pass by=None")
        if getattr(frame, "predicates", None):
            raise ValueError("a group-by with having() is not taken: filter the table first")
        by = [name for given in frame.by for name in ([given] if isinstance(given, str | pl.Expr) else given)]
        one = len(by) + len(frame.named_by) == 1 and not any(isinstance(given, list | tuple) for given in frame.by)
        frame, labels = frame.df, frame.df.select(*by, **frame.named_by)
    elif by is None:
        raise ValueError("by is missing: name the column that says which set a row belongs to")
    else:
        names = by if isinstance(by, list) else [by]
        _known_columns(names, frame.columns)
        one, labels = not isinstance(by, list), frame.select(names)

    def column(name: Any) -> Array:
        _known_columns([name], frame.columns)
        series = frame.get_column(name)
        if not (series.dtype.is_numeric() or series.dtype == pl.Boolean):
            raise ValueError(f"column {name!r} is of dtype {series.dtype}, not numbers; leave it out of columns")
        _refuse_null(series.is_null().to_numpy(), f"column {name!r}")
        array = (series.cast(pl.Float64) if series.dtype.is_decimal() else series).to_numpy()
        if array.dtype.kind == "f":
            _refuse_null(np.isnan(array), f"column {name!r}")
        return np.asarray(array)

    for name in labels.columns:
        values = labels.get_column(name)
        missing = values.is_null() | values.is_nan() if values.dtype.is_float() else values.is_null()
        _refuse_null(missing.to_numpy(), f"column {name!r}")
    # The first row of the group of each row; the row numbers of those first rows, counted, number the groups.
    row = "__slosh_row__"
    first_of_row = labels.with_row_index(row).select(pl.col(row).first().over(labels.columns)).to_series().to_numpy()
    is_first = first_of_row == np.arange(len(first_of_row))
    codes = (np.cumsum(is_first) - 1)[first_of_row]
    keys = labels.filter(pl.Series(is_first, dtype=pl.Boolean)).rows()
    numeric = [name for name, dtype in frame.schema.items() if dtype.is_numeric()]
    return codes, [key[0] for key in keys] if one else keys, labels.columns, numeric, column


def _first_rows(codes: Array) -> Array:
    """The row of the first element of each group, for groups numbered in the order in which they appear."""
    return np.flatnonzero(np.diff(np.maximum.accumulate(codes), prepend=-1)) if len(codes) else codes


def _known_columns(names: Sequence[Any], known: Sequence[Any]) -> None:
    for name in names:
        if not isinstance(name, Hashable):
            raise ValueError(f"{name!r:.80} is not a column name; group the table by it, and pass the group-by object")
        if list(known).count(name) != 1:
            wrong = "more than one column is" if name in known else "no column is"
            raise ValueError(f"{wrong} named {name!r}; the columns are {list(known)!r:.200}")


def _refuse_null(null: Array, what: str) -> None:
    if null.any():
        raise ValueError(
            f"row {int(np.argmax(null))} of {what} is null or NaN: drop the row, or put a value in its place"
        )


# ---- weights


def join_weights(weights: Any, sizes: Array) -> Array:
    """The weights of all sets in one array, from an array (N_i,) for each set or a column of lists."""
    if library_of(weights) in ("polars", "pyarrow"):
        flat, lengths = arrow_scalars(weights)
    else:
        arrays = [as_array(given, f"weights of set {i}") for i, given in enumerate(weights)]
        for i, array in enumerate(arrays):
            check_numeric(array, f"weights of set {i}")
            if array.ndim != 1:
                raise ValueError(f"weights of set {i} are {array.ndim}-D: give one array of shape (N,) for each set")
        flat = np.concatenate(arrays) if arrays else np.empty(0, np.float32)
        lengths = np.array([len(array) for array in arrays], np.int64)
    if len(lengths) != len(sizes):
        raise ValueError(f"weights of {len(lengths)} sets were given for {len(sizes)} sets: give an array for each")
    if (odd := np.flatnonzero(lengths != sizes)).size:
        i = odd[0]
        raise ValueError(f"set {i} has {lengths[i]} weights, {sizes[i]} elements: give one weight for each element")
    return flat
