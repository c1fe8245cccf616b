"""What is fixed when an index is made: how its sets are prepared, embedded and searched. Stored as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.checks import checked_origin
from ..data.preprocess import Preprocess
from ..data.sets import Sets, as_sets
from ..embed import SlicedWasserstein
from ..embed.base import SetTransformer
from ..hash import SignHash
from ..native import kernel
from ..search import HammingSearch, LadderSearch, Search, SetSearch, files
from ..search.set_search import check_parts
from ..slices import Polynomial
from . import portable

MOST_THREADS = 4096
LARGEST = 1 << 26
"""Features of an element, and numbers of a vector, at most."""
FROM_DATA = {"barycenter", "sample", "kmeans"}
"""References that are learnt from sets."""


@dataclass(frozen=True)
class Recipe:
    """Made by `make_recipe`; `embedding` is fitted, `search` is empty."""

    dim: int
    embedding: SetTransformer
    search: Search
    preprocess: Preprocess
    origin: NDArray[np.float64] | None

    def sets(self, data: Any) -> Sets:
        """What a user passed, as sets of this index."""
        return as_sets(data, dim=self.dim, origin=self.origin)

    def prepared(self, sets: Sets) -> Sets:
        """As they are embedded and compared."""
        return self.preprocess.apply(sets)

    def pack(self) -> bytes:
        arrays: list[NDArray[Any]] = []
        parts = {name: getattr(self, name) for name in ("dim", "embedding", "search", "origin")}
        tree = {name: portable.dump(part, arrays, name) for name, part in parts.items()}
        header = {"recipe": tree, "preprocess": self.preprocess.to_dict()}
        return files.pack(header, {str(i): array for i, array in enumerate(arrays)})

    @classmethod
    def unpack(cls, content: bytes, name: str) -> Recipe:
        """What `pack` packed; ValueError for anything else."""
        header, named = files.unpack(content, f"what is fixed in {name}")
        try:
            arrays = [named[str(i)] for i in range(len(named))]
            parts = {key: portable.load(tree, arrays) for key, tree in header["recipe"].items()}
            made = cls(**parts, preprocess=Preprocess.from_dict(header["preprocess"]))
            made._check()
            return made
        except Exception as error:  # whatever it is that others have put together
            raise ValueError(f"{name} is damaged, or was not made by slosh: {error!r:.200}") from None

    def _check(self) -> None:
        """Refuses what could not have been fitted; tried with a small set, so that no later one meets it."""
        if not isinstance(self.embedding, SetTransformer) or not isinstance(self.search, Search):
            raise ValueError("no embedding, or no search")
        if type(self.dim) is not int or not 0 < self.dim <= LARGEST or self.embedding.n_features_in_ != self.dim:
            raise ValueError(f"dim={self.dim!r:.40}")
        if self.origin is not None and (self.origin.shape != (self.dim,) or self.origin.dtype != np.float64):
            raise ValueError("origin is of another dimension")
        if not _same_origin(self.embedding.origin_, self.origin):
            raise ValueError("origins differ")
        if getattr(self.search, "path", None) is not None:
            raise ValueError("the search has a path")
        n_outputs = self.embedding.vector_length
        if type(n_outputs) is not int or not 0 < n_outputs <= LARGEST:
            raise ValueError(f"vectors of {n_outputs!r:.40} numbers")
        if isinstance(self.embedding, SlicedWasserstein):
            self._check_slicer(self.embedding)
        if isinstance(self.search, HammingSearch):
            length = n_outputs + SetSearch(self.embedding, n_jobs=1)._bounded
            if getattr(self.search.hash, "n_features_in_", None) != length:
                raise ValueError("a hash of vectors of another length")
        for part in (self.embedding, self.search):
            if kernel.threads(getattr(part, "n_jobs", None)) > MOST_THREADS:
                raise ValueError(f"n_jobs={part.n_jobs!r:.40}")
        one = Sets.from_checked(np.eye(3, self.dim, dtype=np.float32), np.array([0, 1, 3]), None, self.origin)
        with np.errstate(all="ignore"):
            vectors = self.embedding.embed(self.prepared(one))
        if vectors.shape != (2, n_outputs) or not np.isfinite(vectors).all():
            raise ValueError("its vectors are no numbers")
        self.search._check_params()
        repr(self.embedding), repr(self.search)

    def _check_slicer(self, embedding: SlicedWasserstein) -> None:
        slicer = embedding.slicer_
        if isinstance(slicer, Polynomial):
            fresh(slicer).fit(self.dim, 1, 0)  # refuses what has too many terms
        n_slices, found = embedding.reference_.shape[0], slicer.directions_
        if embedding.n_slices_ != n_slices or slicer.n_slices_ != n_slices:
            raise ValueError("another number of slices")
        if found is not None and (found.shape != (n_slices, self.dim) or found.dtype != np.float32):
            raise ValueError("slices of another dimension")
        embedding.slices_ = slicer if found is None else found  # stored twice, and meant once

    def described(self) -> dict[str, Any]:
        origin = None if self.origin is None else self.origin.tolist()
        return {
            "dim": self.dim,
            "embedding": repr(self.embedding),
            "vector_length": int(self.embedding.vector_length),
            "search": repr(self.search),
            "preprocess": repr(self.preprocess),
            "origin": origin,
        }


def make_recipe(
    dim: int, embedding: Any, search: Any, preprocess: Preprocess, origin: Any, sample: Any, n_jobs: int | None
) -> Recipe:
    """Checks, and fits what is to be fitted: on `sample`, or without data where none is needed."""
    check_parts(embedding, search)
    chosen: SetTransformer = SlicedWasserstein(n_jobs=n_jobs) if embedding is None else embedding
    finder: Search = LadderSearch(n_jobs=n_jobs) if search is None else search
    if getattr(finder, "path", None) is not None:
        raise ValueError("search has a path of its own: leave it out, an index keeps the vectors on disk in any case")
    fitted = hasattr(chosen, "n_features_in_")
    if fitted and chosen.n_features_in_ != dim:
        raise ValueError(f"embedding was fitted on sets of dimension {chosen.n_features_in_}, and dim={dim}")
    if isinstance(origin, str) and origin == "auto" and sample is None:
        raise _needs_sample('origin="auto" is the median of the data')
    sets = None if sample is None else as_sets(sample, dim=dim, origin=origin)
    if sets is not None and not len(sets):
        raise ValueError("sample is empty: give some of the sets, or leave it out")
    shift = None if origin is None else checked_origin(origin, dim) if sets is None else sets.origin
    if fitted and not _same_origin(chosen.origin_, shift):
        raise ValueError(f"embedding was fitted with origin={chosen.origin_!r:.60}: give the same origin to the index")
    if preprocess.needs_sample:
        if sets is None:
            raise _needs_sample("standardize=True learns mean and deviation from data")
        preprocess = preprocess.fit(sets)
    ready = None if sets is None else preprocess.apply(sets)
    if not fitted:
        reference = getattr(chosen, "reference", None)
        if ready is None and isinstance(reference, str) and reference in FROM_DATA:
            raise _needs_sample(f"reference={reference!r} is learnt from data")
        blank = Sets.from_checked(np.zeros((1, dim), np.float32), np.array([0, 1]), None, shift)
        chosen = fresh(chosen).fit(blank if ready is None else ready)
    if isinstance(finder, HammingSearch):
        finder = _with_hash(finder, chosen, ready)
    made = Recipe(dim, chosen, fresh(finder), preprocess, shift)
    made.search._check_params()
    made.pack()  # says what cannot be stored
    return made


def fresh(estimator: Any) -> Any:
    """Another of the same parameters; unlike scikit-learn's clone it leaves a fitted hash fitted."""
    return type(estimator)(**estimator.get_params(deep=False))


def _with_hash(search: HammingSearch, embedding: SetTransformer, sample: Sets | None) -> HammingSearch:
    """With a hash that is fitted now, so that codes never depend on what was added first."""
    given = SignHash() if search.hash is None else search.hash
    if not hasattr(given, "n_features_in_"):
        if sample is None and given.center is not None:
            raise _needs_sample(f"SignHash(center={given.center!r}) learns it from data")
        sets = Sets.from_list([np.zeros((1, embedding.n_features_in_))]) if sample is None else sample
        vectors, _ = SetSearch(embedding)._embed(sets.with_origin(embedding.origin_))
        given = fresh(given).fit(vectors)
    return HammingSearch(given, rerank=search.rerank, n_jobs=search.n_jobs)


def _same_origin(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.array_equal(a, b))


def _needs_sample(why: str) -> ValueError:
    return ValueError(f"{why}: pass some of your sets as sample=, a few hundred or thousand; they are not added")
