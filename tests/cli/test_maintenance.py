"""slosh info, tune, verify, compact, export and copy."""

from __future__ import annotations

import errno
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

import slosh
from builders import cloud_list, make_index
from slosh import errors
from slosh.data.preprocess import Preprocess
from slosh.engines.sqlite.database import Database


def test_info_tune_verify(slosh_, copied):
    code, out, _ = slosh_("info", copied)
    assert code == 0
    assert "SlicedWasserstein" in out
    tuned = json.loads(slosh_("tune", copied, "--recall", 0.9, "-k", 5, "--json")[1])
    assert tuned["k"] == 5
    assert json.loads(slosh_("info", copied, "--json")[1])["recall"] == 0.9
    report = json.loads(slosh_("verify", copied, "--json")[1])
    assert report["ok"] is True


def test_info_says_what_was_calibrated(slosh_, tmp_path, monkeypatch):
    path, points = tmp_path / "many.slosh", np.random.default_rng(0).normal(size=(4500, 2))
    with make_index(path) as index:
        index.add(slosh.Sets(points, np.arange(0, 4501, 3)))
        index.tune(0.9, 5)
    shown = slosh_("info", path)[1]
    assert "calibrated     k = 5 at 0.9; k = 10 at 0.9, 0.95, 0.99\n" in shown
    exact = {"k": 10, "recall": 0.999, "depth": 0}
    info = slosh.SetIndex.info
    monkeypatch.setattr(
        slosh.SetIndex,
        "info",
        lambda self: info(self) | {"search_info": {"calibrations": [exact]}},
    )
    assert "calibrated" not in slosh_("info", path)[1]
    monkeypatch.setattr(slosh.SetIndex, "info", lambda self: info(self) | {"search_info": {}})
    assert "calibrated" not in slosh_("info", path)[1]


def test_tune_with_queries_of_ones_own(slosh_, copied, tmp_path, write_clouds, monkeypatch):
    write_clouds(tmp_path / "queries", 40, seed=7)
    tune, asked = slosh.SetIndex.tune, []
    monkeypatch.setattr(slosh.SetIndex, "tune", lambda *given: asked.append(given) or tune(*given))
    code, out, err = slosh_("tune", copied, tmp_path / "queries", "-k", 3, "--batch-points", 100, "--json")
    assert (code, err, json.loads(out)["k"]) == (0, "", 3)
    ((_, recall, k, queries),) = asked
    assert (recall, k, len(queries)) == (0.99, 3, 40)
    first = np.load(tmp_path / "queries" / "fat" / "0001.npy")
    np.testing.assert_array_equal(queries[0], first.astype(np.float32))
    code, _, err = slosh_("tune", copied, tmp_path / "queries", "solid/fat")
    assert code == 1
    assert "solid/fat: its sets have 3 features, those of the index have 2" in err


def test_help_says_how_many_queries_a_recall_takes(slosh_):
    index = make_index()
    index.add(cloud_list(1500))
    told = " ".join(slosh_("tune", "--help")[1].replace("│", "").split())
    for recall in (0.99, 0.9):
        with pytest.raises(errors.InputError, match=r"give (\d+) or more") as refused:
            index.tune(recall, queries=cloud_list(5, seed=1))
        needed = re.search(r"give (\d+) or more", str(refused.value))[1]
        assert re.search(rf"\b{needed}( sets)? for( a recall of)? {recall:g}\b", told), told


def test_verify_reports_problems(slosh_, monkeypatch):
    report = SimpleNamespace(ok=False, problems=["a vector differs"], checked={"points": "12 sets"})
    monkeypatch.setattr(slosh.SetIndex, "verify", lambda *_: report)
    code, out, _ = slosh_("verify", "clouds.slosh")
    assert code == 1
    assert "PROBLEM: a vector differs" in out
    assert "clouds.slosh is damaged" in out
    code, out, _ = slosh_("verify", "clouds.slosh", "--json")
    assert code == 1
    assert json.loads(out) == {"ok": False, "problems": ["a vector differs"], "checked": {"points": "12 sets"}}


