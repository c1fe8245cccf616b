"""The folder of a running server, and those that killed servers left."""

from __future__ import annotations

import errno
import io
import os
import shutil
import socket
import tempfile
from pathlib import Path

import numpy as np
import pytest

from builders import until
from conftest import N_SETS, fill
from server_process import Server, ask
from slosh.server.folder import own_folder

UPLOAD = """\
POST /v1/indexes/shapes/upload?filename=x.npy HTTP/1.1\r
Host: localhost\r
Content-Type: application/octet-stream\r
Content-Length: 2000000\r
\r
"""


@pytest.fixture
def temporary(monkeypatch):
    """A temporary directory of servers: a short path, for their sockets."""
    with tempfile.TemporaryDirectory(prefix="slosh-tests-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.mark.parametrize("options", [("--jobs", 1), ("--jobs", 1, "--workers", 2)])
def test_what_a_killed_server_left(tmp_path, temporary, options):
    """The next server removes it, half an upload, say, but not what a running server has, nor what is no folder."""

    def folders():
        return {each for each in temporary.glob("slosh-*") if each.is_dir() and not each.is_symlink()}

    note, link = temporary / "slosh-server-note", temporary / "slosh-server-link"
    note.write_text("this is no folder of a server")
    link.symlink_to(tmp_path)
    shapes, others = fill(tmp_path), fill(tmp_path, "others")
    killed = Server(shapes, options=options)
    with socket.create_connection(("127.0.0.1", killed.port)) as connection:
        connection.sendall(UPLOAD.encode() + bytes(1_000_000))
        until(lambda: any(each.stat().st_size for each in temporary.glob("slosh-server-*/upload-*")))
        killed.process.kill()
        killed.stop()
    with Server(others, options=options) as running:
        (kept,) = (each for each in folders() if not any(each.glob("upload-*")))
        with Server(shapes, options=("--jobs", 1)) as again:
            assert len(folders()) == 2
            assert kept in folders()
            assert ask(again, "GET", "/v1/indexes/shapes/count")[2] == {"count": N_SETS}
        assert ask(running, "GET", "/v1/indexes/others/count")[2] == {"count": N_SETS}
    assert not folders()
    assert note.exists()
    assert link.exists()
    assert (shapes / "index.db").exists()


def test_a_folder_that_somebody_removed_is_made_again(tmp_path, temporary):
    with Server(fill(tmp_path), options=("--jobs", 1)) as server:
        (folder,) = temporary.glob("slosh-server-*")
        shutil.rmtree(folder)
        body = io.BytesIO()
        np.save(body, np.ones((3, 2)))
        path = "/v1/indexes/shapes/upload?filename=x.npy"
        status, _, answer = ask(server, "POST", path, body.getvalue(), content_type="application/octet-stream")
        assert (status, answer) == (201, {"ids": ["x.npy"]})


def test_a_temporary_directory_without_locks(temporary, monkeypatch):
    """A server can be there, and leaves what others left."""

    def refuse(*given):
        raise OSError(errno.ENOLCK, "no locks")

    left = temporary / "slosh-server-left"
    left.mkdir()
    monkeypatch.setattr("slosh.server.folder.fcntl.flock", refuse)
    with own_folder() as folder:
        assert folder.is_dir()
        assert left.is_dir()
    assert [*temporary.iterdir()] == [left]


def test_a_folder_of_a_server_that_was_killed_at_once(temporary):
    """One that is young may be that of a server that is just starting."""
    old, young = temporary / "slosh-new-server-old", temporary / "slosh-new-server-young"
    for each in (old, young):
        each.mkdir()
    os.utime(old, (0, 0))
    with own_folder():
        assert young.is_dir()
        assert not old.exists()


def test_a_temporary_directory_whose_path_is_too_long(tmp_path, temporary, monkeypatch):
    long = temporary / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    with pytest.raises(AssertionError, match=r"too long for a socket: .*set TMPDIR to a shorter one"):
        Server(fill(tmp_path), options=("--jobs", 1, "--workers", 2))
    assert not [*long.iterdir()]
