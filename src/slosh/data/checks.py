"""The checks of user input that need no `Sets`. Each error says which set, which element, and what to do.

Objects of the user's come in; plain NumPy arrays and numbers go out, or an `InputError`.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from math import inf
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state

from ..errors import InputError, bad_value
from ..native.arrays import Array as Array
from ..native.arrays import Float32, Float64, Int64, Mask

if TYPE_CHECKING:
    from .sets import Sets

CHECKED_AT_ONCE = 1 << 20
"""Values looked at in one go: it bounds the memory taken for memory maps, and a block stays in the cache."""
FEW_NUMBERS = 1 << 13
"""Up to so many values are checked by one sum."""
FLOAT32_MAX = float(np.finfo(np.float32).max)
SLICES_STREAM = 0x510514
"""Joined to a seed, so that data drawn with the same seed is not the same numbers."""
ALL_OR_NO_WEIGHTS = (
    "give every element of the others the weight 1 (Sets(s.points, s.offsets, np.ones(len(s.points)))), or drop "
    "the weights (Sets(s.points, s.offsets))"
)
"""The remedy where some sets have weights and some have none."""


# ---- errors


def place_of(whole: str, element: int | None = None, feature: int | None = None) -> str:
    """Return the words for a place in a whole, which may be empty."""
    parts = [f"element {element}"] * (element is not None) + [f"feature {feature}"] * (feature is not None)
    return ", ".join([whole, *parts] if whole else parts)


def input_error(about: str | int, what: str, remedy: str = "", **fields: Any) -> InputError:
    """Return the error that says `what` is wrong with an argument, named by `about`, or with the set of that number.

    >>> print(input_error(3, "is empty", "drop it"))
    set 3 is empty: drop it
    """
    if isinstance(about, str):
        return InputError(f"{about} {what}", remedy, **{**fields, "argument": fields.get("argument") or about})
    element, feature = fields.get("element"), fields.get("feature")
    whole = "the weights of set" if fields.get("argument") == "weights" and element is None else "set"
    problem = f"{place_of(f'{whole} {about}', element, feature)} {what}"
    return InputError(problem, remedy, set=about, what=what, **fields)


def empty_set(number: int) -> InputError:
    """Return the error about a set without elements."""
    return input_error(number, "is empty", "drop it, or give it a point")


def wrong_dim(number: int, dim: int, expected: int, whose: str = "expected") -> InputError:
    """Return the error about a set of `dim` features where `whose` sets have `expected`."""
    features = "1 feature" if dim == 1 else f"{dim} features"
    return input_error(number, f"has {features}, {whose} {expected}", "all sets need the same features")


def not_a_collection(ndim: int) -> InputError:
    """Return the error about an array that is not three-dimensional."""
    if ndim == 2:
        return InputError("a 2-D array is one set", "pass [x] for a collection of one, or a 3-D array")
    return InputError(f"a {ndim}-D array is not a collection of sets", "pass a list of (N, d) arrays, or a 3-D array")


def kind_of(x: Any) -> str:
    """Return the kind of an object, with its article.

    >>> kind_of(3), kind_of({}), kind_of(None)
    ('an int', 'a dict', 'None')
    """
    name = type(x).__name__
    return "None" if x is None else f"a{'n' * (name[0] in 'aeiouAEIOU')} {name}"


# ---- arrays


def library_of(x: Any) -> str:
    """Return which of the libraries that we know, but do not import, the class of x comes from; "" if none."""
    roots = (base.__module__.partition(".")[0] for base in type(x).__mro__)
    return next((root for root in roots if root in ("pandas", "polars", "pyarrow", "torch")), "")


def as_array(x: Any, about: str | int, argument: str = "") -> Array:
    """Return x as a plain NumPy array of any dtype and shape, without a copy if it is one.

    `about` is the name of the argument, or the number of a set; an error names it.
    """
    if type(x) is np.ndarray:
        return x
    if isinstance(x, np.ma.MaskedArray):
        remedy = "drop the masked elements, e.g. x.data[~x.mask.any(axis=1)]"
        raise input_error(about, "must be a plain array, not a masked one", remedy, argument=argument)
    if library_of(x) == "torch":
        return tensor_array(x, about, argument)
    try:
        return np.asarray(x)
    except ValueError:
        raise input_error(about, *_why_ragged(x), argument=argument) from None


def _why_ragged(x: Any) -> tuple[str, str]:
    """Return why NumPy could not make an array of x, and what to do."""
    try:
        lengths = [len(row) for row in x]
    except TypeError:
        return "must be of shape (N, d), not numbers and rows mixed", "give every element as a row"
    odd = next((j for j, length in enumerate(lengths) if length != lengths[0]), None)
    if odd is None:
        return "must have rows of plain numbers", "give it the shape (N, d)"
    found = f"row {odd} has {lengths[odd]} numbers, row 0 has {lengths[0]}"
    return f"must have rows of one length, but {found}", "give all rows the same features"


def tensor_array(tensor: Any, about: str | int, argument: str = "") -> Array:
    """Return a dense tensor as a NumPy array, detached and on the CPU; memory is shared where torch allows."""
    if tensor.is_nested:
        remedy = "pass it by itself, or its tensor.unbind()"
        raise input_error(about, "must not be a nested tensor", remedy, argument=argument)
    if tensor.is_floating_point() and tensor.element_size() < 4 and str(tensor.dtype) != "torch.float16":
        tensor = tensor.float()  # NumPy has no bfloat16
    try:
        return np.asarray(tensor.detach().cpu().numpy())
    except (TypeError, RuntimeError) as error:
        what = f"must be a tensor that can become an array ({error})"
        raise input_error(about, what, "make it dense first", argument=argument) from None


def check_numeric(array: Array, about: str | int, argument: str = "") -> None:
    """Refuse what is not real numbers."""
    kind = array.dtype.kind
    if kind in "fiub":
        return
    if kind == "c":
        what, remedy = "real numbers, not complex ones", "give their parts as features, np.hstack([x.real, x.imag])"
    elif kind == "O":
        what, remedy = "numbers, not of dtype object", "convert it, e.g. x.astype(float), with no None in it"
    else:
        what, remedy = f"numbers, not of dtype {array.dtype}", "convert it to a float dtype first"
    raise input_error(about, f"must be {what}", remedy, argument=argument)


def as_numbers(x: Any, about: str | int, argument: str = "") -> Array:
    """Return x as an array of real numbers, see `as_array`."""
    array = as_array(x, about, argument)
    check_numeric(array, about, argument)
    return array


def first_outside(x: Array, low: float, high: float) -> tuple[int, ...] | None:
    """Return the index of the first value that is NaN or not in low..high; None if there is no such value."""
    if not x.size or (x.min() >= low and x.max() <= high):  # NaN fails
        return None
    return tuple(int(axis[0]) for axis in np.nonzero(~((x >= low) & (x <= high))))


def first_beyond(x: Float32, limit: float) -> tuple[int, ...] | None:
    """Return the index of the first value that is NaN or not in -limit..limit; None if there is no such value."""
    # The sum of squares of a few numbers takes less time than their extremes. No square is larger than the sum, but for
    # rounding; NaN fails.
    if x.size <= FEW_NUMBERS and np.vdot(x, x) < 0.5 * limit**2:
        return None
    return first_outside(x, -limit, limit)


# ---- parameters


def checked_count(name: str, value: object, least: int = 1) -> int:
    """Return a parameter that must be a whole number of at least `least`."""
    if (type(value) is not int and (not isinstance(value, Integral) or isinstance(value, bool))) or value < least:
        raise InputError(f"{name}={value!r:.60} must be a whole number, {least} or more", argument=name)
    return int(value)


def checked_flag(name: str, value: object) -> bool:
    """Return a parameter that must be True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise bad_value(name, value, "give True or False")
    return bool(value)


