"""Whitened: the map that it learns against plain linear algebra, few sets, several embeddings, storing, and errors."""

from __future__ import annotations

import pickle
import warnings
from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

import slosh
from builders import clouds
from slosh import Sets
from slosh.embed import DistanceField, FSPool, GeM, LocalShape, MeanPool, SlicedWasserstein, Whitened, whitened
from slosh.engines import portable
from slosh.engines.spec import IndexSpec, make_spec
from slosh.errors import DamagedError, InputError, UnsupportedError


def singles(vectors) -> Sets:
    """Sets of one element each, which MeanPool embeds as that element."""
    return Sets.from_list([x[None] for x in np.asarray(vectors)])


def normal(n, dim=20, seed=0, decay=1.0):
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    return (rng.normal(size=(n, dim)) * np.arange(1, dim + 1) ** -decay @ turn + rng.normal(size=dim)).astype(
        np.float32
    )


def oracle(fit, x, p=None, power=None, normalize=True):
    """The formula of the docstring; p = None keeps all directions, those without variance too."""
    fit, x = np.asarray(fit, float), np.asarray(x, float)
    n = len(fit)
    power = power if power is not None else 0.35 if fit.shape[1] > 128 else 0.2
    mean = fit.mean(axis=0)
    values, columns = np.linalg.eigh((fit - mean).T @ (fit - mean) / n)
    values, columns = np.maximum(values[::-1], 0), columns[:, ::-1]
    scales = (values + (0.04 / (n + 10) + 10 / n**2) * values.sum()) ** -power
    scales /= np.sqrt((values * scales**2)[:p].sum())
    y = ((x - mean) @ columns * scales)[:, :p]
    return y / np.linalg.norm(y, axis=1, keepdims=True) if normalize else y


def assert_same_distances(a, b, tolerance=1e-4):
    np.testing.assert_allclose(cdist(a, a), cdist(b, b), atol=tolerance)


@given(
    n=st.integers(20, 300), dim=st.integers(1, 30), power=st.floats(0, 0.5), normalize=st.booleans(),
    p=st.none() | st.integers(1, 30), seed=st.integers(0, 9),
)  # fmt: skip
def test_vectors_are_those_of_the_formula(n, dim, power, normalize, p, seed):
    """With the default number of components, which keeps all of so short vectors, and with one given."""
    x, queries = normal(n, dim, seed), normal(30, dim, seed + 1)
    p = None if p is None else min(p, dim, n - 1)
    model = Whitened(MeanPool(), "auto" if p is None else p, power=power, normalize=normalize).fit(singles(x))
    assert model.vector_length == (p or dim)
    expected = oracle(x, queries, p, power, normalize)
    # Unit length makes much of what is wrong with a vector that is nearly zero.
    far = np.linalg.norm(oracle(x, queries, p, power, False), axis=1) > 0.1
    assert_same_distances(model.transform(singles(queries))[far], expected[far], 1e-3)
    if not normalize:
        assert np.square(model.transform(singles(x))).sum(axis=1).mean() == pytest.approx(1, rel=1e-3)


def test_it_wraps_the_sliced_embedding_by_default():
    sets, others = clouds(300, 3), clouds(40, 3, seed=1)
    model = Whitened().fit(sets)
    vectors = model.transform(others)
    assert vectors.dtype == np.float32
    assert vectors.shape == (40, 64)
    assert model.index_length == 64
    assert not model.has_bounds
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    plain = SlicedWasserstein().fit(sets)
    assert_same_distances(vectors, oracle(plain.transform(sets), plain.transform(others), 64))
    found, slack = model.index_vectors(others)
    assert np.array_equal(found, vectors)
    assert not slack.any()


