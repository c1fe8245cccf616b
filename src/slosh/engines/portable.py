"""Fitted objects as plain data, for an index that lasts: a tree for JSON and a list of arrays, and back.

Only classes of slosh that are named here are written or made, and only from numbers, strings and arrays: nothing of
what is read is ever executed.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from .. import embed, hash, learn, search, slices
from ..data.checks import Array
from ..data.sets import Sets
from ..errors import InputError
from ..learn.networks import ModuleNetwork
from ..learn.point_network import PointNetwork

EMBEDDINGS = (
    embed.SlicedWasserstein,
    embed.GeM,
    embed.Covariance,
    embed.FSPool,
    embed.WassersteinEmbedding,
    embed.DistanceField,
    embed.LocalShape,
    embed.PartField,
    embed.Whitened,
    embed.MeanPool,
    embed.MaxPool,
    embed.SumPool,
    learn.LearnedEmbedding,
)
NETWORKS = (PointNetwork,)
SLICERS = (slices.Linear, slices.Polynomial, slices.Circular, slices.Neural)
SEARCHES = (search.ExactSearch, search.HammingSearch, search.LSHSearch, search.LadderSearch, search.FaissSearch)
CLASSES: dict[str, Any] = {
    kind.__name__: kind for kind in (*EMBEDDINGS, *NETWORKS, *SLICERS, hash.PStableHash, *SEARCHES)
}
MAX_DEPTH = 16


def dump(thing: Any, arrays: list[Array], where: str) -> Any:
    """Return `thing` as a tree for JSON, and append its arrays to `arrays`. `where` is what an error calls it."""
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if isinstance(thing, np.generic):
        return thing.item()
    if isinstance(thing, np.ndarray):
        if thing.dtype.kind not in "fiub":
            raise _cannot_store(where, f"an array of {thing.dtype}", "give an array of numbers")
        arrays.append(thing)
        return {"array": len(arrays) - 1}
    if isinstance(thing, list | tuple):
        return {"list": [dump(item, arrays, f"{where}[{i}]") for i, item in enumerate(thing)]}
    if isinstance(thing, Sets):
        parts = {name: getattr(thing, name) for name in ("points", "offsets", "weights", "origin")}
        return {"sets": {name: dump(part, arrays, f"{where}.{name}") for name, part in parts.items()}}
    if type(thing) is hash.SignHash:
        drawn = thing.get_state() if hasattr(thing, "n_features_in_") else {}
        parts = {"sign": thing.get_params(), "drawn": drawn}
        tree = {key: {k: dump(v, arrays, f"{where}.{k}") for k, v in part.items()} for key, part in parts.items()}
        return {**tree, "dim": getattr(thing, "n_features_in_", None)}
    name = type(thing).__name__
    if CLASSES.get(name) is type(thing):
        names = _attributes(thing) - _later(thing)
        inside = {key: value for key, value in vars(thing).items() if key in names}
        return {"class": name, "has": {key: dump(value, arrays, f"{where}.{key}") for key, value in inside.items()}}
    if isinstance(thing, ModuleNetwork) or callable(getattr(thing, "state_dict", None)):
        raise _cannot_store(
            where,
            "a network of your own, which another process could not make",
            'give a built-in one, network="points", or none; an index in memory takes networks of your own',
        )
    if isinstance(thing, slices.Function) or callable(thing):
        raise _cannot_store(
            where,
            "a Python function, which another process could not run",
            "give an array or a name in its place: slices may be directions (L, d); an index in memory takes functions",
        )
    if isinstance(thing, np.random.RandomState | np.random.Generator):
        raise _cannot_store(where, "a random generator", "give a whole number as the seed")
    raise _cannot_store(where, f"a {type(thing).__name__}", "give a class of slosh; an index in memory takes any")


def _cannot_store(where: str, what: str, remedy: str) -> InputError:
    return InputError(
        f"{where} cannot be stored in a file or a database: it is {what}", remedy, argument=where.partition(".")[0]
    )


def load(tree: Any, arrays: list[Array], depth: int = 0) -> Any:
    """Return what `dump` took apart; raise ValueError where it is something else."""
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if depth > MAX_DEPTH or not isinstance(tree, dict):
        raise ValueError("a stored object is not what slosh writes")
    if "array" in tree:
        number = tree["array"]
        if not isinstance(number, int) or not 0 <= number < len(arrays):
            raise ValueError("a stored object names an array that is not there")
        return arrays[number]
    if "list" in tree:
        return [load(item, arrays, depth + 1) for item in tree["list"]]
    if "sets" in tree:
        parts = {name: load(part, arrays, depth + 1) for name, part in tree["sets"].items()}
        sets = Sets(parts["points"], parts["offsets"], parts.get("weights"))
        return sets.with_origin(parts.get("origin"))
    if "sign" in tree:
        sign = hash.SignHash(**{name: load(part, arrays, depth + 1) for name, part in tree["sign"].items()})
        if tree["dim"] is not None:
            drawn = {name: load(part, arrays, depth + 1) for name, part in tree["drawn"].items()}
            sign.set_state(drawn, int(tree["dim"]))
        return sign
    kind = CLASSES.get(str(tree.get("class")))
    if kind is None:
        raise ValueError(f"a stored object is a {tree.get('class')!r:.40}, which this slosh does not know")
    made = kind.__new__(kind)
    has = {str(name): load(value, arrays, depth + 1) for name, value in tree["has"].items()}
    if unknown := set(has) - _attributes(made):
        raise ValueError(f"a stored {kind.__name__} has what it should not: {', '.join(sorted(unknown))}")
    vars(made).update(has)
    return made


def _later(thing: Any) -> set[str]:
    """Return parameters that are as they were before they existed: older versions of slosh do not know them.

    A parameter that came later has its default as an attribute of the class, too, which holds where none is stored.
    """
    kind = type(thing)
    return {name for name, value in vars(thing).items() if hasattr(kind, name) and value is getattr(kind, name)}


def _attributes(thing: Any) -> set[str]:
    """Return what is stored of an object: its parameters, what it has learnt, and nothing else."""
    kind = type(thing)
    names = set(inspect.signature(kind.__init__).parameters) - {"self"} - getattr(kind, "run_time", frozenset())
    if kind in SEARCHES or kind is hash.PStableHash:  # an index keeps what these learn besides
        return names
    learnt = {name for base in kind.__mro__ for name in vars(base).get("__annotations__", ()) if name.endswith("_")}
    return names | learnt
