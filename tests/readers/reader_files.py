"""Files that the tests of readers share, most of them written by hand, and all batches of a source as one."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile

import numpy as np

import comparing
from slosh import Sets
from slosh.readers import Batch, read

FAR = np.array([5e5, 5.3e6, 100])  # metres, as on a map


def cloud(*sizes, dim=3, seed=0):
    """Return normal float32 arrays of these sizes, in space."""
    return comparing.cloud(*sizes, dim=dim, seed=seed)


def everything(source, **options) -> Batch:
    """All batches of a source as one."""
    batches = list(read(source, progress=False, **options))
    assert all(len(b.sets) == len(b.ids) == len(b.metadata) for b in batches)
    ids, metadata = ([one for b in batches for one in b[k]] for k in (1, 2))
    return Batch(Sets.concat([b.sets for b in batches]), ids, metadata)


def npy_header(shape, descr="<f4"):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def zipped(path, members, kind=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def pcd_file(path, fields, kind, width=None):
    """Written by hand, as the Point Cloud Library does."""
    n = len(next(iter(fields.values())))
    letters = {"f": "F", "i": "I", "u": "U"}
    head = [
        "# .PCD v0.7 - Point Cloud Data file format",
        "VERSION 0.7",
        "FIELDS " + " ".join(fields),
        "SIZE " + " ".join(str(x.dtype.itemsize) for x in fields.values()),
        "TYPE " + " ".join(letters[x.dtype.kind] for x in fields.values()),
        "COUNT " + " ".join("1" for _ in fields),
        f"WIDTH {n if width is None else width}",
        "HEIGHT 1",
        "VIEWPOINT 0 0 0 1 0 0 0",
        f"POINTS {n if width is None else width}",
        f"DATA {kind}",
    ]
    if kind == "ascii":
        data = "".join(
            " ".join(repr(v.item()) for v in row) + "\n" for row in zip(*fields.values(), strict=True)
        ).encode()
    elif kind == "binary":
        table = np.empty(n, [(name, x.dtype) for name, x in fields.items()])
        for name, x in fields.items():
            table[name] = x
        data = table.tobytes()
    else:
        raw = b"".join(x.tobytes() for x in fields.values())
        packed = pack_lzf(raw)
        data = struct.pack("<II", len(packed), len(raw)) + packed
    path.write_bytes("\n".join(head).encode() + b"\n" + data)


def pack_lzf(data):
    """A plain LZF packer: looks for the three next bytes where they were last."""
    out, literal, last, at = bytearray(), bytearray(), {}, 0

    def flush():
        for i in range(0, len(literal), 32):
            out.extend([len(literal[i : i + 32]) - 1, *literal[i : i + 32]])
        literal.clear()

    while at < len(data):
        key = data[at : at + 3]
        before = last.get(key)
        last[key] = at
        if len(key) == 3 and before is not None and at - before <= 1 << 13:
            length = 3
            while length < 264 and at + length < len(data) and data[before + length] == data[at + length]:
                length += 1
            flush()
            back, extra = at - before - 1, length - 2
            out.append((min(extra, 7) << 5) | (back >> 8))
            if extra >= 7:
                out.append(extra - 7)
            out.append(back & 255)
            at += length
        else:
            literal.append(data[at])
            at += 1
    flush()
    return bytes(out)


def idx(path, array, code=8):
    head = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes()) if path.suffix == ".gz" else head + array.tobytes())
