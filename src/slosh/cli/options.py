"""Options that several commands share: how files are read, which sets are meant, and what an index is made of.

`reads_files` gives a command the options of `Reading`; `Where`, `AsJson` and the others are annotations.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from .. import embed, readers, search, where
from ..index.set_index import SetIndex
from ..index.set_index import open as open_index
from .output import remark
from .running import WrongUse

FILES = "How files are read"

IndexPath = Annotated[Path, typer.Argument(metavar="INDEX", help="The folder of the index.", show_default=False)]
Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE", help='Files, folders, or patterns in quotes, such as "clouds/*.ply".', show_default=False
    ),
]
Where = Annotated[
    str | None,
    typer.Option("--where", metavar="FILTER", help='Only sets whose metadata match: "kind = chair and year > 2010".'),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output, for programs.")]
Recall = Annotated[
    float | None,
    typer.Option(
        "--recall", min=0.0, max=1.0, help="The part of the true nearest to find; 1 is exact.", show_default=False
    ),
]


@dataclass(frozen=True)
class Reading:
    """How files become sets: what `slosh.readers.read` is told."""

    format: Annotated[
        str | None,
        typer.Option(
            "--format", help='Read files as this, whatever they are called: "csv", "ply", ...', rich_help_panel=FILES
        ),
    ] = None
    id_column: Annotated[
        str | None,
        typer.Option(
            "--id-column", help="Tables: the column with the ids; rows of one id are a set.", rich_help_panel=FILES
        ),
    ] = None
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="A,B,C",
            help="Tables and clouds: the columns that are the features.",
            rich_help_panel=FILES,
        ),
    ] = None
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            help='The column or array of weights; "grey" for images; "none" leaves them out.',
            rich_help_panel=FILES,
        ),
    ] = None
    by: Annotated[
        str | None,
        typer.Option("--by", help=".h5ad: the observation column whose values make the sets.", rich_help_panel=FILES),
    ] = None
    obsm: Annotated[
        str | None,
        typer.Option("--obsm", help=".h5ad: an embedding to be taken in place of X.", rich_help_panel=FILES),
    ] = None
    points: Annotated[
        int, typer.Option("--points", min=1, help="Meshes: points sampled over the surface.", rich_help_panel=FILES)
    ] = 1024
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Of that sampling, and of --max-points.", rich_help_panel=FILES)
    ] = 0
    batch_points: Annotated[
        int,
        typer.Option(
            "--batch-points", min=1, help="Points that are read, and stored, at a time.", rich_help_panel=FILES
        ),
    ] = 1 << 20

    def read(self, sources: Sequence[str], origin: Any) -> Iterator[readers.Batch]:
        names = None
        if self.columns is not None:
            names = [name.strip() for name in self.columns.split(",") if name.strip()]
            if not names:
                raise WrongUse("--columns has no name in it: give them with commas between, as in --columns x,y,z")
        return readers.read(
            sources[0] if len(sources) == 1 else list(sources),
            format=self.format,
            id_column=self.id_column,
            columns=names,
            weights=False if self.weights == "none" else self.weights,
            by=self.by,
            obsm=self.obsm,
            n_points=self.points,
            random_state=self.seed,
            origin=origin,
            batch_points=self.batch_points,
        )


def reads_files(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the options of `Reading`, which reach it as its argument `reading`."""
    fields = get_type_hints(Reading, include_extras=True)
    # Not get_type_hints: for a parameter with the default None, Python 3.10 hides the annotation in an Optional.
    own = inspect.signature(command, eval_str=True).parameters
    defaults = {field.name: field.default for field in dataclasses.fields(Reading)}

    @functools.wraps(command)
    def with_reading(**given: Any) -> Any:
        reading = Reading(**{name: given.pop(name) for name in defaults})
        return command(**given, reading=reading)

    keyword = inspect.Parameter.KEYWORD_ONLY
    kept = [parameter.replace(kind=keyword) for name, parameter in own.items() if name != "reading"]
    kept += [inspect.Parameter(name, keyword, default=defaults[name], annotation=fields[name]) for name in defaults]
    with_reading.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
    with_reading.__annotations__ = {parameter.name: parameter.annotation for parameter in kept}
    return with_reading


