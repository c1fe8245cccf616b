"""Processes that fork others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from builders import PATIENCE

CHILD = Path(__file__).with_name("index_child.py")


class Children:
    """A process that forks others, one at a time; the environment is this one's and what is given."""

    def __init__(self, **environment):
        self.process = subprocess.Popen(
            [sys.executable, CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **environment},
        )
        assert self.line() == "ready"

    def line(self):
        return self.process.stdout.readline().strip()

    def start(self, name, *given):
        """Start a function of index_child, or "module:function"; return the number of its process."""
        self.process.stdin.write(json.dumps([name, [str(x) if isinstance(x, Path) else x for x in given]]) + "\n")
        self.process.stdin.flush()
        return int(self.line())

    def end(self):
        """Wait for the end, and return the exit status, negative for a signal."""
        return int(self.line())

    def run(self, name, *given):
        self.start(name, *given)
        return self.end()

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def wait_until(true):
    """Wait until a function of other processes' doings is true."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)
