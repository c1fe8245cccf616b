"""Indexes that others have made, or that are damaged: refused or contained with a sentence, never run, never a crash.

What may end the process is done in a child, which says before each attack what comes next. A part of the attacks is
made in every run, another one for each test; `make test-long` makes all of them. Tables, columns and packed arrays are
found in the database, and not assumed.
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
import traceback
import zlib
from pathlib import Path

import index_child as child
import numpy as np
import pytest

import slosh
from slosh import Preprocess
from slosh.data import tensors
from slosh.embed import FSPool, GeM, MeanPool, SlicedWasserstein
from slosh.errors import DamagedError
from slosh.search import ExactSearch, HammingSearch

MEMORY = 6 << 30
"""Bytes that a child may take: who believes a petabyte fails."""
ALLOWED = (ValueError, KeyError, OSError)
N = 40
FEW_LINES = 30
"""A table of no more lines is attacked line by line."""


class Bomb:
    """What pickle would run."""

    def __reduce__(self):
        return os.system, ("touch /tmp/slosh-was-here; exit 7",)


BOMB = pickle.dumps(Bomb())


def use(path, change=True):
    """Ask an index for everything there is; return its answers, and what it said."""
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
    if isinstance(index.embedding, SlicedWasserstein):
        found.append(index.search(queries, k=5, certify=True))
        found.append(index.search(queries, k=5, rerank="sliced"))
    lists = [[each.ids, [d.tolist() for d in each.distances], each.metadata] for each in found]
    stored = index.get(index.ids)
    return [lists, index.ids, stored.sets.points.tolist(), stored.metadata, len(index)]


def good(path, n=N, weighted=False, **more):
    """Create an index as it should be."""
    index = slosh.SetIndex.create(path, child.DIM, **child.options(**more))
    names = [str(i) for i in range(n)]
    sets = [child.points_of(name, 0) for name in names]
    weights = [np.arange(1, len(x) + 1) for x in sets] if weighted else None
    index.add(sets, names, [child.metadata_of(name, 0, 0) for name in names], weights=weights)
    index.remove(str(n - 1))
    index.close()
    return path


# -- attacks by SQL ----------------------------------------------------------------------------------------------------

DEEP = "[" * 10_000 + "]" * 10_000
VALUES = [None, "abc", "", b"\0\xff", -1, 0, 7, 10**15, 2**62, 1.5, 1e308, DEEP, BOMB]
TEXTS = ['{"a": NaN}', "[]", "5", '"x"', '{"a":' + DEEP + "}", '{"a": 1' + "0" * 5000 + "}", '[["a", 1e400]]']


class Schema:
    """The tables of a database: their columns, and the keys of their lines."""

    def __init__(self, path):
        with contextlib.closing(sqlite3.connect(path / "index.db")) as connection:
            names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            self.columns = {
                name: [line[1] for line in connection.execute(f"PRAGMA table_info({name})")] for (name,) in names
            }
            self.keys = {
                name: [line[0] for line in connection.execute(f"SELECT {columns[0]} FROM {name}")]
                for name, columns in self.columns.items()
            }
            self.packed = {}
            for name, columns in self.columns.items():
                for column in columns[1:]:
                    if len(self.keys[name]) <= FEW_LINES:
                        lines = connection.execute(f"SELECT {columns[0]}, {column} FROM {name}")
                        self.packed |= {(name, column, key): cell for key, cell in lines if is_packed(cell)}


def is_packed(cell):
    """Return whether a cell is a file of arrays."""
    return isinstance(cell, bytes) and cell[8:9] == b"{" and 0 < int.from_bytes(cell[:8], "little") < len(cell)


def by_sql(path):
    """Yield names and statements."""
    schema = Schema(path)
    assert {"sets", "bodies"} <= set(schema.columns), "attacks on points with a good checksum need another name"
    for table, (key, *others) in schema.columns.items():
        lines = schema.keys[table]
        chosen = lines if len(lines) <= FEW_LINES else [lines[3]]
        for column in (key, *others):
            text = TEXTS if column not in (key, "points", "weights") else []
            for value in [*VALUES, *text]:
                for line in chosen:
                    yield (f"{table}.{column} of {line!r:.20} = {value!r:.20}",
                           [(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE {key} = ?", (value, line))])  # fmt: skip
                if len(lines) > 1:
                    yield (f"all {table}.{column} = {value!r:.20}",
                           [(f"UPDATE OR IGNORE {table} SET {column} = ?", (value,))])  # fmt: skip
        yield from (
            (f"no {table} {line!r:.20}", [(f"DELETE FROM {table} WHERE {key} = ?", (line,))]) for line in chosen
        )
        yield f"no lines in {table}", [(f"DELETE FROM {table}", ())]
        marks = ", ".join("?" * (1 + len(others)))
        for value in (-7, "x", 999, 1e300, b"\xff", 10**15):
            line = [value, *[1] * len(others)]
            yield f"{table} has {value!r:.20}", [(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", line)]
        yield f"no {table}", [(f"DROP TABLE {table}", ())]
        literals = ", ".join(f"1 AS {column}" for column in (key, *others))
        yield f"a view {table}", [(f"DROP TABLE {table}", ()), (f"CREATE VIEW {table} AS SELECT {literals}", ())]
        yield f"another {table}", [(f"DROP TABLE {table}", ()), (f"CREATE TABLE {table}(a, b, c)", ())]
        yield f"an index of {table}", [(f"CREATE INDEX i ON {table}(1)", ())]
        trigger = f"AFTER INSERT ON {table} BEGIN DELETE FROM {table}; END"
        yield f"a trigger on {table}", [(f"CREATE TRIGGER t {trigger}", ())]
        columns = ", ".join([f"{key} INTEGER PRIMARY KEY", *(f"{name} AS (10000000000)" for name in others)])
        yield f"computed {table}", [(f"DROP TABLE {table}", ()), (f"CREATE TABLE {table}({columns})", ())]
        columns = ", ".join([f"{key} CHECK (randomblob(1000000000))", *others])
        yield f"a check of {table}", [(f"DROP TABLE {table}", ()), (f"CREATE TABLE {table}({columns})", ())]
        columns = ", ".join([key, *(f"{name} DEFAULT (1)" for name in others)])
        yield f"defaults of {table}", [(f"DROP TABLE {table}", ()), (f"CREATE TABLE {table}({columns})", ())]
    yield from with_good_checksums()
    schema = [("PRAGMA writable_schema = ON", ())]
    hidden = "CREATE TRIGGER sqlite_t AFTER INSERT ON sets BEGIN DELETE FROM sets; END"
    line = ("INSERT INTO sqlite_master VALUES ('trigger', 'sqlite_t', 'sets', 0, ?)", (hidden,))
    yield "a hidden trigger", [*schema, line]
    yield "of another kind", [("PRAGMA application_id = 5", ())]
    yield "a broken schema", [*schema, ("UPDATE sqlite_master SET sql = 'nonsense'", ())]
    yield "a root page far off", [*schema, ("UPDATE sqlite_master SET rootpage = 1000000", ())]
    yield "one root page", [*schema, ("UPDATE sqlite_master SET rootpage = 2", ())]


def with_good_checksums():
    """Yield statements that give row 3 other points, with a checksum that is right."""

    def body(points, weights=None, size=None):
        points = np.asarray(points, "<f4").tobytes()
        weights = None if weights is None else np.asarray(weights, "<f4").tobytes()
        size = len(points) // 8 if size is None else size
        crc = zlib.crc32(points) if weights is None else zlib.crc32(weights, zlib.crc32(points))
        return [
            ("UPDATE bodies SET points = ?, weights = ?, crc = ? WHERE body = 3", (points, weights, crc)),
            ("UPDATE sets SET size = ? WHERE row = 3", (size,)),
        ]

    bad = np.nan, np.inf, -np.inf, 3e38, -3e38
    yield from ((f"points {x}", body([[0, x], [1, 1]])) for x in bad)
    yield from ((f"weights {x}", body([[0, 1], [1, 1]], [x, 1])) for x in (*bad, -1, 0))
    yield "weights all zero", body([[0, 1], [1, 1]], [0, 0])
    yield "too few weights", body([[0, 1], [1, 1]], [1])
    yield "no points", body(np.empty((0, 2)))
    yield "no points, one claimed", body(np.empty((0, 2)), size=1)
    yield "a petabyte", body([[0, 1]], size=10**15 // 8)
    yield "less than no points", body([[0, 1]], size=-1)


def run_sql(path, statements):
    with contextlib.closing(sqlite3.connect(path / "index.db", isolation_level=None)) as connection:
        for sql, values in statements:
            with contextlib.suppress(sqlite3.IntegrityError):
                connection.execute(sql, values)


def attack_by_sql(path, folder, log, first, step, caches):
    found = list(by_sql(Path(path)))[first::step]
    attack(path, folder, log, [(name, lambda copy, s=s: run_sql(copy, s)) for name, s in found], caches)


def attack(path, folder, log, attacks, caches=True, change=True):
    """Make each attack on a copy of its own."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for i, (name, spoil) in enumerate(attacks):
        signal.alarm(120)  # who waits longer waits for ever
        os.write(said, f"{name}\n".encode())
        copy = Path(folder) / f"copy{i}"
        shutil.copytree(path, copy, ignore=shutil.ignore_patterns("index.db-*"))  # others look into it, too
        if not caches:
            shutil.rmtree(copy / "cache")
        spoil(copy)
        try:
            use(copy, change)
        except BaseException as error:
            os.write(said, f"PROBLEM {name}: {error!r:.300}, {where_from(error)}\n".encode(errors="replace"))
        finally:
            shutil.rmtree(copy)
    os.write(said, b"done\n")


