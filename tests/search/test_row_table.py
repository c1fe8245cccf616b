"""The table of rows and positions."""

from __future__ import annotations

import numpy as np
import pytest

from slosh.errors import InputError
from slosh.search.row_table import RowTable, as_rows


def table(rows, alive=None):
    rows = np.asarray(rows, np.int64)
    return RowTable.empty().extend(rows, np.ones(len(rows), bool) if alive is None else np.asarray(alive))


def test_rows_know_whether_they_increase():
    rows = table([2, 5, 9])
    assert rows.ascending
    more = rows.extend(np.array([7]), np.ones(4, bool))
    assert not more.ascending
    assert rows.ascending
    assert rows.row.tolist() == [2, 5, 9]
    assert (rows.highest, more.highest) == (9, 9)
    assert more.keep(np.array([0, 3])).ascending


@pytest.mark.parametrize("rows", [[1, 4, 6, 9], [6, 1, 9, 4]])
def test_rows_are_found_where_they_are_alive(rows):
    there = table(rows)
    alive = np.array([True, False, True, True])
    left = there.remove(alive)
    asked = np.array([*rows, 5, 10, 0])
    assert there.find(asked).tolist() == [0, 1, 2, 3, -1, -1, -1]
    assert left.find(asked).tolist() == [0, -1, 2, 3, -1, -1, -1]
    assert left.sorted().tolist() == sorted(row for row, is_there in zip(rows, alive, strict=True) if is_there)
    assert left.allowed([rows[0]]).mask.tolist() == [True, False, False, False]
    assert left.allowed(np.ones(10, bool)).n == 3
    with pytest.raises(InputError, match=f"row {rows[1]} is not there"):
        left.positions([rows[1]])
    assert RowTable.empty().find(asked).tolist() == [-1] * 7


def test_saved_tables_are_checked():
    good = np.array([3, 1, 3]), np.array([True, True, False])
    assert RowTable.from_arrays(*good, 7).highest == 7
    assert RowTable.from_arrays(*good, -1).highest == 3
    for row, alive in (
        (good[0], np.ones(3, bool)),
        (good[0], good[1][:2]),
        (good[0].astype(np.int32), good[1]),
        (-good[0], good[1]),
        (good[0][None], good[1][None]),
    ):
        with pytest.raises(ValueError, match=r"its rows|it holds"):
            RowTable.from_arrays(row, alive, 7)


def test_what_is_no_row():
    for rows, message in (
        ([1 << 62], "a row is 0 to"),
        ([[1]], "one dimension"),
        (["a"], "not strings"),
        (3, "single"),
    ):
        with pytest.raises(InputError, match=message):
            as_rows(rows, "rows")
    with pytest.raises(InputError, match="no rows are left"):
        table([(1 << 62) - 1]).new(None, 1)
