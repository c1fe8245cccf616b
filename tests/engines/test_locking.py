"""One change after another: across threads they wait, within a thread a change inside of a write is refused."""

from __future__ import annotations

import threading

import pytest

from builders import PATIENCE
from slosh.engines.locking import ChangeLock
from slosh.errors import NestedChange


def test_a_change_within_a_write_is_refused():
    lock = ChangeLock()
    with lock.writing():
        for again in (lock.writing, lock.changing):
            with pytest.raises(NestedChange), again():
                pass
    with lock.changing(), lock.changing():  # the steps of one change
        pass
    with lock.writing():
        pass


def test_a_write_that_fails_is_over():
    lock = ChangeLock()
    with pytest.raises(ValueError, match="no"), lock.writing():
        raise ValueError("no")
    with lock.writing():
        pass


def test_other_threads_wait():
    lock, order, begun = ChangeLock(), [], threading.Event()

    def change():
        begun.set()
        with lock.writing():
            order.append("second")

    with lock.writing():
        thread = threading.Thread(target=change)
        thread.start()
        assert begun.wait(PATIENCE)
        thread.join(0.1)  # time to go wrong; a lock that holds needs none
        assert thread.is_alive()
        order.append("first")
    thread.join(PATIENCE)
    assert order == ["first", "second"]
