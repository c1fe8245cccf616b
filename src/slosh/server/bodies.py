"""Bodies and query strings into arguments: JSON by the types of `request_types.py`; `.npy`, Arrow and safetensors into
sets.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec
import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..data.sets import Sets, as_sets
from ..data.text import format_bytes
from ..errors import InputError, import_extra
from ..index import SetIndex
from ..readers.arrays import plain_header
from ..readers.arrow_messages import unpacked_sizes
from ..readers.files import data_looks_like
from ..wire import ARROW, BINARY, JSON, NPY, Message, unpack, unpack_sets
from .problems import Refused
from .request_types import Body, query_type
from .settings import Limits
from .wording import input_error, json_error

T = TypeVar("T")
_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}
_POINTS = msgspec.json.Decoder(list[list[float]])
_SETS = msgspec.json.Decoder(list[list[list[float]]])
_WEIGHTS = msgspec.json.Decoder(list[float])
_LISTS_OF_WEIGHTS = msgspec.json.Decoder(list[list[float]])
_MANY = re.compile(rb"\s*\[\s*\[\s*\[")
_MANY_WEIGHTS = re.compile(rb"\s*\[\s*\[")
SETS_REMEDY = "give a list of points, each a list of numbers, or a list of such sets"
NPY_REMEDY = "send an array (N, d) or (n, N, d) of numbers, as numpy.save writes it"
ARROW_REMEDY = "send a table in the stream format of Arrow IPC"
ARROW_START = b"\xff\xff\xff\xff"
"""How a message of Arrow begins, and so a stream; not so before version 0.15."""
TABLE_COLUMNS = ("points", "weights", "id", "metadata")
"""Columns of a body in Arrow."""
PART_BYTES = 1 << 20
"""Bytes of JSON whose brackets and commas are counted together."""


class Sent(NamedTuple):
    """A body with its type, the type that the client would like to get, and the query string."""

    body: bytes
    kind: str
    accept: str
    query: str

    def parameters(self, kind: type[T]) -> T:
        return read_query(self.query, kind)


def read_query(text: str, kind: type[T]) -> T:
    """Return what stands in a query string."""
    given: dict[str, str] = {}
    try:
        for name, value in parse_qsl(text, True, errors="strict", max_num_fields=100):
            if name in given:
                raise InputError(f"the parameter {name!r:.60} comes twice", argument=name)
            given[name] = value
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise input_error(error, kind, "the query string", given) from None
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"the query string cannot be read: {error}", argument="query string") from None


def decode_json(body: bytes, kind: type[T], limits: Limits) -> T:
    """Return a JSON body as an object of a type."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = msgspec.json.Decoder(kind)
    check_json(body, limits)
    try:
        return decoder.decode(body)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        raise input_error(error, kind, "the body") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise json_error(error, body) from None


def read_message(body: bytes, limits: Limits) -> Message:
    """Return the message that a body in the binary type is."""
    return unpack(body, lambda text: check_json(text, limits))


def convert(given: dict[str, Any], kind: type[T]) -> T:
    """Return plain values, as a message has them, as an object of a type."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise input_error(error, kind, "the arguments") from None


def check_json(body: bytes, limits: Limits) -> None:
    """Refuse JSON that is nested too deep, or has too many values, before a decoder recurses into it or makes them.

    Commas and the beginnings of lists and objects are counted: as many as there are values, or one less.
    """
    opened = body.count(b"[") + body.count(b"{")
    if opened <= limits.nesting and opened + body.count(b",") <= limits.json_numbers:
        return
    depth = count = 0
    for part in _without_texts(body):
        low = part | 32  # the bit in which [ and {, and ] and }, differ
        opens = low == ord("{")
        steps = np.cumsum(opens.view(np.int8) - (low == ord("}")).view(np.int8), dtype=np.int32)
        if depth + int(steps.max()) > limits.nesting:
            raise InputError(f"the body is nested more than {limits.nesting} deep", "make it flatter", argument="body")
        depth += int(steps[-1])
        count += int(np.count_nonzero(opens) + np.count_nonzero(part == ord(",")))
        if count > limits.json_numbers:
            problem = f"the body has more than {limits.json_numbers:,} numbers and lists in JSON"
            remedy = "send less at a time, or send .npy, Arrow or the binary type, where the route takes them"
            raise Refused(InputError(problem, remedy, argument="body"), 413)


def _without_texts(body: bytes) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of JSON in parts, those within texts as zeros."""
    quoted = b'"' in body
    if quoted and b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # what is left of \" ends a text
    found, inside = np.frombuffer(body, np.uint8), 0
    for first in range(0, len(found), PART_BYTES):
        part = found[first : first + PART_BYTES]
        if quoted:
            quotes = np.cumsum(part == ord('"'), dtype=np.int32) + inside
            part = part * (quotes & 1 == 0)
            inside = int(quotes[-1]) & 1
        yield part


