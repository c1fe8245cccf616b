"""Measure how many anchors part search needs: what is found by distance fields of different sizes, beside its peers.

    .venv/bin/python benchmarks/parts_study.py [--model FOLDER --dictionary FILE] [--queries 200] [case ...]

Each case stores sets and asks for the one that a part was taken from; the figures are how often it is the first, among
the first 10, and among the first 100. Without a model and a dictionary (see token_vectors.py) the two cases of token
vectors are left out. What was measured before is kept, case by case, in
docs/results/parts_study.json, from which the table of docs/parts-study.md is printed. It takes some minutes a case.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.utils.extmath import randomized_svd

from machine import DATA, cpu
from markdown_tables import markdown_table
from slosh import Sets
from slosh.embed import DistanceField
from slosh.native import kernel, parts
from slosh.rank.part_pairs import PartPairs
from token_vectors import sentence_case

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "parts_study.json"
ANCHORS, REDUCED, DEPTH = (256, 1024, 4096), (64, 128, 256), 100
SAMPLE, ROUNDS = 60_000, 5
"""Elements that anchors are learnt from, and rounds of k-means."""


class Case(NamedTuple):
    """Stored sets, the parts to find, and which stored set each part was taken from."""

    title: str
    stored: Sets
    queries: Sets
    wanted: np.ndarray
    unit: bool = False


# -- the cases ---------------------------------------------------------------------------------------------------------


def digits(n: int) -> Case:
    """The upper half of a digit, its points jittered by .02 of the width."""
    with np.load(DATA / "pointcloud_mnist_2d.npz") as file:
        sets = Sets(file["points"].astype(np.float32) / 28, file["offsets"])[:10_000]
    rng = np.random.default_rng(0)
    wanted = rng.choice(len(sets), n, replace=False)
    queries = []
    for i in wanted:
        x = np.asarray(sets[i])
        half = x[x[:, 1] >= np.median(x[:, 1])]
        queries.append((half + rng.normal(scale=0.02, size=half.shape)).astype(np.float32))
    return Case("MNIST, d = 2: half of a digit, jittered", sets, Sets.from_list(queries), wanted)


def objects(n: int, share: float, title: str) -> Case:
    """A piece that a plane cuts off the other points of an object, of which 384 are stored."""
    with np.load(DATA / "modelnet40_3d.npz") as file:
        points = file["points"].reshape(-1, 768, 3).astype(np.float32)[file["split"] == 0]
    rng = np.random.default_rng(0)
    wanted = rng.choice(len(points), n, replace=False)
    queries = []
    for i in wanted:
        others, direction = points[i, 384:], rng.normal(size=3)
        height = others @ direction
        queries.append(others[height >= np.quantile(height, 1 - share)])
    return Case(title, Sets.from_padded(points[:, :384]), Sets.from_list(queries), wanted)


def buildings(n: int) -> Case:
    """A tenth of the local features of a photograph, with noise of a tenth of their spread."""
    with np.load(DATA / "oxford5k_vgg16_8d.npz") as file:
        sets = Sets(file["points"].astype(np.float32), file["offsets"])
    rng = np.random.default_rng(0)
    wanted, spread = rng.choice(len(sets), n, replace=False), sets.points.std(axis=0)
    queries = []
    for i in wanted:
        x = np.asarray(sets[i])
        some = x[rng.choice(len(x), max(4, len(x) // 10), replace=False)]
        queries.append((some + rng.normal(size=some.shape) * 0.1 * spread).astype(np.float32))
    return Case("Oxford, d = 8: a tenth of the features, noisy", sets, Sets.from_list(queries), wanted)


def tokens(n: int, options: argparse.Namespace, dim: int) -> Case:
    """The sentence of a definition, embedded by itself; in fewer dimensions by principal directions."""
    stored, queries, wanted = sentence_case(n, options.model, options.dictionary, options.cache)
    title = f"Token vectors, d = {dim}: a sentence of one of {len(stored):,} definitions"
    if dim < stored.dim:
        basis = principal(stored.points, dim)

        def reduced(sets: Sets) -> Sets:
            points = sets.points @ basis
            return Sets(points / np.linalg.norm(points, axis=1, keepdims=True), sets.offsets)

        stored, queries = reduced(stored), reduced(queries)
    return Case(title, stored, queries, wanted, unit=True)


# -- the methods -------------------------------------------------------------------------------------------------------


def principal(rows: np.ndarray, n: int) -> np.ndarray:
    """Return the first n directions of the second moments, (columns, n)."""
    some = rows[:: max(1, len(rows) // 20_000)]
    _, _, directions = randomized_svd(some, min(n, *some.shape), n_iter=4, random_state=0)
    return np.ascontiguousarray(directions.T, np.float32)


def learn_anchors(sets: Sets, n: int) -> np.ndarray:
    """Return n centres of a sample of the elements, by k-means from some of them."""
    rng = np.random.default_rng(0)
    points = sets.points[rng.choice(len(sets.points), min(SAMPLE, len(sets.points)), replace=False)]
    different = np.unique(points, axis=0)
    anchors = different[rng.choice(len(different), min(n, len(different)), replace=False)].copy()
    for _ in range(ROUNDS):
        own = parts.nearest_anchors(points, anchors, 1, 2)[0][:, 0]
        sums = np.zeros(anchors.shape)
        np.add.at(sums, own, points)
        counts = np.bincount(own, minlength=len(anchors))
        anchors[counts > 0] = (sums[counts > 0] / counts[counts > 0, None]).astype(np.float32)
    return anchors


def shares(sets: Sets, anchors: np.ndarray) -> np.ndarray:
    """Return the share of each set's elements that is nearest to each anchor."""
    own = parts.nearest_anchors(sets.points, anchors, 1, 2)[0][:, 0].astype(np.int64)
    which = np.repeat(np.arange(len(sets)), sets.sizes)
    table = np.bincount(which * len(anchors) + own, minlength=len(sets) * len(anchors))
    return (table.reshape(len(sets), -1) / sets.sizes[:, None]).astype(np.float32)


