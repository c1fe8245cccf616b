"""The parts of training against plain NumPy: losses, changes of sets, batches, and modules against what they become."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labelled_shapes import shapes, small, torch
from scipy.special import logsumexp

from slosh import Sets
from slosh.embed import DistanceField, SlicedWasserstein, Whitened
from slosh.errors import InputError
from slosh.learn import LearnedEmbedding
from slosh.learn.augmentation import (
    CHANGES,
    KEPT,
    SHIFT,
    STRETCH,
    Layout,
    SetBatch,
    augmented,
    with_regions_of_others,
)
from slosh.learn.averaging import Average
from slosh.learn.examples import labelled_examples, paired_examples
from slosh.learn.inputs import BATCH_POINTS, SetInputs, changed_copies, even_runs, without_weightless
from slosh.learn.losses import TEMPERATURE, contrastive_loss
from slosh.learn.modules import LearntSlices, Scale
from slosh.learn.parameters import checked_changes, puts_regions


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@given(n=st.integers(2, 12), seed=st.integers(0, 50), share=st.floats(0.1, 0.9))
def test_the_contrastive_loss_is_that_of_its_formula(n, seed, share):
    rng = np.random.default_rng(seed)
    vectors, drawn = unit(rng.normal(size=(n, 3))), rng.random((n, n)) < share
    alike = (drawn | drawn.T) & ~np.eye(n, dtype=bool)
    scores, of_anchors = vectors @ vectors.T / TEMPERATURE, []
    for i in range(n):
        others = [scores[i, k] for k in range(n) if k != i and not alike[i, k]]
        each = [logsumexp([scores[i, j], *others]) - scores[i, j] for j in range(n) if alike[i, j]]
        of_anchors += [np.mean(each)] if each else []
    found = contrastive_loss(torch.tensor(vectors), torch.tensor(alike))
    assert float(found) == pytest.approx(np.mean(of_anchors) if of_anchors else 0, abs=1e-9)


def test_the_contrastive_loss_has_a_gradient():
    vectors = torch.tensor(np.random.default_rng(0).normal(size=(6, 4)), requires_grad=True)
    alike = torch.tensor(np.arange(6)[:, None] % 3 == np.arange(6) % 3)
    assert torch.autograd.gradcheck(lambda x: contrastive_loss(torch.nn.functional.normalize(x, dim=1), alike), vectors)


def layout(spread=1.0, fixed=(0, 0, 0)):
    return Layout(np.zeros(len(fixed)), spread, spread, torch.tensor(fixed), not any(fixed))


def batch_of(sets):
    weights = None if sets.weights is None else torch.tensor(sets.weights)
    return SetBatch(torch.tensor(sets.points), torch.tensor(sets.offsets), weights)


@pytest.mark.parametrize("weighted", [False, True])
def test_changes_of_sets(weighted):
    sets = without_weightless(shapes(50, 3, weighted=weighted)[0])
    batch = batch_of(sets)
    dropped = augmented(batch, ("drop",), layout())
    sizes = dropped.sizes.numpy()
    assert (sizes >= 1).all()
    assert (sizes <= sets.sizes).all()
    assert KEPT * len(sets.points) * 0.8 < len(dropped.points) < len(sets.points)
    assert dropped.offsets[-1] == len(dropped.points)
    for i in range(50):
        kept = dropped.points[dropped.offsets[i] : dropped.offsets[i + 1]].numpy()
        assert {tuple(row) for row in kept.tolist()} <= {tuple(row) for row in sets[i].tolist()}
        if weighted:
            weights = dict(zip(map(tuple, sets[i].tolist()), sets.weights_of(i).tolist(), strict=True))
            part = slice(dropped.offsets[i], dropped.offsets[i + 1])
            assert [weights[tuple(row)] for row in kept.tolist()] == dropped.weights[part].tolist()
    scaled = augmented(batch, ["scale"], layout()).points
    for start, stop in zip(sets.offsets[:-1], sets.offsets[1:], strict=True):
        before, after = (each[start:stop] - each[start:stop].mean(dim=0) for each in (batch.points, scaled))
        factors = after.norm(dim=0) / before.norm(dim=0)
        assert factors.min() >= 1 / STRETCH - 1e-4
        assert factors.max() <= STRETCH + 1e-4
        torch.testing.assert_close(after, before * factors, rtol=0, atol=1e-4)
        torch.testing.assert_close(scaled[start:stop].mean(dim=0), batch.points[start:stop].mean(dim=0))
    moved = augmented(batch, "shift", layout(2.0)).points - batch.points
    assert 0.1 < moved.abs().max() <= 2 * SHIFT + 1e-5
    jittered = augmented(batch, ("jitter",), layout(2.0)).points - batch.points
    assert 0.02 < jittered.std() < 0.06
    assert augmented(batch, (), layout()) is batch


@pytest.mark.parametrize("name", CHANGES)
def test_changes_do_not_depend_on_where_sets_lie(name):
    sets, _ = shapes(20, 3)
    for batch in (batch_of(sets), SetBatch(torch.randn(60, 3), torch.arange(7) * 10, None, size=10)):
        unmoved(batch, name)


def unmoved(batch, name):
    away = torch.tensor([64.0, -512.0, 8.0])
    moved = batch._replace(points=batch.points + away)
    found = []
    for each in (batch, moved):
        torch.manual_seed(0)
        found.append(augmented(each, [name], layout(1.5, (-1, 0, 1))).points)
    torch.testing.assert_close(found[1] - away, found[0], rtol=0, atol=1e-3)


@pytest.mark.parametrize("size", [10, None])
def test_sets_are_stretched_from_where_they_are_fixed(size):
    torch.manual_seed(0)
    sizes = np.full(6, 10) if size else np.array([1, 5, 20, 10, 12, 12])
    offsets = torch.tensor(np.concatenate([[0], np.cumsum(sizes)]))
    batch = SetBatch(torch.randn(60, 3), offsets, None, size=size)
    changed = augmented(batch, ["scale"], layout(1.0, (-1, 0, 1))).points
    for one, other in zip(batch.points.split(sizes.tolist()), changed.split(sizes.tolist()), strict=True):
        for number, place in enumerate((torch.amin, torch.mean, torch.amax)):
            torch.testing.assert_close(place(other[:, number], 0), place(one[:, number], 0))
        if len(one) > 1:
            factors = (other.amax(0) - other.amin(0)) / (one.amax(0) - one.amin(0))
            assert (factors > 1 / STRETCH - 1e-3).all()
            assert (factors < STRETCH + 1e-3).all()
            assert len(factors.unique()) == 3


@pytest.mark.parametrize("away", [0.0, 300.0])
def test_what_stays_where_it_is_when_sets_are_stretched(away):
    """Of one feature the lowest coordinates are always the same, of others the means, or the highest, or nothing is."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(4, 30, 200)
    found = []
    for size in sizes:
        points = rng.uniform(size=(size, 5)) * rng.uniform(1, 2, 5) + rng.uniform(size=5)
        points[:, 0] -= points[:, 0].min()
        points[:, 1] -= points[:, 1].mean()
        points[:, 2] -= points[:, 2].max()
        points[:, 4] = 3.0
        found.append(np.float32(points + away))
    sets = Sets.from_list(found)
    assert Layout.of(sets).fixed.tolist() == [-1, 0, 1, 0, 0]
    assert Layout.of(sets[:1]).fixed.tolist() == [0, 0, 0, 0, 0]
    assert Layout.of(sets[:1]).by_means
    assert not Layout.of(sets).by_means
    odd = Sets.from_list([*found, found[0] + np.float32(100)])
    assert Layout.of(odd).fixed.tolist() == [-1, 0, 1, 0, 0]
    assert Layout.of(Sets.from_list([[[2.0, 2.0]]])).spread == 1.0


