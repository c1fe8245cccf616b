"""Bad input: each is answered with a sentence and a place, and the server goes on. No answer is a 500."""

from __future__ import annotations

import gzip
import io
import json
import mmap
import random
import re
import socket
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import slosh
from builders import PATIENCE, cloud_list
from server_process import Server, ask, raw
from slosh.wire import ARROW, BINARY, NPY, pack, pack_sets

SEARCH = "/v1/indexes/shapes/search"
POINTS = cloud_list(1, seed=3)[0].round(3).tolist()


@pytest.mark.parametrize(
    ("body", "words", "argument"),
    [
        (b"", "the body is empty", "body"),
        (b"{", "JSON", "body"),
        (b"[]", "the body is a list: give an object", "the body"),
        (b'{"queries": [[NaN, 1]]}', "NaN and Infinity are not numbers of JSON", "body"),
        (b'{"queries": [[1, 2], [-Infinity, 1]]}', "NaN and Infinity are not numbers of JSON", "body"),
        (b'{"queries": [[1, 2], [1e400, 1]]}', "queries[1][0] is too large: give a number of at most", "queries"),
        (b'{"id": "s1", "recall": 1e400}', "recall is too large: give a number of at most", "recall"),
        (b'{"queries": [[1e300, 1]]}', "set 0", "queries"),
        (b'{"queries": [[1, "x"]]}', "queries[0][1] is a text: give a number", "queries"),
        (b'{"queries": [[[1, 2]], [[1, null]]]}', "queries[1][0][1] is null: give a number", "queries"),
        (b'{"queries": [[1, 2, 3]]}', "3", "queries"),
        (b'{"queries": [[1, 2], [3]]}', "row", "queries"),
        (b'{"queries": []}', "", "queries"),
        (b'{"queries": [[]]}', "", "queries"),
        (b'{"queries": [[[1, 2]], []]}', "set 1", "queries"),
        (b'{"queries": "x"}', "queries is a text: give a list of points, each a list of numbers", "queries"),
        (b'{"queries": [7]}', "queries[0] is a whole number: give a list of points", "queries"),
        (b'{"queries": [[1, 2]], "id": "s1"}', "not both", "queries"),
        (b"{}", "not both", "queries"),
        (b'{"id": "s1", "k": 0}', "k is out of range: give a whole number, at least 1", "k"),
        (b'{"id": "s1", "k": 1e9}', "", "k"),
        (b'{"id": "s1", "k": 1000000}', "at most", "k"),
        (b'{"id": "s1", "k": "3"}', "k is a text: give a whole number", "k"),
        (b'{"id": "s1", "recall": 2}', "recall is out of range: give a number, at most 1", "recall"),
        (b'{"id": "s1", "rerank": "hausdorf"}', "rerank='hausdorf': give one of 'sliced', ", "rerank"),
        (b'{"id": "s1", "where": {"x": {"!!": 1}}}', "where", "where"),
        (b'{"id": "s1", "where": "kind = = x"}', "\n", "where"),
        (b'{"id": "s1", "match": "part"}', "parts", "match"),
        (b'{"id": "s1", "colour": 1}', "the body has no field 'colour': it has queries, weights, id", "colour"),
        (b'{"queries": [[1, 2]], "weights": [1, 2]}', "weights", "queries"),
        (b'{"queries": [[1, 2]], "weights": [-1]}', "", "weights"),
        (b'{"queries": [[1, 2]], "weights": ["x"]}', "weights[0] is a text: give a number", "weights"),
        (b'{"queries": [[1, 2]], "weights": 1}', "weights is a whole number: give one list of numbers", "weights"),
        (b'{"queries": [[1, 2]], "weights": [[1]]}', "weights do not fit the queries", "weights"),
        (b'{"id": ["s1", null]}', "id[1] is null: give a whole number or a text", "id"),
        (b'{"id": "s1", "k": 1.5}', "k is a decimal number: give a whole number", "k"),
        (b'{"id": "s1", "k": ' + b"9" * 5000 + b"}", "k has too many digits: give a smaller number, or a text", "k"),
        (b"\xff\xfe", "", "body"),
        (b"[" * 100_000, "nested", "body"),
        (b'{"where":' * 5000 + b"1" + b"}" * 5000, "nested", "body"),
        (b'{"id": "s1", "where": ' + b'{"not":' * 110 + b'{"x":1}' + b"}" * 111, "nested", "where"),
    ],
    ids=lambda value: f"{value!r:.40}",
)
def test_what_is_wrong_is_said(server, body, words, argument):
    status, headers, problem = ask(server, "POST", SEARCH, body)
    assert status == 400, problem
    assert headers["Content-Type"] == "application/problem+json"
    assert words in problem["detail"]
    assert (problem["status"], problem["class"], problem["type"]) == (
        400,
        problem["title"],
        f"urn:slosh:{problem['title']}",
    )
    assert problem["fields"].get("argument") == argument
    assert "Traceback" not in json.dumps(problem)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/indexes", {"name": "a b", "dim": 2}, "name has another form: give 1 to 100 letters, digits, and . _ -"),
        ("/v1/indexes", {"name": "x"}, "dim is missing: give it in the body"),
        ("/v1/indexes/shapes/points", {"ids": ["x"] * 1001}, "ids is too long: give a list of at most 1000 elements"),
        ("/v1/indexes/shapes/points", {"ids": [], "components": 4}, "components=4: give one of 2, 3"),
        ("/v1/indexes/shapes/get", {"ids": [True]}, "ids[0] is true or false: give a whole number or a text"),
        ("/v1/indexes/shapes/jobs", {"kind": "dance"}, "kind='dance': give one of 'compact', 'tune',"),
        ("/v1/indexes/shapes/jobs?wait=x", {"kind": "verify"}, "wait='x': give a number"),
        ("/v1/indexes/shapes/parse?format=npy", b"", "filename is missing: give it in the query string"),
    ],
    ids=str,
)
def test_it_is_said_in_words_for_people(server, path, body, words):
    headers = {"Content_Type": "application/octet-stream"} if isinstance(body, bytes) else {}
    status, _, problem = ask(server, "POST", path, body, **headers)
    assert status == 400
    assert words in problem["detail"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/server"),
        ("GET", "/v1/indexes"),
        ("GET", "/v1/jobs"),
        ("GET", "/v1/indexes/shapes"),
        ("GET", "/v1/indexes/shapes/map"),
        ("GET", "/v1/indexes/shapes/specification"),
        ("POST", "/v1/indexes/shapes/get"),
        ("POST", "/v1/indexes/shapes/explain"),
        ("DELETE", "/v1/indexes/none"),
    ],
)
@pytest.mark.parametrize("query", ["foo=1", "foo", "where=n%3D1"])
def test_a_query_string_is_refused_where_none_is_read(server, method, path, query):
    status, _, problem = ask(server, method, f"{path}?{query}", {"ids": ["s1"]} if method == "POST" else None)
    name = query.partition("=")[0]
    assert (status, problem["detail"]) == (400, f"the query string has no field {name!r}: leave it out")


