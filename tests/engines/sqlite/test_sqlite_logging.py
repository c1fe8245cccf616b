"""What the SQLite engine logs under the name "slosh": what it does unasked, and what goes wrong."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

import slosh
from builders import cloud_list, make_index
from slosh.engines.sqlite import upgrade
from slosh.engines.sqlite.database import Cursor
from slosh.errors import StorageError, UnknownOutcome

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture
def path(tmp_path):
    with make_index(tmp_path / "index") as index:
        index.add(cloud_list(5))
    return tmp_path / "index"


@pytest.fixture
def logged(caplog):
    """Return what was logged from a level on, as (level, message), and forget it."""

    def records(level):
        found = [(each.levelname, each.getMessage()) for each in caplog.records if each.levelno >= level]
        assert all(each.name.startswith("slosh.") for each in caplog.records)
        caplog.clear()
        return found

    caplog.set_level(logging.INFO, "slosh")
    return records


@pytest.mark.parametrize("read_only", [False, True])
def test_caches_that_are_made_again_are_named_with_the_reason(path, logged, read_only):
    slosh.open(path, read_only=read_only).close()
    assert logged(logging.WARNING) == []
    (path / "cache" / "stamp").write_text("{")
    for _ in range(2):
        with slosh.open(path, read_only=read_only) as index:
            reason = index.info()["cache_rebuilt"]
            told = logged(logging.WARNING)
            index.search([[0.0, 0.0]])
            assert logged(logging.WARNING) == []
        if reason is None:
            assert not read_only  # a writer mends them
            assert told == []
        else:
            assert "the stamp is damaged" in reason
            assert told == [("WARNING", f"{path / 'index.db'}: the caches cannot be used and are made again: {reason}")]
    assert (reason is not None) == read_only


def test_what_makes_new_caches_on_purpose_is_no_warning(path, logged):
    with slosh.open(path) as index:
        index.remove(index.ids[:2])
        index.compact()
        assert index.info()["cache_rebuilt"] is None
    with make_index(path.with_name("empty")):
        pass
    assert logged(logging.WARNING) == []


def test_an_upgrade_is_logged(tmp_path, logged):
    path = Path(shutil.copytree(GOLDEN / "index-v2" / "weighted.slosh", tmp_path / "old"))
    slosh.open(path).close()
    told = [message for level, message in logged(logging.INFO) if level == "INFO" and "upgraded" in message]
    assert told == [f"{path / 'index.db'}: upgraded from format version 2 to {upgrade.FORMAT_VERSION}"]
    slosh.open(path).close()
    assert not [message for _, message in logged(logging.INFO) if "upgraded" in message]


@pytest.mark.parametrize("settled", [True, False])
def test_a_commit_that_fails_is_logged(path, logged, settled, monkeypatch):
    execute = Cursor.execute

    def fail(cursor, sql, *values):
        if sql == "COMMIT" and cursor.connection.writes:
            raise StorageError("the disk is full")
        if sql.startswith("PRAGMA user_version") and not settled:
            raise StorageError("the disk is gone")
        return execute(cursor, sql, *values)

    with slosh.open(path) as index:
        logged(logging.INFO)
        monkeypatch.setattr(Cursor, "execute", fail)
        with pytest.raises(StorageError) as caught:
            index.add(cloud_list(1), ["new"])
        monkeypatch.undo()
        assert isinstance(caught.value, UnknownOutcome) != settled
        database = path / "index.db"
        expected = [("WARNING", f"{database}: a commit failed (the disk is full)")]
        if not settled:
            expected.append(("WARNING", f"{database}: it is not known whether the change that failed is stored"))
        assert logged(logging.INFO) == expected
        assert "new" not in index


def test_nothing_is_printed_where_no_logging_is_set_up(path, capfd):
    (path / "cache" / "stamp").write_text("{")
    root, slosh_logger = logging.getLogger(), logging.getLogger("slosh")
    handlers, root.handlers = root.handlers, []
    try:
        with slosh.open(path) as index:
            assert index.info()["cache_rebuilt"]
    finally:
        root.handlers = handlers
    assert slosh_logger.hasHandlers()
    assert capfd.readouterr().err == ""