def test_how_far_coordinates_lie_from_each_other_and_from_the_mean_of_their_set():
    rng = np.random.default_rng(0)
    centers = rng.normal(scale=[8, 0, 6], size=(2000, 3)) + 5
    found = [center + rng.normal(scale=2, size=(30, 3)) for center in centers]
    for odd in ([], [found[0] + 1e6], [found[0] * 1e6]):
        layout = Layout.of(Sets.from_list([*found, *odd]))
        assert layout.within == pytest.approx(2, rel=0.03)
        assert layout.spread == pytest.approx(np.sqrt(4 + 100 / 3), rel=0.03)
        assert layout.center == pytest.approx([5, 5, 5], abs=1)
    alone = Layout.of(Sets.from_list([*(each[:1] for each in found[:900]), *(each[:2] for each in found[:300])]))
    assert 0.5 < alone.within < 1.5  # most sets have one element
    single = Layout.of(Sets.from_list([each[:1] for each in found]))
    assert single.within == single.spread == pytest.approx(np.sqrt(4 + 100 / 3), rel=0.05)


def test_points_learn_shapes_wherever_each_set_lies():
    sets, labels = shapes(200, size=40)
    away = np.random.default_rng(1).uniform(-60, 60, size=(len(sets), 2)).astype(np.float32)
    scattered = Sets(sets.points + np.repeat(away, sets.sizes, axis=0), sets.offsets)
    given = {"network": "points", "embedding": None, "n_slices": 8, "epochs": 12, "augment": None}
    one, other = (small(**given).fit(each, labels).history_[-1]["loss"] for each in (sets, scattered))
    assert other < one + 0.15


