"""How a command ends: errors become one line on standard error and an exit code, warnings become one line each.

    0    done
    1    what was asked for failed
    2    it was asked for in a wrong way
    130  stopped by Ctrl-C
    141  whoever read the output went away; silent

With SLOSH_DEBUG=1 in the environment the traceback of an error is shown too.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import sqlite3
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from .output import NobodyReads, flush, remark

FAILED, WRONG_USE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141

_OPTIONS = (
    "format|id_column|columns|weights|by|obsm|n_points|random_state|origin|recall|k|radius|rerank|scale|max_points"
)
_IN_PYTHON: list[tuple[str, str]] = [
    (
        r'pass origin="auto", or an array of (\d+) numbers, to subtract it before the conversion',
        r"subtract it when the index is built: --origin auto, or \1 numbers with commas between",
    ),
    (r"pass an origin that is nearer", "build the index with an --origin nearer"),
    (r'\borigin="auto"', "--origin auto"),
    (r"update=True", "--update"),
    (r"weighted=True", "--weighted"),
    (r"certify=True", "--certify"),
    (r"\bn_points=", "--points "),
    (r"\brandom_state=", "--seed "),
    (rf"\b({_OPTIONS})=(?=[\w'\"(\[.-])", r"--\1 "),
    (rf"\b({_OPTIONS})=", r"--\1"),
    (r"another id_column\b", "another --id-column"),
    (r"--id_column", "--id-column"),
    (r"--max_points", "--max-points"),
    (r"call index\.compact\(\)", "run slosh compact"),
    (r"make an index with slosh\.SetIndex\.create, or slosh build", "make it with slosh build"),
    (r": close it there, or open it with read_only=True", ": wait until that is done"),
    (r"(index\.)?\bverify\(\)", "slosh verify"),
    (r"LadderSearch\(precision=32\)", "--search exact"),
    (
        r"standardise the features: divide each by .*, x / sets\.points\.std\(axis=0\)",
        "build the index with --standardize",
    ),
    (r"build the search again, and save it", "restore the index from a copy, or build it again"),
    (r"close the index, delete its folder cache, and open it again", "delete its folder cache"),
]
"""What the library calls its arguments, and what they are called here."""


_OF_SQLITE = {
    "malformed": "slosh verify tells more; restore it from a copy",
    "not a database": "restore it from a copy",
    "readonly": "it can be searched as it is; to change it, copy the index to a folder in which you may write",
    "disk I/O": "look whether the disk is full, or fails",
    "is full": "free some space, and run it again; what was stored before is in order",
}
"""Words of SQLite's errors, and what to do."""


class WrongUse(Exception):
    """The arguments do not go together; the message says what to give instead."""


class Failed(Exception):
    """What was asked for cannot be done; the message says why, and what to do."""


def run(command: Callable[[], Any]) -> int:
    """The exit code of a command, after its errors were told."""
    with _warnings_as_lines(), _ctrl_c_is_heard():
        try:
            code = command()
            flush()
            return code if isinstance(code, int) else 0
        except (KeyboardInterrupt, typer.Abort):
            remark("slosh: stopped")
            return INTERRUPTED
        except (NobodyReads, BrokenPipeError):
            return _nobody_listens()
        except Exception as error:
            if os.environ.get("SLOSH_DEBUG", "0") not in ("", "0"):
                traceback.print_exc()
            return _told(error)


def _told(error: Exception) -> int:
    usage = getattr(error, "format_message", None)  # of a wrong option or argument: typer's own errors
    if isinstance(error, WrongUse) or usage is not None:
        context = getattr(error, "ctx", None)
        name = context.command_path if context is not None else "slosh"
        remark(f"{name}: {usage() if usage is not None else error}")
        if usage is not None:
            remark(f"{name} --help shows how it is used")
        return WRONG_USE
    remark(f"slosh: {message(error)}")
    return FAILED


def message(error: BaseException) -> str:
    """What an error says, in the words of the command line."""
    said = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if isinstance(error, MemoryError):
        return f"not enough memory: {said}" if said else "not enough memory"
    if isinstance(error, sqlite3.Error):
        return _of_the_database(said)
    if isinstance(error, OSError) and error.strerror:
        return _of_the_system(error)
    if not isinstance(error, Failed | ValueError | KeyError | OSError | ImportError | RuntimeError):
        return f"{type(error).__name__}: {said} (an error of slosh itself: SLOSH_DEBUG=1 shows where)"
    return _in_words(said) or type(error).__name__


def _in_words(said: str) -> str:
    for pattern, here in _IN_PYTHON:
        said = re.sub(pattern, here, said)
    return said


def _of_the_system(error: OSError) -> str:
    """What the operating system has refused, and what to do."""
    said = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    if error.errno == errno.ENOSPC:
        return f"{said}: free some space, and run it again; what was stored before is in order"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        name = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
        if name is not None and name.name == "lock":
            return (
                f"{name.parent} cannot be changed ({error.strerror}): it can be searched as it is; to change it, copy "
                "it to a folder in which you may write"
            )
        return f"{said}: use a place that you may read and write, or change its permissions"
    return said


def _of_the_database(said: str) -> str:
    """What SQLite has refused, and what to do."""
    for mark, remedy in _OF_SQLITE.items():
        if mark in said:
            return f"the database: {said}: {remedy}"
    return f"the database: {said}"


def _nobody_listens() -> int:
    """Later writes, those at the end of the process included, go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    return PIPE_CLOSED


@contextmanager
def _ctrl_c_is_heard() -> Iterator[None]:
    """Says at once that Ctrl-C was heard, where the library waits with it until all of a change is stored.

    While it waits it has a handler of its own in place. Python writes the number of a signal to the wakeup descriptor
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
    def show(said: Any, *about: Any, **more: Any) -> None:
        remark(f"slosh: warning: {_in_words(' '.join(str(said).split()))}")

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]
        yield
