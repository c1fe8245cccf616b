"""LAS and LAZ clouds, as laspy writes them."""

from __future__ import annotations

import numpy as np
import pytest
from reader_files import FAR, everything

from comparing import raises
from slosh.errors import PrecisionWarning


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
