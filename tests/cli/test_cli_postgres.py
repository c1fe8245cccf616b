"""The command on an index in PostgreSQL: build, add, search, show, copy both ways, and no password anywhere."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

import slosh
from builders import cloud_list, contents
from postgres_server import shared_server

pytest.importorskip("psycopg", reason="psycopg is not installed")
NUMBERS = count()


@pytest.fixture
def name():
    return f"command-{next(NUMBERS)}"


def test_build_search_and_copy(slosh_, name):
    url = shared_server().url
    clouds = cloud_list(12)
    np.savez("sets.npz", **{f"s{i}": points for i, points in enumerate(clouds)})
    code, out, err = slosh_("build", url, "sets.npz", "--name", name)
    assert code == 0, err
    address = f"{url}#{name}"
    with slosh.open(url, name) as index:
        held = contents(index)
    assert len(held) == 12
    first = next(iter(held))
    code, out, err = slosh_("search", address, first, "-k", "3")
    assert code == 0, err
    assert len(out.splitlines()) >= 3
    assert slosh_("build", address, "sets.npz")[0] != 0  # it exists
    assert slosh_("copy", address, "copy.slosh")[0] == 0
    with slosh.open("copy.slosh") as copy:
        assert contents(copy) == held
    assert slosh_("copy", "copy.slosh", f"{address}-again")[0] == 0
    with slosh.open(f"{address}-again") as copy:
        assert contents(copy) == held
    code, out, err = slosh_("verify", address)
    assert code == 0, err


def test_a_password_in_an_address_is_refused(slosh_):
    for command in (["info"], ["copy", "a.slosh"], ["build"]):
        code, out, err = slosh_(
            *command, "postgresql://ann:s3cret@host/db#x", *(["x.npz"] if command == ["build"] else [])
        )
        assert code != 0
        assert "PGPASSWORD" in err
        assert "s3cret" not in out + err


def test_a_database_without_a_name(slosh_):
    code, _, err = slosh_("info", shared_server().url)
    assert code == 1
    assert "#shapes" in err


def test_a_standby_that_does_not_know_how_far_behind_it_is(slosh_, name, monkeypatch):
    with slosh.SetIndex.create(shared_server().url, 2, name=name) as index:
        address, real = index.location, slosh.SetIndex.info
    for lag, told in ((None, "it is not known how far behind"), (1.25, "1.2 s behind")):
        about = {"standby": True, "lag_seconds": lag}
        monkeypatch.setattr(slosh.SetIndex, "info", lambda index, about=about: {**real(index), **about})
        code, out, err = slosh_("info", address)
        assert code == 0, err
        assert told in out
