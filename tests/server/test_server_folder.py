"""The folder of a running server, and those that killed servers left."""

from __future__ import annotations

import socket

import pytest

from builders import until
from conftest import N_SETS, fill
from server_process import Server, ask

UPLOAD = """\
POST /v1/indexes/shapes/upload?filename=x.npy HTTP/1.1\r
Host: localhost\r
Content-Type: application/octet-stream\r
Content-Length: 2000000\r
\r
"""


@pytest.mark.parametrize("options", [("--jobs", 1), ("--jobs", 1, "--workers", 2)])
def test_what_a_killed_server_left(tmp_path, monkeypatch, options):
    """The next server removes it, half an upload, say, but not what a running server has, nor what is no folder."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))

    def folders():
        return {each for each in temporary.glob("slosh-*") if each.is_dir()}

    note = temporary / "slosh-server-note"
    note.write_text("this is no folder of a server")
    (temporary / "slosh-server-link").symlink_to(tmp_path)
    shapes, others = fill(tmp_path), fill(tmp_path, "others")
    killed = Server(shapes, options=options)
    with socket.create_connection(("127.0.0.1", killed.port)) as connection:
        connection.sendall(UPLOAD.encode() + bytes(1_000_000))
        until(lambda: any(each.stat().st_size for each in temporary.glob("slosh-server-*/upload-*")))
        killed.process.kill()
        killed.stop()
    with Server(others, options=options) as running:
        (kept,) = (each for each in folders() if not any(each.glob("upload-*")) and not each.is_symlink())
        with Server(shapes, options=("--jobs", 1)) as again:
            assert len(folders() - {temporary / "slosh-server-link"}) == 2
            assert kept in folders()
            assert ask(again, "GET", "/v1/indexes/shapes/count")[2] == {"count": N_SETS}
        assert ask(running, "GET", "/v1/indexes/others/count")[2] == {"count": N_SETS}
    assert folders() == {temporary / "slosh-server-link"}
    assert note.exists()
    assert (shapes / "index.db").exists()
