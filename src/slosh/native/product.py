"""A matrix product whose bits do not depend on the batch, for slicers and hashes that project in NumPy."""

from __future__ import annotations

import math

import numpy as np

from .arrays import Float64


class ExactProduct:
    """rows @ weights.T in float64, with the same bits for a row whatever the other rows of the batch are.

    A BLAS product rounds in an order that changes with the shape of the batch, the thread count and the machine. Here
    it has nothing to round (Ozaki's trick): every row is scaled by a power of two to length <= 1 and split into high +
    low, whole numbers that make vectors of length <= 2^26. By Cauchy-Schwarz a sum of some of their products is a whole
    number below 2^53, which float64 holds exactly, so the order cannot matter. What the split leaves out is at worst
    2^-33 of |row| |weights| with 100,000 columns, 2^-48 with 3: less than float32 resolves.
    """

    def __init__(self, weights: Float64) -> None:
        self._low_bits = 26 - math.ceil(math.log2(weights.shape[1]) / 2)  # a low part is at most sqrt(columns) / 2 long
        high, low, scale = self._split(weights)
        self._high = np.ascontiguousarray(high.T)
        self._both = np.ascontiguousarray(np.concatenate([high, low]).T)
        self._scale = scale.T * 2.0**-52

    def _split(self, rows: Float64) -> tuple[Float64, Float64, Float64]:
        squares = rows * rows
        while squares.shape[1] > 1:  # a sum in an order of our own: NumPy does not promise one
            half = (squares.shape[1] + 1) // 2
            squares[:, : squares.shape[1] - half] += squares[:, half:]
            squares = squares[:, :half]
        scale = np.ldexp(1.0, (np.frexp(squares)[1] + 1) // 2)
        digits = rows / scale * 2.0**26
        high = np.rint(digits)
        return high, np.rint((digits - high) * 2.0**self._low_bits), scale

    def __call__(self, rows: Float64) -> Float64:
        high, low, scale = self._split(rows)
        n_outputs = self._high.shape[1]
        coarse = high @ self._both
        total: Float64 = low @ self._high
        total += coarse[:, n_outputs:]
        total *= 2.0**-self._low_bits
        total += coarse[:, :n_outputs]
        total *= self._scale
        total *= scale
        return total
