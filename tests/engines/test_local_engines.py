"""What is promised of the engines that run in the caller's process, beyond the contract of all engines."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import slosh
from builders import cloud_list, make_index, plain_answer, small_embedding, together, wait_for
from slosh.embed import SlicedWasserstein


class SlowEmbedding:
    """Stops an embedding in the midst of many sets until it may go on."""

    def __init__(self, monkeypatch, more_than):
        self.begun, self.go_on = threading.Event(), threading.Event()
        real = SlicedWasserstein.index_vectors

        def index_vectors(embedding, sets, **options):
            if len(sets) > more_than:
                self.begun.set()
                wait_for(self.go_on)
            return real(embedding, sets, **options)

        monkeypatch.setattr(SlicedWasserstein, "index_vectors", index_vectors)


@pytest.mark.parametrize("change", ["add", "update", "stream"])
def test_a_search_does_not_wait_for_a_large_change(place, monkeypatch, change):
    """It is answered from the version before, while the new sets are embedded; then from the new one."""
    index = make_index(place, embedding=small_embedding(n_slices=64, n_quantiles=16))
    looking = [index] if place is None else [index, slosh.open(place, read_only=True, n_jobs=1)]
    old, new = cloud_list(30, largest=5), [cloud + 9 for cloud in cloud_list(600, seed=1, largest=5)]
    index.add(old, metadata={"new": False})
    query = new[0]
    before = plain_answer(index.search(query, k=5))
    assert [plain_answer(each.search(query, k=5)) for each in looking] == [before] * len(looking)
    slow = SlowEmbedding(monkeypatch, more_than=20)
    works = {
        "add": lambda: index.add(new, metadata={"new": True}),
        "update": lambda: index.update(index.ids, new[:30], {"new": True}),
        "stream": lambda: index.add(iter(new), metadata={"new": True}),
    }

    def look():
        wait_for(slow.begun)
        try:
            for each in looking:
                assert plain_answer(each.search(query, k=5)) == before
                assert each.search(query, k=5, where={"new": True}).ids == []
                assert len(each.search(query, k=5, certify=True)) == 5
                assert len(each) == len(each.ids) == 30
                assert len(each.range_search(query, 100.0)) == 30
                assert each.get("3").metadata == {"new": False}
                assert sum(len(part.ids) for part in each.records()) == 30
        finally:
            slow.go_on.set()

    together(works[change], look)
    assert len(index) == (30 if change == "update" else 630)
    assert index.search(query, k=1, recall=1.0).distances[0] == 0
    assert index.verify().ok
    for each in looking:
        each.close()


def test_an_interrupt_while_sets_are_embedded_leaves_nothing(place, monkeypatch):
    real = SlicedWasserstein.index_vectors

    def interrupted(embedding, sets, **options):
        if len(sets) > 20:
            raise KeyboardInterrupt
        return real(embedding, sets, **options)

    with make_index(place) as index:
        index.add(cloud_list(10))
        with monkeypatch.context() as patch:
            patch.setattr(SlicedWasserstein, "index_vectors", interrupted)
            with pytest.raises(KeyboardInterrupt):
                index.add(cloud_list(50), [f"new{i}" for i in range(50)])
            with pytest.raises(KeyboardInterrupt):
                index.add(iter(cloud_list(30)))
        assert len(index) == 10
        assert index.verify().ok
        index.add(cloud_list(50), [f"new{i}" for i in range(50)])
        assert len(index) == 60
        assert index.verify().ok


def test_rows_of_removed_sets_are_counted_until_compact(place):
    """What is refused leaves none behind."""
    with make_index(place) as index:
        index.add(cloud_list(9))
        for bad in ([cloud_list(1)[0], np.zeros((2, 3))], [cloud_list(1)[0], np.full((2, 2), np.nan)]):
            with pytest.raises(slosh.errors.InputError):
                index.add(bad)
        with pytest.raises(slosh.errors.DuplicateId):
            index.add(cloud_list(2), ["new", "3"])
        with pytest.raises(slosh.errors.InputError):
            index.add(cloud_list(2), ["new", "newer"], [{}, {"x": float("nan")}])
        assert index.info()["removed_since_compact"] == 0
        index.remove(["0", "5"])
        index.update("3", cloud_list(1, seed=1)[0])
        index.update("4", metadata={"x": 1})
        assert index.info()["removed_since_compact"] == 3
        index.compact()
        assert index.info()["removed_since_compact"] == 0
        assert len(index) == 7
