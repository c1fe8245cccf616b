"""The specification of an index: everything that decides about its distances, fixed when it is created.

User data come in and become sets of the index; sets become what is stored and searched of them (`Embedded`). The
specification is stored as plain data, so that an index of other people can be opened without executing anything of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data import tensors
from ..data.checks import checked_origin, kind_of
from ..data.preprocess import Preprocess
from ..data.sets import Sets, as_sets, one_set
from ..embed import PartField, SlicedWasserstein, Wrapped
from ..embed.base import SetTransformer
from ..embed.part_field import Feature, checked_parts
from ..errors import DamagedError, InputError, MissingExtra, bad_value
from ..gpu.devices import CPU
from ..hash import SignHash
from ..native import kernel
from ..search import HammingSearch, LadderSearch, Search
from ..search.filing import LONGEST_PREFIX
from . import portable
from .learnt_checks import MAX_ORDER, check_learnt, device_of, fresh, order_of, own_copy

WHOLE = "whole"
"""The name of the space of whole sets, which every index has."""
PARTS = "parts"
"""The name of the space of part search, which an index has that was made for it."""
PARTS_PREFIX = 0.625
"""Directions of the prefixes of that space, as a part of the numbers of its vectors: memory is counted. With half as
many, four times as many vectors are compared, since queries are unlike the vectors that the directions are those of."""
KIND = "slosh specification"
MAX_THREADS = 4096
MAX_LENGTH = 1 << 22
"""Features of an element, and numbers of a vector, at most."""


class Vectors(NamedTuple):
    """Vectors of sets in one space: (n, D) float32, and how far rounding may have moved each, (n,) float64.

    The slack is None for queries that need no bounds, and in spaces that bound nothing.
    """

    numbers: NDArray[np.float32]
    slack: NDArray[np.float64] | None


class Embedded(NamedTuple):
    """What is made of sets: the sets as they are compared, and their vectors in each space.

    features : (n, ...) further numbers of each set by name, that bounds are computed from: see `IndexSpec.features`. An
        engine stores and fetches them, and does not look into them.
    """

    sets: Sets
    vectors: Mapping[str, Vectors]
    features: Mapping[str, NDArray[Any]]


def makers_after(makers: tuple[str, ...] | None, n_before: int, by: str) -> tuple[str, ...] | None:
    """Return what has made the vectors of an index when `by` has made some more; `n_before` are those that it had.

    None stands for the CPU alone, as for all indexes of versions that did not record it.
    """
    if makers is None:
        return None if by == CPU else (CPU, by) if n_before else (by,)
    return makers if by in makers else (*makers, by)


class Space(NamedTuple):
    """One kind of vectors that every stored set has, and the (empty) search that finds the nearest of them."""

    name: str
    length: int
    search: Search


@dataclass(frozen=True)
class IndexSpec:
    """Made by `make_spec`. `embedding` is fitted, `search` is empty."""

    dim: int
    embedding: SetTransformer
    search: Search
    preprocess: Preprocess
    origin: NDArray[np.float64] | None
    parts: PartField | None = None
    """Fitted; None where the index has no part search."""

    @cached_property
    def parts_fingerprint(self) -> int | None:
        """A number that tells what part search has learnt from anything else that was; None without part search."""
        return None if self.parts is None else self.parts.fingerprint

    @cached_property
    def spaces(self) -> Mapping[str, Space]:
        """The spaces by name; the first is that of whole sets."""
        whole = {WHOLE: Space(WHOLE, self.embedding.index_length, self.search)}
        if self.parts is None:
            return whole
        length = self.parts.vector_length
        n_directions = max(1, min(int(PARTS_PREFIX * length), LONGEST_PREFIX - 1))
        finder = LadderSearch(recall=1.0, n_components=n_directions, n_jobs=self.search.n_jobs)
        return {**whole, PARTS: Space(PARTS, length, finder)}

    @property
    def features(self) -> Mapping[str, Feature]:
        """What is stored of a set beside its vectors, by name: the shape of a row, and its type."""
        return {} if self.parts is None else self.parts.feature_shapes

    @property
    def stored_numbers(self) -> int:
        """How many numbers are made of a set, so that they can be made in batches."""
        return self.embedding.index_length + (0 if self.parts is None else 2 * self.parts.n_anchors_)

    @property
    def distance_kind(self) -> str:
        """What the distances of searches are called."""
        kind = self.search.distance_kind
        return self.embedding.distance_kind if kind == "embedded" else kind

    def sets(self, data: Any, weights: Any = None) -> Sets:
        """Return what a user passed as checked sets of this index."""
        if weights is not None:
            return Sets.from_list(data, weights, dim=self.dim, origin=self.origin)
        return as_sets(data, dim=self.dim, origin=self.origin)

    def one_set(self, data: Any) -> Sets:
        """Return one set that a user passed as checked sets of this index."""
        return one_set(data, dim=self.dim, origin=self.origin)

    def prepare(self, sets: Sets) -> Sets:
        """Return the sets as they are embedded and compared."""
        return sets if self.preprocess.is_identity else self.preprocess.apply(sets)

    def embed(self, sets: Sets) -> Embedded:
        """Return what is stored and searched of these sets."""
        prepared = self.prepare(sets)
        whole = {WHOLE: self.vectors(prepared)}
        if self.parts is None:
            return Embedded(prepared, whole, {})
        numbers, features = self.parts.stored(prepared)
        return Embedded(prepared, {**whole, PARTS: Vectors(numbers, None)}, features)

    def apart(self, embedded: Embedded) -> NDArray[np.float64] | None:
        """Return how far the vectors of whole sets that another device has made of the same sets may be from these,
        (n,); None if that is not known.
        """
        return self.embedding.apart(embedded.sets, embedded.vectors[WHOLE].numbers)

    def vectors(self, prepared: Sets, *, slack: bool = True) -> Vectors:
        """Return the vectors of prepared sets, as queries and as stored sets have them."""
        return Vectors(*self.embedding.index_vectors(prepared, slack=slack))

    @property
    def device(self) -> str | None:
        """The device that its vectors are made on in this process; None is the CPU."""
        return device_of(self.embedding)

    @property
    def made_on(self) -> str:
        """What makes its vectors in this process: "cpu", or what the GPU is called."""
        return self.embedding.made_on

    def run_by(self, n_jobs: int | None, device: str | None = None) -> IndexSpec:
        """Set the threads of embedding and search, as those of whoever made the index were for another machine; and the
        device, unless that is None.
        """
        if device is not None:
            self.embedding.run_on(device)
            if "device" in self.search.run_time:
                self.search.set_params(device=device)
        if hasattr(self.embedding, "n_jobs"):
            self.embedding.n_jobs = n_jobs
        if self.parts is not None:
            self.parts.n_jobs = n_jobs
        for space in self.spaces.values():
            space.search.n_jobs = n_jobs
        return self

    def retrained(self, sample: Sets | None, labels: Any = None, embedding: SetTransformer | None = None) -> IndexSpec:
        """Return the specification with what its parts learn learnt from other sets, which are prepared.

        `embedding`, which `checked_embedding` made, takes the place of the one it has; one that is fitted stays as it
        is, and so does what parts are found by. Without a sample only what needs no data can be fitted.
        """
        parts = self.parts
        if parts is not None and embedding is None and sample is not None:
            parts = fresh(parts).fit(sample)
        chosen = embedding
        if chosen is None:
            chosen = fresh(self.embedding) if self.embedding.learns or parts is None else self.embedding
        if not is_fitted(chosen):
            chosen = _fit(chosen, sample, self.dim, self.origin, labels)
        search = self.search
        if isinstance(search, HammingSearch) and search.hash is not None:
            search = _with_fitted_hash(HammingSearch(fresh(search.hash), rerank=search.rerank), chosen, sample)
        made = IndexSpec(self.dim, chosen, fresh(search), self.preprocess, self.origin, parts)
        made.check_sizes()
        made.search.check_dim(chosen.index_length)
        return made

    def with_parts(self, parts: PartField, sample: Sets | None) -> IndexSpec:
        """Return the specification with part search, whose anchors are learnt from prepared sets, and nothing else
        changed.
        """
        fitted = _fitted_parts(parts, sample, self.dim, self.origin)
        return replace(self, search=fresh(self.search), parts=fitted)

    def checked_embedding(self, embedding: Any) -> SetTransformer:
        """Return an embedding that a user gave for the sets of this index."""
        if embedding is None:
            raise bad_value("embedding", embedding, "give an embedding of slosh.embed")
        checked = _checked_embedding(embedding, self.dim, -1)
        _check_origin(checked, self.origin)
        return checked

    def describe(self) -> dict[str, Any]:
        """Return the specification for people to read."""
        return {
            "dim": self.dim,
            "embedding": repr(self.embedding),
            "vector_length": int(self.embedding.vector_length),
            "distance_kind": self.distance_kind,
            "learnt_from": self.embedding.learnt_from,
            "search": repr(self.search),
            "preprocess": repr(self.preprocess),
            "origin": None if self.origin is None else self.origin.tolist(),
            "parts": None if self.parts is None else {"field": repr(self.parts), "n_anchors": self.parts.n_anchors_},
        }

    def to_parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the specification as plain data, a header and arrays; InputError says what cannot be stored."""
        arrays: list[NDArray[Any]] = []
        names = ("dim", "embedding", "search", "origin") + (() if self.parts is None else ("parts",))
        parts = {name: getattr(self, name) for name in names}
        tree = {name: portable.dump(part, arrays, name) for name, part in parts.items()}
        header = {"parts": tree, "preprocess": self.preprocess.to_dict()}
        return header, {str(i): array for i, array in enumerate(arrays)}

    def pack(self) -> bytes:
        """Return the specification as plain data; InputError says what cannot be stored."""
        return tensors.pack(KIND, *self.to_parts())

    @classmethod
    def unpack(cls, content: bytes, location: str) -> IndexSpec:
        """Return what `pack` packed; DamagedError or FormatError for anything else."""
        header, arrays = tensors.unpack(content, KIND, f"the specification in {location}")
        return cls.from_parts(header.get("parts"), header.get("preprocess"), arrays, location)

    @classmethod
    def from_parts(cls, tree: Any, preprocess: Any, arrays: Mapping[str, Any], location: str) -> IndexSpec:
        """Return a specification from its stored parts, which may be of other people."""
        try:
            listed = [arrays[str(i)] for i in range(len(arrays))]
            parts = {key: portable.load(part, listed) for key, part in tree.items()}
            made = cls(**parts, preprocess=Preprocess.from_dict(preprocess))
            made._check()
            return made
        except (MemoryError, MissingExtra):  # of this machine, not of what is stored
            raise
        except Exception as error:  # whatever it is that others have put together
            raise DamagedError(
                f"{location} is damaged, or was not made by slosh ({error!r:.200})",
                "restore it from a copy",
                location=location,
            ) from None

    def check_sizes(self) -> None:
        """Refuse sizes (InputError) that nobody can mean, before they cost memory and time."""
        length, order = self.embedding.vector_length, order_of(self.embedding)
        if not 0 < self.dim <= MAX_LENGTH:
            raise bad_value("dim", self.dim, f"give 1 to {MAX_LENGTH:,}")
        if not 0 < length <= MAX_LENGTH or order > MAX_ORDER:
            raise InputError(
                f"the embedding makes vectors of {length:,} numbers",
                f"let it make {MAX_LENGTH:,} at most; orders of GeM go to {MAX_ORDER:,}",
                argument="embedding",
            )

    def _check(self) -> None:
        """Refuse what could not have been fitted; it is tried with a small set, so that no later one meets it."""
        embedding, length = self.embedding, self.embedding.vector_length
        checks = {
            "an embedding": isinstance(embedding, SetTransformer) and not isinstance(embedding, PartField),
            "a search": isinstance(self.search, Search),
            "dim": type(self.dim) is int and embedding.n_features_in_ == self.dim,
            "origin": self.origin is None or (self.origin.shape == (self.dim,) and self.origin.dtype == np.float64),
            "the embedding's origin": _same_origin(embedding.origin_, self.origin),
            "no path": getattr(self.search, "path", None) is None,
            "vectors": type(length) is int,
            "threads": all(kernel.threads(getattr(x, "n_jobs", 1)) <= MAX_THREADS for x in (embedding, self.search)),
        }
        if wrong := [name for name, good in checks.items() if not good]:
            raise ValueError(f"not as it should be: {', '.join(wrong)}")
        self.check_sizes()
        check_learnt(embedding, self.dim)
        hash_ = self.search.hash if isinstance(self.search, HammingSearch) else None
        if hash_ is not None and getattr(hash_, "n_features_in_", None) != embedding.index_length:
            raise ValueError("a hash of vectors of another length")
        two = Sets.from_checked(np.eye(3, self.dim, dtype=np.float32), np.array([0, 1, 3]), None, self.origin)
        with np.errstate(all="ignore"):
            vectors = embedding.embed(self.prepare(two))
        if vectors.shape != (2, length) or not np.isfinite(vectors).all():
            raise ValueError("its vectors are not numbers")
        if self.parts is not None:
            self._check_parts(self.parts, self.prepare(two))
        self.search.check_params()
        self.search.check_dim(embedding.index_length)
        repr(embedding), repr(self.search)

    def _check_parts(self, parts: PartField, sets: Sets) -> None:
        if not isinstance(parts, PartField) or parts.n_features_in_ != self.dim:
            raise ValueError("a part field of another dimension")
        if not _same_origin(parts.origin_, self.origin) or kernel.threads(parts.n_jobs) > MAX_THREADS:
            raise ValueError("a part field of another origin, or for too many threads")
        parts.check_state()
        with np.errstate(all="ignore"):
            vectors, _ = parts.stored(sets)
            asked = parts.queries(sets)
        if not (np.isfinite(vectors).all() and np.isfinite(asked.vectors).all()):
            raise ValueError("its vectors for parts are not numbers")
        repr(parts)


