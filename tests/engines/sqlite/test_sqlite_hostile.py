"""Indexes that others have made, or that are damaged: refused or contained with a sentence, never run, never a crash.

What may end the process is done in a child, which says before each attack what comes next. A part of the attacks is
made in every run, another one for each test; SLOSH_ATTACKS=all makes all of them (four minutes).
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import traceback
import zlib
from pathlib import Path

import numpy as np
import pytest

import slosh
from slosh.embed import GeM, SlicedWasserstein
from slosh.engines import columns, database
from slosh.search import ExactSearch, HammingSearch, files, ladder

sys.path.insert(0, str(Path(__file__).parent))
import index_child as child
from test_index_promises import Children

MEMORY = 6 << 30
"""Bytes that a child may take: who believes a petabyte fails."""
ALLOWED = (ValueError, KeyError, OSError)
N = 40


class Bomb:
    """What pickle would run."""

    def __reduce__(self):
        return os.system, ("touch /tmp/slosh-was-here; exit 7",)


BOMB = pickle.dumps(Bomb())


def use(path, change=True):
    """Everything that can be asked of an index; its answers, or what it said."""
    said, answers = [], None
    for read_only in (True, False):
        try:
            index = slosh.open(path, read_only=read_only, n_jobs=1)
        except ALLOWED as error:
            said.append(str(error))
            continue
        calls = [
            lambda index: answered(index),
            lambda index: str(index.verify()),
            lambda index: index.duplicates(0.1),
            lambda index: index.neighbor_graph(2),
            lambda index: index.info(),
            lambda index: list(index.records()),
        ]
        if not read_only and change:
            calls += [
                lambda index: index.remove("2"),
                lambda index: index.update("5", child.points_of("5", 3), {"new": 1}),
                lambda index: index.add([child.points_of("1", 1)], ["one more"], {"x": [1, 2]}),
                lambda index: index.tune(0.9, k=2),
                lambda index: index.compact(),
                lambda index: answered(index),
                lambda index: str(index.verify()),
            ]
        for i, call in enumerate(calls):
            try:
                found = call(index)
                if i == 0:
                    answers = found
                if isinstance(found, str) and found.endswith("not ok"):
                    said.append(found)
            except ALLOWED as error:
                said.append(str(error))
        index.close()
    return answers, said


def answered(index):
    queries = [child.points_of(str(i), 7) for i in range(3)]
    found = [
        index.search(queries, k=5, recall=1.0),
        index.search(queries, k=5),
        index.search(queries, k=N, where={"mod": 1}),
        index.search(id=["0", "3"], k=3, recall=1.0),
        index.range_search(queries, 0.5),
    ]
    if isinstance(index._engine.recipe.embedding, SlicedWasserstein):
        found.append(index.search(queries, k=5, certify=True))
        found.append(index.search(queries, k=5, rerank="sliced"))
    lists = [[each.ids, [d.tolist() for d in each.distances], each.metadata] for each in found]
    stored = index.get(index.ids)
    return [lists, index.ids, stored.sets.points.tolist(), stored.metadata, len(index)]


def good(path, n=N, weighted=False, **more):
    """An index as it should be."""
    index = slosh.SetIndex.create(path, child.DIM, **child.options(**more))
    names = [str(i) for i in range(n)]
    sets = [child.points_of(name, 0) for name in names]
    weights = [np.arange(1, len(x) + 1) for x in sets] if weighted else None
    index.add(sets, names, [child.metadata_of(name, 0, 0) for name in names], weights=weights)
    index.close()
    return path


# -- attacks by SQL ----------------------------------------------------------------------------------------------------

DEEP = "[" * 10_000 + "]" * 10_000
VALUES = [None, "abc", "", b"\0\xff", -1, 7, 10**15, 2**62, 1.5, 1e308, DEEP, BOMB]
KEYS = ["change", "generation", "next_row", "next_body", "learnt", "weighted", "recipe", "uid", "recall", "session"]


OTHERS = (
    "1 AS row, 'x' AS id, 1 AS size, 1 AS body, '{}' AS metadata, 1 AS key, 1 AS value, 1 AS version, x'' AS state, "
    "0 AS change, x'' AS points, x'' AS weights, 0 AS crc"
)


def crc(points, weights=None):
    return zlib.crc32(points) if weights is None else zlib.crc32(weights, zlib.crc32(points))


def body(points, weights=None, size=None):
    """Statements that give row 3 other points, with a checksum that is right."""
    points = np.asarray(points, "<f4").tobytes()
    weights = None if weights is None else np.asarray(weights, "<f4").tobytes()
    size = len(points) // 8 if size is None else size
    return [
        ("UPDATE bodies SET points = ?, weights = ?, crc = ? WHERE body = 3", (points, weights, crc(points, weights))),
        ("UPDATE sets SET size = ? WHERE row = 3", (size,)),
    ]


def by_sql():
    """Names and statements."""
    yield from ((f"{key} = {value!r:.20}", [("UPDATE about SET value = ? WHERE key = ?", (value, key))])
                for key in [*KEYS, "sessions"] for value in VALUES)  # fmt: skip
    yield from ((f"no {key}", [("DELETE FROM about WHERE key = ?", (key,))]) for key in [*KEYS, "sessions"])
    for sessions in ('[["a"]]', '[["a", "b"]]', "[[1, 2]]", '{"a": 1}', "[1]", "null", '[["a", 1e400]]'):
        yield f"sessions {sessions}", [("UPDATE about SET value = ? WHERE key = 'sessions'", (sessions,))]
    for column in ("row", "id", "size", "body", "metadata"):
        for value in [
            *VALUES,
            0,
            1,
            3.5,
            '{"a": NaN}',
            "[]",
            "5",
            '"x"',
            '{"a":' + DEEP + "}",
            '{"a": 1' + "0" * 5000 + "}",
        ]:
            for rows in ("WHERE row = 3", ""):
                yield f"{column} = {value!r:.20} {rows}", [(f"UPDATE OR IGNORE sets SET {column} = ? {rows}", (value,))]
    for column in ("body", "crc", "points", "weights"):
        for value in [*VALUES, 0, 1, b"", b"\0" * 12, b"\0" * 8, "text"]:
            yield (
                f"bodies.{column} = {value!r:.20}",
                [(f"UPDATE OR IGNORE bodies SET {column} = ? WHERE body = 3", (value,))],
            )
    bad = np.nan, np.inf, -np.inf, 3e38, -3e38
    yield from ((f"points {x}", body([[0, x], [1, 1]])) for x in bad)
    yield from ((f"weights {x}", body([[0, 1], [1, 1]], [x, 1])) for x in (*bad, -1, 0))
    yield "weights all zero", body([[0, 1], [1, 1]], [0, 0])
    yield "too few weights", body([[0, 1], [1, 1]], [1])
    yield "no points", body(np.empty((0, 2)))
    yield "no points, one claimed", body(np.empty((0, 2)), size=1)
    yield "a petabyte", body([[0, 1]], size=10**15 // 8)
    yield "less than no points", body([[0, 1]], size=-1)
    yield "no bodies", [("DELETE FROM bodies", ())]
    yield "no sets", [("DELETE FROM sets", ())]
    yield "other bodies", [("UPDATE sets SET body = 5", ())]
    yield (
        "other fields",
        [("UPDATE OR IGNORE fields SET row = 77", ()), ("INSERT INTO fields VALUES (x'00', x'ff', 3)", ())],
    )
    yield "fields of no row", [("INSERT INTO fields VALUES ('mod', 1, -7), ('mod', 1, 'x'), ('mod', 1, 1e300)", ())]
    yield "removed, and there", [("INSERT INTO removed VALUES (3, 1), (-5, 'x'), (999, 10000000000)", ())]
    for state in (BOMB, b"", b"PK\3\4", "text", 5, 10**15, b"\0" * 1000):
        yield f"learnt {state!r:.20}", [("INSERT OR REPLACE INTO learnt VALUES (1, ?)", (state,)),
                                        ("UPDATE about SET value = 1 WHERE key = 'learnt'", ())]  # fmt: skip
    for name in ("sets", "bodies", "fields", "removed", "learnt", "about"):
        yield f"no {name}", [(f"DROP TABLE {name}", ())]
        yield f"a view {name}", [(f"DROP TABLE {name}", ()), (f"CREATE VIEW {name} AS SELECT {OTHERS}", ())]
        yield f"another {name}", [(f"DROP TABLE {name}", ()), (f"CREATE TABLE {name}(a, b, c)", ())]
        yield f"an index of {name}", [(f"CREATE INDEX i ON {name}(1)", ())]
    trigger = "AFTER INSERT ON sets BEGIN DELETE FROM sets WHERE row < 10; END"
    yield "a trigger", [(f"CREATE TRIGGER t {trigger}", ())]
    yield (
        "a hidden trigger",
        [
            ("PRAGMA writable_schema = ON", ()),
            (
                "INSERT INTO sqlite_master VALUES ('trigger', 'sqlite_t', 'sets', 0, ?)",
                (f"CREATE TRIGGER sqlite_t {trigger}",),
            ),
        ],
    )
    generated = "row INTEGER PRIMARY KEY, id TEXT, size INTEGER AS (10000000000), body INTEGER, metadata TEXT"
    yield "a column that is computed", [("DROP TABLE sets", ()), (f"CREATE TABLE sets({generated})", ())]
    checked = "row INTEGER PRIMARY KEY, id TEXT CHECK (randomblob(1000000000)), size, body, metadata"
    yield "a check", [("DROP TABLE sets", ()), (f"CREATE TABLE sets({checked})", ())]
    yield (
        "a default",
        [("DROP TABLE removed", ()), ("CREATE TABLE removed(row INTEGER PRIMARY KEY, change DEFAULT (1))", ())],
    )
    yield "of another kind", [("PRAGMA application_id = 5", ())]
    yield "a broken schema", [("PRAGMA writable_schema = ON", ()), ("UPDATE sqlite_master SET sql = 'nonsense'", ())]
    yield (
        "a root page far off",
        [("PRAGMA writable_schema = ON", ()), ("UPDATE sqlite_master SET rootpage = 1000000", ())],
    )
    yield "one root page", [("PRAGMA writable_schema = ON", ()), ("UPDATE sqlite_master SET rootpage = 2", ())]


def run_sql(path, statements):
    connection = sqlite3.connect(path / "index.db", isolation_level=None)
    try:
        for sql, values in statements:
            with contextlib.suppress(sqlite3.IntegrityError):
                connection.execute(sql, values)
    finally:
        connection.close()


def attack_by_sql(path, folder, log, first, step, caches):
    attack(
        path,
        folder,
        log,
        [(name, lambda copy, s=s: run_sql(copy, s)) for name, s in list(by_sql())[first::step]],
        caches,
    )


def prepare():
    """For a child: little memory, no waiting for the disk, and few sets are enough for a basis and lists."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    connect = database.Database._connect

    def quick(self):
        connection = connect(self)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    database.Database._connect = quick
    ladder.LEAST, ladder.FEW = 16, 2


