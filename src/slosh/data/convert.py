"""Conversion of other libraries' objects: tensors, Arrow columns and tables come in, NumPy arrays go out.

`sets.py` joins what comes out. None of the other libraries is imported before one of its objects was given.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..errors import InputError, MissingExtra
from .checks import (
    Array,
    as_array,
    check_numeric,
    input_error,
    kind_of,
    library_of,
    locate,
    not_a_collection,
    tensor_array,
)
from .precision import Origin

if TYPE_CHECKING:
    from .sets import Sets

# ---- torch


def jagged_arrays(tensor: Any) -> tuple[Array, Array] | None:
    """Return (P, d) points and (n,) sizes of a jagged nested tensor without gaps; None for other nested tensors."""
    if str(tensor.layout) != "torch.jagged" or tensor.lengths() is not None or getattr(tensor, "_ragged_idx", 1) != 1:
        return None
    return tensor_array(tensor.values(), "the nested tensor"), np.diff(tensor.offsets().cpu().numpy())


# ---- Arrow


def import_arrow() -> Any:
    """Return pyarrow, or raise an error that names the extra."""
    try:
        import pyarrow
    except ImportError as error:
        remedy = 'pip install "slosh[tables]"'
        raise MissingExtra("Arrow columns need pyarrow", remedy, package="pyarrow", extra="tables") from error
    return pyarrow


def arrow_vectors(column: Any) -> tuple[list[Array], Array, int | None]:
    """Return parts (P_c, d), the sizes of all sets, and d, of an Arrow column of lists of vectors.

    d is None if there is no vector.
    """
    column = _arrow_column(column)
    parts: list[Array] = []
    sizes: list[Array] = [np.empty(0, np.int64)]
    dim: int | None = None
    for first, chunk in _chunks(column):
        lengths, vectors = _open(chunk, column)
        starts = np.concatenate(([0], np.cumsum(lengths)))
        if (row := _first_null(chunk)) is not None:
            raise _null(first + row)
        if (row := _first_null(vectors)) is not None:
            raise _null(*locate(row, starts, first))
        widths, values = _open(vectors, column)
        sizes.append(lengths)
        if not len(widths):
            dim = getattr(vectors.type, "list_size", dim)
            continue
        if dim is None:
            dim = int(widths[0])
        if dim == 0:
            number, element = locate(0, starts, first)
            raise input_error(number, "has 0 features", "vectors must have at least one", element=element)
        if (odd := np.flatnonzero(widths != dim)).size:
            number, element = locate(int(odd[0]), starts, first)
            what = f"has {widths[odd[0]]} numbers, the others have {dim}"
            raise input_error(number, what, "give all elements the same features", element=element)
        if (row := _first_null(values)) is not None:
            raise _null(*locate(row // dim, starts, first), feature=row % dim)
        parts.append(_numbers(values, column).reshape(-1, dim))
    return parts, np.concatenate(sizes), dim


def arrow_scalars(column: Any) -> tuple[Array, Array]:
    """Return all values, and the length of each row, of an Arrow column of lists of numbers, the weights."""
    column = _arrow_column(column)
    parts: list[Array] = [np.empty(0, np.float32)]
    sizes: list[Array] = [np.empty(0, np.int64)]
    for first, chunk in _chunks(column):
        lengths, values = _open(chunk, column)
        starts = np.concatenate(([0], np.cumsum(lengths)))
        if (row := _first_null(chunk)) is not None:
            raise _null(first + row, what="has weights that are null")
        if (row := _first_null(values)) is not None:
            raise _null(*locate(row, starts, first), what="has a weight that is null")
        parts.append(_numbers(values, column))
        sizes.append(lengths)
    return np.concatenate(parts), np.concatenate(sizes)


def arrow_lists(offsets: Array, points: Array) -> Any:
    """Return a LargeListArray of FixedSizeList over the memory of offsets and points."""
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
        raise InputError(f"{kind_of(column)} is not an Arrow column", "pass an Array or a ChunkedArray")
    return column


def _chunks(column: Any) -> Iterator[tuple[int, Any]]:
    pa = import_arrow()
    first = 0
    chunks = column.chunks or [pa.array([], column.type)] if isinstance(column, pa.ChunkedArray) else [column]
    for chunk in chunks:
        yield first, chunk
        first += len(chunk)


def _open(array: Any, column: Any) -> tuple[Array, Any]:
    """Return the length of each list, and the values of all of them.

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


