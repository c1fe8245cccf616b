"""Compare what a graph (HNSW) in PostgreSQL may be built on: whole vectors, a part of their numbers, or others.

The vectors are sliced ones of 1,024 numbers of 60,000 MNIST sets; recall counts the ten nearest by all numbers in full
precision. A graph on fewer numbers names candidates, and SQL orders them by the whole vectors.

    python benchmarks/postgres_graphs.py            two minutes; prints a table
    python benchmarks/postgres_graphs.py --quick    3,000 sets, only to see that it runs
"""

from __future__ import annotations

import argparse
import struct
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import psycopg

import search_data
from bench_postgres import SETTINGS
from slosh.embed import SlicedWasserstein, Whitened
from slosh.engines.postgres.codec import COPY_END, COPY_HEADER
from slosh.engines.postgres.local_server import LocalServer

K, LENGTH, WHITENED = 10, 1024, 64
EFFORTS = (20, 40, 80, 160, 320)


class Graph(NamedTuple):
    """What the graph is built on (SQL), and the numbers of a query that it compares."""

    name: str
    column: str
    asked: Callable[[int], Any]


def half(numbers: Any) -> bytes:
    return struct.pack(">hh", len(numbers), 0) + numbers.astype(">f2").tobytes()


def fill(connection: Any, vectors: Any, whitened: Any) -> None:
    connection.execute(f"CREATE TABLE v (key bigint, whole halfvec({LENGTH}), white halfvec({WHITENED}))")
    connection.execute("ALTER TABLE v ALTER whole SET STORAGE EXTERNAL")
    with connection.cursor() as cursor, cursor.copy("COPY v FROM STDIN (FORMAT BINARY)") as copy:
        copy.write(COPY_HEADER)
        for key, (one, other) in enumerate(zip(vectors, whitened, strict=True)):
            copy.write(struct.pack(">hiq", 3, 8, key))
            for part in (half(one), half(other)):
                copy.write(struct.pack(">i", len(part)) + part)
        copy.write(COPY_END)
    connection.execute("ANALYZE v")


def text(numbers: Any) -> str:
    return "[" + ",".join(f"{x:.7g}" for x in numbers) + "]"


def measure(connection: Any, graph: Graph, queries: Any, truth: Any, n: int) -> None:
    started = time.perf_counter()
    connection.execute(f"CREATE INDEX graph ON v USING hnsw (({graph.column}) halfvec_l2_ops)")
    seconds = time.perf_counter() - started
    (size,) = connection.execute("SELECT pg_relation_size('graph')").fetchone()
    for effort in EFFORTS:
        connection.execute(f"SET hnsw.ef_search = {effort}")
        sql = (
            f"SELECT key FROM (SELECT key, whole FROM v ORDER BY {graph.column} <-> %s::halfvec LIMIT {effort}) c"
            f" ORDER BY whole <-> %s::halfvec LIMIT {K}"
        )
        times, hits = [], 0
        for i, query in enumerate(queries):
            parameters = text(graph.asked(i)), text(query)
            began = time.perf_counter()
            lines = connection.execute(sql, parameters).fetchall()
            times.append(time.perf_counter() - began)
            hits += len({key for (key,) in lines} & set(truth[i].tolist()))
        recall, p50 = hits / K / len(queries), np.median(times) * 1000
        about = f"{seconds:.1f} s | {size / n:,.0f}" if effort == EFFORTS[0] else " | "
        print(f"| {graph.name} | {about} | {effort} | {recall:.3f} | {p50:.2f} ms |", flush=True)
    connection.execute("DROP INDEX graph")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    n, n_queries = (3000, 30) if parser.parse_args().quick else (60_000, 500)
    data, stored, asked = search_data.read(n, n_queries)
    print(f"{data}, {n:,} sets, sliced vectors of {LENGTH:,} numbers")
    sliced = SlicedWasserstein(64, 16, n_jobs=2).fit(stored[:100])
    short = Whitened(SlicedWasserstein(), n_components=WHITENED, n_jobs=2).fit(stored[:5000])
    (vectors, queries), (whitened, white) = ([each.transform(x) for x in (stored, asked)] for each in (sliced, short))
    distances = (vectors.astype(np.float64) ** 2).sum(axis=1) - 2 * queries.astype(np.float64) @ vectors.T
    truth = np.argsort(distances, axis=1)[:, :K]
    graphs = [
        Graph("whole vector", "whole", lambda i: queries[i]),
        Graph("first 256 numbers", "subvector(whole, 1, 256)::halfvec(256)", lambda i: queries[i][:256]),
        Graph("first 128 numbers", "subvector(whole, 1, 128)::halfvec(128)", lambda i: queries[i][:128]),
        Graph("64 whitened numbers", "white", lambda i: white[i]),
    ]
    print("| graph on | build | bytes a set | ef_search | recall@10 | p50 |\n|---|---|---|---|---|---|")
    with LocalServer(settings=SETTINGS) as server, psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
        connection.execute("SET enable_seqscan = off")
        fill(connection, vectors, whitened)
        for graph in graphs:
            measure(connection, graph, queries, truth, n)


if __name__ == "__main__":
    main()
