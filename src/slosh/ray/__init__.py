"""slosh on many machines, by Ray: batch jobs, and collections in shards. It needs the extra `ray`.

A name is imported when it is first used, and Ray itself when something is called.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .building import build, embed
    from .graphs import duplicates, neighbor_graph
    from .serving import serve

_HOMES = {
    "build": ".building",
    "duplicates": ".graphs",
    "embed": ".building",
    "neighbor_graph": ".graphs",
    "serve": ".serving",
}
__all__ = ["build", "duplicates", "embed", "neighbor_graph", "serve"]

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
