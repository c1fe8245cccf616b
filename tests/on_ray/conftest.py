"""Ray on this machine, for the tests of a module."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def ray():
    """Ray with two cores, started once for a module, and stopped at its end."""
    found = pytest.importorskip("ray", reason="Ray is not installed")
    started = not found.is_initialized()
    if started:
        found.init(num_cpus=2, object_store_memory=200 << 20, include_dashboard=False, log_to_driver=False)
    yield found
    if started:
        found.shutdown()
