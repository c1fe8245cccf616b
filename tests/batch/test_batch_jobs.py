"""Jobs in one process: folders of vectors, indexes and shards, that go on where they stopped and name what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import slosh
from batch_data import expected_vectors, pa, pq, same_vectors, shard_contents, stored_sets, table_of, vectors_of
from batch_data import write_tables as write
from builders import PATIENCE, clouds, contents, small_embedding, split
from slosh.batch import building, embedding, sources
from slosh.batch.learning import fingerprint
from slosh.embed import Whitened
from slosh.errors import (
    DamagedError,
    DuplicateId,
    IndexExists,
    IndexLocked,
    InputError,
    ReaderError,
    SourceChanged,
    SourceNotFound,
)


def embedder():
    return small_embedding().fit(clouds(3, dim=3))


def small_tasks(monkeypatch):
    """One row group a task, and few sets a batch."""
    monkeypatch.setattr(embedding, "TASK_BYTES", 1)
    monkeypatch.setattr(building, "TASK_BYTES", 1)
    monkeypatch.setattr(sources, "BATCH_NUMBERS", 500)


class Stop(Exception):
    """What ends a job in the middle."""


def stopping_after(n):
    def progress(done, total):
        nonlocal n
        n -= 1
        if n <= 0:
            raise Stop

    return progress


# -- vectors -----------------------------------------------------------------------------------------------------------


def test_vectors_of_a_folder(tables, tmp_path, monkeypatch):
    small_tasks(monkeypatch)
    seen = []
    report = slosh.batch.embed_files(tables, tmp_path / "out", embedder(), progress=lambda *x: seen.append(x))
    assert report[:3] == (300, 0, 6)
    assert seen[-1] == (300, 300)
    assert same_vectors(vectors_of(tmp_path / "out"), expected_vectors(tables, embedder()))
    made = pq.read_table(tmp_path / "out")
    assert made.column_names == ["id", "kind", "vector"]
    assert made.schema.field("vector").type.list_size == 16
    assert slosh.batch.embed_files(tables, tmp_path / "out", embedder())[:3] == (0, 300, 0)


def test_what_is_finished_is_not_done_again(tables, tmp_path, monkeypatch):
    small_tasks(monkeypatch)
    with pytest.raises(Stop):
        slosh.batch.embed_files(tables, tmp_path / "out", embedder(), progress=stopping_after(2))
    first = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.parquet")}
    assert len(first) == 2
    (tmp_path / "out" / ".a.parquet.0123.tmp").write_bytes(b"left behind by a process that was killed")
    report = slosh.batch.embed_files(tables, tmp_path / "out", embedder())
    assert report[:3] == (200, 100, 4)
    assert first.items() <= {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").glob("*.parquet")}.items()
    assert same_vectors(vectors_of(tmp_path / "out"), expected_vectors(tables, embedder()))
    assert not list((tmp_path / "out").glob(".*.tmp"))


def test_new_and_changed_files_are_done_and_others_are_not(tables, tmp_path, monkeypatch):
    small_tasks(monkeypatch)
    slosh.batch.embed_files(tables, tmp_path / "out", embedder())
    pq.write_table(
        table_of(clouds(50, dim=3, seed=9), [f"b-{i}" for i in range(50)], kind=["k"] * 50), tables / "b.parquet"
    )
    pq.write_table(
        table_of(clouds(7, dim=3, seed=8), [f"d-{i}" for i in range(7)], kind=["k"] * 7), tables / "d.parquet"
    )
    report = slosh.batch.embed_files(tables, tmp_path / "out", embedder())
    assert report[:2] == (57, 200)
    assert same_vectors(vectors_of(tmp_path / "out"), expected_vectors(tables, embedder()))
    before = vectors_of(tmp_path / "out")
    (tables / "d.parquet").unlink()  # what was made of it stays
    assert slosh.batch.embed_files(tables, tmp_path / "out", embedder())[:3] == (0, 250, 0)
    assert same_vectors(vectors_of(tmp_path / "out"), before)


def test_a_torn_line_of_the_ledger_is_dropped(tables, tmp_path, monkeypatch):
    small_tasks(monkeypatch)
    out = tmp_path / "out"
    slosh.batch.embed_files(tables, out, embedder())
    ledger = out / "_slosh.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-9])
    assert slosh.batch.embed_files(tables, out, embedder()).parts == 1
    assert len(vectors_of(out)) == 300
    lines = ledger.read_bytes().splitlines()
    assert len([json.loads(line) for line in lines]) == 7
    ledger.write_bytes(b"\n".join([lines[0], b"{rubbish", *lines[1:]]) + b"\n")
    with pytest.raises(DamagedError, match="damaged"):
        slosh.batch.embed_files(tables, out, embedder())


def test_another_job_in_the_same_folder_is_refused(tables, tmp_path):
    out = tmp_path / "out"
    slosh.batch.embed_files(tables, out, embedder())
    with pytest.raises(InputError, match="spec") as caught:
        slosh.batch.embed_files(tables, out, small_embedding(n_slices=2).fit(clouds(3, dim=3)))
    assert caught.value.argument == "spec"
    with pytest.raises(InputError, match="reading"):
        slosh.batch.embed_files(tables, out, embedder(), columns="points")
    with pytest.raises(InputError, match="'embed'"):
        slosh.batch.build(out, tables, embedder(), shard_sets=10)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    with pytest.raises(InputError, match="other things"):
        slosh.batch.embed_files(tables, tmp_path / "full", embedder())


def test_two_processes_do_not_run_one_job(tables, tmp_path):
    caught = []

    def again(done, total):
        script = f"import slosh; slosh.batch.embed_files({str(tables)!r}, {str(tmp_path / 'out')!r})"
        caught.append(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE))

    slosh.batch.embed_files(tables, tmp_path / "out", progress=again)
    assert IndexLocked.__name__ in caught[0].stderr


def test_what_is_learnt_is_learnt_once(tables, tmp_path, monkeypatch):
    small_tasks(monkeypatch)
    chosen = Whitened(small_embedding(), n_components=3)
    with pytest.raises(Stop):
        slosh.batch.embed_files(tables, tmp_path / "out", chosen, progress=stopping_after(1))
    slosh.batch.embed_files(tables, tmp_path / "out", chosen)
    spec = slosh.batch.learn(tables, chosen)
    assert same_vectors(vectors_of(tmp_path / "out"), expected_vectors(tables, spec.embedding))


def test_a_set_larger_than_a_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BATCH_NUMBERS", 64)
    sets = slosh.Sets.from_list([*split(clouds(20, dim=3)), np.random.default_rng(0).normal(size=(5000, 3))])
    (tmp_path / "in").mkdir()
    pq.write_table(table_of(sets, [str(i) for i in range(21)]), tmp_path / "in" / "a.parquet")
    slosh.batch.embed_files(tmp_path / "in", tmp_path / "out", embedder())
    assert same_vectors(vectors_of(tmp_path / "out"), expected_vectors(tmp_path / "in", embedder()))


def test_a_row_group_is_not_read_as_a_whole(tmp_path):
    """A file of one row group of 24 MB: what Arrow holds at a time is a part of it."""
    points = np.random.default_rng(0).standard_normal((2_000_000, 3), dtype=np.float32)
    sets = slosh.Sets(points, np.arange(0, 2_000_001, 1000))
    pq.write_table(table_of(sets, [str(i) for i in range(2000)]), tmp_path / "a.parquet", use_dictionary=False)
    script = f"""