class Shape(NamedTuple):
    """What sets of an index have in common; it never changes."""

    dim: int
    origin: NDArray[np.float64] | None

    @classmethod
    def of(cls, index: SetIndex) -> Shape:
        return cls(index.dim, index.origin)

    def sets(self, data: Any, weights: Any = None, name: str = "sets") -> Sets:
        """Return checked sets of lists of points."""
        try:
            if weights is not None:
                return Sets.from_list(data, weights, dim=self.dim, origin=self.origin)
            return as_sets(data, dim=self.dim, origin=self.origin)
        except InputError as error:
            error.argument = error.argument or name
            raise


class Asked(NamedTuple):
    """What a search is about: sets or ids, whether it is a single one, and the other arguments."""

    sets: Sets | None
    ids: list[str] | None
    single: bool
    arguments: dict[str, Any]
    metadata: bool = True

    @property
    def n_queries(self) -> int:
        return len(self.ids or ()) if self.sets is None else len(self.sets)

    @property
    def n_hits(self) -> int:
        """How many sets are looked for, those that are skipped among them; 0 where `k` and `offset` do not say it."""
        k, offset = self.arguments.get("k", 10), self.arguments.get("offset", 0)
        return self.n_queries * (k + offset) if isinstance(k, int) and isinstance(offset, int) else 0


class Unchecked(NamedTuple):
    """A question in JSON whose sets are not checked yet: that is done for many questions together."""

    asked: Asked
    points: list[Any]
    weights: list[Any] | None

    @property
    def is_plain(self) -> bool:
        return self.asked.single and self.weights is None


def decode_question(sent: Sent, kind: type[Any], shape: Shape, limits: Limits) -> Asked:
    """Return the queries of a search and its arguments, whatever form they came in."""
    read = _read_question(sent, kind, shape, limits)
    return _checked(read, None, shape, limits)


def decode_questions(sent: Sequence[Sent], kind: type[Any], shape: Shape, limits: Limits) -> list[Asked | Exception]:
    """Return several questions about one index; where one is wrong, its error."""
    read: list[Asked | Unchecked | Exception] = []
    for each in sent:
        try:
            read.append(_read_question(each, kind, shape, limits))
        except Exception as error:
            read.append(error)
    together = _checked_together([each for each in read if isinstance(each, Unchecked) and each.is_plain], shape)
    found: list[Asked | Exception] = []
    for question in read:
        if isinstance(question, Exception):
            found.append(question)
            continue
        is_plain = isinstance(question, Unchecked) and question.is_plain
        try:
            found.append(_checked(question, next(together, None) if is_plain else None, shape, limits))
        except Exception as error:
            found.append(error)
    return found


def _checked_together(questions: Sequence[Unchecked], shape: Shape) -> Iterator[Sets]:
    """Yield the set of each question; nothing if one of them is wrong, so that each is checked by itself."""
    if len(questions) < 2:
        return
    try:
        sets = shape.sets([each.points[0] for each in questions], None, "queries")
    except InputError:
        return
    yield from (sets[i : i + 1] for i in range(len(sets)))


def _checked(read: Asked | Unchecked, sets: Sets | None, shape: Shape, limits: Limits) -> Asked:
    """Return a question with its sets, which may have been checked before."""
    if isinstance(read, Unchecked):
        sets = shape.sets(read.points, read.weights, "queries") if sets is None else sets
        read = read.asked._replace(sets=sets)
    check_question(read, limits)
    return read


