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
from slosh.native import kernel

ROOT = Path(__file__).resolve().parents[2]


def bench(directory: Path, *options: str) -> dict:
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_search.py"), "--quick", "--cache", "cache"]
    done = subprocess.run(
        [*command, "--out", "search.json", *options], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads((directory / "search.json").read_text())


def test_quick_run_measures_every_step(tmp_path, campaign):
    pytest.importorskip("faiss", minversion="1.15")
    pytest.importorskip("usearch")
    cells = ["w64-60k"] if campaign == "part" else ["w64-60k", "s1024-1m"]
    only = [] if campaign == "all" else ["--only", "IVF16 flat", "PQ32", "usearch f16"]
    found = bench(tmp_path, "--cells", *cells, *only)
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "search.json"}
    part = found["simd"]["native"]
    assert part["machine"]["threads"] == 1
    assert set(part["cells"]) == set(cells)
    for name, cell in part["cells"].items():
        assert {"peers", "ladder", "duels", "filters"} <= set(cell)
        assert ("certified" in cell) == (name == "s1024-1m")
        assert {"FAISS IVF16 flat", "usearch f16"} <= set(cell["peers"])
        skipped = [result["skipped"] for result in cell["peers"].values() if "skipped" in result]
        assert all("of the speed of the best" in reason for reason in skipped), "a busy machine may make one slow"
        assert "FAISS flat" in cell["duels"]
        results = [result for step in ("peers", "duels") for result in cell[step].values()]
        rows = [row for result in results for row in result.get("levels", [])]
        assert all(0 < row["recall"] <= 1 and row["qps"] > 0 and row["bytes_per_set"] > 0 for row in rows)
        verdicts = search_report.verdicts(cell, part["machine"])
        assert [row["asked"] for row in verdicts] == [0.9, 0.95, 0.99, 1.0]
        assert verdicts[-1]["recall"] >= 0.99
        assert cell["filters"]["0.5"]["recall"] >= 0.98

    # A run that goes on measures only what is missing, and leaves the rest as it was.
    again = bench(tmp_path, "--cells", *cells, *(only and [*only, "IVF16 SQ8"]), "--missing", "--steps", "peers")
    for name, cell in part["cells"].items():
        after = again["simd"]["native"]["cells"][name]
        assert set(after["peers"]) == set(cell["peers"]) | {"FAISS IVF16 SQ8"}
        assert {build: after["peers"][build] for build in cell["peers"]} == cell["peers"]
        assert after["duels"] == cell["duels"]


def test_avx2_holds_slosh_and_faiss(tmp_path):
    pytest.importorskip("faiss", minversion="1.15")
    if kernel.native is None or "avx2" not in kernel.native.names():
        pytest.skip("this processor has no AVX2")
    found = bench(tmp_path, "--cells", "s256-60k", "--steps", "peers", "--only", "IVF16 flat", "--simd", "avx2")["simd"]
    assert list(found) == ["avx2"]
    assert list(found["avx2"]["cells"]) == ["s256-60k"]
    machine = found["avx2"]["machine"]
    assert (machine["kernel"], machine["faiss_simd"], machine["vnni"]) == ("avx2", "AVX2", False)


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


@pytest.mark.parametrize("name", search_data.MODELS)
def test_every_kind_of_vectors_has_the_length_of_its_name(tmp_path, name):
    few = search_data.mnist(300, 5, name)
    many = search_data.million(n_maps=2, cache=tmp_path, n_train=300, n_queries=5, model_name=name)
    assert few.vectors.shape == (300, int(name[1:]))
    assert many.vectors.shape == (600, int(name[1:]))
    assert many.queries.shape == (10, int(name[1:]))
    assert np.array_equal(np.concatenate([many.model.transform(batch) for batch in many.batches()]), many.vectors)


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


def test_single_queries_are_measured_beside_faiss():
    command = [sys.executable, str(ROOT / "benchmarks" / "single_query.py"), str(ROOT / "src")]
    given = ["--beside-faiss", "w64", "--rounds", "1", "--sets", "2000"]
    done = subprocess.run([*command, *given], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()[2:]]
    assert [float(line[0]) for line in lines] == list(single_query.RECALLS)
    assert all(float(line[1]) >= float(line[0]) and float(line[2]) > 0 < float(line[4]) for line in lines)


def test_opening_is_measured(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_open.py"), str(ROOT / "src")]
    given = ["--index", str(tmp_path / "index"), "--maps", "0", "--slices", "4", "--sets", "1200", "--rounds", "1"]
    done = subprocess.run([*command, *given], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("1,200 sets")
    seconds = [float(line.split()[-5]) for line in done.stdout.splitlines() if line.endswith("CPU")]
    assert len(seconds) in (3, 6)
    assert min(seconds) > 0
    assert os.listdir(tmp_path) == ["index"]


def test_page_of_the_index_says_what_was_measured():
    page = index_report.PAGE.read_text(encoding="utf-8")
    results = json.loads(index_report.RESULTS.read_text(encoding="utf-8"))
    assert index_report.filled(page, results) == page, "run python benchmarks/index_report.py"


@pytest.mark.long
def test_batch_jobs_are_measured(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed")
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_batch.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.endswith("}"))
    assert list(found) == ["views", "sliced", "shards", "graph"]
    assert all(json.loads(each)["two_workers_s"] > 0 for each in found.values())
