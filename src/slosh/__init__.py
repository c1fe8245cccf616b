"""slosh: nearest-neighbour search over sets of vectors, by Sliced-Wasserstein embeddings."""

from . import datasets, embed, evaluate, hash, neighbors, rank, readers, search, slices, where
from .compare import compare
from .engines.locks import IndexLocked
from .hits import Hit, HitLists, Hits
from .index import SetIndex, open
from .precision import PrecisionWarning
from .sets import ScaleWarning, Sets
from .sliced import distance, pairwise

__version__ = "0.1.0"
__all__ = [
    "Hit",
    "HitLists",
    "Hits",
    "IndexLocked",
    "PrecisionWarning",
    "ScaleWarning",
    "SetIndex",
    "Sets",
    "compare",
    "datasets",
    "distance",
    "embed",
    "evaluate",
    "hash",
    "neighbors",
    "open",
    "pairwise",
    "rank",
    "readers",
    "search",
    "slices",
    "where",
]
