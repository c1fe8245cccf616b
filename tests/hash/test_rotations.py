"""Random rotations: against their formula, orthonormal, and with the same bits on every kernel."""

from __future__ import annotations

import math

import numpy as np
import pytest
from collisions import gauss
from rotation_oracle import projections

from slosh.hash.rotations import Hadamard
from slosh.native import kernel


def test_every_kernel_rotates_to_the_same_bits(each_kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for dim, n_bits in ((1, 1), (100, 300), (128, 128), (129, 7), (1024, 1500), (3000, 64)):
        rotation, block = Hadamard.draw(dim, n_bits, np.random.RandomState(1)), gauss(9, dim)
        found = rotation.project(block)
        np.testing.assert_allclose(found, projections(rotation.state(), block), atol=1e-5 * math.sqrt(dim))
        with monkeypatch.context() as patch:
            patch.setattr(kernel, "native", None)
            np.testing.assert_array_equal(rotation.project(block), found)


@pytest.mark.parametrize("dim", [128, 512])
def test_a_hadamard_rotation_is_orthonormal(dim: int) -> None:
    rotation = Hadamard.draw(dim, 2 * dim, np.random.RandomState(0))
    first, second = rotation.project(np.eye(dim, dtype=np.float32)).T.astype(float).reshape(2, dim, dim)
    for matrix in (first, second):
        np.testing.assert_allclose(matrix @ matrix.T, np.eye(dim), atol=1e-5)
    assert np.abs(first @ second.T).max() < 6 / math.sqrt(dim)
