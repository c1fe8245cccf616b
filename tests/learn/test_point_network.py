"""The built-in network "points": what it computes, how its batches are drawn, and what it becomes after training."""

import numpy as np
import pytest
from labelled_shapes import shapes, torch

from slosh import Sets
from slosh.errors import InputError
from slosh.learn import LearnedEmbedding, learned
from slosh.learn.augmentation import Layout, SetBatch, augmented
from slosh.learn.head import Head
from slosh.learn.inputs import without_weightless
from slosh.learn.modules import Model, NormalizedHead
from slosh.learn.point_module import PointModule, nearest_elements
from slosh.learn.point_network import PointNetwork
from slosh.learn.pooled import PooledNetwork
from slosh.learn.sampled_inputs import KEPT, MOST_ELEMENTS, SampledInputs

CPU = torch.device("cpu")


def equal_sets(n_sets=6, n=40, dim=3, weighted=False, seed=0):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n_sets * n, dim)).astype(np.float32)
    weights = rng.uniform(0.1, 1, n_sets * n).astype(np.float32) if weighted else None
    return Sets(points, np.arange(n_sets + 1) * n, weights)


def equal_batch(sets):
    weights = None if sets.weights is None else torch.tensor(sets.weights)
    return SetBatch(torch.tensor(sets.points), torch.tensor(sets.offsets), weights, size=int(sets.sizes[0]))


def drawn_module(dim=3, n_neighbors=8, seed=0, n_mixed=0):
    """Return a network whose normalisation is not that of the start; scales of both signs are among it."""
    torch.manual_seed(seed)
    network = PointModule(dim, np.linspace(0.1, 0.3, dim), 1.7, n_neighbors, n_mixed)
    with torch.no_grad():
        for layer in [*network.layers, *([network.mixing] if n_mixed else [])]:
            layer.norm.running_mean.normal_()
            layer.norm.running_var.uniform_(0.5, 2)
            layer.norm.weight.normal_()
            layer.norm.bias.normal_()
    return network.eval()


def plain_forward(network, sets, n_neighbors):
    """The definition, element by element, in float64: shares no code with what it checks."""
    outputs = []
    for i in range(len(sets)):
        x = np.asarray(sets[i], np.float64)
        w = (
            np.ones(len(x))
            if sets.weights is None
            else sets.weights[sets.offsets[i] : sets.offsets[i + 1]].astype(float)
        )
        h = np.concatenate([x - network.center.numpy(), x - (w[:, None] * x).sum(0) / w.sum()], axis=1) / network.spread
        distance = ((x[:, None] - x[None]) ** 2).sum(2)
        near = np.argsort(distance, axis=1)[:, :n_neighbors]
        of_set = []
        for layer in network.layers:
            weight, norm = layer.both.weight.detach().double().numpy(), layer.norm
            n_outputs = len(norm.weight)
            z = h @ weight[:n_outputs].T
            if n_neighbors > 1:
                z = z + (h @ weight[n_outputs:].T)[near].max(axis=1)
            mean, var, gain, shift = (
                each.detach().double().numpy() for each in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
            )
            z = (z - mean) / np.sqrt(var + norm.eps) * gain + shift
            h = np.where(z > 0, z, 0.2 * z)
            of_set.append(h)
        outputs.append(np.concatenate(of_set, axis=1))
    if network.mixing is None:
        return np.concatenate(outputs)
    mixing, norm = network.mixing.both.weight.detach().double().numpy(), network.mixing.norm
    z = np.concatenate(outputs) @ mixing.T
    mean, var, gain, shift = (
        each.detach().double().numpy() for each in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    )
    z = (z - mean) / np.sqrt(var + norm.eps) * gain + shift
    return np.where(z > 0, z, 0.2 * z)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("dim", "n_neighbors", "n_mixed"), [(2, 8, 0), (3, 1, 40), (3, 16, 100), (5, 4, 0)])
