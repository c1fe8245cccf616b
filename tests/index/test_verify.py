"""What `verify` reports: what it has checked, and the problems, in words."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from builders import cloud_list, make_index
from slosh.embed import SlicedWasserstein
from slosh.index import Report, verify


def test_a_report():
    good, bad = Report(checked={"caches": "3 sets"}), Report(["one is wrong"], {"caches": "3 sets"})
    assert good.ok
    assert good
    assert str(good) == "caches: 3 sets\nok"
    assert not bad.ok
    assert not bad
    assert str(bad) == "caches: 3 sets\nPROBLEM: one is wrong\nnot ok"
    assert Report().problems is not Report().problems


def test_what_is_checked():
    index = make_index()
    assert index.verify().checked == {"memory": "0 sets"}
    index.add(cloud_list(30))
    assert index.verify().checked == {"memory": "30 sets", "caches": "30 sets embedded again", "recall": "exact"}
    assert index.verify(sample=7).checked["caches"] == "6 sets embedded again"
    assert index.verify(sample=100).checked["caches"] == "30 sets embedded again"


def test_wrong_vectors_are_named(monkeypatch):
    index = make_index()
    sets = cloud_list(60)
    real = SlicedWasserstein.index_vectors

    def wrong(embedding, sets, **options):
        numbers, slack = real(embedding, sets, **options)
        return numbers + np.float32(1), slack

    index.add(sets[:30])
    with monkeypatch.context() as patch:
        patch.setattr(SlicedWasserstein, "index_vectors", wrong)
        index.add(sets[30:33])
    report = index.verify()
    assert not report.ok
    assert "of 3 sets are wrong ('30', '31', '32')" in report.problems[0]
    with monkeypatch.context() as patch:
        patch.setattr(SlicedWasserstein, "index_vectors", wrong)
        index.add(sets[33:])
    told = index.verify().problems[0]
    assert "of 30 sets are wrong" in told
    assert told.count("'") == 2 * verify.MAX_LISTED


@pytest.mark.parametrize(
    ("promise", "found", "said", "ok"),
    [
        (None, 5, "nothing is promised", True),
        (1.0, 10, "exact", True),
        (0.9, 9, "0.9000 over 30 stored sets, 0.9000 promised", True),
        (0.9, 5, "0.5000 over 30 stored sets, 0.9000 promised", False),
    ],
)
def test_a_promise_that_is_not_kept(monkeypatch, promise, found, said, ok):
    def answer(view, queries, exclude, question):
        exact = question.recall == 1.0
        distances = np.arange(10.0) if exact else np.concatenate([np.arange(found), np.full(10 - found, 99.0)])
        return SimpleNamespace(distances=[distances] * len(queries), stats=SimpleNamespace(recall=promise))

    index = make_index()
    index.add(cloud_list(30))
    monkeypatch.setattr(verify, "answer", answer)
    report = index.verify()
    assert report.checked["recall"] == said
    assert report.ok == ok
    assert ok or "compact()" in report.problems[0]
