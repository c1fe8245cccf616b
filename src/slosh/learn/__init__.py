"""Embeddings that are learnt from labels, or from pairs of sets that are alike.

`LearnedEmbedding` is fitted with PyTorch (the extra `torch`). What it has learnt is plain arrays, and the vectors of
sets are computed without PyTorch.
"""

from .learned import LearnedEmbedding

__all__ = ["LearnedEmbedding"]
