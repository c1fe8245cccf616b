"""An index in PostgreSQL, beyond the contract of all engines: many writers, rights, deadlines, lost connections."""

from __future__ import annotations

import errno
import logging
import threading

import numpy as np
import pytest

import slosh
from builders import cloud_list, contents, make_index, together, wait_for
from postgres_server import ask, new_database
from slosh import errors
from slosh.engines.addresses import with_name, without_password

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")


@pytest.fixture
def url():
    """A database of its own."""
    return new_database()


@pytest.fixture
def index(url):
    with make_index(f"{url}#shapes") as made:
        yield made


def test_several_indexes_in_one_database(url):
    with make_index(url, name="a") as one, make_index(f"{url}#b%20c") as two:
        one.add(cloud_list(3))
        assert (len(one), len(two)) == (3, 0)
        assert "#b%20c" in two.location
        with slosh.open(url, "b c") as again:
            again.add(cloud_list(2), ["x", "y"])
        assert two.ids == ["x", "y"]
        with pytest.raises(errors.IndexExists):
            make_index(url, name="a")
        with pytest.raises(errors.IndexNotFound):
            slosh.open(url, "c")
        two.destroy()
        with pytest.raises(errors.IndexNotFound):
            slosh.open(url, "b c")
        assert len(one) == 3
    left = ask(url, "SELECT relname FROM pg_class WHERE relname ~ '_2(_|$)' AND relkind IN ('r', 'S')")
    assert left == []


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201, 5])
def test_names_that_are_none(url, name):
    with pytest.raises(errors.InputError, match="name="):
        make_index(url, name=name)


def test_a_database_without_a_name(url):
    with pytest.raises(errors.InputError, match="name") as told:
        slosh.open(url)
    assert told.value.argument == "name"
    with pytest.raises(errors.InputError, match="folder"):
        slosh.open("here.slosh", "a")
    with pytest.raises(errors.InputError, match="already"):
        with_name(f"{url}#a", "b")


def test_a_password_is_never_shown(url, caplog):
    caplog.set_level(logging.DEBUG)
    secret = "s3cret%40x"
    address = url.replace("slosh@", f"slosh:{secret}@")
    with make_index(address, name="a") as index:
        index.add(cloud_list(3))
        shown = repr(index) + str(index.info())
        index.close()
        with pytest.raises(errors.IndexClosed) as told:
            index.search(cloud_list(1)[0])
    with pytest.raises(errors.IndexNotFound) as missing:
        slosh.open(f"{address}&password={secret}#b")
    with pytest.raises(errors.InputError) as wrong:
        slosh.open(address.replace("postgresql", "postgrsql"))
    with pytest.raises(errors.ServerLost) as lost:
        slosh.open(f"postgresql://ann:{secret}@127.0.0.1:1/db#x")
    everything = shown + caplog.text + "".join(str(each.value) for each in (told, missing, wrong, lost))
    assert "s3cret" not in everything
    assert without_password("postgresql://u:p%40@h/d?sslpassword=q&port=1") == "postgresql://u@h/d?port=1"


# -- writers -----------------------------------------------------------------------------------------------------------


def test_writers_add_at_the_same_time(url, index):
    """Each has its own connections; none waits for the others, and nothing is lost or doubled."""
    writers = [slosh.open(url, "shapes", n_jobs=1) for _ in range(4)]
    index.add(cloud_list(1), ["first"])

    def work(i):
        for j in range(5):
            writers[i].add(cloud_list(2, seed=j), [f"{i}-{j}-a", f"{i}-{j}-b"], {"writer": i})
            assert len(writers[i].add(cloud_list(1, seed=j))) == 1

    together(*[lambda i=i: work(i) for i in range(4)])
    assert len(index) == len(set(index.ids)) == 61
    assert len(index.select({"writer": 2})) == 10
    assert index.verify().ok
    for each in writers:
        each.close()


