"""Elements that know their neighbourhood: further columns for each element of a 2-D or 3-D set, and then an embedding.

Sets come in; `enrich` returns the same sets with more features, and the inner embedding turns those into vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import clone

from ..data.batching import PART_NUMBERS, batches_by_points, segment_mean
from ..data.checks import checked_count, kind_of
from ..data.precision import MAX_COORDINATE
from ..data.sets import Sets, as_sets
from ..errors import InputError, bad_value
from ..native import kernel
from ..native.arrays import Float32, Float64, Ragged
from .base import SetTransformer
from .sliced_wasserstein import SlicedWasserstein

BATCH_POINTS = 1 << 17
"""Elements of one batch: a fraction of a second, and some tens of megabytes."""
FITTED_POINTS = 1 << 21
"""Elements that `fit` looks at; of more, sets at even distances are taken."""
MAX_SIZES = 16
"""Sizes of neighbourhoods at most."""
CONSTANT_LENGTH, CONSTANT_DIRECTION = 2.0**-20, 2.0**-10
"""Below these a column's deviation is rounding: of lengths relative to the largest coordinate, of directions as it is.
A direction is a quotient of small differences, so that far more of its digits are lost."""


class LocalShape(SetTransformer):
    """Gives each element what its neighbours within the set say, and passes the richer sets to another embedding.

    For 2-D and 3-D sets: points on the outline or the surface of a shape. Beside its d coordinates an element gets

    - its distance to the set's centre, the weighted mean;
    - for each size k of `neighbors`, from its k nearest elements (itself is one of them): the roots of the d
      eigenvalues of their covariance, the largest first; its distance to their mean; and the d absolute components of
      the direction in which they vary least, which is the normal of a surface.

    These columns, but not the coordinates, stay the same when a set is moved, and all but the last d of each size when
    it is turned. Each is divided by its standard deviation over the sets that `fit` sees, where every set counts the
    same, and multiplied by that of the coordinates. A column that is constant, but for rounding, becomes zero. Of more
    than two million elements `fit` takes a part of the sets, evenly spaced.

    - Ties: all elements as near as the k-th nearest count, and so do those that only the rounding of the coordinates to
      float32 may have put farther. Hence the order of the elements does not matter.
    - Sets of fewer than k elements: all of them are neighbours.
    - Weights: they weigh the neighbours' mean and covariance. Elements of weight zero are no neighbours, and their own
      columns are zero; they change nothing.
    - Where the direction is not unique (points on a line, in a ball, or all the same), each component is the root of
      its mean square over all directions in which the neighbours vary least.

    Parameters
    ----------
    embedding : the embedding of the richer sets; None is `SlicedWasserstein()`. A copy of it is fitted.
    neighbors : sizes of the neighbourhoods.
    n_jobs : threads, also of the inner embedding; -1 is all cores. The result does not depend on it.

    Attributes
    ----------
    embedding_ : the fitted inner embedding.
    scale_ : what each of the further columns is multiplied by, float64.
    neighbors_ : the sizes, increasing.

    >>> from slosh.embed import LocalShape, SlicedWasserstein
    >>> rng = np.random.default_rng(0)
    >>> sets = [rng.normal(size=(n, 3)) for n in (5, 100, 500)]
    >>> local = LocalShape(SlicedWasserstein(n_slices=64)).fit(sets)
    >>> local.transform(sets).shape
    (3, 1024)
    >>> local.enrich(sets)
    Sets(3 sets, d=18, sizes 5..100..500)
    """

    embedding_: SetTransformer
    scale_: Float64
    neighbors_: list[int]

    def __init__(
        self, embedding: Any = None, neighbors: int | Sequence[int] = (8, 32), n_jobs: int | None = -1
    ) -> None:
        self.embedding = embedding
        self.neighbors = neighbors
        self.n_jobs = n_jobs

    def _start_fit(self, X: Any) -> Sets:
        sets = super()._start_fit(X)
        _check_dim(sets.dim, "X")
        return sets

    def check_dim(self, dim: int) -> None:
        _check_dim(dim, "embedding")

    def _fit(self, sets: Sets) -> None:
        self.neighbors_ = checked_neighbors(self.neighbors)
        kernel.threads(self.n_jobs)
        inner = SlicedWasserstein() if self.embedding is None else self.embedding
        if not isinstance(inner, SetTransformer):
            problem, remedy = f"embedding is {kind_of(inner)}", "give an embedding of slosh.embed, or None"
            raise InputError(problem, remedy, argument="embedding")
        sample = _even_sample(sets, FITTED_POINTS)
        columns = self._columns(sample, None)
        self.scale_ = self._learnt_scale(sample, columns)
        columns[:, sets.dim :] *= self.scale_
        self.embedding_ = clone(inner)
        self._set_inner_threads()
        self.embedding_.fit(self._with_columns(sample, columns))

    def _learnt_scale(self, sets: Sets, columns: Float32) -> Float64:
        """Return the deviation of the coordinates over that of each further column; each set counts the same."""
        dim, total, squares = sets.dim, np.zeros(columns.shape[1]), np.zeros(columns.shape[1])
        runs = batches_by_points(sets.sizes, PART_NUMBERS // columns.shape[1])
        parts = [(sets[rows], slice(*sets.offsets[[rows.start, rows.stop]])) for rows in runs]
        for part, elements in parts:
            total += segment_mean(columns[elements].astype(np.float64), part).sum(axis=0)
        mean = total / len(sets)
        for part, elements in parts:
            squares += segment_mean((columns[elements] - mean) ** 2, part).sum(axis=0)
        deviation = np.sqrt(squares / len(sets))
        spread = float(np.sqrt((deviation[:dim] ** 2).mean()))
        counted = sets.points if sets.weights is None else sets.points[sets.weights > 0]
        rounding = np.full(len(deviation), CONSTANT_LENGTH * float(np.abs(counted).max()))
        rounding[self._directions()] = CONSTANT_DIRECTION
        scale = np.divide(spread, deviation, out=np.zeros_like(deviation), where=deviation > rounding)
        return scale[dim:]

    def _directions(self) -> list[int]:
        """Return which columns are components of a direction: the last d of each size."""
        dim, sizes = self.n_features_in_, len(self.neighbors_)
        return [dim + 1 + s * (2 * dim + 1) + c for s in range(sizes) for c in range(dim + 1, 2 * dim + 1)]

    def _columns(self, sets: Sets, scale: Float64 | None) -> Float32:
        ragged = Ragged(sets.points, sets.offsets, sets.weights)
        return kernel.local_shape(ragged, self.neighbors_, scale, kernel.threads(self.n_jobs))

    def enrich(self, X: Any) -> Sets:
        """Return the sets as the inner embedding sees them, to look at or to draw: `column_names` names the columns.

        Weights are kept, and so is the origin, which is zero for the further columns. A set that is larger by many
        orders of magnitude than those that were fitted keeps to the range of coordinates: its columns end there.
        """
        self._check_fitted()
        sets = as_sets(X, dim=self.n_features_in_, origin=self.origin_)
        columns = self._columns(sets, self.scale_)
        if len(sets) and self.scale_.max() * max(1.0, 4.0 * float(np.abs(sets.points).max())) > MAX_COORDINATE:
            np.minimum(columns, np.float32(MAX_COORDINATE), out=columns)
        return self._with_columns(sets, columns)

    def _with_columns(self, sets: Sets, columns: Float32) -> Sets:
        origin = None if sets.origin is None else np.concatenate([sets.origin, np.zeros(len(self.scale_))])
        return Sets.from_checked(columns, sets.offsets, sets.weights, origin)

    @property
    def column_names(self) -> list[str]:
        """The names of the columns of `enrich`: "x0", "center", "extent0 of 8", "offset of 8", "normal0 of 8", ..."""
        self._check_fitted()
        axes = range(self.n_features_in_)
        names = [*(f"x{k}" for k in axes), "center"]
        for size in self.neighbors_:
            names += [*(f"extent{k} of {size}" for k in axes), f"offset of {size}"]
            names += [f"normal{k} of {size}" for k in axes]
        return names

    @property
    def needs_data(self) -> str | None:
        return "LocalShape learns from data how much each of its columns varies"

    @property
    def vector_length(self) -> int:
        return self.embedding_.vector_length

    def _batch_points(self) -> int:
        return min(BATCH_POINTS, super()._batch_points())

    def _transform(self, sets: Sets, out: Float32) -> None:
        self._set_inner_threads()
        self.embedding_.embed(self.enrich(sets), out)

    def check_state(self) -> None:
        """Refuse (ValueError) parts that `fit` could not have learnt together: those of a file of other people."""
        dim, inner, scale = self.n_features_in_, self.embedding_, self.scale_
        columns = kernel.local_columns(dim, len(self.neighbors_))
        self.neighbors = tuple(self.neighbors) if isinstance(self.neighbors, list) else self.neighbors
        checks = {
            "dim": dim in (2, 3),
            "neighbors_": self.neighbors_ == checked_neighbors(self.neighbors),
            "scale_": isinstance(scale, np.ndarray)
            and scale.dtype == np.float64
            and scale.shape == (columns,)
            and bool((scale >= 0).all() and np.isfinite(scale).all()),
            "embedding_": isinstance(inner, SetTransformer) and inner.n_features_in_ == dim + columns,
        }
        if wrong := [name for name, good in checks.items() if not good]:
            raise ValueError(f"not as fit leaves it: {', '.join(wrong)}")

    @property
    def made_on(self) -> str:
        return self.embedding_.made_on

    def run_on(self, device: str | None) -> None:
        """Let the inner embedding make its vectors there; what elements get from their neighbours is of the CPU."""
        self.embedding_.run_on(device)

    def apart(self, sets: Sets, vectors: Float32) -> Float64 | None:
        return self.embedding_.apart(self.enrich(sets), vectors)

    def _set_inner_threads(self) -> None:
        """Make the inner embedding use as many threads: `n_jobs` may have been changed since."""
        if hasattr(self.embedding_, "n_jobs"):
            self.embedding_.n_jobs = self.n_jobs


def _check_dim(dim: int, argument: str) -> None:
    if dim not in (2, 3):
        features = "1 feature" if dim == 1 else f"{dim} features"
        problem = f"LocalShape looks at points in a plane or in space, and these sets have {features}"
        remedy = "use it for sets of 2 or 3 features, and SlicedWasserstein for others"
        raise InputError(problem, remedy, argument=argument)


def _even_sample(sets: Sets, max_points: int) -> Sets:
    """Return the sets, or as many of them, evenly spaced, as have about `max_points` elements."""
    if len(sets.points) <= max_points:
        return sets
    n = max(1, len(sets) * max_points // len(sets.points))
    return sets.take(np.arange(n) * len(sets) // n)


def checked_neighbors(neighbors: Any) -> list[int]:
    """Return sizes of neighbourhoods, increasing."""
    given = [neighbors] if isinstance(neighbors, int | np.integer) else neighbors
    if not isinstance(given, Sequence | np.ndarray) or isinstance(given, str) or not 0 < len(given) <= MAX_SIZES:
        raise bad_value(
            "neighbors", neighbors, f"give a size of the neighbourhood, or 1 to {MAX_SIZES} of them: (8, 32)"
        )
    sizes = [checked_count("neighbors", size) for size in given]
    if min(sizes) < 2:
        raise bad_value("neighbors", neighbors, "give 2 or more: an element is its own nearest neighbour")
    if len(set(sizes)) < len(sizes):
        raise bad_value("neighbors", neighbors, "give each size once")
    return sorted(sizes)
