"""An index on a server: `SetIndex` with the same methods and errors, each of which is one request.

What a user passed is checked here, by the code that checks it for an index of this process, and travels as arrays and
plain values (`slosh.wire`). The planner runs on the server. Long work is a job there: it is waited for, and Ctrl-C
cancels it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from .. import rank
from ..data.batching import batches_by_points
from ..data.checks import checked_count
from ..data.preprocess import Preprocess
from ..data.sets import Sets
from ..data.text import utf8_bytes
from ..engines.base import Lines, Records
from ..engines.registry import Location
from ..engines.spec import IndexSpec
from ..errors import InputError, ReadOnlyIndex, bad_value
from ..search import Stats
from ..where import Node, parse
from ..wire import BINARY, Connection, Message, not_slosh, pack, pack_sets, unpack, unpack_sets
from . import changes
from .copy import Original
from .hits import HitLists, Hits, Pair, Pairs
from .lines import first_lines
from .records import checked_ids, is_single_id
from .remote_messages import Arrays, ids_of, json_texts, packed_embedding, plain_arguments, read_message, run_job
from .searches import checked_queries
from .set_index import SetIndex, Tuned
from .verify import Report

ADD_NUMBERS, ADD_SETS = 1 << 25, 100_000
"""Coordinates and sets that one request of `add` has at most: what a server takes."""
GET_SETS = 100_000
"""Sets that one request fetches, at most; a server sends fewer where they are large."""
DESCRIBED_SETS = 10_000
"""Sets that one request describes, at most."""
STATE_OF_STATS = ("candidates", "scanned", "full_distances", "unlike")


def _asks(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method with the signature of one of `SetIndex` that hands its arguments, by name, to the function
    that is decorated: the surface of an index is written once, there.
    """
    signature = inspect.signature(method)

    def decorate(function: Callable[[Any, dict[str, Any]], Any]) -> Any:
        @wraps(method)
        def call(self: Any, *given: Any, **named: Any) -> Any:
            bound = signature.bind(self, *given, **named)
            bound.apply_defaults()
            return function(self, {name: value for name, value in bound.arguments.items() if name != "self"})

        return call

    return decorate