def make_spec(
    dim: int,
    embedding: Any = None,
    search: Any = None,
    preprocess: Preprocess | None = None,
    origin: Any = None,
    sample: Any = None,
    n_jobs: int | None = -1,
    parts: Any = None,
) -> IndexSpec:
    """Check the parts of a specification, and fit what is not fitted, on `sample` where data are needed."""
    chosen, finder = _checked_embedding(embedding, dim, n_jobs), _checked_search(search, n_jobs)
    field_of_parts = checked_parts(parts)
    steps = Preprocess() if preprocess is None else preprocess
    if not isinstance(steps, Preprocess):
        raise InputError(f"preprocess={steps!r:.60}", "give a slosh.Preprocess, or None", argument="preprocess")
    if isinstance(origin, str) and origin == "auto" and sample is None:
        raise _needs_sample('origin="auto" is the median of the data', "origin")
    sets = None if sample is None else as_sets(sample, dim=dim, origin=origin)
    if sets is not None and not len(sets):
        raise InputError("sample is empty", "give some of the sets, or leave it out", argument="sample")
    shift = None if origin is None else checked_origin(origin, dim) if sets is None else sets.origin
    _check_origin(chosen, shift)
    hashes = isinstance(finder, HammingSearch) and not hasattr(finder.hash, "n_features_in_")
    learns_parts = field_of_parts is not None and not is_fitted(field_of_parts)
    is_learnt_from = steps.needs_sample or hashes or isinstance(origin, str) or learns_parts
    if steps.needs_sample:
        if sets is None:
            raise _needs_sample("standardize=True learns mean and deviation from data", "preprocess")
        steps = steps.fit(sets)
    steps.check_dim(dim)
    ready = None if sets is None else steps.apply(sets)
    if is_fitted(chosen) and chosen.learns and sets is not None and not is_learnt_from:
        problem, remedy = "embedding is fitted and stays as it is", "give one that is not, or leave sample out"
        raise InputError(problem, remedy, argument="sample")
    if not is_fitted(chosen):
        chosen = _fit(chosen, ready, dim, shift)
    if isinstance(finder, HammingSearch):
        finder = _with_fitted_hash(finder, chosen, ready)
    if field_of_parts is not None:
        field_of_parts = _fitted_parts(field_of_parts, ready, dim, shift)
    made = IndexSpec(dim, chosen, fresh(finder), steps, shift, field_of_parts)
    made.check_sizes()
    made.search.check_params()
    made.search.check_dim(made.embedding.index_length)
    return made


