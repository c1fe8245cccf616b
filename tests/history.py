"""A history of changes of an index and questions to it, against an oracle that is plain NumPy over a dict.

`History` is a state machine of hypothesis. It needs an engine as tests/contract/conftest.py describes it: `create`,
`reopen`, `read_only`.
"""

from __future__ import annotations

import math
import os
import secrets
import zlib
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from scipy.special import rel_entr

from builders import plain_answer
from oracle import Oracle, check_hits, check_nearest, check_within, holds
from slosh import Sets
from slosh.embed import SlicedWasserstein
from slosh.search import ExactSearch, FaissSearch, LadderSearch

SLICES = np.array([[1.0, 0.0], [0.6, 0.8], [-0.28, 0.96]])
ORACLE = Oracle(SLICES, 4)


def cloud(seed):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(int(rng.integers(1, 7)), 2)) * rng.uniform(0.3, 1.5) + rng.normal(size=2)
    weights = rng.integers(0, 5, len(points)) / 4.0
    weights[0] = 0.75
    return points.astype(np.float32), weights.astype(np.float32)


POOL = [cloud(seed) for seed in range(10)]  # few, so that many sets are equal
CHANCE = 1e-6
"""How seldom a search that keeps its promise may be blamed for a recall that is low by chance."""
NAMES = [f"{letter}{i}" for letter in "zbq" for i in range(7)]
MANY = [(cloud([7, i % 900])[0][:2], None) for i in range(1100)]  # enough for the default search to be trained
LIKE_MANY = [cloud([7, i])[0][:2] for i in range(700, 1100)]  # of the same kind; half of them are in MANY
QUERY = st.integers(0, len(LIKE_MANY) - 1)
KEYS = ["set", "flag", "tags", "deep"]
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
    """Metadata of all KEYS."""
    return {"set": i, "flag": flag or None, "tags": ["even" if i % 2 == 0 else "odd", i], "deep": {"er": i % 3}}


