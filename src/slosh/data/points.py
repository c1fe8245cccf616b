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

    What is computed from it is an array without the two: NumPy cannot tell what would happen to them.
    """

    weights: Float32 | None
    origin: Float64 | None

    @classmethod
    def of(cls, points: Array, weights: Float32 | None, origin: Float64 | None) -> SetPoints:
        """Return a view of points with what belongs to them."""
        new = points.view(cls)
        new.weights, new.origin = weights, origin
        return new

    def __array_finalize__(self, obj: Any) -> None:
        self.weights = self.origin = None

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if out := kwargs.get("out"):
            kwargs["out"] = tuple(map(_plain, out))
        return getattr(ufunc, method)(*map(_plain, inputs), **kwargs)

    def __getitem__(self, key: Any) -> Any:
        return self.view(np.ndarray)[key]

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))

    def astype(self, *args: Any, **kwargs: Any) -> Array:  # type: ignore[override]
        return self.view(np.ndarray).astype(*args, **kwargs)

    def __copy__(self) -> SetPoints:
        return self.of(np.array(self), self.weights, self.origin)

    def __deepcopy__(self, memo: Any) -> SetPoints:
        return self.__copy__()

    def __reduce__(self) -> Any:
        return SetPoints.of, (np.array(self), self.weights, self.origin)


def _plain(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, SetPoints) else x


def is_set_item(x: Any) -> bool:
    """Return whether x is a set that has more to it than its points."""
    return isinstance(x, SetPoints) and not (x.weights is None and x.origin is None)
