"""What the tests of the page need: Debian's Chromium, axe-core, and indexes for a server.

Chromium is installed by apt-get, and axe-core by npm, where they are missing and that is possible; otherwise the tests
are skipped, with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

import slosh
from slosh.cli.demo import load_digits, take

TOOLS = Path(__file__).parents[1] / "tools" / "page"
AXE = TOOLS / "node_modules" / "axe-core" / "axe.min.js"
CHROMIUM_OPTIONS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
N_DIGITS = 600
INSTALL_SECONDS = 150


def _try(command: list[str], folder: Path | None = None) -> None:
    """Run a command that may fail, or never end where there is no network."""
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(command, cwd=folder, capture_output=True, timeout=INSTALL_SECONDS)


def chromium() -> str:
    """Return the path of Chromium, or skip the test."""
    names = ("chromium", "chromium-browser", "google-chrome")
    with FileLock(Path(tempfile.gettempdir()) / "slosh-chromium.lock"):
        if not any(map(shutil.which, names)) and shutil.which("apt-get") and os.geteuid() == 0:
            for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
                _try(["apt-get", *command])
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("Chromium is not installed, and cannot be installed here")
    return found


def axe_source() -> str:
    """Return the script of axe-core, or skip the test."""
    with FileLock(Path(tempfile.gettempdir()) / "slosh-axe.lock"):
        if not AXE.exists() and shutil.which("npm"):
            _try(["npm", "ci", "--no-audit", "--no-fund"], TOOLS)
    if not AXE.exists():
        pytest.skip("axe-core is not installed, and npm cannot fetch it here")
    return AXE.read_text()


def make_digits(folder: Path, n: int) -> None:
    with slosh.SetIndex.create(folder / "digits.slosh", dim=2) as index:
        index.add(take(load_digits(), range(n)))


def make_indexes(folder: Path) -> None:
    """Make an index of digits, one of 3-D clouds, one with five dimensions, and an empty one."""
    make_digits(folder, N_DIGITS)
    rng = np.random.RandomState(0)
    for name, dim in (("clouds", 3), ("wide", 5)):
        stretch = np.array([[3.0] + [1.0] * (dim - 1), [1.0] * (dim - 1) + [0.1]])
        sets = [rng.normal(size=(40, dim)) * stretch[i % 2] for i in range(60)]
        metadata = [{"kind": ("rod", "disc")[i % 2], "height": float(i)} for i in range(60)]
        with slosh.SetIndex.create(folder / f"{name}.slosh", dim=dim) as index:
            index.add(sets, ids=[f"{name}-{i:02}" for i in range(60)], metadata=metadata)
    with slosh.SetIndex.create(folder / "empty.slosh", dim=2):
        pass
