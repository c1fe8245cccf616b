"""Measure how the kernel's time grows with the size of a set, compared with np.sort.

    python benchmarks/sweep_sizes.py

It prints nanoseconds of CPU time of one thread per element and slice, for d = 3 and 64 slices of 16 numbers. Up to
3,072 elements the average rule uses the sorting network, beyond that it selects bins; the linear rule and weights use
the network up to 8,192 elements and a radix sort beyond. The columns show where each way starts to pay.
"""

from __future__ import annotations

import numpy as np

from bench_embed import N_QUANTILES, N_SLICES, best, generated
from machine import cpu
from slosh import Sets
from slosh.embed import SlicedWasserstein
from slosh.native import kernel

SIZES = (1, 8, 16, 32, 64, 128, 150, 256, 512, 1024, 2048, 3072, 4096, 8192, 10_000, 32_768, 100_000, 1_000_000)


def main() -> None:
    """Print the table."""
    print(f"kernel {kernel.name()}, {cpu()}")
    print("ns per element and slice")
    print("".join(f"{name:>10}" for name in ("N", "average", "residual", "linear", "weighted", "np.sort")))
    for size in SIZES:
        sets = generated(max(1, min(20_000, 600_000 // size)), size, 3)
        weights = np.random.RandomState(1).uniform(0.5, 1.5, len(sets.points)).astype(np.float32)
        weighted = Sets(sets.points, sets.offsets, weights)
        out = np.zeros((len(sets), N_SLICES * N_QUANTILES), np.float32)
        average = SlicedWasserstein(N_SLICES, N_QUANTILES, n_jobs=1).fit(sets)
        linear = SlicedWasserstein(N_SLICES, N_QUANTILES, quantiles="linear", n_jobs=1).fit(sets)
        some = np.random.RandomState(0).normal(size=(max(1, len(sets) // 10), N_SLICES, size)).astype(np.float32)
        unit = 1e9 / (len(sets.points) * N_SLICES)
        cells = [
            unit * best(lambda: average.transform(sets, out=out), at_least=0.2),  # noqa: B023
            unit * best(lambda: average.transform(sets, out=out, return_residual=True), at_least=0.2),  # noqa: B023
            unit * best(lambda: linear.transform(sets, out=out), at_least=0.2),  # noqa: B023
            unit * best(lambda: average.transform(weighted, out=out), at_least=0.2),  # noqa: B023
            1e9 / some.size * best(lambda: np.sort(some, axis=2), at_least=0.2),  # noqa: B023
        ]
        print(f"{size:10}" + "".join(f"{cell:10.2f}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
