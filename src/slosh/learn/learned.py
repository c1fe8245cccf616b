"""`LearnedEmbedding`: an embedding that is learnt from labels, or from pairs of sets that are alike.

Sets come in, and vectors of unit length go out. `fit` needs torch (`fitting.py`); `transform` does not, but for a
network of the user's own.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checkpoints import in_threads
from ..data.batching import batches_by_points
from ..data.sets import Sets
from ..embed.base import SetTransformer
from ..errors import InputError, import_extra
from ..native import kernel
from ..native.arrays import Float32, Float64
from .examples import Examples, labelled_examples, paired_examples
from .head import Head, check_layers
from .networks import ElementNetwork, ModuleNetwork
from .parameters import check_parameters

if TYPE_CHECKING:
    from typing_extensions import Self

BLOCK_NUMBERS = 1 << 22
"""Numbers of the features, or of the elements of a network of the user's own, that `transform` holds at once."""
CHUNK_NUMBERS = 1 << 20
"""The same for each thread, with a built-in network: they fit into a cache."""
CHUNKS = 8
"""How many of these a thread gets at a time."""
COLUMNS = ("loss", "held_loss", "held_accuracy")
WAIT_POLICY = "OMP_WAIT_POLICY"


class LearnedEmbedding(SetTransformer):
    r"""Learns an embedding in which sets of one class, or pairs of sets that are alike, lie near each other.

    Without a network a head is learnt on top of other embeddings: their vectors are whitened (`Whitened`, 512 numbers
    or what the data allow), and pass two hidden layers of 1,024 numbers with rectifiers. The last of them, turned to
    its `n_components` principal directions and brought to unit length, is the vector of a set. With a network each
    element is changed by it first, and learnt slices, the maximum and the mean of the elements are what the head is
    put on.

    Labels: a softmax over SCALE times the cosines of the last layer and a prototype for each class, with dropout and
    with mixed pairs of sets. Pairs, or loss="contrastive": the cosine of two sets that are alike is to stand out among
    those of all sets of a batch.

    Distances have no unit, and lie between 0 and 2. Sets of classes that had no label are told apart less well than by
    an embedding that learns without labels: docs/learn.md has the figures.

    Parameters
    ----------
    network : None; "points", a small network on each element before the slices; or a torch module of your own, called
        as module(points (P, d), offsets (n + 1,)), that returns (P, c). A copy of it is trained. One of your own needs
        torch wherever sets are embedded, and no index on disk stores it.
    embedding : without a network: an embedding, or a list of them, that the head is put on. None is
        `SlicedWasserstein`, `DistanceField` and `LocalShape` together for sets of 2 or 3 features, `SlicedWasserstein`
        for others. Those that are fitted already are used as they are, and so is a single `Whitened`.
    n_components : numbers of a vector: 1,024 at most, and 256 behind a network.
    n_slices : slices of the default embeddings (64), or those that are learnt behind a network (128).
    loss : "auto", "softmax" (labels only) or "contrastive"; "auto" is "softmax" for labels, "contrastive" for pairs.
    n_neighbors : of the network "points": the nearest elements that each element is seen with, itself among them; 1 is
        each by itself.
    epochs : how often all sets are gone through, at most; None is 60, 200 for a network, and more
        for small collections.
    batch_size : sets of a step; None is 256, and 64 for a network.
    learning_rate : the highest; it rises in the first tenth of the epochs, and then falls to zero. None is .001, and .1
        for the network "points".
    validation_fraction : the part of the labelled sets, of each class alike, or of the pairs, that is held back. The
        model is kept of the epoch up to which five epochs were best on it, on the mean.
    patience : epochs without a better model after which the fit ends; None is half of the epochs, and all of them
        for a network, which gains until its learning rate has fallen.
    augment : how sets are changed at random while it learns: "auto", None, some of the names "drop" (elements),
        "jitter" (coordinates), "scale" and "shift" (along each axis), "rotate" (by 30 degrees at most), "regions" (of
        other sets, with a part of their labels), or a function of torch tensors (points, offsets) that returns points.
        "auto" is all of them for sets of 2 or 3 features, and "drop" for others; "rotate" and "regions" are for the
        network "points" only, and "regions" from 400 epochs on. Without a network four changed copies of each set are
        embedded before it learns.
    learn_slices : without a network: whether slices and references of each `SlicedWasserstein` with linear slices are
        learnt, too, together with the head. "auto" does if there is no other embedding. It takes longer.
    device : "auto" (a GPU if torch has one), "cpu", "cuda", ...; only `fit` uses it.
    random_state : the seed of all that is drawn. The result has the same bits on one machine, for one version of torch
        and one number of threads, on the CPU.
    n_jobs : threads; -1 is all cores. The vectors of a fitted embedding do not depend on it.

    Attributes
    ----------
    views_ : the fitted embeddings whose vectors, side by side, the head takes: a `Whitened`, or those behind a network.
    network_ : the trained network, None without one.
    layers_ : the head, float32: weights (outputs, inputs) and bias (outputs,) of one layer after the other.
    classes_ : the labels that were learnt, in the order of their numbers; empty for pairs.
    history_ : a dict for each epoch: loss, held_loss and held_accuracy (NaN without any).
    n_epochs_, best_epoch_ : how many epochs there were, and which one's model was kept, from 0.
    n_samples_, n_labelled_ : how many sets it was fitted on, and how many of them had a label or were in a pair.

    >>> from slosh.learn import LearnedEmbedding
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(80) % 2
    >>> sets = [rng.normal(scale=1 + label, size=(50, 3)) for label in labels]
    >>> model = LearnedEmbedding(n_components=16, epochs=5).fit(sets, labels)
    >>> model.transform(sets).shape
    (80, 16)
    """

    network_: Any
    views_: list[SetTransformer]
    layers_: list[Float32]
    class_names_: list[Any]
    curves_: Float64
    best_epoch_: int
    n_samples_: int
    n_labelled_: int
    _head: Head | None = None

    def __init__(
        self,
        network: Any = None,
        embedding: Any = None,
        *,
        n_components: int = 128,
        n_slices: int | None = None,
        n_neighbors: int = 16,
        loss: str = "auto",
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        validation_fraction: float = 0.1,
        patience: int | None = None,
        augment: Any = "auto",
        learn_slices: bool | str = "auto",
        device: str = "auto",
        random_state: Any = 0,
        n_jobs: int | None = -1,
    ) -> None:
        self.network = network
        self.embedding = embedding
        self.n_components = n_components
        self.n_slices = n_slices
        self.n_neighbors = n_neighbors
        self.loss = loss
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.augment = augment
        self.learn_slices = learn_slices
        self.device = device
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(
        self, X: Any, y: Any = None, *, pairs: Any = None, checkpoint: str | os.PathLike[str] | None = None
    ) -> Self:
        """Learn from sets and labels, or from sets and pairs of them. It needs torch: the extra `torch`.

        X : anything that `Sets` takes.
        y : a label for each set, of two classes or more: strings, whole numbers, ... None, NaN and -1 stand for a set
            without a label; but -1 is a class if there is only one other.
        pairs : instead of labels, (m, 2) numbers of sets that are alike, or (m, 3) with 1 as the third where they are
            and 0 where they are not. A pair of unlike sets counts where one of them has a set that is like it.
        checkpoint : the path of a file that training is saved to, after epochs that are ten seconds apart or more. If
            `fit` is interrupted, it goes on from there when it is called again with the same data and parameters, and
            ends with the same result. The file of a fit that is done stays, and gives its result at once.

        An error or Ctrl-C leaves the embedding as it was before.
        """
        check_parameters(self)
        n_threads = kernel.threads(self.n_jobs)
        before = dict(self.__dict__)
        try:
            sets = self._start_fit(X)
            examples = _examples(y, pairs, len(sets), str(self.loss))
            _import_torch()
            from .fitting import fit_model

            learnt = fit_model(self, sets, examples, checkpoint, n_threads)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        self._head = None
        self.__dict__.update(learnt)
        self.n_samples_, self.n_labelled_ = len(sets), len(examples.rows)
        self.class_names_ = list(examples.names)
        return self

    # -- about it ------------------------------------------------------------------------------------------------------

    @property
    def classes_(self) -> Any:
        """The labels that were learnt, in the order in which they first occur."""
        self._check_fitted()
        kinds = {type(name) for name in self.class_names_}
        return np.array(self.class_names_, dtype=None if len(kinds) == 1 else object)

    @property
    def history_(self) -> list[dict[str, float]]:
        """A dict for each epoch: loss, held_loss and held_accuracy."""
        self._check_fitted()
        return [dict(zip(COLUMNS, row, strict=True)) for row in self.curves_.tolist()]

    @property
    def n_epochs_(self) -> int:
        """How many epochs there were."""
        self._check_fitted()
        return len(self.curves_)

    @property
    def needs_data(self) -> str | None:
        return "LearnedEmbedding learns from sets with labels"

    @property
    def needs_labels(self) -> bool:
        return True

    @property
    def takes_labels(self) -> bool:
        return True

    def check_dim(self, dim: int) -> None:
        given = self.embedding if isinstance(self.embedding, list | tuple) else [self.embedding]
        for view in given:
            if isinstance(view, SetTransformer):
                view.check_dim(dim)

    @property
    def distance_kind(self) -> str:
        return "learned"

    @property
    def learnt_from(self) -> dict[str, int] | None:
        return {"sets": self.n_samples_, "labelled": self.n_labelled_}

    @property
    def sliced_view(self) -> Any:
        if self.network_ is not None:  # its slices are of other elements
            return None
        return next((found for view in self.views_ if (found := view.sliced_view) is not None), None)

    def novelty(self, sets: Sets) -> float | None:
        """Return the part of these sets that are unlike those that it has learnt from, as its whitened views see it.

        None with a network, which has no such views.
        """
        return self.views_[0].novelty(sets) if self.network_ is None else None

    # -- the vectors ---------------------------------------------------------------------------------------------------

    @property
    def vector_length(self) -> int:
        return len(self.layers_[-1])

    @property
    def _n_features(self) -> int:
        return sum(view.vector_length for view in self.views_)

    def _batch_points(self) -> int:
        usual = super()._batch_points()
        if self.network_ is None:
            return usual
        if isinstance(self.network_, ModuleNetwork):
            return max(1 << 10, min(usual, BLOCK_NUMBERS // self.network_.n_outputs))
        return max(1 << 10, min(usual, kernel.threads(self.n_jobs) * CHUNKS * self._chunk_points()))

    def _chunk_points(self) -> int:
        """Return the elements that a thread works on at a time."""
        return max(1 << 9, CHUNK_NUMBERS // int(self.network_.n_outputs))

    @property
    def made_on(self) -> str:
        return next((name for view in self.views_ if (name := view.made_on) != "cpu"), "cpu")

    def run_on(self, device: str | None) -> None:
        """Let the embeddings below the head make their vectors there; the network and the head are of the CPU."""
        for view in self.views_:
            view.run_on(device)

    def apart(self, sets: Sets, vectors: Float32) -> None:
        """Return None: what a head makes of a small difference is not known."""

    def _transform(self, sets: Sets, out: Float32) -> None:
        if self._head is None:
            self._head = Head(self.layers_)
        if self.network_ is None or isinstance(self.network_, ModuleNetwork):
            step = max(1, BLOCK_NUMBERS // self._n_features)
            parts, threads = [slice(start, start + step) for start in range(0, len(sets), step)], 1
        else:  # some sets at a time, so that their elements stay in the cache from the network to the pools
            most = max(1, CHUNK_NUMBERS // self._n_features)
            parts = list(batches_by_points(sets.sizes, self._chunk_points(), most))
            threads = min(kernel.threads(self.n_jobs), len(parts))
        inside = self.n_jobs if threads == 1 else 1
        for view in self.views_:
            if hasattr(view, "n_jobs"):
                view.n_jobs = inside
        in_threads(partial(self._write, sets, out, inside), parts, threads)

    def _write(self, sets: Sets, out: Float32, n_jobs: int | None, rows: slice) -> None:
        """Write the vectors of some of the sets."""
        assert self._head is not None
        out[rows] = self._head(self._features(sets[rows], n_jobs), n_jobs)

    def _features(self, sets: Sets, n_jobs: int | None) -> Float32:
        network: ElementNetwork | None = self.network_
        seen = sets if network is None else network.apply(sets, n_jobs)
        features, at = np.empty((len(sets), self._n_features), np.float32), 0
        for view in self.views_:
            view.embed(seen, features[:, at : at + view.vector_length])
            at += view.vector_length
        return features

    # -- storing -------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without what is computed from it."""
        return {name: value for name, value in super().__getstate__().items() if name != "_head"}

    def check_state(self) -> None:
        """Refuse (ValueError) parts that `fit` could not have learnt together: those of a file of other people."""
        if isinstance(self.network_, ModuleNetwork):
            raise ValueError("a network of a user is never stored")
        seen = self.n_features_in_ if self.network_ is None else self.network_.n_outputs
        checks = {
            "views_": isinstance(self.views_, list)
            and 0 < len(self.views_) <= 16
            and all(isinstance(view, SetTransformer) and view.n_features_in_ == seen for view in self.views_),
            "class_names_": isinstance(self.class_names_, list)
            and all(isinstance(name, bool | int | float | str) for name in self.class_names_),
            "curves_": isinstance(self.curves_, np.ndarray)
            and self.curves_.dtype == np.float64
            and self.curves_.shape[1:] == (len(COLUMNS),),
            "numbers": all(
                type(value) is int and value >= 0 for value in (self.best_epoch_, self.n_samples_, self.n_labelled_)
            ),
        }
        if wrong := [name for name, good in checks.items() if not good]:
            raise ValueError(f"not as fit leaves it: {', '.join(wrong)}")
        if self.network_ is not None:
            self.network_.check_state(self.n_features_in_)
        check_layers(self.layers_, self._n_features, "the head")


def _examples(y: Any, pairs: Any, n: int, loss: str) -> Examples:
    """Return what to learn from: labels or pairs, and not both."""
    if (y is None) == (pairs is None):
        problem = "neither labels nor pairs were given" if y is None else "both labels and pairs were given"
        remedy = "give one of them, fit(sets, labels) or fit(sets, pairs=...)"
        if y is None:
            remedy += "; within another embedding give one that is fitted"
        raise InputError(problem, remedy, argument="y" if y is None else "pairs")
    if pairs is None:
        return labelled_examples(y, n)
    if loss == "softmax":
        remedy = 'give labels, or leave loss at "auto"'
        raise InputError('loss="softmax" tells classes apart, and pairs have none', remedy, argument="loss")
    return paired_examples(pairs, n)


def _import_torch() -> None:
    """Import torch with threads that sleep while they wait for each other.

    Those of OpenMP spin otherwise, and where other programs keep a core busy a fit takes many times as long. OpenMP
    reads the variable when it is loaded, with torch, and it is put back; if torch was imported before, nothing changes.
    """
    given = os.environ.get(WAIT_POLICY)
    os.environ.setdefault(WAIT_POLICY, "passive")
    try:
        import_extra("torch", "LearnedEmbedding.fit", "torch")
    finally:
        if given is None:
            os.environ.pop(WAIT_POLICY, None)