def test_two_writers_of_the_same_ids(url, index):
    """One is first, the other sees what it did: a duplicate, a merged field, a set that is gone."""
    other = slosh.open(url, "shapes", n_jobs=1)
    index.add(cloud_list(4), list("abcd"), {"n": 0})
    outcomes = []

    def add(each):
        try:
            outcomes.append(each.add(cloud_list(1), ["same"]))
        except errors.DuplicateId as error:
            outcomes.append(error.id)

    for _ in range(5):
        together(lambda: add(index), lambda: add(other))
        assert sorted(map(str, outcomes)) == ["['same']", "same"]
        outcomes.clear()
        index.remove("same")

    def count(each):
        for _ in range(5):
            each.update("a", metadata={f"by{id(each)}": len(index)}, merge=True)

    together(lambda: count(index), lambda: count(other))
    assert len(index.get("a").metadata) == 3
    assert index.verify().ok
    other.close()


def test_the_first_sets_of_two_writers_decide_together(url, index):
    other = slosh.open(url, "shapes", n_jobs=1)
    together(lambda: index.add(cloud_list(3), list("abc")), lambda: other.add(cloud_list(3, seed=1), list("def")))
    assert sorted(index.ids) == list("abcdef")
    assert index.verify().ok
    other.close()


def test_a_writer_meanwhile_is_not_lost_by_compact(url, index):
    other, begun = slosh.open(url, "shapes", n_jobs=1), threading.Event()
    index.add(cloud_list(50))
    names = []

    def add():
        for i in range(12):
            names.extend(other.add(cloud_list(1, seed=i), [f"w{i}"]))
            begun.set()

    def compact():
        wait_for(begun)
        for _ in range(3):
            index.compact()

    together(add, compact)
    assert len(names) == 12
    assert set(names) <= set(index.ids)
    assert len(index) == 62
    assert index.verify().ok
    other.close()


# -- rights, other people's tables, deadlines --------------------------------------------------------------------------


def test_a_role_without_rights(url, index):
    index.add(cloud_list(5))
    reader = url.replace("slosh@", "reader@")
    ask(url, "DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN")
    with pytest.raises(errors.AccessDenied):
        slosh.open(reader, "shapes")
    ask(
        url,
        "GRANT USAGE ON SCHEMA slosh TO reader",
        "GRANT SELECT ON ALL TABLES IN SCHEMA slosh TO reader",
        "GRANT SELECT ON ALL SEQUENCES IN SCHEMA slosh TO reader",
    )
    with slosh.open(reader, "shapes") as opened:
        assert opened.search(cloud_list(1)[0], k=3).ids == index.search(cloud_list(1)[0], k=3).ids
        for change in (
            lambda: opened.add(cloud_list(1)),
            lambda: opened.remove("0"),
            opened.compact,
            lambda: opened.update("0", metadata={}),
        ):
            with pytest.raises(errors.AccessDenied):
                change()
        with pytest.raises(errors.AccessDenied):
            make_index(reader, name="mine")
        assert opened.verify().ok
        index.compact()
        assert opened.verify().ok  # its rights are those on the tables of before
    ask(url, "DROP OWNED BY reader", "DROP ROLE reader")


def test_a_role_that_writes_and_owns_nothing(url, index):
    role = 'a "writer"'
    ask(
        url,
        'DROP ROLE IF EXISTS "a ""writer"""',
        'CREATE ROLE "a ""writer""" LOGIN',
        'GRANT USAGE ON SCHEMA slosh TO "a ""writer"""',
        'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA slosh TO "a ""writer"""',
        'GRANT ALL ON ALL SEQUENCES IN SCHEMA slosh TO "a ""writer"""',
    )
    points = list(np.random.default_rng(0).normal(size=(1100, 1, 2)))
    with slosh.open(url.replace("slosh@", "a%20%22writer%22@"), "shapes", n_jobs=1) as writer:
        assert role.replace(" ", "%20").replace('"', "%22") in writer.location
        writer.add(cloud_list(5), list("abcde"))
        writer.update("a", metadata={"x": 1})
        writer.remove("b")
        with pytest.warns(RuntimeWarning, match="must be owner"):  # of a table whose graph is due
            writer.add(points)
        index.add(cloud_list(1), ["by-the-owner"])
        assert writer.info()["search_info"]["graph"]
        writer.add(cloud_list(1), ["f"])
        index.compact()
        writer.remove("f")
        assert writer.verify().ok
    ask(url, 'DROP OWNED BY "a ""writer"""', 'DROP ROLE "a ""writer"""')


