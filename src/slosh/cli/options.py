"""Options that several commands share: how files are read, which sets are meant, and how an index is opened.

`grouped_options` gives a command the options of `Reading`, or of another group; `Where`, `AsJson` and the others are
annotations of single ones.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from typer import Argument, Option

from .. import embed, readers, search, where
from ..index.set_index import SetIndex
from ..index.set_index import open as open_set_index
from .messages import CommandError, UsageError
from .output import remark

IndexPath = Annotated[Path, Argument(metavar="INDEX", help="The folder of the index.")]
Sources = Annotated[
    list[str], Argument(metavar="SOURCE", help='Files, folders, or quoted patterns such as "clouds/*.ply".')
]
Where = Annotated[
    str | None, Option(metavar="FILTER", help='Only sets whose metadata match: "kind = chair and year > 2010".')
]
Flip = Annotated[bool, Option("--flip", help="Let y point down in pictures, as in images.")]
AsJson = Annotated[bool, Option("--json", help="Print JSON, for programs.")]


def _of_files(help: str, *names: str, **more: Any) -> Any:
    return Option(*names, help=help, rich_help_panel="How files are read", **more)


@dataclass(frozen=True)
class Reading:
    """How files become sets: the arguments of `slosh.readers.read`."""

    format: Annotated[str | None, _of_files('Read files in this format, whatever their names: "csv", ...')] = None
    id_column: Annotated[str | None, _of_files("Tables: the column of ids; rows with the same id form a set.")] = None
    columns: Annotated[str | None, _of_files("Tables and clouds: the features.", metavar="A,B,C")] = None
    weights: Annotated[str | None, _of_files('The column of weights; "grey" for images; "none" ignores them.')] = None
    by: Annotated[str | None, _of_files(".h5ad: the observation column that defines the sets.")] = None
    obsm: Annotated[str | None, _of_files(".h5ad: the embedding to use instead of X.")] = None
    n_points: Annotated[int, _of_files("Meshes: points to sample from the surface.", "--points", min=1)] = 1024
    random_state: Annotated[int, _of_files("Seed of that sampling, and of --max-points.", "--seed", min=0)] = 0
    batch_points: Annotated[int, _of_files("Points to read, and to store, at a time.", min=1)] = 1 << 20
    max_expansion: Annotated[float, _of_files("Refuse files that unpack to more than this many times their size.")] = (
        readers.MAX_EXPANSION
    )

    def read(self, sources: Sequence[str], origin: Any) -> Iterator[readers.Batch]:
        """Return the batches of sets that these files hold."""
        names = None if self.columns is None else [name.strip() for name in self.columns.split(",") if name.strip()]
        if names == []:
            raise UsageError("--columns names no column: give names separated by commas, as in --columns x,y,z")
        weights = False if self.weights == "none" else self.weights
        given = dataclasses.asdict(self) | {"columns": names, "weights": weights, "origin": origin}
        return readers.read(sources[0] if len(sources) == 1 else list(sources), **given)


def grouped_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with an option for each field of its parameters that are dataclasses, such as `Reading`."""
    # Not get_type_hints: for a parameter with the default None, Python 3.10 hides the annotation in an Optional.
    own = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: each.annotation for name, each in own.items() if dataclasses.is_dataclass(each.annotation)
    }
    keyword = inspect.Parameter.KEYWORD_ONLY
    options = [each.replace(kind=keyword) for name, each in own.items() if name not in groups]
    for group in groups.values():
        hints = get_type_hints(group, include_extras=True)
        options += [
            inspect.Parameter(field.name, keyword, default=field.default, annotation=hints[field.name])
            for field in dataclasses.fields(group)
        ]

    @functools.wraps(command)
    def with_groups(**given: Any) -> Any:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
        return command(**given)

    with_groups.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    with_groups.__annotations__ = {each.name: each.annotation for each in options}
    return with_groups


def open_index(path: Path, *, write: bool = False) -> SetIndex:
    """Open an index, for reading unless told otherwise."""
    try:
        return open_set_index(path, read_only=not write)
    except FileNotFoundError:
        raise CommandError(f"there is no index {path}: make it with slosh build") from None


