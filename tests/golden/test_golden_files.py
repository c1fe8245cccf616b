"""Files that earlier versions of slosh have written are read by this one: searches, embeddings, exports of an index.

Each folder tests/golden/search-vN holds searches that `Search.save` wrote in the format version N: NAME.search, and
NAME.json with what it held and answered. export-vN.parquet is what `SetIndex.export` wrote, and embedding-vN holds what
`slosh.save_embedding` did, with vectors. The scripts make_*.py say how. They are never made again.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest

import slosh
from slosh.search import load

FOLDER = Path(__file__).parent
SEARCHES = sorted(FOLDER.glob("search-v*/*.search"))
EXPORTS = sorted(FOLDER.glob("export-v*.parquet"))
EMBEDDINGS = sorted(FOLDER.glob("embedding-v*/*.slosh-embedding"))


@pytest.fixture(params=SEARCHES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def saved(request):
    """The path of a saved search, and what is known of it."""
    return request.param, json.loads(request.param.with_suffix(".json").read_text())


def crc(array):
    return zlib.crc32(array.astype("<f4").tobytes())


def check_search(search, told):
    assert type(search).__name__ == told["class"]
    assert search.rows.tolist() == told["rows"]
    if told["vectors"] is not None:
        assert crc(search.vectors(search.rows)) == told["vectors"]
    for answer in told["answers"]:
        found = getattr(search, answer["method"])(np.array(told["queries"]), **answer["options"])
        assert found.distance_kind == answer["kind"]
        assert found.rows.tolist() == answer["rows"], answer["options"]
        if answer["offsets"] is not None:
            assert found.offsets.tolist() == answer["offsets"]
        np.testing.assert_allclose(found.distances, answer["distances"], rtol=1e-5)  # other processors round otherwise


def test_there_are_golden_files():
    """Of every kind, since a glob that matches nothing tests nothing."""
    kinds = {json.loads(path.with_suffix(".json").read_text())["class"] for path in SEARCHES}
    assert kinds == {"ExactSearch", "HammingSearch", "LSHSearch", "LadderSearch"}
    assert [path.name for path in EXPORTS] == ["export-v1.parquet"]
    assert [path.stem for path in EMBEDDINGS] == ["learned", "whitened"]


@pytest.mark.parametrize("path", EMBEDDINGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_an_old_embedding_loads_and_embeds_as_it_did(path):
    told = json.loads(path.with_suffix(".json").read_text())
    model, steps = slosh.load_embedding(path, with_preprocess=True)
    assert (type(model).__name__, model.n_features_in_, model.distance_kind) == (
        told["class"],
        told["dim"],
        told["kind"],
    )
    asked = steps.apply(slosh.Sets.from_list([np.array(each) for each in told["queries"]]))
    np.testing.assert_allclose(model.transform(asked), told["vectors"], atol=1e-4)  # other processors round otherwise


def test_an_old_search_loads_and_answers_as_it_did(saved, tmp_path):
    path, told = saved
    search = load(path, n_jobs=1)
    check_search(search, told)
    search.save(tmp_path / "again")
    check_search(load(tmp_path / "again", n_jobs=1), told)


def test_an_old_search_is_changed_like_any_other(saved):
    path, told = saved
    search, queries = load(path, n_jobs=1), np.array(told["queries"])
    rows = search.add(queries)
    assert rows.min() > max(told["rows"])
    distances, found = search.search(queries, k=1)
    assert np.array_equal(found[:, 0], rows)
    np.testing.assert_allclose(distances, 0, atol=1e-3)
    search.remove(rows)
    check_search(search, told)


@pytest.mark.parametrize("path", EXPORTS, ids=lambda path: path.name)
def test_an_old_export_is_read_back(path):
    pytest.importorskip("pyarrow.parquet")
    told = json.loads(path.with_suffix(".json").read_text())
    [batch] = slosh.readers.read(path)
    assert batch.sets.dim == told["dim"]
    assert batch.ids == [name for name, *_ in told["sets"]]
    weights = batch.sets.weights
    for i, (_, size, points_crc, weights_crc, metadata) in enumerate(told["sets"]):
        part = slice(batch.sets.offsets[i], batch.sets.offsets[i + 1])
        assert part.stop - part.start == size
        assert crc(batch.sets.points[part]) == points_crc
        assert crc(weights[part]) == weights_crc
        assert batch.metadata[i] == metadata