def test_several_embeddings_count_alike():
    """Each view is scaled to the same mean square, whatever its unit; the order makes no difference."""
    sets, others = clouds(700, 2), clouds(40, 2, seed=1)
    views = SlicedWasserstein(8, 8).fit(sets), FSPool(8).fit(sets), GeM(2).fit(sets)

    class Metres(FSPool):
        def _transform(self, sets, out):
            super()._transform(sets, out)
            out *= 1000

    model = Whitened(list(views)).fit(sets)
    assert model.vector_length == 76  # fewer than 128: the 10 means of slices and of FSPool are those of 2 features

    def joined(some):
        parts = [(view.transform(some), view.transform(sets)) for view in views]
        scaled = [x / np.sqrt(np.square(y - y.mean(axis=0)).sum(axis=1).mean()) for x, y in parts]
        return np.concatenate(scaled, axis=1)

    expected = oracle(joined(sets), joined(others))
    assert_same_distances(model.transform(others), expected, 1e-3)
    other = Whitened((GeM(2), Metres(8), SlicedWasserstein(8, 8))).fit(sets)
    assert_same_distances(other.transform(others), expected, 1e-3)
    assert Whitened([SlicedWasserstein(16), FSPool()]).fit(sets).vector_length == 128
    assert Whitened([SlicedWasserstein(16), FSPool()]).fit(sets[:400]).vector_length == 100


@pytest.mark.parametrize("n", [300, 50])
def test_bits_do_not_depend_on_threads_and_batches(n, each_kernel):
    sets, others = clouds(n, 3), clouds(60, 3, seed=1)
    views = [SlicedWasserstein(8, 4), GeM(2)]
    expected = Whitened(views).fit(sets).transform(others)
    for jobs in (1, 2, 3):
        model = Whitened(views, n_jobs=jobs).fit(list(sets))
        assert np.array_equal(model.transform(others), expected)
        assert np.array_equal(model.transform(iter(others)), expected)
        assert np.array_equal(model.transform(others[i : i + 7] for i in range(0, 60, 7)), expected)
    assert np.array_equal(np.concatenate([model.transform([x]) for x in others]), expected)


def test_batches_are_bounded(monkeypatch):
    """Vectors of the wrapped embedding are never held for more than a block of sets, and bits do not depend on it."""
    sets, held = clouds(300, 3), []

    class Watched(SlicedWasserstein):
        def _transform(self, sets, out, residual=None):
            held.append(len(sets))
            super()._transform(sets, out, residual)

    model = Whitened(Watched(8, 4)).fit(sets)
    expected = model.transform(sets)
    held.clear()
    monkeypatch.setattr(whitened, "BLOCK_NUMBERS", 32 * 40)
    assert np.array_equal(model.transform(sets), expected)
    assert max(held) == 40
    held.clear()
    monkeypatch.setattr(whitened, "SAMPLE_NUMBERS", 32 * 100)
    monkeypatch.setattr(whitened, "FEWEST_SAMPLES", 50)
    assert Whitened(Watched(8, 4)).fit(sets).n_samples_ == 100
    assert max(held) == 100
    monkeypatch.setattr(whitened, "FEWEST_SAMPLES", 200)
    assert Whitened(Watched(8, 4)).fit(sets).n_samples_ == 200


def test_a_sample_is_drawn_with_the_seed():
    sets = clouds(400, 3)
    small = SlicedWasserstein(4, 4)
    one, same, other = (Whitened(small, max_samples=100, random_state=seed).fit(sets) for seed in (0, 0, 1))
    assert one.n_samples_ == 100
    assert np.array_equal(one.transform(sets), same.transform(sets))
    assert not np.allclose(one.mean_, other.mean_)
    assert Whitened(small, max_samples=1000).fit(sets).n_samples_ == 400


# -- few sets, and sets that do not vary -------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 19])
@pytest.mark.parametrize("size", [1.0, 1e-30])
def test_few_sets_teach_nothing(n, size):
    """It is the plain embedding then, in everything that an index asks for."""
    sets, others = (Sets.from_list([x * np.float32(size) for x in clouds(m, 3, seed=m)]) for m in (n, 30))
    plain = SlicedWasserstein(4, 4).fit(sets)
    for n_components in ("auto", *([64] if n == 1 else [])):
        model = Whitened(SlicedWasserstein(4, 4), n_components).fit(sets)
        assert not model.has_learnt
        assert np.array_equal(model.transform(others), plain.transform(others))
        found, expected = model.index_vectors(others), plain.index_vectors(others)
        assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
        assert model.index_vectors(others, slack=False)[1] is None
        assert (model.index_length, model.distance_kind) == (17, plain.distance_kind)
        assert model.has_bounds
    if n > 1:
        with pytest.raises(InputError, match="n_components=64, but"):
            Whitened(SlicedWasserstein(4, 4), 64).fit(sets)
    both = Whitened([SlicedWasserstein(4, 4), GeM(1)]).fit(sets)
    assert both.transform(others).shape == (30, 19)
    assert np.isfinite(both.transform(others)).all()
    assert (both.has_learnt, both.distance_kind, both.has_bounds) == (False, "embedded", False)


