"""The default search: short prefixes of the vectors first, the vectors of the best of them last.

Every step of the ladder is an orthogonal projection of the next, so a distance at one step is never larger than at the
next. Stopped early the search is approximate, with a recall that was measured; taken until no lower bound is below the
k-th distance found it is exact.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

from ..data.checks import checked_count
from ..errors import InputError, bad_value
from ..native.arrays import Array
from .base import Search, checked_recall, needed_recall
from .calibration import Calibration
from .columns import Column, ColumnFactory, FileColumn, Specs, check_free, filled
from .filing import LONGEST_PREFIX
from .ladder_state import LadderState
from .state import Stored
from .store import FloatVectors, ShortVectors


class LadderSearch(Search):
    """Finds nearest vectors by prefixes in an orthonormal basis, in inverted lists; approximate or exact.

    A prefix is the vector's coordinates along the main directions of a sample, and the norm of the rest. Prefixes lie
    in lists around centroids. A search scans the lists nearest to the query until the next is too far off to hold a
    nearer prefix, compares the vectors of the best prefixes, and stops where no lower bound is left below the k-th
    distance. How far a list is thought to extend, and how many are the best, is measured on the collection
    (`calibrate`). With ``recall=1.0`` every list is looked at that a bound does not exclude.

    Rows are added and removed without a rebuild. Basis and lists are learnt at the first search of 1024 rows or more,
    and again when the collection has grown by a factor of 8; if what is added differs from what they were learnt from,
    `info()["retrain"]` says so, and `train()` learns them anew. A wrong basis costs time, never correctness.

    Distances are those of the vectors rounded to 16 bits, queries too: whole numbers with a scale for each vector, the
    largest number being 32767, so about five digits. ``precision=32`` keeps float32; then ``recall=1.0`` gives the rows
    and the distances that `ExactSearch` gives.

    Parameters
    ----------
    recall : what is promised if a search does not say; 1.0 is exact.
    n_components : directions of the basis; None chooses by the data.
    n_lists : inverted lists; None chooses by the number of rows, 1 is a plain scan of the prefixes.
    precision : 16 or 32, bits of a stored number.
    path : a new file for the vectors, which are then read from disk as they are needed; None keeps them in memory. It
        is no saved search: `save` writes one, with the vectors, and `load(saved, path=...)` puts them on disk again. A
        copy of the search (pickle, deepcopy) has them in memory.
    random_state : seed of the samples.
    n_jobs : threads, over the queries. The result does not depend on it.

    Examples
    --------
    >>> import numpy as np
    >>> from slosh.search import LadderSearch
    >>> vectors = np.random.default_rng(0).normal(size=(5000, 64)) * 0.9 ** np.arange(64)
    >>> search = LadderSearch()
    >>> rows = search.add(vectors)
    >>> search.search(vectors[:2], k=3, recall=1.0).rows[:, 0]
    array([0, 1])
    """

    def __init__(
        self,
        *,
        recall: float = 0.99,
        n_components: int | None = None,
        n_lists: int | None = None,
        precision: int = 16,
        path: str | os.PathLike[str] | None = None,
        random_state: Any = 0,
        n_jobs: int | None = -1,
    ) -> None:
        self.recall = recall
        self.n_components = n_components
        self.n_lists = n_lists
        self.precision = precision
        self.path = path
        self.random_state = random_state
        self.n_jobs = n_jobs

    def check_params(self) -> None:
        super().check_params()
        needed_recall(self.recall)
        for name in ("n_components", "n_lists"):
            if getattr(self, name) is not None:
                checked_count(name, getattr(self, name))
        if self.n_components is not None and self.n_components > LONGEST_PREFIX:
            raise bad_value("n_components", self.n_components, f"at most {LONGEST_PREFIX}")
        if self.precision not in (16, 32):
            problem = f"precision={self.precision!r} must be 16 or 32, the bits of a stored number"
            raise InputError(problem, argument="precision")

    def column_names(self, dim: int) -> Specs:
        return self._stored_as().column_names(dim)

    def _stored_as(self) -> type[ShortVectors] | type[FloatVectors]:
        """Return how vectors are stored: as those that are there, whatever became of the parameter since."""
        state = self.state
        bits = state.precision if isinstance(state, LadderState) else self.precision
        return ShortVectors if bits == 16 else FloatVectors

    def first_state(self, stored: Stored) -> LadderState:
        return LadderState(self, stored, self._stored_as().start(stored))

    def train(self) -> None:
        """Learn basis and lists from the rows that are there, and forget the calibrations. Done by itself once."""
        if len(self) < 2:
            raise InputError("train needs two rows or more", "add vectors first")
        self._train_if(lambda state: True, lambda state: state.train())

    def calibrate(self, k: int = 10, recall: float | None = None, queries: Any = None) -> Calibration:
        """Measure what it takes to find this fraction of the k nearest, and keep it.

        A quarter of the queries choose the least work that should be enough; the others state its recall, and go on to
        less work while that is enough, too. A search does this by itself when it is first asked for a recall, and again
        when the number of rows has doubled or halved.

        Parameters
        ----------
        k, recall : as for `search`.
        queries : vectors like those that will be asked for, hundreds of them; None takes 667 of the stored vectors (or
            more, for a recall above 0.992), none of them its own neighbour.
        """
        asked = None if queries is None else self._checked_queries(queries)
        return self._calibrate(k, checked_recall(recall) or self.recall, asked)

    def saved_params(self) -> dict[str, Any]:
        params = {**super().saved_params(), "precision": 16 if self._stored_as() is ShortVectors else 32}
        return {name: value for name, value in params.items() if name != "path"}

    def _columns(self, content: dict[str, Array] | None = None) -> ColumnFactory:
        """With `path` the vectors lie in that file; content that replaces it comes under another name, then renamed."""
        if self.path is None:
            return super()._columns(content)
        path, others = os.fspath(self.path), filled(content or {})

        def make(name: str, width: tuple[int, ...], dtype: Any) -> Column:
            if name != "vectors":
                return others(name, width, dtype)
            if self._version is None:
                check_free(path)
            draft = f"{path}.{secrets.token_hex(6)}.tmp"
            column = FileColumn(draft, width, dtype)
            try:
                if content:
                    column.write(0, content[name])
                os.replace(draft, path)
            except BaseException:
                os.unlink(draft)
                raise
            return column

        return make
