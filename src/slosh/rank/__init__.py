"""Exact distances from one set to many, the matching of the elements of two sets, and why two sets differ."""

from .distances import Match, chamfer, hausdorff, match, sliced_wasserstein, wasserstein
from .explain import Explanation, explain

__all__ = ["Explanation", "Match", "chamfer", "explain", "hausdorff", "match", "sliced_wasserstein", "wasserstein"]
