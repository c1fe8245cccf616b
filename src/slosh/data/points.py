"""One set of a `Sets` as an array that keeps what a bare array would lose: the weights of its elements, and the origin.

`Sets` hands it out where it has weights or an origin. Whatever takes sets looks for it, so that `search(sets[5])` and
`search(sets[5:6])` are the same question.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..native.arrays import Array, Float32, Float64


class SetPoints(np.ndarray[Any, np.dtype[np.float32]]):
    """The (N, d) points of a set, a view, with its `weights` (N,) or None, and its `origin` (d,) or None.

    A copy keeps the two, in any float type, and so do rows chosen by a slice, by numbers or by a mask. What is computed
    from it is an array without the two, of values less the origin: NumPy cannot tell what would happen to them.
    """

    weights: Float32 | None
    origin: Float64 | None
    checked: bool
    """Whether this is a whole set of a `Sets`, which was checked; copies may be written to, and rows be none."""

    @classmethod
    def of(cls, points: Array, weights: Float32 | None, origin: Float64 | None, checked: bool = False) -> SetPoints:
        """Return a view of points with what belongs to them."""
        new = points.view(cls)
        new.weights, new.origin, new.checked = weights, origin, checked
        return new

    def __array_finalize__(self, obj: Any) -> None:
        self.weights, self.origin, self.checked = None, None, False

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if out := kwargs.get("out"):
            kwargs["out"] = _plain(out)
        return getattr(ufunc, method)(*_plain(inputs), **kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return function(*_plain(args), **{name: _plain(each) for name, each in kwargs.items()})

    def __getitem__(self, key: Any) -> Any:
        found = self.view(np.ndarray)[key]
        if isinstance(key, tuple) and key[1:] and all(map(_is_everything, key[1:])):
            key = key[0]
        if isinstance(key, tuple) or np.ndim(found) != 2:
            return found
        return self.of(found, None if self.weights is None else self.weights[key], self.origin)

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))

    def astype(self, dtype: Any, order: Any = "K", casting: Any = "unsafe", subok: Any = True, copy: Any = True) -> Any:
        new = self.view(np.ndarray).astype(dtype, order, casting, subok, copy)
        return self.of(new, self.weights, self.origin) if subok and new.dtype.kind == "f" else new

    def copy(self, order: Any = "C") -> SetPoints:
        return self.of(np.array(self, order=order), self.weights, self.origin)

    def __copy__(self) -> SetPoints:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> SetPoints:
        return self.copy()

    def __reduce__(self) -> Any:
        return SetPoints.of, (np.array(self), self.weights, self.origin)


def _is_everything(key: Any) -> bool:
    """Return whether part of an index chooses all columns."""
    return key is Ellipsis or (isinstance(key, slice) and key == slice(None))


def _plain(x: Any) -> Any:
    """Return arguments of a function of NumPy's with bare arrays instead of items."""
    if isinstance(x, list | tuple):
        return (list if isinstance(x, list) else tuple)(map(_plain, x))
    return x.view(np.ndarray) if isinstance(x, SetPoints) else x


def is_set_item(x: Any) -> bool:
    """Return whether x is a set that has more to it than its points."""
    return isinstance(x, SetPoints) and not (x.weights is None and x.origin is None)
