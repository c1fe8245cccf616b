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
from typing import NamedTuple

from ..data.atomic import sync_folder
from ..data.progress import ProgressBar
from ..engines.base import Engine, Records
from ..engines.registry import Location, create_engine
from ..engines.spec import IndexSpec
from ..errors import IndexExists, bad_value
from . import changes

logger = logging.getLogger(__name__)

COPY_BATCH_SETS = 4096


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
        batches = (view.records(keys[first : first + batch]) for first in range(0, len(keys), batch))
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


def copy_index(source: Source, target: Location, n_jobs: int | None) -> int:
    """Copy one version of an index to a new one at `target`; return how many sets it has."""
    if target is None:
        raise bad_value("target", target, "give a place that lasts: a copy in memory would be gone at once")
    with source(COPY_BATCH_SETS) as original:
        copy = create_engine(target, deepcopy(original.spec), original.weighted, n_jobs)
        try:
            with ProgressBar(total=original.n_sets, unit="set", desc="copy") as bar:
                for sets, ids, metadata in original.batches:
                    changes.add(copy, sets, ids, metadata, False, [])
                    bar.update(len(ids))
            with copy.write() as write:
                write.set_settings(recall=original.recall, next_id=original.next_id)
            changes.train(copy, eager=True, again=original.calibrated)
        except BaseException:
            copy.destroy()
            raise
        copy.close()
        logger.info("%s: copied %d sets to %s", original.name, original.n_sets, changes.place_of(copy))
        return original.n_sets


def backup_index(source: Source, name: str, folder: str | os.PathLike[str], n_jobs: int | None) -> int:
    """Copy one version of an index into a folder that is there when the copy is whole; return how many sets it has."""
    if not isinstance(folder, str | os.PathLike) or "://" in str(folder):
        raise bad_value("folder", folder, "give the path of a new folder")
    target = Path(folder).absolute()
    if target.exists():
        raise IndexExists(f"{target} exists", "give the path of a new folder", errno=EEXIST, location=str(target))
    draft = target.with_name(f"{target.name}.{secrets.token_hex(6)}.new")
    n = copy_index(source, draft, n_jobs)
    try:
        draft.rename(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    sync_folder(target.parent)
    logger.info("%s: backed up %d sets to %s", name, n, target)
    return n
