"""What a job embeds by: a specification that is given, or learnt once from a sample of the source and kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from ..data import tensors
from ..data.checks import checked_count, checked_seed
from ..data.preprocess import Preprocess
from ..data.sets import Sets
from ..embed.base import DeviceTransformer, SetTransformer
from ..engines.spec import KIND, IndexSpec, is_fitted, make_spec
from ..errors import InputError, ReaderError
from ..index import SetIndex
from ..search import HammingSearch
from .ledger import keep_spec, kept_spec
from .sources import Piece, checked_reading, find_pieces, read_batches

SAMPLE_SETS = 20_000
SAMPLE_NUMBERS = 1 << 26
"""Numbers of the points of a sample at most, 256 MB."""
SAMPLE_PIECES = 64
"""A sample is taken from so many pieces of the source, chosen at random."""


def learn(
    source: Any,
    embedding: Any = None,
    *,
    search: Any = None,
    preprocess: Preprocess | None = None,
    origin: Any = None,
    parts: Any = False,
    n_sample: int = SAMPLE_SETS,
    random_state: int = 0,
    **reading: Any,
) -> IndexSpec:
    """Return a specification of indexes, with what it learns from data learnt from a sample of the source.

    source : files, as `slosh.readers.read` takes them, and its options (`columns`, `weights`, `id_column`, ...).
    embedding, search, preprocess, origin, parts : as in `SetIndex.create`.
    n_sample : how many sets are read to learn from, at most; they come from 64 places of the source, chosen by
        `random_state`. If nothing is learnt from data, one batch is read, for the dimension.

    It is a value that can be pickled. `slosh.batch.embed` and `build` take it, so that all that is embedded by it can
    be compared.
    """
    options = checked_reading(reading)
    return learn_from(
        find_pieces(source, options),
        options,
        embedding,
        search=search,
        preprocess=preprocess,
        origin=origin,
        parts=parts,
        n_sample=n_sample,
        random_state=random_state,
    )


def learn_from(
    pieces: list[Piece],
    options: Mapping[str, Any],
    embedding: Any = None,
    *,
    n_sample: int = SAMPLE_SETS,
    random_state: int = 0,
    **others: Any,
) -> IndexSpec:
    """Return the specification that is learnt from pieces of a source; `others` are parts of `make_spec`."""
    checked_count("n_sample", n_sample)
    needed = _learns(embedding, **others)
    sample = _sample(pieces, options, n_sample if needed else 1, checked_seed(random_state), others.get("origin"))
    if isinstance(others.get("origin"), str):
        others["origin"] = sample.origin
    return make_spec(sample.dim, embedding, sample=sample if needed else None, **others)


def _learns(embedding: Any, search: Any = None, preprocess: Any = None, origin: Any = None, parts: Any = None) -> bool:
    fitted = embedding is None or (isinstance(embedding, SetTransformer) and is_fitted(embedding))
    others = (
        isinstance(preprocess, Preprocess) and preprocess.needs_sample,
        isinstance(origin, str),
        parts is True or (isinstance(parts, SetTransformer) and not is_fitted(parts)),
        isinstance(search, HammingSearch) and not hasattr(search.hash, "n_features_in_"),
    )
    return (not fitted and bool(getattr(embedding, "learns", True))) or any(others)


def _sample(pieces: list[Piece], options: Mapping[str, Any], n: int, seed: int, origin: Any) -> Sets:
    """Return some sets of pieces that are chosen at random: as many of each, in the order of the source.

    `origin="auto"` is the median of the first batch of them.
    """
    order = np.random.RandomState(seed).permutation(len(pieces))
    rows = sum(piece.n_rows or 0 for piece in pieces)
    places = max(1, min(SAMPLE_PIECES, len(pieces), n))
    if rows:  # enough pieces for the sample, if they are small
        places = min(len(pieces), max(places, -(-n * len(pieces) // rows)))
    of_each, taken = -(-n // places), []
    for number in sorted(order[:places].tolist()):
        found = _first_sets(pieces[number], options, of_each, SAMPLE_NUMBERS // places, origin)
        if found is not None:
            taken.append(found)
            origin = found.origin
    if not taken:
        at = pieces[0].path if pieces else "the source"
        raise ReaderError(f"{at}: there are no sets to learn from", "give files that have sets", location=at)
    if len({sets.weights is None for sets in taken}) == 2:
        taken = [Sets.from_checked(x.points, x.offsets, None, x.origin) for x in taken]
    return Sets.concat(taken)


def _first_sets(piece: Piece, options: Mapping[str, Any], n: int, n_numbers: int, origin: Any) -> Sets | None:
    taken: list[Sets] = []
    left = n
    for batch in read_batches(piece, options, origin=origin):
        fitting = int(np.searchsorted(batch.sets.offsets, n_numbers // batch.sets.dim, side="right")) - 1
        taken.append(batch.sets[: max(1, min(left, fitting))])
        left -= len(taken[-1])
        n_numbers -= taken[-1].points.size
        if left <= 0 or n_numbers <= 0 or isinstance(origin, str):
            break
    return Sets.concat(taken) if taken else None


def fingerprint(spec: IndexSpec) -> str:
    """Return a text that tells a specification from any other; the number of threads does not matter."""
    header, arrays = tensors.unpack(deepcopy(spec).run_by(1).pack(), KIND, "a specification")
    digest = sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays, key=int):
        digest.update(f"{arrays[name].dtype.str} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()[:32]


def as_spec(given: Any) -> IndexSpec | None:
    """Return what a user gave as a specification; None if it is to be learnt first."""
    if isinstance(given, SetIndex):
        given = given.spec
    if given is None or isinstance(given, IndexSpec):
        return given
    if not isinstance(given, SetTransformer):
        remedy = "give an embedding, what slosh.batch.learn returned, index.spec, or None"
        raise InputError(f"spec={given!r:.60}", remedy, argument="spec")
    return make_spec(given.n_features_in_, given, origin=given.origin_) if is_fitted(given) else None


def spec_settings(given: Any) -> str:
    """Return what the ledger of a job says about the specification that was asked for."""
    made = as_spec(given)
    if made is not None:
        return f"given: {fingerprint(made)}"
    return f"learnt: {'default' if given is None else repr(_wherever_it_runs(given))}"


def _wherever_it_runs(embedding: SetTransformer) -> SetTransformer:
    """Return a copy with n_jobs=1 and no device, in all its parts: where it runs does not decide about results."""
    made = deepcopy(embedding)
    params = made.get_params()
    for name in params:
        owner, _, last = name.rpartition("__")
        if last == "n_jobs":
            made.set_params(**{name: 1})
        elif last in getattr(params[owner] if owner else made, "run_time", ()):
            made.set_params(**{name: None})
    return made


def settled_spec(folder: Path, given: Any, pieces: list[Piece], options: Mapping[str, Any]) -> IndexSpec:
    """Return the specification of a job: the one that it began with; or the one given, or learnt, which is kept."""
    found, made = kept_spec(folder), as_spec(given)
    if found is None:
        found = keep_spec(folder, learn_from(pieces, options, given) if made is None else made)
    if (device := asked_device(given, made)) is not None:  # which is not kept
        found.embedding.run_on(device)
    return found


def asked_device(given: Any, made: IndexSpec | None) -> str | None:
    """Return the device of what a user gave as a specification; `made` is what `as_spec` returned for it."""
    if made is not None:
        return made.device
    return given.device if isinstance(given, DeviceTransformer) else None
