"""`slosh compare`: which embedding suits your sets, measured by labels in their metadata."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

from sklearn.exceptions import ConvergenceWarning
from typer import Option

from ..data.sets import Sets
from ..neighbors import compare as comparison
from .messages import CommandError
from .options import AsJson, Reading, Sources, parse_origin
from .output import say, say_json, say_table


def compare(
    source: Sources,
    *,
    reading: Reading,
    label: Annotated[str, Option(metavar="KEY", help="The key of the metadata that is the label.")] = "label",
    k: Annotated[int, Option("-k", "--k", min=1, help="Number of neighbours to look at.")] = 10,
    test_size: Annotated[float, Option(help="Fraction of the sets that are queries, if there are 500 or more.")] = 0.2,
    origin: Annotated[str | None, Option(metavar="auto|X,Y,Z", help="Subtract this from the coordinates.")] = None,
    json: AsJson = False,
) -> None:
    """Compare embeddings on labelled sets, before you build an index.

    Each row says how often the nearest sets have the label of the query, and what that cost. All sets are held in
    memory. Pass the name of the best to `slosh build --embedding`.

        slosh compare clouds/ --label folder
        slosh compare digits.npz --label label -k 5
    """
    parts: list[Sets] = []
    labels: list[Any] = []
    for batch in reading.read(source, parse_origin(origin)):
        parts.append(batch.sets)
        for name, metadata in zip(batch.ids, batch.metadata, strict=True):
            if metadata.get(label) is None:
                keys = ", ".join(metadata) or "none"
                raise CommandError(f"{name} has no {label!r} in its metadata: choose a key with --label; it has {keys}")
            labels.append(metadata[label])
    if len({isinstance(each, str) for each in labels}) > 1:
        labels = [str(each) for each in labels]
    with warnings.catch_warnings():
        # Of k-means, where sets have fewer different points than it looks for: the row of the embedding is as good.
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = comparison.compare(
            Sets.concat(parts), labels, k=k, test_size=test_size, random_state=reading.random_state
        )
    if json:
        say_json({"about": found.about, "rows": found.rows})
        return
    say(f"{found.about}\n")
    columns, *cells = found.table()
    say_table(columns, cells, columns[2:])
    for failure in found.failures():
        say(failure)
