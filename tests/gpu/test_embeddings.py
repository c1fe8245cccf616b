"""The parameter `device` of embeddings: what goes to a GPU, what is refused, and that nothing stored knows of it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone

import slosh
from builders import clouds
from slosh.data import tensors
from slosh.embed import DistanceField, LocalShape, MeanPool, PartField, SlicedWasserstein, Whitened
from slosh.engines.embedding_files import KIND
from slosh.errors import DeviceError, InputError, UnsupportedError
from slosh.gpu import devices
from slosh.learn import LearnedEmbedding

SETS = clouds([1, 5, 30, 2, 17] * 12, 3, 0)
WIDE = clouds([1, 5, 30, 2, 17] * 12, 64, 0)


def made(kind):
    return {
        "sliced": SlicedWasserstein(16, 8, reference="barycenter"),
        "linear": SlicedWasserstein(16, 8, quantiles="linear", slices="random"),
        "field": DistanceField(12),
        "whitened": Whitened(SlicedWasserstein(16, 8), 10),
        "plain whitened": Whitened([SlicedWasserstein(8, 4), DistanceField(6)], power=0.0, normalize=False),
        "local": LocalShape(SlicedWasserstein(8, 4), (3,)),
    }[kind]


KINDS = ["sliced", "linear", "field", "whitened", "plain whitened", "local"]


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_the_cpu_to_rounding(pretended_gpu, kind):
    pytest.importorskip("torch")
    model = made(kind).fit(SETS)
    expected, here = model.index_vectors(SETS)[0], model.made_on
    assert here == "cpu"
    assert not pretended_gpu.calls
    model.run_on("cuda")
    found = model.index_vectors(SETS)[0]
    assert model.made_on == pretended_gpu.name
    assert pretended_gpu.calls
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    model.run_on(None)
    np.testing.assert_array_equal(model.index_vectors(SETS)[0], expected)


@pytest.mark.parametrize("kind", ["sliced", "field", "whitened"])
def test_the_device_survives_what_scikit_learn_and_pickle_do(pretended_gpu, kind):
    pytest.importorskip("torch")
    model = clone(made(kind).set_params(device="cuda"))
    assert model.get_params()["device"] == "cuda"
    fitted = model.fit(SETS)
    assert pretended_gpu.calls or kind == "field"
    for same in (pickle.loads(pickle.dumps(fitted)), clone(fitted).fit(SETS)):
        assert same.device == "cuda"
        np.testing.assert_array_equal(same.transform(SETS), fitted.transform(SETS))


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_embedding_does_not_know_of_it(pretended_gpu, kind, tmp_path):
    pytest.importorskip("torch")
    plain = made(kind).fit(SETS)
    slosh.save_embedding(plain, tmp_path / "plain")
    plain.run_on("cuda")
    plain.transform(SETS)
    slosh.save_embedding(plain, tmp_path / "there")
    (about, arrays), (expected, others) = (tensors.read(tmp_path / name, KIND) for name in ("there", "plain"))
    assert about == expected
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name])
    loaded = slosh.load_embedding(tmp_path / "there")
    assert loaded.made_on == "cpu"
    n_calls = len(pretended_gpu.calls)
    loaded.transform(SETS)
    assert len(pretended_gpu.calls) == n_calls


def test_an_object_of_an_older_version_has_none(pretended_gpu):
    model = SlicedWasserstein(8).fit(SETS)
    del vars(model)["device"]
    assert pickle.loads(pickle.dumps(model)).get_params()["device"] is None
    assert model.transform(SETS).shape == (60, 128)


@pytest.mark.parametrize("model", [SlicedWasserstein, DistanceField, Whitened])
def test_the_device_is_checked_by_fit(model):
    with pytest.raises(InputError, match="device='gpu'"):
        model(device="gpu").fit(SETS)


def test_a_gpu_that_is_not_there_is_never_replaced_by_the_cpu(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for known in ("_names", "_found"):
        monkeypatch.setattr(devices, known, {})
    fitted = SlicedWasserstein(8).fit(SETS)
    fitted.device = "cuda"
    for call in (
        lambda: SlicedWasserstein(device="cuda").fit(SETS),
        lambda: fitted.transform(SETS),
        lambda: fitted.index_vectors(SETS[:1]),
        lambda: slosh.SetIndex.create(None, dim=3, device="cuda"),
    ):
        with pytest.raises(DeviceError, match="leave device out"):
            call()


def test_slices_that_are_not_linear_are_refused(pretended_gpu):
    with pytest.raises(UnsupportedError, match="not linear") as caught:
        SlicedWasserstein(slices=slosh.slices.Circular(), device="cuda").fit(SETS).transform(SETS)
    assert (caught.value.argument, caught.value.feature_name) == ("device", "device")


@pytest.mark.parametrize("model", [MeanPool(), PartField(6, 4)])
def test_what_runs_on_the_cpu_only_says_so(pretended_gpu, model):
    model.fit(SETS).run_on("cpu")
    with pytest.raises(UnsupportedError, match="runs on the CPU only"):
        model.run_on("cuda")


def test_views_of_a_whitened_embedding_keep_a_device_of_their_own(pretended_gpu):
    pytest.importorskip("torch")
    mixed = Whitened([SlicedWasserstein(8, 4), MeanPool(), SlicedWasserstein(8, 4, device="cpu")], device="cuda").fit(
        SETS
    )
    pretended_gpu.calls.clear()
    mixed.transform(SETS)
    assert pretended_gpu.count("embed") == len(SETS)
    assert [getattr(view, "device", None) for view in mixed.embeddings_] == ["cuda", None, "cpu"]
    mixed.device = None
    pretended_gpu.calls.clear()
    mixed.transform(SETS)
    assert not pretended_gpu.calls


def test_a_learned_embedding_hands_it_to_what_is_below_its_head(pretended_gpu):
    pytest.importorskip("torch")
    model = LearnedEmbedding(n_components=4, epochs=1, device="cpu").fit(SETS, np.arange(60) % 2)
    expected = model.transform(SETS)
    pretended_gpu.calls.clear()
    model.run_on("cuda")
    np.testing.assert_allclose(model.transform(SETS), expected, atol=1e-4)
    assert pretended_gpu.count("embed") == 60
    assert model.made_on == pretended_gpu.name


def test_batches_are_larger_and_an_empty_one_is_none(pretended_gpu):
    many = clouds([40] * 12000, 3, 1)
    model = SlicedWasserstein(64, 16, device="cuda").fit(many)
    model.transform(many)
    assert max(n for _, n in pretended_gpu.calls) == 12000
    assert model.transform(many[:0]).shape == (0, 1024)
    vectors = model.transform(iter([many[0], many[1]]))
    np.testing.assert_array_equal(vectors, model.transform(many[:2]))


def test_bounds_and_residuals(pretended_gpu):
    model = SlicedWasserstein(16, 8, device="cuda").fit(SETS)
    lower, upper = model.bounds(SETS, SETS)
    exact = slosh.pairwise(SETS, SETS, slices=model.slices_)
    assert (lower <= exact).all()
    assert (exact <= upper).all()
    vectors, residuals = model.transform(SETS, return_residual=True)
    np.testing.assert_array_equal(residuals, model.residual(SETS))
    assert np.isfinite(vectors).all()


def test_tf32_rounds_elements_and_slices_of_many_features(pretended_gpu):
    for sets, least, most in ((SETS, 0, 1e-6), (WIDE, 1e-5, 2e-3)):
        exact = SlicedWasserstein(16, 8).fit_transform(sets)
        rounded = SlicedWasserstein(16, 8, device="cuda", tf32=True).fit_transform(sets)
        assert least <= np.abs(rounded - exact).max() <= most
        np.testing.assert_array_equal(SlicedWasserstein(16, 8, tf32=True).fit_transform(sets), exact)  # on the CPU


def test_with_tf32_nothing_is_bounded(pretended_gpu):
    model = SlicedWasserstein(16, 8, device="cuda", tf32=True).fit(WIDE)
    assert not model.lower_bounds
    assert not model.has_bounds
    assert model.apart(WIDE, model.index_vectors(WIDE)[0]) is None
    assert model.residual(WIDE).shape == (60,)
    with pytest.raises(UnsupportedError, match="bounds needs products of float32") as caught:
        model.bounds(WIDE, WIDE)
    assert caught.value.argument == "tf32"
    few = SlicedWasserstein(16, 8, device="cuda", tf32=True).fit(SETS)
    assert few.has_bounds
    assert few.bounds(SETS, SETS)[0].shape == (60, 60)


def test_tf32_is_fitted_since_it_says_what_is_known_of_vectors_that_are_there(pretended_gpu):
    model = SlicedWasserstein(16, 8, device="cuda", tf32=True).fit(WIDE)
    rounded = model.transform(WIDE)
    model.set_params(tf32=False)
    assert not model.has_bounds
    np.testing.assert_array_equal(model.transform(WIDE), rounded)
    assert model.fit(WIDE).has_bounds
    assert np.abs(model.transform(WIDE) - rounded).max() > 1e-5


def test_tf32_is_true_or_false():
    with pytest.raises(InputError, match="pass True or False") as caught:
        SlicedWasserstein(tf32="yes").fit(SETS)
    assert caught.value.argument == "tf32"


def test_tf32_is_stored_since_it_says_what_is_known_of_vectors(pretended_gpu, tmp_path):
    model = SlicedWasserstein(16, 8, device="cuda", tf32=True).fit(WIDE)
    slosh.save_embedding(model, tmp_path / "rounded")
    assert slosh.load_embedding(tmp_path / "rounded").get_params()["tf32"]
    assert clone(model).tf32
    with slosh.SetIndex.create(tmp_path / "index", dim=64, embedding=model, device="cuda") as index:
        index.add(WIDE)
        assert index.verify().ok
    with slosh.open(tmp_path / "index") as index:
        assert index.embedding.tf32
        assert index.search(WIDE[2], k=1).ids[0] == index.ids[2]
        assert index.verify().ok
        with pytest.raises(UnsupportedError, match="embeds by SlicedWasserstein with tf32=True"):
            index.search(WIDE[2], k=1, certify=True, rerank="sliced")


def test_without_tf32_a_file_is_as_it_was_before_there_was_such_a_parameter(tmp_path):
    model = SlicedWasserstein(16, 8).fit(SETS)
    slosh.save_embedding(model, tmp_path / "plain")
    assert "tf32" not in str(tensors.read(tmp_path / "plain", KIND)[0])
    assert slosh.load_embedding(tmp_path / "plain").get_params()["tf32"] is False