def test_what_it_says_of_itself():
    sets = clouds(60, 2)
    model = Whitened(DistanceField(4))
    assert "anchors" in model.needs_data
    assert Whitened([SlicedWasserstein(4), DistanceField(4).fit(sets)]).needs_data is None
    assert "anchors" in Whitened([SlicedWasserstein(4), Whitened(DistanceField(4))]).needs_data
    assert Whitened().needs_data is None
    assert Whitened().learns
    fitted = Whitened([DistanceField(4), sliced := SlicedWasserstein(4).fit(sets)]).fit(sets)
    assert fitted.has_learnt
    assert (fitted.distance_kind, fitted.has_bounds) == ("whitened", False)
    assert np.array_equal(fitted.sliced_view.slices_, sliced.slices_)
    assert model.fit(sets).sliced_view is None


def test_with_few_sets_nothing_is_left_out():
    """Directions that no set has shown are kept: two sets that differ only there are told apart."""
    x = normal(40, 60)
    model = Whitened(MeanPool()).fit(singles(x))
    assert model.vector_length == 60
    assert len(model.scales_) == 39
    queries = normal(30, 60, seed=1)
    assert_same_distances(model.transform(singles(queries)), oracle(x, queries), 1e-3)
    unseen = np.linalg.svd(x - x.mean(axis=0))[2][-1]
    assert cdist(*model.transform(singles([x[0], x[0] + 0.1 * unseen]))[:, None])[0, 0] > 0.05


@pytest.mark.parametrize("n", [20, 40, 100, 300])
def test_few_sets_are_never_worse_than_none(mnist, n):
    sets, labels = mnist
    plain = SlicedWasserstein().fit(sets)

    def precision(model):
        distances = model.distance(sets, sets)
        np.fill_diagonal(distances, np.inf)
        nearest = distances.argsort(axis=1)[:, :4]
        return (labels[nearest] == labels[:, None]).mean()

    gain = precision(Whitened(plain).fit(sets[:n])) - precision(plain)
    least = -0.01  # of generated sets, among which there is little to gain
    if len(set(labels)) == 10:
        least = 0.0 if n < 100 else 0.03
    assert gain > least


@pytest.mark.filterwarnings("ignore::slosh.errors.PrecisionWarning")
@pytest.mark.parametrize("n", [12, 300])
@pytest.mark.parametrize("place", [0.0, 1e4])
def test_sets_that_are_all_the_same(n, place):
    one = np.random.default_rng(0).normal(size=(20, 3)) + place
    others = [one + 1, one * 2]
    for embedding in (SlicedWasserstein(4, 4), [SlicedWasserstein(4, 4), MeanPool()]):
        model = Whitened(embedding).fit([one] * n)
        vectors = model.transform([one, *others])
        assert np.isfinite(vectors).all()
        assert np.linalg.norm(vectors[0] - vectors[1]) > 0.1  # nothing was learnt, and nothing is left out
        assert Whitened(embedding, 3).fit([one] * n).vector_length == model.vector_length


@pytest.mark.parametrize("place", [0.0, 100.0])
@pytest.mark.parametrize("n", [30, 500])
def test_constant_features_and_low_rank(n, place):
    """Rounding is not taken for a direction, and n_components falls to the rank."""
    x = normal(n, 6) @ np.random.default_rng(1).normal(size=(6, 40)).astype(np.float32)
    x[:, 7] = 3
    x += np.float32(place)
    model = Whitened(MeanPool(), 20, normalize=True).fit(singles(x))
    vectors = model.transform(singles(x))
    assert model.vector_length == 6
    assert_same_distances(vectors, oracle(x, x, 6), 2e-3)
    auto = Whitened(MeanPool(), normalize=True).fit(singles(x))
    assert auto.vector_length == (40 if n == 30 else 6)
    assert_same_distances(auto.transform(singles(x)), oracle(x, x), 2e-3)


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e12])
def test_any_unit_gives_the_same_vectors(size):
    sets, scaled = clouds(300, 2), Sets.from_list([x * np.float32(size) for x in clouds(300, 2)])
    embedding = SlicedWasserstein(8, 8)
    expected = Whitened(embedding).fit(sets).transform(sets)
    assert_same_distances(Whitened(embedding).fit(scaled).transform(scaled), expected, 1e-3)


