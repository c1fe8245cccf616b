"""What each difference between the paper, the authors' code and slosh makes: one thing changed at a time.

The authors' code is github.com/mint-vu/SLOSH, notebooks/utils. Every variant is the protocol of Table 1 but for what it
is named after; results are its scores at 1024 and 2048 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

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
from slosh.datasets import Dataset
from slosh.embed import FSPool, SlicedWasserstein

POOLING = tuple(method for method in METHODS if method not in ("WE", *SLOSH))
TORCH_SLICES = {
    1: [-10.78, 21.97, -29.68, 12.28, 171.76],
    2: [(-10.78, 165.38), (21.97, 84.33), (-29.68, 255.15), (12.28, -81.75), (171.76, 20.72)],
}
"""Slices of the authors' code for d = 2 and the seeds 0 to 4, in degrees: torch.manual_seed(s); torch.randn(L, 2)."""
ANGLES = (0, 5, 10, 20, 30, 45, 60, 90)
SEEDS = 3
"""So many of Table 1's seeds; the slices of the authors' code have all five."""


def half_fibonacci(n_slices: int) -> Array:
    """The spiral of the authors' code for ModelNet40: golden-angle steps that fall on one half, from pole to pole.

    The first and the last of it are the two poles, which are the same slice: L = 3 are two slices, one of them counted
    twice. With L = 1 their code divides by zero; here that is the pole.
    """
    golden = np.pi * (3 - np.sqrt(5))
    turns = np.array([i for i in range(4 * n_slices) if (golden * i) % (2 * np.pi) <= np.pi][:n_slices])
    y = 1 - 2 * np.arange(n_slices) / max(n_slices - 1, 1)
    radius = np.sqrt(1 - y**2)
    return np.stack([np.cos(golden * turns) * radius, y, np.sin(golden * turns) * radius], axis=1)


def units(plan: Plan) -> Iterator[Unit]:
    for name in SETTINGS:
        seconds = 6.0 if name == "mnist" else 2.0
        for seed in plan.seeds:
            for variant, (names, methods, run) in VARIANTS.items():
                wanted = name in names and (seed < SEEDS or variant == "torch")
                for method in methods if wanted else ():
                    key = f"differences/{name}/{variant}/{method}/{seed}"
                    yield Unit(key, seconds, _bound(run, plan, name, method, seed))
            for angle in plan.choose(ANGLES, (5, 30)) if name == "mnist" and seed < SEEDS else ():
                yield Unit(f"differences/mnist/angle/{angle}/{seed}", seconds, _bound(two_slices, plan, angle, seed))


