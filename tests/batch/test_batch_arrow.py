"""`slosh.batch.embed`: the vectors of `transform`, whatever the layout of the columns, and errors that name the row."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slosh
from batch_data import pa, table_of
from builders import clouds, small_embedding, split
from slosh.embed import Whitened
from slosh.errors import InputError

FITTED = small_embedding().fit(clouds(5, dim=3))


def vectors(batch, column="vector"):
    return np.array(batch.column(column).to_pylist(), np.float32)


def layouts(sets):
    """The same points in every layout that is taken."""
    plain = [x.tolist() for x in split(sets)]
    fixed = pa.list_(pa.float32(), sets.dim)
    return {
        "large lists of fixed lists": sets.to_arrow(),
        "lists of fixed lists": pa.array(plain, pa.list_(fixed)),
        "lists of lists": pa.array(plain, pa.list_(pa.list_(pa.float32()))),
        "lists of lists of doubles": pa.array(plain, pa.list_(pa.list_(pa.float64()))),
        "chunks": pa.chunked_array([sets[:3].to_arrow(), sets[3:].to_arrow()]),
    }


@given(st.integers(1, 3), st.integers(1, 20), st.booleans(), st.integers(0, 3))
def test_vectors_are_those_of_transform(dim, n, weighted, seed):
    sets = clouds(n, dim, seed, weighted)
    embedding = small_embedding().fit(sets)
    table = table_of(sets, [str(i) for i in range(n)], rank=list(range(n)))
    made = slosh.batch.embed(table, embedding, weights="weights" if weighted else None)
    assert made.column_names == ["id", "rank", "vector"]
    assert made.column("rank").to_pylist() == list(range(n))
    assert vectors(made).tobytes() == embedding.transform(sets).tobytes()


@pytest.mark.parametrize("layout", layouts(clouds(8, dim=3)))
def test_every_layout_gives_the_same(layout):
    sets = clouds(8, dim=3)
    table = pa.table({"id": [str(i) for i in range(8)], "cloud": layouts(sets)[layout]})
    found = slosh.batch.embed(table, FITTED, columns="cloud")
    assert vectors(found).tobytes() == FITTED.transform(sets).tobytes()


def test_a_slice_of_a_record_batch_is_embedded_where_it_lies():
    sets = clouds(10, dim=3)
    batch = table_of(sets, [str(i) for i in range(10)]).to_batches()[0].slice(3, 4)
    found = slosh.batch.embed(batch, FITTED)
    assert isinstance(found, pa.RecordBatch)
    assert found.column("id").to_pylist() == ["3", "4", "5", "6"]
    assert vectors(found).tobytes() == FITTED.transform(sets[3:7]).tobytes()


def test_points_of_32_bits_are_not_copied():
    sets = clouds(10, dim=3)
    batch = table_of(sets, [str(i) for i in range(10)]).to_batches()[0]
    seen = slosh.batch.arrow.sets_of(batch, slosh.batch.arrow.find_columns(batch.schema, None, None), 3, None)
    assert np.shares_memory(seen.points, sets.points)


def test_specifications_of_every_kind():
    sets = clouds(40, dim=3)
    table = table_of(sets, [str(i) for i in range(40)])
    index = slosh.SetIndex.create(None, 3, preprocess=slosh.Preprocess(center=True), embedding=small_embedding())
    expected = index.embedding.transform(index.preprocess.apply(sets))
    for spec in (index, index.spec, pickle.loads(pickle.dumps(index.spec))):
        assert vectors(slosh.batch.embed(table, spec)).tobytes() == expected.tobytes()
    whitened = Whitened(small_embedding(), n_components=4).fit(sets)
    found = slosh.batch.embed(table, pickle.loads(pickle.dumps(whitened)), n_jobs=2)
    assert vectors(found).tobytes() == whitened.transform(sets).tobytes()
    assert whitened.n_jobs == -1  # the user's own is left alone


def test_an_origin_is_subtracted_before_numbers_are_rounded():
    points = np.random.default_rng(0).normal(size=(30, 2)) + 1e7
    table = pa.table({"points": [points[:10].tolist(), points[10:].tolist()]})
    index = slosh.SetIndex.create(None, 2, origin=[1e7, 1e7], embedding=small_embedding())
    expected = index.embedding.transform(slosh.Sets(points, [0, 10, 30], origin=[1e7, 1e7]))
    assert vectors(slosh.batch.embed(table, index.spec)).tobytes() == expected.tobytes()


def test_an_empty_batch_keeps_its_columns():
    table = table_of(clouds(3, dim=3), ["a", "b", "c"])
    found = slosh.batch.embed(table.slice(0, 0), FITTED)
    assert len(found) == 0
    assert found.schema == slosh.batch.embed(table, FITTED).schema


def test_lists_of_any_size_for_spark():
    sets = clouds(3, dim=3)
    found = slosh.batch.embed(table_of(sets, ["a", "b", "c"]), FITTED, fixed_size=False)
    assert found.schema.field("vector").type == pa.list_(pa.float32())
    assert vectors(found).tobytes() == FITTED.transform(sets).tobytes()


def test_arrow_tensors():
    array = np.random.default_rng(0).normal(size=(4, 6, 3)).astype(np.float32)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(array)
    found = slosh.batch.embed(pa.table({"points": column}), FITTED)
    assert vectors(found).tobytes() == FITTED.transform(array).tobytes()


@pytest.mark.parametrize(
    ("points", "row", "words"),
    [
        ([[[0.0, 1, 2]], [[0.0, 1, 2], [3, float("nan"), 4]]], 1, "row 1 (id 'b'), element 1, feature 1 is nan"),
        ([[[0.0, 1, 2]], []], 1, "row 1 (id 'b') is empty"),
        ([[[0.0, 1, 2]], None], 1, "row 1 (id 'b') is null"),
        ([[[0.0, 1]], [[2.0, 3]]], 0, "row 0 (id 'a') has 2 features"),
        ([[[0.0, 1, 2]], [[0.0, 1, 2], [3.0]]], 1, "row 1 (id 'b'), element 1 has 1 numbers"),
    ],
)
def test_bad_rows_are_named(points, row, words):
    table = pa.table({"id": ["a", "b"], "points": pa.array(points, pa.list_(pa.list_(pa.float32())))})
    with pytest.raises(InputError) as caught:
        slosh.batch.embed(table, FITTED)
    assert words in str(caught.value)
    assert (caught.value.set, caught.value.id) == (row, "ab"[row])
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("table", "options", "argument", "words"),
    [
        ({"id": ["a"]}, {}, "columns", "no column holds sets"),
        ({"x": [[[0.0, 1, 2]]], "y": [[[0.0, 1, 2]]]}, {}, "columns", "several columns"),
        ({"x": [[[0.0, 1, 2]]]}, {"columns": "points"}, "columns", "no column 'points'"),
        ({"x": [[[0.0, 1, 2]]], "y": [1]}, {"columns": "y"}, "columns", "holds no sets"),
        ({"x": [[[0.0, 1, 2]]]}, {"weights": "w"}, "weights", "no column 'w'"),
        ({"x": [[[0.0, 1, 2]]], "w": [1.0]}, {"weights": "w"}, "weights", "holds no weights"),
        ({"x": [[[0.0, 1, 2]]], "vector": [1]}, {}, "vectors", "already"),
    ],
)
def test_bad_columns_are_refused(table, options, argument, words):
    with pytest.raises(InputError, match=words) as caught:
        slosh.batch.embed(pa.table(table), FITTED, **options)
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("batch", "spec", "argument"),
    [
        ({"points": []}, FITTED, "batch"),
        (pa.table({"points": [[[0.0]]]}), small_embedding(), "spec"),
        (pa.table({"points": [[[0.0]]]}), "shapes.slosh", "spec"),
        (pa.table({"points": [[[0.0]]]}), None, "spec"),
    ],
)
def test_other_things_are_refused(batch, spec, argument):
    with pytest.raises(InputError) as caught:
        slosh.batch.embed(batch, spec)
    assert caught.value.argument == argument
    assert caught.value.remedy


def test_weights_that_do_not_fit_are_named():
    table = pa.table({"id": ["a", "b"], "points": [[[0.0, 1, 2]], [[3.0, 4, 5]]], "w": [[1.0], [1.0, 2.0]]})
    with pytest.raises(InputError, match=r"row 1 \(id 'b'\)"):
        slosh.batch.embed(table, FITTED, weights="w")
