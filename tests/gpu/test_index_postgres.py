"""Indexes in PostgreSQL whose vectors a GPU has made."""

from __future__ import annotations

import pytest

import slosh
from builders import clouds
from postgres_server import ask, new_database
from slosh.embed import SlicedWasserstein, Whitened

pytest.importorskip("psycopg", reason="psycopg is not installed")
SETS = clouds([3, 9, 30, 2, 17] * 20, 3, 0)
GPU = "Pretended GPU"


@pytest.mark.parametrize("embedding", [SlicedWasserstein(16, 8), Whitened(SlicedWasserstein(16, 8))])
def test_what_made_its_vectors_is_recorded_and_compared_to_rounding(pretended_gpu, embedding):
    pytest.importorskip("torch")
    url = new_database()
    create = {"dim": 3, "embedding": embedding, "sample": SETS, "device": "cuda"}
    if isinstance(embedding, SlicedWasserstein):
        del create["sample"]
    with slosh.SetIndex.create(url, name="x", **create) as index, slosh.open(url, "x") as other:
        assert index.info()["made_on"] == []
        index.add(SETS[:60])
        assert index.info()["made_on"] == other.info()["made_on"] == [GPU]
        for each in (index, other):
            report = each.verify()
            assert report.ok, report
            assert "compared to rounding" in report.checked["caches"]
        other.add(SETS[60:], ids=[f"b{i}" for i in range(40)])
        assert index.info()["made_on"] == other.info()["made_on"] == [GPU, "cpu"]
        assert index.verify().ok
        assert index.search(SETS[3], k=1).ids == ["3"]
        other.compact()
        assert index.info()["made_on"] == ["cpu"]
        assert ask(url, "SELECT name FROM slosh.about") == [("version",)]
        index.compact()
        assert ask(url, "SELECT count(*) FROM slosh.about") == [(2,)]
        index.destroy()
    assert ask(url, "SELECT name FROM slosh.about") == [("version",)]


def test_wrong_vectors_are_still_found(pretended_gpu):
    url = new_database()
    with slosh.SetIndex.create(url, 3, name="x", embedding=SlicedWasserstein(4, 2), device="cuda") as index:
        index.add(SETS)
        ask(url, "UPDATE slosh.exact_1_1 SET whole = set_byte(whole, 3, 0) WHERE key = 7")
        report = index.verify()
        assert not report.ok
        assert "of 1 sets are wrong" in str(report)
