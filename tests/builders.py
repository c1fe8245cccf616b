"""Collections, indexes and threads that many tests need, made from a seed."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slosh
from slosh import Sets
from slosh.embed import SlicedWasserstein

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
"""The real data sets, which may be absent."""
PATIENCE = 120
"""Seconds after which a thread or a process that should have gone on counts as stuck, on however busy a machine."""


def clouds(sizes: int | Sequence[int], dim: int = 2, seed: int = 0, weighted: bool = False, largest: int = 40) -> Sets:
    """Return normal clouds of different places and spreads.

    `sizes` is the number of elements of each, or a number of sets, whose sizes are then drawn from 2 to `largest` - 1.
    Weights are positive, but some of those of sets with more than one element are zero.
    """
    rng = np.random.default_rng(seed)
    counts = rng.integers(2, largest, sizes) if isinstance(sizes, int) else np.asarray(sizes)
    points = [rng.normal(size=(n, dim)) * rng.uniform(0.3, 2) + rng.normal(size=dim) for n in counts]
    if not weighted:
        return Sets.from_list(points, dim=dim)
    weights = [rng.uniform(0.1, 1, n) * (rng.random(n) > 0.2) for n in counts]
    for each in weights:
        each[0] = 0.5
    return Sets.from_list(points, weights, dim=dim)


def normal_arrays(*sizes: int, dim: int = 2, seed: int = 0, dtype: Any = np.float32) -> list[np.ndarray]:
    """Return normal arrays of these sizes."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, dim)).astype(dtype) for n in sizes]


def cloud_list(n: int, dim: int = 2, seed: int = 0, largest: int = 12) -> list[np.ndarray]:
    """Return the points of `clouds` as a list of float32 arrays."""
    return split(clouds(n, dim, seed, largest=largest))


def split(sets: Sets) -> list[np.ndarray]:
    """Return the points of each set, without its weights."""
    return [sets.points[a:b] for a, b in pairwise(sets.offsets.tolist())]


def small_embedding(**options: Any) -> SlicedWasserstein:
    """Return an embedding of few numbers, for tests of what does not depend on how many they are."""
    return SlicedWasserstein(**{"n_slices": 4, "n_quantiles": 4, "n_jobs": 1, **options})


def make_index(path: Any = None, dim: int = 2, **options: Any) -> slosh.SetIndex:
    """Create a small index, in memory unless a path is given."""
    return slosh.SetIndex.create(path, dim, **{"embedding": small_embedding(), "n_jobs": 1, **options})


def contents(index: slosh.SetIndex) -> dict[str, tuple[Any, ...]]:
    """Return all that an index holds, in a form that compares."""
    sets, ids, metadata = index.get(index.ids)
    weights = [sets.weights_of(i) for i in range(len(ids))]
    kept = zip(split(sets), weights, metadata, strict=True)
    return {
        name: (points.tobytes(), None if own is None else own.tobytes(), about)
        for name, (points, own, about) in zip(ids, kept, strict=True)
    }


def plain_answer(found: Any) -> tuple[Any, ...]:
    """Return ids and distances of `Hits` or `HitLists` in a form that compares, bit for bit."""
    if hasattr(found.distances, "tolist"):
        return found.ids, found.distances.tolist()
    return found.ids, [distances.tolist() for distances in found.distances]


def together(*works: Callable[[], Any], seconds: float = PATIENCE) -> None:
    """Run each work in a thread of its own. The first error, or a thread that does not end, is the test's."""
    errors: list[BaseException] = []

    def run(work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if errors:
        raise errors[0]
    if any(thread.is_alive() for thread in threads):
        faulthandler.dump_traceback()
        pytest.fail("threads wait for each other")


def calls_of(work: Callable[[], Any], interrupted_at: int = -1) -> int:
    """Do the work and return how many Python functions it called; Ctrl-C comes as one of them is called."""
    calls = count()

    def trace(frame: Any, event: str, _: Any) -> None:
        if next(calls) == interrupted_at:
            signal.raise_signal(signal.SIGINT)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return next(calls)


@contextmanager
def hurried_threads() -> Iterator[None]:
    """Let threads take turns every few instructions, so that what one leaves half done the others see."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def wait_for(event: threading.Event) -> None:
    """Wait for an event of another thread, and fail if it never comes."""
    assert event.wait(PATIENCE), "the other thread never got there"


def until(happens: Callable[[], Any]) -> None:
    """Wait for an event, of another process, say, and fail if it never comes."""
    end = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail instead of waiting for ever, as for a pipe that nobody writes to."""

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError("it waits for ever")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
