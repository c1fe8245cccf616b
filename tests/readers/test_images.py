"""IDX images, the format of MNIST."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from reader_files import everything, idx

from comparing import raises, same
from slosh.readers import read


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