def attack(path, folder, log, attacks, caches=True):
    """Each on a copy of its own."""
    prepare()
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for i, (name, spoil) in enumerate(attacks):
        signal.alarm(30)  # who waits longer waits for ever
        os.write(said, f"{name}\n".encode())
        copy = Path(folder) / f"copy{i}"
        shutil.copytree(path, copy, ignore=shutil.ignore_patterns("index.db-*"))  # others look into it, too
        if not caches:
            shutil.rmtree(copy / "cache")
        spoil(copy)
        try:
            use(copy)
        except BaseException as error:
            os.write(said, f"PROBLEM {name}: {error!r:.300}, {where_from(error)}\n".encode(errors="replace"))
        finally:
            shutil.rmtree(copy)
    os.write(said, b"done\n")


def where_from(error):
    """The last lines of slosh that an error came through."""
    lines = [line for line in traceback.extract_tb(error.__traceback__) if "slosh" in line.filename]
    return " < ".join(f"{Path(line.filename).name}:{line.lineno}" for line in reversed(lines[-4:]))


@pytest.fixture(scope="module")
def processes():
    made = [Children(), Children()]
    yield made
    for each in made:
        each.close()


def in_children(processes, tmp_path, name, *given, every=1):
    """Half of it in each of two processes; `every` is for those that are too many for every run."""
    every = 1 if os.environ.get("SLOSH_ATTACKS") == "all" else every
    step = len(processes) * every
    logs = [tmp_path / f"log{i}" for i in range(len(processes))]
    for i, (process, log) in enumerate(zip(processes, logs, strict=True)):
        (tmp_path / f"{i}").mkdir()
        process.start(f"test_index_hostile:{name}", given[0], tmp_path / f"{i}", log, i * every, step, *given[1:])
    codes = [process.end() for process in processes]
    for code, log in zip(codes, logs, strict=True):
        lines = log.read_text(errors="replace").splitlines()
        problems = [line for line in lines if line.startswith("PROBLEM")]
        assert not problems, f"{len(problems)} problems\n" + "\n".join(problems)
        assert code == 0, f"exit code {code} at {lines[-1]}"
        assert lines[-1] == "done"


