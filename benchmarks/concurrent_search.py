"""Measure single queries of an index while a million sets are added to it in one call, a part of `make bench-index`.

The index holds MNIST's 60,000 sets. They are added by one call with an iterator, which stores 5,000 at a time, so that
readers also follow 204 versions, and the search is trained and calibrated as the collection grows. The sets are made by
17 affine maps, one after the other: what comes is unlike what is there. Queries run one after the other with one
thread, and so does the add, each on a core of its own where there are two:

- without an add,
- with the add in another process, while this process searches an index that it opened read-only,
- with the add in another thread of the same process, where both also share Python's interpreter lock.

Each figure covers the time from the start of the add until it returns; the first query after that, which loads what was
added, is given by itself. An add that exceeds the time limit ends there. All files lie in one folder, and at most one
grown index exists at a time (5 GB).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import search_data
import slosh
from slosh.embed import SlicedWasserstein

NAME = "searches during an add"
N_SLICES = 64
BASELINE_SECONDS, ADD_LIMIT_SECONDS = 20.0, 600.0
LARGEST_RATIO = 3.0
"""The goal: p99 during an add in another process is at most this many times p99 without one."""
WRITER = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import concurrent_search
concurrent_search.add_in_this_process(*sys.argv[1:])
"""


class TimeLimitExceeded(Exception):
    """The add took too long."""


def new_records(n_train: int, n_maps: int, limit: float) -> Iterator[tuple[Any, list[str], list[dict[str, Any]]]]:
    """Yield mapped sets with new ids and metadata, and raise once the limit in seconds has passed."""
    _, train, _ = search_data.read(n_train)
    started = time.monotonic()
    for sets, ids, metadata in search_data.records(train, n_maps):
        for first in range(0, len(sets), 5000):
            if time.monotonic() - started > limit:
                raise TimeLimitExceeded
            part = slice(first, first + 5000)
            yield sets[part], [f"new/{name}" for name in ids[part]], metadata[part]


def add_records(index: slosh.SetIndex, n_train: int, n_maps: int, limit: float) -> bool:
    """Add all records in one call, and return whether that was possible within the limit."""
    try:
        index.add(new_records(n_train, n_maps, limit))
    except TimeLimitExceeded:
        return False
    return True


def pin_to_core(number: int) -> None:
    """Restrict this process to one of the available cores, if there are at least two."""
    if hasattr(os, "sched_setaffinity") and len(cores := sorted(os.sched_getaffinity(0))) > 1:
        os.sched_setaffinity(0, {cores[number]})


def time_queries(index: slosh.SetIndex, queries: list[Any], stop: Callable[[], bool]) -> np.ndarray:
    """Search for the queries in turn until `stop` returns True, and return the seconds of each search."""
    times = []
    while not stop():
        started = time.perf_counter()
        index.search(queries[len(times) % len(queries)])
        times.append(time.perf_counter() - started)
    return np.array(times)


def summarize(times: np.ndarray) -> dict[str, float]:
    """Return p50, p99 and the maximum in microseconds, when the slowest query began, and the number of queries."""
    if not len(times):
        return {"p50_us": 0.0, "p99_us": 0.0, "max_us": 0.0, "max_at_s": 0.0, "queries": 0}
    p50, p99 = 1e6 * np.percentile(times, [50, 99])
    slowest = int(times.argmax())
    began = float(times[:slowest].sum())
    return {"p50_us": p50, "p99_us": p99, "max_us": 1e6 * times[slowest], "max_at_s": began, "queries": len(times)}


def compare(
    index: slosh.SetIndex, queries: list[Any], seconds: float, start_add: Callable[[], Callable[[], bool]]
) -> dict[str, Any]:
    """Time queries without an add, then while it runs; `start_add` returns a function that says whether it is over."""
    for query in queries[:20]:
        index.search(query)  # warms the caches
    end = time.monotonic() + seconds
    without = summarize(time_queries(index, queries, lambda: time.monotonic() > end))
    is_over = start_add()
    started = time.perf_counter()
    during = summarize(time_queries(index, queries, is_over))
    add_seconds = time.perf_counter() - started
    started = time.perf_counter()
    index.search(queries[0])
    return {
        "without": without,
        "during": during,
        "p99_ratio": during["p99_us"] / without["p99_us"],
        "add_seconds": add_seconds,
        "first_after_ms": 1e3 * (time.perf_counter() - started),
        "sets_after": len(index),
    }


# -- steps, each in a process of its own -------------------------------------------------------------------------------


def build_small(folder: Path, n_train: int) -> int:
    """Make the index that is searched, and return its number of sets."""
    _, train, _ = search_data.read(n_train)
    with slosh.SetIndex.create(folder, 2, embedding=SlicedWasserstein(N_SLICES)) as index:
        index.add(search_data.records(train, 0))
        return len(index)


