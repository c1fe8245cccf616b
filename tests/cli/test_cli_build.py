"""slosh build and slosh add."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

import slosh
from slosh import readers


def test_build_stores_what_the_files_have(slosh_, copied):
    with slosh.open(copied, read_only=True) as index:
        assert len(index) == 12
        assert index.info()["recall"] == 0.99
        record = index.get("fat/0001.npy")
        assert record.metadata == {"file": "0001.npy", "folder": "fat"}
        np.testing.assert_allclose(record.points, np.load("clouds/fat/0001.npy").astype(np.float32))


def test_build_promises_what_its_searches_promise(slosh_, tmp_path):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(300, 9, 2)) * rng.uniform(0.2, 2, (300, 1, 1))
    np.savez(tmp_path / "many.npz", points=points.reshape(-1, 2), offsets=np.arange(0, 2701, 9))
    code, out, _ = slosh_("build", tmp_path / "a", tmp_path / "many.npz")
    assert code == 0
    assert "recall 0.99 asked for: exact;" in out
    assert "promised" not in out
    assert ", exact;" in slosh_("search", tmp_path / "a", "many/7")[1]


def test_build_twice_names_add(slosh_, copied):
    code, _, err = slosh_("build", copied, "clouds")
    assert code == 1
    assert f"slosh add {copied}" in err


def test_build_options_reach_the_index(slosh_, tmp_path):
    steps = "--center --align pca --scale rms --max-points 20"
    options = f"{steps} --slices 8 --quantiles 4 --search exact --recall 1 --meta year=2015"
    assert slosh_("build", tmp_path / "a", "clouds", *options.split())[0] == 0
    about = json.loads(slosh_("info", tmp_path / "a", "--json")[1])
    assert about["vector_length"] == 32
    assert about["search"] == "ExactSearch()"
    assert about["preprocess"] == "Preprocess(center=True, align='pca', scale='rms', max_points=20)"
    assert about["recall"] == 1.0
    assert len(slosh_("show", tmp_path / "a", "--where", "year = 2015", "--json")[1].splitlines()) == 12


EMBEDDINGS = [
    "sliced",
    "local",
    "field",
    "field:32",
    "gem:2",
    "gem",
    "cov",
    "fspool",
    "wasserstein",
    "mean",
    "max",
    "sum",
]


@pytest.mark.parametrize("embedding", EMBEDDINGS)
def test_every_embedding(slosh_, tmp_path, embedding):
    if embedding == "wasserstein":
        pytest.importorskip("ot")
    assert slosh_("build", tmp_path / "a", "clouds", "--embedding", embedding)[0] == 0
    code, out, _ = slosh_("search", tmp_path / "a", "query.npy", "-k", 1, "--json")
    assert code == 0
    assert len(json.loads(out)["hits"]) == 1


@pytest.mark.parametrize("search", ["ladder", "exact", "hamming", "lsh", "faiss", "faiss:IVF16,SQ8"])
def test_every_search(slosh_, tmp_path, search):
    code, _, err = slosh_("build", tmp_path / "a", "clouds", "--search", search, "--standardize")
    assert code == 0, err
    assert slosh_("search", tmp_path / "a", "thin/0000.npy")[0] == 0
    assert slosh_("verify", tmp_path / "a")[0] == 0


def test_origin(slosh_, tmp_path):
    far = np.random.default_rng(0).normal(size=(50, 3)) + 5e6
    np.save(tmp_path / "far.npy", far)
    np.save(tmp_path / "other.npy", far + 1)
    for origin in ("auto", "5e6,5e6,5e6"):
        path = tmp_path / origin.replace(",", "-")
        code, _, err = slosh_("build", path, tmp_path / "far.npy", tmp_path / "other.npy", "--origin", origin)
        assert (code, err) == (0, "")
        found = json.loads(slosh_("search", path, tmp_path / "far.npy", "-k", 2, "--json")[1])
        assert [hit["id"] for hit in found["hits"]] == ["far.npy", "other.npy"]
        assert found["hits"][0]["distance"] == 0
        shown = json.loads(slosh_("show", path, "far.npy", "--json")[1])
        np.testing.assert_allclose(shown["mean"], far.mean(axis=0), atol=1e-3)
        assert slosh_("add", path, tmp_path / "far.npy", "--update")[0] == 0


def test_warnings_are_one_line(slosh_, tmp_path):
    np.save(tmp_path / "far.npy", np.random.default_rng(0).normal(size=(50, 3)) + 5e6)
    code, out, err = slosh_("build", tmp_path / "a", tmp_path / "far.npy", "--json")
    assert code == 0
    assert json.loads(out)["built"] == 1
    assert err.startswith("slosh: warning: ")
    assert "--origin auto" in err
    assert "origin=" not in err
    assert ".py:" not in err
    assert len({*err.splitlines()}) == err.count("\n")


def test_tables_with_columns_and_weights(slosh_, tmp_path):
    pytest.importorskip("pyarrow")
    lines = ["name,x,y,w", *(f"{'ab'[i % 2]},{i},{i * i},{i + 1}" for i in range(10))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    reading = ["--id-column", "name", "--columns", "x, y", "--weights", "w"]
    assert slosh_("build", tmp_path / "a", tmp_path / "t.csv", *reading)[0] == 0
    shown = [json.loads(line) for line in slosh_("show", tmp_path / "a", "--json")[1].splitlines()]
    assert [(each["id"], each["points"], each["weighted"]) for each in shown] == [("a", 5, True), ("b", 5, True)]
    assert slosh_("search", tmp_path / "a", tmp_path / "t.csv", *reading)[0] == 0
    code, _, err = slosh_("search", tmp_path / "a", tmp_path / "t.csv", "--id-column", "name", "--columns", "x")
    assert code == 1
    assert "--columns" in err


def test_add_update_and_skip(slosh_, copied):
    code, _, err = slosh_("add", copied, "clouds")
    assert code == 1
    assert "--update" in err
    assert "update=True" not in err
    assert json.loads(slosh_("add", copied, "clouds", "--skip-existing", "--json")[1])["added"] == 0
    assert json.loads(slosh_("add", copied, "clouds", "--update", "--json")[1])["added"] == 12
    assert json.loads(slosh_("add", copied, "query.npy", "--json")[1])["sets"] == 13
    assert slosh_("add", copied, "query.npy", "--skip-existing", "--update")[0] == 2


def test_a_bad_file_in_the_middle(slosh_, tmp_path, write_clouds):
    write_clouds(tmp_path / "c", 6)
    bad = np.ones((20, 2))
    bad[7, 1] = np.nan
    np.save(tmp_path / "c" / "thin" / "0002.npy", bad)
    code, out, err = slosh_("build", tmp_path / "a", tmp_path / "c", "--batch-points", 30)
    assert (code, out) == (1, "")
    assert "0002.npy" in err
    assert "4 sets of the batches before are stored" in err
    assert slosh_("verify", tmp_path / "a")[0] == 0
    np.save(tmp_path / "c" / "thin" / "0002.npy", np.ones((20, 2)))
    told = shlex.split(err.partition("continue with: ")[2])
    assert told == ["slosh", "add", str(tmp_path / "a"), str(tmp_path / "c"), "--batch-points", "30", "--skip-existing"]
    assert json.loads(slosh_(*told[1:], "--json")[1])["sets"] == 6
    code, _, err = slosh_("build", tmp_path / "b", tmp_path / "c", "--batch-points", 30, "--columns", "x")
    assert code == 1
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("existed", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_nothing_stored_leaves_nothing(slosh_, tmp_path, monkeypatch, error, existed):
    def fail(*_, **__):
        raise error("no")

    if existed:
        (tmp_path / "a").mkdir()
    monkeypatch.setattr(slosh.SetIndex, "add", fail)
    code, _, err = slosh_("build", tmp_path / "a", "clouds")
    assert code == (130 if error is KeyboardInterrupt else 1)
    assert ("nothing was stored" in err) == (error is KeyboardInterrupt)
    assert not (tmp_path / "a").exists()


def test_interrupted_while_reading(slosh_, tmp_path, monkeypatch, stored):
    def two_batches(*arguments, **more):
        yield from list(read(*arguments, **more))[:2]
        raise KeyboardInterrupt

    read = readers.read
    monkeypatch.setattr(readers, "read", two_batches)
    code, _, err = slosh_("build", tmp_path / "a", "clouds", "--batch-points", 30)
    assert code == 130
    assert "2 sets of the batches before are stored" in err
    assert stored(tmp_path / "a") == 2
    assert slosh_("verify", tmp_path / "a")[0] == 0


def test_interrupted_while_tuning(slosh_, tmp_path, monkeypatch, stored):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(slosh.SetIndex, "tune", stop)
    code, _, err = slosh_("build", tmp_path / "a b", "clouds", "--recall", 0.9)
    assert code == 130
    assert f"all 12 sets are stored; to finish, run: slosh tune '{tmp_path / 'a b'}' --recall 0.9\n" in err
    assert stored(tmp_path / "a b") == 12
