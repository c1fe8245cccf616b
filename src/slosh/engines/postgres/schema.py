"""The tables of all indexes of a database, in one schema, and how they are made and found.

    slosh.about          the version of the layout of all these tables; `upgrading.py` brings older ones to this one.
                         And "made_on of I", what has made the vectors of the index I, if that was not the CPU alone
    slosh.indexes        a row for each index: name, generation, specification, settings
    slosh.learnt         what was learnt of a generation: whether there is a graph, and what was measured with it
    slosh.deltas         how many sets, points and changes each change brought; added up now and then
    slosh.commits        a token for each change, by which a client that lost the answer finds out what became of it
    slosh.dropped        tables of earlier generations, which are dropped when nobody reads them any more

and of the index with the number I, in its generation G, which `compact` and `retrain` count on:

    slosh.sets_I_G       key, id, metadata, what filters look at, vectors in half precision and what rounding took
    slosh.exact_I_G      by key, the vectors in full precision, and features
    slosh.bodies_I       points and weights of a set, with their checksum
    slosh.keys_I, slosh.ids_I   sequences: the next key, the next counted id

Names of tables are made of numbers that the database gave out. Nothing of a user is in a name.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from psycopg import errors as pg
from psycopg import sql

from ...errors import FormatError, InputError, UnsupportedError
from ..spec import WHOLE, IndexSpec
from .connections import Session

logger = logging.getLogger(__name__)

VERSION = 2
"""The version of the layout that this slosh writes, and reads. A new one needs a step in `upgrading.py`."""
LONGEST_VECTOR = 16_000
"""Numbers of a vector that pgvector stores."""
LONGEST_IN_GRAPH = 4_000
"""Numbers of a vector that it builds a graph of."""
LONGEST_ID_BYTES = 2692
"""Bytes of an id that its index takes: a third of a page, less what is stored around it."""
LONGEST_IN_LINE = 900
"""Numbers of a vector up to which it lies in the row itself, and not beside it."""

MAIN = f"""
    CREATE TABLE slosh.about (name text PRIMARY KEY, value text NOT NULL);
    INSERT INTO slosh.about VALUES ('version', '{VERSION:d}');
    CREATE TABLE slosh.indexes (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text COLLATE "C" NOT NULL UNIQUE,
        generation bigint NOT NULL, spec bytea NOT NULL, weighted boolean, recall float8, part_recalls text,
        scales float8[], created timestamptz NOT NULL DEFAULT now(), format integer NOT NULL);
    CREATE TABLE slosh.learnt (
        index_id bigint, generation bigint, stamp bigint NOT NULL, graph boolean NOT NULL, content text NOT NULL,
        PRIMARY KEY (index_id, generation));
    CREATE TABLE slosh.deltas (
        index_id bigint NOT NULL, sets bigint NOT NULL, added bigint NOT NULL, points bigint NOT NULL,
        changes bigint NOT NULL);
    CREATE INDEX deltas_by_index ON slosh.deltas (index_id);
    CREATE TABLE slosh.commits (
        token text COLLATE "C" PRIMARY KEY, index_id bigint NOT NULL, at timestamptz NOT NULL DEFAULT now());
    CREATE INDEX commits_by_time ON slosh.commits (at);
    CREATE TABLE slosh.dropped (name text COLLATE "C" PRIMARY KEY, is_sequence boolean NOT NULL);
