"""Learning from the nearest sets, in the manner of scikit-learn; embeddings compared on labelled sets."""

from .estimators import KNeighborsClassifier, KNeighborsRegressor, OutlierScore

__all__ = ["KNeighborsClassifier", "KNeighborsRegressor", "OutlierScore"]