def _checked_embedding(embedding: Any, dim: int, n_jobs: int | None) -> SetTransformer:
    if embedding is None:
        return SlicedWasserstein(n_jobs=n_jobs)
    if isinstance(embedding, list | tuple):
        problem, remedy = f"embedding is {kind_of(embedding)}", "wrap them: embedding=Whitened([a, b])"
        raise InputError(problem, remedy, argument="embedding")
    if not isinstance(embedding, SetTransformer):
        if isinstance(embedding, type) or not (hasattr(embedding, "fit") and hasattr(embedding, "transform")):
            raise InputError(
                f"embedding={embedding!r:.60}",
                "give an embedding of slosh.embed, a transformer over sets, or None",
                argument="embedding",
            )
        embedding = Wrapped(embedding)
    found = getattr(embedding, "n_features_in_", dim)
    if found != dim:
        raise InputError(
            f"embedding was fitted on sets of dimension {found}, and dim={dim}",
            "fit it on sets of this index, or give one that is not fitted",
            argument="embedding",
        )
    if isinstance(embedding, PartField):
        problem, remedy = "PartField is no embedding of whole sets", "give it as parts=, beside another embedding"
        raise InputError(problem, remedy, argument="embedding")
    checked: SetTransformer = embedding
    checked.check_dim(dim)
    return own_copy(checked) if is_fitted(checked) else checked


