"""What there is to say about an index: counts, sizes on disk and in memory, parameters, and what was learnt."""

from __future__ import annotations

from typing import Any

from . import lines as db
from .database import VERSION
from .held import Held


def info(engine: Held) -> dict[str, Any]:
    with engine.seen() as c:
        weighted, generation, version = db.about(c, "weighted", "generation", "learnt")
        points = c.execute("SELECT coalesce(sum(size), 0), min(size), max(size) FROM sets").fetchone()
        removed = c.execute("SELECT count(*) FROM removed").fetchone()[0]
        pages = c.execute("PRAGMA page_count").fetchone()[0] * c.execute("PRAGMA page_size").fetchone()[0]
        ready = engine._sets
        found: dict[str, Any] = {
            "path": None if engine.folder is None else str(engine.folder),
            "format": VERSION,
            "sets": 0 if ready is None else len(ready),
            "points": points[0],
            "sizes": None if points[1] is None else {"smallest": points[1], "largest": points[2]},
            "weighted": None if weighted is None else bool(weighted),
            **engine.recipe.described(),
            "recall": engine.recall,
            "removed_since_compact": removed,
            "compacted": generation,
            "learnt_version": version,
            "embedded_on_open": engine.embedded,
            "cache_rebuilt": engine.rebuilt,
        }
        if engine.folder is not None:
            log = engine.folder / "index.db-wal"
            found["disk_bytes"] = {
                "database": (engine.folder / "index.db").stat().st_size,
                "log": log.stat().st_size if log.exists() else 0,
                "cache": 0 if ready is None else engine._columns.disk_bytes,
            }
        else:
            found["database_bytes"] = pages
        if ready is not None and len(ready):
            about = ready.vector_search.info()
            memory = {**about.pop("bytes"), "points": ready._points.n_bytes, "bounds": ready._errors.n_bytes}
            found["memory_bytes"] = memory
            found["search_info"] = {key: value for key, value in about.items() if key not in ("rows", "bytes_per_row")}
        return found