def where_from(error):
    """Return the last lines of slosh that an error came through."""
    lines = [line for line in traceback.extract_tb(error.__traceback__) if "slosh" in line.filename]
    return " < ".join(f"{Path(line.filename).name}:{line.lineno}" for line in reversed(lines[-4:]))


def in_children(processes, folder, name, *given, every=1):
    """Do half of it in each of two processes, and of all of it one in `every`."""
    step = len(processes) * every
    logs = [folder / f"log{i}" for i in range(len(processes))]
    for i, (process, log) in enumerate(zip(processes, logs, strict=True)):
        (folder / f"{i}").mkdir()
        process.start(f"test_sqlite_hostile:{name}", given[0], folder / f"{i}", log, i * every, step, *given[1:])
    codes = [process.end() for process in processes]
    for code, log in zip(codes, logs, strict=True):
        lines = log.read_text(errors="replace").splitlines()
        problems = [line for line in lines if line.startswith("PROBLEM")]
        assert not problems, f"{len(problems)} problems\n" + "\n".join(problems)
        assert code == 0, f"exit code {code} at {lines[-1]}"
        assert lines[-1] == "done"


@pytest.mark.parametrize(("weighted", "caches"), [(True, True), (False, False)])
def test_a_hostile_database_is_refused_or_contained(fast_disk, several, weighted, caches, campaign):
    every = {"part": 6, "all": 1}[campaign]
    in_children(several, fast_disk, "attack_by_sql", good(fast_disk / "good", weighted=weighted), caches, every=every)
    assert not Path("/tmp/slosh-was-here").exists()


