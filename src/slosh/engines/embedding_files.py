"""One embedding in a file: what was fitted here is used elsewhere, by an index or by itself.

An embedding is written as an index stores it, with a search that has no parameters: a tree for JSON and arrays
(`portable.py`), in one file of safetensors with a checksum (`data/tensors.py`). What a file says is checked before it
is used: it may be of other people.
"""

from __future__ import annotations

import errno
import os
from typing import Literal, overload

from ..data import tensors
from ..data.checks import kind_of
from ..data.preprocess import Preprocess
from ..embed import PartField
from ..embed.base import SetTransformer
from ..errors import InputError, SourceNotFound
from ..search import ExactSearch
from .spec import IndexSpec, is_fitted

KIND = "slosh embedding"
SUFFIX = ".slosh-embedding"
"""How such files are called by convention."""


def save_embedding(
    embedding: SetTransformer, path: str | os.PathLike[str], *, preprocess: Preprocess | None = None
) -> None:
    """Write a fitted embedding to a file, which replaces one that is there, as a whole or not at all.

    embedding : one of slosh, fitted. What an index on disk cannot store (functions, networks of your own, the
        transformers of other libraries) is refused.
    preprocess : what was done to the sets that it was fitted on, and is to be done to others before they are embedded;
        it is stored with it.

    >>> import slosh, tempfile
    >>> from slosh.embed import SlicedWasserstein
    >>> import numpy as np
    >>> sets = [np.random.default_rng(i).normal(size=(30, 3)) for i in range(5)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     slosh.save_embedding(SlicedWasserstein(8).fit(sets), f"{folder}/model.slosh-embedding")
    ...     slosh.load_embedding(f"{folder}/model.slosh-embedding").transform(sets).shape
    (5, 128)
    """
    if not isinstance(embedding, SetTransformer) or isinstance(embedding, PartField):
        raise InputError(f"embedding is {kind_of(embedding)}", "give an embedding of slosh", argument="embedding")
    if not is_fitted(embedding):
        problem = f"{embedding!r:.100} is not fitted"
        raise InputError(problem, "fit it first: a file holds what was learnt", argument="embedding")
    steps = Preprocess() if preprocess is None else preprocess
    if not isinstance(steps, Preprocess):
        raise InputError(f"preprocess={steps!r:.60}", "give a slosh.Preprocess, or None", argument="preprocess")
    spec = IndexSpec(embedding.n_features_in_, embedding, ExactSearch(), steps, embedding.origin_)
    tensors.write(path, KIND, *spec.to_parts())


@overload
def load_embedding(path: str | os.PathLike[str]) -> SetTransformer: ...
@overload
def load_embedding(
    path: str | os.PathLike[str], *, with_preprocess: Literal[True]
) -> tuple[SetTransformer, Preprocess]: ...
@overload
def load_embedding(
    path: str | os.PathLike[str], *, with_preprocess: bool
) -> SetTransformer | tuple[SetTransformer, Preprocess]: ...


def load_embedding(
    path: str | os.PathLike[str], *, with_preprocess: bool = False
) -> SetTransformer | tuple[SetTransformer, Preprocess]:
    """Return the embedding of a file that `save_embedding` wrote, fitted as it was.

    with_preprocess : also return the `Preprocess` that it was saved with. Without it, a file that has one is refused:
        its vectors would be those of other sets.

    Raises FormatError if the file is something else, and DamagedError if it is damaged, or was put together by others
    in a way that `fit` could not have. Nothing in a file is executed.
    """
    name = os.fspath(path)
    try:
        header, arrays = tensors.read(path, KIND)
    except FileNotFoundError:
        problem, remedy = f"there is no file {name}", "give the path of a file that save_embedding wrote"
        raise SourceNotFound(problem, remedy, errno=errno.ENOENT, location=name) from None
    spec = IndexSpec.from_parts(header.get("parts"), header.get("preprocess"), arrays, name)
    if with_preprocess:
        return spec.embedding, spec.preprocess
    if not spec.preprocess.is_identity:
        problem = f"{name} is for sets that were prepared by {spec.preprocess!r:.200}"
        remedy = "load it with with_preprocess=True, and apply that to sets before they are embedded"
        raise InputError(problem, remedy, argument="with_preprocess")
    return spec.embedding
