"""Real servers for tests: `slosh serve` in a process of its own, on a free port."""

from __future__ import annotations

import atexit
import functools
import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from builders import PATIENCE

COMMAND = [sys.executable, "-m", "slosh", "serve"]


class Server:
    """A server, which is ready when it is made."""

    def __init__(self, *places, options=(), command=COMMAND):
        command = [*command, *map(str, places), "--port", "0", "--no-log", *map(str, options)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.errors = []
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+:(\d+)", line)
        if found is None:
            self.process.wait(PATIENCE)
            self._reader.join(PATIENCE)
            raise AssertionError(f"the server did not start: {line} {''.join(self.errors)}")
        self.url, self.port = found[0].rstrip(":"), int(found[1])
        self._is_told = False

    def _read_errors(self):
        for line in self.process.stderr:
            self.errors.append(line)

    def tell_to_stop(self, number=signal.SIGTERM):
        """Send a signal, once: a second one would kill it where it is almost at its end."""
        if not self._is_told and self.process.poll() is None:
            self._is_told = True
            self.process.send_signal(number)

    def stop(self, number=signal.SIGTERM):
        """Stop it, and return its exit code."""
        self.tell_to_stop(number)
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self.process.stdout.close()
        self.process.stderr.close()
        return code

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop()


@functools.cache
def shared_server():
    """Return the server that many tests of this process share; it has a folder for new indexes, empty at first."""
    folder = Path(tempfile.mkdtemp(prefix="slosh-tests-"))
    server = Server(folder, options=("--jobs", 1))
    server.folder = folder

    def end():
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return server


def ask(server, method, path, body=None, **headers):
    """Send one request on a connection of its own; return the status, the headers, and the body, parsed if it is JSON.

    A body that is not bytes is sent as JSON. Underscores in the names of headers stand for hyphens.
    """
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    if body is not None:
        given.setdefault("Content-Type", "application/json")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    try:
        connection.request(method, path, body, given)
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    kind = response.getheader("Content-Type", "")
    return response.status, response.headers, json.loads(content) if content and "json" in kind else content


def raw(server, sent, wait=True):
    """Send bytes as they are, and return all bytes that come back until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        connection.sendall(sent)
        if not wait:
            connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
        return b"".join(parts)
