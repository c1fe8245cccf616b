"""Damaged files by the hundred, and files made to take time or memory: read or refused, and always in proportion.

Work is counted in function calls, memory by tracemalloc: neither depends on how busy the machine is.
"""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from reader_files import everything, idx, refused

from comparing import raises
from slosh.readers import files, read
from slosh.readers.files import File, Options
from slosh.readers.long_form import Table, read_long

NUMBERS = (0, 1, -1, 1 << 16, 1 << 24, (1 << 31) - 1, 1 << 40)
pytestmark = [pytest.mark.usefixtures("little_memory"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def small_allowance(monkeypatch):
    """Even a small file may not take much more than its size."""
    monkeypatch.setattr(files, "ALWAYS_ALLOWED", 1 << 22)


def calls(work):
    """Return how many functions a piece of work calls, of Python and of C."""
    count = 0

    def called(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def damage(data, seed):
    """Return the bytes of a file with one to four changes: bits, numbers that are too large, parts lost or repeated."""
    chance, bad = random.Random(seed), bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        place, length = chance.randrange(len(bad)), chance.choice((1, 4, 16, 100))
        kind = chance.randrange(5)
        if kind == 0:
            bad[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            width = chance.choice((2, 4, 8))
            number = chance.choice(NUMBERS) & ((1 << 8 * width) - 1)
            bad[place : place + width] = number.to_bytes(width, chance.choice(("little", "big")))
        elif kind == 2:
            del bad[place : place + length]
        elif kind == 3:
            bad[place:place] = bad[place : place + length]
        else:
            other = chance.randrange(len(bad))
            bad[place : place + length] = bad[other : other + length]
        bad = bad or bytearray(1)
    return bytes(bad)


def test_damaged_files(good, tmp_path, small_allowance):
    """Read or refused by name, with work in proportion to what the good file takes."""
    folder, options = good
    for name, given in options.items():
        data = (folder / name).read_bytes()
        everything(folder / name, **given)  # imports what is imported once
        usual = calls(lambda name=name, given=given: everything(folder / name, **given))
        for seed in range(15):
            (tmp_path / name).write_bytes(damage(data, seed))
            work = calls(lambda name=name, given=given: refused(tmp_path / name, given))
            assert work < 20 * usual + 20_000, (name, seed)


@pytest.mark.long
def test_damaged_files_in_a_process_of_their_own(good, tmp_path):
    """Thousands of them: a library that ends the process, or runs for minutes, is found here."""
    folder, options = good
    script = (
        "import sys; from pathlib import Path; from test_fuzz import damage; from reader_files import refused\n"
        "source, target, given = Path(sys.argv[1]), Path(sys.argv[2]), eval(sys.argv[3])\n"
        "for seed in range(500):\n"
        "    print(seed, flush=True)\n"
        "    target.write_bytes(damage(source.read_bytes(), seed))\n"
        "    refused(target, given)\n"
    )
    here = os.path.dirname(__file__)
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([here, os.path.dirname(here), *sys.path])}
    for name, given in options.items():
        call = [sys.executable, "-W", "ignore", "-c", script, folder / name, tmp_path / name, repr(given)]
        ran = subprocess.run(list(map(str, call)), env=paths, capture_output=True, text=True, timeout=1800, check=False)
        assert ran.returncode == 0, (name, ran.stdout[-20:], ran.stderr[-500:])


# ---- time


def test_a_face_of_very_many_corners(tmp_path):
    n = 3000
    ring = np.stack([np.cos(np.arange(n)), np.sin(np.arange(n)), np.zeros(n)], axis=1)
    (tmp_path / "fan.off").write_text(
        f"OFF\n{n} 1 0\n" + "".join(f"{x} {y} {z}\n" for x, y, z in ring) + f"{n} {' '.join(map(str, range(n)))}\n"
    )
    (tmp_path / "fan.obj").write_text(
        "".join(f"v {x} {y} {z}\n" for x, y, z in ring) + f"f {' '.join(map(str, range(1, n + 1)))}\n"
    )
    everything(tmp_path)
    assert calls(lambda: everything(tmp_path / "fan.off")) < 2000 + 5 * n  # its lines are read by three calls each
    assert calls(lambda: everything(tmp_path / "fan.obj")) < 2000 + 10 * n


def test_an_obj_of_very_many_materials(tmp_path):
    n = 1000
    lines = [f"v {i} {i % 7} {i % 3}" for i in range(n + 2)]
    lines += [line for i in range(n) for line in (f"usemtl m{i}", f"f {i + 1} {i + 2} {i + 3}")]
    (tmp_path / "x.obj").write_text("\n".join(lines))
    everything(tmp_path / "x.obj")
    assert calls(lambda: everything(tmp_path / "x.obj")) < 2000 + 15 * len(lines)


def test_a_table_of_very_many_columns(tmp_path):
    """Names are looked up, not compared with all others."""
    pa = pytest.importorskip("pyarrow")
    compared = 0

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    n = 2000
    fields = [SimpleNamespace(name=Name(f"c{i}"), type=pa.float64()) for i in range(n)]

    class Schema(list):
        names = property(lambda self: [field.name for field in self])

    path = tmp_path / "x.csv"
    path.write_text("")
    read_long(Table(File(path, "x.csv", ".csv"), Schema(fields), lambda names, count: iter(())), Options(), "c0")
    assert compared < 50 * n


def test_groups_that_are_part_of_each_other(tmp_path):
    """2^18 ways lead through 18 groups."""
    pytest.importorskip("anndata")
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5ad", "w") as store:
        store["X"] = np.zeros((1, 1))
        group = store.create_group("obs")
        for _ in range(18):
            deeper = group.create_group("a")
            group["b"] = deeper
            group = deeper
    with raises("x.h5ad: its groups are part of each other"):
        read(tmp_path / "x.h5ad", by="a")


def test_a_heap_that_hdf5_would_walk_for_ever(good, tmp_path):
    folder, options = good
    if "c.h5ad" not in options:
        pytest.skip("needs anndata")
    data = bytearray((folder / "c.h5ad").read_bytes())
    place = data.index(b"GCOL") + 16
    while number := int.from_bytes(data[place : place + 2], "little"):  # the last block, number 0, is free
        assert number < 1000
        place += 16 + (int.from_bytes(data[place + 8 : place + 16], "little") + 7) // 8 * 8
    data[place + 8 : place + 16] = bytes(8)
    (tmp_path / "x.h5ad").write_bytes(data)
    with raises("x.h5ad: a heap of its strings is damaged"):
        read(tmp_path / "x.h5ad", by="patient")


def test_a_scene_nested_very_deep(tmp_path):
    trimesh = pytest.importorskip("trimesh")
    scene = trimesh.Scene()
    for i in range(100):
        box = trimesh.creation.box()
        scene.add_geometry(box, node_name=f"n{i}", parent_node_name=f"n{i - 1}" if i else None)
    (tmp_path / "x.glb").write_bytes(scene.export(file_type="glb"))
    with raises("x.glb: the nodes of its scene are nested more than 64 deep"):
        everything(tmp_path / "x.glb")


# ---- memory


def test_a_picture_in_a_bomb(tmp_path):
    """36 million pixels in 35 kB: their points would take 288 MB, and more on the way."""
    idx(tmp_path / "x-idx3-ubyte.gz", np.ones((1, 6000, 6000), np.uint8))
    with raises("x-idx3-ubyte.gz: an image claims 274.7 MB, more than 100 times the", "max_expansion") as caught:
        everything(tmp_path / "x-idx3-ubyte.gz")
    assert caught.value.argument == "max_expansion"


def bombs(folder):
    """Write small files of much that is all the same."""
    np.savez_compressed(folder / "x.npz", points=np.zeros((1 << 20, 2)))
    idx(folder / "x-idx3-ubyte.gz", np.ones((500, 100, 100), np.uint8))
    options = {"x.npz": {}, "x-idx3-ubyte.gz": {}}
    try:
        import pyarrow as pa
        import pyarrow.parquet

        zeros = pa.array(np.zeros(1 << 21, np.float32))
        vectors = pa.FixedSizeListArray.from_arrays(zeros, 2)
        lists = pa.LargeListArray.from_arrays([0, 1 << 20], vectors)
        pyarrow.parquet.write_table(pa.table({"p": lists}), folder / "x.parquet", compression="zstd")
        ids = pa.array(["a"] * (1 << 21)).dictionary_encode()
        pyarrow.parquet.write_table(pa.table({"id": ids, "x": zeros}), folder / "long.parquet", compression="zstd")
        options |= {"x.parquet": {}, "long.parquet": {"by": "id"}}
    except ImportError:
        pass
    try:
        import anndata
        import h5py
        import pandas as pd

        obs = pd.DataFrame({"patient": ["a", "b"]}, index=["u", "v"])
        anndata.AnnData(np.zeros((2, 2), np.float32), obs=obs).write_h5ad(folder / "x.h5ad")
        with h5py.File(folder / "x.h5ad", "a") as store:
            del store["X"]
            store.create_dataset("X", (2, 1 << 20), "f4", chunks=(1, 1024))
        options["x.h5ad"] = {"by": "patient"}
    except ImportError:
        pass
    return options


def test_bombs_are_refused_unless_they_are_trusted(tmp_path, small_allowance):
    for name, given in bombs(tmp_path).items():
        with raises(name, "more than 100 times the", "max_expansion"):
            everything(tmp_path / name, **given)
        assert len(everything(tmp_path / name, max_expansion=100_000, **given).sets.points)
    assert len(everything(tmp_path / "x.npz", max_expansion=math.inf).sets)
    for wrong in (0, -1, "2", True, None, math.nan):
        with raises("max_expansion=", "above 0"):
            read(tmp_path / "x.npz", max_expansion=wrong)


def test_lists_that_take_no_bytes(tmp_path):
    pa = pytest.importorskip("pyarrow")
    inner = pa.list_(pa.float32(), 0)
    nothing = pa.Array.from_buffers(inner, 1 << 30, [None], children=[pa.array([], pa.float32())])
    outer = pa.Array.from_buffers(pa.list_(inner, 1 << 20), 1 << 10, [None], children=[nothing])
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), pa.schema([("p", outer.type)])) as sink:
        sink.write_batch(pa.record_batch([outer], names=["p"]))
    with raises("x.arrow: column 'p' claims"):
        everything(tmp_path / "x.arrow")


def test_an_arrow_file_with_names_that_are_no_text(tmp_path):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"name_of_it": ["a"], "points": [[[1.0, 2.0]]]})
    with pa.ipc.new_stream(str(tmp_path / "x.arrow"), table.schema) as sink:
        sink.write_table(table)
    data = (tmp_path / "x.arrow").read_bytes()
    for word in (b"name_of_it", b"points"):
        (tmp_path / "x.arrow").write_bytes(data.replace(word, b"\xff\xfe" + word[2:]))
        with raises("x.arrow: not a readable Arrow table", "codec can't decode"):
            everything(tmp_path / "x.arrow")
