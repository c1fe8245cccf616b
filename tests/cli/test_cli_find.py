"""slosh search, explain and duplicates."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import slosh
from slosh.cli import draw, find
from slosh.index.certify import PROVABLE
from slosh.index.parts import MATCHES
from slosh.index.rerank import DISTANCES
from slosh.search import Stats


def test_search_finds_what_the_library_finds(slosh_, built):
    options = ["-k", 4, "--where", "folder = fat", "--certify", "--json"]
    found = json.loads(slosh_("search", "clouds.slosh", "query.npy", *options)[1])
    with slosh.open(built / "clouds.slosh", read_only=True) as index:
        hits = index.search(np.load("query.npy"), 4, where="folder = fat", certify=True)
    assert [hit["id"] for hit in found["hits"]] == hits.ids
    assert [hit["distance"] for hit in found["hits"]] == hits.distances.tolist()
    assert [hit["metadata"] for hit in found["hits"]] == hits.metadata
    assert (found["distance_kind"], found["recall"]) == ("sliced", 1.0)


def test_certified_by_the_hausdorff_distance(slosh_, built, tmp_path):
    assert slosh_("build", tmp_path / "a", "clouds", "--embedding", "field:20", "--json")[0] == 0
    tables = [cdist(np.load("query.npy"), np.load(path)) for path in built.glob("clouds/*/*.npy")]
    true = np.sort([max(table.min(axis=0).max(), table.min(axis=1).max()) for table in tables])
    for how, expected in ((["-k", 5], true[:5]), (["--radius", 2.5], true[true <= 2.5])):
        found = json.loads(
            slosh_("search", tmp_path / "a", "query.npy", *how, "--rerank", "hausdorff", "--certify", "--json")[1]
        )
        assert (found["distance_kind"], found["recall"]) == ("hausdorff", 1.0)
        np.testing.assert_allclose([hit["distance"] for hit in found["hits"]], expected, rtol=1e-6)


def test_the_distances_to_rerank_by_are_those_of_the_library():
    assert list(find.RERANKS) == ["sliced", *DISTANCES, "partial_wasserstein"]
    assert find.MATCHES == MATCHES
    assert list(find.PROVABLE) == list(PROVABLE)


def test_tables_for_people(slosh_):
    code, out, _ = slosh_("search", "clouds.slosh", "thin/0000.npy", "-k", 3)
    assert code == 0
    assert "thin/0000.npy: 3 sets by embedded distance" in out
    assert re.search(r"^1\s+thin/\d{4}\.npy\s+[\d.e-]+\s+\d{4}\.npy\s+thin$", out, re.MULTILINE)
    assert all(line == line.rstrip() for line in out.splitlines())
    assert re.fullmatch(r"1 query in [\d.]+ u?s, exact; \d+ vectors? compared", out.splitlines()[-1])
    out = slosh_("search", "clouds.slosh", "thin/0000.npy", "fat/0001.npy", "-k", 1, "--certify")[1]
    assert re.search(r"\n2 queries in \S+ u?s, exact; a query: \S+ vectors? compared, \S+ full distances?\n$", out)


def test_counts_below_a_table():
    stats = Stats(np.array([36_000]), np.array([9]), 0.9512, 1234.5, np.array([1]))
    assert find.summarize(stats, 40_000) == "1 query in 1,234 s, recall 0.951; 36,000 vectors compared, 1 full distance"
    stats = Stats(np.array([1, 2]), np.array([9, 9]), None, 0.5)
    assert find.summarize(stats._replace(seconds=9.876e-5), 2).startswith("2 queries in 98.8 us, no promise")
    assert find.summarize(stats, 2) == "2 queries in 0.5 s, no promise; a query: 1.5 vectors compared"


def test_a_remark_on_queries_unlike_the_collection(tmp_path, slosh_):
    """Where the index was calibrated: far queries are named, others and exact small indexes are not."""
    rng = np.random.default_rng(3)
    with slosh.SetIndex.create(tmp_path / "rings", dim=2) as index:
        index.add([rng.normal(size=(12, 2)) * scale for scale in rng.uniform(0.5, 2, 1200)])
    np.save("near.npy", rng.normal(size=(12, 2)))
    np.save("far.npy", rng.normal(size=(12, 2)) + 30)
    for names, unlike, told in (
        (["near.npy"], [False], None),
        (["far.npy"], [True], "the query is farther from every stored set"),
        (["near.npy", "far.npy"], [False, True], "1 of 2 queries is farther from every stored set"),
    ):
        for how in ([], ["--certify"], ["--rerank", "chamfer"]):
            code, out, err = slosh_("search", tmp_path / "rings", *names, *how, "--json")
            assert code == 0
            assert [json.loads(line)["unlike"] for line in out.splitlines()] == unlike
            assert err == "" if told is None else told in err
    assert "farther" in slosh_("search", tmp_path / "rings", "far.npy")[2]
    for how in (["--radius", 9], ["--where", "not kind = 1"]):
        document = json.loads(slosh_("search", tmp_path / "rings", "far.npy", *how, "--json")[1])
        assert document["unlike"] is None
    small = json.loads(slosh_("search", "clouds.slosh", "query.npy", "--json")[1])
    assert small["unlike"] is None


@pytest.mark.parametrize(
    "command",
    ["search {} thin/0000.npy --where", "show {} --where", "remove {} --yes --where", "duplicates {} --where"],
)
def test_a_field_that_no_set_has(slosh_, copied, command, stored):
    before = command.format(copied).split()
    code, _, err = slosh_(*before, "not (foldre = fat and not file = x) and foldre = thin")
    assert code == 0
    assert err.count("\n") == 1
    assert "no set has a field 'foldre'" in err
    assert slosh_(*before, "folder = none")[2] == ""
    assert stored(copied) == 12


def test_radius_and_duplicates(slosh_):
    near = json.loads(slosh_("search", "clouds.slosh", "thin/0000.npy", "--radius", 0.3, "--json")[1])
    assert near["hits"]
    assert all(hit["distance"] <= 0.3 for hit in near["hits"])
    assert "no sets found" in slosh_("search", "clouds.slosh", "thin/0000.npy", "--radius", 0)[1]
    pairs = json.loads(slosh_("duplicates", "clouds.slosh", "--radius", 0.3, "--json")[1])
    assert {"thin/0000.npy"} <= {pair["id"] for pair in pairs["pairs"]}
    code, out, _ = slosh_("duplicates", "clouds.slosh", "--radius", 0.3, "--limit", 1)
    assert code == 0
    assert "more: --limit" in out
    assert "no two sets" in slosh_("duplicates", "clouds.slosh")[1]


def test_rerank_promises_nothing(slosh_):
    found = json.loads(slosh_("search", "clouds.slosh", "query.npy", "--rerank", "chamfer", "--json")[1])
    assert (found["distance_kind"], found["recall"]) == ("chamfer", None)


@pytest.mark.parametrize("depth", [3, 7])
def test_depth_is_how_many_are_reranked(slosh_, depth):
    code, out, _ = slosh_("search", "clouds.slosh", "query.npy", "-k", 2, "--rerank", "chamfer", "--depth", depth)
    assert code == 0
    assert out.endswith(f", {depth} full distances\n")


def test_hits_page_by_page(slosh_):
    ask = ("search", "clouds.slosh", "query.npy", "--recall", 1)
    whole = json.loads(slosh_(*ask, "-k", 6, "--json")[1])["hits"]
    assert json.loads(slosh_(*ask, "-k", 4, "--offset", 2, "--json")[1])["hits"] == whole[2:]
    shown = slosh_(*ask, "-k", 4, "--offset", 2)[1].splitlines()
    assert [line.split()[0] for line in shown if ".npy  " in line] == ["3", "4", "5", "6"]
    assert slosh_("search", "clouds.slosh", "query.npy", "--radius", 1, "--offset", 2)[0] == 2


def test_explain(slosh_, tmp_path):
    code, out, _ = slosh_("explain", "clouds.slosh", "query.npy", "fat/0001.npy", "--json")
    assert code == 0
    found = json.loads(out)
    assert sum(found["query_elements"]) == pytest.approx(found["distance"] ** 2)
    assert sum(found["slices"]) == pytest.approx(found["distance"] ** 2)
    assert "sliced distance" in slosh_("explain", "clouds.slosh", "thin/0000.npy", "fat/0001.npy")[1]
    code, _, err = slosh_("explain", "clouds.slosh", "clouds/fat", "fat/0001.npy")
    assert code == 1
    assert "several sets" in err


def test_all_neighbours_are_drawn(slosh_, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    drawn = []
    monkeypatch.setattr(draw, "draw", lambda rows, *_, **__: drawn.extend(rows))
    monkeypatch.setattr(draw, "LINE_NEIGHBOURS", 4)
    out = slosh_("search", "clouds.slosh", "thin/0000.npy", "-k", 10, "--plot", "p.png")[1]
    assert out.endswith("drawn in p.png\n")
    assert [len(row) for row in drawn] == [5, 5, 3]
    assert [row[0] is None for row in drawn] == [False, True, True]
    monkeypatch.setattr(draw, "MAX_DRAWN_NEIGHBOURS", 7)
    monkeypatch.setattr(draw, "MAX_LINES", 3)
    drawn.clear()
    out = slosh_("search", "clouds.slosh", "thin/0000.npy", "fat/0001.npy", "--plot", "p.png")[1]
    assert out.endswith("drawn in p.png, the first 1 of 2 queries, the 7 nearest of each\n")
    assert [len(row) for row in drawn] == [5, 4]
    assert slosh_("search", "clouds.slosh", "thin/0000.npy", "--radius", 0, "--plot", "p.png")[0] == 0


def test_an_id_that_is_a_file_too(slosh_, tmp_path, monkeypatch):
    np.save(tmp_path / "one.npy", np.ones((5, 2)))
    np.save(tmp_path / "two.npy", np.zeros((5, 2)))
    monkeypatch.chdir(tmp_path)
    assert slosh_("build", "a", "one.npy", "two.npy")[0] == 0
    code, _, err = slosh_("search", "a", "one.npy")
    assert code == 2
    assert "--id or --file" in err
    by_id, by_file = (json.loads(slosh_("search", "a", "one.npy", how, "--json")[1]) for how in ("--id", "--file"))
    assert [hit["id"] for hit in by_id["hits"]] == ["two.npy"]
    assert [hit["id"] for hit in by_file["hits"]] == ["one.npy", "two.npy"]
    assert slosh_("search", "a", "one.npy", "--id", "--file")[0] == 2


def test_many_queries_one_line_each(slosh_):
    code, out, _ = slosh_(
        "search", "clouds.slosh", "thin/0000.npy", "query.npy", "clouds/fat", "fat/0001.npy", "--json"
    )
    assert code == 0
    names = [json.loads(line)["query"] for line in out.splitlines()]
    fat = [f"{i:04}.npy" for i in range(1, 12, 2)]
    assert names == ["thin/0000.npy", "query.npy", *fat, "fat/0001.npy"]


def test_parts_by_the_command(slosh_, built, tmp_path):
    """Build with them, enable them later, and search for them: as the library does, with remedies for a shell."""
    code, _, said = slosh_("search", "clouds.slosh", "query.npy", "--match", "part")
    assert code == 1
    assert "slosh enable" in said
    assert slosh_("build", tmp_path / "a", "clouds", "--parts", "--json")[0] == 0
    assert slosh_("build", tmp_path / "b", "clouds", "--json")[0] == 0
    code, out, _ = slosh_("enable", tmp_path / "b", "parts")
    assert code == 0
    assert "anchors is enabled" in out
    assert "anchors" in slosh_("info", tmp_path / "b")[1]
    tables = [cdist(np.load("query.npy"), np.load(path)) for path in built.glob("clouds/*/*.npy")]
    true = np.sort([table.min(axis=1).mean() for table in tables])
    back = np.sort([table.min(axis=0).mean() for table in tables])
    for name in ("a", "b"):
        for match, expected in (("part", true), ("contained", back)):
            how = ["--match", match, "--json"]
            found = json.loads(slosh_("search", tmp_path / name, "query.npy", "-k", 5, "--certify", *how)[1])
            assert (found["distance_kind"], found["recall"]) == (match, 1.0)
            np.testing.assert_allclose([hit["distance"] for hit in found["hits"]], expected[:5], rtol=1e-5)
            within = json.loads(slosh_("search", tmp_path / name, "query.npy", "--radius", 1.0, *how)[1])
            assert len(within["hits"]) == np.sum(expected <= 1.0)
    for wrong in (["--match", "half"], ["--coverage", "0.5"], ["--match", "part", "--coverage", "2"]):
        code, _, said = slosh_("search", tmp_path / "a", "query.npy", *wrong)
        assert code in (1, 2)
        assert wrong[-2] in said
    assert slosh_("enable", tmp_path / "a", "wholes")[0] == 2
