"""The benchmark of the searches runs, and its page says what it measured. How fast anything is, is not tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import index_report
import search_data
import search_report
import slosh.search

ROOT = Path(__file__).resolve().parents[2]


def bench(directory: Path, *options: str) -> dict:
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_search.py"), "--quick", "--cache", "cache"]
    done = subprocess.run(
        [*command, "--out", "search.json", *options], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads((directory / "search.json").read_text())


def test_quick_run_has_every_method(tmp_path):
    pytest.importorskip("faiss", minversion="1.15")
    pytest.importorskip("usearch")
    results = bench(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "search.json"}
    assert len(results["sizes"]) == 2
    for section in results["sizes"].values():
        assert set(section["methods"]) >= {
            "ExactSearch", "HammingSearch", "LSHSearch", "LadderSearch", "certified", "FAISS flat", "FAISS LSH",
            "FAISS binary flat", "FAISS IVF RaBitQ", "FAISS IVF prefix", "FAISS HNSW", "usearch",
        }  # fmt: skip
        for name, result in section["methods"].items():
            if "skipped" in result:
                missing = result["skipped"].rpartition(" ")[2]
                assert not hasattr(slosh.search, missing), f"{name}: {result['skipped']}"
                continue
            assert result["bytes_per_set"] > 0
            for row in result["levels"]:
                assert 0 < row["recall"] <= 1, name
                assert row["qps"] > 0, name
        exact = section["methods"]["ExactSearch"]["levels"]
        assert [row["recall"] for row in exact] == [1.0]
    assert results["machine"]["threads"] == 1

    # A second run of one method keeps the others as they were.
    again = bench(tmp_path, "--only", "ExactSearch")
    for size, section in results["sizes"].items():
        others = {name: result for name, result in section["methods"].items() if name != "ExactSearch"}
        assert {name: again["sizes"][size]["methods"][name] for name in others} == others
    before = again["sizes"]
    assert bench(tmp_path, "--missing", "--only", "ExactSearch", "FAISS flat")["sizes"] == before


def test_page_says_what_was_measured():
    page = search_report.PAGE.read_text(encoding="utf-8")
    results = json.loads(search_report.RESULTS.read_text(encoding="utf-8"))
    assert not results["quick"]
    assert search_report.filled(page, results) == page, "run python benchmarks/search_report.py"


def test_mapped_sets_are_seeded_and_belong_to_their_vectors(tmp_path):
    made = search_data.million(n_maps=2, cache=tmp_path, n_train=40, n_queries=7)
    again = search_data.million(n_maps=2, cache=tmp_path / "other", n_train=40, n_queries=7)
    assert made.vectors.shape == (80, 1024)
    assert made.vectors.dtype == np.float32
    assert np.array_equal(made.vectors, again.vectors)
    assert np.array_equal(made.queries, again.queries)
    assert np.array_equal(np.concatenate([made.model.transform(batch) for batch in made.batches()]), made.vectors)
    part = made.subset(30)
    assert len(part) == 30
    assert np.array_equal(np.concatenate([part.model.transform(batch) for batch in part.batches()]), part.vectors)
    assert np.array_equal(part.queries, made.queries)
    other = search_data.million(n_maps=2, seed=1, cache=tmp_path, n_train=40, n_queries=7)
    assert not np.array_equal(other.vectors, made.vectors)


def test_generated_sets_stand_in_where_there_is_no_data(monkeypatch):
    monkeypatch.setattr(search_data, "DATA", Path(os.devnull) / "nothing.npz")
    made = search_data.mnist(20, 5)
    assert "generated" in made.data
    assert made.vectors.shape == (20, 1024)
    assert len(made.query_sets) == 5


def test_quick_run_of_the_index(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_index.py"), "--quick", "--only", "mnist"]
    command += ["--folder", str(tmp_path), "--out", str(tmp_path / "index.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [path.name for path in tmp_path.iterdir()] == ["index.json"]
    result = json.loads((tmp_path / "index.json").read_text())["mnist"]
    assert result["open"]["embedded"] == 0
    assert result["open without caches"]["embedded"] == result["build"]["sets"] == 600
    assert result["queries"]["recall"] == 1.0


def test_page_of_the_index_says_what_was_measured():
    page = index_report.PAGE.read_text(encoding="utf-8")
    results = json.loads(index_report.RESULTS.read_text(encoding="utf-8"))
    assert index_report.filled(page, results) == page, "run python benchmarks/index_report.py"
