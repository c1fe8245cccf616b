"""The axes that sets of many features are drawn by follow the collection, and stay as long as they show it well."""

from __future__ import annotations

import numpy as np
import pytest

from builders import make_index
from server_process import Server, ask

drawing = pytest.importorskip("slosh.server.drawing", reason="the extra server is not installed")

SPREAD = np.array([4.0, 3.0, 2.0, 0.1, 0.1])


def sets(n, seed, spread=SPREAD, middle=0.0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(20, len(spread))) * spread + middle for _ in range(n)]


def turned(axes):
    """Return the features that the axes show most of, one for each axis."""
    return np.abs(axes).argmax(axis=0).tolist()


@pytest.fixture
def index():
    with make_index(dim=5) as made:
        yield made


def test_axes_of_an_empty_index_are_not_kept(index):
    axes = drawing.PrincipalAxes()
    assert np.array_equal(axes.of(index)[1], np.eye(5, 3))
    index.add(sets(20, 0, SPREAD[::-1]))
    assert turned(axes.of(index)[1]) == [4, 3, 2]


def test_axes_stay_while_they_show_the_collection(index):
    index.add(sets(50, 0))
    axes = drawing.PrincipalAxes()
    before = axes.of(index)
    index.add(sets(50, 1))
    index.update(["3"], sets(1, 2))
    index.remove(["4"])
    assert axes.of(index)[1] is before[1]
    assert axes.of(index)[0] is before[0]


def others(index):
    index.update(index.ids, sets(len(index), 3, SPREAD[::-1]))


def elsewhere(index):
    index.update(index.ids, sets(len(index), 3, middle=100.0))


def many_others(index):
    index.add(sets(400, 3, 5 * SPREAD[::-1]))


@pytest.mark.parametrize("change", [others, elsewhere, many_others])
def test_axes_are_learnt_again_when_the_collection_is_another(index, change):
    index.add(sets(50, 0))
    axes = drawing.PrincipalAxes()
    before = axes.of(index)
    change(index)
    centre, again = axes.of(index)
    assert again is not before[1]
    if change is elsewhere:
        assert np.allclose(centre, 100, atol=2)
    else:
        assert turned(again)[0] == 4


def test_all_workers_show_the_same(tmp_path):
    """A picture that another worker draws is seen from the same side, whatever happened meanwhile."""
    with Server(tmp_path, options=("--jobs", 1, "--workers", 2)) as server:
        ask(server, "POST", "/v1/indexes", {"name": "wide", "dim": 5})
        root, shown = "/v1/indexes/wide", {"sets": [SPREAD[None].tolist()]}
        for seed in range(5):
            given = {"sets": [one.tolist() for one in sets(20, seed, np.roll(SPREAD, seed))]}
            ask(server, "POST", f"{root}/sets", given)
            found = [ask(server, "POST", f"{root}/project", shown)[2]["sets"] for _ in range(6)]
            assert all(each == found[0] for each in found)
