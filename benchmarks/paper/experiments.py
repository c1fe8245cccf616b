"""All experiments by name, in the order in which they run."""

from __future__ import annotations

from types import ModuleType

import sensitivity
import table1

EXPERIMENTS: dict[str, ModuleType] = {"table1": table1, "sensitivity": sensitivity}
