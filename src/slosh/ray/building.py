"""Batch jobs on Ray: the jobs of `slosh.batch`, with their tasks on the workers of a cluster."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import batch
from ..batch import Report
from ..batch.arrow import plain_lists
from ..batch.jobs import Progress
from ..batch.learning import as_spec
from ..batch.ledger import check_target
from ..batch.sources import check_format, checked_reading
from ..data.atomic import replacing
from ..data.checks import checked_count
from ..errors import DuplicateId, InputError, ReaderError
from .running import RayRunner, import_ray

FINISHED = "finished"
"""A file that says that the job of a dataset is done, and its data are removed."""


def embed(
    source: Any,
    target: str | os.PathLike[str],
    spec: Any = None,
    *,
    num_cpus: float = 1,
    workers: int | None = None,
    progress: Progress | None = None,
    **reading: Any,
) -> Report:
    """Embed all sets of a source on the workers of Ray, and write their vectors to a folder of Parquet files.

    source : files that all machines can read, as `slosh.batch.embed_files` takes them; or a dataset of Ray, with one
        set a row.
    target : a folder that all machines can write to.
    spec, progress, reading : as in `slosh.batch.embed_files`.
    num_cpus : cores, and threads, of one task. workers : tasks at a time; None is as many as there are cores for.

    The same call again does what is not done yet. A worker that dies loses nothing: Ray runs its task again. If Ray was
    not started, it is started on this machine.
    """
    run, threads = RayRunner(num_cpus, workers), max(1, int(num_cpus))
    if not _is_dataset(source):
        return batch.embed_files(source, target, spec, n_jobs=threads, progress=progress, run=run, **reading)
    check_target(target)
    with _staged(source, target, spec, reading, run) as staged:
        return batch.embed_files(staged, target, spec, n_jobs=threads, progress=progress, run=run, **reading)


def build(
    target: str | os.PathLike[str],
    source: Any,
    spec: Any = None,
    *,
    shard_sets: int | None = None,
    name: str | None = None,
    ledger: str | os.PathLike[str] | None = None,
    num_cpus: float = 1,
    workers: int | None = None,
    progress: Progress | None = None,
    **reading: Any,
) -> Report:
    """Build an index, or a folder of shards, of all sets of a source, on the workers of Ray.

    target : the folder of an index, the address of a database, or with `shard_sets` a folder of shards, which all
        machines can write to. Shards and a database are written by all workers. An index in a folder has one writer:
        it is written by the process that calls this.
    source : files that all machines can read, as `slosh.batch.build` takes them; or a dataset of Ray, with one set a
        row, which is first written to Parquet beside the target.
    spec, shard_sets, name, ledger, progress, reading : as in `slosh.batch.build`.
    num_cpus : cores, and threads, of one task. workers : tasks at a time; None is as many as there are cores for.

    The same call again does what is not done yet. A worker that dies loses nothing and doubles nothing.
    """
    local = shard_sets is None and "://" not in str(target)
    threads = -1 if local else max(1, int(num_cpus))
    settings: dict[str, Any] = {
        "shard_sets": shard_sets,
        "name": name,
        "ledger": ledger,
        "n_jobs": threads,
        "progress": progress,
    }
    run = RayRunner(num_cpus, workers)
    if not _is_dataset(source):
        return batch.build(target, source, spec, **settings, run=run, **reading)
    if shard_sets is not None:
        checked_count("shard_sets", shard_sets)
    with _staged(source, target, spec, reading, run) as staged:
        return batch.build(target, staged, spec, **settings, run=run, **reading)


def _is_dataset(source: Any) -> bool:
    return type(source).__module__.partition(".")[0] == "ray" and hasattr(source, "write_parquet")


def _staging(target: str | os.PathLike[str]) -> Path:
    """Return the folder that a dataset is written to before it is used."""
    place = os.fspath(target)
    if "://" in place:
        raise InputError(
            "a dataset is written to Parquet first, and there is no folder beside an address",
            "write it with dataset.write_parquet(folder), and give that folder as the source",
            argument="source",
        )
    return Path(f"{Path(place).absolute()}.staged")


@contextmanager
def _staged(
    dataset: Any, target: str | os.PathLike[str], spec: Any, reading: dict[str, Any], run: RayRunner
) -> Iterator[Path]:
    """Give the folder that a dataset is written to, once all else that was asked for is checked. When the block ends
    its data are removed; an error in them says where they are.
    """
    folder = _staging(target)
    check_format(checked_reading(reading))
    as_spec(spec)
    run.check(import_ray("a dataset"))
    _stage(dataset, folder, Path(target).absolute())
    try:
        yield folder
    except (ReaderError, DuplicateId) as error:
        again = f"mend the copy of the dataset in {folder}; or remove {os.fspath(target)}, and give a mended dataset"
        error.remedy = f"{error.remedy}; {again}" if error.remedy else again
        raise
    _forget(folder)


def _stage(dataset: Any, folder: Path, target: Path) -> Path:
    """Write a dataset to a folder, unless that was done before; one that was begun is written anew.

    A dataset has no files by which a second call could tell what is done: written once, it has. If the target is gone,
    so is what was done.
    """
    if folder.exists() and not target.exists():
        shutil.rmtree(folder)
    if (folder / FINISHED).exists():
        problem = f"a dataset was read into this target already ({folder / FINISHED} says so)"
        remedy = "write this one with dataset.write_parquet(folder) and give the folder, or give another target"
        raise InputError(problem, remedy, argument="source")
    if folder.exists():
        return folder
    for old in folder.parent.glob(f".{folder.name}.*.tmp"):
        shutil.rmtree(old, ignore_errors=True)
    draft = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:12]}.tmp")
    dataset.map_batches(plain_lists, batch_format="pyarrow").write_parquet(str(draft))
    if not any(draft.glob("*.parquet")):
        shutil.rmtree(draft, ignore_errors=True)
        raise InputError("the dataset has no rows", "give one that has", argument="source")
    draft.rename(folder)
    return folder


def _forget(folder: Path) -> None:
    """Remove the data of a dataset, and leave a mark that they were used."""
    with replacing(folder / FINISHED) as stream:
        stream.write(b"")
    for name in os.listdir(folder):
        if name != FINISHED:
            (folder / name).unlink()
