"""The user's numbers become float32: finite, and with a warning where rounding would lose what matters.

Arrays of any numeric dtype come in, one after the other; one float32 array goes out, less an origin that was subtracted
in float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from ..errors import PrecisionWarning, ScaleWarning, user_level
from ..native.arrays import Array, Float32, Float64
from .checks import CHECKED_AT_ONCE, checked_origin, first_beyond, input_error, locate

Origin: TypeAlias = ArrayLike | Literal["auto"] | None

MAX_COORDINATE = 1e15  # in a thousand dimensions a projection is below 4e16, and the sum of 10,000 squares fits float32
FLOAT32 = np.dtype(np.float32)
EXACT_TYPES = set("?bBhHef")  # the codes of the types whose values float32 holds as they are
UNSAID_LOSS = 1e-4  # the part of a feature's spread that float32 may round away without a warning
DOMINANT_SHARE = 0.99  # the part of the variance that one feature may carry without a warning


def to_float32(
    parts: Sequence[Array], offsets: Array, origin: Origin = None, first: int = 0
) -> tuple[Float32, Float64 | None]:
    """Return all parts, less the origin, as (P, d) float32, checked to be finite, and the origin.

    It makes one pass, block by block, and looks at a sample for the loss by rounding. A single float32 array is
    returned as it is. Errors call the set at offsets[0] `first`.
    """
    dim = parts[0].shape[1]
    if origin is None and len(parts) == 1 and parts[0].dtype == FLOAT32 and parts[0].flags.c_contiguous:
        row = 0
        for block in parts if parts[0].size <= CHECKED_AT_ONCE else _blocks(parts):
            _check_finite(block, block, row, offsets, first)
            row += len(block)
        return parts[0], None
    exact = {part.dtype.char for part in parts} <= EXACT_TYPES
    auto = isinstance(origin, str) and origin == "auto"
    look = auto or not (exact and origin is None)
    sample = even_sample(parts, int(offsets[-1])) if look else np.empty((dim, 0))
    shift: Float64 | None = None
    if origin is not None:
        shift = _middle(sample) if auto else checked_origin(origin, dim)  # type: ignore[arg-type]
    points = np.empty((int(offsets[-1]), dim), np.float32)
    row = 0
    for block in _blocks(parts):
        piece = points[row : row + len(block)]
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            if shift is not None:
                block = block.astype(np.float64) - shift
            piece[...] = block
        _check_finite(piece, block, row, offsets, first)
        row += len(block)
    if sample.size:
        _warn_of_rounding(sample, shift, lambda: _spread_within(parts, offsets))
    return points, shift


def _check_finite(points: Float32, given: Array, row: int, offsets: Array, first: int) -> None:
    """Refuse points, from `row` on, that are not finite or too large; errors tell the number that was given."""
    if (bad := first_beyond(points, MAX_COORDINATE)) is None:
        return
    j, k = bad
    what, remedy = "not a finite number", "drop the element, or put a number in its place"
    if np.isfinite(given[j, k]):
        what, remedy = f"beyond {MAX_COORDINATE:g}", "scale the feature down, as sums of squares overflow"
    number, element = locate(row + j, offsets, first)
    raise input_error(number, f"is {given[j, k]}, {what}", remedy, element=element, feature=k)


def _blocks(parts: Sequence[Array]) -> Iterator[Array]:
    """Yield the rows of all parts, about CHECKED_AT_ONCE values at a time: large parts as views, small ones joined."""
    rows = max(1, CHECKED_AT_ONCE // parts[0].shape[1])
    small: list[Array] = []
    count = 0
    for part in parts:
        if small and (count >= rows or len(part) >= rows):
            yield np.concatenate(small)
            small, count = [], 0
        if len(part) >= rows:
            yield from (part[i : i + rows] for i in range(0, len(part), rows))
        else:
            small.append(part)
            count += len(part)
    if small:
        yield small[0] if len(small) == 1 else np.concatenate(small)


def even_sample(parts: Sequence[Array], total: int) -> Float64:
    """Return the features of at most 4096 elements, evenly spaced over all parts, as (d, n)."""
    dim = parts[0].shape[1]
    step = -(-total // min(max((1 << 18) // dim, 64), 4096)) or 1
    taken, row = [np.empty((0, dim))], 0
    for part in parts:
        if -row % step < len(part):
            taken.append(part[-row % step :: step])
        row += len(part)
    return np.ascontiguousarray(np.concatenate(taken).T, dtype=np.float64)


def _median_and_spread(x: Array) -> tuple[Array, Array]:
    """Return median and spread of each row of x.

    The spread is that of the quartiles, since stray values would stretch the range or the deviation. It is scaled to be
    the standard deviation if the values are normal, and is that where more than half of the values are the same.
    """
    n = x.shape[1]
    low, high = n // 4, n - 1 - n // 4
    ordered = np.partition(x, (low, n // 2, high), axis=1)
    with np.errstate(over="ignore", invalid="ignore"):  # values that do not fit are reported later, with their place
        spread = (ordered[:, high] - ordered[:, low]) / 1.349
        if not (spread > 0).all():
            spread = np.where(spread > 0, spread, x.std(axis=1))
        return ordered[:, n // 2], spread


def _middle(sample: Array) -> Float64:
    """Return the median of each row, rounded to about a tenth of the spread, so that it prints well."""
    if not sample.size:
        return np.zeros(len(sample))
    result = np.zeros(len(sample))
    for k, (middle, spread) in enumerate(zip(*(array.tolist() for array in _median_and_spread(sample)), strict=True)):
        if np.isfinite(middle) and np.isfinite(spread):
            unit = spread or abs(middle) * 1e-5 or 1.0
            result[k] = round(middle, 1 - int(np.floor(np.log10(unit)))) + 0.0  # + 0.0 makes 0 of -0
    return result


def _spread_within(parts: Sequence[Array], offsets: Array) -> Array:
    """Return the median, over at most 256 sets, of each feature's spread inside a set; NaN without sets of two."""
    n = len(offsets) - 1
    spreads: list[Array] = []
    for i in range(0, n, -(-n // 256)):
        start, stop = int(offsets[i]), int(offsets[i + 1])
        points = parts[0][start:stop] if len(parts) == 1 else parts[i] if len(parts) == n else parts[0][:0]
        if len(points) > 1:
            with np.errstate(over="ignore", invalid="ignore"):
                spreads.append(points[:: -(-len(points) // 64)].astype(np.float64).std(axis=0))
    if len(spreads) == 1:  # a single query
        return spreads[0]
    return np.median(spreads, axis=0) if spreads else np.full(parts[0].shape[1], np.nan)


def _warn_of_rounding(sample: Array, shift: Array | None, spread_within: Callable[[], Array]) -> None:
    """Warn if float32 takes more than UNSAID_LOSS of the spread of a feature, over all sets or inside of one.

    The loss is what 95 % stay below: a few huge values must not stand for all. A feature that is constant but for the
    noise of 64-bit arithmetic, or that is noise beside the others in 32 bits, has nothing to lose.
    """
    if (n := sample.shape[1]) < 2:  # too few to tell a spread
        return
    x = sample if shift is None else sample - shift[:, None]
    with np.errstate(over="ignore", under="ignore"):
        loss = np.abs(x - x.astype(np.float32))
    loss = np.partition(loss, int(0.95 * (n - 1)), axis=1)[:, int(0.95 * (n - 1))]
    if not loss.any():
        return
    over_all, within = _median_and_spread(x)[1], spread_within()
    spread = np.fmin(over_all, np.where(within > 0, within, np.nan))
    bad = loss > UNSAID_LOSS * spread
    if not bad.any():
        return
    largest = np.abs(sample).max(axis=1)
    bad &= (spread > 1e-12 * largest) & (loss > 2.0**-24 * spread.max())
    if not bad.any():
        return
    k = int(np.argmax(np.divide(loss, spread, out=np.zeros_like(loss), where=bad)))
    if 2.0**-24 * over_all[k] > UNSAID_LOSS * spread[k]:
        remedy = "the sets lie far from each other; if only their shapes matter, subtract from each a centre of its own"
    elif largest[k] < 1e-30:
        remedy = "the values are too small for it; multiply all coordinates by a constant"
    elif shift is None:
        remedy = f'pass origin="auto", or an array of {len(x)} numbers, to subtract it before the conversion'
    else:
        remedy = f"pass an origin that is nearer to the values of this feature than {shift[k]:g}"
    problem = (
        f"float32 rounds feature {k} by about {loss[k]:.2g} in the units of the data, {loss[k] / spread[k]:.2g} of its "
        f"spread ({spread[k]:.3g})"
    )
    warnings.warn(PrecisionWarning(problem, remedy, k), stacklevel=user_level())


def warn_of_scale(points: Array, stacklevel: int | None = None) -> None:
    """Warn (ScaleWarning) if one feature has more than DOMINANT_SHARE of the variance of all elements.

    It looks at no more than 100,000 elements, evenly spaced.
    """
    if points.shape[1] < 2 or len(points) < 100:
        return
    variance = points[:: -(-len(points) // 100_000)].astype(np.float64).var(axis=0)
    share = variance / (variance.sum() or 1.0)
    k = int(share.argmax())
    if np.count_nonzero(variance) >= 2 and share[k] > DOMINANT_SHARE:
        percent = min(np.floor(1e4 * share[k]) / 100, 99.99)  # cut, not rounded: never 100
        problem = f"feature {k} carries {percent:.2f} % of the variance, so distances will see little of the others"
        remedy = (
            "if that is not meant, standardise the features: divide each by its standard deviation over all elements, "
            "x / sets.points.std(axis=0)"
        )
        level = user_level() if stacklevel is None else stacklevel + 1
        warnings.warn(ScaleWarning(problem, remedy, k), stacklevel=level)