def _checked_search(search: Any, n_jobs: int | None) -> Search:
    if search is None:
        return LadderSearch(n_jobs=n_jobs)
    if not isinstance(search, Search):
        raise InputError(
            f"search={search!r:.60}", "give a search of slosh.search, e.g. ExactSearch(), or None", argument="search"
        )
    if len(search):
        raise InputError(
            f"search holds {len(search)} rows already",
            "give an empty one: it is filled from the sets",
            argument="search",
        )
    if getattr(search, "path", None) is not None:
        raise InputError(
            "search has a path of its own", "leave it out: an index on disk keeps the vectors there", argument="search"
        )
    return search


def is_fitted(embedding: SetTransformer) -> bool:
    """Return whether an embedding knows the dimension of its sets, and what it learns from data."""
    return hasattr(embedding, "n_features_in_")


def _check_origin(embedding: SetTransformer, origin: Any) -> None:
    if is_fitted(embedding) and not _same_origin(embedding.origin_, origin):
        raise InputError(
            f"embedding was fitted with origin={embedding.origin_!r:.60}",
            "give the same origin to the index",
            argument="origin",
        )


def _fit(embedding: SetTransformer, sample: Sets | None, dim: int, origin: Any, labels: Any = None) -> SetTransformer:
    if labels is None and embedding.needs_labels:
        problem = f"{type(embedding).__name__} learns from labels, and there are none"
        remedy = (
            "fit it before, with fit(sets, labels), or name the field of the metadata that holds them: "
            "index.retrain(embedding=..., label=...)"
        )
        raise InputError(problem, remedy, argument="embedding")
    if sample is None and embedding.needs_data is not None:
        raise _needs_sample(embedding.needs_data, "embedding")
    blank = Sets.from_checked(np.zeros((1, dim), np.float32), np.array([0, 1]), None, origin)
    fitted: SetTransformer = fresh(embedding).fit(blank if sample is None else sample, labels)
    return fitted


