"""The checks of user input that need no `Sets`: each error says which set, which element, and what to do.

Objects of the user's come in, plain numpy arrays go out, or a ValueError.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

Array: TypeAlias = NDArray[Any]

BLOCK = 1 << 20  # values looked at in one go: bounded memory for memory maps, and a block stays in the cache
FLOAT32_MAX = float(np.finfo(np.float32).max)
MIXED_WEIGHTS = (
    "some of the sets have weights and some have none: give every element of the others the weight 1 "
    "(Sets(s.points, s.offsets, np.ones(len(s.points)))), or drop the weights (Sets(s.points, s.offsets))"
)


def library_of(x: Any) -> str:
    """Which of the libraries that we know, but do not import, the class of x comes from; "" if none."""
    for base in type(x).__mro__:
        root = base.__module__.partition(".")[0]
        if root in ("pandas", "polars", "pyarrow", "torch"):
            return root
    return ""


def as_array(x: Any, name: str) -> Array:
    """x as a plain numpy array of any dtype and shape; without a copy if it is one."""
    if type(x) is np.ndarray:
        return x
    if isinstance(x, np.ma.MaskedArray):
        raise ValueError(
            f"{name}: masked arrays are not taken; drop the masked elements, e.g. x.data[~x.mask.any(axis=1)]"
        )
    if library_of(x) == "torch":
        return tensor_array(x, name)
    try:
        return np.asarray(x)
    except ValueError:
        raise ValueError(_ragged(x, name)) from None


def _ragged(x: Any, name: str) -> str:
    """Why numpy could not make an array of x."""
    try:
        lengths = [len(row) for row in x]
    except TypeError:
        return f"{name}: numbers and rows are mixed; a set must be of shape (N, d)"
    odd = next((j for j, length in enumerate(lengths) if length != lengths[0]), None)
    if odd is None:
        return f"{name}: its rows are not plain numbers; a set must be of shape (N, d)"
    return f"{name}: row {odd} has {lengths[odd]} numbers, row 0 has {lengths[0]}; give all rows the same features"


def check_numeric(array: Array, name: str) -> None:
    """Refuse what is not real numbers."""
    kind = array.dtype.kind
    if kind in "fiub":
        return
    if kind == "c":
        raise ValueError(
            f"{name}: complex numbers; give their parts as features, np.concatenate([x.real, x.imag], axis=1)"
        )
    if kind == "O":
        raise ValueError(f"{name}: dtype object, not numbers; convert it, e.g. x.astype(float), with no None in it")
    raise ValueError(f"{name}: dtype {array.dtype}, not numbers; convert it to a float dtype first")


def checked_count(name: str, value: object) -> int:
    """A parameter that must be a whole number of at least 1."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}={value!r} must be a whole number, 1 or more")
    return int(value)


def random_stream(random_state: Any) -> np.random.RandomState:
    """The draws of a seed: a stream of our own, so that data drawn with the same seed is not the same numbers."""
    if isinstance(random_state, int | np.integer) and 0 <= random_state < 1 << 32:
        return np.random.RandomState(np.array([0x510514, int(random_state)], np.uint32))
    try:
        stream: np.random.RandomState = check_random_state(random_state)
    except ValueError:
        raise ValueError(
            f"random_state={random_state!r:.80} must be a whole number from 0 to 2**32 - 1, a RandomState or None"
        ) from None
    return stream


def checked_seed(random_state: object) -> int:
    """A seed that must be a whole number, as no stream can be shared by files that are read in any order."""
    if isinstance(random_state, bool) or not isinstance(random_state, int | np.integer) or random_state >> 32:
        raise ValueError(f"random_state={random_state!r:.80} must be a whole number from 0 to 2**32 - 1")
    return int(random_state)


def checked_origin(origin: ArrayLike, dim: int) -> NDArray[np.float64]:
    """origin as (dim,) float64."""
    array = as_array(origin, "origin")
    if array.dtype.kind not in "fiu" or array.shape != (dim,) or not np.isfinite(array).all():
        raise ValueError(f'origin must be {dim} finite numbers, one for each feature, or "auto", not {origin!r:.80}')
    return array.astype(np.float64)


def locate(element: int, offsets: Array, first: int) -> str:
    """Set and element, in words, of a row of the joined points."""
    i = int(np.searchsorted(offsets, element, side="right")) - 1
    return f"set {first + i}, element {element - int(offsets[i])}"


def tensor_array(tensor: Any, name: str) -> Array:
    """A dense tensor as a numpy array, detached and on the CPU; memory is shared where torch allows."""
    if tensor.is_nested:
        raise ValueError(f"{name} is a nested tensor: pass it by itself, or its tensor.unbind()")
    if tensor.is_floating_point() and tensor.element_size() < 4 and str(tensor.dtype) != "torch.float16":
        tensor = tensor.float()  # numpy has no bfloat16
    try:
        return np.asarray(tensor.detach().cpu().numpy())
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"{name}: this tensor cannot become an array ({error}); make it dense first") from None


def kind_of(x: Any) -> str:
    return "None" if x is None else f"a {type(x).__name__}"


def empty_set(number: int) -> ValueError:
    return ValueError(f"set {number} is empty: drop it, or give it a point")


def wrong_dim(number: int, dim: int, others: str) -> ValueError:
    features = "1 feature" if dim == 1 else f"{dim} features"
    return ValueError(f"set {number} has {features}, {others}: all sets need the same features")


def not_a_collection(ndim: int) -> ValueError:
    if ndim == 2:
        return ValueError("a 2-D array is one set: pass [x] for a collection of one, or a 3-D array")
    return ValueError(f"a {ndim}-D array is no collection of sets: pass a list of (N, d) arrays, or a 3-D array")


