"""What is done is written down at once, and not done again: one line of JSON for each piece of work.

Units of work come in, each with a key, an estimate of its seconds and a function; their results, by key, go out. A run
that was interrupted goes on where it stopped.
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
    """A piece of work: its key, such as "table1/mnist/GeM-1/0", about how long it takes, and what gives the result."""

    key: str
    seconds: float
    run: Callable[[], Any]


class Ledger:
    """The results so far, in a file that only grows. `data` is what they are made from: another gets another file."""

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
                    continue  # the line that was being written when the run was stopped
                if entry["data"] != data:
                    sys.exit(f"{path} has results of {entry['data']}, not of {data}: remove it, or give another --work")
                self.date = max(self.date, entry["date"])
                self.results[entry["key"]] = entry["result"]
                self.seconds[entry["key"]] = entry["seconds"]

    def run(self, units: Iterable[Unit]) -> None:
        """Does what is not done, with a bar that says how long it will still take."""
        left = [unit for unit in units if unit.key not in self.results]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        layout = "{desc:<42.42}{percentage:3.0f}%|{bar:20}| {elapsed} gone, about {remaining} left"
        often = 0.1 if sys.stderr.isatty() else 30.0  # a log gets a line now and then
        total = sum(unit.seconds for unit in left)
        with (
            open(self.path, "a", encoding="utf-8") as file,
            tqdm(total=total, bar_format=layout, mininterval=often, smoothing=0, disable=not left) as bar,
        ):
            if file.tell() and not self.path.read_bytes().endswith(b"\n"):
                file.write("\n")
            for unit in left:
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
    """The results whose key begins with `prefix`, by what follows it."""
    return {key[len(prefix) :]: result for key, result in results.items() if key.startswith(prefix)}
