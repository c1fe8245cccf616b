"""Learned embeddings in files and indexes: the same vectors with and without torch, and files of other people."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from labelled_shapes import shapes, small

import slosh
from slosh import Preprocess
from slosh.data import tensors
from slosh.embed import LocalShape, MeanPool, SlicedWasserstein, Whitened
from slosh.engines.embedding_files import KIND
from slosh.errors import DamagedError, FormatError, InputError, NotAFile, SourceNotFound

WITHOUT_TORCH = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("torch is hidden", name="torch")

sys.meta_path.insert(0, Hidden())
import numpy as np, slosh
kind, path, points, out = sys.argv[1:]
sets = slosh.Sets.from_padded(np.load(points))
if kind == "file":
    vectors = slosh.load_embedding(path).transform(sets)
else:
    with slosh.open(path, read_only=True) as index:
        assert index.search(sets[0], k=1)[0].id == "set 0"
        vectors = index.embedding.transform(sets)
np.save(out, vectors)
try:
    slosh.learn.LearnedEmbedding().fit(sets, np.arange(len(sets)) % 2)
except slosh.errors.MissingExtra as error:
    assert error.extra == "torch", error.extra
else:
    raise AssertionError("it was fitted without torch")
assert "torch" not in sys.modules
"""


@pytest.fixture(scope="module", params=["head", "slices", "points"])
def fitted(request):
    given = {
        "head": {"embedding": None, "n_slices": 8},
        "slices": {"embedding": [MeanPool(), SlicedWasserstein(8, 4)], "learn_slices": True},
        "points": {"network": "points", "embedding": None, "n_slices": 8},
    }[request.param]
    return small(epochs=2, **given).fit(*shapes(60))


@pytest.mark.parametrize("kind", ["file", "index"])
def test_the_same_vectors_without_torch(fitted, kind, tmp_path):
    points = np.random.default_rng(0).normal(size=(20, 9, 2)).astype(np.float32)
    np.save(tmp_path / "points.npy", points)
    path = tmp_path / "model.slosh-embedding"
    if kind == "file":
        slosh.save_embedding(fitted, path)
    else:
        with slosh.SetIndex.create(path, 2, embedding=fitted) as index:
            index.add(points, ids=[f"set {i}" for i in range(20)])
    environment = {**os.environ, "PYTHONWARNINGS": "error::ResourceWarning"}
    command = [sys.executable, "-c", WITHOUT_TORCH, kind, path, tmp_path / "points.npy", tmp_path / "out.npy"]
    subprocess.run(command, check=True, env=environment, timeout=300)
    assert np.array_equal(np.load(tmp_path / "out.npy"), fitted.transform(points))


def test_a_saved_embedding_is_the_same_again(fitted, tmp_path):
    sets, _ = shapes(30, seed=2)
    path = tmp_path / "model"
    slosh.save_embedding(fitted, path)
    again = slosh.load_embedding(path)
    assert np.array_equal(again.transform(sets), fitted.transform(sets))
    assert again.classes_.tolist() == fitted.classes_.tolist()
    assert again.history_ == fitted.history_
    assert again.learnt_from == fitted.learnt_from
    slosh.save_embedding(again, tmp_path / "again")
    assert slosh.load_embedding(tmp_path / "again").get_params().keys() == fitted.get_params().keys()


def test_any_embedding_and_its_preparation(tmp_path):
    sets, _ = shapes(300, 3)
    steps = Preprocess(center=True, scale="unit")
    model = Whitened([SlicedWasserstein(8), LocalShape(SlicedWasserstein(8))]).fit(steps.fit(sets).apply(sets))
    slosh.save_embedding(model, tmp_path / "model", preprocess=steps)
    with pytest.raises(InputError, match="with_preprocess=True"):
        slosh.load_embedding(tmp_path / "model")
    again, loaded = slosh.load_embedding(tmp_path / "model", with_preprocess=True)
    assert loaded == steps
    assert np.array_equal(again.transform(loaded.apply(sets)), model.transform(steps.apply(sets)))


