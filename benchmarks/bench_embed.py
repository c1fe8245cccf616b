"""Compare the embedding kernel with its peers in one run: `make bench-embed`. Prints a table and writes a JSON file.

The peers, on the same slices and sets, are slosh's NumPy reference; the textbook loop (for each set: project, np.sort,
average into bins); a matrix product by BLAS of each set, which is the projection alone; and POT's
sliced_wasserstein_distance for one pair, since POT has no embedding. The floor is what the arithmetic alone would take
at the rates that this machine reaches in the same run: the compare-exchanges of Batcher's network in registers (for
large sets, which need no sort, one write and one read of the projected values), the multiply-adds of the projection as
in a matrix product, and the output once through memory. Measured beside the slices are the distance field of 256
anchors and, in two and three dimensions, the columns that local shape adds to the elements, before these are embedded.
Times are CPU seconds of one thread, the best of several; only the column "two threads" compares wall-clock times.

NumPy sorts with the best instructions of the machine, whatever --kernel says; NPY_DISABLE_CPU_FEATURES holds it back.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import ot
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import slosh
from machine import DATA, ROOT, cpu, fastest
from slosh import Sets
from slosh.embed import DistanceField, LocalShape, SlicedWasserstein
from slosh.native import kernel, kernel_numpy
from slosh.native.arrays import Quantiles, Ragged

N_SLICES, N_QUANTILES, N_ANCHORS = 64, 16, 256


def mnist(n: int) -> Sets:
    """Return the first n sets of MNIST."""
    with np.load(DATA / "pointcloud_mnist_2d.npz") as file:
        offsets = file["offsets"][: n + 1].astype(np.int64)
        return Sets(file["points"][: offsets[-1]].astype(np.float32) / 28, offsets)


def modelnet(n: int) -> Sets:
    """Return the first n objects of ModelNet40 with the paper's sizes."""
    with np.load(DATA / "modelnet40_3d.npz") as file:
        points = file["points"][: n * 768].reshape(n, 768, 3)
    sizes = np.clip(np.random.RandomState(0).normal(512, 64, n).astype(int), 1, 768)  # the paper's n ~ N(512, 64)
    return Sets.from_padded(points.astype(np.float32), lengths=sizes)


def generated(n_sets: int, size: int, dim: int) -> Sets:
    """Return sets of normal vectors."""
    points = np.random.RandomState(0).normal(size=(n_sets * size, dim)).astype(np.float32)
    return Sets(points, np.arange(n_sets + 1) * size)


