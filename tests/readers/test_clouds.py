"""PCD clouds, written by hand as the Point Cloud Library does, and LAS and LAZ clouds, as laspy writes them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from reader_files import FAR, everything, pack_lzf, pcd_file

from comparing import raises, same
from slosh.errors import PrecisionWarning
from slosh.readers import clouds, read


@given(st.binary(max_size=400) | st.lists(st.sampled_from([b"a", b"bc", b"0000"]), max_size=400).map(b"".join))
def test_lzf(data):
    assert clouds.unpack_lzf(pack_lzf(data), len(data)) == data


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
    with raises("c.pcd: no field 'z': there are 'x', 'y'"):
        read(path)
    path.write_text("hello\n")
    with raises("c.pcd: not a PCD cloud"):
        read(path)
    pcd_file(path, {"x": x, "y": x, "z": x[:0].repeat(3)} | {"z": x}, "ascii")
    path.write_bytes(path.read_bytes().replace(b"POINTS 3", b"POINTS 4"))
    with raises("c.pcd: POINTS is 4"):
        read(path)


# ---- LAS and LAZ


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
