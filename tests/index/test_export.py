"""An index as a Parquet file, and back."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import slosh
from builders import cloud_list, contents, make_index

pq = pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize("weighted", [True, False])
def test_export_and_back(tmp_path, weighted):
    sets = cloud_list(25, dim=3)
    weights = [np.linspace(1, 2, len(x)) for x in sets] if weighted else None
    index = make_index(dim=3)
    index.add(sets, [f"ü{i}" for i in range(25)], [{"n": i, "l": [1, "x"]} for i in range(25)], weights=weights)
    index.remove("ü3")
    assert index.export(tmp_path / "all.parquet") == 24
    table = pq.read_table(tmp_path / "all.parquet")
    assert table["id"].to_pylist() == index.ids
    assert [json.loads(x) for x in table["metadata"].to_pylist()] == [index.get(name).metadata for name in index.ids]
    assert np.array_equal(np.array(table["points"][0].as_py(), "f4"), sets[0])
    assert ("weights" in table.column_names) == weighted
    other = make_index(dim=3)
    other.add(slosh.readers.read(tmp_path / "all.parquet"))
    assert contents(other) == contents(index)
    assert os.listdir(tmp_path) == ["all.parquet"]


def test_points_are_exported_in_the_coordinates_of_the_data(tmp_path):
    sets = [x + np.array([1e6, -1e6]) for x in cloud_list(5)]
    index = make_index(origin=[1e6, -1e6])
    index.add(sets)
    index.export(tmp_path / "all.parquet")
    points = np.array(pq.read_table(tmp_path / "all.parquet")["points"][2].as_py())
    np.testing.assert_allclose(points, sets[2], rtol=0, atol=1e-6)


def test_where_nothing_can_be_exported(tmp_path):
    index = make_index()
    index.add(cloud_list(3))
    with pytest.raises(FileNotFoundError):
        index.export(tmp_path / "no" / "all.parquet")
    with pytest.raises(IsADirectoryError):
        index.export(tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["all.csv", "all.parquet.gz"])
def test_a_name_of_another_format_is_refused(tmp_path, name):
    index = make_index()
    index.add(cloud_list(3))
    with pytest.raises(slosh.errors.InputError, match=r"Parquet.*\.parquet") as caught:
        index.export(tmp_path / name)
    assert caught.value.argument == "path"
    assert os.listdir(tmp_path) == []
    assert index.export(tmp_path / "ALL.PARQUET") == index.export(tmp_path / "all") == 3
