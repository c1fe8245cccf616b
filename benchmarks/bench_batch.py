"""Measure batch jobs on Ray beside a plain loop over the same Parquet files, in one run: one worker, two workers.

The sets are generated: clouds of 256 to 767 points in three dimensions. "views" embeds by three views with whitening,
most of whose time is arithmetic; "sliced" by the default embedding, which is as fast as the files are read and written.
"shards" builds indexes, "graph" the ten nearest neighbours of every set of an index. All files were read once before,
so that they come from memory. Ray runs already; its workers start, and import slosh, within the time that is measured.

    python benchmarks/bench_batch.py                    ten minutes; writes docs/results/batch.json
    python benchmarks/bench_batch.py --only views       one of the four; runs are appended to those of the file
    python benchmarks/bench_batch.py --quick            few sets, only to see that it runs; writes nothing
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from pyarrow import parquet

import slosh
import slosh.ray
from machine import ROOT, cpu
from slosh.embed import DistanceField, LocalShape, SlicedWasserstein, Whitened

SETS = {"views": 170_000, "sliced": 400_000, "shards": 80_000, "graph": 100_000}
FILE_SETS, GROUP_SETS = 10_000, 2_500
SHARD_SETS = 10_000
K = 10
RESULTS = ROOT / "docs" / "results" / "batch.json"


def write_files(folder: Path, n: int, seed: int = 0) -> None:
    """Write n clouds as Parquet files, with an id and a column beside."""
    folder.mkdir()
    for first in range(0, n, FILE_SETS):
        rng = np.random.default_rng([seed, first])
        count = min(FILE_SETS, n - first)
        sizes = rng.integers(256, 768, count)
        scale = np.repeat(rng.uniform(0.5, 2, (count, 3)), sizes, axis=0)
        points = (rng.standard_normal((sizes.sum(), 3)) * scale).astype(np.float32)
        sets = slosh.Sets(points, np.concatenate([[0], np.cumsum(sizes)]))
        ids = [f"s{i}" for i in range(first, first + count)]
        table = pa.table({"id": ids, "points": sets.to_arrow(), "kind": [f"k{i % 10}" for i in range(count)]})
        path = folder / f"{first:09d}.parquet"
        parquet.write_table(table, path, row_group_size=GROUP_SETS, use_dictionary=["id", "kind"])


def read_once(folder: Path) -> float:
    """Read all files, so that they are in memory; return their size in gigabytes."""
    total = 0
    for path in folder.glob("*.parquet"):
        total += len(path.read_bytes())
    return total / 1e9


def plain_loop(source: Path, target: Path, spec: Any) -> None:
    """Embed every file into one of the same name, with no more than pyarrow and `slosh.batch.embed`: one thread."""
    target.mkdir()
    for path in sorted(source.glob("*.parquet")):
        writer = None
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=GROUP_SETS, use_threads=False):
            made = slosh.batch.embed(batch, spec)
            if writer is None:
                writer = parquet.ParquetWriter(target / path.name, made.schema, use_dictionary=["id", "kind"])
            writer.write_batch(made)
        if writer is not None:
            writer.close()


def seconds_of(work: Callable[[Path], Any], place: Path) -> float:
    """Return the seconds of a job that writes to a place, which is removed."""
    started = time.perf_counter()
    work(place)
    taken = time.perf_counter() - started
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    return taken


def stop_workers() -> None:
    """End the workers that Ray keeps for later, so that the next job starts its own."""
    ray.shutdown()
    start_ray()


def start_ray() -> None:
    ray.init(num_cpus=2, object_store_memory=1 << 30, include_dashboard=False, log_to_driver=False)


def compare(place: Path, alone: Callable[[Path], Any], on_ray: Callable[[Path, int], Any], n: int) -> dict[str, Any]:
    """Return the seconds of a job in this process, with one worker, and with two."""
    found: dict[str, Any] = {"sets": n, "alone_s": seconds_of(alone, place / "alone")}
    for workers, name in ((1, "one_worker_s"), (2, "two_workers_s")):
        stop_workers()
        found[name] = seconds_of(lambda target, w=workers: on_ray(target, w), place / name)
    found["overhead"] = found["one_worker_s"] / found["alone_s"] - 1
    found["speedup"] = found["one_worker_s"] / found["two_workers_s"]
    found["two_workers_against_alone"] = found["alone_s"] / found["two_workers_s"]
    return found


def embed_job(name: str, place: Path, n: int) -> dict[str, Any]:
    """Vectors of a folder of Parquet files."""
    views = Whitened([SlicedWasserstein(), DistanceField(), LocalShape()])
    source = place / "in"
    write_files(source, n)
    spec = slosh.batch.learn(source, views if name == "views" else None, n_sample=2_000)
    gigabytes = read_once(source)
    found = compare(
        place,
        lambda target: plain_loop(source, target, spec),
        lambda target, workers: slosh.ray.embed(source, target, spec, workers=workers),
        n,
    )
    return {"gigabytes": gigabytes, **found}


def shards_job(place: Path, n: int, shard_sets: int) -> dict[str, Any]:
    """A folder of shards of the default embedding."""
    source = place / "in"
    write_files(source, n)
    gigabytes = read_once(source)
    found = compare(
        place,
        lambda target: slosh.batch.build(target, source, shard_sets=shard_sets, n_jobs=1),
        lambda target, workers: slosh.ray.build(target, source, shard_sets=shard_sets, workers=workers),
        n,
    )
    return {"gigabytes": gigabytes, "shard_sets": shard_sets, **found}


def graph_job(place: Path, n: int) -> dict[str, Any]:
    """The graph of neighbours of an index whose vectors are whitened."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(32, 96, n)
    scale = np.repeat(rng.uniform(0.5, 2, (n, 3)), sizes, axis=0)
    points = (rng.standard_normal((sizes.sum(), 3)) * scale).astype(np.float32)
    sets = slosh.Sets(points, np.concatenate([[0], np.cumsum(sizes)]))
    path = place / "x.slosh"
    with slosh.SetIndex.create(path, 3, embedding=Whitened(), sample=sets[: min(n, 5_000)]) as index:
        index.add(sets)
    return compare(
        place,
        lambda target: slosh.batch.neighbor_graph(path, K, target, n_jobs=1),
        lambda target, workers: slosh.ray.neighbor_graph(path, K, target, workers=workers),
        n,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few sets")
    parser.add_argument("--only", nargs="*", default=list(SETS), choices=list(SETS))
    given = parser.parse_args()
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() and not given.quick else {}
    start_ray()
    for name in given.only:
        n = 600 if given.quick else SETS[name]
        with tempfile.TemporaryDirectory() as folder:
            if name == "graph":
                measured = graph_job(Path(folder), n)
            elif name == "shards":
                measured = shards_job(Path(folder), n, 200 if given.quick else SHARD_SETS)
            else:
                measured = embed_job(name, Path(folder), n)
        run = {**measured, "date": str(date.today()), "cpu": cpu(), "ray": ray.__version__}
        found.setdefault(name, []).append(run)
        shown = {key: round(value, 3) if isinstance(value, float) else value for key, value in run.items()}
        print(name, json.dumps(shown))
    ray.shutdown()
    if not given.quick:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
