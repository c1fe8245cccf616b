"""Numbers for Prometheus: requests by route and status, their time, what was shed, and jobs.

The numbers of a process are a row of one array; where a server has several processes the array is a file that all of
them map, and whoever is asked sums the rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper ends of the histogram of times, in seconds; the last one is without end."""
STATUSES = (2, 3, 4, 5)
OTHER = "other"
PREFIX = "slosh_http"


class Metrics:
    """What one process counts of `routes`. `path` is the file that the processes share, `row` of `rows` ours."""

    def __init__(self, routes: Sequence[str], path: Path | None = None, row: int = 0, rows: int = 1) -> None:
        self.routes = [OTHER, *routes]
        self._numbers = {name: i for i, name in enumerate(self.routes)}
        width = len(STATUSES) + len(BUCKETS) + 2
        shape = (rows, len(self.routes) * width + 3)
        self._all = np.zeros(shape) if path is None else np.memmap(path, np.float64, "r+", shape=shape)
        self._own = self._all[row]
        self._table = self._own[3:].reshape(len(self.routes), width)
        self._shed, self._in_flight, self._bytes = 0, 1, 2
        self._own[self._in_flight] = 0  # of a process that this one takes the place of
        self.started = time.time()

    @property
    def n_bytes(self) -> int:
        """How many bytes a shared file has to have."""
        return int(self._all.nbytes)

    def begun(self) -> None:
        self._own[self._in_flight] += 1

    def ended(self, route: str, status: int, seconds: float, n_bytes: int) -> None:
        """Count a request that was answered."""
        line = self._table[self._numbers.get(route, 0)]
        line[min(max(status // 100, 2), 5) - 2] += 1
        place = int(np.searchsorted(BUCKETS, seconds))
        line[len(STATUSES) + place] += 1
        line[-1] += seconds
        self._own[self._in_flight] -= 1
        self._own[self._bytes] += n_bytes

    def shed(self) -> None:
        self._own[self._shed] += 1

    def text(self, gauges: dict[str, float]) -> str:
        """Return all numbers in the text format of Prometheus."""
        total = self._all.sum(axis=0)
        table = total[3:].reshape(self._table.shape)
        lines = [
            f"# HELP {PREFIX}_requests_total Requests that were answered.",
            f"# TYPE {PREFIX}_requests_total counter",
        ]
        used = [(name, row) for name, row in zip(self.routes, table, strict=True) if row[: len(STATUSES)].any()]
        for name, row in used:
            for status, n in zip(STATUSES, row, strict=False):
                lines += [f'{PREFIX}_requests_total{{route="{name}",status="{status}xx"}} {n:.0f}'] * bool(n)
        lines += [f"# HELP {PREFIX}_request_seconds Time of a request.", f"# TYPE {PREFIX}_request_seconds histogram"]
        for name, row in used:
            counts = np.cumsum(row[len(STATUSES) : -1])
            for end, n in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
                lines.append(f'{PREFIX}_request_seconds_bucket{{route="{name}",le="{end}"}} {n:.0f}')
            lines.append(f'{PREFIX}_request_seconds_sum{{route="{name}"}} {row[-1]:.6f}')
            lines.append(f'{PREFIX}_request_seconds_count{{route="{name}"}} {counts[-1]:.0f}')
        for name, kind, about, value in (
            ("shed_total", "counter", "Requests that were refused since there were too many.", total[self._shed]),
            ("in_flight", "gauge", "Requests that are being answered.", total[self._in_flight]),
            ("answer_bytes_total", "counter", "Bytes of all answers.", total[self._bytes]),
        ):
            lines += [
                f"# HELP {PREFIX}_{name} {about}",
                f"# TYPE {PREFIX}_{name} {kind}",
                f"{PREFIX}_{name} {value:.0f}",
            ]
        for name, value in gauges.items():
            lines += [f"# TYPE slosh_{name} gauge", f"slosh_{name} {value:g}"]
        return "\n".join(lines) + "\n"