import numpy, pyarrow, slosh, slosh.batch.sources
slosh.batch.sources.BATCH_NUMBERS = 1 << 18
spec = slosh.embed.SlicedWasserstein(n_slices=2, n_quantiles=2, n_jobs=1).fit(numpy.zeros((1, 2, 3)))
assert slosh.batch.embed_files({str(tmp_path / "a.parquet")!r}, {str(tmp_path / "out")!r}, spec).sets == 2000
print(pyarrow.default_memory_pool().max_memory())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert int(done.stdout) < 16e6


def test_files_that_are_no_tables(tmp_path):
    sets = split(clouds(12, dim=3))
    (tmp_path / "in" / "sub").mkdir(parents=True)
    for i, x in enumerate(sets):
        np.save(tmp_path / "in" / ("sub" if i % 2 else ".") / f"{i}.npy", x)
    slosh.batch.embed_files(tmp_path / "in", tmp_path / "out", embedder())
    read = {
        name: s for batch in slosh.readers.read(tmp_path / "in") for name, s in zip(batch.ids, batch.sets, strict=True)
    }
    assert same_vectors(vectors_of(tmp_path / "out"), {name: embedder().transform([x])[0] for name, x in read.items()})


def test_long_form_goes_through_the_readers(tmp_path):
    rows = {"shape": ["a", "a", "b"], "x": [0.0, 1, 2], "y": [0.0, 1, 2], "z": [1.0, 2, 3]}
    pq.write_table(pa.table(rows), tmp_path / "long.parquet")
    slosh.batch.embed_files(tmp_path / "long.parquet", tmp_path / "out", embedder(), id_column="shape")
    expected = {"a": [[0.0, 0, 1], [1, 1, 2]], "b": [[2.0, 2, 3]]}
    assert same_vectors(vectors_of(tmp_path / "out"), {k: embedder().transform([v])[0] for k, v in expected.items()})


