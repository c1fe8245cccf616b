"""Readers: every format from files that its own library wrote, ids and metadata, sources, batches and laziness."""

from __future__ import annotations

import gzip
import itertools
import re
import struct
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from conftest import DATA
from slosh import Sets
from slosh.errors import PrecisionWarning
from slosh.readers import FORMATS, Batch, pcd, read
from slosh.readers.files import Options, Piece

FAR = np.array([5e5, 5.3e6, 100])  # metres, as on a map


def raises(*words, error=ValueError):
    """The message has all of the words, in that order."""
    return pytest.raises(error, match="(?s)" + ".*".join(re.escape(word) for word in words))


def cloud(*sizes, dim=3, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, dim)).astype(np.float32) for n in sizes]


def everything(source, **options) -> Batch:
    """All batches of a source as one."""
    batches = list(read(source, progress=False, **options))
    assert all(len(b.sets) == len(b.ids) == len(b.metadata) for b in batches)
    ids, metadata = ([one for b in batches for one in b[k]] for k in (1, 2))
    return Batch(Sets.concat([b.sets for b in batches]), ids, metadata)


def same(sets, arrays, weights=None):
    assert [len(x) for x in sets] == [len(x) for x in arrays]
    for one, other in zip(sets, arrays, strict=True):
        np.testing.assert_array_equal(one, np.asarray(other, np.float32))
    assert (sets.weights is None) == (weights is None)
    if weights is not None:
        np.testing.assert_array_equal(sets.weights, np.concatenate(weights).astype(np.float32))


# ---- sources, ids, metadata


