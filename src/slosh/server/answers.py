"""What an index gives into bodies: JSON for everyone, safetensors for the Python client, Arrow for tables."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from ..engines.base import Records
from ..errors import import_extra
from ..index import HitLists, Hits
from ..wire import ARROW, BINARY, JSON, pack, pack_sets
from .answer_types import HitsAnswer, HitsPart, StatsPart, StoredSet

_ENCODER = msgspec.json.Encoder(enc_hook=lambda value: _plain(value))
STATE_OF_STATS = ("candidates", "scanned", "full_distances", "unlike")


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return str(value)


def _to_json(value: Any) -> str:
    return _ENCODER.encode(value).decode()


def json_response(answer: Any, status: int = 200) -> Response:
    return Response(_ENCODER.encode(answer), status, media_type=JSON)


def binary_response(
    arguments: dict[str, Any], arrays: dict[str, NDArray[Any]] | None = None, status: int = 200
) -> Response:
    return Response(pack(arguments, arrays, to_json=_to_json), status, media_type=BINARY)


def hits_responses(
    found: HitLists, sizes: list[int], singles: list[bool], accept: str, metadata: bool
) -> list[Response]:
    """Return the responses of searches that were made together: the first `sizes[0]` queries are the first one's."""
    responses, first = [], 0
    for n, single in zip(sizes, singles, strict=True):
        part = slice(first, first + n)
        responses.append(_hits_response(_of_queries(found, part), part, single, accept, metadata))
        first += n
    return responses


def _of_queries(found: HitLists, part: slice) -> HitLists:
    """Return the hits of some queries."""
    offsets, hits = found.offsets[part.start : part.stop + 1], found.joined
    if len(offsets) == len(found.offsets):
        return found
    a, b = offsets[0], offsets[-1]
    hits = Hits(hits.ids[a:b], hits.distances[a:b], hits.metadata_json[a:b], found.distance_kind, found.stats)
    return HitLists(hits, [each - a for each in offsets])


def _hits_response(found: HitLists, part: slice, single: bool, accept: str, metadata: bool) -> Response:
    """Return the response of some queries, which are `part` of those that the stats are about."""
    if BINARY in accept:
        return _binary_hits(found, part, single)
    if ARROW in accept:
        return Response(_arrow_hits(found), media_type=ARROW)
    stats = found.stats
    full, unlike = stats.full_distances, stats.unlike
    lists = [
        HitsPart(hits.ids, hits.distances.tolist(), _raw(hits.metadata_json) if metadata else None) for hits in found
    ]
    return json_response(
        HitsAnswer(
            found.distance_kind,
            lists[0] if single else lists,
            StatsPart(
                stats.recall,
                stats.seconds,
                stats.candidates[part].tolist(),
                stats.scanned[part].tolist(),
                None if full is None else full[part].tolist(),
                None if unlike is None else unlike[part].tolist(),
            ),
        )
    )


def _raw(texts: list[str]) -> list[msgspec.Raw]:
    return [msgspec.Raw(text.encode()) for text in texts]


def _binary_hits(found: HitLists, part: slice, single: bool) -> Response:
    hits, stats = found.joined, found.stats
    arrays: dict[str, NDArray[Any]] = {
        name: value[part] for name in STATE_OF_STATS if (value := getattr(stats, name)) is not None
    }
    arrays |= {"offsets": np.array(found.offsets), "distances": hits.distances}
    arguments = {
        "ids": hits.ids,
        "metadata": hits.metadata_json,
        "distance_kind": found.distance_kind,
        "single": single,
        "recall": stats.recall,
        "seconds": stats.seconds,
    }
    return binary_response(arguments, arrays)


def _arrow_hits(found: HitLists) -> bytes:
    pa, hits = import_extra("pyarrow", "an answer in Arrow", "tables"), found.joined
    columns = {
        "query": np.repeat(np.arange(len(found)), np.diff(found.offsets)),
        "id": pa.array(hits.ids, pa.string()),
        "distance": hits.distances,
        "metadata": pa.array(hits.metadata_json, pa.string()),
    }
    table, target = pa.table(columns), io.BytesIO()
    with import_extra("pyarrow.ipc", "an answer in Arrow", "tables").new_stream(target, table.schema) as writer:
        writer.write_table(table)
    return target.getvalue()


def without_infinity(array: NDArray[Any]) -> Any:
    """Return an array as lists, with None where it is not finite: JSON has no infinity."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        plain = array.astype(object)
        plain[~np.isfinite(array)] = None
        return plain.tolist()
    return array.tolist()


def stored_sets(found: Records) -> list[StoredSet]:
    """Return records for JSON, coordinates as the user had them."""
    origin = found.sets.origin
    listed = []
    for i, (name, about) in enumerate(zip(found.ids, found.metadata, strict=True)):
        points: NDArray[Any] = np.asarray(found.sets[i])
        weights = found.sets.weights_of(i)
        points = points if origin is None else points.astype(np.float64) + origin
        listed.append(StoredSet(name, points.tolist(), None if weights is None else weights.tolist(), about))
    return listed


def pack_records(found: Records) -> bytes:
    """Return records as a message for the Python client."""
    texts = [msgspec.json.encode(about).decode() for about in found.metadata]
    return pack({"ids": found.ids, "metadata": texts}, pack_sets("sets", found.sets))
