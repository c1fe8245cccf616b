"""Set to vector: scikit-learn transformers whose samples are sets."""

from .distance_field import DistanceField
from .local_shape import LocalShape
from .part_field import PartField
from .pooling import Covariance, FSPool, GeM, MaxPool, MeanPool, SumPool
from .sliced_wasserstein import SlicedWasserstein, default_slices
from .wasserstein import WassersteinEmbedding
from .whitened import Whitened
from .wrapped import Wrapped

__all__ = [
    "Covariance",
    "DistanceField",
    "FSPool",
    "GeM",
    "LocalShape",
    "MaxPool",
    "MeanPool",
    "PartField",
    "SlicedWasserstein",
    "SumPool",
    "WassersteinEmbedding",
    "Whitened",
    "Wrapped",
    "default_slices",
]
