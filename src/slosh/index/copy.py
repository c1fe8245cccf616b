"""From one place to another: an index copied with everything that decides about its answers."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from errno import EEXIST
from pathlib import Path
from typing import NamedTuple, Protocol

from ..data.atomic import sync_folder
from ..data.batching import batches_by_points
from ..data.progress import ProgressBar
from ..engines.addresses import without_password
from ..engines.base import Engine, Int64, Records, View
from ..engines.registry import Location, create_engine
from ..engines.spec import IndexSpec
from ..errors import IndexExists, bad_value
from . import changes

logger = logging.getLogger(__name__)

COPY_BATCH_SETS = 4096
COPY_NUMBERS = 1 << 22
"""Coordinates of the sets that are read together, unless a single set has more."""


class Original(NamedTuple):
    """One version of an index, to be copied: all that decides about its answers, and its sets in batches."""

    name: str
    spec: IndexSpec
    weighted: bool | None
    recall: float | None
    next_id: int
    calibrated: Sequence[tuple[int, float]]
    n_sets: int
    batches: Iterator[Records]


Source = Callable[[int], AbstractContextManager[Original]]
"""Opens the original, whose batches have so many sets."""


@contextmanager
def original_of(source: Engine, batch: int) -> Iterator[Original]:
    """Open the newest version of an index to be copied."""
    with source.view() as view:
        keys, settings = view.select(), view.settings
        batches = records_of(view, keys, batch)
        yield Original(
            changes.place_of(source),
            view.spec,
            settings["weighted"],
            settings["recall"],
            view.next_id,
            view.calibrated,
            len(keys),
            batches,
        )


def records_of(view: View, keys: Int64, batch: int) -> Iterator[Records]:
    """Yield stored sets, `batch` of them at a time, or fewer where they are large."""
    most = max(1, COPY_NUMBERS // view.spec.dim)
    for first in range(0, len(keys), batch):
        some = keys[first : first + batch]
        for part in batches_by_points(view.sizes(some), most):
            yield view.records(some[part])


class Target(Protocol):
    """A new index that a copy goes into. One on a server is in `remote.py`."""

    def store(self, records: Records) -> None: ...

    def finish(self, original: Original) -> None:
        """Take over what the original has beside its sets, and train the search."""

    def destroy(self) -> None: ...

    def close(self) -> None: ...


class LocalTarget:
    """A new index that this process makes."""

    def __init__(self, original: Original, place: Location, n_jobs: int | None) -> None:
        self._engine = create_engine(place, deepcopy(original.spec), original.weighted, n_jobs)
        self.destroy, self.close = self._engine.destroy, self._engine.close

    def store(self, records: Records) -> None:
        changes.add(self._engine, *records, False, [])

    def finish(self, original: Original) -> None:
        finish_copy(self._engine, original.recall, original.next_id, original.calibrated)


def finish_copy(copy: Engine, recall: float | None, next_id: int, calibrated: Sequence[tuple[int, float]]) -> None:
    """Give a copy the settings of its original, and train its search."""
    with copy.view() as view:
        next_id = max(next_id, view.next_id)
    with copy.write() as write:
        write.set_settings(recall=recall, next_id=next_id)
    changes.train(copy, eager=True, again=calibrated)


def copy_index(source: Source, make: Callable[[Original], Target], place: Location) -> int:
    """Copy one version of an index into a new one; return how many sets it has."""
    if place is None:
        raise bad_value("target", place, "give a place that lasts: a copy in memory would be gone at once")
    with source(COPY_BATCH_SETS) as original:
        copy = make(original)
        try:
            with ProgressBar(total=original.n_sets, unit="set", desc="copy") as bar:
                for records in original.batches:
                    copy.store(records)
                    bar.update(len(records.ids))
            copy.finish(original)
        except BaseException:
            copy.destroy()
            raise
        copy.close()
        logger.info("%s: copied %d sets to %s", original.name, original.n_sets, without_password(str(place)))
        return original.n_sets


def backup_index(source: Source, name: str, folder: str | os.PathLike[str], n_jobs: int | None) -> int:
    """Copy one version of an index into a folder that is there when the copy is whole; return how many sets it has."""
    if not isinstance(folder, str | os.PathLike) or "://" in str(folder):
        raise bad_value("folder", folder, "give the path of a new folder")
    target = Path(folder).absolute()
    if target.exists():
        raise IndexExists(f"{target} exists", "give the path of a new folder", errno=EEXIST, location=str(target))
    draft = target.with_name(f"{target.name}.{secrets.token_hex(6)}.new")
    n = copy_index(source, lambda original: LocalTarget(original, draft, n_jobs), draft)
    try:
        draft.rename(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    sync_folder(target.parent)
    logger.info("%s: backed up %d sets to %s", name, n, target)
    return n
