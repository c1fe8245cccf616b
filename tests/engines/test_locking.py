"""One change after another: across threads they wait, within a thread a change inside of a write is refused."""

from __future__ import annotations

import signal
import threading

import pytest

from builders import PATIENCE, together
from slosh.data.interrupts import interruptible
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


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_waits_for_the_end_of_a_change():
    done = []

    def change():
        with ChangeLock().writing():
            signal.raise_signal(signal.SIGINT)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        change()
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("ctrl_c")
def test_threads_beside_the_main_one_leave_signals_alone():
    def change():
        with ChangeLock().writing(), interruptible():
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    together(change)
