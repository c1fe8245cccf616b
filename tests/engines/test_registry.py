"""Engines by location: a third one needs a class and a line in the registry, and no change anywhere else."""

from __future__ import annotations

from contextlib import contextmanager
from copy import copy
from dataclasses import fields
from typing import ClassVar

import numpy as np
import pytest

import slosh
from builders import cloud_list, contents, make_index
from slosh import errors
from slosh.engines import registry
from slosh.engines.base import Capabilities
from slosh.engines.memory import MemoryEngine, Version


class ShelfEngine(MemoryEngine):
    """Indexes under shelf://NAME, kept in a dict; `close` leaves them there."""

    shelf: ClassVar[dict[str, ShelfEngine]] = {}

    @classmethod
    def create(cls, location, spec, *, weighted, n_jobs, device=None):
        if location in cls.shelf:
            raise errors.IndexExists(f"{location} exists", location=location)
        made = super().create(None, spec, weighted=weighted, n_jobs=n_jobs, device=device)
        made.location = location
        cls.shelf[location] = made
        return made

    @classmethod
    def open(cls, location, *, read_only, n_jobs, device=None):
        if location not in cls.shelf:
            raise errors.IndexNotFound(f"there is no index at {location}", location=location)
        found = cls.shelf[location] = copy(cls.shelf[location])
        found.closed, found.read_only = False, read_only
        return found

    def destroy(self):
        super().destroy()
        del self.shelf[self.location]


class RoughVersion(Version):
    """A view that promises nothing exact."""

    capabilities = Capabilities(exact_nearest=False, exact_range=False)


class RoughEngine(ShelfEngine):
    """An engine without exact answers."""

    @contextmanager
    def view(self):
        with super().view() as view:
            yield RoughVersion(**{field.name: getattr(view, field.name) for field in fields(view)})


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(registry.ENGINES, "shelf", f"{__name__}:ShelfEngine")
    monkeypatch.setitem(registry.ENGINES, "rough", f"{__name__}:RoughEngine")
    monkeypatch.setattr(ShelfEngine, "shelf", {})


def test_an_engine_of_another_kind():
    with make_index("shelf://a") as index:
        index.add(cloud_list(20), metadata=[{"n": i} for i in range(20)])
        assert index.path is None
        assert "shelf://a" in repr(index)
        assert index.info()["path"] == "shelf://a"
    with slosh.open("shelf://a") as index:
        assert index.search(cloud_list(1)[0], where={"n": {">": 3}}).ids
        assert index.search(id="3", certify=True).ids
        assert index.verify().ok
    with pytest.raises(errors.IndexExists):
        make_index("shelf://a")
    with pytest.raises(errors.IndexNotFound):
        slosh.open("shelf://b")


def test_copies_between_engines(tmp_path):
    with make_index("shelf://a", weighted=True) as index:
        index.add(cloud_list(6), metadata={"x": 1}, weights=[np.arange(1, len(x) + 1) for x in cloud_list(6)])
        before = contents(index)
        index.copy_to(tmp_path / "a.slosh")
    with slosh.open(tmp_path / "a.slosh") as copied:
        assert contents(copied) == before
        copied.copy_to("shelf://b")
    with slosh.open("shelf://b") as back:
        assert contents(back) == before


@pytest.mark.parametrize("location", ["nowhere://a", "memory://a", "shelf:/a/b/c"], ids=str)
def test_unknown_locations(location, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((errors.InputError, OSError)):
        make_index(location)
    assert not list(tmp_path.iterdir())


def test_locations_of_folders(tmp_path):
    make_index(f"sqlite://{tmp_path}/a.slosh").close()
    for place in (tmp_path / "a.slosh", str(tmp_path / "a.slosh"), f"sqlite://{tmp_path}/a.slosh"):
        with slosh.open(place) as index:
            assert index.path == tmp_path / "a.slosh"
    with pytest.raises(errors.InputError, match="memory"):
        slosh.open(None)
    with pytest.raises(errors.InputError, match="text"):
        slosh.open(b"bytes")


def test_what_an_engine_cannot_do_is_refused():
    index, one = make_index("rough://a"), cloud_list(1)[0]
    index.add(cloud_list(5))
    assert len(index.search(one, k=3)) == 3
    for options in ({"recall": 1.0}, {"certify": True}):
        with pytest.raises(errors.UnsupportedError) as told:
            index.search(one, **options)
        assert told.value.feature_name in options
    index.close()


@pytest.mark.parametrize("place", ["127.0.0.1:9101", "localhost:80", "[::1]:8080", "example.org:8080", "my-host:1"])
def test_the_address_of_a_server_without_its_scheme(place, tmp_path, monkeypatch):
    """It is a path, and suggested as an address where nothing has this name."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.InputError, match="name='x': give http://") as raised:
        slosh.open(place, name="x")
    assert raised.value.remedy == f"give http://{place} for an index on a server"
    with pytest.raises(errors.IndexNotFound, match="there is no index at") as raised:
        slosh.open(place)
    assert raised.value.remedy == f"give http://{place} for an index on a server"
    make_index(place).close()
    slosh.open(place, n_jobs=1).close()
    with pytest.raises(errors.InputError, match="leave it out: a folder holds one index"):
        slosh.open(place, name="x")


@pytest.mark.parametrize("place", ["shapes.slosh", "C:1", "a/b:80", "host:port", "x:123456"])
def test_other_paths_are_no_address(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.InputError, match="leave it out: a folder holds one index"):
        slosh.open(place, name="x")
    with pytest.raises(errors.IndexNotFound, match=r"create one with slosh\.SetIndex\.create"):
        slosh.open(place)
