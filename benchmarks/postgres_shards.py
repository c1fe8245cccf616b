"""Vectors of an index over several PostgreSQL servers: partitions by hash of the id, each on a server of its own.

slosh does not shard. Past one server this is what PostgreSQL offers: a table partitioned by hash, whose partitions are
foreign tables (postgres_fdw), each with its own HNSW graph. A query goes to all servers, and the nearest of all are
merged. The script starts a coordinator and shards of its own, copies ids and vectors of sets there, and prints what
filling, the graphs and a query cost, beside one table on one server.

    python benchmarks/postgres_shards.py --sets 60000 --shards 2
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import psycopg

import machine
import search_data
from slosh.embed import SlicedWasserstein
from slosh.engines.postgres.local_server import LocalServer

SETTINGS = {"shared_buffers": "256MB", "maintenance_work_mem": "512MB", "fsync": "off"}
GRAPH = "CREATE INDEX ON {} USING hnsw (vector halfvec_l2_ops)"
K = 10


def make_table(connection: Any, name: str, dim: int) -> None:
    connection.execute(f"CREATE TABLE {name} (id text NOT NULL, vector halfvec({dim:d}) NOT NULL)")


def fill(connection: Any, table: str, vectors: Any) -> None:
    with connection.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN") as copy:
        for i, vector in enumerate(vectors):
            copy.write_row((f"s{i}", "[" + ",".join(f"{x:.6g}" for x in vector) + "]"))


def connect_shards(coordinator: LocalServer, shards: list[LocalServer], dim: int, portion: int) -> Any:
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
            f" dbname 'postgres', extensions 'vector', fetch_size '{portion:d}', batch_size '1000',"
            " async_capable 'true')"
        )
        connection.execute(f"CREATE USER MAPPING FOR CURRENT_USER SERVER shard{i:d} OPTIONS (user 'slosh')")
        connection.execute(
            f"CREATE FOREIGN TABLE vectors_{i:d} PARTITION OF vectors FOR VALUES"
            f" WITH (MODULUS {len(shards):d}, REMAINDER {i:d}) SERVER shard{i:d} OPTIONS (table_name 'part')"
        )
    return connection


def build_graphs(shards: list[LocalServer]) -> None:
    """Make the graph of each shard, all at once."""

    def build(shard: LocalServer) -> None:
        with psycopg.connect(shard.url, autocommit=True) as remote:
            remote.execute(GRAPH.format("part"))
            remote.execute("ALTER SYSTEM SET enable_seqscan = off")
            remote.execute("SELECT pg_reload_conf()")

    with ThreadPoolExecutor(len(shards)) as threads:
        list(threads.map(build, shards))


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


def explained(connection: Any) -> str:
    """Return how the coordinator answers a query."""
    sql = f"SELECT id FROM vectors ORDER BY vector <-> (SELECT vector FROM vectors LIMIT 1) LIMIT {K:d}"
    return "\n".join(line for (line,) in connection.execute(f"EXPLAIN (VERBOSE, COSTS OFF) {sql}"))


def measured(connection: Any, vectors: Any, asked: Any, truth: list[set[str]], build: Callable[[], Any]) -> Any:
    """Fill a table, make its graphs, ask, and return what each took."""
    started = time.perf_counter()
    fill(connection, "vectors", vectors)
    filled = time.perf_counter()
    build()
    built = time.perf_counter()
    milliseconds, found = timed(connection, asked)
    recall = float(np.mean([len(a & set(b)) / K for a, b in zip(truth, found, strict=True)]))
    return {"sets_per_second": len(vectors) / (filled - started), "graph_seconds": built - filled,
            "query_ms": milliseconds, "recall": recall}  # fmt: skip


def run(n: int, n_shards: int, n_queries: int = 200, portion: int = K) -> dict[str, Any]:
    """Return what shards and one table cost, and the plan of a query of the shards."""
    _, stored, queries = search_data.read(n, n_queries)
    model = SlicedWasserstein(16, 16).fit(stored)
    vectors, asked = model.transform(stored), model.transform(queries)
    away = [np.argsort(np.linalg.norm(vectors - query, axis=1), kind="stable")[:K] for query in asked]
    truth = [{f"s{i}" for i in near} for near in away]
    with ExitStack() as stack:
        servers = [stack.enter_context(LocalServer(settings=SETTINGS)) for _ in range(n_shards + 1)]
        connection = stack.enter_context(connect_shards(servers[0], servers[1:], vectors.shape[1], portion))
        shards = measured(connection, vectors, asked, truth, lambda: build_graphs(servers[1:]))
        plan = explained(connection)
        connection.execute("DROP TABLE vectors")
        make_table(connection, "vectors", vectors.shape[1])
        connection.execute("SET enable_seqscan = off")
        one = measured(connection, vectors, asked, truth, lambda: connection.execute(GRAPH.format("vectors")))
    return {"shards": shards, "one": one, "plan": plan}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=60_000)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--portion", type=int, default=K, help="rows that a shard sends at a time (fetch_size)")
    parser.add_argument("--plan", action="store_true", help="print how a query is answered, too")
    chosen = parser.parse_args()
    found = run(chosen.sets, chosen.shards, portion=chosen.portion)
    print(f"{machine.cpu()}, {os.cpu_count()} cores; {chosen.sets:,} sets, {chosen.shards} shards")
    for name in found["shards"]:
        print(f"{name}: {found['shards'][name]:.4g} over the shards, {found['one'][name]:.4g} in one table")
    if chosen.plan:
        print(found["plan"])