def opened(path: Path, *, to_change: bool = False) -> SetIndex:
    return open_index(path, read_only=not to_change)


def path_of(index: SetIndex) -> str:
    """Its folder as one would type it here."""
    path = index.path
    assert path is not None
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def filter_of(text: str | None) -> where.Node | None:
    """The filter of --where."""
    if text is None:
        return None
    try:
        return where.parse_text(text)
    except ValueError as error:
        raise WrongUse(f"--{error}") from None


def say_unknown_fields(index: SetIndex, node: where.Node | None) -> None:
    """After a filter has found nothing: which of its fields no set has, as a field that is misspelt."""
    if node is None or not len(index):
        return
    for key in dict.fromkeys(_fields(node)):
        if not index.select(where.Exists(key)):
            remark(f"slosh: no set has a field {key!r}: slosh show {path_of(index)} shows which there are")


def _fields(node: where.Node) -> Iterator[str]:
    if isinstance(node, where.And | where.Or):
        for part in node.parts:
            yield from _fields(part)
    elif isinstance(node, where.Not):
        yield from _fields(node.part)
    elif isinstance(node, where.Equal | where.In | where.Range | where.Exists):
        yield node.key


def embedding_of(name: str | None, slices: int | None, quantiles: int | None, seed: int) -> Any:
    """The embedding that --embedding, --slices and --quantiles describe."""
    kind, _, number = (name or "sliced").lower().partition(":")
    if number and kind != "gem":
        raise WrongUse(f"--embedding {name}: only gem takes a number, as in gem:2")
    if slices is not None and kind != "sliced":
        raise WrongUse(f"--slices is for --embedding sliced, not for {kind}")
    if quantiles is not None and kind not in ("sliced", "fspool"):
        raise WrongUse(f"--quantiles is for --embedding sliced and fspool, not for {kind}")
    amount: dict[str, Any] = {} if quantiles is None else {"n_quantiles": quantiles}
    if kind == "sliced":
        return embed.SlicedWasserstein(n_slices=slices, random_state=seed, **amount)
    if kind == "fspool":
        return embed.FSPool(**amount)
    if kind == "gem":
        if number and not (number.isascii() and number.isdigit() and int(number)):
            raise WrongUse(f"--embedding {name}: the power is a whole number, as in gem:2")
        return embed.GeM(p=int(number or 1))
    known: dict[str, Callable[[], Any]] = {
        "cov": embed.Covariance,
        "wasserstein": functools.partial(embed.WassersteinEmbedding, random_state=seed),
        "mean": embed.MeanPool,
        "max": embed.MaxPool,
        "sum": embed.SumPool,
    }
    if kind not in known:
        raise WrongUse(f"--embedding {name} is not known: give sliced, gem:2, fspool, {', '.join(known)}")
    return known[kind]()


def search_of(name: str) -> Any:
    """The search that --search names."""
    known: dict[str, Callable[[], Any]] = {
        "ladder": search.LadderSearch,
        "exact": search.ExactSearch,
        "hamming": functools.partial(search.HammingSearch, rerank=100),  # codes alone give no distance to tune for
        "lsh": search.LSHSearch,
    }
    if name.lower() not in known:
        raise WrongUse(f"--search {name} is not known: give {', '.join(known)}")
    return known[name.lower()]()


def origin_of(text: str | None) -> Any:
    """None, "auto", or the numbers of --origin."""
    if text is None or text == "auto":
        return text
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise WrongUse(f'--origin {text}: give "auto", or numbers with commas between, one for each feature') from None


def metadata_of(pairs: Sequence[str]) -> dict[str, Any] | None:
    """What --meta adds to all sets.

    >>> metadata_of(["kind=chair", "year=2015", "old=true"])
    {'kind': 'chair', 'year': 2015, 'old': True}
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise WrongUse(f"--meta {pair}: give it as KEY=VALUE, e.g. --meta kind=chair")
        found[key.strip()] = _value(value)
    return found or None


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text