def known_dim(dim: int | None) -> int:
    """dim, which must be given where there is no set to tell it."""
    if dim is None:
        raise ValueError("there are no sets, so the number of features is unknown: pass dim")
    if operator.index(dim) < 1:
        raise ValueError(f"dim must be at least 1, not {dim}")
    return operator.index(dim)


def check_dims(dims: Sequence[int], dim: int | None) -> None:
    if all(d == dims[0] for d in dims) and dim in (None, dims[0]):
        return
    usual = Counter(dims).most_common(1)[0][0] if dim is None else dim
    odd = next(i for i, d in enumerate(dims) if d != usual)
    raise wrong_dim(odd, dims[odd], f"the others have {usual}" if dim is None else f"expected {dim}")


def same_weighting(before: bool | None, now: bool, number: int) -> bool:
    if before not in (None, now):
        raise ValueError(f"set {number} has {'' if now else 'no '}weights, unlike those before it; {MIXED_WEIGHTS}")
    return now


def checked_offsets(offsets: ArrayLike, total: int) -> NDArray[np.int64]:
    array = as_array(offsets, "offsets")
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
        raise ValueError(f"offsets must be n + 1 integers in one dimension, not {array.dtype} of shape {array.shape}")
    starts = np.ascontiguousarray(array, dtype=np.int64)
    sizes = np.diff(starts)
    if starts[0] != 0:
        raise ValueError(f"offsets must start at 0, not at {starts[0]}: subtract it, and slice the points to match")
    if (back := np.flatnonzero(sizes < 0)).size:
        i = back[0]
        raise ValueError(f"offsets run backwards at set {i}, from {starts[i]} to {starts[i + 1]}: they must increase")
    if starts[-1] != total:
        raise ValueError(f"offsets must end at the number of points, {total}, not at {starts[-1]}")
    if (empty := np.flatnonzero(sizes == 0)).size:
        raise empty_set(int(empty[0]))
    return starts


def checked_weights(weights: ArrayLike, offsets: Array, first: int = 0) -> NDArray[np.float32]:
    given, total = as_array(weights, "weights"), int(offsets[-1])
    check_numeric(given, "weights")
    if given.shape != (total,):
        raise ValueError(f"weights have the shape {given.shape}, points have {total} rows: give one weight for each")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        result = np.ascontiguousarray(given, dtype=np.float32)
    for start in range(0, total, BLOCK):
        block = result[start : start + BLOCK]
        if not (block.min() >= 0 and block.max() <= FLOAT32_MAX):  # NaN fails too
            j = start + int(np.flatnonzero(~((block >= 0) & (block <= FLOAT32_MAX)))[0])
            remedy = "weights must be finite and >= 0: correct it, or drop the element"
            if np.isfinite(given[j]) and given[j] > 0:
                remedy = "it overflows float32; only the ratios in a set count, so divide its weights by their sum"
            raise ValueError(f"{locate(j, offsets, first)} has the weight {given[j]}; {remedy}")
    if len(offsets) > 1:
        largest = np.maximum.reduceat(result, offsets[:-1])  # not the sum, which may overflow
        if (zero := np.flatnonzero(largest == 0)).size:
            i = int(zero[0])
            remedy = "drop the set, or give an element a weight"
            if np.any(given[offsets[i] : offsets[i + 1]]):
                remedy = "they are too small for float32; only the ratios in a set count, so divide them by their sum"
            raise ValueError(f"the weights of set {first + i} are all zero: {remedy}")
    return result


def set_array(x: Any, number: int) -> Array:
    """x as a numeric array (N, d), N and d > 0; errors call it set `number`."""
    array = x if type(x) is np.ndarray else None
    if array is None:
        array = as_array(x, f"set {number}")
    if array.ndim == 2 and array.dtype.kind in "fiub" and array.size:
        return array
    name = f"set {number}"
    if array.ndim == 0:
        raise ValueError(f"{name} is {kind_of(x)}, not an array of shape (N, d)")
    if array.shape[0] == 0:
        raise empty_set(number)
    check_numeric(array, name)
    if array.ndim == 1:
        raise ValueError(
            f"{name} is 1-D, of {len(array)} numbers: a set of scalars must be (N, 1), so pass x[:, None]; "
            "if the whole collection is one set, pass [x]"
        )
    if array.ndim == 2:
        raise ValueError(f"{name} has 0 features; its shape is {array.shape}, and must be (N, d) with d > 0")
    raise ValueError(f"{name} is {array.ndim}-D, of shape {array.shape}: a set must be (N, d); pass x.reshape(-1, d)")


def padding_mask(n: int, width: int, lengths: ArrayLike | None, mask: ArrayLike | None) -> NDArray[np.bool_] | None:
    """Which elements (n, width) of a padded array are there; None: all."""
    if lengths is not None and mask is not None:
        raise ValueError("give lengths or mask, not both")
    if mask is not None:
        there = as_array(mask, "mask")
        if there.shape != (n, width) or there.dtype.kind != "b":
            raise ValueError(f"mask must be boolean of shape {(n, width)}, not {there.dtype} of {there.shape}")
        return there
    if lengths is None:
        return None
    sizes = as_array(lengths, "lengths")
    if sizes.shape != (n,) or (n and sizes.dtype.kind not in "iu"):
        raise ValueError(f"lengths must be {n} integers, one for each set, not {sizes.dtype} of shape {sizes.shape}")
    if (wrong := np.flatnonzero((sizes < 0) | (sizes > width))).size:
        raise ValueError(f"set {wrong[0]} has the length {sizes[wrong[0]]}, but the padded array holds 0 to {width}")
    return np.asarray(np.arange(width) < sizes[:, None])