def test_the_network_is_its_definition(dim, n_neighbors, n_mixed, weighted):
    """In torch, and as plain arrays on the kernel."""
    sets = equal_sets(dim=dim, weighted=weighted)
    network = drawn_module(dim, n_neighbors, n_mixed=n_mixed)
    wanted = plain_forward(network, sets, n_neighbors)
    batch = equal_batch(sets)
    weights = None if batch.weights is None else batch.weights.view(len(sets), -1)
    with torch.no_grad():
        in_torch = network(batch.points.view(len(sets), -1, dim), weights)
    np.testing.assert_allclose(in_torch.flatten(0, 1).numpy(), wanted, atol=1e-4)
    np.testing.assert_allclose(network.export().apply(sets, 1).points, wanted, atol=1e-4)


def test_neighbours_are_the_nearest():
    points = torch.tensor(equal_sets(3, 30).points).view(3, 30, 3)
    near = nearest_elements(points, 5).numpy()
    distance = ((points[:, :, None] - points[:, None]) ** 2).sum(3).numpy()
    assert np.array_equal(np.sort(near, axis=2), np.sort(np.argsort(distance, axis=2)[:, :, :5], axis=2))
    assert nearest_elements(points[:, :2], 5).shape == (3, 2, 2)


def test_the_gradient_is_that_of_differences():
    torch.manual_seed(0)
    network = drawn_module(2, 4).double()
    points = torch.randn(2, 9, 2, dtype=torch.float64, requires_grad=True)

    def total(x):
        return (network(x) * torch.linspace(-1, 1, network.n_outputs, dtype=torch.float64)).sum()

    total(points).backward()
    for place in [(0, 0, 0), (1, 5, 1), (0, 8, 1)]:
        step = torch.zeros_like(points)
        step[place] = 1e-6
        with torch.no_grad():
            wanted = (total(points + step) - total(points - step)) / 2e-6
        assert points.grad[place].item() == pytest.approx(wanted.item(), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_mixed", [0, 50])
def test_what_a_network_becomes_gives_the_same_vectors(weighted, n_mixed):
    """In torch, in evaluation mode, and as plain arrays behind embeddings of slosh."""
    torch.manual_seed(0)
    sets = equal_sets(12, 30, weighted=weighted)
    network = drawn_module(n_mixed=n_mixed)
    trunk = PooledNetwork(network, network.n_outputs, 8, 0)
    model = Model(trunk, None, NormalizedHead(trunk.norm.num_features)).train()
    batch = equal_batch(sets)
    for _ in range(3):  # statistics of the normalisation
        model.head(model.features(batch))
    model.eval()
    with torch.no_grad():
        wanted = model.head(model.features(batch)).numpy()
    enriched = network.export().apply(sets, 1)
    features = np.concatenate([view.transform(enriched) for view in trunk.views()], axis=1)
    found = Head(model.layers(np.eye(model.head.n_outputs)))(features, 1)
    np.testing.assert_allclose(found, wanted, atol=2e-4)


def test_the_quantiles_of_equal_sets_are_those_of_the_pool():
    """Other devices sort a dense tensor."""
    elements = torch.randn(4, 37, drawn_module().n_outputs)
    trunk = PooledNetwork(drawn_module(), elements.shape[2], 8, 0)
    with torch.no_grad():
        trunk.pool.reference.normal_()
        np.testing.assert_allclose(trunk.dense_quantiles(elements).numpy(), trunk.pool(elements).numpy(), atol=1e-5)


# -- batches -----------------------------------------------------------------------------------------------------------


def ragged(sizes, seed=0, weights=None):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Sets(rng.normal(size=(offsets[-1], 2)).astype(np.float32), offsets, weights)


def inputs_of(sets, changes=(), batch_size=4):
    return SampledInputs(sets, changes, Layout.of(sets), batch_size, CPU)


def test_a_batch_has_equally_many_elements_of_each_set_and_none_twice():
    sets = ragged([5, 9, 7])
    torch.manual_seed(0)
    batch = inputs_of(sets).batch(np.array([2, 0, 1]), np.zeros(3, np.int64))
    assert batch.size == 5
    assert batch.offsets.tolist() == [0, 5, 10, 15]
    for part, number in zip(batch.points.view(3, 5, 2).numpy(), (2, 0, 1), strict=True):
        rows = {tuple(row) for row in part.tolist()}
        assert len(rows) == 5
        assert rows <= {tuple(row) for row in sets[number].tolist()}


def test_with_drop_some_are_left_out():
    torch.manual_seed(0)
    inputs = inputs_of(ragged([100] * 3), ("drop",))
    rows, copies = np.arange(3), np.zeros(3, np.int64)
    sizes = {inputs.batch(rows, copies).size for _ in range(40)}
    assert KEPT * 100 - 1 <= min(sizes) < 85
    assert max(sizes) > 90
    assert inputs.batch(rows, None).size == 100


def test_elements_without_weight_are_never_drawn():
    weights = np.ones(20, np.float32)
    weights[[0, 5, 12]] = 0
    sets = without_weightless(ragged([10, 10], weights=weights))
    batch = inputs_of(sets).batch(np.arange(2), None)
    assert batch.size == 8
    assert bool((batch.weights > 0).all())


def test_batches_are_of_similar_sets_and_of_all_of_them():
    sizes = np.random.default_rng(0).integers(1, 500, 203)
    inputs = inputs_of(ragged(sizes), batch_size=8)
    rows = np.random.default_rng(1).permutation(203)
    found = inputs.arranged(rows, np.random.RandomState(0))
    assert np.array_equal(np.sort(found), np.arange(203))
    spreads = [np.ptp(sizes[found[i : i + 8]]) for i in range(0, 200, 8)]
    assert np.mean(spreads) < 60  # of random batches it is about 390
    runs = inputs.runs(rows)
    assert np.array_equal(np.sort(np.concatenate(runs)), np.arange(203))
    assert all(sizes[rows[run]].max() <= 1.1 * sizes[rows[run]].min() for run in runs)


def test_of_very_large_sets_a_part_is_taken():
    inputs = inputs_of(ragged([MOST_ELEMENTS + 500, MOST_ELEMENTS + 10]))
    assert inputs.batch(np.arange(2), None).size == MOST_ELEMENTS


@pytest.mark.parametrize("dim", [2, 3])
def test_a_rotated_set_keeps_its_distances_and_its_mean(dim):
    sets = equal_sets(5, 20, dim)
    torch.manual_seed(0)
    turned = augmented(equal_batch(sets), ("rotate",), Layout.of(sets)).points.view(5, 20, dim)
    before = torch.tensor(sets.points).view(5, 20, dim)
    torch.testing.assert_close(torch.cdist(turned, turned), torch.cdist(before, before), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(turned.mean(1), before.mean(1), atol=1e-5, rtol=1e-5)
    assert float((turned - before).abs().max()) > 0.05


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_points_learn_what_the_mass_does_not_show():
    """Both kinds have the same coordinates, but in one of them elements lie close together in pairs."""
    rng = np.random.default_rng(0)

    def pairs(lies_close):
        half = rng.uniform(size=(20, 2))
        other = half + rng.normal(scale=0.01, size=(20, 2)) if lies_close else rng.uniform(size=(20, 2))
        return np.concatenate([half, other])[rng.permutation(40)]

    labels = np.arange(160) % 2
    sets = [pairs(bool(label)) for label in labels]
    model = LearnedEmbedding("points", n_neighbors=3, n_components=8, epochs=40, augment=None, n_jobs=1)
    model.fit(sets[:120], labels[:120])
    stored, asked = model.transform(sets[:120]), model.transform(sets[120:])
    nearest = (asked @ stored.T).argmax(axis=1)
    assert (labels[:120][nearest] == labels[120:]).mean() > 0.8


def test_threads_share_the_sets(monkeypatch):
    sets, labels = shapes(60, 3)
    model = LearnedEmbedding("points", epochs=1, n_components=8, n_jobs=1).fit(sets, labels)
    whole = model.transform(sets)
    monkeypatch.setattr(learned, "CHUNK_NUMBERS", 1)  # each set by itself
    model.set_params(n_jobs=3)
    assert np.array_equal(model.transform(sets), whole)
    assert np.array_equal(np.stack([model.transform(sets[i : i + 1])[0] for i in range(60)]), whole)


def test_the_order_of_the_elements_changes_nothing():
    sets, labels = shapes(30, 3)
    model = LearnedEmbedding("points", epochs=1, n_components=8, n_jobs=1).fit(sets, labels)
    rng = np.random.default_rng(0)
    mixed = [np.asarray(sets[i])[rng.permutation(len(sets[i]))] for i in range(len(sets))]
    np.testing.assert_allclose(model.transform(mixed), model.transform(sets), atol=1e-6)


def test_too_many_neighbours_and_too_long_vectors_are_refused():
    sets, labels = shapes(20, 3)
    for wrong in ({"n_neighbors": 0}, {"n_neighbors": 10**6}, {"n_components": 257}):
        with pytest.raises(InputError) as error:
            LearnedEmbedding("points", **wrong).fit(sets, labels)
        assert error.value.argument == next(iter(wrong))


def parts(network):
    return {name: getattr(network, name) for name in ("center_", "spread_", "n_neighbors_", "layers_", "mixing_")}


@pytest.mark.parametrize(
    "wrong",
    [
        {"center_": np.zeros(2)},
        {"center_": np.array([0, np.nan, 0])},
        {"spread_": 0.0},
        {"spread_": 1},
        {"n_neighbors_": 0},
        {"n_neighbors_": 1 << 40},
        {"layers_": []},
        {"layers_": [np.zeros((4, 6), np.float32)] * 3},
        {"layers_": [np.zeros((4, 7), np.float32)] * 2 + [np.zeros(4, np.float32)] * 2},
        {"layers_": [np.zeros((4, 6))] * 2 + [np.zeros(4)] * 2},
        {"layers_": [np.full((4, 6), np.inf, np.float32)] * 2 + [np.zeros(4, np.float32)] * 2},
        {"mixing_": None},
        {"mixing_": [np.zeros((4, 448), np.float32)]},
        {"mixing_": [np.zeros((4, 7), np.float32), np.zeros(4, np.float32)]},
        {"mixing_": [np.zeros((4, 448), np.float32), np.full(4, np.nan, np.float32)]},
        {"mixing_": [np.zeros((4, 448), np.float32), np.zeros(4, np.float32)] * 2},
        {"mixing_": [np.zeros((1 << 11, 448), np.float32), np.zeros(1 << 11, np.float32)]},
    ],
)
def test_a_network_of_a_hostile_file_is_refused(wrong):
    network = drawn_module(n_mixed=20).export()
    network.check_state(3)
    broken = PointNetwork()
    vars(broken).update({**parts(network), **wrong})
    with pytest.raises(ValueError, match="network"):
        broken.check_state(3)


def test_a_small_set_does_not_make_the_others_small():
    sizes = [100] * 20 + [1]
    torch.manual_seed(0)
    sets = ragged(sizes)
    batch = inputs_of(sets, batch_size=64).batch(np.arange(21), np.zeros(21, np.int64))
    assert batch.size == 75
    parts = batch.points.view(21, 75, 2).numpy()
    assert len(np.unique(parts[0], axis=0)) == 75
    assert np.array_equal(np.unique(parts[20], axis=0), sets[20])


def test_of_huge_sets_elements_are_drawn_without_a_number_for_each():
    inputs = inputs_of(ragged([40 * MOST_ELEMENTS, 3]))
    batch = inputs.batch(np.array([0, 1]), np.zeros(2, np.int64))
    assert batch.points.shape == (2 * batch.size, 2)


def test_sets_of_one_element_are_learnt_from():
    rng = np.random.default_rng(0)
    sets, labels = [rng.normal(size=(1, 2)) + label for label in (0, 4, 8)] * 7, np.arange(21) % 3
    model = LearnedEmbedding("points", epochs=1, n_components=8, batch_size=2, validation_fraction=0, n_jobs=1)
    assert np.isfinite(model.fit(sets, labels).transform(sets)).all()
