"""slosh compare."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

import slosh


def test_compare(slosh_):
    code, out, _ = slosh_("compare", "clouds", "--label", "folder", "-k", 3)
    assert code == 0
    assert "SlicedWasserstein" in out
    document = json.loads(slosh_("compare", "clouds", "--label", "folder", "-k", 3, "--json")[1])
    assert document["rows"][0]["precision"] > 0.5
    code, _, err = slosh_("compare", "clouds")
    assert code == 1
    assert "--label" in err


def test_compare_is_quiet(slosh_, tmp_path):
    pytest.importorskip("ot")
    rng = np.random.default_rng(0)
    for i in range(20):  # fewer different points than k-means looks for
        (tmp_path / "few" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "few" / "ab"[i % 2] / f"{i}.npy", rng.integers(0, 3, size=(30, 2)))
    code, _, err = slosh_("compare", tmp_path / "few", "--label", "folder", "-k", 2)
    assert (code, err) == (0, "")


def test_compare_names_the_command_that_builds_the_best(slosh_, tmp_path):
    code, out, _ = slosh_("compare", "clouds", "--label", "folder", "-k", 3, "--center")
    assert code == 0
    *_, summary, line = out.splitlines()
    assert summary.startswith("Best: ")
    start, told = line.split(": ")
    assert start == "To build an index with it"
    words = shlex.split(told)
    assert words[:5] == ["slosh", "build", "INDEX", "clouds", "--center"]
    assert slosh_("build", tmp_path / "a", *words[3:])[0] == 0
    document = json.loads(slosh_("compare", "clouds", "--label", "folder", "-k", 3, "--center", "--json")[1])
    assert document["command"] == told
    assert document["best"] == document["rows"][0]["method"]
    assert summary.startswith(f"Best: {document['best']}: precision ")


def test_the_command_that_it_names_reads_the_files_alike(slosh_, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    lines = ["id,x,y,more,digit"]
    for i in range(24):
        points = rng.normal(scale=1 + 2 * (i % 2), size=(9, 2))
        lines += [f"s{i},{x},{y},7,{i % 2}" for x, y in points]
    (tmp_path / "my digits.txt").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    reading = ["--format", "csv", "--id-column", "id", "--columns", "x,y", "--seed", 5, "--origin", "1,2"]
    code, out, _ = slosh_("compare", "my digits.txt", *reading, "--label", "digit", "-k", 3, "--scale", "rms")
    assert code == 0
    told = shlex.split(out.splitlines()[-1].partition(": ")[2])
    assert told[:4] == ["slosh", "build", "INDEX", "my digits.txt"]
    assert slosh_(*told[1:])[0] == 0
    with slosh.open("INDEX", read_only=True) as index:
        assert (len(index), index.dim, index.preprocess.scale) == (24, 2, "rms")
        assert index.origin.tolist() == [1, 2]
        assert index.embedding.get_params().get("random_state", 5) == 5


def test_sources_whose_files_have_equal_names(slosh_, tmp_path):
    rng = np.random.default_rng(0)
    for i in range(24):
        (tmp_path / "ab"[i % 2]).mkdir(exist_ok=True)
        np.save(tmp_path / "ab"[i % 2] / f"{i // 2}.npy", rng.normal(scale=1 + i % 2, size=(20, 2)))
    code, out, err = slosh_("compare", tmp_path / "a", tmp_path / "b", "--label", "folder", "-k", 3)
    assert (code, err) == (0, "")
    assert out.startswith("24 sets (d = 2, 2 classes)")
    assert "slosh build INDEX SOURCE" in out.splitlines()[-1]
    code, _, err = slosh_("build", tmp_path / "x", tmp_path / "a", tmp_path / "b")
    assert code == 1
    assert "--update" not in err
    assert "give one folder that holds all the files" in err


def test_what_needs_more_sets_is_skipped(slosh_):
    code, out, _ = slosh_("compare", "clouds", "--label", "folder", "-k", 3, "--learned")
    assert code == 0
    said = next(line for line in out.splitlines() if line.startswith("LearnedEmbedding"))
    rule = "it learns from labels, and is measured with 500 sets or more"
    assert said == f"LearnedEmbedding, with labels was skipped: {rule}"
    document = json.loads(slosh_("compare", "clouds", "--label", "folder", "-k", 3, "--learned", "--json")[1])
    assert (document["rows"][-1]["error"], document["rows"][-1]["skipped"]) == (rule, True)
    assert not any(row["skipped"] for row in document["rows"][:-1])


def test_nothing_to_compare(slosh_, tmp_path):
    np.savez(tmp_path / "none.npz", points=np.empty((0, 2)), offsets=np.zeros(1, np.int64))
    code, _, err = slosh_("compare", tmp_path / "none.npz")
    assert code == 1
    assert "none.npz" in err
