"""The data sets of the paper, from files that you have: point-cloud MNIST, ModelNet40 and the Oxford buildings.

The name of a data set and a folder come in; a `Dataset` goes out: sets, labels, which of them are queries, and a name
for each. `as_in_paper` then does to the sets what the paper's experiments did. Nothing is ever downloaded.
"""

from .buildings import oxford5k
from .dataset import Dataset, GroundTruth
from .digits import mnist
from .loading import NAMES, load
from .paper import as_in_paper
from .shapes import modelnet40

__all__ = ["NAMES", "Dataset", "GroundTruth", "as_in_paper", "load", "mnist", "modelnet40", "oxford5k"]