@pytest.mark.parametrize("name", ["id", "queries", "weights"])
@pytest.mark.parametrize("route", ["search", "range_search", "kneighbors"])
def test_the_sets_of_a_body_of_sets_are_not_in_the_query_string(server, route, name):
    body = io.BytesIO()
    np.save(body, np.float32(POINTS))
    path = f"/v1/indexes/shapes/{route}?{name}=s1"
    status, _, problem = ask(server, "POST", path, body.getvalue(), Content_Type=NPY)
    assert status == 400
    problem, _, known = problem["detail"].partition(": it has ")
    assert problem == f"the query string has no field {name!r}"
    assert "recall" in known.split(", ")
    assert not {"id", "queries", "weights"} & set(known.split(", "))


def test_an_error_is_as_the_documentation_says(server):
    """Both the request and the answer are those of docs/server.md, but for the name of the index."""
    text = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    pattern = r"### Answers that are errors.*?-d '(.*?)'.*?```http\n(.*?)```"
    request, answer = re.search(pattern, text, re.DOTALL).groups()
    first, kind, _, *lines = answer.splitlines()
    status, headers, problem = ask(server, "POST", SEARCH, request.encode())
    assert first == f"HTTP/1.1 {status} Bad Request"
    assert kind == f"content-type: {headers['Content-Type']}"
    assert json.loads("".join(lines)) == problem


