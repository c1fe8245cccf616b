"""The named data sets: prepared files and originals give what they should, bad files are refused with a reason, and the
preparation of the paper does what it says. All files are real, small ones written here; the large ones where they are.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import slosh
from builders import DATA
from slosh import Sets

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "paper"))

import datasets
from datasets import Dataset, GroundTruth, as_in_paper

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not there")


# -- small files -------------------------------------------------------------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    """An IDX file of bytes."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def some_images(n: int, seed: int = 0) -> np.ndarray:
    random = np.random.RandomState(seed)
    images = random.randint(0, 256, (n, 28, 28)) * (random.random_sample((n, 28, 28)) < 0.2)
    images[:, 3, 4] = 1  # none is blank
    return images.astype(np.uint8)


def write_mnist(folder: Path, n: int = 12, m: int = 5, dotted: bool = False, packed: bool = False) -> dict:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        "train-images-idx3-ubyte": some_images(n),
        "train-labels-idx1-ubyte": np.arange(n) % 10,
        "t10k-images-idx3-ubyte": some_images(m, 1),
        "t10k-labels-idx1-ubyte": (np.arange(m) + 3) % 10,
    }
    for name, array in arrays.items():
        path = folder / (name.replace("-idx", ".idx") if dotted else name)
        if packed:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            path.write_bytes(idx(array))
    return arrays


def off(vertices, faces, header: str = "OFF\n") -> str:
    lines = [" ".join(map(str, v)) for v in vertices] + [" ".join(map(str, (len(f), *f))) for f in faces]
    return f"{header}{len(vertices)} {len(faces)} 0\n" + "\n".join(lines) + "\n"


CUBE = [(x, y, z) for x in (0, 1) for y in (0, 1) for z in (0, 1)]
QUADS = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
CUBE_FACES = [t for a, b, c, d in QUADS for t in ((a, b, c), (a, c, d))]


def box(x: float = 1.0, y: float = 1.0, z: float = 1.0, header: str = "OFF\n") -> str:
    return off([(x * a, y * b, z * c) for a, b, c in CUBE], CUBE_FACES, header)