def textbook(sets: Sets, theta: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Embed the sets as one would write it first: without batches, but with sensible NumPy calls."""
    scale = 1 / np.sqrt(out.shape[1])
    for i, x in enumerate(sets):
        values = np.sort(theta @ x.T, axis=1)
        size = values.shape[1]
        if size % N_QUANTILES == 0:
            means = values.reshape(len(theta), N_QUANTILES, -1).mean(axis=2)
        else:
            edges = np.arange(1, N_QUANTILES + 1) * (size / N_QUANTILES)  # in elements
            whole = np.minimum(edges.astype(int), size - 1)
            upto = np.cumsum(values, axis=1, dtype=np.float64)
            integral = upto[:, whole] - (whole + 1 - edges) * values[:, whole]
            means = np.diff(integral, axis=1, prepend=0) * (N_QUANTILES / size)
        out[i] = means.ravel() * scale


def project(sets: Sets, theta: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Project each set by a matrix product into the first rows of `out`: the fastest of the ways to ask BLAS for it."""
    columns = np.ascontiguousarray(theta.T)
    for x in sets:
        np.matmul(x, columns, out=out[: len(x)])


def best(work: Callable[[], object], clock: Callable[[], float] = time.process_time, at_least: float = 0.6) -> float:
    """Return the seconds of the fastest run in `at_least` seconds, and at least three runs."""
    return fastest(work, 3, at_least, clock)[0]


def exchanges(n: int) -> int:
    """Count the compare-exchanges of Batcher's odd-even merge sort for the next power of two, cut off at n wires."""
    count, p = 0, 1
    while p < n:
        k = p
        while k >= 1:
            j = np.arange(k % p, n - k, 2 * k)[:, None] + np.arange(k)
            j = j[(j + k) < n]
            count += int(np.count_nonzero(j // (2 * p) == (j + k) // (2 * p)))
            k //= 2
        p *= 2
    return count


def floor(sets: Sets, exchange_rate: float, add_rate: float, copy_rate: float) -> float:
    """Return the seconds that the arithmetic of sort and projection and one pass of the output would take."""
    sizes, counts = np.unique(sets.sizes, return_counts=True)
    sort = 0.0
    for size, count in zip(sizes, counts, strict=True):
        # The average rule need not sort a large set, but its values must be written and read once.
        sort += count * (exchanges(int(size)) / exchange_rate if size <= 3072 else 2 * 4 * size / copy_rate) * N_SLICES
    project = len(sets.points) * N_SLICES * sets.dim / add_rate
    return sort + project + len(sets) * N_SLICES * N_QUANTILES * 4 / copy_rate


def rates() -> tuple[float, float, float]:
    """Return compare-exchanges, multiply-adds of a matrix product, and bytes copied per second, for one thread."""
    exchange = max(kernel.native.exchange_rate(200_000) for _ in range(60))  # a busy machine interrupts most of them
    a, b = np.random.rand(2048, 512).astype(np.float32), np.random.rand(512, 512).astype(np.float32)
    product = a.size * 512 / best(lambda: a @ b, at_least=0.3)
    block = np.zeros(1 << 24, np.float32)
    target = np.zeros_like(block)
    copy = block.nbytes / best(lambda: np.copyto(target, block), at_least=0.3)
    return float(exchange), product, copy


def measure(name: str, sets: Sets, speeds: tuple[float, float, float]) -> dict[str, float | str]:
    """Return the times of the kernel and its peers on some sets, and their ratios."""
    model = SlicedWasserstein(N_SLICES, N_QUANTILES, n_jobs=1).fit(sets)
    theta = model.slices_
    assert isinstance(theta, np.ndarray)
    out = np.zeros((len(sets), N_SLICES * N_QUANTILES), np.float32)
    expected = np.zeros_like(out)
    few = sets[: max(1, min(len(sets), 400_000 // int(sets.sizes.mean())))]

    ours = best(lambda: model.transform(sets, out=out)) / len(sets)
    loop = best(lambda: textbook(few, theta, expected[: len(few)])) / len(few)
    assert np.allclose(out[: len(few)], expected[: len(few)], atol=2e-5 * max(1.0, float(np.abs(out).max()))), (
        "results differ"
    )
    ragged, rule = Ragged(few.points, few.offsets, None), Quantiles(theta, None, N_SLICES, N_QUANTILES)
    reference = best(
        lambda: kernel_numpy.embed(ragged, rule, np.empty_like(out[: len(few)]), None), at_least=0.1
    ) / len(few)

    projected = np.zeros((int(few.sizes.max()), N_SLICES), np.float32)
    product = best(lambda: project(few, theta, projected)) / len(few)

    field = DistanceField(N_ANCHORS, n_jobs=1).fit(few)
    fields = np.zeros((len(sets), N_ANCHORS), np.float32)
    distances = best(lambda: field.transform(sets, out=fields)) / len(sets)

    local = None
    if sets.dim in (2, 3):
        shape = LocalShape(SlicedWasserstein(N_SLICES, N_QUANTILES), n_jobs=1).fit(few)
        some = sets[:2_000]  # what is added takes more memory than the sets
        local = best(lambda: shape.enrich(some)) / len(some)

    two = SlicedWasserstein(N_SLICES, N_QUANTILES, n_jobs=2).fit(sets)
    wall_one = best(lambda: model.transform(sets, out=out), time.perf_counter)
    wall_two = best(lambda: two.transform(sets, out=out), time.perf_counter)

    # A pair costs POT both sorts. The kernel embeds both sets and subtracts.
    pair = ot.sliced_wasserstein_distance
    x, y = sets[0].astype(np.float64), sets[1].astype(np.float64)
    projections = theta.T.astype(np.float64)
    pot = best(lambda: pair(x, y, projections=projections), at_least=0.3)
    ideal = floor(sets, *speeds) / len(sets)
    return {
        "data": name, "sets": len(sets), "median size": float(np.median(sets.sizes)), "dim": sets.dim,
        "us": 1e6 * ours, "ns/element/slice": 1e9 * ours * len(sets) / len(sets.points) / N_SLICES,
        "product us": 1e6 * product, "textbook us": 1e6 * loop, "numpy us": 1e6 * reference, "POT pair us": 1e6 * pot,
        "x textbook": loop / ours, "x numpy": reference / ours, "x POT pair": pot / (2 * ours),
        "floor": ideal / ours, "x two threads": wall_one / wall_two,
        "field us": 1e6 * distances, "field / sliced": distances / ours,
        "local us": None if local is None else 1e6 * local,
    }  # fmt: skip


def peak_memory() -> float:
    """Return the peak megabytes of embedding 60,000 sets beyond input and output, in a process of its own."""
    code = """
import re, numpy as np, bench_embed
from pathlib import Path
from slosh.embed import SlicedWasserstein
def megabytes(field): return int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
sets = bench_embed.cases(60_000)[0][1]
model = SlicedWasserstein(64, 16).fit(sets)
out = np.ones((len(sets), 1024), np.float32)
Path("/proc/self/clear_refs").write_text("5")  # resets the peak
before = megabytes("VmRSS")
model.transform(sets, out=out)
print(megabytes("VmHWM") - before)
"""
    here = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=True)
    return float(done.stdout)


def cases(n_mnist: int = 10_000) -> list[tuple[str, Sets]]:
    """Return the sets to embed, by name; generated ones stand in for missing data."""
    real = [("MNIST", mnist(n_mnist)), ("ModelNet40", modelnet(2_000))] if DATA.exists() else []
    stand_in = [("like MNIST", generated(n_mnist, 150, 2)), ("like ModelNet40", generated(2_000, 512, 3))]
    return [
        *(real or stand_in),
        ("N=10000 d=16", generated(40, 10_000, 16)),
        ("N=300 d=128", generated(1_000, 300, 128)),
    ]


COLUMNS = {
    "us": ("slosh us/set", "{:.1f}"),
    "ns/element/slice": ("ns/el*slice", "{:.2f}"),
    "product us": ("sgemm us", "{:.1f}"),
    "textbook us": ("textbook us", "{:.1f}"),
    "numpy us": ("NumPy us", "{:.1f}"),
    "POT pair us": ("POT us/pair", "{:.0f}"),
    "x textbook": ("x textbook", "{:.1f}x"),
    "x numpy": ("x NumPy", "{:.1f}x"),
    "x POT pair": ("x POT", "{:.0f}x"),
    "floor": ("of the floor", "{:.0%}"),
    "x two threads": ("two threads", "{:.2f}x"),
    "field us": ("field us", "{:.1f}"),
    "field / sliced": ("field/slices", "{:.2f}"),
    "local us": ("local us", "{:.1f}"),
}


def main() -> None:
    """Print the table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "embed.json")
    parser.add_argument("--kernel", default=None, help="avx512, avx2 or generic (default: the best of this machine)")
    options = parser.parse_args()
    if kernel.native is None:
        raise SystemExit("slosh was installed without its native kernel, so there is nothing to compare.")
    if options.kernel:
        kernel.native.use(options.kernel)
    machine = {
        "cpu": cpu(), "cores": os.cpu_count(), "kernel": kernel.name(), "python": platform.python_version(),
        "numpy": np.__version__, "numpy without": os.environ.get("NPY_DISABLE_CPU_FEATURES", "nothing"),
        "POT": ot.__version__, "slosh": slosh.__version__, "date": str(date.today()),
    }  # fmt: skip
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    if not DATA.exists():
        print(f"{DATA} is missing: generated sets of the same sizes stand in for MNIST and ModelNet40.")
    with threadpool_limits(1):  # NumPy's matrix products must not use a second core
        speeds = rates()
        names = ("compare-exchanges", "multiply-adds", "bytes copied")
        print("G/s: " + ", ".join(f"{name} {speed / 1e9:.1f}" for name, speed in zip(names, speeds, strict=True)))
        print(f"L = {N_SLICES}, M = {N_QUANTILES}, average rule; CPU time of one thread\n")
        print(f"{'':15}" + "".join(f"{title:>13}" for title, _ in COLUMNS.values()))
        rows = []
        for name, sets in cases():
            row = measure(name, sets, speeds)
            rows.append(row)
            cells = ("-" if row[key] is None else form.format(row[key]) for key, (_, form) in COLUMNS.items())
            print(f"{name:15}" + "".join(f"{cell:>13}" for cell in cells), flush=True)
    extra = peak_memory()
    print(f"\npeak memory of embedding 60,000 sets beyond input and output: {extra:.0f} MB")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    rates_found = dict(zip(names, speeds, strict=True))
    result = {"machine": machine, "n_slices": N_SLICES, "n_quantiles": N_QUANTILES, "rates": rates_found}
    options.output.write_text(json.dumps({**result, "rows": rows, "peak MB": extra}, indent=1) + "\n")
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()
