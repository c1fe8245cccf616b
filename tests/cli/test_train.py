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
        (["--label", "folder", "--embedding", "my model.slosh-embedding"], "give sliced, local, field, gem,"),
        (["--label", "folder", "--embedding", "./model"], "or several joined by +"),
    ],
)
def test_train_refuses(run, labelled, arguments, message):
    code, _, err = run("train", "clouds", *FAST, *arguments)
    assert code in (1, 2)
    assert message in err
    assert "--whiten" not in err
    assert [each.name for each in labelled.iterdir()] == ["clouds"]


def test_a_network_that_is_not_known_is_refused_in_the_words_of_the_command(run, labelled):
    code, _, err = run("train", "clouds", "--label", "folder", "--network", "foo")
    assert (code, err) == (2, "slosh: --network foo is not known: give points\n")


def test_a_file_of_any_name_is_an_embedding(run, labelled):
    for name in ("model.e", "sliced"):  # the second is a known one, too
        code, _, err = run("train", "clouds", "--label", "folder", "-o", name, "--json", *FAST)
        assert (code, err) == (0, "")
    command = json.loads(run("train", "clouds", "--label", "folder", "-o", "model.e", "--json", *FAST)[1])["command"]
    assert run(*command.replace("INDEX", "a.slosh").split()[1:])[0] == 0
    assert run("build", "b.slosh", "clouds", "--embedding", "sliced")[0] == 0
    with slosh.open("a.slosh") as one, slosh.open("b.slosh") as other:
        assert type(one.embedding).__name__ == "LearnedEmbedding"
        assert type(other.embedding).__name__ == "SlicedWasserstein"


def test_the_folder_is_the_label_of_several_sources_whose_files_have_equal_names(run, labelled):
    for i, each in enumerate(sorted(labelled.glob("clouds/*/*.npy"))):
        each.rename(each.with_name(f"s{i % 20}.npy"))
    thin, fat = "clouds/thin", "clouds/fat"
    files = [path for folder in (thin, fat) for path in (labelled / folder).iterdir()]
    for source in ([thin, fat], [thin, f"{fat}/*.npy"], files, [fat, thin, fat]):
        code, out, err = run("train", *source, "--label", "folder", "--json", *FAST)
        assert (code, err) == (0, ""), source
        told = json.loads(out)
        assert (told["sets"], told["classes"]) == (40, 2)
        assert told["command"] == "slosh build INDEX SOURCE --embedding model.slosh-embedding"
        model = slosh.load_embedding("model.slosh-embedding")
        assert sorted(model.classes_.tolist()) == ["fat", "thin"]
    code, _, err = run("train", thin, "--label", "folder", *FAST)
    assert (code, "no set has 'folder'" in err) == (1, True)


def test_tables_may_have_equal_ids(run, labelled):
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        lines = [f"{i},{x},{y},{i % 2}" for i in range(12) for x, y in rng.normal(scale=1 + i % 2, size=(9, 2))]
        (labelled / f"{name}.csv").write_text("\n".join(["id,x,y,digit", *lines]))
    arguments = ["one.csv", "two.csv", "--label", "digit", "--columns", "x,y", "--origin", "auto"]
    code, out, err = run("train", *arguments, "--json", *FAST)
    assert (code, err) == (0, "")
    assert (json.loads(out)["sets"], json.loads(out)["classes"]) == (24, 2)
    code, out, err = run("compare", *arguments, "-k", "3")
    assert (code, err) == (0, "")
    assert out.startswith("24 sets")
    assert "slosh build INDEX SOURCE --columns x,y" in out


def test_a_file_may_have_an_id_twice(run, labelled):
    rng = np.random.default_rng(0)
    sets, digits = [rng.normal(scale=1 + i % 2, size=(9, 2)) for i in range(14)], np.arange(14) % 2
    names = np.array([f"s{i % 12}" for i in range(14)])
    np.savez("one.npz", points=np.concatenate(sets), offsets=np.arange(15) * 9, digit=digits, name=names)
    arguments = ["one.npz", "--id-column", "name"]
    code, out, err = run("train", *arguments, "--label", "digit", "--json", *FAST)
    assert (code, err) == (0, "")
    assert (json.loads(out)["sets"], json.loads(out)["command"].split()[3]) == (14, "SOURCE")
    code, _, err = run("build", "x.slosh", *arguments)
    assert (code, "occurs twice" in err) == (1, True)


def test_sources_of_other_features_are_refused(run, labelled, write_clouds):
    write_clouds(labelled / "solid", dim=3)
    code, _, err = run("train", "clouds", "solid", "--label", "folder", *FAST)
    assert code == 1
    assert "slosh: solid/fat/0001.npy: 3 features, clouds/fat/0001.npy has 2: all sets need the same" in err


def test_a_checkpoint_that_is_something_else(run, labelled):
    checkpoint = labelled / "model.slosh-embedding.checkpoint"
    remedy = "remove it, or choose another name with -o"
    checkpoint.write_bytes(b"of somebody else")
    code, _, err = run("train", "clouds", "--label", "folder", *FAST)
    assert code == 1
    assert err == f"slosh: {checkpoint.name} is not a file of the kind 'slosh checkpoint': {remedy}\n"
    slosh.save_embedding(slosh.embed.SlicedWasserstein(4).fit([np.zeros((3, 2))]), checkpoint)
    assert remedy in run("train", "clouds", "--label", "folder", *FAST)[2]
    checkpoint.unlink()
    checkpoint.mkdir()
    assert remedy in run("train", "clouds", "--label", "folder", *FAST)[2]


def test_training_goes_on_from_a_checkpoint_and_says_so(run, labelled, monkeypatch):
    def stopped(*given, **more):
        raise KeyboardInterrupt

    checkpoint = labelled / "model.slosh-embedding.checkpoint"
    with monkeypatch.context() as patched:
        patched.setattr(slosh, "save_embedding", stopped)
        assert run("train", "clouds", "--label", "folder", *FAST)[0] == 130
    whole = checkpoint.read_bytes()
    code, _, err = run("train", "clouds", "--label", "folder", *FAST)
    assert code == 0
    assert f"slosh: {checkpoint.name} holds 2 epochs: training continues from there" in err
    assert not checkpoint.exists()

    checkpoint.write_bytes(whole)
    code, _, err = run("train", "clouds", "--label", "folder", *FAST, "--seed", "1")
    assert code == 1
    assert "with other data or parameters: remove it, or choose another name with -o" in err
    checkpoint.write_bytes(whole[:-100])
    code, _, err = run("train", "clouds", "--label", "folder", *FAST)
    assert code == 1
    assert "remove it, or choose another name with -o" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--embedding", "nothing.slosh-embedding"], "no file nothing.slosh-embedding: give one that slosh train or"),
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