def _not_lists(column: Any) -> InputError:
    return InputError(
        f"cannot read sets from a column of type {column.type}",
        "points are list<fixed_size_list<float>[d]> or list<list<float>>, one row a set, and weights are list<float>; "
        "scalars are vectors of length 1",
    )


def _first_null(array: Any) -> int | None:
    return int(np.argmax(array.is_null().to_numpy(zero_copy_only=False))) if array.null_count else None


def _null(number: int, element: int | None = None, feature: int | None = None, what: str = "is null") -> InputError:
    remedy = "drop it, or put a value in its place"
    return input_error(number, what, remedy, element=element, feature=feature)


def _numbers(values: Any, column: Any) -> Array:
    types = import_arrow().types
    if not (types.is_floating(values.type) or types.is_integer(values.type) or types.is_boolean(values.type)):
        raise _not_lists(column)
    return np.asarray(values.to_numpy(zero_copy_only=False))


# ---- tables of pandas and polars


def group_arrays(frame: Any, by: Any, columns: Any, weights: Any) -> tuple[Array, Array, Array | None, list[Any]]:
    """Return (P, d) points in the order of their sets, (n,) sizes, (P,) weights and n keys of a table in long form."""
    library = library_of(frame)
    if library == "pandas":
        codes, keys, used, numeric, column = _pandas_groups(frame, by)
    elif library == "polars":
        codes, keys, used, numeric, column = _polars_groups(frame, by)
    else:
        raise InputError(f"from_groups takes a pandas or polars DataFrame, not {kind_of(frame)}", argument="frame")
    if columns is None:
        columns = [name for name in numeric if name not in used and name != weights]
    elif isinstance(columns, str) or not isinstance(columns, Sequence):
        raise input_error("columns", f"must be a list of column names, not {columns!r:.80}")
    if not len(columns):
        problem = "no numeric columns are left for the features"
        raise InputError(problem, "name them with columns=[...]", argument="columns")
    features = [column(name) for name in columns]
    for name, x in zip(columns, features, strict=True):
        check_numeric(x, f"column {name!r}", "columns")
    points = np.empty((len(codes), len(features)), np.result_type(*(x.dtype for x in features)))
    ordered: Any = slice(None)
    if np.any(codes[1:] < codes[:-1]):
        small = codes.astype(np.min_scalar_type(len(keys)))  # NumPy sorts 16-bit numbers by radix, ten times as fast
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
            raise _grouped_already()
        by = grouped.keys
    if not isinstance(frame, pd.DataFrame):
        raise InputError(f"from_groups takes a DataFrame, not {kind_of(frame)}", argument="frame")
    numeric = [name for name, dtype in frame.dtypes.items() if is_number(dtype) and not is_bool(dtype)]
    if grouped is not None and len(selected := grouped.head(0).columns) < len(frame.columns):
        numeric = list(selected)  # df.groupby("k")[["x", "y"]]

    def column(name: Any) -> Array:
        _known_columns([name], list(frame.columns))
        series = frame[name]
        _refuse_null(series.isna().to_numpy(), f"column {name!r}")
        if not is_number(series.dtype):
            raise _not_numbers(name, series.dtype)
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
        raise _by_is_missing()
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
            problem = f"from_groups takes a DataFrame or its group_by, not {kind_of(frame)}"
            raise InputError(problem, "collect() a lazy one", argument="frame")
        if by is not None:
            raise _grouped_already()
        if getattr(frame, "predicates", None):
            raise InputError("a group-by with having() is not taken", "filter the table first", argument="frame")
        by = [name for given in frame.by for name in ([given] if isinstance(given, str | pl.Expr) else given)]
        one = len(by) + len(frame.named_by) == 1 and not any(isinstance(given, list | tuple) for given in frame.by)
        frame, labels = frame.df, frame.df.select(*by, **frame.named_by)
    elif by is None:
        raise _by_is_missing()
    else:
        names = by if isinstance(by, list) else [by]
        _known_columns(names, frame.columns)
        one, labels = not isinstance(by, list), frame.select(names)

    def column(name: Any) -> Array:
        _known_columns([name], frame.columns)
        series = frame.get_column(name)
        if not (series.dtype.is_numeric() or series.dtype == pl.Boolean):
            raise _not_numbers(name, series.dtype)
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
    """Return the row of the first element of each group, for groups numbered in the order in which they appear."""
    return np.flatnonzero(np.diff(np.maximum.accumulate(codes), prepend=-1)) if len(codes) else codes


