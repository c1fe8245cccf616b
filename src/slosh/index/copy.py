"""From one place to another: an index copied with everything that decides about its answers."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from copy import deepcopy
from errno import EEXIST
from pathlib import Path

from ..data.atomic import sync_folder
from ..data.progress import ProgressBar
from ..engines.base import Engine
from ..engines.registry import Location, create_engine
from ..engines.spec import IndexSpec
from ..errors import IndexExists, bad_value
from . import changes

logger = logging.getLogger(__name__)

COPY_BATCH_SETS = 4096


def copy_index(source: Engine, target: Location, n_jobs: int | None) -> int:
    """Copy one version of an index to a new one at `target`; return how many sets it has."""
    if target is None:
        raise bad_value("target", target, "give a place that lasts: a copy in memory would be gone at once")
    with source.view() as view:
        spec: IndexSpec = deepcopy(view.spec)
        copy = create_engine(target, spec, view.settings["weighted"], n_jobs)
        try:
            keys = view.select()
            with ProgressBar(total=len(keys), unit="set", desc="copy") as bar:
                for first in range(0, len(keys), COPY_BATCH_SETS):
                    sets, ids, metadata = view.records(keys[first : first + COPY_BATCH_SETS])
                    changes.add(copy, sets, ids, metadata, False, [])
                    bar.update(len(ids))
            with copy.write() as write:
                write.set_settings(recall=view.settings["recall"], next_id=view.next_id)
            changes.train(copy, eager=True, again=view.calibrated)
        except BaseException:
            copy.destroy()
            raise
        copy.close()
        logger.info("%s: copied %d sets to %s", changes.place_of(source), len(keys), changes.place_of(copy))
        return len(keys)


def backup_index(source: Engine, folder: str | os.PathLike[str], n_jobs: int | None) -> int:
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
    logger.info("%s: backed up %d sets to %s", changes.place_of(source), n, target)
    return n
