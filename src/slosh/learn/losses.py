"""What is minimised: unit vectors (n, p) of a batch come in, one number goes out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SCALE = 16.0
"""What cosines of vectors and classes are multiplied by before the softmax."""
TEMPERATURE = 0.1
"""What cosines of two vectors are divided by before the softmax."""


class CosineSoftmax(nn.Module):  # type: ignore[misc]
    """Logits of classes: SCALE times the cosine of a vector and the prototype of the class, which is learnt."""

    def __init__(self, n_classes: int, length: int) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(torch.randn(n_classes, length) * length**-0.5)

    def forward(self, vectors: Tensor) -> Tensor:
        logits: Tensor = SCALE * vectors @ nn.functional.normalize(self.prototypes, dim=1).T
        return logits


def contrastive_loss(vectors: Tensor, alike: Tensor) -> Tensor:
    r"""Return the mean over the pairs that are alike of -log softmax of their cosine among those of all other vectors.

    vectors : (n, p) of unit length. alike : (n, n) bool, symmetric; the diagonal does not count.

    For an anchor i and a vector j that is like it, -log( e^{s_ij} / (e^{s_ij} + sum_k e^{s_ik}) ) with s the cosine
    over TEMPERATURE, and k all vectors that are not like i: every other vector of the batch is a negative. An anchor
    with several that are like it counts as much as one with a single one.
    """
    n = len(vectors)
    itself = torch.eye(n, dtype=torch.bool, device=vectors.device)
    alike = alike & ~itself
    scores = vectors @ vectors.T / TEMPERATURE
    others = torch.logsumexp(scores.masked_fill(alike | itself, -torch.inf), dim=1, keepdim=True)
    each = torch.logaddexp(scores, others.expand_as(scores)) - scores
    counts = alike.sum(1)
    anchors = counts > 0
    mean = torch.where(alike, each, 0.0).sum(1)[anchors] / counts[anchors]
    return mean.mean() if bool(anchors.any()) else vectors.sum() * 0
