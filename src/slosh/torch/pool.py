"""`SlicedWassersteinPool`: a layer that turns sets into vectors, with slices and a reference that can be learnt."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.checks import checked_count
from ..embed.references import learnt_reference
from ..embed.sliced_wasserstein import SlicedWasserstein
from ..errors import InputError, UnsupportedError, bad_value
from .batches import ragged_batch
from .drawing import not_linear
from .operators import sliced_embedding


class SlicedWassersteinPool(nn.Module):  # type: ignore[misc]
    r"""Pools sets into the vectors of `slosh.embed.SlicedWasserstein`, (n, L * M), with gradients.

    For each of L unit directions theta the values <theta, x> of a set's elements, sorted, are its quantile function. It
    is sampled into M numbers q, and phi = (q - reference) / sqrt(L M), slice after slice. The vector does not depend on
    the order of the elements, and sets may have any sizes and weights.

    Parameters
    ----------
    dim : number of features d of an element.
    n_slices : number of slices L; None chooses by the dimension, as `SlicedWasserstein` does. For d = 1 it is one.
    n_quantiles : numbers for each slice, M.
    slices : "auto" ("qmc" up to d = 3, "orthogonal" beyond), "random", "orthogonal", "qmc", "axis", or an array (L, d).
        The same seed draws the same slices as `SlicedWasserstein`.
    quantiles : "average", the mean of the quantile function over each of M equal bins, or "linear", its value at
        (m + 1) / M by linear interpolation.
    reference : None (zeros), "uniform", "normal", or a set (N, d). For one that is learnt from data ("barycenter",
        "kmeans", "sample") fit a `SlicedWasserstein` and call `from_embedding`.
    learn_slices, learn_reference : whether they are parameters; otherwise they are buffers.
    random_state : seed of slices and reference.
    check : whether `forward` refuses NaN, infinities, bad weights and bad offsets, which reads every number once; None:
        on the CPU only, since on another device it has to wait for it.

    Attributes
    ----------
    directions : (L, d), in any length: `forward` divides each by its norm, so that a slice is always a unit vector, and
        no gradient is along it.
    reference : (L, M), in the units of the data.

    >>> import torch
    >>> from slosh.torch import SlicedWassersteinPool
    >>> pool = SlicedWassersteinPool(dim=3, n_slices=8, n_quantiles=4)
    >>> points, offsets = torch.randn(30, 3), torch.tensor([0, 10, 30])
    >>> pool(points, offsets).shape
    torch.Size([2, 32])
    """

    directions: Tensor
    reference: Tensor

    def __init__(
        self,
        dim: int,
        n_slices: int | None = None,
        n_quantiles: int = 16,
        *,
        slices: Any = "auto",
        quantiles: str = "average",
        reference: Any = None,
        learn_slices: bool = True,
        learn_reference: bool = True,
        random_state: Any = 0,
        check: bool | None = None,
    ) -> None:
        super().__init__()
        dim = checked_count("dim", dim)
        if (why := learnt_reference(reference)) is not None:
            remedy = "fit a SlicedWasserstein with it, and pass that to SlicedWassersteinPool.from_embedding"
            raise InputError(why, remedy, argument="reference")
        if isinstance(slices, Tensor):
            slices = slices.detach().cpu().numpy()
        if isinstance(reference, Tensor):
            reference = reference.detach().cpu().numpy()
        drawn = SlicedWasserstein(
            n_slices, n_quantiles, slices=slices, quantiles=quantiles, reference=reference, random_state=random_state
        ).fit([np.zeros((1, dim), np.float32)])
        directions = drawn.slicer_.directions_
        if directions is None:
            raise not_linear(drawn.slicer_)
        if check not in (None, True, False):
            raise bad_value("check", check, "pass True, False or None")
        self.dim, self.n_slices, self.n_quantiles = dim, int(drawn.n_slices_), int(drawn.reference_.shape[1])
        self.average, self.check = drawn.average_, check
        for name, array, learn in (
            ("directions", directions, learn_slices),
            ("reference", drawn.reference_, learn_reference),
        ):
            tensor = torch.tensor(np.ascontiguousarray(array), dtype=torch.get_default_dtype())
            if learn:
                self.register_parameter(name, nn.Parameter(tensor))
            else:
                self.register_buffer(name, tensor)

    @classmethod
    def from_embedding(
        cls,
        embedding: SlicedWasserstein,
        *,
        learn_slices: bool = True,
        learn_reference: bool = True,
        check: bool | None = None,
    ) -> SlicedWassersteinPool:
        """Return a layer that starts as a fitted `SlicedWasserstein`: its slices, rule and reference."""
        if not isinstance(embedding, SlicedWasserstein) or not hasattr(embedding, "slicer_"):
            remedy = "pass SlicedWasserstein(...).fit(sets)"
            raise InputError("embedding is not a fitted SlicedWasserstein", remedy, argument="embedding")
        if embedding.origin_ is not None:
            problem = "the embedding has an origin, which the layer has not"
            remedy = "subtract it from the points of both, and fit to sets without an origin"
            raise UnsupportedError(problem, remedy, feature_name="origin")
        if embedding.slicer_.directions_ is None:
            raise not_linear(embedding.slicer_)
        new = cls(
            embedding.n_features_in_,
            None,
            embedding.reference_.shape[1],
            slices=embedding.slicer_.directions_,
            quantiles="average" if embedding.average_ else "linear",
            learn_slices=learn_slices,
            learn_reference=learn_reference,
            check=check,
        )
        with torch.no_grad():
            new.reference.copy_(torch.as_tensor(embedding.reference_))
        return new

    def to_embedding(self, n_jobs: int | None = -1) -> SlicedWasserstein:
        """Return a fitted `slosh.embed.SlicedWasserstein` with the slices and the reference of this layer.

        It gives the same vectors, without torch, and an index takes it as its embedding. To fit it again would set its
        reference to zero, which changes no distance.
        """
        with torch.no_grad():
            slices = nn.functional.normalize(self.directions.double(), dim=1).cpu().numpy()
            reference = self.reference.float().cpu().numpy()
        rule = "average" if self.average else "linear"
        model = SlicedWasserstein(
            None, self.n_quantiles, slices=slices.astype(np.float32), quantiles=rule, n_jobs=n_jobs
        ).fit([np.zeros((1, self.dim), np.float32)])
        model.reference_ = np.ascontiguousarray(reference)
        return model

    @property
    def slices(self) -> Tensor:
        """The unit directions, (L, d)."""
        return nn.functional.normalize(self.directions, dim=1)

    @property
    def vector_length(self) -> int:
        """The length of one vector, L * M."""
        return self.n_slices * self.n_quantiles

    def forward(
        self,
        points: Tensor,
        offsets: Tensor | None = None,
        *,
        weights: Tensor | None = None,
        lengths: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return the vectors of a batch of sets, (n, L * M), slice after slice.

        points : (P, d), the elements of all sets one after the other, with `offsets`; or a nested tensor of sets
            (N, d); or a padded batch (n, N, d). Half precision is computed, and returned, in float32.
        offsets : (n + 1,) integers; set i has the rows offsets[i] to offsets[i + 1].
        weights : one number >= 0 for each element, in the shape of the batch: (P,), nested, or (n, N). They are divided
            by their sum in each set. An element of weight 0 is left out, and gets no gradient.
        lengths : (n,) elements of each set of a padded batch; the others are left out.
        mask : (n, N) torch.bool, True for the elements of a padded batch that are there.
        """
        directions, reference = self.slices, self.reference
        if directions.dtype in (torch.float16, torch.bfloat16):
            directions, reference = directions.float(), reference.float()
        check = directions.device.type == "cpu" if self.check is None else self.check
        batch = ragged_batch(points, offsets, weights, lengths, mask, dim=self.dim, like=directions, check=check)
        scale = 1.0 / math.sqrt(self.vector_length)
        vectors: Tensor = sliced_embedding(
            batch.points, batch.offsets, batch.weights, directions, reference, self.average, scale, check
        )
        return vectors[: -batch.extra] if batch.extra else vectors

    def extra_repr(self) -> str:
        rule = "average" if self.average else "linear"
        return f"dim={self.dim}, n_slices={self.n_slices}, n_quantiles={self.n_quantiles}, quantiles={rule!r}"
