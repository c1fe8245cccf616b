"""The benchmarks run, and their pages agree with the measurements. Speed itself is not tested."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import bench_index
import concurrent_search
import index_report
import search_data
import search_report
import single_query
import slosh

ROOT = Path(__file__).resolve().parents[2]


def bench(directory: Path, *options: str) -> dict:
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_search.py"), "--quick", "--cache", "cache"]
    done = subprocess.run(
        [*command, "--out", "search.json", *options], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads((directory / "search.json").read_text())


METHODS = {
    "part": {"ExactSearch", "LadderSearch", "usearch"},
    "all": {
        "ExactSearch", "HammingSearch", "LSHSearch", "LadderSearch", "certified", "FAISS flat", "FAISS LSH",
        "FAISS binary flat", "FAISS IVF RaBitQ", "FAISS IVF prefix", "FAISS HNSW", "usearch",
    },
}  # fmt: skip


def test_quick_run_has_every_method(tmp_path, campaign):
    pytest.importorskip("faiss", minversion="1.15")
    pytest.importorskip("usearch")
    results = bench(tmp_path, *(["--only", *METHODS["part"]] if campaign == "part" else []))
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "search.json"}
    assert len(results["sizes"]) == 2
    for section in results["sizes"].values():
        assert set(section["methods"]) >= METHODS[campaign]
        for name, result in section["methods"].items():
            assert "skipped" not in result, name
            assert result["bytes_per_set"] > 0
            for row in result["levels"]:
                assert 0 < row["recall"] <= 1, name
                assert row["qps"] > 0, name
        exact = section["methods"]["ExactSearch"]["levels"]
        assert [row["recall"] for row in exact] == [1.0]
    assert results["machine"]["threads"] == 1

    if campaign == "part":  # a second run measures what is missing, and keeps the others as they were
        again = bench(tmp_path, "--missing", "--only", "ExactSearch", "FAISS flat")
        for size, section in results["sizes"].items():
            found = again["sizes"][size]["methods"]
            assert set(found) == {*section["methods"], "FAISS flat"}
            assert {name: found[name] for name in section["methods"]} == section["methods"]
        return
    # One that measures a method again keeps the others, too.
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


def run_step_here(name, *arguments, in_a_process=bench_index.run_step, **environment):
    """Run a step of the benchmark of the index in this process, but for the one that pins itself to a core."""
    if name == "add_in_process":
        return in_a_process(name, *arguments, **environment)
    folder, *rest = json.loads(json.dumps(arguments, default=str))
    return json.loads(json.dumps(bench_index.STEPS[name](Path(folder), *rest)))


@pytest.fixture(scope="module", params=["part", pytest.param("all", marks=pytest.mark.long)])
def index_results(request, tmp_path_factory) -> dict:
    """Run a part of the benchmark of the index; nothing but its results may be left.

    It takes ten processes, each of which imports everything; in every run most of it is done in this one.
    """
    folder = tmp_path_factory.mktemp("index")
    command = [str(ROOT / "benchmarks" / "bench_index.py"), "--quick", "--only", "mnist", concurrent_search.NAME]
    command += ["--folder", str(folder), "--out", str(folder / "index.json")]
    if request.param == "all":
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", command)
            patch.setattr(bench_index, "run_step", run_step_here)
            bench_index.main()
    assert [path.name for path in folder.iterdir()] == ["index.json"]
    return json.loads((folder / "index.json").read_text())


def test_quick_run_of_the_index(index_results):
    result = index_results["mnist"]
    assert result["open"]["embedded"] == 0
    assert result["open without caches"]["embedded"] == result["build"]["sets"] == 600
    assert result["queries"]["recall"] == 1.0


def test_searches_during_an_add(index_results):
    result = index_results[concurrent_search.NAME]
    assert (result["sets"], result["added"]) == (600, 1200)
    for name in ("another process", "the same process"):
        found = result[name]
        assert found["completed"]
        assert found["sets_after"] == 1800
        assert found["during"]["queries"] > 0
        for times in (found["without"], found["during"]):
            assert 0 < times["p50_us"] <= times["p99_us"] <= times["max_us"]
        assert found["p99_ratio"] == found["during"]["p99_us"] / found["without"]["p99_us"]
    table = index_report.during_add_table(result)
    assert "while 1,200 sets are added in one call" in table
    assert f"{result['another process']['p99_ratio']:.2f} x" in table


def test_an_add_beyond_its_time_limit_is_rolled_back():
    index = slosh.SetIndex.create(None, 2)
    index.add([[[0.0, 1.0]]], ids=["before"])
    assert not concurrent_search.add_records(index, 20, 1, limit=-1.0)
    assert len(index) == 1
    assert concurrent_search.add_records(index, 20, 1, limit=60.0)
    assert len(index) == 21


def test_versions_are_compared(tmp_path):
    source, out = ROOT / "src", tmp_path / "times.json"
    names = ["embed", "index: add one set", "index: filter, a tenth", "in memory: certified query"]
    command = [sys.executable, str(ROOT / "benchmarks" / "compare_versions.py"), str(source), str(source)]
    command += ["--rounds", "1", "--sets", "300", "--seconds", "0", "--out", str(out), "--only", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "new / old" in done.stdout, done.stderr[-2000:]
    results = json.loads(out.read_text())
    for tree in ("old", "new"):
        assert [list(times) for times in results[tree]] == [names]
        assert min(results[tree][0].values()) > 0
    slower = any(results["new"][0][name] > 1.05 * results["old"][0][name] for name in names)
    assert done.returncode == int(slower)
    wrong = subprocess.run(
        [*command[:2], str(source / "slosh"), str(source)], capture_output=True, text=True, check=False
    )
    assert wrong.returncode != 0
    assert "another slosh was imported" in wrong.stderr or "No module named 'slosh'" in wrong.stderr


def test_a_single_query_is_taken_apart():
    source = str(ROOT / "src")
    command = [sys.executable, str(ROOT / "benchmarks" / "single_query.py"), source, source]
    done = subprocess.run([*command, "--rounds", "1", "--sets", "300"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines()]
    of_a_folder = lines[lines.index(["stages of SetIndex in a folder"]) + 1 :]
    assert [line[0] for line in of_a_folder[: len(single_query.STAGES) + 1]] == [*single_query.STAGES, "all else"]
    assert all(float(cell.removesuffix(" us")) > 0 for line in of_a_folder if len(line) == 3 for cell in line[1:])
    assert "SetIndex in memory, p50" in done.stdout


def test_page_of_the_index_says_what_was_measured():
    page = index_report.PAGE.read_text(encoding="utf-8")
    results = json.loads(index_report.RESULTS.read_text(encoding="utf-8"))
    assert index_report.filled(page, results) == page, "run python benchmarks/index_report.py"
