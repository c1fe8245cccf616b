"""Messages: arguments for JSON and named arrays in one body, in the format safetensors.

The metadata of the file hold one string, `arguments`: a JSON object. A long one is an array of bytes, `arguments`,
instead: it needs no escapes, and the head of such a file may have 100 MB only. Ragged sets called `queries` are the
arrays `queries.points` (P, d) float32, `queries.offsets` (n + 1,) int64 and, if they have weights, `queries.weights`
(P,) float32.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import numpy as safetensors_numpy

from ..data.sets import Sets
from ..errors import InputError

JSON, NPY = "application/json", "application/x-npy"
ARROW, BINARY = "application/vnd.apache.arrow.stream", "application/x-safetensors"
HEADER_LIMIT = 100_000_000
"""Bytes that the names, shapes and arguments in the head of a message may take together, as safetensors has it."""
LONG_ARGUMENTS = 1 << 12
"""Characters of arguments above which they are an array."""

Arrays = Mapping[str, NDArray[Any]]


class Message(NamedTuple):
    """What a body holds."""

    arguments: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def _to_json(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)


def pack(
    arguments: Mapping[str, Any], arrays: Arrays | None = None, *, to_json: Callable[[Any], str] = _to_json
) -> bytes:
    """Return a body that holds arguments for JSON and arrays. A faster encoder may be given."""
    text = to_json(arguments)
    plain = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
    if len(text) <= LONG_ARGUMENTS:
        return bytes(safetensors_numpy.save(plain, {"arguments": text}))
    return bytes(safetensors_numpy.save({**plain, "arguments": np.frombuffer(text.encode(), np.uint8)}))


def unpack(body: bytes, check: Callable[[bytes], object] | None = None) -> Message:
    """Return what `pack` packed; InputError for anything else.

    `check` is called with each piece of JSON before it is parsed, and may refuse it by raising an error.
    """
    try:
        length = int.from_bytes(body[:8], "little")
        if len(body) < 8 or length > min(len(body) - 8, HEADER_LIMIT):
            raise ValueError("it is not as long as it says")
        metadata = _parsed(body[8 : 8 + length], check).get("__metadata__") or {}
        arrays = safetensors_numpy.load(body)
        long = arrays.pop("arguments", None)
        text = metadata.get("arguments", "{}").encode(errors="surrogatepass") if long is None else long.tobytes()
        arguments = _parsed(text, check)
        if not isinstance(arguments, dict):
            raise ValueError("its arguments are not an object")
        return Message(arguments, arrays)
    except InputError:
        raise
    except (SafetensorError, ValueError, TypeError, AttributeError, LookupError, RecursionError, MemoryError) as error:
        problem = f"the body is not safetensors with arguments: {str(error)[:200]}"
        raise InputError(problem, "send what slosh.wire.pack makes", argument="body") from None


def _parsed(text: bytes, check: Callable[[bytes], object] | None) -> Any:
    if check is not None:
        check(text)
    return json.loads(text.decode(errors="surrogatepass"))


def pack_sets(name: str, sets: Sets) -> dict[str, NDArray[Any]]:
    """Return the arrays of ragged sets, by the names that they have in a message."""
    found: dict[str, NDArray[Any]] = {f"{name}.points": sets.points, f"{name}.offsets": sets.offsets}
    return found if sets.weights is None else {**found, f"{name}.weights": sets.weights}


def unpack_sets(name: str, arrays: Arrays, origin: NDArray[np.float64] | None) -> Sets | None:
    """Return the checked sets of this name in a message; None where it has none. `origin` was subtracted from them."""
    points, offsets = arrays.get(f"{name}.points"), arrays.get(f"{name}.offsets")
    if points is None and offsets is None:
        return None
    if points is None or offsets is None:
        raise InputError(f"{name} needs both points and offsets", argument=name)
    if points.ndim == 2 and len(offsets) == 1 and not len(points):
        return Sets.from_list([], dim=max(1, points.shape[1])).with_origin(origin)
    return Sets(points, offsets, arrays.get(f"{name}.weights")).with_origin(origin)
