"""Directions on the sphere, and the slicers: what they compute, that seeds hold, and that batching changes no bit."""

from __future__ import annotations

import math
import pickle
import tracemalloc
import warnings
from itertools import combinations_with_replacement

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from builders import normal_arrays
from slosh.errors import InputError
from slosh.slices import Circular, Function, Linear, Neural, Polynomial, Slicer, directions, make_slicer

DRAWN = ["random", "orthogonal", "qmc"]


def squares(points: np.ndarray) -> np.ndarray:
    """A user's slices, row by row: x_k^2 and the sum of x."""
    return np.concatenate([points * points, points.sum(axis=1, keepdims=True)], axis=1)


def slicers() -> list[Slicer]:
    return [
        Linear("random"),
        Linear("orthogonal"),
        Linear("qmc"),
        Polynomial(3),
        Polynomial(5),
        Circular(2.0),
        Neural(),
        Neural(17, 1),
    ]


# ---- directions


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("dim", [2, 3, 4, 7, 64, 384, 1024])
@pytest.mark.parametrize("n_slices", [1, 5, 100])
def test_directions_are_float32_of_length_one(kind: str, dim: int, n_slices: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theta = directions(kind, n_slices, dim, 0)
    assert theta.shape == (n_slices, dim)
    assert theta.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(theta.astype(float), axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("dim", [2, 3, 10, 1024])
def test_orthogonal_blocks_are_orthonormal(dim: int) -> None:
    theta = directions("orthogonal", 2 * dim + 1, dim, 3).astype(float)
    for block in (theta[:dim], theta[dim : 2 * dim]):
        np.testing.assert_allclose(block @ block.T, np.eye(dim), atol=1e-6)
    assert theta[2 * dim :].shape == (1, dim)


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("dim", [2, 3, 6])
def test_each_slice_is_uniform_on_the_sphere(kind: str, dim: int) -> None:
    """Mean 0 and second moment I / d over seeds: of the first slice, and of all but a half circle or sphere's mean."""
    n_seeds = 800
    draws = np.stack([directions(kind, 8, dim, seed) for seed in range(n_seeds)]).astype(float)
    sigma = 5 / math.sqrt(n_seeds * dim)
    if kind != "qmc" or dim > 3:  # the half circle and the half sphere have a middle
        assert np.abs(draws[:, 0].mean(axis=0)).max() < sigma
    for theta in (draws[:, 0], draws[:, 5]):
        if kind == "qmc" and dim == 2:  # one angle is uniform only within its eighth
            theta = draws.reshape(-1, dim)
        second = theta.T @ theta / len(theta)
        np.testing.assert_allclose(second, np.eye(dim) / dim, atol=sigma)


@pytest.mark.parametrize(("dim", "n_slices", "gain"), [(2, 32, 30), (3, 64, 3), (5, 64, 1.5), (8, 256, 2)])
def test_qmc_integrates_better_than_random(dim: int, n_slices: int, gain: float) -> None:
    x = normal_arrays(50, dim=dim)[0].astype(float)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    mean = math.exp(math.lgamma(dim / 2) - math.lgamma((dim + 1) / 2)) / math.sqrt(math.pi)  # of |<theta, x>|

    def errors(kind: str) -> tuple[float, float]:
        values = np.stack([directions(kind, n_slices, dim, seed).astype(float) @ x.T for seed in range(10)])
        return (
            float(np.sqrt(np.mean((np.abs(values).mean(axis=1) - mean) ** 2))),
            float(np.sqrt(np.mean(((values**2).mean(axis=1) - 1 / dim) ** 2))),
        )

    for even, random in zip(errors("qmc"), errors("random"), strict=True):
        assert gain * even < random


def test_qmc_in_the_plane_is_evenly_spaced() -> None:
    theta = directions("qmc", 7, 2, 5).astype(float)
    angle = np.arctan2(theta[:, 1], theta[:, 0])
    np.testing.assert_allclose(np.diff(angle), np.pi / 7, atol=1e-6)


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("dim", [2, 3, 9])
def test_a_seed_fixes_the_draw(kind: str, dim: int) -> None:
    first = directions(kind, 6, dim, 7)
    np.testing.assert_array_equal(first, directions(kind, 6, dim, 7))
    np.testing.assert_array_equal(first, directions(kind, 6, dim, np.random.RandomState(7)))
    assert not np.array_equal(first, directions(kind, 6, dim, 8))


@pytest.mark.parametrize("kind", DRAWN)
def test_fewer_slices_are_a_prefix(kind: str) -> None:
    many = directions(kind, 50, 8, 0)
    for n in (1, 5, 8, 13, 16, 49):
        np.testing.assert_allclose(directions(kind, n, 8, 0), many[:n], atol=1e-7)


GOLDEN = [
    ("random", 2, 5, [[0.49424073, 0.11211345, 0.27421644, 0.6278389, 0.52324027],
                      [-0.68091923, 0.66197497, -0.10545827, -0.07191782, 0.28608486]]),
    ("orthogonal", 3, 2, [[0.975224, 0.22121958], [-0.22121958, 0.975224], [0.88602, -0.46364704]]),
    ("orthogonal", 2, 5, [[0.49424073, 0.11211345, 0.27421644, 0.6278389, 0.52324027],
                          [-0.5991792, 0.69512945, -0.05523274, 0.04611162, 0.3906436]]),
    ("qmc", 3, 2, [[0.83934665, 0.54359657], [-0.05109512, 0.99869376], [-0.8904418, 0.45509723]]),
    ("qmc", 2, 3, [[0.93923694, -0.00360666, 0.34325063], [0.0303581, -0.3982315, -0.91678244]]),
    ("qmc", 2, 5, [[-0.5831639, -0.22289263, 0.73598945, -0.21270503, -0.1526921],
                   [0.49504465, 0.7093712, -0.29387602, 0.39368075, 0.10186088]]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "n_slices", "dim", "expected"), GOLDEN)
def test_draws_of_seed_0_never_change(kind: str, n_slices: int, dim: int, expected: list[list[float]]) -> None:
    """Stored indexes depend on them. If this fails, NumPy, SciPy or this module changed its stream."""
    np.testing.assert_allclose(directions(kind, n_slices, dim, 0), expected, atol=1e-6)


@pytest.mark.parametrize("kind", [*DRAWN, "axis", [[3.0], [-1.0]]])
@pytest.mark.parametrize("n_slices", [1, 64])
def test_one_dimension_needs_one_slice(kind: object, n_slices: int) -> None:
    assert directions(kind, n_slices, 1, 0).tolist() == [[1.0]]  # type: ignore[arg-type]
    assert Linear(kind).fit(1, n_slices, 0).n_slices_ == 1  # type: ignore[arg-type]


def test_axis() -> None:
    np.testing.assert_array_equal(directions("axis", None, 4), np.eye(4))
    np.testing.assert_array_equal(directions("axis", 4, 4), np.eye(4))
    with pytest.raises(ValueError, match=r"n_slices=5 must be 4 or None"):
        directions("axis", 5, 4)


@pytest.mark.parametrize("dim", [2, 3, 7, 64, 300])
def test_fitted_directions_stay_as_they_are_when_given_again(dim: int) -> None:
    for kind in ("random", "orthogonal", "qmc"):
        fitted = directions(kind, 500, dim, 3)
        np.testing.assert_array_equal(directions(fitted, None, dim), fitted)
        np.testing.assert_array_equal(
            directions(fitted.astype(np.float64) * 1e300, None, dim), directions(fitted * 8, None, dim)
        )


def test_own_directions_are_scaled_to_length_one() -> None:
    own = [[3, 4], [0, -2], [1e-200, 1e-200], [1e300, 0]]
    given = np.array(own)
    theta = directions(given, None, 2)
    np.testing.assert_allclose(theta, [[0.6, 0.8], [0, -1], [math.sqrt(0.5)] * 2, [1, 0]], rtol=1e-6)
    np.testing.assert_array_equal(given, own)
    np.testing.assert_array_equal(directions(own, 4, 2), theta)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones(3), r"array \(L, 3\).*got shape \(3,\)"),
        (np.ones((2, 4)), r"got shape \(2, 4\)"),
        (np.ones((0, 3)), r"got shape \(0, 3\)"),
        ([[1, 2, 3], [0, 0, 0]], "row 1 is zero"),
        ([[1, 2, 3], [0, np.nan, 0]], "row 1 holds NaN"),
        ([[1, 2, 3], [1, 2]], "array of numbers"),
        (None, "array of numbers|got shape"),
    ],
)
def test_own_directions_are_checked(array: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        directions(array, None, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 rows; n_slices=5"):
        directions(np.ones((2, 3)), 5, 3)


@pytest.mark.parametrize("n_slices", [0, -1, 2.0, None, True, "4"])
def test_n_slices_is_checked(n_slices: object) -> None:
    with pytest.raises(ValueError, match="n_slices="):
        directions("random", n_slices, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n_slices="):
        Polynomial().fit(3, n_slices)  # type: ignore[arg-type]


def test_unknown_kind_lists_the_choices() -> None:
    for call in (lambda: directions("sobol", 3, 3), lambda: make_slicer("sobol"), lambda: Linear("sobol").fit(3, 3)):
        with pytest.raises(ValueError, match=r"'sobol' is not known.*'random', 'orthogonal', 'qmc', 'axis'"):
            call()
    with pytest.raises(ValueError, match="dim=0"):
        directions("random", 3, 0)


# ---- slicers


@pytest.mark.parametrize("dim", [1, 2, 3, 50, 700])
def test_linear_is_the_inner_product(dim: int) -> None:
    x = normal_arrays(300, dim=dim)[0] * np.float32(1e3)
    slicer = Linear("random").fit(dim, 20, 0)
    assert slicer.linear
    assert slicer.directions_ is not None
    expected = x.astype(float) @ slicer.directions_.T.astype(float)
    np.testing.assert_allclose(slicer.project(x), expected, rtol=2e-7, atol=1e-6 * 1e3 * 2**-10)


def test_axis_slices_give_the_coordinates_themselves() -> None:
    x = normal_arrays(500, dim=6)[0] * np.float32([1e-1, 1, 1, 1, 1e2, 1])
    np.testing.assert_array_equal(Linear("axis").fit(6).project(x), x)


def test_linear_holds_from_the_smallest_numbers_to_the_largest() -> None:
    theta = directions("random", 9, 4, 0).astype(float)
    for scale in (1e-44, 1e-30, 1, 1e15):
        x = normal_arrays(30, dim=4)[0].clip(-3, 3) * np.float32(scale)
        expected = (x.astype(float) @ theta.T).astype(np.float32)
        np.testing.assert_allclose(Linear("random").fit(4, 9, 0).project(x), expected, rtol=1e-6, atol=scale * 1e-6)
    assert not Linear("random").fit(4, 9, 0).project(np.zeros((3, 4), np.float32)).any()


@pytest.mark.parametrize(("dim", "degree"), [(1, 3), (2, 1), (2, 3), (3, 3), (3, 5), (10, 3)])
def test_polynomial_is_its_formula(dim: int, degree: int) -> None:
    x = normal_arrays(50, dim=dim)[0]
    slicer = Polynomial(degree).fit(dim, 7, 0)
    assert slicer.n_slices_ == (1 if dim == 1 else 7)
    monomials = list(combinations_with_replacement(range(dim), degree))
    assert slicer.coefficients_.shape == (slicer.n_slices_, len(monomials))
    np.testing.assert_allclose(np.linalg.norm(slicer.coefficients_, axis=1), 1, rtol=1e-6)
    expected = np.zeros((50, slicer.n_slices_))
    for p in range(50):
        for theta, out in zip(slicer.coefficients_, range(slicer.n_slices_), strict=True):
            for coefficient, factors in zip(theta, monomials, strict=True):
                expected[p, out] += float(coefficient) * math.prod(float(x[p, k]) for k in factors)
    np.testing.assert_allclose(slicer.project(x), expected, rtol=1e-6, atol=1e-6)


def test_polynomial_is_odd_and_homogeneous() -> None:
    x = normal_arrays(100, dim=4)[0]
    slicer = Polynomial(3).fit(4, 16, 1)
    values = slicer.project(x)
    np.testing.assert_array_equal(slicer.project(-x), -values)
    np.testing.assert_array_equal(slicer.project(2 * x), 8 * values)


def test_polynomial_errors() -> None:
    with pytest.raises(ValueError, match="degree=2 must be odd"):
        Polynomial(2).fit(3, 4)
    with pytest.raises(ValueError, match="degree=0"):
        Polynomial(0).fit(3, 4)
    with pytest.raises(
        ValueError, match="dimension 384 has 9,511,040 terms, more than 100,000: choose a smaller degree"
    ):
        Polynomial(3).fit(384, 4)
    slicer = Polynomial(5).fit(3, 4, 0)
    x = normal_arrays(10, dim=3)[0]
    x[7] *= 1e9
    with pytest.raises(ValueError, match=r"Polynomial\(degree=5\) is beyond 1e\+16 at element 7.*scale the data"):
        slicer.project(x)
    x[7] *= 1e25
    with pytest.raises(ValueError, match=r"is beyond 1e\+16 at element 7"):
        Polynomial(15).fit(3, 4, 0).project(x)


@pytest.mark.parametrize("dim", [1, 2, 3, 40])
def test_circular_is_the_distance_to_points_on_a_sphere(dim: int) -> None:
    x = normal_arrays(80, dim=dim)[0]
    slicer = Circular(3.0).fit(dim, 9, 0)
    np.testing.assert_allclose(np.linalg.norm(slicer.centers_, axis=1), 3, rtol=1e-6)
    expected = np.linalg.norm(x[:, None].astype(float) - slicer.centers_.astype(float), axis=2)
    np.testing.assert_allclose(slicer.project(x), expected, rtol=1e-6)
    assert slicer.project(slicer.centers_).diagonal().tolist() == [0.0] * 9


@pytest.mark.parametrize("radius", [0, -1.0, math.inf, math.nan, "1"])
def test_circular_radius_is_checked(radius: object) -> None:
    with pytest.raises(ValueError, match="radius="):
        Circular(radius).fit(3, 4)  # type: ignore[arg-type]


def test_neural_is_its_formula_and_keeps_the_scale() -> None:
    x = normal_arrays(400, dim=5)[0]
    slicer = Neural(width=32, depth=3).fit(5, 30, 0)
    assert [w.shape for w in slicer.weights_] == [(32, 5), (32, 32), (32, 32), (30, 32)]
    h = x.astype(float)
    for w in slicer.weights_[:-1]:
        h = h @ w.T.astype(float)
        h = np.where(h > 0, h, 0.2 * h)
    np.testing.assert_allclose(slicer.project(x), h @ slicer.weights_[-1].T.astype(float), rtol=1e-5, atol=1e-6)
    assert 0.5 < slicer.project(x).std() < 2
    np.testing.assert_array_equal(slicer.project(4 * x), 4 * slicer.project(x))
    with pytest.raises(ValueError, match="width=0"):
        Neural(0).fit(3, 4)
    with pytest.raises(ValueError, match=r"depth=1\.5"):
        Neural(4, 1.5).fit(3, 4)  # type: ignore[arg-type]


def test_a_users_function() -> None:
    x = normal_arrays(20, dim=3)[0]
    slicer = make_slicer(squares)
    assert isinstance(slicer, Function)
    assert not slicer.storable
    assert slicer.directions_ is None
    assert not slicer.draws
    slicer.fit(3)
    assert slicer.n_slices_ == 4
    values = slicer.project(x)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, squares(x))
    assert slicer.project(x[:0]).shape == (0, 4)
    assert slicer.fit(3, 4).n_slices_ == 4
    with pytest.raises(ValueError, match="squares gave 4 numbers a point, not n_slices=6: pass n_slices=4"):
        slicer.fit(3, 6).project(x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[:, 0], r"must map points \(P, d\) to \(P, L\); from \(4, 3\) it gave \(4,\)"),
        (lambda x: x[:2], r"it gave \(2, 3\)"),
        (lambda x: x[:, :0], r"it gave \(4, 0\)"),
        (lambda x: x * 1j, "gave complex"),
        (lambda x: np.full((len(x), 2), "a"), "not real numbers"),
        (lambda x: np.full((len(x), 2), np.nan), "NaN, or more than 1e\\+16, for element 0"),
        (lambda x: np.full((len(x), 2), 1e300), "more than 1e\\+16"),
        (lambda x: x.__imul__(2), "read-only"),
    ],
)
def test_a_users_function_is_checked(function: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Function(function).fit(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be callable"):
        Function("sin").fit(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("slicer", slicers(), ids=repr)
@pytest.mark.parametrize("dim", [1, 2, 3, 20])
def test_batching_changes_no_bit(slicer: Slicer, dim: int) -> None:
    if isinstance(slicer, Polynomial) and slicer.degree == 5 and dim == 20:
        pytest.skip("slow, and the same code")
    random = np.random.RandomState(dim)
    n = 500 if isinstance(slicer, Polynomial) and dim == 20 else 2500  # several blocks all the same
    x = (random.standard_normal((n, dim)) * np.exp(random.standard_normal((n, 1)))).astype(np.float32)
    slicer.fit(dim, 33, 0)
    whole = slicer.project(x)
    for _ in range(3):
        cuts = np.sort(random.choice(np.arange(1, n), 12, replace=False))
        np.testing.assert_array_equal(np.concatenate([slicer.project(part) for part in np.split(x, cuts)]), whole)
    for row in random.choice(n, 20):
        np.testing.assert_array_equal(slicer.project(x[row : row + 1])[0], whole[row])
    order = random.permutation(n)
    np.testing.assert_array_equal(slicer.project(x[order]), whole[order])
    np.testing.assert_array_equal(slicer.project(np.asfortranarray(x)), whole)


@pytest.mark.parametrize(
    "slicer",
    [*slicers(), Linear("axis"), Linear([[1.0, 0, 1, 2]]), Function(squares)],
    ids=lambda slicer: repr(slicer).partition(" at 0x")[0],
)
def test_slicers_are_deterministic_and_pickle_and_clone(slicer: Slicer) -> None:
    n_slices = 12 if slicer.draws else None
    x = normal_arrays(40, dim=4)[0]
    fitted = make_slicer(slicer).fit(4, n_slices, 5)
    assert fitted is not slicer
    values = fitted.project(x)
    assert values.shape == (40, fitted.n_slices_)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).project(x), values)
    np.testing.assert_array_equal(clone(fitted).fit(4, n_slices, np.random.RandomState(5)).project(x), values)
    assert str(fitted.get_params()) == str(slicer.get_params())
    assert type(slicer).__name__ in repr(slicer)
    if slicer.draws:
        assert not np.array_equal(clone(fitted).fit(4, n_slices, 6).project(x), values)


def test_project_before_fit_and_in_the_wrong_dimension() -> None:
    for slicer in (Linear(), Function(squares)):
        with pytest.raises(NotFittedError):
            slicer.project(normal_arrays(3, dim=2)[0])
    with pytest.raises(ValueError, match=r"shape \(P, 2\).*got \(3, 4\)"):
        Linear().fit(2, 3).project(normal_arrays(3, dim=4)[0])


def test_make_slicer() -> None:
    assert make_slicer("axis").get_params() == {"kind": "axis"}
    own = np.eye(3)
    assert isinstance(make_slicer(own), Linear)
    assert isinstance(make_slicer([[1, 0], [0, 1]]), Linear)
    given = Circular(4)
    made = make_slicer(given)
    assert made is not given
    assert isinstance(made, Circular)
    assert made.radius == 4


@pytest.mark.parametrize("dim", [100_000, 10**9])
@pytest.mark.parametrize("kind", ["random", "orthogonal", "qmc", "axis", Circular(), Neural()])
def test_slices_that_would_take_too_much_memory_are_refused_before_it_is_taken(kind, dim) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="more than 33,554,432") as told:
            make_slicer(kind).fit(dim, None if kind == "axis" else 1000, 0)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert told.value.argument == "n_slices"


def test_the_largest_slices_of_a_part_of_a_block_are_orthonormal() -> None:
    """Only the directions that are asked for are drawn and decomposed, in as many dimensions as memory allows."""
    found = directions("orthogonal", 30, 60_000, 0).astype(np.float64)
    assert np.allclose(found @ found.T, np.eye(30), atol=1e-5)
    assert np.allclose(directions("orthogonal", 8, 60_000, 0), found[:8], atol=1e-6)
