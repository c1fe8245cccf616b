"""Shared by the tests of the estimators: real digits, their index vectors, and one thread for scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

from slosh import Sets


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The threads of scikit-learn spin while they wait, on a machine that others use too."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="session")
def digits():
    """600 digits of scikit-learn: a pixel is an element, its ink the weight."""
    images, labels = load_digits(return_X_y=True)
    images = images[:600].reshape(-1, 8, 8)
    image, row, column = np.nonzero(images)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(image))])
    return Sets(np.stack([column, row], axis=1), offsets, images[image, row, column]), labels[:600]


@pytest.fixture(scope="module", params=["mnist", "digits"])
def data(request):
    """Sets to fit, their labels, sets to ask for, their labels."""
    sets, labels = request.getfixturevalue(request.param)
    return sets[:400], labels[:400], sets[400:], labels[400:]


@pytest.fixture(scope="session")
def index_vectors():
    """The vectors that an index compares, float64, of each collection; the embedding is fitted on the first."""

    def embed(embedding, *collections):
        model = clone(embedding).fit(collections[0])
        return [model.index_vectors(sets)[0].astype(np.float64) for sets in collections]

    return embed