@pytest.fixture
def folder(tmp_path):
    """Clouds in folders, beside files that are no clouds."""
    root = tmp_path / "clouds"
    for name in ("b.npy", "chair/one.npy", "chair/two.npy", "a/deep/three.NPY", ".hidden/x.npy", "chair/.secret.npy"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as stream:
            np.save(stream, cloud(4, seed=len(name))[0])
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


def test_a_name_with_brackets_is_a_file_if_there_is_one(tmp_path):
    np.save(tmp_path / "x[1].npy", cloud(3)[0])
    assert everything(tmp_path / "x[1].npy").ids == ["x[1].npy"]


def test_a_relative_source(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert everything("*.npy").ids == ["b.npy"]
    assert everything(".").ids == everything(folder).ids


def test_sources_that_are_not_there(folder, tmp_path):
    with raises("no/such", "no such file", error=FileNotFoundError):
        read(tmp_path / "no" / "such.npy")
    with raises("*.off", "nothing matches", error=FileNotFoundError):
        read(f"{folder}/*.off")
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
    np.save(tmp_path / "secret.npy", cloud(3)[0])
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
        np.save(stream, cloud(5)[0])
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
        with raises(words):
            read(folder, **wrong)


def test_ids_that_occur_twice_name_both_places(folder, tmp_path):
    other = tmp_path / "more"
    other.mkdir()
    np.save(other / "b.npy", cloud(3)[0])
    with raises("'b.npy'", "clouds/b.npy", "more/b.npy"):
        everything([folder, other])
    np.savez(tmp_path / "twice.npz", points=np.zeros((2, 1)), offsets=[0, 1, 2], names=["a", "a"])
    with raises("twice.npz: the id 'a' occurs twice"):
        everything(tmp_path / "twice.npz")


# ---- batches


def test_small_files_are_joined_and_large_ones_cut(tmp_path):
    arrays = cloud(40, 40, 40, 40, 40)
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
    x, y = cloud(3, 2)
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
        np.save(tmp_path / f"{i:02}.npy", cloud(10)[0])
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
    x = cloud(5)[0]
    np.save(tmp_path / "a.npy", x)
    bad = x.copy()
    bad[3, 1] = np.nan
    np.save(tmp_path / "b.npy", bad)
    with raises("b.npy: element 3, feature 1: nan is not a finite number"):
        everything(tmp_path)
    np.save(tmp_path / "b.npy", x[:0])
    with raises("b.npy: the set is empty: drop it"):
        everything(tmp_path)
    np.savez(tmp_path / "b.npz", u=x, v=bad)
    with raises("b.npz: set 'v', element 3"):
        everything(tmp_path / "b.npz")
    np.savez(tmp_path / "b.npz", points=x, offsets=[0, 2, 5], weights=[1, 1, 0, 0, 0], names=["p", "q"])
    with raises("b.npz: the weights of set 'q' are all zero"):
        everything(tmp_path / "b.npz")
    np.save(tmp_path / "b.npy", x[:, :2])
    with raises("b.npy: 2 features", "a.npy has 3"):
        everything([tmp_path / "a.npy", tmp_path / "b.npy"])


# ---- NumPy


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f2", "f4", ">f8", "i4", "u1", "?"])
def test_npy(tmp_path, order, dtype):
    x = np.asarray(np.arange(24).reshape(2, 4, 3) % 2, dtype, order=order)
    np.save(tmp_path / "x.npy", x)
    batch = everything(tmp_path / "x.npy")
    same(batch.sets, list(x))
    assert batch.ids == ["x/0", "x/1"]
    np.save(tmp_path / "x.npy", np.asarray(x[0], order=order))
    same(everything(tmp_path / "x.npy").sets, [x[0]])


def test_npy_float32_is_mapped_not_copied(tmp_path):
    np.save(tmp_path / "x.npy", cloud(100)[0])
    points = next(read(tmp_path / "x.npy")).sets.points
    while isinstance(points.base, np.ndarray):
        points = points.base
    assert isinstance(points, np.memmap)


@pytest.mark.parametrize("array", [np.zeros(3), np.zeros((2, 2, 2, 2)), np.zeros(()), np.zeros((3, 0))])
def test_npy_of_another_shape(tmp_path, array):
    np.save(tmp_path / "x.npy", array)
    with raises("x.npy: an array of shape", "(N, d) is one set"):
        read(tmp_path / "x.npy")


def test_npy_of_one_axis(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(50))
    with raises("x.npy: an array of shape (50,)", "for 50 elements of one feature save x[:, None]"):
        read(tmp_path / "x.npy")


# ---- files that are left out


@pytest.fixture
def damaged(tmp_path):
    """Two good clouds among five bad ones."""
    for name, array in (("a", cloud(4)[0]), ("d", cloud(5)[0]), ("e", [[0, 0, np.nan]]), ("f", np.empty((0, 3)))):
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
    same(batch.sets, [cloud(4)[0], cloud(5)[0]])
    assert all(one.category is UserWarning for one in caught)
    said = [str(one.message) for one in caught]
    expected = [
        ("0.npy", "not a readable NumPy array"),
        ("b.xyz", "not a readable XYZ cloud"),
        ("c.pcd", "not a PCD cloud"),
        ("e.npy", "element 0, feature 2: nan is not a finite number"),
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


def test_npy_of_other_values(tmp_path):
    for array, words in ((np.array([["a"]]), "not numbers"), (np.ones((2, 2), complex), "complex")):
        np.save(tmp_path / "x.npy", array)
        with raises("x.npy", words):
            everything(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.zeros((3, 2), [("x", "f4")]))
    with raises("x.npy", "not of plain numbers"):
        everything(tmp_path / "x.npy")


@settings(max_examples=25)
@given(
    points=hnp.arrays(
        st.sampled_from(["f4", "f2", ">f4", "i2"]),
        st.tuples(st.integers(1, 30), st.integers(1, 4)),
        elements=st.integers(-100, 100),
    ),
    cuts=st.sets(st.integers(1, 29)),
    packed=st.booleans(),
    fortran=st.booleans(),
    batch=st.integers(1, 40),
)
def test_npz_of_many_sets(tmp_path, points, cuts, packed, fortran, batch):
    offsets = [0, *sorted(c for c in cuts if c < len(points)), len(points)]
    n = len(offsets) - 1
    (np.savez_compressed if packed else np.savez)(
        tmp_path / "s.npz",
        points=np.asfortranarray(points) if fortran else points,
        offsets=offsets,
        weights=np.arange(1, len(points) + 1),
        labels=np.arange(n) % 2,
        classes=["even", "odd"],
        split=np.zeros(n, np.int8),
        unrelated=np.zeros((n, 2)),
    )
    result = everything(tmp_path / "s.npz", batch_points=batch)
    arrays = [points[a:b] for a, b in itertools.pairwise(offsets)]
    same(result.sets, arrays, [np.arange(a + 1, b + 1) for a, b in itertools.pairwise(offsets)])
    assert result.ids == [f"s/{i}" for i in range(n)]
    assert result.metadata[n - 1] == {"file": "s.npz", "label": ["even", "odd"][(n - 1) % 2], "split": 0}


def test_npz_ids_and_metadata(tmp_path):
    file = tmp_path / "s.npz"
    np.savez(
        file,
        points=np.ones((3, 2)),
        offsets=[0, 1, 3],
        names=["p", "q"],
        labels=[-1, 0],
        classes=["c"],
        z=[0.5, np.nan],
    )
    batch = everything(file)
    assert batch.ids == ["p", "q"]
    assert batch.metadata == [{"file": "s.npz", "z": 0.5}, {"file": "s.npz", "label": "c"}]
    np.savez(file, points=np.ones((3, 2)), offsets=[0, 1, 3], key=[7, 9], w=[1, 2, 3])
    batch = everything(file, id_column="key", weights="w")
    assert (batch.ids, batch.sets.weights.tolist()) == (["7", "9"], [1, 2, 3])
    for wrong in ({"id_column": "w"}, {"id_column": "none"}, {"weights": "key"}):
        with raises("s.npz", "key (2,)"):
            everything(file, **wrong)
    np.savez(file, points=np.ones((3, 2)), offsets=[0, 2, 1, 3])
    with raises("s.npz: offsets run backwards at set 1"):
        everything(file)
    np.savez(file, points=np.ones((3, 2)), offsets=[0, 3], labels=[4], classes=["c"])
    with raises("s.npz: 'labels'", "below 1"):
        everything(file)


def test_npz_of_one_cloud_or_of_several_arrays(tmp_path):
    x, y = cloud(3, 5)
    np.savez(tmp_path / "one.npz", points=x, normals=x, scale=2.5)
    assert everything(tmp_path / "one.npz")[1:] == (["one.npz"], [{"file": "one.npz", "scale": 2.5}])
    np.savez(tmp_path / "two.npz", left=x, right=y)
    batch = everything(tmp_path / "two.npz")
    same(batch.sets, [x, y])
    assert batch.ids == ["left", "right"]
    np.savez(tmp_path / "three.npz", x, y)
    assert everything(tmp_path / "three.npz").ids == ["three/0", "three/1"]
    np.savez(tmp_path / "four.npz", x, y[0])
    with raises("four.npz, 'arr_1': of shape (3,)"):
        everything(tmp_path / "four.npz")


@pytest.mark.parametrize("name", ["modelnet40_3d", "oxford5k_vgg16_8d", "pointcloud_mnist_2d"])
def test_npz_of_real_data(name):
    path = DATA / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    batch = next(read(path, batch_points=100_000))
    with np.load(path) as file:
        n = len(batch.ids)
        stop = file["offsets"][n]
        assert stop <= 100_000
        np.testing.assert_array_equal(batch.sets.points, file["points"][:stop].astype(np.float32))
        np.testing.assert_array_equal(batch.sets.offsets, file["offsets"][: n + 1])
        if "names" in file:
            assert batch.ids == file["names"][:n].tolist()
        if "weights" in file:
            np.testing.assert_array_equal(batch.sets.weights, file["weights"][:stop])


# ---- PCD


def pcd_file(path, fields, kind, width=None):
    """Written by hand, as the Point Cloud Library does."""
    n = len(next(iter(fields.values())))
    letters = {"f": "F", "i": "I", "u": "U"}
    head = [
        "# .PCD v0.7 - Point Cloud Data file format",
        "VERSION 0.7",
        "FIELDS " + " ".join(fields),
        "SIZE " + " ".join(str(x.dtype.itemsize) for x in fields.values()),
        "TYPE " + " ".join(letters[x.dtype.kind] for x in fields.values()),
        "COUNT " + " ".join("1" for _ in fields),
        f"WIDTH {n if width is None else width}",
        "HEIGHT 1",
        "VIEWPOINT 0 0 0 1 0 0 0",
        f"POINTS {n if width is None else width}",
        f"DATA {kind}",
    ]
    if kind == "ascii":
        data = "".join(
            " ".join(repr(v.item()) for v in row) + "\n" for row in zip(*fields.values(), strict=True)
        ).encode()
    elif kind == "binary":
        table = np.empty(n, [(name, x.dtype) for name, x in fields.items()])
        for name, x in fields.items():
            table[name] = x
        data = table.tobytes()
    else:
        raw = b"".join(x.tobytes() for x in fields.values())
        packed = pack_lzf(raw)
        data = struct.pack("<II", len(packed), len(raw)) + packed
    path.write_bytes("\n".join(head).encode() + b"\n" + data)


def pack_lzf(data):
    """A plain LZF packer: looks for the three next bytes where they were last."""
    out, literal, last, at = bytearray(), bytearray(), {}, 0

    def flush():
        for i in range(0, len(literal), 32):
            out.extend([len(literal[i : i + 32]) - 1, *literal[i : i + 32]])
        literal.clear()

    while at < len(data):
        key = data[at : at + 3]
        before = last.get(key)
        last[key] = at
        if len(key) == 3 and before is not None and at - before <= 1 << 13:
            length = 3
            while length < 264 and at + length < len(data) and data[before + length] == data[at + length]:
                length += 1
            flush()
            back, extra = at - before - 1, length - 2
            out.append((min(extra, 7) << 5) | (back >> 8))
            if extra >= 7:
                out.append(extra - 7)
            out.append(back & 255)
            at += length
        else:
            literal.append(data[at])
            at += 1
    flush()
    return bytes(out)


@given(st.binary(max_size=400) | st.lists(st.sampled_from([b"a", b"bc", b"0000"]), max_size=400).map(b"".join))
def test_lzf(data):
    assert pcd.unpack_lzf(pack_lzf(data), len(data)) == data


@settings(max_examples=30)
@given(
    kind=st.sampled_from(["ascii", "binary", "binary_compressed"]),
    dtype=st.sampled_from(["<f4", "<f8", "<i2", "<u4", "<i8"]),
    n=st.integers(1, 60),
    data=st.data(),
)
def test_pcd(tmp_path, kind, dtype, n, data):
    values = data.draw(hnp.arrays(dtype, (4, n), elements=st.integers(0, 1000)))
    x, y, other, z = values
    pcd_file(tmp_path / "c.pcd", {"x": x, "y": y, "intensity": other.astype("<u1"), "z": z}, kind)
    batch = everything(tmp_path / "c.pcd")
    same(batch.sets, [np.stack([x, y, z], axis=1)])
    assert batch.ids == ["c.pcd"]
    both = everything(tmp_path / "c.pcd", columns=["z", "intensity"])
    same(both.sets, [np.stack([z, other.astype("u1")], axis=1)])


@pytest.mark.parametrize("kind", ["ascii", "binary", "binary_compressed"])
def test_pcd_points_that_are_nan_are_left_out(tmp_path, kind):
    x = np.array([0, np.nan, 2], "<f4")
    pcd_file(tmp_path / "c.pcd", {"x": x, "y": x, "z": x}, kind)
    same(everything(tmp_path / "c.pcd").sets, [[[0, 0, 0], [2, 2, 2]]])


def test_pcd_errors(tmp_path):
    path, x = tmp_path / "c.pcd", np.zeros(3, "<f4")
    pcd_file(path, {"x": x, "y": x}, "ascii")
    with raises("c.pcd: no field 'z'; the fields are x y", "columns="):
        read(path)
    path.write_text("hello\n")
    with raises("c.pcd: not a PCD cloud"):
        read(path)
    pcd_file(path, {"x": x, "y": x, "z": x[:0].repeat(3)} | {"z": x}, "ascii")
    path.write_bytes(path.read_bytes().replace(b"POINTS 3", b"POINTS 4"))
    with raises("c.pcd: POINTS is 4"):
        read(path)


# ---- IDX


def idx(path, array, code=8):
    head = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes()) if path.suffix == ".gz" else head + array.tobytes())


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-images.idx3-ubyte", "train-images-idx3-ubyte.gz"])
def test_idx(tmp_path, name):
    images = np.zeros((3, 4, 5), np.uint8)
    images[0, 1, 2], images[0, 3, 4], images[1, 0, 0], images[2, 2, 2] = 9, 255, 1, 7
    idx(tmp_path / name, images)
    stem = "train-images" if ".idx3" in name else "train-images-idx3-ubyte"
    batch = everything(tmp_path / name)
    same(batch.sets, [[[2, 1], [4, 3]], [[0, 0]], [[2, 2]]])
    assert batch.ids == [f"{stem}/0", f"{stem}/1", f"{stem}/2"]
    idx(tmp_path / name.replace("images", "labels").replace("idx3", "idx1"), np.array([5, 0, 4], np.uint8))
    batch = everything(tmp_path, weights="grey")
    same(batch.sets, [[[2, 1], [4, 3]], [[0, 0]], [[2, 2]]], [[9, 255], [1], [7]])
    assert [m["label"] for m in batch.metadata] == [5, 0, 4]
    assert [len(b.ids) for b in read(tmp_path, batch_points=2)] == [1, 2]


def test_idx_errors(tmp_path):
    path = tmp_path / "images-idx3-ubyte"
    idx(path, np.ones((2, 3, 3), np.uint8))
    with raises("weights='gray'", '"grey"'):
        read(path, weights="gray")
    idx(tmp_path / "labels-idx1-ubyte", np.ones(5, np.uint8))
    with raises("2 images", "has 5"):
        everything(path)
    with raises("labels-idx1-ubyte", "labels are read with the images"):
        read(tmp_path / "labels-idx1-ubyte")
    (tmp_path / "labels-idx1-ubyte").unlink()
    idx(path, np.zeros((2, 3, 3), np.uint8))
    with raises("images-idx3-ubyte/0", "empty"):
        everything(path)
    idx(path, np.ones((2, 3, 3), np.uint8))
    longer = bytes([0, 0, 8, 1, 0, 0, 0, 2]) + bytes(3)
    (tmp_path / "labels-idx1-ubyte.gz").write_bytes(gzip.compress(longer))
    with raises("labels-idx1-ubyte.gz: goes on after the 2 labels"):
        everything(path)


# ---- text


def test_xyz(tmp_path):
    x = cloud(10)[0].astype(np.float64)
    np.savetxt(tmp_path / "a.xyz", x, header="x y z")
    np.savetxt(tmp_path / "b.xyz", np.hstack([x, x]), delimiter=",")
    (tmp_path / "c.xyz").write_text("2\n0 0 0\n1 2 3\n")
    batch = everything(tmp_path)
    same(batch.sets, [x, x, [[0, 0, 0], [1, 2, 3]]])
    (tmp_path / "d.xyz").write_text("2\nwater\nO 0 0 0\nH 0 0 1\n")
    with raises("d.xyz: looks like a molecule"):
        everything(tmp_path / "d.xyz")
    for text in ("", "a b c\n", "1 2\n3 4\n"):
        (tmp_path / "d.xyz").write_text(text)
        with raises("d.xyz: not a readable XYZ cloud"):
            everything(tmp_path / "d.xyz")


# ---- meshes


@pytest.fixture
def box():
    trimesh = pytest.importorskip("trimesh")
    return trimesh.creation.box((1, 2, 3))


@pytest.mark.parametrize("suffix", ["off", "ply", "obj", "stl", "glb"])
def test_a_mesh_is_sampled_over_its_surface(tmp_path, box, suffix):
    box.export(tmp_path / f"box.{suffix}")
    batch = everything(tmp_path, n_points=4000)
    assert batch.ids == [f"box.{suffix}"]
    (x,) = batch.sets
    assert x.shape == (4000, 3)
    on_face = np.isclose(np.abs(x), [0.5, 1, 1.5], atol=1e-6)
    assert on_face.any(axis=1).all()
    np.testing.assert_allclose(on_face.mean(axis=0), [12 / 22, 6 / 22, 4 / 22], atol=0.03)  # by area
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=0.06)


