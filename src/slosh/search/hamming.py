"""Search by sign codes: every stored code is compared with the query's, and the nearest may be re-ranked by vector.

A code is 128 bytes at 1024 bits, where a vector of 1024 numbers is 4096. Without re-ranking nothing else is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import copy
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import clone

from ..errors import InputError, UnsupportedError
from ..hash.codes import as_words
from ..hash.sign import SignHash
from ..native import scan
from ..native.arrays import Array, Float32, Float64, Int64, Mask
from .base import Search, needed_recall
from .calibration import CalibratedState, Calibration, Setting, Trial, first_that_holds
from .codes import Codes, Words
from .columns import Column, Specs, positions_up_to
from .exact import scan_nearest, scan_within
from .saving import json_params
from .state import Found, FoundWithin, Pairs, Request, Stored, Trained, leave_out
from .store import Batch, FloatVectors, Vectors

RERANKED_PAIRS = 1 << 20
"""Vectors re-ranked in one go, for all queries together."""
EXACT_SHARE = 4
"""Where one of so many rows would have to be re-ranked, all of them are compared."""
ROUNDED_BITS = 16
"""One bit in so many may differ between the codes of vectors that two devices have made."""


class HammingState(CalibratedState):
    """Codes, and vectors besides if hits are to be re-ranked.

    hash : the fitted hash; None before the first vectors.
    fitted_on : how many vectors it was fitted on here; 0 if it came fitted.
    """

    search: HammingSearch

    def __init__(self, search: HammingSearch, stored: Stored) -> None:
        super().__init__(search, stored, (FloatVectors if search.rerank else Vectors).start(stored))
        self.hash, self.fitted_on = search.fitted_hash(self.dim), 0
        if stored.trained is not None:
            header, arrays = stored.trained
            self.hash, self.fitted_on = SignHash(**header["hash"]), int(header["fitted_on"])
            self.hash.set_state(dict(arrays), self.dim)
        if self.hash is None and self.n:
            raise ValueError("its hash is missing")
        self._codes = Codes(search.n_bits if self.hash is None else fitted_bits(self.hash))
        column = stored.columns("codes", (self._codes.code_bytes,), np.uint8)
        self._codes = self._codes.extend(column.view(self.n))
        # In memory the codes lie side by side, as the scan reads them, and nowhere else.
        self._kept: Column | None = None if column.n_bytes(1) else column

    # Changes

    def extend(self, vectors: Float32) -> HammingState:
        hash_, fitted_on = self.hash, self.fitted_on
        if hash_ is None:
            hash_, fitted_on = clone(self.search.given_hash).fit(vectors), len(vectors)
        packed = hash_.transform(vectors)
        if self._kept is not None:
            self._kept.write(self.n, packed)
        store = self._store.extend(vectors)
        return self._grown(store, hash=hash_, fitted_on=fitted_on, _codes=self._codes.extend(packed))

    def adopt(self, n: int) -> HammingState:
        assert self._kept is not None  # in memory nobody else writes
        return self._grown(self._store.adopt(n), _codes=self._codes.extend(self._kept.view(n)[self.n :]))

    # Searches

    def _nearest(self, asked: Request) -> Found:
        recall, promise = asked.recall, None
        if recall is None and not isinstance(self._store, FloatVectors):
            found = self._nearest_codes(self._words(asked.queries), asked, asked.k)
            return Found(*found, asked.counts(0), asked.counts(), None, None)
        store = self._need_vectors("recall" if recall is None else f"recall={recall:g}")
        depth = int(self.search.rerank)
        if recall is not None:
            plan = None if self.is_exact(asked.k, asked.n_allowed, recall) else self.plan(asked.k, recall)
            depth = 0 if plan is None else self._depth_now(plan)
            promise = None if plan is None or asked.allowed is not None else plan.promise(asked.k)
        depth = max(depth, asked.k) if depth else asked.n_allowed
        if depth >= asked.n_allowed:
            return scan_nearest(store, asked)
        found = store.nearest(asked, asked.k, self._to_rerank(asked, depth))
        return Found(*found, asked.counts(depth), asked.counts(), promise, None)

    def _depth_now(self, plan: Calibration) -> int:
        """Return the depth of a plan for the rows of now: as many more codes come before that of a neighbour."""
        return math.ceil(plan.depth * max(1.0, self.n_alive / plan.n_rows))

    def _to_rerank(self, asked: Request, depth: int) -> Iterator[Batch]:
        """Yield the `depth` nearest by code."""
        for part, few in _parts(asked, depth):
            _, found = self._nearest_codes(self._words(few.queries), few, depth)
            there = found >= 0
            yield Batch(part, np.concatenate([[0], np.cumsum(there.sum(axis=1))]), found[there])

    def _within(self, asked: Request, radii: Float64) -> FoundWithin:
        recall = asked.recall
        if recall is None and not isinstance(self._store, FloatVectors):
            limits = np.minimum(radii, self._codes.n_words * 64).astype(np.int64)
            words, groups = self._words(asked.queries), self._codes.groups
            found = scan.codes_within(words, groups, self.n, asked.mask, asked.ranks, limits, asked.n_jobs)
            return FoundWithin(*found, asked.counts(0), asked.counts(), None)
        store = self._need_vectors(f"recall={recall:g}" if recall is not None else "range_search")
        return scan_within(store, asked, radii)

    def _within_largest(self, asked: Request, radii: Float64) -> FoundWithin:
        self._need_vectors("the largest difference")
        return super()._within_largest(asked, radii)

    def _words(self, queries: Float32) -> Words:
        assert self.hash is not None
        return as_words(self.hash.transform(queries))

    def _nearest_codes(self, words: Words, asked: Request, k: int) -> Pairs:
        """Return the k nearest by code; `words` are the codes of the queries."""
        n_asked = k if asked.exclude is None else min(k + 1, asked.n_allowed)
        ranks = None if asked.in_order else asked.ranks
        groups = self._codes.groups
        distances, positions = scan.nearest_codes(words, groups, self.n, asked.mask, ranks, n_asked, asked.n_jobs)
        if asked.exclude is not None:
            distances, positions = leave_out(distances, positions, asked.exclude)
        return distances[:, :k], positions[:, :k]

    def _need_vectors(self, what: str) -> FloatVectors:
        if not isinstance(self._store, FloatVectors):
            problem = f"{what}: only codes are kept, which tell no Euclidean distance and cannot give vectors back"
            remedy = "make the search with rerank=100, say, to keep the vectors besides"
            raise UnsupportedError(problem, remedy, feature_name=what)
        return self._store

    # How deep to re-rank

    def target(self, recall: float | None) -> float | None:
        return recall

    def is_exact(self, k: int, n_allowed: int, recall: float) -> bool:
        return recall == 1.0 or n_allowed < 2 or not isinstance(self._store, FloatVectors)

    def calibrate(self, k: int, recall: float | None = None, queries: Float32 | None = None) -> HammingState:
        self._need_vectors("calibrate" if recall is None else f"recall={recall:g}")
        return super().calibrate(k, recall, queries)

    def _trial(self, queries: Float32, own: Int64 | None, k: int) -> HammingTrial:
        asked = self._request(queries, k, exclude=own)
        truth, words = scan_nearest(self._need_vectors("calibrate"), asked).positions, self._words(queries)
        return HammingTrial(lambda deep: self._order_of(words, asked, truth, deep), len(queries), self.n_alive - 1)

    def _order_of(self, words: Words, asked: Request, neighbours: Int64, deep: int) -> Int64:
        """Return how many codes come before that of each neighbour (n, k), the query's own left out; `deep` at most."""
        order_of = np.full(neighbours.shape, deep, np.int64)
        for part, few in _parts(asked, deep):
            _, found = self._nearest_codes(words[part], few, deep)
            for i, others in enumerate(found, start=part.start):
                order = np.argsort(others)
                at = order[np.minimum(np.searchsorted(others[order], neighbours[i]), len(others) - 1)]
                order_of[i] = np.where(others[at] == neighbours[i], at, deep)
        return order_of

    # What is stored and learnt

    def vectors(self, positions: Int64) -> Float32:
        return self._need_vectors("vectors").take(positions)

    def holds(self, positions: Int64, vectors: Float32, apart: Float64 | None = None) -> Mask:
        assert self.hash is not None
        codes, held = self._codes.take(positions), super().holds(positions, vectors, apart)
        if apart is None or isinstance(self._store, FloatVectors):
            stored = vectors if apart is None else self._store.take(positions)
            return np.asarray((codes == self.hash.transform(stored)).all(axis=1) & held)
        different = np.unpackbits(codes ^ self.hash.transform(vectors), axis=1).sum(axis=1)
        return np.asarray((different <= codes.shape[1] * 8 // ROUNDED_BITS) & held)

    def columns(self) -> dict[str, Array]:
        return {"codes": self._codes.take(positions_up_to(self.n)), **super().columns()}

    def n_bytes(self) -> dict[str, int]:
        return {"codes": self._codes.n_bytes, **super().n_bytes()}

    def info(self) -> dict[str, Any]:
        return {
            "hash": None if self.hash is None else json_params(self.hash),
            "fitted_on": self.fitted_on or None,
            "rerank": int(self.search.rerank),
            "calibrations": [each.as_dict() for each in self.calibrations],
        }

    def trained(self) -> Trained | None:
        if self.hash is None:
            return None
        about = {"hash": json_params(self.hash), "fitted_on": self.fitted_on}
        return Trained({**about, "calibrations": self._as_dicts()}, self.hash.get_state())

    @property
    def trained_version(self) -> object:
        return self.hash, self._calibrations


class HammingTrial(Trial):
    """`order_of(deep)` is how many codes come before that of each neighbour (n, K), `deep` at most; n_others in all."""

    def __init__(self, order_of: Callable[[int], Int64], n_queries: int, n_others: int) -> None:
        super().__init__(n_queries)
        self._order_of, self._deep, self._deepest = order_of, 0, n_others // EXACT_SHARE
        self._order = np.empty((n_queries, 0), np.int64)

    def choose(self, k: int, recall: float, enough: Callable[[Mask], bool], tried: Setting) -> Setting | None:
        deep = min(self._deepest, max(64, 8 * k, self._deep))
        while k <= deep:
            if self._deep < deep:
                self._deep, self._order = deep, self._order_of(deep)
            order = self._order[self.choosing, :k]
            depths = [each for each in np.unique(np.geomspace(k, deep, 64).astype(np.int64)) if each > tried.depth]
            at = first_that_holds(len(depths), lambda i, o=order, d=depths: enough(o < d[i]))  # type: ignore[misc]
            if at < len(depths):
                return Setting(0.0, int(depths[at]), float(depths[at]))
            if deep == self._deepest:
                break
            deep = min(self._deepest, 4 * deep)
        return None

    def found(self, setting: Setting, k: int, recall: float) -> Mask:
        return np.asarray(self._order[self.measuring, :k] < setting.depth)


class HammingSearch(Search):
    """Keeps sign codes of the vectors and scans all of their Hamming distances: the paper's experiments.

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

    hash_class = SignHash

    def __init__(self, hash: SignHash | None = None, *, rerank: int = 0, n_jobs: int | None = -1) -> None:
        self.hash = hash
        self.rerank = rerank
        self.n_jobs = n_jobs

    def check_params(self) -> None:
        super().check_params()
        if not isinstance(self.rerank, Integral) or isinstance(self.rerank, bool) or self.rerank < 0:
            problem = f"rerank={self.rerank!r} must be a whole number"
            raise InputError(problem, "0, or how many to re-rank", argument="rerank")

    @property
    def hash_(self) -> SignHash | None:
        """The fitted hash; None before the first vector."""
        return self.state.hash if isinstance(self.state, HammingState) else None

    @property
    def given_hash(self) -> SignHash:
        """The hash of the parameters, fitted or not."""
        return SignHash() if self.hash is None else self.hash

    @property
    def n_bits(self) -> int:
        """Bits of a code."""
        given = self.given_hash
        return fitted_bits(given) if is_fitted(given) else int(given.n_bits)

    def fitted_hash(self, dim: int) -> SignHash | None:
        """Return a copy of the hash of the parameters if it is fitted, None if not; refuse one of another length."""
        given = self.given_hash
        if not is_fitted(given):
            return None
        if given.n_features_in_ != dim:
            problem = f"hash was fitted on vectors of {given.n_features_in_} numbers, and these have {dim}"
            raise InputError(problem, "fit it on such vectors, or give one that is not fitted", argument="hash")
        copied: SignHash = copy(given).set_params(n_bits=fitted_bits(given))  # whatever becomes of the user's
        return copied

    @property
    def distance_kind(self) -> str:
        """ "hamming" (bits) where only codes are kept, "embedded" (Euclidean) where vectors are."""
        return "embedded" if self.rerank else "hamming"

    def column_names(self, dim: int) -> Specs:
        codes: Specs = {"codes": ((-(-self.n_bits // 8),), np.uint8)}
        return {**codes, **FloatVectors.column_names(dim)} if self.rerank else codes

    def first_state(self, stored: Stored) -> HammingState:
        return HammingState(self, stored)

    def calibrate(self, k: int = 10, recall: float = 0.95) -> Calibration:
        """Measure how many codes must be re-ranked to find this fraction of the k nearest vectors, and keep it.

        See `LadderSearch.calibrate`; the queries are stored vectors.
        """
        return self._calibrate(k, needed_recall(recall))

    def saved_params(self) -> dict[str, Any]:
        params = {**super().saved_params(), "hash_fitted": self.hash is not None and is_fitted(self.hash)}
        return params if self.hash is None else {**params, "hash": {**params["hash"], "n_bits": self.n_bits}}

    @classmethod
    def from_saved_params(cls, params: dict[str, Any]) -> HammingSearch:
        return super().from_saved_params({name: value for name, value in params.items() if name != "hash_fitted"})

    def _unpack(self, header: dict[str, Any], arrays: dict[str, Array], in_place: bool = True) -> None:
        super()._unpack(header, arrays, in_place)
        if header["params"]["hash_fitted"] and self.hash_ is not None:
            self.hash = copy(self.hash_)


def is_fitted(hash_: SignHash) -> bool:
    """Return whether a hash is fitted."""
    return hasattr(hash_, "n_features_in_")


def fitted_bits(hash_: SignHash) -> int:
    """Return the bits that a hash was fitted with, whatever its parameter is now."""
    drawn = hash_.get_state()
    return len(drawn["picked"] if "picked" in drawn else drawn["directions"])


def _parts(asked: Request, depth: int) -> Iterator[tuple[slice, Request]]:
    """Yield the queries in turns of bounded memory, if `depth` positions are found for each."""
    step = max(1, RERANKED_PAIRS // depth)
    for first in range(0, len(asked), step):
        part = slice(first, first + step)
        yield part, asked.part(part)
