"""Parquet files with sets, their contents in plain NumPy, and what a job has written, for tests of batch jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slosh
from builders import clouds, split

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet as pq  # noqa: E402


def table_of(sets: slosh.Sets, ids: list[str], **others: Any) -> pa.Table:
    """Return a table with the columns id, points, weights if there are any, and others."""
    columns = {"id": ids, "points": sets.to_arrow(), **others}
    if sets.weights is not None:
        columns["weights"] = pa.LargeListArray.from_arrays(pa.array(sets.offsets), pa.array(sets.weights))
    return pa.table(columns)


def write_tables(folder: Path, n_files: int = 3, n: int = 100, group: int = 60, **options: Any) -> None:
    """Write files a.parquet, b.parquet, ... of n sets; the ids are a-0, a-1, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(n_files):
        name = chr(ord("a") + number)
        sets = clouds(n, dim=3, seed=number, **options)
        table = table_of(sets, [f"{name}-{i}" for i in range(n)], kind=[f"k{i % 3}" for i in range(n)])
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=group)


def stored_sets(folder: Path) -> dict[str, np.ndarray]:
    """Return the points of all sets of a folder of tables, by id, read with pyarrow alone."""
    table = pq.read_table(folder)
    return {row["id"]: np.array(row["points"], np.float32) for row in table.to_pylist()}


def vectors_of(folder: Path) -> dict[str, np.ndarray]:
    """Return the vectors that a job has written, by id; every id must be there once."""
    rows = pq.read_table(folder).to_pylist()
    found = {row["id"]: np.array(row["vector"], np.float32) for row in rows}
    assert len(found) == len(rows), "a set is there twice"
    return found


def expected_vectors(folder: Path, embedding: Any) -> dict[str, np.ndarray]:
    """Return what an embedding makes of every set of a folder by itself."""
    points = stored_sets(folder)
    return {name: embedding.transform([x])[0] for name, x in points.items()}


def shard_contents(folder: Path) -> dict[str, bytes]:
    """Return the points of all sets of a folder of shards, by id; every id must be there once."""
    found: dict[str, bytes] = {}
    for place in sorted((folder / "shards").glob("*.slosh")):
        with slosh.open(place, read_only=True) as index:
            sets, ids, _ = index.get(index.ids)
            assert not found.keys() & set(ids), "a set is in two shards"
            found |= {name: x.tobytes() for name, x in zip(ids, split(sets), strict=True)}
    return found


def same_vectors(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    """Return whether both have the same ids, and vectors of the same bits."""
    return found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in expected)
