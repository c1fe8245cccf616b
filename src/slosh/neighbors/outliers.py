"""OutlierScore: how unusual a set is among the fitted ones, from the distances to its nearest neighbours."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import logsumexp
from sklearn.base import OutlierMixin
from sklearn.utils.validation import check_is_fitted

from ..errors import InputError, bad_value, user_level
from ..native.arrays import Float64, Int64
from ..search import Search
from .base import SetNeighbors, is_number

if TYPE_CHECKING:
    from typing_extensions import Self

METHODS = ("lof", "distance", "density")
AUTO_LOF_OFFSET = -1.5
"""Below this a local outlier factor is that of an outlier, as in scikit-learn."""
RELATIVE_FLOOR = 1e-10
"""Added to every reach, in proportion to the mean distance, so that ratios stay finite among copies of one set.

scikit-learn's LocalOutlierFactor takes precomputed neighbours too, but adds 1e-10 in the units of the data, so that its
factors change with the unit; that is why the factor is computed here.
"""


class OutlierScore(OutlierMixin, SetNeighbors):  # type: ignore[misc]
    r"""Score how unusual a set is among the fitted ones. As in scikit-learn, higher scores are more usual.

    With the distances d_1 <= ... <= d_k of a set to its k nearest fitted sets, the score is

    - ``method="lof"``: minus the local outlier factor of Breunig et al. (2000): with the reach
      r(x) = mean over the neighbours j of max(d_j, distance of j to its own k-th neighbour), it is
      -mean over j of r(x) / r(j). About -1 inside a cluster, however dense that is; -2 is twice as sparse as around
      the neighbours.
    - ``method="distance"``: -d_k, in the units of the data. For sets that are equally dense everywhere.
    - ``method="density"``: log( 1/n sum_j exp(-d_j^2 / (2 h^2)) ): a Gaussian kernel density estimate of width h
      over the k nearest, up to a constant (the volume of the kernel).

    Parameters
    ----------
    n_neighbors : the number k of neighbours; with fewer fitted sets all others are used, with a warning.
    method : "lof", "distance" or "density".
    contamination : the fraction of the fitted sets that counts as outliers, above 0 and at most 0.5. "auto": scores
        below -1.5 for "lof"; for the others below Q1 - 1.5 (Q3 - Q1), from the quartiles of the fitted sets' scores.
    bandwidth : the width h for "density"; None is the median of d_k over the fitted sets, of those where it is not 0.
    embedding, search, recall : as in `KNeighborsClassifier`.

    Attributes
    ----------
    training_scores_ : (n,) the scores of the fitted sets, none of which is its own neighbour.
    offset_ : sets that score below this are outliers.
    bandwidth_ : the width h, for "density".
    n_neighbors_ : the number of neighbours that is used.

    Examples
    --------
    >>> import numpy as np
    >>> from slosh.neighbors import OutlierScore
    >>> rng = np.random.default_rng(0)
    >>> sets = [rng.normal(size=(200, 2)) for _ in range(100)]
    >>> model = OutlierScore().fit(sets)
    >>> model.predict([rng.normal(size=(200, 2)), rng.uniform(-3, 3, size=(200, 2))])
    array([ 1, -1])
    """

    training_scores_: Float64
    offset_: float
    bandwidth_: float
    n_neighbors_: int
    _kth: Float64
    _reach: Float64
    _floor: float

    def __init__(
        self,
        n_neighbors: int = 20,
        *,
        method: str = "lof",
        contamination: float | str = "auto",
        bandwidth: float | None = None,
        embedding: Any = None,
        search: Search | None = None,
        recall: float | None = None,
    ) -> None:
        self.n_neighbors, self.method = n_neighbors, method
        self.contamination, self.bandwidth = contamination, bandwidth
        self.embedding, self.search, self.recall = embedding, search, recall

    def fit(self, X: Any, y: Any = None) -> Self:
        """Store the sets, and score each among the others; X as in `KNeighborsClassifier.fit`, y is ignored."""
        self._check_params()
        self._fit_index(X, None, least=2)
        if self.n_neighbors > (most := self.n_samples_fit_ - 1):
            found = f"each of the {self.n_samples_fit_} fitted sets has {most} others: {most} are used"
            warnings.warn(f"n_neighbors={self.n_neighbors}, but {found}", stacklevel=user_level())
        self.n_neighbors_ = min(self.n_neighbors, most)
        self._method = self.method  # what is fitted stays, whatever set_params changes later
        distances, rows = self.kneighbors(None, self.n_neighbors_)
        self._kth = distances[:, -1]
        positive = self._kth[self._kth > 0]
        self.bandwidth_ = float(self.bandwidth or (np.median(positive) if len(positive) else 1.0))
        self._floor = RELATIVE_FLOOR * float(distances.mean()) or 1e-300
        self._reach = self._reaches(distances, rows)
        self.training_scores_ = self._scores(distances, rows)
        if self.contamination != "auto":
            self.offset_ = float(np.percentile(self.training_scores_, 100.0 * float(self.contamination)))
        elif self.method == "lof":
            self.offset_ = AUTO_LOF_OFFSET
        else:
            low, high = np.percentile(self.training_scores_, [25, 75])
            self.offset_ = float(low - 1.5 * (high - low))
        return self

    def score_samples(self, X: Any) -> Float64:
        """Return the score of each new set, (n,). Those of the fitted sets are `training_scores_`."""
        check_is_fitted(self, "offset_")
        if X is None:
            raise InputError("X is None", "the scores of the fitted sets are training_scores_", argument="X")
        distances, rows = self.kneighbors(X, self.n_neighbors_)
        return self._scores(distances, rows)

    def decision_function(self, X: Any) -> Float64:
        """Return `score_samples` minus `offset_`: below 0 for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> Int64:
        """Return -1 for outliers among new sets, 1 for the others. For the fitted sets use `fit_predict`."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def fit_predict(self, X: Any, y: Any = None) -> Int64:
        """Fit, and return -1 for outliers among these sets, 1 for the others."""
        self.fit(X)
        return np.where(self.training_scores_ < self.offset_, -1, 1)

    def _reaches(self, distances: Float64, rows: Int64) -> Float64:
        return np.asarray(np.maximum(distances, self._kth[rows]).mean(axis=1)) + self._floor

    def _scores(self, distances: Float64, rows: Int64) -> Float64:
        if self._method == "distance":
            return -distances[:, -1]
        if self._method == "density":
            kernels = -0.5 * (distances / self.bandwidth_) ** 2
            return np.asarray(logsumexp(kernels, axis=1) - np.log(self.n_samples_fit_))
        return np.asarray(-self._reaches(distances, rows) * np.mean(1.0 / self._reach[rows], axis=1))

    def _check_params(self) -> None:
        share, width = self.contamination, self.bandwidth
        if self.method not in METHODS:
            raise bad_value("method", self.method, f"give one of {', '.join(map(repr, METHODS))}")
        if share != "auto" and not (is_number(share) and 0 < share <= 0.5):  # type: ignore[operator]
            raise bad_value("contamination", share, 'give "auto", or a number above 0 and at most 0.5')
        if width is not None and not (is_number(width) and 0 < width < np.inf):
            raise bad_value("bandwidth", width, "give a distance above 0, or None")
