"""Files that the tests of readers share, most of them written by hand, and all batches of a source as one."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile

import numpy as np

from builders import normal_arrays
from slosh import Sets
from slosh.readers import Batch, read

FAR = np.array([5e5, 5.3e6, 100])  # metres, as on a map


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


def samples(folder):
    """A good file of each format, with the options to read it."""
    points, files = normal_arrays(40, dim=3)[0], {}
    np.save(folder / "a.npy", points)
    np.savez(folder / "b.npz", points=points, offsets=[0, 20, 40])
    np.savez_compressed(folder / "c.npz", one=points, two=points)
    np.savetxt(folder / "d.xyz", points)
    x, y, z = points.T.astype("<f4")
    for kind in ("ascii", "binary", "binary_compressed"):
        pcd_file(folder / f"{kind}.pcd", {"x": x, "y": y, "z": z}, kind)
    idx(folder / "images-idx3-ubyte", np.full((5, 4, 4), 7, np.uint8))
    idx(folder / "more-idx3-ubyte.gz", np.full((5, 4, 4), 7, np.uint8))
    try:
        import trimesh

        for suffix in ("off", "ply", "obj", "stl", "glb"):
            trimesh.creation.icosphere(1).export(folder / f"m.{suffix}")
    except ImportError:
        pass
    try:
        import laspy

        las = laspy.LasData(laspy.LasHeader(point_format=3, version="1.2"))
        las.x, las.y, las.z = points.astype(np.float64).T
        las.write(folder / "s.las")
        las.write(folder / "s.laz")
    except ImportError:
        pass
    try:
        import pyarrow as pa
        import pyarrow.csv
        import pyarrow.feather
        import pyarrow.parquet

        table = pa.table({"id": np.arange(40) // 10, "x": x, "y": y})
        lists = pa.table({"id": [1, 2], "p": [points[:20].tolist(), points[20:].tolist()]})
        pa.csv.write_csv(table, folder / "t.csv")
        files["t.csv"] = {"by": "id"}
        pa.parquet.write_table(lists, folder / "t.parquet")
        pa.feather.write_feather(lists, str(folder / "t.feather"))
        pa.feather.write_feather(lists, str(folder / "plain.feather"), compression="uncompressed")
        with pa.ipc.new_stream(str(folder / "t.arrow"), lists.schema) as sink:
            sink.write_table(lists)
    except ImportError:
        pass
    try:
        import anndata
        import pandas as pd

        obs = pd.DataFrame({"patient": np.repeat(["a", "b"], 20)}, index=[str(i) for i in range(40)])
        anndata.AnnData(points, obs=obs).write_h5ad(folder / "c.h5ad")
        files["c.h5ad"] = {"by": "patient"}
    except ImportError:
        pass
    return {path.name: files.get(path.name, {}) for path in sorted(folder.iterdir())}


def refused(path, options):
    """Whether a file is refused, with its name; nothing else but reading it may happen."""
    try:
        for _ in read(path, progress=False, **options):
            pass
    except ValueError as error:
        said = str(error)
    else:
        return False
    assert path.name in said
    return True