def test_copies_of_a_set_teach_nothing():
    x = normal(300)
    few = np.repeat(x[:10], 30, axis=0)
    assert not Whitened(MeanPool()).fit(singles(few)).has_learnt
    again = np.concatenate([x[:100], x[:100], x[:100]])
    once, thrice = (Whitened(MeanPool()).fit(singles(each)) for each in (x[:100], again))
    assert_same_distances(once.transform(singles(x)), thrice.transform(singles(x)))


@pytest.mark.parametrize(("n_components", "unit"), [(15, False), (16, True), (20, True)])
def test_vectors_of_few_numbers_keep_their_length(n_components, unit):
    x = normal(200)
    vectors = Whitened(MeanPool(), n_components).fit(singles(x)).transform(singles(x))
    assert_same_distances(vectors, oracle(x, x, n_components, normalize=unit), 1e-3)
    lengths = np.linalg.norm(vectors, axis=1)
    assert np.allclose(lengths, 1, atol=1e-5) == unit
    assert np.square(lengths).mean() == pytest.approx(1, rel=1e-3)


def test_a_set_at_the_mean_stays_at_zero():
    x = normal(500, 5)
    model = Whitened(MeanPool(), normalize=True).fit(singles(x))
    vectors = model.transform(singles([x.mean(axis=0, dtype=float), x[0]]))
    assert np.linalg.norm(vectors[0]) < 1
    assert np.linalg.norm(vectors[1]) == pytest.approx(1)
    exact = np.concatenate([x, 2 * x.mean(axis=0) - x])
    model = Whitened(MeanPool(), normalize=True).fit(singles(exact - exact.mean(axis=0, dtype=float)))
    model.mean_ = np.zeros(5)
    assert not model.transform(singles([np.zeros(5)])).any()


# -- labels ------------------------------------------------------------------------------------------------------------


def test_novelty_is_the_part_of_sets_that_are_far_from_the_sample():
    x = normal(700)
    sample, alike = x[:300], x[300:]
    model = Whitened(MeanPool(), n_components=5).fit(singles(sample))
    plain = Whitened(MeanPool(), n_components=5, normalize=False).fit(singles(sample))
    for others in (alike, alike + 1, 2 * alike - sample.mean(axis=0)):
        own, others_too = model.landmarks_, plain.transform(singles(others))
        usual = np.quantile(np.sort(cdist(own, own), axis=1)[:, 1], 0.95)
        far = (cdist(others_too, own).min(axis=1) > usual).mean()
        assert model.novelty(singles(others)) == pytest.approx(far, abs=0.006)
        assert far < 0.15 if others is alike else far > 0.25
    assert Whitened(MeanPool()).fit(singles(normal(5))).novelty(singles(alike)) is None


def classed(n, n_classes=8, seed=0, dim=30):
    """Vectors whose classes differ in directions of little variance, as sets of one element, and their classes."""
    classes = np.random.default_rng(seed).integers(0, n_classes, n)
    means = np.random.default_rng(99).normal(size=(n_classes, 8)) * 0.3
    x = np.random.default_rng(seed + 1).normal(size=(n, dim)) * np.linspace(2, 0.2, dim)
    x[:, -8:] += means[classes]
    return singles(x), classes


def leave_one_out(model, sets, classes):
    distances = model.distance(sets, sets)
    np.fill_diagonal(distances, np.inf)
    nearest = distances.argsort(axis=1)[:, :4]
    return (classes[nearest] == classes[:, None]).mean()


