"""Ray on this machine, for all tests of this folder."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def ray():
    """Ray with two cores, started once."""
    found = pytest.importorskip("ray", reason="Ray is not installed")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    started = not found.is_initialized()
    if started:
        found.init(num_cpus=2, object_store_memory=200 << 20, include_dashboard=False, log_to_driver=False)
    yield found
    if started:
        found.shutdown()
