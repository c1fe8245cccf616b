"""Every stored set as a query: near-equal pairs, and the graph of nearest neighbours."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.sparse import csr_matrix
from tqdm.auto import tqdm

from ..engines.base import Int64, View
from ..where import Node
from .hits import HitLists, Pair, Pairs
from .planner import Question, answer

BATCH_SETS = 1024


def _each(view: View, keys: Int64, question: Question, title: str) -> Iterator[tuple[Int64, HitLists]]:
    """Ask for the neighbours of these stored sets, batch by batch; none is its own."""
    with tqdm(total=len(keys), unit="set", delay=2, disable=None, leave=False, desc=title) as bar:
        for first in range(0, len(keys), BATCH_SETS):
            part = keys[first : first + BATCH_SETS]
            yield part, answer(view, view.prepared(part), part, question)
            bar.update(len(part))


def duplicates(view: View, radius: float, where: Node | None, certify: bool) -> Pairs:
    """Return all pairs of sets at most a radius apart, each once."""
    kind = "sliced" if certify else view.spec.search.distance_kind
    exact = 1.0 if kind == "embedded" else None
    question = Question(radius=radius, where=where, recall=exact, certify=certify, slack=kind == "embedded")
    pairs: list[Pair] = []
    for keys, hits in _each(view, view.select(where), question, "duplicates") if len(view) else ():
        for name, found in zip(view.ids(keys), hits, strict=True):
            pairs += [
                Pair(name, other, float(distance))
                for other, distance in zip(found.ids, found.distances, strict=True)
                if name < other
            ]
    return Pairs(sorted(pairs, key=lambda pair: (pair.distance, pair.id, pair.other)), kind)


def neighbor_graph(view: View, question: Question, mode: str) -> tuple[csr_matrix, list[str]]:
    """Return the sparse graph of nearest neighbours, and the ids of its rows."""
    keys = view.select()
    names = view.ids(keys)
    number = {name: i for i, name in enumerate(names)}
    columns, distances, counts = [np.empty(0, np.int64)], [np.empty(0)], [np.zeros(1, np.int64)]
    for _, hits in _each(view, keys, question, "graph"):
        columns.append(np.array([number[name] for found in hits for name in found.ids], np.int64))
        distances += hits.distances
        counts.append(np.array([len(found) for found in hits], np.int64))
    values = np.concatenate(distances)
    data = values if mode == "distance" else np.ones(len(values))
    starts = np.cumsum(np.concatenate(counts))
    return csr_matrix((data, np.concatenate(columns), starts), shape=(len(names), len(names))), names
