"""What the text of page.md says about a full run, checked against its numbers.

The tables are made from the numbers, and the sentences beside them are not. `unsupported` returns those that a run does
not bear out; `page.write` prints them, so that whoever runs the experiments again changes the text.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from differences import POOLING, SLOSH
from ledger import Results
from report_differences import variant
from report_table1 import cells, measured

EVERY = (*POOLING, SLOSH[2])  # the rows where no few slices decide
OXFORD = ("", "squared", "positive", "positive and squared")


def distance(results: Results, name: str, what: str, methods: tuple[str, ...], bits: str = "2048") -> float:
    """Return the mean distance of precision and accuracy from the paper's with a change ("": none), over all k."""
    found = []
    for cell in cells(results, bits):
        if cell.name == name and cell.method in methods:
            values = cell.measured
            if what:
                values = variant(results, name, what, cell.method, bits, cell.k).mean(axis=0)
            found.append(np.abs(values - cell.published).mean())
    return float(np.mean(found))


def _centring_helps(results: Results) -> bool:
    before = [measured(results, "mnist", method, "4", "paper", "1024")[:, 0].mean() for method in ("FSPool", "GeM-4")]
    after = [variant(results, "mnist", "centred", method, "1024", "4")[:, 0].mean() for method in ("FSPool", "GeM-4")]
    return all(np.array(after) > np.array(before) + 0.05)


CLAIMS: dict[str, Callable[[Results], bool]] = {
    "the published table of MNIST is the one with 2048 bits": lambda r: (
        distance(r, "mnist", "", EVERY) < 0.012 and distance(r, "mnist", "", EVERY, "1024") > 0.02
    ),
    "ModelNet40 does not distinguish the two lengths": lambda r: (
        distance(r, "modelnet40", "", EVERY) < 0.012 and distance(r, "modelnet40", "", EVERY, "1024") < 0.012
    ),
    "with the authors' hyperplanes and orientation GeM on MNIST matches the paper's row": lambda r: (
        distance(r, "mnist", "faiss", POOLING) < distance(r, "mnist", "", POOLING)
    ),
    "the published rows look like seed 0 alone": lambda r: (
        distance(r, "mnist", "torch 0", SLOSH) < 0.02 < distance(r, "mnist", "torch", SLOSH[1:2])
    ),
    "the half spiral explains most of the difference in the rows L < d and L = d": lambda r: (
        distance(r, "modelnet40", "spiral", SLOSH[:2]) < distance(r, "modelnet40", "", SLOSH[:2]) / 2
    ),
    "the published figures agree with random angles, not with 45 degrees": lambda r: (
        distance(r, "modelnet40", "45", EVERY) > 3 * distance(r, "modelnet40", "", EVERY)
    ),
    "features in [0, 1] and squared vectors together come closest to the paper on Oxford": lambda r: (
        min(OXFORD, key=lambda what: distance(r, "oxford5k", what, (*POOLING, *SLOSH))) == OXFORD[-1]
    ),
    "FSPool and GeM-4 on MNIST are better hashed about the mean": _centring_helps,
    "five seeds of each cell were measured": lambda r: all(
        len(measured(r, cell.name, cell.method, cell.k, "paper", "1024")) == 5 for cell in cells(r, "1024")
    ),
}


def unsupported(results: Results) -> list[str]:
    """Return the sentences that the numbers of a full run do not bear out."""
    return [sentence for sentence, holds in CLAIMS.items() if not holds(results)]