# -- hostile specifications and trained states -------------------------------------------------------------------------

BAD_PARTS = [None, -1, 0, "x", 10**9, 1e308, [], {}, {"list": [1]}, {"array": 0}, {"array": 99}]
BAD_PARTS += [{"class": "os.system", "has": {}}, {"class": "GeM", "has": {"__class__": 1}}]
BAD_PARTS += [{"list": [{"list": []}] * 3}, [{}], {"a": 1}]


def places(tree, at=()):
    """Yield the place of every part of a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, inner in items:
        yield (*at, key)
        yield from places(inner, (*at, key))


def with_part(tree, at, value):
    copy = inner = json.loads(json.dumps(tree))
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return copy


def by_packed(path):
    """Yield every packed file of arrays in the database with each of its parts changed, and its checksum right."""
    schema = Schema(path)
    assert schema.packed, "nothing in this database is packed as files of arrays"
    for (table, column, line), content in schema.packed.items():
        kind = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]["kind"]
        header, arrays = tensors.unpack(content, kind, "it")
        sql = f"UPDATE {table} SET {column} = ? WHERE {schema.columns[table][0]} = ?"

        def statement(header, arrays, kind=kind, sql=sql, line=line):
            with np.errstate(all="ignore"):
                return [(sql, (tensors.pack(kind, header, arrays), line))]

        for at in places(header):
            for value in BAD_PARTS:
                where = ".".join(map(str, at))
                yield f"{table} {where} = {value!r:.30}", statement(with_part(header, at, value), arrays)
        nested = {"list": [1]}
        for _ in range(300):
            nested = {"list": [nested]}
        for key in header:
            yield f"{table} deep {key}", statement({**header, key: nested}, arrays)
        yield f"{table} with more", statement({**header, "more": 1}, arrays)
        with np.errstate(all="ignore"):
            for name, array in arrays.items():
                wrong = [array.astype(kind) for kind in (np.float16, np.int64, np.int8, np.float64)]
                wrong += [array[:0], array[:1], array.ravel(), array.reshape(*array.shape, 1), array.T.copy()]
                wrong += [np.zeros((1000, 1000)), np.concatenate([array, array])]
                if array.dtype.kind == "f":
                    wrong += [array * np.nan, array * np.float64(1e300), array * np.inf]
                for other in wrong:
                    yield f"{table} {name} {other.dtype} {other.shape}", statement(header, {**arrays, name: other})
                yield f"{table} no {name}", statement(header, {key: x for key, x in arrays.items() if key != name})


def attack_by_packed(path, folder, log, first, step, table, caches):
    found = [each for each in by_packed(Path(path)) if each[0].startswith(table)][first::step]
    attack(path, folder, log, [(name, lambda copy, s=s: run_sql(copy, s)) for name, s in found], caches, caches)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("kind", ["sliced", "polynomial", "gem", "hamming"])
def test_a_hostile_specification_is_refused_or_contained(fast_disk, several, kind, campaign):
    more = {
        "sliced": {"origin": [1.0, 2.0], "preprocess": Preprocess(standardize=([0.0, 0.0], [1.0, 2.0]))},
        "polynomial": {"embedding": SlicedWasserstein(n_slices=4, n_quantiles=4, slices=slosh.slices.Polynomial())},
        "gem": {"embedding": GeM(2), "search": ExactSearch()},
        "hamming": {"search": HammingSearch(rerank=10), "sample": [child.points_of(str(i), 0) for i in range(30)]},
    }[kind]
    every = {"part": 12, "all": 1}[campaign]
    in_children(several, fast_disk, "attack_by_packed", good(fast_disk / "good", n=12, **more), "", True, every=every)


ABSURD = {
    "order": (GeM(2), ("parts", "embedding", "has", "p"), 10**6),
    "quantiles": (FSPool(4), ("parts", "embedding", "has", "n_quantiles"), 10**7),
    "features": (MeanPool(), ("parts", "embedding", "has", "n_features_in_"), (1 << 26) - 1),
}


@pytest.mark.parametrize("what", ABSURD)
def test_absurd_sizes_are_refused_before_work_begins(fast_disk, monkeypatch, what):
    class Begun(BaseException):
        """Not to be taken for a specification that is damaged."""

    def begin(*given, **options):
        raise Begun

    embedding, place, value = ABSURD[what]
    path = good(fast_disk / "good", n=3, embedding=embedding, search=ExactSearch())
    ((table, column, line), content) = next(item for item in Schema(path).packed.items() if item[0][2] == "spec")
    kind = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]["kind"]
    header, arrays = tensors.unpack(content, kind, "it")
    header = with_part(header, place, value)
    if what == "features":
        header = with_part(header, ("parts", "dim"), value)
    run_sql(path, [(f"UPDATE {table} SET {column} = ? WHERE key = ?", (tensors.pack(kind, header, arrays), line))])
    monkeypatch.setattr(type(embedding), "embed", begin)
    for read_only in (True, False):
        with pytest.raises(DamagedError, match=r"numbers|dim"):
            slosh.open(path, read_only=read_only, n_jobs=1)


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_hostile_trained_state_is_trained_anew(fast_disk, several, campaign):
    path = good(fast_disk / "good", n=1040)
    with slosh.open(path, n_jobs=1) as index:
        index.tune(0.8, k=2)
        assert index.info()["search_info"]["calibrations"]
    in_children(several, fast_disk, "attack_by_packed", path, "trained", False, every={"part": 40, "all": 1}[campaign])


# -- damaged bytes -----------------------------------------------------------------------------------------------------


def flip(path, folder, log, first, step, n):
    """Change bytes of the database, one or a few at a time."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
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
        signal.alarm(120)
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


