"""Exact distances from one set to many, the matching of the elements of two sets, and why two sets differ."""

from .distances import Match, chamfer, hausdorff, match, partial_wasserstein, sliced_wasserstein, wasserstein
from .explain import Explanation, explain
from .explain_part import PartExplanation, explain_part
from .nearby import chamfer_nearby
from .part import contained, maxsim, part

__all__ = [
    "Explanation",
    "Match",
    "PartExplanation",
    "chamfer",
    "chamfer_nearby",
    "contained",
    "explain",
    "explain_part",
    "hausdorff",
    "match",
    "maxsim",
    "part",
    "partial_wasserstein",
    "sliced_wasserstein",
    "wasserstein",
]
