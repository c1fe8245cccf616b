"""Exact distances from one set to many, which element of one set goes with which of the other, and why they differ."""

from .distances import chamfer, hausdorff, sliced_wasserstein, wasserstein
from .explain import Explanation, explain
from .match import Match, match

__all__ = [
    "Explanation",
    "Match",
    "chamfer",
    "explain",
    "hausdorff",
    "match",
    "sliced_wasserstein",
    "wasserstein",
]