@pytest.mark.parametrize("given", [{}, {"embedding": None, "network": "points", "n_slices": 8}])
def test_elements_of_weight_zero_say_nothing(given):
    sets, labels = shapes(60)
    ones = Sets(sets.points, sets.offsets, np.ones(len(sets.points), np.float32))
    away = np.array([[1e3, -1e3]])
    padded = [np.concatenate([each, away]) for each in sets]
    weights = [np.append(np.ones(len(each)), 0) for each in sets]
    given = {**given, "epochs": 3, "augment": "auto"}
    one, other = (small(**given).fit(each, labels) for each in (ones, Sets.from_list(padded, weights)))
    assert np.array_equal(one.curves_, other.curves_, equal_nan=True)


@pytest.mark.parametrize("network", [None, "points"])
def test_sets_that_lie_far_from_zero_are_learnt_as_others(network):
    sets, labels = shapes(120, size=30)
    given = {"network": network, "embedding": None if network else SlicedWasserstein(8, 4), "n_slices": 8}
    given["learning_rate"] = 0.01 if network else None  # of small steps, which rounding changes little
    losses = []
    for away in (0, 64):
        moved = Sets(sets.points + np.float32([away, -4 * away]), sets.offsets)
        losses.append(small(**given, epochs=8, augment="auto").fit(moved, labels).history_[-1]["loss"])
    assert losses[0] < 1.05
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_weights_of_a_set_count_as_its_own_parts_while_regions_are_put():
    sets, labels = shapes(60, weighted=True)
    sizes = np.random.default_rng(0).integers(-20, 20, len(sets))
    scaled = Sets(sets.points, sets.offsets, sets.weights * np.repeat(2.0**sizes, sets.sizes).astype(np.float32))
    given = {"network": "points", "embedding": None, "n_slices": 8, "epochs": 4, "augment": ("drop", "regions")}
    one, other = (small(**given).fit(each, labels) for each in (sets, scaled))
    assert np.array_equal(one.curves_, other.curves_, equal_nan=True)


def test_regions_count_by_their_weight():
    torch.manual_seed(0)
    n_sets, n = 40, 25
    points, weights = torch.rand(n_sets * n, 3), torch.rand(n_sets * n)
    batch = SetBatch(points, torch.arange(n_sets + 1) * n, weights, size=n)
    mixed, other, part = with_regions_of_others(batch, 0.5)
    for i in np.flatnonzero(other.numpy() != np.arange(n_sets)).tolist():
        here = slice(i * n, (i + 1) * n)
        own = {tuple(x) for x in points[here].tolist()}
        is_own = torch.tensor([tuple(x) in own for x in mixed.points[here].tolist()])
        share = mixed.weights[here][is_own].sum() / mixed.weights[here].sum()
        assert float(part[i]) == pytest.approx(float(share), abs=1e-6)