def _read_question(sent: Sent, kind: type[Any], shape: Shape, limits: Limits) -> Asked | Unchecked:
    if sent.kind not in (NPY, ARROW):
        sent.parameters(Body)  # such a body holds everything
    if sent.kind == BINARY:
        return _from_message(read_message(sent.body, limits), kind, shape)
    if sent.kind == JSON:
        return _from_json(decode_json(sent.body, kind, limits))
    given = sent.parameters(query_type(kind))
    if sent.kind == NPY:
        data = read_npy(sent.body)
        sets, single = shape.sets(data[None] if data.ndim == 2 else data, name="queries"), data.ndim == 2
    else:
        sets, single = read_arrow(sent.body, shape, limits).sets, False
    return Asked(sets, None, single, _arguments(given), bool(getattr(given, "metadata", True)))


def _from_json(given: Any) -> Asked | Unchecked:
    metadata, raw = bool(getattr(given, "metadata", True)), bytes(given.queries)
    single = isinstance(given.id, str | int)
    ids = None if given.id is None else [str(each) for each in ([given.id] if single else given.id)]
    if (raw == b"null") == (ids is None):
        raise InputError("give queries, or id of a stored set, and not both", argument="queries")
    if ids is not None:
        return Asked(None, ids, single, _arguments(given), metadata)
    many = is_many(raw)
    points, weights = decode_points(raw, many), decode_weights(bytes(given.weights), many)
    return Unchecked(Asked(None, None, not many, _arguments(given), metadata), points, weights)


def is_many(raw: bytes) -> bool:
    """Return whether JSON is a list of sets, and not one set."""
    return _MANY.match(raw) is not None


def decode_points(raw: bytes, many: bool) -> list[Any]:
    """Return one set or many of JSON as a list of sets."""
    try:
        return [_as_array(points) for points in (_SETS.decode(raw) if many else [_POINTS.decode(raw)])]
    except msgspec.ValidationError as error:
        places = ("set", "element", "feature") if many else ("element", "feature")
        raise _wrong_numbers(error, "queries", places, SETS_REMEDY) from None


def _wrong_numbers(error: msgspec.ValidationError, name: str, places: tuple[str, ...], remedy: str) -> InputError:
    """Return the error of a value in lists of numbers; `places` are what the levels of the lists are."""
    found = input_error(error, None, name)
    at = [int(number) for number in re.findall(r"\[(\d+)\]", found.problem)]
    for place, number in zip(places, at, strict=False):
        setattr(found, place, number)
    if len(at) < len(places):  # it is a list that is wrong, not a number
        found.remedy = remedy
    return found


def _as_array(points: list[list[float]]) -> Any:
    """Return points as an array; those that are none stay as they are, for their error to be found."""
    dim = len(points[0]) if points else 0
    if not dim or any(len(each) != dim for each in points):
        return points
    return np.fromiter(chain.from_iterable(points), np.float64, dim * len(points)).reshape(-1, dim)


def decode_weights(raw: bytes, many: bool) -> Any:
    if raw == b"null":
        return None
    remedy = "give one list of numbers for each set"
    if raw[:1] == b"[" and (_MANY_WEIGHTS.match(raw) is not None) != many:
        raise InputError("weights do not fit the queries", remedy, argument="weights")
    try:
        return _LISTS_OF_WEIGHTS.decode(raw) if many else [_WEIGHTS.decode(raw)]
    except msgspec.ValidationError as error:
        raise _wrong_numbers(error, "weights", ("set", "element") if many else ("element",), remedy) from None


def _from_message(message: Message, kind: type[Any], shape: Shape) -> Asked:
    given = dict(message.arguments)
    single, ids = given.pop("single", False), given.pop("ids", None)
    known = set(kind.__struct_fields__) - {"queries", "weights", "id", "metadata"}
    if unknown := sorted(set(given) - known):
        raise InputError(f"the argument {unknown[0]!r:.60} is not known", argument=str(unknown[0])[:60])
    if ids is not None and not (isinstance(ids, list) and all(isinstance(each, str) for each in ids)):
        raise InputError("ids are not a list of strings", argument="ids")
    sets = unpack_sets("queries", message.arrays, shape.origin)
    if (sets is None) == (ids is None):
        raise InputError("give queries, or ids of stored sets, and not both", argument="queries")
    if sets is not None and sets.dim != shape.dim:
        shape.sets(sets)
    return Asked(sets, ids, single is True, given)


