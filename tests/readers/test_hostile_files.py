"""Files from other people: cut short, damaged, misnamed, or made to do harm. Each is refused with a sentence."""

from __future__ import annotations

import gzip
import io
import json
import mmap
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from itertools import product

import numpy as np
import pytest
from reader_files import everything, npy_header, pcd_file, refused, zipped

from comparing import raises
from slosh.errors import ReaderError
from slosh.readers import FORMATS, read
from slosh.readers.files import free_memory, looks_like

PETABYTE = 10**15

pytestmark = pytest.mark.usefixtures("little_memory")


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


# ---- pickles


def test_pickles_are_never_read(tmp_path):
    trap = tmp_path / "trap"
    array = np.empty((2, 2), object)
    array[...] = Trap(trap)
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    np.savez(tmp_path / "b.npz", points=array, offsets=[0, 2])
    np.savez(tmp_path / "c.npz", points=np.zeros((2, 2)), offsets=[0, 2], labels=array[0])
    np.savez(tmp_path / "d.npz", array)
    (tmp_path / "e.npy").write_bytes(pickle.dumps(Trap(trap)))
    (tmp_path / "f.npz").write_bytes(pickle.dumps(Trap(trap)))
    for name in "abcd":
        path = next(tmp_path.glob(f"{name}.*"))
        with raises(path.name, "a pickle and could run code, is never read"):
            everything(path)
    for name in ("e.npy", "f.npz"):
        with raises(name, "not a readable", "a pickle, which is never read"):
            everything(tmp_path / name)
    assert not trap.exists()


# ---- sizes that are claims