def test_sampling_depends_on_seed_and_triangles_only(tmp_path, box):
    """A copy of a mesh finds the original at distance 0, wherever it lies."""
    (tmp_path / "a b").mkdir()
    for name in ("a.off", "a b/a.off", "c.off"):
        box.export(tmp_path / name)
    box.apply_translation([0, 0, 1e-3])
    box.export(tmp_path / "other.off")
    *copies, other = everything(tmp_path, n_points=50).sets
    for one in copies:
        np.testing.assert_array_equal(one, copies[0])
    assert np.abs(other - copies[0]).max() > 0.1  # other points, not the same ones moved
    backwards = everything([tmp_path / "other.off", tmp_path / "c.off"], n_points=50, batch_points=1)
    np.testing.assert_array_equal(backwards.sets[1], copies[0])
    assert not np.array_equal(everything(tmp_path / "c.off", n_points=50, random_state=1).sets[0], copies[0])
    assert not np.array_equal(everything(tmp_path / "c.off", n_points=60).sets[0][:50], copies[0])


def test_sampling_is_the_same_from_another_format(tmp_path):
    """What is not of the triangles does not count: comments, the sign of zero, vertices that no face names."""
    pytest.importorskip("trimesh")
    (tmp_path / "x.off").write_text("OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n")
    (tmp_path / "y.obj").write_text("# a triangle\nv 9 9 9\nv 0 0 -0.0\nv 1 0 0\nv 0 1 0\nf 2 3 4\n")
    x, y = everything(tmp_path, n_points=20).sets
    np.testing.assert_array_equal(x, y)


