"""Shared by the tests of the command: clouds in files, an index of them, and ways to run a command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import slosh
from slosh.cli import main

SLOSH = [sys.executable, "-m", "slosh"]


def write_cloud_files(folder: Path, n: int = 12, dim: int = 2, seed: int = 0) -> Path:
    """Write n files into two folders, thin and fat."""
    rng = np.random.default_rng(seed)
    for i in range(n):
        kind = ("thin", "fat")[i % 2]
        (folder / kind).mkdir(parents=True, exist_ok=True)
        points = rng.normal(size=(int(rng.integers(20, 60)), dim)) * (0.2 if kind == "thin" else 2) + i / 10
        np.save(folder / kind / f"{i:04}.npy", points)
    return folder


@pytest.fixture(scope="session")
def write_clouds():
    return write_cloud_files


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with clouds/ and clouds.slosh."""
    folder = tmp_path_factory.mktemp("cli")
    write_cloud_files(folder / "clouds")
    write_cloud_files(folder / "solid", dim=3)
    np.save(folder / "query.npy", np.random.default_rng(5).normal(size=(30, 2)) * 2)
    for name in ("clouds", "solid"):
        assert main(["build", str(folder / f"{name}.slosh"), str(folder / name), "--json"]) == 0
    return folder


@pytest.fixture
def slosh_(built, monkeypatch, capsys):
    """Runs a command in the folder; returns its exit code, what it printed, and its remarks."""
    monkeypatch.chdir(built)

    def run(*arguments):
        capsys.readouterr()
        code = main([str(each) for each in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def copied(slosh_, tmp_path):
    """An index to change, made from the clouds."""
    path = tmp_path / "copy.slosh"
    assert slosh_("build", path, "clouds")[0] == 0
    return path


@pytest.fixture(scope="session")
def process():
    """Runs a command in a process of its own."""

    def run(*arguments, cwd, **more):
        given = [*SLOSH, *map(str, arguments)]
        return subprocess.run(given, cwd=cwd, capture_output=True, text=True, timeout=900, **more)

    return run


@pytest.fixture(scope="session")
def stored():
    """Counts the sets of an index; 0 if there is none."""

    def count(path: Path) -> int:
        try:
            with slosh.open(path, read_only=True) as index:
                return len(index)
        except (OSError, ValueError):
            return 0

    return count


@pytest.fixture(scope="session")
def on_a_terminal():
    """Returns the exit code of a command, and what it shows on a terminal of 60 columns."""
    pty = pytest.importorskip("pty")

    def run(*arguments, cwd, answer=b"", **environment):
        ours, theirs = pty.openpty()
        env = {**os.environ, "COLUMNS": "60", "TERM": "xterm-256color", **environment}
        child = subprocess.Popen(
            [*SLOSH, *map(str, arguments)], cwd=cwd, env=env, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        os.write(ours, answer)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # how Linux says that the other side is closed
            pass
        os.close(ours)
        return child.wait(timeout=900), shown.decode()

    return run