def _fitted_parts(parts: PartField, sample: Sets | None, dim: int, origin: Any) -> PartField:
    """Return what parts are found by, learnt from prepared sets; one that is fitted stays as it is."""
    if not is_fitted(parts):
        if sample is None:
            remedy = (
                "pass some of your sets as sample=, a few hundred or thousand, which are not added; or add your sets "
                'first, and then call index.enable("parts")'
            )
            raise InputError("part search learns its anchors from data", remedy, argument="parts")
        made: PartField = fresh(parts).fit(sample)
        return made
    if parts.n_features_in_ != dim:
        raise InputError(
            f"parts was fitted on sets of dimension {parts.n_features_in_}, and dim={dim}",
            "fit it on sets of this index, or give one that is not fitted",
            argument="parts",
        )
    if not _same_origin(parts.origin_, origin):
        problem = f"parts was fitted with origin={parts.origin_!r:.60}"
        raise InputError(problem, "give the same origin to the index", argument="origin")
    copied: PartField = own_copy(parts)
    return copied


def _with_fitted_hash(search: HammingSearch, embedding: SetTransformer, sample: Sets | None) -> HammingSearch:
    """Fit the hash now, so that codes never depend on what is added first."""
    given = SignHash() if search.hash is None else search.hash
    if not hasattr(given, "n_features_in_"):
        if sample is None and given.center is not None:
            raise _needs_sample(f"SignHash(center={given.center!r}) learns it from data", "search")
        sets = Sets.from_list([np.zeros((1, embedding.n_features_in_))]) if sample is None else sample
        given = fresh(given).fit(embedding.index_vectors(sets.with_origin(embedding.origin_))[0])
    return HammingSearch(given, rerank=search.rerank, n_jobs=search.n_jobs)


def _same_origin(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.array_equal(a, b))


def _needs_sample(why: str, argument: str) -> InputError:
    return InputError(
        why, "pass some of your sets as sample=, a few hundred or thousand; they are not added", argument=argument
    )
