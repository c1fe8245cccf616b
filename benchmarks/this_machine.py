"""What the benchmarks ran on."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu() -> str:
    """The name of the processor."""
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
