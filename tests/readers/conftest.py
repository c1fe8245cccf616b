"""Shared by the tests of readers: good files of every format, and a bound on the memory."""

from __future__ import annotations

import tracemalloc

import pytest
from reader_files import samples


@pytest.fixture
def little_memory():
    """The test fails if a reader takes much memory for what a header says."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300 << 20


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    return folder, samples(folder)