class RemoteIndex(SetIndex):
    """What `slosh.open("http://host:8080", name=...)` returns. A `rerank` that is a function is refused."""

    def __init__(self, connection: Connection, read_only: bool) -> None:
        self._connection, self._read_only, self._may_write = connection, read_only, True
        assert connection.name is not None
        self._path = f"/v1/indexes/{quote(connection.name, safe='')}"
        self._fetched = self._fetch()

    # About it

    @property
    def path(self) -> None:
        return None

    @property
    def location(self) -> str:
        return self._connection.location

    @property
    def _spec(self) -> IndexSpec:
        """The specification as it was when the index was opened: what checks of data look at never changes."""
        self._connection.check_open()
        return self._fetched

    def _fetch(self) -> IndexSpec:
        found = self._get("specification")
        if "specification" not in found.arrays:
            raise not_slosh(self.location)
        self._may_write = not found.arguments.get("read_only")
        return IndexSpec.unpack(found.arrays["specification"].tobytes(), self.location)

    @property
    def spec(self) -> IndexSpec:
        return self._fetch()

    @property
    def version(self) -> int:
        return int(self._get("specification").arguments["version"])

    @property
    def dim(self) -> int:
        return self._spec.dim

    @property
    def origin(self) -> NDArray[np.float64] | None:
        return self._spec.origin

    @property
    def embedding(self) -> Any:
        return self._fetch().embedding

    @property
    def preprocess(self) -> Preprocess:
        return self._fetch().preprocess

    @property
    def read_only(self) -> bool:
        return self._read_only or not self._may_write

    def __len__(self) -> int:
        return int(self._get("count").arguments["count"])

    def __contains__(self, id: object) -> bool:
        if not is_single_id(id):
            return False
        self._connection.check_open()
        return bool(self._select(parse({"@id": str(id)}), 1, 0)) if str(id) else False

    def info(self) -> dict[str, Any]:
        found: dict[str, Any] = self._connection.request("GET", self._path).json()
        return {name: value for name, value in found.items() if name not in ("name", "read_only")}

    def close(self) -> None:
        self._connection.close()

    def destroy(self) -> None:
        self._check_writable()
        self._connection.request("DELETE", self._path, changes=True)
        self.close()

    # Changes

    def records(self, batch: int = 4096) -> Iterator[Records]:
        checked_count("batch", batch)
        with self.original(batch) as original:
            yield from original.batches

    def _is_closed(self) -> bool:
        return self._connection.closed

    def _select(self, where: Node | None, limit: int | None, offset: int) -> list[str]:
        text = None if where is None else str(where)
        return ids_of(self._post("select", {"where": text, "limit": limit, "offset": offset}))

    def _describe(self, where: Node | None, limit: int | None, offset: int, max_bytes: int | None) -> Lines:
        text, ids, sizes, metadata = None if where is None else str(where), list[str](), [], list[str]()
        following, n_bytes = offset, 0
        while following is not None and (limit is None or len(ids) < limit):
            most = DESCRIBED_SETS if limit is None else min(DESCRIBED_SETS, limit - len(ids))
            found = self._post("describe", {"where": text, "limit": most, "offset": following})
            names, texts = ids_of(found), found.arguments["metadata"]
            ids += names
            metadata += texts
            sizes.append(found.arrays["sizes"])
            following = found.arguments["next"]
            if max_bytes is not None:
                n_bytes += sum(map(utf8_bytes, (*names, *texts)))
                if n_bytes > max_bytes:
                    break
        return first_lines(Lines(ids, np.concatenate([np.empty(0, np.int64), *sizes]), metadata), max_bytes)

    def _count(self, where: Node) -> int:
        return int(self._get(f"count?where={quote(str(where), safe='')}").arguments["count"])

    def _stored(self, names: list[str]) -> Records:
        got, done = list[Records](), 0
        while done < len(names) or not got:
            found = self._records_of(self._post("get", {"ids": names[done : done + GET_SETS], "part": True}))
            if names and not found.ids:
                raise not_slosh(self.location)
            got.append(found)
            done += len(found.ids)
        if len(got) == 1:
            return got[0]
        ids, metadata = [name for each in got for name in each.ids], [about for each in got for about in each.metadata]
        return Records(Sets.concat([each.sets for each in got]), ids, metadata)

    def _store(self, sets: Sets, ids: Any, metadata: Any, update: bool, added: list[str], is_last: bool) -> None:
        names, given = changes.checked_addition(sets, ids, metadata, update)
        texts = json_texts(given, names)
        self._check_writable()
        for part in batches_by_points(sets.sizes, max(1, ADD_NUMBERS // sets.dim), ADD_SETS):
            own = None if names is None else names[part]
            arguments = {"ids": own, "metadata": texts[part], "update": bool(update)}
            added.extend(ids_of(self._post("sets", arguments, pack_sets("sets", sets[part]), changes=True)))

    def _train(self) -> None:
        """Do nothing: the server trains after each change."""

    def _replace(self, names: list[str], sets: Sets | None, metadata: Any, merge: bool) -> None:
        given = changes.checked_update(names, sets, metadata)
        if not names:
            return
        arguments = {"ids": names, "metadata": json_texts(given, names), "merge": merge}
        self._post("sets", arguments, {} if sets is None else pack_sets("sets", sets), changes=True, method="PATCH")

    def _delete(self, names: list[str], where: Node | None) -> list[str]:
        arguments = {"ids": names} if where is None else {"where": str(where)}
        return ids_of(self._post("remove", arguments, changes=True))

    @contextmanager
    def original(self, batch: int = 4096) -> Iterator[Original]:
        frames = self._connection.frames(f"{self._path}/records?batch={batch}")
        try:
            first = unpack(next(frames))
            about = first.arguments
            yield Original(
                self.location,
                IndexSpec.unpack(first.arrays["specification"].tobytes(), self.location),
                about["weighted"],
                about["recall"],
                about["next_id"],
                [(int(k), float(recall)) for k, recall in about["calibrated"]],
                about["sets"],
                (self._records_of(unpack(frame)) for frame in frames),
            )
        finally:
            frames.close()  # type: ignore[attr-defined]

    def _records_of(self, found: Message) -> Records:
        sets = unpack_sets("sets", found.arrays, self._fetched.origin)
        assert sets is not None
        return Records(sets, found.arguments["ids"], [json.loads(text) for text in found.arguments["metadata"]])

    # Questions

    @_asks(SetIndex.search)
    def search(self, given: dict[str, Any]) -> Hits | HitLists:
        return self._hits("search", given)

    @_asks(SetIndex.range_search)
    def range_search(self, given: dict[str, Any]) -> Hits | HitLists:
        return self._hits("range_search", given)

    @_asks(SetIndex.kneighbors)
    def kneighbors(self, given: dict[str, Any]) -> Any:
        if given["queries"] is None and given["id"] is None:
            del given["id"]
            found = self._work("kneighbors", given)
        else:
            found = self._post("kneighbors", *self._question(given))
        return found.arrays["distances"], found.arrays["positions"]

    @_asks(SetIndex.explain)
    def explain(self, given: dict[str, Any]) -> Any:
        query = given.pop("query")
        by_id = is_single_id(query)
        asked = checked_queries(self._spec, None if by_id else query, query if by_id else None)
        if asked.sets is not None and len(asked.sets) != 1:
            raise InputError(f"explain takes one query, not {len(asked.sets)}", argument="query")
        given["id"] = checked_ids(given["id"])[0]
        arrays = {} if asked.sets is None else pack_sets("query", asked.sets)
        found = self._post(
            "explain", {**plain_arguments(given), "query_id": None if asked.ids is None else asked.ids[0]}, arrays
        )
        x, y = (unpack_sets(side, found.arrays, self._fetched.origin) for side in "xy")
        assert x is not None
        assert y is not None
        parts, distance = found.arrays, float(found.arguments["distance"])
        if found.arguments["kind"] != "whole":
            return rank.PartExplanation(distance, parts["nearest"], parts["distances"], parts["weights"], x, y)
        shares = {name: parts[name] for name in ("slices", "x_elements", "y_elements")}
        return rank.Explanation(distance, **shares, directions=parts.get("directions"), x=x, y=y)

    @_asks(SetIndex.duplicates)
    def duplicates(self, given: dict[str, Any]) -> Pairs:
        if np.ndim(given["radius"]):
            raise bad_value("radius", given["radius"], "give one number")
        found = self._work("duplicates", given)
        names, numbers = found.arguments["ids"], found.arrays
        pairs = zip(numbers["first"].tolist(), numbers["second"].tolist(), numbers["distances"].tolist(), strict=True)
        return Pairs([Pair(names[a], names[b], far) for a, b, far in pairs], found.arguments["distance_kind"])

    @_asks(SetIndex.neighbor_graph)
    def neighbor_graph(self, given: dict[str, Any]) -> tuple[csr_matrix, list[str]]:
        found = self._work("neighbor_graph", given)
        ids, parts = found.arguments["ids"], found.arrays
        return csr_matrix((parts["data"], parts["indices"], parts["indptr"]), shape=(len(ids), len(ids))), ids

    # Maintenance

    @_asks(SetIndex.tune)
    def tune(self, given: dict[str, Any]) -> Tuned:
        return Tuned(**self._work("tune", given, changes=True).arguments)

    @_asks(SetIndex.verify)
    def verify(self, given: dict[str, Any]) -> Report:
        found = self._work("verify", given).arguments
        return Report(found["problems"], found["checked"])

    @_asks(SetIndex.compact)
    def compact(self, given: dict[str, Any]) -> None:
        self._work("compact", given, changes=True)

    @_asks(SetIndex.enable)
    def enable(self, given: dict[str, Any]) -> None:
        self._work("enable", given, changes=True)

    @_asks(SetIndex.finish_copy)
    def finish_copy(self, given: dict[str, Any]) -> None:
        self._work("finish_copy", given, changes=True)

    @_asks(SetIndex.retrain)
    def retrain(self, given: dict[str, Any]) -> None:
        self._work("retrain", given, changes=True)

    # Requests

    def _check_writable(self) -> None:
        self._connection.check_open()
        if self.read_only:
            problem = f"{self.location} is open for reading only"
            remedy = "open it without read_only" if self._read_only else "use a key, or a server, that lets you write"
            raise ReadOnlyIndex(problem, remedy, location=self.location)

    def _get(self, route: str) -> Message:
        return read_message(self._connection.request("GET", f"{self._path}/{route}", accept=BINARY))

    def _post(
        self,
        route: str,
        arguments: Mapping[str, Any],
        arrays: Arrays | None = None,
        *,
        changes: bool = False,
        method: str = "POST",
    ) -> Message:
        if changes:
            self._check_writable()
        body = pack(arguments, arrays)
        path = f"{self._path}/{route}"
        return read_message(self._connection.request(method, path, body, BINARY, BINARY, changes=changes))

    def _question(self, given: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
        asked = checked_queries(self._spec, given.pop("queries"), given.pop("id"))
        arrays = {} if asked.sets is None else pack_sets("queries", asked.sets)
        return {**plain_arguments(given), "ids": asked.ids, "single": asked.single}, arrays

    def _hits(self, route: str, given: dict[str, Any]) -> Hits | HitLists:
        found = self._post(route, *self._question(given))
        about, parts = found.arguments, found.arrays
        state = {name: parts.get(name) for name in STATE_OF_STATS}
        stats = Stats(recall=about["recall"], seconds=about["seconds"], **state)  # type: ignore[arg-type]
        joined = Hits(about["ids"], parts["distances"], about["metadata"], about["distance_kind"], stats)
        return joined if about["single"] else HitLists(joined, parts["offsets"].tolist())

    def _work(self, kind: str, given: dict[str, Any], *, changes: bool = False) -> Message:
        """Let the server do long work, and return its result; Ctrl-C cancels it."""
        if changes:
            self._check_writable()
        progress = given.pop("progress", None)
        if progress is not None and not callable(progress):
            raise bad_value("progress", progress, "give a function that is called as progress(done, total), or None")
        arrays: Arrays = {}
        for name in ("queries",) if kind == "verify" else ("queries", "sample"):  # verify takes a number
            if (data := given.pop(name, None)) is not None:
                arrays |= pack_sets(name, self._spec.sets(data))
        for name in ("embedding", "parts"):
            if name in given and not isinstance(given[name], bool | None):
                given[name] = packed_embedding(name, given[name], self._fetch(), arrays)
        body = pack({"kind": kind, "arguments": plain_arguments(given)}, arrays)
        return run_job(self._connection, self._path, kind, body, progress, changes)


class RemoteTarget:
    """A new index on a server that a copy goes into."""

    def __init__(self, original: Original, place: Location) -> None:
        self._index = create_remote(place, original.spec, original.weighted)
        self.destroy, self.close = self._index.destroy, self._index.close

    def store(self, records: Records) -> None:
        self._index.add(*records)

    def finish(self, original: Original) -> None:
        self._index.finish_copy(original.recall, original.next_id, original.calibrated)


def open_remote(place: Location, read_only: bool) -> RemoteIndex:
    """Open an index on a server: that of the name behind #, or the only one that the server has."""
    connection = Connection(str(place))
    if connection.name is None:
        listed = connection.request("GET", "/v1/indexes").json()
        if not isinstance(listed, dict) or "indexes" not in listed:
            raise not_slosh(connection.location)
        found = [each["name"] for each in listed["indexes"]]
        if len(found) != 1:
            names = ", ".join(map(repr, found[:10])) or "none"
            raise InputError(
                f"{connection.location} has {len(found)} indexes", f"give name=, one of {names}", argument="name"
            )
        connection = Connection(f"{place}#{quote(found[0], safe='')}")
    try:
        return RemoteIndex(connection, bool(read_only))
    except BaseException:
        connection.close()
        raise


def create_remote(place: Location, spec: IndexSpec, weighted: bool | None) -> RemoteIndex:
    """Create an empty index on a server."""
    connection = Connection(str(place))
    if connection.name is None:
        raise InputError(f"{connection.location} may hold several indexes", "give name=", argument="name")
    body = pack(
        {"name": connection.name, "weighted": weighted}, {"specification": np.frombuffer(spec.pack(), np.uint8)}
    )
    connection.request("POST", "/v1/indexes", body, BINARY, BINARY, changes=True)
    return RemoteIndex(connection, False)
