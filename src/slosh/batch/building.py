"""Build an index from files, at any location, so that the same call goes on after a crash; or a folder of shards.

An index is added to batch by batch, each as one change. The ledger says which files are in it. After a crash nobody
knows of the files that were begun which of their batches are stored: those whose sets are there, with the same points,
are passed over.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..data.checks import checked_count
from ..data.sets import Sets
from ..engines.addresses import split_name, without_password
from ..engines.registry import located
from ..engines.spec import IndexSpec
from ..errors import DuplicateId, IndexExists, IndexNotFound, InputError, import_extra
from ..index import SetIndex
from ..index import open as open_index
from ..readers.batches import Batch
from .identity import identity_of
from .jobs import Meter, Progress, Report, Runner, in_turn
from .learning import as_spec, asked_device, fingerprint, learn_from, spec_settings
from .ledger import Ledger, finished_entries, open_ledger
from .shards import build_shards, create_index
from .sources import (
    Piece,
    check_apart,
    checked_reading,
    count_rows,
    find_pieces,
    group_pieces,
    plain_options,
    read_batches,
    source_changed,
)

TASK_BYTES = 1 << 26
"""Of the source, on disk, between two lines of the ledger."""


def build(
    target: str | os.PathLike[str],
    source: Any,
    spec: Any = None,
    *,
    shard_sets: int | None = None,
    name: str | None = None,
    ledger: str | os.PathLike[str] | None = None,
    n_jobs: int | None = -1,
    progress: Progress | None = None,
    run: Runner | None = None,
    **reading: Any,
) -> Report:
    """Build an index of all sets of a source, or add to one that it has begun.

    target : the folder of the index, or the address of a database; with `shard_sets` a folder of shards.
    source : files, as `slosh.readers.read` takes them, and its options (`columns`, `weights`, `id_column`, ...). Of a
        table with one set a row, the ids are the column "id", if there is one and `id_column` names no other.
    spec : what the index is to be like: what `slosh.batch.learn` returned, the spec of another index, or an embedding;
        None is the default of `SetIndex.create`. What it learns is learnt from a sample of the source.
    shard_sets : build a folder of shards of about so many sets each, for `slosh.ray.serve`; None builds one index.
    name : of the index in a database.
    ledger : the file that says what is done; None is beside the folder of the index, in the folder of shards, or, for
        a database, in the current folder.
    n_jobs : threads of one task. progress : called as progress(done, total), in sets; without it a bar is shown on a
        terminal. run : what runs the tasks; None is this process. An index in a folder has one writer, and is always
        written by this process.

    The same call again adds what is not in the index yet. A file that was changed after it was added is refused
    (SourceChanged), and so is an id that occurs twice (DuplicateId); what is finished stays.
    """
    import_extra("pyarrow", "slosh.batch", "tables")
    if not isinstance(target, str | os.PathLike):
        raise InputError(f"target={target!r:.60}", "give the folder of an index, or an address", argument="target")
    options = checked_reading(reading)
    pieces = find_pieces(source, options)
    if "://" not in os.fspath(target):
        check_apart(source, target)
    if shard_sets is not None:
        checked_count("shard_sets", shard_sets)
        if ledger is not None or name is not None:
            raise InputError("shards have a ledger in their folder, and no name", argument="ledger")
        return build_shards(
            target, pieces, options, spec, shard_sets=shard_sets, n_jobs=n_jobs, progress=progress, run=run
        )
    place = located(target, name)
    assert place is not None
    return _build_index(os.fspath(place), pieces, options, spec, ledger, n_jobs, progress, run)


def _build_index(
    place: str,
    pieces: list[Piece],
    options: Mapping[str, Any],
    spec: Any,
    ledger: Any,
    n_jobs: int | None,
    progress: Progress | None,
    run: Runner | None,
) -> Report:
    started = time.perf_counter()
    path = _ledger_path(place) if ledger is None else Path(ledger).absolute()
    settings = {"index": without_password(place), "reading": plain_options(options), "spec": spec_settings(spec)}
    with (
        open_ledger(path, "build", settings) as book,
        _opened(place, pieces, options, spec, book, n_jobs) as index,
    ):
        left, skipped = _unfinished(book, pieces)
        begun = {tuple(key) for entry in book.entries for key in entry.get("begun", ())}
        tasks = [(task, any(piece.key in begun for piece in task)) for task in group_pieces(left, TASK_BYTES)]
        if tasks:
            book.append({"begun": [piece.key for piece in left]})
        sizes = [count_rows(task) for task, _ in tasks]
        with Meter("build", sum(sizes), progress) as meter:

            def finished(task: Task, n: int) -> None:
                book.append({"done": repr(task[0][0].key), "sets": n, "pieces": [piece.line for piece in task[0]]})
                meter.add(n, count_rows(task[0]))

            if "://" not in place or place.startswith("sqlite://"):
                _add_tasks(index, tasks, options, finished)  # it has one writer
            else:
                device = index.spec.device
                work = partial(_add_at, place=place, options=options, n_jobs=n_jobs, device=device)
                for task, n in (run or in_turn)(work, tasks):
                    finished(task, n)
    return Report(meter.sets, skipped, len(tasks), time.perf_counter() - started)


def _ledger_path(place: str) -> Path:
    if "://" not in place:
        return Path(f"{Path(place).absolute()}.jsonl")
    url, name = split_name(place)
    words = re.sub(r"[^\w.-]+", "_", f"{without_password(url).partition('://')[2]}_{name or ''}").strip("_")
    return Path(f"{words}.jsonl").absolute()


def _opened(
    place: str, pieces: list[Piece], options: Mapping[str, Any], spec: Any, book: Ledger, n_jobs: int | None
) -> SetIndex:
    """Open the index that the job has begun, or create it; the ledger is then one of this index."""
    given = as_spec(spec)
    try:
        index = open_index(place, n_jobs=n_jobs, device=asked_device(spec, given))
    except IndexNotFound:
        made = learn_from(pieces, options, spec) if given is None else given
        if book.entries:  # of an index that was deleted
            book.begin_anew()
        index = create_index(place, made, n_jobs)
    try:
        _check_index(index, place, given, book)
    except BaseException:
        index.close()
        raise
    return index


def _check_index(index: SetIndex, place: str, given: IndexSpec | None, book: Ledger) -> None:
    """Refuse an index that is not the one which the ledger is of. An empty one in its place is built from the start."""
    token, n, shown = identity_of(index).token, len(index), without_password(place)
    tokens = [entry["index"] for entry in book.entries if "index" in entry]
    if n and not book.entries:
        problem = f"there is an index with {n:,} sets at {shown}, and no ledger that says what is in it"
        remedy = "give ledger=, that of the call that built it, or another target; index.add adds to any index"
        raise IndexExists(problem, remedy, location=shown)
    if n and tokens and tokens[-1] != token:
        problem = f"the index with {n:,} sets at {shown} is not the one that {book.path} was written for"
        remedy = "put that one back, or give another target; index.add adds to any index"
        raise IndexExists(problem, remedy, location=shown)
    if given is not None and fingerprint(given) != fingerprint(index.spec):
        problem = "the index was created with another specification"
        raise InputError(problem, "leave spec out, or give another target", argument="spec")
    same = token is not None and tokens[-1:] == [token]
    if not n and not same and finished_entries(book):
        book.begin_anew()
        tokens = []
    if not tokens:
        book.append({"index": token})


def _unfinished(book: Ledger, pieces: list[Piece]) -> tuple[list[Piece], int]:
    files, here = {piece.path: piece.stamp for piece in pieces}, {piece.key for piece in pieces}
    done: set[Any] = set()
    skipped = 0
    for entry in finished_entries(book).values():
        for path, _, _, *stamp in entry["pieces"]:
            if files.get(path, stamp) != stamp:
                remedy = "put the file back, or build an index at another place"
                raise source_changed(path, "has changed since its sets were added", remedy)
        keys = {tuple(each[:3]) for each in entry["pieces"]}
        done |= keys
        skipped += entry["sets"] if keys & here else 0
    return [piece for piece in pieces if piece.key not in done], skipped


Task: TypeAlias = tuple[list[Piece], bool]
"""Pieces to add, and whether an earlier call has begun to: then some of their sets may be stored."""


def _add_at(task: Task, *, place: str, options: Mapping[str, Any], n_jobs: int | None, device: str | None) -> int:
    """Add pieces to an index that several processes may write to, and return how many sets they have."""
    stored: list[int] = []
    with open_index(place, n_jobs=n_jobs, device=device) as index:
        try:
            _add_tasks(index, [task], options, lambda _, n: stored.append(n))
        except DuplicateId:
            if task[1]:
                raise  # it was compared with what is stored
            _add_tasks(index, [(task[0], True)], options, lambda _, n: stored.append(n))  # a worker died in the middle
    return stored[0]


def _add_tasks(
    index: SetIndex, tasks: Sequence[Task], options: Mapping[str, Any], finished: Callable[[Task, int], object]
) -> None:
    """Add all tasks as one stream, which learns once at its end; call finished(task, n) when its n sets are stored."""
    spec = index.spec
    at = tasks[0][0][0] if tasks else None

    def batches() -> Iterator[Batch]:
        nonlocal at
        for task in tasks:
            n, seen = 0, set[str]()
            for at in task[0]:
                for batch in read_batches(at, options, spec.dim, spec.origin):
                    n += len(batch.ids)
                    left = _missing(index, batch, seen) if task[1] else batch
                    if left.ids:
                        yield left
            finished(task, n)  # whoever asks for more has stored what came before

    try:
        index.add(batches())
    except DuplicateId as error:
        assert at is not None
        problem = f"{at.path}: the id {error.id!r:.100} is in the index already, or occurs twice"
        raise DuplicateId(problem, "rename one, or give another id_column", id=error.id) from None


def _missing(index: SetIndex, batch: Batch, seen: set[str]) -> Batch:
    """Return the sets of a batch that are not stored yet. A set that is stored with other points stays in, and so does
    one whose id is among those `seen` before, in the same task: its id is used twice, which `add` refuses.
    """
    there = [i for i, name in enumerate(batch.ids) if name not in seen and name in index]
    seen.update(batch.ids)
    if not there:
        return batch
    stored = index.get([batch.ids[i] for i in there])
    same = _equal_sets(stored.sets, batch.sets.take(there))  # type: ignore[union-attr]
    known = {i for i, is_same in zip(there, same, strict=True) if is_same}
    rest = [i for i in range(len(batch.ids)) if i not in known]
    return Batch(batch.sets.take(rest), [batch.ids[i] for i in rest], [batch.metadata[i] for i in rest])


def _equal_sets(a: Sets, b: Sets) -> list[bool]:
    """Return which sets have the same points, with the same shares of the weight."""
    pairs = zip(a, b, _shares(a), _shares(b), strict=True)
    return [np.array_equal(x, y) and np.allclose(v, w, rtol=1e-5, atol=0) for x, y, v, w in pairs]


def _shares(sets: Sets) -> list[NDArray[np.float64]]:
    """Return the weights of the elements of each set, with the sum 1."""
    weights = np.ones(sets.offsets[-1]) if sets.weights is None else np.asarray(sets.weights, np.float64)
    each = [weights[first:end] for first, end in pairwise(sets.offsets.tolist())]
    return [x / x.sum() for x in each]