def test_clouds_are_taken_as_they_are(tmp_path, box):
    trimesh = pytest.importorskip("trimesh")
    points = cloud(20)[0]
    trimesh.PointCloud(points).export(tmp_path / "c.ply")
    (tmp_path / "c.obj").write_text("".join(f"v {x} {y} {z}\n" for x, y, z in points.tolist()))
    (tmp_path / "c.off").write_text("OFF\n20 0 0\n" + "".join(f"{x} {y} {z}\n" for x, y, z in points.tolist()))
    batch = everything(tmp_path, n_points=5)
    assert [len(x) for x in batch.sets] == [20] * 3
    for x in batch.sets:
        np.testing.assert_allclose(x, points, rtol=1e-5)


def test_a_scene_is_joined(tmp_path, box):
    trimesh = pytest.importorskip("trimesh")
    scene = trimesh.Scene()
    scene.add_geometry(box, transform=trimesh.transformations.translation_matrix([10, 0, 0]))
    scene.add_geometry(box, transform=trimesh.transformations.translation_matrix([-10, 0, 0]))
    scene.export(tmp_path / "two.glb")
    (x,) = everything(tmp_path, n_points=2000).sets
    assert np.abs(np.abs(x[:, 0]) - 10).max() < 0.51
    assert abs((x[:, 0] > 0).mean() - 0.5) < 0.05


