"""The experiment of the paper's section 5, step by step: data, embed, hash, search, score.

Everything uses the public API of slosh. For a data set, a method and a seed it gives precision@k and the accuracy of
the vote among k neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

import datasets
from datasets import Dataset
from slosh import Sets
from slosh.embed import Covariance, FSPool, GeM, SlicedWasserstein, WassersteinEmbedding
from slosh.evaluate import mean_average_precision, precision_at_k, vote_accuracy
from slosh.hash import SignHash
from slosh.search import nearest_codes

Array: TypeAlias = NDArray[Any]
Scores: TypeAlias = dict[str, list[float]]

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"

K = (4, 8, 16)
BITS = (1024, 2048)
"""Code lengths: the one that the paper states, and the one that the authors' code produces."""
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
NUMBERS_IN_MEMORY = 1 << 25
"""Numbers of embedded vectors held at a time (128 MB); they are hashed and discarded."""


class Setting(NamedTuple):
    """The settings of a data set: its title, the slices of L < d, L = d and L > d, and the reference size M."""

    title: str
    slices: tuple[int, int, int]
    reference: int


SETTINGS = {
    "mnist": Setting("Point Cloud MNIST 2D", (1, 2, 8), 150),
    "modelnet40": Setting("ModelNet40", (1, 3, 16), 512),
    "oxford5k": Setting("Oxford 5k", (4, 8, 128), 384),
}
SLOSH = ("SLOSH L<d", "SLOSH L=d", "SLOSH L>d")
METHODS = ("GeM-1", "GeM-2", "GeM-4", "Cov", "FSPool", "WE", *SLOSH)


@dataclass(frozen=True)
class Plan:
    """The data folder, and whether a run is a quick one."""

    folder: Path = DATA
    quick: bool = False

    @property
    def seeds(self) -> range:
        """The seeds of every experiment."""
        return range(2 if self.quick else 5)

    def choose(self, full: Any, quick: Any) -> Any:
        """Return the first value in a full run, the second in a quick one."""
        return quick if self.quick else full

    def setting(self, name: str) -> Setting:
        """Return the settings of a data set, smaller in a quick run."""
        title, slices, reference = SETTINGS[name]
        if self.quick:
            slices, reference = (slices[0], slices[1], min(slices[2], 16)), 24
        return Setting(title, slices, reference)


# -- data --------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def _raw(folder: Path, name: str) -> Dataset:
    return datasets.load(name, folder)


@lru_cache(maxsize=2)
def data(plan: Plan, name: str, seed: int = 0, rotation: float | tuple[float, float] = (0.0, 45.0)) -> Dataset:
    """Return the data set as the paper prepares it, or a part of it in a quick run. ModelNet40 depends on the seed.

    The order is random, because ties between codes go to the row stored first and ModelNet40 is sorted by class.
    """
    whole = datasets.as_in_paper(_raw(plan.folder, name), random_state=seed, rotation=rotation)
    part = _part(whole) if plan.quick else whole
    return part.take(np.random.RandomState(seed).permutation(len(part)))


def _part(whole: Dataset, n_database: int = 1100, n_queries: int = 100) -> Dataset:
    """Return a random part of the stored sets and of the queries."""
    random = np.random.RandomState(0)
    stored, asked = (random.permutation(np.flatnonzero(mask)) for mask in (~whole.is_query, whole.is_query))
    stored = stored[np.argsort(whole.labels[stored] < 0, kind="stable")]  # Oxford: photos of landmarks first
    return whole.take(np.sort(np.concatenate([stored[:n_database], asked[:n_queries]])))


