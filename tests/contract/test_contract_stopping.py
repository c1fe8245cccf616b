"""Work that is stopped at any of its checkpoints: a change leaves what was there, and everything goes on afterwards."""

from __future__ import annotations

import pytest

from builders import cloud_list, clouds, contents
from slosh.checkpoints import watched
from slosh.embed import Whitened


class Enough(Exception):
    """What the watchers of these tests raise."""


class Watcher:
    """Counts the checkpoints, notes the stages, and ends the work at one of them."""

    def __init__(self, last=None):
        self.last, self.n, self.stages = last, 0, set()

    def __call__(self, stage, done, total):
        self.n += 1
        self.stages.add(stage)
        if self.n == self.last or (self.last is not None and self.n > self.last):
            raise Enough


CHANGES = {
    "add": lambda index: index.add(cloud_list(40, seed=1), [f"new{i}" for i in range(40)]),
    "update": lambda index: index.update(["0", "1"], cloud_list(2, seed=1)),
    "compact": lambda index: index.compact(),
    "retrain": lambda index: index.retrain(embedding=Whitened()),
    "enable": lambda index: index.enable("parts"),
    "tune": lambda index: index.tune(0.9, 5),
}
QUESTIONS = {
    "search": lambda index, some: index.search(some, k=5, recall=1.0),
    "rerank": lambda index, some: index.search(some, k=5, rerank="hausdorff", depth=50),
    "certify": lambda index, some: index.search(some, k=5, certify=True),
    "range": lambda index, some: index.range_search(some, 0.5),
    "duplicates": lambda index, some: index.duplicates(0.3),
    "neighbor_graph": lambda index, some: index.neighbor_graph(5),
    "verify": lambda index, some: index.verify(),
}
STAGES = {"neighbor_graph": "neighbours", "duplicates": "neighbours", "verify": "vectors"}


@pytest.fixture
def index(engine):
    if not engine.in_process:
        pytest.skip("what works is in another process, and has a deadline there")
    made = engine.create()
    made.add(clouds(150))
    return made


def places(n, campaign):
    """Return at which of n checkpoints to stop."""
    return range(1, n + 1) if campaign == "all" or n < 8 else sorted({1, 2, 3, n // 3, n // 2, n - 1, n})


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_is_stopped_leaves_what_was_there(engine, index, change, campaign):
    """Or it is made, and without an error: what comes after it, training for one, may be left off."""
    work, counted, stopped = CHANGES[change], Watcher(), 0
    with watched(counted):
        work(make_alike(engine, index))
    assert counted.n > 1
    for n in places(counted.n, campaign):
        before = state_of(index)
        try:
            with watched(Watcher(n)):
                work(index)
        except Enough:
            stopped += 1
            assert state_of(index) == before
        else:
            assert change == "tune" or state_of(index) != before
            index = make_alike(engine, index)
        assert len(index.search(cloud_list(1)[0], k=3)) == 3
    assert stopped or (engine.name, change) == ("postgres", "tune")  # which has nothing to measure for so few sets
    report = index.verify()
    assert report.ok, str(report)


def state_of(index):
    """Return what a change changes."""
    about = index.info()
    return contents(index), about["embedding"], about["parts"] is not None, index.version


def make_alike(engine, index):
    """Return another index like the one of the fixture."""
    made = engine.create()
    made.add(clouds(150))
    return made


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_stops(index, question):
    ask, some, counted = QUESTIONS[question], cloud_list(40, seed=2), Watcher()
    with watched(counted):
        ask(index, some)
    assert counted.n > 1
    assert STAGES.get(question, "") in counted.stages
    for n in (1, counted.n // 2 + 1):
        with pytest.raises(Enough), watched(Watcher(n)):
            ask(index, some)
    ask(index, some)
