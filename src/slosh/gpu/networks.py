"""Sorting networks as text for the kernels: straight lines of compare-exchanges over the registers of a thread.

`SORT(v)` sorts K keys, and `MERGE(v)` sorts K keys that first rise and then fall, or the other way round, however they
are turned. Each compare-exchange is one of two macros that do the same on different units of the processor, so
that both units are busy: `BY_ORDER` takes a minimum and a maximum, `BY_SUM` a minimum and what is left of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence

Pairs = Sequence[tuple[int, int]]
BY_ORDER_OF_THREE = 1
"""Of three compare-exchanges so many take a minimum and a maximum; the others make the sum work (docs/gpu.md)."""


def sorting_network(n: int) -> list[tuple[int, int]]:
    """Return Batcher's odd-even merge sort of n keys as pairs (i, j), i < j, to be compared and exchanged.

    >>> sorting_network(3)
    [(0, 1), (0, 2), (1, 2)]
    """
    pairs = []
    size = 1 << max(0, n - 1).bit_length()
    width = 1
    while width < size:
        step = width
        while step:
            for first in range(step % width, size - step, 2 * step):
                for i in range(first, first + step):
                    if i // (2 * width) == (i + step) // (2 * width) and i + step < n:
                        pairs.append((i, i + step))
            step //= 2
        width *= 2
    return pairs


def merging_network(n: int) -> list[tuple[int, int]]:
    """Return pairs that sort n keys which rise and then fall, or a rotation of such keys.

    Halves are compared as long as n is even; each odd remainder, which is such a sequence, too, is sorted.
    """
    pairs: list[tuple[int, int]] = []
    parts, size = [0], n
    while size % 2 == 0:
        half = size // 2
        pairs += [(first + i, first + i + half) for first in parts for i in range(half)]
        parts = [start for first in parts for start in (first, first + half)]
        size = half
    rest = sorting_network(size)
    return pairs + [(first + i, first + j) for first in parts for i, j in rest]


def macro(name: str, pairs: Pairs) -> str:
    """Return a macro of one argument, an array, that compares and exchanges the pairs in their order."""
    kinds = ("BY_ORDER", "BY_SUM", "BY_SUM")
    lines = [f"  {kinds[k % 3]}(v[{i}], v[{j}])" for k, (i, j) in enumerate(pairs)]
    return " \\\n".join([f"#define {name}(v)", *lines]) + "\n"


def networks(keys: int) -> str:
    """Return the macros SORT and MERGE for so many keys of a thread."""
    return macro("SORT", sorting_network(keys)) + macro("MERGE", merging_network(keys))
