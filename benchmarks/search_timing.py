"""How `make bench-search` times settings: interleaved rounds, and a sweep that leaves out what is dominated.

Times are CPU seconds of this process, the best of the rounds; a hidden second thread would count twice. All settings
get the same queries in one batch.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from search_methods import RECALLS, Array, Bench, Built, Level, Skipped
from search_report import FLAT, size_free
from slosh.evaluate import recall_at_k

ENOUGH, LITTLE, STEPS_TO_GAIN_IT = 0.9999, 0.0002, 3
"""A chain of settings ends at this recall, or where so many steps add less recall than that."""
LEAST_SECONDS = 0.05
"""Calls are repeated for this long in a round."""
SINGLE_QUERIES = 100
CONTENDERS, SINGLE_CONTENDERS = 3, 2
"""Builds that LadderSearch meets at each recall: the best by batches, and by single queries."""
NEAR_THE_BEST, HOPELESS, HOPELESS_KIND = 0.85, 0.6, 0.4
"""Settings are timed again if they are so near to their method's best, and not so far from the best of all. No more of
a kind of index is built if one of it was so far from the best at every recall."""


def recall(found: Any, truth: Array) -> float:
    """Return recall@K over the queries whose true neighbours are known."""
    return round(float(np.mean(recall_at_k(np.asarray(found)[: len(truth)], truth))), 5)


def batch_seconds(level: Level, queries: Any, least: float = LEAST_SECONDS) -> tuple[float, float, Any]:
    """Return the best CPU and wall seconds of calls with all queries, and what they found."""
    level.choose()
    best_cpu = best_wall = float("inf")
    spent = 0.0
    while True:
        wall, cpu = time.perf_counter(), time.process_time()
        found = level.search(queries)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        best_cpu, best_wall, spent = min(best_cpu, cpu), min(best_wall, wall), spent + cpu
        if spent >= least:
            return best_cpu, best_wall, found


def single_us(level: Level, queries: Any, n: int = SINGLE_QUERIES) -> float:
    """Return the median CPU microseconds of up to n queries asked one at a time, for about half a second."""
    level.choose()
    times: list[float] = []
    for i in range(min(n, len(queries))):
        one = queries[i : i + 1]
        start = time.process_time()
        level.search(one)
        times.append(time.process_time() - start)
        if sum(times) > 0.5 and i >= 4:
            break
    return 1e6 * float(np.median(times))


def time_in_turns(
    levels: list[Level], queries: Any, rounds: int, singles: bool = True, least: float = LEAST_SECONDS
) -> list[dict[str, float]]:
    """Return the best times of settings that take turns, as queries per second and as microseconds of one query."""
    best = [{"cpu": float("inf"), "wall": float("inf"), "single": float("inf")} for _ in levels]
    for _ in range(rounds):
        for level, times in zip(levels, best, strict=True):
            cpu, wall, _ = batch_seconds(level, queries, least)
            times["cpu"], times["wall"] = min(times["cpu"], cpu), min(times["wall"], wall)
    for _ in range(rounds if singles else 0):
        for level, times in zip(levels, best, strict=True):
            times["single"] = min(times["single"], single_us(level, queries))
    n = len(queries)
    figures = [{"qps": round(n / times["cpu"], 2), "wall_qps": round(n / times["wall"], 2)} for times in best]
    if singles:
        for figure, times in zip(figures, best, strict=True):
            figure["p50_us"] = round(times["single"], 1)
    return figures


def fastest(rows: list[dict[str, Any]], least_recall: float, measure: str = "qps") -> dict[str, Any] | None:
    """Return the fastest of the settings that reach a recall (by `p50_us`: of those timed one query at a time)."""
    good = [row for row in rows if row["recall"] >= least_recall and measure in row]
    if not good:
        return None
    return min(good, key=lambda row: row[measure]) if measure == "p50_us" else max(good, key=lambda row: row[measure])


def walk(chain: list[Level], bench: Bench, beaten: Callable[[float], bool]) -> list[tuple[Level, dict[str, Any]]]:
    """Time the settings of a chain once each, until more effort cannot help. Low recalls are passed in long strides."""
    rows: list[tuple[Level, dict[str, Any]]] = []
    reached: list[float] = []
    number = 0
    while number < len(chain):
        level = chain[number]
        seconds, _, found = batch_seconds(level, bench.queries, 0.0)
        qps = len(bench.queries) / seconds
        reached.append(recall(found, bench.truth))
        size = round(level.size / len(bench.data), 1)
        rows.append((level, {"level": level.name, "recall": reached[-1], "qps": round(qps, 2), "bytes_per_set": size}))
        before = reached[-1 - STEPS_TO_GAIN_IT] if len(reached) > STEPS_TO_GAIN_IT else 0.0
        if reached[-1] >= ENOUGH or beaten(qps) or (before > 0.5 and reached[-1] - before < LITTLE):
            break
        number += 1 if reached[-1] > 0.85 else 2 if reached[-1] > 0.6 else 4
    return rows


def sweep(make: Callable[[Bench], Built], bench: Bench, known: list[dict[str, Any]]) -> dict[str, Any]:
    """Build a method, walk its chains, and time its best settings again; `known` are settings of other methods."""
    start = time.process_time()
    built = make(bench)
    seconds = time.process_time() - start + built.kept_seconds
    complete = fastest(known, ENOUGH)

    def beaten(qps: float) -> bool:
        """Say whether a known setting that finds nearly everything is faster."""
        return complete is not None and qps < complete["qps"]

    walked = [pair for chain in built.chains for pair in walk(chain, bench, beaten)]
    rows = [row for _, row in walked]

    def promising(row: dict[str, Any]) -> bool:
        own, other = fastest(rows, row["recall"]), fastest(known, row["recall"])
        far = other is not None and row["qps"] < HOPELESS * other["qps"]
        return own is not None and row["qps"] >= NEAR_THE_BEST * own["qps"] and not far

    again = [(level, row) for level, row in walked if promising(row)]
    figures = time_in_turns([level for level, _ in again], bench.queries, bench.rounds, least=0.0)
    for (_, row), figure in zip(again, figures, strict=True):
        row |= figure
    shown = [row for row in rows if fastest(rows, row["recall"]) is row or promising(row)]
    del walked, again
    gc.collect()
    return {"build_s": round(seconds, 2), "note": built.note, "levels": shown}


def check_hopeful(name: str, others: dict[str, list[dict[str, Any]]]) -> None:
    """Raise Skipped if a build that differs in its number of lists or links is far behind the best at every recall.

    Plain inverted lists are always built, as their time to build is compared.
    """
    everything = [row for rows in others.values() for row in rows]
    for other, rows in others.items():
        if size_free(other) != size_free(name) or name.endswith(" flat"):
            continue
        pairs = [(fastest(rows, least), fastest(everything, least)) for least in RECALLS[:-1]]
        if not any(own and best and own["qps"] >= HOPELESS_KIND * best["qps"] for own, best in pairs):
            raise Skipped(f"{other} has less than {HOPELESS_KIND:g} of the speed of the best at every recall")


def contenders(swept: dict[str, Any], reached: dict[float, float]) -> dict[str, set[str]]:
    """Return the builds, and of each the settings, that LadderSearch has to meet, given the recalls that it reached.

    They are the fastest that reach as much, FAISS's scan, and FAISS's plain inverted lists for their time to build.
    """
    levels = {name: result.get("levels", []) for name, result in swept.items()}
    plain = [name for name in levels if name.startswith("FAISS IVF") and name.endswith(" flat")]
    chosen: dict[str, set[str]] = {FLAT: {"scan"}}

    def choose(names: list[str], least: float, measure: str, n: int) -> None:
        best = [(row[measure], name, row["level"]) for name in names if (row := fastest(levels[name], least, measure))]
        for _, name, level in sorted(best, reverse=measure == "qps")[:n]:
            chosen.setdefault(name, set()).add(level)

    for asked in RECALLS[:-1]:
        choose(list(levels), reached[asked], "qps", CONTENDERS)
        choose(list(levels), reached[asked], "p50_us", SINGLE_CONTENDERS)
    choose(plain, 0.99, "qps", 1)
    return chosen