def test_weights_are_used(tmp_path):
    sets = clouds(10, dim=3, weighted=True)
    pq.write_table(table_of(sets, [str(i) for i in range(10)]), tmp_path / "a.parquet")
    slosh.batch.embed_files(tmp_path / "a.parquet", tmp_path / "out", embedder(), weights="weights")
    found = vectors_of(tmp_path / "out")
    assert np.array_equal(np.stack([found[str(i)] for i in range(10)]), embedder().transform(sets))


# -- what is wrong is named --------------------------------------------------------------------------------------------


def broken(kind, folder):
    """Break a folder of tables, and return what the error must say."""
    sets, ids = clouds(20, dim=3, seed=5), [f"z-{i}" for i in range(20)]
    if kind == "nan":
        points = [x.tolist() for x in split(sets)]
        points[13][1][2] = float("nan")
        pq.write_table(pa.table({"id": ids, "points": points, "kind": ids}), folder / "z.parquet", row_group_size=8)
        return {"row": 13, "id": "z-13", "element": 1, "feature": 2, "column": "points"}
    if kind == "dimension":
        pq.write_table(table_of(clouds(20, dim=2), ids, kind=ids), folder / "z.parquet")
        return {"row": 0, "id": "z-0"}
    if kind == "column":
        pq.write_table(pa.table({"id": ids, "kind": ids}), folder / "z.parquet")
        return {"argument": "columns"}
    if kind == "not parquet":
        (folder / "z.parquet").write_text("id,x\n1,2\n")
        return {}
    raise ValueError(kind)


@pytest.mark.parametrize("kind", ["nan", "dimension", "column", "not parquet"])
@pytest.mark.parametrize("job", ["embed", "index", "shards"])
def test_bad_input_names_file_row_and_remedy(kind, job, tables, tmp_path):
    fields = broken(kind, tables)

    def run():
        if job == "embed":
            slosh.batch.embed_files(tables, tmp_path / "out", embedder())
        else:
            slosh.batch.build(tmp_path / "out", tables, embedder(), shard_sets=30 if job == "shards" else None)

    with pytest.raises(ReaderError) as caught:
        run()
    error = caught.value
    assert error.location == str(tables / "z.parquet")
    assert {name: getattr(error, name) for name in fields} == fields
    assert "z.parquet" in str(error)
    assert error.remedy or kind == "not parquet"
    if kind in ("nan", "dimension"):  # what comes before it is finished, and it goes on when the file is mended
        good = table_of(clouds(20, dim=3, seed=5), [f"z-{i}" for i in range(20)], kind=["k"] * 20)
        pq.write_table(good, tables / "z.parquet", row_group_size=8)
        run()
        if job == "index":
            with slosh.open(tmp_path / "out", read_only=True) as index:
                assert len(index) == 320
        else:
            assert len((vectors_of if job == "embed" else shard_contents)(tmp_path / "out")) == 320


@pytest.mark.parametrize("where", ["one group", "one file", "two files"])
@pytest.mark.parametrize("sharded", [True, False])
def test_an_id_that_occurs_twice(where, sharded, tables, tmp_path):
    ids = [f"z-{i}" for i in range(20)]
    ids[15] = {"one group": "z-14", "one file": "z-2", "two files": "a-7"}[where]
    pq.write_table(table_of(clouds(20, dim=3), ids, kind=ids), tables / "z.parquet", row_group_size=10)
    with pytest.raises(DuplicateId) as caught:
        slosh.batch.build(tmp_path / "out", tables, embedder(), shard_sets=30 if sharded else None)
    assert caught.value.id == ids[15]
    assert "z.parquet" in str(caught.value)
    assert caught.value.remedy
    if sharded and where == "two files":
        assert "a.parquet, row 7" in str(caught.value)
        assert "z.parquet, row 15" in str(caught.value)
        assert not list((tmp_path / "out" / "shards").glob(".*"))