def test_where_it_is_wrong_is_said(server):
    status, _, problem = ask(server, "POST", SEARCH, {"queries": [[[0, 1]], [[0, 1], [2, 1e39]]]})
    assert status == 400
    assert {"set": 1, "element": 1, "feature": 1}.items() <= problem["fields"].items()
    status, _, problem = ask(server, "POST", SEARCH, b'{"queries": [[[0, 1]], [[0, 1], [2, 1e400]]]}')
    assert status == 400
    assert {"set": 1, "element": 1, "feature": 1}.items() <= problem["fields"].items()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/indexes/none/search", {"id": "s1"}, 404),
        ("POST", SEARCH, {"id": "none"}, 404),
        ("GET", "/v1/none", None, 404),
        ("GET", SEARCH, None, 405),
        ("PUT", "/v1/indexes/shapes", None, 405),
        ("GET", "/v1/indexes/shapes/sets?limit=0", None, 400),
        ("GET", "/v1/indexes/shapes/sets?limit=x", None, 400),
        ("GET", "/v1/indexes/shapes/sets?limit=5&limit=6", None, 400),
        ("GET", "/v1/indexes/shapes/sets?colour=red", None, 400),
        ("GET", "/v1/indexes/shapes/sets?where=%ff", None, 400),
        ("GET", "/v1/indexes/shapes/sets?where=", None, 400),
        ("POST", "/v1/indexes", {"name": "x", "dim": 0}, 400),
        ("POST", "/v1/indexes", {"name": "x", "dim": 10**9}, 400),
        ("POST", "/v1/indexes", {"name": "x", "dim": 2, "embedding": {"class": "os"}}, 400),
        (
            "POST",
            "/v1/indexes",
            {"name": "x", "dim": 2, "embedding": {"class": "SlicedWasserstein", "parameters": {"n_slices": 10**9}}},
            400,
        ),
        (
            "POST",
            "/v1/indexes",
            {"name": "x", "dim": 2, "embedding": {"class": "SlicedWasserstein", "parameters": {"n_slices": "many"}}},
            400,
        ),
        ("POST", "/v1/indexes", {"name": "x", "dim": 2, "preprocess": {"center": 7}}, 400),
        ("POST", "/v1/indexes", {"name": "x", "dim": 2, "origin": [1.0]}, 400),
        ("POST", "/v1/indexes/shapes/get", {"ids": [True]}, 400),
        ("POST", "/v1/indexes/shapes/points", {"ids": ["s1"], "components": 4}, 400),
    ],
    ids=str,
)
def test_other_routes(server, method, path, body, status):
    found = ask(server, method, path, body)
    assert found[0] == status, found
    assert found[2]["detail"]


