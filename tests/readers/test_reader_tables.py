"""Tables: list columns, and long form in any order of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reader_files import everything

from builders import normal_arrays
from comparing import raises, same
from slosh.errors import ReaderError
from slosh.readers import read
from slosh.readers.files import File, Options
from slosh.readers.tables import read_parquet

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
feather = pytest.importorskip("pyarrow.feather")

FIXED = pa.list_(pa.list_(pa.float32(), 3))


def write(table, path):
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=3)
    elif path.suffix == ".feather":
        feather.write_feather(table, str(path))
    elif path.suffix == ".arrow":
        with pa.ipc.new_stream(str(path), table.schema) as sink:
            sink.write_table(table, max_chunksize=2)
    else:
        import pyarrow.csv

        delimiter = "\t" if path.suffix == ".tsv" else ","
        pyarrow.csv.write_csv(table, path, pyarrow.csv.WriteOptions(delimiter=delimiter))


# ---- list columns


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".feather"])
@pytest.mark.parametrize("kind", [FIXED, pa.list_(pa.list_(pa.float64())), pa.large_list(pa.list_(pa.float32(), 3))])
def test_list_column(tmp_path, suffix, kind):
    arrays = normal_arrays(3, 1, 4, 2, 5, dim=3)
    weights = [np.arange(1, len(x) + 1) for x in arrays]
    table = pa.table(
        {
            "id": [10, 11, 12, 13, 14],
            "cloud": pa.array([x.tolist() for x in arrays], kind),
            "w": [w.tolist() for w in weights],
            "kind": ["a", "b", None, "a", "b"],
            "size": [1.5, 2.5, float("nan"), 4.5, 5.5],
            "good": [True, False, True, True, True],
        }
    )
    write(table, tmp_path / f"t{suffix}")
    batch = everything(tmp_path, weights="w")
    same(batch.sets, arrays, weights)
    assert batch.ids == ["10", "11", "12", "13", "14"]
    assert batch.metadata[0] == {"file": f"t{suffix}", "kind": "a", "size": 1.5, "good": True}
    assert batch.metadata[2] == {"file": f"t{suffix}", "good": True}
    assert everything(tmp_path, batch_points=3).ids == batch.ids
    with raises("no column 'v'", "cloud"):
        read(tmp_path, weights="v")
    with raises("lists too; 'size' is not"):
        everything(tmp_path, weights="size")


def test_list_column_ids(tmp_path):
    points = pa.array([x.tolist() for x in normal_arrays(2, 3, dim=3)], FIXED)
    path = tmp_path / "t.parquet"
    write(pa.table({"name": ["p", "q"], "x": points}), path)
    assert everything(path).ids == ["p", "q"]
    write(pa.table({"name": ["p", "p"], "x": points, "key": ["u", "v"]}), path)  # no ids: metadata
    batch = everything(path)
    assert batch.ids == ["t/0", "t/1"]
    assert batch.metadata[0] == {"file": "t.parquet", "name": "p", "key": "u"}
    assert everything(path, id_column="key").ids == ["u", "v"]
    with raises("the id 'p' occurs twice"):
        everything(path, id_column="name")
    with raises("no column 'nam'"):
        read(path, id_column="nam")
    write(pa.table({"x": points, "key": ["u", None]}), path)
    with raises("column 'key', row 1 is None"):
        everything(path, id_column="key")


def test_two_list_columns_need_a_choice(tmp_path):
    one, other = ([x.tolist() for x in normal_arrays(2, 3, seed=seed, dim=3)] for seed in (0, 1))
    write(pa.table({"x": pa.array(one, FIXED), "y": pa.array(other, FIXED)}), tmp_path / "t.parquet")
    with raises("several columns hold sets, ['x', 'y']", "columns="):
        read(tmp_path)
    same(everything(tmp_path, columns="y").sets, other)


def test_list_column_errors(tmp_path):
    path = tmp_path / "t.parquet"
    for rows, words in (
        ([[[1.0, 2.0, 3.0]], None], "column 'x', row 1 is null"),
        ([[[1.0, 2.0, 3.0]], [[1.0, 2.0]]], "column 'x', row 1, element 0 has 2 numbers"),
        ([[[1.0, None, 3.0]]], "row 0, element 0, feature 1 is null"),
        ([[]], "row 0 is empty"),
        ([[[1.0, 2.0, 3.0]], []], "set 't/1' is empty"),
        ([[[1.0, 2.0, float("nan")]]], "set 't/0', element 0, feature 2 is nan"),
    ):
        write(pa.table({"x": pa.array(rows, pa.list_(pa.list_(pa.float64())))}), path)
        with raises("t.parquet:", words, error=ReaderError) as caught:
            everything(path)
        place = caught.value
        assert place.location == str(path)
        assert (place.row, place.id) in ((len(rows) - 1, None), (None, f"t/{len(rows) - 1}"))
    assert (place.element, place.feature) == (0, 2)
    write(pa.table({"x": pa.array([[[1.0]]]), "w": [[1.0, 2.0]]}), path)
    with raises("row 0 has 2 weights, 1 elements"):
        everything(path, weights="w")
    write(pa.table({"a": [1.0], "b": ["x"]}), path)
    with raises("no column holds sets", "id_column=", "a: double, b: string"):
        read(path)


# ---- long form

SUFFIXES = [".parquet", ".arrow", ".feather", ".csv", ".tsv"]


@settings(max_examples=40)
@given(
    keys=st.lists(st.sampled_from(["a", "b", "c", "dd"]), min_size=1, max_size=40),
    suffix=st.sampled_from(SUFFIXES),
    grouped=st.booleans(),
    batch=st.integers(1, 50),
)
def test_long_form(tmp_path, keys, suffix, grouped, batch):
    """Rows of a set lie together or not; either way the sets are those of the ids, in the order of the rows."""
    keys = sorted(keys) if grouped else keys
    n = len(keys)
    table = {
        "key": keys,
        "x": np.arange(n) * 0.5,
        "count": np.arange(1, n + 1),
        "y": np.arange(n)[::-1],
        "kind": [key.upper() for key in keys],
        "row": [f"r{i}" for i in range(n)],
    }
    path = tmp_path / f"t{suffix}"
    write(pa.table(table), path)
    result = everything(path, id_column="key", columns=["y", "x"], weights="count", batch_points=batch)
    order = list(dict.fromkeys(keys))
    rows = [[i for i in range(n) if keys[i] == key] for key in order]
    same(result.sets, [[[n - 1 - i, i * 0.5] for i in r] for r in rows], [[i + 1 for i in r] for r in rows])
    assert result.ids == order
    assert [m["kind"] for m in result.metadata] == [key.upper() for key in order]
    assert [m.get("row") for m in result.metadata] == [f"r{r[0]}" if len(r) == 1 else None for r in rows]
    path.unlink()


def test_a_column_takes_the_place_of_what_is_said_of_the_file(tmp_path):
    (tmp_path / "north").mkdir()
    (tmp_path / "north" / "t.csv").write_text("id,x,folder\na,1,old\na,2,old\nb,3,\n")
    metadata = everything(tmp_path, id_column="id", source_as_folder=True).metadata
    assert metadata == [{"file": "t.csv", "folder": "old"}, {"file": "t.csv"}]


def test_long_form_over_several_record_batches(tmp_path, monkeypatch):
    """A set that goes on over many batches is put together."""
    from slosh.readers import long_form

    monkeypatch.setattr(long_form, "ROWS_AT_ONCE", 7)
    keys = np.repeat(["a", "b", "c", "d"], [30, 1, 2, 50])
    points = np.arange(len(keys))
    write(pa.table({"key": keys, "x": points}), tmp_path / "t.parquet")
    batch = everything(tmp_path, by="key")
    same(batch.sets, [points[keys == key, None] for key in "abcd"])
    assert len(list(read(tmp_path, by="key", batch_points=30))) > 1


def test_long_form_of_adjacent_rows_is_read_a_piece_at_a_time(tmp_path, monkeypatch):
    from slosh.readers import long_form

    monkeypatch.setattr(long_form, "ROWS_AT_ONCE", 10)
    path = tmp_path / "t.parquet"
    write(pa.table({"key": np.arange(1000) // 10, "x": np.arange(1000)}), path)
    first = next(read_parquet(File(path, path.name, ".parquet"), Options(by="key")))
    assert (first.ids, first.points.ravel().tolist()) == (["0"], list(range(10)))
    assert next(read(path, by="key", batch_points=20)).ids == ["0", "1"]


def test_long_form_columns(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,x,y,age,site\n1,0,1,60,here\n2,3,4,70,there\n1,1,2,60,here\n")
    batch = everything(path)
    same(batch.sets, [[[0, 1, 60], [1, 2, 60]], [[3, 4, 70]]])
    assert batch.ids == ["1", "2"]
    assert batch.metadata[0] == {"file": "t.csv", "site": "here"}
    batch = everything(path, columns=["x", "y"])
    assert batch.metadata[0] == {"file": "t.csv", "site": "here", "age": 60}
    assert everything(path, id_column="site", columns=["x"]).ids == ["here", "there"]


def test_csv_default_ids(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,y\n1,2\n3,4\n")
    with raises("t.csv: there is no column 'id', and the first column, 'x', is numeric", "give id_column="):
        read(path)
    same(everything(path, id_column="x").sets, [[[2]], [[4]]])
    path.write_text("shape,y\na,2\nNA,4\n")
    assert everything(path).ids == ["a", "NA"]


def test_csv_types_do_not_depend_on_the_first_rows(tmp_path):
    """Whole numbers first and others later, and ids that look like numbers for a megabyte."""
    path = tmp_path / "t.csv"
    rows = [f"{i // 100:06},{i}\n" for i in range(150_000)]
    path.write_text("id,x\n" + "".join(rows) + "last,0.5\nlast,1.5\n")
    batch = everything(path, batch_points=1 << 14)
    assert len(batch.ids) == 1501
    assert batch.ids[:2] == ["000000", "000001"]
    assert batch.ids[-1] == "last"
    assert batch.sets[-1].tolist() == [[0.5], [1.5]]
    path.write_text("id,x\n" + "".join(rows) + "last,oops\n")
    with raises("t.csv", "oops"):
        everything(path)


def test_csv_of_very_long_lines(tmp_path):
    """Longer than what pyarrow parses at a time, by itself."""
    pytest.importorskip("pyarrow")
    names = [f"{i:0>9000}" for i in range(150)]
    rows = [",".join(["a", *(f"{row + i / 8:0>9500}" for i in range(150))]) for row in range(3)]
    (tmp_path / "x.csv").write_text("\n".join([",".join(["id", *names]), *rows, ""]))
    (batch,) = read(tmp_path / "x.csv")
    np.testing.assert_array_equal(batch.sets[0], np.arange(3)[:, None] + np.arange(150) / 8)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("id,x\n1,2\n,3\n", {}, "row 1 of column 'id' is missing"),
        ("id,x\n1,2\n2,3\n1,4\n,5\n", {}, "row 3 of column 'id' is missing"),
        ("id,x\n1,2\n1,\n", {}, "row 1 of column 'x' is missing"),
        ("id,x\n1,2\n1,nan\n", {}, "set '1'"),
        ("id,x\n1,a\n", {}, "no numeric columns"),
        ("id,x\n1,a\n", {"columns": ["x"]}, "'a'"),
        ("id,x\n1,2\n", {"columns": ["z"]}, "no column 'z'"),
        ("id,x\n1,2\n", {"weights": "z"}, "no column 'z'"),
        ("id,x,x\n1,2,3\n", {}, "the same name"),
        ("id,x\n1,2,3\n", {}, "not a readable CSV table"),
        ("", {}, "not a readable CSV table (it looks like an empty file)"),
        ("\n\n", {}, "not a readable CSV table (it looks like an empty file)"),
        ("id;x\na;1\n", {}, "separated by a semicolon, not by a comma: save the table with commas"),
        ("\ufeff\nid;x;y\na;1,5;2,5\n", {"id_column": "id"}, "separated by a semicolon"),
        ("id\tx\na\t1\n", {}, 'separated by a tab, not by a comma: give format="tsv"'),
        ("id,x\na,1\n", {"format": "tsv"}, 'separated by a comma, not by a tab: give format="csv"'),
        ("id,x\n", {}, "is empty: below the line with the names of the columns there are no rows"),
        ("x,y\n", {"id_column": "x", "columns": ["y"]}, "is empty"),
        ("1,2,3\n4,5,6\n", {}, ("the first line looks like a row", "put a line such as id,x1,x2 above it")),
        ("a,-1,2.5\na,5,6\n", {}, ("the first line looks like a row", "give id_column= if these are the names")),
        ("1,1\n4,5\n", {"id_column": "id"}, "the first line looks like a row"),
        ("id,x\na,b\n", {}, ("no numeric columns are left", "['id', 'x']")),
    ],
)
def test_csv_errors(tmp_path, text, options, words):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with raises("t.csv", *([words] if isinstance(words, str) else words)):
        everything(path, **options)


def test_csv_with_numbers_as_names(tmp_path):
    """Counts and years may be names, and what id_column says always is."""
    path = tmp_path / "t.csv"
    for text, options in (
        ("id,0,1.5\na,5,6\n", {}),
        ("country,1990,1991\na,5,6\n", {}),
        ("place,0.5,1.5\na,5,6\n", {"id_column": "place"}),
        ("0,1,2\na,5,6\n", {"id_column": "0"}),
    ):
        path.write_text(text)
        batch = everything(path, **options)
        assert batch.ids == ["a"]
        assert batch.sets[0].tolist() == [[5, 6]]


def test_rows_that_do_not_fit_in_memory(tmp_path, monkeypatch):
    from slosh.readers import long_form

    write(pa.table({"key": ["a", "b", "a"], "x": [1.0, 2.0, 3.0]}), tmp_path / "t.parquet")
    monkeypatch.setattr(long_form, "free_memory", lambda: 10)
    with raises("do not lie together", "sort the file by 'key'"):
        everything(tmp_path, by="key")


@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".csv"])
@pytest.mark.parametrize("together", [True, False])
def test_texts_of_sets_that_span_batches(tmp_path, monkeypatch, suffix, together, at_once):
    """A text is metadata where a set has one, whatever the batches: also as a dictionary that has it twice."""
    from slosh.readers import long_form, tables

    for module in (long_form, tables):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", at_once)
    monkeypatch.setattr(tables, "BLOCK_BYTES", 40)
    ids, kinds = list("aaaabbbccd"), ["u", "u", "u", "u", "u", "v", "v", None, "w", "w"]
    doubled = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, 1, 2, 2, 1, 3, 3, None], pa.int8()), list("uuvw"))
    columns = {"id": ids, "kind": kinds, "x": np.arange(10.0), "two": doubled, "year": [7, 7, 7, 7, 8, 9, 9, 4, 4, 5]}
    rows = pa.table(columns)
    if suffix == ".csv":
        rows = rows.set_column(3, "two", doubled.dictionary_decode())
    order = np.arange(10) if together else np.array([4, 0, 7, 5, 1, 9, 2, 6, 8, 3])
    path = tmp_path / f"t{suffix}"
    write(rows.take(pa.array(order)), path)
    batch = everything(path, id_column="id", columns="x")
    expected = {
        "a": ([0.0, 1.0, 2.0, 3.0], {"kind": "u", "two": "u", "year": 7}),
        "b": ([4.0, 5.0, 6.0], {}),
        "c": ([7.0, 8.0], {"two": "w", "year": 4}),
        "d": ([9.0], {"kind": "w", "year": 5}),
    }
    assert batch.ids == (list("abcd") if together else list("bacd"))
    for one, name, metadata in zip(batch.sets, batch.ids, batch.metadata, strict=True):
        numbers, about = expected[name]
        assert np.ravel(one).tolist() == numbers
        assert metadata == {"file": path.name, **about}
