"""Sets, the ragged container: the points of all sets in one float32 array, and the offsets where each set starts.

Collections of the user's come in, by way of `convert.py`, and every check of them is made here or in `checks.py`. A
`Sets` is finite, of one dimension and without empty sets, so no later step looks again.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import EllipsisType
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from ..native.arrays import Array, Float32, Float64, Int64
from . import checks, convert
from .batching import BATCH_POINTS, MAX_BATCH_SETS
from .checks import check_origin, input_error, kind_of
from .points import SetPoints, is_set_item
from .precision import Origin, to_float32, warn_of_scale
from .stream import stream_batches

__all__ = ["Sets", "as_sets", "check_origin"]


class Sets:
    """n sets of d-dimensional points, ragged: set i is `points[offsets[i]:offsets[i + 1]]`.

    points   (P, d) numbers; kept as float32, without a copy if they are float32 and C-contiguous
    offsets  (n + 1,) integers from 0 to P, increasing: no set is empty
    weights  (P,) numbers >= 0, not all zero in any set; None: each element of a set counts the same
    origin   (d,) numbers subtracted from the points in float64 before they become float32, or "auto" for the rounded
             median of each feature; it keeps the detail of coordinates that lie far from zero

    Treat the arrays as read-only: slices of a Sets share them.

    >>> Sets([[0, 0], [1, 0], [5, 5]], [0, 2, 3])
    Sets(2 sets, d=2, sizes 1..1.5..2)
    """

    __slots__ = ("offsets", "origin", "points", "weights")

    points: Float32
    offsets: Int64
    weights: Float32 | None
    origin: Float64 | None

    def __init__(
        self, points: ArrayLike, offsets: ArrayLike, weights: ArrayLike | None = None, *, origin: Origin = None
    ) -> None:
        array = checks.as_numbers(points, "points")
        if array.ndim != 2 or array.shape[1] == 0:
            remedy = "for scalars pass x[:, None]"
            raise input_error("points", f"must be of shape (P, d) with d > 0, not {array.shape}", remedy)
        self.offsets = checks.checked_offsets(offsets, len(array))
        self.points, self.origin = to_float32([array], self.offsets, origin)
        self.weights = None if weights is None else checks.checked_weights(weights, self.offsets)

    @classmethod
    def from_checked(cls, points: Array, offsets: Array, weights: Array | None, origin: Array | None) -> Sets:
        """Return a Sets of arrays that were checked before."""
        new = cls.__new__(cls)
        new.points, new.offsets, new.weights, new.origin = points, offsets, weights, origin
        return new

    @classmethod
    def from_parts(
        cls,
        parts: Sequence[Array],
        sizes: ArrayLike,
        weights: Array | None = None,
        origin: Origin = None,
        *,
        first: int = 0,
    ) -> Sets:
        """Join (P_i, d) arrays, numeric and of one d, into sets of `sizes`; errors call the first set `first`."""
        counts = np.asarray(sizes, np.int64)
        checks.check_filled(counts, first)
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        points, shift = to_float32(parts, offsets, origin, first)
        checked = None if weights is None else checks.checked_weights(weights, offsets, first)
        return cls.from_checked(points, offsets, checked, shift)

    @classmethod
    def from_list(
        cls,
        sets: Iterable[Any],
        weights: Iterable[ArrayLike] | None = None,
        *,
        dim: int | None = None,
        origin: Origin = None,
    ) -> Sets:
        """Return sets from arrays of shape (N_i, d), or nested lists; `weights` holds an array (N_i,) for each set.

        An empty list needs `dim`; otherwise `dim` is the number of features that the sets must have. Items of another
        Sets keep their weights and their origin; the elements of sets beside them without weights have the weight 1.

        >>> Sets.from_list([[[0.0, 0.0], [1.0, 0.0]], [[5.0, 5.0]]], weights=[[3, 1], [1]])
        Sets(2 sets, d=2, sizes 1..1.5..2, weighted)
        """
        if isinstance(sets, Sets):
            raise InputError("this is a Sets already", "use it as it is", argument="sets")
        _check_list("sets", sets)
        if weights is not None:
            _check_list("weights", weights)
        listed = list(sets)
        for i, x in enumerate(listed):
            if isinstance(x, Sets):
                raise input_error(i, "is a Sets, not an array", "join several with Sets.concat")
        if any(map(is_set_item, listed)):
            return cls._from_items(listed, weights, dim, origin)
        arrays = [checks.set_array(x, i) for i, x in enumerate(listed)]
        sizes = np.array([len(x) for x in arrays], dtype=np.int64)
        if arrays:
            checks.check_dims([x.shape[1] for x in arrays], dim)
        else:
            arrays = [np.empty((0, checks.known_dim(dim)), np.float32)]
        return cls.from_parts(arrays, sizes, convert.join_weights(weights, sizes), origin)

    @classmethod
    def from_item(cls, item: Any, number: int = 0) -> Sets:
        """Return a Sets of one set from an item of another, or a part or a copy; errors call it set `number`."""
        points = item.view(np.ndarray)
        if item.checked:
            return cls.from_checked(points, np.array([0, len(item)]), item.weights, item.origin)
        made = cls.from_parts([points], [len(item)], item.weights, first=number)
        return cls.from_checked(made.points, made.offsets, made.weights, item.origin)

    @classmethod
    def _from_items(
        cls, given: Sequence[Any], weights: Iterable[ArrayLike] | None, dim: int | None, origin: Origin
    ) -> Sets:
        """Join items of other Sets, with arrays or without; `weights` stand for their own.

        Beside items with weights, the elements of those without have the weight 1.
        """
        own = [x.weights if is_set_item(x) else None for x in given]
        mixed = weights is None and len({each is None for each in own}) == 2
        if weights is not None or mixed:
            given = [SetPoints.of(np.asarray(x), None, x.origin) if is_set_item(x) else x for x in given]
        joined = cls.concat(stream_batches(cls, given, sys.maxsize, sys.maxsize, dim, origin))
        if mixed:
            weights = [np.ones(n) if each is None else each for each, n in zip(own, joined.sizes, strict=True)]
        if weights is None:
            return joined
        flat = checks.checked_weights(convert.join_weights(weights, joined.sizes), joined.offsets)  # type: ignore[arg-type]
        return cls.from_checked(joined.points, joined.offsets, flat, joined.origin)

    @classmethod
    def from_padded(
        cls,
        array: Any,
        lengths: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        *,
        origin: Origin = None,
    ) -> Sets:
        """Return sets from an array (n, max, d): the first `lengths[i]` elements of set i, or those of `mask`.

        `mask` is boolean (n, max) and need not be a prefix; with neither, all sets are of size max. `weights` is
        (n, max). The padding is never looked at; errors count the elements without it.

        >>> Sets.from_padded(np.zeros((3, 5, 2)), lengths=[1, 4, 5])
        Sets(3 sets, d=2, sizes 1..4..5)
        """
        x = checks.as_numbers(array, "the padded array")
        if x.ndim != 3 or x.shape[2] == 0:
            what = f"must be of shape (n, max, d) with d > 0, not {x.shape}"
            raise input_error("the padded array", what, argument="array")
        n, width, dim = x.shape
        there = checks.padding_mask(n, width, lengths, mask)
        w = None if weights is None else checks.as_array(weights, "weights")
        if w is not None and w.shape != (n, width):
            raise input_error("weights", f"of this padded array must be of shape {(n, width)}, not {w.shape}")
        if there is None:
            x, w, sizes = x.reshape(n * width, dim), None if w is None else w.reshape(-1), np.full(n, width)
        else:
            x, w, sizes = x[there], None if w is None else w[there], there.sum(axis=1)
        return cls.from_parts([x], sizes, w, origin)

    @classmethod
    def from_arrow(cls, column: Any, weights: Any = None, *, dim: int | None = None, origin: Origin = None) -> Sets:
        """Return sets from an Arrow column (Array or ChunkedArray) of lists of vectors: one row is one set.

        The type is list, large_list or fixed_size_list, of fixed_size_list or list, of numbers. One chunk of float32
        vectors is not copied. `weights` is a column of lists of numbers, or a list of arrays. Nulls are an error.

        >>> import pyarrow as pa
        >>> Sets.from_arrow(pa.array([[[0.0, 1.0]], [[2.0, 3.0], [4.0, 5.0]]]))
        Sets(2 sets, d=2, sizes 1..1.5..2)
        """
        parts, sizes, found = convert.arrow_vectors(column)
        if found is None and len(sizes):
            raise checks.empty_set(0)  # no set has a vector
        width = checks.known_dim(dim) if found is None else found
        if dim is not None and width != dim:
            raise checks.wrong_dim(0, width, dim)
        parts = [part for part in parts if len(part)] or [np.empty((0, width), np.float32)]
        return cls.from_parts(parts, sizes, convert.join_weights(weights, sizes), origin)

    @classmethod
    def from_groups(
        cls,
        frame: Any,
        by: Any = None,
        columns: Sequence[Any] | None = None,
        weights: Any = None,
        *,
        origin: Origin = None,
    ) -> tuple[Sets, list[Any]]:
        """Return sets and their keys from a pandas or polars table in long form: one row is one element.

        by       the column that names the set of each row, or a list of columns (the keys are then tuples);
                 None if `frame` is a group-by object
        columns  the features; by default all numeric columns but `by` and `weights`
        weights  the name of the column of weights

        Sets come in the order in which they first appear, elements in the order of their rows.

        >>> import pandas as pd
        >>> Sets.from_groups(pd.DataFrame({"shape": ["b", "a", "b"], "x": [0, 1, 2], "y": [0, 1, 4]}), by="shape")
        (Sets(2 sets, d=2, sizes 1..1.5..2), ['b', 'a'])
        """
        points, sizes, flat, keys = convert.group_arrays(frame, by, columns, weights)
        return cls.from_parts([points], sizes, flat, origin), keys

    @classmethod
    def from_torch(cls, tensor: Any, weights: Any = None, *, origin: Origin = None) -> Sets:
        """Return sets from a nested tensor of (N_i, d) tensors, or a tensor (n, N, d); `weights` as in from_list.

        A jagged float32 tensor on the CPU is not copied. For a padded tensor use `from_padded`, which takes tensors.

        >>> import torch
        >>> Sets.from_torch(torch.zeros(3, 5, 2))
        Sets(3 sets, d=2, sizes 5..5..5)
        """
        if checks.library_of(tensor) != "torch":
            problem = f"from_torch takes a tensor, not {kind_of(tensor)}"
            raise InputError(problem, "from_list takes lists of tensors", argument="tensor")
        if tensor.dim() != 3:
            raise checks.not_a_collection(tensor.dim())
        if not tensor.is_nested:
            n, size, dim = tensor.shape
            points, sizes = checks.as_array(tensor, "the tensor").reshape(n * size, dim), np.full(n, size)
        elif (jagged := convert.jagged_arrays(tensor)) is None:
            return cls.from_list(tensor.unbind(), weights, origin=origin)
        else:
            points, sizes = jagged
        checks.check_numeric(points, "the tensor")
        if points.shape[1] == 0:
            raise input_error("the tensor", "has sets of 0 features", "they must have at least one", argument="tensor")
        return cls.from_parts([points], sizes, convert.join_weights(weights, sizes), origin)

    @classmethod
    def stream(
        cls,
        sets: Iterable[Any],
        batch_points: int = BATCH_POINTS,
        *,
        batch_sets: int = MAX_BATCH_SETS,
        dim: int | None = None,
        origin: Origin = None,
    ) -> Iterator[Sets]:
        """Yield Sets of at most `batch_points` elements and `batch_sets` sets each, from (N_i, d) arrays or Sets.

        The iterable is read as batches are taken. A set with more elements is a batch of its own; a larger Sets is cut
        into views. Errors count sets from the start of the stream. `origin="auto"` is the median of the first batch,
        for all of them.

        >>> [len(batch) for batch in Sets.stream((np.zeros((40, 3)) for _ in range(5)), batch_points=100)]
        [2, 2, 1]
        """
        if not isinstance(sets, Iterable):
            raise input_error("sets", f"is {kind_of(sets)}", "pass an iterable of (N, d) arrays, or of Sets")
        limits = (checks.checked_count("batch_points", batch_points), checks.checked_count("batch_sets", batch_sets))
        return stream_batches(cls, [sets] if isinstance(sets, Sets) else sets, *limits, dim, origin)

    @classmethod
    def concat(cls, collections: Iterable[Sets]) -> Sets:
        """Return one Sets with the sets of all, which have one dimension and origin, and weights all or none.

        >>> a = Sets.from_list([[[0.0], [1.0]]])
        >>> len(Sets.concat([a, a, a]))
        3
        """
        given = list(collections)
        if not given:
            raise InputError("there is nothing to concatenate", "give at least one Sets", argument="collections")
        for i, one in enumerate(given):
            if not isinstance(one, Sets):
                problem = f"item {i} is {kind_of(one)}, not a Sets"
                raise InputError(problem, "pass Sets.from_list(item)", argument="collections")
        filled = [one for one in given if len(one)] or given[:1]  # without sets, weights and origin say nothing
        for one in given:
            if one.dim != given[0].dim:
                problem = f"Sets of {given[0].dim} and of {one.dim} features cannot be joined"
                raise InputError(problem, "all sets need the same features", argument="collections")
            check_origin(one, filled[0].origin)
        if len({one.weights is None for one in filled}) > 1:
            problem = "some of the sets have weights and some have none"
            raise InputError(problem, checks.ALL_OR_NO_WEIGHTS, argument="weights")
        if len(filled) == 1:
            return filled[0]
        offsets = np.concatenate(([0], np.cumsum(np.concatenate([one.sizes for one in filled]))))
        weights = [one.weights for one in filled if one.weights is not None]
        points = np.concatenate([one.points for one in filled])
        return cls.from_checked(points, offsets, np.concatenate(weights) if weights else None, filled[0].origin)

    @property
    def sizes(self) -> Int64:
        """The number of elements of each set, (n,) int64."""
        return np.diff(self.offsets)

    @property
    def dim(self) -> int:
        """The number of features, d."""
        return int(self.points.shape[1])

    @property
    def shape(self) -> tuple[int]:
        """(n,), the shape of a one-dimensional array: it tells scikit-learn to index a Sets as it does an array."""
        return (len(self),)

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        arrays = (self.points, self.offsets, self.weights, self.origin)
        return sum(array.nbytes for array in arrays if array is not None)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[Float32]:
        return (self._item(slice(a, b)) for a, b in itertools.pairwise(self.offsets.tolist()))

    def _item(self, span: slice) -> Float32:
        if self.weights is None and self.origin is None:
            return self.points[span]
        weights = None if self.weights is None else self.weights[span]
        return SetPoints.of(self.points[span], weights, self.origin, checked=True)

    def __repr__(self) -> str:
        parts = [f"{len(self)} set{'s' * (len(self) != 1)}", f"d={self.dim}"]
        if len(self):
            sizes = self.sizes
            parts.append(f"sizes {sizes.min()}..{np.median(sizes):g}..{sizes.max()}")
        parts += ["weighted"] * (self.weights is not None)
        return f"Sets({', '.join(parts)})"

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Float32: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | Sequence[bool] | Array | tuple[Any, ...]) -> Sets: ...

    def __getitem__(self, key: Any) -> Any:
        """Return the (N_i, d) points of set i, a view; for [a:b] a Sets that shares memory; otherwise `take`.

        The points of one set keep their weights and origin, as attributes: passed on as a set, it is the same set.
        """
        if isinstance(key, tuple) and len(key) == 2 and key[1] is Ellipsis:
            key = key[0]  # scikit-learn writes x[rows, ...]
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step != 1:
                return self.take(np.arange(start, stop, step))
            offsets = self.offsets[start : max(start, stop) + 1]
            a, b = int(offsets[0]), int(offsets[-1])
            weights = None if self.weights is None else self.weights[a:b]
            return self.from_checked(self.points[a:b], offsets - a, weights, self.origin)
        if hasattr(key, "__index__") and np.ndim(key) == 0 and not isinstance(key, bool):
            return self._item(self._span(key))
        return self.take(key)

    def weights_of(self, i: int) -> Float32 | None:
        """Return the (N_i,) weights of set i, a view; None if the sets have no weights."""
        span = self._span(i)
        return None if self.weights is None else self.weights[span]

    def _span(self, i: Any) -> slice:
        number, n = operator.index(i), len(self)
        if not -n <= number < n:
            raise IndexError(f"set {number} is out of range: there are {n} sets")
        return slice(int(self.offsets[number % n]), int(self.offsets[number % n + 1]))

    def take(self, indices: ArrayLike) -> Sets:
        """Return a copy of the sets of `indices`, in that order: integers, negative ones from the end, or a mask (n,).

        >>> Sets.from_padded(np.zeros((3, 5, 2))).take([2, 0, -1])
        Sets(3 sets, d=2, sizes 5..5..5)
        """
        n, rows = len(self), np.asarray(indices)
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iub"):
            raise IndexError(f"indices must be integers or a boolean mask in one dimension, not {indices!s:.80}")
        if rows.dtype.kind == "b":
            if len(rows) != n:
                raise IndexError(f"the mask has {len(rows)} values for {n} sets")
            rows = np.flatnonzero(rows)
        if (wrong := rows[(rows < -n) | (rows >= n)]).size:
            raise IndexError(f"set {wrong[0]} is out of range: there are {n} sets")
        rows = rows.astype(np.int64) % max(n, 1)
        sizes = self.sizes[rows]
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        elements = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], sizes)
        weights = None if self.weights is None else self.weights[elements]
        return self.from_checked(np.take(self.points, elements, axis=0), offsets, weights, self.origin)

    def with_origin(self, origin: ArrayLike | None) -> Sets:
        """Return the same points with another `origin`. Nothing is subtracted: it is for points that were stored."""
        shift = None if origin is None else checks.checked_origin(origin, self.dim)
        return self.from_checked(self.points, self.offsets, self.weights, shift)

    def to_arrow(self) -> Any:
        """Return a pyarrow LargeListArray of FixedSizeList<float32>[d] on the same memory, without weights and origin.

        >>> len(Sets.from_padded(np.zeros((3, 5, 2))).to_arrow())
        3
        """
        return convert.arrow_lists(self.offsets, self.points)

    def check_scale(self, stacklevel: int | None = None) -> None:
        """Warn (ScaleWarning) if one feature has more than 99 % of the variance of all elements.

        It looks at no more than 100,000 elements, evenly spaced. `stacklevel` is that of `warnings.warn`; by default
        the warning points at the first line outside this package.
        """
        warn_of_scale(self.points, stacklevel)


def one_set(data: Any, *, dim: int | None = None, origin: Origin = None) -> Sets:
    """Return one set, as `Sets.from_list` takes those of a list, as a `Sets` of that set alone."""
    if isinstance(data, SetPoints):
        return Sets.from_list([data], dim=dim, origin=origin)
    array = checks.set_array(data, 0)
    if dim is not None and array.shape[1] != dim:
        raise checks.wrong_dim(0, array.shape[1], dim)
    offsets = np.array([0, len(array)], np.int64)
    points, shift = to_float32([array], offsets, origin)
    return Sets.from_checked(points, offsets, None, shift)


def _check_list(name: str, given: Any) -> None:
    """Refuse what is not a collection of arrays; errors call it `name`."""
    if type(given) is not list and (isinstance(given, str | dict) or not isinstance(given, Iterable)):
        raise input_error(name, f"is {kind_of(given)}, not a list of arrays, one for each set")


def as_sets(data: Any, *, dim: int | None = None, origin: Origin | EllipsisType = ...) -> Sets:
    """Return any collection of sets as a `Sets`. One that is a `Sets` already is returned as it is, unchecked.

    data    Sets; a list, tuple, object array or pandas Series of (N_i, d) arrays; an array (n, N, d); an Arrow or
            polars column of lists of vectors; a nested tensor of torch
    dim     the number of features that the sets must have; needed for an empty list only
    origin  subtracted from the coordinates of what is not a `Sets` yet; a `Sets` must have been made with it, unless
            it is left out

    >>> as_sets([[[0.0, 0.0], [1.0, 0.0]], [[5.0, 5.0]]])
    Sets(2 sets, d=2, sizes 1..1.5..2)
    """
    shift = None if isinstance(origin, EllipsisType) else origin
    if isinstance(data, list | tuple):
        return Sets.from_list(data, dim=dim, origin=shift)
    sets = data if isinstance(data, Sets) else convert.sets_from_object(Sets, data, dim, shift)
    if dim is not None and sets.dim != dim:
        raise checks.wrong_dim(0, sets.dim, dim)
    if origin is not sets.origin and not isinstance(origin, EllipsisType | str):
        check_origin(sets, None if origin is None else checks.checked_origin(origin, sets.dim))
    return sets