def test_what_cannot_be_saved(tmp_path):
    for thing, message in [
        (SlicedWasserstein(), "not fitted"),
        (3, "embedding is"),
        (SlicedWasserstein(3, slices=lambda points: points).fit(shapes(5)[0]), "function"),
    ]:
        with pytest.raises(InputError, match=message):
            slosh.save_embedding(thing, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_what_is_no_file_of_an_embedding(tmp_path):
    with pytest.raises(SourceNotFound):
        slosh.load_embedding(tmp_path / "nothing")
    with pytest.raises(NotAFile):
        slosh.load_embedding(tmp_path)
    (tmp_path / "text").write_text("hello, this is no embedding")
    with pytest.raises(FormatError, match="slosh embedding"):
        slosh.load_embedding(tmp_path / "text")
    tensors.write(tmp_path / "other", "slosh search", {}, {})
    with pytest.raises(FormatError, match="slosh embedding"):
        slosh.load_embedding(tmp_path / "other")
    path = tmp_path / "model"
    slosh.save_embedding(MeanPool().fit(shapes(5)[0]), path)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises((DamagedError, FormatError)):
        slosh.load_embedding(path)


def attacks(tree, path=()):
    """Yield every place of a tree, but not those of parameters, which decide nothing of what is loaded."""
    yield path
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from attacks(value, (*path, key))
    elif isinstance(tree, list):
        for i, value in enumerate(tree):
            yield from attacks(value, (*path, i))


def test_a_hostile_file_is_refused_or_harmless(fitted, tmp_path):
    """Any part of the tree, and any array, exchanged for something else: an error of slosh, or finite vectors."""
    sets, _ = shapes(6, seed=3)
    good, path = tmp_path / "good", tmp_path / "bad"
    slosh.save_embedding(fitted, good)
    header, arrays = tensors.read(good, KIND)
    places = [place for place in attacks(header) if place]
    rng = np.random.default_rng(0)
    junk = [None, -1, 10**9, "x", [], {}, {"array": 10**6}, {"list": []}, {"class": "os.system", "has": {}}, 1e300]
    refused = 0
    for number in rng.permutation(len(places))[:120]:
        tampered = json.loads(json.dumps(header))
        inside = tampered
        for key in places[number][:-1]:
            inside = inside[key]
        inside[places[number][-1]] = junk[rng.integers(len(junk))]
        refused += loaded_or_refused(path, tampered, arrays, sets)
    for name in list(arrays):
        for changed in (arrays[name].ravel()[:-1], arrays[name] * np.float64(np.nan), np.zeros((3, 3, 3), np.float32)):
            refused += loaded_or_refused(path, header, {**arrays, name: changed}, sets)
    assert refused > 50


def loaded_or_refused(path, header, arrays, sets) -> bool:
    """Return whether a file was refused; if not, its vectors must be numbers."""
    tensors.write(path, KIND, header, arrays)
    try:
        model, steps = slosh.load_embedding(path, with_preprocess=True)
    except (DamagedError, FormatError, InputError):
        return True
    try:
        assert np.isfinite(model.transform(steps.apply(sets))).all()
        repr(model)
    except (InputError, ValueError):
        return True
    return False


def test_an_index_learns_from_a_field_of_its_metadata(tmp_path):
    sets, labels = shapes(120)
    with slosh.SetIndex.create(tmp_path / "index", 2) as index:
        index.add(sets, metadata=[{"kind": f"kind {label}"} for label in labels])
        with pytest.raises(InputError, match="learns from labels") as told:
            index.retrain(embedding=small(epochs=3))
        assert told.value.argument == "label"
        index.retrain(embedding=small(epochs=6), label="kind")
        assert index.info()["distance_kind"] == "learned"
        assert index.info()["learnt_from"] == {"sets": 120, "labelled": 120}
        hits = index.search(sets[0], k=5)
        assert hits.distance_kind == "learned"
        with pytest.raises(InputError, match="learns from labels"):
            index.retrain()
    with slosh.open(tmp_path / "index") as again:
        assert [hit.id for hit in again.search(sets[0], k=5)] == [hit.id for hit in hits]
    with pytest.raises(InputError, match="fit it before"):
        slosh.SetIndex.create(tmp_path / "other", 2, embedding=small(), sample=sets)
