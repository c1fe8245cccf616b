"""Small labelled collections, and models that are fitted to them in a second.

A test module that imports this is skipped where torch is not installed.
"""

from __future__ import annotations

import numpy as np
import pytest

from slosh import Sets
from slosh.embed import SlicedWasserstein
from slosh.learn import LearnedEmbedding

torch = pytest.importorskip("torch", reason="torch is not installed: make installs it where its CPU build can be had")
torch.set_num_threads(1)  # small tensors on a shared machine: threads would wait for each other


def small(**given) -> LearnedEmbedding:
    """Return a model that is fitted in a second."""
    options = {"n_components": 8, "epochs": 12, "augment": None, "n_jobs": 1, "learn_slices": False}
    options["embedding"] = SlicedWasserstein(8, 4)
    return LearnedEmbedding(**{**options, **given})


def shapes(n: int, dim: int = 2, n_classes: int = 3, seed: int = 0, size: int = 24, weighted: bool = False):
    """Return clouds of different stretch by class, and their classes."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % n_classes
    points = [
        rng.normal(size=(rng.integers(3, size), dim)) * (1 + 1.5 * np.eye(dim)[label % dim] * (label > 0))
        for label in labels
    ]
    weights = [rng.uniform(0.2, 1, len(each)) * (np.arange(len(each)) != 1) for each in points] if weighted else None
    return Sets.from_list(points, weights, dim=dim), labels
