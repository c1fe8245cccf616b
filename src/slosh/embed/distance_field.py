"""The distance field: how far a set is from each of a few hundred fixed places. It sees shape where slices see mass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from ..checkpoints import aside, checkpoint
from ..data.checks import checked_count, input_error, random_stream
from ..data.precision import MAX_COORDINATE
from ..data.sets import Sets
from ..errors import InputError, bad_value
from ..gpu.devices import CPU, checked_device
from ..native import kernel
from ..native.arrays import Array, Float32, Float64, Ragged
from .base import DeviceTransformer
from .references import kmeans_centres, own_points, sample_elements

NATIVE_STEPS = 1 << 29
"""Elements times anchors times features of one native call: a fraction of a second, so that Ctrl-C is heard."""


class DistanceField(DeviceTransformer):
    r"""The distance from each of K fixed anchors to the nearest element of the set, (n, K) float32:

        f_j(S) = min over x in S of |a_j - x|

    in the units of the data. The largest difference of two fields, max over j of |f_j(S) - f_j(T)|, is never larger
    than the Hausdorff distance of S and T (`slosh.rank.hausdorff`), which an index of fields can therefore prove:
    `index.search(query, rerank="hausdorff", certify=True)`. And |f_i(S) - f_j(S)| <= |a_i - a_j|: a field changes no
    faster than the place moves.

    Elements of weight zero do not count; other weights make no difference.

    Parameters
    ----------
    n_anchors : K, the number of anchors, and the length of the vectors.
    anchors : "kmeans", the centres of the elements of all sets, or an array (K, d) of your own, in the units of the
        data; `n_anchors` is ignored then. Centres are those of a sample of the elements, in which each counts the same,
        whatever the size of its set, or with weights as much as its weight makes it in its set.
    random_state : seed of the anchors.
    n_jobs : threads; -1 is all cores. The result does not depend on it.
    device : None or "cpu", or a GPU, "cuda" or "cuda:1", which makes the same vectors to rounding (`rounding`). It
        needs torch; see docs/gpu.md. It is not stored with the embedding.

    Attributes
    ----------
    anchors_ : (K, d) float32.

    One stray element changes the field around it: not for noisy sets. How often a place is covered makes no difference:
    not where mass matters, such as bags of features or grey values. In many dimensions all distances are alike. A set
    costs K N d steps; docs/embedding.md has the measurements.

    >>> field = DistanceField(anchors=[[0.0, 0.0], [4.0, 0.0]])
    >>> field.fit_transform([[[0.0, 1.0], [4.0, 3.0]], [[3.0, 4.0]]]).round(3).tolist()
    [[1.0, 3.0], [5.0, 4.123000144958496]]
    """

    anchors_: Float32

    def __init__(
        self,
        n_anchors: int = 256,
        *,
        anchors: str | ArrayLike | Sets = "kmeans",
        random_state: int | np.random.RandomState | None = 0,
        n_jobs: int | None = -1,
        device: str | None = None,
    ) -> None:
        self.n_anchors = n_anchors
        self.anchors = anchors
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.device = device

    def _fit(self, sets: Sets) -> None:
        checked_count("n_anchors", self.n_anchors)
        kernel.threads(self.n_jobs)
        checked_device(self.device)
        if not isinstance(self.anchors, str):
            points, weights = own_points("anchors", self.anchors, sets, "K", "anchor")
            points = points if weights is None else points[weights > 0]
            if (far := np.flatnonzero(~(np.abs(points).max(axis=1) <= MAX_COORDINATE))).size:
                what = f"hold a number beyond {MAX_COORDINATE:g}, in row {far[0]}"
                raise input_error("anchors", what, "give places that lie among the sets")
        elif self.anchors == "kmeans":
            points = self._centres(sets)
        else:
            raise bad_value("anchors", self.anchors, 'give "kmeans", or an array (K, d)')
        self.anchors_ = np.ascontiguousarray(points, np.float32)

    def _centres(self, sets: Sets) -> Float64:
        n, random = int(self.n_anchors), random_stream(self.random_state)
        elements, weights = sample_elements(sets, n, random)
        if weights is not None:
            elements, weights = elements[weights > 0], weights[weights > 0]
        n_different = len(aside(lambda: np.unique(elements, axis=0)))
        if n_different < n:
            problem = (
                f"n_anchors={n} needs as many different elements to find centres of; these sets have {n_different}"
            )
            remedy = "fit on more sets, ask for fewer anchors, or give an array of your own as anchors="
            raise InputError(problem, remedy, argument="n_anchors")
        return kmeans_centres(elements, weights, n, random)

    @property
    def needs_data(self) -> str | None:
        return f"anchors={self.anchors!r} is learnt from data" if isinstance(self.anchors, str) else None

    @property
    def vector_length(self) -> int:
        return len(self.anchors_)

    def _native_batch_points(self) -> int:
        return max(1 << 10, min(super()._native_batch_points(), NATIVE_STEPS // self.anchors_.size))

    def _transform(self, sets: Sets, out: Float32) -> None:
        ragged, n_anchors = Ragged(sets.points, sets.offsets, sets.weights), len(self.anchors_)
        device = checked_device(self.device)
        if device != CPU:
            from ..gpu.field import field

            field(ragged, self.anchors_, out, device)
            return
        # A set larger than a batch comes alone, and its anchors are taken in turns; a multiple of 64 fills the lanes.
        turns = max(64, NATIVE_STEPS // sets.points.size // 64 * 64)
        for first in range(0, n_anchors, turns):
            checkpoint()
            part = slice(first, min(first + turns, n_anchors))
            kernel.field(ragged, self.anchors_[part], out[:, part], kernel.threads(self.n_jobs))

    def device_work(self, device: str) -> Any:
        from ..gpu.field import work

        return work(self.anchors_, device)

    # -- what an index stores ------------------------------------------------------------------------------------------

    @property
    def lower_bounds(self) -> Mapping[str, Literal["euclidean", "chebyshev"]]:
        return {"hausdorff": "chebyshev"}

    def index_vectors(self, sets: Sets, *, slack: bool = True) -> tuple[Float32, Float64 | None]:
        vectors: Any = self.embed(sets)
        return vectors, self.rounding(vectors) if slack else None

    def apart(self, sets: Sets, vectors: Float32) -> Float64:
        return 2 * self.rounding(vectors)

    def rounding(self, vectors: Array) -> Float64:
        """Return how far float32 may have moved each vector, (n,): no number of it was moved farther.

        A difference rounds by 2^-24 of itself, and so does each of the d sums of squares and the root; squares below
        2^-149 are lost, which moves a distance by sqrt(d) 2^-74.5 at most.
        """
        doubles = vectors.astype(np.float64)
        size = np.sqrt(np.einsum("ij,ij->i", doubles, doubles))
        dim, lost = self.n_features_in_, math.sqrt(doubles.shape[1] * self.n_features_in_) * 2.0**-74
        return np.asarray((dim + 8) * 2.0**-25 * size + lost)


def n_anchors_for(sets: Sets, most: int = 256) -> int:
    """Return the number of anchors to try: `most`, or as many as a field that is fitted on these sets can have."""
    n = most
    while True:  # fewer anchors are looked for among fewer elements
        elements, weights = sample_elements(sets, n, random_stream(0))
        n_different = len(np.unique(elements if weights is None else elements[weights > 0], axis=0))
        if n_different >= n:
            return n
        n = n_different
