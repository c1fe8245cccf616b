"""Vectors of an index over several PostgreSQL servers: partitions by hash of the id, each on a server of its own.

slosh does not shard. Past one server this is what PostgreSQL offers: a table partitioned by hash, whose partitions are
foreign tables (postgres_fdw), each with its own HNSW graph. A query goes to all servers, and the nearest of all are
merged. The script starts a coordinator and shards of its own, copies
ids and vectors of an index there, and prints what a query costs beside one table.

    python benchmarks/postgres_shards.py --sets 60000 --shards 2
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import psycopg

import search_data
from slosh.embed import SlicedWasserstein
from slosh.engines.postgres.local_server import LocalServer

SETTINGS = {"shared_buffers": "256MB", "maintenance_work_mem": "512MB", "fsync": "off"}
K = 10


def make_table(connection: Any, name: str, dim: int) -> None:
    connection.execute(f"CREATE TABLE {name} (id text NOT NULL, vector halfvec({dim:d}) NOT NULL)")


def fill(connection: Any, table: str, vectors: Any) -> None:
    with connection.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN") as copy:
        for i, vector in enumerate(vectors):
            copy.write_row((f"s{i}", "[" + ",".join(f"{x:.6g}" for x in vector) + "]"))


def connect_shards(coordinator: LocalServer, shards: list[LocalServer], dim: int) -> Any:
    """Return a connection to a coordinator whose table `vectors` has a partition on each shard."""
    connection: Any = psycopg.connect(coordinator.url, autocommit=True)
    connection.execute("CREATE EXTENSION vector")
    connection.execute("CREATE EXTENSION postgres_fdw")
    connection.execute(f"CREATE TABLE vectors (id text NOT NULL, vector halfvec({dim:d})) PARTITION BY HASH (id)")
    for i, shard in enumerate(shards):
        with psycopg.connect(shard.url, autocommit=True) as remote:
            remote.execute("CREATE EXTENSION vector")
            make_table(remote, "part", dim)
        # The server ships ORDER BY vector <-> ... only if it is told that the shards have the extension.
        connection.execute(
            f"CREATE SERVER shard{i:d} FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '{shard.sockets}',"
            " dbname 'postgres', extensions 'vector', fetch_size '50', batch_size '1000', async_capable 'true')"
        )
        connection.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER shard{i:d} OPTIONS (user 'slosh')")
        connection.execute(
            f"CREATE FOREIGN TABLE vectors_{i:d} PARTITION OF vectors FOR VALUES"
            f" WITH (MODULUS {len(shards):d}, REMAINDER {i:d}) SERVER shard{i:d} OPTIONS (table_name 'part')"
        )
    return connection


def build_graphs(shards: list[LocalServer]) -> None:
    for shard in shards:
        with psycopg.connect(shard.url, autocommit=True) as remote:
            remote.execute("CREATE INDEX ON part USING hnsw (vector halfvec_l2_ops)")
            remote.execute("ALTER SYSTEM SET enable_seqscan = off")
            remote.execute("SELECT pg_reload_conf()")


def nearest(connection: Any, query: Any) -> list[str]:
    text = "[" + ",".join(f"{x:.6g}" for x in query) + "]"
    sql = f"SELECT id FROM vectors ORDER BY vector <-> %s::halfvec({len(query):d}) LIMIT {K:d}"
    return [name for (name,) in connection.execute(sql, (text,))]


def timed(connection: Any, queries: Any) -> tuple[float, list[list[str]]]:
    """Return milliseconds of a query, the median, and what was found."""
    seconds, found = [], []
    for query in queries:
        started = time.perf_counter()
        found.append(nearest(connection, query))
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds)) * 1000, found


def _recall(truth: list[set[str]], found: list[list[str]]) -> float:
    return float(np.mean([len(a & set(b)) / K for a, b in zip(truth, found, strict=True)]))


def run(n: int, n_shards: int, n_queries: int = 200) -> dict[str, Any]:
    """Return milliseconds and recall of one table and of shards."""
    _, stored, queries = search_data.read(n, n_queries)
    model = SlicedWasserstein(16, 16).fit(stored)
    vectors, asked = model.transform(stored), model.transform(queries)
    away = [np.argsort(np.linalg.norm(vectors - query, axis=1), kind="stable")[:K] for query in asked]
    truth = [{f"s{i}" for i in near} for near in away]
    with ExitStack() as stack:
        servers = [stack.enter_context(LocalServer(settings=SETTINGS)) for _ in range(n_shards + 1)]
        connection = stack.enter_context(connect_shards(servers[0], servers[1:], vectors.shape[1]))
        started = time.perf_counter()
        fill(connection, "vectors", vectors)
        filled = time.perf_counter() - started
        build_graphs(servers[1:])
        plan = "\n".join(line for (line,) in connection.execute(
            "EXPLAIN (VERBOSE, COSTS OFF) SELECT id FROM vectors ORDER BY vector <-> "
            f"(SELECT vector FROM vectors LIMIT 1) LIMIT {K:d}"))  # fmt: skip
        shards, found = timed(connection, asked)
        connection.execute("DROP TABLE vectors")
        make_table(connection, "vectors", vectors.shape[1])
        fill(connection, "vectors", vectors)
        connection.execute("CREATE INDEX ON vectors USING hnsw (vector halfvec_l2_ops)")
        connection.execute("SET enable_seqscan = off")
        one, found_by_one = timed(connection, asked)
    recall, recall_of_one = (_recall(truth, each) for each in (found, found_by_one))
    return {
        "sets_per_second": n / filled, "shards_ms": shards, "shards_recall": recall, "one_table_ms": one,
        "one_table_recall": recall_of_one, "plan": plan,
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=60_000)
    parser.add_argument("--shards", type=int, default=2)
    chosen = parser.parse_args()
    for name, value in run(chosen.sets, chosen.shards).items():
        print(f"{name}: {value}")
