"""Tests of learning need torch; fits as small as theirs take one thread."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(autouse=True)
def one_thread():
    """Fits as small as these are faster on one thread, above all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