def test_a_mesh_without_area(tmp_path):
    pytest.importorskip("trimesh")
    (tmp_path / "flat.off").write_text("OFF\n3 1 0\n0 0 0\n1 0 0\n2 0 0\n3 0 1 2\n")
    with raises("flat.off: the faces of the mesh have no area"):
        everything(tmp_path)


TWO = "0 0 0\n1 0 0\n1 1 0\n0 1 0\n3 0 1 2\n3 0 2 3\n"


def test_an_off_file_is_compared_with_its_header(tmp_path):
    pytest.importorskip("trimesh")
    path = tmp_path / "x.off"
    path.write_text(f"OFF\n4 2 0\n{TWO}")
    (expected,) = everything(path, n_points=20).sets
    for text in (
        f"# first\nOFF # a square\n\n4 2 0\n# vertices\n{TWO}# the end",
        f"OFF4 2 0\n{TWO}",
        f"OFF 4 2\n{TWO}".replace("\n", "\r\n"),
        f"\ufeffOFF\r4 2 5\n{TWO}\n\n",
        "COFF\n4 2 0\n" + TWO.replace(" 0\n", " 0 255 0 0 255\n"),
        "NOFF\n4 2 0\n" + TWO.replace(" 0\n", " 0 0 0 1\n"),
        f"OFF\n4 2 0\n{TWO}".replace("3 0 1 2", "3 0 1 2 0.5 0.5 0.5").replace("3 0 2 3", "3 0 2 3 7"),
        f"OFF\n4 4 0\n{TWO}2 0 1\n1 3\n",  # a line and a point, which have no area
    ):
        path.write_text(text, encoding="utf-8", newline="")
        np.testing.assert_array_equal(everything(path, n_points=20).sets[0], expected)
    for text, message in [
        (f"OFF\n4 2 0\n{TWO[:-8]}", "claims 4 vertices and 2 faces, and has 5 lines"),
        (f"OFF\n4 2 0\n{TWO[:24]}", "claims 4 vertices and 2 faces, and has 4 lines"),
        (f"OFF\n4 1 0\n{TWO}", "claims 4 vertices and 1 faces, and has 6 lines"),
        (f"OFF\n4 2 0\n{TWO[:-3]}", "a face claims 3 vertices and has 2"),
        (f"OFF\n4 2 0\n{TWO}".replace("1 1 0", "1 1"), "a vertex has fewer than 3 coordinates"),
        (f"OFF\n-1 7 0\n{TWO}", "claims -1 vertices"),
        ("OFF\n4\n", "does not say how many"),
        ("OFF", "does not say how many"),
        ("4 2 0\n" + TWO, "does not begin with OFF"),
        (f"OFF\n4 2 0\n{TWO}".replace("3 0 2 3", "3 0 2 2.5"), "2.5"),
    ]:
        path.write_text(text)
        with raises("x.off: not a readable OFF mesh", message):
            everything(path)


