"""The map of a collection follows it, whatever changes: within this process, and through the routes."""

from __future__ import annotations

import time

import numpy as np
import pytest

from builders import PATIENCE, clouds, make_index
from server_process import Server, ask

maps = pytest.importorskip("slosh.server.maps", reason="the extra server is not installed")
embed = pytest.importorskip("slosh.embed")


def moved(index):
    index.update(["3"], [np.full((2, 2), 50.0)])


def exchanged(index):
    index.remove(["3"])
    index.add([np.full((2, 2), 50.0)], ["new"])


def retrained(index):
    index.retrain(embedding=embed.MeanPool())


@pytest.fixture
def index(tmp_path):
    with make_index(tmp_path / "mapped.slosh") as made:
        made.add(clouds(40), [str(i) for i in range(40)])
        yield made


@pytest.mark.parametrize("change", [moved, exchanged, retrained])
def test_a_change_that_keeps_the_number_of_sets_makes_a_new_map(index, change):
    found = maps.Map(index)
    assert found.refresh()
    found.wait()
    before = found.placed
    assert not found.refresh()
    assert found.placed.version == found.version
    change(index)
    assert found.refresh()
    assert before.version != found.version
    found.wait()
    assert not found.refresh()
    assert sorted(found.placed.ids) == sorted(index.ids)
    assert not np.array_equal(np.sort(found.placed.xy, axis=0), np.sort(before.xy, axis=0))


def test_queries_lie_by_the_embedding_of_the_map(index):
    """Also after the index has another one, as long as the old map is served."""
    found = maps.Map(index)
    found.refresh()
    found.wait()
    retrained(index)
    where = found.placed.place(index.get(["7"]).sets)
    assert np.allclose(where, found.placed.xy[found.placed.rows["7"]], atol=1e-4)


def test_an_index_that_is_emptied_has_no_map(index):
    found = maps.Map(index)
    found.refresh()
    found.wait()
    index.remove(index.ids)
    assert not found.refresh()
    assert found.placed is None


def test_a_stale_map_says_so_until_the_new_one_is_there(tmp_path):
    with make_index(tmp_path / "mapped.slosh") as made:
        made.add(clouds(40), [str(i) for i in range(40)])
    root = "/v1/indexes/mapped"

    def settled():
        for _ in range(PATIENCE * 50):
            about = ask(server, "GET", f"{root}/map")[2]
            if about["state"] == "ready" and not about["stale"]:
                return about
            time.sleep(0.02)
        raise AssertionError(about)

    with Server(tmp_path / "mapped.slosh", options=("--jobs", 1)) as server:
        before = settled()
        ask(server, "PATCH", f"{root}/sets", {"ids": ["3"], "sets": [[[50.0, 50.0]]]})
        assert settled()["bounds"] != before["bounds"]
