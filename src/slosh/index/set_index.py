"""SetIndex: a collection of sets with ids and metadata, in memory or durable, that is added to, changed and searched.

Sets, ids and metadata come in; `Hits` go out. Where it lives is up to an engine (`slosh.engines`); how a question is
answered is up to the planner (`planner.py`).
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..checkpoints import held
from ..data.checks import checked_count, checked_flag
from ..data.preprocess import Preprocess
from ..data.sets import Sets
from ..engines.base import Engine, Lines, Records
from ..engines.registry import Location, create_engine, is_remote, located, open_engine
from ..engines.spec import WHOLE, IndexSpec, make_spec
from ..errors import InputError, UnsupportedError
from ..gpu.devices import CPU, checked_device
from ..search import checked_recall
from ..where import ALL, Node, parse
from . import changes, part_recall, part_trial
from .copy import Original, original_of, records_of
from .lines import lines_of
from .planner import Question, answer
from .records import Record, checked_ids, is_single_id
from .retrain import advice, enable_parts, retrain
from .searches import Searches
from .verify import Report, verify

logger = logging.getLogger(__name__)

TIMED_QUERIES = 256
"""Stored sets that `tune` searches for, to say how long a query takes."""


class Tuned(NamedTuple):
    """What `tune` measured: `measured` recall over `n_queries` queries, `promised` its lower confidence bound."""

    k: int
    recall: float
    promised: float
    measured: float
    n_queries: int
    seconds_per_query: float
    exact: bool

    def __str__(self) -> str:
        how = "exact" if self.exact else f"recall {self.measured:.4f} measured, {self.promised:.4f} promised"
        return f"k = {self.k}, recall {self.recall:g} asked for: {how}; {self.seconds_per_query * 1e6:.0f} us a query"


class SetIndex(Searches):
    """A collection of sets that is searched by the Sliced-Wasserstein distance, with ids and metadata.

    `SetIndex.create` and `slosh.open` make one. Threads may share an index. A search sees one version of it and never
    waits for a change; other processes may read a durable index while one writes. Use it as a context manager, or
    `close` it.

    Examples
    --------
    >>> import numpy as np, slosh
    >>> rng = np.random.default_rng(0)
    >>> clouds = [rng.normal(size=(50, 3)) * scale for scale in (1, 1.1, 3)]
    >>> index = slosh.SetIndex.create(None, dim=3)
    >>> index.add(clouds, ids=["a", "b", "c"], metadata=[{"kind": "small"}, {"kind": "small"}, {"kind": "large"}])
    ['a', 'b', 'c']
    >>> hits = index.search(clouds[0], k=2)
    >>> hits.ids, hits[0].metadata
    (['a', 'b'], {'kind': 'small'})
    >>> index.search(clouds[0], where={"kind": "large"}).ids
    ['c']
    """

    def __init__(self, engine: Engine) -> None:
        if not hasattr(engine, "view"):
            problem = f"SetIndex({engine!r:.60}) is not how an index is made"
            raise InputError(
                problem, "open one with slosh.open(path), or make one with slosh.SetIndex.create(path, dim)"
            )
        self._engine = engine

    @classmethod
    def create(
        cls,
        path: Location,
        dim: int,
        *,
        embedding: Any = None,
        search: Any = None,
        preprocess: Preprocess | None = None,
        sample: Any = None,
        weighted: bool | None = None,
        origin: Any = None,
        parts: Any = False,
        name: str | None = None,
        n_jobs: int | None = -1,
        device: str | None = None,
    ) -> SetIndex:
        """Create an empty index in the folder `path`, which must not exist; None keeps it in memory. With the address
        of a database, "postgresql://user@host/database", it is made there (docs/postgres.md), and with that of a
        server, "http://host:8080", it is made on the server (docs/server.md).

        What is chosen here decides about distances. It is stored with the index, and only `retrain` changes the
        embedding.

        Parameters
        ----------
        dim : number of features of an element.
        embedding : an embedding of `slosh.embed`; None is `SlicedWasserstein()`. One that is fitted stays as it is. An
            index in memory takes any transformer over sets, and slices that are Python functions.
        search : a search of `slosh.search`; None is `LadderSearch()`.
        preprocess : a `slosh.Preprocess`: what is done to each set, and to each query, before it is embedded. The sets
            themselves are stored as they come.
        sample : some sets to learn from, which are not added, where something is learnt from data: `standardize`,
            `origin="auto"`, a reference or anchors of the data, `Whitened`, `HammingSearch`, `parts`. If the
            embedding is fitted and nothing else learns, it is refused.
        weighted : whether elements have weights; None lets the first `add` decide. Sets without weights may be added to
            an index with weights: each element counts the same.
        origin : (d,) float64 numbers subtracted from all coordinates before they become float32, or "auto".
        parts : True keeps what part search needs (`search(match="part")`, docs/parts.md), whose anchors are learnt from
            `sample`; or a `slosh.embed.PartField` of your own. `enable("parts")` does it later.
        name : of the index in a database, which may hold several; "postgresql://user@host/database#name" says the same.
        n_jobs : threads; -1 is all cores.
        device : where this process makes vectors: "cpu", or a GPU, "cuda" or "cuda:1" (docs/gpu.md). None is the device
            of `embedding`. It is not stored; `info()["made_on"]` says what has made the vectors.
        """
        place = located(path, name)
        _check_device(place, device)
        checked_count("dim", dim)
        if weighted is not None and not isinstance(weighted, bool):
            raise InputError(f"weighted={weighted!r:.60}", "give True, False, or None", argument="weighted")
        spec = make_spec(int(dim), embedding, search, preprocess, origin, sample, n_jobs, parts)
        if is_remote(place):
            made: SetIndex = _remote().create_remote(place, spec, weighted)
            return made
        return cls(create_engine(place, spec, weighted, n_jobs, device))

    # About it

    @property
    def path(self) -> Path | None:
        """The folder of the index; None where it is not in a folder."""
        place = self._engine.location
        return None if place is None or "://" in place else Path(place)

    @property
    def location(self) -> str | None:
        """Where it lives, as `slosh.open` takes it: a path, or an address without its password; None in memory."""
        return self._engine.location

    @property
    def spec(self) -> IndexSpec:
        """Everything that decides about distances; it can be pickled, and `slosh.batch` embeds by it."""
        with self._engine.view() as view:
            return view.spec

    @property
    def _spec(self) -> IndexSpec:
        """What data are checked by; a client knows it without asking."""
        return self.spec

    @property
    def version(self) -> int:
        """Counts the changes of what is stored; it is the same as long as nothing is changed."""
        with self._engine.view() as view:
            return view.version

    @property
    def dim(self) -> int:
        """The number of features of an element."""
        return self.spec.dim

    @property
    def origin(self) -> NDArray[np.float64] | None:
        """What is subtracted from all coordinates."""
        return self.spec.origin

    @property
    def embedding(self) -> Any:
        """The fitted embedding."""
        return self.spec.embedding

    @property
    def preprocess(self) -> Preprocess:
        """What is done to each set before it is embedded: `index.preprocess.apply(sets)`."""
        return self.spec.preprocess

    @property
    def read_only(self) -> bool:
        """Whether the index was opened for reading only."""
        return self._engine.read_only

    def __len__(self) -> int:
        with self._engine.view() as view:
            return len(view)

    def __contains__(self, id: object) -> bool:
        if not is_single_id(id):
            return False
        with self._engine.view() as view:
            return bool(view.keys([str(id)])[0] >= 0)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ids, in the order of the adds."""
        return iter(self.ids)

    @property
    def ids(self) -> list[str]:
        """All ids, in the order of the adds."""
        return self.select()

    def select(self, where: Any = None, limit: int | None = None, offset: int = 0) -> list[str]:
        """Return the ids of the sets whose metadata match, in the order of the adds.

        At most `limit` of them, without the first `offset`: so they can be read page by page.
        """
        if limit is not None:
            checked_count("limit", limit)
        checked_count("offset", offset, least=0)
        return self._select(None if where is None else parse(where), limit, offset)

    def count(self, where: Any = None) -> int:
        """Return how many sets have metadata that match."""
        return len(self) if where is None else self._count(parse(where))

    def describe(
        self, where: Any = None, limit: int | None = None, offset: int = 0, *, max_bytes: int | None = None
    ) -> Lines:
        """Return ids, sizes and metadata of the sets whose metadata match, without reading their points.

        They come in the order of the adds; `limit` and `offset` as for `select`. `where={"@id": ids}` describes the
        sets of these ids that are stored. `max_bytes` ends the list, after one set at least, before ids and metadata
        take more: go on at the `offset` of the next one.
        """
        for name, value in (("limit", limit), ("max_bytes", max_bytes)):
            if value is not None:
                checked_count(name, value)
        checked_count("offset", offset, least=0)
        return self._describe(None if where is None else parse(where), limit, offset, max_bytes)

    def __repr__(self) -> str:
        place = "in memory" if self.location is None else repr(self.location)
        if self._is_closed():
            return f"SetIndex({place}, closed)"
        mode = ", read only" if self.read_only else ""
        return f"SetIndex({place}, {len(self)} sets, dim={self.dim}{mode}, {self.embedding!r})"

    def __enter__(self) -> SetIndex:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if (engine := self.__dict__.get("_engine")) is not None and engine.location is not None and not engine.closed:
            warnings.warn(f"the index {engine.location!r} was not closed", ResourceWarning, source=self, stacklevel=2)
            engine.close()

    def __reduce__(self) -> Any:
        place = self.location
        saved = "" if place is not None else "save it with copy_to(folder), and "
        folder = "folder" if place is None else repr(place)
        raise TypeError(
            f"an index cannot be pickled: {saved}call slosh.open({folder}, read_only=True) in the other process"
        )

    def close(self) -> None:
        """Let go of files and lock. What was changed is on disk without it."""
        self._engine.close()

    def destroy(self) -> None:
        """Close the index and delete everything that is stored of it."""
        self._engine.destroy()

    # Changes

    def add(
        self,
        sets: Any,
        ids: Iterable[Any] | None = None,
        metadata: Any = None,
        *,
        weights: Any = None,
        update: bool = False,
    ) -> list[str]:
        """Add sets, and return their ids. When it returns they are stored; after an error none of them is.

        Parameters
        ----------
        sets : anything that `Sets` takes; or an iterator of sets, of `Sets`, or of (sets, ids, metadata) as
            `slosh.readers.read` gives. An iterator is read batch by batch, and each batch is stored by itself: what
            came before an error stays, and the error says how many those are.
        ids : strings, or whole numbers, which become strings; an iterable of them for an iterator. None counts.
        metadata : a dict for each set, or one dict for all: strings, numbers, true and false, lists and dicts of them.
        weights : an array of weights for each set; or pass `Sets` that have them.
        update : replace sets whose id exists; otherwise that is an error (`DuplicateId`). Without `metadata` they keep
            theirs.
        """
        is_batch = isinstance(sets, tuple) and hasattr(sets, "_fields")  # a batch of a reader
        stream = is_batch or isinstance(sets, Iterator)
        if stream and weights is not None:
            raise InputError("weights of an iterator", "let it give Sets with weights", argument="weights")
        added: list[str] = []
        try:
            spec = self._spec
            if stream:
                items = iter([sets]) if is_batch else sets

                def store(batch: Sets, own: Any, about: Any) -> None:
                    self._store(batch, own, about, update, added, False)

                changes.add_stream(spec, items, ids, metadata, store)
                if added:
                    self._train()
            else:
                self._store(spec.sets(sets, weights), ids, metadata, update, added, True)
        except BaseException as error:
            if added or stream:
                changes.note_stored(error, len(added))
            raise
        return added

    def update(
        self, ids: Any, sets: Any = None, metadata: Any = None, *, weights: Any = None, merge: bool = False
    ) -> list[str]:
        """Replace the points, the metadata, or both, of existing sets, and return their ids.

        A part that is None stays as it is. Metadata replace the whole dict of a set; with `merge` they replace the keys
        that they have, and the others stay. The update is atomic. An id that is not there is an error (`UnknownId`).
        """
        single = is_single_id(ids)
        names = checked_ids(ids)
        if sets is None and metadata is None:
            raise InputError("there is nothing to update", "give sets, metadata, or both")
        if sets is None and weights is not None:
            raise InputError("weights without sets", "give the sets, too", argument="weights")
        if single and sets is not None and not isinstance(sets, Sets):
            sets, weights = [sets], None if weights is None else [weights]
        new = None if sets is None else self._spec.sets(sets, weights)
        about = [metadata] if single and metadata is not None else metadata
        self._replace(names, new, about, checked_flag("merge", merge))
        return names

    def remove(self, ids: Any = None, *, where: Any = None) -> list[str]:
        """Remove the sets of these ids, or those whose metadata match, and return their ids.

        If an id is not there (`UnknownId`), nothing is changed. An empty dict as `where` is refused, so that a filter
        which was never filled in does not empty the index; the text "()" means every set.
        """
        if (ids is None) == (where is None):
            raise InputError("give the ids to remove, or where=..., and not both", argument="ids")
        names = [] if ids is None else checked_ids(ids)
        node = None if where is None else parse(where)
        if node == ALL and not isinstance(where, str | Node):
            remedy = 'give a condition, or where="()" to remove all of them'
            raise InputError(f"where={where!r:.60} matches every set", remedy, argument="where")
        return self._delete(names, node)

    def get(self, ids: Any) -> Record | Records:
        """Return the stored set of an id, as a `Record`; of a list of ids, as `Records` (sets, ids, metadata)."""
        names = checked_ids(ids, repeats=True)
        found = self._stored(names)
        if is_single_id(ids):
            return Record(names[0], found.sets[0], found.sets.weights_of(0), found.metadata[0])
        return found

    def records(self, batch: int = 4096) -> Iterator[Records]:
        """Yield all that is stored, in the order of the adds, as it is now, whatever changes meanwhile.

        They come `batch` sets at a time, or fewer where they are large.
        """
        checked_count("batch", batch)
        with self._engine.view() as view:
            yield from records_of(view, view.select(), batch)

    # What an index on a server does there (`remote.py`), with arguments that were checked

    def _is_closed(self) -> bool:
        return self._engine.closed

    def _select(self, where: Node | None, limit: int | None, offset: int) -> list[str]:
        with self._engine.view() as view:
            keys = view.select(where, None if limit is None else limit + offset)
            return view.ids(keys[offset:])

    def _describe(self, where: Node | None, limit: int | None, offset: int, max_bytes: int | None) -> Lines:
        with self._engine.view() as view:
            keys = view.select(where, None if limit is None else limit + offset)[offset:]
            return lines_of(view, keys, max_bytes)

    def _count(self, where: Node) -> int:
        with self._engine.view() as view:
            return len(view.select(where))

    def _stored(self, names: list[str]) -> Records:
        with self._engine.view() as view:
            return view.records(changes.known_keys(view, names, ""))

    def _store(self, sets: Sets, ids: Any, metadata: Any, update: bool, added: list[str], is_last: bool) -> None:
        changes.add(self._engine, sets, ids, metadata, update, added)
        if added:
            changes.train(self._engine, eager=is_last)  # searches stay fast while a long stream goes on

    def _train(self) -> None:
        changes.train(self._engine, eager=True)

    def _replace(self, names: list[str], sets: Sets | None, metadata: Any, merge: bool) -> None:
        changes.update(self._engine, names, sets, metadata, merge)
        if sets is not None:
            self._train()

    def _delete(self, names: list[str], where: Node | None) -> list[str]:
        return changes.remove(self._engine, names, where)

    # Maintenance

    def tune(self, recall: float = 0.99, k: int = 10, queries: Any = None) -> Tuned:
        """Measure what it takes to find this fraction of the k nearest, and store it: the default recall from now on.

        `queries` are sets like those that will be asked for; None takes stored ones. To show a recall of .9 it takes 36
        of them, of .95 it takes 71, of .99 354. Measuring again replaces what was measured before.
        """
        checked_count("k", k)
        target = checked_recall(recall)
        if target is None:
            raise InputError("recall=None", "give a number up to 1.0", argument="recall")
        with self._engine.view() as view:
            if len(view) < 2:
                raise InputError("tune needs two sets or more", "add them first")
            spec = view.spec
            asked = None if queries is None else spec.vectors(spec.prepare(spec.sets(queries)), slack=False)
        known = self._engine.calibrate(WHOLE, int(k), target, asked)
        with held():  # it is measured: what is left takes no time, and is not to be stopped half-way
            with self._engine.write() as write:
                write.set_settings(recall=target)
            logger.info("%s: tuned for k = %d, recall %g", changes.place_of(self._engine), k, target)
            with self._engine.view() as view:
                keys = view.select()
                keys = keys[:: max(1, len(keys) // TIMED_QUERIES)][:TIMED_QUERIES]
                sets, started = view.prepared(keys), time.perf_counter()
                found = answer(view, sets, None, Question(k=int(k), recall=target))
                seconds = (time.perf_counter() - started) / len(keys)
        if known is None or found.stats.recall == 1.0:  # whatever was measured: such searches are exact
            return Tuned(int(k), target, 1.0, 1.0, 0 if known is None else known.n_queries, seconds, True)
        return Tuned(int(k), target, known.promised, known.measured, known.n_queries, seconds, False)

    def info(self) -> dict[str, Any]:
        """Return counts, sizes on disk and in memory, parameters, and what was trained and calibrated."""
        with self._engine.view() as view:
            about = {"path": self._engine.location, "sets": len(view), **view.settings, **view.spec.describe()}
            del about[part_recall.SETTING]
            about["made_on"] = list(about["made_on"] or ([CPU] if len(view) else []))
            if about["parts"] is not None:
                about["parts"] |= part_recall.described(view)
            return {**about, "retrain": advice(view), **view.info()}

    def verify(self, sample: int | None = None) -> Report:
        """Check everything that an index promises, and report what is wrong.

        `sample` limits how many sets are embedded again.
        """
        if sample is not None:
            checked_count("sample", sample)
        return verify(self._engine, sample)

    def compact(self) -> None:
        """Reclaim the space of removed sets, and learn the search's lists anew; distances stay.

        The result equals an index built from scratch in id order.
        """
        started = time.perf_counter()
        self._engine.compact()
        part_trial.measure(self._engine)
        logger.info("%s: compacted in %.3f s", changes.place_of(self._engine), time.perf_counter() - started)

    def enable(self, feature: str, parts: Any = True, *, sample: Any = None, random_state: int = 0) -> None:
        """Give the index what `feature` needs, for all sets as one change; searches go on meanwhile.

        The one feature is "parts": what `search(match="part")` needs, whose anchors are learnt from stored sets, 20,000
        at most, by `random_state`, or from `sample`. `parts` may be a `slosh.embed.PartField` of your own. If the index
        has it already, and neither `parts` nor `sample` asks for another, nothing is done. Distances between whole
        sets do not change.
        """
        if feature != "parts":
            raise InputError(f"feature={feature!r:.60}", 'give "parts"', argument="feature")
        enable_parts(self._engine, parts, sample, random_state)

    def retrain(
        self, sample: Any = None, *, embedding: Any = None, label: str | None = None, random_state: int = 0
    ) -> None:
        """Learn anew what the embedding learns from data, and embed all sets by it: distances change.

        Parameters
        ----------
        sample : sets to learn from, which are not added; None takes stored ones, 20,000 at most, by `random_state`.
        embedding : another embedding for the index from now on; None keeps the one that it has. One that is fitted
            stays as it is, so that there is nothing to learn from `sample` or `label`.
        label : a field of the metadata: learn what tells its values apart; sets without it count as not labelled. For
            embeddings that learn from labels (`SetTransformer.takes_labels`), such as `Whitened`.
        """
        retrain(self._engine, sample, embedding, label, random_state)

    def export(self, path: str | os.PathLike[str]) -> int:
        """Write all sets, ids and metadata to a Parquet file, which `slosh.readers.read` reads; return how many."""
        from .export import export

        return export(self, path)

    def copy_to(self, target: Location, name: str | None = None, *, n_jobs: int | None = -1) -> int:
        """Copy all sets with ids, metadata and weights into a new index at `target`, and return how many they are.

        The copy has the same specification and settings, and is trained anew. `target` may be on another engine or on a
        server, where `name` is that of the index. After an error there is nothing at `target`.
        """
        from .copy import LocalTarget, copy_index

        place = located(target, name)

        def make(original: Original) -> Any:
            return _remote().RemoteTarget(original, place) if is_remote(place) else LocalTarget(original, place, n_jobs)

        return copy_index(self.original, make, place)

    def finish_copy(self, recall: float | None, next_id: int, calibrated: Sequence[tuple[int, float]]) -> None:
        """Take over the settings of the index that this is a copy of, and train: `copy_to` calls it on a server."""
        from .copy import finish_copy

        finish_copy(self._engine, recall, next_id, calibrated)

    def original(self, batch: int = 4096) -> AbstractContextManager[Original]:
        """Open one version of the index to be copied: all that decides about its answers, and its sets in batches."""
        return original_of(self._engine, batch)

    def backup(self, folder: str | os.PathLike[str], *, n_jobs: int | None = -1) -> int:
        """Copy one version of the index into a new folder, while others go on writing; return how many sets it has.

        The folder is there when all of it is stored, and not before. The copy is opened like any other index.
        """
        from .copy import backup_index

        return backup_index(self.original, self.location or "index in memory", folder, n_jobs)


def open(
    path: Location,
    name: str | None = None,
    *,
    read_only: bool = False,
    n_jobs: int | None = -1,
    device: str | None = None,
) -> SetIndex:
    """Open an index that `SetIndex.create` made: by the path of its folder, or by the address of its database and its
    name there; or by the address of a server, "http://host:8080", and its name there (docs/server.md).

    One process at a time may open a folder for writing, any number an index in a database; with `read_only` any number
    may read it. They see every change of a writer from their next call on.

    device : where this process makes vectors, of sets that it adds and of queries: None or "cpu", or a GPU, "cuda" or
        "cuda:1" (docs/gpu.md). Which one made those that are stored does not matter.
    """
    started, place = time.perf_counter(), located(path, name)
    _check_device(place, device)
    if is_remote(place):
        index: SetIndex = _remote().open_remote(place, read_only)
    else:
        index = SetIndex(open_engine(place, read_only, n_jobs, device))
    logger.info("%s: opened %d sets in %.3f s", index.location, len(index), time.perf_counter() - started)
    return index


def _check_device(place: Location, device: str | None) -> None:
    """Refuse a device that is not that of this process, or cannot be used, before anything is opened."""
    if is_remote(place) and device is not None:
        problem = "an index on a server embeds on the server's device"
        raise UnsupportedError(problem, "leave device out", feature_name="device", argument="device")
    checked_device(device)


def _remote() -> Any:
    """Return the module of indexes on servers, which builds on this one."""
    from . import remote

    return remote
