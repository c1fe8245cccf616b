"""What LadderSearch would find with each setting, predicted from the prefixes; and what it does find, measured.

Whether a neighbour is found depends on two things: its list is scanned, and its prefix is among the `depth` nearest of
those scanned. Both follow from the distances of prefixes and centroids, for all settings at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..native.arrays import Float32, Float64, Int64, Mask
from ..native.scan_numpy import STRETCH
from .calibration import Setting, Trial, first_that_holds, which_found
from .cost_model import candidate_depths, cost
from .lists import BLOCK_ROWS, Lists
from .state import Pairs

REACHES = tuple(round(0.05 * i, 2) for i in range(-40, 61))
"""Of these a calibration takes one: spreads that a list is thought to extend beyond its centroid."""
LARGER_REACH = 0.15
"""By how much the next reach is larger, if one was not enough."""
PREFIX_PAIRS = 1 << 23
"""Pairs of a query and a prefix that are compared in one go."""

SAMPLED_PREFIXES = 4096
"""By so many, it is guessed how far the nearest prefixes are."""

Climb = Callable[[Mask, int, float, int], Int64]
"""Takes a mask of queries, k, reach and depth; returns the positions that are found."""


class LadderTrial(Trial):
    """The queries have these prefixes and, where `own` is not None, positions; `truth` are their K nearest."""

    def __init__(
        self, lists: Lists, alive: Mask, prefixes: Float32, own: Int64 | None, truth: Pairs, dim: int, climb: Climb
    ) -> None:
        super().__init__(len(prefixes))
        self._lists, self._dim, self._climb, self._truth = lists, dim, climb, truth[1]
        self._deepest = _deepest(truth[1].shape[1])
        few = self.choosing
        queries, self._distances, neighbours = prefixes[few], truth[0][few], truth[1][few]
        self._measure_prefixes(queries, np.flatnonzero(alive), None if own is None else own[few], neighbours)
        away = np.square(queries[:, None] - lists.centres[None]).sum(axis=2, dtype=np.float64)
        self._away = np.sqrt(away)  # (n, n_lists) of each query to the centroids
        self._away[np.arange(len(away)), self._away.argmin(axis=1)] = -np.inf  # this list is scanned in any case
        self._list = lists.list_of_block[lists.place[neighbours] // BLOCK_ROWS]
        self._away_from_list = np.take_along_axis(self._away, self._list.astype(np.int64), axis=1)

    def _measure_prefixes(self, queries: Float32, there: Int64, own: Int64 | None, neighbours: Int64) -> None:
        """Find the distances of the nearest prefixes, and how many are nearer than those of the neighbours."""
        n, lists = len(queries), self._lists
        block, lane = np.divmod(lists.place[there], BLOCK_ROWS)
        stored = lists.blocks[block, :, lane]
        sizes = np.einsum("ij,ij->i", stored, stored)
        scored = np.column_stack([-2 * stored, sizes])  # |x|^2 - 2 <q, x> orders them as |q - x| does
        rounding = 1e-5 * (np.einsum("ij,ij->i", queries, queries) + sizes.max())
        self._near = np.zeros((n, self._deepest))  # distances of the nearest prefixes
        self._rank, self._within = np.zeros_like(neighbours), np.zeros_like(neighbours)
        step = max(1, PREFIX_PAIRS // len(there))
        for first in range(0, n, step):
            part = queries[first : first + step]
            table = np.column_stack([part, np.ones(len(part), np.float32)]) @ scored.T
            for i, scores in enumerate(table, start=first):
                if own is not None:
                    scores[np.searchsorted(there, own[i])] = np.inf
                limits = np.square(self._distances[i]) * (1 + 1e-6)
                some = scores[:: max(1, len(there) // SAMPLED_PREFIXES)]
                n_some = min(2 + 2 * self._deepest * len(some) // len(there), len(some) - 1)
                at = np.flatnonzero(scores <= np.partition(some, n_some)[n_some] + rounding[i])
                near = np.sort(_squares(stored[at], queries[i]))
                self._within[i] = np.searchsorted(near, limits)
                mine = stored[np.searchsorted(there, neighbours[i])]
                self._rank[i] = np.searchsorted(near, _squares(mine, queries[i]))
                few = near[: self._deepest]
                self._near[i, : len(few)], self._near[i, len(few) :] = few, few[-1]
        np.sqrt(self._near, out=self._near)

    def choose(self, k: int, recall: float, enough: Callable[[Mask], bool], tried: Setting) -> Setting | None:
        lists, which = self._lists, self._list[:, :k]
        best, least = None, self._price_of_exact(k)
        reaches = [reach for reach in REACHES if reach >= tried.reach + LARGER_REACH]
        least_depth = tried.depth + (len(lists.radii) == 1)  # where a reach makes no difference
        for depth in (each for each in candidate_depths(k, _deepest(k)) if each >= least_depth):
            farthest = self._farthest(depth)
            missing = self._away_from_list[:, :k] - farthest[:, None]
            ranked = self._rank[:, :k] < depth

            def reached(i: int, missing: Any = missing, ranked: Any = ranked) -> bool:
                return enough(ranked & (missing <= lists.margins(reaches[i])[which]))

            i = first_that_holds(len(reaches), reached)
            if i < len(reaches):
                scanned = self._scanned(lists.margins(reaches[i]), farthest)
                compared = float(np.minimum(depth, self._within[:, k - 1]).mean())
                price = cost(scanned, lists.centres.shape[1], compared, depth, self._dim)
                if price < least:
                    best, least = Setting(reaches[i], depth, compared), price
        return best

    def _farthest(self, depth: int) -> Float64:
        """Return how far away a list may be to be scanned; the kernel forgets prefixes when a quarter too many came."""
        return np.asarray(STRETCH * self._near[:, min(depth + depth // 4, self._deepest) - 1])

    def _price_of_exact(self, k: int) -> float:
        """Return what the exact search costs, which scans all lists that may hold a neighbour."""
        lists, depth = self._lists, min(4 * k, self._deepest)
        scanned = self._scanned(lists.margins(0.0), self._farthest(depth))
        scanned += self._scanned(lists.radii, self._distances[:, k - 1])
        compared = depth + float(self._within[:, k - 1].mean())
        return cost(scanned, lists.centres.shape[1], compared, depth, self._dim)

    def _scanned(self, margins: Float32, farthest: Float64) -> float:
        """Return how many prefixes and centroids are looked at for a query, on average."""
        looked_at = self._away - margins <= farthest[:, None]
        return float((looked_at @ self._lists.counts).mean()) + len(margins)

    def found(self, setting: Setting, k: int, recall: float) -> Mask:
        found = self._climb(self.measuring, k, setting.reach, setting.depth)
        return which_found(found, self._truth[self.measuring, :k])


def _deepest(k: int) -> int:
    return max(64, 16 * k)


def _squares(prefixes: Float32, query: Float32) -> Float64:
    return np.asarray(np.square(prefixes - query, dtype=np.float64).sum(axis=1))
