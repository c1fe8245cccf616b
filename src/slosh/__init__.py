"""slosh: nearest-neighbour search over sets of vectors, by Sliced-Wasserstein embeddings."""

from . import embed, errors, evaluate, hash, neighbors, rank, readers, search, slices, where
from .data.preprocess import Preprocess
from .data.sets import Sets
from .errors import IndexLocked, PrecisionWarning, ScaleWarning
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
    "compare",
    "distance",
    "embed",
    "errors",
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
