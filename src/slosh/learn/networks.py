"""Networks on the elements of sets, as they are used after training: sets come in, sets with other features go out.

A built-in network has two sides: a torch module that is trained (`point_module.py`), and a class that holds what was
learnt as plain arrays and runs without torch (`point_network.py`). The torch module's `export` returns it. Another
built-in network is a pair of such classes, a name in `BUILT_IN`, a branch in `fitting.py`, and an entry in `NETWORKS`
of `engines/portable.py`, so that a file can hold it.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ..data.sets import Sets
from ..errors import UnsupportedError, import_extra

BUILT_IN = ("points",)
"""The names of the built-in networks."""


class ElementNetwork(Protocol):
    """Changes the elements of sets, and neither their number nor their weights. It must not look beyond a set."""

    @property
    def n_outputs(self) -> int:
        """The features of an element that it returns."""

    def apply(self, sets: Sets, n_jobs: int | None) -> Sets:
        """Return the sets with other features."""

    def check_state(self, dim: int) -> None:
        """Refuse (ValueError) what could not have been learnt from sets of this dimension."""


class ModuleNetwork:
    """A trained torch module of the user's own: module(points (P, d), offsets (n + 1,)) returns (P, c)."""

    def __init__(self, module: Any, n_outputs: int) -> None:
        self.module, self._n_outputs = module, n_outputs

    @property
    def n_outputs(self) -> int:
        return self._n_outputs

    def apply(self, sets: Sets, n_jobs: int | None) -> Sets:
        torch = import_extra("torch", "an embedding with a network of your own", "torch")
        self.module.eval()
        with torch.no_grad():
            # Copies: arrays of sets are read-only, and a module may change what it is given.
            found = self.module(torch.tensor(sets.points, device="cpu"), torch.tensor(sets.offsets, device="cpu"))
        elements = np.ascontiguousarray(found.float().numpy(), np.float32)
        if elements.shape != (len(sets.points), self._n_outputs) or not np.isfinite(elements).all():
            problem = f"the network made {elements.shape} of {len(sets.points)} elements, or no finite numbers"
            raise UnsupportedError(problem, f"it must return (P, {self._n_outputs}) numbers", feature_name="network")
        return Sets.from_checked(elements, sets.offsets, sets.weights, None)

    def check_state(self, dim: int) -> None:
        raise ValueError("a network of a user is never stored")