@pytest.mark.parametrize(("weighted", "caches"), [(True, True), (False, False)])
def test_a_hostile_database_is_refused_or_contained(tmp_path, processes, weighted, caches):
    in_children(processes, tmp_path, "attack_by_sql", good(tmp_path / "good", weighted=weighted), caches, every=3)
    assert not Path("/tmp/slosh-was-here").exists()


# -- hostile recipes and learnt states ---------------------------------------------------------------------------------


def recipes(path):
    """What is fixed, with each of its parts changed."""
    with contextlib.closing(sqlite3.connect(path / "index.db")) as connection:
        content = connection.execute("SELECT value FROM about WHERE key = 'recipe'").fetchone()[0]
    header, arrays = files.unpack(content, "recipe")
    bad = [None, -1, 0, "x", 10**9, 1e308, [], {}, {"list": [1]}, {"array": 0}, {"array": 99}]
    bad += [{"class": "os.system", "has": {}}, {"class": "GeM", "has": {"__class__": 1}}, {"list": [{"list": []}] * 3}]

    def places(tree, at=()):
        if isinstance(tree, dict):
            for key in tree:
                yield (*at, key)
                yield from places(tree[key], (*at, key))

    for at in places({name: header[name] for name in ("recipe", "preprocess")}):
        for value in bad:
            copy = json.loads(json.dumps(header))
            inner = copy
            for key in at[:-1]:
                inner = inner[key]
            inner[at[-1]] = value
            yield f"{'.'.join(at)} = {value!r:.30}", copy, arrays
    for name, array in arrays.items():
        wrong = [array.astype(kind) for kind in (np.float16, np.int64, "S8", ">f4")]
        wrong += [array[:0], array[:1], array * np.nan, array.ravel(), array.reshape(*array.shape, 1), array.T.copy()]
        wrong += [np.zeros((1000, 1000)), np.concatenate([array, array])]
        for other in wrong:
            yield f"array {name} {other.dtype} {other.shape}", header, {**arrays, name: other}
        yield f"no array {name}", header, {key: x for key, x in arrays.items() if key != name}
    nested = {"list": [1]}
    for _ in range(300):
        nested = {"list": [nested]}
    yield "deep", {**header, "recipe": {**header["recipe"], "dim": nested}}, arrays
    yield "unknown part", {**header, "recipe": {**header["recipe"], "more": 1}}, arrays


