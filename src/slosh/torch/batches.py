"""Batches of sets as torch has them, made ragged and checked: points (P, d), offsets (n + 1,), weights (P,).

Ragged, nested and padded batches come in, in any floating-point type. What can be checked without looking at the data
is checked here, and costs nothing; `check_values` looks at every number.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..data.checks import checked_offsets, checked_weights, input_error, locate, wrong_dim
from ..data.precision import MAX_COORDINATE
from ..errors import InputError

HALF = (torch.float16, torch.bfloat16)


class Batch(NamedTuple):
    """Ragged sets. `extra` is 1 if the last set is not one of the user's, but room for what was padding."""

    points: Tensor
    offsets: Tensor
    weights: Tensor | None
    extra: int = 0


def ragged_batch(
    points: Tensor,
    offsets: Tensor | None,
    weights: Tensor | None,
    lengths: Tensor | None,
    mask: Tensor | None,
    *,
    dim: int,
    like: Tensor,
    name: str = "points",
    source: str = "layer",
    check: bool = False,
) -> Batch:
    """Return any batch of sets of dimension `dim` as a ragged one, of the type and on the device of `like`.

    `name` is what errors call the points, `source` is where `like` has its type and device from. `check` : whether
    lengths that are on another device than the CPU are looked at, which waits for it.
    """
    given = {name: points, "offsets": offsets, _weights_of(name): weights, "lengths": lengths, "mask": mask}
    for argument, value in given.items():
        if not isinstance(value, Tensor) and (value is not None or argument == name):
            what = f"must be a tensor, not {type(value).__name__}"
            raise input_error(argument, what, f"pass torch.as_tensor({argument})")
    if weights is not None and weights.is_nested and not points.is_nested:
        remedy = "give the weights in the shape of the batch"
        raise input_error(_weights_of(name), f"are a nested tensor, and {name} is not one", remedy)
    if points.is_nested:
        _refuse(name, "is a nested tensor, which has sizes of its own", offsets=offsets, lengths=lengths, mask=mask)
        batch = _from_nested(points, weights, dim, name)
    elif points.dim() == 3:
        _refuse(name, "is a padded batch (n, N, d)", offsets=offsets)
        batch = _from_padded(points, weights, lengths, mask, name, check)
    elif points.dim() == 2:
        _refuse(name, "is a ragged batch (P, d)", lengths=lengths, mask=mask)
        batch = _from_ragged(points, offsets, weights, name)
    else:
        raise wrong_dimensions(points, name)
    if batch.points.shape[1] != dim:
        expected = f"the slices have {dim}" if source == "slices" else f"expected {dim}"
        what = f"has {batch.points.shape[1]} features, {expected}"
        raise input_error(name, what, "all sets need the same features")
    return Batch(
        _as_type(batch.points, like, name, source),
        batch.offsets.to(device=like.device, dtype=torch.int64).contiguous(),
        None if batch.weights is None else _as_type(batch.weights, like, _weights_of(name), source),
        batch.extra,
    )


def wrong_dimensions(points: Tensor, name: str) -> InputError:
    """Return the error about a tensor that has the dimensions of no batch."""
    if points.is_nested:
        return input_error(name, f"is a nested tensor of {points.dim()} dimensions", "nest sets (N, d)")
    what = f"must be (P, d) with offsets, (n, N, d) or a nested tensor, not {points.dim()}-D"
    return input_error(name, what, "for one set x of (N, d) pass x[None]")


def _as_type(x: Tensor, like: Tensor, name: str, source: str) -> Tensor:
    """Return x as contiguous numbers of the type of `like`: half precision becomes float32, all else must agree."""
    if x.device != like.device:
        remedy = f"move one of them: {name}.to({str(like.device)!r}), or {source}.to({str(x.device)!r})"
        raise input_error(name, f"is on {x.device}, the slices are on {like.device}", remedy)
    if x.dtype in HALF:
        x = x.float()
    if x.dtype != like.dtype:
        remedy = f"convert one of them: {name}.to({like.dtype}), or {source}.to({x.dtype})"
        if not x.dtype.is_floating_point:
            remedy = f"convert it: {name}.to({like.dtype})"
        raise input_error(name, f"is {x.dtype}, the slices are {like.dtype}", remedy)
    return x.contiguous()


def _refuse(name: str, why: str, **given: Tensor | None) -> None:
    for other, value in given.items():
        if value is not None:
            raise InputError(f"{name} {why}, and {other} was given too", f"leave {other} out", argument=other)