def test_tables_of_others(url):
    ask(url, "CREATE SCHEMA slosh", "CREATE TABLE slosh.indexes (mine int)", "INSERT INTO slosh.indexes VALUES (7)")
    with pytest.raises(errors.FormatError, match="not slosh's"):
        make_index(url, name="a")
    with pytest.raises(errors.FormatError, match="not slosh's"):
        slosh.open(url, "a")
    assert ask(url, "SELECT mine FROM slosh.indexes") == [(7,)]


def test_a_table_of_others_where_that_of_an_index_would_be(url, index):
    """It is neither used nor touched, and the indexes that are there go on."""
    ask(url, "CREATE TABLE slosh.bodies_2 (mine int)", "INSERT INTO slosh.bodies_2 VALUES (7)")
    with pytest.raises(errors.FormatError, match="bodies_2"):
        make_index(url, name="other")
    with pytest.raises(errors.IndexNotFound):
        slosh.open(url, "other")
    assert ask(url, "SELECT mine FROM slosh.bodies_2") == [(7,)]
    index.add(cloud_list(3))
    assert index.verify().ok
    make_index(url, name="other").close()  # by its next number


def test_a_later_version_is_refused(url, index):
    ask(url, "UPDATE slosh.about SET value = '99' WHERE name = 'version'")
    with pytest.raises(errors.FormatError, match="99") as told:
        slosh.open(url, "shapes")
    assert told.value.found == 99


def test_a_statement_that_takes_too_long(url, index):
    index.add(cloud_list(40))
    ((table,),) = ask(url, "SELECT relname FROM pg_class WHERE relname ~ '^sets_[0-9]+_1$'")
    hurried = slosh.open(url + "&options=-c%20statement_timeout%3D100ms", "shapes", n_jobs=1)
    with psycopg.connect(url) as holding:
        holding.execute(f"LOCK TABLE slosh.{table} IN ACCESS EXCLUSIVE MODE")
        for call in (lambda: hurried.search(id="3"), lambda: hurried.add(cloud_list(1)), hurried.compact):
            with pytest.raises(errors.StorageError, match="timeout") as told:
                call()
            assert told.value.errno == errno.ETIMEDOUT
    assert len(hurried.search(id="3", k=4)) == 4
    hurried.close()
    assert len(index) == 40
    assert index.verify().ok


# -- lost connections --------------------------------------------------------------------------------------------------

KILL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


def test_connections_that_were_lost_are_made_again(url, index):
    index.add(cloud_list(5))
    before = contents(index)
    for _ in range(3):
        ask(url, KILL)
        assert contents(index) == before
        ask(url, KILL)
        index.add(cloud_list(1), ["new"])
        index.remove("new")


# -- what is stored ----------------------------------------------------------------------------------------------------


def test_hostile_texts(index):
    """Nothing of a user is ever part of a statement."""
    evil = ["'; DROP SCHEMA slosh CASCADE; --", "%s", "%(x)s", "\\", "{}", "$1", '"', "\u202e", "$[*] ? (@ > 1)"]
    index.add(cloud_list(len(evil)), evil, [{text: text, "list": [text, 1]} for text in evil])
    for text in evil:
        assert index.select({text: text}) == [text]
        assert index.select({"@id": text}) == [text]
        assert index.select({text: {">=": text, "<": text + "x"}}) == [text]
        assert index.search(id=text, k=2, where={"list": evil}).ids
    assert index.verify().ok


