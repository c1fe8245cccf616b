"""Options that say what an index is made of: how sets are prepared, how they become vectors, how those are searched.

Options become arguments of `SetIndex.create` and `SetIndex.retrain`, and an embedding becomes options again, for the
command that the user is told.
"""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from typer import Option

import slosh

from ..errors import DamagedError, SourceNotFound
from . import options
from .messages import CommandError, UsageError

QUANTILES = 16
"""What embeddings have by default."""

_flag = functools.partial(Option, rich_help_panel="What the index is made of (cannot be changed later)")
_name = functools.partial(_flag, metavar="NAME")
_step = functools.partial(Option, rich_help_panel="What is done to each set before it is embedded")
_view = functools.partial(Option, rich_help_panel="How sets become vectors (slosh retrain changes it)")
ALIGN = "Turn each set into its principal axes (pca), for shapes in any pose."
SCALES = "Divide each set by its largest norm (unit), or by the root mean square of its norms (rms)."
ORIGIN = "Subtract this point from all coordinates, for example if they lie far from zero."
EMBEDDINGS = (
    "sliced (default), local, field:256, gem:2, cov, fspool, wasserstein, mean, max or sum. With --whiten, several "
    "joined by +, as in sliced+field. Or a file that slosh train wrote."
)
FILE_SUFFIX = ".slosh-embedding"
"""How files of embeddings are called; a name with a folder in it is one, too."""
SEARCHES = "How vectors are searched: ladder, exact, hamming, lsh, or faiss (faiss:HNSW32 names one of its indexes)."
WHITEN = "Learn from the stored sets which differences of the vectors tell sets apart."
POWER = "With --whiten, from 0, which only leaves directions out, to 0.5, which makes all count alike (default: 0.35)."
LABEL = (
    "The metadata key that holds the label. Embeddings are compared by it, and the best is taken. With --whiten, the "
    "embedding that you name learns from the labels instead."
)


@dataclass(frozen=True)
class Preparation:
    """What is done to each set before it is embedded."""

    center: Annotated[bool, _step("--center", help="Move the mean of each set to zero.")] = False
    align: Annotated[str | None, _step(metavar="pca", help=ALIGN)] = None
    scale: Annotated[str | None, _step(metavar="unit|rms", help=SCALES)] = None
    standardize: Annotated[bool, _step("--standardize", help="Scale each feature to mean 0 and variance 1.")] = False
    max_points: Annotated[
        int | None, _step(metavar="N", min=1, help="Use at most this many randomly chosen points per set.")
    ] = None

    def preprocess(self, seed: int) -> Any:
        """Return the `slosh.Preprocess`."""
        return slosh.Preprocess(**vars(self), random_state=seed)

    def as_options(self) -> list[str]:
        """Return the options that were given."""
        return options.as_options(self)


