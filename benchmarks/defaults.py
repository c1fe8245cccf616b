"""Measure how the defaults of SlicedWasserstein were chosen: recall against slices, quantiles and kind of slices.

    .venv/bin/python benchmarks/defaults.py [--tokens minilm_tokens_384d.npz]

The sets are real, in d = 2, 3, 8, 64 and 384 dimensions. The truth is the exact sliced distance over thousands of
slices; the recall is the share of its ten nearest sets that an embedding of L slices and M quantiles finds. The run
takes about eleven minutes of one core. It writes docs/results/defaults.json, docs/defaults.png, and the tables between
the markers of docs/defaults.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from machine import DATA, ROOT, fastest
from markdown_tables import markdown_table
from slosh import Sets
from slosh.embed import SlicedWasserstein
from slosh.native import kernel
from slosh.native.arrays import Ragged
from slosh.slices import directions

Array = NDArray[Any]
Pair = Sequence[Sets]  # database, queries
DOCS = ROOT / "docs"

# The proposed slices and kind by dimension, with M quantiles.
CHOICE = {2: (16, "qmc"), 3: (64, "qmc"), 8: (128, "orthogonal"), 64: (256, "orthogonal"), 384: (384, "orthogonal")}
KINDS = ("random", "orthogonal", "qmc")
LEVELS = (8, 16, 32, 64, 128, 256, 512, 1024)
MORE_LEVELS = {384: (192, 320, 384, 448, 640, 768, 896)}  # around multiples of d slices
M, QUANTILES = 16, (4, 8, 16, 32, 64)
SEEDS, TRUTH_SEEDS = (0, 1, 2), (1000, 1001)  # the truth has two halves, which are compared with each other
FINEST, TRUTH_QUANTILES, CANDIDATES = max(QUANTILES), 128, 50
N_DATABASE, N_QUERIES, K = 2250, 250, 10
# Dimensions in between, made by PCA from the data of one, and their numbers of slices.
BETWEEN: dict[int, Any] = {64: {**dict.fromkeys((4, 6, 16), (32, 64, 128, 256)), 32: (64, 128, 256)},
                           384: {100: (64, 100, 128, 200, 256, 300)}}  # fmt: skip


def choose(split: Array, n_database: int = N_DATABASE) -> list[Array]:
    """Return random rows of the database and of the queries."""
    random = np.random.RandomState(0)
    return [random.permutation(np.flatnonzero(split == side))[:n] for side, n in ((0, n_database), (1, N_QUERIES))]


def read(path: Path, scale: float = 1.0, n_database: int = N_DATABASE) -> Pair:
    """Return database and queries of a prepared file."""
    with np.load(path) as file:
        sets, split = Sets(file["points"].astype(np.float32) / scale, file["offsets"]), file["split"]
    if (split == 1).sum() < N_QUERIES:  # Oxford marks only 55 photos: any photo may be a query here
        split = (np.random.RandomState(1).permutation(len(sets)) < N_QUERIES).astype(int)
    database, queries = (sets.take(rows) for rows in choose(split, n_database))
    return database, queries


def few(sets: Sets, n: int) -> Sets:
    """Return n random elements of each set."""
    random = np.random.RandomState(0)
    return Sets.from_list([sets[i][random.permutation(len(sets[i]))[:n]] for i in range(len(sets))])


def patches() -> Pair:
    """Return MNIST images as sets of their 8 x 8 patches at a stride of 2 that are not almost empty: d = 64."""
    with np.load(DATA / "pointcloud_mnist_2d.npz") as file:
        points, grey, offsets, split = (file[name] for name in ("points", "weights", "offsets", "split"))
    sets = []
    for row in np.concatenate(choose(split)):
        part = slice(offsets[row], offsets[row + 1])
        image = np.zeros((28, 28), np.float32)
        image[points[part, 1], points[part, 0]] = grey[part] / 255.0
        windows = np.lib.stride_tricks.sliding_window_view(image, (8, 8))[::2, ::2].reshape(-1, 64)
        sets.append(windows[windows.sum(axis=1) > 1.0])
    return Sets.from_list(sets[:N_DATABASE]), Sets.from_list(sets[N_DATABASE:])


def mixtures(dim: int) -> Pair:
    """Return a stand-in for token vectors: each set mixes a few of 60 shared Gaussians with a decaying spectrum."""
    random = np.random.RandomState(77)  # not a seed of the slices, which would give the same numbers
    spread, sets = np.arange(1, dim + 1) ** -0.5, []
    centers = random.standard_normal((60, dim)) * spread
    for size in random.randint(30, 120, N_DATABASE + N_QUERIES):
        which = random.choice(60, size, p=random.dirichlet(np.full(60, 0.1)))
        sets.append(centers[which] + 0.7 * spread * random.standard_normal((size, dim)))
    return Sets.from_list(sets[:N_DATABASE]), Sets.from_list(sets[N_DATABASE:])


def load(dim: int, tokens: Path | None) -> tuple[Any, ...]:
    """Return the name, the database and the queries for a dimension."""
    if dim == 2:
        return "Point Cloud MNIST", *read(DATA / "pointcloud_mnist_2d.npz", 28.0)
    if dim == 3:
        return "ModelNet40, 512 points", *(few(sets, 512) for sets in read(DATA / "modelnet40_3d.npz"))
    if dim == 8:
        return "Oxford 5k, VGG16 cells", *read(DATA / "oxford5k_vgg16_8d.npz")
    if dim == 64:
        return "MNIST, 8 x 8 patches", *patches()
    return ("MiniLM tokens of docstrings", *read(tokens)) if tokens else ("generated, not real data", *mixtures(dim))


def squares(queries: Sets, database: Sets, slices: Array, quantiles: Sequence[int]) -> dict[int, Array]:
    """Return squared distances (queries, database), summed over the slices, for each M."""
    finest = max(quantiles)
    sums = {m: np.zeros((len(queries), len(database))) for m in quantiles}
    step = 8192 // finest  # vectors of 8192 numbers: 80 MB for 2500 sets
    for start in range(0, len(slices), step):
        model = SlicedWasserstein(None, finest, slices=slices[start : start + step], n_jobs=1).fit(database[:1])
        y = model.transform(database)
        origin = y.mean(axis=0)  # avoids cancellation in |x|^2 + |y|^2 - 2 <x, y>
        x = model.transform(queries) - origin
        y -= origin
        for m in sorted(quantiles, reverse=True):
            while x.shape[1] > m * model.n_slices_:  # the bins of M are pairs of those of 2 M
                x, y = (0.5 * (v[:, ::2] + v[:, 1::2]) for v in (x, y))
            block = np.einsum("ij,ij->i", x, x)[:, None] + np.einsum("ij,ij->i", y, y)[None, :] - 2.0 * (x @ y.T)
            sums[m] += np.maximum(block, 0.0) * (model.n_slices_ * finest / m)  # undoes 1 / sqrt(L M) of `finest`
    return sums


def exact_squares(queries: Sets, database: Sets, slices: Array, pairs: Array) -> Array:
    """Return the exact squared distances of some pairs, without binning, summed over the slices."""
    total = np.zeros(len(pairs))
    for start in range(0, len(slices), 32):
        part = np.ascontiguousarray(slices[start : start + 32])
        x, y = (kernel.sort(Ragged(s.points, s.offsets, None), part, len(part), 1) for s in (queries, database))
        total += len(part) * kernel.transport(x, y, pairs, 1)
    return total


def found(distances: Array, true: Array, among: int = K) -> float:
    """Return the share of the true ten that is among this many nearest."""
    near = np.argsort(distances, axis=1, kind="stable")[:, :among]
    return round(float((near[:, :, None] == true[:, None, :]).any(axis=1).mean()), 4)


def truth(queries: Sets, database: Sets, n_slices: int | None) -> tuple[Array, Array, dict[str, Any]]:
    """Return the true ten nearest, binned distances as a base for errors, and how far the truth can be trusted.

    Many quantiles select candidates, and exact transport ranks them. Binned distances are lower bounds over the same
    slices, so the ten are proved if the tenth is no farther than the binned distance of every set left out.
    """
    dim, n = database.dim, len(queries)
    kind, block = ("qmc", 1) if dim <= 3 else ("orthogonal", dim)  # orthogonal slices come in blocks
    n_slices = -(-(n_slices or (1024 if dim <= 3 else 2048 if dim < 64 else 4096)) // block) * block
    halves = [directions(kind, n_slices, dim, seed) for seed in TRUTH_SEEDS]
    sums = [squares(queries, database, part, (TRUTH_QUANTILES, FINEST)) for part in halves]
    lower, fine = (sums[0][m] + sums[1][m] for m in (TRUTH_QUANTILES, FINEST))
    order = np.argsort(lower, axis=1, kind="stable")[:, : CANDIDATES + 1]
    pairs = np.stack([np.repeat(np.arange(n), CANDIDATES), order[:, :-1].ravel()], axis=1)
    exact = [exact_squares(queries, database, part, pairs).reshape(n, CANDIDATES) for part in halves]
    first, both = (np.argsort(e, axis=1, kind="stable")[:, :K] for e in (exact[0], exact[0] + exact[1]))
    proved = np.take_along_axis(sum(exact), both[:, -1:], axis=1) <= np.take_along_axis(lower, order[:, -1:], axis=1)
    facts = {"truth_slices": 2 * n_slices, "halves_agree": found(exact[1], first), "proved": float(proved.mean())}
    return np.take_along_axis(order, both, axis=1), np.sqrt(fine / (2 * n_slices)), facts


def measure(pair: Pair, kinds: Sequence[str], levels: Sequence[int], ms: Sequence[int], n_truth: int | None = None,
            seeds: Sequence[int] = SEEDS) -> dict[str, Any]:  # fmt: skip
    """Measure recalls and errors for kinds and numbers of slices and quantiles.

    `scores` has, by "kind L M" and seed, recall@10 and the share of the ten in the best 20. `errors` has, by "kind L"
    and seed, the root mean square relative error over all pairs and over the true ten, against the truth at the same M.
    """
    database, queries = pair
    true, length, facts = truth(queries, database, n_truth)
    scores, errors = defaultdict(list), defaultdict(list)
    for kind in kinds:
        nested = database.dim > 3 or kind != "qmc"  # a shorter draw is a prefix of a longer one
        for seed in seeds:
            sums, drawn = dict.fromkeys(ms, np.zeros(())), directions(kind, levels[-1], database.dim, seed)
            for before, level in zip((0, *levels), levels, strict=False):
                part = drawn[before:level] if nested else directions(kind, level, database.dim, seed)
                new = squares(queries, database, part, ms)
                sums = {m: sums[m] + new[m] for m in ms} if nested else new
                for m in ms:
                    scores[f"{kind} {level} {m}"].append([found(sums[m], true), found(sums[m], true, 20)])
                if FINEST in ms:
                    off = (np.sqrt(sums[FINEST] / level) / length - 1) ** 2
                    both = (off, np.take_along_axis(off, true, axis=1))
                    errors[f"{kind} {level}"].append([float(np.sqrt(o.mean())) for o in both])
    return {"database": len(database), "queries": len(queries), "median_size": int(np.median(database.sizes)), **facts,
            "kinds": kinds, "levels": levels, "ms": ms, "scores": scores, "errors": errors}  # fmt: skip


def embed_us(sets: Sets, n_slices: int, kind: str, n_quantiles: int) -> float:
    """Return the CPU microseconds per set of one thread: the best of ten runs over 300 sets."""
    model = SlicedWasserstein(n_slices, n_quantiles, slices=kind, n_jobs=1).fit(sets[:300])
    seconds, _ = fastest(lambda: model.transform(sets[:300]), rounds=10)
    return round(1e6 * seconds / 300, 1)


def study(tokens: Path | None) -> dict[str, Any]:
    """Run all measurements."""
    begin = time.process_time()
    result: dict[str, Any] = {"kernel": kernel.name(), "by_dim": {}, "checks": []}
    for dim, (n_slices, kind) in CHOICE.items():
        name, *pair = load(dim, tokens)
        levels = sorted({*LEVELS, *MORE_LEVELS.get(dim, ())})
        one = result["by_dim"][dim] = {"data": name, **measure(pair, KINDS, levels, QUANTILES)}
        one["us"] = {level: embed_us(pair[0], level, kind, M) for level in levels}
        one["us_by_m"] = {m: embed_us(pair[0], n_slices, kind, m) for m in QUANTILES}
        print(f"d = {dim}, {name}: {time.process_time() - begin:.0f} s", flush=True)
        checks: list[tuple[Any, ...]] = []
        if dim <= 3:
            sparse = [few(sets, 4 * dim) for sets in pair]
            checks.append((f"{name}, {4 * dim} random elements", sparse, ("qmc",), (8, 16, 32, 64, 128), 1024))
        if dim == 2:
            many, some = read(DATA / "pointcloud_mnist_2d.npz", 28.0, n_database=20_000)
            checks.append((f"{name}, 20,000 sets", (many, some[:100]), ("qmc",), (8, 16, 32), 256))
        mean = pair[0].points.mean(axis=0, dtype=np.float64)
        for d, levels in BETWEEN.get(dim, {}).items():
            axes = np.linalg.eigh(np.cov((pair[0].points - mean).T))[1][:, -d:]
            reduced = [Sets((sets.points - mean) @ axes, sets.offsets) for sets in pair]
            checks.append((f"{name}, PCA", reduced, KINDS[1:] if d < 8 else KINDS[1:2], levels, 1024))
        for name, pair, kinds, levels, n_truth in checks:
            one = measure(pair, kinds, levels, (M, 2 * M), n_truth, SEEDS[:2])
            result["checks"].append({"dim": pair[0].dim, "data": name, **one})
    return {**result, "cpu_seconds": round(time.process_time() - begin)}


def score(one: dict[str, Any], kind: str, n: int, m: int = M, which: int = 0, spread: bool = False) -> str:
    """Format a mean score over the seeds, with its standard deviation if `spread`."""
    values = np.array(one["scores"][f"{kind} {n} {m}"])[:, which]
    return f"{values.mean():.3f}" + (f" ± {values.std(ddof=1):.3f}" if spread else "")


def tables(result: dict[str, Any]) -> dict[str, str]:
    """Return the tables of the page by marker."""
    rows: dict[str, list[Any]] = defaultdict(list)
    for dim, one in result["by_dim"].items():
        n, kind = CHOICE[int(dim)]
        size = f"{4 * int(dim) * one['median_size'] / 1024:.1f} KB"
        rows["proposal"].append((dim, one["data"], n, kind, M, n * M, f"{n * M / 256:g} KB", size, score(one, kind, n,
                                 spread=True), score(one, kind, n, which=1), one["us"][str(n)]))  # fmt: skip
        facts = ("data", "database", "queries", "median_size", "truth_slices", "proved", "halves_agree")
        rows["truth"].append((dim, *(one[fact] for fact in facts)))
        rows["quantiles"].append((dim, n, *(f"{score(one, kind, n, m)} ({one['us_by_m'][str(m)]})" for m in QUANTILES)))
        splits = ((2 * n, M // 2), (n, M), (n // 2, 2 * M))
        rows["trades"].append((dim, n * M, *(f"{score(one, kind, s, m)} ({s} x {m})" for s, m in splits)))
        for k in KINDS:
            errors = (np.mean(one["errors"][f"{k} {s}"], axis=0) * 100 for s in (16, 64, 256, 1024))
            rows["errors"].append((dim, k, *(f"{a:.2g} / {b:.2g}" if b > 0.01 else "< 0.01" for a, b in errors)))
        lines = [(s, f"{s * M / 256:g} KB", one["us"][str(s)], *(score(one, k, s, spread=True) for k in KINDS),
                  score(one, kind, s, which=1)) for s in one["levels"]]  # fmt: skip
        head = f"slices, bytes, us/set, {', '.join(KINDS)}, ten in best 20 ({kind})"
        rows["slices"].append(f"**d = {dim}: {one['data']}**\n\n{markdown_table(head.split(', '), lines)}")
    for one in result["checks"]:
        for k in one["kinds"]:
            both = (f"{s}: {score(one, k, s)} / {score(one, k, s, 2 * M)}" for s in one["levels"])
            rows["checks"].append((one["dim"], one["data"], k, "; ".join(both)))
    heads = {
        "proposal": "d, data, slices, kind, M, numbers, bytes, median set itself, recall@10, ten in best 20, us/set",
        "truth": "d, data, database, queries, elements (median), slices of the truth, proved, halves agree",
        "quantiles": "d, slices, " + ", ".join(f"M = {m}" for m in QUANTILES),
        "trades": "d, numbers, more slices, proposed, more quantiles",
        "errors": "d, kind, L = 16, L = 64, L = 256, L = 1024",
        "checks": f"d, data, kind, slices: recall@10 at M = {M} / {2 * M}",
    }
    made = {name: markdown_table(head.split(", "), rows[name]) for name, head in heads.items()}
    return {**made, "slices": "\n\n".join(rows["slices"])}


def draw(result: dict[str, Any]) -> None:
    """Draw docs/defaults.png."""
    figure, axis = plt.subplots(figsize=(8, 4.6))
    for color, (dim, one) in enumerate(result["by_dim"].items()):
        n, kind = CHOICE[int(dim)]
        for k, style in ((kind, "-"), ("random", ":")):
            axis.plot(one["levels"], [float(score(one, k, s)) for s in one["levels"]], style, color=f"C{color}")
        axis.plot(n, float(score(one, kind, n)), "o", color=f"C{color}", label=f"d = {dim}: {n} {kind}")
    axis.set(xlabel=f"slices, M = {M} (dotted: random slices)", ylabel="recall@10", xscale="log", ylim=(0.4, 1.0))
    axis.set_xticks(LEVELS, map(str, LEVELS))
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right", title="proposed")
    figure.savefig(DOCS / "defaults.png", dpi=120, bbox_inches="tight")


def main() -> None:
    """Measure, or read the earlier results, and write the page and its figure."""
    parser = argparse.ArgumentParser(description="Measure what docs/defaults.md shows.")
    parser.add_argument("--tokens", type=Path, help="token vectors, d = 384, as .npz (default: generated sets)")
    parser.add_argument("--redraw", action="store_true", help="only rewrite the tables and the figure from the JSON")
    options = parser.parse_args()
    path, page = DOCS / "results" / "defaults.json", DOCS / "defaults.md"
    if not options.redraw:
        with threadpool_limits(1):
            path.write_text(json.dumps(study(options.tokens)) + "\n")
    result, text = json.loads(path.read_text()), page.read_text()
    for name, new in tables(result).items():
        before, _, rest = text.partition(f"<!-- {name} -->\n")
        text = f"{before}<!-- {name} -->\n\n{new}\n\n<!-- / -->{rest.partition('<!-- / -->')[2]}"
    page.write_text(text)
    draw(result)


if __name__ == "__main__":
    main()
