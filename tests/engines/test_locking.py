"""One change after another: across threads they wait, within a thread a change inside of a write is refused."""

from __future__ import annotations

import signal
import threading

import pytest

from builders import PATIENCE, together
from slosh.engines.locking import ChangeLock, interruptible, uninterrupted
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
def test_ctrl_c_interrupts_what_may_be_interrupted():
    done = []

    def interrupted_later():
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("waited")
            with interruptible():
                done.append("never")

    def interrupted_at_once():
        with uninterrupted():
            try:
                with interruptible():
                    signal.raise_signal(signal.SIGINT)
                    done.append("never")
            finally:
                signal.raise_signal(signal.SIGINT)  # the second one waits for what the first one entails
                done.append("put in order")

    for work in (interrupted_later, interrupted_at_once):
        with pytest.raises(KeyboardInterrupt):
            work()
    assert done == ["waited", "put in order"]


@pytest.mark.usefixtures("ctrl_c")
def test_a_change_of_another_index_within_what_may_be_interrupted():
    done = []

    def change():
        with uninterrupted(), interruptible():
            with uninterrupted():
                signal.raise_signal(signal.SIGINT)
                done.append("inner")
            done.append("never")

    with pytest.raises(KeyboardInterrupt):
        change()
    assert done == ["inner"]


def test_a_handler_of_the_users_own_is_called_once_and_stays():
    came = []

    def handler(*given):
        came.append(given)

    before = signal.signal(signal.SIGINT, handler)
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            assert not came
            with interruptible():
                assert len(came) == 1
                signal.raise_signal(signal.SIGINT)
                assert len(came) == 2
                signal.raise_signal(signal.SIGINT)
                assert len(came) == 3
        assert len(came) == 3
        assert signal.getsignal(signal.SIGINT) is handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with uninterrupted(), interruptible():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_threads_beside_the_main_one_leave_signals_alone():
    def change():
        with ChangeLock().writing(), interruptible():
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    together(change)
