"""Files into sets: `read` takes a file, a folder or a pattern and gives batches of sets with ids and metadata.

One module for each family of formats. What is in a file is data and never code: nothing is unpickled, nothing is
fetched, and the sizes that a header claims are compared with the file before memory is taken.
"""

from .batches import Batch
from .files import MAX_EXPANSION
from .formats import FORMATS
from .reading import read

__all__ = ["FORMATS", "MAX_EXPANSION", "Batch", "read"]
