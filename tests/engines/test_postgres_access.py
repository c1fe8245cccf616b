"""Addresses, passwords, roles and databases that are not as slosh needs them: one clear error each, and no password."""

from __future__ import annotations

import errno
import logging
import traceback

import numpy as np
import pytest

import slosh
from builders import cloud_list, make_index
from postgres_server import ask, new_database, shared_server
from slosh import errors

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
SECRET = "s3cret"


@pytest.fixture(scope="module")
def ann():
    """A role that needs a password, in a database of its own without pgvector: its URL, and that of a superuser."""
    server, url = shared_server(), new_database()
    hba = server.data / "pg_hba.conf"
    hba.write_text("local all ann scram-sha-256\n" + hba.read_text())
    database = url.partition("@/")[2].partition("?")[0]
    ask(url, "SELECT pg_reload_conf()", f"CREATE ROLE ann LOGIN PASSWORD '{SECRET}'",
        f"ALTER DATABASE {database} OWNER TO ann")  # fmt: skip
    return url.replace("slosh@", f"ann:{SECRET}@"), url


@pytest.fixture(autouse=True)
def no_password_anywhere(caplog):
    caplog.set_level(logging.DEBUG)
    yield
    assert SECRET not in caplog.text


def refused(kind, work):
    """Check that something is refused by an error without a password, and return it."""
    with pytest.raises(kind) as told:
        work()
    error, shown = told.value, [repr(vars(told.value))]
    while error is not None:
        shown += [str(error), repr(error), *traceback.format_exception_only(error)]
        error = error.__cause__ or error.__context__
    assert not [text for text in shown if SECRET in text]
    assert told.value.remedy
    return told.value


def test_passwords(ann, monkeypatch):
    url, _ = ann
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setenv("PGPASSFILE", "/nowhere")
    for address in (url.replace(SECRET, "other"), url.replace(f":{SECRET}", "")):
        error = refused(errors.AccessDenied, lambda address=address: slosh.open(address, "x"))
        assert error.errno == errno.EACCES
        assert "PGPASSWORD" in error.remedy
    monkeypatch.setenv("PGPASSWORD", SECRET)
    refused(errors.IndexNotFound, lambda: slosh.open(url.replace(f":{SECRET}", ""), "x"))


def test_databases_and_servers_that_are_not_there(ann):
    url, _ = ann
    missing = "/no_such_database?".join([url.rpartition("/db")[0], url.partition("?")[2]])
    for work in (lambda: slosh.open(missing, "x"), lambda: make_index(missing, name="x")):
        error = refused(errors.StorageError, work)
        assert error.errno == errno.ENOENT
        assert not isinstance(error, errors.ServerLost)
        assert "create the database" in error.remedy
    for host in ("127.0.0.1:1", "%2Fnowhere"):
        refused(errors.ServerLost, lambda host=host: slosh.open(f"postgresql://ann:{SECRET}@{host}/db", "x"))


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://ann:{SECRET}/x@host/db",
        f"postgresql://ann:{SECRET}%@host/db",
        f"postgresql://ann@host:{SECRET}/db",
        f"postgresql://ann@host/db?{SECRET}=1",
        f"postgrsql://ann:{SECRET}@host/db",
    ],
)
def test_addresses_that_are_none(address):
    refused(errors.InputError, lambda: slosh.open(address, "x"))
    refused(errors.InputError, lambda: make_index(address, name="x"))


def test_a_role_that_may_not_create_the_extension(ann):
    url, superuser = ann
    error = refused(errors.AccessDenied, lambda: make_index(url, name="x"))
    assert "CREATE EXTENSION vector" in error.remedy
    assert error.location == url.replace(f":{SECRET}", "") + "#x"
    ask(superuser, "CREATE EXTENSION vector")
    with make_index(url, name="x") as index:
        index.add(cloud_list(30))
        assert SECRET not in repr(index) + str(index.info()) + index.location
        assert index.verify().ok
        index.destroy()


def test_a_server_without_the_extension():
    url = new_database()
    database = url.partition("@/")[2].partition("?")[0]
    try:
        ask(url, f"ALTER DATABASE {database} SET extension_control_path = '/nowhere'")
    except psycopg.errors.UndefinedObject:
        pytest.skip("this server cannot be told to look for extensions elsewhere")
    error = refused(errors.UnsupportedError, lambda: make_index(url, name="x"))
    assert "install pgvector" in error.remedy


def test_a_database_in_another_encoding():
    url = shared_server().url
    ask(url, "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    error = refused(errors.UnsupportedError, lambda: make_index(url.replace("/postgres?", "/latin?"), name="x"))
    assert "LATIN1" in error.problem


def test_names_of_any_kind_and_which_there_are():
    url = new_database()
    names = sorted(['it\'s "q"', "a#b", "x" * 200, "Zürich/ä%20", "..", "a b?c&d=e", "%s", "; DROP SCHEMA slosh; --"])
    for name in names:
        with make_index(url, name=name) as index:
            index.add(cloud_list(2))
            address = index.location
        with slosh.open(address) as again, slosh.open(url, name) as by_name:
            assert again.ids == by_name.ids == ["0", "1"]
    error = refused(errors.IndexNotFound, lambda: slosh.open(url, "other"))
    assert sorted(error.names) == names
    assert "a#b" in error.remedy


def test_sets_that_are_none():
    with make_index(new_database(), name="x") as index:
        assert index.add([]) == []
        for sets in ([np.empty((0, 2))], [np.full((2, 2), np.nan)], [np.zeros((2, 3))], [np.full((1, 2), np.inf)]):
            refused(errors.InputError, lambda sets=sets: index.add(sets))
        assert len(index.search(np.zeros((2, 2)))) == 0
        assert len(index) == 0
        assert index.verify().ok
