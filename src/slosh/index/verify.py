"""Checks of everything that an index promises: what is stored, what is held ready for searches, and the answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..data.batching import batches_by_points
from ..data.progress import ProgressBar
from ..engines.base import Engine, View
from ..gpu.devices import CPU
from .planner import Question, answer

MAX_LISTED = 20
"""Problems of one kind that are listed."""
RECALL_QUERIES = 200
EMBEDDED_POINTS = 1 << 17
"""Points of the sets that are embedded together."""


@dataclass
class Report:
    """What `verify` found. `ok` if there is no problem; `checked` says what was looked at, and how much of it."""

    problems: list[str] = field(default_factory=list)
    checked: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        lines = [f"{name}: {what}" for name, what in self.checked.items()]
        return "\n".join([*lines, *(f"PROBLEM: {each}" for each in self.problems), "ok" if self.ok else "not ok"])


def verify(engine: Engine, sample: int | None) -> Report:
    """Check all that is stored, the vectors of all sets or of `sample` of them, and the recall."""
    report = Report()
    with engine.view() as view:
        for name, what, problems in engine.verify():
            report.checked[name] = what
            report.problems += problems
        if report.ok and len(view):
            _verify_vectors(view, report, sample)
            _verify_recall(view, report)
    return report


def _verify_vectors(view: View, report: Report, sample: int | None) -> None:
    """Compare what is held ready with what is embedded anew: bit for bit, or to rounding if another device made it."""
    spec, same = view.spec, view.settings["made_on"] is None and view.spec.made_on == CPU
    keys = view.select()
    if sample is not None and sample < len(keys):
        keys = keys[:: -(-len(keys) // max(1, sample))]
    wrong: list[int] = []
    compared = True
    with ProgressBar(total=len(keys), unit="set", desc="vectors") as bar:
        for part in batches_by_points(view.prepared_sizes(keys), EMBEDDED_POINTS):
            embedded = spec.embed(view.records(keys[part]).sets)
            apart = None if same else spec.apart(embedded)
            if not same and apart is None:
                compared, apart = False, np.full(len(embedded.sets), np.inf)
            good = view.holds(keys[part], embedded, apart)
            wrong += keys[part][~good].tolist()
            bar.update(len(good))
    report.checked["caches"] = f"{len(keys)} sets embedded again{_how(view, same, compared)}"
    if wrong:
        names = ", ".join(map(repr, view.ids(np.array(wrong[:MAX_LISTED], np.int64))))
        report.problems.append(
            f"the vectors or points that are held ready of {len(wrong)} sets are wrong ({names}): call "
            "index.compact(), which makes them anew from what is stored"
        )


def _how(view: View, same: bool, compared: bool) -> str:
    """Say how vectors were compared, where it was not bit for bit."""
    if same:
        return ""
    makers = ", ".join(view.settings["made_on"] or (CPU,))
    if compared:
        return f" on {view.spec.made_on}, and compared to rounding with vectors that were made on {makers}"
    return f"; their vectors were made on {makers}, and how far apart those of two devices may be is not known"


def _verify_recall(view: View, report: Report) -> None:
    """Measure the recall of a default search against an exact one."""
    k, keys = min(10, len(view)), view.select()
    keys = keys[:: max(1, len(keys) // RECALL_QUERIES)][:RECALL_QUERIES]
    queries = view.prepared(keys)
    found = answer(view, queries, None, Question(k=k, recall=view.settings["recall"]))
    promise = found.stats.recall
    if promise is None or promise == 1.0 or not view.capabilities.exact_nearest:
        unknown = "nothing is promised" if promise is None else "not measured: this engine has no exact search"
        report.checked["recall"] = "exact" if promise == 1.0 else unknown
        return
    exact = answer(view, queries, None, Question(k=k, recall=1.0))
    # By distance, not by id: of sets that are equally far an approximate search may take others than an exact one.
    pairs = zip(found.distances, exact.distances, strict=True)
    measured = float(np.mean([np.sum(near <= truth[-1]) / len(truth) for near, truth in pairs]))
    report.checked["recall"] = f"{measured:.4f} over {len(keys)} stored sets, {promise:.4f} promised"
    # The promise is of the mean over many queries; these few are off by chance, by three standard errors at most.
    if measured < promise - 3 * (measured * (1 - measured) / (len(keys) * k)) ** 0.5 - 0.02:
        report.problems.append(f"recall is {measured:.4f}, promised {promise:.4f}: call index.compact()")