def test_other_arguments_that_are_wrong(tables, tmp_path):
    with pytest.raises(SourceNotFound):
        slosh.batch.embed_files(tmp_path / "nothing", tmp_path / "out")
    with pytest.raises(InputError, match="colums= is no option"):
        slosh.batch.embed_files(tables, tmp_path / "out", colums="points")
    with pytest.raises(InputError) as caught:
        slosh.batch.embed_files(tables, tmp_path / "out", "shapes.slosh")
    assert caught.value.argument == "spec"
    with pytest.raises(InputError, match="progress"):
        slosh.batch.embed_files(tables, tmp_path / "out2", embedder(), progress=3)
    with pytest.raises(InputError, match="shard_sets"):
        slosh.batch.build(tmp_path / "out3", tables, shard_sets=0)
    with pytest.raises(InputError, match="target"):
        slosh.batch.embed_files(tables, 3)
    for call in (slosh.batch.embed_files, lambda source, target: slosh.batch.build(target, source)):
        with pytest.raises(InputError, match="within the source"):
            call(tables, tables / "out")
    with pytest.raises(ReaderError, match="named twice"):
        slosh.batch.embed_files([tables, tables / "a.parquet"], tmp_path / "out4", embedder())


@pytest.mark.parametrize("name", ["columns", "weights", "id_column"])
def test_a_column_that_is_not_there_is_noticed_before_anything_is_read(name, tables, tmp_path):
    with pytest.raises(ReaderError, match="no column 'cloud'") as caught:
        slosh.batch.embed_files(tables, tmp_path / "out", embedder(), **{name: "cloud"})
    assert caught.value.location == str(tables / "a.parquet")
    assert not (tmp_path / "out").exists()


