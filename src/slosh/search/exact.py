"""The float scan: every allowed vector is compared with every query. The twin that all other searches are measured by.

A block of rows and a block of queries go through one matrix product; what its rounding leaves open is computed again,
from the differences, in float64. Other searches scan, too, where they are asked for `recall=1.0`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..checkpoints import checkpoint, locked
from ..gpu.devices import CPU, checked_device
from ..native.arrays import Float32, Float64, Int64, Mask
from .base import Search
from .columns import Specs, positions_up_to
from .state import Found, FoundWithin, Request, State, Stored, exact_answer
from .store import Batch, FloatVectors

if TYPE_CHECKING:
    from ..gpu.scan import DeviceRows, Pairs

TILE_ROWS, TILE_QUERIES = 4096, 256
EPS = float(np.finfo(np.float32).eps)


class ExactState(State):
    """Float32 vectors, all of which are compared. On a GPU candidates are found there, and compared here."""

    _store: FloatVectors
    _on_device: tuple[str, DeviceRows] | None = None
    """A device, and the vectors there. The next state begins with those that it shares with this one."""

    def __init__(self, search: Search, stored: Stored, store: FloatVectors) -> None:
        super().__init__(search, stored, store)
        self._lock = threading.Lock()

    def _nearest(self, asked: Request) -> Found:
        rows = self._device_rows()
        if rows is None:
            found = scan_nearest(self._store, asked)
        else:

            def find(k: int) -> Any:
                batches = rows.nearest(np.ascontiguousarray(asked.queries), k, asked.mask)
                return self._store.nearest(asked, k, _compared(batches))

            found = exact_answer(find, asked)
        return found._replace(scanned=asked.counts(self.n))

    def _within(self, asked: Request, radii: Float64) -> FoundWithin:
        rows = self._device_rows()
        if rows is None:
            return replace(scan_within(self._store, asked, radii), scanned=asked.counts(self.n))
        batches = rows.within(np.ascontiguousarray(asked.queries), radii, asked.mask)
        found = self._store.within(asked, radii, _compared(batches))
        return FoundWithin(*found, asked.counts(), asked.counts(self.n), 1.0)

    def _device_rows(self) -> DeviceRows | None:
        """Return the vectors on the device of the search, where they are sent if they are not there; None: the CPU."""
        device = checked_device(getattr(self.search, "device", None))
        if device == CPU:
            self._on_device = None
            return None
        with locked(self._lock):
            known = self._on_device
            if known is None or known[0] != device or known[1].n < self.n:
                self._on_device = known = device, device_rows(self._store.array, device, known)
        return known[1]

    def _own(self) -> dict[str, Any]:
        return {"_lock": threading.Lock()}

    def n_bytes(self) -> dict[str, int]:
        known = self._on_device
        return super().n_bytes() | ({} if known is None else {f"on {known[0]}": known[1].n_bytes})


def device_rows(array: Float32, device: str, known: tuple[str, DeviceRows] | None) -> DeviceRows:
    """Return vectors on a device, of which some may be there."""
    from ..gpu.scan import DeviceRows

    if known is not None and known[0] == device:
        return known[1].extended(array)
    return DeviceRows(array, device)


def _compared(batches: Iterator[tuple[slice, Pairs]]) -> Iterator[Batch]:
    for part, (query, positions) in batches:
        yield Batch(part, np.searchsorted(query, np.arange(part.stop - part.start + 1)), positions)


class ExactSearch(Search):
    """Compares each query with every stored vector: exact, and as slow as the number of rows times their length.

    Rows at the same distance come in the order of their numbers; distances are computed in float64 from the float32
    vectors, so that they are the same whatever was added before or after.

    Parameters
    ----------
    n_jobs : threads for the distances that are computed again; the matrix product has NumPy's own threads.
    device : None or "cpu", or a GPU, "cuda" or "cuda:1", where candidates are found then: the answers are the same. As
        many vectors as it has memory for stay there, the others are sent for each search: many queries at once are
        what it is for (docs/gpu.md). It is not saved.

    Examples
    --------
    >>> import numpy as np
    >>> from slosh.search import ExactSearch
    >>> search = ExactSearch()
    >>> search.add(np.eye(4))
    array([0, 1, 2, 3])
    >>> distances, rows = search.search(np.eye(4)[:1], k=3)
    >>> distances.round(3), rows
    (array([[0.   , 1.414, 1.414]]), array([[0, 1, 2]]))
    """

    run_time: ClassVar[frozenset[str]] = frozenset({"device"})
    device: str | None = None

    def __init__(self, *, n_jobs: int | None = -1, device: str | None = None) -> None:
        self.n_jobs = n_jobs
        self.device = device

    def check_params(self) -> None:
        super().check_params()
        checked_device(self.device)

    def column_names(self, dim: int) -> Specs:
        return FloatVectors.column_names(dim)

    def first_state(self, stored: Stored) -> ExactState:
        return ExactState(self, stored, FloatVectors.start(stored))


def scan_nearest(store: FloatVectors, asked: Request) -> Found:
    """Return the nearest of all allowed vectors."""

    def find(k: int) -> Any:
        return store.nearest(asked, k, (_nearby(store, asked, part, k) for part in _query_tiles(asked)))

    return exact_answer(find, asked)


def scan_within(store: FloatVectors, asked: Request, radii: Float64) -> FoundWithin:
    """Return all allowed vectors within the radii."""

    def near(part: slice) -> Batch:
        limits = np.square(radii[part]) * (1 + 1e-12)
        tiles = [tile.near(limits)[:2] for tile in _tiles(store, asked.queries[part], asked.mask)]
        q, found = (np.concatenate(each) for each in zip(*tiles, strict=True))
        return _by_query(part, len(limits), q, found)

    found = store.within(asked, radii, map(near, _query_tiles(asked)))
    return FoundWithin(*found, asked.counts(), asked.counts(0), 1.0)


def _query_tiles(asked: Request) -> Iterator[slice]:
    return (slice(first, first + TILE_QUERIES) for first in range(0, len(asked), TILE_QUERIES))


def _by_query(part: slice, n: int, q: Int64, positions: Int64) -> Batch:
    """Return pairs of a query (of n) and a position, sorted by query."""
    order = np.argsort(q, kind="stable")
    return Batch(part, np.searchsorted(q[order], np.arange(n + 1)), positions[order])


def _nearby(store: FloatVectors, asked: Request, part: slice, k: int) -> Batch:
    """Return the positions that may be among the k nearest of each query."""
    queries = asked.queries[part]
    n = len(queries)
    limit = np.full(n, np.inf)  # the k-th smallest upper bound so far
    kept_q, kept_p = np.empty(0, np.int64), np.empty(0, np.int64)
    kept_low, kept_high = np.empty(0), np.empty(0)
    for tile in _tiles(store, queries, asked.mask):
        if np.isinf(limit).all() and len(tile.where) > k:  # the first tile: cut it to what can be
            limit = tile.kth(k)
        q, p, low, high = tile.near(limit)
        kept_q, kept_p = np.concatenate([kept_q, q]), np.concatenate([kept_p, p])
        kept_low, kept_high = np.concatenate([kept_low, low]), np.concatenate([kept_high, high])
        limit = np.minimum(limit, kth_smallest(kept_q, kept_high, n, k))
        stay = kept_low <= limit[kept_q]
        kept_q, kept_p, kept_low, kept_high = kept_q[stay], kept_p[stay], kept_low[stay], kept_high[stay]
    return _by_query(part, n, kept_q, kept_p)


@dataclass
class _Tile:
    """Scores |x - m|^2 - 2 <q - m, x> of a block of queries and rows, m being the middle of the rows; with `base`, a
    number for each query, they are squared distances, up to rounding.
    """

    where: Int64
    centred: Float32
    block: Float32
    base: Float64
    lengths: Float64
    sizes: Float64
    norms: Float64

    def __post_init__(self) -> None:
        # A product of D terms is off by at most D eps |q - m| |x|; the sums, and q - m, round by eps of what they hold.
        self.reach, self.unit = np.sqrt(self.lengths), (self.block.shape[1] + 16) * EPS
        largest = max(self.lengths.max(), np.square(self.norms).max(), np.abs(self.base).max())
        dtype = np.float32 if largest < 1e30 else np.float64
        self.score: NDArray[Any] = self.centred.astype(dtype, copy=False) @ self.block.T.astype(dtype, copy=False)
        self.score *= -2
        self.score += self.sizes.astype(dtype)

    def _slack(self, lengths: Float64, reach: Float64, sizes: Any, norms: Any) -> Float64:
        return np.asarray(self.unit * (lengths + sizes + 2 * reach * norms) + 1e-30)

    def _most_slack(self) -> Float64:
        return self._slack(self.lengths, self.reach, self.sizes.max(), self.norms.max())

    def kth(self, k: int) -> Float64:
        """Of each query, an upper bound on the k-th smallest squared distance."""
        score = np.partition(self.score, k - 1, axis=1)[:, k - 1].astype(np.float64)
        return np.asarray(score + self.base + self._most_slack())

    def near(self, limit: Float64) -> tuple[Int64, Int64, Float64, Float64]:
        """Which queries and positions may be within the squared distance `limit`; bounds on their squared distances."""
        with np.errstate(over="ignore"):
            most = (limit - self.base + self._most_slack()).astype(self.score.dtype)
        most = np.nextafter(most, most.dtype.type(np.inf))
        q, column = np.nonzero(self.score <= most[:, None])
        square = self.score[q, column] + self.base[q]
        slack = self._slack(self.lengths[q], self.reach[q], self.sizes[column], self.norms[column])
        return q, self.where[column], square - slack, square + slack


def _tiles(store: FloatVectors, queries: Float32, mask: Mask | None) -> Iterator[_Tile]:
    """Block after block of the allowed rows."""
    positions = positions_up_to(store.n) if mask is None else np.flatnonzero(mask)
    # The product with a query about the middle of the rows is small where distances are: little is rounded off. Rows
    # are moved there too only if they are far from zero: it takes longer than the product with few queries.
    middle, sizes, norms = store.about_middle()
    centred = queries - middle
    lengths = np.einsum("ij,ij->i", centred, centred, dtype=np.float64)
    far = norms.max() > 8 * np.sqrt(sizes.max())
    base = lengths if far else lengths + 2 * (centred.astype(np.float64) @ middle)
    for first in range(0, len(positions), TILE_ROWS):
        checkpoint()
        where = positions[first : first + TILE_ROWS]
        part: Any = slice(first, first + len(where)) if mask is None else where
        block, around = store.array[part], sizes[part]
        if far:
            block = block - middle
        yield _Tile(where, centred, block, base, lengths, around, np.sqrt(around) if far else norms[part])


def kth_smallest(group: Int64, values: Float64, n: int, k: int) -> Float64:
    """Of each of n groups the k-th smallest value, inf where there are fewer."""
    order = np.lexsort((values, group))
    starts = np.searchsorted(group[order], np.arange(n + 1))
    at = starts[:-1] + k - 1
    there = at < starts[1:]
    out = np.full(n, np.inf)
    out[there] = values[order][at[there]]
    return out
