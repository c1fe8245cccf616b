"""NumPy's own files: .npy and .npz."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from reader_files import everything

from builders import normal_arrays
from comparing import raises, same
from slosh.readers import read

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


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
    np.save(tmp_path / "x.npy", normal_arrays(100, dim=3)[0])
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


def test_npy_of_other_values(tmp_path):
    for array, words in ((np.array([["a"]]), "must be numbers"), (np.ones((2, 2), complex), "complex")):
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
    x, y = normal_arrays(3, 5, dim=3)
    np.savez(tmp_path / "one.npz", points=x, normals=x, scale=2.5)
    assert everything(tmp_path / "one.npz")[1:] == (["one.npz"], [{"file": "one.npz", "scale": 2.5}])
    np.savez(tmp_path / "two.npz", left=x, right=y)
    batch = everything(tmp_path / "two.npz")
    same(batch.sets, [x, y])
    assert batch.ids == ["left", "right"]
    np.savez(tmp_path / "three.npz", x, y)
    assert everything(tmp_path / "three.npz").ids == ["three/0", "three/1"]
    np.savez(tmp_path / "four.npz", x, y[0])
    with raises("four.npz: 'arr_1': of shape (3,)"):
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
