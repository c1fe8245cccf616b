"""How a command runs as a process: its errors and warnings become lines on standard error, and an exit code.

    0    success
    1    the command failed
    2    invalid usage
    130  stopped by Ctrl-C
    141  the reader of the output closed it; silent

With SLOSH_DEBUG=1 in the environment the traceback of an error is shown too.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from .messages import UsageError, error_message, warning_message
from .output import OutputClosed, flush, remark

FAILED, INVALID_USAGE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141


def run(command: Callable[[], Any]) -> int:
    """Run a command, print its errors, and return the exit code."""
    with _warnings_as_lines():
        try:
            with _ctrl_c_is_acknowledged():  # what it says comes before what is said of the end
                code = command()
            flush()
            return code if isinstance(code, int) else 0
        except (KeyboardInterrupt, typer.Abort):
            remark("slosh: stopped")
            return INTERRUPTED
        except (OutputClosed, BrokenPipeError):
            _discard_output()
            return PIPE_CLOSED
        except Exception as error:
            if os.environ.get("SLOSH_DEBUG", "0") not in ("", "0"):
                traceback.print_exc()
            return _report(error)


def _report(error: Exception) -> int:
    """Print an error, and return its exit code."""
    usage = getattr(error, "format_message", None)  # of a wrong option or argument: typer's own errors
    if usage is not None:
        context = getattr(error, "ctx", None)
        name = context.command_path if context is not None else "slosh"
        remark(f"{name}: {usage()}\n{name} --help shows how to use it")
        return INVALID_USAGE
    remark(f"slosh: {error if isinstance(error, UsageError) else error_message(error)}")
    return INVALID_USAGE if isinstance(error, UsageError) else FAILED


def _discard_output() -> None:
    """Send later writes, those at the end of the process included, nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _ctrl_c_is_acknowledged() -> Iterator[None]:
    """Print a line at once on Ctrl-C where the library delays it until a change is stored.

    While it does it has a handler of its own in place. Python writes the number of a signal to the wakeup descriptor
    at once, whatever the handler; a thread reads it there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = signal.getsignal(signal.SIGINT)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    def listen() -> None:
        while (heard := ours.recv(1)) not in (b"", b"\0"):
            if heard[0] == signal.SIGINT and signal.getsignal(signal.SIGINT) is not usual:
                remark("slosh: finishing what is being stored ...")

    listener = threading.Thread(target=listen, name="slosh-ctrl-c", daemon=True)
    with ours, theirs:
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        listener.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            theirs.send(b"\0")
            listener.join()


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    def show(warning: Any, *about: Any, **more: Any) -> None:
        remark(f"slosh: warning: {warning_message(warning)}")

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]
        yield
