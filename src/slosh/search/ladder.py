"""The default search: short prefixes of the vectors first, the vectors of the best of them last.

Every step of the ladder is an orthogonal projection of the next, so a distance at one step is never larger than at the
next. Stopped early the search is approximate, with a recall that was measured; taken until no lower bound is below the
k-th distance found it is exact.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np

from ..data.checks import Array, checked_count, random_stream
from ..errors import PrecisionWarning, user_level
from ..native import kernel, scan
from . import basis as bases
from .base import Float32, Float64, Learnt, Search, Work, checked_recall
from .basis import ROUNDING, Basis
from .calibration import Calibration, found_part, lower_bound
from .choices import cost, default_lists, least, prefix_length, steps, table_of
from .lists import Lists, centroids
from .rows import Int64, Mask
from .store import FloatStore, ShortStore, check_free

LEAST = 1024
"""With fewer rows there is nothing to learn a basis from, and no need of one: every search is exact."""
SAMPLE, MOST = 4096, 16384
"""The basis is learnt from four vectors for each of their numbers, but no fewer and no more than this."""
LONGEST = 128
"""Directions of a prefix, at most."""
GROWTH = 8
"""Basis and lists are learnt anew, at the next search, when the collection has grown by this factor."""
FILTER = 0.9
"""A filter that leaves a smaller part of the rows is answered exactly."""
FEW = 2048
"""So many allowed rows, or fewer, are compared one by one."""
COARSE = 0.005
"""Rounding that moves a vector by more than this part of the distance to its neighbours is worth a warning."""
COVERED = 64
"""Up to this k, fewer neighbours are measured along."""
QUERIES = 500
"""Stored vectors that a calibration asks for."""
REACHES = tuple(round(0.1 * i, 1) for i in range(-20, 31))
"""Of these a calibration takes one: spreads that a list is thought to extend beyond its centroid."""


class LadderSearch(Search):
    r"""Nearest vectors by prefixes in an orthonormal basis, inverted lists, and 16-bit vectors; approximate or exact.

    A prefix is the vector's coordinates along the main directions of a sample, and the norm of the rest. Prefixes lie
    in lists around centroids. A search scans the lists nearest to the query until the next is too far off to hold a
    nearer prefix, compares the vectors of the best prefixes, and stops where no lower bound is left below the k-th
    distance. How far a list is thought to extend, and how many are the best, is measured on the collection
    (`calibrate`). With ``recall=1.0`` every list is looked at that a bound does not exclude.

    Rows are added and removed without a rebuild. Basis and lists are learnt at the first search of 1024 rows or more,
    and again when the collection has grown by a factor of 8; if what is added differs from what they were learnt from,
    `info()["retrain"]` says so, and `train()` learns them anew. A wrong basis costs time, never correctness.

    Distances are those of the vectors rounded to 16 bits, queries too: whole numbers with a scale for each vector, the
    largest number being 32767, so about five digits. ``precision=32`` keeps float32; then ``recall=1.0`` gives the rows
    and the distances that `ExactSearch` gives.

    Parameters
    ----------
    recall : what is promised if a search does not say; 1.0 is exact.
    n_components : directions of the basis; None chooses by the data.
    n_lists : inverted lists; None chooses by the number of rows, 1 is a plain scan of the prefixes.
    precision : 16 or 32, bits of a stored number.
    path : a new file for the vectors, which are then read from disk as they are needed; None keeps them in memory. It
        is no saved search: `save` writes one, with the vectors, and `load(saved, path=...)` puts them on disk again. A
        copy of the search (pickle, deepcopy) has them in memory.
    random_state : seed of the samples.
    n_jobs : threads, over the queries. The result does not depend on it.

    Examples
    --------
    >>> import numpy as np
    >>> from slosh.search import LadderSearch
    >>> vectors = np.random.default_rng(0).normal(size=(5000, 64)) * 0.9 ** np.arange(64)
    >>> search = LadderSearch()
    >>> rows = search.add(vectors)
    >>> search.search(vectors[:2], k=3, recall=1.0).rows[:, 0]
    array([0, 1])
    """

    _store: FloatStore | ShortStore
    _basis: Basis
    _lists: Lists
    _trained: int
    _reach: float
    _calibrations: dict[tuple[int, float], Calibration]
    _drift: dict[str, float]
    _filing: bool
    _last: int  # the highest row at training
    _looked = False  # whether 16 bits are enough, of a collection that is too small to learn from

    def __init__(
        self,
        *,
        recall: float = 0.99,
        n_components: int | None = None,
        n_lists: int | None = None,
        precision: int = 16,
        path: str | os.PathLike[str] | None = None,
        random_state: Any = 0,
        n_jobs: int | None = -1,
    ) -> None:
        self.recall = recall
        self.n_components = n_components
        self.n_lists = n_lists
        self.precision = precision
        self.path = path
        self.random_state = random_state
        self.n_jobs = n_jobs

    def _check_params(self) -> None:
        super()._check_params()
        if self.recall is None:
            raise ValueError("recall=None: give a number up to 1.0")
        checked_recall(self.recall)
        for name in ("n_components", "n_lists"):
            if getattr(self, name) is not None:
                checked_count(name, getattr(self, name))
        if self.n_components is not None and self.n_components > LONGEST:
            raise ValueError(f"n_components={self.n_components}: at most {LONGEST}")
        if self.precision not in (16, 32):
            raise ValueError(f"precision={self.precision!r} must be 16 or 32, the bits of a stored number")

    def _start(self, vectors: Array) -> None:
        check_free(self.path)
        self._store = (ShortStore if self.precision == 16 else FloatStore)(self._dim, self.path, self._room)
        self._forget()

    def _forget(self) -> None:
        """No basis: a prefix is the vector's norm, and all rows are in one list."""
        self._basis = Basis(np.zeros(self._dim), np.empty((0, self._dim)))
        self._lists = Lists(np.zeros((1, 1), np.float32))
        self._trained, self._reach, self._calibrations, self._filing, self._last = 0, 0.0, {}, False, -1
        self._drift = {"rest": 0.0, "rest_since": 0.0, "rows_since": 0.0, "crowding": 1.0}

    def _add(self, vectors: Array) -> None:
        self._store.append(vectors)

    def _added(self) -> None:
        if self._trained:  # before that, the next search learns from all that is there
            self._file()

    def _cut(self, n: int) -> None:
        self._store.cut(n)
        if self._filing or self._lists._place.used > n:
            self._forget()

    def _file(self) -> None:
        """Puts the vectors that are not there yet into the lists."""
        first, self._filing = self._lists._place.used, True
        reach, rest = self._put(self._lists, self._basis, first)
        self._reach = max(self._reach, reach)
        self._drift["rest_since"] += rest
        self._drift["rows_since"] += self._rows.n_positions - first
        self._filing = False

    def _put(self, lists: Lists, basis: Basis, first: int, last: int | None = None) -> tuple[float, float]:
        """Files the vectors from position `first` on; their largest norm about the middle, and the rests, squared."""
        step, reach, rest = max(1, (1 << 22) // self._dim), 0.0, 0.0
        last = self._rows.n_positions if last is None else last
        for start in range(first, last, step):
            prefixes, norms = self._prefixes(slice(start, min(start + step, last)), basis)
            lists.append(prefixes)
            reach = max(reach, float(norms.max()))
            rest += float(np.square(prefixes[:, -1], dtype=np.float64).sum())
        lists.remove(np.flatnonzero(~self._rows.alive[first:last]) + first)
        return reach, rest

    def _prefixes(self, at: Any, basis: Basis) -> tuple[Float32, Float64]:
        """Of the vectors as they are stored."""
        scale = self._store.scale
        return basis.prefixes(self._store.array[at], None if scale is None else scale[at], self.n_jobs)

    def _removed(self, positions: Int64) -> None:
        filed = positions[positions < self._lists._place.used]
        self._lists.remove(filed)

    def _close_up(self, kept: Int64) -> None:
        basis, centres, trained, known = self._basis, self._lists.centres, self._trained, self._calibrations
        rest = self._drift["rest"]
        self._forget()
        self._store.keep(kept)
        if trained:
            self._learn(basis, centres, trained, rest)
            self._calibrations = known

    def train(self) -> None:
        """Learns basis and lists from the rows that are there, and forgets the calibrations. Done by itself once."""
        if not self._started or len(self) < 2:
            raise ValueError("train needs two rows or more: add vectors first")
        with self._lock:
            random = random_stream(self.random_state)
            alive = np.flatnonzero(self._rows.alive)
            size = min(max(SAMPLE, 4 * self._dim), MOST)
            at = alive if len(alive) <= size else np.sort(random.choice(alive, size, replace=False))
            sample = self._store.take(at)
            basis = bases.fit(sample, LONGEST if self.n_components is None else self.n_components, random)
            if self.n_components is None:
                prefixes, _ = basis.prefixes(sample, None, self.n_jobs)
                basis = basis.cut(prefix_length(prefixes, sample))
            n_lists = min(default_lists(len(alive)) if self.n_lists is None else self.n_lists, len(alive))
            if len(at) < min(len(alive), 64 * n_lists):
                at = np.sort(random.choice(alive, min(len(alive), 64 * n_lists), replace=False))
            step = max(1, (1 << 22) // self._dim)
            parts = [self._prefixes(at[i : i + step], basis)[0] for i in range(0, len(at), step)]
            prefixes = np.concatenate(parts)
            rest = float(np.square(prefixes[:, -1], dtype=np.float64).mean())
            self._learn(basis, centroids(prefixes, n_lists, random), len(alive), rest)
            self._warn_if_coarse(sample)

    def _learn(self, basis: Basis, centres: Float32, trained: int, rest: float) -> None:
        """Takes another basis and other lists, all rows filed in them, at once: an interrupt before changes nothing."""
        lists = Lists(centres)
        reach, _ = self._put(lists, basis, 0)
        lists.settle()
        learnt = {
            "_basis": basis,
            "_lists": lists,
            "_reach": reach,
            "_trained": trained,
            "_calibrations": {},
            "_filing": False,
            "_last": self._rows.highest,
            "_drift": {"rest": rest, "rest_since": 0.0, "rows_since": 0.0, "crowding": lists.crowding},
        }
        self.__dict__.update(learnt)

    def _warn_if_coarse(self, sample: Float32) -> None:
        """Says so if 16 bits are too few for these vectors: far from zero, and near to each other."""
        errors, few = self._store.errors, sample[:512]
        if errors is None or len(few) < 20:
            return
        near = float(np.median(np.sqrt(np.maximum(np.partition(table_of(few, len(few)), 9, axis=1)[:, 9], 0.0))))
        near = max(
            near, 2e-2 * float(np.linalg.norm(few.std(axis=0, dtype=np.float64)))
        )  # below that they are as good as copies
        moved = float(np.median(errors))
        if near > 1e-6 * float(np.abs(few).max()) and moved > COARSE * near:  # or all are equal
            warnings.warn(
                f"16 bits move a vector by {moved / near:.1%} of the distance to its neighbours, and near ones change "
                'places: subtract the mean from all vectors (from coordinates of sets by origin="auto"), or take '
                "LadderSearch(precision=32)",
                PrecisionWarning,
                stacklevel=user_level(),
            )

    def _prepare(self) -> None:
        """Learns what is to be learnt before a search."""
        with self._lock:
            if self._filing:  # interrupted
                self._forget()
            n = len(self)
            if n >= LEAST and n >= GROWTH * self._trained:
                self.train()
            elif self._lists._place.used < self._rows.n_positions:
                self._file()
            if not self._trained and not self._looked and n >= 20:
                self._looked = True
                self._warn_if_coarse(self._store.take(np.flatnonzero(self._rows.alive)[:512]))

    def calibrate(self, k: int = 10, recall: float | None = None, queries: Any = None) -> Calibration:
        """Measures what it takes to find this part of the k nearest, and keeps it.

        The least work is taken for which the lower confidence bound of the mean recall reaches `recall`. A search does
        this by itself when it is first asked for a recall, and again when the number of rows has doubled or halved.

        Parameters
        ----------
        k, recall : as for `search`.
        queries : vectors like those that will be asked for, hundreds of them; None takes 500 of the stored vectors (or
            more, for a recall above 0.992), none of them its own neighbour.
        """
        checked_count("k", k)
        target = checked_recall(recall) or self.recall
        if not self._started or len(self) < 2:
            raise ValueError("calibrate needs two rows or more: add vectors first")
        asked = None if queries is None else self._store.like(self._queries(queries))[0]
        if asked is not None and len(asked) < 30:
            raise ValueError(f"queries: {len(asked)} are too few to measure a recall with, give 30 or more")
        self._prepare()
        with self._lock:
            known = self._calibrations.get((k, target))
            if known is None or asked is not None or not known.holds(len(self)):
                known = self._calibrations[k, target] = self._measure(k, target, asked)
        return known

    def _measure(self, k: int, target: float, queries: Float32 | None) -> Calibration:
        n = len(self)
        k_there = min(k, n - 1)
        skip = None
        if queries is None:
            alive = np.flatnonzero(self._rows.alive)
            random = random_stream(self.random_state)
            size = min(n, int(np.clip(4 / max(1 - target, 1e-3), QUERIES, 8 * QUERIES)))  # fewer cannot prove as much
            skip = np.sort(random.choice(alive, size, replace=False))
            queries = self._store.take(skip)
        prefixes = self._basis.prefixes(queries, None, self.n_jobs)

        def run(reach: float, depth: int, exact: bool = False) -> tuple[Int64, float]:
            _, found, work = self._climb(queries, k_there, None, reach, depth, exact, skip, prefixes)
            seen, compared = float(work.scanned.mean()), float(work.candidates.mean())
            return found, cost(seen + len(self._lists.radii), self._basis.width, compared, depth, self._dim)

        truth, most = run(0.0, 4 * k_there, exact=True)
        exact = Calibration(k, target, 0.0, 0, 1.0, 1.0, len(queries), n, 1)
        if target == 1.0 or lower_bound(np.ones(len(queries))) < target:
            return exact

        def reached(reach: float, depth: int) -> tuple[float, float, float]:
            found, price = run(reach, depth)
            recalls = found_part(found, truth)
            return lower_bound(recalls), float(recalls.mean()), price

        best, best_price = exact, most
        deep = max(64, 16 * k_there)
        first = least(len(REACHES), lambda i: reached(REACHES[i], deep)[0] >= target)
        depths = steps(k_there, deep)
        for reach in REACHES[first : first + 10 : 2]:  # more lists, fewer vectors
            j = least(len(depths), lambda i, r=reach: reached(r, depths[i])[0] >= target)  # type: ignore[misc]
            if j == len(depths):
                continue
            bound, mean, price = reached(reach, depths[j])
            if price < best_price:
                best, best_price = Calibration(k, target, reach, depths[j], mean, bound, len(queries), n), price
        if best.depth == 0 or k_there > COVERED:
            return best
        found, smallest = run(best.reach, best.depth)[0], k_there
        while smallest > 1 and lower_bound(found_part(found[:, : smallest - 1], truth[:, : smallest - 1])) >= target:
            smallest -= 1
        return replace(best, smallest=min(k, smallest))

    def _search(
        self, queries: Float32, k: int, mask: Mask | None, n_allowed: int, recall: float | None
    ) -> tuple[Float64, Int64, Work]:
        self._prepare()
        queries, _ = self._store.like(queries)
        if n_allowed <= FEW and mask is not None:
            return self._compare_all(queries, k, mask)
        target = self.recall if recall is None else recall
        plan = None if not self._trained or self._exact(k, n_allowed, target) else self._plan(k, n_allowed, target)
        if plan is None or plan.depth == 0:
            squares, positions, work = self._climb(queries, k, mask, 0.0, 4 * k, True)
        else:
            squares, positions, work = self._climb(queries, plan.k, mask, plan.reach, plan.depth, False)
            squares, positions = squares[:, :k], positions[:, :k]
            work.recall = plan.promised if plan.k == k else plan.recall
        short = np.flatnonzero(positions[:, -1] < 0)
        if len(short):  # too few lists were looked at, or float32 overflowed
            everything = self._rows.alive if mask is None else mask
            squares[short], positions[short], more = self._compare_all(queries[short], k, everything)
            work.candidates[short] += more.candidates
        return squares, positions, work

    def _plan(self, k: int, n_allowed: int, target: float) -> Calibration:
        """What was measured for this k, or for more with less of them covered; measured now if nothing was."""
        known = [c for c in list(self._calibrations.values()) if c.covers(k, target, len(self)) and c.k <= n_allowed]
        return min(known, key=lambda c: c.k) if known else self.calibrate(k, target)

    def _exact(self, k: int, n_allowed: int, recall: float | None) -> bool:
        small = len(self) < LEAST or 32 * k >= n_allowed
        # The rows that a filter leaves may lie anywhere: what was measured without it says nothing about them.
        filtered = n_allowed < FILTER * len(self)
        return (self.recall if recall is None else recall) == 1.0 or small or filtered

    def _compare_all(self, queries: Float32, k: int, mask: Mask) -> tuple[Float64, Int64, Work]:
        """Every allowed row with every query, in turns of bounded memory."""
        allowed = np.flatnonzero(mask)
        squares, positions = np.empty((len(queries), k)), np.empty((len(queries), k), np.int64)
        step = max(1, (1 << 20) // len(allowed))
        for first in range(0, len(queries), step):
            part = queries[first : first + step]
            offsets = np.arange(len(part) + 1) * len(allowed)
            pairs = np.tile(allowed, len(part))
            found = scan.squares(part, self._store.array, self._store.scale, offsets, pairs, self.n_jobs)
            rows = slice(first, first + len(part))
            squares[rows], positions[rows] = scan.best(found, pairs, offsets, self._rows.row, k)
        n = np.full(len(queries), len(allowed))
        return squares, positions, Work(n, np.zeros_like(n), 1.0)

    def _climb(
        self,
        queries: Float32,
        k: int,
        mask: Mask | None,
        reach: float,
        depth: int,
        exact: bool,
        skip: Int64 | None = None,
        prefixes: tuple[Float32, Float64] | None = None,
    ) -> tuple[Float64, Int64, Work]:
        job = self._ladder(queries, mask, reach, skip, prefixes)
        squares, positions, *work = scan.ladder(job, k, depth, exact, kernel.threads(self.n_jobs))
        return squares, positions, Work(work[1], work[0], 1.0 if exact else None)

    def _ladder(
        self, queries: Float32, mask: Mask | None, reach: float, skip: Int64 | None = None, prefixes: Any = None
    ) -> scan.Ladder:
        prefix, norms = self._basis.prefixes(queries, None, self.n_jobs) if prefixes is None else prefixes
        lists = self._lists
        return scan.Ladder(
            queries=queries,
            prefixes=prefix,
            slack=ROUNDING * (norms + self._reach),
            skip=skip,
            vectors=self._store.array,
            scale=self._store.scale,
            rows=self._rows.row,
            blocks=lists.blocks,
            slots=lists.slots,
            masks=lists.masks if mask is None or len(self) == np.count_nonzero(mask) else lists.allowed(mask),
            centroids=lists.centroids,
            radii=lists.radii,
            margins=lists.margins(reach),
            list_start=lists.start,
            list_blocks=lists.order,
        )

    def _range_search(
        self, queries: Float32, radii: Float64, mask: Mask | None, n_allowed: int, recall: float | None
    ) -> tuple[Int64, Float64, Int64, Work]:
        self._prepare()
        queries, _ = self._store.like(queries)
        offsets, squares, positions, *work = scan.ladder_within(
            self._ladder(queries, mask, 0.0), radii, kernel.threads(self.n_jobs)
        )
        found = scan.within(squares, positions, offsets, self._rows.row, radii)
        return *found, Work(work[1], work[0], 1.0)

    def _moved(self, positions: Int64) -> Float64:
        errors = self._store.errors
        return np.zeros(len(positions)) if errors is None else errors[positions].astype(np.float64)

    def _moves(self, queries: Float32) -> Float64:
        return self._store.like(queries)[1]

    def _vectors(self, positions: Int64) -> Float32:
        return self._store.take(positions)

    def _bytes(self) -> dict[str, int]:
        rows = self._rows.row.nbytes + self._rows.alive.nbytes
        basis = self._basis.directions.nbytes * 4
        return {"vectors": self._store.n_bytes, "prefixes": self._lists.n_bytes, "rows": rows, "basis": basis}

    def info(self) -> dict[str, Any]:
        """As of every search; also the basis, the lists, what was calibrated, and whether to train again (and why)."""
        about = super().info()
        if self._started:
            about |= {
                "trained_on": self._trained,
                "n_components": len(self._basis.directions),
                "n_lists": len(self._lists.radii),
                "calibrations": [c.as_dict() for c in list(self._calibrations.values())],
                "retrain": self._due(),
            }
        return about

    def _due(self) -> str | None:
        """Why basis and lists should be learnt anew, or None."""
        if not self._trained:
            return None
        drift, n = self._drift, len(self)
        since = drift["rows_since"]
        if n > 4 * self._trained:
            return f"{n} rows, learnt from {self._trained}: the lists have become long; call train()"
        if n < self._trained / 4:
            return f"{n} rows, learnt from {self._trained}: there are more lists than are needed; call train()"
        if since >= 100 and drift["rest_since"] / since > 2 * drift["rest"] + 1e-6 * self._reach**2:
            ratio = drift["rest_since"] / since / max(drift["rest"], 1e-300)
            return f"the basis leaves out {ratio:.3g} times as much of the {since:.0f} rows added since: call train()"
        if np.any(outside := self._lists.stretched):
            return f"rows were added outside of {outside.sum()} of the {len(outside)} lists: call train()"
        if self._lists.crowding > 2 * drift["crowding"] + 1:
            times = self._lists.crowding / drift["crowding"]
            return f"rows crowd in few lists, {times:.3g} times as much as at first: call train()"
        return None

    def _learnt(self) -> Learnt:
        if not self._trained:
            return {}, {}
        header = {
            "trained": self._trained,
            "rest": self._drift["rest"],
            "crowding": self._drift["crowding"],
            "last": self._last,
            "calibrations": [c.as_dict() for c in list(self._calibrations.values())],
        }
        lists: dict[str, Array] = {
            "centres": self._lists.centres,
            "radii": self._lists.first_radii,
            "spreads": self._lists.spreads,
        }
        return header, {"middle": self._basis.middle, "directions": self._basis.directions, **lists}

    def _relearn(self, header: dict[str, Any], arrays: dict[str, Array]) -> None:
        if not header:
            return
        self._basis = self._checked_basis(arrays)
        self._lists = Lists(np.ascontiguousarray(arrays["centres"], np.float32))
        n_lists, width = self._lists.centres.shape
        if width != self._basis.width or arrays["radii"].shape != (n_lists,) or arrays["spreads"].shape != (n_lists,):
            raise ValueError("its basis and its lists do not fit together")
        self._lists.first_radii = np.ascontiguousarray(arrays["radii"], np.float32)
        self._lists.spreads = np.ascontiguousarray(arrays["spreads"], np.float64)
        self._trained, self._last = int(header["trained"]), int(header["last"])
        rest, crowding = float(header["rest"]), float(header["crowding"])
        self._drift = {"rest": rest, "rest_since": 0.0, "rows_since": 0.0, "crowding": crowding}
        self._know(header["calibrations"])

    def _know(self, calibrations: list[dict[str, Any]]) -> None:
        known = [Calibration.of(c) for c in calibrations]
        self._calibrations = {(c.k, c.recall): c for c in known}

    def _checked_basis(self, arrays: dict[str, Array]) -> Basis:
        middle, directions = arrays["middle"], arrays["directions"]
        if middle.shape != (self._dim,) or directions.shape[1:] != (self._dim,):
            raise ValueError(f"its basis has the shapes {middle.shape} and {directions.shape}")
        return Basis(middle, directions)

    def _ready(self) -> None:
        self._prepare()

    def _derived(self) -> Learnt | None:
        if not self._trained or self._filing:
            return None
        return {"reach": self._reach, "drift": self._drift}, self._lists.state()

    def _attached(self, first: int = 0, derived: Learnt | None = None) -> None:
        if self._trained and (first or (derived is not None and self._take(*derived))):
            self._file()
        elif self._trained:
            # Rows that were there at training say nothing about how the collection has changed since.
            old = int(np.searchsorted(self._rows.row, self._last, side="right"))
            self._reach = max(self._reach, self._put(self._lists, self._basis, 0, old)[0])
            self._file()

    def _take(self, header: dict[str, Any], arrays: dict[str, Array]) -> bool:
        """Takes over lists that hold the first of the rows; whether they are those of this basis."""
        try:
            n = len(arrays["lists_place"])
            lists = Lists.from_state(arrays, n, self._basis.width)
            mine = n <= self._rows.n_positions and np.array_equal(lists.centres, self._lists.centres)
            if not mine or not np.array_equal(lists.spreads, self._lists.spreads):
                return False
            reach, drift = float(header["reach"]), {name: float(header["drift"][name]) for name in self._drift}
        except (KeyError, TypeError, ValueError):
            return False
        lists.remove(np.flatnonzero(~self._rows.alive[:n]))
        self._lists, self._reach, self._drift = lists, reach, drift
        return True

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        params = {name: getattr(self, name) for name in ("recall", "n_components", "n_lists", "precision")}
        params["random_state"] = int(self.random_state) if isinstance(self.random_state, Integral) else None
        params["precision"] = 32 if isinstance(self._store, FloatStore) else 16
        with self._lock:
            self._prepare()
        header = {
            "params": params,
            "trained": self._trained,
            "reach": self._reach,
            "drift": self._drift,
            "calibrations": [c.as_dict() for c in list(self._calibrations.values())],
        }
        basis = {"middle": self._basis.middle, "directions": self._basis.directions}
        return header, {**self._store.state(), **basis, **self._lists.state()}

    def _restore(self, header: dict[str, Any], arrays: dict[str, Array]) -> None:
        n = self._rows.n_positions
        if self.precision == 16:
            self._store = ShortStore.from_state(arrays, n, self._dim, self.path)
        else:
            self._store = FloatStore.from_array(arrays["vectors"], n, self._dim, self.path)
        self._basis = self._checked_basis(arrays)
        self._last = self._rows.highest
        self._lists = Lists.from_state(arrays, n, self._basis.width)
        self._trained, self._reach, self._filing = int(header["trained"]), float(header["reach"]), False
        self._drift = {name: float(header["drift"][name]) for name in ("rest", "rest_since", "rows_since", "crowding")}
        self._know(header["calibrations"])