def test_damaged_bytes_are_found_or_do_no_harm(fast_disk, several, campaign):
    in_children(several, fast_disk, "flip", good(fast_disk / "good"), {"part": 100, "all": 2000}[campaign])


# -- hostile caches: with a checksum that is right ---------------------------------------------------------------------


def stamp_of(cache):
    return json.loads(json.loads((cache / "stamp").read_text())["content"])


def write_stamp(cache, content):
    text = json.dumps(content)
    (cache / "stamp").write_text(json.dumps({"crc": zlib.crc32(text.encode()), "content": text}))


def restamped(cache, name, change):
    """Change an array and its checksum, too, as far as its stamp goes."""
    content = stamp_of(cache)
    about = content["arrays"][name]
    file = cache / f"{name}.{content['epoch']}"
    array = np.frombuffer(file.read_bytes(), about["dtype"]).copy()
    change(array)
    file.write_bytes(array.tobytes())
    data = array.tobytes()
    rows = content["points"] if name in ("points", "weights") else content["rows"]
    n_bytes = rows * np.dtype(about["dtype"]).itemsize * int(np.prod(about["width"]))
    about["crc"] = [zlib.crc32(data[:n_bytes])]
    write_stamp(cache, content)


def by_cache(path):
    content = stamp_of(path / "cache")
    values = [None, -1, 0, 10**15, "x", [], {}, 1e400, [1, 2], 10**30, "../../x"]
    for at in places(content):
        for value in [*values, *(["O", "V8", ">f4", "f4,f4", [10**9, 10**9]] if len(at) > 1 else [])]:
            where = ".".join(map(str, at))
            yield (f"stamp {where} = {value!r:.20}",
                   lambda copy, at=at, v=value: write_stamp(copy / "cache", with_part(content, at, v)))  # fmt: skip

    def fill(copy, name, value):
        def every_other(array):
            array[1::2] = value

        restamped(copy / "cache", name, every_other)

    for name, about in content["arrays"].items():
        kind = np.dtype(about["dtype"])
        for value in (0, 1, -1, 10**9, np.nan, np.inf, 2**62):
            if kind.kind == "f" or (value == value and abs(value) < 2.0 ** (8 * kind.itemsize - 1)):
                yield f"{name} full of {value}", lambda copy, n=name, v=value: fill(copy, n, v)
    yield "deep", lambda copy: (copy / "cache" / "stamp").write_text(DEEP)
    yield "deep inside", lambda copy: write_stamp(copy / "cache", {"format": json.loads("[" * 500 + "]" * 500)})
    yield "pickle", lambda copy: (copy / "cache" / "stamp").write_bytes(BOMB)
    for file in (path / "cache").iterdir():
        yield (f"{file.name} is a pipe",
               lambda copy, n=file.name: ((copy / "cache" / n).unlink(), os.mkfifo(copy / "cache" / n)))  # fmt: skip


def attack_by_cache(path, folder, log, first, step):
    with np.errstate(all="ignore"):
        attack(path, folder, log, list(by_cache(Path(path)))[first::step])


def test_a_hostile_cache_is_made_again_or_contained(fast_disk, several, campaign):
    every = {"part": 8, "all": 1}[campaign]
    in_children(several, fast_disk, "attack_by_cache", good(fast_disk / "good", n=20), every=every)
