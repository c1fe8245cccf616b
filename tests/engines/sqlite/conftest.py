"""Fixtures for the tests of the SQLite engine: other processes, and a disk with little room."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
from children import Children


@pytest.fixture(scope="session")
def children():
    """A process that forks others."""
    made = Children()
    yield made
    made.close()


@pytest.fixture(scope="session")
def several(children):
    """Two processes that fork others, for children at the same time."""
    made = Children()
    yield [children, made]
    made.close()


@pytest.fixture
def fast_disk(tmp_path):
    """A folder in memory where there is one: thousands of small indexes need not wait for a disk."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def small_disk(tmp_path):
    """A folder with little room."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)
