"""What a hash guarantees about neighbours, in the symbols of the paper: R, c, P1, P2, rho, k, T.

A family of hashes is (R, c, P1, P2)-sensitive if vectors within the distance R agree in a hash with a probability of
P1 at least, and vectors farther apart than c R with P2 at most. k hashes make a table's key, T tables are looked up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..data.checks import checked_count, checked_number, input_error
from ..errors import InputError
from .pstable import PStableHash, at_least_one_table
from .sign import SignHash

MAX_TABLES = 10**9
"""More tables than this are taken for a mistake: a scan is faster."""


@dataclass(frozen=True)
class Sensitivity:
    """What a hash guarantees for the radius R and the factor c. Try other values by `dataclasses.replace(s, k=12)`.

    >>> s = sensitivity(PStableHash(width=4.0, n_hashes=8, n_tables=10), R=1.0, c=2.0)
    >>> f"P1 {s.P1:.3f}, P2 {s.P2:.3f}, rho {s.rho:.3f}; near {s.near:.3f}, far {s.far:.3f}"
    'P1 0.801, P2 0.610, rho 0.449; near 0.842, far 0.175'
    """

    R: float
    c: float
    P1: float
    P2: float
    k: int = 1
    T: int = 1

    @property
    def rho(self) -> float:
        """log P1 / log P2: to look for one of n vectors takes about n^rho tables. Smaller is better; 1 is a scan."""
        return math.log(self.P1) / math.log(self.P2) if self.P2 else 0.0

    @property
    def near(self) -> float:
        """The least probability that vectors within R share a bucket: 1 - (1 - P1^k)^T."""
        return float(at_least_one_table(self.P1, self.k, self.T))

    @property
    def far(self) -> float:
        """The largest probability that vectors beyond c R share a bucket: 1 - (1 - P2^k)^T."""
        return float(at_least_one_table(self.P2, self.k, self.T))


def sensitivity(hash: PStableHash | SignHash | Callable[[float], Any], R: float, c: float) -> Sensitivity:
    """Return P1 = P(R), P2 = P(c R) and rho of a hash, which need not be fitted.

    hash : a `PStableHash`: R is a distance |u - v|_p, k and T are its own. Or a `SignHash`: R is an angle, and c R at
        most pi; of a single bit, k = T = 1. Or any falling function r -> P(r), also with k = T = 1.
    R : the radius, more than 0.
    c : the factor, more than 1.

    >>> f"{sensitivity(SignHash(), R=0.3, c=2.0).rho:.3f}"
    '0.474'
    """
    checked_number("R", R, "a positive number")
    checked_number("c", c, "a number larger than 1", above=1)
    k, T = (int(hash.n_hashes), int(hash.n_tables)) if isinstance(hash, PStableHash) else (1, 1)
    if isinstance(hash, SignHash) and c * R > math.pi * (1 + 1e-12):
        problem = f"R={R!r} and c={c!r}: for a SignHash R is an angle in radians, and c R must be at most pi"
        raise InputError(problem, argument="R")
    probability = hash.collision_probability if isinstance(hash, PStableHash | SignHash) else hash
    if not callable(probability):
        what = "a PStableHash, a SignHash or a function r -> P(r)"
        raise input_error("hash", f"must be {what}, not a {type(hash).__name__}")
    P1, P2 = float(probability(R)), float(probability(c * R))
    if not 1 >= P1 > P2 >= 0:
        raise InputError(f"P1={P1} at R={R!r} and P2={P2} at c R={c * R:.6g}: the hash does not tell them apart")
    return Sensitivity(float(R), float(c), P1, P2, k, T)


def hashes_needed(P2: float, n: int, candidates: float = 1.0) -> int:
    """Return the least k with n P2^k <= candidates: that many of n far vectors are expected in a bucket.

    >>> hashes_needed(P2=0.61, n=1_000_000)
    28
    """
    _check_probability("P2", P2)
    checked_count("n", n)
    checked_number("candidates", candidates, "a positive number")
    return max(1, _ceil(math.log(n / candidates) / -math.log(P2)))


def tables_needed(P1: float, k: int, success: float) -> int:
    """Return the least T for which 1 - (1 - P1^k)^T >= success.

    >>> tables_needed(P1=0.8, k=8, success=0.95)
    17
    """
    checked_number("P1", P1, "a probability, more than 0 and at most 1", below=math.nextafter(1, 2))
    checked_count("k", k)
    _check_probability("success", success)
    share = P1**k
    if share == 1:
        return 1
    T = math.log1p(-success) / math.log1p(-share) if share > 0 else math.inf
    if T > MAX_TABLES:
        problem = f"P1={P1} and k={k}: a table succeeds with the probability {share:.3g}, and {T:.3g} are needed"
        raise InputError(problem, "choose fewer hashes k", argument="k")
    return max(1, _ceil(T))


def _ceil(number: float) -> int:
    """Round up to an integer, but for the rounding errors of logarithms."""
    return math.ceil(number * (1 - 1e-13))


def _check_probability(name: str, value: float) -> None:
    checked_number(name, value, "a probability, more than 0 and less than 1", below=1)