def test_labels_find_more_of_a_class():
    """In sets that the fit did not see; with labels for a part of the sets, too, and few of them do no harm."""
    (sets, classes), (others, wanted) = classed(1500), classed(400, seed=3)
    plain = leave_one_out(Whitened(MeanPool()).fit(sets), others, wanted)
    gains = []
    for n in (1500, 500, 40):
        labels = np.where(np.arange(1500) < n, classes, -1)
        model = Whitened(MeanPool()).fit(sets, labels)
        assert model.vector_length == Whitened(MeanPool()).fit(sets).vector_length == 30
        assert model.n_labelled_ == n
        gains.append(leave_one_out(model, others, wanted) - plain)
    assert gains[0] > 0.15
    assert gains[0] > gains[1] > 0.05
    assert gains[2] > -0.02


def test_labels_look_at_more_than_the_numbers_that_are_kept():
    (sets, classes), (others, wanted) = classed(1500), classed(400, seed=3)
    plain = leave_one_out(Whitened(MeanPool(), 5).fit(sets), others, wanted)
    model = Whitened(MeanPool(), 5).fit(sets, classes)
    assert model.vector_length == 5
    assert leave_one_out(model, others, wanted) > plain + 0.1


def test_labels_do_no_harm_to_classes_without_labels():
    (sets, classes), (others, wanted) = classed(1500, 16), classed(600, 16, seed=3)
    unseen = wanted >= 8
    plain = Whitened(MeanPool()).fit(sets)
    model = Whitened(MeanPool()).fit(sets, np.where(classes < 8, classes, -1))
    rest, which = others.take(np.flatnonzero(unseen)), wanted[unseen]
    assert leave_one_out(model, rest, which) > leave_one_out(plain, rest, which) - 0.01


def test_labels_of_any_kind_give_the_same_bits():
    sets, classes = classed(400)
    names = np.array([f"class {c}" for c in classes], object)
    names[7] = None
    numbers = np.where(np.arange(400) == 7, -1, classes)
    expected = Whitened(MeanPool()).fit(sets, numbers)
    assert expected.n_labelled_ == 399
    for labels in (names, names.tolist(), list(numbers), numbers * 3 + 2 * (numbers < 0)):
        for jobs in (1, 2):
            assert np.array_equal(
                Whitened(MeanPool(), n_jobs=jobs).fit(sets, labels).transform(sets), expected.transform(sets)
            )
    plain = Whitened(MeanPool()).fit(sets).transform(sets)
    assert not np.array_equal(expected.transform(sets), plain)
    regression = Whitened(MeanPool()).fit(sets, np.random.default_rng(0).normal(size=400))
    assert np.array_equal(regression.transform(sets), plain)
    assert regression.n_labelled_ == 0


def test_a_sample_keeps_labelled_sets():
    sets, classes = classed(2000)
    labels = np.where(np.arange(2000) % 50 == 0, classes, -1)
    model = Whitened(MeanPool(), max_samples=400).fit(sets, labels)
    assert (model.n_samples_, model.n_labelled_) == (400, 40)
    assert 200 <= Whitened(MeanPool(), max_samples=400).fit(sets, classes).n_labelled_ <= 400


@pytest.mark.parametrize("n", [5, 60])
def test_labels_of_few_sets_change_nothing(n):
    sets, classes = classed(n, 2)
    expected = Whitened(MeanPool()).fit(sets).transform(sets)
    with pytest.warns(UserWarning, match=f"labels do not count: {n} sets are too few") as caught:
        found = Whitened(MeanPool()).fit(sets, classes)
    assert caught[0].filename == __file__
    assert np.array_equal(found.transform(sets), expected)


