"""The benchmark of the searches picks the peers that are hardest to beat, and says where LadderSearch loses."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import search_report
import search_timing
from search_methods import K, Level, Skipped

VNNI, PLAIN = {"vnni": True}, {"vnni": False}


def figures(qps: float, p50_us: float = 100.0) -> dict:
    return {"qps": qps, "wall_qps": qps, "p50_us": p50_us}


def peer(level: str, recall: float, qps: float, p50_us: float = 100.0) -> dict:
    return {"level": level, "recall": recall, "bytes_per_set": 100.0, **figures(qps, p50_us)}


def duel(*levels: dict, qps: float = 1000.0, recall: float = 0.96, p50_us: float = 50.0) -> dict:
    """Return a duel in which LadderSearch reaches the same recall and speed whatever it is asked for."""
    own = [{"asked": asked, "recall": recall, **figures(qps, p50_us)} for asked in (0.9, 0.95, 0.99, 1.0)]
    return {"build_s": 1.0, "ladder": own, "levels": list(levels), "date": "2026-01-01 00:00"}


def cell_of(**duels: dict) -> dict:
    ladder = {"LadderSearch": {"build_s": 2.0, "bytes_per_set": 50.0}}
    scan = {"FAISS flat": duel(peer("scan", 0.95, 100.0, 9000.0))}
    return {"rows": 60_000, "dim": 64, "ladder": ladder, "duels": {**scan, **duels}}


def verdict(cell: dict, asked: float = 0.95, machine: dict = VNNI) -> dict:
    return next(row for row in search_report.verdicts(cell, machine) if row["asked"] == asked)


def test_a_peer_with_less_recall_does_not_count():
    found = verdict(cell_of(A=duel(peer("a", 0.9599, 5000.0), peer("b", 0.96, 500.0))))
    assert (found["peer"], found["peer_qps"], found["ratio"]) == ("A, b", 500.0, 2.0)
    assert found["reached"]


def test_ratios_compare_times_of_one_duel():
    slow_minute = duel(peer("a", 0.97, 700.0), qps=500.0)  # the peer is faster here, though 700 is less than 800
    found = verdict(cell_of(A=slow_minute, B=duel(peer("b", 0.97, 800.0))))
    assert (found["peer"], found["qps"]) == ("A, a", 500.0)
    assert found["ratio"] == pytest.approx(5 / 7)
    assert not found["reached"]


@pytest.mark.parametrize(("machine", "asked", "least"), [
    (VNNI, 0.9, 1.2), (VNNI, 0.95, 1.5), (VNNI, 0.99, 2.0), (VNNI, 1.0, 1.5), (PLAIN, 0.9, 1.2), (PLAIN, 0.99, 1.2),
    (PLAIN, 1.0, 1.2),
])  # fmt: skip
def test_goals(machine, asked, least):
    def reached(qps: float) -> bool:
        fast = duel(peer("a", 1.0, 1000.0), qps=qps, recall=0.999)
        return verdict(cell_of(**{"FAISS flat": fast}), asked, machine)["reached"]

    assert reached(1000 * least)
    assert not reached(1000 * least - 1)


def test_less_recall_than_asked_is_lost():
    cell = cell_of(A=duel(peer("a", 0.99, 10.0)))
    assert verdict(cell, 0.95)["reached"]
    found = verdict(cell, 0.99)
    assert found["short"]
    assert not found["reached"]
    lines = search_report.batch_table({"w64-60k": cell}, VNNI).splitlines()
    assert ["**lost**: below the asked recall" in line for line in lines[2:]] == [False, False, True, False]


def test_exact_search_is_compared_with_the_scan_only():
    found = verdict(cell_of(A=duel(peer("a", 1.0, 5000.0))), 1.0)
    assert (found["peer"], found["ratio"]) == ("FAISS flat, scan", 10.0)


def test_single_queries_have_two_limits():
    def found(own: float, other: float) -> dict:
        return verdict(cell_of(A=duel(peer("a", 0.97, 10.0, other), qps=50_000.0, p50_us=own)))

    assert found(35.0, 40.0)["single_reached"]  # a part of a batch is 20 us
    assert not found(36.0, 40.0)["single_reached"]
    assert not found(35.0, 34.0)["single_reached"]
    assert found(35.0, 34.0)["single_peer"] == "A, a"


def test_every_lost_cell_is_marked():
    cells = {"w64-60k": cell_of(A=duel(peer("a", 0.97, 1001.0, 49.0))), "s256-60k": cell_of()}
    for table in (search_report.batch_table(cells, VNNI), search_report.single_table(cells, VNNI)):
        lost = [line.split(" | ")[:2] for line in table.splitlines() if "**lost**" in line and "below" not in line]
        assert [line for line in lost if line[1] != "exact"][:2] == [["| w64-60k", "0.9"], ["| w64-60k", "0.95"]]
        assert not [line for line in lost if line[0] == "| s256-60k"]


def test_building_is_compared_with_the_fastest_plain_lists():
    duels = {"FAISS IVF256 flat": duel(peer("a", 0.99, 10.0)), "FAISS IVF512 flat": duel(peer("b", 0.99, 20.0)),
             "FAISS IVF1024 flat": duel(peer("c", 0.98, 30.0)), "A": duel(peer("d", 0.999, 400.0))}  # fmt: skip
    for seconds, result in enumerate(duels.values(), 1):
        result["build_s"] = seconds
    line = search_report.build_table({"w64-60k": cell_of(**duels)}).splitlines()[-1]
    assert line == "| w64-60k | 2.0 | FAISS IVF512 flat | 2.0 | A | 4.0 | yes |"
    duels["FAISS IVF512 flat"]["build_s"] = 1.9
    assert search_report.build_table({"w64-60k": cell_of(**duels)}).splitlines()[-1].endswith("| **lost** |")


def test_what_another_of_its_kind_beats_is_not_stored():
    peers = {
        "FAISS IVF256 flat": {"levels": [peer("low", 0.8, 999.0), peer("a", 0.9, 50.0), peer("b", 0.95, 20.0)]},
        "FAISS IVF512 flat": {"levels": [peer("c", 0.9, 40.0), peer("d", 0.95, 30.0)]},
        "FAISS HNSW M16": {"levels": [peer("e", 0.9, 1.0)]},
        "hnswlib M16": {"skipped": "too slow to build"},
    }
    kept = search_report.thinned({"simd": {"native": {"cells": {"w64-60k": {"peers": peers}}}}})
    found = kept["simd"]["native"]["cells"]["w64-60k"]["peers"]
    names = {name: [row["level"] for row in result.get("levels", [])] for name, result in found.items()}
    assert names == {"FAISS IVF256 flat": ["a"], "FAISS IVF512 flat": ["d"], "FAISS HNSW M16": ["e"], "hnswlib M16": []}


# -- what is timed -----------------------------------------------------------------------------------------------------


def levels_of(reached: list[int], asked: list[int]) -> tuple[list[Level], SimpleNamespace]:
    """Return a chain of settings that find so many of a thousand neighbours, and their bench; `asked` notes them."""
    truth = np.arange(1000).reshape(100, K)

    def level(number: int, n: int) -> Level:
        found = np.where(truth < n, truth, -1)

        def search(queries: np.ndarray) -> np.ndarray:
            asked.append(number)
            return found[: len(queries)]

        return Level(str(number), search, 500)

    bench = SimpleNamespace(queries=np.zeros((100, 3), np.float32), truth=truth, data=range(50), rounds=1)
    return [level(number, n) for number, n in enumerate(reached)], bench


@pytest.mark.parametrize(("reached", "walked"), [
    ([900, 950, 1000, 1000, 1000], [0, 1, 2]),  # all were found
    ([900, 950, 950, 950, 950, 990], [0, 1, 2, 3, 4]),  # no gain in three steps
    ([900, 950, 950, 950, 951, 952], [0, 1, 2, 3, 4, 5]),
    ([100, 100, 100, 100, 700, 800, 900, 950], [0, 4, 6, 7]),  # long strides
])  # fmt: skip
def test_a_chain_is_walked_until_more_effort_cannot_help(reached, walked):
    asked: list[int] = []
    chain, bench = levels_of(reached, asked)
    rows = search_timing.walk(chain, bench, lambda qps: False)
    assert asked == walked
    assert [row["recall"] for _, row in rows] == [reached[number] / 1000 for number in walked]
    assert {row["bytes_per_set"] for _, row in rows} == {10.0}


def test_a_chain_ends_where_a_complete_setting_is_faster():
    asked: list[int] = []
    chain, bench = levels_of([900, 920, 940, 960], asked)
    search_timing.walk(chain, bench, lambda qps: len(asked) == 2)
    assert asked == [0, 1]


def test_the_best_at_each_recall_are_met_again():
    swept = {
        "A": {"levels": [peer("fast", 0.92, 900.0), peer("thorough", 0.999, 100.0, 20.0)]},
        "B": {"levels": [peer("fast", 0.93, 800.0)]},
        "C": {"levels": [peer("fast", 0.93, 700.0)]},
        "D": {"levels": [peer("too slow", 0.93, 600.0)]},
        "E": {"levels": [peer("one by one", 0.96, 60.0, 10.0)]},
        "FAISS IVF16 flat": {"levels": [peer("nprobe 9", 0.999, 1.0, 500.0)]},
        "G": {"levels": [peer("medium", 0.999, 95.0)]},
        "H": {"levels": [peer("medium", 0.999, 94.0)]},
        "F": {"skipped": "too slow to build"},
    }
    chosen = search_timing.contenders(swept, {0.9: 0.92, 0.95: 0.96, 0.99: 0.995, 1.0: 1.0})
    assert chosen == {
        "FAISS flat": {"scan"}, "A": {"fast", "thorough"}, "B": {"fast"}, "C": {"fast"}, "E": {"one by one"},
        "FAISS IVF16 flat": {"nprobe 9"}, "G": {"medium"}, "H": {"medium"},
    }  # fmt: skip


def test_no_more_is_built_of_a_kind_that_is_far_behind():
    others = {
        "FAISS IVF256 PQ16x4 fast scan": [peer("a", 0.9, 1000.0), peer("b", 0.99, 100.0)],
        "FAISS HNSW M16": [peer("c", 0.95, 399.0 / 10)],
        "hnswlib M16": [peer("d", 0.99, 40.0)],
        "FAISS PCA16 IVF256": [peer("f", 0.9, 10.0)],
        "FAISS IVF256 flat": [peer("e", 0.99, 1.0)],
    }
    with pytest.raises(Skipped, match="FAISS HNSW M16"):
        search_timing.check_hopeful("FAISS HNSW M32", others)
    for name in (
        "hnswlib M32",
        "FAISS IVF512 PQ32x4 fast scan",
        "FAISS IVF512 flat",
        "FAISS HNSW SQ8 M16",
        "FAISS PCA32 IVF256",
    ):
        search_timing.check_hopeful(name, others)


@pytest.mark.parametrize(("build", "kind"), [
    ("FAISS PCA32 IVF256 PQ16x4 fast scan", "FAISS PCA IVF PQx4 fast scan"), ("FAISS IVF1024 flat", "FAISS IVF flat"),
    ("FAISS HNSW SQ8 M32", "FAISS HNSW SQ8"), ("ScaNN 512", "ScaNN"), ("usearch f16", "usearch"),
    ("FAISS flat", "FAISS flat"), ("FAISS IVF256 SQ8", "FAISS IVF SQ8"),
])  # fmt: skip
def test_kinds_of_index(build, kind):
    assert search_report.family(build) == kind
