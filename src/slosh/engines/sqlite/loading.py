"""From the database and the caches to what is held in memory of one version.

A version is loaded from the one before it where that is possible: rows that were added are mapped or embedded, rows
that were removed are marked. Otherwise it is loaded from the caches, and what they lack is embedded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...data import tensors
from ...data.progress import ProgressBar
from ...data.sets import Sets
from ...errors import DamagedError, SloshError
from ...search import Trained
from ..base import Description, Int64, Mask
from ..snapshot import Filters, Snapshot
from ..spec import WHOLE, Embedded, IndexSpec, Vectors, makers_after
from . import tables
from .cache import Cache, StaleCache, Stamp
from .database import Connection
from .mapped_column import DamagedCache

logger = logging.getLogger(__name__)

TRAINED = "slosh trained state"
OTHER_SPACE = "space:"
"""What the names in the trained state begin with that are not those of whole sets."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """What is held in memory of one version. `described` and `filters` are memos of what the database says."""

    version: int
    generation: int
    trained: int
    spec: IndexSpec
    settings: Mapping[str, Any]
    snapshot: Snapshot
    embedded: int = 0
    """Sets that were embedded since the index was opened because the caches lacked them."""
    rebuilt: str | None = None
    """Why the caches were not used; None if they were."""
    described: dict[int, Description] = field(default_factory=dict)
    filters: Filters = field(default_factory=dict)


def load(
    connection: Connection, spec: IndexSpec, cache: Cache, stamps: Sequence[Stamp] | None, before: Loaded | None = None
) -> Loaded:
    """Load the version that a transaction sees.

    `stamps` are valid ones, newest first; None if the cache is a new one, to be filled.
    """
    version, generation, trained, weighted, recall, next_row, metadata_version, measured = tables.read_settings(
        connection, "version", "generation", "trained", "weighted", "recall", "next_row", "metadata_version",
        "part_recalls",
    )  # fmt: skip
    if next_row and weighted is None:
        raise tables.damaged(connection, "it has sets, and does not say whether they have weights")
    if next_row > tables.last_row(connection) + 1:
        raise tables.damaged(connection, f"it says that it has {next_row} rows, and has fewer")
    settings: dict[str, Any] = {
        "weighted": None if weighted is None else bool(weighted),
        "recall": recall,
        "part_recalls": measured if isinstance(measured, str) else None,
    }
    embedded, rebuilt, snapshot, makers = 0, None, None, None
    if before is not None:
        embedded, rebuilt, makers = before.embedded, before.rebuilt, before.settings["made_on"]
        if before.snapshot.n and (before.generation, before.trained) == (generation, trained):
            snapshot = _adopt(before.snapshot, cache, stamps or ())
            if snapshot is not before.snapshot and cache.stamp is not None:
                makers = cache.stamp.made_on

    def start(valid: Sequence[Stamp] | None) -> tuple[Snapshot, str | None]:
        alive = np.ones(next_row, np.bool_)
        alive[_within(tables.removed_since(connection), next_row)] = False
        return _start(connection, spec, cache, valid, alive, bool(weighted), trained)

    if snapshot is None:
        snapshot, rebuilt = start(stamps)
        makers = None if cache.stamp is None else cache.stamp.made_on
    first = snapshot.n
    try:
        snapshot = _embed_missing(connection, spec, snapshot, next_row)
    except DamagedCache as damage:  # found by filing what is embedded together with what was not filed before
        cache.problem = damage.problem
        snapshot, rebuilt = start(())
        first, makers = snapshot.n, None
        snapshot = _embed_missing(connection, spec, snapshot, next_row)
    n_new = int(np.count_nonzero(snapshot.alive[first:]))
    embedded += n_new
    settings["made_on"] = makers_after(makers, first, spec.made_on) if n_new else makers
    if before is not None:
        removed = _within(tables.removed_since(connection, before.version), next_row)
        snapshot = snapshot.remove(removed[snapshot.alive[removed]])
    loaded = Loaded(version, generation, trained, spec, settings, snapshot, embedded, rebuilt)
    if before is None or before.generation != generation or before.version < metadata_version:
        return loaded
    return replace(loaded, described=before.described, filters=dict(before.filters))


def pack_trained(snapshot: Snapshot) -> bytes:
    """Return what the search has learnt, to be stored."""
    learnt = {name: state.trained() for name, state in snapshot.states.items()}
    there = {name: trained for name, trained in learnt.items() if trained is not None}
    if not there:
        return b""
    # That of whole sets lies there as it does where there is no other space.
    header = dict(there[WHOLE].header) if WHOLE in there else {}
    arrays = dict(there[WHOLE].arrays) if WHOLE in there else {}
    for name, trained in there.items():
        if name != WHOLE:
            header[OTHER_SPACE + name] = trained.header
            arrays |= {f"{OTHER_SPACE}{name}/{key}": array for key, array in trained.arrays.items()}
    return tensors.pack(TRAINED, header, arrays)


def _read_trained(connection: Connection, version: int, spec: IndexSpec) -> dict[str, Trained]:
    found = connection.execute("SELECT state FROM trained WHERE version = ?", (version,)).fetchone()
    if found is None or not isinstance(found[0], bytes) or not found[0]:
        return {}
    try:
        header, arrays = tensors.unpack(found[0], TRAINED, "the trained state")
    except SloshError:
        return {}  # it is learnt anew
    whole = {key: part for key, part in header.items() if not key.startswith(OTHER_SPACE)}
    trained = {}
    if whole:
        trained[WHOLE] = Trained(whole, {key: array for key, array in arrays.items() if OTHER_SPACE not in key})
    for name in spec.spaces:
        about, start = header.get(OTHER_SPACE + name), f"{OTHER_SPACE}{name}/"
        if isinstance(about, dict):
            own = {key[len(start) :]: array for key, array in arrays.items() if key.startswith(start)}
            trained[name] = Trained(about, own)
    return trained


def _adopt(snapshot: Snapshot, cache: Cache, stamps: Sequence[Stamp]) -> Snapshot | None:
    """Take in the rows that the writer has appended to the same caches; None if all is to be loaded again."""
    for stamp in stamps:
        if cache.stamp is not None and stamp.epoch == cache.stamp.epoch and stamp.rows > snapshot.n:
            try:
                cache.use(stamp)
                return snapshot.adopt(stamp.rows)
            except (StaleCache, DamagedCache):
                return None
    return snapshot


def _start(
    connection: Connection,
    spec: IndexSpec,
    cache: Cache,
    stamps: Sequence[Stamp] | None,
    alive: Mask,
    weighted: bool,
    trained_version: int,
) -> tuple[Snapshot, str | None]:
    """Begin with the rows that the caches hold, or with none; and return why."""
    trained = _read_trained(connection, trained_version, spec)

    def is_commit(rows: int, token: str) -> bool:
        return tables.has_commit(connection, rows, token)

    def begin(n: int) -> Snapshot:
        read = {name: cache.read_derived(is_commit, name) for name in spec.spaces}
        derived = {name: made for name, made in read.items() if made is not None}
        options: dict[str, Any] = {"n": n, "alive": alive[:n], "derived": derived}
        try:
            return Snapshot.start(spec, weighted, cache.column, trained=trained, **options)
        except DamagedError as error:
            if not trained or isinstance(error, DamagedCache):
                raise
            return Snapshot.start(spec, weighted, cache.column, **options)  # trained by other code

    if stamps is None:
        return begin(0), None
    try:
        if not stamps:
            raise StaleCache(cache.problem or "the stamp is of another state of the index")
        if ("weights" in stamps[0].arrays) != weighted:
            raise StaleCache("the stamp has other arrays")
        cache.use(stamps[0])
        return begin(stamps[0].rows), None
    except (StaleCache, DamagedCache) as reason:
        cache.start_again()
        if not len(alive):
            return begin(0), None
        logger.warning("%s: the caches cannot be used and are made again: %s", connection.path, reason)
        return begin(0), str(reason)


def _embed_missing(connection: Connection, spec: IndexSpec, snapshot: Snapshot, next_row: int) -> Snapshot:
    """Embed the rows that a snapshot lacks; rows that were removed become holes."""
    rows = tables.rows_from(connection, snapshot.n)
    if len(rows) + tables.count_removed(connection, snapshot.n) != next_row - snapshot.n or np.any(rows >= next_row):
        raise tables.damaged(connection, "its counters do not fit its sets")
    parts = tables.stream_sets(connection, rows, spec.dim, snapshot.weighted, spec.origin)
    with ProgressBar(total=len(rows), unit="set", desc="embed") as bar:
        for part, sets in parts:
            snapshot = _extended(snapshot, part, spec.embed(sets), int(part[-1]) + 1)
            bar.update(len(part))
    if snapshot.n < next_row:
        none = Sets.from_checked(np.empty((0, spec.dim), np.float32), np.zeros(1, np.int64), None, None)
        nothing = spec.embed(none.with_origin(spec.origin))
        snapshot = _extended(snapshot, np.empty(0, np.int64), nothing, next_row)
    return snapshot


def _extended(snapshot: Snapshot, rows: Int64, embedded: Embedded, end: int) -> Snapshot:
    """Extend a snapshot to `end` rows: by these, and by holes where rows are missing."""
    first = snapshot.n
    at = rows - first
    sizes = np.zeros(end - first, np.int64)
    sizes[at] = embedded.sets.sizes
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    sets = Sets.from_checked(embedded.sets.points, offsets, embedded.sets.weights, embedded.sets.origin)
    vectors = {}
    for name, (numbers, slack) in embedded.vectors.items():
        all_numbers, all_slack = np.zeros((len(sizes), numbers.shape[1]), np.float32), np.zeros(len(sizes))
        all_numbers[at], all_slack[at] = numbers, 0.0 if slack is None else slack
        vectors[name] = Vectors(all_numbers, None if slack is None else all_slack)
    features = {}
    for name, rows_of in embedded.features.items():
        features[name] = np.zeros((len(sizes), *rows_of.shape[1:]), rows_of.dtype)
        features[name][at] = rows_of
    holes = np.ones(len(sizes), np.bool_)
    holes[at] = False
    return snapshot.extend(Embedded(sets, vectors, features)).remove(np.flatnonzero(holes) + first)


def _within(rows: Int64, end: int) -> Int64:
    return rows[(rows >= 0) & (rows < end)]
