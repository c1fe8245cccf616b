"""A folder of Parquet files with sets, for batch jobs."""

from __future__ import annotations

import pytest

from batch_data import write_tables


@pytest.fixture
def tables(tmp_path):
    """A folder of three files, of two row groups each: 300 sets of 3 features, by id, with a column beside."""
    folder = tmp_path / "tables"
    write_tables(folder)
    return folder
