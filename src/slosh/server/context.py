"""What the handlers of one process share: settings, indexes, jobs, maps and numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from anyio import CapacityLimiter

from ..index import SetIndex
from .bodies import Shape
from .catalog import Catalog
from .jobs import Jobs
from .keys import Keys
from .metrics import Metrics
from .problems import public_problem
from .settings import Limits, Settings

T = TypeVar("T")
SHORT_THREADS = 4
"""Threads for short work, which long work never takes."""


class Context:
    """Made once in each process."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        keys: Keys,
        metrics: Metrics,
        folder: Path,
        *,
        behind_workers: bool = False,
    ) -> None:
        self.settings, self.catalog, self.keys, self.metrics = settings, catalog, keys, metrics
        self.folder = folder
        """Where files are kept that clients send."""
        self.behind_workers = behind_workers
        """Whether all requests come from workers, which count and log them."""
        self.jobs, self.short_work = Jobs(self._describe, settings.limits.result_bytes), CapacityLimiter(SHORT_THREADS)
        self.stopping, self.held_bytes, self.streams = False, 0, 0
        self._lock, self._remembered = threading.Lock(), dict[tuple[str, str], Any]()
        catalog.when_closed(self._forget)

    def _describe(self, error: BaseException) -> dict[str, Any]:
        return public_problem(error, self.catalog)

    @property
    def limits(self) -> Limits:
        return self.settings.limits

    def index(self, name: str) -> SetIndex:
        return self.catalog.get(name)

    def shape(self, name: str, index: SetIndex) -> Shape:
        """Return the dimension and the origin of the sets of an index."""
        found: Shape = self.remembered("shape", name, lambda: Shape.of(index))
        return found

    def remembered(self, what: str, name: str, make: Callable[[], T]) -> T:
        """Return something of an index that is made once."""
        found = self._remembered.get((what, name))
        if found is None:
            with self._lock:
                found = self._remembered.get((what, name))
                if found is None:
                    found = self._remembered[what, name] = make()
        return found  # type: ignore[no-any-return]

    def _forget(self, name: str) -> None:
        with self._lock:
            for key in [key for key in self._remembered if key[1] == name]:
                del self._remembered[key]

    def close(self) -> None:
        self.jobs.close()
        self.catalog.close()