def _bad_seed(random_state: object, others: str = "") -> InputError:
    what = f"random_state={random_state!r:.80} must be a whole number from 0 to 2**32 - 1{others}"
    return InputError(what, argument="random_state")


def checked_number(name: str, value: Any, what: str, above: float = 0.0, below: float = inf, remedy: str = "") -> float:
    """Return a parameter that must be a real number between two others; an error says that it must be `what`."""
    if not isinstance(value, Real) or isinstance(value, bool) or not above < float(value) < below:
        raise InputError(f"{name}={value!r} must be {what}", remedy, argument=name)
    return float(value)


def finite_rows(name: str, array: ArrayLike, dim: int, letter: str, each: str) -> Float64:
    """Return a parameter that must be a matrix of finite numbers, (`letter`, dim), with a row for each `each`."""
    try:
        rows = np.array(array, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise input_error(name, f"must be an array of numbers ({letter}, {dim}): {error}") from None
    if rows.ndim != 2 or len(rows) == 0 or rows.shape[1] != dim:
        raise input_error(name, f"must be an array ({letter}, {dim}), one {each} a row; got shape {rows.shape}")
    for row in np.flatnonzero(~np.isfinite(rows).all(axis=1)):
        raise InputError(f"{name}: row {row} holds NaN or infinity", argument=name)
    return rows


def checked_seed(random_state: object) -> int:
    """Return a seed that must be a whole number, as no stream can be shared by files that are read in any order."""
    if isinstance(random_state, bool) or not isinstance(random_state, int | np.integer) or random_state >> 32:
        raise _bad_seed(random_state)
    return int(random_state)


def random_stream(random_state: Any, purpose: int = SLICES_STREAM) -> np.random.RandomState:
    """Return the draws of a seed, from a stream of this purpose alone."""
    if isinstance(random_state, int | np.integer) and 0 <= random_state < 1 << 32:
        return np.random.RandomState(np.array([purpose, int(random_state)], np.uint32))
    try:
        return check_random_state(random_state)  # type: ignore[no-any-return]
    except ValueError:
        raise _bad_seed(random_state, ", a RandomState or None") from None


def checked_origin(origin: ArrayLike, dim: int | None) -> Float64:
    """Return origin as (dim,) float64; any length will do if dim is None."""
    array = as_array(origin, "origin")
    length = array.ndim == 1 if dim is None else array.shape == (dim,)
    if array.dtype.kind not in "fiu" or not length or not np.isfinite(array).all():
        count = "" if dim is None else f"{dim} "
        what = f'must be {count}finite numbers, one for each feature, or "auto", not {origin!r:.80}'
        raise input_error("origin", what)
    return array.astype(np.float64)


def check_origin(sets: Sets, origin: Array | None) -> None:
    """Refuse sets whose coordinates do not compare, since something else was subtracted from them."""
    if sets.origin is origin or not len(sets) or np.array_equal(sets.origin, origin):  # type: ignore[arg-type]
        return
    one, other = (
        "none" if shift is None else np.array2string(shift, threshold=6, edgeitems=2) for shift in (sets.origin, origin)
    )
    problem = f"these sets were made with the origin {one}, the ones before with {other}"
    remedy = "their coordinates do not compare, so make all with the same origin="
    raise InputError(problem, remedy, argument="origin")


def known_dim(dim: int | None) -> int:
    """Return dim, which must be given where there is no set to tell it."""
    if dim is None:
        raise InputError("there are no sets, so the number of features is unknown", "pass dim", argument="dim")
    if operator.index(dim) < 1:
        raise input_error("dim", f"must be at least 1, not {dim}")
    return operator.index(dim)


# ---- sets


def locate(row: int, offsets: Array, first: int) -> tuple[int, int]:
    """Return the number of the set, counted from `first`, and of the element in it, of a row of the joined points."""
    i = int(np.searchsorted(offsets, row, side="right")) - 1
    return first + i, row - int(offsets[i])


def set_array(x: Any, number: int) -> Array:
    """Return x as a numeric array (N, d), N and d > 0; errors call it set `number`."""
    array = x if type(x) is np.ndarray else as_array(x, number)
    if array.ndim == 2 and array.dtype.kind in "fiub" and array.size:
        return array
    if array.ndim == 0:
        remedy = "give a row for each element: a set of one point is [[x, y, z]]"
        raise input_error(number, f"is {kind_of(x)}, not an array of shape (N, d)", remedy)
    if array.shape[0] == 0:
        raise empty_set(number)
    check_numeric(array, number)
    if array.ndim == 1:
        remedy = "a set of scalars must be (N, 1), so pass x[:, None]; if the whole collection is one set, pass [x]"
        raise input_error(number, f"is 1-D, of {len(array)} numbers", remedy)
    if array.ndim == 2:
        raise input_error(number, f"has 0 features, its shape is {array.shape}", "a set must be (N, d) with d > 0")
    remedy = "a set must be (N, d), so pass x.reshape(-1, d)"
    raise input_error(number, f"is {array.ndim}-D, of shape {array.shape}", remedy)


def check_dims(dims: Sequence[int], dim: int | None) -> None:
    """Refuse sets of different numbers of features, or of others than dim."""
    if all(d == dims[0] for d in dims) and dim in (None, dims[0]):
        return
    usual = Counter(dims).most_common(1)[0][0] if dim is None else dim
    odd = next(i for i, d in enumerate(dims) if d != usual)
    raise wrong_dim(odd, dims[odd], usual, "the others have" if dim is None else "expected")


def checked_offsets(offsets: ArrayLike, total: int) -> Int64:
    """Return offsets as int64: from 0 to `total`, increasing."""
    array = as_array(offsets, "offsets")
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
        what = f"must be n + 1 integers in one dimension, not {array.dtype} of shape {array.shape}"
        raise input_error("offsets", what)
    starts = np.ascontiguousarray(array, dtype=np.int64)
    if starts[0] != 0:
        remedy = "subtract it, and slice the points to match"
        raise input_error("offsets", f"must start at 0, not at {starts[0]}", remedy)
    sizes = np.diff(starts)
    if (back := np.flatnonzero(sizes < 0)).size:
        i = back[0]
        what = f"run backwards at set {i}, from {starts[i]} to {starts[i + 1]}"
        raise input_error("offsets", what, "they must increase")
    if starts[-1] != total:
        raise input_error("offsets", f"must end at the number of points, {total}, not at {starts[-1]}")
    check_filled(sizes)
    return starts


def check_filled(sizes: Array, first: int = 0) -> None:
    """Refuse a set without elements; errors count sets from `first`."""
    if np.count_nonzero(sizes) < len(sizes):
        raise empty_set(first + int(np.argmin(sizes)))


def checked_weights(weights: ArrayLike, offsets: Array, first: int = 0) -> Float32:
    """Return weights as (P,) float32: finite, at least 0, and not all 0 in any set."""
    given, total = as_numbers(weights, "weights"), int(offsets[-1])
    if given.shape != (total,):
        what = f"have the shape {given.shape}, points have {total} rows"
        raise input_error("weights", what, "give one weight for each")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        result = np.ascontiguousarray(given, dtype=np.float32)
    for start in range(0, total, CHECKED_AT_ONCE):
        if (bad := first_outside(result[start : start + CHECKED_AT_ONCE], 0, FLOAT32_MAX)) is not None:
            j = start + bad[0]
            remedy = "weights must be finite and >= 0, so correct it, or drop the element"
            if np.isfinite(given[j]) and given[j] > 0:
                remedy = "it overflows float32; only the ratios in a set count, so divide its weights by their sum"
            number, element = locate(j, offsets, first)
            raise input_error(number, f"has the weight {given[j]}", remedy, element=element, argument="weights")
    if len(offsets) > 1:
        largest = np.maximum.reduceat(result, offsets[:-1])  # not the sum, which may overflow
        if (zero := np.flatnonzero(largest == 0)).size:
            i = int(zero[0])
            remedy = "drop the set, or give an element a weight"
            if np.any(given[offsets[i] : offsets[i + 1]]):
                remedy = "they are too small for float32; only the ratios in a set count, so divide them by their sum"
            raise input_error(first + i, "has weights that are all zero", remedy)
    return result


def padding_mask(n: int, width: int, lengths: ArrayLike | None, mask: ArrayLike | None) -> Mask | None:
    """Return which elements (n, width) of a padded array are there; None means all of them."""
    if lengths is not None and mask is not None:
        raise InputError("lengths and mask were both given", "give one, not both", argument="mask")
    if mask is not None:
        there = as_array(mask, "mask")
        if there.shape != (n, width) or there.dtype.kind != "b":
            raise input_error("mask", f"must be boolean of shape {(n, width)}, not {there.dtype} of {there.shape}")
        return there
    if lengths is None:
        return None
    sizes = as_array(lengths, "lengths")
    if sizes.shape != (n,) or (n and sizes.dtype.kind not in "iu"):
        what = f"must be {n} integers, one for each set, not {sizes.dtype} of shape {sizes.shape}"
        raise input_error("lengths", what)
    if (bad := first_outside(sizes, 0, width)) is not None:
        raise input_error(bad[0], f"has the length {sizes[bad]}, but the padded array holds 0 to {width}")
    return np.asarray(np.arange(width) < sizes[:, None])
