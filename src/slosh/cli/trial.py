"""`slosh demo`: the whole way once, with data that is there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .demo_run import run
from .output import flush, say


def demo(
    *,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the index and the picture go.")] = Path(
        "demo"
    ),
    keep: Annotated[
        bool, typer.Option("--keep", help="Use the index of an earlier run as it is, in place of building it anew.")
    ] = False,
) -> None:
    """Build an index of handwritten digits, search it, and draw what is found. Needs no data and no network.

    The digits are those of scikit-learn. Takes seconds. What it leaves in the folder is for you to try things on.
    """

    def tell(text: str) -> None:
        say(text)
        flush()

    run(out, keep=keep, tell=tell)