@dataclass(frozen=True)
class EmbeddingOptions:
    """How sets become vectors."""

    embedding: Annotated[str | None, _view(metavar="NAME", help=EMBEDDINGS)] = None
    whiten: Annotated[bool, _view("--whiten", help=WHITEN)] = False
    label: Annotated[str | None, _view(metavar="KEY", help=LABEL)] = None
    power: Annotated[float | None, _view(metavar="NUMBER", min=0, max=0.5, help=POWER)] = None
    slices: Annotated[int | None, _view(metavar="N", min=1, help="Number of directions of the sliced embedding.")] = (
        None
    )
    quantiles: Annotated[int | None, _view(metavar="N", min=1, help="Number of quantiles per direction.")] = None

    @property
    def is_named(self) -> bool:
        """Whether the user says which embedding to use."""
        return self.embedding is not None or self.whiten

    @property
    def is_file(self) -> bool:
        """Whether the embedding is one that was fitted before, in a file."""
        name = self.embedding
        if name is None:
            return False
        if name.endswith(FILE_SUFFIX) or "/" in name:
            return True
        known = self._known(0)
        return os.path.isfile(name) and any(part.partition(":")[0] not in known for part in self._parts())

    def load(self) -> tuple[Any, Any]:
        """Return the embedding of a file, and what is to be done to sets before it."""
        others = {"--whiten": self.whiten, "--label": self.label, "--power": self.power}
        others |= {"--slices": self.slices, "--quantiles": self.quantiles}
        if given := [name for name, value in others.items() if value not in (None, False)]:
            raise UsageError(f"--embedding {self.embedding} is learnt already: leave {given[0]} out")
        try:
            return slosh.load_embedding(self.embedding or "", with_preprocess=True)
        except SourceNotFound as error:
            raise CommandError(f"{error.problem}: give one that slosh train or slosh.save_embedding wrote") from None
        except DamagedError as error:
            raise CommandError(f"{error.problem}: restore it from a copy, or make it again with slosh train") from None

    @property
    def names(self) -> list[str]:
        """The names of embeddings that can be given."""
        return list(self._known(0))

    @property
    def is_chosen(self) -> bool:
        """Whether the labels are to say which embedding to use."""
        return self.label is not None and not self.is_named

    def make(self, seed: int) -> Any:
        """Return the embedding, which is not fitted unless it is that of a file."""
        if self.is_file:
            return self.load()[0]
        self._check()
        known = self._known(seed)
        parts = []
        for part in self._parts():
            kind, _, number = part.partition(":")
            parts.append(options.choose("--embedding", kind, known)(int(number)) if number else known[kind]())
        if not self.whiten:
            return parts[0]
        power: Any = {} if self.power is None else {"power": self.power}
        return slosh.embed.Whitened(parts if len(parts) > 1 else parts[0], random_state=seed, **power)

    def _parts(self) -> list[str]:
        return [part.strip() for part in (self.embedding or "sliced").lower().split("+")]

    def _check(self) -> None:
        """Refuse what does not go together."""
        parts, known = self._parts(), self._known(0)
        given = f"--embedding {self.embedding}"
        for part in parts:
            kind, colon, number = part.partition(":")
            options.choose("--embedding", kind, known)
            if colon and kind not in ("gem", "field"):
                raise UsageError(f"{given}: only gem and field take a number, as in gem:2")
            if colon and not (number.isascii() and number.isdigit() and int(number)):
                raise UsageError(f"{given}: the number is a whole one, as in gem:2")
        kinds = [part.partition(":")[0] for part in parts]
        if len(set(parts)) < len(parts):
            raise UsageError(f"{given} names an embedding twice: give each once")
        if len(parts) > 1 and not self.whiten:
            raise UsageError(
                f"{given} joins several: add --whiten, which brings them to one scale, or give one of them"
            )
        if self.power is not None and not self.whiten:
            raise UsageError(f"--power {self.power:g} says how much to whiten: add --whiten, or leave it out")
        if self.label is not None and self.embedding is not None and not self.whiten:
            learns = f"{given} learns nothing from labels"
            raise UsageError(f"{learns}: add --whiten, or leave --embedding out to have the best one chosen")
        if self.is_chosen and (self.slices is not None or self.quantiles is not None):
            raise UsageError("--slices and --quantiles are for an embedding that you name: give --embedding, too")
        if self.slices is not None and not {"sliced", "local"}.intersection(kinds):
            raise UsageError(f"--slices is for --embedding sliced and local, not for {'+'.join(kinds)}")
        if self.quantiles is not None and not {"sliced", "local", "fspool"}.intersection(kinds):
            raise UsageError(f"--quantiles is for --embedding sliced, local and fspool, not for {'+'.join(kinds)}")

    def _known(self, seed: int) -> dict[str, Callable[..., Any]]:
        amount: dict[str, Any] = {} if self.quantiles is None else {"n_quantiles": self.quantiles}
        embed = slosh.embed
        sliced = functools.partial(embed.SlicedWasserstein, n_slices=self.slices, random_state=seed, **amount)
        return {
            "sliced": sliced,
            "local": lambda: embed.LocalShape(sliced()),
            "field": lambda n=256: embed.DistanceField(n_anchors=n, random_state=seed),
            "gem": lambda n=1: embed.GeM(p=n),
            "fspool": functools.partial(embed.FSPool, **amount),
            "cov": embed.Covariance,
            "wasserstein": functools.partial(embed.WassersteinEmbedding, random_state=seed),
            "mean": embed.MeanPool,
            "max": embed.MaxPool,
            "sum": embed.SumPool,
        }

    def as_options(self) -> list[str]:
        """Return the options that were given."""
        return options.as_options(self)