def attack_by_recipe(path, folder, log, first, step):
    def spoil(copy, header, arrays):
        content = files.pack({k: v for k, v in header.items() if k not in ("kind", "version")}, arrays)
        run_sql(copy, [("UPDATE about SET value = ? WHERE key = 'recipe'", (content,))])

    found = list(recipes(Path(path)))[first::step]
    attack(path, folder, log, [(name, lambda copy, h=h, a=a: spoil(copy, h, a)) for name, h, a in found])


@pytest.mark.parametrize("kind", ["sliced", "polynomial", "gem", "hamming"])
def test_a_hostile_recipe_is_refused_or_contained(tmp_path, processes, kind):
    more = {
        "sliced": {"origin": [1.0, 2.0], "standardize": ([0.0, 0.0], [1.0, 2.0])},
        "polynomial": {"embedding": SlicedWasserstein(n_slices=4, n_quantiles=4, slices=slosh.slices.Polynomial())},
        "gem": {"embedding": GeM(2), "search": ExactSearch()},
        "hamming": {"search": HammingSearch(rerank=10), "sample": [child.points_of(str(i), 0) for i in range(30)]},
    }[kind]
    in_children(processes, tmp_path, "attack_by_recipe", good(tmp_path / "good", n=12, **more), every=7)


def learnt_states(path):
    with contextlib.closing(sqlite3.connect(path / "index.db")) as connection:
        content = connection.execute("SELECT state FROM learnt").fetchone()[0]
    header, arrays = files.unpack(content, "learnt")
    for key in header["learnt"]:
        for value in (None, -1, 0, 10**12, "x", [], [{}], 1e308, {"a": 1}):
            yield f"{key} = {value}", {**header, "learnt": {**header["learnt"], key: value}}, arrays
    for key in header["learnt"]["calibrations"][0]:
        for value in (None, -1, 0, 10**12, "x", 1e308):
            known = [{**header["learnt"]["calibrations"][0], key: value}]
            yield (
                f"calibration {key} = {value}",
                {**header, "learnt": {**header["learnt"], "calibrations": known}},
                arrays,
            )
    for name, array in arrays.items():
        for other in (array[:0], array[:1], array.astype(np.float16), array.astype("S8"), array * np.nan, array.ravel(),
                      array.T.copy(), np.zeros((50, 50)), array.astype(np.int8), array * 1e300):  # fmt: skip
            yield f"{name} {other.dtype} {other.shape}", header, {**arrays, name: other}
        yield f"no {name}", header, {key: x for key, x in arrays.items() if key != name}


