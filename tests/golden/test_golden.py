"""Indexes that earlier versions of slosh have written open in this one, with the same sets and the same answers.

Each folder tests/golden/index-vN holds indexes of the format version N: NAME.slosh, and NAME.json with what it held and
answered when it was made. The script make_vN.py says how. They are never made again.
"""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest

import slosh
from slosh.errors import FormatError

GOLDEN = sorted(Path(__file__).parent.glob("index-v*/*.slosh"))


def name_of(path):
    return f"{path.parent.name}/{path.stem}"


@pytest.fixture(params=GOLDEN, ids=name_of)
def golden(request, tmp_path):
    """A copy of an index, and what is known of it."""
    copy = tmp_path / request.param.name
    shutil.copytree(request.param, copy)
    return copy, json.loads(request.param.with_suffix(".json").read_text())


def crc(array):
    return None if array is None else zlib.crc32(np.ascontiguousarray(array, "<f4").tobytes())


def stored_bytes(path):
    """Return the content of all files but those that SQLite keeps beside a database while it is open."""
    return {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and not p.name.endswith(("-shm", "-wal"))}


def queries_of(told):
    points = [np.array(each["points"]) for each in told["queries"]]
    weights = [np.array(each["weights"]) for each in told["queries"] if each["weights"] is not None]
    return slosh.Sets.from_list(points, weights or None, origin=told["origin"])


def check_records(index, told):
    ids = [name for name, *_ in told["sets"]]
    assert sorted(index.ids) == sorted(ids)
    assert index.dim == told["dim"]
    assert (index.origin is None) == (told["origin"] is None)
    if told["origin"] is not None:
        assert index.origin.tolist() == told["origin"]
    for name, size, points, weights, metadata in told["sets"]:
        record = index.get(name)
        assert (len(record.points), crc(record.points), crc(record.weights)) == (size, points, weights), name
        assert record.metadata == metadata, name


def check_answers(index, told):
    queries = queries_of(told)
    for answer in told["answers"]:
        options = answer["options"]
        found = getattr(index, answer["method"])(**({} if "id" in options else {"queries": queries}), **options)
        lists = [found] if isinstance(options.get("id"), str) else list(found)
        assert found.distance_kind == answer["kind"], options
        assert [hits.ids for hits in lists] == answer["ids"], options
        assert [hits.metadata for hits in lists] == answer["metadata"], options
        for hits, distances in zip(lists, answer["distances"], strict=True):  # other processors round otherwise
            np.testing.assert_allclose(hits.distances, distances, rtol=1e-5, atol=1e-6)


def check_tuned(index, told):
    """What was tuned is the default still, and holds."""
    k, recall = told["tuned"]["k"], told["tuned"]["recall"]
    queries = index.get(index.ids[::5]).sets
    found, exact = index.search(queries, k=k), index.search(queries, k=k, recall=1.0)
    assert found.stats.recall >= recall
    parts = [len(set(a) & set(b)) / k for a, b in zip(found.ids, exact.ids, strict=True)]
    assert np.mean(parts) >= recall


def test_there_are_golden_indexes_of_every_version_so_far():
    """Since a glob that matches nothing tests nothing."""
    folder = Path(__file__).parent
    made = {script.stem.replace("make_", "index-") for script in folder.glob("make_v*.py")}
    assert made == {f"index-v{i + 1}" for i in range(len(made))}
    assert made == {found.name for found in folder.glob("index-v*")} == {path.parent.name for path in GOLDEN}
    assert all(path.with_suffix(".json").exists() for path in GOLDEN)
    assert {name_of(path) for path in GOLDEN} >= {"index-v1/weighted", "index-v1/hamming", "index-v1/trained"}


def test_an_old_index_opens_for_writing_and_is_as_it_was(golden):
    path, told = golden
    with slosh.open(path, n_jobs=1) as index:
        assert not index.read_only
        check_records(index, told)
        check_answers(index, told)
        report = index.verify()
        assert report.ok, str(report)
    with slosh.open(path, n_jobs=1) as index:  # whatever was upgraded stays so
        check_records(index, told)
        check_answers(index, told)
        if "tuned" in told:
            check_tuned(index, told)


def test_an_old_index_is_changed_like_any_other(golden):
    path, told = golden
    ids = [name for name, *_ in told["sets"]]
    queries = queries_of(told)
    with slosh.open(path, n_jobs=1) as index:
        new = index.add(queries, metadata={"kind": "new"})
        assert not set(new) & set(ids)
        index.remove(ids[0])
        index.update(ids[1], metadata={"kind": "changed"})
        for name, hits in zip(new, index.search(queries, k=1, certify=True), strict=True):
            assert (hits.ids, hits.distances.tolist()) == ([name], [0.0])
        assert index.search(queries, k=9, where={"kind": "changed"})[0].ids == [ids[1]]
        index.compact()
        assert index.ids == sorted([*ids[1:], *new])
        report = index.verify()
        assert report.ok, str(report)
    with slosh.open(path, read_only=True, n_jobs=1) as index:
        assert index.select({"kind": "new"}) == sorted(new)


def test_an_old_index_opens_for_reading_or_says_how(golden):
    """Reading may need an upgrade, which a reader does not do: then the error says to open it for writing once."""
    path, told = golden
    before = stored_bytes(path)
    try:
        slosh.open(path, read_only=True, n_jobs=1).close()
        refused = None
    except FormatError as error:
        refused = error
    if refused is not None:
        assert "open" in refused.remedy
        assert refused.found < refused.supported
        assert stored_bytes(path) == before
        slosh.open(path, n_jobs=1).close()
    with slosh.open(path, read_only=True, n_jobs=1) as index:
        check_records(index, told)
        check_answers(index, told)
