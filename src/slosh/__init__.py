"""slosh: nearest-neighbour search over sets of vectors, by Sliced-Wasserstein embeddings.

A name is imported when it is first used (PEP 562), so that `import slosh` and `slosh --help` do not wait for
scikit-learn and SciPy.
"""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import (
        batch,
        embed,
        errors,
        evaluate,
        hash,
        learn,
        neighbors,
        rank,
        ray,
        readers,
        search,
        slices,
        torch,
        where,
    )
    from .data.preprocess import Preprocess
    from .data.sets import Sets
    from .engines.embedding_files import load_embedding, save_embedding
    from .errors import IndexLocked, PrecisionWarning, ScaleWarning, UnknownId
    from .index import Hit, HitLists, Hits, SetIndex, open
    from .neighbors.compare import compare
    from .rank.sliced import distance, pairwise

__version__ = "0.1.0"
__all__ = [
    "Hit",
    "HitLists",
    "Hits",
    "IndexLocked",
    "PrecisionWarning",
    "Preprocess",
    "ScaleWarning",
    "SetIndex",
    "Sets",
    "UnknownId",
    "batch",
    "compare",
    "distance",
    "embed",
    "errors",
    "evaluate",
    "hash",
    "learn",
    "load_embedding",
    "neighbors",
    "open",
    "pairwise",
    "rank",
    "ray",
    "readers",
    "save_embedding",
    "search",
    "slices",
    "torch",
    "where",
]

_HOMES = {
    **dict.fromkeys(("IndexLocked", "PrecisionWarning", "ScaleWarning", "UnknownId"), ".errors"),
    **dict.fromkeys(("Hit", "HitLists", "Hits", "SetIndex", "open"), ".index"),
    **dict.fromkeys(("distance", "pairwise"), ".rank.sliced"),
    **dict.fromkeys(("load_embedding", "save_embedding"), ".engines.embedding_files"),
    "Preprocess": ".data.preprocess",
    "Sets": ".data.sets",
    "compare": ".neighbors.compare",
}
"""The modules of the names that are not modules themselves."""
_INNER = ("data", "engines", "index", "native")

logging.getLogger(__name__).addHandler(logging.NullHandler())  # an application chooses what it shows

if not TYPE_CHECKING:  # a type checker that saw it would take any name for known

    def __getattr__(name: str) -> object:
        """Import a name when it is first used."""
        from importlib import import_module

        if name not in __all__ and name not in _INNER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = _HOMES.get(name)
        found = import_module(f".{name}", __name__) if home is None else getattr(import_module(home, __name__), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
