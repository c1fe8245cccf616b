"""Options that several commands share: how files are read, which sets are meant, and how an index is opened.

`grouped_options` gives a command the options of `Reading`, or of another group; `Where`, `AsJson` and the others are
annotations of single ones.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from typer import Argument, BadParameter, Option

import slosh

from ..engines.addresses import meant_server, with_name, without_password
from ..errors import FormatError, IndexNotFound, InputError
from .messages import CommandError, UsageError
from .output import remark

if TYPE_CHECKING:
    from ..index.set_index import SetIndex
    from ..readers import Batch
    from ..where import Node


def _checked_recall(value: float | None) -> float | None:
    if value is not None and not 0 < value <= 1:
        raise BadParameter(f"{value:g} is not a recall: give more than 0, and at most 1")
    return value


counted = functools.partial(Option, metavar="N", min=1)
"""An option that is a number of things, at least one."""
recall_option = functools.partial(Option, metavar="FRACTION", callback=_checked_recall)


def checked_location(value: str) -> str:
    """Refuse an address with a password, or with what may be one: whoever lists the processes of a machine sees it."""
    if without_password(value) != value:
        raise BadParameter(
            "leave the password, and parameters that slosh does not know, out of the address: PGPASSWORD, ~/.pgpass or"
            " a service file gives them"
        )
    return value


def named_location(location: str, name: str | None) -> str:
    """Return the address of the index of a name in a database."""
    try:
        return with_name(location, name)
    except InputError as error:
        raise UsageError(f"--{error}") from None


index_argument = functools.partial(Argument, callback=checked_location)
Location = Annotated[
    str,
    index_argument(
        metavar="INDEX",
        help="The folder of the index, postgresql://user@host/database#name, or http://host:8080#name.",
    ),
]
Offset = Annotated[int, Option(metavar="N", min=0, help="Skip this many of them, to see the next page.")]
FILES = 'Files, folders, or quoted patterns such as "clouds/*.ply".'
Sources = Annotated[list[str], Argument(metavar="SOURCE", help=FILES)]
FILTER = 'Only sets whose metadata match, for example "kind = chair and year > 2010".'
Where = Annotated[str | None, Option(metavar="FILTER", help=FILTER)]
Meta = Annotated[list[str] | None, Option(metavar="KEY=VALUE", help="Metadata for each of the sets; may be repeated.")]
Flip = Annotated[bool, Option("--flip", help="Draw y downwards, as in images.")]
DEVICE = "Where sets are embedded: cpu; or a GPU: cuda, cuda:1. It needs torch (docs/gpu.md)."
Device = Annotated[str | None, Option(metavar="NAME", help=DEVICE)]
AsJson = Annotated[bool, Option("--json", help="Print JSON instead of text.")]

_name = functools.partial(Option, metavar="NAME", rich_help_panel="How files are read")
_number = functools.partial(_name, metavar="N", min=1)


@dataclass(frozen=True)
class Reading:
    """How files become sets: the arguments of `slosh.readers.read`."""

    format: Annotated[str | None, _name(help="Read every file as this format, whatever its name: csv, ...")] = None
    id_column: Annotated[str | None, _name(help="Tables: the column of ids. Rows with one id form a set.")] = None
    columns: Annotated[str | None, _name(metavar="A,B,C", help="Tables and clouds: the columns of features.")] = None
    weights: Annotated[str | None, _name(help='The column of weights; "grey" for images; "none" ignores them.')] = None
    by: Annotated[str | None, _name(help=".h5ad: the column of obs whose values define the sets.")] = None
    obsm: Annotated[str | None, _name(help=".h5ad: the entry of obsm to use instead of X.")] = None
    n_points: Annotated[int, _number("--points", help="Meshes: how many points to sample from each surface.")] = 1024
    random_state: Annotated[int, _number("--seed", min=0, help="Seed for everything that is drawn at random.")] = 0
    batch_points: Annotated[int, _number(help="Read about this many points at a time; bounds the memory.")] = 1 << 20
    max_expansion: Annotated[float, _name(metavar="N", help="Refuse files that unpack to N times their size.")] = 100

    def as_options(self) -> list[str]:
        """Return the options that were given."""
        return as_options(self)

    def read(self, sources: Sequence[str], origin: Any, **more: Any) -> Iterator[Batch]:
        """Return the batches of sets that these files hold; `more` is for `slosh.readers.read`."""
        names = None if self.columns is None else [name.strip() for name in self.columns.split(",") if name.strip()]
        if names == []:
            raise UsageError("--columns names no column: give names separated by commas, as in --columns x,y,z")
        weights = False if self.weights == "none" else self.weights
        given = dataclasses.asdict(self) | {"columns": names, "weights": weights, "origin": origin, **more}
        return slosh.readers.read(sources[0] if len(sources) == 1 else list(sources), **given)

    def read_queries(self, source: str, index: SetIndex) -> Iterator[Batch]:
        """Yield the batches of a file, a folder or a pattern, whose sets have the features of those of the index."""
        for batch in self.read([source], index.origin):
            if (dim := batch.sets.dim) != index.dim:
                problem = f"its sets have {dim} features, those of the index have {index.dim}"
                raise CommandError(f"{source}: {problem}: choose features with --columns, or another index")
            yield batch


@dataclass(frozen=True)
class Selection:
    """The sets that a command is about: by their ids, or by a filter."""

    id: Annotated[list[str] | None, Argument(metavar="ID", help="Ids of stored sets.")] = None
    where: Where = None

    def check_given(self) -> None:
        """Refuse neither and both."""
        if bool(self.id) == (self.where is not None):
            raise UsageError("give ids, or --where with a filter, and not both")

    def names(self, index: SetIndex) -> list[str]:
        """Return the ids of these sets; of all, if nothing is given."""
        if self.id and self.where is not None:
            raise UsageError("--where is for lists: leave the ids out")
        node = parse_where(self.where)
        found = list(dict.fromkeys(self.id)) if self.id else index.select(node)
        if not found:
            remark_unknown_fields(index, node)
        return found


def as_options(group: Any) -> list[str]:
    """Return the options of a group that differ from their defaults, as a user types them.

    >>> as_options(Reading(columns="x,y", random_state=3))
    ['--columns', 'x,y', '--seed', '3']
    """
    hints, words = get_type_hints(type(group), include_extras=True), []
    for field in dataclasses.fields(group):
        value = getattr(group, field.name)
        if value == field.default:
            continue
        (option,) = hints[field.name].__metadata__  # in an annotation, its name comes in the place of a default
        names = [name for name in (option.default, *(option.param_decls or ())) if isinstance(name, str)]
        words.append(names[0] if names else f"--{field.name.replace('_', '-')}")
        words += [] if value is True else [f"{value:.15g}" if isinstance(value, float) else str(value)]
    return words


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


def open_index(location: str | Path, *, write: bool = False, device: str | None = None) -> SetIndex:
    """Open an index, for reading unless told otherwise; with `device` sets are embedded there."""
    try:
        return slosh.open(location, read_only=not write, device=device)
    except IndexNotFound as error:
        others = f", or give the name of another: {', '.join(map(repr, error.names))}" if error.names else ""
        remedy = meant_server(str(location)) or f"make it with slosh build{others}"
        raise CommandError(f"there is no index {location}: {remedy}") from None


def check_free(location: str) -> None:
    """Refuse a place for a new index where something is already."""
    if os.path.isdir(location) and not os.listdir(location):
        return
    try:
        slosh.open(location, read_only=True).close()
    except IndexNotFound:
        return
    except FormatError as error:
        if error.found is not None:
            raise
        raise CommandError(f"{location} exists and is not an index: choose another name") from None
    raise CommandError(f"{location} exists: add to it with slosh add {location} SOURCE..., or choose another name")


def parse_where(text: str | None) -> Node | None:
    """Return the filter of --where."""
    if text is None:
        return None
    try:
        return slosh.where.parse_text(text)
    except ValueError as error:
        raise UsageError(f"--{error}") from None


def remark_unknown_fields(index: SetIndex, node: Node | None) -> None:
    """After a filter has found nothing, name the fields of it that no set has: they may be misspelt."""
    if node is None or not len(index):
        return
    for key in dict.fromkeys(_fields(node)):
        if not index.select(slosh.where.Exists(key), limit=1):
            remark(f"slosh: no set has a field {key!r}: slosh show lists the fields")


def _fields(node: Any) -> list[str]:
    if isinstance(node, slosh.where.And | slosh.where.Or):
        return [key for part in node.parts for key in _fields(part)]
    return _fields(node.part) if isinstance(node, slosh.where.Not) else [node.key] * (node.key is not None)


def disk_bytes(about: Mapping[str, Any]) -> int:
    """Return what an index takes on this machine's disk by its `info`; 0 if its engine does not say."""
    return sum(about.get("disk_bytes", {}).values())


def choose(option: str, name: str, known: Mapping[str, Any]) -> Any:
    """Return what an option names, or say which names there are."""
    if name not in known:
        raise UsageError(f"{option} {name} is not known: give {', '.join(known)}")
    return known[name]


def parse_origin(text: str | None) -> Any:
    """Return None, "auto", or the numbers of --origin."""
    if text is None or text == "auto":
        return text
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        remedy = 'give "auto", or numbers separated by commas, one for each feature'
        raise UsageError(f"--origin {text}: {remedy}") from None


def parse_metadata(pairs: Sequence[str] | None) -> dict[str, Any] | None:
    """Return what --meta gives to all sets. Numbers are what --where takes for numbers.

    >>> parse_metadata(["kind=chair", "year=2015", "old=true"])
    {'kind': 'chair', 'year': 2015, 'old': True}
    """
    found: dict[str, Any] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--meta {pair}: give it as KEY=VALUE, e.g. --meta kind=chair")
        found[key.strip()] = _parse_value(value)
    return found or None


def _parse_value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    number = slosh.where.parse_number(text.strip())
    try:
        slosh.where.fields_of({"": number}, "--meta")
    except InputError:  # beyond what is stored as a number
        return text
    return text if number is None else number
