"""Random rotations for sign codes: a vector of D numbers becomes n_bits projections, whose signs are the code.

The projections of a vector have the same bits whatever the other vectors of the batch are: a projection near zero must
not change its sign with the batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.vectors import Float32
from ..errors import InputError
from ..native import kernel
from ..native.product import ExactProduct
from ..slices import directions

ROTATIONS = ("hadamard", "orthogonal", "gaussian")
SMALLEST_HADAMARD = 128
"""The size of the smallest Hadamard rotation."""
BLOCK_NUMBERS = 1 << 17
"""Numbers projected at once, 0.5 MB of float32: two such buffers stay in the cache of a core."""


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
    """

    def __init__(self, dim: int, n_bits: int, random: np.random.RandomState) -> None:
        self.dim = dim
        self.n_bits = n_bits
        self.log_size = max(SMALLEST_HADAMARD - 1, dim - 1).bit_length()
        size = 1 << self.log_size
        self.turns: list[Float32] = []
        self.signs: list[Float32] = []
        self.rows: list[NDArray[np.intp]] = []
        for start in range(0, n_bits, size):
            turn = random.standard_normal((2, size // 2, 1))
            turn /= np.sqrt(turn[0] ** 2 + turn[1] ** 2)
            self.turns.append((turn * size**-1.5).astype(np.float32))  # with the scale of the three transforms
            self.signs.append((2 * random.randint(2, size=(2, size, 1), dtype=np.int64) - 1).astype(np.float32))
            self.rows.append(random.permutation(size)[: n_bits - start])

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what was drawn, as arrays for a file."""
        turns, signs = (np.stack(part)[..., 0] for part in (self.turns, self.signs))
        return {"turns": turns, "signs": signs, "picked": np.concatenate(self.rows).astype(np.int64)}

    @classmethod
    def from_state(cls, dim: int, n_bits: int, arrays: dict[str, NDArray[Any]]) -> Hadamard:
        """Return the rotation that `state` describes; refuse (InputError, KeyError) what does not fit the size."""
        self = cls.__new__(cls)
        self.dim, self.n_bits, self.log_size = dim, n_bits, max(SMALLEST_HADAMARD - 1, dim - 1).bit_length()
        size = 1 << self.log_size
        n, (turns, signs, picked) = -(-n_bits // size), (arrays[name] for name in ("turns", "signs", "picked"))
        if turns.shape != (n, 2, size // 2) or signs.shape != (n, 2, size) or picked.shape != (n_bits,):
            raise InputError("the rotation of the stored hash has the wrong size")
        if turns.dtype != np.float32 or signs.dtype != np.float32 or picked.dtype != np.int64:
            raise InputError("the rotation of the stored hash has the wrong dtype")
        if picked.min() < 0 or picked.max() >= size or not np.isfinite(turns).all() or not (np.abs(signs) == 1).all():
            raise InputError("the rotation of the stored hash has values that are not valid")
        self.turns, self.signs = list(turns[..., None]), list(signs[..., None])
        self.rows = [picked[start : start + size].astype(np.intp) for start in range(0, n_bits, size)]
        return self

    @property
    def block_rows(self) -> int:
        """The number of vectors to project at once."""
        # NumPy works on all vectors of a block at once and needs many of them; the kernel takes them one by one.
        return max(64 if kernel.native is None else 4, BLOCK_NUMBERS >> self.log_size)

    def project(self, block: Float32) -> Float32:
        """Return the projections (B, n_bits) of vectors (B, D)."""
        return self._project_in_numpy(block) if kernel.native is None else self._project_natively(block)

    def _project_in_numpy(self, block: Float32) -> Float32:
        # Everything is done on the transposed block, (P, B): each operation then runs over long contiguous pieces.
        size, n = 1 << self.log_size, len(block)
        vectors, a, b = (np.empty((size, n), np.float32) for _ in range(3))
        # A row stride that is a power of two would put a whole column into the same few lines of the cache.
        spaced = np.empty((n, self.dim + 16), np.float32)
        spaced[:, : self.dim] = block
        vectors[: self.dim] = spaced[:, : self.dim].T
        vectors[self.dim :] = 0
        out = np.empty((self.n_bits, n), np.float32)
        done = 0
        for turn, signs, rows in zip(self.turns, self.signs, self.rows, strict=True):
            a, b = _turn(vectors, turn, a, b)
            a, b = _walsh_hadamard(a, b, self.log_size)
            for sign in signs:
                a *= sign
                a, b = _walsh_hadamard(a, b, self.log_size)
            np.take(a, rows, axis=0, out=out[done : done + len(rows)])
            done += len(rows)
        projections: Float32 = out.T
        return projections

    def _project_natively(self, block: Float32) -> Float32:
        """Return the same numbers as NumPy, to the last bit."""
        size, n = 1 << self.log_size, len(block)
        vectors = block
        if self.dim < size:
            vectors = np.zeros((n, size), np.float32)
            vectors[:, : self.dim] = block
        upper, lower = vectors[:, : size // 2], vectors[:, size // 2 :]
        out = np.empty((n, self.n_bits), np.float32)
        done = 0
        for (cos, sin), signs, rows in zip(self.turns, self.signs, self.rows, strict=True):
            cos, sin = cos[:, 0], sin[:, 0]
            turned = np.concatenate([upper * cos + lower * sin, upper * sin - lower * cos], axis=1)
            kernel.native.rotate(turned, signs[:, :, 0], 1)
            out[:, done : done + len(rows)] = np.take(turned, rows, axis=1)
            done += len(rows)
        return out


def _turn(x: Float32, turn: Float32, out: Float32, spare: Float32) -> tuple[Float32, Float32]:
    """Multiply each pair (x_i, x_{i + P/2}) by [[cos, sin], [sin, -cos]]; return `out` and `spare`."""
    half = len(x) // 2
    cos, sin = turn
    np.multiply(x[:half], cos, out=out[:half])
    np.multiply(x[half:], sin, out=spare[:half])
    out[:half] += spare[:half]
    np.multiply(x[:half], sin, out=out[half:])
    np.multiply(x[half:], cos, out=spare[half:])
    out[half:] -= spare[half:]
    return out, spare


def _walsh_hadamard(a: Float32, b: Float32, log_size: int) -> tuple[Float32, Float32]:
    """Return the Walsh-Hadamard transform of each column of `a` (P, B), without its scale, and the other buffer.

    The result has the upper and the lower half of the binary digits of its row numbers swapped. They are swapped
    halfway because NumPy sums pieces of P/2 to sqrt(P) rows several times as fast as the short pieces that would
    follow.
    """
    n = a.shape[1]
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
    """Projections on stored directions (n_bits, D), by a product whose bits do not depend on the batch."""

    def __init__(self, directions: NDArray[Any]) -> None:
        self.directions = directions
        self.n_bits = len(directions)
        self._product: ExactProduct | None = None

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what was drawn, as arrays for a file."""
        return {"directions": self.directions}

    @classmethod
    def from_state(cls, dim: int, n_bits: int, arrays: dict[str, NDArray[Any]]) -> Dense:
        """Return the rotation that `state` describes; refuse (InputError, KeyError) what does not fit the size."""
        directions = arrays["directions"]
        if directions.shape != (n_bits, dim) or directions.dtype.kind != "f" or not np.isfinite(directions).all():
            raise InputError("the directions of the stored hash have the wrong size or dtype, or are not finite")
        return cls(directions)

    @property
    def block_rows(self) -> int:
        """The number of vectors to project at once."""
        return max(64, BLOCK_NUMBERS // int(max(self.directions.shape)))

    def project(self, block: Float32) -> NDArray[np.float64]:
        """Return the projections (B, n_bits) of vectors (B, D)."""
        if self._product is None:
            self._product = ExactProduct(self.directions.astype(np.float64))
        return self._product(block.astype(np.float64))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_product": None}  # several times as large as the directions it is made from


def make_rotation(kind: str, dim: int, n_bits: int, random: np.random.RandomState) -> Hadamard | Dense:
    """Draw a rotation: "hadamard", "orthogonal" (blocks of D orthonormal rows) or "gaussian" (independent rows)."""
    if kind == "hadamard":
        return Hadamard(dim, n_bits, random)
    if kind == "gaussian":
        return Dense(random.standard_normal((n_bits, dim)).astype(np.float32))
    if dim == 1:  # where `directions` knows one slice only; here a sign is left to draw
        return Dense((2 * random.randint(2, size=(n_bits, 1), dtype=np.int64) - 1).astype(np.float32))
    return Dense(directions("orthogonal", n_bits, dim, random))