def test_regions_of_other_sets():
    torch.manual_seed(0)
    n_sets, n = 40, 25
    points = torch.rand(n_sets, n, 3)
    batch = SetBatch(points.view(-1, 3), torch.arange(n_sets + 1) * n, None, size=n)
    mixed, other, part = with_regions_of_others(batch, 0.5)
    assert sorted(other.tolist()) == list(range(n_sets))
    assert 8 < int((part < 1).sum()) < 32
    for i, found in enumerate(mixed.points.view(n_sets, n, 3)):
        n_own = round(float(part[i]) * n)
        distances = (points - points[i, 0]).norm(dim=2)
        own = points[i][distances[i].argsort()[n - n_own :]]
        taken = points[other[i]][distances[other[i]].argsort()[: n - n_own]]
        assert {tuple(x) for x in found.tolist()} == {tuple(x) for x in torch.cat([own, taken]).tolist()}
    assert with_regions_of_others(batch, 0.0)[2].tolist() == [1.0] * n_sets


def test_the_average_of_weights():
    layer = torch.nn.Linear(1, 1)
    average = Average(torch.nn.ModuleList([layer]))
    start, average.reach = layer.weight.item(), 4.0
    wanted = start
    for step in range(5):
        with torch.no_grad():
            layer.weight.fill_(step)
        average.update()
        wanted = 0.75 * wanted + 0.25 * step
    assert average.modules[0].weight.item() == pytest.approx(wanted, rel=1e-5)
    average.reach = 0.3  # of a short fit
    average.update()
    assert average.modules[0].weight.item() == 4


def test_copies_are_the_set_itself_and_changed_ones():
    sets, _ = shapes(20, weighted=True)
    one, other, third = changed_copies(sets, ("drop", "jitter"), 2, layout())
    assert one is sets
    assert not np.array_equal(other.points[:5], third.points[:5])
    assert list(changed_copies(sets, (), 4, layout())) == [sets]


def test_a_batch_of_sets_is_those_sets():
    sets, _ = shapes(30, 3, weighted=True)
    copies = list(changed_copies(sets, ("jitter",), 1, layout()))
    features = np.random.default_rng(0).normal(size=(2, 30, 4)).astype(np.float32)
    inputs = SetInputs(copies, features, (), layout(), torch.device("cpu"))
    rows, which = np.array([7, 0, 29, 7]), np.array([0, 1, 1, 0])
    batch = inputs.batch(rows, which)
    for i, (row, copy) in enumerate(zip(rows, which, strict=True)):
        part = slice(int(batch.offsets[i]), int(batch.offsets[i + 1]))
        assert np.array_equal(batch.points[part].numpy(), copies[copy][row])
        assert np.array_equal(batch.weights[part].numpy(), copies[copy].weights_of(row))
        assert np.array_equal(batch.features[i].numpy(), features[copy, row])
    assert np.array_equal(inputs.batch(rows, None).points.numpy(), sets.take(rows).points)


