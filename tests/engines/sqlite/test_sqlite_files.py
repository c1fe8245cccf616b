"""The folder of an index as other people may have left it: foreign files, links, other databases, other versions."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import socket
import sqlite3
import stat
from pathlib import Path

import index_child as child
import pytest

import slosh
from builders import PATIENCE, contents, within
from slosh import errors

N = 40


class Bomb:
    """What pickle would run."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}; exit 7",)


@pytest.fixture
def path(tmp_path):
    """An index as it should be."""
    child.made(tmp_path / "i", N)[0].close()
    return tmp_path / "i"


def both_ways(path):
    """Try to open an index for reading and for writing; return the errors."""
    found = []
    for read_only in (True, False):
        with pytest.raises((ValueError, OSError)) as told:
            slosh.open(path, read_only=read_only, n_jobs=1)
        found.append(told.value)
    return found


CONTENTS = {
    "empty": b"",
    "text": b"text",
    "pickle": None,
    "magic": b"SQLite format 3\0",
    "magic and zeros": b"SQLite format 3\0" + bytes(4000),
    "deep": b"[" * 10_000 + b"]" * 10_000,
}


@pytest.mark.parametrize("what", CONTENTS)
def test_what_is_not_a_database_is_refused(tmp_path, path, what):
    mark = tmp_path / "was here"
    content = pickle.dumps(Bomb(mark)) if what == "pickle" else CONTENTS[what]
    (path / "index.db").write_bytes(content)
    assert all(isinstance(error, errors.FormatError | errors.DamagedError) for error in both_ways(path))
    assert (path / "index.db").read_bytes() == content
    assert not mark.exists()


def test_another_kind_of_database_is_refused(tmp_path):
    (tmp_path / "i").mkdir()
    with contextlib.closing(sqlite3.connect(tmp_path / "i" / "index.db")) as connection:
        connection.execute("CREATE TABLE t(a)")
    before = (tmp_path / "i" / "index.db").read_bytes()
    for error in both_ways(tmp_path / "i"):
        assert isinstance(error, errors.FormatError)
        assert "not an index of slosh" in str(error)
    assert (tmp_path / "i" / "index.db").read_bytes() == before


def version_of(path):
    with contextlib.closing(sqlite3.connect(path / "index.db")) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


