"""Prefixes in blocks of sixteen, and the blocks in lists around centroids: what the ladder scans first.

A block holds the numbers of its sixteen rows side by side, number after number, so that a scan needs no sums across
lanes. Rows are appended to the last block of their list; a removal clears a bit of the block's mask.
"""

from __future__ import annotations

import warnings
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from ..data.checks import Array
from .rows import Int64, Mask
from .store import Grown

Float32: TypeAlias = NDArray[np.float32]

WIDE = 16
"""Rows of a block."""
FAR = np.float32(1e18)
"""Where there is no row: nothing is ever that near."""


def in_blocks(rows: Float32) -> Float32:
    """(n, width) as (n / 16 rounded up, width, 16), the rest far away."""
    full = np.full((-(-len(rows) // WIDE) * WIDE, rows.shape[1]), FAR, np.float32)
    full[: len(rows)] = rows
    return np.ascontiguousarray(full.reshape(-1, WIDE, rows.shape[1]).transpose(0, 2, 1))


def centroids(prefixes: Float32, n_lists: int, random: np.random.RandomState) -> Float32:
    """`n_lists` centres of a sample of prefixes."""
    if n_lists == 1:
        return np.asarray(prefixes.mean(axis=0, keepdims=True, dtype=np.float64), np.float32)
    first = prefixes[random.choice(len(prefixes), n_lists, replace=False)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct prefixes than lists: some stay empty
        model = KMeans(n_lists, init=first, n_init=1, max_iter=12, tol=1e-3, algorithm="lloyd").fit(prefixes)
    return np.ascontiguousarray(model.cluster_centers_, np.float32)


class Lists:
    """Prefixes by position, in lists around `centres` (n_lists, width)."""

    def __init__(self, centres: Float32) -> None:
        self.centres = centres
        self.centroids = in_blocks(centres)
        n_lists, width = centres.shape
        self.radii: Float32 = np.zeros(n_lists, np.float32)
        self.first_radii: Float32 = self.radii  # at training
        self.spreads: NDArray[np.float64] = np.zeros(n_lists)  # root mean square distance to the centroid, at training
        self.squares: NDArray[np.float64] = np.zeros(n_lists)  # of the distances to the centroid, summed
        self.counts: Int64 = np.zeros(n_lists, np.int64)  # rows ever put into each list
        self._blocks, self._slots = Grown((width, WIDE), np.float32), Grown((WIDE,), np.int64)
        self._masks, self._list = Grown((), np.uint16), Grown((), np.int32)
        self._place = Grown((), np.int64)  # by position: 16 * block + lane
        self.start: Int64 = np.zeros(n_lists + 1, np.int64)
        self.order: Int64 = np.empty(0, np.int64)
        self._asked: tuple[Mask, NDArray[np.uint16]] | None = None  # the last mask, for searches with the same one

    @property
    def blocks(self) -> Float32:
        return self._blocks.array

    @property
    def slots(self) -> Int64:
        """The position in each lane of each block."""
        return self._slots.array

    @property
    def masks(self) -> NDArray[np.uint16]:
        return self._masks.array

    def margins(self, reach: float) -> Float32:
        """How far beyond its centroid each list is thought to extend.

        `reach` times the root of the mean square distance of its rows, at training, so that it does not depend on which
        were removed since; of a list that rows were added far outside of since, as far as its farthest row.
        """
        return np.where(self.stretched, self.radii, reach * self.spreads).astype(np.float32)

    @property
    def stretched(self) -> Mask:
        """Lists that rows were added far outside of since training."""
        return np.asarray(self.radii > 1.2 * self.first_radii)

    @property
    def crowding(self) -> float:
        """How unequal the lists are: 1 if all hold as many rows, n_lists if one holds all."""
        share = self.counts / max(1, self.counts.sum())
        return float(np.square(share).sum() * len(share))

    @property
    def n_bytes(self) -> int:
        parts = (self._blocks, self._slots, self._masks, self._list, self._place)
        arrays = (self.centres, self.centroids, self.radii, self.squares, self.counts, self.start, self.order)
        return sum(part.n_bytes for part in parts) + sum(array.nbytes for array in arrays)

    def nearest(self, prefixes: Float32) -> tuple[NDArray[np.int64], Float32]:
        """The nearest centroid of each prefix, and how far it is (rounded up)."""
        n_lists = len(self.centres)
        which = np.zeros(len(prefixes), np.int64)
        step = max(1, (1 << 22) // n_lists)
        sizes = np.einsum("ij,ij->i", self.centres, self.centres)
        for first in range(0, len(prefixes) if n_lists > 1 else 0, step):
            part = prefixes[first : first + step]
            score = part @ self.centres.T
            score *= -2
            score += sizes
            which[first : first + step] = score.argmin(axis=1)
        return which, self._far(prefixes, which)

    def _far(self, prefixes: Float32, which: Array) -> Float32:
        """How far prefixes are from their centroids, rounded up."""
        away = prefixes - self.centres[which]
        far = np.sqrt(np.einsum("ij,ij->i", away, away, dtype=np.float64)) * (1 + 1e-5)
        found: Float32 = far.astype(np.float32)
        return found

    def append(self, prefixes: Float32) -> None:
        """Puts the prefixes of the next positions into the lists."""
        n, first, self._asked = len(prefixes), self._place.used, None
        which, far = self.nearest(prefixes)
        np.maximum.at(self.radii, which, far)
        self.squares += np.bincount(which, np.square(far, dtype=np.float64), minlength=len(self.squares))
        order = np.argsort(which, kind="stable")
        new = np.bincount(which, minlength=len(self.counts))
        rank = np.arange(n) - (np.cumsum(new) - new)[which[order]]  # of each in its list's part of `order`
        entry = self.counts[which[order]] + rank
        blocks_before = -(-self.counts // WIDE)
        self.counts += new
        added = -(-self.counts // WIDE) - blocks_before
        n_added = int(added.sum())
        self._list.extend(np.repeat(np.arange(len(added), dtype=np.int32), added))
        self._blocks.more(n_added)[...] = FAR
        self._slots.more(n_added)[...] = -1
        self._masks.more(n_added)[...] = 0
        if n_added:
            self._sort()
        block = self.order[self.start[which[order]] + entry // WIDE]
        lane = entry % WIDE
        self._blocks.array[block, :, lane] = prefixes[order]
        self._slots.array[block, lane] = first + order
        np.bitwise_or.at(self._masks.array, block, np.left_shift(1, lane).astype(np.uint16))
        self._place.more(n)[order] = block * WIDE + lane

    def _sort(self) -> None:
        """Blocks of list after list, those of a list in the order they were made."""
        self.order = np.argsort(self._list.array, kind="stable").astype(np.int64)
        per_list = np.bincount(self._list.array, minlength=len(self.counts))
        self.start = np.concatenate([[0], np.cumsum(per_list)]).astype(np.int64)

    def settle(self) -> None:
        """What is there now is what the lists were made for."""
        self.first_radii = self.radii.copy()
        self.spreads = np.sqrt(self.squares / np.maximum(self.counts, 1))

    def remove(self, positions: Int64) -> None:
        self._asked = None
        place = self._place.array[positions]
        bits = np.left_shift(1, place % WIDE).astype(np.uint16)
        np.bitwise_and.at(self._masks.array, place // WIDE, ~bits)
        if len(place):
            self._shrink(place)

    def _shrink(self, place: Int64) -> None:
        """The radii of lists that have lost their farthest row: as if it had never been there."""
        block, lane = place // WIDE, place % WIDE
        which = self._list.array[block]
        lost = np.unique(which[self._far(self.blocks[block, :, lane], which) >= self.radii[which]])
        for one in lost.tolist():
            mine = self.order[self.start[one] : self.start[one + 1]]
            there = (self.masks[mine][:, None] >> np.arange(WIDE)) & 1 == 1
            left = self.blocks[mine].transpose(0, 2, 1)[there]
            self.radii[one] = self._far(left, np.full(len(left), one)).max(initial=0)

    def allowed(self, mask: Mask) -> NDArray[np.uint16]:
        """The masks of the blocks where only these positions may be found."""
        if self._asked is not None and self._asked[0] is mask and len(self._asked[1]) == len(self.masks):
            return self._asked[1]
        there = mask[self.slots] & (self.slots >= 0)
        low, high = np.packbits(there, axis=1, bitorder="little").astype(np.uint16).T
        found: NDArray[np.uint16] = np.asarray((low | (high << 8)) & self.masks)
        self._asked = mask, found
        return found

    def state(self) -> dict[str, Array]:
        parts = {name: part.array for name, part in self._parts().items()}
        about: dict[str, Array] = {
            "centres": self.centres,
            "radii": self.radii,
            "first_radii": self.first_radii,
            "spreads": self.spreads,
            "squares": self.squares,
            "counts": self.counts,
        }
        return {**{f"lists_{name}": array for name, array in about.items()}, **parts}

    def _parts(self) -> dict[str, Grown]:
        return {
            "lists_blocks": self._blocks,
            "lists_slots": self._slots,
            "lists_masks": self._masks,
            "lists_list": self._list,
            "lists_place": self._place,
        }

    @classmethod
    def from_state(cls, arrays: dict[str, Array], n_positions: int, width: int) -> Lists:
        """What `state` gave; the kernel reads by these numbers, so what does not fit together is refused."""
        centres = arrays["lists_centres"]
        if centres.ndim != 2 or centres.shape[1] != width or not len(centres) or centres.dtype != np.float32:
            raise ValueError(f"its centroids are {centres.dtype} of shape {centres.shape}")
        self = cls(centres)
        names = ("radii", "first_radii", "squares", "counts")
        self.radii, self.first_radii, self.squares, self.counts = (arrays[f"lists_{name}"] for name in names)
        self.spreads = arrays.get("lists_spreads", np.sqrt(self.squares / np.maximum(self.counts, 1)))
        n_blocks = len(arrays["lists_blocks"])
        for name, part in self._parts().items():
            shape = (n_positions if name == "lists_place" else n_blocks, *part._width)
            if arrays[name].shape != shape or arrays[name].dtype != part._dtype:
                raise ValueError(f"{name} is {arrays[name].dtype} of shape {arrays[name].shape}")
            part.replace(arrays[name])
        lists, slots, place = self._list.array, self.slots, self._place.array
        good = (
            self.radii.shape == self.first_radii.shape == self.counts.shape == self.squares.shape == (len(centres),)
            and self.spreads.shape == (len(centres),)
            and self.spreads.dtype == np.float64
            and self.radii.dtype == self.first_radii.dtype == np.float32
            and self.squares.dtype == np.float64
            and self.counts.dtype == np.int64
            and (not n_blocks or (lists.min() >= 0 and lists.max() < len(centres) and slots.max() < n_positions))
            and (not n_positions or (place.min() >= 0 and place.max() < n_blocks * WIDE))
            and np.array_equal(slots.reshape(-1)[place], np.arange(n_positions))
        )
        if good:
            there = np.unpackbits(
                np.stack([self.masks & 255, self.masks >> 8], axis=1).astype(np.uint8), axis=1, bitorder="little"
            )
            good = bool((slots[there.astype(bool)] >= 0).all())
            self._sort()
            good = good and np.array_equal(np.diff(self.start), -(-self.counts // WIDE))
        if not good:
            raise ValueError("its lists do not fit together")
        return self
