"""All experiments by name, in the order in which they run. Each yields its units of work."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import complexity
import differences
import distances
import monte_carlo
import retrievals
import sensitivity
import table1
import times
import whitened
from ledger import Unit
from protocol import Plan

EXPERIMENTS: dict[str, Callable[[Plan], Iterator[Unit]]] = {
    "table1": table1.units,
    "whitened": whitened.units,
    "differences": differences.units,
    "sensitivity": sensitivity.units,
    "retrievals": retrievals.units,
    "distances": distances.units,
    "monte_carlo": monte_carlo.units,
    "complexity": complexity.units,
    "times": times.units,
    "we": table1.units_of_we,
    "whitened_we": whitened.units_of_we,
}
