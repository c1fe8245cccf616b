"""All-pairs work over an index: the graph of nearest neighbours, and near-equal pairs, as Parquet files.

Every stored set is a query. The sets are cut into parts, in the order of the adds; each task asks for one part and
writes one file, so that no more than a part is in memory, and what is finished is not done again. The index must not
change meanwhile: all parts are of one version.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ..data.checks import checked_count, checked_flag, checked_number
from ..errors import InputError, SourceChanged, import_extra
from ..index import SetIndex
from ..index import open as open_index
from ..index.sharded_index import ShardedIndex
from ..where import parse
from .identity import Identity, identity_of
from .jobs import Meter, Progress, Report, Runner, in_turn
from .ledger import LEDGER, finished_entries, job_folder, open_ledger, remove_drafts, writing

PART_SETS = 8192
"""Sets of one task, unless the caller says otherwise."""


class Span(NamedTuple):
    """A part of the sets: `size` of them, behind the first `offset`."""

    offset: int
    size: int

    @property
    def file_name(self) -> str:
        """The file with what was found for it."""
        return f"part-{self.offset:012d}.parquet"


def neighbor_graph(
    index: Any,
    k: int,
    target: str | os.PathLike[str],
    *,
    recall: float | None = None,
    certify: bool = False,
    part_sets: int = PART_SETS,
    n_jobs: int | None = -1,
    progress: Progress | None = None,
    run: Runner | None = None,
) -> Report:
    """Write the graph of the k nearest neighbours of every stored set to a folder of Parquet files.

    index : an index, or its path or address, which is opened for reading only.
    target : a new folder, or one that this job was begun in. The columns are "id", "neighbor", "rank" (from 1) and
        "distance"; no set is its own neighbour.
    recall, certify : as in `SetIndex.search`. part_sets : sets of one task, and of one file.
    n_jobs : threads of one task. progress : called as progress(done, total); without it a bar is shown on a terminal.
        run : what runs the tasks; None is this process.

    The same call again does what is not done yet. If the index has changed since it began, it is refused.
    """
    checked_count("k", k)
    settings = {"k": int(k), "recall": recall, "certify": checked_flag("certify", certify)}
    work = partial(_write_neighbors, k=int(k), recall=recall, certify=certify)
    return _run(index, "neighbor_graph", settings, work, None, target, part_sets, n_jobs, progress, run)


def duplicates(
    index: Any,
    radius: float,
    target: str | os.PathLike[str],
    *,
    where: Any = None,
    certify: bool = False,
    part_sets: int = PART_SETS,
    n_jobs: int | None = -1,
    progress: Progress | None = None,
    run: Runner | None = None,
) -> Report:
    """Write all pairs of sets at most `radius` apart, each once, to a folder of Parquet files.

    The columns are "id", "other" and "distance". `where` and `certify` are as in `SetIndex.duplicates`, and all else is
    as in `neighbor_graph`. A part that finds many pairs holds all of them in memory: with a large radius give a smaller
    `part_sets`.
    """
    checked_number("radius", radius, "a number of at least 0", above=-1e-300)
    condition = None if where is None else str(parse(where))
    settings = {"radius": float(radius), "where": condition, "certify": checked_flag("certify", certify)}
    work = partial(_write_pairs, radius=float(radius), where=where, certify=certify)
    return _run(index, "duplicates", settings, work, where, target, part_sets, n_jobs, progress, run)


def _run(
    index: Any,
    job: str,
    settings: dict[str, Any],
    work: Callable[..., int],
    where: Any,
    target: Any,
    part_sets: int,
    n_jobs: int | None,
    progress: Progress | None,
    run: Runner | None,
) -> Report:
    import_extra("pyarrow", "slosh.batch", "tables")
    started, step = time.perf_counter(), checked_count("part_sets", part_sets)
    opened = index if isinstance(index, SetIndex) else open_index(index, read_only=True, n_jobs=n_jobs)
    try:
        total = len(opened) if where is None else len(opened.select(where))
        place = _place(index, opened, run)
        folder, identity = job_folder(target), identity_of(opened)
        which = {"index": identity.location, "token": identity.token, "version": identity.version}
        about = {**which, "part_sets": step, **settings}
        with open_ledger(folder / LEDGER, job, about) as ledger:
            remove_drafts(folder)
            done = {name: entry["sets"] for name, entry in finished_entries(ledger).items() if (folder / name).exists()}
            spans = [Span(first, min(step, total - first)) for first in range(0, max(total, 1), step)]
            tasks = [span for span in spans if span.file_name not in done]
            call = partial(_part, work=work, place=place, folder=str(folder), identity=identity, n_jobs=n_jobs)
            with Meter("neighbours", sum(span.size for span in tasks), progress) as meter:
                for span, _ in (run or in_turn)(call, tasks):
                    ledger.append({"done": span.file_name, "sets": span.size})
                    meter.add(span.size, span.size)
            remove_drafts(folder)
    finally:
        if opened is not index:
            opened.close()
    return Report(meter.sets, sum(done.values()), len(tasks), time.perf_counter() - started)


def _place(index: Any, opened: SetIndex, run: Runner | None) -> Any:
    """Return what a task opens: the index itself in this process, its location elsewhere."""
    if run is None:
        return opened
    if isinstance(index, ShardedIndex):
        problem = "the shards of a collection that is served are asked by the process that serves it"
        remedy = "call slosh.batch.neighbor_graph or slosh.batch.duplicates with it: its shards do the work"
        raise InputError(problem, remedy, argument="index")
    if not isinstance(index, SetIndex):
        place = os.fspath(index)
        return place if "://" in place else os.path.abspath(place)  # a worker has another current folder
    if index.location is None:
        problem = "workers cannot open an index in memory"
        raise InputError(problem, "save it with index.copy_to(folder), and give the folder", argument="index")
    return index.location


_opened: dict[str, tuple[Identity, SetIndex]] = {}
"""Indexes that this process has open for reading, by their places: a worker does many parts."""


@atexit.register
def _close_all() -> None:
    while _opened:
        _opened.popitem()[1][1].close()


def _part(
    span: Span, *, work: Callable[..., int], place: Any, folder: str, identity: Identity, n_jobs: int | None
) -> int:
    """Write one part; the index must be this one, in this state, before and after it."""
    index = _open_once(place, identity, n_jobs) if isinstance(place, str) else place
    _check_identity(index, identity)
    with writing(Path(folder) / span.file_name) as stream:
        n = work(index, span, stream)
        _check_identity(index, identity)
    return n


def _open_once(place: str, identity: Identity, n_jobs: int | None) -> SetIndex:
    """Return the index at a place as this process has it open, unless what is there is another one by now."""
    if place in _opened:
        known, index = _opened[place]
        if known == identity:
            return index
        del _opened[place]
        index.close()
    index = open_index(place, read_only=True, n_jobs=n_jobs)
    try:
        _check_identity(index, identity)
    except BaseException:
        index.close()
        raise
    _opened[place] = identity, index
    return index


def _check_identity(index: SetIndex, identity: Identity) -> None:
    if identity_of(index)[1:] != identity[1:]:
        place = index.location or "the index"
        remedy = "begin again in another folder, or run it over a copy: index.backup(folder)"
        raise SourceChanged(f"{place} was changed while the job ran", remedy, location=place, argument="index")


def _write_neighbors(index: SetIndex, span: Span, stream: Any, *, k: int, recall: float | None, certify: bool) -> int:
    import pyarrow as pa

    ids = index.select(limit=span.size, offset=span.offset) if span.size else []
    if not ids:
        counts, ranks, names = np.empty(0, np.int64), np.empty(0, np.int32), pa.array([], pa.large_string())
        distances = np.empty(0)
    elif certify:
        found = index.search(id=ids, k=k, certify=True)
        counts = np.array([len(each) for each in found.ids], np.int64)
        names = pa.array([name for each in found.ids for name in each], pa.large_string())
        distances = np.concatenate([np.empty(0), *found.distances])
        ranks = np.concatenate([np.empty(0, np.int32), *(np.arange(1, n + 1, dtype=np.int32) for n in counts)])
    else:
        far, positions = index.kneighbors(id=ids, k=k, recall=recall)
        there = positions >= 0
        names, distances, counts = _all_ids(index).take(pa.array(positions[there])), far[there], there.sum(axis=1)
        ranks = np.broadcast_to(np.arange(1, k + 1, dtype=np.int32), far.shape)[there]
    sources = pa.array(ids, pa.string()).take(pa.array(np.repeat(np.arange(len(ids)), counts)))
    if isinstance(names, pa.ChunkedArray):
        names = names.combine_chunks()
    columns = {"id": sources, "neighbor": names, "rank": pa.array(ranks, pa.int32()), "distance": pa.array(distances)}
    _write(pa.table(columns), stream)
    return len(ids)


IDS_AT_ONCE = 1 << 20
_names: WeakKeyDictionary[SetIndex, tuple[Identity, Any]] = WeakKeyDictionary()
"""The ids of the index that this process works on, and the state of it that they are of."""


def _all_ids(index: SetIndex) -> Any:
    """Return the ids of all sets, by position, as an Arrow column: a tenth of what a list of strings takes."""
    import pyarrow as pa

    identity = identity_of(index)
    known = _names.get(index)
    if known is not None and known[0] == identity:
        return known[1]
    starts = range(0, max(1, len(index)), IDS_AT_ONCE)
    chunks = [pa.array(index.select(limit=IDS_AT_ONCE, offset=first), pa.large_string()) for first in starts]
    _names.clear()
    _names[index] = identity, pa.chunked_array(chunks).cast(pa.large_string())
    return _names[index][1]


def _write_pairs(index: SetIndex, span: Span, stream: Any, *, radius: float, where: Any, certify: bool) -> int:
    import pyarrow as pa

    ids = index.select(where, limit=span.size, offset=span.offset) if span.size else []
    columns: Any = {"id": [], "other": [], "distance": []}
    if ids:
        columns = index.duplicates(radius, id=ids, where=where, certify=certify, progress=_silent).columns()
    schema = pa.schema([("id", pa.string()), ("other", pa.string()), ("distance", pa.float64())])
    _write(pa.table(columns, schema=schema), stream)
    return len(ids)


def _silent(done: int, total: int) -> None:
    """Show nothing: the job has a bar of its own."""


def _write(table: Any, stream: Any) -> None:
    from pyarrow import parquet

    parquet.write_table(table, stream, compression="zstd")
