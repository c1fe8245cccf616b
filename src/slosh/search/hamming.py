"""Search by sign codes: every stored code is compared with the query's, and the nearest may be re-ranked by vector.

A code is 128 bytes at 1024 bits, where a vector of 1024 numbers is 4096. Without re-ranking nothing else is kept.
"""

from __future__ import annotations

from copy import copy
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import clone

from ..data.checks import Array, checked_count
from ..hash.codes import as_words
from ..hash.sign import SignHash
from ..native import scan
from . import flat
from .base import Float32, Float64, Learnt, Search, Work, checked_recall
from .calibration import lower_bound
from .codes import CodeStore, Words
from .rows import Int64, Mask
from .store import FloatStore, Grown
from .tables import true_neighbours

PAIRS = 1 << 20
"""Vectors re-ranked in one go, for all queries together."""
SHARE = 4
"""Where one of so many rows would have to be re-ranked, all of them are compared."""


@dataclass(frozen=True)
class DepthCalibration:
    """How many codes must be re-ranked to find a part of the k nearest, as measured on the collection.

    k, recall : what was asked for.
    depth : codes to re-rank; 0: no number is enough, or so many are that the search is exact.
    measured : the mean recall over `n_queries` stored vectors, none of them its own neighbour.
    promised : its one-sided 95% lower confidence bound; at least `recall`.
    n_rows : size of the collection then.
    """

    k: int
    recall: float
    depth: int
    measured: float
    promised: float
    n_queries: int
    n_rows: int


