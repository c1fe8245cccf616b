"""The machine that a benchmark runs on, and how it measures time there."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
"""The prepared data sets, which may be missing."""


def cpu() -> str:
    """Return the name of the processor."""
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def fastest(
    work: Callable[[], Any], rounds: int = 3, seconds: float = 0.0, clock: Callable[[], float] = time.process_time
) -> tuple[float, Any]:
    """Return the seconds of the fastest call, and the result of the last one.

    Calls are repeated for at least this many rounds and seconds. The default clock counts CPU time, which other work on
    the machine disturbs least.
    """
    best, spent, done, result = float("inf"), 0.0, 0, None
    while done < rounds or spent < seconds:
        start = clock()
        result = work()
        taken = clock() - start
        best, spent, done = min(best, taken), spent + taken, done + 1
    return best, result
