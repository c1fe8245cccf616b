"""A folder of files in, a folder of Parquet files with vectors out: the job that `slosh.ray.embed` runs, too.

Each task reads some pieces of the source and writes one file. Its name follows from the pieces, so that a task which
is run again writes the same file.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from ..engines.spec import IndexSpec
from ..errors import InputError, import_extra, system_error
from .arrow import VECTOR, embed
from .jobs import Meter, Progress, Report, Runner, in_turn
from .learning import settled_spec, spec_settings
from .ledger import LEDGER, Ledger, check_target, finished_entries, job_folder, open_ledger, remove_drafts, writing
from .sources import (
    Piece,
    check_apart,
    checked_reading,
    count_rows,
    find_pieces,
    group_pieces,
    ids_of,
    in_file,
    plain_options,
    read_rows,
    source_changed,
)

TASK_BYTES = 1 << 26
"""Of the source, on disk, in one task: seconds of work, so that what a task costs by itself does not matter."""


def embed_files(
    source: Any,
    target: str | os.PathLike[str],
    spec: Any = None,
    *,
    n_jobs: int | None = -1,
    progress: Progress | None = None,
    run: Runner | None = None,
    **reading: Any,
) -> Report:
    """Embed all sets of a source and write their vectors to a folder of Parquet files.

    source : files, as `slosh.readers.read` takes them, and its options (`columns`, `weights`, `id_column`, ...).
    target : a new folder, or one that this job was begun in. A table has the columns of the source but for points and
        weights, the column "vector", and, if it has no ids, "id" with those that `build` would give; of files that are
        no tables, "id", "metadata" (JSON) and "vector".
    spec : as in `slosh.batch.embed`; or an embedding that is not fitted, or None for `SlicedWasserstein()`, which are
        fitted on a sample of the source (`slosh.batch.learn`) and kept in the target.
    n_jobs : threads of one task. progress : called as progress(done, total), in sets; without it a bar is shown on a
        terminal. run : what runs the tasks; None is this process, one after the other.

    The same call again does what is not done yet: files that are new, or were changed. After an error, or a crash, all
    that is finished stays. If a file has changed whose vectors are in one output with those of files that are not in
    the source any more, that is refused (SourceChanged): they could not be made again.
    """
    import_extra("pyarrow", "slosh.batch", "tables")
    started, options = time.perf_counter(), checked_reading(reading)
    pieces = find_pieces(source, options)
    check_target(target)
    check_apart(source, target)
    folder = job_folder(target)
    settings = {"spec": spec_settings(spec), "reading": plain_options(options)}
    with open_ledger(folder / LEDGER, "embed", settings) as ledger:
        remove_drafts(folder)
        left, skipped = unfinished(ledger, folder, pieces)
        chosen = settled_spec(folder, spec, pieces, options)
        tasks = group_pieces(left, TASK_BYTES)
        work = partial(_write_vectors, folder=str(folder), spec=chosen, options=options, n_jobs=n_jobs)
        with Meter("embed", sum(map(count_rows, tasks)), progress) as meter:
            for task, n in (run or in_turn)(work, tasks):
                ledger.append({"done": output_name(task), "pieces": [p.line for p in task], "sets": n})
                meter.add(n, count_rows(task))
        remove_drafts(folder)
    return Report(meter.sets, skipped, len(tasks), time.perf_counter() - started)


def output_name(task: list[Piece]) -> str:
    """Return the name of the file that a task writes."""
    first = re.sub(r"[^\w.-]+", "_", Path(task[0].name).stem)[:60].lstrip("._") or "part"
    digest = sha256(repr([piece.key for piece in task]).encode()).hexdigest()[:12]
    return f"{first}-{digest}.parquet"


_OURS = re.compile(r".+-[0-9a-f]{12}\.parquet")
"""Names that `output_name` gives."""


def unfinished(ledger: Ledger, folder: Path, pieces: list[Piece]) -> tuple[list[Piece], int]:
    """Return the pieces that are not done, and how many sets are. What was made of files that changed is removed, and
    so is what a process that was killed has written and nobody knows of.

    An output is removed only if all that it was made of can be read again: otherwise SourceChanged is raised.
    """
    keys, files = {piece.key for piece in pieces}, {piece.path: piece.stamp for piece in pieces}
    done: set[Any] = set()
    skipped, stale = 0, list[str]()
    entries = finished_entries(ledger)
    for name, entry in entries.items():
        changed = [path for path, _, _, *stamp in entry["pieces"] if files.get(path, stamp) != stamp]
        if not (folder / name).exists():
            ledger.append({"dropped": name})
        elif changed:
            _check_others(folder / name, changed[0], [each[0] for each in entry["pieces"] if each[0] not in files])
            stale.append(name)
        else:
            done.update(tuple(each[:3]) for each in entry["pieces"])
            skipped += sum(tuple(each[:3]) in keys for each in entry["pieces"]) and entry["sets"]
    for name in [*stale, *(each for each in os.listdir(folder) if each not in entries and _OURS.fullmatch(each))]:
        _remove(folder / name)  # first: what the ledger does not know is removed the next time
        if name in entries:
            ledger.append({"dropped": name})
    return [piece for piece in pieces if piece.key not in done], skipped


def _check_others(output: Path, changed: str, others: list[str]) -> None:
    """Refuse to drop an output that is also of files which are not in the source of this call."""
    if others:
        what = f"has changed, and {output} holds its vectors together with those of {others[0]}, which is not given"
        remedy = "give all files that it was made of in one call, put the file back, or give another target"
        raise source_changed(changed, what, remedy)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise system_error(error, str(path)) from None


def _write_vectors(
    task: list[Piece], *, folder: str, spec: IndexSpec, options: Mapping[str, Any], n_jobs: int | None
) -> int:
    """Write the vectors of some pieces to one file, and return how many they are."""
    from pyarrow import parquet

    batches = _embedded(task, spec, options, n_jobs)
    first = next(batches, None)
    if first is None:
        raise InputError(f"{task[0].path}: there are no sets in it", "leave it out", argument="source")
    texts = [name for name in first.schema.names if name != VECTOR]  # vectors gain nothing from a dictionary
    how = {"schema": first.schema, "compression": "snappy", "use_dictionary": texts}
    n, path = 0, Path(folder) / output_name(task)
    with writing(path) as stream, parquet.ParquetWriter(stream, **how) as writer:
        for made in chain([first], batches):
            writer.write_batch(made)
            n += len(made)
    return n


def _embedded(task: list[Piece], spec: IndexSpec, options: Mapping[str, Any], n_jobs: int | None) -> Iterator[Any]:
    """Yield the batches of some pieces with vectors in place of points."""
    for piece in task:
        for rows in read_rows(piece, options):
            columns, weights, named = rows.columns
            try:
                made = embed(rows.batch, spec, columns=columns, weights=weights or False, n_jobs=n_jobs)
            except InputError as error:
                raise in_file(error, rows, piece) from None
            yield (made if named else _with_ids(made, ids_of(rows, piece.file))).replace_schema_metadata(None)


def _with_ids(made: Any, ids: list[str]) -> Any:
    """Return a batch with the ids that `build` gives to its sets in front: the source has no column of ids."""
    import pyarrow as pa

    name = "id" if "id" not in made.schema.names else "set_id"
    schema = pa.schema([pa.field(name, pa.string()), *made.schema])
    return pa.RecordBatch.from_arrays([pa.array(ids, pa.string()), *made.columns], schema=schema)