def test_polygons_become_fans(tmp_path):
    pytest.importorskip("trimesh")
    corners = "0 0 0\n1 0 0\n2 0 0\n2 1 0\n0 1 0\n2 3 0\n4 1 0\n4 0 0\n"
    (tmp_path / "x.off").write_text(f"OFF\n8 3 0\n{corners}5 0 1 2 3 4\n3 4 3 5\n4 2 7 6 3\n")  # areas 2, 2, 2
    (x,) = everything(tmp_path, n_points=6000).sets
    shares = [(x[:, 1] > 1).mean(), (x[:, 0] > 2).mean()]
    np.testing.assert_allclose(shares, 1 / 3, atol=0.03)
    assert ((x[:, 1] <= 1) | (x[:, 0] <= 2)).all()


@pytest.mark.parametrize(("number", "suffix"), [("nan", "off"), ("1e39", "off"), ("inf", "obj")])
def test_a_mesh_with_a_number_that_is_none(tmp_path, number, suffix):
    pytest.importorskip("trimesh")
    (tmp_path / "x.off").write_text(f"OFF\n3 1 0\n0 0 0\n1 0 {number}\n0 1 0\n3 0 1 2\n")
    (tmp_path / "x.obj").write_text(f"v 0 0 0\nv 1 0 {number}\nv 0 1 0\nf 1 2 3\n")
    with raises(f"x.{suffix}: vertex 1 is (1.0, 0.0, ", "not finite or too large"):
        everything(tmp_path / f"x.{suffix}")


