"""The parameters of `Whitened`, checked: what a user passed comes in, what can be worked with goes out, or an error."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np

from ..data.checks import checked_count, kind_of
from ..errors import InputError, bad_value
from .base import SetTransformer
from .sliced_wasserstein import SlicedWasserstein
from .wrapped import Wrapped


def checked_views(embedding: Any) -> list[SetTransformer]:
    """Return the embeddings to whiten; None is `SlicedWasserstein()`."""
    given = SlicedWasserstein() if embedding is None else embedding
    views = list(given) if isinstance(given, list | tuple) else [given]
    if not views:
        raise bad_value("embedding", embedding, "give an embedding, or a list of one at least")
    for one in views:
        if isinstance(one, type) or not (hasattr(one, "fit") and hasattr(one, "transform")):
            problem = f"embedding is {kind_of(one)}" if one is given else f"embedding holds {kind_of(one)}"
            remedy = "give an embedding such as slosh.embed.SlicedWasserstein(), or a list of them"
            raise InputError(problem, remedy, argument="embedding")
    return [one if isinstance(one, SetTransformer) else Wrapped(one) for one in views]


def check_numbers(n_components: Any, normalize: Any, max_samples: Any) -> None:
    """Refuse what is no number of components or samples, and no flag."""
    is_count = isinstance(n_components, Integral) and not isinstance(n_components, bool) and int(n_components) > 0
    if not (is_count or (isinstance(n_components, str) and n_components == "auto")):
        raise bad_value("n_components", n_components, 'give a whole number, 1 or more, or "auto"')
    if not (normalize == "auto" if isinstance(normalize, str) else isinstance(normalize, bool | np.bool_)):
        raise bad_value("normalize", normalize, 'give True, False, or "auto"')
    checked_count("max_samples", max_samples)


def checked_power(power: Any) -> float | None:
    """Return the power; None for "auto"."""
    if isinstance(power, str) and power == "auto":
        return None
    if not isinstance(power, Real) or isinstance(power, bool) or not 0 <= float(power) <= 0.5:
        remedy = 'give a number from 0 (no direction is changed) to 0.5 (all count alike), or "auto"'
        raise bad_value("power", power, remedy)
    return float(power)


def why_labels_do_not_count(n: int, least: int, fewest_different: int) -> str:
    """Say why labels of n sets did not count: so many must differ (0: they do), or so many are needed (0: they are)."""
    if fewest_different:
        return f"the labels do not count: all sets are the same, or copies of fewer than {fewest_different}"
    if least:
        once = "" if n < least else ", as copies count once"
        few = f"the labels do not count: {n} sets are too few to learn from them{once}"
        return f"{few}; give {least} or more, or n_components, or leave the labels out"
    return "the labels do not count: those of the sets that were learnt from tell no classes apart"
