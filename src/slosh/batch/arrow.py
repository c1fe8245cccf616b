"""Sets in Arrow batches: columns of points, weights and ids come in, columns of vectors go out.

One row is one set. Points are a list column of vectors, weights a list column of numbers. Lists of 32-bit vectors are
embedded where they lie in memory: Arrow's offsets are the offsets of `Sets`.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from ..data.checks import checked_flag, kind_of, place_of
from ..data.preprocess import Preprocess
from ..data.sets import Sets
from ..embed.base import SetTransformer
from ..engines.spec import IndexSpec, is_fitted
from ..errors import InputError, import_extra
from ..index import SetIndex
from ..native import kernel
from ..native.arrays import Float32, Float64
from ..readers.files import list_names
from ..readers.tables import EXPORT_KEY, list_depth

VECTOR = "vector"
"""The name of the column of vectors."""
NO_SETS = "no column holds sets"
"""The problem of a table in which no column is a list of vectors."""
RAY_TENSORS = ("ray.data.arrow_tensor", "ray.data.arrow_tensor_v2", "arrow.fixed_shape_tensor")
RAY_RAGGED = "ray.data.arrow_variable_shaped_tensor"


class Columns(NamedTuple):
    """The columns of a batch that are read: points, weights (or None), ids (or None)."""

    points: str
    weights: str | None
    id: str | None

    @property
    def used(self) -> list[str]:
        """Points and weights: what vectors take the place of."""
        return [self.points, *([self.weights] if self.weights else [])]


class Embedder(NamedTuple):
    """What turns sets into vectors: taken from a specification, an index, or an embedding."""

    dim: int
    origin: Float64 | None
    preprocess: Preprocess
    embedding: SetTransformer

    @classmethod
    def of(cls, spec: Any, n_jobs: int | None) -> Embedder:
        """Return the embedder of what a user gave, with its own number of threads."""
        kernel.threads(n_jobs)
        if isinstance(spec, SetIndex):
            spec = spec.spec
        if isinstance(spec, IndexSpec):
            parts = (spec.dim, spec.origin, spec.preprocess, spec.embedding)
        elif isinstance(spec, SetTransformer) and is_fitted(spec):
            parts = (spec.n_features_in_, spec.origin_, Preprocess(), spec)
        else:
            unfitted = isinstance(spec, SetTransformer)
            problem = f"spec={spec!r:.60} is not fitted" if unfitted else f"spec is {kind_of(spec)}"
            remedy = "give a fitted embedding, what slosh.batch.learn returned, or index.spec"
            raise InputError(problem, remedy, argument="spec")
        embedding = copy(parts[3])  # the user's own keeps its threads
        if hasattr(embedding, "n_jobs"):
            embedding.n_jobs = n_jobs
        return cls(parts[0], parts[1], parts[2], embedding)

    def vectors(self, sets: Sets) -> Float32:
        """Return the vectors of sets of this dimension and origin."""
        prepared = sets if self.preprocess.is_identity else self.preprocess.apply(sets)
        return np.asarray(self.embedding.embed(prepared), np.float32)


def embed(
    batch: Any,
    spec: Any,
    *,
    columns: str | None = None,
    weights: str | bool | None = None,
    vectors: str = VECTOR,
    fixed_size: bool = True,
    n_jobs: int | None = 1,
) -> Any:
    """Return the batch with a column of vectors in place of the points; all other columns are carried through.

    batch : a `RecordBatch` or `Table` of pyarrow. One row is one set: a list of vectors, list<fixed_size_list<float>>,
        list<list<float>> or a tensor column of Ray. Lists of float32 are not copied.
    spec : what embeds: a fitted embedding, what `slosh.batch.learn` returned, `index.spec`, or an index. All but an
        index can be pickled and sent to workers.
    columns : the column of points; None takes the only one that holds lists of vectors.
    weights : the column of weights, lists of numbers; None or False is no weights (but for an export of an index).
    vectors : the name of the new column, fixed_size_list<float>.
    fixed_size : False makes it list<float>, for programs that do not know lists of a fixed size, such as Spark.
    n_jobs : threads. One, since whoever cuts data into batches runs several at a time; -1 is all cores.

    The vectors are those of `embedding.transform`, the same bits in any batch.

    >>> import numpy as np, pyarrow as pa, slosh
    >>> batch = pa.table({"id": ["a", "b"], "points": [[[0.0, 1.0]], [[2.0, 3.0], [4.0, 5.0]]]})
    >>> embedding = slosh.embed.SlicedWasserstein(n_slices=4, n_quantiles=2).fit([np.zeros((1, 2))])
    >>> slosh.batch.embed(batch, embedding).schema
    id: string
    vector: fixed_size_list<item: float>[8]
      child 0, item: float
    """
    pa = import_extra("pyarrow", "slosh.batch.embed", "tables")
    if not isinstance(batch, pa.RecordBatch | pa.Table):
        remedy = "give a RecordBatch or a Table of pyarrow; of pandas pa.Table.from_pandas makes one"
        raise InputError(f"batch is {kind_of(batch)}", remedy, argument="batch")
    embedder = Embedder.of(spec, n_jobs)
    chosen = find_columns(batch.schema, columns, weights)
    checked_flag("fixed_size", fixed_size)
    kept = [name for name in batch.schema.names if name not in chosen.used]
    if vectors in kept:
        remedy = 'give another name, e.g. vectors="embedding"'
        raise InputError(f"there is a column {vectors!r} already", remedy, argument="vectors")
    numbers = embedder.vectors(sets_of(batch, chosen, embedder.dim, embedder.origin))
    column = _lists(pa, numbers, fixed_size)
    fields = [*(batch.schema.field(name) for name in kept), pa.field(vectors, column.type)]
    arrays = [*(batch.column(name) for name in kept), column]
    return type(batch).from_arrays(arrays, schema=pa.schema(fields, metadata=batch.schema.metadata))


def _lists(pa: Any, numbers: Float32, fixed_size: bool) -> Any:
    """Return rows as lists on the same memory."""
    flat = pa.array(np.ascontiguousarray(numbers).reshape(-1))
    if fixed_size:
        return pa.FixedSizeListArray.from_arrays(flat, numbers.shape[1])
    ends = np.arange(len(numbers) + 1, dtype=np.int64) * numbers.shape[1]
    if ends[-1] <= np.iinfo(np.int32).max:
        return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), flat)
    problem = f"{len(numbers):,} vectors of {numbers.shape[1]} numbers are too many for one column of lists"
    raise InputError(problem, "give smaller batches", argument="batch")


def find_columns(schema: Any, columns: Any, weights: Any, id_column: str | None = None) -> Columns:
    """Return the columns of a schema that hold points, weights and ids; InputError says what there is instead."""
    names = list(schema.names)
    points = columns
    if isinstance(points, Sequence) and not isinstance(points, str) and len(points) == 1:
        points = points[0]
    if points is None:
        lists = [field.name for field in schema if _holds_sets(field.type)]
        if len(lists) != 1:
            found = f"several columns hold sets, {lists!r:.200}" if lists else NO_SETS
            remedy = (
                "name one with columns=" if lists else f"points are lists of vectors; the columns are {_typed(schema)}"
            )
            raise InputError(found, remedy, argument="columns")
        points = lists[0]
    if weights is None and EXPORT_KEY in (schema.metadata or {}) and "weights" in names:
        weights = "weights"
    weights = None if weights is False else weights
    for argument, name in (("columns", points), ("weights", weights), ("id_column", id_column)):
        if name is not None and (not isinstance(name, str) or name not in names):
            raise InputError(f"no column {name!r:.100}", f"there are {list_names(names)}", argument=argument)
    if not _holds_sets(schema.field(points).type):
        problem = f"column {points!r} is of type {schema.field(points).type}, and holds no sets"
        raise InputError(problem, f"points are lists of vectors; the columns are {_typed(schema)}", argument="columns")
    if weights is not None and (weights == points or list_depth(schema.field(weights).type) != 1):
        problem = f"column {weights!r} is of type {schema.field(weights).type}, and holds no weights"
        raise InputError(problem, "weights are lists of numbers, one for each element", argument="weights")
    return Columns(points, weights, id_column)


def _typed(schema: Any) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)[:400]


def _holds_sets(kind: Any) -> bool:
    name = getattr(kind, "extension_name", "")
    return name in (*RAY_TENSORS, RAY_RAGGED) or list_depth(kind) == 2


def sets_of(batch: Any, columns: Columns, dim: int | None, origin: Any) -> Sets:
    """Return the sets of a batch, checked. An error names the row, and the id where there is a column of ids."""
    weights = None if columns.weights is None else batch.column(columns.weights)
    try:
        return Sets.from_arrow(_without_tensors(batch.column(columns.points)), weights, dim=dim, origin=origin)
    except InputError as error:
        if error.set is None:
            raise InputError(f"column {columns.points!r}: {error.problem}", error.remedy, argument="batch") from None
        raise _in_row(error, batch, columns) from None


def _in_row(error: InputError, batch: Any, columns: Columns) -> InputError:
    row = int(error.set or 0)
    named = columns.id or ("id" if "id" in batch.schema.names else None)
    value = None if named is None else batch.column(named)[row].as_py()
    about = f"row {row}" + ("" if value is None else f" (id {str(value)!r:.80})")
    column = columns.weights if error.argument == "weights" else columns.points
    where = {"element": error.element, "feature": error.feature}
    return InputError(
        f"column {column!r}, {place_of(about, **where)} {error.what}",
        error.remedy,
        argument="batch",
        set=row,
        id=None if value is None else str(value),
        what=error.what,
        **where,
    )


def plain_lists(table: Any) -> Any:
    """Return a table whose tensor columns are lists, which any program reads."""
    for number, field in enumerate(table.schema):
        if getattr(field.type, "extension_name", "") in (*RAY_TENSORS, RAY_RAGGED) and _is_of_sets(field.type):
            table = table.set_column(number, field.name, _without_tensors(table.column(number)))
    return table


def _is_of_sets(kind: Any) -> bool:
    shape = getattr(kind, "shape", None)
    return len(shape) == 2 if shape is not None else getattr(kind, "ndim", 0) == 2


def _without_tensors(column: Any) -> Any:
    """Return a tensor column of Ray or Arrow as lists of vectors on the same memory; another column as it is."""
    import pyarrow as pa

    name = getattr(column.type, "extension_name", "")
    if name not in (*RAY_TENSORS, RAY_RAGGED):
        return column
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    made = [_tensor_lists(pa, chunk, name) for chunk in chunks]
    return pa.chunked_array(made) if made else pa.array([], pa.list_(pa.list_(pa.float32())))


def _tensor_lists(pa: Any, chunk: Any, name: str) -> Any:
    storage = chunk.storage
    if chunk.null_count:
        raise InputError("a row is null", "drop it, or put a set in its place", set=int(np.argmax(chunk.is_null())))
    if name == RAY_RAGGED:
        shapes = np.array(storage.field("shape").to_pylist() or np.empty((0, 2)), dtype=object)
        if shapes.ndim != 2 or shapes.shape[1] != 2 or len(set(shapes[:, 1])) > 1:
            raise InputError("its tensors are not all (N, d) with the same d", "give one (N, d) array a row")
        data = storage.field("data")
        sizes, dim = shapes[:, 0].astype(np.int64), int(shapes[0, 1]) if len(shapes) else 1
    else:
        shape = tuple(chunk.type.shape)
        if len(shape) != 2:
            raise InputError(f"its tensors are of shape {shape}", "give one (N, d) array a row")
        data, sizes, dim = storage, np.full(len(chunk), shape[0], np.int64), int(shape[1])
    vectors = pa.FixedSizeListArray.from_arrays(data.flatten(), dim)
    return pa.LargeListArray.from_arrays(pa.array(np.concatenate(([0], np.cumsum(sizes)))), vectors)
