"""`slosh train`, and `slosh build --embedding FILE`."""

from __future__ import annotations

import json

import numpy as np
import pytest

import slosh

pytest.importorskip("torch", reason="torch is not installed")

FAST = ["--epochs", "2", "--components", "8", "--embedding", "sliced"]


@pytest.fixture
def labelled(tmp_path, write_clouds, monkeypatch):
    """A folder with clouds/thin and clouds/fat."""
    write_clouds(tmp_path / "clouds", n=40)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(labelled, capsys):
    from slosh.cli import main

    def call(*arguments):
        capsys.readouterr()
        code = main([str(each) for each in arguments])
        return (code, *capsys.readouterr())

    return call


def test_train_and_build(run, labelled):
    code, out, _ = run("train", "clouds", "--label", "folder", "-o", "m.slosh-embedding", "--center", *FAST)
    assert code == 0
    assert "learnt from 40 sets of 2 labels" in out
    assert "slosh build INDEX clouds --embedding m.slosh-embedding" in out
    assert sorted(each.name for each in labelled.iterdir()) == ["clouds", "m.slosh-embedding"]
    code, out, _ = run("build", "shapes.slosh", "clouds", "--embedding", "m.slosh-embedding")
    assert code == 0
    assert "LearnedEmbedding" in out
    with slosh.open("shapes.slosh", read_only=True) as index:
        assert index.info()["distance_kind"] == "learned"
        assert index.preprocess == slosh.Preprocess(center=True)
        assert index.embedding.classes_.tolist() == ["fat", "thin"] or index.embedding.classes_.tolist() == [
            "thin",
            "fat",
        ]
    code, out, _ = run("search", "shapes.slosh", "clouds/fat/0001.npy", "-k", "3")
    assert code == 0
    code, _, err = run("retrain", "shapes.slosh")
    assert code == 1
    assert "learnt by slosh train" in err
    code, _, err = run("build", "b.slosh", "clouds")
    assert code == 0
    code, _, err = run("retrain", "b.slosh", "--embedding", "m.slosh-embedding")
    assert (code, "prepared by" in err) == (1, True)


def test_train_says_what_it_did_as_json(run):
    code, out, _ = run("train", "clouds", "--label", "folder", "--json", *FAST)
    assert code == 0
    told = json.loads(out)
    assert (told["sets"], told["classes"], told["file"]) == (40, 2, "model.slosh-embedding")
    assert told["bytes"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--label", "kind"], "kind"),
        (["--label", "folder", "--network", "points"], "--network takes the place"),
        (["--label", "folder", "-o", "nowhere/m"], "not a folder"),
        (["--label", "folder", "--device", "nothing"], "--device"),
    ],
)
def test_train_refuses(run, labelled, arguments, message):
    code, _, err = run("train", "clouds", *FAST, *arguments)
    assert code in (1, 2)
    assert message in err
    assert [each.name for each in labelled.iterdir()] == ["clouds"]


def test_a_checkpoint_of_another_fit(run, labelled):
    (labelled / "model.slosh-embedding.checkpoint").write_bytes(b"of somebody else")
    code, _, err = run("train", "clouds", "--label", "folder", *FAST)
    assert code == 1
    assert "checkpoint" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--embedding", "nothing.slosh-embedding"], "no file"),
        (["--embedding", "m.slosh-embedding", "--whiten"], "leave --whiten out"),
        (["--embedding", "m.slosh-embedding", "--label", "folder"], "leave --label out"),
        (["--embedding", "m.slosh-embedding", "--center"], "leave --center out"),
        (["--embedding", "./text"], "is not a file of the kind"),
    ],
)
def test_build_refuses(run, labelled, arguments, message):
    model = slosh.embed.SlicedWasserstein(4).fit([np.zeros((3, 2))])
    slosh.save_embedding(model, "m.slosh-embedding")
    (labelled / "text").write_text("this is no embedding")
    code, _, err = run("build", "shapes.slosh", "clouds", *arguments)
    assert code in (1, 2)
    assert message in err
    assert not (labelled / "shapes.slosh").exists()


def test_a_place_that_cannot_be_written_to_is_refused_before_anything_is_learnt(run, labelled):
    (labelled / "folder").mkdir()
    code, _, err = run("train", "clouds", "--label", "folder", "-o", "folder", *FAST)
    assert code == 1
    assert "folder is a folder: give -o the name of a file, such as folder/model.slosh-embedding" in err
    assert not list(labelled.glob("*.checkpoint"))


def test_a_damaged_file_is_to_be_restored_or_made_again(run, labelled):
    assert run("train", "clouds", "--label", "folder", "-o", "m.slosh-embedding", *FAST)[0] == 0
    whole = (labelled / "m.slosh-embedding").read_bytes()
    (labelled / "cut.slosh-embedding").write_bytes(whole[: len(whole) // 2])
    code, _, err = run("build", "x.slosh", "clouds", "--embedding", "cut.slosh-embedding")
    assert code == 1
    assert "restore it from a copy, or make it again with slosh train" in err
    assert "slosh verify" not in err
    assert not (labelled / "x.slosh").exists()