"""
SELECT_VERSION = "SELECT value FROM slosh.about WHERE name = 'version'"
COLUMNS = {
    ("about", "value"), ("indexes", "spec"), ("indexes", "scales"), ("learnt", "content"), ("deltas", "changes"),
    ("commits", "token"), ("dropped", "is_sequence"),
}  # fmt: skip
"""Some columns that the tables have in every version, to tell them from others of the same name."""


class Tables(NamedTuple):
    """The tables of one generation of an index."""

    number: int
    generation: int

    @property
    def sets(self) -> str:
        return f"slosh.sets_{self.number:d}_{self.generation:d}"

    @property
    def exact(self) -> str:
        return f"slosh.exact_{self.number:d}_{self.generation:d}"

    @property
    def bodies(self) -> str:
        return f"slosh.bodies_{self.number:d}"

    @property
    def keys(self) -> str:
        return f"slosh.keys_{self.number:d}"

    @property
    def ids(self) -> str:
        return f"slosh.ids_{self.number:d}"

    @property
    def fields(self) -> str:
        """The name of the index of what filters look at, without the schema."""
        return f"fields_{self.number:d}_{self.generation:d}"

    @property
    def graph(self) -> str:
        """The name of the index of the vectors, without the schema."""
        return f"graph_{self.number:d}_{self.generation:d}"


def check_lengths(spec: IndexSpec) -> None:
    """Refuse a specification whose vectors PostgreSQL cannot hold."""
    for name, space in spec.spaces.items():
        if space.length > LONGEST_VECTOR:
            what = "the embedding makes" if name == WHOLE else "part search makes"
            problem = f"{what} vectors of {space.length:,} numbers, and PostgreSQL holds {LONGEST_VECTOR:,} at most"
            raise UnsupportedError(problem, "use Whitened, or fewer slices", argument="embedding", feature_name=name)


def parse_makers(text: str | None) -> tuple[str, ...] | None:
    """Return what has made the vectors of an index, as `store_makers` stored it; whatever else stands there is a name,
    too, as it only decides how vectors are compared.
    """
    if text is None:
        return None
    try:
        names = json.loads(text)
    except ValueError:
        names = text
    return tuple(map(str, names)) if isinstance(names, list) else (str(names),)


def store_makers(session: Session, index: int, makers: Sequence[str] | None) -> None:
    """Store what has made the vectors of an index; None, the CPU alone, takes no row."""
    name = f"made_on of {index:d}"
    if makers is None:
        session.execute("DELETE FROM slosh.about WHERE name = %s", (name,))
        return
    sql = "INSERT INTO slosh.about VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value"
    session.execute(sql, (name, json.dumps(list(makers))))


def check_ids(ids: Sequence[str]) -> None:
    """Refuse ids that PostgreSQL cannot find sets by."""
    for name in ids:
        if len(name) * 4 > LONGEST_ID_BYTES and (n := len(name.encode())) > LONGEST_ID_BYTES:
            problem = f"the id {name!r:.60} takes {n:,} bytes, and PostgreSQL holds ids of {LONGEST_ID_BYTES:,} at most"
            raise InputError(f"{problem}, nothing was changed", "give a shorter one", argument="ids", id=name)


def version_of(session: Session) -> int | None:
    """Return the version of the tables of this database, None if there are none; refuse tables of others."""
    lines = session.execute(
        "SELECT c.relname::text, c.relkind::text, a.attname::text FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid"
        " WHERE n.nspname = 'slosh' AND a.attnum > 0"
        " AND c.relname IN ('about', 'indexes', 'learnt', 'deltas', 'commits', 'dropped')"
    ).fetchall()
    if not lines:
        return None
    if COLUMNS - {(table, column) for table, kind, column in lines if kind == "r"}:
        problem = "the schema slosh of this database has tables of the same names that are not slosh's"
        raise FormatError(problem, "use another database")
    (version,) = session.execute(SELECT_VERSION).fetchone() or ("",)
    if not re.fullmatch("[0-9]{1,9}", version):
        problem = f"the schema slosh of this database has the version {version!r:.20}, which is none"
        raise FormatError(problem, "restore slosh.about from a copy", supported=VERSION)
    return int(version)


def check_version(found: int, location: str) -> None:
    """Refuse tables of another version than this slosh knows."""
    if found == VERSION:
        return
    problem = f"{location}: the schema slosh of this database has version {found}, and this slosh knows {VERSION}"
    remedy = "use a newer slosh" if found > VERSION else "open it for writing once, without read_only: it is upgraded"
    raise FormatError(problem, remedy, location=location, found=found, supported=VERSION)


def make(session: Session) -> None:
    """Make the tables that all indexes share, unless there are some. Others may do so at the same time."""
    for _ in range(3):
        if version_of(session) is not None:
            return
        try:
            with session.connection.transaction():
                session.connection.execute("CREATE SCHEMA IF NOT EXISTS slosh")
                session.connection.execute(MAIN)
        except (pg.UniqueViolation, pg.DuplicateSchema, pg.DuplicateTable):  # somebody else was faster
            continue


def make_generation(session: Session, tables: Tables, spec: IndexSpec) -> None:
    """Make the tables of a generation, empty; `make_indexes` follows when they are filled."""
    vectors, exact, plain = [], [], []
    for name, space in spec.spaces.items():
        vectors += [f"{name} halfvec({space.length:d}) NOT NULL", f"{name}_moved float8 NOT NULL"]
        exact.append(f"{name} bytea NOT NULL")
        if space.length <= LONGEST_IN_LINE:
            plain.append(name)
    exact += [f"feature_{i:d} bytea NOT NULL" for i in range(len(spec.features))]
    session.execute(
        f"CREATE TABLE {tables.sets} (key bigint NOT NULL, body bigint NOT NULL, size integer NOT NULL,"
        f' slack float8 NOT NULL, id text COLLATE "C" NOT NULL, metadata text NOT NULL, fields jsonb NOT NULL,'
        f" {', '.join(vectors)})"
    )
    for name in spec.spaces:
        session.execute(f"ALTER TABLE {tables.sets} ALTER {name} SET STATISTICS 0")
    for name in plain:
        session.execute(f"ALTER TABLE {tables.sets} ALTER {name} SET STORAGE PLAIN")
    session.execute(f"CREATE TABLE {tables.exact} (key bigint NOT NULL, {', '.join(exact)})")
    for column in [*spec.spaces, *(f"feature_{i:d}" for i in range(len(spec.features)))]:
        session.execute(
            f"ALTER TABLE {tables.exact} ALTER {column} SET STORAGE EXTERNAL, ALTER {column} SET STATISTICS 0"
        )


def make_indexes(session: Session, tables: Tables) -> None:
    """Make the indexes of a generation but for the graph."""
    session.execute(f"ALTER TABLE {tables.sets} ADD PRIMARY KEY (key)")
    session.execute(f"ALTER TABLE {tables.sets} ADD UNIQUE (id)")
    session.execute(f"CREATE INDEX {tables.fields} ON {tables.sets} USING gin (fields jsonb_path_ops)")
    session.execute(f"ALTER TABLE {tables.exact} ADD PRIMARY KEY (key)")


def copy_rights(session: Session, old: Tables, new: Tables) -> None:
    """Give everybody the rights on the tables of a generation that they have on those of another one."""
    for before, after in ((old.sets, new.sets), (old.exact, new.exact)):
        lines = session.execute(
            "SELECT a.privilege_type, a.grantee = 0, pg_get_userbyid(a.grantee)::text FROM pg_class c"
            " CROSS JOIN LATERAL aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a"
            " WHERE c.oid = to_regclass(%s)",
            (before,),
        ).fetchall()
        for right, is_public, role in lines:
            assert right.isalpha()
            name = sql.SQL("PUBLIC") if is_public else sql.Identifier(role)
            session.execute(sql.SQL("GRANT {} ON {} TO {}").format(sql.SQL(right), sql.SQL(after), name))


def make_bodies(session: Session, tables: Tables) -> None:
    """Make what all generations of an index share."""
    session.execute(
        f"CREATE TABLE {tables.bodies} (body bigint PRIMARY KEY, points bytea NOT NULL, weights bytea,"
        " checksum bigint NOT NULL)"
    )
    for column in ("points", "weights"):
        session.execute(
            f"ALTER TABLE {tables.bodies} ALTER {column} SET STORAGE EXTERNAL, ALTER {column} SET STATISTICS 0"
        )
    session.execute(f"CREATE SEQUENCE {tables.keys} AS bigint MINVALUE 0 START 0")
    session.execute(f"CREATE SEQUENCE {tables.ids} AS bigint MINVALUE 0 START 0")


def leave(session: Session, tables: Sequence[str], sequences: Sequence[str] = ()) -> None:
    """Note tables that nobody needs any more from the next version on; `sweep` drops them."""
    for names, is_sequence in ((tables, False), (sequences, True)):
        for name in names:
            session.execute("INSERT INTO slosh.dropped VALUES (%s, %s)", (name, is_sequence))


def sweep(session: Session, patience: str = "20ms") -> None:
    """Drop tables of earlier generations, but for those that somebody reads: they are dropped another time."""
    lines: list[tuple[str, bool]] = []
    with suppress(pg.InsufficientPrivilege):
        lines = session.execute("SELECT name, is_sequence FROM slosh.dropped").fetchall()
    for name, is_sequence in lines:
        table = name.rpartition(".")[2]
        if not name.startswith("slosh.") or not table.replace("_", "").isalnum():
            continue
        try:
            with session.connection.transaction():
                session.execute(f"SET LOCAL lock_timeout = '{patience}'")
                session.execute(f"DROP {'SEQUENCE' if is_sequence else 'TABLE'} IF EXISTS slosh.{table}")
                session.execute("DELETE FROM slosh.dropped WHERE name = %s", (name,))
        except (pg.LockNotAvailable, pg.DeadlockDetected, pg.InsufficientPrivilege, pg.ReadOnlySqlTransaction):
            continue
        except pg.DependentObjectsStillExist as error:
            logger.warning("%s is not needed any more, and stays: %s", name, error.diag.message_detail)