def test_labels_that_count_are_not_warned_of():
    sets, classes = classed(300, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Whitened(MeanPool()).fit(sets, classes)
        Whitened(MeanPool(), 5).fit(sets[:60], classes[:60])
        Whitened(MeanPool()).fit(sets[:60], classes[:60] + 0.5)


def test_classes_of_a_pipeline_may_be_minus_one_and_one():
    sets, classes = classed(300, 2)
    signs = np.where(classes, 1, -1)
    pipeline = make_pipeline(Whitened(MeanPool()), KNeighborsClassifier()).fit(sets, signs)
    assert pipeline[0].n_labelled_ == 300
    assert (pipeline.predict(sets) == signs).mean() > 0.5


def test_labels_and_sets_that_vary_in_nothing():
    same = singles(np.ones((300, 4)))
    with pytest.warns(UserWarning, match="labels do not count: all sets are the same"):
        model = Whitened(MeanPool()).fit(same, np.arange(300) % 3)
    assert np.isfinite(model.transform(same)).all()
    flat = singles(normal(300, 2) @ np.random.default_rng(1).normal(size=(2, 6)))
    model = Whitened(MeanPool()).fit(flat, np.repeat(np.arange(3), 100))
    vectors = model.transform(flat)
    assert np.isfinite(vectors).all()
    assert model.vector_length == 2
    with pytest.raises(InputError, match="has 2 labels for 300 sets") as caught:
        Whitened(MeanPool()).fit(same, [1, 2])
    assert caught.value.argument == "y"


def test_an_index_learns_from_labels_in_its_metadata(tmp_path):
    sets, classes = classed(400)
    with slosh.SetIndex.create(tmp_path / "index", 30, embedding=Whitened(MeanPool()), sample=sets) as index:
        index.add(sets, metadata=[{"kind": f"{c}"} if i % 4 else {} for i, c in enumerate(classes)])
        index.retrain(label="kind")
        assert index.embedding.n_labelled_ == 300
        vectors = index.embedding.transform(sets)
    with slosh.open(tmp_path / "index") as index:
        labels = [f"{c}" if i % 4 else None for i, c in enumerate(classes)]
        assert np.array_equal(Whitened(MeanPool()).fit(sets, labels).transform(sets), vectors)
        assert np.array_equal(index.embedding.transform(sets), vectors)
        assert index.search(sets[3], k=1, recall=1.0).ids == ["3"]
        assert index.verify().ok
        with pytest.warns(UserWarning, match="had learnt from labels"):
            index.retrain()
        assert index.embedding.n_labelled_ == 0


# -- embeddings that are fitted, scikit-learn, storing -----------------------------------------------------------------


def test_fitted_embeddings_are_used_as_they_are():
    sets, others = clouds(300, 2), clouds(300, 2, seed=1)
    given = SlicedWasserstein(4, 4, reference="barycenter", n_jobs=1).fit(others)
    before = deepcopy(vars(given))
    model = Whitened(given, n_jobs=2).fit(sets)
    assert np.array_equal(model.embeddings_[0].reference_, given.reference_)
    assert vars(given).keys() == before.keys()
    assert given.n_jobs == 1
    fresh = Whitened(clone(given)).fit(sets)
    assert not np.array_equal(fresh.embeddings_[0].reference_, given.reference_)
    with pytest.raises(InputError, match=r"fitted on sets of dimension 2, these have 3") as caught:
        Whitened([FSPool(), given]).fit(clouds(20, 3))
    assert caught.value.argument == "embedding"
    with pytest.raises(InputError, match="origin"):
        Whitened(given).fit(Sets.from_list(list(sets), origin=[1.0, 2.0]))


def test_pipelines_and_origins():
    city = [x + np.array([5e5, 4e6]) for x in clouds(300, 2)]
    sets = Sets.from_list(city, origin=[5e5, 4e6])
    model = Whitened([make_pipeline(SlicedWasserstein(4, 4), PCA(6)), MeanPool()]).fit(sets)
    np.testing.assert_allclose(model.transform(city), model.transform(sets), atol=1e-3)
    assert model.vector_length == 8


def test_scikit_learn_contract(mnist):
    sets, labels = mnist
    model = Whitened(SlicedWasserstein(4), 8).fit(sets)
    expected = model.transform(sets)
    assert np.array_equal(pickle.loads(pickle.dumps(model)).transform(sets), expected)
    assert np.array_equal(deepcopy(model).transform(sets), expected)
    assert clone(model).get_params(deep=False).keys() == model.get_params(deep=False).keys()
    assert clone(Whitened([GeM(2), FSPool()])).fit(sets).vector_length == 36
    assert model.get_params()["embedding__n_slices"] == 4
    assert list(model.get_feature_names_out())[:2] == ["whitened0", "whitened1"]
    assert clone(model).set_params(embedding__n_slices=2).fit(sets).mean_.shape == (32,)
    assert Whitened().set_params(embedding__n_slices=2).embedding.n_slices == 2
    search = GridSearchCV(
        make_pipeline(Whitened(SlicedWasserstein(8)), KNeighborsClassifier(3)),
        {"whitened__embedding__n_slices": [1, 8], "whitened__power": [0.0, 0.35]},
        cv=3,
    ).fit(sets, labels)
    assert search.best_params_["whitened__embedding__n_slices"] == 8
    with pytest.raises(NotFittedError):
        Whitened().transform(sets)
    with pytest.raises(ValueError, match="iterator"):
        Whitened().fit(iter(sets))


def test_set_output():
    pytest.importorskip("pandas")
    frame = Whitened(SlicedWasserstein(4, 4), 3).set_output(transform="pandas").fit_transform(clouds(30, 2))
    assert list(frame.columns) == ["whitened0", "whitened1", "whitened2"]


STORED = [
    (Whitened(SlicedWasserstein(4, 4), 5), 40),
    (Whitened([SlicedWasserstein(4, 4), DistanceField(8)]), 40),
    (Whitened([SlicedWasserstein(4, 4), Whitened((GeM(2), FSPool(4)))], normalize=False), 40),
    (Whitened(), 5),
    (Whitened([FSPool(4)]), 300),
    (Whitened([SlicedWasserstein(4, 4), LocalShape(Whitened(SlicedWasserstein(4, 4)))]), 40),
]


@pytest.mark.parametrize(("model", "n"), STORED, ids=lambda value: f"{value!r:.40}")
def test_what_is_stored_embeds_alike(model, n):
    sets = clouds(n, 2)
    fitted = clone(model).fit(sets)
    arrays: list = []
    again = portable.load(portable.dump(fitted, arrays, "embedding"), arrays)
    assert np.array_equal(again.transform(sets), fitted.transform(sets))
    spec = IndexSpec.unpack(make_spec(2, fitted).pack(), "here").run_by(2)
    assert np.array_equal(spec.embedding.transform(sets), fitted.transform(sets))
    assert spec.embedding.embeddings_[0].n_jobs == 2 if hasattr(fitted.embeddings_[0], "n_jobs") else True


@pytest.mark.parametrize(
    "change",
    [
        {"scales_": np.ones(2)},
        {"scales_": np.full(5, np.nan)},
        {"mean_": np.zeros(3)},
        {"directions_": np.zeros((5, 16))},
        {"view_scales_": []},
        {"view_scales_": [float("nan")]},
        {"rest_scale_": -1.0},
        {"rest_scale_": "a"},
        {"shortest_": 0.0},
        {"embeddings_": []},
        {"embeddings_": [GeM(1 << 20).fit([np.zeros((1, 2))])]},
        {"embeddings_": [SlicedWasserstein(4, 4).fit([np.zeros((1, 3))])]},
        {"embeddings_": [3]},
        {"embedding": SlicedWasserstein(4, 4).fit([np.zeros((1, 3))])},
        {"embedding": [GeM(1 << 20).fit([np.zeros((1, 2))])]},
    ],
    ids=lambda change: f"{change!r:.30}",
)
def test_what_fit_could_not_have_learnt_is_refused(change):
    model = Whitened(SlicedWasserstein(4, 4), 5).fit(clouds(40, 2))
    spec = make_spec(2, model)
    assert IndexSpec.unpack(spec.pack(), "here").embedding.vector_length == 5
    vars(spec.embedding).update(change)
    with pytest.raises(DamagedError, match="here"):
        IndexSpec.unpack(spec.pack(), "here")


def test_an_index_learns_it_from_its_sample(tmp_path):
    sets = clouds(300, 2)
    with slosh.SetIndex.create(
        tmp_path / "index", dim=2, embedding=Whitened(SlicedWasserstein(4)), sample=sets
    ) as index:
        index.add(sets)
    with slosh.open(tmp_path / "index") as index:
        hits = index.search(sets[5], k=4, recall=1.0)
        vectors = Whitened(SlicedWasserstein(4)).fit(sets).transform(sets)
        expected = np.sort(np.linalg.norm(vectors.astype(float) - vectors[5], axis=1))[:4]
        np.testing.assert_allclose(hits.distances, expected, atol=1e-3)


HOSTILE = [
    (DistanceField(8), {"anchors_": np.zeros((8, 3), np.float32)}),
    (DistanceField(8), {"anchors_": np.full((8, 2), np.nan, np.float32)}),
    (SlicedWasserstein(4, 4), {"n_slices_": 5}),
    (LocalShape(SlicedWasserstein(4, 4)), {"neighbors_": [1 << 40]}),
]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("view", "change"), HOSTILE, ids=["dimension", "numbers", "slices", "neighbours"])
def test_wrapped_embeddings_of_a_file_are_checked_too(view, change, depth):
    inner = clone(view)
    for _ in range(depth):
        inner = Whitened([inner, GeM(1)])
    spec = make_spec(2, inner.fit(clouds(40, 2)))
    IndexSpec.unpack(spec.pack(), "here")
    model = spec.embedding
    while isinstance(model, Whitened):
        model = model.embeddings_[0]
    vars(model).update(change)
    with pytest.raises(DamagedError, match="here"):
        IndexSpec.unpack(spec.pack(), "here")


