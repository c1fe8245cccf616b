"""`slosh.batch.embed` under other programs: a plain loop over Parquet files, Dask, and Spark."""

from __future__ import annotations

import os
import shutil
import sys
from functools import partial

import numpy as np
import pytest

import slosh
from batch_data import expected_vectors, pa, pq, same_vectors, vectors_of
from builders import clouds, small_embedding


def embedder():
    return small_embedding().fit(clouds(3, dim=3))


def test_a_plain_loop(tables, tmp_path):
    (tmp_path / "out").mkdir()
    for path in sorted(tables.glob("*.parquet")):
        batches = [slosh.batch.embed(batch, embedder()) for batch in pq.ParquetFile(path).iter_batches(batch_size=33)]
        pq.write_table(pa.Table.from_batches(batches), tmp_path / "out" / path.name)
    assert same_vectors(vectors_of(tmp_path / "out"), expected_vectors(tables, embedder()))


def test_dask(tables):
    dask = pytest.importorskip("dask", reason="Dask is not installed")
    frames = pytest.importorskip("dask.dataframe", reason="dask[dataframe] is not installed")
    spec = embedder()
    made = [
        dask.delayed(lambda path: slosh.batch.embed(pq.read_table(path), spec))(p) for p in tables.glob("*.parquet")
    ]
    rows = pa.concat_tables(dask.compute(*made)).to_pylist()
    expected = expected_vectors(tables, spec)
    assert same_vectors({row["id"]: np.array(row["vector"], np.float32) for row in rows}, expected)

    def embed(frame):
        return slosh.batch.embed(pa.Table.from_pandas(frame, preserve_index=False), spec).to_pandas()

    frame = frames.read_parquet(str(tables))
    found = frame.map_partitions(embed, meta={"id": "object", "kind": "object", "vector": "object"}).compute()
    assert same_vectors(dict(zip(found["id"], found["vector"], strict=True)), expected)


def embed_batches(batches, spec):
    for batch in batches:
        yield slosh.batch.embed(batch, spec, fixed_size=False)


def test_spark(tables, monkeypatch):
    sql = pytest.importorskip("pyspark.sql", reason="PySpark is not installed")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, which is not installed")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        frame = spark.read.parquet(str(tables))
        schema = "id string, kind string, vector array<float>"
        rows = frame.mapInArrow(partial(embed_batches, spec=embedder()), schema).collect()
    finally:
        spark.stop()
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    found = {row["id"]: np.array(row["vector"], np.float32) for row in rows}
    assert len(rows) == 300
    assert same_vectors(found, expected_vectors(tables, embedder()))
