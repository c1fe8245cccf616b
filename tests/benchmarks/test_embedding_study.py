"""The study of embeddings: its page agrees with the measurements, missing data are left out, files are read right."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import embedding_study
import study_data
from slosh.embed import MeanPool
from token_vectors import MOST_TOKENS, words_to_tokens


def test_page_says_what_was_measured():
    page = embedding_study.PAGE.read_text(encoding="utf-8")
    results = json.loads(embedding_study.RESULTS.read_text(encoding="utf-8"))
    assert set(results["cases"]) == set(study_data.LOADERS)
    assert embedding_study.filled(page, results) == page, "run python benchmarks/embedding_study.py --redraw"


@pytest.mark.parametrize("name", sorted(study_data.LOADERS))
def test_missing_files_are_a_reason_to_leave_a_data_set_out(name, tmp_path, monkeypatch):
    monkeypatch.setattr(study_data, "DATA", tmp_path)
    with pytest.raises(study_data.Absent, match=r"no |is not there: unpack"):
        study_data.LOADERS[name](tmp_path)


def test_a_run_without_files_keeps_what_was_measured(tmp_path, monkeypatch, capsys):
    earlier, results, page = embedding_study.RESULTS.read_text(), tmp_path / "results.json", tmp_path / "page.md"
    results.write_text(earlier)
    page.write_text(text := embedding_study.PAGE.read_text())
    monkeypatch.setattr(embedding_study, "RESULTS", results)
    monkeypatch.setattr(embedding_study, "PAGE", page)
    monkeypatch.setattr(sys, "argv", ["study", str(tmp_path), "--only", "mutagens"])
    embedding_study.main()
    assert "left out: " in capsys.readouterr().out
    assert results.read_text() == earlier
    assert page.read_text() == text


def test_a_query_is_not_its_own_neighbour_even_behind_equals():
    # Rows 0 to 5 are the same set: the search finds five of them, and row 5 does not find itself.
    sets = [[[0.0, 0.0]]] * 6 + [[[1.0, 0.0]]] * 6
    case = study_data.everyone("twelve", sets, np.arange(12))
    found = embedding_study.neighbours(case, MeanPool())
    assert found.shape == (12, 4)
    for query, row in zip(case.wanted, found, strict=True):
        assert query not in row
        assert set(row // 6) == {query // 6}


def test_halves_of_the_queries_and_their_gain():
    case = study_data.everyone("four", [[[0.0]]] * 4, ["a", "a", "b", "b"])
    case.wanted = np.array([0, 0, 1, 1])
    plain, found = np.array([[0], [1], [0], [0]]), np.array([[1], [0], [1], [0]])
    result = embedding_study.score(case, found, plain)
    assert result["chosen_on"] == {"precision": 0.5, "error": 0.5, "vote": 0.5, "gain": 0.0, "gain_error": 1.0}
    assert result["reported"] == {"precision": 0.5, "error": 0.5, "vote": 0.5, "gain": 0.5, "gain_error": 0.5}


def test_series_become_sets(tmp_path):
    folder = tmp_path / "aeon" / "datasets" / "data" / "JapaneseVowels"
    folder.mkdir(parents=True)
    for part in ("TRAIN", "TEST"):
        (folder / f"JapaneseVowels_{part}.ts").write_text("@about\n@data\n1,2,3:4,5,6:one\n7,8:9,10:two\n")
    series, labels = study_data.read_series(tmp_path, "JapaneseVowels")
    assert labels == ["one", "two"] * 2
    assert series[0].tolist() == [[1, 4], [2, 5], [3, 6]]
    assert len(study_data.speakers(tmp_path).stored) == 4


def test_molecules_become_sets_of_atoms(tmp_path):
    atoms = "\n".join(f"    0.0000    0.0000    0.0000 {kind:<3} 0  0" for kind in ("C", "C", "O"))
    record = f"ethanol\n  program\n\n  3  2  0\n{atoms}\n  1  2  1  0\n  2  3  1  0\nM  END\n"
    record += ">  <SOL_classification>  (1) \n(C) high\n\n$$$$\n"
    (tmp_path / "ethanol.sdf").write_text(record)
    [(kinds, bonds, label)] = study_data.read_molecules(tmp_path / "ethanol.sdf")
    assert (kinds, bonds.tolist(), label) == (["C", "C", "O"], [[0, 1], [1, 2]], "(C) high")
    features = study_data.node_features(np.array([0, 0, 1]), bonds, 2)
    assert features[1, :4].tolist() == [1, 0, 0.5, 0.5]  # carbon, between carbon and oxygen
    assert features[:, 4].tolist() == [0.25, 0.5, 0.25]
    assert features[:, 5].tolist() == [0.5, 1.0, 0.5]  # walks of two steps that return


def test_words_become_tokens():
    vocabulary = {name: i for i, name in enumerate(("[UNK]", "play", "##ing", "##in", ".", "the"))}
    assert words_to_tokens("The playing.", vocabulary) == [5, 1, 2, 4]
    assert words_to_tokens("the play-ing played", vocabulary) == [5, 1, 0, 0, 0]  # no piece fits: the word is unknown
    assert len(words_to_tokens("the " * 500, vocabulary)) == MOST_TOKENS