def test_types_of_bodies(server):
    for kind in ("text/plain", "", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert ask(server, "POST", SEARCH, b'{"id": "s1"}', Content_Type=kind)[0] == 415
    packed = gzip.compress(b'{"id": "s1"}' + b" " * 10_000_000)
    assert ask(server, "POST", SEARCH, packed, Content_Encoding="gzip")[0] == 415
    assert ask(server, "POST", SEARCH, b'{"id": "s1"}', Content_Type="application/json; charset=utf-8")[0] == 200


def npy(array):
    body = io.BytesIO()
    np.save(body, array, allow_pickle=True)
    return body.getvalue()


def test_arrays_that_are_no_sets(server):
    class Evil:
        def __reduce__(self):
            return (open, ("/tmp/slosh-was-here", "w"))

    bodies = [b"", b"\x93NUMPY", npy(np.array([Evil()], object)), npy(np.zeros(3)), npy(np.zeros((0, 2)))]
    bodies += [npy(np.array([["a", "b"]])), npy(np.full((3, 2), np.nan)), npy(np.zeros((2, 5)))]
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (100000000000, 2), }"
    bodies.append(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    for body in bodies:
        assert ask(server, "POST", SEARCH, body, Content_Type=NPY)[0] == 400, body[:60]
        assert ask(server, "POST", SEARCH, body, Content_Type=BINARY)[0] == 400
        assert ask(server, "POST", SEARCH, body, Content_Type=ARROW)[0] == 400


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        (NPY, b"", "the body is empty: send an array (N, d) or (n, N, d) of numbers"),
        (NPY, b"\x89PNG\r\n", "the body is not a .npy file, it looks like a PNG picture: send an array"),
        (NPY, b"PK\x03\x04", "it looks like a zip archive, such as .npz: send an array"),
        (NPY, b"[[1, 2]]", "it looks like text: send an array"),
        (
            NPY,
            npy(np.zeros((3, 2)))[:-1],
            "the header claims 48 bytes of numbers, the body has 47 bytes: send it whole",
        ),
        (NPY, npy(np.zeros((3, 2))) + b"x", "the header claims 48 bytes of numbers, the body has 49 bytes"),
        (NPY, npy(np.zeros((3, 2)))[:20], "the header is damaged: send an array"),
        (NPY, npy(np.array([{}], object)), "an array of objects, which is a pickle and could run code, is never read"),
        (NPY, npy(np.array([["a"]])), "an array of <U1 of the shape (1, 1): send an array"),
        (NPY, npy(np.zeros(3)), "an array of float64 of the shape (3,): send an array"),
        (ARROW, b"", "the body is empty: send a table in the stream format"),
        (ARROW, npy(np.zeros((3, 2))), "not an Arrow stream, it looks like a NumPy array: send a table in the stream"),
        (
            ARROW,
            b"ARROW1\0\0",
            "the body is not an Arrow stream, it looks like Arrow: send a table in the stream format",
        ),
        (ARROW, b"\xff\xff\xff\xff\x10\0\0\0", "the Arrow stream is cut short or damaged"),
    ],
    ids=lambda value: f"{value!r:.30}",
)
def test_what_a_body_is_and_what_is_wanted_is_said(server, kind, body, words):
    """In our words: those of NumPy advise to load it all the same."""
    if kind == ARROW:
        pytest.importorskip("pyarrow")
    status, _, problem = ask(server, "POST", SEARCH, body, Content_Type=kind)
    assert (status, problem["class"]) == (400, "InputError")
    assert words in problem["detail"]


def test_messages_that_lie(server):
    good = slosh.Sets.from_list([np.array(POINTS)])
    arrays = pack_sets("queries", good)
    for wrong in (
        {"queries.offsets": np.array([0, 10**9])},
        {"queries.offsets": np.array([5, 0])},
        {"queries.offsets": np.array([0.0, 1.0])},
        {"queries.points": np.full((len(POINTS), 2), np.inf, np.float32)},
        {"queries.points": np.zeros(len(POINTS), np.float32)},
        {"queries.weights": np.zeros(1, np.float32)},
    ):
        assert ask(server, "POST", SEARCH, pack({}, {**arrays, **wrong}), Content_Type=BINARY)[0] == 400, wrong
    for arguments in (
        {"k": []},
        {"k": "x"},
        {"k": None},
        {"recall": {}},
        {"where": 5},
        {"x": 1},
        {"ids": 5},
        {"match": 3},
        {"rerank": 5},
    ):
        assert ask(server, "POST", SEARCH, pack(arguments, arrays), Content_Type=BINARY)[0] == 400, arguments


