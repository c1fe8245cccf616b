"""The local engines: what they share is tested on each."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    """Where an index may be created: in memory, and in a folder."""
    return None if request.param == "memory" else tmp_path / "a.slosh"
