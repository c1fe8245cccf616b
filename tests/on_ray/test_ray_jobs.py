"""Batch jobs on Ray: the same results as in one process, whoever is killed in the middle."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

import dying
import slosh
from batch_data import expected_vectors, pa, pq, same_vectors, shard_contents, stored_sets, table_of, vectors_of
from batch_data import write_tables as write
from builders import PATIENCE, clouds, contents, make_index, plain_answer, small_embedding, split
from postgres_server import shared_server
from slosh.batch import embedding
from slosh.embed import Whitened
from slosh.errors import DuplicateId, InputError, ReaderError, StorageError, WorkerLost
from slosh.ray.running import RayRunner

pytestmark = pytest.mark.usefixtures("ray")


def embedder():
    return small_embedding().fit(clouds(3, dim=3))


@pytest.fixture
def tables(tmp_path):
    write(tmp_path / "tables")
    return tmp_path / "tables"


@pytest.fixture
def small_tasks(monkeypatch):
    """One row group a task: six tasks."""
    monkeypatch.setattr(embedding, "TASK_BYTES", 1)


@pytest.fixture
def dying_runner(ray, tmp_path):
    """Makes runners whose first task kills its worker at a place."""
    ray.cloudpickle.register_pickle_by_value(dying)
    yield lambda place: dying.DyingRunner(tmp_path / f"killed-{place}", place)
    ray.cloudpickle.unregister_pickle_by_value(dying)


def expected_points(tables):
    return {name: x.tobytes() for name, x in stored_sets(tables).items()}


def test_vectors_are_those_of_one_process(tables, tmp_path, small_tasks):
    seen = []
    report = slosh.ray.embed(tables, tmp_path / "out", embedder(), progress=lambda *x: seen.append(x))
    assert report[:3] == (300, 0, 6)
    assert seen[-1] == (300, 300)
    assert same_vectors(vectors_of(tmp_path / "out"), expected_vectors(tables, embedder()))
    assert slosh.ray.embed(tables, tmp_path / "out", embedder())[:3] == (0, 300, 0)


def test_shards_are_those_of_one_process(tables, tmp_path):
    spec = slosh.batch.learn(tables, Whitened(small_embedding(), n_components=3))
    assert slosh.ray.build(tmp_path / "s", tables, spec, shard_sets=60)[:3] == (300, 0, 6)
    slosh.batch.build(tmp_path / "t", tables, spec, shard_sets=60)
    assert shard_contents(tmp_path / "s") == shard_contents(tmp_path / "t") == expected_points(tables)
    names = [sorted(path.name for path in (tmp_path / x / "shards").iterdir()) for x in "st"]
    assert names[0] == names[1]
    for name in names[0]:
        with slosh.open(tmp_path / "s/shards" / name) as a, slosh.open(tmp_path / "t/shards" / name) as b:
            found = [index.search(clouds(1, dim=3, seed=77), k=60, recall=1.0)[0] for index in (a, b)]
        assert plain_answer(found[0]) == plain_answer(found[1])


def test_one_index(tables, tmp_path):
    assert slosh.ray.build(tmp_path / "x.slosh", tables, embedder())[:2] == (300, 0)
    assert slosh.ray.build(tmp_path / "x.slosh", tables, embedder())[:2] == (0, 300)
    with slosh.open(tmp_path / "x.slosh") as index, make_index(None, 3, embedding=embedder()) as expected:
        expected.add(slosh.readers.read(tables))
        assert contents(index) == contents(expected)


def test_an_index_in_a_database(tables, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("slosh.batch.building.TASK_BYTES", 1)
    address = f"{shared_server().url}#batch{uuid4().hex}"
    assert slosh.ray.build(address, tables, embedder())[:3] == (300, 0, 6)
    assert slosh.ray.build(address, tables, embedder())[:2] == (0, 300)
    with slosh.open(address) as index:
        assert sorted(index.ids) == sorted(stored_sets(tables))
        index.destroy()


# -- datasets of Ray ---------------------------------------------------------------------------------------------------


@pytest.fixture
def dataset(ray, monkeypatch):
    data = pytest.importorskip("ray.data", reason="ray[data] is not installed")
    data.DataContext.get_current().enable_progress_bars = False
    return data


def test_embed_within_a_dataset(dataset, tables):
    found = dataset.read_parquet(str(tables)).map_batches(
        slosh.batch.embed, fn_kwargs={"spec": embedder()}, batch_format="pyarrow", batch_size=64
    )
    rows = found.take_all()
    expected = expected_vectors(tables, embedder())
    assert same_vectors({row["id"]: np.asarray(row["vector"], np.float32) for row in rows}, expected)


def test_a_dataset_of_arrays_becomes_vectors_and_shards(dataset, tmp_path):
    """Ray keeps arrays of different lengths as tensors of its own."""
    sets = split(clouds(40, dim=3))
    rows = dataset.from_items([{"id": f"s{i}", "points": x} for i, x in enumerate(sets)])
    slosh.ray.embed(rows, tmp_path / "out", embedder())
    expected = {f"s{i}": embedder().transform([x])[0] for i, x in enumerate(sets)}
    assert same_vectors(vectors_of(tmp_path / "out"), expected)
    slosh.ray.build(tmp_path / "s", rows, embedder(), shard_sets=15)
    assert shard_contents(tmp_path / "s") == {f"s{i}": x.tobytes() for i, x in enumerate(sets)}
    with pytest.raises(InputError, match="already") as caught:
        slosh.ray.build(tmp_path / "s", rows, embedder(), shard_sets=15)
    assert caught.value.argument == "source"


def items(dataset, points):
    return dataset.from_items([{"id": f"s{i}", "points": np.array(x)} for i, x in enumerate(points)])


def test_a_dataset_with_an_error_says_where_its_copy_is(dataset, tmp_path):
    good = np.ones((2, 3))
    with pytest.raises(ReaderError) as caught:
        slosh.ray.embed(items(dataset, [good, [[0.0, np.nan, 1.0], [0.0, 1.0, 2.0]]]), tmp_path / "out", embedder())
    assert str(tmp_path / "out.staged") in caught.value.remedy
    shutil.rmtree(tmp_path / "out")
    slosh.ray.embed(items(dataset, [good, 2 * good]), tmp_path / "out", embedder())
    assert np.array_equal(vectors_of(tmp_path / "out")["s1"], embedder().transform([2 * good])[0])


def test_a_target_that_was_removed_takes_a_dataset_again(dataset, tmp_path):
    for n in (2, 3):
        slosh.ray.build(tmp_path / "x.slosh", items(dataset, clouds(n, dim=3)), embedder())
        with slosh.open(tmp_path / "x.slosh") as index:
            assert len(index) == n
        shutil.rmtree(tmp_path / "x.slosh")


def test_a_dataset_is_not_written_if_the_job_cannot_run(dataset, tmp_path):
    rows = items(dataset, clouds(2, dim=3))
    for options, argument in (({"colums": "x"}, "colums"), ({"num_cpus": 640}, "num_cpus"), ({"spec": 3}, "spec")):
        with pytest.raises(InputError) as caught:
            slosh.ray.embed(rows, tmp_path / "out", **{"spec": embedder(), **options})
        assert caught.value.argument == argument
    with pytest.raises(InputError, match="no rows"):
        slosh.ray.embed(rows.filter(lambda row: False), tmp_path / "out", embedder())
    assert list(tmp_path.iterdir()) == []


# -- killed in the middle ----------------------------------------------------------------------------------------------


def test_a_worker_that_is_killed_while_it_writes_vectors(tables, tmp_path, small_tasks, dying_runner):
    run = dying_runner("embed")
    assert slosh.batch.embed_files(tables, tmp_path / "out", embedder(), run=run)[:3] == (300, 0, 6)
    assert (tmp_path / "killed-embed").exists()
    assert same_vectors(vectors_of(tmp_path / "out"), expected_vectors(tables, embedder()))


@pytest.mark.parametrize("place", ["add", pytest.param("shard", marks=pytest.mark.long)])
def test_a_worker_that_is_killed_while_it_writes_a_shard(place, tables, tmp_path, dying_runner):
    run = dying_runner(place)
    slosh.batch.build(tmp_path / "s", tables, embedder(), shard_sets=100, run=run)
    assert (tmp_path / f"killed-{place}").exists()
    assert shard_contents(tmp_path / "s") == expected_points(tables)
    assert not list((tmp_path / "s" / "shards").glob(".*"))


def test_a_worker_that_is_killed_while_it_writes_to_a_database(tables, tmp_path, dying_runner, monkeypatch):
    monkeypatch.chdir(tmp_path)
    address = f"{shared_server().url}#batch{uuid4().hex}"
    assert slosh.batch.build(address, tables, embedder(), run=dying_runner("add"), n_jobs=1).sets == 300
    assert (tmp_path / "killed-add").exists()
    with slosh.open(address) as index:
        assert sorted(index.ids) == sorted(stored_sets(tables))
        index.destroy()
    assert slosh.batch.build(address, tables, embedder(), n_jobs=1)[:2] == (300, 0)  # it is built from the start
    with slosh.open(address) as index:
        assert len(index) == 300
        index.destroy()


@pytest.mark.long
def test_a_worker_that_always_dies_is_an_error_of_slosh(tables, tmp_path, dying_runner):
    with pytest.raises(WorkerLost) as caught:
        slosh.batch.embed_files(tables, tmp_path / "out", embedder(), run=dying_runner("always"))
    assert caught.value.attempts == 4
    assert caught.value.location == str(tables / "a.parquet")
    assert "memory" in caught.value.remedy


DRIVER = """
import os, signal, sys, ray, slosh
from slosh.batch import embedding
embedding.TASK_BYTES = 1
address, job, source, target, after = sys.argv[1:]
ray.init(address, log_to_driver=False)
left = int(after)
def progress(done, total):
    global left
    left -= 1
    if left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
