"""Prefixes in eight bits, sixteen to a block, and the blocks in lists around centres: what the ladder scans first.

A prefix x of list l is stored as whole numbers from 0 to 255: x is centre + step * (code - 128), each list having a
step of its own, up to an error whose norm is known. What the codes say of a distance is off by no more than that, so
that a bound can be proved from them. A block holds four numbers of row after row, (width / 4, 16, 4): one instruction
multiplies four numbers of sixteen rows. Rows are appended to the last block of their list; a removal clears a bit of
the block's mask.

A row is in the list whose centre is nearest to it. Rows that come after training may lie outside of all lists. In the
nearest one they would lie together, and make it long. So such a row founds a list of its own, which those after it join
if its centre is the nearest. That follows from the order of the rows alone: whoever files them finds the same lists.

`Lists` is immutable, like states. All lists of a history share the columns of blocks: an append writes into new blocks,
and into lanes of old ones that the masks of earlier lists hide. Masks, radii and counts are copied, which is little.
The kernel reads a lane that is masked out (it computes sixteen distances at once) and never uses what it read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checkpoints import checkpoint
from ..native import scan
from ..native.arrays import Array, Float32, Int32, Int64, Mask, UInt8
from ..native.scan import BLOCK_ROWS
from .columns import Column, Specs, check_arrays

SUMMARIES = ("radii", "errors", "counts", "since")
"""Arrays of one number for each list, that rows change."""
OUTSIDE = 1.2
"""A row is outside of a list if it is so many times as far from the centre as any was at training."""
FOUNDED_LISTS = 4
"""At most so many lists are founded for each that training made."""
DECODED_BLOCKS = 4096
"""Blocks whose codes are read as numbers in one go."""
SPARE_RANGE, SAMPLED_ENOUGH = 1.2, 8
"""Codes reach so many times as far as the rows of a sample, if the list has so many of them."""


def steps_for(centres: Float32, sample: Float32, n_jobs: int | None) -> Float32:
    """Return a step for each list, so that the codes of a list reach a little farther than its rows of the sample."""
    which, _ = scan.nearest_lists(scan.Heads(centres), sample, n_jobs)
    farthest = np.zeros(len(centres), np.float32)
    np.maximum.at(farthest, which, np.abs(sample - centres[which]).max(axis=1))
    few = np.bincount(which, minlength=len(centres)) < SAMPLED_ENOUGH
    farthest[few] = np.maximum(farthest[few], np.median(farthest[~few]) if not few.all() else farthest.max())
    return np.asarray(np.maximum(farthest * np.float32(SPARE_RANGE / scan.CODE_RANGE), np.float32(1e-30)))


class Lists:
    """Prefixes of the positions 0 to n - 1, in lists around `centres` (n_lists, p).

    Those of training come first, then those that were founded since.

    steps : (n_lists,) float32, what one unit of a code is.
    errors : (n_lists,) float32, no prefix is farther from what its code says.
    radii : (n_lists,) float32, no prefix is farther from its centre; first_radii are those at training.
    usual_radius : the median radius at training of lists that hold more than their centre.
    counts : (n_lists,) rows ever put into each list.
    since : (n_lists,) the position that founded each list, 0 of those of training.
    masks : (n_blocks,) uint16, bit l: lane l may be found.
    order, start : the blocks of list after list, and where each list begins among them.
    """

    def __init__(self, centres: Float32, steps: Float32) -> None:
        """Empty lists, with columns of their own."""
        self.centres, self.steps, self.heads = centres, steps, scan.Heads(centres)
        n_lists = len(centres)
        self.n = 0
        self.radii: Float32 = np.zeros(n_lists, np.float32)
        self.errors: Float32 = np.zeros(n_lists, np.float32)
        self.first_radii: Float32 = self.radii
        self.usual_radius = 0.0
        self.counts: Int64 = np.zeros(n_lists, np.int64)
        self.since: Int64 = np.zeros(n_lists, np.int64)
        self._limits: Float32 = np.full(n_lists, np.inf, np.float32)  # who is farther founds a list
        self.masks: NDArray[np.uint16] = np.empty(0, np.uint16)
        self.order: Int64 = np.empty(0, np.int64)
        self.start: Int64 = np.zeros(n_lists + 1, np.int64)
        self._codes = Column(scan.code_shape(centres.shape[1]), np.uint8)
        self._biases, self._slots = Column((BLOCK_ROWS,), np.float32), Column((BLOCK_ROWS,), np.int32)
        self._rests = Column((), np.float32)  # of each block
        self._list = Column((), np.int32)  # of each block
        self._place = Column((), np.int32)  # by position: 16 * block + lane

    @property
    def codes(self) -> UInt8:
        """(n_blocks, width / 4, 16, 4) prefixes."""
        return self._codes.view(len(self.masks))

    @property
    def biases(self) -> Float32:
        """(n_blocks, 16) what the distance of a query to a row does not owe to the query: see codes8.h."""
        return self._biases.view(len(self.masks))

    @property
    def rests(self) -> Float32:
        """(n_blocks,) no row of the block has a larger norm about its centre without its first numbers, as coded."""
        return self._rests.view(len(self.masks))

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
        of_blocks = (self._codes, self._biases, self._rests, self._slots, self._list)
        columns = sum(column.n_bytes(n_blocks) for column in of_blocks)
        arrays = (self.centres, self.steps, self.radii, self.errors, self.counts, self.start, self.order, self.masks)
        return columns + self._place.n_bytes(self.n) + self.heads.n_bytes + sum(array.nbytes for array in arrays)

    def nearest(self, prefixes: Float32, positions: Int64 | None = None) -> tuple[Int64, Float32]:
        """Return the nearest centre of each prefix, and how far it is (rounded up); for `positions`, the nearest of
        those that were there when they were filed.
        """
        which, _ = scan.nearest_lists(self.heads, prefixes, -1)
        late = np.flatnonzero(self.since[which] > positions) if positions is not None and self.since.any() else ()
        for i in late:  # few: a list that was founded later is nearer
            there = np.flatnonzero(self.since <= positions[i])  # type: ignore[index]
            which[i] = there[np.square(self.centres[there] - prefixes[i], dtype=np.float64).sum(axis=1).argmin()]
        return which, self._far(prefixes, which)

    def _far(self, prefixes: Float32, which: Array) -> Float32:
        """Return how far prefixes are from their centres, rounded up."""
        return _rounded_up(prefixes - self.centres[which])

    def _with(self, **changes: Any) -> Lists:
        made = object.__new__(Lists)
        made.__dict__.update(self.__dict__, **changes)
        return made

    def append(self, prefixes: Float32) -> Lists:
        """Return the lists with the prefixes of the next positions."""
        which, far = self.nearest(prefixes)
        if (far > self._limits[which]).any() and len(self.counts) < self._most_lists:
            founded = self._with(**self._found(prefixes, which, far))
            return founded.append_to(which, prefixes, far)
        return self.append_to(which, prefixes, far)

    def append_to(self, which: Int64, prefixes: Float32, far: Float32) -> Lists:
        """Return the lists with the prefixes of the next positions in these lists, so far from their centres."""
        n, n_lists, n_blocks = len(prefixes), len(self.counts), len(self.masks)
        codes, coded, off = scan.code_rows(prefixes, self.centres, self.steps, which)
        radii, errors = self.radii.copy(), self.errors.copy()
        np.maximum.at(radii, which, far)
        np.maximum.at(errors, which, off)
        by_list = np.argsort(which, kind="stable")
        new = np.bincount(which, minlength=n_lists)
        rank = np.arange(n) - (np.cumsum(new) - new)[which[by_list]]  # of each in its list's part of `by_list`
        entry, counts = self.counts[which[by_list]] + rank, self.counts + new
        added = -(-counts // BLOCK_ROWS) - -(-self.counts // BLOCK_ROWS)
        n_added = int(added.sum())
        order, start, masks = self.order, self.start, self.masks.copy()
        if n_added:
            self._list.write(n_blocks, np.repeat(np.arange(n_lists, dtype=np.int32), added))
            self._codes.room(n_blocks, n_added)[...] = 0
            self._biases.room(n_blocks, n_added)[...] = 0
            self._rests.room(n_blocks, n_added)[...] = 0
            self._slots.room(n_blocks, n_added)[...] = -1
            order, start = _sorted_blocks(self._list.view(n_blocks + n_added), n_lists)
            masks = np.concatenate([masks, np.zeros(n_added, np.uint16)])
        block, lane = order[start[which[by_list]] + entry // BLOCK_ROWS], entry % BLOCK_ROWS
        last = n_blocks + n_added
        self._codes.view(last)[block, :, lane] = codes[by_list]
        self._biases.view(last)[block, lane] = self._biases_of(coded, which)[by_list]
        np.maximum.at(
            self._rests.view(last), block, scan.rests_of(coded)[by_list]
        )  # a larger bound holds for readers, too
        self._slots.view(last)[block, lane] = self.n + by_list
        np.bitwise_or.at(masks, block, np.left_shift(1, lane).astype(np.uint16))
        self._place.room(self.n, n)[by_list] = block * BLOCK_ROWS + lane
        return self._with(
            n=self.n + n, radii=radii, errors=errors, counts=counts, masks=masks, order=order, start=start
        )

    def _biases_of(self, coded: Float32, which: Array) -> Float32:
        return scan.biases_of(coded, self.centres, which, self.heads.middle)

    def _found(self, prefixes: Float32, which: Int64, far: Float32) -> dict[str, Any]:
        """Found a list at each prefix in turn that is outside of all lists, and put it and those after it that are
        nearest to it there; return what changes.
        """
        n_known, limit = len(self.counts), self.usual_radius
        at: list[int] = []
        limits, first = self._limits[which], 0
        while n_known + len(at) < self._most_lists and (outside := far[first:] > limits[first:]).any():
            checkpoint()
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
            "steps": np.append(self.steps, np.full(len(at), np.median(self.steps), np.float32)),
            "heads": scan.Heads(centres, len(self.first_radii)),
            "since": np.append(self.since, self.n + np.array(at)),
            "start": np.append(self.start, np.full(len(at), self.start[-1])),
            "_limits": np.append(self._limits, np.full(len(at), limit, np.float32)),
        }

    @property
    def _most_lists(self) -> int:
        return (1 + FOUNDED_LISTS) * len(self.first_radii)

    def settle(self, first_radii: Float32 | None = None) -> Lists:
        """Return the lists as made for what they hold now, or for what had these radii when it was all they held."""
        present = self._radii_of_present()  # never less: these are bounds, whatever is said of the radii then
        return self._settled(present if first_radii is None else first_radii, radii=present)

    def _radii_of_present(self) -> Float32:
        """Return the radii without what rows that were removed add to them."""
        there = lanes_of(self.masks)
        present = np.bincount(self.list_of_block, there.sum(axis=1), minlength=len(self.counts))
        removed = present < self.counts
        radii = np.where(removed, 0, self.radii).astype(np.float32)
        blocks = np.flatnonzero(removed[self.list_of_block])
        for first in range(0, len(blocks), DECODED_BLOCKS):
            checkpoint()
            some = blocks[first : first + DECODED_BLOCKS]
            which = self.list_of_block[some]
            coded = (self.codes[some].astype(np.float32) - 128) * self.steps[which][:, None, None, None]
            far = np.sqrt(np.where(there[some], np.einsum("bilj,bilj->bl", coded, coded), 0).max(axis=1))
            np.maximum.at(radii, which, far * np.float32(1 + 1e-5) + self.errors[which])
        return np.minimum(self.radii, np.where(radii > 0, radii, self.radii))

    def _settled(self, first_radii: Float32, **changes: Any) -> Lists:
        usual = float(np.median(first_radii[first_radii > 0])) if first_radii.any() else 0.0
        limits = np.full(len(self.counts), usual, np.float32)
        limits[: len(first_radii)] = np.maximum(OUTSIDE * first_radii, limits[: len(first_radii)])
        return self._with(first_radii=first_radii, usual_radius=usual, _limits=limits, **changes)

    def packed(self) -> Lists:
        """Return the same lists in columns of their own, the blocks of a list side by side, as memory is read best."""
        n_blocks, order = len(self.masks), self.order
        where = np.empty(n_blocks, np.int64)
        where[order] = np.arange(n_blocks)
        block, lane = np.divmod(self.place, BLOCK_ROWS)
        return self._with(
            _codes=Column(self._codes.width, np.uint8, self.codes[order]),
            _biases=Column((BLOCK_ROWS,), np.float32, self.biases[order]),
            _rests=Column((), np.float32, self.rests[order]),
            _slots=Column((BLOCK_ROWS,), np.int32, self.slots[order]),
            _list=Column((), np.int32, self.list_of_block[order]),
            _place=Column((), np.int32, (where[block] * BLOCK_ROWS + lane).astype(np.int32)),
            masks=self.masks[order],
            order=np.arange(n_blocks, dtype=np.int64),
        )

    def remove(self, positions: Int64) -> Lists:
        """Return the lists without these positions. Radii and errors stay: they are bounds."""
        if not len(positions):
            return self
        block, lane = np.divmod(self.place[positions], BLOCK_ROWS)
        masks = self.masks.copy()
        np.bitwise_and.at(masks, block, ~np.left_shift(1, lane).astype(np.uint16))
        return self._with(masks=masks)

    def holds(self, positions: Int64, prefixes: Float32, alive: Mask) -> Mask:
        """Return which positions have these prefixes, in the nearest list, and can be found where they are `alive`."""
        block, lane = np.divmod(self.place[positions], BLOCK_ROWS)
        which, nearest = self.list_of_block[block], self.nearest(prefixes, positions)[1]
        right = self._far(prefixes, which) <= nearest * (1 + 1e-4)  # or both are as near
        codes, coded, off = scan.code_rows(prefixes, self.centres, self.steps, which)
        right &= (self.slots[block, lane] == positions) & (self.biases[block, lane] == self._biases_of(coded, which))
        right &= scan.rests_of(coded) <= self.rests[block]
        right &= (self.codes[block, :, lane] == codes).all(axis=(1, 2)) & (off <= self.errors[which])
        return np.asarray(right & (((self.masks[block] >> lane) & 1 == 1) == alive))

    def arrays(self) -> dict[str, Array]:
        """Return all of it, for a cache."""
        slots = np.full(self.slots.shape, -1, np.int32)
        slots.reshape(-1)[self.place] = np.arange(self.n)
        names = ("centres", "steps", *SUMMARIES, "first_radii", "masks", "place", "codes", "biases", "rests")
        return {**{name: getattr(self, name) for name in names}, "slots": slots, "list": self.list_of_block}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], width: int) -> Lists:
        """Return what `arrays` returned; the kernel reads by these numbers, so refuse what does not fit together.

        What the kernel reads is copied: a file may be changed after it was checked, and is mapped in small pages, which
        every scan of a list would pay for. Where each position is (`place`) may stay in the file.
        """
        arrays = {name: array if name == "place" else np.array(array) for name, array in arrays.items()}
        centres, place, masks = arrays["centres"], arrays["place"], arrays["masks"]
        n_trained = min(arrays["first_radii"].size, len(centres))
        if centres.ndim != 2 or centres.shape[1] != width or not len(centres) or centres.dtype != np.float32:
            raise ValueError(f"its centres are {centres.dtype} of shape {centres.shape}")
        self = cls(np.ascontiguousarray(centres), arrays["steps"])
        self.heads = scan.Heads(self.centres, n_trained)
        shapes: Specs = {
            **{name: ((len(centres),), getattr(self, name).dtype) for name in SUMMARIES},
            "steps": ((len(centres),), np.float32),
            "first_radii": ((n_trained,), np.float32),
            "place": ((place.size,), np.int32),
            "masks": ((masks.size,), np.uint16),
            "codes": ((masks.size, *scan.code_shape(width)), np.uint8),
            "biases": ((masks.size, BLOCK_ROWS), np.float32),
            "rests": ((masks.size,), np.float32),
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
        self._codes = Column(self._codes.width, np.uint8, arrays["codes"])
        self._biases = Column((BLOCK_ROWS,), np.float32, arrays["biases"])
        self._rests = Column((), np.float32, arrays["rests"])
        self._slots = Column((BLOCK_ROWS,), np.int32, slots)
        self._list, self._place = Column((), np.int32, lists), Column((), np.int32, place)
        return self._settled(arrays["first_radii"])


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
