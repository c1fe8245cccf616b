"""What is served: folders with an index that cannot be opened, and databases."""

from __future__ import annotations

import pytest

import slosh
from builders import cloud_list, small_embedding
from postgres_server import new_database
from server_process import Server, ask
from slosh import errors
from slosh.server.catalog import Catalog, Generation


def make(place, name=None, n=5):
    with slosh.SetIndex.create(place, 2, embedding=small_embedding(), name=name, n_jobs=1) as index:
        index.add(cloud_list(n), [f"s{i}" for i in range(n)])


def listed(server):
    status, _, answer = ask(server, "GET", "/v1/indexes")
    assert status == 200, answer
    return {each["name"]: each for each in answer["indexes"]}


@pytest.mark.parametrize("workers", [1, 2])
def test_an_index_that_cannot_be_opened_hides_no_other(tmp_path, workers):
    for name in ("good", "locked", "damaged"):
        make(tmp_path / f"{name}.slosh")
    (tmp_path / "damaged.slosh" / "index.db").write_bytes(b"no database" * 1000)
    writer = slosh.open(tmp_path / "locked.slosh", n_jobs=1)
    with writer, Server(tmp_path, options=("--jobs", 1, "--workers", workers)) as server:
        found = listed(server)
        assert sorted(found) == ["damaged", "good", "locked"]
        assert (found["good"]["sets"], found["good"]["problem"]) == (5, None)
        for name in ("locked", "damaged"):
            assert found[name]["sets"] is None
            assert name in found[name]["problem"]
            assert str(tmp_path) not in found[name]["problem"]
        status, _, problem = ask(server, "POST", "/v1/indexes/locked/sets", {"sets": [[[0, 1]]]})
        assert (status, problem["class"], problem["fields"]) == (409, "IndexLocked", {"location": "locked"})
        assert problem["detail"] == found["locked"]["problem"]
        assert problem["problem"] == "the index locked is open for writing in another process than the server"
        if workers == 1:
            for path in ("", "/sets", "/count", "/fields", "/map", "/specification", "/records"):
                assert ask(server, "GET", f"/v1/indexes/locked{path}")[0] == 409
            assert ask(server, "POST", "/v1/indexes/locked/search", {"id": "s1"})[0] == 409
        assert ask(server, "POST", "/v1/indexes/good/search", {"id": "s1"})[0] == 200
        writer.close()
        assert listed(server)["locked"]["sets"] == 5


def test_a_server_that_only_reads_needs_no_lock(tmp_path):
    make(tmp_path / "locked.slosh")
    with (
        slosh.open(tmp_path / "locked.slosh", n_jobs=1),
        Server(tmp_path, options=("--jobs", 1, "--read-only")) as server,
    ):
        assert ask(server, "GET", "/v1/indexes/locked/count")[2] == {"count": 5}


@pytest.mark.parametrize("place", ["http://localhost:8080", "https://localhost#x", "ftp://localhost/x"])
def test_an_address_that_is_no_database_is_not_served(place):
    with pytest.raises(errors.InputError, match=f"^{place} is neither a folder nor a database, and slosh serve"):
        Catalog((place,), False, Generation(None))


def test_a_file_is_not_served(tmp_path):
    path = tmp_path / "x.slosh"
    path.write_bytes(b"")
    with pytest.raises(errors.FormatError, match=r"x\.slosh is a file, not the folder of an index"):
        Catalog((str(path),), False, Generation(None))


def test_indexes_that_others_put_into_the_folder_are_listed(tmp_path):
    with Server(tmp_path, options=("--jobs", 1)) as server:
        assert listed(server) == {}
        make(tmp_path / "later.slosh")
        assert listed(server)["later"]["sets"] == 5


@pytest.mark.parametrize("workers", [1, 2])
def test_all_indexes_of_a_database(workers):
    database = new_database()
    make(database, "one", 3)
    make(database, "with a / slash", 4)
    with Server(database, options=("--jobs", 1, "--workers", workers)) as server:
        assert {name: each["sets"] for name, each in listed(server).items()} == {"one": 3, "with a / slash": 4}
        with slosh.open(server.url, name="with a / slash") as index:
            assert len(index.search(id="s1", k=2).ids) == 2
        assert ask(server, "GET", "/v1/server")[2]["can_create"]
        with slosh.SetIndex.create(server.url, 2, embedding=small_embedding(), name="new") as index:
            index.add(cloud_list(2))
            assert sorted(listed(server)) == ["new", "one", "with a / slash"]
            with slosh.open(database, name="new", read_only=True, n_jobs=1) as direct:
                assert len(direct) == 2
            index.destroy()
        make(database, "by another", 6)
        assert {name: each["sets"] for name, each in listed(server).items()}["by another"] == 6
        assert "new" not in listed(server)
        status, _, problem = ask(server, "GET", "/v1/indexes/none")
        assert (status, problem["class"]) == (404, "IndexNotFound")
        assert "postgresql" not in str(problem)


def test_an_empty_database_takes_the_first_index():
    database = new_database()
    with Server(database, options=("--jobs", 1)) as server:
        assert listed(server) == {}
        with slosh.SetIndex.create(server.url, 2, embedding=small_embedding(), name="first") as index:
            index.add(cloud_list(3))
        assert listed(server)["first"]["sets"] == 3


def test_one_index_of_a_database():
    database = new_database()
    make(database, "one")
    make(database, "other")
    with Server(f"{database}#one", options=("--jobs", 1)) as server, slosh.open(server.url) as index:
        assert sorted(listed(server)) == ["one"]
        assert len(index) == 5
        with pytest.raises(errors.InputError, match="no place"):
            slosh.SetIndex.create(server.url, 2, name="new")
