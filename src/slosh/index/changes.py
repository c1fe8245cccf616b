"""How sets get into an index, step by step: check, prepare, embed, hand over to the engine.

What a user passed comes in; the engine's next version goes out. Everything is checked before anything changes.
"""

from __future__ import annotations

import logging
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from ..checkpoints import optional
from ..data.interrupts import interruptible
from ..data.progress import ProgressBar
from ..data.sets import Sets
from ..engines.base import Engine, Entries, Int64, View, Write
from ..engines.spec import Embedded, IndexSpec, makers_after
from ..errors import DuplicateId, InputError, ServerLost, SloshError, UnknownId, WriteConflict, user_level
from ..where import Node, parse_metadata
from . import part_trial
from .records import (
    checked_ids,
    checked_metadata,
    is_single_id,
    merge_metadata,
    metadata_of_each,
    stream_batches,
)

logger = logging.getLogger(__name__)

CHUNK_NUMBERS = 1 << 24
"""Numbers of the vectors that are held while sets are added."""
TRIES, FIRST_PAUSE = 6, 0.05
"""How often a change is tried if other writers are in its way, and seconds between the first two; twice as long each
time."""
T = TypeVar("T")


def checked_addition(sets: Sets, ids: Any, metadata: Any, update: bool) -> tuple[list[str] | None, Sequence[Any]]:
    """Return the ids of sets that are to be stored, None to count, and the metadata of each, read to their end."""
    if is_single_id(ids):
        raise InputError(f"ids={ids!r:.60}", "give a list of strings, one for each set", argument="ids")
    names = None if ids is None else checked_ids(ids)
    if names is not None and len(names) != len(sets):
        raise InputError(f"there are {len(sets)} sets and {len(names)} ids", "give one for each", argument="ids")
    if names is None and update:
        raise InputError("update=True replaces sets by their ids", "give ids", argument="ids")
    return names, metadata_of_each(metadata, len(sets))


def add(engine: Engine, sets: Sets, ids: Any, metadata: Any, update: bool, added: list[str]) -> None:
    """Store checked sets as one change, and append their ids to `added` as soon as they are stored."""
    names, given = checked_addition(sets, ids, metadata, update)  # all is read before the write begins
    started = time.perf_counter()

    def attempt() -> None:
        write, chosen = None, names
        try:
            with engine.write() as write:
                chosen = write.free_ids(len(sets)) if chosen is None else chosen
                about = _metadata_after(write.view, chosen, given, False) if update else given
                if not update:
                    _check_new(write.view, chosen)
                checked = checked_metadata(about, chosen)
                if len(sets):
                    _store(write, _with_weights(write, sets), chosen, checked)
        finally:
            if chosen is not None and write is not None and write.committed:
                added.extend(chosen)

    _retried(attempt)
    logger.info("%s: added %d sets in %.3f s", place_of(engine), len(sets), time.perf_counter() - started)


def _retried(attempt: Callable[[], T]) -> T:
    """Make a change, and make it again where another writer was in its way, or a server went away before it was made.

    Each attempt sees the newest version: so what the others did is not lost, and a set that they removed is missed.
    """
    pause = FIRST_PAUSE
    for _ in range(TRIES - 1):
        try:
            return attempt()
        except (WriteConflict, ServerLost) as error:
            logger.info("%s: trying again", error.problem)
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause *= 2
    return attempt()


def checked_update(names: list[str], sets: Sets | None, metadata: Any) -> Sequence[Any]:
    """Return the metadata of each of the sets that are to be replaced."""
    if sets is not None and len(names) != len(sets):
        raise InputError(f"there are {len(sets)} sets and {len(names)} ids", "give one for each", argument="ids")
    return metadata_of_each(metadata, len(names))


def update(engine: Engine, names: list[str], sets: Sets | None, metadata: Any, merge: bool) -> None:
    """Replace the points, the metadata, or both, of existing sets as one change; None leaves that part as it is."""
    given = checked_update(names, sets, metadata)

    def attempt() -> None:
        with engine.write() as write:
            keys = known_keys(write.view, names)
            checked = checked_metadata(_metadata_after(write.view, names, given, merge), names)
            if sets is None:
                write.set_metadata(keys, checked)
            elif len(sets):
                _store(write, _with_weights(write, sets), names, checked)

    _retried(attempt)
    logger.info("%s: updated %d sets", place_of(engine), len(names))


def remove(engine: Engine, names: list[str], where: Node | None) -> list[str]:
    """Remove the sets of these ids, or those that match, and return their ids."""

    def attempt() -> list[str]:
        with engine.write() as write:
            keys = known_keys(write.view, names) if where is None else write.view.select(where)
            write.delete(np.sort(keys))
            return names if where is None else write.view.ids(keys)

    removed = _retried(attempt)
    logger.info("%s: removed %d sets", place_of(engine), len(removed))
    return removed


def place_of(engine: Engine) -> str:
    """Return how the log calls an index."""
    return engine.location or "index in memory"


