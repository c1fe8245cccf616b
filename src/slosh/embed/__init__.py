"""Set to vector: scikit-learn transformers whose samples are sets."""

from .covariance import Covariance
from .fspool import FSPool
from .gem import GeM
from .pooling import MaxPool, MeanPool, SumPool
from .sliced_wasserstein import SlicedWasserstein, default_slices
from .wasserstein import WassersteinEmbedding
from .wrapped import Wrapped

__all__ = [
    "Covariance",
    "FSPool",
    "GeM",
    "MaxPool",
    "MeanPool",
    "SlicedWasserstein",
    "SumPool",
    "WassersteinEmbedding",
    "Wrapped",
    "default_slices",
]
