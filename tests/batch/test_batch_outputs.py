"""Folders of vectors after crashes and changes of the source: no vector is there twice, and none is lost."""

from __future__ import annotations

import os
import resource

import pytest

import slosh
from batch_data import expected_vectors, pa, pq, same_vectors, vectors_of
from batch_data import write_tables as write
from builders import clouds, small_embedding
from slosh.batch.ledger import Ledger
from slosh.errors import SourceChanged, StorageError


def embedder(**options):
    return small_embedding(**options).fit(clouds(3, dim=3))


class Killed(BaseException):
    """What ends a process at once."""


def killed_at(what, when):
    """Return an `append` of ledgers that ends the process before or after it writes a line of this kind."""
    real = Ledger.append

    def append(self, entry):
        if what in entry and when == "before":
            raise Killed
        real(self, entry)
        if what in entry:
            raise Killed

    return append


@pytest.mark.parametrize(("what", "when"), [("done", "before"), ("dropped", "before"), ("dropped", "after")])
def test_a_crash_doubles_nothing(what, when, tmp_path, monkeypatch):
    source, out = tmp_path / "in", tmp_path / "out"
    write(source, 2)
    if what == "dropped":
        slosh.batch.embed_files(source, out, embedder())
        os.utime(source / "a.parquet", ns=(1, 1))
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "append", killed_at(what, when))
        with pytest.raises(Killed):
            slosh.batch.embed_files(source, out, embedder())
    write(source, 3)  # a further file, so that the tasks are others
    slosh.batch.embed_files(source, out, embedder())
    assert same_vectors(vectors_of(out), expected_vectors(source, embedder()))


def test_files_of_others_in_the_target_stay(tables, tmp_path):
    slosh.batch.embed_files(tables, tmp_path / "out", embedder())
    (tmp_path / "out" / "mine.parquet").write_bytes(b"something else")
    slosh.batch.embed_files(tables, tmp_path / "out", embedder())
    assert (tmp_path / "out" / "mine.parquet").exists()


@pytest.mark.parametrize("deleted", [True, False])
def test_vectors_that_cannot_be_made_again_are_not_dropped(deleted, tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    write(source, 2)
    slosh.batch.embed_files(source, out, embedder())
    before = vectors_of(out)
    os.utime(source / "a.parquet", ns=(1, 1))
    if deleted:
        (source / "b.parquet").rename(tmp_path / "aside")
    with pytest.raises(SourceChanged) as caught:
        slosh.batch.embed_files(source if deleted else source / "a.parquet", out, embedder())
    assert caught.value.location == str(source / "a.parquet")
    assert "b.parquet" in str(caught.value)
    assert same_vectors(vectors_of(out), before)
    if deleted:
        (tmp_path / "aside").rename(source / "b.parquet")
    assert slosh.batch.embed_files(source, out, embedder())[:2] == (200, 0)
    assert same_vectors(vectors_of(out), before)


def test_vectors_have_the_ids_that_build_gives(tmp_path):
    (tmp_path / "in").mkdir()
    for name in "ab":
        table = pa.table({"points": clouds(9, dim=3).to_arrow()})
        pq.write_table(table, tmp_path / "in" / f"{name}.parquet", row_group_size=4)
    slosh.batch.embed_files(tmp_path / "in", tmp_path / "out", embedder())
    slosh.batch.build(tmp_path / "x.slosh", tmp_path / "in", embedder())
    with slosh.open(tmp_path / "x.slosh") as index:
        assert sorted(vectors_of(tmp_path / "out")) == sorted(index.ids)
    assert pq.read_table(tmp_path / "out").column_names == ["id", "vector"]


def test_a_disk_without_room_names_the_file(tables, tmp_path):
    """The system lets this process write files of 20 kB at most."""
    large, old = embedder(n_slices=64, n_quantiles=8), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, old[1]))
    try:
        with pytest.raises(StorageError) as caught:
            slosh.batch.embed_files(tables, tmp_path / "out", large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert str(tmp_path / "out") in caught.value.location
    assert not list((tmp_path / "out").glob("*.parquet"))
    assert slosh.batch.embed_files(tables, tmp_path / "out", large).sets == 300


def test_threads_do_not_matter_when_a_job_goes_on(tables, tmp_path):
    for n_jobs in (1, 2):
        chosen = slosh.embed.SlicedWasserstein(4, n_jobs=n_jobs)
        report = slosh.batch.embed_files(tables, tmp_path / "out", chosen)
    assert report.skipped == 300
