"""Conversion of other libraries' objects: tensors, Arrow columns and tables come in, NumPy arrays go out.

`sets.py` joins what comes out. None of the other libraries is imported before one of its objects was given.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..errors import InputError, import_extra
from ..native.arrays import Array
from . import checks
from .checks import input_error, kind_of, library_of, locate
from .precision import Origin

if TYPE_CHECKING:
    from .sets import Sets

# ---- torch


def jagged_arrays(tensor: Any) -> tuple[Array, Array] | None:
    """Return (P, d) points and (n,) sizes of a jagged nested tensor without gaps; None for other nested tensors."""
    if str(tensor.layout) != "torch.jagged" or tensor.lengths() is not None or getattr(tensor, "_ragged_idx", 1) != 1:
        return None
    return checks.tensor_array(tensor.values(), "the nested tensor"), np.diff(tensor.offsets().cpu().numpy())


# ---- Arrow


def _import_arrow() -> Any:
    return import_extra("pyarrow", "a column of Arrow's", "tables")


def arrow_vectors(column: Any) -> tuple[list[Array], Array, int | None]:
    """Return parts (P_c, d), the sizes of all sets, and d, of an Arrow column of lists of vectors.

    d is None if there is no vector.
    """
    parts: list[Array] = []
    sizes: list[Array] = [np.empty(0, np.int64)]
    dim: int | None = None
    for first, kind, lengths, vectors in _rows(column, "is null"):
        starts = np.concatenate(([0], np.cumsum(lengths)))
        _refuse_nulls(vectors, starts, first)
        widths, values = _open(vectors, kind)
        sizes.append(lengths)
        if not len(widths):
            dim = getattr(vectors.type, "list_size", dim)
            continue
        dim = int(widths[0]) if dim is None else dim
        if (odd := np.flatnonzero((widths != dim) | (widths == 0))).size:
            number, element = locate(int(odd[0]), starts, first)
            what, remedy = f"has {widths[odd[0]]} numbers, the others have {dim}", "give all elements the same features"
            if dim == 0:
                what, remedy = "has 0 features", "vectors must have at least one"
            raise input_error(number, what, remedy, element=element)
        _refuse_nulls(values, starts, first, dim=dim)
        parts.append(_numbers(values, kind).reshape(-1, dim))
    return parts, np.concatenate(sizes), dim


def arrow_scalars(column: Any) -> tuple[Array, Array]:
    """Return all values, and the length of each row, of an Arrow column of lists of numbers, the weights."""
    parts: list[Array] = [np.empty(0, np.float32)]
    sizes: list[Array] = [np.empty(0, np.int64)]
    for first, kind, lengths, values in _rows(column, "has weights that are null"):
        _refuse_nulls(values, np.concatenate(([0], np.cumsum(lengths))), first, "has a weight that is null")
        parts.append(_numbers(values, kind))
        sizes.append(lengths)
    return np.concatenate(parts), np.concatenate(sizes)


def arrow_lists(offsets: Array, points: Array) -> Any:
    """Return a LargeListArray of FixedSizeList over the memory of offsets and points."""
    pa = _import_arrow()
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(points.reshape(-1)), points.shape[1])
    return pa.LargeListArray.from_arrays(pa.array(offsets), vectors)


def _rows(column: Any, null: str) -> Iterator[tuple[int, Any, Array, Any]]:
    """Yield of each chunk its first row, the type of the column, the length of each row, and the values of all."""
    pa = _import_arrow()
    if library_of(column) == "polars" and hasattr(column, "to_arrow"):
        column = column.to_arrow()
    elif library_of(column) != "pyarrow" and hasattr(column, "__arrow_array__"):
        column = column.__arrow_array__()
    if not isinstance(column, pa.Array | pa.ChunkedArray):
        raise InputError(f"{kind_of(column)} is not an Arrow column", "pass an Array or a ChunkedArray")
    first = 0
    for chunk in column.chunks or [pa.array([], column.type)] if isinstance(column, pa.ChunkedArray) else [column]:
        lengths, values = _open(chunk, column.type)
        if (row := _first_null(chunk)) is not None:
            raise input_error(first + row, null, "drop it, or put a value in its place")
        yield first, column.type, lengths, values
        first += len(chunk)


def _open(array: Any, kind: Any) -> tuple[Array, Any]:
    """Return the length of each list, and the values of all of them.

    `values` of a sliced array are those of the whole: the slice is cut out here.
    """
    pa = _import_arrow()
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
    raise _not_lists(kind)


def _not_lists(kind: Any) -> InputError:
    return InputError(
        f"cannot read sets from a column of type {kind}",
        "points are list<fixed_size_list<float>[d]> or list<list<float>>, one row a set, and weights are list<float>; "
        "scalars are vectors of length 1",
    )


def _first_null(array: Any) -> int | None:
    return int(np.argmax(array.is_null().to_numpy(zero_copy_only=False))) if array.null_count else None


def _refuse_nulls(values: Any, starts: Array, first: int, what: str = "is null", dim: int | None = None) -> None:
    """Refuse a null among the elements of sets that begin at `starts`, or among their `dim` features."""
    if (row := _first_null(values)) is not None:
        number, element = locate(row // (dim or 1), starts, first)
        feature = None if dim is None else row % dim
        raise input_error(number, what, "drop it, or put a value in its place", element=element, feature=feature)


def _numbers(values: Any, kind: Any) -> Array:
    types = _import_arrow().types
    if not (types.is_floating(values.type) or types.is_integer(values.type) or types.is_boolean(values.type)):
        raise _not_lists(kind)
    return np.asarray(values.to_numpy(zero_copy_only=False))


# ---- tables of pandas and polars

# The number of each row's group, the keys, the names of the key columns and of the numeric ones, and a way to read one.
_Groups: TypeAlias = tuple[Array, list[Any], list[Any], list[Any], Callable[[Any], Array]]


def group_arrays(frame: Any, by: Any, columns: Any, weights: Any) -> tuple[Array, Array, Array | None, list[Any]]:
    """Return (P, d) points in the order of their sets, (n,) sizes, (P,) weights and n keys of a table in long form."""
    groups_of = {"pandas": _pandas_groups, "polars": _polars_groups}.get(library_of(frame))
    if groups_of is None:
        raise InputError(f"from_groups takes a pandas or polars DataFrame, not {kind_of(frame)}", argument="frame")
    codes, keys, used, numeric, column = groups_of(frame, by)
    if columns is None:
        columns = [name for name in numeric if name not in used and name != weights]
    elif isinstance(columns, str) or not isinstance(columns, Sequence):
        raise input_error("columns", f"must be a list of column names, not {columns!r:.80}")
    if not len(columns):
        problem = "no numeric columns are left for the features"
        raise InputError(problem, "name them with columns=[...]", argument="columns")
    features = [column(name) for name in columns]
    for name, x in zip(columns, features, strict=True):
        checks.check_numeric(x, f"column {name!r}", "columns")
    ordered: Any = slice(None)
    if np.any(codes[1:] < codes[:-1]):
        small = codes.astype(np.min_scalar_type(len(keys)))  # NumPy sorts 16-bit numbers by radix, ten times as fast
        ordered = np.argsort(small, kind="stable")
    flat = None if weights is None else column(weights)[ordered]
    return columns_to_points(features, ordered), np.bincount(codes), flat, keys


def columns_to_points(columns: Sequence[Array], order: Any = ...) -> Array:
    """Return columns (P,) as points (P, d) of the dtype that holds them all, the rows in this order."""
    points = np.empty((len(columns[0]), len(columns)), np.result_type(*columns))
    for k, column in enumerate(columns):
        points[:, k] = column[order]
    return points


def _pandas_groups(frame: Any, by: Any) -> _Groups:
    import pandas as pd

    is_number, is_bool = pd.api.types.is_numeric_dtype, pd.api.types.is_bool_dtype
    grouped = None
    if hasattr(frame, "ngroup"):
        grouped, frame, by = frame, frame.obj, _only_key(by, frame.keys)
    if not isinstance(frame, pd.DataFrame):
        raise InputError(f"from_groups takes a DataFrame, not {kind_of(frame)}", argument="frame")
    numeric = [name for name, dtype in frame.dtypes.items() if is_number(dtype) and not is_bool(dtype)]
    if grouped is not None and len(selected := grouped.head(0).columns) < len(frame.columns):
        numeric = list(selected)  # df.groupby("k")[["x", "y"]]

    def column(name: Any) -> Array:
        _check_known([name], list(frame.columns))
        series = frame[name]
        _refuse_missing(series.isna().to_numpy(), f"column {name!r}")
        _check_number(name, series.dtype, is_number(series.dtype))
        array = series.to_numpy()
        return np.asarray(array if array.dtype.kind != "O" else array.astype(np.float64))

    names = by if isinstance(by, list) else [by]
    plain = all(isinstance(name, str | int | tuple) for name in names)
    if grouped is not None and not (plain and all(name in frame.columns for name in names)):
        # Grouped by a level, a function or an array: pandas numbers the groups; those without rows have no number.
        groups = grouped.ngroup().to_numpy()
        _refuse_missing(~(groups >= 0), "the group key")  # -1 or NaN
        codes, order = pd.factorize(groups)
        all_keys = [key for key, rows in grouped if len(rows)]
        return codes, [all_keys[i] for i in order], [], numeric, column
    names = _key_names(by, list(frame.columns))
    codes = np.empty(0, np.int64)
    for name in names:
        _refuse_missing(frame[name].isna().to_numpy(), f"column {name!r}")
        # One column after the other, numbered anew each time: the numbers stay below n * n.
        part, unique = pd.factorize(frame[name])
        codes = part if name is names[0] else pd.factorize(codes * len(unique) + part)[0]
    # The first row of each group: groups are numbered in the order in which they appear.
    first = np.flatnonzero(np.diff(np.maximum.accumulate(codes), prepend=-1)) if len(codes) else codes
    keys = [frame[name].iloc[first].tolist() for name in names]
    return codes, list(zip(*keys, strict=True)) if isinstance(by, list) else keys[0], names, numeric, column


def _polars_groups(frame: Any, by: Any) -> _Groups:
    import polars as pl

    if isinstance(frame, pl.DataFrame):
        one, labels = not isinstance(by, list), frame.select(_key_names(by, frame.columns))
    elif not hasattr(frame, "df") or not hasattr(frame, "by"):
        problem = f"from_groups takes a DataFrame or its group_by, not {kind_of(frame)}"
        raise InputError(problem, "collect() a lazy one", argument="frame")
    elif getattr(frame, "predicates", None):
        raise InputError("a group-by with having() is not taken", "filter the table first", argument="frame")
    else:
        given = _only_key(by, frame.by)
        by = [name for part in given for name in ([part] if isinstance(part, str | pl.Expr) else part)]
        one = len(by) + len(frame.named_by) == 1 and not any(isinstance(part, list | tuple) for part in given)
        frame, labels = frame.df, frame.df.select(*by, **frame.named_by)

    def column(name: Any) -> Array:
        _check_known([name], frame.columns)
        series = frame.get_column(name)
        _check_number(name, series.dtype, series.dtype.is_numeric() or series.dtype == pl.Boolean)
        _refuse_missing(missing(series), f"column {name!r}")
        return np.asarray((series.cast(pl.Float64) if series.dtype.is_decimal() else series).to_numpy())

    def missing(series: Any) -> Array:
        null = series.is_null() | series.is_nan() if series.dtype.is_float() else series.is_null()
        return np.asarray(null.to_numpy())

    for name in labels.columns:
        _refuse_missing(missing(labels.get_column(name)), f"column {name!r}")
    # The first row of the group of each row; the row numbers of those first rows, counted, number the groups.
    row = "__slosh_row__"
    first_of_row = labels.with_row_index(row).select(pl.col(row).first().over(labels.columns)).to_series().to_numpy()
    is_first = first_of_row == np.arange(len(first_of_row))
    codes = (np.cumsum(is_first) - 1)[first_of_row]
    keys = labels.filter(pl.Series(is_first, dtype=pl.Boolean)).rows()
    numeric = [name for name, dtype in frame.schema.items() if dtype.is_numeric()]
    return codes, [key[0] for key in keys] if one else keys, labels.columns, numeric, column


def _only_key(by: Any, grouped_by: Any) -> Any:
    if by is not None:
        raise InputError("this table is grouped already", "pass by=None", argument="by")
    return grouped_by


def _key_names(by: Any, known: Sequence[Any]) -> list[Any]:
    if by is None:
        raise input_error("by", "is missing", "name the column that says which set a row belongs to")
    names = by if isinstance(by, list) else [by]
    _check_known(names, known)
    return names


def _check_known(names: Sequence[Any], known: Sequence[Any]) -> None:
    for name in names:
        if not isinstance(name, Hashable):
            remedy = "group the table by it, and pass the group-by object"
            raise InputError(f"{name!r:.80} is not a column name", remedy, argument="by")
        if list(known).count(name) != 1:
            wrong = "more than one column is" if name in known else "no column is"
            raise InputError(f"{wrong} named {name!r}", f"the columns are {list(known)!r:.200}", argument="columns")


def _check_number(name: Any, dtype: Any, is_number: bool) -> None:
    if not is_number:
        raise input_error(f"column {name!r}", f"is of dtype {dtype}, not numbers", "leave it out of columns")


def _refuse_missing(null: Array, what: str) -> None:
    if null.any():
        problem = f"row {int(np.argmax(null))} of {what} is null or NaN"
        raise InputError(problem, "drop the row, or put a value in its place", argument="frame")


# ---- weights


def join_weights(weights: Any, sizes: Array) -> Array | None:
    """Return the weights of all sets in one array, from an array (N_i,) for each set or a column of lists, or None."""
    if weights is None:
        return None
    if library_of(weights) in ("polars", "pyarrow"):
        flat, lengths = arrow_scalars(weights)
    else:
        arrays = [checks.as_numbers(given, i, "weights") for i, given in enumerate(weights)]
        for i, array in enumerate(arrays):
            if array.ndim != 1:
                remedy = "give one array of shape (N,) for each set"
                raise input_error(i, f"must be 1-D, not {array.ndim}-D", remedy, argument="weights")
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
    if library in ("pandas", "polars") and name != "Series":
        remedy = "Sets.from_groups(frame, by=...) makes a set of the rows of each group"
        raise InputError(f"a {library} {name} is a table, not a collection of sets", remedy)
    if library == "pandas" and not hasattr(data.dtype, "pyarrow_dtype"):
        return kind.from_list(data.tolist(), dim=dim, origin=origin)
    if library == "pyarrow" and hasattr(data, "column_names"):
        raise InputError(f"an Arrow {name} has several columns", "pass the one that holds the sets")
    if library:
        return kind.from_arrow(data.array if library == "pandas" else data, dim=dim, origin=origin)
    if isinstance(data, Iterator):
        remedy = "pass list(x), or go through it with Sets.stream(x)"
        raise InputError(f"{kind_of(data)} can be read only once", remedy)
    if not isinstance(data, np.ndarray) and not hasattr(data, "__array__") and not hasattr(data, "__array_interface__"):
        remedy = "pass a list of (N, d) arrays, or a 3-D array"
        raise InputError(f"{kind_of(data)} is not a collection of sets", remedy)
    array = checks.as_array(data, "the collection")
    if array.dtype.kind == "O" and array.ndim == 1:
        return kind.from_list(array.tolist(), dim=dim, origin=origin)
    checks.check_numeric(array, "the collection")
    if array.ndim != 3:
        raise checks.not_a_collection(array.ndim)
    return kind.from_padded(array, origin=origin)