def parse_views(named: str, seed: int) -> list[Any]:
    """Return embeddings that are joined by +, not fitted."""
    wanted = EmbeddingOptions(named, whiten=True)
    if wanted.is_file:
        remedy = f"give {', '.join(wanted.names)}, or several joined by +"
        raise UsageError(f"--embedding {named} is a file, and slosh train puts a head on embeddings by name: {remedy}")
    made = wanted.make(seed).embedding
    return made if isinstance(made, list) else [made]


def prepared_for(wanted: EmbeddingOptions, preparation: Preparation, seed: int) -> tuple[Any, Any]:
    """Return the embedding, and the `slosh.Preprocess` before it: with that of a file comes what it was learnt with."""
    if not wanted.is_file:
        return wanted.make(seed), preparation.preprocess(seed)
    embedding, steps = wanted.load()
    if (given := preparation.as_options()) and preparation.preprocess(seed) != steps:
        problem = f"{wanted.embedding} was learnt from sets prepared by {steps!r}"
        raise UsageError(f"{problem}: leave {given[0]} out, as it prepares sets alike by itself")
    return embedding, steps


def options_for(embedding: Any, label: str | None) -> list[str]:
    """Return the options by which `slosh build` makes an embedding.

    `label` is the key that it learns from, if any.
    """
    embed, whitened = slosh.embed, isinstance(embedding, slosh.embed.Whitened)
    parts = embedding.embedding if whitened else embedding
    words: dict[Any, Callable[[Any], str]] = {
        embed.SlicedWasserstein: lambda one: "sliced",
        embed.LocalShape: lambda one: "local",
        embed.DistanceField: lambda one: "field" if one.n_anchors == 256 else f"field:{one.n_anchors}",
        embed.GeM: lambda one: f"gem:{one.p}",
        embed.FSPool: lambda one: "fspool",
        embed.Covariance: lambda one: "cov",
        embed.WassersteinEmbedding: lambda one: "wasserstein",
        embed.MeanPool: lambda one: "mean",
        embed.MaxPool: lambda one: "max",
        embed.SumPool: lambda one: "sum",
    }
    parts = parts if isinstance(parts, list) else [parts]
    named = "+".join(words[type(one)](one) for one in parts)
    inner = [getattr(one, "embedding", None) or one for one in parts]  # the slices of LocalShape
    slices = next((n for one in inner if (n := getattr(one, "n_slices", None)) is not None), None)
    quantiles = next((n for one in inner if (n := getattr(one, "n_quantiles", QUANTILES)) != QUANTILES), None)
    power = embedding.power if whitened and embedding.power != "auto" else None
    return EmbeddingOptions(
        None if named == "sliced" else named, whitened, label, power=power, slices=slices, quantiles=quantiles
    ).as_options()


def command(*words: str) -> str:
    """Return a command as a user types it.

    >>> command("slosh", "retrain", "my shapes", "--whiten")
    "slosh retrain 'my shapes' --whiten"
    """
    return shlex.join(words)


@dataclass(frozen=True)
class Design:
    """What else an index is made of."""

    origin: Annotated[str | None, _name(metavar="auto|X,Y,Z", help=ORIGIN)] = None
    weighted: Annotated[bool, _flag("--weighted", help="Allow weights even if the first sets have none.")] = False
    search: Annotated[str, _name(help=SEARCHES)] = "ladder"

    def settings(self) -> dict[str, Any]:
        """Return arguments of `SetIndex.create`."""
        known = {
            "ladder": slosh.search.LadderSearch,
            "exact": slosh.search.ExactSearch,
            # Codes alone give no distance to tune for.
            "hamming": functools.partial(slosh.search.HammingSearch, rerank=100),
            "lsh": slosh.search.LSHSearch,
            "faiss": slosh.search.FaissSearch,
        }
        kind, colon, factory = self.search.partition(":")
        made = options.choose("--search", kind.lower(), known)
        if colon and kind.lower() != "faiss":
            raise UsageError(f"--search {self.search}: only faiss takes a factory string, as in faiss:HNSW32")
        search = made(factory) if colon else made()
        return {"search": search, "weighted": True if self.weighted else None}
