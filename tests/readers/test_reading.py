"""`read`: sources, ids and metadata, batches and laziness, files that are left out, libraries that are missing."""

from __future__ import annotations

import errno
import itertools
import sys
import warnings

import numpy as np
import pytest
from reader_files import FAR, everything

from builders import normal_arrays
from comparing import raises, same
from slosh import Sets
from slosh.errors import DuplicateId, InputError, MissingExtra, PrecisionWarning, ReaderError, SourceNotFound
from slosh.readers import FORMATS, read
from slosh.readers.files import Options, Piece

# ---- sources, ids, metadata


@pytest.fixture
def folder(tmp_path):
    """Clouds in folders, beside files that are no clouds."""
    root = tmp_path / "clouds"
    for name in ("b.npy", "chair/one.npy", "chair/two.npy", "a/deep/three.NPY", ".hidden/x.npy", "chair/.secret.npy"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as stream:
            np.save(stream, normal_arrays(4, dim=3, seed=len(name))[0])
    (root / "README.txt").write_text("not a cloud")
    (root / "noextension").write_text("")
    return root


def test_a_folder_gives_all_files_that_can_be_read_in_order(folder):
    batch = everything(folder)
    assert batch.ids == ["a/deep/three.NPY", "b.npy", "chair/one.npy", "chair/two.npy"]
    assert batch.metadata[0] == {"file": "three.NPY", "folder": "a/deep"}
    assert batch.metadata[1] == {"file": "b.npy"}
    assert everything(str(folder)).ids == batch.ids


def test_patterns_files_and_lists(folder):
    assert everything(folder / "b.npy")[1:] == (["b.npy"], [{"file": "b.npy"}])
    assert everything(folder / "chair" / "*.npy").ids == ["one.npy", "two.npy"]
    assert everything(f"{folder}/ch*/*.npy").ids == ["chair/one.npy", "chair/two.npy"]
    assert everything(f"{folder}/**/*.npy").ids == ["b.npy", "chair/one.npy", "chair/two.npy"]
    assert everything(f"{folder}/c*").ids == ["chair/one.npy", "chair/two.npy"]
    assert everything([folder / "b.npy", folder / "chair"]).ids == ["b.npy", "one.npy", "two.npy"]
    assert everything(f"{folder}/**").ids == everything(folder).ids


def test_a_source_is_the_folder_of_files_that_lie_directly_in_it(folder, monkeypatch):
    chair, deep = folder / "chair", folder / "a" / "deep"

    def folders(source, **given):
        return [about.get("folder") for about in everything(source, **given, source_as_folder=True).metadata]

    assert folders([chair, deep]) == ["chair", "chair", "deep"]
    assert folders([chair / "one.npy", deep / "three.NPY"]) == ["chair", "deep"]
    assert folders([f"{folder}/chair/*.npy", f"{folder}/ch*/../b.npy"]) == ["chair", "chair", "chair/.."]
    assert folders([f"{folder}/ch*/*.npy", deep]) == ["chair", "chair", "deep"]
    assert folders(folder) == ["a/deep", "clouds", "chair", "chair"]
    monkeypatch.chdir(chair)
    assert folders(".") == folders("*.npy") == folders("one.npy") * 2 == ["chair", "chair"]
    assert "folder" not in everything([chair, deep]).metadata[0]
    with raises("source_as_folder=1", error=InputError):
        read(folder, source_as_folder=1)


def test_a_file_that_is_named_twice_is_read_once(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert everything(["chair", folder / "chair", "chair/two.npy"]).ids == ["one.npy", "two.npy"]
    assert everything(["chair/two.npy", "."]).ids == ["two.npy", "a/deep/three.NPY", "b.npy", "chair/one.npy"]


def test_ids_may_occur_twice_where_they_need_not_be_unique(folder):
    np.save(folder / "a" / "one.npy", normal_arrays(2, dim=3)[0])
    twice = [folder / "chair", folder / "a" / "one.npy"]
    with raises("one.npy", "chair", error=DuplicateId):
        everything(twice)
    assert everything(twice, unique_ids=False).ids == ["one.npy", "two.npy", "one.npy"]
    with raises("unique_ids='no'", error=InputError):
        read(folder, unique_ids="no")


def test_a_name_with_brackets_is_a_file_if_there_is_one(tmp_path):
    np.save(tmp_path / "x[1].npy", normal_arrays(3, dim=3)[0])
    assert everything(tmp_path / "x[1].npy").ids == ["x[1].npy"]


def test_a_relative_source(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert everything("*.npy").ids == ["b.npy"]
    assert everything(".").ids == everything(folder).ids


def test_sources_that_are_not_there(folder, tmp_path):
    with raises("no/such", "no such file", error=FileNotFoundError):
        read(tmp_path / "no" / "such.npy")
    with raises("*.off", "nothing matches", error=SourceNotFound) as caught:
        read(f"{folder}/*.off")
    assert caught.value.location == f"{folder}/*.off"
    assert caught.value.errno == errno.ENOENT
    (tmp_path / "empty").mkdir()
    with raises("empty: the folder has no files"):
        read(tmp_path / "empty")
    (tmp_path / "other").mkdir()
    for name in ("a.jpg", "b.jpg", "c"):
        (tmp_path / "other" / name).write_text("x")
    with raises("none of its files can be read", "2 of .jpg, 1 of no extension", ".npy .npz"):
        read(tmp_path / "other")
    with raises("a.jpg: files of .jpg are not known", ".npy", "format="):
        read(tmp_path / "other" / "a.jpg")


@pytest.mark.parametrize("source", [3, None, b"x", {}, [], [3], "", np.zeros((2, 2))])
def test_sources_that_are_none(source):
    with pytest.raises((ValueError, FileNotFoundError), match="source"):
        read(source)


def test_links_that_lead_out_are_refused(folder, tmp_path):
    np.save(tmp_path / "secret.npy", normal_arrays(3, dim=3)[0])
    (folder / "z.npy").symlink_to(folder / "b.npy")
    assert "z.npy" in everything(folder).ids  # inside
    (folder / "chair" / "link.npy").symlink_to(tmp_path / "secret.npy")
    for source in (folder, f"{folder}/**/*.npy"):
        with raises("link.npy", "leads out", "secret.npy"):
            read(source)
    assert everything(folder / "chair" / "link.npy").ids == ["link.npy"]  # the user's own word
    (folder / "chair" / "link.npy").unlink()
    (folder / "up").symlink_to(tmp_path)
    with raises("up", "leads out"):
        read(folder)


def test_format_overrides_the_extension(tmp_path):
    with open(tmp_path / "points.dat", "wb") as stream:
        np.save(stream, normal_arrays(5, dim=3)[0])
    for name in ("npy", ".npy", "NPY"):
        assert everything(tmp_path / "points.dat", format=name).ids == ["points.dat"]
    with raises("format='docx' is not known", ".npy"):
        read(tmp_path, format="docx")
    assert everything(tmp_path, format="npy").ids == ["points.dat"]


def test_arguments_are_checked_at_the_call(folder):
    for wrong, words in (
        ({"by": "x"}, "by= says nothing about"),
        ({"weights": "w"}, "weights= says nothing about"),
        ({"obsm": "x"}, ".h5ad"),
        ({"id_column": 3}, "id_column=3"),
        ({"columns": []}, "columns must be"),
        ({"columns": ["a", "a"]}, "twice"),
        ({"weights": True}, "weights=True"),
        ({"n_points": 0}, "n_points=0"),
        ({"random_state": -1}, "random_state=-1"),
        ({"random_state": np.random.RandomState(0)}, "random_state"),
        ({"batch_points": 1.5}, "batch_points=1.5"),
        ({"origin": "middle"}, "origin must be"),
        ({"origin": [np.nan] * 3}, "origin must be"),
    ):
        with raises(words, error=InputError) as caught:
            read(folder, **wrong)
        assert caught.value.argument == next(iter(wrong))


def test_ids_that_occur_twice_name_both_places(folder, tmp_path):
    other = tmp_path / "more"
    other.mkdir()
    np.save(other / "b.npy", normal_arrays(3, dim=3)[0])
    with raises("'b.npy'", "clouds/b.npy", "more/b.npy"):
        everything([folder, other])
    np.savez(tmp_path / "twice.npz", points=np.zeros((2, 1)), offsets=[0, 1, 2], names=["a", "a"])
    with raises("twice.npz: the id 'a' occurs twice", error=DuplicateId) as caught:
        everything(tmp_path / "twice.npz")
    assert caught.value.id == "a"


# ---- batches


def test_small_files_are_joined_and_large_ones_cut(tmp_path):
    arrays = normal_arrays(40, 40, 40, 40, 40, dim=3)
    for i, x in enumerate(arrays):
        np.save(tmp_path / f"{i}.npy", x)
    batches = list(read(tmp_path, batch_points=100))
    assert [b.ids for b in batches] == [["0.npy", "1.npy"], ["2.npy", "3.npy"], ["4.npy"]]
    same(Sets.concat([b.sets for b in batches]), arrays)
    assert [len(b.sets) for b in read(tmp_path, batch_points=1)] == [1] * 5
    np.save(tmp_path / "all.npy", np.stack(arrays))
    batches = list(read(tmp_path / "all.npy", batch_points=100))
    assert [b.ids for b in batches] == [["all/0", "all/1"], ["all/2", "all/3"], ["all/4"]]


def test_a_batch_is_weighted_or_not(tmp_path):
    x, y = normal_arrays(3, 2, dim=3)
    np.save(tmp_path / "a.npy", x)
    np.savez(tmp_path / "b.npz", points=y, weights=[1, 2])
    np.save(tmp_path / "c.npy", x)
    batches = list(read(tmp_path))
    assert [b.ids for b in batches] == [["a.npy"], ["b.npz"], ["c.npy"]]
    same(batches[1].sets, [y], [[1, 2]])
    assert [b.ids for b in read(tmp_path, weights=False)] == [["a.npy", "b.npz", "c.npy"]]


def test_many_features_make_smaller_batches(tmp_path):
    assert Options().limit(3) == 1 << 22
    assert Options().limit(1 << 12) == 1 << 14
    assert Options(batch_points=5).limit(1 << 30) == 1


def test_laziness(tmp_path, monkeypatch):
    """The first batch opens the files it needs, and maps a large array without reading it."""
    for i in range(50):
        np.save(tmp_path / f"{i:02}.npy", normal_arrays(10, dim=3)[0])
    opened = []
    one = Piece.one.__func__
    monkeypatch.setattr(Piece, "one", classmethod(lambda cls, file, *a: opened.append(file.name) or one(cls, file, *a)))
    batches = read(tmp_path, batch_points=20)
    assert opened == []
    next(batches)
    assert len(opened) == 2
    batches.close()


def test_reading_a_part_of_a_large_array_takes_little(tmp_path):
    path = tmp_path / "large.npy"
    shape = (1 << 20, 1 << 10, 4)  # 16 GB of zeros, which take no room on disk
    with open(path, "wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
        stream.truncate(stream.tell() + int(np.prod(shape)) * 4)
    first, second = itertools.islice(read(path, batch_points=4096), 2)
    assert first.ids == ["large/0", "large/1", "large/2", "large/3"]
    assert second.ids[0] == "large/4"


def test_origin(tmp_path):
    far = FAR + np.random.default_rng(0).uniform(0, 50, (2, 40, 3))
    np.save(tmp_path / "a.npy", far[0])
    np.save(tmp_path / "b.npy", far[1])
    with pytest.warns(PrecisionWarning):
        everything(tmp_path)
    first, second = read(tmp_path, origin="auto", batch_points=40)
    np.testing.assert_array_equal(first.sets.origin, second.sets.origin)
    np.testing.assert_allclose(second.sets[0] + second.sets.origin, far[1], atol=1e-5)
    np.testing.assert_array_equal(everything(tmp_path, origin=[5e5, 5.3e6, 0]).sets.origin, [5e5, 5.3e6, 0])
    with raises("origin must be 3 finite numbers"):
        everything(tmp_path, origin=[0, 0])


def test_errors_of_sets_name_file_and_id(tmp_path):
    x = normal_arrays(5, dim=3)[0]
    np.save(tmp_path / "a.npy", x)
    bad = x.copy()
    bad[3, 1] = np.nan
    np.save(tmp_path / "b.npy", bad)
    with raises("b.npy: element 3, feature 1 is nan, not a finite number", error=ReaderError) as caught:
        everything(tmp_path)
    place = caught.value
    assert (place.location, place.id, place.element, place.feature) == (str(tmp_path / "b.npy"), "b.npy", 3, 1)
    np.save(tmp_path / "b.npy", x[:0])
    with raises("b.npy: the set is empty: drop it"):
        everything(tmp_path)
    np.savez(tmp_path / "b.npz", u=x, v=bad)
    with raises("b.npz: set 'v', element 3"):
        everything(tmp_path / "b.npz")
    np.savez(tmp_path / "b.npz", points=x, offsets=[0, 2, 5], weights=[1, 1, 0, 0, 0], names=["p", "q"])
    with raises("b.npz: set 'q' has weights that are all zero"):
        everything(tmp_path / "b.npz")
    np.save(tmp_path / "b.npy", x[:, :2])
    with raises("b.npy: 2 features", "a.npy has 3"):
        everything([tmp_path / "a.npy", tmp_path / "b.npy"])


# ---- files that are left out


@pytest.fixture
def damaged(tmp_path):
    """Two good clouds among five bad ones."""
    for name, array in (
        ("a", normal_arrays(4, dim=3)[0]),
        ("d", normal_arrays(5, dim=3)[0]),
        ("e", [[0, 0, np.nan]]),
        ("f", np.empty((0, 3))),
    ):
        np.save(tmp_path / f"{name}.npy", array)
    (tmp_path / "0.npy").write_bytes(b"\x93NUMPY")
    (tmp_path / "b.xyz").write_text("one two three\n")
    (tmp_path / "c.pcd").write_bytes(b"\x1b[31m\n")
    return tmp_path


def test_damaged_files_are_left_out(damaged):
    with pytest.raises(ValueError, match=r"0\.npy: not a readable NumPy array: "):
        everything(damaged)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batch = everything(damaged, on_error="skip")
    assert batch.ids == ["a.npy", "d.npy"]
    same(batch.sets, [normal_arrays(4, dim=3)[0], normal_arrays(5, dim=3)[0]])
    assert all(one.category is UserWarning for one in caught)
    said = [str(one.message) for one in caught]
    expected = [
        ("0.npy", "not a readable NumPy array"),
        ("b.xyz", "not a readable XYZ cloud"),
        ("c.pcd", "not a PCD cloud"),
        ("e.npy", "element 0, feature 2 is nan, not a finite number"),
        ("f.npy", "empty"),
    ]
    assert len(said) == len(expected)
    for one, (name, reason) in zip(said, expected, strict=True):
        assert one.startswith(f"left out {damaged / name}: ")
        assert reason in one
        assert one.isprintable()


def test_what_is_not_left_out(damaged):
    with raises('on_error=None is not known: give "raise" or "skip"'):
        read(damaged, on_error=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with raises("none of the 2 files could be read", "0.npy: not a readable"):
            everything([damaged / "0.npy", damaged / "e.npy"], on_error="skip")
        np.save(damaged / "g.npy", np.zeros((3, 2)))  # of another dimension
        with raises("g.npy: 2 features", "all sets need the same"):
            everything(damaged, on_error="skip")
        (damaged / "g.npy").unlink()
        (damaged / "h.npz").write_bytes(b"PK")  # of several sets
        with raises("h.npz: not a readable archive"):
            everything(damaged, on_error="skip")
        with raises("on_error= says nothing about", "h.npz", "it is for .npy .off"):
            read(damaged / "h.npz", on_error="skip")
        many = np.zeros((3, 2, 3))
        many[1, 0, 0] = np.nan
        np.save(damaged / "many.npy", many)
        with raises("many.npy: set 'many/1'"):
            everything(damaged / "many.npy", on_error="skip")
        np.save(damaged / "many.npy", many[:0])
        assert everything([damaged / "many.npy", damaged / "a.npy"], on_error="skip").ids == ["a.npy"]


# ---- libraries that are not there


@pytest.mark.parametrize(
    ("name", "library", "words"),
    [
        (
            "chair.stl",
            "trimesh",
            'chair.stl: reading meshes needs trimesh: install it with: pip install "slosh[files]"',
        ),
        ("site.laz", "laspy", 'site.laz: reading LAS and LAZ needs laspy: install it with: pip install "slosh[files]"'),
        (
            "cells.h5ad",
            "anndata",
            'cells.h5ad: reading .h5ad needs anndata: install it with: pip install "slosh[cells]"',
        ),
        (
            "table.csv",
            "pyarrow",
            'table.csv: reading tables needs pyarrow: install it with: pip install "slosh[tables]"',
        ),
    ],
)
def test_a_missing_library_is_named_at_the_call(tmp_path, monkeypatch, name, library, words):
    monkeypatch.setitem(sys.modules, library, None)
    np.save(tmp_path / "a.npy", normal_arrays(3, dim=3)[0])
    (tmp_path / name).write_text("x")
    with raises(words, error=ImportError) as caught:
        read(tmp_path)
    assert isinstance(caught.value, MissingExtra)
    assert caught.value.package == library
    assert f"slosh[{caught.value.extra}]" in words


def test_formats_are_listed():
    assert {".npy", ".npz", ".parquet", ".arrow", ".csv", ".off", ".glb", ".pcd", ".laz", ".h5ad"} <= set(FORMATS)
    assert all(form.what for form in FORMATS.values())


def test_progress_is_quiet_without_a_terminal(tmp_path, capsys):
    np.save(tmp_path / "a.npy", normal_arrays(3, dim=3)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(read(tmp_path))
    assert capsys.readouterr() == ("", "")
