"""All-pairs work over an index on the workers of Ray, each of which opens the index for reading."""

from __future__ import annotations

import os
from typing import Any

from .. import batch
from ..batch import Report
from ..batch.jobs import Progress
from ..batch.pairs import PART_SETS
from .running import RayRunner


def neighbor_graph(
    index: Any,
    k: int,
    target: str | os.PathLike[str],
    *,
    recall: float | None = None,
    certify: bool = False,
    part_sets: int = PART_SETS,
    num_cpus: float = 1,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Write the graph of the k nearest neighbours of every stored set, as `slosh.batch.neighbor_graph` does.

    index : the path or address of an index that all machines can open; or an index that is open, by its location.
    num_cpus : cores, and threads, of one task. workers : tasks at a time; None is as many as there are cores for.
    """
    threads = max(1, int(num_cpus))
    return batch.neighbor_graph(
        index,
        k,
        target,
        recall=recall,
        certify=certify,
        part_sets=part_sets,
        n_jobs=threads,
        progress=progress,
        run=RayRunner(num_cpus, workers),
    )


def duplicates(
    index: Any,
    radius: float,
    target: str | os.PathLike[str],
    *,
    where: Any = None,
    certify: bool = False,
    part_sets: int = PART_SETS,
    num_cpus: float = 1,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Write all pairs of sets at most `radius` apart, as `slosh.batch.duplicates` does; see `neighbor_graph`."""
    threads = max(1, int(num_cpus))
    return batch.duplicates(
        index,
        radius,
        target,
        where=where,
        certify=certify,
        part_sets=part_sets,
        n_jobs=threads,
        progress=progress,
        run=RayRunner(num_cpus, workers),
    )