def check_free(path: Path) -> None:
    """Refuse a path for a new index where something is already."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    try:
        open_index(path).close()
    except (OSError, ValueError):
        raise CommandError(f"{path} exists and is not an index: choose another name") from None
    raise CommandError(f"{path} exists: add to it with slosh add {path} SOURCE..., or choose another name")


def display_path(index: SetIndex) -> str:
    """Return the folder of an index as one would type it here."""
    path, here = index.path, Path.cwd()
    return str(path.relative_to(here) if path is not None and path.is_relative_to(here) else path)


def parse_where(text: str | None) -> where.Node | None:
    """Return the filter of --where."""
    if text is None:
        return None
    if not text.strip():
        raise UsageError("--where is empty: give a filter, or leave --where out to mean all sets")
    try:
        return where.parse_text(text)
    except ValueError as error:
        raise UsageError(f"--{error}") from None


def remark_unknown_fields(index: SetIndex, node: where.Node | None) -> None:
    """After a filter has found nothing, name the fields of it that no set has: they may be misspelt."""
    if node is None or not len(index):
        return
    for key in dict.fromkeys(_fields(node)):
        if not index.select(where.Exists(key), limit=1):
            remark(f"slosh: no set has a field {key!r}: slosh show {display_path(index)} shows the fields")


def _fields(node: Any) -> list[str]:
    if isinstance(node, where.And | where.Or):
        return [key for part in node.parts for key in _fields(part)]
    return _fields(node.part) if isinstance(node, where.Not) else [node.key]


def choose(option: str, name: str, known: Mapping[str, Any]) -> Any:
    """Return what an option names, or say which names there are."""
    if name not in known:
        raise UsageError(f"{option} {name} is not known: give {', '.join(known)}")
    return known[name]


def make_embedding(name: str, slices: int | None, quantiles: int | None, seed: int) -> Any:
    """Return the embedding that --embedding, --slices and --quantiles describe."""
    kind, _, number = name.lower().partition(":")
    if number and kind != "gem":
        raise UsageError(f"--embedding {name}: only gem takes a number, as in gem:2")
    if slices is not None and kind != "sliced":
        raise UsageError(f"--slices is for --embedding sliced, not for {kind}")
    if quantiles is not None and kind not in ("sliced", "fspool"):
        raise UsageError(f"--quantiles is for --embedding sliced and fspool, not for {kind}")
    if number and not (number.isascii() and number.isdigit() and int(number)):
        raise UsageError(f"--embedding {name}: the power is a whole number, as in gem:2")
    amount: dict[str, Any] = {} if quantiles is None else {"n_quantiles": quantiles}
    known = {
        "sliced": functools.partial(embed.SlicedWasserstein, n_slices=slices, random_state=seed, **amount),
        "gem": functools.partial(embed.GeM, p=int(number or 1)),
        "fspool": functools.partial(embed.FSPool, **amount),
        "cov": embed.Covariance,
        "wasserstein": functools.partial(embed.WassersteinEmbedding, random_state=seed),
        "mean": embed.MeanPool,
        "max": embed.MaxPool,
        "sum": embed.SumPool,
    }
    return choose("--embedding", kind, known)()


def make_search(name: str) -> Any:
    """Return the search that --search names."""
    known = {
        "ladder": search.LadderSearch,
        "exact": search.ExactSearch,
        "hamming": functools.partial(search.HammingSearch, rerank=100),  # codes alone give no distance to tune for
        "lsh": search.LSHSearch,
    }
    return choose("--search", name.lower(), known)()


def parse_origin(text: str | None) -> Any:
    """Return None, "auto", or the numbers of --origin."""
    if text is None or text == "auto":
        return text
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        remedy = 'give "auto", or numbers separated by commas, one for each feature'
        raise UsageError(f"--origin {text}: {remedy}") from None


def parse_metadata(pairs: Sequence[str]) -> dict[str, Any] | None:
    """Return what --meta adds to all sets.

    >>> parse_metadata(["kind=chair", "year=2015", "old=true"])
    {'kind': 'chair', 'year': 2015, 'old': True}
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--meta {pair}: give it as KEY=VALUE, e.g. --meta kind=chair")
        found[key.strip()] = _parse_value(value)
    return found or None


def _parse_value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text