@given(n=st.integers(1, 100), size=st.integers(1, 40), large=st.integers(0, 99))
def test_batches_are_even_and_bounded(n, size, large):
    elements = np.where(np.arange(n) == large, 2 * BATCH_POINTS, 1000)
    runs = even_runs(n, size, elements)
    assert np.concatenate([np.arange(n)[run] for run in runs]).tolist() == list(range(n))
    for run in runs:
        assert 1 <= run.stop - run.start <= size
        assert run.stop - run.start == 1 or elements[run].sum() <= BATCH_POINTS
    alike = [run.stop - run.start for run in even_runs(n, size, np.zeros(n, int))]
    assert len(alike) == -(-n // size)


@given(n=st.integers(2, 200), n_classes=st.integers(2, 9), fraction=st.floats(0, 0.5), seed=st.integers(0, 9))
@settings(max_examples=50)
def test_what_is_held_back_is_a_part_of_every_class(n, n_classes, fraction, seed):
    labels = np.concatenate([[0, 0, 1], np.random.default_rng(seed).integers(n_classes, size=n)])
    examples = labelled_examples(labels, n + 3)
    kept, held = examples.split(fraction, np.random.RandomState(seed))
    if held is None:
        assert len(kept) == n + 3
        return
    assert sorted([*kept.rows, *held.rows]) == list(range(n + 3))
    for part in (kept, held):
        assert np.array_equal([examples.names[c] for c in part.classes], labels[part.rows])
    counts, all_counts = (np.bincount(x.classes, minlength=examples.n_classes) for x in (held, examples))
    assert (np.abs(counts - fraction * all_counts) <= 1).all()
    assert (counts <= all_counts // 2).all()


def test_pairs_are_split_by_pairs():
    examples = paired_examples([(i, i + 1, i % 3 != 0) for i in range(60)], 61)
    kept, held = examples.split(0.2, np.random.RandomState(0))
    assert len(examples) == 40
    assert (len(kept), len(held)) == (32, 8)
    assert len(kept.unlike) == 20
    assert np.array_equal(held.rows, np.unique(held.alike))


@pytest.mark.parametrize("n", [12, 60, 300])
def test_learnt_slices_begin_as_the_whitened_views(n):
    """With few sets nothing is learnt, with some nothing is left out, with many there is a plain map."""
    sets, _ = shapes(n, 2)
    views = [DistanceField(4), SlicedWasserstein(6, 4, reference="barycenter"), SlicedWasserstein(5, 3)]
    whitened = Whitened(views).fit(sets)
    trunk = LearntSlices(whitened, torch.device("cpu"))
    fixed = whitened.embeddings_[0].transform(sets) * whitened.view_scales_[0]
    with torch.no_grad():
        found = trunk(batch_of(sets)._replace(features=torch.tensor(fixed.astype(np.float32)))).numpy()
    np.testing.assert_allclose(found, whitened.transform(sets), atol=1e-4)
    before = whitened.transform(sets)
    trunk.into(whitened)
    np.testing.assert_allclose(whitened.transform(sets), before, atol=1e-4)


def test_a_trained_model_is_its_torch_model():
    """The vectors of `transform` are those of the torch model, turned: distances agree."""
    sets, labels = shapes(60)
    model = small(epochs=2, n_components=1024).fit(sets, labels)
    features = model.views_[0].transform(sets)
    weights, biases = model.layers_[::2], model.layers_[1::2]
    rows = features.astype(np.float64)
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        rows = rows @ weight.T.astype(np.float64) + bias
        rows = rows if number == len(weights) - 1 else np.maximum(rows, 0)
    np.testing.assert_allclose(model.transform(sets), unit(rows), atol=1e-5)
    np.testing.assert_allclose(weights[-1] @ weights[-1].T, np.eye(1024), atol=1e-4)


def test_the_scale_is_one_for_features_that_are_zero():
    assert float(Scale(np.zeros((3, 2), np.float32)).factor) == 1


def test_who_gets_regions_of_others():
    def asked(epochs=400, dim=3, by_classes=True, **given):
        return puts_regions(LearnedEmbedding(**{"network": "points", **given}), dim, epochs, by_classes)

    assert asked()
    assert not asked(399)
    assert not asked(dim=5)
    assert not asked(by_classes=False)
    assert not asked(network=None)
    assert not asked(augment=None)
    assert not asked(augment=("drop", "rotate"))
    assert asked(1, 5, augment=("drop", "regions"))
    assert asked(1, augment="regions")
    assert checked_changes(LearnedEmbedding("points", augment=["regions", "drop"]), 3) == ("drop",)


def test_regions_are_for_labels_and_for_the_network_on_elements():
    sets, labels = shapes(20)
    for wrong, remedy in (
        ({"augment": ["regions"]}, 'network="points"'),
        ({"augment": "regions", "network": "points", "loss": "contrastive", "embedding": None}, "leave 'regions' out"),
    ):
        with pytest.raises(InputError, match=remedy) as error:
            small(epochs=1, **wrong).fit(sets, labels)
        assert error.value.argument == "augment"


def test_which_sets_of_a_batch_are_alike():
    rng = np.random.default_rng(0)
    for _ in range(20):
        n = int(rng.integers(4, 30))
        pairs = rng.integers(0, n, (int(rng.integers(3, 60)), 2))
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        pairs = np.concatenate([pairs, [[0, 1], [1, 2], [2, 3]]])
        given = {frozenset(pair) for pair in pairs.tolist()}
        examples = paired_examples(pairs, n)
        examples = examples.only(np.sort(rng.permutation(len(examples))[: max(1, len(examples) - 2)]))
        given = {frozenset(pair) for pair in examples.alike.tolist()}
        rows = np.sort(rng.permutation(n)[: int(rng.integers(1, n))])
        wanted = [[frozenset((a, b)) in given for b in rows.tolist()] for a in rows.tolist()]
        assert np.array_equal(examples.alike_among(rows), wanted)