def attack_by_learnt(path, folder, log, first, step):
    def spoil(copy, header, arrays):
        shutil.rmtree(copy / "cache")
        with np.errstate(all="ignore"):
            content = files.pack({k: v for k, v in header.items() if k not in ("kind", "version")}, arrays)
        run_sql(copy, [("UPDATE learnt SET state = ?", (content,))])

    found = list(learnt_states(Path(path)))[first::step]
    attack(path, folder, log, [(name, lambda copy, h=h, a=a: spoil(copy, h, a)) for name, h, a in found])


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_hostile_learnt_state_is_learnt_anew(tmp_path, processes, monkeypatch):
    monkeypatch.setattr(ladder, "LEAST", 16)
    monkeypatch.setattr(ladder, "FEW", 2)
    path = good(tmp_path / "good", n=80)
    with slosh.open(path, n_jobs=1) as index:
        index.search(child.points_of("1", 0), k=2, recall=0.8)
        assert index.info()["search_info"]["calibrations"]
    in_children(processes, tmp_path, "attack_by_learnt", path, every=3)


# -- damaged bytes -----------------------------------------------------------------------------------------------------


def flip(path, folder, log, first, step, n):
    """Bytes of the database are changed, one or a few at a time."""
    prepare()
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    path = shutil.copytree(path, Path(folder) / "good")
    right, told = use(path, change=False)
    assert not told, told
    content = (path / "index.db").read_bytes()
    for number in range(first, n, step):
        rng = np.random.default_rng(number)
        damaged = bytearray(content)
        if number % 5 == 4:
            damaged = damaged[: int(rng.integers(len(content)))]
        else:
            # Half of them in the first pages, where the schema is.
            most = len(content) if number % 2 else min(len(content), 3 * 8192)
            for at in rng.integers(most, size=1 if number % 3 else 8):
                damaged[at] = int(rng.integers(256))
        signal.alarm(30)
        os.write(said, f"damage {number}\n".encode())
        copy = Path(folder) / f"copy{number}"
        shutil.copytree(path, copy)
        (copy / "index.db").write_bytes(damaged)
        if number % 4 == 0:
            shutil.rmtree(copy / "cache")
        try:
            answers, told = use(copy, change=number % 3 == 0)
            assert told or answers == right, f"damage {number}: other answers, and nothing was said"
        except BaseException as error:
            os.write(said, f"PROBLEM {number}: {error!r:.300}, {where_from(error)}\n".encode(errors="replace"))
        shutil.rmtree(copy)
    os.write(said, b"done\n")


def test_damaged_bytes_are_found_or_do_no_harm(tmp_path, processes):
    in_children(processes, tmp_path, "flip", good(tmp_path / "good"), 300)


# -- hostile caches ----------------------------------------------------------------------------------------------------


def stamp_of(cache):
    outer = json.loads((cache / "stamp").read_text())
    return json.loads(outer["content"])


def write_stamp(cache, content):
    text = json.dumps(content)
    (cache / "stamp").write_text(json.dumps({"crc": zlib.crc32(text.encode()), "content": text}))


def restamped(cache, name, change):
    """Changes an array, and its checksum too."""
    content = stamp_of(cache)
    about = content["arrays"][name]
    file = cache / f"{name}.{content['epoch']}"
    whole = bytearray(file.read_bytes())
    array = np.frombuffer(bytes(whole[: about["bytes"]]), about["dtype"]).copy()
    change(array)
    whole[: about["bytes"]] = array.tobytes()
    file.write_bytes(whole)
    data = array.tobytes()
    about["crc"] = [zlib.crc32(data[i : i + columns.BLOCK]) for i in range(0, len(data), columns.BLOCK)]
    write_stamp(cache, content)