@pytest.mark.parametrize("size", [1e-20, 1e-3, 1.0, 1e6, 1e10])
def test_numbers_of_any_size(index, size):
    """Half precision holds what it can; what rounding took is known, and answers are exact."""
    sets = [points * np.float32(size) for points in cloud_list(80)]
    index.add(sets[:40])
    index.add([points * 1e4 for points in sets[40:60]], [f"large{i}" for i in range(20)])  # beyond the scale
    with make_index(None, search=slosh.search.ExactSearch()) as plain:
        plain.add(sets[:40])
        plain.add([points * 1e4 for points in sets[40:60]], [f"large{i}" for i in range(20)])
        for query in [*sets[60:64], sets[45] * 1e4]:
            ours, theirs = (each.search(query, k=7, recall=1.0) for each in (index, plain))
            assert ours.ids == theirs.ids
            np.testing.assert_allclose(ours.distances, theirs.distances, rtol=1e-5)
    assert index.verify().ok


def test_halves_are_as_far_as_is_said():
    from slosh.engines.postgres import codec

    numbers = np.random.default_rng(0).normal(size=(50, 33)).astype(np.float32) * 10.0
    numbers[3] *= 1e6
    scale = codec.scale_of(codec.largest_of(numbers[:3]))
    halves, moved = codec.halves_of(numbers, scale)
    apart = np.linalg.norm(halves.astype(np.float64) / scale - numbers, axis=1)
    assert (apart <= moved).all()
    assert (moved <= apart * (1 + 1e-6)).all()
    assert moved[3] > 1e5 > moved[4]


def test_damaged_points_are_found(url, index):
    index.add(cloud_list(9))
    ((table,),) = ask(url, "SELECT relname FROM pg_class WHERE relname ~ '^bodies_' AND relkind = 'r'")
    ask(url, f"UPDATE slosh.{table} SET points = overlay(points PLACING '\\x00'::bytea FROM 2) WHERE body = 3")
    assert not index.verify().ok
    with pytest.raises(errors.DamagedError) as told:
        index.get("3")
    assert told.value.ids == ("3",)
    ask(url, f"DELETE FROM slosh.{table} WHERE body = 4")
    assert "sets without points: 4" in str(index.verify())


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE slosh.sets_1_1 SET whole = (SELECT whole FROM slosh.sets_1_1 WHERE id = '4') WHERE id = '3'",
        "UPDATE slosh.exact_1_1 SET whole = overlay(whole PLACING '\\x01'::bytea FROM 3) WHERE key = 3",
        "UPDATE slosh.exact_1_1 SET whole = substring(whole FROM 2) WHERE key = 3",
        "UPDATE slosh.exact_1_1 SET whole = whole || '\\x00000000'::bytea WHERE key = 3",
        "UPDATE slosh.exact_1_1 SET feature_0 = overlay(feature_0 PLACING '\\x01'::bytea FROM 3) WHERE key = 3",
        "UPDATE slosh.exact_1_1 SET feature_0 = '' WHERE key = 3",
        "UPDATE slosh.sets_1_1 SET parts = (SELECT parts FROM slosh.sets_1_1 WHERE id = '4') WHERE id = '3'",
        "UPDATE slosh.sets_1_1 SET whole_moved = 0 WHERE id = '3'",
        "UPDATE slosh.sets_1_1 SET slack = slack / 2 WHERE id = '3'",
        "UPDATE slosh.sets_1_1 SET fields = '{}' WHERE id = '3'",
        "UPDATE slosh.sets_1_1 SET size = size + 1 WHERE id = '3'",
        "UPDATE slosh.bodies_1 b SET points = o.points, checksum = o.checksum FROM slosh.bodies_1 o, slosh.sets_1_1 p,"
        " slosh.sets_1_1 q WHERE b.body = p.body AND o.body = q.body AND p.size = q.size AND p.id < q.id",
        "UPDATE slosh.indexes SET scales = ARRAY[scales[1] * 2, scales[2]]",
        "UPDATE slosh.sets_1_1 SET body = 4 WHERE id = '3'",
        "DELETE FROM slosh.exact_1_1 WHERE key = 3",
        "DELETE FROM slosh.sets_1_1 WHERE id = '3'",
    ],
)  # fmt: skip
def test_rows_that_somebody_changed_are_found(url, change):
    """Vectors that do not match the points, whichever of them was changed, and all that hangs together."""
    with make_index(f"{url}#shapes", parts=True, sample=cloud_list(60)) as index:
        index.add(cloud_list(60), metadata=[{"x": i} for i in range(60)])
        assert index.verify().ok
        ask(url, change)
        report = index.verify()
        assert not report.ok
        if "SET whole = substring" in change or "SET whole = whole ||" in change:
            with pytest.raises(errors.DamagedError):
                index.search(cloud_list(1)[0], k=60, recall=1.0)
            index.compact()  # makes vectors anew
            assert index.verify().ok


