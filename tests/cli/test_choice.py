"""The embedding of an index: learnt from all stored sets, or chosen by labels, in slosh build and slosh retrain."""

from __future__ import annotations

import importlib
import json
import shlex

import numpy as np
import pytest

import slosh
from slosh.embed import MaxPool, MeanPool, SlicedWasserstein, Whitened

compared = importlib.import_module("slosh.neighbors.compare")


@pytest.fixture
def few_methods(monkeypatch):
    """Compares three embeddings only, of which the first sees nothing of these clouds."""

    def methods(dim, n_anchors=256):
        sliced = SlicedWasserstein(n_slices=4)
        return {"mean": MeanPool(), "max": MaxPool(), "whitened": Whitened(sliced), "WassersteinEmbedding": sliced}

    monkeypatch.setattr(compared, "methods_for", methods)


@pytest.fixture
def kinds(tmp_path):
    """A file of 600 sets, sorted by kind: two are spread wide and two are narrow, all about one centre."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 150)
    spread = np.array([[0.5, 0.5], [0.5, 1], [1, 0.5], [1, 1]])[labels]
    points = rng.normal(size=(600, 12, 2))
    points = (points - points.mean(axis=1, keepdims=True)) * spread[:, None]
    names = np.array([f"kind {label}" for label in labels])
    np.savez(tmp_path / "kinds.npz", points=points.reshape(-1, 2), offsets=np.arange(0, 7201, 12), kind=names)
    return tmp_path / "kinds.npz"


def embedding_of(path):
    with slosh.open(path, read_only=True) as index:
        return index.embedding


def test_the_best_is_taken_and_learns_from_all_stored_sets(slosh_, tmp_path, kinds, few_methods):
    code, out, err = slosh_("build", tmp_path / "a", kinds, "--label", "kind", "--batch-points", 1800)
    assert (code, err) == (0, "")
    lines = [line for line in out.splitlines() if line]
    assert lines[0].startswith("600 sets (d = 2, 4 classes), 120 queries among 480 others; ")
    first, *others, last = [line.split()[0] for line in lines[3:7]]
    assert (first, sorted(others), last) == ("whitened,", ["max", "whitened"], "mean")
    assert lines[7].startswith("Best: whitened, with labels: precision 0.")
    assert lines[8].startswith("built 600 sets")
    found = embedding_of(tmp_path / "a")
    assert (found.n_samples_, found.n_labelled_) == (600, 600)
    assert found.embeddings_[0].n_slices == 4
    assert slosh_("verify", tmp_path / "a")[0] == 0


def test_as_json(slosh_, tmp_path, kinds, few_methods):
    document = json.loads(slosh_("build", tmp_path / "a", kinds, "--label", "kind", "--json")[1])
    assert document["embedding"] == "Whitened(embedding=SlicedWasserstein(n_slices=4))"
    assert document["compared"]["best"] == "whitened, with labels"
    rows = document["compared"]["rows"]
    assert sorted(row["method"] for row in rows) == ["max", "mean", "whitened", "whitened, with labels"]
    assert rows[0]["embedding"] == document["embedding"]
    assert rows[0]["precision"] > rows[3]["precision"] + 0.1
    document = json.loads(slosh_("retrain", tmp_path / "a", "--label", "kind", "--json")[1])
    assert document["compared"]["rows"][0]["precision"] == rows[0]["precision"]
    assert document["sets"] == 600


def test_sets_are_compared_as_they_are_embedded(slosh_, tmp_path, kinds, few_methods):
    """Scaled to one size, the kinds differ less."""
    plain, scaled = (
        json.loads(slosh_("build", tmp_path / name, kinds, "--label", "kind", "--json", *more)[1])
        for name, more in (("a", []), ("b", ["--center", "--scale", "rms"]))
    )
    a, b = (document["compared"]["rows"][0]["precision"] for document in (plain, scaled))
    assert a > b + 0.1
    again = json.loads(slosh_("retrain", tmp_path / "b", "--label", "kind", "--json")[1])
    assert again["compared"]["rows"][0]["precision"] == b
    told = json.loads(slosh_("compare", kinds, "--label", "kind", "--json", "--center", "--scale", "rms")[1])
    assert told["rows"][0]["precision"] == pytest.approx(b, abs=0.08)  # another order, and so other queries


def test_a_sample_of_all_stored_sets_is_compared(slosh_, tmp_path, kinds, few_methods, monkeypatch):
    choice = importlib.import_module("slosh.cli.choice")
    monkeypatch.setattr(choice, "COMPARED_SETS", 100)
    document = json.loads(slosh_("build", tmp_path / "a", kinds, "--label", "kind", "--json")[1])
    assert document["compared"]["about"].startswith("100 sets (d = 2, 4 classes)")
    monkeypatch.setattr(choice, "COMPARED_NUMBERS", 24 * 70)
    document = json.loads(slosh_("retrain", tmp_path / "a", "--label", "kind", "--json")[1])
    assert document["compared"]["about"].startswith("70 sets (d = 2, 4 classes)")


def test_the_plain_embedding_stays_if_it_is_the_best(slosh_, tmp_path, monkeypatch):
    monkeypatch.setattr(compared, "methods_for", lambda *_: {"a": SlicedWasserstein()})
    called = []
    monkeypatch.setattr(slosh.SetIndex, "retrain", lambda *given, **more: called.append(more))
    code, out, _ = slosh_("build", tmp_path / "a", "clouds", "--label", "folder")
    assert (code, called) == (0, [])
    assert "Best: a: precision " in out
    slosh_("build", tmp_path / "b", "clouds", "--slices", 4)
    slosh_("retrain", tmp_path / "b", "--label", "folder")
    assert [repr(more["embedding"]) for more in called] == ["SlicedWasserstein()"]


def test_sets_without_the_label_are_left_out_and_counted(slosh_, tmp_path, few_methods, write_clouds):
    write_clouds(tmp_path / "c", 20)
    for i in range(3):
        np.save(tmp_path / "c" / f"z{i}.npy", np.ones((5, 2)) * i)
    (tmp_path / "c" / "zz").mkdir()
    np.save(tmp_path / "c" / "zz" / "one.npy", np.ones((5, 2)))
    code, out, err = slosh_("build", tmp_path / "a", tmp_path / "c", "--label", "folder")
    assert code == 0
    assert "slosh: left out, without 'folder' in the metadata: 3 sets\n" in err
    assert "slosh: left out, the only one with its label: 1 set\n" in err
    assert out.startswith("20 sets (d = 2, 2 classes)")
    _, again, err_again = slosh_("compare", tmp_path / "c", "--label", "folder")
    assert (again.split(";")[0], err_again) == (out.split(";")[0], err)


def test_a_label_that_no_set_has(slosh_, tmp_path):
    code, _, err = slosh_("build", tmp_path / "a", "clouds", "--label", "kind")
    assert code == 1
    assert "none of the first 12 sets has 'kind' in its metadata" in err
    assert "there is file, folder" in err
    assert not (tmp_path / "a").exists()
    code, _, err = slosh_("retrain", "clouds.slosh", "--label", "kind")
    assert code == 1
    assert "no set has 'kind' in its metadata: choose a key with --label; there is file, folder" in err
    code, _, err = slosh_("retrain", "clouds.slosh", "--whiten", "--label", "kind")
    assert code == 1
    assert "--label: no set has 'kind' in its metadata" in err


@pytest.mark.parametrize("value", ["x", "5"])
def test_one_class_leaves_the_index_as_it_was_built(slosh_, tmp_path, stored, value):
    code, out, err = slosh_("build", tmp_path / "a", "clouds", "--meta", f"kind={value}", "--label", "kind")
    assert (code, out) == (1, "")
    assert f"--label kind: all sets have the label {value!r}:".replace("'5'", "5") in err
    assert "all 12 sets are stored in" in err
    assert f"run: slosh retrain {tmp_path / 'a'} --label kind" in err
    assert stored(tmp_path / "a") == 12
    assert slosh_("verify", tmp_path / "a")[0] == 0


def test_a_list_is_no_label(slosh_, tmp_path):
    with slosh.SetIndex.create(tmp_path / "a", dim=2) as index:
        index.add([np.ones((3, 2)) * i for i in range(6)], metadata=[{"kind": ["a", i % 2]} for i in range(6)])
    code, _, err = slosh_("retrain", tmp_path / "a", "--label", "kind")
    assert code == 1
    assert "--label kind: 0 has ['a', 0] there, and a label is a text or a number" in err


def test_whiten_learns_from_all_batches(slosh_, tmp_path, kinds):
    code, out, err = slosh_("build", tmp_path / "a", kinds, "--whiten", "--batch-points", 1800)
    assert (code, err) == (0, "")
    assert out.startswith("built 600")
    told = "\nembedding: Whitened(embedding=SlicedWasserstein()), 64 numbers a set, learnt from 600 sets"
    assert f"{told}\n" in out
    assert embedding_of(tmp_path / "a").n_samples_ == 600
    code, out, _ = slosh_("build", tmp_path / "b", kinds, "--whiten")
    assert out.startswith("built 600")
    assert f"{told}\n" in out
    assert embedding_of(tmp_path / "b").n_samples_ == 600
    code, out, _ = slosh_("build", tmp_path / "c", kinds, "--whiten", "--label", "kind")
    assert code == 0
    assert f"{told}, with the labels of 'kind'\n" in out
    assert embedding_of(tmp_path / "c").n_labelled_ == 600
    assert slosh_("build", tmp_path / "d", kinds, "--embedding", "field:16", "--batch-points", 1800)[0] == 0
    anchors = embedding_of(tmp_path / "d").anchors_
    assert slosh_("build", tmp_path / "e", kinds, "--embedding", "field:16")[0] == 0
    np.testing.assert_array_equal(anchors, embedding_of(tmp_path / "e").anchors_)


def test_labels_of_some(slosh_, tmp_path, kinds):
    assert slosh_("build", tmp_path / "a", kinds, "--meta", "more=1")[0] == 0
    assert slosh_("update", tmp_path / "a", "--where", "kind != 'kind 0'", "--meta", "some=1")[0] == 0
    assert slosh_("update", tmp_path / "a", "--where", "kind = 'kind 1'", "--meta", "some=2")[0] == 0
    code, out, _ = slosh_("retrain", tmp_path / "a", "--whiten", "--label", "some")
    assert code == 0
    assert out.endswith(" 64 numbers a set, learnt from 600 sets, with the labels of 'some' of 450 of them\n")


def test_an_embedding_is_shown_on_one_line(slosh_, tmp_path):
    options = ["--embedding", "sliced+field:16+local", "--whiten", "--slices", 8, "--quantiles", 4, "--seed", 5]
    assert slosh_("build", tmp_path / "a", "clouds", *options)[0] == 0
    assert "\n" in repr(embedding_of(tmp_path / "a"))
    (line,) = [line for line in slosh_("info", tmp_path / "a")[1].splitlines() if line.startswith("embedding")]
    assert line.startswith("embedding      Whitened(embedding=[SlicedWasserstein(n_quantiles=4, n_slices=8")
    assert "numbers a set" in line
    assert "\\" not in line  # nor an escaped line break


def test_several_embeddings(slosh_, tmp_path):
    code, _, err = slosh_("build", tmp_path / "a", "clouds", "--embedding", "sliced+field:16+local")
    assert code == 2
    assert "add --whiten" in err
    assert not (tmp_path / "a").exists()
    assert slosh_("build", tmp_path / "a", "clouds", "--embedding", "sliced+field:16+local", "--whiten")[0] == 0
    assert [type(each).__name__ for each in embedding_of(tmp_path / "a").embeddings_] == [
        *("SlicedWasserstein", "DistanceField", "LocalShape"),
    ]
    assert slosh_("search", tmp_path / "a", "thin/0000.npy")[0] == 0


@pytest.mark.parametrize(
    "asked", ["--label folder", "--whiten", "--embedding sliced+field:16 --whiten --power 0.2 --slices 8 --quantiles 4"]
)
def test_interrupted_while_learning(slosh_, tmp_path, monkeypatch, stored, few_methods, asked):
    def stop(*_, **__):
        raise KeyboardInterrupt

    path = tmp_path / "my index"
    with monkeypatch.context() as patched:
        patched.setattr(slosh.SetIndex, "retrain", stop)
        code, _, err = slosh_("build", path, "clouds", "--batch-points", 100, "--seed", 3, *asked.split())
    assert code == 130
    assert f"all 12 sets are stored in {path}, embedded by " in err
    assert f"; to finish, run: slosh retrain '{path}' {asked} --seed 3\n" in err
    assert stored(path) == 12
    assert slosh_("verify", path)[0] == 0
    assert slosh_(*shlex.split(err.partition("run: slosh ")[2]))[0] == 0
    assert slosh_("verify", path)[0] == 0
    if "--slices" in asked:
        other = tmp_path / "b"
        assert slosh_("build", other, "clouds", "--seed", 3, *asked.split())[0] == 0
        assert repr(embedding_of(path)) == repr(embedding_of(other))


def test_retrain(slosh_, copied, kinds, tmp_path):
    code, _, err = slosh_("retrain", copied)
    assert code == 1
    assert "SlicedWasserstein() learns nothing from data: give another one with --embedding or --whiten" in err
    code, out, err = slosh_("retrain", copied, "--embedding", "field:16")
    assert (code, out, err) == (0, f"{copied}: 12 sets, DistanceField(n_anchors=16), 16 numbers a set\n", "")
    assert slosh_("retrain", copied)[0] == 0
    assert slosh_("search", copied, "thin/0000.npy")[0] == 0
    assert slosh_("retrain", copied, "--embedding", "sliced+field")[0] == 2
    assert (
        slosh_("build", tmp_path / "b", kinds, "--embedding", "sliced+field:16", "--whiten", "--label", "kind")[0] == 0
    )
    code, _, err = slosh_("retrain", tmp_path / "b")
    assert code == 1
    again = f"slosh retrain {tmp_path / 'b'} --embedding sliced+field:16 --whiten --label KEY"
    assert f"the embedding has learnt from labels: say from which metadata key it is to: {again}" in err
    assert slosh_("retrain", tmp_path / "b", "--whiten")[0] == 0
    assert slosh_("retrain", tmp_path / "b")[0] == 0


def test_info_says_what_is_not_learnt_yet(slosh_, tmp_path):
    with slosh.SetIndex.create(tmp_path / "a", dim=2, embedding=Whitened()) as index:
        index.add([np.random.default_rng(i).normal(size=(9, 2)) for i in range(30)])
    assert "retrain        nothing is learnt yet" in slosh_("info", tmp_path / "a")[1]
    assert slosh_("retrain", tmp_path / "a")[0] == 0
    assert "retrain" not in slosh_("info", tmp_path / "a")[1]