def test_bombs_in_files(server):
    """Archives that unpack to far more than they are."""
    kind = "application/octet-stream"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (40000000, 2), }".ljust(117) + b"\n"
        data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
        archive.writestr("a.npy", data + bytes(300_000_000))
    body = content.getvalue()
    assert len(body) < 1_000_000
    status, _, problem = ask(server, "POST", "/v1/indexes/shapes/parse?filename=x.npz", body, Content_Type=kind)
    assert status == 400
    assert "claims" in problem["detail"]
    packed = gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">III", 1000000, 280, 280) + bytes(1_000_000), 9)
    path = "/v1/indexes/shapes/parse?filename=x-images-idx3-ubyte.gz"
    assert ask(server, "POST", path, packed, Content_Type=kind)[0] == 400


def peak_memory(process, begin=False):
    """Return the most memory that a process has had, or begin to count anew."""
    if begin:
        Path(f"/proc/{process.pid}/clear_refs").write_text("5")
    status = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])


def arrow_stream(pa, columns, compression=None):
    target, table = io.BytesIO(), pa.table(columns)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(target, table.schema, options=options) as writer:
        writer.write_table(table)
    return target.getvalue()


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of the memory is read from /proc")
def test_bombs_in_parquet(server):
    """Two million rows that have a text of 1000 letters in common: 2 GB in 240 kB."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    n, target = 1_000_000, io.BytesIO()
    ids = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), pa.array(["k" * 1000]))
    rows = pa.table({"id": ids, **{name: np.zeros(n) for name in "xyz"}})
    with parquet.ParquetWriter(target, rows.schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(rows)
        writer.write_table(rows)
    assert target.tell() < 1 << 20
    before = peak_memory(server.process, begin=True)
    path = "/v1/indexes/shapes/parse?filename=a.parquet&id_column=id&columns=x,y"
    status, _, problem = ask(server, "POST", path, target.getvalue(), Content_Type="application/octet-stream")
    assert (status, problem["class"], problem["fields"]["set"]) == (400, "ReaderError", 0)
    words = "a.parquet: set 0 has more than 1,000,000 points: send at most 1,000,000 in a set"
    assert (problem["detail"], problem["fields"]["argument"]) == (words, "body")
    assert peak_memory(server.process) - before < 400 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of the memory is read from /proc")
@pytest.mark.parametrize("route", [SEARCH, "/v1/indexes/shapes/map/place", "/v1/indexes/shapes/sets"])
def test_bodies_of_many_numbers_in_json(server, route):
    """Python takes 36 times as much for them: they are refused before it makes lists."""
    name = "sets" if route.endswith("sets") else "queries"
    body = f'{{"{name}": [{",".join(["[0,0]"] * 5_500_000)}]}}'.encode()
    before = peak_memory(server.process, begin=True)
    status, _, problem = ask(server, "POST", route, body)
    assert (status, problem["class"], problem["fields"]["argument"]) == (413, "InputError", "body")
    assert problem["problem"] == "the body has more than 10,000,000 numbers and lists in JSON"
    assert "send .npy, Arrow or the binary type" in problem["remedy"]
    assert peak_memory(server.process) - before < 5 * len(body)
    assert ask(server, "POST", SEARCH, {"id": "s1"})[0] == 200


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of the memory is read from /proc")
def test_bombs_in_arrow(server):
    """A set of 300 MB in a few kilobytes: neither a body nor a file of it is unpacked."""
    pa, n = pytest.importorskip("pyarrow"), 300 << 20
    flat = pa.Array.from_buffers(pa.float32(), n // 4, [None, pa.py_buffer(mmap.mmap(-1, n))])
    points = pa.ListArray.from_arrays([0, n // 8], pa.FixedSizeListArray.from_arrays(flat, 2))
    bodies = [arrow_stream(pa, {"points": points}, compression) for compression in ("zstd", "lz4")]
    before = peak_memory(server.process, begin=True)
    for body in bodies:
        assert len(body) < 2 << 20
        for path in (SEARCH, "/v1/indexes/shapes/sets"):
            status, _, problem = ask(server, "POST", path, body, Content_Type=ARROW)
            assert (status, "are compressed: write it uncompressed" in problem["detail"]) == (400, True)
        path, kind = "/v1/indexes/shapes/parse?filename=x.arrow", "application/octet-stream"
        status, _, problem = ask(server, "POST", path, body, Content_Type=kind)
        assert (status, "x.arrow: the table claims 300.0 MB" in problem["detail"]) == (400, True)
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int16()), pa.array(["x" * (1 << 20)]))
    for name in ("id", "metadata"):
        body = arrow_stream(pa, {"points": pa.array([[[0.0, 1.0]]] * 1000), name: texts})
        status, _, problem = ask(server, "POST", "/v1/indexes/shapes/sets", body, Content_Type=ARROW)
        assert (status, "larger than the body: write it as strings" in problem["detail"]) == (400, True)
    assert peak_memory(server.process) - before < 50 << 20


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"id": ["a", None]}, "row 1 of the column id is null: give a text, or a whole number in each row"),
        ({"id": [None, None]}, "row 0 of the column id is null: give a text"),
        ({"id": [b"a", b"b"]}, "row 0 of the column id is of the type binary: give a text"),
        ({"id": [[1], [2]]}, "row 0 of the column id is of the type list<"),
        ({"id": [True, False]}, "row 0 of the column id is of the type bool"),
        ({"id": [0.5, 1.5]}, "row 0 of the column id is of the type double"),
        ({"id": ["a", ""]}, "id 1 is ''"),
        ({"metadata": [{"x": 1}, {"x": 2}]}, "row 0 of the column metadata is of the type struct<"),
        ({"metadata": ["{}", "7"]}, "metadata '7' is not a JSON object"),
        ({"ids": ["a", "b"]}, "the table has a column 'ids': those of sets are points, weights, id, metadata"),
    ],
    ids=str,
)
def test_columns_of_arrow_that_are_wrong(server, columns, words):
    pa = pytest.importorskip("pyarrow")
    body = arrow_stream(pa, {"points": pa.array([[[0.0, 1.0]]] * 2), **columns})
    status, _, problem = ask(server, "POST", "/v1/indexes/shapes/sets", body, Content_Type=ARROW)
    assert (status, problem["class"]) == (400, "InputError")
    assert words in problem["detail"]


def test_columns_of_arrow_that_come_twice(server):
    pa = pytest.importorskip("pyarrow")
    points, target = pa.array([[[0.0, 1.0]]]), io.BytesIO()
    table = pa.Table.from_arrays([points, points], names=["points", "points"])
    with pa.ipc.new_stream(target, table.schema) as writer:
        writer.write_table(table)
    status, _, problem = ask(server, "POST", SEARCH, target.getvalue(), Content_Type=ARROW)
    assert (status, "the table has two columns 'points'" in problem["detail"]) == (400, True)


def test_ids_and_metadata_of_arrow(server):
    """Texts of every kind that Arrow has, and whole numbers, as in JSON."""
    pa = pytest.importorskip("pyarrow")
    ask(server, "POST", "/v1/indexes", {"name": "arrow", "dim": 2})
    root, points = "/v1/indexes/arrow", pa.array([[[0.0, 1.0]]] * 2)
    texts = [pa.array(["a", "b"], kind) for kind in (pa.string(), pa.large_string(), pa.string_view())]
    for ids in (*texts, texts[0].dictionary_encode(), pa.array([7, 8])):
        body = arrow_stream(pa, {"points": points, "id": ids, "metadata": pa.array(['{"x": 1}', None])})
        found = ask(server, "POST", f"{root}/sets", body, Content_Type=ARROW)
        assert (found[0], found[2]["ids"]) == (201, [str(each) for each in ids.to_pylist()])
        stored = ask(server, "POST", f"{root}/get", found[2])[2]["sets"]
        assert [each["metadata"] for each in stored] == [{"x": 1}, {}]
        ask(server, "POST", f"{root}/remove", found[2])


def test_bodies_that_are_too_large_or_too_slow(filled, tmp_path):
    with slosh.open(filled / "shapes.slosh", read_only=True) as index:
        index.copy_to(tmp_path / "shapes.slosh")
    with Server(tmp_path / "shapes.slosh", options=("--max-body", 1, "--body-seconds", 0.5)) as small:
        assert ask(small, "POST", SEARCH, {"id": "s1"})[0] == 200
        head = f"POST {SEARCH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        answer = raw(small, f"{head}Content-Length: 2000000\r\n\r\n{{".encode())
        assert answer.startswith(b"HTTP/1.1 413")
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        with socket.create_connection(("127.0.0.1", small.port), timeout=PATIENCE) as connection:
            connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            try:
                for _ in range(40):
                    connection.sendall(chunk)
                answer = connection.recv(65536)
            except ConnectionError:
                answer = b"HTTP/1.1 413"  # it was closed while we were sending
        assert answer.startswith(b"HTTP/1.1 413")
        assert raw(small, f"{head}Content-Length: 20\r\n\r\n{{".encode()).startswith(b"HTTP/1.1 408")
        assert ask(small, "POST", SEARCH, {"id": "s1"})[0] == 200


def test_more_requests_than_are_taken(filled, tmp_path):
    """Those that are shed are told when to try again, and the client does."""
    with slosh.open(filled / "shapes.slosh", read_only=True) as index:
        index.copy_to(tmp_path / "shapes.slosh")
    options = ("--max-requests", 2, "--body-seconds", 60)
    with Server(tmp_path / "shapes.slosh", options=options) as small:
        head = (
            f"POST {SEARCH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n"
        )
        held = [socket.create_connection(("127.0.0.1", small.port)) for _ in range(2)]
        try:
            for connection in held:
                connection.sendall(head.encode())
            for _ in range(PATIENCE * 100):  # until both were seen
                status, headers, problem = ask(small, "POST", SEARCH, {"id": "s1"})
                if status != 200:
                    break
            assert status == 503
            assert int(headers["Retry-After"]) >= 1
            assert problem["class"] == "ServerBusy"
            assert ask(small, "GET", "/health")[0] == 200
        finally:
            for connection in held:
                connection.close()
        with slosh.open(small.url) as index:
            assert index.search(id="s1", k=3).ids


SEEDS = [
    ("POST", SEARCH, {"queries": POINTS, "k": 3, "where": {"kind": "chair", "n": {">": 3}}, "recall": 0.9}),
    ("POST", SEARCH, {"id": ["s1", "s2"], "rerank": "chamfer", "depth": 7, "certify": False, "offset": 1}),
    ("POST", "/v1/indexes/shapes/range_search", {"queries": [POINTS, POINTS], "radius": [0.5, 1.0]}),
    ("POST", "/v1/indexes/shapes/kneighbors", {"queries": [POINTS], "k": 4}),
    ("POST", "/v1/indexes/shapes/explain", {"query": POINTS, "id": "s3", "match": "whole", "components": 2}),
    ("POST", "/v1/indexes/shapes/select", {"where": "n > 3 and kind = sofa", "limit": 3, "offset": 1}),
    ("POST", "/v1/indexes/shapes/get", {"ids": ["s1", "s2"]}),
    ("POST", "/v1/indexes/shapes/points", {"ids": ["s1"], "limit": 10, "components": 3}),
    ("POST", "/v1/indexes/shapes/project", {"sets": [POINTS]}),
    ("GET", "/v1/indexes/shapes/sets?limit=3&offset=2&where=n%20%3E%205", None),
    ("GET", "/v1/indexes/shapes/fields?values=3", None),
    ("GET", "/v1/indexes/shapes/map/tile?level=1&x=0&y=1&field=kind", None),
    (
        "POST",
        "/v1/indexes/fuzzed/sets",
        {"sets": [POINTS], "ids": ["a"], "metadata": [{"x": [1, "y"]}], "update": True},
    ),
    ("PATCH", "/v1/indexes/fuzzed/sets", {"ids": ["a"], "metadata": [{"y": None}], "merge": True}),
    ("POST", "/v1/indexes/fuzzed/remove", {"where": {"x": 1}}),
    ("POST", "/v1/indexes/shapes/jobs", {"kind": "duplicates", "arguments": {"radius": 0.1, "where": None}}),
    ("POST", "/v1/indexes/shapes/jobs", {"kind": "neighbor_graph", "arguments": {"k": 3, "mode": "distance"}}),
    ("POST", "/v1/indexes/shapes/map/place", {"queries": POINTS, "ids": ["s1"]}),
]
VALUES = [
    None,
    True,
    -1,
    0,
    2**63,
    1e308,
    -0.0,
    "",
    "x" * 300,
    "\ud800",
    "\0",
    [],
    {},
    [[]],
    [[[]]],
    {"or": []},
    "s1",
    0.5,
]


def mutated_value(value, rng):
    """Return a value with one change somewhere within it."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        if rng.random() < 0.15:
            return {**value, rng.choice(["", "x", key + "y", "@id"]): rng.choice(VALUES)}
        return {**value, key: mutated_value(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at, changed = rng.randrange(len(value)), list(value)
        changed[at] = mutated_value(value[at], rng)
        return changed if rng.random() < 0.8 else changed[:at] * rng.choice([0, 1, 3])
    return rng.choice(VALUES)


def mutated(rng):
    """Return a request that is valid but for a change or two, in its values or in its bytes."""
    method, path, body = rng.choice(SEEDS)
    if body is not None:
        for _ in range(rng.choice([1, 1, 2])):
            body = mutated_value(body, rng)
        sent = bytearray(json.dumps(body).encode())
        if rng.random() < 0.3 and sent:
            for _ in range(rng.choice([1, 3])):
                sent[rng.randrange(len(sent))] = rng.choice(b'{}[]",:0-9eE.\\\xff\x00 nt')
    else:
        sent = None
        at = rng.randrange(path.find("?"), len(path))
        path = (
            path[:at] + rng.choice(["%00", "%ff", "&&", "=", "-1", "99999999999999999999", "%20", "#", "ä"]) + path[at:]
        )
        path = path.encode("ascii", "replace").decode().replace(" ", "%20")
    kind = rng.choice(["application/json"] * 9 + [NPY, BINARY, ARROW])
    return method, path, None if sent is None else bytes(sent), kind


def test_random_mutations_of_valid_requests(server, campaign):
    """None of them is answered with a 500, and the server goes on."""
    ask(server, "POST", "/v1/indexes", {"name": "fuzzed", "dim": 2})
    rng = random.Random(7)
    statuses = {}
    for _ in range(10_000 if campaign == "all" else 300):
        method, path, body, kind = mutated(rng)
        status, _, answer = ask(server, method, path, body, Content_Type=kind)
        assert status < 500 or status == 503, (method, path, body, answer)
        statuses[status] = statuses.get(status, 0) + 1
    assert statuses[400] > 20
    assert statuses.get(200, 0) + statuses.get(201, 0) + statuses.get(202, 0) > 10
    assert ask(server, "POST", SEARCH, {"id": "s1"})[0] == 200