def _from_ragged(points: Tensor, offsets: Tensor | None, weights: Tensor | None, name: str) -> Batch:
    if offsets is None:
        remedy = "pass offsets (n + 1,), the first rows of the sets and the number of rows; for one set pass x[None]"
        raise InputError(f"{name} is 2-D, and there are no offsets", remedy, argument="offsets")
    if offsets.dtype not in (torch.int32, torch.int64) or offsets.dim() != 1 or len(offsets) == 0:
        found = f"{offsets.dtype} of shape {tuple(offsets.shape)}"
        raise input_error("offsets", f"must be n + 1 integers in one dimension, not {found}")
    if weights is not None and tuple(weights.shape) != (len(points),):
        what = f"have the shape {tuple(weights.shape)}, {name} has {len(points)} rows"
        raise input_error(_weights_of(name), what, "give one weight for each")
    return Batch(points, offsets, weights)


def _from_nested(points: Tensor, weights: Tensor | None, dim: int, name: str) -> Batch:
    if points.dim() != 3:
        raise wrong_dimensions(points, name)
    if points.layout != torch.jagged or points.shape[2] != dim:
        for number, each in enumerate(points.unbind()):
            if each.shape[-1] != dim:
                raise wrong_dim(number, each.shape[-1], dim)
    flat, offsets = _flat(points, (0, dim))
    if weights is not None and weights.is_nested:
        weights, theirs = _flat(weights, (0,))
        if theirs is not offsets:
            offsets = same_sizes(offsets, theirs, name)
    return _from_ragged(flat, offsets, weights, name)


def _flat(nested: Tensor, empty: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the values of a nested tensor, those of all sets after each other, and their offsets."""
    if nested.layout == torch.jagged and nested.is_contiguous():
        return nested.values(), nested.offsets()  # type: ignore[attr-defined]
    parts = nested.unbind()
    sizes = torch.tensor([0, *map(len, parts)], device=nested.device)
    return torch.cat(parts) if parts else nested.new_empty(empty), sizes.cumsum(0)


@torch.library.custom_op("slosh::same_sizes", mutates_args=())
def same_sizes(offsets: Tensor, of_weights: Tensor, name: str) -> Tensor:
    """Return the offsets of nested sets; refuse weights that are nested otherwise. It waits for the device."""
    sizes, counts = offsets.cpu().diff(), of_weights.cpu().diff()
    argument = _weights_of(name)
    if len(sizes) != len(counts):
        what = f"are those of {len(counts)} sets, {name} has {len(sizes)}"
        raise input_error(argument, what, "give one weight for each element")
    different = (sizes != counts).nonzero()
    if len(different):
        number = int(different[0])
        what = f"has {int(sizes[number])} elements and {int(counts[number])} weights"
        raise InputError(
            f"set {number} of {name} {what}", "give one weight for each", set=number, what=what, argument=argument
        )
    return offsets.clone()


@same_sizes.register_fake
def _(offsets: Tensor, of_weights: Tensor, name: str) -> Tensor:
    return torch.empty_like(offsets)


def _weights_of(name: str) -> str:
    """Return the name of the argument that holds the weights of the points with this name."""
    return "weights" if name == "points" else f"{name}_weights"


def _from_padded(
    points: Tensor, weights: Tensor | None, lengths: Tensor | None, mask: Tensor | None, name: str, check: bool
) -> Batch:
    n, width, dim = points.shape
    if weights is not None and tuple(weights.shape) != (n, width):
        what = f"have the shape {tuple(weights.shape)}, {name} has {tuple(points.shape)}"
        raise input_error(_weights_of(name), what, f"give one weight for each element, ({n}, {width})")
    device, flat = points.device, points.reshape(n * width, dim)
    flat_weights = None if weights is None else weights.reshape(n * width)
    if lengths is None and mask is None:
        return Batch(flat, torch.arange(n + 1, device=device) * width, flat_weights)
    there = _padding_mask(n, width, lengths, mask, device, check)
    offsets = torch.nn.functional.pad(there.sum(1).cumsum(0), (1, 0))
    if not torch.compiler.is_compiling() and not _is_capturing(device):
        chosen = there.reshape(-1).nonzero()[:, 0]
        return Batch(flat[chosen], offsets, None if flat_weights is None else flat_weights[chosen])
    # The number of elements is not known where nothing may wait for it: what is left over is one more set, of zeros.
    rows = n * width
    chosen = torch.nonzero_static(there.reshape(-1), size=rows + 1, fill_value=rows)[:, 0]
    offsets = torch.cat([offsets, offsets.new_full((1,), rows + 1)])
    flat = torch.cat([flat, flat.new_zeros((1, dim))])[chosen]
    if flat_weights is not None:
        flat_weights = torch.cat([flat_weights, flat_weights.new_ones(1)])[chosen]
    return Batch(flat, offsets, flat_weights, 1)


def _is_capturing(device: torch.device) -> bool:
    """Return whether a CUDA graph is captured, while which nothing can be read from the device."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _padding_mask(
    n: int, width: int, lengths: Tensor | None, mask: Tensor | None, device: torch.device, check: bool
) -> Tensor:
    if lengths is not None and mask is not None:
        raise InputError("lengths and mask were both given", "give one, not both", argument="mask")
    if mask is not None:
        if tuple(mask.shape) != (n, width) or mask.dtype != torch.bool:
            found = f"{mask.dtype} of {tuple(mask.shape)}"
            raise input_error("mask", f"must be torch.bool of shape ({n}, {width}), True for elements, not {found}")
        return mask.to(device)
    assert lengths is not None
    if tuple(lengths.shape) != (n,) or lengths.dtype.is_floating_point or lengths.dtype == torch.bool:
        found = f"{lengths.dtype} of shape {tuple(lengths.shape)}"
        raise input_error("lengths", f"must be {n} integers, one for each set, not {found}")
    if check or lengths.device.type == "cpu":
        lengths = fitting_lengths(lengths, width)
    return torch.arange(width, device=device) < lengths.to(device)[:, None]


