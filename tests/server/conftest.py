"""A server with one index of clouds, for the tests that change nothing."""

from __future__ import annotations

import numpy as np
import pytest

import slosh
from builders import cloud_list, small_embedding
from server_process import Server

pytest.importorskip("fastapi", reason="the server needs slosh[server]")
pytest.importorskip("uvicorn", reason="the server needs slosh[server]")
pytest.importorskip("msgspec", reason="the server needs slosh[server]")

N_SETS = 60


def fill(folder, name="shapes", dim=2, **options):
    """Create an index in a folder, and return its path."""
    path = folder / f"{name}.slosh"
    sets = cloud_list(N_SETS, dim=dim)
    with slosh.SetIndex.create(path, dim, embedding=small_embedding(), n_jobs=1, **options) as index:
        metadata = [{"kind": "chair" if i % 2 else "sofa", "n": i, "deep": {"er": i % 3}} for i in range(N_SETS)]
        index.add(sets, ids=[f"s{i}" for i in range(N_SETS)], metadata=metadata)
    return path


@pytest.fixture(scope="package")
def filled(tmp_path_factory):
    """A folder with the indexes `shapes` (2 features) and `wide` (5 features)."""
    folder = tmp_path_factory.mktemp("served")
    fill(folder)
    fill(folder, "wide", 5)
    return folder


@pytest.fixture(scope="package")
def server(filled):
    with Server(filled, options=("--jobs", 1)) as made:
        yield made
    assert not [line for line in made.errors if "Traceback" in line], "".join(made.errors)


@pytest.fixture
def query():
    return np.round(cloud_list(1, seed=5)[0].astype(float), 3)
