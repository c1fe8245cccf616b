"""A history of changes of an index and questions to it, against an oracle that is plain NumPy over a dict.

`History` is a state machine of hypothesis. It needs an engine as tests/contract/conftest.py describes it: `create`,
`reopen`, `read_only`.
"""

from __future__ import annotations

from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from oracle import Oracle, check_nearest, check_within, holds
from slosh import Sets
from slosh.embed import SlicedWasserstein
from slosh.search import ExactSearch, LadderSearch

SLICES = np.array([[1.0, 0.0], [0.6, 0.8], [-0.28, 0.96]])
ORACLE = Oracle(SLICES, 4)


def cloud(seed):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(int(rng.integers(1, 7)), 2)) * rng.uniform(0.3, 1.5) + rng.normal(size=2)
    weights = rng.integers(0, 5, len(points)) / 4.0
    weights[0] = 0.75
    return points.astype(np.float32), weights.astype(np.float32)


POOL = [cloud(seed) for seed in range(10)]  # few, so that many sets are equal
NAMES = [f"{letter}{i}" for letter in "zbq" for i in range(7)]
MANY = [(cloud([7, i % 900])[0][:2], None) for i in range(1100)]  # enough for the default search to be trained
FILTERS = [
    None,
    {"set": [0, 1, 2, 3]},
    {"flag": {"exists": True}},
    {"set": 4},
    {"set": {"!=": 4}, "tags": "even"},
    {"or": [{"set": {">=": 2, "<": 5}}, {"not": {"tags": ["even", "none"]}}]},
    {"deep.er": {">": 0}},
    {"flag": None, "set": {"<": 3}},
    {"set": 99},
]
TEXTS = {3: "set = 4", 4: "set != 4 and tags = even", 6: "deep.er > 0"}

Stored = namedtuple("Stored", "points weights metadata")


def metadata_of(i, flag):
    """Metadata with the same keys for all, so that it does not matter whether an update replaces or merges them."""
    return {"set": i, "flag": flag or None, "tags": ["even" if i % 2 == 0 else "odd", i], "deep": {"er": i % 3}}