def cache_attacks(path):
    content = stamp_of(path / "cache")
    values = [None, -1, 0, 10**15, "x", [], {}, 1e400, [1, 2], 10**30, "../../x"]
    for key in content:
        for value in values:
            yield f"stamp {key} = {value}", lambda copy, k=key, v=value: write_stamp(copy / "cache", {**content, k: v})
    for name, about in content["arrays"].items():
        for key in about:
            for value in [*values, "O", "V8", ">f4", "f4,f4", [10**9, 10**9]]:

                def other(copy, name=name, key=key, value=value):
                    arrays = {**content["arrays"], name: {**content["arrays"][name], key: value}}
                    write_stamp(copy / "cache", {**content, "arrays": arrays})

                yield f"{name} {key} = {value}", other

        def fill(array, value):
            array[1::2] = value

        for value in (0, 1, -1, 10**9, np.nan, np.inf, 2**62):
            kind = np.dtype(about["dtype"]).kind
            if kind == "f" or (value == value and abs(value) < 2.0 ** (8 * np.dtype(about["dtype"]).itemsize - 1)):
                yield (
                    f"{name} full of {value}",
                    lambda copy, n=name, v=value: restamped(copy / "cache", n, lambda array: fill(array, v)),
                )
    yield "deep", lambda copy: (copy / "cache" / "stamp").write_text(DEEP)
    yield "deep inside", lambda copy: write_stamp(copy / "cache", {"format": json.loads("[" * 500 + "]" * 500)})
    yield "pickle", lambda copy: (copy / "cache" / "stamp").write_bytes(BOMB)
    yield "a pipe", lambda copy: ((copy / "cache" / "stamp").unlink(), os.mkfifo(copy / "cache" / "stamp"))
    yield (
        "arrays that are pipes",
        lambda copy: [(file.unlink(), os.mkfifo(file)) for file in (copy / "cache").iterdir() if file.name != "stamp"],
    )


def attack_by_cache(path, folder, log, first, step):
    with np.errstate(all="ignore"):
        attack(path, folder, log, list(cache_attacks(Path(path)))[first::step])


def test_a_hostile_cache_is_made_again_or_contained(tmp_path, processes):
    in_children(processes, tmp_path, "attack_by_cache", good(tmp_path / "good", n=20), every=5)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"", b"text", BOMB, b"SQLite format 3\0", b"SQLite format 3\0" + bytes(4000), DEEP.encode()]
)
def test_what_is_no_database_is_refused(tmp_path, content):
    good(tmp_path / "i")
    (tmp_path / "i" / "index.db").write_bytes(content)
    for read_only in (True, False):
        with pytest.raises(ValueError, match=r"no index|damaged"):
            slosh.open(tmp_path / "i", read_only=read_only)
    assert not Path("/tmp/slosh-was-here").exists()


def test_another_kind_of_database_is_refused(tmp_path):
    (tmp_path / "i").mkdir()
    with contextlib.closing(sqlite3.connect(tmp_path / "i" / "index.db")) as connection:
        connection.execute("CREATE TABLE t(a)")
    before = (tmp_path / "i" / "index.db").read_bytes()
    with pytest.raises(ValueError, match="no index of slosh"):
        slosh.open(tmp_path / "i")
    assert (tmp_path / "i" / "index.db").read_bytes() == before


@pytest.mark.parametrize("version", [0, 2, 99, -1])
def test_another_format_version_is_refused(tmp_path, version):
    path = good(tmp_path / "i")
    run_sql(path, [(f"PRAGMA user_version = {version}", ())])
    with pytest.raises(ValueError, match=f"version {version}; this slosh reads 1"):
        slosh.open(path)


def test_nothing_is_unpickled(tmp_path, monkeypatch):
    path = good(tmp_path / "i")

    def forbidden(*given, **more):
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    index = slosh.SetIndex.create(tmp_path / "other", child.DIM, **child.options())
    index.close()
    answers, said = use(path)
    assert answers is not None
    assert said == []
    for module in Path(slosh.__file__).parent.rglob("*.py"):
        if "engines" in module.parts or module.name in ("index.py", "recipe.py", "portable.py", "hits.py", "export.py"):
            assert "import pickle" not in module.read_text(), module