def _arguments(given: Any) -> dict[str, Any]:
    """Return the fields that differ from their defaults, without the queries."""
    fields, left = given.__struct_fields__, ("queries", "weights", "id", "metadata")
    defaults = given.__struct_defaults__
    pairs = zip(fields[len(fields) - len(defaults) :], defaults, strict=True)
    return {
        name: value
        for name, default in pairs
        if name not in left and (value := getattr(given, name)) is not default and value != default
    }


def check_question(asked: Asked, limits: Limits) -> None:
    """Refuse more than the server takes."""
    n = asked.n_queries
    if n > limits.queries:
        raise InputError(f"there are {n:,} queries", f"send at most {limits.queries:,} at a time", argument="queries")
    if asked.sets is not None:
        check_sets(asked.sets, limits, "queries")
    k, offset = asked.arguments.get("k", 10), asked.arguments.get("offset", 0)
    for name, value in (("k", k), ("depth", asked.arguments.get("depth")), ("offset", offset)):
        if isinstance(value, int) and value > limits.k:
            raise InputError(f"{name}={value:,}", f"give at most {limits.k:,}", argument=name)


def check_bytes(n: int, limits: Limits, argument: str) -> None:
    """Refuse an answer whose ids and metadata take too many bytes."""
    if n > limits.answer_bytes:
        problem = f"the ids and metadata of the answer would take {format_bytes(n)}"
        remedy = f"ask for fewer sets: an answer may have {format_bytes(limits.answer_bytes)} of them"
        raise InputError(problem, remedy, argument=argument)


def check_sets(sets: Sets, limits: Limits, name: str = "sets") -> None:
    """Refuse too many sets, and sets of too many points."""
    if len(sets) > limits.sets:
        raise InputError(f"there are {len(sets):,} sets", f"send at most {limits.sets:,} at a time", argument=name)
    if len(sets) and (largest := int(sets.sizes.max())) > limits.points:
        number = int(sets.sizes.argmax())
        problem = f"set {number} has {largest:,} points"
        raise InputError(problem, f"send at most {limits.points:,} in a set", argument=name, set=number)


def read_npy(body: bytes) -> NDArray[Any]:
    """Return the array of a .npy body, which cannot hold objects; nothing is executed, and nothing copied."""
    if not body.startswith(npy.MAGIC_PREFIX):
        raise _is_other(body, "a .npy file", NPY_REMEDY)
    stream = io.BytesIO(body)
    try:
        shape, fortran, dtype = plain_header(stream, _wrong_array)
    except InputError:
        raise
    except Exception:  # whatever NumPy raises over a header that is something else
        raise _wrong_array("the header is damaged", NPY_REMEDY) from None
    start, size = stream.tell(), math.prod(shape) * dtype.itemsize
    if dtype.kind not in "fiu" or len(shape) not in (2, 3):
        raise _wrong_array(f"an array of {dtype} of the shape {shape}"[:200], NPY_REMEDY)
    if size != len(body) - start:
        problem = f"the header claims {format_bytes(size)} of numbers, the body has {format_bytes(len(body) - start)}"
        raise _wrong_array(problem, "send it whole")
    return np.frombuffer(body, dtype, offset=start).reshape(shape, order="F" if fortran else "C")


def _wrong_array(problem: str, remedy: str) -> InputError:
    return InputError(f"the .npy body: {problem}", remedy or NPY_REMEDY, argument="body")


def _is_other(body: bytes, wanted: str, remedy: str) -> InputError:
    """Return the error of a body that is not what its Content-Type says, by its first bytes."""
    problem = f"the body is not {wanted}, it looks like {data_looks_like(body[:512])}" if body else "the body is empty"
    return InputError(problem, remedy, argument="body")