spec = slosh.embed.SlicedWasserstein(n_slices=4, n_quantiles=4, n_jobs=1)
if job == "embed":
    slosh.ray.embed(source, target, spec, progress=progress)
else:
    slosh.ray.build(target, source, spec, shard_sets=60, progress=progress)
"""


def run_driver(ray, *given):
    address = ray.get_runtime_context().gcs_address
    script = [sys.executable, "-c", DRIVER, address, *map(str, given)]
    return subprocess.run(script, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.parametrize(
    ("job", "after"),
    [("build", 2), *(pytest.param(job, n, marks=pytest.mark.long) for job in ("embed", "build") for n in (1, 3, 5))],
)
def test_a_driver_that_is_killed(job, after, ray, tables, tmp_path, small_tasks):
    killed = run_driver(ray, job, tables, tmp_path / "out", after)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    spec = small_embedding()
    if job == "embed":
        report = slosh.ray.embed(tables, tmp_path / "out", spec)
        assert same_vectors(vectors_of(tmp_path / "out"), expected_vectors(tables, spec.fit(clouds(3, dim=3))))
    else:
        report = slosh.ray.build(tmp_path / "out", tables, spec, shard_sets=60)
        assert shard_contents(tmp_path / "out") == expected_points(tables)
    assert report.sets + report.skipped == 300
    assert report.skipped >= 40


# -- errors are those of slosh -----------------------------------------------------------------------------------------


def test_bad_input_is_no_traceback_of_ray(tables, tmp_path):
    points = [x.tolist() for x in split(clouds(5, dim=3))]
    points[3][0][1] = float("nan")
    pq.write_table(pa.table({"id": list("vwxyz"), "points": points, "kind": list("vwxyz")}), tables / "z.parquet")
    with pytest.raises(ReaderError) as caught:
        slosh.ray.embed(tables, tmp_path / "out", embedder())
    error = caught.value
    assert (error.location, error.row, error.id, error.feature) == (str(tables / "z.parquet"), 3, "y", 1)
    assert "ray" not in type(error).__module__
    assert error.remedy


def test_an_id_in_two_files(tables, tmp_path):
    pq.write_table(table_of(clouds(1, dim=3), ["b-5"], kind=["k"]), tables / "z.parquet")
    with pytest.raises(DuplicateId) as caught:
        slosh.ray.build(tmp_path / "s", tables, embedder(), shard_sets=100)
    assert caught.value.id == "b-5"
    assert "b.parquet, row 5" in str(caught.value)
    assert "z.parquet, row 0" in str(caught.value)


def test_tasks_that_no_machine_can_run(tables, tmp_path):
    with pytest.raises(InputError, match="num_cpus=64,") as caught:
        slosh.ray.embed(tables, tmp_path / "out", embedder(), num_cpus=64)
    assert caught.value.argument == "num_cpus"
    assert "at most 2" in caught.value.remedy


class Raises:
    """Work that fails as a system or a process without room does."""

    def __init__(self, error):
        self.error = error

    def __call__(self, task):
        raise self.error


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), MemoryError()])
def test_errors_of_the_system_are_those_of_slosh(error, ray):
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        with pytest.raises(StorageError if isinstance(error, OSError) else WorkerLost, match="task 'x'") as caught:
            list(RayRunner()(Raises(error), ["x"]))
    finally:
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert caught.value.remedy


# -- graphs ------------------------------------------------------------------------------------------------------------


def test_graphs_are_those_of_one_process(tmp_path, monkeypatch):
    with make_index(tmp_path / "x.slosh") as index:
        index.add(clouds(120, largest=8))
    slosh.ray.neighbor_graph(tmp_path / "x.slosh", 4, tmp_path / "g", part_sets=50)
    slosh.batch.neighbor_graph(tmp_path / "x.slosh", 4, tmp_path / "h", part_sets=50)
    assert pq.read_table(tmp_path / "g").equals(pq.read_table(tmp_path / "h"))
    assert pq.read_table(tmp_path / "g").num_rows == 480
    slosh.ray.duplicates(tmp_path / "x.slosh", 0.5, tmp_path / "d", part_sets=50)
    with slosh.open(tmp_path / "x.slosh") as index:
        assert pq.read_table(tmp_path / "d").num_rows == len(index.duplicates(0.5)) > 0
    monkeypatch.chdir(tmp_path)
    assert slosh.ray.neighbor_graph("x.slosh", 4, "relative")[:2] == (120, 0)
    with make_index(None) as index, pytest.raises(InputError, match="memory"):
        slosh.ray.neighbor_graph(index, 3, tmp_path / "e")


def test_ray_is_imported_when_it_is_used():
    script = (
        "import sys, slosh.ray, slosh.batch; slosh.ray.build, slosh.ray.neighbor_graph; assert 'ray' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(slosh.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE, env=environment)


def test_shards_that_were_built_are_served_as_one_index(tables, tmp_path):
    """What `build` writes as shards `serve` searches, with the answers of one index of all sets."""
    fitted = embedder()
    slosh.ray.build(tmp_path / "collection", tables, fitted, shard_sets=70)
    slosh.ray.build(tmp_path / "whole.slosh", tables, fitted)
    served = slosh.ray.serve(tmp_path / "collection", timeout=PATIENCE)
    with served, slosh.open(tmp_path / "whole.slosh") as whole:
        assert len(served) == len(whole) == 300
        assert len(served.shards) > 2
        queries = whole.get(whole.ids[:5]).sets
        found, truth = (index.search(queries, k=7, recall=1.0, where={"kind": "k1"}) for index in (served, whole))
        assert found.ids == truth.ids
        assert [each.distances.tolist() for each in found] == [each.distances.tolist() for each in truth]
