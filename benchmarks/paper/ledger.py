"""A file of finished work, one line of JSON for each unit, so that an interrupted run continues where it stopped.

`Ledger.run` takes units of work, each with a key, an estimate of its seconds and a function, and stores each result
under its key as soon as it is known.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from tqdm.auto import tqdm

Results = dict[str, Any]


class Unit(NamedTuple):
    """A unit of work: its key, such as "table1/mnist/GeM-1/0", its estimated seconds, and a function for the result."""

    key: str
    seconds: float
    run: Callable[[], Any]


class Ledger:
    """The results so far, in an append-only file. `data` names their data folder; another folder needs another file."""

    def __init__(self, path: Path, data: str = "") -> None:
        self.path = path
        self.data = data
        self.results: Results = {}
        self.seconds: dict[str, float] = {}
        self.date = ""
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError:
                    continue  # the run stopped while this line was being written
                if entry["data"] != data:
                    sys.exit(
                        f"{path} has results for {entry['data']}, not for {data}: remove it, or choose another --work"
                    )
                self.date = max(self.date, entry["date"])
                self.results[entry["key"]] = entry["result"]
                self.seconds[entry["key"]] = entry["seconds"]

    def run(self, units: Iterable[Unit]) -> None:
        """Run the units that have no result yet, and show the remaining time."""
        remaining = [unit for unit in units if unit.key not in self.results]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        layout = "{desc:<42.42}{percentage:3.0f}%|{bar:20}| {elapsed} elapsed, about {remaining} left"
        interval = 0.1 if sys.stderr.isatty() else 30.0  # few lines in a log file
        total = sum(unit.seconds for unit in remaining)
        with (
            open(self.path, "a", encoding="utf-8") as file,
            tqdm(total=total, bar_format=layout, mininterval=interval, smoothing=0, disable=not remaining) as bar,
        ):
            if file.tell() and not self.path.read_bytes().endswith(b"\n"):
                file.write("\n")
            for unit in remaining:
                bar.set_description(unit.key, refresh=sys.stderr.isatty())
                start = time.perf_counter()
                result = unit.run()
                seconds = round(time.perf_counter() - start, 3)
                self.results[unit.key], self.seconds[unit.key] = result, seconds
                self.date = date.today().isoformat()
                entry = {"key": unit.key, "seconds": seconds, "date": self.date, "data": self.data, "result": result}
                json.dump(entry, file)
                file.write("\n")
                file.flush()
                bar.update(unit.seconds)


def under(results: Results, prefix: str) -> dict[str, Any]:
    """Return the results whose keys begin with `prefix`, by the rest of the key."""
    return {key[len(prefix) :]: result for key, result in results.items() if key.startswith(prefix)}
