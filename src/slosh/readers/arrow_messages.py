"""What Arrow IPC says of its buffers before they are unpacked. A file or a stream comes in, sizes go out.

The buffers of a batch, or of a dictionary, may be compressed. pyarrow unpacks them as it reads the batch, whatever they
claim. So the messages are looked at first: their metadata, a flatbuffer, say where the buffers are and whether they are
compressed, and each compressed buffer begins with the number of bytes that it unpacks to.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..native.arrays import Array

FILE_MAGIC = b"ARROW1"
"""How a file begins and ends; a stream has no such mark."""
EXPERIMENTAL = b"ARROW:experimental_compression"
"""The key by which Arrow 0.17 marked compressed buffers, in messages of version 4 of the format."""
PREFIX = struct.Struct("<q")
"""The unpacked size of a compressed buffer; -1 if the rest is not compressed."""
# Numbers of fields in Arrow's Message.fbs and File.fbs, and of the kinds of a message.
MESSAGE_KIND, MESSAGE_HEADER, DICTIONARY_DATA, BATCH_BUFFERS, BATCH_COMPRESSION = 1, 2, 1, 2, 3
FOOTER_BLOCKS = (2, 3)
DICTIONARY_BATCH, RECORD_BATCH = 2, 3
VERSION_5 = 4


class _FlatTable:
    """A table of a flatbuffer, which pyarrow has verified."""

    def __init__(self, data: Any, place: int) -> None:
        self._data, self._place = data, place

    @classmethod
    def root(cls, data: Any) -> _FlatTable:
        return cls(data, struct.unpack_from("<I", data)[0])

    def find(self, field: int) -> int | None:
        """Return where a field is, None if it is not there."""
        vtable = self._place - struct.unpack_from("<i", self._data, self._place)[0]
        entry = 4 + 2 * field
        if entry >= struct.unpack_from("<H", self._data, vtable)[0]:
            return None
        offset = struct.unpack_from("<H", self._data, vtable + entry)[0]
        return self._place + offset if offset else None

    def byte(self, field: int) -> int:
        place = self.find(field)
        return 0 if place is None else int(self._data[place])

    def table(self, field: int) -> _FlatTable | None:
        place = self.find(field)
        return None if place is None else _FlatTable(self._data, self._follow(place))

    def numbers(self, field: int, width: int) -> Array:
        """Return a vector of structs of so many 8-byte numbers as (n, width)."""
        place = self.find(field)
        if place is None:
            return np.empty((0, width), np.int64)
        start = self._follow(place)
        count = struct.unpack_from("<I", self._data, start)[0]
        return np.frombuffer(self._data, "<i8", count * width, start + 4).reshape(count, width)

    def _follow(self, place: int) -> int:
        return place + int(struct.unpack_from("<I", self._data, place)[0])


def unpacked_sizes(source: Any) -> Iterator[int]:
    """Yield how many bytes each compressed message of a file or a stream unpacks to. `source` is one of pyarrow's."""
    from pyarrow import ipc

    source.seek(0)
    is_file = bytes(source.read(len(FILE_MAGIC))) == FILE_MAGIC
    source.seek(0)
    for message in _blocks(source) if is_file else ipc.MessageReader.open_stream(source):
        size = _unpacked_size(message)
        if size is not None:
            yield size


def _blocks(source: Any) -> Iterator[Any]:
    """Yield the messages that the footer of a file leads to, whose length is before the mark at the end."""
    from pyarrow import ipc

    tail = struct.Struct(f"<i{len(FILE_MAGIC)}s")
    source.seek(source.size() - tail.size)
    length, _ = tail.unpack(source.read(tail.size))
    source.seek(source.size() - tail.size - length)
    footer = _FlatTable.root(memoryview(source.read(length)))
    for field in FOOTER_BLOCKS:
        for offset, *_ in footer.numbers(field, 3).tolist():
            source.seek(offset)
            yield ipc.read_message(source)


def _unpacked_size(message: Any) -> int | None:
    """Return how many bytes the buffers of a message unpack to, None if they are not compressed."""
    metadata = memoryview(message.metadata)
    root = _FlatTable.root(metadata)
    kind, batch = root.byte(MESSAGE_KIND), root.table(MESSAGE_HEADER)
    if kind == DICTIONARY_BATCH and batch is not None:
        batch = batch.table(DICTIONARY_DATA)
    if kind not in (DICTIONARY_BATCH, RECORD_BATCH) or batch is None:
        return None
    is_old = int(message.metadata_version) < VERSION_5 and EXPERIMENTAL in bytes(metadata)
    if batch.find(BATCH_COMPRESSION) is None and not is_old:
        return None
    body = memoryview(message.body)
    places = [offset for offset, length in batch.numbers(BATCH_BUFFERS, 2).tolist() if length > 0]
    return sum(max(0, int(PREFIX.unpack_from(body, offset)[0])) for offset in places)