def _metadata_after(view: View, names: list[str], given: Sequence[Any], merge: bool) -> list[Any]:
    """Return the metadata that sets have after a change: what is given, what is stored where that is None, or both."""
    keys = view.keys(names)
    kept = keys[[key >= 0 and (merge or new is None) for key, new in zip(keys, given, strict=True)]]
    described = zip(kept.tolist(), view.describe(kept), strict=True)
    stored = {key: parse_metadata(each.metadata) for key, each in described}

    def after(key: int, new: Any) -> Any:
        if new is None:
            return stored.get(key)
        return {**stored[key], **new} if key in stored and isinstance(new, dict) else new

    return [after(key, new) for key, new in zip(keys.tolist(), given, strict=True)]


def _check_new(view: View, names: list[str]) -> None:
    there = np.flatnonzero(view.keys(names) >= 0)
    if len(there):
        name = names[there[0]]
        raise DuplicateId(
            f"id {name!r} exists, nothing was added",
            "give another id, or update=True to replace it",
            argument="ids",
            id=name,
        )


def _with_weights(write: Write, sets: Sets) -> Sets:
    """Return sets with weights if the index has them; the first sets decide, unless that was done at creation."""
    weighted = write.view.settings["weighted"]
    if weighted is None:
        weighted = sets.weights is not None
        write.set_settings(weighted=weighted)
    if sets.weights is not None and not weighted:
        raise InputError(
            "these sets have weights, and those of the index have none",
            "create the index with weighted=True, or leave the weights out",
            argument="weights",
        )
    return sets


def _store(write: Write, sets: Sets, names: list[str], metadata: list[Any]) -> None:
    spec = write.view.spec
    known = write.view.settings["made_on"]
    if (makers := makers_after(known, len(write.view), spec.made_on)) != known:
        write.set_settings(made_on=makers)
    write.announce(names)
    step = max(1, CHUNK_NUMBERS // spec.stored_numbers)
    if len(sets) <= step:
        write.upsert(Entries(sets, names, metadata), _embedded(spec, sets))
        return
    with ProgressBar(total=len(sets), unit="set", desc="add") as bar:
        for first in range(0, len(sets), step):
            part = slice(first, first + step)
            write.upsert(Entries(sets[part], names[part], metadata[part]), _embedded(spec, sets[part]))
            bar.update(len(names[part]))


def _embedded(spec: IndexSpec, sets: Sets) -> Embedded:
    with interruptible():
        return spec.embed(sets)


def add_stream(
    spec: IndexSpec, items: Iterator[Any], ids: Any, metadata: Any, store: Callable[[Sets, Any, Any], None]
) -> None:
    """Store a stream of sets, batch by batch, as store(sets, ids, metadata)."""
    for_all = metadata if metadata is None or isinstance(metadata, dict) else None
    each = None if metadata is None or isinstance(metadata, dict) else iter(metadata)
    names, n_stored = None if ids is None else iter(ids), 0
    with ProgressBar(unit="set", desc="add") as bar:
        for sets, own, about in stream_batches(items, spec):
            if own is not None and names is not None:
                raise InputError("ids are given, and the batches bring their own", "leave ids out", argument="ids")
            if names is not None:
                own = list(islice(names, len(sets)))
            if each is not None:
                if about is not None:
                    problem = "metadata are given for each set, and the batches bring their own"
                    raise InputError(problem, "give one dict for all, or none", argument="metadata")
                about = list(islice(each, len(sets)))
            store(sets, own, merge_metadata(about, for_all, len(sets)))
            n_stored += len(sets)
            bar.update(len(sets))
    for name, given in (("ids", ids), ("metadata", None if isinstance(metadata, dict) else metadata)):
        if isinstance(given, Sized) and len(given) > n_stored:  # a generator may be endless
            problem = f"there are {len(given)} {name}, and {n_stored} sets"
            raise InputError(problem, "check whether sets are missing, or out of step", argument=name)


def note_stored(error: BaseException, stored: int) -> None:
    """Add to an error, whoever raised it, how many sets an `add` had stored before it."""
    text = f"{stored} {'set was' if stored == 1 else 'sets were'} stored before it"
    if isinstance(error, SloshError):
        error.problem, error.stored = f"{error.problem} ({text})", stored
    elif hasattr(error, "add_note"):
        error.add_note(text)
    elif isinstance(error, OSError) and error.strerror:  # Python 3.10, from here on
        error.strerror = f"{error.strerror} ({text})"
    else:
        error.args = (f"{error} ({text})", *error.args[1:])


def train(engine: Engine, eager: bool = False, again: Sequence[tuple[int, float]] = ()) -> None:
    """Learn what is due after sets were stored. They are stored all the same if there is no room for it, or no time."""
    started = time.perf_counter()
    try:
        with optional():
            if engine.train(eager, again):
                logger.info("%s: trained the search in %.3f s", place_of(engine), time.perf_counter() - started)
            if eager:
                part_trial.measure(engine)
    except (OSError, MemoryError) as error:
        warnings.warn(
            f"the sets are stored, but the search could not be trained ({error!r:.200}): searches are slower until "
            "index.compact() is called",
            RuntimeWarning,
            stacklevel=user_level(),
        )


def known_keys(view: View, names: list[str], note: str = "nothing was changed") -> Int64:
    """Return the keys of ids that must be there."""
    keys = view.keys(names)
    missing = np.flatnonzero(keys < 0)
    if len(missing):
        name = names[missing[0]]
        raise UnknownId(f"there is no set with the id {name!r}", note, id=name)
    return keys
