"""The hashes: that they collide as often as their formulas say, that seeds hold, and that batching changes no bit."""

from __future__ import annotations

import math
import pickle
import tracemalloc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.linalg import hadamard
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline

from slosh.embed import SlicedWasserstein
from slosh.hash import PStableHash, SignHash, codes, hamming, theory
from slosh.hash.rotations import ROTATIONS, Hadamard, _walsh_hadamard
from slosh.hash.theory import hashes_needed, sensitivity, tables_needed

DIMS = [1, 2, 3, 100, 1024]
CENTERS = ["mean", "median", None]


def gauss(n: int, dim: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal((n, dim)).astype(np.float32)


def pair(x: np.ndarray, y: np.ndarray, angle: float) -> np.ndarray:
    """Two unit vectors in the plane of x and y, the first along x, at an angle."""
    x = x / np.linalg.norm(x)
    y = y - (x @ y) * x
    y /= np.linalg.norm(y)
    return np.stack([x, math.cos(angle) * x + math.sin(angle) * y]).astype(np.float32)


def bits(hash_: SignHash, X: np.ndarray) -> np.ndarray:
    return np.unpackbits(hash_.transform(X), axis=1, count=hash_.n_bits).astype(bool)


def assert_rate(hits: float, n: int, expected: float | np.ndarray) -> None:
    """`hits` of n independent trials, within 4 sigma; `expected` may be one probability for each trial."""
    expected = np.broadcast_to(expected, n)
    sigma = math.sqrt(np.sum(expected * (1 - expected)))
    assert abs(hits - expected.sum()) <= 4 * sigma + 1e-9, f"{hits / n:.4f}, not {expected.mean():.4f}"


# ---- sign codes: the probabilities


@pytest.mark.parametrize("angle", [0.0, 0.1, 0.5, 1.2, math.pi / 2, 2.5, math.pi])
def test_gaussian_bits_agree_as_often_as_the_formula_says(angle: float) -> None:
    x, y = pair(np.eye(6)[0], np.eye(6)[1], angle)
    hash_ = SignHash(20_000, center=None, rotation="gaussian").fit([x])
    same = np.equal(*bits(hash_, np.stack([x, y])))
    assert_rate(same.sum(), 20_000, hash_.collision_probability(angle))


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("angle", [0.2, 1.0, 2.0])
def test_thousands_of_random_pairs(rotation: str, angle: float) -> None:
    """Pair i is looked at with bit i, so that the trials are independent; about a centre that is not the origin."""
    rng = np.random.RandomState(1)
    pairs = np.stack([pair(*rng.standard_normal((2, 20)), angle) * rng.uniform(0.1, 10) for _ in range(4000)])
    center = rng.standard_normal(20).astype(np.float32) * 5
    hash_ = SignHash(4000, rotation=rotation).fit(np.stack([center - 1, center + 1]))
    a, b = (bits(hash_, pairs[:, i] + center).diagonal() for i in range(2))
    assert_rate(np.sum(a == b), 4000, hash_.collision_probability(angle))


@pytest.mark.parametrize(
    ("rotation", "dim", "seeds"),
    [
        ("hadamard", 2, 200),
        ("hadamard", 8, 200),
        ("hadamard", 100, 200),
        ("hadamard", 1024, 40),
        ("orthogonal", 100, 40),
    ],
)
def test_rotations_are_uniform_for_unfavourable_vectors(rotation: str, dim: int, seeds: int) -> None:
    """Fixed pairs, sparse ones above all, over many seeds: the rate in each bit is that of a uniform direction."""
    angle, rng, e = 1.1, np.random.RandomState(99), np.eye(dim)
    pairs = [pair(e[0], e[1], angle), pair(e[-1], rng.standard_normal(dim), angle)]
    if dim > 4:
        pairs += [pair(e[0] + e[1], e[2] + e[3], angle), pair(np.ones(dim), e[0], angle)]
        pairs += [pair(e[0] + e[dim // 2], e[0], angle), pair(np.ones(dim), np.arange(dim) % 2 - 0.5, angle)]
    X = np.concatenate(pairs)
    rates = []
    for seed in range(seeds):
        code = bits(SignHash(512, None, rotation, random_state=seed).fit(X), X)
        rates.append(np.mean(code[0::2] == code[1::2], axis=1))
    expected = 1 - angle / math.pi
    sigma = math.sqrt(expected * (1 - expected) / (512 * seeds))
    assert np.abs(np.mean(rates, axis=0) - expected).max() < 4 * sigma + 0.002


def test_orthogonal_rotations_estimate_angles_better_than_independent_bits() -> None:
    X = pair(*gauss(2, 256), 1.25)
    errors = {}
    for rotation in ROTATIONS:
        hashes = [SignHash(256, None, rotation, random_state=seed).fit(X) for seed in range(150)]
        estimates = [hash_.estimated_angle(hamming(*hash_.transform(X)[:, None])) for hash_ in hashes]
        errors[rotation] = np.std(estimates)
        assert abs(np.mean(estimates) - 1.25) < 0.05
    independent = math.pi * math.sqrt(1.25 / math.pi * (1 - 1.25 / math.pi) / 256)
    assert abs(errors["gaussian"] / independent - 1) < 0.25
    assert max(errors["hadamard"], errors["orthogonal"]) < 0.9 * independent


def test_the_power_holds_for_independent_bits() -> None:
    angle, k = 0.3, 6
    X = pair(np.eye(9)[0], np.ones(9), angle)
    hash_ = SignHash(24_000, None, "gaussian").fit(X)
    same = np.equal(*bits(hash_, X)).reshape(-1, k).all(axis=1)
    assert_rate(same.sum(), len(same), hash_.collision_probability(angle, n_bits=k))
    assert hash_.collision_probability(angle, n_bits=k) == pytest.approx((1 - angle / math.pi) ** k)
    for rotation in ("hadamard", "orthogonal"):
        with pytest.raises(ValueError, match=rf"n_bits=6: the power holds for independent.*rotation='{rotation}'"):
            SignHash(rotation=rotation).collision_probability(angle, n_bits=6)


def test_sign_formulas() -> None:
    hash_ = SignHash(100)
    np.testing.assert_allclose(hash_.collision_probability([0, math.pi / 4, math.pi]), [1, 0.75, 0])
    assert hash_.collision_probability(np.full((2, 3), 1.0)).shape == (2, 3)
    assert isinstance(hash_.collision_probability(1.0), float)
    np.testing.assert_allclose(hash_.estimated_angle([0, 25, 100]), [0, math.pi / 4, math.pi])
    for angle in (-0.1, 3.2, [0.1, np.nan]):
        with pytest.raises(ValueError, match="angle must be 0 to pi"):
            hash_.collision_probability(angle)
    for count in (-1, 101):
        with pytest.raises(ValueError, match="hamming must be 0 to n_bits=100"):
            hash_.estimated_angle(count)
    for call in (SignHash(center="median").collision_probability, SignHash(center="median").estimated_angle):
        with pytest.raises(ValueError, match='no closed form with center="median"'):
            call(1.0)


# ---- sign codes: the bits


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("n_bits", [1, 7, 64, 128, 1024, 1100])
def test_any_dimension_and_any_number_of_bits(rotation: str, dim: int, n_bits: int) -> None:
    X = gauss(9, dim)
    hash_ = SignHash(n_bits, rotation=rotation).fit(X)
    code = hash_.transform(X)
    assert code.shape == (9, -(-n_bits // 8))
    assert code.dtype == np.uint8
    unpacked = np.unpackbits(code, axis=1)
    assert not unpacked[:, n_bits:].any()
    projections = hash_._rotation.project(X - hash_.center_)
    np.testing.assert_array_equal(unpacked[:, :n_bits], projections >= 0)
    if dim > 3:
        assert 0.3 < unpacked[:, :n_bits].mean() < 0.7 or n_bits < 64


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("dim", [3, 200])
def test_a_shorter_code_begins_a_longer_one(rotation: str, dim: int) -> None:
    X = gauss(20, dim)
    whole = bits(SignHash(1000, rotation=rotation).fit(X), X)
    for n_bits in (1, 50, 256, 700):
        np.testing.assert_array_equal(bits(SignHash(n_bits, rotation=rotation).fit(X), X), whole[:, :n_bits])


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize(("dim", "n_bits"), [(1, 20), (3, 100), (100, 130), (1024, 512)])
def test_batching_changes_no_bit_of_a_code(rotation: str, center: str | None, dim: int, n_bits: int) -> None:
    rng = np.random.RandomState(dim)
    # Small whole numbers, so that many projections lie near zero, or on it.
    X = rng.randint(-1, 2, size=(1500, dim)).astype(np.float32)
    X[750:] *= np.exp(5 * rng.standard_normal((750, 1)))
    hash_ = SignHash(n_bits, center, rotation).fit(X)
    whole = hash_.transform(X)
    cuts = np.sort(rng.choice(np.arange(1, 1500), 10, replace=False))
    np.testing.assert_array_equal(np.concatenate([hash_.transform(part) for part in np.split(X, cuts)]), whole)
    for row in rng.choice(1500, 15):
        np.testing.assert_array_equal(hash_.transform(X[row : row + 1])[0], whole[row])
    order = rng.permutation(1500)
    np.testing.assert_array_equal(hash_.transform(X[order]), whole[order])
    for same in (np.asfortranarray(X), X.astype(np.float64), np.repeat(X, 2, axis=1)[:, ::2]):
        np.testing.assert_array_equal(hash_.transform(same), whole)


GOLDEN_SIGN = {
    ("hadamard", 5, 20): [[254, 248, 128], [32, 172, 128], [175, 34, 112]],
    ("hadamard", 300, 20): [[232, 241, 32], [253, 49, 192], [237, 176, 160]],
    ("orthogonal", 5, 20): [[250, 251, 48], [28, 217, 240], [169, 74, 208]],
    ("gaussian", 5, 20): [[242, 249, 32], [28, 89, 240], [187, 194, 208]],
}


@pytest.mark.parametrize(("rotation", "dim", "n_bits"), GOLDEN_SIGN)
def test_a_seed_fixes_the_code(rotation: str, dim: int, n_bits: int) -> None:
    X = (np.arange(3 * dim).reshape(3, dim) * 7 % 11 - 5).astype(np.float32)
    hash_ = SignHash(n_bits, None, rotation, random_state=42).fit(X)
    assert hash_.transform(X).tolist() == GOLDEN_SIGN[rotation, dim, n_bits]
    again = SignHash(n_bits, None, rotation, random_state=np.int64(42)).fit(X)
    np.testing.assert_array_equal(again.transform(X), hash_.transform(X))
    other = SignHash(1000, None, rotation, random_state=1).fit(X).transform(X)
    assert not np.array_equal(other, SignHash(1000, None, rotation, random_state=2).fit(X).transform(X))


def test_a_seed_does_not_draw_the_data_again() -> None:
    vectors, hash_ = gauss(1, 6), SignHash(5, None, "gaussian", random_state=0)
    assert np.abs(hash_.fit(vectors)._rotation.directions[0] - vectors[0]).min() > 1e-3  # type: ignore[union-attr]
    streams = [SignHash(50, None, random_state=np.random.RandomState(3)).fit(vectors) for _ in range(2)]
    np.testing.assert_array_equal(*(one.transform(vectors) for one in streams))
    streams = [SignHash(50, None, random_state=None).fit(vectors) for _ in range(2)]
    assert not np.array_equal(*(one.transform(vectors) for one in streams))


def test_every_kernel_rotates_to_the_same_bits(each_kernel: str) -> None:
    for dim, n_bits in ((1, 1), (100, 300), (128, 128), (129, 7), (1024, 1500), (3000, 64)):
        rotation, block = Hadamard(dim, n_bits, np.random.RandomState(1)), gauss(9, dim)
        expected = rotation._project_in_numpy(block)
        np.testing.assert_array_equal(rotation.project(block), expected)


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("center", CENTERS)
def test_what_was_fitted_can_be_written_and_read(rotation: str, center: str | None) -> None:
    for dim, n_bits in ((3, 40), (200, 300)):
        X = gauss(50, dim)
        fitted, read = SignHash(n_bits, center, rotation).fit(X), SignHash(n_bits, center, rotation)
        read.set_state(fitted.get_state(), dim)
        np.testing.assert_array_equal(read.transform(X), fitted.transform(X))
        for name in fitted.get_state():
            with pytest.raises(KeyError):
                read.set_state({k: v for k, v in fitted.get_state().items() if k != name}, dim)
            with pytest.raises(ValueError, match="its"):
                read.set_state({**fitted.get_state(), name: np.zeros((2, 1), np.float32)}, dim)


@pytest.mark.parametrize("log_size", [1, 2, 5, 8])
def test_walsh_hadamard(log_size: int) -> None:
    size, low = 1 << log_size, log_size // 2
    x = np.random.RandomState(0).randint(-9, 10, size=(size, 3)).astype(np.float32)
    expected = hadamard(size) @ x
    result, spare = _walsh_hadamard(x.copy(), np.empty_like(x), log_size)
    assert result is not spare
    swapped = np.arange(size).reshape(-1, 1 << low).T.ravel()
    np.testing.assert_array_equal(result, expected[swapped])


@pytest.mark.parametrize("dim", [128, 512])
def test_a_hadamard_rotation_is_orthonormal(dim: int) -> None:
    rotation = Hadamard(dim, 2 * dim, np.random.RandomState(0))
    first, second = rotation.project(np.eye(dim, dtype=np.float32)).T.astype(float).reshape(2, dim, dim)
    for matrix in (first, second):
        np.testing.assert_allclose(matrix @ matrix.T, np.eye(dim), atol=1e-5)
    assert np.abs(first @ second.T).max() < 6 / math.sqrt(dim)


def test_zero_gives_one() -> None:
    for rotation in ROTATIONS:
        assert SignHash(12, None, rotation).fit(np.ones((1, 4))).transform(np.zeros((1, 4))).tolist() == [[255, 240]]
        assert SignHash(12, "mean", rotation).fit(np.ones((3, 4))).transform(np.ones((1, 4))).tolist() == [[255, 240]]


@pytest.mark.parametrize("rotation", ROTATIONS)
def test_codes_do_not_change_with_scale(rotation: str) -> None:
    X = gauss(50, 40) + 3
    code = SignHash(200, rotation=rotation).fit(X).transform(X)
    for scale in (2.0**-80, 2.0**-10, 2.0**50):
        np.testing.assert_array_equal(SignHash(200, rotation=rotation).fit(X * scale).transform(X * scale), code)


def test_the_mean_is_the_mean() -> None:
    X = gauss(5000, 7) * 10 + 1e3
    np.testing.assert_allclose(SignHash(8).fit(X).center_, X.astype(float).mean(axis=0), rtol=1e-6)
    assert SignHash(8, None).fit(X).center_ is None


@pytest.mark.parametrize("rotation", ROTATIONS)
def test_median_thresholds_split_each_bit_in_halves(rotation: str) -> None:
    X = np.exp(gauss(1000, 10)) - 4  # skew, and not about the origin
    hash_ = SignHash(300, "median", rotation).fit(X)
    assert hash_.center_ is None
    assert hash_.thresholds_ is not None
    assert hash_.thresholds_.shape == (300,)
    np.testing.assert_array_equal(bits(hash_, X).sum(axis=0), 500)
    assert np.abs(bits(SignHash(300, "mean", rotation).fit(X), X).sum(axis=0) - 500).max() > 50


def test_medians_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slosh.hash.sign.SAMPLE_NUMBERS", 64 * 1000)
    X = gauss(20_000, 10)
    counts = bits(SignHash(64, "median").fit(X), X).mean(axis=0)
    assert 0 < np.abs(counts - 0.5).max() < 5 * 0.5 / math.sqrt(1000)


def test_memory_is_bounded() -> None:
    X = gauss(20_000, 256)
    hash_ = SignHash(256)
    tracemalloc.start()
    hash_.fit(X).transform(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20 < X.nbytes


# ---- hamming


@pytest.mark.parametrize("n_bytes", [1, 7, 8, 128, 129])
def test_hamming_counts_different_bits(n_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.RandomState(0)
    a, b = (rng.randint(256, size=(n, n_bytes)).astype(np.uint8) for n in (40, 30))
    expected = [[sum(bin(x ^ y).count("1") for x, y in zip(p, q, strict=True)) for q in b.tolist()] for p in a.tolist()]
    result = hamming(a, b)
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(hamming(a.astype(int), b[:, ::-1][:, ::-1]), expected)
    monkeypatch.setattr(codes, "_count", codes._table_count)
    monkeypatch.setattr(codes, "BLOCK", 16)
    np.testing.assert_array_equal(hamming(a, b), expected)
    assert hamming(a[:0], b).shape == (0, 30)
    assert hamming(a, b[:0]).shape == (40, 0)


def test_hamming_errors() -> None:
    code = np.zeros((2, 4), np.uint8)
    with pytest.raises(ValueError, match="a has codes of 4 bytes, b of 3"):
        hamming(code, code[:, :3])
    with pytest.raises(ValueError, match=r"b must be packed codes \(n, n_bytes\), not float64"):
        hamming(code, code.astype(float))
    with pytest.raises(ValueError, match=r"a must be packed codes.*shape \(4,\)"):
        hamming(code[0], code)
    with pytest.raises(ValueError, match="b holds numbers beyond 0 to 255"):
        hamming(code, [[0, 0, 0, 256]])


# ---- p-stable hashes: the probabilities


def density(p: int, x: float) -> float:
    """Of the absolute value of a p-stable number."""
    return math.sqrt(2 / math.pi) * math.exp(-x * x / 2) if p == 2 else 2 / (math.pi * (1 + x * x))


@given(p=st.sampled_from([1, 2]), log_s=st.floats(-6, 4), width=st.floats(1e-3, 1e3))
def test_closed_forms_are_the_integral(p: int, log_s: float, width: float) -> None:
    """The paper's integral, with t = r e^y."""
    s = 10.0**log_s
    low, high = -40.0, math.log(s if p == 1 else min(s, 40.0))
    pieces = np.linspace(low, high, 9)
    expected = sum(
        quad(lambda y: math.exp(y) * density(p, math.exp(y)) * (1 - math.exp(y) / s), a, b, epsabs=0, epsrel=1e-12)[0]
        for a, b in pairwise(pieces)
    )
    assert PStableHash(width, p=p).collision_probability(width / s) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("p", [1, 2])
def test_closed_forms_hold_from_the_smallest_to_the_largest_distance(p: int) -> None:
    hash_ = PStableHash(2.0, p=p)
    r = np.concatenate([[0.0, 5e-324], 10.0 ** np.arange(-307, 309), [np.inf]])
    with np.errstate(all="raise", under="ignore"):
        P = hash_.collision_probability(r)
        success = hash_.success_probability(r)
    assert P[0] == P[1] == success[0] == 1
    assert P[-1] == success[-1] == 0
    assert np.all(np.diff(P) <= 0)
    assert np.all(np.diff(P[r > 1e-10]) < 0)
    assert np.all((success >= 0) & (success <= 1))
    large = 10.0 ** np.arange(6, 300)
    slope = 1 / math.sqrt(2 * math.pi) if p == 2 else 1 / math.pi
    np.testing.assert_allclose(hash_.collision_probability(large), 2.0 / large * slope, rtol=1e-11)
    # No step where the series takes over.
    s = 1e-4 * (1 + np.linspace(-1e-3, 1e-3, 2001))
    np.testing.assert_allclose(np.diff(hash_.collision_probability(2.0 / s)), slope * 1e-10, rtol=1e-4)
    assert hash_.collision_probability(np.ones((2, 3))).shape == (2, 3)
    assert isinstance(hash_.collision_probability(1), float)
    assert isinstance(hash_.success_probability(1), float)


def apart(x: np.ndarray, y: np.ndarray, r: float, p: int) -> tuple[np.ndarray, np.ndarray]:
    """x and a vector from x towards y, at the distance |x - .|_p = r."""
    return x, x + (y - x) * r / np.sum(np.abs(y - x) ** p) ** (1 / p)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("r", [0.0, 0.05, 0.5, 1.0, 3.0, 20.0])
def test_hashes_agree_as_often_as_the_formula_says(p: int, r: float) -> None:
    x, y = apart(*gauss(2, 6).astype(float), r, p)
    hash_ = PStableHash(1.5, n_hashes=4, n_tables=5000, p=p).fit([x])
    same = np.equal(*hash_.transform([x, y]))
    r = float(np.sum(np.abs(np.float32(x) - np.float32(y)) ** p) ** (1 / p))  # after float32
    assert_rate(same.sum(), same.size, hash_.collision_probability(r))
    assert_rate(same.all(axis=1).sum(), 5000, hash_.collision_probability(r) ** 4)
    ten = replaced(hash_, n_tables=10)
    assert_rate(same.all(axis=1).reshape(-1, 10).any(axis=1).sum(), 500, ten.success_probability(r))


def replaced(hash_: PStableHash, **params: object) -> PStableHash:
    other: PStableHash = clone(hash_).set_params(**params)
    return other


@pytest.mark.parametrize("p", [1, 2])
def test_thousands_of_pairs_at_their_distances(p: int) -> None:
    """Pair i is looked at with table i, so that the trials are independent."""
    rng = np.random.RandomState(3)
    X = rng.standard_normal((3000, 12)).astype(np.float32)
    Y = X + rng.standard_normal((3000, 12)).astype(np.float32) * rng.uniform(0.01, 2, (3000, 1)).astype(np.float32)
    r = np.sum(np.abs(X.astype(float) - Y) ** p, axis=1) ** (1 / p)
    hash_ = PStableHash(4.0, n_hashes=1, n_tables=3000, p=p).fit(X)
    i = np.arange(3000)
    same = hash_.transform(X)[i, i, 0] == hash_.transform(Y)[i, i, 0]
    assert_rate(same.sum(), 3000, hash_.collision_probability(r))


def test_success_probability_is_its_formula() -> None:
    hash_ = PStableHash(2.0, n_hashes=3, n_tables=7)
    P = hash_.collision_probability(0.7)
    assert hash_.success_probability(0.7) == pytest.approx(1 - (1 - P**3) ** 7)
    rare = PStableHash(1e-3, n_hashes=3, n_tables=7)  # where 1 - (1 - P^3)^7 would be rounded to zero
    assert rare.success_probability(100.0) == pytest.approx(7 * rare.collision_probability(100.0) ** 3)


@pytest.mark.parametrize("r", [-1.0, np.nan, [1.0, -2.0]])
def test_distances_are_checked(r: object) -> None:
    with pytest.raises(ValueError, match="r must be a distance, 0 or more"):
        PStableHash(1.0).collision_probability(r)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="r must be a distance, 0 or more"):
        PStableHash(1.0).success_probability(r)  # type: ignore[arg-type]


# ---- through the embedding: the paper's claim


def random_set(rng: np.random.RandomState) -> np.ndarray:
    return rng.standard_normal((rng.randint(5, 60), 3)) * rng.uniform(0.3, 2, 3) + rng.standard_normal(3)


@pytest.mark.parametrize("r", [0.3, 1.0, 2.5])
def test_sets_at_an_embedded_distance_collide_as_vectors_do(r: float) -> None:
    """1500 pairs of sets, each scaled to the embedded distance r, each looked at with a table of its own."""
    rng = np.random.RandomState(5)
    model = SlicedWasserstein(n_slices=8, n_quantiles=8, n_jobs=1).fit([np.zeros((1, 3))])
    pairs = []
    for _ in range(1500):
        x, y = random_set(rng), random_set(rng)
        scale = r / model.distance([x], [y])[0, 0]  # the embedding of a scaled set is the scaled embedding
        pairs.append((scale * x, scale * y))
    u, v = (model.transform([both[side] for both in pairs]) for side in range(2))
    np.testing.assert_allclose(np.linalg.norm(u - v, axis=1), r, rtol=1e-4)
    hash_ = PStableHash(2.0, n_hashes=1, n_tables=1500).fit(u)
    i = np.arange(1500)
    same = hash_.transform(u)[i, i, 0] == hash_.transform(v)[i, i, 0]
    assert_rate(same.sum(), 1500, hash_.collision_probability(r))


def test_real_sets_collide_as_their_embedded_distances_say(mnist: tuple) -> None:
    """250 pairs of digits, 20 tables of 2 hashes for each."""
    sets, _ = mnist
    vectors = SlicedWasserstein(n_slices=16, n_quantiles=16, n_jobs=1).fit_transform(sets)
    u, v = vectors[0::2], vectors[1::2]
    r = np.linalg.norm(u.astype(float) - v, axis=1)
    hash_ = PStableHash(float(2 * np.median(r)), n_hashes=2, n_tables=20 * 250).fit(vectors)
    i = np.arange(250)
    a, b = (hash_.transform(x).reshape(250, 250, 20, 2)[i, i] for x in (u, v))
    same = (a == b).all(axis=2)
    P = hash_.collision_probability(r) ** 2
    assert_rate(same.sum(), same.size, np.repeat(P, 20))
    success = replaced(hash_, n_tables=20).success_probability(r)
    assert_rate(same.any(axis=1).sum(), 250, success)


def test_sign_codes_of_sets_collide_as_their_angles_say(mnist: tuple) -> None:
    sets, _ = mnist
    vectors = SlicedWasserstein(n_slices=16, n_quantiles=16, n_jobs=1).fit_transform(sets)
    hash_ = SignHash(20 * 250, rotation="gaussian").fit(vectors)
    code = bits(hash_, vectors)
    centred = vectors.astype(float) - hash_.center_
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    angle = np.arccos(np.clip(np.sum(centred[0::2] * centred[1::2], axis=1), -1, 1))
    same = (code[0::2] == code[1::2]).reshape(250, 250, 20)[np.arange(250), np.arange(250)]
    assert_rate(same.sum(), same.size, np.repeat(hash_.collision_probability(angle), 20))


# ---- p-stable hashes: the values


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("dim", DIMS)
def test_hashes_are_their_formula(p: int, dim: int) -> None:
    X = gauss(60, dim)
    hash_ = PStableHash(1.7, n_hashes=3, n_tables=4, p=p).fit(X)
    values = hash_.transform(X)
    assert values.shape == (60, 4, 3)
    assert values.dtype == np.int32
    assert hash_.directions_.shape == (4, 3, dim)
    assert hash_.offsets_.shape == (4, 3)
    assert np.all((hash_.offsets_ >= 0) & (hash_.offsets_ < 1.7))
    exact = (np.einsum("nd,tkd->ntk", X.astype(float), hash_.directions_) + hash_.offsets_) / 1.7
    np.testing.assert_array_equal(values, np.floor(exact))


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("dim", [1, 3, 300])
def test_batching_changes_no_hash(p: int, dim: int) -> None:
    rng = np.random.RandomState(dim)
    X = rng.standard_normal((1200, dim)).astype(np.float32)
    hash_ = PStableHash(1e-4, n_hashes=3, n_tables=5, p=p).fit(X)  # narrow, so that many lie near an edge
    whole = hash_.transform(X)
    cuts = np.sort(rng.choice(np.arange(1, 1200), 10, replace=False))
    np.testing.assert_array_equal(np.concatenate([hash_.transform(part) for part in np.split(X, cuts)]), whole)
    for row in rng.choice(1200, 15):
        np.testing.assert_array_equal(hash_.transform(X[row : row + 1])[0], whole[row])
    np.testing.assert_array_equal(hash_.transform(np.asfortranarray(X)), whole)


GOLDEN_STABLE = {
    1: [[[-163, -1, 2], [-18, -27, -11]], [[115, 6, -6], [16, -32, -18]]],
    2: [[[3, -8, -1], [3, 5, -4]], [[3, -1, -1], [1, 2, 5]]],
}


@pytest.mark.parametrize("p", [1, 2])
def test_a_seed_fixes_the_hashes(p: int) -> None:
    X = (np.arange(12).reshape(2, 6) * 7 % 11 - 5).astype(np.float32)
    hash_ = PStableHash(2.0, n_hashes=3, n_tables=2, p=p, random_state=42).fit(X)
    assert hash_.transform(X).tolist() == GOLDEN_STABLE[p]
    more = PStableHash(2.0, n_hashes=3, n_tables=5, p=p, random_state=np.int64(42)).fit(X)
    np.testing.assert_array_equal(more.transform(X)[:, :2], hash_.transform(X))
    assert not np.array_equal(replaced(hash_, random_state=1).fit(X).transform(X), hash_.transform(X))


def test_cells_beyond_int32_are_refused() -> None:
    X = gauss(50, 8)
    hash_ = PStableHash(1e-6, random_state=0).fit(X)
    hash_.transform(X)
    X[33] *= 1e4
    with pytest.raises(ValueError, match=r"row 33 falls into cell .*beyond int32: width=1e-06 is too small.*larger"):
        hash_.transform(X)


# ---- theory


def test_sensitivity_in_the_symbols_of_the_paper() -> None:
    hash_ = PStableHash(4.0, n_hashes=6, n_tables=12)
    s = sensitivity(hash_, R=0.8, c=1.5)
    assert (s.R, s.c, s.k, s.T) == (0.8, 1.5, 6, 12)
    assert hash_.collision_probability([0.8, 0.8 * 1.5]).tolist() == [s.P1, s.P2]
    assert s.rho == pytest.approx(math.log(s.P1) / math.log(s.P2))
    assert s.near == hash_.success_probability(0.8)
    assert s.far == pytest.approx(hash_.success_probability(1.2))
    assert replace(s, k=1, T=1).near == pytest.approx(s.P1)
    sign = sensitivity(SignHash(), R=math.pi / 4, c=2)
    assert (sign.P1, sign.P2, sign.k, sign.T) == (0.75, 0.5, 1, 1)
    assert sensitivity(SignHash(), R=math.pi / 2, c=2).rho == 0
    assert sensitivity(lambda r: math.exp(-r), R=1, c=3).rho == pytest.approx(1 / 3)


@given(p=st.sampled_from([1, 2]), width=st.floats(0.1, 50), c=st.floats(1.05, 20), R=st.floats(0.05, 20))
def test_far_vectors_collide_less_often(p: int, width: float, c: float, R: float) -> None:
    s = sensitivity(PStableHash(width, p=p), R, c)
    assert 1 > s.P1 > s.P2 > 0
    assert 0 < s.rho < 1
    assert s.near >= s.far
    larger = sensitivity(PStableHash(width, p=p), R, c * 1.1)
    assert larger.P2 < s.P2
    assert larger.rho < s.rho
    assert sensitivity(PStableHash(width * 1.1, p=p), R, c).P1 > s.P1


@given(angle=st.floats(0.01, 1.5), c=st.floats(1.01, 2))
def test_sign_bits_are_no_worse_than_one_over_c(angle: float, c: float) -> None:
    assert 0 < sensitivity(SignHash(), angle, c).rho <= 1 / c


@given(P=st.floats(0.01, 0.99), k=st.integers(1, 12), success=st.floats(0.01, 0.999))
def test_tables_needed_is_the_least_number(P: float, k: int, success: float) -> None:
    if P**k < 1e-8:
        return
    T = tables_needed(P, k, success)
    assert 1 - (1 - P**k) ** T >= success - 1e-7
    assert T == 1 or 1 - (1 - P**k) ** (T - 1) < success + 1e-7


@given(P=st.floats(0.01, 0.99), n=st.integers(1, 10**9), candidates=st.floats(0.1, 100))
def test_hashes_needed_is_the_least_number(P: float, n: int, candidates: float) -> None:
    k = hashes_needed(P, n, candidates)
    assert n * P**k <= candidates * (1 + 1e-9)
    assert k == 1 or n * P ** (k - 1) > candidates * (1 - 1e-9)


def test_whole_numbers_are_not_rounded_up() -> None:
    assert hashes_needed(0.5, 1024) == 10
    assert hashes_needed(0.1, 1000) == 3
    assert tables_needed(0.5, 1, 0.75) == 2
    assert tables_needed(0.5, 1, 1 - 2.0**-20) == 20
    assert tables_needed(1.0, 30, 0.99) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sensitivity(SignHash(), 0.0, 2), "R=0.0 must be a positive number"),
        (lambda: sensitivity(SignHash(), math.nan, 2), "R=nan must be a positive"),
        (lambda: sensitivity(SignHash(), 1.0, 1), "c=1 must be a number larger than 1"),
        (lambda: sensitivity(SignHash(), 2.0, 2), "R is an angle in radians, and c R must be at most pi"),
        (lambda: sensitivity(SignHash(center="median"), 0.2, 2), "no closed form"),
        (lambda: sensitivity("sign", 0.2, 2), "must be a PStableHash, a SignHash or a function.*not a str"),
        (lambda: sensitivity(lambda r: 0.5, 0.2, 2), "does not tell them apart"),
        (lambda: tables_needed(0.0, 3, 0.5), "P1=0.0 must be a probability, more than 0 and at most 1"),
        (lambda: tables_needed(0.5, 0, 0.5), "k=0 must be a whole number"),
        (lambda: tables_needed(0.5, 3, 1.0), "success=1.0 must be a probability, more than 0 and less than 1"),
        (lambda: tables_needed(0.5, 100, 0.9), "k=100: a table succeeds with the probability .*take fewer hashes"),
        (lambda: tables_needed(0.5, 10_000, 0.9), "take fewer hashes"),
        (lambda: hashes_needed(1.0, 3), "P2=1.0 must be a probability"),
        (lambda: hashes_needed(0.5, 0), "n=0 must be a whole number"),
        (lambda: hashes_needed(0.5, 5, 0.0), "candidates=0.0 must be a positive"),
    ],
)
def test_theory_errors(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


# ---- the scikit-learn contract


HASHES = [
    SignHash(100),
    SignHash(100, "median", "gaussian"),
    SignHash(20, None, "orthogonal", 3),
    PStableHash(2.0),
    PStableHash(0.5, 2, 3, p=1, random_state=7),
]


@pytest.mark.parametrize("hash_", HASHES, ids=repr)
def test_clone_pickle_parameters_and_pipelines(hash_: SignHash | PStableHash) -> None:
    X = gauss(60, 30)
    with pytest.raises(NotFittedError):
        hash_.transform(X)
    fitted = clone(hash_)
    assert fitted.fit(X) is fitted
    assert fitted.n_features_in_ == 30
    values = fitted.transform(X)
    np.testing.assert_array_equal(clone(hash_).fit_transform(X), values)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).transform(X), values)
    assert fitted.get_params() == hash_.get_params()
    assert clone(fitted).get_params() == hash_.get_params()
    fitted.set_params(**{"n_bits": 7} if isinstance(hash_, SignHash) else {"width": 9.0, "n_tables": 1})
    np.testing.assert_array_equal(fitted.transform(X), values)  # what was fitted holds until the next fit
    assert fitted.transform(X[:0]).shape == (0, *values.shape[1:])
    sets = [gauss(n, 2, seed=n) for n in range(5, 25)]
    model = SlicedWasserstein(n_slices=4, n_quantiles=4, n_jobs=1)
    assert len(make_pipeline(model, clone(hash_)).fit_transform(sets)) == 20


def test_a_pickled_hash_is_no_larger_than_what_it_learned() -> None:
    X = gauss(10, 100)
    hash_ = SignHash(1000, rotation="gaussian").fit(X)
    before = len(pickle.dumps(hash_))
    hash_.transform(X)
    assert len(pickle.dumps(hash_)) == before < 5 * 100 * 1000


def test_set_output_gives_a_frame_of_bytes() -> None:
    pandas = pytest.importorskip("pandas")
    X = gauss(5, 4)
    frame = SignHash(20).set_output(transform="pandas").fit_transform(X)
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["signhash0", "signhash1", "signhash2"]
    np.testing.assert_array_equal(frame, SignHash(20).fit_transform(pandas.DataFrame(X)))


@pytest.mark.parametrize(
    ("hash_", "message"),
    [
        (SignHash(0), "n_bits=0 must be a whole number"),
        (SignHash(8.0), r"n_bits=8\.0 must be a whole number"),  # type: ignore[arg-type]
        (SignHash(center="middle"), 'center=\'middle\': give "mean", "median" or None'),
        (SignHash(center=np.zeros(2)), "center=array.*: give"),  # type: ignore[arg-type]
        (SignHash(rotation=None), "rotation=None: give one of"),  # type: ignore[arg-type]
        (SignHash(rotation="sobol"), "rotation='sobol': give one of 'hadamard', 'orthogonal', 'gaussian'"),
        (PStableHash(0), "width=0 must be a positive number"),
        (PStableHash(math.inf), "width=inf must be"),
        (PStableHash("4"), "width='4' must be"),  # type: ignore[arg-type]
        (PStableHash(1, n_hashes=0), "n_hashes=0"),
        (PStableHash(1, n_tables=2.5), r"n_tables=2\.5"),  # type: ignore[arg-type]
        (PStableHash(1, p=3), r"p=3 must be 2 \(Euclidean distance\) or 1"),
        (PStableHash(1, p=1.5), r"p=1\.5 must be"),  # type: ignore[arg-type]
    ],
)
def test_parameters_are_checked(hash_: SignHash | PStableHash, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hash_.fit(gauss(3, 2))
    if not message.startswith(("n_hashes", "n_tables")):
        with pytest.raises(ValueError, match=message):
            hash_.collision_probability(1.0)


@pytest.mark.parametrize("hash_", HASHES, ids=repr)
@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.ones(3), r"X is 1-D, of 3 numbers: vectors must be \(n, D\), so pass x\[None\]"),
        (np.ones((2, 3, 4)), r"X is 3-D, of shape \(2, 3, 4\)"),
        (np.ones((2, 0)), r"X has the shape \(2, 0\)"),
        (5, "X is an int, not an array"),
        (None, "X is None, not an array"),
        (np.ones((2, 3)) * 1j, "X must be real numbers, not complex"),
        ([["a", "b"]], "X must be numbers, not of dtype <U1"),
        ([[1.0, 2.0], [3.0]], "X must have rows of one length, but row 1 has 1 numbers"),
        (csr_matrix(np.eye(3)), r"X is sparse, a csr_matrix: pass X\.toarray\(\)"),
        ([[0.0, 1.0], [np.nan, 2.0]], r"X: row 1 holds NaN \(column 0\)"),
        ([[0.0, -np.inf]], r"X: row 0 holds infinity \(column 1\)"),
        ([[0.0, 1e30]], r"X: row 0 has 1e\+30 in column 1, beyond 1e\+18: scale"),
        ([[0.0, 1e300]], r"X: row 0 has 1e\+300 in column 1, beyond 1e\+18"),
    ],
)
def test_vectors_are_checked(hash_: SignHash | PStableHash, X: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        clone(hash_).fit(X)
    fitted = clone(hash_).fit(gauss(3, 2))
    with pytest.raises(ValueError, match=message):
        fitted.transform(X)


@pytest.mark.parametrize("hash_", HASHES, ids=repr)
def test_other_dimensions_and_nothing_at_all(hash_: SignHash | PStableHash) -> None:
    with pytest.raises(ValueError, match=r"X has the shape \(0, 4\): fit needs at least one vector"):
        clone(hash_).fit(np.ones((0, 4)))
    with pytest.raises(ValueError, match="X has vectors of 5 numbers; the hash was fitted on 4"):
        clone(hash_).fit(np.ones((3, 4))).transform(np.ones((2, 5)))
    X = gauss(5000, 300)
    X[4321, 7] = np.nan
    with pytest.raises(ValueError, match="row 4321 holds NaN"):
        clone(hash_).fit(X)


def test_the_names() -> None:
    assert theory.sensitivity is sensitivity