def add_in_process(folder: Path, n_train: int, n_maps: int, n_queries: int, seconds: float) -> dict[str, Any]:
    """Search a read-only index while another process adds to it."""
    started, done = folder.parent / "started", folder.parent / "done"
    _, _, test = search_data.read(1, n_queries)
    writer: list[subprocess.Popen[str]] = []

    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

    def use_other_core() -> None:
        """Pin the process before its first thread starts: those of its BLAS must not take time from the queries."""
        if len(cores) > 1:
            os.sched_setaffinity(0, {cores[1]})

    def start_add() -> Callable[[], bool]:
        command = [sys.executable, "-c", WRITER, *map(str, (folder, n_train, n_maps, started, done))]
        writer.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=use_other_core))
        while not started.exists() and writer[0].poll() is None:  # imports and opens the index first
            time.sleep(0.01)
        return lambda: done.exists() or writer[0].poll() is not None

    pin_to_core(0)
    with slosh.open(folder, read_only=True, n_jobs=1) as index:
        try:
            result = compare(index, list(test), seconds, start_add)
            _, errors = writer[0].communicate()
        except BaseException:
            for process in writer:
                process.kill()
            raise
    if writer[0].returncode:
        raise RuntimeError(f"the writer failed:\n{errors[-2000:]}")
    result["completed"] = done.read_text() == "True"
    started.unlink()
    done.unlink()
    return result


def add_in_this_process(folder: str, n_train: str, n_maps: str, started: str, done: str) -> None:
    """Be the writer of `add_in_process`: open the index, add to it, and leave files that say how far it is."""
    with slosh.open(folder, n_jobs=1) as index:
        Path(started).touch()
        completed = add_records(index, int(n_train), int(n_maps), ADD_LIMIT_SECONDS)
        unfinished = Path(f"{done}.unfinished")
        unfinished.write_text(str(completed))
        unfinished.rename(done)


def add_in_thread(folder: Path, n_train: int, n_maps: int, n_queries: int, seconds: float) -> dict[str, Any]:
    """Search an index in one thread while another thread of the process adds to it."""
    _, _, test = search_data.read(1, n_queries)
    with slosh.open(folder, n_jobs=1) as index:
        completed: list[bool] = []
        errors: list[BaseException] = []

        def add() -> None:
            try:
                completed.append(add_records(index, n_train, n_maps, ADD_LIMIT_SECONDS))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=add)

        def start_add() -> Callable[[], bool]:
            thread.start()
            return lambda: not thread.is_alive()

        result = compare(index, list(test), seconds, start_add)
        thread.join()
        if errors:
            raise errors[0]
        return {**result, "completed": completed[0]}


STEPS = (build_small, add_in_process, add_in_thread)


# -- the report --------------------------------------------------------------------------------------------------------


def measure(folder: Path, quick: bool, run_step: Callable[..., Any]) -> dict[str, Any]:
    """Measure both kinds of add, each on a copy of the same index."""
    n_train, n_maps, n_queries, seconds = (600, 2, 20, 0.5) if quick else (60_000, 17, 1000, BASELINE_SECONDS)
    index, copy = folder / "index.slosh", folder / "copy.slosh"
    result: dict[str, Any] = {"sets": run_step("build_small", index, n_train), "added": n_train * n_maps}
    for name, step in (("another process", "add_in_process"), ("the same process", "add_in_thread")):
        shutil.copytree(index, copy)
        # One thread is one thread: those of OpenBLAS spin for a while after each product.
        result[name] = run_step(step, copy, n_train, n_maps, n_queries, seconds, OPENBLAS_NUM_THREADS="1")
        shutil.rmtree(copy)
    shutil.rmtree(index)
    return result


def goal(result: dict[str, Any]) -> tuple[bool, str, str]:
    """Return whether the goal was reached, the goal, and the measured value."""
    ratio = result["another process"]["p99_ratio"]
    text = f"p99 of single queries during an add in another process at most {LARGEST_RATIO:g} x p99 without it"
    return ratio <= LARGEST_RATIO and result["another process"]["completed"], text, f"{ratio:.2f} x"


def print_result(result: dict[str, Any]) -> None:
    """Print p50, p99 and maximum without and with each kind of add."""
    print(f"\n{NAME}: {result['sets']:,} sets, {result['added']:,} added in one call; one thread each")
    for name in ("another process", "the same process"):
        row = result[name]
        for what, times in (("without an add", row["without"]), (f"with an add in {name}", row["during"])):
            print(
                f"  {what:34}p50 {times['p50_us']:8,.0f} us  p99 {times['p99_us']:8,.0f} us  "
                f"max {times['max_us']:10,.0f} us after {times['max_at_s']:.1f} s  ({times['queries']:,} queries)"
            )
        state = "" if row["completed"] else ", ABORTED at its time limit"
        print(
            f"  {'':34}p99 with / without: {row['p99_ratio']:.2f}; the add took {row['add_seconds']:.1f} s{state}; "
            f"the first query after it {row['first_after_ms']:.1f} ms",
            flush=True,
        )
