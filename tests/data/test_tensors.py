"""The file format for arrays: what was written comes back, and nothing else is ever read."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from slosh.data import tensors
from slosh.errors import DamagedError, FormatError

KIND = "slosh test"
DTYPES = [bool, np.uint8, np.uint16, np.int16, np.int32, np.int64, np.uint64, np.float32, np.float64]
REFUSED = (FormatError, DamagedError)


def example():
    rng = np.random.default_rng(0)
    header = {"name": "x", "numbers": [1, 2.5, None], "nested": {"a": "ü"}}
    return header, {"a": rng.normal(size=(20, 3)), "b": np.arange(7, dtype=np.int32), "none": np.empty((0, 4))}


def same(a, b):
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and a[name].shape == b[name].shape and a[name].tobytes() == b[name].tobytes()
        for name in a
    )


@given(
    st.dictionaries(
        st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8),
        st.sampled_from(DTYPES).flatmap(
            lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0))
        ),
        max_size=5,
    )
)
def test_what_was_packed_comes_back(arrays):
    header, back = tensors.unpack(tensors.pack(KIND, {"n": len(arrays)}, arrays), KIND, "x")
    assert header == {"n": len(arrays)}
    assert same(arrays, back)


def test_a_file_and_bytes_are_the_same(tmp_path):
    header, arrays = example()
    arrays["b"] = arrays["b"][::2]  # not contiguous
    tensors.write(tmp_path / "x", KIND, header, arrays)
    packed = tensors.pack(KIND, header, arrays)
    contents = (tensors.read(tmp_path / "x", KIND), tensors.unpack((tmp_path / "x").read_bytes(), KIND, "x"))
    for found, back in (*contents, tensors.unpack(packed, KIND, "x")):
        assert found == header
        assert same(arrays, back)
    assert len((tmp_path / "x").read_bytes()) == len(packed)
    assert os.listdir(tmp_path) == ["x"]
    numbers, _ = tensors.unpack(tensors.pack(KIND, {"a": np.int64(3), "b": np.float32(0.5)}, {}), KIND, "x")
    assert numbers == {"a": 3, "b": 0.5}
    with pytest.raises(TypeError, match="cannot be saved"):
        tensors.pack(KIND, {"a": object()}, {})
    with pytest.raises(ValueError, match="too large"):
        tensors.pack(KIND, {"a": "x" * (1 << 25)}, {})


def both(content, path, kind=KIND):
    """Whatever `read` and `unpack` raise for this content; they must agree."""
    path.write_bytes(content)
    caught = []
    for call in (lambda: tensors.unpack(content, kind, str(path)), lambda: tensors.read(path, kind)):
        with pytest.raises(REFUSED) as error:
            call()
        assert error.value.location == str(path)
        assert str(path) in str(error.value)
        assert error.value.remedy
        caught.append(error.value)
    assert type(caught[0]) is type(caught[1])
    return caught[0]


def test_damage_is_refused(tmp_path):
    good = tensors.pack(KIND, *example())
    rng = np.random.default_rng(1)
    for length in (0, 1, 7, 8, 9, 50, len(good) // 2, len(good) - 1):
        both(good[:length], tmp_path / "x")
    both(good + b"\0", tmp_path / "x")
    for at in [*range(16), *rng.integers(16, len(good), 400).tolist()]:
        both(good[:at] + bytes([good[at] ^ (1 << int(rng.integers(8)))]) + good[at + 1 :], tmp_path / "x")


def changed(change):
    """The example with its outer header changed, and its length right."""
    good = tensors.pack(KIND, *example())
    n = int.from_bytes(good[:8], "little")
    header = json.loads(good[8 : 8 + n])
    header = change(header) or header
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + good[8 + n :]


def metadata(**changes):
    return lambda header: header["__metadata__"].update(changes)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (metadata(kind="other"), FormatError, "is not a file of the kind"),
        (metadata(version="3"), FormatError, "has the format version 3; this slosh reads version 2"),
        (metadata(version="1" * 5000), FormatError, "has the format version"),
        (metadata(header="[]"), DamagedError, "checksum"),
        (metadata(header="[" * 100_000), DamagedError, "damaged"),
        (metadata(crc32="0"), DamagedError, "checksum"),
        (lambda header: header["__metadata__"].pop("crc32") and None, DamagedError, "damaged"),
        (lambda header: header.pop("__metadata__") and None, FormatError, "is not a file of the kind"),
        (lambda header: header["a"].update(shape=[1 << 40, 1 << 40]), DamagedError, "damaged"),
        (lambda header: header["a"].update(data_offsets=[0, 1 << 60]), DamagedError, "damaged"),
        (lambda header: header["a"].update(dtype="F8_E4M3"), DamagedError, "damaged"),
        (lambda header: header["a"].update(dtype="I64"), DamagedError, "checksum"),
        (lambda header: header["b"].update(shape=[1, 7]), DamagedError, "checksum"),
        (lambda header: header.update(c=header.pop("a")), DamagedError, "checksum"),
        (lambda header: b'{"__metadata__":' + b'{"a":' * 50_000, DamagedError, "damaged"),
        (lambda header: b"{" + b"[" * 100_000, DamagedError, "damaged"),
        (lambda header: b"{\xff\xfe}", DamagedError, "damaged"),
    ],
)
def test_hostile_headers_are_refused(change, kind, message, tmp_path):
    error = both(changed(change), tmp_path / "x")
    assert type(error) is kind
    assert message in str(error)


def test_huge_claims_take_no_memory(tmp_path):
    good = tensors.pack(KIND, *example())
    for length in (1 << 24, 1 << 40, (1 << 63) + 5, (1 << 64) - 1):
        error = both(length.to_bytes(8, "little") + good[8:], tmp_path / "x")
        assert "claims a header" in str(error)
    code = (
        "import resource, sys; from slosh.data import tensors; from slosh.errors import SloshError\n"
        "resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n"
        "try: tensors.read(sys.argv[1], 'slosh test')\n"
        "except SloshError as error: print(type(error).__name__)"
    )
    assert resource.RLIMIT_AS
    for change in (
        lambda header: header["a"].update(shape=[1 << 35], data_offsets=[0, 1 << 38]),
        lambda header: b"{" + b",".join(b'"%d":[]' % i for i in range(1_000_000)),
    ):
        (tmp_path / "x").write_bytes(changed(change))
        done = subprocess.run([sys.executable, "-c", code, tmp_path / "x"], capture_output=True, text=True, check=False)
        assert done.stdout.strip() in ("DamagedError", "FormatError"), done.stderr


def test_files_of_version_1_are_refused_with_a_sentence(tmp_path):
    error = both(b"PK\x03\x04" + bytes(100), tmp_path / "x")
    assert (error.found, error.supported) == (1, 2)
    assert "was written by slosh 0.1, in format version 1" in str(error)
    assert "build it again" in error.remedy


def test_what_is_no_plain_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        tensors.read(tmp_path / "none", KIND)
    with pytest.raises(IsADirectoryError, match="is a folder"):
        tensors.read(tmp_path, KIND)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="is not a plain file"):  # and does not wait for somebody to write into it
        tensors.read(tmp_path / "pipe", KIND)
    with pytest.raises(FormatError, match="is not a plain file"):
        tensors.read("/dev/zero", KIND)


def test_what_is_written_is_flushed_and_readable(tmp_path, monkeypatch):
    """The file that ends up at the path is the one that was flushed, with the permissions that files have here."""
    flushed, fsync = {}, os.fsync

    def count(handle):
        about = os.fstat(handle)
        flushed[about.st_ino] = about.st_size
        fsync(handle)

    monkeypatch.setattr(os, "fsync", count)
    tensors.write(tmp_path / "a", "kind", {}, {"x": np.arange(1000)})
    about = (tmp_path / "a").stat()
    assert flushed.get(about.st_ino) == about.st_size > 8000
    (tmp_path / "plain").touch()
    assert about.st_mode == (tmp_path / "plain").stat().st_mode


def test_mapped_arrays_are_those_that_were_written(tmp_path):
    header, arrays = example()
    arrays |= {f"x{i}": np.arange(3).astype(dtype) for i, dtype in enumerate(DTYPES)}
    tensors.write(tmp_path / "x", KIND, header, arrays)
    before = (tmp_path / "x").read_bytes()
    found, back = tensors.read_mapped(tmp_path / "x", KIND)
    assert found == header
    assert same(arrays, dict(back))
    back["a"][:] = 7  # in memory only
    assert (tmp_path / "x").read_bytes() == before
    tensors.write(tmp_path / "none", KIND, header, {})
    assert dict(tensors.read_mapped(tmp_path / "none", KIND)[1]) == {}


def test_a_damaged_array_is_never_given_out(tmp_path):
    header, arrays = example()
    tensors.write(tmp_path / "x", KIND, header, arrays)
    whole = (tmp_path / "x").read_bytes()
    for place in range(0, len(whole), 7):
        content = bytearray(whole)
        content[place] ^= 0x11
        (tmp_path / "x").write_bytes(content)
        try:
            _, back = tensors.read_mapped(tmp_path / "x", KIND)
        except REFUSED:
            continue
        for name in list(back):
            with pytest.raises((DamagedError, KeyError)):
                back[name]
        assert back.damaged


def test_a_file_that_is_cut_short_is_not_mapped(tmp_path):
    header, arrays = example()
    tensors.write(tmp_path / "x", KIND, header, arrays)
    whole = (tmp_path / "x").read_bytes()
    for length in (0, 5, 8, 9, 40, len(whole) - 1):
        (tmp_path / "x").write_bytes(whole[:length])
        with pytest.raises(REFUSED):
            tensors.read_mapped(tmp_path / "x", KIND)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]},
        {"dtype": "F32", "shape": [-2, -1], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 8]},
        {"dtype": "object", "shape": [1], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": "ab", "data_offsets": [0, 8]},
        {"dtype": "F32", "data_offsets": [0, 8]},
        [1, 2],
    ],
)
def test_arrays_that_reach_out_of_the_file_are_not_mapped(tmp_path, entry):
    about = {"kind": KIND, "version": str(tensors.VERSION), "header": "{}", "crc32": "0"}
    text = json.dumps({"__metadata__": about, "a": entry}).encode()
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(DamagedError):
        tensors.read_mapped(tmp_path / "x", KIND)