def test_an_index_without_a_sample_is_plain_until_it_is_retrained(tmp_path):
    sets = clouds(300, 2)
    with slosh.SetIndex.create(tmp_path / "index", 2, embedding=Whitened(SlicedWasserstein(4), 8)) as index:
        index.add(sets)
        with slosh.SetIndex.create(None, 2, embedding=SlicedWasserstein(4)) as plain:
            plain.add(sets)
            expected = plain.search(sets[5], certify=True)
        assert index.search(sets[5], certify=True).ids == expected.ids
        assert "call retrain()" in index.info()["retrain"]
        index.retrain()
        assert index.info()["retrain"] is None
        found = index.search(sets[5], k=4, recall=1.0)
        assert found.distance_kind == "whitened"
        vectors = Whitened(SlicedWasserstein(4), 8).fit(sets).transform(sets)
        distances = np.linalg.norm(vectors.astype(float) - vectors[5], axis=1)
        np.testing.assert_allclose(found.distances, np.sort(distances)[:4], atol=1e-3)
        with pytest.raises(UnsupportedError):
            index.search(sets[5], certify=True)
        near = index.search(sets[5], k=4, rerank="sliced", depth=300)
        assert near.ids == expected.ids[:4]
        assert near.distance_kind == "sliced"
    with slosh.open(tmp_path / "index") as index:
        assert index.search(sets[5], k=4, recall=1.0).ids == found.ids