@torch.library.custom_op("slosh::fitting_lengths", mutates_args=())
def fitting_lengths(lengths: Tensor, width: int) -> Tensor:
    """Return the lengths of sets in a padded batch; refuse some that it has no room for. It waits for the device."""
    outside = ((lengths < 0) | (lengths > width)).nonzero()
    if len(outside):
        number = int(outside[0])
        what = f"has the length {int(lengths[number])}, but the padded batch holds 0 to {width}"
        raise input_error(number, what, argument="lengths")
    return lengths.clone()


@fitting_lengths.register_fake
def _(lengths: Tensor, width: int) -> Tensor:
    return torch.empty_like(lengths)


def check_directions(directions: Tensor, reference: Tensor | None = None) -> None:
    """Refuse unit directions that are none: they came from slices that are zero, or no finite numbers.

    A reference that is not finite is refused as well. It waits for the device once, for both.
    """
    wrong = ~(torch.linalg.vector_norm(directions.detach(), dim=1) > 0.5)
    if reference is not None:
        wrong |= ~reference.detach().isfinite().all(dim=1)
    rows = wrong.nonzero()
    if not len(rows):
        return
    row = int(rows[0])
    numbers = directions.detach()[row]
    if reference is not None and bool(torch.linalg.vector_norm(numbers) > 0.5):
        column = int((~reference.detach()[row].isfinite()).nonzero()[0])
        what = f"is {float(reference[row, column])} in row {row}, column {column}"
        raise input_error("reference", what, "give it finite numbers, such as those from before training diverged")
    what = "is zero" if bool((numbers == 0).all()) else "holds numbers that are not finite"
    raise input_error("slices", f"have no direction in row {row}, which {what}", "give rows other than zero")


def check_batch(points: Tensor, offsets: Tensor, weights: Tensor | None, name: str) -> None:
    """Refuse what `check_values` refuses, and say that it is in the batch of this name."""
    try:
        check_values(points, offsets, weights)
    except InputError as error:
        fields = {each: getattr(error, each) for each in ("set", "element", "feature", "what")}
        argument = _weights_of(name) if error.argument == "weights" else name
        raise InputError(f"{name}: {error.problem}", error.remedy, argument=argument, **fields) from None


def check_values(points: Tensor, offsets: Tensor, weights: Tensor | None) -> None:
    """Refuse offsets that do not fit the points, sets without elements, NaN, numbers too large, and bad weights.

    The numbers that it takes are those that `SlicedWasserstein` takes: of larger ones, sums of squares overflow. It
    reads every number once, and waits for the device.
    """
    starts = checked_offsets(offsets.cpu().numpy(), len(points))
    least, most = torch.stack(torch.aminmax(points)).tolist() if points.numel() else (0.0, 0.0)  # NaN if there is one
    if not -MAX_COORDINATE <= least <= most <= MAX_COORDINATE:
        row, feature = (int(x) for x in (~(points.abs() <= MAX_COORDINATE)).nonzero()[0])
        number, element = locate(row, starts, 0)
        value = float(points[row, feature])
        what, remedy = f"is {value}", "drop the element, or replace the value"
        if math.isfinite(value):
            what, remedy = f"is {value:g}, beyond {MAX_COORDINATE:g}", "scale the feature down"
        raise input_error(number, what, remedy, element=element, feature=feature, argument="points")
    if weights is not None:
        checked_weights(weights.detach().cpu().numpy(), starts)