@pytest.mark.parametrize("name", ["lock", "index.db-wal", "index.db-shm", "index.db-journal"])
def test_a_link_never_leads_to_a_file_that_is_overwritten(tmp_path, name):
    path = good(tmp_path / "i")
    victim = tmp_path / "victim"
    victim.write_text("precious " * 1000)
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(victim)
    for read_only in (False, True):
        with contextlib.suppress(ValueError, OSError), slosh.open(path, read_only=read_only, n_jobs=1) as index:
            index.add([child.points_of("1", 0)], ["more"])
        assert victim.read_text() == "precious " * 1000


def test_links_in_the_cache_are_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    for name in ("syslog.1", "row.1", "points.2", "draft.tmp", "stamp", "stamp.5.tmp"):
        (precious / name).write_text("precious " * 1000)
    before = {p.name: p.read_text() for p in precious.iterdir()}
    path = good(tmp_path / "i")
    shutil.rmtree(path / "cache")
    (path / "cache").symlink_to(precious)
    with slosh.open(path, n_jobs=1) as index:
        index.add([child.points_of("1", 0)], ["more"])
    assert {p.name: p.read_text() for p in precious.iterdir()} == before
    content = stamp_of(path / "cache")
    for name in content["arrays"]:  # empty ones, whose checksums are right
        content["arrays"][name] |= {"bytes": 0, "crc": []}
        file = path / "cache" / f"{name}.{content['epoch']}"
        file.unlink()
        file.symlink_to(precious / "syslog.1")
    write_stamp(path / "cache", {**content, "rows": 0})
    (path / "cache" / f"stamp.{os.getpid()}.tmp").symlink_to(precious / "stamp")
    with slosh.open(path, n_jobs=1) as index:
        index.add([child.points_of("1", 0)], ["and more"])
        assert len(index) == N + 2
        assert index.verify().ok
    assert {p.name: p.read_text() for p in precious.iterdir()} == before


def test_foreign_files_in_the_folder_are_left_alone(tmp_path):
    path = good(tmp_path / "i")
    for name in ("notes.txt", "cache/notes.1", "cache/x.tmp", "cache/README"):
        (path / name).write_text("mine")
    with slosh.open(path, n_jobs=1) as index:
        index.compact()
    for name in ("notes.txt", "cache/notes.1", "cache/x.tmp", "cache/README"):
        assert (path / name).read_text() == "mine"


def test_a_copy_made_by_sqlite_is_an_index(tmp_path):
    path = good(tmp_path / "i")
    (tmp_path / "copy").mkdir()
    run_sql(path, [("VACUUM INTO ?", (str(tmp_path / "copy" / "index.db"),))])
    right, _ = use(path, change=False)
    reader = slosh.open(tmp_path / "copy", read_only=True, n_jobs=1)
    with slosh.open(tmp_path / "copy", n_jobs=1) as index:
        assert answered(index) == right
        for i in range(20):  # while another reads
            assert len(reader) == N + i
            index.add([child.points_of("1", 0)], [f"more{i}"])
        mode = index._engine.database._main.execute("PRAGMA journal_mode").fetchone()[0]
        assert mode == "wal"
        assert index.verify().ok
    reader.close()


def test_a_log_beside_a_folder_that_may_not_be_written_to_is_not_overlooked(tmp_path):
    """SQLite would read the database without its log, as if the last changes had never been."""
    inner = tmp_path / "mounted"
    inner.mkdir()
    path = tmp_path / "i"
    index = slosh.SetIndex.create(path, child.DIM, **child.options())
    index.add([child.points_of("1", 0)], ["logged"])
    (tmp_path / "copy").mkdir()
    for name in ("index.db", "index.db-wal"):
        shutil.copy(path / name, tmp_path / "copy" / name)
    index.close()
    if subprocess.run(["mount", "--bind", "-o", "ro", tmp_path / "copy", inner], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        with contextlib.suppress(ValueError, OSError), slosh.open(inner, read_only=True, n_jobs=1) as index:
            assert index.ids == ["logged"]
        shutil.copy(path / "index.db", tmp_path / "copy" / "index.db")
        (tmp_path / "copy" / "index.db-wal").unlink()
        with slosh.open(inner, read_only=True, n_jobs=1) as index:
            assert index.ids == ["logged"]
        with pytest.raises((ValueError, OSError)):
            slosh.open(inner)
    finally:
        subprocess.run(["umount", inner], check=True)
