"""The parameters of `LearnedEmbedding`, checked, and what "auto" stands for: nothing here needs torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..data.checks import checked_count, checked_number, kind_of
from ..data.sets import Sets
from ..embed import DistanceField, LocalShape, SlicedWasserstein
from ..embed.base import SetTransformer
from ..embed.distance_field import n_anchors_for
from ..errors import InputError, bad_value
from .networks import BUILT_IN
from .point_network import MAX_NEIGHBORS

LOSSES = ("auto", "softmax", "contrastive")
CHANGES = ("rotate", "scale", "shift", "jitter", "drop")
"""Of single sets."""
REGIONS, REGION_EPOCHS = "regions", 400
"""The change that puts regions of other sets into sets, and from how many epochs on "auto" has it: in a short fit less
is learnt with it, in a long one more (docs/learn.md)."""
AUTO_EPOCHS, FEWEST_STEPS = 60, 1000
"""Epochs at least, and steps of the optimiser, which small collections need more epochs for."""
AUTO_SLICES = 64
NETWORK_EPOCHS = 200
"""Epochs of a network, with which only those that are held back decide whether it was better before."""
BATCH_SIZES = (256, 64)
"""Sets of a step: of a head, and of a network."""
LEARNING_RATES = (1e-3, 0.1)
"""The highest learning rate: of AdamW, and of the steps with momentum of a built-in network."""
POINT_SLICES = 128
"""Learnt slices behind a network on elements."""
N_ANCHORS = 256


def check_parameters(model: Any) -> None:
    """Refuse (InputError) parameters of a `LearnedEmbedding` that cannot be meant."""
    network = model.network
    if isinstance(network, str) and network not in BUILT_IN:
        raise bad_value("network", network, f"give {', '.join(map(repr, BUILT_IN))}, a torch module, or None")
    if network is not None and not isinstance(network, str) and not _is_module(network):
        remedy = f"give {', '.join(map(repr, BUILT_IN))}, a torch module, or None"
        raise InputError(f"network is {kind_of(network)}", remedy, argument="network")
    if network is not None and model.embedding is not None:
        problem = "a network takes the place of an embedding, and both were given"
        raise InputError(problem, "leave network or embedding out", argument="embedding")
    if model.loss not in LOSSES:
        raise bad_value("loss", model.loss, f"give {', '.join(map(repr, LOSSES))}")
    for name in ("n_slices", "epochs", "patience"):
        if getattr(model, name) is not None:
            checked_count(name, getattr(model, name))
    if checked_count("n_components", model.n_components, 0) < 2:
        remedy = "give 2 or more: a vector of one number and unit length says only its sign"
        raise bad_value("n_components", model.n_components, remedy)
    if checked_count("n_neighbors", model.n_neighbors) > MAX_NEIGHBORS:
        raise bad_value("n_neighbors", model.n_neighbors, f"give {MAX_NEIGHBORS:,} at most")
    if model.batch_size is not None:
        checked_count("batch_size", model.batch_size, 2)
    if model.learning_rate is not None:
        checked_number("learning_rate", model.learning_rate, "a number above 0", above=0)
    fraction = model.validation_fraction
    if isinstance(fraction, bool) or not isinstance(fraction, int | float | np.number) or not 0 <= fraction <= 0.5:
        raise bad_value("validation_fraction", fraction, "give a number from 0 to 0.5")
    if not (isinstance(model.learn_slices, bool) or model.learn_slices == "auto"):
        raise bad_value("learn_slices", model.learn_slices, 'give True, False or "auto"')
    if model.learn_slices is True and network is not None:
        remedy = "leave learn_slices out: behind a network slices are always learnt"
        raise InputError("learn_slices is for embeddings without a network", remedy, argument="learn_slices")
    checked_changes(model, 2)
    if _names_regions(model) and model.network != "points":
        remedy = f'leave {REGIONS!r} out, or give network="points"'
        raise bad_value("augment", model.augment, remedy)


def _is_module(network: Any) -> bool:
    """Return whether it looks like an nn.Module, which is not asked, as torch may not be there."""
    return not isinstance(network, type) and callable(network) and callable(getattr(network, "state_dict", None))


def checked_changes(model: Any, dim: int) -> Any:
    """Return the names of changes of single sets, or the function, that `augment` means for sets of this dimension."""
    augment = model.augment
    if augment is None:
        return ()
    if isinstance(augment, str) and augment == "auto":
        if dim not in (2, 3):
            return ("drop",)  # units of other features are unknown
        return CHANGES if model.network == "points" else CHANGES[1:]  # views are learnt from as the sets stand
    if callable(augment):
        return augment
    names = (augment,) if isinstance(augment, str) else augment
    if not isinstance(names, Sequence) or not all(name in (*CHANGES, REGIONS) for name in names):
        known = ", ".join(map(repr, (*CHANGES, REGIONS)))
        raise bad_value("augment", augment, f'give "auto", None, a function, or names of {known}')
    if "rotate" in names and dim not in (2, 3):
        raise bad_value("augment", augment, f'leave "rotate" out: these sets have {dim} features, not 2 or 3')
    return tuple(name for name in names if name != REGIONS)


def _names_regions(model: Any) -> bool:
    augment = model.augment
    if isinstance(augment, str):
        return augment == REGIONS
    return isinstance(augment, Sequence) and REGIONS in augment


def puts_regions(model: Any, dim: int, epochs: int, by_classes: bool) -> bool:
    """Return whether sets get regions of others, and of their labels, while a model is fitted for so many epochs."""
    if _names_regions(model):
        if not by_classes:
            problem = f'augment has {REGIONS!r}, which mixes labels, and loss="contrastive" has none'
            raise InputError(problem, f"leave {REGIONS!r} out", argument="augment")
        return True
    automatic = isinstance(model.augment, str) and model.augment == "auto"
    return automatic and by_classes and model.network == "points" and dim in (2, 3) and epochs >= REGION_EPOCHS


def default_views(sets: Sets, n_slices: int | None, n_jobs: int | None) -> list[SetTransformer]:
    """Return what a head is put on if no embedding is given."""
    if sets.dim not in (2, 3):
        return [SlicedWasserstein(n_slices, n_jobs=n_jobs)]
    slices = AUTO_SLICES if n_slices is None else n_slices
    sliced = SlicedWasserstein(slices, n_jobs=n_jobs)
    local = LocalShape(SlicedWasserstein(slices, n_jobs=n_jobs), n_jobs=n_jobs)
    return [sliced, DistanceField(n_anchors_for(sets, N_ANCHORS), n_jobs=n_jobs), local]


class Schedule(NamedTuple):
    """How long and in which steps to train."""

    epochs: int
    patience: int
    batch_size: int
    learning_rate: float

    @classmethod
    def of(cls, model: Any, n_examples: int) -> Schedule:
        """Return what a `LearnedEmbedding` says, and where it says nothing, what suits its network and the examples."""
        is_network, is_built_in = model.network is not None, isinstance(model.network, str)
        batch_size = BATCH_SIZES[is_network] if model.batch_size is None else int(model.batch_size)
        rate = LEARNING_RATES[is_built_in] if model.learning_rate is None else float(model.learning_rate)
        steps = max(1, -(-n_examples // batch_size))
        usual = NETWORK_EPOCHS if is_network else AUTO_EPOCHS
        epochs = max(usual, -(-FEWEST_STEPS // steps)) if model.epochs is None else int(model.epochs)
        patience = max(5, epochs if is_network else epochs // 2) if model.patience is None else int(model.patience)
        return cls(epochs, patience, batch_size, rate)


def has_torch() -> bool:
    """Return whether torch is installed, without importing it."""
    return importlib.util.find_spec("torch") is not None
