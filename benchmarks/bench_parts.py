"""Measure part search on one core: what it finds, how fast, with how much memory, and what a proof costs.

    .venv/bin/python benchmarks/bench_parts.py [--model FOLDER --dictionary FILE] [case ...]

writes docs/results/parts.json, case by case: modelnet40, mnist, tokens.

ModelNet40: 384 points of each of the 9,843 objects are stored; a query is a piece of one of them, cut by a plane from
the *other* points. Moved and turned pieces say how far a query may be off the collection's frame. MNIST: 60,000 digits
are stored; a query is the upper half of one, each point jittered, beside what the distances to all sets find. Token
vectors: a sentence of a definition, embedded by itself, is to find the definition (token_vectors.py says where model
and dictionary come from). Times are CPU times of one thread. docs/parts.md quotes what this prints.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from machine import DATA, ROOT, cpu
from parts_study import Encodings, pooled_means
from slosh import SetIndex, Sets, rank
from slosh.embed import PartField
from slosh.native import kernel
from slosh.rank.part_pairs import PartPairs
from token_vectors import sentence_case

Array = NDArray[Any]
N_STORED_POINTS = 384
JITTERS = (0.02 / 28, 0.005, 0.01, 0.02)
"""Standard deviations, in units of the image; a pixel is 1 / 28 wide, and the first is .02 of one."""

NEARBY, NEARBY_DEPTH = 1.5 / 28, 1000
"""A pixel and a half: elements of a digit that are nearer to the query than that are compared with it; and in how many
digits, of those that contain it best."""


def cut(points: Array, share: float, random: np.random.RandomState) -> Array:
    """Return the part of the points on one side of a random plane."""
    along = points @ random.standard_normal(points.shape[1])
    return points[np.argsort(along)[: max(1, round(share * len(points)))]]


def places(
    index: SetIndex, queries: list[Array], own: list[str], stored: Sets, **options: Any
) -> tuple[dict[str, float], float]:
    """Return how often the set that a query was cut from is first and among ten, and the CPU time of a query.

    `tied_first` counts those that no other is nearer than, whatever the order of their ids.
    """
    found, started = [], time.process_time()
    for query in queries:
        found.append(index.search(query, 10, match="part", **options))
    seconds = (time.process_time() - started) / len(queries)
    ranks, nearer = [], []
    for query, name, hits in zip(queries, own, found, strict=True):
        ranks.append(hits.ids.index(name) if name in hits.ids else 10)
        away = rank.part(query, stored[int(name) : int(name) + 1])[0]
        nearer.append(np.count_nonzero(hits.distances < away * (1 - 1e-9)))
    told = {
        "first": float(np.mean(np.array(ranks) < 1)),
        "among_10": float(np.mean(np.array(ranks) < 10)),
        "tied_first": float(np.mean(np.array(nearer) < 1)),
    }
    return told, seconds


def built(sets: Sets, said: str, anchors: Path | None = None) -> tuple[SetIndex, dict[str, Any]]:
    """Return an index in memory with part search, and what it takes; `anchors` keeps those that were learnt before."""
    started = time.process_time()
    known = anchors is not None and anchors.exists()
    field = PartField(anchors=np.load(anchors), n_jobs=1) if known else PartField(n_jobs=1)
    field.fit(sets[:: max(1, len(sets) // 5000)])
    if anchors is not None and not known:
        np.save(anchors, field.anchors_)
    index = SetIndex.create(None, sets.dim, parts=field, n_jobs=1)
    fitted = time.process_time() - started
    index.add(sets)
    about = index.info()
    memory, n = about["memory_bytes"], len(sets)
    told = {
        "sets": n,
        "anchors": about["parts"]["n_anchors"],
        "fit_cpu_s": None if known else fitted,
        "add_cpu_s": time.process_time() - started - fitted,
        "candidate_bytes_a_set": memory["parts"] / n,
        "feature_bytes_a_set": memory["features"] / n,
        "measured_recalls": about["parts"]["measured"],
    }
    print(said, json.dumps({key: value for key, value in told.items() if key != "measured_recalls"}), flush=True)
    return index, told


def modelnet(folder: Path, n_queries: int) -> dict[str, Any]:
    with np.load(folder / "modelnet40_3d.npz") as file:
        points, offsets, split = file["points"].astype(np.float32), file["offsets"], file["split"]
    objects = [points[a:b] for a, b, s in zip(offsets[:-1], offsets[1:], split, strict=True) if s == 0]
    stored = Sets.from_list([each[:N_STORED_POINTS] for each in objects])
    index, found = built(stored, "ModelNet40")
    random = np.random.RandomState(0)
    rows = random.choice(len(objects), n_queries, replace=False)
    names = [str(row) for row in rows]
    for share, name in ((0.5, "half"), (0.25, "quarter")):
        pieces = [cut(objects[row][N_STORED_POINTS:], share, random) for row in rows]
        places(index, pieces[:5], names[:5], stored)
        told, seconds = places(index, pieces, names, stored)
        stats = index.search(pieces[0], 10, match="part").stats
        few = pieces[: max(5, n_queries // 10)]
        started = time.process_time()
        for piece in few[:10]:
            rank.part(piece, stored, n_jobs=1)
        all_seconds = (time.process_time() - started) / len(few[:10])
        started = time.process_time()
        proofs = [index.search(piece, 10, match="part", certify=True) for piece in few]
        proof_seconds = (time.process_time() - started) / len(few)
        plain = [set(index.search(piece, 10, match="part").ids) for piece in few]
        true = sum(len(near & set(proof.ids)) for near, proof in zip(plain, proofs, strict=True))
        told |= {
            "cpu_ms_a_query": 1e3 * seconds,
            "distances_a_query": float(stats.full_distances[0]),
            "promised_recall": stats.recall,
            "recall_of_the_true_ten": true / sum(len(proof) for proof in proofs),
            "all_distances_cpu_ms": 1e3 * all_seconds,
            "times_faster": all_seconds / seconds,
            "proved_share_of_distances": float(np.mean([p.stats.full_distances[0] for p in proofs])) / len(stored),
            "proof_cpu_ms": 1e3 * proof_seconds,
        }
        found[name] = told
        print(f"  {name}: {json.dumps(told)}", flush=True)
        if name == "half":
            found["moved"] = [
                _moved(index, pieces, names, stored, step, random) for step in (0.01, 0.02, 0.05, 0.1, 0.2)
            ]
            found["turned"] = [_turned(index, pieces, names, stored, degrees) for degrees in (1, 2, 5, 10, 20)]
    return found


def _moved(
    index: SetIndex, pieces: list[Array], names: list[str], stored: Sets, step: float, random: np.random.RandomState
) -> Any:
    ways = random.standard_normal((len(pieces), 3))
    ways *= step / np.linalg.norm(ways, axis=1, keepdims=True)
    told, _ = places(index, [piece + way for piece, way in zip(pieces, ways, strict=True)], names, stored)
    print(f"  moved by {step}: {json.dumps(told)}", flush=True)
    return {"by": step, **told}


def _turned(index: SetIndex, pieces: list[Array], names: list[str], stored: Sets, degrees: float) -> Any:
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    told, _ = places(index, [piece @ np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]]) for piece in pieces], names, stored)
    print(f"  turned by {degrees} degrees: {json.dumps(told)}", flush=True)
    return {"degrees": degrees, **told}


def nearby(query: Sets, candidates: Sets) -> Array:
    """Return how well digits match the query where it is, as a re-rank."""
    return rank.chamfer_nearby(query, candidates, radius=NEARBY, n_jobs=1)


def mnist(folder: Path, n_queries: int, n_stored: int) -> dict[str, Any]:
    with np.load(folder / "pointcloud_mnist_2d.npz") as file:
        points, offsets, split = file["points"].astype(np.float32) / 28, file["offsets"], file["split"]
    digits = [points[a:b] for a, b, s in zip(offsets[:-1], offsets[1:], split, strict=True) if s == 0][:n_stored]
    stored = Sets.from_list(digits)
    index, found = built(stored, "MNIST")
    random = np.random.RandomState(0)
    rows = random.choice(len(digits), n_queries, replace=False)
    halves = [digits[row][digits[row][:, 1] <= np.median(digits[row][:, 1])] for row in rows]
    names = [str(row) for row in rows]
    for jitter in JITTERS:
        asked = [half + jitter * random.standard_normal(half.shape) for half in halves]
        told, seconds = places(index, asked, names, stored)
        few = n_queries // 4
        proved, _ = places(index, asked[:few], names[:few], stored, certify=True)
        around, at = places(index, asked, names, stored, rerank=nearby, depth=NEARBY_DEPTH)
        found[f"jitter {jitter:.4f}"] = {
            **told, "cpu_ms_a_query": 1e3 * seconds, "by_all_distances": proved,
            "nearby": {"first": around["first"], "among_10": around["among_10"], "cpu_ms_a_query": 1e3 * at},
        }  # fmt: skip
        print(f"  upper half, jitter {jitter:.4f}: {json.dumps(found[f'jitter {jitter:.4f}'])}", flush=True)
    return found


def tokens(model: Path, dictionary: Path, cache: Path, n_queries: int) -> dict[str, Any]:
    """The definition that a sentence was taken from, by MaxSim; beside encodings and mean pooling of equal bytes."""
    stored, sentences, wanted = sentence_case(n_queries, model, dictionary, cache)
    index, found = built(stored, "tokens", cache.with_suffix(".anchors.npy"))
    names, queries = [str(row) for row in wanted], [sentences[i] for i in range(len(sentences))]

    def told_of(ranks: Array) -> dict[str, float]:
        return {"first": float(np.mean(ranks < 1)), "among_10": float(np.mean(ranks < 10))}

    started = time.process_time()
    hits = [index.search(query, 10, match="part", rerank="maxsim") for query in queries]
    seconds = (time.process_time() - started) / len(queries)
    places_found = [each.ids.index(name) if name in each.ids else 10 for each, name in zip(hits, names, strict=True)]
    found["search"] = {**told_of(np.array(places_found)), "cpu_ms_a_query": 1e3 * seconds}
    found["search"]["distances_a_query"] = float(hits[0].stats.full_distances[0])
    pairs, everyone = PartPairs(sentences, "part", squared=True, n_jobs=1), np.arange(len(stored))
    started = time.process_time()
    exact = np.stack([pairs.distances(np.full(len(stored), i), stored, everyone) for i in range(len(queries))])
    seconds = (time.process_time() - started) / len(queries)
    own = np.arange(len(queries)), wanted
    found["maxsim_of_all"] = {**told_of((exact < exact[own][:, None]).sum(axis=1)), "cpu_ms_a_query": 1e3 * seconds}
    depth = int(found["search"]["distances_a_query"])
    peers = {"mean pooling": (2 * stored.dim, *(pooled_means(each) for each in (stored, sentences)))}
    for repetitions, k, numbers in ((4, 3, 16), (8, 4, 16), (16, 5, 16)):
        model_ = Encodings.draw(stored.dim, repetitions, k, numbers)
        table = model_.encode(stored, False).astype(np.float16).astype(np.float32)
        peers[f"encodings of {table.shape[1]:,} numbers"] = 2 * table.shape[1], table, model_.encode(sentences, True)
    for name, (n_bytes, of_sets, of_queries) in peers.items():
        scores = -of_queries @ of_sets.T
        near = np.argpartition(scores, depth, axis=1)[:, :depth]
        among = np.full(exact.shape, np.inf)
        np.put_along_axis(among, near, np.take_along_axis(exact, near, axis=1), axis=1)
        ranks = np.where(np.isfinite(among[own]), (among < among[own][:, None]).sum(axis=1), 10)
        alone = told_of((scores < scores[own][:, None]).sum(axis=1))
        found[name] = {"bytes": n_bytes, **alone, "reranked": told_of(ranks)}
    started = time.process_time()
    proofs = [index.search(query, 10, match="part", rerank="maxsim", certify=True) for query in queries[:10]]
    found["proof_cpu_ms"] = 100 * (time.process_time() - started)
    found["proved_share_of_distances"] = float(np.mean([p.stats.full_distances[0] for p in proofs])) / len(stored)
    print(f"  {json.dumps({key: value for key, value in found.items() if key != 'measured_recalls'})}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "parts.json")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--digits", type=int, default=60_000)
    parser.add_argument("--model", type=Path, help="the folder of all-MiniLM-L6-v2, for the case tokens")
    parser.add_argument("--dictionary", type=Path, help="foldoc.dict.dz, for the case tokens")
    parser.add_argument(
        "--cache", type=Path, default=Path("/tmp/parts_tokens.npz"), help="where token vectors are kept"
    )
    parser.add_argument("case", nargs="*", help="modelnet40, mnist, tokens; without any all that can be run")
    given = parser.parse_args()
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        "modelnet40": lambda: modelnet(given.data, given.queries),
        "mnist": lambda: mnist(given.data, given.queries, given.digits),
    }
    if given.cache.exists() or (given.model and given.dictionary):
        cases["tokens"] = lambda: tokens(given.model, given.dictionary, given.cache, given.queries)
    about = json.loads(given.out.read_text()) if given.out.exists() else {}
    about |= {"cpu": cpu(), "kernel": kernel.name(), "threads": 1, "queries": given.queries}
    print(json.dumps({key: value for key, value in about.items() if key not in cases}), flush=True)
    for name in given.case or cases:
        about[name] = cases[name]()
        given.out.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
