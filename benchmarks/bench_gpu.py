"""Measure what a GPU does: embedding beside plain torch and beside its limits, from and to the host, gradients, fields,
whitening, and exact search.

    python benchmarks/bench_gpu.py            some minutes on a GPU; writes docs/results/gpu.json
    python benchmarks/bench_gpu.py --quick    fewer sets, only to see that it runs
    python benchmarks/bench_gpu.py --only host views    some parts; the others stay in the file as they are

Times are medians of CUDA events around work whose input and output are on the device. The limits are those of one
sorting network for N keys, two operations for each of its comparisons at the rate of minima and maxima, and of the
bytes that come in and go out, at the rate of a copy that is measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from machine import ROOT, cpu
from slosh import Sets
from slosh.embed import DistanceField, SlicedWasserstein, Whitened
from slosh.embed.sliced_wasserstein import TF32_DIM
from slosh.gpu import columns, embedding, networks, precision, projection
from slosh.gpu.devices import checked_device
from slosh.native import kernel
from slosh.native.arrays import Quantiles, Ragged
from slosh.search import ExactSearch
from slosh.torch import SlicedWassersteinPool

OUT = ROOT / "docs" / "results" / "gpu.json"
HOW: tuple[projection.How, ...] = ("plain", "tensor", "tf32")
MINIMA_A_CLOCK = 64
"""Minima or maxima that a multiprocessor computes in a clock (CUDA programming guide, compute capability 8 and 9)."""
ROWS: list[tuple[str, Any, int, int, int, int, float]] = [
    ("150", 150, 2, 64, 32, 300_000, 20.0),
    ("20 to 300, mixed", (20, 300), 2, 64, 16, 400_000, 12.0),
    ("512", 512, 3, 64, 16, 100_000, 4.0),
    ("2,048", 2048, 3, 64, 16, 30_000, 0.7),
    ("10,000", 10_000, 16, 64, 16, 3_000, 0.08),
    ("300", 300, 128, 64, 16, 60_000, 4.0),
]
"""Elements, their number or its range, d, L, M, sets, and the goal in million sets a second."""


def seconds(work: Callable[[], Any], rounds: int = 7) -> float:
    """Return the median of the seconds that the device takes, after a round to warm up."""
    work()
    taken = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) / 1e3)
    return float(np.median(taken))


def make_sizes(kind: Any, n: int) -> np.ndarray:
    if isinstance(kind, tuple):
        return np.random.default_rng(0).integers(kind[0], kind[1] + 1, n)
    return np.full(n, kind)


def plain_torch(points: torch.Tensor, sizes: np.ndarray, directions: torch.Tensor, m: int) -> Callable[[], Any]:
    """Return the textbook expression over a padded batch: project, sort, average into bins."""
    n, width, device = len(sizes), int(sizes.max()), points.device
    if (sizes == width).all():
        edges = torch.arange(m + 1, device=device, dtype=torch.float64) * width / m
        at = torch.arange(width, device=device, dtype=torch.float64)[:, None]
        parts = (torch.minimum(at + 1, edges[1:]) - torch.maximum(at, edges[:-1])).clamp(min=0) * m / width
        bins, batch = parts.float(), points.view(n, width, -1)
        return lambda: (batch @ directions.T).transpose(1, 2).sort(dim=2).values @ bins
    lengths = torch.tensor(sizes, device=device)
    there = torch.arange(width, device=device) < lengths[:, None]
    padded = torch.zeros((n, width, points.shape[1]), device=device).masked_scatter(there[:, :, None], points)
    place = torch.arange(m + 1, device=device)[None] * lengths[:, None] / m
    low = place.floor().long().clamp(max=width - 1)
    part = (place - low)[:, None]
    index = low[:, None].expand(-1, len(directions), -1)

    def run() -> Any:
        values = (padded @ directions.T).transpose(1, 2).masked_fill(~there[:, None], torch.inf).sort(dim=2).values
        values = values.masked_fill(~there[:, None], 0.0)
        before = torch.nn.functional.pad(values.cumsum(2), (1, 0))
        upto = before.gather(2, index) + part * values.gather(2, index)
        return upto.diff(dim=2) * (m / lengths)[:, None, None]

    return run


def embedding_row(row: Any, shrink: int, copy_rate: float, clock: float) -> dict[str, Any]:
    name, kind, dim, n_slices, m, n, goal = row
    n = max(1, n // shrink)
    sizes = make_sizes(kind, n)
    known = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    device = torch.device("cuda", torch.cuda.current_device())
    generator = torch.Generator(device).manual_seed(0)
    points = torch.randn((int(known[-1]), dim), device=device, generator=generator)
    directions = torch.nn.functional.normalize(torch.randn((n_slices, dim), device=device, generator=generator))
    out = torch.empty((n, n_slices * m), device=device)
    batch = columns.Batch(points, torch.from_numpy(known).to(device), None, known)
    rule = columns.Rule(m, True, 1.0)
    ours = seconds(lambda: columns.embed(batch, directions, rule, out))
    residual = torch.empty(n, dtype=torch.float64, device=device)
    both = seconds(lambda: columns.embed(batch, directions, rule, out, residual))
    rounded = seconds(lambda: columns.embed(batch, directions, rule._replace(tf32=True), out))
    few = max(1, min(n, int(2e9 / (4 * 8 * n_slices * sizes.max()))))
    peer = plain_torch(points[: int(known[few])], sizes[:few], directions, m)
    expected = peer()
    columns.embed(batch, directions, rule, out)
    error = float((out[:few].view(expected.shape) - expected).abs().max())
    theirs = seconds(peer, 5) / few
    del peer, expected
    properties = torch.cuda.get_device_properties(device)
    counts = {int(size): len(networks.sorting_network(int(size))) for size in np.unique(sizes)}
    comparisons = sum(counts[int(size)] for size in sizes) * n_slices
    arithmetic = 2 * comparisons / (MINIMA_A_CLOCK * properties.multi_processor_count * clock)
    memory = 4 * (points.numel() + out.numel()) / copy_rate
    found = {
        "elements": name,
        "d": dim,
        "L": n_slices,
        "M": m,
        "million_sets_a_second": n / ours / 1e6,
        "goal": goal,
        "with_residuals": n / both / 1e6,
        "with_tf32": n / rounded / 1e6 if dim >= TF32_DIM else None,
        "plain_torch": 1e-6 / theirs,
        "ratio": theirs * n / ours,
        "of_network_limit": arithmetic / ours,
        "of_memory_limit": memory / ours,
        "largest_difference_to_plain_torch": error,
    }
    return found | gradient_row(points, batch, directions, m)


def gradient_row(points: torch.Tensor, batch: columns.Batch, directions: torch.Tensor, m: int) -> dict[str, float]:
    """Forward and backward of the layer, points and slices, beside the same in plain torch."""
    few = max(1, min(len(batch.known) - 1, int(3e8 / (len(directions) * int(np.diff(batch.known).max())))))
    sizes, n_points = np.diff(batch.known[: few + 1]), int(batch.known[few])
    pool = SlicedWassersteinPool(points.shape[1], len(directions), m, slices=directions, check=False).to(points.device)
    mine = points[:n_points].clone().requires_grad_()
    offsets = batch.offsets[: few + 1]

    def ours() -> None:
        pool(mine, offsets).square().sum().backward()

    own = points[:n_points].clone().requires_grad_()
    theirs = directions.clone().requires_grad_()

    def plain() -> None:
        plain_torch(own, sizes, theirs, m)().square().sum().backward()

    taken, peer = seconds(ours, 5), seconds(plain, 3)
    return {"forward_and_backward": few / taken / 1e6, "forward_and_backward_ratio": peer / taken}


def from_host(shrink: int) -> dict[str, float]:
    """Sets on the host into vectors on the host, beside the bus and beside the CPU kernel."""
    n, size, n_slices, m = 400_000 // shrink, 150, 64, 32
    points = np.random.default_rng(0).normal(size=(n * size, 2)).astype(np.float32)
    model = SlicedWasserstein(n_slices, m).fit([points[:size]])
    rule = Quantiles(model.slices_, None, n_slices, m, True, 1.0)
    sets = Ragged(points, np.arange(n + 1, dtype=np.int64) * size, None)
    out = np.zeros((n, n_slices * m), np.float32)
    taken = wall(lambda: embedding.embed(sets, rule, out, None, "cuda"))
    locked = torch.empty(out.shape, pin_memory=True).numpy()
    locked_sets = Ragged(torch.from_numpy(points).pin_memory().numpy(), sets.offsets, None)
    direct = wall(lambda: embedding.embed(locked_sets, rule, locked, None, "cuda"))
    same = float(np.array_equal(locked, out))
    held = torch.empty(1 << 28, dtype=torch.float32, pin_memory=True)
    there = torch.empty(1 << 28, dtype=torch.float32, device="cuda")
    back = held.nbytes / seconds(lambda: held.copy_(there, non_blocking=True), 5)
    forth = held.nbytes / seconds(lambda: there.copy_(held, non_blocking=True), 5)
    allowed = max(out.nbytes / back, points.nbytes / forth)
    found = {
        "million_sets_a_second": n / taken / 1e6,
        "page_locked_million_sets_a_second": n / direct / 1e6,
        "same_bits": same,
        "bus_to_host_GB_a_second": back / 1e9,
        "bus_to_device_GB_a_second": forth / 1e9,
        "of_bus": allowed / taken,
        "page_locked_of_bus": allowed / direct,
    }
    given = Sets(points, sets.offsets)
    model.set_params(device="cuda")
    whole = wall(model.transform, given)  # into new memory each time
    found |= {"transform_million_sets_a_second": n / whole / 1e6, "transform_of_bus": allowed / whole}
    few = 4000
    start = time.perf_counter()
    model.set_params(n_jobs=1, device=None).transform(points[: few * size].reshape(few, size, 2))
    found["one_cpu_core_million_sets_a_second"] = few / (time.perf_counter() - start) / 1e6
    return found


def wall(work: Callable[..., Any], *given: Any, rounds: int = 3) -> float:
    """Return the seconds of the fastest call, after one to warm up."""
    work(*given)
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        work(*given)
        taken.append(time.perf_counter() - start)
    return min(taken)


def views(shrink: int) -> dict[str, float]:
    """Distance fields and whitening, from and to the host, beside one core."""
    n, size, n_anchors = 100_000 // shrink, 150, 512
    rng = np.random.default_rng(0)
    points = rng.normal(size=(n, size, 2)).astype(np.float32)
    anchors = rng.normal(size=(n_anchors, 2)).astype(np.float32)
    field = DistanceField(anchors=anchors, device="cuda").fit(points[:2])
    found = {"field_thousand_sets_a_second": n / wall(field.transform, points) / 1e3}
    few = points[:2000]
    core = DistanceField(anchors=anchors, n_jobs=1).fit(points[:2])
    found["field_one_core"] = len(few) / wall(core.transform, few) / 1e3
    model = Whitened(SlicedWasserstein(64, 16), 64, device="cuda").fit(points[:5000])
    found["whitened_thousand_sets_a_second"] = n / wall(model.transform, points) / 1e3
    model = Whitened(SlicedWasserstein(64, 16, n_jobs=1), 64, n_jobs=1).fit(points[:5000])
    found["whitened_one_core"] = len(few) / wall(model.transform, few) / 1e3
    return found


def exact_search(shrink: int) -> dict[str, float]:
    """Exact search of a batch among vectors of 64 numbers on the device, beside one core with fewer of them."""
    dim, k, n_queries = 64, 10, max(1, 8192 // shrink)
    found: dict[str, float] = {}
    for n in (1_000_000 // shrink, 10_000_000 // shrink, 100_000_000 // shrink):
        rows = np.empty((n, dim), np.float32)
        generator = torch.Generator("cuda").manual_seed(0)
        for first in range(0, n, 1 << 22):
            part = rows[first : first + (1 << 22)]
            part[...] = torch.randn(part.shape, device="cuda", generator=generator).cpu().numpy()
        queries = torch.randn((n_queries, dim), device="cuda", generator=generator).cpu().numpy()
        search = ExactSearch(device="cuda")
        search.add(rows)
        found[f"{n:,} vectors, queries a second"] = n_queries / wall(search.search, queries, k, rounds=1)
        found[f"{n:,} vectors, milliseconds of one query"] = 1e3 * wall(search.search, queries[:1], k)
        if n == 1_000_000 // shrink:
            with kernel.limited_threads(1), threadpool_limits(1):
                core = ExactSearch()
                core.add(rows)
                few = queries[:1000]
                found["the first on one core, queries a second"] = len(few) / wall(core.search, few, k, rounds=1)
                same = core.search(few, k).rows == search.search(few, k).rows
                found["same answers"] = float(np.mean(same))
        del search, rows
        torch.cuda.empty_cache()
    return found


def products(shrink: int) -> list[dict[str, float]]:
    """The product of points and 64 slices in each way that there is, beside torch: its rate, and how far it is off."""
    return [product_row(dim, (1 << 28) // (dim + 64) // shrink) for dim in (5, 8, 12, 16, 24, 32, 64, 128, 384)]


def product_row(dim: int, n: int) -> dict[str, float]:
    """Return rates, and as "off" the root of the mean square of the errors of values whose deviation is about 1."""
    n = n // 4 * 4
    generator = torch.Generator("cuda").manual_seed(dim)
    points = torch.randn((n, dim), device="cuda", generator=generator)
    directions = torch.nn.functional.normalize(torch.randn((64, dim), device="cuda", generator=generator))
    values, few = torch.empty((64, n), device="cuda"), min(n, 1 << 18)
    exact = directions.double() @ points[:few].double().T
    found: dict[str, float] = {"d": dim, "points": n}

    def measure(name: str, work: Callable[[], Any]) -> None:
        found[f"{name}_TFLOPs"] = 2e-12 * values.numel() * dim / seconds(work)
        found[f"{name}_off"] = float((values[:, :few] - exact).square().mean().sqrt())

    for how in HOW:
        measure(how, partial(projection.project_by, how, points, directions, values))
    with precision.products("ieee"):
        measure("torch", lambda: torch.mm(directions, points.T, out=values))
    with precision.products("tf32"):
        measure("torch_tf32", lambda: torch.mm(directions, points.T, out=values))
    return found


PARTS: dict[str, Callable[[int], Any]] = {
    "products": products,
    "host": from_host,
    "views": views,
    "search": exact_search,
}
"""What is measured beside the rows of the table."""


def measured_copy_rate() -> float:
    """Return how many bytes a second a copy on the device moves, those that are read and those that are written."""
    big = torch.empty(1 << 30, device="cuda")
    other = torch.empty_like(big)
    return 2 * big.nbytes / seconds(lambda: other.copy_(big))


def highest_clock() -> float:
    """Return the highest clock of the multiprocessors of the first GPU, in Hz, as its driver says it."""
    asked = ["nvidia-smi", "--id=0", "--query-gpu=clocks.max.sm", "--format=csv,noheader,nounits"]
    return 1e6 * float(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)


def keep(result: dict[str, Any], newest: dict[str, Any], path: Path) -> None:
    """Print what was measured last, and write all that was."""
    print(json.dumps(newest), flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("rows", *PARTS), nargs="+")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    shrink = 50 if given.quick else 1
    checked_device("cuda")  # or an error with the remedy
    copy_rate = measured_copy_rate()
    properties, clock = torch.cuda.get_device_properties(0), highest_clock()
    result: dict[str, Any] = {} if given.only is None else json.loads(given.out.read_text())
    here = {"gpu": properties.name, "clock_MHz": clock / 1e6, "copy_TB_a_second": copy_rate / 1e12, "cpu": cpu()}
    here |= {"torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    measured_on = result.setdefault("measured_on", {})
    if given.only is None or "rows" in given.only:
        result["rows"], measured_on["rows"] = [], here
        for row in ROWS:
            result["rows"].append(embedding_row(row, shrink, copy_rate, clock))
            keep(result, result["rows"][-1], given.out)
            torch.cuda.empty_cache()
    for name, work in PARTS.items():
        if given.only is None or name in given.only:
            result[name], measured_on[name] = work(shrink), here
            keep(result, result[name], given.out)


if __name__ == "__main__":
    main()
