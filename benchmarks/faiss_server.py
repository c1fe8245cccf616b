"""A plain vector server to compare with: FastAPI, a pydantic body, the same embedding, and FAISS.

python benchmarks/faiss_server.py INDEX    listens on a free port, and prints it; `bench_server.py` starts it
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import faiss
import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

import slosh
from slosh import Sets

N_LISTS, N_PROBED = 256, 16
"""Lists of the inverted file, and how many of them a query looks at. Its recall is not measured."""


class Query(BaseModel):
    points: list[list[float]]
    k: int = 10


def load(place: str) -> tuple[Any, Any, list[str]]:
    """Return the embedding, a FAISS index of the vectors, and the ids."""
    with slosh.open(place, read_only=True) as index:
        embedding, ids, parts = index.embedding, [], []
        for batch in index.records():
            parts.append(embedding.transform(batch.sets).astype(np.float32))
            ids += batch.ids
    vectors = np.concatenate(parts)
    found = faiss.index_factory(vectors.shape[1], f"IVF{min(N_LISTS, len(ids) // 40)},Flat")
    found.train(vectors)
    found.add(vectors)
    found.nprobe = N_PROBED
    return embedding, found, ids


def make_app(place: str) -> FastAPI:
    embedding, index, ids = load(place)
    app = FastAPI()

    @app.post("/search")
    def search(query: Query) -> dict[str, Any]:
        vector = embedding.transform(Sets.from_list([query.points])).astype(np.float32)
        distances, rows = index.search(vector, query.k)
        return {"ids": [ids[row] for row in rows[0]], "distances": np.sqrt(distances[0]).tolist()}

    return app


def main() -> None:
    app = make_app(sys.argv[1])
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(2048)
    print(f"listening on {listening.getsockname()[1]}", flush=True)
    asyncio.run(uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="warning")).serve([listening]))


if __name__ == "__main__":
    main()
