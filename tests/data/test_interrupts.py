"""Ctrl-C waits for what must not be interrupted, and stops what may be."""

from __future__ import annotations

import signal

import pytest

from slosh.data.interrupts import interruptible, uninterrupted


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
