"""GeM pooling: the generalised means of each feature over a set, one of the paper's baselines (section 5.1)."""

from __future__ import annotations

import numpy as np

from ..data.batching import blocks, segment_mean
from ..data.checks import checked_count
from ..data.sets import Sets
from .base import SetTransformer, Vectors


class GeM(SetTransformer):
    """Generalised means of the orders 1 to p: for order q, sign(m) |m|^(1/q) with m the weighted mean of x^q.

    Each feature is pooled by itself; odd roots keep their sign. The vectors are (n, p * d), order after order: first
    the d means, then the d root mean squares, and so on. p = 1 is mean pooling.

    Parameters
    ----------
    p : int, default 1
        The highest order. The paper takes 1, 2 and 4.

    Not for sets that differ only in how the features go together: it looks at one feature at a time. From the paper's
    section 5.1, after Radenovic et al., "Fine-tuning CNN image retrieval with no human annotation", 2018.

    >>> from slosh import Sets
    >>> GeM(p=2).fit_transform(Sets.from_list([[[1.0, 0.0], [-7.0, 0.0]], [[3.0, -4.0]]])).tolist()
    [[-3.0, 0.0, 5.0, 0.0], [3.0, -4.0, 3.0, 4.0]]
    """

    def __init__(self, p: int = 1) -> None:
        self.p = p

    def _fit(self, sets: Sets) -> None:
        checked_count("p", self.p)

    @property
    def vector_length(self) -> int:
        return int(self.p) * self.n_features_in_

    def _transform(self, sets: Sets, out: Vectors) -> None:
        dim = sets.dim
        for rows, part in blocks(sets):
            # Scaled by a power of two to at most 1 in each set and feature, high powers neither overflow nor vanish.
            counted = part.points if part.weights is None else part.points * (part.weights > 0)[:, None]
            largest = np.maximum.reduceat(np.abs(counted), part.offsets[:-1], axis=0)
            scale = np.ldexp(1.0, np.frexp(largest)[1])
            x = counted / np.repeat(scale, part.sizes, axis=0)
            power = x.copy()
            for q in range(1, self.p + 1):
                mean = segment_mean(power, part)
                out[rows, (q - 1) * dim : q * dim] = np.copysign(np.abs(mean) ** (1 / q), mean) * scale
                power *= x