def test_npy_that_claims_a_petabyte(tmp_path):
    (tmp_path / "x.npy").write_bytes(npy_header((PETABYTE // 8, 2)) + b"\0" * 80)
    with raises("x.npy: the header claims 909.5 TB of numbers, the file has 80 bytes"):
        read(tmp_path / "x.npy")
    (tmp_path / "x.npy").write_bytes(npy_header((-1, 2)) + b"\0" * 80)
    with raises("x.npy"):
        read(tmp_path / "x.npy")


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("name", ["points", "weights", "offsets", "labels", "only"])
def test_npz_member_that_claims_a_petabyte(tmp_path, name, kind):
    members = {
        "points.npy": npy_header((4, 2)) + b"\0" * 32,
        "offsets.npy": npy_header((3,), "<i8") + np.array([0, 2, 4]).tobytes(),
    }
    shape = (PETABYTE // 8, 2) if name in ("points", "only") else (PETABYTE // 4,)
    bad = npy_header(shape, "<i8" if name == "offsets" else "<f4") + b"\0" * 32
    zipped(tmp_path / "x.npz", {f"{name}.npy": bad} if name == "only" else members | {f"{name}.npy": bad}, kind)
    with raises("x.npz", name, "claims", "TB"):
        everything(tmp_path / "x.npz")


def test_npz_whose_directory_lies_too(tmp_path):
    """The directory of the archive says the same petabyte as the header of the array."""
    header = npy_header((PETABYTE // 8, 2))
    size = len(header) + PETABYTE
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", header + b"\0" * 1000)
        archive.infolist()[0].file_size = size
    assert zipfile.ZipFile(path).infolist()[0].file_size == size
    with raises("x.npz: the archive claims 909.5 TB, more than 100 times the"):
        everything(path)


def test_npz_that_unpacks_to_much_is_read_in_pieces(tmp_path):
    """A bomb of 800 MB in one of 800 KB: as many points as a batch has are unpacked at a time."""
    n = 1 << 23
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("points.npy", "w") as member:
            member.write(npy_header((n, 12), "|i1"))
            for _ in range(96):
                member.write(bytes(1 << 20))
        archive.writestr("offsets.npy", npy_header((9,), "<i8") + np.arange(0, n + 1, n // 8).tobytes())
    assert (tmp_path / "x.npz").stat().st_size < 1 << 20
    assert len(next(read(tmp_path / "x.npz", batch_points=1 << 20)).ids) == 1


def test_npz_larger_than_the_memory(tmp_path, monkeypatch):
    from slosh.readers import files

    np.savez(tmp_path / "x.npz", points=np.zeros((1000, 3)))
    monkeypatch.setattr(files, "free_memory", lambda: 1000)
    with raises("x.npz: 'points' claims 23.4 kB, more than the memory that is free"):
        everything(tmp_path / "x.npz")


@pytest.mark.parametrize("name", ["../../evil.npy", "/etc/evil.npy", "a/../b.npy", "..\\evil.npy", "c:evil.npy"])
def test_npz_names_that_climb_out(tmp_path, name):
    zipped(tmp_path / "x.npz", {name: npy_header((1, 1)) + bytes(4)})
    with raises("x.npz: the member", "climbs out"):
        everything(tmp_path / "x.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]


def test_npz_of_other_things(tmp_path):
    path = tmp_path / "x.npz"
    zipped(path, {"readme.txt": "hello"})
    with raises("x.npz: the member 'readme.txt' is not an array"):
        read(path)
    zipped(path, {"a.npy": npy_header((1, 1)) + bytes(4)}, zipfile.ZIP_BZIP2)
    with raises("x.npz: 'a': compressed in a way"):
        everything(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", npy_header((1, 1)) + bytes(4))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.npy", npy_header((1, 1)) + bytes(4))
    with raises("x.npz: two members have the same name"):
        read(path)


def test_npz_with_a_wrong_checksum(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, points=np.arange(200.0).reshape(100, 2), offsets=[0, 100])
    data = bytearray(path.read_bytes())
    data[data.index(np.float64(150).tobytes())] ^= 1
    path.write_bytes(data)
    with raises("x.npz", "CRC"):
        everything(path)


@pytest.mark.parametrize("kind", ["ascii", "binary", "binary_compressed"])
def test_pcd_that_claims_too_much(tmp_path, kind):
    x = np.zeros(4, "<f4")
    pcd_file(tmp_path / "x.pcd", {"x": x, "y": x, "z": x}, kind, width=PETABYTE)
    with raises("x.pcd: the header claims 1000000000000000 points"):
        read(tmp_path / "x.pcd")


def test_pcd_that_unpacks_to_another_size(tmp_path):
    x = np.zeros(40, "<f4")
    pcd_file(tmp_path / "x.pcd", {"x": x, "y": x, "z": x}, "binary_compressed")
    data = (tmp_path / "x.pcd").read_bytes()
    start = data.index(b"binary_compressed\n") + 18
    for head in ((2**32 - 1, 480), (10, 2**32 - 1), (4, 480)):
        (tmp_path / "x.pcd").write_bytes(data[:start] + struct.pack("<II", *head) + data[start + 8 :])
        with raises("x.pcd"):
            everything(tmp_path / "x.pcd")
    for packed in (b"\xff\xff\xff", b"\x20\x10", b"\x00", b"\x05ab"):  # copies from before the start, or ends early
        body = struct.pack("<II", len(packed), 480) + packed
        (tmp_path / "x.pcd").write_bytes(data[:start] + body)
        with raises("x.pcd"):
            everything(tmp_path / "x.pcd")


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("shape", [(2**32 - 1,) * 3, (10**6, 28, 28), (1, 2, 3)])
def test_idx_that_claims_another_size(tmp_path, suffix, shape):
    path = tmp_path / f"images-idx3-ubyte{suffix}"
    body = bytes([0, 0, 8, 3]) + struct.pack(">3I", *shape) + b"\1" * 784
    path.write_bytes(gzip.compress(body) if suffix else body)
    with raises("images-idx3-ubyte", "goes on after" if suffix and shape[0] == 1 else "claims"):
        everything(path)


def test_idx_in_a_gzip_bomb(tmp_path):
    """Goes on for 200 MB after the images of its header: not unpacked further."""
    path = tmp_path / "images-idx3-ubyte.gz"
    with gzip.open(path, "wb") as stream:
        stream.write(bytes([0, 0, 8, 3]) + struct.pack(">3I", 1, 2, 2) + b"\1" * 4)
        for _ in range(200):
            stream.write(bytes(1 << 20))
    with raises("goes on after the 1 images"):
        everything(path)


def test_las_that_claims_too_much(tmp_path):
    laspy = pytest.importorskip("laspy")
    las = laspy.LasData(laspy.LasHeader(point_format=6, version="1.4"))
    las.x = las.y = las.z = np.arange(100.0)
    las.write(tmp_path / "x.las")
    data = (tmp_path / "x.las").read_bytes()
    for place, form, value in (
        (247, "<Q", PETABYTE),
        (100, "<I", 2**32 - 1),
        (243, "<I", 2**32 - 1),
        (96, "<I", 2**31),
    ):
        bad = bytearray(data)
        struct.pack_into(form, bad, place, value)
        (tmp_path / "x.las").write_bytes(bad)
        with raises("x.las:", "claims"):
            read(tmp_path / "x.las")
    pytest.importorskip("lazrs")
    las.write(tmp_path / "x.laz")
    bad = bytearray((tmp_path / "x.laz").read_bytes())
    struct.pack_into("<Q", bad, 247, PETABYTE)
    (tmp_path / "x.laz").write_bytes(bad)
    with raises("x.laz:", "1000000000000000 points", "more than 100 times"):
        read(tmp_path / "x.laz")
    struct.pack_into("<Q", bad, 247, 101)
    (tmp_path / "x.laz").write_bytes(bad)
    with raises("x.laz"):
        everything(tmp_path / "x.laz", origin="auto")


def glb(path, tree):
    text = json.dumps(tree).encode()
    text += b" " * (-len(text) % 4)
    head = struct.pack("<4sII", b"glTF", 2, 20 + len(text)) + struct.pack("<I4s", len(text), b"JSON")
    path.write_bytes(head + text)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"accessors": [{"count": PETABYTE, "componentType": 5126, "type": "VEC3"}]}, "claims 1000000000000000 values"),
        ({"buffers": [{"uri": "../../../etc/passwd", "byteLength": 10}]}, "in another file, '../../../etc/passwd'"),
        ({"buffers": [{"uri": "http://example.com/x", "byteLength": 10}]}, "in another file"),
        ({"nodes": [{"children": [1, 1]}, {"children": [2, 2]}, {}]}, "two parents"),
        ({"accessors": 3}, "not a readable GLB mesh"),
        ({}, "not a readable GLB mesh"),
    ],
)
def test_glb_that_claims_or_refers(tmp_path, tree, words):
    pytest.importorskip("trimesh")
    glb(tmp_path / "x.glb", tree)
    with raises("x.glb:", words):
        everything(tmp_path)


def test_off_and_ply_that_claim_too_much(tmp_path):
    pytest.importorskip("trimesh")
    (tmp_path / "x.off").write_text(f"OFF\n{PETABYTE} 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n")
    (tmp_path / "x.ply").write_text(
        f"ply\nformat binary_little_endian 1.0\nelement vertex {PETABYTE}\nproperty float x\nproperty float y\n"
        "property float z\nend_header\n0000"
    )
    for name in ("x.off", "x.ply"):
        with raises(f"{name}: not a readable {name[2:].upper()} mesh"):
            everything(tmp_path / name)
    (tmp_path / "x.off").write_text("OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 -7\n")
    with raises("x.off: not a readable OFF mesh"):
        everything(tmp_path / "x.off")


def test_text_that_is_shorter_than_its_header_claims(tmp_path):
    """A line that is missing is seen; the last line break may be."""
    trimesh = pytest.importorskip("trimesh")
    mesh, points = trimesh.creation.icosphere(subdivisions=1), np.random.default_rng(0).normal(size=(30, 3))
    mesh.export(tmp_path / "m.ply", encoding="ascii")
    trimesh.PointCloud(points).export(tmp_path / "c.ply", encoding="ascii")
    rows = "\n".join(" ".join(map(str, point)) for point in points)
    (tmp_path / "c.xyz").write_text(f"{len(points)}\n{rows}\n")
    for name in ("m.ply", "c.ply", "c.xyz"):
        data = (tmp_path / name).read_bytes().rstrip()
        for newline in (b"\n", b"\r\n"):
            lines = data.splitlines()
            (tmp_path / name).write_bytes(newline.join(lines))
            everything(tmp_path / name)
            for n in (1, 5, len(points) // 2):
                (tmp_path / name).write_bytes(newline.join(lines[:-n]))
                with raises(name, "it is cut short or damaged"):
                    everything(tmp_path / name)


# ---- HDF5


@pytest.fixture
def h5ad(tmp_path):
    anndata = pytest.importorskip("anndata")
    pd = pytest.importorskip("pandas")
    from scipy import sparse

    obs = pd.DataFrame({"patient": ["a", "b", "a"]}, index=["u", "v", "w"])
    anndata.AnnData(sparse.csr_matrix(np.eye(3)), obs=obs).write_h5ad(tmp_path / "c.h5ad")
    return tmp_path / "c.h5ad"


def test_h5ad_links_to_other_files(h5ad):
    h5py = pytest.importorskip("h5py")
    with h5py.File(h5ad, "a") as store:
        store["uns/far"] = h5py.ExternalLink("/etc/passwd", "/x")
    with raises("c.h5ad: /uns/far is a link to another file, '/etc/passwd'"):
        read(h5ad, by="patient")
    with h5py.File(h5ad, "a") as store:
        del store["uns/far"], store["X"]
        store.create_dataset("X", (3, 2), "u1", external=[("/etc/passwd", 0, 6)])
    with raises("c.h5ad: the values of /X are in another file"):
        read(h5ad, by="patient")


def test_h5ad_that_claims_too_much(h5ad):
    h5py = pytest.importorskip("h5py")
    with h5py.File(h5ad, "a") as store:
        store.create_dataset("obs/more", (PETABYTE,), "f8", chunks=(1024,))
    with raises("c.h5ad: obs claims 7276.0 TB"):
        read(h5ad, by="patient")
    with h5py.File(h5ad, "a") as store:
        del store["obs/more"], store["X"]
        store.create_dataset("X", (3, PETABYTE), "f8", chunks=(1, 1024))
    with raises("c.h5ad: X claims"):
        everything(h5ad, by="patient")


@pytest.mark.parametrize(
    ("part", "values"), [("indices", [0, 1, 99]), ("indices", [0, -5, 1]), ("indptr", [0, 3, 1, 3])]
)
def test_h5ad_with_a_damaged_sparse_matrix(h5ad, part, values):
    h5py = pytest.importorskip("h5py")
    with h5py.File(h5ad, "a") as store:
        store["X"][part][:] = values
    with raises("c.h5ad:", "it is damaged"):
        everything(h5ad, by="patient")


# ---- Arrow

READ_EACH = """
import sys
import pyarrow as pa
from slosh.readers import read
for path in sys.argv[1:]:
    try:
        print(len(list(read(path, progress=False))))
    except ValueError as error:
        print(error)
print(pa.default_memory_pool().max_memory())
"""


def arrow_bytes(pa, table, *, stream, **options):
    """Return a table as Arrow IPC."""
    target, start = io.BytesIO(), pa.ipc.new_stream if stream else pa.ipc.new_file
    with start(target, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return target.getvalue()


def test_arrow_that_unpacks_to_much(tmp_path):
    """A set of 300 MB, or a text of as many, in a file of less than 2 MB: nothing of it is unpacked."""
    pa, n = pytest.importorskip("pyarrow"), 300 << 20
    zeros = pa.py_buffer(mmap.mmap(-1, n))
    vectors = pa.FixedSizeListArray.from_arrays(pa.Array.from_buffers(pa.float32(), n // 4, [None, zeros]), 2)
    ends = pa.py_buffer(struct.pack("<qq", 0, n))
    text = pa.Array.from_buffers(pa.large_string(), 1, [None, ends, zeros])
    names = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), text)
    tables = [
        pa.table({"points": pa.ListArray.from_arrays([0, n // 8], vectors)}),
        pa.table({"points": pa.array([[[0.0, 1.0]]]), "name": names}),
    ]
    paths = []
    for compression, stream, table in product(("zstd", "lz4"), (False, True), tables):
        paths.append(tmp_path / f"{len(paths)}.arrow")
        paths[-1].write_bytes(arrow_bytes(pa, table, stream=stream, compression=compression))
        assert paths[-1].stat().st_size < 2 << 20
    command = [sys.executable, "-c", READ_EACH, *map(str, paths)]
    *said, peak = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for path, line in zip(paths, said, strict=True):
        assert line.startswith(f"{path}: the table claims 300.0 MB, more than 100 times the")
    assert int(peak) < 1 << 20


@pytest.mark.parametrize("form", ["arrow", "parquet"])
@pytest.mark.parametrize("named", ["id", "x"])
def test_one_text_for_many_rows(tmp_path, form, named):
    """A dictionary of one text of a megabyte, which 1000 sets have."""
    pa, n = pytest.importorskip("pyarrow"), 1000
    names = pa.DictionaryArray.from_arrays(pa.array([0] * n, pa.int16()), pa.array(["x" * (1 << 20)]))
    table = pa.table({"points": pa.array([[[0.0, 1.0]]] * n), named: names})
    path = tmp_path / f"x.{form}"
    if form == "arrow":
        path.write_bytes(arrow_bytes(pa, table, stream=False))
    else:
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    with raises(f"x.{form}: the text of the table claims 1000.0 MB, more than 100 times the"):
        everything(path)


def test_the_compression_of_the_first_arrow_files():
    """Arrow 0.17 named it in the metadata of a message; pyarrow still unpacks it, and so its size counts."""
    from slosh.readers.arrow_messages import unpacked_sizes

    pa = pytest.importorskip("pyarrow")
    batch = pa.record_batch({"x": pa.array([PETABYTE, 1])})
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    target = io.BytesIO()
    with pa.ipc.new_stream(target, batch.schema, options=options) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch, custom_metadata={"ARROW:experimental_compression": "zstd"})
    assert list(unpacked_sizes(pa.BufferReader(target.getvalue()))) == [PETABYTE]


# ---- long form

READ_LONG = """
import resource, sys
import pyarrow.parquet
from slosh.readers import read
peaks = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]
for path in sys.argv[1:]:
    try:
        found = list(read(path, id_column="id", columns=["x", "y"], max_expansion=20, progress=False))
        print("read", sum(len(batch.ids) for batch in found), sum(len(batch.sets.points) for batch in found))
    except ValueError as error:
        print(error)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(peaks[-1] - peaks[0])
"""
ROWS, ROWS_OF_GROUP = 500_000, 50_000


def long_parquet(path, texts, **options):
    """Write rows of zeros; `texts` gives the columns of the rows of a group as dictionaries, or as texts."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    zeros, writer = pa.array(np.zeros(ROWS_OF_GROUP)), None
    for start in range(0, ROWS, ROWS_OF_GROUP):
        group = pa.table({**texts(pa, np.arange(start, start + ROWS_OF_GROUP)), "x": zeros, "y": zeros})
        # Without the schema of Arrow, a column is one of plain texts.
        writer = writer or parquet.ParquetWriter(path, group.schema, compression="zstd", store_schema=False, **options)
        writer.write_table(group)
    writer.close()
    return path


def of_dictionary(pa, numbers, *texts):
    return pa.DictionaryArray.from_arrays(pa.array(numbers % len(texts), pa.int32()), pa.array(texts))


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of the memory is in kilobytes on Linux")
def test_texts_of_rows_that_unpack_to_much(tmp_path):
    """Texts of 0.5 to 500 GB in files of 10 kB to 6 MB: one text of a set is kept, whatever the number of its rows."""
    kilobyte, megabyte = "k" * 1000, "m" * (1 << 20)
    files = {
        "read 1 500000": long_parquet(tmp_path / "1.parquet", lambda pa, i: {"id": of_dictionary(pa, 0 * i, kilobyte)}),
        "read 1 500000 ": long_parquet(
            tmp_path / "2.parquet", lambda pa, i: {"id": of_dictionary(pa, 0 * i, megabyte)}
        ),
        "read 2 500000": long_parquet(
            tmp_path / "3.parquet", lambda pa, i: {"id": of_dictionary(pa, i, megabyte, "m" + megabyte)}
        ),
        "read 1 500000  ": long_parquet(
            tmp_path / "4.parquet",
            lambda pa, i: {"id": of_dictionary(pa, 0 * i, "a"), "name": of_dictionary(pa, i, kilobyte, megabyte)},
        ),
        "5.parquet: the text of the table claims": long_parquet(
            tmp_path / "5.parquet", lambda pa, i: {"id": pa.array(i), "name": of_dictionary(pa, 0 * i, megabyte)}
        ),
        "read 1 500000   ": long_parquet(
            tmp_path / "6.parquet",
            lambda pa, i: {"id": of_dictionary(pa, 0 * i, "a"), "name": pa.array([f"{n:01000d}" for n in i])},
            use_dictionary=False,
        ),
        "read 1 500000    ": long_parquet(
            tmp_path / "7.parquet",
            lambda pa, i: {"id": pa.array([kilobyte] * len(i))},
            use_dictionary=False,
            column_encoding={"id": "DELTA_BYTE_ARRAY"},
        ),
    }
    assert all(path.stat().st_size < 8 << 20 for path in files.values())
    command = [sys.executable, "-c", READ_LONG, *map(str, files.values())]
    *said, peak = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for words, line in zip(files, said, strict=True):
        assert words.strip() in line
    assert int(peak) << 10 < 400 << 20


def test_pages_of_texts_that_unpack_to_much(tmp_path):
    """300 MB of texts, each written out, in one row group of less than 1 MB."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = pa.table({"id": pa.array(["k" * 1000] * 300_000), "x": np.zeros(300_000)})
    parquet.write_table(rows, tmp_path / "x.parquet", compression="zstd", use_dictionary=False)
    with raises("x.parquet: column 'id' claims 287.5 MB, more than 20 times the", error=ReaderError) as caught:
        everything(tmp_path / "x.parquet", id_column="id", max_expansion=20)
    assert caught.value.argument == "max_expansion"


@pytest.mark.parametrize("form", ["parquet", "arrow", "csv", "lists"])
def test_sets_of_more_points_than_are_wanted(tmp_path, form, monkeypatch):
    """The first set that has more ends it, at the batch in which it is seen."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from pyarrow import csv

    from slosh.readers import long_form, tables

    for module in (long_form, tables):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 4)
    sizes = [3, 5, 12, 2]
    rows = pa.table({"id": np.repeat(["a", "b", "c", "d"], sizes), "x": np.arange(22.0)})
    path = tmp_path / f"x.{'parquet' if form == 'lists' else form}"
    if form == "csv":
        csv.write_csv(rows, path)
    elif form == "arrow":
        path.write_bytes(arrow_bytes(pa, rows, stream=False))
    else:
        lists = pa.table({"id": ["a", "b", "c", "d"], "x": [[[0.0]] * n for n in sizes]})
        parquet.write_table(lists if form == "lists" else rows, path)
    assert everything(path, id_column="id", max_points=12).sets.sizes.tolist() == sizes
    for most, number in ((11, 2), (4, 1), (1, 0)):
        with raises(
            f"set {number} has more than {most} points: pass a larger max_points=", error=ReaderError
        ) as caught:
            everything(path, id_column="id", max_points=most)
        assert (caught.value.set, caught.value.argument) == (number, "max_points")
    for wrong in (0, 1.5, "x"):
        with raises("max_points="):
            read(path, id_column="id", max_points=wrong)


# ---- cut short, damaged, misnamed


def test_the_samples_can_be_read(good):
    folder, options = good
    for name, given in options.items():
        assert everything(folder / name, **given).sets.points.size, name
    seen = {os.path.splitext(name)[1] for name in options}
    there = {suffix for suffix, form in FORMATS.items() if not form.library or find_spec(form.library.name)}
    assert seen >= there - {".idx", ".tsv"}


def test_a_file_that_is_cut_short(good, tmp_path):
    """Refused; only text, and a stream that says no length, may end early and be whole."""
    folder, options = good
    for name, given in options.items():
        data = (folder / name).read_bytes()
        loose = name.endswith((".xyz", ".csv", ".obj", ".off", ".arrow", "ascii.pcd"))
        for part in (0, 1, 3, 10, len(data) // 3, len(data) // 2, len(data) * 9 // 10, len(data) - 1):
            (tmp_path / name).write_bytes(data[:part])
            assert refused(tmp_path / name, given) or (loose and part > 10), (name, part, len(data))


def test_a_file_under_another_name(good, tmp_path):
    """Every format under the name of every other."""
    folder, options = good
    for name in ("a.npy", "b.npz", "m.stl", "m.glb", "s.las", "t.parquet", "c.h5ad", "t.csv", "binary.pcd"):
        if name not in options:
            continue
        data = (folder / name).read_bytes()
        for suffix in FORMATS:
            if name.endswith(suffix) or (suffix, name) in ((".laz", "s.las"), (".tsv", "t.csv")):
                continue
            path = tmp_path / f"x{suffix}"
            path.write_bytes(data)
            given = {"by": "patient"} if suffix == ".h5ad" else {}
            with pytest.raises(ValueError, match=rf"x\{suffix}"):
                everything(path, **given)


def test_what_a_file_looks_like(good, tmp_path):
    folder, options = good
    (tmp_path / "x.off").write_bytes(b"\x89PNG\r\n\x1a\n0000")
    with raises("x.off: not a readable OFF mesh (it looks like a PNG picture)"):
        everything(tmp_path / "x.off")
    (tmp_path / "x.npz").write_text("version https://git-lfs.github.com/spec/v1\n")
    with raises("x.npz", "git lfs pull"):
        read(tmp_path / "x.npz")
    expected = {
        "a.npy": "NumPy",
        "b.npz": "zip",
        "t.parquet": "Parquet",
        "m.glb": "GLB",
        "s.las": "LAS",
        "d.xyz": "text",
    }
    for name, words in expected.items():
        if name in options:
            assert words in looks_like(folder / name)
    assert looks_like(folder / "images-idx3-ubyte") == "IDX"
    assert looks_like(folder / "m.stl") == "binary data" or "m.stl" not in options
    assert looks_like(tmp_path / "none") == "a file that cannot be opened"


def test_what_a_file_looks_like_is_said_if_it_is_something_else(tmp_path):
    pytest.importorskip("trimesh")
    (tmp_path / "x.stl").write_text("solid x\n facet normal\n outer loop\n vertex 1 2 \nendsolid")
    with raises("x.stl: not a readable STL mesh: no vertices"):
        everything(tmp_path / "x.stl")
    (tmp_path / "x.stl").write_text("OFF\n")
    with raises("x.stl: not a readable STL mesh (it looks like OFF): "):
        everything(tmp_path / "x.stl")


def test_rubbish_is_not_printed(tmp_path):
    """Whatever bytes a file has, the message is one line that can be shown, and a short one."""
    rng = np.random.default_rng(0)
    random = rng.integers(0, 256, 3000, np.uint8).tobytes()
    for start in (b"", b"OFF\n", b"ply\n", b"solid ", b"id,x\na,", b"VERSION .7\nFIELDS x \x1b[31m\x07\n"):
        for middle in (random, b"\x1b[31m\x07, \x9b\n" * 50, b"\xe2\x80\xae\xff1,2\n" * 50):
            for suffix in FORMATS:
                path = tmp_path / f"x{suffix}"
                path.write_bytes(start + middle)
                with pytest.raises((ValueError, ImportError)) as error:
                    everything(path, **({"by": "patient"} if suffix == ".h5ad" else {}))
                said = str(error.value)
                assert said.isprintable(), said
                assert "\ufffd" not in said
                assert len(said) < len(str(path)) + 600


def test_the_free_memory_is_known():
    assert free_memory() > 1 << 20