@pytest.mark.parametrize(
    ("options", "argument", "message"),
    [
        ({"power": 0.6}, "power", "0.5"),
        ({"power": -0.1}, "power", "from 0"),
        ({"power": "much"}, "power", "auto"),
        ({"power": True}, "power", "number"),
        ({"power": float("nan")}, "power", "number"),
        ({"n_components": 0}, "n_components", "1 or more"),
        ({"n_components": 30}, "n_components", "30 sets vary in 29 directions at most: give fewer, fit on more sets"),
        ({"embedding": MeanPool(), "n_components": 3}, "n_components", "vectors of 2 numbers vary in 2"),
        ({"normalize": "yes"}, "normalize", 'True, False, or "auto"'),
        ({"max_samples": 0}, "max_samples", "1 or more"),
        ({"embedding": []}, "embedding", "one at least"),
        ({"embedding": "sliced"}, "embedding", "is a str: give an embedding"),
        ({"embedding": [SlicedWasserstein]}, "embedding", "holds a"),
        ({"embedding": [GeM(), 3]}, "embedding", "holds an int"),
        ({"random_state": -1}, "random_state", "random_state"),
        ({"n_components": "all"}, "n_components", "n_components='all'.*1 or more, or \"auto\""),
        ({"n_components": True}, "n_components", 'or "auto"'),
    ],
)
def test_bad_input_names_the_remedy(options, argument, message):
    with pytest.raises(InputError, match=message) as caught:
        Whitened(**options).fit(clouds(30, 2))
    assert caught.value.argument == argument
