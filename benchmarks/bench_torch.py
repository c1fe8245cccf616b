"""Measure the layer of slosh.torch beside the plain torch expression that it replaces: forward and backward.

    .venv/bin/python benchmarks/bench_torch.py [--threads 1 2] [--out FILE]

writes docs/results/torch.json. The plain expression takes a padded batch of sets of one size, which suits it best: a
matrix product, `torch.sort`, a cumulative sum, and the means of bins. Both get the same points, slices and upstream
gradient, and give the same vectors and gradients, which is checked. A step is forward, and backward to points, slices
and reference. With one thread times are CPU times, with more they are wall-clock times; the fastest of several rounds
in turns.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from machine import ROOT, cpu
from slosh.native import kernel
from slosh.torch import SlicedWassersteinPool, sliced_wasserstein

SIZES, DIMS = (32, 150, 512, 2048), (2, 3, 64)
N_SLICES, N_QUANTILES = 64, 16
POINTS = {2: 1 << 16, 3: 1 << 16, 64: 1 << 15}
"""Elements of a batch, by the dimension."""


def plain(points: Tensor, directions: Tensor, reference: Tensor) -> Tensor:
    """Return what the layer returns, by the average rule, in torch operations over a padded batch (n, N, d)."""
    size, (n_slices, n_quantiles) = points.shape[1], reference.shape
    values = points @ torch.nn.functional.normalize(directions, dim=1).T
    ordered = values.transpose(1, 2).sort(dim=2).values
    before = torch.nn.functional.pad(ordered.cumsum(2), (1, 0))
    place = torch.arange(n_quantiles + 1) * size / n_quantiles
    which = place.floor().long().clamp(max=size - 1)
    upto = before[:, :, which] + ordered[:, :, which] * (place - which)
    quantiles = upto.diff(dim=2) * (n_quantiles / size)
    return ((quantiles - reference) / math.sqrt(n_slices * n_quantiles)).flatten(1)


def plain_loss(x: Tensor, y: Tensor, directions: Tensor) -> Tensor:
    """Return the squared distances of two padded batches of sets of the same size: sort both, and subtract."""
    theta = torch.nn.functional.normalize(directions, dim=1)
    gap = (x @ theta.T).sort(dim=1).values - (y @ theta.T).sort(dim=1).values
    return gap.square().mean(dim=(1, 2))


class Step:
    """One forward and backward pass of a function of leaves, timed apart."""

    def __init__(self, forward: Callable[[], Tensor], leaves: list[Tensor], upstream: Tensor) -> None:
        self.forward, self.leaves, self.upstream = forward, leaves, upstream
        self.best = [math.inf, math.inf]

    def run(self, clock: Callable[[], float]) -> list[Tensor]:
        for leaf in self.leaves:
            leaf.grad = None
        start = clock()
        result = self.forward()
        middle = clock()
        result.backward(self.upstream)
        end = clock()
        if end - start < sum(self.best):
            self.best = [middle - start, end - middle]
        return [result.detach(), *(leaf.grad for leaf in self.leaves if leaf.grad is not None)]


def compare(steps: dict[str, Step], clock: Callable[[], float], rounds: int) -> dict[str, Any]:
    """Return the seconds of the fastest step of each, forward and backward, in turns, and how far the two differ."""
    found = {name: step.run(clock) for name, step in steps.items()}
    pairs = zip(*found.values(), strict=True)
    apart = max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-6)) for a, b in pairs)
    for step in steps.values():
        step.best = [math.inf, math.inf]
    for _ in range(rounds):
        for step in steps.values():
            step.run(clock)
    times = {name: {"forward": step.best[0], "backward": step.best[1]} for name, step in steps.items()}
    ratio = sum(times["torch"].values()) / sum(times["slosh"].values())
    return {**times, "ratio": ratio, "largest_relative_difference": apart}


def measure(size: int, dim: int, threads: int, rounds: int) -> dict[str, Any]:
    """Return the times of the layer and of the loss, beside the plain expressions, for sets of one size."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    n = max(1, POINTS[dim] // size)
    pool = SlicedWassersteinPool(dim, N_SLICES, N_QUANTILES)
    points, other = torch.randn(n, size, dim, requires_grad=True), torch.randn(n, size, dim) + 0.5
    leaves, upstream = [points, pool.directions, pool.reference], torch.randn(n, N_SLICES * N_QUANTILES)
    layer = {
        "slosh": Step(lambda: pool(points), leaves, upstream),
        "torch": Step(lambda: plain(points, pool.directions, pool.reference), leaves, upstream),
    }
    slices = pool.directions.detach().clone().requires_grad_()
    one = torch.randn(n)
    loss = {
        "slosh": Step(lambda: sliced_wasserstein(points, other, slices=slices, squared=True), [points, slices], one),
        "torch": Step(lambda: plain_loss(points, other, slices), [points, slices], one),
    }
    case = {"size": size, "dim": dim, "sets": n, "threads": threads}
    return {**case, "layer": compare(layer, clock, rounds), "loss": compare(loss, clock, rounds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "torch.json")
    options = parser.parse_args()
    about = {
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "kernel": kernel.name(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "n_slices": N_SLICES,
        "n_quantiles": N_QUANTILES,
    }
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print("ns for each element and slice: forward + backward; the ratio is plain torch / slosh")
    cases = []
    for threads in options.threads:
        for dim in DIMS:
            for size in SIZES:
                case = measure(size, dim, threads, options.rounds)
                cases.append(case)
                steps = case["sets"] * size * N_SLICES / 1e9
                for kind in ("layer", "loss"):
                    told = case[kind]
                    times = "  ".join(
                        f"{name} {told[name]['forward'] / steps:6.2f} + {told[name]['backward'] / steps:6.2f}"
                        for name in ("slosh", "torch")
                    )
                    place = f"threads {threads}  d {dim:2}  N {size:4}  {kind:5}"
                    apart = told["largest_relative_difference"]
                    print(f"{place}  {times}  ratio {told['ratio']:5.1f}  (apart {apart:.0e})", flush=True)
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps({**about, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
