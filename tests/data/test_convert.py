"""Sets from Arrow, pandas, polars and torch, against plain Python."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import normal_arrays
from comparing import raises, same, utm
from slosh.data.sets import Sets, as_sets
from slosh.errors import PrecisionWarning

shared = np.shares_memory


# ---- Arrow


@pytest.fixture
def pa():
    return pytest.importorskip("pyarrow")


ARROW = normal_arrays(2, 1, 3, 1, 2, dim=3)


def arrow_types(pa):
    for number in (pa.float32(), pa.float64()):
        for vector in (pa.list_(number, 3), pa.list_(number), pa.large_list(number)):
            yield pa.list_(vector)
            yield pa.large_list(vector)


def test_arrow_types_slices_and_chunks(pa):
    rows = [x.tolist() for x in ARROW]
    for kind in arrow_types(pa):
        column = pa.array(rows, kind)
        same(Sets.from_arrow(column), ARROW)
        same(as_sets(column), ARROW)
        for a, b in ((1, 4), (2, 5), (0, 2), (4, 5)):
            same(Sets.from_arrow(column[a:b]), ARROW[a:b])
            same(Sets.from_arrow(column[a:][: b - a]), ARROW[a:b])
        same(Sets.from_arrow(pa.chunked_array([column[1:3], column[:0], column[3:]])), ARROW[1:])
        same(Sets.from_arrow(pa.chunked_array([column])), ARROW)


def test_arrow_fixed_sizes_and_values_that_are_slices(pa):
    x = np.arange(48, dtype=np.float32).reshape(4, 4, 3)
    column = pa.array(x.tolist(), pa.list_(pa.list_(pa.float32(), 3), 4))
    same(Sets.from_arrow(column), x)
    same(Sets.from_arrow(column[1:3]), x[1:3])
    assert shared(Sets.from_arrow(column[1:3]).points, column.values.values.to_numpy())
    vectors = column.values[2:]  # a child with an offset of its own
    same(Sets.from_arrow(pa.ListArray.from_arrays([0, 3, 5], vectors)), [x.reshape(-1, 3)[2:5], x.reshape(-1, 3)[5:7]])
    same(Sets.from_arrow(pa.ListArray.from_arrays([0, 3, 5], vectors)[1:]), [x.reshape(-1, 3)[5:7]])


def test_arrow_is_not_copied(pa, sets):
    column = sets.to_arrow()
    assert column.type == pa.large_list(pa.list_(pa.float32(), 2))
    column.validate(full=True)
    assert column.to_pylist() == [x.tolist() for x in sets]
    assert shared(column.values.values.to_numpy(), sets.points)
    for part, arrays in ((column, list(sets)), (column[1:3], [sets[1], sets[2]])):
        back = Sets.from_arrow(part)
        same(back, arrays)
        assert shared(back.points, sets.points)
    same(Sets.from_arrow(sets[1:3].to_arrow()), [sets[1], sets[2]])
    assert shared(sets[1:3].to_arrow().values.values.to_numpy(), sets.points)
    same(Sets.from_arrow(sets[:0].to_arrow()), [])


def test_arrow_weights(pa):
    column = pa.array([x.tolist() for x in ARROW], pa.list_(pa.list_(pa.float32(), 3)))
    weights = [np.arange(1, len(x) + 1) for x in ARROW]
    for kind in (pa.list_(pa.float32()), pa.large_list(pa.int16())):
        given = pa.array([w.tolist() for w in weights], kind)
        same(Sets.from_arrow(column, given), ARROW, weights)
        same(Sets.from_arrow(column[2:], given[2:]), ARROW[2:], weights[2:])
        same(Sets.from_arrow(column, pa.chunked_array([given[:2], given[2:]])), ARROW, weights)
    same(Sets.from_arrow(column, weights), ARROW, weights)
    with raises("set 2 has 2 weights, 3 elements"):
        Sets.from_arrow(column, pa.array([[1, 1], [1], [1, 1], [1], [1, 1]]))
    with raises("set 1, element 0 has a weight that is null"):
        Sets.from_arrow(column, pa.array([[1, 1], [None], [1, 1, 1], [1], [1, 1]]))
    with raises("set 1 has weights that are null"):
        Sets.from_arrow(column, pa.array([[1, 1], None, [1, 1, 1], [1], [1, 1]]))


def test_arrow_nulls_are_named(pa):
    good, fixed = [[1.0, 2.0]], pa.list_(pa.list_(pa.float32(), 2))
    for kind in (fixed, pa.list_(pa.list_(pa.float32()))):
        for rows, where in (
            ([good, good, None], "set 2 is null"),
            ([good, good, [[1, 2], None]], "set 2, element 1 is null"),
            ([good, good, [[1, 2], [3, None]]], "set 2, element 1, feature 1 is null"),
        ):
            column = pa.array(rows, kind)
            with raises(where, "drop it"):
                Sets.from_arrow(column)
            with raises(where.replace("2", "1", 1), "drop it"):
                Sets.from_arrow(column[1:])
            with raises(where):
                Sets.from_arrow(pa.chunked_array([column[:1], column[1:]]))
            same(Sets.from_arrow(column[:2]), [good, good])


def test_arrow_refuses(pa):
    with raises("set 1, element 1 has 3 numbers, the others have 2"):
        Sets.from_arrow(pa.array([[[1.0, 2.0]], [[1.0, 2.0], [1.0, 2.0, 3.0]]]))
    with raises("set 1, element 0 has 3 numbers, the others have 2"):
        Sets.from_arrow(pa.chunked_array([[[[1.0, 2.0]]], [[[1.0, 2.0, 3.0]]]]))
    with raises("set 1 is empty"):
        Sets.from_arrow(pa.array([[[1.0, 2.0]], []]))
    with raises("set 0 is empty"):
        Sets.from_arrow(pa.array([[]], pa.list_(pa.list_(pa.float32()))))
    with raises("set 0, element 0 has 0 features"):
        Sets.from_arrow(pa.array([[[]]], pa.list_(pa.list_(pa.float32()))))
    with raises("set 1, element 0, feature 1 is nan"):
        Sets.from_arrow(pa.array([[[1.0, 2.0]], [[1.0, np.nan]]]))
    for column in (pa.array([[1.0, 2.0]]), pa.array([1.0]), pa.array([[["a"]]]), pa.array(["a"])):
        with raises(str(column.type), "list<fixed_size_list<float>[d]>"):
            as_sets(column)
    with raises("pass the one"):
        as_sets(pa.table({"x": [1]}))
    with raises("a list is not an Arrow column"):
        Sets.from_arrow([[[1.0]]])
    empty = pa.array([], pa.list_(pa.list_(pa.float32())))
    with raises("pass dim"):
        Sets.from_arrow(empty)
    assert as_sets(empty, dim=4).dim == 4
    assert as_sets(pa.chunked_array([], pa.list_(pa.list_(pa.float32(), 3)))).dim == 3
    with raises("set 0 has 3 features, expected 2"):
        as_sets(pa.array([x.tolist() for x in ARROW]), dim=2)


def test_without_pyarrow(sets, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with raises('pip install "slosh[tables]"', error=ImportError):
        sets.to_arrow()
    with raises('pip install "slosh[tables]"', error=ImportError):
        Sets.from_arrow(None)


def test_arrow_origin(pa):
    column = pa.array([utm(100).tolist()])
    with pytest.warns(PrecisionWarning):
        Sets.from_arrow(column)
    sets = Sets.from_arrow(column, origin="auto")
    assert np.abs(sets.points + sets.origin - utm(100)).max() < 2e-5


# ---- tables


def grouped(rows, keys):
    """Plain Python: {key: rows}, in the order of first appearance."""
    result = {}
    for key, row in zip(keys, rows, strict=True):
        result.setdefault(key, []).append(row)
    return result


@pytest.mark.parametrize("library", ["pandas", "polars"])
@given(
    st.lists(
        st.tuples(st.sampled_from("cabd"), st.integers(-2, 2), st.floats(-9, 9, width=32), st.integers(-9, 9)),
        min_size=1,
    )
)
@settings(deadline=None, max_examples=40)
def test_groups_are_those_of_plain_python(library, table):
    frame_type = pytest.importorskip(library).DataFrame
    s, i, x, y = (list(column) for column in zip(*table, strict=True))
    frame = frame_type({"s": s, "x": np.array(x, np.float32), "i": i, "y": y})
    points = list(zip(x, y, strict=True))
    for by, keys in (("s", s), ("i", i), (["s", "i"], list(zip(s, i, strict=True))), (["i"], [(k,) for k in i])):
        expected = grouped(points, keys)
        sets, found = Sets.from_groups(frame, by, columns=["x", "y"])
        assert found == list(expected)
        same(sets, list(expected.values()))
        if library == "pandas":
            objects = [frame.groupby(by), frame.groupby(by, sort=False)[["x", "y"]]]
        else:
            objects = [frame.group_by(by), frame.group_by(by, maintain_order=True)]
        for gb in objects:
            sets, found = Sets.from_groups(gb, columns=["x", "y"])
            assert found == list(expected)
            same(sets, list(expected.values()))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_groups_columns_and_weights(library):
    frame_type = pytest.importorskip(library).DataFrame
    data = {
        "k": [3, 1, 3],
        "w": [1.0, 2.0, 0.0],
        "x": [1, 2, 3],
        "name": ["a", "b", "c"],
        "y": [4.0, 5, 6],
        "ok": [True] * 3,
    }
    frame = frame_type(data)
    expected = [[[1, 4], [3, 6]], [[2, 5]]]
    sets, keys = Sets.from_groups(frame, "k", weights="w")
    assert keys == [3, 1]
    assert all(type(key) is int for key in keys)
    same(sets, expected, [[1, 0], [2]])
    same(Sets.from_groups(frame, by="k", columns=["y", "ok"])[0], [[[4, 1], [6, 1]], [[5, 1]]])
    gb = frame.groupby("k") if library == "pandas" else frame.group_by("k")
    same(Sets.from_groups(gb, weights="w")[0], expected, [[1, 0], [2]])
    sets, keys = Sets.from_groups(frame[:0], "k", weights="w")
    assert (len(sets), sets.dim, keys) == (0, 2, [])


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_groups_refuse(library):
    frame_type = pytest.importorskip(library).DataFrame
    frame = frame_type({"k": ["a", "b", None], "f": [1.0, None, 2.0], "x": [1.0, 2.0, 3.0], "j": [1, 1, 2]})
    with raises("row 2 of column 'k' is null", "drop the row"):
        Sets.from_groups(frame, "k", ["x"])
    with raises("row 1 of column 'f' is null", "drop the row"):
        Sets.from_groups(frame, "f", ["x"])
    with raises("row 1 of column 'f' is null", "drop the row"):
        Sets.from_groups(frame, "j")
    with raises("row 1 of column 'f' is null", "drop the row"):
        Sets.from_groups(frame, "j", ["x"], weights="f")
    with raises("row 1 of column 'y' is null or NaN"):
        Sets.from_groups(frame_type({"j": [1, 1], "y": [1.0, np.nan]}), "j")
    with raises("no column is named 'z'", "'k', 'f', 'x', 'j'"):
        Sets.from_groups(frame, "z")
    with raises("no column is named 'z'"):
        Sets.from_groups(frame, "j", ["x", "z"])
    with raises("no column is named 'z'"):
        Sets.from_groups(frame, "j", ["x"], weights="z")
    with raises("column 'k'", "not numbers"):
        Sets.from_groups(frame[:2], "j", ["k"])
    with raises("no numeric columns are left"):
        Sets.from_groups(frame[:2][["k", "j"]], "j")
    with raises("list of column names"):
        Sets.from_groups(frame, "j", "x")
    with raises("by is missing"):
        Sets.from_groups(frame)
    with raises("not a column name"):
        Sets.from_groups(frame, frame["j"], ["x"])
    with raises("set 1, element 0, feature 0 is inf"):
        Sets.from_groups(frame_type({"j": [1, 2], "y": [1.0, np.inf]}), "j")
    with raises("set 0 has weights that are all zero"):
        Sets.from_groups(frame_type({"j": [1, 2], "y": [1.0, 2], "w": [0, 1]}), "j", weights="w")
    gb = frame.groupby("j") if library == "pandas" else frame.group_by("j")
    with raises("grouped already"):
        Sets.from_groups(gb, "j")
    with raises("Sets.from_groups(frame, by=...)"):
        as_sets(frame)
    with raises("Sets.from_groups"):
        as_sets(gb)


def test_groups_take_only_tables():
    with raises("pandas or polars DataFrame, not a dict"):
        Sets.from_groups({"k": [1]}, "k")


def test_pandas_groups_by_other_things():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {"k": [5, 4, 5], "x": [1.0, 2, 3], "y": [0.5, 1, 2]}, index=pd.Index(["r", "s", "t"], name="row")
    )
    frame["c"] = pd.Categorical(["b", "a", "b"], categories=["z", "a", "b"])
    expected = [[[1, 0.5], [3, 2]], [[2, 1]]]
    for by, keys in ((frame["k"], [5, 4]), (np.array([1, 0, 1]), [1, 0]), (lambda label: label == "s", [False, True])):
        sets, found = Sets.from_groups(frame.groupby(by), columns=["x", "y"])
        assert found == keys
        same(sets, expected)
    sets, found = Sets.from_groups(frame.groupby(level="row"), columns=["x", "y"])
    assert found == ["r", "s", "t"]
    for observed in (True, False):
        for gb in (frame.groupby("c", observed=observed), frame.groupby(frame["c"], observed=observed)):
            sets, found = Sets.from_groups(gb, columns=["x", "y"])
            assert found == ["b", "a"]
            same(sets, expected)
    same(Sets.from_groups(frame.groupby("k")[["x", "y"]])[0], expected)
    same(Sets.from_groups(frame.groupby(frame["k"])[["x", "y"]])[0], expected)
    with raises("row 1 of the group key is null"):
        Sets.from_groups(frame.groupby([1.0, np.nan, 1.0]), columns=["x"])
    nullable = frame.astype({"x": "Float64", "k": "Int64"})
    nullable["z"] = pd.array([1, 2, 3], "Int32")
    same(Sets.from_groups(nullable, "k", ["x", "z"])[0], [[[1, 1], [3, 3]], [[2, 2]]])
    nullable.loc["s", "z"] = pd.NA
    with raises("row 1 of column 'z' is null"):
        Sets.from_groups(nullable, "k", ["x", "z"])
    with raises("more than one column is named 'x'"):
        Sets.from_groups(pd.concat([frame, frame[["x"]]], axis=1), "k", ["x"])
    timed = frame.assign(t=pd.to_timedelta([1, 2, 3]), q=[1j, 2j, 3j])
    with raises("column 't'", "not numbers"):
        Sets.from_groups(timed, "k", ["x", "t"])
    with raises("column 'q' must be real numbers, not complex"):
        Sets.from_groups(timed, "k")


def test_polars_groups_by_other_things():
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"k": [5, 4, 5], "x": [1.0, 2, 3], "y": [0.5, 1, 2]})
    expected = [[[1, 0.5], [3, 2]], [[2, 1]]]
    for gb, keys in (
        (frame.group_by(pl.col("k") * 10), [50, 40]),
        (frame.group_by(["k"]), [(5,), (4,)]),
        (frame.group_by(big=pl.col("k") > 4), [True, False]),
        (frame.group_by("k", big=pl.col("k") > 4), [(5, True), (4, False)]),
    ):
        sets, found = Sets.from_groups(gb, columns=["x", "y"])
        assert found == keys
        same(sets, expected)
    same(Sets.from_groups(frame.group_by("k"))[0], expected)
    decimal = frame.with_columns(pl.col("y").cast(pl.Decimal(10, 2)))
    same(Sets.from_groups(decimal, "k")[0], expected)
    with raises("row 0 of column 'x' is null or NaN"):
        Sets.from_groups(pl.DataFrame({"x": [float("nan")], "y": [1.0]}), "x")
    with raises("LazyFrame", "collect()"):
        Sets.from_groups(frame.lazy(), "k")


def test_many_shuffled_groups():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    keys = rng.permutation(np.repeat(np.arange(70_000), 2))  # more groups than 16 bits hold
    frame = pd.DataFrame({"k": keys, "x": np.arange(140_000, dtype=np.float32)})
    sets, found = Sets.from_groups(frame, "k")
    assert found == list(dict.fromkeys(keys.tolist()))
    assert (keys[sets.points[:, 0].astype(int)].reshape(-1, 2) == np.array(found)[:, None]).all()
    assert (np.diff(sets.points.reshape(-1, 2)) > 0).all()


def test_groups_origin():
    pd = pytest.importorskip("pandas")
    x = utm()
    frame = pd.DataFrame({"k": np.arange(500) // 100, "e": x[:, 0], "n": x[:, 1]})
    with pytest.warns(PrecisionWarning, match="feature 1"):
        Sets.from_groups(frame, "k")
    sets, _ = Sets.from_groups(frame, "k", origin="auto")
    assert np.abs(sets.points + sets.origin - x).max() < 2e-5


def test_series_of_arrays(sets):
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    pa = pytest.importorskip("pyarrow")
    weights = [sets.weights_of(i) for i in range(4)]
    same(as_sets(pd.Series(list(sets), index=list("abcd"))), list(sets), weights)
    lists = [x.tolist() for x in sets]
    same(as_sets(pd.Series(lists)), list(sets))
    same(as_sets(pd.Series(sets.to_arrow(), dtype=pd.ArrowDtype(sets.to_arrow().type))), list(sets))
    same(as_sets(pl.Series(lists)), list(sets))
    same(as_sets(pl.Series(lists, dtype=pl.List(pl.Array(pl.Float32, 2)))), list(sets))
    same(Sets.from_arrow(pa.array(lists), pl.Series([[1.0] * len(x) for x in lists])), list(sets), [np.ones(10)])
    with raises("set 1 is None"):
        as_sets(pd.Series([lists[0], None]))


# ---- torch


def test_torch_nested_and_padded():
    torch = pytest.importorskip("torch")
    arrays = normal_arrays(3, 1, 2, dim=4)
    tensors = [torch.tensor(x) for x in arrays]
    weights = [np.arange(1, len(x) + 1) for x in arrays]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that nested tensors are new
        for layout in (torch.strided, torch.jagged):
            for grad in (False, True):
                nested = torch.nested.nested_tensor(tensors, layout=layout, requires_grad=grad)
                same(Sets.from_torch(nested), arrays)
                same(as_sets(nested), arrays)
                same(Sets.from_torch(nested, weights), arrays, weights)
            for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int32):
                ones = torch.nested.nested_tensor([torch.ones(n, 4, dtype=dtype) for n in (3, 1, 2)], layout=layout)
                same(as_sets(ones), [np.ones((n, 4)) for n in (3, 1, 2)])
        jagged = torch.nested.nested_tensor(tensors, layout=torch.jagged)
        assert shared(Sets.from_torch(jagged).points, jagged.values().numpy())
        gaps = torch.nested.narrow(
            torch.arange(24.0).reshape(2, 4, 3), 1, torch.tensor([1, 0]), torch.tensor([2, 3]), torch.jagged
        )
        dense = np.arange(24.0).reshape(2, 4, 3)
        same(as_sets(gaps), [dense[0, 1:3], dense[1, :3]])
        with raises("set 1 must not be a nested tensor", "unbind"):
            as_sets([tensors[0], jagged])
        with raises("set 1, element 0, feature 2 is nan"):
            bad = [t.clone() for t in tensors]
            bad[1][0, 2] = float("nan")
            as_sets(torch.nested.nested_tensor(bad, layout=torch.jagged))


def test_torch_dense():
    torch = pytest.importorskip("torch")
    padded = torch.arange(24.0).reshape(2, 4, 3).requires_grad_()
    same(as_sets(padded), padded.detach().numpy())
    assert shared(as_sets(padded).points, padded.detach().numpy())
    same(Sets.from_torch(padded, [[1, 2, 3, 4], [5, 6, 7, 8]]), padded.detach().numpy(), [np.arange(1, 9)])
    same(
        Sets.from_padded(padded, lengths=torch.tensor([1, 2])),
        [padded.detach().numpy()[0, :1], padded.detach().numpy()[1, :2]],
    )
    same(as_sets([padded[0], padded[1].double()]), padded.detach().numpy())
    same(as_sets([padded[0].bfloat16()]), [padded.detach().numpy()[0]])
    assert shared(Sets(padded[0], [0, 4]).points, padded.detach().numpy())
    with raises("a 2-D array is one set"):
        as_sets(padded[0])
    with raises("set 0 is 1-D"):
        as_sets([padded[0, 0]])
    with raises("complex"):
        as_sets(torch.zeros(1, 2, 3, dtype=torch.complex64))
    with raises("0 features"):
        as_sets(torch.zeros(1, 2, 0))
    with raises("set 0 must be a tensor that can become an array", "dense"):
        as_sets([torch.eye(3).to_sparse()])
    with raises("takes a tensor, not a list", "from_list"):
        Sets.from_torch([padded[0]])
