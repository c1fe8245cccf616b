"""Measure the effect of each difference between the paper, the authors' code and slosh, one change at a time.

The authors' code is github.com/mint-vu/SLOSH, notebooks/utils. Every variant follows the protocol of Table 1 except for
the change that it is named after. Results are scores at 1024 and 2048 bits (with FAISS's codes, only at 2048).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from datasets import Dataset
from ledger import Unit
from protocol import (
    BITS,
    METHODS,
    SETTINGS,
    SLOSH,
    Array,
    K,
    Plan,
    Setting,
    codes,
    data,
    embedding,
    paper_swe,
    score,
    scores_by_length,
)
from slosh import Sets
from slosh.embed import FSPool, SlicedWasserstein

POOLING = tuple(method for method in METHODS if method not in ("WE", *SLOSH))
TORCH_SEEDS = (0, 1, 4, 10, 16)
TORCH_SLICES = {
    1: [[169.22], [21.98], [171.76], [59.28], [108.05]],
    2: [[169.22, 165.38], [21.98, 84.33], [171.76, 20.72], [59.28, 76.17], [108.05, 121.17]],
    8: [
        [45.67, 59.99, 39.19, 81.5, 104.31, 41.36, 84.47, 167.51],
        [26.19, 67.89, 80.66, 58.66, 156.9, 17.93, 97.51, 63.97],
        [126.69, 140.68, 111.14, 166.51, 13.29, 59.31, 138.99, 50.19],
        [34.21, 57.49, 78.43, 101.05, 126.6, 118.33, 28.6, 9.76],
        [66.2, 160.84, 4.13, 147.31, 67.26, 17.29, 1.68, 56.54],
    ],
}
"""The authors' slices for d = 2 and their five seeds, in degrees: torch.manual_seed(s); torch.randn(L, 2)."""
ANGLES = (0, 5, 10, 20, 30, 45, 60, 90)
DIRECTIONS = (0, 30, 60, 90, 120, 150)
SEEDS = 3
"""How many of Table 1's seeds are used; the authors' slices have five seeds of their own, FAISS's codes one."""


def half_fibonacci(n_slices: int) -> Array:
    """Return the spiral of the authors' code for ModelNet40: golden-angle steps on one half, from pole to pole.

    Its first and last directions are the two poles, which are the same slice: L = 3 gives two distinct slices, one of
    them counted twice. With L = 1 their code divides by zero; this function returns the pole.
    """
    golden = np.pi * (3 - np.sqrt(5))
    turns = np.array([i for i in range(4 * n_slices) if (golden * i) % (2 * np.pi) <= np.pi][:n_slices])
    y = 1 - 2 * np.arange(n_slices) / max(n_slices - 1, 1)
    radius = np.sqrt(1 - y**2)
    return np.stack([np.cos(golden * turns) * radius, y, np.sin(golden * turns) * radius], axis=1)


def units(plan: Plan) -> Iterator[Unit]:
    for name in SETTINGS:
        seconds = 5.0 if name == "mnist" else 2.0
        for seed in plan.seeds:
            for variant, (names, methods, run) in VARIANTS.items():
                selected = name in names and seed < {"torch": len(TORCH_SEEDS), "faiss": 1}.get(variant, SEEDS)
                for method in methods if selected else ():
                    key = f"differences/{name}/{variant}/{method}/{seed}"
                    yield Unit(key, seconds, partial(run, plan, name, method, seed))
            if name == "mnist" and seed < SEEDS:
                for angle in plan.choose(ANGLES, (5, 30)):
                    key = f"differences/mnist/between/{angle}/{seed}"
                    yield Unit(key, seconds, partial(two_slices, plan, angle, seed))
                for degrees in plan.choose(DIRECTIONS, (0, 90)):
                    key = f"differences/mnist/direction/{degrees}/{seed}"
                    yield Unit(key, seconds, partial(one_slice, plan, degrees, seed))


