"""Sensitivity of hashes, and the numbers of hashes and tables needed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slosh.hash import PStableHash, SignHash
from slosh.hash.theory import hashes_needed, sensitivity, tables_needed


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
        (lambda: tables_needed(0.5, 100, 0.9), "k=100: a table succeeds with the probability .*choose fewer hashes"),
        (lambda: tables_needed(0.5, 10_000, 0.9), "choose fewer hashes"),
        (lambda: hashes_needed(1.0, 3), "P2=1.0 must be a probability"),
        (lambda: hashes_needed(0.5, 0), "n=0 must be a whole number"),
        (lambda: hashes_needed(0.5, 5, 0.0), "candidates=0.0 must be a positive"),
    ],
)
def test_theory_errors(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
