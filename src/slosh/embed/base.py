"""What all set embeddings share: a scikit-learn transformer whose samples are sets.

It takes anything that `Sets` takes, or an iterator of it, and returns one float32 vector a set. A subclass says how
long its vectors are and embeds one batch; checks, batches, progress and output are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ..data.batching import MAX_BATCH_SETS
from ..data.checks import input_error
from ..data.progress import ProgressBar
from ..data.sets import Sets, as_sets, check_origin
from ..errors import InputError, UnsupportedError
from ..gpu.devices import CPU, checked_device, device_name
from ..native import kernel
from ..native.arrays import Array, Float32, Float64
from ..native.copying import copy

Self = TypeVar("Self", bound="SetTransformer")

BATCH_NUMBERS = 1 << 23
"""Numbers of the vectors of one batch."""
DEVICE_BATCH_POINTS, DEVICE_BATCH_NUMBERS = 1 << 27, 1 << 29
"""Numbers of the elements, and of the vectors, of one batch on a GPU. It is many pieces of `slosh.gpu.pipeline`, which
stands still before the first one of a batch has arrived and after the last one was computed."""


class SetTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Base class. A subclass implements `_fit(sets)` if it has parameters, `vector_length` and `_transform(sets, out)`.

    n_features_in_ : the dimension d of the elements.
    origin_ : what was subtracted from their coordinates, or None.
    """

    n_features_in_: int
    origin_: Float64 | None
    run_time: ClassVar[frozenset[str]] = frozenset()
    """Parameters that say where it runs, and are not stored with it."""

    def _fit(self, sets: Sets) -> None:
        """Check the parameters and learn from `sets`; `n_features_in_` is set already."""

    @property
    def vector_length(self) -> int:
        """The length of one embedded vector."""
        raise NotImplementedError

    @property
    def distance_kind(self) -> str:
        """What Euclidean distances of its vectors are called."""
        return "embedded"

    @property
    def needs_data(self) -> str | None:
        """Why it must be fitted to data before it embeds anything, as a sentence; None if the dimension is enough."""
        return None

    @property
    def learns(self) -> bool:
        """Whether `fit` looks at more of the data than their dimension."""
        return self.needs_data is not None

    @property
    def has_learnt(self) -> bool:
        """Whether `fit` has learnt what it is to learn; if not, it embeds without it until there are data."""
        return True

    def check_dim(self, dim: int) -> None:
        """Refuse (InputError) sets of a dimension that this is not made for, before there are any."""

    @property
    def takes_labels(self) -> bool:
        """Whether `fit(sets, labels)` learns from the labels."""
        return False

    @property
    def needs_labels(self) -> bool:
        """Whether `fit` learns nothing without labels."""
        return False

    @property
    def learnt_from(self) -> dict[str, int] | None:
        """How many "sets" it has learnt from, and how many of them were "labelled"; None if it does not tell."""
        return None

    def novelty(self, sets: Sets) -> float | None:
        """Return the part of these sets that are unlike those that it has learnt from; None if it cannot tell."""
        return None

    @property
    def sliced_view(self) -> Any:
        """The `SlicedWasserstein` of these sets that it is or holds, whose slices exact distances are computed by."""
        return None

    @property
    def made_on(self) -> str:
        """What its vectors are made by: "cpu", or what the GPU is called."""
        return CPU

    def run_on(self, device: str | None) -> None:
        """Make vectors on this device from now on, and so in all that it wraps. What cannot is an UnsupportedError."""
        if checked_device(device) != CPU:
            problem, remedy = f"{type(self).__name__} runs on the CPU only", "leave device out"
            raise UnsupportedError(problem, remedy, feature_name="device", argument="device")

    def apart(self, sets: Sets, vectors: Float32) -> Float64 | None:
        """Return how far index vectors of these sets that two devices have made may lie apart, (n,); None if nothing
        is known of it. `vectors` are those of one of the devices.
        """
        return np.zeros(len(sets))

    def _transform(self, sets: Sets, out: Float32) -> None:
        """Write the vectors of one batch into `out`, (len(sets), vector_length), float32 with contiguous rows."""
        raise NotImplementedError

    def _batch_points(self) -> int:
        """Return the elements of one batch: it bounds the memory, and the time until Ctrl-C is heard."""
        return max(1 << 10, min(1 << 20, (1 << 22) // self.n_features_in_))

    def _batch_sets(self) -> int:
        """Return the sets of one batch."""
        return max(1, min(MAX_BATCH_SETS, BATCH_NUMBERS // self.vector_length))

    def fit(self: Self, X: Any, y: Any = None) -> Self:
        """Learn from a collection of sets; `y` is ignored. Some embeddings learn the dimension only."""
        self._fit(self._start_fit(X))
        return self

    def _start_fit(self, X: Any) -> Sets:
        """Return the sets to fit on, after setting `n_features_in_` and `origin_`."""
        name = type(self).__name__
        if isinstance(X, Iterator):
            problem = f"{name}.fit reads its sets more than once, and an iterator can be read only once"
            raise InputError(problem, "pass a list, or fit on next(Sets.stream(x))", argument="X")
        sets = as_sets(X, dim=1) if isinstance(X, list | tuple) and len(X) == 0 else as_sets(X)
        if len(sets) == 0:
            raise InputError(f"{name}.fit needs at least one set, to know the number of features", argument="X")
        self.n_features_in_ = sets.dim
        self.origin_ = sets.origin
        sets.check_scale()
        return sets

    def transform(self, X: Any, out: Array | None = None) -> Any:
        """Return the vectors of the sets, (n, D) float32.

        X : a collection of sets (anything that `Sets` takes), or an iterator of sets or of `Sets`, which is read batch
            by batch and never held whole.
        out : an array or memory map (n, D) to write into and return. For an iterator it may have more rows than there
            are sets; the rows written are returned.
        """
        return self.embed(X, out)

    def embed(self, sets: Any, out: Array | None = None) -> Array:
        """Return what `transform` computes, always as an array: `set_output` does not apply."""
        return self._run(sets, out, self._transform)

    @property
    def _n_features_out(self) -> int:
        check_is_fitted(self)
        return self.vector_length

    def distance(self, a: Any, b: Any) -> Float64:
        """Return the Euclidean distances between the embedded sets of `a` and `b`, (len(a), len(b))."""
        x, y = (np.asarray(self.embed(sets), np.float64) for sets in (a, b))
        return np.asarray(cdist(x, y))

    # -- what an index stores ------------------------------------------------------------------------------------------

    @property
    def lower_bounds(self) -> Mapping[str, Literal["euclidean", "chebyshev"]]:
        """The distances between sets ("sliced", "hausdorff") that two index vectors bound from below, and how.

        "euclidean": by the Euclidean distance of the vectors; "chebyshev": by the largest difference of their numbers.
        """
        return {}

    @property
    def has_bounds(self) -> bool:
        """Whether the distance of two index vectors is a lower bound of the sliced distance of their sets."""
        return "sliced" in self.lower_bounds

    @property
    def index_length(self) -> int:
        """The length of one index vector."""
        return self.vector_length

    def index_vectors(self, sets: Sets, *, slack: bool = True) -> tuple[Float32, Float64 | None]:
        """Return the vectors that an index searches, (n, index_length), and how far rounding may have moved each.

        Without `slack` the second is None: only bounds need it, and it takes time.
        """
        return self.embed(sets), np.zeros(len(sets)) if slack else None

    # -- the loop over batches -----------------------------------------------------------------------------------------

    def _batches(self, X: Any) -> tuple[Iterator[Sets], int | None, bool]:
        """Return batches of checked sets, the number of sets if known, and whether there is at most one batch."""
        self._check_fitted()
        dim, at_once = self.n_features_in_, self._batch_points()
        most = self._batch_sets()
        if isinstance(X, Iterator):
            batches = Sets.stream(X, at_once, batch_sets=most, dim=dim, origin=self.origin_)
            return self._stream(batches), None, False
        sets = as_sets(X, dim=dim, origin=self.origin_)
        if len(sets.points) <= at_once and len(sets) <= most:
            return iter([sets] if len(sets) else []), len(sets), True
        return Sets.stream(iter([sets]), at_once, batch_sets=most, dim=dim), len(sets), False

    def _check_fitted(self) -> None:
        if not hasattr(self, "n_features_in_"):  # scikit-learn's own check takes ten times as long
            check_is_fitted(self)

    def _stream(self, batches: Iterator[Sets]) -> Iterator[Sets]:
        for batch in batches:
            check_origin(batch, self.origin_)
            yield batch

    def _run(self, X: Any, out: Array | None, write: Callable[[Sets, Float32], None]) -> Array:
        """Call write(batch, part) for every batch; `part` is its place in the (n, D) result, which is returned."""
        batches, n, short = self._batches(X)
        width = self.vector_length
        if out is not None:
            _check_output(out, n, width)
        result = np.empty((n, width), np.float32) if out is None and n is not None else out
        direct = result is None or (result.dtype == np.float32 and result.strides[1] == result.itemsize)
        blocks: list[Float32] = []  # of an iterator whose sets nobody has counted
        done = 0
        progress = {"total": n, "unit": "set", "unit_scale": True, "desc": type(self).__name__}
        with nullcontext() if short else ProgressBar(**progress) as bar:
            for batch in batches:
                end = done + len(batch)
                if result is not None and end > len(result):
                    raise input_error(
                        "out", f"has {len(result)} rows, but the iterator has more sets", "make it larger"
                    )
                part = result[done:end] if result is not None and direct else np.empty((len(batch), width), np.float32)
                write(batch, part)
                if result is None:
                    blocks.append(part)
                elif not direct:
                    result[done:end] = part
                done = end
                if bar is not None:
                    bar.update(len(batch))
        if result is None:
            return _joined(blocks, done, width)
        return result if done == len(result) else result[:done]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        return tags


class DeviceTransformer(SetTransformer):
    """An embedding whose parameter `device` says where it runs."""

    run_time: ClassVar[frozenset[str]] = frozenset({"device"})
    device: str | None = None

    @property
    def made_on(self) -> str:
        return device_name(self.device)

    def run_on(self, device: str | None) -> None:
        checked_device(device)
        self.device = device

    def _is_on_device(self) -> bool:
        return checked_device(self.device) != CPU

    def device_work(self, device: str) -> Any:
        """Return what writes the vectors of sets that are on this GPU (`slosh.gpu.pipeline.Work`); None if nothing does
        without the host.
        """
        return None

    def _batch_sets(self) -> int:
        return max(1, DEVICE_BATCH_NUMBERS // self.vector_length) if self._is_on_device() else super()._batch_sets()

    def _batch_points(self) -> int:
        if self._is_on_device():
            return max(1 << 10, DEVICE_BATCH_POINTS // self.n_features_in_)
        return self._native_batch_points()

    def _native_batch_points(self) -> int:
        """Return the elements of one batch on the CPU."""
        return super()._batch_points()


def _joined(blocks: list[Float32], n: int, width: int) -> Float32:
    """Return the n rows of the blocks, which are given up one after the other: hardly more is held than all rows."""
    if len(blocks) == 1:
        return blocks[0]
    result = np.empty((n, width), np.float32)
    blocks.reverse()
    done = 0
    while blocks:
        block = blocks.pop()
        copy(result[done : done + len(block)], block, kernel.threads(-1))
        done += len(block)
    return result


def _check_output(out: Any, n: int | None, width: int) -> None:
    """Refuse an output that cannot take the vectors of n sets; n is None if it is unknown."""
    found = f"{out.dtype} of {out.shape}" if isinstance(out, np.ndarray) else f"a {type(out).__name__}"
    if not isinstance(out, np.ndarray) or out.dtype.kind != "f" or out.ndim != 2 or out.shape[1] != width:
        shape = f"({'n' if n is None else n}, {width})"
        raise input_error("out", f"must be a floating-point array of shape {shape}, not {found}")
    if not out.flags.writeable:
        raise input_error("out", "is read-only", "open the memory map with mode 'r+' or 'w+', or pass a copy")
    if n is not None and len(out) != n:
        raise input_error("out", f"has {len(out)} rows for {n} sets", f"make it ({n}, {width})")
