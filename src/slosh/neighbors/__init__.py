"""Learning from the nearest sets, in the manner of scikit-learn; embeddings compared on labelled sets."""

from .outliers import OutlierScore
from .voting import KNeighborsClassifier, KNeighborsRegressor

__all__ = ["KNeighborsClassifier", "KNeighborsRegressor", "OutlierScore"]
