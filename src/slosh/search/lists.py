"""Prefixes in blocks of sixteen, and the blocks in lists around centroids: what the ladder scans first.

A block holds the numbers of its sixteen rows side by side, number after number, so that a scan needs no sums across
lanes. Rows are appended to the last block of their list; a removal clears a bit of the block's mask.

Rows that come after training may lie outside of all lists. In the nearest list they would stretch it, and a list that
reaches far is scanned for nearly every query. So such a row founds a list of its own, which those after it join if its
centroid is the nearest. That follows from the order of the rows alone: whoever files them finds the same lists.

`Lists` is immutable, like states. All lists of a history share the columns of blocks: an append writes into new blocks,
and into lanes of old ones that the masks of earlier lists hide. Masks, radii and counts are copied, which is little.
The kernel reads a lane that is masked out (it computes sixteen distances at once) and never uses what it read.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from ..native.arrays import Array, Float32, Float64, Int32, Int64, Mask
from .columns import Column, Specs, check_arrays

BLOCK_ROWS = 16
FAR = np.float32(1e18)
"""Where there is no row: nothing is ever that near."""
SUMMARIES = ("radii", "squares", "counts", "since")
"""Arrays of one number for each list."""
AT_TRAINING = ("first_radii", "spreads")
"""Arrays of one number for each list that training made."""
SCORES = 1 << 18
"""Pairs of a prefix and a centroid that are compared in one go: few enough to stay in the cache."""
OUTSIDE = 1.2
"""A row is outside of a list if it is so many times as far from the centroid as any was at training."""
FOUNDED_LISTS = 4
"""At most so many lists are founded for each that training made."""


def in_blocks(rows: Float32) -> Float32:
    """Return (n, width) as (n / 16 rounded up, width, 16), the rest far away."""
    full = np.full((-(-len(rows) // BLOCK_ROWS) * BLOCK_ROWS, rows.shape[1]), FAR, np.float32)
    full[: len(rows)] = rows
    return np.ascontiguousarray(full.reshape(-1, BLOCK_ROWS, rows.shape[1]).transpose(0, 2, 1))


def centroids(prefixes: Float32, n_lists: int, random: np.random.RandomState) -> Float32:
    """Return `n_lists` centres of a sample of prefixes."""
    if n_lists == 1:
        return np.asarray(prefixes.mean(axis=0, keepdims=True, dtype=np.float64), np.float32)
    first = prefixes[random.choice(len(prefixes), n_lists, replace=False)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct prefixes than lists: some stay empty
        model = KMeans(n_lists, init=first, n_init=1, max_iter=8, tol=1e-3, algorithm="lloyd").fit(prefixes)
    return np.ascontiguousarray(model.cluster_centers_, np.float32)


class Lists:
    """Prefixes of the positions 0 to n - 1, in lists around `centres` (n_lists, width).

    Those of training come first, then those that were founded since.

    radii : (n_lists,) float32, no prefix is farther from its centroid; first_radii are those at training.
    spreads : (n_trained,) root mean square distance to the centroid, at training.
    squares : (n_lists,) squared distances to the centroid, summed.
    counts : (n_lists,) rows ever put into each list.
    since : (n_lists,) the position that founded each list, 0 of those of training.
    masks : (n_blocks,) uint16, bit l: lane l may be found.
    order, start : the blocks of list after list, and where each list begins among them.
    """

    def __init__(self, centres: Float32) -> None:
        """Empty lists, with columns of their own."""
        self.centres, self.centroids, self._sizes = centres, in_blocks(centres), _sizes(centres)
        n_lists, width = centres.shape
        self.n = 0
        self.radii: Float32 = np.zeros(n_lists, np.float32)
        self.first_radii: Float32 = self.radii
        self.spreads: Float64 = np.zeros(n_lists)
        self.squares: Float64 = np.zeros(n_lists)
        self.counts: Int64 = np.zeros(n_lists, np.int64)
        self.since: Int64 = np.zeros(n_lists, np.int64)
        self._limits: Float32 = np.full(n_lists, np.inf, np.float32)  # who is farther founds a list
        self.masks: NDArray[np.uint16] = np.empty(0, np.uint16)
        self.order: Int64 = np.empty(0, np.int64)
        self.start: Int64 = np.zeros(n_lists + 1, np.int64)
        self._blocks, self._slots = Column((width, BLOCK_ROWS), np.float32), Column((BLOCK_ROWS,), np.int32)
        self._margins: dict[float, Float32] = {}  # by reach, made when they are needed
        self._list = Column((), np.int32)  # of each block
        self._place = Column((), np.int32)  # by position: 16 * block + lane

    @property
    def blocks(self) -> Float32:
        """(n_blocks, width, 16) prefixes."""
        return self._blocks.view(len(self.masks))

    @property
    def slots(self) -> Int32:
        """(n_blocks, 16) the position in each lane; it means nothing where the mask is clear."""
        return self._slots.view(len(self.masks))

    @property
    def list_of_block(self) -> NDArray[np.int32]:
        """(n_blocks,) the list of each block."""
        return self._list.view(len(self.masks))

    @property
    def place(self) -> Int32:
        """(n,) where each position is: 16 * block + lane."""
        return self._place.view(self.n)

    @property
    def stretched(self) -> Mask:
        """Lists that training made and rows were added far outside of since."""
        return np.asarray(self.radii[: len(self.first_radii)] > OUTSIDE * self.first_radii)

    @property
    def n_outside(self) -> int:
        """Rows ever put into lists that were stretched or founded since training."""
        n_trained = len(self.first_radii)
        return int(self.counts[:n_trained][self.stretched].sum() + self.counts[n_trained:].sum())

    def n_founded_since(self, n: int) -> int:
        """Return how many rows were put into lists that were founded by positions from n on."""
        return int(self.counts[self.since >= n].sum()) if self.since[-1] >= n > 0 else 0

    @property
    def crowding(self) -> float:
        """How unequal the lists are: 1 if all hold as many rows, n_lists if one holds all."""
        share = self.counts / max(1, self.counts.sum())
        return float(np.square(share).sum() * len(share))

    @property
    def n_bytes(self) -> int:
        """Memory, in bytes."""
        n_blocks = len(self.masks)
        columns = sum(column.n_bytes(n_blocks) for column in (self._blocks, self._slots, self._list))
        arrays = (self.centres, self.centroids, self.radii, self.squares, self.counts, self.start, self.order)
        return columns + self._place.n_bytes(self.n) + self.masks.nbytes + sum(array.nbytes for array in arrays)

    def margins(self, reach: float) -> Float32:
        """Return how far beyond its centroid each list is thought to extend.

        `reach` times the root of the mean square distance of its rows: of a list of training those that it had then, so
        that it does not depend on which were removed since; but if rows were added far outside of it, as far as its
        farthest row.
        """
        known = self._margins.get(reach)
        if known is None:
            n_trained = len(self.spreads)
            spreads = np.sqrt(self.squares / np.maximum(self.counts, 1))
            spreads[:n_trained] = self.spreads
            known = np.minimum(self.radii, reach * spreads).astype(np.float32)
            known[:n_trained][self.stretched] = self.radii[:n_trained][self.stretched]
            self._margins[reach] = known
        return known

    def nearest(self, prefixes: Float32, positions: Int64 | None = None) -> tuple[Int64, Float32]:
        """Return the nearest centroid of each prefix, and how far it is (rounded up); for `positions`, the nearest of
        those that were there when they were filed.
        """
        n_lists = len(self.centres)
        which = np.zeros(len(prefixes), np.int64)
        step, scaled = max(1, SCORES // n_lists), -2 * self.centres.T
        for first in range(0, len(prefixes) if n_lists > 1 else 0, step):
            part = prefixes[first : first + step]
            score = part @ scaled
            score += self._sizes
            if positions is not None:
                score[self.since > positions[first : first + step, None]] = np.inf
            which[first : first + step] = score.argmin(axis=1)
        return which, self._far(prefixes, which)

    def _far(self, prefixes: Float32, which: Array) -> Float32:
        """Return how far prefixes are from their centroids, rounded up."""
        return _rounded_up(prefixes - self.centres[which])

    def _with(self, **changes: Any) -> Lists:
        made = object.__new__(Lists)
        made.__dict__.update(self.__dict__, **{"_margins": {}, **changes})
        return made

    def append(self, prefixes: Float32) -> Lists:
        """Return the lists with the prefixes of the next positions."""
        which, far = self.nearest(prefixes)
        if (far > self._limits[which]).any() and len(self.counts) < self._most_lists:
            founded = self._with(**self._found(prefixes, which, far))
            return founded.append_to(which, prefixes, far)
        return self.append_to(which, prefixes, far)

    def append_to(self, which: Int64, prefixes: Float32, far: Float32) -> Lists:
        """Return the lists with the prefixes of the next positions in these lists, so far from their centroids."""
        n, n_lists, n_blocks = len(prefixes), len(self.counts), len(self.masks)
        radii = self.radii.copy()
        np.maximum.at(radii, which, far)
        squares = self.squares + np.bincount(which, np.square(far, dtype=np.float64), minlength=n_lists)
        by_list = np.argsort(which, kind="stable")
        new = np.bincount(which, minlength=n_lists)
        rank = np.arange(n) - (np.cumsum(new) - new)[which[by_list]]  # of each in its list's part of `by_list`
        entry, counts = self.counts[which[by_list]] + rank, self.counts + new
        added = -(-counts // BLOCK_ROWS) - -(-self.counts // BLOCK_ROWS)
        n_added = int(added.sum())
        order, start, masks = self.order, self.start, self.masks.copy()
        if n_added:
            self._list.write(n_blocks, np.repeat(np.arange(n_lists, dtype=np.int32), added))
            self._blocks.room(n_blocks, n_added)[...] = FAR
            self._slots.room(n_blocks, n_added)[...] = -1
            order, start = _sorted_blocks(self._list.view(n_blocks + n_added), n_lists)
            masks = np.concatenate([masks, np.zeros(n_added, np.uint16)])
        block, lane = order[start[which[by_list]] + entry // BLOCK_ROWS], entry % BLOCK_ROWS
        self._blocks.view(n_blocks + n_added)[block, :, lane] = prefixes[by_list]
        self._slots.view(n_blocks + n_added)[block, lane] = self.n + by_list
        np.bitwise_or.at(masks, block, np.left_shift(1, lane).astype(np.uint16))
        self._place.room(self.n, n)[by_list] = block * BLOCK_ROWS + lane
        return self._with(
            n=self.n + n, radii=radii, squares=squares, counts=counts, masks=masks, order=order, start=start
        )

    def _found(self, prefixes: Float32, which: Int64, far: Float32) -> dict[str, Any]:
        """Found a list at each prefix in turn that is outside of all lists, and put it and those after it that are
        nearest to it there; return what changes.
        """
        n_known, limit = len(self.counts), _usual(self.first_radii)
        at: list[int] = []
        limits, first = self._limits[which], 0
        while n_known + len(at) < self._most_lists and (outside := far[first:] > limits[first:]).any():
            first += int(outside.argmax())
            distances = _rounded_up(prefixes[first:] - prefixes[first])
            nearer = distances < far[first:]
            far[first:][nearer], which[first:][nearer] = distances[nearer], n_known + len(at)
            limits[first:][nearer] = limit
            at.append(first)
        centres = np.concatenate([self.centres, prefixes[at]])
        new = np.zeros(len(at))
        grown = {name: np.append(getattr(self, name), new.astype(getattr(self, name).dtype)) for name in SUMMARIES}
        return {
            **grown,
            "centres": centres,
            "centroids": in_blocks(centres),
            "since": np.append(self.since, self.n + np.array(at)),
            "start": np.append(self.start, np.full(len(at), self.start[-1])),
            "_sizes": _sizes(centres),
            "_limits": np.append(self._limits, np.full(len(at), limit, np.float32)),
        }

    @property
    def _most_lists(self) -> int:
        return (1 + FOUNDED_LISTS) * len(self.first_radii)

    def settle(self, first_radii: Float32 | None = None, spreads: Float64 | None = None) -> Lists:
        """Return the lists as made for what they hold now, or for what had these radii and spreads."""
        if first_radii is None or spreads is None:
            first_radii, spreads = self.radii, np.sqrt(self.squares / np.maximum(self.counts, 1))
        limits = np.full(len(self.counts), _usual(first_radii), np.float32)
        limits[: len(first_radii)] = np.maximum(OUTSIDE * first_radii, limits[: len(first_radii)])
        return self._with(first_radii=first_radii, spreads=spreads, _limits=limits)

    def remove(self, positions: Int64) -> Lists:
        """Return the lists without these positions; radii as if they had never been there."""
        if not len(positions):
            return self
        block, lane = np.divmod(self.place[positions], BLOCK_ROWS)
        masks, radii = self.masks.copy(), self.radii.copy()
        np.bitwise_and.at(masks, block, ~np.left_shift(1, lane).astype(np.uint16))
        which = self.list_of_block[block]
        lost = np.unique(which[self._far(self.blocks[block, :, lane], which) >= radii[which]])
        for one in lost.tolist():  # lists that have lost their farthest row
            mine = self.order[self.start[one] : self.start[one + 1]]
            left = self.blocks[mine].transpose(0, 2, 1)[lanes_of(masks[mine])]
            radii[one] = self._far(left, np.full(len(left), one)).max(initial=0)
        return self._with(masks=masks, radii=radii)

    def holds(self, positions: Int64, prefixes: Float32, alive: Mask) -> Mask:
        """Return which positions have these prefixes, in the nearest list, and can be found where they are `alive`."""
        block, lane = np.divmod(self.place[positions], BLOCK_ROWS)
        nearest = self.nearest(prefixes, positions)[1]
        right = self._far(prefixes, self.list_of_block[block]) <= nearest * (1 + 1e-4)  # or both are as near
        right &= self.slots[block, lane] == positions
        right &= (self.blocks[block, :, lane] == prefixes).all(axis=1)
        return np.asarray(right & (((self.masks[block] >> lane) & 1 == 1) == alive))

    def allowed(self, mask: Mask) -> NDArray[np.uint16]:
        """Return the masks of the blocks where only these positions may be found."""
        there = np.append(mask, False)[np.minimum(self.slots, len(mask))]  # a lane that is being written is masked out
        low, high = np.packbits(there, axis=1, bitorder="little").astype(np.uint16).T
        found: NDArray[np.uint16] = np.asarray((low | (high << 8)) & self.masks)
        return found

    def arrays(self) -> dict[str, Array]:
        """Return all of it, for a cache."""
        slots = np.full(self.slots.shape, -1, np.int32)
        slots.reshape(-1)[self.place] = np.arange(self.n)
        about: dict[str, Array] = {
            name: getattr(self, name) for name in ("centres", *SUMMARIES, *AT_TRAINING, "masks", "place")
        }
        return {**about, "blocks": self.blocks, "slots": slots, "list": self.list_of_block}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array], width: int) -> Lists:
        """Return what `arrays` returned; the kernel reads by these numbers, so refuse what does not fit together."""
        centres, place, masks = arrays["centres"], arrays["place"], arrays["masks"]
        n_trained = min(arrays["spreads"].size, len(centres))
        if centres.ndim != 2 or centres.shape[1] != width or not len(centres) or centres.dtype != np.float32:
            raise ValueError(f"its centroids are {centres.dtype} of shape {centres.shape}")
        self = cls(np.ascontiguousarray(centres))
        shapes: Specs = {
            **{name: ((len(centres),), getattr(self, name).dtype) for name in SUMMARIES},
            **{name: ((n_trained,), getattr(self, name).dtype) for name in AT_TRAINING},
            "place": ((place.size,), np.int32),
            "masks": ((masks.size,), np.uint16),
            "blocks": ((masks.size, width, BLOCK_ROWS), np.float32),
            "slots": ((masks.size, BLOCK_ROWS), np.int32),
            "list": ((masks.size,), np.int32),
        }
        check_arrays(arrays, shapes, " of the lists")
        n, n_blocks, lists, slots = len(place), len(masks), arrays["list"], arrays["slots"]
        good = (
            (not n_blocks or (lists.min() >= 0 and lists.max() < len(centres) and slots.max() < n))
            and (not n or (place.min() >= 0 and place.max() < n_blocks * BLOCK_ROWS))
            and np.array_equal(slots.reshape(-1)[place], np.arange(n))
            and bool((slots[lanes_of(masks)] >= 0).all())
        )
        if good:
            self.order, self.start = _sorted_blocks(lists, len(centres))
            good = np.array_equal(np.diff(self.start), -(-arrays["counts"] // BLOCK_ROWS))
        if not good:
            raise ValueError("its lists do not fit together")
        self.n, self.masks = n, masks
        for name in SUMMARIES:
            setattr(self, name, arrays[name])
        self._blocks = Column((width, BLOCK_ROWS), np.float32, arrays["blocks"])
        self._slots = Column((BLOCK_ROWS,), np.int32, slots)
        self._list, self._place = Column((), np.int32, lists), Column((), np.int32, place)
        return self.settle(arrays["first_radii"], arrays["spreads"])


def _usual(radii: Float32) -> float:
    """Return the median radius of lists that hold more than their centroid: how far a founded list may reach."""
    return float(np.median(radii[radii > 0])) if radii.any() else 0.0


def _sizes(centres: Float32) -> Float32:
    """Return the squared norms."""
    return np.asarray(np.einsum("ij,ij->i", centres, centres))


def _rounded_up(away: Float32) -> Float32:
    """Return the norms of differences, rounded up."""
    far = np.sqrt(np.einsum("ij,ij->i", away, away, dtype=np.float64)) * (1 + 1e-5)
    found: Float32 = far.astype(np.float32)
    return found


def lanes_of(masks: NDArray[np.uint16]) -> Mask:
    """Return the masks of blocks as (n, 16) bool."""
    low_high = np.stack([masks & 255, masks >> 8], axis=1).astype(np.uint8)
    return np.unpackbits(low_high, axis=1, bitorder="little").astype(np.bool_)


def _sorted_blocks(list_of_block: NDArray[np.int32], n_lists: int) -> tuple[Int64, Int64]:
    """Return the blocks of list after list, those of a list in the order they were made; and where each list begins."""
    per_list = np.bincount(list_of_block, minlength=n_lists)
    start = np.concatenate([[0], np.cumsum(per_list)]).astype(np.int64)
    return np.argsort(list_of_block, kind="stable").astype(np.int64), start
