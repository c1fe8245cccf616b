"""All experiments by name, in the order in which they run."""

from __future__ import annotations

from types import ModuleType

import complexity
import distances
import monte_carlo
import retrievals
import sensitivity
import table1
import times

EXPERIMENTS: dict[str, ModuleType] = {
    "table1": table1,
    "sensitivity": sensitivity,
    "retrievals": retrievals,
    "distances": distances,
    "monte_carlo": monte_carlo,
    "complexity": complexity,
    "times": times,
}