def test_files_without_sets_and_names_that_are_taken(tables, tmp_path):
    pq.write_table(pq.read_table(tables / "a.parquet").slice(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(ReaderError, match="no sets") as caught:
        slosh.batch.embed_files(tmp_path / "empty.parquet", tmp_path / "out")
    assert caught.value.location == str(tmp_path / "empty.parquet")
    pq.write_table(pa.table({"vector": ["a"], "points": [[[0.0, 1, 2]]]}), tmp_path / "taken.parquet")
    with pytest.raises(ReaderError, match="rename that column"):
        slosh.batch.embed_files(tmp_path / "taken.parquet", tmp_path / "out")


# -- indexes and shards ------------------------------------------------------------------------------------------------


def test_an_index_has_what_add_would_store(tables, tmp_path, monkeypatch):
    small_tasks(monkeypatch)
    with pytest.raises(Stop):
        slosh.batch.build(tmp_path / "x.slosh", tables, embedder(), progress=stopping_after(2))
    report = slosh.batch.build(tmp_path / "x.slosh", tables, embedder())
    assert report[:3] == (200, 100, 4)
    with slosh.SetIndex.create(None, 3, embedding=embedder()) as expected:
        expected.add(slosh.readers.read(tables))
        with slosh.open(tmp_path / "x.slosh") as index:
            assert contents(index) == contents(expected)
            assert index.verify().ok


def test_a_batch_that_was_stored_before_a_crash_is_not_stored_again(tables, tmp_path, monkeypatch):
    """The process ended after sets were stored and before the ledger said so."""
    small_tasks(monkeypatch)
    with pytest.raises(Stop):
        slosh.batch.build(tmp_path / "x.slosh", tables, embedder(), progress=stopping_after(3))
    ledger = tmp_path / "x.slosh.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:-2]))
    slosh.batch.build(tmp_path / "x.slosh", tables, embedder())
    with slosh.open(tmp_path / "x.slosh") as index:
        assert sorted(index.ids) == sorted(stored_sets(tables))


def test_a_stranger_with_the_same_id_is_found_after_a_crash(tables, tmp_path, monkeypatch):
    small_tasks(monkeypatch)
    with pytest.raises(Stop):
        slosh.batch.build(tmp_path / "x.slosh", tables, embedder(), progress=stopping_after(1))
    with slosh.open(tmp_path / "x.slosh") as index:
        index.add([[[1.0, 2, 3]]], ids=["c-99"])
    with pytest.raises(DuplicateId) as caught:
        slosh.batch.build(tmp_path / "x.slosh", tables, embedder())
    assert caught.value.id == "c-99"


def test_a_file_that_changed_is_refused(tables, tmp_path):
    slosh.batch.build(tmp_path / "x.slosh", tables, embedder())
    slosh.batch.build(tmp_path / "shards", tables, embedder(), shard_sets=60)
    os.utime(tables / "b.parquet", ns=(1, 1))
    for target, shard_sets in (("x.slosh", None), ("shards", 60)):
        with pytest.raises(SourceChanged) as caught:
            slosh.batch.build(tmp_path / target, tables, embedder(), shard_sets=shard_sets)
        assert caught.value.location == str(tables / "b.parquet")
        assert caught.value.remedy
    shard = next((tmp_path / "shards" / "shards").glob("b-*.slosh"))
    assert str(shard.parent) in str(caught.value)


def test_an_index_of_others_is_not_added_to(tables, tmp_path):
    with slosh.SetIndex.create(tmp_path / "x.slosh", 3) as index:
        index.add(clouds(2, dim=3))
    with pytest.raises(IndexExists, match="ledger"):
        slosh.batch.build(tmp_path / "x.slosh", tables)
    assert not (tmp_path / "x.slosh.jsonl").exists() or len((tmp_path / "x.slosh.jsonl").read_text().splitlines()) == 1


def test_shards_share_what_was_learnt(tables, tmp_path):
    report = slosh.batch.build(tmp_path / "s", tables, Whitened(small_embedding(), n_components=3), shard_sets=60)
    assert report[:3] == (300, 0, 6)
    places = sorted((tmp_path / "s" / "shards").iterdir())
    assert len(places) == 6
    assert all(place.suffix == ".slosh" for place in places)
    assert json.loads((tmp_path / "s" / "shards.json").read_text())["format"] == "slosh-shards"
    specs = set()
    for place in places:
        with slosh.open(place, read_only=True) as index:
            specs.add(fingerprint(index.spec))
            assert index.verify().ok
    assert len(specs) == 1
    expected = {name: x.tobytes() for name, x in stored_sets(tables).items()}
    assert shard_contents(tmp_path / "s") == expected


def test_shards_go_on_and_grow(tables, tmp_path):
    target = tmp_path / "s"
    with pytest.raises(Stop):
        slosh.batch.build(target, tables, embedder(), shard_sets=60, progress=stopping_after(2))
    assert len(list((target / "shards").glob("*.slosh"))) == 2
    assert slosh.batch.build(target, tables, embedder(), shard_sets=60)[:3] == (200, 100, 4)
    write(tmp_path / "more", 5)
    for name in "abc":
        (tmp_path / "more" / f"{name}.parquet").unlink()
    assert slosh.batch.build(target, tmp_path / "more", embedder(), shard_sets=500)[:3] == (200, 0, 1)
    assert len(shard_contents(target)) == 500
    next((target / "shards").glob("a-*.slosh")).rename(tmp_path / "aside")
    assert slosh.batch.build(target, tables, embedder(), shard_sets=60).parts == 1
    assert len(shard_contents(target)) == 500


@pytest.mark.parametrize("after", ["ledger", "rename"])
def test_a_shard_that_was_complete_gets_its_name(after, tables, tmp_path, monkeypatch):
    """The process ends between the line of the ledger and the rename, or between two shards."""
    real = os.rename

    def rename(source, target):
        if str(target).endswith(".slosh"):
            if after == "rename":
                real(source, target)
            raise Stop
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        with pytest.raises(Stop):
            slosh.batch.build(tmp_path / "s", tables, embedder(), shard_sets=150)
    assert slosh.batch.build(tmp_path / "s", tables, embedder(), shard_sets=150).skipped == 100
    assert len(shard_contents(tmp_path / "s")) == 300
    assert not list((tmp_path / "s" / "shards").glob(".*"))


def test_the_ids_of_an_export_and_its_metadata(tmp_path):
    with slosh.SetIndex.create(None, 3, embedding=small_embedding()) as index:
        index.add(clouds(9, dim=3, weighted=True), metadata=[{"tags": ["a", "b"], "i": i} for i in range(9)])
        index.export(tmp_path / "all.parquet")
        slosh.batch.build(tmp_path / "x.slosh", tmp_path / "all.parquet", small_embedding())
        with slosh.open(tmp_path / "x.slosh") as other:
            assert contents(other) == contents(index)


def test_numbered_ids_are_those_of_the_reader(tmp_path):
    table = pa.table({"points": clouds(9, dim=3).to_arrow()})
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in" / "a.parquet", row_group_size=4)
    slosh.batch.build(tmp_path / "x.slosh", tmp_path / "in", small_embedding())
    with slosh.open(tmp_path / "x.slosh") as index:
        assert index.ids == [name for batch in slosh.readers.read(tmp_path / "in") for name in batch.ids]
