"""A disk that fails: reads, writes and flushes that the system refuses, and processes that end right after a flush.

The calls fail by a shim (faults.c) that is preloaded into the process that makes them.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import traceback
from pathlib import Path

import index_child as child
import pytest
from children import Children

import slosh
from slosh.errors import DamagedError, FormatError, StorageError

SYNC, READ, WRITE = 1, 2, 3
FOR_EVER, KILL = 1 << 30, -1


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    """A process whose children may let calls on files in a folder "faulty" fail."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not Path("/proc/self/fd").is_dir():
        pytest.skip("there is no C compiler, or no /proc")
    shim = tmp_path_factory.mktemp("shim") / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"], check=True)
    made = Children(LD_PRELOAD=str(shim))
    yield made
    made.close()


@pytest.fixture
def path(fast_disk):
    (fast_disk / "faulty").mkdir()
    path = fast_disk / "faulty" / "index"
    child.made(path, 20)[0].close()
    return path


def arm(kind, skip=0, times=FOR_EVER, error=errno.EIO):
    ctypes.CDLL(None).arm_fault(kind, skip, times, error)


def disarm():
    arm(0)


def run(process, name, *given):
    assert process.run(f"test_sqlite_failing_disk:{name}", *given) == 0


# -- commits -----------------------------------------------------------------------------------------------------------


def add_with_a_failed_flush(path, log, skip, times, error):
    """Add a set while flushes fail; say what was raised, and end without closing anything."""
    index = slosh.open(path, n_jobs=1)
    index.add([child.points_of("1", 0)], ["before"])
    arm(SYNC, skip, times, error)
    told = None
    try:
        index.add([child.points_of("2", 0)], ["new"])
    except StorageError as raised:
        told = [type(raised).__name__, raised.errno, raised.location, list(getattr(raised, "ids", []))]
    disarm()
    Path(log).write_text(json.dumps({"told": told, "there": "new" in index}))
    os._exit(0)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("skip", [0, 1])
def test_a_change_whose_flush_failed_is_not_there_afterwards(path, failing, tmp_path, skip, error):
    """Its pages are in the log by then; whoever recovers the log would find the change."""
    log = tmp_path / "log"
    run(failing, "add_with_a_failed_flush", path, log, skip, 1, error)
    said = json.loads(log.read_text())
    assert said["there"] == (said["told"] is None)
    assert said["told"] is None or (said["told"][0] == "StorageError" and said["told"][2].endswith("index.db"))
    assert skip or said["told"] is not None
    for read_only in (True, False):
        with slosh.open(path, read_only=read_only, n_jobs=1) as index:
            assert ("new" in index) == said["there"]
            assert "before" in index
            assert index.verify().ok


def test_an_unknown_outcome_is_said_and_opening_settles_it(path, failing, tmp_path):
    """The disk fails for good, also when the change is to be taken back."""
    log = tmp_path / "log"
    run(failing, "add_with_a_failed_flush", path, log, 0, FOR_EVER, errno.EIO)
    assert json.loads(log.read_text())["told"] == ["UnknownOutcome", errno.EIO, str(path / "index.db"), ["new"]]
    seen = []
    for _ in range(3):
        with slosh.open(path, n_jobs=1) as index:
            seen.append("new" in index)
            assert "before" in index
            assert index.verify().ok
    assert len(set(seen)) == 1


def add_and_be_killed(path):
    """Add a set, and be killed when the log is flushed, before others are told of it."""
    index = slosh.open(path, n_jobs=1)
    index.add([child.points_of("1", 0)], ["before"])
    arm(SYNC, 0, 1, KILL)
    index.add([child.points_of("2", 0)], ["new"])


def test_opening_for_writing_settles_what_a_killed_writer_left(path, failing):
    """While another process reads, nobody sees the change; it must not come back when that one has ended."""
    reader = slosh.open(path, read_only=True, n_jobs=1)
    assert len(reader) == 20
    assert failing.run("test_sqlite_failing_disk:add_and_be_killed", path) == -signal.SIGKILL
    assert "before" in reader
    seen = []
    for _ in range(2):
        with slosh.open(path, n_jobs=1) as index:
            seen.append("new" in index)
    reader.close()
    for read_only in (True, False):
        with slosh.open(path, read_only=read_only, n_jobs=1) as index:
            seen.append("new" in index)
            assert index.verify().ok
    assert len(set(seen)) == 1, seen


# -- every other call --------------------------------------------------------------------------------------------------


def use(path):
    """Do everything that reads or writes."""
    with slosh.open(path, read_only=True, n_jobs=1) as index:
        index.search(child.points_of("1", 7), k=5, where={"mod": 1})
    with slosh.open(path, n_jobs=1) as index:
        index.add([child.points_of("7", 1)], ["more"], {"x": 1}, update=True)
        index.get("3")
        index.remove("more")
        index.compact()
        assert sum(len(part.ids) for part in index.records()) == 20


def look_for_raw_errors(path, log, kind, first, step):
    """Let each call of a kind fail in turn, once and for good, until there are no more."""
    problems = []
    for number in itertools.count(first, step):
        for times, error in ((1, errno.EIO), (FOR_EVER, errno.ENOSPC)):
            arm(kind, number, times, error)
            told = None
            try:
                use(path)
            except (StorageError, DamagedError, FormatError) as raised:
                told = raised
            except BaseException:
                problems.append([number, traceback.format_exc()])
            failed = ctypes.CDLL(None).count_faults()
            disarm()
            if told is not None and not (told.location and (told.remedy or isinstance(told, FormatError))):
                problems.append([number, f"{told!r} has no location or no remedy"])
            with slosh.open(path, n_jobs=1) as index:
                if "more" in index:
                    index.remove("more")
                if len(index) != 20:
                    problems.append([number, f"{len(index)} sets"])
        if not failed or len(problems) > 3:
            break
    Path(log).write_text(json.dumps({"problems": problems, "tried": number}))


@pytest.mark.parametrize(("kind", "step"), [(READ, 7), (WRITE, 9), (SYNC, 3)], ids=["read", "write", "sync"])
def test_a_refused_call_is_a_storage_error(path, failing, tmp_path, kind, step, campaign):
    run(failing, "look_for_raw_errors", path, tmp_path / "log", kind, 0, {"part": step, "all": 1}[campaign])
    said = json.loads((tmp_path / "log").read_text())
    assert not said["problems"], said["problems"][0][1]
    assert said["tried"] >= 3


def look_with_few_files(path, log):
    """Open and search while there is room for only a few more files."""
    problems, told = [], []
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    index = slosh.open(path, n_jobs=1)

    def attempt(work):
        try:
            work()
        except StorageError as error:
            told.append(error.errno)
            if not (error.location and error.remedy):
                problems.append(f"{error!r} has no location or no remedy")
        except BaseException:
            problems.append(traceback.format_exc())

    for more in range(14):
        taken = len(os.listdir("/proc/self/fd")) - 1
        held = index.records(batch=1)
        next(held)  # its connection is in use: a search needs another
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken + more, limits[1]))
        attempt(lambda: index.search(child.points_of("1", 7), k=3))
        attempt(lambda: slosh.open(path, read_only=True, n_jobs=1).close())
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        held.close()
    index.close()
    Path(log).write_text(json.dumps({"problems": problems, "told": told}))


def test_too_many_open_files_is_a_storage_error(path, children, tmp_path):
    run(children, "look_with_few_files", path, tmp_path / "log")
    said = json.loads((tmp_path / "log").read_text())
    assert not said["problems"], said["problems"][0]
    assert set(said["told"]) == {errno.EMFILE}