class HammingSearch(Search):
    """Sign codes of the vectors, and an exact scan of their Hamming distances; the paper's experiments.

    The distance of a hit is the number of bits in which its code differs from the query's (`distance_kind` "hamming"):
    an estimate of the angle between the vectors, seen from the centre. With `rerank` it is the Euclidean distance of
    the vectors ("embedded"), which are then kept besides. Hits at the same distance come in the order of their rows.

    Parameters
    ----------
    hash : a SignHash; None is SignHash(), of 1024 bits. A copy of it is fitted on the vectors of the first `add`, and
        never again; one that is fitted already is taken as it is.
    rerank : 0, or how many of the nearest codes (k at least) are ranked by their vectors.
    n_jobs : threads, over the queries, or over the rows where these are few. The result does not depend on it.

    `recall=1.0` compares the vectors with the query, all of them; another recall re-ranks as many codes as it takes,
    measured on the collection (`calibrate`). Both need the vectors, so `rerank`. With `allowed` the number is that of
    the whole collection, and there is no promise.

    Examples
    --------
    >>> import numpy as np
    >>> from slosh.search import HammingSearch
    >>> vectors = np.random.default_rng(0).normal(size=(1000, 64))
    >>> search = HammingSearch()
    >>> rows = search.add(vectors)
    >>> result = search.search(vectors[:1], k=3)
    >>> result.rows, result.distances, result.distance_kind
    (array([[  0, 466, 919]]), array([[  0., 387., 401.]]), 'hamming')

    References
    ----------
    The SLOSH paper, section 4.4. Charikar: Similarity Estimation Techniques from Rounding Algorithms (2002).
    """

    _hash: SignHash | None
    _codes: CodeStore
    _store: FloatStore | None
    _kept: Grown | None  # codes as an index keeps them
    _fitted_on: int
    _calibrations: dict[tuple[int, float], DepthCalibration]

    def __init__(self, hash: SignHash | None = None, *, rerank: int = 0, n_jobs: int | None = -1) -> None:
        self.hash = hash
        self.rerank = rerank
        self.n_jobs = n_jobs

    @property
    def hash_(self) -> SignHash | None:
        """The fitted hash; None before the first vector."""
        return self._hash if self._started else None

    def calibrate(self, k: int = 10, recall: float = 0.95) -> DepthCalibration:
        """Measures how many codes must be re-ranked to find this part of the k nearest vectors, and keeps it.

        400 of the stored vectors are the queries, none of them its own neighbour. The least depth is taken from which
        on the lower confidence bound of the mean recall is at least `recall`. A search does this by itself when it is
        first asked for a recall, and again when the number of rows has doubled or halved.
        """
        checked_count("k", k)
        target = checked_recall(recall)
        if target is None:
            raise ValueError("recall=None: give a number up to 1.0")
        if len(self) < 2:
            raise ValueError("calibrate needs two rows or more: add vectors first")
        self._need_vectors(f"recall={target:g}")
        with self._lock:
            known = self._calibrations.get((k, target))
            if known is None or not known.n_rows / 2 < len(self) < known.n_rows * 2:
                known = self._calibrations[k, target] = self._measure(k, target)
        return known

    def info(self) -> dict[str, Any]:
        about = super().info()
        if self._started:
            about["hash"] = None if self._hash is None else described(self._hash)
            about["fitted_on"] = self._fitted_on or None
            about["rerank"] = int(self.rerank)
            about["calibrations"] = [asdict(c) for _, c in sorted(dict(self._calibrations).items())]
        return about

    # The protocol

    @property
    def _distance_kind(self) -> str:
        return "hamming" if self._store is None else "embedded"

    def _distances(self, squares: Float64) -> Float64:
        return squares if self._store is None else np.sqrt(squares)

    def _check_params(self) -> None:
        super()._check_params()
        if self.hash is not None:
            if not isinstance(self.hash, SignHash):
                raise ValueError(f"hash must be a SignHash or None, not a {type(self.hash).__name__}")
            self.hash.check_params()
        if not isinstance(self.rerank, Integral) or isinstance(self.rerank, bool) or self.rerank < 0:
            raise ValueError(f"rerank={self.rerank!r} must be a whole number: 0, or how many to re-rank")

    def _start(self, vectors: Array) -> None:
        given = SignHash() if self.hash is None else self.hash
        self._hash, self._fitted_on = None, 0
        if is_fitted(given):
            if given.n_features_in_ != self._dim:
                raise ValueError(
                    f"hash was fitted on vectors of {given.n_features_in_} numbers, and these have {self._dim}: "
                    "fit it on such vectors, or give one that is not fitted"
                )
            self._hash = copy(given).set_params(n_bits=given._rotation.n_bits)  # whatever becomes of the user's
        self._codes = CodeStore(int(given.n_bits if self._hash is None else self._hash.n_bits))
        self._kept = None if self._room is None else self._room("codes", (self._codes.n_bytes_of_code,), np.uint8)
        self._store = FloatStore(self._dim, room=self._room) if self.rerank else None
        self._calibrations = {}

    def _add(self, vectors: Array) -> None:
        if self._hash is None:
            fitted = clone(SignHash() if self.hash is None else self.hash).fit(vectors)
            codes = fitted.transform(vectors)
        else:
            fitted, codes = self._hash, self._hash.transform(vectors)
        self._codes.write(codes, self._rows.n_positions)
        if self._kept is not None:
            self._kept.extend(codes)
        if self._store is not None:
            self._store.append(vectors)
        if self._hash is None:
            self._hash, self._fitted_on = fitted, len(vectors)

    def _cut(self, n: int) -> None:
        self._codes.cut(n)
        if self._kept is not None:
            self._kept.cut(n)
        if self._store is not None:
            self._store.cut(n)

    def _close_up(self, kept: Int64) -> None:
        self._codes.keep(kept)
        if self._store is not None:
            self._store.keep(kept)

    def _vectors(self, positions: Int64) -> Float32:
        return self._need_vectors("vectors").take(positions)

    def _bytes(self) -> dict[str, int]:
        return {"codes": self._codes.n_bytes, "vectors": 0 if self._store is None else self._store.n_bytes}

    def _search(
        self, queries: Float32, k: int, mask: Mask | None, n_allowed: int, recall: float | None
    ) -> tuple[Float64, Int64, Work]:
        if recall is None and self._store is None:
            distances, positions = self._nearest(self._words(queries), k, mask)
            none = np.zeros(len(queries), np.int64)
            return distances, positions, Work(none, none + n_allowed, None)
        store = self._need_vectors("recall" if recall is None else f"recall={recall:g}")
        plan = None
        if recall is not None and recall < 1 and n_allowed > 1:
            plan = self.calibrate(k, recall)
        depth = max(k, int(self.rerank)) if recall is None else plan.depth if plan is not None else 0
        if depth == 0 or (recall is not None and depth >= n_allowed):
            squares, positions = flat.nearest(store, self._rows.row, queries, k, mask, self.n_jobs)
            n = np.full(len(queries), n_allowed)
            return squares, positions, Work(n, np.zeros_like(n), 1.0)
        return self._rerank(store, queries, k, min(max(depth, k), n_allowed), mask, n_allowed, plan)

    def _rerank(
        self,
        store: FloatStore,
        queries: Float32,
        k: int,
        depth: int,
        mask: Mask | None,
        n_allowed: int,
        plan: DepthCalibration | None,
    ) -> tuple[Float64, Int64, Work]:
        """The nearest by vector of the `depth` nearest by code."""
        squares, positions = np.empty((len(queries), k)), np.empty((len(queries), k), np.int64)
        step = max(1, PAIRS // depth)
        for first in range(0, len(queries), step):
            part = slice(first, first + step)
            _, found = self._nearest(self._words(queries[part]), depth, mask)
            offsets = np.arange(len(found) + 1) * depth
            exact = scan.squares(queries[part], store.array, None, offsets, found.ravel(), self.n_jobs)
            squares[part], positions[part] = scan.best(exact, found.ravel(), offsets, self._rows.row, k)
        promised = None if plan is None or n_allowed < len(self) else plan.promised
        n = np.full(len(queries), n_allowed)
        return squares, positions, Work(np.full(len(queries), depth), n, 1.0 if depth == n_allowed else promised)

    def _range_search(
        self, queries: Float32, radii: Float64, mask: Mask | None, n_allowed: int, recall: float | None
    ) -> tuple[Int64, Float64, Int64, Work]:
        n = np.full(len(queries), n_allowed)
        if self._store is None and recall is None:
            limits = np.minimum(radii, self._codes.n_words * 64).astype(np.int64)
            found = scan.codes_within(
                self._words(queries),
                self._codes.groups,
                self._rows.n_positions,
                mask,
                self._rows.row,
                limits,
                self.n_jobs,
            )
            return *found, Work(np.zeros_like(n), n, None)
        store = self._need_vectors(f"recall={recall:g}" if recall is not None else "range_search")
        found = flat.within(store, self._rows.row, queries, radii, mask, self.n_jobs)
        return *found, Work(n, np.zeros_like(n), 1.0)

    def _words(self, queries: Float32) -> Words:
        assert self._hash is not None
        return as_words(self._hash.transform(queries))

    def _nearest(self, words: Words, k: int, mask: Mask | None) -> tuple[Float64, Int64]:
        rows = None if self._rows.ascending else self._rows.row
        return scan.nearest_codes(words, self._codes.groups, self._rows.n_positions, mask, rows, k, self.n_jobs)

    def _need_vectors(self, what: str) -> FloatStore:
        if self._store is None:
            raise ValueError(
                f"{what}: only codes are kept, which tell no Euclidean distance and cannot give vectors back; make the "
                "search with rerank=100, say, to keep the vectors besides"
            )
        return self._store

    # How deep to re-rank

    def _measure(self, k: int, target: float) -> DepthCalibration:
        store = self._need_vectors("calibrate")
        n = len(self)
        truth = true_neighbours(store, self._rows, min(k, n - 1), 0, self.n_jobs)
        sample, k_there = truth.sample, truth.neighbours.shape[1]
        exact = DepthCalibration(k, target, 0, 1.0, 1.0, len(sample), n)
        most = (n - 1) // SHARE
        if target == 1.0 or k_there > most or lower_bound(np.ones(len(sample))) < target:
            return exact
        words, mask = as_words(self._codes.take(sample)), None if self._rows.n_positions == n else self._rows.alive
        deep = min(most, max(64, 8 * k_there))
        while True:
            ranks = self._ranks(words, sample, truth.neighbours, deep, mask)
            depths = np.unique(np.geomspace(k_there, deep, 64).astype(np.int64))
            recalls = [np.mean(ranks < depth, axis=1) for depth in depths]
            bounds = np.array([lower_bound(each) for each in recalls])
            # From the deepest down to the first that fails: then the bound holds although several were tried.
            failed = np.flatnonzero(bounds < target)
            at = int(failed[-1]) + 1 if len(failed) else 0
            if at < len(depths):
                mean = float(recalls[at].mean())
                return DepthCalibration(k, target, int(depths[at]), mean, float(bounds[at]), len(sample), n)
            if deep == most:
                return exact
            deep = min(most, 4 * deep)

    def _ranks(self, words: Words, sample: Int64, neighbours: Int64, deep: int, mask: Mask | None) -> Int64:
        """How many codes come before that of each neighbour (n, k), the query's own left out; `deep` if so many do."""
        ranks = np.full(neighbours.shape, deep, np.int64)
        step = max(1, PAIRS // deep)
        for first in range(0, len(sample), step):
            _, found = self._nearest(words[first : first + step], deep + 1, mask)
            for i, near in enumerate(found, start=first):
                others = near[near != sample[i]][:deep]
                order = np.argsort(others)
                at = order[np.minimum(np.searchsorted(others[order], neighbours[i]), len(others) - 1)]
                ranks[i] = np.where(others[at] == neighbours[i], at, deep)
        return ranks

    # Files

    def _learnt(self) -> Learnt:
        return {"calibrations": [asdict(c) for c in list(self._calibrations.values())]}, {}

    def _relearn(self, header: dict[str, Any], arrays: dict[str, Array]) -> None:
        self._know(header.get("calibrations", []))

    def _know(self, calibrations: list[dict[str, Any]]) -> None:
        known = [DepthCalibration(**c) for c in calibrations]
        self._calibrations = {(c.k, c.recall): c for c in known}

    def _attached(self, first: int = 0, derived: Learnt | None = None) -> None:
        if self._kept is not None and self._kept.used > first:
            self._codes.write(self._kept.array[first:], first)

    def _exact(self, k: int, n_allowed: int, recall: float | None) -> bool:
        return recall == 1.0 and self._store is not None

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        header: dict[str, Any] = {
            "params": {"rerank": int(self.rerank)},
            "given": None if self.hash is None else described(self.hash),
            "given_fitted": self.hash is not None and is_fitted(self.hash) and not self._fitted_on,
            "hash": None if self._hash is None else described(self._hash),
            "fitted_on": self._fitted_on,
            "calibrations": [asdict(c) for c in list(self._calibrations.values())],
        }
        arrays: dict[str, Array] = {"codes": self._codes.take(np.arange(self._rows.n_positions))}
        if self._hash is not None:
            arrays |= {f"hash_{name}": array for name, array in self._hash.get_state().items()}
        if self._store is not None:
            arrays["vectors"] = self._store.array
        return header, arrays

    @classmethod
    def _from_header(cls, header: dict[str, Any]) -> HammingSearch:
        given = header["given"]
        return cls(None if given is None else SignHash(**given), **header["params"])

    def _restore(self, header: dict[str, Any], arrays: dict[str, Array]) -> None:
        self._start(np.empty((0, self._dim)))
        n = self._rows.n_positions
        if header["hash"] is not None:
            self._hash = SignHash(**header["hash"])
            learnt = {name.removeprefix("hash_"): array for name, array in arrays.items() if name.startswith("hash_")}
            self._hash.set_state(learnt, self._dim)
            if header["given_fitted"]:
                self.hash = copy(self._hash)
        elif n:
            raise ValueError("its hash is missing")
        n_bits = int((self._hash or self.hash or SignHash()).n_bits)
        self._codes = CodeStore.from_array(arrays["codes"], n, n_bits)
        if self.rerank:
            self._store = FloatStore.from_array(arrays["vectors"], n, self._dim)
        self._fitted_on = int(header["fitted_on"])
        self._know(header["calibrations"])


def is_fitted(hash_: SignHash) -> bool:
    return hasattr(hash_, "n_features_in_")


def described(hash_: SignHash) -> dict[str, Any]:
    """The parameters, for JSON; what was drawn and learnt is saved besides."""
    seed = hash_.random_state
    return {
        "n_bits": int(hash_.n_bits),
        "center": hash_.center,
        "rotation": hash_.rotation,
        "random_state": int(seed) if isinstance(seed, Integral) else None,
    }
