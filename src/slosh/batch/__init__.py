"""Batch jobs over many sets: embed Arrow batches and folders of files, build indexes and shards, graphs of neighbours.

`embed` is one function on Arrow data, and runs wherever such data are: Ray, Spark, Dask, a loop. The others are jobs
that go on where they stopped. Here they run in this process; `slosh.ray` runs the same jobs on many machines.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .arrow import embed
    from .building import build
    from .embedding import embed_files
    from .jobs import Report
    from .learning import learn
    from .pairs import duplicates, neighbor_graph

__all__ = ["Report", "build", "duplicates", "embed", "embed_files", "learn", "neighbor_graph"]

_HOMES = {
    "Report": ".jobs",
    "build": ".building",
    "duplicates": ".pairs",
    "embed": ".arrow",
    "embed_files": ".embedding",
    "learn": ".learning",
    "neighbor_graph": ".pairs",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a name when it is first used."""
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found = getattr(import_module(_HOMES[name], __name__), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
