"""What goes wrong in a fit, and what is said about it: networks and changes of the user's own, numbers, checkpoints."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from labelled_shapes import shapes, small, torch

from slosh.embed import SlicedWasserstein, Whitened
from slosh.errors import DeviceError, InputError
from slosh.learn import LearnedEmbedding

SETS, LABELS = shapes(40, 3)


class Own(torch.nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make, self.layer = make, torch.nn.Linear(3, 4)

    def forward(self, points, offsets):
        return self.make(self.layer(points))


def fit(network, **given):
    return LearnedEmbedding(network, **{"n_components": 4, "epochs": 2, "n_jobs": 1, **given}).fit(SETS, LABELS)


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (torch.nn.Linear(3, 4), "network(points, offsets)"),
        (Own(lambda x: x).double(), "network(points, offsets)"),
        (Own(lambda x: x if len(x) < 30 else x[:-1]), "a row for each element"),
    ],
)
def test_a_network_that_is_called_otherwise_or_returns_something_else(network, said):
    with pytest.raises(InputError) as error:
        fit(network)
    assert error.value.argument == "network"
    assert said in str(error.value)


@pytest.mark.parametrize(
    "given",
    [
        {"network": Own(lambda x: x * torch.nan)},
        {"network": "points", "augment": lambda points, offsets: points * torch.nan},
    ],
)
def test_a_loss_that_is_no_number_ends_the_fit(given):
    with pytest.raises(InputError) as error:
        fit(**given)
    assert error.value.argument == "learning_rate"


def test_one_class_or_none_that_is_shared():
    for labels, said in (([1] * 40, "one class only"), (list(range(40)), "no label twice")):
        with pytest.raises(InputError, match=said) as error:
            small().fit(SETS, labels)
        assert "leave y out" not in str(error.value)  # it learns from nothing else


def test_devices_that_cannot_be_used():
    for device in ("tpu", "meta", "cpu:first"):
        with pytest.raises(InputError) as error:
            small(device=device).fit(SETS, LABELS)
        assert error.value.argument == "device"
    number = "cuda" if torch.version.cuda is None else "cuda:9999"
    with pytest.raises(DeviceError, match="leave device out"):
        small(device=number).fit(SETS, LABELS)


@pytest.mark.parametrize("network", [None, "points"])
def test_a_program_may_set_how_products_are_computed(network):
    """By either interface of torch, which must not be mixed."""
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has one interface only")
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        fit(network, epochs=1)
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before


def test_one_component_is_refused():
    with pytest.raises(InputError) as error:
        small(n_components=1).fit(SETS, LABELS)
    assert error.value.argument == "n_components"


def test_no_pairs_are_refused():
    with pytest.raises(InputError, match="empty"):
        small().fit(SETS, pairs=[])


def test_a_checkpoint_needs_a_seed(tmp_path):
    for state in (None, np.random.RandomState(0)):
        with pytest.raises(InputError) as error:
            small(random_state=state).fit(SETS, LABELS, checkpoint=tmp_path / "a.checkpoint")
        assert error.value.argument == "random_state"
    assert not list(tmp_path.iterdir())


def scaled_by(factor):
    return lambda points, offsets: points * factor


def test_a_checkpoint_of_another_function_is_refused(tmp_path):
    place = tmp_path / "a.checkpoint"
    first = small(augment=scaled_by(2.0), epochs=1).fit(SETS, LABELS, checkpoint=place)
    again = small(augment=scaled_by(2.0), epochs=1).fit(SETS, LABELS, checkpoint=place)
    assert np.array_equal(first.transform(SETS), again.transform(SETS))
    for other in (scaled_by(3.0), lambda points, offsets: points + 2.0):
        with pytest.raises(InputError) as error:
            small(augment=other, epochs=1).fit(SETS, LABELS, checkpoint=place)
        assert error.value.argument == "checkpoint"


def test_sets_of_other_dimensions_cannot_be_rotated():
    sets, labels = shapes(20, 5)
    with pytest.raises(InputError) as error:
        small(augment=("rotate",)).fit(sets, labels)
    assert error.value.argument == "augment"


@pytest.mark.parametrize("given", [{}, {"network": "points"}, {"network": Own(torch.tanh)}])
def test_what_torch_takes_by_default_in_a_program_is_no_matter_of_a_fit(given):
    expected = fit(**{"network": None, **given}).transform(SETS)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        found = fit(**{"network": None, **given}).transform(SETS)
        assert torch.get_default_dtype() == torch.float64
        assert torch.get_default_device().type == "meta"
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1e30])
def test_changes_of_the_users_own_that_are_no_numbers(wrong):
    def change(points, offsets):
        return torch.where(torch.arange(len(points))[:, None] == 7, wrong, points)

    with pytest.raises(InputError, match=r"augment returned .* for element 7, feature 0 of its points") as error:
        LearnedEmbedding(n_components=4, epochs=1, augment=change, n_jobs=1).fit(SETS, LABELS)
    assert error.value.argument == "augment"


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
@pytest.mark.parametrize("given", [{}, {"network": "points"}])
def test_a_fit_needs_gradients_and_full_precision_whatever_is_around_it(around, given):
    expected = fit(**{"network": None, **given}).transform(SETS)
    with around():
        found = fit(**{"network": None, **given}).transform(SETS)
    np.testing.assert_array_equal(found, expected)


def test_numbers_of_neighbours():
    for wrong in (None, 0, 1.5):
        with pytest.raises(InputError) as error:
            small(n_neighbors=wrong).fit(SETS, LABELS)
        assert error.value.argument == "n_neighbors"


def test_within_another_embedding_it_has_to_be_fitted():
    with pytest.raises(InputError, match="within another embedding give one that is fitted"):
        Whitened([small(), SlicedWasserstein(4, 4)], 8, power=0).fit(SETS, LABELS)


@pytest.mark.parametrize(
    ("turn", "classes"),
    [
        (torch.tensor, [0, 1, 2]),
        (lambda x: np.array([b"a", b"b", b"c"])[x], ["a", "b", "c"]),
        (lambda x: [[1, "a", "2"][i] for i in x], [1, "a", "2"]),
    ],
)
def test_labels_keep_their_names(turn, classes):
    assert small(epochs=1).fit(SETS, turn(LABELS)).classes_.tolist() == classes


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (dict.fromkeys(range(40), 1), "y is a dict: give the labels alone"),
        (SimpleNamespace(shape=(40, 1), columns=["kind"]), "y is a table of 1 columns: give one of them"),
        (scipy.sparse.csr_matrix(np.ones((40, 1))), "y is a sparse matrix: give y.toarray"),
    ],
)
def test_labels_of_other_kinds_are_named(y, words):
    with pytest.raises(InputError, match=words) as error:
        small(epochs=1).fit(SETS, y)
    assert error.value.argument == "y"


@pytest.mark.parametrize(("name", "value"), [("device", None), ("device", 0)])
def test_a_device_that_is_no_name(name, value):
    with pytest.raises(InputError, match='give "auto", "cpu" or "cuda"') as error:
        small(epochs=1, **{name: value}).fit(SETS, LABELS)
    assert error.value.argument == name


def test_pairs_may_come_one_after_the_other_and_a_checkpoint_is_a_path():
    pairs = [(0, 3), (1, 4), (2, 5), (6, 9)]
    one, other = (small(epochs=1).fit(SETS, pairs=each) for each in (pairs, iter(pairs)))
    assert np.array_equal(one.curves_, other.curves_, equal_nan=True)
    with pytest.raises(InputError, match="checkpoint=5 is no path: give the name of a file"):
        small(epochs=1).fit(SETS, LABELS, checkpoint=5)
