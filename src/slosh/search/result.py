"""What a search gives back: distances, rows, and what it took to find them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..native.arrays import Float64, Int64, Mask


class Stats(NamedTuple):
    """What a search did, and what it promises.

    candidates : (n_queries,) vectors whose distance to the query was computed in full.
    scanned : (n_queries,) rows of which a shorter form (prefix, code, bucket entry) was looked at; an exact search goes
        over them twice, and counts them twice.
    recall : the recall that is promised: 1.0 is exact, None is no promise. It is about the distance of the vectors that
        the search compares, which an index makes of the embedding and the residual norm.
    seconds : for all queries together.
    full_distances : (n_queries,) distances between sets, from their points; None where none was asked for.
    unlike : (n_queries,) bool, whether a query is farther from its nearest row than 99% of the queries that the search
        was calibrated with: what was measured with those says little about it. None where nothing was calibrated, with
        a filter, and for a range search.
    covered : the share of the collection that was searched; less than 1.0 only where shards of it were out of reach
        (docs/shards.md). Then nothing is promised.
    """

    candidates: Int64
    scanned: Int64
    recall: float | None
    seconds: float
    full_distances: Int64 | None = None
    unlike: Mask | None = None
    covered: float = 1.0

    @property
    def duration(self) -> str:
        """`seconds` for people to read, in microseconds where it is less than a thousandth."""
        if self.seconds < 1e-3:
            return f"{1e6 * self.seconds:.3g} us"
        return f"{self.seconds:.3g} s" if self.seconds < 100 else f"{self.seconds:,.0f} s"

    def __str__(self) -> str:
        promise = "no promise" if self.recall is None else "exact" if self.recall == 1 else f"recall {self.recall:.3f}"
        parts = [f"{_mean(self.scanned)} scanned", f"{_mean(self.candidates)} vectors compared"]
        if self.full_distances is not None:
            parts.append(f"{_mean(self.full_distances)} full distances")
        n, n_unlike = len(self.candidates), 0 if self.unlike is None else int(self.unlike.sum())
        if n_unlike:
            promise += f" ({n_unlike} unlike the collection)"
        if self.covered < 1:
            promise += f", only {self.covered:.1%} of the collection searched"
        return f"{n} quer{'y' if n == 1 else 'ies'} in {self.duration}, {promise}; a query: {', '.join(parts)}"


def _mean(numbers: Int64) -> str:
    mean = numbers.mean() if len(numbers) else 0
    return f"{mean:,.0f}" if mean >= 100 else f"{mean:.4g}"


@dataclass(frozen=True, eq=False, init=False)
class Result:
    """The k nearest rows of each query. Unpacks as `distances, rows = result`.

    distances : (n_queries, k) float64, increasing.
    rows : (n_queries, k) int64. Where an approximate search found fewer than k, the rest is -1 at the distance inf.
    stats : see `Stats`.
    distance_kind : "embedded" (Euclidean, of the vectors), "hamming" (bits), or the name of a distance between sets.
    """

    distances: Float64
    rows: Int64
    stats: Stats
    distance_kind: str = "embedded"

    def __init__(self, distances: Float64, rows: Int64, stats: Stats, distance_kind: str = "embedded") -> None:
        own = self.__dict__  # one that a frozen dataclass writes itself takes three times as long
        own["distances"], own["rows"], own["stats"], own["distance_kind"] = distances, rows, stats, distance_kind

    def __iter__(self) -> Iterator[Any]:
        yield self.distances
        yield self.rows

    def __str__(self) -> str:
        return f"{self.rows.shape[1]} nearest by {self.distance_kind} distance; {self.stats}"

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class RangeResult:
    """All rows within a radius: those of query i are `rows[offsets[i]:offsets[i + 1]]`, nearest first.

    `result[i]` is (distances, rows) of query i; iterating gives one such pair a query.
    """

    offsets: Int64
    distances: Float64
    rows: Int64
    stats: Stats
    distance_kind: str = "embedded"

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> tuple[Float64, Int64]:
        if not -len(self) <= i < len(self):
            raise IndexError(f"query {i}: there were {len(self)}")
        part = slice(self.offsets[i % len(self)], self.offsets[i % len(self) + 1])
        return self.distances[part], self.rows[part]

    def __str__(self) -> str:
        return f"{len(self.rows)} rows by {self.distance_kind} distance; {self.stats}"

    def __iter__(self) -> Iterator[tuple[Float64, Int64]]:
        return (self[i] for i in range(len(self)))
