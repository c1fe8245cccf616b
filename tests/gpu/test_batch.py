"""Batch jobs whose embedding has a device use it, also where they go on; what they keep does not know of it."""

from __future__ import annotations

import pytest

import slosh
from builders import clouds
from slosh.embed import SlicedWasserstein

pytest.importorskip("pyarrow")


class Stop(Exception):
    """What ends a job in the middle."""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "in").mkdir()
    for i in range(3):
        with slosh.SetIndex.create(None, dim=3) as index:
            index.add(clouds([5, 9, 3, 8], 3, i), ids=[f"{i}-{j}" for j in range(4)])
            index.export(tmp_path / "in" / f"{i}.parquet")
    return tmp_path / "in"


def stopping_after(n):
    def progress(done, total):
        nonlocal n
        n -= 1
        if n <= 0:
            raise Stop

    return progress


@pytest.mark.parametrize("fitted", [True, False])
@pytest.mark.parametrize("job", ["vectors", "index", "shards"])
def test_a_job_goes_on_with_the_device(pretended_gpu, files, tmp_path, monkeypatch, job, fitted):
    for module in ("embedding", "building"):
        monkeypatch.setattr(f"slosh.batch.{module}.TASK_BYTES", 1)
    embedding = SlicedWasserstein(8, 4, device="cuda")
    if fitted:
        embedding.fit(clouds([5], 3, 0))

    def run(**options):
        if job == "vectors":
            return slosh.batch.embed_files(files, tmp_path / "out", embedding, **options)
        shards = {"shard_sets": 4} if job == "shards" else {}
        return slosh.batch.build(tmp_path / "out", files, embedding, **shards, **options)

    with pytest.raises(Stop):
        run(progress=stopping_after(2))
    assert pretended_gpu.count("embed") > 0
    pretended_gpu.calls.clear()
    run()
    assert pretended_gpu.count("embed") >= 4
    embedding.device = None  # another machine may go on with it
    run()
