"""Sign codes collide as often as their formulas say; seeds hold, and batching changes no bit."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from collisions import assert_rate, bits, gauss, pair
from rotation_oracle import projections

from slosh.embed import SlicedWasserstein
from slosh.hash import SignHash, hamming
from slosh.hash.rotations import ROTATIONS

DIMS = [1, 2, 3, 100, 1024]


CENTERS = ["mean", "median", None]


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
    pairs = np.stack([pair(*rng.standard_normal((2, 20)), angle) * rng.uniform(0.1, 10) for _ in range(2000)])
    center = rng.standard_normal(20).astype(np.float32) * 5
    hash_ = SignHash(2000, rotation=rotation).fit(np.stack([center - 1, center + 1]))
    a, b = (bits(hash_, pairs[:, i] + center).diagonal() for i in range(2))
    assert_rate(np.sum(a == b), 2000, hash_.collision_probability(angle))


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
        with pytest.raises(ValueError, match=rf"n_bits=6 needs independent bits, which rotation='{rotation}'"):
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
    expected = projections(hash_.get_state(), X - hash_.center_)
    sure = np.abs(expected) > 1e-5 * np.linalg.norm(X, axis=1, keepdims=True)
    assert sure.mean() > 0.99
    np.testing.assert_array_equal(unpacked[:, :n_bits][sure], (expected >= 0)[sure])
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
    X, whole = X[-300:], whole[-300:]
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
    assert np.abs(hash_.fit(vectors).get_state()["directions"][0] - vectors[0]).min() > 1e-3
    streams = [SignHash(50, None, random_state=np.random.RandomState(3)).fit(vectors) for _ in range(2)]
    np.testing.assert_array_equal(*(one.transform(vectors) for one in streams))
    streams = [SignHash(50, None, random_state=None).fit(vectors) for _ in range(2)]
    assert not np.array_equal(*(one.transform(vectors) for one in streams))


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
            with pytest.raises(ValueError, match="stored hash"):
                read.set_state({**fitted.get_state(), name: np.zeros((2, 1), np.float32)}, dim)


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
