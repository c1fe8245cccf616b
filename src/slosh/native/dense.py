"""Dense layers of a network, applied without the library that trained them: rows of numbers in, rows out.

Compiled if the kernel was built, NumPy otherwise. The bits of a row depend on that row alone, for any batching and any
number of threads; between the two kernels they differ by rounding.
"""

from __future__ import annotations

import numpy as np

from . import kernel
from .arrays import Float32
from .product import ExactProduct

PANEL = 64
"""Outputs of a panel of weights, as dense.h has it."""
ROWS_AT_ONCE = 1024
"""Rows that NumPy works on at once."""


class DenseLayer:
    """y = f(weights x + bias), where f(z) = z if z > 0 and slope * z if not: 0 is the rectifier, 1 leaves z as it is.

    weights : (outputs, inputs). bias : (outputs,).
    """

    def __init__(self, weights: Float32, bias: Float32, slope: float = 0.0) -> None:
        self.n_outputs, self.n_inputs = weights.shape
        self._slope, self._weights, self._bias = slope, weights, bias
        panels = -(-self.n_outputs // PANEL)
        filled, start = np.zeros((panels * PANEL, self.n_inputs), np.float32), np.zeros((panels, PANEL), np.float32)
        filled[: self.n_outputs], start.reshape(-1)[: self.n_outputs] = weights, bias
        self._panels = np.ascontiguousarray(filled.reshape(panels, PANEL, self.n_inputs).transpose(0, 2, 1))
        self._start = start
        self._product: ExactProduct | None = None

    def __call__(self, rows: Float32, n_jobs: int | None) -> Float32:
        out = np.empty((len(rows), self.n_outputs), np.float32)
        if kernel.is_compiled():
            rows = np.ascontiguousarray(rows, np.float32)
            kernel.native.dense(rows, self._panels, self._start, self._slope, out, kernel.threads(n_jobs))
            return out
        if self._product is None:
            self._product = ExactProduct(self._weights.astype(np.float64))
        for first in range(0, len(rows), ROWS_AT_ONCE):
            part = slice(first, first + ROWS_AT_ONCE)
            sums = self._product(rows[part].astype(np.float64)) + self._bias
            out[part] = np.where(sums > 0, sums, self._slope * sums)
        return out