def test_text_in_another_encoding(tmp_path, box):
    for name, comment in (("a.obj", "# Stuhl, grün\n"), ("b.off", "OFF\n# Stuhl, grün\n")):
        text = box.export(file_type=name[2:])
        (tmp_path / name).write_bytes((comment + text.removeprefix("OFF\n")).encode("latin-1"))
    assert everything(tmp_path, n_points=9).sets.sizes.tolist() == [9, 9]


def test_an_obj_follows_no_names(tmp_path, box):
    """The material lies where a reader that follows names would find it, and is a trap."""
    home = tmp_path / "home" / "deep"
    home.mkdir(parents=True)
    text = box.export(file_type="obj")
    (home / "m.obj").write_text(f"mtllib ../../trap.mtl\nmtllib ../../../../../../../../etc/passwd\n{text}")
    (tmp_path / "trap.mtl").mkdir()
    assert [len(x) for x in everything(home, n_points=7).sets] == [7]


# ---- LAS


@pytest.fixture
def las():
    laspy = pytest.importorskip("laspy")
    header = laspy.LasHeader(point_format=6, version="1.4")
    header.offsets, header.scales = [5e5, 5.3e6, 0], [0.001] * 3
    data = laspy.LasData(header)
    data.x, data.y, data.z = (FAR + np.random.default_rng(0).uniform(0, 50, (500, 3))).round(3).T
    data.intensity = np.arange(500)
    return data