@pytest.mark.parametrize("version", [0, 99, -1])
def test_another_format_version_is_refused(path, version):
    current = version_of(path)
    with contextlib.closing(sqlite3.connect(path / "index.db", isolation_level=None)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    for error in both_ways(path):
        assert isinstance(error, errors.FormatError)
        assert (error.found, error.supported) == (version, current)
        assert str(version) in str(error)
        assert error.remedy
    assert version_of(path) == version


def test_a_version_that_does_not_fit_its_tables_is_refused(path):
    """It says that it is old, and is not: an upgrade would not know what to do with it."""
    with contextlib.closing(sqlite3.connect(path / "index.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA user_version = 1")
    for error in both_ways(path):
        assert isinstance(error, errors.FormatError)


def test_nothing_is_unpickled(path, monkeypatch):
    def forbidden(*given, **more):
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    with slosh.open(path, n_jobs=1) as index:
        index.add([child.points_of("1", 0)], ["more"])
        assert len(index.search(child.points_of("1", 0), k=3, certify=True)) == 3
        assert index.verify().ok
        index.compact()
    package = Path(slosh.__file__).parent
    for module in [*(package / "engines").rglob("*.py"), *(package / "index").rglob("*.py")]:
        assert "import pickle" not in module.read_text(), module


@pytest.mark.parametrize("name", ["lock", "index.db-wal", "index.db-shm", "index.db-journal"])
def test_a_link_never_leads_to_a_file_that_is_overwritten(tmp_path, path, name):
    victim = tmp_path / "victim"
    victim.write_text("precious " * 1000)
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(victim)
    for read_only in (False, True):
        with contextlib.suppress(ValueError, OSError), slosh.open(path, read_only=read_only, n_jobs=1) as index:
            index.add([child.points_of("1", 0)], ["more"])
        assert victim.read_text() == "precious " * 1000


def make_device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except OSError:
        pytest.skip("no device can be made here")


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


KINDS = {
    "folder": os.mkdir,
    "pipe": os.mkfifo,
    "link to nowhere": lambda path: os.symlink("/nowhere/at/all", path),
    "link to a pipe": lambda path: (os.mkfifo(f"{path}.pipe"), os.symlink(f"{path}.pipe", path)),
    "socket": make_socket,
    "device": make_device,
}
FILES = ["lock", "index.db", "index.db-wal", "index.db-shm", "index.db-journal", "cache", "stamp", "derived", "arrays"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_what_is_not_a_plain_file_is_refused_or_made_again(tmp_path, name, kind):
    """An error with a sentence and the file's place, or it does not matter; never a wait."""
    path = tmp_path / "i"
    child.made(path, 1100 if name == "derived" else N)[0].close()
    n = 1100 if name == "derived" else N
    files = {"stamp": ["cache/stamp"], "derived": ["cache/derived.1"]}.get(name, [name])
    if name == "arrays":
        files = [f"cache/{file.name}" for file in (path / "cache").glob("[!d]*.1")]
        assert len(files) > 3
    for file in files:
        if name == "cache":
            shutil.rmtree(path / name)
        (path / file).unlink(missing_ok=True)
        KINDS[kind](path / file)
    for read_only in (True, False):
        try:
            with within(PATIENCE), slosh.open(path, read_only=read_only, n_jobs=1) as index:
                assert len(index) == n
                index.search(child.points_of("1", 0), k=3)
        except (errors.StorageError, errors.FormatError) as error:
            assert name in error.location or "index.db" in error.location or error.location == str(path)  # noqa: PT017
            assert name in ("lock", "index.db", "index.db-wal", "index.db-shm", "index.db-journal")
            refused = True
        else:
            refused = False
        assert refused or name not in ("index.db", "lock" if not read_only else "")


def test_links_in_the_cache_are_not_followed(tmp_path, path):
    precious = tmp_path / "precious"
    precious.mkdir()
    for file in (path / "cache").iterdir():
        (precious / file.name).write_text("precious " * 1000)
    for name in ("syslog.1", "draft.tmp", f"stamp.{os.getpid()}.tmp", "stamp.tmp"):
        (precious / name).write_text("precious " * 1000)
    before = {p.name: p.read_text() for p in precious.iterdir()}
    shutil.rmtree(path / "cache")
    (path / "cache").symlink_to(precious)
    with slosh.open(path, n_jobs=1) as index:
        index.add([child.points_of("1", 0)], ["more"])
    assert {p.name: p.read_text() for p in precious.iterdir()} == before
    for file in [
        *(path / "cache").iterdir(),
        path / "cache" / f"stamp.{os.getpid()}.tmp",
        path / "cache" / "stamp.tmp",
    ]:
        file.unlink(missing_ok=True)
        file.symlink_to(precious / "syslog.1")
    with slosh.open(path, n_jobs=1) as index:
        index.add([child.points_of("1", 0)], ["and more"])
        assert len(index) == N + 2
        assert index.verify().ok
    assert {p.name: p.read_text() for p in precious.iterdir()} == before


def test_foreign_files_in_the_folder_are_left_alone(path):
    names = ("notes.txt", "cache/notes.1", "cache/x.tmp", "cache/README")
    for name in names:
        (path / name).write_text("mine")
    with slosh.open(path, n_jobs=1) as index:
        held = contents(index)
        index.compact()
        assert contents(index).keys() == held.keys()
    for name in names:
        assert (path / name).read_text() == "mine"


def test_only_index_db_is_needed(tmp_path, path):
    with slosh.open(path, n_jobs=1) as index:
        held = contents(index)
    (tmp_path / "bare").mkdir()
    shutil.copy(path / "index.db", tmp_path / "bare" / "index.db")
    for read_only in (True, False):
        with slosh.open(tmp_path / "bare", read_only=read_only, n_jobs=1) as index:
            assert contents(index) == held
            assert index.info()["embedded_on_open"] == N