def bytes_of(fields: np.ndarray) -> np.ndarray:
    """Return what eight bits keep of non-negative numbers."""
    step = np.float32(np.quantile(fields[:: max(1, len(fields) // 1000)], 0.999) / 255)
    return np.minimum(np.floor(fields / step), 255) * step + step / 2


class Encodings(NamedTuple):
    """Fixed-dimensional encodings in the manner of MUVERA.

    In each repetition an element falls into one of 2^k buckets, by the signs of k random projections. A query is the
    sum of its elements in each bucket, a set the mean; an empty bucket of a set takes the element whose signs are
    nearest. Each bucket is reduced to a few numbers by a random projection of signs.
    """

    planes: np.ndarray  # (repetitions, k, d)
    signs: np.ndarray  # (repetitions, d, numbers)

    @classmethod
    def draw(cls, dim: int, repetitions: int, k: int, numbers: int) -> Encodings:
        rng = np.random.default_rng(0)
        signs = rng.choice([-1.0, 1.0], (repetitions, dim, numbers)) / np.sqrt(numbers)
        return cls(rng.normal(size=(repetitions, k, dim)).astype(np.float32), signs.astype(np.float32))

    def encode(self, sets: Sets, is_query: bool) -> np.ndarray:
        k = self.planes.shape[1]
        n_buckets, which = 1 << k, np.repeat(np.arange(len(sets)), sets.sizes)
        bits = (np.arange(n_buckets)[:, None] >> np.arange(k)) & 1
        parts_ = []
        for planes, signs in zip(self.planes, self.signs, strict=True):
            own = ((sets.points @ planes.T > 0) << np.arange(k)).sum(axis=1)
            small = sets.points @ signs
            sums = np.zeros((len(sets) * n_buckets, small.shape[1]), np.float32)
            np.add.at(sums, which * n_buckets + own, small)
            if not is_query:
                counts = np.bincount(which * n_buckets + own, minlength=len(sums))
                sums /= np.maximum(counts, 1)[:, None]
                differ = np.abs(bits[:, None] - bits[None]).sum(axis=2)
                for i, (a, b) in enumerate(zip(sets.offsets[:-1], sets.offsets[1:], strict=True)):
                    empty = np.flatnonzero(counts[i * n_buckets : (i + 1) * n_buckets] == 0)
                    if len(empty):
                        sums[i * n_buckets + empty] = small[a + differ[empty][:, own[a:b]].argmin(axis=1)]
            parts_.append(sums.reshape(len(sets), -1))
        return np.concatenate(parts_, axis=1)


def lifted(case: Case) -> tuple[Sets, Sets]:
    """Return sets of unit vectors: as they are, or by random Fourier features of a Gaussian kernel."""
    if case.unit:
        return case.stored, case.queries
    rng, x = np.random.default_rng(0), case.stored.points
    some = x[rng.choice(len(x), 2000)]
    width = 0.15 * float(np.sqrt(((some - some.mean(axis=0)) ** 2).sum(axis=1).mean()))
    frequencies, n = rng.normal(size=(x.shape[1], 64)).astype(np.float32) / np.float32(width), np.float32(8.0)

    def features(sets: Sets) -> Sets:
        phases = sets.points @ frequencies
        return Sets(np.concatenate([np.cos(phases), np.sin(phases)], axis=1) / n, sets.offsets)

    return features(case.stored), features(case.queries)


def pooled_means(sets: Sets) -> np.ndarray:
    """Return the mean of each set's elements, of unit length, as sixteen bits keep it."""
    means = np.add.reduceat(sets.points, sets.offsets[:-1]) / sets.sizes[:, None]
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    return means.astype(np.float16).astype(np.float32)


def ranks(distances: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return how many sets come before the wanted one, of (queries, sets)."""
    own = distances[np.arange(len(wanted)), wanted][:, None]
    return (distances < own).sum(axis=1)


def found(rank: np.ndarray) -> list[float]:
    """Return how often the wanted set is the first, among 10 and among 100."""
    return [round(float(np.mean(rank < k)), 3) for k in (1, 10, 100)]


def reranked(case: Case, distances: np.ndarray) -> np.ndarray:
    """Return the ranks after the first sets are ordered by their one-sided distance."""
    near = np.argpartition(distances, DEPTH, axis=1)[:, :DEPTH]
    pairs = PartPairs(case.queries, "part", squared=case.unit, n_jobs=1)
    exact = pairs.distances(np.repeat(np.arange(len(near)), DEPTH), case.stored, near.ravel()).reshape(near.shape)
    own = near == case.wanted[:, None]
    rank = (exact < np.where(own, exact, -1.0).max(axis=1)[:, None]).sum(axis=1)
    return np.where(own.any(axis=1), rank, 10**6)


def study(case: Case, say: Callable[[str], None]) -> list[dict[str, object]]:
    """Return the rows of a case: method, bytes a set, first / among 10 / 100, and the same after re-ranking."""
    rows: list[dict[str, object]] = []

    def put(method: str, n_bytes: int, distances: np.ndarray) -> None:
        rank = reranked(case, distances)
        rows.append(
            {"method": method, "bytes": n_bytes, "found": found(ranks(distances, case.wanted)), "reranked": found(rank)}
        )
        say(f"{method:45} {n_bytes:6} {rows[-1]['found']} {rows[-1]['reranked']}")

    stored, queries = lifted(case)
    pooled = [pooled_means(each) for each in (stored, queries)]
    put("mean pooling", 2 * pooled[0].shape[1], -pooled[1] @ pooled[0].T)
    for repetitions, k, numbers in ((8, 4, 16), (16, 5, 16)):
        model = Encodings.draw(stored.dim, repetitions, k, numbers)
        table = model.encode(stored, False).astype(np.float16).astype(np.float32)
        put(f"encodings of {table.shape[1]:,} numbers", 2 * table.shape[1], -model.encode(queries, True) @ table.T)
    for n in ANCHORS:
        anchors = learn_anchors(case.stored, n)
        fields, asked = (
            DistanceField(anchors=anchors, n_jobs=2).fit_transform(case.stored),
            shares(case.queries, anchors),
        )
        for name, field in (("", fields), (", squared", np.square(fields))):
            kept = bytes_of(field)
            put(f"field of {len(anchors):,} anchors{name}", len(anchors), asked @ kept.T)
            if n == ANCHORS[0]:
                continue
            middle = field.mean(axis=0)
            directions = principal(field - middle, max(REDUCED))
            for p in REDUCED:
                short = ((field - middle) @ directions[:, :p]).astype(np.float16).astype(np.float32)
                put(
                    f"field of {len(anchors):,}{name}, {p} numbers",
                    2 * p,
                    asked @ directions[:, :p] @ short.T + asked @ middle[:, None],
                )
        if len(anchors) < n:
            break
    few = min(100, len(case.queries))
    pairs = PartPairs(case.queries, "part", squared=case.unit, n_jobs=1)
    exact = np.stack(
        [pairs.distances(np.full(len(case.stored), i), case.stored, np.arange(len(case.stored))) for i in range(few)]
    )
    rows.append(
        {
            "method": f"all distances, {few} queries",
            "bytes": None,
            "found": found(ranks(exact, case.wanted[:few])),
            "reranked": None,
        }
    )
    say(str(rows[-1]))
    return rows


def table(results: dict[str, dict[str, object]]) -> str:
    """Return the Markdown tables of all cases."""

    def cell(figures: object) -> str:
        return " / ".join(f"{x:.3f}" for x in figures) if isinstance(figures, list) else ""

    text = []
    for case in results.values():
        lines = [
            [row["method"], f"{row['bytes']:,}" if row["bytes"] else "", cell(row["found"]), cell(row["reranked"])]
            for row in case["rows"]  # type: ignore[attr-defined]
        ]
        heads = ["", "bytes a set", "first / among 10 / 100", f"the first {DEPTH} re-ranked"]
        text.append(f"### {case['title']}\n\n{markdown_table(heads, lines)}")
    return "\n\n".join(text)


def main() -> None:
    """Run the cases that were asked for, keep what they found, and print all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="*", default=[])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--dictionary", type=Path)
    parser.add_argument(
        "--cache", type=Path, default=Path("/tmp/parts_tokens.npz"), help="where token vectors are kept"
    )
    parser.add_argument("--queries", type=int, default=200)
    options = parser.parse_args()
    n = options.queries
    cases: dict[str, Callable[[], Case]] = {
        "digits": lambda: digits(n),
        "half": lambda: objects(n, 0.5, "ModelNet40, d = 3: half of an object"),
        "quarter": lambda: objects(n, 0.25, "ModelNet40, d = 3: a quarter of an object"),
        "oxford": lambda: buildings(n),
    }
    if options.cache.exists() or (options.model and options.dictionary):
        cases |= {f"tokens{d}": lambda d=d: tokens(n, options, d) for d in (64, 384)}  # type: ignore[misc]
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in options.case or cases:
        start, case = time.perf_counter(), cases[name]()
        print(f"{case.title}: {len(case.stored):,} sets, {len(case.queries)} queries", flush=True)
        rows = study(case, lambda line: print("  " + line, flush=True))
        seconds = round(time.perf_counter() - start)
        results[name] = {"title": case.title, "sets": len(case.stored), "queries": len(case.queries), "rows": rows}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        print(f"  {seconds} s, {cpu()}, kernel {kernel.name()}", flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
