"""slosh: nearest-neighbour search over sets of vectors, by Sliced-Wasserstein embeddings."""

from . import embed, evaluate, hash, neighbors, rank, search, slices
from .precision import PrecisionWarning
from .sets import ScaleWarning, Sets
from .sliced import distance, pairwise

__version__ = "0.1.0"
__all__ = [
    "PrecisionWarning",
    "ScaleWarning",
    "Sets",
    "distance",
    "embed",
    "evaluate",
    "hash",
    "neighbors",
    "pairwise",
    "rank",
    "search",
    "slices",
]
