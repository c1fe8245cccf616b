"""Embeddings side by side: the measures against plain loops, the table, what is refused, and real digits."""

from __future__ import annotations

import importlib
import math
import sys
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits

from slosh import SetIndex, Sets
from slosh.data.checks import random_stream
from slosh.embed import (
    Covariance,
    DistanceField,
    GeM,
    LocalShape,
    MaxPool,
    MeanPool,
    SlicedWasserstein,
    WassersteinEmbedding,
    Whitened,
)
from slosh.embed.base import SetTransformer
from slosh.embed.distance_field import n_anchors_for
from slosh.learn import LearnedEmbedding
from slosh.neighbors.compare import COLUMNS, LEARNED, Comparison, Row, compare, methods_for
from slosh.search import LadderSearch

trial = importlib.import_module("slosh.neighbors.trial")


def spreads(n=60, seed=0, classes=3):
    """Classes that differ in their spread."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    return [rng.normal(scale=1 + 0.5 * label, size=(rng.integers(5, 40), 2)) for label in labels], labels


@pytest.fixture(scope="module")
def digits():
    """Images of 8 x 8 pixels as sets of 64 places, weighted by how dark they are."""
    images, labels = load_digits(return_X_y=True)
    places = np.stack(np.divmod(np.arange(64), 8), axis=1) / 8
    offsets = np.arange(0, 64 * len(images) + 1, 64)
    return Sets(np.tile(places, (len(images), 1)).astype(np.float32), offsets, images.ravel()), labels


def slow(vectors, labels, queries, query_labels, k, own):
    """Precision, vote and average precision of each query, from all distances."""
    distances = cdist(queries.astype(float), vectors.astype(float))
    precision, vote, average = [], [], []
    for i, label in enumerate(query_labels):
        order = [j for j in np.argsort(distances[i], kind="stable") if not (own and j == i)]
        hits = labels[order] == label
        precision.append(hits[:k].mean())
        names, counts = np.unique(labels[order[:k]], return_counts=True)
        vote.append(names[counts.argmax()] == label)
        average.append(np.mean([hits[: r + 1].mean() for r in np.flatnonzero(hits)]))
    return np.array([precision, vote, average])


def halves(labels, random_state=0, test_size=0.2):
    """Which queries choose, and which report."""
    blank = Sets(np.zeros((len(labels), 1)), np.arange(len(labels) + 1))
    classes = np.unique(labels, return_inverse=True)[1]
    split = trial.Split.of(blank, classes, test_size, random_stream(random_state))
    return split.choosing, split.reporting


def check_figures(row, expected, labels):
    choosing, reporting = halves(labels)
    assert row.choice == pytest.approx(expected[0, choosing].mean(), abs=1e-6)
    assert row.precision == pytest.approx(expected[0, reporting].mean(), abs=1e-6)
    error = np.std(expected[0, reporting], ddof=1) / math.sqrt(len(reporting))
    assert row.standard_error == pytest.approx(error, abs=1e-6)
    assert row.vote_accuracy == pytest.approx(expected[1, reporting].mean(), abs=1e-6)
    if row.search == "exact":
        assert row.mean_average_precision == pytest.approx(expected[2, reporting].mean(), abs=1e-6)
    else:
        assert math.isnan(row.mean_average_precision)


@pytest.mark.parametrize("kind", [int, str, float, object])
def test_each_among_the_others(kind):
    sets, labels = spreads()
    given = np.array([f"class {x}" for x in labels], object) if kind is object else labels.astype(kind)
    methods = {"spread": GeM(p=2), "place": MeanPool(), "sliced": SlicedWasserstein()}
    result = compare(sets, given, methods=methods, k=5, n_jobs=1)
    assert "60 sets (d = 2, 3 classes), each a query among the 59 others" in result.about
    assert [row["choice"] for row in result.rows[1:]] == sorted(
        [row["choice"] for row in result.rows[1:]], reverse=True
    )
    for row in result.rows:
        vectors = methods[row["method"]].fit(sets).index_vectors(Sets.from_list(sets))[0]
        check_figures(row, slow(vectors, labels, vectors, labels, 5, True), labels)
        assert row["length"] == vectors.shape[1]
        assert row["embed_microseconds"] > 0
        assert row["query_microseconds"] > 0
        assert row["error"] is None
    assert sorted(row["search"] for row in result.rows) == ["default", "exact", "exact", "exact"]


def test_split(monkeypatch):
    """In each class alike, by the seed; embeddings see the stored sets only."""
    sets, labels = spreads(700)
    labels = np.where(np.arange(700) < 4, 9, labels)
    seen = []

    class Spy(GeM):
        def _fit(self, sets):
            seen.append(sets)

        def _transform(self, sets, out):
            seen.append(sets)
            super()._transform(sets, out)

    result = compare(sets, labels, methods={"spy": Spy(p=2)}, k=5)
    fitted, stored, queries = seen[:3]
    assert fitted is stored
    assert all(len(others) <= len(stored) for others in seen)
    assert len(stored) + len(queries) == 700
    assert f"{len(queries)} queries among {len(stored)} others" in result.about
    where = {x.tobytes(): i for i, x in enumerate(Sets.from_list(sets))}
    asked = labels[[where[x.tobytes()] for x in queries]]
    for name in (0, 1, 2, 9):
        assert np.sum(asked == name) == max(1, round(0.2 * np.sum(labels == name)))
    kept = labels[[where[x.tobytes()] for x in stored]]
    model = GeM(p=2).fit(stored)
    row = result.rows[0]
    check_figures(row, slow(model.transform(stored), kept, model.transform(queries), asked, 5, False), labels)
    # Blocks, and fewer queries for the ranking, and fewer in all.
    monkeypatch.setattr(trial, "BLOCK_RANKS", 2000)
    again = compare(sets, labels, methods={"spy": GeM(p=2)}, k=5).rows[0]
    assert again["mean_average_precision"] == pytest.approx(row["mean_average_precision"])
    assert again["precision"] == row["precision"]
    monkeypatch.setattr(trial, "MAX_RANKS", 30_000)
    fewer = compare(sets, labels, methods={"spy": GeM(p=2)}, k=5).rows[0]
    assert fewer["mean_average_precision"] == pytest.approx(row["mean_average_precision"], abs=0.1)
    other = compare(sets, labels, methods={"spy": GeM(p=2)}, k=5, random_state=1).rows[0]
    assert other["precision"] != row["precision"]
    monkeypatch.setattr(trial, "MAX_QUERIES", 50)
    assert "52 queries among 648 others" in compare(sets, labels, methods={"spy": GeM(p=2)}, k=5).about


@pytest.mark.parametrize("n", [60, 700])
def test_halves(n):
    """Each query is in one half, in each class alike, by the seed."""
    labels = spreads(n)[1]
    choosing, reporting = halves(labels)
    assert sorted([*choosing, *reporting]) == list(range(n if n == 60 else 141))
    if n == 60:
        assert max(abs(np.bincount(labels[choosing]) - np.bincount(labels[reporting]))) <= 1
    assert not np.array_equal(choosing, halves(labels, random_state=1)[0])


def test_the_best_is_chosen_by_one_half_and_reported_by_the_other():
    """Of embeddings that are noise, the best is better by luck on the half that chooses, and not on the other."""
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 2
    sets = [rng.normal(size=(1, 40)) for _ in labels]

    class Feature(MeanPool):
        def __init__(self, number=0):
            self.number = number

        def _transform(self, sets, out):
            super()._transform(sets, out)
            out *= np.arange(out.shape[1]) == self.number

    result = compare(sets, labels, methods={str(i): Feature(i) for i in range(40)}, k=3, n_jobs=1)
    best, lucky = result.best, max(result.rows, key=lambda row: row.choice)
    assert best is result.rows[0]
    assert lucky.choice > 0.54
    for row in (best, lucky):
        assert abs(row.precision - 0.5) < 2.5 * row.standard_error
    assert 0.01 < best.standard_error < 0.04
    sentence = f"Best: {best.method}: precision {best.precision:.3f} +- {best.standard_error:.3f} on 200 queries"
    assert f"{sentence} that it was not chosen by." in str(result)
    assert best.embedding.number == int(best.method)


class Misplacing(MeanPool):
    """Puts each set beside one of its kind, but for the first of them."""

    def __init__(self, wrong=0):
        self.wrong = wrong

    def _transform(self, sets, out):
        kinds, numbers = sets.points[sets.offsets[:-1]].T
        out[:] = np.where(numbers < self.wrong / 400, -100, 100 * kinds)[:, None] + numbers[:, None]


def compare_misplacing(wrong):
    """Of 400 sets, whose kinds take turns; `wrong` is {name: how many sets it misplaces}."""
    kinds = np.arange(400) % 2
    sets = [np.array([[kind, i / 400]]) for i, kind in enumerate(kinds)]
    return compare(sets, kinds, methods={name: Misplacing(number) for name, number in wrong.items()}, k=1, n_jobs=1)


def test_what_may_be_chance_is_no_reason_for_a_later_method():
    """The best is the first that no other is two standard errors ahead of, of the difference over the same queries."""
    close = compare_misplacing({"SlicedWasserstein": 100, "later": 98})
    assert close.rows[1].choice >= close.rows[0].choice
    assert close.best.method == "SlicedWasserstein"
    clear = compare_misplacing({"SlicedWasserstein": 100, "first": 42, "second": 41, "worse": 300})
    assert clear.best.method == "first"
    assert [row.method for row in clear.rows[2:]] == ["SlicedWasserstein", "worse"]
    plain = next(row for row in clear.rows if row.method == "SlicedWasserstein")
    gain = clear.best.precision - plain.precision
    assert gain > 0.1
    assert f", {gain:+.3f} over SlicedWasserstein, on 200 queries that it was not chosen by." in clear.summary
    assert "over" not in close.summary


@pytest.mark.parametrize("seed", range(3))
def test_the_rule_against_its_formula(seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=300)
    sets = [rng.normal(size=(4, 8)) + 0.5 * label * (np.arange(8) < 4) for label in labels]

    class Features(MeanPool):
        def __init__(self, first=0):
            self.first = first

        def _transform(self, sets, out):
            super()._transform(sets, out)
            out *= np.arange(8) >= self.first

    methods = {str(first): Features(first) for first in (6, 5, 3, 2, 1, 0)}
    result = compare(sets, labels, methods=methods, k=3, n_jobs=1)
    choosing, _ = halves(labels)
    hits = {}
    for name, method in methods.items():
        vectors = method.fit(sets).transform(sets)
        hits[name] = slow(vectors, labels, vectors, labels, 3, True)[0, choosing]
    top = max(hits.values(), key=np.mean)
    ahead = {
        name: np.mean(top - each) / max(1e-9, np.std(top - each, ddof=1) / 150**0.5) for name, each in hits.items()
    }
    expected = next(name for name, errors in ahead.items() if errors <= 2)
    assert result.best.method == result.rows[0].method == expected
    if expected != max(hits, key=lambda name: hits[name].mean()):
        assert result.summary.endswith(" ahead on those that choose, which may be chance.")


def test_equal_ones_stay_in_the_order_of_the_methods():
    sets, labels = spreads(40, classes=2)
    result = compare(sets, labels, methods={"b": GeM(p=2), "a": GeM(p=2), "c": GeM(p=2)}, k=3)
    assert [row.method for row in result.rows] == ["b", "a", "c"]


def parts():
    sliced = SlicedWasserstein(n_slices=4, n_jobs=1)
    return [sliced, DistanceField(16, n_jobs=1), LocalShape(sliced, neighbors=4, n_jobs=1)]


@pytest.mark.parametrize("n", [60, 600])
def test_whitened_rows_are_what_the_embedding_gives(n):
    """Vectors of the parts are shared by all rows, and are the same bits as without."""
    sets, labels = spreads(n)
    sliced, field, local = parts()
    methods = {"sliced": sliced, "one": Whitened(sliced, n_jobs=1), "three": Whitened([sliced, field, local], n_jobs=1)}
    result = compare(sets, labels, methods=methods, k=5, n_jobs=1)
    rows = {row.method: row for row in result.rows if row.search == "exact"}
    assert not result.failures()
    assert set(rows) == {*methods, *({"one, with labels", "three, with labels"} if n == 600 else ())}
    for name, row in rows.items():
        fitted, queries, asked = row.embedding, Sets.from_list(sets), labels
        stored, kept = queries, labels
        if n == 600:
            split = trial.Split.of(queries, labels, 0.2, random_stream(0))
            stored, kept, queries, asked = split.stored, split.stored_classes, split.queries, split.query_classes
        again = methods[name.removesuffix(", with labels")]
        again = type(again)(**again.get_params(deep=False)).fit(stored, kept if row.labels else None)
        assert row.labels == name.endswith("labels")
        np.testing.assert_array_equal(fitted.transform(queries), again.transform(queries))
        vectors, asking = (again.index_vectors(part)[0] for part in (stored, queries))
        check_figures(row, slow(vectors, kept, asking, asked, 5, n == 60), labels)
        assert row.length == vectors.shape[1]
    if n == 600:
        assert rows["one, with labels"].embedding.n_labelled_ > 0
        assert rows["one"].embedding.n_labelled_ == 0


class Counting(GeM):
    embedded: ClassVar[list[int]] = []

    def _transform(self, sets, out):
        self.embedded.append(len(sets))
        super()._transform(sets, out)


def test_each_embedding_embeds_each_set_once():
    sets, labels = spreads(600)
    sliced, counting = parts()[0], Counting(p=2)
    methods = {"alone": counting, "one": Whitened(counting, n_jobs=1), "two": Whitened([sliced, counting], n_jobs=1)}
    Counting.embedded.clear()
    result = compare(sets, labels, methods=methods, k=5, n_jobs=1)
    assert len(result.rows) == 5
    assert sum(Counting.embedded) == 600


@pytest.mark.filterwarnings("ignore:the embedding had learnt from labels")
def test_the_best_embedding_is_ready_for_an_index(tmp_path):
    sets, labels = spreads(600)
    best = compare(sets, labels, methods={"two": Whitened(parts()[:2], n_jobs=1)}, k=5, n_jobs=1).best
    with SetIndex.create(tmp_path / "a", dim=2, embedding=best.embedding, n_jobs=1) as index:
        index.add(sets[:50])
        assert index.search(sets[7], k=1).ids == ["7"]
        assert index.search(sets[7], k=1).distance_kind == "whitened"
        anchors = index.embedding.embeddings_[1].anchors_
        np.testing.assert_array_equal(anchors, best.embedding.embeddings_[1].anchors_)
        index.retrain()
        assert not np.array_equal(index.embedding.embeddings_[1].anchors_, anchors)


def test_a_fitted_part_stays_as_it_is():
    sets, labels = spreads(60)
    field = DistanceField(5, n_jobs=1).fit(sets[:20])
    row = compare(sets, labels, methods={"fitted": Whitened(field, n_jobs=1)}, k=5, n_jobs=1).best
    np.testing.assert_array_equal(row.embedding.embeddings_[0].anchors_, field.anchors_)


def test_of_many_sets_some_are_drawn():
    sets, labels = spreads(700)
    labels = np.where(np.arange(700) < 2, 9, labels)
    result = compare(sets, labels, methods={"spread": GeM(p=2)}, k=5, max_sets=40)
    assert result.about.startswith(("40 of 700 sets", "39 of 700 sets"))
    assert result.best.error is None
    with pytest.raises(ValueError, match="of 3 sets that were drawn, too few have the same label"):
        compare(sets, np.arange(700) // 2, methods={"spread": GeM(p=2)}, k=5, max_sets=3)


def test_a_row_by_key_and_by_attribute():
    row = Row(method="a", precision=0.5)
    assert row.precision == row["precision"] == 0.5
    with pytest.raises(AttributeError, match="a row has no 'recall': it has method, precision"):
        _ = row.recall


class Broken(SetTransformer):
    def _fit(self, sets):
        raise ValueError("these sets have too few elements for me")


class NotFinite(MeanPool):
    def _transform(self, sets, out):
        out[:] = np.nan


def test_a_method_that_fails_is_a_row():
    sets, labels = spreads()
    result = compare(sets, labels, methods={"broken": Broken(), "good": MeanPool(), "nan": NotFinite()})
    assert [row["method"] for row in result.rows] == ["good", "broken", "nan"]
    assert result.rows[1]["error"] == "ValueError: these sets have too few elements for me"
    assert result.best["method"] == "good"
    lines = str(result).splitlines()
    assert lines[-2] == "broken failed: ValueError: these sets have too few elements for me"
    assert lines[-1].startswith("nan failed: ValueError: ")
    alone = compare(sets, labels, methods={"broken": Broken()})
    assert alone.best is None
    assert "broken failed" in str(alone)


def test_a_method_that_needs_more_sets_is_skipped():
    sets, labels = spreads()
    result = compare(sets, labels, methods={"broken": Broken(), "good": MeanPool()}, k=3, learned=True)
    row = next(row for row in result.rows if row.method == LEARNED)
    assert (row.skipped, row.labels, row.embedding, row.length) == (True, True, None, 0)
    assert row.error == "it learns from labels, and is measured with 500 sets or more"
    assert math.isnan(row.precision)
    assert set(row) >= set(COLUMNS)
    assert [each.skipped for each in result.rows if each is not row] == [False, False]
    assert result.failures() == ["broken failed: ValueError: these sets have too few elements for me"]
    assert result.skipped() == [f"{LEARNED} was skipped: {row.error}"]
    assert str(result).endswith(f"{result.failures()[0]}\n{result.skipped()[0]}")
    assert len(result.table()) == 2
    assert result.to_pandas()["error"].notna().sum() == 2
    alone = compare(sets, labels, methods={LEARNED: LearnedEmbedding()}, k=3)
    assert (alone.best, alone.failures()) == (None, [])
    assert alone.summary == "All methods failed or were skipped."


def test_the_default_search_may_fail_too(monkeypatch):
    def no_room(*arguments):
        raise RuntimeError("no room")

    monkeypatch.setattr(LadderSearch, "add", no_room)
    sets, labels = spreads()
    result = compare(sets, labels, methods={"sliced": SlicedWasserstein()}, k=3)
    assert [(row["search"], row["error"]) for row in result.rows] == [
        ("exact", None),
        ("default", "RuntimeError: no room"),
    ]


def test_the_table():
    sets, labels = spreads()
    result = compare(sets, labels, k=5)
    assert not result.failures()
    lines = str(result).splitlines()
    assert lines[0] == result.about
    assert lines[-2:] == ["", result.summary]
    lines = lines[:-2]
    assert lines[2].split("  ")[0] == "method"
    assert lines[2].endswith("length")
    assert len({len(line) for line in lines[2:]}) == 1
    assert len(lines) == 3 + len(result.rows)
    frame = result.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == [*COLUMNS, "labels", "error"]
    assert frame["choice"][0] == result.best["choice"]
    assert repr(Comparison([], "nothing")) == "Comparison(about='nothing')"


@pytest.mark.filterwarnings("error")
def test_k_means_is_quiet():
    """WassersteinEmbedding looks for 64 centres, and there are nine places."""
    pytest.importorskip("ot")
    rng = np.random.default_rng(0)
    sets = [rng.integers(0, 3, size=(30, 2)) for _ in range(20)]
    assert not compare(sets, np.arange(20) % 2, methods={"a": WassersteinEmbedding()}, k=2).failures()


def test_sets_of_few_different_elements():
    """Many of them occur in one set only, which may be a query: those that are stored have fewer."""
    rng = np.random.default_rng(0)
    sets = [np.append(rng.choice(10, 3) + 0.5 * (i % 2), 20 + i if i < 60 else 1)[:, None] for i in range(600)]
    result = compare([np.hstack([each, each]) for each in sets], np.arange(600) % 2, k=2)
    assert not [failure for failure in result.failures() if "MissingExtra" not in failure]
    assert any("DistanceField" in row.method and row.error is None for row in result.rows)


def test_the_field_has_as_many_anchors_as_the_stored_sets_have_different_elements(digits):
    """All places are in all images; some are never inked, and those do not count."""
    sets, labels = digits
    seen = []

    def methods(stored):
        seen.append(len(stored))
        return {"field": DistanceField(n_anchors_for(stored))}

    result = compare(sets, labels, methods=methods)
    assert (seen, result.failures()) == ([1438], [])
    inked = len(np.unique(sets.points[sets.weights > 0], axis=0))
    assert inked - 5 <= result.best.length <= inked < 64
    rng = np.random.default_rng(0)
    assert n_anchors_for(Sets.from_list([rng.normal(size=(9, 2)) for _ in range(300)])) == 256


def test_methods():
    names = set(methods_for(2))
    assert {"SlicedWasserstein", "FSPool", "Covariance", "MaxPool", "GeM(p=2)", "GeM(p=4)"} <= names
    single = ["SlicedWasserstein", "DistanceField", "LocalShape", "FSPool", "WassersteinEmbedding"]
    assert {f"{name}, whitened" for name in single} <= names
    assert "SlicedWasserstein + DistanceField, whitened" in names
    mild = {name: one.power for name, one in methods_for(5).items() if "power" in name}
    assert mild == {f"{name}, whitened, power 0.2": 0.2 for name in (single[0], f"{single[0]} + {single[1]}")}
    assert [name for name in methods_for(3) if "Wasserstein" in name and "Sliced" not in name] == list(methods_for(3))[
        -2:
    ]
    assert methods_for(3)["SlicedWasserstein + DistanceField + LocalShape, whitened"].embedding[1].n_anchors == 256
    assert not [name for name in methods_for(4) if "LocalShape" in name]
    assert "SlicedWasserstein + DistanceField, whitened" in methods_for(4)
    assert "Covariance" not in methods_for(512)
    assert all(isinstance(one, SetTransformer) for one in methods_for(512).values())
    with pytest.raises(ValueError, match="dim=0 must be a whole number"):
        methods_for(0)


def test_given_methods_stay_as_they_are():
    sets, labels = spreads()
    mine = SlicedWasserstein(n_slices=3, n_jobs=1)
    compare(sets, labels, methods={"mine": mine}, k=3)
    assert not hasattr(mine, "n_features_in_")
    assert mine.n_jobs == 1


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros(59), "there are 59 labels for 60 sets: give one label for each set"),
        (np.zeros((60, 2)), r"labels must be \(n,\), one label for each set, not of shape \(60, 2\)"),
        (np.zeros(60), "all sets have the label 0.0: to compare, give sets of two classes or more"),
        (["a"] * 60, "all sets have the label 'a'"),
        (["a"] * 59 + ["b"], "set 59 is the only one with the label 'b': leave such sets out, or join classes"),
        (np.arange(60), "set 0 is the only one with the label 0, and 59 more labels are alone"),
        ([None] * 60, "no set has a label: to compare, give sets of two classes or more"),
        ([0.0, np.nan] * 30, "all sets have the label 0.0"),
        ([None, "a", "b", "a"] * 14 + ["a", "b", "a", "c"], "set 59 is the only one with the label 'c'"),
        ([0.0, np.inf] * 30, r"labels\[1\] is inf"),
        (0, r"labels must be \(n,\)"),
        ([1j, 2j] * 30, "labels are of dtype complex128: give numbers or strings as labels"),
        (np.array([{}, 1] * 30), "labels mixes labels of the types dict, int"),
    ],
)
def test_labels_are_checked(labels, message):
    with pytest.raises(ValueError, match=message):
        compare(spreads()[0], labels)


@pytest.mark.parametrize(
    "labels",
    [
        [0, 1, None] * 20,
        [[0], [1], [None]] * 20,
        [0.0, 1.0, np.nan] * 20,
        pd.Series(["a", "b", None] * 20),
        pd.Series(["a", "b", math.nan] * 20, dtype=object),
        pd.array([1, 2, pd.NA] * 20),
    ],
)
def test_sets_without_a_label_are_left_out(labels):
    sets, _ = spreads()
    methods = {"a": SlicedWasserstein()}
    found = compare(sets, labels, methods=methods, k=3, n_jobs=1)
    assert found.about.startswith(
        "40 sets (d = 2, 2 classes), each a query among the 39 others; 20 without a label left"
    )
    rows = [i for i in range(60) if i % 3 < 2]
    alone = compare([sets[i] for i in rows], [i % 3 for i in rows], methods=methods, k=3, n_jobs=1)
    assert found.best.precision == alone.best.precision
    assert "left out" not in alone.about


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"k": 0}, "k=0 must be a whole number"),
        ({"k": 60}, "k=60, but a query has only 59 sets to find"),
        ({"max_sets": 0}, "max_sets=0 must be a whole number"),
        ({"test_size": 1.0}, "test_size=1.0 must be a fraction between 0 and 1"),
        ({"test_size": 5}, "test_size=5 must be"),
        ({"test_size": True}, "test_size=True must be"),
        ({"methods": {}}, "methods is a dict: give a dict {name: embedding} of one at least"),
        ({"methods": [MeanPool()]}, "methods is a list: give a dict"),
        ({"methods": {"mean": np.mean}}, "methods.'mean'. is a .*: give an embedding of slosh.embed"),
        ({"n_jobs": 0}, "n_jobs"),
    ],
)
def test_parameters_are_checked(parameters, message):
    sets, labels = spreads()
    with pytest.raises(ValueError, match=message):
        compare(sets, labels, **parameters)


def test_digits(digits):
    sets, labels = digits
    methods = {"sliced": SlicedWasserstein(), "covariance": Covariance(), "mean": MeanPool(), "max": MaxPool()}
    result = compare(sets, labels, methods=methods)
    rows = {(row["method"], row["search"]): row for row in result.rows}
    assert "359 queries among 1,438 others" in result.about
    assert result.best.method == "sliced"
    assert rows["sliced", "exact"]["precision"] > 0.87
    assert rows["sliced", "exact"]["vote_accuracy"] > 0.94
    assert rows["sliced", "exact"]["mean_average_precision"] > 0.5
    assert rows["sliced", "default"]["precision"] == pytest.approx(rows["sliced", "exact"]["precision"], abs=0.02)
    assert rows["max", "exact"]["precision"] < 0.2  # all places are in all images: it sees no weights


def test_mnist(mnist):
    sets, labels = mnist
    result = compare(sets[:300], labels[:300], k=5)
    assert not any(row["error"] for row in result.rows)
    rows = {(row["method"], row["search"]): row["precision"] for row in result.rows}
    assert rows["SlicedWasserstein", "exact"] > rows["MeanPool, GeM(p=1)", "exact"] + 0.2


def test_a_method_without_its_package_is_a_row_that_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    result = compare(*spreads(20, classes=2), k=2, n_jobs=1)
    row = next(row for row in result.rows if row["method"] == "WassersteinEmbedding")
    assert row["error"] == 'MissingExtra: optimal transport needs POT: install it with: pip install "slosh[transport]"'
    assert "WassersteinEmbedding failed: MissingExtra: optimal transport needs POT" in str(result)