class Table(NamedTuple):
    """Sets of an Arrow body, with ids and metadata where it has them."""

    sets: Sets
    ids: list[str | int] | None
    metadata: list[Any] | None


def read_arrow(body: bytes, shape: Shape, limits: Limits) -> Table:
    """Return the sets of an Arrow stream, whose buffers must not be compressed: they would be unpacked unseen."""
    columns = _arrow_columns(body)
    if "points" not in columns:
        raise InputError("the table has no column points", "give a list of vectors a row", argument="body")
    sets = Sets.from_arrow(columns["points"], columns.get("weights"), dim=shape.dim, origin=shape.origin)
    ids, texts = (_arrow_values(columns.get(name), name, len(body)) for name in ("id", "metadata"))
    return Table(sets, ids, None if texts is None else parse_objects(texts, "metadata", limits))


def _arrow_columns(body: bytes) -> dict[str, Any]:
    """Return the columns of an Arrow stream by their names; refuse others than those of sets."""
    pa, ipc = (import_extra(name, "a body in Arrow", "tables", "pyarrow") for name in ("pyarrow", "pyarrow.ipc"))
    try:
        is_packed = any(True for _ in unpacked_sizes(pa.BufferReader(body)))
        table = None if is_packed else ipc.open_stream(pa.BufferReader(body)).read_all()
    except Exception:  # whatever the library raises over bytes that are something else
        if body.startswith(ARROW_START):
            raise InputError("the Arrow stream is cut short or damaged", ARROW_REMEDY, argument="body") from None
        raise _is_other(body, "an Arrow stream", ARROW_REMEDY) from None
    if table is None:
        raise InputError("the buffers of the Arrow stream are compressed", "write it uncompressed", argument="body")
    names = table.column_names
    for i, name in enumerate(names):
        if name not in TABLE_COLUMNS or name in names[:i]:
            what = "two columns" if name in TABLE_COLUMNS else "a column"
            remedy = f"those of sets are {', '.join(TABLE_COLUMNS)}, each once"
            raise InputError(f"the table has {what} {name!r:.60}", remedy, argument=name[:60])
    return dict(zip(names, table.columns, strict=True))


def _arrow_values(column: Any, name: str, most: int) -> list[Any] | None:
    """Return the ids or the metadata of a table, row by row.

    Many rows may refer to one text, in dictionaries and views. So more text than the body can hold is refused.
    """
    if column is None:
        return None
    types = import_extra("pyarrow.types", "a body in Arrow", "tables", "pyarrow")
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    is_text = any(str(kind) == each for each in ("string", "large_string", "string_view", "null"))
    wanted = "give JSON" if name == "metadata" else "give a text, or a whole number"
    if not is_text and not (name == "id" and types.is_integer(kind)):
        problem = f"row 0 of the column {name} is of the type {str(kind)[:60]}"
        raise InputError(problem, f"{wanted} in each row", argument=name, set=0)
    values, size = [], 0
    for row, each in enumerate(column):
        value = each.as_py()
        if value is None and name == "id":
            raise InputError(f"row {row} of the column id is null", f"{wanted} in each row", argument=name, set=row)
        size += len(value) if isinstance(value, str) else 0
        if size > most:
            remedy = "write it as strings, and not as a dictionary"
            raise InputError(f"the texts of the column {name} are larger than the body", remedy, argument="body")
        values.append(value)
    return values


def parse_objects(texts: list[Any], name: str, limits: Limits) -> list[Any]:
    """Return the JSON objects of a message; None for None."""
    # One of them that is no JSON may upset the count of what follows it, but that is never parsed.
    check_json("".join(text + "," for text in texts if isinstance(text, str)).encode(errors="surrogatepass"), limits)
    return [_parsed_object(text, name) for text in texts]


def _parsed_object(text: Any, name: str) -> Any:
    if text is None or isinstance(text, dict):
        return text
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InputError(f"{name} {text!r:.60} is not a JSON object", argument=name)
    return found


def plain_arguments(message: Message, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a message that are known, and refuse others."""
    if unknown := sorted(set(message.arguments) - set(known)):
        raise InputError(f"the argument {unknown[0]!r:.60} is not known", argument=str(unknown[0])[:60])
    return {**known, **message.arguments}
