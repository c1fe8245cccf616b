"""Checkpoints: who is called, what is stopped, and what goes on until it may be."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import slosh
from builders import cloud_list, together, wait_for
from slosh import checkpoints
from slosh.checkpoints import aside, checkpoint, held, in_threads, locked, optional, pieces, watched
from slosh.data.interrupts import interruptible, uninterrupted
from slosh.data.progress import ProgressBar


class Enough(Exception):
    """What the watchers of these tests raise."""


class Watcher:
    """Counts the checkpoints, and ends the work at one of them."""

    def __init__(self, last: float = np.inf) -> None:
        self.last, self.steps, self.threads = last, list[tuple](), set[int]()

    def __call__(self, *step) -> None:
        self.steps.append(step)
        self.threads.add(threading.get_ident())
        if len(self.steps) >= self.last:
            raise Enough


def test_nobody_watches():
    checkpoint()
    with watched(Watcher(1)):
        together(checkpoint)  # in a thread that has nothing to do with it
    checkpoint()


def test_watchers_within_watchers_are_all_heard():
    outer, inner = Watcher(3), Watcher()
    with watched(outer):
        checkpoint()
        with watched(inner):
            checkpoint()
            with pytest.raises(Enough):
                checkpoint()
    assert (len(outer.steps), len(inner.steps)) == (3, 1)


def test_what_is_held_goes_on_and_stops_afterwards():
    watcher, done = Watcher(1), []
    with watched(watcher):
        with held():
            checkpoint()
            done.append("held")
            with pytest.raises(Enough), held(False):
                checkpoint()
            checkpoint()
            done.append("held again")
        with pytest.raises(Enough):
            checkpoint()
    assert done == ["held", "held again"]


def test_work_is_stopped_where_ctrl_c_would_interrupt_it():
    def change(done):
        with uninterrupted():
            checkpoint()
            done.append("begun")
            with interruptible():
                done.append("computed")
            done.append("stored")

    for work in (lambda run: run(), together):  # in the main thread, which signals come to, and in another one
        done = []

        def stopped(done=done):
            with watched(Watcher(1)), pytest.raises(Enough):
                change(done)

        work(stopped)
        assert done == ["begun"]


def test_what_may_be_left_off_ends_without_an_error():
    with watched(Watcher(1)):
        with optional(), watched(Watcher()):
            checkpoint()
            pytest.fail("it was not stopped")
        with pytest.raises(Enough):
            checkpoint()
        with pytest.raises(Enough), optional():
            raise Enough  # of somebody else
    with pytest.raises(KeyError), optional():
        raise KeyError


def test_the_outermost_bar_tells_how_far_the_work_is():
    watcher = Watcher()
    with watched(watcher), watched(Watcher()):
        with ProgressBar(total=2, desc="outer", disable=True) as bar:
            for _ in range(2):
                list(ProgressBar("ab", desc="inner", total=2, disable=True))
                bar.update(1)
        with ProgressBar(total=1, desc="next", disable=True):
            checkpoint()
    assert {stage for stage, _, _ in watcher.steps} == {"outer", "next"}
    told = [done for stage, done, _ in watcher.steps if stage == "outer"]
    assert told == sorted(told)
    assert len(told) == 9
    assert watcher.steps[-2:] == [("next", 0, 1)] * 2


def test_pieces_come_with_checkpoints():
    watcher = Watcher()
    with watched(watcher):
        parts = list(pieces(10, 7.0, least=2, most_steps=21))
    assert [(part.start, part.stop) for part in parts] == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert len(watcher.steps) == 4
    assert [part.stop for part in pieces(5, 100.0, least=2, most_steps=1)] == [2, 4, 5]
    assert not list(pieces(0, 1.0))


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_are_watched_and_stop_together(threads):
    watcher, done = Watcher(), []
    with watched(watcher):
        assert in_threads(lambda i: i * i, range(20), threads) == [i * i for i in range(20)]
        assert len(watcher.steps) == 20
        watcher.last = 25
        with pytest.raises(Enough):
            in_threads(done.append, range(1000), threads)
    assert len(done) < 10
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda i: 1 // i, range(-3, 3), threads)


def test_one_who_waits_for_a_lock_can_be_stopped():
    lock, taken, ended = threading.RLock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            taken.set()
            wait_for(ended)

    def wait():
        wait_for(taken)
        with watched(Watcher(3)), pytest.raises(Enough), locked(lock):
            pytest.fail("the lock is taken")
        ended.set()

    together(hold, wait)
    with watched(Watcher()), locked(lock):
        pass
    assert locked(lock) is lock  # without a watcher there is nothing to come to


def test_calls_that_were_left_behind_keep_others_from_beginning(monkeypatch):
    """Work that is given up again and again must not fill the memory with calls that nobody waits for."""
    go_on, begun, third = threading.Event(), threading.Semaphore(0), threading.Event()

    def call():
        begun.release()
        go_on.wait(60)

    def give_up(*step):
        assert begun.acquire(timeout=60)
        raise TimeoutError

    for _ in range(checkpoints.LEFT_BEHIND):
        with watched(give_up), pytest.raises(TimeoutError):
            aside(call)
    asked = []

    def watch(*step):
        asked.append(third.is_set())
        if len(asked) == 3:
            go_on.set()

    with watched(watch):
        assert aside(lambda: third.set() or 7) == 7
    assert asked[:3] == [False, False, False]


def test_a_call_aside_is_not_waited_for_by_one_who_is_stopped():
    begun, ended = threading.Event(), threading.Event()

    def call():
        begun.set()
        wait_for(ended)

    with watched(Watcher(2)), pytest.raises(Enough):
        aside(call)
    assert begun.is_set()
    ended.set()
    with watched(Watcher()):
        assert aside(lambda: 5) == 5
        with pytest.raises(ZeroDivisionError):
            aside(lambda: 1 // 0)
    assert aside(threading.get_ident) == threading.get_ident()


@pytest.mark.parametrize("distance", ["wasserstein", "chamfer", "hausdorff"])
def test_distances_stop(distance):
    """In the middle: without being asked, 100 candidates would come to more checkpoints."""
    if distance == "wasserstein":
        pytest.importorskip("ot")
    function, watcher = getattr(slosh.rank, distance), Watcher(1)
    with watched(watcher), pytest.raises(Enough):
        function(cloud_list(1)[0], cloud_list(100))


def test_sliced_distances_come_to_a_checkpoint_for_each_batch_of_pairs(monkeypatch):
    sets = slosh.Sets.from_list(cloud_list(40))
    pairs = slosh.rank.sliced.SlicedPairs(sets)
    which, index = (each.ravel() for each in np.indices((40, 40)))
    expected = pairs.distances(which, sets, index)
    monkeypatch.setattr("slosh.rank.sliced.TRANSPORT_STEPS", 1 << 12)
    watcher = Watcher()
    with watched(watcher):
        assert np.array_equal(pairs.distances(which, sets, index), expected)
    assert len(watcher.steps) > 50


def test_a_block_that_was_left_open_changes_nothing_when_it_is_left_late():
    """Ctrl-C may leave a generator open, which is collected at any time."""
    outer, inner = held(), held(False)
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    with watched(Watcher(1)), pytest.raises(Enough):
        checkpoint()
