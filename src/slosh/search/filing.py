"""What LadderSearch learns, and the lists it files vectors in.

A sample of the stored vectors comes in, a `Training` goes out: the basis and the centroids. A `Filing` holds the
prefixes of the vectors in lists around these; it is immutable, like states.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..checkpoints import checkpoint
from ..data.progress import ProgressBar
from ..errors import PrecisionWarning, user_level
from ..native.arrays import Array, Float32, Float64, Int64, Mask
from . import basis as bases
from .basis import Basis
from .centroids import centroids
from .columns import check_arrays
from .cost_model import default_lists, prefix_length, squared_distances
from .lists import Lists, steps_for
from .state import Trained
from .store import Vectors

if TYPE_CHECKING:
    from .ladder import LadderSearch

SMALLEST_BASIS_SAMPLE, LARGEST_BASIS_SAMPLE = 4096, 16384
"""The basis is learnt from four vectors for each of their numbers, but no fewer and no more than this."""
LONGEST_PREFIX = 128
"""Directions of a prefix, at most."""
COARSE_ROUNDING = 0.005
"""Rounding that moves a vector by more than this part of the distance to its neighbours is worth a warning."""
BLIND = 8
"""A prefix says little of a vector if the basis leaves out so many times as much of it as at training."""
SAMPLED_PER_LIST = 32
"""Prefixes that centroids are learnt from, for each."""
BAR_FROM_ROWS = 1 << 12
"""So many vectors or more are filed with a progress bar."""
PREFIX_NUMBERS = 1 << 22
"""Numbers of vectors whose prefixes are computed in one go."""


@dataclass(frozen=True, eq=False)
class Training:
    """What was learnt: the basis, and about the collection then.

    n_rows, n_positions : how many there were.
    rest : the mean of what the basis left out, squared.
    crowding : of the lists.
    centres, radii, steps : of the lists, see `Lists`.
    """

    NAMES: ClassVar = ("middle", "directions", "centres", "radii", "steps")
    """Of the arrays."""

    basis: Basis
    n_rows: int
    n_positions: int
    rest: float
    crowding: float
    centres: Float32
    radii: Float32
    steps: Float32

    @classmethod
    def from_trained(cls, trained: Trained, dim: int) -> Training:
        """Return what `header` and `arrays` gave; raise ValueError, KeyError or TypeError if it does not fit."""
        header, arrays = trained
        if is_of_floats(trained):
            arrays = {**arrays, "steps": np.maximum(arrays["radii"] / np.float32(127), np.float32(1e-30))}
        n_lists, width = arrays["centres"].shape
        lists = dict.fromkeys(("radii", "steps"), ((n_lists,), np.float32))
        basis = {"middle": ((dim,), np.float64), "directions": ((len(arrays["directions"]), dim), np.float64)}
        check_arrays(arrays, {**basis, **lists, "centres": ((n_lists, width), np.float32)})
        middle, directions, centres, radii, steps = parts = [np.ascontiguousarray(arrays[name]) for name in cls.NAMES]
        if width != Basis(middle, directions).width:
            raise ValueError(f"its centres have {width} numbers")
        if not n_lists or not all(np.isfinite(array).all() for array in parts):
            raise ValueError("its basis or its lists are not finite numbers")
        n_rows, n_positions = int(header["trained"]), int(header["positions"])
        if n_rows < 1 or n_positions < 0:
            raise ValueError(f"it was trained on {n_rows} rows")
        about = n_rows, n_positions, float(header["rest"]), float(header["crowding"])
        return cls(Basis(middle, directions), *about, centres, radii, steps)

    def header(self) -> dict[str, Any]:
        """Return its numbers, for JSON."""
        names = {"trained": self.n_rows, "positions": self.n_positions}
        return {**names, "rest": self.rest, "crowding": self.crowding}

    def arrays(self) -> dict[str, Array]:
        """Return its arrays."""
        parts = (self.basis.middle, self.basis.directions, self.centres, self.radii, self.steps)
        return dict(zip(self.NAMES, parts, strict=True))


@dataclass(frozen=True)
class Filing:
    """Lists that hold the prefixes of the first vectors, and what was seen when they were filed.

    farthest : the largest norm about the middle of the basis.
    rest, n_since : of the vectors filed since training: the squared norms that the basis leaves out, summed; how many.
    """

    basis: Basis
    lists: Lists
    farthest: float = 0.0
    rest: float = 0.0
    n_since: int = 0

    @classmethod
    def start(
        cls, training: Training, derived: Trained | None, store: Vectors, alive: Mask, n_jobs: int | None
    ) -> Filing:
        """Return all stored vectors filed: by what `as_derived` returned, if it fits, or anew."""
        known = None if derived is None else cls._from_derived(derived, training, alive)
        if known is None:  # what was there at training says nothing about how the collection has changed since
            known = cls(training.basis, Lists(training.centres, training.steps))
            first = known.extend(store, alive, n_jobs, min(training.n_positions, store.n))
            lists = first.lists.settle(training.radii).packed()
            known = replace(first, lists=lists, rest=0.0, n_since=0)
        return known.extend(store, alive, n_jobs)

    @classmethod
    def _from_derived(cls, derived: Trained, training: Training, alive: Mask) -> Filing | None:
        header, arrays = derived
        try:
            lists = Lists.from_arrays(arrays, training.basis.width)
            n = len(lists.first_radii)
            held: dict[str, Array] = {
                "centres": lists.centres[:n], "radii": lists.first_radii, "steps": lists.steps[:n]
            }  # fmt: skip
            learnt = training.arrays()
            if lists.n > len(alive) or not all(np.array_equal(held[name], learnt[name]) for name in held):
                return None
            numbers = float(header["farthest"]), float(header["rest"]), int(header["n_since"])
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        return cls(training.basis, lists, *numbers).remove(np.flatnonzero(~alive))

    def as_derived(self) -> Trained:
        """Return it for a cache."""
        header = {"farthest": self.farthest, "rest": self.rest, "n_since": self.n_since}
        return Trained(header, self.lists.arrays())

    def extend(self, store: Vectors, alive: Mask | None, n_jobs: int | None, last: int | None = None) -> Filing:
        """Return the filing with the vectors up to position `last` (None: all) put into the lists.

        `alive` None: none of them is a hole.
        """
        first, last = self.lists.n, store.n if last is None else last
        if last - first < BAR_FROM_ROWS:
            return self._extended(store, alive, n_jobs, last, None)
        with ProgressBar(total=last - first, unit="row", desc="train") as bar:
            return self._extended(store, alive, n_jobs, last, bar)

    def _extended(
        self, store: Vectors, alive: Mask | None, n_jobs: int | None, last: int, bar: ProgressBar | None
    ) -> Filing:
        first = self.lists.n
        lists, farthest, rest = self.lists, self.farthest, self.rest
        step = max(1, PREFIX_NUMBERS // store.unchecked.shape[1])
        for start in range(first, last, step):
            checkpoint()
            prefixes, norms = prefixes_of(store, slice(start, min(start + step, last)), self.basis, n_jobs)
            lists = lists.append(prefixes)
            farthest = max(farthest, float(norms.max()))
            rest += self._left_out(prefixes).sum()
            if bar is not None:
                bar.update(len(prefixes))
        if alive is not None:
            lists = lists.remove(np.flatnonzero(~alive[first:last]) + first)
        return Filing(self.basis, lists, farthest, rest, self.n_since + last - first)

    def remove(self, positions: Int64) -> Filing:
        """Return the filing without these positions, as far as they are filed."""
        return replace(self, lists=self.lists.remove(positions[positions < self.lists.n]))

    def holds(self, positions: Int64, vectors: Float32, alive: Mask, n_jobs: int | None) -> Mask:
        """Return which positions are filed where these vectors (as they are stored) belong."""
        return self.lists.holds(positions, self.basis.prefixes(vectors, None, n_jobs)[0], alive[positions])

    def _left_out(self, prefixes: Float32) -> Float64:
        """Return what the basis leaves out of vectors, squared."""
        return left_out(self.basis, prefixes)

    def leaves_out(self, prefixes: Float32, training: Training) -> Mask:
        """Return of which queries the basis leaves out so much that their prefixes say little."""
        rest = self._left_out(prefixes)
        return np.asarray(rest > BLIND * training.rest + 1e-6 * self.farthest**2)

    def _is_left_out(self, training: Training) -> bool:
        """Return whether the basis leaves out more of what was added since than of what it was learnt from."""
        since = self.n_since
        return since >= 100 and self.rest / since > 2 * training.rest + 1e-6 * self.farthest**2

    def is_outdated(self, training: Training) -> bool:
        """Return whether what was added since, half as much as there was or more, is so unlike it that searches suffer:
        they lie in lists that were not made for them.
        """
        if self.n_since < training.n_rows / 2:
            return False
        return self._is_left_out(training) or self.lists.n_outside > self.lists.counts.sum() / 8

    def reason_to_train(self, training: Training, n: int) -> str | None:
        """Return why n rows should be learnt from anew, or None."""
        trained = training.n_rows
        if n > 4 * trained:
            return f"{n} rows, learnt from {trained}: the lists have become long; call train()"
        if n < trained / 4:
            return f"{n} rows, learnt from {trained}: there are more lists than are needed; call train()"
        since = self.n_since
        if self._is_left_out(training):
            ratio = self.rest / since / max(training.rest, 1e-300)
            return f"the basis leaves out {ratio:.3g} times as much of the {since} rows added since: call train()"
        if outside := self.lists.n_outside:
            return f"{outside} rows are in lists that grew or were founded since training: call train()"
        if self.lists.crowding > 2 * training.crowding + 1:
            times = self.lists.crowding / training.crowding
            return f"rows crowd in few lists, {times:.3g} times as much as at first: call train()"
        return None


def learn(
    store: Vectors, alive: Mask, params: LadderSearch, random: np.random.RandomState
) -> tuple[Training, Filing, Float32]:
    """Learn basis and lists from the vectors that are alive; return them, all filed, and the sample of the basis."""
    n_components, n_lists, n_jobs = params.n_components, params.n_lists, params.n_jobs
    there, dim = np.flatnonzero(alive), store.unchecked.shape[1]
    size = min(max(SMALLEST_BASIS_SAMPLE, 4 * dim), LARGEST_BASIS_SAMPLE)
    at = there if len(there) <= size else np.sort(random.choice(there, size, replace=False))
    sample = store.take(at)
    basis = bases.fit(sample, LONGEST_PREFIX if n_components is None else n_components, random)
    if len(basis.directions) == dim <= LONGEST_PREFIX and n_components is not None:
        basis = basis.cut(None)
    if n_components is None:
        basis = basis.cut(prefix_length(basis.prefixes(sample, None, n_jobs)[0], sample))
    n_lists = min(default_lists(len(there)) if n_lists is None else n_lists, len(there))
    if len(at) < min(len(there), SAMPLED_PER_LIST * n_lists):
        at = np.sort(random.choice(there, min(len(there), SAMPLED_PER_LIST * n_lists), replace=False))
    step = max(1, PREFIX_NUMBERS // dim)
    parts = [prefixes_of(store, at[i : i + step], basis, n_jobs)[0] for i in range(0, len(at), step)]
    prefixes = np.concatenate(parts)
    rest = float(left_out(basis, prefixes).mean())
    centres = centroids(prefixes, n_lists, random, n_jobs)
    steps = steps_for(centres, prefixes, n_jobs)
    filing = Filing(basis, Lists(centres, steps)).extend(store, alive, n_jobs)
    lists = filing.lists.settle().packed()
    about = len(there), store.n, rest, lists.crowding
    training = Training(basis, *about, centres, lists.first_radii, steps)
    return training, Filing(basis, lists, filing.farthest), sample


def is_of_floats(trained: Trained) -> bool:
    """Return whether this was learnt for prefixes in float32, as slosh 0.1 did: basis and lists can be used, what was
    calibrated cannot.
    """
    return "steps" not in trained.arrays and "spreads" in trained.arrays


def left_out(basis: Basis, prefixes: Float32) -> Float64:
    """Return the squared norms of what the basis leaves out of vectors that have these prefixes."""
    if not len(basis.directions):
        return np.zeros(len(prefixes))
    return np.square(prefixes[:, -1], dtype=np.float64)


def prefixes_of(store: Vectors, at: Any, basis: Basis, n_jobs: int | None) -> tuple[Float32, Float64]:
    """Return the prefixes of stored vectors, and their norms about the middle."""
    store.check(at)
    return basis.prefixes(store.unchecked[at], None if store.scale is None else store.scale[at], n_jobs)


def warn_if_coarse(errors: Float32 | None, sample: Float32) -> None:
    """Warn if 16 bits, which move vectors by `errors`, are too few: vectors far from zero, and near to each other."""
    few = sample[:512]
    if errors is None or len(few) < 20:
        return
    table = squared_distances(few, len(few))
    near = float(np.median(np.sqrt(np.maximum(np.partition(table, 9, axis=1)[:, 9], 0.0))))
    # Below a part of their spread they are as good as copies.
    near = max(near, 2e-2 * float(np.linalg.norm(few.std(axis=0, dtype=np.float64))))
    moved = float(np.median(errors))
    if near > 1e-6 * float(np.abs(few).max()) and moved > COARSE_ROUNDING * near:  # or all are equal
        warnings.warn(
            f"16 bits move a vector by {moved / near:.1%} of the distance to its neighbours, and near ones change "
            'places: subtract the mean from all vectors (from coordinates of sets by origin="auto"), or take '
            "LadderSearch(precision=32)",
            PrecisionWarning,
            stacklevel=user_level(),
        )