class History(RuleBasedStateMachine):
    """Changes of an index and of a dict; what is found is always what the oracle finds in the dict."""

    def __init__(self, engine, search, tolerance, many):
        super().__init__()
        self.engine, self.search, self.tolerance, self.many = engine, search, tolerance, many
        self.index = self.reader = None
        self.model, self.replaced, self.counted = {}, set(), set()

    @initialize(weighted=st.booleans(), decided=st.booleans())
    def create(self, weighted, decided):
        self.weighted = weighted
        embedding = SlicedWasserstein(None, ORACLE.n_quantiles, slices=SLICES, n_jobs=1)
        options = {"weighted": weighted} if decided or weighted else {}
        self.index = self.engine.create(2, embedding=embedding, search=self.search, **options)
        self.reader = self.engine.read_only(self.index)
        if self.many:
            names = [f"m{i:04}" for i in range(len(MANY))]
            self.index.add([points for points, _ in MANY], names, metadata_of(8, False))
            self.model = {name: self.stored(*one, metadata_of(8, False)) for name, one in zip(names, MANY, strict=True)}

    def stored(self, points, weights, metadata):
        """Return a set as the index holds it: with weights if the index has weights."""
        if self.weighted and weights is None:
            weights = np.ones(len(points), np.float32)
        return Stored(points, weights if self.weighted else None, metadata)

    def given(self, chosen, with_weights):
        """Return sets of the pool as arguments of `add` and `update`."""
        more = {"weights": [POOL[i][1] for i in chosen]} if with_weights and self.weighted and chosen else {}
        return [POOL[i][0] for i in chosen], more

    def some_index(self, by_reader):
        return self.reader if by_reader and self.reader is not None else self.index

    # Changes

    @rule(data=st.data(), replace=st.booleans(), one_by_one=st.booleans(), weights=st.booleans(), flag=st.booleans())
    def add(self, data, replace, one_by_one, weights, flag):
        free = NAMES if replace else [name for name in NAMES if name not in self.model]
        names = data.draw(st.lists(st.sampled_from(free), unique=True, max_size=9)) if free else []
        chosen = data.draw(st.lists(st.integers(0, len(POOL) - 1), min_size=len(names), max_size=len(names)))
        both = list(zip(names, chosen, strict=True))
        for part in [[each] for each in both] if one_by_one else [both]:
            sets, more = self.given([i for _, i in part], weights)
            about = [metadata_of(i, flag) for _, i in part]
            assert self.index.add(sets, [name for name, _ in part], about, update=replace, **more) == [
                name for name, _ in part
            ]
        self.replaced |= set(names) & set(self.model)
        for name, i in both:
            self.model[name] = self.stored(POOL[i][0], POOL[i][1] if weights else None, metadata_of(i, flag))

    @rule(chosen=st.lists(st.integers(0, len(POOL) - 1), max_size=3))
    def add_counted(self, chosen):
        sets, _ = self.given(chosen, False)
        names = self.index.add(sets, metadata=[metadata_of(i, True) for i in chosen])
        assert len(set(names)) == len(chosen)
        assert not set(names) & (self.counted | set(self.model)), "an id was counted twice"
        self.counted |= set(names)
        for name, i in zip(names, chosen, strict=True):
            self.model[name] = self.stored(POOL[i][0], None, metadata_of(i, True))

    @precondition(lambda self: self.model)
    @rule(data=st.data(), points=st.booleans(), describe=st.booleans(), weights=st.booleans(), flag=st.booleans())
    def update(self, data, points, describe, weights, flag):
        names = data.draw(st.lists(st.sampled_from(sorted(self.model)), unique=True, min_size=1, max_size=4))
        i = data.draw(st.integers(0, len(POOL) - 1))
        points = points or not describe
        sets, more = self.given([i] * len(names), weights) if points else (None, {})
        self.index.update(names, sets, [metadata_of(i, flag)] * len(names) if describe else None, **more)
        for name in names:
            old = self.model[name]
            about = metadata_of(i, flag) if describe else old.metadata
            one = (POOL[i][0], POOL[i][1] if weights else None) if points else (old.points, old.weights)
            self.model[name] = self.stored(*one, about)
        if points:
            self.replaced |= set(names)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data):
        names = data.draw(st.lists(st.sampled_from(sorted(self.model)), unique=True, max_size=6))
        self.index.remove(names)
        for name in names:
            del self.model[name]

    @rule(
        what=st.sampled_from(
            ["twice", "exists", "nan", "dimension", "metadata", "remove", "update", "weights", "empty"]
        )
    )
    def fail(self, what):
        """A change that is refused changes nothing."""
        some, there, sets = list(self.model)[:2], self.index.ids, [POOL[0][0], POOL[1][0]]
        bad = np.array([[0.0, np.nan]])
        calls = {
            "twice": lambda: self.index.add(sets, ["x", "x"]),
            "exists": lambda: self.index.add(sets, ["x", *some[:1]] if some else ["x", "x"]),
            "nan": lambda: self.index.add([sets[0], bad], ["x", "y"]),
            "dimension": lambda: self.index.add([sets[0], np.zeros((2, 3))], ["x", "y"]),
            "metadata": lambda: self.index.add(sets, ["x", "y"], [{}, {"a": float("nan")}]),
            "remove": lambda: self.index.remove([*some, "nobody"]),
            "update": lambda: self.index.update([*some, "nobody"], [POOL[0][0]] * (len(some) + 1)),
            "weights": lambda: self.index.add(sets, ["x", "y"], weights=[[1.0] * len(sets[0]), [-1.0] * len(sets[1])]),
            "empty": lambda: self.index.add([sets[0], np.zeros((0, 2))], ["x", "y"]),
        }
        with pytest.raises((ValueError, KeyError)):
            calls[what]()
        if some and what == "nan":
            with pytest.raises(ValueError, match="nan"):
                self.index.update(some[0], bad)
        assert self.index.ids == there

    @rule()
    def compact(self):
        self.index.compact()
        assert self.index.ids == sorted(self.model)
        self.model = dict(sorted(self.model.items()))
        self.replaced = set()

    @precondition(lambda self: len(self.model) > 1)
    @rule(recall=st.sampled_from([0.9, 1.0]), k=st.integers(1, 5))
    def tune(self, recall, k):
        assert self.index.tune(recall, k=k).recall == recall

    @rule()
    def reopen(self):
        again = self.engine.reopen(self.index)
        self.index = self.index if again is None else again

    # Questions

    def allowed(self, asked):
        return {name: one for name, one in self.model.items() if asked is None or holds(asked, one.metadata)}

    @staticmethod
    def sets_of(model):
        return {name: (one.points, one.weights) for name, one in model.items()}

    def query(self, i, weights):
        """Return a set of the pool as the oracle takes it, and as a query."""
        if not self.weighted or not weights:
            return (POOL[i][0], np.ones(len(POOL[i][0]), np.float32) if self.weighted else None), POOL[i][0]
        return POOL[i], Sets.from_list([POOL[i][0]], [POOL[i][1]])

    @precondition(lambda self: self.model)
    @rule(
        i=st.integers(0, len(POOL) - 1),
        k=st.integers(1, 12),
        how=st.sampled_from(["default", "exact", "certify"]),
        filter_=st.integers(0, len(FILTERS) - 1),
        text=st.booleans(),
        weights=st.booleans(),
        by_reader=st.booleans(),
    )
    def search(self, i, k, how, filter_, text, weights, by_reader):
        asked = FILTERS[filter_]
        allowed, (one, query) = self.allowed(asked), self.query(i, weights)
        options = {"default": {}, "exact": {"recall": 1.0}, "certify": {"certify": True}}[how]
        where = TEXTS.get(filter_, asked) if text else asked
        hits = self.some_index(by_reader).search(query, k, where=where, **options)
        hits = hits[0] if isinstance(query, Sets) else hits
        stored = self.sets_of(allowed)
        distances = ORACLE.distances(one, stored, how == "certify")
        if how == "default" and hits.stats.recall != 1.0:
            assert len(hits) == min(k, len(stored))
            for name, distance in zip(hits.ids, hits.distances, strict=True):
                assert abs(distances[name] - distance) < self.tolerance
        else:
            check_nearest(hits, stored, distances, k, 1e-5 if how == "certify" else self.tolerance)
        assert hits.metadata == [self.model[name].metadata for name in hits.ids]
        assert hits.distance_kind == ("sliced" if how == "certify" else "embedded")

    @precondition(lambda self: self.model)
    @rule(data=st.data(), k=st.integers(1, 12), certify=st.booleans(), filter_=st.integers(0, len(FILTERS) - 1))
    def search_by_id(self, data, k, certify, filter_):
        name = data.draw(st.sampled_from(sorted(self.model)))
        stored = self.sets_of(self.allowed(FILTERS[filter_]))
        stored.pop(name, None)
        one = self.model[name]
        distances = ORACLE.distances((one.points, one.weights), stored, certify)
        options = {"certify": True} if certify else {"recall": 1.0}
        hits = self.index.search(id=name, k=k, where=FILTERS[filter_], **options)
        check_nearest(hits, stored, distances, k, 1e-5 if certify else self.tolerance)
        near = self.index.range_search(id=name, radius=0.5, where=FILTERS[filter_], **options)
        check_within(near, stored, distances, 0.5, 1e-5 if certify else self.tolerance)

    @precondition(lambda self: self.model)
    @rule(
        i=st.integers(0, len(POOL) - 1),
        radius=st.sampled_from([0.0, 0.3, 0.7, 5.0]),
        certify=st.booleans(),
        filter_=st.integers(0, len(FILTERS) - 1),
        by_reader=st.booleans(),
    )
    def range_search(self, i, radius, certify, filter_, by_reader):
        stored, (one, query) = self.sets_of(self.allowed(FILTERS[filter_])), self.query(i, False)
        options = {"certify": True} if certify else {"recall": 1.0}
        hits = self.some_index(by_reader).range_search(query, radius, where=FILTERS[filter_], **options)
        distances = ORACLE.distances(one, stored, certify)
        check_within(hits, stored, distances, radius, 1e-5 if certify else self.tolerance)

    @precondition(lambda self: self.model and not self.many)
    @rule(radius=st.sampled_from([0.0, 0.4]), certify=st.booleans(), filter_=st.integers(0, len(FILTERS) - 1))
    def duplicates(self, radius, certify, filter_):
        stored = self.sets_of(self.allowed(FILTERS[filter_]))
        pairs = self.index.duplicates(radius, where=FILTERS[filter_], certify=certify)
        found = {(a, b): distance for a, b, distance in pairs}
        assert len(found) == len(pairs)
        assert [(d, a, b) for a, b, d in pairs] == sorted((d, a, b) for a, b, d in pairs)
        tolerance = 1e-5 if certify else self.tolerance
        for a in stored:
            for b in stored:
                if a < b:
                    sliced, embedded = (measure(stored[a], stored[b]) for measure in (ORACLE.sliced, ORACLE.embedded))
                    if sliced <= radius - (1e-5 if radius else 0.0):
                        assert (a, b) in found
                    if (a, b) in found:
                        true = sliced if certify else embedded
                        assert true <= radius + 2 * tolerance
                        assert abs(found.pop((a, b)) - true) <= tolerance
        assert not found, "a pair of sets that are not there, or the wrong way round"

    @precondition(lambda self: len(self.model) > 1 and not self.many)
    @rule(k=st.integers(1, 4), certify=st.booleans())
    def neighbor_graph(self, k, certify):
        options = {"certify": True} if certify else {"recall": 1.0}
        graph, names = self.index.neighbor_graph(k, **options)
        assert names == self.index.ids
        stored = self.sets_of(self.model)
        for i, name in enumerate(names):
            others = {other: one for other, one in stored.items() if other != name}
            line = graph.getrow(i)
            hits = SimpleNamespace(ids=[names[j] for j in line.indices], distances=line.data)
            distances = ORACLE.distances(stored[name], others, certify)
            check_nearest(hits, others, distances, k, 1e-5 if certify else self.tolerance)

    @rule(filter_=st.integers(0, len(FILTERS) - 1), limit=st.sampled_from([None, 1, 3]), by_reader=st.booleans())
    def select(self, filter_, limit, by_reader):
        index = self.some_index(by_reader)
        asked = FILTERS[filter_]
        matching = set(self.allowed(asked))
        expected = [name for name in index.ids if name in matching]
        assert index.select(asked, limit=limit) == expected[:limit]

    @rule(by_reader=st.booleans(), batch=st.integers(1, 9))
    def records(self, by_reader, batch):
        index, found = self.some_index(by_reader), {}
        for part in index.records(batch=batch if not self.many else 500):
            offsets, weights = part.sets.offsets, part.sets.weights
            for i, (name, metadata) in enumerate(zip(part.ids, part.metadata, strict=True)):
                own = None if weights is None else weights[offsets[i] : offsets[i + 1]]
                found[name] = (part.sets.points[offsets[i] : offsets[i + 1]], own, metadata)
        assert list(found) == index.ids
        for name, (points, weights, metadata) in found.items():
            self.check_record(name, points, weights, metadata)

    @rule(by_reader=st.booleans())
    def check(self, by_reader):
        index = self.some_index(by_reader)
        for name in list(self.model)[:20]:
            record = index.get(name)
            assert record.id == name
            assert name in index
            self.check_record(name, record.points, record.weights, record.metadata)
        assert "nobody" not in index
        report = index.verify()
        assert report.ok, str(report)

    def check_record(self, name, points, weights, metadata):
        expected = self.model[name]
        assert np.array_equal(points, expected.points)
        assert metadata == expected.metadata
        if weights is not None or expected.weights is not None:
            ones = np.ones(len(points), np.float32)
            both = [ones if own is None else own for own in (weights, expected.weights)]
            assert np.array_equal(*both)

    @invariant()
    def ids_are_those_of_the_model(self):
        if self.index is None:
            return
        for index in (self.index, self.reader):
            if index is not None:
                ids = index.ids
                assert len(index) == len(ids) == len(self.model)
                assert set(ids) == set(self.model)
                kept = [name for name in ids if name not in self.replaced]
                assert kept == [name for name in self.model if name not in self.replaced], "not in the order of adds"

    def teardown(self):
        if self.index is not None:
            self.check(False)
            self.check(True)
            self.index.close()
        if self.reader is not None:
            self.reader.close()


SEARCHES = {"exact": (ExactSearch(), 1e-5), "32 bits": (LadderSearch(precision=32), 1e-5), "default": (None, 6e-3)}
"""Searches, and how far rounding may move a distance."""


def run_histories(make, examples, steps):
    """Run so many histories of a machine that `make` makes."""
    few = settings(max_examples=examples, stateful_step_count=steps, phases=[Phase.generate])
    run_state_machine_as_test(make, settings=few)