def _scores(model: Any, sets: Dataset, seed: int, after: Callable[[Array], Array] | None = None) -> dict[str, Any]:
    return scores_by_length(*codes(model, sets, seed=seed, after=after), sets, BITS)


def _swe(plan: Plan, name: str, method: str, seed: int, **other: Any) -> SlicedWasserstein:
    setting: Setting = plan.setting(name)
    return paper_swe(setting.slices[SLOSH.index(method)], setting, seed, **other)


# -- where the authors' code differs from the paper --------------------------------------------------------------------


def flip_rows(sets: Dataset) -> Dataset:
    """Return MNIST as in the authors' file, with pixel rows counted from below."""
    points = sets.sets.points.copy()
    points[:, 1] = 27 / 28 - points[:, 1]
    return replace(sets, sets=Sets(points, sets.sets.offsets))


def rows_from_below(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    """Count pixel rows from below."""
    return _scores(embedding(method, plan.setting(name), seed), flip_rows(data(plan, name, seed)), seed)


def torch_slices(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    """Use the authors' slices, with FAISS's codes and rows from below as in their code; the reference is our draw."""
    setting = plan.setting(name)
    n_slices = SETTINGS[name].slices[SLOSH.index(method)]
    model = paper_swe(None, setting, seed, slices=in_plane(TORCH_SLICES[n_slices][seed]))
    return score_faiss_codes(model, flip_rows(data(plan, name, seed)))


def faiss_codes(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    """Use FAISS's codes, with rows from below. Nothing is random here."""
    return score_faiss_codes(embedding(method, plan.setting(name), seed), flip_rows(data(plan, name, seed)))


def score_faiss_codes(model: Any, sets: Dataset) -> dict[str, Any]:
    """Score the codes of FAISS's IndexLSH, whose hyperplanes are the same in every run, instead of SignHash's."""
    import faiss

    stored, asked = model.fit_transform(sets.database.sets), model.transform(sets.queries.sets)
    index = faiss.IndexLSH(stored.shape[1], BITS[-1])
    index.add(stored)
    return {str(BITS[-1]): score(index.search(asked, max(K))[1], sets)}


def in_plane(degrees: Any) -> Array:
    """Return unit vectors at these angles to the first axis."""
    angles = np.deg2rad(np.asarray(degrees, float))
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def spiral(plan: Plan, name: str, method: str, seed: int, rotation: Any = (0.0, 45.0)) -> dict[str, Any]:
    """Use the authors' half spiral of slices."""
    setting = plan.setting(name)
    slices = half_fibonacci(setting.slices[SLOSH.index(method)])
    return _scores(paper_swe(None, setting, seed, slices=slices), data(plan, name, seed, rotation), seed)


def spiral_and_45(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    """Use the half spiral, and rotate every object by 45 degrees."""
    return spiral(plan, name, method, seed, 45.0)


def rotated_by_45(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    """Rotate every object by 45 degrees instead of a random angle."""
    return _scores(embedding(method, plan.setting(name), seed), data(plan, name, seed, 45.0), seed)


def square_and_normalise(vectors: Array) -> Array:
    """Square each vector's numbers and divide them by their sum."""
    squares = vectors**2
    return squares / squares.sum(axis=1, keepdims=True)


def squared(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    """Square and normalise the vectors, as the authors' code does for Oxford."""
    return _scores(embedding(method, plan.setting(name), seed), data(plan, name, seed), seed, square_and_normalise)


def random_weights(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    """Multiply FSPool's numbers by those of a uniform reference."""
    setting, sets = plan.setting(name), data(plan, name, seed)
    weights = np.random.RandomState(seed).uniform(size=setting.reference * sets.sets.dim).astype(np.float32)
    return _scores(embedding(method, setting, seed), sets, seed, lambda vectors: vectors * weights)


# -- where our data differ from the paper's ----------------------------------------------------------------------------


def positive_features(
    plan: Plan, name: str, method: str, seed: int, after: Callable[[Array], Array] | None = None
) -> dict[str, Any]:
    """Scale every feature to [0, 1], the range of the uniform reference and perhaps of the paper's autoencoder."""
    sets = data(plan, name, seed)
    points = sets.sets.points
    low, high = points.min(axis=0), points.max(axis=0)
    scaled = replace(sets, sets=Sets((points - low) / (high - low), sets.sets.offsets))
    return _scores(embedding(method, plan.setting(name), seed), scaled, seed, after)


def positive_and_squared(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    """Scale every feature to [0, 1], then square and normalise the vectors."""
    return positive_features(plan, name, method, seed, square_and_normalise)


# -- where slosh differs from the paper, one by one --------------------------------------------------------------------


def centred(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    """Hash about the mean of the vectors; for SLOSH this means the barycentre as the reference."""
    sets = data(plan, name, seed)
    if method in SLOSH:
        return _scores(_swe(plan, name, method, seed, reference="barycenter"), sets, seed)
    model = embedding(method, plan.setting(name), seed)
    mean = model.fit_transform(sets.database.sets).mean(axis=0)
    return _scores(model, sets, seed, lambda vectors: vectors - mean)


def average_rule(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    """Compute quantiles by the average rule."""
    model: Any
    if method == "FSPool":
        model = FSPool(plan.setting(name).reference, quantiles="average")
    else:
        model = _swe(plan, name, method, seed, quantiles="average")
    return _scores(model, data(plan, name, seed), seed)


def better_slices(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    """Use slosh's default kind of slices."""
    return _scores(_swe(plan, name, method, seed, slices="auto"), data(plan, name, seed), seed)


def all_three(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    """Combine the three, with the paper's number of quantiles; the defaults have 16."""
    how = {"reference": "barycenter", "quantiles": "average", "slices": "auto"}
    return _scores(_swe(plan, name, method, seed, **how), data(plan, name, seed), seed)


# -- why two random slices of the plane vary so much -------------------------------------------------------------------


def two_slices(plan: Plan, angle: float, seed: int) -> dict[str, Any]:
    """Score MNIST with two slices at this angle; the first one moves by 60 degrees from seed to seed."""
    return _with_slices(plan, in_plane([60 * seed, 60 * seed + angle]), seed)


def one_slice(plan: Plan, degrees: float, seed: int) -> dict[str, Any]:
    """Score MNIST with one slice at this angle to the pixel columns."""
    return _with_slices(plan, in_plane([degrees]), seed)


def _with_slices(plan: Plan, slices: Array, seed: int) -> dict[str, Any]:
    model = paper_swe(None, plan.setting("mnist"), seed, slices=slices)
    return _scores(model, data(plan, "mnist", seed), seed)


Variant = tuple[tuple[str, ...], tuple[str, ...], Callable[..., dict[str, Any]]]
ALL = tuple(SETTINGS)
VARIANTS: dict[str, Variant] = {
    "upwards": (("mnist",), (*POOLING, *SLOSH), rows_from_below),
    "faiss": (("mnist",), POOLING, faiss_codes),
    "torch": (("mnist",), SLOSH, torch_slices),
    "spiral": (("modelnet40",), SLOSH, spiral),
    "45": (("modelnet40",), (*POOLING, *SLOSH), rotated_by_45),
    "spiral and 45": (("modelnet40",), SLOSH, spiral_and_45),
    "squared": (("oxford5k",), (*POOLING, *SLOSH), squared),
    "weights": (ALL, ("FSPool",), random_weights),
    "positive": (("oxford5k",), (*POOLING, *SLOSH), positive_features),
    "positive and squared": (("oxford5k",), (*POOLING, *SLOSH), positive_and_squared),
    "centred": (ALL, ("FSPool", *SLOSH), centred),
    "average": (ALL, ("FSPool", *SLOSH), average_rule),
    "slices": (ALL, SLOSH, better_slices),
    "all three": (ALL, SLOSH, all_three),
}
"""By name: the data sets, the methods, and the function that returns the scores."""