def test_export_and_back(slosh_, tmp_path):
    pytest.importorskip("pyarrow")
    assert slosh_("export", "clouds.slosh", tmp_path / "a.parquet")[0] == 0
    assert slosh_("build", tmp_path / "b", tmp_path / "a.parquet")[0] == 0
    first, again = (slosh_("show", index, "--json")[1] for index in ("clouds.slosh", tmp_path / "b"))
    assert [json.loads(line)["id"] for line in first.splitlines()] == [json.loads(x)["id"] for x in again.splitlines()]


def test_copy(slosh_, copied, tmp_path):
    target = tmp_path / "other.slosh"
    code, out, err = slosh_("copy", copied, target)
    assert (code, out, err) == (0, f"copied 12 sets to {target}\n", "")
    shown, again = (slosh_("show", index, "--json")[1] for index in (copied, target))
    assert shown == again
    found, there = (
        json.loads(slosh_("search", index, "thin/0000.npy", "--recall", 1, "--json")[1]) for index in (copied, target)
    )
    assert found == there
    of_both = [json.loads(slosh_("info", index, "--json")[1]) for index in (copied, target)]
    for name in ("sets", "points", "dim", "weighted", "embedding", "search", "preprocess", "origin"):
        assert of_both[0][name] == of_both[1][name]
    assert slosh_("verify", target)[0] == 0
    code, _, err = slosh_("copy", copied, target)
    assert code == 1
    assert f"{target} exists" in err
    assert json.loads(slosh_("copy", target, tmp_path / "third.slosh", "--json")[1])["sets"] == 12
    assert slosh_("copy", tmp_path / "nothing", tmp_path / "fourth.slosh")[0] == 1
    assert not (tmp_path / "fourth.slosh").exists()


def test_an_index_named_by_a_url(slosh_, tmp_path):
    first, second = (f"sqlite://{tmp_path / name}" for name in ("first", "second"))
    assert slosh_("build", first, "clouds")[0] == 0
    assert slosh_("build", first, "clouds")[0] == 1
    assert slosh_("copy", first, second)[1] == f"copied 12 sets to {second}\n"
    for index in (first, second, tmp_path / "second"):
        assert json.loads(slosh_("info", index, "--json")[1])["sets"] == 12
    assert slosh_("build", f"sqlite://{tmp_path / 'third'}", "clouds", "--origin", "1")[0] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


def test_copy_keeps_weights_metadata_and_settings(slosh_, tmp_path):
    rng = np.random.default_rng(0)
    sets = slosh.Sets.from_list([rng.normal(size=(9, 2)) for _ in range(5)], [rng.uniform(1, 2, 9) for _ in range(5)])
    with slosh.SetIndex.create(tmp_path / "a", dim=2, preprocess=Preprocess(center=True)) as index:
        index.add(sets, list("abcde"), [{"n": i} for i in range(5)])
    assert slosh_("copy", tmp_path / "a", tmp_path / "b")[0] == 0
    with slosh.open(tmp_path / "b", read_only=True) as index:
        records = index.get(list("abcde"))
        assert index.info()["preprocess"] == "Preprocess(center=True)"
    np.testing.assert_array_equal(records.sets.weights, sets.weights)
    np.testing.assert_array_equal(records.sets.points, sets.points)
    assert records.metadata == [{"n": i} for i in range(5)]


def test_a_full_disk_leaves_no_half_of_an_index(slosh_, tmp_path, monkeypatch):
    def full(path, *_, **__):
        raise slosh.errors.StorageError("the disk is full", errno=errno.ENOSPC, location=str(path))

    monkeypatch.setattr(Database, "create", full)
    code, _, err = slosh_("build", tmp_path / "a", "clouds")
    assert code == 1
    assert "free some space" in err
    assert not (tmp_path / "a").exists()