def _bound(run: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    return lambda: run(*args)


def _scores(model: Any, sets: Dataset, seed: int, after: Callable[[Array], Array] | None = None) -> dict[str, Any]:
    return scores_by_length(*codes(model, sets, seed=seed, after=after), sets, BITS)


def _swe(plan: Plan, name: str, method: str, seed: int, **other: Any) -> SlicedWasserstein:
    setting: Setting = plan.setting(name)
    return paper_swe(setting.slices[SLOSH.index(method)], setting, seed, **other)


# -- what the authors' code does otherwise than the paper ------------------------------------------------------------


def torch_slices(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    setting = plan.setting(name)
    degrees = np.deg2rad(np.ravel(TORCH_SLICES[setting.slices[SLOSH.index(method)]][seed]))
    slices = np.stack([np.cos(degrees), np.sin(degrees)], axis=1)
    return _scores(paper_swe(None, setting, seed, slices=slices), data(plan, name, seed), seed)


def spiral(plan: Plan, name: str, method: str, seed: int, rotation: Any = (0.0, 45.0)) -> dict[str, Any]:
    setting = plan.setting(name)
    slices = half_fibonacci(setting.slices[SLOSH.index(method)])
    return _scores(paper_swe(None, setting, seed, slices=slices), data(plan, name, seed, rotation), seed)


def spiral_and_45(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    return spiral(plan, name, method, seed, 45.0)


def turned_by_45(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    return _scores(embedding(method, plan.setting(name), seed), data(plan, name, seed, 45.0), seed)


def squared(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    """Each vector's numbers squared and divided by their sum."""

    def shares(vectors: Array) -> Array:
        squares = vectors**2
        return squares / squares.sum(axis=1, keepdims=True)

    return _scores(embedding(method, plan.setting(name), seed), data(plan, name, seed), seed, shares)


def random_weights(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    """FSPool's numbers times those of a uniform reference."""
    setting, sets = plan.setting(name), data(plan, name, seed)
    weights = np.random.RandomState(seed).uniform(size=setting.reference * sets.sets.dim).astype(np.float32)
    return _scores(embedding(method, setting, seed), sets, seed, lambda vectors: vectors * weights)


def faiss_codes(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    """The codes of FAISS's IndexLSH, which the authors use, instead of those of SignHash."""
    import faiss

    sets, model = data(plan, name, seed), embedding(method, plan.setting(name), seed)
    stored, asked = model.fit_transform(sets.database.sets), model.transform(sets.queries.sets)
    index = faiss.IndexLSH(stored.shape[1], BITS[-1])
    index.rrot.init(seed)
    index.add(stored)
    return {str(BITS[-1]): score(index.search(asked, max(K))[1], sets)}


# -- what is not the paper's data --------------------------------------------------------------------------------------


def positive_features(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    """Every feature brought to [0, 1], where the uniform reference is, and where those of an autoencoder may lie."""
    sets = data(plan, name, seed)
    points = sets.sets.points
    low, high = points.min(axis=0), points.max(axis=0)
    moved = replace(sets, sets=Sets((points - low) / (high - low), sets.sets.offsets))
    return _scores(embedding(method, plan.setting(name), seed), moved, seed)


# -- what slosh does otherwise, one by one ---------------------------------------------------------------------------


def centred(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    """Hashed about the mean of the vectors: for SLOSH that is the barycentre as the reference."""
    sets = data(plan, name, seed)
    if method in SLOSH:
        return _scores(_swe(plan, name, method, seed, reference="barycenter"), sets, seed)
    model = embedding(method, plan.setting(name), seed)
    mean = model.fit_transform(sets.database.sets).mean(axis=0)
    return _scores(model, sets, seed, lambda vectors: vectors - mean)


def average_rule(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    model: Any
    if method == "FSPool":
        model = FSPool(plan.setting(name).reference, quantiles="average")
    else:
        model = _swe(plan, name, method, seed, quantiles="average")
    return _scores(model, data(plan, name, seed), seed)


def better_slices(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    return _scores(_swe(plan, name, method, seed, slices="auto"), data(plan, name, seed), seed)


def all_three(plan: Plan, name: str, method: str, seed: int) -> dict[str, Any]:
    """With the paper's number of quantiles; the defaults have 16."""
    how = {"reference": "barycenter", "quantiles": "average", "slices": "auto"}
    return _scores(_swe(plan, name, method, seed, **how), data(plan, name, seed), seed)


# -- why two random slices of the plane vary so much -------------------------------------------------------------------


def two_slices(plan: Plan, angle: float, seed: int) -> dict[str, Any]:
    """MNIST with two slices, the second at this angle to the first, which is drawn."""
    sets = data(plan, "mnist", seed)
    first = np.random.RandomState(seed).uniform(0, np.pi)
    degrees = np.array([first, first + np.deg2rad(angle)])
    slices = np.stack([np.cos(degrees), np.sin(degrees)], axis=1)
    return _scores(paper_swe(None, plan.setting("mnist"), seed, slices=slices), sets, seed)


Variant = tuple[tuple[str, ...], tuple[str, ...], Callable[..., dict[str, Any]]]
ALL = tuple(SETTINGS)
VARIANTS: dict[str, Variant] = {
    "torch": (("mnist",), SLOSH[:2], torch_slices),
    "spiral": (("modelnet40",), SLOSH, spiral),
    "45": (("modelnet40",), (*POOLING, *SLOSH), turned_by_45),
    "spiral and 45": (("modelnet40",), SLOSH, spiral_and_45),
    "squared": (("oxford5k",), (*POOLING, *SLOSH), squared),
    "weights": (ALL, ("FSPool",), random_weights),
    "faiss": (("mnist",), ("GeM-1", "GeM-2", "GeM-4", "Cov", "FSPool"), faiss_codes),
    "positive": (("oxford5k",), (*POOLING, *SLOSH), positive_features),
    "centred": (ALL, ("FSPool", *SLOSH), centred),
    "average": (ALL, ("FSPool", *SLOSH), average_rule),
    "slices": (ALL, SLOSH, better_slices),
    "all three": (ALL, SLOSH, all_three),
}
"""By name: on which data sets, for which methods, and what gives the scores."""
