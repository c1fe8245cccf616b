"""Measure how long an index takes to open, and its first searches, in one version of slosh or in two.

    python benchmarks/bench_open.py SRC [OLD_SRC] [--index FOLDER] [--maps 17] [--slices 64] [--rounds 3]

SRC and OLD_SRC are folders that hold the package `slosh` with its compiled kernel. The index is that of FOLDER. If
there is none it is built by SRC from MNIST under so many affine maps (0: MNIST itself), and kept. Each round runs each
tree once in a process of its own, which has imported everything: first with the files of the index in memory, then
after they were dropped from it (Linux). Printed are the medians of wall-clock and CPU time, one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

N_QUERIES = 100
STEPS = ("open", "first search", f"next {N_QUERIES - 1} searches", "memory, MB")


def read_files(index: Path, drop: bool) -> None:
    """Read all files of an index into memory, or drop them from it."""
    for file in (path for path in index.rglob("*") if path.is_file()):
        with open(file, "rb") as stream:
            if drop:
                os.fsync(stream.fileno())
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while stream.read(1 << 24):
                    pass


def build(index: Path, n_maps: int, n_slices: int, n_train: int) -> None:
    """Add MNIST under affine maps to a new index."""
    import search_data
    import slosh
    from slosh.embed import SlicedWasserstein

    _, train, _ = search_data.read(n_train)
    with slosh.SetIndex.create(index, 2, embedding=SlicedWasserstein(n_slices, n_jobs=1), n_jobs=1) as made:
        made.add(search_data.records(train, n_maps))


def measure(index: Path) -> dict[str, Any]:
    """Open an index for reading and search it: seconds and CPU seconds of each step."""
    import search_data
    import slosh

    _, some, queries = search_data.read(50, N_QUERIES)
    warm = index.parent / f"{index.name}.{os.getpid()}.warm"
    with slosh.SetIndex.create(warm, 2, n_jobs=1) as small:  # everything is imported by this
        small.add(some)
        small.search(queries[0])
    shutil.rmtree(warm)
    steps: dict[str, Any] = {}
    before = anonymous_bytes()

    def timed(name: str, work: Any) -> Any:
        started = time.perf_counter(), time.process_time()
        found = work()
        steps[name] = time.perf_counter() - started[0], time.process_time() - started[1]
        return found

    opened = timed("open", lambda: slosh.open(index, read_only=True, n_jobs=1))
    timed("first search", lambda: opened.search(queries[0]))
    timed(f"next {N_QUERIES - 1} searches", lambda: [opened.search(queries[i]) for i in range(1, len(queries))])
    steps["memory, MB"] = (anonymous_bytes() - before) / 1e6, 0.0
    steps["sets"] = len(opened)
    opened.close()
    return steps


def anonymous_bytes() -> int:
    """Return the memory of this process without mapped files."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) * 1024


def run(source: Path, *given: str) -> Any:
    """Run a step by one tree, in a process of its own."""
    command = [sys.executable, __file__, str(source), "--step", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{source}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def import_from(source: Path) -> None:
    """Import slosh from this tree, whatever is installed."""
    if list((source / "slosh" / "native").glob("*.so")):  # otherwise the kernel is that of the installed package
        sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__name__.startswith("ScikitBuild")]
    sys.path.insert(0, str(source))
    import slosh

    if Path(slosh.__file__).resolve().parents[1] != source.resolve():
        raise SystemExit(f"another slosh was imported: {slosh.__file__}")


def main() -> None:
    """Measure the trees in turns, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="SRC")
    parser.add_argument("old", type=Path, metavar="OLD_SRC", nargs="?")
    parser.add_argument("--index", type=Path, default=Path("open.slosh"))
    parser.add_argument("--maps", type=int, default=17)
    parser.add_argument("--slices", type=int, default=64)
    parser.add_argument("--sets", type=int, default=60_000, help="of MNIST")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        import_from(options.source)
        name, index, *rest = options.step
        found = build(Path(index), *map(int, rest)) if name == "build" else measure(Path(index))
        print(json.dumps(found))
        return
    index = options.index.absolute()
    if not index.exists():
        run(options.source, "build", str(index), str(options.maps), str(options.slices), str(options.sets))
    trees = {"new": options.source, **({} if options.old is None else {"old": options.old})}
    kinds = ("in memory", "dropped from it") if hasattr(os, "posix_fadvise") else ("in memory",)
    results: dict[tuple[str, str], list[Any]] = {(kind, tree): [] for kind in kinds for tree in trees}
    for _ in range(options.rounds):
        for (kind, tree), found in results.items():
            read_files(index, drop=kind != "in memory")
            found.append(run(trees[tree], "measure", str(index)))
    print(f"{next(iter(results.values()))[0]['sets']:,} sets, one thread; wall-clock and CPU time, median")
    for (kind, tree), rounds in results.items():
        print(f"files {kind}, {tree}")
        for step in STEPS:
            wall, cpu = (statistics.median(found[step][i] for found in rounds) for i in (0, 1))
            print(f"  {step:20}" + (f"{wall:9.1f}" if step.startswith("memory") else f"{wall:9.3f} s {cpu:9.3f} s CPU"))


if __name__ == "__main__":
    main()