def _known_columns(names: Sequence[Any], known: Sequence[Any]) -> None:
    for name in names:
        if not isinstance(name, Hashable):
            remedy = "group the table by it, and pass the group-by object"
            raise InputError(f"{name!r:.80} is not a column name", remedy, argument="by")
        if list(known).count(name) != 1:
            wrong = "more than one column is" if name in known else "no column is"
            raise InputError(f"{wrong} named {name!r}", f"the columns are {list(known)!r:.200}", argument="columns")


def _refuse_null(null: Array, what: str) -> None:
    if null.any():
        problem = f"row {int(np.argmax(null))} of {what} is null or NaN"
        raise InputError(problem, "drop the row, or put a value in its place", argument="frame")


def _not_numbers(name: Any, dtype: Any) -> InputError:
    return input_error(f"column {name!r}", f"is of dtype {dtype}, not numbers", "leave it out of columns")


def _by_is_missing() -> InputError:
    return input_error("by", "is missing", "name the column that says which set a row belongs to")


def _grouped_already() -> InputError:
    return InputError("this table is grouped already", "pass by=None", argument="by")


# ---- weights


def join_weights(weights: Any, sizes: Array) -> Array:
    """Return the weights of all sets in one array, from an array (N_i,) for each set or a column of lists."""
    if library_of(weights) in ("polars", "pyarrow"):
        flat, lengths = arrow_scalars(weights)
    else:
        arrays = [as_array(given, i, "weights") for i, given in enumerate(weights)]
        for i, array in enumerate(arrays):
            check_numeric(array, i, "weights")
            if array.ndim != 1:
                what = f"must be 1-D, not {array.ndim}-D"
                raise input_error(i, what, "give one array of shape (N,) for each set", argument="weights")
        flat = np.concatenate(arrays) if arrays else np.empty(0, np.float32)
        lengths = np.array([len(array) for array in arrays], np.int64)
    if len(lengths) != len(sizes):
        what = f"are of {len(lengths)} sets, and there are {len(sizes)} sets"
        raise input_error("weights", what, "give an array for each")
    check_lengths(lengths, sizes)
    return flat


def check_lengths(lengths: Array, sizes: Array) -> None:
    """Refuse sets that do not have one weight for each element."""
    if (odd := np.flatnonzero(lengths != sizes)).size:
        i = int(odd[0])
        raise input_error(i, f"has {lengths[i]} weights, {sizes[i]} elements", "give one weight for each element")


# ---- any object


def sets_from_object(kind: type[Sets], data: Any, dim: int | None, origin: Origin) -> Sets:
    """Return sets from one object that holds them all, by the library it comes from; `kind` is the class `Sets`."""
    library, name = library_of(data), type(data).__name__
    if library == "torch":
        return kind.from_torch(data, origin=origin)
    if library in ("pandas", "polars") and name == "Series":
        if library == "polars" or hasattr(data.dtype, "pyarrow_dtype"):
            return kind.from_arrow(data if library == "polars" else data.array, dim=dim, origin=origin)
        return kind.from_list(data.tolist(), dim=dim, origin=origin)
    if library in ("pandas", "polars"):
        remedy = "Sets.from_groups(frame, by=...) makes a set of the rows of each group"
        raise InputError(f"a {library} {name} is a table, not a collection of sets", remedy)
    if library == "pyarrow":
        if hasattr(data, "column_names"):
            raise InputError(f"an Arrow {name} has several columns", "pass the one that holds the sets")
        return kind.from_arrow(data, dim=dim, origin=origin)
    if isinstance(data, Iterator):
        remedy = "pass list(x), or go through it with Sets.stream(x)"
        raise InputError(f"{kind_of(data)} can be read only once", remedy)
    if not isinstance(data, np.ndarray) and not hasattr(data, "__array__") and not hasattr(data, "__array_interface__"):
        remedy = "pass a list of (N, d) arrays, or a 3-D array"
        raise InputError(f"{kind_of(data)} is not a collection of sets", remedy)
    array = as_array(data, "the collection")
    if array.dtype.kind == "O" and array.ndim == 1:
        return kind.from_list(array.tolist(), dim=dim, origin=origin)
    check_numeric(array, "the collection")
    if array.ndim != 3:
        raise not_a_collection(array.ndim)
    return kind.from_padded(array, origin=origin)
