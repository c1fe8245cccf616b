"""The way of the user's data into plain arrays: arrays, tensors, Arrow columns and tables in, numpy arrays out.

Nothing here knows `Sets`; `sets.py` joins what comes out. None of the other libraries is imported before one of its
objects was given.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[Any]
Origin: TypeAlias = ArrayLike | Literal["auto"] | None

BLOCK = 1 << 20  # values looked at in one go: bounded memory for memory maps, and a block stays in the cache
FLOAT32_MAX = float(np.finfo(np.float32).max)
_LOSS = 1e-4  # the part of a feature's spread that float32 may round away unsaid


class PrecisionWarning(UserWarning):
    """float32 cannot hold the detail of a feature: its values lie far from zero, next to their spread."""


# ---- any object


def library_of(x: Any) -> str:
    """Which of the libraries that we know, but do not import, the class of x comes from; "" if none."""
    for base in type(x).__mro__:
        root = base.__module__.partition(".")[0]
        if root in ("pandas", "polars", "pyarrow", "torch"):
            return root
    return ""


def as_array(x: Any, name: str) -> Array:
    """x as a plain numpy array of any dtype and shape; without a copy if it is one."""
    if type(x) is np.ndarray:
        return x
    if isinstance(x, np.ma.MaskedArray):
        raise ValueError(
            f"{name}: masked arrays are not taken; drop the masked elements, e.g. x.data[~x.mask.any(axis=1)]"
        )
    if library_of(x) == "torch":
        return tensor_array(x, name)
    try:
        return np.asarray(x)
    except ValueError:
        raise ValueError(_ragged(x, name)) from None


def _ragged(x: Any, name: str) -> str:
    """Why numpy could not make an array of x."""
    try:
        lengths = [len(row) for row in x]
    except TypeError:
        return f"{name}: numbers and rows are mixed; a set must be of shape (N, d)"
    odd = next((j for j, length in enumerate(lengths) if length != lengths[0]), None)
    if odd is None:
        return f"{name}: its rows are not plain numbers; a set must be of shape (N, d)"
    return f"{name}: row {odd} has {lengths[odd]} numbers, row 0 has {lengths[0]}; give all rows the same features"


def check_numeric(array: Array, name: str) -> None:
    """Refuse what is not real numbers."""
    kind = array.dtype.kind
    if kind in "fiub":
        return
    if kind == "c":
        raise ValueError(
            f"{name}: complex numbers; give their parts as features, np.concatenate([x.real, x.imag], axis=1)"
        )
    if kind == "O":
        raise ValueError(f"{name}: dtype object, not numbers; convert it, e.g. x.astype(float), with no None in it")
    raise ValueError(f"{name}: dtype {array.dtype}, not numbers; convert it to a float dtype first")


# ---- to float32


def checked_origin(origin: ArrayLike, dim: int) -> NDArray[np.float64]:
    """origin as (dim,) float64."""
    array = as_array(origin, "origin")
    if array.dtype.kind not in "fiu" or array.shape != (dim,) or not np.isfinite(array).all():
        raise ValueError(f'origin must be {dim} finite numbers, one for each feature, or "auto", not {origin!r:.80}')
    return array.astype(np.float64)


def locate(element: int, offsets: Array, first: int) -> str:
    """Set and element, in words, of a row of the joined points."""
    i = int(np.searchsorted(offsets, element, side="right")) - 1
    return f"set {first + i}, element {element - int(offsets[i])}"


def to_float32(
    parts: Sequence[Array], offsets: Array, origin: Origin = None, first: int = 0, warn: bool = True
) -> tuple[NDArray[np.float32], NDArray[np.float64] | None]:
    """(P, d) float32 of all parts less the origin, checked to be finite, and the origin.

    One pass, block by block, and a look at a sample for the loss by rounding. A single float32 array is returned as it
    is. Errors call the set at offsets[0] `first`.
    """
    dim = parts[0].shape[1]
    exact = all(np.can_cast(dtype, np.float32) for dtype in {part.dtype for part in parts})
    auto = isinstance(origin, str) and origin == "auto"
    look = auto or (warn and not (exact and origin is None))
    sample = _sample(parts, int(offsets[-1])) if look else np.empty((dim, 0))
    shift: NDArray[np.float64] | None = None
    if origin is not None:
        shift = _middle(sample) if auto else checked_origin(origin, dim)  # type: ignore[arg-type]
    keep = len(parts) == 1 and shift is None and parts[0].dtype == np.float32 and parts[0].flags.c_contiguous
    points = parts[0] if keep else np.empty((int(offsets[-1]), dim), np.float32)
    row = 0
    for block in _blocks(parts):
        piece = points[row : row + len(block)]
        if not keep:
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                if shift is not None:
                    block = block.astype(np.float64) - shift
                piece[...] = block
        if not np.isfinite(piece).all():
            j, k = (int(axis[0]) for axis in np.nonzero(~np.isfinite(piece)))
            where = f"{locate(row + j, offsets, first)}, feature {k}: {block[j, k]}"
            if np.isfinite(block[j, k]):
                raise ValueError(f"{where} overflows float32 (largest {FLOAT32_MAX:.3g}): scale the feature down")
            raise ValueError(f"{where} is not a finite number; drop the element, or put a number in its place")
        row += len(block)
    if warn and sample.size:
        _warn_of_rounding(sample, shift)
    return points, shift


def _blocks(parts: Sequence[Array]) -> Iterator[Array]:
    """The rows of all parts in order, about BLOCK values at a time: large parts as views, small ones joined."""
    rows = max(1, BLOCK // parts[0].shape[1])
    small: list[Array] = []
    count = 0
    for part in parts:
        if len(part) >= rows:
            if small:
                yield np.concatenate(small)
                small, count = [], 0
            yield from (part[i : i + rows] for i in range(0, len(part), rows))
            continue
        small.append(part)
        count += len(part)
        if count >= rows:
            yield np.concatenate(small)
            small, count = [], 0
    if small:
        yield small[0] if len(small) == 1 else np.concatenate(small)


def _sample(parts: Sequence[Array], total: int) -> NDArray[np.float64]:
    """(d, at most 4096) of the elements, evenly spaced."""
    dim = parts[0].shape[1]
    step = -(-total // min(max((1 << 18) // dim, 64), 4096)) or 1
    taken, row = [np.empty((0, dim))], 0
    for part in parts:
        if -row % step < len(part):
            taken.append(part[-row % step :: step])
        row += len(part)
    return np.ascontiguousarray(np.concatenate(taken).T, dtype=np.float64)


def _median_and_spread(x: Array) -> tuple[Array, Array]:
    """Median and spread of each row of x: quartiles, since stray values would stretch the range or the deviation.

    The spread is scaled to be the standard deviation if the values are normal, and is that where more than half of
    the values are the same.
    """
    n = x.shape[1]
    low, high = n // 4, n - 1 - n // 4
    ordered = np.partition(x, (low, n // 2, high), axis=1)
    with np.errstate(over="ignore", invalid="ignore"):  # values that do not fit are reported later, with their place
        spread = (ordered[:, high] - ordered[:, low]) / 1.349
        return ordered[:, n // 2], np.where(spread > 0, spread, x.std(axis=1))


def _middle(sample: Array) -> NDArray[np.float64]:
    """The median of each row, rounded to about a tenth of the spread, so that it prints well."""
    if not sample.size:
        return np.zeros(len(sample))
    result = []
    for middle, spread in zip(*(array.tolist() for array in _median_and_spread(sample)), strict=True):
        if not np.isfinite(middle) or not np.isfinite(spread):
            result.append(0.0)
        else:
            unit = spread or abs(middle) * 1e-5 or 1.0
            result.append(round(middle, 1 - int(np.floor(np.log10(unit)))) + 0.0)  # + 0.0 makes 0 of -0
    return np.array(result)


def _warn_of_rounding(sample: Array, shift: Array | None) -> None:
    """Warn if float32 takes more than _LOSS of the spread of a feature.

    The loss is what 95 % stay below: a few huge values must not stand for all. A feature that is constant but for the
    noise of 64-bit arithmetic, or that is noise beside the others in 32 bits, has nothing to lose.
    """
    n = sample.shape[1]
    if n < 8:  # too few to tell a spread
        return
    x = sample if shift is None else sample - shift[:, None]
    with np.errstate(over="ignore", under="ignore"):
        loss = np.abs(x - x.astype(np.float32))
    loss = np.partition(loss, int(0.95 * (n - 1)), axis=1)[:, int(0.95 * (n - 1))]
    if not loss.any():
        return
    spread = _median_and_spread(x)[1]
    largest = np.abs(sample).max(axis=1)
    bad = (loss > _LOSS * spread) & (spread > 1e-12 * largest) & (loss > 2.0**-24 * spread.max())
    if not bad.any():
        return
    k = int(np.argmax(np.divide(loss, spread, out=np.zeros_like(loss), where=bad)))
    if largest[k] < 1e-30:
        remedy = "the values are too small for it; multiply all coordinates by a constant"
    elif shift is None:
        remedy = f'pass origin="auto", or an array of {len(x)} numbers, to subtract it before the conversion'
    else:
        remedy = f"pass an origin that is nearer to the values of this feature than {shift[k]:g}"
    warnings.warn(
        f"float32 rounds feature {k} by about {loss[k]:.2g} in the units of the data, {loss[k] / spread[k]:.2g} of its "
        f"spread ({spread[k]:.3g}): {remedy}",
        PrecisionWarning,
        stacklevel=user_level(),
    )


def user_level() -> int:
    """The stacklevel, for a warning of the caller's, of the first frame outside this package and scikit-learn."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in ("slosh", "sklearn"):
        level, frame = level + 1, frame.f_back
    return level


# ---- torch


def tensor_array(tensor: Any, name: str) -> Array:
    """A dense tensor as a numpy array, detached and on the CPU; memory is shared where torch allows."""
    if tensor.is_nested:
        raise ValueError(f"{name} is a nested tensor: pass it by itself, or its tensor.unbind()")
    if tensor.is_floating_point() and tensor.element_size() < 4 and str(tensor.dtype) != "torch.float16":
        tensor = tensor.float()  # numpy has no bfloat16
    try:
        return np.asarray(tensor.detach().cpu().numpy())
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"{name}: this tensor cannot become an array ({error}); make it dense first") from None


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