@lru_cache(maxsize=1)
def validation(plan: Plan, name: str, seed: int) -> Dataset:
    """Split the database as in the authors' studies: a tenth are queries, the rest is searched; no test set is used."""
    database = data(plan, name, seed).database
    order = np.random.RandomState(seed).permutation(len(database))
    asked = order[: len(order) // 10]
    is_query = np.zeros(len(database), bool)
    is_query[asked[database.labels[asked] >= 0]] = True  # Oxford: a photo without a landmark has no right answer
    return replace(database, is_query=is_query)


# -- embed -------------------------------------------------------------------------------------------------------------


def embedding(method: str, setting: Setting, seed: int, slosh_defaults: bool = False) -> Any:
    """Return the embedding of a row of Table 1, with the paper's settings or with slosh's defaults."""
    if method.startswith("GeM"):
        return GeM(int(method[-1]))
    if method == "Cov":
        return Covariance()
    if method == "FSPool":
        return FSPool(setting.reference, quantiles="average" if slosh_defaults else "linear")
    if method == "WE":
        return WassersteinEmbedding("uniform", setting.reference, random_state=seed)
    n_slices = setting.slices[SLOSH.index(method)]
    return SlicedWasserstein(n_slices, random_state=seed) if slosh_defaults else paper_swe(n_slices, setting, seed)


def paper_swe(n_slices: int | None, setting: Setting, seed: int, **other: Any) -> SlicedWasserstein:
    """Return the paper's Sliced-Wasserstein embedding; `other` overrides its parameters."""
    how = {"slices": "random", "quantiles": "linear", "reference": "uniform", **other}
    return SlicedWasserstein(n_slices, setting.reference, random_state=seed, **how)


# -- hash --------------------------------------------------------------------------------------------------------------


def codes(
    model: Any, data: Dataset, n_bits: int = BITS[-1], seed: int = 0, after: Callable[[Array], Array] | None = None
) -> tuple[Array, Array]:
    """Return codes of the database and of the queries, hashed about the origin, without keeping the vectors.

    The first bytes of a code are a shorter code. `after` transforms the vectors before they are hashed.
    """
    model.fit(data.database.sets)
    if "n_jobs" in model.get_params():
        model.set_params(n_jobs=1)  # batches run in threads below
    hash = SignHash(n_bits, center=None, random_state=seed)
    hash.fit(model.transform(data.database.sets[:1]))
    n_sets = max(1, NUMBERS_IN_MEMORY // hash.n_features_in_ // 4)

    def hash_batch(sets: Sets) -> Array:
        vectors = model.transform(sets)
        return hash.transform(vectors if after is None else after(vectors))

    def hash_all(sets: Sets) -> Array:
        batches = (sets[i : i + n_sets] for i in range(0, len(sets), n_sets))
        with ThreadPoolExecutor(2) as pool:
            return np.concatenate(list(pool.map(hash_batch, batches)))

    return hash_all(data.database.sets), hash_all(data.queries.sets)


# -- search and score --------------------------------------------------------------------------------------------------


def scores_by_length(stored: Array, asked: Array, data: Dataset, lengths: Iterable[int] = BITS) -> dict[str, Scores]:
    """Return the scores of a flat Hamming search for each code length."""
    found = {}
    for n_bits in lengths:
        n_found = max(K) if data.truth is None else len(stored)  # Oxford: the whole ranking
        rows = nearest_codes(asked[:, : n_bits // 8], stored[:, : n_bits // 8], n_found)[1]
        found[str(n_bits)] = score(rows, data)
    return found


def score(rows: Array, data: Dataset) -> Scores:
    """Return precision@k and vote accuracy for each k, and with a ground truth the mean average precision ("map")."""
    labels, found = data.queries.labels, data.database.labels[rows[:, : max(K)]]
    scores = {str(k): [precision_at_k(found[:, :k], labels), vote_accuracy(found[:, :k], labels)] for k in K}
    if data.truth is not None and rows.shape[1] == len(data.database):
        scores["map"] = [mean_average_precision(rows, data.truth.relevant, data.truth.junk, "trapezoid")]
    return {name: [round(value, 5) for value in values] for name, values in scores.items()}