def test_changes_are_added_up(url, index):
    for i in range(40):
        index.add(cloud_list(1, seed=i))
    ((count, sets, changes),) = ask(url, "SELECT count(*), sum(sets), sum(changes) FROM slosh.deltas")
    assert (sets, changes) == (40, 40)
    assert count < 25
    assert index.verify().ok


def test_filters_are_answered_by_a_walk_or_a_scan(url, monkeypatch):
    """Ten hits and the promised recall, whatever the filter leaves, also where it leaves what lies elsewhere."""
    monkeypatch.setattr("slosh.engines.postgres.search.SCANNED_ALONE", 300)
    rng = np.random.default_rng(0)
    sets = [rng.normal(size=(4, 2)) + (i % 4 == 3) * 9 for i in range(5000)]
    about = [{"half": bool(rng.random() < 0.5), "few": i % 50 == 0, "part": i % 4} for i in range(5000)]
    queries = [rng.normal(size=(4, 2)) for _ in range(40)]
    with make_index(f"{url}#many") as index:
        index.add(sets, metadata=about)
        about = index.info()["search_info"]
        assert about["graph"]
        measured = any(each["depth"] and each["recall"] >= 0.95 for each in about["filtered"])  # graphs differ a little
        for where, walks in (({"half": True}, True), ({"few": True}, False), ({"part": 3}, None), ({"half": 5}, False)):
            found = [index.search(query, k=10, recall=0.95, where=where) for query in queries]
            truth = [index.search(query, k=10, recall=1.0, where=where) for query in queries]
            assert [len(each) for each in found] == [len(each) for each in truth]
            kept = [len(set(a.ids) & set(b.ids)) / 10 for a, b in zip(found, truth, strict=True) if len(b)]
            assert np.mean(kept or [1.0]) >= 0.92
            promised = {each.stats.recall for each in found}
            assert min(promised) >= 0.95
            if walks is not None:
                assert (promised != {1.0}) == (walks and measured)


def test_codes_are_compared_as_elsewhere(url):
    """A `HammingSearch` finds the same by codes as an index in memory, and ranges, too."""
    sets, search_ = cloud_list(60), slosh.search.HammingSearch(slosh.hash.SignHash(256, random_state=1))
    with (
        make_index(f"{url}#codes", search=search_, sample=sets) as index,
        make_index(search=search_, sample=sets) as plain,
    ):
        for each in (index, plain):
            each.add(sets, metadata=[{"odd": i % 2} for i in range(60)])
        for options in ({"k": 5}, {"k": 70}, {"k": 4, "where": {"odd": 1}}):
            ours, theirs = (each.search(sets[:3], **options) for each in (index, plain))
            assert ours.distance_kind == "hamming"
            assert [one.distances.tolist() for one in ours] == [one.distances.tolist() for one in theirs]
        ours, theirs = (each.range_search(sets[0], 60) for each in (index, plain))
        assert ours.ids == theirs.ids
        assert ours.stats.recall is None
