"""`slosh compare`: which embedding suits your sets, measured on labels that their metadata have."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import typer
from sklearn.exceptions import ConvergenceWarning

from ..data.sets import Sets
from ..neighbors.compare import COLUMNS, compare
from .options import AsJson, Reading, Sources, origin_of, reads_files
from .output import say, say_json, say_table
from .running import Failed


@reads_files
def compare_embeddings(
    source: Sources,
    *,
    reading: Reading,
    label: Annotated[
        str, typer.Option("--label", metavar="KEY", help="The key of the metadata that is the label.")
    ] = "label",
    k: Annotated[int, typer.Option("-k", "--k", min=1, help="Neighbours that are looked at.")] = 10,
    test_size: Annotated[float, typer.Option("--test-size", help="The share of the sets that are queries.")] = 0.2,
    origin: Annotated[
        str, typer.Option("--origin", metavar="auto|X,Y,Z", help="Subtract this from the coordinates.")
    ] = "",
    json: AsJson = False,
) -> None:
    """Compare embeddings on labelled sets, before an index is made.

    Each line says how often the nearest sets have the label of the query, and what that cost. All sets are held in
    memory. The name of the best goes into `slosh build --embedding`.

        slosh compare clouds/ --label folder
        slosh compare digits.npz --label label -k 5
    """
    parts: list[Sets] = []
    labels: list[Any] = []
    for batch in reading.read(source, origin_of(origin or None)):
        parts.append(batch.sets)
        for name, metadata in zip(batch.ids, batch.metadata, strict=True):
            if metadata.get(label) is None:
                keys = ", ".join(metadata) or "none at all"
                raise Failed(f"{name} has no {label!r} in its metadata: name another key with --label; it has {keys}")
            labels.append(metadata[label])
    if len({isinstance(each, str) for each in labels}) > 1:
        labels = [str(each) for each in labels]
    with warnings.catch_warnings():
        # Of k-means, where sets have fewer different points than it looks for: the line of the embedding is as good.
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = compare(Sets.concat(parts), labels, k=k, test_size=test_size, random_state=reading.seed)
    if json:
        say_json({"about": found.about, "rows": found.rows})
        return
    say(f"{found.about}\n")
    names = list(COLUMNS)
    right = list(COLUMNS.values())[2:]
    good = [row for row in found.rows if row["error"] is None]
    say_table(list(COLUMNS.values()), [[_cell(row[name]) for name in names] for row in good], right)
    for row in found.rows:
        if row["error"] is not None:
            say(f"{row['method']} failed: {row['error']}")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "-" if value != value else f"{value:.3f}" if value <= 1 else f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
