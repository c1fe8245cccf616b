"""From one place to another: an index copied with everything that decides about its answers."""

from __future__ import annotations

import os
import secrets
import shutil
from copy import deepcopy
from pathlib import Path

from tqdm.auto import tqdm

from ..data.atomic import sync_folder
from ..engines.base import Engine
from ..engines.registry import Location, create_engine, open_engine
from ..engines.spec import IndexSpec
from ..errors import IndexExists, bad_value
from . import changes

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
            with tqdm(total=len(keys), unit="set", delay=2, disable=None, leave=False, desc="copy") as bar:
                for first in range(0, len(keys), COPY_BATCH_SETS):
                    sets, ids, metadata = view.records(keys[first : first + COPY_BATCH_SETS])
                    changes.add(copy, sets, ids, metadata, False)
                    bar.update(len(ids))
            if view.settings["recall"] is not None:
                with copy.write() as write:
                    write.set_settings(recall=view.settings["recall"])
            changes.train(copy)
        except BaseException:
            copy.destroy()
            raise
        copy.close()
        return len(keys)


def backup_index(source: Engine, folder: str | os.PathLike[str], replace: bool, n_jobs: int | None) -> int:
    """Copy one version of an index into a folder that is there when the copy is whole; return how many sets it has."""
    target = Path(folder).absolute()
    if target.exists():
        if not replace:
            raise IndexExists(f"{target} exists", "give another path, or replace=True", location=str(target))
        open_engine(target, True, n_jobs).close()  # refuses what is not an index
    draft, old = (target.with_name(f"{target.name}.{secrets.token_hex(6)}.{what}") for what in ("new", "old"))
    n = copy_index(source, draft, n_jobs)
    if target.exists():
        target.rename(old)
    draft.rename(target)
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)
    return n
