"""Random rotations for sign codes: a vector of D numbers becomes n_bits projections, whose signs are the code.

The projections of a vector have the same bits whatever the other vectors of the batch are: a projection near zero must
not change its sign with the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InputError
from ..native import kernel
from ..native.arrays import Array, Float32, Float64, Int64
from ..native.product import ExactProduct
from ..slices import directions

ROTATIONS = ("hadamard", "orthogonal", "gaussian")
SMALLEST_HADAMARD = 128
"""The size of the smallest Hadamard rotation."""
ROTATION_BLOCK_NUMBERS = 1 << 17
"""Numbers projected at once, 0.5 MB of float32: two such buffers stay in the cache of a core."""


@dataclass(frozen=True)
class Hadamard:
    """Projections by random signs and fast Walsh-Hadamard transforms: D log D operations, all of them elementwise.

    A vector is filled up with zeros to P numbers, the next power of two (128 at least). One rotation of it is

        turn, H, signs, H, signs, H

    H is the Walsh-Hadamard matrix over sqrt(P), `signs` P independent random ones, and `turn` rotates each pair of
    numbers (i, i + P/2) by a random angle of its own. It stands where one would expect the first signs, which it
    includes, and makes the directions continuous: with signs alone the projections of a vector that is zero but for a
    few equal numbers lie on a coarse grid, and many are exactly zero. One round, `H signs`, is a poor rotation of all
    sparse vectors, for which it has few different rows; the second and third mend that (numbers in docs/hashing.md).

    Of the P rows the first n_bits are taken, in a random order: the first 2^j rows of H all combine the numbers with
    equal last digits of the index in the same way, and span a special subspace; randomly chosen ones do not. More bits
    than P come from several independent rotations.

    turns : (n, 2, P/2) float32, cosine and sine of n rotations, with the scale of the three transforms.
    signs : (n, 2, P) float32. picked : (n_bits,) int64, the rows that are taken.
    """

    n_bits: int
    turns: Float32
    signs: Float32
    picked: Int64

    @classmethod
    def draw(cls, dim: int, n_bits: int, random: np.random.RandomState) -> Hadamard:
        size = cls._size(dim)
        turns, signs, picked = [], [], []
        for start in range(0, n_bits, size):
            turn = random.standard_normal((2, size // 2))
            turn /= np.sqrt(turn[0] ** 2 + turn[1] ** 2)
            turns.append((turn * size**-1.5).astype(np.float32))
            signs.append((2 * random.randint(2, size=(2, size), dtype=np.int64) - 1).astype(np.float32))
            picked.append(random.permutation(size)[: n_bits - start].astype(np.int64))
        return cls(n_bits, np.stack(turns), np.stack(signs), np.concatenate(picked))

    @staticmethod
    def _size(dim: int) -> int:
        return 1 << max(SMALLEST_HADAMARD - 1, dim - 1).bit_length()

    def state(self) -> dict[str, Array]:
        """Return what was drawn, as arrays for a file."""
        return {"turns": self.turns, "signs": self.signs, "picked": self.picked}

    @classmethod
    def from_state(cls, dim: int, n_bits: int, arrays: dict[str, Array]) -> Hadamard:
        """Return the rotation that `state` describes; refuse (InputError, KeyError) what does not fit the size."""
        size, (turns, signs, picked) = cls._size(dim), (arrays[name] for name in ("turns", "signs", "picked"))
        n = -(-n_bits // size)
        if turns.shape != (n, 2, size // 2) or signs.shape != (n, 2, size) or picked.shape != (n_bits,):
            raise InputError("the rotation of the stored hash has the wrong size")
        if turns.dtype != np.float32 or signs.dtype != np.float32 or picked.dtype != np.int64:
            raise InputError("the rotation of the stored hash has the wrong dtype")
        if picked.min() < 0 or picked.max() >= size or not np.isfinite(turns).all() or not (np.abs(signs) == 1).all():
            raise InputError("the rotation of the stored hash has values that are not valid")
        return cls(n_bits, turns, signs, picked)

    @property
    def block_rows(self) -> int:
        """The number of vectors to project at once."""
        # NumPy works on all vectors of a block at once and needs many of them; the kernel takes them one by one.
        return max(64 if kernel.native is None else 4, ROTATION_BLOCK_NUMBERS // int(self.signs.shape[2]))

    def project(self, block: Float32) -> Float32:
        """Return the projections (B, n_bits) of vectors (B, D); the kernel's are NumPy's to the last bit."""
        size, (n, dim) = self.signs.shape[2], block.shape
        vectors = block
        if dim < size or kernel.native is None:
            vectors = np.zeros((n, size + 16), np.float32)[:, :size]
            vectors[:, :dim] = block
        parts = zip(self.turns, self.signs, range(0, self.n_bits, size), strict=True)
        if kernel.native is not None:
            upper, lower = vectors[:, : size // 2], vectors[:, size // 2 :]
            out = np.empty((n, self.n_bits), np.float32)
            for (cos, sin), signs, start in parts:
                turned = np.concatenate([upper * cos + lower * sin, upper * sin - lower * cos], axis=1)
                kernel.native.rotate(turned, signs, 1)
                out[:, start : start + size] = np.take(turned, self.picked[start : start + size], axis=1)
            return out
        # Everything is done on the transposed block, (P, B): each operation then runs over long contiguous pieces. The
        # rows are 16 numbers apart as a stride that is a power of two puts a column into the same few lines of a cache.
        upper, lower = np.split(np.ascontiguousarray(vectors.T), 2)
        columns = np.empty((self.n_bits, n), np.float32)
        for turn, signs, start in parts:
            cos, sin = turn[:, :, None]
            turned = np.concatenate([upper * cos + lower * sin, upper * sin - lower * cos])
            turned, spare = _walsh_hadamard(turned, np.empty_like(turned))
            for sign in signs:
                turned *= sign[:, None]
                turned, spare = _walsh_hadamard(turned, spare)
            picked = self.picked[start : start + size]
            np.take(turned, picked, axis=0, out=columns[start : start + len(picked)])
        projections: Float32 = columns.T
        return projections


def _walsh_hadamard(a: Float32, b: Float32) -> tuple[Float32, Float32]:
    """Return the Walsh-Hadamard transform of each column of `a` (P, B), without its scale, and the other buffer.

    The result has the upper and the lower half of the binary digits of its row numbers swapped. They are swapped
    halfway because NumPy sums pieces of P/2 to sqrt(P) rows several times as fast as the short pieces that would
    follow.
    """
    n, log_size = a.shape[1], len(a).bit_length() - 1
    low = log_size // 2
    a, b = _sums_of_pairs(a, b, log_size - low)
    b.reshape(1 << low, -1, n)[...] = a.reshape(-1, 1 << low, n).transpose(1, 0, 2)
    return _sums_of_pairs(b, a, low)


def _sums_of_pairs(a: Float32, b: Float32, n_digits: int) -> tuple[Float32, Float32]:
    """Replace, for each of the upper digits of the row number, the rows with 0 and 1 there by sum and difference."""
    for digit in range(n_digits):
        pairs, sums = (x.reshape(1 << digit, 2, a.size >> digit + 1) for x in (a, b))
        np.add(pairs[:, 0], pairs[:, 1], out=sums[:, 0])
        np.subtract(pairs[:, 0], pairs[:, 1], out=sums[:, 1])
        a, b = b, a
    return a, b


class Dense:
    """Projections on stored directions (n_bits, D), by a product whose bits do not depend on the batch.

    Its methods are those of `Hadamard`.
    """

    def __init__(self, directions: Array) -> None:
        self.directions = directions
        self.n_bits = len(directions)
        self._product: ExactProduct | None = None

    def state(self) -> dict[str, Array]:
        return {"directions": self.directions}

    @classmethod
    def from_state(cls, dim: int, n_bits: int, arrays: dict[str, Array]) -> Dense:
        directions = arrays["directions"]
        if directions.shape != (n_bits, dim) or directions.dtype.kind != "f" or not np.isfinite(directions).all():
            raise InputError("the directions of the stored hash have the wrong size or dtype, or are not finite")
        return cls(directions)

    @property
    def block_rows(self) -> int:
        return max(64, ROTATION_BLOCK_NUMBERS // int(max(self.directions.shape)))

    def project(self, block: Float32) -> Float64:
        if self._product is None:
            self._product = ExactProduct(self.directions.astype(np.float64))
        return self._product(block.astype(np.float64))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_product": None}  # several times as large as the directions it is made from


def make_rotation(kind: str, dim: int, n_bits: int, random: np.random.RandomState) -> Hadamard | Dense:
    """Draw a rotation: "hadamard", "orthogonal" (blocks of D orthonormal rows) or "gaussian" (independent rows)."""
    if kind == "hadamard":
        return Hadamard.draw(dim, n_bits, random)
    if kind == "gaussian":
        return Dense(random.standard_normal((n_bits, dim)).astype(np.float32))
    if dim == 1:  # where `directions` knows one slice only; here a sign is left to draw
        return Dense((2 * random.randint(2, size=(n_bits, 1), dtype=np.int64) - 1).astype(np.float32))
    return Dense(directions("orthogonal", n_bits, dim, random))
