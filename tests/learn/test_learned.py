"""LearnedEmbedding: what it learns, what it refuses, and that its vectors depend on nothing but the set."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from labelled_shapes import shapes, small, torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

import slosh
from slosh import Sets
from slosh.embed import DistanceField, FSPool, MeanPool, SlicedWasserstein, Whitened
from slosh.errors import InputError
from slosh.native import kernel


def precision(model, sets, labels, others, other_labels):
    found = KNeighborsClassifier(1).fit(model.transform(sets), labels).predict(model.transform(others))
    return np.mean(found == other_labels)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"embedding": [SlicedWasserstein(8, 4), DistanceField(8)], "augment": "auto"},
        {"embedding": Whitened(FSPool(8))},
        {"embedding": None, "n_slices": 8, "augment": ["drop", "jitter"]},
        {"loss": "contrastive"},
        {"learn_slices": True},
        {"embedding": [DistanceField(8), SlicedWasserstein(8, 4, quantiles="linear")], "learn_slices": True},
        {"embedding": None, "network": "points", "n_slices": 8, "augment": "auto"},
    ],
    ids=str,
)
def test_it_tells_classes_apart(given):
    sets, labels = shapes(240)
    others, other_labels = shapes(90, seed=1)
    model = small(**given).fit(sets, labels)
    vectors = model.transform(others)
    assert vectors.shape == (90, 8)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert precision(model, sets, labels, others, other_labels) > 0.7
    assert model.history_[-1]["loss"] < model.history_[0]["loss"]
    assert len(model.history_) == model.n_epochs_ <= 12
    assert 0 <= model.best_epoch_ < model.n_epochs_
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.distance_kind == "learned"
    assert model.learnt_from == {"sets": 240, "labelled": 240}


@pytest.mark.parametrize("network", [None, "points"])
@pytest.mark.parametrize("weighted", [False, True])
def test_vectors_have_the_same_bits_for_any_batch_and_any_threads(network, weighted):
    sets, labels = shapes(60, 3, weighted=weighted)
    model = small(network=network, embedding=None, n_slices=8, epochs=2).fit(sets, labels)
    whole = model.transform(sets)
    assert np.array_equal(np.concatenate([model.transform(sets[i : i + 1]) for i in range(60)]), whole)
    assert np.array_equal(model.transform(sets[::-1])[::-1], whole)
    assert np.array_equal(model.set_params(n_jobs=3).transform(sets), whole)
    assert np.array_equal(model.transform(iter([sets[:7], sets[7:]])), whole)
    order = [np.random.default_rng(i).permutation(n) for i, n in enumerate(sets.sizes)]
    weights = None if sets.weights is None else [sets.weights_of(i)[o] for i, o in enumerate(order)]
    shuffled = Sets.from_list([each[o] for each, o in zip(sets, order, strict=True)], weights)
    np.testing.assert_allclose(model.transform(shuffled), whole, atol=1e-4)


@pytest.mark.parametrize("network", [None, "points"])
def test_numpy_gives_the_same_vectors(network, monkeypatch):
    sets, labels = shapes(60, 3)
    model = small(network=network, embedding=None, n_slices=8, epochs=2).fit(sets, labels)
    native = model.transform(sets)
    monkeypatch.setattr(kernel, "native", None)
    monkeypatch.setattr(kernel, "is_compiled", lambda: False)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(model)).transform(sets), native, atol=2e-4)


def test_a_seed_decides_everything():
    sets, labels = shapes(60)
    one, same, other = (
        small(random_state=seed, augment="auto").fit(sets, labels).transform(sets) for seed in (0, 0, 1)
    )
    assert np.array_equal(one, same)
    assert not np.allclose(one, other)


def test_the_generator_and_settings_of_torch_stay_as_they_were():
    torch.manual_seed(3)
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    small(epochs=1).fit(*shapes(30))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()


def test_labels_are_names_and_some_may_be_missing():
    sets, labels = shapes(60)
    names = [None if i % 5 == 0 else ["a", "b", "c"][label] for i, label in enumerate(labels)]
    model = small(epochs=1).fit(sets, names)
    assert sorted(model.classes_.tolist()) == ["a", "b", "c"]
    assert model.learnt_from == {"sets": 60, "labelled": 48}
    numbers = np.where(np.arange(60) % 5 == 0, -1, labels)
    assert small(epochs=1).fit(sets, numbers).n_labelled_ == 48


@pytest.mark.parametrize("given", [{}, {"network": "points", "embedding": None, "n_slices": 8}], ids=str)
def test_pairs(given):
    sets, labels = shapes(150)
    others, other_labels = shapes(60, seed=1)
    rng = np.random.default_rng(0)
    pairs = np.array([(a, b) for a, b in rng.integers(150, size=(900, 2)) if a != b])
    marked = np.column_stack([pairs, labels[pairs[:, 0]] == labels[pairs[:, 1]]])
    model = small(epochs=15, **given).fit(sets, pairs=marked)
    assert precision(model, sets, labels, others, other_labels) > 0.6
    assert len(model.classes_) == 0
    alone = small(epochs=2, **given).fit(sets, pairs=marked[marked[:, 2] == 1][:, :2])
    assert alone.n_labelled_ <= 150


@pytest.mark.parametrize(
    ("labels", "given", "message"),
    [
        (None, {}, "neither labels nor pairs"),
        (np.zeros(30, int), {}, "one class only"),
        ([None] * 30, {}, "no label at all"),
        (np.arange(30), {}, "no label twice"),
        (np.arange(29) % 2, {}, "29 labels for 30 sets"),
        (np.linspace(0.5, 9, 30), {}, "not whole"),
        (np.arange(30) % 2, {"pairs": [(0, 1)]}, "both labels and pairs"),
        (None, {"pairs": [(0, 30)]}, "there are 30 sets"),
        (None, {"pairs": [(4, 4)]}, "itself"),
        (None, {"pairs": [(0, 1, 2)]}, "third number"),
        (None, {"pairs": [(0, 1, 1), (1, 0, 0)]}, "alike and as not alike"),
        (None, {"pairs": [(0, 1, 0), (2, 3, 0)]}, "no pair is of sets that are alike"),
        (None, {"pairs": [(0, 1)]}, "give more"),
        (None, {"pairs": [0.5, 1.5]}, "whole numbers"),
    ],
)
def test_what_cannot_be_learnt_from_is_refused_and_changes_nothing(labels, given, message):
    sets, good = shapes(30)
    model = small(epochs=1)
    with pytest.raises(InputError, match=message):
        model.fit(sets, labels, **given)
    with pytest.raises(NotFittedError):
        model.transform(sets)
    before = model.fit(sets, good).transform(sets)
    with pytest.raises(InputError, match=message):
        model.fit(sets[:30], labels, **given)
    assert np.array_equal(model.transform(sets), before)


def test_labels_may_be_whole_numbers_as_floats_and_may_be_read_once():
    sets, labels = shapes(30)
    expected = small(epochs=2).fit(sets, labels).transform(sets)
    for given in (labels.astype(np.float64), iter(labels.tolist())):
        model = small(epochs=2).fit(sets, given)
        assert np.array_equal(model.transform(sets), expected)
        assert model.classes_.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "given", [{"learning_rate": 1e20}, {"network": "points", "embedding": None, "learning_rate": 1e12}]
)
def test_numbers_that_grow_beyond_bounds_in_the_last_step_are_said(given):
    sets, labels = shapes(30)
    with pytest.raises(InputError, match="give a lower learning_rate") as error:
        small(epochs=1, **given).fit(sets, labels)
    assert error.value.argument == "learning_rate"


def test_torch_is_imported_with_threads_that_sleep():
    """OpenMP reads the variable when it is loaded."""
    code = """if True:
        import os, sys
        import numpy as np
        seen = []
        class Watch:
            def find_spec(self, name, path=None, target=None):
                if name == "torch":
                    seen.append(os.environ.get("OMP_WAIT_POLICY"))
        sys.meta_path.insert(0, Watch())
        from slosh.learn import LearnedEmbedding
        assert not seen
        sets = np.random.default_rng(0).normal(size=(20, 5, 2))
        LearnedEmbedding(epochs=1, n_components=4, n_jobs=1).fit(sets, [0, 1] * 10)
        print(seen[0], os.environ.get("OMP_WAIT_POLICY"))
    """
    for given, wanted in ((None, "passive None"), ("active", "active active")):
        environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
        if given:
            environment["OMP_WAIT_POLICY"] = given
        found = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
        )
        assert found.stdout.strip() == wanted


def first_point(points, offsets):
    """A change of sets that leaves too little."""
    return points[:1]


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"network": "edges"}, "network"),
        ({"network": 3}, "network"),
        ({"network": "points", "embedding": MeanPool()}, "embedding"),
        ({"embedding": 3}, "embedding"),
        ({"loss": "triplet"}, "loss"),
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 1}, "batch_size"),
        ({"n_components": 0}, "n_components"),
        ({"n_components": 2000}, "n_components"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"validation_fraction": 0.9}, "validation_fraction"),
        ({"patience": -1}, "patience"),
        ({"augment": "turn"}, "augment"),
        ({"augment": first_point}, "augment"),
        ({"learn_slices": 2}, "learn_slices"),
        ({"learn_slices": True, "embedding": MeanPool()}, "learn_slices"),
        ({"learn_slices": True, "network": "points", "embedding": None}, "learn_slices"),
        ({"device": "nothing"}, "device"),
        ({"random_state": "x"}, "random_state"),
    ],
    ids=lambda value: value if isinstance(value, str) else ", ".join(value),
)
def test_bad_parameters_are_refused(given, argument):
    sets, labels = shapes(30)
    model = small(**{"epochs": 1, **given})
    with pytest.raises(InputError) as told:
        model.fit(sets, labels)
    assert told.value.argument == argument
    assert not hasattr(model, "n_features_in_")


def test_pairs_have_no_softmax():
    with pytest.raises(InputError, match="pairs have none"):
        small(loss="softmax").fit(shapes(30)[0], pairs=[(0, 1), (2, 3)])


@pytest.mark.parametrize("network", [None, "points"])
def test_a_set_larger_than_a_batch(network, monkeypatch):
    """Batches are of bounded elements: a set that has more is one of its own."""
    from slosh.learn import inputs

    monkeypatch.setattr(inputs, "BATCH_POINTS", 40)
    rng = np.random.default_rng(0)
    sizes = [500 if i == 7 else 10 for i in range(24)]
    sets = [rng.normal(size=(n, 3)) * (1 + i % 2) for i, n in enumerate(sizes)]
    model = small(network=network, embedding=None, n_slices=8, epochs=2, learn_slices=network is None)
    assert model.fit(sets, np.arange(24) % 2).transform(sets).shape == (24, 8)
    assert np.isfinite(model.transform(sets)).all()


def test_few_sets_and_copies_of_them():
    sets, labels = shapes(6)
    assert small(epochs=2).fit(sets, labels).transform(sets).shape == (6, 8)
    same = Sets.concat([sets] * 60)
    assert small(epochs=1).fit(same, np.tile(labels, 60)).transform(sets).shape == (6, 8)
    short = small(epochs=1, embedding=FSPool(2)).fit(Sets.concat([shapes(300)[0]]), shapes(300)[1])
    assert short.transform(sets).shape == (6, 8)


def test_an_origin_and_learnt_slices():
    sets, labels = shapes(40)
    far = Sets(sets.points.astype(float) + 1e6, sets.offsets, origin=[1e6, 1e6])
    model = small(epochs=2, learn_slices=True).fit(far, labels)
    assert np.array_equal(model.origin_, [1e6, 1e6])
    assert model.transform(far).shape == (40, 8)


def test_learnt_slices_are_others():
    sets, labels = shapes(60)
    fixed, learnt = (small(epochs=3, learn_slices=flag).fit(sets, labels) for flag in (False, True))
    one, other = (model.views_[0].embeddings_[0] for model in (fixed, learnt))
    assert one.slices_.shape == other.slices_.shape
    assert not np.allclose(one.slices_, other.slices_, atol=1e-4)
    assert not np.allclose(one.reference_, other.reference_, atol=1e-5)


@pytest.mark.parametrize(
    ("views", "learnt"), [([SlicedWasserstein(8, 4)], True), ([SlicedWasserstein(8, 4), MeanPool()], False)]
)
def test_slices_are_learnt_by_default_where_there_is_nothing_else(views, learnt):
    sets, labels = shapes(60)
    by_default, told = (
        small(epochs=2, embedding=views, learn_slices=flag).fit(sets, labels) for flag in ("auto", learnt)
    )
    assert np.array_equal(by_default.transform(sets), told.transform(sets))


def test_it_stops_when_nothing_is_gained():
    sets, _ = shapes(80)
    by_chance = np.random.default_rng(0).integers(2, size=80)
    model = small(epochs=60, patience=2).fit(sets, by_chance)
    assert model.n_epochs_ < 60
    assert model.n_epochs_ == model.best_epoch_ + 3


def test_nothing_is_held_back_on_request():
    model = small(epochs=3, validation_fraction=0).fit(*shapes(40))
    assert np.isnan([row["held_accuracy"] for row in model.history_]).all()
    assert model.n_epochs_ == 3
    assert model.best_epoch_ == 2


def test_in_the_world_of_scikit_learn():
    sets, labels = shapes(60)
    model = small(epochs=1)
    copied = clone(model)
    assert copied.get_params(deep=False).keys() == model.get_params(deep=False).keys()
    assert copied.epochs == 1
    assert copied is not model
    fitted = model.fit(sets, labels)
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.transform(sets), fitted.transform(sets))
    frame = fitted.set_output(transform="pandas").transform(sets)
    assert list(frame.columns)[:2] == ["learnedembedding0", "learnedembedding1"]
    pipeline = make_pipeline(small(epochs=5), KNeighborsClassifier(3)).fit(sets, labels)
    assert pipeline.score(sets, labels) > 0.6
    with pytest.raises(InputError, match="features"):
        fitted.transform([np.zeros((3, 5))])


def test_novelty_and_the_sliced_view_are_those_of_the_views():
    sets, labels = shapes(60)
    model = small(epochs=1).fit(sets, labels)
    assert model.novelty(sets) < 0.2
    assert model.novelty(Sets(sets.points * 30, sets.offsets)) > 0.5
    assert isinstance(model.sliced_view, SlicedWasserstein)
    network = small(epochs=1, network="points", embedding=None, n_slices=8).fit(sets, labels)
    assert network.sliced_view is None
    assert network.novelty(sets) is None


class Squares(torch.nn.Module):
    """A network of a user: the coordinates, their squares, and a learnt mixture of both."""

    def __init__(self, dim):
        super().__init__()
        self.mix = torch.nn.Linear(2 * dim, 6)

    def forward(self, points, offsets):
        return self.mix(torch.cat([points, points**2], dim=1))


def test_a_network_of_the_users_own(tmp_path):
    sets, labels = shapes(120)
    others, other_labels = shapes(60, seed=1)
    module = Squares(2)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    model = small(network=module, embedding=None, n_slices=8).fit(sets, labels)
    assert precision(model, sets, labels, others, other_labels) > 0.7
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert pickle.loads(pickle.dumps(model)).transform(sets).shape == (120, 8)
    index = slosh.SetIndex.create(None, 2, embedding=model)
    index.add(sets)
    assert len(index.search(others[0], k=3)) == 3
    with pytest.raises(InputError, match="network of your own"):
        slosh.SetIndex.create(tmp_path / "index", 2, embedding=model)
    with pytest.raises(InputError, match="network of your own"):
        slosh.save_embedding(model, tmp_path / "model")


class Means(torch.nn.Module):
    """A network that pools, which is not its part."""

    def forward(self, points, offsets):
        return points.mean(dim=0, keepdim=True)


def test_a_network_that_returns_something_else():
    with pytest.raises(InputError, match="a row for each element"):
        small(network=Means(), embedding=None).fit(*shapes(30))


def test_a_function_may_change_the_elements():
    seen = []

    def mirrored(points, offsets):
        seen.append((tuple(points.shape), len(offsets)))
        return points * torch.tensor([-1.0, 1.0])

    sets, labels = shapes(30)
    small(epochs=1, augment=mirrored).fit(sets, labels)
    assert seen[0] == ((len(sets.points), 2), 31)
