"""Files that are replaced whole or not at all, also by a process that is killed meanwhile."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys

import pytest

from slosh.data.atomic import replacing
from slosh.errors import FolderNotFound, NotAFile, StorageError


def test_the_old_or_the_new_content(tmp_path):
    path = tmp_path / "x"
    with replacing(path) as stream:
        stream.write(b"old")
        assert not path.exists()
        assert os.path.dirname(stream.name) == str(tmp_path)
    assert path.read_bytes() == b"old"
    with replacing(path) as stream:
        stream.write(b"new")
        stream.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, MemoryError, SystemExit])
def test_an_error_leaves_the_old_content_and_nothing_else(tmp_path, error):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(error), replacing(path) as stream:  # noqa: PT012
        stream.write(b"half")
        raise error
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_content(tmp_path, monkeypatch, step):
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(OSError, match="No space left"), replacing(path) as stream:
            stream.write(b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize(("step", "content"), [("fsync", b"old"), ("replace", b"old"), ("close", b"new")])
def test_a_process_killed_on_the_way(tmp_path, step, content):
    """Killed when it is to flush, to rename, or after that: the file is whole, and can be written again."""
    path = tmp_path / "x"
    path.write_bytes(b"old")
    code = (
        "import os, signal, sys\n"
        "from slosh.data.atomic import replacing\n"
        "with replacing(sys.argv[1]) as stream:\n"
        "    stream.write(b'new')\n"
        "    setattr(os, sys.argv[2], lambda *a: os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path, step], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == content
    with replacing(path) as stream:
        stream.write(b"newer")
    assert path.read_bytes() == b"newer"


def test_where_it_cannot_write(tmp_path):
    with pytest.raises(FolderNotFound, match="is not a folder: create it first"), replacing(tmp_path / "a" / "b"):
        pass
    with pytest.raises(NotAFile, match="is a folder: give the name of a file"), replacing(tmp_path):
        pass
    assert os.listdir(tmp_path) == []


def test_a_draft_is_never_a_link(tmp_path, monkeypatch):
    """Even where the name of the draft is known, what lies there already is not written to."""
    monkeypatch.setattr("slosh.data.atomic.secrets.token_hex", lambda n: "known")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "x.known.tmp").symlink_to(tmp_path / "secret")
    with pytest.raises(StorageError, match="exists"), replacing(tmp_path / "x") as stream:
        stream.write(b"new")
    assert (tmp_path / "secret").read_bytes() == b"secret"
    assert not (tmp_path / "x").exists()


def test_a_link_at_the_path_is_replaced_not_followed(tmp_path):
    (tmp_path / "other").write_bytes(b"other")
    (tmp_path / "x").symlink_to(tmp_path / "other")
    with replacing(tmp_path / "x") as stream:
        stream.write(b"new")
    assert (tmp_path / "other").read_bytes() == b"other"
    assert stat.S_ISREG((tmp_path / "x").lstat().st_mode)
    assert (tmp_path / "x").read_bytes() == b"new"


def test_a_hidden_draft(tmp_path):
    with replacing(tmp_path / "x", hidden=True) as stream:
        stream.write(b"new")
        assert [path.name[:3] for path in tmp_path.iterdir()] == [".x."]
    assert (tmp_path / "x").read_bytes() == b"new"