class History(RuleBasedStateMachine):
    """Changes of an index and of a dict; what is found is always what the oracle finds in the dict."""

    def __init__(self, engine, search, tolerance, many):
        super().__init__()
        self.engine, self.chosen, self.tolerance, self.many = engine, search, tolerance, many
        self.index = self.reader = None
        self.model, self.replaced, self.counted = {}, set(), set()
        self.promised, self.recalls = [], []

    @initialize(weighted=st.booleans(), decided=st.booleans(), n=st.sampled_from([12, 3, 0]))
    def create(self, weighted, decided, n):
        self.weighted = weighted
        embedding = SlicedWasserstein(None, ORACLE.n_quantiles, slices=SLICES, n_jobs=1)
        options = {"weighted": weighted} if decided or weighted else {}
        self.index = self.engine.create(2, embedding=embedding, search=self.chosen, **options)
        self.reader = self.engine.read_only(self.index)
        first = [i % len(POOL) for i in range(n)]
        sets, more = self.given(first, True)
        self.index.add(sets, NAMES[:n], [metadata_of(i, False) for i in first], **more)
        self.model = {
            name: self.stored(*POOL[i], metadata_of(i, False)) for name, i in zip(NAMES[:n], first, strict=True)
        }
        if self.many:
            names = [f"m{i:04}" for i in range(len(MANY))]
            self.index.add([points for points, _ in MANY], names, metadata_of(8, False))
            for name, one in zip(names, MANY, strict=True):
                self.model[name] = self.stored(*one, metadata_of(8, False))

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

    @rule(
        data=st.data(),
        replace=st.booleans(),
        how=st.sampled_from(["at once", "one by one", "iterator", "batches"]),
        describe=st.booleans(),
        weights=st.booleans(),
        flag=st.booleans(),
    )
    def add(self, data, replace, how, describe, weights, flag):
        free = NAMES if replace else [name for name in NAMES if name not in self.model]
        names = data.draw(st.lists(st.sampled_from(free), unique=True, max_size=9)) if free else []
        chosen = data.draw(st.lists(st.integers(0, len(POOL) - 1), min_size=len(names), max_size=len(names)))
        sets, more = self.given(chosen, weights)
        about = [metadata_of(i, flag) for i in chosen] if describe else None
        assert self.add_as(how, sets, names, about, more.get("weights"), replace) == names
        self.replaced |= set(names) & set(self.model)
        for name, i in zip(names, chosen, strict=True):
            kept = self.model[name].metadata if name in self.model else {}
            now = metadata_of(i, flag) if describe else kept
            self.model[name] = self.stored(POOL[i][0], POOL[i][1] if weights else None, now)

    def add_as(self, how, sets, names, about, weights, update):
        """Add sets in one of the ways in which they may come, and return their ids."""
        if how == "at once":
            return self.index.add(sets, names, about, weights=weights, update=update)

        def part(values, i, n=1):
            return None if values is None else values[i : i + n]

        if how == "one by one":
            calls = ([part(each, i) for each in (sets, names, about, weights)] for i in range(len(sets)))
            return [self.index.add(*call, weights=w, update=update)[0] for *call, w in calls]
        if how == "batches":
            starts = range(0, len(sets), 2)
            batches = ((Sets.from_list(part(sets, i, 2), part(weights, i, 2)), i) for i in starts)
            return self.index.add(((s, part(names, i, 2), part(about, i, 2)) for s, i in batches), update=update)
        both = None if weights is None else zip(sets, weights, strict=True)
        items = iter(sets) if both is None else (Sets.from_list([x], [w]) for x, w in both)
        return self.index.add(items, iter(names), None if about is None else iter(about), update=update)

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
    @rule(
        data=st.data(),
        points=st.booleans(),
        keys=st.none() | st.sets(st.sampled_from(KEYS)),
        merge=st.booleans(),
        weights=st.booleans(),
        flag=st.booleans(),
    )
    def update(self, data, points, keys, merge, weights, flag):
        names = data.draw(st.lists(st.sampled_from(sorted(self.model)), unique=True, min_size=1, max_size=4))
        i = data.draw(st.integers(0, len(POOL) - 1))
        points = points or keys is None
        about = None if keys is None else {key: value for key, value in metadata_of(i, flag).items() if key in keys}
        sets, more = self.given([i] * len(names), weights) if points else (None, {})
        self.index.update(names, sets, about, merge=merge, **more)
        for name in names:
            old = self.model[name]
            now = old.metadata if about is None else {**old.metadata, **about} if merge else about
            one = (POOL[i][0], POOL[i][1] if weights else None) if points else (old.points, old.weights)
            self.model[name] = self.stored(*one, now)
        if points:
            self.replaced |= set(names)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data):
        names = data.draw(st.lists(st.sampled_from(sorted(self.model)), unique=True, max_size=6))
        self.index.remove(names)
        for name in names:
            del self.model[name]

    @precondition(lambda self: len(self.model) > 5)
    @rule(filter_=st.integers(1, len(FILTERS) - 1))
    def remove_where(self, filter_):
        matching = self.allowed(FILTERS[filter_])
        if len(matching) > 100:  # nearly all: nothing would be trained any more
            return
        expected = [name for name in self.index.ids if name in matching]
        assert self.index.remove(where=FILTERS[filter_]) == expected
        for name in expected:
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

    @rule(reopen=st.booleans())
    def compact_or_reopen(self, reopen):
        if reopen:
            again = self.engine.reopen(self.index)
            self.index = self.index if again is None else again
            return
        self.index.compact()
        assert self.index.ids == sorted(self.model)
        self.model = dict(sorted(self.model.items()))
        self.replaced = set()

    @precondition(lambda self: len(self.model) > 1)
    @rule(recall=st.sampled_from([0.9, 1.0]), k=st.integers(1, 5))
    def tune(self, recall, k):
        assert self.index.tune(recall, k=k).recall == recall

    # Questions

    def allowed(self, asked):
        return {name: one for name, one in self.model.items() if asked is None or holds(asked, one.metadata)}

    @staticmethod
    def sets_of(model):
        return {name: (one.points, one.weights) for name, one in model.items()}

    def query(self, i, weights=False):
        """Return a set as the oracle takes it, and as a query.

        It is one of the pool; among many sets it is one like them, since a recall is promised for such queries.
        """
        points, own = (LIKE_MANY[i], None) if self.many else POOL[i % len(POOL)]
        if not self.weighted or not weights or own is None:
            return (points, np.ones(len(points), np.float32) if self.weighted else None), points
        return (points, own), Sets.from_list([points], [own])

    @precondition(lambda self: self.model)
    @rule(
        i=QUERY,
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
            self.check_approximate(hits, stored, distances, k)
        else:
            check_nearest(hits, stored, distances, k, 1e-5 if how == "certify" else self.tolerance)
        assert hits.metadata == [self.model[name].metadata for name in hits.ids]
        assert hits.distance_kind == ("sliced" if how == "certify" else "embedded")

    def check_approximate(self, hits, stored, distances, k):
        """Check all of an approximate answer but its recall, which is promised of the mean: see `check_recall`."""
        assert len(hits) == min(k, len(stored))
        check_hits(hits, stored, distances, self.tolerance, all_equal_sets=False)
        farthest = sorted(distances.values())[len(hits) - 1]
        found = [distances[name] <= farthest + 2 * self.tolerance for name in hits.ids]
        self.promised.append(hits.stats.recall)
        self.recalls.append(np.mean(found))

    def check_recall(self):
        """Check the mean recall of all approximate answers so far.

        It may fall short of the promise by chance. Numbers from 0 to 1 whose mean should be p have the mean m < p with
        a probability of at most exp(-n KL(m, p)), by Chernoff.
        """
        if not self.recalls:
            return
        p, m = np.mean(self.promised), np.mean(self.recalls)
        surprise = len(self.recalls) * (rel_entr(m, p) + rel_entr(1 - m, 1 - p))
        assert m >= p or surprise <= -math.log(CHANCE), f"recall {m} of {len(self.recalls)} answers, promised {p}"

    @precondition(lambda self: self.model)
    @rule(
        i=QUERY,
        k=st.integers(1, 6),
        offset=st.integers(0, 12),
        options=st.sampled_from([{}, {"recall": 1.0}, {"certify": True}]),
        filter_=st.integers(0, len(FILTERS) - 1),
    )
    def page(self, i, k, offset, options, filter_):
        _, query = self.query(i)
        options = {**options, "where": FILTERS[filter_]}
        names, distances = plain_answer(self.index.search(query, k + offset, **options))
        page = plain_answer(self.index.search(query, k, offset=offset, **options))
        assert page == (names[offset:], distances[offset:])

    @precondition(lambda self: self.model)
    @rule(
        i=QUERY,
        k=st.integers(1, 12),
        of=st.sampled_from(["query", "id", "all"]),
        filter_=st.integers(0, len(FILTERS) - 1),
        by_reader=st.booleans(),
    )
    def kneighbors(self, i, k, of, filter_, by_reader):
        index, stored = self.some_index(by_reader), self.sets_of(self.model)
        allowed, ids = self.allowed(FILTERS[filter_]), index.ids
        one, query = self.query(i)
        asked = {None: one}
        if of != "query":
            asked = {name: stored[name] for name in (ids if of == "all" and not self.many else [ids[i % len(ids)]])}
        given = {"queries": query} if of == "query" else {} if len(asked) == len(ids) else {"id": list(asked)}
        away, positions = index.kneighbors(**given, k=k, where=FILTERS[filter_], recall=1.0)
        assert away.shape == positions.shape == (len(asked), k)
        for (name, one), line, row in zip(asked.items(), away, positions, strict=True):
            others = {other: stored[other] for other in allowed if other != name}
            there = row >= 0
            assert np.all(np.isinf(line[~there]))
            hits = SimpleNamespace(ids=[ids[j] for j in row[there]], distances=line[there])
            check_nearest(hits, others, ORACLE.distances(one, others), k, self.tolerance)

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
        i=QUERY,
        radius=st.sampled_from([0.0, 0.3, 0.7, 5.0]),
        certify=st.booleans(),
        filter_=st.integers(0, len(FILTERS) - 1),
        by_reader=st.booleans(),
    )
    def range_search(self, i, radius, certify, filter_, by_reader):
        stored, (one, query) = self.sets_of(self.allowed(FILTERS[filter_])), self.query(i)
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

    @rule(
        filter_=st.integers(0, len(FILTERS) - 1),
        limit=st.sampled_from([None, 1, 3]),
        offset=st.sampled_from([0, 1, 4]),
        by_reader=st.booleans(),
    )
    def select(self, filter_, limit, offset, by_reader):
        index = self.some_index(by_reader)
        asked = FILTERS[filter_]
        matching = set(self.allowed(asked))
        expected = [name for name in index.ids if name in matching]
        assert index.select(asked, limit=limit, offset=offset) == expected[offset:][:limit]

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
            if self.many:
                for i in range(0, len(LIKE_MANY), 7):
                    self.search(i, 1 + i % 10, "default", 0, False, False, False)
            self.check_recall()
            self.index.close()
        if self.reader is not None:
            self.reader.close()


SEARCHES = {
    "exact": (ExactSearch(), 1e-5),
    "32 bits": (LadderSearch(precision=32), 1e-5),
    "default": (None, 6e-3),
    "faiss": (FaissSearch("IVF16,SQ8"), 6e-3),
}
"""Searches, and how far rounding may move a distance."""


def run_histories(make, name, campaign, examples, steps):
    """Run so many histories of a machine that `make` makes: those of a name in every run, others in a long campaign.

    The seed is printed, which pytest shows after a failure; the environment variable HISTORY_SEED repeats it.
    """
    number = zlib.crc32(name.encode()) if campaign == "part" else secrets.randbits(64)
    number = int(os.environ.get("HISTORY_SEED", number))
    print(f"HISTORY_SEED={number} repeats these histories")
    options = {"max_examples": examples, "stateful_step_count": steps, "phases": [Phase.generate], "print_blob": True}
    run_state_machine_as_test(seed(number)(make), settings=settings(derandomize=False, database=None, **options))