def write_meshes(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / f"{name}.off"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


SHAPES = {
    "chair/train/chair_0001": box(1, 2, 3),
    "chair/train/chair_0002": box(2, 2, 1, header="OFF"),  # "OFF8 12 0", as many files of ModelNet40 begin
    "chair/test/chair_0003": box(1, 1, 1),
    "bed/train/bed_0001": box(3, 1, 1, header="OFF # a comment\n"),
    "bed/test/bed_0002": box(5, 1, 1),
}

PHOTOS = [f"{place}_{i:06d}" for place in ("abbey", "oxford", "tower") for i in range(6)]
LISTED = {
    "abbey_1": ("abbey_000003", ["abbey_000000", "abbey_000003", "tower_000005"], ["abbey_000001"], ["oxford_000000"]),
    "abbey_2": ("abbey_000001", ["abbey_000003"], ["abbey_000001", "oxford_000001"], []),
    "tower_1": ("tower_000000", ["tower_000000"], ["tower_000001", "abbey_000000", "tower_000005"], ["abbey_000002"]),
}


def write_texts(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (image, *lists) in LISTED.items():
        (folder / f"{name}_query.txt").write_text(f"oxc1_{image} 136.5 34.1 648.5 955.7\n")
        for which, photos in zip(("good", "ok", "junk"), lists, strict=True):
            (folder / f"{name}_{which}.txt").write_text("".join(f"{photo}\n" for photo in photos))
    return folder


def write_json(folder: Path) -> Path:
    fields = ("name", "image", "landmark", "good", "ok", "junk")
    given = [dict(zip(fields, (name, one[0], name[:-2], *one[1:]), strict=True)) for name, one in LISTED.items()]
    (folder / "oxford5k_queries.json").write_text(json.dumps(given))
    return folder


def write_features(folder: Path, dim: int = 4) -> Path:
    (folder / "features").mkdir(parents=True, exist_ok=True)
    for i, photo in enumerate(PHOTOS):
        np.save(folder / "features" / f"{photo}.npy", np.random.RandomState(i).standard_normal((3 + i, dim)))
    return folder


def small(name: str, **changes) -> dict[str, np.ndarray]:
    """The arrays of a small prepared file; None leaves one out."""
    random = np.random.RandomState(0)
    arrays = {
        "points": random.randint(0, 28, (30, {"mnist": 2, "modelnet40": 3}.get(name, 8))).astype(np.float32),
        "offsets": np.array([0, 5, 10, 18, 30]),
        "labels": np.array([1, 0, 1, 0]),
        "split": np.array([0, 0, 1, 1], np.int8),
        "names": np.array(["a", "b", "c", "d"]),
        "classes": np.array(["no", "yes"]),
        "weights": np.arange(1, 31, dtype=np.uint8),
    }
    if name != "mnist":
        del arrays["weights"]
    return {key: value for key, value in (arrays | changes).items() if value is not None}


FILES = {"mnist": "pointcloud_mnist_2d.npz", "modelnet40": "modelnet40_3d.npz", "oxford5k": "oxford5k_vgg16_8d.npz"}


def write_small(folder: Path, name: str, **changes) -> Path:
    np.savez(folder / FILES[name], **small(name, **changes))
    return folder


def same(a: Dataset, b: Dataset) -> None:
    for one, other in ((getattr(a.sets, x), getattr(b.sets, x)) for x in ("points", "offsets", "weights")):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(a.labels, b.labels)
    np.testing.assert_array_equal(a.is_query, b.is_query)
    assert (a.name, a.classes, a.names) == (b.name, b.classes, b.names)


# -- finding the files -------------------------------------------------------------------------------------------------


def test_the_folder_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("SLOSH_DATA", raising=False)
    with pytest.raises(ValueError, match=r"folder=.*SLOSH_DATA.*help\(datasets.mnist\)"):
        datasets.load("mnist")
    write_mnist(tmp_path)
    monkeypatch.setenv("SLOSH_DATA", str(tmp_path))
    same(datasets.load("mnist"), datasets.mnist(str(tmp_path)))
    monkeypatch.setenv("SLOSH_DATA", str(tmp_path / "gone"))
    with pytest.raises(FileNotFoundError, match=r"gone.*SLOSH_DATA.*no such folder"):
        datasets.load("mnist")


def test_an_unknown_name_lists_the_names(tmp_path):
    with pytest.raises(ValueError, match=r"'cifar'.*mnist, modelnet40, oxford5k"):
        datasets.load("cifar", tmp_path)
    with pytest.raises(ValueError, match=r"\['mnist'\].*mnist, modelnet40, oxford5k"):
        datasets.load(["mnist"], tmp_path)
    assert datasets.NAMES == ("mnist", "modelnet40", "oxford5k")


LOOKED_FOR = {
    "mnist": "pointcloud_mnist_2d.npz train-images-idx3-ubyte train-labels-idx1-ubyte t10k-images-idx3-ubyte "
    "t10k-labels-idx1-ubyte .gz MNIST/raw",
    "modelnet40": "modelnet40_3d.npz <class>/train/*.off <class>/test/*.off ModelNet40",
    "oxford5k": "oxford5k_vgg16_8d.npz features/<photo>.npy oxford5k_queries.json _query.txt _good.txt _ok.txt "
    "_junk.txt gt_files_170407",
}


@pytest.mark.parametrize(("name", "looked_for"), LOOKED_FOR.items())
def test_an_empty_folder_says_what_was_looked_for(tmp_path, name, looked_for):
    with pytest.raises(FileNotFoundError) as error:
        datasets.load(name, tmp_path)
    for word in [str(tmp_path), *looked_for.split()]:
        assert word in str(error.value)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(FileNotFoundError, match="this is a file: pass the folder"):
        datasets.mnist(tmp_path / "x")


# -- the data set ------------------------------------------------------------------------------------------------------


def toy() -> Dataset:
    sets = Sets.from_list([np.full((1 + i, 2), i, float) for i in range(6)])
    truth = GroundTruth(("q1", "q4"), [np.array([0, 3]), np.array([2])], [np.array([1]), np.array([], np.int64)])
    is_query = np.array([False, True, False, False, True, False])  # the database is rows 0, 2, 3, 5
    return Dataset("oxford5k", sets, [0, 0, -1, 1, 1, 0], is_query, ("a", "b"), tuple("uvwxyz"), "here", truth)


def test_database_and_queries_are_parts():
    data = toy()
    assert repr(data) == "Dataset(oxford5k: 6 sets, d=2, sizes 1..6, 2 classes, 2 queries)"
    assert len(data) == 6
    assert data.database.names == ("u", "w", "x", "z")
    assert data.database.labels.tolist() == [0, -1, 1, 0]
    assert data.queries.names == ("v", "y")
    assert data.queries.sets.sizes.tolist() == [2, 5]
    assert not data.database.is_query.any()
    assert data.queries.is_query.all()
    assert data.database is data.database
    assert data.queries.truth is None


def test_a_run_of_sets_shares_memory():
    part = toy().take([2, 3])
    assert np.shares_memory(part.sets.points, part.take(slice(0, 1)).sets.points)
    whole = Dataset("toy", toy().sets, [0] * 6, [False] * 4 + [True] * 2, ("a",), tuple("uvwxyz"), "")
    assert np.shares_memory(whole.sets.points, whole.database.sets.points)
    assert np.shares_memory(whole.sets.points, whole.queries.sets.points)


def test_take_moves_the_truth_along():
    part = toy().take([5, 4, 1, 0])  # the database is z, u: rows 3 and 0 before
    assert part.names == ("z", "y", "v", "u")
    assert part.truth.names == ("q4", "q1")
    assert [rows.tolist() for rows in part.truth.relevant] == [[], [0, 1]]
    assert [rows.tolist() for rows in part.truth.junk] == [[], []]
    assert repr(part.truth) == "GroundTruth(2 queries, 2 relevant, 0 junk)"


def test_take_by_mask_and_nothing():
    data = toy()
    assert data.take(data.labels == 0).names == ("u", "v", "z")
    assert data.take(slice(None, None, 2)).names == ("u", "w", "y")
    assert data.take([-1]).names == ("z",)
    assert len(data.take([])) == 0
    assert repr(data.take([])) == "Dataset(oxford5k: 0 sets, d=2, 2 classes, 0 queries)"
    with pytest.raises(ValueError, match="row 2 occurs twice"):
        data.take([2, 1, 2])
    with pytest.raises(IndexError):
        data.take([6])
    with pytest.raises(IndexError):
        data.take([[1]])


def test_a_dataset_whose_parts_do_not_fit_is_refused():
    sets = Sets.from_padded(np.zeros((2, 3, 2)))
    good = {"name": "toy", "sets": sets, "labels": [0, 1], "is_query": [False, True], "classes": ("a", "b")}
    good |= {"names": ("x", "y"), "source": ""}
    Dataset(**good)
    for change, message in [
        ({"labels": [0]}, r"labels has shape \(1,\)"),
        ({"is_query": [True] * 3}, "is_query has shape"),
        ({"names": ("x",)}, "names has shape"),
        ({"names": ("x", "x")}, "'x' occurs twice"),
        ({"labels": [0, 2]}, "set 1 has the label 2"),
        ({"labels": [-2, 0]}, "set 0 has the label -2"),
        ({"labels": [0, 0.5]}, "labels holds float64, not integers"),
        ({"is_query": [0, 1]}, "is_query holds int"),
        ({"sets": np.zeros((2, 3, 2))}, "sets is a ndarray, not a Sets"),
        ({"classes": ()}, "set 0 has the label 0, but there are 0 classes"),
        ({"truth": GroundTruth((), [], [])}, "the truth has 0 queries, the data set 1"),
        ({"truth": GroundTruth(("q",), [[0, 1]], [[]])}, "'q' names a row outside the database of 1"),
        ({"truth": GroundTruth(("q",), [[]], [[-1]])}, "'q' names a row"),
    ]:
        with pytest.raises(ValueError, match=message):
            Dataset(**(good | change))
    assert Dataset(**(good | {"names": ["x", "y"]})).names == ("x", "y")
    with pytest.raises(ValueError, match="junk has 0 lists for 1 queries"):
        GroundTruth(("q",), [[1]], [])
    with pytest.raises(ValueError, match=r"relevant\[0\] holds float64"):
        GroundTruth(("q",), [[0.5]], [[]])


def test_labels_and_queries_are_read_only():
    labels, data = np.array([0, 0, -1, 1, 1, 0]), toy()
    for array in (data.labels, data.is_query, data.database.labels):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    other = Dataset("toy", data.sets, labels, data.is_query, data.classes, data.names, "")
    labels[0] = 1  # still the caller's own
    assert other.labels[0] == 0


def test_parts_are_not_pickled():
    data = toy()
    alone = len(pickle.dumps(data))
    assert len(data.database) + len(data.queries) == 6
    assert len(pickle.dumps(data)) == alone
    again = pickle.loads(pickle.dumps(data))
    same(again, data)
    same(again.queries, data.queries)


def test_names_are_ids_of_an_index(tmp_path):
    write_mnist(tmp_path)
    data = datasets.mnist(tmp_path)
    index = slosh.SetIndex.create(None, dim=2)
    index.add(data.database.sets, ids=data.database.names)
    assert index.search(data.database.sets[3], k=1).ids == ["train-00003"]


# -- prepared files ----------------------------------------------------------------------------------------------------


@needs_data
def test_the_real_mnist():
    data = datasets.load("mnist", DATA)
    assert (len(data.database), len(data.queries)) == (60_000, 10_000)
    assert (data.sets.dim, data.sets.sizes.min(), data.sets.sizes.max()) == (2, 34, 351)
    assert data.classes == tuple("0123456789")
    assert (data.sets.points.min(), data.sets.points.max()) == (0, 27)
    assert (data.sets.weights.min(), data.sets.weights.max()) == (1, 255)
    assert (data.names[0], data.names[59_999], data.names[60_000]) == ("train-00000", "train-59999", "test-00000")
    assert data.labels[:3].tolist() == [5, 0, 4]
    assert data.truth is None
    paper = as_in_paper(data)
    assert paper.sets.weights is None
    np.testing.assert_array_equal(paper.sets.points, data.sets.points / np.float32(28))


@needs_data
def test_the_real_modelnet40():
    data = datasets.load("modelnet40", DATA)
    assert (len(data.database), len(data.queries), len(data.classes)) == (9_843, 2_468, 40)
    assert set(data.sets.sizes.tolist()) == {768}
    assert data.names[0] == "airplane_0001"
    assert all(
        name.rpartition("_")[0] == data.classes[label] for name, label in zip(data.names, data.labels, strict=True)
    )
    few = datasets.modelnet40(DATA, n_points=10)
    np.testing.assert_array_equal(few.sets[77], data.sets[77][:10])
    with pytest.raises(ValueError, match="768 points, fewer than n_points=769"):
        datasets.modelnet40(DATA, n_points=769)
    paper = as_in_paper(data)
    low, high = (f.reduceat(paper.sets.points, paper.sets.offsets[:-1], axis=0) for f in (np.minimum, np.maximum))
    assert not low.any()
    assert (high.max(axis=1) == 1).all()
    assert abs(paper.sets.sizes.mean() - 512) < 3
    assert abs(paper.sets.sizes.std() - 64) < 2


@needs_data
def test_the_real_oxford():
    data = datasets.load("oxford5k", DATA)
    assert (len(data), len(data.queries), len(data.classes), data.sets.dim) == (5_063, 55, 11, 8)
    assert (data.sets.sizes.min(), np.median(data.sets.sizes), data.sets.sizes.max()) == (72, 432, 576)
    assert (data.labels == -1).sum() == 4_496
    with np.load(DATA / "oxford5k_vgg16_8d.npz") as file:  # its labels were made of the ground truth once
        np.testing.assert_array_equal(data.labels, file["labels"])
        np.testing.assert_array_equal(data.is_query, file["split"] == 1)
        assert data.classes == tuple(file["classes"].tolist())
    given = {one["image"]: one for one in json.loads((DATA / "oxford5k_queries.json").read_text())}
    names = np.array(data.database.names)
    there = set(data.database.names)
    for i, photo in enumerate(data.queries.names):
        one = given[photo]
        assert data.truth.names[i] == one["name"]
        assert set(names[data.truth.relevant[i]]) == {*one["good"], *one["ok"]} & there
        assert set(names[data.truth.junk[i]]) == {*one["junk"]} & there
    perfect = np.full((55, 400), -1)
    for i, rows in enumerate(data.truth.relevant):
        perfect[i, : len(rows)] = rows
    assert slosh.evaluate.mean_average_precision(perfect, data.truth.relevant, data.truth.junk) == 1
    assert np.abs(as_in_paper(data).sets.points).max() == 1


@needs_data
def test_oxford_from_the_texts_is_the_same(tmp_path):
    for one in json.loads((DATA / "oxford5k_queries.json").read_text()):
        (tmp_path / f"{one['name']}_query.txt").write_text(f"oxc1_{one['image']} 1 2 3 4\n")
        for which in ("good", "ok", "junk"):
            (tmp_path / f"{one['name']}_{which}.txt").write_text("\n".join(one[which]))
    (tmp_path / "oxford5k_vgg16_8d.npz").symlink_to(DATA / "oxford5k_vgg16_8d.npz")
    data, prepared = datasets.oxford5k(tmp_path), datasets.oxford5k(DATA)
    same(data, prepared)
    assert data.truth.names == prepared.truth.names
    for a, b in zip(data.truth.relevant + data.truth.junk, prepared.truth.relevant + prepared.truth.junk, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["mnist", "modelnet40"])
def test_a_small_prepared_file(tmp_path, name):
    write_small(tmp_path, name)
    data = datasets.mnist(tmp_path) if name == "mnist" else datasets.modelnet40(tmp_path, n_points=4)
    assert data.labels.dtype == np.int64
    assert data.labels.tolist() == [1, 0, 1, 0]
    assert data.is_query.tolist() == [False, False, True, True]
    assert FILES[name] in data.source
    assert data.names[0] == ("train-00000" if name == "mnist" else "a")


def test_all_points_of_a_prepared_file_are_taken(tmp_path):
    write_small(tmp_path, "modelnet40")
    assert datasets.load("modelnet40", tmp_path).sets.sizes.tolist() == [5, 5, 8, 12]
    assert datasets.modelnet40(tmp_path, n_points=5).sets.sizes.tolist() == [5] * 4
    with pytest.raises(ValueError, match="a has 5 points, fewer than n_points=6"):
        datasets.modelnet40(tmp_path, n_points=6)


@pytest.mark.parametrize("n_points", [None, 5])
def test_weights_of_objects_are_dropped(tmp_path, n_points):
    write_small(tmp_path, "modelnet40", weights=np.ones(30))
    assert datasets.modelnet40(tmp_path, n_points=n_points).sets.weights is None


BAD = [
    ("mnist", {"weights": None}, "array 'weights' is missing"),
    ("mnist", {"labels": None}, "array 'labels' is missing"),
    ("modelnet40", {"names": None}, "array 'names' is missing"),
    ("modelnet40", {"classes": None}, "array 'classes' is missing"),
    ("modelnet40", {"offsets": None}, "array 'offsets' is missing"),
    ("modelnet40", {"offsets": np.array([1, 5, 10, 18, 30])}, "offsets must start at 0"),
    ("modelnet40", {"offsets": np.array([0, 10, 5, 18, 30])}, "offsets run backwards at set 1"),
    ("modelnet40", {"offsets": np.array([0, 5, 10, 18, 31])}, "offsets must end at the number of points, 30"),
    ("modelnet40", {"offsets": np.array([0, 5, 5, 18, 30])}, "set 1 is empty"),
    ("modelnet40", {"offsets": np.array([0.0, 30.0])}, "offsets must be"),
    ("modelnet40", {"labels": np.array([1, 0, 1])}, r"'labels' has shape \(3,\)"),
    ("modelnet40", {"labels": np.array([1, 0, 1, 2])}, "the label of set 3 is 2"),
    ("modelnet40", {"labels": np.array([1, 0, 1, 0.5])}, "'labels' holds float64"),
    ("mnist", {"labels": np.array([1, 0, 1, 10])}, "the label of set 3 is 10"),
    ("modelnet40", {"split": np.zeros(5, int)}, r"'split' has shape \(5,\)"),
    ("modelnet40", {"split": np.array([0, 1, 2, 0])}, "'split' is 2 for set 2"),
    ("modelnet40", {"names": np.array(["a", "b", "a", "c"])}, "'names' has 'a' twice"),
    ("modelnet40", {"names": np.arange(4)}, "'names' holds int64"),
    ("modelnet40", {"classes": np.array([["no", "yes"]])}, "'classes' must be"),
    ("modelnet40", {"points": np.zeros((30, 2))}, "'points' has 2 features instead of 3"),
    ("modelnet40", {"points": np.zeros(30)}, "points must be of shape"),
    ("modelnet40", {"points": np.full((30, 3), np.nan)}, "set 0, element 0"),
    ("modelnet40", {"points": np.array([[None] * 3] * 30)}, "'points'.*allow_pickle=False"),
    ("mnist", {"weights": np.ones(29)}, "weights have the shape"),
]


@pytest.mark.parametrize(("name", "changes", "message"), BAD)
def test_a_bad_prepared_file_is_refused(tmp_path, name, changes, message):
    write_small(tmp_path, name, **changes)
    with pytest.raises(ValueError, match=message) as error:
        datasets.load(name, tmp_path)
    assert FILES[name] in str(error.value)


@pytest.mark.parametrize("name", list(FILES))
def test_a_damaged_archive_is_refused(tmp_path, name):
    write_json(write_small(tmp_path, name))
    path = tmp_path / FILES[name]
    whole = path.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=f"{FILES[name]}: not a readable archive"):
            datasets.load(name, tmp_path)
    at = whole.index(b"\x93NUMPY") + 200
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    with pytest.raises(ValueError, match=rf"{FILES[name]}.*Bad CRC-32"):
        datasets.load(name, tmp_path)


def test_a_member_that_claims_too_much_is_refused(tmp_path):
    write_small(tmp_path, "mnist")
    path = tmp_path / FILES["mnist"]
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    members["points.npy"] = members["points.npy"].replace(b"(30, 2), }      ", b"(9999999, 2), } ")
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(ValueError, match=r"'points': .*expected"):
        datasets.mnist(tmp_path)


# -- MNIST from IDX files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dotted", [False, True])
@pytest.mark.parametrize("below", ["", "MNIST/raw"])
def test_mnist_from_idx_files(tmp_path, dotted, packed, below):
    arrays = write_mnist(tmp_path / below, dotted=dotted, packed=packed)
    data = datasets.mnist(tmp_path)
    assert (len(data.database), len(data.queries)) == (12, 5)
    assert data.labels.tolist() == [*(np.arange(12) % 10), *((np.arange(5) + 3) % 10)]
    for i, image in enumerate(arrays["t10k-images-idx3-ubyte"]):
        rows, columns = np.nonzero(image)
        np.testing.assert_array_equal(data.queries.sets[i], np.stack([columns, rows], axis=1))
        np.testing.assert_array_equal(data.queries.sets.weights_of(i), image[rows, columns])
    assert data.names[11:13] == ("train-00011", "test-00000")
    assert "train-images" in data.source


def test_mnist_with_files_spelled_in_several_ways(tmp_path):
    write_mnist(tmp_path)
    expected = datasets.mnist(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    (tmp_path / "train-labels.idx1-ubyte.gz").write_bytes(gzip.compress(labels.read_bytes()))
    labels.unlink()
    same(datasets.mnist(tmp_path), expected)


def test_the_four_files_come_from_one_folder(tmp_path):
    write_mnist(tmp_path / "MNIST/raw")
    expected = datasets.mnist(tmp_path)
    write_mnist(tmp_path, n=3)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    same(datasets.mnist(tmp_path), expected)
    (tmp_path / "MNIST/raw/t10k-images-idx3-ubyte").unlink()
    raw = r".*raw lacks t10k-images-idx3-ubyte$"
    with pytest.raises(FileNotFoundError, match=rf"lacks t10k-labels-idx1-ubyte; {raw}"):
        datasets.mnist(tmp_path)


def test_idx_files_may_be_links(tmp_path):
    write_mnist(tmp_path / "all")
    for i, path in enumerate(sorted((tmp_path / "all").iterdir())):
        (tmp_path / str(i)).mkdir()
        path.rename(tmp_path / str(i) / path.name)
        path.symlink_to(tmp_path / str(i) / path.name)
    assert len(datasets.mnist(tmp_path / "all")) == 17


@needs_data
def test_idx_files_written_from_the_prepared_file_give_its_sets(tmp_path):
    whole = datasets.mnist(DATA)
    part = whole.take(np.r_[100:400, 60_050:60_100])
    for name, one in (("train", part.database), ("t10k", part.queries)):
        images = np.zeros((len(one), 28, 28), np.uint8)
        columns, rows = one.sets.points.astype(int).T
        images[np.repeat(np.arange(len(one)), one.sets.sizes), rows, columns] = one.sets.weights
        (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(idx(images))
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(idx(one.labels))
    data = datasets.mnist(tmp_path)
    for x in ("points", "offsets", "weights"):
        np.testing.assert_array_equal(getattr(data.sets, x), getattr(part.sets, x))
        assert getattr(data.sets, x).dtype == getattr(part.sets, x).dtype
    np.testing.assert_array_equal(data.labels, part.labels)
    np.testing.assert_array_equal(data.is_query, part.is_query)
    assert data.classes == part.classes


def test_bad_idx_files_are_refused(tmp_path):
    write_mnist(tmp_path)
    images, labels = tmp_path / "train-images-idx3-ubyte", tmp_path / "train-labels-idx1-ubyte"
    whole, right = images.read_bytes(), labels.read_bytes()
    blank = some_images(12)
    blank[7] = 0
    for path, content, message in [
        (images, whole[:-1], "train-images-idx3-ubyte: the header claims"),
        (images, whole[:6], "not an IDX file"),
        (images, b"PK\x03\x04" + whole, "not an IDX file"),
        (images, gzip.compress(whole)[:-20], "train-images-idx3-ubyte: not a readable IDX file"),
        (images, gzip.compress(whole + b"0"), "train-images-idx3-ubyte: the header claims"),
        (images, idx(blank), "train-images-idx3-ubyte: set 7 is empty"),
        (images, idx(np.zeros((0, 28, 28))), "train-images-idx3-ubyte: \\(0, 28, 28\\) images"),
        (images, idx(np.ones((12, 28, 27))), "train-images-idx3-ubyte: \\(12, 28, 27\\) images"),
        (images, right, "not an IDX file of bytes with 3"),
        (labels, gzip.compress(right + b"0"), "train-labels-idx1-ubyte: the header claims"),
        (labels, idx(np.zeros(11)), "11 labels.* 12 images"),
        (labels, idx(np.full(12, 10)), "the label of set 0 is 10"),
        (labels, whole, "not an IDX file of bytes with 1"),
        (labels, right[:-3], "train-labels-idx1-ubyte: the header claims"),
        (labels, struct.pack(">BBBBI", 0, 0, 13, 1, 12) + bytes(48), "not an IDX file of bytes"),
    ]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            datasets.mnist(tmp_path)
        images.write_bytes(whole)
        labels.write_bytes(right)
    labels.unlink()
    (tmp_path / "train-labels.idx1-ubyte").write_bytes(idx(np.zeros(11)))  # not beside the images by its name
    with pytest.raises(ValueError, match="11 labels for the 12 images"):
        datasets.mnist(tmp_path)
    (tmp_path / "train-labels.idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks train-labels-idx1-ubyte$"):
        datasets.mnist(tmp_path)


# -- ModelNet40 from meshes --------------------------------------------------------------------------------------------


@pytest.fixture
def meshes(tmp_path):
    return write_meshes(tmp_path, SHAPES)


def test_modelnet40_from_meshes(meshes):
    data = datasets.modelnet40(meshes, n_points=100)
    assert repr(data) == "Dataset(modelnet40: 5 sets, d=3, sizes 100..100, 2 classes, 2 queries)"
    assert data.names == ("bed_0001", "chair_0001", "chair_0002", "bed_0002", "chair_0003")
    assert data.classes == ("bed", "chair")
    assert data.labels.tolist() == [0, 1, 1, 0, 1]
    assert data.is_query.tolist() == [False] * 3 + [True] * 2
    for points in data.sets:
        assert np.abs(points.mean(axis=0)).max() < 1e-6
        assert np.isclose(np.linalg.norm(points, axis=1).max(), 1)


def test_meshes_may_lie_in_a_folder_of_that_name(meshes, tmp_path_factory):
    above = tmp_path_factory.mktemp("above")
    (above / "ModelNet40").symlink_to(meshes)
    same(datasets.modelnet40(above, n_points=20), datasets.modelnet40(meshes, n_points=20))


def test_the_default_is_768_points(meshes):
    assert set(datasets.load("modelnet40", meshes).sets.sizes.tolist()) == {768}


def test_sampled_points_lie_on_the_surface(meshes):
    data = datasets.modelnet40(meshes, n_points=2000)
    points = data.sets[data.names.index("chair_0002")]  # the header is glued to the counts; a box of 2 x 2 x 1
    low, high = points.min(axis=0), points.max(axis=0)
    scale = (high - low).max() / 2
    np.testing.assert_allclose((high - low) / scale, [2, 2, 1], atol=0.02)
    on_face = np.minimum(points - low, high - points).min(axis=1)
    assert on_face.max() < 0.01
    top = (points[:, 2] - low[2] < 1e-4) | (high[2] - points[:, 2] < 1e-4)  # 8 of 16
    assert abs(top.mean() - 0.5) < 0.05


def test_sampled_points_are_the_same_on_every_machine(meshes):
    data = datasets.modelnet40(meshes, n_points=100)
    some = data.sets[data.names.index("chair_0001")][[0, 50, 99]]
    expected = [[0.266318, -0.193401, -0.83755], [0.266318, 0.083033, 0.383143], [-0.265183, -0.164461, -0.491762]]
    np.testing.assert_allclose(some, expected, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-300, 1e-100, 1e30])
def test_the_scale_of_a_mesh_does_not_matter(tmp_path, scale):
    write_meshes(tmp_path / "a", {"box/train/box_1": box(1, 2, 3)})
    write_meshes(tmp_path / "b", {"box/train/box_1": box(scale, 2 * scale, 3 * scale)})
    a, b = (datasets.modelnet40(tmp_path / x, n_points=50).sets[0] for x in "ab")
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_names_in_upper_case_and_other_encodings(tmp_path):
    folder = write_meshes(tmp_path, {"box/train/box_1": box()}) / "box" / "train"
    (folder / "BOX_2.OFF").write_text(box())
    assert datasets.modelnet40(tmp_path, n_points=5).names == ("BOX_2", "box_1")
    if sys.platform == "linux":
        Path(os.fsdecode(os.fsencode(folder) + b"/st\xfchl.off")).write_text(box())
        assert len(datasets.modelnet40(tmp_path, n_points=5)) == 3


def test_points_follow_the_area(tmp_path):
    write_meshes(tmp_path, {"flat/train/flat_1": box(10, 10, 0.1)})  # the large faces have 200 of 204
    points = datasets.modelnet40(tmp_path, n_points=5000).sets[0]
    side = (points[:, 2] - points[:, 2].min() > 1e-5) & (points[:, 2].max() - points[:, 2] > 1e-5)
    assert abs(side.mean() - 4 / 204) < 0.01
    upper = points[points[:, 2] > 0][:, :2]
    share = np.histogram2d(*upper.T, bins=2)[0] / len(upper)
    assert np.abs(share - 0.25).max() < 0.03


def test_points_of_a_mesh_depend_on_seed_and_name_alone(meshes):
    before = datasets.modelnet40(meshes, n_points=50)
    again = datasets.modelnet40(meshes, n_points=50)
    same(before, again)
    other = datasets.modelnet40(meshes, n_points=50, random_state=1)
    assert not np.array_equal(before.sets[0], other.sets[0])
    write_meshes(meshes, {"airplane/train/airplane_0001": box(1, 2, 3), "chair/train/chair_0000": box(1, 2, 3)})
    more = datasets.modelnet40(meshes, n_points=50)
    for i, name in enumerate(before.names):
        np.testing.assert_array_equal(before.sets[i], more.sets[more.names.index(name)])
    one, two = (more.sets[more.names.index(name)] for name in ("chair_0000", "chair_0001"))
    assert not np.array_equal(one, two)  # the same triangles under two names


def test_a_mesh_without_area_gives_vertices_and_a_warning(tmp_path):
    line = off([(0, 0, 0), (1, 0, 0), (2, 0, 0)], [(0, 1, 2)])
    write_meshes(tmp_path, {"line/train/line_1": line, "dots/train/dots_1": off([(0, 0, 0)], [])})
    with pytest.warns(UserWarning, match="no area") as warned:
        data = datasets.modelnet40(tmp_path, n_points=90)
    said = [one for one in warned if "no area" in str(one.message)]  # others may come from the garbage of other tests
    assert {Path(str(one.message).partition(":")[0]).name for one in said} == {"line_1.off", "dots_1.off"}
    assert all(one.filename == __file__ for one in said)
    assert len(np.unique(data.sets[1], axis=0)) == 3
    assert not data.sets[0].any()


def test_bad_meshes_are_refused(tmp_path):
    for text, message in [
        ("", "bad_1.off: not a readable OFF mesh"),
        ("OFF\n8 12 0\n0 0 0\n", "bad_1.off: not a readable OFF mesh"),
        ("OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 7\n", "bad_1.off: not a readable OFF mesh"),
        (
            "OFF\n3 1 0\n0 0 0\n1 0 nan\n0 1 0\n3 0 1 2\n",
            "bad_1.off: vertex 1 is .1.0, 0.0, nan.: coordinates must be finite",
        ),
        (box()[:-8], "bad_1.off: not a readable OFF mesh: claims 8 vertices and 12 faces, and has 19 lines"),
    ]:
        write_meshes(tmp_path, {"bad/train/bad_1": text})
        with pytest.raises(ValueError, match=message):
            datasets.modelnet40(tmp_path)
    write_meshes(tmp_path, {"bad/train/bad_1": box(), "worse/test/bad_1": box()})
    with pytest.raises(ValueError, match=r"bad/train/bad_1.off and .*worse/test/bad_1.off have the same name"):
        datasets.modelnet40(tmp_path)
    for wrong in ({"n_points": 0}, {"n_points": 1.5}, {"random_state": -1}, {"random_state": 1 << 32}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            datasets.modelnet40(tmp_path, **wrong)


def test_other_files_beside_meshes_are_left(meshes):
    (meshes / "bed" / "train" / "._bed_0001.off").write_text("of another system")
    (meshes / "README.txt").write_text("")
    (meshes / "bed" / "train" / "notes.txt").write_text("")
    (meshes / "empty" / "train").mkdir(parents=True)
    data = datasets.modelnet40(meshes, n_points=5)
    assert (len(data), data.classes) == (5, ("bed", "chair"))


def test_what_was_sampled_can_be_saved_as_a_prepared_file(meshes, tmp_path_factory):
    data, to = datasets.modelnet40(meshes), tmp_path_factory.mktemp("saved")
    arrays = {"labels": data.labels, "split": data.is_query, "names": data.names, "classes": data.classes}
    np.savez(to / "modelnet40_3d.npz", points=data.sets.points, offsets=data.sets.offsets, **arrays)
    same(datasets.modelnet40(to), data)


# -- Oxford from texts and features ------------------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "gt_files_170407"])
def test_oxford_from_texts_and_features(tmp_path, below):
    write_texts(write_features(tmp_path) / below)
    data = datasets.oxford5k(tmp_path)
    assert repr(data) == "Dataset(oxford5k: 18 sets, d=4, sizes 3..20, 2 classes, 3 queries)"
    assert data.names == tuple(PHOTOS)
    np.testing.assert_array_equal(data.sets[3], np.load(tmp_path / "features" / f"{PHOTOS[3]}.npy").astype(np.float32))
    assert data.classes == ("abbey", "tower")
    assert data.queries.names == ("abbey_000001", "abbey_000003", "tower_000000")
    assert data.truth.names == ("abbey_2", "abbey_1", "tower_1")  # in the order of their photos
    names = np.array(data.database.names)
    found = [names[rows].tolist() for rows in data.truth.relevant]
    assert found == [
        ["oxford_000001"],  # neither its own photo nor that of another query is in the database
        ["abbey_000000", "tower_000005"],
        ["abbey_000000", "tower_000001", "tower_000005"],
    ]
    assert [names[rows].tolist() for rows in data.truth.junk] == [[], ["oxford_000000"], ["abbey_000002"]]
    assert all(rows.dtype == np.int64 for rows in data.truth.relevant + data.truth.junk)
    label = dict(zip(data.names, data.labels.tolist(), strict=True))
    assert label["tower_000005"] == 0  # good for the abbey, ok for the tower
    assert label["abbey_000000"] == 0
    assert label["tower_000000"] == 1
    assert label["abbey_000002"] == label["oxford_000000"] == -1


def test_oxford_from_json_is_the_same(tmp_path):
    write_texts(write_features(tmp_path / "a"))
    write_json(write_features(tmp_path / "b"))
    a, b = datasets.oxford5k(tmp_path / "a"), datasets.oxford5k(tmp_path / "b")
    same(a, b)
    assert a.truth.names == b.truth.names
    assert [rows.tolist() for rows in a.truth.relevant] == [rows.tolist() for rows in b.truth.relevant]


def test_the_order_in_json_does_not_matter(tmp_path):
    write_json(write_features(tmp_path))
    expected, path = datasets.oxford5k(tmp_path), tmp_path / "oxford5k_queries.json"
    given = json.loads(path.read_text())
    given[0]["good"].append("tower_000001")
    given[2]["good"].append("tower_000001")  # good for both: the last landmark stands
    labels = []
    for order in (given, given[::-1]):
        path.write_text(json.dumps(order), encoding="utf-8-sig")
        labels.append(datasets.oxford5k(tmp_path).labels.tolist())
    assert labels[0] == labels[1] == expected.labels.tolist()


def test_names_of_landmarks_and_photos_may_be_any(tmp_path):
    write_texts(write_features(tmp_path))
    np.save(tmp_path / "features" / "christ church 1.npy", np.ones((3, 4)))
    for which, text in {"query": "oxc1_christ church 1 1 2 3 4\n", "good": PHOTOS[6], "ok": "", "junk": ""}.items():
        (tmp_path / f"christ-church_1_{which}.txt").write_text(text, encoding="utf-8-sig")
    (tmp_path / "._abbey_1_query.txt").write_bytes(b"\xff of another system")
    data = datasets.oxford5k(tmp_path)
    assert data.classes == ("abbey", "christ-church", "tower")
    assert "christ church 1" in data.queries.names
    assert data.truth.names[2] == "christ-church_1"


def test_an_empty_folder_of_features_is_refused(tmp_path):
    write_json(write_small(tmp_path, "oxford5k"))
    (tmp_path / "features").mkdir()
    with pytest.raises(FileNotFoundError, match=r"features: no .npy in this folder.*oxford5k_vgg16_8d.npz"):
        datasets.oxford5k(tmp_path)


def test_own_features_come_before_the_prepared_ones(tmp_path):
    write_json(write_features(write_small(tmp_path, "oxford5k")))
    assert datasets.oxford5k(tmp_path).sets.dim == 4
    assert "features" in datasets.oxford5k(tmp_path).source


def test_a_bad_ground_truth_is_refused(tmp_path):
    write_texts(write_features(tmp_path))
    lost = tmp_path / "features" / "tower_000000.npy"
    content = lost.read_bytes()
    lost.unlink()
    with pytest.raises(
        ValueError,
        match=r"no features of the photo 'tower_000000', which .* lists as 'image' of the query 'tower_1': compute",
    ):
        datasets.oxford5k(tmp_path)
    lost.write_bytes(content)
    for name, text, message in [
        ("abbey_1_good.txt", "abbey_000099\n", "'abbey_000099', which .* lists as 'good' of the query 'abbey_1'"),
        ("abbey_1_junk.txt", "abbey_000000\n", "'abbey_000000' is junk for 'abbey_1', and also good or ok"),
        ("abbey_1_query.txt", "", "abbey_1_query.txt: must hold the name of the photo and the four numbers"),
        ("abbey_1_query.txt", "oxc1_abbey_000003", "abbey_1_query.txt: must hold"),
        ("abbey_1_query.txt", "oxc1_abbey_000001 1 2 3 4", "'abbey_1' and 'abbey_2' have the same photo"),
    ]:
        before = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=message):
            datasets.oxford5k(tmp_path)
        (tmp_path / name).write_text(before)
    (tmp_path / "abbey_1_ok.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"abbey_1_ok.txt: not a text file"):
        datasets.oxford5k(tmp_path)
    (tmp_path / "abbey_1_ok.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"abbey_1_ok.txt: this part of the ground truth is missing"):
        datasets.oxford5k(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "not a readable JSON file"),
        ("{}", "must be a list of queries"),
        ("[]", "must be a list of queries"),
        ("[1]", "'name' of query 0 is None, not a name"),
        ('[{"name": "a", "image": 3}]', "'image' of query 0 is 3, not a name"),
        ('[{"name": "a", "image": "b", "landmark": "c", "good": "d"}]', "'good' of query 0 is 'd', not a list"),
        ('[{"name": "a", "image": "b", "landmark": "c", "good": [1]}]', "'good' of query 0"),
        ("[" * 100_000, "not a readable JSON file"),
    ],
)
def test_a_bad_json_file_is_refused(tmp_path, text, message):
    write_features(tmp_path)
    (tmp_path / "oxford5k_queries.json").write_text(text)
    with pytest.raises(ValueError, match=f"oxford5k_queries.json: {message}"):
        datasets.oxford5k(tmp_path)


def test_bad_names_in_json_are_refused(tmp_path):
    path = write_json(write_features(tmp_path)) / "oxford5k_queries.json"
    given = json.loads(path.read_text())
    for field, value, message in [
        ("image", "", "no features of the photo '', which .* lists as 'image' of the query 'abbey_1'"),
        ("ok", [""], "no features of the photo '', which .* lists as 'ok' of the query 'abbey_1'"),
        ("name", "abbey_2", "two queries have the name 'abbey_2': rename one"),
    ]:
        path.write_text(json.dumps([given[0] | {field: value}, *given[1:]]))
        with pytest.raises(ValueError, match=message):
            datasets.oxford5k(tmp_path)


def test_features_without_truth_and_truth_without_features(tmp_path):
    write_features(tmp_path / "a")
    with pytest.raises(FileNotFoundError, match=r"oxford5k_queries.json.*only .*features is there"):
        datasets.oxford5k(tmp_path / "a")
    write_texts(tmp_path / "b")
    with pytest.raises(FileNotFoundError, match=r"oxford5k_vgg16_8d.npz.*only .*b is there"):
        datasets.oxford5k(tmp_path / "b")


@pytest.mark.parametrize(
    "bad", [np.zeros((0, 4)), np.zeros((2, 5)), np.zeros((1, 2, 4)), np.zeros((0, 2, 4)), np.zeros(4)]
)
@pytest.mark.parametrize("photo", [PHOTOS[4], PHOTOS[-1]])
def test_bad_features_are_refused(tmp_path, bad, photo):
    write_texts(write_features(tmp_path))
    np.save(tmp_path / "features" / f"{photo}.npy", bad)
    with pytest.raises(ValueError, match=f"{photo}.npy"):
        datasets.oxford5k(tmp_path)


def test_features_of_another_dimension(tmp_path):
    write_texts(write_features(tmp_path))
    np.save(tmp_path / "features" / f"{PHOTOS[4]}.npy", np.zeros((2, 5)))
    with pytest.raises(ValueError, match=rf"{PHOTOS[4]}.npy: 5 features, but .*{PHOTOS[0]}.npy has 4: compute"):
        datasets.oxford5k(tmp_path)


# -- as in the paper ---------------------------------------------------------------------------------------------------


def shapes(n: int = 400, size: int = 768, seed: int = 0) -> Dataset:
    points = np.random.RandomState(seed).standard_normal((n, size, 3)) * [3, 2, 1]
    names = tuple(f"x_{i}" for i in range(n))
    return Dataset("modelnet40", Sets.from_padded(points), [0] * n, np.arange(n) % 2 == 1, ("x",), names, "by hand")


def test_mnist_as_in_the_paper(tmp_path):
    write_mnist(tmp_path)
    data = datasets.mnist(tmp_path)
    paper = as_in_paper(data)
    assert data.sets.weights is not None
    assert paper.sets.weights is None
    assert paper.sets.points.dtype == np.float32
    np.testing.assert_array_equal(paper.sets.points, data.sets.points / np.float32(28))
    assert paper.names == data.names
    assert (paper.source, paper.prepared, data.prepared) == (data.source, True, False)
    assert not as_in_paper(data.queries).sets.weights  # no draws and one scale: parts will do


def test_oxford_as_in_the_paper(tmp_path):
    write_texts(write_features(tmp_path))
    data = datasets.oxford5k(tmp_path)
    paper = as_in_paper(data)
    assert np.abs(paper.sets.points).max() == 1
    np.testing.assert_allclose(paper.sets.points * np.abs(data.sets.points).max(), data.sets.points, rtol=1e-6)
    assert paper.truth is data.truth


def test_objects_lie_in_the_unit_cube():
    paper = as_in_paper(shapes())
    assert paper.sets.points.dtype == np.float32
    for points in paper.sets:
        assert not points.min(axis=0).any()
        assert points.max() == 1


def test_sizes_of_objects_are_drawn():
    sizes = as_in_paper(shapes(4000, 900)).sets.sizes
    assert abs(sizes.mean() - 511.5) < 4
    assert abs(sizes.std() - 64) < 3
    assert set(as_in_paper(shapes(50, 100)).sets.sizes.tolist()) == {100}  # no more than there are


def test_rotation_is_about_x():
    data = shapes(60)
    still, turned = as_in_paper(data, rotation=0), as_in_paper(data, rotation=30)
    assert still.sets.sizes.tolist() == turned.sets.sizes.tolist()
    for before, after, given in zip(still.sets, turned.sets, data.sets, strict=True):
        given = given[: len(before)].astype(float)
        scale = (given.max(axis=0) - given.min(axis=0)).max()
        np.testing.assert_allclose(before, (given - given.min(axis=0)) / scale, atol=1e-6)
        x = given[:, 0] - given[:, 0].min()
        ratio = x.max() / after[:, 0].max()
        np.testing.assert_allclose(after[:, 0] * ratio, x, atol=1e-5)
        cos, sin = np.cos(np.pi / 6), np.sin(np.pi / 6)
        y, z = given[:, 1] * cos - given[:, 2] * sin, given[:, 1] * sin + given[:, 2] * cos
        np.testing.assert_allclose(after[:, 1] * ratio, y - y.min(), atol=1e-5)
        np.testing.assert_allclose(after[:, 2] * ratio, z - z.min(), atol=1e-5)


def test_angles_are_drawn_evenly():
    line = np.stack([np.zeros(768), np.linspace(0, 1, 768), np.zeros(768)], axis=1)  # along y
    n = 2000
    names = tuple(map(str, range(n)))
    sets, is_query = Sets.from_padded(np.tile(line, (n, 1, 1))), np.arange(n) == 0
    data = Dataset("modelnet40", sets, [0] * n, is_query, ("x",), names, "")
    sets = as_in_paper(data, rotation=(10.0, 40)).sets
    ends = sets.points[sets.offsets[1:] - 1]
    degrees = np.rad2deg(np.arctan2(ends[:, 2], ends[:, 1]))
    assert (degrees >= 10 - 1e-3).all()
    assert (degrees <= 40 + 1e-3).all()
    assert np.abs(np.quantile(degrees, [0.1, 0.5, 0.9]) - [13, 25, 37]).max() < 1


def test_a_seed_gives_the_same_and_another_gives_another():
    data = shapes(30)
    a, b, c = (as_in_paper(data, random_state=seed).sets for seed in (3, 3, 4))
    np.testing.assert_array_equal(a.points, b.points)
    assert a.sizes.tolist() != c.sizes.tolist()
    paper = as_in_paper(data).sets  # on every machine
    assert paper.sizes[:4].tolist() == [512, 546, 386, 542]
    np.testing.assert_allclose(
        paper.points[[0, 1000, 2000]],
        [[0.838504, 0.399183, 0.245219], [0.60373, 0.449877, 0.209411], [0.72741, 0.37312, 0.163899]],
        atol=1e-6,
    )


def test_an_object_of_one_place_stays():
    data = Dataset("modelnet40", Sets.from_padded(np.ones((2, 5, 3))), [0, 0], [False, True], ("x",), ("x", "y"), "")
    assert not as_in_paper(data).sets.points.any()


@pytest.mark.parametrize("name", ["modelnet40", "oxford5k"])
def test_parts_are_not_prepared_alone(name):
    whole = shapes(6)
    data = Dataset(name, whole.sets, whole.labels, whole.is_query, whole.classes, whole.names, "")
    for part, lost in ((data.database, "queries"), (data.queries, "database"), (data.take([]), "queries")):
        with pytest.raises(ValueError, match=rf"this {name} has no {lost}.*whole, then take .database and .queries"):
            as_in_paper(part)
    assert len(as_in_paper(data.take([0, 1]))) == 2


def test_as_in_paper_refuses():
    data = shapes(3)
    for rotation in ((45, 0), (1, 2, 3), "x", (0, np.inf), float("nan"), None, ("a", "b")):
        with pytest.raises(ValueError, match="rotation"):
            as_in_paper(data, rotation=rotation)
    for part in (as_in_paper(data), as_in_paper(data).queries, as_in_paper(data).take([0, 1])):
        with pytest.raises(ValueError, match="already"):
            as_in_paper(part)
    for seed in (-1, 1 << 32, "x"):
        with pytest.raises(ValueError, match=f"random_state={seed!r} must be an integer"):
            as_in_paper(data, random_state=seed)
    with pytest.raises(ValueError, match=r"'toy'.*mnist, modelnet40 and oxford5k"):
        as_in_paper(Dataset("toy", data.sets, data.labels, data.is_query, data.classes, data.names, ""))
    with pytest.raises(ValueError, match="a Sets, not a Dataset"):
        as_in_paper(data.sets)
    flat = Sets.from_padded(np.zeros((3, 4, 2)))
    with pytest.raises(ValueError, match="3 coordinates, these have 2"):
        as_in_paper(Dataset("modelnet40", flat, data.labels, data.is_query, data.classes, data.names, ""))


def test_nothing_that_is_given_is_changed():
    data = shapes(5)
    before = data.sets.points.copy()
    as_in_paper(data)
    np.testing.assert_array_equal(data.sets.points, before)