@pytest.mark.parametrize("suffix", ["las", "laz"])
def test_las(tmp_path, las, suffix):
    if suffix == "laz":
        pytest.importorskip("lazrs")
    las.write(tmp_path / f"site.{suffix}")
    batch = everything(tmp_path, origin="auto")
    np.testing.assert_allclose(batch.sets[0] + batch.sets.origin, np.asarray(las.xyz), atol=1e-4)
    assert batch[1:] == ([f"site.{suffix}"], [{"file": f"site.{suffix}"}])
    four = everything(tmp_path, origin="auto", columns=["x", "y", "z", "intensity"])
    np.testing.assert_allclose(four.sets[0][:, 3] + four.sets.origin[3], np.arange(500))
    with pytest.warns(PrecisionWarning):
        everything(tmp_path)
    with raises("no dimension 'colour'", "intensity"):
        everything(tmp_path, columns=["colour"])


# ---- libraries that are not there


@pytest.mark.parametrize(
    ("name", "library", "words"),
    [
        ("chair.stl", "trimesh", "chair.stl: reading meshes needs trimesh: pip install 'slosh[files]'"),
        ("site.laz", "laspy", "site.laz: reading LAS and LAZ needs laspy: pip install 'slosh[files]'"),
        ("cells.h5ad", "anndata", "cells.h5ad: reading .h5ad needs anndata: pip install 'slosh[cells]'"),
        ("table.csv", "pyarrow", "table.csv: reading tables needs pyarrow: pip install 'slosh[tables]'"),
    ],
)
def test_a_missing_library_is_named_at_the_call(tmp_path, monkeypatch, name, library, words):
    monkeypatch.setitem(sys.modules, library, None)
    np.save(tmp_path / "a.npy", cloud(3)[0])
    (tmp_path / name).write_text("x")
    with raises(words, error=ImportError):
        read(tmp_path)


def test_formats_are_listed():
    assert {".npy", ".npz", ".parquet", ".arrow", ".csv", ".off", ".glb", ".pcd", ".laz", ".h5ad"} <= set(FORMATS)
    assert all(form.what for form in FORMATS.values())


def test_progress_is_quiet_without_a_terminal(tmp_path, capsys):
    np.save(tmp_path / "a.npy", cloud(3)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(read(tmp_path))
    assert capsys.readouterr() == ("", "")
